//! What the controller counts; names and meanings stand in the catalogue of `fairlead-crds`.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// How an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "the API's own verbs")]
pub enum Verb {
    Create,
    Patch,
    Delete,
    Evict,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "the kinds' own names")]
pub enum Kind {
    Admission,
    Event,
    IPBlock,
    Lease,
    Network,
    Node,
    NodeNetwork,
    Pod,
    PodNetwork,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: Verb,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Accepted {
    accepted: &'static str,
}

/// The controller's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    networks: Family<Accepted, Gauge>,
    /// 1 on the replica that leads.
    pub leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("fairlead");
        let (requests, networks, leader) = (Family::default(), Family::default(), Gauge::default());
        registry.register("api_requests", "Writes to the API server", requests.clone());
        registry.register("networks", "Networks by whether they are accepted", Family::clone(&networks));
        registry.register("controller_leader", "1 on the replica that leads", Gauge::clone(&leader));
        Self { registry, requests, networks, leader }
    }
}

impl Metrics {
    /// Counts a write.
    pub fn count(&self, verb: Verb, kind: Kind) {
        self.requests.get_or_create(&Request { verb, kind }).inc();
    }

    /// Sets how many Networks are accepted and how many are not.
    pub fn set_networks(&self, accepted: usize, refused: usize) {
        for (label, count) in [("true", accepted), ("false", refused)] {
            let gauge = self.networks.get_or_create(&Accepted { accepted: label });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// All metrics in the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            text.clear();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_catalogue() {
        let metrics = Metrics::default();
        metrics.count(Verb::Patch, Kind::IPBlock);
        metrics.set_networks(3, 1);
        metrics.leader.set(1);
        let text = metrics.text();
        for line in [
            "fairlead_api_requests_total{verb=\"Patch\",kind=\"IPBlock\"} 1",
            "fairlead_networks{accepted=\"true\"} 3",
            "fairlead_controller_leader 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let known = |name: &str| fairlead_crds::catalogue::METRICS.iter().any(|metric| metric.name == name);
        let names = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next());
        names.for_each(|name| assert!(known(name), "{name}"));
    }
}
