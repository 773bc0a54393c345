use fairlead_crds::request;
use serde_json::{Value, json};

use super::*;

fn want() -> (Wanted, Ask) {
    let network: fairlead_crds::Network = serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue", "uid": "n" },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" }, "allowStatic": true,
                  "ipam": { "ranges": [] } },
        "status": { "ranges": [{ "cidr": "10.0.0.0/29", "blockPrefix": 32, "use": "Reserved", "state": "Admitted" }] }
    }))
    .unwrap();
    let request = request::parse(r#"[{"name":"blue","ips":["10.0.0.3"]}]"#).unwrap().remove(0);
    let asks = reserved::asks(&network, &request, None).unwrap();
    let (network, interface) = ("blue".to_owned(), "net1".parse().unwrap());
    let want =
        Wanted { network, network_uid: "n".into(), interface, attachment: 0, mac: None, asks: asks.clone() };
    (want, asks[0])
}

fn why(edit: Option<Value>) -> String {
    let block = edit.map(|edit| {
        let mut block = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": "b" },
            "spec": { "space": "default", "network": "blue", "networkUID": "n", "nodeName": "", "cidr": "10.0.0.3/32",
                      "claim": { "pod": "team/one" } },
        });
        block["spec"].as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        serde_json::from_value(block).unwrap()
    });
    let pod = PodKey { namespace: "team".into(), name: "one".into(), uid: "u".into() };
    let (want, ask) = want();
    let problem = why_not(&want, &ask, block.as_slice(), &pod);
    assert_eq!(problem.reason, Reason::AwaitingAddress);
    problem.message
}

#[test]
fn a_pod_is_told_whom_its_address_waits_for() {
    let held = json!({ "nodeName": "node2", "holder": { "podUID": "old", "turn": 1 } });
    assert_eq!(
        why(Some(held)),
        "address 10.0.0.3 of network blue is held by an earlier pod team/one on node node2; it is handed on once that pod is proven gone"
    );
    let given = "address 10.0.0.3 of network blue is reserved for the pod; fairlead-controller has not given it to this node yet";
    assert_eq!(why(Some(json!({}))), given);
    assert!(why(None).contains("delete the pod to have it created again"));
    assert!(why(Some(json!({ "networkUID": "other" }))).contains("is granted to pod team/one"));
}
