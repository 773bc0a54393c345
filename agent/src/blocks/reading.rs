//! Reading which blocks this node owns: at the start, after a lapse of the Lease, after an answer was lost, and now and
//! then, since a claim can be carried out when nobody waits for it any more.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use fairlead_crds::IPBlock;
use kube::ResourceExt;
use kube::api::ListParams;
use tokio::time::Instant;
use tracing::warn;

use super::Blocks;
use crate::api::{ApiError, LATE, call};

/// How often the blocks are read without a reason.
const EVERY: Duration = Duration::from_secs(300);

/// When the blocks are read again.
pub(super) struct Reading {
    due: Instant,
    /// When the outcome of a write was unknown last.
    doubted: Instant,
}

impl Default for Reading {
    /// What an earlier agent asked for may still be under way.
    fn default() -> Self {
        let now = Instant::now();
        Self { due: now + LATE, doubted: now }
    }
}

impl Reading {
    fn read(&mut self, now: Instant) {
        let settled = self.doubted + LATE;
        self.due = if now < settled { settled } else { now + EVERY };
    }
}

impl Blocks {
    /// The outcome of a write is unknown: nothing is claimed or handed back before the blocks were read.
    pub(super) fn doubt(&self) {
        let now = Instant::now();
        *self.reading.lock().unwrap_or_else(PoisonError::into_inner) = Reading { due: now, doubted: now };
    }

    /// Reads the blocks if it is time to.
    pub(super) async fn is_certain(&self) -> bool {
        let begun = Instant::now();
        if begun < self.reading.lock().unwrap_or_else(PoisonError::into_inner).due {
            return true;
        }
        let loaded = self.load_in_turn().await;
        match &loaded {
            Ok(()) => self.reading.lock().unwrap_or_else(PoisonError::into_inner).read(begun),
            Err(error) => warn!(%error, "cannot read this node's blocks"),
        }
        loaded.is_ok()
    }

    /// Reads the blocks of this node, forgets those it does not own any more, and notes what its records hold of them.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn load(&self) -> Result<(), ApiError> {
        let _turn = self.turn.lock().await;
        self.load_in_turn().await
    }

    async fn load_in_turn(&self) -> Result<(), ApiError> {
        let mine = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let list = call("list IPBlocks of this node", self.api().list(&mine)).await?;
        let uids: BTreeMap<_, _> =
            list.items.iter().filter_map(|block| Some((block.name_any(), block.uid()?))).collect();
        self.view.lock().ipam.retain_blocks(|block| uids.get(&block.name) == Some(&block.uid));
        list.items.iter().for_each(|block| self.take_in(block));
        self.view.lock().restore_records();
        let going =
            |block: &&IPBlock| block.metadata.deletion_timestamp.is_some() && block.spec.claim.is_none();
        for block in list.items.iter().filter(going) {
            self.finish_deletion(block).await?;
        }
        Ok(())
    }

    /// Goes on with the deletion of a block that was handed back by an agent which did not come to removing its
    /// finalizer, or that the controller gave up; unless something still holds an address of it.
    async fn finish_deletion(&self, block: &IPBlock) -> Result<(), ApiError> {
        let name = block.name_any();
        {
            let mut view = self.view.lock();
            if view.ipam.block(&name).is_some_and(|block| !block.can_go(self.clock.now())) {
                return Ok(());
            }
            // Under the same lock: nothing can be taken of it any more.
            view.ipam.retain_blocks(|block| block.name != name);
        }
        self.drop_finalizer(block).await
    }
}
