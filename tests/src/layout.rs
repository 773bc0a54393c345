//! Where the cluster lives on this machine: paths, addresses and names.
//!
//! Everything is derived from constants, so that a tear-down finds what a killed process left behind
//! without any file of it. One cluster per machine.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

/// Holds all state of the cluster. Short, because unix socket paths end at 107 bytes.
pub const STATE_DIR: &str = "/var/lib/fairlead-cluster";
/// Top cgroup of everything that was started.
pub const CGROUP: &str = "fairlead-cluster";
/// Bridge of the nodes' primary interface `eth0`.
pub const PRIMARY_BRIDGE: &str = "flc0";
/// Bridge of the nodes' second interface `eth1`; nothing on it has an address.
pub const UPLINK_BRIDGE: &str = "flc1";
/// The second interface of each node, the uplink for Networks.
pub const UPLINK: &str = "eth1";
/// Address of the API server, on the primary bridge.
pub const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
/// Port of the API server.
pub const API_PORT: u16 = 6443;
/// Range of cluster IPs.
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// Cluster IP of the service `default/kubernetes`.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Range of the pods' primary addresses.
pub const POD_CIDR: &str = "10.244.0.0/16";
/// Most nodes one cluster can have: each is a full kubelet on this machine.
pub const MAX_NODES: u8 = 9;

/// Prefix of the nodes' network namespaces.
const NETNS_PREFIX: &str = "flc-";

/// `node1`, `node2`, …
pub fn node_name(index: u8) -> String {
    format!("node{index}")
}

/// Address of `eth0` of a node.
pub fn node_address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 30, 0, 10 + index)
}

/// The pods' primary range on a node.
pub fn pod_cidr(index: u8) -> String {
    format!("10.244.{index}.0/24")
}

/// Name of a node's network namespace under `/run/netns`.
pub fn netns_name(index: u8) -> String {
    format!("{NETNS_PREFIX}{}", node_name(index))
}

/// Whether a name under `/run/netns` is one of ours.
pub fn is_our_netns(name: &str) -> bool {
    name.starts_with(NETNS_PREFIX)
}

/// The root side of a node's veth to `bridge`.
pub fn host_port(bridge: &str, index: u8) -> String {
    format!("{bridge}-{index}")
}

/// The folders of one cluster.
#[derive(Clone, Debug)]
pub struct Paths {
    root: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self { root: STATE_DIR.into() }
    }
}

impl Paths {
    /// The state folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Logs, one file per process. Survives `down`, replaced by the next `up`.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// Data of etcd.
    pub fn etcd(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// What another process needs to attach.
    pub fn state(&self) -> PathBuf {
        self.root.join("state.json")
    }

    /// Audit log of the API server, one JSON event per line.
    pub fn audit_log(&self) -> PathBuf {
        self.logs().join("audit.log")
    }

    /// Taken while a cluster is started or ended.
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// One file per recorded process.
    pub fn pids(&self) -> PathBuf {
        self.root.join("pids")
    }

    /// Folder of one node.
    pub fn node(&self, index: u8) -> PathBuf {
        self.root.join(node_name(index))
    }
}
