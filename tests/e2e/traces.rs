//! What a pod leaves on its node and in the API, and the proof that nothing of it is left.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{IPBlock, PodNetwork, names};
use fairlead_tests::{node::Node, wait};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt, api::ListParams};
use serde::Deserialize;

use crate::{
    fixtures::{self, QUARANTINE},
    trial::Env,
};

/// Everything a running pod has of ours.
#[derive(Clone, Debug)]
pub struct Traces {
    pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Addresses in CIDR form.
    pub addresses: Vec<String>,
    /// Those, without the prefix, each with the block it was taken from.
    held: Vec<(String, String)>,
}

/// A link of ours on a node.
#[derive(Clone, Debug, Deserialize)]
struct Link {
    #[serde(rename = "ifname")]
    name: String,
    #[serde(rename = "ifalias", default)]
    alias: String,
}

/// Notes what a running pod leaves if nobody cleans up.
pub async fn of(env: &Env, pod: &str) -> Result<Traces> {
    let record = fixtures::record(env, pod).await?;
    let held: Vec<_> = record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses).collect();
    let traces = Traces {
        pod: pod.to_owned(),
        uid: record.spec.pod_uid.clone(),
        addresses: held.iter().map(|held| held.address.to_string()).collect(),
        held: held.iter().map(|held| (held.address.addr().to_string(), held.block.clone())).collect(),
    };
    let links = links_of(env, &traces.uid).await?;
    let interfaces = record.spec.attachments.len();
    ensure!(
        interfaces > 0 && links.len() == interfaces && !traces.held.is_empty(),
        "{pod} has {interfaces} interfaces with {:?}, and the links {links:?} on the nodes",
        traces.addresses
    );
    Ok(traces)
}

/// Links of ours on any node that belong to a pod, by the UID in their alias.
async fn links_of(env: &Env, uid: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for node in env.cluster.nodes() {
        let links = links(node).await?;
        found.extend(links.into_iter().filter(|link| link.alias.contains(uid)).map(|link| link.name));
    }
    Ok(found)
}

async fn links(node: &Node) -> Result<Vec<Link>> {
    let printed = node.exec(&["ip", "-j", "link"]).await?;
    let links: Vec<Link> = serde_json::from_str(&printed).context("reading what `ip` printed")?;
    Ok(links.into_iter().filter(|link| link.name.starts_with(names::LINK_PREFIX)).collect())
}

impl Traces {
    /// What is still there.
    async fn left(&self, env: &Env) -> Result<Vec<String>> {
        // In all namespaces: the trial's own may be gone.
        let records: Api<PodNetwork> = Api::all(env.cluster.client());
        let records = records.list(&ListParams::default()).await?;
        let own = |record: &PodNetwork| record.spec.pod_uid == self.uid;
        let mut left: Vec<_> =
            records.items.into_iter().filter(own).map(|record| record.name_any()).collect();
        left.extend(links_of(env, &self.uid).await?);
        Ok(left)
    }

    /// Waits until nothing is left but addresses that rest. How long it takes to look does not count.
    pub async fn wait_gone(&self, env: &Env, pauses: Duration) -> Result<()> {
        wait::promptly(pauses, &format!("every trace of {} to go", self.pod), || async {
            let left = self.left(env).await?;
            ensure!(left.is_empty(), "{left:?} are left");
            Ok(())
        })
        .await
    }

    /// Checks that every address the pod had rests until its quarantine is over. `since` is a moment at which
    /// the pod still had them.
    pub async fn rest_since(&self, env: &Env, since: SystemTime) -> Result<()> {
        let blocks: Api<IPBlock> = Api::all(env.cluster.client());
        let earliest = Timestamp::try_from(since)?;
        for (address, name) in &self.held {
            let block = blocks.get_opt(name).await?;
            let over = since.elapsed()? > QUARANTINE;
            let listed =
                block.and_then(|block| block.status).map(|status| status.quarantined).unwrap_or_default();
            let found =
                listed.iter().find(|one| one.address.to_string() == *address && one.pod_uid == self.uid);
            let Some(found) = found else {
                // Nothing can be said of an address whose time may be over.
                ensure!(over, "{address} does not rest in block {name}");
                continue;
            };
            let rests = found.until.0.duration_since(earliest);
            ensure!(rests >= QUARANTINE.try_into()?, "{address} rests for {rests} only");
        }
        Ok(())
    }
}
