//! The pods that are compared, and how they are started and deleted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{PodNetwork, names};
use fairlead_tests::{
    Cluster, fairlead,
    measure::{PodWatch, Processors, Rests},
    node::Node,
    progress::Progress,
    wait,
};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{self as core, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

/// For anything that a healthy cluster does to some pods.
pub const PATIENCE: Duration = Duration::from_secs(300);
const NAMESPACE: &str = "bench";
/// The Network that is plugged into running pods.
pub const PLUG: &str = "bench-plug";

/// How a pod is held until its network is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// It has no network.
    Bare,
    /// By its gate.
    Gate,
    /// By the runtime.
    Nri,
}

impl Variant {
    /// In the order of the tables.
    pub const ALL: [Self; 3] = [Self::Bare, Self::Gate, Self::Nri];

    /// The order of one round: over six rounds each follows each other one equally often.
    pub fn order(round: u32) -> [Self; 3] {
        let [a, b, c] = Self::ALL;
        let orders = [[a, b, c], [c, b, a], [b, c, a], [a, c, b], [c, a, b], [b, a, c]];
        orders[round as usize % orders.len()]
    }

    /// As in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "no network",
            Self::Gate => "gate",
            Self::Nri => "nri",
        }
    }

    fn network(self) -> Option<&'static str> {
        match self {
            Self::Bare => None,
            Self::Gate => Some("bench-gate"),
            Self::Nri => Some("bench-nri"),
        }
    }
}

/// Names of all variants, for the columns of a table.
pub fn columns() -> [&'static str; 3] {
    Variant::ALL.map(Variant::name)
}

/// A cluster on which pods are started.
pub struct Bench<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Where progress is shown.
    pub progress: &'a Progress,
    /// The pods.
    pub pods: Api<Pod>,
    records: Api<PodNetwork>,
    watch: PodWatch,
    /// Before what was measured.
    pub rests: Rests,
    /// Of the next pod: a name is never used twice.
    serial: usize,
}

/// Pods that were started together.
pub struct Started {
    /// Names of the pods.
    pub names: Vec<String>,
    /// From the first creation to Ready of each, in milliseconds, the first first.
    pub times: Vec<f64>,
    /// The machine's processors when the first was created, and when the last was Ready.
    pub processors: [Processors; 2],
}

impl<'a> Bench<'a> {
    /// Makes the Networks, waits until the nodes can hold pods in every way, and starts one pod of each kind.
    pub async fn prepare(cluster: &'a Cluster, progress: &'a Progress) -> Result<Self> {
        let stage = progress.stage("preparing the networks");
        cluster.apply(&manifests()).await?;
        for network in Variant::ALL.into_iter().filter_map(Variant::network).chain([PLUG]) {
            fairlead::wait_for_network(cluster, network, PATIENCE).await?;
        }
        let client = cluster.client();
        let mut bench = Self {
            cluster,
            progress,
            pods: Api::namespaced(client.clone(), NAMESPACE),
            records: Api::namespaced(client, NAMESPACE),
            watch: PodWatch::start(cluster, NAMESPACE).await?,
            rests: Rests::default(),
            serial: 0,
        };
        let nodes = cluster.nodes();
        for variant in Variant::ALL {
            bench.start(variant, nodes.len(), nodes).await?;
            bench.clear().await?;
            // Only after the first: the guard may learn no earlier what the runtime does without it.
            wait_for_nodes(cluster).await?;
        }
        stage.done();
        Ok(bench)
    }

    /// The node of what happens on one node.
    pub fn node(&self) -> Result<&'a Node> {
        self.cluster.nodes().first().context("the cluster has no node")
    }

    /// Creates pods at once, as many on each of the nodes, and waits until all are Ready.
    pub async fn start(&mut self, variant: Variant, count: usize, nodes: &[Node]) -> Result<Started> {
        let first = self.serial;
        self.serial += count;
        let names: Vec<String> = (first..self.serial).map(|number| format!("pod-{number}")).collect();
        let placed = names.iter().zip(nodes.iter().cycle());
        let pods = placed.map(|(name, node)| pod(name, variant, &node.name())).collect::<Result<Vec<_>>>()?;
        let before = Processors::now()?;
        let begun = Instant::now();
        let how = PostParams::default();
        try_join_all(pods.iter().map(|pod| self.pods.create(&how, pod))).await?;
        let times = self.watch.ready(&names, begun, PATIENCE).await;
        let times = times.with_context(|| format!("starting pods: {}", variant.name()))?;
        Ok(Started { names, times, processors: [before, Processors::now()?] })
    }

    /// Deletes all pods, and waits until they and their records are gone.
    pub async fn clear(&mut self) -> Result<()> {
        let all = ListParams::default();
        let names: Vec<String> =
            self.pods.list(&all).await?.items.iter().map(ResourceExt::name_any).collect();
        self.pods.delete_collection(&DeleteParams::default(), &all).await?;
        self.watch.gone(&names, PATIENCE).await?;
        wait::until(PATIENCE, "the records of deleted pods to go", || async {
            let left = self.records.list(&all).await?.items.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await
    }
}

/// Waits until every node is strict and has addresses of all Networks to give.
async fn wait_for_nodes(cluster: &Cluster) -> Result<()> {
    let nodes: Api<core::Node> = Api::all(cluster.client());
    let networks = Variant::ALL.into_iter().filter_map(Variant::network).chain([PLUG]);
    let resources: Vec<String> = networks.map(names::resource).collect();
    wait::until(PATIENCE, "all nodes to hold pods by the runtime", || async {
        for node in nodes.list(&ListParams::default()).await? {
            let hold = node.labels().get(names::HOLD_LABEL).cloned().unwrap_or_default();
            ensure!(hold == names::HOLD_NRI_STRICT, "{} says {hold:?}", node.name_any());
            let promised = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            let missing = resources.iter().find(|resource| !promised.contains_key(*resource));
            ensure!(missing.is_none(), "a node does not promise {missing:?}");
        }
        Ok(())
    })
    .await
}

/// An island bridge with IPv4, in blocks that are large enough for a burst, and with a short quarantine.
fn manifests() -> String {
    let network = |name: &str, cidr: &str, hold: &str| {
        json!({
            "apiVersion": format!("{}/{}", names::GROUP, names::API_VERSION),
            "kind": "Network",
            "metadata": { "name": name },
            "spec": {
                "bridge": { "name": format!("br-{name}"), "uplink": { "none": {} } },
                "ipam": { "ranges": [{ "cidr": cidr, "blockPrefix": 26 }], "quarantine": "5s" },
                "allowedNamespaces": { "from": "All" },
                "hold": hold,
            },
        })
    };
    let items = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        network("bench-gate", "10.91.0.0/18", "Gate"),
        network("bench-nri", "10.92.0.0/18", "Nri"),
        network(PLUG, "10.93.0.0/18", "Gate"),
    ];
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

fn pod(name: &str, variant: Variant, node: &str) -> Result<Pod> {
    let mut pod = json!({
        "metadata": { "name": name },
        "spec": {
            // With 0 every deletion would be a forced one: the pod goes before its sandbox.
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": { "kubernetes.io/hostname": node },
            "containers": [{
                "name": "main",
                "image": "busybox:stable",
                "imagePullPolicy": "Never",
                // The first process of a container has no default for SIGTERM.
                "command": ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"],
            }],
        },
    });
    if let Some(network) = variant.network() {
        pod["metadata"]["annotations"] = json!({ names::NETWORKS_ANNOTATION: network });
    }
    Ok(serde_json::from_value(pod)?)
}
