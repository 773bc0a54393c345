//! The file that tells the agent what the guard knows. The guard holds a lock on it for life, by which the agent
//! knows that the guard lives.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

use fairlead_crds::GuardReport;
use nix::fcntl::{Flock, FlockArg};

use super::say;

/// Every report is padded to this, so that one write replaces it whole.
const LENGTH: usize = 256;

/// Where the guard reports, if anywhere.
#[derive(Debug)]
pub struct Reporter {
    file: Option<Flock<File>>,
    report: Mutex<GuardReport>,
}

impl Reporter {
    /// Locks the file and writes that the runtime is not connected yet. What an earlier guard of the pod saw of the
    /// runtime's plugins is taken over: on a node that keeps pods away until it is strict, no container would show it again.
    ///
    /// # Errors
    /// A sentence; also if another guard reports there.
    pub fn open(path: Option<&Path>) -> Result<Self, String> {
        let file = path.map(locked).transpose()?;
        let GuardReport { validator, preinstalled, .. } =
            file.as_deref().and_then(read_from).unwrap_or_default();
        let report = GuardReport { validator, preinstalled, ..GuardReport::default() };
        let reporter = Self { file, report: Mutex::new(report.clone()) };
        reporter.write(&report)?;
        Ok(reporter)
    }

    /// Changes the report, and writes it if it differs.
    pub fn change<T>(&self, change: impl FnOnce(&mut GuardReport) -> T) -> T {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = report.clone();
        let result = change(&mut report);
        if *report != before
            && let Err(error) = self.write(&report)
        {
            // The agent goes on with what it read; the guard's own work does not depend on it.
            say(&error);
        }
        result
    }

    fn write(&self, report: &GuardReport) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let text = format!("{report:<width$}\n", report = report.to_string(), width = LENGTH - 1);
        file.write_all_at(text.as_bytes(), 0).map_err(|error| format!("cannot write the report: {error}"))
    }
}

/// The report of a guard to that file, if it can be read.
pub fn read(path: &Path) -> Option<GuardReport> {
    read_from(&File::open(path).ok()?)
}

fn read_from(file: &File) -> Option<GuardReport> {
    let mut text = [0; LENGTH];
    let length = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(text.get(..length)?).ok()?.parse().ok()
}

fn locked(path: &Path) -> Result<Flock<File>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot report to {}: {error}", path.display());
    let file = File::options().create(true).read(true).write(true).truncate(false).open(path);
    let file = file.map_err(|error| failed(&error))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| failed(&errno))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fairlead_crds::guard_report::Sight;

    use super::*;

    #[test]
    fn the_file_always_holds_one_whole_report() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guard");
        let reporter = Reporter::open(Some(&path)).unwrap();
        let read = || fs::read_to_string(&path).unwrap().parse::<GuardReport>().unwrap();
        assert_eq!(read(), GuardReport::default());
        reporter.change(|report| {
            report.runtime = "containerd v2.4.2".into();
            (report.connected, report.validator) = (true, Sight::Missing);
        });
        assert_eq!((read().connected, read().validator), (true, Sight::Missing));
        reporter.change(|report| report.runtime.clear());
        assert_eq!(fs::metadata(&path).unwrap().len(), 256);
        assert!(read().connected && read().runtime.is_empty());
    }

    #[test]
    fn two_guards_do_not_report_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guard");
        let first = Reporter::open(Some(&path)).unwrap();
        assert!(Reporter::open(Some(&path)).unwrap_err().contains("cannot report to"));
        first.change(|report| (report.connected, report.validator) = (true, Sight::Seen));
        drop(first);
        drop(Reporter::open(Some(&path)).unwrap());
        let taken_over = fs::read_to_string(&path).unwrap().parse::<GuardReport>().unwrap();
        assert_eq!((taken_over.connected, taken_over.validator), (false, Sight::Seen));
    }
}
