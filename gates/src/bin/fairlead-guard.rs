//! `fairlead-guard`: refuses containers of pods whose networks are not attached, as a plugin of the runtime.

use std::{env, process::ExitCode};

use fairlead_gates::guard::{self, args::Command};

fn main() -> ExitCode {
    match Command::parse(env::args().skip(1), fairlead_nri::is_started()) {
        Ok(command) => guard::run(&command),
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::from(2)
        }
    }
}
