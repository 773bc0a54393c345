//! The kind `Network`: one attachable network, written by an admin; its status by the controller.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::IfName;
use crate::selector::{Selector, labels_schema};

mod driver;
mod ipam;
mod status;

pub use driver::{
    Bridge, Cni, DeviceSelector, Gateway, HostDevice, Ipvlan, IpvlanMode, Macvlan, MacvlanMode, Manage,
    Nothing, Parent, Uplink, Vxlan,
};
pub use ipam::{Identity, Ipam, Range, RangeUse, Route};
pub use status::{AdmittedRange, NetworkStatus, RangeState, Reach};

/// What an admin wants of a network. Fields of drivers and features that this version does not
/// have yet are accepted by the API server and refused with `Accepted=False`, never ignored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "Network",
    plural = "networks",
    shortname = "fnet",
    category = "fairlead",
    status = "NetworkStatus",
    derive = "PartialEq",
    doc = "One attachable network: a driver, its addresses and routes, who may use it, who gets it without asking, and on which nodes it exists.",
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("must be a DNS label of at most 40 characters: it becomes part of a resource's name and of a taint's")
        .field_path(".metadata.name"),
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.driver"),
    printcolumn(name = "Reach", type_ = "string", json_path = ".status.reach"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].reason"),
    printcolumn(name = "Addresses", type_ = "integer", json_path = ".status.addresses"),
    printcolumn(name = "Unclaimed", type_ = "integer", json_path = ".status.unclaimed"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.bridge), has(self.macvlan), has(self.ipvlan), has(self.hostDevice), has(self.cni)].filter(set, set).size() == 1")
        .message("exactly one of bridge, macvlan, ipvlan, hostDevice and cni must be set"),
    validation = Rule::new("has(self.bridge) == has(oldSelf.bridge) && has(self.macvlan) == has(oldSelf.macvlan) && has(self.ipvlan) == has(oldSelf.ipvlan) && has(self.hostDevice) == has(oldSelf.hostDevice) && has(self.cni) == has(oldSelf.cni)")
        .message("the driver of a network cannot be changed; create another network"),
    validation = Rule::new("has(self.ipam) == has(oldSelf.ipam)")
        .message("ipam cannot be added to or removed from a network; create another network").field_path(".ipam"),
    validation = Rule::new("!has(self.mtu) || self.mtu >= 1280 || !has(self.ipam) || !self.ipam.ranges.exists(r, r.cidr.contains(':'))")
        .message("mtu must be at least 1280 on a network with an IPv6 range").field_path(".mtu"),
    validation = Rule::new("has(self.ipam) || !has(self.routes) || self.routes.size() == 0")
        .message("routes need ipam: an interface without an address cannot use them").field_path(".routes"),
    validation = Rule::new("!has(self.ipam) || !has(self.routes) || self.routes.all(t, self.ipam.ranges.exists(r, r.cidr.contains(':') == t.to.contains(':')))")
        .message("a route needs a range of its family: add one to ipam.ranges, or remove the route").field_path(".routes"),
    validation = Rule::new("!has(self.ipam) || !has(self.routes) || self.routes.all(t, !self.ipam.ranges.exists(r, r.cidr == t.to))")
        .message("the addresses of a range are reached without a route; remove the route to it").field_path(".routes"),
    validation = Rule::new("!has(self.ipam) || !has(self.routes) || self.routes.all(t, !has(t.via) || !isIP(t.via) || self.ipam.ranges.exists(r, isCIDR(r.cidr) && cidr(r.cidr).containsIP(t.via)))")
        .message("via must be inside one of ipam.ranges, or pods cannot reach it").field_path(".routes")
)]
pub struct NetworkSpec {
    /// Connects pods by a Linux bridge on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<Bridge>,
    /// Gives pods a macvlan device on a parent interface. Not built yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macvlan: Option<Macvlan>,
    /// Gives pods an ipvlan device on a parent interface. Not built yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipvlan: Option<Ipvlan>,
    /// Moves a device of the node into the pod. Not built yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_device: Option<HostDevice>,
    /// Delegates to a CNI plugin from the agent's image. Not built yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni: Option<Cni>,
    /// MTU of the pods' interfaces in bytes. Default: that of the uplink, or 1500 without one; a larger one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 68, max = 65535), extend("format" = "int32"))]
    pub mtu: Option<u32>,
    /// Addresses. Without it the interface has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
    /// Static routes through the pods' interfaces, besides those to the ranges themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["to".into()]))]
    pub routes: Vec<Route>,
    /// Namespaces whose pods may use the network.
    pub allowed_namespaces: AllowedNamespaces,
    /// Whether a pod may ask for `ips` (of a `Reserved` range) and `mac` by value.
    #[serde(default)]
    pub allow_static: bool,
    /// Labels of the nodes on which the network exists. Default: every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub node_selector: BTreeMap<String, String>,
    /// Pods that get the network without asking, in namespaces labelled `fairlead.dev/attach: enabled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub attach: Vec<AttachRule>,
    /// How a pod is held until its interfaces are attached. With several networks, `Nri` of one comes before `Gate` of
    /// another.
    #[serde(default)]
    pub hold: Hold,
    /// What happens to a pod whose containers started without the hold.
    #[serde(default)]
    pub unheld: Unheld,
    /// How the scheduler learns that a node has no address left.
    #[serde(default)]
    pub exhaustion: Exhaustion,
}

