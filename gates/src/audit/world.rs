//! What an audit looks at, and where to find things in it. Pure.

use std::collections::{BTreeMap, HashMap};

use fairlead_crds::{Admission, IPBlock, Network, NodeNetwork, PodNetwork, names};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;

use crate::controller::model::{self, Node};

/// Everything that the API server has of fairlead, read at about the same time.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// When it was read.
    pub now: Timestamp,
    /// The prefix of our taints' keys.
    pub taint_prefix: String,
    /// All Networks.
    pub networks: Vec<Network>,
    /// All blocks.
    pub blocks: Vec<IPBlock>,
    /// All records.
    pub records: Vec<PodNetwork>,
    /// All `NodeNetworks`.
    pub offers: Vec<NodeNetwork>,
    /// `Admission/default`.
    pub admission: Option<Admission>,
    /// All pods.
    pub pods: Vec<Pod>,
    /// All nodes, each with the finalizers of ours it carries.
    pub nodes: Vec<(Node, Vec<String>)>,
    /// The agents' Leases.
    pub leases: Vec<Lease>,
}

/// What is read of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// `namespace/name`.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// Since when it is Succeeded or Failed.
    pub over: Option<Timestamp>,
    /// Whether our condition says that its networks are ready.
    pub ready: bool,
    /// What it requests of our resources, by Network; nothing once it is over.
    pub requests: BTreeMap<String, u64>,
    /// Finalizers of ours on it: there must not be any.
    pub finalizers: Vec<String>,
}

impl From<core::Pod> for Pod {
    fn from(pod: core::Pod) -> Self {
        let requests = model::requests(&pod);
        let over = over_since(&pod);
        let status = pod.status.unwrap_or_default();
        let ours = |condition: &core::PodCondition| condition.type_ == names::NETWORK_READY;
        Self {
            name: format!(
                "{}/{}",
                pod.metadata.namespace.as_deref().unwrap_or_default(),
                pod.metadata.name.as_deref().unwrap_or_default()
            ),
            uid: pod.metadata.uid.unwrap_or_default(),
            node: pod.spec.and_then(|spec| spec.node_name),
            over,
            ready: status.conditions.iter().flatten().any(|one| ours(one) && one.status == "True"),
            requests,
            finalizers: our_finalizers(pod.metadata.finalizers.unwrap_or_default()),
        }
    }
}

/// When the last of its containers ended, or its last condition changed; its start if neither is known.
fn over_since(pod: &core::Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let containers = status.container_statuses.iter().flatten();
    let ended = containers.filter_map(|one| one.state.as_ref()?.terminated.as_ref()?.finished_at.clone());
    let changed = status.conditions.iter().flatten().filter_map(|one| one.last_transition_time.clone());
    let started = pod.metadata.creation_timestamp.clone();
    ended.chain(changed).chain(started).map(|time| time.0).max()
}

/// Those of our domain.
pub fn our_finalizers(finalizers: Vec<String>) -> Vec<String> {
    finalizers.into_iter().filter(|name| name.split('/').next() == Some(names::GROUP)).collect()
}

/// What is read of an agent's Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lease {
    /// Its name, which is that of the node.
    pub node: String,
    /// When it was renewed last.
    pub renewed: Option<Timestamp>,
}

impl From<coordination::Lease> for Lease {
    fn from(lease: coordination::Lease) -> Self {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        Self { node: lease.name_any(), renewed }
    }
}

impl World {
    /// Blocks by name.
    pub fn blocks_by_name(&self) -> HashMap<&str, &IPBlock> {
        self.blocks.iter().filter_map(|block| Some((block.metadata.name.as_deref()?, block))).collect()
    }

    /// Networks by UID.
    pub fn networks_by_uid(&self) -> HashMap<&str, &Network> {
        self.networks.iter().filter_map(|network| Some((network.metadata.uid.as_deref()?, network))).collect()
    }

    /// Pods by UID.
    pub fn pods_by_uid(&self) -> HashMap<&str, &Pod> {
        self.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect()
    }

    /// Seconds since then; negative if it is to come.
    pub fn seconds_since(&self, time: Timestamp) -> i64 {
        self.now.duration_since(time).as_secs()
    }

    /// How long the agent of a node has been silent, in seconds; `None` without a Lease that was ever renewed.
    pub fn silent_for(&self, node: &str) -> Option<i64> {
        let lease = self.leases.iter().find(|lease| lease.node == node)?;
        Some(self.seconds_since(lease.renewed?))
    }
}

/// `podnetwork namespace/name`.
pub fn record_name(record: &PodNetwork) -> String {
    format!("podnetwork {}/{}", record.namespace().unwrap_or_default(), record.name_any())
}

/// `ipblock name`.
pub fn block_name(block: &IPBlock) -> String {
    format!("ipblock {}", block.name_any())
}

/// `network name`.
pub fn network_name(network: &Network) -> String {
    format!("network {}", network.name_any())
}
