//! The fairlead agent.

use std::process::ExitCode;

use clap::Parser;
use fairlead_agent::args::{Args, Command};
use fairlead_agent::{audit, run};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    match &args.command {
        Some(Command::Audit(report)) => Ok(audit::run(&args, report).await),
        None => run::run(args).await.map(|()| ExitCode::SUCCESS),
    }
}
