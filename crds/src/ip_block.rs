//! The kind `IPBlock`: a CIDR that one node owns. Its name is the claim.

#![allow(clippy::duplicated_attributes, reason = "the derive takes the same keys for several columns")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Cidr, IfName, Ip, Mac};

/// Who owns which addresses. Immutable but for the node and the holder of a reserved address: creating the object is the
/// claim, deleting it hands the block back.
///
/// A reserved address changes hands in turns. The controller alone writes `spec.nodeName` and `spec.holder`, with a turn
/// one higher each time; `status.released` says that a turn is over, and is written by whoever can prove it: the agent of
/// the node, or the controller for a node that is fenced. The API server refuses a change before that, so that no crash
/// and no lost or late write leads to two holders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "IPBlock",
    plural = "ipblocks",
    category = "fairlead",
    status = "IPBlockStatus",
    selectable = ".spec.nodeName",
    selectable = ".spec.network",
    selectable = ".spec.claim.pod",
    derive = "PartialEq",
    doc = "A block of addresses that one node owns. Its name is the claim: creating it is atomic, so two nodes can never own one address.",
    validation = Rule::new("!isCIDR(self.spec.cidr) || self.spec.cidr.contains(':') || self.metadata.name == self.spec.space + '-' + self.spec.cidr.replace('.', '-').replace('/', '-')")
        .message(Message::Expression("'must be ' + self.spec.space + '-' + self.spec.cidr.replace('.', '-').replace('/', '-') + ': the name of a block is the claim'".into())).field_path(".metadata.name"),
    validation = Rule::new("!isCIDR(self.spec.cidr) || !self.spec.cidr.contains(':') || (self.metadata.name.matches('^.*-[0-9a-f]{32}-[0-9]+$') && self.metadata.name.startsWith(self.spec.space + '-') && [self.metadata.name.substring(self.spec.space.size() + 1)].all(n, n.matches('^[0-9a-f]{32}-[0-9]+$') && n.substring(33) == string(cidr(self.spec.cidr).prefixLength()) && ip(n.substring(0, 4) + ':' + n.substring(4, 8) + ':' + n.substring(8, 12) + ':' + n.substring(12, 16) + ':' + n.substring(16, 20) + ':' + n.substring(20, 24) + ':' + n.substring(24, 28) + ':' + n.substring(28, 32)) == cidr(self.spec.cidr).ip()))")
        .message("must be <space>-<the address as 32 hexadecimal digits>-<prefix length>: the name of a block is the claim").field_path(".metadata.name"),
    validation = Rule::new("!has(oldSelf.spec.holder) || (has(self.spec.holder) && self.spec.holder == oldSelf.spec.holder && self.spec.nodeName == oldSelf.spec.nodeName) || (has(oldSelf.status) && has(oldSelf.status.released) && oldSelf.status.released.turn >= oldSelf.spec.holder.turn)")
        .message("the address is still held: it is handed on once status.released says that its holder is gone").field_path(".spec"),
    printcolumn(name = "Network", type_ = "string", json_path = ".spec.network"),
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Claim", type_ = "string", json_path = ".spec.claim.pod"),
    printcolumn(name = "Space", type_ = "string", json_path = ".spec.space", priority = 1),
    printcolumn(name = "Holder", type_ = "string", json_path = ".spec.holder.podUID", priority = 1),
    printcolumn(name = "Kept by", type_ = "string", json_path = ".spec.claim.statefulSet", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.space == oldSelf.space && self.network == oldSelf.network && self.networkUID == oldSelf.networkUID && self.cidr == oldSelf.cidr && has(self.claim) == has(oldSelf.claim) && (has(self.claim) ? self.claim == oldSelf.claim : self.nodeName == oldSelf.nodeName)")
        .message("a block cannot be changed; it is claimed by creating it and handed back by deleting it"),
    validation = Rule::new("has(self.claim) || self.nodeName != ''")
        .message("must name the node: only a reserved address can be without one").field_path(".nodeName"),
    validation = Rule::new("has(self.claim) || !has(self.holder)")
        .message("only a reserved address has a holder").field_path(".holder"),
    validation = Rule::new("!has(self.claim) || self.nodeName == '' || has(self.holder)")
        .message("a reserved address that a node owns has a holder").field_path(".holder"),
    validation = Rule::new("!has(self.claim) || !isCIDR(self.cidr) || cidr(self.cidr).prefixLength() == (self.cidr.contains(':') ? 128 : 32)")
        .message("a reserved address is a block of its own: /32, or /128 for IPv6").field_path(".cidr"),
    validation = Rule::new("!has(oldSelf.holder) || (has(self.holder) && (self.holder == oldSelf.holder ? self.nodeName == oldSelf.nodeName || self.nodeName == '' : self.holder.turn > oldSelf.holder.turn))")
        .message("another node or pod needs a higher turn").field_path(".holder")
)]
pub struct IPBlockSpec {
    /// The space within which addresses are unique.
    #[schemars(length(min = 1, max = 20), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub space: String,
    /// Name of the Network.
    #[schemars(length(min = 1, max = 40))]
    pub network: String,
    /// UID of the Network.
    #[serde(rename = "networkUID")]
    #[schemars(length(min = 1, max = 64))]
    pub network_uid: String,
    /// The node that owns the block; empty while nobody holds a reserved address.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub node_name: String,
    /// The addresses.
    #[x_kube(validation = Rule::new("!isCIDR(self) || string(cidr(self).masked()) == self").message("must be a network address in its shortest form, such as 10.20.0.0/16 or fd00:20::/64"))]
    pub cidr: Cidr,
    /// Whose address it is: set on reserved addresses, and only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// The pod that holds the reserved address on the node, or held it last. Written by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
}

