//! Admins edit, leaders change, agents are slow: whatever the order, no address is ever given to two Networks.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::controller::settle::SETTLE;

/// Addresses of the small world, in which everything is near everything: 10.0.0.0/28.
const WORLD: u32 = 16;
const BLOCK: u8 = 30;
const NETWORKS: usize = 3;
const AGENTS: usize = 2;
/// An agent that has heard nothing for so long is cut off: its Lease lapses, and it lists before it claims.
const DEAF: Duration = Duration::from_millis(2_500);

/// First address and prefix length of a range, and of what it maybe excludes.
type Asked = (u32, u8, Option<(u32, u8)>);

#[derive(Debug, Clone)]
enum Move {
    /// An admin gives a Network these ranges.
    Edit(usize, Vec<Asked>),
    Delete(usize),
    /// One Network leaves a part of its range to another, in a hurry.
    Carve {
        from: usize,
        to: usize,
        part: (u32, u8),
    },
    /// One Network leaves all it has to another, in a hurry.
    Pass {
        from: usize,
        to: usize,
    },
    /// The leader reads everything, decides, and writes; an admin's edit may come between the two.
    Lead(Option<(usize, u32)>),
    NewLeader,
    Hear(usize),
    Claim {
        agent: usize,
        network: usize,
        block: u32,
    },
    HandBack(usize),
    Tick(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let part = || prop_oneof![Just((0, 29u8)), Just((8, 29)), Just((0, 30)), Just((4, 30)), Just((8, 30))];
    let two = || (0..NETWORKS, 1..NETWORKS).prop_map(|(from, step)| (from, (from + step) % NETWORKS));
    let range = (prop_oneof![2 => Just((0, 28u8)), 3 => part()], prop::option::weighted(0.6, part()));
    let range = range.prop_map(|((low, len), exclude)| (low, len, exclude));
    let one = prop_oneof![
        4 => (0..NETWORKS, prop::collection::vec(range, 0..3)).prop_map(|(n, ranges)| Move::Edit(n, ranges)),
        1 => (0..NETWORKS).prop_map(Move::Delete),
        2 => (two(), part()).prop_map(|((from, to), part)| Move::Carve { from, to, part }),
        2 => two().prop_map(|(from, to)| Move::Pass { from, to }),
        6 => prop::option::weighted(0.2, (0..NETWORKS, 0..WORLD)).prop_map(Move::Lead),
        1 => Just(Move::NewLeader),
        3 => (0..AGENTS).prop_map(Move::Hear),
        8 => (0..AGENTS, 0..NETWORKS, 0..WORLD / 4).prop_map(|(agent, network, block)| Move::Claim { agent, network, block }),
        2 => (0..8usize).prop_map(Move::HandBack),
        5 => (1..3_500u64).prop_map(Move::Tick),
    ];
    prop::collection::vec(one, 20..120)
}

fn cidr(low: u32, len: u8) -> fairlead_crds::Cidr {
    let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 | low);
    fairlead_crds::Cidr(ipnet::IpNet::new(ip.into(), len).unwrap().trunc())
}

/// What the API server stores, and who has seen what of it.
struct Cluster {
    networks: Vec<Network>,
    /// A block with what its node could hand out of it when it was claimed.
    blocks: Vec<Block>,
    /// What each agent heard last, and when.
    heard: Vec<(Vec<Network>, Instant)>,
    settling: Settling,
    now: Instant,
    version: u32,
}

impl Cluster {
    fn new() -> Self {
        let now = Instant::now();
        let mut cluster = Self {
            networks: Vec::new(),
            blocks: Vec::new(),
            heard: vec![(Vec::new(), now); AGENTS],
            settling: Settling::new(now),
            now,
            version: 0,
        };
        cluster.networks = (0..NETWORKS).map(|n| cluster.fresh(n)).collect();
        cluster
    }

    fn fresh(&mut self, n: usize) -> Network {
        self.version += 1;
        let mut network = network(&format!("n{n}"), 0, &json!({}));
        network.metadata.uid = Some(format!("uid-{n}-{}", self.version));
        network.metadata.resource_version = Some(self.version.to_string());
        network.spec.ipam.as_mut().unwrap().ranges.clear();
        network
    }

