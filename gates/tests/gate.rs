//! The built gate binary, and the guard's looks, in real network namespaces, one per test.

// For clippy: helpers of tests are tests too.
#[cfg(test)]
#[path = "gate/guard.rs"]
mod guard;
#[cfg(test)]
#[path = "gate/space.rs"]
mod space;

use std::time::Duration;

use fairlead_crds::marker::Marker;

use space::{Gate, Space};

const UID: &str = "5f0c2d6e-6a0b-4c56-8f0e-0d6b3b1e9a11";
const SOON: Duration = Duration::from_secs(1);
/// Longer than the gate's own interval between two reads.
const WHILE: Duration = Duration::from_millis(1500);

fn ready(uid: &str, cookie: Option<u64>) -> String {
    Marker::Ready { uid: uid.into(), cookie, hash: "0123abcd".into() }.to_string()
}

fn waiting(reason: &str) -> String {
    Marker::Waiting { uid: UID.into(), reason: reason.into() }.to_string()
}

#[test]
fn opens_at_once_when_the_marker_is_there_already() {
    let Some(space) = Space::new() else { return };
    space.set_alias(&ready(UID, Some(space.cookie())));
    let mut gate = Gate::start(&space, UID);
    assert_eq!(gate.ends_within(SOON), Some(0));
    let log = gate.log();
    assert!(log.starts_with("going on: the networks of pod shop/web-0 are attached"), "{log}");
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn opens_when_the_marker_comes_later() {
    let Some(space) = Space::new() else { return };
    let mut gate = Gate::start(&space, UID);
    gate.says_within(SOON, "waiting until the agent of node node1 has attached");
    assert_eq!(gate.ends_within(WHILE), None);
    space.set_alias(&ready(UID, Some(space.cookie())));
    // Well under the interval between two reads: the notification woke it.
    assert_eq!(gate.ends_within(Duration::from_millis(300)), Some(0), "{}", gate.log());
}

#[test]
fn opens_within_a_second_where_the_kernel_sends_no_notification() {
    let Some(space) = Space::new() else { return };
    space.set_lo("down");
    let mut gate = Gate::start(&space, UID);
    gate.says_within(SOON, "waiting until");
    space.set_alias(&ready(UID, Some(space.cookie())));
    assert_eq!(gate.ends_within(WHILE), Some(0), "{}", gate.log());
}

#[test]
fn waits_for_everything_but_its_own_ready_marker() {
    let Some(space) = Space::new() else { return };
    let cookie = space.cookie();
    let mut gate = Gate::start(&space, UID);
    for (alias, line) in [
        (ready("another-pod", Some(cookie)), "waiting: the marker on lo is for another pod, uid another-pod"),
        (ready(UID, Some(cookie + 1)), "waiting: the marker on lo is for another network namespace"),
        (ready(UID, None), "waiting: the marker on lo has a bad or missing cookie"),
        (waiting("network \"blue\" does not exist"), "waiting: network \"blue\" does not exist"),
        ("uplink to rack 7".to_owned(), "waiting: the agent of this node has not seen this pod"),
    ] {
        space.set_alias(&alias);
        gate.says_within(2 * SOON, line);
        assert_eq!(gate.ends_within(WHILE), None, "{alias}");
    }
    space.set_alias(&ready(UID, Some(cookie)));
    assert_eq!(gate.ends_within(SOON), Some(0), "{}", gate.log());
}

#[test]
fn tells_each_reason_once_until_it_goes_on() {
    let Some(space) = Space::new() else { return };
    space.set_alias(&waiting("no address is free; 4 of 4 used"));
    let mut gate = Gate::start(&space, UID);
    gate.says_within(SOON, "waiting: no address is free; 4 of 4 used");
    assert_eq!(gate.ends_within(2 * SOON), None);
    space.set_alias(&waiting("the address is in quarantine until 10:00:05"));
    gate.says_within(SOON, "waiting: the address is in quarantine until 10:00:05");
    space.set_alias(&ready(UID, Some(space.cookie())));
    assert_eq!(gate.ends_within(SOON), Some(0));
    let log = gate.log();
    let begins: Vec<_> = log.lines().filter_map(|line| line.split([' ', ':']).nth(1)).collect();
    assert_eq!(begins, ["until", "", "", "on"], "{log}");
}

#[test]
fn another_namespace_with_the_same_marker_stays_closed() {
    let (Some(old), Some(new)) = (Space::new(), Space::new()) else {
        return;
    };
    new.set_alias(&ready(UID, Some(old.cookie())));
    let mut gate = Gate::start(&new, UID);
    assert_eq!(gate.ends_within(WHILE), None, "{}", gate.log());
}

#[test]
fn a_stopped_gate_does_not_open_the_door() {
    let Some(space) = Space::new() else { return };
    for signal in ["TERM", "INT"] {
        let mut gate = Gate::start(&space, UID);
        gate.says_within(SOON, "waiting until");
        gate.signal(signal);
        assert_eq!(gate.ends_within(SOON), Some(143), "SIG{signal}: {}", gate.log());
    }
}

#[test]
fn process_one_of_a_container_is_stopped_by_sigterm() {
    let Some(space) = Space::new() else { return };
    let mut gate = Gate::start_as_process_one(&space, UID);
    gate.says_within(SOON, "waiting until");
    gate.signal_child("TERM");
    assert_eq!(gate.ends_within(SOON), Some(143), "{}", gate.log());
}

#[test]
fn without_a_uid_it_waits_and_says_so() {
    let Some(space) = Space::new() else { return };
    space.set_alias(&ready("", Some(space.cookie())));
    let mut gate = Gate::start(&space, "");
    gate.says_within(SOON, "FAIRLEAD_POD_UID is not set");
    assert_eq!(gate.ends_within(WHILE), None, "{}", gate.log());
}

#[test]
fn a_flood_of_link_changes_does_not_hide_the_marker() {
    let Some(space) = Space::new() else { return };
    let mut gate = Gate::start(&space, UID);
    gate.says_within(SOON, "waiting until");
    gate.signal("STOP");
    space.flood(3000);
    space.set_alias(&ready(UID, Some(space.cookie())));
    gate.signal("CONT");
    assert_eq!(gate.ends_within(SOON), Some(0), "{}", gate.log());
}
