//! Rebuilding everything from the API, the runtime and the kernel: there is no state file.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use anyhow::{Result, bail};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::call;
use crate::bring;
use crate::model::Pod;
use crate::net::Net;
use crate::plan::HostLink;
use crate::reconcile::Agent;
use crate::sandbox::cri::Runtime;

/// Oldest minor version of Kubernetes 1 that has mutating admission policies.
const KUBERNETES_MINOR: u32 = 36;

/// Refuses a cluster that is too old.
///
/// # Errors
/// One sentence that names what is missing.
pub async fn check_kubernetes(client: &Client) -> Result<()> {
    let version = call("ask the API server for its version", client.apiserver_version()).await?;
    let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    if version.major == "1" && minor.parse::<u32>().unwrap_or(0) < KUBERNETES_MINOR {
        bail!(
            "Kubernetes {} is too old: fairlead needs 1.{KUBERNETES_MINOR} for mutating admission policies",
            version.git_version
        );
    }
    Ok(())
}

/// Refuses a runtime that is too old; waits for one that does not answer yet.
///
/// # Errors
/// One sentence that names what is missing.
pub async fn check_runtime(runtime: &Runtime, cancel: &CancellationToken) -> Result<()> {
    loop {
        match runtime.version().await {
            Ok(version) => return Ok(version.supported()?),
            Err(error) => warn!(%error, "the container runtime does not answer yet"),
        }
        tokio::select! {
            () = cancel.cancelled() => bail!("stopped while waiting for the container runtime"),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

/// Takes the Lease, reads what the API server has of this node, and deals with links that have no record. What is
/// watched, and the sandboxes, must be known already; nothing is done in the kernel but cutting such links.
///
/// # Errors
/// If the kernel cannot be read. The API server is asked until it answers.
pub async fn recover(agent: &Agent) -> Result<()> {
    while let Err(error) = take_over(agent).await {
        warn!(%error, "cannot take over from the last agent yet");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    while let Err(error) = restore(agent).await {
        warn!(%error, "cannot read records and blocks yet");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    agent.set_orphans(orphans(agent)?);
    agent.adopt_all().await;
    // A release that was under way when the last agent ended may still arrive: what no record has is given anew.
    agent.end_unused_turns(true).await;
    Ok(())
}

/// Takes the Lease, and sees to it that no record changes any more by what an agent asked for that did not stop in order:
/// the API server may carry that out a minute later, and the address in it be given away by then.
async fn take_over(agent: &Agent) -> Result<()> {
    // Before the Lease is renewed, which ends what it says of the last agent.
    let left_open = agent.lease.is_left_open().await?;
    if left_open {
        let owners = agent.records.owners().await?;
        let recorded: HashSet<&str> = owners.iter().map(|owner| owner.uid.as_str()).collect();
        // Links without a record are adopted, and become one as they are.
        let linked: HashSet<String> =
            agent.net.host_links()?.iter().filter_map(uid_of).map(str::to_owned).collect();
        let waits = |pod: &&Pod| {
            let uid = &pod.key.uid;
            let done = pod.is_over() || pod.deleting || pod.host_network || recorded.contains(uid.as_str());
            pod.concerns_us() && !done && !linked.contains(uid)
        };
        let unrecorded: Vec<Pod> = {
            let view = agent.view.lock();
            view.pods.values().filter(|_| !view.uninstalling).filter(waits).cloned().collect()
        };
        agent.records.take_over(&owners).await?;
        agent.records.create_empty(&unrecorded).await?;
        info!(
            records = owners.len(),
            new = unrecorded.len(),
            "taken over from an agent that did not stop in order"
        );
    }
    Ok(agent.lease.take().await?)
}

fn uid_of(link: &HostLink) -> Option<&str> {
    link.alias.as_deref().and_then(bring::alias_uid)
}

/// Reads blocks and records into the view. The Networks must be there already.
///
/// # Errors
/// If the API server cannot be read.
async fn restore(agent: &Agent) -> Result<()> {
    let records = agent.records.list().await?;
    {
        let mut view = agent.view.lock();
        view.records = records.into_iter().map(|record| (record.key.uid.clone(), record)).collect();
    }
    // After the records: a block that is being deleted but still used is kept.
    agent.blocks.load().await?;
    let mut view = agent.view.lock();
    for (pod, held) in view.restore_records() {
        warn!(pod = %pod, address = %held.address, block = %held.block, "the address is not in a block of this node");
    }
    view.records.values().for_each(|record| agent.know_links(record));
    info!(records = view.records.len(), "view rebuilt");
    Ok(())
}

/// Host links of ours without a record. Those of pods that are gone are cut; those of pods that live are given
/// back their addresses if this node still owns them, and cut otherwise.
///
/// # Errors
/// If the kernel cannot be read.
fn orphans(agent: &Agent) -> Result<BTreeMap<String, Vec<HostLink>>> {
    let links = agent.net.host_links()?;
    let view = agent.view.lock();
    let mut orphans: BTreeMap<String, Vec<HostLink>> = BTreeMap::new();
    for link in links {
        let uid = uid_of(&link).unwrap_or_default().to_owned();
        if !view.records.contains_key(&uid) {
            orphans.entry(uid).or_default().push(link);
        }
    }
    // A sandbox that the runtime still runs for a pod that the API server does not know is cut off: its address may
    // be given to another.
    let lives = |uid: &String| view.pods.contains_key(uid);
    let (living, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
        orphans.into_iter().partition(|(uid, _)| lives(uid));
    drop(view);
    cut(agent.net.as_ref(), &gone);
    Ok(living)
}

fn cut(net: &dyn Net, orphans: &BTreeMap<String, Vec<HostLink>>) {
    for (uid, links) in orphans.iter().filter(|(uid, _)| !uid.is_empty()) {
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        match net.delete_host_links(&names) {
            Ok(()) => info!(uid = %uid, links = ?names, "links of a pod that is gone are cut"),
            Err(error) => warn!(uid = %uid, %error, "cannot cut links of a pod that is gone"),
        }
    }
}
