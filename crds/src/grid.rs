//! The grid of blocks in a range, and their names.
//!
//! A range of prefix length p with blocks of prefix length b has 2^(b-p) blocks, counted from 0.
//! Nothing here depends on the size of a range: a /64 costs what a /24 costs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::address::Cidr;

/// How many blocks of `block_prefix` a range has; saturates at `u64::MAX`, 0 if the prefix is shorter than the range's.
pub fn blocks(range: Cidr, block_prefix: u8) -> u64 {
    match block_prefix.checked_sub(range.0.prefix_len()) {
        None => 0,
        Some(bits) => 1u64.checked_shl(bits.into()).unwrap_or(u64::MAX),
    }
}

/// The block at `index` (less than [`blocks`]) of a range.
pub fn block_at(range: Cidr, block_prefix: u8, index: u64) -> Option<Cidr> {
    if index >= blocks(range, block_prefix) {
        return None;
    }
    let bits = if range.is_ipv6() { 128 } else { 32 };
    let offset = u128::from(index).checked_shl(u32::from(bits - block_prefix)).unwrap_or(0);
    let address = from_bits(range.0.network(), to_bits(range.0.network()) + offset);
    IpNet::new(address, block_prefix).ok().map(Cidr)
}

/// The name of a block, which is the claim: `<space>-<address>-<prefix>`, IPv6 as 32 hexadecimal digits.
pub fn block_name(space: &str, block: Cidr) -> String {
    let prefix = block.0.prefix_len();
    match block.0.network() {
        IpAddr::V4(address) => format!("{space}-{}-{prefix}", address.to_string().replace('.', "-")),
        IpAddr::V6(address) => format!("{space}-{:032x}-{prefix}", address.to_bits()),
    }
}

/// The address as a number: IPv4 in the low 32 bits.
pub fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address of the same family as `like` with the given number.
pub fn from_bits(like: IpAddr, bits: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => {
            Ipv4Addr::from_bits(u32::try_from(bits & u128::from(u32::MAX)).unwrap_or(u32::MAX)).into()
        }
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}

/// Whether two ranges share an address.
pub fn overlap(one: Cidr, other: Cidr) -> bool {
    one.0.contains(&other.0) || other.0.contains(&one.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_is_named_after_its_space_address_and_prefix() {
        assert_eq!(block_name("default", cidr("10.20.0.16/28")), "default-10-20-0-16-28");
        assert_eq!(block_name("s", cidr("fd00:20::10/124")), "s-fd000020000000000000000000000010-124");
    }

    #[test]
    fn a_range_is_cut_into_blocks_without_gap() {
        assert_eq!(blocks(cidr("10.20.0.0/24"), 28), 16);
        assert_eq!(block_at(cidr("10.20.0.0/24"), 28, 15), Some(cidr("10.20.0.240/28")));
        assert_eq!(block_at(cidr("10.20.0.0/24"), 28, 16), None);
        assert_eq!(blocks(cidr("10.0.0.0/24"), 20), 0);
    }

    proptest! {
        #[test]
        fn every_block_of_an_ipv6_range_lies_in_it_and_no_two_overlap(index in 0u64..1 << 60, other in 0u64..1 << 60) {
            let range = cidr("fd00:20::/64");
            let (one, two) = (block_at(range, 124, index).unwrap(), block_at(range, 124, other).unwrap());
            prop_assert!(range.0.contains(&one.0));
            prop_assert_eq!(overlap(one, two), index == other);
        }
    }
}
