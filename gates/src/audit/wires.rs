//! Addresses and hardware addresses of all records, held against each other and against the blocks they name. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use fairlead_crds::pod_network::{Attachment, HeldAddress};
use fairlead_crds::{Finding, FindingCode, IPBlock, Mac, Network, PodNetwork};

use super::world::{World, record_name};

/// Where to look things up, and what was seen so far.
struct Look<'a> {
    world: &'a World,
    blocks: HashMap<&'a str, &'a IPBlock>,
    networks: HashMap<&'a str, &'a Network>,
    addresses: HashMap<(String, IpAddr), String>,
    macs: HashMap<(&'a str, Mac), String>,
    findings: Vec<Finding>,
}

/// What records hold and must not.
pub fn check(world: &World) -> Vec<Finding> {
    let mut look = Look {
        world,
        blocks: world.blocks_by_name(),
        networks: world.networks_by_uid(),
        addresses: HashMap::new(),
        macs: HashMap::new(),
        findings: Vec::new(),
    };
    for record in &world.records {
        for attachment in &record.spec.attachments {
            look.attachment(record, attachment);
            attachment.addresses.iter().for_each(|held| look.address(record, attachment, held));
        }
    }
    look.findings
}

impl<'a> Look<'a> {
    fn find(&mut self, code: FindingCode, record: &PodNetwork, subject: &impl ToString, message: String) {
        self.findings.push(Finding::new(code, record_name(record), subject.to_string(), message));
    }

    fn attachment(&mut self, record: &PodNetwork, attachment: &'a Attachment) {
        let Attachment { network, network_uid, interface, mac, .. } = attachment;
        if !self.networks.contains_key(network_uid.as_str()) {
            let message =
                format!("{interface} is of network {network} with UID {network_uid}, which does not exist");
            self.find(FindingCode::NetworkMissing, record, network, message);
        }
        let here = format!("{interface} of {}", record_name(record));
        if let Some(other) = self.macs.insert((network_uid, *mac), here) {
            self.find(FindingCode::MacTwice, record, mac, format!("{interface} has {mac}, as {other} has"));
        }
    }

    fn address(&mut self, record: &PodNetwork, attachment: &Attachment, held: &HeldAddress) {
        let address = held.address.addr();
        let here = format!("{} of {}", attachment.interface, record_name(record));
        let space = self.space(attachment, held);
        if let Some(other) = self.addresses.insert((space.clone(), address), here) {
            let message =
                format!("{} holds {address} of space {space}, as {other} does", attachment.interface);
            self.find(FindingCode::AddressTwice, record, &address, message);
        }
        match self.block(held) {
            Some(block) => self.in_block(record, attachment, address, block),
            None => {
                let message = format!(
                    "{address} is of block {} with UID {}, which does not exist",
                    held.block, held.block_uid
                );
                self.find(FindingCode::BlockUnknown, record, &address, message);
            }
        }
    }

    fn block(&self, held: &HeldAddress) -> Option<&'a IPBlock> {
        let block = self.blocks.get(held.block.as_str()).copied()?;
        (block.metadata.uid.as_deref() == Some(&held.block_uid)).then_some(block)
    }

    /// That of the block by name, whatever its UID: a block that was lost and claimed anew is of the same space.
    fn space(&self, attachment: &Attachment, held: &HeldAddress) -> String {
        let of_block = self.blocks.get(held.block.as_str()).map(|block| &block.spec.space);
        let network = self.networks.get(attachment.network_uid.as_str());
        let of_network = network.and_then(|network| network.spec.ipam.as_ref()).map(|ipam| &ipam.space);
        of_block.or(of_network).cloned().unwrap_or_default()
    }

    fn in_block(&mut self, record: &PodNetwork, attachment: &Attachment, address: IpAddr, block: &IPBlock) {
        let (spec, name) = (&block.spec, block.metadata.name.as_deref().unwrap_or_default());
        if !spec.cidr.0.contains(&address) {
            let message = format!("{address} is not in {}, which is block {name}", spec.cidr);
            self.find(FindingCode::AddressOutsideBlock, record, &address, message);
        }
        if spec.node_name != record.spec.node_name || spec.network_uid != attachment.network_uid {
            let message = format!(
                "{address} is of block {name}, which is of network {} on node {}; the record is of network {} on node {}",
                spec.network, spec.node_name, attachment.network, record.spec.node_name
            );
            self.find(FindingCode::BlockForeign, record, &address, message);
        }
        let kept =
            self.is_kept(&record.spec.pod_uid, address, block).or_else(|| turn_of_another(record, block));
        if let Some(whose) = kept {
            self.find(
                FindingCode::AddressNotFree,
                record,
                &address,
                format!("{address} is {whose} on block {name}"),
            );
        }
    }

    /// Why nobody but another pod may have the address: its quarantine runs, or it is kept for that pod.
    fn is_kept(&self, pod_uid: &str, address: IpAddr, block: &IPBlock) -> Option<String> {
        let status = block.status.as_ref()?;
        let mut quarantined = status.quarantined.iter();
        let rests = quarantined.find(|entry| {
            entry.address.0 == address && entry.pod_uid != pod_uid && entry.until.0 > self.world.now
        });
        let held = status.held.iter().find(|entry| entry.address.0 == address && entry.pod_uid != pod_uid);
        let rests =
            rests.map(|entry| format!("in quarantine for pod {} until {}", entry.pod_uid, entry.until.0));
        rests.or_else(|| held.map(|entry| format!("kept for pod {}", entry.pod_uid)))
    }
}

/// Whose turn it is with a reserved address, if it is not that of the record's pod.
fn turn_of_another(record: &PodNetwork, block: &IPBlock) -> Option<String> {
    let claim = block.spec.claim.as_ref()?;
    let (spec, reserved) = (&record.spec, format!("reserved for {}", claim.pod));
    (!block.is_held_by(&spec.node_name, &spec.pod_uid)).then(|| match block.open_turn() {
        Some(holder) => format!("{reserved}, and it is the turn of the pod with UID {}", holder.pod_uid),
        None => format!("{reserved}, and it is nobody's turn"),
    })
}
