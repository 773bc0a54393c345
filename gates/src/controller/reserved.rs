//! Driver: grants reserved addresses to pods that wait, gives each turn of one to a node, and gives up claims.
//!
//! Pods without a node are watched. Others are looked up by name: one that has just left the watch was bound or is
//! gone; and the pods of addresses that nobody holds, ever more rarely. Nothing is kept that a new leader would need.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_crds::network::AllowedFrom;
use fairlead_crds::{IPBlock, IPBlockSpec, Network, names};
use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tracing::{debug, info, warn};

use super::api::{CallError, Caller, json_patch};
use super::grant::{self, Action, Claimant, World};
use super::metrics::{Kind, Verb};
use super::model::{Block, Reserved as Facts, WaitingPod};
use super::node_patch;
use super::run::Driver;
use super::scheduling::Why;
use super::view::View;

/// Time to the second look at a pod; it doubles from then on.
const FIRST: Duration = Duration::from_millis(250);
/// Longest time between two looks at the pod of an address that nobody holds.
const LONGEST: Duration = Duration::from_secs(30);
/// Most pods that are looked up in one pass, and how many at one time.
const BATCH: usize = 64;
const PARALLEL: usize = 8;
/// The quarantine of addresses whose Network is gone; the default of `ipam.quarantine`.
const QUARANTINE: Duration = Duration::from_secs(130);

/// The driver.
pub struct Reserved {
    caller: Caller,
    api: Api<IPBlock>,
    /// Pods that waited for a node at the last look and may have reserved addresses.
    waited: BTreeSet<String>,
    looks: HashMap<String, Look>,
    /// By UID of a block: the turn that is over, and since when that is known here.
    rests: HashMap<String, (i64, Instant)>,
}

/// When a pod is looked up next.
#[derive(Debug, Clone, Copy)]
struct Look {
    next: Instant,
    pause: Duration,
}

/// What was looked up of a pod's claim.
#[derive(Debug)]
struct Answer {
    pod: Option<Claimant>,
    stateful_sets: Vec<(String, bool)>,
}

impl Reserved {
    /// A driver that begins its term.
    pub fn new(caller: Caller) -> Self {
        let api = Api::all(caller.client.clone());
        Self { caller, api, waited: BTreeSet::new(), looks: HashMap::new(), rests: HashMap::new() }
    }

    async fn pass(&mut self, view: &View) -> Option<Duration> {
        let networks: BTreeMap<String, Network> =
            view.networks().into_iter().filter_map(|n| Some((n.metadata.name.clone()?, n))).collect();
        let all = view.blocks.all();
        let mut pods: BTreeMap<String, Option<Claimant>> = view
            .pods
            .all()
            .iter()
            .map(|pod| Claimant::waiting(pod))
            .filter(|pod| grant::concerns(pod, &networks))
            .map(|pod| (pod.key(), Some(pod)))
            .collect();
        self.schedule(&pods, &all);
        let mut stateful_sets = BTreeMap::new();
        for (key, answer) in self.look_up(&all).await {
            pods.insert(key, answer.pod);
            stateful_sets.extend(answer.stateful_sets);
        }
        let blocks: BTreeMap<String, &Block> = all.iter().map(|b| (b.name.clone(), b.as_ref())).collect();
        let allowed = |namespace: &str, network: &Network| is_allowed(view, namespace, network);
        let rested = |block: &Block| self.has_rested(block, &networks);
        let actions = grant::plan(&World {
            networks: &networks,
            blocks: &blocks,
            pods: &pods,
            stateful_sets: &stateful_sets,
            allowed: &allowed,
            rested: &rested,
        });
        let mut again =
            self.looks.values().map(|look| look.next.saturating_duration_since(Instant::now())).min();
        for action in actions {
            if let Err(error) = self.carry_out(action, view).await {
                again = Some(FIRST);
                report(&error);
            }
        }
        again
    }