/// Namespaces whose pods may use a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.selector) == (self.from == 'Selector')").message("selector is required with from: Selector, and must be absent with from: All").field_path(".selector"))]
pub struct AllowedNamespaces {
    /// All namespaces, or those that `selector` selects.
    pub from: AllowedFrom,
    /// Selects namespaces by their labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
}

/// Which namespaces are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AllowedFrom {
    /// Every namespace.
    All,
    /// Those that the selector selects.
    Selector,
}

/// Pods that get the network without asking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttachRule {
    /// Selects pods by their labels at creation.
    pub pod_selector: Selector,
    /// Selects namespaces by their labels; those without `fairlead.dev/attach: enabled` never match.
    #[serde(default)]
    pub namespace_selector: Selector,
    /// Name of the interface in the pod. Default: the next free `netN`.
    #[x_kube(validation = Rule::new("!(self in ['eth0', 'lo'])").message("is the pod's own interface; choose another name, such as net1"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
}

/// How a pod is held until its interfaces are attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Hold {
    /// `Nri` while every ready node that takes pods is `nri-strict`, else `Gate`.
    #[default]
    Auto,
    /// A first init container that waits.
    Gate,
    /// The container runtime's plugins: no init container, no time lost, on nodes that are `nri-strict` only.
    Nri,
}

/// What happens to a pod whose containers started without the hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unheld {
    /// It gets its interfaces late.
    #[default]
    Attach,
    /// It is evicted. Not built yet.
    Evict,
}

/// How the scheduler learns that a node has no address left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exhaustion {
    /// Count addresses as the extended resource `fairlead.dev/net-<network>`.
    #[serde(default = "yes")]
    pub resource: bool,
    /// Effect of the taint `ip-exhausted.fairlead.dev/<network>`.
    #[serde(default)]
    pub taint: TaintEffect,
}

fn yes() -> bool {
    true
}

impl Default for Exhaustion {
    fn default() -> Self {
        Self { resource: true, taint: TaintEffect::default() }
    }
}

/// Effect of the exhaustion taint. There is no `NoExecute`: a running pod is never evicted because a range is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// No taint.
    None,
    /// The scheduler avoids the node.
    #[default]
    PreferNoSchedule,
    /// The scheduler sends no pod there that does not tolerate it, whether it uses the network or not.
    NoSchedule,
}

impl TaintEffect {
    /// The effect as the Kubernetes API spells it, or `None` without a taint.
    pub fn as_taint(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::PreferNoSchedule => Some("PreferNoSchedule"),
            Self::NoSchedule => Some("NoSchedule"),
        }
    }
}

impl NetworkSpec {
    /// The driver's name as the spec spells it.
    pub fn driver(&self) -> &'static str {
        let set = [
            (self.bridge.is_some(), "bridge"),
            (self.macvlan.is_some(), "macvlan"),
            (self.ipvlan.is_some(), "ipvlan"),
            (self.host_device.is_some(), "hostDevice"),
        ];
        set.iter().find(|(set, _)| *set).map_or("cni", |(_, name)| name)
    }

    /// How far the network reaches, by its uplink.
    pub fn reach(&self) -> Reach {
        match &self.bridge {
            Some(bridge) if bridge.uplink.none.is_some() => Reach::Node,
            _ => Reach::Underlay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration::Duration;

    #[test]
    fn the_smallest_network_has_the_documented_defaults() {
        let spec: NetworkSpec = serde_json::from_value(serde_json::json!({
            "bridge": { "name": "br0", "uplink": { "none": {} } },
            "ipam": { "ranges": [{ "cidr": "10.0.0.0/24" }] },
            "allowedNamespaces": { "from": "All" }
        }))
        .unwrap();
        let ipam = spec.ipam.clone().unwrap();
        assert_eq!((ipam.space.as_str(), ipam.quarantine), ("default", Duration::from_secs(130)));
        assert_eq!((spec.driver(), spec.reach()), ("bridge", Reach::Node));
        assert_eq!(spec.exhaustion, Exhaustion { resource: true, taint: TaintEffect::PreferNoSchedule });
    }
}
