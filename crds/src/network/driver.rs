//! The drivers of a [`Network`](super::Network): what a pod's interface is, and what it hangs on.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::IfName;

/// A Linux bridge per node; every pod gets a veth pair with one end in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.name == oldSelf.name")
        .message("the bridge of a network cannot be changed; create another network").field_path(".name"),
    validation = Rule::new("self.manage == oldSelf.manage")
        .message("who makes the bridge cannot be changed; create another network").field_path(".manage"),
    validation = Rule::new("has(self.uplink.none) == has(oldSelf.uplink.none) && has(self.uplink.interface) == has(oldSelf.uplink.interface) && (!has(self.uplink.interface) || self.uplink.interface == oldSelf.uplink.interface) && has(self.uplink.vlan) == has(oldSelf.uplink.vlan) && (!has(self.uplink.vlan) || self.uplink.vlan == oldSelf.uplink.vlan) && has(self.uplink.vxlan) == has(oldSelf.uplink.vxlan) && (!has(self.uplink.vxlan) || self.uplink.vxlan.id == oldSelf.uplink.vxlan.id)")
        .message("the uplink of a network cannot be changed; create another network").field_path(".uplink"),
    validation = Rule::new("!has(self.uplink.interface) || self.uplink.interface != self.name")
        .message("the uplink must be another interface than the bridge itself").field_path(".uplink.interface"),
    validation = Rule::new("self.gateway != 'Node' || has(self.uplink.none)")
        .message("gateway: Node needs uplink: {none: {}}, or every node would answer for the gateway on one wire").field_path(".gateway"),
    validation = Rule::new("!self.masquerade || self.gateway == 'Node'")
        .message("masquerade needs gateway: Node").field_path(".masquerade")
)]
pub struct Bridge {
    /// Name of the bridge on every node.
    #[x_kube(validation = Rule::new("!(self in ['lo', 'eth0', 'docker0', 'cni0', 'cbr0']) && !self.matches('^fl[0-9a-f]{10}$')")
        .message("the name belongs to another program or to a pod's link; choose one such as br-blue"))]
    pub name: IfName,
    /// Who makes the bridge.
    #[serde(default)]
    pub manage: Manage,
    /// What connects the bridges of different nodes.
    pub uplink: Uplink,
    /// Who answers for the ranges' gateway addresses.
    #[serde(default)]
    pub gateway: Gateway,
    /// Whether traffic that leaves the network is masqueraded. Not built yet.
    #[serde(default)]
    pub masquerade: bool,
    /// Whether each port drops what its pod has no right to send. Not built yet; will be the default.
    #[serde(default)]
    pub anti_spoof: bool,
}

/// Who makes a bridge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Manage {
    /// The agent makes it, and refuses a name that someone else's link has.
    #[default]
    Create,
    /// The admin makes it; the agent only adds ports.
    Existing,
}

/// What connects the bridges of different nodes: exactly one of `none`, `interface` and `vxlan`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.none), has(self.interface), has(self.vxlan)].filter(set, set).size() == 1")
        .message("exactly one of none, interface and vxlan must be set"),
    validation = Rule::new("!has(self.vlan) || has(self.interface)").message("vlan needs interface").field_path(".vlan")
)]
pub struct Uplink {
    /// Nothing: every node's bridge is an island, and the network's status says `reach: Node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<Nothing>,
    /// An interface of the node, matched by the agent's flag `--devices`.
    #[x_kube(validation = Rule::new("self != 'lo'").message("the loopback interface leads nowhere; name one such as eth1"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
    /// VLAN tag on `interface`. Not built yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094), extend("format" = "int32"))]
    pub vlan: Option<u16>,
    /// A VXLAN over the nodes' own network. Not built yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Vxlan>,
}

/// An empty object: `{}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nothing {}

/// A VXLAN segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vxlan {
    /// VXLAN network identifier.
    #[schemars(range(min = 1, max = 16_777_215), extend("format" = "int32"))]
    pub id: u32,
}

/// Who answers for the gateway addresses of a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Gateway {
    /// A device outside, or nobody.
    #[default]
    None,
    /// Each node for its own pods. Not built yet.
    Node,
}

/// An interface of the node that pods' devices hang on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    /// Name of the interface, matched by the agent's flag `--devices`.
    pub interface: IfName,
    /// VLAN tag on `interface`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4094), extend("format" = "int32"))]
    pub vlan: Option<u16>,
}

/// A macvlan device per pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Macvlan {
    /// The interface the devices hang on.
    pub parent: Parent,
    /// How devices of one parent reach each other.
    #[serde(default)]
    pub mode: MacvlanMode,
}

/// The kernel's macvlan modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the kernel's own, see ip-link(8)")]
pub enum MacvlanMode {
    #[default]
    Bridge,
    Private,
    Vepa,
    Passthru,
}

/// An ipvlan device per pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipvlan {
    /// The interface the devices hang on.
    pub parent: Parent,
    /// The layer at which the kernel forwards.
    #[serde(default)]
    pub mode: IpvlanMode,
}

/// The kernel's ipvlan modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the kernel's own, see ip-link(8)")]
pub enum IpvlanMode {
    #[default]
    L2,
    L3,
    L3s,
}

/// A device of the node, moved into the pod and back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDevice {
    /// Which devices may be taken.
    pub selector: DeviceSelector,
}

/// Selects devices of a node by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSelector {
    /// Globs of interface names, such as `ens5f*`.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 15)))]
    pub names: Vec<String>,
}

/// A CNI plugin configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cni {
    /// The plugin's configuration list, as JSON text.
    #[schemars(length(min = 2, max = 16_384))]
    pub config: String,
}
