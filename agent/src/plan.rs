//! Compares what a pod's interfaces shall be with what is in the kernel, and says what to do. Pure.
//!
//! The same list of steps is logged, tested and executed, and is empty when nothing is to be done:
//! a restarted agent that finds everything in place writes nothing.

use std::fmt;

use fairlead_crds::network::Route;
use fairlead_crds::{Cidr, IfName, Mac, Reason};

/// Names that no interface of ours has, whether or not something else has them now.
const NEVER_OURS: [&str; 2] = ["lo", "eth0"];

/// One interface a pod shall have: a veth pair, one end in the pod, the other in a bridge of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedInterface {
    /// Name in the pod.
    pub name: IfName,
    /// Name of the end on the node; deterministic, see [`fairlead_crds::names::host_link`].
    pub host: String,
    /// Hardware address of the pod's end.
    pub mac: Mac,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Interface index of the bridge on the node.
    pub bridge: u32,
    /// Interface addresses, with the prefix length of their range.
    pub addresses: Vec<Cidr>,
    /// Static routes; `via` is filled in where the range has a gateway.
    pub routes: Vec<Route>,
    /// Alias of the end on the node, by which an orphan is recognised.
    pub alias: String,
}

/// A link in the pod's namespace, other than `lo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLink {
    /// Its name.
    pub name: String,
    /// Its interface index in the pod's namespace.
    pub index: u32,
    /// Its hardware address; none for links without one of six bytes.
    pub mac: Option<Mac>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether IPv6 is enabled on it.
    pub ipv6: bool,
    /// All its addresses but link-local IPv6 ones.
    pub addresses: Vec<Cidr>,
    /// Those of its addresses that carry our protocol number (`IFA_PROTO`, Linux 5.18; none on older kernels).
    pub ours: Vec<Cidr>,
    /// Its routes that carry our protocol number ([`fairlead_crds::names::ROUTE_PROTOCOL`]).
    pub routes: Vec<Route>,
}

/// A link on the node with our group and a name of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLink {
    /// Its name.
    pub name: String,
    /// Its interface index on the node.
    pub index: u32,
    /// Index of the bridge it is a port of.
    pub bridge: Option<u32>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Its alias.
    pub alias: Option<String>,
    /// Id of the namespace that its other end is in, as seen from the node.
    pub peer_nsid: Option<i32>,
    /// Interface index of its other end.
    pub peer_index: Option<u32>,
}

/// What is in the kernel for one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Id of the pod's namespace, as seen from the node.
    pub nsid: i32,
    /// The links in the pod's namespace.
    pub links: Vec<PodLink>,
    /// Those of the host links asked for that exist.
    pub host: Vec<HostLink>,
    /// Alias of `lo`: the marker, if there is one.
    pub marker: Option<String>,
}

/// One change in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Deletes a host link of ours, and with it the pod's end, in whatever namespace that is.
    DeleteHostLink {
        /// Name on the node.
        host: String,
    },
    /// Makes a veth pair in one message: the pod's end is born in the pod under its final name, down;
    /// the host end is born a port of the bridge, up.
    CreateVeth {
        /// Name on the node.
        host: String,
        /// Index of the bridge.
        bridge: u32,
        /// Name in the pod.
        link: IfName,
        /// Hardware address of the pod's end.
        mac: Mac,
        /// MTU of both ends, in bytes.
        mtu: u32,
        /// Alias of the host end.
        alias: String,
    },
    /// Makes the host end a port of the bridge, sets its alias and sets it up.
    JoinBridge {
        /// Name on the node.
        host: String,
        /// Index of the bridge.
        bridge: u32,
        /// Alias of the host end.
        alias: String,
    },
    /// Sets the sysctls of the pod's end that must be right before it is up.
    SetSysctls {
        /// Name in the pod.
        link: IfName,
        /// Whether the link has IPv6 addresses; otherwise IPv6 is disabled on it.
        ipv6: bool,
    },
    /// Sets the MTU of both ends.
    SetMtu {
        /// Name in the pod.
        link: IfName,
        /// Name on the node.
        host: String,
        /// MTU in bytes.
        mtu: u32,
    },
    /// Sets the pod's end up.
    LinkUp {
        /// Name in the pod.
        link: IfName,
    },
    /// Adds an address; IPv6 without duplicate address detection, since our allocator is the authority.
    AddAddress {
        /// Name in the pod.
        link: IfName,
        /// The address.
        address: Cidr,
    },
    /// Deletes an address that carries our protocol number.
    DeleteAddress {
        /// Name in the pod.
        link: IfName,
        /// The address.
        address: Cidr,
    },
    /// Adds a route with our protocol number.
    AddRoute {
        /// Name in the pod.
        link: IfName,
        /// The route.
        route: Route,
    },
    /// Deletes a route with our protocol number.
    DeleteRoute {
        /// Name in the pod.
        link: IfName,
        /// The route.
        route: Route,
    },
    /// Sets the marker on `lo`.
    SetMarker {
        /// The marker's text.
        marker: String,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeleteHostLink { host } => write!(f, "delete {host}"),
            Self::CreateVeth { host, bridge, link, mac, mtu, .. } => {
                write!(f, "create {link} ({mac}, mtu {mtu}) with {host} in bridge {bridge}")
            }
            Self::JoinBridge { host, bridge, .. } => write!(f, "put {host} into bridge {bridge}"),
            Self::SetSysctls { link, ipv6 } => {
                write!(f, "set sysctls of {link} (ipv6 {})", if *ipv6 { "on" } else { "off" })
            }
            Self::SetMtu { link, mtu, .. } => write!(f, "set mtu of {link} to {mtu}"),
            Self::LinkUp { link } => write!(f, "set {link} up"),
            Self::AddAddress { link, address } => write!(f, "add {address} to {link}"),
            Self::DeleteAddress { link, address } => write!(f, "delete {address} from {link}"),
            Self::AddRoute { link, route } => write!(f, "add route to {} through {link}", route.to),
            Self::DeleteRoute { link, route } => write!(f, "delete route to {} through {link}", route.to),
            Self::SetMarker { marker } => write!(f, "set marker {marker}"),
        }
    }
}

