//! The one in-memory view of this node, by pod UID: what the sources saw and what the agent wrote.
//!
//! Locks are held for look-ups and updates only, never across an await.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fairlead_crds::Network;
use fairlead_crds::pod_network::HeldAddress;

use crate::ipam::{self, Ipam, Pool};
use crate::model::{self, Node, Pod, PodKey, Record};

/// Everything the agent knows.
#[derive(Debug, Default)]
pub struct View {
    inner: Mutex<Inner>,
}

/// The contents of a [`View`], behind its lock.
#[derive(Debug, Default)]
pub struct Inner {
    /// The node itself.
    pub node: Node,
    /// All Networks by name.
    pub networks: BTreeMap<String, Network>,
    /// Labels of all namespaces by name.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Pods bound to this node, by UID.
    pub pods: BTreeMap<String, Pod>,
    /// Records of this node, by UID of the pod.
    pub records: BTreeMap<String, Record>,
    /// Addresses of this node.
    pub ipam: Ipam,
    /// Problems of the networks on this node, by name of the Network.
    pub troubles: BTreeMap<String, crate::intent::Problem>,
    /// Whether fairlead is being uninstalled.
    pub uninstalling: bool,
    /// Whether the node's own object is gone, so that it has to be made again.
    pub unpublished: bool,
}

impl View {
    /// Locks the view. Nothing that can block may happen while it is locked.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic aborts the agent, so a poisoned lock is never seen.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Notes in the blocks which addresses the records hold. Returns those that lie in no block of this node.
    pub fn restore_records(&mut self) -> Vec<(PodKey, HeldAddress)> {
        let mut lost = Vec::new();
        // What pods hold that are there comes first: what is left of others may be out of date.
        let (there, gone): (Vec<_>, Vec<_>) =
            self.records.iter().partition(|(uid, _)| self.pods.contains_key(*uid));
        for (_, record) in there.into_iter().chain(gone) {
            for attachment in &record.spec.attachments {
                let owner = ipam::owner(&record.key.uid, &attachment.interface);
                let missing =
                    attachment.addresses.iter().filter(|held| !self.ipam.restore_known(held, &owner));
                lost.extend(missing.map(|held| (record.key.clone(), held.clone())));
            }
        }
        lost
    }

    /// Replaces the Networks and what address management knows of them.
    pub fn set_networks(&mut self, networks: BTreeMap<String, Network>) {
        self.networks = networks;
        self.refresh_pools();
    }

    /// Puts in or replaces one Network.
    pub fn apply_network(&mut self, network: Network) {
        if let Some(name) = network.metadata.name.clone() {
            self.networks.insert(name, network);
            self.refresh_pools();
        }
    }

    /// Takes out one Network.
    pub fn delete_network(&mut self, name: &str) {
        self.networks.remove(name);
        self.troubles.remove(name);
        self.refresh_pools();
    }

    /// Replaces what is known of the node; which Networks exist on it depends on its labels.
    pub fn set_node(&mut self, node: Node) {
        self.node = node;
        self.refresh_pools();
    }

    /// Only Networks of this node have a pool: blocks of others are neither claimed nor kept.
    fn refresh_pools(&mut self) {
        let here =
            |network: &&Network| network.is_accepted() && model::is_on_node(network, &self.node.labels);
        self.ipam.set_pools(self.networks.values().filter(here).filter_map(Pool::of));
        let quarantine = |network: &Network| {
            Some((network.metadata.uid.clone()?, network.spec.ipam.as_ref()?.quarantine.0))
        };
        self.ipam.set_quarantines(self.networks.values().filter_map(quarantine));
    }

    /// How many more attachments of one network the node may need; never 0, so that whoever waits is served.
    pub fn free_slots(&self) -> u64 {
        let served =
            self.records.values().filter(|record| !record.spec.attachments.is_empty()).count() as u64;
        self.node.pod_limit.saturating_sub(served).max(1)
    }

    /// The pods of this node with their records.
    pub fn pods_with_records(&self) -> impl Iterator<Item = (&Pod, Option<&Record>)> {
        self.pods.values().map(|pod| (pod, self.records.get(&pod.key.uid)))
    }

    /// UIDs of all pods and records.
    pub fn uids(&self) -> Vec<String> {
        let mut uids: Vec<String> = self.pods.keys().chain(self.records.keys()).cloned().collect();
        uids.sort_unstable();
        uids.dedup();
        uids
    }
}
