use serde_json::{Value, json};

use super::*;

fn network(name: &str, edit: &Value) -> Network {
    let mut object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": name, "uid": format!("uid-{name}") },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                  "ipam": { "ranges": [{ "cidr": "10.0.0.0/29" }, { "cidr": "10.1.0.0/24" }] } },
        "status": { "ranges": [{ "cidr": "10.0.0.0/29", "blockPrefix": 30, "state": "Admitted" },
                               { "cidr": "10.1.0.0/24", "blockPrefix": 28, "state": "Admitted" }],
            "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }
    });
    merge(&mut object, edit);
    serde_json::from_value(object).unwrap()
}

fn merge(object: &mut Value, edit: &Value) {
    match (object, edit) {
        (Value::Object(object), Value::Object(edit)) => {
            edit.iter().for_each(|(key, value)| merge(object.entry(key).or_insert(Value::Null), value));
        }
        (object, edit) => *object = edit.clone(),
    }
}

fn block(node: &str, cidr: &str, status: &Value) -> IPBlock {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": cidr },
        "spec": { "space": "default", "network": "blue", "networkUID": "uid-blue", "nodeName": node, "cidr": cidr }, "status": status
    }))
    .unwrap()
}

fn record(addresses: &[&str]) -> PodNetwork {
    let attachments: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "network": "blue", "networkUID": "uid-blue", "interface": "net1", "mac": "02:00:00:00:00:01",
            "addresses": [{ "address": address, "block": "b", "blockUID": "bu" }] }))
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork", "metadata": { "namespace": "ns", "name": "p" },
        "spec": { "podName": "p", "podUID": "u", "nodeName": "node1", "attachments": attachments }
    }))
    .unwrap()
}

fn offer(node: &str, networks: &Value) -> NodeNetwork {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeNetwork", "metadata": { "name": node }, "spec": {},
        "status": { "networks": networks }
    }))
    .unwrap()
}

struct Case {
    networks: Vec<Network>,
    offers: Vec<NodeNetwork>,
    blocks: Vec<IPBlock>,
    records: Vec<PodNetwork>,
    known: bool,
    room: Option<BTreeMap<String, u64>>,
}

impl Case {
    fn new(edit: &Value) -> Self {
        let networks = vec![network("blue", edit)];
        let offers =
            vec![offer("node1", &json!([{ "name": "blue", "ready": true, "free": 3, "claimable": 64 }]))];
        Self { networks, offers, blocks: vec![], records: vec![], known: true, room: None }
    }

    fn ask(&self, request: &str) -> Fit {
        let annotations = Labels::from([(names::NETWORKS_ANNOTATION.to_owned(), request.to_owned())]);
        let empty = Labels::new();
        let pod = Pod {
            labels: &empty,
            annotations: &annotations,
            namespace: "ns",
            namespace_labels: &empty,
            stateful_set: None,
            host_network: false,
        };
        let node = Node { name: "node1", labels: &empty, room: self.room.as_ref() };
        let world = World {
            networks: &self.networks,
            offers: &self.offers,
            holdings: self.known.then_some((&self.blocks[..], &self.records[..])),
            now: Timestamp::UNIX_EPOCH,
        };
        fit(pod, &[node], world)
    }

    /// Ranges, those to be claimed from marked with `+`; or the reasons.
    fn say(&self, request: &str) -> Vec<String> {
        let fit = self.ask(request);
        let node = fit.nodes.first();
        let obstacles = fit.obstacles.iter().chain(node.iter().flat_map(|node| &node.obstacles));
        let sources = node.iter().flat_map(|node| &node.planned).flat_map(|planned| &planned.sources);
        let range = |source: &Source| source.range.map_or("?".to_owned(), |range| range.to_string());
        let sources =
            sources.map(|source| format!("{}{}", range(source), if source.claims { "+" } else { "" }));
        sources.chain(obstacles.map(|obstacle| obstacle.reason.to_string())).collect()
    }
}

#[test]
fn owned_blocks_come_first_in_the_order_of_the_ranges_and_then_new_ones() {
    let mut case = Case::new(&json!({}));
    assert_eq!(case.say("blue"), ["10.0.0.0/29+"], "the node owns nothing yet");
    case.blocks = vec![block("node1", "10.0.0.4/30", &json!({})), block("node1", "10.1.0.0/28", &json!({}))];
    assert_eq!(case.say("blue"), ["10.0.0.0/29"]);
    case.records = vec![record(&["10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29"])];
    assert_eq!(case.say("blue"), ["10.1.0.0/24"], "its block of the first range is used up");
    assert_eq!(case.ask("blue").nodes_that_fit().collect::<Vec<_>>(), ["node1"]);
}

#[test]
fn a_reserved_address_is_of_no_range_that_nodes_hand_out() {
    let reserved = |allowed: bool| {
        Case::new(&json!({
            "spec": { "allowStatic": allowed, "ipam": {
                "ranges": [{ "cidr": "10.1.0.0/24" }, { "cidr": "10.9.0.0/28", "use": "Reserved" }] } },
            "status": { "ranges": [{ "cidr": "10.1.0.0/24", "blockPrefix": 28, "state": "Admitted" },
                                   { "cidr": "10.9.0.0/28", "blockPrefix": 32, "state": "Admitted", "use": "Reserved" }] }
        }))
    };
    let asking = r#"[{"name": "blue", "ips": ["10.9.0.3"]}]"#;
    assert_eq!(reserved(true).say(asking), ["?"]);
    assert_eq!(reserved(true).say("blue"), ["10.1.0.0/24+"], "others never get one");
    assert_eq!(reserved(false).say(asking), ["StaticNotAllowed"]);
}

