//! The status of every Network, decided in one pass over all of them. Pure.

use std::collections::{BTreeSet, HashSet};
use std::time::Instant;

use fairlead_crds::admission::{MAX_ATTACH, MAX_NETWORKS};
use fairlead_crds::network::{AdmittedRange, RangeState};
use fairlead_crds::{ConditionType, Network, NetworkStatus, Reason, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::accept::{self, Refusal};
use super::model::{Block, Node};
use super::occupancy::{self, Claimed};
use super::ranges::{self, Decided, Ground};
use super::settle::Settling;
use super::space::Table;
use super::users::Users;

/// Everything the decision depends on.
pub struct World<'a> {
    /// All Networks.
    pub networks: &'a [Network],
    /// All blocks.
    pub blocks: &'a [&'a Block],
    /// All nodes.
    pub nodes: &'a [&'a Node],
    /// Names of the Networks that some node reports as used.
    pub used: &'a BTreeSet<String>,
    /// Who holds addresses of terminating Networks and draining ranges.
    pub users: &'a Users,
    /// What was given up lately.
    pub settling: &'a Settling,
    /// Now, for comparing with `settling`.
    pub instant: Instant,
    /// Now, for conditions.
    pub now: Time,
}

/// How urgent a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The status is as it should be.
    None,
    /// Only flags and counts differ.
    Lazy,
    /// What agents act on differs, or what a person waits for.
    Now,
}

/// What shall be done with one Network.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version the decision was made on; a write is refused if it is not the newest.
    pub resource_version: String,
    /// Whether our finalizer has to be added first.
    pub needs_finalizer: bool,
    /// The whole status.
    pub status: NetworkStatus,
    /// Whether and how soon the status has to be written.
    pub urgency: Urgency,
    /// Whether a range is new in it.
    pub admits: bool,
    /// Whether to look again soon although nothing may change until then.
    pub waits: bool,
}

/// Decides every Network's status. Older Networks are decided first, those that have something keep it.
pub fn plan(world: &World<'_>) -> Vec<Plan> {
    let mut order: Vec<&Network> = world.networks.iter().collect();
    order.sort_by_key(|network| seniority(network));
    let over = over_the_limit(&order);
    let claimed = Claimed::of(world.blocks.iter().copied());
    let mut table = Table::of(world.networks);
    order.iter().map(|network| plan_one(network, &over, &claimed, &mut table, world)).collect()
}

fn plan_one(
    network: &Network,
    over: &HashSet<&str>,
    claimed: &Claimed<'_>,
    table: &mut Table,
    world: &World<'_>,
) -> Plan {
    let uid = network.metadata.uid.as_deref().unwrap_or_default();
    let terminating = network.metadata.deletion_timestamp.is_some();
    let space = network.spec.ipam.as_ref().map_or("", |ipam| &ipam.space);
    let too_many = || over.contains(uid).then(|| (Reason::TooManyNetworks, TOO_MANY.to_owned()));
    let refusal = accept::unsupported(&network.spec).or_else(too_many);
    let mut ground = Ground {
        table,
        blocks: world.blocks,
        claimed,
        drained: &|cidr| world.settling.has_drained(uid, cidr, world.instant),
        settling: &|cidr| world.settling.is_settling(space, cidr, world.instant),
    };
    let mut decided = ranges::decide(network, refusal.is_none() && !terminating, &mut ground);
    set_flags(network, &mut decided.ranges, claimed, world);
    finish(network, &decided, refusal, claimed, world)
}

const TOO_MANY: &str =
    "older networks already use the 256 networks or 256 attach rules that the admission policy can carry";

