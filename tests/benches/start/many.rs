//! Many pods at once.

use anyhow::Result;
use fairlead_tests::{
    measure::{Processors, Section, Times, Unit},
    node::Node,
};

use crate::{
    bench::{Bench, Started, Variant, columns},
    cost::{Cost, Meter},
};

/// Quiet seconds before a crowd.
const REST: u32 = 3;

/// How many pods, where, how often.
pub struct Crowd {
    /// Of the section.
    pub name: &'static str,
    /// Of the section.
    pub title: &'static str,
    /// How many are created at once, evenly spread.
    pub pods: u16,
    /// On how many nodes.
    pub nodes: usize,
    /// How often for each kind.
    pub rounds: u32,
}

/// What was found, by variant.
pub struct Found {
    crowd: Crowd,
    /// Of every pod.
    each: [Times; 3],
    /// Of the last pod of each crowd.
    last: [Times; 3],
    /// The same, as ratios to the crowd without a network of the same round.
    ratios: [Times; 3],
    /// Of one pod, from before its creation until all are Ready; no requests.
    starts: [Cost; 3],
    /// Of one pod, from before its creation until it is gone.
    costs: [Cost; 3],
    /// From the creation of each crowd until its last pod was Ready.
    spent: [Processors; 3],
}

impl Crowd {
    /// Starts and deletes such a crowd of each kind per round.
    pub async fn run(self, bench: &mut Bench<'_>) -> Result<Found> {
        let stage = bench.progress.long_stage(self.title);
        stage.total(u64::from(self.rounds) * 3);
        let nodes = bench.cluster.nodes().iter().take(self.nodes).cloned().collect::<Vec<_>>();
        let mut each = Variant::ALL.map(|_| Vec::new());
        let mut last = Variant::ALL.map(|_| Vec::new());
        let mut spent = Variant::ALL.map(|_| Processors::default());
        let [mut starts, mut costs] = [(); 2].map(|()| Variant::ALL.map(|_| Cost::default()));
        let share = 1.0 / f64::from(self.pods) / f64::from(self.rounds);
        for round in 0..self.rounds {
            for variant in Variant::order(round) {
                let (Started { times, processors: [from, to], .. }, start, cost) =
                    self.start(bench, variant, &nodes).await?;
                spent[variant as usize].add(from, to);
                starts[variant as usize].add(&start, share);
                costs[variant as usize].add(&cost, share);
                last[variant as usize].extend(times.last());
                each[variant as usize].extend(times);
                stage.step();
            }
        }
        stage.done();
        Ok(Found {
            crowd: self,
            each: each.map(Times::from),
            ratios: last.each_ref().map(|times| Times::ratios(times, &last[Variant::Bare as usize])),
            last: last.map(Times::from),
            starts,
            costs,
            spent,
        })
    }

    /// One crowd, and what its start and its life took.
    async fn start(
        &self,
        bench: &mut Bench<'_>,
        variant: Variant,
        nodes: &[Node],
    ) -> Result<(Started, Cost, Cost)> {
        loop {
            bench.rests.take(REST).await?;
            let meter = Meter::begin(bench.cluster).await?;
            let started = bench.start(variant, usize::from(self.pods), nodes).await?;
            let start = Cost { cpu: meter.cpu()?, requests: Vec::new() };
            bench.clear().await?;
            let cost = meter.end(bench.cluster)?;
            if !bench.rests.again(started.processors) {
                return Ok((started, start, cost));
            }
        }
    }
}

impl Found {
    /// The times, with what is aimed at for all pods together.
    pub fn section(&self, target: &str) -> Section {
        let mut section = Section::new(self.crowd.name, self.crowd.title, columns()).compared();
        let kinds = self.each.each_ref();
        section.percentiles("first create to Ready", &kinds, [""; 3]);
        for (word, p) in [("median", 50), ("slowest", 100)] {
            let cells = self.last.each_ref().map(|times| times.percentile(p));
            section.row(&format!("first create to all Ready, {word}"), Unit::Milliseconds, cells);
        }
        let ratios = self.ratios.each_ref().map(|ratios| ratios.percentile(50));
        section.row("the same as ratio within a round, median", Unit::Ratio, ratios);
        section.target(target);
        Processors::rows(&mut section, self.spent);
        section.chart(&kinds);
        section
    }

    /// Processor time per pod of their starts.
    pub fn cpu_of_starts(&self) -> Section {
        let title = "Processor time per pod, from before the first creation until all are Ready";
        let mut section = Section::new("start-cpu", title, columns()).compared();
        rows(&mut section, Unit::Milliseconds, self.starts.each_ref().map(|cost| &cost.cpu));
        section
    }

    /// Processor time per pod of their lives.
    pub fn cpu(&self) -> Section {
        let title = "Processor time per pod, from before its creation until it is gone";
        let mut section = Section::new("cpu", title, columns()).compared();
        rows(&mut section, Unit::Milliseconds, self.costs.each_ref().map(|cost| &cost.cpu));
        section
    }

    /// API requests per pod.
    pub fn requests(&self) -> Section {
        let title = "API requests per pod, from before its creation until it is gone";
        let mut section = Section::new("requests", title, columns()).compared();
        rows(&mut section, Unit::Count, self.costs.each_ref().map(|cost| &cost.requests));
        section
    }
}

/// A row for each figure, which all three have.
fn rows(section: &mut Section, unit: Unit, figures: [&Vec<(String, f64)>; 3]) {
    for (what, _) in figures[0] {
        let cell = |all: &Vec<(String, f64)>| all.iter().find(|(name, _)| name == what).map(|(_, one)| *one);
        section.row(what, unit, figures.map(cell));
    }
}
