use proptest::prelude::*;
use serde_json::json;

use super::*;

const T0: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn pool(ranges: &[&str]) -> Pool {
    let range = |cidr: &&str| {
        serde_json::from_value(json!({ "cidr": cidr, "blockPrefix": if cidr.contains(':') { 124 } else { 28 }, "state": "Admitted" })).unwrap()
    };
    Pool {
        network: "blue".into(),
        uid: "n".into(),
        space: "default".into(),
        ranges: ranges.iter().map(range).collect(),
        quarantine: Duration::from_secs(130),
        hotplug_reserve: 0,
        max_blocks: u64::MAX,
        counted: true,
        terminating: false,
    }
}

fn block(cidr: &str, status: &serde_json::Value) -> IPBlock {
    let cidr: Cidr = cidr.parse().unwrap();
    let name = fairlead_crds::grid::block_name("default", cidr);
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": name, "uid": format!("{name}-uid") },
        "spec": { "space": "default", "network": "blue", "networkUID": "n", "nodeName": "node1", "cidr": cidr }, "status": status
    }))
    .unwrap()
}

fn ipam(pool: Pool, blocks: &[&str]) -> Ipam {
    let mut ipam = Ipam::default();
    ipam.set_pools([pool]);
    blocks.iter().for_each(|cidr| ipam.insert_block(&block(cidr, &json!({}))));
    ipam
}

fn pod(n: usize) -> Owner {
    owner(&format!("pod-{n}"), &"net1".parse().unwrap())
}

fn addresses(held: &[HeldAddress]) -> Vec<String> {
    held.iter().map(|held| held.address.to_string()).collect()
}

#[test]
fn an_interface_gets_one_address_of_each_family_with_the_prefix_of_its_range() {
    let mut ipam = ipam(pool(&["10.20.0.0/24", "fd00::/64"]), &["10.20.0.16/28", "fd00::10/124"]);
    let held = ipam.allocate("blue", &pod(1), T0).unwrap();
    assert_eq!(addresses(&held), ["10.20.0.16/24", "fd00::10/64"]);
}

#[test]
fn asking_again_gives_the_same_address() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let first = ipam.allocate("blue", &pod(1), T0).unwrap();
    assert_eq!(ipam.allocate("blue", &pod(1), T0).unwrap(), first);
}

#[test]
fn network_broadcast_gateway_and_excluded_addresses_are_never_handed_out() {
    let mut pool = pool(&["10.20.0.0/28"]);
    pool.ranges[0].gateway = Some("10.20.0.1".parse().unwrap());
    pool.ranges[0].exclude = vec!["10.20.0.8/29".parse().unwrap()];
    let mut ipam = ipam(pool, &["10.20.0.0/28"]);
    let mut got = Vec::new();
    while let Ok(held) = ipam.allocate("blue", &pod(got.len()), T0) {
        got.extend(addresses(&held));
    }
    assert_eq!(
        got,
        ["10.20.0.2/28", "10.20.0.3/28", "10.20.0.4/28", "10.20.0.5/28", "10.20.0.6/28", "10.20.0.7/28"]
    );
}

#[test]
fn a_freed_address_rests_for_its_quarantine_and_says_until_when() {
    let mut pool = pool(&["10.20.0.0/24"]);
    pool.ranges[0].block_prefix = 32;
    let mut ipam = ipam(pool, &["10.20.0.16/32"]);
    let held = ipam.allocate("blue", &pod(1), T0).unwrap();
    ipam.quarantine(&held[0], &pod(1), at(10));
    assert_eq!(
        ipam.allocate("blue", &pod(2), at(139)),
        Err(Exhausted { family: Family::V4, until: Some(at(140)), at_limit: false })
    );
    assert!(ipam.allocate("blue", &pod(2), at(140)).is_ok());
}

#[test]
fn the_quarantine_survives_a_restart_through_the_block_status() {
    let mut before = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let held = before.allocate("blue", &pod(1), T0).unwrap();
    before.quarantine(&held[0], &pod(1), T0);
    let list = before.block("default-10-20-0-16-28").unwrap().quarantine_list(T0);
    let mut after = Ipam::default();
    after.set_pools([pool(&["10.20.0.0/24"])]);
    after.insert_block(&block("10.20.0.16/28", &json!({ "quarantined": list })));
    let taken: Vec<_> = (0..16).filter_map(|n| after.allocate("blue", &pod(n + 2), at(129)).ok()).collect();
    assert_eq!(taken.len(), 15);
    assert!(!taken.contains(&held));
}

