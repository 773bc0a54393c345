//! What to do about a bridge: what is wanted and what is on the node in, steps or a reason out. Pure.

use fairlead_crds::{Mac, Reason, names};

use super::devices::Devices;
use super::{BridgeProblem, WantedBridge};

/// Alias of the bridges we make.
pub(super) const ALIAS: &str = "fairlead/v1;bridge";

/// MTU of a bridge without an uplink for which no Network asks for one.
const DEFAULT_MTU: u32 = 1500;

/// A device of the node, as far as bridges care.
#[expect(clippy::struct_excessive_bools, reason = "observed facts, independent of each other")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub index: u32,
    pub name: String,
    pub is_bridge: bool,
    pub is_loopback: bool,
    pub group: u32,
    pub alias: Option<String>,
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
    pub controller: Option<u32>,
    /// The node itself takes no part in the bridge's network.
    pub isolated: bool,
    /// It carries an IP address other than a link-local IPv6 one, or a default route: the node itself uses it.
    pub in_use: bool,
}

/// What is on the node now.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub bridge: Option<Device>,
    pub uplink: Option<Device>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Makes the bridge, down.
    Create { mac: Mac, mtu: u32 },
    /// Sets everything that is ours to set, and the bridge up.
    Configure { mac: Mac, mtu: u32 },
    /// Makes the uplink a port of the bridge.
    AddUplink,
}

/// The MAC of a bridge of ours: the same after it was made anew, another on each node.
pub(super) fn mac(node: &str, bridge: &str) -> Mac {
    let hash = u32::from_str_radix(&names::hash8(&["bridge", node, bridge]), 16).unwrap_or_default();
    let [a, b, c, d] = hash.to_be_bytes();
    Mac([0x02, 0x66, a, b, c, d])
}

/// Whether a bridge is one we made. One that we made half (the alias comes last) has our group and MAC.
pub(super) fn is_ours(bridge: &Device, mac: Mac) -> bool {
    let marked = match bridge.alias.as_deref() {
        Some(alias) => alias == ALIAS,
        None => bridge.mac == Some(mac),
    };
    bridge.is_bridge && bridge.group == names::LINK_GROUP && marked
}

/// The changes that bring a bridge to what is wanted; none when it is there.
pub(super) fn changes(
    wanted: &WantedBridge,
    facts: &Facts,
    devices: &Devices,
    mac: Mac,
) -> Result<Vec<Change>, BridgeProblem> {
    let uplink = uplink(wanted, facts, devices)?;
    let mtu = wanted.mtu.or(uplink.map(|uplink| uplink.mtu)).unwrap_or(DEFAULT_MTU);
    let mut changes = if wanted.create { ours(wanted, facts, mac, mtu)? } else { existing(wanted, facts)? };
    let port_of = uplink.and_then(|uplink| uplink.controller);
    if uplink.is_some() && (port_of.is_none() || facts.bridge.is_none()) {
        changes.push(Change::AddUplink);
    }
    Ok(changes)
}

fn ours(wanted: &WantedBridge, facts: &Facts, mac: Mac, mtu: u32) -> Result<Vec<Change>, BridgeProblem> {
    let Some(bridge) = &facts.bridge else {
        return Ok(vec![Change::Create { mac, mtu }, Change::Configure { mac, mtu }]);
    };
    if !is_ours(bridge, mac) {
        let text = format!(
            "the node already has a link {} that fairlead did not make; choose another bridge name, or set \
             bridge.manage to Existing if it is a bridge",
            wanted.name
        );
        return Err(problem(Reason::BridgeNameTaken, text));
    }
    let in_place = bridge.alias.is_some()
        && bridge.up
        && bridge.isolated
        && (bridge.mac, bridge.mtu) == (Some(mac), mtu);
    Ok(if in_place { Vec::new() } else { vec![Change::Configure { mac, mtu }] })
}

/// Somebody else's bridge: it gets ports and nothing else.
fn existing(wanted: &WantedBridge, facts: &Facts) -> Result<Vec<Change>, BridgeProblem> {
    let name = &wanted.name;
    match &facts.bridge {
        Some(bridge) if bridge.is_bridge && bridge.up => Ok(Vec::new()),
        Some(bridge) if bridge.is_bridge => {
            Err(problem(Reason::BridgeMissing, format!("the bridge {name} is down; set it up on the node")))
        }
        Some(_) => Err(problem(Reason::BridgeMissing, format!("{name} exists on the node but is no bridge"))),
        None => {
            let text = format!("the node has no bridge {name}; create it, or set bridge.manage to Create");
            Err(problem(Reason::BridgeMissing, text))
        }
    }
}