    fn edit(&mut self, n: usize, ranges: &[Asked]) {
        self.version += 1;
        let network = &mut self.networks[n];
        let ranges = ranges.iter().map(|(low, len, exclude)| {
            let exclude: Vec<_> = exclude.iter().map(|(low, len)| cidr(*low, *len).to_string()).collect();
            json!({ "cidr": cidr(*low, *len).to_string(), "blockPrefix": BLOCK.max(*len), "exclude": exclude })
        });
        let mut unique: Vec<Value> = Vec::new();
        for range in ranges {
            if unique.iter().all(|other| other["cidr"] != range["cidr"]) {
                unique.push(range);
            }
        }
        network.spec.ipam.as_mut().unwrap().ranges = serde_json::from_value(json!(unique)).unwrap();
        network.metadata.resource_version = Some(self.version.to_string());
    }

    fn plan(&self, networks: &[Network], blocks: &[Block]) -> Vec<Plan> {
        plan(&World {
            networks,
            blocks: &blocks.iter().collect::<Vec<_>>(),
            nodes: &[],
            used: &BTreeSet::new(),
            users: &Users::default(),
            settling: &self.settling,
            instant: self.now,
            now: Time("2026-11-21T10:00:00Z".parse().unwrap()),
        })
    }

    fn lead(&mut self, meanwhile: Option<(usize, u32)>) {
        let (networks, blocks) = (self.networks.clone(), self.blocks.clone());
        self.settling.observe(&networks, self.now);
        let plans = self.plan(&networks, &blocks);
        if let Some((n, low)) = meanwhile {
            self.edit(n, &[(low, 29, None)]);
        }
        for plan in plans {
            let network =
                self.networks.iter_mut().find(|network| network.metadata.uid.as_ref() == Some(&plan.uid));
            let Some(network) = network else { continue };
            if network.metadata.resource_version.as_deref() == Some(&plan.resource_version) {
                check_edit(network, &plan.status, &blocks);
                self.version += 1;
                network.status = Some(plan.status);
                network.metadata.resource_version = Some(self.version.to_string());
            }
        }
        self.let_go();
    }

    /// A Network that was deleted goes when nothing uses it, and another of its name comes.
    fn let_go(&mut self) {
        for n in 0..NETWORKS {
            let network = &self.networks[n];
            let uid = network.metadata.uid.clone().unwrap();
            let ended = self.settling.has_ended(&uid, self.now);
            if network.metadata.deletion_timestamp.is_some()
                && ended
                && self.blocks.iter().all(|block| block.network_uid != uid)
            {
                self.networks[n] = self.fresh(n);
            }
        }
    }

    fn claim(&mut self, agent: usize, n: usize, index: u32) {
        if self.now - self.heard[agent].1 >= DEAF {
            self.heard[agent] = (self.networks.clone(), self.now);
        }
        let Some(network) = self.heard[agent].0.get(n).cloned() else { return };
        let (uid, wanted) = (network.metadata.uid.clone().unwrap(), cidr(index * 4, BLOCK));
        let ranges: Vec<AdmittedRange> =
            network.status.into_iter().flat_map(|status| status.ranges).collect();
        let range = ranges.iter().find(|range| {
            range.state == RangeState::Admitted
                && range.block_prefix == BLOCK
                && range.cidr.0.contains(&wanted.0)
        });
        let terminating = network.metadata.deletion_timestamp.is_some();
        if terminating || range.is_none_or(|range| range.unusable().covers(&wanted)) {
            return;
        }
        // The name is the claim.
        if self.blocks.iter().any(|block| block.cidr == wanted) {
            return;
        }
        self.blocks.push(Block {
            name: wanted.to_string(),
            space: "default".into(),
            network: format!("n{n}"),
            network_uid: uid,
            node: format!("node{agent}"),
            cidr: wanted,
            reserved: None,
        });
    }

