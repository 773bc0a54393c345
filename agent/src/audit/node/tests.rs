//! A node on which everything agrees, and every way in which it can stop to.

use fairlead_crds::pod_network::SandboxRef;
use serde_json::json;

use super::*;
use crate::model::PodKey;
use crate::plan::PodLink;

fn record() -> Record {
    let spec = json!({ "podName": "p", "podUID": "u", "nodeName": "n", "attachments": [{
        "network": "blue", "networkUID": "blue-uid", "interface": "net1", "mac": "02:00:00:00:00:01",
        "addresses": [{ "address": "10.0.0.1/24", "block": "b", "blockUID": "b-uid" }] }] });
    let ready = json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": "Attached", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    let mut status: fairlead_crds::PodNetworkStatus = serde_json::from_value(ready).unwrap();
    status.sandbox =
        Some(SandboxRef { id: "s".into(), attempt: 0, cookie: 7, nsid: 1, boot_id: "boot".into() });
    Record {
        version: "1".into(),
        key: PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
        uid: "r".into(),
        generation: Some(1),
        spec: serde_json::from_value(spec).unwrap(),
        status,
    }
}

fn host_link(name: &str) -> HostLink {
    HostLink {
        name: name.into(),
        index: 5,
        bridge: Some(3),
        mtu: 1500,
        up: true,
        alias: Some("fairlead/v1;uid=u;if=net1".into()),
        peer_nsid: Some(1),
        peer_index: Some(2),
    }
}

fn world() -> World {
    let link = PodLink {
        name: "net1".into(),
        index: 2,
        mac: Some("02:00:00:00:00:01".parse().unwrap()),
        mtu: 1500,
        up: true,
        ipv6: false,
        addresses: vec!["10.0.0.1/24".parse().unwrap()],
        ours: vec![],
        routes: vec![],
    };
    let marker = Marker::Ready { uid: "u".into(), cookie: Some(7), hash: "00000000".into() }.to_string();
    let observed = Observed { nsid: 1, links: vec![link], host: vec![], marker: Some(marker) };
    let spec = json!({ "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" } });
    World {
        boot_id: "boot".into(),
        links: vec![host_link(&names::host_link("u", "net1"))],
        bridges: vec!["br0".into()],
        networks: vec![Network::new("blue", serde_json::from_value(spec).unwrap())],
        records: vec![record()],
        seen: HashMap::from([("u".to_owned(), Seen { cookie: 7, observed })]),
    }
}

fn found(change: impl FnOnce(&mut World)) -> Vec<FindingCode> {
    let mut world = world();
    change(&mut world);
    audit(&world).into_iter().map(|finding| finding.code).collect()
}

fn seen(world: &mut World) -> &mut Seen {
    world.seen.get_mut("u").unwrap()
}

#[test]
fn where_kernel_and_records_agree_nothing_is_found() {
    assert_eq!(found(|_| ()), []);
}

#[test]
fn links_that_no_record_has_and_bridges_that_no_network_has() {
    assert_eq!(found(|w| w.links.push(host_link("fl0123456789"))), [FindingCode::LinkWithoutRecord]);
    assert_eq!(found(|w| w.networks.clear()), [FindingCode::BridgeLeft]);
}

#[test]
fn links_that_are_missing_on_the_node_or_in_the_pod() {
    assert_eq!(found(|w| w.links.clear()), [FindingCode::LinkMissing]);
    assert_eq!(found(|w| seen(w).observed.links.clear()), [FindingCode::LinkMissing]);
}

#[test]
fn addresses_of_a_link_that_are_not_those_of_its_record() {
    assert_eq!(found(|w| seen(w).observed.links[0].addresses.clear()), [FindingCode::LinkDiffers]);
    assert_eq!(found(|w| seen(w).observed.links[0].mac = None), [FindingCode::LinkDiffers]);
}

#[test]
fn a_marker_that_is_missing_or_about_another_pod_or_namespace() {
    assert_eq!(found(|w| seen(w).observed.marker = None), [FindingCode::MarkerDiffers]);
    assert_eq!(found(|w| seen(w).cookie = 8), [FindingCode::MarkerDiffers]);
    let other = Marker::Ready { uid: "other".into(), cookie: Some(7), hash: "00000000".into() }.to_string();
    assert_eq!(found(|w| seen(w).observed.marker = Some(other)), [FindingCode::MarkerDiffers]);
}

#[test]
fn a_record_that_waits_or_is_of_an_earlier_boot_promises_nothing() {
    let waits = |w: &mut World| {
        w.links.clear();
        w.records[0].status.conditions[0].status = "False".into();
    };
    assert_eq!(found(waits), []);
    let rebooted = |w: &mut World| {
        w.links.clear();
        w.boot_id = "next".into();
    };
    assert_eq!(found(rebooted), []);
}