fn uplink<'a>(
    wanted: &WantedBridge,
    facts: &'a Facts,
    devices: &Devices,
) -> Result<Option<&'a Device>, BridgeProblem> {
    let Some(name) = &wanted.uplink else {
        return Ok(None);
    };
    let never = *name == wanted.name || name.as_str() == "lo";
    if never || !devices.allow(name.as_str()) {
        let text = format!("{name} is not matched by the agent's flag --devices on this node");
        return Err(problem(Reason::DeviceNotAllowed, text));
    }
    let Some(uplink) = &facts.uplink else {
        return Err(problem(Reason::ParentMissing, format!("the node has no interface {name}")));
    };
    usable(uplink, facts)?;
    match wanted.mtu {
        Some(mtu) if mtu > uplink.mtu => {
            let text = format!("the MTU {mtu} is larger than {}, that of the uplink {name}", uplink.mtu);
            Err(problem(Reason::MtuTooLarge, text))
        }
        _ => Ok(Some(uplink)),
    }
}

/// An uplink that the node itself uses is never taken, whatever the flag says: as a port it would stop to
/// receive for the node's own addresses. Other uses (macvlan, ipvlan) only the kernel can see for sure,
/// since such links live in other namespaces; it refuses then.
fn usable(uplink: &Device, facts: &Facts) -> Result<(), BridgeProblem> {
    let name = &uplink.name;
    if !uplink.up {
        return Err(problem(Reason::ParentDown, format!("the uplink {name} is down; set it up on the node")));
    }
    if uplink.is_loopback || super::kernel::is_ours(uplink.group, name) {
        return Err(problem(Reason::ParentBusy, format!("{name} cannot be an uplink")));
    }
    let bridge = facts.bridge.as_ref().map(|bridge| bridge.index);
    match uplink.controller {
        Some(controller) if Some(controller) == bridge => Ok(()),
        Some(_) => Err(busy(name, "is already a port of another device")),
        None if uplink.in_use => {
            Err(busy(name, "carries an IP address or the default route, so the node itself uses it"))
        }
        None => Ok(()),
    }
}

/// The uplink is used in another way.
pub(super) fn busy(uplink: &str, how: &str) -> BridgeProblem {
    problem(Reason::ParentBusy, format!("the uplink {uplink} {how}; use another device"))
}

