//! The extended resource `fairlead.dev/net-<network>` of one node, changed by remove, wait, set. Pure.
//!
//! A kubelet that restarts admits its pods again and fails those that do not fit (`OutOf…`), so the number is never
//! below what bound pods request. Shrinking it in place would race with binds that are under way: without the
//! resource nothing new is bound, and the kubelet ignores resources that its node does not advertise. Growing it in
//! place where nothing is left would race with the kubelet's own copy of the node: the scheduler can bind a pod before
//! the kubelet has seen the new number, and it would fail the pod by the old one.

use std::time::{Duration, Instant};

/// How long the resource is gone before it grows, so that the kubelet does not know the old number any more.
pub const FORGET: Duration = Duration::from_millis(300);
/// More pods than a scheduler binds to one node before its kubelet hears of a new number.
pub const HEADROOM: u64 = 8;
/// How long the resource is gone at least before it shrinks, so that binds under way become visible.
pub const SETTLE_MIN: Duration = Duration::from_secs(1);
/// Time between two counts of what bound pods request; when both agree, binds have settled.
pub const RECOUNT: Duration = Duration::from_millis(500);
/// How long the resource is gone at most.
pub const SETTLE_MAX: Duration = Duration::from_secs(5);
/// How often the pods of a node are counted to see whether a number that is too high can shrink.
pub const RECHECK: Duration = Duration::from_secs(2);

/// What a node says of one network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// What the scheduler may count on in all.
    pub promised: u64,
    /// What can be handed out at once.
    pub free: u64,
    /// What rests.
    pub quarantined: u64,
}

impl Offer {
    /// The number to advertise where `current` is advertised.
    ///
    /// Every deleted pod's address rests for its quarantine, and every shrink stops new pods for a second or
    /// more. So what is missing because it rests is tolerated as long as at least two thirds of what is offered could
    /// be handed out at once: a pod that comes in spite of it waits at its gate until the quarantine is over. What the
    /// node wants to hand back is missing for ever: it waits until the number says so.
    pub fn target(self, current: Option<u64>) -> u64 {
        match current {
            Some(current) if current.saturating_sub(self.promised) <= self.quarantined.min(self.free / 2) => {
                current.max(self.promised)
            }
            _ => self.promised,
        }
    }
}

/// Where one resource of one node stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tracker {
    removed: Option<Removed>,
    counted: Option<(Instant, u64)>,
}

/// Why a resource was removed, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Removed {
    since: Instant,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// To advertise less, or nobody knows.
    Shrink,
    /// To advertise more than this number.
    Grow(u64),
    /// The kubelet had set it to 0, or the node did not have the network for a while.
    Gone,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The number is right.
    Nothing,
    /// Look again after that time.
    Wait(Duration),
    /// Count what bound pods request, then ask again.
    Count,
    /// Advertise this number, greater than 0.
    Set(u64),
    /// Advertise nothing.
    Remove,
}

impl Tracker {
    /// Nothing is known of a resource but that somebody else, before that time, may have removed it to shrink it.
    pub fn new(began: Instant) -> Self {
        Self::removed(began, Why::Shrink)
    }

    fn removed(since: Instant, why: Why) -> Self {
        Self { removed: Some(Removed { since, why }), counted: None }
    }

    /// The next step towards `target` (0: the node shall not have the resource).
    ///
    /// `current` is what the node advertises, `counted` what its bound pods request, if that was just counted.
    pub fn step(&mut self, target: u64, current: Option<u64>, counted: Option<u64>, now: Instant) -> Step {
        match current {
            Some(_) if target == 0 => self.remove(Why::Gone, now),
            None if target == 0 => Step::Nothing,
            // The kubelet sets extended resources to 0 when it registers the node, and would fail pods by it: no delay.
            Some(0) => self.remove(Why::Gone, now),
            None => self.fill(target, counted, now),
            Some(current) => {
                self.removed = None;
                self.adjust(target, current, counted, now)
            }
        }
    }

    fn remove(&mut self, why: Why, now: Instant) -> Step {
        *self = Self::removed(now, why);
        Step::Remove
    }