#[test]
fn addresses_go_round_instead_of_being_reused_at_once() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let first = ipam.allocate("blue", &pod(1), T0).unwrap();
    ipam.give_back(&first, &pod(1));
    assert_ne!(ipam.allocate("blue", &pod(2), T0).unwrap(), first);
}

#[test]
fn a_family_without_space_takes_nothing_of_the_other() {
    let mut ipam = ipam(pool(&["10.20.0.0/24", "fd00::/64"]), &["10.20.0.16/28"]);
    assert_eq!(ipam.allocate("blue", &pod(1), T0).unwrap_err().family, Family::V6);
    assert_eq!(ipam.family_counts("blue", Family::V4, T0).used, 0);
}

#[test]
fn the_second_range_is_used_when_the_first_has_no_space() {
    let mut ipam = ipam(pool(&["10.20.0.0/24", "10.30.0.0/24"]), &["10.20.0.16/28", "10.30.0.16/28"]);
    let got: Vec<_> = (0..17).flat_map(|n| addresses(&ipam.allocate("blue", &pod(n), T0).unwrap())).collect();
    assert!(
        got[..16].iter().all(|address| address.starts_with("10.20.")) && got[16].starts_with("10.30."),
        "{got:?}"
    );
}

#[test]
fn a_record_of_a_lost_block_is_not_restored() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let mut held = ipam.allocate("blue", &pod(1), T0).unwrap().remove(0);
    assert!(!ipam.restore(&held, &pod(2)), "another pod holds it");
    held.block_uid = "other".into();
    assert!(!ipam.restore(&held, &pod(1)));
}

#[test]
fn addresses_held_for_a_lost_pod_are_counted_and_never_handed_out() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &[]);
    let held = json!({ "held": [{ "address": "10.20.0.17", "pod": "ns/p", "podUID": "u" }] });
    ipam.insert_block(&block("10.20.0.16/28", &held));
    assert_eq!(
        ipam.counts("blue", T0).unwrap(),
        Counts { owned: 16, used: 0, quarantined: 1, free: 15, claimable: 0 }
    );
    let got: Vec<_> = (0..15).flat_map(|n| addresses(&ipam.allocate("blue", &pod(n), T0).unwrap())).collect();
    assert!(!got.contains(&"10.20.0.17/24".to_owned()));
}

#[test]
fn a_node_claims_ahead_and_less_when_blocks_are_scarce() {
    let mut blue = pool(&["10.20.0.0/16"]);
    assert_eq!(ipam(blue.clone(), &[]).claims(110, T0)[0].blocks, 1);
    assert_eq!(
        ipam(blue.clone(), &["10.20.0.0/28"]).claims(110, T0)[0].blocks,
        1,
        "15 of 16 spare addresses"
    );
    assert_eq!(ipam(blue.clone(), &["10.20.0.16/28"]).claims(110, T0), []);
    assert_eq!(ipam(blue.clone(), &["10.20.0.0/28"]).claims(3, T0), [], "room for three more pods");
    blue.ranges[0].scarce = true;
    assert_eq!(ipam(blue.clone(), &["10.20.0.0/28"]).claims(110, T0), []);
    assert_eq!(ipam(blue.clone(), &[]).claims(110, T0)[0].blocks, 1);
    blue.ranges[0].full = true;
    assert_eq!(ipam(blue, &[]).claims(110, T0), []);
}

#[test]
fn empty_blocks_beyond_the_spare_are_handed_back() {
    let blocks = ["10.20.0.16/28", "10.20.0.32/28", "10.20.0.48/28", "10.20.0.64/28"];
    let names =
        |ipam: &Ipam| ipam.surplus(110, T0).iter().map(|block| block.cidr.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&ipam(pool(&["10.20.0.0/16"]), &blocks)), ["10.20.0.16/28", "10.20.0.32/28"]);
    let terminating = Pool { terminating: true, ..pool(&["10.20.0.0/16"]) };
    assert_eq!(names(&ipam(terminating, &blocks)).len(), 4);
    assert_eq!(names(&ipam(pool(&["10.99.0.0/16"]), &blocks)).len(), 4, "their range is gone");
}

