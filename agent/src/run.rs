//! Wiring: what is started, in which order, and how it ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::admin::{self, Tell};
use crate::args::Args;
use crate::clock::Clock;
use crate::handover::Turn;
use crate::hold::HoldWatch;
use crate::net::kernel::{Config, Kernel};
use crate::net::netns;
use crate::reconcile::{Agent, Edges};
use crate::sandbox::cri::{self, Runtime};
use crate::sandbox::watch::Timing;
use crate::work::Work;
use crate::{api, handover, host_events, net, nri, sandbox, startup, telemetry};

/// Where runtimes bind the network namespaces of pods.
const NAMESPACES: &str = "/run/netns";
/// How long what is under way may take to end.
const GRACE: Duration = Duration::from_secs(5);
/// How long the last request may take.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs the agent until it is told to stop.
///
/// # Errors
/// One sentence that names what is missing or what failed.
pub async fn run(args: Args) -> Result<()> {
    telemetry::start(&args.log, args.log_json)?;
    info!(version = fairlead_crds::VERSION, node = %args.node_name, "agent starts");
    let (cancel, mut signals) = (CancellationToken::new(), JoinSet::new());
    stop_on_signal(&mut signals, cancel.clone())?;
    let missing = net::selftest::run(&args.sysctl_root, Path::new(NAMESPACES));
    if !missing.is_empty() {
        bail!("{}", missing.join("; "));
    }
    // Everything that can be checked beside an agent at work, before that one is asked to hand over.
    let runtime = Runtime::new(&args.cri_socket, cri::DEADLINE)?;
    startup::check_runtime(&runtime, &cancel).await?;
    let client = api::client().await?;
    // One that stands by has done so, and must not end because the API server is away for a moment.
    if !args.stand_by {
        startup::check_kubernetes(&client).await?;
    }
    let Some(turn) = handover::only_agent(&client, &args, &cancel).await? else {
        info!("agent stopped before its turn");
        return Ok(());
    };
    work(&args, turn, runtime, client, &cancel).await?;
    if cancel.is_cancelled() { Ok(()) } else { Err(handover::stand_by()) }
}

/// Works until told to stop, or until another agent of the node takes over.
async fn work(
    args: &Args,
    turn: Turn,
    runtime: Runtime,
    client: Client,
    cancel: &CancellationToken,
) -> Result<()> {
    let (over, tasks) = (cancel.child_token(), TaskTracker::new());
    let outcome = start(args, turn, runtime, client, &over, &tasks).await;
    if let Err(error) = &outcome {
        warn!(%error, "agent ends");
        over.cancel();
    }
    tasks.close();
    if outcome.is_ok() {
        over.cancelled().await;
    }
    let done = tokio::time::timeout(GRACE, tasks.wait()).await.is_ok();
    match &outcome {
        Ok(agent) if done => stop_in_order(agent).await,
        Err(_) if done => {}
        _ => warn!("some work did not end in time; the next agent takes it up"),
    }
    info!("agent stopped");
    outcome.map(drop)
}

/// Lets the next agent know that nothing of this one is under way, if that is so.
async fn stop_in_order(agent: &Agent) {
    if agent.has_unanswered_writes() {
        return;
    }
    let closed = tokio::time::timeout(GOODBYE, agent.lease.close()).await;
    if !matches!(closed, Ok(Ok(()))) {
        info!("the API server does not hear that the agent stops; the next agent takes over its records");
    }
}

fn stop_on_signal(signals: &mut JoinSet<()>, cancel: CancellationToken) -> Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    signals.spawn(async move {
        tokio::select! {
            _ = term.recv() => cancel.cancel(),
            _ = int.recv() => cancel.cancel(),
        }
    });
    Ok(())
}