    fn fill(&mut self, target: u64, counted: Option<u64>, now: Instant) -> Step {
        let Some(Removed { since, why }) = self.removed else {
            return counted.map_or(Step::Count, |count| self.set(target.max(count)));
        };
        let rest = match why {
            Why::Shrink => SETTLE_MIN,
            Why::Grow(_) | Why::Gone => FORGET,
        };
        let gone_for = now.saturating_duration_since(since);
        if gone_for < rest {
            return Step::Wait(rest.saturating_sub(gone_for));
        }
        match (why, counted) {
            // Binds that were under way fit the number that was advertised before.
            (Why::Grow(before), _) if target >= before => self.set(target),
            (Why::Gone, Some(count)) => self.set(target.max(count)),
            (_, counted) => self.settle(target, counted, gone_for, now),
        }
    }

    fn settle(&mut self, target: u64, counted: Option<u64>, gone_for: Duration, now: Instant) -> Step {
        if let Some(left) = self.until_next(RECOUNT, now) {
            return Step::Wait(left);
        }
        let Some(count) = counted else { return Step::Count };
        let before = self.counted.replace((now, count)).map(|(_, count)| count);
        if gone_for < SETTLE_MAX && before != Some(count) {
            return Step::Wait(RECOUNT);
        }
        self.set(target.max(count))
    }

    fn set(&mut self, number: u64) -> Step {
        *self = Self::default();
        Step::Set(number)
    }

    fn adjust(&mut self, target: u64, current: u64, counted: Option<u64>, now: Instant) -> Step {
        if target == current {
            self.counted = None;
            return Step::Nothing;
        }
        let grows = target > current;
        let Some(count) = counted else {
            let rest = self.until_next(RECHECK, now).filter(|_| !grows);
            return rest.map_or(Step::Count, Step::Wait);
        };
        self.counted = Some((now, count));
        match target.max(count) {
            wanted if wanted > current && current.saturating_sub(count) >= HEADROOM => self.set(wanted),
            wanted if wanted > current => self.remove(Why::Grow(current), now),
            wanted if wanted == current => Step::Wait(RECHECK),
            _ => self.remove(Why::Shrink, now),
        }
    }

