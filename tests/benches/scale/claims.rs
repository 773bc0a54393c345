//! Many agents' claims and records: each agent has its own client, its real blocks, addresses and records, and nothing
//! else. Its pods do not exist, so there is no condition to write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use fairlead_agent::blocks::Blocks;
use fairlead_agent::clock::Clock;
use fairlead_agent::lease::Lease;
use fairlead_agent::model::{self, Pod, Record};
use fairlead_agent::record::Records;
use fairlead_agent::status::{self, Attached, Facts, Progress as Phase};
use fairlead_agent::view::View;
use fairlead_agent::wire::PodObject;
use fairlead_agent::{intent, ipam};
use fairlead_crds::pod_network::{Attachment, HeldAddress, SandboxRef};
use fairlead_crds::{IfName, PodNetworkStatus, names};
use fairlead_tests::Layout;
use fairlead_tests::progress::Progress;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1 as core;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::meter::Meter;
use crate::place::{Controller, NAMESPACE, NETWORK, Place, Resident};
use crate::report::{self, Latency, Row, per};

/// How long a pod may wait for a block.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a request is sent before the bench fails, and the time between two.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// How many there are.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "claims")]
pub struct Size {
    /// Agents that claim blocks and write records.
    #[arg(long, env = "FAIRLEAD_SCALE_AGENTS", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    agents: u32,
    /// Pods of each of them.
    #[arg(long, env = "FAIRLEAD_SCALE_PODS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pods: u32,
    /// How many of them are at work at a time.
    #[arg(long, env = "FAIRLEAD_SCALE_CLIENTS", default_value_t = 64)]
    clients: usize,
    /// Keep all records to the end. Otherwise an agent that is done removes its own: half a million take more memory
    /// and disk than the API server and etcd of one machine have.
    #[arg(long, env = "FAIRLEAD_SCALE_KEEP")]
    keep: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Outcome {
    agents: u32,
    pods: u64,
    clients: usize,
    seconds: f64,
    requests: Vec<Row>,
    requests_per_pod: f64,
    claims: u64,
    conflicts_per_claim: f64,
    wait_for_block: Latency,
    memory: Memory,
    controller_writes: BTreeMap<String, u64>,
}

/// Resident memory.
#[derive(Debug, Serialize)]
struct Memory {
    api_server_before: Resident,
    api_server: Resident,
    etcd: Resident,
    controller: Resident,
}

/// Measures and prints.
pub async fn run(
    layout: Layout,
    size: &Size,
    controller: &Controller,
    progress: &Progress,
) -> Result<Outcome> {
    let place = Arc::new(Place::boot(layout, size.agents, size.pods, controller, progress).await?);
    let stage = progress.long_stage(format!("creating {} Nodes", size.agents));
    let nodes = place.add_nodes(size.agents, size.pods).await?;
    stage.done();
    let api_server_before = place.memory("kube-apiserver")?;
    let meter = Meter::default();
    let stage = progress.long_stage(format!("{} agents with {} pods each", size.agents, size.pods));
    stage.total(size.agents.into());
    let begun = Instant::now();
    let turns = stream::iter(nodes).map(|node| {
        AbortOnDropHandle::new(tokio::spawn(turn(Arc::clone(&place), meter.clone(), node, size.clone())))
    });
    let mut turns = turns.buffer_unordered(size.clients);
    let mut waits = Vec::new();
    while let Some(turn) = turns.next().await {
        waits.extend(turn??);
        stage.step();
    }
    let seconds = begun.elapsed().as_secs_f64();
    stage.done();
    let memory = Memory {
        api_server_before,
        api_server: place.memory("kube-apiserver")?,
        etcd: place.memory("etcd")?,
        controller: place.memory(names::CONTROLLER)?,
    };
    let controller_writes = place.controller_writes().await?;
    let outcome = outcome(size, &meter, waits, seconds, memory, controller_writes);
    print(&outcome);
    Ok(outcome)
}

fn outcome(
    size: &Size,
    meter: &Meter,
    waits: Vec<f64>,
    seconds: f64,
    memory: Memory,
    controller_writes: BTreeMap<String, u64>,
) -> Outcome {
    let (counts, pods) = (meter.read(), u64::from(size.agents) * u64::from(size.pods));
    let creates = counts.iter().find(|(kind, _)| kind.to_string() == "create ipblocks");
    let creates = creates.map(|(_, count)| *count).unwrap_or_default();
    let claims = creates.requests - creates.conflicts - creates.failures;
    Outcome {
        agents: size.agents,
        pods,
        clients: size.clients,
        seconds,
        requests: report::rows(&counts, pods, Some(meter)),
        requests_per_pod: per(counts.values().map(|count| count.requests).sum(), pods),
        claims,
        conflicts_per_claim: per(creates.conflicts, claims),
        wait_for_block: Latency::of(waits),
        memory,
        controller_writes,
    }
}

fn print(outcome: &Outcome) {
    let Outcome { agents, pods, clients, seconds, memory, .. } = outcome;
    println!("{agents} agents, {pods} pods, {clients} agents at a time, each with a client of its own");
    println!("{}", report::requests(&outcome.requests));
    let mut table = report::table(&["what", "figure"]);
    table.add_row(["time".to_owned(), format!("{seconds:.1} s")]);
    table.add_row(["requests per pod".to_owned(), format!("{:.2}", outcome.requests_per_pod)]);
    table.add_row(["blocks claimed".to_owned(), outcome.claims.to_string()]);
    table.add_row(["conflicts per claim".to_owned(), format!("{:.3}", outcome.conflicts_per_claim)]);
    table.add_row(["pods that waited for a block".to_owned(), outcome.wait_for_block.to_string()]);
    for (what, resident) in [
        ("kube-apiserver before", memory.api_server_before),
        ("kube-apiserver", memory.api_server),
        ("etcd", memory.etcd),
        ("controller", memory.controller),
    ] {
        table.add_row([format!("{what}, resident"), resident.to_string()]);
    }
    table.add_row(["writes of the controller".to_owned(), report::writes(&outcome.controller_writes)]);
    println!("{table}");
}

/// Everything one agent does; how long its pods waited for a block, those that did, in milliseconds.
async fn turn(place: Arc<Place>, meter: Meter, node: core::Node, size: Size) -> Result<Vec<f64>> {
    let name = node.metadata.name.clone().context("a Node has a name")?;
    let agent = Simulated::start(&place, &meter, &name, node, size.pods).await?;
    let mut waits = Vec::new();
    for number in 0..size.pods {
        waits.extend(agent.serve(&place, &pod(&name, number)?).await.with_context(|| name.clone())?);
    }
    if !size.keep {
        agent.remove_records().await?;
    }
    Ok(waits)
}

/// An agent's addresses and records.
struct Simulated {
    records: Records,
    view: Arc<View>,
    blocks: Arc<Blocks>,
    clock: Clock,
    /// Ends its loops.
    _cancel: DropGuard,
}

impl Simulated {
    /// Takes the agent's Lease and begins to claim blocks.
    async fn start(place: &Place, meter: &Meter, name: &str, node: core::Node, pods: u32) -> Result<Self> {
        let client = place.agent(name, meter)?;
        let (clock, view) = (Clock::system(), Arc::new(View::default()));
        {
            let mut view = view.lock();
            let uid = node.metadata.uid.unwrap_or_default();
            view.set_node(model::Node { uid, pod_limit: u64::from(pods) + 10, ..model::Node::default() });
            view.set_networks(BTreeMap::from([(NETWORK.to_owned(), place.network.clone())]));
        }
        let lease = Lease::new(client.clone(), name, "scale", clock.clone());
        patiently(|| lease.take()).await?;
        let blocks = Blocks::new(client.clone(), name, Arc::clone(&view), Arc::clone(&lease), clock.clone());
        let (blocks, cancel) = (Arc::new(blocks), CancellationToken::new());
        let (reloaded, stop) = (Arc::clone(&blocks), cancel.clone());
        tokio::spawn(async move { lease.run(stop, || reloaded.load(), |_| ()).await });
        let (claiming, stop) = (Arc::clone(&blocks), cancel.clone());
        tokio::spawn(async move { claiming.run(stop).await });
        let records = Records::new(client, name, clock.clone());
        Ok(Self { records, view, blocks, clock, _cancel: cancel.drop_guard() })
    }

