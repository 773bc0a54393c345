//! The kind `IPBlock`: a CIDR that one node owns. Its name is the claim.

#![allow(clippy::duplicated_attributes, reason = "the derive takes the same keys for several columns")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Cidr, IfName, Ip, Mac};

/// Who owns which addresses. Immutable: creating the object is the claim, deleting it hands the block back.
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
    derive = "PartialEq",
    doc = "A block of addresses that one node owns. Its name is the claim: creating it is atomic, so two nodes can never own one address.",
    validation = Rule::new("!isCIDR(self.spec.cidr) || self.spec.cidr.contains(':') || self.metadata.name == self.spec.space + '-' + self.spec.cidr.replace('.', '-').replace('/', '-')")
        .message(Message::Expression("'must be ' + self.spec.space + '-' + self.spec.cidr.replace('.', '-').replace('/', '-') + ': the name of a block is the claim'".into())).field_path(".metadata.name"),
    validation = Rule::new("!isCIDR(self.spec.cidr) || !self.spec.cidr.contains(':') || (self.metadata.name.matches('^.*-[0-9a-f]{32}-[0-9]+$') && self.metadata.name.startsWith(self.spec.space + '-') && [self.metadata.name.substring(self.spec.space.size() + 1)].all(n, n.matches('^[0-9a-f]{32}-[0-9]+$') && n.substring(33) == string(cidr(self.spec.cidr).prefixLength()) && ip(n.substring(0, 4) + ':' + n.substring(4, 8) + ':' + n.substring(8, 12) + ':' + n.substring(12, 16) + ':' + n.substring(16, 20) + ':' + n.substring(20, 24) + ':' + n.substring(24, 28) + ':' + n.substring(28, 32)) == cidr(self.spec.cidr).ip()))")
        .message("must be <space>-<the address as 32 hexadecimal digits>-<prefix length>: the name of a block is the claim").field_path(".metadata.name"),
    printcolumn(name = "Network", type_ = "string", json_path = ".spec.network"),
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Space", type_ = "string", json_path = ".spec.space", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a block cannot be changed; it is claimed by creating it and handed back by deleting it"))]
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
    /// The node that owns the block.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// The addresses.
    #[x_kube(validation = Rule::new("!isCIDR(self) || string(cidr(self).masked()) == self").message("must be a network address in its shortest form, such as 10.20.0.0/16 or fd00:20::/64"))]
    pub cidr: Cidr,
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
