//! fairlead goes, and takes everything but running pods' interfaces with it.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use fairlead_crds::names;
use fairlead_tests::{fairlead, progress::Progress, wait};
use serde_json::Value;

use crate::{
    fixtures::{self, Net, SOON},
    trial::{Case, Env},
};

/// The trials of this module. They are the last ones, and put fairlead back.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("uninstall_keeps_running_pods_and_leaves_nothing_else", uninstall)
            .alone()
            .timeout(Duration::from_secs(400)),
        Case::new("uninstall_finishes_a_bare_delete", finish_a_bare_delete)
            .alone()
            .timeout(Duration::from_secs(400)),
    ]
}

async fn two_pods(env: &Env, prefix: &str) -> Result<()> {
    let net = Net::uplink(env, "bye", &[&format!("{prefix}.0/24")]);
    net.create(env).await?;
    for node in ["node1", "node2"] {
        env.apply(&fixtures::on_node(fixtures::pod(node, net.name()), node).to_string()).await?;
        env.wait_ready(&format!("app={node}"), SOON).await?;
    }
    Ok(())
}

async fn still_connected(env: &Env) -> Result<()> {
    let found = fixtures::addresses(env, "node2", "net1").await?;
    let address = found.first().and_then(|cidr| cidr.split('/').next()).unwrap_or_default();
    env.exec("node1", &["ping", "-I", "net1", "-c", "2", "-W", "2", address]).await?;
    Ok(())
}

async fn uninstall(env: Arc<Env>) -> Result<()> {
    two_pods(&env, "10.95.0").await?;
    let outcome = async {
        fairlead::plugin(&env.cluster, &["uninstall"]).await?;
        nothing_left(&env).await?;
        still_connected(&env).await?;
        a_new_pod_is_not_held(&env).await
    }
    .await;
    fairlead::install(&env.cluster, &Progress::silent()).await?;
    outcome
}

async fn finish_a_bare_delete(env: Arc<Env>) -> Result<()> {
    two_pods(&env, "10.97.0").await?;
    let outcome = async {
        fairlead::delete(&env.cluster).await?;
        fairlead::plugin(&env.cluster, &["uninstall", "--finish"]).await?;
        nothing_left(&env).await?;
        still_connected(&env).await?;
        a_new_pod_is_not_held(&env).await
    }
    .await;
    fairlead::install(&env.cluster, &Progress::silent()).await?;
    outcome
}

async fn nothing_left(env: &Env) -> Result<()> {
    wait::until(SOON, "everything of fairlead to be gone", || async {
        let kinds = "namespaces,clusterroles,clusterrolebindings,crds,priorityclasses,flowschemas,\
                     mutatingadmissionpolicies,validatingadmissionpolicies,\
                     mutatingadmissionpolicybindings,validatingadmissionpolicybindings";
        let listed = env.cluster.kubectl(&["get", kinds, "-o", "name"]).await?;
        let left: Vec<_> = listed.lines().filter(|name| name.contains("fairlead")).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        let nodes: Value =
            serde_json::from_str(&env.cluster.kubectl(&["get", "nodes", "-o", "json"]).await?)?;
        for node in nodes["items"].as_array().into_iter().flatten() {
            let ours =
                [&node["spec"]["taints"], &node["status"]["capacity"], &node["metadata"]["annotations"]];
            let text = ours.map(ToString::to_string).join(" ");
            ensure!(!text.contains(names::GROUP), "{} carries {text}", node["metadata"]["name"]);
        }
        Ok(())
    })
    .await
}

async fn a_new_pod_is_not_held(env: &Env) -> Result<()> {
    env.apply(&fixtures::pod("later", "whatever").to_string()).await?;
    env.wait_ready("app=later", SOON).await
}
