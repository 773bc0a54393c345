//! Asks on a link of the node whether someone has an address already, before it is used: ARP probes (RFC 5227,
//! 2.1.1) and solicitations from nobody (RFC 4862, 5.4.3). Faster than these have it, since a pod waits.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{LinkAddr, MsgFlags, bind, recv, sendto};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, eth, socket_with};

use fairlead_crds::{IfName, Ip, Mac};

use super::{Asked, NetError, Stranger, announce, frames, netns};

/// How often each address is asked for.
const TIMES: u32 = 3;
/// Longest frame that is read; what claims an address is shorter.
const FRAME: usize = 256;

/// Asks for all addresses at once, and listens for `time`, or until each is known to be someone's. The calling
/// thread must be in the link's namespace.
pub(super) fn run(link: &IfName, asked: &[Asked], time: Duration) -> Result<Vec<Stranger>, NetError> {
    let wire = Wire::open(link, asked)
        .map_err(|errno| netns::system(&format!("probe for addresses on {link}"), errno))?;
    wire.listen(asked, time).map_err(|errno| netns::system(&format!("probe for addresses on {link}"), errno))
}

/// The sockets of one round.
struct Wire {
    link: LinkAddr,
    mac: Mac,
    sockets: Vec<OwnedFd>,
}

impl Wire {
    fn open(link: &IfName, asked: &[Asked]) -> Result<Self, Errno> {
        let link = announce::link_address(link.as_str())?;
        let mac = link.addr().map(Mac).ok_or(Errno::ENODEV)?;
        let any = |ipv6: bool| asked.iter().any(|one| one.address.0.is_ipv6() == ipv6);
        let kinds = [(eth::ARP, any(false)), (eth::IPV6, any(true))];
        let sockets = kinds.into_iter().filter(|(_, wanted)| *wanted).map(|(kind, _)| socket(&link, kind));
        Ok(Self { link, mac, sockets: sockets.collect::<Result<_, _>>()? })
    }

    fn listen(&self, asked: &[Asked], time: Duration) -> Result<Vec<Stranger>, Errno> {
        let (start, mut sent, mut found) = (Instant::now(), 0, Vec::new());
        loop {
            let gone = start.elapsed();
            if gone >= time || found.len() == asked.len() {
                return Ok(found);
            }
            let next = time * sent / TIMES;
            if sent < TIMES && gone >= next {
                self.ask(asked)?;
                sent += 1;
                continue;
            }
            self.wait(if sent < TIMES { next } else { time }.saturating_sub(gone))?;
            for socket in &self.sockets {
                self.hear(socket, asked, &mut found, start + time)?;
            }
        }
    }

    fn ask(&self, asked: &[Asked]) -> Result<(), Errno> {
        for one in asked {
            let frame = match one.address.0 {
                IpAddr::V4(address) => frames::arp_probe(self.mac, address),
                IpAddr::V6(address) => frames::probing_solicitation(self.mac, address),
            };
            // Sending needs no socket of its own kind; there is one, since something is asked for.
            let socket = self.sockets.first().ok_or(Errno::EINVAL)?;
            sendto(socket.as_raw_fd(), &frame, &self.link, MsgFlags::empty())?;
        }
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<(), Errno> {
        let mut polled: Vec<PollFd<'_>> =
            self.sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        // Rounded up, so that the last wait does not end early and turn into a busy one.
        let timeout = PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
        match poll(&mut polled, timeout) {
            Err(errno) if errno != Errno::EINTR => Err(errno),
            _ => Ok(()),
        }
    }

    /// Reads what came in, until nothing is left or the time is over.
    fn hear(
        &self,
        socket: &OwnedFd,
        asked: &[Asked],
        found: &mut Vec<Stranger>,
        end: Instant,
    ) -> Result<(), Errno> {
        let mut frame = [0; FRAME];
        while Instant::now() < end {
            let length = match recv(socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
                received => received?,
            };
            let claimed = frame.get(..length).and_then(frames::claim);
            found.extend(claimed.and_then(|claim| self.stranger(claim, asked, found)));
        }
        Ok(())
    }

    /// Whether a claim is a stranger's, of an address that is asked for and not known to be taken yet.
    fn stranger(
        &self,
        (address, mac): (IpAddr, Mac),
        asked: &[Asked],
        found: &[Stranger],
    ) -> Option<Stranger> {
        let one = asked.iter().find(|one| one.address.0 == address)?;
        let ours = mac == one.own || mac == self.mac;
        let known = found.iter().any(|stranger| stranger.address.0 == address);
        (!ours && !known).then_some(Stranger { address: Ip(address), mac })
    }
}

fn socket(link: &LinkAddr, kind: Protocol) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(kind))
        .map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    bind(socket.as_raw_fd(), link)?;
    Ok(socket)
}
