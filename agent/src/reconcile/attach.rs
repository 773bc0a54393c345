//! Bringing a pod's interfaces to what it asks for: addresses, record, kernel, marker, in this order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fairlead_crds::network::Route;
use fairlead_crds::pod_network::{Attachment, SandboxRef};
use fairlead_crds::{IPBlock, IfName, Ip, Network, Reason, names};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::adopt::Adopted;
use super::probe::Verdict;
use super::{Agent, Awaited, RESYNC, RoundError, announce};
use crate::bring::{self, Brought, Caller, Order};
use crate::clock::Clock;
use crate::intent::{self, Intent, Problem, Wanted, World};
use crate::ipam;
use crate::lease::Lease;
use crate::model::{Pod, Record};
use crate::nri::Waits;
use crate::plan::WantedInterface;
use crate::queue::Next;
use crate::sandbox::{Sandbox, Sandboxes};
use crate::status::{Attached, Progress};
use crate::view::Inner;

mod take;

/// How soon to look whether a reserved address has been given.
const SOON: Duration = Duration::from_millis(300);
/// How soon to look again at a pod that something else brings here before.
const RARELY: Duration = Duration::from_secs(5);

/// What a visit to a sandbox is for, as the thread in its namespace has to know.
struct Round {
    uid: String,
    sandbox: String,
    sandboxes: watch::Receiver<Arc<Sandboxes>>,
    lease: Arc<Lease>,
    /// Where the runtime holds the pod.
    waits: Option<Arc<Waits>>,
}

impl Caller for Round {
    fn may_mark(&self) -> bool {
        let sandboxes = self.sandboxes.borrow();
        self.lease.is_fresh() && sandboxes.newest(&self.uid).is_some_and(|newest| newest.id == self.sandbox)
    }

    fn ready(&self) {
        if let Some(waits) = &self.waits {
            waits.ready(&self.sandbox);
        }
    }
}

impl Agent {
    pub(super) async fn attach(&self, pod: Pod, record: Option<Record>) -> Result<Next, RoundError> {
        let record = match record {
            _ if self.is_unanswered(&pod.key.uid) => Some(self.settle(&pod).await?),
            Some(record) => Some(record),
            None => match self.adopt(&pod).await? {
                Adopted::Recorded(record) => Some(*record),
                Adopted::Nothing => None,
                Adopted::Strange => return Ok(Next::After(RESYNC)),
            },
        };
        let Intent { wanted, mut problems } = self.intent(&pod, record.as_ref());
        let record = match record {
            Some(record) => Some(self.detach_unwanted(record, &wanted).await?),
            None => None,
        };
        let granted = self.find_granted(&pod, record.as_ref(), &wanted).await?;
        let (attachments, lost) = self.allocate(&pod, record.as_ref(), &wanted, &granted, &mut problems);
        let record = self.write_ahead(&pod, record, attachments).await?;
        let verdict = self.probe(&pod, &record).await?;
        if verdict == Verdict::Taken {
            return Ok(Next::After(Duration::ZERO));
        }
        let mut interfaces = self.interfaces(&record, &mut problems).await;
        // Nothing new is made with an address that may be another's; what is there stays.
        interfaces.retain(|(interface, _)| !lost.contains(&interface.name));
        let sandbox = self.sandboxes().newest(&pod.key.uid).cloned();
        match sandbox {
            // The end of the probe brings the pod here again.
            Some(_) if verdict == Verdict::Open => Ok(Next::After(RARELY)),
            Some(sandbox) => self.attach_in(&pod, &record, &sandbox, interfaces, problems).await,
            None => self.await_sandbox(&pod, &record, problems).await,
        }
    }

    fn intent(&self, pod: &Pod, record: Option<&Record>) -> Intent {
        let view = self.view.lock();
        let none = std::collections::BTreeMap::new();
        let namespace_labels = view.namespaces.get(&pod.key.namespace).unwrap_or(&none);
        let world = World { networks: &view.networks, namespace_labels, node_labels: &view.node.labels };
        intent::resolve(pod, world, record.map_or(&[], |record| &record.spec.attachments))
    }

