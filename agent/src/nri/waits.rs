//! Which sandboxes the runtime was told of and are not attached yet, and which are: what a pod's loop tells the plugin.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shared between the plugin's thread and the pods' loops. Locked for look-ups only.
#[derive(Debug, Default)]
pub struct Waits {
    state: Mutex<State>,
    /// A sandbox is not pending any more.
    changed: Condvar,
}

/// How a wait for a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// It is attached.
    Ready,
    /// Its round ended without that, or nobody has announced it.
    Over,
    /// Its round goes on, and soon asked again it may be attached.
    InVain,
}

#[derive(Debug, Default)]
struct State {
    connected: bool,
    /// Ids of sandboxes without a container, whose first round is not over.
    pending: HashSet<String>,
    /// Ids of those that were waited for in vain, whose first round still goes on.
    late: HashSet<String>,
    /// Ids of sandboxes with a ready marker, of pods that are held by the runtime.
    ready: HashSet<String>,
}

impl Waits {
    /// The runtime has made a sandbox of a pod that it holds.
    pub fn begin(&self, sandbox: &str) {
        self.lock().pending.insert(sandbox.to_owned());
    }

    /// Waits until the sandbox's round is over, but only so long. From then on nobody waits for it again: who asks is told
    /// at once how it stands.
    pub fn wait(&self, sandbox: &str, longest: Duration) -> Waited {
        let is_pending = |state: &mut State| state.pending.contains(sandbox);
        let waited = self.changed.wait_timeout_while(self.lock(), longest, is_pending);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.ready.contains(sandbox) {
            Waited::Ready
        } else if state.pending.remove(sandbox) {
            state.late.insert(sandbox.to_owned());
            Waited::InVain
        } else if state.late.contains(sandbox) {
            Waited::InVain
        } else {
            Waited::Over
        }
    }

    /// Whether the sandbox's first container waits, or would wait, for its round: no container can be in it.
    pub fn is_pending(&self, sandbox: &str) -> bool {
        self.lock().pending.contains(sandbox)
    }

    /// The ready marker is in the sandbox.
    pub fn ready(&self, sandbox: &str) {
        let mut state = self.lock();
        if state.connected {
            state.ready.insert(sandbox.to_owned());
        }
        self.end(state, sandbox);
    }

    /// A round is over for the sandbox: more waiting would be for something else than the kernel.
    pub fn over(&self, sandbox: &str) {
        self.end(self.lock(), sandbox);
    }

    /// A sandbox is removed.
    pub fn forget(&self, sandbox: &str) {
        let mut state = self.lock();
        state.ready.remove(sandbox);
        self.end(state, sandbox);
    }

    /// The runtime has the plugin in use.
    pub fn connected(&self) {
        self.lock().connected = true;
    }

    /// The connection ended; whether there was one. What was removed meanwhile will not be told.
    pub fn disconnected(&self) -> bool {
        let mut state = self.lock();
        state.ready.clear();
        state.pending.clear();
        state.late.clear();
        self.changed.notify_all();
        std::mem::take(&mut state.connected)
    }

    /// Whether the runtime has the plugin in use.
    pub fn is_connected(&self) -> bool {
        self.lock().connected
    }

    fn end(&self, mut state: MutexGuard<'_, State>, sandbox: &str) {
        state.late.remove(sandbox);
        if state.pending.remove(sandbox) {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wait_ends_when_a_round_does_and_only_for_its_sandbox() {
        let waits = Waits::default();
        waits.connected();
        waits.begin("one");
        waits.begin("two");
        thread::scope(|scope| {
            let one = scope.spawn(|| waits.wait("one", LONG));
            waits.over("two");
            assert_eq!(waits.wait("two", LONG), Waited::Over, "its round ended without a marker");
            waits.ready("one");
            assert_eq!(one.join().unwrap(), Waited::Ready);
        });
        assert!(!waits.is_pending("one") && !waits.is_pending("two"));
    }

    #[test]
    fn a_wait_in_vain_is_the_last_one_for_its_sandbox() {
        let waits = Waits::default();
        waits.begin("one");
        assert!(waits.is_pending("one"));
        assert_eq!(waits.wait("one", Duration::ZERO), Waited::InVain);
        assert!(!waits.is_pending("one"));
        assert_eq!(waits.wait("one", LONG), Waited::InVain, "its round goes on");
        waits.over("one");
        assert_eq!(waits.wait("one", LONG), Waited::Over);
    }

    #[test]
    fn what_was_late_is_ready_in_the_end_or_gone() {
        let waits = Waits::default();
        waits.connected();
        for sandbox in ["one", "two"] {
            waits.begin(sandbox);
            assert_eq!(waits.wait(sandbox, Duration::ZERO), Waited::InVain);
        }
        waits.ready("one");
        waits.forget("two");
        assert_eq!((waits.wait("one", LONG), waits.wait("two", LONG)), (Waited::Ready, Waited::Over));
    }

    #[test]
    fn what_is_ready_is_remembered_while_the_runtime_tells_of_its_end() {
        let waits = Waits::default();
        let is_ready = |sandbox| waits.wait(sandbox, Duration::ZERO) == Waited::Ready;
        waits.ready("before");
        assert!(!is_ready("before"));
        waits.connected();
        waits.ready("one");
        waits.ready("two");
        waits.forget("two");
        assert!(is_ready("one") && !is_ready("two"));
        assert!(waits.disconnected() && !is_ready("one") && !waits.disconnected());
    }
}
