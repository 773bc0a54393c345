//! The status of this node's blocks: addresses in quarantine, held for lost pods, left out because a stranger has them.
//! Every write names the version it is based on, so that a request which comes late, or another writer, undoes nothing.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fairlead_crds::ip_block::{Conflict, Held, Quarantined};
use fairlead_crds::pod_network::HeldAddress;
use fairlead_crds::{IPBlock, Mac};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::Blocks;
use crate::api::{ApiError, call};
use crate::ipam::Owner;

/// Least time between two writes of one block's status.
const WRITE_EVERY: Duration = Duration::from_millis(200);
/// How often a write that met another is tried again at once.
const TRIES: usize = 3;

/// Orders the writes of one block's status, so that many releases share one write.
#[derive(Default)]
pub(super) struct Writer {
    state: tokio::sync::Mutex<Written>,
}

/// A block's status as the API server last told it.
#[derive(Default)]
struct Written {
    at: Option<Instant>,
    uid: String,
    version: String,
    lists: Lists,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Lists {
    quarantined: Vec<Quarantined>,
    held: Vec<Held>,
    conflicts: Vec<Conflict>,
    /// Of a reserved address only the controller says whether it rests or is held.
    is_reserved: bool,
}

impl Written {
    fn note(&mut self, block: &IPBlock) {
        let status = block.status.clone().unwrap_or_default();
        self.uid = block.metadata.uid.clone().unwrap_or_default();
        self.version = block.metadata.resource_version.clone().unwrap_or_default();
        self.lists = Lists {
            quarantined: status.quarantined,
            held: status.held,
            conflicts: status.conflicts,
            is_reserved: block.spec.claim.is_some(),
        };
    }

    /// Whether the API server has to be told: of an address that rests, of one that is held or not any more, or that no
    /// address rests any more. Others that have rested long enough go with the next write.
    fn lacks(&self, wanted: &Lists) -> bool {
        let (old, new) = (&self.lists.quarantined, &wanted.quarantined);
        let rests = self.lists.held != wanted.held
            || new.iter().any(|address| !old.contains(address))
            || (new.is_empty() && !old.is_empty());
        (rests && !wanted.is_reserved)
            || wanted.conflicts.iter().any(|entry| !self.lists.conflicts.contains(entry))
    }
}

impl Blocks {
    /// Takes a block into account as the API server tells it.
    pub(super) fn take_in(&self, block: &IPBlock) {
        // Whoever writes the status now finds out by itself that the version is another.
        if let Ok(mut written) =
            self.writer(block.metadata.name.as_deref().unwrap_or_default()).state.try_lock()
        {
            written.note(block);
        }
        self.insert(block);
    }

    /// What rests begins to rest anew, unless it is known since when: by whose clock the times are, and how far it
    /// has stepped since, nobody can tell.
    fn insert(&self, block: &IPBlock) {
        let mut block = block.clone();
        let mut view = self.view.lock();
        let until = Time(view.ipam.rests_until(&block.spec.network_uid, self.clock.now()));
        let status = block.status.iter_mut();
        status.flat_map(|status| &mut status.quarantined).for_each(|entry| entry.until = until.clone());
        view.ipam.insert_block(&block);
    }

    fn writer(&self, name: &str) -> Arc<Writer> {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(writers.entry(name.to_owned()).or_default())
    }

    /// Puts a pod's addresses into quarantine and returns once the blocks say so: only then may the record go. However
    /// long that takes, they rest until [`Self::left`] says that it is gone.
    ///
    /// # Errors
    /// [`ApiError`]; asking again is safe.
    pub async fn quarantine(&self, addresses: &[HeldAddress], owner: &Owner) -> Result<(), ApiError> {
        let now = self.clock.now();
        {
            let mut view = self.view.lock();
            addresses.iter().for_each(|held| view.ipam.quarantine(held, owner, now));
            view.ipam.set_leaving(addresses, owner, true);
        }
        for held in addresses {
            self.write_status(&held.block, &held.block_uid).await?;
        }
        Ok(())
    }

    /// No record names these addresses any more.
    pub fn left(&self, addresses: &[HeldAddress], owner: &Owner) {
        self.view.lock().ipam.set_leaving(addresses, owner, false);
    }

