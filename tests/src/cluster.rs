//! A cluster as a whole: boot it, attach to a running one, end it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};

use crate::{
    build::Tools,
    control_plane, images, kubectl,
    layout::{self, Layout},
    netns,
    node::{Node, Nri},
    pki::Authority,
    prereq,
    progress::Progress,
    teardown, wait,
};

const NODES_TIMEOUT: Duration = Duration::from_secs(90);

/// How to boot a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which of the machine's clusters.
    pub layout: Layout,
    /// At most 9. Without any, only etcd and the API server are started: there is nothing that Kubernetes' own
    /// controllers could work on.
    pub nodes: u8,
    /// What the nodes' runtimes do with plugins.
    pub nri: Nri,
    /// Where progress is shown.
    pub progress: Progress,
}

/// A running cluster. Dropping it ends nothing.
#[derive(Clone)]
pub struct Cluster {
    layout: Layout,
    tools: Tools,
    nodes: Vec<Node>,
    nri: Nri,
    client: Client,
}

/// What is written for [`Cluster::attach`].
#[derive(Serialize, Deserialize)]
struct State {
    nodes: u8,
    #[serde(default)]
    nri: Nri,
    tools: Tools,
}

impl Cluster {
    /// Boots a cluster and waits until its nodes are Ready. What an earlier one left is ended first.
    ///
    /// # Errors
    /// One sentence when something is missing on the machine; else what did not start, with its log.
    pub async fn up(options: &Options) -> Result<Self> {
        layout::check_nodes(options.nodes)?;
        prereq::check().await?;
        let (layout, progress) = (options.layout, &options.progress);
        let tools = Tools::build(progress).await?;
        let archives = images::build().await?;
        let _lock = lock(layout)?;
        if teardown::has_remains(layout)? {
            let stage = progress.stage("ending what an earlier cluster left");
            teardown::run(layout).await?;
            stage.done();
        }
        let stage = progress.stage(format!("booting {} nodes", options.nodes));
        let cluster = Self::boot(options, tools, &archives).await?;
        stage.done();
        Ok(cluster)
    }

    async fn boot(options: &Options, tools: Tools, archives: &[PathBuf]) -> Result<Self> {
        let (layout, nri) = (options.layout, options.nri);
        prepare_folders(layout)?;
        netns::create_bridges(layout).await?;
        let authority = Authority::new(layout)?;
        let nodes: Vec<_> =
            (1..=options.nodes).map(|index| Node::new(index, options.nodes, layout, &tools, nri)).collect();
        let runtimes = try_join_all(nodes.iter().map(|node| start_runtime(node, archives)));
        let api = control_plane::start_api(layout, &tools, &authority);
        tokio::try_join!(runtimes, api)?;
        if !nodes.is_empty() {
            control_plane::start_controllers(layout, &tools, &authority)?;
        }
        for node in &nodes {
            node.join(&authority)?;
        }
        let client = kubectl::client(&layout.kubeconfig()).await?;
        let cluster = Self { layout, tools, nodes, nri, client };
        if !cluster.nodes.is_empty() {
            cluster.wait_for_nodes().await?;
            cluster.wait_for_service_account().await?;
        }
        let state = State { nodes: options.nodes, nri, tools: cluster.tools.clone() };
        fs::write(layout.state(), serde_json::to_vec(&state)?)?;
        Ok(cluster)
    }

    /// The cluster that another process has booted.
    ///
    /// # Errors
    /// When there is none, or it does not answer.
    pub async fn attach(layout: Layout) -> Result<Self> {
        prereq::check_root()?;
        let text = fs::read(layout.state())
            .context("no local cluster is running: start one with `cargo demo up`")?;
        let state: State = serde_json::from_slice(&text).context("reading the state of the local cluster")?;
        let State { nodes: count, nri, tools } = state;
        let nodes = (1..=count).map(|index| Node::new(index, count, layout, &tools, nri)).collect();
        let client = kubectl::client(&layout.kubeconfig()).await?;
        let cluster = Self { layout, tools, nodes, nri, client };
        tokio::time::timeout(Duration::from_secs(5), cluster.client.apiserver_version())
            .await
            .map_err(anyhow::Error::from)
            .and_then(|answer| Ok(answer?))
            .context("the local cluster does not answer: `cargo demo up` starts it again")?;
        Ok(cluster)
    }

    /// Ends everything that was started and removes what was made, but for the logs.
    pub async fn down(layout: Layout) -> Result<()> {
        prereq::check_root()?;
        let _lock = lock(layout)?;
        teardown::run(layout).await
    }

