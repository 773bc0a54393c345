//! One synchronous rtnetlink socket: request and answer, dumps, deadlines and the kernel's own error text.
//!
//! Owns the protocol, not its meaning: it knows no link and no address. A socket belongs to the namespace
//! in which it was made and pins it, so it must live for one operation only, except that of the node's own.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_packet_core::{DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use self::answer::{Answers, Dumped};
pub(super) use self::answer::{acknowledged, done, frames};
use super::{NetError, netns};

pub use self::counters::{Counters, Counts};

mod answer;
mod counters;

/// A dump is at most this many bytes per message (`NLMSG_GOODSIZE` and `max_recvmsg_len` in the kernel).
const BUFFER: usize = 64 << 10;
/// Requests in one message: the answers wait in the socket's receive buffer (`rmem_default`, 208 KiB), where one
/// about a link takes about 5 KiB.
const BATCH: usize = 16;
/// How often a dump that was overtaken by a change is started again.
const DUMP_TRIES: usize = 20;
/// `struct nlmsghdr`, linux/netlink.h.
pub(super) const HEADER: usize = 16;

/// A refused or unanswered request.
#[derive(Debug)]
pub struct Refusal {
    /// The kernel's answer.
    pub source: io::Error,
    /// The kernel's extended message, if it gave one.
    pub text: Option<String>,
}

impl Refusal {
    /// The error, with what was attempted.
    pub fn during(self, action: impl Into<String>) -> NetError {
        NetError::Netlink { action: action.into(), source: self.source, text: self.text }
    }

    /// Whether the kernel gave this error number.
    pub fn is(&self, errno: nix::errno::Errno) -> bool {
        self.source.raw_os_error() == Some(errno as i32)
    }

    /// Whether the kernel did answer, but in a way that cannot be decoded.
    pub fn is_unreadable(&self) -> bool {
        self.source.kind() == io::ErrorKind::InvalidData
    }
}

impl From<io::Error> for Refusal {
    fn from(source: io::Error) -> Self {
        Self { source, text: None }
    }
}

/// One rtnetlink socket.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    sequence: u32,
    deadline: Duration,
    counters: Arc<Counters>,
    buffer: Vec<u8>,
    /// After an error of the socket itself, answers may still be under way: it must not be used again.
    broken: bool,
}

impl Socket {
    /// A socket of the calling thread's namespace. Every answer must come within `deadline`.
    ///
    /// # Errors
    /// If the kernel makes no socket.
    pub fn open(counters: Arc<Counters>, deadline: Duration) -> Result<Self, NetError> {
        let inner = open_socket(NETLINK_ROUTE, deadline)
            .map_err(|source| NetError::System { action: "open a netlink socket".into(), source })?;
        Ok(Self { inner, sequence: 0, deadline, counters, buffer: Vec::new(), broken: false })
    }

    /// The cookie of the socket's namespace.
    ///
    /// # Errors
    /// As [`netns::cookie`].
    pub fn namespace_cookie(&self) -> Result<u64, NetError> {
        netns::cookie(&self.inner)
    }

    /// Whether the socket can be used for another request.
    pub fn is_sound(&self) -> bool {
        !self.broken
    }

    /// Reads one object.
    ///
    /// # Errors
    /// What the kernel answers, or that it did not in time.
    pub fn get(&mut self, request: RouteNetlinkMessage) -> Result<RouteNetlinkMessage, Refusal> {
        self.one(Request::get(request))?.ok_or_else(|| unreadable().into())
    }

