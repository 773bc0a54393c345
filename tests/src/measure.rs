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
    /// The figure that `p` percent of all do not exceed; 0 to 100. `NaN` without figures.
    pub fn percentile(&self, p: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((self.0.len() * p / 100).min(last)).copied().unwrap_or(f64::NAN)
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

/// Milliseconds from seeing a sandbox to its marker, in the order in which the agents of all nodes logged them.
pub async fn attach_times(cluster: &Cluster) -> Result<Vec<f64>> {
    let agents = ["-l", "app.kubernetes.io/name=fairlead-agent", "-c", "agent", "--tail=-1"];
    let log = cluster.kubectl(&[&["logs", "-n", "fairlead-system"], &agents[..]].concat()).await?;
    let of_line = |line: &str| line.split("elapsed_ms=").nth(1)?.split_whitespace().next()?.parse().ok();
    Ok(log.lines().filter_map(of_line).collect())
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
    fn percentiles_are_figures_that_were_measured() {
        let times: Times = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        let shown = [0, 50, 99, 100].map(|p| times.percentile(p).to_string());
        assert_eq!(shown, ["1", "3", "4", "4"]);
        assert!(Times::default().percentile(50).is_nan());
    }

    #[test]
    fn pairs_are_compared_and_not_their_medians() {
        let (bare, held) = ([1.0, 2.0, 10.0], [1.5, 2.2, 11.0]);
        assert!((Times::ratios(&held, &bare).percentile(50) - 1.1).abs() < 1e-9);
    }
}
