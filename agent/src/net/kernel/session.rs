//! The inside of one pod's namespace: observe, apply, announce. Runs on a thread that is in it.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::RouteType;

use fairlead_crds::{Cidr, IfName, Ip, Mac};

use super::super::netlink::Socket;
use super::super::{NetError, Place, Report, Session, announce};
use super::link::Link;
use super::{Kernel, host, request};
use crate::plan::{HostLink, Observed, PodLink, Step};

mod apply;
mod read;

/// `lo` is made with its namespace, before anything else (`LOOPBACK_IFINDEX`, net/flow.h).
const LO: u32 = 1;
/// Below this MTU a link has no IPv6 (`IPV6_MIN_MTU`).
pub(super) const IPV6_MIN_MTU: u32 = 1280;
/// How often to look until a link or address that is there works; see [`pauses`].
const SETTLE_TRIES: u32 = 60;

/// One operation in one pod's namespace.
pub(super) struct PodSession<'a> {
    kernel: &'a Kernel,
    pod: Socket,
    host: &'a mut Socket,
    namespace: BorrowedFd<'a>,
    nsid: i32,
    /// Indexes of links in the pod, as far as known.
    indexes: BTreeMap<String, u32>,
}

impl<'a> PodSession<'a> {
    /// `pod` and `namespace` are of the calling thread's namespace, `host` is of the node's.
    pub fn new(
        kernel: &'a Kernel,
        pod: Socket,
        host: &'a mut Socket,
        namespace: BorrowedFd<'a>,
        nsid: i32,
    ) -> Self {
        Self { kernel, pod, host, namespace, nsid, indexes: BTreeMap::new() }
    }
}

impl Session for PodSession<'_> {
    fn observe(&mut self, places: &[Place<'_>]) -> Result<Observed, NetError> {
        let mut observed = Observed { nsid: self.nsid, ..Observed::default() };
        observed.host = self.host_links(places)?;
        let peers = peers(&observed);
        let mut found = Vec::new();
        for link in self.pod_links(places, &observed)? {
            let ours = peers.contains(&link.index);
            found.extend(if ours { settle(&mut self.pod, link)? } else { Some(link) });
        }
        self.indexes = found.iter().map(|link| (link.name.clone(), link.index)).collect();
        observed.marker = found.iter().find(|link| link.index == LO).and_then(|lo| lo.alias.clone());
        observed.links = found.into_iter().filter(|link| !link.loopback).map(pod_link).collect();
        for link in observed.links.iter_mut().filter(|link| peers.contains(&link.index)) {
            self.addresses(link)?;
        }
        if observed.links.iter().any(|link| peers.contains(&link.index)) {
            self.routes(&mut observed.links)?;
        }
        for link in observed.links.iter().filter(|link| peers.contains(&link.index) && link.up) {
            self.wait_for_addresses(&link.addresses)?;
        }
        Ok(observed)
    }

    fn apply(&mut self, steps: &[Step]) -> Report {
        let mut done = 0;
        for together in steps.chunk_by(apply::go_together) {
            if let Err((at, error)) = self.run(together) {
                return Report { done: done + at, failed: Some((together[at].clone(), error)) };
            }
            done += together.len();
        }
        Report { done, failed: None }
    }

    fn announce(&mut self, link: &IfName, mac: Mac, addresses: &[Ip]) -> Result<(), NetError> {
        announce::send(link.as_str(), mac, addresses)
    }
}

