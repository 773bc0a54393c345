//! How much of a range is unclaimed: `Scarce` and `Full`. Pure.

use std::collections::HashMap;

use fairlead_crds::Network;
use fairlead_crds::network::{AdmittedRange, RangeState};

use super::model::Block;

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

    /// Whether a block of the range exists.
    pub fn any_in(&self, network_uid: &str, range: &AdmittedRange) -> bool {
        self.in_range(network_uid, range).next().is_some()
    }

    /// How many blocks with a usable address nobody owns.
    pub fn unclaimed(&self, network_uid: &str, range: &AdmittedRange) -> u64 {
        let unusable = range.unusable();
        let claimed = self.in_range(network_uid, range).filter(|block| !unusable.covers(&block.cidr)).count();
        range.usable_blocks().saturating_sub(claimed as u64)
    }

    fn in_range(&self, network_uid: &str, range: &AdmittedRange) -> impl Iterator<Item = &&'a Block> {
        let cidr = range.cidr.0;
        self.0.get(network_uid).into_iter().flatten().filter(move |block| cidr.contains(&block.cidr.0))
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

/// How many addresses a network has, of the scarcer family; 0 without address management.
pub fn size(network: &Network) -> u128 {
    let total = |v6| admitted(network, v6).map(AdmittedRange::usable_addresses).reduce(u128::saturating_add);
    total(false).into_iter().chain(total(true)).min().unwrap_or(0)
}

fn admitted(network: &Network, v6: bool) -> impl Iterator<Item = &AdmittedRange> {
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    ranges.filter(move |range| range.state == RangeState::Admitted && range.cidr.is_ipv6() == v6)
}

/// `(scarce, full)` of a range with that many unclaimed blocks, in a network that exists on `nodes` schedulable nodes.
///
/// Scarce: not every node could take the spare addresses it wants; then a node claims one block at a time, and only
/// when it has no free address, so that a small range is spread over the nodes instead of taken by the first.
pub fn flags(range: &AdmittedRange, unclaimed: u64, nodes: u64) -> (bool, bool) {
    let host_bits = if range.cidr.is_ipv6() { 128 } else { 32 } - range.block_prefix;
    let size = 1u64.checked_shl(host_bits.into()).unwrap_or(u64::MAX);
    let wanted = nodes.saturating_mul(SPARE.div_ceil(size));
    (unclaimed < wanted, unclaimed == 0)
}

#[cfg(test)]
mod tests {
    use fairlead_crds::network::RangeState;

    use super::*;

    fn range(cidr: &str, block_prefix: u8) -> AdmittedRange {
        AdmittedRange {
            cidr: cidr.parse().unwrap(),
            block_prefix,
            gateway: None,
            exclude: vec![],
            state: RangeState::Admitted,
            scarce: false,
            full: false,
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
}
