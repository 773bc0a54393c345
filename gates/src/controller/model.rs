//! What the controller keeps of Kubernetes objects: a few fields, made once at the edge. Pure.

use std::collections::BTreeMap;

use fairlead_crds::ip_block::{Claim, Holder};
use fairlead_crds::node_network::NetworkOnNode;
use fairlead_crds::{Cidr, ConditionType, IPBlock, NodeHold, NodeNetwork, names, reserved};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The taint by which an admin or a cloud says that a node is shut down for good.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The label that the kubelet sets.
const OS: &str = "kubernetes.io/os";

/// What is read of a Node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether new pods may be bound to it.
    pub schedulable: bool,
    /// Whether its kubelet says that it is ready.
    pub ready: bool,
    /// Whether it carries the out-of-service taint.
    pub out_of_service: bool,
    /// All its taints, as observed; `None` where the field is absent.
    pub taints: Option<Vec<core::Taint>>,
    /// Our extended resources, by name of the Network.
    pub resources: BTreeMap<String, Published>,
}

/// One extended resource of ours as the node's status shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// In `status.capacity`.
    pub capacity: Option<String>,
    /// In `status.allocatable`.
    pub allocatable: Option<String>,
}

impl Published {
    /// The number that scheduler and kubelet count with, if both places agree on one.
    pub fn value(&self) -> Option<u64> {
        let same = self.capacity == self.allocatable;
        self.capacity.as_ref().filter(|_| same)?.parse().ok()
    }
}

impl Node {
    /// Whether a network with this `nodeSelector` exists on the node.
    pub fn is_selected(&self, selector: &BTreeMap<String, String>) -> bool {
        selector.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// Whether an agent runs on nodes of its kind at all.
    pub fn can_have_agent(&self) -> bool {
        self.labels.get(OS).is_none_or(|os| os == "linux")
    }
}

impl From<core::Node> for Node {
    fn from(node: core::Node) -> Self {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        let mut resources: BTreeMap<String, Published> = BTreeMap::new();
        for (network, value) in ours(status.capacity) {
            resources.entry(network).or_default().capacity = Some(value);
        }
        for (network, value) in ours(status.allocatable) {
            resources.entry(network).or_default().allocatable = Some(value);
        }
        Self {
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            schedulable: !spec.unschedulable.unwrap_or(false),
            ready: status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            out_of_service: spec.taints.iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE),
            taints: spec.taints,
            resources,
        }
    }
}

fn ours(resources: Option<BTreeMap<String, Quantity>>) -> impl Iterator<Item = (String, String)> {
    resources
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.strip_prefix(names::RESOURCE_PREFIX)?.to_owned(), value.0)))
}

/// What is read of a `NodeNetwork`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeOffer {
    /// Name of the node.
    pub node: String,
    /// Whether an admin asserts that the node cannot reach the network any more.
    pub fenced: bool,
    /// How the node can hold pods; none while its agent has not said so.
    pub hold: Option<NodeHold>,
    /// Whether its agent says that it can attach pods.
    pub ready: bool,
    /// Per network, what the node can offer; without the sentences.
    pub networks: Vec<NetworkOnNode>,
}

impl From<NodeNetwork> for NodeOffer {
    fn from(object: NodeNetwork) -> Self {
        let status = object.status.unwrap_or_default();
        let ready = |condition: &Condition| {
            condition.type_ == ConditionType::Ready.as_str() && condition.status == "True"
        };
        let ready = status.conditions.iter().any(ready);
        let mut networks = status.networks;
        networks.iter_mut().for_each(|network| (network.reason, network.message) = (None, None));
        let annotations = object.metadata.annotations.unwrap_or_default();
        Self {
            node: object.metadata.name.unwrap_or_default(),
            fenced: annotations.contains_key(names::FENCED_ANNOTATION),
            hold: status.hold,
            ready,
            networks,
        }
    }
}

