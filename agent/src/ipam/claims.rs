//! Which blocks to claim ahead of need, and which to hand back.

use std::collections::BTreeMap;

use fairlead_crds::Cidr;
use fairlead_crds::network::AdmittedRange;
use jiff::{SignedDuration, Timestamp};

use super::{Block, Family, Ipam, Pool};

/// Fewest spare addresses that a node keeps ready per network.
const SPARE_MIN: u64 = 16;
/// How long a range is passed over in which no unclaimed block was found; by then the controller has marked it.
const FRUITLESS: SignedDuration = SignedDuration::from_secs(15);

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

impl Ipam {
    /// Blocks to claim so that every network has its spare addresses. `slots` is how many more pods the node can have.
    pub fn claims(&self, slots: u64, now: Timestamp) -> Vec<Claim> {
        let pools = self.pools.values().filter(|pool| !pool.terminating);
        pools
            .flat_map(|pool| {
                pool.families().filter_map(|family| self.claim(pool, family, slots, now)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// The first range with unclaimed blocks is claimed from. One that is scarce only gives a block to a node without
    /// any free address; spare ones come from the next that has plenty.
    fn claim(&self, pool: &Pool, family: Family, slots: u64, now: Timestamp) -> Option<Claim> {
        let counts = self.family_counts(&pool.network, family, now);
        let missing = spare_target(counts.used, slots).saturating_sub(counts.free);
        let allowed = self.allowed_blocks(pool, family);
        if missing == 0 || allowed == 0 {
            return None;
        }
        let open = || {
            let open = pool.admitted(family).filter(|range| !range.full);
            open.filter(|range| !range.scarce || counts.free == 0)
        };
        let range = open().find(|range| !self.is_fruitless(pool, range, now)).or_else(|| open().next())?;
        let blocks = if range.scarce { 1 } else { missing.div_ceil(block_size(range)) };
        Some(Claim { network: pool.network.clone(), range: range.cidr, blocks: blocks.min(allowed) })
    }

    fn is_fruitless(&self, pool: &Pool, range: &AdmittedRange, now: Timestamp) -> bool {
        let until = self.fruitless.get(&(pool.network.clone(), range.cidr));
        until.is_some_and(|until| *until > now)
    }

    /// Takes note that no unclaimed block was found in a range: the next range is tried meanwhile.
    pub fn found_nothing(&mut self, claim: &Claim, now: Timestamp) {
        self.fruitless.retain(|_, until| *until > now);
        let until = now.checked_add(FRUITLESS).unwrap_or(Timestamp::MAX);
        self.fruitless.insert((claim.network.clone(), claim.range), until);
    }

    /// Blocks that can be handed back: empty, nothing in quarantine, and not needed as spare or beyond the limit. A
    /// block's worth of hysteresis keeps a node from handing back what it would claim again. Those of the range that
    /// is used last go first.
    pub fn surplus(&self, slots: u64, now: Timestamp) -> Vec<&Block> {
        let mut idle: Vec<(Option<usize>, &Block)> = self
            .blocks
            .values()
            .filter(|block| block.turn.is_none() && block.can_go(now))
            .map(|block| (self.rank(block), block))
            .collect();
        idle.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        let mut left: BTreeMap<(&str, Family), Left> = BTreeMap::new();
        idle.retain(|(_, block)| {
            let Some((pool, range)) = self.pool_and_range(block) else { return true };
            // What is known of strangers would be forgotten with it.
            if !block.conflict_list(now).is_empty() {
                return false;
            }
            let family = Family::of(block.cidr);
            let left =
                left.entry((&pool.network, family)).or_insert_with(|| self.left(pool, family, slots, now));
            left.lets_go(block.counts(now).owned, range, pool.max_blocks)
        });
        idle.into_iter().map(|(_, block)| block).collect()
    }

    fn left(&self, pool: &Pool, family: Family, slots: u64, now: Timestamp) -> Left {
        let counts = self.family_counts(&pool.network, family, now);
        let blocks = self.admitted_blocks(pool, family);
        Left { free: counts.free, blocks, spare: spare_target(counts.used, slots) }
    }

    /// The place of a block's range among the admitted ones of its family; `None` for a block that nothing needs.
    fn rank(&self, block: &Block) -> Option<usize> {
        let (pool, range) = self.pool_and_range(block)?;
        pool.admitted(Family::of(block.cidr)).position(|one| one.cidr == range.cidr)
    }

    fn pool_and_range(&self, block: &Block) -> Option<(&Pool, &AdmittedRange)> {
        let pool = self.pools.get(&block.network);
        let pool = pool.filter(|pool| pool.uid == block.network_uid && !pool.terminating)?;
        let range = pool.admitted(Family::of(block.cidr)).find(|range| Some(range.cidr) == block.range())?;
        Some((pool, range))
    }
}

/// What a node would keep of one family of a network, while blocks are handed back.
struct Left {
    free: u64,
    blocks: u64,
    spare: u64,
}

impl Left {
    /// Whether an idle block of that many addresses may go; it is subtracted then.
    fn lets_go(&mut self, addresses: u64, range: &AdmittedRange, max_blocks: u64) -> bool {
        let floor = if range.scarce { 0 } else { self.spare + block_size(range) };
        let spare = self.free >= floor + addresses && self.free > addresses;
        let goes = addresses == 0 || spare || self.blocks > max_blocks;
        if goes {
            self.free = self.free.saturating_sub(addresses);
            self.blocks -= 1;
        }
        goes
    }
}

fn spare_target(used: u64, slots: u64) -> u64 {
    SPARE_MIN.max(used / 4).min(slots)
}

/// How many addresses a block of the range has; saturates at `u64::MAX`.
pub(super) fn block_size(range: &AdmittedRange) -> u64 {
    let bits = if range.cidr.is_ipv6() { 128 } else { 32 };
    1u64.checked_shl(u32::from(bits - range.block_prefix.min(bits))).unwrap_or(u64::MAX)
}
