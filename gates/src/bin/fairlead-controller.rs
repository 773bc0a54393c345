//! `fairlead-controller`: the central, leader-elected part of fairlead.

use clap::Parser;
use fairlead_gates::controller::{self, Args};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(controller::run(args))
}
