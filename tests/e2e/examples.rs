//! The examples that are shipped work as they are: every file of `docs/examples`, in the order of their names.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Admission, Network, names};
use fairlead_tests::fairlead;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::{
    fixtures::{EVENTUALLY, PATIENTLY, QUARANTINE, eventually},
    trial::{Case, Env},
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples");

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("the_shipped_examples_work", examples)]
}

async fn examples(env: Arc<Env>) -> Result<()> {
    let label = format!("{}={}", names::ATTACH_LABEL, names::ATTACH_ENABLED);
    env.kubectl(&["label", "namespace", &env.namespace, &label]).await?;
    let files = files()?;
    ensure!(files.len() > 1, "no examples in {EXAMPLES}");
    for (name, text) in files {
        works(&env, &text).await.with_context(|| format!("docs/examples/{name}"))?;
    }
    selected(&env).await
}

/// Names and contents, by name.
fn files() -> Result<Vec<(String, String)>> {
    let entries = fs::read_dir(EXAMPLES)?.collect::<Result<Vec<_>, _>>()?;
    let mut files = Vec::new();
    for path in entries.iter().map(fs::DirEntry::path).filter(|path| is_yaml(path)) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, fs::read_to_string(&path)?));
    }
    files.sort();
    Ok(files)
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml")
}

/// Applies one file; its Networks are accepted and known to the policies, and all pods are Ready.
async fn works(env: &Env, text: &str) -> Result<()> {
    let applied = env.apply(text).await?;
    let networks: BTreeSet<&str> = created(&applied, "network.fairlead.dev/").collect();
    for network in &networks {
        env.delete_at_the_end(&format!("networks.fairlead.dev/{network}"));
        fairlead::wait_for_network(&env.cluster, network, EVENTUALLY).await?;
        // So that later trials need not wait for these addresses to rest.
        let shorter =
            json!({ "spec": { "ipam": { "quarantine": format!("{}s", QUARANTINE.as_secs()) } } }).to_string();
        let object = format!("networks.fairlead.dev/{network}");
        env.kubectl(&["patch", &object, "--type=merge", "-p", &shorter]).await?;
    }
    wait_for_admission(env, &networks).await?;
    for deployment in created(&applied, "deployment.apps/") {
        env.wait_rollout(deployment).await?;
    }
    for set in created(&applied, "statefulset.apps/") {
        env.kubectl(&["rollout", "status", &format!("statefulset/{set}"), PATIENTLY]).await?;
    }
    for pod in created(&applied, "pod/") {
        env.kubectl(&["wait", "pod", pod, "--for=condition=Ready", PATIENTLY]).await?;
    }
    Ok(())
}

/// Names in lines such as `network.fairlead.dev/blue created`.
fn created<'a>(applied: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    let names = applied.lines().filter_map(move |line| line.strip_prefix(kind));
    names.filter_map(|rest| rest.split_whitespace().next())
}

/// Until then a rule selects nobody.
async fn wait_for_admission(env: &Env, networks: &BTreeSet<&str>) -> Result<()> {
    let api: Api<Admission> = Api::all(env.cluster.client());
    eventually("the Networks to stand in the Admission", || async {
        let admission = api.get(names::ADMISSION).await?;
        let known: BTreeSet<&str> =
            admission.spec.networks.iter().map(|network| network.name.as_str()).collect();
        ensure!(networks.is_subset(&known), "it has {known:?}");
        Ok(())
    })
    .await
}

/// The pod that did not ask has its interface under the name that the rule gives.
async fn selected(env: &Env) -> Result<()> {
    let api: Api<Network> = Api::all(env.cluster.client());
    let network = api.get("storage").await?;
    let interface = network.spec.attach.first().and_then(|rule| rule.interface.clone()).context("no rule")?;
    let shown = env.kubectl(&["exec", "deployment/data", "-c", "app", "--", "ip", "-o", "addr"]).await?;
    ensure!(shown.contains(interface.as_str()), "{} gives {interface}, but: {shown}", network.name_any());
    Ok(())
}
