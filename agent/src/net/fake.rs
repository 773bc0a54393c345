//! A kernel in memory, for tests and for benches of what lies above: the same meanings, no privileges.
//!
//! It fails only where its caller said so. What it knows of Linux is in [`world`]; where the two differ the
//! real one is right, and the tests that run against both say so.

mod world;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;

use fairlead_crds::{IfName, Ip, Mac};

use self::world::World;
use super::bridge::Device;
use super::devices::Devices;
use super::{
    Asked, BridgeProblem, BridgeReady, Namespace, Net, NetError, Place, Report, Session, Stranger,
    WantedBridge, netns,
};
use crate::plan::{HostLink, Observed, PodLink, Step};

/// What was announced once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Name in the pod.
    pub link: IfName,
    /// Hardware address of the link.
    pub mac: Mac,
    /// The addresses.
    pub addresses: Vec<Ip>,
}

/// A node's network in memory.
#[derive(Debug, Default)]
pub struct Fake {
    world: Mutex<World>,
    devices: Devices,
    faults: Mutex<Faults>,
}

/// What shall go wrong.
#[derive(Debug, Default)]
struct Faults {
    /// How many steps still succeed before one fails.
    steps: Option<usize>,
    slow: Duration,
}

impl Fake {
    /// An empty node on which devices that match the globs may become uplinks.
    pub fn new(devices: &[&str]) -> Self {
        let devices = Devices::new(devices.iter().map(|glob| (*glob).to_owned()));
        Self { devices, ..Self::default() }
    }

    /// A sandbox comes to be: a namespace at this path, with nothing but `lo` in it. Returns its cookie.
    pub fn add_namespace(&self, path: impl Into<PathBuf>) -> u64 {
        self.world().add_pod(path.into())
    }

    /// A sandbox is gone: its path, its namespace, and all pairs that led there.
    pub fn remove_namespace(&self, path: &Path) {
        self.world().remove_pod(path);
    }

    /// The path is unmounted, but something keeps the namespace alive.
    pub fn hide_namespace(&self, path: &Path) {
        self.world().hide_pod(path);
    }

    /// A device of the node, up, that could be an uplink.
    pub fn add_device(&self, name: &str, mtu: u32) {
        self.world().add_device(Device { name: name.to_owned(), mtu, up: true, ..Device::default() });
    }

    /// Something in the pod changes its links, as a container with `NET_ADMIN` can.
    pub fn edit_pod(&self, path: &Path, edit: impl FnOnce(&mut Vec<PodLink>)) {
        self.world().edit_pod(path, edit);
    }

    /// Someone on the node changes links of ours.
    pub fn edit_host(&self, edit: impl FnOnce(&mut Vec<HostLink>)) {
        edit(&mut self.world().links);
    }

    /// Something on the wire has these addresses.
    pub fn add_strangers(&self, strangers: impl IntoIterator<Item = Stranger>) {
        self.world().strangers.extend(strangers);
    }

    /// The step after `steps` more fails with an input/output error, once. It has no effect.
    pub fn fail_after(&self, steps: usize) {
        self.faults().steps = Some(steps);
    }

    /// Every call takes at least this long.
    pub fn slow(&self, duration: Duration) {
        self.faults().slow = duration;
    }

    /// Everything about one pod, with all host links of the node.
    pub fn look(&self, path: &Path) -> Option<Observed> {
        let world = self.world();
        let all: Vec<&str> = world.links.iter().map(|link| link.name.as_str()).collect();
        world.look(world.cookie(path)?, &all)
    }

    /// How many changes were made so far, successful ones only.
    pub fn changes(&self) -> u64 {
        self.world().changes
    }

    /// The addresses that were forgotten so far.
    pub fn forgotten(&self) -> Vec<Ip> {
        self.world().forgotten.clone()
    }

    /// What was announced so far.
    pub fn announcements(&self) -> Vec<Announcement> {
        self.world().announced.clone()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let slow = self.faults().slow;
        thread::sleep(slow);
    }

