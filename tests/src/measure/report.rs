//! What a bench found, in the one form that is printed, written as JSON and copied into the documentation.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, TableStyle, presets::UTF8_FULL_CONDENSED};
use serde::{Deserialize, Serialize};

use super::Times;

/// All that one run of a bench found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name of the bench.
    pub bench: String,
    /// One sentence on what it ran on, and how often.
    pub conditions: String,
    /// In the order of the run.
    pub sections: Vec<Section>,
}

impl Report {
    /// Writes it to `<folder>/<bench>.json`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let file = folder.join(format!("{}.json", self.bench));
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        fs::write(&file, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("writing {}", file.display()))
    }
}

/// What is measured in one way: a table, and a chart if it has series.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// A word that no other section of the bench has.
    pub name: String,
    /// What was measured.
    pub title: String,
    columns: Vec<String>,
    /// Whether all columns are shown as ratios to the first too.
    compared: bool,
    rows: Vec<Row>,
    /// Single figures, for a chart.
    pub series: Vec<Series>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    what: String,
    unit: Unit,
    /// One per column.
    cells: Vec<Option<f64>>,
    #[serde(default)]
    target: String,
}

/// Figures of one line of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// As in the legend.
    pub name: String,
    /// What was measured.
    pub times: Times,
}

/// What a figure is of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Unit {
    /// Milliseconds
    Milliseconds,
    /// 2^20 bytes
    Mebibytes,
    /// Hundredths of a whole
    Percent,
    /// A number of things
    Count,
    /// Of figures to those of the first column that were measured right before or after them
    Ratio,
}

impl Unit {
    fn shown(self, figure: f64) -> String {
        match self {
            Self::Milliseconds => format!("{figure:.1} ms"),
            Self::Mebibytes => format!("{figure:.1} MiB"),
            Self::Percent => format!("{figure:.1} %"),
            Self::Count => format!("{figure:.2}"),
            Self::Ratio => format!("{figure:.2} ×"),
        }
    }
}

impl Section {
    /// An empty one.
    pub fn new<S: Into<String>>(name: &str, title: &str, columns: impl IntoIterator<Item = S>) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            columns: columns.into_iter().map(Into::into).collect(),
            compared: false,
            rows: vec![],
            series: vec![],
        }
    }

    /// Shows every column but the first as its ratio to the first too.
    #[must_use]
    pub fn compared(mut self) -> Self {
        self.compared = true;
        self
    }

    /// Adds a row of one figure per column; `None` is for one that there is not.
    pub fn row<C: Into<Option<f64>>>(&mut self, what: &str, unit: Unit, cells: impl IntoIterator<Item = C>) {
        let cells = cells.into_iter().map(Into::into).collect();
        self.rows.push(Row { what: what.into(), unit, cells, target: String::new() });
    }

    /// Says what is aimed at in the last row.
    pub fn target(&mut self, target: &str) {
        if let Some(row) = self.rows.last_mut() {
            row.target = target.into();
        }
    }

    /// Adds a row for each of median, p90 and p99 of times, one kind per column, with what is aimed at.
    pub fn percentiles(&mut self, what: &str, kinds: &[&Times], targets: [&str; 3]) {
        for ((word, p), target) in [("median", 50), ("p90", 90), ("p99", 99)].into_iter().zip(targets) {
            let cells = kinds.iter().map(|times| times.percentile(p));
            self.row(&format!("{what}, {word}"), Unit::Milliseconds, cells);
            self.target(target);
        }
    }

    /// The same as a chart's lines, named as the columns.
    pub fn chart(&mut self, kinds: &[&Times]) {
        let lines = self.columns.iter().zip(kinds);
        self.series =
            lines.map(|(name, times)| Series { name: name.clone(), times: (*times).clone() }).collect();
    }

    /// The title and the table, for a terminal.
    pub fn shown(&self) -> String {
        format!("\n{}\n{}", self.title, self.table(UTF8_FULL_CONDENSED))
    }

    /// The table in a style of `comfy_table::presets`.
    pub fn table(&self, style: TableStyle) -> Table {
        let targets = self.rows.iter().any(|row| !row.target.is_empty());
        let mut table = Table::new();
        table.load_style(style);
        table.set_header(
            ["what"]
                .into_iter()
                .chain(self.columns.iter().map(String::as_str))
                .chain(targets.then_some("target")),
        );
        for row in &self.rows {
            let cells = self.cells(row).into_iter();
            table.add_row(
                [row.what.clone()].into_iter().chain(cells).chain(targets.then(|| row.target.clone())),
            );
        }
        for column in table.column_iter_mut().skip(1).take(self.columns.len()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let compared = self.compared && !matches!(row.unit, Unit::Ratio);
        let base = row.cells.first().copied().flatten().filter(|base| compared && *base > 0.0);
        let shown = row.cells.iter().enumerate().map(|(column, cell)| match (*cell, base) {
            (None, _) => String::new(),
            (Some(figure), Some(base)) if column > 0 => {
                format!("{} ({:.2} ×)", row.unit.shown(figure), figure / base)
            }
            (Some(figure), _) => row.unit.shown(figure),
        });
        shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use comfy_table::presets::ASCII_MARKDOWN;

    use super::*;

    #[test]
    fn columns_are_compared_with_the_first() {
        let mut section = Section::new("start", "Starts", ["none", "gate"]).compared();
        section.row("a", Unit::Milliseconds, [200.0, 210.0]);
        section.target("1.05 ×");
        section.row("b", Unit::Count, [Some(0.0), None]);
        section.row("c", Unit::Ratio, [1.0, 1.04]);
        let wanted = "\
            | what |     none |              gate | target |\n\
            |------|----------|-------------------|--------|\n\
            | a    | 200.0 ms | 210.0 ms (1.05 ×) | 1.05 × |\n\
            | b    |     0.00 |                   |        |\n\
            | c    |   1.00 × |            1.04 × |        |";
        assert_eq!(section.table(ASCII_MARKDOWN).to_string(), wanted);
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut section = Section::new("one", "One", ["a"]);
        section.percentiles("x", &[&Times::from(vec![1.0, 2.0])], ["1 ms", "", ""]);
        section.chart(&[&Times::from(vec![1.0, 2.0])]);
        let report = Report { bench: "start".into(), conditions: "here".into(), sections: vec![section] };
        report.write(folder.path()).unwrap();
        let read: Report =
            serde_json::from_slice(&fs::read(folder.path().join("start.json")).unwrap()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{report:?}"));
    }
}
