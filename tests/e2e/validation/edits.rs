//! What of an object that exists can be changed.

use serde_json::{Value, json};

use super::{
    machine,
    row::{Row, edit, set, unset},
};

const UPLINK: &str = "/spec/bridge/uplink";

/// The rules on changes of a Network.
pub fn network() -> Vec<Row> {
    [driver(), bridge(), addresses(), vec![live(), live_ranges()]].into_iter().flatten().collect()
}

fn driver() -> Vec<Row> {
    let other = [unset("/spec/bridge"), set("/spec/macvlan", json!({ "parent": { "interface": "eth1" } }))];
    let ipam = "ipam cannot be added to or removed from a network; create another network";
    vec![
        edit("the driver stays").accepts([set("/spec/macvlan", Value::Null)]).refuses(
            other,
            "spec",
            "the driver of a network cannot be changed; create another network",
        ),
        edit("a network with addresses keeps some")
            .accepts([set("/spec/ipam/hotplugReserve", 2)])
            .refuses([unset("/spec/ipam")], "spec.ipam", ipam)
            .refuses([set("/spec/ipam", Value::Null)], "spec.ipam", ipam),
        edit("a network without addresses gets none")
            .given([unset("/spec/ipam")])
            .accepts([set("/spec/ipam", Value::Null)])
            .refuses(
                [set("/spec/ipam", json!({ "ranges": [{ "cidr": "10.0.0.0/24" }] }))],
                "spec.ipam",
                ipam,
            ),
    ]
}

fn bridge() -> Vec<Row> {
    let uplink = "the uplink of a network cannot be changed; create another network";
    vec![
        edit("the bridge stays").accepts([set("/spec/bridge/name", "br-trial")]).refuses(
            [set("/spec/bridge/name", "br-other")],
            "spec.bridge.name",
            "the bridge of a network cannot be changed; create another network",
        ),
        edit("who makes the bridge stays").accepts([set("/spec/bridge/manage", "Create")]).refuses(
            [set("/spec/bridge/manage", "Existing")],
            "spec.bridge.manage",
            "who makes the bridge cannot be changed; create another network",
        ),
        edit("no uplink stays no uplink")
            .accepts([set(UPLINK, json!({ "none": {}, "interface": null }))])
            .refuses([set(UPLINK, json!({ "interface": "eth1" }))], "spec.bridge.uplink", uplink)
            .refuses([set(UPLINK, json!({ "vxlan": { "id": 1 } }))], "spec.bridge.uplink", uplink),
        edit("an interface stays the uplink")
            .given([set(UPLINK, json!({ "interface": "trial-none", "vlan": 7 }))])
            .accepts([set(UPLINK, json!({ "interface": "trial-none", "vlan": 7, "none": null }))])
            .refuses([set("/spec/bridge/uplink/interface", "trial-other")], "spec.bridge.uplink", uplink)
            .refuses([set("/spec/bridge/uplink/vlan", 8)], "spec.bridge.uplink", uplink)
            .refuses([unset("/spec/bridge/uplink/vlan")], "spec.bridge.uplink", uplink),
        edit("a VXLAN stays what it is")
            .given([set(UPLINK, json!({ "vxlan": { "id": 7 } }))])
            .accepts([set("/spec/bridge/uplink/vxlan/id", 7)])
            .refuses([set("/spec/bridge/uplink/vxlan/id", 8)], "spec.bridge.uplink", uplink)
            .refuses([set(UPLINK, json!({ "none": {} }))], "spec.bridge.uplink", uplink),
    ]
}

fn addresses() -> Vec<Row> {
    let block = "the blockPrefix of a range cannot be changed; remove the range, wait until it is drained, then add it again";
    let usage =
        "the use of a range cannot be changed; remove the range, wait until it is drained, then add it again";
    let small = json!([{ "cidr": "10.20.0.0/16", "blockPrefix": 26 }, { "cidr": "10.21.0.0/26" }, { "cidr": "fd00::/64" }]);
    vec![
        edit("the space stays").accepts([set("/spec/ipam/quarantine", "5s")]).refuses(
            [set("/spec/ipam/space", "elsewhere")],
            "spec.ipam.space",
            "the space of a network cannot be changed; create another network",
        ),
        edit("blocks keep their size")
            .given([set("/spec/ipam/ranges", small)])
            .accepts([
                set("/spec/ipam/ranges/1/blockPrefix", 32),
                set("/spec/ipam/ranges/2/blockPrefix", 124),
            ])
            .accepts([set("/spec/ipam/ranges/1/blockPrefix", Value::Null)])
            .refuses([set("/spec/ipam/ranges/0/blockPrefix", 27)], "spec.ipam.ranges[0].blockPrefix", block)
            .refuses([unset("/spec/ipam/ranges/0/blockPrefix")], "spec.ipam.ranges[0].blockPrefix", block)
            .refuses([set("/spec/ipam/ranges/1/blockPrefix", 28)], "spec.ipam.ranges[1].blockPrefix", block)
            .refuses([set("/spec/ipam/ranges/2/blockPrefix", 128)], "spec.ipam.ranges[2].blockPrefix", block)
            .refuses(
                // Found again by its CIDR, not by its number.
                [unset("/spec/ipam/ranges/0"), set("/spec/ipam/ranges/0/blockPrefix", 29)],
                "spec.ipam.ranges[0].blockPrefix",
                block,
            ),
        edit("addresses stay what they are for").accepts([set("/spec/ipam/ranges/0/use", "Pods")]).refuses(
            [set("/spec/ipam/ranges/0/use", "Reserved")],
            "spec.ipam.ranges[0].use",
            usage,
        ),
    ]
}

