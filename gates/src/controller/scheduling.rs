//! The scheduling gate `fairlead.dev/scheduling`: which pods get it and how long it stays. Pure.
//!
//! Autoscalers do not see gated pods, so a gate never waits for what another node could bring: that is the
//! scheduler's to say.

use std::collections::BTreeMap;

use fairlead_crds::network::AllowedFrom;
use fairlead_crds::{Network, Reason, names, request};

use super::grant;
use super::model::{NodeOffer, WaitingPod};

/// What a pod's request is held against.
pub struct World<'a> {
    /// All Networks by name.
    pub networks: &'a BTreeMap<String, Network>,
    /// What every node can offer.
    pub offers: &'a [&'a NodeOffer],
    /// Labels of the pod's namespace, if it is known.
    pub namespace: Option<&'a BTreeMap<String, String>>,
    /// Whether no unclaimed block is left of a network (by its name).
    pub full: &'a dyn Fn(&str) -> bool,
    /// Whether some ready node is `nri-strict`.
    pub strict: bool,
    /// Why a pod's reserved addresses are not granted yet.
    pub ungranted: &'a dyn Fn(&WaitingPod) -> Option<Why>,
}

/// Why a pod waits, in one word and one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// The word.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
}

impl Why {
    /// A word and a sentence.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Whether new pods that ask for an accepted Network get the gate. The policy gates those that ask for another one.
/// `full`: whether no unclaimed block is left of it.
pub fn gates(network: &Network, offers: &[&NodeOffer], full: bool) -> bool {
    is_spent(network, offers, full) || grant::reserves(network)
}

/// Why a pod without a node must not be scheduled, whatever nodes there are; `None` when its gate goes.
pub fn holds(pod: &WaitingPod, world: &World<'_>) -> Option<Why> {
    match networks(pod) {
        Err(why) => Some(why),
        Ok(names) => {
            names.iter().find_map(|name| check(name, pod, world).err()).or_else(|| (world.ungranted)(pod))
        }
    }
}

/// Names of the networks that a pod asks for or was selected for, each once.
pub fn networks(pod: &WaitingPod) -> Result<Vec<String>, Why> {
    let mut all = Vec::new();
    for (annotation, value) in
        [(names::NETWORKS_ANNOTATION, &pod.requested), (names::SELECTED_ANNOTATION, &pod.selected)]
    {
        let requests = request::parse(value.as_deref().unwrap_or_default())
            .map_err(|error| Why::new(Reason::InvalidRequest, format!("annotation {annotation}: {error}")))?;
        all.extend(requests.into_iter().map(|request| request.network));
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn check(name: &str, pod: &WaitingPod, world: &World<'_>) -> Result<(), Why> {
    let missing = || {
        Why::new(
            Reason::NetworkNotFound,
            format!("network {name} does not exist; the pod goes on once it does"),
        )
    };
    let network = world.networks.get(name).ok_or_else(missing)?;
    if network.metadata.deletion_timestamp.is_some() {
        return Err(Why::new(Reason::NetworkTerminating, format!("network {name} is being deleted")));
    }
    check_accepted(name, network)?;
    check_namespace(name, network, pod, world)?;
    if is_spent(network, world.offers, (world.full)(name)) {
        let message = format!(
            "network {name} has no free address on any node and no unclaimed block left; delete pods that use it, or add a range"
        );
        return Err(Why::new(Reason::NoAddresses, message));
    }
    Ok(())
}

fn check_accepted(name: &str, network: &Network) -> Result<(), Why> {
    if network.is_accepted() {
        return Ok(());
    }
    let message = network.acceptance_message().unwrap_or("the controller has not looked at it yet");
    Err(Why::new(Reason::NetworkNotAccepted, format!("network {name} is not accepted: {message}")))
}

fn check_namespace(name: &str, network: &Network, pod: &WaitingPod, world: &World<'_>) -> Result<(), Why> {
    let allowed = &network.spec.allowed_namespaces;
    let Some(labels) = world.namespace else { return Ok(()) };
    if allowed.from == AllowedFrom::All
        || allowed.selector.as_ref().is_some_and(|selector| selector.matches(labels))
    {
        return Ok(());
    }
    Err(Why::new(
        Reason::NamespaceNotAllowed,
        format!("network {name} does not allow namespace {}", pod.namespace),
    ))
}

/// Whether nothing can be handed out anywhere: no unclaimed block is left, and no node that has the network has a free
/// address. A network that no node has is not spent, since a node may come.
fn is_spent(network: &Network, offers: &[&NodeOffer], full: bool) -> bool {
    let name = network.metadata.name.as_deref().unwrap_or_default();
    let mut here = on_nodes(name, offers).peekable();
    full && network.spec.ipam.is_some() && here.peek().is_some() && here.all(|free| free == 0)
}

/// The free addresses of each node on which a network is ready.
pub fn on_nodes<'a>(name: &'a str, offers: &'a [&'a NodeOffer]) -> impl Iterator<Item = u64> + 'a {
    let networks = offers.iter().flat_map(|offer| &offer.networks);
    networks.filter(move |offer| offer.name == name && offer.ready).map(|offer| offer.free)
}

