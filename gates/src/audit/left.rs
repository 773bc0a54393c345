//! What is left of nodes that do not exist, finalizers that keep nothing or are missing, and the Admission. Pure.

use std::collections::HashSet;

use fairlead_crds::{Finding, FindingCode, IPBlock, Network, names};
use kube::ResourceExt;

use super::world::{World, block_name, network_name};
use crate::controller::compile;
use crate::controller::lost::LEASE;

/// How long the agent of a deleted node must have been silent, in seconds: its Lease, the minute of grace, and the
/// time in which its blocks are closed and given up.
const SILENT: i64 = 180;
/// How long a deletion may take that nothing of ours keeps, in seconds.
const DELETION: i64 = 60;

/// What nobody needs any more, or somebody needs and lacks.
pub fn check(world: &World) -> Vec<Finding> {
    let mut findings = nodes(world);
    findings.extend(foreign_finalizers(world));
    findings.extend(networks(world));
    findings.extend(blocks(world));
    findings.extend(admission(world));
    findings
}

/// What is named as a node, or owned by one, that does not exist.
fn nodes(world: &World) -> Vec<Finding> {
    let there: HashSet<&str> = world.nodes.iter().map(|(node, _)| node.name.as_str()).collect();
    let blocks = world.blocks.iter().map(|block| (block_name(block), block.spec.node_name.clone()));
    let offers =
        world.offers.iter().map(|offer| (format!("nodenetwork {}", offer.name_any()), offer.name_any()));
    let leases = world
        .leases
        .iter()
        .map(|lease| (format!("lease {}/{}", names::INSTALL_NAMESPACE, lease.node), lease.node.clone()));
    let all = blocks
        .chain(offers)
        .chain(leases)
        .filter(|(_, node)| !node.is_empty() && !there.contains(node.as_str()));
    let late = all.filter(|(_, node)| world.silent_for(node).is_none_or(|seconds| seconds >= SILENT));
    let finding = |(object, node): (String, String)| {
        let silent = world
            .silent_for(&node)
            .map_or("never was".to_owned(), |seconds| format!("was last heard of {seconds} s ago"));
        let message = format!("node {node} does not exist, and its agent {silent}");
        Finding::new(FindingCode::NodeGone, object, node, message)
    };
    late.map(finding).collect()
}

/// fairlead puts no finalizer on what is not its own.
fn foreign_finalizers(world: &World) -> Vec<Finding> {
    let pods = world.pods.iter().map(|pod| (format!("pod {}", pod.name), &pod.finalizers));
    let nodes = world.nodes.iter().map(|(node, finalizers)| (format!("node {}", node.name), finalizers));
    let all =
        pods.chain(nodes).flat_map(|(object, names)| names.iter().map(move |name| (object.clone(), name)));
    all.map(|(object, name)| Finding::new(FindingCode::FinalizerLeft, object, name, format!("it has {name}")))
        .collect()
}

fn networks(world: &World) -> Vec<Finding> {
    let attachments = world.records.iter().flat_map(|record| &record.spec.attachments);
    let used: HashSet<&str> = attachments
        .map(|attachment| attachment.network_uid.as_str())
        .chain(world.blocks.iter().map(|block| block.spec.network_uid.as_str()))
        .collect();
    let check = |network: &Network| {
        let used = network.metadata.uid.as_deref().is_some_and(|uid| used.contains(uid));
        let has = network.finalizers().iter().any(|name| name == names::NETWORK_FINALIZER);
        let deleting = network.metadata.deletion_timestamp.as_ref().map(|time| world.seconds_since(time.0));
        let (code, message) = match deleting {
            _ if used && !has => (
                FindingCode::FinalizerMissing,
                "records or blocks need it, and it does not have our finalizer".to_owned(),
            ),
            Some(seconds) if has && !used && seconds >= DELETION => (
                FindingCode::FinalizerLeft,
                format!("it has been going for {seconds} s, and no record or block needs it"),
            ),
            _ => return None,
        };
        Some(Finding::new(code, network_name(network), names::NETWORK_FINALIZER, message))
    };
    world.networks.iter().filter_map(check).collect()
}

/// Blocks that are being deleted, though their agent lives and nothing is held of them.
fn blocks(world: &World) -> Vec<Finding> {
    let attachments = world.records.iter().flat_map(|record| &record.spec.attachments);
    let used: HashSet<&str> = attachments
        .flat_map(|attachment| &attachment.addresses)
        .map(|held| held.block_uid.as_str())
        .collect();
    let lease = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
    let rests = |block: &IPBlock| {
        let status = block.status.clone().unwrap_or_default();
        !status.held.is_empty() || status.quarantined.iter().any(|entry| entry.until.0 > world.now)
    };
    let check = |block: &IPBlock| {
        let seconds = world.seconds_since(block.metadata.deletion_timestamp.as_ref()?.0);
        let lives = world.silent_for(&block.spec.node_name).is_some_and(|silent| silent <= lease);
        let free = !rests(block) && !block.metadata.uid.as_deref().is_some_and(|uid| used.contains(uid));
        let message = format!("it has been going for {seconds} s, and nothing is held of it");
        (lives && free && seconds >= DELETION).then(|| {
            Finding::new(FindingCode::FinalizerLeft, block_name(block), names::BLOCK_FINALIZER, message)
        })
    };
    world.blocks.iter().filter_map(check).collect()
}

fn admission(world: &World) -> Option<Finding> {
    let find = |message: &str| {
        Finding::new(FindingCode::AdmissionDiffers, format!("admission {}", names::ADMISSION), "", message)
    };
    let Some(admission) = &world.admission else {
        return Some(find("it does not exist, so that pods which ask for a network are refused"));
    };
    // Who is gated changes with every address, and what Auto means with every node; the controller lets that rest.
    let gated = |network: &Network| {
        let name = network.metadata.name.as_deref();
        admission.spec.networks.iter().any(|entry| Some(entry.name.as_str()) == name && entry.gated)
    };
    let wanted = compile::compile(&world.networks, &gated, admission.spec.hold);
    compile::patch(&admission.spec, &wanted)
        .map(|_| find("its networks or rules are not those of the accepted Networks"))
}
