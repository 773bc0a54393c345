//! Bridges of the node: reads the facts, lets [`super::super::bridge`] decide, does the changes.

use std::os::fd::AsFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::InfoKind;
use netlink_packet_route::route::RouteType;
use nix::errno::Errno;

use fairlead_crds::Reason;

use super::super::bridge::{self, Change, Device, Facts};
use super::super::devices::Devices;
use super::super::netlink::{Refusal, Socket};
use super::super::{BridgeProblem, BridgeReady, NetError, WantedBridge, netns};
use super::link::Link;
use super::{Kernel, host, request};

/// Brings a bridge to what is wanted.
pub(super) fn ensure(kernel: &Kernel, wanted: &WantedBridge) -> Result<BridgeReady, BridgeProblem> {
    let done = kernel.with_host(|socket| {
        let mac = bridge::mac(&kernel.node, wanted.name.as_str());
        let facts = facts(socket, wanted).map_err(|error| refused(&error))?;
        for change in bridge::changes(wanted, &facts, &kernel.devices, mac)? {
            apply(kernel, socket, wanted, &facts, &change)?;
        }
        let ready = device(socket, wanted.name.as_str()).map_err(|error| refused(&error))?;
        let ready = ready.ok_or_else(|| {
            bridge::problem(
                Reason::BridgeMissing,
                format!("the bridge {} has just been deleted", wanted.name),
            )
        })?;
        let mtu = wanted.mtu.unwrap_or(ready.mtu);
        Ok(BridgeReady { index: ready.index, mtu })
    });
    done.map_err(|error| refused(&error))?
}

/// Deletes a bridge of ours. The kernel releases its ports; the uplink keeps its state and is free again.
pub(super) fn remove(socket: &mut Socket, name: &str, node: &str, devices: &Devices) -> Result<(), NetError> {
    let found = device(socket, name)?.filter(|found| bridge::is_ours(found, bridge::mac(node, name)));
    let Some(found) = found else { return Ok(()) };
    let action = || format!("delete the bridge {name}");
    // Pods' links are still in use, and anything else is someone's who would miss the bridge.
    let stays =
        |port: &Link| port.controller == Some(found.index) && (port.is_ours() || !devices.allow(&port.name));
    let name_of = |message| Link::from_answer(message).filter(stays).map(|port| port.name);
    let kept = socket.dump(&request::dump_ports(found.index), name_of);
    let kept = kept.map_err(|refusal| refusal.during(action()))?;
    if !kept.is_empty() {
        let action = format!("delete the bridge {name}, which still has the ports {}", kept.join(", "));
        return Err(netns::system(&action, Errno::EBUSY));
    }
    match socket.change(request::delete_link(found.index), 0) {
        Err(refusal) if !refusal.is(Errno::ENODEV) => Err(refusal.during(action())),
        _ => Ok(()),
    }
}

fn facts(socket: &mut Socket, wanted: &WantedBridge) -> Result<Facts, NetError> {
    let bridge = device(socket, wanted.name.as_str())?;
    let mut uplink = match &wanted.uplink {
        Some(name) => device(socket, name.as_str())?,
        None => None,
    };
    // A port was free when we took it; what it carries only matters before that.
    if let Some(uplink) = uplink.as_mut().filter(|uplink| uplink.controller.is_none()) {
        uplink.in_use = in_use(socket, uplink)?;
    }
    Ok(Facts { bridge, uplink })
}

/// The bridges of ours.
pub(super) fn list(socket: &mut Socket, node: &str) -> Result<Vec<String>, NetError> {
    let is_ours = |found: &Device| found.is_bridge && bridge::is_ours(found, bridge::mac(node, &found.name));
    host::all(socket, |link| Some(as_device(link)).filter(is_ours).map(|bridge| bridge.name))
}

fn device(socket: &mut Socket, name: &str) -> Result<Option<Device>, NetError> {
    Ok(host::find(socket, name)?.map(as_device))
}

fn as_device(link: Link) -> Device {
    Device {
        isolated: is_isolated(&link),
        index: link.index,
        name: link.name,
        is_bridge: link.kind == Some(InfoKind::Bridge),
        is_loopback: link.loopback,
        group: link.group,
        alias: link.alias,
        mac: link.mac,
        mtu: link.mtu,
        up: link.flags.up,
        controller: link.controller,
        in_use: false,
    }
}

