//! Why a pod without a node waits for its networks. Pure.

use std::collections::BTreeMap;

use fairlead_crds::network::AllowedFrom;
use fairlead_crds::{ConditionType, Network, Reason, names, request};

use super::admit;
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
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What stands in the way of a pod's networks; `None` if nothing does, so that the scheduler's word counts.
pub fn why(pod: &WaitingPod, world: &World<'_>) -> Option<Why> {
    match networks(pod) {
        Err(why) => Some(why),
        Ok(names) => names.iter().find_map(|name| check(name, pod, world).err()),
    }
}

/// The condition that a pod's status should get: the obstacle, or, once it is gone, that there is none any more.
pub fn condition(pod: &WaitingPod, why: Option<&Why>) -> Option<Why> {
    let nothing = Why::new(Reason::Waiting, "its networks are available; the pod has no node yet");
    let wanted = match why {
        Some(why) => why.clone(),
        None => pod.condition.is_some().then_some(nothing)?,
    };
    let is = pod
        .condition
        .as_ref()
        .is_some_and(|(reason, message)| *reason == wanted.reason.as_str() && *message == wanted.message);
    (!is).then_some(wanted)
}

fn networks(pod: &WaitingPod) -> Result<Vec<String>, Why> {
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
    check_nodes(name, network, world)
}

fn check_accepted(name: &str, network: &Network) -> Result<(), Why> {
    if admit::is_accepted(network) {
        return Ok(());
    }
    let conditions = network.status.iter().flat_map(|status| &status.conditions);
    let accepted =
        conditions.into_iter().find(|condition| condition.type_ == ConditionType::Accepted.as_str());
    let message = accepted.map_or("the controller has not looked at it yet", |condition| &condition.message);
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

fn check_nodes(name: &str, network: &Network, world: &World<'_>) -> Result<(), Why> {
    let here = world
        .offers
        .iter()
        .flat_map(|offer| &offer.networks)
        .filter(|offer| offer.name == name && offer.ready);
    let (count, free) = here.fold((0, 0), |(count, free), offer| (count + 1, free + offer.free));
    if count == 0 {
        let selector = if network.spec.node_selector.is_empty() { "" } else { ", see its nodeSelector" };
        let message =
            format!("network {name} is not ready on any node{selector}; see kubectl get nodenetworks");
        return Err(Why::new(Reason::NetworkNotOnNode, message));
    }
    if network.spec.ipam.is_some() && free == 0 && (world.full)(name) {
        let message = format!(
            "network {name} has no free address on any node and no unclaimed block left; delete pods that use it, or add a range"
        );
        return Err(Why::new(Reason::NoAddresses, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fairlead_crds::node_network::NetworkOnNode;
    use serde_json::{Value, json};

    use super::*;

    fn network(edit: &Value) -> Network {
        let mut object = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue" },
            "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                      "ipam": { "ranges": [{ "cidr": "10.0.0.0/29" }] } },
            "status": { "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }
        });
        json_patch::merge(&mut object, edit);
        serde_json::from_value(object).unwrap()
    }

    fn pod(request: &str) -> WaitingPod {
        WaitingPod {
            namespace: "team".into(),
            requested: Some(request.into()),
            selected: Some("[]".into()),
            ..WaitingPod::default()
        }
    }

    fn reason(request: &str, network: Network, free: u64, ready: bool, full: bool) -> Option<Reason> {
        let networks = BTreeMap::from([("blue".to_owned(), network)]);
        let offer = NodeOffer {
            node: "n".into(),
            fenced: false,
            networks: vec![NetworkOnNode { name: "blue".into(), ready, free, ..NetworkOnNode::default() }],
        };
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let world =
            World { networks: &networks, offers: &[&offer], namespace: Some(&labels), full: &|_| full };
        why(&pod(request), &world).map(|why| why.reason)
    }

    #[test]
    fn a_pod_whose_networks_are_there_waits_for_the_scheduler_only() {
        assert_eq!(reason("blue", network(&json!({})), 1, true, true), None);
        assert_eq!(reason("blue", network(&json!({})), 0, true, false), None, "nodes can claim more");
        assert_eq!(reason("", network(&json!({})), 0, false, true), None, "it asks for nothing");
    }

    #[test]
    fn every_obstacle_has_its_reason() {
        let ok = || network(&json!({}));
        assert_eq!(reason("blue@eth0", ok(), 1, true, false), Some(Reason::InvalidRequest));
        assert_eq!(reason("red", ok(), 1, true, false), Some(Reason::NetworkNotFound));
        assert_eq!(
            reason(
                "blue",
                network(&json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })),
                1,
                true,
                false
            ),
            Some(Reason::NetworkTerminating)
        );
        assert_eq!(
            reason("blue", network(&json!({ "status": null })), 1, true, false),
            Some(Reason::NetworkNotAccepted)
        );
        let other = json!({ "spec": { "allowedNamespaces": { "from": "Selector", "selector": { "matchLabels": { "team": "b" } } } } });
        assert_eq!(reason("blue", network(&other), 1, true, false), Some(Reason::NamespaceNotAllowed));
        assert_eq!(reason("blue", ok(), 1, false, false), Some(Reason::NetworkNotOnNode));
        assert_eq!(reason("blue", ok(), 0, true, true), Some(Reason::NoAddresses));
    }

    #[test]
    fn a_selected_network_counts_like_an_asked_one() {
        let pod = WaitingPod { requested: None, selected: Some(r#"[{"name":"red"}]"#.into()), ..pod("") };
        let world = World { networks: &BTreeMap::new(), offers: &[], namespace: None, full: &|_| false };
        assert_eq!(why(&pod, &world).unwrap().reason, Reason::NetworkNotFound);
    }

    #[test]
    fn a_condition_is_written_only_when_it_changes_and_taken_back_when_the_obstacle_is_gone() {
        let why = Why::new(Reason::NetworkNotFound, "m");
        let mut pod = pod("red");
        assert_eq!(condition(&pod, None), None, "a pod that just starts costs no write");
        assert_eq!(condition(&pod, Some(&why)), Some(why.clone()));
        pod.condition = Some(("NetworkNotFound".into(), "m".into()));
        assert_eq!(condition(&pod, Some(&why)), None);
        let gone = condition(&pod, None).unwrap();
        assert_eq!(gone.reason, Reason::Waiting);
        pod.condition = Some((gone.reason.as_str().into(), gone.message));
        assert_eq!(condition(&pod, None), None);
    }
}
