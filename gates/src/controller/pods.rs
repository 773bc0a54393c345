//! Driver: why pods without a node wait for their networks, as a condition and an event, and the end of their
//! scheduling gates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_crds::{Network, Reason, names};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::{debug, info, warn};

use super::api::{CallError, Caller, json_patch};
use super::events::Events;
use super::metrics::{Kind, Verb};
use super::model::{NodeOffer, WaitingPod};
use super::occupancy::{self, Claimed};
use super::reserved;
use super::run::Driver;
use super::scheduling::{self, Why, World};
use super::view::View;
use super::{hold, node_patch, waits};

/// A pod that is scheduled within this time costs no write.
const PATIENCE: Duration = Duration::from_secs(1);
/// Fewest time between two writes of one pod: where addresses come and go, many pods would change their word at once.
const REST: Duration = Duration::from_secs(5);
/// Most pods that are written in one look, so that a flood of them does not keep the others waiting.
const BATCH: usize = 100;
/// Gates that are lifted at one time.
const PARALLEL: usize = 8;

/// The driver.
pub struct Pods {
    caller: Caller,
    events: Events,
    told: BTreeSet<(String, Reason)>,
    written: HashMap<String, Instant>,
    /// UIDs of pods whose gate was lifted, until the watch brings them without it.
    lifted: BTreeSet<String>,
}

/// What a look finds of one pod.
struct Found {
    pod: Arc<WaitingPod>,
    /// Whether its scheduling gate stays.
    held: bool,
    /// What stands in its way, also beyond the gate.
    why: Option<Why>,
}

impl Pods {
    /// A driver that begins its term.
    pub fn new(caller: Caller, events: Events) -> Self {
        Self { caller, events, told: BTreeSet::new(), written: HashMap::new(), lifted: BTreeSet::new() }
    }

    async fn pass(&mut self, view: &View) -> Option<Duration> {
        let pods = view.pods.all();
        let uids: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.told.retain(|(uid, _)| uids.contains(uid.as_str()));
        self.written.retain(|uid, at| uids.contains(uid.as_str()) && at.elapsed() < REST);
        let found = look_at(view, &pods);
        let free = found.iter().filter(|found| !found.held).map(|found| Arc::clone(&found.pod));
        let (mut again, mut left) = (self.lift(free.collect()).await, BATCH);
        for Found { pod, why, .. } in found {
            if is_young(&pod) || self.written.contains_key(&pod.uid) {
                again = again.or(Some(PATIENCE));
            } else if let Some(wanted) = waits::condition(&pod, why.as_ref()) {
                if left == 0 {
                    return Some(Duration::ZERO);
                }
                left -= 1;
                if let Err(error) = self.tell(&pod, &wanted, why.is_some()).await {
                    again = again.or(Some(PATIENCE));
                    report(&pod, &error, "pod was not told why it waits");
                }
            }
        }
        again
    }

    /// Lifts the gates of these pods, of those that have ours. Says when to look again if not all of them went.
    async fn lift(&mut self, pods: Vec<Arc<WaitingPod>>) -> Option<Duration> {
        let gated: Vec<Arc<WaitingPod>> = pods.into_iter().filter(|pod| pod.is_gated()).collect();
        self.lifted.retain(|uid| gated.iter().any(|pod| pod.uid == *uid));
        let todo: Vec<_> = gated.into_iter().filter(|pod| !self.lifted.contains(&pod.uid)).collect();
        let caller = &self.caller;
        let lifts = todo.into_iter().map(|pod| async move {
            let outcome = lift(caller, &pod).await;
            (pod, outcome)
        });
        let done: Vec<_> = stream::iter(lifts).buffer_unordered(PARALLEL).collect().await;
        let mut again = None;
        for (pod, outcome) in done {
            match outcome {
                Ok(()) => {
                    self.lifted.insert(pod.uid.clone());
                }
                Err(error) => {
                    again = Some(PATIENCE);
                    report(&pod, &error, "scheduling gate was not lifted");
                }
            }
        }
        again
    }

    async fn tell(&mut self, pod: &WaitingPod, why: &Why, waits: bool) -> Result<(), CallError> {
        let api: Api<core::Pod> = Api::namespaced(self.caller.client.clone(), &pod.namespace);
        let (patch, params) = (Patch::Strategic(patch(pod, why, Timestamp::now())), PatchParams::default());
        self.caller
            .write(Verb::Patch, Kind::Pod, &pod.name, api.patch_status(&pod.name, &params, &patch))
            .await?;
        self.written.insert(pod.uid.clone(), Instant::now());
        info!(
            pod = format!("{}/{}", pod.namespace, pod.name),
            reason = why.reason.as_str(),
            "told why a pod waits"
        );
        if waits && self.told.insert((pod.uid.clone(), why.reason)) {
            let note = format!("{}: {}", why.reason, why.message);
            self.events.warn(&reference(pod), Reason::PodWaits, why.reason.as_str(), note).await?;
        }
        Ok(())
    }
}

