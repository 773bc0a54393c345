//! An offline check: reads what the API server has and says where two things disagree. Writes nothing.
//!
//! ```text
//!  read (edge)           decide (pure)                                                      show
//!  lists, in pages -->   records, wires, blocks, spaces, counts, nodes, left --> findings --> table or JSON
//! ```
//! It runs on a living cluster: what is under way disagrees for a moment, so only what is still there in later looks
//! counts ([`fairlead_crds::finding::Lasting`]).

use std::time::{Duration, Instant};

use fairlead_crds::finding::{Finding, Lasting};
use kube::Client;

pub mod blocks;
pub mod counts;
pub mod left;
pub mod nodes;
mod read;
pub mod records;
mod run;
pub mod spaces;
pub mod wires;
pub mod world;

pub use self::read::ReadError;
pub use self::run::run;
pub use self::world::World;

/// Longest time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Every disagreement in what was read. While fairlead is being uninstalled nothing is expected to agree.
pub fn audit(world: &World) -> Vec<Finding> {
    if world.admission.as_ref().is_some_and(|admission| admission.spec.uninstalling) {
        return Vec::new();
    }
    [
        records::check(world),
        wires::check(world),
        blocks::check(world),
        spaces::check(world),
        counts::check(world),
        nodes::check(world),
        left::check(world),
    ]
    .concat()
}

/// One look, at which what is under way counts too.
///
/// # Errors
/// [`ReadError`] if something cannot be read.
pub async fn look(client: &Client, taint_prefix: &str) -> Result<Vec<Finding>, ReadError> {
    Ok(audit(&read::world(client, taint_prefix).await?))
}

/// Looks until what is left has been there for `settle`, or longer where a disagreement may last longer.
///
/// # Errors
/// [`ReadError`] if something cannot be read.
pub async fn check(client: &Client, taint_prefix: &str, settle: Duration) -> Result<Vec<Finding>, ReadError> {
    let mut lasting = Lasting::new(look(client, taint_prefix).await?, Instant::now());
    while let Some(rest) = lasting.rest(settle, Instant::now()) {
        tokio::time::sleep(rest.min(PAUSE)).await;
        lasting.look(&look(client, taint_prefix).await?);
    }
    Ok(lasting.into_findings())
}

#[cfg(test)]
mod tests;
