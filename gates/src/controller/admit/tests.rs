use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

fn network(name: &str, age: u32, edit: &Value) -> Network {
    let mut object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network",
        "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": 1, "resourceVersion": "7",
                      "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", 59 - age) },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                  "ipam": { "ranges": [{ "cidr": "10.0.0.0/24" }] } }
    });
    json_patch::merge(&mut object, edit);
    serde_json::from_value(object).unwrap()
}

struct Case {
    networks: Vec<Network>,
    blocks: Vec<Block>,
    users: Users,
}

impl Case {
    fn of(networks: Vec<Network>) -> Self {
        Self { networks, blocks: vec![], users: Users::default() }
    }

    fn run(&self) -> BTreeMap<String, Plan> {
        let start = Instant::now();
        let settling = Settling::new(start);
        let node = Node { name: "node1".into(), schedulable: true, ..Node::default() };
        let plans = plan(&World {
            networks: &self.networks,
            blocks: &self.blocks.iter().collect::<Vec<_>>(),
            nodes: &[&node],
            used: &BTreeSet::new(),
            users: &self.users,
            settling: &settling,
            instant: start + crate::controller::settle::SETTLE,
            now: Time("2026-11-21T10:00:00Z".parse().unwrap()),
        });
        plans.into_iter().map(|plan| (plan.name.clone(), plan)).collect()
    }

    /// Runs until nothing changes, writing every status: what a cluster would end up with.
    fn settle(mut self) -> BTreeMap<String, Plan> {
        for _ in 0..5 {
            let plans = self.run();
            for network in &mut self.networks {
                network.status = Some(plans[network.metadata.name.as_deref().unwrap()].status.clone());
            }
        }
        self.run()
    }
}

fn accepted(plan: &Plan) -> (&str, &str) {
    let condition = plan.status.conditions.iter().find(|c| c.type_ == "Accepted").unwrap();
    (condition.reason.as_str(), condition.message.as_str())
}

#[test]
fn a_good_network_is_accepted_with_driver_reach_and_range_and_held() {
    let plans = Case::of(vec![network("blue", 0, &json!({}))]).run();
    let plan = &plans["blue"];
    assert_eq!(accepted(plan).0, "Accepted");
    assert_eq!((plan.status.driver.as_deref(), plan.status.observed_generation), (Some("bridge"), Some(1)));
    assert_eq!(plan.status.reach, Some(fairlead_crds::network::Reach::Node));
    assert!(plan.needs_finalizer && plan.admits && plan.urgency == Urgency::Now);
}

#[test]
fn of_two_overlapping_networks_the_older_is_accepted_and_named_to_the_younger() {
    for (old, young) in [("a", "b"), ("b", "a")] {
        let plans = Case::of(vec![network(young, 1, &json!({})), network(old, 2, &json!({}))]).run();
        assert_eq!(accepted(&plans[old]).0, "Accepted");
        let (reason, message) = accepted(&plans[young]);
        assert_eq!(reason, "RangeOverlap");
        assert_eq!(message, format!("10.0.0.0/24 overlaps 10.0.0.0/24 of network {old} in space default"));
        assert!(!plans[young].needs_finalizer);
    }
}

#[test]
fn a_network_that_has_a_range_keeps_it_against_an_older_one_that_wants_it_now() {
    let status = json!({ "status": { "ranges": [{ "cidr": "10.0.0.0/24", "blockPrefix": 28, "state": "Admitted", "scarce": false, "full": false }] } });
    let plans = Case::of(vec![network("older", 9, &json!({})), network("newer", 1, &status)]).run();
    assert_eq!(accepted(&plans["older"]).0, "RangeOverlap");
    assert_eq!(accepted(&plans["newer"]).0, "Accepted");
}

#[test]
fn a_settled_status_is_not_written_again() {
    let plans = Case::of(vec![network("blue", 0, &json!({})), network("red", 1, &json!({}))]).settle();
    assert!(plans.values().all(|plan| plan.urgency == Urgency::None && !plan.admits), "{plans:?}");
}

#[test]
fn a_network_without_address_management_is_accepted_too() {
    let plans = Case::of(vec![network("l2", 0, &json!({ "spec": { "ipam": null } }))]).run();
    assert_eq!(accepted(&plans["l2"]).0, "Accepted");
    assert!(plans["l2"].needs_finalizer);
}

