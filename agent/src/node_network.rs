//! The node's own object: what it can promise, written at once when that changes and rarely otherwise.

use std::sync::Arc;
use std::time::Duration;

use fairlead_crds::node_network::{FamilyOnNode, NetworkOnNode};
use fairlead_crds::{ConditionType, NodeHold, NodeNetwork, NodeNetworkSpec, NodeNetworkStatus, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::api::{ApiError, call, merge_patch};
use crate::capacity;
use crate::clock::Clock;
use crate::hold::HoldWatch;
use crate::ipam::{Block, Counts, Family};
use crate::metrics::Metrics;
use crate::model;
use crate::view::{Inner, View};

/// Publishes the node's object.
pub struct Publisher {
    client: Client,
    node: String,
    view: Arc<View>,
    metrics: Arc<Metrics>,
    changed: Arc<Notify>,
    clock: Clock,
    hold: HoldWatch,
    written: Option<NodeNetworkStatus>,
}

/// Least time between two writes when a promise changed.
const PROMISE_EVERY: Duration = Duration::from_secs(1);
/// Least time between two writes of counts that promise nothing new.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// Least time between two writes that only say how much more could be claimed: that changes on all nodes at once.
const CLAIMABLE_EVERY: Duration = Duration::from_secs(300);

impl Publisher {
    /// Publishes for the named node; `changed` tells when to look.
    pub fn new(
        client: Client,
        node: &str,
        view: Arc<View>,
        metrics: Arc<Metrics>,
        changed: Arc<Notify>,
        clock: Clock,
        hold: HoldWatch,
    ) -> Self {
        Self { client, node: node.to_owned(), view, metrics, changed, clock, hold, written: None }
    }

    /// Publishes until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut last = None::<Instant>;
        match self.ensure(&Api::all(self.client.clone())).await {
            // What an earlier agent of this node found out is believed until this one knows better.
            Ok(before) => self.hold.remember(&before, Instant::now()),
            Err(error) => warn!(%error, "cannot read what this node promised before"),
        }
        loop {
            let due = self.look();
            let since = last.map_or(COUNT_EVERY, |at| at.elapsed());
            let wait = due.as_ref().map_or(Duration::MAX, |(_, every)| every.saturating_sub(since));
            if let (Some((status, _)), true) = (due, wait.is_zero()) {
                last = Some(Instant::now());
                if let Err(error) = self.write(status).await {
                    warn!(%error, "cannot say what this node can promise");
                }
                continue;
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.changed.notified() => {}
                // Quarantines end without anyone telling.
                () = tokio::time::sleep(wait.min(PROMISE_EVERY)) => {}
            }
        }
    }

    /// The status as it should be, if it differs, and the least time between two writes of what differs.
    fn look(&mut self) -> Option<(NodeNetworkStatus, Duration)> {
        let hold = self.hold.look();
        let mut view = self.view.lock();
        if std::mem::take(&mut view.unpublished) {
            self.written = None;
        }
        let status = status(&view, hold, self.written.as_ref(), &self.clock);
        self.count(&view, &status);
        drop(view);
        let Some(written) = &self.written else {
            return Some((status, PROMISE_EVERY));
        };
        let promise = capacity::promise_changed(&written.networks, &status.networks)
            || written.conditions != status.conditions;
        let every = if promise {
            PROMISE_EVERY
        } else if capacity::only_claimable_changed(&written.networks, &status.networks) {
            CLAIMABLE_EVERY
        } else {
            COUNT_EVERY
        };
        (*written != status).then_some((status, every))
    }

    fn count(&self, view: &Inner, status: &NodeNetworkStatus) {
        for network in &status.networks {
            self.metrics.addresses(&network.name, "used", network.used);
            self.metrics.addresses(&network.name, "free", network.free);
            self.metrics.addresses(&network.name, "quarantined", network.quarantined);
        }
        let ready = |record: &&model::Record| {
            record.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        };
        let attached = view.records.values().filter(ready).count();
        self.metrics.pods("attached", attached);
        self.metrics.pods("waiting", view.records.len() - attached);
    }

    async fn write(&mut self, status: NodeNetworkStatus) -> Result<(), ApiError> {
        let api: Api<NodeNetwork> = Api::all(self.client.clone());
        let before = match &self.written {
            Some(written) => written.clone(),
            None => self.ensure(&api).await?,
        };
        let value = |status: &NodeNetworkStatus| serde_json::to_value(status).unwrap_or(Value::Null);
        if let Some(change) = merge_patch(&value(&before), &value(&status)) {
            let patch = Patch::Merge(json!({ "status": change }));
            match call(
                "patch NodeNetwork status",
                api.patch_status(&self.node, &PatchParams::default(), &patch),
            )
            .await
            {
                Err(error) => {
                    // Someone may have deleted it: look again next time.
                    self.written = None;
                    return Err(error);
                }
                Ok(_) => self.metrics.api_write("node"),
            }
        }
        self.written = Some(status);
        Ok(())
    }

    /// The object's present status; creates the object if it is missing.
    async fn ensure(&self, api: &Api<NodeNetwork>) -> Result<NodeNetworkStatus, ApiError> {
        if let Some(found) = call("get NodeNetwork", api.get_opt(&self.node)).await? {
            return Ok(found.status.unwrap_or_default());
        }
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: self.view.lock().node.uid.clone(),
            block_owner_deletion: Some(false),
            controller: None,
        };
        let metadata = ObjectMeta {
            name: Some(self.node.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        let object = NodeNetwork { metadata, spec: NodeNetworkSpec {}, status: None };
        call("create NodeNetwork", api.create(&PostParams::default(), &object)).await?;
        Ok(NodeNetworkStatus::default())
    }
}

/// What this node can promise now.
fn status(
    view: &Inner,
    (hold, why): (NodeHold, Reason),
    before: Option<&NodeNetworkStatus>,
    clock: &Clock,
) -> NodeNetworkStatus {
    let surplus = view.ipam.surplus(view.free_slots(), clock.now());
    let networks: Vec<NetworkOnNode> = view
        .networks
        .values()
        .filter(|network| network.is_accepted() && model::is_on_node(network, &view.node.labels))
        .filter_map(|network| {
            let (name, has_ipam) = (network.metadata.name.as_deref()?, network.spec.ipam.is_some());
            Some(on_node(view, name, has_ipam, &surplus, clock.now()))
        })
        .collect();
    let known = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    let now = clock.wall();
    NodeNetworkStatus {
        agent_version: Some(fairlead_crds::VERSION.to_owned()),
        hold: Some(hold),
        summary: (!networks.is_empty()).then(|| capacity::summary(&networks)),
        networks,
        conditions: vec![
            condition(ConditionType::Ready, true, Reason::AgentReady, known, now),
            condition(ConditionType::HoldStrict, hold == NodeHold::NriStrict, why, known, now),
        ],
    }
}

/// A condition of this node, which has been so since it last was otherwise.
fn condition(
    kind: ConditionType,
    holds: bool,
    reason: Reason,
    known: &[Condition],
    now: Timestamp,
) -> Condition {
    let status = if holds { "True" } else { "False" };
    let same = known.iter().find(|old| old.type_ == kind.as_str() && old.status == status);
    Condition {
        type_: kind.to_string(),
        status: status.to_owned(),
        reason: reason.to_string(),
        message: reason.means().to_owned(),
        observed_generation: None,
        last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
    }
}

fn on_node(view: &Inner, network: &str, has_ipam: bool, surplus: &[&Block], now: Timestamp) -> NetworkOnNode {
    let trouble = view.troubles.get(network);
    let counts = view.ipam.counts(network, now).unwrap_or_default();
    let families = view.ipam.counts_by_family(network, now).unwrap_or_default();
    let promised = match view.ipam.pool(network) {
        // Reserved addresses are granted before the pod is scheduled, and good on any node.
        Some(pool) if pool.has_only_reserved() => view.node.pod_limit,
        Some(pool) => view.promised(pool, surplus, now),
        None if has_ipam => 0,
        None => view.node.pod_limit,
    };
    NetworkOnNode {
        name: network.to_owned(),
        ready: trouble.is_none(),
        reason: trouble.map(|problem| problem.reason.to_string()),
        message: trouble.map(|problem| problem.message.clone()),
        owned: counts.owned,
        used: counts.used,
        quarantined: counts.quarantined,
        free: counts.free,
        promised,
        claimable: counts.claimable,
        families: if families.len() > 1 { families.into_iter().map(of_family).collect() } else { Vec::new() },
    }
}

fn of_family((family, counts): (Family, Counts)) -> FamilyOnNode {
    let Counts { owned, used, quarantined, free, claimable } = counts;
    FamilyOnNode { family, owned, used, quarantined, free, claimable }
}
