//! What the machine's processors did while something was measured: whether it waited for them, and whether they were
//! there.

use std::fs;

use anyhow::{Context, Result};

use super::{Section, Unit};

const FILE: &str = "/proc/stat";
/// Clock ticks per second of `/proc`: `USER_HZ`, which is 100 on every architecture that has images here.
pub(super) const TICKS: f64 = 100.0;

/// Time of all processors of the machine, in clock ticks, since it was booted or over a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Processors {
    all: f64,
    idle: f64,
    /// What the host gave to others although there was work (steal).
    stolen: f64,
}

impl Processors {
    /// Since the machine was booted.
    pub fn now() -> Result<Self> {
        let stat = fs::read_to_string(FILE).with_context(|| format!("reading {FILE}"))?;
        Self::read(&stat).with_context(|| format!("{FILE} has no times"))
    }

    /// The first line of `proc_stat(5)`: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    pub(super) fn read(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
        let times = fields.map(|field| field.parse().ok()).collect::<Option<Vec<f64>>>()?;
        let [_, _, _, idle, waiting, _, _, stolen] = *times else { return None };
        Some(Self { all: times.iter().sum(), idle: idle + waiting, stolen })
    }

    /// Adds what passed between two moments.
    pub fn add(&mut self, from: Self, to: Self) {
        self.all += to.all - from.all;
        self.idle += to.idle - from.idle;
        self.stolen += to.stolen - from.stolen;
    }

    /// How much of it nothing ran, 0 to 1.
    pub fn idle_share(&self) -> f64 {
        self.idle / self.all.max(1.0)
    }

    /// How much of it the host gave to others although there was work, 0 to 1.
    pub fn stolen_share(&self) -> f64 {
        self.stolen / self.all.max(1.0)
    }

    /// Seconds of it in which programs or the kernel ran.
    pub fn busy(&self) -> f64 {
        (self.all - self.idle - self.stolen) / TICKS
    }

    /// Adds the rows that say it, one figure per column.
    pub fn rows<const N: usize>(section: &mut Section, columns: [Self; N]) {
        let percent = |part: fn(&Self) -> f64| columns.map(|one| part(&one) / one.all.max(1.0) * 100.0);
        section.row("processors idle meanwhile", Unit::Percent, percent(|one| one.idle));
        section.row("processors taken by the host (steal)", Unit::Percent, percent(|one| one.stolen));
    }
}

#[cfg(test)]
mod tests {
    use comfy_table::presets::ASCII_MARKDOWN;

    use super::*;

    #[test]
    fn what_passed_is_shown_as_shares() {
        let at = |stat: &str| Processors::read(stat).unwrap();
        let (before, after) = (
            at("cpu  100 0 50 800 20 0 5 25 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1"),
            at("cpu  130 0 60 840 20 0 5 45 9 0\n"),
        );
        let mut spent = Processors::default();
        spent.add(before, after);
        assert_eq!(spent, Processors { all: 100.0, idle: 40.0, stolen: 20.0 });
        assert!((spent.idle_share() - 0.4).abs() < 1e-9, "{spent:?}");
        assert!((spent.stolen_share() - 0.2).abs() < 1e-9, "{spent:?}");
        assert!((spent.busy() - 0.4).abs() < 1e-9, "{spent:?}");
        let mut section = Section::new("one", "One", ["a"]);
        Processors::rows(&mut section, [spent]);
        let table = section.table(ASCII_MARKDOWN).to_string();
        assert!(
            table.contains("idle meanwhile            | 40.0 %") && table.contains("| 20.0 %"),
            "{table}"
        );
    }

    #[test]
    fn this_machine_has_times() {
        let now = Processors::now().unwrap();
        assert!(now.all > now.idle + now.stolen, "{now:?}");
    }
}
