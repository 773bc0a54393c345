//! An agent is replaced while it works: the next one takes over before it goes, and it is back if the next one fails.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use fairlead_tests::node::Node;
use k8s_openapi::api::{apps::v1::DaemonSet, coordination::v1::Lease, core::v1::Pod};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::{
    agents,
    fixtures::{self, Net, eventually},
    trial::{Case, Env},
};

/// The kubelet gives up an agent that took over and does not get ready, after so many looks of a second or more: fewer than
/// the manifests have, since the agent that stands by is given up after 90 s.
const LOOKS: i32 = 40;
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    [
        Case::new("handover_leaves_no_node_without_an_agent", upgrade),
        Case::new("handover_to_a_version_that_does_not_get_ready_is_taken_back", bad_version),
    ]
    .into_iter()
    .map(Case::alone)
    .collect()
}

/// UIDs of the agents' pods that hold the Leases, by node.
async fn holders(env: &Env) -> Result<BTreeMap<String, String>> {
    let mut holders = BTreeMap::new();
    for node in env.cluster.nodes() {
        holders.insert(node.name(), holder(env, node).await?);
    }
    Ok(holders)
}

async fn lease(env: &Env, node: &Node) -> Result<Lease> {
    let leases: Api<Lease> = Api::namespaced(env.cluster.client(), names::INSTALL_NAMESPACE);
    Ok(leases.get(&node.name()).await?)
}

async fn holder(env: &Env, node: &Node) -> Result<String> {
    let spec = lease(env, node).await?.spec.context("a Lease without spec")?;
    spec.holder_identity.context("nobody holds the Lease")
}

fn serves(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.filter(|one| one.type_ == "Ready").any(|one| one.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// Nodes that have no pod of an agent that is Ready and stays.
async fn unserved(env: &Env) -> Result<Vec<String>> {
    let pods = agents::pods(&env.cluster).await?;
    let served =
        |node: &&Node| pods.iter().any(|pod| agents::node_of(pod) == Some(&node.name()) && serves(pod));
    Ok(env.cluster.nodes().iter().filter(|node| !served(node)).map(Node::name).collect())
}

async fn upgrade(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "turn", &["10.51.0.0/24"]);
    net.create(&env).await?;
    env.apply(&fixtures::deployment("before", 4, net.name()).to_string()).await?;
    env.wait_rollout("before").await?;
    agents::replace_in_order(&env, None, || replace_all(&env)).await?;
    env.apply(&fixtures::deployment("after", 4, net.name()).to_string()).await?;
    env.wait_rollout("after").await
}

/// As a new version does, with no moment in which a node has no agent that is Ready.
async fn replace_all(env: &Env) -> Result<()> {
    let before = holders(env).await?;
    let version = json!({ "metadata": { "annotations": { "trial": format!("after {before:?}") } } });
    agents::patch_template(&env.cluster, &version).await?;
    let replaced = async {
        eventually("both agents to be replaced", || async {
            agents::wait_ready(&env.cluster).await?;
            let now = holders(env).await?;
            ensure!(now.iter().all(|(node, uid)| before[node] != *uid), "{now:?}");
            Ok(())
        })
        .await
    };
    let served = async {
        loop {
            let unserved = unserved(env).await?;
            ensure!(unserved.is_empty(), "no agent on {unserved:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        outcome = replaced => outcome?,
        outcome = served => outcome?,
    }
    for node in env.cluster.nodes() {
        let asked = lease(env, node).await?.annotations().get(names::PREFERRED_HOLDER_ANNOTATION).cloned();
        ensure!(asked.is_none(), "the Lease of {} is still asked for: {asked:?}", node.name());
    }
    Ok(())
}

/// It serves where its probe does not ask, so it takes over and does not get ready.
async fn bad_version(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "turn", &["10.52.0.0/24"]);
    net.create(&env).await?;
    let before = holders(&env).await?;
    let sets: Api<DaemonSet> = Api::namespaced(env.cluster.client(), names::INSTALL_NAMESPACE);
    let set = sets.get(names::AGENT).await?;
    let pod = set.spec.and_then(|set| set.template.spec).context("a DaemonSet without pods")?;
    let agent = pod.containers.first().context("a pod without containers")?;
    let arguments = agent.args.clone().unwrap_or_default();
    let looks = agent.startup_probe.as_ref().and_then(|probe| probe.failure_threshold);
    let change = |arguments: &[String], looks: Option<i32>| {
        let probe = json!({ "failureThreshold": looks });
        let changed = json!({ "name": agent.name, "args": arguments, "startupProbe": probe });
        json!({ "spec": { "containers": [changed] } })
    };
    let elsewhere = arguments.iter().filter(|argument| !argument.starts_with("--listen")).cloned();
    let elsewhere: Vec<String> = elsewhere.chain(["--listen=127.0.0.1:9475".to_owned()]).collect();
    agents::patch_template(&env.cluster, &change(&elsewhere, Some(LOOKS))).await?;
    let outcome = taken_back(&env, &before, &net).await;
    agents::patch_template(&env.cluster, &change(&arguments, looks)).await?;
    agents::wait_ready(&env.cluster).await?;
    outcome
}

async fn taken_back(env: &Env, before: &BTreeMap<String, String>, net: &Net) -> Result<()> {
    eventually("the new version to take over on one node", || async {
        ensure!(holders(env).await? != *before, "nothing changed");
        Ok(())
    })
    .await?;
    eventually("the old version to be back", || async {
        let now = holders(env).await?;
        ensure!(now == *before, "{now:?} instead of {before:?}");
        Ok(())
    })
    .await?;
    let pods = agents::pods(&env.cluster).await?;
    let (old, all) = (before.values().cloned().collect::<Vec<_>>(), pods.len());
    let left = pods.iter().filter(|pod| serves(pod) && pod.uid().is_some_and(|uid| old.contains(&uid)));
    let left = left.count();
    ensure!(left == old.len(), "{left} of {} old agents are left", old.len());
    ensure!(all == old.len() + 1, "{all} agents for {} nodes: it went on to the next node", old.len());
    env.apply(&fixtures::deployment("meanwhile", 4, net.name()).to_string()).await?;
    env.wait_rollout("meanwhile").await
}
