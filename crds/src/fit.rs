//! A dry run: would this pod fit, on which nodes, and from which ranges would its addresses come. Pure.
//!
//! It follows what agents do: an address of a block that the node owns, in the order of the ranges; only then a new
//! block. Its reasons are those that the pod would show. Other pods may be faster than the answer, and whether a reserved
//! address is somebody's already is for the controller to say.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use crate::address::Family;
use crate::network::AllowedFrom;
use crate::request::{self, Request};
use crate::reserved::{self, Ask};
use crate::{Cidr, IPBlock, Network, NodeNetwork, PodNetwork, Reason, names};

use self::supply::{Lack, Supply};

mod supply;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A pod that may not exist yet.
#[derive(Debug, Clone, Copy)]
pub struct Pod<'a> {
    /// Its labels, which attach rules select by.
    pub labels: &'a Labels,
    /// Its annotations; without `fairlead.dev/selected` the attach rules are looked at.
    pub annotations: &'a Labels,
    /// Its namespace.
    pub namespace: &'a str,
    /// Labels of its namespace.
    pub namespace_labels: &'a Labels,
    /// Name of the `StatefulSet` that owns it, for which a network may keep addresses.
    pub stateful_set: Option<&'a str>,
    /// Whether it uses the node's own network.
    pub host_network: bool,
}

/// A node that it could run on.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// By Network: what the scheduler has left of the extended resource there; `None` if that is not known.
    pub room: Option<&'a BTreeMap<String, u64>>,
}

/// What is known of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// All Networks.
    pub networks: &'a [Network],
    /// What the nodes say of themselves.
    pub offers: &'a [NodeNetwork],
    /// All blocks and records, by which the answer names the range; without them it goes by what nodes say.
    pub holdings: Option<(&'a [IPBlock], &'a [PodNetwork])>,
    /// Now, for quarantines.
    pub now: Timestamp,
}

/// Something in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason, as in the table of reasons.
    pub reason: Reason,
    /// The reason, in one sentence.
    pub message: String,
}

/// Where one address would come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// Its family.
    pub family: Family,
    /// The range; `None` for a reserved address, and where several are possible and the blocks are not known.
    pub range: Option<Cidr>,
    /// Whether the node would have to claim a block first.
    pub claims: bool,
}

/// One network of the pod on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Name of the Network.
    pub network: String,
    /// Its addresses, IPv4 first; none without address management.
    pub sources: Vec<Source>,
}

/// The answer for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFit {
    /// Name of the node.
    pub node: String,
    /// What the pod would get there.
    pub planned: Vec<Planned>,
    /// What is in the way there.
    pub obstacles: Vec<Obstacle>,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fit {
    /// What is in the way on every node.
    pub obstacles: Vec<Obstacle>,
    /// Node by node, in the order they were given.
    pub nodes: Vec<NodeFit>,
}

impl Fit {
    /// Names of the nodes on which the pod fits.
    pub fn nodes_that_fit(&self) -> impl Iterator<Item = &str> {
        let all = self.nodes.iter().filter(|node| self.obstacles.is_empty() && node.obstacles.is_empty());
        all.map(|node| node.node.as_str())
    }
}

/// Would this pod fit.
pub fn fit(pod: Pod<'_>, nodes: &[Node<'_>], world: World<'_>) -> Fit {
    let requests = match requests(pod, world) {
        Ok(requests) => requests,
        Err(obstacle) => return Fit { obstacles: vec![obstacle], nodes: Vec::new() },
    };
    if pod.host_network && !requests.is_empty() {
        let obstacle = obstacle(Reason::HostNetwork, Reason::HostNetwork.means());
        return Fit { obstacles: vec![obstacle], nodes: Vec::new() };
    }
    let (mut found, mut obstacles) = (Vec::new(), Vec::new());
    for request in &requests {
        match network(request, pod, world) {
            Ok(network) => found.push(network),
            Err(obstacle) if obstacles.contains(&obstacle) => {}
            Err(obstacle) => obstacles.push(obstacle),
        }
    }
    Fit { obstacles, nodes: nodes.iter().map(|node| on_node(&found, *node, world)).collect() }
}

fn obstacle(reason: Reason, message: impl Into<String>) -> Obstacle {
    Obstacle { reason, message: message.into() }
}

/// What the annotation asks for, and what the snapshot or else the attach rules add.
fn requests(pod: Pod<'_>, world: World<'_>) -> Result<Vec<Request>, Obstacle> {
    let annotation = |name: &str| pod.annotations.get(name).map(String::as_str);
    let (asked, snapshot) = (annotation(names::NETWORKS_ANNOTATION), annotation(names::SELECTED_ANNOTATION));
    let mut requests = request::merge(asked, snapshot)
        .map_err(|(name, error)| obstacle(Reason::InvalidRequest, format!("annotation {name}: {error}")))?;
    if snapshot.is_none() {
        request::add_selected(&mut requests, selected(pod, world));
    }
    Ok(requests)
}

fn selected(pod: Pod<'_>, world: World<'_>) -> Vec<Request> {
    if pod.namespace_labels.get(names::ATTACH_LABEL).map(String::as_str) != Some(names::ATTACH_ENABLED) {
        return Vec::new();
    }
    let rules = world.networks.iter().filter(|network| network.is_accepted()).filter_map(|network| {
        let rule = network.spec.attach.iter().find(|rule| {
            rule.namespace_selector.matches(pod.namespace_labels) && rule.pod_selector.matches(pod.labels)
        })?;
        let name = network.metadata.name.clone()?;
        Some(Request { network: name, interface: rule.interface.clone(), ips: Vec::new(), mac: None })
    });
    rules.collect()
}

