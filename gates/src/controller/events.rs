//! Events of the controller.

use fairlead_crds::{Reason, names};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use super::api::{CallError, Caller};
use super::metrics::{Kind, Verb};

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    caller: Caller,
    recorder: Recorder,
}

impl Events {
    /// Events that this replica reports.
    pub fn new(caller: Caller, instance: String) -> Self {
        let reporter = Reporter { controller: names::CONTROLLER.to_owned(), instance: Some(instance) };
        let recorder = Recorder::new(caller.client.clone(), reporter);
        Self { caller, recorder }
    }

    /// A warning about an object. Repeats of one reason and action become a series, so the action tells causes apart.
    pub async fn warn(
        &self,
        object: &ObjectReference,
        reason: Reason,
        action: &str,
        note: String,
    ) -> Result<(), CallError> {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.as_str().to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        let name = object.name.as_deref().unwrap_or_default();
        self.caller.write(Verb::Create, Kind::Event, name, self.recorder.publish(&event, object)).await
    }
}
