//! One pod after the other, on a node that does nothing else.

use anyhow::Result;
use fairlead_tests::measure::{Section, Times};

use crate::bench::{Bench, Variant, columns};

/// Starts and deletes one pod of each kind per round.
pub async fn run(bench: &mut Bench<'_>, rounds: u32) -> Result<Section> {
    let stage = bench.progress.long_stage("starting pods one by one");
    stage.total(u64::from(rounds));
    let node = std::slice::from_ref(bench.node()?);
    let mut times = Variant::ALL.map(|_| Vec::new());
    for round in 0..rounds {
        for variant in Variant::order(round) {
            times[variant as usize].extend(bench.start(variant, 1, node).await?.times);
            bench.clear().await?;
        }
        stage.step();
    }
    stage.done();
    let times = times.map(Times::from);
    let kinds = times.each_ref();
    let mut section = Section::new("sequential", "Pods one by one on one node", columns()).compared();
    section.percentiles("create to Ready", &kinds, ["nri at most 1.05 ×", "", ""]);
    section.chart(&kinds);
    Ok(section)
}
