//! How many addresses of a network this node has, by family.

use jiff::Timestamp;

use super::claims::block_size;
use super::{Block, Family, Ipam, Pool};

/// The largest count that an object can carry.
const MOST: u64 = i64::MAX as u64;

/// Counts of one network on this node, of its scarcer family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Addresses that can be handed out at all.
    pub owned: u64,
    /// Addresses that records hold.
    pub used: u64,
    /// Addresses in quarantine, held for a lost pod, or left out because a stranger has them.
    pub quarantined: u64,
    /// Addresses that can be handed out now.
    pub free: u64,
    /// Addresses in blocks that the node may still claim, by what was last heard of the Network.
    pub claimable: u64,
}

impl Ipam {
    /// Counts of a network on this node: those of the family with the fewest used and free addresses. `None` without
    /// a pool.
    pub fn counts(&self, network: &str, now: Timestamp) -> Option<Counts> {
        let counts = self.counts_by_family(network, now)?.into_iter().map(|(_, counts)| counts);
        Some(counts.min_by_key(|counts| (counts.free + counts.used, counts.owned)).unwrap_or_default())
    }

    /// Counts of a network on this node by family, IPv4 first. `None` without a pool.
    pub fn counts_by_family(&self, network: &str, now: Timestamp) -> Option<Vec<(Family, Counts)>> {
        let pool = self.pools.get(network)?;
        let of = |family| {
            let claimable = self.claimable(pool, family);
            (family, Counts { claimable, ..self.family_counts(network, family, now) })
        };
        Some(pool.families().map(of).collect())
    }

    pub(super) fn family_counts(&self, network: &str, family: Family, now: Timestamp) -> Counts {
        // Of a range that drains only what is in use counts: nothing is taken of it any more.
        let counts = |block: &Block| match block.counts(now) {
            counts if self.is_admitted(block) => counts,
            Counts { used, .. } => Counts { owned: used, used, ..Counts::default() },
        };
        self.of_family(network, family).map(counts).fold(Counts::default(), |sum, one| Counts {
            owned: sum.owned + one.owned,
            used: sum.used + one.used,
            quarantined: sum.quarantined + one.quarantined,
            free: sum.free + one.free,
            claimable: 0,
        })
    }

    pub(super) fn of_family(&self, network: &str, family: Family) -> impl Iterator<Item = &Block> {
        self.blocks.values().filter(move |block| block.network == network && Family::of(block.cidr) == family)
    }

    pub(crate) fn is_admitted(&self, block: &Block) -> bool {
        let pool = self.pools.get(&block.network).filter(|pool| pool.uid == block.network_uid);
        let range = block.range();
        pool.is_some_and(|pool| pool.admitted(Family::of(block.cidr)).any(|one| Some(one.cidr) == range))
    }

    /// How many more blocks of a family this node may own.
    pub(super) fn allowed_blocks(&self, pool: &Pool, family: Family) -> u64 {
        pool.max_blocks.saturating_sub(self.admitted_blocks(pool, family))
    }

    /// How many blocks of admitted ranges this node owns.
    pub(super) fn admitted_blocks(&self, pool: &Pool, family: Family) -> u64 {
        self.of_family(&pool.network, family).filter(|block| self.is_admitted(block)).count() as u64
    }

    /// Addresses in blocks that this node may still claim: the ranges in their order, as far as the limit goes.
    fn claimable(&self, pool: &Pool, family: Family) -> u64 {
        let mut allowed = self.allowed_blocks(pool, family);
        let ranges = pool.admitted(family).filter(|range| !range.full && !pool.terminating);
        ranges.fold(0u64, |sum, range| {
            let blocks = range.unclaimed.min(allowed);
            allowed -= blocks;
            sum.saturating_add(blocks.saturating_mul(block_size(range))).min(MOST)
        })
    }
}
