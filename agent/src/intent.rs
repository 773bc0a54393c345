//! What a pod shall have: its request and its snapshot, held against the Networks. Pure.
//!
//! A problem with one network does not take away another: what can be attached is wanted, and what is
//! attached already stays wanted as long as the pod asks for it.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_crds::network::AllowedFrom;
use fairlead_crds::pod_network::Attachment;
use fairlead_crds::request::{self, Request};
use fairlead_crds::reserved::{self, Ask};
use fairlead_crds::{IfName, Mac, Network, Reason};
use sha2::{Digest, Sha256};

use crate::model::{self, Pod};

/// One attachment a pod shall have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the Network.
    pub network: String,
    /// UID of the Network.
    pub network_uid: String,
    /// Name of the interface in the pod.
    pub interface: IfName,
    /// Which of the pod's attachments to the network it is, counted from 0.
    pub attachment: u32,
    /// The hardware address asked for by value.
    pub mac: Option<Mac>,
    /// The reserved addresses it shall have.
    pub asks: Vec<Ask>,
}

/// Why a pod, or one of its attachments, has to wait.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The reason, as one word.
    pub reason: Reason,
    /// The reason, in one sentence.
    pub message: String,
}

impl Problem {
    /// A problem with its sentence.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What a pod shall have, as far as it can be said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Intent {
    /// What can be attached, or stays attached.
    pub wanted: Vec<Wanted>,
    /// What stands in the way of the rest.
    pub problems: Vec<Problem>,
}

/// The world a request is held against.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// All Networks by name.
    pub networks: &'a BTreeMap<String, Network>,
    /// Labels of the pod's namespace.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Labels of this node.
    pub node_labels: &'a BTreeMap<String, String>,
}

/// Runtime classes whose containers do not see interfaces that are added to their sandbox.
const UNSUPPORTED_RUNTIMES: [&str; 3] = ["kata", "gvisor", "runsc"];

/// Says what a pod shall have. `attached` is what its record holds now; its names are kept.
pub fn resolve(pod: &Pod, world: World<'_>, attached: &[Attachment]) -> Intent {
    let requests = match requests(pod) {
        Ok(requests) => requests,
        Err(problem) => {
            return Intent { wanted: attached.iter().map(Wanted::from).collect(), problems: vec![problem] };
        }
    };
    if let Some(problem) = unsupported(pod).filter(|_| !requests.is_empty()) {
        return Intent { wanted: Vec::new(), problems: vec![problem] };
    }
    let named = name_interfaces(requests, attached);
    let mut intent = Intent::default();
    for (attachment, request, interface) in named {
        match check(&request, pod, world) {
            Ok((network_uid, asks)) => {
                let Request { network, mac, .. } = request;
                intent.wanted.push(Wanted { network, network_uid, interface, attachment, mac, asks });
            }
            Err(problem) => intent.set_back(&request, &interface, problem, attached),
        }
    }
    intent
}

impl Intent {
    /// Keeps what is attached already, or records the problem. An admin's edit never takes an interface from a running pod.
    fn set_back(&mut self, request: &Request, interface: &IfName, problem: Problem, attached: &[Attachment]) {
        let kept = attached.iter().find(|a| a.network == request.network && a.interface == *interface);
        match kept {
            Some(attachment) => self.wanted.push(attachment.into()),
            None => self.problems.push(problem),
        }
    }
}

impl From<&Attachment> for Wanted {
    fn from(attachment: &Attachment) -> Self {
        let Attachment { network, network_uid, interface, .. } = attachment.clone();
        Self { network, network_uid, interface, attachment: 0, mac: None, asks: Vec::new() }
    }
}

impl Wanted {
    /// Whether it is what a record has. An edit of the values asked for does not count: an interface that is there keeps
    /// its addresses.
    pub fn is(&self, attachment: &Attachment) -> bool {
        self.network == attachment.network
            && self.network_uid == attachment.network_uid
            && self.interface == attachment.interface
    }
}

/// What the annotation and the snapshot say together.
fn requests(pod: &Pod) -> Result<Vec<Request>, Problem> {
    let requests =
        request::merge(pod.requested.as_deref(), pod.selected.as_deref()).map_err(|(name, error)| {
            Problem::new(Reason::InvalidRequest, format!("annotation {name}: {error}"))
        })?;
    let mut names = BTreeSet::new();
    match requests.iter().filter_map(|r| r.interface.as_ref()).find(|name| !names.insert(*name)) {
        Some(name) => Err(Problem::new(
            Reason::InvalidRequest,
            format!(
                "interface {name} is asked for and also given by a Network's attach rule; ask for another name"
            ),
        )),
        None => Ok(requests),
    }
}