#[test]
fn a_range_that_drains_neither_offers_addresses_nor_stands_in_for_a_new_one() {
    let mut blue = pool(&["10.20.0.0/24", "10.30.0.0/24"]);
    let mut ipam = ipam(blue.clone(), &["10.20.0.16/28"]);
    ipam.allocate("blue", &pod(1), T0).unwrap();
    blue.ranges[0].state = RangeState::Draining;
    ipam.set_pools([blue]);
    assert_eq!(
        ipam.counts("blue", T0).unwrap(),
        Counts { owned: 1, used: 1, quarantined: 0, free: 0, claimable: 0 }
    );
    let claims = ipam.claims(110, T0);
    assert_eq!((claims.len(), claims[0].range.to_string()), (1, "10.30.0.0/24".to_owned()));
}

#[test]
fn a_block_without_a_usable_address_is_handed_back() {
    let mut blue = pool(&["10.20.0.0/16"]);
    blue.ranges[0].exclude = vec!["10.20.9.0/24".parse().unwrap()];
    let ipam = ipam(blue, &["10.20.9.16/28"]);
    assert_eq!(ipam.surplus(110, T0).len(), 1);
}

#[test]
fn what_was_held_for_a_pod_that_is_gone_rests_for_its_quarantine_and_is_free_then() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &[]);
    let held = json!({ "held": [{ "address": "10.20.0.17", "pod": "ns/p", "podUID": "u" }] });
    ipam.insert_block(&block("10.20.0.16/28", &held));
    assert!(ipam.end_held(|_| false, T0).is_empty());
    assert_eq!(ipam.end_held(|uid| uid == "u", T0).len(), 1);
    let counts = |seconds| ipam.counts("blue", at(seconds)).unwrap();
    assert_eq!((counts(129).quarantined, counts(130).quarantined), (1, 0));
}

#[test]
fn what_was_given_and_not_recorded_is_taken_back() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    ipam.allocate("blue", &pod(1), T0).unwrap();
    ipam.give_back_except("pod-1", &[]);
    assert_eq!(ipam.counts("blue", T0).unwrap().used, 0);
}

#[test]
fn a_node_claims_no_more_blocks_than_it_may_own_and_says_so() {
    let blue = Pool { max_blocks: 2, ..pool(&["10.20.0.0/16"]) };
    assert_eq!(ipam(blue.clone(), &[]).claims(110, T0)[0].blocks, 1);
    let mut ipam = ipam(blue, &["10.20.0.16/28", "10.20.0.32/28"]);
    (0..32).for_each(|n| drop(ipam.allocate("blue", &pod(n), T0).unwrap()));
    assert_eq!(ipam.claims(110, T0), []);
    assert_eq!(
        ipam.allocate("blue", &pod(32), T0),
        Err(Exhausted { family: Family::V4, until: None, at_limit: true })
    );
}

#[test]
fn blocks_of_a_range_that_drains_do_not_count_against_the_limit() {
    let mut blue = Pool { max_blocks: 1, ..pool(&["10.20.0.0/24", "10.30.0.0/24"]) };
    let mut ipam = ipam(blue.clone(), &["10.20.0.16/28"]);
    ipam.allocate("blue", &pod(1), T0).unwrap();
    blue.ranges[0].state = RangeState::Draining;
    ipam.set_pools([blue]);
    assert_eq!(ipam.claims(110, T0)[0].range.to_string(), "10.30.0.0/24");
}

#[test]
fn idle_blocks_beyond_a_lowered_limit_are_handed_back() {
    let blocks = ["10.20.0.16/28", "10.20.0.32/28", "10.20.0.48/28"];
    assert_eq!(ipam(pool(&["10.20.0.0/16"]), &blocks).surplus(110, T0).len(), 1);
    let limited = Pool { max_blocks: 1, ..pool(&["10.20.0.0/16"]) };
    assert_eq!(ipam(limited, &blocks).surplus(110, T0).len(), 2);
}

#[test]
fn what_can_be_claimed_is_what_is_unclaimed_within_the_limit() {
    let mut blue = pool(&["10.20.0.0/16", "10.30.0.0/24", "fd00::/64"]);
    (blue.ranges[0].unclaimed, blue.ranges[1].unclaimed, blue.ranges[2].unclaimed) = (2, 8, 1 << 59);
    let claimable = |pool: &Pool| -> Vec<u64> {
        let ipam = ipam(pool.clone(), &["10.20.0.16/28"]);
        ipam.counts_by_family("blue", T0).unwrap().iter().map(|(_, counts)| counts.claimable).collect()
    };
    assert_eq!(claimable(&blue), [160, i64::MAX as u64]);
    blue.max_blocks = 4;
    assert_eq!(claimable(&blue), [48, 64]);
    blue.ranges[0].full = true;
    assert_eq!(claimable(&blue)[0], 48, "of the second range");
}

