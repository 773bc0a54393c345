//! The inside of one pod's namespace: observe, apply, announce. Runs on a thread that is in it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
use nix::errno::Errno;

use fairlead_crds::network::Route;
use fairlead_crds::{Cidr, IfName, Ip, Mac, names};

use super::super::netlink::{Refusal, Socket};
use super::super::{NetError, Report, Session, announce};
use super::link::Link;
use super::request::{self, Pair};
use super::sysctl::Sysctls;
use super::{host, netns};
use crate::plan::{Observed, PodLink, Step};

/// `lo` is made with its namespace, before anything else (`LOOPBACK_IFINDEX`, net/flow.h).
const LO: u32 = 1;
/// Below this MTU a link has no IPv6 (`IPV6_MIN_MTU`).
pub(super) const IPV6_MIN_MTU: u32 = 1280;
/// How often to look until a link or address that is there works; see [`pauses`].
const SETTLE_TRIES: u32 = 60;
const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;

/// One operation in one pod's namespace.
pub(super) struct PodSession<'a> {
    pod: Socket,
    host: &'a mut Socket,
    namespace: BorrowedFd<'a>,
    nsid: i32,
    sysctls: &'a Sysctls,
    /// Indexes of links in the pod, as far as known.
    indexes: BTreeMap<String, u32>,
}

impl<'a> PodSession<'a> {
    /// `pod` and `namespace` are of the calling thread's namespace, `host` is of the node's.
    pub fn new(
        pod: Socket,
        host: &'a mut Socket,
        namespace: BorrowedFd<'a>,
        nsid: i32,
        sysctls: &'a Sysctls,
    ) -> Self {
        Self { pod, host, namespace, nsid, sysctls, indexes: BTreeMap::new() }
    }
}

impl Session for PodSession<'_> {
    fn observe(&mut self, host_links: &[&str]) -> Result<Observed, NetError> {
        let mut observed = Observed { nsid: self.nsid, ..Observed::default() };
        for name in host_links {
            let link = settled(self.host, name)?.filter(Link::is_ours);
            observed.host.extend(link.map(Link::into_host_link));
        }
        let links = host::all(&mut self.pod)?;
        let peers = observed.host.iter().filter(|host| host.peer_nsid == Some(self.nsid));
        let peers: Vec<u32> = peers.filter_map(|host| host.peer_index).collect();
        for link in links.iter().filter(|link| peers.contains(&link.index) && link.is_settling()) {
            settled(&mut self.pod, &link.name)?;
        }
        self.indexes = links.iter().map(|link| (link.name.clone(), link.index)).collect();
        observed.marker = links.iter().find(|link| link.index == LO).and_then(|lo| lo.alias.clone());
        observed.links = links.into_iter().filter(|link| !link.loopback).map(pod_link).collect();
        self.addresses(&mut observed.links)?;
        self.routes(&mut observed.links)?;
        for link in observed.links.iter().filter(|link| peers.contains(&link.index) && link.up) {
            self.wait_for_addresses(&link.addresses)?;
        }
        Ok(observed)
    }

    fn apply(&mut self, steps: &[Step]) -> Report {
        for (done, step) in steps.iter().enumerate() {
            if let Err(error) = self.step(step) {
                return Report { done, failed: Some((step.clone(), error)) };
            }
        }
        Report { done: steps.len(), failed: None }
    }

    fn announce(&mut self, link: &IfName, mac: Mac, addresses: &[Ip]) -> Result<(), NetError> {
        announce::send(link.as_str(), mac, addresses)
    }
}

