//! What the start of a pod costs with a network, and without: side by side on one cluster of two nodes.
//!
//! ```text
//! cargo bench -p fairlead-tests --bench start [-- --write-docs]
//! ```
//! Prints tables and writes them to `target/bench/start.json`, with `--write-docs` to `docs/performance.md` too; asserts
//! nothing, since the machine is shared with the cluster itself.

#![expect(clippy::print_stdout, reason = "printing is what a bench is for")]

mod attach;
mod bench;
mod cost;
mod hotplug;
mod many;
mod memory;
mod sequential;

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use fairlead_tests::{
    Cluster,
    measure::{self, Report, Section, page},
    node::Nri,
    progress::Progress,
};

use crate::{bench::Bench, many::Crowd};

const NAME: &str = "start";
const NODES: u8 = 2;
const RESULTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../bench");

const ROLLOUT: Crowd =
    Crowd { name: "rollout", title: "100 pods at once on two nodes", pods: 100, nodes: 2, rounds: 1 };

const fn burst(rounds: u32) -> Crowd {
    Crowd { name: "burst", title: "30 pods at once on one node", pods: 30, nodes: 1, rounds }
}

/// Measures what the start of a pod costs with a network, and without.
#[derive(Parser)]
struct Args {
    /// Starts of each kind one after the other, and networks plugged into a running pod
    #[arg(long, env = "FAIRLEAD_BENCH_ROUNDS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bursts of each kind
    #[arg(long, env = "FAIRLEAD_BENCH_BURSTS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    bursts: u32,
    /// Only these parts of the bench
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    only: Vec<Part>,
    /// Copies the tables into docs/performance.md, and draws its charts
    #[arg(long)]
    write_docs: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pods one by one
    Sequential,
    /// 30 pods at once
    Burst,
    /// A network for a running pod
    Hotplug,
    /// 100 pods on two nodes, processor time and API requests
    Rollout,
    /// A node full of pods
    Memory,
    /// The agent's own part of a start
    Attach,
}

impl Part {
    /// In the order of the run.
    const ALL: [Self; 6] =
        [Self::Sequential, Self::Burst, Self::Hotplug, Self::Rollout, Self::Memory, Self::Attach];
}

#[tokio::main]
async fn main() -> ExitCode {
    measure::exit_code(bench().await)
}

async fn bench() -> Result<()> {
    let args = Args::parse();
    // `cargo test --all-targets` starts benches too.
    if !args.bench {
        eprintln!("nothing is measured: run it with `cargo bench -p fairlead-tests --bench {NAME}`");
        return Ok(());
    }
    let report = measure::on_a_cluster(NAME, NODES, Nri::Strict, async |cluster, progress| {
        run(cluster, progress, &args).await
    })
    .await?;
    report.write(Path::new(RESULTS))?;
    if args.write_docs { page::fill(Path::new(page::PERFORMANCE), &report) } else { Ok(()) }
}

async fn run(cluster: &Cluster, progress: &Progress, args: &Args) -> Result<Report> {
    let how_often = format!("{} rounds one by one, {} bursts", args.rounds, args.bursts);
    let conditions = measure::conditions(cluster, &how_often).await?;
    println!("{conditions}");
    let mut bench = Bench::prepare(cluster, progress).await?;
    let idle = memory::read(cluster).await?;
    let mut sections = Vec::new();
    for part in Part::ALL.into_iter().filter(|part| args.only.contains(part)) {
        for section in measured(part, &mut bench, args, &idle).await? {
            // At once: a later failure does not take it away.
            println!("{}", section.shown());
            sections.push(section);
        }
    }
    let rests = bench.rests.said();
    println!("{rests}");
    Ok(Report { bench: NAME.into(), conditions: format!("{conditions} {rests}"), sections })
}

async fn measured(
    part: Part,
    bench: &mut Bench<'_>,
    args: &Args,
    idle: &memory::Reading,
) -> Result<Vec<Section>> {
    match part {
        Part::Sequential => Ok(vec![sequential::run(bench, args.rounds).await?]),
        Part::Burst => {
            let found = burst(args.bursts).run(bench).await?;
            Ok(vec![found.section("nri at most 1.10 ×"), found.cpu_of_starts()])
        }
        Part::Hotplug => Ok(vec![hotplug::run(bench, args.rounds).await?]),
        Part::Rollout => {
            let found = ROLLOUT.run(bench).await?;
            Ok(vec![found.section(""), found.cpu(), found.requests()])
        }
        Part::Memory => Ok(vec![memory::run(bench, idle).await?]),
        Part::Attach => Ok(vec![attach::run(bench).await?]),
    }
}
