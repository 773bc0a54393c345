//! What pods cost besides time: processor time and API requests.

use anyhow::Result;
use fairlead_tests::{
    Cluster,
    audit::Mark,
    measure::{self, Processors, usage::Workers},
};

/// What the tables call the sum of all programs, the bench among them.
const EVERYTHING: &str = "everything on the machine";

/// Named figures of one pod, or of a crowd.
#[derive(Default)]
pub struct Cost {
    /// Milliseconds of processor time by program.
    pub cpu: Vec<(String, f64)>,
    /// Requests by client and whether they write.
    pub requests: Vec<(String, f64)>,
}

impl Cost {
    /// Adds a share of another one.
    pub fn add(&mut self, other: &Self, share: f64) {
        add(&mut self.cpu, &other.cpu, share);
        add(&mut self.requests, &other.requests, share);
    }
}

fn add(to: &mut Vec<(String, f64)>, from: &[(String, f64)], share: f64) {
    for (name, figure) in from {
        match to.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += figure * share,
            None => to.push((name.clone(), figure * share)),
        }
    }
}

/// Counts from its beginning on.
pub struct Meter {
    workers: Workers,
    cpu: Vec<(&'static str, f64)>,
    processors: Processors,
    mark: Mark,
}

impl Meter {
    /// Begins to count.
    pub async fn begin(cluster: &Cluster) -> Result<Self> {
        let workers = Workers::of(cluster).await?;
        let (mark, cpu) = (cluster.audit_mark()?, workers.cpu()?);
        Ok(Self { workers, cpu, processors: Processors::now()?, mark })
    }

    /// Milliseconds of processor time that have been used since, by program.
    pub fn cpu(&self) -> Result<Vec<(String, f64)>> {
        let mut spent = Processors::default();
        spent.add(self.processors, Processors::now()?);
        let seconds = self.workers.cpu()?.into_iter().zip(&self.cpu);
        let used = seconds.map(|((name, after), (_, before))| (name, after - before));
        let all = used.chain([(EVERYTHING, spent.busy())]);
        Ok(all.map(|(name, seconds)| (name.to_owned(), seconds * 1000.0)).collect())
    }

    /// What has been used since.
    pub fn end(&self, cluster: &Cluster) -> Result<Cost> {
        let cpu = self.cpu()?;
        let mut requests = Vec::new();
        for (client, counts) in measure::requests(cluster, self.mark)? {
            for (kind, count) in ["reads", "writes"].into_iter().zip(counts) {
                requests.push((format!("{}: {kind}", client.name()), f64::from(u32::try_from(count)?)));
            }
        }
        Ok(Cost { cpu, requests })
    }
}
