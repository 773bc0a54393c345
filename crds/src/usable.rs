//! What of a range can be handed out: the one rule that agents (allocation) and the controller (`Full`) share.
//!
//! Never handed out are the network and broadcast address of an IPv4 range of /30 or shorter, the subnet-router
//! anycast address of an IPv6 range of /126 or shorter (RFC 4291 section 2.6.1), the gateway, and `exclude`.

use std::net::IpAddr;

use crate::address::{Cidr, Ip};
use crate::grid;
use crate::network::AdmittedRange;

/// A set of addresses of one family as ascending, disjoint, non-adjacent, inclusive intervals of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses(Vec<(u128, u128)>);

impl Addresses {
    /// The union of some CIDRs of one family.
    pub fn union<'a>(cidrs: impl IntoIterator<Item = &'a Cidr>) -> Self {
        Self::merge(cidrs.into_iter().map(bounds).collect())
    }

    /// What is never handed out of a range.
    pub fn unusable(cidr: Cidr, gateway: Option<Ip>, exclude: &[Cidr]) -> Self {
        let (first, last) = bounds(&cidr);
        let inside = |cidr: &Cidr| {
            let (a, b) = bounds(cidr);
            (a.max(first), b.min(last))
        };
        let mut intervals: Vec<_> = exclude.iter().map(inside).filter(|(a, b)| a <= b).collect();
        if last - first >= 3 {
            intervals.push((first, first));
            intervals.extend((!cidr.is_ipv6()).then_some((last, last)));
        }
        intervals.extend(gateway.map(|Ip(ip)| (grid::to_bits(ip), grid::to_bits(ip))));
        Self::merge(intervals)
    }

    fn merge(mut intervals: Vec<(u128, u128)>) -> Self {
        intervals.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(intervals.len());
        for (first, last) in intervals {
            match merged.last_mut() {
                Some(open) if first <= open.1.saturating_add(1) => open.1 = open.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// Whether the address is in the set. It must be of the set's family.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = grid::to_bits(address);
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&bits))
    }

    /// The first address from `bits` on that is not in the set; `None` if there is none.
    pub fn next_outside(&self, bits: u128) -> Option<u128> {
        let mut at = bits;
        for (first, last) in self.0.iter().skip_while(|(_, last)| *last < bits) {
            if at < *first {
                break;
            }
            at = last.checked_add(1)?;
        }
        Some(at)
    }

    /// Whether every address of the CIDR is in the set. It must be of the set's family.
    pub fn covers(&self, cidr: &Cidr) -> bool {
        let (first, last) = bounds(cidr);
        self.0.iter().any(|(a, b)| *a <= first && last <= *b)
    }

    /// How many addresses of the CIDR are in the set; saturates at `u128::MAX`.
    pub fn count_in(&self, cidr: &Cidr) -> u128 {
        let (first, last) = bounds(cidr);
        let parts = self.0.iter().map(|(a, b)| (*a.max(&first), *b.min(&last)));
        parts.filter(|(a, b)| a <= b).fold(0, |sum, (a, b)| sum.saturating_add((b - a).saturating_add(1)))
    }

    /// How many blocks of the grid lie wholly in the set. `block_bits` is the number of host bits of a block.
    fn whole_blocks(&self, block_bits: u32) -> u128 {
        let size = 1u128.checked_shl(block_bits).unwrap_or(u128::MAX);
        let count = |(first, last): &(u128, u128)| {
            let (from, to) = (first.div_ceil(size), last.saturating_add(1) / size);
            to.saturating_sub(from)
        };
        self.0.iter().map(count).fold(0, u128::saturating_add)
    }
}

impl AdmittedRange {
    /// What is never handed out of the range.
    pub fn unusable(&self) -> Addresses {
        Addresses::unusable(self.cidr, self.gateway, &self.exclude)
    }

    /// The lowest address that can be handed out and that `taken` does not name; costs a look-up per taken address.
    pub fn lowest_free(&self, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let (unusable, (first, last)) = (self.unusable(), bounds(&self.cidr));
        let mut at = first;
        loop {
            at = unusable.next_outside(at).filter(|at| *at <= last)?;
            let address = grid::from_bits(self.cidr.addr(), at);
            if !taken(address) {
                return Some(address);
            }
            at = at.checked_add(1)?;
        }
    }

    /// How many of its blocks have an address that can be handed out; saturates at `u64::MAX`.
    pub fn usable_blocks(&self) -> u64 {
        let host_bits = if self.cidr.is_ipv6() { 128 } else { 32 } - u32::from(self.block_prefix);
        let unusable = u64::try_from(self.unusable().whole_blocks(host_bits)).unwrap_or(u64::MAX);
        grid::blocks(self.cidr, self.block_prefix).saturating_sub(unusable)
    }

    /// How many of its addresses can be handed out; saturates at `u128::MAX`.
    pub fn usable_addresses(&self) -> u128 {
        let (first, last) = bounds(&self.cidr);
        (last - first).saturating_add(1).saturating_sub(self.unusable().count_in(&self.cidr))
    }
}

