//! What benches read off a cluster: times of pods, and time, messages, requests, memory and processor time of ours.
//!
//! ```text
//! run -> rests, pods, usage, processors, links, requests (readings) -> report (tables, JSON) -> page (docs), chart (SVG)
//! ```

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    audit::{Mark, Request},
    cluster::Cluster,
    node::Node,
};

mod chart;
pub mod links;
pub mod page;
mod pods;
mod processors;
mod report;
mod requests;
mod rests;
mod run;
pub mod usage;

pub use pods::PodWatch;
pub use processors::Processors;
pub use report::{Report, Section, Series, Unit};
pub use requests::{Client, requests};
pub use rests::Rests;
pub use run::{conditions, exit_code, on_a_cluster};

/// Sorted figures of one kind, in milliseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<f64>")]
pub struct Times(Vec<f64>);

impl FromIterator<f64> for Times {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }
}

impl From<Vec<f64>> for Times {
    fn from(figures: Vec<f64>) -> Self {
        figures.into_iter().collect()
    }
}

impl Times {
    /// The figure that `p` percent of all do not exceed, 0 to 100; between two of them it is on the line that joins them.
    /// `NaN` without figures.
    pub fn percentile(&self, p: usize) -> f64 {
        let place = self.0.len().saturating_sub(1) * p;
        let at = |place: usize| self.0.get(place).copied().unwrap_or(f64::NAN);
        let (below, above) = (at(place / 100), at(place.div_ceil(100)));
        #[expect(clippy::cast_precision_loss, reason = "less than a hundred")]
        let share = (place % 100) as f64 / 100.0;
        below + (above - below) * share
    }

    /// Of pairs of figures that were measured close to each other, how often the second is in the first: what the machine's
    /// speed does from minute to minute concerns both.
    pub fn ratios(these: &[f64], to: &[f64]) -> Self {
        these.iter().zip(to).map(|(one, other)| one / other).collect()
    }

    /// All of them, the smallest first.
    pub fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the agents of all nodes logged as this field, in milliseconds, by the pod's name.
pub async fn logged(cluster: &Cluster, field: &str) -> Result<BTreeMap<String, f64>> {
    let agents = ["-l", "app.kubernetes.io/name=fairlead-agent", "-c", "agent", "--tail=-1"];
    let log = cluster.kubectl(&[&["logs", "-n", "fairlead-system"], &agents[..]].concat()).await?;
    Ok(log.lines().filter_map(|line| of_pod(line, field)).collect())
}

/// The pod's name and the figure of a line like `… pod{pod="namespace/name" …}: … field=1.5`.
fn of_pod(line: &str, field: &str) -> Option<(String, f64)> {
    let (_, pod) = line.split_once("pod=\"")?.1.split_once('"')?.0.split_once('/')?;
    let figure = line.split_once(&format!(" {field}="))?.1.split_whitespace().next()?;
    Some((pod.to_owned(), figure.parse().ok()?))
}

/// Netlink requests and sysctl writes of a node's agent so far, by kind.
pub async fn netlink(node: &Node) -> Result<BTreeMap<String, f64>> {
    let text = node.exec(&["busybox", "wget", "-qO-", "http://127.0.0.1:9474/metrics"]).await?;
    let of_line = |line: &str| {
        let (kind, count) = line.strip_prefix("fairlead_netlink_messages{kind=\"")?.split_once("\"} ")?;
        Some((kind.to_owned(), count.parse().ok()?))
    };
    Ok(text.lines().filter_map(of_line).collect())
}

/// Writes of a service account of ours since the mark that the API server accepted, by what was written.
pub fn writes(cluster: &Cluster, since: Mark, account: &str) -> Result<BTreeMap<String, usize>> {
    let account = format!("system:serviceaccount:fairlead-system:{account}");
    let ours =
        |request: &Request| request.is_write() && request.succeeded() && request.user.username == account;
    let mut kinds = BTreeMap::new();
    for request in cluster.audit_since(since, ours)? {
        let object = request.object_ref.unwrap_or_default();
        let kind = format!("{} {} {}", request.verb, object.resource, object.subresource);
        *kinds.entry(kind.trim_end().to_owned()).or_default() += 1;
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_between_the_figures_next_to_them() {
        let times: Times = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        let shown = [0, 50, 90, 100].map(|p| format!("{:.2}", times.percentile(p)));
        assert_eq!(shown, ["1.00", "2.50", "3.70", "4.00"]);
        assert!(Times::default().percentile(50).is_nan());
    }

    #[test]
    fn figures_are_read_with_the_pod_that_they_are_of() {
        let line = "2026-01-01T00:00:00Z  INFO pod{pod=\"bench/pod-7\" uid=1}: attach: attached interfaces=1 elapsed_ms=2.5";
        assert_eq!(of_pod(line, "elapsed_ms"), Some(("pod-7".into(), 2.5)));
        assert_eq!(of_pod(line, "cut_ms"), None);
        assert_eq!(of_pod("elapsed_ms=2.5", "elapsed_ms"), None);
    }

    #[test]
    fn pairs_are_compared_and_not_their_medians() {
        let (bare, held) = ([1.0, 2.0, 10.0], [1.5, 2.2, 11.0]);
        assert!((Times::ratios(&held, &bare).percentile(50) - 1.1).abs() < 1e-9);
    }
}
