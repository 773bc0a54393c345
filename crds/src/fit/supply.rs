//! What a node can still give of one network, range by range.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::address::Family;
use crate::network::{AdmittedRange, RangeState, RangeUse};
use crate::node_network::NetworkOnNode;
use crate::reserved::Ask;
use crate::{IPBlock, Network, grid};

use super::{Source, World};

/// Why there is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// A family that the spec has is not admitted.
    NoRange,
    /// What is not in use is in quarantine, or held for a lost pod.
    Quarantine(Family),
    /// The node owns as many blocks as it may.
    Limit(Family),
    /// Nothing is free and nothing can be claimed.
    Addresses(Family),
}

/// What a node can still give of one network; asking takes it.
#[derive(Debug, Default)]
pub(super) struct Supply {
    families: Vec<OfFamily>,
    has_ipam: bool,
}

#[derive(Debug)]
struct OfFamily {
    family: Family,
    ranges: Vec<OfRange>,
    /// How many blocks the node may still claim.
    allowed: u64,
    waiting: u64,
}

#[derive(Debug)]
struct OfRange {
    /// `None` if the addresses are of one of several ranges.
    range: Option<crate::Cidr>,
    free: u64,
    unclaimed: u64,
    block: u64,
}

impl Supply {
    pub(super) fn of(network: &Network, node: &str, world: World<'_>) -> Self {
        let Some(ipam) = &network.spec.ipam else { return Self::default() };
        let of_pods = ipam.ranges.iter().filter(|range| range.usage == RangeUse::Pods);
        let mut families: Vec<Family> = of_pods.map(|range| Family::of(range.cidr)).collect();
        families.sort();
        families.dedup();
        let of = |family| OfFamily::of(network, family, node, world);
        Self { families: families.into_iter().map(of).collect(), has_ipam: true }
    }

    /// One address of each family for which no reserved one is asked.
    pub(super) fn take(&mut self, asks: &[Ask]) -> Result<Vec<Source>, Lack> {
        let asked = |family: Family| asks.iter().any(|ask| ask.family == family);
        let mut families: Vec<&mut OfFamily> =
            self.families.iter_mut().filter(|of| !asked(of.family)).collect();
        if self.has_ipam && families.iter().any(|family| family.ranges.is_empty()) {
            return Err(Lack::NoRange);
        }
        let reserved = asks.iter().map(|ask| Ok(Source { family: ask.family, range: None, claims: false }));
        let mut sources =
            reserved.chain(families.iter_mut().map(|of| of.take())).collect::<Result<Vec<_>, _>>()?;
        sources.sort_by_key(|source| source.family);
        Ok(sources)
    }
}

impl OfFamily {
    fn of(network: &Network, family: Family, node: &str, world: World<'_>) -> Self {
        let ranges: Vec<&AdmittedRange> = admitted(network, family).collect();
        let limit =
            network.spec.ipam.as_ref().and_then(|ipam| ipam.max_blocks_per_node).map_or(u64::MAX, u64::from);
        let mut one = Self { family, ranges: Vec::new(), allowed: limit, waiting: 0 };
        match world.holdings {
            Some((blocks, _)) => one.count_blocks(network, &ranges, node, blocks, world),
            None => one.believe(&ranges, here(network, node, world)),
        }
        one
    }

    fn count_blocks(
        &mut self,
        network: &Network,
        ranges: &[&AdmittedRange],
        node: &str,
        blocks: &[IPBlock],
        world: World<'_>,
    ) {
        let of_network: Vec<&IPBlock> = blocks
            .iter()
            .filter(|block| network.metadata.uid.as_deref() == Some(&block.spec.network_uid))
            .collect();
        let used = used(world);
        for range in ranges {
            let unusable = range.unusable();
            let inside = of_network.iter().filter(|block| range.cidr.0.contains(&block.spec.cidr.0));
            let claimed = inside.clone().filter(|block| !unusable.covers(&block.spec.cidr)).count() as u64;
            let (mut free, mut owned) = (0, 0);
            for block in inside.filter(|block| block.spec.node_name == node) {
                let waiting = waiting(block, world);
                let usable = block_addresses(block).filter(|address| !unusable.contains(*address));
                let unheld = usable.filter(|address| !used.contains(address));
                let (resting, ready): (Vec<_>, Vec<_>) =
                    unheld.partition(|address| waiting.contains(address));
                (free, owned) = (free + ready.len() as u64, owned + 1);
                self.waiting += resting.len() as u64;
            }
            self.allowed = self.allowed.saturating_sub(owned);
            let unclaimed = range.usable_blocks().saturating_sub(claimed);
            self.ranges.push(OfRange { range: Some(range.cidr), free, unclaimed, block: block_size(range) });
        }
    }

