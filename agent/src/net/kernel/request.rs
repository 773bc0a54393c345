//! The requests that are sent to the kernel. Pure: arguments in, netlink messages out.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, BridgeStpState, In6AddrGenMode, InfoBridge, InfoData, InfoKind,
    InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use fairlead_crds::network::Route;
use fairlead_crds::{Cidr, IfName, Mac, names};

use super::super::netlink::nested;

/// `linux/if_link.h`.
const IFLA_IFALIAS: u16 = 20;
/// `linux/if_link.h`.
const IFLA_INET_CONF: u16 = 1;
/// linux/ip.h: `IPV4_DEVCONF_FORWARDING`, `_RP_FILTER`, `_ARP_IGNORE`.
const ISOLATED: [(u16, u32); 3] = [(1, 0), (8, 1), (19, 8)];

/// The veth pair of one interface of a pod.
pub(super) struct Pair<'a> {
    pub host: &'a str,
    pub bridge: u32,
    pub link: &'a IfName,
    pub mac: Mac,
    pub mtu: u32,
    pub namespace: BorrowedFd<'a>,
}

/// Both ends in one message: the pod's is born in the pod under its final name, down; the host's is born
/// enslaved and up. Creating on the host and moving costs 25 times as much (it waits for RCU).
pub(super) fn create_veth(pair: &Pair<'_>) -> RouteNetlinkMessage {
    let mut peer = LinkMessage::default();
    peer.attributes = vec![
        LinkAttribute::IfName(pair.link.to_string()),
        LinkAttribute::NetNsFd(pair.namespace.as_raw_fd()),
        LinkAttribute::Mtu(pair.mtu),
        LinkAttribute::Address(pair.mac.0.to_vec()),
        LinkAttribute::Group(names::LINK_GROUP),
    ];
    let mut host = up(LinkMessage::default());
    host.attributes = vec![
        LinkAttribute::IfName(pair.host.to_owned()),
        LinkAttribute::Mtu(pair.mtu),
        LinkAttribute::Group(names::LINK_GROUP),
        LinkAttribute::Controller(pair.bridge),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ];
    RouteNetlinkMessage::NewLink(host)
}

/// What the kernel ignores on create. `addrgenmode none` keeps IPv6 addresses off the host end: it gets its
/// link-local one only with its carrier, which is after this. It needs no `accept_ra`: what comes in through
/// a port goes to the bridge, never to the port's own IP.
pub(super) fn finish_host_end(index: u32, alias: &str, ipv6: bool) -> RouteNetlinkMessage {
    let mut message = indexed(index);
    message.attributes.push(alias_attribute(alias));
    message.attributes.extend(ipv6.then(no_link_local));
    RouteNetlinkMessage::SetLink(message)
}

/// Makes the host end a port of a bridge, also out of another one, and sets it up.
pub(super) fn join_bridge(host: &str, bridge: u32, alias: &str, ipv6: bool) -> RouteNetlinkMessage {
    let mut message = up(named(host));
    message.attributes.extend([LinkAttribute::Controller(bridge), alias_attribute(alias)]);
    message.attributes.extend(ipv6.then(no_link_local));
    RouteNetlinkMessage::SetLink(message)
}

/// A bridge of ours, down. No spanning tree, so ports forward at once. No multicast snooping: our bridges
/// have no address to be a querier with, and with someone else's querier behind the uplink a port that joined
/// before its first query is cut off from neighbour discovery. With an explicit MAC and MTU neither
/// follows the ports.
pub(super) fn create_bridge(name: &str, mac: Mac, mtu: u32) -> RouteNetlinkMessage {
    let mut message = named(name);
    message.attributes.extend([
        LinkAttribute::Mtu(mtu),
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::Group(names::LINK_GROUP),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![
                InfoBridge::StpState(BridgeStpState::Disabled),
                InfoBridge::ForwardDelay(0),
                InfoBridge::MulticastSnooping(false),
            ])),
        ]),
    ]);
    RouteNetlinkMessage::NewLink(message)
}

