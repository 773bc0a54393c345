//! What fairlead costs an API server as clusters grow: requests, conflicts, bytes, time and memory.
//!
//! ```text
//!  claims   thousands of agents' addresses and records, a bounded number of agents at a time
//!  hollow   whole agents with a kernel and a runtime in memory, then half as many: what a pod costs must not depend
//!           on how many nodes there are
//! ```
//! Each part has an API server and an etcd of its own, with the manifests and a controller, and no Kubernetes
//! controllers and nodes: what is counted is fairlead's.

#![expect(clippy::print_stdout, reason = "printing is what a bench is for")]

mod claims;
mod hollow;
mod meter;
mod place;
mod report;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use fairlead_tests::progress::Progress;
use fairlead_tests::{Cluster, Layout};
use serde_json::{Map, Value, json};

/// Measures fairlead against a real API server.
#[derive(Parser)]
struct Args {
    /// What to do instead of measuring.
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    claims: claims::Size,
    #[command(flatten)]
    hollow: hollow::Size,
    #[command(flatten)]
    controller: place::Controller,
    /// Which parts to run.
    #[arg(
        long,
        env = "FAIRLEAD_SCALE_PARTS",
        value_enum,
        value_delimiter = ',',
        default_value = "hollow,claims"
    )]
    parts: Vec<Part>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// Whole agents on hollow nodes.
    Hollow,
    /// Blocks and records of many agents.
    Claims,
}

#[derive(Subcommand)]
enum Command {
    /// Be the controller, in a process of its own.
    Controller(Box<fairlead_gates::controller::Args>),
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Command::Controller(args)) = args.command {
        return fairlead_gates::controller::run(*args).await;
    }
    fairlead_agent::telemetry::start(&args.controller.log, false)?;
    let layout = Layout::TESTS.or_from_env()?;
    let outcome = tokio::select! {
        outcome = measure(layout, &args) => outcome,
        interrupted = tokio::signal::ctrl_c() => interrupted.context("waiting for an interrupt").and_then(|()| bail!("interrupted")),
    };
    let ended = Cluster::down(layout).await;
    outcome.and(ended)
}

async fn measure(layout: Layout, args: &Args) -> Result<()> {
    let (progress, mut results) = (Progress::auto(), Map::new());
    for part in &args.parts {
        let (name, result) = match part {
            Part::Hollow => {
                ("hollow", json!(hollow::run(layout, &args.hollow, &args.controller, &progress).await?))
            }
            Part::Claims => {
                ("claims", json!(claims::run(layout, &args.claims, &args.controller, &progress).await?))
            }
        };
        results.insert(name.to_owned(), result);
    }
    let file = report::write(&Value::Object(results))?;
    println!("written to {}", file.display());
    Ok(())
}