    /// Leaves out an address that a stranger answered for before its owner used it. The block says so soon; nobody
    /// has to wait for that, since whoever is given the address later asks again.
    pub fn conflict(self: &Arc<Self>, held: &HeldAddress, owner: &Owner, mac: Mac) {
        self.view.lock().ipam.conflict(held, owner, mac, self.clock.now());
        let (blocks, name, uid) = (Arc::clone(self), held.block.clone(), held.block_uid.clone());
        tokio::spawn(async move {
            if let Err(error) = blocks.write_status(&name, &uid).await {
                warn!(block = %name, %error, "cannot say in a block that a stranger has an address");
            }
        });
    }

    /// Ends what was held for pods of this node while its agent was away, as far as those pods are proven gone, and
    /// puts their addresses into quarantine.
    ///
    /// # Errors
    /// [`ApiError`]; asking again is safe.
    pub async fn end_held(&self, is_gone: impl Fn(&str) -> bool) -> Result<(), ApiError> {
        let changed = self.view.lock().ipam.end_held(is_gone, self.clock.now());
        for (name, uid) in changed {
            info!(block = %name, "addresses held for pods that are gone are in quarantine");
            self.write_status(&name, &uid).await?;
        }
        Ok(())
    }

    /// Writes what the statuses still say and is over.
    pub(super) async fn tidy(&self) {
        let blocks: Vec<(String, String)> = {
            let view = self.view.lock();
            view.ipam.blocks().map(|block| (block.name.clone(), block.uid.clone())).collect()
        };
        for (name, uid) in blocks {
            if let Err(error) = self.write_status(&name, &uid).await {
                debug!(block = %name, %error, "the block's status is written later");
            }
        }
    }

    async fn write_status(&self, name: &str, uid: &str) -> Result<(), ApiError> {
        let writer = self.writer(name);
        let mut written = writer.state.lock().await;
        let mut tries = 0;
        loop {
            // Without the block it is not ours any more: whoever has it now decides about its addresses.
            let lists = self.lists(name, uid).filter(|lists| written.lacks(lists));
            let Some(lists) = lists else { return Ok(()) };
            if let Some(at) = written.at {
                tokio::time::sleep_until(at + WRITE_EVERY).await;
            }
            let lists = self.lists(name, uid).unwrap_or(lists);
            written.at = Some(Instant::now());
            tries += 1;
            match self.patch_status(name, uid, &written, &lists).await {
                Ok(block) => {
                    written.note(&block);
                    return Ok(());
                }
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_conflict() && tries < TRIES => {
                    let found = call("get IPBlock", self.api().get_opt(name)).await?;
                    let Some(block) = found.filter(|found| found.metadata.uid.as_deref() == Some(uid)) else {
                        return Ok(());
                    };
                    written.note(&block);
                    self.insert(&block);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn patch_status(
        &self,
        name: &str,
        uid: &str,
        written: &Written,
        lists: &Lists,
    ) -> Result<IPBlock, ApiError> {
        let based_on = (written.uid == uid).then_some(&written.version);
        let mut status = json!({ "conflicts": lists.conflicts });
        if !lists.is_reserved {
            (status["quarantined"], status["held"]) = (json!(lists.quarantined), json!(lists.held));
        }
        let patch = json!({ "metadata": { "uid": uid, "resourceVersion": based_on }, "status": status });
        let (api, patch) = (self.api(), Patch::Merge(patch));
        call("write an IPBlock's quarantine", api.patch_status(name, &PatchParams::default(), &patch)).await
    }

    /// The lists of a block as people shall read them: by the node's clock.
    fn lists(&self, name: &str, uid: &str) -> Option<Lists> {
        let view = self.view.lock();
        let block = view.ipam.block(name).filter(|block| block.uid == uid)?;
        let mut quarantined = block.quarantine_list(self.clock.now());
        for entry in &mut quarantined {
            entry.until = Time(self.clock.shown(entry.until.0));
        }
        let conflicts = block.conflict_list(self.clock.now());
        Some(Lists { quarantined, held: block.held_list(), conflicts, is_reserved: block.turn.is_some() })
    }
}
