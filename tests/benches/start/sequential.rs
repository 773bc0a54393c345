//! One pod after the other, on a node that does nothing else.

use anyhow::Result;
use fairlead_tests::measure::{Processors, Section, Times};

use crate::bench::{Bench, Variant, columns};

/// Starts and deletes one pod of each kind per round.
pub async fn run(bench: &mut Bench<'_>, rounds: u32) -> Result<Section> {
    let stage = bench.progress.long_stage("starting pods one by one");
    stage.total(u64::from(rounds));
    let node = std::slice::from_ref(bench.node()?);
    let mut times = Variant::ALL.map(|_| Vec::new());
    let mut spent = Variant::ALL.map(|_| Processors::default());
    for round in 0..rounds {
        for variant in Variant::order(round) {
            let started = loop {
                bench.rests.take(1).await?;
                let started = bench.start(variant, 1, node).await?;
                bench.clear().await?;
                if !bench.rests.again(started.processors) {
                    break started;
                }
            };
            let [from, to] = started.processors;
            spent[variant as usize].add(from, to);
            times[variant as usize].extend(started.times);
        }
        stage.step();
    }
    stage.done();
    let times = times.map(Times::from);
    let kinds = times.each_ref();
    let mut section = Section::new("sequential", "Pods one by one on one node", columns()).compared();
    section.percentiles("create to Ready", &kinds, ["nri at most 1.05 ×", "", ""]);
    Processors::rows(&mut section, spent);
    section.chart(&kinds);
    Ok(section)
}