fn unsupported(pod: &Pod) -> Option<Problem> {
    let class = pod.runtime_class.as_deref()?;
    UNSUPPORTED_RUNTIMES.iter().any(|prefix| class.starts_with(prefix)).then(|| {
        Problem::new(
            Reason::UnsupportedRuntime,
            format!("interfaces added to a sandbox of runtime class {class} are invisible to its containers"),
        )
    })
}

/// Gives every request its interface: the one asked for, the one it has, or the lowest free `netN`.
fn name_interfaces(requests: Vec<Request>, attached: &[Attachment]) -> Vec<(u32, Request, IfName)> {
    let numbers: Vec<u32> = reserved::numbered(&requests).map(|(number, _)| number).collect();
    let mut taken: BTreeSet<IfName> =
        requests.iter().filter_map(|request| request.interface.clone()).collect();
    let mut names: Vec<Option<IfName>> = requests.iter().map(|request| request.interface.clone()).collect();
    for (request, name) in requests.iter().zip(&mut names).filter(|(_, name)| name.is_none()) {
        let kept = attached.iter().find(|a| a.network == request.network && !taken.contains(&a.interface));
        *name = kept.map(|attachment| attachment.interface.clone());
        taken.extend(name.clone());
    }
    let mut free = (1u32..).filter_map(|n| format!("net{n}").parse::<IfName>().ok());
    let mut next = || free.find(|name| !taken.contains(name));
    let all = requests.into_iter().zip(names).zip(numbers);
    all.filter_map(|((request, name), number)| Some((number, request, name.or_else(&mut next)?))).collect()
}

fn check(request: &Request, pod: &Pod, world: World<'_>) -> Result<(String, Vec<Ask>), Problem> {
    let name = &request.network;
    let network = world.networks.get(name).ok_or_else(|| {
        Problem::new(
            Reason::NetworkNotFound,
            format!("network {name} does not exist; the pod goes on once it does"),
        )
    })?;
    if network.metadata.deletion_timestamp.is_some() {
        return Err(Problem::new(Reason::NetworkTerminating, format!("network {name} is being deleted")));
    }
    if !network.is_accepted() {
        let why = network.acceptance_message().unwrap_or("the controller has not looked at it yet");
        return Err(Problem::new(
            Reason::NetworkNotAccepted,
            format!("network {name} is not accepted: {why}"),
        ));
    }
    if !model::is_on_node(network, world.node_labels) {
        let message = format!(
            "network {name} does not exist on this node: its nodeSelector does not match the node's labels"
        );
        return Err(Problem::new(Reason::NetworkNotOnNode, message));
    }
    check_allowed(network, pod, world.namespace_labels)?;
    let asks = reserved::asks(network, request, pod.stateful_set.as_deref());
    let asks = asks.map_err(|refusal| Problem::new(refusal.reason, refusal.message))?;
    Ok((network.metadata.uid.clone().unwrap_or_default(), asks))
}

fn check_allowed(network: &Network, pod: &Pod, labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    let allowed = &network.spec.allowed_namespaces;
    let selected = allowed.selector.as_ref().is_some_and(|selector| selector.matches(labels));
    if allowed.from == AllowedFrom::All || selected {
        return Ok(());
    }
    let name = network.metadata.name.as_deref().unwrap_or_default();
    let message = format!("network {name} does not allow namespace {}", pod.key.namespace);
    Err(Problem::new(Reason::NamespaceNotAllowed, message))
}

