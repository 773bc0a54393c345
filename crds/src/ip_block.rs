//! The kind `IPBlock`: a CIDR that one node owns. Its name is the claim.
//!
//! That the name fits the CIDR is checked by the validating policy: rules on `metadata.name` cost more than
//! the API server allows in a definition.

#![expect(clippy::duplicated_attributes, reason = "the derive takes the same keys for several columns")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Cidr, Ip};

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
}
