//! Reserved addresses: who is granted which, who holds it next, and when it is given up. Pure.
//!
//! The block of an address is the claim to it, and goes through turns. A turn is given to one pod on one node; the next
//! is given only once `status.released` says that nothing of the last holder is left. The API server refuses anything
//! else, and every write here is refused once the block has changed, so a write that comes late does nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use fairlead_crds::address::Family;
use fairlead_crds::ip_block::{Claim, Holder};
use fairlead_crds::request::{self, Request};
use fairlead_crds::reserved::{self, Ask};
use fairlead_crds::{Cidr, IPBlockSpec, Network, Reason, grid};
use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;

use super::model::{Block, Reserved, WaitingPod};
use super::scheduling::Why;

/// A pod that may have reserved addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claimant {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The node it is bound to.
    pub node: Option<String>,
    /// What it asks for and was selected for; nothing if that cannot be read.
    pub requests: Vec<Request>,
    /// The `StatefulSet` that it is an ordinal of.
    pub stateful_set: Option<String>,
}

impl Claimant {
    /// A pod without a node.
    pub fn waiting(pod: &WaitingPod) -> Self {
        let requests = request::merge(pod.requested.as_deref(), pod.selected.as_deref());
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: None,
            requests: requests.unwrap_or_default(),
            stateful_set: pod.stateful_set.clone(),
        }
    }

    /// Any pod; `None` if it ends or has ended, or is of the node's own network.
    pub fn of(pod: core::Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        WaitingPod::of(pod).map(|pod| Self { node, ..Self::waiting(&pod) })
    }

    /// `namespace/name`, by which it claims.
    pub fn key(&self) -> String {
        reserved::claimant(&self.namespace, &self.name)
    }
}

/// What the decisions depend on.
pub struct World<'a> {
    /// All Networks by name.
    pub networks: &'a BTreeMap<String, Network>,
    /// All blocks by name.
    pub blocks: &'a BTreeMap<String, &'a Block>,
    /// Pods by `namespace/name`: `None` if there is none that lives. Pods that were not looked up are absent.
    pub pods: &'a BTreeMap<String, Option<Claimant>>,
    /// By `namespace/name`, whether a `StatefulSet` exists. Those that were not looked up are absent.
    pub stateful_sets: &'a BTreeMap<String, bool>,
    /// Whether pods of a namespace may use a network.
    pub allowed: &'a dyn Fn(&str, &Network) -> bool,
    /// Whether the quarantine of a free address is over.
    pub rested: &'a dyn Fn(&Block) -> bool,
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Create the block.
    Grant {
        /// Its name.
        name: String,
        /// Its spec: a claim, and no node.
        spec: Box<IPBlockSpec>,
    },
    /// Begin a turn.
    Assign {
        /// Name of the block.
        name: String,
        /// The node.
        node: String,
        /// The pod and the number of the turn.
        holder: Holder,
    },
    /// Nobody holds the address any more.
    Free {
        /// Name of the block.
        name: String,
    },
    /// Delete the block, or let go of one that is being deleted.
    GiveUp {
        /// Name of the block.
        name: String,
    },
}

/// What a pod shall have for one ask of one attachment.
enum Found<'a> {
    /// A block whose claim is the pod's.
    Own(&'a Block),
    /// Nobody has the address, and this claim to it can be granted.
    Grantable(Box<IPBlockSpec>),
    /// It cannot be granted now.
    Not(Why),
}

/// Everything that is to be done.
pub fn plan(world: &World<'_>) -> Vec<Action> {
    let (mut actions, mut granted) = (BTreeMap::new(), BTreeSet::new());
    let mut wanted: HashMap<&str, &Claimant> = HashMap::new();
    for pod in world.pods.values().flatten() {
        for found in findings(pod, world, &mut granted) {
            match found {
                Found::Own(block) => drop(wanted.insert(&block.name, pod)),
                Found::Grantable(spec) => {
                    let name = grid::block_name(&spec.space, spec.cidr);
                    actions.insert(name.clone(), Action::Grant { name, spec });
                }
                Found::Not(_) => {}
            }
        }
    }
    for (block, reserved) in world.blocks.values().filter_map(|block| Some((block, block.reserved.as_ref()?)))
    {
        if let Some(action) = next(block, reserved, wanted.get(block.name.as_str()).copied(), world) {
            actions.insert(block.name.clone(), action);
        }
    }
    actions.into_values().collect()
}