/// The hardware address of a pod's interface: locally administered, deterministic in the UID and the name.
pub fn mac(uid: &str, interface: &IfName) -> Mac {
    let digest =
        Sha256::new().chain_update(uid).chain_update([0]).chain_update(interface.as_str()).finalize();
    let mut octets = [0; 6];
    octets.copy_from_slice(&digest[..6]);
    // Unicast, locally administered (IEEE 802 section 8.2).
    octets[0] = (octets[0] & 0xfc) | 0x02;
    Mac(octets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::PodKey;

    fn network(name: &str, spec: &serde_json::Value) -> (String, Network) {
        let mut base = json!({
            "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" }
        });
        base.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let value = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": name, "uid": format!("{name}-uid") }, "spec": base,
            "status": { "conditions": [
                { "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }
            ] }
        });
        (name.to_owned(), serde_json::from_value(value).unwrap())
    }

    fn pod(requested: &str, selected: &str) -> Pod {
        Pod {
            key: PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
            requested: Some(requested.to_owned()),
            selected: Some(selected.to_owned()),
            host_network: false,
            runtime_class: None,
            stateful_set: None,
            terminal: false,
            deleting: false,
            gated: true,
            nri: false,
            promised: BTreeMap::new(),
            condition: None,
        }
    }

    fn attachment(network: &str, interface: &str) -> Attachment {
        let interface: IfName = interface.parse().unwrap();
        Attachment {
            network: network.into(),
            network_uid: format!("{network}-uid"),
            mac: mac("u", &interface),
            interface,
            addresses: vec![],
            since: None,
        }
    }

    fn resolve_in(
        networks: Vec<(String, Network)>,
        pod: &Pod,
        attached: &[Attachment],
    ) -> (Vec<String>, Vec<String>) {
        let (networks, none) = (networks.into_iter().collect(), BTreeMap::new());
        let world = World { networks: &networks, namespace_labels: &none, node_labels: &none };
        let intent = resolve(pod, world, attached);
        let wanted = intent.wanted.iter().map(|w| format!("{}@{}", w.network, w.interface)).collect();
        (wanted, intent.problems.iter().map(|p| format!("{}: {}", p.reason, p.message)).collect())
    }

    #[test]
    fn unnamed_interfaces_get_the_lowest_free_name() {
        let networks = vec![network("a", &json!({})), network("b", &json!({}))];
        let (wanted, problems) = resolve_in(networks, &pod("a,b@net1,a", r#"[{"name":"b"}]"#), &[]);
        assert_eq!((wanted, problems.len()), (vec!["a@net2".into(), "b@net1".into(), "a@net3".into()], 0));
    }

    #[test]
    fn names_stay_when_another_network_is_added_in_front() {
        let networks = vec![network("a", &json!({})), network("b", &json!({}))];
        let (wanted, _) = resolve_in(networks, &pod("b,a", "[]"), &[attachment("a", "net1")]);
        assert_eq!(wanted, ["b@net2", "a@net1"]);
    }

    #[test]
    fn a_selected_network_comes_after_those_asked_for() {
        let networks = vec![network("a", &json!({})), network("b", &json!({}))];
        let (wanted, _) = resolve_in(networks, &pod("b", r#"[{"name":"a","interface":"data"}]"#), &[]);
        assert_eq!(wanted, ["b@net1", "a@data"]);
    }

    #[test]
    fn a_missing_network_does_not_hold_back_another() {
        let (wanted, problems) = resolve_in(vec![network("a", &json!({}))], &pod("a,b", "[]"), &[]);
        assert_eq!(wanted, ["a@net1"]);
        assert_eq!(problems, ["NetworkNotFound: network b does not exist; the pod goes on once it does"]);
    }

    #[test]
    fn an_unreadable_request_takes_nothing_away() {
        let (wanted, problems) =
            resolve_in(vec![network("a", &json!({}))], &pod("a,,", "[]"), &[attachment("a", "net1")]);
        assert_eq!(wanted, ["a@net1"]);
        assert!(
            problems[0].starts_with("InvalidRequest: annotation fairlead.dev/networks: character 3"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_namespace_that_is_not_allowed_is_named_but_keeps_what_it_has() {
        let only = json!({ "allowedNamespaces": { "from": "Selector", "selector": { "matchLabels": { "team": "x" } } } });
        let networks = vec![network("a", &only)];
        let (wanted, problems) = resolve_in(networks.clone(), &pod("a", "[]"), &[]);
        assert_eq!(
            (wanted.len(), problems),
            (0, vec!["NamespaceNotAllowed: network a does not allow namespace ns".to_owned()])
        );
        assert_eq!(resolve_in(networks, &pod("a", "[]"), &[attachment("a", "net1")]).0, ["a@net1"]);
    }

    #[test]
    fn a_network_of_other_nodes_says_so() {
        let networks = vec![network("a", &json!({ "nodeSelector": { "rack": "1" } }))];
        assert!(resolve_in(networks, &pod("a", "[]"), &[]).1[0].starts_with("NetworkNotOnNode"));
    }

    #[test]
    fn values_by_choice_are_refused_and_never_ignored() {
        let (wanted, problems) = resolve_in(
            vec![network("a", &json!({}))],
            &pod(r#"[{"name":"a","mac":"02:00:00:00:00:01"}]"#, "[]"),
            &[],
        );
        assert_eq!(wanted.len(), 0);
        assert!(problems[0].contains("allowStatic"), "{problems:?}");
    }

    #[test]
    fn a_hardware_address_is_local_unicast_and_deterministic() {
        let name: IfName = "net1".parse().unwrap();
        assert_eq!(mac("u", &name), mac("u", &name));
        assert_ne!(mac("u", &name), mac("v", &name));
        assert_eq!(mac("u", &name).0[0] & 3, 2);
    }
}
