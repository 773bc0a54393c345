//! Addresses of this node's blocks: who holds which, which are in quarantine, what to claim and what to hand back. Pure.
//!
//! The truth is the node's `PodNetwork`s and the quarantine lists of its blocks; this is their image in
//! memory, made once at start and kept by the one process that writes them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

pub use fairlead_crds::address::Family;
use fairlead_crds::network::{AdmittedRange, RangeState, RangeUse};
use fairlead_crds::pod_network::{Attachment, HeldAddress};
use fairlead_crds::{Cidr, IPBlock, IfName, Mac, Network};
use jiff::Timestamp;

pub use self::block::{Block, Owner};
pub use self::claims::Claim;
pub use self::counts::Counts;
pub use self::reserved::{Ending, Turn};

mod block;
mod claims;
mod counts;
pub mod order;
mod reserved;

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
    /// Most blocks of each family that this node may own; those of draining ranges are not counted.
    pub max_blocks: u64,
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
            max_blocks: ipam.max_blocks_per_node.map_or(u64::MAX, u64::from),
            counted: network.spec.exhaustion.resource,
            terminating: network.metadata.deletion_timestamp.is_some(),
        })
    }

    /// The families of which any pod gets an address, IPv4 first: those of the pool's admitted ranges but for reserved ones.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        let admitted = |family: &Family| self.admitted(*family).next().is_some();
        Family::ALL.into_iter().filter(admitted).collect::<Vec<_>>().into_iter()
    }

    /// The admitted ranges of a family that blocks are claimed of, in the order of preference.
    pub fn admitted(&self, family: Family) -> impl Iterator<Item = &AdmittedRange> {
        let open =
            |range: &&AdmittedRange| range.usage == RangeUse::Pods && range.state == RangeState::Admitted;
        self.ranges.iter().filter(open).filter(move |range| Family::of(range.cidr) == family)
    }

    fn range_of(&self, block: Cidr, usage: RangeUse) -> Option<&AdmittedRange> {
        let mut of_usage = self.ranges.iter().filter(|range| range.usage == usage);
        of_usage.find(|range| range.cidr.0.contains(&block.0) && range.block_prefix == block.0.prefix_len())
    }
}

/// Why there is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// The family that has none.
    pub family: Family,
    /// When the first address leaves its quarantine, if any is in quarantine.
    pub until: Option<Timestamp>,
    /// Whether this node owns as many blocks as it may.
    pub at_limit: bool,
}

/// The quarantine of an address whose Network this agent has never seen: the documented default.
const UNKNOWN_QUARANTINE: Duration = Duration::from_secs(130);

/// The addresses of this node.
#[derive(Debug, Default)]
pub struct Ipam {
    pools: BTreeMap<String, Pool>,
    blocks: BTreeMap<String, Block>,
    /// Where a pod may hold addresses, by its UID: names of blocks and addresses. What is not here it does not hold.
    holdings: HashMap<String, BTreeSet<(String, IpAddr)>>,
    /// Ranges in which no unclaimed block was found, and until when that is believed.
    fruitless: BTreeMap<(String, Cidr), Timestamp>,
    /// By UID of the block of a reserved address: the last turn that was ended here.
    ended: BTreeMap<String, i64>,
    /// How long addresses rest, by UID of the Network; also of Networks that have no pool at present.
    quarantines: BTreeMap<String, Duration>,
}

/// What one interface of a pod was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The interface.
    pub owner: Owner,
    /// Name of the Network.
    pub network: String,
    /// UID of the Network.
    pub network_uid: String,
    /// Its addresses.
    pub addresses: Vec<HeldAddress>,
}

