//! Saying how far a pod is: the record's status, the pod's condition, an event, the marker's reason.

use fairlead_crds::pod_network::SandboxRef;
use fairlead_crds::{PodNetworkStatus, Reason};
use tracing::{info, warn};

use super::{Agent, RoundError};
use crate::intent::Problem;
use crate::model::{Pod, Record};
use crate::status::{self, Attached, Facts, Progress};

impl Agent {
    /// Writes status and condition where they changed, and publishes an event when a pod begins to wait.
    pub(super) async fn say(
        &self,
        pod: &Pod,
        record: &Record,
        sandbox: Option<SandboxRef>,
        up: &[Attached],
        progress: &Progress,
    ) -> Result<(), RoundError> {
        self.say_status(pod, record, sandbox, up, progress, false).await?;
        if let Progress::Waiting(problem) = progress {
            self.wait_aloud(pod, problem).await;
        }
        Ok(())
    }

    pub(super) async fn say_status(
        &self,
        pod: &Pod,
        record: &Record,
        sandbox: Option<SandboxRef>,
        up: &[Attached],
        progress: &Progress,
        unheld: bool,
    ) -> Result<(), RoundError> {
        let facts = Facts {
            pod,
            generation: record.generation,
            attachments: &record.spec.attachments,
            sandbox,
            up,
            progress,
            unheld,
        };
        let status = status::build(&facts, &record.status, self.clock.wall());
        // Both at once: neither waits for the other's answer.
        let (wrote, told) =
            tokio::join!(self.records.set_status(record, &status), self.say_on_pod(pod, progress));
        if let Some(version) = wrote? {
            self.metrics.api_write("status");
            self.keep_status(&pod.key.uid, status, version);
        }
        told
    }

    pub(super) async fn say_on_pod(&self, pod: &Pod, progress: &Progress) -> Result<(), RoundError> {
        let wanted = status::pod_condition(progress);
        if pod.condition.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let flipped = pod.condition.as_ref().is_none_or(|old| old.ready != wanted.ready);
        self.records.set_condition(pod, &wanted, flipped).await?;
        self.metrics.api_write("condition");
        // The watch tells later; until then we know what we wrote.
        if let Some(known) = self.view.lock().pods.get_mut(&pod.key.uid) {
            known.condition = Some(wanted);
        }
        Ok(())
    }

    fn keep_status(&self, uid: &str, status: PodNetworkStatus, version: String) {
        if let Some(record) = self.view.lock().records.get_mut(uid) {
            (record.status, record.version) = (status, version);
        }
    }

    async fn wait_aloud(&self, pod: &Pod, problem: &Problem) {
        if problem.reason == Reason::Waiting {
            return;
        }
        self.metrics.failure(problem.reason);
        self.tell_once(pod, Reason::PodWaits, format!("{}: {}", problem.reason, problem.message)).await;
    }

    /// Publishes an event, once per text that differs from the last one about this pod.
    pub(super) async fn tell_once(&self, pod: &Pod, reason: Reason, note: String) {
        let known = self.remember(&pod.key.uid, |memory| memory.told.replace(note.clone()));
        if known.as_deref() != Some(&note) {
            info!(%reason, %note, "told");
            self.events.warn(&pod.key, reason, "Attach", note).await;
        }
    }

    /// Tells of a repair, every time.
    pub(super) async fn tell_repair(&self, pod: &Pod, what: String) {
        warn!(changed = %what, "repaired");
        self.metrics.repair();
        self.events.warn(&pod.key, Reason::Repaired, "Repair", format!("put back: {what}")).await;
    }
}
