//! One block: its addresses, their holders and their quarantine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use fairlead_crds::ip_block::{Conflict, Held, Quarantined};
use fairlead_crds::network::{AdmittedRange, RangeUse};
use fairlead_crds::pod_network::HeldAddress;
use fairlead_crds::usable::Addresses;
use fairlead_crds::{Cidr, IPBlock, IfName, Ip, grid};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Counts, Turn};

mod conflicts;

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
    /// The turn that this node was given of a reserved address; `None` for blocks that it claimed itself.
    pub turn: Option<Turn>,
    range: Option<(Cidr, Addresses)>,
    used: BTreeMap<IpAddr, Owner>,
    quarantined: BTreeMap<IpAddr, Quarantined>,
    /// Those of them whose record may still be there: they rest for as long as that takes.
    leaving: BTreeSet<IpAddr>,
    pub(super) held: BTreeMap<IpAddr, Held>,
    conflicts: BTreeMap<IpAddr, Conflict>,
    cursor: u128,
    /// Nothing was free at the last look, and nothing is before that time unless something is given back.
    full_until: Option<Timestamp>,
    /// It is being deleted: nothing more is taken of it.
    closing: bool,
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
            turn: Turn::of(block),
            range: None,
            used: BTreeMap::new(),
            quarantined: status.quarantined.into_iter().map(|entry| (entry.address.0, entry)).collect(),
            held: status.held.into_iter().map(|held| (held.address.0, held)).collect(),
            conflicts: status.conflicts.into_iter().map(|entry| (entry.address.0, entry)).collect(),
            leaving: BTreeSet::new(),
            cursor: 0,
            full_until: None,
            closing: block.metadata.deletion_timestamp.is_some() && block.spec.claim.is_none(),
        })
    }

    pub(super) fn set_range(&mut self, range: Option<&AdmittedRange>) {
        self.range = range.map(|range| (range.cidr, range.unusable()));
        self.full_until = None;
    }

    /// What the range of the block is for.
    pub(super) fn usage(&self) -> RangeUse {
        if self.turn.is_some() { RangeUse::Reserved } else { RangeUse::Pods }
    }

    pub(super) fn close_turn(&mut self) {
        self.turn.iter_mut().for_each(|turn| turn.closed = true);
    }

    pub(super) fn keep_holders(&mut self, old: Self) {
        let number = |turn: &Option<Turn>| turn.as_ref().map(|turn| turn.number);
        if number(&self.turn) != number(&old.turn) {
            return;
        }
        self.turn = old.turn;
        self.used = old.used;
        // What is known here is newer than what the API server was told.
        self.quarantined.retain(|address, _| !self.used.contains_key(address));
        self.quarantined.extend(old.quarantined);
        self.conflicts.extend(old.conflicts);
        self.leaving = old.leaving;
        self.cursor = old.cursor;
    }

    /// The admitted range the block belongs to, unless it is gone.
    pub fn range(&self) -> Option<Cidr> {
        self.range.as_ref().map(|(range, _)| *range)
    }

    /// Who holds an address of it.
    pub(super) fn holder(&self, address: IpAddr) -> Option<&Owner> {
        self.used.get(&address)
    }

    /// Whether no record holds an address of it.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Whether it can be handed back: nothing is used, in quarantine or held.
    pub fn can_go(&self, now: Timestamp) -> bool {
        self.is_empty()
            && self.held.is_empty()
            && self.leaving.is_empty()
            && self.quarantined_until(now).is_none()
    }

    /// Notes what a record holds. What was held for a lost node ends with it.
    pub(super) fn restore(&mut self, address: IpAddr, owner: &Owner) -> bool {
        let mine = self.adopt(address, owner);
        if mine {
            self.held.remove(&address);
        }
        mine
    }

    /// Notes what a record is known to hold, unless it is on its way out: what rests since it was freed goes on resting.
    pub(super) fn restore_known(&mut self, address: IpAddr, owner: &Owner) -> bool {
        let rests = self.quarantined.get(&address).is_some_and(|entry| entry.pod_uid == owner.uid);
        (rests && self.leaving.contains(&address)) || self.restore(address, owner)
    }

    /// Notes what an interface has, which no record holds yet.
    pub(super) fn adopt(&mut self, address: IpAddr, owner: &Owner) -> bool {
        let free = self.used.get(&address).is_none_or(|holder| holder == owner);
        let kept = self.held.get(&address).is_none_or(|held| held.pod_uid == owner.uid);
        let turn = self.turn.as_ref().is_none_or(|turn| turn.pod_uid == owner.uid);
        let mine = self.cidr.0.contains(&address) && free && kept && turn;
        if mine {
            self.used.insert(address, owner.clone());
            self.quarantined.remove(&address);
            self.leaving.remove(&address);
        }
        mine
    }

    /// The address in the form of a record, if that is who holds it.
    pub(super) fn held_by(&self, address: IpAddr, owner: &Owner) -> Option<HeldAddress> {
        (self.used.get(&address) == Some(owner)).then(|| self.describe(address))
    }

    /// What a pod has of it.
    pub(super) fn holdings(&self, uid: &str) -> impl Iterator<Item = (&Self, Owner, HeldAddress)> {
        let of_pod = self.used.iter().filter(move |(_, owner)| owner.uid == uid);
        of_pod.map(move |(address, owner)| (self, owner.clone(), self.describe(*address)))
    }

    /// The next free address after the one handed out last: never the lowest free one, so that an
    /// address rests as long as possible.
    pub(super) fn take(&mut self, owner: &Owner, now: Timestamp) -> Option<HeldAddress> {
        if self.full_until.is_some_and(|until| until > now) {
            return None;
        }
        let size = self.size();
        let free =
            (0..size).map(|step| (self.cursor + step) % size).find(|at| self.is_free(self.at(*at), now));
        let Some(offset) = free else {
            let ends = self.quarantined_until(now).into_iter().chain(self.conflicts_until(now));
            self.full_until = Some(ends.min().unwrap_or(Timestamp::MAX));
            return None;
        };
        self.cursor = (offset + 1) % size;
        let address = self.at(offset);
        self.quarantined.remove(&address);
        self.leaving.remove(&address);
        self.used.insert(address, owner.clone());
        Some(self.describe(address))
    }

    pub(super) fn give_back(&mut self, address: IpAddr, owner: &Owner) {
        self.let_go(|at, holder| *at == address && holder == owner);
    }

    fn let_go(&mut self, gone: impl Fn(&IpAddr, &Owner) -> bool) {
        self.used.retain(|address, holder| !gone(address, holder));
        self.full_until = None;
    }

    pub(super) fn give_back_except(&mut self, uid: &str, recorded: &[IpAddr]) {
        self.let_go(|address, holder| holder.uid == uid && !recorded.contains(address));
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
        self.full_until = None;
        any
    }

    pub(super) fn give_back_interface(&mut self, owner: &Owner) {
        self.let_go(|_, holder| holder == owner);
    }

    pub(super) fn give_back_all(&mut self, uid: &str) {
        self.let_go(|_, holder| holder.uid == uid);
    }

    pub(super) fn quarantine(&mut self, address: IpAddr, owner: &Owner, until: Timestamp, now: Timestamp) {
        if self.used.get(&address) == Some(owner) {
            self.used.remove(&address);
            self.held.retain(|at, held| *at != address || held.pod_uid != owner.uid);
            let leaving = &self.leaving;
            self.quarantined.retain(|address, entry| entry.until.0 > now || leaving.contains(address));
            let entry = freed(Ip(address), owner.uid.clone(), Some(owner.interface.clone()), until, now);
            self.quarantined.insert(address, entry);
            self.full_until = None;
        }
    }

    /// An address that rests is on its way out of its pod's record, or is out of it.
    pub(super) fn set_leaving(&mut self, address: IpAddr, uid: &str, leaving: bool) {
        if self.quarantined.get(&address).is_none_or(|entry| entry.pod_uid != uid) {
            return;
        }
        self.full_until = None;
        if leaving {
            self.leaving.insert(address)
        } else {
            self.leaving.remove(&address)
        };
    }

    /// Whether an address of that pod rests and is not known to be out of the pod's record.
    pub(super) fn is_leaving(&self, address: IpAddr, uid: &str) -> bool {
        self.leaving.contains(&address)
            && self.quarantined.get(&address).is_some_and(|entry| entry.pod_uid == uid)
    }

    /// The quarantine list as it belongs into the block's status, without those whose time is over.
    pub fn quarantine_list(&self, now: Timestamp) -> Vec<Quarantined> {
        self.quarantined.values().filter(|entry| self.rests(entry, now)).cloned().collect()
    }

    /// The addresses held for pods of a lost node, as they belong into the block's status.
    pub fn held_list(&self) -> Vec<Held> {
        self.held.values().cloned().collect()
    }

    /// When the first address leaves its quarantine.
    pub fn quarantined_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.quarantined.values().map(|entry| entry.until.0).filter(|until| *until > now).min()
    }

    /// Counts of the block; an address in use counts as owned although its range leaves it out by now.
    pub(crate) fn counts(&self, now: Timestamp) -> Counts {
        let used = self.used.len() as u64;
        // Of a block that goes only what is in use counts.
        if self.closing {
            return Counts { owned: used, used, ..Counts::default() };
        }
        let left_out = self.range.as_ref().map_or(self.size(), |(_, unusable)| unusable.count_in(&self.cidr));
        let usable = u64::try_from(self.size().saturating_sub(left_out)).unwrap_or(u64::MAX);
        let used_usable = self.used.keys().filter(|address| self.is_usable(**address)).count() as u64;
        let quarantined = self.quarantined.iter().filter(|(_, entry)| self.rests(entry, now));
        let held = self.held.keys().filter(|address| !self.is_quarantined(**address, now));
        let stranger = |address: &&IpAddr| {
            self.is_conflicting(**address, now)
                && !self.held.contains_key(*address)
                && !self.is_quarantined(**address, now)
        };
        let conflicts = self.conflicts.keys().filter(stranger);
        let waits = quarantined.map(|(address, _)| address).chain(held).chain(conflicts);
        let waits = waits.filter(|address| self.is_usable(**address) && !self.used.contains_key(*address));
        let waits = waits.count() as u64;
        Counts {
            owned: usable + used - used_usable,
            used,
            quarantined: waits,
            free: usable.saturating_sub(used_usable + waits),
            claimable: 0,
        }
    }

    fn is_free(&self, address: IpAddr, now: Timestamp) -> bool {
        !self.closing
            && self.is_usable(address)
            && !self.used.contains_key(&address)
            && !self.held.contains_key(&address)
            && !self.is_quarantined(address, now)
            && !self.is_conflicting(address, now)
    }

    fn is_usable(&self, address: IpAddr) -> bool {
        self.range.as_ref().is_some_and(|(_, unusable)| !unusable.contains(address))
    }

    fn is_quarantined(&self, address: IpAddr, now: Timestamp) -> bool {
        self.quarantined.get(&address).is_some_and(|entry| self.rests(entry, now))
    }

    fn rests(&self, entry: &Quarantined, now: Timestamp) -> bool {
        entry.until.0 > now || self.leaving.contains(&entry.address.0)
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
