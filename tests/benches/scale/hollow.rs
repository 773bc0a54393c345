//! Whole agents on nodes that are only in memory, with real pods at the API server.

mod node;
mod trial;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use fairlead_tests::Layout;
use fairlead_tests::progress::Progress;
use serde::Serialize;

use self::trial::Trial;
use crate::meter::{Count, Counts, Kind};
use crate::place::{Controller, Resident};
use crate::report::{self, Latency, Row, per};

/// By how much something may grow when there are twice as many nodes and pods.
const TOLERANCE: f64 = 1.2;
/// What a node writes as time goes by, however many pods it has: its Lease, and what it can promise.
const BY_TIME: [&str; 3] = ["leases", "nodenetworks", "nodenetworks/status"];
/// How often a node may do so in a second.
const MOST_BY_TIME: f64 = 1.2;
/// How often the controller may write about a node in a second: a promise changes once, a number shrinks in two steps.
const MOST_ABOUT_NODE: f64 = 2.0;

/// How many there are.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "hollow-nodes")]
pub struct Size {
    /// Nodes with a whole agent.
    #[arg(long, env = "FAIRLEAD_SCALE_HOLLOW", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    hollow: u32,
    /// Pods on all of them together.
    #[arg(long, env = "FAIRLEAD_SCALE_HOLLOW_PODS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..))]
    hollow_pods: u32,
}

/// What was measured with some number of nodes.
#[derive(Debug, Serialize)]
pub struct Outcome {
    nodes: u32,
    pods: u64,
    seconds_until_started: f64,
    attached: Latency,
    /// Of all agents together, until all were at work.
    start: Vec<Row>,
    attach: Phase,
    release: Phase,
    memory: Memory,
}

/// What happened to all pods.
#[derive(Debug, Serialize)]
struct Phase {
    seconds: f64,
    /// Of all agents together.
    requests: Vec<Row>,
    conflicts: u64,
    /// Without those that come with time.
    requests_per_pod: f64,
    /// Those that come with time.
    requests_per_node_and_second: f64,
    /// Without those that come with time.
    watch_bytes_per_node: f64,
    controller_writes: BTreeMap<String, u64>,
    controller_writes_per_node_and_second: f64,
}

/// Resident memory.
#[derive(Debug, Serialize)]
struct Memory {
    /// Known of the first trial of a process only: later ones use what the first gave back.
    agent: Option<AgentMemory>,
    api_server: Resident,
    etcd: Resident,
    controller: Resident,
}

/// By how much this process grew for each agent, its kernel and runtime in memory included, in KiB.
#[derive(Clone, Copy, Debug, Serialize)]
struct AgentMemory {
    idle: f64,
    attached: f64,
}

/// Measures all nodes, then half as many, prints both side by side, and fails if a pod costs more among more nodes.
pub async fn run(
    layout: Layout,
    size: &Size,
    controller: &Controller,
    progress: &Progress,
) -> Result<[Outcome; 2]> {
    let pods = size.hollow_pods.div_ceil(size.hollow);
    let full = Trial::run(layout, size.hollow, pods, controller, progress).await?;
    print(&full);
    let mut half = Trial::run(layout, size.hollow.div_ceil(2), pods, controller, progress).await?;
    half.memory.agent = None;
    print(&half);
    compare(&half, &full)?;
    Ok([half, full])
}

impl Phase {
    fn new(
        counts: &Counts,
        (nodes, pods): (u32, u64),
        (seconds, watched): (f64, f64),
        controller_writes: BTreeMap<String, u64>,
    ) -> Self {
        let by_time = |resource: &str| BY_TIME.contains(&resource);
        let sum = |timed: bool, of: fn(&Count) -> u64, verbs: fn(&str) -> bool| -> u64 {
            let wanted = |kind: &&Kind| by_time(&kind.resource) == timed && verbs(kind.verb);
            counts.iter().filter(|(kind, _)| wanted(kind)).map(|(_, count)| of(count)).sum()
        };
        let each_second = |count: u64| per(count, nodes.into()) / watched;
        let written =
            controller_writes.iter().filter(|(kind, _)| !kind.ends_with("Lease")).map(|(_, count)| count);
        Self {
            seconds,
            requests: report::rows(counts, pods, None),
            conflicts: counts.values().map(|count| count.conflicts).sum(),
            requests_per_pod: per(sum(false, |count| count.requests, |_| true), pods),
            requests_per_node_and_second: each_second(sum(true, |count| count.requests, |_| true)),
            watch_bytes_per_node: per(sum(false, |count| count.bytes, |verb| verb == "watch"), nodes.into()),
            controller_writes_per_node_and_second: each_second(written.sum()),
            controller_writes,
        }
    }
}

