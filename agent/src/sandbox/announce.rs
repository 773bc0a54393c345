//! What a plugin of the runtime hears, on its way into the snapshot.

use std::path::PathBuf;
use std::time::Instant;

use tokio::sync::mpsc;
use tracing::warn;

use super::Sandbox;

/// Announcements on their way; beyond, lists have to do.
const MAX_WAITING: usize = 1024;

/// What was heard.
#[derive(Debug)]
pub enum Announcement {
    /// A sandbox has its primary network. No list has it yet; its attempt is not told.
    Made {
        /// The sandbox.
        sandbox: Sandbox,
        /// Path of its network namespace.
        path: PathBuf,
        /// When it was heard.
        at: Instant,
    },
    /// A sandbox, by id, is being stopped or removed.
    Ending(String),
    /// Nothing was heard for a while.
    Look,
}

/// The plugin's end. Clones are one.
#[derive(Debug, Clone)]
pub struct Announcer(mpsc::Sender<Announcement>);

/// The way, with both of its ends.
pub fn channel() -> (Announcer, mpsc::Receiver<Announcement>) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Announcer(sender), receiver)
}

impl Announcer {
    /// Passes it on without waiting.
    pub fn announce(&self, announcement: Announcement) {
        if self.0.try_send(announcement).is_err() {
            warn!("an announcement of the container runtime is lost; its lists have to do");
        }
    }
}
