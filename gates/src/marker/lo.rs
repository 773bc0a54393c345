//! Reads the alias of `lo` and hears that a link changed. Reads only; what it means is the verdict's matter.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
            setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike},
    },
};

use super::{cookie, netlink};

/// Bit of `RTNLGRP_LINK` in the groups of a netlink address (linux/rtnetlink.h).
const RTMGRP_LINK: u32 = 1;

/// A link message has about 1.5 KiB; the kernel's own limit for one datagram is 32 KiB.
const BUFFER: usize = 32 * 1024;

/// Notifications taken at once, so that a flood cannot keep anyone from reading.
const DRAIN_MAX: usize = 256;

/// What one look at `lo` gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The alias, if there is one that is not empty. Bytes that are no UTF-8 are replaced.
    pub alias: Option<String>,
    /// Cookie of the same socket, hence of the same namespace.
    pub cookie: u64,
}

/// Which step of a look failed.
#[derive(Debug, thiserror::Error)]
pub enum LoError {
    /// No netlink socket.
    #[error("open a netlink socket: {0}")]
    Open(#[source] Errno),
    /// No cookie: a kernel older than 5.14.
    #[error("read the namespace cookie (Linux 5.14 or later): {0}")]
    Cookie(#[source] Errno),
    /// The kernel took no request or gave no answer within a second.
    #[error("ask the kernel for lo: {0}")]
    Ask(#[source] Errno),
    /// The kernel's answer.
    #[error(transparent)]
    Answer(#[from] netlink::AnswerError),
}

/// Reads the alias of `lo` in this namespace.
pub fn observe() -> Result<Seen, LoError> {
    let socket = open(0).map_err(LoError::Open)?;
    let cookie = cookie::of_socket(&socket).map_err(LoError::Cookie)?;
    let mut buffer = vec![0; BUFFER];
    let answer = ask(&socket, &mut buffer).map_err(LoError::Ask)?;
    Ok(Seen { alias: netlink::alias(answer)?, cookie })
}

fn ask<'a>(socket: &OwnedFd, buffer: &'a mut [u8]) -> nix::Result<&'a [u8]> {
    // The kernel answers inside the send; the limit is for a kernel that does not.
    setsockopt(socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    let request = netlink::get_lo();
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let (length, sender) = recvfrom::<NetlinkAddr>(socket.as_raw_fd(), buffer)?;
    match sender {
        // Port 0 is the kernel; processes may send to each other as well.
        Some(kernel) if kernel.pid() == 0 => buffer.get(..length).ok_or(Errno::EMSGSIZE),
        _ => Err(Errno::EPERM),
    }
}

fn open(groups: u32) -> nix::Result<OwnedFd> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// A subscription to link changes. What they say is not looked at: a change is a reason to read again.
#[derive(Debug)]
pub struct LinkEvents(OwnedFd);

impl LinkEvents {
    /// Hears changes from now on.
    pub fn subscribe() -> nix::Result<Self> {
        open(RTMGRP_LINK).map(Self)
    }

    /// Takes what has come. False if the subscription is of no use any more.
    pub fn drain(&self) -> bool {
        let mut buffer = [0; 64];
        for _ in 0..DRAIN_MAX {
            // A short buffer is enough: the rest of each datagram is dropped.
            match nix::sys::socket::recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                // ENOBUFS: the queue was full and some are lost; the read that follows sees the result.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
