//! Frames of the neighbour protocols, ARP (RFC 826) and neighbour discovery (RFC 4861): built and read. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fairlead_crds::Mac;

const BROADCAST: Mac = Mac([0xff; 6]);
/// `ff02::1`, all nodes, and the Ethernet address that it is sent to (RFC 2464, 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options of neighbour discovery.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;

/// A request for the own address: what an "announcement" of RFC 5227 is, and what all stacks take in.
pub(super) fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    arp_request(mac, address, address)
}

/// A request that says nothing about who asks, so that it changes nobody's cache (RFC 5227, 1.1).
pub(super) fn arp_probe(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    arp_request(mac, Ipv4Addr::UNSPECIFIED, address)
}

fn arp_request(mac: Mac, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    // Ethernet, IPv4, six and four bytes, request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac.0);
    frame.extend(from.octets());
    frame.extend([0; 6]);
    frame.extend(to.octets());
    frame
}

/// With the override flag, so that an old entry is replaced.
pub(super) fn unsolicited_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0];
    body.extend(address.octets());
    // The option's length is in units of eight bytes.
    body.extend([TARGET_ADDRESS, 1]);
    body.extend(mac.0);
    icmpv6(mac, address, ALL_NODES, body)
}

/// A solicitation from nobody, as for duplicate address detection (RFC 4862, 5.4.2): who has the address answers to
/// all nodes.
pub(super) fn probing_solicitation(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    body.extend(address.octets());
    icmpv6(mac, Ipv6Addr::UNSPECIFIED, solicited_node(address), body)
}

/// The multicast address at which an address is asked for (RFC 4291, 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

fn icmpv6(mac: Mac, from: Ipv6Addr, to: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let sum = checksum(from, to, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let [.., a, b, c, d] = to.octets();
    let mut frame = ethernet(Mac([0x33, 0x33, a, b, c, d]), mac, ETHERTYPE_IPV6);
    let length = u16::try_from(body.len()).unwrap_or_default();
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    // Receivers drop it with any other hop limit: it could come from outside the link.
    frame.extend([ICMPV6, 255]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(body);
    frame
}

fn ethernet(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    [&to.0[..], &from.0[..], &kind.to_be_bytes()[..]].concat()
}

/// Which address the sender of a frame says, or is about to say, is its own, and its hardware address: an ARP
/// request or reply, an ARP probe, an advertisement, a solicitation from nobody.
pub(super) fn claim(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    match u16::from_be_bytes(bytes(frame, 12)?) {
        ETHERTYPE_ARP => claim_by_arp(frame.get(14..)?),
        ETHERTYPE_IPV6 => claim_by_discovery(frame),
        _ => None,
    }
}

fn claim_by_arp(arp: &[u8]) -> Option<(IpAddr, Mac)> {
    if bytes(arp, 0)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let (sender, target) = (Ipv4Addr::from(bytes::<4>(arp, 14)?), Ipv4Addr::from(bytes::<4>(arp, 24)?));
    let claimed = if sender.is_unspecified() { target } else { sender };
    Some((claimed.into(), Mac(bytes(arp, 8)?)))
}

fn claim_by_discovery(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    let ip = frame.get(14..)?;
    if *ip.get(6)? != ICMPV6 || *ip.get(7)? != 255 {
        return None;
    }
    let (from, body) = (Ipv6Addr::from(bytes::<16>(ip, 8)?), ip.get(40..)?);
    let target = Ipv6Addr::from(bytes::<16>(body, 8)?);
    let sender = Mac(bytes(frame, 6)?);
    match *body.first()? {
        ADVERTISEMENT => Some((target.into(), option(body, TARGET_ADDRESS).unwrap_or(sender))),
        SOLICITATION if from.is_unspecified() => Some((target.into(), sender)),
        SOLICITATION => Some((from.into(), option(body, SOURCE_ADDRESS).unwrap_or(sender))),
        _ => None,
    }
}

/// A hardware address among the options of a message, of which there are few.
fn option(body: &[u8], kind: u8) -> Option<Mac> {
    let mut rest = body.get(24..)?;
    while let [found, length, ..] = *rest {
        if found == kind {
            return Some(Mac(bytes(rest, 2)?));
        }
        rest = rest.get(usize::from(length.max(1)) * 8..)?;
    }
    None
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at + N)?.try_into().ok()
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
        assert_eq!(frame[..14], [&[0x33, 0x33, 0, 0, 0, 1][..], &MAC.0, &[0x86, 0xdd]].concat());
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

    #[test]
    fn a_probe_says_nothing_of_who_asks() {
        let frame = arp_probe(MAC, Ipv4Addr::new(10, 20, 0, 5));
        assert_eq!(frame[28..32], [0; 4]);
        assert_eq!(frame[38..], [10, 20, 0, 5]);
        let frame = probing_solicitation(MAC, "fd00:20::12:3456".parse().unwrap());
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        assert_eq!(frame[14 + 8..14 + 24], [0; 16], "from nobody");
        let to: Ipv6Addr = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(frame[14 + 24..14 + 40], to.octets());
        assert_eq!(checksum(Ipv6Addr::UNSPECIFIED, to, &frame[54..]), 0);
    }

    #[test]
    fn who_claims_what_is_read_from_every_kind_of_frame() {
        let (v4, v6) = (Ipv4Addr::new(10, 20, 0, 5), "fd00:20::5".parse::<Ipv6Addr>().unwrap());
        for frame in [gratuitous_arp(MAC, v4), arp_probe(MAC, v4)] {
            assert_eq!(claim(&frame), Some((v4.into(), MAC)));
        }
        for frame in [unsolicited_advertisement(MAC, v6), probing_solicitation(MAC, v6)] {
            assert_eq!(claim(&frame), Some((v6.into(), MAC)));
        }
        // A request for another's address claims only the sender's own.
        assert_eq!(claim(&arp_request(MAC, v4, Ipv4Addr::new(10, 20, 0, 9))), Some((v4.into(), MAC)));
    }

    #[test]
    fn what_is_cut_short_or_from_outside_the_link_claims_nothing() {
        let address = "fd00:20::5".parse().unwrap();
        let mut frame = unsolicited_advertisement(MAC, address);
        for length in 0..14 + 40 + 24 {
            assert_eq!(claim(&frame[..length]), None, "{length}");
        }
        // Without its option the sender of the frame has it; an option without length ends the look.
        assert_eq!(claim(&frame[..14 + 40 + 24]), Some((address.into(), MAC)));
        frame[14 + 40 + 24] = 9;
        frame[14 + 40 + 25] = 0;
        assert_eq!(claim(&frame), Some((address.into(), MAC)));
        frame[14 + 7] = 64;
        assert_eq!(claim(&frame), None);
    }
}