fn bounds(cidr: &Cidr) -> (u128, u128) {
    (grid::to_bits(cidr.0.network()), grid::to_bits(cidr.0.broadcast()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::network::{RangeState, RangeUse};

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn range(text: &str, block_prefix: u8, gateway: Option<&str>, exclude: &[&str]) -> AdmittedRange {
        AdmittedRange {
            cidr: cidr(text),
            block_prefix,
            gateway: gateway.map(|ip| ip.parse().unwrap()),
            exclude: exclude.iter().map(|text| cidr(text)).collect(),
            usage: RangeUse::Pods,
            state: RangeState::Admitted,
            scarce: false,
            full: false,
            unclaimed: 0,
            message: None,
        }
    }

    #[test]
    fn network_broadcast_gateway_and_excluded_addresses_are_never_handed_out() {
        let range = range("10.0.0.0/24", 32, Some("10.0.0.1"), &["10.0.0.128/25"]);
        let unusable = range.unusable();
        for address in ["10.0.0.0", "10.0.0.1", "10.0.0.128", "10.0.0.255"] {
            assert!(unusable.contains(address.parse().unwrap()), "{address}");
        }
        assert!(!unusable.contains("10.0.0.2".parse().unwrap()));
        assert_eq!((range.usable_addresses(), range.usable_blocks()), (126, 126));
    }

    #[test]
    fn a_point_to_point_range_gives_both_addresses_and_a_small_one_gives_the_inner_ones() {
        assert_eq!(range("10.0.0.0/31", 32, None, &[]).usable_blocks(), 2);
        assert_eq!(range("10.0.0.0/30", 32, None, &[]).usable_blocks(), 2);
        assert_eq!(range("fd00::/126", 128, None, &[]).usable_blocks(), 3);
    }

    #[test]
    fn the_lowest_free_address_is_found_in_a_range_of_any_size() {
        let range = range("fd00::/64", 128, Some("fd00::1"), &["fd00::4/126", "fd00:0:0:0:8000::/65"]);
        let taken = |few: &'static [&'static str]| move |a: IpAddr| few.iter().any(|t| t.parse() == Ok(a));
        let free = |few| range.lowest_free(taken(few)).map(|address| address.to_string());
        assert_eq!(free(&[]).unwrap(), "fd00::2");
        assert_eq!(free(&["fd00::2", "fd00::3"]).unwrap(), "fd00::8");
        let small = super::tests::range("10.0.0.0/30", 32, Some("10.0.0.1"), &[]);
        assert_eq!(small.lowest_free(taken(&["10.0.0.2"])), None);
    }

    #[test]
    fn a_block_counts_until_its_last_address_is_excluded() {
        assert_eq!(range("10.0.0.0/24", 28, None, &["10.0.0.0/28"]).usable_blocks(), 15);
        assert_eq!(range("10.0.0.0/24", 28, None, &["10.0.0.0/29"]).usable_blocks(), 16);
        assert_eq!(range("10.0.0.0/24", 28, None, &["10.0.0.0/29", "10.0.0.8/29"]).usable_blocks(), 15);
        assert_eq!(range("fd00::/64", 124, None, &["fd00::/65"]).usable_blocks(), 1 << 59);
    }

    proptest! {
        #[test]
        fn counting_agrees_with_looking_at_every_address(
            prefix in 24u8..=32, block in 24u8..=32, gateway in proptest::option::of(0u32..256),
            exclude in prop::collection::vec((0u32..256, 24u8..=32), 0..4),
        ) {
            prop_assume!(block >= prefix);
            let ip = |low: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 | low));
            let subject = AdmittedRange {
                cidr: Cidr(ipnet::IpNet::new(ip(0), prefix).unwrap()),
                gateway: gateway.filter(|low| *low < 1 << (32 - prefix)).map(|low| Ip(ip(low))),
                exclude: exclude.into_iter().map(|(low, len)| Cidr(ipnet::IpNet::new(ip(low), len).unwrap().trunc())).collect(),
                ..range("10.0.0.0/24", block, None, &[])
            };
            let unusable = subject.unusable();
            let usable = |cidr: Cidr| cidr_addresses(cidr).filter(|a| !unusable.contains(*a)).count();
            let by_block = (0..grid::blocks(subject.cidr, block))
                .filter(|i| usable(grid::block_at(subject.cidr, block, *i).unwrap()) > 0).count();
            prop_assert_eq!(subject.usable_addresses(), usable(subject.cidr) as u128);
            prop_assert_eq!(subject.usable_blocks(), by_block as u64);
        }
    }

    fn cidr_addresses(cidr: Cidr) -> impl Iterator<Item = IpAddr> {
        let (first, last) = bounds(&cidr);
        (first..=last).map(move |bits| grid::from_bits(cidr.addr(), bits))
    }
}
