//! One size of cluster: boots it, starts its agents, attaches and releases all pods, ends it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::names;
use fairlead_tests::progress::Progress;
use fairlead_tests::{Layout, wait};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::node::Hollow;
use super::{AgentMemory, Memory, Outcome, Phase};
use crate::meter::{Counts, Meter, since};
use crate::place::{AT_ONCE, Controller, NAMESPACE, NETWORK, Place, Resident};
use crate::report::{self, Latency, per};

/// How long all pods together may take to be attached, or to be released.
const PATIENCE: Duration = Duration::from_secs(3600);
/// What is still written when the last pod is attached.
const SETTLE: Duration = Duration::from_secs(3);
/// How long the agents may take to end.
const GRACE: Duration = Duration::from_secs(30);

/// Some nodes at work.
pub struct Trial {
    place: Place,
    nodes: Vec<Arc<Hollow>>,
    pods: u32,
    meter: Meter,
    tasks: TaskTracker,
    /// Ends the agents, also when the trial fails.
    cancel: DropGuard,
}

/// What was counted up to a moment.
struct Mark {
    at: Instant,
    counts: Counts,
    controller: BTreeMap<String, u64>,
    memory: u64,
}

impl Trial {
    /// Does all of it.
    pub async fn run(
        layout: Layout,
        nodes: u32,
        pods: u32,
        controller: &Controller,
        progress: &Progress,
    ) -> Result<Outcome> {
        let place = Place::boot(layout, nodes, pods, controller, progress).await?;
        let (empty, begun) = (Resident::of("self")?.now, Instant::now());
        let trial = Self::start(place, nodes, pods, progress).await?;
        let seconds_until_started = begun.elapsed().as_secs_f64();
        let started = trial.mark().await?;
        let (times, attaching) = trial.attach(progress).await?;
        let attached = trial.mark().await?;
        let releasing = trial.release(progress).await?;
        let released = trial.mark().await?;
        let each = |mark: &Mark| per(mark.memory.saturating_sub(empty), nodes.into());
        let size = (nodes, u64::from(nodes) * u64::from(pods));
        let outcome = Outcome {
            nodes,
            pods: size.1,
            seconds_until_started,
            attached: Latency::of(times),
            start: report::rows(&started.counts, size.1, None),
            attach: attached.phase_since(&started, size, attaching),
            release: released.phase_since(&attached, size, releasing),
            memory: Memory {
                agent: Some(AgentMemory { idle: each(&started), attached: each(&attached) }),
                api_server: trial.place.memory("kube-apiserver")?,
                etcd: trial.place.memory("etcd")?,
                controller: trial.place.memory(names::CONTROLLER)?,
            },
        };
        trial.end().await?;
        Ok(outcome)
    }

    async fn start(place: Place, nodes: u32, pods: u32, progress: &Progress) -> Result<Self> {
        let (tasks, cancel, meter) = (TaskTracker::new(), CancellationToken::new(), Meter::default());
        let guard = cancel.clone().drop_guard();
        let stage = progress.long_stage(format!("starting {nodes} hollow nodes"));
        stage.total(nodes.into());
        let created = place.add_nodes(nodes, pods).await?;
        let start = |node: core::Node| Hollow::start(&place, node, &meter, &tasks, &cancel);
        let nodes: Vec<_> = stream::iter(created)
            .map(start)
            .buffered(AT_ONCE)
            .inspect_ok(|_| stage.step())
            .try_collect()
            .await?;
        stage.done();
        Ok(Self { place, nodes, pods, meter, tasks, cancel: guard })
    }

    async fn end(self) -> Result<()> {
        drop(self.cancel);
        self.tasks.close();
        tokio::time::timeout(GRACE, self.tasks.wait()).await.context("the agents did not end")
    }

    /// Waits for what is still under way, and reads everything.
    async fn mark(&self) -> Result<Mark> {
        tokio::time::sleep(SETTLE).await;
        Ok(Mark {
            at: Instant::now(),
            counts: self.meter.read(),
            controller: self.place.controller_writes().await?,
            memory: Resident::of("self")?.now,
        })
    }

