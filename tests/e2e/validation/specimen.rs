//! Objects that together have every field of their kind, each with a value that is accepted.

use serde_json::{Value, json};

use super::server::Server;

/// Whether and which: the objects of a kind, and the one that really exists while its status is tried.
pub struct Specimens {
    /// Objects that can be created. The first one is made for its status.
    pub objects: Vec<Value>,
    /// A status with every field, unless the kind has none.
    pub status: Option<Value>,
}

fn selector() -> Value {
    json!({
        "matchLabels": { "tier": "data" },
        "matchExpressions": [{ "key": "app.kubernetes.io/name", "operator": "In", "values": ["db"] }],
    })
}

fn conditions(type_: &str) -> Value {
    json!([{
        "type": type_,
        "status": "True",
        "reason": "Fine",
        "message": "everything is fine",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
        "observedGeneration": 1,
    }])
}

/// Networks: one with every field, and one more for each other driver and uplink.
pub fn network(server: &Server, name: &str, space: &str) -> Specimens {
    let parent = json!({ "interface": "eth1", "vlan": 7 });
    let drivers = [
        ("bridge", json!({ "name": "br-trial", "uplink": { "none": {} } })),
        ("bridge", json!({ "name": "br-trial", "uplink": { "vxlan": { "id": 100 } } })),
        ("macvlan", json!({ "parent": parent, "mode": "bridge" })),
        ("ipvlan", json!({ "parent": parent, "mode": "l2" })),
        ("hostDevice", json!({ "selector": { "names": ["ens5f*"] } })),
        ("cni", json!({ "config": "{}" })),
    ];
    let smallest =
        |(driver, config): (&str, Value)| json!({ (driver): config, "allowedNamespaces": { "from": "All" } });
    let specs = [full_network(space)].into_iter().chain(drivers.map(smallest));
    let status = json!({
        "observedGeneration": 1,
        "driver": "bridge",
        "reach": "Node",
        "addresses": 65278,
        "unclaimed": 32768,
        "ranges": [{
            "cidr": "10.20.0.0/16", "blockPrefix": 28, "gateway": "10.20.0.1", "exclude": ["10.20.255.0/24"],
            "use": "Pods", "state": "Admitted", "scarce": false, "full": false, "unclaimed": 2048, "message": "fine",
        }],
        "conditions": conditions("Accepted"),
    });
    Specimens { objects: specs.map(|spec| server.manifest(name, &spec)).collect(), status: Some(status) }
}

fn full_network(space: &str) -> Value {
    json!({
        "bridge": {
            "name": "br-trial", "manage": "Create", "uplink": { "interface": "trial-none", "vlan": 7 },
            "gateway": "None", "masquerade": false, "antiSpoof": false,
        },
        "mtu": 1400,
        "ipam": {
            "space": space,
            "ranges": [
                { "cidr": "10.20.0.0/16", "gateway": "10.20.0.1", "exclude": ["10.20.255.0/24"], "blockPrefix": 28, "use": "Pods" },
                { "cidr": "fd00:20::/64" },
            ],
            "quarantine": "130s", "hotplugReserve": 1, "maxBlocksPerNode": 8, "identity": "None", "probe": "None",
        },
        "routes": [{ "to": "10.99.0.0/16", "via": "10.20.0.1" }],
        "allowedNamespaces": { "from": "Selector", "selector": selector() },
        "allowStatic": false,
        "nodeSelector": { "zone": "nowhere" },
        "attach": [{ "podSelector": selector(), "namespaceSelector": selector(), "interface": "net1" }],
        "hold": "Auto",
        "unheld": "Attach",
        "exhaustion": { "resource": true, "taint": "None" },
    })
}

