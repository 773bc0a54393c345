//! Addresses of this node's blocks: who holds which, which are in quarantine, what to claim and what to hand back. Pure.
//!
//! The truth is the node's `PodNetwork`s and the quarantine lists of its blocks; this is their image in
//! memory, made once at start and kept by the one process that writes them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use fairlead_crds::network::{AdmittedRange, RangeState};
use fairlead_crds::pod_network::{Attachment, HeldAddress};
use fairlead_crds::{Cidr, IPBlock, IfName, Network};
use jiff::Timestamp;

pub use self::block::{Block, Owner};

mod block;

/// What address management needs to know of one Network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Name of the Network.
    pub network: String,
    /// UID of the Network.
    pub uid: String,
    /// The space within which its addresses are unique.
    pub space: String,
    /// Its ranges, in the order of preference.
    pub ranges: Vec<AdmittedRange>,
    /// How long a freed address is not handed out.
    pub quarantine: Duration,
    /// Addresses kept for networks added to running pods.
    pub hotplug_reserve: u64,
    /// Whether addresses are promised to the scheduler as an extended resource.
    pub counted: bool,
    /// Whether the Network is being deleted: everything empty is handed back.
    pub terminating: bool,
}

impl Pool {
    /// The pool of a Network; `None` without address management or before the controller admitted a range.
    pub fn of(network: &Network) -> Option<Self> {
        let ipam = network.spec.ipam.as_ref()?;
        let status = network.status.as_ref()?;
        Some(Self {
            network: network.metadata.name.clone()?,
            uid: network.metadata.uid.clone()?,
            space: ipam.space.clone(),
            ranges: status
                .ranges
                .iter()
                .filter(|range| range.state != RangeState::Refused)
                .cloned()
                .collect(),
            quarantine: ipam.quarantine.0,
            hotplug_reserve: ipam.hotplug_reserve.into(),
            counted: network.spec.exhaustion.resource,
            terminating: network.metadata.deletion_timestamp.is_some(),
        })
    }

    /// The families of the pool's admitted ranges, IPv4 first: an attachment gets one address of each.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        let admitted = |family: &Family| self.admitted(*family).next().is_some();
        [Family::V4, Family::V6].into_iter().filter(admitted).collect::<Vec<_>>().into_iter()
    }

    /// The admitted ranges of a family, in the order of preference.
    pub fn admitted(&self, family: Family) -> impl Iterator<Item = &AdmittedRange> {
        self.ranges.iter().filter(move |r| r.state == RangeState::Admitted && Family::of(r.cidr) == family)
    }

    fn range_of(&self, block: Cidr) -> Option<&AdmittedRange> {
        self.ranges
            .iter()
            .find(|range| range.cidr.0.contains(&block.0) && range.block_prefix == block.0.prefix_len())
    }
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of a CIDR.
    pub fn of(cidr: Cidr) -> Self {
        if cidr.is_ipv6() { Self::V6 } else { Self::V4 }
    }
}

/// Counts of one network on this node, of its scarcer family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Addresses that can be handed out at all.
    pub owned: u64,
    /// Addresses that records hold.
    pub used: u64,
    /// Addresses in quarantine, or held for a lost pod.
    pub quarantined: u64,
    /// Addresses that can be handed out now.
    pub free: u64,
}

/// Why there is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// The family that has none.
    pub family: Family,
    /// When the first address leaves its quarantine, if any is in quarantine.
    pub until: Option<Timestamp>,
}

/// A wish for a new block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Name of the Network.
    pub network: String,
    /// The range to claim from.
    pub range: Cidr,
    /// How many blocks.
    pub blocks: u64,
}

/// Fewest spare addresses that a node keeps ready per network.
const SPARE_MIN: u64 = 16;

/// The addresses of this node.
#[derive(Debug, Default)]
pub struct Ipam {
    pools: BTreeMap<String, Pool>,
    blocks: BTreeMap<String, Block>,
}

