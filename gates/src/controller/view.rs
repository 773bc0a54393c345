//! Everything the leader watches, as one view. Started when a term begins, dropped when it ends.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_crds::{Admission, IPBlock, Network, NodeNetwork, PodNetwork, names};
use k8s_openapi::api::core::v1 as core;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cache::{Bell, Cache, follow};
use super::model::{Block, Node, NodeOffer, WaitingPod};
use super::unheld::Unheld;

/// The labels of a Namespace.
pub type Labels = BTreeMap<String, String>;

/// What the leader knows of the cluster.
#[derive(Debug, Default)]
pub struct View {
    /// All Networks.
    pub networks: Arc<Cache<Network>>,
    /// All Nodes.
    pub nodes: Arc<Cache<Node>>,
    /// All `NodeNetworks`.
    pub offers: Arc<Cache<NodeOffer>>,
    /// All blocks.
    pub blocks: Arc<Cache<Block>>,
    /// Pods without a node that carry one of our annotations, or our scheduling gate.
    pub pods: Arc<Cache<WaitingPod>>,
    /// Pods to be evicted because they were not held.
    pub unheld: Arc<Cache<Unheld>>,
    /// Labels of all Namespaces.
    pub namespaces: Arc<Cache<Labels>>,
    /// `Admission/default`.
    pub admission: Arc<Cache<Admission>>,
    /// Rings at every change.
    pub bell: Bell,
    uninstalling: AtomicBool,
}

impl View {
    /// Starts all watches; they end with the token.
    pub fn start(client: &Client, tasks: &mut JoinSet<()>, token: &CancellationToken) -> Arc<Self> {
        let view = Arc::new(Self::default());
        let mut start = Start { client, tasks, token, bell: &view.bell };
        start.watch::<Network, _>(
            Config::default(),
            |object| Some(without_managed_fields(object)),
            &view.networks,
        );
        start.watch::<core::Node, _>(Config::default(), |node| Some(node.into()), &view.nodes);
        start.watch::<NodeNetwork, _>(Config::default(), |object| Some(object.into()), &view.offers);
        start.watch::<IPBlock, _>(Config::default(), |object| Some(object.into()), &view.blocks);
        start.watch::<core::Pod, _>(Config::default().fields("spec.nodeName="), WaitingPod::of, &view.pods);
        let labelled = Config::default().labels(&Unheld::selector());
        start.watch::<PodNetwork, _>(labelled, Unheld::of, &view.unheld);
        start.watch::<PartialObjectMeta<core::Namespace>, _>(
            Config::default(),
            |namespace| Some(namespace.metadata.labels.unwrap_or_default()),
            &view.namespaces,
        );
        let one = Config::default().fields(&format!("metadata.name={}", names::ADMISSION));
        start.watch::<Admission, _>(one, |object| Some(without_managed_fields(object)), &view.admission);
        view
    }

    /// Whether every first list is complete, so that what is not here does not exist.
    pub fn is_ready(&self) -> bool {
        self.networks.is_ready()
            && self.nodes.is_ready()
            && self.offers.is_ready()
            && self.blocks.is_ready()
            && self.pods.is_ready()
            && self.unheld.is_ready()
            && self.namespaces.is_ready()
            && self.admission.is_ready()
    }

    /// Whether fairlead is being uninstalled; stays so when the Admission object is already gone.
    pub fn is_uninstalling(&self) -> bool {
        if let Some(admission) = self.admission.get(names::ADMISSION) {
            self.uninstalling.store(admission.spec.uninstalling, Ordering::Relaxed);
        }
        self.uninstalling.load(Ordering::Relaxed)
    }

    /// All Networks, as the pure modules take them.
    pub fn networks(&self) -> Vec<Network> {
        self.networks.all().iter().map(|network| network.as_ref().clone()).collect()
    }
}

fn without_managed_fields<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

struct Start<'a> {
    client: &'a Client,
    tasks: &'a mut JoinSet<()>,
    token: &'a CancellationToken,
    bell: &'a Bell,
}

impl Start<'_> {
    fn watch<K, T>(&mut self, config: Config, slim: fn(K) -> Option<T>, cache: &Arc<Cache<T>>)
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Default + Clone + Eq + Hash,
        T: Send + Sync + 'static,
    {
        let api: Api<DeserializeGuard<K>> = Api::all(self.client.clone());
        self.tasks.spawn(follow(api, config, slim, Arc::clone(cache), self.bell.clone(), self.token.clone()));
    }
}
