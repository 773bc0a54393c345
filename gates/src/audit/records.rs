//! Records held against the pods they are of. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use fairlead_crds::pod_network::Attachment;
use fairlead_crds::{Cidr, ConditionType, Finding, FindingCode, PodNetwork, PodNetworkStatus, names};

use super::world::{Pod, World, record_name};

/// How long a record may outlive its pod, in seconds: a forced deletion goes before the sandbox ends.
pub const LEAK: i64 = 30;

/// What records and pods disagree about.
pub fn check(world: &World) -> Vec<Finding> {
    let pods = world.pods_by_uid();
    let mut findings = twice(world);
    for record in &world.records {
        findings.extend(finalizer(record));
        findings.extend(status(record));
        findings.extend(match pods.get(record.spec.pod_uid.as_str()) {
            None => outlived(world, record),
            Some(pod) => of_pod(world, record, pod),
        });
    }
    findings.extend(missing(world));
    findings
}

fn twice(world: &World) -> Vec<Finding> {
    let mut first: HashMap<&str, &PodNetwork> = HashMap::new();
    let mut findings = Vec::new();
    for record in &world.records {
        if let Some(other) = first.insert(&record.spec.pod_uid, record) {
            let message = format!("pod {} also has {}", record.spec.pod_uid, record_name(other));
            findings.push(Finding::new(
                FindingCode::RecordTwice,
                record_name(record),
                &record.spec.pod_uid,
                message,
            ));
        }
    }
    findings
}

fn finalizer(record: &PodNetwork) -> Option<Finding> {
    let has = record.metadata.finalizers.iter().flatten().any(|name| name == names::POD_NETWORK_FINALIZER);
    let message = format!("it does not have {}", names::POD_NETWORK_FINALIZER);
    (!has).then(|| {
        Finding::new(
            FindingCode::FinalizerMissing,
            record_name(record),
            names::POD_NETWORK_FINALIZER,
            message,
        )
    })
}

/// The pod is gone. The garbage collector deletes the record then, which is when the time begins to count.
fn outlived(world: &World, record: &PodNetwork) -> Option<Finding> {
    let deleted = record.metadata.deletion_timestamp.as_ref().map(|time| world.seconds_since(time.0));
    if deleted.is_some_and(|seconds| seconds < LEAK) {
        return None;
    }
    let (uid, node) = (&record.spec.pod_uid, &record.spec.node_name);
    let agent = match world.silent_for(node) {
        Some(seconds) => format!("the agent of {node} was heard of {seconds} s ago"),
        None => format!("the agent of {node} was never heard of"),
    };
    let message = format!("pod {} with UID {uid} does not exist; {agent}", record.spec.pod_name);
    Some(Finding::new(FindingCode::RecordLeaked, record_name(record), uid, message))
}

fn of_pod(world: &World, record: &PodNetwork, pod: &Pod) -> Option<Finding> {
    let (uid, node) = (&record.spec.pod_uid, &record.spec.node_name);
    if pod.node.as_ref() != Some(node) {
        let message = format!("it is of node {node}, its pod of {}", pod.node.as_deref().unwrap_or("none"));
        return Some(Finding::new(FindingCode::RecordMisplaced, record_name(record), uid, message));
    }
    let over = world.seconds_since(pod.over?);
    let message = format!("its pod has been over for {over} s");
    (over >= LEAK).then(|| Finding::new(FindingCode::RecordLeaked, record_name(record), uid, message))
}

/// A record that says Ready lists exactly the interfaces it holds.
fn status(record: &PodNetwork) -> Option<Finding> {
    let status = record.status.as_ref().filter(|status| is_ready(status))?;
    let held: BTreeSet<String> = record.spec.attachments.iter().map(wanted).collect();
    let up = status.interfaces.iter();
    let up: BTreeSet<String> = up
        .map(|one| {
            interface(&one.network, one.interface_name.as_str(), &one.hardware_address.to_string(), &one.ips)
        })
        .collect();
    let list = |some: Vec<&String>| some.into_iter().cloned().collect::<Vec<_>>().join(", ");
    let (lacks, more) = (list(held.difference(&up).collect()), list(up.difference(&held).collect()));
    let message = format!(
        "it holds and does not list: {}; it lists and does not hold: {}",
        or_none(&lacks),
        or_none(&more)
    );
    (held != up).then(|| {
        Finding::new(FindingCode::StatusDiffers, record_name(record), format!("{lacks}/{more}"), message)
    })
}

fn is_ready(status: &PodNetworkStatus) -> bool {
    status.conditions.iter().any(|one| one.type_ == ConditionType::Ready.as_str() && one.status == "True")
}

fn wanted(attachment: &Attachment) -> String {
    let addresses: Vec<Cidr> = attachment.addresses.iter().map(|held| held.address).collect();
    interface(&attachment.network, attachment.interface.as_str(), &attachment.mac.to_string(), &addresses)
}

fn interface(network: &str, name: &str, mac: &str, addresses: &[Cidr]) -> String {
    let mut addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    addresses.sort();
    format!("{name} on {network} with {mac} {}", addresses.join(" "))
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "nothing" } else { text }
}

/// Pods that count as attached and have no record.
fn missing(world: &World) -> Vec<Finding> {
    let recorded: HashSet<&str> = world.records.iter().map(|record| record.spec.pod_uid.as_str()).collect();
    let lacks = |pod: &&Pod| {
        pod.ready && pod.over.is_none() && pod.node.is_some() && !recorded.contains(pod.uid.as_str())
    };
    let finding = |pod: &Pod| {
        let message = format!("{} is True, and no record has its UID {}", names::NETWORK_READY, pod.uid);
        Finding::new(FindingCode::RecordMissing, format!("pod {}", pod.name), &pod.uid, message)
    };
    world.pods.iter().filter(lacks).map(finding).collect()
}
