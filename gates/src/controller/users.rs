//! Who still holds addresses of a Network that is being deleted, or of a range that was removed. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fairlead_crds::network::RangeState;
use fairlead_crds::{Cidr, Network, PodNetwork};

/// Pods that are named in a condition.
const NAMED: usize = 5;

/// Attachments of pods, and some of the pods by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// How many attachments.
    pub attachments: usize,
    /// Names of all pods, as `namespace/name`.
    pods: BTreeSet<String>,
}

/// `3 pods (a/x, a/y, b/z)`; beyond the fifth pod `…`.
impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.pods.len();
        write!(f, "{count} pod{}", if count == 1 { "" } else { "s" })?;
        if count == 0 {
            return Ok(());
        }
        let named: Vec<&str> = self.pods.iter().take(NAMED).map(String::as_str).collect();
        write!(f, " ({}{})", named.join(", "), if count > NAMED { ", …" } else { "" })
    }
}

/// What was counted, for the Networks and ranges that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users {
    /// By UID of a terminating Network.
    networks: BTreeMap<String, Holders>,
    /// By UID of the Network and range.
    ranges: BTreeMap<(String, Cidr), Holders>,
}

impl Users {
    /// Counts the holders of terminating Networks and of draining ranges.
    pub fn count(networks: &[Network], records: &[PodNetwork]) -> Self {
        let mut users = Self::wanted(networks);
        for record in records {
            let pod = format!(
                "{}/{}",
                record.metadata.namespace.as_deref().unwrap_or_default(),
                record.spec.pod_name
            );
            for attachment in &record.spec.attachments {
                if let Some(holders) = users.networks.get_mut(&attachment.network_uid) {
                    holders.add(&pod);
                }
                let addresses: Vec<_> = attachment.addresses.iter().map(|held| held.address.addr()).collect();
                let ranges = users.ranges.iter_mut().filter(|((uid, _), _)| *uid == attachment.network_uid);
                for ((_, cidr), holders) in ranges {
                    if addresses.iter().any(|address| cidr.0.contains(address)) {
                        holders.add(&pod);
                    }
                }
            }
        }
        users
    }

    /// What has to be counted, with nothing counted yet.
    pub fn wanted(networks: &[Network]) -> Self {
        let uid = |network: &Network| network.metadata.uid.clone().unwrap_or_default();
        let terminating = networks.iter().filter(|network| network.metadata.deletion_timestamp.is_some());
        let draining = networks.iter().flat_map(|network| {
            let ranges = network.status.iter().flat_map(|status| &status.ranges);
            let drains = ranges.filter(|range| range.state == RangeState::Draining);
            drains.map(move |range| ((uid(network), range.cidr), Holders::default()))
        });
        Self {
            networks: terminating.map(|network| (uid(network), Holders::default())).collect(),
            ranges: draining.collect(),
        }
    }

    /// Whether nothing has to be counted.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.ranges.is_empty()
    }

    /// Whether a Network is being deleted: somebody waits for its end.
    pub fn has_terminating(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether everything of the other was counted here.
    pub fn covers(&self, other: &Self) -> bool {
        other.networks.keys().all(|uid| self.networks.contains_key(uid))
            && other.ranges.keys().all(|range| self.ranges.contains_key(range))
    }

    /// Who holds addresses of a terminating Network; `None` before they were counted.
    pub fn of_network(&self, uid: &str) -> Option<&Holders> {
        self.networks.get(uid)
    }

    /// Who holds addresses of a draining range; `None` before they were counted.
    pub fn of_range(&self, uid: &str, cidr: Cidr) -> Option<&Holders> {
        self.ranges.get(&(uid.to_owned(), cidr))
    }
}

impl Holders {
    fn add(&mut self, pod: &str) {
        self.attachments += 1;
        self.pods.insert(pod.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn network(edit: &Value) -> Network {
        let mut object = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue", "uid": "u" },
            "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" } },
            "status": { "ranges": [{ "cidr": "10.0.0.0/24", "blockPrefix": 28, "state": "Draining" },
                                   { "cidr": "10.1.0.0/24", "blockPrefix": 28, "state": "Admitted" }] }
        });
        json_patch::merge(&mut object, edit);
        serde_json::from_value(object).unwrap()
    }

    fn record(pod: &str, address: &str) -> PodNetwork {
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork", "metadata": { "namespace": "ns", "name": pod },
            "spec": { "podName": pod, "podUID": pod, "nodeName": "n", "attachments": [{
                "network": "blue", "networkUID": "u", "interface": "net1", "mac": "02:00:00:00:00:01",
                "addresses": [{ "address": address, "block": "b", "blockUID": "bu" }] }] }
        }))
        .unwrap()
    }

    #[test]
    fn a_range_that_drains_names_the_pods_that_hold_its_addresses() {
        let records = [record("b", "10.0.0.5/24"), record("a", "10.0.0.6/24"), record("c", "10.1.0.5/24")];
        let users = Users::count(&[network(&json!({}))], &records);
        let cidr = "10.0.0.0/24".parse().unwrap();
        assert_eq!(users.of_range("u", cidr).unwrap().to_string(), "2 pods (ns/a, ns/b)");
        assert_eq!(users.of_range("u", "10.1.0.0/24".parse().unwrap()), None, "it does not drain");
        assert_eq!(users.of_network("u"), None, "it is not being deleted");
        assert!(!users.has_terminating() && !users.is_empty());
    }

    #[test]
    fn of_many_pods_five_are_named_and_all_are_counted() {
        let records: Vec<_> = (0..7).map(|n| record(&format!("p{n}"), &format!("10.0.0.{n}/24"))).collect();
        let gone = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        let users = Users::count(&[network(&gone)], &records);
        let holders = users.of_network("u").unwrap();
        assert_eq!(holders.attachments, 7);
        assert_eq!(holders.to_string(), "7 pods (ns/p0, ns/p1, ns/p2, ns/p3, ns/p4, …)");
        assert!(users.covers(&Users::wanted(&[network(&gone)])) && !Users::default().covers(&users));
    }
}
