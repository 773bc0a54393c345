//! Releasing what a pod held, once it is proven gone.
//!
//! An address is free only when the pod is deleted or terminal, no READY sandbox has its UID, and our links
//! of that namespace are gone. Deleting the host end of a veth pair deletes the pod's end in whatever
//! namespace it is, and a missing host end proves that it is gone: nothing in the pod can fake that.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use fairlead_crds::Ip;
use fairlead_crds::pod_network::Attachment;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Agent, Awaited, RoundError};
use crate::bring;
use crate::ipam::{self, Holding};
use crate::model::Record;
use crate::plan::HostLink;
use crate::queue::Next;

/// How soon a pod is looked at again whose sandbox is not proven gone.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Agent {
    pub(super) async fn release(&self, record: &Record) -> Result<Next, RoundError> {
        let uid = &record.key.uid;
        if !self.is_proven_gone(uid) {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let proven = Instant::now();
        let cut_ms = self.give_up(record).await?.as_secs_f64() * 1000.0;
        self.view.lock().records.remove(uid);
        self.left(uid, &record.spec.attachments);
        self.forget_links(record);
        self.wait_for_sandbox(uid, None);
        self.metrics.released(proven.elapsed());
        self.changed.notify_one();
        info!(cut_ms, "released");
        Ok(Next::After(Duration::ZERO))
    }

    /// The record names what these attachments had no more.
    pub(super) fn left(&self, uid: &str, attachments: &[Attachment]) {
        for attachment in attachments {
            self.blocks.left(&attachment.addresses, &ipam::owner(uid, &attachment.interface));
        }
    }

    /// The same for links that never came into a record: whatever carries the pod's UID is cut.
    pub(super) async fn release_orphans(&self, uid: &str) -> Result<Next, RoundError> {
        if !self.is_proven_gone(uid) {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let whose = uid.to_owned();
        self.on_kernel(move |net| {
            let of_pod = |link: &HostLink| link.alias.as_deref().and_then(bring::alias_uid) == Some(&whose);
            let links = net.host_links()?.into_iter().filter(of_pod).map(|link| link.name);
            net.delete_host_links(&links.collect::<Vec<_>>())
        })
        .await?;
        let held = self.view.lock().ipam.held_by_pod(uid);
        for Holding { owner, addresses, .. } in held {
            self.blocks.quarantine(&addresses, &owner).await?;
            self.blocks.left(&addresses, &owner);
        }
        self.forget_orphans(uid);
        info!("links without a record are cut");
        Ok(Next::After(Duration::ZERO))
    }

    /// Whether no sandbox of a pod that is gone can be there any more.
    fn is_proven_gone(&self, uid: &str) -> bool {
        let gone_since = self.remember(uid, |memory| *memory.gone_since.get_or_insert_with(Instant::now));
        self.wait_for_sandbox(uid, Some(Awaited::End));
        let sandboxes = self.sandboxes();
        let proven = sandboxes.trusted_since(gone_since.into_std()) && !sandboxes.any_ready(uid);
        if !proven {
            debug!("the pod is gone, its sandbox may not be");
        }
        proven
    }

    /// What the controller held for pods of this node while its agent was away ends once they are proven gone.
    pub async fn end_held(&self) {
        let sandboxes = self.sandboxes();
        if !sandboxes.trusted() || !self.lease.is_fresh() {
            return;
        }
        let known: HashSet<String> = self.view.lock().uids().into_iter().collect();
        let is_gone = |uid: &str| !known.contains(uid) && !sandboxes.any_ready(uid) && !self.has_orphans(uid);
        if let Err(error) = self.blocks.end_held(is_gone).await {
            warn!(%error, "cannot end what was held for pods that are gone");
        }
    }

    /// Lets the kernel forget addresses, each of a Network. True if there is nothing left to do.
    pub async fn forget_addresses(&self, addresses: &[(String, IpAddr)]) -> bool {
        let addresses: Vec<_> = {
            let view = self.view.lock();
            // With its Network the bridge is gone, too.
            let bridge = |network: &str| Some(view.networks.get(network)?.spec.bridge.as_ref()?.name.clone());
            addresses.iter().filter_map(|(network, address)| Some((bridge(network)?, Ip(*address)))).collect()
        };
        if addresses.is_empty() {
            return true;
        }
        let done = self.on_kernel(move |net| net.forget(&addresses)).await;
        if let Err(error) = &done {
            warn!(%error, "cannot forget what the kernel knows of released addresses; tried again");
        }
        done.is_ok()
    }

    /// After the record: what it held of reserved addresses goes to the next pod of the claim. What cannot be written now
    /// is written later.
    pub(super) async fn end_turns(&self, uid: &str, gone: &[Attachment]) {
        {
            let mut view = self.view.lock();
            for attachment in gone {
                let owner = ipam::owner(uid, &attachment.interface);
                view.ipam.close_turns(&attachment.addresses, &owner);
            }
        }
        let reserved: Vec<_> = {
            let view = self.view.lock();
            let all = gone.iter().flat_map(|one| {
                one.addresses.iter().map(move |held| (one.network.clone(), held.address.addr()))
            });
            all.filter(|(_, address)| view.ipam.is_reserved(*address)).collect()
        };
        self.forget_addresses(&reserved).await;
        if let Err(error) = self.reserved.end_closed().await {
            warn!(%error, "a reserved address is released later");
        }
    }

    /// In this order: links cut, quarantine written, record gone. A crash in between repeats what is safe to repeat. How
    /// long the kernel took to cut the links, a wait for a thread included.
    async fn give_up(&self, record: &Record) -> Result<Duration, RoundError> {
        let (links, begun) = (Self::host_links(record), std::time::Instant::now());
        let cut = self.on_kernel(move |net| {
            net.delete_host_links(&links)?;
            Ok(begun.elapsed())
        });
        let cut = cut.await?;
        for attachment in &record.spec.attachments {
            let owner = ipam::owner(&record.key.uid, &attachment.interface);
            self.blocks.quarantine(&attachment.addresses, &owner).await?;
        }
        self.records.remove(record).await?;
        self.metrics.api_write("remove");
        self.end_turns(&record.key.uid, &record.spec.attachments).await;
        Ok(cut)
    }
}