/// What is read of an `IPBlock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Its name, which is the claim.
    pub name: String,
    /// The space of its addresses.
    pub space: String,
    /// Name of its Network.
    pub network: String,
    /// UID of its Network.
    pub network_uid: String,
    /// The node that owns it.
    pub node: String,
    /// Its addresses.
    pub cidr: Cidr,
    /// What there is to know of a reserved address; `None` for a block of a node.
    pub reserved: Option<Reserved>,
}

/// What is read of the block of a reserved address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// UID of the object.
    pub uid: String,
    /// Resource version, by which a write is refused once someone else has written.
    pub resource_version: String,
    /// Whose address it is.
    pub claim: Claim,
    /// The pod that holds it, or held it last.
    pub holder: Option<Holder>,
    /// Whether the last turn is over, or there was none.
    pub free: bool,
    /// When the last turn ended.
    pub released: Option<Timestamp>,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
}

impl Reserved {
    fn of(object: &IPBlock) -> Option<Self> {
        let (meta, status) = (&object.metadata, object.status.as_ref());
        let released = status.and_then(|status| status.released.as_ref());
        let holder = object.spec.holder.clone();
        let over = |holder: &Holder| released.is_some_and(|released| released.turn >= holder.turn);
        Some(Self {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            claim: object.spec.claim.clone()?,
            free: holder.as_ref().is_none_or(over),
            holder,
            released: released.map(|released| released.at.0),
            terminating: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        })
    }
}

impl From<IPBlock> for Block {
    fn from(object: IPBlock) -> Self {
        Self {
            reserved: Reserved::of(&object),
            name: object.metadata.name.unwrap_or_default(),
            space: object.spec.space,
            network: object.spec.network,
            network_uid: object.spec.network_uid,
            node: object.spec.node_name,
            cidr: object.spec.cidr,
        }
    }
}

/// What is read of a pod that has no node yet and carries one of our annotations, or our scheduling gate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitingPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Resource version, by which a write is refused once the pod has a node.
    pub resource_version: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The annotation `fairlead.dev/networks`.
    pub requested: Option<String>,
    /// The annotation `fairlead.dev/selected`.
    pub selected: Option<String>,
    /// The `StatefulSet` that it is an ordinal of.
    pub stateful_set: Option<String>,
    /// Reason and message of our condition on it.
    pub condition: Option<(String, String)>,
    /// Whether the container runtime holds it, so that it needs a strict node.
    pub nri: bool,
    /// Names of its scheduling gates, those of others too.
    pub gates: Vec<String>,
}

impl WaitingPod {
    /// The part of an unscheduled pod that is of interest; `None` for pods that do not concern us. Nothing is injected
    /// into pods of the node's own network, so they wait for nothing.
    pub fn of(pod: core::Pod) -> Option<Self> {
        let spec = pod.spec.unwrap_or_default();
        let mut annotations = pod.metadata.annotations.unwrap_or_default();
        if spec.host_network == Some(true) {
            annotations.clear();
        }
        let requested = annotations.remove(names::NETWORKS_ANNOTATION);
        let selected = annotations.remove(names::SELECTED_ANNOTATION);
        let gates: Vec<String> = spec.scheduling_gates.into_iter().flatten().map(|gate| gate.name).collect();
        let nri = annotations.remove(names::HOLD_ANNOTATION).is_some_and(|hold| hold == names::HOLD_NRI);
        let asks = requested.is_some() || selected.is_some();
        let ours = gates.iter().any(|gate| gate == names::SCHEDULING_GATE);
        if !asks && !ours || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let conditions = pod.status.unwrap_or_default().conditions.unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition.type_ == names::NETWORK_READY);
        let name = pod.metadata.name?;
        let owners = pod.metadata.owner_references.unwrap_or_default();
        Some(Self {
            namespace: pod.metadata.namespace?,
            stateful_set: reserved::stateful_set(&name, &owners),
            name,
            uid: pod.metadata.uid?,
            resource_version: pod.metadata.resource_version?,
            created: pod.metadata.creation_timestamp.map(|time| time.0),
            requested,
            selected,
            condition: condition.map(|c| (c.reason.unwrap_or_default(), c.message.unwrap_or_default())),
            nri,
            gates,
        })
    }

    /// Whether it carries our scheduling gate.
    pub fn is_gated(&self) -> bool {
        self.gates.iter().any(|gate| gate == names::SCHEDULING_GATE)
    }
}