#[cfg(test)]
pub(super) mod tests {
    use fairlead_crds::node_network::NetworkOnNode;
    use serde_json::{Value, json};

    use super::*;

    /// A Network `blue` that is accepted, changed by a merge patch.
    pub fn network(edit: &Value) -> Network {
        let mut object = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue" },
            "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                      "ipam": { "ranges": [{ "cidr": "10.0.0.0/29" }] } },
            "status": { "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }
        });
        json_patch::merge(&mut object, edit);
        serde_json::from_value(object).unwrap()
    }

    /// A pod that asks for these networks and was selected for none.
    pub fn pod(request: &str) -> WaitingPod {
        WaitingPod {
            namespace: "team".into(),
            requested: Some(request.into()),
            selected: Some("[]".into()),
            ..WaitingPod::default()
        }
    }

    /// What a node says of `blue`.
    pub fn offer(ready: bool, free: u64) -> NodeOffer {
        NodeOffer {
            networks: vec![NetworkOnNode { name: "blue".into(), ready, free, ..NetworkOnNode::default() }],
            ..NodeOffer::default()
        }
    }

    fn reason(request: &str, network: Network, offers: &[NodeOffer], full: bool) -> Option<Reason> {
        let networks = BTreeMap::from([("blue".to_owned(), network)]);
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let offers: Vec<&NodeOffer> = offers.iter().collect();
        let (namespace, full) = (Some(&labels), |_: &str| full);
        let world = World {
            networks: &networks,
            offers: &offers,
            namespace,
            full: &full,
            strict: false,
            ungranted: &|_| None,
        };
        holds(&pod(request), &world).map(|why| why.reason)
    }

    #[test]
    fn what_no_node_can_help_holds_a_pod_and_has_its_reason() {
        let ok = || network(&json!({}));
        let here = [offer(true, 1)];
        assert_eq!(reason("blue@eth0", ok(), &here, false), Some(Reason::InvalidRequest));
        assert_eq!(reason("red", ok(), &here, false), Some(Reason::NetworkNotFound));
        let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        assert_eq!(reason("blue", network(&deleted), &here, false), Some(Reason::NetworkTerminating));
        let unseen = network(&json!({ "status": null }));
        assert_eq!(reason("blue", unseen, &here, false), Some(Reason::NetworkNotAccepted));
        let other = json!({ "spec": { "allowedNamespaces": { "from": "Selector", "selector": { "matchLabels": { "team": "b" } } } } });
        assert_eq!(reason("blue", network(&other), &here, false), Some(Reason::NamespaceNotAllowed));
        assert_eq!(reason("blue", ok(), &[offer(true, 0)], true), Some(Reason::NoAddresses));
    }

    #[test]
    fn what_another_node_could_help_holds_no_pod() {
        let ok = || network(&json!({}));
        assert_eq!(reason("blue", ok(), &[offer(true, 0), offer(true, 1)], true), None, "a node has one");
        assert_eq!(reason("blue", ok(), &[offer(true, 0)], false), None, "nodes can claim more");
        assert_eq!(reason("blue", ok(), &[offer(false, 0)], true), None, "no node has the network");
        assert_eq!(reason("blue", ok(), &[], true), None, "there is no node");
        assert_eq!(reason("", ok(), &[], true), None, "it asks for nothing");
        let without_addresses = network(&json!({ "spec": { "ipam": null } }));
        assert_eq!(reason("blue", without_addresses, &[offer(true, 0)], true), None);
    }

    #[test]
    fn pods_of_a_network_are_gated_exactly_while_it_would_hold_them() {
        for (free, full) in [(0, true), (1, true), (0, false)] {
            let (blue, offers) = (network(&json!({})), [offer(true, free)]);
            let held = reason("blue", blue.clone(), &offers, full).is_some();
            assert_eq!(gates(&blue, &[&offers[0]], full), held, "{free} free, full: {full}");
        }
    }

    #[test]
    fn a_selected_network_counts_like_an_asked_one_and_each_once() {
        let pod = WaitingPod { selected: Some(r#"[{"name":"red"},{"name":"blue"}]"#.into()), ..pod("blue") };
        assert_eq!(networks(&pod).unwrap(), ["blue", "red"]);
    }
}
