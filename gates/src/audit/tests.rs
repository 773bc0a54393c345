//! One cluster in which everything agrees, and every way in which it can stop to.

use fairlead_crds::admission::HeldBy;
use fairlead_crds::{FindingCode, IPBlock, Network, NodeNetwork, PodNetwork};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::world::{Lease, Pod};
use super::*;
use crate::controller::compile;

const NOW: i64 = 1_000_000;

fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).unwrap()
}

fn time(second: i64) -> String {
    at(second).to_string()
}

fn network(name: &str, cidr: &str) -> Network {
    let object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network",
        "metadata": { "name": name, "uid": format!("{name}-uid"), "finalizers": ["fairlead.dev/in-use"] },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                  "ipam": { "ranges": [{ "cidr": cidr }], "quarantine": "30s" } },
        "status": { "ranges": [{ "cidr": cidr, "blockPrefix": 28, "state": "Admitted" }],
                    "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "m", "lastTransitionTime": time(1) }] }
    });
    serde_json::from_value(object).unwrap()
}

fn block(name: &str, cidr: &str, node: &str) -> IPBlock {
    let object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock",
        "metadata": { "name": name, "uid": format!("{name}-uid"), "finalizers": ["fairlead.dev/owned"] },
        "spec": { "space": "default", "network": "blue", "networkUID": "blue-uid", "nodeName": node, "cidr": cidr },
        "status": { "quarantined": [{ "address": "10.0.0.9", "until": time(NOW + 20), "podUID": "old", "interface": "net1" }] }
    });
    serde_json::from_value(object).unwrap()
}

fn record(pod: &str, address: &str, mac: &str) -> PodNetwork {
    let object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork",
        "metadata": { "name": pod, "namespace": "ns", "uid": format!("record-{pod}"), "finalizers": ["fairlead.dev/release"] },
        "spec": { "podName": pod, "podUID": format!("{pod}-uid"), "nodeName": "node1", "attachments": [{
            "network": "blue", "networkUID": "blue-uid", "interface": "net1", "mac": mac,
            "addresses": [{ "address": format!("{address}/24"), "block": "one", "blockUID": "one-uid" }] }] },
        "status": { "interfaces": [{ "network": "blue", "interfaceName": "net1", "ips": [format!("{address}/24")], "hardwareAddress": mac, "mtu": 1500 }],
                    "conditions": [{ "type": "Ready", "status": "True", "reason": "Attached", "message": "m", "lastTransitionTime": time(1) }] }
    });
    serde_json::from_value(object).unwrap()
}

fn pod(name: &str) -> Pod {
    Pod {
        name: format!("ns/{name}"),
        uid: format!("{name}-uid"),
        node: Some("node1".into()),
        ready: true,
        requests: [("blue".to_owned(), 1)].into(),
        ..Pod::default()
    }
}

fn offer(promised: u64) -> NodeNetwork {
    let object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeNetwork",
        "metadata": { "name": "node1", "managedFields": [{ "manager": "agent", "subresource": "status", "time": time(NOW - 100) }] },
        "spec": {},
        "status": { "networks": [{ "name": "blue", "ready": true, "owned": 15, "used": 2, "quarantined": 1, "free": 12, "promised": promised }] }
    });
    serde_json::from_value(object).unwrap()
}

fn node(resource: Option<u64>) -> (crate::controller::model::Node, Vec<String>) {
    let number: Value =
        resource.map_or(json!({}), |number| json!({ "fairlead.dev/net-blue": number.to_string() }));
    let node: core::Node = serde_json::from_value(
        json!({ "metadata": { "name": "node1" }, "status": { "capacity": number, "allocatable": number } }),
    )
    .unwrap();
    (node.into(), Vec::new())
}

/// Two pods on one node that owns 10.0.0.0/28; 10.0.0.0 is never handed out.
fn world() -> World {
    let networks = vec![network("blue", "10.0.0.0/24")];
    let admission =
        fairlead_crds::Admission::new("default", compile::compile(&networks, &|_| false, HeldBy::Gate));
    World {
        now: at(NOW),
        taint_prefix: fairlead_crds::names::TAINT_PREFIX.to_owned(),
        networks,
        blocks: vec![block("one", "10.0.0.0/28", "node1")],
        records: vec![
            record("a", "10.0.0.1", "02:00:00:00:00:01"),
            record("b", "10.0.0.2", "02:00:00:00:00:02"),
        ],
        offers: vec![offer(14)],
        admission: Some(admission),
        pods: vec![pod("a"), pod("b")],
        nodes: vec![node(Some(14))],
        leases: vec![Lease { node: "node1".into(), renewed: Some(at(NOW - 5)) }],
    }
}

