//! The real kernel, over netlink.
//!
//! The node's own namespace is the one in which [`Kernel::new`] is called; its sockets are made there and
//! kept. A pod's namespace is entered on a thread of its own, for one operation.

pub(super) mod attempt;
mod bridges;
mod delete;
mod host;
mod link;
mod neighbour;
mod request;
mod session;
mod sysctl;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::NsidAttribute;

use self::session::PodSession;
use self::sysctl::Sysctls;
use super::devices::Devices;
use super::monitor::Monitor;
use super::netlink::{Counters, Counts, Socket};
use super::{
    Asked, BridgeProblem, BridgeReady, Namespace, Net, NetError, Session, Stranger, WantedBridge, conntrack,
    netns, probe,
};
use fairlead_crds::{IfName, Ip};

use crate::plan::HostLink;

pub(super) use self::link::is_ours;

/// How many idle sockets of the node's namespace are kept.
const IDLE_SOCKETS: usize = 8;

/// What a [`Kernel`] has to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// The node's name; MAC addresses of bridges are derived from it.
    pub node: String,
    /// Globs (`*`, `?`) of devices of the node that may become uplinks; none allows none.
    pub devices: Vec<String>,
    /// Where the `net` part of the sysctls is, writable. In a container, where `/proc/sys` is read-only, a
    /// bind mount of the host's `/proc/sys/net`.
    pub sysctl_root: PathBuf,
    /// Longest time that the kernel may take for one answer.
    pub deadline: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node: String::new(),
            devices: Vec::new(),
            sysctl_root: "/proc/sys/net".into(),
            deadline: Duration::from_secs(2),
        }
    }
}

/// The network of this node.
#[derive(Debug)]
pub struct Kernel {
    node: String,
    devices: Devices,
    sysctls: Sysctls,
    deadline: Duration,
    counters: Arc<Counters>,
    /// The node's own namespace.
    own: OwnedFd,
    own_cookie: u64,
    idle: Mutex<Vec<Socket>>,
}

impl Kernel {
    /// The network of the calling thread's namespace.
    ///
    /// # Errors
    /// If the namespace cannot be opened or the kernel is older than 5.14.
    pub fn new(config: Config) -> Result<Self, NetError> {
        let counters = Arc::new(Counters::default());
        Ok(Self {
            node: config.node,
            devices: Devices::new(config.devices),
            sysctls: Sysctls::new(config.sysctl_root, Arc::clone(&counters)),
            deadline: config.deadline,
            counters,
            own: netns::own()?,
            own_cookie: netns::own_cookie()?,
            idle: Mutex::default(),
        })
    }

    /// How many requests were made so far.
    pub fn counters(&self) -> Counts {
        self.counters.read()
    }

    /// Starts to collect changes of the node's links; events before [`Monitor::run`] are kept.
    ///
    /// # Errors
    /// If the kernel makes no socket. Must be called within a tokio runtime.
    pub fn monitor(&self) -> Result<Monitor, NetError> {
        netns::run(self.own.as_fd(), Monitor::socket)?.and_then(Monitor::new)
    }