fn print(outcome: &Outcome) {
    println!("{} hollow nodes, {} pods, while the agents started:", outcome.nodes, outcome.pods);
    println!("{}", report::requests(&outcome.start));
    for (what, phase) in [("attached", &outcome.attach), ("released", &outcome.release)] {
        println!("while they {what} the pods:\n{}", report::requests(&phase.requests));
        println!("writes of the controller: {}", report::writes(&phase.controller_writes));
    }
}

/// A figure of a phase, and whether it must not grow with the number of nodes or must not exceed a number.
type Figure = (&'static str, fn(&Phase) -> f64, Limit);

#[derive(Clone, Copy)]
enum Limit {
    NoGrowth,
    Most(f64),
}

const FIGURES: [Figure; 4] = [
    ("requests per pod", |phase| phase.requests_per_pod, Limit::NoGrowth),
    ("watch bytes per node", |phase| phase.watch_bytes_per_node, Limit::NoGrowth),
    ("requests per node and second", |phase| phase.requests_per_node_and_second, Limit::Most(MOST_BY_TIME)),
    (
        "writes of the controller per node and second",
        |phase| phase.controller_writes_per_node_and_second,
        Limit::Most(MOST_ABOUT_NODE),
    ),
];

/// Prints two sizes side by side.
///
/// # Errors
/// If a pod costs more, or a node hears more, among more nodes.
fn compare(half: &Outcome, full: &Outcome) -> Result<()> {
    let nodes = [half, full].map(|outcome| format!("{} nodes", outcome.nodes));
    let mut table = report::table(&["what", &nodes[0], &nodes[1]]);
    let mut add = |what: &str, of: &dyn Fn(&Outcome) -> String| {
        let [one, two] = [half, full].map(of);
        table.add_row([what.to_owned(), one, two]);
    };
    let known =
        |memory: Option<f64>| memory.map_or_else(|| "not known".to_owned(), |kib| format!("{kib:.0} KiB"));
    add("pods", &|outcome| outcome.pods.to_string());
    add("until all agents have started", &|outcome| format!("{:.1} s", outcome.seconds_until_started));
    add("until all pods are attached", &|outcome| format!("{:.1} s", outcome.attach.seconds));
    add("until all pods are released", &|outcome| format!("{:.1} s", outcome.release.seconds));
    add("from sandbox to attached", &|outcome| outcome.attached.to_string());
    add("conflicts", &|outcome| (outcome.attach.conflicts + outcome.release.conflicts).to_string());
    for (what, of, _) in FIGURES {
        add(&format!("attach: {what}"), &|outcome| format!("{:.2}", of(&outcome.attach)));
        add(&format!("release: {what}"), &|outcome| format!("{:.2}", of(&outcome.release)));
    }
    add("an agent, idle", &|outcome| known(outcome.memory.agent.map(|agent| agent.idle)));
    add("an agent, all attached", &|outcome| known(outcome.memory.agent.map(|agent| agent.attached)));
    add("kube-apiserver, resident", &|outcome| outcome.memory.api_server.to_string());
    add("etcd, resident", &|outcome| outcome.memory.etcd.to_string());
    add("controller, resident", &|outcome| outcome.memory.controller.to_string());
    println!("{table}");
    for (what, of, limit) in FIGURES {
        for (phase, one, two) in
            [("attach", &half.attach, &full.attach), ("release", &half.release, &full.release)]
        {
            let (one, two) = (of(one), of(two));
            let most = match limit {
                Limit::NoGrowth => one * TOLERANCE,
                Limit::Most(most) => most,
            };
            ensure!(
                two <= most,
                "{phase}: too many {what}: {two:.2} with {} nodes, {one:.2} with {}",
                full.nodes,
                half.nodes
            );
        }
    }
    println!("Twice as many nodes and pods: no pod costs more, no node hears more.");
    Ok(())
}
