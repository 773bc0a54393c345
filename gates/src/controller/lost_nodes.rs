//! Driver: records, blocks, Leases and `NodeNetworks` of nodes that are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use fairlead_crds::ip_block::Released;
use fairlead_crds::{IPBlock, IPBlockStatus, NodeNetwork, PodNetwork, names};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, PatchParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::api::{CallError, Caller, status_patch};
use super::lost::{self, Fate, Fence, Leases, PodState};
use super::metrics::{Kind, Verb};
use super::remains;
use super::run::Driver;
use super::view::View;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between two looks at all records of the cluster.
const SCAN: Duration = Duration::from_secs(600);
/// The quarantine of addresses whose Network is gone; the default of `ipam.quarantine`.
const QUARANTINE: Duration = Duration::from_secs(130);

/// The driver.
pub struct LostNodes {
    caller: Caller,
    grace: Duration,
    leases: Leases,
    with_records: BTreeSet<String>,
    scanned: Option<Instant>,
    looked: Option<Instant>,
    /// Blocks that were closed, by UID, with their node: a returning agent sees that before the block is given up.
    closed: HashMap<String, (String, Instant)>,
    wall: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl LostNodes {
    /// A driver that begins its term. `grace`: how long a Lease must have been expired.
    pub fn new(caller: Caller, grace: Duration) -> Self {
        Self {
            caller,
            grace,
            leases: Leases::default(),
            with_records: BTreeSet::new(),
            scanned: None,
            looked: None,
            closed: HashMap::new(),
            wall: Box::new(Timestamp::now),
        }
    }

    /// The same with another clock for the times that people read.
    #[must_use]
    pub fn by_clock(self, wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { wall: Box::new(wall), ..self }
    }

    async fn pass(&mut self, view: &View) -> Result<(), CallError> {
        if self.scanned.is_none_or(|at| at.elapsed() >= SCAN) {
            self.with_records = remains::nodes_with_records(&self.caller).await?;
            self.scanned = Some(Instant::now());
        }
        let held = remains::leases(&self.caller).await?;
        let mut nodes = self.with_records.clone();
        nodes.extend(view.offers.all().iter().map(|offer| offer.node.clone()));
        let owners = view.blocks.all().into_iter().map(|block| block.node.clone());
        nodes.extend(owners.filter(|node| !node.is_empty()));
        self.leases.observe(&held, &nodes, Instant::now().into_std());
        for node in held.keys().chain(&nodes).collect::<BTreeSet<_>>() {
            if !self.leases.is_silent(node, self.grace, Instant::now().into_std()) {
                self.closed.retain(|_, (owner, _)| owner != node);
                continue;
            }
            match self.clear(node, view).await {
                Ok(()) => {}
                Err(error) if error.is_conflict() => {
                    debug!(node, %error, "something of a lost node changed meanwhile");
                }
                Err(error) => warn!(node, %error, "lost node was not cleared to the end"),
            }
        }
        Ok(())
    }

    /// Who says that the node is fenced off. A Node that is missing in the copy is looked up once more.
    async fn fence(&self, node: &str, view: &View) -> Result<Fence, CallError> {
        let asserted = view.offers.get(node).is_some_and(|offer| offer.fenced);
        if let Some(found) = view.nodes.get(node) {
            return Ok(if asserted || found.out_of_service { Fence::Asserted } else { Fence::None });
        }
        let nodes: Api<core::Node> = Api::all(self.caller.client.clone());
        let found = self.caller.read("get a node", nodes.get_metadata_opt(node)).await?;
        Ok(if found.is_none() { Fence::Deleted } else { Fence::None })
    }

    /// One step for one node whose agent is silent.
    async fn clear(&mut self, node: &str, view: &View) -> Result<(), CallError> {
        let fence = self.fence(node, view).await?;
        let records = remains::records_of(&self.caller, node).await?;
        let pods = if records.is_empty() { BTreeMap::new() } else { self.pods_of(node).await? };
        let mut kept = Vec::new();
        for record in records {
            let pod = pods.get(&record.spec.pod_uid).copied().unwrap_or(PodState::Gone);
            match lost::fate(fence, record.metadata.deletion_timestamp.is_some(), pod) {
                Fate::Keep => kept.push(record),
                _ if !self.is_still_silent(node).await? => return Ok(()),
                fate => self.dispose(&record, fate, view).await?,
            }
        }
        if fence == Fence::None {
            return Ok(());
        }
        let blocks_left = self.clear_blocks(node, &kept, view).await?;
        if fence == Fence::Deleted && kept.is_empty() && !blocks_left {
            self.forget(node, view).await?;
        }
        Ok(())
    }

    /// Whether the agent has not come back since its Lease was looked at: asked right before what cannot be undone.
    async fn is_still_silent(&self, node: &str) -> Result<bool, CallError> {
        let version = remains::lease_version(&self.caller, node).await?;
        Ok(self.leases.is_unchanged(node, version.as_deref()))
    }

    /// The pods bound to a node, by UID; a pod never changes its node. A quorum read.
    async fn pods_of(&self, node: &str) -> Result<BTreeMap<String, PodState>, CallError> {
        let pods: Api<core::Pod> = Api::all(self.caller.client.clone());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = self.caller.read("list the pods of a node", pods.list(&of_node)).await?;
        let state = |pod: &core::Pod| match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Succeeded" | "Failed") => PodState::Over,
            _ => PodState::There,
        };
        Ok(pods.items.iter().map(|pod| (pod.uid().unwrap_or_default(), state(pod))).collect())
    }

