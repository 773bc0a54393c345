//! The rules of a Network.

use serde_json::{Value, json};

use super::row::{Row, rule, set, unset};

/// The smallest Network with addresses.
pub fn base(space: &str) -> Value {
    json!({
        "bridge": { "name": "br-trial", "uplink": { "none": {} } },
        "ipam": { "space": space, "ranges": [{ "cidr": "10.20.0.0/16" }] },
        "allowedNamespaces": { "from": "All" },
        "nodeSelector": { "trial.fairlead.dev/nowhere": "true" },
    })
}

const UPLINK: &str = "/spec/bridge/uplink";
const RANGES: &str = "/spec/ipam/ranges";

/// Replaces the one range of the base.
fn ranges(value: Value) -> Value {
    set(RANGES, value)
}

/// The rules on what is created.
pub fn rules() -> Vec<Row> {
    [name_and_driver(), bridge(), ranges_alone(), ranges_together(), routes(), who()]
        .into_iter()
        .flatten()
        .collect()
}

fn name_and_driver() -> Vec<Row> {
    let one = "exactly one of bridge, macvlan, ipvlan, hostDevice and cni must be set";
    let label = "must be a DNS label of at most 40 characters";
    let macvlan = || set("/spec/macvlan", json!({ "parent": { "interface": "eth1" } }));
    vec![
        rule("a name fits into a resource's and a taint's")
            .accepts([set("/metadata/name", "a".repeat(40))])
            .accepts([set("/metadata/name", "0-1")])
            .refuses([set("/metadata/name", "a".repeat(41))], "metadata.name", label)
            .refuses([set("/metadata/name", "blue.example")], "metadata.name", label),
        rule("one driver")
            .accepts([])
            .accepts([unset("/spec/bridge"), macvlan()])
            .accepts([set("/spec/macvlan", Value::Null)])
            .refuses([unset("/spec/bridge")], "spec", one)
            .refuses([set("/spec/bridge", Value::Null)], "spec", one)
            .refuses([macvlan()], "spec", one),
        rule("an IPv6 network has the smallest MTU of IPv6")
            .accepts([set("/spec/mtu", 1280), ranges(json!([{ "cidr": "fd00:20::/64" }]))])
            .accepts([set("/spec/mtu", 68)])
            .refuses(
                [
                    set("/spec/mtu", 1279),
                    ranges(json!([{ "cidr": "10.0.0.0/24" }, { "cidr": "fd00:20::/64" }])),
                ],
                "spec.mtu",
                "mtu must be at least 1280 on a network with an IPv6 range",
            ),
    ]
}

fn bridge() -> Vec<Row> {
    let one = "exactly one of none, interface and vxlan must be set";
    let taken = "the name belongs to another program or to a pod's link; choose one such as br-blue";
    vec![
        rule("one uplink")
            .accepts([set(UPLINK, json!({ "interface": "eth1" }))])
            .accepts([set(UPLINK, json!({ "none": {}, "interface": null, "vxlan": null, "vlan": null }))])
            .accepts([set(UPLINK, json!({ "vxlan": { "id": 100 } }))])
            .refuses([set(UPLINK, json!({}))], "spec.bridge.uplink", one)
            .refuses([set(UPLINK, json!({ "none": null }))], "spec.bridge.uplink", one)
            .refuses([set(UPLINK, json!({ "none": {}, "interface": "eth1" }))], "spec.bridge.uplink", one)
            .refuses([set(UPLINK, Value::Null)], "spec.bridge.uplink", "Required value"),
        rule("a VLAN is on an interface")
            .accepts([set(UPLINK, json!({ "interface": "eth1", "vlan": 7 }))])
            .refuses([set(UPLINK, json!({ "none": {}, "vlan": 7 }))], "spec.bridge.uplink.vlan", "vlan needs interface"),
        rule("the uplink is not the loopback interface")
            .accepts([set(UPLINK, json!({ "interface": "lo1" }))])
            .refuses(
                [set(UPLINK, json!({ "interface": "lo" }))],
                "spec.bridge.uplink.interface",
                "the loopback interface leads nowhere; name one such as eth1",
            ),
        rule("the uplink is not the bridge")
            .accepts([set(UPLINK, json!({ "interface": "br-trial1" }))])
            .refuses(
                [set(UPLINK, json!({ "interface": "br-trial" }))],
                "spec.bridge.uplink.interface",
                "the uplink must be another interface than the bridge itself",
            ),
        rule("the bridge is not someone else's")
            .accepts([set("/spec/bridge/name", "flow-1")])
            .refuses([set("/spec/bridge/name", "eth0")], "spec.bridge.name", taken)
            .refuses([set("/spec/bridge/name", "docker0")], "spec.bridge.name", taken)
            .refuses([set("/spec/bridge/name", "fl0123456789")], "spec.bridge.name", taken),
        rule("nodes answer for the gateway of an island only")
            .accepts([set("/spec/bridge/gateway", "Node")])
            .refuses(
                [set("/spec/bridge/gateway", "Node"), set(UPLINK, json!({ "interface": "eth1" }))],
                "spec.bridge.gateway",
                "gateway: Node needs uplink: {none: {}}, or every node would answer for the gateway on one wire",
            ),
        rule("masquerade needs a node that is the gateway")
            .accepts([set("/spec/bridge/gateway", "Node"), set("/spec/bridge/masquerade", true)])
            .refuses(
                [set("/spec/bridge/masquerade", true)],
                "spec.bridge.masquerade",
                "masquerade needs gateway: Node",
            ),
    ]
}

