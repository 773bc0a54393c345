//! What the kernel tells of the node's links, turned into work: a pod to look at, or a bridge to look at.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::warn;

use crate::net::HostEvent;
use crate::reconcile::Agent;

/// How long a change that is not a deletion may settle: most are our own.
const SETTLE: Duration = Duration::from_secs(1);

/// Handles events until their source ends.
pub async fn run(agent: Arc<Agent>, mut events: mpsc::Receiver<HostEvent>) {
    while let Some(event) = events.recv().await {
        match event {
            HostEvent::Link { name, deleted } => {
                let Some(uid) = agent.owner_of_link(&name) else {
                    continue;
                };
                if deleted {
                    agent.queue.add(&uid);
                } else {
                    agent.queue.add_later(&uid, SETTLE);
                }
            }
            HostEvent::Other { name } => {
                // Every pod's primary interface is a link that is none of our business.
                if agent.bridges.forget(&name) {
                    agent.networks_changed.notify_one();
                }
            }
            HostEvent::Lost => {
                warn!("the kernel dropped events; everything is looked at again");
                agent.bridges.forget_all();
                agent.networks_changed.notify_one();
                let uids = agent.view.lock().uids();
                agent.queue.add_all(uids);
            }
        }
    }
}
