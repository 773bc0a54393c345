//! Proves the cluster itself, so that a failure elsewhere is not the cluster's.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use fairlead_tests::{layout, wait};

use crate::{
    fixtures::{EVENTUALLY, PATIENTLY, eventually},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("cluster_pods_on_two_nodes_reach_each_other", pods_reach_each_other).bare(),
        Case::new("cluster_a_pod_reaches_the_api_by_its_cluster_ip", cluster_ip).bare(),
        Case::new("cluster_second_interfaces_share_a_link", second_interfaces_share_a_link).bare(),
        Case::new("cluster_processes_of_a_pod_are_found_and_killed", processes_of_a_pod).bare(),
        Case::new("cluster_the_audit_log_counts_requests", audit).bare(),
        Case::new("cluster_a_node_without_kubelet_comes_back", kubelet_restart).bare().alone(),
        Case::new("cluster_a_node_boots_again_after_a_power_cut", power_cut).bare().alone(),
    ]
}

fn sleeper(name: &str, node: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": "sleeper" } },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "app", "image": "busybox:stable", "command": ["sleep", "infinity"] }],
        },
    })
    .to_string()
}

async fn start_sleepers(env: &Env) -> Result<()> {
    for node in env.cluster.nodes() {
        env.apply(&sleeper(&format!("on-{}", node.name()), &node.name())).await?;
    }
    env.wait_ready("app=sleeper").await
}

async fn pods_reach_each_other(env: Arc<Env>) -> Result<()> {
    start_sleepers(&env).await?;
    let address = env.field("pod/on-node2", ".status.podIP").await?;
    env.exec("on-node1", &["ping", "-c", "2", "-W", "2", &address]).await?;
    let address = env.field("pod/on-node1", ".status.podIP").await?;
    env.exec("on-node2", &["ping", "-c", "2", "-W", "2", &address]).await?;
    Ok(())
}

async fn cluster_ip(env: Arc<Env>) -> Result<()> {
    env.apply(&sleeper("client", "node2")).await?;
    env.wait_ready("app=sleeper").await?;
    let service = layout::KUBERNETES_SERVICE.to_string();
    // That a node is Ready says nothing of the rules of its kube-proxy.
    eventually("an answer by the Service's address", || async {
        env.exec("client", &["nc", "-w", "3", &service, "443", "-e", "true"]).await.map(drop)
    })
    .await
}

async fn second_interfaces_share_a_link(env: Arc<Env>) -> Result<()> {
    let [first, second] = &env.cluster.nodes()[..2] else { unreachable!("the slice has two elements") };
    let addresses = ["198.51.100.1/24", "198.51.100.2/24"];
    for (node, address) in [first, second].into_iter().zip(addresses) {
        node.exec(&["ip", "address", "add", address, "dev", layout::UPLINK]).await?;
    }
    let ping = ["ping", "-c", "2", "-W", "2", "-I", layout::UPLINK, "198.51.100.2"];
    let busybox = [&["busybox"][..], &ping].concat();
    let pinged = first.exec(&busybox).await;
    for (node, address) in [first, second].into_iter().zip(addresses) {
        node.exec(&["ip", "address", "delete", address, "dev", layout::UPLINK]).await?;
    }
    pinged?;
    Ok(())
}

async fn processes_of_a_pod(env: Arc<Env>) -> Result<()> {
    env.apply(&sleeper("target", "node1")).await?;
    env.wait_ready("app=sleeper").await?;
    let uid = env.field("pod/target", ".metadata.uid").await?;
    let node = env.cluster.node("node1")?;
    let pids = node.container_pids(&uid, "app").await?;
    ensure!(pids.len() == 1, "one container has the processes {pids:?}");
    ensure!(node.sandbox_pids(&uid).await?.len() == 1, "a pod has one sandbox");
    let own = i32::try_from(std::process::id())?;
    ensure!(node.kill(own).is_err(), "a process outside of the node must be refused");
    node.kill(pids[0])?;
    eventually("the container to be restarted", || async {
        let count = env.field("pod/target", ".status.containerStatuses[0].restartCount").await?;
        ensure!(count == "1", "restarts: {count}");
        Ok(())
    })
    .await
}

async fn audit(env: Arc<Env>) -> Result<()> {
    let mark = env.cluster.audit_mark()?;
    let name = "counted";
    env.kubectl(&["create", "configmap", name]).await?;
    let namespace = env.namespace.clone();
    let ours = |request: &fairlead_tests::audit::Request| {
        let object = request.object_ref.clone().unwrap_or_default();
        object.namespace == namespace && object.resource == "configmaps" && request.is_write()
    };
    wait::promptly(Duration::from_secs(5), "the creation in the audit log", || async {
        let creations: Vec<_> = env
            .cluster
            .audit_since(mark, ours)?
            .into_iter()
            .filter(|request| request.uri.contains("kubectl"))
            .collect();
        ensure!(creations.len() == 1 && creations[0].succeeded(), "found {creations:?}");
        Ok(())
    })
    .await
}

async fn kubelet_restart(env: Arc<Env>) -> Result<()> {
    env.apply(&sleeper("survivor", "node2")).await?;
    env.wait_ready("app=sleeper").await?;
    let node = env.cluster.node("node2")?;
    node.stop_kubelet().await?;
    ensure!(node.check().is_err(), "a stopped kubelet must be noticed");
    node.start_kubelet()?;
    node.check()?;
    env.kubectl(&["delete", "pod", "survivor", PATIENTLY]).await?;
    Ok(())
}

async fn power_cut(env: Arc<Env>) -> Result<()> {
    env.apply(&sleeper("victim", "node2")).await?;
    env.wait_ready("app=sleeper").await?;
    let node = env.cluster.node("node2")?;
    node.kill_all().await?;
    node.boot().await?;
    env.cluster.wait_for_node(node, EVENTUALLY).await?;
    eventually("the pod to run again", || async {
        let count = env.field("pod/victim", ".status.containerStatuses[0].restartCount").await?;
        ensure!(count == "1", "restarts: {count}");
        Ok(())
    })
    .await?;
    env.wait_ready("app=sleeper").await?;
    env.exec("victim", &["true"]).await?;
    Ok(())
}
