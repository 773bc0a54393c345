//! A pod that is gone leaves nothing, nobody waits for us, and its addresses rest before they are used again.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fairlead_tests::wait;
use serde_json::{Value, json};

use crate::{
    agents,
    fixtures::{self, Net, SOON, Traces},
    trial::{Case, Env},
};

/// From a pod's end to the end of its record: the runtime's and the kubelet's time is in it.
const CLEANED: Duration = Duration::from_secs(10);
const QUARANTINE: Duration = Duration::from_secs(5);

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("gone_after_a_plain_delete", plain_delete),
        Case::new("gone_after_a_forced_delete", forced_delete),
        Case::new("gone_after_the_namespace_is_deleted", namespace_delete),
        Case::new("gone_after_a_job_completes", completed_job),
        Case::new("gone_and_back_under_the_same_name", stateful_set),
        Case::new("gone_addresses_rest_for_their_quarantine", quarantine),
        Case::new("gone_without_an_agent_the_pod_does_not_wait", nobody_waits)
            .alone()
            .timeout(Duration::from_secs(240)),
    ]
}

async fn running_pod(env: &Env, range: &str) -> Result<Traces> {
    let net = Net::island(env, "gone", &[range, "fd00:40::/64"]);
    net.create(env).await?;
    env.apply(&fixtures::pod("victim", net.name()).to_string())
        .await?;
    env.wait_ready("app=victim", SOON).await?;
    fixtures::traces(env, "victim").await
}

async fn plain_delete(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.40.0.0/24").await?;
    env.kubectl(&["delete", "pod", "victim", "--timeout=20s"]).await?;
    traces.wait_gone(&env, CLEANED).await
}

async fn forced_delete(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.41.0.0/24").await?;
    env.kubectl(&[
        "delete",
        "pod",
        "victim",
        "--force",
        "--grace-period=0",
        "--timeout=20s",
    ])
    .await?;
    traces.wait_gone(&env, CLEANED).await
}

async fn namespace_delete(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.42.0.0/24").await?;
    env.kubectl(&["delete", "namespace", &env.namespace, "--timeout=40s"])
        .await?;
    traces.wait_gone(&env, CLEANED).await?;
    // For the end of the trial, which deletes it once more.
    env.kubectl(&["create", "namespace", &env.namespace]).await?;
    Ok(())
}

async fn completed_job(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "job", &["10.43.0.0/24"]);
    net.create(&env).await?;
    let mut pod = fixtures::pod("work", net.name());
    pod["spec"]["restartPolicy"] = "Never".into();
    pod["spec"]["containers"][0]["command"] = json!(["sleep", "3"]);
    let template = json!({ "metadata": pod["metadata"].clone(), "spec": pod["spec"].clone() });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "work" },
        "spec": { "template": without_name(template) },
    });
    env.apply(&job.to_string()).await?;
    env.wait_ready("app=work", SOON).await?;
    let [name] = &fixtures::pods(&env, "work").await?[..] else {
        anyhow::bail!("a job of one pod")
    };
    let traces = fixtures::traces(&env, name).await?;
    env.kubectl(&["wait", "job/work", "--for=condition=Complete", "--timeout=40s"])
        .await?;
    traces.wait_gone(&env, CLEANED).await?;
    ensure!(
        fixtures::pods(&env, "work").await?.len() == 1,
        "the completed pod must still be there"
    );
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
    for round in 0..3 {
        env.kubectl(&["rollout", "status", "statefulset/web", "--timeout=60s"])
            .await?;
        let uid = env.field("pod/web-0", ".metadata.uid").await?;
        wait::until(CLEANED, "one record, of the pod that is there", || async {
            let uids: Vec<_> = fixtures::records(&env)
                .await?
                .into_iter()
                .map(|record| record.spec.pod_uid)
                .collect();
            ensure!(
                uids == [uid.clone()],
                "round {round}: the pod is {uid}, the records are of {uids:?}"
            );
            Ok(())
        })
        .await?;
        env.kubectl(&["delete", "pod", "web-0", "--timeout=20s"]).await?;
    }
    Ok(())
}

/// Three addresses, one pod at a time: whatever comes back must have rested.
async fn quarantine(env: Arc<Env>) -> Result<()> {
    // A /29 has six, less a gateway and two excluded ones.
    let net = Net::island(&env, "rest", &["10.45.0.0/29"])
        .with("/ipam/ranges/0/gateway", "10.45.0.1".into())
        .with("/ipam/ranges/0/exclude", json!(["10.45.0.2/32", "10.45.0.3/32"]))
        .with("/nodeSelector", json!({ "kubernetes.io/hostname": "node1" }));
    net.create(&env).await?;
    let mut freed: BTreeMap<String, Instant> = BTreeMap::new();
    let mut again = 0;
    for round in 0..6 {
        let name = format!("turn-{round}");
        env.apply(&fixtures::on_node(fixtures::pod(&name, net.name()), "node1").to_string())
            .await?;
        env.wait_ready(&format!("app={name}"), SOON).await?;
        let traces = fixtures::traces(&env, &name).await?;
        for address in &traces.addresses {
            if let Some(since) = freed.get(address).map(Instant::elapsed) {
                again += 1;
                ensure!(since >= QUARANTINE, "{address} was given again after {since:?}");
            }
        }
        env.kubectl(&["delete", "pod", &name, "--timeout=20s"]).await?;
        // The latest moment at which it can have been freed would hide a violation; this is the earliest.
        let earliest = Instant::now();
        freed.extend(traces.addresses.iter().map(|address| (address.clone(), earliest)));
        traces.wait_gone(&env, CLEANED).await?;
    }
    ensure!(again > 0, "no address came back, so nothing was seen");
    Ok(())
}

async fn nobody_waits(env: Arc<Env>) -> Result<()> {
    let traces = running_pod(&env, "10.46.0.0/24").await?;
    agents::while_stopped(&env.cluster, async {
        let started = Instant::now();
        env.kubectl(&["delete", "pod", "victim", "--timeout=20s"]).await?;
        let took = started.elapsed();
        ensure!(
            took < Duration::from_secs(5),
            "without an agent the deletion took {took:?}"
        );
        Ok(())
    })
    .await?;
    traces.wait_gone(&env, CLEANED).await
}