/// See [`request::configure_bridge`].
fn is_isolated(link: &Link) -> bool {
    let ipv4 = (link.ipv4.forwarding, link.ipv4.rp_filter, link.ipv4.arp_ignore);
    ipv4 == (0, 1, 8) && link.ipv6_disabled != Some(false)
}

fn in_use(socket: &mut Socket, device: &Device) -> Result<bool, NetError> {
    let reading = || format!("read the addresses and routes of {}", device.name);
    let used = |message| is_used_address(&message, device.index).then_some(());
    let addresses = socket.dump(&request::dump_addresses(Some(device.index)), used);
    if !addresses.map_err(|refusal| refusal.during(reading()))?.is_empty() {
        return Ok(true);
    }
    let default = |message| is_default_route(&message).then_some(());
    let routes = match socket.dump(&request::dump_routes_through(device.index), default) {
        // So answers the kernel when a filter leaves no table to look at.
        Err(refusal) if refusal.is(Errno::ENOENT) => return Ok(false),
        routes => routes.map_err(|refusal| refusal.during(reading()))?,
    };
    Ok(!routes.is_empty())
}

fn is_used_address(message: &RouteNetlinkMessage, index: u32) -> bool {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return false;
    };
    message.header.index == index
        && message.attributes.iter().any(|attribute| match attribute {
            AddressAttribute::Address(std::net::IpAddr::V6(address)) => !address.is_unicast_link_local(),
            AddressAttribute::Address(_) => true,
            _ => false,
        })
}

fn is_default_route(message: &RouteNetlinkMessage) -> bool {
    let RouteNetlinkMessage::NewRoute(message) = message else {
        return false;
    };
    message.header.destination_prefix_length == 0 && message.header.kind == RouteType::Unicast
}

fn apply(
    kernel: &Kernel,
    socket: &mut Socket,
    wanted: &WantedBridge,
    facts: &Facts,
    change: &Change,
) -> Result<(), BridgeProblem> {
    let name = wanted.name.as_str();
    match change {
        Change::Create { mac, mtu } => {
            let done = socket.change(request::create_bridge(name, *mac, *mtu), NLM_F_CREATE | NLM_F_EXCL);
            done.map_err(|refusal| refused(&refusal.during(format!("create the bridge {name}"))))
        }
        Change::Configure { mac, mtu } => {
            // IPv6 goes before the bridge is up, so that it never has an address or hears a router.
            netns::run(kernel.own.as_fd(), || kernel.sysctls.disable_ipv6(name))
                .flatten()
                .map_err(|error| refused(&error))?;
            let ipv6 = *mtu >= super::session::IPV6_MIN_MTU && kernel.sysctls.has_ipv6();
            let index = index(socket, name)?;
            let done = socket.change(request::configure_bridge(index, *mac, *mtu, bridge::ALIAS, ipv6), 0);
            done.map_err(|refusal| refused(&refusal.during(format!("configure the bridge {name}"))))
        }
        Change::AddUplink => {
            let Some(uplink) = &facts.uplink else {
                return Ok(());
            };
            let index = index(socket, name)?;
            let done = socket.change(request::set_controller(uplink.index, index), 0);
            done.map_err(|refusal| uplink_refused(refusal, &uplink.name, name))
        }
    }
}

fn index(socket: &mut Socket, name: &str) -> Result<u32, BridgeProblem> {
    let found = host::find(socket, name).map_err(|error| refused(&error))?;
    let gone = || bridge::problem(Reason::BridgeMissing, format!("the bridge {name} has just been deleted"));
    found.map(|link| link.index).ok_or_else(gone)
}

/// The kernel knows of uses that cannot be seen from here: a macvlan or ipvlan in some namespace.
fn uplink_refused(refusal: Refusal, uplink: &str, bridge: &str) -> BridgeProblem {
    if refusal.is(Errno::EBUSY) {
        return bridge::busy(uplink, "is already used by macvlan, ipvlan or the like");
    }
    refused(&refusal.during(format!("put the uplink {uplink} into the bridge {bridge}")))
}

fn refused(error: &NetError) -> BridgeProblem {
    bridge::problem(Reason::AttachFailed, error.to_string())
}
