//! API types, well-known names, conditions and the request grammar of fairlead.
//!
//! Everything that two programs must agree on stands here and only here: the five kinds of the
//! group `fairlead.dev`, the names of labels, annotations, resources and taints, the table of
//! conditions and reasons, the grammar of a pod's request, the marker in a pod's namespace and what a guard reports.
//! The crate is pure: no client, no clock, no system call.

pub mod address;
pub mod admission;
pub mod catalogue;
pub mod duration;
pub mod finding;
pub mod fit;
pub mod generate;
pub mod grid;
pub mod guard_report;
pub mod hold;
pub mod ip_block;
pub mod marker;
pub mod names;
pub mod network;
pub mod node_network;
pub mod pod_network;
pub mod reason;
pub mod request;
pub mod reserved;
pub mod selector;
pub mod usable;

pub use address::{Cidr, IfName, Ip, Mac};
pub use admission::{Admission, AdmissionSpec};
pub use finding::{Finding, FindingCode};
pub use guard_report::GuardReport;
pub use hold::NodeHold;
pub use ip_block::{IPBlock, IPBlockSpec, IPBlockStatus};
pub use network::{Network, NetworkSpec, NetworkStatus};
pub use node_network::{NodeNetwork, NodeNetworkSpec, NodeNetworkStatus};
pub use pod_network::{PodNetwork, PodNetworkSpec, PodNetworkStatus};
pub use reason::{ConditionType, Reason};
pub use selector::Selector;

/// The version of every program of a release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
