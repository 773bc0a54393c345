//! An API server with fairlead's manifests and a controller, and clients of agents.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Network, names};
use fairlead_deploy::manifests::{self, Choices};
use fairlead_tests::cgroup::Group;
use fairlead_tests::process::{Daemon, Process};
use fairlead_tests::progress::Progress;
use fairlead_tests::{Cluster, Layout, Options, fairlead, node::Nri};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::meter::Meter;

/// Name of the one Network.
pub const NETWORK: &str = "scale";
/// Namespace of the pods.
pub const NAMESPACE: &str = "scale";
/// Addresses of a block.
const BLOCK: u32 = 16;
/// Requests of the bench itself side by side.
pub const AT_ONCE: usize = 16;
/// Port of the controller's metrics on this machine.
const METRICS: &str = "127.0.0.1:19475";
const PATIENCE: Duration = Duration::from_secs(60);

/// How the controller is started.
#[derive(Clone, Debug, clap::Args)]
pub struct Controller {
    /// The controller's program; this one if there is none. What a controller needs in memory shows one that is built for
    /// release, with the environment that it has in the manifests.
    #[arg(long = "controller", env = "FAIRLEAD_SCALE_CONTROLLER")]
    pub program: Option<PathBuf>,
    /// What the agents and the controller log.
    #[arg(long, env = "FAIRLEAD_SCALE_LOG", default_value = "error,kube_client=off")]
    pub log: String,
}

/// An API server with everything on it.
pub struct Place {
    layout: Layout,
    admin: Config,
    /// The administrator's client.
    pub client: Client,
    /// The Network, with its ranges.
    pub network: Network,
}

impl Place {
    /// Boots it for that many nodes with that many pods each.
    pub async fn boot(
        layout: Layout,
        nodes: u32,
        pods: u32,
        controller: &Controller,
        progress: &Progress,
    ) -> Result<Self> {
        let options = Options { layout, nodes: 0, nri: Nri::default(), progress: progress.clone() };
        let cluster = Cluster::up(&options).await?;
        let stage = progress.stage("applying the manifests");
        apply_manifests(&cluster).await?;
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_path())?;
        start_controller(&cluster, kubeconfig.clone(), controller)?;
        let mut admin = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        admin.default_retry = false;
        let client = cluster.client();
        make_namespace(&client).await?;
        cluster.apply(&network(nodes, pods)?.to_string()).await?;
        fairlead::wait_for_network(&cluster, NETWORK, PATIENCE).await?;
        let network = Api::<Network>::all(client.clone()).get(NETWORK).await?;
        stage.done();
        Ok(Self { layout, admin, client, network })
    }

    /// Creates Nodes, which nothing runs on.
    pub async fn add_nodes(&self, count: u32, pods: u32) -> Result<Vec<Node>> {
        let api: Api<Node> = Api::all(self.client.clone());
        let create = |number| {
            let api = api.clone();
            async move { Ok::<_, anyhow::Error>(api.create(&PostParams::default(), &node(number, pods)?).await?) }
        };
        stream::iter(0..count).map(create).buffered(AT_ONCE).try_collect().await
    }

    /// A client with the credentials of a node's agent, counted by a meter.
    pub fn agent(&self, node: &str, meter: &Meter) -> Result<Client> {
        let mut config = self.admin.clone();
        impersonate(&mut config.auth_info, names::AGENT);
        let node_name = "authentication.kubernetes.io/node-name".to_owned();
        config.auth_info.impersonate_user_extra = Some(HashMap::from([(node_name, vec![node.to_owned()])]));
        Ok(meter.client(config)?)
    }

    /// Resident memory of a program of this cluster.
    pub fn memory(&self, program: &str) -> Result<Resident> {
        let process = Process::recorded(program, &self.layout.pids(), &self.layout.logs())?;
        process.check()?;
        Resident::of(&process.pid().to_string())
    }

    /// Writes of the controller so far, by verb and kind.
    pub async fn controller_writes(&self) -> Result<BTreeMap<String, u64>> {
        let mut stream = TcpStream::connect(METRICS).await.context("connecting to the controller")?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
        let mut text = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text)).await??;
        Ok(text.lines().filter_map(written).collect())
    }
}

/// Resident memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Resident {
    /// Now.
    pub now: u64,
    /// At most, since it started.
    pub most: u64,
}

impl Resident {
    /// Of a process id, or of `self`.
    pub fn of(pid: &str) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = |key: &str| {
            let kib = status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB"));
            Ok::<u64, anyhow::Error>(
                kib.with_context(|| format!("the status of {pid} has no {key}"))?.parse()?,
            )
        };
        Ok(Self { now: kib("VmRSS:")?, most: kib("VmHWM:")? })
    }
}

