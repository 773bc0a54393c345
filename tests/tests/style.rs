//! The house style, as far as a program can see it: formatting, lints, and documentation that agrees with the tree.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what fails here is a failed test"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fairlead_tests::prereq;
use serde_json::Value;

/// Seconds for one cargo command, which may have to build everything first.
const LONGEST: &str = "1200";
/// Made by programs, or not text.
const NOT_OURS: [&str; 4] = [".git", "target", "Cargo.lock", "go.sum"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs cargo in the workspace; gives its output, and whether it succeeded.
fn cargo(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LONGEST, env!("CARGO")]).args(arguments).current_dir(root());
    let output = command.output().expect("timeout is part of coreutils");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}

/// Every text file of the tree, with its path from the root.
fn files() -> Vec<(String, String)> {
    let mut folders = vec![root()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if NOT_OURS.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                files.push((name, text));
            }
        }
    }
    files
}

/// `file: line` of every line in which one of the texts stands.
fn lines_with(texts: &[String]) -> Vec<String> {
    let lines = files().into_iter().flat_map(|(name, text)| {
        let lines = text.lines().filter(|line| texts.iter().any(|text| line.contains(text)));
        lines.map(|line| format!("{name}: {}", line.trim())).collect::<Vec<_>>()
    });
    lines.collect()
}

#[test]
fn everything_is_formatted() {
    let (formatted, said) = cargo(&["fmt", "--all", "--check"]);
    assert!(formatted, "{said}");
}

#[test]
fn clippy_finds_nothing() {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let (clean, said) = cargo(&arguments);
    assert!(clean, "{said}");
}

#[test]
fn no_file_names_a_package_registry() {
    // In parts, or they would stand here.
    let hosts = [["crates", "io"], ["proxy.golang", "org"], ["sum.golang", "org"], ["pypi", "org"]];
    let found = lines_with(&hosts.map(|parts| parts.join(".")));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_file_names_a_path_of_the_machine_it_was_written_on() {
    let found = lines_with(&["work", "root", "home"].map(|folder| format!("/{folder}/")));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_dependency_has_its_line() {
    let (told, metadata) = cargo(&["metadata", "--format-version=1", "--no-deps", "--quiet"]);
    assert!(told, "{metadata}");
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let all = packages.iter().flat_map(|package| package["dependencies"].as_array().unwrap());
    let foreign = all.filter(|dependency| dependency["path"].is_null());
    let used: BTreeSet<&str> = foreign.map(|dependency| dependency["name"].as_str().unwrap()).collect();
    let page = read("docs/dependencies.md");
    let listed: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(listed, used, "docs/dependencies.md (left) and the workspace (right)");
}

#[test]
fn the_readme_says_what_the_machine_needs() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    let install = format!("apt-get install -y {}\n", prereq::PACKAGES);
    assert!(readme.contains(&install), "README.md: {install}");
    assert!(ci.contains(&install), ".ci/run: {install}");
    assert!(ci.ends_with("\ncargo test\n"), ".ci/run ends with the README's command");
    let (major, minor, patch) = prereq::GO_MINIMUM;
    assert!(readme.contains(&format!("Go {major}.{minor}.{patch}")));
    let manifest = read("Cargo.toml");
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.split('"').next());
    assert!(readme.contains(&format!("{} or newer, Go", rust.unwrap())), "README.md: Rust {rust:?}");
}

#[test]
fn the_readme_shows_an_example_that_is_tested() {
    let example = read("docs/examples/blue.yaml");
    assert!(
        read("README.md").contains(&format!("```yaml\n{example}```")),
        "README.md and docs/examples/blue.yaml differ"
    );
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    let mut broken = Vec::new();
    for (name, text) in files().into_iter().filter(|(name, _)| is_page(name)) {
        let folder = root().join(&name).parent().unwrap().to_owned();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { root().join(&name) } else { folder.join(file) };
            if !path.exists() || !has_heading(&path, anchor) {
                broken.push(format!("{name}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

fn is_page(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "md")
}

fn has_heading(path: &Path, anchor: &str) -> bool {
    if anchor.is_empty() {
        return true;
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    let anchors = text.lines().filter_map(|line| line.strip_prefix('#')).map(|heading| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    });
    anchors.into_iter().any(|heading| heading == anchor)
}
