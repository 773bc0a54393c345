//! The kind `Network`: one attachable network, written by an admin; its status by the controller.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Cidr, IfName, Ip};
use crate::duration::Duration;
use crate::selector::Selector;

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
        .message("metadata.name must be a DNS label of at most 40 characters: it becomes part of a resource name and of a taint"),
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.driver"),
    printcolumn(name = "Reach", type_ = "string", json_path = ".status.reach"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.bridge), has(self.macvlan), has(self.ipvlan), has(self.hostDevice), has(self.cni)].filter(set, set).size() == 1")
        .message("exactly one of bridge, macvlan, ipvlan, hostDevice and cni must be set"),
    validation = Rule::new("has(self.bridge) == has(oldSelf.bridge) && has(self.macvlan) == has(oldSelf.macvlan) && has(self.ipvlan) == has(oldSelf.ipvlan) && has(self.hostDevice) == has(oldSelf.hostDevice) && has(self.cni) == has(oldSelf.cni)")
        .message("the driver of a network cannot be changed; create another network"),
    validation = Rule::new("has(self.ipam) == has(oldSelf.ipam)")
        .message("ipam cannot be added to or removed from a network; create another network"),
    validation = Rule::new("!has(self.mtu) || self.mtu >= 1280 || !has(self.ipam) || !self.ipam.ranges.exists(r, r.cidr.contains(':'))")
        .message("mtu must be at least 1280 on a network with an IPv6 range"),
    validation = Rule::new("has(self.ipam) || !has(self.routes) || self.routes.size() == 0")
        .message("routes need ipam: an interface without an address cannot use them")
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
    pub routes: Vec<Route>,
    /// Namespaces whose pods may use the network.
    pub allowed_namespaces: AllowedNamespaces,
    /// Whether a pod may ask for `ips` and `mac` by value. Not built yet.
    #[serde(default)]
    pub allow_static: bool,
    /// Labels of the nodes on which the network exists. Default: every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8))]
    pub node_selector: BTreeMap<String, String>,
    /// Pods that get the network without asking, in namespaces labelled `fairlead.dev/attach: enabled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub attach: Vec<AttachRule>,
    /// How a pod is held until its interfaces are attached.
    #[serde(default)]
    pub hold: Hold,
    /// What happens to a pod whose containers started without the hold.
    #[serde(default)]
    pub unheld: Unheld,
    /// How the scheduler learns that a node has no address left.
    #[serde(default)]
    pub exhaustion: Exhaustion,
}

