//! The command line that both audits share: how long to look, how to print, and with which code to end.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Finding, text};

/// Something could not be read; a wrong flag ends with the same code.
const UNREAD: u8 = 2;
/// Longest time that can be asked for.
const LONGEST: Duration = Duration::from_secs(600);

/// Exit code 0 if nothing disagrees, 1 if something does, 2 if it could not be read.
#[derive(Debug, Clone, Args)]
pub struct Report {
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
    let settle: crate::duration::Duration = text.parse().map_err(|error| format!("{error}"))?;
    if settle.0 > LONGEST { Err("write at most 600s".to_owned()) } else { Ok(settle.0) }
}

impl Report {
    /// Prints what was found, or why nothing could be; gives the exit code.
    pub fn print<E: Display>(&self, outcome: Result<Vec<Finding>, E>) -> u8 {
        let printed = match outcome {
            Ok(findings) => self.page(&findings).and_then(|page| {
                io::stdout().write_all(page.as_bytes())?;
                Ok(u8::from(!findings.is_empty()))
            }),
            Err(error) => writeln!(io::stderr(), "{error:#}").map(|()| UNREAD),
        };
        printed.unwrap_or(UNREAD)
    }

    fn page(&self, findings: &[Finding]) -> io::Result<String> {
        match self.output {
            Output::Table => Ok(text(findings)),
            Output::Json => Ok(serde_json::to_string_pretty(findings)? + "\n"),
        }
    }
}