impl Ipam {
    /// Replaces what is known of the Networks; blocks follow their range's new excludes and gateway.
    pub fn set_pools(&mut self, pools: impl IntoIterator<Item = Pool>) {
        self.pools = pools.into_iter().map(|pool| (pool.network.clone(), pool)).collect();
        for block in self.blocks.values_mut() {
            let pool = self.pools.get(&block.network).filter(|pool| pool.uid == block.network_uid);
            block.set_range(pool.and_then(|pool| pool.range_of(block.cidr)));
        }
    }

    /// The pool of a Network.
    pub fn pool(&self, network: &str) -> Option<&Pool> {
        self.pools.get(network)
    }

    /// All pools, by name of the Network.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values()
    }

    /// The block of that name.
    pub fn block(&self, name: &str) -> Option<&Block> {
        self.blocks.get(name)
    }

    /// Takes a block that this node owns into account; what is known of its holders is kept.
    pub fn insert_block(&mut self, block: &IPBlock) {
        let Some(mut new) = Block::of(block) else { return };
        let pool = self.pools.get(&new.network).filter(|pool| pool.uid == new.network_uid);
        new.set_range(pool.and_then(|pool| pool.range_of(new.cidr)));
        if let Some(old) = self.blocks.remove(&new.name).filter(|old| old.uid == new.uid) {
            new.keep_holders(old);
        }
        self.blocks.insert(new.name.clone(), new);
    }

    /// Forgets blocks that this node does not own any more: all but those named.
    pub fn retain_blocks(&mut self, owned: impl Fn(&Block) -> bool) {
        self.blocks.retain(|_, block| owned(block));
    }

    /// Takes over an address from a record. False if the block is not this node's any more, or another pod holds the address.
    #[must_use]
    pub fn restore(&mut self, held: &HeldAddress, owner: &Owner) -> bool {
        let block = self.blocks.get_mut(&held.block).filter(|block| block.uid == held.block_uid);
        block.is_some_and(|block| block.restore(held.address.addr(), owner))
    }

    /// Whether the address lies in a block of this node.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.blocks.values().any(|block| block.cidr.0.contains(&address))
    }

    /// The pool and the admitted range that an address belongs to.
    pub fn range_of(&self, address: IpAddr) -> Option<(&Pool, &AdmittedRange)> {
        let range = |pool: &Pool, range: &AdmittedRange| {
            !pool.terminating && range.state == RangeState::Admitted && range.cidr.0.contains(&address)
        };
        self.pools.values().find_map(|pool| Some((pool, pool.ranges.iter().find(|one| range(pool, one))?)))
    }

    /// Gives an address back to an interface that has it in the kernel but in no record. False if this node does not own
    /// the address, or another interface holds it.
    #[must_use]
    pub fn adopt(&mut self, address: IpAddr, owner: &Owner) -> bool {
        let block = self.blocks.values_mut().find(|block| block.cidr.0.contains(&address));
        block.is_some_and(|block| block.restore(address, owner))
    }

    /// One address of each family of the network, for one interface of one pod; asking again gives the same.
    ///
    /// # Errors
    /// [`Exhausted`] if a family has none; then nothing is taken of the others either.
    pub fn allocate(
        &mut self,
        network: &str,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Vec<HeldAddress>, Exhausted> {
        let families: Vec<Family> = self.pools.get(network).into_iter().flat_map(Pool::families).collect();
        let mut addresses = Vec::new();
        for family in families {
            match self.take(network, family, owner, now) {
                Some(address) => addresses.push(address),
                None => {
                    let exhausted = Exhausted { family, until: self.quarantined_until(network, family, now) };
                    self.give_back(&addresses, owner);
                    return Err(exhausted);
                }
            }
        }
        Ok(addresses)
    }

    fn take(&mut self, network: &str, family: Family, owner: &Owner, now: Timestamp) -> Option<HeldAddress> {
        let pool = self.pools.get(network)?;
        let of_family = |block: &&mut Block| block.network == network && Family::of(block.cidr) == family;
        if let Some(held) = self
            .blocks
            .values()
            .filter(|b| b.network == network && Family::of(b.cidr) == family)
            .find_map(|b| b.held_by(owner))
        {
            return Some(held);
        }
        let order = |block: &Block| pool.admitted(family).position(|range| Some(range.cidr) == block.range());
        let mut blocks: Vec<_> =
            self.blocks.values_mut().filter(of_family).filter_map(|b| Some((order(b)?, b))).collect();
        blocks.sort_by_key(|(order, block)| (*order, block.is_empty()));
        blocks.into_iter().find_map(|(_, block)| block.take(owner, now))
    }

    /// Takes back addresses that were never used: no quarantine.
    pub fn give_back(&mut self, addresses: &[HeldAddress], owner: &Owner) {
        for held in addresses {
            if let Some(block) = self.blocks.get_mut(&held.block) {
                block.give_back(held.address.addr(), owner);
            }
        }
    }

    /// Takes back what an interface was given and never recorded.
    pub fn give_back_interface(&mut self, owner: &Owner) {
        self.blocks.values_mut().for_each(|block| block.give_back_interface(owner));
    }

    /// Takes back everything that a pod was given and never recorded.
    pub fn give_back_all(&mut self, uid: &str) {
        self.blocks.values_mut().for_each(|block| block.give_back_all(uid));
    }

    /// Takes back everything that a pod was given, but for what its record holds.
    pub fn give_back_except(&mut self, uid: &str, recorded: &[Attachment]) {
        let recorded: Vec<IpAddr> =
            recorded.iter().flat_map(|a| &a.addresses).map(|held| held.address.addr()).collect();
        self.blocks.values_mut().for_each(|block| block.give_back_except(uid, &recorded));
    }

    /// Puts addresses that are held for pods which are gone into quarantine. Returns name and UID of the blocks changed.
    pub fn end_held(&mut self, is_gone: impl Fn(&str) -> bool, now: Timestamp) -> Vec<(String, String)> {
        let pools = &self.pools;
        let time = |network: &str| pools.get(network).map_or(fallback_quarantine(), |pool| pool.quarantine);
        let changed = self.blocks.values_mut().filter_map(|block| {
            let until = end_of(now, time(&block.network));
            block.end_held(&is_gone, until, now).then(|| (block.name.clone(), block.uid.clone()))
        });
        changed.collect()
    }

    /// Puts an address of a pod into quarantine, from which it can be taken once the time is over.
    pub fn quarantine(&mut self, held: &HeldAddress, owner: &Owner, now: Timestamp) {
        let Some(block) = self.blocks.get_mut(&held.block).filter(|block| block.uid == held.block_uid) else {
            return;
        };
        let time = self.pools.get(&block.network).map_or(fallback_quarantine(), |pool| pool.quarantine);
        block.quarantine(held.address.addr(), owner, end_of(now, time), now);
    }

    /// Counts of a network on this node: those of the family with the fewest owned addresses. `None` without a pool.
    pub fn counts(&self, network: &str, now: Timestamp) -> Option<Counts> {
        let pool = self.pools.get(network)?;
        let family = |family| self.family_counts(network, family, now);
        Some(
            pool.families()
                .map(family)
                .min_by_key(|counts| (counts.free + counts.used, counts.owned))
                .unwrap_or_default(),
        )
    }

    fn family_counts(&self, network: &str, family: Family, now: Timestamp) -> Counts {
        let blocks =
            self.blocks.values().filter(|block| block.network == network && Family::of(block.cidr) == family);
        // Of a range that drains only what is in use counts: nothing is taken of it any more.
        let admitted: Vec<Cidr> = self
            .pools
            .get(network)
            .iter()
            .flat_map(|pool| pool.admitted(family))
            .map(|range| range.cidr)
            .collect();
        let counts = |block: &Block| match block.counts(now) {
            counts if block.range().is_some_and(|range| admitted.contains(&range)) => counts,
            Counts { used, .. } => Counts { owned: used, used, ..Counts::default() },
        };
        blocks.map(counts).fold(Counts::default(), |sum, one| Counts {
            owned: sum.owned + one.owned,
            used: sum.used + one.used,
            quarantined: sum.quarantined + one.quarantined,
            free: sum.free + one.free,
        })
    }

    fn quarantined_until(&self, network: &str, family: Family, now: Timestamp) -> Option<Timestamp> {
        let blocks =
            self.blocks.values().filter(|block| block.network == network && Family::of(block.cidr) == family);
        blocks.filter_map(|block| block.quarantined_until(now)).min()
    }

    /// When the next quarantine of any block ends, after `now`.
    pub fn next_release(&self, now: Timestamp) -> Option<Timestamp> {
        self.blocks.values().filter_map(|block| block.quarantined_until(now)).min()
    }

    /// Blocks to claim so that every network has its spare addresses. `slots` is how many more pods the node can have.
    pub fn claims(&self, slots: u64, now: Timestamp) -> Vec<Claim> {
        let pools = self.pools.values().filter(|pool| !pool.terminating);
        pools
            .flat_map(|pool| {
                pool.families().filter_map(|family| self.claim(pool, family, slots, now)).collect::<Vec<_>>()
            })
            .collect()
    }

    fn claim(&self, pool: &Pool, family: Family, slots: u64, now: Timestamp) -> Option<Claim> {
        let counts = self.family_counts(&pool.network, family, now);
        let missing = spare_target(counts.used, slots).saturating_sub(counts.free);
        let range = pool.admitted(family).find(|range| !range.full)?;
        if missing == 0 || (range.scarce && counts.free > 0) {
            return None;
        }
        let size = block_size(range);
        let blocks = if range.scarce { 1 } else { missing.div_ceil(size) };
        Some(Claim { network: pool.network.clone(), range: range.cidr, blocks })
    }

    /// Blocks that can be handed back: empty, nothing in quarantine, and not needed as spare. A block's worth of
    /// hysteresis keeps a node from handing back what it would claim again.
    pub fn surplus(&self, slots: u64, now: Timestamp) -> Vec<&Block> {
        let mut surplus = Vec::new();
        let mut spare: BTreeMap<(&str, Family), u64> = BTreeMap::new();
        for block in self.blocks.values().filter(|block| block.can_go(now)) {
            let family = Family::of(block.cidr);
            let pool = self
                .pools
                .get(&block.network)
                .filter(|pool| pool.uid == block.network_uid && !pool.terminating);
            let range =
                pool.and_then(|pool| pool.admitted(family).find(|range| Some(range.cidr) == block.range()));
            let Some(range) = range else {
                surplus.push(block);
                continue;
            };
            let counts = self.family_counts(&block.network, family, now);
            let free = spare.entry((&block.network, family)).or_insert(counts.free);
            let floor = if range.scarce { 0 } else { spare_target(counts.used, slots) + block_size(range) };
            let size = block.counts(now).owned;
            if size == 0 {
                surplus.push(block);
                continue;
            }
            if *free >= floor + size && *free > size {
                *free -= size;
                surplus.push(block);
            }
        }
        surplus
    }
}

fn spare_target(used: u64, slots: u64) -> u64 {
    SPARE_MIN.max(used / 4).min(slots)
}

fn block_size(range: &AdmittedRange) -> u64 {
    let bits = if range.cidr.is_ipv6() { 128 } else { 32 };
    1u64.checked_shl(u32::from(bits - range.block_prefix.min(bits))).unwrap_or(u64::MAX)
}

/// When a quarantine that starts now ends: a whole second, rounded up, since that is what the block's status can say.
fn end_of(now: Timestamp, time: Duration) -> Timestamp {
    let until = jiff::SignedDuration::try_from(time)
        .ok()
        .and_then(|time| now.checked_add(time).ok())
        .unwrap_or(Timestamp::MAX);
    let up = jiff::TimestampRound::new().smallest(jiff::Unit::Second).mode(jiff::RoundMode::Ceil);
    until.round(up).unwrap_or(until)
}

/// The quarantine of an address whose Network is unknown: the documented default.
fn fallback_quarantine() -> Duration {
    Duration::from_secs(130)
}

/// The owner of an address: one interface of one pod.
pub fn owner(uid: &str, interface: &IfName) -> Owner {
    Owner { uid: uid.to_owned(), interface: interface.clone() }
}

#[cfg(test)]
mod tests;
