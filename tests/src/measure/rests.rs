//! A rest before every measurement, and another try for one that was disturbed. Namespaces and cgroups of deleted pods are
//! taken apart by the kernel for seconds after the last of their processes ended: without a rest, this would be counted for
//! whatever is measured next. And a host gives the machine's processors to others for minutes.

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

/// How much of the processors the host may take from a measurement.
const STOLEN: f64 = 0.05;
/// Of all measurements together: a host that never stops to take them does not keep a bench from its end.
const REPEATS: u32 = 60;

/// How often it was waited for a quiet machine, how often in vain, and what the host disturbed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rests {
    taken: u32,
    in_vain: u32,
    /// Whether the last one was.
    last_in_vain: bool,
    repeated: u32,
    disturbed: u32,
}

impl Rests {
    /// Waits until the processors were nearly idle for so many seconds in a row, for half a minute at most. One is enough
    /// after one pod; after a crowd quiet seconds are between others.
    ///
    /// # Errors
    /// When the kernel does not say what they do.
    pub async fn take(&mut self, seconds: u32) -> Result<()> {
        self.taken += 1;
        self.last_in_vain = false;
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
        self.last_in_vain = true;
        Ok(())
    }

    /// Whether what was measured since the last rest is to be left out and measured again: the host took over a twentieth of
    /// the processors from it, and not too many others were left out already.
    pub fn again(&mut self, [from, to]: [Processors; 2]) -> bool {
        let mut passed = Processors::default();
        passed.add(from, to);
        if passed.stolen_share() <= STOLEN {
            return false;
        }
        if self.repeated == REPEATS {
            self.disturbed += 1;
            return false;
        }
        self.repeated += 1;
        self.taken -= 1;
        self.in_vain -= u32::from(self.last_in_vain);
        true
    }

    /// Some sentences on it.
    pub fn said(&self) -> String {
        let Self { taken, in_vain, repeated, disturbed, .. } = self;
        let began = match in_vain {
            0 => format!("All {taken} measurements began on a quiet machine."),
            _ => format!("{in_vain} of {taken} measurements began on a machine that did not get quiet."),
        };
        let again = match repeated {
            0 => String::new(),
            _ => format!(" {repeated} more were left out, since the host took over 5 % of the processors."),
        };
        let kept = match disturbed {
            0 => String::new(),
            _ => format!(" From {disturbed} that count it took as much."),
        };
        format!("{began}{again}{kept}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_on_a_busy_machine_are_told() {
        let quiet = Rests { taken: 9, ..Rests::default() };
        assert_eq!(quiet.said(), "All 9 measurements began on a quiet machine.");
        let busy = Rests { taken: 9, in_vain: 2, ..Rests::default() };
        assert_eq!(busy.said(), "2 of 9 measurements began on a machine that did not get quiet.");
    }

    #[test]
    fn what_the_host_disturbed_is_measured_again_but_not_for_ever() {
        let at = |stolen: u32| Processors::read(&format!("cpu 50 0 0 50 0 0 0 {stolen}")).unwrap();
        let passed = |stolen| [Processors::default(), at(stolen)];
        let mut rests = Rests { taken: 1, ..Rests::default() };
        assert!(!rests.again(passed(5)), "a twentieth is not over a twentieth");
        for _ in 0..REPEATS {
            rests.taken += 1;
            assert!(rests.again(passed(10)));
        }
        rests.taken += 1;
        assert!(!rests.again(passed(10)));
        let said = rests.said();
        assert!(said.starts_with("All 2 measurements") && said.contains(" 60 more were left out"), "{said}");
        assert!(said.ends_with(" From 1 that count it took as much."), "{said}");
    }

    #[test]
    fn a_rest_in_vain_before_what_is_left_out_does_not_count() {
        let taken = Processors::read("cpu 0 0 0 0 0 0 0 1").unwrap();
        let mut rests = Rests { taken: 3, in_vain: 2, last_in_vain: true, ..Rests::default() };
        assert!(rests.again([Processors::default(), taken]));
        assert!(rests.said().starts_with("1 of 2 measurements"), "{}", rests.said());
    }
}
