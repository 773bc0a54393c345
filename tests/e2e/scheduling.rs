//! The scheduling gate: a pod stays away from all nodes while no node could help it, says why, and goes on by itself.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::{Reason, names};
use fairlead_tests::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

/// Of somebody else.
const OTHER: &str = "example.com/other";
/// Long enough for the scheduler or the controller to do what they must not.
const AWHILE: Duration = Duration::from_secs(3);

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("scheduling_waits_for_a_network_that_does_not_exist_yet", missing_network),
        Case::new("scheduling_waits_for_an_address_of_a_full_range", full_range),
        Case::new("scheduling_leaves_the_gate_of_another_controller", gate_of_another),
        Case::new("scheduling_gates_are_lifted_by_nobody_else", nobody_else),
        Case::new("scheduling_does_not_wait_for_what_another_node_could_bring", node_capacity),
    ]
}

/// The names of a pod's scheduling gates, and the reason why it is not scheduled.
async fn gates(env: &Env, name: &str) -> Result<(Vec<String>, String)> {
    let api: Api<Pod> = Api::namespaced(env.cluster.client(), &env.namespace);
    let pod = api.get(name).await?;
    let gates = pod.spec.and_then(|spec| spec.scheduling_gates).unwrap_or_default();
    let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
    let reason = scheduled.and_then(|condition| condition.reason).unwrap_or_default();
    Ok((gates.into_iter().map(|gate| gate.name).collect(), reason))
}

/// Waits until a pod is gated, and says why where people look.
async fn is_gated(env: &Env, name: &str, reason: Reason, sentence: &str) -> Result<()> {
    eventually(&format!("{name} to be gated and to say why"), || async {
        let found = gates(env, name).await?;
        ensure!(
            found == (vec![names::SCHEDULING_GATE.to_owned()], "SchedulingGated".to_owned()),
            "{found:?}"
        );
        let shown = env.kubectl(&["get", "pod", name]).await?;
        ensure!(shown.contains("SchedulingGated"), "{shown}");
        let described = env.kubectl(&["describe", "pod", name]).await?;
        ensure!(described.contains(&format!("{reason}: ")) && described.contains(sentence), "{described}");
        let condition = condition(env, name).await?;
        ensure!(condition["status"] == "False" && condition["reason"] == reason.as_str(), "{condition}");
        ensure!(condition["message"].as_str().is_some_and(|said| said.contains(sentence)), "{condition}");
        Ok(())
    })
    .await?;
    ensure!(fixtures::record(env, name).await.is_err(), "{name} has a record, so a node has it");
    Ok(())
}

async fn condition(env: &Env, name: &str) -> Result<Value> {
    let path = format!("jsonpath={{.status.conditions[?(@.type=='{}')]}}", names::NETWORK_READY);
    let condition = env.kubectl(&["get", "pod", name, "-o", &path]).await?;
    serde_json::from_str(&condition).context("it has no condition of ours")
}

async fn missing_network(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "absent", &["10.35.0.0/24"]);
    let forms =
        [("text", format!("{}@net1", net.name())), ("json", json!([{ "name": net.name() }]).to_string())];
    for (name, request) in &forms {
        env.apply(&fixtures::pod(name, request).to_string()).await?;
    }
    for (name, _) in &forms {
        let sentence = format!("network {} does not exist; the pod goes on once it does", net.name());
        is_gated(&env, name, Reason::NetworkNotFound, &sentence).await?;
    }
    let events = [
        "get",
        "events",
        "--field-selector=reason=PodWaits",
        "-o",
        "jsonpath={.items[*].note}{.items[*].message}",
    ];
    let events = env.kubectl(&events).await?;
    ensure!(events.matches("NetworkNotFound").count() == forms.len(), "one event for each: {events}");
    net.create(&env).await?;
    for (name, _) in &forms {
        env.wait_ready(&format!("app={name}")).await?;
        let (gates, _) = gates(&env, name).await?;
        ensure!(gates.is_empty(), "{gates:?}");
    }
    Ok(())
}

/// Whether new pods of a network get the gate.
async fn wait_for_admission(env: &Env, net: &Net, gated: bool) -> Result<()> {
    eventually(&format!("the Admission to say gated: {gated}"), || async {
        let path = format!("jsonpath={{.spec.networks[?(@.name=='{}')].gated}}", net.name());
        let admission = format!("admissions.{}/{}", names::GROUP, names::ADMISSION);
        let said = env.cluster.kubectl(&["get", &admission, "-o", &path]).await?;
        ensure!(said == gated.to_string(), "it says {said:?}");
        Ok(())
    })
    .await
}

