//! The cluster of a bench, from boot to tear-down.

use std::{env, process::ExitCode, thread};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    cluster::{Cluster, Options},
    fairlead::{self, PROFILE_VARIABLE},
    layout::Layout,
    node::Nri,
    progress::Progress,
};

/// Boots a cluster of the tests' with fairlead on it, and ends it whatever comes of `body`, also on Ctrl-C
/// and SIGTERM.
///
/// # Errors
/// Those of booting and of `body`; a diagnosis named after the bench is then among the cluster's logs.
pub async fn on_a_cluster<T>(
    bench: &str,
    nodes: u8,
    nri: Nri,
    body: impl AsyncFnOnce(&Cluster, &Progress) -> Result<T>,
) -> Result<T> {
    let layout = Layout::TESTS.or_from_env()?;
    let progress = Progress::auto();
    let cluster = Cluster::up(&Options { layout, nodes, nri, progress: progress.clone() }).await?;
    let measured = async {
        fairlead::install(&cluster, &progress).await?;
        body(&cluster, &progress).await
    };
    let outcome = tokio::select! {
        outcome = measured => outcome,
        signal = interrupted() => signal.and_then(|name| bail!("ended by {name}")),
    };
    if outcome.is_err() {
        cluster.diagnose(bench).await.ok();
    }
    Cluster::down(layout).await?;
    outcome
}

/// Waits for a signal that asks to end, and gives its name.
async fn interrupted() -> Result<&'static str> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => Ok(pressed.map(|()| "SIGINT")?),
        _ = terminated.recv() => Ok("SIGTERM"),
    }
}

/// The exit code of a bench; an error is shown as a sentence.
pub fn exit_code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One sentence on what a bench ran on and, in the caller's words, how often.
pub async fn conditions(cluster: &Cluster, how_often: &str) -> Result<String> {
    let first = cluster.nodes().first().context("the cluster has no node")?;
    let node = Api::<Node>::all(cluster.client()).get(&first.name()).await?;
    let info = node.status.and_then(|status| status.node_info).context("the node says nothing of itself")?;
    let kernel: Vec<&str> = info.kernel_version.split('.').take(2).collect();
    let profile = env::var(PROFILE_VARIABLE).unwrap_or_else(|_| "release".to_owned());
    Ok(format!(
        "{} nodes on one machine with {} processors; Linux {}, Kubernetes {}, {}; fairlead built with the profile \
         `{profile}`; {how_often}.",
        cluster.nodes().len(),
        thread::available_parallelism()?,
        kernel.join("."),
        info.kubelet_version,
        info.container_runtime_version.replace("://", " "),
    ))
}
