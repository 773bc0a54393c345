//! What a dead node left behind, and what may be done about it. Pure.
//!
//! Nobody can prove anything about a dead node. Its addresses are released only when someone asserts that it is
//! fenced off and its agent is silent: a leak is safe, a duplicate is not.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use fairlead_crds::ip_block::{Held, Quarantined};
use fairlead_crds::{IPBlockStatus, IfName, Ip, PodNetwork};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// How long an agent's Lease lives without renewal.
pub const LEASE: Duration = Duration::from_secs(40);

/// Who says that a node cannot reach the network any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Nobody. A node that is merely not ready keeps its addresses.
    None,
    /// Its Node object was deleted.
    Deleted,
    /// It carries the out-of-service taint, or its `NodeNetwork` the annotation.
    Asserted,
}

/// A pod as the API server has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodState {
    /// No pod has that UID.
    Gone,
    /// It is Succeeded or Failed.
    Over,
    /// It may be running.
    There,
}

/// What happens to a record of a node whose agent is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Keep,
    /// Its addresses are quarantined, the record goes.
    Release,
    /// Its addresses are kept on their blocks without end, the record goes, so that its namespace does not hang.
    Hold,
}

/// Decides about one record of a node whose agent has been silent for long enough.
pub fn fate(fence: Fence, terminating: bool, pod: PodState) -> Fate {
    match (fence, pod) {
        (Fence::Deleted | Fence::Asserted, PodState::Gone | PodState::Over) => Fate::Release,
        (Fence::None, PodState::Gone) if terminating => Fate::Hold,
        _ => Fate::Keep,
    }
}

/// How long every Lease has been unchanged, by our own clock: nodes' clocks may differ from it.
#[derive(Debug, Default)]
pub struct Leases(HashMap<String, (Option<String>, Instant)>);

impl Leases {
    /// Takes note of all Leases (name and version) and of nodes that may have none.
    pub fn observe(&mut self, leases: &BTreeMap<String, String>, nodes: &BTreeSet<String>, now: Instant) {
        self.0.retain(|name, _| leases.contains_key(name) || nodes.contains(name));
        for name in leases.keys().chain(nodes) {
            let version = leases.get(name).cloned();
            let seen = self.0.entry(name.clone()).or_insert_with(|| (version.clone(), now));
            if seen.0 != version {
                *seen = (version, now);
            }
        }
    }

    /// Whether a node's Lease is still the version that was observed; `None` if there was no Lease.
    pub fn is_unchanged(&self, node: &str, version: Option<&str>) -> bool {
        self.0.get(node).is_some_and(|(seen, _)| seen.as_deref() == version)
    }

    /// Whether a node's Lease has been expired for `grace`, or missing for as long.
    pub fn is_silent(&self, node: &str, grace: Duration, now: Instant) -> bool {
        self.0.get(node).is_some_and(|(_, since)| now.saturating_duration_since(*since) >= LEASE + grace)
    }
}

/// An address that a pod had, and the interface it was for, as far as that is known.
pub type Had = (Ip, Option<IfName>);

/// The addresses that a record holds, by name and UID of their block.
pub fn addresses(record: &PodNetwork) -> BTreeMap<(String, String), Vec<Had>> {
    let mut by_block: BTreeMap<_, Vec<Had>> = BTreeMap::new();
    for attachment in &record.spec.attachments {
        for held in &attachment.addresses {
            by_block
                .entry((held.block.clone(), held.block_uid.clone()))
                .or_default()
                .push((Ip(held.address.addr()), Some(attachment.interface.clone())));
        }
    }
    by_block
}

/// The block's status once the addresses of a pod are quarantined until then. What was held for the pod is freed with it.
pub fn quarantine(
    status: &IPBlockStatus,
    addresses: &[Had],
    pod_uid: &str,
    until: Timestamp,
    now: Timestamp,
) -> IPBlockStatus {
    let mut status = without(status, addresses);
    status.quarantined.retain(|entry| addresses.iter().all(|(address, _)| *address != entry.address));
    status.quarantined.extend(addresses.iter().cloned().map(|(address, interface)| Quarantined {
        address,
        until: Time(until),
        pod_uid: pod_uid.to_owned(),
        interface,
        since: Some(second(now)),
    }));
    status
}

/// The block's status once the addresses of a pod are kept without end.
pub fn hold(
    status: &IPBlockStatus,
    addresses: &[Had],
    pod: &str,
    pod_uid: &str,
    now: Timestamp,
) -> IPBlockStatus {
    let mut status = without(status, addresses);
    status.held.extend(addresses.iter().cloned().map(|(address, interface)| Held {
        address,
        pod: pod.to_owned(),
        pod_uid: pod_uid.to_owned(),
        interface,
        since: Some(second(now)),
    }));
    status
}

/// The status without what is held of these addresses.
fn without(status: &IPBlockStatus, addresses: &[Had]) -> IPBlockStatus {
    let mut status = status.clone();
    status.held.retain(|held| addresses.iter().all(|(address, _)| *address != held.address));
    status
}

fn second(now: Timestamp) -> Time {
    Time(now.round(jiff::Unit::Second).unwrap_or(now))
}

