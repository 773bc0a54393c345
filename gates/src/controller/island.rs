//! Networks without an uplink whose pods run on more than one node. Pure.

use std::collections::BTreeSet;

use fairlead_crds::Network;
use fairlead_crds::network::Reach;

use super::model::NodeOffer;

/// Names of the Networks that do not reach between nodes and are used on several.
pub fn islands(networks: &[Network], offers: &[&NodeOffer]) -> BTreeSet<String> {
    let nodes = |name: &str| {
        let uses = |offer: &&&NodeOffer| {
            offer.networks.iter().any(|network| network.name == name && network.used > 0)
        };
        offers.iter().filter(uses).count()
    };
    let local = networks.iter().filter(|network| network.spec.reach() == Reach::Node);
    local.filter_map(|network| network.metadata.name.clone()).filter(|name| nodes(name) > 1).collect()
}

#[cfg(test)]
mod tests {
    use fairlead_crds::node_network::NetworkOnNode;
    use serde_json::json;

    use super::*;

    fn network(name: &str, uplink: &serde_json::Value) -> Network {
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": name },
            "spec": { "bridge": { "name": "br0", "uplink": uplink }, "allowedNamespaces": { "from": "All" } }
        }))
        .unwrap()
    }

    fn offer(used: u64) -> NodeOffer {
        let on = |name: &str| NetworkOnNode { name: name.into(), used, ..NetworkOnNode::default() };
        NodeOffer { networks: vec![on("island"), on("wired")], ..NodeOffer::default() }
    }

    #[test]
    fn only_an_island_that_is_used_on_several_nodes_is_named() {
        let networks =
            [network("island", &json!({ "none": {} })), network("wired", &json!({ "interface": "eth1" }))];
        let (one, two, idle) = (offer(1), offer(2), offer(0));
        assert_eq!(islands(&networks, &[&one, &two]), BTreeSet::from(["island".to_owned()]));
        assert!(islands(&networks, &[&one, &idle]).is_empty());
    }
}