#[test]
fn several_attachments_of_one_pod_need_several_addresses() {
    let mut case = Case::new(&json!({ "spec": { "ipam": { "maxBlocksPerNode": 1 } } }));
    case.blocks = vec![block("node1", "10.0.0.4/30", &json!({}))];
    case.records = vec![record(&["10.0.0.4/29", "10.0.0.5/29"])];
    assert_eq!(case.say("blue,blue"), ["10.0.0.0/29", "BlockLimit"]);
}

#[test]
fn addresses_in_quarantine_and_full_ranges_have_their_reasons() {
    let one = json!({ "spec": { "ipam": { "ranges": [{ "cidr": "10.0.0.0/29" }] } },
        "status": { "ranges": [{ "cidr": "10.0.0.0/29", "blockPrefix": 30, "state": "Admitted" }] } });
    let mut case = Case::new(&one);
    let resting =
        json!({ "quarantined": [{ "address": "10.0.0.6", "until": "2030-01-01T00:00:00Z", "podUID": "u" }] });
    case.blocks = vec![block("node1", "10.0.0.4/30", &resting), block("node2", "10.0.0.0/30", &json!({}))];
    case.records = vec![record(&["10.0.0.4/29", "10.0.0.5/29"])];
    assert_eq!(case.say("blue"), ["QuarantinedUntil"]);
    case.records = vec![record(&["10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29"])];
    assert_eq!(case.say("blue"), ["NoAddresses"]);
}

#[test]
fn without_blocks_the_answer_goes_by_what_the_node_says() {
    let mut case = Case { known: false, ..Case::new(&json!({})) };
    assert_eq!(case.say("blue"), ["?"], "of one of two ranges");
    case.offers =
        vec![offer("node1", &json!([{ "name": "blue", "ready": true, "free": 0, "claimable": 64 }]))];
    assert_eq!(case.say("blue"), ["?+"]);
    case.offers =
        vec![offer("node1", &json!([{ "name": "blue", "ready": true, "free": 0, "claimable": 0 }]))];
    assert_eq!(case.say("blue"), ["NoAddresses"]);
}

#[test]
fn every_obstacle_has_the_reason_that_the_pod_would_show() {
    let case = Case::new(&json!({}));
    assert_eq!(case.say("red"), ["NetworkNotFound"]);
    assert_eq!(case.say("blue@eth0"), ["InvalidRequest"]);
    let say = |edit: Value| Case::new(&edit).say("blue");
    assert_eq!(
        say(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })),
        ["NetworkTerminating"]
    );
    let nowhere = json!({ "status": { "conditions": [] } });
    let reasons = Case::new(&nowhere).ask("blue").obstacles.iter().map(|o| o.reason).collect::<Vec<_>>();
    assert_eq!(reasons, [Reason::NetworkNotAccepted]);
    assert_eq!(say(json!({ "spec": { "nodeSelector": { "rack": "1" } } })), ["NetworkNotOnNode"]);
    let other = json!({ "from": "Selector", "selector": { "matchLabels": { "team": "a" } } });
    let closed = Case::new(&json!({ "spec": { "allowedNamespaces": other } })).ask("blue");
    assert_eq!(closed.obstacles[0].reason, Reason::NamespaceNotAllowed);
    assert_eq!(closed.nodes_that_fit().count(), 0);
    let mut case = Case::new(&json!({}));
    case.offers = vec![offer(
        "node1",
        &json!([{ "name": "blue", "ready": false, "reason": "ParentDown", "message": "eth1 is down" }]),
    )];
    assert_eq!(case.say("blue"), ["ParentDown"]);
}

#[test]
fn the_scheduler_has_its_say() {
    let case = Case { room: Some(BTreeMap::from([("blue".to_owned(), 1)])), ..Case::new(&json!({})) };
    assert_eq!(case.say("blue"), ["10.0.0.0/29+"]);
    assert_eq!(case.say("blue,blue"), ["10.0.0.0/29+", "NoAddresses"]);
    let uncounted = json!({ "spec": { "exhaustion": { "resource": false } } });
    let case = Case { room: Some(BTreeMap::new()), ..Case::new(&uncounted) };
    assert_eq!(case.say("blue"), ["10.0.0.0/29+"]);
}

#[test]
fn a_pod_that_asks_for_nothing_gets_what_the_rules_give() {
    let rule = json!({ "spec": { "attach": [{ "podSelector": { "matchLabels": { "tier": "data" } } }] } });
    let case = Case::new(&rule);
    let (tier, empty) = (Labels::from([("tier".to_owned(), "data".to_owned())]), Labels::new());
    let enabled = Labels::from([(names::ATTACH_LABEL.to_owned(), names::ATTACH_ENABLED.to_owned())]);
    let planned = |namespace_labels| {
        let pod = Pod {
            labels: &tier,
            annotations: &empty,
            namespace: "ns",
            namespace_labels,
            stateful_set: None,
            host_network: false,
        };
        let node = Node { name: "node1", labels: &empty, room: None };
        let world = World {
            networks: &case.networks,
            offers: &case.offers,
            holdings: None,
            now: Timestamp::UNIX_EPOCH,
        };
        fit(pod, &[node], world).nodes[0].planned.len()
    };
    assert_eq!((planned(&enabled), planned(&empty)), (1, 0));
}
