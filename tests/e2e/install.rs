//! `kubectl fairlead install` on a cluster that has fairlead already.

use std::sync::Arc;

use anyhow::{Result, ensure};
use fairlead_crds::names;
use fairlead_tests::{fairlead, layout};
use serde_json::Value;

use crate::{
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("install_takes_back_an_uninstall_that_was_broken_off", broken_off).alone()]
}

async fn broken_off(env: Arc<Env>) -> Result<()> {
    // An uninstallation lets go of the Networks of all other trials too.
    fixtures::wait_for_quiet(&env).await?;
    let net = Net::island(&env, "again", &["10.98.0.0/24"]);
    net.create(&env).await?;
    env.apply(&fixtures::pod("stays", net.name()).to_string()).await?;
    env.wait_ready("app=stays").await?;
    let begun = begin_to_uninstall(&env).await;
    let devices = format!("--devices={}", layout::UPLINK);
    fairlead::plugin(&env.cluster, &["install", &devices, "--image-pull-policy=Never"]).await?;
    begun?;
    for object in records_and_blocks(&env, net.name()).await? {
        let finalizers = object["metadata"]["finalizers"].to_string();
        ensure!(finalizers.contains(names::GROUP), "{object:#}");
    }
    env.kubectl(&["delete", "pod", "stays", PATIENTLY]).await?;
    eventually("the record to be released", || async {
        let left = env.kubectl(&["get", "podnetworks", "-o", "name"]).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// As far as the finalizers of the trial's own network.
async fn begin_to_uninstall(env: &Env) -> Result<()> {
    let cluster = &env.cluster;
    cluster.kubectl(&["delete", "validatingadmissionpolicybinding", "fairlead-admission"]).await?;
    let mark =
        ["patch", "admission", names::ADMISSION, "--type=merge", "-p", r#"{"spec":{"uninstalling":true}}"#];
    // The API server takes a moment to forget a binding.
    eventually("the Admission to be writable", || cluster.kubectl(&mark)).await?;
    eventually("the agents to let go", || async {
        let records =
            env.kubectl(&["get", "podnetworks", "-o", "jsonpath={.items[*].metadata.finalizers}"]).await?;
        ensure!(records.is_empty(), "{records}");
        Ok(())
    })
    .await
}

async fn records_and_blocks(env: &Env, network: &str) -> Result<Vec<Value>> {
    let records: Value = serde_json::from_str(&env.kubectl(&["get", "podnetworks", "-o", "json"]).await?)?;
    let selector = format!("spec.network={network}");
    let blocks =
        env.cluster.kubectl(&["get", "ipblocks", "--field-selector", &selector, "-o", "json"]).await?;
    let blocks: Value = serde_json::from_str(&blocks)?;
    let found: Vec<Value> = [records, blocks]
        .iter()
        .flat_map(|list| list["items"].as_array().cloned().unwrap_or_default())
        .collect();
    ensure!(found.len() >= 2, "a record and a block are expected: {found:#?}");
    Ok(found)
}
