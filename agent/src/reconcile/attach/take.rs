//! New addresses for one interface: reserved ones that the pod was given, the rest of this node's own blocks.

use std::collections::BTreeMap;

use fairlead_crds::pod_network::{Attachment, HeldAddress};
use fairlead_crds::{IPBlock, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::capacity;
use crate::clock::Clock;
use crate::intent::{self, Problem, Wanted};
use crate::ipam::{self, Exhausted, Family, Owner, Pool};
use crate::model::Pod;
use crate::reserved;
use crate::view::Inner;

/// Takes an address of each family, or none. `granted`: what was found of the pod's claims to reserved addresses.
pub(super) fn take(
    view: &mut Inner,
    pod: &Pod,
    want: &Wanted,
    taken: &[Attachment],
    granted: &[IPBlock],
    clock: &Clock,
) -> Result<Attachment, Problem> {
    let owner = ipam::owner(&pod.key.uid, &want.interface);
    let addresses = take_all(view, pod, want, taken, granted, clock).inspect_err(|_| {
        // All or nothing: what the pod cannot use without the rest is free again.
        view.ipam.give_back_interface(&owner);
    })?;
    let has_ipam = view.networks.get(&want.network).is_some_and(|network| network.spec.ipam.is_some());
    if has_ipam && addresses.is_empty() {
        let message =
            format!("network {} has no range that blocks may be claimed from; see its status", want.network);
        return Err(Problem::new(Reason::NoAddresses, message));
    }
    let mac = want.mac.unwrap_or_else(|| intent::mac(&pod.key.uid, &want.interface));
    let Wanted { network, network_uid, interface, .. } = want.clone();
    let at = clock.wall();
    let since = Some(Time(at.round(jiff::Unit::Second).unwrap_or(at)));
    Ok(Attachment { network, network_uid, interface, mac, addresses, since })
}

fn take_all(
    view: &mut Inner,
    pod: &Pod,
    want: &Wanted,
    taken: &[Attachment],
    granted: &[IPBlock],
    clock: &Clock,
) -> Result<Vec<HeldAddress>, Problem> {
    let (now, owner) = (clock.now(), ipam::owner(&pod.key.uid, &want.interface));
    let mut addresses = take_reserved(view, pod, want, &owner, granted, now)?;
    let asked = |family: &Family| want.asks.iter().any(|ask| ask.family == *family);
    let pool = view.ipam.pool(&want.network);
    let rest: Vec<Family> =
        pool.into_iter().flat_map(Pool::families).filter(|family| !asked(family)).collect();
    if !rest.is_empty() {
        check_promise(view, pod, want, taken, now)?;
        let more = view.ipam.allocate_of(&want.network, &rest, &owner, now);
        let more = more.map_err(|exhausted| no_address(&want.network, exhausted, clock))?;
        addresses.extend(more.into_iter().map(|held| (Family::of(held.address), held)));
    }
    Ok(addresses.into_values().collect())
}

/// The reserved addresses that the pod asks for, by family.
fn take_reserved(
    view: &mut Inner,
    pod: &Pod,
    want: &Wanted,
    owner: &Owner,
    granted: &[IPBlock],
    now: Timestamp,
) -> Result<BTreeMap<Family, HeldAddress>, Problem> {
    let mut addresses = BTreeMap::new();
    for ask in &want.asks {
        let network = view.networks.get(&want.network);
        let held =
            network.and_then(|network| view.ipam.take_reserved(network, ask, want.attachment, owner, now));
        let held = held.ok_or_else(|| reserved::why_not(want, ask, granted, &pod.key))?;
        addresses.insert(ask.family, held);
    }
    Ok(addresses)
}

/// An attachment that the scheduler was not asked for must leave an address for every one it was.
fn check_promise(
    view: &Inner,
    pod: &Pod,
    want: &Wanted,
    taken: &[Attachment],
    now: Timestamp,
) -> Result<(), Problem> {
    let promised = pod.promised.get(&want.network).copied().unwrap_or(0);
    let before = taken.iter().filter(|attachment| attachment.network == want.network).count() as u64;
    let Some(pool) = view.ipam.pool(&want.network).filter(|_| before >= promised) else {
        return Ok(());
    };
    let counts = view.ipam.counts(&want.network, now).unwrap_or_default();
    let usage = capacity::usage(&want.network, view.pods_with_records());
    if counts.free == 0 || capacity::may_hotplug(pool, counts, usage) {
        // Without any free address the allocation itself says so, and until when.
        return Ok(());
    }
    let message = format!(
        "network {}: all {} free addresses of this node are promised to the scheduler",
        want.network, counts.free
    );
    Err(Problem::new(Reason::HotplugNoCapacity, message))
}

fn no_address(network: &str, exhausted: Exhausted, clock: &Clock) -> Problem {
    let family = if exhausted.family == Family::V4 { "IPv4" } else { "IPv6" };
    match exhausted.until.map(|until| clock.shown(until)) {
        Some(until) => {
            let until = until.round(jiff::Unit::Second).unwrap_or(until);
            let message = format!(
                "network {network} has no free {family} address on this node before {until}: the rest is in quarantine"
            );
            Problem::new(Reason::QuarantinedUntil, message)
        }
        None if exhausted.at_limit => {
            let message = format!(
                "network {network} has no free {family} address on this node, which owns as many blocks as ipam.maxBlocksPerNode allows"
            );
            Problem::new(Reason::BlockLimit, message)
        }
        None => {
            let message = format!(
                "network {network} has no free {family} address for this node; delete pods that use it or add a range"
            );
            Problem::new(Reason::NoAddresses, message)
        }
    }
}
