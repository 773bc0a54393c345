//! What the agent watches: pods of its node, Networks, namespaces' labels, its node, the one Admission.
//!
//! Each source updates the view and says which pods to look at. None watches what other nodes write.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use fairlead_crds::{Admission, Network, NodeNetwork, names};
use futures::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1 as core;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::model::{Node, Pod};
use crate::queue::Queue;
use crate::view::{Inner, View};
use crate::wire::PodObject;

/// What every source does with what it sees.
#[derive(Clone)]
pub struct Sources {
    client: Client,
    node: String,
    view: Arc<View>,
    queue: Queue,
    changed: Arc<Notify>,
    networks_changed: Arc<Notify>,
    synced: watch::Sender<usize>,
}

/// Pods that one answer to a list holds: whole pods are large, and all but a few of their fields are dropped at once.
const PODS_AT_A_TIME: u32 = 50;
/// How many sources there are.
const SOURCES: usize = 6;

impl Sources {
    /// Sources of the named node.
    pub fn new(
        client: Client,
        node: &str,
        view: Arc<View>,
        queue: Queue,
        changed: Arc<Notify>,
        networks_changed: Arc<Notify>,
    ) -> Self {
        let (synced, _) = watch::channel(0);
        Self { client, node: node.to_owned(), view, queue, changed, networks_changed, synced }
    }

    /// Starts all sources; they end when cancelled.
    pub fn spawn(&self, tasks: &TaskTracker, cancel: &CancellationToken) {
        let pods = watcher::Config::default()
            .fields(&format!("spec.nodeName={}", self.node))
            .page_size(PODS_AT_A_TIME);
        let this_node = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let admission = watcher::Config::default().fields(&format!("metadata.name={}", names::ADMISSION));
        self.watch(tasks, cancel, pods, Sources::pod);
        let own = Api::<PartialObjectMeta<NodeNetwork>>::all(self.client.clone());
        self.follow(tasks, cancel, watcher::watcher(own, this_node.clone()), Sources::node_network);
        self.watch(tasks, cancel, this_node, Sources::node);
        self.watch(tasks, cancel, watcher::Config::default(), Sources::network);
        self.watch(tasks, cancel, admission, Sources::admission);
        // Metadata only: asking for the partial type makes the API server leave out the rest.
        let namespaces = Api::<PartialObjectMeta<core::Namespace>>::all(self.client.clone());
        self.follow(
            tasks,
            cancel,
            watcher::watcher(namespaces, watcher::Config::default()),
            Sources::namespace,
        );
    }

