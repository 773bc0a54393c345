//! Tells neighbours who has an address now: gratuitous ARP (RFC 5227, 3) and unsolicited neighbour
//! advertisements (RFC 4861, 7.2.6), one frame per address. Frames are built here; sending needs `NET_RAW`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, SockaddrStorage, sendto, socket,
};

use fairlead_crds::{Ip, Mac};

use super::{NetError, netns};

const BROADCAST: Mac = Mac([0xff; 6]);
/// `ff02::1`, all nodes, and the Ethernet address that it is sent to (RFC 2464, 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Sends one frame for each address out of a link of the calling thread's namespace.
pub(super) fn send(link: &str, mac: Mac, addresses: &[Ip]) -> Result<(), NetError> {
    let failed = |errno| netns::system(&format!("announce the addresses of {link}"), errno);
    // Protocol none: it sends only, and nothing is queued for it.
    let socket =
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?;
    let link = link_address(link).map_err(failed)?;
    for address in addresses {
        let frame = match address.0 {
            IpAddr::V4(address) => gratuitous_arp(mac, address),
            IpAddr::V6(address) => unsolicited_advertisement(mac, address),
        };
        sendto(socket.as_raw_fd(), &frame, &link, MsgFlags::empty()).map_err(failed)?;
    }
    Ok(())
}

/// The link as a packet socket's destination. Only the C library fills in such an address without unsafe code.
fn link_address(link: &str) -> Result<LinkAddr, Errno> {
    getifaddrs()?
        .filter(|entry| entry.interface_name == link)
        .filter_map(|entry| entry.address.as_ref().and_then(SockaddrStorage::as_link_addr).copied())
        .find(|address| address.family() == Some(AddressFamily::Packet))
        .ok_or(Errno::ENODEV)
}

/// A request for the own address: what an "announcement" of RFC 5227 is, and what all stacks take in.
fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    // Ethernet, IPv4, six and four bytes, request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac.0);
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

/// With the override flag, so that an old entry is replaced.
fn unsolicited_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0];
    body.extend(address.octets());
    // Option: target link-layer address, in units of eight bytes.
    body.extend([2, 1]);
    body.extend(mac.0);
    let sum = checksum(address, ALL_NODES, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());

    let mut frame = ethernet(ALL_NODES_MAC, mac, ETHERTYPE_IPV6);
    let length = u16::try_from(body.len()).unwrap_or_default();
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    // Receivers drop it with any other hop limit: it could come from outside the link.
    frame.extend([ICMPV6, 255]);
    frame.extend(address.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(body);
    frame
}

fn ethernet(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    [&to.0[..], &from.0[..], &kind.to_be_bytes()[..]].concat()
}

/// `ICMPv6` checksum over the pseudo-header (RFC 8200, 8.1).
fn checksum(from: Ipv6Addr, to: Ipv6Addr, body: &[u8]) -> u16 {
    let length = u32::try_from(body.len()).unwrap_or_default().to_be_bytes();
    let pseudo = [&from.octets()[..], &to.octets()[..], &length, &[0, 0, 0, ICMPV6]].concat();
    let words = pseudo.chunks(2).chain(body.chunks(2));
    let mut sum: u32 =
        words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).map_or(0, |sum| !sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0x5e, 0x10, 0, 1]);

    #[test]
    fn a_gratuitous_arp_asks_everyone_for_the_own_address() {
        let frame = gratuitous_arp(MAC, Ipv4Addr::new(10, 20, 0, 5));
        let expected = [
            &[0xff; 6][..],
            &MAC.0,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &MAC.0,
            &[10, 20, 0, 5],
            &[0; 6],
            &[10, 20, 0, 5],
        ];
        assert_eq!(frame, expected.concat());
    }

    #[test]
    fn an_advertisement_carries_the_mac_and_a_good_checksum() {
        let address: Ipv6Addr = "fd00:20::5".parse().unwrap();
        let frame = unsolicited_advertisement(MAC, address);
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[..14], [&ALL_NODES_MAC.0[..], &MAC.0, &[0x86, 0xdd]].concat());
        assert_eq!(frame[14 + 7], 255, "hop limit");
        let body = &frame[14 + 40..];
        assert_eq!((body[0], body[4] & 0xe0), (136, 0x20), "override, not solicited, not a router");
        assert_eq!(body[8..24], address.octets());
        assert_eq!(body[24..], [&[2, 1][..], &MAC.0].concat());
        assert_eq!(checksum(address, ALL_NODES, body), 0, "the sum over a good packet is all ones");
    }

    #[test]
    fn the_checksum_is_that_of_a_captured_packet() {
        // A neighbour advertisement from fe80::1 to ff02::1, sum computed by hand: all words of the packet and
        // the pseudo-header in ones' complement.
        let body = [136, 0, 0, 0, 0x20, 0, 0, 0];
        let from = "fe80::1".parse().unwrap();
        let sum: u32 = 0xfe80 + 1 + 0xff02 + 1 + 8 + 58 + 0x8800 + 0x2000;
        let folded = (sum & 0xffff) + (sum >> 16);
        assert_eq!(u32::from(checksum(from, ALL_NODES, &body)), 0xffff - folded);
    }
}
