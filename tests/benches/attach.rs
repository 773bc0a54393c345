//! What an attachment costs on a real node: time, netlink messages, writes to the API server, memory.
//!
//! 100 pods one after the other on a node that does nothing else, then 100 in waves of 10. Prints a table and writes it
//! to `target/bench/attach.json`; asserts nothing, since the machine is shared with the cluster itself.

#![expect(clippy::print_stdout, reason = "printing is what a bench is for")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Parser;
use fairlead_tests::{
    Cluster, fairlead,
    measure::{
        self, PodWatch, Report, Rests, Section, Times, Unit, page,
        usage::{self, Memory},
    },
    node::Nri,
};

const PODS: usize = 100;
const WAVE: usize = 10;
const NAMESPACE: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(180);
const RESULTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../bench");

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

/// Measures what an attachment costs on a real node.
#[derive(Parser)]
struct Args {
    /// Copies the table into docs/performance.md
    #[arg(long)]
    write_docs: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    measure::exit_code(bench().await)
}

async fn bench() -> Result<()> {
    let args = Args::parse();
    // `cargo test --all-targets` starts benches too.
    if !args.bench {
        eprintln!("nothing is measured: run it with `cargo bench -p fairlead-tests --bench attach`");
        return Ok(());
    }
    let report =
        measure::on_a_cluster("attach", 1, Nri::default(), async |cluster, _| run(cluster).await).await?;
    println!("{}", report.conditions);
    for section in &report.sections {
        println!("{}", section.shown());
    }
    report.write(Path::new(RESULTS))?;
    if args.write_docs { page::fill(Path::new(page::PERFORMANCE), &report) } else { Ok(()) }
}

async fn run(cluster: &Cluster) -> Result<Report> {
    cluster.apply(NETWORK).await?;
    fairlead::wait_for_network(cluster, "bench", PATIENCE).await?;
    let idle = resident(cluster).await?;
    let mut rests = Rests::default();
    let rounds =
        [round(cluster, &mut rests, "single", 1).await?, round(cluster, &mut rests, "wave", WAVE).await?];
    let columns = ["one by one".to_owned(), format!("waves of {WAVE}")];
    let mut section = Section::new("attach", "An attachment on one node, IPv4 and IPv6", columns);
    section.percentiles(
        "sandbox seen to marker set",
        &rounds.each_ref().map(|round| &round.times),
        ["3 ms", "", "10 ms"],
    );
    add_counts(
        &mut section,
        "netlink requests per attachment",
        rounds.each_ref().map(|round| &round.netlink),
    );
    add_counts(&mut section, "API writes per pod life", rounds.each_ref().map(|round| &round.writes));
    let memory = [
        ("before", [idle, rounds[0].memory]),
        ("with 100 pods", rounds.each_ref().map(|round| round.memory)),
    ];
    for (when, of) in memory {
        section.row(&format!("agent resident {when}"), Unit::Mebibytes, of.map(|memory| memory.resident));
        section.row(
            &format!("of it not file-backed {when}"),
            Unit::Mebibytes,
            of.map(|memory| memory.anonymous),
        );
    }
    let conditions = measure::conditions(cluster, &format!("{PODS} pods in each column")).await?;
    let conditions = format!("{conditions} {}", rests.said());
    Ok(Report { bench: "attach".into(), conditions, sections: vec![section] })
}

struct Round {
    times: Times,
    netlink: BTreeMap<String, f64>,
    writes: BTreeMap<String, f64>,
    memory: Memory,
}

/// Starts 100 pods, so many at a time, and deletes them.
async fn round(cluster: &Cluster, rests: &mut Rests, prefix: &str, at_once: usize) -> Result<Round> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let mark = cluster.audit_mark()?;
    let earlier = measure::attach_times(cluster).await?.len();
    let before = measure::netlink(node).await?;
    let mut watch = PodWatch::start(cluster, NAMESPACE).await?;
    for wave in 0..PODS / at_once {
        let names: Vec<String> =
            (wave * at_once..(wave + 1) * at_once).map(|n| format!("{prefix}{n}")).collect();
        rests.take(1).await?;
        let begun = Instant::now();
        cluster.apply(&names.iter().map(|name| pod(name)).collect::<String>()).await?;
        watch.ready(&names, begun, PATIENCE).await?;
    }
    let after = measure::netlink(node).await?;
    let memory = resident(cluster).await?;
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
    Ok(Round { times, netlink: netlink.collect(), writes: writes.collect(), memory })
}

fn add_counts(section: &mut Section, what: &str, columns: [&BTreeMap<String, f64>; 2]) {
    let kinds: BTreeSet<&String> = columns.iter().flat_map(|column| column.keys()).collect();
    for kind in kinds {
        let cells = columns.map(|column| column.get(kind).copied().unwrap_or_default());
        section.row(&format!("{what}: {kind}"), Unit::Count, cells);
    }
}

/// Memory of the agent, of which there is one.
async fn resident(cluster: &Cluster) -> Result<Memory> {
    let pids = usage::pids(cluster, "fairlead-agent", "agent").await?;
    Memory::of(*pids.first().context("no agent")?)
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