#[test]
fn a_field_that_is_not_built_keeps_new_ranges_out_and_admitted_ones_in() {
    let edit = json!({ "spec": { "bridge": { "antiSpoof": true } } });
    let plans = Case::of(vec![network("blue", 0, &edit)]).run();
    assert_eq!((accepted(&plans["blue"]).0, plans["blue"].status.ranges.len()), ("FieldNotYetSupported", 0));
    let mut edit = edit;
    edit["status"] = json!({ "ranges": [{ "cidr": "10.0.0.0/24", "blockPrefix": 28, "state": "Admitted" }] });
    let plans = Case::of(vec![network("blue", 0, &edit)]).run();
    assert_eq!(plans["blue"].status.ranges[0].state, RangeState::Admitted);
}

#[test]
fn the_257th_network_is_refused_and_the_others_are_not() {
    let many =
        (0..257).map(|n| network(&format!("n{n:03}"), 0, &json!({ "spec": { "ipam": null } }))).collect();
    let plans = Case::of(many).settle();
    let refused: Vec<_> =
        plans.values().filter(|plan| accepted(plan).0 == "TooManyNetworks").map(|plan| &plan.name).collect();
    assert_eq!(refused, ["n256"]);
}

#[test]
fn attach_rules_are_counted_over_all_networks() {
    let rules: Vec<_> = (0..16).map(|_| json!({ "podSelector": {} })).collect();
    let many = (0..17)
        .map(|n| network(&format!("n{n:02}"), 0, &json!({ "spec": { "ipam": null, "attach": rules } })))
        .collect();
    let plans = Case::of(many).run();
    assert_eq!(plans.values().filter(|plan| accepted(plan).0 == "TooManyNetworks").count(), 1);
}

#[test]
fn flags_alone_are_written_lazily_and_a_block_makes_the_network_used() {
    let mut case = Case::of(vec![network("blue", 0, &json!({}))]);
    case.networks[0].status = Some(case.run()["blue"].status.clone());
    case.blocks = (0..16)
        .map(|n| Block {
            name: n.to_string(),
            space: "default".into(),
            network: "blue".into(),
            network_uid: "uid-blue".into(),
            node: "node1".into(),
            cidr: format!("10.0.0.{}/28", n * 16).parse().unwrap(),
            reserved: None,
        })
        .collect();
    let plan = &case.run()["blue"];
    assert_eq!(plan.urgency, Urgency::Lazy);
    assert!(
        plan.status.ranges[0].full
            && plan.status.conditions.iter().any(|c| c.type_ == "InUse" && c.status == "True")
    );
}

#[test]
fn a_terminating_network_says_what_is_left_and_gets_no_finalizer() {
    let mut case = Case::of(vec![network(
        "blue",
        0,
        &json!({ "metadata": { "deletionTimestamp": "2026-11-21T10:00:00Z" } }),
    )]);
    case.users = Users::count(&case.networks, &[record("a", "10.0.0.5"), record("b", "10.0.0.6")]);
    let plan = &case.run()["blue"];
    let in_use = plan.status.conditions.iter().find(|c| c.type_ == "InUse").unwrap();
    assert_eq!(
        in_use.message,
        "attachments of pods left: 2, of 2 pods (ns/a, ns/b); address blocks of nodes left: 0"
    );
    assert!(!plan.needs_finalizer && !plan.admits && plan.status.ranges.is_empty());
}

#[test]
fn a_changed_condition_keeps_its_time_until_its_status_changes() {
    let mut case = Case::of(vec![network("blue", 0, &json!({}))]);
    let mut status = case.run()["blue"].status.clone();
    let before = Time("2020-01-01T00:00:00Z".parse().unwrap());
    status.conditions.iter_mut().for_each(|condition| condition.last_transition_time = before.clone());
    case.networks[0].status = Some(status);
    case.networks[0].metadata.generation = Some(2);
    let plan = &case.run()["blue"];
    assert!(
        plan.status
            .conditions
            .iter()
            .all(|c| c.last_transition_time == before && c.observed_generation == Some(2))
    );
}

fn record(pod: &str, address: &str) -> fairlead_crds::PodNetwork {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork", "metadata": { "namespace": "ns", "name": pod },
        "spec": { "podName": pod, "podUID": pod, "nodeName": "n", "attachments": [{
            "network": "blue", "networkUID": "uid-blue", "interface": "net1", "mac": "02:00:00:00:00:01",
            "addresses": [{ "address": format!("{address}/24"), "block": "b", "blockUID": "bu" }] }] }
    }))
    .unwrap()
}

