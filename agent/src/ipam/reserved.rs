//! Reserved addresses of this node: blocks of one address that the controller has given to a pod of it for one turn.
//!
//! An address is taken only by the pod that the turn is for, and only in a turn that this agent has not closed. A turn is
//! closed before its end is written, so nothing takes the address again while that write is under way or its answer lost.

use std::net::IpAddr;

use fairlead_crds::ip_block::Claim;
use fairlead_crds::network::RangeUse;
use fairlead_crds::pod_network::HeldAddress;
use fairlead_crds::reserved::{self, Ask};
use fairlead_crds::{IPBlock, Network};
use jiff::Timestamp;

use super::{Family, Ipam, Owner, Pool};

/// The turn of a reserved address that this node was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Its number.
    pub number: i64,
    /// The pod that it is for.
    pub pod_uid: String,
    /// Whose address it is.
    pub claim: Claim,
    /// Whether it is to end: nothing takes the address any more.
    pub closed: bool,
}

/// A turn that is to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Name of the block.
    pub block: String,
    /// UID of the block.
    pub uid: String,
    /// The turn.
    pub turn: Turn,
}

impl Turn {
    pub(super) fn of(block: &IPBlock) -> Option<Self> {
        let (claim, holder) = (block.spec.claim.clone()?, block.open_turn()?);
        Some(Self { number: holder.turn, pod_uid: holder.pod_uid.clone(), claim, closed: false })
    }

    /// Whether the block of an address is the one that a pod asks for.
    pub fn is_for(claim: &Claim, address: IpAddr, ask: &Ask, attachment: u32) -> bool {
        match ask.value {
            Some(value) => value == address,
            None => {
                claim.stateful_set.is_some()
                    && claim.attachment == attachment
                    && Family::of_address(address) == ask.family
            }
        }
    }
}

impl Pool {
    /// Whether any pod's address comes from elsewhere than from blocks of a node: there are reserved ranges only.
    pub fn has_only_reserved(&self) -> bool {
        self.has_reserved() && self.families().next().is_none()
    }

    /// Whether it has a range whose addresses only the controller grants.
    pub fn has_reserved(&self) -> bool {
        self.ranges.iter().any(|range| range.usage == RangeUse::Reserved)
    }
}

impl Ipam {
    /// Takes the reserved address that a pod was given for an ask of one of its attachments; asking again gives the same.
    pub fn take_reserved(
        &mut self,
        network: &Network,
        ask: &Ask,
        attachment: u32,
        owner: &Owner,
        now: Timestamp,
    ) -> Option<HeldAddress> {
        let uid = network.metadata.uid.as_deref()?;
        let is_it = |block: &&mut super::Block| {
            let open = block.turn.as_ref().filter(|turn| !turn.closed && turn.pod_uid == owner.uid);
            let address = block.cidr.addr();
            block.network_uid == uid
                && open.is_some_and(|turn| Turn::is_for(&turn.claim, address, ask, attachment))
        };
        let block = self.blocks.values_mut().find(is_it)?;
        let (address, name, uid) = (block.cidr.addr(), block.name.clone(), block.uid.clone());
        // A stranger has it: the pod waits, since no other address is its own.
        if block.is_conflicting(address, now) || !block.restore(address, owner) {
            return None;
        }
        self.note(owner, &name, address);
        let address = reserved::on_interface(network, ask, address);
        Some(HeldAddress { address, block: name, block_uid: uid })
    }

    /// Whether the address is one that only the controller grants.
    pub fn is_reserved(&self, address: IpAddr) -> bool {
        let ranges = self.pools.values().flat_map(|pool| &pool.ranges);
        ranges.into_iter().any(|range| range.usage == RangeUse::Reserved && range.cidr.0.contains(&address))
    }

    /// Closes the turns of reserved addresses that an interface does not use any more.
    pub fn close_turns(&mut self, addresses: &[HeldAddress], owner: &Owner) {
        for held in addresses {
            let block = self.blocks.get_mut(&held.block).filter(|block| block.uid == held.block_uid);
            let Some(block) = block.filter(|block| block.turn.is_some()) else { continue };
            block.give_back(held.address.addr(), owner);
            block.close_turn();
        }
        // Forgets where the pod held them.
        self.give_back(addresses, owner);
    }

    /// Closes the turns of all reserved addresses that nothing uses, as far as the pod they are for is to have none.
    pub fn close_unused_turns(&mut self, may_close: impl Fn(&Turn) -> bool) {
        let unused = self.blocks.values_mut().filter(|block| block.is_empty() && block.held.is_empty());
        for block in unused.filter(|block| block.turn.as_ref().is_some_and(&may_close)) {
            block.close_turn();
        }
    }

    /// Turns that are closed; their end is to be written.
    pub fn closed_turns(&self) -> Vec<Ending> {
        let ending = |block: &super::Block| {
            let turn = block.turn.clone().filter(|turn| turn.closed)?;
            Some(Ending { block: block.name.clone(), uid: block.uid.clone(), turn })
        };
        self.blocks.values().filter_map(ending).collect()
    }

    /// Forgets a turn whose end was written. What is read of it later is out of date.
    pub fn end_turn(&mut self, ending: &Ending) {
        self.ended.insert(ending.uid.clone(), ending.turn.number);
        self.blocks.retain(|_, block| {
            let same = |turn: &Turn| turn.number <= ending.turn.number;
            block.uid != ending.uid || !block.turn.as_ref().is_some_and(same)
        });
    }

    /// Whether the turn of a block was ended here before.
    pub(super) fn has_ended(&self, uid: &str, turn: &Turn) -> bool {
        self.ended.get(uid).is_some_and(|ended| turn.number <= *ended)
    }
}

#[cfg(test)]
mod tests;
