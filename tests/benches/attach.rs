//! What an attachment costs on a real node: time, netlink messages, writes to the API server, memory.
//!
//! 100 pods one after the other on a node that does nothing else, then 100 in waves of 10. Prints a table;
//! asserts nothing, since the machine is shared with the cluster itself.

#![expect(clippy::print_stdout, reason = "printing is what a bench is for")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use comfy_table::Table;
use fairlead_tests::measure::{self, Readiness, Times};
use fairlead_tests::node::Nri;
use fairlead_tests::progress::Progress;
use fairlead_tests::{Cluster, Layout, Options, fairlead};

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
    let cluster =
        Cluster::up(&Options { layout, nodes: 1, nri: Nri::default(), progress: progress.clone() }).await?;
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
    let mut table = Table::new();
    table.set_header(["what".to_owned(), "one by one".to_owned(), format!("waves of {WAVE}")]);
    let idle = resident(cluster).await?;
    let single = round(cluster, "single", 1).await?;
    let waves = round(cluster, "wave", WAVE).await?;
    for p in [50, 90, 99] {
        let [one, many] = [&single, &waves].map(|round| format!("{:.1} ms", round.times.percentile(p)));
        table.add_row([format!("sandbox seen to marker set, p{p}"), one, many]);
    }
    add_counts(&mut table, "netlink requests per attachment", [&single.netlink, &waves.netlink]);
    add_counts(&mut table, "API writes per pod life", [&single.writes, &waves.writes]);
    table.add_row(["agent resident before".to_owned(), idle, single.resident.clone()]);
    table.add_row([format!("agent resident with {PODS} pods"), single.resident, waves.resident]);
    println!("{table}");
    Ok(())
}

struct Round {
    times: Times,
    netlink: BTreeMap<String, f64>,
    writes: BTreeMap<String, f64>,
    resident: String,
}

/// Starts 100 pods, so many at a time, and deletes them.
async fn round(cluster: &Cluster, prefix: &str, at_once: usize) -> Result<Round> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let mark = cluster.audit_mark()?;
    let earlier = measure::attach_times(cluster).await?.len();
    let before = measure::netlink(node).await?;
    let mut readiness = Readiness::of(cluster, NAMESPACE);
    for wave in 0..PODS / at_once {
        let names: Vec<String> =
            (wave * at_once..(wave + 1) * at_once).map(|n| format!("{prefix}{n}")).collect();
        let begun = Instant::now();
        cluster.apply(&names.iter().map(|name| pod(name)).collect::<String>()).await?;
        readiness.all(&names, begun, PATIENCE).await?;
    }
    let after = measure::netlink(node).await?;
    let resident = resident(cluster).await?;
    let times: Times = measure::attach_times(cluster).await?.into_iter().skip(earlier).collect();
    anyhow::ensure!(times.len() >= PODS, "the agent logged {} attachments of {PODS}", times.len());
    cluster.kubectl(&["delete", "pods", "--all", "-n", NAMESPACE, "--wait=true"]).await?;
    let gone = ["wait", "--for=delete", "podnetworks", "--all", "-n", NAMESPACE, "--timeout=60s"];
    cluster.kubectl(&gone).await?;
    let pods = f64::from(u32::try_from(PODS)?);
    let netlink = after.into_iter().map(|(kind, count)| {
        let per_pod = (count - before.get(&kind).copied().unwrap_or_default()) / pods;
        (kind, per_pod)
    });
    let writes = measure::writes(cluster, mark, "fairlead-agent")?;
    let writes =
        writes.into_iter().filter_map(|(kind, n)| Some((kind, f64::from(u32::try_from(n).ok()?) / pods)));
    Ok(Round { times, netlink: netlink.collect(), writes: writes.collect(), resident })
}

fn add_counts(table: &mut Table, what: &str, columns: [&BTreeMap<String, f64>; 2]) {
    let kinds: std::collections::BTreeSet<&String> =
        columns.iter().flat_map(|column| column.keys()).collect();
    for kind in kinds {
        let [one, many] =
            columns.map(|column| format!("{:.2}", column.get(kind).copied().unwrap_or_default()));
        table.add_row([format!("{what}: {kind}"), one, many]);
    }
}

/// Resident memory of the agent, as text.
async fn resident(cluster: &Cluster) -> Result<String> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let (all, anonymous) = measure::resident(cluster, node, "fairlead-agent", "agent").await?;
    Ok(format!("{all} KiB ({anonymous} not file-backed)"))
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