    /// Gives a pod its address, records it, and says that it is attached. How long it waited for a block, if it did.
    async fn serve(&self, place: &Place, pod: &Pod) -> Result<Option<f64>> {
        let interface: IfName = "net1".parse()?;
        let (addresses, waited) = self.allocate(&pod.key.uid, &interface).await?;
        let attachment = Attachment {
            network: NETWORK.to_owned(),
            network_uid: place.network.metadata.uid.clone().unwrap_or_default(),
            mac: intent::mac(&pod.key.uid, &interface),
            interface,
            addresses,
            since: None,
        };
        let attachments = vec![attachment.clone()];
        let mut record = patiently(|| self.records.create(pod, attachments.clone())).await?;
        let up = [Attached { attachment, mtu: 1500, gateways: Vec::new(), routes: Vec::new() }];
        let facts = Facts {
            pod,
            generation: record.generation,
            attachments: &record.spec.attachments,
            sandbox: Some(sandbox(&pod.key.uid)),
            up: &up,
            progress: &Phase::Attached,
            unheld: false,
        };
        let status = status::build(&facts, &PodNetworkStatus::default(), self.clock.wall());
        patiently(|| self.records.set_status(&record, &status)).await?;
        record.status = status;
        self.view.lock().records.insert(pod.key.uid.clone(), record);
        Ok(waited)
    }

