//! What an attachment costs on a real node: time, netlink messages, writes to the API server, memory.
//!
//! 100 pods in waves on one node of a cluster of its own. Prints a table; asserts nothing, since the
//! machine is shared with the cluster itself.

#![expect(clippy::print_stdout, reason = "printing is what a bench is for")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::Table;
use fairlead_tests::progress::Progress;
use fairlead_tests::{Cluster, Layout, Options, fairlead, wait};

const PODS: usize = 100;
const WAVE: usize = 10;
const NAMESPACE: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(180);

const NETWORK: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: bench}
---
apiVersion: fairlead.dev/v1alpha1
kind: Network
metadata: {name: bench}
spec:
  bridge: {name: br-bench, uplink: {none: {}}}
  ipam: {ranges: [{cidr: 10.90.0.0/20}, {cidr: "fd00:90::/64"}], quarantine: 5s}
  allowedNamespaces: {from: All}
"#;

#[tokio::main]
async fn main() -> Result<()> {
    let layout = Layout::TESTS.or_from_env()?;
    let progress = Progress::auto();
    let cluster = Cluster::up(&Options { layout, nodes: 1, progress: progress.clone() }).await?;
    fairlead::install(&cluster, &progress).await?;
    let outcome = run(&cluster).await;
    if outcome.is_err() {
        cluster.diagnose("bench").await.ok();
    }
    Cluster::down(layout).await?;
    outcome
}

async fn run(cluster: &Cluster) -> Result<()> {
    cluster.apply(NETWORK).await?;
    fairlead::wait_for_network(cluster, "bench", PATIENCE).await?;
    let idle = resident_kib(cluster).await?;
    let (before, mark) = (netlink(cluster).await?, cluster.audit_mark()?);
    for wave in 0..PODS / WAVE {
        let names: Vec<String> = (wave * WAVE..(wave + 1) * WAVE).map(|n| format!("p{n}")).collect();
        cluster.apply(&names.iter().map(|name| pod(name)).collect::<String>()).await?;
        wait_ready(cluster, (wave + 1) * WAVE).await?;
    }
    let (after, loaded) = (netlink(cluster).await?, resident_kib(cluster).await?);
    let times = attach_times(cluster).await?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=true"]).await?;
    let writes = writes_by_kind(cluster, mark)?;
    println!("{}", table(&times, &before, &after, &writes, (idle, loaded))?);
    Ok(())
}

fn pod(name: &str) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {NAMESPACE}, annotations: {{fairlead.dev/networks: bench}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: "busybox:stable", imagePullPolicy: Never, command: [sleep, "100000"]}}
"#
    )
}

async fn wait_ready(cluster: &Cluster, count: usize) -> Result<()> {
    wait::until(PATIENCE, &format!("{count} pods to be Ready"), || async {
        let path = r#"jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
        let ready = cluster.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", path]).await?;
        let ready = ready.lines().filter(|status| *status == "True").count();
        anyhow::ensure!(ready == count, "{ready} are");
        Ok(())
    })
    .await
}

/// Milliseconds from seeing a sandbox to its marker, as the agent logged them, sorted.
async fn attach_times(cluster: &Cluster) -> Result<Vec<f64>> {
    let log =
        cluster.kubectl(&["logs", "-n", "fairlead-system", "daemonset/fairlead-agent", "--tail=-1"]).await?;
    let of_line = |line: &str| line.split("elapsed_ms=").nth(1)?.split_whitespace().next()?.parse().ok();
    let mut times: Vec<f64> = log.lines().filter_map(of_line).collect();
    times.sort_by(f64::total_cmp);
    anyhow::ensure!(times.len() >= PODS, "the agent logged {} attachments of {PODS}", times.len());
    Ok(times)
}

/// Netlink requests and sysctl writes of the agent so far, by kind.
async fn netlink(cluster: &Cluster) -> Result<BTreeMap<String, f64>> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let text = node.exec(&["busybox", "wget", "-qO-", "http://127.0.0.1:9474/metrics"]).await?;
    let of_line = |line: &str| {
        let (kind, count) = line.strip_prefix("fairlead_netlink_messages{kind=\"")?.split_once("\"} ")?;
        Some((kind.to_owned(), count.parse().ok()?))
    };
    Ok(text.lines().filter_map(of_line).collect())
}

async fn resident_kib(cluster: &Cluster) -> Result<u64> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let uid = cluster
        .kubectl(&[
            "get",
            "pods",
            "-n",
            "fairlead-system",
            "-l",
            "app.kubernetes.io/name=fairlead-agent",
            "-o",
            "jsonpath={.items[0].metadata.uid}",
        ])
        .await?;
    let pids = node.container_pids(uid.trim(), "agent").await?;
    let pid = pids.first().context("the agent has no process")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

/// Writes of the agent since the mark that the API server accepted, by what was written.
fn writes_by_kind(cluster: &Cluster, mark: fairlead_tests::audit::Mark) -> Result<BTreeMap<String, usize>> {
    let agents = |request: &fairlead_tests::audit::Request| {
        request.is_write() && request.succeeded() && request.user.username.ends_with(":fairlead-agent")
    };
    let mut kinds = BTreeMap::new();
    for request in cluster.audit_since(mark, agents)? {
        let object = request.object_ref.unwrap_or_default();
        let kind = format!("{} {} {}", request.verb, object.resource, object.subresource);
        *kinds.entry(kind.trim_end().to_owned()).or_default() += 1;
    }
    Ok(kinds)
}

fn table(
    times: &[f64],
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
    writes: &BTreeMap<String, usize>,
    (idle, loaded): (u64, u64),
) -> Result<Table> {
    let mut table = Table::new();
    table.set_header(["what", "value"]);
    let percentile =
        |p: usize| times.get((times.len() * p / 100).min(times.len() - 1)).copied().context("no times");
    for p in [50, 90, 99] {
        table.add_row([format!("sandbox seen to marker set, p{p}"), format!("{:.1} ms", percentile(p)?)]);
    }
    let pods = f64::from(u32::try_from(PODS)?);
    for (kind, count) in after {
        let per_pod = (count - before.get(kind).copied().unwrap_or_default()) / pods;
        table.add_row([format!("netlink requests per attachment: {kind}"), format!("{per_pod:.1}")]);
    }
    for (kind, count) in writes {
        let per_pod = f64::from(u32::try_from(*count)?) / pods;
        table.add_row([format!("API writes per pod life: {kind}"), format!("{per_pod:.2}")]);
    }
    table.add_row(["agent resident, idle".to_owned(), format!("{idle} KiB")]);
    table.add_row([format!("agent resident, {PODS} pods"), format!("{loaded} KiB")]);
    Ok(table)
}
