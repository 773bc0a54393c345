use serde_json::{Value, json};

use super::*;
use crate::request;

fn network(edit: &Value) -> Network {
    let admitted = |cidr: &str, usage: &str, more: Value| {
        let mut range = json!({ "cidr": cidr, "blockPrefix": 32, "use": usage, "state": "Admitted" });
        range.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        range
    };
    let mut value = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue" },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                  "allowStatic": true, "ipam": { "ranges": [], "identity": "None" } },
        "status": { "ranges": [
            admitted("10.20.0.0/16", "Pods", json!({ "exclude": ["10.20.255.0/24"] })),
            admitted("10.20.255.0/24", "Reserved", json!({ "gateway": "10.20.255.1", "exclude": ["10.20.255.16/28"] })),
            admitted("10.30.0.0/24", "Reserved", json!({ "state": "Draining" })),
        ] }
    });
    for (path, to) in edit.as_object().unwrap() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[field] = to.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn ask(edit: &Value, ips: &[&str], set: Option<&str>) -> Result<Vec<(String, String)>, (Reason, String)> {
    let network = network(edit);
    let request = json!([{ "name": "blue", "ips": ips }]).to_string();
    let request = request::parse(&request).unwrap().remove(0);
    let asks = asks(&network, &request, set).map_err(|refusal| (refusal.reason, refusal.message))?;
    let shown = |ask: &Ask| {
        let address = ask.value.unwrap_or_else(|| "10.20.255.2".parse().unwrap());
        (
            ask.value.map_or("kept".into(), |value| value.to_string()),
            on_interface(&network, ask, address).to_string(),
        )
    };
    Ok(asks.iter().map(shown).collect())
}

fn refusal(edit: &Value, ips: &[&str]) -> String {
    ask(edit, ips, None).unwrap_err().1
}

#[test]
fn an_address_by_value_gets_the_prefix_of_the_range_it_was_cut_out_of() {
    let value = |text: &str| ask(&json!({}), &[text], None).unwrap().remove(0);
    assert_eq!(value("10.20.255.7"), ("10.20.255.7".into(), "10.20.255.7/16".into()));
    assert_eq!(value("10.20.255.7/24"), ("10.20.255.7".into(), "10.20.255.7/24".into()));
    assert_eq!(
        refusal(&json!({}), &["10.20.255.7/25"]),
        "address 10.20.255.7/25 of network blue: the prefix length must be that of 10.20.0.0/16 or 10.20.255.0/24; leave it out to get the right one"
    );
}

#[test]
fn every_address_that_cannot_be_given_has_its_sentence() {
    let none = json!({});
    for (ip, sentence) in [
        (
            "10.20.0.5",
            "address 10.20.0.5 of network blue lies in 10.20.0.0/16, whose addresses are handed out to any pod; exclude a part of it and add that part as a range with use: Reserved",
        ),
        (
            "10.20.255.1",
            "address 10.20.255.1 of network blue is the gateway of 10.20.255.0/24; ask for another",
        ),
        (
            "10.20.255.0",
            "address 10.20.255.0 of network blue is the network address of 10.20.255.0/24; ask for another",
        ),
        (
            "10.20.255.255",
            "address 10.20.255.255 of network blue is the broadcast address of 10.20.255.0/24; ask for another",
        ),
        (
            "10.20.255.20",
            "address 10.20.255.20 of network blue is excluded from 10.20.255.0/24; ask for another, or change the exclude",
        ),
        (
            "10.30.0.5",
            "address 10.30.0.5 of network blue lies in 10.30.0.0/24, which was removed from the network and drains",
        ),
        (
            "192.168.0.1",
            "address 192.168.0.1 of network blue lies in no range of it; addresses can be asked for in 10.20.255.0/24",
        ),
        (
            "fd00::7",
            "address fd00::7 of network blue lies in no range, and the network has no IPv6 range with use: Reserved; add one",
        ),
    ] {
        assert_eq!(refusal(&none, &[ip]), sentence);
    }
    let two = "ips of network blue: at most one address of each family can be asked for";
    assert_eq!(refusal(&none, &["10.20.255.7", "10.20.255.8"]), two);
}

#[test]
fn values_need_the_networks_word() {
    let (reason, message) = ask(&json!({ "/spec/allowStatic": false }), &["10.20.255.7"], None).unwrap_err();
    assert_eq!(reason, Reason::StaticNotAllowed);
    assert!(message.contains("allowStatic"), "{message}");
}

#[test]
fn a_hardware_address_is_unicast() {
    let check = |mac: &str| {
        let request = format!(r#"[{{"name":"blue","mac":"{mac}"}}]"#);
        asks(&network(&json!({})), &request::parse(&request).unwrap()[0], None)
    };
    assert_eq!(check("52:54:00:12:34:56"), Ok(vec![]));
    assert!(check("01:00:5e:00:00:01").unwrap_err().message.contains("multicast"));
    assert!(check("00:00:00:00:00:00").unwrap_err().message.contains("no address"));
}

#[test]
fn a_stateful_set_keeps_an_address_of_every_family_with_a_reserved_range() {
    let sticky = json!({ "/spec/ipam/identity": "StatefulSet" });
    assert_eq!(ask(&sticky, &[], Some("web")).unwrap(), [("kept".to_owned(), "10.20.255.2/16".to_owned())]);
    assert_eq!(
        ask(&sticky, &["10.20.255.7"], Some("web")).unwrap()[0].0,
        "10.20.255.7",
        "by value comes first"
    );
    assert_eq!(ask(&sticky, &[], None), Ok(vec![]), "other pods take from the other ranges");
    assert_eq!(ask(&json!({}), &[], Some("web")), Ok(vec![]), "the network has no identity");
}

#[test]
fn a_network_of_reserved_addresses_says_who_gets_one() {
    let ranges =
        json!([{ "cidr": "10.0.0.0/24", "blockPrefix": 32, "use": "Reserved", "state": "Admitted" }]);
    let only = |edit: Value| {
        let mut all = json!({ "/status/ranges": ranges });
        all.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        refusal(&all, &[])
    };
    assert_eq!(only(json!({})), "network blue has reserved addresses only: ask for one in ips");
    assert_eq!(
        only(json!({ "/spec/ipam/identity": "StatefulSet", "/spec/allowStatic": false })),
        "network blue has reserved addresses only: only pods of StatefulSets get one"
    );
}

#[test]
fn a_pod_is_of_a_stateful_set_by_its_controller_and_its_ordinal() {
    let owner = |kind: &str, name: &str, controller: bool| OwnerReference {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        controller: Some(controller),
        ..OwnerReference::default()
    };
    assert_eq!(stateful_set("web-0", &[owner("StatefulSet", "web", true)]).as_deref(), Some("web"));
    for (pod, owner) in [
        ("web-0", owner("StatefulSet", "web", false)),
        ("web-0", owner("ReplicaSet", "web", true)),
        ("web-x", owner("StatefulSet", "web", true)),
        ("other-0", owner("StatefulSet", "web", true)),
    ] {
        assert_eq!(stateful_set(pod, &[owner]), None, "{pod}");
    }
}

#[test]
fn attachments_are_numbered_per_network() {
    let requests = request::parse("blue,red,blue").unwrap();
    let numbers: Vec<_> = numbered(&requests).map(|(n, request)| (n, request.network.as_str())).collect();
    assert_eq!(numbers, [(0, "blue"), (0, "red"), (1, "blue")]);
}
