//! One episode: a cluster, a time of chaos, and then peace, in which everything has to come to its end.

use std::time::Duration;

use serde_json::json;
use tokio::runtime::Builder;

use super::mutant::Mutant;
use super::store::Key;
use super::world::{Chaos, NODES, World};

/// Steps of chaos.
const CHAOS: u64 = 2_500;
/// The longest that anything may take in peace, in seconds.
const PEACE: u64 = 1_800;

/// An episode without a violation.
#[derive(Debug)]
pub struct Done {
    pub steps: u64,
    pub pods: u32,
    pub used: usize,
}

/// A violation, with what came before it.
#[derive(Debug)]
pub struct Found {
    pub story: String,
}

/// Runs the episode of a seed.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Done, Found> {
    on_a_runtime(async {
        let mut world = World::new(seed, Chaos::from_env(), mutant);
        match live(&mut world).await {
            Ok(used) => Ok(Done { steps: world.steps, pods: world.pods_made, used }),
            Err(what) => Err(Found { story: world.blame(&what) }),
        }
    })
}

/// What happens in the episode of a seed, to its end or to a violation.
pub fn story(seed: u64) -> String {
    on_a_runtime(async {
        let mut world = World::new(seed, Chaos::from_env(), None);
        let end = live(&mut world).await;
        world.blame(&format!("{end:?}"))
    })
}

/// One thread, and a clock that only the model sets.
fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).max_blocking_threads(1).build().unwrap().block_on(work)
}

async fn live(world: &mut World) -> Result<usize, String> {
    world.start_controller();
    (0..NODES).for_each(|number| world.start_agent(number));
    let mut used = 0;
    for _ in 0..CHAOS {
        world.step().await?;
        used = used.max(world.in_use());
    }
    make_peace(world);
    until(world, "every pod is attached", all_attached).await?;
    for key in keys(world, "pods") {
        world.edit(&key, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["finalizers"] = json!(["model/kubelet"]);
        });
    }
    until(world, "no pod and no record is left", |world| {
        keys(world, "pods").is_empty() && keys(world, "podnetworks").is_empty()
    })
    .await?;
    until(world, "no quarantine is left and every address is free", all_free).await?;
    for key in keys(world, "networks") {
        world.delete(&key);
    }
    world.tell_networks();
    until(world, "no block is left", |world| keys(world, "ipblocks").is_empty()).await?;
    Ok(used)
}

fn make_peace(world: &mut World) {
    world.tell(|| "peace".to_owned());
    world.weather = 0;
    for number in 0..NODES {
        if !world.nodes[number].powered {
            world.power_on(number);
        }
        world.nodes[number].connected = true;
        world.nodes[number].kernel.fail_after(usize::MAX);
        world.start_what_is_down(number);
    }
    if world.controller.is_none() {
        world.start_controller();
    }
    for name in ["blue", "red"] {
        world.accept(name, true);
    }
}

async fn until(world: &mut World, what: &str, done: impl Fn(&World) -> bool) -> Result<(), String> {
    let begun = world.now();
    while !done(world) {
        if world.now().saturating_sub(begun) > Duration::from_secs(PEACE) {
            return Err(format!("in peace, {what} is not reached; {}", left(world)));
        }
        for number in 0..NODES {
            world.kubelet(number, true);
        }
        world.calm(Duration::from_secs(1)).await?;
    }
    world.tell(|| what.to_owned());
    Ok(())
}

fn keys(world: &World, resource: &str) -> Vec<Key> {
    world.store.lock().unwrap().all(resource).map(|(key, _)| key.clone()).collect()
}

fn left(world: &World) -> String {
    let store = world.store.lock().unwrap();
    let all: Vec<String> = ["pods", "podnetworks", "ipblocks"]
        .iter()
        .flat_map(|resource| store.all(resource))
        .map(|(_, object)| object.to_string())
        .collect();
    all.join("\n")
}

/// Every pod that lives has what its record says, and says that it is ready.
fn all_attached(world: &World) -> bool {
    let store = world.store.lock().unwrap();
    let ready = |pod: &serde_json::Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["status"] == "True")
    };
    let over = |pod: &serde_json::Value| {
        pod["status"]["phase"] == "Succeeded" || pod["metadata"]["deletionTimestamp"].is_string()
    };
    store.all("pods").all(|(_, pod)| over(pod) || ready(pod))
}

/// What the agents say of their addresses: none used, none in quarantine; and what the blocks say.
fn all_free(world: &World) -> bool {
    let idle = world.nodes.iter().filter_map(|node| node.agent.as_ref()).all(|running| {
        let view = running.agent.view.lock();
        let counts = |network: &str| view.ipam.counts(network, running.agent.clock.now()).unwrap_or_default();
        ["blue", "red"].map(counts).iter().all(|counts| counts.used == 0 && counts.quarantined == 0)
    });
    let store = world.store.lock().unwrap();
    let held = store
        .all("ipblocks")
        .any(|(_, block)| block["status"]["held"].as_array().is_some_and(|held| !held.is_empty()));
    idle && !held && world.in_use() == 0
}