    /// Who is to be looked up: pods that left the watch, and those of addresses that nobody holds.
    fn schedule(&mut self, waiting: &BTreeMap<String, Option<Claimant>>, blocks: &[Arc<Block>]) {
        let now = Instant::now();
        let at_once = Look { next: now, pause: FIRST };
        let left: Vec<String> =
            self.waited.iter().filter(|key| !waiting.contains_key(*key)).cloned().collect();
        let mut free = BTreeSet::new();
        for (block, facts) in blocks.iter().filter_map(|block| Some((block, block.reserved.as_ref()?))) {
            let turn = facts.holder.as_ref().map_or(0, |holder| holder.turn);
            if facts.free {
                free.insert(facts.claim.pod.clone());
                let (known, _) = *self.rests.entry(facts.uid.clone()).or_insert((turn, now));
                if known != turn {
                    self.rests.insert(facts.uid.clone(), (turn, now));
                }
            } else {
                self.rests.remove(&facts.uid);
            }
            // A turn that has just ended: the next pod may be bound already.
            if facts.free && !block.node.is_empty() {
                self.looks.insert(facts.claim.pod.clone(), at_once);
            }
        }
        self.looks.retain(|key, _| free.contains(key) && !waiting.contains_key(key));
        for key in free.into_iter().filter(|key| !waiting.contains_key(key)) {
            self.looks.entry(key).or_insert(at_once);
        }
        self.looks.extend(left.into_iter().map(|key| (key, at_once)));
        self.waited = waiting.keys().cloned().collect();
    }

    async fn look_up(&mut self, blocks: &[Arc<Block>]) -> Vec<(String, Answer)> {
        let now = Instant::now();
        let mut due: Vec<String> =
            self.looks.iter().filter(|(_, look)| look.next <= now).map(|(key, _)| key.clone()).collect();
        due.sort();
        due.truncate(BATCH);
        for key in &due {
            self.looks.entry(key.clone()).and_modify(|look| {
                *look = Look { next: now + look.pause, pause: (look.pause * 2).min(LONGEST) };
            });
        }
        let sets = |key: &str| -> BTreeSet<String> {
            let claims = blocks.iter().filter_map(|block| block.reserved.as_ref()).map(|facts| &facts.claim);
            claims.filter(|claim| claim.pod == key).filter_map(|claim| claim.stateful_set.clone()).collect()
        };
        let asked = due.into_iter().map(|key| {
            let sets = sets(&key);
            async { (self.ask(&key, sets).await, key) }
        });
        let answers: Vec<_> = stream::iter(asked).buffer_unordered(PARALLEL).collect().await;
        let mut known = Vec::new();
        for (answer, key) in answers {
            match answer {
                Ok(answer) => known.push((key, answer)),
                Err(error) => {
                    warn!(pod = key, %error, "pod of a reserved address was not looked up");
                    // As if it had just left the watch.
                    self.waited.insert(key);
                }
            }
        }
        known
    }

    /// Quorum reads: what an address is given to, and taken from, is the newest state.
    async fn ask(&self, key: &str, sets: BTreeSet<String>) -> Result<Answer, CallError> {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        let pods: Api<core::Pod> = Api::namespaced(self.caller.client.clone(), namespace);
        let pod = self.caller.read("get a pod", pods.get_opt(name)).await?.and_then(Claimant::of);
        let api: Api<StatefulSet> = Api::namespaced(self.caller.client.clone(), namespace);
        let mut stateful_sets = Vec::new();
        for set in sets {
            let found = self.caller.read("get a statefulset", api.get_metadata_opt(&set)).await?;
            stateful_sets.push((format!("{namespace}/{set}"), found.is_some()));
        }
        Ok(Answer { pod, stateful_sets })
    }

    /// Counted by this process: a node's clock may differ, and after a change of the leader it begins anew.
    fn has_rested(&self, block: &Block, networks: &BTreeMap<String, Network>) -> bool {
        let network = networks.get(&block.network);
        let ipam = network.and_then(|network| network.spec.ipam.as_ref());
        let quarantine = ipam.map_or(QUARANTINE, |ipam| ipam.quarantine.0);
        let Some(facts) = &block.reserved else { return false };
        let since = self.rests.get(&facts.uid);
        facts.holder.is_none() || since.is_some_and(|(_, since)| since.elapsed() >= quarantine)
    }

    async fn carry_out(&self, action: Action, view: &View) -> Result<(), CallError> {
        match action {
            Action::Grant { name, spec } => self.grant(&name, *spec, view).await,
            Action::Assign { name, node, holder } => {
                let label = json!({ names::NODE_LABEL: names::pod_label(&node) });
                let spec = json!({ "nodeName": node, "holder": holder });
                self.patch(&name, &label, &spec, view).await?;
                info!(
                    block = name,
                    node,
                    pod = holder.pod_uid,
                    turn = holder.turn,
                    "reserved address assigned"
                );
                Ok(())
            }
            Action::Free { name } => {
                let label = json!({ names::NODE_LABEL: null });
                self.patch(&name, &label, &json!({ "nodeName": "" }), view).await
            }
            Action::GiveUp { name } => self.give_up(&name, view).await,
        }
    }

