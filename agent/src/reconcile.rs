//! The loop of one pod: look, decide, do, say. Keyed by UID, ordered within a pod, side by side across pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairlead_crds::{Reason, names};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span, warn};

use crate::api::LATE;
use crate::args::SlowAttach;
use crate::blocks::Blocks;
use crate::bridges::Bridges;
use crate::clock::Clock;
use crate::events::Events;
use crate::lease::Lease;
use crate::metrics::Metrics;
use crate::model::{Pod, PodKey, Record};
use crate::net::{Net, NetError};
use crate::nri::Waits;
use crate::plan::HostLink;
use crate::queue::{Next, Queue};
use crate::record::Records;
use crate::repair::Budget;
use crate::reserved::Reserved;
use crate::sandbox::watch::Change;
use crate::sandbox::{Namespaces, Sandboxes};
use crate::view::View;

mod adopt;
mod announce;
mod attach;
mod edges;
mod probe;
mod release;
mod say;
mod stray;
mod unheld;
mod waiting;
mod write;

pub use edges::Edges;
pub use waiting::{Awaited, Waiting};

/// Everything a pod's loop needs.
pub struct Agent {
    /// What is known.
    pub view: Arc<View>,
    /// What is to be looked at.
    pub queue: Queue,
    /// The kernel.
    pub net: Arc<dyn Net>,
    /// The container runtime.
    pub runtime: Arc<dyn Namespaces>,
    /// Its sandboxes.
    pub sandboxes: watch::Receiver<Arc<Sandboxes>>,
    /// Whether someone waits for a sandbox to come or to end.
    pub armed: watch::Sender<bool>,
    /// `PodNetwork`s.
    pub records: Records,
    /// `IPBlock`s.
    pub blocks: Arc<Blocks>,
    /// Reserved addresses.
    pub reserved: Reserved,
    /// Bridges of the node.
    pub bridges: Arc<Bridges>,
    /// Whether we may act.
    pub lease: Arc<Lease>,
    /// What people read in `kubectl describe`.
    pub events: Events,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What time it is.
    pub clock: Clock,
    /// Boot id of the kernel.
    pub boot_id: String,
    /// Notified when what the node can promise may have changed.
    pub changed: Arc<tokio::sync::Notify>,
    /// Notified when Networks, or links of the node they need, may have changed.
    pub networks_changed: Arc<tokio::sync::Notify>,
    /// Host links that were found without a record at start, by pod UID.
    pub orphans: Mutex<BTreeMap<String, Vec<HostLink>>>,
    /// Pods by the names of their host links.
    pub links: Mutex<HashMap<String, String>>,
    /// Pods by what this loop remembers of them.
    pub memory: Mutex<HashMap<String, Memory>>,
    /// Pods that wait for a sandbox to come or to end.
    pub waiting: Mutex<Waiting>,
    /// Sandboxes whose first container has to wait, or not any more.
    pub waits: Arc<Waits>,
    /// Which pods a test wants attached late.
    pub slow: Option<SlowAttach>,
}

/// What the loop remembers of a pod between two rounds; nothing of it has to survive a restart.
#[derive(Debug, Default)]
pub struct Memory {
    /// When the pod was first found gone.
    pub gone_since: Option<Instant>,
    /// When the pod's sandbox was first missed.
    pub missing_since: Option<Instant>,
    /// The sandbox that was seen first without its interfaces, and when.
    pub seen: Option<(String, Instant)>,
    /// The reason that an event was published for.
    pub told: Option<String>,
    /// Repairs of late.
    pub repairs: Budget,
    /// Whether someone else has the pod's addresses.
    pub probes: probe::Probes,
    /// A record was to be written then, and no answer said whether it was.
    pub unrecorded: Option<(PodKey, Instant)>,
}

impl Memory {
    /// Notes that a sandbox is there, seen at that moment; when it was first seen.
    fn see(&mut self, sandbox: &str, now: Instant) -> Instant {
        self.missing_since = None;
        match &self.seen {
            Some((id, at)) if id == sandbox => *at,
            _ => self.seen.insert((sandbox.to_owned(), now)).1,
        }
    }
}

