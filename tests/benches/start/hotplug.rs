//! A network for a running pod: from the edit of its annotation to the address in its namespace, and back.

use std::time::Instant;

use anyhow::{Context, Result};
use fairlead_crds::names;
use fairlead_tests::measure::{
    Section, Times,
    links::{self, Link},
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::bench::{Bench, PATIENCE, PLUG, Variant};

const INTERFACE: &str = "net1";

/// Times of one kind of edit, in milliseconds.
#[derive(Default)]
struct Edits {
    /// From the moment when the edit was sent.
    sent: Vec<f64>,
    /// Of the edit itself, until the API server has answered.
    edit: Vec<f64>,
    /// From the API server's answer; 0 if the agent was quicker.
    answered: Vec<f64>,
}

/// Plugs a network into a running pod and unplugs it, again and again.
pub async fn run(bench: &mut Bench<'_>, rounds: u32) -> Result<Section> {
    let stage = bench.progress.long_stage("plugging a network into a running pod");
    stage.total(u64::from(rounds));
    let node = bench.node()?;
    let started = bench.start(Variant::Bare, 1, std::slice::from_ref(node)).await?;
    let name = started.names.first().context("one pod was started")?;
    let uid = bench.pods.get(name).await?.uid().context("a pod has a UID")?;
    let pid = *node.sandbox_pids(&uid).await?.first().context("the pod has no sandbox")?;
    let (mut plugs, mut unplugs) = (Edits::default(), Edits::default());
    for _ in 0..rounds {
        plugs.edit(bench, name, json!(format!("{PLUG}@{INTERFACE}")), pid, Link::Usable).await?;
        unplugs.edit(bench, name, Value::Null, pid, Link::Gone).await?;
        stage.step();
    }
    bench.clear().await?;
    stage.done();
    Ok(section(plugs, unplugs))
}

fn section(plugs: Edits, unplugs: Edits) -> Section {
    let sent = [plugs.sent, unplugs.sent].map(Times::from);
    let edit = [plugs.edit, unplugs.edit].map(Times::from);
    let answered = [plugs.answered, unplugs.answered].map(Times::from);
    let columns = ["plug, until the address is usable", "unplug, until the interface is gone"];
    let mut section = Section::new("hotplug", "A network plugged into a running pod, and unplugged", columns);
    section.percentiles("since the edit was sent", &sent.each_ref(), ["plug 15 ms", "", "plug 60 ms"]);
    section.percentiles("of it until the API server's answer", &edit.each_ref(), [""; 3]);
    section.percentiles("since the API server's answer", &answered.each_ref(), [""; 3]);
    section.chart(&sent.each_ref());
    section
}

impl Edits {
    /// Edits the pod's annotation and waits until the interface is so.
    async fn edit(
        &mut self,
        bench: &mut Bench<'_>,
        pod: &str,
        networks: Value,
        pid: i32,
        wanted: Link,
    ) -> Result<()> {
        let patch = json!({ "metadata": { "annotations": { names::NETWORKS_ANNOTATION: networks } } });
        bench.rests.take(1).await?;
        let seen = tokio::spawn(links::until(pid, INTERFACE, wanted, PATIENCE));
        let sent = Instant::now();
        bench.pods.patch_metadata(pod, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let answered = Instant::now();
        let at = seen.await?.with_context(|| format!("after the edit of {pod}"))?;
        let since = |start| at.saturating_duration_since(start).as_secs_f64() * 1000.0;
        self.sent.push(since(sent));
        self.edit.push(answered.duration_since(sent).as_secs_f64() * 1000.0);
        self.answered.push(since(answered));
        Ok(())
    }
}
