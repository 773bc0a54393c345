//! What the agent counts, as listed in `fairlead_crds::catalogue`. Labels come from enumerations only.

use std::time::Duration;

use fairlead_crds::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The agent's metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    attach: Seconds,
    release: Seconds,
    waited: Seconds,
    failures: Family<ByReason, Counter>,
    rounds: Family<ByOutcome, Counter>,
    writes: Family<ByKind, Counter>,
    netlink: Family<ByKind, Gauge<i64>>,
    repairs: Counter,
    conflicts: Counter,
    addresses: Family<ByNetworkState, Gauge<i64>>,
    pods: Family<ByState, Gauge<i64>>,
    lease: Gauge<i64>,
}

#[derive(Debug)]
struct Seconds(Histogram);

impl Default for Seconds {
    /// From half a millisecond, doubling 16 times to 16 seconds.
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(0.0005, 2.0, 16)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByNetworkState {
    network: String,
    state: &'static str,
}

impl Metrics {
    /// Registers everything under the prefix `fairlead`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("fairlead");
        registry.register_with_unit(
            "attach_duration",
            "Time from seeing a pod's sandbox to the marker",
            Unit::Seconds,
            self.attach.0.clone(),
        );
        registry.register_with_unit(
            "release_duration",
            "Time from the proof that a pod is gone to the end of its record",
            Unit::Seconds,
            self.release.0.clone(),
        );
        registry.register_with_unit(
            "runtime_wait_duration",
            "Time that the container runtime waited for an attach",
            Unit::Seconds,
            self.waited.0.clone(),
        );
        registry.register("attach_failures", "Rounds that ended with a pod waiting", self.failures.clone());
        registry.register("reconcile", "Rounds", self.rounds.clone());
        registry.register("api_writes", "Writes to the API server", self.writes.clone());
        registry.register("netlink_messages", "Netlink requests since the start", self.netlink.clone());
        registry.register(
            "repairs",
            "Things put back after something else had changed them",
            self.repairs.clone(),
        );
        registry.register(
            "address_conflicts",
            "Addresses for which a stranger answered before their use",
            self.conflicts.clone(),
        );
        registry.register("addresses", "Addresses of this node", self.addresses.clone());
        registry.register("pods", "Pods of this node", self.pods.clone());
        registry.register("lease_fresh", "1 while the agent may attach", self.lease.clone());
    }

    /// A round ended.
    pub fn round(&self, ok: bool) {
        self.rounds.get_or_create(&ByOutcome { outcome: if ok { "ok" } else { "error" } }).inc();
    }

    /// A pod was attached, so long after its sandbox had been seen.
    pub fn attached(&self, after: Duration) {
        self.attach.0.observe(after.as_secs_f64());
    }

    /// The container runtime waited so long for an attach, or did not have to.
    pub fn runtime_waited(&self, for_so_long: Duration) {
        self.waited.0.observe(for_so_long.as_secs_f64());
    }

    /// A record was removed, so long after the proof that its pod is gone.
    pub fn released(&self, after: Duration) {
        self.release.0.observe(after.as_secs_f64());
    }

    /// A pod waits.
    pub fn failure(&self, reason: Reason) {
        self.failures.get_or_create(&ByReason { reason: reason.as_str() }).inc();
    }

    /// Something was written to the API server.
    pub fn api_write(&self, kind: &'static str) {
        self.writes.get_or_create(&ByKind { kind }).inc();
    }

    /// A stranger answered for an address.
    pub fn conflict(&self) {
        self.conflicts.inc();
    }

    /// Something was put back.
    pub fn repair(&self) {
        self.repairs.inc();
    }

    /// Netlink requests so far, by whether they only looked.
    pub fn netlink(&self, observe: u64, change: u64) {
        for (kind, count) in [("observe", observe), ("change", change)] {
            self.netlink.get_or_create(&ByKind { kind }).set(count.try_into().unwrap_or(i64::MAX));
        }
    }

    /// Addresses of one network on this node.
    pub fn addresses(&self, network: &str, state: &'static str, count: u64) {
        let labels = ByNetworkState { network: network.to_owned(), state };
        self.addresses.get_or_create(&labels).set(count.try_into().unwrap_or(i64::MAX));
    }

    /// Pods of this node with a record.
    pub fn pods(&self, state: &'static str, count: usize) {
        self.pods.get_or_create(&ByState { state }).set(count.try_into().unwrap_or(i64::MAX));
    }

    /// Whether the agent may attach.
    pub fn lease(&self, fresh: bool) {
        self.lease.set(i64::from(fresh));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_the_agent_is_in_the_catalogue() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let known = |name: &str| {
            fairlead_crds::catalogue::METRICS
                .iter()
                .any(|metric| metric.name.trim_end_matches("_total") == name)
        };
        for name in text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP "))
            .filter_map(|line| line.split(' ').next())
        {
            assert!(known(name), "{name} is not in the catalogue");
        }
    }
}
