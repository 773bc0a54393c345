//! The addresses of a [`Network`](super::Network): ranges, what may be handed out of them, and routes.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::address::{Cidr, Ip};
use crate::duration::Duration;

/// Address management of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.space == oldSelf.space")
        .message("the space of a network cannot be changed; create another network").field_path(".space"),
    validation = Rule::new("self.ranges.all(a, !isCIDR(a.cidr) || self.ranges.filter(b, isCIDR(b.cidr) && cidr(a.cidr).containsCIDR(b.cidr) && !(has(a.exclude) && a.exclude.exists(e, isCIDR(e) && cidr(e).containsCIDR(b.cidr)))).size() <= 1)")
        .message("ranges overlap; exclude the inner one from the outer one, or remove it").field_path(".ranges"),
    validation = Rule::new("self.identity == 'None' || self.ranges.exists(r, r.use == 'Reserved')")
        .message("identity needs a range with use: Reserved").field_path(".identity")
)]
pub struct Ipam {
    /// Addresses are unique per space; separate layer-2 worlds may overlap in different spaces.
    #[serde(default = "default_space")]
    #[schemars(length(max = 20))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be 1 to 20 lower-case letters, digits and inner '-'"))]
    pub space: String,
    /// Where addresses come from: several per family, the first with space is used; one address per family present.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["cidr".into()]))]
    pub ranges: Vec<Range>,
    /// How long a freed address is not handed out again.
    #[serde(default = "default_quarantine")]
    pub quarantine: Duration,
    /// Addresses per node that are kept out of what the scheduler is promised, for networks added to running pods.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1024), extend("format" = "int32"))]
    pub hotplug_reserve: u32,
    /// Most blocks of each family that one node may own, those of draining ranges not counted. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536), extend("format" = "int32"))]
    pub max_blocks_per_node: Option<u32>,
    /// What an address is bound to: `StatefulSet` gives every pod of a `StatefulSet` an address of a `Reserved` range that
    /// it keeps.
    #[serde(default)]
    pub identity: Identity,
    /// Whether it is asked on the wire before an address is used if someone has it already: `None`, or how long to listen for an answer, 30ms to 300ms. Asked three times within that time, by ARP and neighbour discovery.
    #[serde(default = "default_probe")]
    #[schemars(length(max = 8))]
    // Not `Off`: YAML 1.1, which kubectl reads, takes that for `false`.
    #[x_kube(validation = Rule::new("self == 'None' || (self.matches('^[1-9][0-9]{1,2}ms$') && int(self.replace('ms', '')) >= 30 && int(self.replace('ms', '')) <= 300)").message("must be None, or a time to listen of 30ms to 300ms"))]
    pub probe: String,
}

impl Ipam {
    /// How long to listen for an answer before an address is used; none if nobody is asked.
    pub fn probe_time(&self) -> Option<std::time::Duration> {
        let milliseconds = self.probe.strip_suffix("ms")?.parse().ok()?;
        Some(std::time::Duration::from_millis(milliseconds))
    }
}

fn default_space() -> String {
    "default".to_owned()
}

fn default_quarantine() -> Duration {
    Duration::from_secs(130)
}

fn default_probe() -> String {
    "None".to_owned()
}

/// What an address is bound to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Identity {
    /// The pod.
    #[default]
    None,
    /// The ordinal of a `StatefulSet`: its pods of one name get the same address, on whatever node. Other pods get one of
    /// the other ranges.
    StatefulSet,
}

