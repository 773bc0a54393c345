//! The kind `NodeNetwork`: what one node can offer, written by its agent.

#![allow(clippy::duplicated_attributes, reason = "the derive takes the same keys for several columns")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::Family;
use crate::hold::NodeHold;

/// Nothing is asked of a node; everything is in the status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "NodeNetwork",
    plural = "nodenetworks",
    shortname = "nnet",
    category = "fairlead",
    status = "NodeNetworkStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "What one node can offer: per network, whether it is ready there and how many addresses are left. Named as the node, written by its agent.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Networks", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Hold", type_ = "string", json_path = ".status.hold"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agentVersion"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetworkSpec {}

/// What one node can offer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeNetworkStatus {
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// How the node can hold a pod; the Node's label `fairlead.dev/hold` repeats it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<NodeHold>,
    /// The networks, for people: `blue 6/28, storage NotReady`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The networks of this node, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub networks: Vec<NetworkOnNode>,
    /// `Ready` and `HoldStrict`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One network on one node. Counts are addresses of the scarcer family: the one with the fewest used and free ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkOnNode {
    /// Name of the Network.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// Whether pods can be attached to it here.
    pub ready: bool,
    /// Why it is not ready, as one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it is not ready, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// The total: addresses in blocks of this node that can be handed out at all, or are in use.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub owned: u64,
    /// Addresses that records hold.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub used: u64,
    /// Addresses that wait for the end of their quarantine, or are held for a lost pod.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub quarantined: u64,
    /// Addresses that can be handed out now.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub free: u64,
    /// What the scheduler may count on in all, used ones included: owned, less quarantined, less the reserve,
    /// less those held without a matching request. Without address management: the node's pod limit.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub promised: u64,
    /// Addresses in blocks that the node may still claim: unclaimed ones of the network, within `maxBlocksPerNode`.
    /// At least so many when it was written; other nodes may be faster.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub claimable: u64,
    /// The same counts by family, on a network with both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["family".into()]))]
    pub families: Vec<FamilyOnNode>,
}

/// Addresses of one family of one network on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FamilyOnNode {
    /// The family.
    pub family: Family,
    /// The total.
    #[schemars(extend("format" = "int64"))]
    pub owned: u64,
    /// Held by records.
    #[schemars(extend("format" = "int64"))]
    pub used: u64,
    /// In quarantine, or held for a lost pod.
    #[schemars(extend("format" = "int64"))]
    pub quarantined: u64,
    /// Can be handed out now.
    #[schemars(extend("format" = "int64"))]
    pub free: u64,
    /// In blocks that the node may still claim.
    #[schemars(extend("format" = "int64"))]
    pub claimable: u64,
}