impl Ipam {
    /// Replaces what is known of the Networks; blocks follow their range's new excludes and gateway.
    pub fn set_pools(&mut self, pools: impl IntoIterator<Item = Pool>) {
        self.pools = pools.into_iter().map(|pool| (pool.network.clone(), pool)).collect();
        for block in self.blocks.values_mut() {
            let pool = self.pools.get(&block.network).filter(|pool| pool.uid == block.network_uid);
            block.set_range(pool.and_then(|pool| pool.range_of(block.cidr, block.usage())));
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

    /// Takes note of how long addresses of Networks rest, by UID. What was known before is kept: blocks outlive pools.
    pub fn set_quarantines(&mut self, quarantines: impl IntoIterator<Item = (String, Duration)>) {
        self.quarantines.extend(quarantines);
        let blocks = &self.blocks;
        self.quarantines.retain(|uid, _| {
            self.pools.values().any(|pool| pool.uid == *uid)
                || blocks.values().any(|block| block.network_uid == *uid)
        });
    }

    /// When the quarantine of an address of a Network ends that begins now.
    pub fn rests_until(&self, network_uid: &str, now: Timestamp) -> Timestamp {
        end_of(now, self.quarantines.get(network_uid).copied().unwrap_or(UNKNOWN_QUARANTINE))
    }

    /// All blocks, by name.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// What a pod was given: its interfaces with the Network's name and UID, and their addresses.
    pub fn held_by_pod(&self, uid: &str) -> Vec<Holding> {
        let mut holdings: Vec<Holding> = Vec::new();
        for (block, owner, address) in self.blocks.values().flat_map(|block| block.holdings(uid)) {
            match holdings.iter_mut().find(|known| known.owner == owner) {
                Some(known) => known.addresses.push(address),
                None => holdings.push(Holding {
                    owner,
                    network: block.network.clone(),
                    network_uid: block.network_uid.clone(),
                    addresses: vec![address],
                }),
            }
        }
        holdings
    }

    /// The block of that name.
    pub fn block(&self, name: &str) -> Option<&Block> {
        self.blocks.get(name)
    }

    /// Takes a block that this node owns into account; what is known of its holders is kept.
    pub fn insert_block(&mut self, block: &IPBlock) {
        let Some(mut new) = Block::of(block) else { return };
        let is_reserved = block.spec.claim.is_some();
        if is_reserved && new.turn.as_ref().is_none_or(|turn| self.has_ended(&new.uid, turn)) {
            self.blocks.remove(&new.name);
            return;
        }
        let pool = self.pools.get(&new.network).filter(|pool| pool.uid == new.network_uid);
        new.set_range(pool.and_then(|pool| pool.range_of(new.cidr, new.usage())));
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
        let address = held.address.addr();
        let restored = block.is_some_and(|block| block.restore(address, owner));
        if restored {
            self.note(owner, &held.block, address);
        }
        restored
    }

    fn note(&mut self, owner: &Owner, block: &str, address: IpAddr) {
        self.holdings.entry(owner.uid.clone()).or_default().insert((block.to_owned(), address));
    }

    /// The same for a record that is known already: it takes nothing back that was freed since.
    #[must_use]
    pub fn restore_known(&mut self, held: &HeldAddress, owner: &Owner) -> bool {
        let block = self.blocks.get_mut(&held.block).filter(|block| block.uid == held.block_uid);
        let address = held.address.addr();
        let restored = block.is_some_and(|block| block.restore_known(address, owner));
        if restored {
            self.note(owner, &held.block, address);
        }
        restored
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
        let Some(block) = block else { return false };
        let (name, adopted) = (block.name.clone(), block.adopt(address, owner));
        if adopted {
            self.note(owner, &name, address);
        }
        adopted
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
        self.allocate_of(network, &families, owner, now)
    }

    /// One address of each of these families.
    ///
    /// # Errors
    /// [`Exhausted`] if one has none; then nothing is taken of the others either.
    pub fn allocate_of(
        &mut self,
        network: &str,
        families: &[Family],
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Vec<HeldAddress>, Exhausted> {
        let mut addresses = Vec::new();
        for family in families.iter().copied() {
            match self.take(network, family, owner, now) {
                Some(address) => addresses.push(address),
                None => {
                    let exhausted = Exhausted {
                        family,
                        until: self.quarantined_until(network, family, now),
                        at_limit: self
                            .pools
                            .get(network)
                            .is_some_and(|pool| self.allowed_blocks(pool, family) == 0),
                    };
                    self.give_back(&addresses, owner);
                    return Err(exhausted);
                }
            }
        }
        Ok(addresses)
    }

    fn take(&mut self, network: &str, family: Family, owner: &Owner, now: Timestamp) -> Option<HeldAddress> {
        if let Some(held) = self.held_by(network, family, owner) {
            return Some(held);
        }
        let ranges: Vec<Cidr> = self.pools.get(network)?.admitted(family).map(|range| range.cidr).collect();
        let taken = ranges.into_iter().find_map(|range| self.take_in(network, range, owner, now))?;
        self.note(owner, &taken.block, taken.address.addr());
        Some(taken)
    }

    fn held_by(&self, network: &str, family: Family, owner: &Owner) -> Option<HeldAddress> {
        self.holdings.get(&owner.uid)?.iter().find_map(|(name, address)| {
            let block = self.blocks.get(name);
            let block = block.filter(|block| block.turn.is_none() && block.network == network)?;
            block.held_by(*address, owner).filter(|held| Family::of(held.address) == family)
        })
    }

    /// Blocks that are in use already come first, so that the others can be handed back.
    fn take_in(&mut self, network: &str, range: Cidr, owner: &Owner, now: Timestamp) -> Option<HeldAddress> {
        [false, true].into_iter().find_map(|empty| {
            let blocks = self.blocks.values_mut().filter(|block| {
                block.network == network && block.range() == Some(range) && block.is_empty() == empty
            });
            blocks.into_iter().find_map(|block| block.take(owner, now))
        })
    }

    /// Takes back addresses that were never used: no quarantine.
    pub fn give_back(&mut self, addresses: &[HeldAddress], owner: &Owner) {
        self.of_pod(&owner.uid, |block| {
            for held in addresses {
                if held.block == block.name {
                    block.give_back(held.address.addr(), owner);
                }
            }
        });
    }

    /// Whether an address of that pod is on its way out of the pod's record.
    pub fn is_leaving(&self, held: &HeldAddress, uid: &str) -> bool {
        let block = self.blocks.get(&held.block).filter(|block| block.uid == held.block_uid);
        block.is_some_and(|block| block.is_leaving(held.address.addr(), uid))
    }

    /// Says that addresses in quarantine are on their way out of a pod's record, or out of it: until then no other record
    /// may name them, however long that takes.
    pub fn set_leaving(&mut self, addresses: &[HeldAddress], owner: &Owner, leaving: bool) {
        for held in addresses {
            let block = self.blocks.get_mut(&held.block).filter(|block| block.uid == held.block_uid);
            block.into_iter().for_each(|block| block.set_leaving(held.address.addr(), &owner.uid, leaving));
        }
    }

    /// Leaves out an address that a stranger answered for before its owner used it.
    pub fn conflict(&mut self, held: &HeldAddress, owner: &Owner, mac: Mac, now: Timestamp) {
        self.of_pod(&owner.uid, |block| {
            if (&block.name, &block.uid) == (&held.block, &held.block_uid) {
                block.conflict(held.address.addr(), owner, mac, now);
            }
        });
    }

    /// Whether a stranger answered for an address of a record, and it is not to be tried again yet.
    pub fn is_conflicting(&self, held: &HeldAddress, now: Timestamp) -> bool {
        let block = self.blocks.get(&held.block).filter(|block| block.uid == held.block_uid);
        block.is_some_and(|block| block.is_conflicting(held.address.addr(), now))
    }

    /// Takes back what an interface was given and never recorded.
    pub fn give_back_interface(&mut self, owner: &Owner) {
        self.of_pod(&owner.uid, |block| block.give_back_interface(owner));
    }

    /// Takes back everything that a pod was given and never recorded.
    pub fn give_back_all(&mut self, uid: &str) {
        self.of_pod(uid, |block| block.give_back_all(uid));
    }

    /// Takes back everything that a pod was given, but for what its record holds.
    pub fn give_back_except(&mut self, uid: &str, recorded: &[Attachment]) {
        let recorded: Vec<IpAddr> =
            recorded.iter().flat_map(|a| &a.addresses).map(|held| held.address.addr()).collect();
        self.of_pod(uid, |block| block.give_back_except(uid, &recorded));
    }

    /// Does something with the blocks in which a pod holds addresses, and forgets those in which it holds none any more.
    fn of_pod(&mut self, uid: &str, mut change: impl FnMut(&mut Block)) {
        let Some(mut holdings) = self.holdings.remove(uid) else { return };
        let names: BTreeSet<String> = holdings.iter().map(|(name, _)| name.clone()).collect();
        for name in &names {
            if let Some(block) = self.blocks.get_mut(name) {
                change(block);
            }
        }
        holdings.retain(|(name, address)| {
            self.blocks
                .get(name)
                .and_then(|block| block.holder(*address))
                .is_some_and(|holder| holder.uid == uid)
        });
        if !holdings.is_empty() {
            self.holdings.insert(uid.to_owned(), holdings);
        }
    }

    /// Puts addresses that are held for pods which are gone into quarantine. Returns name and UID of the blocks changed.
    pub fn end_held(&mut self, is_gone: impl Fn(&str) -> bool, now: Timestamp) -> Vec<(String, String)> {
        let quarantines = &self.quarantines;
        let changed = self.blocks.values_mut().filter_map(|block| {
            let time = quarantines.get(&block.network_uid).copied().unwrap_or(UNKNOWN_QUARANTINE);
            let until = end_of(now, time);
            block.end_held(&is_gone, until, now).then(|| (block.name.clone(), block.uid.clone()))
        });
        changed.collect()
    }

    /// Puts an address of a pod into quarantine, from which it can be taken once the time is over.
    pub fn quarantine(&mut self, held: &HeldAddress, owner: &Owner, now: Timestamp) {
        let network = self.blocks.get(&held.block).map(|block| block.network_uid.as_str());
        let until = self.rests_until(network.unwrap_or_default(), now);
        self.of_pod(&owner.uid, |block| {
            // A reserved address rests only when its claim ends, which the controller sees to.
            if block.turn.is_none() && (&block.name, &block.uid) == (&held.block, &held.block_uid) {
                block.quarantine(held.address.addr(), owner, until, now);
            }
        });
    }

    /// Addresses in quarantine that no other space uses on this node: Network, address, and when the quarantine ends.
    pub fn quarantined(&self, now: Timestamp) -> Vec<(String, IpAddr, Timestamp)> {
        let all = self.blocks.values().flat_map(|block| {
            let list = block.quarantine_list(now).into_iter();
            list.map(|entry| (block.network.clone(), entry.address.0, entry.until.0))
        });
        all.filter(|(_, address, _)| self.blocks.values().all(|block| block.holder(*address).is_none()))
            .collect()
    }

    fn quarantined_until(&self, network: &str, family: Family, now: Timestamp) -> Option<Timestamp> {
        self.of_family(network, family).filter_map(|block| block.quarantined_until(now)).min()
    }

    /// When the next quarantine of any block ends, after `now`.
    pub fn next_release(&self, now: Timestamp) -> Option<Timestamp> {
        self.blocks.values().filter_map(|block| block.quarantined_until(now)).min()
    }
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

/// The owner of an address: one interface of one pod.
pub fn owner(uid: &str, interface: &IfName) -> Owner {
    Owner { uid: uid.to_owned(), interface: interface.clone() }
}

#[cfg(test)]
mod tests;