/// Why a pod cannot be brought to what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A link that is not ours has the name.
    #[error("the pod already has an interface {0} that fairlead did not make; ask for another name")]
    NameTaken(IfName),
}

impl Conflict {
    /// The reason for the pod's status.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NameTaken(_) => Reason::InterfaceNameTaken,
        }
    }
}

/// The steps that bring a pod's interfaces from `observed` to `wanted`; empty when they are there.
///
/// # Errors
/// The first [`Conflict`] if something that is not ours is in the way of any of them.
pub fn attach(wanted: &[WantedInterface], observed: &Observed) -> Result<Vec<Step>, Conflict> {
    let (steps, conflicts) = attach_free(wanted, observed);
    conflicts.into_iter().next().map_or(Ok(steps), Err)
}

/// As [`attach`], but for those interfaces that nothing is in the way of, and the conflicts of the others.
///
/// Pairs that are not what they should be are cut first, all of them, so that a name they hold is free. So
/// this must see all interfaces of a pod at once.
pub fn attach_free(wanted: &[WantedInterface], observed: &Observed) -> (Vec<Step>, Vec<Conflict>) {
    let (mut cut, mut make, mut conflicts) = (Vec::new(), Vec::new(), Vec::new());
    for interface in wanted {
        match observed.pair(interface) {
            Some((host, link)) => converge(interface, host, link, &mut make),
            None => match in_the_way(interface, wanted, observed) {
                Ok(hosts) => {
                    cut.extend(hosts);
                    create(interface, &mut make);
                }
                Err(conflict) => conflicts.push(conflict),
            },
        }
    }
    cut.sort();
    cut.dedup();
    let cut = cut.into_iter().map(|host| Step::DeleteHostLink { host });
    (cut.chain(make).collect(), conflicts)
}

impl Observed {
    /// The two ends of an interface, if they are in this namespace and under the right name. The host
    /// end alone says which link in the pod is ours: the pod can change everything else.
    fn pair(&self, interface: &WantedInterface) -> Option<(&HostLink, &PodLink)> {
        let host = self.host(&interface.host)?;
        let link = self.links.iter().find(|link| self.joins(host, link))?;
        (link.name == interface.name.as_str() && link.mac == Some(interface.mac)).then_some((host, link))
    }

    /// Index of the pod's end of a host link, if that end is in this namespace.
    pub fn peer_of(&self, host: &str) -> Option<u32> {
        self.host(host).filter(|host| host.peer_nsid == Some(self.nsid))?.peer_index
    }

    fn host(&self, name: &str) -> Option<&HostLink> {
        self.host.iter().find(|host| host.name == name)
    }

    /// Whether the two are ends of one pair. Indexes are unique per namespace only.
    fn joins(&self, host: &HostLink, link: &PodLink) -> bool {
        host.peer_nsid == Some(self.nsid) && host.peer_index == Some(link.index)
    }
}

