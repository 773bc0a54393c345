//! The taint `ip-exhausted.fairlead.dev/<network>` of one node: when it is set and when it goes. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use fairlead_crds::names;
use k8s_openapi::api::core::v1::Taint;

/// Fewest time between two changes of one taint.
pub const PAUSE: Duration = Duration::from_secs(5);
/// Networks with fewer addresses have their marks closer together.
const SMALL: u128 = 64;

/// What is known of one network on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The effect, if the network wants a taint.
    pub effect: Option<&'static str>,
    /// Whether its addresses are counted as an extended resource.
    pub resource: bool,
    /// Whether the node can claim no more for a family that its pods need: nothing is left, or it owns all it may.
    pub full: bool,
    /// How many addresses its ranges have, of the scarcer family.
    pub size: u128,
    /// Addresses the node can hand out now.
    pub free: u64,
    /// Addresses the node promises in all.
    pub promised: u64,
    /// Whether the network is ready on the node; what it counts means nothing otherwise.
    pub ready: bool,
}

impl Facts {
    /// `(low, high)`: at or below low the taint is set, at or above high it goes.
    ///
    /// Both are kept within what the node has, or a small range could never reach the high mark again.
    fn marks(&self) -> (u64, u64) {
        let low =
            if self.resource { 0 } else { (self.promised / 10).max(4).min(self.promised.saturating_sub(1)) };
        let step = if self.size < SMALL { 1 } else { 4 };
        (low, (low + step).min(self.promised).max(low + 1))
    }

    /// The effect the taint shall have, given the one it has.
    fn wanted(&self, current: Option<&str>) -> Option<&'static str> {
        let effect = self.effect?;
        if !self.ready {
            return effect_if(current.is_some(), effect);
        }
        let (low, high) = self.marks();
        let short = if current.is_some() { self.free < high } else { self.free <= low };
        effect_if(self.full && short, effect)
    }
}

fn effect_if(is: bool, effect: &'static str) -> Option<&'static str> {
    is.then_some(effect)
}

/// When the taints of all nodes were changed last, by node and key.
#[derive(Debug, Default)]
pub struct Changes(HashMap<(String, String), Instant>);

/// A change of a node's taints.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// The new list, if it differs.
    pub taints: Option<Vec<Taint>>,
    /// The keys that change.
    pub keys: Vec<String>,
    /// Whether a change had to wait for its pause.
    pub waits: bool,
}

impl Changes {
    /// What a node's taints shall be. `wanted` has the networks the node has, by taint key; taints of ours that are
    /// not in it are removed, also those under a prefix that was configured before.
    pub fn decide(
        &self,
        node: &str,
        current: &[Taint],
        wanted: &BTreeMap<String, Facts>,
        now: Instant,
    ) -> Change {
        let is_ours = |taint: &Taint| {
            names::is_our_taint(&taint.key, taint.value.as_deref()) || wanted.contains_key(&taint.key)
        };
        let (ours, mut taints): (Vec<Taint>, Vec<Taint>) = current.iter().cloned().partition(is_ours);
        let mut change = Change::default();
        let keys = wanted.keys().cloned().chain(ours.iter().map(|taint| taint.key.clone()));
        for key in keys.collect::<std::collections::BTreeSet<_>>() {
            let here: Vec<&Taint> = ours.iter().filter(|taint| taint.key == key).collect();
            let has = here.first().map(|taint| taint.effect.as_str());
            let wants = wanted.get(&key).and_then(|facts| facts.wanted(has));
            let marked = here.iter().all(|taint| taint.value.as_deref() == Some(names::TAINT_MARK));
            let same = here.len() <= 1 && has == wants && marked;
            let rests = self
                .0
                .get(&(node.to_owned(), key.clone()))
                .is_some_and(|at| now.saturating_duration_since(*at) < PAUSE);
            change.waits |= !same && rests;
            if same || rests {
                taints.extend(here.into_iter().cloned());
            } else {
                taints.extend(wants.map(|effect| Taint {
                    key: key.clone(),
                    value: Some(names::TAINT_MARK.to_owned()),
                    effect: effect.to_owned(),
                    ..Taint::default()
                }));
                change.keys.push(key);
            }
        }
        change.taints = (!change.keys.is_empty()).then_some(taints);
        change
    }

