//! fairlead goes, and takes everything but running pods' interfaces with it.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use fairlead_crds::names;
use fairlead_tests::{fairlead, progress::Progress, wait};
use serde_json::Value;

use crate::{
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

const RESTARTS: &str = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";

/// How long a new agent is given to do what it must not.
const SETTLE: Duration = Duration::from_secs(5);

/// The trials of this module. They are the last ones, and put fairlead back.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("uninstall_keeps_running_pods_and_leaves_nothing_else", uninstall).alone(),
        Case::new("uninstall_finishes_a_bare_delete", finish_a_bare_delete).alone(),
    ]
}

async fn two_pods(env: &Env, prefix: &str) -> Result<()> {
    let net = Net::uplink(env, "bye", &[&format!("{prefix}.0/24")]);
    net.create(env).await?;
    for node in ["node1", "node2"] {
        env.apply(&fixtures::on_node(fixtures::pod(node, net.name()), node).to_string()).await?;
        env.wait_ready(&format!("app={node}")).await?;
    }
    env.apply(&fixtures::pod("gated", "no-such-network").to_string()).await?;
    let gates = env.field("pod/gated", ".spec.schedulingGates[*].name").await?;
    ensure!(gates == names::SCHEDULING_GATE, "{gates}");
    Ok(())
}

/// Running pods keep their interfaces, and have not been restarted.
async fn still_connected(env: &Env) -> Result<()> {
    fixtures::ping(env, "node1", "node2").await?;
    fixtures::ping(env, "node2", "node1").await?;
    let restarts = env.kubectl(&["get", "pods", "-o", RESTARTS]).await?;
    ensure!(restarts == "0 0", "restarts: {restarts}");
    env.wait_ready("app in (node1,node2)").await
}

async fn uninstall(env: Arc<Env>) -> Result<()> {
    two_pods(&env, "10.95.0").await?;
    let removed = async {
        fairlead::plugin(&env.cluster, &["uninstall"]).await?;
        is_gone(&env).await
    }
    .await;
    comes_back(&env, removed).await
}

async fn finish_a_bare_delete(env: Arc<Env>) -> Result<()> {
    two_pods(&env, "10.97.0").await?;
    let removed = async {
        fairlead::delete(&env.cluster).await?;
        fairlead::plugin(&env.cluster, &["uninstall", "--finish"]).await?;
        is_gone(&env).await
    }
    .await;
    comes_back(&env, removed).await
}

/// Only the interfaces of running pods are left.
async fn is_gone(env: &Env) -> Result<()> {
    nothing_left(env).await?;
    let gates = env.field("pod/gated", ".spec.schedulingGates").await?;
    ensure!(matches!(gates.as_str(), "" | "[]"), "nobody lifts {gates} any more");
    env.kubectl(&["delete", "pod", "gated", "--grace-period=0", "--force"]).await?;
    still_connected(env).await?;
    env.apply(&fixtures::pod("later", "whatever").to_string()).await?;
    env.wait_ready("app=later").await?;
    env.kubectl(&["delete", "pod", "later", PATIENTLY]).await?;
    Ok(())
}

/// fairlead is installed again, whatever came of its removal: it does not touch the interfaces of pods that run
/// without a record, and removes what nobody needs any more once they are gone.
async fn comes_back(env: &Env, removed: Result<()>) -> Result<()> {
    fairlead::install(&env.cluster, &Progress::silent()).await?;
    removed?;
    wait::stays(SETTLE, "pods keep their interfaces after the next installation", || still_connected(env))
        .await?;
    env.kubectl(&["delete", "pods", "--all", PATIENTLY]).await?;
    eventually("the bridges to go", || async {
        for node in env.cluster.nodes() {
            let bridge = node.output(&["ip", "link", "show", fixtures::UPLINK_BRIDGE]).await?;
            ensure!(!bridge.status.success(), "{} has it still", node.name());
        }
        Ok(())
    })
    .await
}

async fn nothing_left(env: &Env) -> Result<()> {
    eventually("everything of fairlead to be gone", || async {
        let kinds = "namespaces,clusterroles,clusterrolebindings,crds,priorityclasses,flowschemas,\
                     mutatingadmissionpolicies,validatingadmissionpolicies,\
                     mutatingadmissionpolicybindings,validatingadmissionpolicybindings";
        let listed = env.cluster.kubectl(&["get", kinds, "-o", "name"]).await?;
        let left: Vec<_> = listed.lines().filter(|name| name.contains("fairlead")).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        let phases =
            env.cluster.kubectl(&["get", "namespaces", "-o", "jsonpath={.items[*].status.phase}"]).await?;
        ensure!(!phases.contains("Terminating"), "namespaces are {phases}");
        let nodes: Value =
            serde_json::from_str(&env.cluster.kubectl(&["get", "nodes", "-o", "json"]).await?)?;
        for node in nodes["items"].as_array().into_iter().flatten() {
            let text = node.to_string();
            let at = text.find(names::GROUP);
            let around = at.and_then(|at| text.get(at.saturating_sub(60)..(at + 60).min(text.len())));
            ensure!(at.is_none(), "{} carries {around:?}", node["metadata"]["name"]);
        }
        Ok(())
    })
    .await
}
