//! What the agent keeps of Kubernetes objects: a few fields, made once at the edge. Pure.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_crds::{Network, PodNetworkSpec, PodNetworkStatus, names, reserved};

use crate::wire::{Condition, Container, PodObject};

/// Identity of a pod. Everything is keyed by the UID; a name is used again by the next pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What the agent reads of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a pod")]
pub struct Pod {
    /// Its identity.
    pub key: PodKey,
    /// The annotation `fairlead.dev/networks`.
    pub requested: Option<String>,
    /// The annotation `fairlead.dev/selected`.
    pub selected: Option<String>,
    /// Whether it uses the node's own network.
    pub host_network: bool,
    /// Its runtime class.
    pub runtime_class: Option<String>,
    /// The `StatefulSet` that it is an ordinal of.
    pub stateful_set: Option<String>,
    /// Whether it is Succeeded or Failed.
    pub terminal: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its first init container is the gate.
    pub gated: bool,
    /// Whether plugins of the container runtime hold its containers.
    pub nri: bool,
    /// What it asked the scheduler for, per network.
    pub promised: BTreeMap<String, u64>,
    /// Our condition on it.
    pub condition: Option<PodCondition>,
}

/// Our condition on a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCondition {
    /// Whether the pod's network is ready.
    pub ready: bool,
    /// The reason, as one word.
    pub reason: String,
    /// The reason, in one sentence.
    pub message: String,
}

impl Pod {
    /// Whether the pod's addresses may be released once its sandbox is gone.
    pub fn is_over(&self) -> bool {
        self.terminal
    }

    /// Whether the pod waits for us or asks for something: a gate has to be opened also where no network is asked for.
    pub fn concerns_us(&self) -> bool {
        self.gated
            || self.nri
            || self.requested.is_some()
            || self.selected.as_deref().is_some_and(|selected| selected.trim() != "[]")
    }
}

impl TryFrom<PodObject> for Pod {
    type Error = &'static str;

    fn try_from(pod: PodObject) -> Result<Self, Self::Error> {
        let (spec, status) = (pod.spec.ok_or("pod without spec")?, pod.status.unwrap_or_default());
        let mut annotations = pod.metadata.annotations.unwrap_or_default();
        let nri = annotations.remove(names::HOLD_ANNOTATION).is_some_and(|hold| hold == names::HOLD_NRI);
        let name = pod.metadata.name.ok_or("pod without name")?;
        let owners = pod.metadata.owner_references.unwrap_or_default();
        let gate =
            spec.init_containers.iter().flatten().next().filter(|first| first.name == names::GATE_CONTAINER);
        Ok(Self {
            stateful_set: reserved::stateful_set(&name, &owners),
            key: PodKey {
                namespace: pod.metadata.namespace.ok_or("pod without namespace")?,
                name,
                uid: pod.metadata.uid.ok_or("pod without UID")?,
            },
            requested: annotations.remove(names::NETWORKS_ANNOTATION),
            selected: annotations.remove(names::SELECTED_ANNOTATION),
            host_network: spec.host_network.unwrap_or(false),
            runtime_class: spec.runtime_class_name,
            terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            gated: gate.is_some(),
            promised: if nri {
                of_first(spec.containers.as_deref())
            } else {
                gate.map(promised).unwrap_or_default()
            },
            nri,
            condition: status
                .conditions
                .iter()
                .flatten()
                .find(|c| c.type_ == names::NETWORK_READY)
                .map(condition),
        })
    }
}

/// Without a gate the resources are on the pod's first container.
fn of_first(containers: Option<&[Container]>) -> BTreeMap<String, u64> {
    containers.and_then(<[Container]>::first).map(promised).unwrap_or_default()
}

fn promised(gate: &Container) -> BTreeMap<String, u64> {
    let requests = gate.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let ours = requests.into_iter().flatten().filter_map(|(name, quantity)| {
        let network = name.strip_prefix(names::RESOURCE_PREFIX)?;
        Some((network.to_owned(), quantity.0.parse().ok()?))
    });
    ours.collect()
}

fn condition(condition: &Condition) -> PodCondition {
    PodCondition {
        ready: condition.status == "True",
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    }
}

/// The agent's copy of a pod's record. The agent is its only writer, so it is never read back.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The pod.
    pub key: PodKey,
    /// UID of the object.
    pub uid: String,
    /// Version of the object as last told; writes of the spec are based on it.
    pub version: String,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// The spec as last written.
    pub spec: PodNetworkSpec,
    /// The status as last written.
    pub status: PodNetworkStatus,
}

/// The node as its agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its UID.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// How many pods it can have.
    pub pod_limit: u64,
    /// By network, what the scheduler counts on here: the node's extended resources.
    pub offered: BTreeMap<String, u64>,
}

/// Whether a network exists on a node with these labels.
pub fn is_on_node(network: &Network, labels: &BTreeMap<String, String>) -> bool {
    network.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value::<PodObject>(value).unwrap().try_into().unwrap()
    }

    #[test]
    fn a_pod_is_reduced_to_what_the_agent_reads() {
        let pod = pod(serde_json::json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u", "annotations": { "fairlead.dev/networks": "blue" } },
            "spec": { "containers": [], "initContainers": [
                { "name": "fairlead-gate", "resources": { "requests": { "fairlead.dev/net-blue": "2", "cpu": "10m" } } }
            ] },
            "status": { "phase": "Failed", "conditions": [
                { "type": "fairlead.dev/network-ready", "status": "False", "reason": "NoAddresses", "message": "m" }
            ] }
        }));
        assert!(pod.gated && pod.terminal && pod.concerns_us());
        assert_eq!(pod.promised, BTreeMap::from([("blue".to_owned(), 2)]));
        assert_eq!(pod.condition.unwrap().reason, "NoAddresses");
    }

    #[test]
    fn a_pod_that_the_runtime_holds_concerns_us_and_asks_on_its_first_container() {
        let pod = pod(serde_json::json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u", "annotations": { "fairlead.dev/hold": "nri" } },
            "spec": { "containers": [
                { "name": "a", "resources": { "requests": { "fairlead.dev/net-blue": "1" } } }, { "name": "b" }
            ] }
        }));
        assert!(pod.nri && !pod.gated && pod.concerns_us());
        assert_eq!(pod.promised, BTreeMap::from([("blue".to_owned(), 1)]));
    }

    #[test]
    fn a_gate_that_is_not_first_does_not_count() {
        let pod = pod(serde_json::json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" },
            "spec": { "containers": [], "initContainers": [{ "name": "x" }, { "name": "fairlead-gate" }] }
        }));
        assert!(!pod.gated && !pod.concerns_us());
    }
}
