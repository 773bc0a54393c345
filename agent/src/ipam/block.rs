//! One block: its addresses, their holders and their quarantine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fairlead_crds::ip_block::{Held, Quarantined};
use fairlead_crds::network::AdmittedRange;
use fairlead_crds::pod_network::HeldAddress;
use fairlead_crds::usable::Addresses;
use fairlead_crds::{Cidr, IPBlock, IfName, Ip, grid};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Counts;

/// Who holds an address: one interface of one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// UID of the pod.
    pub uid: String,
    /// Name of the interface in the pod.
    pub interface: IfName,
}

/// A block that this node owns.
#[derive(Debug, Clone)]
pub struct Block {
    /// Name of the `IPBlock`.
    pub name: String,
    /// UID of the `IPBlock`; a block that was lost and claimed again has another.
    pub uid: String,
    /// Name of the Network.
    pub network: String,
    /// UID of the Network.
    pub network_uid: String,
    /// Its addresses.
    pub cidr: Cidr,
    range: Option<(Cidr, Addresses)>,
    used: BTreeMap<IpAddr, Owner>,
    quarantined: BTreeMap<IpAddr, Quarantined>,
    held: BTreeMap<IpAddr, Held>,
    cursor: u128,
}

impl Block {
    pub(super) fn of(block: &IPBlock) -> Option<Self> {
        let status = block.status.clone().unwrap_or_default();
        Some(Self {
            name: block.metadata.name.clone()?,
            uid: block.metadata.uid.clone()?,
            network: block.spec.network.clone(),
            network_uid: block.spec.network_uid.clone(),
            cidr: block.spec.cidr,
            range: None,
            used: BTreeMap::new(),
            quarantined: status.quarantined.into_iter().map(|entry| (entry.address.0, entry)).collect(),
            held: status.held.into_iter().map(|held| (held.address.0, held)).collect(),
            cursor: 0,
        })
    }

    pub(super) fn set_range(&mut self, range: Option<&AdmittedRange>) {
        self.range = range.map(|range| (range.cidr, range.unusable()));
    }

    pub(super) fn keep_holders(&mut self, old: Self) {
        self.used = old.used;
        self.quarantined.extend(old.quarantined);
        self.cursor = old.cursor;
    }

    /// The admitted range the block belongs to, unless it is gone.
    pub fn range(&self) -> Option<Cidr> {
        self.range.as_ref().map(|(range, _)| *range)
    }

    /// Whether no record holds an address of it.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Whether it can be handed back: nothing used, in quarantine or held.
    pub fn can_go(&self, now: Timestamp) -> bool {
        self.is_empty() && self.held.is_empty() && self.quarantined_until(now).is_none()
    }

    pub(super) fn restore(&mut self, address: IpAddr, owner: &Owner) -> bool {
        let free = self.used.get(&address).is_none_or(|holder| holder == owner);
        let kept = self.held.get(&address).is_none_or(|held| held.pod_uid == owner.uid);
        let mine = self.cidr.0.contains(&address) && free && kept;
        if mine {
            self.held.remove(&address);
            self.used.insert(address, owner.clone());
            self.quarantined.remove(&address);
        }
        mine
    }

    pub(super) fn held_by(&self, owner: &Owner) -> Option<HeldAddress> {
        self.used.iter().find(|(_, holder)| *holder == owner).map(|(address, _)| self.describe(*address))
    }

    /// The next free address after the one handed out last: never the lowest free one, so that an
    /// address rests as long as possible.
    pub(super) fn take(&mut self, owner: &Owner, now: Timestamp) -> Option<HeldAddress> {
        let size = self.size();
        let offset = (0..size)
            .map(|step| (self.cursor + step) % size)
            .find(|offset| self.is_free(self.at(*offset), now))?;
        self.cursor = (offset + 1) % size;
        let address = self.at(offset);
        self.quarantined.remove(&address);
        self.used.insert(address, owner.clone());
        Some(self.describe(address))
    }

    pub(super) fn give_back(&mut self, address: IpAddr, owner: &Owner) {
        if self.used.get(&address) == Some(owner) {
            self.used.remove(&address);
        }
    }

    pub(super) fn give_back_except(&mut self, uid: &str, recorded: &[IpAddr]) {
        self.used.retain(|address, holder| holder.uid != uid || recorded.contains(address));
    }