    /// A client with the administrator's rights, without retries of its own.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The programs of the cluster.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// Logs, one file per process.
    pub fn logs_dir(&self) -> PathBuf {
        self.layout.logs()
    }

    /// What the nodes' runtimes do with plugins.
    pub fn nri(&self) -> Nri {
        self.nri
    }

    /// Where this cluster is on the machine.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.iter().find(|node| node.name() == name).with_context(|| format!("no node `{name}`"))
    }

    /// Imports an OCI archive on every node.
    pub async fn import_image(&self, archive: &Path) -> Result<()> {
        try_join_all(self.nodes.iter().map(|node| node.import_image(archive))).await?;
        Ok(())
    }

    /// The cluster with one more node, until [`Cluster::shrink`].
    pub async fn grow(&self) -> Result<Self> {
        let index = u8::try_from(self.nodes.len() + 1)?;
        layout::check_nodes(index)?;
        let node = Node::new(index, index, self.layout, &self.tools, self.nri);
        let started = async {
            start_runtime(&node, &images::build().await?).await?;
            node.join(&Authority::open(self.layout)?)?;
            self.wait_for_node(&node, NODES_TIMEOUT).await
        };
        let mut grown = self.clone();
        grown.nodes.push(node.clone());
        match started.await {
            Ok(()) => Ok(grown),
            Err(error) => Err(self.shrink(&grown).await.err().unwrap_or(error)),
        }
    }

    /// Ends the nodes that `grown` has and this one does not, for good.
    pub async fn shrink(&self, grown: &Self) -> Result<()> {
        for node in grown.nodes.iter().skip(self.nodes.len()) {
            let name = node.name();
            self.kubectl(&["delete", "node", &name, "--ignore-not-found"]).await?;
            node.kill_all().await?;
            let bound = format!("--field-selector=spec.nodeName={name}");
            self.kubectl(&["delete", "pods", "-A", &bound, "--force", "--grace-period=0"]).await?;
        }
        Ok(())
    }

    /// Waits until every node is Ready.
    pub async fn wait_for_nodes(&self) -> Result<()> {
        let started = Instant::now();
        for node in &self.nodes {
            let left = NODES_TIMEOUT.saturating_sub(started.elapsed());
            self.wait_for_node(node, left).await?;
        }
        Ok(())
    }

    /// Waits until one node is Ready.
    pub async fn wait_for_node(&self, node: &Node, timeout: Duration) -> Result<()> {
        let nodes: Api<core::Node> = Api::all(self.client());
        let name = node.name();
        wait::until(timeout, &format!("{name} to be Ready"), || async {
            // A dead process is not waited for to the end: its log is the answer.
            if let Err(dead) = node.check() {
                return Ok(Err(dead));
            }
            node_is_ready(&nodes.get(&name).await?).map(Ok)
        })
        .await?
    }

    /// Pods are refused in a namespace that has no service account yet.
    async fn wait_for_service_account(&self) -> Result<()> {
        let accounts: Api<core::ServiceAccount> = Api::namespaced(self.client(), "default");
        wait::until(NODES_TIMEOUT, "the controller manager", || async { Ok(accounts.get("default").await?) })
            .await?;
        Ok(())
    }
}

async fn start_runtime(node: &Node, archives: &[PathBuf]) -> Result<()> {
    node.start_runtime().await?;
    for archive in archives {
        node.import_image(archive).await?;
    }
    Ok(())
}

fn node_is_ready(node: &core::Node) -> Result<()> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(ready) if ready.status == "True" => Ok(()),
        Some(ready) => Err(anyhow!("{}", ready.message.clone().unwrap_or_default())),
        None => Err(anyhow!("it has no condition Ready")),
    }
}

fn prepare_folders(layout: Layout) -> Result<()> {
    layout::create_private(&layout.root())?;
    if layout.logs().exists() {
        fs::remove_dir_all(layout.logs()).context("removing the logs of the last cluster")?;
    }
    for folder in [layout.logs(), layout.pki(), layout.pids()] {
        layout::create_private(&folder)?;
    }
    Ok(())
}

/// Keeps two processes from starting or ending the same cluster at once.
fn lock(layout: Layout) -> Result<File> {
    layout::create_private(&layout.root())?;
    let file = File::create(layout.lock()).context("opening the lock of the local cluster")?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => bail!("another process is starting or ending the local cluster"),
        Err(fs::TryLockError::Error(error)) => Err(error).context("locking the local cluster"),
    }
}