    /// Whether the step that is about to be done is the one that fails.
    fn fails_now(&self) -> bool {
        let mut faults = self.faults();
        let fails = faults.steps == Some(0);
        faults.steps = faults.steps.and_then(|left| left.checked_sub(1));
        fails
    }
}

impl Net for Fake {
    fn visit(
        &self,
        path: &Path,
        work: &mut (dyn FnMut(Namespace, &mut dyn Session) + Send),
    ) -> Result<(), NetError> {
        self.wait();
        let opened = self.world().open(path);
        let (cookie, nsid) = opened.ok_or_else(|| NetError::NamespaceGone(path.display().to_string()))?;
        work(Namespace { cookie, nsid }, &mut FakeSession { fake: self, cookie });
        Ok(())
    }

    fn ensure_bridge(&self, wanted: &WantedBridge) -> Result<BridgeReady, BridgeProblem> {
        self.wait();
        self.world().ensure_bridge(wanted, &self.devices)
    }

    fn probe(&self, _: &IfName, asked: &[Asked], _: Duration) -> Result<Vec<Stranger>, NetError> {
        self.wait();
        let strangers = &self.world().strangers;
        Ok(asked
            .iter()
            .filter_map(|one| strangers.iter().find(|other| other.address == one.address))
            .copied()
            .collect())
    }

    fn forget(&self, addresses: &[(IfName, Ip)]) -> Result<(), NetError> {
        self.world().forgotten.extend(addresses.iter().map(|(_, address)| *address));
        Ok(())
    }

    fn remove_bridge(&self, name: &str) -> Result<(), NetError> {
        self.wait();
        self.world().remove_bridge(name, &self.devices)
    }

    fn bridges(&self) -> Result<Vec<String>, NetError> {
        Ok(self.world().bridges())
    }

    fn host_links(&self) -> Result<Vec<HostLink>, NetError> {
        self.wait();
        Ok(self.world().links.clone())
    }

    fn delete_host_links(&self, names: &[String]) -> Result<(), NetError> {
        self.wait();
        names.iter().try_for_each(|name| self.world().delete_link(name))
    }
}

struct FakeSession<'a> {
    fake: &'a Fake,
    cookie: u64,
}

impl Session for FakeSession<'_> {
    fn observe(&mut self, places: &[Place<'_>]) -> Result<Observed, NetError> {
        let observed = self.fake.world().observe(self.cookie, places);
        observed.ok_or_else(|| netns::system("observe the namespace", Errno::ENODEV))
    }

    fn apply(&mut self, steps: &[Step]) -> Report {
        for (done, step) in steps.iter().enumerate() {
            let result = if self.fake.fails_now() { Err(Errno::EIO.into()) } else { self.step(step) };
            if let Err(error) = result {
                return Report { done, failed: Some((step.clone(), error.during(step))) };
            }
        }
        Report { done: steps.len(), failed: None }
    }

    fn announce(&mut self, link: &IfName, mac: Mac, addresses: &[Ip]) -> Result<(), NetError> {
        let mut world = self.fake.world();
        if !world.has_link(self.cookie, link.as_str()) {
            return Err(netns::system(&format!("announce the addresses of {link}"), Errno::ENODEV));
        }
        world.announced.push(Announcement { link: link.clone(), mac, addresses: addresses.to_vec() });
        Ok(())
    }
}

impl FakeSession<'_> {
    fn step(&self, step: &Step) -> Result<(), Refused> {
        self.fake.world().step(self.cookie, step)
    }
}

/// Why a step was refused.
#[derive(Debug)]
enum Refused {
    Errno(Errno),
    NotOurs(String),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl Refused {
    fn during(self, step: &Step) -> NetError {
        match self {
            Self::Errno(errno) => {
                NetError::Netlink { action: step.to_string(), source: errno.into(), text: None }
            }
            Self::NotOurs(name) => NetError::NotOurs(name),
        }
    }
}

#[cfg(test)]
mod tests;
