//! The scheduling gate: which pods get it, and what the controller may do to lift it.

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use kube::Client;
use serde_json::{Value, json};

use super::{
    hold::asking,
    place::{Place, Verb, refused, send},
};

fn gates(pod: &Value) -> Vec<&str> {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.into_iter().flatten().filter_map(|gate| gate["name"].as_str()).collect()
}

/// A pod is gated if a network it names is not there, in either form of the request, and only if it has no node.
pub async fn a_pod_is_gated_while_no_node_could_help_it(place: &Place) -> Result<()> {
    let there = &place.counted;
    let json_form = |name: &str| json!([{ "interface": "name", "name": name }]).to_string();
    for (request, gated) in [
        (there.clone(), false),
        (format!("{there},{}", place.uncounted), false),
        (String::new(), false),
        ("absent".into(), true),
        (format!("{there}@net1, absent@net2"), true),
        (json_form("absent"), true),
        (json_form(there), false),
    ] {
        let stored = place.try_pod(&asking(&request)).await?;
        let expected: &[&str] = if gated { &[names::SCHEDULING_GATE] } else { &[] };
        ensure!(gates(&stored) == expected, "{request}: {stored:#}");
    }
    let mut bound = asking("absent");
    bound["spec"]["nodeName"] = json!("node1");
    ensure!(gates(&place.try_pod(&bound).await?).is_empty());
    let mut on_the_node = asking("absent");
    on_the_node["spec"]["hostNetwork"] = json!(true);
    ensure!(gates(&place.try_pod(&on_the_node).await?).is_empty());
    Ok(())
}

/// A gate is added once, in its place among those of others, and a copy of a pod has the one it needs.
pub async fn a_gate_that_the_user_brought_is_set_right(place: &Place) -> Result<()> {
    let ours = json!({ "name": names::SCHEDULING_GATE });
    let other = json!({ "name": "example.com/other" });
    for (request, brought, expected) in [
        ("absent", json!([other]), vec!["example.com/other", names::SCHEDULING_GATE]),
        ("absent", json!([ours, other]), vec![names::SCHEDULING_GATE, "example.com/other"]),
        (&place.counted, json!([ours, other]), vec!["example.com/other"]),
        (&place.counted, json!([ours]), vec![]),
    ] {
        let mut pod = asking(request);
        pod["spec"]["schedulingGates"] = brought;
        let stored = place.try_pod(&pod).await?;
        ensure!(gates(&stored) == expected, "{request}: {stored:#}");
    }
    Ok(())
}

/// The controller takes our gate away, and nothing else; nobody else does.
pub async fn the_controller_lifts_its_gate_and_changes_nothing_else(place: &Place) -> Result<()> {
    let controller = place.controller().await?;
    let mut pod = asking("absent");
    pod["spec"]["schedulingGates"] = json!([{ "name": "example.com/other" }]);
    let pods = Place::pods(&place.namespace);
    let stored = send(&place.client, Verb::Create, &pods, &pod).await?;
    let path = format!("{pods}/{}", stored["metadata"]["name"].as_str().context("a pod without a name")?);
    let lift = |index: usize| json!([{ "op": "remove", "path": format!("/spec/schedulingGates/{index}") }]);
    refused(attempt(&place.client, Verb::Json, &path, &lift(1)).await, "is lifted by fairlead only")?;
    attempt(&place.client, Verb::Json, &path, &lift(0)).await?;
    let lifted = attempt(&controller, Verb::Json, &path, &lift(1)).await?;
    ensure!(gates(&lifted) == ["example.com/other"], "{lifted:#}");
    let words = "nothing of a pod but the scheduling gate";
    refused(attempt(&controller, Verb::Json, &path, &lift(0)).await, words)?;
    for change in [
        json!({ "metadata": { "labels": { "app": "other" } } }),
        json!({ "metadata": { "annotations": { names::NETWORKS_ANNOTATION: "other" } } }),
        json!({ "metadata": { "finalizers": ["mine.example/keep"] } }),
        json!({ "spec": { "containers": [{ "name": "app", "image": "other" }] } }),
        json!({ "spec": { "nodeSelector": { "kubernetes.io/hostname": "node1" } } }),
        json!({ "spec": { "activeDeadlineSeconds": 1 } }),
    ] {
        refused(attempt(&controller, Verb::Strategic, &path, &change).await, words)?;
        attempt(&place.client, Verb::Strategic, &path, &change).await?;
    }
    let tolerate = json!([{ "op": "add", "path": "/spec/tolerations/-", "value": { "operator": "Exists" } }]);
    refused(attempt(&controller, Verb::Json, &path, &tolerate).await, words)?;
    attempt(&place.client, Verb::Json, &path, &tolerate).await?;
    one_condition_only(place, &controller, &path).await?;
    send(&place.client, Verb::Delete, &path, &Value::Null).await?;
    Ok(())
}

/// Of the status of a pod without a node the controller writes one condition.
async fn one_condition_only(place: &Place, controller: &Client, path: &str) -> Result<()> {
    let condition = |name: &str| json!({ "status": { "conditions": [{ "type": name, "status": "False" }] } });
    let status = format!("{path}/status");
    attempt(controller, Verb::Strategic, &status, &condition(names::NETWORK_READY)).await?;
    for change in [condition("Ready"), json!({ "status": { "phase": "Failed" } })] {
        refused(attempt(controller, Verb::Strategic, &status, &change).await, "but the condition")?;
    }
    let mut bound = asking(&place.uncounted);
    bound["spec"]["nodeName"] = json!("node1");
    bound["spec"]["containers"][0]["image"] = json!("none.invalid/none");
    let pods = Place::pods(&place.namespace);
    let stored = send(&place.client, Verb::Create, &pods, &bound).await?;
    let path = format!("{pods}/{}", stored["metadata"]["name"].as_str().context("a pod without a name")?);
    let status = format!("{path}/status");
    let answer = attempt(controller, Verb::Strategic, &status, &condition(names::NETWORK_READY)).await;
    send(&place.client, Verb::Delete, &format!("{path}?gracePeriodSeconds=0"), &Value::Null).await?;
    refused(answer, "without a node only")
}

async fn attempt(client: &Client, verb: Verb, path: &str, body: &Value) -> kube::Result<Value> {
    send(client, verb, &format!("{path}?dryRun=All"), body).await
}
