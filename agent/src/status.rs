//! The record's status and the pod's condition, made of what is known. Pure; time is an argument.

use fairlead_crds::network::Route;
use fairlead_crds::pod_network::{Attachment, InterfaceStatus, SandboxRef};
use fairlead_crds::{ConditionType, Ip, PodNetworkStatus, Reason, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::intent::Problem;
use crate::model::{Pod, PodCondition};

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Every interface is up.
    Attached,
    /// Something has to come first.
    Waiting(Problem),
}

/// An attachment with what its network adds to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// What the record holds.
    pub attachment: Attachment,
    /// MTU in bytes.
    pub mtu: u32,
    /// Gateways of the ranges its addresses are from.
    pub gateways: Vec<Ip>,
    /// Static routes.
    pub routes: Vec<Route>,
}

/// What a status is made of.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Generation of the record's spec.
    pub generation: Option<i64>,
    /// What the record holds.
    pub attachments: &'a [Attachment],
    /// The sandbox the interfaces are in, if it is there.
    pub sandbox: Option<SandboxRef>,
    /// The interfaces that are up in it.
    pub up: &'a [Attached],
    /// How far the pod is.
    pub progress: &'a Progress,
    /// Whether a container was found to run before the interfaces were up.
    pub unheld: bool,
}

/// The status of a record. Conditions that did not change keep their time, so that an unchanged status is equal.
pub fn build(facts: &Facts<'_>, before: &PodNetworkStatus, now: Timestamp) -> PodNetworkStatus {
    let join = |parts: Vec<String>| (!parts.is_empty()).then(|| parts.join(","));
    let addresses =
        facts.attachments.iter().flat_map(|a| &a.addresses).map(|held| held.address.addr().to_string());
    PodNetworkStatus {
        observed_generation: facts.generation,
        networks: join(facts.attachments.iter().map(|attachment| attachment.network.clone()).collect()),
        addresses: join(addresses.collect()),
        sandbox: facts.sandbox.clone(),
        interfaces: facts.up.iter().map(|up| interface(up, &facts.pod.key.uid)).collect(),
        conditions: conditions(facts, before, now),
    }
}

fn interface(up: &Attached, uid: &str) -> InterfaceStatus {
    InterfaceStatus {
        network: up.attachment.network.clone(),
        interface_name: up.attachment.interface.clone(),
        ips: up.attachment.addresses.iter().map(|held| held.address).collect(),
        hardware_address: up.attachment.mac,
        mtu: up.mtu,
        host_interface: Some(names::host_link(uid, up.attachment.interface.as_str())),
        gateways: up.gateways.clone(),
        routes: up.routes.clone(),
    }
}

fn conditions(facts: &Facts<'_>, before: &PodNetworkStatus, now: Timestamp) -> Vec<Condition> {
    let condition = |type_: ConditionType, status: bool, reason: Reason, message: &str| {
        let old = before.conditions.iter().find(|old| old.type_ == type_.as_str());
        let status = if status { "True" } else { "False" };
        let since =
            old.filter(|old| old.status == status).map_or(Time(now), |old| old.last_transition_time.clone());
        Condition {
            type_: type_.to_string(),
            status: status.to_owned(),
            reason: reason.to_string(),
            message: message.to_owned(),
            observed_generation: facts.generation,
            last_transition_time: since,
        }
    };
    let (ready, reason, message) = verdict(facts.progress);
    let (is_held, held) = held(facts, before);
    let mut conditions = vec![
        condition(ConditionType::Ready, ready, reason, &message),
        condition(ConditionType::Held, is_held, held, held.means()),
    ];
    if let Some(mismatch) = mismatch(facts) {
        conditions.push(condition(ConditionType::RequestMismatch, true, Reason::RequestDiffers, &mismatch));
    }
    conditions
}

fn held(facts: &Facts<'_>, before: &PodNetworkStatus) -> (bool, Reason) {
    let sandbox = facts.sandbox.as_ref().map(|sandbox| sandbox.id.as_str());
    match (facts.pod.gated, facts.pod.nri) {
        (_, true) if facts.unheld || sandbox.is_some_and(|id| is_unheld(before, id)) => {
            (false, Reason::StartedUnheld)
        }
        (_, true) => (true, Reason::Nri),
        (true, _) => (true, Reason::Gate),
        _ => (false, Reason::AdmittedWithoutGate),
    }
}

/// Whether a status says that containers of a sandbox ran before the interfaces were up.
pub fn is_unheld(status: &PodNetworkStatus, sandbox: &str) -> bool {
    let said =
        |c: &Condition| c.type_ == ConditionType::Held.as_str() && c.reason == Reason::StartedUnheld.as_str();
    status.sandbox.as_ref().is_some_and(|known| known.id == sandbox) && status.conditions.iter().any(said)
}

/// Whether a status says that every interface is up in a sandbox.
pub fn is_ready(status: &PodNetworkStatus, sandbox: &str) -> bool {
    let said = |c: &Condition| c.type_ == ConditionType::Ready.as_str() && c.status == "True";
    status.sandbox.as_ref().is_some_and(|known| known.id == sandbox) && status.conditions.iter().any(said)
}

fn verdict(progress: &Progress) -> (bool, Reason, String) {
    match progress {
        Progress::Attached => (true, Reason::Attached, Reason::Attached.means().to_owned()),
        Progress::Waiting(problem) => (false, problem.reason, problem.message.clone()),
    }
}