    /// What the record holds but the pod does not want any more: link cut, address into quarantine, then out of the record.
    async fn detach_unwanted(&self, record: Record, wanted: &[Wanted]) -> Result<Record, RoundError> {
        let (kept, gone): (Vec<_>, Vec<_>) = {
            let view = self.view.lock();
            // What has begun to leave the record leaves it, also if it is wanted again: the write that took it out may be
            // under way still.
            let leaves = |attachment: &Attachment| {
                attachment.addresses.iter().any(|held| view.ipam.is_leaving(held, &record.key.uid))
            };
            let stays = |attachment: &Attachment| {
                wanted.iter().any(|want| want.is(attachment)) && !leaves(attachment)
            };
            record.spec.attachments.iter().cloned().partition(stays)
        };
        if gone.is_empty() {
            return Ok(record);
        }
        let uid = &record.key.uid;
        let links: Vec<String> =
            gone.iter().map(|attachment| names::host_link(uid, attachment.interface.as_str())).collect();
        self.on_kernel(move |net| net.delete_host_links(&links)).await?;
        for attachment in &gone {
            self.blocks.quarantine(&attachment.addresses, &ipam::owner(uid, &attachment.interface)).await?;
            info!(network = %attachment.network, interface = %attachment.interface, "interface detached");
        }
        let record = self.records.set_attachments(&record, kept).await?;
        self.metrics.api_write("record");
        self.keep_record(record.clone());
        self.left(&record.key.uid, &gone);
        self.end_turns(&record.key.uid, &gone).await;
        Ok(record)
    }

    /// What the controller has granted the pod, if it asks for a reserved address that its record has not.
    async fn find_granted(
        &self,
        pod: &Pod,
        record: Option<&Record>,
        wanted: &[Wanted],
    ) -> Result<Vec<IPBlock>, RoundError> {
        let held = record.map_or(&[][..], |record| &record.spec.attachments);
        let missing = |want: &Wanted| !want.asks.is_empty() && !held.iter().any(|one| want.is(one));
        if wanted.iter().any(missing) {
            return Ok(self.reserved.find(&pod.key).await?);
        }
        Ok(Vec::new())
    }

    /// What the pod shall hold: what its record holds, and new addresses for the rest as far as there are any. Also the
    /// interfaces whose addresses this node does not own any more.
    fn allocate(
        &self,
        pod: &Pod,
        record: Option<&Record>,
        wanted: &[Wanted],
        granted: &[IPBlock],
        problems: &mut Vec<Problem>,
    ) -> (Vec<Attachment>, Vec<IfName>) {
        let held = record.map_or(&[][..], |record| &record.spec.attachments);
        let (mut attachments, mut lost) = (Vec::with_capacity(wanted.len()), Vec::new());
        let mut view = self.view.lock();
        for want in wanted {
            let kept = held.iter().find(|attachment| want.is(attachment));
            match kept.filter(|attachment| !give_up_taken(&mut view, pod, attachment, &self.clock)) {
                Some(attachment) => {
                    if let Err(problem) = keep(&mut view, &pod.key.uid, attachment) {
                        problems.push(problem);
                        lost.push(attachment.interface.clone());
                    }
                    attachments.push(attachment.clone());
                }
                None => match take::take(&mut view, pod, want, &attachments, granted, &self.clock) {
                    Ok(attachment) => attachments.push(attachment),
                    Err(problem) => problems.push(problem),
                },
            }
        }
        drop(view);
        self.blocks.wake();
        (attachments, lost)
    }

