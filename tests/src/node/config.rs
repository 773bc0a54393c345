//! Settings of a node's programs.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::CONTAINERD_SOCKET;
use crate::{build::Tools, images, pki::Identity, prereq};

/// Folders of a node's own that are mounted over the machine's.
pub const BIND_MOUNTS: [(&str, &str); 6] = [
    ("kubelet", "/var/lib/kubelet"),
    ("cni-conf", "/etc/cni/net.d"),
    ("cni-state", "/var/lib/cni"),
    ("pod-logs", "/var/log/pods"),
    ("container-logs", "/var/log/containers"),
    ("nri-plugins", NRI_PLUGINS),
];

/// The folder from which containerd starts plugins, in the node's mount namespace.
pub const NRI_PLUGINS: &str = "/opt/nri/plugins";

/// What a node's containerd does with plugins (NRI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Nri {
    /// There are none
    Off,
    /// As containerd is shipped: a plugin that is missing lets containers through
    #[default]
    Plain,
    /// The default validator refuses containers whose required plugin is missing
    Strict,
    /// Plain, with fairlead's guard in the plugin folder
    Preinstalled,
}

/// Most pods of a node: 250 of a bench and those of the system; below the 509 addresses of its primary range.
const MAX_PODS: u32 = 260;

/// Settings of containerd.
pub fn containerd(folder: &Path, tools: &Tools, nri: Nri) -> Result<String> {
    let root = folder.join("containerd");
    let (runc, cni, pause) = (prereq::find("runc")?, tools.cni()?, images::PAUSE);
    // restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower the score, and every pod fails with
    // "can't get final child's PID".
    Ok(format!(
        r#"version = 3
root = "{root}"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins."io.containerd.nri.v1.nri"]
disable = {disable}
socket_path = "/run/nri/nri.sock"
plugin_path = "{NRI_PLUGINS}"

[plugins."io.containerd.nri.v1.nri".default_validator]
enable = {validate}
"#,
        disable = nri == Nri::Off,
        validate = nri == Nri::Strict,
        root = root.display(),
        runc = runc.display(),
        cni = cni.display(),
    ))
}

/// The pods' primary network.
pub fn cni(pod_cidr: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "primary",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": true,
            "hairpinMode": true,
            "ipMasq": true,
            "ipMasqBackend": "nftables",
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": pod_cidr }]],
            },
        }],
    })
}

/// Settings of the kubelet.
pub fn kubelet(cgroup_root: &str, authority: &Path, serving: &Identity) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": authority },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": serving.certificate_file,
        "tlsPrivateKeyFile": serving.key_file,
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        "maxPods": MAX_PODS,
        // Nobody answers there: a cluster without DNS, but also without a warning on every pod.
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "resolvConf": "/dev/null",
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "eventRecordQPS": 0,
    })
}

/// Settings of kube-proxy.
pub fn kube_proxy(name: &str, cluster_cidr: &str, kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": kubeconfig },
        "hostnameOverride": name,
        "mode": "nftables",
        "clusterCIDR": cluster_cidr,
        "oomScoreAdj": 0,
        // The table of the machine is shared by all network namespaces and not ours to resize.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}
