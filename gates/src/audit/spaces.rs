//! Blocks and ranges of a space, held against each other: no two may share an address. Pure.

use fairlead_crds::network::RangeState;
use fairlead_crds::usable::Addresses;
use fairlead_crds::{Cidr, Finding, FindingCode, Network, grid};
use kube::ResourceExt;

use super::world::{World, block_name, network_name};

/// A CIDR of a space and what it belongs to.
#[derive(Clone, Copy)]
struct Part<'a, T> {
    space: &'a str,
    cidr: Cidr,
    of: T,
}

/// Blocks that overlap, and ranges that overlap and are not left to the other by `exclude`.
pub fn check(world: &World) -> Vec<Finding> {
    let blocks =
        world.blocks.iter().map(|block| Part { space: &block.spec.space, cidr: block.spec.cidr, of: block });
    let blocks = nested(blocks.collect()).into_iter().map(|(outer, inner)| {
        let message =
            format!("{} lies in {}, which is block {}", inner.cidr, outer.cidr, outer.of.name_any());
        Finding::new(FindingCode::BlocksOverlap, block_name(inner.of), outer.of.name_any(), message)
    });
    let blocks: Vec<Finding> = blocks.collect();
    let shared =
        nested(world.networks.iter().flat_map(ranges).collect()).into_iter().filter(|(outer, inner)| {
            let (_, exclude) = outer.of;
            !Addresses::union(exclude).covers(&inner.cidr)
        });
    let ranges = shared.map(|(outer, inner)| {
        let message = format!("{} lies in {} of network {}", inner.cidr, outer.cidr, outer.of.0.name_any());
        Finding::new(FindingCode::RangesOverlap, network_name(inner.of.0), inner.cidr.to_string(), message)
    });
    blocks.into_iter().chain(ranges).collect()
}

fn ranges(network: &Network) -> Vec<Part<'_, (&Network, &[Cidr])>> {
    let Some(ipam) = &network.spec.ipam else { return Vec::new() };
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    let given = ranges.filter(|range| range.state != RangeState::Refused);
    given
        .map(|range| Part { space: &ipam.space, cidr: range.cidr, of: (network, range.exclude.as_slice()) })
        .collect()
}

/// All pairs of which one lies in the other. CIDRs that share an address are nested, so sorted by where they begin, the
/// long ones first, those that are still open contain the next.
fn nested<T: Copy>(mut parts: Vec<Part<'_, T>>) -> Vec<(Part<'_, T>, Part<'_, T>)> {
    parts.sort_by_cached_key(|part| {
        let cidr = part.cidr.0;
        (part.space.to_owned(), part.cidr.is_ipv6(), grid::to_bits(cidr.network()), cidr.prefix_len())
    });
    let (mut open, mut pairs) = (Vec::<Part<'_, T>>::new(), Vec::new());
    for part in parts {
        open.retain(|outer| outer.space == part.space && outer.cidr.0.contains(&part.cidr.0));
        pairs.extend(open.iter().map(|outer| (*outer, part)));
        open.push(part);
    }
    pairs
}