/// Brings a bridge of ours to what it shall be and sets it up. The node takes no part in it: it answers no
/// ARP for its own addresses there (`arp_ignore` 8), drops what claims a source it would not route to
/// there (`rp_filter` 1), and forwards nothing that comes in.
pub(super) fn configure_bridge(
    index: u32,
    mac: Mac,
    mtu: u32,
    alias: &str,
    ipv6: bool,
) -> RouteNetlinkMessage {
    let mut message = up(indexed(index));
    let isolated = ISOLATED.map(|(kind, value)| DefaultNla::new(kind, value.to_ne_bytes().to_vec()));
    let mut families = vec![AfSpecUnspec::Inet(vec![AfSpecInet::Other(nested(IFLA_INET_CONF, &isolated))])];
    families.extend(ipv6.then(addr_gen_mode_none));
    message.attributes = vec![
        LinkAttribute::Mtu(mtu),
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::Group(names::LINK_GROUP),
        alias_attribute(alias),
        LinkAttribute::AfSpecUnspec(families),
    ];
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn set_controller(index: u32, controller: u32) -> RouteNetlinkMessage {
    let mut message = indexed(index);
    message.attributes.push(LinkAttribute::Controller(controller));
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn set_up(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::SetLink(up(indexed(index)))
}

pub(super) fn set_mtu(index: u32, mtu: u32) -> RouteNetlinkMessage {
    let mut message = indexed(index);
    message.attributes.push(LinkAttribute::Mtu(mtu));
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn set_mtu_by_name(name: &str, mtu: u32) -> RouteNetlinkMessage {
    let mut message = named(name);
    message.attributes.push(LinkAttribute::Mtu(mtu));
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn set_alias(index: u32, alias: &str) -> RouteNetlinkMessage {
    let mut message = indexed(index);
    message.attributes.push(alias_attribute(alias));
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn set_group(index: u32, group: u32) -> RouteNetlinkMessage {
    let mut message = indexed(index);
    message.attributes.push(LinkAttribute::Group(group));
    RouteNetlinkMessage::SetLink(message)
}

pub(super) fn delete_link(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelLink(indexed(index))
}

pub(super) fn delete_group(group: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Group(group));
    RouteNetlinkMessage::DelLink(message)
}

pub(super) fn get_link(name: &str) -> RouteNetlinkMessage {
    let mut message = named(name);
    message.attributes.push(without_statistics());
    RouteNetlinkMessage::GetLink(message)
}

pub(super) fn get_link_at(index: u32) -> RouteNetlinkMessage {
    let mut message = indexed(index);
    message.attributes.push(without_statistics());
    RouteNetlinkMessage::GetLink(message)
}

pub(super) fn dump_links() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(without_statistics());
    RouteNetlinkMessage::GetLink(message)
}

/// The kernel leaves out what is not a port of `controller`.
pub(super) fn dump_ports(controller: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![without_statistics(), LinkAttribute::Controller(controller)];
    RouteNetlinkMessage::GetLink(message)
}

/// Adds an address. IPv6 without duplicate address detection: our allocator is the authority, and the
/// address is usable at once. The connected route comes with it.
pub(super) fn add_address(index: u32, address: Cidr) -> RouteNetlinkMessage {
    let mut message = address_message(index, address);
    match address.0 {
        IpNet::V4(net) if net.prefix_len() < 31 => {
            message.attributes.push(AddressAttribute::Broadcast(net.broadcast()));
        }
        IpNet::V4(_) => {}
        IpNet::V6(_) => message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad)),
    }
    message.attributes.push(AddressAttribute::Protocol(AddressProtocol::from(names::ROUTE_PROTOCOL)));
    RouteNetlinkMessage::NewAddress(message)
}

pub(super) fn delete_address(index: u32, address: Cidr) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelAddress(address_message(index, address))
}

/// All addresses of the namespace, or of one link.
pub(super) fn dump_addresses(index: Option<u32>) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.index = index.unwrap_or_default();
    RouteNetlinkMessage::GetAddress(message)
}

pub(super) fn add_route(index: u32, route: &Route) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewRoute(route_message(index, route))
}

pub(super) fn delete_route(index: u32, route: &Route) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelRoute(route_message(index, route))
}

/// Routes of both families with our protocol number.
pub(super) fn dump_our_routes() -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.protocol = RouteProtocol::from(names::ROUTE_PROTOCOL);
    RouteNetlinkMessage::GetRoute(message)
}

/// Routes of both families through one link.
pub(super) fn dump_routes_through(index: u32) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.attributes.push(RouteAttribute::Oif(index));
    RouteNetlinkMessage::GetRoute(message)
}

/// Which route a packet to the address would take.
pub(super) fn get_route(address: IpAddr) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(address);
    message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
    message.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
    RouteNetlinkMessage::GetRoute(message)
}

pub(super) fn get_nsid(namespace: BorrowedFd<'_>) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetNsId(nsid_message(namespace, None))
}

/// Lets the kernel choose the id.
pub(super) fn assign_nsid(namespace: BorrowedFd<'_>) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewNsId(nsid_message(namespace, Some(-1)))
}

fn nsid_message(namespace: BorrowedFd<'_>, id: Option<i32>) -> NsidMessage {
    let mut message = NsidMessage::default();
    message.attributes.extend(u32::try_from(namespace.as_raw_fd()).ok().map(NsidAttribute::Fd));
    message.attributes.extend(id.map(NsidAttribute::Id));
    message
}

fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message
}

fn indexed(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn up(mut message: LinkMessage) -> LinkMessage {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

/// Without a terminating zero: the kernel counts it, and takes 255 bytes at most.
fn alias_attribute(alias: &str) -> LinkAttribute {
    LinkAttribute::Other(DefaultNla::new(IFLA_IFALIAS, alias.as_bytes().to_vec()))
}

fn no_link_local() -> LinkAttribute {
    LinkAttribute::AfSpecUnspec(vec![addr_gen_mode_none()])
}

fn addr_gen_mode_none() -> AfSpecUnspec {
    AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])
}

/// Counting its statistics is most of the work of describing a link.
fn without_statistics() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}

fn address_message(index: u32, address: Cidr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.family = family(address.addr());
    message.header.prefix_len = address.0.prefix_len();
    message.header.scope = AddressScope::Universe;
    message.attributes =
        vec![AddressAttribute::Address(address.addr()), AddressAttribute::Local(address.addr())];
    message
}

fn route_message(index: u32, route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.to.addr());
    message.header.destination_prefix_length = route.to.0.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::from(names::ROUTE_PROTOCOL);
    message.header.kind = RouteType::Unicast;
    message.header.scope = if route.via.is_none() { RouteScope::Link } else { RouteScope::Universe };
    let gateway = route.via.map(|via| RouteAttribute::Gateway(RouteAddress::from(via.0)));
    message.attributes = vec![
        RouteAttribute::Destination(RouteAddress::from(route.to.0.network())),
        RouteAttribute::Oif(index),
    ];
    message.attributes.extend(gateway);
    message
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
