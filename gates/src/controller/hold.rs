//! What holds pods until their interfaces are attached: the gate, or the container runtime's plugins. Pure.

use fairlead_crds::admission::HeldBy;
use fairlead_crds::network::Hold;
use fairlead_crds::{Network, names};

use super::model::Node;

/// What holds the pods of a Network, given what `Auto` means now.
pub fn of(network: &Network, auto: HeldBy) -> HeldBy {
    match network.spec.hold {
        Hold::Auto => auto,
        Hold::Gate => HeldBy::Gate,
        Hold::Nri => HeldBy::Nri,
    }
}

/// What `Auto` means: the runtime's plugins once every ready node that takes pods is strict, and for as long as one is.
///
/// In between, a node that is not strict keeps pods away by the start-up taint, so that one new node does not change
/// how all pods are held. Without a Network that leaves it open nothing is to be gained, and no node is tainted.
pub fn auto(before: HeldBy, networks: &[Network], nodes: &[&Node]) -> HeldBy {
    let open = networks.iter().any(|network| {
        network.spec.hold == Hold::Auto
            && network.is_accepted()
            && network.metadata.deletion_timestamp.is_none()
    });
    let mut takers = nodes.iter().filter(|node| takes_pods(node)).peekable();
    let there = open && takers.peek().is_some();
    let strict = match before {
        HeldBy::Gate => there && takers.all(|node| is_strict(node)),
        HeldBy::Nri => there && takers.any(|node| is_strict(node)),
    };
    if strict { HeldBy::Nri } else { HeldBy::Gate }
}

/// Whether some node can run a pod that the runtime's plugins hold.
pub fn has_strict(nodes: &[&Node]) -> bool {
    nodes.iter().any(|node| takes_pods(node) && is_strict(node))
}

/// Whether a missing plugin can let no pod through on the node.
pub fn is_strict(node: &Node) -> bool {
    node.labels.get(names::HOLD_LABEL).is_some_and(|hold| hold == names::HOLD_NRI_STRICT)
}

/// Whether the scheduler may send pods of ours to the node now.
fn takes_pods(node: &Node) -> bool {
    node.ready && node.schedulable && node.can_have_agent()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::scheduling::tests::network;
    use super::*;

    fn node(hold: &str) -> Node {
        let labels = [(names::HOLD_LABEL.to_owned(), hold.to_owned())].into();
        Node { labels, ready: true, schedulable: true, ..Node::default() }
    }

    fn choose(before: HeldBy, nodes: &[Node]) -> HeldBy {
        let open = [network(&json!({}))];
        auto(before, &open, &nodes.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_network_says_what_holds_its_pods_or_leaves_it_open() {
        for (hold, auto, expected) in [
            ("Gate", HeldBy::Nri, HeldBy::Gate),
            ("Nri", HeldBy::Gate, HeldBy::Nri),
            ("Auto", HeldBy::Nri, HeldBy::Nri),
            ("Auto", HeldBy::Gate, HeldBy::Gate),
        ] {
            assert_eq!(of(&network(&json!({ "spec": { "hold": hold } })), auto), expected, "{hold}");
        }
    }

    #[test]
    fn it_begins_when_every_node_that_takes_pods_is_strict() {
        let strict = || node(names::HOLD_NRI_STRICT);
        assert_eq!(choose(HeldBy::Gate, &[strict(), strict()]), HeldBy::Nri);
        assert_eq!(choose(HeldBy::Gate, &[strict(), node("nri")]), HeldBy::Gate);
        assert_eq!(choose(HeldBy::Gate, &[strict(), Node { labels: [].into(), ..strict() }]), HeldBy::Gate);
        assert_eq!(choose(HeldBy::Gate, &[]), HeldBy::Gate, "there is no node");
        let away = [
            Node { ready: false, ..node("gate") },
            Node { schedulable: false, ..node("gate") },
            Node { labels: [("kubernetes.io/os".to_owned(), "windows".to_owned())].into(), ..node("") },
        ];
        for away in away {
            assert_eq!(choose(HeldBy::Gate, &[strict(), away]), HeldBy::Nri);
        }
    }

    #[test]
    fn it_lasts_while_a_node_is_strict() {
        let strict = || node(names::HOLD_NRI_STRICT);
        assert_eq!(choose(HeldBy::Nri, &[strict(), node("gate")]), HeldBy::Nri, "the new node is tainted");
        assert_eq!(choose(HeldBy::Nri, &[node("nri"), node("gate")]), HeldBy::Gate);
        assert_eq!(choose(HeldBy::Nri, &[Node { ready: false, ..strict() }]), HeldBy::Gate);
    }

    #[test]
    fn without_a_network_that_leaves_it_open_the_gate_holds() {
        let strict = node(names::HOLD_NRI_STRICT);
        for edit in [
            json!({ "spec": { "hold": "Gate" } }),
            json!({ "spec": { "hold": "Nri" } }),
            json!({ "status": null }),
        ] {
            assert_eq!(auto(HeldBy::Nri, &[network(&edit)], &[&strict]), HeldBy::Gate, "{edit}");
        }
        assert!(has_strict(&[&strict]) && !has_strict(&[&node("nri")]));
    }
}
