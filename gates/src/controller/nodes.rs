//! Driver: extended resources, taints and the label of how they hold pods, of Nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_crds::admission::HeldBy;
use fairlead_crds::names;
use futures::{StreamExt, stream};
use json_patch::Patch;
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{ListParams, PatchParams};
use tracing::{debug, info, warn};

use super::api::{CallError, Caller, json_patch};
use super::metrics::{Kind, Verb};
use super::model::{self, Node, NodeOffer};
use super::node_patch::{self, ResourceChange};
use super::remains;
use super::resource::{Offer, Step, Tracker};
use super::run::Driver;
use super::startup::{self, Pulses, When};
use super::taint::{Changes, Facts, PAUSE};
use super::view::View;
use super::wanted::Wanted;

/// Nodes whose pods are listed, and nodes that are patched, at one time.
const PARALLEL: usize = 4;

/// The driver.
pub struct Nodes {
    caller: Caller,
    api: Api<core::Node>,
    flags: Flags,
    pulses: Pulses,
    heard: Option<Instant>,
    trackers: HashMap<(String, String), Tracker>,
    changes: Changes,
    began: Instant,
}

/// How taints are called, and when nodes get the start-up taint.
#[derive(Debug, Clone)]
pub struct Flags {
    /// Prefix of the taint of an exhausted network.
    pub prefix: String,
    /// When nodes get the start-up taint.
    pub startup: When,
    /// Key of the start-up taint.
    pub startup_key: String,
}

/// What a look decided about one node.
#[derive(Debug, Default)]
struct Todo {
    node: String,
    resources: Vec<ResourceChange>,
    taints: Option<Vec<core::Taint>>,
    keys: Vec<String>,
    label: Option<Patch>,
}

/// Resources of a node that are to be decided about.
struct Resources {
    node: Arc<Node>,
    /// By Network; a Network that is missing here offers nothing any more.
    targets: BTreeMap<String, Offer>,
    /// The Networks whose resources these are.
    networks: BTreeSet<String>,
}

/// What bound pods request on a node, by Network.
type Counts = BTreeMap<String, u64>;

impl Nodes {
    /// A driver that begins its term.
    pub fn new(caller: Caller, flags: Flags) -> Self {
        Self {
            api: Api::all(caller.client.clone()),
            caller,
            flags,
            pulses: Pulses::default(),
            heard: None,
            trackers: HashMap::new(),
            changes: Changes::default(),
            began: Instant::now(),
        }
    }

    async fn pass(&mut self, view: &View) -> Option<Duration> {
        let (wanted, nodes) = (wanted(view), view.nodes.all());
        self.trackers.retain(|(node, _), _| view.nodes.get(node).is_some());
        let admission = view.admission.get(names::ADMISSION);
        let auto = admission.map(|admission| admission.spec.hold).unwrap_or_default();
        let mut again = self.hear(auto).await;
        let (mut todos, mut uncounted) = (Vec::new(), Vec::new());
        for node in &nodes {
            let offer = view.offers.get(&node.name);
            let wants = self.wants_startup(node, offer.as_deref(), auto);
            let offer = offer.as_deref().cloned().unwrap_or_default();
            let targets = wanted.targets(&offer);
            let facts = wanted.facts(node, &offer, &self.flags.prefix);
            let mut todo = self.decide_taints(node, &facts, wants, &mut again);
            todo.label = node_patch::hold_label(node, offer.hold);
            let networks = targets.keys().chain(node.resources.keys()).cloned().collect();
            let all = Resources { node: Arc::clone(node), targets, networks };
            let networks = self.decide_resources(&all, None, &mut todo, &mut again);
            if networks.is_empty() {
                todos.push(todo);
            } else {
                uncounted.push((todo, Resources { networks, ..all }));
            }
        }
        for (mut todo, resources, counts) in self.count(uncounted).await {
            if let Some(counts) = counts {
                self.decide_resources(&resources, Some(&counts), &mut todo, &mut again);
            }
            todos.push(todo);
        }
        self.carry_out(todos, view).await;
        again
    }

    /// Listens to the Leases while they matter; says when to listen again.
    async fn hear(&mut self, auto: HeldBy) -> Option<Duration> {
        if !self.flags.startup.applies(auto) {
            (self.pulses, self.heard) = (Pulses::default(), None);
            return None;
        }
        if self.heard.is_none_or(|at| at.elapsed() >= Pulses::PAUSE) {
            match remains::leases(&self.caller).await {
                Ok(leases) => self.pulses.observe(&leases, Instant::now()),
                Err(error) => warn!(%error, "Leases of agents were not read"),
            }
            self.heard = Some(Instant::now());
        }
        Some(Pulses::PAUSE)
    }

    /// Whether a node shall have the start-up taint; `None`: as it is.
    fn wants_startup(&self, node: &Node, offer: Option<&NodeOffer>, auto: HeldBy) -> Option<bool> {
        if !self.flags.startup.applies(auto) {
            return Some(false);
        }
        startup::wants(node, offer, self.pulses.of(&node.name, Instant::now()), auto == HeldBy::Nri)
    }

    fn decide_taints(
        &mut self,
        node: &Node,
        facts: &BTreeMap<String, Facts>,
        wants_startup: Option<bool>,
        again: &mut Option<Duration>,
    ) -> Todo {
        let current = node.taints.as_deref().unwrap_or_default();
        let mut change = self.changes.decide(&node.name, current, facts, Instant::now());
        if change.waits {
            sooner(again, PAUSE / 5);
        }
        let taints = startup::change(
            change.taints.as_deref().unwrap_or(current),
            &self.flags.startup_key,
            wants_startup,
        );
        change.taints = taints.or(change.taints);
        Todo { node: node.name.clone(), taints: change.taints, keys: change.keys, ..Todo::default() }
    }

