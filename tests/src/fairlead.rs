//! Puts fairlead on a cluster, the way its manifests say.

use std::{env, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use fairlead_crds::names;
use fairlead_deploy::{
    image::{self, Built},
    manifests::{self, Choices},
};

use crate::{
    cluster::Cluster,
    layout,
    node::{NRI_PLUGINS, Node, Nri},
    process,
    progress::Progress,
    wait,
};

/// Cargo profile of the image; `dev` builds faster while one works on it.
pub const PROFILE_VARIABLE: &str = "FAIRLEAD_PROFILE";

/// Of one command that waits for pods. An agent that does not get started is given a minute, and then one more try: see
/// `startupProbe` of the `DaemonSet`.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(240);
const WORKLOADS: [&str; 2] = ["daemonset/fairlead-agent", "deployment/fairlead-controller"];

/// Builds the image, imports it on every node, applies the manifests and waits until everything is ready.
///
/// Installing over an older build replaces it.
pub async fn install(cluster: &Cluster, progress: &Progress) -> Result<()> {
    let stage = progress.long_stage("building the fairlead image");
    let (archive, built) = build_image(cluster).await?;
    stage.done();
    let stage = progress.stage("installing fairlead");
    cluster.import_image(&archive).await?;
    apply(cluster).await?;
    restart_if_changed(cluster, &built).await?;
    wait_until_ready(cluster).await?;
    if cluster.nri() == Nri::Preinstalled {
        preinstall_guard(cluster).await?;
    }
    stage.done();
    Ok(())
}

/// Installs the guard in the nodes' plugin folders and restarts their runtimes, which start it.
pub async fn preinstall_guard(cluster: &Cluster) -> Result<()> {
    let choices = Choices {
        devices: vec![layout::UPLINK.to_owned()],
        pull_policy: Some("Never".to_owned()),
        guard_folder: Some(NRI_PLUGINS.to_owned()),
        ..Choices::default()
    };
    let agents =
        manifests::render(&choices)?.into_iter().find(|object| manifests::kind(object) == "DaemonSet");
    cluster.apply(&agents.context("the manifests have no DaemonSet")?.to_string()).await?;
    wait_until_ready(cluster).await?;
    for node in cluster.nodes() {
        node.stop_containerd().await?;
        node.start_containerd().await?;
    }
    wait_until_ready(cluster).await
}

/// Imports the image of the installation on a node that joined since.
pub async fn bring(cluster: &Cluster, node: &Node) -> Result<()> {
    node.import_image(&archive(cluster)).await
}

/// Applies the manifests, and nothing else.
pub async fn apply(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["apply", "-k", &overlay()]).await?;
    Ok(())
}

/// Deletes the manifests without a wait, as somebody would who does not know of `kubectl fairlead uninstall`.
pub async fn delete(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["delete", "-k", &overlay(), "--wait=false"]).await?;
    Ok(())
}

/// Waits until agents and controllers are ready.
pub async fn wait_until_ready(cluster: &Cluster) -> Result<()> {
    for workload in WORKLOADS {
        rollout(cluster, workload).await?;
    }
    Ok(())
}

/// Runs `kubectl fairlead` on the cluster and gives its standard output.
pub async fn plugin(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let kubeconfig = format!("KUBECONFIG={}", cluster.kubeconfig_path().display());
    let path = format!("PATH={}", cluster.tools().path());
    let manifest = concat!("--manifest-path=", env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let run =
        ["env", &kubeconfig, &path, &cargo, "run", "--quiet", manifest, "--bin", "kubectl-fairlead", "--"];
    process::run(&[&run[..], arguments].concat()).await
}

/// The manifests with what this cluster needs: the agent may use the nodes' second interface.
fn overlay() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/overlays/local").to_owned()
}

fn archive(cluster: &Cluster) -> PathBuf {
    cluster.layout().root().join("fairlead.tar")
}

async fn build_image(cluster: &Cluster) -> Result<(PathBuf, Built)> {
    let archive = archive(cluster);
    let mut options = image::Options::new(&archive);
    if let Ok(profile) = env::var(PROFILE_VARIABLE) {
        options.profile = profile;
    }
    let built = tokio::task::spawn_blocking(move || image::build_image(&options)).await??;
    Ok((archive, built))
}

/// The tag stays the same between builds, so a new image under it is used only by new pods.
async fn restart_if_changed(cluster: &Cluster, built: &Built) -> Result<()> {
    let record = cluster.layout().root().join("fairlead-digest");
    let before = fs::read_to_string(&record).ok();
    if before.is_some_and(|digest| digest != built.digest) {
        for workload in WORKLOADS {
            cluster.kubectl(&["rollout", "restart", "-n", names::INSTALL_NAMESPACE, workload]).await?;
        }
    }
    fs::write(&record, &built.digest).with_context(|| format!("writing {}", record.display()))
}

async fn rollout(cluster: &Cluster, workload: &str) -> Result<()> {
    let timeout = format!("--timeout={}s", ROLLOUT_TIMEOUT.as_secs());
    cluster.kubectl(&["rollout", "status", "-n", names::INSTALL_NAMESPACE, workload, &timeout]).await?;
    Ok(())
}

/// Waits until a Network is accepted.
pub async fn wait_for_network(cluster: &Cluster, name: &str, timeout: Duration) -> Result<()> {
    wait::until(timeout, &format!("Network {name} to be accepted"), || async {
        let path = "jsonpath={.status.conditions[?(@.type=='Accepted')]}";
        let condition = cluster.kubectl(&["get", "networks.fairlead.dev", name, "-o", path]).await?;
        let condition: serde_json::Value =
            serde_json::from_str(&condition).context("it has no condition Accepted")?;
        anyhow::ensure!(condition["status"] == "True", "{}: {}", condition["reason"], condition["message"]);
        Ok(())
    })
    .await
}
