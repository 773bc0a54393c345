//! What a plugin is told, as values: pods and containers of the runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::BitOr;
use std::path::PathBuf;

use crate::Error;

/// Who the plugin is. Plugins are called in the order of their indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name: letters, digits and `_ . + -`.
    pub name: String,
    /// Its index, below 100.
    pub index: u8,
}

impl Identity {
    /// The same, if a runtime would accept it.
    pub(crate) fn checked(&self) -> Result<&Self, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        let good = !self.name.is_empty() && self.name.chars().all(plain) && self.index < 100;
        if good { Ok(self) } else { Err(Error::Identity(self.to_string())) }
    }

    pub(crate) fn two_digits(&self) -> String {
        format!("{:02}", self.index)
    }
}

/// As the runtime names it in its log, such as `10-fairlead`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-{}", self.index, self.name)
    }
}

/// Which calls a plugin wants. Combined with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventMask(pub(crate) i32);

impl EventMask {
    /// [`crate::Plugin::run_pod_sandbox`].
    pub const RUN_POD_SANDBOX: Self = Self(1);
    /// [`crate::Plugin::stop_pod_sandbox`].
    pub const STOP_POD_SANDBOX: Self = Self(1 << 1);
    /// [`crate::Plugin::remove_pod_sandbox`].
    pub const REMOVE_POD_SANDBOX: Self = Self(1 << 2);
    /// [`crate::Plugin::create_container`].
    pub const CREATE_CONTAINER: Self = Self(1 << 3);
    /// [`crate::Plugin::validate_container`]. Runtimes with NRI before 0.10 refuse a plugin that asks for it.
    pub const VALIDATE_CONTAINER: Self = Self(1 << 13);
}

impl BitOr for EventMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A pod's sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSandbox {
    /// The runtime's id of the sandbox.
    pub id: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Labels of the pod, with the kubelet's own.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod when its sandbox was made, with the runtime's own.
    pub annotations: BTreeMap<String, String>,
    /// The runtime's handler; empty for the default.
    pub runtime_handler: String,
    /// The network namespace, below `/run` where the runtime says `/var/run`. None for a pod on the host's
    /// network, and once the runtime has removed it.
    pub network_namespace: Option<PathBuf>,
    /// Process of the sandbox, if the runtime says so.
    pub pid: Option<u32>,
    /// Addresses that the primary network gave.
    pub ips: Vec<String>,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id of the container.
    pub id: String,
    /// The sandbox it is in.
    pub sandbox: String,
    /// Its name in the pod.
    pub name: String,
    /// How far it is.
    pub state: ContainerState,
    /// When it was made: nanoseconds since 1970; 0 where the runtime does not say.
    pub created_at: i64,
    /// When it was started: nanoseconds since 1970; 0 if it was not, or where the runtime does not say.
    pub started_at: i64,
}

/// How far a container is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContainerState {
    /// The runtime does not say, or says something newer than this.
    #[default]
    Unknown,
    /// It is made.
    Created,
    /// It is paused.
    Paused,
    /// It runs.
    Running,
    /// It ended.
    Stopped,
}