impl PodSession<'_> {
    /// Host ends of ours, all in one message; those that are about to work are waited for.
    fn host_links(&mut self, places: &[Place<'_>]) -> Result<Vec<HostLink>, NetError> {
        let asked = places.iter().map(|place| request::get_link(place.host));
        let mut links = Vec::with_capacity(places.len());
        for link in host::find_all(self.host, asked)?.into_iter().filter(Link::is_ours) {
            links.extend(settle(self.host, link)?.map(Link::into_host_link));
        }
        Ok(links)
    }

    /// `lo`, the other ends of host links, and what has the names asked for: in one message, unless something
    /// was renamed.
    fn pod_links(&mut self, places: &[Place<'_>], observed: &Observed) -> Result<Vec<Link>, NetError> {
        let mut asked = vec![request::get_link_at(LO)];
        let mut unsure = Vec::new();
        for place in places {
            match (observed.peer_of(place.host), place.link) {
                (Some(index), name) => {
                    asked.push(request::get_link_at(index));
                    unsure.extend(name);
                }
                (None, name) => asked.extend(name.map(request::get_link)),
            }
        }
        let mut found = host::find_all(&mut self.pod, asked)?;
        unsure.retain(|name| found.iter().all(|link| link.name != *name));
        let more = host::find_all(&mut self.pod, unsure.into_iter().map(request::get_link))?;
        found.extend(more);
        found.sort_by_key(|link| link.index);
        found.dedup_by_key(|link| link.index);
        Ok(found)
    }

    /// The kernel takes an IPv6 address for its own, and listens for who asks for it, only in a work queue
    /// after the address is on the link. Waits for that, so that what is observed works.
    fn wait_for_addresses(&mut self, addresses: &[Cidr]) -> Result<(), NetError> {
        for address in addresses.iter().filter(|address| address.is_ipv6()) {
            for pause in pauses() {
                match self.pod.get(request::get_route(address.addr())) {
                    Ok(answer) if !is_local(&answer) => thread::sleep(pause),
                    Ok(_) => break,
                    // The pod may have rules of its own that let nothing through; that is its business.
                    Err(refusal) if refusal.source.raw_os_error().is_some() => break,
                    Err(refusal) => return Err(refusal.during(format!("look up {address}"))),
                }
            }
        }
        Ok(())
    }

    fn addresses(&mut self, link: &mut PodLink) -> Result<(), NetError> {
        let of_link = |message| match message {
            RouteNetlinkMessage::NewAddress(found) if found.header.index == link.index => {
                read::address(&found)
            }
            _ => None,
        };
        let dump = self.pod.dump(&request::dump_addresses(Some(link.index)), of_link);
        for (address, ours) in dump.map_err(|refusal| refusal.during("list addresses"))? {
            link.addresses.push(address);
            link.ours.extend(ours.then_some(address));
        }
        Ok(())
    }

    fn routes(&mut self, links: &mut [PodLink]) -> Result<(), NetError> {
        let route = |message| match message {
            RouteNetlinkMessage::NewRoute(found) => read::route(&found),
            _ => None,
        };
        let dump = self.pod.dump(&request::dump_our_routes(), route);
        for (index, route) in dump.map_err(|refusal| refusal.during("list routes"))? {
            if let Some(link) = links.iter_mut().find(|link| link.index == index) {
                link.routes.push(route);
            }
        }
        Ok(())
    }
}

/// A link that works if it is up. When the other end comes up the kernel starts the queue of a link, and
/// forwards through a port of a bridge, only later in a work queue; until then frames are dropped. To read
/// one link makes the kernel do it now (Linux 6.8; before it does so in its own time).
fn settle(socket: &mut Socket, mut link: Link) -> Result<Option<Link>, NetError> {
    for pause in pauses() {
        if !link.is_settling() {
            break;
        }
        thread::sleep(pause);
        match host::find(socket, &link.name)? {
            Some(now) => link = now,
            None => return Ok(None),
        }
    }
    Ok(Some(link))
}

/// Indexes of the pod's ends of the host links.
fn peers(observed: &Observed) -> Vec<u32> {
    observed.host.iter().filter_map(|host| observed.peer_of(&host.name)).collect()
}

/// Half a second in all. Usually the first is enough; with hundreds of pods at a time others may be first in
/// the kernel's work queue.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    (0..SETTLE_TRIES).map(|n| Duration::from_micros((50 << n.min(10)).min(10_000)))
}

fn is_local(answer: &RouteNetlinkMessage) -> bool {
    matches!(answer, RouteNetlinkMessage::NewRoute(route) if route.header.kind == RouteType::Local)
}

fn pod_link(link: Link) -> PodLink {
    PodLink {
        name: link.name,
        index: link.index,
        mac: link.mac,
        mtu: link.mtu,
        up: link.flags.up,
        ipv6: link.ipv6_disabled == Some(false),
        addresses: Vec::new(),
        ours: Vec::new(),
        routes: Vec::new(),
    }
}