fn ranges_alone() -> Vec<Row> {
    let cidr = "spec.ipam.ranges[0].cidr";
    let gateway = "spec.ipam.ranges[0].gateway";
    let exclude = "spec.ipam.ranges[0].exclude";
    let block = "spec.ipam.ranges[0].blockPrefix";
    let shortest = "must be a network address in its shortest form, such as 10.20.0.0/16 or fd00:20::/64";
    let length = "must be /8 or longer for IPv4 and /48 or longer for IPv6";
    let unreachable = "must not be a loopback, link-local, multicast or unspecified range";
    let block_bounds =
        "must be 22 to 32 for IPv4 and 118 to 128 for IPv6: a block has at most 1024 addresses";
    let of = |cidr: &str| ranges(json!([{ "cidr": cidr }]));
    let blocks = |cidr: &str, prefix: u8| ranges(json!([{ "cidr": cidr, "blockPrefix": prefix }]));
    vec![
        rule("a range is a network address")
            .accepts([of("10.20.0.0/31")])
            .accepts([of("10.20.0.7/32")])
            .accepts([of("fd00:20::7/128")])
            .refuses([of("10.20.0.1/24")], cidr, shortest)
            .refuses([of("FD00:20::/64")], cidr, shortest)
            .refuses([of("fd00:20:0:0::/64")], cidr, shortest),
        rule("a range is not the whole internet")
            .accepts([of("10.0.0.0/8")])
            .accepts([of("fd00:20::/48")])
            .refuses([of("10.0.0.0/7")], cidr, length)
            .refuses([of("fd00::/47")], cidr, length)
            .refuses([of("0.0.0.0/0")], cidr, length),
        rule("a range can be reached")
            .accepts([of("100.64.0.0/10")])
            .refuses([of("127.0.0.0/24")], cidr, unreachable)
            .refuses([of("169.254.0.0/16")], cidr, unreachable)
            .refuses([of("224.1.0.0/16")], cidr, unreachable)
            .refuses([of("fe80::/64")], cidr, unreachable)
            .refuses([of("::/64")], cidr, unreachable),
        rule("a gateway is inside its range")
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/24", "gateway": "10.20.0.1" }]))])
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/24", "gateway": null }]))])
            .accepts([ranges(json!([{ "cidr": "fd00:20::/64", "gateway": "fd00:20::1" }]))])
            .refuses([ranges(json!([{ "cidr": "10.20.0.0/24", "gateway": "10.20.1.1" }]))], gateway, "must be inside cidr")
            .refuses([ranges(json!([{ "cidr": "10.20.0.0/24", "gateway": "fd00::1" }]))], gateway, "must be inside cidr")
            .refuses([ranges(json!([{ "cidr": "fd00:20::/64", "gateway": "10.20.0.1" }]))], gateway, "must be inside cidr"),
        rule("a gateway is an address that a device can have")
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/31", "gateway": "10.20.0.0" }]))])
            .accepts([ranges(json!([{ "cidr": "fd00:20::/64", "gateway": "fd00:20::" }]))])
            .refuses(
                [ranges(json!([{ "cidr": "10.20.0.0/30", "gateway": "10.20.0.0" }]))],
                gateway,
                "must not be the network address, which no device can have",
            ),
        rule("what is excluded is inside its range")
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/24", "exclude": ["10.20.0.0/24", "10.20.0.7/32"] }]))])
            .refuses(
                [ranges(json!([{ "cidr": "10.20.0.0/24", "exclude": ["10.20.0.0/28", "10.20.1.0/28"] }]))],
                exclude,
                "has an entry outside of cidr",
            )
            .refuses(
                [ranges(json!([{ "cidr": "10.20.0.0/24", "exclude": ["10.20.0.0/23"] }]))],
                exclude,
                "has an entry outside of cidr",
            ),
        rule("what is excluded is not more than it looks")
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/24", "exclude": ["10.20.0.5/32"] }]))])
            .refuses(
                [ranges(json!([{ "cidr": "10.20.0.0/24", "exclude": ["10.20.0.5/24"] }]))],
                exclude,
                "has an entry with host bits set; write its network address, or /32 (IPv6: /128) for one address",
            ),
        rule("a block fits into its range")
            .accepts([blocks("10.20.0.0/24", 24)])
            .accepts([blocks("10.20.0.0/32", 32)])
            .refuses([blocks("10.20.0.0/28", 27)], block, "must be at least the prefix length of cidr"),
        rule("reserved addresses are granted one by one")
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/16", "use": "Reserved" }]))])
            .accepts([ranges(json!([{ "cidr": "fd00:20::/64", "use": "Reserved", "blockPrefix": 128 }]))])
            .refuses(
                [ranges(json!([{ "cidr": "10.20.0.0/16", "use": "Reserved", "blockPrefix": 28 }]))],
                block,
                "the addresses of a Reserved range are granted one by one; remove blockPrefix",
            ),
        rule("a block has at most 1024 addresses")
            .accepts([blocks("10.20.0.0/16", 22)])
            .accepts([blocks("fd00:20::/64", 118)])
            .accepts([blocks("fd00:20::/64", 128)])
            .refuses([blocks("10.20.0.0/16", 21)], block, block_bounds)
            .refuses([blocks("10.20.0.0/16", 33)], block, block_bounds)
            .refuses([blocks("fd00:20::/64", 64)], block, block_bounds),
    ]
}

