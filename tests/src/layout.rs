//! Where a cluster lives on this machine: paths, addresses and names.
//!
//! Everything is derived from the number of the instance, so that a tear-down finds what a killed process
//! left behind without any file of it.

use std::{env, fs, net::Ipv4Addr, path::PathBuf};

use anyhow::{Context, Result, ensure};

/// The second interface of each node, the uplink for Networks.
pub const UPLINK: &str = "eth1";
/// Port of the API server.
pub const API_PORT: u16 = 6443;
/// Range of cluster IPs.
pub const SERVICE_CIDR: &str = "10.96.0.0/16";
/// Cluster IP of the service `default/kubernetes`.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Most nodes one cluster can have: each is a full kubelet on this machine.
pub const MAX_NODES: u8 = 9;
/// Names the instance, 0 to 9.
pub const INSTANCE_VARIABLE: &str = "FAIRLEAD_CLUSTER";

/// One of the clusters that this machine can have side by side: 0 is the demo's, 1 the tests'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    instance: u8,
}

impl Layout {
    /// The cluster of `cargo demo`.
    pub const DEMO: Self = Self { instance: 0 };
    /// The cluster of the end-to-end tests.
    pub const TESTS: Self = Self { instance: 1 };

    /// The instance that the environment names, else `self`.
    ///
    /// # Errors
    /// When the variable is set to something else than a digit.
    pub fn or_from_env(self) -> Result<Self> {
        let Ok(text) = env::var(INSTANCE_VARIABLE) else {
            return Ok(self);
        };
        let number = text.parse().ok().filter(|number| *number <= 9);
        let instance = number.with_context(|| format!("{INSTANCE_VARIABLE}={text} is not a digit"))?;
        Ok(Self { instance })
    }

    /// All other clusters that this machine can have.
    pub fn others(self) -> Vec<Self> {
        (0..=9).map(|instance| Self { instance }).filter(|other| *other != self).collect()
    }

    fn suffix(self) -> String {
        if self.instance == 0 { String::new() } else { self.instance.to_string() }
    }

    /// Folder of all state. Short, because unix socket paths end at 107 bytes.
    pub fn root(self) -> PathBuf {
        format!("/var/lib/fairlead-cluster{}", self.suffix()).into()
    }

    /// Logs, one file per process. Survives `down`, replaced by the next `up`.
    pub fn logs(self) -> PathBuf {
        self.root().join("logs")
    }

    /// Certificates and keys.
    pub fn pki(self) -> PathBuf {
        self.root().join("pki")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(self) -> PathBuf {
        self.root().join("kubeconfig")
    }

    /// Data of etcd.
    pub fn etcd(self) -> PathBuf {
        self.root().join("etcd")
    }

    /// What another process needs to attach.
    pub fn state(self) -> PathBuf {
        self.root().join("state.json")
    }

    /// Audit log of the API server, one JSON event per line.
    pub fn audit_log(self) -> PathBuf {
        self.logs().join("audit.log")
    }

    /// Taken while a cluster is started or ended.
    pub fn lock(self) -> PathBuf {
        self.root().join("lock")
    }

    /// One file per recorded process.
    pub fn pids(self) -> PathBuf {
        self.root().join("pids")
    }

    /// Lists the folders that were made on the machine as mount points of nodes.
    pub fn mount_points(self) -> PathBuf {
        self.root().join("mount-points")
    }

    /// Folder of one node.
    pub fn node(self, index: u8) -> PathBuf {
        self.root().join(node_name(index))
    }

    /// Top cgroup of everything that was started, relative to a hierarchy.
    pub fn cgroup(self) -> String {
        format!("fairlead-cluster{}", self.suffix())
    }

    /// Bridge of the nodes' primary interface `eth0`.
    pub fn primary_bridge(self) -> String {
        format!("flc{}0", self.suffix())
    }

    /// Bridge of the nodes' second interface; nothing on it has an address.
    pub fn uplink_bridge(self) -> String {
        format!("flc{}1", self.suffix())
    }

    /// The root side of a node's veth to `bridge`.
    pub fn host_port(bridge: &str, index: u8) -> String {
        format!("{bridge}-{index}")
    }

    /// Name of a node's network namespace under `/run/netns`.
    pub fn netns(self, index: u8) -> String {
        format!("flc{}-{}", self.suffix(), node_name(index))
    }

    /// Address of the API server, on the primary bridge.
    pub fn api_address(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.instance, 1)
    }

    /// Address of `eth0` of a node.
    pub fn node_address(self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.instance, 10 + index)
    }

    /// Range of all pods' primary addresses.
    pub fn cluster_cidr(self) -> String {
        format!("10.{}.0.0/16", 244 + self.instance)
    }

    /// The pods' primary range on a node: 510 addresses, for more pods than a kubelet has by default.
    pub fn pod_cidr(self, index: u8) -> String {
        format!("10.{}.{}.0/23", 244 + self.instance, 2 * index)
    }

    /// A port on 127.0.0.1: etcd's for clients (0) or peers (1).
    pub fn etcd_port(self, which: u16) -> u16 {
        12379 + 10 * u16::from(self.instance) + which
    }
}

/// `node1`, `node2`, …
pub fn node_name(index: u8) -> String {
    format!("node{index}")
}

/// Checks a number of nodes.
pub fn check_nodes(nodes: u8) -> Result<()> {
    ensure!(nodes <= MAX_NODES, "a local cluster has at most {MAX_NODES} nodes, not {nodes}");
    Ok(())
}

/// Creates a folder that only root can enter.
pub fn create_private(folder: &std::path::Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("creating {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_instances_share_nothing() {
        let names = |layout: Layout| {
            vec![
                layout.root().display().to_string(),
                layout.cgroup(),
                layout.primary_bridge(),
                layout.uplink_bridge(),
                layout.netns(1),
                layout.node_address(1).to_string(),
                layout.pod_cidr(1),
                layout.etcd_port(0).to_string(),
                layout.etcd_port(1).to_string(),
            ]
        };
        let (demo, tests) = (names(Layout::DEMO), names(Layout::TESTS));
        assert!(demo.iter().all(|name| !tests.contains(name)), "{demo:?} {tests:?}");
    }

    #[test]
    fn ranges_of_nodes_lie_side_by_side_within_the_clusters() {
        let layout = Layout { instance: 9 };
        assert_eq!(layout.cluster_cidr(), "10.253.0.0/16");
        let ranges = [1, 2, MAX_NODES].map(|index| layout.pod_cidr(index));
        assert_eq!(ranges, ["10.253.2.0/23", "10.253.4.0/23", "10.253.18.0/23"]);
    }

    #[test]
    fn interface_names_fit_the_kernel() {
        let port = Layout::host_port(&Layout { instance: 9 }.uplink_bridge(), MAX_NODES);
        assert!(port.len() <= 15, "{port}");
    }
}