    fn until_next(&self, pause: Duration, now: Instant) -> Option<Duration> {
        let (at, _) = self.counted?;
        pause.checked_sub(now.saturating_duration_since(at)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_quarantine_shrinks_the_number_only_where_addresses_are_scarce() {
        let offer = |promised, free, quarantined| Offer { promised, free, quarantined };
        let target = |promised, free| offer(promised, free, 11).target(Some(32));
        assert_eq!((target(31, 30), target(22, 20), target(21, 20)), (32, 32, 21));
        assert_eq!(offer(3, 0, 1).target(Some(4)), 3);
        assert_eq!(offer(48, 47, 0).target(Some(32)), 48);
        assert_eq!(offer(16, 16, 0).target(None), 16);
        assert_eq!(offer(16, 30, 0).target(Some(32)), 16, "the rest shall be handed back");
    }

    #[test]
    fn it_grows_at_once_where_enough_is_left() {
        let (now, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(20, Some(16), None, now), Step::Count);
        assert_eq!(tracker.step(20, Some(16), Some(8), now), Step::Set(20));
        assert_eq!(tracker.step(16, Some(16), None, now), Step::Nothing);
    }

    #[test]
    fn where_little_is_left_the_kubelet_forgets_the_old_number_before_it_grows() {
        let (now, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(20, Some(16), Some(9), now), Step::Remove);
        assert_eq!(tracker.step(20, None, None, now + 100 * MS), Step::Wait(200 * MS));
        assert_eq!(tracker.step(21, None, None, now + FORGET), Step::Set(21), "binds fit the old number");
        let mut shrinks = Tracker::default();
        assert_eq!(shrinks.step(20, Some(16), Some(16), now), Step::Remove);
        assert_eq!(shrinks.step(15, None, None, now + FORGET), Step::Count, "it is less after all");
    }

    #[test]
    fn it_appears_with_at_least_what_bound_pods_request() {
        let (now, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(4, None, None, now), Step::Count);
        assert_eq!(tracker.step(4, None, Some(6), now), Step::Set(6));
    }

    #[test]
    fn what_the_kubelet_zeroes_is_away_at_once_and_comes_back_after_one_count() {
        let (now, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(4, Some(0), None, now), Step::Remove);
        assert_eq!(tracker.step(4, None, None, now), Step::Wait(FORGET));
        assert_eq!(tracker.step(4, None, None, now + FORGET), Step::Count);
        assert_eq!(tracker.step(4, None, Some(6), now + FORGET), Step::Set(6));
    }

    #[test]
    fn it_is_removed_rather_than_set_to_zero() {
        let now = Instant::now();
        assert_eq!(Tracker::default().step(0, Some(3), None, now), Step::Remove);
        assert_eq!(Tracker::default().step(0, Some(0), None, now), Step::Remove);
        assert_eq!(Tracker::default().step(0, None, None, now), Step::Nothing);
    }

    #[test]
    fn it_shrinks_by_remove_wait_set() {
        let (start, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(5, Some(8), None, start), Step::Count);
        assert_eq!(tracker.step(5, Some(8), Some(2), start), Step::Remove);
        assert_eq!(tracker.step(5, None, None, start + 400 * MS), Step::Wait(600 * MS));
        let first = start + 1000 * MS;
        assert_eq!(tracker.step(5, None, None, first), Step::Count);
        assert_eq!(tracker.step(5, None, Some(3), first), Step::Wait(RECOUNT), "a bind was under way");
        assert_eq!(tracker.step(5, None, None, first + 100 * MS), Step::Wait(400 * MS));
        let second = first + 500 * MS;
        assert_eq!(tracker.step(5, None, Some(3), second), Step::Set(5));
    }

    #[test]
    fn binds_that_never_settle_do_not_keep_it_away_for_ever() {
        let (start, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(1, Some(90), Some(0), start), Step::Remove);
        let steps =
            (1..=12u32).map(|n| tracker.step(1, None, Some(n.into()), start + SETTLE_MIN + RECOUNT * n));
        assert!(steps.into_iter().any(|step| matches!(step, Step::Set(_))));
    }

    #[test]
    fn it_stays_while_pods_request_all_of_it_and_pods_are_not_counted_all_the_time() {
        let (now, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(5, Some(8), Some(8), now), Step::Wait(RECHECK));
        assert_eq!(tracker.step(5, Some(8), None, now + 500 * MS), Step::Wait(1500 * MS));
        assert_eq!(tracker.step(5, Some(8), None, now + RECHECK), Step::Count);
    }

    #[test]
    fn a_new_leader_waits_for_binds_that_its_predecessor_shrank_for() {
        let began = Instant::now();
        let mut tracker = Tracker::new(began);
        assert_eq!(tracker.step(4, None, None, began), Step::Wait(SETTLE_MIN));
        assert_eq!(tracker.step(4, None, Some(5), began + SETTLE_MIN), Step::Wait(RECOUNT));
        assert_eq!(tracker.step(4, None, Some(6), began + SETTLE_MIN + RECOUNT), Step::Wait(RECOUNT));
        assert_eq!(tracker.step(4, None, Some(6), began + SETTLE_MIN + 2 * RECOUNT), Step::Set(6));
    }

    #[test]
    fn a_node_that_registers_later_has_its_number_after_one_count() {
        let began = Instant::now();
        let (mut tracker, later) = (Tracker::new(began), began + SETTLE_MAX);
        assert_eq!(tracker.step(4, None, None, later), Step::Count);
        assert_eq!(tracker.step(4, None, Some(2), later), Step::Set(4));
    }

    #[test]
    fn a_network_that_is_gone_from_a_node_takes_its_resource_along_whatever_was_under_way() {
        let (now, mut tracker) = (Instant::now(), Tracker::default());
        assert_eq!(tracker.step(5, Some(8), Some(2), now), Step::Remove);
        assert_eq!(tracker.step(0, None, None, now), Step::Nothing);
        assert_eq!(tracker.step(0, Some(5), None, now), Step::Remove);
        assert_eq!(tracker.step(5, None, Some(2), now), Step::Wait(FORGET));
        assert_eq!(tracker.step(5, None, Some(2), now + FORGET), Step::Set(5), "one count is enough");
    }

    #[derive(Debug, Clone)]
    enum Move {
        Bind,
        Leave,
        Target(u64),
        Tick(u64),
        KubeletZeroes,
        NodeRegisters,
        NewLeader,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            3 => Just(Move::Bind),
            2 => Just(Move::Leave),
            2 => (0u64..12).prop_map(Move::Target),
            4 => (0u64..1500).prop_map(Move::Tick),
            1 => Just(Move::KubeletZeroes),
            1 => Just(Move::NodeRegisters),
            1 => Just(Move::NewLeader),
        ];
        prop::collection::vec(one, 1..200)
    }

    /// How far the kubelet's copy of its node may be behind.
    const LAG: Duration = Duration::from_millis(250);

    fn quick(binds: &[Instant], now: Instant) -> u64 {
        binds.iter().filter(|at| now < **at + LAG).count() as u64
    }

    proptest! {
        /// A scheduler that binds only what the advertised number allows, and a controller that follows any target,
        /// while kubelets zero it, nodes come back and leaders change. The kubelet admits by a number that may be old.
        #[test]
        fn what_is_advertised_is_never_below_what_bound_pods_request_not_even_as_the_kubelet_knows_it(moves in moves()) {
            let mut now = Instant::now();
            let mut tracker = Tracker::new(now);
            let mut known: Vec<(Instant, Option<u64>)> = vec![];
            let mut binds: Vec<Instant> = vec![];
            let (mut target, mut advertised, mut bound) = (4u64, None::<u64>, 0u64);
            for next in moves {
                match next {
                    Move::Bind if advertised.is_some_and(|n| n > bound) && quick(&binds, now) < HEADROOM => {
                        binds.push(now);
                        bound += 1;
                        // Any number that ended less than the lag ago may still be what it knows.
                        let ends = known.iter().skip(1).map(|(since, _)| *since);
                        let lately = known.iter().zip(ends).filter(|(_, end)| now < *end + LAG);
                        prop_assert!(lately.clone().all(|((_, n), _)| n.is_none_or(|n| n >= bound)), "{:?} {}", known, bound);
                    }
                    Move::Leave => bound = bound.saturating_sub(1),
                    Move::Target(n) => target = n,
                    Move::Tick(ms) => now += MS * u32::try_from(ms).unwrap(),
                    // Pods stay bound; the kubelet goes on with those it runs and admits none while it says 0.
                    Move::KubeletZeroes => {
                        advertised = advertised.map(|_| 0);
                        known.clear();
                    }
                    Move::NodeRegisters => {
                        (advertised, bound) = (None, 0);
                        known.clear();
                    }
                    Move::NewLeader => tracker = Tracker::new(now),
                    Move::Bind => {}
                }
                let mut step = tracker.step(target, advertised, None, now);
                if step == Step::Count {
                    step = tracker.step(target, advertised, Some(bound), now);
                }
                match step {
                    Step::Set(n) => advertised = Some(n),
                    Step::Remove => advertised = None,
                    Step::Nothing | Step::Wait(_) => {}
                    Step::Count => prop_assert!(false, "counted twice"),
                }
                prop_assert!(advertised.is_none_or(|n| n > 0 && n >= bound));
                if known.last().is_none_or(|(_, last)| *last != advertised) {
                    known.push((now, advertised));
                }
            }
            // Left alone, it ends at the target or at what pods request.
            for _ in 0..40 {
                now += RECOUNT;
                let mut step = tracker.step(target, advertised, None, now);
                if step == Step::Count { step = tracker.step(target, advertised, Some(bound), now); }
                match step { Step::Set(n) => advertised = Some(n), Step::Remove => advertised = None, _ => {} }
            }
            prop_assert_eq!(advertised, (target > 0).then(|| target.max(bound)));
        }
    }
}
