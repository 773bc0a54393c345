//! Links of a living pod whose record is missing: their addresses are taken over if this node owns them or can claim
//! their blocks, and the links are cut if they belong to others. Where no Network has the addresses they are left
//! alone. Happens after a node was given up and came back, and after an uninstallation.

use std::sync::PoisonError;

use fairlead_crds::pod_network::Attachment;
use fairlead_crds::{IfName, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tracing::{debug, info, warn};

use super::{Agent, RoundError};
use crate::intent;
use crate::ipam::{self, Holding};
use crate::model::{Pod, Record};
use crate::net::{NetError, Place};
use crate::plan::{HostLink, Observed, PodLink};

/// What came of links without a record.
pub(super) enum Adopted {
    /// There are none, or all were cut.
    Nothing,
    /// A record holds their addresses now.
    Recorded(Box<Record>),
    /// They are left as they are: no Network has their addresses, so nobody else can hold them.
    Strange,
}

impl Agent {
    /// Takes over what the links of a pod have, and records it before anything else is done: a pod that goes after that
    /// is released like any other.
    pub(super) async fn adopt(&self, pod: &Pod) -> Result<Adopted, RoundError> {
        let uid = &pod.key.uid;
        let found = self.orphans.lock().unwrap_or_else(PoisonError::into_inner).get(uid).cloned();
        let Some(links) = found else { return Ok(Adopted::Nothing) };
        let observed = self.observe_orphans(uid, &links).await?;
        let (mut lost, mut kept) = (Vec::new(), false);
        for link in &links {
            match self.own_addresses(link, observed.as_ref()).await? {
                Some(true) if self.take_over(uid, link, observed.as_ref()) => {}
                None if observed.is_some() => kept = true,
                _ => lost.push(link.name.clone()),
            }
        }
        if !lost.is_empty() {
            warn!(links = ?lost, "links without a record are cut: their addresses belong to others");
            self.on_kernel(move |net| net.delete_host_links(&lost)).await?;
        }
        if kept {
            debug!("links without a record are left as they are");
            return Ok(Adopted::Strange);
        }
        let adopted = self.adopted(uid);
        if adopted.is_empty() {
            self.forget_orphans(uid);
            return Ok(Adopted::Nothing);
        }
        let record = self.record_adopted(pod, adopted).await?;
        self.forget_orphans(uid);
        Ok(Adopted::Recorded(Box::new(record)))
    }

    /// What a pod's links have, as a record says it.
    fn adopted(&self, uid: &str) -> Vec<Attachment> {
        let now = self.clock.wall();
        let since = Some(Time(now.round(jiff::Unit::Second).unwrap_or(now)));
        let held = self.view.lock().ipam.held_by_pod(uid);
        let attachment = |Holding { owner, network, network_uid, addresses }| {
            let mac = intent::mac(uid, &owner.interface);
            Attachment {
                network,
                network_uid,
                interface: owner.interface,
                mac,
                addresses,
                since: since.clone(),
            }
        };
        held.into_iter().map(attachment).collect()
    }

    /// Deals with the links of all pods that live without a record, before anyone else is given their addresses.
    pub async fn adopt_all(&self) {
        let pods: Vec<Pod> = {
            let (view, orphans) =
                (self.view.lock(), self.orphans.lock().unwrap_or_else(PoisonError::into_inner));
            orphans.keys().filter_map(|uid| view.pods.get(uid).cloned()).collect()
        };
        for pod in pods {
            if let Err(error) = self.adopt(&pod).await {
                warn!(pod = %pod.key, %error, "links without a record are looked at later");
            }
        }
    }

    /// Whether this node owns all addresses of a link, or can claim their blocks; `None` if nobody can.
    async fn own_addresses(
        &self,
        host: &HostLink,
        observed: Option<&Observed>,
    ) -> Result<Option<bool>, RoundError> {
        let mut owned = None;
        for address in
            observed.and_then(|observed| pod_end(host, observed)).into_iter().flat_map(|link| &link.addresses)
        {
            match self.blocks.own(address.addr()).await? {
                Some(true) => owned = owned.or(Some(true)),
                Some(false) => return Ok(Some(false)),
                None => {}
            }
        }
        Ok(owned)
    }

    pub(super) fn has_orphans(&self, uid: &str) -> bool {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).contains_key(uid)
    }

    pub(super) fn forget_orphans(&self, uid: &str) {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
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
            let places: Vec<Place<'_>> = names.iter().map(|host| Place { host, link: None }).collect();
            let mut observed = Err(NetError::NamespaceGone(path.display().to_string()));
            net.visit(&path, &mut |_, session| observed = session.observe(&places))?;
            observed
        });
        observed.await.map(Some)
    }

    /// Whether all addresses of a link could be taken over.
    fn take_over(&self, uid: &str, host: &HostLink, observed: Option<&Observed>) -> bool {
        let Some(link) = observed.and_then(|observed| pod_end(host, observed)) else {
            return false;
        };
        let (name, addresses) = (&link.name, &link.addresses);
        let Ok(interface) = name.parse::<IfName>() else {
            return false;
        };
        let owner = ipam::owner(uid, &interface);
        let mut view = self.view.lock();
        let all = names::host_link(uid, name) == host.name
            && !addresses.is_empty()
            && addresses.iter().all(|address| view.ipam.adopt(address.addr(), &owner));
        if all {
            info!(interface = %interface, addresses = ?addresses, "addresses without a record are taken over");
        } else {
            view.ipam.give_back_interface(&owner);
        }
        all
    }

    pub(crate) fn know_links(&self, record: &Record) {
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

/// The pod's end of a host link, if it is in this namespace.
fn pod_end<'a>(host: &HostLink, observed: &'a Observed) -> Option<&'a PodLink> {
    let is_end =
        |link: &&PodLink| Some(link.index) == host.peer_index && host.peer_nsid == Some(observed.nsid);
    observed.links.iter().find(is_end)
}
