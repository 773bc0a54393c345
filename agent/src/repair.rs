//! How often one object is put back after something else had changed it. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Repairs of one pod of late: at most three in ten minutes.
#[derive(Debug, Default)]
pub struct Budget {
    at: Vec<Instant>,
}

const MOST: usize = 3;
const WITHIN: Duration = Duration::from_secs(600);

impl Budget {
    /// Whether a repair is left, without taking it.
    pub fn check(&mut self, now: Instant) -> bool {
        self.at.retain(|at| now.duration_since(*at) < WITHIN);
        self.at.len() < MOST
    }

    /// Takes one repair from the budget. Otherwise the time until there is one again.
    ///
    /// # Errors
    /// The time to wait when the budget is spent.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.at.retain(|at| now.duration_since(*at) < WITHIN);
        match self.at.first() {
            Some(first) if self.at.len() >= MOST => Err(WITHIN.saturating_sub(now.duration_since(*first))),
            _ => {
                self.at.push(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_repair_within_ten_minutes_has_to_wait() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!((0..3).all(|n| budget.take(at(n)).is_ok()));
        assert_eq!(budget.take(at(100)), Err(Duration::from_secs(500)));
        assert_eq!(budget.take(at(600)), Ok(()));
    }
}
