//! Stops, starts and kills agents. Only for trials that run alone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::{PodNetwork, names};
use fairlead_tests::{Cluster, node::Node};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{Api, ResourceExt, api::ListParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    fixtures::{self, PATIENTLY, eventually},
    trial::Env,
};

/// An agent needs longer than this until it attaches its first pod.
const KILL_EVERY: Duration = Duration::from_millis(20);
/// An agent reads everything again 70 s after its start.
const READ: Duration = Duration::from_secs(90);
const TRIES: u32 = 3;
const CONTAINER: &str = "agent";
const METRICS: &str = "127.0.0.1:9474";
const SELECTOR: &str = "app.kubernetes.io/name=fairlead-agent";

/// The agent's pod on a node.
pub async fn pod(cluster: &Cluster, node: &Node) -> Result<Pod> {
    let found = pods(cluster).await?;
    let pod = found.into_iter().find(|pod| node_of(pod) == Some(&node.name()));
    pod.with_context(|| format!("no agent on {}", node.name()))
}

/// Processes of the agent on a node.
async fn pids(cluster: &Cluster, node: &Node) -> Result<Vec<i32>> {
    container_pids(cluster, node, CONTAINER).await
}

/// First processes of a container of the agent's pod on a node.
pub async fn container_pids(cluster: &Cluster, node: &Node, container: &str) -> Result<Vec<i32>> {
    let uid = pod(cluster, node).await?.uid().context("a pod has a UID")?;
    node.container_pids(&uid, container).await
}

/// Runs `body` while a container of the agent's pod does nothing, and lets it go on whatever comes of it.
pub async fn while_frozen<T>(
    cluster: &Cluster,
    node: &Node,
    container: &str,
    body: impl Future<Output = Result<T>>,
) -> Result<T> {
    let pids = container_pids(cluster, node, container).await?;
    ensure!(!pids.is_empty(), "no process of {container} on {}", node.name());
    pids.iter().try_for_each(|pid| node.signal(*pid, Signal::SIGSTOP))?;
    let outcome = body.await;
    for pid in pids {
        // The kubelet may have ended it meanwhile.
        node.signal(pid, Signal::SIGCONT).ok();
    }
    outcome
}

/// Kills the agent of a node, and runs `body` while it is killed again whenever the kubelet has started it.
pub async fn kept_dead<T>(node: &Node, body: impl Future<Output = Result<T>>) -> Result<T> {
    let kill_all = || {
        let running = node.running(names::AGENT)?;
        // One that has just ended cannot be killed.
        running.iter().for_each(|pid| drop(node.kill(*pid)));
        anyhow::Ok(running.len())
    };
    ensure!(kill_all()? > 0, "no agent runs on {}", node.name());
    let kill = async {
        loop {
            tokio::time::sleep(KILL_EVERY).await;
            kill_all()?;
        }
    };
    tokio::select! {
        outcome = body => outcome,
        outcome = kill => outcome,
    }
}

/// One of the agent's metrics on a node, by its name with its labels.
pub async fn metric(node: &Node, name: &str) -> Result<f64> {
    let url = format!("http://{METRICS}/metrics");
    // Nodes have their own network but the machine's programs.
    let text = node.exec(&["busybox", "wget", "-q", "-O", "-", &url]).await?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.with_context(|| format!("no metric {name} on {}", node.name()))?;
    Ok(value.trim().parse()?)
}

/// Restarts the agent of a node as a new version does: the pod is deleted, and ends gracefully.
pub async fn replace(cluster: &Cluster, node: &Node) -> Result<()> {
    let name = pod(cluster, node).await?.name_any();
    cluster.kubectl(&["delete", "pod", "-n", names::INSTALL_NAMESPACE, &name, PATIENTLY]).await?;
    Ok(())
}

/// Replaces agents by `replace` until one time leaves no record to be taken over, of the node or of all nodes: an agent that
/// stops has two seconds to say that nothing of it is under way, and a busy API server may need them for itself.
pub async fn replace_in_order<F, Fut>(env: &Env, node: Option<&Node>, replace: F) -> Result<()>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    for _ in 0..TRIES {
        let before = taken_over(env, node).await?;
        replace().await?;
        if taken_over(env, node).await? == before {
            return Ok(());
        }
    }
    bail!("{TRIES} times agents did not stop in order")
}

/// When each record of the trial was taken over from an agent that did not stop in order, if it was.
async fn taken_over(env: &Env, node: Option<&Node>) -> Result<BTreeMap<String, Option<String>>> {
    let mut records = fixtures::records(env).await?;
    records.retain(|record| node.is_none_or(|node| record.spec.node_name == node.name()));
    let at = |record: &PodNetwork| record.annotations().get(names::TAKEN_OVER_ANNOTATION).cloned();
    Ok(records.iter().map(|record| (record.name_any(), at(record))).collect())
}

