//! A pod that is gone leaves nothing, nobody waits for us, and its addresses rest before they are used again.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{IPBlock, PodNetwork, names};
use fairlead_tests::wait;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::{
    fixtures::{self, Net, PATIENTLY, QUARANTINE, eventually},
    traces::{self, Traces},
    trial::{Case, Env},
};

/// From the end of a pod in the API to the end of its record; the kubelet removes the sandbox before the pod.
const CLEANED: Duration = Duration::from_secs(5);
/// From the end of the sandbox, as this machine tells it, to the end of its record.
const AFTER_THE_SANDBOX: Duration = Duration::from_secs(3);
/// From a forced deletion: the kubelet hears of it and ends the sandbox afterwards.
const CLEANED_LATE: Duration = Duration::from_secs(20);

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("gone_after_a_plain_delete", plain_delete),
        Case::new("gone_after_a_forced_delete", forced_delete),
        Case::new("gone_after_the_namespace_is_deleted", namespace_delete),
        Case::new("gone_after_a_job_completes", completed_job),
        Case::new("gone_and_back_under_the_same_name", stateful_set),
        Case::new("gone_soon_after_the_sandbox", after_the_sandbox),
        Case::new("gone_addresses_rest_for_their_quarantine", quarantine),
        Case::new(
            "gone_a_network_stays_until_its_last_pod_is_gone_and_takes_its_bridge_and_blocks_along",
            network,
        ),
    ]
}

async fn running_pod(env: &Env, range: &str) -> Result<Traces> {
    let net = Net::island(env, "gone", &[range, "fd00:40::/64"]);
    net.create(env).await?;
    env.apply(&fixtures::pod("victim", net.name()).to_string()).await?;
    env.wait_ready("app=victim").await?;
    traces::of(env, "victim").await
}

async fn plain_delete(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.40.0.0/24").await?;
    let asked = SystemTime::now();
    env.kubectl(&["delete", "pod", "victim", PATIENTLY]).await?;
    traces.wait_gone(&env, CLEANED).await?;
    traces.rest_since(&env, asked).await
}

async fn forced_delete(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.41.0.0/24").await?;
    let asked = SystemTime::now();
    env.kubectl(&["delete", "pod", "victim", "--force", "--grace-period=0", PATIENTLY]).await?;
    traces.wait_gone(&env, CLEANED_LATE).await?;
    traces.rest_since(&env, asked).await
}

async fn namespace_delete(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.42.0.0/24").await?;
    let asked = SystemTime::now();
    env.kubectl(&["delete", "namespace", &env.namespace, PATIENTLY]).await?;
    // The namespace could not go before the record, and both not before the pod.
    traces.wait_gone(&env, Duration::from_secs(1)).await?;
    traces.rest_since(&env, asked).await?;
    // For the end of the trial, which deletes it once more.
    env.kubectl(&["create", "namespace", &env.namespace]).await?;
    Ok(())
}

async fn completed_job(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "job", &["10.43.0.0/24"]);
    net.create(&env).await?;
    let mut pod = fixtures::pod("work", net.name());
    pod["spec"]["restartPolicy"] = "Never".into();
    let until_told = "while [ ! -e /done ]; do sleep 0.1; done";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", until_told]);
    let template = json!({ "metadata": pod["metadata"].clone(), "spec": pod["spec"].clone() });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work" },
        "spec": { "template": without_name(template) },
    });
    env.apply(&job.to_string()).await?;
    eventually("the pod of the job", || async {
        let pods = fixtures::pods(&env, "work").await?.len();
        ensure!(pods == 1, "{pods} pods");
        Ok(())
    })
    .await?;
    env.wait_ready("app=work").await?;
    let pods = fixtures::pods(&env, "work").await?;
    let name = pods.first().context("a pod")?;
    let traces = traces::of(&env, name).await?;
    let asked = SystemTime::now();
    env.exec(name, &["touch", "/done"]).await?;
    env.kubectl(&["wait", "job/work", "--for=condition=Complete", PATIENTLY]).await?;
    traces.wait_gone(&env, CLEANED_LATE).await?;
    traces.rest_since(&env, asked).await?;
    let phase = env.field(&format!("pod/{name}"), ".status.phase").await?;
    ensure!(phase == "Succeeded", "the completed pod must still be there, it is {phase}");
    Ok(())
}

fn without_name(mut template: Value) -> Value {
    if let Some(metadata) = template["metadata"].as_object_mut() {
        metadata.remove("name");
    }
    template
}

async fn stateful_set(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "set", &["10.44.0.0/24"]);
    net.create(&env).await?;
    let pod = fixtures::pod("web", net.name());
    let template = without_name(json!({ "metadata": pod["metadata"], "spec": pod["spec"] }));
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "web" },
        "spec": {
            "replicas": 1,
            "serviceName": "web",
            "selector": { "matchLabels": { "app": "web" } },
            "template": template,
        },
    });
    env.apply(&set.to_string()).await?;
    let mut before = String::new();
    for round in 0..3 {
        // The status of the set may still be of the pod before.
        before = eventually("the next pod of the set", || async {
            let uid = env.field("pod/web-0", ".metadata.uid").await?;
            ensure!(uid != before, "it is the one before");
            Ok(uid)
        })
        .await?;
        env.wait_ready("app=web").await?;
        let traces = traces::of(&env, "web-0").await?;
        let records = fixtures::records(&env).await?.len();
        ensure!(records == 1, "round {round}: {records} records of one pod");
        let asked = SystemTime::now();
        env.kubectl(&["delete", "pod", "web-0", PATIENTLY]).await?;
        traces.wait_gone(&env, CLEANED).await?;
        traces.rest_since(&env, asked).await?;
    }
    Ok(())
}

