//! What the kernel of a node has and its records say. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use fairlead_crds::marker::Marker;
use fairlead_crds::pod_network::{Attachment, SandboxRef};
use fairlead_crds::{Cidr, ConditionType, Finding, FindingCode, Network, names};

use crate::model::Record;
use crate::plan::{HostLink, Observed};

/// What is known of a node, read at about the same time.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Boot id of its kernel.
    pub boot_id: String,
    /// The host links that are ours.
    pub links: Vec<HostLink>,
    /// The bridges that we made.
    pub bridges: Vec<String>,
    /// All Networks.
    pub networks: Vec<Network>,
    /// The records of the node.
    pub records: Vec<Record>,
    /// By UID of the pod, what is in its namespace.
    pub seen: HashMap<String, Seen>,
}

/// What is in a pod's namespace.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Cookie of the namespace.
    pub cookie: u64,
    /// Its links and its marker.
    pub observed: Observed,
}

/// Every disagreement between the kernel and the records.
pub fn audit(world: &World) -> Vec<Finding> {
    let mut findings = strays(world);
    findings.extend(bridges(world));
    for record in &world.records {
        // Of a record that waits nothing is promised, and one of an earlier boot is about to be written anew.
        let ready = record
            .status
            .conditions
            .iter()
            .any(|one| one.type_ == ConditionType::Ready.as_str() && one.status == "True");
        let Some(sandbox) =
            record.status.sandbox.as_ref().filter(|sandbox| ready && sandbox.boot_id == world.boot_id)
        else {
            continue;
        };
        for attachment in &record.spec.attachments {
            findings.extend(host_end(world, record, attachment));
        }
        if let Some(seen) = world.seen.get(&record.key.uid) {
            findings.extend(
                record.spec.attachments.iter().filter_map(|attachment| pod_end(record, attachment, seen)),
            );
            findings.extend(marker(record, sandbox, seen));
        }
    }
    findings
}

fn object(record: &Record) -> String {
    let key = &record.key;
    format!("podnetwork {}/{}", key.namespace, names::pod_network(&key.name, &key.uid))
}

/// Links of ours that no record has.
fn strays(world: &World) -> Vec<Finding> {
    let known: HashSet<String> = world
        .records
        .iter()
        .flat_map(|record| {
            record
                .spec
                .attachments
                .iter()
                .map(|one| names::host_link(&record.key.uid, one.interface.as_str()))
        })
        .collect();
    let stray = world.links.iter().filter(|link| !known.contains(&link.name));
    let finding = |link: &HostLink| {
        let message = format!(
            "its alias is {:?}, and no record of this node has it",
            link.alias.as_deref().unwrap_or_default()
        );
        Finding::new(FindingCode::LinkWithoutRecord, format!("link {}", link.name), "", message)
    };
    stray.map(finding).collect()
}

fn bridges(world: &World) -> Vec<Finding> {
    let wanted: HashSet<&str> = world
        .networks
        .iter()
        .filter_map(|network| Some(network.spec.bridge.as_ref()?.name.as_str()))
        .collect();
    let left = world.bridges.iter().filter(|bridge| !wanted.contains(bridge.as_str()));
    left.map(|bridge| {
        Finding::new(FindingCode::BridgeLeft, format!("link {bridge}"), "", "no Network has this bridge")
    })
    .collect()
}

fn host_end(world: &World, record: &Record, attachment: &Attachment) -> Option<Finding> {
    let name = names::host_link(&record.key.uid, attachment.interface.as_str());
    if world.links.iter().any(|link| link.name == name) {
        return None;
    }
    let message = format!("the end of {} on the node, {name}, is not there", attachment.interface);
    Some(Finding::new(FindingCode::LinkMissing, object(record), name, message))
}

fn pod_end(record: &Record, attachment: &Attachment, seen: &Seen) -> Option<Finding> {
    let name = &attachment.interface;
    let Some(link) = seen.observed.links.iter().find(|link| link.name == name.as_str()) else {
        let message = format!("{name} is not there in the pod");
        return Some(Finding::new(FindingCode::LinkMissing, object(record), name.as_str(), message));
    };
    let list = |addresses: &mut dyn Iterator<Item = Cidr>| {
        addresses.map(|one| one.to_string()).collect::<BTreeSet<_>>()
    };
    let held = list(&mut attachment.addresses.iter().map(|held| held.address));
    let has = list(&mut link.addresses.iter().copied());
    if held == has && link.mac == Some(attachment.mac) {
        return None;
    }
    let mac = link.mac.map_or("none".to_owned(), |mac| mac.to_string());
    let message = format!(
        "{name} has {} and {mac}, its record {} and {}",
        or_none(&has),
        or_none(&held),
        attachment.mac
    );
    Some(Finding::new(FindingCode::LinkDiffers, object(record), name.as_str(), message))
}

fn or_none(addresses: &BTreeSet<String>) -> String {
    if addresses.is_empty() {
        "no address".to_owned()
    } else {
        addresses.iter().cloned().collect::<Vec<_>>().join(" ")
    }
}

/// The marker is about this pod and this namespace, which is the one the record is about.
fn marker(record: &Record, sandbox: &SandboxRef, seen: &Seen) -> Option<Finding> {
    let text = seen.observed.marker.as_deref().unwrap_or_default();
    let right = match text.parse() {
        Ok(Marker::Ready { uid, cookie, .. }) => {
            uid == record.key.uid && cookie == Some(seen.cookie) && seen.cookie == sandbox.cookie
        }
        _ => false,
    };
    let message = format!(
        "the marker is {text:?}; the record is about namespace {}, this one is {}",
        sandbox.cookie, seen.cookie
    );
    (!right).then(|| Finding::new(FindingCode::MarkerDiffers, object(record), "lo", message))
}

#[cfg(test)]
mod tests;
