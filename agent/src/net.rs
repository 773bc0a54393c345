//! The kernel, in the words of the domain: one narrow trait with a real and an in-memory implementation.
//!
//! Nothing above this module knows netlink. Calls block for at most their deadline and are made from
//! threads that may block, never from an async task.

mod announce;
mod bridge;
mod conntrack;
mod devices;
pub mod fake;
mod frames;
pub mod kernel;
pub mod monitor;
pub mod netlink;
pub mod netns;
mod probe;
pub mod selftest;

use std::path::Path;
use std::time::Duration;

use fairlead_crds::{IfName, Ip, Mac, Reason};

use crate::plan::{HostLink, Observed, Step, WantedInterface};

/// Why the kernel did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The namespace is gone: its path does not exist or is no namespace any more.
    #[error("the network namespace {0} is gone")]
    NamespaceGone(String),
    /// A system call other than netlink failed.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A netlink request was refused; `text` is the kernel's extended message, if it gave one.
    #[error("cannot {action}: {source}{}", text.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Netlink {
        /// What was attempted.
        action: String,
        /// The kernel's answer.
        source: std::io::Error,
        /// The kernel's extended message.
        text: Option<String>,
    },
    /// Something that is not ours has the name.
    #[error("{0} exists and is not fairlead's")]
    NotOurs(String),
}

/// A sandbox's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// `SO_NETNS_COOKIE`, unique per boot.
    pub cookie: u64,
    /// Its id as seen from the node's own namespace; assigned by us if it had none.
    pub nsid: i32,
}

/// Where to look for one interface of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// Name of the end on the node.
    pub host: &'a str,
    /// Name that the end in the pod has or shall have, if that is known.
    pub link: Option<&'a str>,
}

impl<'a> From<&'a WantedInterface> for Place<'a> {
    fn from(wanted: &'a WantedInterface) -> Self {
        Self { host: &wanted.host, link: Some(wanted.name.as_str()) }
    }
}

/// An address that is about to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The address.
    pub address: Ip,
    /// Hardware address of the interface that is to have it: if that answers, it is no stranger.
    pub own: Mac,
}

/// Something else that has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    /// The address.
    pub address: Ip,
    /// Its hardware address.
    pub mac: Mac,
}

/// A bridge of the node as Networks want it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedBridge {
    /// Its name.
    pub name: IfName,
    /// Whether the agent makes it; otherwise it must exist and is not changed.
    pub create: bool,
    /// The node's interface that is its port, if any.
    pub uplink: Option<IfName>,
    /// Its MTU in bytes, if the Networks ask for one; default: the uplink's, or 1500.
    pub mtu: Option<u32>,
}

/// A bridge that pods can be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeReady {
    /// Its interface index.
    pub index: u32,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// Why a bridge cannot be used: a reason for people and the sentence that goes with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BridgeProblem {
    /// The reason.
    pub reason: Reason,
    /// One sentence that names the bridge or device and the way out.
    pub message: String,
}

/// What happened to a list of steps.
#[derive(Debug, Default)]
pub struct Report {
    /// How many were done, in order, before one failed.
    pub done: usize,
    /// The first that failed, with the reason. Those that were sent together with it may have been done, the
    /// rest was not tried.
    pub failed: Option<(Step, NetError)>,
}

/// Something changed on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEvent {
    /// A link of ours (by group and name) changed or was deleted.
    Link {
        /// Its name.
        name: String,
        /// Whether it was deleted.
        deleted: bool,
    },
    /// A bridge or uplink changed or was deleted: any other link of the node.
    Other {
        /// Its name.
        name: String,
    },
    /// Events were lost; look at everything again.
    Lost,
}

/// The network of one node.
pub trait Net: Send + Sync + 'static {
    /// Opens a sandbox's namespace, gives it an id if it has none, and runs `work` inside, on a thread that
    /// enters it once; `work` cannot await. The namespace is not kept open afterwards.
    ///
    /// # Errors
    /// [`NetError::NamespaceGone`] if the path is no namespace (any more). Errors of `work` are its own.
    fn visit(
        &self,
        path: &Path,
        work: &mut (dyn FnMut(Namespace, &mut dyn Session) + Send),
    ) -> Result<(), NetError>;

    /// Brings a bridge to what is wanted, or says why it cannot be. Writes nothing if it is there.
    ///
    /// # Errors
    /// [`BridgeProblem`] for people; also if the kernel refuses.
    fn ensure_bridge(&self, wanted: &WantedBridge) -> Result<BridgeReady, BridgeProblem>;

    /// Asks on a link of the node, a bridge, who has these addresses, several times within `time`, and listens that
    /// long or until there is an answer for each. Returns those that someone else has, or is about to use.
    ///
    /// # Errors
    /// If nothing can be sent or heard there.
    fn probe(&self, link: &IfName, asked: &[Asked], time: Duration) -> Result<Vec<Stranger>, NetError>;

    /// Forgets what the node's kernel remembers of addresses that are free again: who has each on a link, its bridge, and
    /// their connections. Where connections are not tracked there are none. The more at once, the cheaper each is.
    ///
    /// # Errors
    /// The first refusal of the kernel; the others are forgotten all the same.
    fn forget(&self, addresses: &[(IfName, Ip)]) -> Result<(), NetError>;

    /// Deletes a bridge that we made and releases its uplink; success if it is missing or not ours.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn remove_bridge(&self, name: &str) -> Result<(), NetError>;

    /// Names of the bridges that we made.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn bridges(&self) -> Result<Vec<String>, NetError>;

    /// All links on the node with our group and a name of ours.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn host_links(&self) -> Result<Vec<HostLink>, NetError>;

    /// Deletes host links of ours by name, their other ends with them; missing ones are success.
    /// Returns once the kernel says that they are gone.
    ///
    /// # Errors
    /// [`NetError::NotOurs`] if a link of that name has another group.
    fn delete_host_links(&self, names: &[String]) -> Result<(), NetError>;
}

/// The inside of one namespace, together with the node's own.
pub trait Session {
    /// Which of the host links exist, and what is in the namespace at their other ends and under the names
    /// asked for. Of links that are not ours only that they are there is said, not what they carry.
    ///
    /// # Errors
    /// If the kernel refuses to say.
    fn observe(&mut self, places: &[Place<'_>]) -> Result<Observed, NetError>;

    /// Does the steps in order, up to the first that fails.
    fn apply(&mut self, steps: &[Step]) -> Report;

    /// Tells the neighbours about addresses: gratuitous ARP and unsolicited neighbour advertisements, once.
    ///
    /// # Errors
    /// If a packet cannot be sent.
    fn announce(&mut self, link: &IfName, mac: Mac, addresses: &[Ip]) -> Result<(), NetError>;
}
