//! Logs: text for people or JSON for machines, on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. `filter` is a directive such as `info` or `fairlead_agent=debug`.
///
/// # Errors
/// If the filter cannot be read, or logging was started already.
pub fn start(filter: &str, json: bool) -> anyhow::Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = if json { builder.json().try_init() } else { builder.try_init() };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
