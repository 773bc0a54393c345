//! Which sandboxes the runtime waits for, and which are known to be attached: what a pod's loop tells the plugin.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

/// Shared between the plugin's thread and the pods' loops. Locked for look-ups only.
#[derive(Debug, Default)]
pub struct Waits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connected: bool,
    /// Sandboxes for which the runtime waits, by id.
    waiting: HashMap<String, mpsc::SyncSender<()>>,
    /// Ids of sandboxes with a ready marker, of pods that are held by the runtime.
    ready: HashSet<String>,
}

impl Waits {
    /// The runtime begins to wait for a sandbox; what is received says that it need not any more.
    pub fn begin(&self, sandbox: &str) -> mpsc::Receiver<()> {
        let (over, receiver) = mpsc::sync_channel(1);
        self.lock().waiting.insert(sandbox.to_owned(), over);
        receiver
    }

    /// The runtime does not wait any more.
    pub fn end(&self, sandbox: &str) {
        self.lock().waiting.remove(sandbox);
    }

    /// Whether the runtime waits for a sandbox: no container can be in it.
    pub fn is_waiting(&self, sandbox: &str) -> bool {
        self.lock().waiting.contains_key(sandbox)
    }

    /// The ready marker is in the sandbox.
    pub fn ready(&self, sandbox: &str) {
        let mut state = self.lock();
        if state.connected {
            state.ready.insert(sandbox.to_owned());
        }
        state.over(sandbox);
    }

    /// A round is over for the sandbox: more waiting would be for something else than the kernel.
    pub fn over(&self, sandbox: &str) {
        self.lock().over(sandbox);
    }

    /// Whether a sandbox is known to have its ready marker.
    pub fn is_ready(&self, sandbox: &str) -> bool {
        self.lock().ready.contains(sandbox)
    }

    /// A sandbox is removed.
    pub fn forget(&self, sandbox: &str) {
        self.lock().ready.remove(sandbox);
    }

    /// The runtime has the plugin in use.
    pub fn connected(&self) {
        self.lock().connected = true;
    }

    /// The connection ended; whether there was one. What was removed meanwhile will not be told.
    pub fn disconnected(&self) -> bool {
        let mut state = self.lock();
        state.ready.clear();
        state.waiting.clear();
        std::mem::take(&mut state.connected)
    }

    /// Whether the runtime has the plugin in use.
    pub fn is_connected(&self) -> bool {
        self.lock().connected
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn over(&mut self, sandbox: &str) {
        // Room for one, and it is sent once.
        self.waiting.remove(sandbox).map(|over| over.try_send(()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wait_ends_when_a_round_does_and_only_for_its_sandbox() {
        let waits = Waits::default();
        let (one, two) = (waits.begin("one"), waits.begin("two"));
        waits.over("one");
        waits.over("one");
        assert!(one.recv_timeout(Duration::ZERO).is_ok());
        assert!(two.recv_timeout(Duration::ZERO).is_err() && waits.is_waiting("two"));
    }

    #[test]
    fn what_is_ready_is_remembered_while_the_runtime_tells_of_its_end() {
        let waits = Waits::default();
        waits.ready("before");
        assert!(!waits.is_ready("before"));
        waits.connected();
        waits.ready("one");
        waits.ready("two");
        waits.forget("two");
        assert!(waits.is_ready("one") && !waits.is_ready("two"));
        assert!(waits.disconnected() && !waits.is_ready("one") && !waits.disconnected());
    }
}