fn ranges_together() -> Vec<Row> {
    let overlap = "ranges overlap; exclude the inner one from the outer one, or remove it";
    let space = "must be 1 to 20 lower-case letters, digits and inner '-'";
    let probe = "must be None, or a time to listen of 30ms to 300ms";
    vec![
        rule("ranges of one network are apart")
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/24" }, { "cidr": "10.20.1.0/24" }, { "cidr": "fd00::/64" }]))])
            .accepts([ranges(json!([{ "cidr": "10.20.0.0/16", "exclude": ["10.20.255.0/24"] }, { "cidr": "10.20.255.0/24" }]))])
            .refuses([ranges(json!([{ "cidr": "10.20.0.0/16" }, { "cidr": "10.20.255.0/24" }]))], "spec.ipam.ranges", overlap)
            .refuses([ranges(json!([{ "cidr": "fd00:1::/64" }, { "cidr": "fd00:1::/80" }]))], "spec.ipam.ranges", overlap)
            .refuses(
                [ranges(json!([{ "cidr": "10.20.0.0/16", "exclude": ["10.20.255.0/25"] }, { "cidr": "10.20.255.0/24" }]))],
                "spec.ipam.ranges",
                overlap,
            ),
        rule("an identity is in a reserved range")
            .accepts([set("/spec/ipam/identity", "StatefulSet"), ranges(json!([{ "cidr": "10.20.0.0/24", "use": "Reserved" }]))])
            .refuses(
                [set("/spec/ipam/identity", "StatefulSet")],
                "spec.ipam.identity",
                "identity needs a range with use: Reserved",
            ),
        rule("a space is part of the names of blocks")
            .accepts([set("/spec/ipam/space", "a")])
            .accepts([set("/spec/ipam/space", "0-z")])
            .refuses([set("/spec/ipam/space", "")], "spec.ipam.space", space)
            .refuses([set("/spec/ipam/space", "Lab")], "spec.ipam.space", space)
            .refuses([set("/spec/ipam/space", "lab.one")], "spec.ipam.space", space)
            .refuses([set("/spec/ipam/space", "-lab")], "spec.ipam.space", space),
        rule("a probe has a time")
            .accepts([set("/spec/ipam/probe", "None")])
            .accepts([set("/spec/ipam/probe", "300ms")])
            .accepts([set("/spec/ipam/probe", "30ms")])
            .refuses([set("/spec/ipam/probe", "29ms")], "spec.ipam.probe", probe)
            .refuses([set("/spec/ipam/probe", "301ms")], "spec.ipam.probe", probe)
            .refuses([set("/spec/ipam/probe", "Off")], "spec.ipam.probe", probe)
            .refuses([set("/spec/ipam/probe", "0ms")], "spec.ipam.probe", probe)
            .refuses([set("/spec/ipam/probe", "1s")], "spec.ipam.probe", probe),
    ]
}