/// A range that a network wants and has.
fn having(cidr: &str, prefix: u8) -> Value {
    json!({ "spec": { "ipam": { "ranges": [{ "cidr": cidr }] } },
            "status": { "ranges": [{ "cidr": cidr, "blockPrefix": prefix, "state": "Admitted" }] } })
}

/// A network that was accepted with 10.0.0.0/24 and whose spec has these ranges now.
fn edited(ranges: &Value) -> Network {
    let accepted = json!([{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let status = json!({ "ranges": [{ "cidr": "10.0.0.0/24", "blockPrefix": 28, "state": "Admitted" }], "conditions": accepted });
    network("blue", 0, &json!({ "spec": { "ipam": { "ranges": ranges } }, "status": status }))
}

#[test]
fn a_range_that_cannot_be_added_does_not_stop_what_works() {
    let red = network("red", 9, &having("10.7.0.0/24", 28));
    let blue = edited(&json!([{ "cidr": "10.0.0.0/24" }, { "cidr": "10.7.0.0/25" }]));
    let plan = &Case::of(vec![red, blue]).settle()["blue"];
    let condition = plan.status.conditions.iter().find(|c| c.type_ == "Accepted").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "RangeOverlap"));
    assert!(condition.message.ends_with("the other ranges stay in use"), "{}", condition.message);
    assert_eq!(plan.status.ranges[1].state, RangeState::Refused);
}

#[test]
fn a_range_that_is_narrowed_while_in_use_drains_and_the_pods_are_named() {
    let mut case = Case::of(vec![edited(&json!([{ "cidr": "10.0.0.0/25" }]))]);
    case.blocks.push(Block {
        name: "b".into(),
        space: "default".into(),
        network: "blue".into(),
        network_uid: "uid-blue".into(),
        node: "node1".into(),
        cidr: "10.0.0.0/28".parse().unwrap(),
        reserved: None,
    });
    let message = |case: &Case, kind: &str| {
        let plan = case.run().remove("blue").unwrap();
        let condition = plan.status.conditions.iter().find(|c| c.type_ == kind).unwrap().clone();
        (condition.status, condition.reason, condition.message)
    };
    let (status, reason, why) = message(&case, "Accepted");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "RangeOverlap"));
    assert!(why.starts_with("10.0.0.0/25 overlaps 10.0.0.0/24, which was removed from the network"), "{why}");
    case.networks[0].status = Some(case.run()["blue"].status.clone());
    assert!(message(&case, "Draining").2.contains("are being counted"));
    case.users = Users::count(&case.networks, &[record("web-0", "10.0.0.5")]);
    assert_eq!(
        message(&case, "Draining"),
        (
            "True".into(),
            "RangeInUse".into(),
            "10.0.0.0/24 was removed, and its addresses are held by 1 pod (ns/web-0); address blocks of nodes left: 1"
                .into()
        )
    );
}

#[test]
fn an_edit_never_takes_one_of_two_families_silently() {
    let blue = edited(&json!([{ "cidr": "10.0.0.0/24" }, { "cidr": "fd00::/64" }]));
    let red = network("red", 9, &having("fd00::/60", 124));
    let plan = &Case::of(vec![red, blue]).settle()["blue"];
    let condition = plan.status.conditions.iter().find(|c| c.type_ == "Accepted").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "RangeOverlap"));
}

#[test]
fn totals_stand_in_the_status_and_follow_lazily() {
    let mut case = Case::of(vec![network("blue", 0, &json!({}))]);
    let status = case.run()["blue"].status.clone();
    assert_eq!((status.addresses, status.unclaimed, status.ranges[0].unclaimed), (Some(254), Some(254), 16));
    case.networks[0].status = Some(status);
    case.blocks = (0..9)
        .map(|n| Block {
            name: n.to_string(),
            space: "default".into(),
            network: "blue".into(),
            network_uid: "uid-blue".into(),
            node: "node1".into(),
            cidr: format!("10.0.0.{}/28", n * 16).parse().unwrap(),
            reserved: None,
        })
        .collect();
    let plan = &case.run()["blue"];
    assert_eq!(
        (plan.status.ranges[0].unclaimed, plan.status.unclaimed, plan.urgency),
        (4, Some(64), Urgency::Lazy)
    );
}

mod race;
