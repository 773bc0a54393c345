//! Each block held against its Network, and what rests or is kept on it against time and pods. Pure.

use std::collections::HashSet;

use fairlead_crds::network::RangeState;
use fairlead_crds::{Finding, FindingCode, IPBlock, Network, names};

use super::world::{World, block_name};
use crate::controller::lost::LEASE;

/// How much longer than its Network says a quarantine may run, in seconds.
const LONGER: i64 = 600;
/// How long an address may be kept for a pod that is gone once the agent of its node is back, in seconds.
const KEPT: i64 = 120;

/// UIDs of pods that are there.
struct There<'a> {
    pods: HashSet<&'a str>,
    /// Those with a record.
    recorded: HashSet<&'a str>,
}

impl<'a> There<'a> {
    fn new(world: &'a World) -> Self {
        Self {
            pods: world.pods.iter().map(|pod| pod.uid.as_str()).collect(),
            recorded: world.records.iter().map(|record| record.spec.pod_uid.as_str()).collect(),
        }
    }
}

/// What is wrong with blocks one by one.
pub fn check(world: &World) -> Vec<Finding> {
    let (networks, there) = (world.networks_by_uid(), There::new(world));
    let mut findings = Vec::new();
    for block in &world.blocks {
        findings.extend(finalizer(block));
        let network = networks.get(block.spec.network_uid.as_str()).copied();
        findings.extend(match network {
            Some(network) => outside(block, network),
            None => without_network(world, block),
        });
        findings.extend(too_long(world, block, network));
        findings.extend(kept(world, &there, block));
        findings.extend(turn(world, &there, block));
    }
    findings
}

fn finalizer(block: &IPBlock) -> Option<Finding> {
    let has = block.metadata.finalizers.iter().flatten().any(|name| name == names::BLOCK_FINALIZER);
    let message = format!("it does not have {}", names::BLOCK_FINALIZER);
    (!has).then(|| {
        Finding::new(FindingCode::FinalizerMissing, block_name(block), names::BLOCK_FINALIZER, message)
    })
}

/// A block in which addresses still rest goes by itself once they have rested; records that use it are found as such.
fn without_network(world: &World, block: &IPBlock) -> Option<Finding> {
    let spec = &block.spec;
    let mut resting = block.status.iter().flat_map(|status| &status.quarantined);
    if resting.any(|entry| entry.until.0 > world.now) {
        return None;
    }
    let message =
        format!("it is of network {} with UID {}, which does not exist", spec.network, spec.network_uid);
    Some(Finding::new(FindingCode::NetworkMissing, block_name(block), &spec.network, message))
}

/// A block lies on the grid of a range that its Network was given, also one that drains.
fn outside(block: &IPBlock, network: &Network) -> Option<Finding> {
    let cidr = block.spec.cidr;
    let mut ranges = network.status.iter().flat_map(|status| &status.ranges);
    let inside = ranges.any(|range| {
        range.state != RangeState::Refused
            && range.cidr.0.contains(&cidr.0)
            && range.block_prefix == cidr.0.prefix_len()
    });
    let message = format!("network {} has no range with blocks like {cidr}", block.spec.network);
    (!inside)
        .then(|| Finding::new(FindingCode::BlockOutsideRanges, block_name(block), cidr.to_string(), message))
}

/// The clock of whoever wrote it is ahead, or was.
fn too_long(world: &World, block: &IPBlock, network: Option<&Network>) -> Vec<Finding> {
    let quarantine =
        network.and_then(|network| network.spec.ipam.as_ref()).map_or(0, |ipam| ipam.quarantine.0.as_secs());
    let most = i64::try_from(quarantine).unwrap_or(i64::MAX).saturating_add(LONGER);
    let entries = block.status.iter().flat_map(|status| &status.quarantined);
    let late = entries.filter(|entry| -world.seconds_since(entry.until.0) > most);
    let finding = |address: String, until| {
        let message = format!(
            "{address} is in quarantine until {until}, longer than the {quarantine} s of its network"
        );
        Finding::new(FindingCode::QuarantineTooLong, block_name(block), address, message)
    };
    late.map(|entry| finding(entry.address.to_string(), entry.until.0)).collect()
}

/// The agent ends what is kept for pods that are gone once it is back.
fn kept(world: &World, there: &There<'_>, block: &IPBlock) -> Vec<Finding> {
    let (node, held) = (&block.spec.node_name, block.status.iter().flat_map(|status| &status.held));
    if held.clone().next().is_none() || !is_back(world, node) {
        return Vec::new();
    }
    let old =
        held.filter(|entry| entry.since.as_ref().is_none_or(|since| world.seconds_since(since.0) >= KEPT));
    let gone = old.filter(|entry| !there.pods.contains(entry.pod_uid.as_str()));
    let finding = |address: String, pod: &str| {
        let message = format!("{address} is kept for pod {pod}, which is gone; the agent of {node} is back");
        Finding::new(FindingCode::HeldTooLong, block_name(block), address, message)
    };
    gone.map(|entry| finding(entry.address.to_string(), &entry.pod)).collect()
}

/// So it does with the turn of a pod that had a reserved address; while there is a record it is found as such.
fn turn(world: &World, there: &There<'_>, block: &IPBlock) -> Option<Finding> {
    let (node, holder) = (&block.spec.node_name, block.open_turn()?);
    let uid = holder.pod_uid.as_str();
    let there = there.pods.contains(uid) || there.recorded.contains(uid);
    let message = format!(
        "it is the turn of the pod with UID {}, which is gone; the agent of {node} is back",
        holder.pod_uid
    );
    (!there && is_back(world, node))
        .then(|| Finding::new(FindingCode::HeldTooLong, block_name(block), &holder.pod_uid, message))
}

fn is_back(world: &World, node: &str) -> bool {
    let lease = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
    world.silent_for(node).is_some_and(|seconds| seconds <= lease)
}