    /// The write-ahead record: nothing is done in the kernel before the API server has it.
    async fn write_ahead(
        &self,
        pod: &Pod,
        record: Option<Record>,
        attachments: Vec<Attachment>,
    ) -> Result<Record, RoundError> {
        let unchanged = record.as_ref().is_some_and(|record| record.spec.attachments == attachments);
        if let (Some(record), true) = (&record, unchanged) {
            return Ok(record.clone());
        }
        let record = match self.write_record(pod, record.as_ref(), attachments).await {
            Ok(record) => record,
            Err(error) => {
                let problem = Problem::new(Reason::RecordRefused, error.to_string());
                self.say_refused(pod, &problem).await;
                return Err(error.into());
            }
        };
        // What an earlier round was given and could not record.
        self.view.lock().ipam.give_back_except(&pod.key.uid, &record.spec.attachments);
        self.metrics.api_write("record");
        self.keep_record(record.clone());
        self.changed.notify_one();
        Ok(record)
    }

    pub(super) fn keep_record(&self, record: Record) {
        self.know_links(&record);
        self.view.lock().records.insert(record.key.uid.clone(), record);
    }

    /// What the kernel shall have for what the record holds, as far as the node's bridges are ready.
    async fn interfaces(
        &self,
        record: &Record,
        problems: &mut Vec<Problem>,
    ) -> Vec<(WantedInterface, Attached)> {
        let mut interfaces = Vec::with_capacity(record.spec.attachments.len());
        for attachment in &record.spec.attachments {
            let network = self.view.lock().networks.get(&attachment.network).cloned();
            let Some(network) = network else {
                problems.push(Problem::new(
                    Reason::NetworkNotFound,
                    format!("network {} is gone", attachment.network),
                ));
                continue;
            };
            match self.bridges.ready(&attachment.network).await {
                Ok(bridge) => interfaces.push(interface(
                    &record.key.uid,
                    attachment,
                    &network,
                    bridge.index,
                    bridge.mtu,
                )),
                Err(problem) => problems.push(problem),
            }
        }
        interfaces
    }

    async fn await_sandbox(
        &self,
        pod: &Pod,
        record: &Record,
        mut problems: Vec<Problem>,
    ) -> Result<Next, RoundError> {
        let uid = &pod.key.uid;
        self.wait_for_sandbox(uid, (!pod.deleting).then_some(Awaited::Start));
        if pod.deleting {
            return Ok(Next::After(RESYNC));
        }
        let now = Instant::now();
        let missing_since = self.remember(uid, |memory| *memory.missing_since.get_or_insert(now));
        if problems.is_empty() {
            if let Some(left) = self.lock_waiting().patience(missing_since, now) {
                return Ok(Next::After(left));
            }
            problems.push(Problem::new(Reason::Waiting, Reason::Waiting.means()));
        }
        let next = next_after(&problems);
        self.say(pod, record, None, &[], &Progress::Waiting(merge(problems))).await?;
        Ok(next)
    }

    async fn attach_in(
        &self,
        pod: &Pod,
        record: &Record,
        sandbox: &Sandbox,
        interfaces: Vec<(WantedInterface, Attached)>,
        mut problems: Vec<Problem>,
    ) -> Result<Next, RoundError> {
        let uid = &pod.key.uid;
        let seen = self.remember(uid, |memory| memory.see(&sandbox.id, Instant::now()));
        let Some(path) = self.path(sandbox).await? else {
            self.wait_for_sandbox(uid, None);
            problems.push(Problem::new(Reason::HostNetwork, Reason::HostNetwork.means()));
            self.say(pod, record, None, &[], &Progress::Waiting(merge(problems))).await?;
            return Ok(Next::After(RESYNC));
        };
        let record = &self.check_hold(pod, record.clone(), sandbox, &path).await?;
        if self.evicts(record, sandbox).await? {
            return Ok(Next::After(RESYNC));
        }
        let (wanted, described): (Vec<_>, Vec<_>) = interfaces.into_iter().unzip();
        let order = Order {
            uid: uid.clone(),
            path: path.clone(),
            wanted: wanted.clone(),
            waits_for: (!problems.is_empty()).then(|| merge(problems.clone())),
            hash: hash(record),
            was_up_in: was_up(record, &described, &self.boot_id),
            may_repair: self.remember(uid, |memory| memory.repairs.check(Instant::now())),
        };
        let caller = Round {
            uid: uid.clone(),
            sandbox: sandbox.id.clone(),
            sandboxes: self.sandboxes.clone(),
            lease: Arc::clone(&self.lease),
            waits: pod.nri.then(|| Arc::clone(&self.waits)),
        };
        let late = self.slow.as_ref().map_or(Duration::ZERO, |slow| slow.delay(&pod.key.name));
        let brought = self.on_kernel(move |net| {
            std::thread::sleep(late);
            bring::run(net, &order, &caller)
        });
        let brought = brought.await?;
        if brought.created {
            announce::spawn(Arc::clone(&self.net), path, brought.cookie, wanted);
        }
        problems.extend(brought.problems.iter().cloned());
        self.conclude(pod, record, sandbox, &brought, described, problems, seen).await
    }

