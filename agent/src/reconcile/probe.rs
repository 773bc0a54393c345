//! Asking on the wire whether someone has an address, before a pod uses it: begun when the address is recorded, so
//! that it is usually over when the sandbox is there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fairlead_crds::pod_network::Attachment;
use fairlead_crds::{IfName, Reason};
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::{Agent, RoundError};
use crate::ipam;
use crate::model::{Pod, Record};
use crate::net::{Asked, NetError, Stranger};

/// What is known of the addresses of a pod's interfaces.
#[derive(Debug, Default)]
pub struct Probes(HashMap<IfName, Probe>);

#[derive(Debug)]
struct Probe {
    addresses: Vec<IpAddr>,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// The probe is under way; the pod is looked at again when it is over.
    Awaited(oneshot::Receiver<Result<Vec<Stranger>, NetError>>),
    /// Nobody has them.
    Free,
}

/// What a look at the probes of a pod says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Everything that the record holds may be used.
    Free,
    /// Someone may still answer.
    Open,
    /// Someone answered: other addresses are needed.
    Taken,
}

/// What is wrong with, or known of, one attachment.
enum Look {
    Free,
    Open,
    Ask,
    Heard(Result<Vec<Stranger>, NetError>),
}

impl Probes {
    fn look(&mut self, attachment: &Attachment) -> Look {
        let known = self.0.get_mut(&attachment.interface);
        let Some(probe) = known.filter(|probe| probe.addresses.iter().copied().eq(addresses(attachment)))
        else {
            return Look::Ask;
        };
        let Answer::Awaited(receiver) = &mut probe.answer else {
            return Look::Free;
        };
        match receiver.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => Look::Open,
            // Its task went without a word, as when the agent stops.
            Err(oneshot::error::TryRecvError::Closed) => Look::Ask,
            Ok(heard) => {
                probe.answer = Answer::Free;
                Look::Heard(heard)
            }
        }
    }
}

impl Agent {
    /// Looks at the probes that the record's new addresses need, and begins those that have not begun.
    ///
    /// # Errors
    /// If nothing could be sent or heard; the next round begins anew.
    pub(super) async fn probe(&self, pod: &Pod, record: &Record) -> Result<Verdict, RoundError> {
        let mut verdict = Verdict::Free;
        for attachment in &record.spec.attachments {
            let one = match self.probe_time(record, attachment) {
                Some(time) => self.probe_one(pod, attachment, time).await?,
                None => Verdict::Free,
            };
            verdict = match (verdict, one) {
                (Verdict::Taken, _) | (_, Verdict::Taken) => Verdict::Taken,
                (Verdict::Open, _) | (_, Verdict::Open) => Verdict::Open,
                _ => Verdict::Free,
            };
        }
        Ok(verdict)
    }

    /// How long to listen before an attachment's addresses are used; none if they are in use, or nobody is asked.
    fn probe_time(&self, record: &Record, attachment: &Attachment) -> Option<Duration> {
        let time = {
            let view = self.view.lock();
            view.networks.get(&attachment.network)?.spec.ipam.as_ref()?.probe_time()?
        };
        let is_up = record.status.interfaces.iter().any(|up| up.interface_name == attachment.interface);
        (!is_up && !attachment.addresses.is_empty()).then_some(time)
    }

    async fn probe_one(
        &self,
        pod: &Pod,
        attachment: &Attachment,
        time: Duration,
    ) -> Result<Verdict, RoundError> {
        match self.remember(&pod.key.uid, |memory| memory.probes.look(attachment)) {
            Look::Free => Ok(Verdict::Free),
            Look::Open => Ok(Verdict::Open),
            Look::Ask => self.ask(pod, attachment, time).await,
            Look::Heard(Ok(strangers)) if strangers.is_empty() => Ok(Verdict::Free),
            Look::Heard(Ok(strangers)) => {
                for stranger in strangers {
                    self.leave_out(pod, attachment, stranger).await;
                }
                Ok(Verdict::Taken)
            }
            Look::Heard(Err(error)) => {
                self.remember(&pod.key.uid, |memory| memory.probes.0.remove(&attachment.interface));
                Err(error.into())
            }
        }
    }

    async fn ask(&self, pod: &Pod, attachment: &Attachment, time: Duration) -> Result<Verdict, RoundError> {
        let bridge = {
            let view = self.view.lock();
            let network = view.networks.get(&attachment.network);
            network.and_then(|network| Some(network.spec.bridge.as_ref()?.name.clone()))
        };
        // Without its bridge the interface cannot be made either, and why is said there.
        let (Some(bridge), Ok(_)) = (bridge, self.bridges.ready(&attachment.network).await) else {
            return Ok(Verdict::Free);
        };
        let (sender, receiver) = oneshot::channel();
        let addresses: Vec<IpAddr> = addresses(attachment).collect();
        let asked: Vec<Asked> = addresses
            .iter()
            .map(|address| Asked { address: fairlead_crds::Ip(*address), own: attachment.mac })
            .collect();
        let probe = Probe { addresses, answer: Answer::Awaited(receiver) };
        self.remember(&pod.key.uid, |memory| memory.probes.0.insert(attachment.interface.clone(), probe));
        debug!(interface = %attachment.interface, ?time, "asking whether someone has the addresses");
        let (net, queue, uid) = (Arc::clone(&self.net), self.queue.clone(), pod.key.uid.clone());
        tokio::task::spawn_blocking(move || {
            // The pod may be gone by now.
            drop(sender.send(net.probe(&bridge, &asked, time)));
            queue.add(&uid);
        });
        Ok(Verdict::Open)
    }

    async fn leave_out(&self, pod: &Pod, attachment: &Attachment, stranger: Stranger) {
        let held = attachment.addresses.iter().find(|held| held.address.addr() == stranger.address.0);
        let Some(held) = held else { return };
        self.blocks.conflict(held, &ipam::owner(&pod.key.uid, &attachment.interface), stranger.mac);
        self.metrics.conflict();
        let note = format!(
            "{} of network {} is used by {}, which fairlead did not attach; the pod gets another address",
            stranger.address, attachment.network, stranger.mac
        );
        warn!(address = %stranger.address, network = %attachment.network, mac = %stranger.mac, "address in use");
        self.events.warn(&pod.key, Reason::AddressInUse, "Probe", note).await;
    }
}

fn addresses(attachment: &Attachment) -> impl Iterator<Item = IpAddr> {
    attachment.addresses.iter().map(|held| held.address.addr())
}
