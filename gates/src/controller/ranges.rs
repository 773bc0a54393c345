//! The ranges of one Network's status: what is admitted, drained and refused. Pure.

use fairlead_crds::network::{AdmittedRange, Range, RangeState};
use fairlead_crds::{Cidr, Network};

use super::model::Block;
use super::occupancy::Claimed;
use super::space::{self, Claim, Conflict, Table};

/// Most entries of `status.ranges`.
const MAX_ENTRIES: usize = 64;

/// What the ranges of a Network are decided against.
pub struct Ground<'a> {
    /// What every Network has; what this one gets is entered.
    pub table: &'a mut Table,
    /// All blocks.
    pub blocks: &'a [&'a Block],
    /// The same, by Network.
    pub claimed: &'a Claimed<'a>,
    /// Whether a range has drained for long enough (by its CIDR).
    pub drained: &'a dyn Fn(Cidr) -> bool,
    /// Whether the addresses of a range were given up just now (by its CIDR).
    pub settling: &'a dyn Fn(Cidr) -> bool,
}

/// The ranges of a Network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decided {
    /// As they belong into the status.
    pub ranges: Vec<AdmittedRange>,
    /// The first sentence that says why something of the spec was refused.
    pub refused: Option<String>,
    /// Whether addresses are given that were not before, so that the decision needs the newest state of everything.
    pub admits: bool,
    /// Whether a range has to wait until addresses have rested.
    pub waits: bool,
}

/// Decides the ranges of a Network. `may_grow` is false while the Network itself is refused or terminating.
pub fn decide(network: &Network, may_grow: bool, ground: &mut Ground<'_>) -> Decided {
    let wanted = network.spec.ipam.as_ref().map_or(&[][..], |ipam| &ipam.ranges);
    let current: Vec<&AdmittedRange> = network.status.iter().flat_map(|status| &status.ranges).collect();
    let given = || current.iter().filter(|range| range.state != RangeState::Refused).copied();
    let mut decided = Decided::default();
    for range in wanted {
        let have = given().find(|have| have.cidr == range.cidr);
        match have.filter(|have| is_same(have, range)) {
            Some(have) => decided.keep(network, have, range, ground),
            None if may_grow => decided.admit(network, range, have, given().count(), ground),
            None => decided.leave(range, &current),
        }
    }
    for range in given().filter(|range| !wanted.iter().any(|w| w.cidr == range.cidr && is_same(range, w))) {
        decided.drain(network, range, ground);
    }
    decided
}

/// What never changes in an entry: a range that needs another grid or use has to drain first.
fn is_same(have: &AdmittedRange, range: &Range) -> bool {
    (have.block_prefix, have.usage) == (range.block_prefix(), range.usage)
}

impl Decided {
    /// Gateway and excludes of an admitted range follow the spec, unless that would uncover another's addresses.
    fn keep(&mut self, network: &Network, have: &AdmittedRange, range: &Range, ground: &mut Ground<'_>) {
        let claim = Claim::new(network, range.cidr, &range.exclude);
        let mut entry = AdmittedRange {
            gateway: range.gateway,
            state: RangeState::Admitted,
            message: None,
            ..have.clone()
        };
        if have.exclude == range.exclude {
            return self.ranges.push(entry);
        }
        match ground.table.conflict(&claim) {
            None if (ground.settling)(range.cidr) => {
                self.waits = true;
            }
            Some(conflict) => {
                entry.message = Some(format!("exclude is kept as it was: {conflict}"));
                self.refuse(&conflict);
            }
            None => {
                entry.exclude.clone_from(&range.exclude);
                self.admits = true;
                ground.table.add(claim);
            }
        }
        self.ranges.push(entry);
    }

