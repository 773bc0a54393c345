//! SIGTERM and SIGINT as a descriptor to wait on.
//!
//! As process 1 of its container a program does not even get a signal that it neither blocks nor handles, and
//! the kubelet would wait for the whole grace period.

use std::{
    os::fd::{AsFd, BorrowedFd},
    thread,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

/// The wish to stop. Without a descriptor the signals keep their default action, death by the signal.
#[derive(Debug)]
pub struct Stop(Option<SignalFd>);

impl Stop {
    /// From now on the two signals only make [`Self::requested`] true.
    pub fn install() -> Self {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        let fd = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).ok();
        // Blocked, or the default action would come first.
        Self(fd.filter(|_| signals.thread_block().is_ok()))
    }

    /// True once after each signal.
    pub fn requested(&self) -> bool {
        self.0.as_ref().is_some_and(|fd| matches!(fd.read_signal(), Ok(Some(_))))
    }

    /// Waits for one of the two signals; for ever where there is no descriptor.
    pub fn wait(&self) {
        while !self.requested() {
            match self.as_fd() {
                Some(fd) => drop(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE)),
                None => thread::park(),
            }
        }
    }

    /// Readable when [`Self::requested`] is true.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}