/// The host ends that must go before the interface can be made: its own, wherever the other end is, and that
/// of a link of ours which holds its name.
fn in_the_way(
    interface: &WantedInterface,
    wanted: &[WantedInterface],
    observed: &Observed,
) -> Result<Vec<String>, Conflict> {
    let taken = || Conflict::NameTaken(interface.name.clone());
    if NEVER_OURS.contains(&interface.name.as_str()) {
        return Err(taken());
    }
    let mut cut: Vec<_> = observed.host(&interface.host).into_iter().map(|host| host.name.clone()).collect();
    let Some(link) = observed.links.iter().find(|link| link.name == interface.name.as_str()) else {
        return Ok(cut);
    };
    let holder = observed.host.iter().find(|host| observed.joins(host, link)).ok_or_else(taken)?;
    let in_place = |other: &WantedInterface| other.host == holder.name && observed.pair(other).is_some();
    if wanted.iter().any(in_place) {
        return Err(taken());
    }
    cut.push(holder.name.clone());
    Ok(cut)
}

fn create(interface: &WantedInterface, steps: &mut Vec<Step>) {
    let WantedInterface { name: link, host, bridge, mac, mtu, alias, .. } = interface.clone();
    steps.push(Step::CreateVeth { host, bridge, link, mac, mtu, alias });
    bring_up(interface, steps);
    steps.extend(interface.addresses.iter().map(|address| add_address(interface, *address)));
    steps.extend(interface.routes.iter().map(|route| add_route(interface, route)));
}

fn converge(interface: &WantedInterface, host: &HostLink, link: &PodLink, steps: &mut Vec<Step>) {
    if host.bridge != Some(interface.bridge) || !host.up || host.alias.as_ref() != Some(&interface.alias) {
        let WantedInterface { host, bridge, alias, .. } = interface.clone();
        steps.push(Step::JoinBridge { host, bridge, alias });
    }
    if host.mtu != interface.mtu || link.mtu != interface.mtu {
        let WantedInterface { name: link, host, mtu, .. } = interface.clone();
        steps.push(Step::SetMtu { link, host, mtu });
    }
    let (old6, old4): (Vec<Cidr>, Vec<Cidr>) =
        only_in(&link.ours, &interface.addresses).copied().partition(Cidr::is_ipv6);
    // Old IPv6 addresses go before IPv6 does, and before new ones come: there one address cannot be on a
    // link with two prefix lengths.
    steps.extend(only_in(&link.routes, &interface.routes).map(|route| delete_route(interface, route)));
    steps.extend(old6.into_iter().map(|address| delete_address(interface, address)));
    if !link.up {
        bring_up(interface, steps);
    } else if interface.has_ipv6() && !link.ipv6 {
        // Never the other way on a link that is up: it would take away what the pod itself put there.
        steps.push(set_sysctls(interface));
    }
    // Old IPv4 addresses go after new ones came: with its last one a link loses all of its IPv4 routes.
    steps.extend(
        only_in(&interface.addresses, &link.addresses).map(|address| add_address(interface, *address)),
    );
    steps.extend(old4.into_iter().map(|address| delete_address(interface, address)));
    steps.extend(only_in(&interface.routes, &link.routes).map(|route| add_route(interface, route)));
}

/// What is in `one` and not in `other`.
fn only_in<'a, T: PartialEq>(one: &'a [T], other: &'a [T]) -> impl Iterator<Item = &'a T> {
    one.iter().filter(|item| !other.contains(item))
}

impl WantedInterface {
    fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(Cidr::is_ipv6)
    }
}

fn bring_up(interface: &WantedInterface, steps: &mut Vec<Step>) {
    steps.push(set_sysctls(interface));
    steps.push(Step::LinkUp { link: interface.name.clone() });
}

fn set_sysctls(interface: &WantedInterface) -> Step {
    Step::SetSysctls { link: interface.name.clone(), ipv6: interface.has_ipv6() }
}

fn add_address(interface: &WantedInterface, address: Cidr) -> Step {
    Step::AddAddress { link: interface.name.clone(), address }
}

fn delete_address(interface: &WantedInterface, address: Cidr) -> Step {
    Step::DeleteAddress { link: interface.name.clone(), address }
}

fn delete_route(interface: &WantedInterface, route: &Route) -> Step {
    Step::DeleteRoute { link: interface.name.clone(), route: route.clone() }
}

fn add_route(interface: &WantedInterface, route: &Route) -> Step {
    Step::AddRoute { link: interface.name.clone(), route: route.clone() }
}

#[cfg(test)]
mod tests;