    /// First the addresses are accounted for on their blocks, then the record goes: in between, both say so.
    async fn dispose(&self, record: &PodNetwork, fate: Fate, view: &View) -> Result<(), CallError> {
        let pod = format!("{}/{}", record.namespace().unwrap_or_default(), record.spec.pod_name);
        for ((block, uid), addresses) in lost::addresses(record) {
            self.account(&block, &uid, &addresses, record, fate, view).await?;
        }
        let api: Api<PodNetwork> =
            Api::namespaced(self.caller.client.clone(), &record.namespace().unwrap_or_default());
        let going = match record.metadata.deletion_timestamp {
            Some(_) => Some(record.clone()),
            None => self.delete(&api, Kind::PodNetwork, record).await?,
        };
        if let Some(record) = going {
            remains::drop_record_finalizer(&self.caller, &record).await?;
        }
        info!(pod, node = record.spec.node_name, fate = ?fate, "record of a lost node removed");
        Ok(())
    }

    async fn account(
        &self,
        name: &str,
        uid: &str,
        addresses: &[lost::Had],
        record: &PodNetwork,
        fate: Fate,
        view: &View,
    ) -> Result<(), CallError> {
        let blocks: Api<IPBlock> = Api::all(self.caller.client.clone());
        let block = self.caller.read("get an ipblock", blocks.get_opt(name)).await?;
        // Claimed anew by another node: the address is not this record's any more.
        let Some(block) = block.filter(|block| block.metadata.uid.as_deref() == Some(uid)) else {
            return Ok(());
        };
        let (status, pod_uid) = (block.status.clone().unwrap_or_default(), &record.spec.pod_uid);
        // The turn of a reserved address ends with its node's blocks; whoever comes next is of the same claim.
        if block.spec.claim.is_some() && fate == Fate::Release {
            return Ok(());
        }
        let wanted = if fate == Fate::Hold {
            let pod = format!("{}/{}", record.namespace().unwrap_or_default(), record.spec.pod_name);
            lost::hold(&status, addresses, &pod, pod_uid, (self.wall)())
        } else {
            lost::quarantine(&status, addresses, pod_uid, self.until(&block, view), (self.wall)())
        };
        self.write_status(&block, &status, &wanted).await
    }

    async fn write_status(
        &self,
        block: &IPBlock,
        old: &IPBlockStatus,
        new: &IPBlockStatus,
    ) -> Result<(), CallError> {
        if old == new {
            return Ok(());
        }
        let (api, name): (Api<IPBlock>, _) = (Api::all(self.caller.client.clone()), block.name_any());
        let whole = serde_json::json!({ "quarantined": new.quarantined, "held": new.held });
        let patch = status_patch(&block.resource_version().unwrap_or_default(), &whole);
        self.caller
            .write(
                Verb::Patch,
                Kind::IPBlock,
                &name,
                api.patch_status(&name, &PatchParams::default(), &patch),
            )
            .await?;
        Ok(())
    }

    /// Closes blocks that nothing needs and gives up those that were closed long enough ago; says whether any is left.
    async fn clear_blocks(
        &mut self,
        node: &str,
        kept: &[PodNetwork],
        view: &View,
    ) -> Result<bool, CallError> {
        let blocks = remains::blocks_of(&self.caller, node).await?;
        let used: BTreeSet<String> =
            kept.iter().flat_map(|record| lost::addresses(record).into_keys().map(|(_, uid)| uid)).collect();
        for block in &blocks {
            let (uid, status) = (block.uid().unwrap_or_default(), block.status.clone().unwrap_or_default());
            if block.spec.claim.is_some() {
                self.end_turn(block, used.contains(&uid)).await?;
                continue;
            }
            let freed = lost::free_held(&status, self.until(block, view), (self.wall)());
            if freed != status {
                self.write_status(block, &status, &freed).await?;
            } else if lost::is_unused(&status, used.contains(&uid)) {
                self.give_up(block, &status, view).await?;
            }
        }
        Ok(!blocks.is_empty())
    }

