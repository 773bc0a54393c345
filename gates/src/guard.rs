//! The guard: a plugin of the container runtime (NRI) that refuses every container of a pod held by the runtime
//! until the marker on `lo` of the pod's network namespace says that its networks are attached.
//!
//! It reads the marker and nothing else: no API server, no agent, no state. That is why it can outlive the agent.
//! It runs beside the agent, and where it is installed in the runtime's plugin folder the runtime starts it itself.
//! It must not use an async runtime.
//!
//! It has the last word about a container, after all plugins agreed (`ValidateContainerAdjustment`): where the guard
//! answers too late or is just gone, the runtime refuses the container there, whereas in `CreateContainer` it
//! would go on as if the guard had agreed (containerd/nri#316). Runtimes before that call only have `CreateContainer`.

pub mod args;
mod folder;
mod look;
mod plugin;
mod report;
mod rule;

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fairlead_crds::names;
use fairlead_nri::{Identity, Plugin, Stop};

use self::{args::Command, plugin::Guard, report::Reporter};
pub use self::{look::Looks, rule::Held};
use crate::stop::Stop as Signals;

/// Index of a guard that connects to the runtime's socket. One that the runtime starts has that of its file's name.
const INDEX: u8 = 90;
/// Pauses between two tries to connect, doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long the first container after the guard waits for it to be connected.
const CONNECTED: Duration = Duration::from_secs(5);
/// How soon a pause ends when the guard is told to stop.
const TICK: Duration = Duration::from_millis(50);

/// Carries out a command; lines for people go to standard error.
pub fn run(command: &Command) -> ExitCode {
    let done = match command {
        Command::Serve { socket, report } => serve(socket, report.as_deref()),
        Command::Started => started(),
        Command::Wait { report } => {
            wait_for_connection(report);
            Ok(())
        }
        Command::Install { folder } => folder::install(folder).map(|what| say(&what)),
        Command::Uninstall { folder } => folder::remove(folder).map(|what| say(&what)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

/// Serves until it is told to stop, over as many connections as it takes.
fn serve(socket: &Path, report: Option<&Path>) -> Result<(), String> {
    let stop = stop_on_signal()?;
    let guard = Arc::new(Guard::new(Reporter::open(report)?));
    let plugin: Arc<dyn Plugin> = guard.clone();
    let identity = Identity { name: names::GUARD_PLUGIN.to_owned(), index: INDEX };
    let (mut pause, mut told) = (PAUSES.0, String::new());
    while !stop.is_stopped() {
        let served = fairlead_nri::connect(socket)
            .and_then(|connection| fairlead_nri::serve(connection, &identity, &plugin, &stop));
        if guard.disconnected() {
            (pause, told) = (PAUSES.0, String::new());
        }
        let why =
            served.map_or_else(|error| sentence(&error), |()| "the runtime closed the connection".into());
        // The same again and again where the runtime has no NRI.
        if told != why && !stop.is_stopped() {
            say(&format!("not connected: {why}; trying again"));
            told = why;
        }
        wait(pause, &stop);
        pause = (2 * pause).min(PAUSES.1);
    }
    say("stopped");
    Ok(())
}

/// Returns when the guard that reports there is connected, or after a while, since a runtime may have no NRI.
fn wait_for_connection(path: &Path) {
    let end = Instant::now() + CONNECTED;
    while Instant::now() < end && !report::read(path).is_some_and(|report| report.connected) {
        thread::sleep(TICK);
    }
}

/// Serves on the connection that the runtime gave when it started this program; ends with it.
fn started() -> Result<(), String> {
    let stop = stop_on_signal()?;
    let plugin: Arc<dyn Plugin> = Arc::new(Guard::new(Reporter::open(None)?));
    let (connection, identity) = fairlead_nri::inherited().map_err(|error| sentence(&error))?;
    fairlead_nri::serve(connection, &identity, &plugin, &stop).map_err(|error| sentence(&error))
}

/// SIGTERM and SIGINT end what is served.
fn stop_on_signal() -> Result<Stop, String> {
    // Before any other thread is made, which inherits that they are blocked.
    let signals = Signals::install();
    let stop = Stop::default();
    let stopped = stop.clone();
    let waits = move || {
        signals.wait();
        stopped.stop();
    };
    let thread = thread::Builder::new().name("signals".into()).spawn(waits);
    thread.map(|_| stop).map_err(|error| format!("cannot start a thread: {error}"))
}

fn wait(pause: Duration, stop: &Stop) {
    let end = Instant::now() + pause;
    while Instant::now() < end && !stop.is_stopped() {
        thread::sleep(TICK);
    }
}

/// An error with its causes.
fn sentence(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn say(line: &str) {
    eprintln!("{line}");
}