    /// Returns once every source has seen everything there is.
    pub async fn synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives as long as `self`.
        drop(synced.wait_for(|count| *count >= SOURCES).await);
    }

    fn watch<K>(
        &self,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
        config: watcher::Config,
        handle: fn(&Self, &mut Inner, &mut Seen, Event<K>),
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let stream = watcher::watcher(Api::<K>::all(self.client.clone()), config);
        self.follow(tasks, cancel, stream, handle);
    }

    fn follow<K: Send + 'static>(
        &self,
        tasks: &TaskTracker,
        cancel: &CancellationToken,
        stream: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
        handle: fn(&Self, &mut Inner, &mut Seen, Event<K>),
    ) {
        let (sources, cancel) = (self.clone(), cancel.clone());
        tasks.spawn(async move {
            let (mut stream, mut seen) = (pin!(stream.default_backoff()), Seen::default());
            loop {
                let event = tokio::select! {
                    () = cancel.cancelled() => return,
                    event = stream.try_next() => event,
                };
                match event {
                    Ok(Some(event)) => sources.take(event, &mut seen, handle),
                    Ok(None) => return,
                    Err(error) => warn!(%error, "a watch failed and starts again"),
                }
            }
        });
    }

    fn take<K>(&self, event: Event<K>, seen: &mut Seen, handle: fn(&Self, &mut Inner, &mut Seen, Event<K>)) {
        let done = matches!(event, Event::InitDone);
        handle(self, &mut self.view.lock(), seen, event);
        if done && !std::mem::replace(&mut seen.complete, true) {
            self.synced.send_modify(|count| *count += 1);
        }
    }

    fn pod(&self, view: &mut Inner, seen: &mut Seen, event: Event<PodObject>) {
        match event {
            Event::Init => seen.pods.clear(),
            Event::InitApply(pod) => {
                drop(Pod::try_from(pod).map(|pod| seen.pods.insert(pod.key.uid.clone(), pod)));
            }
            Event::InitDone => {
                let gone: Vec<String> =
                    view.pods.keys().filter(|uid| !seen.pods.contains_key(*uid)).cloned().collect();
                view.pods = std::mem::take(&mut seen.pods);
                self.queue.add_all(gone.into_iter().chain(view.pods.keys().cloned()));
            }
            Event::Apply(pod) => match Pod::try_from(pod) {
                Ok(pod) => self.pod_changed(view, pod),
                Err(what) => debug!(what, "ignored"),
            },
            Event::Delete(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    view.pods.remove(&uid);
                    self.queue.add(&uid);
                    self.changed.notify_one();
                }
            }
        }
    }

    /// Most updates of a pod are the kubelet's and change nothing that is read here.
    fn pod_changed(&self, view: &mut Inner, pod: Pod) {
        let uid = pod.key.uid.clone();
        let relevant = view.pods.get(&uid).is_none_or(|old| *old != pod);
        view.pods.insert(uid.clone(), pod);
        if relevant {
            self.queue.add(&uid);
            self.changed.notify_one();
        }
    }

    fn network(&self, view: &mut Inner, seen: &mut Seen, event: Event<Network>) {
        match event {
            Event::Init => seen.networks.clear(),
            Event::InitApply(network) => {
                if let Some(name) = network.metadata.name.clone() {
                    seen.networks.insert(name, network);
                }
                return;
            }
            Event::InitDone => view.set_networks(std::mem::take(&mut seen.networks)),
            Event::Apply(network) => view.apply_network(network),
            Event::Delete(network) => {
                view.delete_network(network.metadata.name.as_deref().unwrap_or_default());
            }
        }
        self.everything_changed(view);
        self.networks_changed.notify_one();
    }

    fn namespace(&self, view: &mut Inner, seen: &mut Seen, event: Event<PartialObjectMeta<core::Namespace>>) {
        let entry = |namespace: PartialObjectMeta<core::Namespace>| {
            Some((namespace.metadata.name?, namespace.metadata.labels.unwrap_or_default()))
        };
        match event {
            Event::Init => seen.namespaces.clear(),
            Event::InitApply(namespace) => seen.namespaces.extend(entry(namespace)),
            Event::InitDone => {
                view.namespaces = std::mem::take(&mut seen.namespaces);
                self.everything_changed(view);
            }
            Event::Apply(namespace) => {
                if let Some((name, labels)) = entry(namespace) {
                    if view.namespaces.get(&name) != Some(&labels) {
                        self.queue.add_all(
                            view.pods
                                .values()
                                .filter(|pod| pod.key.namespace == name)
                                .map(|pod| pod.key.uid.clone()),
                        );
                    }
                    view.namespaces.insert(name, labels);
                }
            }
            Event::Delete(namespace) => {
                drop(entry(namespace).and_then(|(name, _)| view.namespaces.remove(&name)));
            }
        }
    }

    fn node(&self, view: &mut Inner, _: &mut Seen, event: Event<core::Node>) {
        let (Event::InitApply(node) | Event::Apply(node)) = event else {
            return;
        };
        let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        let numbers = allocatable.iter().filter_map(|(name, number)| {
            Some((name.strip_prefix(names::RESOURCE_PREFIX)?.to_owned(), number.0.parse().ok()?))
        });
        // What is offered says only when blocks may go, which is looked at anyway.
        view.node.offered = numbers.collect();
        let node = Node {
            uid: node.metadata.uid.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            pod_limit: allocatable.get("pods").and_then(|pods| pods.0.parse().ok()).unwrap_or(0),
            offered: view.node.offered.clone(),
        };
        if view.node != node {
            view.set_node(node);
            self.everything_changed(view);
            self.networks_changed.notify_one();
        }
    }

    /// It goes with its Node, which can come back while the agent runs.
    fn node_network(&self, view: &mut Inner, seen: &mut Seen, event: Event<PartialObjectMeta<NodeNetwork>>) {
        let gone = match event {
            Event::Init => return seen.node_network = false,
            Event::InitApply(own) | Event::Apply(own) => {
                seen.node_network = own.metadata.deletion_timestamp.is_none();
                return;
            }
            Event::InitDone => !seen.node_network,
            Event::Delete(_) => true,
        };
        view.unpublished |= gone;
        if gone {
            self.changed.notify_one();
        }
    }

    fn admission(&self, view: &mut Inner, _: &mut Seen, event: Event<Admission>) {
        let uninstalling = match event {
            Event::InitApply(admission) | Event::Apply(admission) => admission.spec.uninstalling,
            Event::Init | Event::InitDone | Event::Delete(_) => return,
        };
        if std::mem::replace(&mut view.uninstalling, uninstalling) != uninstalling {
            self.everything_changed(view);
        }
    }

    fn everything_changed(&self, view: &Inner) {
        self.queue.add_all(view.uids());
        self.changed.notify_one();
    }
}

/// What a source has seen of a list that is not complete yet.
#[derive(Default)]
struct Seen {
    complete: bool,
    pods: BTreeMap<String, Pod>,
    networks: BTreeMap<String, Network>,
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    node_network: bool,
}
