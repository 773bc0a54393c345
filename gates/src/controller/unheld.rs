//! Driver: evicts pods whose containers ran before their interfaces were up, where a network wants that.
//!
//! The agent of the pod's node finds them and labels their records. It evicts nobody itself: an eviction does not say
//! of which node the pod is, so no policy could keep an agent to its own.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fairlead_crds::{PodNetwork, names};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Preconditions};
use tracing::{debug, info, warn};

use super::api::{CallError, Caller};
use super::metrics::{Kind, Verb};
use super::run::Driver;
use super::view::View;

/// Between two attempts for one pod: a disruption budget may have to wait for other pods.
const REST: Duration = Duration::from_secs(10);
/// Most evictions in one look.
const BATCH: usize = 20;

/// A pod to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    namespace: String,
    pod: String,
    uid: String,
}

impl Unheld {
    /// What is read of a labelled record; none for one that is being deleted.
    pub fn of(record: PodNetwork) -> Option<Self> {
        if record.metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            namespace: record.metadata.namespace?,
            pod: record.spec.pod_name,
            uid: record.spec.pod_uid,
        })
    }

    /// Label selector of the records.
    pub fn selector() -> String {
        format!("{}={}", names::EVICT_LABEL, names::EVICT_UNHELD)
    }
}

/// The driver.
pub struct Evictions {
    caller: Caller,
    tried: HashMap<String, Instant>,
}

impl Evictions {
    /// A driver that begins its term.
    pub fn new(caller: Caller) -> Self {
        Self { caller, tried: HashMap::new() }
    }

    async fn evict(&self, unheld: &Unheld) -> Result<(), CallError> {
        let api: Api<core::Pod> = Api::namespaced(self.caller.client.clone(), &unheld.namespace);
        let params = params(unheld);
        let call = api.evict(&unheld.pod, &params);
        self.caller.write(Verb::Evict, Kind::Pod, &unheld.pod, call).await.map(drop)
    }
}

/// Another pod of the same name is not meant.
fn params(unheld: &Unheld) -> EvictParams {
    let preconditions = Some(Preconditions { uid: Some(unheld.uid.clone()), resource_version: None });
    let delete_options = Some(DeleteParams { preconditions, ..DeleteParams::default() });
    EvictParams { delete_options, ..EvictParams::default() }
}

impl Driver for Evictions {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        self.tried.retain(|_, at| at.elapsed() < REST);
        let all = view.unheld.all();
        if all.is_empty() || view.is_uninstalling() {
            return None;
        }
        let due: Vec<_> =
            all.into_iter().filter(|unheld| !self.tried.contains_key(&unheld.uid)).take(BATCH).collect();
        for unheld in due {
            self.tried.insert(unheld.uid.clone(), Instant::now());
            let pod = format!("{}/{}", unheld.namespace, unheld.pod);
            match self.evict(&unheld).await {
                Ok(()) => info!(pod, "pod evicted: a container ran before its interfaces were up"),
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    debug!(pod, %error, "pod is gone");
                }
                Err(error) => warn!(pod, %error, "pod is not evicted yet"),
            }
        }
        Some(REST)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(metadata: &serde_json::Value) -> PodNetwork {
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork", "metadata": metadata,
            "spec": { "podName": "p", "podUID": "u", "nodeName": "n", "attachments": [] }
        }))
        .unwrap()
    }

    #[test]
    fn the_pod_of_the_record_is_evicted_and_no_other_of_its_name() {
        let unheld = Unheld::of(record(&json!({ "namespace": "ns", "name": "p-u" }))).unwrap();
        assert_eq!((unheld.namespace.as_str(), unheld.pod.as_str()), ("ns", "p"));
        let uid = params(&unheld).delete_options.unwrap().preconditions.unwrap().uid;
        assert_eq!(uid.as_deref(), Some("u"));
    }

    #[test]
    fn a_record_that_goes_away_is_left_alone() {
        let leaving =
            json!({ "namespace": "ns", "name": "p-u", "deletionTimestamp": "2026-11-21T10:00:00Z" });
        assert_eq!(Unheld::of(record(&leaving)), None);
    }
}