    /// The node is fenced and no record holds the reserved address: its turn is over, and what was held on it is free.
    async fn end_turn(&self, block: &IPBlock, used: bool) -> Result<(), CallError> {
        let Some(holder) = block.open_turn().filter(|_| !used) else { return Ok(()) };
        let (api, name): (Api<IPBlock>, _) = (Api::all(self.caller.client.clone()), block.name_any());
        let released = Released { turn: holder.turn, at: Time((self.wall)()) };
        let status = serde_json::json!({ "released": released, "held": [], "quarantined": [] });
        let (patch, params) =
            (status_patch(&block.resource_version().unwrap_or_default(), &status), PatchParams::default());
        let call = api.patch_status(&name, &params, &patch);
        self.caller.write(Verb::Patch, Kind::IPBlock, &name, call).await?;
        info!(block = name, node = block.spec.node_name, "turn of a reserved address on a lost node ended");
        Ok(())
    }

    /// An agent that comes back sees the deletion before the block can be claimed by another node.
    async fn give_up(
        &mut self,
        block: &IPBlock,
        status: &IPBlockStatus,
        view: &View,
    ) -> Result<(), CallError> {
        let (api, node): (Api<IPBlock>, _) = (Api::all(self.caller.client.clone()), &block.spec.node_name);
        if block.metadata.deletion_timestamp.is_none() {
            self.delete(&api, Kind::IPBlock, block).await?;
            info!(block = block.name_any(), node, "block of a lost node closed");
        }
        let uid = block.uid().unwrap_or_default();
        let (_, since) = self.closed.entry(uid.clone()).or_insert_with(|| (node.clone(), Instant::now()));
        let rests = lost::stays_closed(status, quarantine(block, view));
        if since.elapsed() >= rests && self.is_still_silent(node).await? {
            remains::drop_block_finalizer(&self.caller, block).await?;
            self.closed.remove(&uid);
        }
        Ok(())
    }

    /// The last traces of a deleted node: what it offered, then its Lease, by which it is found.
    async fn forget(&mut self, node: &str, view: &View) -> Result<(), CallError> {
        if view.offers.get(node).is_some() {
            let offers: Api<NodeNetwork> = Api::all(self.caller.client.clone());
            if let Some(offer) = self.caller.read("get a nodenetwork", offers.get_opt(node)).await? {
                self.delete(&offers, Kind::NodeNetwork, &offer).await?;
            }
        }
        let leases: Api<Lease> = Api::namespaced(self.caller.client.clone(), names::INSTALL_NAMESPACE);
        if let Some(lease) = self.caller.read("get a lease", leases.get_opt(node)).await? {
            self.delete(&leases, Kind::Lease, &lease).await?;
        }
        if self.with_records.remove(node) {
            debug!(node, "nothing of a lost node is left");
        }
        Ok(())
    }

    /// When the quarantine of an address ends that is freed now.
    fn until(&self, block: &IPBlock, view: &View) -> Timestamp {
        (self.wall)().saturating_add(quarantine(block, view)).unwrap_or(Timestamp::MAX)
    }

    /// Deletes exactly the version that was looked at. What is left of it then, if a finalizer keeps it.
    async fn delete<K>(&self, api: &Api<K>, kind: Kind, object: &K) -> Result<Option<K>, CallError>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
        let (name, params) = (object.name_any(), DeleteParams::default().preconditions(preconditions));
        match self.caller.write(Verb::Delete, kind, &name, api.delete(&name, &params)).await {
            Ok(answer) => Ok(answer.left()),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn quarantine(block: &IPBlock, view: &View) -> Duration {
    let network = view.networks.get(&block.spec.network);
    let network = network.filter(|network| network.metadata.uid.as_deref() == Some(&block.spec.network_uid));
    network
        .as_ref()
        .and_then(|network| network.spec.ipam.as_ref())
        .map_or(QUARANTINE, |ipam| ipam.quarantine.0)
}

impl Driver for LostNodes {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        self.look(view).await
    }
}

impl LostNodes {
    /// One look at all nodes whose agents are silent. Returns when to look again even if nothing changes.
    pub async fn look(&mut self, view: &View) -> Option<Duration> {
        if view.is_uninstalling() {
            return None;
        }
        if let Some(rest) =
            self.looked.and_then(|at| PAUSE.checked_sub(at.elapsed())).filter(|rest| !rest.is_zero())
        {
            return Some(rest);
        }
        if let Err(error) = self.pass(view).await {
            warn!(%error, "lost nodes were not looked for");
        }
        self.looked = Some(Instant::now());
        Some(PAUSE)
    }
}

#[cfg(test)]
mod tests;
