//! Tells neighbours who has an address now: gratuitous ARP (RFC 5227, 3) and unsolicited neighbour
//! advertisements (RFC 4861, 7.2.6), one frame per address. Sending needs `NET_RAW`.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, SockaddrStorage, sendto, socket,
};

use fairlead_crds::{Ip, Mac};

use super::{NetError, frames, netns};

/// Sends one frame for each address out of a link of the calling thread's namespace.
pub(super) fn send(link: &str, mac: Mac, addresses: &[Ip]) -> Result<(), NetError> {
    let failed = |errno| netns::system(&format!("announce the addresses of {link}"), errno);
    // Protocol none: it sends only, and nothing is queued for it.
    let socket =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?;
    let link = link_address(link).map_err(failed)?;
    for address in addresses {
        let frame = match address.0 {
            IpAddr::V4(address) => frames::gratuitous_arp(mac, address),
            IpAddr::V6(address) => frames::unsolicited_advertisement(mac, address),
        };
        sendto(socket.as_raw_fd(), &frame, &link, MsgFlags::empty()).map_err(failed)?;
    }
    Ok(())
}

/// The link as a packet socket's destination. Only the C library fills in such an address without unsafe code.
pub(super) fn link_address(link: &str) -> Result<LinkAddr, Errno> {
    getifaddrs()?
        .filter(|entry| entry.interface_name == link)
        .filter_map(|entry| entry.address.as_ref().and_then(SockaddrStorage::as_link_addr).copied())
        .find(|address| address.family() == Some(AddressFamily::Packet))
        .ok_or(Errno::ENODEV)
}
