//! Pods that the container runtime holds.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Reason, names};
use fairlead_tests::{Cluster, fairlead};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::json;

use crate::{
    agents,
    fixtures::{self, Net, PATIENTLY, eventually},
    guard,
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("hold_by_the_runtime_waits_for_a_strict_node_and_says_so", no_strict_node),
        Case::new("hold_is_the_runtimes_by_itself_once_all_nodes_are_strict", auto).alone(),
        Case::new("hold_keeps_pods_from_a_new_node_until_its_agent_is_ready", startup_taint).alone(),
    ]
}

/// On nodes of which none is strict, a Network that demands it keeps its pods from all of them.
async fn no_strict_node(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "strict", &["10.39.0.0/24"]).with("/hold", json!("Nri"));
    net.create(&env).await?;
    eventually("the Admission to say how the pods are held", || async {
        let path = format!("jsonpath={{.spec.networks[?(@.name=='{}')].hold}}", net.name());
        let admission = format!("admissions.{}/{}", names::GROUP, names::ADMISSION);
        let said = env.cluster.kubectl(&["get", &admission, "-o", &path]).await?;
        ensure!(said == "Nri", "it says {said:?}");
        Ok(())
    })
    .await?;
    env.apply(&fixtures::pod("patient", net.name()).to_string()).await?;
    eventually("the pod to say what it waits for", || async {
        let described = env.kubectl(&["describe", "pod", "patient"]).await?;
        ensure!(described.contains(&format!("{}: ", Reason::NoStrictNode)), "{described}");
        ensure!(described.contains("a node that is nri-strict, and no ready node is"), "{described}");
        ensure!(described.contains("FailedScheduling"), "an autoscaler does not see it: {described}");
        ensure!(!described.contains(names::GATE_CONTAINER), "{described}");
        Ok(())
    })
    .await?;
    // Another network with another hold takes nobody by surprise: the pod has to be created again.
    let gate = Net::island(&env, "gate", &["10.42.0.0/24"]).with("/hold", json!("Gate"));
    gate.create(&env).await?;
    env.apply(&fixtures::pod("gated", gate.name()).to_string()).await?;
    env.wait_ready("app=gated").await
}

/// A Network that says nothing about it: behind gates, then held by the runtime, then behind gates again.
async fn auto(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "open", &["10.43.0.0/24"]);
    net.create(&env).await?;
    guard::on_strict_nodes(&env, async {
        guard::wait_for_auto(&env.cluster, "Nri").await?;
        let api: Api<Pod> = Api::namespaced(env.cluster.client(), &env.namespace);
        // The API server takes a moment to see the parameter of its policies.
        let held = eventually("a pod without a gate", || async {
            env.kubectl(&["delete", "pod", "held", "--ignore-not-found", "--force", "--grace-period=0"])
                .await?;
            env.apply(&fixtures::pod("held", net.name()).to_string()).await?;
            let pod = api.get("held").await?;
            let inits = pod.spec.as_ref().and_then(|spec| spec.init_containers.clone()).unwrap_or_default();
            ensure!(inits.iter().all(|one| one.name != names::GATE_CONTAINER), "it has a gate");
            Ok(pod)
        })
        .await?;
        let selector = held.spec.and_then(|spec| spec.node_selector).unwrap_or_default();
        let strict = selector.get(names::HOLD_LABEL).context("no node selector")?;
        ensure!(strict == names::HOLD_NRI_STRICT, "{strict}");
        env.wait_ready("app=held").await?;
        let seen = fixtures::first_look(&env, &env.namespace, "held").await?;
        ensure!(seen.contains(" net1 "), "the first container saw\n{seen}");
        Ok(())
    })
    .await
}

/// A node joins before the image of the agent is on it.
async fn startup_taint(env: Arc<Env>) -> Result<()> {
    let always = r#"[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--startup-taint=always"}]"#;
    patch_controller(&env.cluster, always).await?;
    let outcome = joins(&env).await;
    patch_controller(
        &env.cluster,
        r#"[{"op": "remove", "path": "/spec/template/spec/containers/0/args/1"}]"#,
    )
    .await?;
    outcome
}

async fn patch_controller(cluster: &Cluster, patch: &str) -> Result<()> {
    let (namespace, object) = (names::INSTALL_NAMESPACE, format!("deployment/{}", names::CONTROLLER));
    cluster.kubectl(&["patch", "-n", namespace, &object, "--type=json", "-p", patch]).await?;
    cluster.kubectl(&["rollout", "status", "-n", namespace, &object, PATIENTLY]).await?;
    Ok(())
}

async fn joins(env: &Env) -> Result<()> {
    let grown = env.cluster.grow().await?;
    let outcome = async {
        let node = grown.nodes().last().context("a third node")?;
        wait_for_taint(&grown, &node.name(), true).await?;
        fairlead::bring(&grown, node).await?;
        agents::wait_ready(&grown).await?;
        wait_for_taint(&grown, &node.name(), false).await
    }
    .await;
    let shrunk = env.cluster.shrink(&grown).await;
    outcome.and(shrunk)
}

async fn wait_for_taint(cluster: &Cluster, node: &str, wanted: bool) -> Result<()> {
    let what = format!("{node} {} the start-up taint", if wanted { "to get" } else { "to lose" });
    eventually(&what, || async {
        let taints = cluster.kubectl(&["get", "node", node, "-o", "jsonpath={.spec.taints[*].key}"]).await?;
        let there = taints.split_whitespace().any(|key| key == names::AGENT_NOT_READY_TAINT);
        ensure!(there == wanted, "its taints are {taints:?}");
        Ok(())
    })
    .await
}
