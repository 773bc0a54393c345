//! Connections that the node's kernel tracks: those of an address are forgotten, so that the next pod that has it is
//! not taken for the one before. Speaks ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`); no module is loaded for it.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, Nla,
    NlaBuffer, NlasIterator, Parseable,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::libc;

use super::NetError;
use super::netlink::{HEADER, Refusal, acknowledged, done, frames, late, nested, open_socket};

/// `NFNL_SUBSYS_CTNETLINK`, and its messages.
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
/// `struct nfgenmsg`: family, version, resource.
const GENERIC: usize = 4;
/// `CTA_TUPLE_ORIG` and `CTA_TUPLE_REPLY`, which are also the kinds of flags in `CTA_FILTER`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// `CTA_TUPLE_IP`.
const IP: u16 = 1;
/// `CTA_IP_V4_SRC` and `CTA_IP_V4_DST`, which are also the flags in `CTA_FILTER` that say what of a tuple counts.
const SOURCE: u16 = 1;
const DESTINATION: u16 = 2;
/// `CTA_IP_V4_SRC`, `_V4_DST`, `_V6_SRC` and `_V6_DST`.
const ADDRESSES: [u16; 4] = [1, 2, 3, 4];
/// Bytes of an answer at most, as for other dumps.
const BUFFER: usize = 64 << 10;

/// How many connections are read in the time that the kernel needs for the filtered lists of one address: with each list
/// it walks its whole table, which has places for many more, 262,144 as a rule.
const READ: usize = 8192;
/// How many are read at most, so that it ends in time.
const MOST: usize = 32 * READ;

/// Forgets the connections of the calling thread's namespace in which one of the addresses takes part, in either
/// direction. `tracked` is how many it tracks in all. What fails stops none of the others.
pub(super) fn forget(addresses: &[IpAddr], tracked: usize, deadline: Duration) -> Result<(), NetError> {
    if tracked == 0 {
        return Ok(());
    }
    let (ipv4, ipv6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|address| address.is_ipv4());
    let mut done = forget_listed(&ipv6, &[Vec::new()], deadline);
    if tracked <= MOST.min(READ * ipv4.len()) {
        done = done.and(forget_listed(&ipv4, &[Vec::new()], deadline));
    } else {
        for address in ipv4 {
            done = done.and(forget_listed(&[address], &filters(address), deadline));
        }
    }
    done
}

/// The same for addresses of one family, among the connections that one of the filters leaves.
fn forget_listed(
    addresses: &[IpAddr],
    filters: &[Vec<DefaultNla>],
    deadline: Duration,
) -> Result<(), NetError> {
    let Some(first) = addresses.first() else { return Ok(()) };
    let others = addresses.len() - 1;
    let failed =
        |refusal: Refusal| refusal.during(format!("forget the connections of {first} and {others} more"));
    let wanted: HashSet<_> = addresses.iter().copied().map(octets).collect();
    let mut wire = Wire::open(family(*first), deadline).map_err(|source| failed(source.into()))?;
    for filter in filters {
        for connection in wire.list(filter, &wanted).map_err(failed)? {
            match wire.delete(&connection) {
                Ok(()) => {}
                // It ended by itself, or both of its ends have the address.
                Err(refusal) if refusal.is(Errno::ENOENT) => {}
                Err(refusal) => return Err(failed(refusal)),
            }
        }
    }
    Ok(())
}

/// What the kernel is asked to leave out of a list: IPv4 connections without the address on one side of one tuple.
/// For IPv6 its filter means the opposite (`ctnetlink_filter_match_tuple`, seen on Linux 6.18), so it is not used.
/// Empty for an address that is not of IPv4.
fn filters(address: IpAddr) -> Vec<Vec<DefaultNla>> {
    let IpAddr::V4(address) = address else {
        return Vec::new();
    };
    let of = |(tuple, side): (u16, u16)| {
        let ip = DefaultNla::new(side, address.octets().to_vec());
        let flags = DefaultNla::new(tuple, u32::from(side).to_ne_bytes().to_vec());
        vec![of_nested(tuple, &[of_nested(IP, &[ip])]), of_nested(FILTER, &[flags])]
    };
    [(ORIGINAL, SOURCE), (ORIGINAL, DESTINATION), (REPLY, SOURCE), (REPLY, DESTINATION)].map(of).into()
}

