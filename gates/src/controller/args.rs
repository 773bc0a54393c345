//! Command line and environment of the controller.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Parser, Subcommand};
use fairlead_crds::finding::Report;
use fairlead_crds::names;

use super::startup::When;

/// Admits networks, signals exhausted addresses to the scheduler, and clears up after nodes that are gone.
#[derive(Debug, Clone, Parser)]
#[command(name = "fairlead-controller", version)]
pub struct Args {
    /// What to do instead of running the controller.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "FAIRLEAD_LISTEN", default_value = "0.0.0.0:9475")]
    pub listen: SocketAddr,
    /// Name in the leader election; unique per replica.
    #[arg(long, env = "POD_NAME", default_value_t = default_identity())]
    pub identity: String,
    /// Prefix of the taint of an exhausted network; the network's name follows.
    #[arg(long, env = "FAIRLEAD_TAINT_PREFIX", default_value = names::TAINT_PREFIX, value_parser = parse_prefix, global = true)]
    pub taint_prefix: String,
    /// When nodes whose agent cannot attach pods get a taint that keeps new pods away: while `hold: Auto` means that the
    /// container runtime holds pods, or always.
    #[arg(long, env = "FAIRLEAD_STARTUP_TAINT", value_enum, default_value = "auto")]
    pub startup_taint: When,
    /// Key of that taint, for autoscalers that expect another one.
    #[arg(long, env = "FAIRLEAD_STARTUP_TAINT_KEY", default_value = names::AGENT_NOT_READY_TAINT, value_parser = parse_key)]
    pub startup_taint_key: String,
    /// How long the Lease of a fenced node's agent must have been expired before its addresses are released, in seconds.
    #[arg(long, env = "FAIRLEAD_LOST_AFTER", default_value = "60", value_parser = parse_seconds)]
    pub lost_after: Duration,
    /// Log filter, such as `info` or `fairlead_gates=debug`.
    #[arg(long, env = "FAIRLEAD_LOG", default_value = "info")]
    pub log: String,
    /// Log one JSON object per line.
    #[arg(long, env = "FAIRLEAD_LOG_JSON", default_value_t = false, num_args = 0..=1, default_missing_value = "true")]
    pub log_json: bool,
}

/// What the controller's program does besides running the controller.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Reads everything that fairlead keeps in the API server and prints where two things disagree; writes nothing.
    Audit(Report),
}

fn default_identity() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    format!("{}-{}", host.unwrap_or_else(|| names::CONTROLLER.to_owned()), std::process::id())
}

/// A taint's key is `<DNS name>/<name>`; the name's part may begin in the prefix.
fn parse_prefix(text: &str) -> Result<String, String> {
    let dns = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    match text.split_once('/') {
        Some((domain, start))
            if !domain.is_empty()
                && domain.chars().all(dns)
                && start.len() <= 20
                && start.chars().all(dns) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("write a DNS name and a slash, such as ip-exhausted.fairlead.dev/".to_owned()),
    }
}

fn parse_key(text: &str) -> Result<String, String> {
    let name = text.split_once('/').map(|(_, name)| name);
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    match name {
        Some(name)
            if name.len() <= 63
                && name.starts_with(edge)
                && name.ends_with(edge)
                && name.chars().all(inner)
                && is_domain(text) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("write a DNS name, a slash and a name, such as fairlead.dev/agent-not-ready".to_owned()),
    }
}

fn is_domain(key: &str) -> bool {
    let dns = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    key.split_once('/').is_some_and(|(domain, _)| !domain.is_empty() && domain.chars().all(dns))
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: u64 = text.parse().map_err(|_| "write a number of seconds".to_owned())?;
    if (10..=86_400).contains(&seconds) {
        Ok(Duration::from_secs(seconds))
    } else {
        Err("write 10 to 86400 seconds".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["fairlead-controller"], args].concat())
    }

    #[test]
    fn the_defaults_are_those_of_the_manifests() {
        let args = parse(&[]).unwrap();
        assert_eq!((args.listen.port(), args.taint_prefix.as_str()), (9475, "ip-exhausted.fairlead.dev/"));
        assert_eq!(args.lost_after, Duration::from_secs(60));
        assert_eq!(
            (args.startup_taint, args.startup_taint_key.as_str()),
            (When::Auto, "fairlead.dev/agent-not-ready")
        );
    }

    #[test]
    fn an_audit_knows_the_prefix_of_taints_and_how_long_to_look() {
        let args =
            parse(&["audit", "--settle", "500ms", "--taint-prefix", "a.dev/x-", "-o", "json"]).unwrap();
        let Some(Command::Audit(audit)) = args.command else { panic!("no audit") };
        assert_eq!((audit.settle, args.taint_prefix.as_str()), (Duration::from_millis(500), "a.dev/x-"));
        assert!(parse(&["audit", "--settle", "3"]).is_err() && parse(&["audit", "--settle", "1h"]).is_err());
    }

    #[test]
    fn a_prefix_that_cannot_begin_a_taint_is_refused() {
        assert!(
            parse(&["--taint-prefix", "status-taint.cluster-autoscaler.kubernetes.io/fairlead-"]).is_ok()
        );
        for bad in ["ip-exhausted", "/x", "Upper.dev/", "a.dev/has space"] {
            assert!(parse(&["--taint-prefix", bad]).is_err(), "{bad}");
        }
        assert!(parse(&["--lost-after", "1"]).is_err());
        let key = "startup-taint.cluster-autoscaler.kubernetes.io/fairlead";
        assert!(parse(&["--startup-taint", "always", "--startup-taint-key", key]).is_ok());
        for bad in ["fairlead", "fairlead.dev/", "Upper.dev/x", "a.dev/-x", "a.dev/b c", "a.dev/b/c"] {
            assert!(parse(&["--startup-taint-key", bad]).is_err(), "{bad}");
        }
    }
}
