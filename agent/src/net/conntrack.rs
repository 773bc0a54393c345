//! Connections that the node's kernel tracks: those of an address are forgotten, so that the next pod that has it is
//! not taken for the one before. Speaks ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`); no module is loaded for it.

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

/// Forgets the connections of the calling thread's namespace in which an address takes part, in either direction.
/// Returns how many there were.
pub(super) fn forget(address: IpAddr, deadline: Duration) -> Result<usize, NetError> {
    let action = || format!("forget the connections of {address}");
    let failed = |refusal: Refusal| refusal.during(action());
    let mut wire = Wire::open(address, deadline).map_err(|source| failed(source.into()))?;
    let mut forgotten = 0;
    for filter in filters(address) {
        for connection in wire.list(&filter).map_err(failed)? {
            match wire.delete(&connection) {
                Ok(()) => forgotten += 1,
                // It ended by itself, or both of its ends have the address.
                Err(refusal) if refusal.is(Errno::ENOENT) => {}
                Err(refusal) => return Err(failed(refusal)),
            }
        }
    }
    Ok(forgotten)
}

/// What the kernel is asked to leave out of a list: IPv4 connections without the address on one side of one tuple.
/// For IPv6 its filter means the opposite (`ctnetlink_filter_match_tuple`, seen on Linux 6.18), so it is not used.
fn filters(address: IpAddr) -> Vec<Vec<DefaultNla>> {
    let IpAddr::V4(address) = address else {
        return vec![Vec::new()];
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
    address: IpAddr,
    sequence: u32,
    end: Instant,
}

impl Wire {
    fn open(address: IpAddr, deadline: Duration) -> io::Result<Self> {
        let socket = open_socket(NETLINK_NETFILTER, deadline)?;
        Ok(Self { socket, address, sequence: 0, end: Instant::now() + deadline })
    }

    /// What names each connection of the address among those that the filter leaves.
    fn list(&mut self, filter: &[DefaultNla]) -> Result<Vec<Vec<DefaultNla>>, Refusal> {
        self.send(GET, NLM_F_DUMP, filter)?;
        let (mut found, address) = (Vec::new(), self.address);
        let mut take = |payload: &[u8]| found.extend(names(payload).filter(|_| takes_part(payload, address)));
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
        bytes.extend([family(self.address), 0, 0, 0]);
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

/// Whether one of a connection's tuples has the address on one of its sides.
fn takes_part(payload: &[u8], address: IpAddr) -> bool {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let inside = |bytes: &[u8], kinds: &[u16]| -> Vec<Vec<u8>> {
        let attributes = NlasIterator::new(bytes).flatten().filter(|nla| kinds.contains(&nla.kind()));
        attributes.map(|nla| nla.value().to_vec()).collect()
    };
    let tuples = inside(payload.get(GENERIC..).unwrap_or_default(), &[ORIGINAL, REPLY]);
    let sides = tuples.iter().flat_map(|tuple| inside(tuple, &[IP]));
    sides.flat_map(|side| inside(&side, &ADDRESSES)).any(|found| found == octets)
}

fn of_nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    nested(kind | NLA_F_NESTED, attributes)
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or_default()
}