    /// Path of a sandbox's namespace; where the runtime did not tell its plugin, it is asked.
    async fn path(&self, sandbox: &Sandbox) -> Result<Option<PathBuf>, RoundError> {
        let told = self.sandboxes().path(&sandbox.id).map(Path::to_owned);
        match told {
            Some(path) => Ok(Some(path)),
            None => Ok(self.runtime.netns_path(&sandbox.id).await?),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what one round found out, said once")]
    async fn conclude(
        &self,
        pod: &Pod,
        record: &Record,
        sandbox: &Sandbox,
        brought: &Brought,
        described: Vec<Attached>,
        problems: Vec<Problem>,
        seen: Instant,
    ) -> Result<Next, RoundError> {
        let uid = &pod.key.uid;
        self.wait_for_sandbox(uid, brought.superseded.then_some(Awaited::Start));
        if let Some(what) = &brought.repaired {
            self.remember(uid, |memory| memory.repairs.take(Instant::now())).ok();
            self.tell_repair(pod, what.clone()).await;
        }
        if let Some(marked) = brought.marked {
            let elapsed = marked.saturating_duration_since(seen.into_std());
            let elapsed_ms = elapsed.as_secs_f64() * 1000.0;
            self.metrics.attached(elapsed);
            info!(sandbox = %sandbox.id, interfaces = brought.up.len(), elapsed_ms, "attached");
        }
        let up: Vec<Attached> =
            described.into_iter().filter(|one| brought.up.contains(&one.attachment.interface)).collect();
        let identity = SandboxRef {
            id: sandbox.id.clone(),
            attempt: sandbox.attempt,
            cookie: brought.cookie,
            nsid: brought.nsid,
            boot_id: self.boot_id.clone(),
        };
        let next = next_after(&problems);
        let progress =
            if problems.is_empty() { Progress::Attached } else { Progress::Waiting(merge(problems)) };
        self.say(pod, record, Some(identity), &up, &progress).await?;
        Ok(if brought.superseded { Next::Retry } else { next })
    }

    /// Without a record only the pod can carry the reason.
    async fn say_refused(&self, pod: &Pod, problem: &Problem) {
        if let Err(error) = self.say_on_pod(pod, &Progress::Waiting(problem.clone())).await {
            warn!(%error, "cannot say why the pod waits");
        }
        self.metrics.failure(problem.reason);
        self.tell_once(pod, Reason::PodWaits, format!("{}: {}", problem.reason, problem.message)).await;
    }
}

/// Gives back what a record holds for an interface that was never made, because a stranger has one of its addresses.
fn give_up_taken(view: &mut Inner, pod: &Pod, attachment: &Attachment, clock: &Clock) -> bool {
    let now = clock.now();
    let taken = attachment.addresses.iter().any(|held| view.ipam.is_conflicting(held, now));
    if taken {
        view.ipam.give_back_interface(&ipam::owner(&pod.key.uid, &attachment.interface));
    }
    taken
}

/// What a record holds stays held; a block that is not this node's any more is said, not taken away.
fn keep(view: &mut Inner, uid: &str, attachment: &Attachment) -> Result<(), Problem> {
    let owner = ipam::owner(uid, &attachment.interface);
    let lost = attachment.addresses.iter().find(|held| !view.ipam.restore(held, &owner));
    lost.map_or(Ok(()), |held| {
        let (address, block) = (held.address.addr(), &held.block);
        let message =
            format!("address {address} lies in block {block}, which this node does not own any more");
        Err(Problem::new(Reason::BlockLost, message))
    })
}

fn interface(
    uid: &str,
    attachment: &Attachment,
    network: &Network,
    bridge: u32,
    bridge_mtu: u32,
) -> (WantedInterface, Attached) {
    let gateways: Vec<Ip> =
        attachment.addresses.iter().filter_map(|held| gateway(network, held.address.addr())).collect();
    let via = |route: &Route| {
        route
            .via
            .or_else(|| gateways.iter().find(|gateway| gateway.0.is_ipv6() == route.to.is_ipv6()).copied())
    };
    let has_family =
        |route: &&Route| attachment.addresses.iter().any(|held| held.address.is_ipv6() == route.to.is_ipv6());
    let routes: Vec<Route> = network
        .spec
        .routes
        .iter()
        .filter(has_family)
        .map(|route| Route { to: route.to, via: via(route) })
        .collect();
    let mtu = network.spec.mtu.unwrap_or(bridge_mtu);
    let wanted = WantedInterface {
        name: attachment.interface.clone(),
        host: names::host_link(uid, attachment.interface.as_str()),
        mac: attachment.mac,
        mtu,
        bridge,
        addresses: attachment.addresses.iter().map(|held| held.address).collect(),
        routes: routes.clone(),
        alias: bring::alias(uid, &attachment.interface),
    };
    (wanted, Attached { attachment: attachment.clone(), mtu, gateways, routes })
}

fn gateway(network: &Network, address: std::net::IpAddr) -> Option<Ip> {
    let ranges = network.status.iter().flat_map(|status| &status.ranges);
    let around = ranges.filter(|range| range.cidr.0.contains(&address) && range.gateway.is_some());
    // A reserved range may have been cut out of another one, whose gateway it shares unless it names its own.
    around.max_by_key(|range| range.cidr.0.prefix_len())?.gateway
}

/// The namespace in which the record's status says that everything is as it is wanted now: a difference there is a repair.
fn was_up(record: &Record, described: &[Attached], boot_id: &str) -> Option<u64> {
    let sandbox = record.status.sandbox.as_ref().filter(|sandbox| sandbox.boot_id == boot_id)?;
    let same = |one: &Attached| {
        record.status.interfaces.iter().any(|up| {
            up.interface_name == one.attachment.interface
                && up.network == one.attachment.network
                && up.ips.iter().eq(one.attachment.addresses.iter().map(|held| &held.address))
                && (up.mtu, &up.routes) == (one.mtu, &one.routes)
        })
    };
    described.iter().all(same).then_some(sandbox.cookie)
}

fn hash(record: &Record) -> String {
    let parts = record.spec.attachments.iter().flat_map(|attachment| {
        let addresses = attachment.addresses.iter().map(|held| held.address.to_string());
        [attachment.network_uid.clone(), attachment.interface.to_string()].into_iter().chain(addresses)
    });
    let parts: Vec<String> = parts.collect();
    names::hash8(&parts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// All problems as one: the first decides the reason.
fn merge(problems: Vec<Problem>) -> Problem {
    let reason = problems.first().map_or(Reason::Attaching, |problem| problem.reason);
    let messages: Vec<String> = problems.into_iter().map(|problem| problem.message).collect();
    Problem::new(reason, messages.join("; "))
}

/// When to look again without a reason: soon where only time helps, rarely where a change will tell.
fn next_after(problems: &[Problem]) -> Next {
    match problems.iter().map(|problem| problem.reason).find(|reason| reason.is_transient()) {
        None => Next::After(RESYNC),
        Some(Reason::AttachFailed) => Next::Retry,
        Some(
            Reason::NetworkNotFound
            | Reason::NetworkNotAccepted
            | Reason::NamespaceNotAllowed
            | Reason::NetworkNotOnNode,
        ) => Next::After(Duration::from_secs(30)),
        Some(Reason::AwaitingAddress) => Next::After(SOON),
        Some(_) => Next::After(Duration::from_secs(1)),
    }
}
