//! The blocks' edge: claims and hands back this node's `IPBlock`s, and writes what is in quarantine.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairlead_crds::{Cidr, IPBlock, IPBlockSpec, grid, names};
use ipnet::IpNet;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::api::{ApiError, call};
use crate::clock::Clock;
use crate::ipam::{Block, Claim, Pool, order, order::Order};
use crate::lease::Lease;
use crate::view::View;

mod reading;
mod status;

use reading::Reading;
use status::Writer;

/// Blocks of one node.
pub struct Blocks {
    client: Client,
    node: String,
    view: Arc<View>,
    lease: Arc<Lease>,
    clock: Clock,
    wake: Notify,
    gained: Notify,
    writers: Mutex<HashMap<String, Arc<Writer>>>,
    /// Held by whoever changes which blocks this node owns.
    turn: tokio::sync::Mutex<()>,
    /// By network and range, how many steps of this node's order have been tried: what was lost once is not asked for
    /// again before all others.
    tried: Mutex<HashMap<(String, Cidr), u64>>,
    reading: Mutex<Reading>,
}

/// How often claims and hand-backs are looked at without a reason.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Blocks tried by chance before the taken ones are listed.
const GUESSES: usize = 8;
/// Blocks of a range that are looked at for one claim.
const MOST_LOOKS: u64 = 65_536;

/// A block that may be claimed, and its place in this node's order.
struct Candidate {
    step: u64,
    name: String,
    block: Cidr,
}

impl Blocks {
    /// Blocks of the named node.
    pub fn new(client: Client, node: &str, view: Arc<View>, lease: Arc<Lease>, clock: Clock) -> Self {
        let (wake, gained) = (Notify::new(), Notify::new());
        Self {
            client,
            node: node.to_owned(),
            view,
            lease,
            clock,
            wake,
            gained,
            writers: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            tried: Mutex::default(),
            reading: Mutex::default(),
        }
    }

    /// Asks for a look at what is to be claimed or handed back.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Returns once addresses may have become available.
    pub async fn gained(&self) {
        self.gained.notified().await;
    }

