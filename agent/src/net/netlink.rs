//! One synchronous rtnetlink socket: request and answer, dumps, deadlines and the kernel's own error text.
//!
//! Owns the protocol, not its meaning: it knows no link and no address. A socket belongs to the namespace
//! in which it was made and pins it, so it must live for one operation only, except that of the node's own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR,
    NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage, NlasIterator,
    ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;

use super::NetError;

/// A dump is at most this many bytes per message (`NLMSG_GOODSIZE` and `max_recvmsg_len` in the kernel).
const BUFFER: usize = 64 << 10;
/// How often a dump that was overtaken by a change is started again.
const DUMP_TRIES: usize = 20;
/// `struct nlmsghdr`, linux/netlink.h.
const HEADER: usize = 16;
/// `NLMSGERR_ATTR_MSG`, linux/netlink.h.
const ERROR_TEXT: u16 = 1;
/// `nlmsghdr.nlmsg_flags` of a request that reads one object.
const GET: u16 = NLM_F_REQUEST;

/// How many requests were made to the kernel; shared by all sockets of one [`super::kernel::Kernel`].
#[derive(Debug, Default)]
pub struct Counters {
    observe: AtomicU64,
    change: AtomicU64,
    sysctl: AtomicU64,
}

/// What [`Counters`] stood at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Netlink requests that only read.
    pub observe: u64,
    /// Netlink requests that change something, successful or not.
    pub change: u64,
    /// Sysctls written.
    pub sysctl: u64,
}

impl Counters {
    /// The counts now.
    pub fn read(&self) -> Counts {
        Counts {
            observe: self.observe.load(Ordering::Relaxed),
            change: self.change.load(Ordering::Relaxed),
            sysctl: self.sysctl.load(Ordering::Relaxed),
        }
    }

