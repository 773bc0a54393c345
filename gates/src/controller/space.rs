//! Who has which addresses of a space: what the controller admitted and what nodes own. Pure.
//!
//! The table only grows while statuses are being decided: what one decision gives up is free for
//! another network only after it was written, read again and left alone for a while.

use fairlead_crds::network::{AdmittedRange, RangeState};
use fairlead_crds::usable::Addresses;
use fairlead_crds::{Cidr, Network, grid};

use super::model::Block;

/// A range that a Network has been given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// UID of the Network.
    pub network_uid: String,
    /// Name of the Network.
    pub network: String,
    /// The space.
    pub space: String,
    /// The range.
    pub cidr: Cidr,
    /// The parts of it that the Network leaves to others.
    pub exclude: Vec<Cidr>,
}

/// What stands in the way of a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Another range has some of its addresses.
    #[error("{cidr} overlaps {other} of network {network} in space {space}")]
    Range {
        /// The range that is refused.
        cidr: Cidr,
        /// The range that was there before.
        other: Cidr,
        /// The Network that has it.
        network: String,
        /// The space of both.
        space: String,
    },
    /// A range that was removed from the same network has some of its addresses.
    #[error(
        "{cidr} overlaps {other}, which was removed from the network and is still in use; it is admitted when that has drained, see condition Draining"
    )]
    Own {
        /// The range that is refused.
        cidr: Cidr,
        /// The range that drains.
        other: Cidr,
    },
    /// A node owns some of its addresses for another range.
    #[error(
        "{cidr} overlaps block {block}, which node {node} owns for network {network}; it is admitted when the block is handed back"
    )]
    Block {
        /// The range that is refused.
        cidr: Cidr,
        /// Name of the block.
        block: String,
        /// The node that owns it.
        node: String,
        /// The Network it was claimed for.
        network: String,
    },
}

/// The ranges of all spaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table(Vec<Claim>);

impl Table {
    /// What the Networks' statuses say.
    pub fn of(networks: &[Network]) -> Self {
        Self(networks.iter().flat_map(claims).collect())
    }

    /// Enters a range.
    pub fn add(&mut self, claim: Claim) {
        self.0.push(claim);
    }

    /// The range of another entry that shares an address with this one.
    pub fn conflict(&self, claim: &Claim) -> Option<Conflict> {
        let other = self
            .0
            .iter()
            .find(|other| other.space == claim.space && !other.is_same(claim) && other.shares_with(claim))?;
        if other.network_uid == claim.network_uid {
            return Some(Conflict::Own { cidr: claim.cidr, other: other.cidr });
        }
        Some(Conflict::Range {
            cidr: claim.cidr,
            other: other.cidr,
            network: other.network.clone(),
            space: claim.space.clone(),
        })
    }

    /// What this table had given out and `now` has not, or only in part: nodes may not know yet.
    pub fn given_up(&self, now: &Self) -> Vec<(String, Cidr)> {
        let kept = |old: &&Claim| {
            now.0
                .iter()
                .any(|new| new.is_same(old) && new.exclude.iter().all(|part| old.exclude.contains(part)))
        };
        self.0.iter().filter(|claim| !kept(claim)).map(|claim| (claim.space.clone(), claim.cidr)).collect()
    }
}

