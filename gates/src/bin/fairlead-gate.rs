//! `fairlead-gate`: holds a pod until its networks are attached.
//!
//! No arguments: success means "attached" and nothing else, so there is no `--help` that would end with it.

use std::{io, process::ExitCode};

use fairlead_gates::gate::{self, Pod};

fn main() -> ExitCode {
    gate::run(&Pod::from_env(), &mut io::stderr()).into()
}
