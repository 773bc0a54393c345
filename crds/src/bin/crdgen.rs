//! Prints the generated files of the tree, or checks that those in the tree are what would be printed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use fairlead_crds::generate;

/// Generates the CRD manifests and the page of conditions and reasons.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the custom resource definitions as YAML.
    Crds,
    /// Prints the page of conditions, reasons, events and metrics.
    Docs,
    /// Writes every generated file below the given root of the tree.
    Write {
        /// Root of the tree.
        #[arg(default_value = ".")]
        root: PathBuf,
    },
    /// Fails if a generated file differs from what would be written.
    Check {
        /// Root of the tree.
        #[arg(default_value = ".")]
        root: PathBuf,
    },
}

#[expect(clippy::print_stdout, reason = "printing is what this program is for")]
fn main() -> Result<()> {
    match Args::parse().command {
        Command::Crds => print!("{}", generate::crds()?),
        Command::Docs => print!("{}", fairlead_crds::catalogue::markdown()),
        Command::Write { root } => write(&root)?,
        Command::Check { root } => check(&root)?,
    }
    Ok(())
}

fn write(root: &Path) -> Result<()> {
    for (path, content) in generate::files()? {
        let path = root.join(path);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn check(root: &Path) -> Result<()> {
    let stale = generate::stale(root)?;
    if !stale.is_empty() {
        bail!("{} not up to date; run `cargo run -p fairlead-crds --bin crdgen -- write`", stale.join(", "));
    }
    Ok(())
}