/// A Linux bridge per node; every pod gets a veth pair with one end in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.name == oldSelf.name").message("bridge.name cannot be changed; create another network"),
    validation = Rule::new("self.manage == oldSelf.manage").message("bridge.manage cannot be changed; create another network"),
    validation = Rule::new("self.uplink == oldSelf.uplink").message("bridge.uplink cannot be changed; create another network"),
    validation = Rule::new("self.gateway != 'Node' || has(self.uplink.none)")
        .message("bridge.gateway: Node needs uplink: {none: {}}, or every node would answer for the gateway on one wire"),
    validation = Rule::new("!self.masquerade || self.gateway == 'Node'").message("bridge.masquerade needs bridge.gateway: Node")
)]
pub struct Bridge {
    /// Name of the bridge on every node.
    #[x_kube(validation = Rule::new("!(self in ['lo', 'eth0', 'docker0', 'cni0', 'cbr0'])").message("the name belongs to another program; choose one such as br-blue"))]
    #[x_kube(validation = Rule::new("self != '.' && self != '..'").message("is not an interface name"))]
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
    validation = Rule::new("!has(self.vlan) || has(self.interface)").message("vlan needs interface")
)]
pub struct Uplink {
    /// Nothing: every node's bridge is an island, and the network's status says `reach: Node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<Nothing>,
    /// An interface of the node, matched by the agent's flag `--devices`.
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

/// Address management of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.space == oldSelf.space").message("ipam.space cannot be changed; create another network"),
    validation = Rule::new("self.ranges.all(a, !isCIDR(a.cidr) || self.ranges.filter(b, isCIDR(b.cidr) && cidr(a.cidr).containsCIDR(b.cidr) && !(has(a.exclude) && a.exclude.exists(e, isCIDR(e) && cidr(e).containsCIDR(b.cidr)))).size() <= 1)")
        .message("ranges overlap; exclude the inner one from the outer one, or remove it"),
    validation = Rule::new("oldSelf.ranges.all(o, self.ranges.all(n, n.cidr != o.cidr || (has(n.blockPrefix) == has(o.blockPrefix) && (!has(n.blockPrefix) || n.blockPrefix == o.blockPrefix) && n.use == o.use)))")
        .message("blockPrefix and use of a range cannot be changed; remove the range, wait until it is drained, then add it again"),
    validation = Rule::new("self.identity == 'None' || self.ranges.exists(r, r.use == 'Reserved')").message("identity needs a range with use: Reserved")
)]
pub struct Ipam {
    /// Addresses are unique per space; separate layer-2 worlds may overlap in different spaces.
    #[serde(default = "default_space")]
    #[schemars(length(min = 1, max = 20), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub space: String,
    /// Where addresses come from: several per family, the first with space is used; one address per family present.
    #[schemars(length(min = 1, max = 16))]
    pub ranges: Vec<Range>,
    /// How long a freed address is not handed out again.
    #[serde(default = "default_quarantine")]
    pub quarantine: Duration,
    /// Addresses per node that are kept out of what the scheduler is promised, for networks added to running pods.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024), extend("format" = "int32"))]
    pub hotplug_reserve: u32,
    /// What an address is bound to. Only `None` is built.
    #[serde(default)]
    pub identity: Identity,
    /// Whether an address is probed for on the wire before it is used: `Off`, or the time to listen. Only `Off` is built.
    #[serde(default = "default_probe")]
    #[schemars(length(max = 8), regex(pattern = "^(Off|[0-9]+ms)$"))]
    pub probe: String,
}

fn default_space() -> String {
    "default".to_owned()
}

fn default_quarantine() -> Duration {
    Duration::from_secs(130)
}

fn default_probe() -> String {
    "Off".to_owned()
}

/// What an address is bound to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Identity {
    /// The pod.
    #[default]
    None,
    /// The ordinal of a `StatefulSet`. Not built yet.
    StatefulSet,
}

/// A range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!isCIDR(self.cidr) || cidr(self.cidr) == cidr(self.cidr).masked()").message("cidr has host bits set; write the network address, such as 10.20.0.0/16").field_path(".cidr"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.gateway) || !isIP(self.gateway) || cidr(self.cidr).containsIP(self.gateway)").message("gateway is outside of cidr").field_path(".gateway"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.exclude) || self.exclude.all(e, !isCIDR(e) || cidr(self.cidr).containsCIDR(e))").message("exclude has an entry outside of cidr").field_path(".exclude"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.blockPrefix) || self.blockPrefix >= cidr(self.cidr).prefixLength()").message("blockPrefix must be at least the prefix length of cidr").field_path(".blockPrefix"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.blockPrefix) || (self.cidr.contains(':') ? self.blockPrefix >= 118 : self.blockPrefix >= 22 && self.blockPrefix <= 32)").message("blockPrefix must be 22 to 32 for IPv4 and 118 to 128 for IPv6: a block has at most 1024 addresses").field_path(".blockPrefix"),
    validation = Rule::new("!isCIDR(self.cidr) || (self.cidr.contains(':') ? cidr(self.cidr).prefixLength() >= 48 : cidr(self.cidr).prefixLength() >= 8)").message("cidr must be /8 or longer for IPv4 and /48 or longer for IPv6").field_path(".cidr")
)]
pub struct Range {
    /// The range in its network form, such as `10.20.0.0/16`.
    pub cidr: Cidr,
    /// The gateway of the range; never handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ip>,
    /// Parts that are never handed out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exclude: Vec<Cidr>,
    /// Prefix length of the blocks that nodes claim. Default: /28 and /124; /32 and /128 in ranges of 64 addresses or fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 22, max = 128), extend("format" = "int32"))]
    pub block_prefix: Option<u8>,
    /// How its addresses are handed out.
    #[serde(default, rename = "use")]
    pub usage: RangeUse,
}

