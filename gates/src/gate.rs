//! The gate: first init container of a pod that wants networks; waits for the marker on `lo` of its own
//! network namespace.
//!
//! It ends with success only when it saw a ready marker with its pod's uid and its namespace's cookie, with
//! 143 when it was told to stop, and otherwise never: an error is a line in the log and another try. It has
//! no credentials and no capabilities, needs no file, and must not use an async runtime or the API.

mod narrator;
mod pod;

use std::{
    io::Write,
    os::fd::AsFd,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::narrator::Narrator;
pub use self::pod::Pod;
use crate::{
    marker::{self, LinkEvents, Verdict, Wait},
    stop::Stop,
};

/// Milliseconds between two reads of the alias even if no notification came: one may be lost when the kernel's
/// queue is full, and a new alias of a link that is down makes none (`netdev_state_change`, net/core/dev.c).
const READ_EVERY: u16 = 1000;

/// Why the gate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A valid ready marker was seen.
    Open,
    /// SIGTERM or SIGINT.
    Stopped,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Open => Self::SUCCESS,
            // What a shell reports for death by SIGTERM. Not 0: a stopped gate must not open the door.
            Outcome::Stopped => Self::from(143),
        }
    }
}

/// Waits until `pod` may go on. Lines for people go to `log`; that it cannot be written does not matter.
pub fn run(pod: &Pod, log: &mut dyn Write) -> Outcome {
    let stop = Stop::install();
    let mut narrator = Narrator::new(pod, Instant::now());
    let mut events = None;
    loop {
        if stop.requested() {
            say(log, &Narrator::stopped());
            return Outcome::Stopped;
        }
        // Subscribe first, then read: what changes after the read wakes the wait below.
        events = events.filter(LinkEvents::drain).or_else(|| LinkEvents::subscribe().ok());
        let verdict = look(pod);
        for line in narrator.tell(&verdict, Instant::now()) {
            say(log, &line);
        }
        if verdict == Verdict::Open {
            return Outcome::Open;
        }
        wait(events.as_ref(), &stop);
    }
}

fn look(pod: &Pod) -> Verdict {
    match marker::observe() {
        Ok(seen) => marker::judge(seen.alias.as_deref(), &pod.uid, seen.cookie),
        Err(error) => Verdict::Wait(Wait::CannotRead(error.to_string())),
    }
}

/// Until something happens, at most [`READ_EVERY`].
fn wait(events: Option<&LinkEvents>, stop: &Stop) {
    let fds = [events.map(AsFd::as_fd), stop.as_fd()];
    let mut fds: Vec<_> = fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    if poll(&mut fds, PollTimeout::from(READ_EVERY)).is_err() {
        thread::sleep(Duration::from_millis(READ_EVERY.into()));
    }
}

fn say(log: &mut dyn Write, line: &str) {
    // A closed log is no reason to fail the pod.
    writeln!(log, "{line}").and_then(|()| log.flush()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_open_gate_ends_with_zero() {
        assert_eq!(ExitCode::from(Outcome::Open), ExitCode::SUCCESS);
        assert_eq!(ExitCode::from(Outcome::Stopped), ExitCode::from(143));
    }
}