/// The codes of what is found once something was changed, each once.
fn found(change: impl FnOnce(&mut World)) -> Vec<FindingCode> {
    let mut world = world();
    change(&mut world);
    let mut codes: Vec<FindingCode> = audit(&world).into_iter().map(|finding| finding.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn stamp(second: i64) -> Time {
    Time(at(second))
}

#[test]
fn where_everything_agrees_nothing_is_found() {
    assert_eq!(audit(&world()), []);
}

#[test]
fn one_address_or_hardware_address_in_two_records() {
    let twice = |w: &mut World| {
        w.records[1].spec.attachments[0].addresses[0].address = "10.0.0.1/24".parse().unwrap();
    };
    assert!(found(twice).contains(&FindingCode::AddressTwice));
    let mac = |w: &mut World| w.records[1].spec.attachments[0].mac = "02:00:00:00:00:01".parse().unwrap();
    assert!(found(mac).contains(&FindingCode::MacTwice));
}

#[test]
fn an_address_that_its_block_does_not_have_or_keeps_for_another() {
    let outside = |w: &mut World| {
        w.records[0].spec.attachments[0].addresses[0].address = "10.0.0.77/24".parse().unwrap();
    };
    assert!(found(outside).contains(&FindingCode::AddressOutsideBlock));
    let rests = |w: &mut World| {
        w.records[0].spec.attachments[0].addresses[0].address = "10.0.0.9/24".parse().unwrap();
    };
    assert!(found(rests).contains(&FindingCode::AddressNotFree));
    let over = |w: &mut World| {
        rests(w);
        w.blocks[0].status.as_mut().unwrap().quarantined[0].until.0 = at(NOW - 1);
    };
    assert!(!found(over).contains(&FindingCode::AddressNotFree), "its time was over");
    let own = |w: &mut World| {
        rests(w);
        w.blocks[0].status.as_mut().unwrap().quarantined[0].pod_uid = "a-uid".into();
    };
    assert!(!found(own).contains(&FindingCode::AddressNotFree), "it is just being released");
}

#[test]
fn a_block_that_is_unknown_anew_or_of_another() {
    assert!(found(|w| w.blocks[0].metadata.uid = Some("new".into())).contains(&FindingCode::BlockUnknown));
    assert!(found(|w| w.blocks.clear()).contains(&FindingCode::BlockUnknown));
    assert!(found(|w| w.blocks[0].spec.network_uid = "other".into()).contains(&FindingCode::BlockForeign));
    assert!(found(|w| w.blocks[0].spec.node_name = "node2".into()).contains(&FindingCode::BlockForeign));
}

#[test]
fn blocks_and_ranges_that_overlap() {
    let inner = |w: &mut World| w.blocks.push(block("inner", "10.0.0.4/30", "node1"));
    assert!(found(inner).contains(&FindingCode::BlocksOverlap));
    let other_space = |w: &mut World| {
        inner(w);
        w.blocks[1].spec.space = "other".into();
    };
    assert!(!found(other_space).contains(&FindingCode::BlocksOverlap));
    let shared = |w: &mut World| w.networks.push(network("red", "10.0.0.128/25"));
    assert!(found(shared).contains(&FindingCode::RangesOverlap));
    let left_out = |w: &mut World| {
        shared(w);
        w.networks[0].status.as_mut().unwrap().ranges[0].exclude = vec!["10.0.0.128/25".parse().unwrap()];
    };
    assert!(!found(left_out).contains(&FindingCode::RangesOverlap));
}

#[test]
fn a_block_outside_of_all_ranges_or_without_a_network() {
    assert!(
        found(|w| w.networks[0].status.as_mut().unwrap().ranges.clear())
            .contains(&FindingCode::BlockOutsideRanges)
    );
    let unrecorded = |w: &mut World| {
        w.networks.clear();
        w.records.clear();
    };
    let rested = |w: &mut World| {
        unrecorded(w);
        w.blocks[0].status.as_mut().unwrap().quarantined[0].until.0 = at(NOW - 1);
    };
    assert!(found(|w| w.networks.clear()).contains(&FindingCode::NetworkMissing));
    assert!(found(rested).contains(&FindingCode::NetworkMissing));
    assert!(!found(unrecorded).contains(&FindingCode::NetworkMissing));
}

#[test]
fn records_that_are_left_missing_misplaced_or_twice() {
    assert_eq!(found(|w| w.pods.truncate(1)), [FindingCode::RecordLeaked]);
    let lately = |w: &mut World| {
        w.pods.truncate(1);
        w.records[1].metadata.deletion_timestamp = Some(stamp(NOW - records::LEAK + 1));
    };
    assert_eq!(found(lately), [], "it is being released");
    assert_eq!(found(|w| w.pods[1].over = Some(at(NOW - records::LEAK))), [FindingCode::RecordLeaked]);
    assert_eq!(found(|w| w.pods[1].over = Some(at(NOW - 1))), []);
    assert!(found(|w| w.records.truncate(1)).contains(&FindingCode::RecordMissing));
    assert!(found(|w| w.pods[1].node = Some("node2".into())).contains(&FindingCode::RecordMisplaced));
    assert!(found(|w| w.records[1].spec.pod_uid = "a-uid".into()).contains(&FindingCode::RecordTwice));
}

#[test]
fn a_status_that_lists_other_interfaces_than_the_record_holds() {
    assert_eq!(
        found(|w| w.records[0].status.as_mut().unwrap().interfaces.clear()),
        [FindingCode::StatusDiffers]
    );
    let mac = |w: &mut World| {
        w.records[0].status.as_mut().unwrap().interfaces[0].hardware_address =
            "02:00:00:00:00:09".parse().unwrap();
    };
    assert_eq!(found(mac), [FindingCode::StatusDiffers]);
    let waits = |w: &mut World| {
        mac(w);
        w.records[0].status.as_mut().unwrap().conditions[0].status = "False".into();
    };
    assert_eq!(found(waits), [], "it does not say that it is ready");
}

#[test]
fn finalizers_that_are_missing_or_keep_nothing() {
    for change in [
        |w: &mut World| w.records[0].metadata.finalizers = None,
        |w: &mut World| w.blocks[0].metadata.finalizers = None,
        |w: &mut World| w.networks[0].metadata.finalizers = None,
    ] {
        assert_eq!(found(change), [FindingCode::FinalizerMissing]);
    }
    assert_eq!(found(|w| w.pods[0].finalizers.push("fairlead.dev/x".into())), [FindingCode::FinalizerLeft]);
    let unused = |w: &mut World| {
        w.networks.push(network("red", "10.9.0.0/24"));
        w.networks[1].metadata.deletion_timestamp = Some(stamp(NOW - 100));
    };
    assert_eq!(found(unused), [FindingCode::FinalizerLeft]);
    let empty = |w: &mut World| {
        let mut empty = block("empty", "10.0.0.16/28", "node1");
        empty.status = None;
        empty.metadata.deletion_timestamp = Some(stamp(NOW - 100));
        w.blocks.push(empty);
    };
    assert_eq!(found(empty), [FindingCode::FinalizerLeft]);
}

#[test]
fn what_is_left_of_a_node_that_does_not_exist() {
    let gone = |w: &mut World| {
        w.nodes.clear();
        w.leases[0].renewed = Some(at(NOW - 1000));
    };
    assert!(found(gone).contains(&FindingCode::NodeGone));
    assert!(!found(|w| w.nodes.clear()).contains(&FindingCode::NodeGone), "its agent was heard of just now");
}

#[test]
fn quarantines_and_kept_addresses_that_do_not_end() {
    let long = |w: &mut World| w.blocks[0].status.as_mut().unwrap().quarantined[0].until.0 = at(NOW + 10_000);
    assert_eq!(found(long), [FindingCode::QuarantineTooLong]);
    let kept = |w: &mut World| {
        let status = json!({ "held": [{ "address": "10.0.0.9", "pod": "ns/old", "podUID": "old", "since": time(NOW - 1000) }] });
        w.blocks[0].status = serde_json::from_value(status).unwrap();
    };
    assert_eq!(found(kept), [FindingCode::HeldTooLong]);
    let silent = |w: &mut World| {
        kept(w);
        w.leases[0].renewed = Some(at(NOW - 1000));
    };
    assert_eq!(found(silent), [], "its agent is not back");
}

#[test]
fn a_reserved_address_out_of_turn_or_whose_turn_does_not_end() {
    let reserved = |w: &mut World, holder: &str| {
        let mut reserved = block("web-0", "10.0.0.32/32", "node1");
        reserved.spec.claim = serde_json::from_value(json!({ "pod": "ns/a", "statefulSet": "web" })).unwrap();
        reserved.spec.holder = serde_json::from_value(json!({ "podUID": holder, "turn": 2 })).unwrap();
        reserved.status =
            serde_json::from_value(json!({ "released": { "turn": 1, "at": time(1) } })).unwrap();
        w.networks[0].status.as_mut().unwrap().ranges.push(
            serde_json::from_value(json!({ "cidr": "10.0.0.32/28", "blockPrefix": 32, "state": "Admitted" }))
                .unwrap(),
        );
        w.blocks.push(reserved);
    };
    let holds = |w: &mut World, holder: &str| {
        reserved(w, holder);
        let held = json!({ "address": "10.0.0.32/24", "block": "web-0", "blockUID": "web-0-uid" });
        w.records[0].spec.attachments[0].addresses[0] = serde_json::from_value(held).unwrap();
    };
    assert!(!found(|w| holds(w, "a-uid")).contains(&FindingCode::AddressNotFree));
    assert!(found(|w| holds(w, "b-uid")).contains(&FindingCode::AddressNotFree));
    let ended = |w: &mut World| {
        holds(w, "a-uid");
        w.blocks[1].status.as_mut().unwrap().released.as_mut().unwrap().turn = 2;
    };
    assert!(found(ended).contains(&FindingCode::AddressNotFree), "nobody's turn");
    assert!(
        !found(|w| reserved(w, "b-uid")).contains(&FindingCode::HeldTooLong),
        "its pod may come to it yet"
    );
    assert!(found(|w| reserved(w, "gone-uid")).contains(&FindingCode::HeldTooLong));
    let silent = |w: &mut World| {
        reserved(w, "gone-uid");
        w.leases[0].renewed = Some(at(NOW - 1000));
    };
    assert!(!found(silent).contains(&FindingCode::HeldTooLong), "its agent is not back");
}

#[test]
fn counts_that_differ_once_the_agent_had_time_to_write_them() {
    assert_eq!(found(|w| w.blocks[0].status = None), [FindingCode::CountsDiffer]);
    let lately = |w: &mut World| {
        w.blocks[0].status = None;
        w.offers[0].metadata.managed_fields.as_mut().unwrap()[0].time = Some(stamp(NOW - 10));
    };
    assert_eq!(found(lately), []);
}

#[test]
fn resources_and_taints_that_are_not_what_is_promised() {
    assert_eq!(found(|w| w.nodes = vec![node(None)]), [FindingCode::ResourceDiffers]);
    assert_eq!(found(|w| w.nodes = vec![node(Some(40))]), [FindingCode::ResourceDiffers]);
    assert_eq!(found(|w| w.nodes = vec![node(Some(1))]), [FindingCode::ResourceTooSmall]);
    let stray = |w: &mut World| {
        let taint = json!([{ "key": "ip-exhausted.fairlead.dev/blue", "effect": "NoSchedule" }]);
        w.nodes[0].0.taints = serde_json::from_value(taint).unwrap();
    };
    assert_eq!(found(stray), [FindingCode::TaintDiffers]);
}

#[test]
fn the_admission_is_missing_or_says_something_else() {
    assert_eq!(found(|w| w.admission = None), [FindingCode::AdmissionDiffers]);
    assert_eq!(
        found(|w| w.admission.as_mut().unwrap().spec.networks.clear()),
        [FindingCode::AdmissionDiffers]
    );
    assert_eq!(
        found(|w| {
            w.records.clear();
            w.admission.as_mut().unwrap().spec.uninstalling = true;
        }),
        []
    );
}
