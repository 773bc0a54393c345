//! The agent's flags; each can also be given as an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, Subcommand};
use fairlead_crds::finding::Report;

/// Attaches networks to the pods of one node.
#[derive(Debug, Clone, Parser)]
#[command(version, name = "fairlead-agent")]
pub struct Args {
    /// What to do instead of running the agent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Name of the node.
    #[arg(long, env = "FAIRLEAD_NODE_NAME")]
    pub node_name: String,
    /// UID of the agent's own pod: the holder of its Lease.
    #[arg(long, env = "FAIRLEAD_AGENT_POD_UID")]
    pub agent_uid: String,
    /// Socket of the container runtime (CRI).
    #[arg(long, env = "FAIRLEAD_CRI_SOCKET", default_value = "/run/containerd/containerd.sock")]
    pub cri_socket: PathBuf,
    /// Socket of the container runtime for its plugins (NRI). Without it pods are held by their gate only.
    #[arg(long, env = "FAIRLEAD_NRI_SOCKET", default_value = fairlead_nri::DEFAULT_SOCKET)]
    pub nri_socket: PathBuf,
    /// File in which the node's guard reports what the runtime can do.
    #[arg(long, env = "FAIRLEAD_GUARD_REPORT", default_value = "/run/fairlead/guard")]
    pub guard_report: PathBuf,
    /// Where the host's `/proc/sys/net` is mounted: a container's own is read-only.
    #[arg(long, env = "FAIRLEAD_SYSCTL_ROOT", default_value = "/proc/sys/net")]
    pub sysctl_root: PathBuf,
    /// Devices of the node that Networks may use as uplink or parent: globs such as eth1 or ens5f*. Repeatable; none by default.
    #[arg(long, env = "FAIRLEAD_DEVICES", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "FAIRLEAD_LISTEN", default_value = "127.0.0.1:9474")]
    pub listen: SocketAddr,
    /// Pods worked on side by side.
    #[arg(long, env = "FAIRLEAD_PARALLEL", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,
    /// Test knob: pods whose names begin so are attached that many seconds late, such as `slow-=5`.
    #[arg(long, env = "FAIRLEAD_TEST_SLOW_ATTACH", hide = true)]
    pub test_slow_attach: Option<SlowAttach>,
    /// Set by an agent that hands over for the time after: it leaves the node to its successor first.
    #[arg(long, env = "FAIRLEAD_STAND_BY", hide = true)]
    pub stand_by: bool,
    /// What to log, such as info or `fairlead_agent=debug`.
    #[arg(long, env = "FAIRLEAD_LOG", default_value = "info")]
    pub log: String,
    /// Log as JSON.
    #[arg(long, env = "FAIRLEAD_LOG_JSON")]
    pub log_json: bool,
}

/// What the agent's program does besides running the agent.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Says whether the agent of this pod is the one at work on this node, and has started. Flags of the agent come before it.
    Started,
    /// Prints where the kernel of this node and its records disagree; writes nothing. Flags of the agent come before it.
    Audit(Report),
}

/// Which pods a test wants attached late, as if the kernel were slow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowAttach {
    prefix: String,
    delay: Duration,
}

impl SlowAttach {
    /// How long the attach of a pod of that name has to take longer.
    pub fn delay(&self, pod: &str) -> Duration {
        if pod.starts_with(&self.prefix) { self.delay } else { Duration::ZERO }
    }
}

impl FromStr for SlowAttach {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (prefix, seconds) =
            text.split_once('=').ok_or("expected the beginning of a name, =, and seconds")?;
        let seconds = seconds.parse().map_err(|_| "expected whole seconds after =")?;
        Ok(Self { prefix: prefix.to_owned(), delay: Duration::from_secs(seconds) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_knob_names_pods_and_seconds() {
        let slow: SlowAttach = "slow-=5".parse().unwrap();
        assert_eq!((slow.delay("slow-1").as_secs(), slow.delay("quick").as_secs()), (5, 0));
        assert!("slow".parse::<SlowAttach>().is_err() && "slow=x".parse::<SlowAttach>().is_err());
    }
}