impl Claim {
    /// The claim of a Network to a range.
    pub fn new(network: &Network, cidr: Cidr, exclude: &[Cidr]) -> Self {
        Self {
            network_uid: network.metadata.uid.clone().unwrap_or_default(),
            network: network.metadata.name.clone().unwrap_or_default(),
            space: network.spec.ipam.as_ref().map(|ipam| ipam.space.clone()).unwrap_or_default(),
            cidr,
            exclude: exclude.to_vec(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.network_uid == other.network_uid && self.cidr == other.cidr
    }

    /// Two ranges of which one lies in what the other excludes share nothing.
    fn shares_with(&self, other: &Self) -> bool {
        let leaves = |outer: &Self, inner: &Self| {
            outer.cidr.0.contains(&inner.cidr.0) && Addresses::union(&outer.exclude).covers(&inner.cidr)
        };
        grid::overlap(self.cidr, other.cidr) && !leaves(self, other) && !leaves(other, self)
    }
}

/// The block of a node that shares an address with a range it is not of. Such blocks outlive their range only when
/// a node was slow to learn of its end; excluded parts count too, since addresses may have been handed out before.
pub fn foreign_block(claim: &Claim, block_prefix: u8, blocks: &[&Block]) -> Option<Conflict> {
    let own = |block: &&&Block| {
        block.network_uid == claim.network_uid
            && claim.cidr.0.contains(&block.cidr.0)
            && block.cidr.0.prefix_len() == block_prefix
    };
    let block = blocks
        .iter()
        .find(|block| block.space == claim.space && grid::overlap(block.cidr, claim.cidr) && !own(block))?;
    Some(Conflict::Block {
        cidr: claim.cidr,
        block: block.name.clone(),
        node: block.node.clone(),
        network: block.network.clone(),
    })
}

fn claims(network: &Network) -> Vec<Claim> {
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    let given = ranges.filter(|range| range.state != RangeState::Refused);
    given.map(|range: &AdmittedRange| Claim::new(network, range.cidr, &range.exclude)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(network: &str, space: &str, cidr: &str, exclude: &[&str]) -> Claim {
        Claim {
            network_uid: format!("uid-{network}"),
            network: network.to_owned(),
            space: space.to_owned(),
            cidr: cidr.parse().unwrap(),
            exclude: exclude.iter().map(|part| part.parse().unwrap()).collect(),
        }
    }

    fn message(there: Claim, wanted: &Claim) -> Option<String> {
        Table(vec![there]).conflict(wanted).map(|conflict| conflict.to_string())
    }

    #[test]
    fn an_overlap_names_the_other_network_and_its_range() {
        assert_eq!(
            message(
                claim("red", "default", "10.20.4.0/24", &[]),
                &claim("blue", "default", "10.20.0.0/16", &[])
            )
            .unwrap(),
            "10.20.0.0/16 overlaps 10.20.4.0/24 of network red in space default"
        );
    }

    #[test]
    fn other_spaces_other_families_and_excluded_parts_do_not_overlap() {
        let wanted = claim("blue", "default", "10.20.0.0/16", &[]);
        assert_eq!(message(claim("red", "lab", "10.20.0.0/16", &[]), &wanted), None);
        assert_eq!(message(claim("red", "default", "fd00::/64", &[]), &wanted), None);
        let outer = claim("red", "default", "10.0.0.0/8", &["10.20.0.0/17", "10.20.128.0/17"]);
        assert_eq!(message(outer, &wanted), None);
        let half = claim("red", "default", "10.0.0.0/8", &["10.20.0.0/17"]);
        assert!(message(half, &wanted).is_some());
    }

    #[test]
    fn a_network_conflicts_with_its_own_other_ranges_but_not_with_itself() {
        let there = claim("blue", "default", "10.20.0.0/16", &[]);
        assert_eq!(message(there.clone(), &there), None);
        assert!(message(there, &claim("blue", "default", "10.20.4.0/24", &[])).is_some());
    }

    #[test]
    fn a_block_that_outlived_its_range_keeps_others_away() {
        let block = Block {
            name: "default-10-20-0-0-28".into(),
            space: "default".into(),
            network: "old".into(),
            network_uid: "uid-old".into(),
            node: "node1".into(),
            cidr: "10.20.0.0/28".parse().unwrap(),
            reserved: None,
        };
        let wanted = claim("blue", "default", "10.20.0.0/16", &[]);
        let conflict = foreign_block(&wanted, 28, &[&block]).unwrap().to_string();
        assert!(conflict.contains("default-10-20-0-0-28") && conflict.contains("node1"), "{conflict}");
        let own = Block { network_uid: "uid-blue".into(), ..block };
        assert_eq!(foreign_block(&wanted, 28, &[&own]), None);
        assert!(foreign_block(&wanted, 27, &[&own]).is_some(), "a block of another grid");
    }

    #[test]
    fn a_removed_range_and_a_grown_exclude_are_given_up() {
        let before = Table(vec![claim("a", "s", "10.0.0.0/24", &[]), claim("b", "s", "10.1.0.0/24", &[])]);
        let after = Table(vec![claim("a", "s", "10.0.0.0/24", &["10.0.0.0/28"])]);
        assert_eq!(before.given_up(&after).len(), 2);
        assert!(after.given_up(&before).is_empty(), "an exclude that shrank gives up nothing");
    }

    proptest! {
        #[test]
        fn no_address_is_ever_given_to_two_ranges(wanted in prop::collection::vec((0u32..64, 26u8..=32, prop::option::of((0u32..64, 26u8..=32))), 1..12)) {
            let cidr = |low: u32, len: u8| {
                let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 | low);
                Cidr(ipnet::IpNet::new(ip.into(), len).unwrap().trunc())
            };
            let mut table = Table::default();
            for (index, (low, len, exclude)) in wanted.into_iter().enumerate() {
                let mut entry = claim(&index.to_string(), "s", "10.0.0.0/24", &[]);
                entry.cidr = cidr(low, len);
                entry.exclude = exclude.map(|(low, len)| cidr(low, len)).into_iter().collect();
                if table.conflict(&entry).is_none() {
                    table.add(entry);
                }
            }
            for bits in 0x0a00_0000u32..0x0a00_0040 {
                let address = std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(bits));
                let holders = table.0.iter().filter(|c| c.cidr.0.contains(&address) && !Addresses::union(&c.exclude).contains(address));
                prop_assert!(holders.count() <= 1);
            }
        }
    }
}