/// A record of a pod that does not exist.
pub fn pod_network(server: &Server, name: &str) -> Specimens {
    let spec = json!({
        "podName": name,
        "podUID": "0f3c2a11-9d1e-4c3b-8f00-000000000000",
        "nodeName": "nowhere",
        "attachments": [{
            "network": "blue", "networkUID": "1", "interface": "net1", "mac": "02:00:00:00:00:01",
            "since": "2024-01-01T00:00:00Z",
            "addresses": [{ "address": "10.20.0.5/16", "block": "default-10-20-0-0-28", "blockUID": "2" }],
        }],
    });
    let status = json!({
        "observedGeneration": 1,
        "networks": "blue",
        "addresses": "10.20.0.5",
        "sandbox": { "id": "abc", "attempt": 0, "cookie": 4097, "nsid": 1, "bootID": "b" },
        "interfaces": [{
            "network": "blue", "interfaceName": "net1", "ips": ["10.20.0.5/16"], "hardwareAddress": "02:00:00:00:00:01",
            "mtu": 1500, "hostInterface": "fl0123456789", "gateways": ["10.20.0.1"],
            "routes": [{ "to": "10.99.0.0/16", "via": "10.20.0.1" }],
        }],
        "conditions": conditions("Ready"),
    });
    Specimens { objects: vec![server.manifest(name, &spec)], status: Some(status) }
}

/// Blocks of a space that no Network has: one with many addresses, and a reserved address.
pub fn ip_block(server: &Server, space: &str) -> Specimens {
    let spec = json!({ "space": space, "network": "none", "networkUID": "1", "nodeName": "nowhere", "cidr": "10.20.0.0/28" });
    let status = json!({
        "quarantined": [{ "address": "10.20.0.5", "until": "2024-01-01T00:00:00.000000Z", "podUID": "1", "interface": "net1", "since": "2024-01-01T00:00:00Z" }],
        "held": [{ "address": "10.20.0.6", "pod": "default/web-0", "podUID": "2", "interface": "net1", "since": "2024-01-01T00:00:00Z" }],
        "conflicts": [{ "address": "10.20.0.8", "mac": "02:00:00:00:00:01", "since": "2024-01-01T00:00:00Z", "retryAfter": "2024-01-01T00:10:00Z" }],
        "released": { "turn": 1, "at": "2024-01-01T00:00:00.000000Z" },
    });
    let mut reserved = spec.clone();
    reserved["cidr"] = json!("10.20.0.7/32");
    reserved["claim"] = json!({ "pod": "default/web-0", "statefulSet": "web", "attachment": 0 });
    reserved["holder"] = json!({ "podUID": "2", "turn": 1 });
    Specimens {
        objects: vec![
            server.manifest(&format!("{space}-10-20-0-0-28"), &spec),
            server.manifest(&format!("{space}-10-20-0-7-32"), &reserved),
        ],
        status: Some(status),
    }
}

/// What a node that does not exist can offer.
pub fn node_network(server: &Server, name: &str) -> Specimens {
    let status = json!({
        "agentVersion": "0.1.0",
        "hold": "gate",
        "summary": "blue 6/28",
        "networks": [{
            "name": "blue", "ready": false, "reason": "Missing", "message": "it is not there",
            "owned": 28, "used": 6, "quarantined": 1, "free": 21, "promised": 27, "claimable": 64,
            "families": [{ "family": "IPv4", "owned": 28, "used": 6, "quarantined": 1, "free": 21, "claimable": 64 }],
        }],
        "conditions": conditions("Ready"),
    });
    Specimens { objects: vec![server.manifest(name, &json!({}))], status: Some(status) }
}

/// The one Admission, as the controller could write it.
pub fn admission(server: &Server) -> Specimens {
    let attach = json!([{ "network": "blue", "interface": "net1", "namespaceSelector": selector(), "podSelector": selector() }]);
    let network = json!({ "name": "blue", "resource": true, "gated": true, "hold": "Nri" });
    let spec = json!({ "hold": "Gate", "networks": [network], "attach": attach, "uninstalling": false });
    Specimens { objects: vec![server.manifest("default", &spec)], status: None }
}
