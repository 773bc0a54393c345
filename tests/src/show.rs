//! The tour of `cargo demo`: what fairlead does, each line of it seen on the running cluster.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use serde::Deserialize;

use crate::{cluster::Cluster, fairlead, progress::Progress, wait};

const NAMESPACE: &str = "demo";
const MANIFESTS: &str = include_str!("show/demo.yaml");
const PODS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(60);

/// What to look at afterwards: arguments of `kubectl`.
pub const QUESTIONS: [&[&str]; 4] = [
    &["get", "pods", "-n", NAMESPACE, "-o", "wide"],
    &["get", "fnet"],
    &["get", "podnetworks", "-n", NAMESPACE],
    &["get", "nodenetworks"],
];

/// One line of the tour.
#[derive(Clone, Debug)]
pub struct Line {
    what: &'static str,
    seen: String,
    took: Option<Duration>,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: String,
}

/// Runs the tour. What it makes stays, for a look around; an earlier tour is removed first.
pub async fn run(cluster: &Cluster, progress: &Progress) -> Result<Vec<Line>> {
    let stage = progress.stage("showing");
    remove(cluster).await?;
    let mut lines = Vec::new();
    stage.detail("starting pods");
    lines.push(start(cluster).await?);
    let pods = pods(cluster).await?;
    stage.detail("first look of an init container");
    lines.push(first_look(cluster, &pods).await?);
    stage.detail("ping");
    lines.extend(ping_all(cluster, &pods).await?);
    stage.detail("deleting a pod");
    lines.push(delete_one(cluster, &pods).await?);
    stage.done();
    Ok(lines)
}

/// The lines as a table.
pub fn table(lines: &[Line]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["What", "Seen", "Took"]);
    for line in lines {
        let took = line.took.map(|took| format!("{:.1} s", took.as_secs_f64())).unwrap_or_default();
        table.add_row([line.what, &line.seen, &took]);
    }
    table
}

async fn remove(cluster: &Cluster) -> Result<()> {
    let arguments = ["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s"];
    cluster.kubectl(&arguments).await?;
    let arguments = ["delete", "networks.fairlead.dev", NAMESPACE, "--ignore-not-found", "--timeout=60s"];
    cluster.kubectl(&arguments).await?;
    Ok(())
}

async fn start(cluster: &Cluster) -> Result<Line> {
    let (network, workload) = MANIFESTS.split_once("---\n").context("the manifests have two parts")?;
    cluster.apply(network).await?;
    fairlead::wait_for_network(cluster, NAMESPACE, TIMEOUT).await?;
    let started = Instant::now();
    cluster.apply(workload).await?;
    cluster.kubectl(&["rollout", "status", "-n", NAMESPACE, "deployment/demo", "--timeout=60s"]).await?;
    let what = "pods with net1 are Ready";
    Ok(Line { what, seen: format!("{PODS} of {PODS}"), took: Some(started.elapsed()) })
}

async fn pods(cluster: &Cluster) -> Result<Vec<Pod>> {
    let arguments = ["get", "pods", "-n", NAMESPACE, "--field-selector=status.phase=Running", "-o", "json"];
    let list: List = serde_json::from_str(&cluster.kubectl(&arguments).await?)?;
    ensure!(list.items.len() == PODS, "{} pods run", list.items.len());
    Ok(list.items)
}

/// The init container printed its addresses as the first thing it did.
async fn first_look(cluster: &Cluster, pods: &[Pod]) -> Result<Line> {
    let mut seen = 0;
    for pod in pods {
        let printed =
            cluster.kubectl(&["logs", "-n", NAMESPACE, &pod.metadata.name, "-c", "first-look"]).await?;
        let families = ["inet ", "inet6 fd"].map(|family| printed.lines().any(|line| line.contains(family)));
        ensure!(families == [true, true], "{} saw on net1: {printed}", pod.metadata.name);
        seen += 1;
    }
    Ok(Line {
        what: "the first container saw net1 up with both addresses",
        seen: format!("{seen} of {PODS}"),
        took: None,
    })
}

async fn ping_all(cluster: &Cluster, pods: &[Pod]) -> Result<Vec<Line>> {
    let first = pods.first().context("there are pods")?;
    let elsewhere = pods.iter().find(|pod| pod.spec.node_name != first.spec.node_name);
    let beside = pods.iter().skip(1).find(|pod| pod.spec.node_name == first.spec.node_name);
    let mut lines = Vec::new();
    let pairs =
        [("net1 reaches a pod of the same node", beside), ("net1 reaches a pod of another node", elsewhere)];
    for (what, other) in pairs {
        let Some(other) = other else { continue };
        let mut seen = Vec::new();
        for address in addresses(cluster, other).await? {
            let ping = ["ping", "-I", "net1", "-c", "2", "-W", "2", &address];
            cluster.exec(NAMESPACE, &first.metadata.name, &ping).await?;
            seen.push(address);
        }
        lines.push(Line { what, seen: seen.join("\n"), took: None });
    }
    Ok(lines)
}

/// Addresses of a pod's net1, without those of the link itself.
async fn addresses(cluster: &Cluster, pod: &Pod) -> Result<Vec<String>> {
    let command = ["ip", "-o", "addr", "show", "dev", "net1", "scope", "global"];
    let printed = cluster.exec(NAMESPACE, &pod.metadata.name, &command).await?;
    let cidrs = printed.lines().filter_map(|line| line.split_whitespace().nth(3));
    Ok(cidrs.filter_map(|cidr| cidr.split('/').next()).map(str::to_owned).collect())
}

async fn delete_one(cluster: &Cluster, pods: &[Pod]) -> Result<Line> {
    let name = &pods.first().context("there are pods")?.metadata.name;
    let started = Instant::now();
    cluster.kubectl(&["delete", "pod", "-n", NAMESPACE, name, "--timeout=30s"]).await?;
    let label = format!("fairlead.dev/pod={name}");
    wait::until(TIMEOUT, "the record of the deleted pod to go", || async {
        let left =
            cluster.kubectl(&["get", "podnetworks", "-n", NAMESPACE, "-l", &label, "-o", "name"]).await?;
        ensure!(left.trim().is_empty(), "{left} is left");
        Ok(())
    })
    .await?;
    cluster.kubectl(&["rollout", "status", "-n", NAMESPACE, "deployment/demo", "--timeout=60s"]).await?;
    let what = "a deleted pod leaves no record, its replacement is Ready";
    Ok(Line { what, seen: "yes".into(), took: Some(started.elapsed()) })
}
