//! Addresses for which a stranger answered: left out until they are tried again.

use std::net::IpAddr;
use std::time::Duration;

use fairlead_crds::ip_block::Conflict;
use fairlead_crds::{Ip, Mac};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Block, Owner};

/// How long such an address is left out: long enough that a stranger costs next to nothing, short enough that an
/// address is back soon after its stranger went.
const LEFT_OUT: Duration = Duration::from_secs(600);

impl Block {
    /// Leaves out an address that `owner` was given and never used.
    pub(in super::super) fn conflict(&mut self, address: IpAddr, owner: &Owner, mac: Mac, now: Timestamp) {
        if self.used.get(&address) != Some(owner) {
            return;
        }
        self.used.remove(&address);
        self.full_until = None;
        let second = |time: Timestamp| Time(time.round(jiff::Unit::Second).unwrap_or(time));
        let retry = now.saturating_add(LEFT_OUT).unwrap_or(Timestamp::MAX);
        let (since, retry_after) = (second(now), second(retry));
        self.conflicts.retain(|_, conflict| conflict.retry_after.0 > now);
        self.conflicts.insert(address, Conflict { address: Ip(address), mac, since, retry_after });
    }

    /// Whether an address is left out.
    pub(in super::super) fn is_conflicting(&self, address: IpAddr, now: Timestamp) -> bool {
        self.conflicts.get(&address).is_some_and(|conflict| conflict.retry_after.0 > now)
    }

    /// When the first address that is left out may be tried again.
    pub(super) fn conflicts_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.conflicts.values().map(|conflict| conflict.retry_after.0).filter(|retry| *retry > now).min()
    }

    /// The addresses that are left out, as they belong into the block's status.
    pub fn conflict_list(&self, now: Timestamp) -> Vec<Conflict> {
        self.conflicts.values().filter(|conflict| conflict.retry_after.0 > now).cloned().collect()
    }
}
