//! How this node can hold pods, as its guard reports it.
//!
//! The container runtime says nowhere whether a missing plugin lets containers through: its verbose CRI status has
//! no NRI settings, and a plugin's `Configure` has none either. What it shows is the list of plugins of each container
//! that is created, its built-in validators included. The guard sees that list; this reads the guard's report.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_crds::{ConditionType, GuardReport, NodeHold, NodeNetworkStatus, Reason};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::Instant;

/// A guard that is away for less, as when its pod is deleted, changes nothing: controllers act on what a node can do.
const GRACE: Duration = Duration::from_secs(10);
/// Longest report, in bytes.
const REPORT_MAX: u64 = 4096;

/// Follows the report of this node's guard.
#[derive(Debug)]
pub struct HoldWatch {
    report: PathBuf,
    last: (NodeHold, Reason),
    away_since: Option<Instant>,
}

impl HoldWatch {
    /// Follows this file, which need not exist.
    pub fn new(report: &Path) -> Self {
        Self { report: report.to_owned(), last: NodeHold::of(None), away_since: None }
    }

    /// What this node said before the agent started.
    pub fn remember(&mut self, before: &NodeNetworkStatus, now: Instant) {
        let condition = before.conditions.iter().find(|c| c.type_ == ConditionType::HoldStrict.as_str());
        let reason = condition.and_then(|c| Reason::ALL.iter().find(|reason| reason.as_str() == c.reason));
        if let (Some(hold), Some(reason)) = (before.hold, reason) {
            self.last = (hold, *reason);
            self.away_since = Some(now);
        }
    }

    /// How the node can hold pods now, and why.
    pub fn look(&mut self) -> (NodeHold, Reason) {
        self.judge(read(&self.report).as_ref(), Instant::now())
    }

    fn judge(&mut self, report: Option<&GuardReport>, now: Instant) -> (NodeHold, Reason) {
        let found = NodeHold::of(report);
        if found.0 == NodeHold::Gate {
            let since = *self.away_since.get_or_insert(now);
            if now.duration_since(since) < GRACE {
                return self.last;
            }
        } else {
            self.away_since = None;
        }
        self.last = found;
        found
    }
}

/// The report of a guard that lives: it holds a lock on the file.
fn read(path: &Path) -> Option<GuardReport> {
    match Flock::lock(File::open(path).ok()?, FlockArg::LockSharedNonblock) {
        Err((file, Errno::EWOULDBLOCK)) => {
            let mut text = String::new();
            file.take(REPORT_MAX).read_to_string(&mut text).ok()?;
            text.parse().ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fairlead_crds::guard_report::Sight;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use super::*;

    const STRICT: (NodeHold, Reason) = (NodeHold::NriStrict, Reason::DefaultValidator);
    const GATE: (NodeHold, Reason) = (NodeHold::Gate, Reason::NoGuard);

    fn report(connected: bool) -> GuardReport {
        GuardReport { connected, validator: Sight::Seen, ..GuardReport::default() }
    }

    fn watch() -> HoldWatch {
        HoldWatch::new(Path::new("/nonexistent/guard"))
    }

    #[test]
    fn a_guard_that_is_away_shortly_changes_nothing() {
        let (mut watch, start) = (watch(), Instant::now());
        assert_eq!(watch.judge(Some(&report(true)), start), STRICT);
        assert_eq!(watch.judge(Some(&report(false)), start), STRICT);
        assert_eq!(watch.judge(None, start + GRACE / 2), STRICT);
        assert_eq!(watch.judge(None, start + GRACE), GATE);
        assert_eq!(watch.judge(Some(&report(true)), start + 2 * GRACE), STRICT);
        assert_eq!(watch.judge(None, start + 3 * GRACE), STRICT, "counted anew");
    }

    #[test]
    fn a_node_that_never_had_a_guard_says_so_at_once() {
        assert_eq!(watch().judge(None, Instant::now()), GATE);
    }

    #[test]
    fn a_new_agent_takes_over_what_the_node_said() {
        let condition = Condition {
            type_: "HoldStrict".into(),
            status: "True".into(),
            reason: "DefaultValidator".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                jiff::Timestamp::UNIX_EPOCH,
            ),
        };
        let before = NodeNetworkStatus {
            hold: Some(NodeHold::NriStrict),
            conditions: vec![condition],
            ..NodeNetworkStatus::default()
        };
        let (mut watch, start) = (watch(), Instant::now());
        watch.remember(&before, start);
        assert_eq!(watch.judge(None, start), STRICT);
        assert_eq!(watch.judge(None, start + GRACE), GATE);
    }

    #[test]
    fn a_report_counts_while_its_writer_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guard");
        assert_eq!(read(&path), None);
        fs::write(&path, format!("{}\n", report(true))).unwrap();
        assert_eq!(read(&path), None, "nobody holds the lock");
        let lock = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(read(&path), Some(report(true)));
        drop(lock);
        assert_eq!(read(&path), None);
    }
}