async fn start(
    args: &Args,
    turn: Turn,
    runtime: Runtime,
    client: Client,
    cancel: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<Arc<Agent>> {
    let kernel = Arc::new(Kernel::new(Config {
        node: args.node_name.clone(),
        devices: args.devices.clone(),
        sysctl_root: args.sysctl_root.clone(),
        ..Config::default()
    })?);

    let (armed, wants) = watch::channel(false);
    let (announcer, heard) = sandbox::announce::channel();
    let (subscription, watching) =
        sandbox::watch::watch(runtime.clone(), wants, heard, Timing::default(), cancel.clone());
    tasks.spawn(watching);

    let mut agent = Agent::new(Edges {
        client: client.clone(),
        node: args.node_name.clone(),
        agent_uid: args.agent_uid.clone(),
        net: kernel.clone(),
        runtime: Arc::new(runtime),
        sandboxes: subscription.snapshots(),
        armed,
        boot_id: netns::boot_id().context("cannot read the boot id")?,
        clock: Clock::system(),
    });
    agent.slow.clone_from(&args.test_slow_attach);
    let agent = Arc::new(agent);
    let ready = Arc::new(Status::new(&agent, &args.agent_uid, turn, Arc::clone(&kernel)));
    let serving = admin::serve(args.listen, ready.clone(), cancel.clone());
    let listen = args.listen;
    tasks.spawn(async move {
        if let Err(error) = serving.await {
            warn!(%listen, %error, "cannot serve metrics and probes");
        }
    });
    let work = Work {
        agent: Arc::clone(&agent),
        client,
        node: args.node_name.clone(),
        sandboxes: subscription,
        hold: HoldWatch::new(&args.guard_report),
        parallel: args.parallel.into(),
    };
    work.learn(tasks, cancel).await?;
    ready.rebuilt.store(true, std::sync::atomic::Ordering::Release);
    // Not before: until then no pod could be attached while the runtime waits.
    nri::spawn(Arc::clone(&agent), args.nri_socket.clone(), announcer, tasks, cancel.clone())
        .context("cannot start the thread of the runtime's plugin")?;
    follow_links(Arc::clone(&agent), &kernel, tasks, cancel)?;
    work.spawn(tasks, cancel);
    Ok(agent)
}

/// Looks at what changes on the node's links.
fn follow_links(
    agent: Arc<Agent>,
    kernel: &Kernel,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) -> Result<()> {
    let (events, received) = mpsc::channel(1024);
    let monitor = kernel.monitor()?;
    let stop = cancel.clone();
    tasks.spawn(async move {
        if let Err(error) = monitor.run(events, stop).await {
            warn!(%error, "links of the node are not watched any more; they are looked at every minute");
        }
    });
    tasks.spawn(host_events::run(agent, received));
    Ok(())
}

/// What the admin server tells of the agent.
struct Status {
    agent: Arc<Agent>,
    uid: String,
    turn: Turn,
    kernel: Arc<Kernel>,
    registry: Registry,
    rebuilt: std::sync::atomic::AtomicBool,
}

impl Status {
    fn new(agent: &Arc<Agent>, uid: &str, turn: Turn, kernel: Arc<Kernel>) -> Self {
        let mut registry = Registry::default();
        agent.metrics.register(&mut registry);
        Self { agent: Arc::clone(agent), uid: uid.to_owned(), turn, kernel, registry, rebuilt: false.into() }
    }
}

impl Tell for Status {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn started(&self) -> Result<(), String> {
        self.turn.started(self.ready())
    }

    fn metrics(&self) -> String {
        let counts = self.kernel.counters();
        self.agent.metrics.netlink(counts.observe, counts.change + counts.sysctl);
        self.agent.metrics.lease(self.agent.lease.is_fresh());
        let mut text = String::new();
        // Writing to a String cannot fail.
        prometheus_client::encoding::text::encode(&mut text, &self.registry).ok();
        text
    }

    fn ready(&self) -> Result<(), String> {
        if !self.rebuilt.load(std::sync::atomic::Ordering::Acquire) {
            return Err("the agent still reads what there is".to_owned());
        }
        if !self.agent.lease.is_fresh() {
            return Err("the agent's Lease is not fresh: the API server does not answer".to_owned());
        }
        if !self.agent.sandboxes.borrow().trusted() {
            return Err("the container runtime does not answer".to_owned());
        }
        Ok(())
    }
}
