//! Addresses and routes as this crate reads them, out of netlink messages.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};

use fairlead_crds::network::Route;
use fairlead_crds::{Cidr, Ip, names};

/// An address that counts, and whether it carries our protocol number.
pub(super) fn address(message: &AddressMessage) -> Option<(Cidr, bool)> {
    // On a point-to-point link the address is the peer's, and the local one the link's.
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return None;
    }
    let ours = message.attributes.iter().any(|attribute| {
        matches!(attribute, AddressAttribute::Protocol(protocol) if u8::from(*protocol) == names::ROUTE_PROTOCOL)
    });
    Some((Cidr(IpNet::new(address, message.header.prefix_len).ok()?), ours))
}

/// A route of ours in the main table: the index of its link, and the route.
pub(super) fn route(message: &RouteMessage) -> Option<(u32, Route)> {
    let header = &message.header;
    let main = header.table == RouteHeader::RT_TABLE_MAIN && header.kind == RouteType::Unicast;
    if !main || u8::from(header.protocol) != names::ROUTE_PROTOCOL {
        return None;
    }
    let (mut index, mut to, mut via) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(oif) => index = Some(*oif),
            RouteAttribute::Destination(address) => to = ip(address),
            RouteAttribute::Gateway(address) => via = ip(address).map(Ip),
            _ => {}
        }
    }
    let to = to.unwrap_or_else(|| unspecified(message));
    Some((index?, Route { to: Cidr(IpNet::new(to, header.destination_prefix_length).ok()?), via }))
}

fn unspecified(message: &RouteMessage) -> IpAddr {
    match message.header.address_family {
        netlink_packet_route::AddressFamily::Inet => IpAddr::from([0; 4]),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
