//! `fairlead-controller`: the central, leader-elected part of fairlead.

use std::process::ExitCode;

use clap::Parser;
use fairlead_gates::audit;
use fairlead_gates::controller::{self, Args, Command};

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match &args.command {
        Some(Command::Audit(report)) => Ok(runtime.block_on(audit::run(report, &args.taint_prefix))),
        None => runtime.block_on(controller::run(args)).map(|()| ExitCode::SUCCESS),
    }
}
