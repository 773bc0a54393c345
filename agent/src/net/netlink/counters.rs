//! How many requests are made to the kernel.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many requests were made to the kernel; shared by all sockets of one [`super::super::kernel::Kernel`].
#[derive(Debug, Default)]
pub struct Counters {
    observe: AtomicU64,
    change: AtomicU64,
    sysctl: AtomicU64,
}

/// What [`Counters`] stood at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Netlink requests that only read.
    pub observe: u64,
    /// Netlink requests that change something, successful or not.
    pub change: u64,
    /// Sysctls written.
    pub sysctl: u64,
}

impl Counters {
    /// The counts now.
    pub fn read(&self) -> Counts {
        Counts {
            observe: self.observe.load(Ordering::Relaxed),
            change: self.change.load(Ordering::Relaxed),
            sysctl: self.sysctl.load(Ordering::Relaxed),
        }
    }

    /// A netlink request is about to be sent.
    pub(super) fn count(&self, changes: bool) {
        let counter = if changes { &self.change } else { &self.observe };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A sysctl is about to be written.
    pub(in super::super) fn count_sysctl(&self) {
        self.sysctl.fetch_add(1, Ordering::Relaxed);
    }
}
