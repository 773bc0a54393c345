//! The Node Resource Interface (NRI) of container runtimes, as a plugin speaks it: a stream multiplexer, ttrpc
//! and protobuf messages over a Unix socket.
//!
//! Blocking, without an async runtime and without a thread of its own. Owns the wire and nothing else: what to do
//! about a pod is the [`Plugin`]'s. The source is `pkg/api/api.proto` of containerd/nri at 0.12 and
//! `PROTOCOL.md` of containerd/ttrpc; only the fields that are read here are decoded.
//!
//! The runtime calls one plugin at a time, under one lock for the whole node, and closes the connection of a plugin
//! that needs more than its request timeout (2 s by default); it then goes on as if the plugin had agreed, but for
//! [`Plugin::validate_container`].

mod connection;
mod frame;
mod serve;
mod stop;
mod types;
mod wire;

pub use connection::{Connection, connect, inherited, is_started};
pub use serve::serve;
pub use stop::Stop;
pub use types::{Container, ContainerState, EventMask, Identity, PodSandbox};

use std::io;
use std::path::PathBuf;

/// The runtimes' default socket for plugins.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";

/// What a plugin does; it agrees to what it does not implement. Calls come one at a time, on the thread that runs [`serve`].
pub trait Plugin: Send + Sync {
    /// The runtime accepted the plugin; says which calls it wants. An empty mask means all of them.
    fn configure(&self, runtime: &str, version: &str) -> EventMask;

    /// Once per connection, before any other call about a pod: what there is. Sandboxes that stopped are in it,
    /// containers that ended are not.
    fn synchronize(&self, _pods: Vec<PodSandbox>, _containers: Vec<Container>) {}

    /// A sandbox has its network, and is not known to clients of the runtime before this returns.
    ///
    /// # Errors
    /// A sentence; the sandbox is then torn down.
    fn run_pod_sandbox(&self, _pod: &PodSandbox) -> Result<(), String> {
        Ok(())
    }

    /// A container of any kind is about to be made in a sandbox.
    ///
    /// # Errors
    /// A sentence; the container is then not made, and people see the sentence in the pod's events.
    fn create_container(&self, _pod: &PodSandbox, _container: &Container) -> Result<(), String> {
        Ok(())
    }

    /// The last word about a container, after all plugins agreed to it; `plugins` are all that are connected, the
    /// runtime's built-in ones included. An answer that does not come refuses the container, unlike elsewhere.
    ///
    /// # Errors
    /// As [`Self::create_container`].
    fn validate_container(
        &self,
        _pod: &PodSandbox,
        _container: &Container,
        _plugins: &[Identity],
    ) -> Result<(), String> {
        Ok(())
    }

    /// A sandbox is being stopped; where CNI goes second (containerd), its network is still there.
    fn stop_pod_sandbox(&self, _pod: &PodSandbox) {}

    /// A sandbox is being removed.
    fn remove_pod_sandbox(&self, _pod: &PodSandbox) {}
}

/// Why a plugin is not connected (any more).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket cannot be connected to.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The runtime started this program without what it gives to plugins, or something else started it.
    #[error("the environment has no usable {0}: this is for a runtime that starts its plugins itself")]
    Environment(&'static str),
    /// The socket broke.
    #[error("cannot {action}")]
    Socket {
        /// What was attempted.
        action: &'static str,
        /// Why it did not work.
        source: io::Error,
    },
    /// The name or index is not one that runtimes accept.
    #[error("{0:?} is no name of a plugin: letters, digits and _ . + - only, with an index below 100")]
    Identity(String),
    /// The runtime refused the registration.
    #[error("the runtime refused the plugin: {0}")]
    Refused(String),
    /// The runtime took too long.
    #[error("the runtime did not {0} in time")]
    Deadline(&'static str),
    /// The runtime closed the connection before the plugin was in use, or in the middle of a message.
    #[error("the runtime closed the connection")]
    Closed,
    /// What came is not the protocol.
    #[error("the runtime sent {0}")]
    Protocol(&'static str),
}