    /// Without blocks: what the node says, of which only the sum is known.
    fn believe(&mut self, ranges: &[&AdmittedRange], here: Option<&NetworkOnNode>) {
        let Some(here) = here else { return };
        let of_family = here.families.iter().find(|counts| counts.family == self.family);
        let (free, waiting, claimable) = of_family
            .map_or((here.free, here.quarantined, here.claimable), |of| {
                (of.free, of.quarantined, of.claimable)
            });
        let block = ranges.first().map_or(1, |range| block_size(range));
        let range = ranges.first().filter(|_| ranges.len() == 1).map(|range| range.cidr);
        (self.waiting, self.allowed) = (waiting, if claimable == 0 { 0 } else { self.allowed });
        if !ranges.is_empty() {
            self.ranges.push(OfRange { range, free, unclaimed: claimable.div_ceil(block.max(1)), block });
        }
    }

    fn take(&mut self) -> Result<Source, Lack> {
        let family = self.family;
        if let Some(of) = self.ranges.iter_mut().find(|of| of.free > 0) {
            of.free -= 1;
            return Ok(Source { family, range: of.range, claims: false });
        }
        let open = self.ranges.iter_mut().find(|of| of.unclaimed > 0);
        let any = open.is_some();
        match open.filter(|_| self.allowed > 0) {
            Some(of) => {
                (of.unclaimed, of.free) = (of.unclaimed - 1, of.block.saturating_sub(1));
                self.allowed -= 1;
                Ok(Source { family, range: of.range, claims: true })
            }
            None if self.waiting > 0 => Err(Lack::Quarantine(family)),
            None if any => Err(Lack::Limit(family)),
            None => Err(Lack::Addresses(family)),
        }
    }
}

fn admitted(network: &Network, of: Family) -> impl Iterator<Item = &AdmittedRange> {
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    let admitted =
        ranges.filter(|range| range.usage == RangeUse::Pods && range.state == RangeState::Admitted);
    admitted.filter(move |range| Family::of(range.cidr) == of)
}

fn here<'a>(network: &Network, node: &str, world: World<'a>) -> Option<&'a NetworkOnNode> {
    let offer = world.offers.iter().find(|offer| offer.metadata.name.as_deref() == Some(node))?;
    offer.status.as_ref()?.networks.iter().find(|here| network.metadata.name.as_ref() == Some(&here.name))
}

fn used(world: World<'_>) -> BTreeSet<IpAddr> {
    let records = world.holdings.map_or(&[][..], |(_, records)| records);
    let attachments = records.iter().flat_map(|record| &record.spec.attachments);
    attachments.flat_map(|attachment| &attachment.addresses).map(|held| held.address.addr()).collect()
}

fn waiting(block: &IPBlock, world: World<'_>) -> BTreeSet<IpAddr> {
    let status = block.status.iter();
    let resting =
        status.clone().flat_map(|s| &s.quarantined).filter(|q| q.until.0 > world.now).map(|q| q.address.0);
    resting.chain(status.flat_map(|s| &s.held).map(|held| held.address.0)).collect()
}

/// At most 1024: the bound of a block.
fn block_addresses(block: &IPBlock) -> impl Iterator<Item = IpAddr> {
    let net = block.spec.cidr.0;
    let bits = u32::from(net.max_prefix_len() - net.prefix_len()).min(10);
    let first = grid::to_bits(net.network());
    (0..1u128 << bits).map(move |offset| grid::from_bits(net.network(), first + offset))
}

fn block_size(range: &AdmittedRange) -> u64 {
    let bits = if range.cidr.is_ipv6() { 128 } else { 32 };
    1u64.checked_shl(u32::from(bits - range.block_prefix.min(bits))).unwrap_or(u64::MAX)
}
