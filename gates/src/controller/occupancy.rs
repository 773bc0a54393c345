//! How much of a range is unclaimed: `Scarce` and `Full`. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fairlead_crds::Network;
use fairlead_crds::network::{AdmittedRange, RangeState, RangeUse};

use super::model::Block;

/// The largest number of unclaimed blocks that is told; what an object can carry.
const MOST_UNCLAIMED: u64 = 1 << 62;
/// Addresses that a node without load wants to have in hand per network; agents use the same number.
const SPARE: u64 = 16;

/// The blocks of all nodes by the UID of their Network.
#[derive(Debug, Default)]
pub struct Claimed<'a>(HashMap<&'a str, Vec<&'a Block>>);

impl<'a> Claimed<'a> {
    /// Groups blocks by Network.
    pub fn of(blocks: impl IntoIterator<Item = &'a Block>) -> Self {
        let mut by_network: HashMap<&str, Vec<&Block>> = HashMap::new();
        for block in blocks {
            by_network.entry(&block.network_uid).or_default().push(block);
        }
        Self(by_network)
    }

    /// How many blocks nodes own of a Network.
    pub fn count(&self, network_uid: &str) -> usize {
        self.0.get(network_uid).map_or(0, Vec::len)
    }

    /// How many blocks of the range exist.
    pub fn count_in(&self, network_uid: &str, range: &AdmittedRange) -> usize {
        self.in_range(network_uid, range).count()
    }

    /// How many blocks with a usable address nobody owns.
    pub fn unclaimed(&self, network_uid: &str, range: &AdmittedRange) -> u64 {
        let unusable = range.unusable();
        let claimed = self.in_range(network_uid, range).filter(|block| !unusable.covers(&block.cidr)).count();
        range.usable_blocks().saturating_sub(claimed as u64)
    }

    fn in_range(&self, network_uid: &str, range: &AdmittedRange) -> impl Iterator<Item = &&'a Block> {
        let (cidr, reserved) = (range.cidr.0, range.usage == RangeUse::Reserved);
        let blocks = self.0.get(network_uid).into_iter().flatten();
        // A reserved range may have been cut out of one for pods.
        blocks.filter(move |block| cidr.contains(&block.cidr.0) && block.reserved.is_some() == reserved)
    }
}

/// Whether a pod's need of some family can no longer be met by claiming: none of its ranges has an unclaimed block.
pub fn is_exhausted(network: &Network, claimed: &Claimed<'_>) -> bool {
    let uid = network.metadata.uid.as_deref().unwrap_or_default();
    let none_left = |v6| {
        let mut ranges = admitted(network, v6).peekable();
        ranges.peek().is_some() && ranges.all(|range| claimed.unclaimed(uid, range) == 0)
    };
    none_left(false) || none_left(true)
}

/// The nodes that own as many blocks of some family as they may. Blocks of draining ranges are not counted.
pub fn nodes_at_limit(network: &Network, claimed: &Claimed<'_>) -> BTreeSet<String> {
    let uid = network.metadata.uid.as_deref().unwrap_or_default();
    let limit = network.spec.ipam.as_ref().and_then(|ipam| ipam.max_blocks_per_node);
    let Some(limit) = limit else { return BTreeSet::new() };
    let mut owned: BTreeMap<(&str, bool), u32> = BTreeMap::new();
    for range in [false, true].into_iter().flat_map(|v6| admitted(network, v6)) {
        for block in claimed.in_range(uid, range) {
            *owned.entry((&block.node, range.cidr.is_ipv6())).or_default() += 1;
        }
    }
    let full = owned.into_iter().filter(|(_, count)| *count >= limit);
    full.map(|((node, _), _)| node.to_owned()).collect()
}

/// How many addresses a network has, of the scarcer family; 0 without address management.
pub fn size(network: &Network) -> u128 {
    let total = |v6| admitted(network, v6).map(AdmittedRange::usable_addresses).reduce(u128::saturating_add);
    total(false).into_iter().chain(total(true)).min().unwrap_or(0)
}

/// What to tell of `unclaimed` blocks where `told` was told last: a power of two that is not more.
///
/// Every agent hears of each change, so it falls when it has to and rises only to half of what there is: a number
/// that swings around a power of two changes nothing.
pub fn told_unclaimed(told: u64, unclaimed: u64) -> u64 {
    let floor = unclaimed.checked_ilog2().map_or(0, |power| 1 << power).min(MOST_UNCLAIMED);
    if told > 0 && told <= floor && floor < told.saturating_mul(4) { told } else { floor }
}