async fn full_range(env: Arc<Env>) -> Result<()> {
    // A /30 has two addresses to hand out.
    let net = Net::island(&env, "spent", &["10.36.0.0/30"]);
    net.create(&env).await?;
    wait_for_admission(&env, &net, false).await?;
    for name in ["one", "two"] {
        env.apply(&fixtures::pod(name, net.name()).to_string()).await?;
    }
    env.wait_ready("app in (one,two)").await?;
    wait_for_admission(&env, &net, true).await?;
    env.apply(&fixtures::pod("three", net.name()).to_string()).await?;
    is_gated(&env, "three", Reason::NoAddresses, &format!("network {} has no free address", net.name()))
        .await?;
    // One that chose its node is past the scheduler.
    let bound = fixtures::bound(fixtures::pod("bound", net.name()), "node1");
    env.apply(&bound.to_string()).await?;
    fixtures::wait_for_reason(&env, "bound", &[Reason::NoAddresses]).await?;
    env.kubectl(&["delete", "pod", "bound", PATIENTLY]).await?;
    env.kubectl(&["delete", "pod", "one", PATIENTLY]).await?;
    env.wait_ready("app=three").await
}

async fn gate_of_another(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "both", &["10.37.0.0/24"]);
    let mut pod = fixtures::pod("shared", net.name());
    pod["spec"]["schedulingGates"] = json!([{ "name": OTHER }]);
    env.apply(&pod.to_string()).await?;
    let (found, _) = gates(&env, "shared").await?;
    ensure!(found == [OTHER, names::SCHEDULING_GATE], "{found:?}");
    net.create(&env).await?;
    eventually("our gate to be lifted", || async {
        let (found, _) = gates(&env, "shared").await?;
        ensure!(found == [OTHER], "{found:?}");
        Ok(())
    })
    .await?;
    wait::stays(AWHILE, "the other gate stays", || async {
        let found = gates(&env, "shared").await?;
        ensure!(found == (vec![OTHER.to_owned()], "SchedulingGated".to_owned()), "{found:?}");
        Ok(())
    })
    .await?;
    let lift = json!({ "spec": { "schedulingGates": null } }).to_string();
    env.kubectl(&["patch", "pod", "shared", "--type=merge", "-p", &lift]).await?;
    env.wait_ready("app=shared").await
}

/// Not even an administrator, who can do more than any tenant.
async fn nobody_else(env: Arc<Env>) -> Result<()> {
    env.apply(&fixtures::pod("held", &env.unique("never")).to_string()).await?;
    let lift = json!({ "spec": { "schedulingGates": null } }).to_string();
    match env.kubectl(&["patch", "pod", "held", "--type=merge", "-p", &lift]).await {
        Ok(answer) => bail!("not refused: {answer}"),
        Err(error) => ensure!(format!("{error:#}").contains("is lifted by fairlead only"), "{error:#}"),
    }
    // The rest of the pod is free.
    env.kubectl(&["label", "pod", "held", "free=yes"]).await?;
    let correct = format!("{}=", names::NETWORKS_ANNOTATION);
    env.kubectl(&["annotate", "--overwrite", "pod", "held", &correct]).await?;
    env.wait_ready("app=held").await
}

/// Autoscalers act on what the scheduler could not place, and do not see gated pods.
async fn node_capacity(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "there", &["10.38.0.0/24"])
        .with("/nodeSelector", json!({ "kubernetes.io/hostname": "node1" }));
    net.create(&env).await?;
    wait_for_admission(&env, &net, false).await?;
    let mut large = fixtures::pod("large", net.name());
    large["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1000" } });
    let elsewhere = fixtures::on_node(fixtures::pod("elsewhere", net.name()), "node2");
    for (name, pod, lacking) in
        [("large", large, "cpu".to_owned()), ("elsewhere", elsewhere, names::resource(net.name()))]
    {
        env.apply(&pod.to_string()).await?;
        eventually(&format!("the scheduler to say what {name} lacks"), || async {
            let found = gates(&env, name).await?;
            ensure!(found == (vec![], "Unschedulable".to_owned()), "{found:?}");
            let described = env.kubectl(&["describe", "pod", name]).await?;
            ensure!(described.contains("FailedScheduling"), "{described}");
            ensure!(described.contains(&format!("Insufficient {lacking}")), "{described}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
