//! The agent's flags; each can also be given as an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// Attaches networks to the pods of one node.
#[derive(Debug, Clone, Parser)]
#[command(version, name = "fairlead-agent")]
pub struct Args {
    /// Name of the node.
    #[arg(long, env = "FAIRLEAD_NODE_NAME")]
    pub node_name: String,
    /// UID of the agent's own pod: the holder of its Lease.
    #[arg(long, env = "FAIRLEAD_AGENT_POD_UID")]
    pub agent_uid: String,
    /// Socket of the container runtime (CRI).
    #[arg(long, env = "FAIRLEAD_CRI_SOCKET", default_value = "/run/containerd/containerd.sock")]
    pub cri_socket: PathBuf,
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
    /// What to log, such as info or `fairlead_agent=debug`.
    #[arg(long, env = "FAIRLEAD_LOG", default_value = "info")]
    pub log: String,
    /// Log as JSON.
    #[arg(long, env = "FAIRLEAD_LOG_JSON")]
    pub log_json: bool,
}