/// `(addresses, unclaimed)` of the admitted ranges of a Network's new status, of the scarcer family each.
pub fn totals(ranges: &[AdmittedRange]) -> Option<(u64, u64)> {
    let of = |v6: bool| {
        let ranges = ranges.iter().filter(|range| is_open(range) && range.cidr.is_ipv6() == v6);
        let one = |range: &AdmittedRange| {
            let blocks = u128::from(range.unclaimed);
            let addresses = range.usable_addresses();
            (addresses, addresses.min(blocks.saturating_mul(1u128 << block_bits(range))))
        };
        ranges.map(one).reduce(|a, b| (a.0.saturating_add(b.0), a.1.saturating_add(b.1)))
    };
    let families: Vec<(u128, u128)> = [of(false), of(true)].into_iter().flatten().collect();
    let count = |number: Option<u128>| {
        number.map(|n| u64::try_from(n).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs()))
    };
    let addresses = count(families.iter().map(|(addresses, _)| *addresses).min())?;
    Some((addresses, count(families.iter().map(|(_, unclaimed)| *unclaimed).min())?))
}

fn block_bits(range: &AdmittedRange) -> u8 {
    (if range.cidr.is_ipv6() { 128 } else { 32 }) - range.block_prefix
}

fn admitted(network: &Network, v6: bool) -> impl Iterator<Item = &AdmittedRange> {
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    ranges.filter(move |range| is_open(range) && range.cidr.is_ipv6() == v6)
}

/// Whether any pod gets an address of the range.
fn is_open(range: &AdmittedRange) -> bool {
    range.state == RangeState::Admitted && range.usage == RangeUse::Pods
}

/// `(scarce, full)` of a range with that many unclaimed blocks, in a network that exists on `nodes` schedulable nodes.
///
/// Scarce: not every node could take the spare addresses it wants; then a node claims one block at a time, and only
/// when it has no free address, so that a small range is spread over the nodes instead of taken by the first. Addresses
/// of a reserved range are granted by number, so it is never scarce.
pub fn flags(range: &AdmittedRange, unclaimed: u64, nodes: u64) -> (bool, bool) {
    let size = 1u64.checked_shl(block_bits(range).into()).unwrap_or(u64::MAX);
    if range.usage == RangeUse::Reserved {
        return (false, unclaimed == 0);
    }
    let wanted = nodes.saturating_mul(SPARE.div_ceil(size));
    (unclaimed < wanted, unclaimed == 0)
}

#[cfg(test)]
mod tests {
    use fairlead_crds::network::RangeState;
    use serde_json::json;

    use super::*;

    fn range(cidr: &str, block_prefix: u8) -> AdmittedRange {
        AdmittedRange {
            cidr: cidr.parse().unwrap(),
            block_prefix,
            gateway: None,
            exclude: vec![],
            usage: RangeUse::Pods,
            state: RangeState::Admitted,
            scarce: false,
            full: false,
            unclaimed: 0,
            message: None,
        }
    }

    fn block(cidr: &str) -> Block {
        Block {
            name: cidr.into(),
            space: "default".into(),
            network: "blue".into(),
            network_uid: "u".into(),
            node: "node1".into(),
            cidr: cidr.parse().unwrap(),
            reserved: None,
        }
    }

    #[test]
    fn a_range_is_full_when_every_block_with_a_usable_address_is_claimed() {
        let range = range("10.0.0.0/30", 32);
        let one = [block("10.0.0.1/32")];
        assert_eq!(Claimed::of(&one).unclaimed("u", &range), 1);
        let both = [block("10.0.0.1/32"), block("10.0.0.2/32"), block("10.0.0.0/32")];
        assert_eq!(Claimed::of(&both).unclaimed("u", &range), 0, "the network address is no loss");
        assert_eq!(flags(&range, 0, 0), (false, true));
    }

    #[test]
    fn blocks_of_other_networks_and_ranges_do_not_count() {
        let mut other = block("10.0.0.1/32");
        other.network_uid = "v".into();
        let blocks = [other, block("10.9.0.1/32")];
        assert_eq!(Claimed::of(&blocks).unclaimed("u", &range("10.0.0.0/30", 32)), 2);
    }

