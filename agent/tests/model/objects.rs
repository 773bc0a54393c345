//! The objects of the model's cluster: two Networks, nodes, pods, and how they come to those who watch them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fairlead_agent::model::{Node, Pod};
use fairlead_agent::view::Inner;
use fairlead_agent::wire::PodObject;
use fairlead_crds::{Network, names};
use serde_json::{Value, json};

use super::node::News;
use super::store::{Key, Store};

/// Quarantine of the Network blue, in seconds.
pub const BLUE_RESTS: u64 = 15;
/// Quarantine of the Network red, in seconds.
pub const RED_RESTS: u64 = 40;
/// Most pods of a node.
pub const PODS: usize = 5;
/// What pods ask for.
pub const REQUESTS: [&str; 4] = ["blue", "blue,red", "red", "blue,blue"];

pub fn is_blue(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.octets()[1] == 20)
}

/// The cluster before its first pod: every range is scarce enough for nodes to race for its blocks.
pub fn fill(store: &mut Store, nodes: usize) {
    let blue = [("10.20.0.0/27", 29), ("10.20.1.0/28", 30)];
    let red = [("10.30.0.0/27", 30), ("fd00:30::/122", 125)];
    let mut create = |key: Key, object: Value| drop(store.create(&key, object).unwrap());
    create(Key::new("networks", "", "blue"), network("blue", &blue, BLUE_RESTS));
    create(Key::new("networks", "", "red"), network("red", &red, RED_RESTS));
    for number in 0..nodes {
        let name = format!("node-{number}");
        create(Key::new("nodes", "", &name), node(&name));
    }
}

pub fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": {}, "status": { "allocatable": { "pods": PODS.to_string() } },
    })
}

fn network(name: &str, ranges: &[(&str, u8)], rests: u64) -> Value {
    let cidrs: Vec<Value> = ranges.iter().map(|(cidr, _)| json!({ "cidr": cidr })).collect();
    let admitted: Vec<Value> = ranges
        .iter()
        .map(|(cidr, prefix)| json!({ "cidr": cidr, "blockPrefix": prefix, "state": "Admitted" }))
        .collect();
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network",
        "metadata": { "name": name, "uid": format!("{name}-uid"), "finalizers": [names::NETWORK_FINALIZER] },
        "spec": {
            "bridge": { "name": format!("br-{name}"), "uplink": { "none": {} } },
            "ipam": { "ranges": cidrs, "quarantine": format!("{rests}s") },
            "allowedNamespaces": { "from": "All" },
        },
        "status": { "ranges": admitted, "conditions": [accepted(true)] },
    })
}

/// The condition of a Network that the controller accepts, or does not for the moment.
pub fn accepted(is: bool) -> Value {
    json!({
        "type": "Accepted", "status": if is { "True" } else { "False" }, "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

pub fn pod(name: &str, uid: &str, node: &str, networks: &str) -> Value {
    let mut requests = BTreeMap::<String, u64>::new();
    for network in networks.split(',') {
        *requests.entry(names::resource(network)).or_default() += 1;
    }
    let requests: BTreeMap<String, String> =
        requests.into_iter().map(|(network, count)| (network, count.to_string())).collect();
    let gate = json!({ "name": names::GATE_CONTAINER, "resources": { "requests": requests } });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid,
            "annotations": { names::NETWORKS_ANNOTATION: networks },
        },
        "spec": { "nodeName": node, "containers": [], "initContainers": [gate] },
        "status": { "phase": "Pending" },
    })
}

/// What a change of a pod is to the agent of a node.
pub fn news(store: &Store, key: &Key, node: &str) -> Option<News> {
    match store.get(key) {
        Some(pod) if pod["spec"]["nodeName"] != node => None,
        Some(pod) => read(pod).map(|pod| (pod.key.uid.clone(), Some(pod))),
        // A pod's name is its UID here, which ends with its node, so that what is gone can be named.
        None => key.name.ends_with(node).then(|| (key.name.clone(), None)),
    }
}

fn read(pod: &Value) -> Option<Pod> {
    let pod: PodObject = serde_json::from_value(pod.clone()).unwrap();
    Pod::try_from(pod).ok()
}

/// All Networks.
pub fn networks(store: &Store) -> BTreeMap<String, Network> {
    let parse = |object: &Value| serde_json::from_value::<Network>(object.clone()).unwrap();
    store.all("networks").map(|(key, object)| (key.name.clone(), parse(object))).collect()
}

/// What an agent that starts has seen once all its watches are complete.
pub fn show(store: &Store, node: &str, view: &mut Inner) {
    let found = store.get(&Key::new("nodes", "", node));
    let uid = found.and_then(|node| node["metadata"]["uid"].as_str()).unwrap_or_default().to_owned();
    let networks = networks(store);
    // A controller that promises the scheduler nothing that the node wants to hand back.
    let offered = networks.keys().map(|name| (name.clone(), 0)).collect();
    view.set_node(Node { uid, pod_limit: PODS as u64, offered, ..Node::default() });
    view.set_networks(networks);
    view.namespaces.insert("ns".into(), BTreeMap::new());
    let pods = store.all("pods").filter(|(_, pod)| pod["spec"]["nodeName"] == node);
    view.pods = pods.filter_map(|(_, pod)| read(pod)).map(|pod| (pod.key.uid.clone(), pod)).collect();
}
