//! Driver: what the controller takes back when fairlead is uninstalled. It touches nothing else then.
//!
//! It is done when no Node has a resource, taint or label of ours, no Network has our finalizer, and no block or record of
//! a node without a live agent has its finalizer; agents remove those of their own nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fairlead_crds::{Network, names};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::PatchParams;
use tracing::{info, warn};

use super::api::{CallError, Caller, json_patch};
use super::lost::Leases;
use super::metrics::{Kind, Verb};
use super::model::Node;
use super::run::Driver;
use super::taint::Changes;
use super::view::View;
use super::{node_patch, remains, startup};

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// The driver.
pub struct Uninstall {
    caller: Caller,
    startup_key: String,
    leases: Leases,
    looked: Option<Instant>,
}

impl Uninstall {
    /// A driver that begins its term.
    pub fn new(caller: Caller, startup_key: String) -> Self {
        Self { caller, startup_key, leases: Leases::default(), looked: None }
    }

    async fn pass(&mut self, view: &View) {
        for node in view.nodes.all() {
            complain("node", self.clean(&node, view).await);
        }
        let networks: Api<Network> = Api::all(self.caller.client.clone());
        for network in view.networks.all() {
            let dropped = remains::drop_finalizer(
                &self.caller,
                &networks,
                Kind::Network,
                &network,
                names::NETWORK_FINALIZER,
            )
            .await;
            complain("network", dropped);
        }
        complain("what lost nodes left", self.clear_lost(view).await);
    }

    async fn clean(&self, node: &Node, view: &View) -> Result<(), CallError> {
        let (api, params): (Api<core::Node>, _) =
            (Api::all(self.caller.client.clone()), PatchParams::default());
        if !node.resources.is_empty() {
            let all: Vec<_> = node.resources.keys().map(|network| (network.clone(), None)).collect();
            let patch = json_patch(node_patch::resources(node, &all));
            let call = api.patch_status(&node.name, &params, &patch);
            let written = self.caller.write(Verb::Patch, Kind::Node, &node.name, call).await?;
            view.nodes.put(written);
        }
        let current = node.taints.as_deref().unwrap_or_default();
        let exhausted =
            Changes::default().decide(&node.name, current, &BTreeMap::new(), Instant::now()).taints;
        let left = exhausted.as_deref().unwrap_or(current);
        let startup = startup::change(left, &self.startup_key, Some(false));
        if let Some(taints) = startup.or(exhausted) {
            let patch = json_patch(node_patch::taints(node, &taints));
            let written = self
                .caller
                .write(Verb::Patch, Kind::Node, &node.name, api.patch(&node.name, &params, &patch))
                .await?;
            view.nodes.put(written);
            info!(node = node.name, "taints of a node removed");
        }
        if let Some(patch) = node_patch::hold_label(node, None) {
            let patch = json_patch(patch);
            let call = api.patch(&node.name, &params, &patch);
            let written = self.caller.write(Verb::Patch, Kind::Node, &node.name, call).await?;
            view.nodes.put(written);
        }
        Ok(())
    }

    /// Blocks and records of nodes without a live agent, which would remove their finalizers itself.
    async fn clear_lost(&mut self, view: &View) -> Result<(), CallError> {
        let held = remains::leases(&self.caller).await?;
        let mut nodes = remains::nodes_with_records(&self.caller).await?;
        nodes.extend(view.blocks.all().iter().map(|block| block.node.clone()));
        self.leases.observe(&held, &BTreeSet::new(), Instant::now());
        let silent = |node: &&String| {
            !held.contains_key(*node) || self.leases.is_silent(node, Duration::ZERO, Instant::now())
        };
        for node in nodes.iter().filter(silent) {
            for record in remains::records_of(&self.caller, node).await? {
                remains::drop_record_finalizer(&self.caller, &record).await?;
            }
            for block in remains::blocks_of(&self.caller, node).await? {
                remains::drop_block_finalizer(&self.caller, &block).await?;
            }
        }
        Ok(())
    }
}

fn complain(what: &str, done: Result<(), CallError>) {
    match done {
        Err(error) if !error.is_conflict() && !error.is_not_found() => warn!(what, %error, "not cleared yet"),
        _ => {}
    }
}

impl Driver for Uninstall {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        if !view.is_uninstalling() {
            return None;
        }
        if let Some(rest) = self.looked.and_then(|at| PAUSE.checked_sub(at.elapsed())) {
            return Some(rest);
        }
        self.pass(view).await;
        self.looked = Some(Instant::now());
        Some(PAUSE)
    }
}
