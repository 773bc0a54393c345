//! Which reserved addresses a pod shall have: those it asks for by value, and those its `StatefulSet` keeps for it. Pure.
//!
//! The controller grants by these rules and the agent takes by them. Nothing here says who has an address: that is in
//! the blocks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::Network;
use crate::address::{Cidr, Family, Mac};
use crate::network::{AdmittedRange, Identity, RangeState, RangeUse};
use crate::reason::Reason;
use crate::request::Request;

/// One reserved address that an attachment shall have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its family.
    pub family: Family,
    /// The address asked for by value; without one the pod's `StatefulSet` keeps one for it.
    pub value: Option<IpAddr>,
    /// The prefix length asked for.
    prefix: Option<u8>,
}

/// Why a network cannot give what is asked for, in one word and one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The word.
    pub reason: Reason,
    /// The sentence.
    pub message: String,
}

fn refused(message: String) -> Refusal {
    Refusal { reason: Reason::AddressRefused, message }
}

/// The reserved addresses that an attachment shall have, at most one of each family; the other families get whatever the
/// network hands out.
///
/// # Errors
/// [`Refusal`] if the network cannot give what is asked for; an edit of the pod or of the network cures it.
pub fn asks(network: &Network, request: &Request, stateful_set: Option<&str>) -> Result<Vec<Ask>, Refusal> {
    let name = network.metadata.name.as_deref().unwrap_or_default();
    check_allowed(name, network, request)?;
    request.mac.map_or(Ok(()), |mac| check_mac(name, mac))?;
    let mut asks = request.ips.iter().map(|ip| by_value(name, network, ip)).collect::<Result<Vec<_>, _>>()?;
    let families: BTreeSet<Family> = asks.iter().map(|ask| ask.family).collect();
    if families.len() < asks.len() {
        let message = format!("ips of network {name}: at most one address of each family can be asked for");
        return Err(refused(message));
    }
    for ask in kept(network, stateful_set) {
        if asks.iter().all(|by_value| by_value.family != ask.family) {
            asks.push(ask);
        }
    }
    if asks.is_empty() && ranges(network).next().is_some() && dynamic(network).next().is_none() {
        return Err(only_reserved(name, network));
    }
    Ok(asks)
}

fn check_allowed(name: &str, network: &Network, request: &Request) -> Result<(), Refusal> {
    let field = match (request.ips.is_empty(), request.mac) {
        (true, None) => return Ok(()),
        (false, _) => "ips",
        (true, Some(_)) => "mac",
    };
    if network.spec.allow_static {
        return Ok(());
    }
    let message = format!(
        "{field} of network {name}: the network does not allow values by choice; set its allowStatic, or remove {field}"
    );
    Err(Refusal { reason: Reason::StaticNotAllowed, message })
}

/// A device takes any unicast address but zero (`is_valid_ether_addr`, linux/etherdevice.h).
fn check_mac(name: &str, mac: Mac) -> Result<(), Refusal> {
    let problem = match mac.0 {
        [0, 0, 0, 0, 0, 0] => "is no address",
        [first, ..] if first & 1 == 1 => "is a multicast address",
        _ => return Ok(()),
    };
    Err(refused(format!(
        "mac {mac} of network {name} {problem}; ask for a unicast one such as 02:00:5e:10:00:01"
    )))
}

fn by_value(name: &str, network: &Network, text: &str) -> Result<Ask, Refusal> {
    let (address, prefix) = match (text.parse::<IpAddr>(), text.parse::<IpNet>()) {
        (Ok(address), _) => (address, None),
        (_, Ok(net)) => (net.addr(), Some(net.prefix_len())),
        _ => return Err(refused(format!("ips of network {name}: {text:?} is not an IP address or CIDR"))),
    };
    check_address(name, network, address)?;
    let known = |prefix: &u8| around(network, address).any(|range| range.cidr.0.prefix_len() == *prefix);
    if let Some(prefix) = prefix.filter(|prefix| !known(prefix)) {
        let cidrs: Vec<String> = around(network, address).map(|range| range.cidr.to_string()).collect();
        let message = format!(
            "address {address}/{prefix} of network {name}: the prefix length must be that of {}; leave it out to get the right one",
            cidrs.join(" or ")
        );
        return Err(refused(message));
    }
    Ok(Ask { family: Family::of_address(address), value: Some(address), prefix })
}

/// Whether an address can be asked for by value.
fn check_address(name: &str, network: &Network, address: IpAddr) -> Result<(), Refusal> {
    let say = |problem: String| Err(refused(format!("address {address} of network {name} {problem}")));
    let reserved = around(network, address).find(|range| range.usage == RangeUse::Reserved);
    let open =
        around(network, address).find(|range| range.usage == RangeUse::Pods && !is_excluded(range, address));
    match (reserved, open) {
        (Some(range), _) if range.state == RangeState::Draining => {
            say(format!("lies in {}, which was removed from the network and drains", range.cidr))
        }
        (Some(range), _) => unusable(range, address).map_or(Ok(()), say),
        (None, Some(range)) => say(format!(
            "lies in {}, whose addresses are handed out to any pod; exclude a part of it and add that part as a range with use: Reserved",
            range.cidr
        )),
        (None, None) => say(outside(network, Family::of_address(address))),
    }
}