/// Only our gate goes; those of others stay.
async fn lift(caller: &Caller, pod: &WaitingPod) -> Result<(), CallError> {
    let Some(patch) = node_patch::without_gate(&pod.uid, &pod.gates, names::SCHEDULING_GATE) else {
        return Ok(());
    };
    let api: Api<core::Pod> = Api::namespaced(caller.client.clone(), &pod.namespace);
    let (patch, params) = (json_patch(patch), PatchParams::default());
    caller.write(Verb::Patch, Kind::Pod, &pod.name, api.patch(&pod.name, &params, &patch)).await?;
    info!(pod = format!("{}/{}", pod.namespace, pod.name), "scheduling gate lifted");
    Ok(())
}

/// The version keeps a late write from a pod that was bound meanwhile: from then on the condition is the agent's.
fn patch(pod: &WaitingPod, why: &Why, now: Timestamp) -> serde_json::Value {
    json!({
        "metadata": { "uid": pod.uid, "resourceVersion": pod.resource_version },
        "status": { "conditions": [{
            "type": names::NETWORK_READY,
            "status": "False",
            "reason": why.reason.as_str(),
            "message": why.message,
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }] }
    })
}

fn look_at(view: &View, pods: &[Arc<WaitingPod>]) -> Vec<Found> {
    if pods.is_empty() {
        return Vec::new();
    }
    let networks: BTreeMap<String, Network> =
        view.networks().into_iter().filter_map(|n| Some((n.metadata.name.clone()?, n))).collect();
    let (offers, blocks) = (view.offers.all(), view.blocks.all());
    let offers: Vec<&NodeOffer> = offers.iter().map(AsRef::as_ref).collect();
    let claimed = Claimed::of(blocks.iter().map(AsRef::as_ref));
    let nodes = view.nodes.all();
    let strict = hold::has_strict(&nodes.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    let full =
        |name: &str| networks.get(name).is_some_and(|network| occupancy::is_exhausted(network, &claimed));
    let ungranted = |pod: &WaitingPod| reserved::ungranted(view, pod, &networks);
    let find = |pod: &Arc<WaitingPod>| {
        let labels = view.namespaces.get(&pod.namespace);
        let namespace = labels.as_deref();
        let world = World {
            networks: &networks,
            offers: &offers,
            namespace,
            full: &full,
            strict,
            ungranted: &ungranted,
        };
        let held = scheduling::holds(pod, &world).is_some();
        Found { pod: Arc::clone(pod), held, why: waits::why(pod, &world) }
    };
    pods.iter().map(find).collect()
}

fn is_young(pod: &WaitingPod) -> bool {
    let age = pod.created.map(|created| Timestamp::now().duration_since(created).as_secs_f64());
    age.is_some_and(|age| age < PATIENCE.as_secs_f64())
}

fn report(pod: &WaitingPod, error: &CallError, what: &str) {
    let name = format!("{}/{}", pod.namespace, pod.name);
    if error.is_conflict() || error.is_not_found() {
        debug!(pod = name, %error, "pod changed meanwhile");
    } else {
        warn!(pod = name, %error, "{what}");
    }
}

fn reference(pod: &WaitingPod) -> core::ObjectReference {
    core::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..core::ObjectReference::default()
    }
}

impl Driver for Pods {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        // Nobody would lift the gates once the controller is gone.
        if view.is_uninstalling() { self.lift(view.pods.all()).await } else { self.pass(view).await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_is_written_only_on_the_pod_that_was_looked_at() {
        let pod = WaitingPod { uid: "u".into(), resource_version: "7".into(), ..WaitingPod::default() };
        let why = Why { reason: Reason::NetworkNotFound, message: "m".into() };
        let patch = patch(&pod, &why, "2026-11-21T10:00:00.5Z".parse().unwrap());
        assert_eq!(patch["metadata"], json!({ "uid": "u", "resourceVersion": "7" }));
        assert_eq!(patch["status"]["conditions"][0]["lastTransitionTime"], "2026-11-21T10:00:00Z");
        assert_eq!(patch["status"]["conditions"][0]["status"], "False");
    }
}
