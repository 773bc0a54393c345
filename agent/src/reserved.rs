//! Reserved addresses at the API server: finds what the controller has given to a pod of this node, and says when a turn
//! is over.
//!
//! Only what is proven is said: the links of the last holder are cut, and no record has the address. The controller gives
//! the address to the next pod of the claim then, on whatever node.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fairlead_crds::ip_block::Released;
use fairlead_crds::reserved::{self, Ask};
use fairlead_crds::{IPBlock, Reason};
use jiff::Unit;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::{ApiError, call};
use crate::bring;
use crate::clock::Clock;
use crate::intent::{Problem, Wanted};
use crate::ipam::{Ending, Turn};
use crate::model::PodKey;
use crate::reconcile::Agent;
use crate::view::View;

/// How often turns that nothing uses are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Looks after which this node's blocks are read: a turn may have been given to a pod that this agent never saw.
const LOOKS: u32 = 6;

/// Reserved addresses of one node.
pub struct Reserved {
    client: Client,
    node: String,
    view: Arc<View>,
    clock: Clock,
}

impl Reserved {
    /// Reserved addresses of the named node.
    pub fn new(client: Client, node: &str, view: Arc<View>, clock: Clock) -> Self {
        Self { client, node: node.to_owned(), view, clock }
    }

    /// Reads the blocks of a pod's claims, and takes those into account that the pod was given on this node.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn find(&self, pod: &PodKey) -> Result<Vec<IPBlock>, ApiError> {
        let claim = format!("spec.claim.pod={}", reserved::claimant(&pod.namespace, &pod.name));
        let of_claim = ListParams::default().fields(&claim);
        let found = call("list the reserved addresses of a pod", self.api().list(&of_claim)).await?.items;
        let mut view = self.view.lock();
        let given = found.iter().filter(|block| block.is_held_by(&self.node, &pod.uid));
        given.for_each(|block| view.ipam.insert_block(block));
        Ok(found)
    }

    /// Writes the end of every turn that is closed.
    ///
    /// # Errors
    /// [`ApiError`] of the first that fails; asking again is safe.
    pub async fn end_closed(&self) -> Result<(), ApiError> {
        let closed = self.view.lock().ipam.closed_turns();
        for ending in closed {
            self.end(&ending).await?;
            self.view.lock().ipam.end_turn(&ending);
            info!(block = %ending.block, turn = ending.turn.number, "reserved address released");
        }
        Ok(())
    }

    /// Refused unless the turn is the present one, so that a write which comes late does nothing.
    async fn end(&self, ending: &Ending) -> Result<(), ApiError> {
        let at = self.clock.wall();
        let released = Released { turn: ending.turn.number, at: Time(at.round(Unit::Second).unwrap_or(at)) };
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": ending.uid },
            { "op": "test", "path": "/spec/holder/turn", "value": ending.turn.number },
            { "op": "add", "path": "/status", "value": { "released": released } },
        ]);
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap_or_default());
        let (api, name) = (self.api(), &ending.block);
        match call("release a reserved address", api.patch_status(name, &PatchParams::default(), &patch))
            .await
        {
            // Another turn, or another block: ours is over already.
            Err(error) if error.is_not_found() || error.is_failed_test() => Ok(()),
            other => other.map(drop),
        }
    }

    fn api(&self) -> Api<IPBlock> {
        Api::all(self.client.clone())
    }
}

impl Agent {
    /// Ends turns that nothing uses: of pods that are gone; of `all` pods when this agent cannot know what is under way.
    pub async fn end_unused_turns(&self, all: bool) {
        let Some(linked) = self.linked_pods().await else { return };
        {
            let mut view = self.view.lock();
            let lives: Vec<String> =
                view.pods.values().filter(|pod| !pod.is_over()).map(|pod| pod.key.uid.clone()).collect();
            let may_close =
                |turn: &Turn| (all || !lives.contains(&turn.pod_uid)) && !linked.contains(&turn.pod_uid);
            view.ipam.close_unused_turns(may_close);
        }
        if let Err(error) = self.reserved.end_closed().await {
            warn!(%error, "cannot release a reserved address yet");
        }
    }

    /// UIDs of the pods that links of ours on this node belong to.
    async fn linked_pods(&self) -> Option<Vec<String>> {
        let links = match self.on_kernel(crate::net::Net::host_links).await {
            Ok(links) => links,
            Err(error) => {
                warn!(%error, "cannot see which reserved addresses are used");
                return None;
            }
        };
        let uid = |alias: Option<String>| alias.as_deref().and_then(bring::alias_uid).map(str::to_owned);
        Some(links.into_iter().filter_map(|link| uid(link.alias)).collect())
    }
}

/// Looks for turns that nothing uses until cancelled, on nodes with networks that have reserved addresses.
pub async fn run(agent: Arc<Agent>, cancel: CancellationToken) {
    let mut looks = 0;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if !agent.lease.is_fresh() || agent.view.lock().uninstalling {
            continue;
        }
        looks = (looks + 1) % LOOKS;
        let any = agent.view.lock().ipam.pools().any(crate::ipam::Pool::has_reserved);
        if looks == 0
            && any
            && let Err(error) = agent.blocks.load().await
        {
            warn!(%error, "cannot read this node's blocks");
        }
        agent.end_unused_turns(false).await;
    }
}

/// Why a pod has to wait for an address it asks for, by what was found of its claims.
pub fn why_not(want: &Wanted, ask: &Ask, found: &[IPBlock], pod: &PodKey) -> Problem {
    let of_network = found.iter().filter(|block| block.spec.network_uid == want.network_uid);
    let is_it = |block: &&IPBlock| {
        let claim = block.spec.claim.as_ref();
        claim.is_some_and(|claim| Turn::is_for(claim, block.spec.cidr.addr(), ask, want.attachment))
    };
    let network = &want.network;
    let message = match of_network.into_iter().find(is_it) {
        None => format!(
            "network {network}: no reserved {} address is granted to pod {pod}; one is granted only while a pod has no node, so delete the pod to have it created again",
            ask.family
        ),
        Some(block) => waits_for(network, block.spec.cidr.addr(), block, pod),
    };
    Problem::new(Reason::AwaitingAddress, message)
}

fn waits_for(network: &str, address: IpAddr, block: &IPBlock, pod: &PodKey) -> String {
    let head = format!("address {address} of network {network}");
    match block.open_turn() {
        Some(holder) if holder.pod_uid != pod.uid => format!(
            "{head} is held by an earlier pod {pod} on node {}; it is handed on once that pod is proven gone",
            block.spec.node_name
        ),
        _ => format!("{head} is reserved for the pod; fairlead-controller has not given it to this node yet"),
    }
}

#[cfg(test)]
mod tests;