/// How addresses of a range are handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RangeUse {
    /// To any pod that asks for the network.
    #[default]
    Pods,
    /// Only by value, to a named claim. Not built yet.
    Reserved,
}

/// A static route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!isCIDR(self.to) || cidr(self.to) == cidr(self.to).masked()").message("to has host bits set; write the network address").field_path(".to"),
    validation = Rule::new("!has(self.via) || !isIP(self.via) || !isCIDR(self.to) || ip(self.via).family() == cidr(self.to).ip().family()").message("via and to must be of one family").field_path(".via"),
    validation = Rule::new("!isCIDR(self.to) || cidr(self.to).prefixLength() > 0").message("a default route would take the pod's primary interface out of use; name what shall be reached").field_path(".to")
)]
pub struct Route {
    /// Destination, such as `10.99.0.0/16`.
    pub to: Cidr,
    /// Next hop. Default: the gateway of the pod's range of that family, or the link itself if the range has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Ip>,
}

/// Namespaces whose pods may use a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.selector) == (self.from == 'Selector')").message("selector is required with from: Selector, and must be absent with from: All"))]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<IfName>,
}

/// How a pod is held until its interfaces are attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Hold {
    /// The best that every node can do; today that is `Gate`.
    #[default]
    Auto,
    /// A first init container that waits.
    Gate,
    /// The container runtime's plugin interface. Not built yet.
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

/// What the controller admitted: agents act on this, not on the spec's ranges.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The driver, for people: `bridge`, `macvlan`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// How far the network reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<Reach>,
    /// The ranges agents may claim blocks of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ranges: Vec<AdmittedRange>,
    /// `Accepted` and `InUse`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How far a network reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reach {
    /// Pods of one node reach each other; every node is an island.
    Node,
    /// Pods reach whatever the node's interface is wired to.
    Underlay,
}

/// A range that the controller checked against all others of its space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmittedRange {
    /// The range; never changes in an entry.
    pub cidr: Cidr,
    /// Prefix length of its blocks; never changes in an entry.
    #[schemars(range(min = 8, max = 128), extend("format" = "int32"))]
    pub block_prefix: u8,
    /// Its gateway; never handed out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ip>,
    /// Parts that are never handed out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub exclude: Vec<Cidr>,
    /// Whether blocks may be claimed.
    pub state: RangeState,
    /// Few unclaimed blocks are left: a node claims one only when it has no free address.
    #[serde(default)]
    pub scarce: bool,
    /// No unclaimed block is left: nodes do not try.
    #[serde(default)]
    pub full: bool,
    /// Why it was refused, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// Whether blocks of a range may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RangeState {
    /// Blocks may be claimed.
    Admitted,
    /// Removed from the spec; leaves when no block of it exists.
    Draining,
    /// Overlaps another network's range of the space.
    Refused,
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

impl Range {
    /// The prefix length of the range's blocks: the one asked for or the default for its size.
    pub fn block_prefix(&self) -> u8 {
        let (bits, default) = if self.cidr.is_ipv6() { (128, 124) } else { (32, 28) };
        let small = bits - self.cidr.0.prefix_len() <= 6;
        self.block_prefix.unwrap_or(if small { bits } else { default })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(cidr: &str) -> Range {
        serde_json::from_value(serde_json::json!({ "cidr": cidr })).unwrap()
    }

    #[test]
    fn small_ranges_are_claimed_address_by_address() {
        for (cidr, prefix) in [
            ("10.0.0.0/16", 28),
            ("10.0.0.0/25", 28),
            ("10.0.0.0/26", 32),
            ("fd00::/64", 124),
            ("fd00::/122", 128),
        ] {
            assert_eq!(range(cidr).block_prefix(), prefix, "{cidr}");
        }
    }

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
