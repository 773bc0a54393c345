//! Wiring: who runs when, and how everything ends.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use super::api::{Caller, Leadership, config};
use super::events::Events;
use super::http::{self, Health};
use super::leader::Elector;
use super::lost_nodes::LostNodes;
use super::networks::Networks;
use super::nodes::{Flags, Nodes};
use super::pods::Pods;
use super::reserved::Reserved;
use super::unheld::Evictions;
use super::uninstall::Uninstall;
use super::view::View;
use super::{Args, probe};

/// Changes that come within this time are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Longest rest between a look and the next one that a change asks for.
const REST_LATEST: Duration = Duration::from_secs(2);
/// A look without any change, in case something was missed.
const IDLE: Duration = Duration::from_secs(30);

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// If the API server's address, the listening address or a signal handler cannot be had.
pub async fn run(args: Args) -> anyhow::Result<()> {
    log(&args)?;
    info!(version = fairlead_crds::VERSION, identity = args.identity, "starting");
    let config = config().await.context("find the API server")?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("listen on {}", args.listen))?;
    let health = Arc::new(Health::default());
    let token = CancellationToken::new();
    let caller = Caller {
        client: Client::try_from(config.clone()).context("make a client")?,
        metrics: Arc::clone(&health.metrics),
        leadership: Arc::new(Leadership::default()),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(http::serve(listener, Arc::clone(&health), token.clone()));
    tasks.spawn(prove(config, Arc::clone(&health), token.clone()));
    let elector = Elector::new(caller.clone(), args.identity.clone());
    let lead_token = token.clone();
    tasks
        .spawn(async move { elector.run(lead_token, |term| lead(caller.clone(), args.clone(), term)).await });
    wait_for_signal(&token).await?;
    while let Some(ended) = tasks.join_next().await {
        ended.context("a task failed")?;
    }
    info!("stopped");
    Ok(())
}

fn log(args: &Args) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&args.log).context("read the log filter")?;
    let ansi = std::io::stderr().is_terminal();
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    let set = if args.log_json { builder.json().try_init() } else { builder.try_init() };
    set.map_err(|error| anyhow::anyhow!("start logging: {error}"))
}

async fn prove(config: kube::Config, health: Arc<Health>, token: CancellationToken) {
    if token.run_until_cancelled(probe::until_active(&config)).await.is_some() {
        health.ready.store(true, Ordering::Relaxed);
    }
}

async fn wait_for_signal(token: &CancellationToken) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    info!("stopping");
    token.cancel();
    Ok(())
}

/// One term of leadership: watches and drivers until the token ends, or one of them does.
async fn lead(caller: Caller, args: Args, token: CancellationToken) {
    let mut tasks = JoinSet::new();
    let view = View::start(&caller.client, &mut tasks, &token);
    let events = Events::new(caller.clone(), args.identity.clone());
    tasks.spawn(drive(Networks::new(caller.clone(), events.clone()), Arc::clone(&view), token.clone()));
    let flags = Flags {
        prefix: args.taint_prefix.clone(),
        startup: args.startup_taint,
        startup_key: args.startup_taint_key.clone(),
    };
    tasks.spawn(drive(Nodes::new(caller.clone(), flags.clone()), Arc::clone(&view), token.clone()));
    tasks.spawn(drive(Pods::new(caller.clone(), events), Arc::clone(&view), token.clone()));
    tasks.spawn(drive(Evictions::new(caller.clone()), Arc::clone(&view), token.clone()));
    tasks.spawn(drive(Reserved::new(caller.clone()), Arc::clone(&view), token.clone()));
    tasks.spawn(drive(LostNodes::new(caller.clone(), args.lost_after), Arc::clone(&view), token.clone()));
    tasks.spawn(drive(Uninstall::new(caller, flags.startup_key), view, token.clone()));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            warn!(%error, "a task of the leader failed; the term ends");
        }
        token.cancel();
    }
}

/// Something that looks at the whole view and brings a part of the cluster in line with it.
pub(super) trait Driver: Send {
    /// One look. Returns when to look again even if nothing changes.
    fn look(&mut self, view: &View) -> impl Future<Output = Option<Duration>> + Send;
}

async fn drive(mut driver: impl Driver, view: Arc<View>, token: CancellationToken) {
    let mut bell = view.bell.listen();
    let work = async {
        loop {
            bell.mark_unchanged();
            let began = Instant::now();
            let again = if view.is_ready() { driver.look(&view).await } else { None };
            let rest = rest(began.elapsed());
            tokio::select! {
                _ = bell.changed() => sleep(rest).await,
                () = sleep(again.unwrap_or(IDLE)) => {}
            }
        }
    };
    token.run_until_cancelled(work).await;
}

/// How long to rest after a look before a change leads to the next one. In a large cluster a look takes longer than a
/// change: most of the time stays for others. One that took long because the API server did not answer says nothing of
/// the kind, so people do not wait longer for what they changed.
fn rest(took: Duration) -> Duration {
    (took * 2).clamp(DEBOUNCE, REST_LATEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_look_delays_the_next_one_but_not_for_long() {
        assert_eq!(rest(Duration::ZERO), DEBOUNCE);
        assert_eq!(rest(Duration::from_millis(400)), Duration::from_millis(800));
        assert_eq!(rest(Duration::from_secs(15)), REST_LATEST, "an API server that did not answer");
    }
}
