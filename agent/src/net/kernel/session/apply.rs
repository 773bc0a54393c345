//! Doing steps: what belongs together in one message, the rest one by one.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use fairlead_crds::IfName;

use super::super::super::NetError;
use super::super::super::netlink::{Refusal, Request};
use super::super::link::Link;
use super::super::request::{self, Pair};
use super::super::{host, netns};
use super::{IPV6_MIN_MTU, LO, PodSession};
use crate::plan::Step;

const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;

impl PodSession<'_> {
    /// Does steps that go together, see [`go_together`].
    ///
    /// # Errors
    /// Which of them failed first, and why.
    pub(super) fn run(&mut self, steps: &[Step]) -> Result<(), (usize, NetError)> {
        match steps {
            [step] if in_the_pod(step).is_none() => self.step(step).map_err(|error| (0, error)),
            steps => self.send(steps),
        }
    }

    /// Changes of one link in the pod, in one message.
    fn send(&mut self, steps: &[Step]) -> Result<(), (usize, NetError)> {
        let Some((link, _)) = steps.first().and_then(in_the_pod) else {
            return Ok(());
        };
        let index = self.index(link).map_err(|error| (0, error))?;
        let requests = steps.iter().filter_map(|step| request_of(step, index)).collect();
        let outcomes = self.pod.batch(requests).map_err(|refusal| (0, refusal.during(describe(steps))))?;
        let failed = outcomes.into_iter().enumerate().find_map(|(at, outcome)| Some((at, outcome.err()?)));
        failed.map_or(Ok(()), |(at, refusal)| {
            Err((at, refusal.during(steps.get(at).map(ToString::to_string).unwrap_or_default())))
        })
    }

    fn step(&mut self, step: &Step) -> Result<(), NetError> {
        match step {
            Step::DeleteHostLink { host } => {
                self.indexes.clear();
                self.kernel.delete(self.host, std::slice::from_ref(host))
            }
            Step::CreateVeth { host, bridge, link, mac, mtu, alias } => {
                let namespace = self.namespace;
                self.create(
                    &Pair { host, bridge: *bridge, link, mac: *mac, mtu: *mtu, namespace },
                    alias,
                    step,
                )
            }
            Step::JoinBridge { host, bridge, alias } => {
                let ipv6 = self.kernel.sysctls.has_ipv6();
                during(self.host.change(request::join_bridge(host, *bridge, alias, ipv6), 0), step)
            }
            Step::SetSysctls { link, ipv6 } => self.kernel.sysctls.prepare(link.as_str(), *ipv6),
            Step::SetMtu { link, host, mtu } => {
                let index = self.index(link)?;
                during(self.pod.change(request::set_mtu(index, *mtu), 0), step)?;
                during(self.host.change(request::set_mtu_by_name(host, *mtu), 0), step)
            }
            Step::SetMarker { marker } => during(self.pod.change(request::set_alias(LO, marker), 0), step),
            // The others are sent together.
            step => self.send(std::slice::from_ref(step)).map_err(|(_, error)| error),
        }
    }

    /// Creates a pair and reads the index of the pod's end at once: what the host end is linked to.
    fn create(&mut self, pair: &Pair<'_>, alias: &str, step: &Step) -> Result<(), NetError> {
        self.indexes.clear();
        let requests = vec![
            Request::change(request::create_veth(pair), NEW),
            Request::get(request::get_link(pair.host)),
        ];
        let mut outcomes = self.host.batch(requests).map_err(|refusal| refusal.during(step.to_string()))?;
        let (read, made) = (outcomes.pop(), outcomes.pop());
        during(made.unwrap_or(Ok(None)).map(drop), step)?;
        let host = read.and_then(Result::ok).flatten().and_then(Link::from_answer);
        let host = host.ok_or_else(|| netns::system(&step.to_string(), Errno::ENODEV))?;
        self.indexes.extend(host.peer.map(|index| (pair.link.to_string(), index)));
        let ipv6 = pair.mtu >= IPV6_MIN_MTU && self.kernel.sysctls.has_ipv6();
        during(self.host.change(request::finish_host_end(host.index, alias, ipv6), 0), step)
    }

    fn index(&mut self, link: &IfName) -> Result<u32, NetError> {
        if let Some(index) = self.indexes.get(link.as_str()) {
            return Ok(*index);
        }
        let found = host::find(&mut self.pod, link.as_str())?;
        let index =
            found.ok_or_else(|| netns::system(&format!("find {link} in the pod"), Errno::ENODEV))?.index;
        self.indexes.insert(link.to_string(), index);
        Ok(index)
    }
}

/// Whether two steps that follow each other are sent in one message: then the second is done also when the
/// first fails. So both must be about the same link, and nothing is taken away together with what is added.
pub(super) fn go_together(one: &Step, next: &Step) -> bool {
    in_the_pod(one).is_some_and(|one| in_the_pod(next) == Some(one))
}

/// The link in the pod that a step changes by netlink alone, and whether it takes something away.
fn in_the_pod(step: &Step) -> Option<(&IfName, bool)> {
    match step {
        Step::LinkUp { link } | Step::AddAddress { link, .. } | Step::AddRoute { link, .. } => {
            Some((link, false))
        }
        Step::DeleteAddress { link, .. } | Step::DeleteRoute { link, .. } => Some((link, true)),
        _ => None,
    }
}

fn request_of(step: &Step, index: u32) -> Option<Request> {
    let (message, flags): (RouteNetlinkMessage, u16) = match step {
        Step::LinkUp { .. } => (request::set_up(index), 0),
        Step::AddAddress { address, .. } => (request::add_address(index, *address), NEW),
        Step::DeleteAddress { address, .. } => (request::delete_address(index, *address), 0),
        Step::AddRoute { route, .. } => (request::add_route(index, route), NEW),
        Step::DeleteRoute { route, .. } => (request::delete_route(index, route), 0),
        _ => return None,
    };
    Some(Request::change(message, flags))
}

fn describe(steps: &[Step]) -> String {
    steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn during(result: Result<(), Refusal>, step: &Step) -> Result<(), NetError> {
    result.map_err(|refusal| refusal.during(step.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(link: &str, address: &str) -> Step {
        Step::AddAddress { link: link.parse().unwrap(), address: address.parse().unwrap() }
    }

    #[test]
    fn additions_to_one_link_are_sent_together_and_nothing_else() {
        let up = Step::LinkUp { link: "net1".parse().unwrap() };
        let (one, two) = (add("net1", "10.0.0.1/24"), add("net2", "10.0.0.2/24"));
        let old =
            Step::DeleteAddress { link: "net1".parse().unwrap(), address: "10.0.0.3/24".parse().unwrap() };
        let sysctls = Step::SetSysctls { link: "net1".parse().unwrap(), ipv6: true };
        assert!(go_together(&up, &one));
        assert!(!go_together(&one, &two), "another link");
        assert!(
            !go_together(&one, &old) && !go_together(&old, &one),
            "the old one stays if the new one fails"
        );
        assert!(!go_together(&sysctls, &up) && !go_together(&sysctls, &sysctls), "sysctls are files");
    }
}