/// The next step for the block of a reserved address.
fn next(block: &Block, reserved: &Reserved, wanted: Option<&Claimant>, world: &World<'_>) -> Option<Action> {
    if !reserved.free {
        return None;
    }
    let name = block.name.clone();
    if let Some(pod) = wanted {
        let turn = reserved.holder.as_ref().map_or(1, |last| last.turn.saturating_add(1));
        let holder = Holder { pod_uid: pod.uid.clone(), turn };
        return pod.node.clone().map(|node| Action::Assign { name, node, holder });
    }
    if !block.node.is_empty() {
        return Some(Action::Free { name });
    }
    (has_ended(block, reserved, world) && (world.rested)(block)).then_some(Action::GiveUp { name })
}

/// Whether nobody can want the address under its claim any more.
fn has_ended(block: &Block, reserved: &Reserved, world: &World<'_>) -> bool {
    if reserved.terminating || !is_in_range(block, world) {
        return true;
    }
    let Some(known) = world.pods.get(&reserved.claim.pod) else { return false };
    match &reserved.claim.stateful_set {
        // A pod of the set that lives and does not want the address may have lost its network by mistake.
        Some(set) => {
            let namespace = reserved.claim.pod.split('/').next().unwrap_or_default();
            known.is_none() && world.stateful_sets.get(&format!("{namespace}/{set}")) == Some(&false)
        }
        None => true,
    }
}

/// Whether the block is of a range that addresses are granted from.
fn is_in_range(block: &Block, world: &World<'_>) -> bool {
    let network = world.networks.get(&block.network).filter(|network| {
        network.metadata.uid.as_deref() == Some(&block.network_uid)
            && network.metadata.deletion_timestamp.is_none()
    });
    network.is_some_and(|network| {
        reserved::reserved(network, Family::of(block.cidr)).any(|range| range.cidr.0.contains(&block.cidr.0))
    })
}

/// Why a pod without a node has to wait for its reserved addresses; `None` once all are granted.
pub fn why(pod: &WaitingPod, world: &World<'_>) -> Option<Why> {
    let pod = Claimant::waiting(pod);
    findings(&pod, world, &mut BTreeSet::new()).into_iter().find_map(|found| match found {
        Found::Own(_) => None,
        Found::Not(why) => Some(why),
        Found::Grantable(spec) => {
            let message =
                format!("address {} of network {} is being granted", spec.cidr.addr(), spec.network);
            Some(Why { reason: Reason::AwaitingAddress, message })
        }
    })
}

/// Whether a network has reserved addresses, so that its pods are held until theirs are granted.
pub fn reserves(network: &Network) -> bool {
    Family::ALL.into_iter().any(|family| reserved::reserved(network, family).next().is_some())
}

/// Whether a pod asks for a network that has reserved addresses.
pub fn concerns(pod: &Claimant, networks: &BTreeMap<String, Network>) -> bool {
    pod.requests.iter().filter_map(|request| networks.get(&request.network)).any(reserves)
}

fn findings<'a>(pod: &Claimant, world: &World<'a>, granted: &mut BTreeSet<String>) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for (attachment, request) in reserved::numbered(&pod.requests) {
        let network = world.networks.get(&request.network).filter(|network| may_use(pod, network, world));
        let Some(network) = network else { continue };
        match reserved::asks(network, request, pod.stateful_set.as_deref()) {
            Err(refusal) => found.push(Found::Not(Why { reason: refusal.reason, message: refusal.message })),
            Ok(asks) => found.extend(asks.iter().map(|ask| {
                let need = Need { pod, network, ask, attachment };
                let one = need.find(world, granted);
                if let Found::Grantable(spec) = &one {
                    granted.insert(grid::block_name(&spec.space, spec.cidr));
                }
                one
            })),
        }
    }
    found
}

fn may_use(pod: &Claimant, network: &Network, world: &World<'_>) -> bool {
    network.is_accepted()
        && network.metadata.deletion_timestamp.is_none()
        && (world.allowed)(&pod.namespace, network)
}

/// One reserved address that a pod shall have.
struct Need<'p> {
    pod: &'p Claimant,
    network: &'p Network,
    ask: &'p Ask,
    attachment: u32,
}

