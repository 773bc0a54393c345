//! What addresses cost in memory: taking and giving back one of a million, and reading 250 pods at the agent's start.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "what fails here ends the measurement")]

use std::io::{self, Write};
use std::time::Duration;

use fairlead_agent::ipam::{self, Ipam, Pool};
use fairlead_crds::pod_network::HeldAddress;
use fairlead_crds::{Cidr, IPBlock, PodNetwork, grid};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A /12 in the largest blocks there are: 1024 blocks of 1024 addresses.
const RANGE: &str = "10.16.0.0/12";
const BLOCK: u8 = 22;
const PODS: usize = 250;
const SAMPLE: usize = 10_000;

fn main() {
    start();
    million();
}

fn million() {
    let mut ipam = Ipam::default();
    ipam.set_pools([pool(RANGE, BLOCK)]);
    let range: Cidr = RANGE.parse().unwrap();
    let blocks = grid::blocks(range, BLOCK);
    (0..blocks).for_each(|index| {
        ipam.insert_block(&block(grid::block_at(range, BLOCK, index).expect("a block")));
    });
    let mut held: Vec<(usize, Vec<HeldAddress>)> = Vec::new();
    for percent in [0usize, 50, 90] {
        let target = 1_048_574 * percent / 100;
        let fill = cpu(|| {
            for pod in held.len()..target {
                held.push((pod, ipam.allocate("blue", &owner(pod), NOW).expect("space")));
            }
        });
        let mut sample = Vec::new();
        let take = cpu(|| {
            sample.extend((0..SAMPLE).map(|n| {
                let pod = 2_000_000 + n;
                (pod, ipam.allocate("blue", &owner(pod), NOW).expect("space"))
            }));
        });
        let again = cpu(|| {
            for (pod, address) in &sample {
                assert_eq!(ipam.allocate("blue", &owner(*pod), NOW).as_ref(), Ok(address));
            }
        });
        let give = cpu(|| sample.iter().for_each(|(pod, address)| ipam.give_back(address, &owner(*pod))));
        let counts = cpu(|| assert_eq!(ipam.counts("blue", NOW).expect("a pool").used, held.len() as u64));
        line(&format!(
            "{percent:2} % of a million in use: take {} ns, ask again {} ns, give back {} ns, count {:.2} ms, filled in {:.1} s",
            each(take, SAMPLE),
            each(again, SAMPLE),
            each(give, SAMPLE),
            counts.as_secs_f64() * 1000.0,
            fill.as_secs_f64(),
        ));
    }
}

/// What the API server answers to a starting agent, from text to the view of who holds what.
fn start() {
    let blocks: Vec<Value> = (0..16u32).map(|n| json!(block(cidr(n * 16, 28)))).collect();
    let records: Vec<Value> = (0..PODS).map(record).collect();
    let (blocks, records) = (json!(blocks).to_string(), json!(records).to_string());
    let mut ipam = Ipam::default();
    let took = cpu(|| {
        let blocks: Vec<IPBlock> = serde_json::from_str(&blocks).expect("blocks");
        let records: Vec<PodNetwork> = serde_json::from_str(&records).expect("records");
        ipam.set_pools([pool(RANGE, 28)]);
        blocks.iter().for_each(|block| ipam.insert_block(block));
        for record in &records {
            for attachment in &record.spec.attachments {
                let owner = ipam::owner(&record.spec.pod_uid, &attachment.interface);
                assert!(attachment.addresses.iter().all(|held| ipam.restore(held, &owner)));
            }
        }
    });
    assert_eq!(ipam.counts("blue", NOW).expect("a pool").used, PODS as u64);
    line(&format!("start with {PODS} pods: {:.2} ms of CPU", took.as_secs_f64() * 1000.0));
}

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn cidr(offset: u32, prefix: u8) -> Cidr {
    let address = std::net::Ipv4Addr::from_bits(0x0a10_0000 + offset);
    format!("{address}/{prefix}").parse().expect("a CIDR")
}

fn pool(range: &str, prefix: u8) -> Pool {
    let network = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue", "uid": "n" },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" },
                  "ipam": { "ranges": [{ "cidr": range, "blockPrefix": prefix }] } },
        "status": { "ranges": [{ "cidr": range, "blockPrefix": prefix, "state": "Admitted" }] }
    });
    Pool::of(&serde_json::from_value(network).expect("a Network")).expect("a pool")
}

fn block(cidr: Cidr) -> IPBlock {
    let name = grid::block_name("default", cidr);
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": name, "uid": format!("{name}-uid") },
        "spec": { "space": "default", "network": "blue", "networkUID": "n", "nodeName": "node1", "cidr": cidr }
    }))
    .expect("a block")
}

fn record(number: usize) -> Value {
    let offset = u32::try_from(number).expect("small") + 1;
    let name = grid::block_name("default", cidr(offset & !15, 28));
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork",
        "metadata": { "namespace": "team", "name": format!("pod-{number}"), "uid": format!("record-{number}") },
        "spec": { "podName": format!("pod-{number}"), "podUID": uid(number), "nodeName": "node1", "attachments": [{
            "network": "blue", "networkUID": "n", "interface": "net1", "mac": "02:00:00:00:00:01",
            "addresses": [{ "address": cidr(offset, 12), "block": name, "blockUID": format!("{name}-uid") }] }] }
    })
}

fn uid(number: usize) -> String {
    format!("0f3c2a11-9d1e-4c3b-8f00-{number:012}")
}

fn owner(number: usize) -> ipam::Owner {
    ipam::owner(&uid(number), &"net1".parse().expect("a name"))
}

/// CPU time of this thread, so that a loaded machine says the same.
fn cpu(work: impl FnOnce()) -> Duration {
    let now = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("scheduler statistics");
        Duration::from_nanos(text.split(' ').next().unwrap().parse().expect("nanoseconds"))
    };
    let before = now();
    work();
    now().saturating_sub(before)
}

fn each(time: Duration, count: usize) -> u128 {
    time.as_nanos() / count as u128
}

fn line(text: &str) {
    writeln!(io::stdout(), "{text}").expect("stdout");
}