/// A range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!isCIDR(self.cidr) || string(cidr(self.cidr).masked()) == self.cidr")
        .message("must be a network address in its shortest form, such as 10.20.0.0/16 or fd00:20::/64").field_path(".cidr"),
    validation = Rule::new("!isCIDR(self.cidr) || (self.cidr.contains(':') ? cidr(self.cidr).prefixLength() >= 48 : cidr(self.cidr).prefixLength() >= 8)")
        .message("must be /8 or longer for IPv4 and /48 or longer for IPv6").field_path(".cidr"),
    validation = Rule::new("!isCIDR(self.cidr) || cidr(self.cidr).ip().isGlobalUnicast()")
        .message("must not be a loopback, link-local, multicast or unspecified range: pods cannot be reached there").field_path(".cidr"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.gateway) || !isIP(self.gateway) || cidr(self.cidr).containsIP(self.gateway)")
        .message("must be inside cidr").field_path(".gateway"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.gateway) || !isIP(self.gateway) || self.cidr.contains(':') || cidr(self.cidr).prefixLength() > 30 || !self.cidr.startsWith(self.gateway + '/')")
        .message("must not be the network address, which no device can have").field_path(".gateway"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.exclude) || self.exclude.all(e, !isCIDR(e) || cidr(self.cidr).containsCIDR(e))")
        .message("has an entry outside of cidr").field_path(".exclude"),
    validation = Rule::new("!has(self.exclude) || self.exclude.all(e, !isCIDR(e) || cidr(e) == cidr(e).masked())")
        .message("has an entry with host bits set; write its network address, or /32 (IPv6: /128) for one address").field_path(".exclude"),
    validation = Rule::new("!isCIDR(self.cidr) || !has(self.blockPrefix) || self.blockPrefix >= cidr(self.cidr).prefixLength()")
        .message("must be at least the prefix length of cidr").field_path(".blockPrefix"),
    validation = Rule::new("!has(self.blockPrefix) || (self.cidr.contains(':') ? self.blockPrefix >= 118 && self.blockPrefix <= 128 : self.blockPrefix >= 22 && self.blockPrefix <= 32)")
        .message("must be 22 to 32 for IPv4 and 118 to 128 for IPv6: a block has at most 1024 addresses").field_path(".blockPrefix"),
    validation = Rule::new("self.use != 'Reserved' || !has(self.blockPrefix) || self.blockPrefix == (self.cidr.contains(':') ? 128 : 32)")
        .message("the addresses of a Reserved range are granted one by one; remove blockPrefix").field_path(".blockPrefix"),
    validation = Rule::new("self.use == 'Reserved' || !isCIDR(self.cidr) || [self.cidr.contains(':') ? (cidr(self.cidr).prefixLength() >= 122 ? 128 : 124) : (cidr(self.cidr).prefixLength() >= 26 ? 32 : 28)].all(d, self.?blockPrefix.orValue(d) == oldSelf.?blockPrefix.orValue(d))")
        .message("the blockPrefix of a range cannot be changed; remove the range, wait until it is drained, then add it again").field_path(".blockPrefix"),
    validation = Rule::new("self.use == oldSelf.use")
        .message("the use of a range cannot be changed; remove the range, wait until it is drained, then add it again").field_path(".use")
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
    /// Prefix length of the blocks that nodes claim. Default: /28 and /124; /32 and /128 in ranges of 64 addresses or fewer
    /// and in `Reserved` ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 128), extend("format" = "int32"))]
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
    /// One by one, to pods that ask by value (`allowStatic`) or whose `StatefulSet` keeps them (`identity`).
    Reserved,
}

/// A static route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!isCIDR(self.to) || string(cidr(self.to).masked()) == self.to")
        .message("must be a network address in its shortest form, such as 10.20.0.0/16 or fd00:20::/64").field_path(".to"),
    validation = Rule::new("!isCIDR(self.to) || cidr(self.to).prefixLength() > 0")
        .message("a default route would take the pod's primary interface out of use; name what shall be reached").field_path(".to"),
    validation = Rule::new("!has(self.via) || !isIP(self.via) || !isCIDR(self.to) || ip(self.via).family() == cidr(self.to).ip().family()")
        .message("must be of the family of to").field_path(".via")
)]
pub struct Route {
    /// Destination, such as `10.99.0.0/16`.
    pub to: Cidr,
    /// Next hop. Default: the gateway of the pod's range of that family, or the link itself if the range has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Ip>,
}

impl Range {
    /// The prefix length of the range's blocks: the one asked for or the default for its size; single addresses if reserved.
    pub fn block_prefix(&self) -> u8 {
        let (bits, default) = if self.cidr.is_ipv6() { (128, 124) } else { (32, 28) };
        if self.usage == RangeUse::Reserved {
            return bits;
        }
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
    fn a_probe_has_a_time_or_there_is_none() {
        let ipam = |probe: &str| -> Ipam {
            serde_json::from_value(serde_json::json!({ "ranges": [], "probe": probe })).unwrap()
        };
        assert_eq!(ipam("300ms").probe_time(), Some(std::time::Duration::from_millis(300)));
        assert_eq!(ipam("None").probe_time(), None);
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
    fn reserved_addresses_are_granted_one_by_one_however_large_their_range() {
        for (cidr, prefix) in [("10.0.0.0/16", 32), ("fd00::/64", 128)] {
            let range = Range { usage: RangeUse::Reserved, ..range(cidr) };
            assert_eq!(range.block_prefix(), prefix, "{cidr}");
        }
    }
}