impl Need<'_> {
    fn find<'a>(&self, world: &World<'a>, granted: &BTreeSet<String>) -> Found<'a> {
        match self.ask.value {
            Some(address) => self.by_value(address, world, granted),
            None => self.kept(world, granted),
        }
    }

    fn by_value<'a>(&self, address: IpAddr, world: &World<'a>, granted: &BTreeSet<String>) -> Found<'a> {
        let spec = self.spec(address);
        let name = grid::block_name(&spec.space, spec.cidr);
        match world.blocks.get(&name) {
            Some(block) if self.is_own(block) => Found::Own(block),
            Some(block) => Found::Not(self.taken(address, block)),
            None if granted.contains(&name) => Found::Not(self.awaiting(address)),
            None => Found::Grantable(Box::new(spec)),
        }
    }

    fn kept<'a>(&self, world: &World<'a>, granted: &BTreeSet<String>) -> Found<'a> {
        let ranges = || reserved::reserved(self.network, self.ask.family);
        let mine = |block: &&&'a Block| {
            let sticky = block.reserved.as_ref().is_some_and(|reserved| {
                reserved.claim.stateful_set.is_some() && reserved.claim.attachment == self.attachment
            });
            sticky && self.is_own(block) && ranges().any(|range| range.cidr.0.contains(&block.cidr.0))
        };
        if let Some(block) = world.blocks.values().find(mine) {
            return Found::Own(block);
        }
        let taken = |address: IpAddr| {
            let name = grid::block_name(self.space(), single(address));
            world.blocks.contains_key(&name) || granted.contains(&name)
        };
        match ranges().find_map(|range| range.lowest_free(taken)) {
            Some(address) => Found::Grantable(Box::new(self.spec(address))),
            None => Found::Not(self.none_left()),
        }
    }

    fn is_own(&self, block: &Block) -> bool {
        let own = |reserved: &Reserved| !reserved.terminating && reserved.claim.pod == self.pod.key();
        Some(&block.network_uid) == self.network.metadata.uid.as_ref()
            && Family::of(block.cidr) == self.ask.family
            && block.reserved.as_ref().is_some_and(own)
    }

    fn spec(&self, address: IpAddr) -> IPBlockSpec {
        let stateful_set = self.pod.stateful_set.clone().filter(|_| self.ask.value.is_none());
        IPBlockSpec {
            space: self.space().to_owned(),
            network: self.name().to_owned(),
            network_uid: self.network.metadata.uid.clone().unwrap_or_default(),
            node_name: String::new(),
            cidr: single(address),
            claim: Some(Claim { pod: self.pod.key(), stateful_set, attachment: self.attachment }),
            holder: None,
        }
    }

    fn space(&self) -> &str {
        self.network.spec.ipam.as_ref().map_or("", |ipam| &ipam.space)
    }

    fn name(&self) -> &str {
        self.network.metadata.name.as_deref().unwrap_or_default()
    }

    fn awaiting(&self, address: IpAddr) -> Why {
        let message = format!("address {address} of network {} is being granted", self.name());
        Why { reason: Reason::AwaitingAddress, message }
    }

    fn taken(&self, address: IpAddr, block: &Block) -> Why {
        let head = format!("address {address} of network {}", self.name());
        let message = match &block.reserved {
            None => format!(
                "{head} lies in block {}, which node {} has to hand back first",
                block.name, block.node
            ),
            Some(reserved) if !reserved.free => {
                format!("{head} is held by pod {} on node {}", reserved.claim.pod, block.node)
            }
            Some(reserved) => {
                let pod = &reserved.claim.pod;
                match (&reserved.claim.stateful_set, reserved.terminating) {
                    (Some(set), false) => format!(
                        "{head} is kept for pod {pod} by StatefulSet {set}; kubectl delete ipblock {} gives it up",
                        block.name
                    ),
                    _ => format!(
                        "{head} was reserved for pod {pod}; it is free once it has rested for the network's quarantine"
                    ),
                }
            }
        };
        Why { reason: Reason::AddressTaken, message }
    }

    fn none_left(&self) -> Why {
        let message = format!(
            "network {} has no free reserved {} address for pod {}; delete an IPBlock whose claim is not needed, or add a range with use: Reserved",
            self.name(),
            self.ask.family,
            self.pod.key()
        );
        Why { reason: Reason::NoReservedAddress, message }
    }
}

fn single(address: IpAddr) -> Cidr {
    Cidr(IpNet::from(address))
}

#[cfg(test)]
mod tests;