/// SIGKILL, and a new pod at once: the kubelet would wait longer from time to time to start the old one again.
pub async fn kill_and_replace(cluster: &Cluster, node: &Node) -> Result<()> {
    let name = pod(cluster, node).await?.name_any();
    Victims::find(cluster, std::slice::from_ref(node)).await?.kill()?;
    let delete = [
        "delete",
        "pod",
        "-n",
        names::INSTALL_NAMESPACE,
        &name,
        "--force",
        "--grace-period=0",
        "--wait=false",
    ];
    cluster.kubectl(&delete).await?;
    Ok(())
}

/// Agents that were looked up, because that takes longer than what they shall be killed in the middle of.
pub struct Victims(Vec<(Node, Vec<i32>)>);

impl Victims {
    /// The agents of these nodes.
    pub async fn find(cluster: &Cluster, nodes: &[Node]) -> Result<Self> {
        let agents = nodes.iter().map(async |node| anyhow::Ok((node.clone(), pids(cluster, node).await?)));
        Ok(Self(futures::future::try_join_all(agents).await?))
    }

    /// SIGKILL to all of them at once, without a wait.
    pub fn kill(self) -> Result<()> {
        for (node, pids) in self.0 {
            pids.into_iter().try_for_each(|pid| node.kill(pid))?;
        }
        Ok(())
    }
}

/// Waits until the agent of every node is Ready, and is the one that runs now.
pub async fn wait_ready(cluster: &Cluster) -> Result<()> {
    eventually("all agents to be Ready", || async {
        check_replaced(cluster).await?;
        for node in cluster.nodes() {
            check_ready(cluster, node).await.with_context(|| format!("on {}", node.name()))?;
        }
        Ok(())
    })
    .await
}

/// Waits until no agent is so young that it will read all its records and blocks once more, and put right what differs.
pub async fn wait_until_read(cluster: &Cluster) -> Result<()> {
    for pod in pods(cluster).await? {
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let agent = statuses.into_iter().find(|status| status.name == CONTAINER).context("no agent")?;
        let running = agent.state.and_then(|state| state.running).and_then(|running| running.started_at);
        let age = Timestamp::now().duration_since(running.context("it does not run")?.0);
        tokio::time::sleep(READ.saturating_sub(age.try_into().unwrap_or_default())).await;
    }
    Ok(())
}

/// After a change of the DaemonSet the agents of before are Ready, too, until it is their turn to go.
async fn check_replaced(cluster: &Cluster) -> Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client(), names::INSTALL_NAMESPACE);
    let set = sets.get(names::AGENT).await?;
    let status = set.status.unwrap_or_default();
    ensure!(status.observed_generation == set.metadata.generation, "the DaemonSet has just been changed");
    let (new, all) = (status.updated_number_scheduled.unwrap_or(0), status.desired_number_scheduled);
    ensure!(new == all, "{new} of {all} are of the DaemonSet as it is now");
    Ok(())
}

/// The status of a pod lags behind the death of its container, so the runtime is asked too.
async fn check_ready(cluster: &Cluster, node: &Node) -> Result<()> {
    let pod = pod(cluster, node).await?;
    ensure!(pod.metadata.deletion_timestamp.is_none(), "it is being deleted");
    let uid = pod.uid().context("a pod has a UID")?;
    let running = node.containers(&uid).await?.into_iter().find(|one| one.name.as_deref() == Some(CONTAINER));
    let running = running.context("its container does not run")?;
    let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let known = statuses.iter().find(|status| status.name == CONTAINER).context("no status yet")?;
    let same = known.container_id.as_ref().is_some_and(|id| id.ends_with(&running.id));
    ensure!(same && known.ready, "it is not Ready");
    Ok(())
}

/// Runs `body` while no agent runs, and starts them again whatever comes of it.
pub async fn while_stopped<T>(cluster: &Arc<Cluster>, body: impl Future<Output = Result<T>>) -> Result<T> {
    select_nodes(cluster, json!({ "fairlead.dev/nowhere": "true" })).await?;
    let outcome = async {
        eventually("all agents to be gone", || async {
            let left = pods(cluster).await?.len();
            ensure!(left == 0, "{left} are left");
            Ok(())
        })
        .await?;
        body.await
    }
    .await;
    select_nodes(cluster, json!({ "fairlead.dev/nowhere": null })).await?;
    wait_ready(cluster).await?;
    outcome
}

async fn select_nodes(cluster: &Cluster, selector: Value) -> Result<()> {
    patch_template(cluster, &json!({ "spec": { "nodeSelector": selector } })).await
}

/// Changes what the agents' pods are made of, as a new version does.
pub async fn patch_template(cluster: &Cluster, change: &Value) -> Result<()> {
    let object = format!("daemonset/{}", names::AGENT);
    let patch = json!({ "spec": { "template": change } }).to_string();
    cluster.kubectl(&["patch", "-n", names::INSTALL_NAMESPACE, &object, "-p", &patch]).await?;
    Ok(())
}

/// The node that a pod is on.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The agents' pods on all nodes.
pub async fn pods(cluster: &Cluster) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(cluster.client(), names::INSTALL_NAMESPACE);
    Ok(api.list(&ListParams::default().labels(SELECTOR)).await?.items)
}
