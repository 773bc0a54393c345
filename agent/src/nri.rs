//! The agent as a plugin of the container runtime (NRI): it hears of a sandbox before anyone else, and refuses
//! containers of pods whose interfaces are not up.
//!
//! The runtime waits for every answer under one lock for the whole node. So a sandbox is only announced: it is attached
//! while the kubelet gets its first container ready. That one waits for the rest, if there is a rest. Nothing here waits
//! for the API server or for another pod, the only wait is bounded by [`Patience`], and pods that want no network share
//! no lock with others.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_crds::names;
use fairlead_nri::{Container, EventMask, Identity, Plugin, PodSandbox, Stop};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::bring;
use crate::reconcile::Agent;
use crate::sandbox::Sandbox;
use crate::sandbox::announce::{Announcement, Announcer};

mod patience;
mod waits;

pub use patience::Patience;
pub use waits::{Waited, Waits};

/// Before plugins of others: what they add to a container may need its interfaces. Before a guard, too, which does not
/// wait.
const INDEX: u8 = 5;
/// First and longest pause between two attempts to connect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long a look at a marker may take. The runtime lets a container through if its plugin needs 2 s.
const LOOK: Duration = Duration::from_secs(1);
/// Why a container is refused while its pod is being attached. The kubelet tries a pod whose error has the first four of
/// these words again after one to one and a half seconds, and others after ten to fifteen (`completeWork` of its pod
/// workers, `NetworkNotReadyErrorMsg`).
const SOON: &str = "network is not ready yet, attaching it takes longer than the runtime can wait";

/// Connects to the runtime's socket for plugins, now and whenever it is there again, until cancelled.
///
/// # Errors
/// If no thread can be made.
pub fn spawn(
    agent: Arc<Agent>,
    socket: PathBuf,
    announcer: Announcer,
    tasks: &TaskTracker,
    cancel: CancellationToken,
) -> std::io::Result<()> {
    let stop = Stop::default();
    let plugin = Arc::new(AgentPlugin { agent, announcer, patience: Mutex::default() });
    let stopped = stop.clone();
    thread::Builder::new().name("nri".into()).spawn(move || keep_connected(&plugin, &socket, &stopped))?;
    tasks.spawn(async move {
        cancel.cancelled().await;
        stop.stop();
    });
    Ok(())
}

fn keep_connected(plugin: &Arc<AgentPlugin>, socket: &Path, stop: &Stop) {
    let identity = Identity { name: names::AGENT_PLUGIN.to_owned(), index: INDEX };
    let served: Arc<dyn Plugin> = Arc::clone(plugin) as Arc<dyn Plugin>;
    let (mut pause, mut told) = (BACK_OFF.0, false);
    while !stop.is_stopped() {
        let begun = Instant::now();
        let ended = fairlead_nri::connect(socket)
            .and_then(|connection| fairlead_nri::serve(connection, &identity, &served, stop));
        let was_connected = plugin.agent.waits.disconnected();
        match ended {
            _ if stop.is_stopped() => return,
            Ok(()) => warn!("the container runtime closed the connection to its plugin"),
            Err(error) if was_connected => warn!(%error, "lost the container runtime as its plugin"),
            Err(error) if !std::mem::replace(&mut told, true) => {
                info!(%error, socket = %socket.display(), "not a plugin of the container runtime yet");
            }
            Err(error) => debug!(%error, "still not a plugin of the container runtime"),
        }
        if was_connected || begun.elapsed() > BACK_OFF.1 {
            (pause, told) = (BACK_OFF.0, false);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(BACK_OFF.1);
    }
}

struct AgentPlugin {
    agent: Arc<Agent>,
    announcer: Announcer,
    patience: Mutex<Patience>,
}

impl Plugin for AgentPlugin {
    fn configure(&self, runtime: &str, version: &str) -> EventMask {
        info!(runtime, version, "connected as a plugin of the container runtime");
        self.agent.waits.connected();
        EventMask::RUN_POD_SANDBOX
            | EventMask::STOP_POD_SANDBOX
            | EventMask::REMOVE_POD_SANDBOX
            | EventMask::CREATE_CONTAINER
    }

    /// What there is, is known from the list of sandboxes; it is made anew, because nothing was heard until now.
    fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        debug!(pods = pods.len(), containers = containers.len(), "what the runtime has");
        self.announcer.announce(Announcement::Look);
    }

    fn run_pod_sandbox(&self, pod: &PodSandbox) -> Result<(), String> {
        let Some(path) = pod.network_namespace.clone().filter(|_| concerns_us(pod)) else {
            return Ok(());
        };
        if is_held(pod) {
            self.agent.waits.begin(&pod.id);
        }
        self.announcer.announce(Announcement::Made { sandbox: sandbox(pod), path, at: Instant::now() });
        // Never refused: the sandbox is fine, its containers have to wait.
        Ok(())
    }

    fn create_container(&self, pod: &PodSandbox, container: &Container) -> Result<(), String> {
        let Some(path) = pod.network_namespace.clone().filter(|_| is_held(pod)) else {
            return Ok(());
        };
        let (attached, soon) = match self.wait(pod) {
            Waited::Ready => (true, false),
            Waited::Over => (self.look(path, pod.uid.clone())?, false),
            // A look takes time, too, and the runtime has none left.
            Waited::InVain => (false, true),
        };
        if attached {
            return Ok(());
        }
        let why = if soon { SOON.to_owned() } else { self.agent.why_it_waits(&pod.uid) };
        info!(pod = %format_args!("{}/{}", pod.namespace, pod.name), container = %container.name, why, "container refused");
        Err(format!("fairlead: the pod's networks are not attached: {why}"))
    }

    fn stop_pod_sandbox(&self, pod: &PodSandbox) {
        if concerns_us(pod) {
            self.announcer.announce(Announcement::Ending(pod.id.clone()));
        }
    }

    fn remove_pod_sandbox(&self, pod: &PodSandbox) {
        if concerns_us(pod) {
            self.agent.waits.forget(&pod.id);
            self.announcer.announce(Announcement::Ending(pod.id.clone()));
        }
    }
}