    /// Runs `work` with a socket of the node's own namespace.
    fn with_host<T>(&self, work: impl FnOnce(&mut Socket) -> T) -> Result<T, NetError> {
        let idle = self.idle().pop();
        let mut socket = match idle {
            Some(socket) => socket,
            None => netns::run(self.own.as_fd(), || self.socket())??,
        };
        let done = work(&mut socket);
        let mut idle = self.idle();
        if socket.is_sound() && idle.len() < IDLE_SOCKETS {
            idle.push(socket);
        }
        Ok(done)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` in the calling thread's namespace, a pod's.
    fn inside(
        &self,
        host: &mut Socket,
        fd: &OwnedFd,
        path: &Path,
        work: &mut (dyn FnMut(Namespace, &mut dyn Session) + Send),
    ) -> Result<(), NetError> {
        let pod = self.socket()?;
        let cookie = pod.namespace_cookie()?;
        if cookie == self.own_cookie {
            return Err(NetError::NotOurs(format!("{}, the node's own network namespace,", path.display())));
        }
        let nsid = nsid(host, fd)?;
        let mut session = PodSession::new(self, pod, host, fd.as_fd(), nsid);
        work(Namespace { cookie, nsid }, &mut session);
        Ok(())
    }

    /// A socket of the calling thread's namespace.
    fn socket(&self) -> Result<Socket, NetError> {
        Socket::open(Arc::clone(&self.counters), self.deadline)
    }
}

impl Net for Kernel {
    fn visit(
        &self,
        path: &Path,
        work: &mut (dyn FnMut(Namespace, &mut dyn Session) + Send),
    ) -> Result<(), NetError> {
        let fd = netns::open(path)?;
        let inside = |host: &mut Socket| netns::run(fd.as_fd(), || self.inside(host, &fd, path, work));
        self.with_host(inside)?.map_err(|error| gone_if_no_namespace(error, path))?
    }

    fn ensure_bridge(&self, wanted: &WantedBridge) -> Result<BridgeReady, BridgeProblem> {
        bridges::ensure(self, wanted)
    }

    fn probe(&self, link: &IfName, asked: &[Asked], time: Duration) -> Result<Vec<Stranger>, NetError> {
        netns::run(self.own.as_fd(), || probe::run(link, asked, time))?
    }

    fn forget(&self, addresses: &[(IfName, Ip)]) -> Result<(), NetError> {
        // One that fails must not keep what is known of the others.
        let mut done = Ok(());
        for (link, address) in addresses {
            let one = self.with_host(|socket| neighbour::forget(socket, link.as_str(), address.0));
            done = done.and(one.flatten());
        }
        let addresses: Vec<_> = addresses.iter().map(|(_, address)| address.0).collect();
        let tracked = netns::run(self.own.as_fd(), || {
            conntrack::forget(&addresses, self.sysctls.connections(), self.deadline)
        });
        done.and(tracked?)
    }

    fn remove_bridge(&self, name: &str) -> Result<(), NetError> {
        self.with_host(|socket| bridges::remove(socket, name, &self.node, &self.devices))?
    }

    fn bridges(&self) -> Result<Vec<String>, NetError> {
        self.with_host(|socket| bridges::list(socket, &self.node))?
    }

    fn host_links(&self) -> Result<Vec<HostLink>, NetError> {
        self.with_host(host::list)?
    }

    fn delete_host_links(&self, names: &[String]) -> Result<(), NetError> {
        self.with_host(|socket| self.delete(socket, names))?
    }
}

fn nsid(socket: &mut Socket, namespace: &OwnedFd) -> Result<i32, NetError> {
    if let Some(nsid) = read_nsid(socket, namespace)? {
        return Ok(nsid);
    }
    match socket.change(request::assign_nsid(namespace.as_fd()), 0) {
        // Someone else was faster, or the kernel was, for a link that leads there.
        Err(refusal) if !refusal.is(Errno::EEXIST) => return Err(refusal.during("give the namespace an id")),
        _ => {}
    }
    read_nsid(socket, namespace)?.ok_or_else(|| netns::system("give the namespace an id", Errno::EAGAIN))
}

fn read_nsid(socket: &mut Socket, namespace: &OwnedFd) -> Result<Option<i32>, NetError> {
    let answer = socket.get(request::get_nsid(namespace.as_fd()));
    let answer = answer.map_err(|refusal| refusal.during("read the namespace's id"))?;
    Ok(id(answer).filter(|id| *id >= 0))
}

fn id(message: RouteNetlinkMessage) -> Option<i32> {
    let RouteNetlinkMessage::NewNsId(message) = message else {
        return None;
    };
    message.attributes.iter().find_map(|attribute| match attribute {
        NsidAttribute::Id(id) => Some(*id),
        _ => None,
    })
}

/// After an unmount the path is a plain file: to the kernel, no namespace.
fn gone_if_no_namespace(error: NetError, path: &Path) -> NetError {
    match error {
        NetError::System { source, .. } if source.raw_os_error() == Some(Errno::EINVAL as i32) => {
            NetError::NamespaceGone(path.display().to_string())
        }
        error => error,
    }
}