/// What a bound pod requests of our resources, by name of the Network; empty once it is Succeeded or Failed.
///
/// The scheduler counts the larger of the sum over containers and the largest init container (KEP-753 without
/// restartable init containers, which cannot carry our resources).
pub fn requests(pod: &core::Pod) -> BTreeMap<String, u64> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let Some(spec) = pod.spec.as_ref().filter(|_| !matches!(phase, Some("Succeeded" | "Failed"))) else {
        return BTreeMap::new();
    };
    let mut total = BTreeMap::new();
    for (network, count) in spec.containers.iter().flat_map(of_container) {
        *total.entry(network).or_default() += count;
    }
    for (network, count) in spec.init_containers.iter().flatten().flat_map(of_container) {
        let entry: &mut u64 = total.entry(network).or_default();
        *entry = count.max(*entry);
    }
    total
}

fn of_container(container: &core::Container) -> Vec<(String, u64)> {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.clone());
    ours(requests).filter_map(|(network, value)| Some((network, value.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_reduced_to_what_the_controller_reads() {
        let node: core::Node = serde_json::from_value(json!({
            "metadata": { "name": "n", "uid": "u", "labels": { "a": "b" } },
            "spec": { "taints": [{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }] },
            "status": { "capacity": { "cpu": "2", "fairlead.dev/net-blue": "4", "fairlead.dev/net-red": "1" },
                        "allocatable": { "cpu": "2", "fairlead.dev/net-blue": "4" } }
        }))
        .unwrap();
        let node = Node::from(node);
        assert!(node.out_of_service && node.schedulable && node.is_selected(&BTreeMap::new()));
        assert_eq!(node.resources["blue"].value(), Some(4));
        assert_eq!(node.resources["red"].value(), None, "capacity and allocatable differ");
    }

    #[test]
    fn a_pod_requests_what_its_gate_requests_until_it_is_over() {
        let mut pod: core::Pod = serde_json::from_value(json!({
            "metadata": {}, "spec": {
                "initContainers": [{ "name": "fairlead-gate", "resources": { "requests": { "fairlead.dev/net-blue": "2" } } }],
                "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "phase": "Running" }
        }))
        .unwrap();
        assert_eq!(requests(&pod), BTreeMap::from([("blue".to_owned(), 2)]));
        pod.status.as_mut().unwrap().phase = Some("Failed".into());
        assert!(requests(&pod).is_empty());
    }

    #[test]
    fn pods_without_our_annotations_are_not_kept() {
        let pod = |annotations| {
            let metadata = json!({ "namespace": "n", "name": "p", "uid": "u", "resourceVersion": "1", "annotations": annotations });
            WaitingPod::of(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        };
        assert_eq!(pod(json!({})), None);
        assert!(pod(json!({ "fairlead.dev/networks": "blue" })).is_some());
    }

    #[test]
    fn a_pod_with_our_scheduling_gate_is_kept_even_if_it_asks_for_nothing() {
        let pod = |gate, host_network| {
            let metadata = json!({ "namespace": "n", "name": "p", "uid": "u", "resourceVersion": "1", "annotations": { "fairlead.dev/networks": "blue" } });
            let spec = json!({ "containers": [], "hostNetwork": host_network, "schedulingGates": [{ "name": gate }] });
            WaitingPod::of(serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
        };
        let on_the_node = pod(names::SCHEDULING_GATE, true).unwrap();
        assert_eq!((on_the_node.is_gated(), on_the_node.requested), (true, None));
        assert_eq!(pod("example.com/other", true), None);
        assert!(!pod("example.com/other", false).unwrap().is_gated());
    }
}
