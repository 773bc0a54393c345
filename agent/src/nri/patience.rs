//! How long the runtime may be made to wait, so that one slow pod does not stop a node. Pure; time is an argument.

use std::time::{Duration, Instant};

/// Longest wait for one pod: half of what the runtime allows its plugins.
const LONGEST: Duration = Duration::from_secs(1);
/// What is always granted: an attach takes a few milliseconds.
const SHORTEST: Duration = Duration::from_millis(20);
/// Time that waits in vain may take altogether: this share of the time that passes.
const SHARE: u32 = 10;

/// A store of waiting time. A wait in vain takes from it, time fills it again: pods that are slow one after the other
/// take a tenth of the node's time at most, and the first of them has the full second.
#[derive(Debug, Default)]
pub struct Patience {
    /// What is missing from the full store, and as of when.
    missing: Option<(Duration, Instant)>,
}

impl Patience {
    /// How long to wait for one pod now.
    pub fn grant(&self, now: Instant) -> Duration {
        LONGEST.saturating_sub(self.missing(now)).max(SHORTEST)
    }

    /// Notes a wait in vain that ended now.
    pub fn spend(&mut self, now: Instant, waited: Duration) {
        self.missing = Some(((self.missing(now) + waited).min(LONGEST), now));
    }

    fn missing(&self, now: Instant) -> Duration {
        self.missing.map_or(Duration::ZERO, |(missing, at)| {
            missing.saturating_sub(now.saturating_duration_since(at) / SHARE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_first_slow_pod_has_a_second_and_those_right_after_it_next_to_nothing() {
        let (mut patience, begin) = (Patience::default(), Instant::now());
        assert_eq!(patience.grant(begin), LONGEST);
        patience.spend(begin + LONGEST, LONGEST);
        assert_eq!(patience.grant(begin + LONGEST), SHORTEST);
        assert_eq!(patience.grant(begin + LONGEST + ms(5_000)), ms(500));
        assert_eq!(patience.grant(begin + LONGEST + ms(60_000)), LONGEST);
    }

    #[test]
    fn slow_pods_without_end_take_a_tenth_of_the_time_and_their_shortest_waits() {
        let (mut patience, begin) = (Patience::default(), Instant::now());
        let (mut now, mut waited) = (begin, Duration::ZERO);
        while now < begin + ms(60_000) {
            let granted = patience.grant(now);
            now += granted;
            waited += granted;
            patience.spend(now, granted);
            now += ms(300);
        }
        assert!(waited < LONGEST + ms(60_000) / 9, "{waited:?}");
    }
}