    #[test]
    fn a_dual_stack_network_is_exhausted_when_one_family_is() {
        let network = |ranges: &[AdmittedRange]| -> Network {
            let spec = serde_json::json!({ "bridge": { "name": "b", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" } });
            let mut network = Network::new("blue", serde_json::from_value(spec).unwrap());
            network.metadata.uid = Some("u".into());
            network.status =
                Some(fairlead_crds::NetworkStatus { ranges: ranges.to_vec(), ..Default::default() });
            network
        };
        let blocks = [block("10.0.0.1/32"), block("10.0.0.2/32")];
        let claimed = Claimed::of(&blocks);
        let (v4, v6) = (range("10.0.0.0/30", 32), range("fd00::/64", 124));
        assert!(is_exhausted(&network(&[v4.clone(), v6.clone()]), &claimed));
        assert!(!is_exhausted(&network(std::slice::from_ref(&v6)), &claimed));
        assert!(
            !is_exhausted(&network(&[v4.clone(), range("10.1.0.0/24", 28)]), &claimed),
            "another range has space"
        );
        assert!(!is_exhausted(&network(&[]), &claimed));
        assert_eq!(size(&network(&[v4, v6])), 2);
    }

    #[test]
    fn a_range_is_scarce_when_it_cannot_give_every_node_its_spare_addresses() {
        assert_eq!(flags(&range("10.0.0.0/16", 28), 4, 4), (false, false));
        assert_eq!(flags(&range("10.0.0.0/16", 28), 3, 4), (true, false));
        assert_eq!(flags(&range("10.0.0.0/29", 32), 6, 2), (true, false), "single addresses: 16 per node");
    }

    #[test]
    fn what_is_told_of_unclaimed_blocks_is_never_too_much_and_changes_rarely() {
        assert_eq!([0, 1, 2, 3, 4096].map(|now| told_unclaimed(0, now)), [0, 1, 2, 2, 4096]);
        assert_eq!(told_unclaimed(4096, 4095), 2048);
        assert_eq!(told_unclaimed(2048, 4096), 2048, "it swings around 4096");
        assert_eq!(told_unclaimed(2048, 8192), 8192);
        assert_eq!(told_unclaimed(1, 0), 0);
        assert_eq!(told_unclaimed(0, u64::MAX), 1 << 62);
        // A range that is filled and emptied again block by block.
        let (mut told, mut changes) = (0, 0);
        for now in (0..=65_536u64).rev().chain(0..=65_536) {
            let next = told_unclaimed(told, now);
            assert!(next <= now && (now == 0 || next * 4 > now / 2), "{next} of {now}");
            changes += u32::from(next != told);
            told = next;
        }
        assert!(changes <= 30, "{changes} changes");
    }

    #[test]
    fn totals_are_those_of_the_scarcer_family_and_cost_nothing_in_a_64() {
        let (mut v4, mut v6) = (range("10.0.0.0/24", 28), range("fd00::/64", 124));
        (v4.unclaimed, v6.unclaimed) = (8, 1 << 59);
        assert_eq!(totals(&[v4.clone(), v6.clone()]), Some((254, 128)));
        assert_eq!(totals(&[v6.clone()]), Some((i64::MAX.unsigned_abs(), i64::MAX.unsigned_abs())));
        v4.state = RangeState::Refused;
        assert_eq!(totals(&[v4]), None);
        assert_eq!((v6.usable_addresses(), v6.usable_blocks()), ((1 << 64) - 1, 1 << 60));
    }

    #[test]
    fn a_node_is_at_its_limit_when_one_family_is() {
        let spec = json!({ "bridge": { "name": "b", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
            "ipam": { "ranges": [{ "cidr": "10.0.0.0/24" }, { "cidr": "fd00::/64" }], "maxBlocksPerNode": 2 } });
        let mut network = Network::new("blue", serde_json::from_value(spec).unwrap());
        network.metadata.uid = Some("u".into());
        let drains = AdmittedRange { state: RangeState::Draining, ..range("10.9.0.0/24", 28) };
        let ranges = vec![range("10.0.0.0/24", 28), range("fd00::/64", 124), drains];
        network.status = Some(fairlead_crds::NetworkStatus { ranges, ..Default::default() });
        let blocks = [block("10.0.0.0/28"), block("fd00::/124"), block("10.9.0.0/28")];
        assert!(nodes_at_limit(&network, &Claimed::of(&blocks)).is_empty());
        let more = [blocks[0].clone(), block("10.0.0.16/28")];
        assert_eq!(nodes_at_limit(&network, &Claimed::of(&more)), BTreeSet::from(["node1".to_owned()]));
    }
}