    async fn remove_records(&self) -> Result<()> {
        // The view keeps them: with room for more pods the agent would claim more blocks.
        let records: Vec<Record> = self.view.lock().records.values().cloned().collect();
        for record in &records {
            patiently(|| self.records.remove(record)).await?;
        }
        Ok(())
    }

    async fn allocate(&self, uid: &str, interface: &IfName) -> Result<(Vec<HeldAddress>, Option<f64>)> {
        let (owner, begun, mut waited) = (ipam::owner(uid, interface), Instant::now(), None);
        loop {
            let taken = self.view.lock().ipam.allocate(NETWORK, &owner, self.clock.now());
            self.blocks.wake();
            if let Ok(addresses) = taken {
                return Ok((addresses, waited));
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            timeout(left, self.blocks.gained()).await.context("a pod got no address in time")?;
            waited = Some(begun.elapsed().as_secs_f64() * 1000.0);
        }
    }
}

/// Asks again, as an agent does, when the API server does not answer in time.
async fn patiently<T, E, F>(ask: impl Fn() -> F) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
    F: Future<Output = Result<T, E>>,
{
    for _ in 1..TRIES {
        if let Ok(answer) = ask().await {
            return Ok(answer);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(ask().await?)
}

fn sandbox(uid: &str) -> SandboxRef {
    SandboxRef { id: uid.to_owned(), attempt: 0, cookie: 1, nsid: 1, boot_id: "scale".to_owned() }
}

/// A pod that only its agent knows.
fn pod(node: &str, number: u32) -> Result<Pod> {
    let name = format!("{node}-{number}");
    let pod: PodObject = serde_json::from_value(json!({
        "metadata": {
            "namespace": NAMESPACE, "name": name, "uid": name,
            "annotations": { names::NETWORKS_ANNOTATION: NETWORK },
        },
        "spec": { "containers": [], "initContainers": [{ "name": names::GATE_CONTAINER }] },
    }))?;
    Pod::try_from(pod).map_err(|what| anyhow!(what))
}
