//! The kind `Admission`: the selectors of all Networks, compiled into the parameter of the mutating policy.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::IfName;
use crate::selector::Selector;

/// Most Networks that the policy's cost allows.
pub const MAX_NETWORKS: usize = 256;
/// Most attach rules, of all Networks together, that the policy's cost allows.
pub const MAX_ATTACH: usize = 256;

/// What the mutating policy needs to know of all Networks. Written by the controller only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "Admission",
    plural = "admissions",
    category = "fairlead",
    derive = "Default",
    derive = "PartialEq",
    doc = "Machine-written: the selectors of all Networks, compiled into the parameter of the mutating policy.",
    validation = Rule::new("self.metadata.name == 'default'").message("must be default: there is one Admission").field_path(".metadata.name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionSpec {
    /// How a pod is held whose networks leave it open, or none of whose networks is known.
    #[serde(default)]
    pub hold: HeldBy,
    /// The accepted Networks.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub networks: Vec<AdmittedNetwork>,
    /// Who gets a network without asking.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub attach: Vec<CompiledAttach>,
    /// fairlead is being uninstalled: agents drop their finalizers and touch no link.
    #[serde(default)]
    pub uninstalling: bool,
}

/// What holds a pod's containers until its interfaces are attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HeldBy {
    /// A first init container that waits.
    #[default]
    Gate,
    /// The container runtime's plugins.
    Nri,
}

/// One accepted Network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmittedNetwork {
    /// Name of the Network.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// Whether its addresses are counted as an extended resource.
    pub resource: bool,
    /// Whether a new pod that asks for it gets the scheduling gate, which the controller lifts.
    #[serde(default)]
    pub gated: bool,
    /// What holds its pods; `Nri` of one network of a pod is stricter than `Gate` of another.
    #[serde(default)]
    pub hold: HeldBy,
}

/// One attach rule of one Network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompiledAttach {
    /// Name of the Network.
    #[schemars(length(min = 1, max = 40))]
    pub network: String,
    /// Name of the interface in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
    /// Selects namespaces by their labels.
    #[serde(default)]
    pub namespace_selector: Selector,
    /// Selects pods by their labels.
    #[serde(default)]
    pub pod_selector: Selector,
}