/// The Network of a request, if it is there for pods of that namespace, and what the pod shall have of its reserved ranges.
fn network<'a>(
    request: &Request,
    pod: Pod<'_>,
    world: World<'a>,
) -> Result<(&'a Network, Vec<Ask>), Obstacle> {
    let name = &request.network;
    let found = world.networks.iter().find(|network| network.metadata.name.as_ref() == Some(name));
    let network =
        found.ok_or_else(|| obstacle(Reason::NetworkNotFound, format!("network {name} does not exist")))?;
    if network.metadata.deletion_timestamp.is_some() {
        return Err(obstacle(Reason::NetworkTerminating, format!("network {name} is being deleted")));
    }
    if !network.is_accepted() {
        let why = network.acceptance_message().unwrap_or("the controller has not looked at it yet");
        return Err(obstacle(Reason::NetworkNotAccepted, format!("network {name} is not accepted: {why}")));
    }
    let allowed = &network.spec.allowed_namespaces;
    let selects = allowed.selector.as_ref().is_some_and(|selector| selector.matches(pod.namespace_labels));
    if allowed.from != AllowedFrom::All && !selects {
        let message = format!("network {name} does not allow namespace {}", pod.namespace);
        return Err(obstacle(Reason::NamespaceNotAllowed, message));
    }
    let asks = reserved::asks(network, request, pod.stateful_set);
    asks.map(|asks| (network, asks)).map_err(|refusal| obstacle(refusal.reason, refusal.message))
}

fn on_node(networks: &[(&Network, Vec<Ask>)], node: Node<'_>, world: World<'_>) -> NodeFit {
    let mut answer = NodeFit { node: node.name.to_owned(), planned: Vec::new(), obstacles: Vec::new() };
    let mut supplies: BTreeMap<&str, Supply> = BTreeMap::new();
    let mut asked: BTreeMap<&str, u64> = BTreeMap::new();
    for (network, asks) in networks {
        let name = network.metadata.name.as_deref().unwrap_or_default();
        let count = asked.entry(name).or_default();
        *count += 1;
        let planned = check_node(network, name, node, world)
            .and_then(|()| check_room(network, name, node, *count))
            .and_then(|()| {
                let supply = supplies.entry(name).or_insert_with(|| Supply::of(network, node.name, world));
                supply.take(asks).map_err(|lack| lacking(name, lack))
            });
        match planned {
            Ok(sources) => answer.planned.push(Planned { network: name.to_owned(), sources }),
            Err(obstacle) => answer.obstacles.push(obstacle),
        }
    }
    answer
}

fn check_node(network: &Network, name: &str, node: Node<'_>, world: World<'_>) -> Result<(), Obstacle> {
    if !network.spec.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)) {
        let message =
            format!("network {name} does not exist on node {}: its nodeSelector does not match", node.name);
        return Err(obstacle(Reason::NetworkNotOnNode, message));
    }
    let offer = world.offers.iter().find(|offer| offer.metadata.name.as_deref() == Some(node.name));
    let here = offer.and_then(|offer| offer.status.as_ref()?.networks.iter().find(|here| here.name == name));
    match here {
        Some(here) if here.ready => Ok(()),
        Some(here) => {
            let reason =
                here.reason.as_deref().and_then(|word| Reason::ALL.iter().find(|r| r.as_str() == word));
            let why = here.message.as_deref().unwrap_or("it does not say why");
            let message = format!("network {name} is not ready on node {}: {why}", node.name);
            Err(obstacle(reason.copied().unwrap_or(Reason::NetworkNotOnNode), message))
        }
        None => {
            let message = format!("the agent of node {} has not said anything of network {name}", node.name);
            Err(obstacle(Reason::NetworkNotOnNode, message))
        }
    }
}

/// The scheduler keeps the pod away where the extended resource does not suffice.
fn check_room(network: &Network, name: &str, node: Node<'_>, count: u64) -> Result<(), Obstacle> {
    let left = node.room.map(|room| room.get(name).copied().unwrap_or(0));
    match left.filter(|left| network.spec.exhaustion.resource && *left < count) {
        None => Ok(()),
        Some(left) => {
            let resource = names::resource(name);
            let message = format!("node {} has {left} of {resource} left for the scheduler", node.name);
            Err(obstacle(Reason::NoAddresses, message))
        }
    }
}

fn lacking(name: &str, lack: Lack) -> Obstacle {
    match lack {
        Lack::NoRange => obstacle(
            Reason::NoAddresses,
            format!("network {name} has no range that blocks may be claimed from"),
        ),
        Lack::Quarantine(family) => obstacle(
            Reason::QuarantinedUntil,
            format!("network {name} has no free {family} address on this node: the rest is in quarantine"),
        ),
        Lack::Limit(family) => obstacle(
            Reason::BlockLimit,
            format!(
                "network {name} has no free {family} address on this node, which owns all the blocks it may"
            ),
        ),
        Lack::Addresses(family) => obstacle(
            Reason::NoAddresses,
            format!("network {name} has no free {family} address for this node and no unclaimed block"),
        ),
    }
}

#[cfg(test)]
mod tests;
