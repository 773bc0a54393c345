//! The audit of one node: what its kernel has, held against its records. Writes nothing.
//!
//! It runs beside the agent, in the agent's container; the controller's audit compares the objects with each other.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fairlead_crds::finding::{Finding, Lasting, Report};

pub use self::node::{Seen, World, audit};
use self::read::Reader;
use crate::args::Args;

mod node;
mod read;

/// Longest time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the audit of this node.
pub async fn run(args: &Args, report: &Report) -> ExitCode {
    report.print(check(args, report.settle).await).into()
}

async fn check(args: &Args, settle: Duration) -> Result<Vec<Finding>> {
    let reader = Reader::new(args).await.context("cannot begin")?;
    let mut lasting = Lasting::new(audit(&reader.world().await?), Instant::now());
    while let Some(rest) = lasting.rest(settle, Instant::now()) {
        tokio::time::sleep(rest.min(PAUSE)).await;
        lasting.look(&audit(&reader.world().await?));
    }
    Ok(lasting.into_findings())
}