    /// Puts what is held for pods that are gone into quarantine. True if there was any.
    pub(super) fn end_held(
        &mut self,
        is_gone: &impl Fn(&str) -> bool,
        until: Timestamp,
        now: Timestamp,
    ) -> bool {
        let (gone, held): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.held).into_iter().partition(|(_, held)| is_gone(&held.pod_uid));
        self.held = held;
        let any = !gone.is_empty();
        let freed = |held: Held| freed(held.address, held.pod_uid, held.interface, until, now);
        self.quarantined.extend(gone.into_iter().map(|(address, held)| (address, freed(held))));
        any
    }

    pub(super) fn give_back_interface(&mut self, owner: &Owner) {
        self.used.retain(|_, holder| holder != owner);
    }

    pub(super) fn give_back_all(&mut self, uid: &str) {
        self.used.retain(|_, holder| holder.uid != uid);
    }

    pub(super) fn quarantine(&mut self, address: IpAddr, owner: &Owner, until: Timestamp, now: Timestamp) {
        if self.used.get(&address) == Some(owner) {
            self.used.remove(&address);
            self.held.retain(|at, held| *at != address || held.pod_uid != owner.uid);
            self.quarantined.retain(|_, entry| entry.until.0 > now);
            let entry = freed(Ip(address), owner.uid.clone(), Some(owner.interface.clone()), until, now);
            self.quarantined.insert(address, entry);
        }
    }

    /// The quarantine list as it belongs into the block's status, without those whose time is over.
    pub fn quarantine_list(&self, now: Timestamp) -> Vec<Quarantined> {
        self.quarantined.values().filter(|entry| entry.until.0 > now).cloned().collect()
    }

    /// The addresses held for pods of a lost node, as they belong into the block's status.
    pub fn held_list(&self) -> Vec<Held> {
        self.held.values().cloned().collect()
    }

    /// When the first address leaves its quarantine.
    pub fn quarantined_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.quarantined.values().map(|entry| entry.until.0).filter(|until| *until > now).min()
    }

    pub(super) fn counts(&self, now: Timestamp) -> Counts {
        let mut counts = Counts { used: self.used.len() as u64, ..Counts::default() };
        for address in (0..self.size()).map(|offset| self.at(offset)) {
            let usable = self.is_usable(address);
            let waits = self.held.contains_key(&address) || self.is_quarantined(address, now);
            counts.owned += u64::from(usable);
            counts.quarantined += u64::from(usable && waits);
            counts.free += u64::from(usable && !waits && !self.used.contains_key(&address));
        }
        counts
    }

    fn is_free(&self, address: IpAddr, now: Timestamp) -> bool {
        self.is_usable(address)
            && !self.used.contains_key(&address)
            && !self.held.contains_key(&address)
            && !self.is_quarantined(address, now)
    }

    fn is_usable(&self, address: IpAddr) -> bool {
        self.range.as_ref().is_some_and(|(_, unusable)| !unusable.contains(address))
    }

    fn is_quarantined(&self, address: IpAddr, now: Timestamp) -> bool {
        self.quarantined.get(&address).is_some_and(|entry| entry.until.0 > now)
    }

    /// Number of addresses: at most 1024, see the bounds of `blockPrefix`.
    fn size(&self) -> u128 {
        1 << u32::from(self.cidr.0.max_prefix_len() - self.cidr.0.prefix_len()).min(16)
    }

    fn at(&self, offset: u128) -> IpAddr {
        let base = self.cidr.0.network();
        grid::from_bits(base, grid::to_bits(base) + offset)
    }

    fn describe(&self, address: IpAddr) -> HeldAddress {
        let prefix = self.range().map_or(self.cidr.0.max_prefix_len(), |range| range.0.prefix_len());
        let address = IpNet::new(address, prefix).map_or(IpNet::from(address), |net| net);
        HeldAddress { address: Cidr(address), block: self.name.clone(), block_uid: self.uid.clone() }
    }
}

/// An entry of the quarantine list; its times are whole seconds, which is what the API keeps.
fn freed(
    address: Ip,
    pod_uid: String,
    interface: Option<IfName>,
    until: Timestamp,
    now: Timestamp,
) -> Quarantined {
    let since = now.round(jiff::Unit::Second).unwrap_or(now);
    Quarantined { address, until: Time(until), pod_uid, interface, since: Some(Time(since)) }
}
