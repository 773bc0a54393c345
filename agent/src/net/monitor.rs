//! Changes of the node's links, as events. Tells that something changed, not what: whoever listens looks again.

use std::io;

use netlink_packet_core::{NetlinkBuffer, ParseableParametrized};
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kernel::is_ours;
use super::{HostEvent, NetError};

/// `RTNLGRP_LINK`, linux/rtnetlink.h.
const LINK_GROUP: u32 = 1;
/// A burst of a thousand links fits.
const RECEIVE_BUFFER: usize = 4 << 20;
const BUFFER: usize = 64 << 10;
/// `struct nlmsghdr`, linux/netlink.h.
const HEADER: usize = 16;

/// A subscription to the node's links.
#[derive(Debug)]
pub struct Monitor {
    socket: AsyncFd<netlink_sys::Socket>,
}

impl Monitor {
    /// A subscription of the calling thread's namespace.
    pub(super) fn socket() -> Result<netlink_sys::Socket, NetError> {
        let open = || -> io::Result<_> {
            let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            // Beyond the usual limit with NET_ADMIN; without, a smaller buffer only means that events are
            // lost earlier, which is told.
            setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).ok();
            socket.add_membership(LINK_GROUP)?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map_err(failed)
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe: only we can know that the socket owns its descriptor"
    )]
    pub(super) fn new(socket: netlink_sys::Socket) -> Result<Self, NetError> {
        Ok(Self { socket: AsyncFd::with_interest(socket, Interest::READABLE).map_err(failed)? })
    }

    /// Sends events until cancelled or nobody listens. When the listener is slow the kernel drops events,
    /// and [`HostEvent::Lost`] is sent.
    ///
    /// # Errors
    /// If the socket fails in another way than by lost events.
    pub async fn run(self, events: mpsc::Sender<HostEvent>, stop: CancellationToken) -> Result<(), NetError> {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.forward(events) => ended,
        }
    }

    async fn forward(self, events: mpsc::Sender<HostEvent>) -> Result<(), NetError> {
        loop {
            let mut bytes = Vec::with_capacity(BUFFER);
            let received =
                self.socket.async_io(Interest::READABLE, |socket| socket.recv(&mut bytes, 0)).await;
            let news = match received {
                Ok(_) => read(&bytes),
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => vec![HostEvent::Lost],
                Err(error) => return Err(failed(error)),
            };
            for event in news {
                if events.send(event).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

fn failed(source: io::Error) -> NetError {
    NetError::System { action: "watch the node's links".into(), source }
}

/// The events in what was received. What cannot be read may have been one about us.
fn read(mut bytes: &[u8]) -> Vec<HostEvent> {
    let mut events = Vec::new();
    while bytes.len() >= HEADER {
        let Ok(frame) = NetlinkBuffer::new_checked(bytes) else {
            events.push(HostEvent::Lost);
            break;
        };
        match RouteNetlinkMessage::parse_with_param(frame.payload(), frame.message_type()) {
            Ok(message) => events.extend(event(&message)),
            Err(_) => events.push(HostEvent::Lost),
        }
        let length = usize::try_from(frame.length()).unwrap_or(usize::MAX);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    events
}

fn event(message: &RouteNetlinkMessage) -> Option<HostEvent> {
    let (link, deleted) = match message {
        RouteNetlinkMessage::NewLink(link) => (link, false),
        // In the bridge family it says that a port left its bridge, not that it is gone.
        RouteNetlinkMessage::DelLink(link) => (link, link.header.interface_family != AddressFamily::Bridge),
        _ => return None,
    };
    let (mut name, mut group) = (None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Group(number) => group = Some(*number),
            _ => {}
        }
    }
    let name = name?;
    // Messages of the bridge family carry no group: there the name has to do. It is only an event.
    let group = group.unwrap_or(fairlead_crds::names::LINK_GROUP);
    Some(if is_ours(group, &name) { HostEvent::Link { name, deleted } } else { HostEvent::Other { name } })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;

    use super::*;

    fn link(family: AddressFamily, name: &str, group: Option<u32>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.interface_family = family;
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.extend(group.map(LinkAttribute::Group));
        message
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_not_deleted() {
        let name = fairlead_crds::names::host_link("u", "net1");
        let left = RouteNetlinkMessage::DelLink(link(AddressFamily::Bridge, &name, None));
        assert_eq!(event(&left), Some(HostEvent::Link { name: name.clone(), deleted: false }));
        let gone = link(AddressFamily::Unspec, &name, Some(fairlead_crds::names::LINK_GROUP));
        assert_eq!(event(&RouteNetlinkMessage::DelLink(gone)), Some(HostEvent::Link { name, deleted: true }));
    }

    #[test]
    fn other_links_are_named_without_detail() {
        let other = RouteNetlinkMessage::NewLink(link(AddressFamily::Unspec, "eth1", Some(0)));
        assert_eq!(event(&other), Some(HostEvent::Other { name: "eth1".into() }));
    }

    #[test]
    fn what_cannot_be_read_counts_as_lost() {
        assert_eq!(read(&[255; 32]), [HostEvent::Lost]);
        assert_eq!(read(&[]), []);
    }
}
