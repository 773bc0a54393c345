//! What must hold after every step, looked at from outside: in the kernels and in what the API server keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use fairlead_crds::{IPBlock, PodNetwork};
use serde_json::Value;

use super::node::Node;
use super::store::Store;

/// Who has an address in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Use {
    node: usize,
    uid: String,
    path: String,
}

/// One address of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    uid: String,
    block: String,
    block_uid: String,
}

/// Looks at everything again when something changed.
#[derive(Debug, Default)]
pub struct Checker {
    uses: BTreeMap<IpAddr, Use>,
    /// Who had an address last, and until when.
    ended: BTreeMap<IpAddr, (String, Duration)>,
    records: BTreeMap<IpAddr, Vec<Entry>>,
    held: BTreeMap<IpAddr, String>,
    /// Addresses that blocks say rest.
    resting: BTreeSet<IpAddr>,
    /// Owner and network by UID of the block.
    blocks: BTreeMap<String, (String, IPBlock)>,
    kernel_seen: Vec<(u64, u64)>,
    store_seen: u64,
}

impl Checker {
    /// Looks for a violation. `quarantine` is how long addresses of a network rest.
    pub fn check(
        &mut self,
        nodes: &[Node],
        store: &Store,
        now: Duration,
        quarantine: impl Fn(IpAddr) -> Duration,
    ) -> Result<(), String> {
        let seen: Vec<(u64, u64)> = nodes.iter().map(|n| (n.kernel.changes(), n.moves)).collect();
        let (kernel, stored) = (seen != self.kernel_seen, store.version() != self.store_seen);
        if stored {
            self.store_seen = store.version();
            self.read(store);
        }
        if kernel {
            self.kernel_seen = seen;
            self.look(nodes, now, &quarantine)?;
        }
        if kernel || stored {
            self.compare(nodes, store, now, &quarantine)?;
            self.persisted(now, &quarantine)?;
        }
        Ok(())
    }

    /// I2 in the kernel: one holder, and none before the end of the quarantine.
    fn look(
        &mut self,
        nodes: &[Node],
        now: Duration,
        quarantine: &impl Fn(IpAddr) -> Duration,
    ) -> Result<(), String> {
        let mut uses: BTreeMap<IpAddr, Use> = BTreeMap::new();
        for (number, node) in nodes.iter().enumerate() {
            for one in &node.boxes {
                let Some(path) = &one.path else { continue };
                let links = node.kernel.look(path).map(|observed| observed.links).unwrap_or_default();
                for address in links.iter().flat_map(|link| &link.addresses) {
                    let new =
                        Use { node: number, uid: one.sandbox.uid.clone(), path: path.display().to_string() };
                    if let Some(other) = uses.insert(address.addr(), new.clone()) {
                        return Err(format!(
                            "{} is in two namespaces: {other:?} and {new:?}",
                            address.addr()
                        ));
                    }
                }
            }
        }
        for (address, old) in &self.uses {
            if uses.get(address).is_none_or(|new| new.uid != old.uid) {
                self.ended.insert(*address, (old.uid.clone(), now));
            }
        }
        for (address, new) in &uses {
            self.rested(*address, &new.uid, now, quarantine, "in the kernel")?;
        }
        self.uses = uses;
        Ok(())
    }

    fn rested(
        &self,
        address: IpAddr,
        uid: &str,
        now: Duration,
        quarantine: &impl Fn(IpAddr) -> Duration,
        place: &str,
    ) -> Result<(), String> {
        match self.ended.get(&address) {
            Some((before, end)) if before != uid && now < *end + quarantine(address) => Err(format!(
                "{address} of {uid} is {place} {:?} after {before} had it; its quarantine is {:?}",
                now.saturating_sub(*end),
                quarantine(address)
            )),
            _ => Ok(()),
        }
    }

    fn read(&mut self, store: &Store) {
        self.records.clear();
        self.held.clear();
        self.resting.clear();
        self.blocks.clear();
        for (_, object) in store.all("podnetworks") {
            let record: PodNetwork = parse(object);
            for held in record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses) {
                let uid = record.spec.pod_uid.clone();
                let entry = Entry { uid, block: held.block.clone(), block_uid: held.block_uid.clone() };
                self.records.entry(held.address.addr()).or_default().push(entry);
            }
        }
        for (_, object) in store.all("ipblocks") {
            let block: IPBlock = parse(object);
            let rests = block.status.iter().flat_map(|status| &status.quarantined);
            self.resting.extend(rests.map(|entry| entry.address.0));
            for held in block.status.iter().flat_map(|status| &status.held) {
                self.held.insert(held.address.0, held.pod_uid.clone());
            }
            let uid = block.metadata.uid.clone().unwrap_or_default();
            self.blocks.insert(uid, (block.spec.node_name.clone(), block));
        }
    }

    fn compare(
        &self,
        nodes: &[Node],
        store: &Store,
        now: Duration,
        quarantine: &impl Fn(IpAddr) -> Duration,
    ) -> Result<(), String> {
        let lives = |uid: &str| store.all("pods").any(|(_, pod)| pod["metadata"]["uid"] == uid);
        for (address, used) in &self.uses {
            let none = Vec::new();
            let entries = self.records.get(address).unwrap_or(&none);
            let mine = entries.iter().find(|entry| entry.uid == used.uid);
            let kept = self.held.get(address).is_some_and(|uid| *uid == used.uid);
            if mine.is_none() && !kept {
                return Err(format!("{address} is in use and in no record: {used:?}, records {entries:?}"));
            }
            let (owner, block) = match mine.map(|entry| self.blocks.get(&entry.block_uid)) {
                Some(Some((owner, block))) => (owner, block),
                Some(None) => {
                    return Err(format!("{address} of {used:?} lies in a block that is gone: {mine:?}"));
                }
                None => continue,
            };
            if *owner != nodes[used.node].name || !block.spec.cidr.0.contains(address) {
                return Err(format!("{address} of {used:?} lies in a block of {owner}"));
            }
        }
        for (address, entries) in &self.records {
            let living: Vec<&Entry> = entries.iter().filter(|entry| lives(&entry.uid)).collect();
            if living.len() > 1 {
                return Err(format!("{address} is in the records of two living pods: {living:?}"));
            }
            for entry in living {
                self.rested(*address, &entry.uid, now, quarantine, "in a record")?;
            }
        }
        Ok(())
    }

    /// A quarantine survives any restart: until its end the API server knows of it, or of the record.
    fn persisted(&self, now: Duration, quarantine: &impl Fn(IpAddr) -> Duration) -> Result<(), String> {
        for (address, (uid, end)) in &self.ended {
            if now >= *end + quarantine(*address) || self.uses.contains_key(address) {
                continue;
            }
            let recorded = self
                .records
                .get(address)
                .is_some_and(|entries| entries.iter().any(|entry| entry.uid == *uid));
            if !recorded && !self.resting.contains(address) && !self.held.contains_key(address) {
                return Err(format!(
                    "{address}, which {uid} had until {end:?}, is neither recorded nor in quarantine"
                ));
            }
        }
        Ok(())
    }

    /// Addresses in the kernels.
    pub fn in_use(&self) -> usize {
        self.uses.len()
    }
}

fn parse<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}