/// How often a pod is looked at without a reason.
const RESYNC: Duration = Duration::from_secs(60);

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    #[error(transparent)]
    Api(#[from] crate::api::ApiError),
    #[error(transparent)]
    Record(#[from] crate::record::RecordError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Cri(#[from] crate::sandbox::cri::CriError),
    #[error("the agent stops")]
    Stopped,
}

impl Agent {
    /// One round for one pod.
    pub async fn reconcile(self: Arc<Self>, uid: String) -> Next {
        let (pod, record, uninstalling) = {
            let view = self.view.lock();
            (view.pods.get(&uid).cloned(), view.records.get(&uid).cloned(), view.uninstalling)
        };
        let name = pod
            .as_ref()
            .map(|pod| &pod.key)
            .or(record.as_ref().map(|record| &record.key))
            .map(ToString::to_string);
        let span = info_span!("pod", pod = name.unwrap_or_default(), uid = %uid);
        async move {
            let round = if uninstalling {
                self.let_go(record).await
            } else {
                Box::pin(self.round(&uid, pod, record)).await
            };
            self.metrics.round(round.is_ok());
            round.unwrap_or_else(|error| {
                warn!(%error, "will be tried again");
                Next::Retry
            })
        }
        .instrument(span)
        .await
    }

    async fn round(&self, uid: &str, pod: Option<Pod>, record: Option<Record>) -> Result<Next, RoundError> {
        match (pod, record) {
            (Some(pod), record) if !pod.is_over() => self.hold(pod, record).await,
            (_, Some(record)) => self.release(&record).await,
            (pod, None) => self.forget(uid, pod.is_none()).await,
        }
    }

    /// A pod that lives: brings its interfaces to what it asks for, and says how far it is.
    async fn hold(&self, pod: Pod, record: Option<Record>) -> Result<Next, RoundError> {
        self.remember(&pod.key.uid, |memory| memory.gone_since = None);
        if pod.host_network {
            return Ok(self.reject_host_network(&pod).await);
        }
        let unconcerned = record.is_none() && (!pod.concerns_us() || pod.deleting);
        if unconcerned && !self.has_orphans(&pod.key.uid) {
            return Ok(Next::Idle);
        }
        if !self.lease.is_fresh() {
            debug!("the agent's Lease is not fresh");
            return Ok(Next::After(Duration::from_secs(1)));
        }
        let sandbox = self.sandboxes().newest(&pod.key.uid).map(|sandbox| sandbox.id.clone());
        let next = self.attach(pod, record).await;
        if let Some(sandbox) = sandbox {
            self.waits.over(&sandbox);
        }
        next
    }

    async fn reject_host_network(&self, pod: &Pod) -> Next {
        if pod.concerns_us() {
            let message = format!("pod [{}]: will not add interface to host networked pod", pod.key);
            self.tell_once(pod, Reason::InterfaceAddRejected, message).await;
        }
        Next::Idle
    }

    /// fairlead is being uninstalled: the finalizer goes, the kernel is not touched.
    async fn let_go(&self, record: Option<Record>) -> Result<Next, RoundError> {
        if let Some(record) = record {
            self.records.drop_finalizer(&record).await?;
            self.view.lock().records.remove(&record.key.uid);
        }
        Ok(Next::Idle)
    }

    /// A pod without a record: nothing is held, unless an answer was lost or its links were never recorded.
    async fn forget(&self, uid: &str, gone: bool) -> Result<Next, RoundError> {
        if let Some((key, asked)) = self.remember(uid, |memory| memory.unrecorded.clone()) {
            if let Some(record) = self.records.find(&key).await? {
                self.view.lock().records.insert(uid.to_owned(), record);
                self.remember(uid, |memory| memory.unrecorded = None);
                return Ok(Next::After(Duration::ZERO));
            }
            if let Some(left) = LATE.checked_sub(asked.elapsed()).filter(|left| !left.is_zero()) {
                return Ok(Next::After(left));
            }
        }
        if self.has_orphans(uid) {
            return self.release_orphans(uid).await;
        }
        self.view.lock().ipam.give_back_all(uid);
        if gone {
            self.lock_memory().remove(uid);
        }
        self.wait_for_sandbox(uid, None);
        Ok(Next::Idle)
    }

    fn remember<T>(&self, uid: &str, change: impl FnOnce(&mut Memory) -> T) -> T {
        change(self.lock_memory().entry(uid.to_owned()).or_default())
    }

    fn lock_memory(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a pod waits for of its sandbox, if anything; while one does, the runtime is asked more often.
    fn wait_for_sandbox(&self, uid: &str, awaited: Option<Awaited>) {
        let mut waiting = self.lock_waiting();
        if let Some(armed) = waiting.note(uid, awaited) {
            self.armed.send_replace(armed);
        }
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sandboxes(&self) -> Arc<Sandboxes> {
        Arc::clone(&self.sandboxes.borrow())
    }

    /// The pod of a host link.
    pub fn owner_of_link(&self, link: &str) -> Option<String> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).get(link).cloned()
    }

    /// Host links whose records are missing; each pod's are looked at when it comes up.
    pub fn set_orphans(&self, orphans: BTreeMap<String, Vec<HostLink>>) {
        *self.orphans.lock().unwrap_or_else(PoisonError::into_inner) = orphans;
    }

    fn add_orphans(&self, uid: &str, links: Vec<HostLink>) {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), links);
    }

    /// Notes when sandboxes were first seen: for the time it takes to attach, and for the pods in line behind them.
    pub fn saw(&self, change: &Change) {
        let pods: Vec<&String> = {
            let view = self.view.lock();
            change.uids.iter().filter(|uid| view.pods.contains_key(*uid)).collect()
        };
        for (uid, sandbox) in pods.into_iter().filter_map(|uid| Some((uid, change.now.newest(uid)?))) {
            let at = change.now.told_at(&sandbox.id).map_or_else(Instant::now, Instant::from_std);
            let first_seen = self.remember(uid, |memory| memory.see(&sandbox.id, at));
            self.lock_waiting().came(first_seen);
        }
    }

    /// Pods that wait for the end of their sandbox.
    pub fn gone_pods(&self) -> Vec<String> {
        let view = self.view.lock();
        let over = |uid: &&String| view.pods.get(*uid).is_none_or(Pod::is_over);
        view.records.keys().filter(over).cloned().collect()
    }

    fn host_links(record: &Record) -> Vec<String> {
        let attachments = record.spec.attachments.iter();
        attachments
            .map(|attachment| names::host_link(&record.key.uid, attachment.interface.as_str()))
            .collect()
    }

    /// Runs blocking work on the kernel.
    pub(crate) async fn on_kernel<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Net) -> Result<T, NetError> + Send + 'static,
    ) -> Result<T, RoundError> {
        let net = Arc::clone(&self.net);
        match tokio::task::spawn_blocking(move || work(net.as_ref())).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(RoundError::Stopped),
        }
    }
}