fn finish(
    network: &Network,
    decided: &Decided,
    refusal: Option<Refusal>,
    claimed: &Claimed<'_>,
    world: &World<'_>,
) -> Plan {
    let meta = &network.metadata;
    let old = network.status.clone().unwrap_or_default();
    let (accepted, pending) = match refusal {
        Some((reason, message)) => (Some((false, reason, message)), false),
        None => {
            let accepted = accepted(network, decided);
            let pending = accepted.is_none();
            (accepted, pending)
        }
    };
    let in_use = in_use(network, claimed, world);
    let drains = draining(network, &decided.ranges, claimed, world.users);
    let condition =
        |kind: ConditionType, wanted: (bool, Reason, String)| condition(kind, wanted, network, &world.now);
    let conditions = accepted.map(|accepted| condition(ConditionType::Accepted, accepted)).into_iter();
    let totals = occupancy::totals(&decided.ranges);
    let status = NetworkStatus {
        observed_generation: meta.generation,
        driver: Some(network.spec.driver().to_owned()),
        reach: Some(network.spec.reach()),
        addresses: totals.map(|(addresses, _)| addresses),
        unclaimed: totals.map(|(_, unclaimed)| unclaimed),
        ranges: decided.ranges.clone(),
        conditions: conditions
            .chain([condition(ConditionType::InUse, in_use)])
            .chain(drains.map(|drains| condition(ConditionType::Draining, drains)))
            .collect(),
    };
    let holds = has_admitted(&status.ranges)
        || status.conditions.iter().any(|c| c.type_ == "Accepted" && c.status == "True");
    let has_finalizer =
        meta.finalizers.iter().flatten().any(|finalizer| finalizer == names::NETWORK_FINALIZER);
    Plan {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        needs_finalizer: holds && !has_finalizer && meta.deletion_timestamp.is_none(),
        urgency: if pending { Urgency::None } else { urgency(&old, &status) },
        status,
        admits: decided.admits,
        waits: decided.waits,
    }
}

/// Whether agents shall act on the network, by its ranges; `None` while a new network waits for its first one.
///
/// A pod gets an address of every family that the spec has, so each needs an admitted range. A network that was
/// accepted stays so when a range is added that cannot be admitted: the edit must not stop what worked.
fn accepted(network: &Network, decided: &Decided) -> Option<(bool, Reason, String)> {
    let admitted = |v6| {
        let of_family = |range: &&AdmittedRange| range.cidr.is_ipv6() == v6;
        decided.ranges.iter().filter(of_family).any(|range| range.state == RangeState::Admitted)
    };
    let wanted = network.spec.ipam.iter().flat_map(|ipam| &ipam.ranges);
    let lacking = wanted.map(|range| range.cidr.is_ipv6()).find(|v6| !admitted(*v6));
    match (lacking, &decided.refused) {
        (None, None) => Some((true, Reason::Accepted, "the network is admitted".to_owned())),
        (None, Some(message)) if network.is_accepted() => {
            Some((true, Reason::RangeOverlap, format!("{message}; the other ranges stay in use")))
        }
        (_, Some(message)) => Some((false, Reason::RangeOverlap, message.clone())),
        (Some(_), None) if !has_admitted(&decided.ranges) => None,
        (Some(v6), None) => {
            let family = if v6 { "IPv6" } else { "IPv4" };
            let message =
                format!("no {family} range is admitted yet: addresses of it were given up a moment ago");
            Some((false, Reason::RangeInUse, message))
        }
    }
}

/// What still holds addresses of ranges that were removed; `None` if no range drains.
fn draining(
    network: &Network,
    ranges: &[AdmittedRange],
    claimed: &Claimed<'_>,
    users: &Users,
) -> Option<(bool, Reason, String)> {
    let uid = network.metadata.uid.as_deref().unwrap_or_default();
    let left = ranges.iter().filter(|range| range.state == RangeState::Draining).map(|range| {
        let blocks = claimed.count_in(uid, range);
        let pods = match users.of_range(uid, range.cidr) {
            None => "the pods that hold its addresses are being counted".to_owned(),
            Some(holders) => format!("its addresses are held by {holders}"),
        };
        format!("{} was removed, and {pods}; address blocks of nodes left: {blocks}", range.cidr)
    });
    let message = left.reduce(|all, one| format!("{all}. {one}"))?;
    Some((true, Reason::RangeInUse, message))
}

fn has_admitted(ranges: &[AdmittedRange]) -> bool {
    ranges.iter().any(|range| range.state != RangeState::Refused)
}

