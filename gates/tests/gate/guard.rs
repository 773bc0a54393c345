//! The guard looks into namespaces from outside, by their path.

use fairlead_crds::marker::Marker;
use fairlead_gates::{
    guard::{Held, Looks},
    marker::{Verdict, Wait},
};

use super::{UID, ready, space::Space};

fn look(space: &Space) -> Verdict {
    let namespace = space.path();
    Looks::default().at(Held { namespace: &namespace, uid: UID })
}

#[test]
fn a_look_from_outside_sees_what_the_gate_would_see() {
    let (Some(space), Some(other)) = (Space::new(), Space::new()) else { return };
    let cookie = space.cookie();
    assert_eq!(look(&space), Verdict::Wait(Wait::NoMarker));
    for (alias, wait) in [
        (ready("another-pod", Some(cookie)), Wait::OtherPod("another-pod".into())),
        (ready(UID, Some(other.cookie())), Wait::OtherNamespace),
        (
            Marker::Waiting { uid: UID.into(), reason: "no address is free".into() }.to_string(),
            Wait::Reason("no address is free".into()),
        ),
    ] {
        space.set_alias(&alias);
        assert_eq!(look(&space), Verdict::Wait(wait), "{alias}");
    }
    space.set_alias(&ready(UID, Some(cookie)));
    assert_eq!(look(&space), Verdict::Open);
    assert_eq!(look(&other), Verdict::Wait(Wait::NoMarker));
}

#[test]
fn a_look_leaves_no_trace() {
    let Some(space) = Space::new() else { return };
    let own = fairlead_gates::marker::own_cookie();
    for _ in 0..100 {
        look(&space);
    }
    assert_eq!(fairlead_gates::marker::own_cookie(), own);
    assert!(std::fs::read_dir("/proc/self/task").unwrap().count() < 50, "threads stay");
}
