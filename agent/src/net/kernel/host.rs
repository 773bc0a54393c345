//! The host ends of pods' links.

use std::collections::BTreeSet;

use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::super::NetError;
use super::super::netlink::{Refusal, Request, Socket};
use super::link::{DOOMED, Link};
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

/// All links of the socket's namespace.
pub(super) fn all(socket: &mut Socket) -> Result<Vec<Link>, NetError> {
    let messages = socket.dump(&request::dump_links()).map_err(|refusal| refusal.during("list links"))?;
    Ok(messages.into_iter().filter_map(Link::from_answer).collect())
}

/// The host ends of ours.
pub(super) fn list(socket: &mut Socket) -> Result<Vec<HostLink>, NetError> {
    Ok(all(socket)?.into_iter().filter(Link::is_ours).map(Link::into_host_link).collect())
}

/// Deletes host ends of ours.
pub(super) fn delete(socket: &mut Socket, names: &[String]) -> Result<(), NetError> {
    match names {
        [] => Ok(()),
        [name] => delete_one(socket, name),
        names => delete_many(socket, names),
    }
}

fn delete_one(socket: &mut Socket, name: &str) -> Result<(), NetError> {
    let Some(link) = find(socket, name)? else {
        return Ok(());
    };
    if !link.is_ours() {
        return Err(NetError::NotOurs(name.to_owned()));
    }
    gone(socket.change(request::delete_link(link.index), 0), name)
}

/// In one pass: each deletion waits for RCU, one of a whole group only once. The links are first put into a
/// group that nothing else is in; by its upper half they are still known as ours if we die in between.
fn delete_many(socket: &mut Socket, names: &[String]) -> Result<(), NetError> {
    let links = all(socket)?;
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let doomed: Vec<&Link> = links.iter().filter(|link| names.contains(link.name.as_str())).collect();
    if let Some(foreign) = doomed.iter().find(|link| !link.is_ours()) {
        return Err(NetError::NotOurs(foreign.name.clone()));
    }
    let (Some(first), Some(group)) = (doomed.first(), unused_group(&links)) else {
        return Ok(());
    };
    for link in &doomed {
        gone(socket.change(request::set_group(link.index, group), 0), &link.name)?;
    }
    gone(socket.change(request::delete_group(group), 0), &first.name)
}

/// A group that no link has. Two calls at a time may choose the same one: both only put there what is to go.
fn unused_group(links: &[Link]) -> Option<u32> {
    let used: BTreeSet<u32> = links.iter().map(|link| link.group).collect();
    let start = links.iter().map(|link| link.index).max().unwrap_or_default();
    (0..=u32::from(u16::MAX))
        .map(|n| DOOMED | (start.wrapping_add(n) & 0xffff))
        .find(|group| !used.contains(group))
}

fn gone(result: Result<(), Refusal>, name: &str) -> Result<(), NetError> {
    match result {
        Err(refusal) if !refusal.is(Errno::ENODEV) => Err(refusal.during(format!("delete {name}"))),
        _ => Ok(()),
    }
}
