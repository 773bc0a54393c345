//! What the controller says of a [`Network`](super::Network), and what agents act on.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Network;
use super::ipam::RangeUse;
use crate::address::{Cidr, Ip};
use crate::reason::ConditionType;

/// What the controller admitted: agents act on this, not on the spec's ranges.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The driver, for people: `bridge`, `macvlan`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// How far the network reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<Reach>,
    /// How many addresses the admitted ranges can hand out, of the scarcer family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub addresses: Option<u64>,
    /// At least so many of them lie in blocks that no node owns; see `ranges[].unclaimed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub unclaimed: Option<u64>,
    /// The ranges agents may claim blocks of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ranges: Vec<AdmittedRange>,
    /// `Accepted` and `InUse`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl Network {
    /// Whether agents act on it: the controller accepted this generation, or an earlier one that still holds.
    pub fn is_accepted(&self) -> bool {
        self.acceptance().is_some_and(|accepted| accepted.status == "True")
    }

    /// The controller's sentence about it; none before the controller's first look.
    pub fn acceptance_message(&self) -> Option<&str> {
        self.acceptance().map(|accepted| accepted.message.as_str())
    }

    fn acceptance(&self) -> Option<&Condition> {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().find(|condition| condition.type_ == ConditionType::Accepted.as_str())
    }
}

/// How far a network reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reach {
    /// Pods of one node reach each other; every node is an island.
    Node,
    /// Pods reach whatever the node's interface is wired to.
    Underlay,
}

/// A range that the controller checked against all others of its space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmittedRange {
    /// The range; never changes in an entry.
    pub cidr: Cidr,
    /// Prefix length of its blocks; never changes in an entry.
    #[schemars(range(min = 8, max = 128), extend("format" = "int32"))]
    pub block_prefix: u8,
    /// Its gateway; never handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ip>,
    /// Parts that are never handed out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub exclude: Vec<Cidr>,
    /// How its addresses are handed out; never changes in an entry.
    #[serde(default, rename = "use")]
    pub usage: RangeUse,
    /// Whether blocks may be claimed.
    pub state: RangeState,
    /// Few unclaimed blocks are left: a node claims one only when it has no free address.
    #[serde(default)]
    pub scarce: bool,
    /// No unclaimed block is left: nodes do not try.
    #[serde(default)]
    pub full: bool,
    /// At least so many blocks have no owner: a power of two, so that it changes rarely.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub unclaimed: u64,
    /// Why it was refused, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Whether blocks of a range may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RangeState {
    /// Blocks may be claimed.
    Admitted,
    /// Removed from the spec; leaves when no block of it exists.
    Draining,
    /// Overlaps another network's range of the space.
    Refused,
}
