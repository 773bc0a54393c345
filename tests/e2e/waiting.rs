//! A pod that cannot get its networks waits, says why in one sentence, and goes on by itself.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use fairlead_crds::{Reason, names};
use fairlead_tests::wait;
use serde_json::json;

use crate::{
    agents,
    fixtures::{self, EVENTUALLY, Net, PATIENTLY},
    traces,
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("waiting_for_a_network_that_does_not_exist_yet", missing_network),
        Case::new("waiting_for_an_address_of_a_full_range", full_range),
        Case::new("waiting_for_a_readable_annotation", invalid_annotation),
        Case::new("waiting_for_a_namespace_to_be_allowed", forbidden_namespace),
        Case::new("waiting_for_an_agent_new_pods_are_held_and_deleted_pods_do_not_wait", without_an_agent)
            .alone(),
    ]
}

/// Waits until a pod says that it waits, and why: its record, its gate, and `kubectl get pods`.
async fn waits_because(env: &Env, pod: &str, reason: Reason, naming: &str) -> Result<()> {
    let sentence = fixtures::wait_for_reason(env, pod, &[reason]).await?;
    ensure!(sentence.contains(naming), "{sentence:?} does not name {naming}");
    fixtures::wait_for_gate(env, pod, reason.as_str()).await?;
    fixtures::is_held(env, pod).await
}

async fn missing_network(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "late", &["10.30.0.0/24"]);
    env.apply(&fixtures::bound(fixtures::pod("early", net.name()), "node1").to_string()).await?;
    waits_because(&env, "early", Reason::NetworkNotFound, net.name()).await?;
    net.create(&env).await?;
    env.wait_ready("app=early").await
}

async fn full_range(env: Arc<Env>) -> Result<()> {
    // A /30 has two addresses to hand out. One node only: another would claim one of them ahead.
    let net = Net::island(&env, "tiny", &["10.31.0.0/30"])
        .with("/exhaustion", json!({ "resource": false, "taint": "None" }))
        .with("/nodeSelector", json!({ "kubernetes.io/hostname": "node1" }));
    net.create(&env).await?;
    let pod = |name: &str| fixtures::bound(fixtures::pod(name, net.name()), "node1").to_string();
    for name in ["one", "two"] {
        env.apply(&pod(name)).await?;
        env.wait_ready(&format!("app={name}")).await?;
    }
    env.apply(&pod("three")).await?;
    waits_because(&env, "three", Reason::NoAddresses, net.name()).await?;
    env.kubectl(&["delete", "pod", "one", PATIENTLY]).await?;
    env.wait_ready("app=three").await
}

async fn invalid_annotation(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "plain", &["10.32.0.0/24"]);
    net.create(&env).await?;
    let typo = format!("{}@net1@net2", net.name());
    env.apply(&fixtures::pod("typo", &typo).to_string()).await?;
    waits_because(&env, "typo", Reason::InvalidRequest, "").await?;
    let correct = format!("{}={}", names::NETWORKS_ANNOTATION, net.name());
    env.kubectl(&["annotate", "--overwrite", "pod", "typo", &correct]).await?;
    env.wait_ready("app=typo").await
}

async fn forbidden_namespace(env: Arc<Env>) -> Result<()> {
    let label = env.unique("allowed");
    let allowed = json!({ "from": "Selector", "selector": { "matchLabels": { &label: "yes" } } });
    let net = Net::island(&env, "club", &["10.33.0.0/24"]).with("/allowedNamespaces", allowed);
    net.create(&env).await?;
    env.apply(&fixtures::pod("guest", net.name()).to_string()).await?;
    waits_because(&env, "guest", Reason::NamespaceNotAllowed, &env.namespace).await?;
    env.kubectl(&["label", "namespace", &env.namespace, &format!("{label}=yes")]).await?;
    env.wait_ready("app=guest").await
}

async fn without_an_agent(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "alone", &["10.34.0.0/24"]);
    net.create(&env).await?;
    env.apply(&fixtures::pod("victim", net.name()).to_string()).await?;
    env.wait_ready("app=victim").await?;
    let victim = traces::of(&env, "victim").await?;
    agents::while_stopped(&env.cluster, async {
        env.apply(&fixtures::pod("patient", net.name()).to_string()).await?;
        // Its record stays, and does not keep the pod.
        env.kubectl(&["delete", "pod", "victim", PATIENTLY]).await?;
        let said = fixtures::wait_for_gate(&env, "patient", "has not seen this pod").await?;
        ensure!(said.contains("kubectl get podnetwork"), "it does not say where to look: {said}");
        let held = || fixtures::is_held(&env, "patient");
        wait::stays(Duration::from_secs(2), "the pod is held while no agent runs", held).await
    })
    .await?;
    env.wait_ready("app=patient").await?;
    victim.wait_gone(&env, EVENTUALLY).await
}
