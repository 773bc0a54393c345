//! The fairlead agent.

use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use fairlead_agent::args::{Args, Command};
use fairlead_agent::{admin, audit, run};

/// Most threads that work on tasks: on a large node more would only cost memory.
const WORKERS: usize = 4;
/// Most threads that may block, for the kernel and for probes; what is more waits its turn.
const BLOCKING: usize = 64;

fn main() -> anyhow::Result<ExitCode> {
    let cores = available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(WORKERS))
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()?;
    runtime.block_on(start(Args::parse()))
}

async fn start(args: Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Some(Command::Started) => {
            admin::has_started(args.listen, &args.agent_uid).await.map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Audit(report)) => Ok(audit::run(&args, report).await),
        None => run::run(args).await.map(|()| ExitCode::SUCCESS),
    }
}
