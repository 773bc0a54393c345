//! Writing what a pod holds, with a memory of writes whose outcome is unknown.

use std::sync::PoisonError;

use fairlead_crds::pod_network::Attachment;
use tokio::time::Instant;

use super::{Agent, Memory, RoundError};
use crate::api::LATE;
use crate::model::{Pod, Record};
use crate::record::RecordError;

impl Agent {
    /// Remembers that a write may be under way until an answer says what came of it.
    pub(super) async fn write_record(
        &self,
        pod: &Pod,
        record: Option<&Record>,
        attachments: Vec<Attachment>,
    ) -> Result<Record, RecordError> {
        let asked = Some((pod.key.clone(), Instant::now()));
        let before = self.remember(&pod.key.uid, |memory| std::mem::replace(&mut memory.unrecorded, asked));
        let written = match record {
            Some(record) => self.records.set_attachments(record, attachments).await,
            None => self.records.create(pod, attachments).await,
        };
        match &written {
            Ok(_) => self.remember(&pod.key.uid, |memory| memory.unrecorded = None),
            Err(error) if error.is_refusal() => {
                self.remember(&pod.key.uid, |memory| memory.unrecorded = before);
            }
            Err(_) => {}
        }
        written
    }

    /// Whether a write to a record may still be under way that no answer came to.
    pub fn has_unanswered_writes(&self) -> bool {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let late =
            |memory: &Memory| memory.unrecorded.as_ref().is_some_and(|(_, asked)| asked.elapsed() < LATE);
        memory.values().any(late)
    }

    /// Whether nobody knows what came of the last write to the pod's record. What links without a record are given is
    /// always the same, and needs no more than to be written again.
    pub(super) fn is_unanswered(&self, uid: &str) -> bool {
        self.remember(uid, |memory| memory.unrecorded.is_some()) && !self.has_orphans(uid)
    }

    /// Ends a write that no answer came to: from now on it fails, unless it has happened. The record as it is then.
    pub(super) async fn settle(&self, pod: &Pod) -> Result<Record, RoundError> {
        let record = self.records.settle(pod).await?;
        self.metrics.api_write("record");
        self.remember(&pod.key.uid, |memory| memory.unrecorded = None);
        self.view.lock().ipam.give_back_except(&pod.key.uid, &record.spec.attachments);
        self.keep_record(record.clone());
        Ok(record)
    }

    /// The record of what links had that were found without one.
    pub(super) async fn record_adopted(
        &self,
        pod: &Pod,
        adopted: Vec<Attachment>,
    ) -> Result<Record, RoundError> {
        let record = self.write_record(pod, None, adopted).await?;
        self.metrics.api_write("record");
        self.keep_record(record.clone());
        self.changed.notify_one();
        Ok(record)
    }
}