    /// Who may hand out an address now: by what the nodes have heard, of the blocks they own.
    fn check(&self) {
        let given: Vec<(usize, &AdmittedRange)> = self
            .networks
            .iter()
            .enumerate()
            .flat_map(|(n, network)| {
                network.status.iter().flat_map(move |s| s.ranges.iter().map(move |r| (n, r)))
            })
            .filter(|(_, range)| range.state != RangeState::Refused)
            .collect();
        for bits in 0x0a00_0000u32..0x0a00_0000 + WORLD {
            let address = std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(bits));
            let usable = |range: &AdmittedRange| {
                let left_out = fairlead_crds::usable::Addresses::union(&range.exclude);
                range.cidr.0.contains(&address) && !left_out.contains(address)
            };
            let holders: Vec<_> = given.iter().filter(|(_, range)| usable(range)).collect();
            assert!(holders.len() <= 1, "{address} is given to {holders:?}");
            for (n, range) in holders {
                let uid = self.networks[*n].metadata.uid.as_ref();
                let mut blocks = self.blocks.iter().filter(|block| block.cidr.0.contains(&address));
                let other = blocks.find(|block| Some(&block.network_uid) != uid);
                assert!(other.is_none(), "{address} is of {n} ({}), and {other:?} is another's", range.cidr);
            }
        }
    }
}

/// What was admitted keeps its size and block size; it drains before it goes, and goes only without blocks.
fn check_edit(network: &Network, new: &NetworkStatus, blocks: &[Block]) {
    let uid = network.metadata.uid.as_deref().unwrap();
    for old in network.status.iter().flat_map(|status| &status.ranges) {
        if old.state == RangeState::Refused {
            continue;
        }
        let kept = new.ranges.iter().any(|range| {
            range.state != RangeState::Refused
                && (range.cidr, range.block_prefix) == (old.cidr, old.block_prefix)
        });
        let used = blocks.iter().any(|block| block.network_uid == uid && old.cidr.0.contains(&block.cidr.0));
        assert!(kept || old.state == RangeState::Draining && !used, "{} is gone from {uid}", old.cidr);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_edits_gives_an_address_to_two_networks(moves in moves()) {
        let mut cluster = Cluster::new();
        for next in moves {
            match next {
                Move::Edit(n, ranges) => cluster.edit(n, &ranges),
                Move::Delete(n) => {
                    cluster.version += 1;
                    let (version, network) = (cluster.version, &mut cluster.networks[n]);
                    network.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().unwrap()));
                    network.metadata.resource_version = Some(version.to_string());
                }
                Move::Carve { from, to, part } => {
                    cluster.edit(from, &[(0, 28, Some(part))]);
                    cluster.lead(None);
                    cluster.edit(to, &[(part.0, part.1, None)]);
                    cluster.lead(None);
                }
                Move::Pass { from, to } => {
                    cluster.edit(from, &[]);
                    cluster.lead(None);
                    cluster.edit(to, &[(0, 28, None)]);
                    cluster.lead(None);
                    cluster.lead(None);
                }
                Move::Lead(meanwhile) => cluster.lead(meanwhile),
                Move::NewLeader => cluster.settling = Settling::new(cluster.now),
                Move::Hear(agent) => cluster.heard[agent] = (cluster.networks.clone(), cluster.now),
                Move::Claim { agent, network, block } => cluster.claim(agent, network, block),
                Move::HandBack(index) => {
                    let count = cluster.blocks.len().max(1);
                    if index < cluster.blocks.len() {
                        cluster.blocks.remove(index % count);
                    }
                }
                Move::Tick(ms) => {
                    cluster.now += Duration::from_millis(ms);
                    // The leader looks at least every second while something drains or rests.
                    if ms > 1_000 { cluster.lead(None); }
                }
            }
            cluster.check();
        }
        // Left alone, everything that was removed drains and goes once its blocks are handed back.
        cluster.blocks.clear();
        for _ in 0..6 {
            cluster.now += SETTLE;
            cluster.lead(None);
        }
        let ranges = cluster.networks.iter().flat_map(|network| network.status.iter().flat_map(|s| &s.ranges));
        prop_assert!(ranges.clone().all(|range| range.state != RangeState::Draining), "{:?}", ranges.collect::<Vec<_>>());
    }
}