/// Measured from the death of the sandbox, whatever the kubelet and the API server do meanwhile.
async fn after_the_sandbox(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.47.0.0/24").await?;
    let record = fixtures::record(&env, "victim").await?;
    let node = env.cluster.node(&record.spec.node_name)?;
    let records: Api<PodNetwork> = Api::namespaced(env.cluster.client(), &env.namespace);
    env.kubectl(&["delete", "pod", "victim", "--wait=false"]).await?;
    eventually("the sandbox to end", || async {
        let left = node.sandbox_pids(&traces.uid).await?;
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await?;
    wait::promptly(AFTER_THE_SANDBOX, "the record to go after its sandbox", || async {
        let left = records.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    traces.wait_gone(&env, Duration::from_secs(1)).await
}

/// Three addresses, one pod at a time: whatever comes back must have rested.
async fn quarantine(env: Arc<Env>) -> Result<()> {
    // A /29 has six, less a gateway and two excluded ones.
    let net = Net::island(&env, "rest", &["10.45.0.0/29"])
        .with("/ipam/ranges/0/gateway", "10.45.0.1".into())
        .with("/ipam/ranges/0/exclude", json!(["10.45.0.2/32", "10.45.0.3/32"]))
        .with("/exhaustion", json!({ "resource": false, "taint": "None" }))
        .with("/nodeSelector", json!({ "kubernetes.io/hostname": "node1" }));
    net.create(&env).await?;
    let mut freed: BTreeMap<String, Timestamp> = BTreeMap::new();
    let mut again = 0;
    for round in 0..6 {
        let name = format!("turn-{round}");
        env.apply(&fixtures::on_node(fixtures::pod(&name, net.name()), "node1").to_string()).await?;
        env.wait_ready(&format!("app={name}")).await?;
        let traces = traces::of(&env, &name).await?;
        again += usize::from(was_not_too_early(&env, &name, &traces, &freed).await?);
        let asked = SystemTime::now();
        env.kubectl(&["delete", "pod", &name, PATIENTLY]).await?;
        // The sandbox lived when it was asked for, so this is never later than what we look for.
        let rested = Timestamp::try_from(asked + QUARANTINE)?;
        freed.extend(traces.addresses.iter().map(|address| (address.clone(), rested)));
        traces.wait_gone(&env, CLEANED).await?;
        traces.rest_since(&env, asked).await?;
    }
    ensure!(again > 0, "no address came back, so nothing was seen");
    Ok(())
}

/// Whether an address of the pod was another's before. Its record must be younger than the end of the rest.
async fn was_not_too_early(
    env: &Env,
    pod: &str,
    traces: &Traces,
    freed: &BTreeMap<String, Timestamp>,
) -> Result<bool> {
    let record = fixtures::record(env, pod).await?;
    let created = record.metadata.creation_timestamp.context("a record without a time")?.0;
    let Some((address, rested)) = traces.addresses.iter().find_map(|address| freed.get_key_value(address))
    else {
        return Ok(false);
    };
    // The time of creation is cut to whole seconds.
    let latest = created + Duration::from_secs(1);
    ensure!(latest > *rested, "{address} was given to {pod} at {created}, and had to rest until {rested}");
    Ok(true)
}

async fn network(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "short", &["10.48.0.0/24"]);
    net.create(&env).await?;
    env.apply(&fixtures::on_node(fixtures::pod("last", net.name()), "node1").to_string()).await?;
    env.wait_ready("app=last").await?;
    let node = env.cluster.node("node1")?;
    let bridge = env.link_name("short");
    node.exec(&["ip", "link", "show", &bridge]).await?;
    let object = format!("networks.{}/{}", names::GROUP, net.name());
    env.kubectl(&["delete", &object, "--wait=false"]).await?;
    eventually("the Network to say that it is used", || async {
        let status = env.field(&object, ".status.conditions[?(@.type==\"InUse\")].status").await?;
        ensure!(status == "True", "InUse={status}");
        Ok(())
    })
    .await?;
    wait::stays(Duration::from_secs(3), "the pod keeps its interface", || async {
        let found = fixtures::addresses(&env, "last", "net1").await?;
        ensure!(found.len() == 1, "{found:?}");
        Ok(())
    })
    .await?;
    env.kubectl(&["delete", "pod", "last", PATIENTLY]).await?;
    eventually("the Network, its blocks and its bridge to go", || async {
        let left = env.kubectl(&["get", &object, "--ignore-not-found", "-o", "name"]).await?;
        let blocks: Api<IPBlock> = Api::all(env.cluster.client());
        let of_network = ListParams::default().fields(&format!("spec.network={}", net.name()));
        let blocks = blocks.list(&of_network).await?.items.len();
        let bridge = node.output(&["ip", "link", "show", &bridge]).await?.status.success();
        ensure!(left.is_empty() && blocks == 0 && !bridge, "{left} {blocks} blocks, bridge: {bridge}");
        Ok(())
    })
    .await
}
