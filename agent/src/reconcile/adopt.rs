//! Links of a living pod whose record is missing: their addresses are taken over if this node still owns them,
//! and the links are cut otherwise. Happens after a node was given up and came back.

use std::sync::PoisonError;

use fairlead_crds::{IfName, names};
use tracing::{info, warn};

use super::{Agent, RoundError};
use crate::ipam;
use crate::model::{Pod, Record};
use crate::net::NetError;
use crate::plan::{HostLink, Observed};

impl Agent {
    pub(super) async fn adopt(&self, pod: &Pod) -> Result<(), RoundError> {
        let uid = &pod.key.uid;
        let found = self.orphans.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned();
        let Some(links) = found else { return Ok(()) };
        let observed = self.observe_orphans(uid, &links).await?;
        let lost: Vec<String> = links
            .iter()
            .filter(|link| !self.take_over(uid, link, observed.as_ref()))
            .map(|link| link.name.clone())
            .collect();
        if !lost.is_empty() {
            warn!(links = ?lost, "links without a record are cut: their addresses are not this node's any more");
            self.on_kernel(move |net| net.delete_host_links(&lost)).await?;
        }
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        Ok(())
    }

    async fn observe_orphans(&self, uid: &str, links: &[HostLink]) -> Result<Option<Observed>, RoundError> {
        let Some(sandbox) = self.sandboxes().newest(uid).cloned() else {
            return Ok(None);
        };
        let Some(path) = self.runtime.netns_path(&sandbox.id).await? else {
            return Ok(None);
        };
        let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
        let observed = self.on_kernel(move |net| {
            let namespace = net.open(&path)?;
            let mut observed = Err(NetError::NamespaceGone(path.display().to_string()));
            let hosts: Vec<&str> = names.iter().map(String::as_str).collect();
            net.enter(&namespace, &mut |session| observed = session.observe(&hosts))?;
            observed
        });
        observed.await.map(Some)
    }

    /// Whether all addresses of a link could be taken over.
    fn take_over(&self, uid: &str, host: &HostLink, observed: Option<&Observed>) -> bool {
        let of_host = |observed: &Observed| {
            let link = observed
                .links
                .iter()
                .find(|link| Some(link.index) == host.peer_index && host.peer_nsid == Some(observed.nsid));
            link.map(|link| (link.name.clone(), link.addresses.clone()))
        };
        let Some((name, addresses)) = observed.and_then(of_host) else {
            return false;
        };
        let Ok(interface) = name.parse::<IfName>() else {
            return false;
        };
        let owner = ipam::owner(uid, &interface);
        let mut view = self.view.lock();
        let all = names::host_link(uid, &name) == host.name
            && !addresses.is_empty()
            && addresses.iter().all(|address| view.ipam.adopt(address.addr(), &owner));
        if all {
            info!(interface = %interface, addresses = ?addresses, "addresses without a record are taken over");
        } else {
            view.ipam.give_back_interface(&owner);
        }
        all
    }

    pub(super) fn know_links(&self, record: &Record) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.extend(Self::host_links(record).into_iter().map(|link| (link, record.key.uid.clone())));
    }

    pub(super) fn forget_links(&self, record: &Record) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for link in Self::host_links(record) {
            links.remove(&link);
        }
    }
}
