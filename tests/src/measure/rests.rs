//! A rest before every measurement. Namespaces and cgroups of deleted pods are taken apart by the kernel for seconds after
//! the last of their processes ended: without it, this would be counted for whatever is measured next.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::Processors;

/// The machine is looked at second by second.
const STEP: Duration = Duration::from_secs(1);
/// How much of a second the processors have to be idle; an idle cluster of two nodes takes about a twentieth.
const IDLE: f64 = 0.85;
/// A machine that others use too may never be quiet; then it is measured as it is, and said.
const LONGEST: Duration = Duration::from_secs(30);

/// How often it was waited for a quiet machine, and how often in vain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rests {
    taken: u32,
    in_vain: u32,
}

impl Rests {
    /// Waits until the processors were nearly idle for so many seconds in a row, for half a minute at most. One is enough
    /// after one pod; after a crowd quiet seconds are between others.
    ///
    /// # Errors
    /// When the kernel does not say what they do.
    pub async fn take(&mut self, seconds: u32) -> Result<()> {
        self.taken += 1;
        let deadline = Instant::now() + LONGEST;
        let (mut before, mut quiet) = (Processors::now()?, 0);
        while Instant::now() < deadline {
            sleep(STEP).await;
            let now = Processors::now()?;
            let mut passed = Processors::default();
            passed.add(before, now);
            quiet = if passed.idle_share() >= IDLE { quiet + 1 } else { 0 };
            if quiet >= seconds {
                return Ok(());
            }
            before = now;
        }
        self.in_vain += 1;
        Ok(())
    }

    /// A sentence on it.
    pub fn said(&self) -> String {
        let Self { taken, in_vain } = self;
        match in_vain {
            0 => format!("All {taken} measurements began on a quiet machine."),
            _ => format!(
                "{in_vain} of {taken} measurements began on a machine that was busy for half a minute before."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_on_a_busy_machine_are_told() {
        let quiet = Rests { taken: 9, in_vain: 0 };
        assert_eq!(quiet.said(), "All 9 measurements began on a quiet machine.");
        let busy = Rests { taken: 9, in_vain: 2 };
        assert!(
            busy.said().starts_with("2 of 9 measurements began on a machine that was busy"),
            "{}",
            busy.said()
        );
    }
}
