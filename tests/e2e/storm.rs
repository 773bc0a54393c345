//! Pods start in waves while agents are killed, die with their guards, or are upgraded: whatever happens, a pod's first
//! container finds its interface.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fairlead_tests::fairlead;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;

use crate::{
    agents::{self, Victims},
    fixtures::{self, Net, eventually},
    guard,
    trial::{Case, Env},
    watch::Ping,
};

/// Pods of a trial; `FAIRLEAD_STORM_PODS` asks for another number.
const PODS: u32 = 60;
/// Pods that start together.
const WAVE: u32 = 20;
/// Pods that start during an upgrade.
const ROLLOUT: u32 = 100;
const LONG: Duration = Duration::from_secs(3600);

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("storm_every_first_container_behind_a_gate_sees_its_interface", gated)
            .alone()
            .timeout(LONG),
        Case::new("storm_every_first_container_on_strict_nodes_sees_its_interface", strict)
            .alone()
            .timeout(LONG),
        Case::new("storm_of_a_rollout_during_an_upgrade_starts_nothing_unheld", upgrade)
            .alone()
            .timeout(LONG),
    ]
}

fn held(env: &Env, hold: &str) -> Net {
    Net::island(env, "storm", &["10.67.0.0/24"]).with("/hold", hold.into())
}

async fn gated(env: Arc<Env>) -> Result<()> {
    let net = held(&env, "Gate");
    net.create(&env).await?;
    waves(&env, &net).await
}

async fn strict(env: Arc<Env>) -> Result<()> {
    let net = held(&env, "Nri");
    net.create(&env).await?;
    guard::on_strict_nodes(&env, waves(&env, &net)).await
}

/// In turn, the agent of a node dies alone, or with its guard.
async fn waves(env: &Env, net: &Net) -> Result<()> {
    let pods = env::var("FAIRLEAD_STORM_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(PODS);
    let nodes = env.cluster.nodes();
    for wave in 0..pods.div_ceil(WAVE) {
        let name = format!("wave-{wave}");
        env.apply(&fixtures::deployment(&name, WAVE, net.name()).to_string()).await?;
        tokio::time::sleep(Duration::from_millis(u64::from(wave) * 700 % 3000)).await;
        let victim = &nodes[wave as usize / 2 % nodes.len()];
        if wave % 2 == 0 {
            Victims::find(&env.cluster, std::slice::from_ref(victim)).await?.kill()?;
        } else {
            agents::kill_and_replace(&env.cluster, victim).await?;
        }
        env.wait_rollout(&name).await?;
        all_saw_their_interface(env, &name, WAVE).await.with_context(|| name.clone())?;
        env.kubectl(&["delete", "deployment", &name, "--wait=false"]).await?;
        agents::wait_ready(&env.cluster).await?;
    }
    Ok(())
}

/// What the first container of each pod saw has the address that the pod's record has, and no record says that anything
/// started before.
async fn all_saw_their_interface(env: &Env, app: &str, count: u32) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(env.cluster.client(), &env.namespace);
    let pods = api.list(&ListParams::default().labels(&format!("app={app}"))).await?.items;
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in &pods {
        let name = pod.metadata.name.as_deref().context("a name")?;
        for line in fixtures::seen_first(pod).lines().filter(|line| line.contains(" net1 ")) {
            seen.entry(name).or_default().extend(line.split_whitespace());
        }
    }
    ensure!(seen.len() == count as usize, "{} of {count} first containers saw net1", seen.len());
    for record in fixtures::records(env).await? {
        let Some(words) = seen.get(record.spec.pod_name.as_str()) else { continue };
        let held = record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses);
        for address in held.map(|held| held.address.to_string()) {
            ensure!(words.contains(address.as_str()), "{} did not see {address}", record.spec.pod_name);
        }
        let conditions = record.status.map(|status| status.conditions).unwrap_or_default();
        let late = conditions.iter().find(|one| one.type_ == "Held" && one.status == "False");
        ensure!(late.is_none(), "{} started unheld", record.spec.pod_name);
    }
    Ok(())
}

async fn upgrade(env: Arc<Env>) -> Result<()> {
    let net = held(&env, "Nri");
    net.create(&env).await?;
    guard::on_strict_nodes(&env, rollout(&env, &net)).await
}

async fn rollout(env: &Env, net: &Net) -> Result<()> {
    env.apply(&fixtures::deployment("calm", 4, net.name()).to_string()).await?;
    env.wait_rollout("calm").await?;
    let mut pings = Vec::new();
    for node in env.cluster.nodes() {
        pings.push(Ping::start(env, node).await?);
    }
    env.apply(&fixtures::deployment("rollout", ROLLOUT, net.name()).to_string()).await?;
    // Some are attached, most are not.
    eventually("the rollout to begin", || async {
        let attached = fixtures::records(env).await?.into_iter().filter_map(|record| record.status);
        let attached = attached.filter(fixtures::is_ready).count();
        ensure!(attached >= 10, "{attached}");
        Ok(())
    })
    .await?;
    agents::patch_template(
        &env.cluster,
        &json!({ "metadata": { "annotations": { "trial": env.namespace } } }),
    )
    .await?;
    fairlead::wait_until_ready(&env.cluster).await?;
    env.wait_rollout("rollout").await?;
    all_saw_their_interface(env, "rollout", ROLLOUT).await?;
    let messages = "jsonpath={.items[*].message}";
    let refusals = env.kubectl(&["get", "events", "--field-selector=reason=Failed", "-o", messages]).await?;
    // A machine that stands still for the runtime's two seconds costs a guard its connection, upgrade or not.
    let stood_still = refusals.contains(guard::LATE);
    ensure!(
        stood_still || !refusals.contains(guard::NO_PLUGIN),
        "no guard was connected for a while: {refusals}"
    );
    for ping in pings {
        ping.check(env).await?;
    }
    Ok(())
}
