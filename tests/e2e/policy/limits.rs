//! The most that the parameter of the mutating policies can hold is within the API server's budget for CEL.

use anyhow::{Result, ensure};
use fairlead_crds::{
    admission::{MAX_ATTACH, MAX_NETWORKS},
    names,
    request::MAX_ATTACHMENTS,
};
use serde_json::{Value, json};

use super::{
    hold::{container, plain},
    place::{ADMISSION, Place, Verb, send},
};
use crate::fixtures::eventually;

/// Requirements of each selector; with the values below the object is close to what etcd stores at most.
const REQUIREMENTS: usize = 4;
const VALUES: usize = 8;
const CONTAINERS: usize = 40;

/// A pod of many containers that asks for as much as it can, and that every rule selects.
///
/// Nothing may write the Admission meanwhile; what was in it is lost.
pub async fn the_largest_admission_is_affordable(place: &Place) -> Result<()> {
    let controller = place.controller().await?;
    let networks: Vec<Value> = (0..MAX_NETWORKS)
        .map(|index| json!({ "name": network(index), "resource": true, "gated": index == MAX_NETWORKS - 1 }))
        .collect();
    let attach: Vec<Value> = (0..MAX_ATTACH)
        .map(|index| json!({ "network": network(index), "interface": format!("net{index}"), "podSelector": selector(), "namespaceSelector": selector() }))
        .collect();
    let patch = json!({ "spec": { "networks": networks, "attach": attach } });
    send(&controller, Verb::Merge, ADMISSION, &patch).await?;
    place.label_namespace(&labels()).await?;
    place.label_namespace(&json!({ names::ATTACH_LABEL: names::ATTACH_ENABLED })).await?;
    let mut pod = plain();
    let asked: Vec<Value> = (0..MAX_ATTACHMENTS).map(|index| json!({ "name": network(index) })).collect();
    pod["metadata"]["labels"] = labels();
    pod["metadata"]["annotations"] = json!({ names::NETWORKS_ANNOTATION: json!(asked).to_string() });
    let both = json!({ "cpu": "10m", "memory": "8Mi" });
    let resources = json!({ "requests": both, "limits": both });
    pod["spec"]["containers"] =
        (0..CONTAINERS).map(|index| container(&format!("c{index}"), &resources)).collect();
    eventually("the Admission to be seen", || async {
        let stored = place.try_pod(&pod).await?;
        let limits = &stored["spec"]["initContainers"][0]["resources"]["limits"];
        let counted = limits
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| key.starts_with(names::RESOURCE_PREFIX));
        ensure!(counted.count() == MAX_NETWORKS, "{limits}");
        let gates = &stored["spec"]["schedulingGates"];
        ensure!(*gates == json!([{ "name": names::SCHEDULING_GATE }]), "{gates}");
        Ok(())
    })
    .await
}

/// As long as a Network's name can be.
fn network(index: usize) -> String {
    format!("n{index:0>width$}", width = names::NETWORK_NAME_MAX - 1)
}

fn key(index: usize) -> String {
    format!("key{index}.example.com/a-key-of-a-usual-length")
}

fn labels() -> Value {
    let keys = (0..REQUIREMENTS).flat_map(|index| [format!("app{index}"), key(index)]);
    keys.map(|key| (key, json!("v".repeat(50)))).collect()
}

/// All requirements hold for [`labels`], so that none is skipped.
fn selector() -> Value {
    let values: Vec<String> = (0..VALUES).map(|value| format!("{value}{}", "x".repeat(30))).collect();
    let requirement = |index| json!({ "key": key(index), "operator": "NotIn", "values": values });
    let expressions: Vec<Value> = (0..REQUIREMENTS).map(requirement).collect();
    let matched: Value =
        (0..REQUIREMENTS).map(|index| (format!("app{index}"), json!("v".repeat(50)))).collect();
    json!({ "matchLabels": matched, "matchExpressions": expressions })
}
