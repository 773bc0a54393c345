//! Why a pod without a node waits for its networks. Pure.

use fairlead_crds::{Network, Reason};

use super::model::WaitingPod;
use super::scheduling::{self, Why, World};

/// What stands in the way of a pod's networks; `None` if nothing does, so that the scheduler's word counts.
pub fn why(pod: &WaitingPod, world: &World<'_>) -> Option<Why> {
    let hold = || (pod.nri && !world.strict).then(no_strict_node);
    let nodes = || {
        let names = scheduling::networks(pod).unwrap_or_default();
        names.iter().find_map(|name| check_nodes(name, world.networks.get(name)?, world))
    };
    scheduling::holds(pod, world).or_else(hold).or_else(nodes)
}

fn no_strict_node() -> Why {
    let message = "the container runtime holds the pod, which needs a node that is nri-strict, and no ready node is; see kubectl get nodenetworks";
    Why::new(Reason::NoStrictNode, message)
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

fn check_nodes(name: &str, network: &Network, world: &World<'_>) -> Option<Why> {
    if scheduling::on_nodes(name, world.offers).next().is_some() {
        return None;
    }
    let selector = if network.spec.node_selector.is_empty() { "" } else { ", see its nodeSelector" };
    let message = format!("network {name} is not ready on any node{selector}; see kubectl get nodenetworks");
    Some(Why::new(Reason::NetworkNotOnNode, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::model::NodeOffer;
    use super::super::scheduling::tests::{network, offer, pod};
    use super::*;

    fn reason(request: &str, offer: &NodeOffer, full: bool) -> Option<Reason> {
        let networks = BTreeMap::from([("blue".to_owned(), network(&json!({})))]);
        reason_of(&pod(request), &networks, offer, full, false)
    }

    fn reason_of(
        pod: &WaitingPod,
        networks: &BTreeMap<String, Network>,
        offer: &NodeOffer,
        full: bool,
        strict: bool,
    ) -> Option<Reason> {
        let world = World {
            networks,
            offers: &[offer],
            namespace: None,
            full: &|_| full,
            strict,
            ungranted: &|_| None,
        };
        why(pod, &world).map(|why| why.reason)
    }

    #[test]
    fn a_pod_that_the_runtime_holds_needs_a_strict_node() {
        let networks = BTreeMap::from([("blue".to_owned(), network(&json!({})))]);
        let reason = |nri, strict| {
            reason_of(&WaitingPod { nri, ..pod("blue") }, &networks, &offer(true, 1), false, strict)
        };
        assert_eq!(reason(true, false), Some(Reason::NoStrictNode));
        assert_eq!((reason(true, true), reason(false, false)), (None, None));
    }

    #[test]
    fn a_pod_whose_networks_are_there_waits_for_the_scheduler_only() {
        assert_eq!(reason("blue", &offer(true, 1), true), None);
        assert_eq!(reason("blue", &offer(true, 0), false), None, "nodes can claim more");
        assert_eq!(reason("", &offer(false, 0), true), None, "it asks for nothing");
    }

    #[test]
    fn what_holds_a_pod_is_said_before_what_nodes_lack() {
        assert_eq!(reason("blue,red", &offer(false, 0), true), Some(Reason::NetworkNotFound));
        assert_eq!(reason("blue", &offer(false, 0), true), Some(Reason::NetworkNotOnNode));
        assert_eq!(reason("blue", &offer(true, 0), true), Some(Reason::NoAddresses));
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