/// Whose a reserved address is: that of pods of one name, one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Namespace and name of the pods: `team/web-0`.
    #[schemars(length(min = 3, max = 317))]
    pub pod: String,
    /// The `StatefulSet` that keeps the address while it exists. Without one the address was asked for by value, and is kept
    /// as long as a pod of that name exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub stateful_set: Option<String>,
    /// Which of the pod's attachments to the network it is for, counted from 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 31), extend("format" = "int32"))]
    pub attachment: u32,
}

/// Who holds a reserved address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// UID of the pod.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// How many times the address has been handed out, this time included.
    #[schemars(range(min = 1), extend("format" = "int64"))]
    pub turn: i64,
}

/// Addresses of the block that cannot be handed out although no record holds them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPBlockStatus {
    /// Freed addresses, until their time is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub quarantined: Vec<Quarantined>,
    /// Addresses whose namespace could not be proven gone when their node was lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub held: Vec<Held>,
    /// Addresses for which something answered that is not of this cluster, until they are tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub conflicts: Vec<Conflict>,
    /// The last turn of a reserved address that is over: nothing of its holder is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Released>,
}

/// An address that someone else uses, as a probe before its use has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// The address.
    pub address: Ip,
    /// Hardware address of who answered.
    pub mac: Mac,
    /// When it answered.
    pub since: Time,
    /// When the address may be tried again.
    pub retry_after: Time,
}

/// The end of a turn of a reserved address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// The turn that is over, and with it every earlier one.
    #[schemars(range(min = 1), extend("format" = "int64"))]
    pub turn: i64,
    /// When it ended.
    pub at: Time,
}

impl IPBlock {
    /// Whether the reserved address is held by that pod of that node: assigned to it, and not released since.
    pub fn is_held_by(&self, node: &str, pod_uid: &str) -> bool {
        self.spec.node_name == node && self.open_turn().is_some_and(|holder| holder.pod_uid == pod_uid)
    }

    /// The holder of a reserved address whose turn is not over.
    pub fn open_turn(&self) -> Option<&Holder> {
        let released = self.status.as_ref().and_then(|status| status.released.as_ref());
        let holder = self.spec.holder.as_ref().filter(|_| !self.spec.node_name.is_empty())?;
        released.is_none_or(|released| released.turn < holder.turn).then_some(holder)
    }
}

/// A freed address that is not handed out yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quarantined {
    /// The address.
    pub address: Ip,
    /// When it may be handed out again.
    pub until: Time,
    /// UID of the pod that had it.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The pod's interface that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
    /// When it was freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// An address kept for a pod of a lost node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The address.
    pub address: Ip,
    /// Namespace and name of the pod.
    pub pod: String,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The pod's interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
    /// When its record was dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
