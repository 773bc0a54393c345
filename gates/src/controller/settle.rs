//! How long ago addresses were given up: agents act on what they have last seen, so nothing is given to another
//! network, and no end of a range is believed, before every agent has had time to see it. Pure; time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fairlead_crds::network::RangeState;
use fairlead_crds::{Cidr, Network, grid};

use super::space::Table;

/// How long something must have been left alone. Watches deliver within milliseconds; this is for a slow node.
pub const SETTLE: Duration = Duration::from_secs(3);

/// What the leader has seen change.
#[derive(Debug)]
pub struct Settling {
    started: Instant,
    table: Table,
    given_up: Vec<(String, Cidr, Instant)>,
    draining: HashMap<(String, Cidr), Instant>,
    terminating: HashMap<String, Instant>,
}

impl Settling {
    /// A leader that has just taken over: a predecessor may have given something up a moment ago.
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            table: Table::default(),
            given_up: Vec::new(),
            draining: HashMap::new(),
            terminating: HashMap::new(),
        }
    }

    /// Takes note of the Networks as they are now.
    pub fn observe(&mut self, networks: &[Network], now: Instant) {
        let table = Table::of(networks);
        self.given_up.extend(self.table.given_up(&table).into_iter().map(|(space, cidr)| (space, cidr, now)));
        self.given_up.retain(|(_, _, since)| now - *since < SETTLE);
        self.table = table;
        self.draining = keep_times(&self.draining, networks.iter().flat_map(draining), now);
        self.terminating = keep_times(&self.terminating, networks.iter().filter_map(terminating), now);
    }

    /// Whether an address of the range was given up so lately that a node may still claim it for its old network.
    pub fn is_settling(&self, space: &str, cidr: Cidr, now: Instant) -> bool {
        let lately = self.given_up.iter().any(|(s, c, _)| s == space && grid::overlap(*c, cidr));
        lately || now - self.started < SETTLE
    }

    /// Whether the range has been `Draining` for long enough that no node claims a block of it any more.
    pub fn has_drained(&self, network_uid: &str, cidr: Cidr, now: Instant) -> bool {
        self.draining.get(&(network_uid.to_owned(), cidr)).is_some_and(|since| now - *since >= SETTLE)
    }

    /// Whether the Network has been terminating for long enough that no node starts to use it any more.
    pub fn has_ended(&self, network_uid: &str, now: Instant) -> bool {
        self.terminating.get(network_uid).is_some_and(|since| now - *since >= SETTLE)
    }
}

fn keep_times<K: Eq + std::hash::Hash>(
    old: &HashMap<K, Instant>,
    keys: impl Iterator<Item = K>,
    now: Instant,
) -> HashMap<K, Instant> {
    keys.map(|key| {
        let since = old.get(&key).copied().unwrap_or(now);
        (key, since)
    })
    .collect()
}

fn draining(network: &Network) -> impl Iterator<Item = (String, Cidr)> {
    let uid = network.metadata.uid.clone().unwrap_or_default();
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    ranges.filter(|range| range.state == RangeState::Draining).map(move |range| (uid.clone(), range.cidr))
}

fn terminating(network: &Network) -> Option<String> {
    network.metadata.deletion_timestamp.as_ref()?;
    network.metadata.uid.clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(state: Option<&str>) -> Network {
        let ranges: Vec<_> = state
            .iter()
            .map(|state| json!({ "cidr": "10.0.0.0/24", "blockPrefix": 28, "state": state }))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network",
            "metadata": { "name": "blue", "uid": "u" },
            "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                      "ipam": { "ranges": [{ "cidr": "10.0.0.0/24" }] } },
            "status": { "ranges": ranges }
        }))
        .unwrap()
    }

    #[test]
    fn addresses_that_were_given_up_rest_before_another_network_gets_them() {
        let start = Instant::now();
        let mut settling = Settling::new(start);
        let cidr = "10.0.0.0/28".parse().unwrap();
        assert!(settling.is_settling("default", cidr, start), "a new leader does not know what was given up");
        let later = start + SETTLE;
        settling.observe(&[network(Some("Admitted"))], later);
        assert!(!settling.is_settling("default", cidr, later));
        settling.observe(&[network(None)], later);
        assert!(settling.is_settling("default", cidr, later));
        assert!(!settling.is_settling("lab", cidr, later));
        settling.observe(&[network(None)], later + SETTLE);
        assert!(!settling.is_settling("default", cidr, later + SETTLE));
    }

    #[test]
    fn a_range_drains_for_a_while_and_starts_again_when_it_was_taken_back() {
        let start = Instant::now();
        let cidr = "10.0.0.0/24".parse().unwrap();
        let mut settling = Settling::new(start);
        settling.observe(&[network(Some("Draining"))], start);
        assert!(!settling.has_drained("u", cidr, start));
        assert!(settling.has_drained("u", cidr, start + SETTLE));
        settling.observe(&[network(Some("Admitted"))], start + SETTLE);
        settling.observe(&[network(Some("Draining"))], start + SETTLE);
        assert!(!settling.has_drained("u", cidr, start + SETTLE));
    }
}
