//! Records that the agent and the API server do not agree on: one that was written when nobody waited for it any more, and
//! one that someone took away.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_crds::names;
use tracing::warn;

use super::{Agent, RoundError};
use crate::bring;
use crate::model::{Pod, PodKey};
use crate::net::Net;
use crate::plan::HostLink;

impl Agent {
    /// Compares the records of this node with those known here. Failing to is no harm: it is done again.
    pub async fn look_for_strays(&self) {
        if let Err(error) = self.compare_records().await {
            warn!(%error, "cannot compare this node's records");
        }
    }

    async fn compare_records(&self) -> Result<(), RoundError> {
        let before: BTreeSet<String> = self.view.lock().records.keys().cloned().collect();
        let there: BTreeMap<String, PodKey> =
            self.records.owners().await?.into_iter().map(|key| (key.uid.clone(), key)).collect();
        for key in there.values().filter(|key| !before.contains(&key.uid)) {
            self.take_up(key).await?;
        }
        let missing: Vec<String> = before.into_iter().filter(|uid| !there.contains_key(uid)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let links = self.on_kernel(Net::host_links).await?;
        missing.iter().for_each(|uid| self.write_again(uid, &links));
        Ok(())
    }

    /// A record of a pod that is gone is released like any other; that of one which is there is met in its next round.
    async fn take_up(&self, key: &PodKey) -> Result<(), RoundError> {
        let is_known = || {
            let view = self.view.lock();
            view.pods.contains_key(&key.uid) || view.records.contains_key(&key.uid)
        };
        if !is_known()
            && let Some(record) = self.records.find(key).await?
            && !is_known()
        {
            warn!(pod = %key, record = names::pod_network(&key.name, &key.uid), "a record of a pod that is gone is released");
            self.view.lock().records.insert(key.uid.clone(), record);
        }
        self.queue.add(&key.uid);
        Ok(())
    }

    /// What the pod's links have is recorded once more.
    fn write_again(&self, uid: &str, links: &[HostLink]) {
        let mut view = self.view.lock();
        if view.pods.get(uid).is_none_or(Pod::is_over) || view.records.remove(uid).is_none() {
            return;
        }
        drop(view);
        warn!(uid, "the record of a living pod is gone; it is written again");
        let of_pod = |link: &&HostLink| link.alias.as_deref().and_then(bring::alias_uid) == Some(uid);
        self.add_orphans(uid, links.iter().filter(of_pod).cloned().collect());
        self.queue.add(uid);
    }
}