    /// Takes note of a change that was made.
    pub fn note(&mut self, node: &str, keys: Vec<String>, now: Instant) {
        self.0.retain(|_, at| now.saturating_duration_since(*at) < PAUSE);
        self.0.extend(keys.into_iter().map(|key| ((node.to_owned(), key), now)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PREFIX: &str = "ip-exhausted.fairlead.dev/";
    const FACTS: Facts = Facts {
        effect: Some("PreferNoSchedule"),
        resource: true,
        full: true,
        size: 256,
        free: 0,
        promised: 20,
        ready: true,
    };

    fn key() -> String {
        format!("{PREFIX}blue")
    }

    fn taint(key: &str, effect: &str) -> Taint {
        let value = key.starts_with(PREFIX).then(|| names::TAINT_MARK.to_owned());
        Taint { key: key.into(), effect: effect.into(), value, ..Taint::default() }
    }

    fn decide(current: &[Taint], facts: Option<Facts>) -> Option<Vec<Taint>> {
        let wanted = facts.into_iter().map(|facts| (key(), facts)).collect();
        Changes::default().decide("n", current, &wanted, Instant::now()).taints
    }

    #[test]
    fn it_comes_when_nothing_is_free_and_the_range_is_full() {
        let foreign = taint("other", "NoSchedule");
        assert_eq!(
            decide(std::slice::from_ref(&foreign), Some(FACTS)),
            Some(vec![foreign, taint(&key(), "PreferNoSchedule")])
        );
        assert_eq!(decide(&[], Some(Facts { full: false, ..FACTS })), None);
        assert_eq!(decide(&[], Some(Facts { free: 1, ..FACTS })), None);
        assert_eq!(decide(&[], Some(Facts { effect: None, ..FACTS })), None);
    }

    #[test]
    fn it_goes_at_the_high_mark_which_is_four_above_the_low_one_unless_the_range_is_small() {
        let there = [taint(&key(), "PreferNoSchedule")];
        assert_eq!(decide(&there, Some(Facts { free: 3, ..FACTS })), None);
        assert_eq!(decide(&there, Some(Facts { free: 4, ..FACTS })), Some(vec![]));
        assert_eq!(decide(&there, Some(Facts { free: 1, size: 8, ..FACTS })), Some(vec![]));
    }

    #[test]
    fn without_the_resource_it_comes_early() {
        let facts = Facts { resource: false, promised: 100, ..FACTS };
        assert_eq!(decide(&[], Some(Facts { free: 11, ..facts })), None);
        assert!(decide(&[], Some(Facts { free: 10, ..facts })).is_some());
        let small = Facts { promised: 20, ..facts };
        assert_eq!(decide(&[], Some(Facts { free: 5, ..small })), None);
        assert!(decide(&[], Some(Facts { free: 4, ..small })).is_some());
    }

    #[test]
    fn it_goes_when_network_node_or_effect_no_longer_want_it_and_when_blocks_are_unclaimed_again() {
        let there = [taint(&key(), "PreferNoSchedule"), taint("other", "NoExecute")];
        let without = Some(vec![taint("other", "NoExecute")]);
        assert_eq!(decide(&there, None), without);
        assert_eq!(decide(&there, Some(Facts { effect: None, ..FACTS })), without);
        assert_eq!(decide(&there, Some(Facts { full: false, ..FACTS })), without);
        let changed = decide(&there, Some(Facts { effect: Some("NoSchedule"), ..FACTS })).unwrap();
        assert_eq!(changed, [taint("other", "NoExecute"), taint(&key(), "NoSchedule")]);
    }

    #[test]
    fn it_is_left_alone_while_the_network_is_not_ready_on_the_node() {
        let there = [taint(&key(), "PreferNoSchedule")];
        assert_eq!(decide(&there, Some(Facts { ready: false, free: 20, ..FACTS })), None);
        assert_eq!(decide(&[], Some(Facts { ready: false, ..FACTS })), None);
    }

    #[test]
    fn one_taint_changes_at_most_every_five_seconds() {
        let (mut changes, start) = (Changes::default(), Instant::now());
        let wanted = BTreeMap::from([(key(), FACTS)]);
        let first = changes.decide("n", &[], &wanted, start);
        changes.note("n", first.keys, start);
        let there = first.taints.unwrap();
        let none = BTreeMap::new();
        let soon = changes.decide("n", &there, &none, start + Duration::from_secs(4));
        assert_eq!((soon.taints, soon.waits), (None, true));
        assert_eq!(changes.decide("n", &there, &none, start + PAUSE).taints, Some(vec![]));
        assert!(changes.decide("m", &there, &none, start).taints.is_some(), "another node does not wait");
    }

    #[test]
    fn a_taint_under_a_prefix_of_before_goes_and_those_of_others_under_the_same_prefix_stay() {
        let shared = "status-taint.cluster-autoscaler.kubernetes.io/";
        let others = Taint { value: None, ..taint(&format!("{shared}blue"), "NoSchedule") };
        let before = Taint {
            value: Some(names::TAINT_MARK.into()),
            ..taint(&format!("{shared}fairlead-blue"), "NoSchedule")
        };
        let after = decide(&[others.clone(), before], Some(FACTS));
        assert_eq!(after, Some(vec![others, taint(&key(), "PreferNoSchedule")]));
    }

    #[test]
    fn a_taint_without_our_value_is_set_anew() {
        let bare = Taint { value: None, ..taint(&key(), "PreferNoSchedule") };
        assert_eq!(decide(&[bare], Some(FACTS)), Some(vec![taint(&key(), "PreferNoSchedule")]));
    }

    proptest! {
        #[test]
        fn a_node_without_pods_never_keeps_the_taint_and_it_never_flaps(
            resource: bool, size in 1u128..1000, promised in 1u64..1000, free in 0u64..1000,
        ) {
            let facts = |free| Facts { resource, size, free, promised, ..FACTS };
            let there = [taint(&key(), "PreferNoSchedule")];
            prop_assert_eq!(decide(&there, Some(facts(promised))), Some(vec![]), "all addresses are free");
            let (comes, goes) = (decide(&[], Some(facts(free))).is_some(), decide(&there, Some(facts(free))).is_some());
            prop_assert!(!(comes && goes), "the same state sets and removes it");
            prop_assert!(decide(&[], Some(facts(0))).is_some(), "nothing is free");
        }
    }
}
