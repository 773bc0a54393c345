//! One agent per node, and how it is replaced while it works.
//!
//! The agent at work holds an abstract socket of its node. At an upgrade the next one is started beside it, checks what
//! can be checked, and then asks by an annotation of the node's Lease. The one at work sees that when it renews, stops in
//! order, and stands by: should the new agent end, it is back. It has to look Ready meanwhile, since a `DaemonSet` that
//! surges takes away an old pod that is not; so its process stays, and its probes are answered by the agent at work.

use std::convert::Infallible;
use std::env;
use std::io::ErrorKind;
use std::os::fd::IntoRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fairlead_crds::names;
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::api::{ApiError, call};
use crate::args::Args;
use crate::clock::Clock;
use crate::lease::Lease;
use crate::view::View;

/// Between two attempts to hold the socket: nothing is attached on the node meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(50);
/// How long an agent that handed over leaves the socket to its successor.
const HEAD_START: Duration = Duration::from_secs(2);
/// Between two requests to the agent at work.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// How an agent came to its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nobody was at work.
    First,
    /// Another agent was at work, and may be standing by.
    Next,
}

impl Turn {
    /// Whether the agent's container counts as started: one that took over has to be ready while the other one stands by,
    /// any other may take its time.
    ///
    /// # Errors
    /// What is missing until it is ready.
    pub fn started(self, ready: Result<(), String>) -> Result<(), String> {
        match self {
            Self::First => Ok(()),
            Self::Next => ready,
        }
    }
}

/// Holds the node's abstract socket until the process ends or begins anew: there is one agent per node, whatever the API
/// server believes, and nothing of it outlives that. An agent of an older pod is asked to hand over. `None` if cancelled.
///
/// # Errors
/// If the socket cannot be made for another reason than that another agent holds it.
pub async fn only_agent(client: &Client, args: &Args, cancel: &CancellationToken) -> Result<Option<Turn>> {
    if args.stand_by && cancel.run_until_cancelled(tokio::time::sleep(HEAD_START)).await.is_none() {
        return Ok(None);
    }
    if hold()? {
        return Ok(Some(Turn::First));
    }
    let waiting = Waiting {
        lease: Lease::new(client.clone(), &args.node_name, &args.agent_uid, Clock::system()),
        pods: Api::namespaced(client.clone(), names::INSTALL_NAMESPACE),
        node: args.node_name.clone(),
        uid: args.agent_uid.clone(),
    };
    tokio::select! {
        turn = wait() => turn.map(Some),
        () = cancel.cancelled() => Ok(None),
        never = waiting.ask() => match never {},
    }
}

async fn wait() -> Result<Turn> {
    loop {
        tokio::time::sleep(TRY_EVERY).await;
        if hold()? {
            return Ok(Turn::Next);
        }
    }
}

