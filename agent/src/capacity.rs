//! What this node promises to the scheduler, and whether a running pod may take more. Pure.

use std::collections::BTreeMap;

use fairlead_crds::node_network::NetworkOnNode;

use crate::ipam::{Counts, Pool};
use crate::model::{Pod, Record};

/// How the pods of a node use one network, held against what they asked the scheduler for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Attachments promised to bound pods and not yet made.
    pub outstanding: u64,
    /// Attachments held beyond what their pods asked for.
    pub unmatched: u64,
}

/// How the pods of this node use a network.
pub fn usage<'a>(network: &str, pods: impl Iterator<Item = (&'a Pod, Option<&'a Record>)>) -> Usage {
    pods.filter(|(pod, _)| !pod.is_over()).fold(Usage::default(), |sum, (pod, record)| {
        let promised = pod.promised.get(network).copied().unwrap_or(0);
        let held = record.map_or(0, |record| attachments(record, network));
        Usage {
            outstanding: sum.outstanding + promised.saturating_sub(held),
            unmatched: sum.unmatched + held.saturating_sub(promised),
        }
    })
}

/// What a pod was promised of all networks and does not hold.
pub fn outstanding(pod: &Pod, record: &Record) -> u64 {
    let missing =
        |(network, promised): (&String, &u64)| promised.saturating_sub(attachments(record, network));
    if pod.is_over() { 0 } else { pod.promised.iter().map(missing).sum() }
}

fn attachments(record: &Record, network: &str) -> u64 {
    record.spec.attachments.iter().filter(|attachment| attachment.network == network).count() as u64
}

/// What the scheduler may count on in all, of the addresses that are used or can be: less the reserve, or what has been
/// taken beyond it.
pub fn promised(pool: &Pool, available: u64, usage: Usage) -> u64 {
    available.saturating_sub(pool.hotplug_reserve.max(usage.unmatched))
}

/// Whether an attachment that was not promised may take an address: one must be left for every promise.
pub fn may_hotplug(pool: &Pool, counts: Counts, usage: Usage) -> bool {
    !pool.counted || counts.free > usage.outstanding
}

/// The networks for people, such as `blue 6/28, storage NotReady`.
pub fn summary(networks: &[NetworkOnNode]) -> String {
    let one = |network: &NetworkOnNode| match &network.reason {
        Some(reason) if !network.ready => format!("{} {reason}", network.name),
        _ => format!("{} {}/{}", network.name, network.used, network.owned),
    };
    networks.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Whether what the node can promise changed, so that the scheduler should know at once.
pub fn promise_changed(before: &[NetworkOnNode], after: &[NetworkOnNode]) -> bool {
    let promises = |networks: &[NetworkOnNode]| -> BTreeMap<String, (bool, u64, bool)> {
        networks.iter().map(|n| (n.name.clone(), (n.ready, n.promised, n.free == 0))).collect()
    };
    promises(before) != promises(after)
}

/// Whether nothing differs but how much more could be claimed, and some still can.
pub fn only_claimable_changed(before: &[NetworkOnNode], after: &[NetworkOnNode]) -> bool {
    let rest = |networks: &[NetworkOnNode]| -> Vec<NetworkOnNode> {
        let mut networks = networks.to_vec();
        for network in &mut networks {
            network.claimable = network.claimable.min(1);
            network.families.iter_mut().for_each(|family| family.claimable = family.claimable.min(1));
        }
        networks
    };
    rest(before) == rest(after)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::PodKey;

    fn pool(hotplug_reserve: u64, counted: bool) -> Pool {
        Pool {
            network: "blue".into(),
            uid: "n".into(),
            space: "default".into(),
            ranges: vec![],
            quarantine: Duration::ZERO,
            hotplug_reserve,
            max_blocks: u64::MAX,
            counted,
            terminating: false,
        }
    }

    fn pod(promised: u64, held: usize, terminal: bool) -> (Pod, Record) {
        let key = PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() };
        let attachment = serde_json::json!({ "network": "blue", "networkUID": "n", "interface": "net1", "mac": "02:00:00:00:00:01" });
        let spec = serde_json::json!({ "podName": "p", "podUID": "u", "nodeName": "n", "attachments": vec![attachment; held] });
        let record = Record {
            version: "1".into(),
            key: key.clone(),
            uid: "r".into(),
            generation: None,
            spec: serde_json::from_value(spec).unwrap(),
            status: fairlead_crds::PodNetworkStatus::default(),
        };
        let promised = BTreeMap::from([("blue".to_owned(), promised)]);
        let pod = Pod {
            key,
            requested: None,
            selected: None,
            host_network: false,
            runtime_class: None,
            stateful_set: None,
            terminal,
            deleting: false,
            gated: true,
            nri: false,
            promised,
            condition: None,
        };
        (pod, record)
    }

    #[test]
    fn promises_and_holdings_are_weighed_pod_by_pod() {
        let pods = [pod(2, 1, false), pod(0, 2, false), pod(5, 0, true)];
        let usage = usage("blue", pods.iter().map(|(pod, record)| (pod, Some(record))));
        assert_eq!(usage, Usage { outstanding: 1, unmatched: 2 });
        assert_eq!(pods.map(|(pod, record)| outstanding(&pod, &record)), [1, 0, 0]);
    }

    #[test]
    fn the_reserve_is_kept_out_of_the_promise_and_hot_plugs_are_taken_from_it() {
        let promise =
            |reserve, unmatched| promised(&pool(reserve, true), 25, Usage { outstanding: 0, unmatched });
        assert_eq!((promise(0, 0), promise(4, 0), promise(4, 4), promise(4, 6)), (25, 21, 21, 19));
    }

    #[test]
    fn a_hot_plug_leaves_an_address_for_every_promise() {
        let may = |free, counted| {
            may_hotplug(
                &pool(0, counted),
                Counts { free, ..Counts::default() },
                Usage { outstanding: 2, unmatched: 0 },
            )
        };
        assert!(!may(2, true) && may(3, true) && may(1, false));
    }

    #[test]
    fn what_could_be_claimed_is_no_news_until_it_is_nothing() {
        let on = |free, claimable| [NetworkOnNode { free, claimable, ..NetworkOnNode::default() }];
        assert!(only_claimable_changed(&on(3, 64), &on(3, 32)));
        assert!(!only_claimable_changed(&on(3, 64), &on(3, 0)));
        assert!(!only_claimable_changed(&on(3, 64), &on(2, 64)));
    }

    #[test]
    fn the_summary_says_what_an_admin_wants_first() {
        let ready = NetworkOnNode {
            name: "blue".into(),
            ready: true,
            used: 6,
            owned: 28,
            ..NetworkOnNode::default()
        };
        let not = NetworkOnNode {
            name: "red".into(),
            reason: Some("ParentDown".into()),
            ..NetworkOnNode::default()
        };
        assert_eq!(summary(&[ready, not]), "blue 6/28, red ParentDown");
    }
}