    /// Claims and hands back until cancelled.
    pub async fn run(&self, cancel: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let _turn = self.turn.lock().await;
            if self.may_act() && self.is_certain().await {
                self.claim_all().await;
                self.hand_back().await;
                self.tidy().await;
            }
        }
    }

    fn may_act(&self) -> bool {
        self.lease.is_fresh() && !self.view.lock().uninstalling
    }

    async fn claim_all(&self) {
        let claims = {
            let view = self.view.lock();
            self.tried().retain(|(network, _), _| view.ipam.pool(network).is_some());
            view.ipam.claims(view.free_slots(), self.clock.now())
        };
        for claim in claims {
            let pool = self.view.lock().ipam.pool(&claim.network).cloned();
            let Some(pool) = pool else { continue };
            for _ in 0..claim.blocks {
                if !self.may_act() {
                    return;
                }
                match self.claim(&pool, &claim).await {
                    Ok(true) => self.gained.notify_one(),
                    Ok(false) => {
                        self.view.lock().ipam.found_nothing(&claim, self.clock.now());
                        break;
                    }
                    Err(error) => {
                        warn!(network = %claim.network, %error, "cannot claim a block");
                        break;
                    }
                }
            }
        }
    }

    /// Claims one block of a range: a few by chance, so that nodes do not race for the same, then by looking at what is taken.
    async fn claim(&self, pool: &Pool, claim: &Claim) -> Result<bool, ApiError> {
        let Some(range) = pool.ranges.iter().find(|range| range.cidr == claim.range) else {
            return Ok(false);
        };
        let count = grid::blocks(range.cidr, range.block_prefix);
        let unusable = range.unusable();
        let useful = |block: Cidr| {
            let name = grid::block_name(&pool.space, block);
            let owned = self.view.lock().ipam.block(&name).is_some();
            (!owned && !unusable.covers(&block)).then_some((name, block))
        };
        let (order, place) = (Order::new(&self.node, count), (pool.network.clone(), range.cidr));
        // Bounded: in a huge range a free block is found long before, in a small one all are looked at.
        let candidates = || {
            let begin = self.tried().get(&place).copied().unwrap_or(0);
            (begin..begin.saturating_add(count.min(MOST_LOOKS))).filter_map(move |step| {
                let block = grid::block_at(range.cidr, range.block_prefix, order.at(step))?;
                useful(block).map(|(name, block)| Candidate { step, name, block })
            })
        };
        if self.claim_one(pool, &place, candidates().take(GUESSES)).await? {
            return Ok(true);
        }
        let taken = self.taken(&pool.network).await?;
        if self.claim_one(pool, &place, candidates().filter(|one| !taken.contains(&one.name))).await? {
            return Ok(true);
        }
        debug!(network = %pool.network, range = %range.cidr, "no unclaimed block is left");
        Ok(false)
    }

    /// Claims the first of some blocks that nobody is faster to claim.
    async fn claim_one(
        &self,
        pool: &Pool,
        place: &(String, Cidr),
        candidates: impl Iterator<Item = Candidate>,
    ) -> Result<bool, ApiError> {
        for (lost, Candidate { step, name, block }) in (0..).zip(candidates) {
            if lost > 0 {
                tokio::time::sleep(order::pause(&self.node, lost)).await;
            }
            if !self.may_act() {
                return Ok(false);
            }
            self.tried().insert(place.clone(), step.saturating_add(1));
            if self.create(pool, &name, block).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn tried(&self) -> MutexGuard<'_, HashMap<(String, Cidr), u64>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the block that an address lies in, unless this node owns it. False if another node owns it; `None` if no
    /// Network has a range with the address, so that nobody can own it.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn own(&self, address: IpAddr) -> Result<Option<bool>, ApiError> {
        let _turn = self.turn.lock().await;
        let found = {
            let view = self.view.lock();
            if view.ipam.owns(address) {
                return Ok(Some(true));
            }
            if view.ipam.is_reserved(address) {
                return Ok(Some(false));
            }
            view.ipam.range_of(address).map(|(pool, range)| (pool.clone(), range.block_prefix))
        };
        let Some((pool, prefix)) = found else { return Ok(None) };
        let Ok(block) = IpNet::new(address, prefix) else { return Ok(None) };
        let block = Cidr(block.trunc());
        let name = grid::block_name(&pool.space, block);
        Ok(Some(self.create(&pool, &name, block).await? || self.look_up_lost(&name).await?))
    }

    async fn taken(&self, network: &str) -> Result<std::collections::HashSet<String>, ApiError> {
        let of_network = ListParams::default().fields(&format!("spec.network={network}"));
        let list = call("list IPBlocks of a network", self.api().list_metadata(&of_network)).await?;
        Ok(list.items.into_iter().filter_map(|block| block.metadata.name).collect())
    }

    async fn create(&self, pool: &Pool, name: &str, cidr: Cidr) -> Result<bool, ApiError> {
        let object = IPBlock {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(BTreeMap::from([(names::NODE_LABEL.to_owned(), names::pod_label(&self.node))])),
                finalizers: Some(vec![names::BLOCK_FINALIZER.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: IPBlockSpec {
                space: pool.space.clone(),
                network: pool.network.clone(),
                network_uid: pool.uid.clone(),
                node_name: self.node.clone(),
                cidr,
                claim: None,
                holder: None,
            },
            status: None,
        };
        match call("claim an IPBlock", self.api().create(&PostParams::default(), &object)).await {
            Ok(block) => {
                info!(block = name, network = %pool.network, "block claimed");
                self.take_in(&block);
                Ok(true)
            }
            Err(error) if error.is_already_exists() => Ok(false),
            Err(error) if error.is_refusal() => Err(error),
            Err(error) => {
                // Whatever the look-up says now: the claim may still be on its way.
                self.doubt();
                self.look_up_lost(name).await.and_then(|found| if found { Ok(true) } else { Err(error) })
            }
        }
    }

    /// Whether a block is this node's, because the answer to its claim was lost or comes late.
    async fn look_up_lost(&self, name: &str) -> Result<bool, ApiError> {
        let found = call("get IPBlock", self.api().get_opt(name)).await?;
        let mine = found
            .filter(|block| block.spec.node_name == self.node && block.metadata.deletion_timestamp.is_none());
        mine.iter().for_each(|block| self.take_in(block));
        Ok(mine.is_some())
    }

    async fn hand_back(&self) {
        if !self.may_act() {
            return;
        }
        let surplus: Vec<Block> = {
            let mut view = self.view.lock();
            let now = self.clock.now();
            let surplus = view.ipam.surplus(view.free_slots(), now);
            let surplus: Vec<Block> = surplus
                .iter()
                .filter(|one| view.may_hand_back(one, &surplus, now))
                .map(|one| (*one).clone())
                .collect();
            // Out of the view first: nothing may be taken from a block that is on its way out.
            view.ipam.retain_blocks(|block| surplus.iter().all(|gone| gone.name != block.name));
            surplus
        };
        for block in surplus {
            match self.delete(&block).await {
                Ok(()) => info!(block = %block.name, network = %block.network, "block handed back"),
                Err(error) => {
                    warn!(block = %block.name, %error, "cannot hand back a block");
                    // What is out of the view and not deleted comes back with the next look.
                    self.doubt();
                    return;
                }
            }
        }
    }

    async fn delete(&self, block: &Block) -> Result<(), ApiError> {
        let this = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(block.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        match call("delete an IPBlock", self.api().delete(&block.name, &this)).await {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
            Ok(answer) => match answer.left() {
                Some(going) => self.drop_finalizer(&going).await,
                // Gone at once: someone took the finalizer away.
                None => Ok(()),
            },
        }
    }

    /// Removes our finalizer from a block, as it was read: a request that comes late does nothing to one that is used again.
    async fn drop_finalizer(&self, block: &IPBlock) -> Result<(), ApiError> {
        let (name, version) = (block.name_any(), block.resource_version());
        let patch =
            json!({ "metadata": { "uid": block.uid(), "resourceVersion": version, "finalizers": null } });
        let (api, patch) = (self.api(), Patch::Merge(patch));
        match call("remove the finalizer of an IPBlock", api.patch(&name, &PatchParams::default(), &patch))
            .await
        {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Drops the finalizers of all blocks of this node, for an uninstallation.
    ///
    /// # Errors
    /// [`ApiError`] of the first that fails.
    pub async fn drop_all_finalizers(&self) -> Result<(), ApiError> {
        let mine = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let list = call("list IPBlocks of this node", self.api().list(&mine)).await?;
        for block in list.items.iter().filter(|block| block.metadata.finalizers.is_some()) {
            self.drop_finalizer(block).await?;
        }
        Ok(())
    }

    fn api(&self) -> Api<IPBlock> {
        Api::all(self.client.clone())
    }
}
