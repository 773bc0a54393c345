//! What fairlead's programs hold in memory: idle, with pods, and when they are gone.

use anyhow::{Context, Result};
use fairlead_crds::names;
use fairlead_tests::{
    Cluster,
    measure::{
        Section, Unit,
        usage::{self, Memory},
    },
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::ListParams};

use crate::bench::{Bench, Variant};

/// How many pods one node has at each reading, if it takes as many.
const FILLS: [usize; 2] = [100, 250];
/// How many are created at once.
const WAVE: usize = 50;
/// Containers of fairlead by the name of their app, with what is aimed at.
const PROGRAMS: [(&str, &str, &str); 3] = [
    (names::AGENT, "agent", "12 MiB idle, 20 MiB with 250 pods"),
    (names::AGENT, "guard", ""),
    (names::CONTROLLER, "controller", ""),
];

/// Memory of each of [`PROGRAMS`], of the process that holds most: of the agents that of the busiest node, of the
/// controllers the leader.
pub type Reading = Vec<Memory>;

/// Reads it.
pub async fn read(cluster: &Cluster) -> Result<Reading> {
    let mut reading = Vec::new();
    for (app, container, _) in PROGRAMS {
        let pids = usage::pids(cluster, app, container).await?;
        let all = pids.into_iter().map(Memory::of).collect::<Result<Vec<_>>>()?;
        let largest = all.into_iter().max_by(|a, b| a.resident.total_cmp(&b.resident));
        reading.push(largest.with_context(|| format!("no {container}"))?);
    }
    Ok(reading)
}

/// Fills one node with pods that the runtime holds, and empties it.
pub async fn run(bench: &mut Bench<'_>, idle: &Reading) -> Result<Section> {
    let stage = bench.progress.long_stage("filling a node");
    let most = room(bench).await?;
    let fills = FILLS.map(|pods| pods.min(most));
    stage.total(fills[1] as u64);
    let node = std::slice::from_ref(bench.node()?);
    let (mut columns, mut readings) = (vec!["before the first pod".to_owned()], vec![idle.clone()]);
    let mut running = 0;
    for pods in fills {
        while running < pods {
            let wave = WAVE.min(pods - running);
            bench.start(Variant::Nri, wave, node).await?;
            running += wave;
            (0..wave).for_each(|_| stage.step());
        }
        columns.push(format!("{pods} pods on one node"));
        readings.push(read(bench.cluster).await?);
    }
    bench.clear().await?;
    columns.push("when they are gone".to_owned());
    readings.push(read(bench.cluster).await?);
    stage.done();
    Ok(section(columns, &readings))
}

fn section(columns: Vec<String>, readings: &[Reading]) -> Section {
    let mut section = Section::new("memory", "Resident memory", columns);
    for (program, (_, name, target)) in PROGRAMS.iter().enumerate() {
        let of =
            |figure: fn(&Memory) -> f64| readings.iter().map(move |reading| reading.get(program).map(figure));
        section.row(&format!("{name}, all"), Unit::Mebibytes, of(|memory| memory.resident));
        section.target(target);
        section.row(&format!("{name}, not backed by a file"), Unit::Mebibytes, of(|memory| memory.anonymous));
    }
    section
}

/// How many more pods the first node takes.
async fn room(bench: &Bench<'_>) -> Result<usize> {
    let (client, name) = (bench.cluster.client(), bench.node()?.name());
    let node = Api::<Node>::all(client.clone()).get(&name).await?;
    let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
    let most: usize =
        allocatable.get("pods").context("the node does not say how many pods it takes")?.0.parse()?;
    let on_it = ListParams::default().fields(&format!("spec.nodeName={name}"));
    Ok(most.saturating_sub(Api::<Pod>::all(client).list(&on_it).await?.items.len()))
}