/// What keeps an address of a reserved range from being handed out.
fn unusable(range: &AdmittedRange, address: IpAddr) -> Option<String> {
    if range.gateway.is_some_and(|gateway| gateway.0 == address) {
        return Some(format!("is the gateway of {}; ask for another", range.cidr));
    }
    if is_excluded(range, address) {
        return Some(format!("is excluded from {}; ask for another, or change the exclude", range.cidr));
    }
    let what = if address == range.cidr.0.network() { "network" } else { "broadcast" };
    range
        .unusable()
        .contains(address)
        .then(|| format!("is the {what} address of {}; ask for another", range.cidr))
}

fn is_excluded(range: &AdmittedRange, address: IpAddr) -> bool {
    range.exclude.iter().any(|part| part.0.contains(&address))
}

fn outside(network: &Network, family: Family) -> String {
    let reserved: Vec<String> = reserved(network, family).map(|range| range.cidr.to_string()).collect();
    if reserved.is_empty() {
        return format!(
            "lies in no range, and the network has no {family} range with use: Reserved; add one"
        );
    }
    format!("lies in no range of it; addresses can be asked for in {}", reserved.join(" and "))
}

fn only_reserved(name: &str, network: &Network) -> Refusal {
    let way_out = match (stateful(network), network.spec.allow_static) {
        (true, true) => "only pods of StatefulSets get one, and those that ask for one in ips",
        (true, false) => "only pods of StatefulSets get one",
        (false, true) => "ask for one in ips",
        (false, false) => "set its identity or allowStatic, or add a range for any pod",
    };
    refused(format!("network {name} has reserved addresses only: {way_out}"))
}

fn stateful(network: &Network) -> bool {
    network.spec.ipam.as_ref().is_some_and(|ipam| ipam.identity == Identity::StatefulSet)
}

/// What the pod's `StatefulSet` keeps for it: an address of every family that has a reserved range.
fn kept(network: &Network, stateful_set: Option<&str>) -> Vec<Ask> {
    if !stateful(network) || stateful_set.is_none() {
        return Vec::new();
    }
    let families = Family::ALL.into_iter().filter(|family| reserved(network, *family).next().is_some());
    families.map(|family| Ask { family, value: None, prefix: None }).collect()
}

fn ranges(network: &Network) -> impl Iterator<Item = &AdmittedRange> {
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    ranges.filter(|range| range.state != RangeState::Refused)
}

/// Ranges with the address, whether or not they exclude it.
fn around(network: &Network, address: IpAddr) -> impl Iterator<Item = &AdmittedRange> {
    ranges(network).filter(move |range| range.cidr.0.contains(&address))
}

fn dynamic(network: &Network) -> impl Iterator<Item = &AdmittedRange> {
    ranges(network).filter(|range| range.usage == RangeUse::Pods && range.state == RangeState::Admitted)
}

/// The ranges of a family that reserved addresses are granted from, in the order of preference.
pub fn reserved(network: &Network, family: Family) -> impl Iterator<Item = &AdmittedRange> {
    let admitted =
        |range: &&AdmittedRange| range.usage == RangeUse::Reserved && range.state == RangeState::Admitted;
    ranges(network).filter(admitted).filter(move |range| Family::of(range.cidr) == family)
}

/// The address as the pod's interface gets it: with the prefix length asked for, or that of the widest range around it, so
/// that the addresses of a range which it was cut out of are on the same link.
pub fn on_interface(network: &Network, ask: &Ask, address: IpAddr) -> Cidr {
    let widest = around(network, address).map(|range| range.cidr.0.prefix_len()).min();
    let prefix = ask.prefix.or(widest).unwrap_or_else(|| ask.family.bits());
    Cidr(IpNet::new(address, prefix).unwrap_or_else(|_| IpNet::from(address)))
}

/// Requests with the number of each among those for the same network, counted from 0.
pub fn numbered(requests: &[Request]) -> impl Iterator<Item = (u32, &Request)> {
    requests.iter().enumerate().map(|(index, request)| {
        let before = requests[..index].iter().filter(|other| other.network == request.network).count();
        (u32::try_from(before).unwrap_or(u32::MAX), request)
    })
}

/// The `StatefulSet` that controls a pod, if the pod's name is one of its ordinals'.
pub fn stateful_set(pod: &str, owners: &[OwnerReference]) -> Option<String> {
    let is_set = |owner: &&OwnerReference| {
        owner.controller == Some(true)
            && owner.kind == "StatefulSet"
            && owner.api_version.starts_with("apps/")
    };
    let set = owners.iter().find(is_set)?;
    let ordinal = pod.strip_prefix(set.name.as_str())?.strip_prefix('-')?;
    (!ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit())).then(|| set.name.clone())
}

/// The name of a claim's pods: `namespace/name`.
pub fn claimant(namespace: &str, pod: &str) -> String {
    format!("{namespace}/{pod}")
}

#[cfg(test)]
mod tests;
