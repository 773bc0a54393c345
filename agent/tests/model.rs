//! A cluster in miniature around the real address code: two agents and the controller's part for lost nodes, whole,
//! with an API server, kernels, runtimes and a clock that the test holds in its hands. By chance everything goes
//! wrong that can; after every step it is looked whether an address has two holders, is lost, or rests too short.
//!
//! A failure names its seed. `FAIRLEAD_MODEL_SEED=<seed>` repeats it alone, `FAIRLEAD_MODEL_STEPS=10000000` goes on
//! for longer, `FAIRLEAD_MODEL_WITHOUT=crashes,faults,partitions,power,clocks,strangers,networks` leaves things out.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what fails here is a failed test")]

mod model {
    pub mod check;
    pub mod controller;
    pub mod episode;
    pub mod gate;
    pub mod life;
    pub mod mutant;
    pub mod node;
    pub mod objects;
    pub mod rng;
    pub mod server;
    pub mod store;
    pub mod tasks;
    pub mod world;
}

use model::episode::{self, Found};
use model::mutant::Mutant;

/// Steps without the variable.
const STEPS: u64 = 100_000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_happens_no_address_has_two_holders_is_lost_or_rests_too_short() {
    let alone = variable("FAIRLEAD_MODEL_SEED");
    let most = variable("FAIRLEAD_MODEL_STEPS").filter(|_| alone.is_none()).unwrap_or(STEPS);
    let (mut seed, mut steps, mut pods, mut used) = (alone.unwrap_or(1), 0, 0, 0);
    while steps < most {
        let done = episode::run(seed, None).unwrap_or_else(|Found { story }| {
            panic!("{story}\nrepeat it with FAIRLEAD_MODEL_SEED={seed}");
        });
        (steps, pods, used) = (steps + done.steps, pods + u64::from(done.pods), used.max(done.used));
        seed += 1;
        if alone.is_some() {
            break;
        }
    }
    eprintln!("{steps} steps, {pods} pods, at most {used} addresses in use at once");
    assert!(alone.is_some() || used > 2 * usize::try_from(pods.min(2)).unwrap(), "hardly anything happened");
}

/// The test of the test: with a bug it finds a violation within so many steps.
fn finds(mutant: Mutant, within: u64) {
    let (mut steps, mut seed) = (0, 1);
    while steps < within {
        match episode::run(seed, Some(mutant)) {
            Ok(done) => steps += done.steps,
            Err(_) => return,
        }
        seed += 1;
    }
    panic!("{mutant:?} was not found within {within} steps");
}

#[test]
fn an_agent_that_skips_the_record_is_found() {
    finds(Mutant::SkipWriteAhead, 5_000);
}

#[test]
fn an_agent_that_skips_the_quarantine_is_found() {
    finds(Mutant::SkipQuarantine, 40_000);
}

#[test]
fn an_agent_that_hands_back_a_block_in_use_is_found() {
    finds(Mutant::HandBackUsed, 10_000);
}

#[test]
fn a_claim_that_takes_anothers_block_is_found() {
    finds(Mutant::ClaimTaken, 20_000);
}

#[test]
fn an_agent_that_does_not_cut_links_is_found() {
    finds(Mutant::KeepLinks, 40_000);
}

#[test]
fn writes_that_are_carried_out_late_are_found() {
    finds(Mutant::IgnoreVersions, 100_000);
}

#[test]
fn a_seed_repeats_its_story() {
    let story = |seed| episode::story(seed);
    assert_eq!(story(5), story(5));
}
