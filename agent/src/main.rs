//! The fairlead agent.

use std::process::ExitCode;

use clap::Parser;
use fairlead_agent::args::{Args, Command};
use fairlead_agent::{admin, audit, run};

/// Most threads that may block, for the kernel and for probes; what is more waits its turn.
const BLOCKING: usize = 64;

fn main() -> anyhow::Result<ExitCode> {
    // One thread for all tasks: they are short, and handing them from one thread to the next costs more than they do.
    let runtime =
        tokio::runtime::Builder::new_current_thread().max_blocking_threads(BLOCKING).enable_all().build()?;
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
