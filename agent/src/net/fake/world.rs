//! What is in the kernel of a [`super::Fake`], and how it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use fairlead_crds::network::Route;
use fairlead_crds::{Cidr, IfName, Ip, Mac, Reason, names};

use super::super::bridge::{self, Change, Device, Facts};
use super::super::devices::Devices;
use super::super::{BridgeProblem, BridgeReady, NetError, Place, Stranger, WantedBridge, netns};
use super::{Announcement, Refused};
use crate::plan::{HostLink, Observed, PodLink, Step};

const NODE: &str = "fake";

/// One node.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Host ends of ours.
    pub links: Vec<HostLink>,
    pub changes: u64,
    pub announced: Vec<Announcement>,
    pub strangers: Vec<Stranger>,
    pub forgotten: Vec<Ip>,
    devices: Vec<Device>,
    /// Namespaces by cookie, alive whether or not a path leads there.
    pods: BTreeMap<u64, Pod>,
    paths: BTreeMap<PathBuf, u64>,
    last_index: u32,
    last_cookie: u64,
}

/// One namespace.
#[derive(Debug, Default)]
struct Pod {
    nsid: Option<i32>,
    links: Vec<PodLink>,
    marker: Option<String>,
    last_index: u32,
}

impl World {
    pub fn add_pod(&mut self, path: PathBuf) -> u64 {
        self.last_cookie += 1;
        // Index 1 is `lo`.
        self.pods.insert(self.last_cookie, Pod { last_index: 1, ..Pod::default() });
        self.paths.insert(path, self.last_cookie);
        self.last_cookie
    }

    pub fn remove_pod(&mut self, path: &Path) {
        let Some(pod) = self.paths.remove(path).and_then(|cookie| self.pods.remove(&cookie)) else {
            return;
        };
        self.links.retain(|link| link.peer_nsid != pod.nsid);
    }

    pub fn hide_pod(&mut self, path: &Path) {
        self.paths.remove(path);
    }

    pub fn edit_pod(&mut self, path: &Path, edit: impl FnOnce(&mut Vec<PodLink>)) {
        let Some(pod) = self.cookie(path).and_then(|cookie| self.pods.get_mut(&cookie)) else {
            return;
        };
        edit(&mut pod.links);
        let last = pod.links.iter().map(|link| link.index).max().unwrap_or_default();
        pod.last_index = pod.last_index.max(last);
        // A pair dies with either end.
        let (nsid, indexes) = (pod.nsid, indexes(&pod.links));
        self.links.retain(|host| {
            host.peer_nsid != nsid || host.peer_index.is_some_and(|peer| indexes.contains(&peer))
        });
    }

    pub fn add_device(&mut self, device: Device) -> u32 {
        let index = self.next_index();
        self.devices.push(Device { index, ..device });
        index
    }

    pub fn cookie(&self, path: &Path) -> Option<u64> {
        self.paths.get(path).copied()
    }

    pub fn has_link(&self, cookie: u64, name: &str) -> bool {
        self.pods.get(&cookie).is_some_and(|pod| pod.links.iter().any(|link| link.name == name))
    }

    /// Cookie and id of the namespace at a path. Like Linux, gives the lowest id that is free.
    pub fn open(&mut self, path: &Path) -> Option<(u64, i32)> {
        let cookie = self.cookie(path)?;
        let used = self.nsids();
        let free = (0..=i32::MAX).find(|nsid| !used.contains(nsid))?;
        let pod = self.pods.get_mut(&cookie)?;
        Some((cookie, *pod.nsid.get_or_insert(free)))
    }

    pub fn nsids(&self) -> Vec<i32> {
        let mut nsids: Vec<_> = self.pods.values().filter_map(|pod| pod.nsid).collect();
        nsids.sort_unstable();
        nsids
    }

