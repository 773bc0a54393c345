//! Sandboxes: what the container runtime of this node says about its pods.
//!
//! Owns the types and the snapshot. `cri` speaks to the runtime, `watch` keeps a snapshot current; what a plugin of
//! the runtime hears comes in through `announce`.
//! Reads only: nothing here changes anything at the runtime, and nothing here knows networks.

pub mod announce;
pub mod cri;
#[cfg(test)]
mod fake;
pub mod memory;
mod snapshot;
pub mod watch;

pub use snapshot::Sandboxes;

use std::path::PathBuf;

use futures::future::BoxFuture;

use cri::CriError;

/// Where sandboxes have their network namespaces, and what runs in them: all that a pod's loop asks of the runtime.
pub trait Namespaces: Send + Sync + 'static {
    /// Path of a sandbox's network namespace; none for a pod on the host's network.
    ///
    /// # Errors
    /// [`CriError::Gone`] if the runtime does not know the sandbox; or if it does not answer in time or understandably.
    fn netns_path<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<PathBuf>, CriError>>;

    /// Whether a container of a sandbox runs or ran.
    ///
    /// # Errors
    /// If the runtime does not answer in time.
    fn has_started<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, CriError>>;
}

impl Namespaces for cri::Runtime {
    fn netns_path<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<PathBuf>, CriError>> {
        Box::pin(self.netns_path(id))
    }

    fn has_started<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, CriError>> {
        Box::pin(self.has_started(id))
    }
}

/// One sandbox of one pod. A pod has several over its life, rarely two at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// The runtime's id of the sandbox; never given to another.
    pub id: String,
    /// How many sandboxes of this pod the kubelet counted before this one.
    pub attempt: u32,
    /// Whether it runs. One that does not may still have its network namespace.
    pub ready: bool,
    /// When it was made: nanoseconds since 1970.
    pub created_at: i64,
    /// The runtime's handler, from the pod's `RuntimeClass`; empty for the default.
    pub runtime_handler: String,
}

impl Sandbox {
    /// What orders the sandboxes of one pod. The attempt starts again at 0 when the kubelet has forgotten
    /// the older ones, so the time decides between equals only.
    fn age(&self) -> (u32, i64) {
        (self.attempt, self.created_at)
    }
}

/// The sandbox in which a pod's containers run: READY, of the highest attempt, then the newest.
pub fn newest<'a>(sandboxes: &'a [Sandbox], uid: &str) -> Option<&'a Sandbox> {
    sandboxes.iter().filter(|sandbox| sandbox.ready && sandbox.uid == uid).max_by_key(|sandbox| sandbox.age())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, attempt: u32, ready: bool, created_at: i64) -> Sandbox {
        Sandbox { ready, created_at, ..fake::sandbox(id, "uid-1", attempt) }
    }

    #[test]
    fn the_ready_sandbox_of_the_highest_attempt_is_the_newest() {
        let all = [
            sandbox("old", 0, true, 300),
            sandbox("new", 2, true, 100),
            sandbox("newer", 2, true, 200),
            sandbox("stopped", 3, false, 400),
            fake::sandbox("other", "uid-2", 9),
        ];
        assert_eq!(newest(&all, "uid-1").map(|s| s.id.as_str()), Some("newer"));
    }

    #[test]
    fn a_pod_whose_sandboxes_all_stopped_has_none() {
        assert_eq!(newest(&[sandbox("a", 0, false, 1)], "uid-1"), None);
    }
}
