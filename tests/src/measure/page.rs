//! Copies reports into a page of the documentation, between markers that say what belongs there, and draws its charts.
//!
//! A block is `<!-- bench: start/burst -->`, what was there before, `<!-- end -->`; `start/conditions` is the sentence
//! on the run. Nothing outside of blocks is changed.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use comfy_table::presets::ASCII_MARKDOWN;

use super::{Report, Section, chart};

/// The page that benches write their tables into.
pub const PERFORMANCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");

const BEGIN: &str = "<!-- bench: ";
const CLOSE: &str = " -->\n";
const END: &str = "<!-- end -->";
/// The block of [`Report::conditions`].
const CONDITIONS: &str = "conditions";

/// Fills the blocks of `page` with the report, and draws its charts into a folder beside the page with its name.
///
/// # Errors
/// When the page lacks the block of a section, or a block does not end.
pub fn fill(page: &Path, report: &Report) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let charts = page.with_extension("");
    let folder = charts.file_name().and_then(|name| name.to_str()).context("the page has no name")?;
    let mut text = replace(&text, &report.bench, CONDITIONS, &report.conditions)?;
    for section in &report.sections {
        text = replace(&text, &report.bench, &section.name, &block(section, folder))?;
        if !section.series.is_empty() {
            fs::create_dir_all(&charts).with_context(|| format!("creating {}", charts.display()))?;
            chart::cumulative(&charts.join(file(section)), &section.title, &section.series)?;
        }
    }
    fs::write(page, text).with_context(|| format!("writing {}", page.display()))
}

fn file(section: &Section) -> String {
    format!("{}.svg", section.name)
}

fn block(section: &Section, folder: &str) -> String {
    let table = section.table(ASCII_MARKDOWN).trim_fmt();
    if section.series.is_empty() {
        return table;
    }
    format!("{table}\n\n![{}]({folder}/{})", section.title, file(section))
}

fn replace(text: &str, bench: &str, name: &str, content: &str) -> Result<String> {
    let begin = format!("{BEGIN}{bench}/{name}{CLOSE}");
    let (before, rest) = text.split_once(&begin).with_context(|| format!("no line {}", begin.trim()))?;
    let (old, after) = rest.split_once(END).with_context(|| format!("no {END} after {}", begin.trim()))?;
    ensure!(!old.contains(BEGIN), "no {END} after {}", begin.trim());
    Ok(format!("{before}{begin}{content}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Times, Unit};
    use super::*;

    const PAGE: &str = "# A\n<!-- bench: b/conditions -->\n<!-- end -->\ntext\n<!-- bench: b/one -->\nold\n<!-- end -->\nend\n";

    fn report() -> Report {
        let mut section = Section::new("one", "One", ["a"]);
        section.row("x", Unit::Count, [1.0]);
        section.chart(&[&Times::from(vec![1.0, 2.0])]);
        Report { bench: "b".into(), conditions: "Here.".into(), sections: vec![section] }
    }

    #[test]
    fn only_what_is_between_markers_is_replaced_again_and_again() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("speed.md");
        fs::write(&page, PAGE).unwrap();
        fill(&page, &report()).unwrap();
        let once = fs::read_to_string(&page).unwrap();
        let wanted = "# A\n<!-- bench: b/conditions -->\nHere.\n<!-- end -->\ntext\n<!-- bench: b/one -->\n\
            | what |    a |\n|------|------|\n| x    | 1.00 |\n\n![One](speed/one.svg)\n<!-- end -->\nend\n";
        assert_eq!(once, wanted);
        fill(&page, &report()).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), once);
        let drawn = fs::read_to_string(folder.path().join("speed/one.svg")).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("One"), "{drawn}");
    }

    #[test]
    fn a_page_without_the_block_or_its_end_is_refused() {
        let missing = replace("text", "b", "one", "").unwrap_err().to_string();
        assert_eq!(missing, "no line <!-- bench: b/one -->");
        let open = "<!-- bench: b/one -->\n<!-- bench: b/two -->\n<!-- end -->";
        assert_eq!(
            replace(open, "b", "one", "").unwrap_err().to_string(),
            "no <!-- end --> after <!-- bench: b/one -->"
        );
    }
}