    /// As a session sees it: links that nobody asked for are left out, and of others only that they are there.
    pub fn observe(&self, cookie: u64, places: &[Place<'_>]) -> Option<Observed> {
        let hosts: Vec<&str> = places.iter().map(|place| place.host).collect();
        let mut observed = self.look(cookie, &hosts)?;
        let is_peer = |link: &PodLink| {
            observed
                .host
                .iter()
                .any(|host| (host.peer_nsid, host.peer_index) == (Some(observed.nsid), Some(link.index)))
        };
        let (mut ours, others): (Vec<_>, Vec<_>) = observed.links.drain(..).partition(is_peer);
        let asked = |link: &PodLink| places.iter().any(|place| place.link == Some(link.name.as_str()));
        ours.extend(others.into_iter().filter(asked).map(|link| PodLink {
            addresses: Vec::new(),
            ours: Vec::new(),
            routes: Vec::new(),
            ..link
        }));
        observed.links = ours;
        Some(observed)
    }

    /// All links of a pod, and those of the host links that there are.
    pub fn look(&self, cookie: u64, host_links: &[&str]) -> Option<Observed> {
        let pod = self.pods.get(&cookie)?;
        let asked = |link: &&HostLink| host_links.contains(&link.name.as_str());
        Some(Observed {
            nsid: pod.nsid.unwrap_or(-1),
            links: pod.links.clone(),
            host: self.links.iter().filter(asked).cloned().collect(),
            marker: pod.marker.clone(),
        })
    }

    pub fn step(&mut self, cookie: u64, step: &Step) -> Result<(), Refused> {
        self.try_step(cookie, step)?;
        self.changes += 1;
        Ok(())
    }

    fn try_step(&mut self, cookie: u64, step: &Step) -> Result<(), Refused> {
        let nsid = self.pods.get(&cookie).ok_or(Errno::ENODEV)?.nsid;
        match step {
            Step::DeleteHostLink { host } => return self.cut(host),
            Step::CreateVeth { .. } => return Ok(self.create(cookie, nsid, step)?),
            Step::JoinBridge { host, bridge, alias } => {
                self.bridge_index(*bridge)?;
                let link = self.host_mut(host)?;
                (link.bridge, link.up, link.alias) = (Some(*bridge), true, Some(alias.clone()));
                return Ok(());
            }
            Step::SetMtu { host, mtu, .. } => self.host_mut(host)?.mtu = *mtu,
            _ => {}
        }
        let pod = self.pods.get_mut(&cookie).ok_or(Errno::ENODEV)?;
        Ok(pod.step(step)?)
    }

    fn create(&mut self, cookie: u64, nsid: Option<i32>, step: &Step) -> Result<(), Errno> {
        let Step::CreateVeth { host, bridge, link, mac, mtu, alias } = step else {
            return Err(Errno::EINVAL);
        };
        self.bridge_index(*bridge)?;
        let taken = self.links.iter().any(|link| link.name == *host)
            || self.devices.iter().any(|link| link.name == *host);
        if taken || self.has_link(cookie, link.as_str()) {
            return Err(Errno::EEXIST);
        }
        let index = self.next_index();
        let pod = self.pods.get_mut(&cookie).ok_or(Errno::ENODEV)?;
        let peer = pod.add(link.as_str(), *mac, *mtu);
        self.links.push(HostLink {
            name: host.clone(),
            index,
            bridge: Some(*bridge),
            mtu: *mtu,
            up: true,
            alias: Some(alias.clone()),
            peer_nsid: nsid,
            peer_index: Some(peer),
        });
        Ok(())
    }

    fn bridge_index(&self, index: u32) -> Result<(), Errno> {
        let found = self.devices.iter().any(|device| device.index == index && device.is_bridge);
        if found { Ok(()) } else { Err(Errno::ENODEV) }
    }

    fn host_mut(&mut self, name: &str) -> Result<&mut HostLink, Errno> {
        self.links.iter_mut().find(|link| link.name == name).ok_or(Errno::ENODEV)
    }

    /// Both ends, in whatever namespace the other one is.
    fn cut(&mut self, name: &str) -> Result<(), Refused> {
        if self.devices.iter().any(|device| device.name == name) {
            return Err(Refused::NotOurs(name.to_owned()));
        }
        let Some(at) = self.links.iter().position(|link| link.name == name) else {
            return Ok(());
        };
        let host = self.links.remove(at);
        for pod in self.pods.values_mut().filter(|pod| pod.nsid.is_some() && pod.nsid == host.peer_nsid) {
            pod.links.retain(|link| Some(link.index) != host.peer_index);
        }
        Ok(())
    }

    pub fn delete_link(&mut self, name: &str) -> Result<(), NetError> {
        let before = self.links.len();
        match self.cut(name) {
            Err(Refused::NotOurs(name)) => return Err(NetError::NotOurs(name)),
            Err(Refused::Errno(errno)) => return Err(netns::system(&format!("delete {name}"), errno)),
            Ok(()) => {}
        }
        self.changes += u64::from(self.links.len() < before);
        Ok(())
    }

    pub fn ensure_bridge(
        &mut self,
        wanted: &WantedBridge,
        devices: &Devices,
    ) -> Result<BridgeReady, BridgeProblem> {
        let mac = bridge::mac(NODE, wanted.name.as_str());
        let facts = Facts {
            bridge: self.device(wanted.name.as_str()).cloned(),
            uplink: wanted.uplink.as_ref().and_then(|name| self.device(name.as_str())).cloned(),
        };
        for change in bridge::changes(wanted, &facts, devices, mac)? {
            self.changes += 1;
            self.change_bridge(wanted, &change);
        }
        let ready = self.device(wanted.name.as_str());
        let ready =
            ready.ok_or_else(|| bridge::problem(Reason::BridgeMissing, format!("no {}", wanted.name)))?;
        Ok(BridgeReady { index: ready.index, mtu: wanted.mtu.unwrap_or(ready.mtu) })
    }

    fn change_bridge(&mut self, wanted: &WantedBridge, change: &Change) {
        let (name, uplink) = (wanted.name.as_str(), wanted.uplink.as_ref());
        match change {
            Change::Create { mac, mtu } => {
                let (mac, group) = (Some(*mac), names::LINK_GROUP);
                let bridge = Device {
                    name: name.to_owned(),
                    is_bridge: true,
                    group,
                    mac,
                    mtu: *mtu,
                    ..Device::default()
                };
                self.add_device(bridge);
            }
            Change::Configure { mac, mtu } => {
                for bridge in self.devices.iter_mut().filter(|device| device.name == name) {
                    (bridge.mac, bridge.mtu, bridge.alias) =
                        (Some(*mac), *mtu, Some(bridge::ALIAS.to_owned()));
                    (bridge.up, bridge.isolated) = (true, true);
                }
            }
            Change::AddUplink => {
                let index = self.device(name).map(|bridge| bridge.index);
                for device in self
                    .devices
                    .iter_mut()
                    .filter(|device| Some(device.name.as_str()) == uplink.map(IfName::as_str))
                {
                    device.controller = index;
                }
            }
        }
    }

    pub fn bridges(&self) -> Vec<String> {
        let ours =
            |device: &&Device| device.is_bridge && bridge::is_ours(device, bridge::mac(NODE, &device.name));
        self.devices.iter().filter(ours).map(|device| device.name.clone()).collect()
    }

    pub fn remove_bridge(&mut self, name: &str, devices: &Devices) -> Result<(), NetError> {
        let Some(found) = self.device(name).filter(|found| bridge::is_ours(found, bridge::mac(NODE, name)))
        else {
            return Ok(());
        };
        let index = found.index;
        let foreign = |device: &Device| device.controller == Some(index) && !devices.allow(&device.name);
        let used =
            self.links.iter().any(|link| link.bridge == Some(index)) || self.devices.iter().any(foreign);
        if used {
            return Err(netns::system(
                &format!("delete the bridge {name}, which still has ports"),
                Errno::EBUSY,
            ));
        }
        self.devices.retain(|device| device.index != index);
        for port in self.devices.iter_mut().filter(|device| device.controller == Some(index)) {
            port.controller = None;
        }
        self.changes += 1;
        Ok(())
    }

    fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    fn next_index(&mut self) -> u32 {
        self.last_index += 1;
        self.last_index
    }
}

impl Pod {
    fn add(&mut self, name: &str, mac: Mac, mtu: u32) -> u32 {
        self.last_index += 1;
        self.links.push(PodLink {
            name: name.to_owned(),
            index: self.last_index,
            mac: Some(mac),
            mtu,
            up: false,
            ipv6: true,
            addresses: Vec::new(),
            ours: Vec::new(),
            routes: Vec::new(),
        });
        self.last_index
    }

