//! An attachment by itself: the agent's own times, its netlink messages and its writes to the API server.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use fairlead_tests::{
    measure::{self, Section, Times, Unit},
    progress::Stage,
    wait,
};

use crate::bench::{Bench, PATIENCE, Variant};

/// In each column.
const PODS: usize = 100;

/// What the tables call it, how the pods are held, and how many are started at a time. All of them are gone before the next
/// are started: the node is idle but for them.
const WAYS: [(&str, Variant, usize); 3] = [
    ("gate, one by one", Variant::Gate, 1),
    ("nri, one by one", Variant::Nri, 1),
    ("nri, ten at once", Variant::Nri, 10),
];

/// What was found of a column.
struct Found {
    attach: Times,
    cut: Times,
    /// Of one pod, by kind.
    netlink: BTreeMap<String, f64>,
    /// Of one pod, by kind.
    writes: BTreeMap<String, f64>,
}

/// Starts and deletes a hundred pods in each of the ways.
pub async fn run(bench: &mut Bench<'_>) -> Result<Section> {
    let stage = bench.progress.long_stage("attaching pods");
    stage.total(u64::try_from(PODS * WAYS.len())?);
    let mut columns = Vec::new();
    for (_, variant, at_once) in WAYS {
        columns.push(measured(bench, &stage, variant, at_once).await?);
    }
    stage.done();
    let mut section = Section::new("attach", "An attachment on one node", WAYS.map(|(name, ..)| name));
    let attach: Vec<&Times> = columns.iter().map(|found| &found.attach).collect();
    section.percentiles("sandbox seen to marker set", &attach, ["3 ms", "", "10 ms"]);
    let cut: Vec<&Times> = columns.iter().map(|found| &found.cut).collect();
    section.percentiles("sandbox known gone to links cut", &cut, ["3 ms", "", ""]);
    counts(&mut section, "netlink requests per pod life", &columns, |found| &found.netlink);
    counts(&mut section, "API writes per pod life", &columns, |found| &found.writes);
    Ok(section)
}

async fn measured(bench: &mut Bench<'_>, stage: &Stage, variant: Variant, at_once: usize) -> Result<Found> {
    let node = bench.node()?;
    let mark = bench.cluster.audit_mark()?;
    let before = measure::netlink(node).await?;
    let (mut lives, mut counted) = (0_u32, BTreeSet::new());
    while counted.len() < PODS {
        bench.rests.take(1).await?;
        let started = bench.start(variant, at_once, std::slice::from_ref(node)).await?;
        bench.clear().await?;
        lives += u32::try_from(at_once)?;
        if !bench.rests.again(started.processors) {
            counted.extend(started.names);
            (0..at_once).for_each(|_| stage.step());
        }
    }
    let per_pod = |count: f64| count / f64::from(lives);
    let after = measure::netlink(node).await?.into_iter();
    let netlink = after.map(|(kind, count)| {
        let earlier = before.get(&kind).copied().unwrap_or_default();
        (kind, per_pod(count - earlier))
    });
    let writes = measure::writes(bench.cluster, mark, "fairlead-agent")?.into_iter();
    let writes = writes.filter_map(|(kind, n)| Some((kind, per_pod(f64::from(u32::try_from(n).ok()?)))));
    Ok(Found {
        attach: logged(bench, "elapsed_ms", &counted).await?,
        cut: logged(bench, "cut_ms", &counted).await?,
        netlink: netlink.collect(),
        writes: writes.collect(),
    })
}

/// What the agents logged of these pods. A record goes a moment before its agent logs what it took.
async fn logged(bench: &Bench<'_>, field: &str, pods: &BTreeSet<String>) -> Result<Times> {
    let what = format!("the agents to log {field} of all pods");
    wait::until(PATIENCE, &what, || async {
        let times = measure::logged(bench.cluster, field).await?;
        let missing = pods.iter().find(|pod| !times.contains_key(*pod));
        ensure!(missing.is_none(), "they have not of {missing:?}");
        Ok(pods.iter().map(|pod| times[pod]).collect())
    })
    .await
}

fn counts(
    section: &mut Section,
    what: &str,
    columns: &[Found],
    counts: fn(&Found) -> &BTreeMap<String, f64>,
) {
    let kinds: BTreeSet<&String> = columns.iter().flat_map(|found| counts(found).keys()).collect();
    for kind in kinds {
        let cells = columns.iter().map(|found| counts(found).get(kind).copied().unwrap_or_default());
        section.row(&format!("{what}: {kind}"), Unit::Count, cells);
    }
}