fn routes() -> Vec<Row> {
    let routes = |value: Value| set("/spec/routes", value);
    vec![
        rule("routes need addresses")
            .accepts([routes(json!([])), unset("/spec/ipam")])
            .accepts([routes(json!([{ "to": "10.99.0.0/16" }]))])
            .refuses(
                [routes(json!([{ "to": "10.99.0.0/16" }])), unset("/spec/ipam")],
                "spec.routes",
                "routes need ipam: an interface without an address cannot use them",
            ),
        rule("a route has a family that the pod has")
            .accepts([routes(json!([{ "to": "10.99.0.0/16" }]))])
            .refuses(
                [routes(json!([{ "to": "10.99.0.0/16" }, { "to": "fd99::/64" }]))],
                "spec.routes",
                "a route needs a range of its family: add one to ipam.ranges, or remove the route",
            ),
        rule("the network's own range needs no route")
            .accepts([routes(json!([{ "to": "10.20.0.0/15" }, { "to": "10.20.0.0/17" }]))])
            .refuses(
                [routes(json!([{ "to": "10.20.0.0/16" }]))],
                "spec.routes",
                "the addresses of a range are reached without a route; remove the route to it",
            ),
        rule("a next hop can be reached")
            .accepts([routes(json!([{ "to": "10.99.0.0/16", "via": "10.20.0.1" }, { "to": "10.98.0.0/16", "via": null }]))])
            .refuses(
                [routes(json!([{ "to": "10.99.0.0/16", "via": "10.21.0.1" }]))],
                "spec.routes",
                "via must be inside one of ipam.ranges, or pods cannot reach it",
            ),
        rule("a next hop has the family of the route")
            .given([ranges(json!([{ "cidr": "10.20.0.0/16" }, { "cidr": "fd00:20::/64" }]))])
            .accepts([routes(json!([{ "to": "fd99::/64", "via": "fd00:20::1" }]))])
            .refuses(
                [routes(json!([{ "to": "10.99.0.0/16", "via": "fd00:20::1" }]))],
                "spec.routes[0].via",
                "must be of the family of to",
            ),
        rule("a route is to a network address")
            .accepts([routes(json!([{ "to": "10.99.0.1/32" }]))])
            .refuses(
                [routes(json!([{ "to": "10.99.0.1/16" }]))],
                "spec.routes[0].to",
                "must be a network address in its shortest form",
            ),
        rule("no default route")
            .accepts([routes(json!([{ "to": "0.0.0.0/1" }]))])
            .refuses(
                [routes(json!([{ "to": "0.0.0.0/0" }]))],
                "spec.routes[0].to",
                "a default route would take the pod's primary interface out of use; name what shall be reached",
            )
            .refuses([routes(json!([{ "to": "::/0" }]))], "spec.routes[0].to", "a default route would take"),
    ]
}

fn who() -> Vec<Row> {
    let selector = "selector is required with from: Selector, and must be absent with from: All";
    let allowed = |value: Value| set("/spec/allowedNamespaces", value);
    let own = "is the pod's own interface; choose another name, such as net1";
    let attach = |name: &str| set("/spec/attach", json!([{ "podSelector": {}, "interface": name }]));
    vec![
        rule("a selector is there when it is asked for")
            .accepts([allowed(json!({ "from": "Selector", "selector": {} }))])
            .accepts([allowed(json!({ "from": "All", "selector": null }))])
            .refuses([allowed(json!({ "from": "Selector" }))], "spec.allowedNamespaces.selector", selector)
            .refuses(
                [allowed(json!({ "from": "Selector", "selector": null }))],
                "spec.allowedNamespaces.selector",
                selector,
            )
            .refuses(
                [allowed(json!({ "from": "All", "selector": {} }))],
                "spec.allowedNamespaces.selector",
                selector,
            ),
        rule("the pod's own interfaces are left alone")
            .accepts([attach("net1")])
            .accepts([attach("eth1")])
            .refuses([attach("eth0")], "spec.attach[0].interface", own)
            .refuses([attach("lo")], "spec.attach[0].interface", own),
    ]
}