    fn step(&mut self, step: &Step) -> Result<(), Errno> {
        match step {
            Step::SetSysctls { link, ipv6 } => set_ipv6(self.link(link.as_str())?, *ipv6),
            Step::SetMtu { link, mtu, .. } => self.link(link.as_str())?.mtu = *mtu,
            Step::LinkUp { link } => self.link(link.as_str())?.up = true,
            Step::AddAddress { link, address } => add_address(self.link(link.as_str())?, *address)?,
            Step::DeleteAddress { link, address } => delete_address(self.link(link.as_str())?, *address)?,
            Step::AddRoute { link, route } => self.add_route(link.as_str(), route)?,
            Step::DeleteRoute { link, route } => delete_route(self.link(link.as_str())?, route)?,
            Step::SetMarker { marker } => self.marker = Some(marker.clone()),
            Step::DeleteHostLink { .. } | Step::CreateVeth { .. } | Step::JoinBridge { .. } => {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    fn link(&mut self, name: &str) -> Result<&mut PodLink, Errno> {
        self.links.iter_mut().find(|link| link.name == name).ok_or(Errno::ENODEV)
    }

    /// One route to a destination, whatever its link; the next hop must be reachable through the link.
    fn add_route(&mut self, name: &str, route: &Route) -> Result<(), Errno> {
        if self.links.iter().flat_map(|link| &link.routes).any(|other| other.to == route.to) {
            return Err(Errno::EEXIST);
        }
        let link = self.link(name)?;
        if !link.up {
            return Err(Errno::ENETDOWN);
        }
        let reaches = |via: IpAddr| link.addresses.iter().any(|address| address.0.contains(&via));
        if route.via.is_some_and(|via| !reaches(via.0)) {
            return Err(Errno::ENETUNREACH);
        }
        link.routes.push(route.clone());
        Ok(())
    }
}

fn set_ipv6(link: &mut PodLink, enabled: bool) {
    link.ipv6 = enabled;
    if !enabled {
        link.addresses.retain(|address| !address.is_ipv6());
        link.ours.retain(|address| !address.is_ipv6());
        link.routes.retain(|route| !route.to.is_ipv6());
    }
}

/// In IPv4 one address may be there with several prefix lengths, in IPv6 not.
fn add_address(link: &mut PodLink, address: Cidr) -> Result<(), Errno> {
    let same = |other: &Cidr| *other == address || (address.is_ipv6() && other.addr() == address.addr());
    if address.is_ipv6() && !link.ipv6 {
        return Err(Errno::EACCES);
    }
    if link.addresses.iter().any(same) {
        return Err(Errno::EEXIST);
    }
    link.addresses.push(address);
    link.ours.push(address);
    Ok(())
}

/// With its last IPv4 address a link loses its IPv4 routes.
fn delete_address(link: &mut PodLink, address: Cidr) -> Result<(), Errno> {
    let at = link.addresses.iter().position(|other| *other == address).ok_or(Errno::EADDRNOTAVAIL)?;
    link.addresses.remove(at);
    link.ours.retain(|other| *other != address);
    if link.addresses.iter().all(Cidr::is_ipv6) {
        link.routes.retain(|route| route.to.is_ipv6());
    }
    Ok(())
}

fn delete_route(link: &mut PodLink, route: &Route) -> Result<(), Errno> {
    let at = link.routes.iter().position(|other| other == route).ok_or(Errno::ESRCH)?;
    link.routes.remove(at);
    Ok(())
}

fn indexes(links: &[PodLink]) -> BTreeSet<u32> {
    links.iter().map(|link| link.index).collect()
}
