//! What a node has left is something the scheduler knows, and a full range harms nobody else.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use serde_json::json;

use crate::{
    fixtures::{self, Net, PATIENTLY, QUARANTINE, eventually},
    trial::{Case, Env},
};

const ADDRESSES: usize = 4;
const RESTARTS: &str = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("capacity_pods_without_an_address_stay_pending", pending),
        // Its taint would keep the pods of other trials away.
        Case::new("capacity_a_taint_comes_and_goes", taint).alone(),
    ]
}

/// Six addresses of a /29, less a gateway and an excluded one.
fn four_addresses(env: &Env, name: &str, prefix: &str, taint: &str) -> Net {
    Net::island(env, name, &[&format!("{prefix}.0/29")])
        .with("/ipam/ranges/0/gateway", format!("{prefix}.1").into())
        .with("/ipam/ranges/0/exclude", json!([format!("{prefix}.6/32")]))
        .with("/exhaustion", json!({ "resource": true, "taint": taint }))
}

async fn count(env: &Env, phase: &str) -> Result<usize> {
    let selector = format!("--field-selector=status.phase={phase}");
    Ok(env.kubectl(&["get", "pods", &selector, "-l", "app=many", "-o", "name"]).await?.lines().count())
}

async fn wait_for_count(env: &Env, running: usize, pending: usize) -> Result<()> {
    eventually(&format!("{running} pods to run and {pending} to be Pending"), || async {
        let found = (count(env, "Running").await?, count(env, "Pending").await?);
        ensure!(found == (running, pending), "{} run, {} are Pending", found.0, found.1);
        Ok(())
    })
    .await
}

async fn taints(env: &Env, net: &Net) -> Result<Vec<String>> {
    let key = names::taint_key(names::TAINT_PREFIX, net.name());
    let path = format!("jsonpath={{.items[*].spec.taints[?(@.key=='{key}')].effect}}");
    let effects = env.cluster.kubectl(&["get", "nodes", "-o", &path]).await?;
    Ok(effects.split_whitespace().map(str::to_owned).collect())
}

async fn pending(env: Arc<Env>) -> Result<()> {
    let net = four_addresses(&env, "four", "10.60.0", "PreferNoSchedule");
    net.create(&env).await?;
    let mut many = fixtures::deployment("many", 6, net.name());
    many["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([]);
    env.apply(&many.to_string()).await?;
    wait_for_count(&env, ADDRESSES, 2).await?;
    let resource = names::resource(net.name());
    eventually("the scheduler to name the network", || async {
        let events = env.kubectl(&["get", "events", "--field-selector=reason=FailedScheduling"]).await?;
        ensure!(events.contains(&format!("Insufficient {resource}")), "{events}");
        Ok(())
    })
    .await?;
    eventually("the taint on both nodes", || async {
        let found = taints(&env, &net).await?;
        ensure!(found == ["PreferNoSchedule", "PreferNoSchedule"], "{found:?}");
        Ok(())
    })
    .await?;
    unrelated_pods_schedule(&env).await?;
    let before = running(&env).await?;
    ensure!(before.len() == ADDRESSES, "{before:?} run");
    let (gone, stay) = before.split_first().context("a running pod")?;
    let asked = Instant::now();
    env.kubectl(&["delete", gone, PATIENTLY]).await?;
    // The Deployment makes another one in its place, and one of three is let in.
    let after = eventually("another pod to be let in", || async {
        let after = running(&env).await?;
        ensure!(after.len() == ADDRESSES && !after.contains(gone), "{after:?} run");
        Ok(after)
    })
    .await?;
    let took = asked.elapsed();
    ensure!(took >= QUARANTINE, "an address was used again after {took:?}");
    ensure!(stay.iter().all(|pod| after.contains(pod)), "of {stay:?}, {after:?} run");
    wait_for_count(&env, ADDRESSES, 2).await?;
    let restarts = env.kubectl(&["get", "pods", "-l", "app=many", "-o", RESTARTS]).await?;
    ensure!(!restarts.contains(['1', '2', '3']), "restarts: {restarts}");
    Ok(())
}

/// Pods whose own container runs.
async fn running(env: &Env) -> Result<Vec<String>> {
    let phase = "--field-selector=status.phase=Running";
    let listed = env.kubectl(&["get", "pods", "-l", "app=many", phase, "-o", "name"]).await?;
    Ok(listed.lines().map(str::to_owned).collect())
}

async fn unrelated_pods_schedule(env: &Env) -> Result<()> {
    let mut pod = fixtures::pod("unrelated", "");
    pod["metadata"]["annotations"] = json!({});
    env.apply(&pod.to_string()).await?;
    env.wait_ready("app=unrelated").await
}

async fn taint(env: Arc<Env>) -> Result<()> {
    let net = four_addresses(&env, "hard", "10.61.0", "NoSchedule");
    net.create(&env).await?;
    env.apply(&fixtures::deployment("many", 4, net.name()).to_string()).await?;
    wait_for_count(&env, ADDRESSES, 0).await?;
    eventually("the taint on both nodes", || async {
        let found = taints(&env, &net).await?;
        ensure!(found == ["NoSchedule", "NoSchedule"], "{found:?}");
        Ok(())
    })
    .await?;
    ensure!(count(&env, "Running").await? == ADDRESSES, "running pods must stay");
    env.kubectl(&["delete", "deployment", "many", PATIENTLY]).await?;
    eventually("the taint to go", || async {
        let found = taints(&env, &net).await?;
        ensure!(found.is_empty(), "{found:?}");
        Ok(())
    })
    .await
}
