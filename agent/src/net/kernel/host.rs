//! The host ends of pods' links.

use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::super::NetError;
use super::super::netlink::{Refusal, Request, Socket};
use super::link::Link;
use super::request;
use crate::plan::HostLink;

/// A link of the socket's namespace by its name.
pub(super) fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>, NetError> {
    Ok(find_all(socket, [request::get_link(name)])?.pop())
}

/// Those links of the socket's namespace that there are, of those that are asked for, all in one message. One
/// that cannot be decoded counts as missing: a pod can put bytes that are no text into its links.
pub(super) fn find_all(
    socket: &mut Socket,
    requests: impl IntoIterator<Item = RouteNetlinkMessage>,
) -> Result<Vec<Link>, NetError> {
    let reading = |refusal: Refusal| refusal.during("read links");
    let mut links = Vec::new();
    for outcome in socket.batch(requests.into_iter().map(Request::get).collect()).map_err(reading)? {
        match outcome {
            Ok(answer) => links.extend(answer.and_then(Link::from_answer)),
            Err(refusal) if refusal.is(Errno::ENODEV) || refusal.is_unreadable() => {}
            Err(refusal) => return Err(reading(refusal)),
        }
    }
    Ok(links)
}

/// What is kept of all links of the socket's namespace.
pub(super) fn all<T>(socket: &mut Socket, keep: impl Fn(Link) -> Option<T>) -> Result<Vec<T>, NetError> {
    let kept = socket.dump(&request::dump_links(), |message| Link::from_answer(message).and_then(&keep));
    kept.map_err(|refusal| refusal.during("list links"))
}

/// The host ends of ours.
pub(super) fn list(socket: &mut Socket) -> Result<Vec<HostLink>, NetError> {
    all(socket, |link| link.is_ours().then(|| link.into_host_link()))
}