impl PodSession<'_> {
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

    fn addresses(&mut self, links: &mut [PodLink]) -> Result<(), NetError> {
        let dump = self.pod.dump(&request::dump_addresses(None));
        for message in dump.map_err(|refusal| refusal.during("list addresses"))? {
            let RouteNetlinkMessage::NewAddress(message) = message else {
                continue;
            };
            let Some(link) = links.iter_mut().find(|link| link.index == message.header.index) else {
                continue;
            };
            if let Some((address, ours)) = read_address(&message) {
                link.addresses.push(address);
                link.ours.extend(ours.then_some(address));
            }
        }
        Ok(())
    }

    fn routes(&mut self, links: &mut [PodLink]) -> Result<(), NetError> {
        let dump = self.pod.dump(&request::dump_our_routes());
        for message in dump.map_err(|refusal| refusal.during("list routes"))? {
            let RouteNetlinkMessage::NewRoute(message) = message else {
                continue;
            };
            let Some((index, route)) = read_route(&message) else {
                continue;
            };
            if let Some(link) = links.iter_mut().find(|link| link.index == index) {
                link.routes.push(route);
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), NetError> {
        match step {
            Step::DeleteHostLink { host } => {
                self.indexes.clear();
                host::delete(self.host, std::slice::from_ref(host))
            }
            Step::CreateVeth { host, bridge, link, mac, mtu, alias } => {
                let namespace = self.namespace;
                self.create(
                    &Pair { host, bridge: *bridge, link, mac: *mac, mtu: *mtu, namespace },
                    alias,
                    step,
                )
            }
            Step::JoinBridge { host, bridge, alias } => {
                let ipv6 = self.sysctls.has_ipv6();
                during(self.host.change(request::join_bridge(host, *bridge, alias, ipv6), 0), step)
            }
            Step::SetSysctls { link, ipv6 } => self.sysctls.prepare(link.as_str(), *ipv6),
            Step::SetMtu { link, host, mtu } => {
                self.change(link, step, |index| request::set_mtu(index, *mtu), 0)?;
                during(self.host.change(request::set_mtu_by_name(host, *mtu), 0), step)
            }
            Step::LinkUp { link } => self.change(link, step, request::set_up, 0),
            Step::AddAddress { link, address } => {
                self.change(link, step, |index| request::add_address(index, *address), NEW)
            }
            Step::DeleteAddress { link, address } => {
                self.change(link, step, |index| request::delete_address(index, *address), 0)
            }
            Step::AddRoute { link, route } => {
                self.change(link, step, |index| request::add_route(index, route), NEW)
            }
            Step::DeleteRoute { link, route } => {
                self.change(link, step, |index| request::delete_route(index, route), 0)
            }
            Step::SetMarker { marker } => during(self.pod.change(request::set_alias(LO, marker), 0), step),
        }
    }

    fn create(&mut self, pair: &Pair<'_>, alias: &str, step: &Step) -> Result<(), NetError> {
        self.indexes.clear();
        during(self.host.change(request::create_veth(pair), NEW), step)?;
        let ipv6 = pair.mtu >= IPV6_MIN_MTU && self.sysctls.has_ipv6();
        during(self.host.change(request::finish_host_end(pair.host, alias, ipv6), 0), step)
    }

    /// A change of a link in the pod.
    fn change(
        &mut self,
        link: &IfName,
        step: &Step,
        request: impl FnOnce(u32) -> RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), NetError> {
        let index = self.index(link)?;
        during(self.pod.change(request(index), flags), step)
    }

    fn index(&mut self, link: &IfName) -> Result<u32, NetError> {
        if let Some(index) = self.indexes.get(link.as_str()) {
            return Ok(*index);
        }
        let found = host::find(&mut self.pod, link.as_str())?;
        let index =
            found.ok_or_else(|| netns::system(&format!("find {link} in the pod"), Errno::ENODEV))?.index;
        self.indexes.insert(link.to_string(), index);
        Ok(index)
    }
}

/// A link that works if it is up. When the other end comes up the kernel starts the queue of a link, and
/// forwards through a port of a bridge, only later in a work queue; until then frames are dropped. To read
/// one link makes the kernel do it now (Linux 6.8; before it does so in its own time).
fn settled(socket: &mut Socket, name: &str) -> Result<Option<Link>, NetError> {
    for pause in pauses() {
        match host::find(socket, name)? {
            Some(link) if link.is_settling() => thread::sleep(pause),
            link => return Ok(link),
        }
    }
    host::find(socket, name)
}

/// Half a second in all. Usually the first is enough; with hundreds of pods at a time others may be first in
/// the kernel's work queue.
fn pauses() -> impl Iterator<Item = Duration> {
    (0..SETTLE_TRIES).map(|n| Duration::from_micros((50 << n.min(10)).min(10_000)))
}

fn is_local(answer: &RouteNetlinkMessage) -> bool {
    matches!(answer, RouteNetlinkMessage::NewRoute(route) if route.header.kind == RouteType::Local)
}

fn during(result: Result<(), Refusal>, step: &Step) -> Result<(), NetError> {
    result.map_err(|refusal| refusal.during(step.to_string()))
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

/// An address that counts, and whether it carries our protocol number.
fn read_address(message: &AddressMessage) -> Option<(Cidr, bool)> {
    // On a point-to-point link the address is the peer's, and the local one the link's.
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
        return None;
    }
    let ours = message.attributes.iter().any(|attribute| {
        matches!(attribute, AddressAttribute::Protocol(protocol) if u8::from(*protocol) == names::ROUTE_PROTOCOL)
    });
    Some((Cidr(IpNet::new(address, message.header.prefix_len).ok()?), ours))
}

/// A route of ours in the main table: the index of its link, and the route.
fn read_route(message: &RouteMessage) -> Option<(u32, Route)> {
    let header = &message.header;
    let main = header.table == RouteHeader::RT_TABLE_MAIN && header.kind == RouteType::Unicast;
    if !main || u8::from(header.protocol) != names::ROUTE_PROTOCOL {
        return None;
    }
    let (mut index, mut to, mut via) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(oif) => index = Some(*oif),
            RouteAttribute::Destination(address) => to = ip(address),
            RouteAttribute::Gateway(address) => via = ip(address).map(Ip),
            _ => {}
        }
    }
    let to = to.unwrap_or_else(|| unspecified(message));
    Some((index?, Route { to: Cidr(IpNet::new(to, header.destination_prefix_length).ok()?), via }))
}

fn unspecified(message: &RouteMessage) -> IpAddr {
    match message.header.address_family {
        netlink_packet_route::AddressFamily::Inet => IpAddr::from([0; 4]),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