/// Networks of which the pod holds another number of attachments than it asked the scheduler for; a pod that
/// asked for nothing at all was not counted and is not a mismatch.
fn mismatch(facts: &Facts<'_>) -> Option<String> {
    if facts.pod.promised.is_empty() {
        return None;
    }
    let held = |network: &str| facts.attachments.iter().filter(|a| a.network == network).count() as u64;
    let asked = facts.pod.promised.iter().map(|(network, asked)| (network.as_str(), *asked));
    let unasked = facts.attachments.iter().map(|a| (a.network.as_str(), 0));
    let mut differing: Vec<(&str, u64)> = asked
        .chain(unasked.filter(|(network, _)| !facts.pod.promised.contains_key(*network)))
        .filter(|(network, asked)| held(network) != *asked)
        .collect();
    differing.sort_unstable();
    differing.dedup();
    let words = differing
        .iter()
        .map(|(network, asked)| format!("{network}: {} held, {asked} asked for", held(network)));
    (!differing.is_empty()).then(|| words.collect::<Vec<_>>().join("; "))
}

/// Our condition on the pod, as it shall be.
pub fn pod_condition(progress: &Progress) -> PodCondition {
    let (ready, reason, message) = verdict(progress);
    PodCondition { ready, reason: reason.to_string(), message }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::PodKey;

    fn pod(gated: bool, promised: &[(&str, u64)]) -> Pod {
        Pod {
            key: PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
            requested: Some("blue".into()),
            selected: None,
            host_network: false,
            runtime_class: None,
            stateful_set: None,
            terminal: false,
            deleting: false,
            gated,
            nri: false,
            promised: promised
                .iter()
                .map(|(network, count)| ((*network).to_owned(), *count))
                .collect::<BTreeMap<_, _>>(),
            condition: None,
        }
    }

    fn attachment() -> Attachment {
        serde_json::from_value(serde_json::json!({
            "network": "blue", "networkUID": "n", "interface": "net1", "mac": "02:00:00:00:00:01",
            "addresses": [{ "address": "10.20.0.5/24", "block": "b", "blockUID": "bu" }, { "address": "fd00::5/64", "block": "c", "blockUID": "cu" }]
        }))
        .unwrap()
    }

    fn build_at(pod: &Pod, progress: &Progress, before: &PodNetworkStatus, second: i64) -> PodNetworkStatus {
        let attachments = [attachment()];
        let up = [Attached { attachment: attachment(), mtu: 1500, gateways: vec![], routes: vec![] }];
        let facts = Facts {
            pod,
            generation: Some(1),
            attachments: &attachments,
            sandbox: None,
            up: &up,
            progress,
            unheld: false,
        };
        build(&facts, before, Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn a_status_that_did_not_change_is_equal_at_any_time() {
        let pod = pod(true, &[("blue", 1)]);
        let first = build_at(&pod, &Progress::Attached, &PodNetworkStatus::default(), 1);
        assert_eq!(build_at(&pod, &Progress::Attached, &first, 99), first);
        assert_eq!(first.addresses.as_deref(), Some("10.20.0.5,fd00::5"));
        assert_eq!(first.interfaces[0].ips[0].to_string(), "10.20.0.5/24");
    }

    #[test]
    fn a_change_of_the_verdict_gets_a_new_time_and_keeps_the_others() {
        let pod = pod(false, &[]);
        let waiting = Progress::Waiting(Problem::new(Reason::NoAddresses, "network blue has no address"));
        let first = build_at(&pod, &waiting, &PodNetworkStatus::default(), 1);
        let second = build_at(&pod, &Progress::Attached, &first, 99);
        let times: Vec<_> = second
            .conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.last_transition_time.0.as_second()))
            .collect();
        assert_eq!(times, [("Ready", 99), ("Held", 1)]);
        assert_eq!(first.conditions[1].reason, "AdmittedWithoutGate");
    }

    #[test]
    fn a_start_without_the_hold_is_said_for_as_long_as_the_sandbox_is_the_same() {
        let pod = Pod { nri: true, ..pod(false, &[]) };
        let sandbox = |id: &str| {
            Some(SandboxRef { id: id.into(), attempt: 0, cookie: 1, nsid: 1, boot_id: "b".into() })
        };
        let build = |sandbox, unheld, before: &PodNetworkStatus| {
            let (progress, attachments) = (Progress::Attached, [attachment()]);
            let facts = Facts {
                pod: &pod,
                generation: None,
                attachments: &attachments,
                sandbox,
                up: &[],
                progress: &progress,
                unheld,
            };
            build(&facts, before, Timestamp::UNIX_EPOCH)
        };
        let reason = |status: &PodNetworkStatus| status.conditions[1].reason.clone();
        let found = build(sandbox("a"), true, &PodNetworkStatus::default());
        let later = build(sandbox("a"), false, &found);
        assert_eq!((reason(&found), reason(&later)), ("StartedUnheld".into(), "StartedUnheld".into()));
        assert!(is_unheld(&later, "a") && !is_unheld(&later, "b") && is_ready(&later, "a"));
        assert_eq!(reason(&build(sandbox("b"), false, &later)), "Nri");
    }

    #[test]
    fn what_is_held_is_compared_with_what_was_asked_for() {
        let reasons = |pod: &Pod| {
            let status = build_at(pod, &Progress::Attached, &PodNetworkStatus::default(), 1);
            status.conditions.get(2).map(|condition| condition.message.clone())
        };
        assert_eq!(reasons(&pod(true, &[("blue", 1)])), None);
        assert_eq!(reasons(&pod(true, &[])), None);
        assert_eq!(
            reasons(&pod(true, &[("blue", 2), ("red", 1)])).as_deref(),
            Some("blue: 1 held, 2 asked for; red: 0 held, 1 asked for")
        );
    }
}