    async fn grant(&self, name: &str, spec: IPBlockSpec, view: &View) -> Result<(), CallError> {
        let claim = spec.claim.as_ref().map(|claim| claim.pod.clone()).unwrap_or_default();
        let pod = claim.split('/').next_back().unwrap_or_default();
        let labels = BTreeMap::from([(names::POD_LABEL.to_owned(), names::pod_label(pod))]);
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            finalizers: Some(vec![names::BLOCK_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        };
        let (params, block) = (PostParams::default(), IPBlock { metadata, spec, status: None });
        let call = self.api.create(&params, &block);
        let created = self.caller.write(Verb::Create, Kind::IPBlock, name, call).await?;
        info!(block = name, pod = claim, "reserved address granted");
        view.blocks.put(created);
        Ok(())
    }

    /// A change of exactly the version that was decided on.
    async fn patch(
        &self,
        name: &str,
        labels: &serde_json::Value,
        spec: &serde_json::Value,
        view: &View,
    ) -> Result<(), CallError> {
        let Some(facts) = facts(name, view) else { return Ok(()) };
        let metadata =
            json!({ "uid": facts.uid, "resourceVersion": facts.resource_version, "labels": labels });
        let (params, patch) =
            (PatchParams::default(), Patch::Merge(json!({ "metadata": metadata, "spec": spec })));
        let call = self.api.patch(name, &params, &patch);
        let block = self.caller.write(Verb::Patch, Kind::IPBlock, name, call).await?;
        view.blocks.put(block);
        Ok(())
    }

    /// First the deletion, on exactly the version that was decided on: from then on nobody is given the address.
    async fn give_up(&self, name: &str, view: &View) -> Result<(), CallError> {
        let Some(facts) = facts(name, view) else { return Ok(()) };
        if !facts.terminating {
            let this = Preconditions {
                uid: Some(facts.uid.clone()),
                resource_version: Some(facts.resource_version.clone()),
            };
            let params = DeleteParams::default().preconditions(this);
            let call = self.api.delete(name, &params);
            self.caller.write(Verb::Delete, Kind::IPBlock, name, call).await?;
            info!(block = name, pod = facts.claim.pod, "reserved address given up");
        }
        let Some(patch) =
            node_patch::without_finalizer(&facts.uid, &facts.finalizers, names::BLOCK_FINALIZER)
        else {
            return Ok(());
        };
        let (params, patch) = (PatchParams::default(), json_patch(patch));
        let call = self.api.patch(name, &params, &patch);
        match self.caller.write(Verb::Patch, Kind::IPBlock, name, call).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Why the reserved addresses of a pod without a node are not granted yet.
pub(super) fn ungranted(view: &View, pod: &WaitingPod, networks: &BTreeMap<String, Network>) -> Option<Why> {
    if !grant::concerns(&Claimant::waiting(pod), networks) {
        return None;
    }
    let all = view.blocks.all();
    let (pods, stateful_sets) = (BTreeMap::new(), BTreeMap::new());
    let world = World {
        networks,
        blocks: &all.iter().map(|block| (block.name.clone(), block.as_ref())).collect(),
        pods: &pods,
        stateful_sets: &stateful_sets,
        allowed: &|namespace, network| is_allowed(view, namespace, network),
        rested: &|_| false,
    };
    grant::why(pod, &world)
}

fn facts(name: &str, view: &View) -> Option<Facts> {
    view.blocks.get(name).and_then(|block| block.reserved.clone())
}

/// Whether pods of a namespace may use a network; not while its labels are unknown.
fn is_allowed(view: &View, namespace: &str, network: &Network) -> bool {
    let allowed = &network.spec.allowed_namespaces;
    let labels = view.namespaces.get(namespace);
    let selects = |labels: &BTreeMap<String, String>| {
        allowed.selector.as_ref().is_some_and(|selector| selector.matches(labels))
    };
    allowed.from == AllowedFrom::All || labels.is_some_and(|labels| selects(&labels))
}

fn report(error: &CallError) {
    if error.is_conflict() || error.is_not_found() {
        debug!(%error, "reserved address changed meanwhile");
    } else {
        warn!(%error, "reserved address was not written");
    }
}

impl Driver for Reserved {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        if view.is_uninstalling() { None } else { self.pass(view).await }
    }
}
