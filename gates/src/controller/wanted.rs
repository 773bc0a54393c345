//! What the Networks of the cluster want of a node: a number for the scheduler, a taint. Pure.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_crds::node_network::NetworkOnNode;
use fairlead_crds::{Network, names};

use super::model::{Block, Node, NodeOffer};
use super::occupancy::{self, Claimed};
use super::resource::Offer;
use super::taint::Facts;

/// What the networks of the cluster want of nodes.
pub struct Wanted {
    networks: BTreeMap<String, Network>,
    exhausted: BTreeMap<String, bool>,
    /// The nodes that own as many blocks as they may, by Network.
    at_limit: BTreeMap<String, BTreeSet<String>>,
}

impl Wanted {
    /// What these Networks want, given the blocks that nodes own.
    pub fn new<'a>(networks: Vec<Network>, blocks: impl IntoIterator<Item = &'a Block>) -> Self {
        let claimed = Claimed::of(blocks);
        let living = networks.into_iter().filter(|network| network.metadata.deletion_timestamp.is_none());
        let networks: BTreeMap<String, Network> =
            living.filter_map(|n| Some((n.metadata.name.clone()?, n))).collect();
        let exhausted = networks
            .iter()
            .map(|(name, network)| (name.clone(), occupancy::is_exhausted(network, &claimed)))
            .collect();
        let at_limit = networks
            .iter()
            .map(|(name, network)| (name.clone(), occupancy::nodes_at_limit(network, &claimed)))
            .collect();
        Self { networks, exhausted, at_limit }
    }

    /// By Network: the number that the scheduler may count on; networks that do not count are not in it.
    pub fn targets(&self, offer: &NodeOffer) -> BTreeMap<String, Offer> {
        let counts = |network: &&Network| network.spec.exhaustion.resource && network.is_accepted();
        let here = offer
            .networks
            .iter()
            .filter(|here| here.ready && self.networks.get(&here.name).as_ref().is_some_and(counts));
        let offer = |here: &NetworkOnNode| Offer {
            promised: here.promised,
            free: here.free,
            quarantined: here.quarantined,
        };
        here.map(|here| (here.name.clone(), offer(here))).collect()
    }

    /// By taint key: what decides about the taint.
    pub fn facts(&self, node: &Node, offer: &NodeOffer, prefix: &str) -> BTreeMap<String, Facts> {
        let facts = offer.networks.iter().filter_map(|here| {
            let network = self
                .networks
                .get(&here.name)
                .filter(|network| node.is_selected(&network.spec.node_selector))?;
            let facts = Facts {
                effect: network.spec.exhaustion.taint.as_taint().filter(|_| network.spec.ipam.is_some()),
                resource: network.spec.exhaustion.resource,
                full: self.exhausted.get(&here.name).copied().unwrap_or(false)
                    || self.at_limit.get(&here.name).is_some_and(|nodes| nodes.contains(&node.name)),
                size: occupancy::size(network),
                free: here.free,
                promised: here.promised,
                ready: here.ready,
            };
            Some((names::taint_key(prefix, &here.name), facts))
        });
        facts.collect()
    }
}
