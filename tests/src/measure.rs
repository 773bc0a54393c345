//! What benches read off a cluster: times of pods, and time, messages, memory and writes of the agent.

use std::collections::BTreeMap;
use std::fs;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::mpsc;

use crate::audit::{Mark, Request};
use crate::cluster::Cluster;
use crate::node::Node;

/// Sorted figures of one kind, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<f64>);

impl FromIterator<f64> for Times {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }
}

impl Times {
    /// The figure that `p` percent of all do not exceed; 0 to 100. `NaN` without figures.
    pub fn percentile(&self, p: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((self.0.len() * p / 100).min(last)).copied().unwrap_or(f64::NAN)
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

/// Resident memory in KiB of a container of a pod of ours on a node: all of it, and the part that no file backs.
pub async fn resident(cluster: &Cluster, node: &Node, app: &str, container: &str) -> Result<(u64, u64)> {
    let label = format!("app.kubernetes.io/name={app}");
    let on_node = format!("spec.nodeName={}", node.name());
    let uid = ["-l", &label, "--field-selector", &on_node, "-o", "jsonpath={.items[0].metadata.uid}"];
    let uid = cluster.kubectl(&[&["get", "pods", "-n", "fairlead-system"], &uid[..]].concat()).await?;
    let pids = node.container_pids(uid.trim(), container).await?;
    let pid = pids.first().with_context(|| format!("{container} has no process"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let line = line.with_context(|| format!("/proc/{pid}/status has no {key}"))?;
        Ok::<u64, anyhow::Error>(line.trim().trim_end_matches(" kB").trim().parse()?)
    };
    Ok((kib("VmRSS:")?, kib("RssAnon:")?))
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

/// Tells when pods of a namespace become Ready.
pub struct Readiness {
    ready: mpsc::UnboundedReceiver<(String, Instant)>,
    watch: tokio::task::JoinHandle<()>,
}

impl Readiness {
    /// Begins to watch.
    pub fn of(cluster: &Cluster, namespace: &str) -> Self {
        let api: Api<Pod> = Api::namespaced(cluster.client(), namespace);
        let (tell, ready) = mpsc::unbounded_channel();
        let watch = tokio::spawn(async move {
            let pods = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
            let mut pods = pin!(pods);
            while let Ok(next) = pods.try_next().await {
                let Some(pod) = next else { return };
                let told = is_ready(&pod)
                    .then(|| tell.send((pod.metadata.name.unwrap_or_default(), Instant::now())));
                if matches!(told, Some(Err(_))) {
                    return;
                }
            }
        });
        Self { ready, watch }
    }

    /// Waits until every one of the pods was seen Ready; how long after `begun` each was, in milliseconds.
    ///
    /// # Errors
    /// If one is not within `patience`.
    pub async fn all(&mut self, names: &[String], begun: Instant, patience: Duration) -> Result<Vec<f64>> {
        let mut missing: std::collections::BTreeSet<&String> = names.iter().collect();
        let mut times = Vec::with_capacity(names.len());
        while !missing.is_empty() {
            let left = patience.saturating_sub(begun.elapsed());
            let Ok(Some((name, at))) = tokio::time::timeout(left, self.ready.recv()).await else {
                bail!("not Ready within {patience:?}: {missing:?}");
            };
            if missing.remove(&name) {
                times.push(at.saturating_duration_since(begun).as_secs_f64() * 1000.0);
            }
        }
        Ok(times)
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
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
}