/// The block's status once everything that was held on it is quarantined until then: its node is fenced now.
pub fn free_held(status: &IPBlockStatus, until: Timestamp, now: Timestamp) -> IPBlockStatus {
    status.held.iter().fold(status.clone(), |status, held| {
        quarantine(&status, &[(held.address, held.interface.clone())], &held.pod_uid, until, now)
    })
}

/// Whether a block of a fenced node can be closed: no record, nothing held. What rests on it goes on resting.
pub fn is_unused(status: &IPBlockStatus, used: bool) -> bool {
    !used && status.held.is_empty()
}

/// How long a block stays closed before it is given up: long enough for an agent that comes back to see it, and for all
/// that rests on it. Counted from its closing, since nobody knows by whose clock the times on it are.
pub fn stays_closed(status: &IPBlockStatus, quarantine: Duration) -> Duration {
    if status.quarantined.is_empty() { LEASE } else { LEASE.max(quarantine) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> Had {
        (text.parse().unwrap(), Some("net1".parse().unwrap()))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_node_that_is_merely_silent_keeps_every_address() {
        for (terminating, pod) in [(false, PodState::Gone), (true, PodState::Over), (true, PodState::There)] {
            assert_eq!(fate(Fence::None, terminating, pod), Fate::Keep);
        }
        assert_eq!(
            fate(Fence::None, true, PodState::Gone),
            Fate::Hold,
            "kept on the block; the namespace must not hang"
        );
    }

    #[test]
    fn a_fenced_node_gives_back_what_no_pod_uses() {
        for fence in [Fence::Deleted, Fence::Asserted] {
            assert_eq!(fate(fence, false, PodState::Gone), Fate::Release);
            assert_eq!(fate(fence, false, PodState::Over), Fate::Release);
            assert_eq!(fate(fence, true, PodState::There), Fate::Keep);
        }
    }

    #[test]
    fn an_agent_is_silent_when_its_lease_has_been_expired_or_missing_for_a_minute() {
        let (mut leases, start, minute) = (Leases::default(), Instant::now(), Duration::from_secs(60));
        let seen = |version: &str| BTreeMap::from([("a".to_owned(), version.to_owned())]);
        let nodes = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        leases.observe(&seen("1"), &nodes, start);
        let later = start + LEASE + minute;
        assert!(!leases.is_silent("a", minute, later.checked_sub(Duration::from_secs(1)).unwrap()));
        assert!(leases.is_silent("a", minute, later) && leases.is_silent("b", minute, later));
        leases.observe(&seen("2"), &nodes, later);
        assert!(!leases.is_silent("a", minute, later), "it was renewed");
        assert!(!leases.is_silent("never seen", minute, later));
    }

    #[test]
    fn a_released_address_is_quarantined_once_and_no_longer_held() {
        let held = hold(&IPBlockStatus::default(), &[ip("10.0.0.1")], "ns/p", "u", at(1));
        let freed = free_held(&held, at(100), at(7));
        assert_eq!(freed.quarantined[0].since, Some(Time(at(7))));
        assert_eq!(freed.quarantined[0].interface, ip("10.0.0.1").1);
        assert_eq!((freed.held.len(), freed.quarantined.len()), (0, 1));
        assert_eq!(quarantine(&freed, &[ip("10.0.0.1")], "u", at(100), at(7)), freed);
        assert!(is_unused(&freed, false) && !is_unused(&freed, true));
        assert!(!is_unused(&held, false), "held has no end");
    }

    #[test]
    fn a_closed_block_rests_for_the_whole_quarantine_by_our_own_clock() {
        let status = hold(&IPBlockStatus::default(), &[ip("10.0.0.1")], "ns/p", "u", at(1));
        let freed = free_held(&status, at(100), at(7));
        let quarantine = Duration::from_secs(130);
        assert_eq!(stays_closed(&freed, quarantine), quarantine);
        assert_eq!(stays_closed(&freed, Duration::from_secs(5)), LEASE);
        assert_eq!(stays_closed(&IPBlockStatus::default(), quarantine), LEASE);
    }

    proptest! {
        #[test]
        fn whatever_is_written_every_address_of_the_record_stays_accounted_for(
            before in prop::collection::btree_set(0u8..20, 0..10), mine in prop::collection::btree_set(0u8..20, 1..5), release: bool,
        ) {
            let addresses = |set: &BTreeSet<u8>| set.iter().map(|n| ip(&format!("10.0.0.{n}"))).collect::<Vec<_>>();
            let status = hold(&IPBlockStatus::default(), &addresses(&before), "ns/other", "v", at(1));
            let after = if release { quarantine(&status, &addresses(&mine), "u", at(10), at(2)) } else { hold(&status, &addresses(&mine), "ns/p", "u", at(2)) };
            let kept: Vec<Ip> = after.held.iter().map(|h| h.address).chain(after.quarantined.iter().map(|q| q.address)).collect();
            let expected: BTreeSet<Ip> = addresses(&before.union(&mine).copied().collect()).into_iter().map(|(ip, _)| ip).collect();
            prop_assert_eq!(kept.len(), expected.len());
            prop_assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }
}