#[test]
fn spare_addresses_come_from_a_range_with_plenty_and_the_last_ones_of_a_scarce_one_only_in_need() {
    let mut blue = pool(&["10.20.0.0/24", "10.30.0.0/24"]);
    blue.ranges[0].scarce = true;
    let range = |ipam: &Ipam| ipam.claims(110, T0)[0].range.to_string();
    assert_eq!(
        range(&ipam(blue.clone(), &[])),
        "10.20.0.0/24",
        "nothing is free: the first range with space"
    );
    let mut ipam = ipam(blue, &["10.20.0.16/28"]);
    ipam.allocate("blue", &pod(1), T0).unwrap();
    assert_eq!(range(&ipam), "10.30.0.0/24");
}

#[test]
fn the_next_range_is_tried_when_nothing_is_found_in_the_first_and_the_first_again_later() {
    let mut ipam = ipam(pool(&["10.20.0.0/24", "10.30.0.0/24"]), &[]);
    let first = ipam.claims(110, T0).remove(0);
    ipam.found_nothing(&first, T0);
    assert_eq!(ipam.claims(110, T0)[0].range.to_string(), "10.30.0.0/24");
    assert_eq!(ipam.claims(110, at(20))[0], first);
    let second = ipam.claims(110, T0).remove(0);
    ipam.found_nothing(&second, T0);
    assert_eq!(ipam.claims(110, T0)[0], first, "with nothing anywhere the order counts again");
}

#[test]
fn the_range_that_is_used_last_is_handed_back_first() {
    let blocks = ["10.20.0.16/28", "10.20.0.32/28", "10.99.0.16/28"];
    let ipam = ipam(pool(&["10.99.0.0/24", "10.20.0.0/24"]), &blocks);
    let surplus: Vec<String> = ipam.surplus(110, T0).iter().map(|block| block.cidr.to_string()).collect();
    assert_eq!(surplus, ["10.20.0.16/28"]);
}

#[test]
fn an_address_that_is_excluded_while_in_use_stays_with_its_pod_and_is_never_handed_out_again() {
    let mut blue = pool(&["10.20.0.0/24"]);
    let mut ipam = ipam(blue.clone(), &["10.20.0.16/28"]);
    let held = ipam.allocate("blue", &pod(1), T0).unwrap();
    blue.ranges[0].exclude = vec!["10.20.0.16/29".parse().unwrap()];
    ipam.set_pools([blue]);
    assert_eq!(ipam.allocate("blue", &pod(1), T0).unwrap(), held, "asking again gives the same");
    assert_eq!(
        ipam.counts("blue", T0).unwrap(),
        Counts { owned: 9, used: 1, quarantined: 0, free: 8, claimable: 0 }
    );
    ipam.quarantine(&held[0], &pod(1), T0);
    assert_eq!(
        ipam.counts("blue", T0).unwrap(),
        Counts { owned: 8, used: 0, quarantined: 0, free: 8, claimable: 0 }
    );
    let got: Vec<_> =
        (2..10).flat_map(|n| addresses(&ipam.allocate("blue", &pod(n), at(1000)).unwrap())).collect();
    assert!(!got.contains(&held[0].address.to_string()));
    assert!(ipam.allocate("blue", &pod(10), at(1000)).is_err());
}

#[test]
fn a_block_that_was_full_hands_out_again_what_was_given_back_and_what_has_rested() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let held: Vec<_> = (0..16).map(|n| ipam.allocate("blue", &pod(n), T0).unwrap()).collect();
    assert!(ipam.allocate("blue", &pod(16), T0).is_err());
    ipam.give_back(&held[3], &pod(3));
    assert!(ipam.allocate("blue", &pod(16), T0).is_ok());
    assert!(ipam.allocate("blue", &pod(17), T0).is_err());
    ipam.quarantine(&held[4][0], &pod(4), T0);
    assert_eq!(ipam.allocate("blue", &pod(17), T0).unwrap_err().until, Some(at(130)));
    assert!(ipam.allocate("blue", &pod(17), at(130)).is_ok());
}

