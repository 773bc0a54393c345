//! Tables for people and JSON for programs.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table};
use fairlead_tests::measure::Times;
use serde::Serialize;
use serde_json::Value;

use crate::meter::{Count, Counts, Kind, Meter};

/// How long something took, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Half of all took no longer.
    pub p50: f64,
    /// Of a hundred one took longer.
    pub p99: f64,
}

impl Latency {
    /// Of figures in milliseconds.
    pub fn of(times: impl IntoIterator<Item = f64>) -> Self {
        let times: Times = times.into_iter().collect();
        Self { p50: times.percentile(50), p99: times.percentile(99) }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:.1} ms, p99 {:.1} ms", self.p50, self.p99)
    }
}

/// An empty table whose columns but the first are numbers.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.set_header(header);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// Requests of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Verb and resource.
    pub kind: String,
    /// How many.
    pub requests: u64,
    /// How many for each pod.
    pub per_pod: f64,
    /// Answers 409.
    pub conflicts: u64,
    /// Other answers that are not 2xx, and requests without an answer.
    pub failures: u64,
    /// Bytes answered for each pod.
    pub bytes_per_pod: f64,
    /// Until the answer began; a watch has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// What was counted; with the times of a meter that counted nothing else.
pub fn rows(counts: &Counts, pods: u64, meter: Option<&Meter>) -> Vec<Row> {
    let row = |(kind, count): (&Kind, &Count)| {
        let meter = meter.filter(|_| kind.verb != "watch");
        Row {
            kind: kind.to_string(),
            requests: count.requests,
            per_pod: per(count.requests, pods),
            conflicts: count.conflicts,
            failures: count.failures,
            bytes_per_pod: per(count.bytes, pods),
            latency: meter.map(|meter| Latency::of(meter.times(kind))),
        }
    };
    counts.iter().map(row).collect()
}

/// A table of requests.
pub fn requests(rows: &[Row]) -> Table {
    let header =
        ["request", "count", "per pod", "conflicts", "failures", "bytes per pod", "p50 in ms", "p99 in ms"];
    let mut table = table(&header);
    for row in rows {
        let time = |of: fn(&Latency) -> f64| {
            row.latency.as_ref().map_or_else(String::new, |l| format!("{:.1}", of(l)))
        };
        table.add_row([
            row.kind.clone(),
            row.requests.to_string(),
            format!("{:.3}", row.per_pod),
            row.conflicts.to_string(),
            row.failures.to_string(),
            format!("{:.0}", row.bytes_per_pod),
            time(|latency| latency.p50),
            time(|latency| latency.p99),
        ]);
    }
    table
}

/// Writes by kind, on one line each.
pub fn writes(writes: &BTreeMap<String, u64>) -> String {
    let lines: Vec<String> = writes.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    lines.join("\n")
}

/// So many of one for each of the other.
#[expect(clippy::cast_precision_loss, reason = "counts of requests and bytes are far below 2^52")]
pub fn per(count: u64, of: u64) -> f64 {
    count as f64 / of as f64
}

/// Writes the results of all parts; where.
pub fn write(results: &Value) -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let file = target.join("bench/scale.json");
    fs::create_dir_all(target.join("bench")).context("creating the folder of results")?;
    fs::write(&file, serde_json::to_vec_pretty(results)?)
        .with_context(|| format!("writing {}", file.display()))?;
    Ok(file.canonicalize()?)
}
