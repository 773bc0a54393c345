//! The messages, as far as they are read or written here; whatever else they have is skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::types;

/// A request of ttrpc.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

/// A response of ttrpc.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
    #[prost(string, tag = "3")]
    pub nri_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConfigureRequest {
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeRequest {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// `RunPodSandboxRequest`, `StopPodSandboxRequest` and `RemovePodSandboxRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct PodRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValidateContainerAdjustmentRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
    #[prost(message, repeated, tag = "6")]
    pub plugins: Vec<PluginInstance>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValidateContainerAdjustmentResponse {
    #[prost(bool, tag = "1")]
    pub reject: bool,
    #[prost(string, tag = "2")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PluginInstance {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub index: String,
}

/// How runtimes with NRI before 0.12 tell of sandboxes.
#[derive(Clone, PartialEq, Message)]
pub struct StateChangeEvent {
    #[prost(int32, tag = "1")]
    pub event: i32,
    #[prost(message, optional, tag = "2")]
    pub pod: Option<PodSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
    #[prost(string, tag = "7")]
    pub runtime_handler: String,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandbox>,
    #[prost(uint32, tag = "9")]
    pub pid: u32,
    #[prost(string, repeated, tag = "10")]
    pub ips: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandbox {
    #[prost(message, repeated, tag = "5")]
    pub namespaces: Vec<LinuxNamespace>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxNamespace {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(int32, tag = "4")]
    pub state: i32,
    #[prost(int64, tag = "14")]
    pub created_at: i64,
    #[prost(int64, tag = "15")]
    pub started_at: i64,
}

impl From<PodSandbox> for types::PodSandbox {
    fn from(pod: PodSandbox) -> Self {
        Self {
            network_namespace: pod.linux.and_then(LinuxPodSandbox::network),
            pid: Some(pod.pid).filter(|pid| *pid != 0),
            id: pod.id,
            name: pod.name,
            uid: pod.uid,
            namespace: pod.namespace,
            labels: pod.labels,
            annotations: pod.annotations,
            runtime_handler: pod.runtime_handler,
            ips: pod.ips,
        }
    }
}

impl LinuxPodSandbox {
    fn network(self) -> Option<PathBuf> {
        let network = self.namespaces.into_iter().find(|namespace| namespace.kind == "network")?;
        (!network.path.is_empty()).then(|| below_run(&network.path))
    }
}

/// `/var/run` is a link to `/run` on every distribution that runs containerd 2, but not in a container's image.
fn below_run(path: &str) -> PathBuf {
    path.strip_prefix("/var/run/").map_or_else(|| path.into(), |rest| Path::new("/run").join(rest))
}

impl PluginInstance {
    /// None if the index is not one.
    pub fn identity(self) -> Option<types::Identity> {
        Some(types::Identity { index: self.index.parse().ok()?, name: self.name })
    }
}

impl From<Container> for types::Container {
    fn from(container: Container) -> Self {
        Self {
            id: container.id,
            sandbox: container.pod_sandbox_id,
            name: container.name,
            state: match container.state {
                1 => types::ContainerState::Created,
                2 => types::ContainerState::Paused,
                3 => types::ContainerState::Running,
                4 => types::ContainerState::Stopped,
                _ => types::ContainerState::Unknown,
            },
            created_at: container.created_at,
            started_at: container.started_at,
        }
    }
}