pub(super) fn problem(reason: Reason, message: String) -> BridgeProblem {
    BridgeProblem { reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0x66, 1, 2, 3, 4]);

    fn wanted(create: bool, uplink: Option<&str>, mtu: Option<u32>) -> WantedBridge {
        let name = "br-blue".parse().unwrap();
        WantedBridge { name, create, uplink: uplink.map(|uplink| uplink.parse().unwrap()), mtu }
    }

    fn bridge() -> Device {
        Device {
            index: 7,
            name: "br-blue".into(),
            is_bridge: true,
            group: names::LINK_GROUP,
            alias: Some(ALIAS.into()),
            mac: Some(MAC),
            mtu: 1500,
            up: true,
            isolated: true,
            ..Device::default()
        }
    }

    fn eth1() -> Device {
        Device { index: 3, name: "eth1".into(), mtu: 1500, up: true, ..Device::default() }
    }

    fn decide(
        wanted: &WantedBridge,
        bridge: Option<Device>,
        uplink: Option<Device>,
    ) -> Result<Vec<Change>, Reason> {
        let devices = Devices::new(["eth*".to_owned()]);
        changes(wanted, &Facts { bridge, uplink }, &devices, MAC).map_err(|problem| {
            assert!(problem.message.len() > 20, "{}", problem.message);
            problem.reason
        })
    }

    #[test]
    fn a_missing_bridge_is_made_and_gets_its_uplink() {
        let (mac, mtu) = (MAC, 9000);
        let jumbo = Device { mtu, ..eth1() };
        let steps = decide(&wanted(true, Some("eth1"), None), None, Some(jumbo));
        assert_eq!(
            steps,
            Ok(vec![Change::Create { mac, mtu }, Change::Configure { mac, mtu }, Change::AddUplink])
        );
    }

    #[test]
    fn a_bridge_in_place_is_left_alone() {
        let port = Device { controller: Some(7), in_use: true, ..eth1() };
        assert_eq!(decide(&wanted(true, Some("eth1"), None), Some(bridge()), Some(port)), Ok(vec![]));
        assert_eq!(decide(&wanted(true, None, Some(1500)), Some(bridge()), None), Ok(vec![]));
    }

    #[test]
    fn what_changed_on_our_bridge_is_set_again() {
        let configure = Ok(vec![Change::Configure { mac: MAC, mtu: 1500 }]);
        for changed in [
            Device { up: false, ..bridge() },
            Device { mtu: 1400, ..bridge() },
            Device { isolated: false, ..bridge() },
            Device { alias: None, ..bridge() },
            Device { mac: Some(Mac([2; 6])), ..bridge() },
        ] {
            assert_eq!(decide(&wanted(true, None, None), Some(changed), None), configure);
        }
    }

    #[test]
    fn an_unmarked_link_of_the_name_is_not_ours() {
        for foreign in [
            Device { group: 0, ..bridge() },
            Device { alias: Some("mine".into()), ..bridge() },
            Device { is_bridge: false, ..bridge() },
            Device { alias: None, mac: Some(Mac([2; 6])), ..bridge() },
        ] {
            assert_eq!(decide(&wanted(true, None, None), Some(foreign), None), Err(Reason::BridgeNameTaken));
        }
    }

    #[test]
    fn an_existing_bridge_is_used_and_never_changed() {
        let theirs = Device { group: 0, alias: None, mtu: 1400, isolated: false, ..bridge() };
        assert_eq!(decide(&wanted(false, None, Some(1450)), Some(theirs.clone()), None), Ok(vec![]));
        assert_eq!(
            decide(&wanted(false, Some("eth1"), None), Some(theirs.clone()), Some(eth1())),
            Ok(vec![Change::AddUplink])
        );
        for unusable in
            [None, Some(Device { up: false, ..theirs.clone() }), Some(Device { is_bridge: false, ..theirs })]
        {
            assert_eq!(decide(&wanted(false, None, None), unusable, None), Err(Reason::BridgeMissing));
        }
    }

    #[test]
    fn an_uplink_must_be_allowed_there_up_and_free() {
        let with = |uplink: Option<Device>| decide(&wanted(true, Some("eth1"), None), Some(bridge()), uplink);
        assert_eq!(
            decide(&wanted(true, Some("wlan0"), None), None, Some(eth1())),
            Err(Reason::DeviceNotAllowed)
        );
        assert_eq!(with(None), Err(Reason::ParentMissing));
        assert_eq!(with(Some(Device { up: false, ..eth1() })), Err(Reason::ParentDown));
        assert_eq!(with(Some(Device { controller: Some(9), ..eth1() })), Err(Reason::ParentBusy));
        assert_eq!(with(Some(Device { in_use: true, ..eth1() })), Err(Reason::ParentBusy));
        assert_eq!(with(Some(eth1())), Ok(vec![Change::AddUplink]));
    }

    #[test]
    fn a_bridge_cannot_be_its_own_uplink_even_if_all_devices_are_allowed() {
        let devices = Devices::new(["*".to_owned()]);
        for name in ["br-blue", "lo"] {
            let facts = Facts { bridge: None, uplink: Some(Device { name: name.into(), ..eth1() }) };
            let refused = changes(&wanted(true, Some(name), None), &facts, &devices, MAC);
            assert_eq!(refused.map_err(|problem| problem.reason), Err(Reason::DeviceNotAllowed));
        }
    }

    #[test]
    fn an_mtu_above_the_uplinks_is_refused() {
        let with = |mtu| decide(&wanted(true, Some("eth1"), Some(mtu)), None, Some(eth1())).err();
        assert_eq!(with(1501), Some(Reason::MtuTooLarge));
        assert_eq!(with(1500), None);
    }

    #[test]
    fn an_uplink_of_a_bridge_that_is_gone_is_not_mistaken_for_ours() {
        let port = Device { controller: Some(7), ..eth1() };
        assert_eq!(decide(&wanted(true, Some("eth1"), None), None, Some(port)), Err(Reason::ParentBusy));
    }

    #[test]
    fn a_bridges_mac_is_local_and_differs_by_node_and_name() {
        let one = mac("node1", "br-blue");
        assert_eq!(one.0[0] & 3, 2, "local, not multicast");
        assert_eq!(one, mac("node1", "br-blue"));
        assert_ne!(one, mac("node2", "br-blue"));
        assert_ne!(one, mac("node1", "br-red"));
    }
}