    /// Every node in turn gets a pod until all have theirs. How long each took to be attached, in milliseconds, and all
    /// together, in seconds.
    async fn attach(&self, progress: &Progress) -> Result<(Vec<f64>, f64)> {
        let all = u64::from(self.pods) * self.nodes.len() as u64;
        let stage = progress.long_stage(format!("attaching {all} pods"));
        stage.total(all);
        let api: Api<core::Pod> = Api::namespaced(self.place.client.clone(), NAMESPACE);
        let begun = Instant::now();
        let turns =
            (0..self.pods).flat_map(|number| self.nodes.iter().map(move |node| (number, Arc::clone(node))));
        let create = |(number, node): (u32, Arc<Hollow>)| {
            let api = api.clone();
            async move {
                let pod = api.create(&PostParams::default(), &pod(&node.name, number)?).await?;
                node.start_sandbox(&pod)
            }
        };
        let nodes: &[Arc<Hollow>] = &self.nodes;
        let creating =
            async { stream::iter(turns).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await };
        let watching = async {
            let mut times = Vec::new();
            while (times.len() as u64) < all {
                ensure!(
                    begun.elapsed() < PATIENCE,
                    "{} of {all} pods are attached: {}",
                    times.len(),
                    why_not(nodes)
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
                for took in nodes.iter().flat_map(|node| node.newly_attached()) {
                    times.push(took);
                    stage.step();
                }
            }
            Ok(times)
        };
        let ((), times) = tokio::try_join!(creating, watching)?;
        let seconds = begun.elapsed().as_secs_f64();
        stage.done();
        Ok((times, seconds))
    }

    /// Deletes all pods and ends their sandboxes. How long it took until no record was left, in seconds.
    async fn release(&self, progress: &Progress) -> Result<f64> {
        let stage = progress.long_stage("releasing all pods");
        let api: Api<core::Pod> = Api::namespaced(self.place.client.clone(), NAMESPACE);
        let begun = Instant::now();
        let pods = self
            .nodes
            .iter()
            .flat_map(|node| node.pods().into_iter().map(move |pod| (Arc::clone(node), pod)));
        let delete = |(node, (uid, name)): (Arc<Hollow>, (String, String))| {
            let api = api.clone();
            async move {
                api.delete(&name, &DeleteParams::default().grace_period(0)).await?;
                node.end_sandbox(&uid);
                Ok::<_, anyhow::Error>(())
            }
        };
        stream::iter(pods).map(delete).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let left = || self.nodes.iter().map(|node| node.records()).sum::<usize>();
        let done = || async { Ok(left() == 0) };
        if let Err(error) = wait::until_true(PATIENCE, "the release of all pods", done).await {
            bail!("{error:#}: {} records are left", left());
        }
        stage.done();
        Ok(begun.elapsed().as_secs_f64())
    }
}

impl Mark {
    fn phase_since(&self, earlier: &Self, size: (u32, u64), seconds: f64) -> Phase {
        let difference = |(kind, count): (&String, &u64)| {
            let before = earlier.controller.get(kind).copied().unwrap_or_default();
            (*count > before).then(|| (kind.clone(), count - before))
        };
        let counts = since(&earlier.counts, &self.counts);
        let watched = self.at.duration_since(earlier.at).as_secs_f64();
        Phase::new(&counts, size, (seconds, watched), self.controller.iter().filter_map(difference).collect())
    }
}

/// What the first pod that is not attached waits for.
fn why_not(nodes: &[Arc<Hollow>]) -> String {
    nodes.iter().find_map(|node| node.why_not()).unwrap_or_default()
}

fn pod(node: &str, number: u32) -> Result<core::Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": format!("{node}-{number}"),
            "annotations": { names::NETWORKS_ANNOTATION: NETWORK },
        },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "none.invalid/none" }],
        },
    }))?)
}
