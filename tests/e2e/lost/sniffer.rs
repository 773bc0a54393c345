//! Asks on the wire who has some addresses, all the time, and notes when two answer for one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::socket::{LinkAddr, MsgFlags, SockaddrStorage, bind, recv, sendto},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, eth, socket_with};

/// Who has an address answers within this time, also on a loaded machine.
const ROUND: Duration = Duration::from_millis(300);
const ARP: [u8; 2] = [0x08, 0x06];
/// Ethernet, IPv4, six and four bytes.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// The hardware addresses that answered for each address in one round.
type Answers = BTreeMap<Ipv4Addr, BTreeSet<[u8; 6]>>;

/// A thread that asks until it is told to stop.
pub struct Sniffer {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<Vec<Answers>>>,
}

impl Sniffer {
    /// Asks on a link of the machine for these addresses.
    pub fn start(link: &str, addresses: Vec<Ipv4Addr>) -> Result<Self> {
        let wire = Wire::open(link)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let rounds = move || {
            let mut rounds = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                rounds.push(wire.ask(&addresses)?);
            }
            Ok(rounds)
        };
        Ok(Self { stop, thread: thread::spawn(rounds) })
    }

    /// Stops it.
    ///
    /// # Errors
    /// When two answered for one address in one round, or nobody ever answered.
    pub fn check(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let rounds = self.thread.join().map_err(|_| anyhow!("the sniffer panicked"))??;
        let answered = rounds.iter().filter(|answers| !answers.is_empty()).count();
        ensure!(answered > 20, "only {answered} of {} rounds have an answer", rounds.len());
        let double = rounds.iter().flatten().find(|(_, macs)| macs.len() > 1);
        ensure!(double.is_none(), "two answered for one address: {double:02x?}");
        Ok(())
    }
}

struct Wire {
    socket: OwnedFd,
    link: LinkAddr,
    /// The link's own hardware address: a bridge keeps answers to any other to its ports.
    mac: [u8; 6],
}

impl Wire {
    fn open(link: &str) -> Result<Self> {
        let socket =
            socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(eth::ARP))?;
        let address = getifaddrs()?
            .filter(|entry| entry.interface_name == link)
            .find_map(|entry| entry.address.as_ref().and_then(SockaddrStorage::as_link_addr).copied());
        let link = address.with_context(|| format!("there is no link {link}"))?;
        bind(socket.as_raw_fd(), &link)?;
        let mac = link.addr().context("it has no hardware address")?;
        Ok(Self { socket, link, mac })
    }

    fn ask(&self, addresses: &[Ipv4Addr]) -> Result<Answers> {
        for address in addresses {
            sendto(self.socket.as_raw_fd(), &probe(self.mac, *address), &self.link, MsgFlags::empty())?;
        }
        thread::sleep(ROUND);
        let (mut answers, mut frame) = (Answers::new(), [0; 128]);
        loop {
            match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => return Ok(answers),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(length) => {
                    let answer = frame.get(..length).and_then(answer);
                    answer.into_iter().for_each(|(address, mac)| {
                        answers.entry(address).or_default().insert(mac);
                    });
                }
            }
        }
    }
}

/// A request that says nothing about who asks (RFC 5227, 1.1).
fn probe(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let to = [0xff; 6];
    [&to[..], &mac, &ARP, &KIND, &REQUEST, &mac, &[0; 4], &[0; 6], &address.octets()].concat()
}

/// Address and hardware address of who answers.
fn answer(frame: &[u8]) -> Option<(Ipv4Addr, [u8; 6])> {
    let arp = frame.strip_prefix(frame.get(..12)?)?.strip_prefix(&ARP)?.strip_prefix(&KIND)?;
    let sender = arp.strip_prefix(&REPLY)?;
    let mac: [u8; 6] = sender.get(..6)?.try_into().ok()?;
    let address: [u8; 4] = sender.get(6..10)?.try_into().ok()?;
    Some((address.into(), mac))
}
