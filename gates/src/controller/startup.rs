//! The start-up taint: keeps pods away from a node whose agent cannot attach them yet. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fairlead_crds::admission::HeldBy;
use fairlead_crds::names;
use k8s_openapi::api::core::v1::Taint;

use super::hold;
use super::lost::LEASE;
use super::model::{Node, NodeOffer};

/// Never `NoExecute`: a running pod is never evicted because an agent is away.
const EFFECT: &str = "NoSchedule";

/// When nodes without a working agent get the taint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// While `hold: Auto` means that the container runtime holds pods.
    #[default]
    Auto,
    /// Always.
    Always,
}

impl When {
    /// Whether nodes get it now.
    pub fn applies(self, auto: HeldBy) -> bool {
        self == Self::Always || auto == HeldBy::Nri
    }
}

/// What the last looks at an agent's Lease say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It was renewed lately.
    Beats,
    /// It is missing, or was not renewed for as long as it lives.
    Silent,
    /// It has not been watched for long enough.
    Unknown,
}

/// How the Leases of all nodes change, by our own clock.
#[derive(Debug, Default)]
pub struct Pulses(HashMap<String, Seen>);

#[derive(Debug)]
struct Seen {
    version: String,
    since: Instant,
    /// Whether it was ever seen to change, so that what a dead agent left behind does not count.
    moved: bool,
}

impl Pulses {
    /// Time between two looks: an agent renews every 10 s.
    pub const PAUSE: Duration = Duration::from_secs(5);

    /// Takes note of all Leases, by name and version. A Lease that comes after the first look is a beat.
    pub fn observe(&mut self, leases: &BTreeMap<String, String>, now: Instant) {
        let first = self.0.is_empty();
        self.0.retain(|name, _| leases.contains_key(name));
        for (name, version) in leases {
            match self.0.get_mut(name) {
                Some(seen) if seen.version == *version => {}
                Some(seen) => *seen = Seen { version: version.clone(), since: now, moved: true },
                None => {
                    self.0.insert(name.clone(), Seen { version: version.clone(), since: now, moved: !first });
                }
            }
        }
    }

    /// What is known of one node's Lease.
    pub fn of(&self, node: &str, now: Instant) -> Pulse {
        match self.0.get(node) {
            None => Pulse::Silent,
            Some(seen) if now.saturating_duration_since(seen.since) >= LEASE => Pulse::Silent,
            Some(seen) if seen.moved => Pulse::Beats,
            Some(_) => Pulse::Unknown,
        }
    }
}

/// Whether a node shall have the taint; `None`: as it is.
///
/// `nri`: pods are held by the container runtime by default, so a node that is not strict keeps it too.
pub fn wants(node: &Node, offer: Option<&NodeOffer>, pulse: Pulse, nri: bool) -> Option<bool> {
    if !node.can_have_agent() {
        return Some(false);
    }
    if !offer.is_some_and(|offer| offer.ready) || nri && !hold::is_strict(node) {
        return Some(true);
    }
    match pulse {
        Pulse::Beats => Some(false),
        Pulse::Silent => Some(true),
        Pulse::Unknown => None,
    }
}

