//! End-to-end tests: one real cluster, all trials on it.
//!
//! The cluster is booted by the first trial that runs, and ended at the end unless `FAIRLEAD_KEEP=1`.
//! `FAIRLEAD_REUSE=1` takes the one that runs. A failed trial leaves a diagnosis below the cluster's logs.

mod agents;
mod attach;
mod audit;
mod broken;
mod capacity;
mod churn;
mod cluster;
mod confinement;
mod controllers;
mod crash;
mod editing;
mod env;
mod examples;
mod fixtures;
mod gone;
mod guard;
mod handover;
mod hold;
mod hotplug;
mod install;
mod lost;
mod nri;
mod policy;
mod probe;
mod reserved;
mod scheduling;
mod storm;
mod traces;
mod trial;
mod uninstall;
mod validation;
mod waiting;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::Arguments;

use crate::{env::Shared, trial::Case};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Trials wait for the cluster most of the time; more at once than this and they wait for its processors.
    arguments.test_threads.get_or_insert(4);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shared = Shared::new()?;
    let trials = cases().into_iter().map(|case| case.into_trial(runtime.handle(), &shared)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(shared.finish())?;
    Ok(conclusion.exit_code())
}

/// All trials, in the order of their start.
fn cases() -> Vec<Case> {
    [
        cluster::cases(),
        validation::cases(),
        attach::cases(),
        waiting::cases(),
        scheduling::cases(),
        hold::cases(),
        gone::cases(),
        hotplug::cases(),
        examples::cases(),
        capacity::cases(),
        editing::cases(),
        confinement::cases(),
        policy::cases(),
        nri::cases(),
        probe::cases(),
        install::cases(),
        crash::cases(),
        guard::cases(),
        handover::cases(),
        storm::cases(),
        reserved::cases(),
        lost::cases(),
        churn::cases(),
        audit::cases(),
        broken::cases(),
        audit::last_cases(),
        uninstall::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
