//! Who leads: what to do about the leader Lease. Pure; time is an argument.
//!
//! A candidate takes a Lease only after it has seen it unchanged for the whole term by its own clock, and a leader
//! stops well before its term ends, so that no clock is compared with another one's.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::api::CALL;

/// How long a term lasts without renewal.
pub const TERM: Duration = Duration::from_secs(20);
/// How often the leader renews, and a candidate looks.
pub const RENEW: Duration = Duration::from_secs(2);
/// How long after its last renewal a leader still starts to write something.
pub const DEADLINE: Duration = Duration::from_secs(12);

// A write that was started at the last moment ends before another one can lead.
const _: () = assert!(DEADLINE.as_millis() + CALL.as_millis() < TERM.as_millis());

/// What a candidate has seen of the Lease.
#[derive(Debug, Default)]
pub struct Watched(Option<(String, Instant)>);

/// What to do about the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Renew it: it is ours.
    Renew,
    /// Take it: it is nobody's, or its holder is silent.
    Take,
    /// Look again later.
    Wait,
}

impl Watched {
    /// Decides about a Lease of this version.
    pub fn decide(&mut self, spec: &LeaseSpec, version: &str, me: &str, now: Instant) -> Move {
        let since = match &self.0 {
            Some((seen, since)) if seen == version => *since,
            _ => now,
        };
        self.0 = Some((version.to_owned(), since));
        let term =
            spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map_or(TERM, Duration::from_secs);
        match spec.holder_identity.as_deref() {
            Some(holder) if holder == me => Move::Renew,
            None | Some("") => Move::Take,
            Some(_) if now.saturating_duration_since(since) >= term.max(TERM) => Move::Take,
            Some(_) => Move::Wait,
        }
    }
}

/// The Lease as its (new) holder writes it.
pub fn held_by(me: &str, old: &LeaseSpec, taken: bool, now: &MicroTime) -> LeaseSpec {
    let transitions = old.lease_transitions.unwrap_or(0) + i32::from(taken);
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(TERM.as_secs()).ok(),
        acquire_time: if taken { Some(now.clone()) } else { old.acquire_time.clone() },
        renew_time: Some(now.clone()),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(20),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_released_lease_is_taken_at_once_and_ones_own_is_renewed() {
        let now = Instant::now();
        assert_eq!(Watched::default().decide(&held(""), "1", "me", now), Move::Take);
        assert_eq!(Watched::default().decide(&LeaseSpec::default(), "1", "me", now), Move::Take);
        assert_eq!(Watched::default().decide(&held("me"), "1", "me", now), Move::Renew);
    }

    #[test]
    fn anothers_lease_is_taken_only_after_a_whole_term_without_renewal() {
        let (mut watched, start) = (Watched::default(), Instant::now());
        assert_eq!(watched.decide(&held("you"), "1", "me", start), Move::Wait);
        assert_eq!(watched.decide(&held("you"), "1", "me", start + TERM / 2), Move::Wait);
        assert_eq!(watched.decide(&held("you"), "2", "me", start + TERM), Move::Wait, "it was renewed");
        assert_eq!(watched.decide(&held("you"), "2", "me", start + TERM + TERM / 2), Move::Wait);
        assert_eq!(watched.decide(&held("you"), "2", "me", start + TERM * 2), Move::Take);
    }

    #[test]
    fn taking_counts_a_transition_and_renewing_keeps_when_it_was_taken() {
        let time = |text: &str| MicroTime(text.parse().unwrap());
        let taken = held_by("me", &held("you"), true, &time("2026-01-01T00:00:00Z"));
        assert_eq!(
            (taken.lease_transitions, taken.acquire_time.clone()),
            (Some(1), taken.renew_time.clone())
        );
        let renewed = held_by("me", &taken, false, &time("2026-01-01T00:00:02Z"));
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(1), taken.acquire_time));
    }
}
