//! `fairlead-image`: builds the container image as an OCI archive, without a container engine.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Parser;
use fairlead_deploy::image::{self, Options};

/// Builds the fairlead image as an OCI archive.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to put the archive
    #[arg(long)]
    output: PathBuf,
    /// Name of the image, without a tag
    #[arg(long, default_value = image::DEFAULT_NAME)]
    name: String,
    /// Tag of the image
    #[arg(long, default_value = image::DEFAULT_TAG)]
    tag: String,
    /// Profile of cargo
    #[arg(long, default_value = "release")]
    profile: String,
}

fn main() -> anyhow::Result<()> {
    let Args { output, name, tag, profile } = Args::parse();
    let built = image::build_image(&Options { output: output.clone(), name, tag, profile, progress: true })?;
    let mut out = io::stdout().lock();
    for binary in &built.binaries {
        writeln!(out, "{:>10}  /{}", binary.size, binary.name)?;
    }
    writeln!(out, "{:>10}  {}", built.size, output.display())?;
    writeln!(out, "{}@{}", built.reference, built.digest)?;
    Ok(())
}
