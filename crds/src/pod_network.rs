//! The kind `PodNetwork`: the record of one pod UID, written by the agent of the pod's node.

#![allow(clippy::duplicated_attributes, reason = "the derive takes the same keys for several columns")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Cidr, IfName, Ip, Mac};
use crate::network::Route;

/// What was resolved for a pod and which addresses it holds. Written before the kernel is touched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "PodNetwork",
    plural = "podnetworks",
    shortname = "pnet",
    category = "fairlead",
    namespaced,
    status = "PodNetworkStatus",
    selectable = ".spec.nodeName",
    derive = "Default",
    derive = "PartialEq",
    doc = "The record of one pod: what was resolved, which addresses it holds, what is in the kernel, why it is not ready. Written by the agent of the pod's node.",
    printcolumn(name = "Pod", type_ = "string", json_path = ".spec.podName"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Networks", type_ = "string", json_path = ".status.networks"),
    printcolumn(name = "Addresses", type_ = "string", json_path = ".status.addresses"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.podName == oldSelf.podName && self.podUID == oldSelf.podUID && self.nodeName == oldSelf.nodeName").message("podName, podUID and nodeName cannot be changed"))]
pub struct PodNetworkSpec {
    /// The pod's full name; the object's own name may be truncated.
    #[schemars(length(min = 1, max = 253))]
    pub pod_name: String,
    /// The pod's UID.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// The pod's node, whose agent owns this record.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// The networks the pod holds addresses of, in the order of their interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub attachments: Vec<Attachment>,
}

/// One interface of a pod and the addresses held for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Name of the Network.
    #[schemars(length(min = 1, max = 40))]
    pub network: String,
    /// UID of the Network.
    #[serde(rename = "networkUID")]
    #[schemars(length(min = 1, max = 64))]
    pub network_uid: String,
    /// Name of the interface in the pod.
    pub interface: IfName,
    /// Hardware address of the interface, deterministic in the pod's UID and the interface's name.
    pub mac: Mac,
    /// Addresses, at most one per family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub addresses: Vec<HeldAddress>,
    /// Since when they are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// An address and the block it was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldAddress {
    /// The address with the prefix length of its range.
    pub address: Cidr,
    /// Name of the `IPBlock`.
    #[schemars(length(min = 1, max = 63))]
    pub block: String,
    /// UID of the `IPBlock`.
    #[serde(rename = "blockUID")]
    #[schemars(length(min = 1, max = 64))]
    pub block_uid: String,
}

/// What is in the kernel, and why the pod is not ready.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodNetworkStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The networks, for people: `blue,storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<String>,
    /// The addresses, for people: `10.20.0.5,fd00::5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<String>,
    /// The sandbox the interfaces are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRef>,
    /// The interfaces that are up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub interfaces: Vec<InterfaceStatus>,
    /// `Ready`, `Held` and `RequestMismatch`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Identity of a sandbox and of its network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRef {
    /// The runtime's id.
    pub id: String,
    /// The kubelet's attempt number.
    #[schemars(extend("format" = "int32"))]
    pub attempt: u32,
    /// `SO_NETNS_COOKIE` of the namespace, unique per boot.
    #[schemars(extend("format" = "int64"))]
    pub cookie: u64,
    /// Id of the namespace as seen from the node's own.
    pub nsid: i32,
    /// Boot id of the node's kernel.
    #[serde(rename = "bootID")]
    pub boot_id: String,
}

/// One interface as it is; field names as in `ResourceClaim.status.devices[].networkData`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStatus {
    /// Name of the Network.
    pub network: String,
    /// Name of the interface in the pod.
    pub interface_name: IfName,
    /// Addresses in CIDR form.
    #[serde(default)]
    #[schemars(with = "Vec<String>", length(max = 2))]
    pub ips: Vec<Cidr>,
    /// Hardware address.
    pub hardware_address: Mac,
    /// MTU in bytes.
    #[schemars(extend("format" = "int32"))]
    pub mtu: u32,
    /// The end on the node, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_interface: Option<String>,
    /// Gateways of the ranges the addresses are from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>", length(max = 2))]
    pub gateways: Vec<Ip>,
    /// Static routes through the interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<RouteInStatus>", length(max = 64))]
    pub routes: Vec<Route>,
}

/// The shape of a [`Route`] in a status. A status is written by agents only: the rules on what people
/// write would cost more here than the API server allows.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "stands for its schema")]
struct RouteInStatus {
    /// Destination.
    to: String,
    /// Next hop.
    via: Option<String>,
}
