//! The agent, or what it works on, dies at a bad moment.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::names;
use futures::future::try_join_all;
use kube::ResourceExt;
use serde_json::json;

use crate::{
    agents::{self, Victims},
    fixtures::{self, EVENTUALLY, Net, eventually},
    traces,
    trial::{Case, Env},
    watch,
};

const PODS: u32 = 20;
/// How long a new agent is given to do what it must not.
const SETTLE: Duration = Duration::from_secs(4);
/// The first process of a container that takes up to a quarter of a minute to end.
const ENDS_IN_A_WHILE: &str = "trap 'sleep $((RANDOM % 15)); exit 0' TERM; sleep infinity & wait";
const CHANGES: &str = "fairlead_netlink_messages{kind=\"change\"}";
const LOOKS: &str = "fairlead_netlink_messages{kind=\"observe\"}";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("crash_of_all_agents_while_pods_start_and_while_they_end", killed_in_between).alone(),
        Case::new("crash_or_restart_of_an_agent_does_not_touch_running_pods", running_pods_untouched).alone(),
        Case::new("crash_of_a_sandbox_keeps_its_addresses_and_holds_again", sandbox_killed),
    ]
}

async fn killed_in_between(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "storm", &["10.50.0.0/24", "fd00:50::/64"]);
    net.create(&env).await?;
    let agents = Victims::find(&env.cluster, env.cluster.nodes()).await?;
    let mut storm = fixtures::deployment("storm", PODS, net.name());
    // Not all at once, or the last one may be gone before the agents are killed.
    storm["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 30.into();
    storm["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["sh", "-c", ENDS_IN_A_WHILE]);
    env.apply(&storm.to_string()).await?;
    eventually("the first pods to be attached", || async {
        let attached = attached(&env).await?;
        ensure!(attached >= 3, "{attached}");
        Ok(())
    })
    .await?;
    agents.kill()?;
    let attached = attached(&env).await?;
    ensure!(attached < PODS as usize, "all pods were attached before the agents were killed");
    env.wait_rollout("storm").await?;
    let pods = fixtures::pods(&env, "storm").await?;
    let all = check_addresses(&env, &pods).await?;
    let traces = try_join_all(pods.iter().map(|pod| traces::of(&env, pod))).await?;
    agents::wait_ready(&env.cluster).await?;
    let agents = Victims::find(&env.cluster, env.cluster.nodes()).await?;
    env.kubectl(&["delete", "deployment", "storm", "--wait=false"]).await?;
    eventually("the first records to go", || async {
        let records = fixtures::records(&env).await?.len();
        ensure!(records < all, "{records} of {all} are left");
        Ok(())
    })
    .await?;
    agents.kill()?;
    let left = fixtures::records(&env).await?.len();
    ensure!(left > 0, "all records were gone before the agents were killed");
    for traces in traces {
        traces.wait_gone(&env, EVENTUALLY).await?;
    }
    agents::wait_ready(&env.cluster).await
}

/// How many pods are attached.
async fn attached(env: &Env) -> Result<usize> {
    let records = fixtures::records(env).await?.into_iter();
    let statuses = records.filter_map(|record| record.status);
    Ok(statuses.filter(fixtures::is_ready).count())
}

/// Every pod has both addresses, no two the same, and one record.
async fn check_addresses(env: &Env, pods: &[String]) -> Result<usize> {
    let mut seen = BTreeSet::new();
    for pod in pods {
        let found = fixtures::addresses(env, pod, "net1").await?;
        ensure!(found.len() == 2, "{pod} has {found:?}");
        for address in found {
            ensure!(seen.insert(address.clone()), "{address} was given twice");
        }
    }
    let records = fixtures::records(env).await?;
    let held: BTreeSet<_> = records
        .iter()
        .flat_map(|record| &record.spec.attachments)
        .flat_map(|attachment| &attachment.addresses)
        .map(|held| held.address.to_string())
        .collect();
    ensure!(records.len() == pods.len(), "{} records of {} pods", records.len(), pods.len());
    ensure!(held == seen, "records hold {held:?}, pods use {seen:?}");
    Ok(records.len())
}

async fn running_pods_untouched(env: Arc<Env>) -> Result<()> {
    // New pods: one that was killed before comes back after a long back-off.
    try_join_all(env.cluster.nodes().iter().map(|node| agents::replace(&env.cluster, node))).await?;
    agents::wait_ready(&env.cluster).await?;
    let net = Net::island(&env, "calm", &["10.51.0.0/24", "fd00:51::/64"]);
    net.create(&env).await?;
    env.apply(&fixtures::deployment("calm", PODS, net.name()).to_string()).await?;
    env.wait_rollout("calm").await?;
    fixtures::wait_for_quiet(&env).await?;
    let mut watches = Vec::new();
    for node in env.cluster.nodes() {
        watches.push(watch::NodeWatch::start(&env, node).await?);
    }
    // One agent dies, the other ends gracefully, as in an upgrade.
    let [first, second] = env.cluster.nodes() else { bail!("two nodes are needed") };
    Victims::find(&env.cluster, std::slice::from_ref(first)).await?.kill()?;
    agents::replace_in_order(&env, Some(second), || async {
        agents::replace(&env.cluster, second).await?;
        agents::wait_ready(&env.cluster).await
    })
    .await?;
    // Its first full round over all pods is over some seconds later.
    tokio::time::sleep(SETTLE).await;
    for node in env.cluster.nodes() {
        let changes = agents::metric(node, CHANGES).await?;
        ensure!(changes == 0.0, "the new agent of {} changed something {changes} times", node.name());
        let looks = agents::metric(node, LOOKS).await?;
        ensure!(looks > 0.0, "the new agent of {} has not even looked", node.name());
    }
    for watch in watches {
        watch.check(&env).await?;
    }
    // What the one that died had asked for and was not answered cannot be carried out late: its records are taken over.
    for record in fixtures::records(&env).await? {
        let taken = record.annotations().contains_key(names::TAKEN_OVER_ANNOTATION);
        ensure!(taken || record.spec.node_name != first.name(), "{} is not taken over", record.name_any());
    }
    Ok(())
}

async fn sandbox_killed(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "again", &["10.52.0.0/24", "fd00:52::/64"]);
    net.create(&env).await?;
    env.apply(&fixtures::pod("phoenix", net.name()).to_string()).await?;
    env.wait_ready("app=phoenix").await?;
    let before = fixtures::addresses(&env, "phoenix", "net1").await?;
    let gate = gate(&env).await?;
    let record = fixtures::record(&env, "phoenix").await?;
    let sandbox = record.status.and_then(|status| status.sandbox).context("no sandbox in the record")?;
    let node = env.cluster.node(&record.spec.node_name)?;
    for pid in node.sandbox_pids(&record.spec.pod_uid).await? {
        node.kill(pid)?;
    }
    eventually("another sandbox in the record", || async {
        let record = fixtures::record(&env, "phoenix").await?;
        let now = record.status.and_then(|status| status.sandbox).context("no sandbox in the record")?;
        ensure!(now.id != sandbox.id && now.cookie != sandbox.cookie, "still {}", now.id);
        Ok(())
    })
    .await?;
    eventually("the gate to hold again", || async {
        let now = self::gate(&env).await?;
        ensure!(now != gate, "still {now}");
        Ok(())
    })
    .await?;
    env.wait_ready("app=phoenix").await?;
    let after = fixtures::addresses(&env, "phoenix", "net1").await?;
    ensure!(after == before, "{before:?} before, {after:?} after");
    // The init container ran again, behind the gate: what it left is of the second sandbox.
    let first = fixtures::first_look(&env, &env.namespace, "phoenix").await?;
    ensure!(before.iter().all(|address| first.contains(address)), "the gate did not hold again:\n{first}");
    // The links of the first sandbox are gone: there are as many as interfaces.
    traces::of(&env, "phoenix").await?;
    Ok(())
}

/// Which container of the gate opened last.
async fn gate(env: &Env) -> Result<String> {
    let path = format!(
        ".status.initContainerStatuses[?(@.name==\"{}\")].state.terminated.containerID",
        names::GATE_CONTAINER
    );
    let id = env.field("pod/phoenix", &path).await?;
    ensure!(!id.is_empty(), "the gate has not opened");
    Ok(id)
}
