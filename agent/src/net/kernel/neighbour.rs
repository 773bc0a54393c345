//! What the node's kernel remembers of neighbours.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::super::NetError;
use super::super::netlink::{Refusal, Socket};
use super::host;

/// Forgets who has an address on a link, unless an administrator has put that down for good.
pub(super) fn forget(socket: &mut Socket, link: &str, address: IpAddr) -> Result<(), NetError> {
    let failed = |refusal: Refusal| refusal.during(format!("forget the neighbour {address} on {link}"));
    let Some(link) = host::find(socket, link)? else {
        return Ok(());
    };
    let entry = entry(link.index, address);
    let found = match socket.get(RouteNetlinkMessage::GetNeighbour(entry.clone())) {
        Err(refusal) if refusal.is(Errno::ENOENT) => return Ok(()),
        found => found.map_err(failed)?,
    };
    match found {
        RouteNetlinkMessage::NewNeighbour(known) if known.header.state == NeighbourState::Permanent => Ok(()),
        _ => match socket.change(RouteNetlinkMessage::DelNeighbour(entry), 0) {
            Err(refusal) if refusal.is(Errno::ENOENT) => Ok(()),
            done => done.map_err(failed),
        },
    }
}

fn entry(link: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = link;
    let (family, address) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
    };
    message.header.family = family;
    message.attributes = vec![NeighbourAttribute::Destination(address)];
    message
}