impl fmt::Display for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB, at most {} MiB", self.now / 1024, self.most / 1024)
    }
}

/// `fairlead_api_requests_total{verb="Patch",kind="Node"} 3`.
fn written(line: &str) -> Option<(String, u64)> {
    let (labels, count) = line.strip_prefix("fairlead_api_requests_total{")?.split_once("} ")?;
    let mut values = labels.split('"').skip(1).step_by(2);
    let (verb, kind) = (values.next()?.to_lowercase(), values.next()?);
    Some((format!("{verb} {kind}"), count.parse().ok()?))
}

/// Everything but the programs, for which there is no node.
async fn apply_manifests(cluster: &Cluster) -> Result<()> {
    let objects = manifests::render(&Choices::default())?;
    let runs = |object: &serde_json::Value| matches!(manifests::kind(object), "DaemonSet" | "Deployment");
    let text: Vec<String> = objects.iter().filter(|object| !runs(object)).map(ToString::to_string).collect();
    cluster.apply(&text.join("\n---\n")).await?;
    cluster.kubectl(&["wait", "--for=condition=established", "crd", "--all", "--timeout=60s"]).await?;
    Ok(())
}

/// Starts the controller with the controller's rights.
fn start_controller(cluster: &Cluster, mut kubeconfig: Kubeconfig, controller: &Controller) -> Result<()> {
    let layout = cluster.layout();
    for user in &mut kubeconfig.auth_infos {
        impersonate(user.auth_info.get_or_insert_default(), names::CONTROLLER);
    }
    let file = layout.pki().join("fairlead-controller.conf");
    fs::write(&file, serde_json::to_vec(&kubeconfig)?).context("writing the controller's kubeconfig")?;
    let kubeconfig = format!("KUBECONFIG={}", file.display());
    let program = match &controller.program {
        Some(program) => vec![program.display().to_string()],
        None => vec![env::current_exe()?.display().to_string(), "controller".to_owned()],
    };
    let flags = ["--listen", METRICS, "--log", &controller.log].map(str::to_owned);
    let argv = [vec!["env".to_owned(), kubeconfig], program, flags.to_vec()].concat();
    let group = Group::named(layout, "control-plane")?;
    let path = cluster.tools().path();
    let (logs, pids) = (layout.logs(), layout.pids());
    Daemon { name: names::CONTROLLER, argv, group: &group, path: &path, logs, pids }.start()?;
    Ok(())
}

fn impersonate(user: &mut kube::config::AuthInfo, account: &str) {
    let namespace = names::INSTALL_NAMESPACE;
    let groups = ["system:authenticated", "system:serviceaccounts"].map(str::to_owned);
    user.impersonate = Some(format!("system:serviceaccount:{namespace}:{account}"));
    user.impersonate_groups =
        Some([groups.to_vec(), vec![format!("system:serviceaccounts:{namespace}")]].concat());
}

/// The pods' namespace, and the service accounts that a controller of Kubernetes would make.
async fn make_namespace(client: &Client) -> Result<()> {
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": "default" } }))?;
    for namespace in ["default", NAMESPACE] {
        Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &account).await?;
    }
    Ok(())
}

/// A Network whose range is filled to three quarters at most when every node has what it wants to keep ready: tight
/// enough that claims meet.
fn network(nodes: u32, pods: u32) -> Result<serde_json::Value> {
    let blocks = nodes * (pods + (pods / 4).max(16)).div_ceil(BLOCK);
    let bits = (blocks * 4 / 3).next_power_of_two().ilog2() + BLOCK.ilog2();
    ensure!(bits <= 22, "{blocks} blocks are more than this bench has addresses for");
    Ok(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": NETWORK },
        "spec": {
            "bridge": { "name": "br-scale", "uplink": { "none": {} } },
            "ipam": {
                "ranges": [{ "cidr": format!("10.64.0.0/{}", 32 - bits), "blockPrefix": 32 - BLOCK.ilog2() }],
                "quarantine": "5s",
            },
            "allowedNamespaces": { "from": "All" },
            "hold": "Gate",
        },
    }))
}

fn node(number: u32, pods: u32) -> Result<Node> {
    let room = json!({ "cpu": "64", "memory": "256Gi", "pods": (pods + 10).to_string() });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": format!("hollow-{number}"), "labels": { "kubernetes.io/os": "linux" } },
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Hollow", "message": "" }],
        },
    }))?)
}