proptest! {
    /// Any order of allocating and freeing, with the clock going on: no address has two holders, none is
    /// reused before its quarantine is over, and all are free again in the end.
    #[test]
    fn addresses_are_never_shared_nor_reused_early(steps in proptest::collection::vec((0usize..40, 0i64..60, any::<bool>()), 1..200)) {
        let mut ipam = ipam(pool(&["10.20.0.0/24", "fd00::/64"]), &["10.20.0.0/28", "10.20.0.16/28", "fd00::/124", "fd00::10/124"]);
        let mut clock = 0;
        let mut held: BTreeMap<usize, Vec<HeldAddress>> = BTreeMap::new();
        let mut freed: BTreeMap<IpAddr, i64> = BTreeMap::new();
        for (n, seconds, take) in steps {
            clock += seconds;
            if take {
                let Ok(got) = ipam.allocate("blue", &pod(n), at(clock)) else { continue };
                if held.contains_key(&n) { prop_assert_eq!(&held[&n], &got); continue }
                for address in got.iter().map(|held| held.address.addr()) {
                    prop_assert!(held.values().flatten().all(|other| other.address.addr() != address));
                    prop_assert!(freed.get(&address).is_none_or(|at| clock - at >= 130));
                }
                held.insert(n, got);
            } else if let Some(got) = held.remove(&n) {
                got.iter().for_each(|held| ipam.quarantine(held, &pod(n), at(clock)));
                freed.extend(got.iter().map(|held| (held.address.addr(), clock)));
            }
        }
        for (n, got) in &held {
            got.iter().for_each(|held| ipam.quarantine(held, &pod(*n), at(clock)));
        }
        let end = ipam.counts("blue", at(clock + 130)).unwrap();
        prop_assert_eq!((end.used, end.quarantined, end.free), (0, 0, end.owned));
    }
}

const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 1]);

#[test]
fn an_address_that_a_stranger_has_is_left_out_for_a_while_and_survives_a_restart() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let first = ipam.allocate("blue", &pod(1), T0).unwrap();
    ipam.conflict(&first[0], &pod(1), STRANGER, T0);
    assert!(ipam.is_conflicting(&first[0], T0));
    let second = ipam.allocate("blue", &pod(1), T0).unwrap();
    assert_ne!(first, second, "the pod gets another address at once");
    let counts = ipam.counts("blue", T0).unwrap();
    assert_eq!((counts.owned, counts.used, counts.quarantined, counts.free), (16, 1, 1, 14));

    let list = ipam.block(&first[0].block).unwrap().conflict_list(T0);
    assert_eq!((list[0].mac, list[0].retry_after.0), (STRANGER, at(600)));
    let mut again = super::Ipam::default();
    again.set_pools([self::pool(&["10.20.0.0/24"])]);
    again.insert_block(&block("10.20.0.16/28", &json!({ "conflicts": list })));
    assert!(again.is_conflicting(&first[0], at(599)));
    let taken: Vec<_> = (0..16).filter_map(|n| again.allocate("blue", &pod(n), at(599)).ok()).collect();
    assert_eq!(taken.len(), 15);
    assert!(!taken.contains(&first));
    assert_eq!(
        again.allocate("blue", &pod(99), at(600)).unwrap(),
        first,
        "tried again when the time is over"
    );
}

#[test]
fn a_block_with_a_stranger_is_kept_until_that_is_forgotten_or_nothing_needs_the_block() {
    let mut ipam = ipam(Pool { max_blocks: 0, ..pool(&["10.20.0.0/24"]) }, &["10.20.0.16/28"]);
    let held = ipam.allocate("blue", &pod(1), T0).unwrap();
    ipam.conflict(&held[0], &pod(2), STRANGER, T0);
    assert!(!ipam.is_conflicting(&held[0], T0), "only its owner can have asked");
    ipam.conflict(&held[0], &pod(1), STRANGER, T0);
    assert_eq!((ipam.surplus(110, at(599)).len(), ipam.surplus(110, at(600)).len()), (0, 1));
    ipam.set_pools([]);
    assert_eq!(ipam.surplus(110, T0).len(), 1);
}

#[test]
fn what_is_in_quarantine_is_told_unless_another_space_uses_the_address() {
    let mut ipam = ipam(pool(&["10.20.0.0/24"]), &["10.20.0.16/28"]);
    let held = ipam.allocate("blue", &pod(1), T0).unwrap();
    ipam.quarantine(&held[0], &pod(1), T0);
    let address = held[0].address.addr();
    assert_eq!(ipam.quarantined(at(1)), [("blue".to_owned(), address, at(130))]);
    assert_eq!(ipam.quarantined(at(131)), []);

    let mut other = block("10.20.0.16/28", &json!({}));
    other.metadata.name = Some("other-10-20-0-16-28".into());
    ipam.insert_block(&other);
    let elsewhere = HeldAddress { block: "other-10-20-0-16-28".into(), ..held[0].clone() };
    assert!(ipam.restore(&elsewhere, &pod(2)) && ipam.quarantined(at(1)).is_empty());
}
