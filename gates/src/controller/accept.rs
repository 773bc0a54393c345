//! Whether this version can do all that a Network asks for. Pure.
//!
//! What is not built is refused by name, never ignored.

use fairlead_crds::network::Gateway;
use fairlead_crds::{NetworkSpec, Reason};

/// Why a Network is not accepted, in one word and one sentence.
pub type Refusal = (Reason, String);

/// The first thing of a spec that this version does not have.
pub fn unsupported(spec: &NetworkSpec) -> Option<Refusal> {
    let driver = spec.driver();
    if driver != "bridge" {
        return Some((
            Reason::DriverNotYetSupported,
            format!("this version does not have the driver {driver}"),
        ));
    }
    let field = fields(spec).into_iter().find_map(|(set, path)| set.then_some(path))?;
    Some((Reason::FieldNotYetSupported, format!("this version does not have spec.{field}")))
}

fn fields(spec: &NetworkSpec) -> [(bool, &'static str); 5] {
    let bridge = |test: fn(&fairlead_crds::network::Bridge) -> bool| spec.bridge.as_ref().is_some_and(test);
    [
        (bridge(|b| b.uplink.vxlan.is_some()), "bridge.uplink.vxlan"),
        (bridge(|b| b.uplink.vlan.is_some()), "bridge.uplink.vlan"),
        (bridge(|b| b.gateway == Gateway::Node), "bridge.gateway: Node"),
        (bridge(|b| b.masquerade), "bridge.masquerade"),
        (bridge(|b| b.anti_spoof), "bridge.antiSpoof"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(edit: &Value) -> Option<(Reason, String)> {
        let mut spec = json!({
            "bridge": { "name": "br0", "uplink": { "none": {} } },
            "ipam": { "ranges": [{ "cidr": "10.0.0.0/24" }] },
            "allowedNamespaces": { "from": "All" }
        });
        json_patch::merge(&mut spec, edit);
        unsupported(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_plain_bridge_network_is_supported() {
        for edit in [
            json!({}),
            json!({ "hold": "Gate" }),
            json!({ "hold": "Nri" }),
            json!({ "unheld": "Evict" }),
            json!({ "ipam": { "probe": "300ms" } }),
            json!({ "allowStatic": true, "ipam": { "identity": "StatefulSet", "ranges": [{ "cidr": "10.0.0.0/24", "use": "Reserved" }] } }),
            json!({ "bridge": { "uplink": { "none": null, "interface": "eth1" } } }),
        ] {
            assert_eq!(check(&edit), None, "{edit}");
        }
    }

    #[test]
    fn every_other_driver_is_refused_by_name() {
        for (driver, config) in [
            ("macvlan", json!({ "parent": { "interface": "eth1" } })),
            ("ipvlan", json!({ "parent": { "interface": "eth1" } })),
            ("hostDevice", json!({ "selector": { "names": ["eth*"] } })),
            ("cni", json!({ "config": "{}" })),
        ] {
            let (reason, message) = check(&json!({ "bridge": null, driver: config })).unwrap();
            assert_eq!(reason, Reason::DriverNotYetSupported);
            assert!(message.ends_with(driver), "{message}");
        }
    }

    #[test]
    fn every_field_that_is_not_built_is_refused_by_its_path() {
        for (edit, path) in [
            (
                json!({ "bridge": { "uplink": { "none": null, "vxlan": { "id": 7 } } } }),
                "spec.bridge.uplink.vxlan",
            ),
            (
                json!({ "bridge": { "uplink": { "none": null, "interface": "eth1", "vlan": 7 } } }),
                "spec.bridge.uplink.vlan",
            ),
            (json!({ "bridge": { "gateway": "Node" } }), "spec.bridge.gateway: Node"),
            (json!({ "bridge": { "masquerade": true } }), "spec.bridge.masquerade"),
            (json!({ "bridge": { "antiSpoof": true } }), "spec.bridge.antiSpoof"),
        ] {
            let (reason, message) = check(&edit).unwrap();
            assert_eq!(reason, Reason::FieldNotYetSupported, "{edit}");
            assert!(message.ends_with(path), "{message}");
        }
    }
}