/// Holds the socket if nobody does.
fn hold() -> Result<bool> {
    let address =
        SocketAddr::from_abstract_name(names::AGENT_SOCKET).context("cannot name the agent's socket")?;
    match UnixListener::bind_addr(&address) {
        Ok(socket) => {
            // Never closed by us: threads of this turn may still be in the kernel when everything else has ended.
            let _closed_by_the_kernel = socket.into_raw_fd();
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(false),
        Err(error) => Err(error).context("cannot hold the agent's socket"),
    }
}

/// Begins anew in the same process, to wait for the socket. Everything else of this turn ends before the socket is let go
/// (`execve(2)`: threads, then descriptors), and the container goes on.
///
/// # Errors
/// Returns only if the program cannot be started again.
pub fn stand_by() -> anyhow::Error {
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut again = Command::new("/proc/self/exe");
    let error = again.arg0(name).args(arguments).env("FAIRLEAD_STAND_BY", "true").exec();
    anyhow::Error::new(error).context("cannot start the agent's program again")
}

/// An agent that waits for its turn.
struct Waiting {
    lease: Arc<Lease>,
    pods: Api<core::Pod>,
    node: String,
    uid: String,
}

impl Waiting {
    async fn ask(&self) -> Infallible {
        info!("waiting for the other agent of this node to end");
        loop {
            match self.ask_once().await {
                Ok(asked) => debug!(asked, "still waiting for the other agent of this node"),
                Err(error) => warn!(%error, "cannot ask the other agent of this node to hand over"),
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Asks if the agent at work is the older one.
    async fn ask_once(&self) -> Result<bool, ApiError> {
        let Some(holder) = self.lease.holder().await? else { return Ok(false) };
        let agents = format!("app.kubernetes.io/name={}", names::AGENT);
        let here = ListParams::default().labels(&agents).fields(&format!("spec.nodeName={}", self.node));
        let pods = call("list the agents of this node", self.pods.list_metadata(&here)).await?;
        let pods: Vec<ObjectMeta> = pods.items.into_iter().map(|pod| pod.metadata).collect();
        let asks = replaces(&pods, &self.uid, &holder);
        if asks {
            self.lease.ask().await?;
        }
        Ok(asks)
    }
}

/// Whether the pod with the first UID is to take over from the one with the second: both are there to stay, and it is
/// the younger one.
fn replaces(pods: &[ObjectMeta], uid: &str, holder: &str) -> bool {
    let created = |uid: &str| {
        let pod = pods.iter().find(|pod| pod.uid.as_deref() == Some(uid))?;
        pod.creation_timestamp.as_ref().filter(|_| pod.deletion_timestamp.is_none())
    };
    matches!((created(uid), created(holder)), (Some(own), Some(other)) if own > other)
}

/// Stops the agent at work for one that asks for its place, if that one is there: a request may be older than its end.
pub fn hand_over(view: &View, successor: &str, stop: &CancellationToken) {
    if view.lock().pods.get(successor).is_some_and(|pod| !pod.deleting) {
        info!(agent = successor, "the next agent of this node takes over");
        stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::wire::PodObject;

    fn pod(uid: &str, second: i64) -> ObjectMeta {
        let created = Time(Timestamp::from_second(second).unwrap());
        ObjectMeta { uid: Some(uid.into()), creation_timestamp: Some(created), ..ObjectMeta::default() }
    }

    #[test]
    fn the_younger_of_two_agents_that_are_to_stay_takes_over() {
        let pods = [pod("old", 1), pod("new", 2)];
        assert!(replaces(&pods, "new", "old"));
        assert!(!replaces(&pods, "old", "new"), "it stands by");
        assert!(!replaces(&pods, "new", "new"), "the Lease is of its own container before this one");
        assert!(!replaces(&pods, "new", "unknown"), "of a pod that is gone, whose end is near");
        let ends = |mut pod: ObjectMeta| {
            pod.deletion_timestamp = pod.creation_timestamp.clone();
            pod
        };
        assert!(!replaces(&[ends(pod("old", 1)), pod("new", 2)], "new", "old"), "it ends anyway");
        assert!(!replaces(&[pod("old", 1), ends(pod("new", 2))], "new", "old"));
    }

    #[test]
    fn only_an_agent_that_took_over_has_to_be_ready_soon() {
        let not_yet = || Err("not yet".to_owned());
        assert_eq!(Turn::First.started(not_yet()), Ok(()));
        assert_eq!(Turn::Next.started(not_yet()), not_yet());
        assert_eq!(Turn::Next.started(Ok(())), Ok(()));
    }

    #[test]
    fn an_agent_stops_for_one_that_is_there() {
        let (view, stop) = (View::default(), CancellationToken::new());
        let known = |uid: &str, deleting: bool| {
            let metadata = json!({ "name": uid, "namespace": "fairlead-system", "uid": uid });
            let pod: PodObject = serde_json::from_value(json!({ "metadata": metadata, "spec": {} })).unwrap();
            let mut pod = crate::model::Pod::try_from(pod).unwrap();
            pod.deleting = deleting;
            view.lock().pods.insert(uid.to_owned(), pod);
        };
        hand_over(&view, "gone", &stop);
        known("ending", true);
        hand_over(&view, "ending", &stop);
        assert!(!stop.is_cancelled());
        known("next", false);
        hand_over(&view, "next", &stop);
        assert!(stop.is_cancelled());
    }
}
