//! Deleting the host ends of pods' links.
//!
//! The kernel acknowledges a deletion only after an RCU barrier, some 15 ms after the links are closed and out of
//! their namespaces. So it is asked for on a thread of its own, and watched from the caller's.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::super::netlink::{Refusal, Socket};
use super::super::{NetError, netns};
use super::link::{DOOMED, Link};
use super::session::pauses;
use super::{Kernel, host, request};

/// How often to look once it is clear that it takes long.
const LAST_PAUSE: Duration = Duration::from_millis(10);

impl Kernel {
    /// Deletes host ends of ours, and returns once they and their other ends are gone.
    pub(super) fn delete(&self, socket: &mut Socket, names: &[String]) -> Result<(), NetError> {
        let found = find(socket, names)?;
        if let Some(foreign) = found.iter().find(|link| !link.is_ours()) {
            return Err(NetError::NotOurs(foreign.name.clone()));
        }
        if found.is_empty() {
            return Ok(());
        }
        let end = Instant::now() + self.deadline;
        let ended = self.start(move |socket| delete_now(socket, &found))?;
        for pause in pauses().chain(std::iter::repeat(LAST_PAUSE)) {
            match ended.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(_) => break,
                Ok(outcome) => return outcome,
            }
            // While the kernel is at it, this waits for its lock: it is no busy loop.
            if find(socket, names)?.is_empty() {
                return Ok(());
            }
        }
        Err(netns::system(&format!("delete {}", names.join(", ")), Errno::ETIMEDOUT))
    }

    /// Does something with a new socket of the node's namespace, on a thread that nobody has to wait for.
    fn start(
        &self,
        work: impl FnOnce(&mut Socket) -> Result<(), NetError> + Send + 'static,
    ) -> Result<Receiver<Result<(), NetError>>, NetError> {
        let (sender, receiver) = mpsc::channel();
        let (counters, deadline) = (Arc::clone(&self.counters), self.deadline);
        netns::start(self.own.as_fd(), move |entered| {
            let socket = entered.and_then(|()| Socket::open(counters, deadline));
            let outcome = socket.and_then(|mut socket| work(&mut socket));
            // Nobody listens any more once the links are seen to be gone.
            sender.send(outcome).ok();
        })?;
        Ok(receiver)
    }
}

fn find(socket: &mut Socket, names: &[String]) -> Result<Vec<Link>, NetError> {
    host::find_all(socket, names.iter().map(|name| request::get_link(name)))
}

/// In one pass: each deletion waits for RCU, one of a whole group only once. The links are first put into a
/// group that nothing else is in; by its upper half they are still known as ours if we die in between.
fn delete_now(socket: &mut Socket, doomed: &[Link]) -> Result<(), NetError> {
    if let [link] = doomed {
        return gone(socket.change(request::delete_link(link.index), 0), &link.name);
    }
    let links = host::all(socket, |link| Some((link.index, link.group)))?;
    let (Some(first), Some(group)) = (doomed.first(), unused_group(&links)) else {
        return Ok(());
    };
    for link in doomed {
        gone(socket.change(request::set_group(link.index, group), 0), &link.name)?;
    }
    gone(socket.change(request::delete_group(group), 0), &first.name)
}

/// A group that none of the links has, each given as index and group. Two calls at a time may choose the same one: both
/// only put there what is to go.
fn unused_group(links: &[(u32, u32)]) -> Option<u32> {
    let used: BTreeSet<u32> = links.iter().map(|(_, group)| *group).collect();
    let start = links.iter().map(|(index, _)| *index).max().unwrap_or_default();
    (0..=u32::from(u16::MAX))
        .map(|n| DOOMED | (start.wrapping_add(n) & 0xffff))
        .find(|group| !used.contains(group))
}

fn gone(result: Result<(), Refusal>, name: &str) -> Result<(), NetError> {
    match result {
        Err(refusal) if !refusal.is(Errno::ENODEV) => Err(refusal.during(format!("delete {name}"))),
        _ => Ok(()),
    }
}
