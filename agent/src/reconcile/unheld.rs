//! Pods that the container runtime should have held: why their containers have to wait, and what if they did not.

use std::path::Path;

use fairlead_crds::network::Unheld;
use fairlead_crds::pod_network::SandboxRef;
use fairlead_crds::{ConditionType, Network, Reason};
use tracing::warn;

use super::{Agent, RoundError};
use crate::bring;
use crate::intent::Problem;
use crate::model::{Pod, Record};
use crate::sandbox::Sandbox;
use crate::status::{self, Progress};

impl Agent {
    /// The sentence for people whose pod is held: what its record says, or why there is none.
    pub fn why_it_waits(&self, uid: &str) -> String {
        let view = self.view.lock();
        let conditions = view.records.get(uid).into_iter().flat_map(|record| &record.status.conditions);
        let ready = conditions.into_iter().find(|c| c.type_ == ConditionType::Ready.as_str());
        match (ready, view.pods.get(uid)) {
            (Some(ready), _) if ready.status != "True" => format!("{}: {}", ready.reason, ready.message),
            (_, Some(_)) => format!("{}: {}", Reason::Attaching, Reason::Attaching.means()),
            (_, None) => "the agent of this node has not seen the pod yet".to_owned(),
        }
    }

    /// Whether containers ran in a sandbox before its interfaces were up, of a pod that the runtime should have held.
    /// It is said before the marker is set: the marker ends the evidence.
    pub(super) async fn check_hold(
        &self,
        pod: &Pod,
        record: Record,
        sandbox: &Sandbox,
        path: &Path,
    ) -> Result<Record, RoundError> {
        let (uid, id) = (&pod.key.uid, &sandbox.id);
        let is_known = status::is_unheld(&record.status, id) || status::is_ready(&record.status, id);
        if !pod.nri || is_known || self.waits.is_pending(id) || !self.runtime.has_started(id).await? {
            return Ok(record);
        }
        let (path, owner) = (path.to_owned(), uid.clone());
        let (cookie, nsid, marked) = self.on_kernel(move |net| bring::look(net, &path, &owner)).await?;
        if marked {
            return Ok(record);
        }
        warn!(sandbox = %id, "a container ran before the pod's interfaces were up");
        let boot_id = self.boot_id.clone();
        let identity = SandboxRef { id: id.clone(), attempt: sandbox.attempt, cookie, nsid, boot_id };
        self.say_unheld(pod, &record, identity).await?;
        Ok(self.view.lock().records.get(uid).cloned().unwrap_or(record))
    }

    /// Whether the pod is evicted instead of attached late: one of its networks wants that. The controller evicts.
    pub(super) async fn evicts(&self, record: &Record, sandbox: &Sandbox) -> Result<bool, RoundError> {
        if !status::is_unheld(&record.status, &sandbox.id) || !self.wants_eviction(record) {
            return Ok(false);
        }
        self.records.ask_for_eviction(record).await?;
        Ok(true)
    }

    fn wants_eviction(&self, record: &Record) -> bool {
        let view = self.view.lock();
        let evicts = |network: &Network| network.spec.unheld == Unheld::Evict;
        let mut networks = record.spec.attachments.iter().filter_map(|a| view.networks.get(&a.network));
        networks.any(evicts)
    }

    async fn say_unheld(&self, pod: &Pod, record: &Record, sandbox: SandboxRef) -> Result<(), RoundError> {
        let progress = Progress::Waiting(Problem::new(Reason::StartedUnheld, Reason::StartedUnheld.means()));
        self.tell_once(pod, Reason::StartedUnheld, Reason::StartedUnheld.means().to_owned()).await;
        self.say_status(pod, record, Some(sandbox), &[], &progress, true).await
    }
}
