//! What Nodes offer the scheduler, held against what their agents promise and their pods asked for. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use fairlead_crds::{Finding, FindingCode, names};
use kube::ResourceExt;

use super::world::World;
use crate::controller::model::{Block, Node, NodeOffer};
use crate::controller::resource::Offer;
use crate::controller::taint::Changes;
use crate::controller::wanted::Wanted;

/// What bound pods request on a node, by Network.
type Counts<'a> = BTreeMap<&'a str, u64>;

/// Extended resources and taints of ours that are not what they should be.
pub fn check(world: &World) -> Vec<Finding> {
    let blocks: Vec<Block> = world.blocks.iter().cloned().map(Block::from).collect();
    let wanted = Wanted::new(world.networks.clone(), &blocks);
    let offers: HashMap<String, NodeOffer> =
        world.offers.iter().map(|offer| (offer.name_any(), NodeOffer::from(offer.clone()))).collect();
    let (requests, none) = (requests(world), Counts::new());
    let mut findings = Vec::new();
    for (node, _) in &world.nodes {
        let offer = offers.get(&node.name).cloned().unwrap_or_default();
        let counts = requests.get(node.name.as_str()).unwrap_or(&none);
        findings.extend(resources(node, &wanted.targets(&offer), counts));
        findings.extend(taints(world, node, &wanted, &offer));
    }
    findings
}

fn requests(world: &World) -> HashMap<&str, Counts<'_>> {
    let mut requests: HashMap<&str, Counts<'_>> = HashMap::new();
    for pod in &world.pods {
        let Some(node) = &pod.node else { continue };
        let counts = requests.entry(node).or_default();
        pod.requests.iter().for_each(|(network, count)| *counts.entry(network).or_default() += count);
    }
    requests
}

fn resources(node: &Node, targets: &BTreeMap<String, Offer>, counts: &Counts<'_>) -> Vec<Finding> {
    let all: BTreeSet<&String> = targets.keys().chain(node.resources.keys()).collect();
    all.into_iter()
        .filter_map(|network| resource(node, network, targets.get(network).copied(), counts))
        .collect()
}

fn resource(node: &Node, network: &str, offer: Option<Offer>, counts: &Counts<'_>) -> Option<Finding> {
    let (object, name) = (format!("node {}", node.name), names::resource(network));
    // Capacity and allocatable that differ count as 0, as for whoever writes them.
    let current = node.resources.get(network).map(|published| published.value().unwrap_or(0));
    let asked = counts.get(network).copied().unwrap_or(0);
    if let Some(current) = current.filter(|current| *current < asked) {
        let message = format!("it offers {current} of {name}, its pods asked for {asked}");
        return Some(Finding::new(FindingCode::ResourceTooSmall, object, name, message));
    }
    let target = offer.map_or(0, |offer| offer.target(current));
    // It never shrinks below what bound pods asked for.
    let right = match target {
        0 => None,
        target if current.is_some_and(|current| target < current) => Some(target.max(asked)),
        target => Some(target),
    };
    let words = |number: Option<u64>| number.map_or("nothing".to_owned(), |number| number.to_string());
    let promised = offer.map_or(0, |offer| offer.promised);
    let message = format!(
        "it offers {} of {name} instead of {}: {promised} are promised",
        words(current),
        words(right)
    );
    (current != right).then(|| {
        Finding::new(FindingCode::ResourceDiffers, object, format!("{name} {}", words(current)), message)
    })
}

fn taints(world: &World, node: &Node, wanted: &Wanted, offer: &NodeOffer) -> Vec<Finding> {
    let facts = wanted.facts(node, offer, &world.taint_prefix);
    let current = node.taints.as_deref().unwrap_or_default();
    let change = Changes::default().decide(&node.name, current, &facts, Instant::now());
    let effect = |taints: &[k8s_openapi::api::core::v1::Taint], key: &str| {
        taints.iter().find(|taint| taint.key == key).map_or("none".to_owned(), |taint| taint.effect.clone())
    };
    let wants = change.taints.unwrap_or_default();
    let finding = |key: String| {
        let message = format!(
            "the effect of taint {key} is {} instead of {}",
            effect(current, &key),
            effect(&wants, &key)
        );
        Finding::new(FindingCode::TaintDiffers, format!("node {}", node.name), key, message)
    };
    change.keys.into_iter().map(finding).collect()
}
