//! All accepted Networks, compiled into the parameter of the mutating policy. Pure.

use fairlead_crds::admission::{AdmittedNetwork, CompiledAttach, HeldBy};
use fairlead_crds::{AdmissionSpec, Network};
use serde_json::{Map, Value, json};

use super::hold;

/// What `Admission/default` has to say, sorted by name of the Network. `gated`: whether new pods of an accepted Network
/// get the scheduling gate. `auto`: what holds pods whose networks leave it open.
pub fn compile(networks: &[Network], gated: &dyn Fn(&Network) -> bool, auto: HeldBy) -> AdmissionSpec {
    let usable = |network: &&Network| network.is_accepted() && network.metadata.deletion_timestamp.is_none();
    let mut accepted: Vec<&Network> = networks.iter().filter(usable).collect();
    accepted.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    AdmissionSpec {
        hold: auto,
        networks: accepted.iter().map(|network| admitted(network, gated(network), auto)).collect(),
        attach: accepted.iter().flat_map(|network| attach(network)).collect(),
        uninstalling: false,
    }
}

/// Whether two differ in nothing but who gets the scheduling gate, which the controller lifts soon where it is wrong.
pub fn differ_in_gates_only(one: &AdmissionSpec, other: &AdmissionSpec) -> bool {
    let same =
        |(a, b): (&AdmittedNetwork, &AdmittedNetwork)| *a == AdmittedNetwork { gated: a.gated, ..b.clone() };
    one != other
        && one.hold == other.hold
        && one.attach == other.attach
        && one.networks.len() == other.networks.len()
        && one.networks.iter().zip(&other.networks).all(same)
}

/// The smallest merge patch from what is there to what is wanted; `None` if nothing differs.
pub fn patch(current: &AdmissionSpec, wanted: &AdmissionSpec) -> Option<Value> {
    let mut spec = Map::new();
    if current.hold != wanted.hold {
        spec.insert("hold".to_owned(), json!(wanted.hold));
    }
    if current.networks != wanted.networks {
        spec.insert("networks".to_owned(), json!(wanted.networks));
    }
    if current.attach != wanted.attach {
        spec.insert("attach".to_owned(), json!(wanted.attach));
    }
    (!spec.is_empty()).then(|| json!({ "spec": spec }))
}

fn admitted(network: &Network, gated: bool, auto: HeldBy) -> AdmittedNetwork {
    AdmittedNetwork {
        name: network.metadata.name.clone().unwrap_or_default(),
        resource: network.spec.exhaustion.resource,
        gated,
        hold: hold::of(network, auto),
    }
}

fn attach(network: &Network) -> Vec<CompiledAttach> {
    let name = network.metadata.name.clone().unwrap_or_default();
    let rules = network.spec.attach.iter().map(|rule| CompiledAttach {
        network: name.clone(),
        interface: rule.interface.clone(),
        namespace_selector: rule.namespace_selector.clone(),
        pod_selector: rule.pod_selector.clone(),
    });
    rules.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(name: &str, accepted: &str, deleted: bool) -> Network {
        let mut object = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": name },
            "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                      "exhaustion": { "resource": false }, "attach": [{ "podSelector": { "matchLabels": { "on": name } } }] },
            "status": { "conditions": [{ "type": "Accepted", "status": accepted, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }
        });
        if deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_accepted_living_networks_are_compiled_and_in_the_order_of_their_names() {
        let all = [
            network("red", "True", false),
            network("gone", "True", true),
            network("bad", "False", false),
            network("blue", "True", false),
        ];
        let spec = compile(&all, &|_| false, HeldBy::Gate);
        assert_eq!(
            spec.networks.iter().map(|n| (n.name.as_str(), n.resource)).collect::<Vec<_>>(),
            [("blue", false), ("red", false)]
        );
        assert_eq!(spec.attach.iter().map(|a| a.network.as_str()).collect::<Vec<_>>(), ["blue", "red"]);
    }

    #[test]
    fn only_what_differs_is_written() {
        let open = |_: &Network| false;
        let (one, two) = (
            compile(&[network("blue", "True", false)], &open, HeldBy::Gate),
            compile(&[], &open, HeldBy::Gate),
        );
        assert_eq!(patch(&one, &one), None);
        let partly = AdmissionSpec { attach: vec![], ..one.clone() };
        let patch = patch(&partly, &one).unwrap();
        assert!(
            patch["spec"]["attach"].is_array()
                && patch["spec"].get("networks").is_none()
                && two.networks.is_empty()
        );
        let switched = super::patch(&one, &AdmissionSpec { hold: HeldBy::Nri, ..one.clone() });
        assert_eq!(switched, Some(json!({ "spec": { "hold": "Nri" } })));
    }

    #[test]
    fn a_change_of_gates_alone_is_told_from_any_other() {
        let all = [network("blue", "True", false), network("red", "True", false)];
        let open = compile(&all, &|_| false, HeldBy::Gate);
        let red = |network: &Network| network.metadata.name.as_deref() == Some("red");
        let gated = compile(&all, &red, HeldBy::Gate);
        assert!(!open.networks[1].gated && gated.networks[1].gated && !gated.networks[0].gated);
        assert!(differ_in_gates_only(&open, &gated));
        assert!(!differ_in_gates_only(&open, &open), "nothing differs");
        assert!(!differ_in_gates_only(&open, &compile(&all[..1], &|_| true, HeldBy::Gate)));
        assert!(!differ_in_gates_only(&open, &compile(&all, &red, HeldBy::Nri)), "what holds pods differs");
        assert!(!differ_in_gates_only(&open, &AdmissionSpec { attach: vec![], ..gated }));
    }
}
