//! What `NodeNetworks` count, held against blocks and records. Pure; counts them in its own way.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use fairlead_crds::network::{AdmittedRange, RangeState, RangeUse};
use fairlead_crds::node_network::NetworkOnNode;
use fairlead_crds::usable::Addresses;
use fairlead_crds::{Finding, FindingCode, IPBlock, Network, NodeNetwork, grid};
use jiff::Timestamp;
use kube::ResourceExt;

use super::world::World;
use crate::controller::lost::LEASE;

/// Counts that promise nothing new may be as old as this, in seconds.
const LAZY: i64 = 32;

/// Addresses of one family in the blocks of one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    owned: u64,
    used: u64,
    quarantined: u64,
    free: u64,
}

impl Count {
    fn add(self, other: Self) -> Self {
        Self {
            owned: self.owned + other.owned,
            used: self.used + other.used,
            quarantined: self.quarantined + other.quarantined,
            free: self.free + other.free,
        }
    }
}

/// By name and UID of a block, the addresses that records hold of it.
type Used<'a> = HashMap<(&'a str, &'a str), HashSet<IpAddr>>;
/// By node and UID of the Network.
type Blocks<'a> = HashMap<(&'a str, &'a str), Vec<&'a IPBlock>>;

/// Networks on nodes that count something else than there is.
pub fn check(world: &World) -> Vec<Finding> {
    let (used, blocks) = (used(world), by_owner(world));
    let networks: HashMap<String, &Network> =
        world.networks.iter().map(|one| (one.name_any(), one)).collect();
    let mut findings = Vec::new();
    for offer in world.offers.iter().filter(|offer| has_settled(world, offer)) {
        let node = offer.name_any();
        for here in offer.status.iter().flat_map(|status| &status.networks) {
            let Some(network) = networks.get(&here.name).filter(|one| one.spec.ipam.is_some()) else {
                continue;
            };
            let uid = network.metadata.uid.as_deref().unwrap_or_default();
            let owned = blocks.get(&(node.as_str(), uid)).map_or(&[][..], Vec::as_slice);
            findings.extend(compare(&node, here, count(network, owned, &used, world.now)));
        }
    }
    findings
}

/// Whether its agent lives and has had time to write what it counts.
fn has_settled(world: &World, offer: &NodeNetwork) -> bool {
    let lease = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
    let entries = offer.metadata.managed_fields.iter().flatten();
    let statuses = entries.filter(|entry| entry.subresource.as_deref() == Some("status"));
    let written = statuses.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max();
    written.is_some_and(|time| world.seconds_since(time) >= LAZY)
        && world.silent_for(&offer.name_any()).is_some_and(|seconds| seconds <= lease)
}

fn compare(node: &str, here: &NetworkOnNode, there: Count) -> Option<Finding> {
    let says = Count { owned: here.owned, used: here.used, quarantined: here.quarantined, free: here.free };
    let words = |count: Count| {
        let Count { owned, used, quarantined, free } = count;
        format!("{owned} owned, {used} used, {quarantined} in quarantine, {free} free")
    };
    let message = format!("network {}: it says {}; there are {}", here.name, words(says), words(there));
    (says != there).then(|| {
        Finding::new(FindingCode::CountsDiffer, format!("nodenetwork {node}"), message.clone(), message)
    })
}

fn used(world: &World) -> Used<'_> {
    let mut used = Used::new();
    let attachments = world.records.iter().flat_map(|record| &record.spec.attachments);
    for held in attachments.flat_map(|attachment| &attachment.addresses) {
        used.entry((&held.block, &held.block_uid)).or_default().insert(held.address.addr());
    }
    used
}

fn by_owner(world: &World) -> Blocks<'_> {
    let mut blocks = Blocks::new();
    for block in &world.blocks {
        blocks.entry((&block.spec.node_name, &block.spec.network_uid)).or_default().push(block);
    }
    blocks
}

/// The family with the fewest addresses.
fn count(network: &Network, blocks: &[&IPBlock], used: &Used<'_>, now: Timestamp) -> Count {
    let ranges: Vec<&AdmittedRange> = network.status.iter().flat_map(|status| &status.ranges).collect();
    let admitted = |v6: bool| ranges.iter().any(|range| gives(range) && range.cidr.is_ipv6() == v6);
    let family = |v6: bool| {
        let of_family = blocks.iter().filter(|block| block.spec.cidr.is_ipv6() == v6);
        of_family.map(|block| in_block(&ranges, block, used, now)).fold(Count::default(), Count::add)
    };
    let families = [false, true].into_iter().filter(|v6| admitted(*v6)).map(family);
    families.min_by_key(|count| (count.free + count.used, count.owned)).unwrap_or_default()
}

fn in_block(ranges: &[&AdmittedRange], block: &IPBlock, used: &Used<'_>, now: Timestamp) -> Count {
    let key = (
        block.metadata.name.as_deref().unwrap_or_default(),
        block.metadata.uid.as_deref().unwrap_or_default(),
    );
    let none = HashSet::new();
    let held = used.get(&key).unwrap_or(&none);
    let cidr = block.spec.cidr;
    let range = ranges.iter().find(|range| {
        range.state != RangeState::Refused
            && range.cidr.0.contains(&cidr.0)
            && range.block_prefix == cidr.0.prefix_len()
    });
    let rest = rest(block, now);
    if block.metadata.deletion_timestamp.is_some() && held.is_empty() && rest.is_empty() {
        return Count::default();
    }
    let used = held.len() as u64;
    match range.filter(|range| gives(range)) {
        // Of a range that drains, or whose addresses are granted, only what is in use counts.
        None => Count { owned: used, used, ..Count::default() },
        Some(range) => each(&range.unusable(), block, held, &rest),
    }
}

/// Whether nodes hand out its addresses as they like.
fn gives(range: &AdmittedRange) -> bool {
    range.state == RangeState::Admitted && range.usage == RangeUse::Pods
}

fn each(unusable: &Addresses, block: &IPBlock, held: &HashSet<IpAddr>, rest: &HashSet<IpAddr>) -> Count {
    let mut count = Count { used: held.len() as u64, ..Count::default() };
    for address in addresses(block) {
        let (usable, used, rests) =
            (!unusable.contains(address), held.contains(&address), rest.contains(&address));
        count.owned += u64::from(usable || used);
        count.quarantined += u64::from(usable && rests && !used);
        count.free += u64::from(usable && !rests && !used);
    }
    count
}

/// Addresses that nobody can have now: in quarantine, or kept.
fn rest(block: &IPBlock, now: Timestamp) -> HashSet<IpAddr> {
    let Some(status) = &block.status else { return HashSet::new() };
    let quarantined =
        status.quarantined.iter().filter(|entry| entry.until.0 > now).map(|entry| entry.address.0);
    quarantined.chain(status.held.iter().map(|entry| entry.address.0)).collect()
}

/// All addresses of a block; it has at most 1024.
fn addresses(block: &IPBlock) -> impl Iterator<Item = IpAddr> {
    let cidr = block.spec.cidr.0;
    let (first, last) = (grid::to_bits(cidr.network()), grid::to_bits(cidr.broadcast()));
    (first..=last).take(1024).map(move |bits| grid::from_bits(cidr.network(), bits))
}
