//! Kubernetes Events about pods of this node.

use fairlead_crds::{Reason, names};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tracing::debug;

use crate::api::call;
use crate::model::PodKey;

/// Publishes events; failing to is never an error of the work they are about.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// Events reported by the agent of the named node.
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: names::AGENT.to_owned(), instance: Some(node.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// Warns about a pod.
    pub async fn warn(&self, pod: &PodKey, reason: Reason, action: &str, note: String) {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_string(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        if let Err(error) = call("publish an event", self.recorder.publish(&event, &pod)).await {
            debug!(%error, "event not published");
        }
    }
}