    /// Changes something and waits for the kernel's word that it is done. `flags` are `NLM_F_CREATE` and
    /// `NLM_F_EXCL` or none.
    ///
    /// # Errors
    /// What the kernel answers, or that it did not in time.
    pub fn change(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<(), Refusal> {
        self.one(Request::change(request, flags)).map(drop)
    }

    fn one(&mut self, request: Request) -> Outcome {
        self.batch(vec![request])?.pop().unwrap_or_else(|| Err(unreadable().into()))
    }

    /// Sends several requests in one message, and returns their outcomes in the same order. The kernel deals
    /// with them in order, one after the other, and goes on after one that it refuses. More than [`BATCH`] are
    /// sent in parts, each after the answers to the one before.
    ///
    /// # Errors
    /// If the kernel did not answer all of them in time.
    pub fn batch(&mut self, mut requests: Vec<Request>) -> Result<Vec<Outcome>, Refusal> {
        let mut outcomes = Vec::with_capacity(requests.len());
        while !requests.is_empty() {
            let rest = requests.split_off(requests.len().min(BATCH));
            outcomes.extend(self.exchange(std::mem::replace(&mut requests, rest))?);
        }
        Ok(outcomes)
    }

    fn exchange(&mut self, requests: Vec<Request>) -> Result<Vec<Outcome>, Refusal> {
        let mut answers = Answers::to(self.sequence.wrapping_add(1), requests.len());
        let mut bytes = Vec::new();
        for Request { message, flags } in requests {
            self.counters.count(flags & NLM_F_ACK != 0);
            self.encode(message, flags, &mut bytes);
        }
        self.send(&bytes)?;
        let end = Instant::now() + self.deadline;
        while !answers.are_complete() {
            self.receive_until(end)?;
            answers.add(&self.buffer)?;
        }
        Ok(answers.into_outcomes())
    }

    /// Reads all objects of a kind, and returns what is kept of each: whole, a link takes over 10 kB. Starts again when
    /// the kernel says that they changed meanwhile. One that cannot be decoded is left out: a pod can put bytes
    /// that are no text into its links, and must not blind us with that.
    ///
    /// # Errors
    /// What the kernel answers, or that it did not in time; `EINTR` if they never stop changing.
    pub fn dump<T>(
        &mut self,
        request: &RouteNetlinkMessage,
        mut keep: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Refusal> {
        for _ in 0..DUMP_TRIES {
            self.counters.count(false);
            let mut bytes = Vec::new();
            self.encode(request.clone(), NLM_F_REQUEST | NLM_F_DUMP, &mut bytes);
            self.send(&bytes)?;
            let (mut dumped, end) = (Dumped::to(&mut keep), Instant::now() + self.deadline);
            while !dumped.add(&self.buffer, self.sequence)? {
                self.receive_until(end)?;
            }
            if !dumped.interrupted {
                return Ok(dumped.kept);
            }
        }
        Err(io::Error::from(io::ErrorKind::Interrupted).into())
    }

    /// Appends one message, which gets the next sequence number.
    fn encode(&mut self, request: RouteNetlinkMessage, flags: u16, bytes: &mut Vec<u8>) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..]);
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.buffer.clear();
        self.inner.send(bytes, 0).inspect_err(|_| self.broken = true)?;
        Ok(())
    }

    fn receive_until(&mut self, end: Instant) -> Result<(), Refusal> {
        if Instant::now() < end {
            return self.receive();
        }
        self.broken = true;
        Err(late())
    }

    fn receive(&mut self) -> Result<(), Refusal> {
        self.buffer.clear();
        self.buffer.reserve(BUFFER);
        let received = self.inner.recv(&mut self.buffer, 0);
        let error = match received {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => late(),
            Err(error) => error.into(),
        };
        self.broken = true;
        Err(error)
    }
}

pub(super) fn open_socket(protocol: isize, deadline: Duration) -> io::Result<netlink_sys::Socket> {
    let mut socket = netlink_sys::Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
    // Text with an error, without the request repeated; requests checked strictly, so that filters of dumps
    // are obeyed or refused, never ignored.
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    socket.set_netlink_get_strict_chk(true)?;
    let timeout =
        TimeVal::new(i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX), deadline.subsec_micros().into());
    setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
    Ok(socket)
}

/// One request of a batch.
#[derive(Debug)]
pub struct Request {
    message: RouteNetlinkMessage,
    flags: u16,
}

impl Request {
    /// Reads one object.
    pub fn get(message: RouteNetlinkMessage) -> Self {
        Self { message, flags: NLM_F_REQUEST }
    }

    /// Changes something. `flags` are `NLM_F_CREATE` and `NLM_F_EXCL` or none.
    pub fn change(message: RouteNetlinkMessage, flags: u16) -> Self {
        Self { message, flags: NLM_F_REQUEST | NLM_F_ACK | flags }
    }
}

/// What the kernel says to one request: the object that was read, or nothing to a change.
pub type Outcome = Result<Option<RouteNetlinkMessage>, Refusal>;

pub(super) fn late() -> Refusal {
    io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer in time").into()
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer cannot be read")
}

/// An attribute made of attributes, for those that the message types cannot write.
pub(super) fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    DefaultNla::new(kind, bytes)
}