    /// A sysctl is about to be written.
    pub(super) fn count_sysctl(&self) {
        self.sysctl.fetch_add(1, Ordering::Relaxed);
    }
}

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
        let inner = open_socket(deadline)
            .map_err(|source| NetError::System { action: "open a netlink socket".into(), source })?;
        Ok(Self { inner, sequence: 0, deadline, counters, buffer: Vec::new(), broken: false })
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
        self.counters.observe.fetch_add(1, Ordering::Relaxed);
        let sequence = self.send(request, GET)?;
        let mut answer = Answer::default();
        self.collect(sequence, &mut answer, |answer| !answer.messages.is_empty())?;
        answer.messages.pop().ok_or_else(|| unreadable().into())
    }

    /// Reads all objects of a kind. Starts again when the kernel says that they changed meanwhile. One that
    /// cannot be decoded is left out: a pod can put bytes that are no text into its links, and must not
    /// blind us with that.
    ///
    /// # Errors
    /// What the kernel answers, or that it did not in time; `EINTR` if they never stop changing.
    pub fn dump(&mut self, request: &RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, Refusal> {
        for _ in 0..DUMP_TRIES {
            self.counters.observe.fetch_add(1, Ordering::Relaxed);
            let sequence = self.send(request.clone(), NLM_F_REQUEST | NLM_F_DUMP)?;
            let mut answer = Answer::default();
            self.collect(sequence, &mut answer, |_| false)?;
            if !answer.interrupted {
                return Ok(answer.messages);
            }
        }
        Err(io::Error::from(io::ErrorKind::Interrupted).into())
    }

    /// Changes something and waits for the kernel's word that it is done. `flags` are `NLM_F_CREATE` and
    /// `NLM_F_EXCL` or none.
    ///
    /// # Errors
    /// What the kernel answers, or that it did not in time.
    pub fn change(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<(), Refusal> {
        self.counters.change.fetch_add(1, Ordering::Relaxed);
        let sequence = self.send(request, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.collect(sequence, &mut Answer::default(), |_| false)
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<u32, Refusal> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.inner.send(&bytes, 0).inspect_err(|_| self.broken = true)?;
        Ok(self.sequence)
    }

    /// Receives until the answer is complete, `enough`, or late.
    fn collect(
        &mut self,
        sequence: u32,
        answer: &mut Answer,
        enough: fn(&Answer) -> bool,
    ) -> Result<(), Refusal> {
        let end = Instant::now() + self.deadline;
        while Instant::now() < end {
            self.receive()?;
            if answer.add(&self.buffer, sequence)? || enough(answer) {
                return Ok(());
            }
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

fn open_socket(deadline: Duration) -> io::Result<netlink_sys::Socket> {
    let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE)?;
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

/// What came back so far.
#[derive(Default)]
struct Answer {
    messages: Vec<RouteNetlinkMessage>,
    interrupted: bool,
}

impl Answer {
    /// Takes in what was received; true when the kernel says that this was all.
    fn add(&mut self, mut bytes: &[u8], sequence: u32) -> Result<bool, Refusal> {
        while bytes.len() >= HEADER {
            let frame = NetlinkBuffer::new_checked(bytes).map_err(|_| unreadable())?;
            let length = usize::try_from(frame.length()).unwrap_or(usize::MAX);
            // The answer to an earlier request that was given up.
            if frame.sequence_number() == sequence && self.take(&frame)? {
                return Ok(true);
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(false)
    }

    fn take(&mut self, frame: &NetlinkBuffer<&[u8]>) -> Result<bool, Refusal> {
        self.interrupted |= frame.flags() & NLM_F_DUMP_INTR != 0;
        match frame.message_type() {
            NLMSG_ERROR => acknowledged(frame.payload(), frame.flags()).map(|()| true),
            NLMSG_DONE => done(frame.payload()).map(|()| true),
            kind => {
                self.messages.extend(RouteNetlinkMessage::parse_with_param(frame.payload(), kind).ok());
                Ok(false)
            }
        }
    }
}

fn acknowledged(payload: &[u8], flags: u16) -> Result<(), Refusal> {
    match code(payload).ok_or_else(unreadable)? {
        0 => Ok(()),
        code => {
            let text = error_text(payload.get(4..).unwrap_or_default(), flags);
            Err(Refusal { source: io::Error::from_raw_os_error(code.saturating_neg()), text })
        }
    }
}

/// A dump that fails says so in its last message.
fn done(payload: &[u8]) -> Result<(), Refusal> {
    match code(payload) {
        Some(code) if code < 0 => Err(io::Error::from_raw_os_error(code.saturating_neg()).into()),
        _ => Ok(()),
    }
}

/// The negative error number that an acknowledgement starts with.
fn code(payload: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?))
}

/// The kernel's extended message: attributes after the header of the request that is being answered.
fn error_text(echoed: &[u8], flags: u16) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let request = u32::from_ne_bytes(echoed.get(..4)?.try_into().ok()?);
    let skip = if flags & NLM_F_CAPPED == 0 { usize::try_from(request).ok()? } else { HEADER };
    let attributes = echoed.get(skip.next_multiple_of(4)..)?;
    let text = NlasIterator::new(attributes).flatten().find(|nla| nla.kind() == ERROR_TEXT)?;
    let text = String::from_utf8_lossy(text.value()).trim_end_matches('\0').to_owned();
    Some(text).filter(|text| !text.is_empty())
}

fn late() -> Refusal {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    fn refusal(request: &[u8], flags: u16, text: &str) -> Vec<u8> {
        let mut payload = (-22_i32).to_ne_bytes().to_vec();
        payload.extend(request);
        let nla = nested(ERROR_TEXT, &[]);
        let mut attribute = vec![0; nla.buffer_len()];
        DefaultNla::new(ERROR_TEXT, format!("{text}\0").into_bytes()).emit({
            attribute.resize(4 + (text.len() + 1).next_multiple_of(4), 0);
            &mut attribute
        });
        payload.extend(attribute);
        message(NLMSG_ERROR, flags, 7, &payload)
    }

    #[test]
    fn the_kernels_own_words_come_with_the_error() {
        let request = message(16, 5, 7, &[1; 20]);
        for (echoed, flags) in
            [(&request[..HEADER], NLM_F_CAPPED | NLM_F_ACK_TLVS), (&request[..], NLM_F_ACK_TLVS)]
        {
            let bytes = refusal(echoed, flags, "mtu less than device minimum");
            let error = Answer::default().add(&bytes, 7).unwrap_err();
            assert_eq!(error.source.raw_os_error(), Some(22));
            assert_eq!(error.text.as_deref(), Some("mtu less than device minimum"));
        }
    }

    #[test]
    fn an_error_without_words_has_none() {
        let error =
            Answer::default().add(&refusal(&[0; HEADER], NLM_F_CAPPED, "not announced"), 7).unwrap_err();
        assert_eq!(error.text, None);
    }

    #[test]
    fn an_acknowledgement_ends_the_answer() {
        let mut payload = 0_i32.to_ne_bytes().to_vec();
        payload.extend([0; HEADER]);
        assert!(Answer::default().add(&message(NLMSG_ERROR, 0, 7, &payload), 7).unwrap());
    }

    #[test]
    fn a_late_answer_to_another_request_is_passed_over() {
        let mut payload = (-1_i32).to_ne_bytes().to_vec();
        payload.extend([0; HEADER]);
        assert!(!Answer::default().add(&message(NLMSG_ERROR, 0, 6, &payload), 7).unwrap());
    }

    #[test]
    fn a_dump_says_that_it_was_overtaken_or_failed() {
        let mut answer = Answer::default();
        assert!(answer.add(&message(NLMSG_DONE, NLM_F_DUMP_INTR, 7, &0_i32.to_ne_bytes()), 7).unwrap());
        assert!(answer.interrupted);
        let failed = message(NLMSG_DONE, 0, 7, &(-22_i32).to_ne_bytes());
        assert_eq!(Answer::default().add(&failed, 7).unwrap_err().source.raw_os_error(), Some(22));
    }

    #[test]
    fn a_message_cut_short_is_an_error_and_not_a_loop() {
        let mut bytes = message(16, 0, 7, &[0; 8]);
        bytes[0] = 200;
        assert!(Answer::default().add(&bytes, 7).is_err());
        bytes[0] = 0;
        assert!(Answer::default().add(&bytes, 7).is_err());
    }
}