    fn admit(
        &mut self,
        network: &Network,
        range: &Range,
        draining: Option<&AdmittedRange>,
        entries: usize,
        ground: &mut Ground<'_>,
    ) {
        let claim = Claim::new(network, range.cidr, &range.exclude);
        let mut entry = AdmittedRange {
            cidr: range.cidr,
            block_prefix: range.block_prefix(),
            gateway: range.gateway,
            exclude: range.exclude.clone(),
            usage: range.usage,
            state: RangeState::Admitted,
            scarce: false,
            full: false,
            unclaimed: 0,
            message: None,
        };
        if let Some(why) = obstacle(&claim, entry.block_prefix, draining, entries, ground) {
            entry.state = RangeState::Refused;
            entry.message = Some(why.clone());
            self.refused.get_or_insert(why);
        } else if (ground.settling)(range.cidr) {
            self.waits = true;
            return;
        } else {
            ground.table.add(claim);
            self.admits = true;
        }
        self.ranges.push(entry);
    }

    /// Leaves what the status says of a range that may not be admitted now.
    fn leave(&mut self, range: &Range, current: &[&AdmittedRange]) {
        let refused =
            current.iter().find(|have| have.cidr == range.cidr && have.state == RangeState::Refused);
        self.ranges.extend(refused.map(|have| (*have).clone()));
    }

    /// A range that left the spec stays as long as a block of it exists.
    fn drain(&mut self, network: &Network, range: &AdmittedRange, ground: &Ground<'_>) {
        let uid = network.metadata.uid.as_deref().unwrap_or_default();
        if range.state == RangeState::Draining
            && ground.claimed.count_in(uid, range) == 0
            && (ground.drained)(range.cidr)
        {
            return;
        }
        self.waits = true;
        self.ranges.push(AdmittedRange {
            state: RangeState::Draining,
            scarce: false,
            full: false,
            unclaimed: 0,
            message: None,
            ..range.clone()
        });
    }

    fn refuse(&mut self, conflict: &Conflict) {
        self.refused.get_or_insert_with(|| conflict.to_string());
    }
}

