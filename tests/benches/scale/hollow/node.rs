//! A node without a kubelet: a whole agent with a kernel and a runtime in memory, and sandboxes that come and go as told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fairlead_agent::clock::Clock;
use fairlead_agent::hold::HoldWatch;
use fairlead_agent::net::fake::Fake;
use fairlead_agent::reconcile::{Agent, Edges};
use fairlead_agent::sandbox::memory::Paths;
use fairlead_agent::sandbox::watch::Subscription;
use fairlead_agent::sandbox::{Sandbox, Sandboxes};
use fairlead_agent::status;
use fairlead_agent::work::Work;
use k8s_openapi::api::core::v1 as core;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::meter::Meter;
use crate::place::Place;

/// Pods worked on side by side, as the agent's flag has it by default.
const PARALLEL: usize = 16;
/// Between two lists of the runtime while the agent waits for a sandbox, as the agent makes them.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Between a question of the agent and the list that answers it.
const LIST_SOON: Duration = Duration::from_millis(20);

/// A node.
pub struct Hollow {
    /// Its name.
    pub name: String,
    agent: Arc<Agent>,
    kernel: Arc<Fake>,
    paths: Arc<Paths>,
    snapshots: watch::Sender<Arc<Sandboxes>>,
    boxes: Mutex<BTreeMap<String, Boxed>>,
}

/// A pod's sandbox.
struct Boxed {
    sandbox: Sandbox,
    path: PathBuf,
    made: Instant,
    attached: bool,
}

impl Hollow {
    /// Starts the agent of a node and waits until it is at work.
    pub async fn start(
        place: &Place,
        node: core::Node,
        meter: &Meter,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
    ) -> Result<Arc<Self>> {
        let name = node.metadata.name.context("a Node has a name")?;
        let client = place.agent(&name, meter)?;
        let (kernel, paths) = (Arc::new(Fake::new(&[])), Arc::new(Paths::default()));
        let empty = Arc::new(Sandboxes::complete_at(Vec::new(), Instant::now()));
        let (snapshots, sandboxes) = watch::channel(empty);
        let (armed, wanted) = watch::channel(false);
        let agent = Arc::new(Agent::new(Edges {
            client: client.clone(),
            node: name.clone(),
            agent_uid: format!("agent-{name}"),
            net: Arc::clone(&kernel) as Arc<_>,
            runtime: Arc::clone(&paths) as Arc<_>,
            sandboxes: sandboxes.clone(),
            armed,
            boot_id: "scale".to_owned(),
            clock: Clock::system(),
        }));
        let work = Work {
            agent: Arc::clone(&agent),
            client,
            node: name.clone(),
            sandboxes: Subscription::new(sandboxes),
            hold: HoldWatch::new(&PathBuf::from("/nonexistent")),
            parallel: PARALLEL,
        };
        work.learn(tasks, cancel).await.with_context(|| format!("starting {name}"))?;
        work.spawn(tasks, cancel);
        let hollow = Arc::new(Self { name, agent, kernel, paths, snapshots, boxes: Mutex::default() });
        tasks.spawn(cancel.clone().run_until_cancelled_owned(Arc::clone(&hollow).list(wanted)));
        Ok(hollow)
    }

    /// The runtime is listed while the agent waits for a sandbox to come or to end.
    async fn list(self: Arc<Self>, mut wanted: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                changed = wanted.changed() => match changed {
                    Ok(()) => tokio::time::sleep(LIST_SOON).await,
                    Err(_) => return,
                },
                () = tokio::time::sleep(LIST_EVERY) => {}
            }
            if *wanted.borrow_and_update() {
                self.publish(&self.boxes());
            }
        }
    }

    /// A pod that was bound to this node gets its sandbox.
    pub fn start_sandbox(&self, pod: &core::Pod) -> Result<()> {
        let uid = pod.metadata.uid.clone().context("a pod has a UID")?;
        let path = PathBuf::from(format!("/run/netns/{uid}"));
        self.kernel.add_namespace(&path);
        self.paths.insert(&uid, path.clone());
        let sandbox = Sandbox {
            id: uid.clone(),
            uid: uid.clone(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            attempt: 0,
            ready: true,
            created_at: 0,
            runtime_handler: String::new(),
        };
        let mut boxes = self.boxes();
        boxes.insert(uid, Boxed { sandbox, path, made: Instant::now(), attached: false });
        self.publish(&boxes);
        Ok(())
    }

    /// The pod's sandbox is stopped and removed.
    pub fn end_sandbox(&self, uid: &str) {
        let mut boxes = self.boxes();
        if let Some(gone) = boxes.remove(uid) {
            self.kernel.remove_namespace(&gone.path);
            self.paths.remove(uid);
        }
        self.publish(&boxes);
    }

    /// How long pods took that were attached since the last call, in milliseconds.
    pub fn newly_attached(&self) -> Vec<f64> {
        let mut boxes = self.boxes();
        let waiting = boxes.iter_mut().filter(|(_, boxed)| !boxed.attached);
        let view = self.agent.view.lock();
        let is_attached =
            |uid: &str| view.records.get(uid).is_some_and(|record| status::is_ready(&record.status, uid));
        let done = waiting.filter(|(uid, _)| is_attached(uid)).map(|(_, boxed)| {
            boxed.attached = true;
            boxed.made.elapsed().as_secs_f64() * 1000.0
        });
        done.collect()
    }

    /// What the first pod that is not attached waits for.
    pub fn why_not(&self) -> Option<String> {
        let all = self.boxes();
        let (uid, boxed) = all.iter().find(|(_, boxed)| !boxed.attached)?;
        let view = self.agent.view.lock();
        let record = view.records.get(uid).map(|record| &record.status.conditions);
        Some(format!("{} on {}: {record:?}", boxed.sandbox.name, self.name))
    }

    /// UIDs and names of the pods that have sandboxes.
    pub fn pods(&self) -> Vec<(String, String)> {
        self.boxes().iter().map(|(uid, boxed)| (uid.clone(), boxed.sandbox.name.clone())).collect()
    }

    /// How many pods hold addresses.
    pub fn records(&self) -> usize {
        self.agent.view.lock().records.len()
    }

    fn publish(&self, boxes: &BTreeMap<String, Boxed>) {
        let all = boxes.values().map(|boxed| boxed.sandbox.clone()).collect();
        self.snapshots.send_replace(Arc::new(Sandboxes::complete_at(all, Instant::now())));
    }

    fn boxes(&self) -> MutexGuard<'_, BTreeMap<String, Boxed>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
