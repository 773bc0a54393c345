//! The sub-command `audit`: what it prints, and with which code it exits.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use fairlead_crds::Finding;
use fairlead_crds::finding;
use kube::Client;

use crate::controller::api::config;

/// Something could not be read; a wrong flag ends with the same code.
const UNREAD: u8 = 2;

/// Reads everything and prints where two things disagree: exit code 0 if nothing does, 1 if something does, 2 if it could not be read.
#[derive(Debug, Clone, Parser)]
pub struct Args {
    /// How long a disagreement must last to count, such as 3s: what is under way disagrees for a moment. Some kinds may
    /// last up to 40 s and are waited for.
    #[arg(long, default_value = "3s", value_parser = parse_settle)]
    pub settle: Duration,
    /// How to print what was found.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How findings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// An array of objects with `code`, `object`, `subject` and `message`.
    Json,
}

fn parse_settle(text: &str) -> Result<Duration, String> {
    let settle: fairlead_crds::duration::Duration = text.parse().map_err(|error| format!("{error}"))?;
    if settle.0 > Duration::from_secs(600) { Err("write at most 600s".to_owned()) } else { Ok(settle.0) }
}

/// Runs the check from the pod's service account or a kubeconfig.
pub async fn run(args: &Args, taint_prefix: &str) -> ExitCode {
    let outcome = async {
        let client = Client::try_from(config().await.context("find the API server")?)?;
        anyhow::Ok(super::check(&client, taint_prefix, args.settle).await?)
    };
    let printed = match outcome.await {
        Ok(findings) => {
            print(&findings, args.output).map(|()| ExitCode::from(u8::from(!findings.is_empty())))
        }
        Err(error) => writeln!(io::stderr(), "{error:#}").map(|()| ExitCode::from(UNREAD)),
    };
    printed.unwrap_or(ExitCode::from(UNREAD))
}

fn print(findings: &[Finding], output: Output) -> io::Result<()> {
    let page = match output {
        Output::Table => finding::text(findings),
        Output::Json => serde_json::to_string_pretty(findings)? + "\n",
    };
    io::stdout().write_all(page.as_bytes())
}