impl AgentPlugin {
    /// Until the pod is attached, or cannot be for now; never longer than patience allows, and once for each sandbox.
    fn wait(&self, pod: &PodSandbox) -> Waited {
        let patience = || self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let granted = if self.agent.lease.is_fresh() { patience().grant(begun) } else { Duration::ZERO };
        let ended = self.agent.waits.wait(&pod.id, granted);
        self.agent.metrics.runtime_waited(begun.elapsed());
        if ended == Waited::InVain {
            patience().spend(Instant::now(), begun.elapsed());
        }
        ended
    }

    /// Whether the ready marker is in the namespace, on a thread of its own: the kernel may take its time.
    fn look(&self, path: PathBuf, uid: String) -> Result<bool, String> {
        let (told, answer) = mpsc::sync_channel(1);
        let net = Arc::clone(&self.agent.net);
        let looking = thread::Builder::new().name("nri-look".into()).spawn(move || {
            // Nobody listens any more when it took too long.
            told.send(bring::look(net.as_ref(), &path, &uid).map(|(_, _, marked)| marked)).ok();
        });
        let failed = |why: String| format!("fairlead: cannot look at the pod's network: {why}");
        looking.map_err(|error| failed(error.to_string()))?;
        match answer.recv_timeout(LOOK) {
            Ok(marked) => marked.map_err(|error| failed(error.to_string())),
            Err(_) => Err(failed("the kernel does not answer".to_owned())),
        }
    }
}

/// Whether the pod waits for us or asks for something. A pod that is asked into a network later is seen by other means.
fn concerns_us(pod: &PodSandbox) -> bool {
    let ours = [names::HOLD_ANNOTATION, names::NETWORKS_ANNOTATION, names::SELECTED_ANNOTATION];
    ours.iter().any(|name| pod.annotations.contains_key(*name))
}

fn is_held(pod: &PodSandbox) -> bool {
    pod.annotations.get(names::HOLD_ANNOTATION).is_some_and(|hold| hold == names::HOLD_NRI)
}

fn sandbox(pod: &PodSandbox) -> Sandbox {
    Sandbox {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        id: pod.id.clone(),
        attempt: 0,
        ready: true,
        created_at: jiff::Timestamp::now().as_nanosecond().try_into().unwrap_or(i64::MAX),
        runtime_handler: pod.runtime_handler.clone(),
    }
}