fn obstacle(
    claim: &Claim,
    block_prefix: u8,
    draining: Option<&AdmittedRange>,
    entries: usize,
    ground: &Ground<'_>,
) -> Option<String> {
    if let Some(old) = draining {
        return Some(format!(
            "{} still drains with blocks of /{} for use: {:?}; it is admitted when they are handed back",
            claim.cidr, old.block_prefix, old.usage
        ));
    }
    if entries >= MAX_ENTRIES {
        return Some(format!("{} has to wait: {MAX_ENTRIES} ranges of the network still drain", claim.cidr));
    }
    let conflict =
        ground.table.conflict(claim).or_else(|| space::foreign_block(claim, block_prefix, ground.blocks));
    conflict.map(|conflict| conflict.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn network(name: &str, spec: &[Value], status: &[Value]) -> Network {
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network",
            "metadata": { "name": name, "uid": format!("uid-{name}") },
            "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" }, "ipam": { "ranges": spec } },
            "status": { "ranges": status }
        }))
        .unwrap()
    }

    fn admitted(cidr: &str, prefix: u8, state: &str) -> Value {
        json!({ "cidr": cidr, "blockPrefix": prefix, "state": state, "scarce": false, "full": false })
    }

    fn block(network: &str, cidr: &str) -> Block {
        Block {
            name: cidr.into(),
            space: "default".into(),
            network: network.into(),
            network_uid: format!("uid-{network}"),
            node: "node1".into(),
            cidr: cidr.parse().unwrap(),
            reserved: None,
        }
    }

    fn run(all: &[Network], which: usize, blocks: &[Block], settled: bool) -> Decided {
        let refs: Vec<&Block> = blocks.iter().collect();
        let mut ground = Ground {
            table: &mut Table::of(all),
            blocks: &refs,
            claimed: &Claimed::of(blocks),
            drained: &|_| settled,
            settling: &|_| !settled,
        };
        decide(&all[which], true, &mut ground)
    }

    fn states(decided: &Decided) -> Vec<(String, RangeState)> {
        decided.ranges.iter().map(|range| (range.cidr.to_string(), range.state)).collect()
    }

    #[test]
    fn a_new_range_is_admitted_with_its_default_block_size() {
        let decided = run(
            &[network("blue", &[json!({ "cidr": "10.0.0.0/24", "gateway": "10.0.0.1" })], &[])],
            0,
            &[],
            true,
        );
        assert!(decided.admits && decided.refused.is_none());
        assert_eq!(
            (decided.ranges[0].block_prefix, decided.ranges[0].gateway),
            (28, Some("10.0.0.1".parse().unwrap()))
        );
    }

    #[test]
    fn the_other_ranges_of_a_network_are_admitted_although_one_is_refused() {
        let red =
            network("red", &[json!({ "cidr": "10.0.0.0/16" })], &[admitted("10.0.0.0/16", 28, "Admitted")]);
        let blue =
            network("blue", &[json!({ "cidr": "10.0.1.0/24" }), json!({ "cidr": "10.9.0.0/24" })], &[]);
        let decided = run(&[red, blue], 1, &[], true);
        assert_eq!(
            states(&decided),
            [("10.0.1.0/24".into(), RangeState::Refused), ("10.9.0.0/24".into(), RangeState::Admitted)]
        );
        assert_eq!(
            decided.refused.unwrap(),
            "10.0.1.0/24 overlaps 10.0.0.0/16 of network red in space default"
        );
    }

    #[test]
    fn a_removed_range_drains_until_its_last_block_is_gone() {
        let there = [admitted("10.0.0.0/24", 28, "Admitted"), admitted("10.1.0.0/24", 28, "Draining")];
        let blue = network("blue", &[json!({ "cidr": "10.2.0.0/24" })], &there);
        let blocks = [block("blue", "10.1.0.16/28")];
        let draining = |blocks: &[Block], settled| {
            states(&run(std::slice::from_ref(&blue), 0, blocks, settled))
                .iter()
                .filter(|(_, s)| *s == RangeState::Draining)
                .count()
        };
        assert_eq!(draining(&blocks, true), 2);
        assert_eq!(draining(&[], true), 1, "the one that had drained has left");
        assert_eq!(draining(&[], false), 2, "a node may still be claiming");
    }

    #[test]
    fn a_range_that_comes_back_while_it_drains_is_admitted_again() {
        let blue =
            network("blue", &[json!({ "cidr": "10.0.0.0/24" })], &[admitted("10.0.0.0/24", 28, "Draining")]);
        let decided = run(&[blue], 0, &[], true);
        assert_eq!(states(&decided), [("10.0.0.0/24".into(), RangeState::Admitted)]);
    }

    #[test]
    fn a_range_never_changes_its_block_size_while_it_is_there() {
        let blue = network(
            "blue",
            &[json!({ "cidr": "10.0.0.0/24", "blockPrefix": 30 })],
            &[admitted("10.0.0.0/24", 28, "Draining")],
        );
        let decided = run(&[blue], 0, &[block("blue", "10.0.0.16/28")], true);
        assert_eq!(
            states(&decided),
            [("10.0.0.0/24".into(), RangeState::Refused), ("10.0.0.0/24".into(), RangeState::Draining)]
        );
        assert!(decided.refused.unwrap().contains("still drains with blocks of /28"));
    }

    #[test]
    fn an_exclude_cannot_be_taken_back_once_another_network_lives_there() {
        let mut outer = admitted("10.0.0.0/16", 28, "Admitted");
        outer["exclude"] = json!(["10.0.9.0/24"]);
        let all = [
            network("outer", &[json!({ "cidr": "10.0.0.0/16" })], &[outer]),
            network("inner", &[json!({ "cidr": "10.0.9.0/24" })], &[admitted("10.0.9.0/24", 28, "Admitted")]),
        ];
        let decided = run(&all, 0, &[], true);
        assert_eq!(decided.ranges[0].exclude, ["10.0.9.0/24".parse().unwrap()]);
        assert!(decided.refused.unwrap().contains("network inner"));
    }

    #[test]
    fn a_range_waits_while_its_addresses_rest_and_says_nothing_yet() {
        let decided = run(&[network("blue", &[json!({ "cidr": "10.0.0.0/24" })], &[])], 0, &[], false);
        assert!(decided.waits && !decided.admits && decided.ranges.is_empty() && decided.refused.is_none());
    }
}
