//! What is not about one pod: bridges of the node, pods that wait for addresses, letting go at an uninstallation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::LATE;
use crate::model::Pod;
use crate::reconcile::Agent;
use crate::sandbox::watch::Subscription;

/// How often the bridges are looked at without a reason.
const SURVEY_EVERY: Duration = Duration::from_secs(30);
/// How often the records are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(300);
/// Changes of the node's links come in bursts.
const SETTLE: Duration = Duration::from_millis(50);

/// Keeps the node's bridges as its Networks want them.
pub async fn bridges(agent: Arc<Agent>, cancel: CancellationToken) {
    loop {
        if !agent.view.lock().uninstalling {
            if agent.bridges.survey().await {
                let uids = agent.view.lock().uids();
                agent.queue.add_all(uids);
                agent.changed.notify_one();
            }
            agent.bridges.sweep().await;
            agent.end_held().await;
            agent.blocks.wake();
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = agent.networks_changed.notified() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(SURVEY_EVERY) => {}
        }
    }
}

/// How often addresses that came into quarantine are forgotten; less than any quarantine worth the name.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// Lets the kernel forget addresses while they are in quarantine, off the path of the pods that had them. After a
/// start all that are in quarantine are forgotten once more.
pub async fn forget(agent: Arc<Agent>, cancel: CancellationToken) {
    let mut forgotten = BTreeSet::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(FORGET_EVERY) => {}
        }
        let waiting: BTreeSet<_> =
            agent.view.lock().ipam.quarantined(agent.clock.now()).into_iter().collect();
        forgotten.retain(|entry| waiting.contains(entry));
        let new: Vec<_> = waiting.difference(&forgotten).cloned().collect();
        let addresses: Vec<_> = new.iter().map(|(network, address, _)| (network.clone(), *address)).collect();
        if agent.forget_addresses(&addresses).await {
            forgotten.extend(new);
        }
    }
}

/// Looks again at pods that are not ready whenever addresses may have become available.
pub async fn addresses(agent: Arc<Agent>, cancel: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = agent.blocks.gained() => {}
        }
        let waits = |pod: &&Pod| pod.condition.as_ref().is_none_or(|condition| !condition.ready);
        let uids: Vec<String> =
            agent.view.lock().pods.values().filter(waits).map(|pod| pod.key.uid.clone()).collect();
        agent.queue.add_all(uids);
        agent.changed.notify_one();
    }
}

/// Looks at pods whose sandboxes changed, and at those that wait for one when the runtime was listed anew.
pub async fn sandboxes(agent: Arc<Agent>, mut changes: Subscription, cancel: CancellationToken) {
    loop {
        let change = tokio::select! {
            () = cancel.cancelled() => return,
            change = changes.next() => change,
        };
        let Some(change) = change else { return };
        agent.saw(&change);
        let waiting = agent.gone_pods();
        agent.queue.add_all(change.uids.into_iter().chain(waiting));
    }
}

/// Compares this node's records with what is known: once when nothing that an earlier agent asked for can be under way any
/// more, then now and then.
pub async fn records(agent: Arc<Agent>, cancel: CancellationToken) {
    let mut pause = LATE;
    while cancel.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        if !agent.view.lock().uninstalling {
            agent.look_for_strays().await;
        }
        pause = COMPARE_EVERY;
    }
}

/// Lets go of this node's blocks once when fairlead is being uninstalled; records are let go of pod by pod.
pub async fn uninstall(agent: Arc<Agent>, cancel: CancellationToken) {
    let mut done = false;
    loop {
        let uninstalling = agent.view.lock().uninstalling;
        if uninstalling && !done {
            match agent.blocks.drop_all_finalizers().await {
                Ok(()) => {
                    done = true;
                    info!("fairlead is being uninstalled: this node's blocks are let go of");
                }
                Err(error) => warn!(%error, "cannot let go of this node's blocks"),
            }
        }
        done &= uninstalling;
        tokio::select! {
            biased;
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}
