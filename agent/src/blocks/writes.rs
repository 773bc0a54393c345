//! What the status of a block says: addresses in quarantine, held for lost pods, left out because a stranger has them.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fairlead_crds::Mac;
use fairlead_crds::ip_block::{Conflict, Held, Quarantined};
use fairlead_crds::pod_network::HeldAddress;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Blocks;
use crate::api::{ApiError, call};
use crate::ipam::{Block, Owner};

/// Least time between two writes of one block's quarantine list.
const WRITE_EVERY: Duration = Duration::from_millis(200);

/// Orders the writes of one block's quarantine list, so that many releases share one write.
#[derive(Default)]
pub(super) struct Writer {
    state: tokio::sync::Mutex<Written>,
}

#[derive(Default)]
struct Written {
    at: Option<Instant>,
    lists: Lists,
}

/// What a block's status says of addresses that cannot be handed out.
#[derive(Default, Clone)]
struct Lists {
    quarantined: Vec<Quarantined>,
    held: Vec<Held>,
    conflicts: Vec<Conflict>,
}

impl Lists {
    fn of(block: &Block, now: Timestamp) -> Self {
        Self {
            quarantined: block.quarantine_list(now),
            held: block.held_list(),
            conflicts: block.conflict_list(now),
        }
    }

    /// Whether nothing has come to be since the others were written; what is over goes with the next write.
    fn are_in(&self, written: &Self) -> bool {
        self.held == written.held
            && self.quarantined.iter().all(|entry| written.quarantined.contains(entry))
            && self.conflicts.iter().all(|entry| written.conflicts.contains(entry))
    }
}

impl Blocks {
    /// Puts a pod's addresses into quarantine and returns once the blocks say so: only then may the record go.
    ///
    /// # Errors
    /// [`ApiError`]; asking again is safe.
    pub async fn quarantine(&self, addresses: &[HeldAddress], owner: &Owner) -> Result<(), ApiError> {
        let now = self.clock.now();
        {
            let mut view = self.view.lock();
            addresses.iter().for_each(|held| view.ipam.quarantine(held, owner, now));
        }
        for held in addresses {
            self.write_quarantine(&held.block, &held.block_uid).await?;
        }
        Ok(())
    }

    async fn write_quarantine(&self, name: &str, uid: &str) -> Result<(), ApiError> {
        let writer = Arc::clone(
            self.writers.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default(),
        );
        let mut written = writer.state.lock().await;
        let wanted = || {
            let view = self.view.lock();
            let block = view.ipam.block(name).filter(|block| block.uid == uid);
            block.map(|block| Lists::of(block, self.clock.now()))
        };
        // The block is not ours any more: whoever has it now decides about its addresses.
        let Some(lists) = wanted() else { return Ok(()) };
        if lists.are_in(&written.lists) {
            return Ok(());
        }
        if let Some(at) = written.at {
            tokio::time::sleep_until(at + WRITE_EVERY).await;
        }
        let lists = wanted().unwrap_or(lists);
        let status = json!({
            "quarantined": lists.quarantined, "held": lists.held, "conflicts": lists.conflicts,
        });
        let patch = json!({ "metadata": { "uid": uid }, "status": status });
        written.at = Some(Instant::now());
        let (api, patch) = (self.api(), Patch::Merge(patch));
        match call("write an IPBlock's quarantine", api.patch_status(name, &PatchParams::default(), &patch))
            .await
        {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                written.lists = lists;
                Ok(())
            }
        }
    }

    /// Leaves out an address that a stranger answered for before its owner used it. The block says so soon; nobody
    /// has to wait for that, since whoever is given the address later asks again.
    pub fn conflict(self: &Arc<Self>, held: &HeldAddress, owner: &Owner, mac: Mac) {
        self.view.lock().ipam.conflict(held, owner, mac, self.clock.now());
        let (blocks, name, uid) = (Arc::clone(self), held.block.clone(), held.block_uid.clone());
        tokio::spawn(async move {
            if let Err(error) = blocks.write_quarantine(&name, &uid).await {
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
            self.write_quarantine(&name, &uid).await?;
        }
        Ok(())
    }
}
