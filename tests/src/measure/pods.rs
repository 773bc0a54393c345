//! When pods become Ready and when they are gone, as one watch sees it.

use std::{
    collections::BTreeSet,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::{
    Api,
    core::{ApiResource, NotUsed, Object},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::Deserialize;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

use crate::cluster::Cluster;

const START_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The watch has seen all that was there before; of no pod.
    Listed,
    Ready,
    Gone,
}

/// Of a pod what is looked at: to decode all of it takes the processors from what is measured.
type SlimPod = Object<NotUsed, Status>;

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<PodCondition>,
}

type Seen = (String, State, Instant);

/// Tells when pods of a namespace become Ready, and when they are gone.
pub struct PodWatch {
    seen: UnboundedReceiver<Seen>,
    watch: JoinHandle<()>,
}

impl PodWatch {
    /// Begins to watch; from when this returns nothing is missed.
    pub async fn start(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let pods = ApiResource::erase::<Pod>(&());
        let api = Api::namespaced_with(cluster.client(), namespace, &pods);
        let (tell, mut seen) = unbounded_channel();
        let watch = tokio::spawn(watch(api, tell));
        let listed = async {
            while seen.recv().await.context("the watch has ended")?.1 != State::Listed {}
            Ok(())
        };
        let listed: Result<Result<()>, _> = tokio::time::timeout(START_TIMEOUT, listed).await;
        listed.context("the watch of pods does not begin")??;
        Ok(Self { seen, watch })
    }

    /// Waits until every one of the pods was seen Ready; how long after `begun` each was, in milliseconds.
    ///
    /// # Errors
    /// If one is not within `patience`.
    pub async fn ready(&mut self, names: &[String], begun: Instant, patience: Duration) -> Result<Vec<f64>> {
        let seen = self.until(names, State::Ready, patience).await.context("pods do not become Ready")?;
        Ok(seen.into_iter().map(|at| at.saturating_duration_since(begun).as_secs_f64() * 1000.0).collect())
    }

    /// Waits until none of the pods is left.
    ///
    /// # Errors
    /// If one is after `patience`.
    pub async fn gone(&mut self, names: &[String], patience: Duration) -> Result<()> {
        self.until(names, State::Gone, patience).await.context("pods do not go").map(drop)
    }

    async fn until(&mut self, names: &[String], state: State, patience: Duration) -> Result<Vec<Instant>> {
        let deadline = tokio::time::Instant::now() + patience;
        let mut missing: BTreeSet<&String> = names.iter().collect();
        let mut times = Vec::with_capacity(names.len());
        while !missing.is_empty() {
            let Ok(Some((name, now, at))) = tokio::time::timeout_at(deadline, self.seen.recv()).await else {
                bail!("waited {} s for {missing:?}", patience.as_secs());
            };
            if now == state && missing.remove(&name) {
                times.push(at);
            }
        }
        Ok(times)
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// An error of the watch is retried by the watcher itself; who waits has a time limit.
async fn watch(api: Api<SlimPod>, tell: UnboundedSender<Seen>) {
    let mut events = pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let (name, state) = match event {
            Ok(Event::InitDone) => (None, State::Listed),
            Ok(Event::Delete(pod)) => (pod.metadata.name, State::Gone),
            Ok(Event::Apply(pod) | Event::InitApply(pod)) if is_ready(&pod) => {
                (pod.metadata.name, State::Ready)
            }
            Ok(_) | Err(_) => continue,
        };
        if tell.send((name.unwrap_or_default(), state, Instant::now())).is_err() {
            return;
        }
    }
}

fn is_ready(pod: &SlimPod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| &status.conditions)
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