struct Wire {
    socket: netlink_sys::Socket,
    family: u8,
    sequence: u32,
    end: Instant,
}

impl Wire {
    fn open(family: u8, deadline: Duration) -> io::Result<Self> {
        let socket = open_socket(NETLINK_NETFILTER, deadline)?;
        Ok(Self { socket, family, sequence: 0, end: Instant::now() + deadline })
    }

    /// What names each connection of the addresses among those that the filter leaves.
    fn list(
        &mut self,
        filter: &[DefaultNla],
        wanted: &HashSet<Vec<u8>>,
    ) -> Result<Vec<Vec<DefaultNla>>, Refusal> {
        self.send(GET, NLM_F_DUMP, filter)?;
        let mut found = Vec::new();
        let mut take = |payload: &[u8]| found.extend(names(payload).filter(|_| take_part(payload, wanted)));
        while !self.receive(&mut take)? {}
        Ok(found)
    }

    fn delete(&mut self, names: &[DefaultNla]) -> Result<(), Refusal> {
        self.send(DELETE, NLM_F_ACK, names)?;
        while !self.receive(&mut |_| ())? {}
        Ok(())
    }

    fn send(&mut self, kind: u16, flags: u16, attributes: &[DefaultNla]) -> Result<(), Refusal> {
        self.sequence += 1;
        let length = HEADER + GENERIC + attributes.buffer_len();
        let mut bytes = u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([self.family, 0, 0, 0]);
        bytes.resize(length, 0);
        attributes.emit(&mut bytes[HEADER + GENERIC..]);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    /// Takes in one answer; true when the kernel says that this was all.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<bool, Refusal> {
        if Instant::now() >= self.end {
            return Err(late());
        }
        let mut bytes = Vec::with_capacity(BUFFER);
        match self.socket.recv(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            received => received?,
        };
        for frame in frames(&bytes) {
            let frame = frame?;
            match frame.message_type() {
                NLMSG_ERROR => return acknowledged(frame.payload(), frame.flags()).map(|()| true),
                NLMSG_DONE => return done(frame.payload()).map(|()| true),
                _ => take(frame.payload()),
            }
        }
        Ok(false)
    }
}

/// What names one connection: its tuple, its zone and its id, as the kernel gave them.
fn names(payload: &[u8]) -> Option<Vec<DefaultNla>> {
    let attributes = NlasIterator::new(payload.get(GENERIC..)?).flatten();
    let all = attributes.filter_map(|nla| DefaultNla::parse(&NlaBuffer::new(nla.into_inner())).ok());
    let naming = |nla: &DefaultNla| [ORIGINAL, ID, ZONE].contains(&(nla.kind() & !NLA_F_NESTED));
    Some(all.filter(naming).collect())
}

/// Whether one of a connection's tuples has one of the addresses on one of its sides.
fn take_part(payload: &[u8], wanted: &HashSet<Vec<u8>>) -> bool {
    let inside = |bytes: &[u8], kinds: &[u16]| -> Vec<Vec<u8>> {
        let attributes = NlasIterator::new(bytes).flatten().filter(|nla| kinds.contains(&nla.kind()));
        attributes.map(|nla| nla.value().to_vec()).collect()
    };
    let tuples = inside(payload.get(GENERIC..).unwrap_or_default(), &[ORIGINAL, REPLY]);
    let sides = tuples.iter().flat_map(|tuple| inside(tuple, &[IP]));
    sides.flat_map(|side| inside(&side, &ADDRESSES)).any(|found| wanted.contains(&found))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn of_nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    nested(kind | NLA_F_NESTED, attributes)
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
}
