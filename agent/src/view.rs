//! The one in-memory view of this node, by pod UID: what the sources saw and what the agent wrote.
//!
//! Locks are held for look-ups and updates only, never across an await.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fairlead_crds::Network;
use fairlead_crds::pod_network::HeldAddress;
use jiff::Timestamp;

use crate::capacity;
use crate::ipam::{self, Block, Family, Ipam, Pool};
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

    /// How many more attachments of one network the node may need; never 0, so that whoever waits is served. A pod that
    /// has some of its networks may wait for one that nobody promised it, or not take one that it was promised.
    pub fn free_slots(&self) -> u64 {
        let (mut served, mut outstanding) = (0, 0);
        for record in self.records.values().filter(|record| !record.spec.attachments.is_empty()) {
            let pod = self.pods.get(&record.key.uid);
            let waits = pod.and_then(|pod| pod.condition.as_ref()).is_some_and(|condition| !condition.ready);
            served += u64::from(!waits);
            outstanding += pod.map_or(0, |pod| capacity::outstanding(pod, record));
        }
        (self.node.pod_limit.saturating_sub(served) + outstanding).max(1)
    }

    /// What the scheduler may count on of a network here, in all; blocks that shall be handed back are left out.
    pub fn promised(&self, pool: &Pool, surplus: &[&Block], now: Timestamp) -> u64 {
        let usage = capacity::usage(&pool.network, self.pods_with_records());
        let goes = |family: Family| -> u64 {
            let of_family =
                surplus.iter().filter(|one| one.network_uid == pool.uid && Family::of(one.cidr) == family);
            of_family.filter(|one| self.ipam.is_admitted(one)).map(|one| one.counts(now).owned).sum()
        };
        let families = self.ipam.counts_by_family(&pool.network, now).unwrap_or_default().into_iter();
        let available =
            families.map(|(family, counts)| (counts.used + counts.free).saturating_sub(goes(family)));
        capacity::promised(pool, available.min().unwrap_or(0), usage)
    }

    /// Whether a block that nothing needs may be handed back: not while the scheduler still counts on it.
    pub fn may_hand_back(&self, block: &Block, surplus: &[&Block], now: Timestamp) -> bool {
        let needs_word = |pool: &&Pool| pool.counted && !pool.terminating && self.ipam.is_admitted(block);
        let Some(pool) = self.ipam.pool(&block.network).filter(needs_word) else { return true };
        let promised = self.promised(pool, surplus, now);
        // Without a number it is just being changed, or nothing is promised.
        self.node.offered.get(&pool.network).map_or(promised == 0, |offered| *offered <= promised)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn view(resource: bool, blocks: &[&str]) -> Inner {
        let network = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue", "uid": "n" },
            "spec": {
                "bridge": { "name": "br0", "uplink": { "none": {} } },
                "ipam": { "ranges": [{ "cidr": "10.0.0.0/16" }] },
                "exhaustion": { "resource": resource },
                "allowedNamespaces": { "from": "All" },
            },
            "status": {
                "ranges": [{ "cidr": "10.0.0.0/16", "blockPrefix": 28, "state": "Admitted" }],
                "conditions": [{
                    "type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        let mut view = Inner { node: Node { pod_limit: 110, ..Node::default() }, ..Inner::default() };
        view.set_networks(BTreeMap::from([("blue".into(), serde_json::from_value(network).unwrap())]));
        for cidr in blocks {
            let name = format!("default-{}", cidr.replace(['.', '/'], "-"));
            let block = json!({
                "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock",
                "metadata": { "name": name, "uid": name },
                "spec": { "space": "default", "network": "blue", "networkUID": "n", "nodeName": "n", "cidr": cidr },
            });
            view.ipam.insert_block(&serde_json::from_value(block).unwrap());
        }
        view
    }

    #[test]
    fn a_block_is_not_promised_any_more_and_then_handed_back() {
        let mut view = view(true, &["10.0.1.0/28", "10.0.2.0/28", "10.0.3.0/28"]);
        let goes = |view: &Inner| {
            let surplus = view.ipam.surplus(110, NOW);
            assert_eq!(surplus.len(), 1);
            let promised = view.promised(view.ipam.pool("blue").unwrap(), &surplus, NOW);
            (promised, view.may_hand_back(surplus[0], &surplus, NOW))
        };
        assert_eq!(goes(&view), (32, false), "nobody knows what the scheduler counts on");
        view.node.offered.insert("blue".into(), 48);
        assert_eq!(goes(&view), (32, false));
        view.node.offered.insert("blue".into(), 32);
        assert_eq!(goes(&view), (32, true));
    }

    #[test]
    fn where_nothing_is_promised_blocks_go_at_once() {
        let view = view(false, &["10.0.1.0/28", "10.0.2.0/28", "10.0.3.0/28"]);
        let surplus = view.ipam.surplus(110, NOW);
        assert!(view.may_hand_back(surplus[0], &surplus, NOW));
    }
}
