use std::time::Duration;

use fairlead_crds::request;
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::ipam::owner;

fn network() -> Network {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue", "uid": "n" },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" }, "allowStatic": true,
                  "ipam": { "ranges": [], "identity": "StatefulSet" } },
        "status": { "ranges": [
            { "cidr": "10.0.0.0/24", "blockPrefix": 32, "use": "Pods", "state": "Admitted", "exclude": ["10.0.0.0/29"] },
            { "cidr": "10.0.0.0/29", "blockPrefix": 32, "use": "Reserved", "state": "Admitted" },
        ] }
    }))
    .unwrap()
}

fn block(pod_uid: &str, turn: i64, released: i64) -> IPBlock {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock",
        "metadata": { "name": "default-10-0-0-3-32", "uid": "b" },
        "spec": { "space": "default", "network": "blue", "networkUID": "n", "nodeName": "node1", "cidr": "10.0.0.3/32",
                  "claim": { "pod": "team/web-0", "statefulSet": "web" }, "holder": { "podUID": pod_uid, "turn": turn } },
        "status": { "released": { "turn": released, "at": "2026-01-01T00:00:00Z" } },
    }))
    .unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000).unwrap()
}

fn ipam(block: &IPBlock) -> Ipam {
    let mut ipam = Ipam::default();
    ipam.set_pools(Pool::of(&network()));
    ipam.insert_block(block);
    ipam
}

fn net1(uid: &str) -> Owner {
    owner(uid, &"net1".parse().unwrap())
}

/// Takes what `request` asks for as a pod of the `StatefulSet` web.
fn take(ipam: &mut Ipam, request: &str, uid: &str) -> Option<String> {
    let request = request::parse(request).unwrap().remove(0);
    let ask = reserved::asks(&network(), &request, Some("web")).unwrap().remove(0);
    ipam.take_reserved(&network(), &ask, 0, &net1(uid), now()).map(|held| held.address.to_string())
}

#[test]
fn only_the_pod_that_a_turn_is_for_takes_the_address() {
    let mut ipam = ipam(&block("u", 2, 1));
    assert_eq!(take(&mut ipam, "blue", "other"), None);
    assert_eq!(
        take(&mut ipam, r#"[{"name":"blue","ips":["10.0.0.4"]}]"#, "u"),
        None,
        "it is another address"
    );
    assert_eq!(take(&mut ipam, "blue", "u").as_deref(), Some("10.0.0.3/24"));
    assert_eq!(take(&mut ipam, "blue", "u").as_deref(), Some("10.0.0.3/24"), "asking again gives the same");
}

#[test]
fn a_turn_that_is_over_is_not_this_nodes() {
    let mut ipam = ipam(&block("u", 2, 2));
    assert_eq!(take(&mut ipam, "blue", "u"), None);
    assert!(!ipam.owns("10.0.0.3".parse().unwrap()));
}

#[test]
fn a_reserved_address_is_handed_out_to_no_other_pod_and_never_handed_back() {
    let mut ipam = ipam(&block("u", 1, 0));
    assert!(ipam.allocate("blue", &net1("other"), now()).is_err(), "no block of the range for pods is here");
    assert_eq!(ipam.surplus(100, now()).len(), 0);
    assert!(ipam.claims(100, now()).iter().all(|claim| claim.range.to_string() == "10.0.0.0/24"));
}

#[test]
fn a_closed_turn_gives_nothing_while_its_end_is_being_written_nor_afterwards() {
    let mut ipam = ipam(&block("u", 1, 0));
    take(&mut ipam, "blue", "u").unwrap();
    let held = HeldAddress {
        address: "10.0.0.3/24".parse().unwrap(),
        block: "default-10-0-0-3-32".into(),
        block_uid: "b".into(),
    };
    ipam.quarantine(&held, &net1("u"), now());
    ipam.close_turns(std::slice::from_ref(&held), &net1("u"));
    assert_eq!(take(&mut ipam, "blue", "u"), None);
    ipam.insert_block(&block("u", 1, 0));
    assert_eq!(take(&mut ipam, "blue", "u"), None, "read again before the end was written");
    let ending = ipam.closed_turns().remove(0);
    assert_eq!((ending.block.as_str(), ending.turn.number), ("default-10-0-0-3-32", 1));
    ipam.end_turn(&ending);
    ipam.insert_block(&block("u", 1, 0));
    assert_eq!(take(&mut ipam, "blue", "u"), None, "an answer that was on its way before");
    ipam.insert_block(&block("u", 2, 1));
    assert_eq!(take(&mut ipam, "blue", "u").as_deref(), Some("10.0.0.3/24"), "the next turn");
}

#[test]
fn turns_that_nothing_uses_are_closed_and_others_are_not() {
    let mut ipam = ipam(&block("u", 1, 0));
    ipam.close_unused_turns(|turn| turn.pod_uid != "u");
    assert_eq!(ipam.closed_turns().len(), 0, "its pod lives");
    take(&mut ipam, "blue", "u").unwrap();
    ipam.close_unused_turns(|_| true);
    assert_eq!(ipam.closed_turns().len(), 0, "it is used");
    ipam.give_back_interface(&net1("u"));
    ipam.close_unused_turns(|_| true);
    assert_eq!(ipam.closed_turns().len(), 1);
}

#[test]
fn reserved_addresses_in_use_are_promised_on_top_of_the_nodes_own() {
    let mut ipam = ipam(&block("u", 1, 0));
    let before = ipam.counts("blue", now()).unwrap();
    take(&mut ipam, "blue", "u").unwrap();
    let after = ipam.counts("blue", now()).unwrap();
    assert_eq!((after.owned, after.used, after.free), (before.owned + 1, 1, before.free));
    assert_eq!(Pool::of(&network()).unwrap().quarantine, Duration::from_secs(130));
}
