//! What an attachment costs on a real node: time, netlink messages, writes to the API server, memory.
//!
//! 100 pods one after the other on a node that does nothing else, of each way to hold them, then 100 in waves of 10. Prints
//! a table and writes it to `target/bench/attach.json`; asserts nothing, since the machine is shared with the cluster itself.

#![expect(clippy::print_stdout, reason = "printing is what a bench is for")]

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fairlead_crds::names;
use fairlead_tests::{
    Cluster, fairlead,
    measure::{
        self, PodWatch, Report, Rests, Section, Times, Unit, page,
        usage::{self, Memory},
    },
    node::Nri,
    wait,
};
use serde_json::json;

const PODS: usize = 100;
const NAMESPACE: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(180);
const RESULTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../bench");

/// How pods are started: what the tables call it, the Network, and how many pods at a time.
const KINDS: [(&str, &str, usize); 3] =
    [("gate, one by one", "gate", 1), ("nri, one by one", "nri", 1), ("nri, waves of 10", "nri", 10)];

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
        measure::on_a_cluster("attach", 1, Nri::Strict, async |cluster, _| run(cluster).await).await?;
    println!("{}", report.conditions);
    for section in &report.sections {
        println!("{}", section.shown());
    }
    report.write(Path::new(RESULTS))?;
    if args.write_docs { page::fill(Path::new(page::PERFORMANCE), &report) } else { Ok(()) }
}

async fn run(cluster: &Cluster) -> Result<Report> {
    cluster.apply(&networks()).await?;
    for (_, network, _) in KINDS {
        fairlead::wait_for_network(cluster, network, PATIENCE).await?;
    }
    prepare(cluster).await?;
    let idle = resident(cluster).await?;
    let mut rests = Rests::default();
    let mut rounds = vec![];
    for (number, (_, network, at_once)) in KINDS.into_iter().enumerate() {
        let names: Vec<String> = (0..PODS).map(|pod| format!("round{number}-{pod}")).collect();
        rounds.push(round(cluster, &mut rests, network, &names, at_once).await?);
    }
    let columns = KINDS.map(|(name, ..)| name);
    let mut section = Section::new("attach", "An attachment on one node, IPv4 and IPv6", columns);
    section.percentiles(
        "sandbox seen to marker set",
        &rounds.iter().map(|round| &round.times).collect::<Vec<_>>(),
        ["3 ms", "", "10 ms"],
    );
    add_counts(&mut section, "netlink requests per attachment", &rounds, |round| &round.netlink);
    add_counts(&mut section, "API writes per pod life", &rounds, |round| &round.writes);
    let memory: Vec<Memory> = iter::once(idle).chain(rounds.iter().map(|round| round.memory)).collect();
    add_memory(&mut section, "before", &memory[..rounds.len()]);
    add_memory(&mut section, "with 100 pods", &memory[1..]);
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

/// Starts the pods, so many at a time, and deletes them.
async fn round(
    cluster: &Cluster,
    rests: &mut Rests,
    network: &str,
    names: &[String],
    at_once: usize,
) -> Result<Round> {
    let node = cluster.nodes().first().context("the cluster has no node")?;
    let mark = cluster.audit_mark()?;
    let earlier = measure::attach_times(cluster).await?.len();
    let before = measure::netlink(node).await?;
    let mut watch = PodWatch::start(cluster, NAMESPACE).await?;
    for wave in names.chunks(at_once) {
        rests.take(1).await?;
        let begun = Instant::now();
        cluster.apply(&wave.iter().map(|name| pod(name, network)).collect::<String>()).await?;
        watch.ready(wave, begun, PATIENCE).await?;
    }
    let after = measure::netlink(node).await?;
    let memory = resident(cluster).await?;
    let times: Times = measure::attach_times(cluster).await?.into_iter().skip(earlier).collect();
    ensure!(times.len() >= PODS, "the agent logged {} attachments of {PODS}", times.len());
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

fn add_counts(
    section: &mut Section,
    what: &str,
    rounds: &[Round],
    counts: fn(&Round) -> &BTreeMap<String, f64>,
) {
    let kinds: BTreeSet<&String> = rounds.iter().flat_map(|round| counts(round).keys()).collect();
    for kind in kinds {
        let cells = rounds.iter().map(|round| counts(round).get(kind).copied().unwrap_or_default());
        section.row(&format!("{what}: {kind}"), Unit::Count, cells);
    }
}

fn add_memory(section: &mut Section, when: &str, columns: &[Memory]) {
    let resident = columns.iter().map(|memory| memory.resident);
    section.row(&format!("agent resident {when}"), Unit::Mebibytes, resident);
    let anonymous = columns.iter().map(|memory| memory.anonymous);
    section.row(&format!("of it not file-backed {when}"), Unit::Mebibytes, anonymous);
}

/// Memory of the agent, of which there is one.
async fn resident(cluster: &Cluster) -> Result<Memory> {
    let pids = usage::pids(cluster, "fairlead-agent", "agent").await?;
    Memory::of(*pids.first().context("no agent")?)
}

/// Starts a pod, and waits until the node can hold others in every way: with the first the guard learns what the runtime
/// does without it.
async fn prepare(cluster: &Cluster) -> Result<()> {
    cluster.apply(&pod("first", "gate")).await?;
    let label = format!("{{.items[0].metadata.labels['{}']}}", names::HOLD_LABEL.replace('.', "\\."));
    let label = format!("-ojsonpath={label}");
    wait::until(PATIENCE, "the node to hold pods by the runtime", || async {
        let hold = cluster.kubectl(&["get", "nodes", &label]).await?;
        ensure!(hold == names::HOLD_NRI_STRICT, "it says {hold:?}");
        Ok(())
    })
    .await?;
    cluster.kubectl(&["delete", "pod", "first", "-n", NAMESPACE]).await?;
    Ok(())
}

/// One Network for each way to hold pods.
fn networks() -> String {
    let network = |name: &str, ranges: [&str; 2], hold: &str| {
        json!({
            "apiVersion": format!("{}/{}", names::GROUP, names::API_VERSION),
            "kind": "Network",
            "metadata": { "name": name },
            "spec": {
                "bridge": { "name": format!("br-{name}"), "uplink": { "none": {} } },
                "ipam": { "ranges": ranges.map(|cidr| json!({ "cidr": cidr })), "quarantine": "5s" },
                "allowedNamespaces": { "from": "All" },
                "hold": hold,
            },
        })
    };
    let items = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        network("gate", ["10.90.0.0/20", "fd00:90::/64"], "Gate"),
        network("nri", ["10.91.0.0/20", "fd00:91::/64"], "Nri"),
    ];
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

fn pod(name: &str, network: &str) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {NAMESPACE}, annotations: {{fairlead.dev/networks: {network}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: main, image: "busybox:stable", imagePullPolicy: Never, command: [sleep, "100000"]}}
"#
    )
}