/// The node's taints with ours set right, if that changes them. A node may have come with the taint, in any form; one
/// under the key that fairlead uses by default goes if another key was chosen.
pub fn change(current: &[Taint], key: &str, wanted: Option<bool>) -> Option<Vec<Taint>> {
    let is = |taint: &Taint| taint.key == key && taint.effect == EFFECT;
    let wanted = wanted.unwrap_or_else(|| current.iter().any(is));
    let mut kept = false;
    let mut taints: Vec<Taint> = current
        .iter()
        .filter(|taint| {
            let ours = taint.key == key || names::is_startup_taint(&taint.key, taint.value.as_deref());
            let keep = !ours || wanted && !kept && is(taint);
            kept |= ours && keep;
            keep
        })
        .cloned()
        .collect();
    if wanted && !kept {
        let value = Some(names::AGENT_NOT_READY_MARK.to_owned());
        taints.push(Taint { key: key.to_owned(), effect: EFFECT.to_owned(), value, ..Taint::default() });
    }
    (taints != current).then_some(taints)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "startup-taint.cluster-autoscaler.kubernetes.io/fairlead";

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), effect: effect.into(), ..Taint::default() }
    }

    fn set(key: &str) -> Taint {
        Taint { value: Some(names::AGENT_NOT_READY_MARK.into()), ..taint(key, EFFECT) }
    }

    fn pulses(versions: &[(u64, &str)]) -> (Pulses, Instant) {
        let (mut pulses, start) = (Pulses::default(), Instant::now());
        for (second, version) in versions {
            let leases = [("n".to_owned(), (*version).to_owned()), ("other".to_owned(), "1".to_owned())];
            pulses.observe(&leases.into(), start + Duration::from_secs(*second));
        }
        (pulses, start)
    }

    #[test]
    fn a_lease_beats_only_when_it_is_seen_to_change() {
        let at =
            |(pulses, start): (Pulses, Instant), second| pulses.of("n", start + Duration::from_secs(second));
        assert_eq!(at(pulses(&[(0, "1")]), 39), Pulse::Unknown);
        assert_eq!(at(pulses(&[(0, "1")]), 40), Pulse::Silent);
        assert_eq!(at(pulses(&[(0, "1"), (5, "2")]), 44), Pulse::Beats);
        assert_eq!(at(pulses(&[(0, "1"), (5, "2")]), 45), Pulse::Silent);
        assert_eq!(at(pulses(&[]), 0), Pulse::Silent, "it has none");
    }

    #[test]
    fn the_first_lease_of_a_new_node_is_a_beat() {
        let (mut pulses, now) = (Pulses::default(), Instant::now());
        pulses.observe(&[("old".to_owned(), "1".to_owned())].into(), now);
        pulses.observe(&[("old".to_owned(), "1".to_owned()), ("new".to_owned(), "1".to_owned())].into(), now);
        assert_eq!((pulses.of("old", now), pulses.of("new", now)), (Pulse::Unknown, Pulse::Beats));
    }

    #[test]
    fn a_node_is_tainted_until_its_agent_works_and_holds_strictly_where_that_is_the_default() {
        let ready = NodeOffer { ready: true, ..NodeOffer::default() };
        let strict = [(names::HOLD_LABEL.to_owned(), names::HOLD_NRI_STRICT.to_owned())];
        let (plain, strict) = (Node::default(), Node { labels: strict.into(), ..Node::default() });
        assert_eq!(wants(&plain, Some(&ready), Pulse::Beats, false), Some(false));
        assert_eq!(wants(&plain, Some(&ready), Pulse::Beats, true), Some(true), "not strict");
        assert_eq!(wants(&strict, Some(&ready), Pulse::Beats, true), Some(false));
        assert_eq!(wants(&strict, Some(&ready), Pulse::Silent, true), Some(true));
        assert_eq!(wants(&strict, Some(&ready), Pulse::Unknown, true), None);
        assert_eq!(wants(&plain, Some(&NodeOffer::default()), Pulse::Beats, false), Some(true));
        assert_eq!(wants(&plain, None, Pulse::Beats, false), Some(true));
        let windows = [("kubernetes.io/os".to_owned(), "windows".to_owned())];
        let windows = Node { labels: windows.into(), ..Node::default() };
        assert_eq!(wants(&windows, None, Pulse::Silent, true), Some(false), "no agent ever runs there");
    }

    #[test]
    fn it_applies_by_flag_or_while_the_runtime_holds_by_default() {
        assert!(When::Always.applies(HeldBy::Gate) && When::Auto.applies(HeldBy::Nri));
        assert!(!When::Auto.applies(HeldBy::Gate));
    }

    #[test]
    fn it_goes_in_whatever_form_the_node_brought_it() {
        let foreign = taint("dedicated", "NoExecute");
        let brought = [foreign.clone(), taint(KEY, "NoExecute"), taint(names::AGENT_NOT_READY_TAINT, EFFECT)];
        assert_eq!(change(&brought, KEY, Some(false)), Some(vec![foreign.clone()]));
        assert_eq!(change(&brought, KEY, Some(true)), Some(vec![foreign.clone(), set(KEY)]));
        let under_another_key = [set("example.com/old"), foreign.clone()];
        assert_eq!(change(&under_another_key, KEY, Some(true)), Some(vec![foreign.clone(), set(KEY)]));
        assert_eq!(change(std::slice::from_ref(&foreign), KEY, None), None);
        let with_value = [Taint { value: Some("true".into()), ..taint(KEY, EFFECT) }];
        assert_eq!(change(&with_value, KEY, Some(true)), None, "it is there already");
        assert_eq!(change(&with_value, KEY, None), None);
    }

    proptest! {
        #[test]
        fn others_keep_their_taints_and_a_second_look_changes_nothing(
            keys in prop::collection::vec((0usize..4, 0usize..2), 0..6), wanted: Option<bool>,
        ) {
            let names = ["a", "b", KEY, names::AGENT_NOT_READY_TAINT];
            let current: Vec<Taint> =
                keys.iter().map(|(key, effect)| taint(names[*key], [EFFECT, "NoExecute"][*effect])).collect();
            let after = change(&current, KEY, wanted).unwrap_or_else(|| current.clone());
            let foreign = |taints: &[Taint]| taints.iter().filter(|t| t.key.len() == 1).cloned().collect::<Vec<_>>();
            prop_assert_eq!(foreign(&current), foreign(&after));
            prop_assert_eq!(change(&after, KEY, wanted), None);
            let has = after.iter().any(|taint| taint.key == KEY);
            prop_assert!(wanted.is_none_or(|wanted| wanted == has));
        }
    }
}
