//! An agent at work: what it reads first, and all its loops but those of the kernel and of the runtime's plugin.

use std::sync::Arc;

use anyhow::{Result, bail};
use kube::Client;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::hold::HoldWatch;
use crate::node_network::Publisher;
use crate::reconcile::Agent;
use crate::sandbox::watch::Subscription;
use crate::sources::Sources;
use crate::{handover, maintain, reserved, startup};

/// What an agent works with besides its edges.
pub struct Work {
    /// The agent.
    pub agent: Arc<Agent>,
    /// The API server.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// The sandboxes.
    pub sandboxes: Subscription,
    /// How the node can hold pods.
    pub hold: HoldWatch,
    /// Pods worked on side by side.
    pub parallel: usize,
}

impl Work {
    /// Begins to watch and waits until everything that has to be known is known; nothing is done in the kernel before,
    /// but cutting orphans.
    ///
    /// # Errors
    /// If the kernel cannot be read, or when cancelled.
    pub async fn learn(&self, tasks: &TaskTracker, cancel: &CancellationToken) -> Result<()> {
        let sources = Sources::new(
            self.client.clone(),
            &self.node,
            Arc::clone(&self.agent.view),
            self.agent.queue.clone(),
            Arc::clone(&self.agent.changed),
            Arc::clone(&self.agent.networks_changed),
        );
        sources.spawn(tasks, cancel);
        let known = async {
            sources.synced().await;
            let mut snapshots = self.sandboxes.snapshots();
            drop(snapshots.wait_for(|sandboxes| sandboxes.complete()).await);
            startup::recover(&self.agent).await
        };
        tokio::select! {
            () = cancel.cancelled() => bail!("stopped before everything was known"),
            known = known => known,
        }
    }

    /// Starts the loops; they end when cancelled.
    pub fn spawn(self, tasks: &TaskTracker, cancel: &CancellationToken) {
        let Self { agent, client, node, sandboxes, hold, parallel } = self;
        tasks.spawn(maintain::bridges(Arc::clone(&agent), cancel.clone()));
        tasks.spawn(maintain::addresses(Arc::clone(&agent), cancel.clone()));
        tasks.spawn(maintain::forget(Arc::clone(&agent), cancel.clone()));
        tasks.spawn(maintain::sandboxes(Arc::clone(&agent), sandboxes, cancel.clone()));
        tasks.spawn(reserved::run(Arc::clone(&agent), cancel.clone()));
        tasks.spawn(maintain::records(Arc::clone(&agent), cancel.clone()));
        tasks.spawn(maintain::uninstall(Arc::clone(&agent), cancel.clone()));
        let publisher = Publisher::new(
            client,
            &node,
            Arc::clone(&agent.view),
            Arc::clone(&agent.metrics),
            Arc::clone(&agent.changed),
            agent.clock.clone(),
            hold,
        );
        tasks.spawn(publisher.run(cancel.clone()));
        let (blocks, stop) = (Arc::clone(&agent.blocks), cancel.clone());
        tasks.spawn(async move { blocks.run(stop).await });
        let (leased, stop) = (Arc::clone(&agent), cancel.clone());
        tasks.spawn(async move {
            let asked = |successor: &str| handover::hand_over(&leased.view, successor, &stop);
            leased.lease.run(stop.clone(), || leased.blocks.load(), asked).await;
        });
        let (queue, stop) = (agent.queue.clone(), cancel.clone());
        tasks.spawn(async move {
            queue.run(parallel, stop, move |uid| Arc::clone(&agent).reconcile(uid)).await;
        });
        info!("agent is at work");
    }
}