/// Those that are accepted come first, so that nobody loses a place to a newcomer; then by age.
fn seniority(network: &Network) -> (bool, Option<Time>, Option<String>) {
    (!network.is_accepted(), network.metadata.creation_timestamp.clone(), network.metadata.name.clone())
}

/// UIDs of the Networks for which the admission policy has no room.
fn over_the_limit<'a>(order: &[&'a Network]) -> HashSet<&'a str> {
    let (mut networks, mut attach) = (0, 0);
    let mut over = HashSet::new();
    for network in order.iter().filter(|network| {
        accept::unsupported(&network.spec).is_none() && network.metadata.deletion_timestamp.is_none()
    }) {
        if networks + 1 > MAX_NETWORKS || attach + network.spec.attach.len() > MAX_ATTACH {
            over.extend(network.metadata.uid.as_deref());
        } else {
            networks += 1;
            attach += network.spec.attach.len();
        }
    }
    over
}

fn set_flags(network: &Network, ranges: &mut [AdmittedRange], claimed: &Claimed<'_>, world: &World<'_>) {
    let on = world
        .nodes
        .iter()
        .filter(|node| node.schedulable && node.is_selected(&network.spec.node_selector))
        .count() as u64;
    let uid = network.metadata.uid.as_deref().unwrap_or_default();
    for range in ranges.iter_mut().filter(|range| range.state == RangeState::Admitted) {
        let unclaimed = claimed.unclaimed(uid, range);
        (range.scarce, range.full) = occupancy::flags(range, unclaimed, on);
        range.unclaimed = occupancy::told_unclaimed(range.unclaimed, unclaimed);
    }
}

/// While a Network lives, whether it is used; once it is being deleted, what is left.
fn in_use(network: &Network, claimed: &Claimed<'_>, world: &World<'_>) -> (bool, Reason, String) {
    let (name, uid) = (
        network.metadata.name.as_deref().unwrap_or_default(),
        network.metadata.uid.as_deref().unwrap_or_default(),
    );
    let blocks = claimed.count(uid);
    if network.metadata.deletion_timestamp.is_none() {
        return if blocks > 0 || world.used.contains(name) {
            (
                true,
                Reason::StillUsed,
                "nodes hold addresses of the network, or pods are attached to it".to_owned(),
            )
        } else {
            (
                false,
                Reason::Unused,
                "no node holds addresses of the network and no pod is attached to it".to_owned(),
            )
        };
    }
    match world.users.of_network(uid) {
        None => (true, Reason::StillUsed, "what still uses the network is being counted".to_owned()),
        Some(holders) if holders.attachments == 0 && blocks == 0 => {
            (false, Reason::Unused, "nothing uses the network any more".to_owned())
        }
        Some(holders) => {
            let attachments = holders.attachments;
            let message = format!(
                "attachments of pods left: {attachments}, of {holders}; address blocks of nodes left: {blocks}"
            );
            (true, Reason::StillUsed, message)
        }
    }
}

/// The condition, with the time of its last change of status.
fn condition(
    kind: ConditionType,
    (is, reason, message): (bool, Reason, String),
    network: &Network,
    now: &Time,
) -> Condition {
    let status = if is { "True" } else { "False" };
    let old = network
        .status
        .iter()
        .flat_map(|s| &s.conditions)
        .find(|old| old.type_ == kind.as_str() && old.status == status);
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message,
        observed_generation: network.metadata.generation,
        last_transition_time: old.map_or_else(|| now.clone(), |old| old.last_transition_time.clone()),
    }
}

fn urgency(old: &NetworkStatus, new: &NetworkStatus) -> Urgency {
    let essence = |status: &NetworkStatus| {
        let mut status = status.clone();
        status.unclaimed = None;
        for range in &mut status.ranges {
            (range.scarce, range.full, range.unclaimed) = (false, false, 0);
        }
        status.conditions.retain(|condition| condition.type_ == ConditionType::Accepted.as_str());
        status
    };
    if old == new {
        Urgency::None
    } else if essence(old) == essence(new) {
        Urgency::Lazy
    } else {
        Urgency::Now
    }
}

#[cfg(test)]
mod tests;
