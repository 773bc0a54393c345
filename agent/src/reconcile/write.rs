//! Writing what a pod holds, with a memory of writes whose outcome is unknown.

use fairlead_crds::pod_network::Attachment;
use tokio::time::Instant;

use super::{Agent, RoundError};
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