    /// Adds what is to be done about resources of a node; returns those for which its pods have to be counted first.
    fn decide_resources(
        &mut self,
        resources: &Resources,
        counts: Option<&Counts>,
        todo: &mut Todo,
        again: &mut Option<Duration>,
    ) -> BTreeSet<String> {
        let Resources { node, targets, networks } = resources;
        let mut uncounted = BTreeSet::new();
        for network in networks {
            let published = node.resources.get(network);
            // Capacity and allocatable that differ are set anew, as if the kubelet had just zeroed them.
            let current = published.map(|published| published.value().unwrap_or(0));
            let counted = counts.map(|counts| counts.get(network).copied().unwrap_or(0));
            let key = (node.name.clone(), network.clone());
            let tracker = self.trackers.entry(key).or_insert_with(|| Tracker::new(self.began));
            let target = targets.get(network).map_or(0, |offer| offer.target(current));
            match tracker.step(target, current, counted, Instant::now()) {
                Step::Nothing => {}
                Step::Count => {
                    uncounted.insert(network.clone());
                }
                Step::Wait(time) => sooner(again, time),
                Step::Set(value) => todo.resources.push((network.clone(), Some(value))),
                Step::Remove => todo.resources.push((network.clone(), None)),
            }
        }
        uncounted
    }

    /// Adds what the pods of each node request; `None` where that could not be read.
    async fn count(&self, uncounted: Vec<(Todo, Resources)>) -> Vec<(Todo, Resources, Option<Counts>)> {
        let count = uncounted.into_iter().map(|(todo, resources)| async move {
            let counts = self.requests(&todo.node).await;
            let counts = counts
                .inspect_err(|error| warn!(node = todo.node, %error, "pods of a node were not counted"));
            (todo, resources, counts.ok())
        });
        stream::iter(count).buffer_unordered(PARALLEL).collect().await
    }

    /// What bound pods of a node request. A quorum read: a copy could miss a pod that was just bound.
    async fn requests(&self, node: &str) -> Result<Counts, CallError> {
        let pods: Api<core::Pod> = Api::all(self.caller.client.clone());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = self.caller.read("list the pods of a node", pods.list(&of_node)).await?;
        let mut counts = Counts::new();
        for (network, count) in pods.items.iter().flat_map(model::requests) {
            *counts.entry(network).or_default() += count;
        }
        Ok(counts)
    }

    async fn carry_out(&mut self, todos: Vec<Todo>, view: &View) {
        let todos = todos
            .into_iter()
            .filter(|todo| todo.taints.is_some() || todo.label.is_some() || !todo.resources.is_empty());
        let done: Vec<(String, Vec<String>)> =
            stream::iter(todos).map(|todo| self.patch(todo, view)).buffer_unordered(PARALLEL).collect().await;
        for (node, keys) in done {
            self.changes.note(&node, keys, Instant::now());
        }
    }

    /// Patches one node; returns the taint keys that were changed.
    async fn patch(&self, todo: Todo, view: &View) -> (String, Vec<String>) {
        let Todo { node: name, resources, taints, keys, label } = todo;
        let Some(node) = view.nodes.get(&name) else { return (name, Vec::new()) };
        let (mut changed, params) = (Vec::new(), PatchParams::default());
        if !resources.is_empty() {
            let patch = json_patch(node_patch::resources(&node, &resources));
            let call = self.api.patch_status(&name, &params, &patch);
            if self.finish(&name, call, view).await {
                info!(node = name, count = resources.len(), first = ?resources.first(), "resources of a node changed");
                debug!(node = name, ?resources, "all of them");
            }
        }
        if let Some(taints) = taints {
            let patch = json_patch(node_patch::taints(&node, &taints));
            let call = self.api.patch(&name, &params, &patch);
            if self.finish(&name, call, view).await {
                info!(node = name, exhausted = ?keys, "taints of a node changed");
                changed = keys;
            }
        }
        if let Some(patch) = label {
            let patch = json_patch(patch);
            let call = self.api.patch(&name, &params, &patch);
            if self.finish(&name, call, view).await {
                info!(node = name, "the label of how a node holds pods changed");
            }
        }
        (name, changed)
    }

    async fn finish(
        &self,
        name: &str,
        call: impl Future<Output = kube::Result<core::Node>>,
        view: &View,
    ) -> bool {
        match self.caller.write(Verb::Patch, Kind::Node, name, call).await {
            Ok(node) => {
                view.nodes.put(node);
                return true;
            }
            Err(error) if error.is_conflict() || error.is_not_found() => {
                debug!(node = name, %error, "Node changed meanwhile");
            }
            Err(error) => warn!(node = name, %error, "Node was not written"),
        }
        false
    }
}

/// What the Networks want of nodes, as the leader sees them.
fn wanted(view: &View) -> Wanted {
    let blocks = view.blocks.all();
    Wanted::new(view.networks(), blocks.iter().map(AsRef::as_ref))
}

fn sooner(again: &mut Option<Duration>, time: Duration) {
    *again = Some(again.map_or(time, |other| other.min(time)));
}

impl Driver for Nodes {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        if view.is_uninstalling() { None } else { self.pass(view).await }
    }
}