/// What agents and the controller follow while pods run.
fn live() -> Row {
    edit("the rest can change")
        .accepts([set("/spec/mtu", 1400)])
        .accepts([set("/spec/routes", json!([{ "to": "10.99.0.0/16" }]))])
        .accepts([set(
            "/spec/allowedNamespaces",
            json!({ "from": "Selector", "selector": { "matchLabels": { "a": "b" } } }),
        )])
        .accepts([set("/spec/nodeSelector", json!({ "zone": "b" }))])
        .accepts([set("/spec/attach", json!([{ "podSelector": {} }]))])
        .accepts([set("/spec/exhaustion", json!({ "resource": false, "taint": "NoSchedule" }))])
        .accepts([set("/spec/hold", "Gate"), set("/spec/unheld", "Evict"), set("/spec/allowStatic", true)])
        .accepts([set("/spec/ipam/quarantine", "10m"), set("/spec/ipam/probe", "300ms")])
        .accepts([set("/spec/ipam/maxBlocksPerNode", 4)])
        .accepts([set("/spec/bridge/antiSpoof", true)])
}

fn live_ranges() -> Row {
    let ranges = |value: Value| set("/spec/ipam/ranges", value);
    edit("ranges come and go")
        .given([ranges(
            json!([{ "cidr": "10.20.0.0/24", "exclude": ["10.20.0.0/28"] }, { "cidr": "10.21.0.0/24" }]),
        )])
        .accepts([set("/spec/ipam/ranges/-", json!({ "cidr": "fd00::/64" }))])
        .accepts([set("/spec/ipam/ranges/0", json!({ "cidr": "10.19.0.0/24", "use": "Pods" }))])
        .accepts([unset("/spec/ipam/ranges/0")])
        .accepts([ranges(
            json!([{ "cidr": "10.21.0.0/24" }, { "cidr": "10.20.0.0/24", "exclude": ["10.20.0.0/28"] }]),
        )])
        .accepts([ranges(json!([{ "cidr": "10.20.0.0/25" }]))])
        .accepts([ranges(json!([{ "cidr": "10.20.0.0/23" }]))])
        .accepts([set("/spec/ipam/ranges/0/exclude", json!(["10.20.0.0/28", "10.20.0.128/25"]))])
        .accepts([unset("/spec/ipam/ranges/0/exclude")])
        .accepts([set("/spec/ipam/ranges/0/gateway", "10.20.0.1")])
        .refuses([set("/spec/ipam/ranges", json!([]))], "spec.ipam.ranges", "should have at least 1 items")
}

/// The rules on changes of an IPBlock.
pub fn ip_block(space: &str) -> Vec<Row> {
    let words = "a block cannot be changed; it is claimed by creating it and handed back by deleting it";
    let held = "the address is still held: it is handed on once status.released says that its holder is gone";
    let turn = "another node or pod needs a higher turn";
    vec![
        edit("a block is a claim")
            .accepts([set("/metadata/labels", json!({ "a": "b" }))])
            .refuses([set("/spec/nodeName", "node2")], "spec", words)
            .refuses([set("/spec/networkUID", "other")], "spec", words),
        edit("a reserved address is given to a node")
            .given(machine::reserved(space))
            .accepts([set("/spec/nodeName", "node2"), machine::held("2", 1)])
            .refuses([set("/spec/claim/pod", "default/web-1")], "spec", words)
            .refuses([unset("/spec/claim")], "spec", words),
        edit("a reserved address that is held is not handed on")
            .given(held_by_node1(space))
            .accepts([set("/metadata/labels", json!({ "a": "b" }))])
            .refuses([set("/spec/nodeName", "node2"), machine::held("3", 2)], "spec", held)
            .refuses([set("/spec/nodeName", "")], "spec", held)
            .refuses([machine::held("3", 2)], "spec", held)
            .refuses([set("/spec/nodeName", "node2")], "spec.holder", turn)
            .refuses([machine::held("3", 1)], "spec.holder", turn),
    ]
}

fn held_by_node1(space: &str) -> [Value; 5] {
    let [cidr, name, claim, _] = machine::reserved(space);
    [cidr, name, claim, set("/spec/nodeName", "node1"), machine::held("2", 1)]
}

/// The rules on changes of a PodNetwork.
pub fn pod_network() -> Vec<Row> {
    let words = "podName, podUID and nodeName cannot be changed";
    vec![
        edit("a record stays that of its pod")
            .accepts([set("/spec/attachments", json!([]))])
            .refuses([set("/spec/podName", "other")], "spec", words)
            .refuses([set("/spec/podUID", "other")], "spec", words)
            .refuses([set("/spec/nodeName", "node2")], "spec", words),
    ]
}
