//! The fairlead agent.

use clap::Parser;
use fairlead_agent::args::Args;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    fairlead_agent::run::run(Args::parse()).await
}
