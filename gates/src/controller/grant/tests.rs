use fairlead_crds::IPBlock;
use serde_json::json;

use super::*;

/// A cluster with the Network `blue`: 10.0.0.0/29 reserved, cut out of 10.0.0.0/24.
#[derive(Default)]
struct Cluster {
    networks: BTreeMap<String, Network>,
    blocks: BTreeMap<String, Block>,
    pods: BTreeMap<String, Option<Claimant>>,
    stateful_sets: BTreeMap<String, bool>,
    rested: bool,
}

fn network(state: &str) -> Network {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Network", "metadata": { "name": "blue", "uid": "n" },
        "spec": { "bridge": { "name": "br0", "uplink": { "none": {} } }, "allowedNamespaces": { "from": "All" }, "allowStatic": true,
                  "ipam": { "ranges": [], "identity": "StatefulSet" } },
        "status": {
            "ranges": [
                { "cidr": "10.0.0.0/24", "blockPrefix": 28, "use": "Pods", "state": "Admitted", "exclude": ["10.0.0.0/29"] },
                { "cidr": "10.0.0.0/29", "blockPrefix": 32, "use": "Reserved", "state": state },
            ],
            "conditions": [{ "type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]
        }
    }))
    .unwrap()
}

fn pod(name: &str, ips: &[&str], node: Option<&str>) -> Claimant {
    let requests = request::parse(&json!([{ "name": "blue", "ips": ips }]).to_string()).unwrap();
    Claimant {
        namespace: "team".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        node: node.map(str::to_owned),
        requests,
        stateful_set: name.strip_prefix("web-").map(|_| "web".to_owned()),
    }
}

/// A reserved address: whose it is, on which node, at which turn, and which turn is over.
fn block(address: &str, pod: &str, set: Option<&str>, node: &str, turn: i64, released: i64) -> Block {
    let mut object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock",
        "metadata": { "name": format!("default-{}-32", address.replace('.', "-")), "uid": address },
        "spec": { "space": "default", "network": "blue", "networkUID": "n", "nodeName": node,
                  "cidr": format!("{address}/32"), "claim": { "pod": pod, "statefulSet": set } },
    });
    if turn > 0 {
        object["spec"]["holder"] = json!({ "podUID": "old", "turn": turn });
    }
    if released > 0 {
        object["status"] = json!({ "released": { "turn": released, "at": "2026-01-01T00:00:00Z" } });
    }
    serde_json::from_value::<IPBlock>(object).unwrap().into()
}

impl Cluster {
    fn new() -> Self {
        Self { networks: BTreeMap::from([("blue".to_owned(), network("Admitted"))]), ..Self::default() }
    }

    fn with_pod(mut self, pod: Claimant) -> Self {
        self.pods.insert(pod.key(), Some(pod));
        self
    }

    fn without_pod(mut self, name: &str) -> Self {
        self.pods.insert(format!("team/{name}"), None);
        self
    }

    fn with_block(mut self, block: Block) -> Self {
        self.blocks.insert(block.name.clone(), block);
        self
    }

    fn run<T>(&self, work: impl FnOnce(&World<'_>) -> T) -> T {
        let blocks = self.blocks.iter().map(|(name, block)| (name.clone(), block)).collect();
        work(&World {
            networks: &self.networks,
            blocks: &blocks,
            pods: &self.pods,
            stateful_sets: &self.stateful_sets,
            allowed: &|namespace, _| namespace == "team",
            rested: &|_| self.rested,
        })
    }

    fn plan(&self) -> Vec<String> {
        let shown = |action: &Action| match action {
            Action::Grant { name, spec } => format!("grant {name} to {}", spec.claim.as_ref().unwrap().pod),
            Action::Assign { name, node, holder } => {
                format!("assign {name} to {node} {} {}", holder.pod_uid, holder.turn)
            }
            Action::Free { name } => format!("free {name}"),
            Action::GiveUp { name } => format!("give up {name}"),
        };
        self.run(|world| plan(world).iter().map(shown).collect())
    }

    fn why(&self, name: &str, ips: &[&str]) -> Option<(Reason, String)> {
        let set = name.strip_prefix("web-").map(|_| "web".to_owned());
        let waiting = WaitingPod {
            namespace: "team".into(),
            name: name.into(),
            requested: Some(json!([{ "name": "blue", "ips": ips }]).to_string()),
            stateful_set: set,
            ..WaitingPod::default()
        };
        self.run(|world| why(&waiting, world)).map(|why| (why.reason, why.message))
    }
}

#[test]
fn an_address_is_granted_by_value_and_assigned_once_the_pod_has_a_node() {
    let cluster = Cluster::new().with_pod(pod("one", &["10.0.0.3"], None));
    assert_eq!(cluster.plan(), ["grant default-10-0-0-3-32 to team/one"]);
    assert_eq!(cluster.why("one", &["10.0.0.3"]).unwrap().0, Reason::AwaitingAddress);
    let granted = cluster.with_block(block("10.0.0.3", "team/one", None, "", 0, 0));
    assert_eq!((granted.plan().len(), granted.why("one", &["10.0.0.3"])), (0, None));
    let bound = granted.with_pod(pod("one", &["10.0.0.3"], Some("node1")));
    assert_eq!(bound.plan(), ["assign default-10-0-0-3-32 to node1 uid-one 1"]);
}

#[test]
fn no_turn_begins_before_the_last_one_is_over() {
    let bound = || Cluster::new().with_pod(pod("web-0", &[], Some("node2")));
    for (turn, released) in [(1, 0), (4, 3)] {
        let held = bound().with_block(block("10.0.0.1", "team/web-0", Some("web"), "node1", turn, released));
        assert!(held.plan().is_empty(), "turn {turn}");
    }
    let over = bound().with_block(block("10.0.0.1", "team/web-0", Some("web"), "node1", 4, 4));
    assert_eq!(over.plan(), ["assign default-10-0-0-1-32 to node2 uid-web-0 5"]);
}

#[test]
fn an_address_that_was_released_is_freed_when_no_pod_wants_it() {
    let over = Cluster::new().with_block(block("10.0.0.1", "team/web-0", Some("web"), "node1", 4, 4));
    assert_eq!(over.plan(), ["free default-10-0-0-1-32"]);
}

#[test]
fn pods_of_a_stateful_set_get_different_addresses_in_one_pass_and_keep_them() {
    let cluster = Cluster::new().with_pod(pod("web-0", &[], None)).with_pod(pod("web-1", &[], None));
    assert_eq!(
        cluster.plan(),
        ["grant default-10-0-0-1-32 to team/web-0", "grant default-10-0-0-2-32 to team/web-1"]
    );
    let kept = cluster.with_block(block("10.0.0.6", "team/web-0", Some("web"), "", 3, 3));
    assert_eq!(kept.plan(), ["grant default-10-0-0-1-32 to team/web-1"]);
}

#[test]
fn a_stateful_set_keeps_addresses_of_pods_that_it_has_not_now() {
    let mut cluster = Cluster::new().without_pod("web-4").with_block(block(
        "10.0.0.1",
        "team/web-4",
        Some("web"),
        "",
        1,
        1,
    ));
    cluster.rested = true;
    assert!(cluster.plan().is_empty(), "nobody has looked for the set");
    cluster.stateful_sets.insert("team/web".into(), true);
    assert!(cluster.plan().is_empty(), "scaled down");
    cluster.stateful_sets.insert("team/web".into(), false);
    assert_eq!(cluster.plan(), ["give up default-10-0-0-1-32"]);
}

#[test]
fn a_claim_by_value_ends_with_its_pod_after_the_quarantine() {
    let free = || block("10.0.0.3", "team/one", None, "", 1, 1);
    let mut cluster = Cluster::new().with_block(free());
    cluster.rested = true;
    assert!(cluster.plan().is_empty(), "nobody has looked for the pod");
    let mut gone = cluster.without_pod("one");
    assert_eq!(gone.plan(), ["give up default-10-0-0-3-32"]);
    gone.rested = false;
    assert!(gone.plan().is_empty(), "it rests");
    let (reason, message) = gone.why("two", &["10.0.0.3"]).unwrap();
    assert_eq!(reason, Reason::AddressTaken);
    assert_eq!(
        message,
        "address 10.0.0.3 of network blue was reserved for pod team/one; it is free once it has rested for the network's quarantine"
    );
    let back = gone.with_pod(pod("one", &["10.0.0.3"], Some("node2")));
    assert_eq!(back.plan(), ["assign default-10-0-0-3-32 to node2 uid-one 2"], "no rest for its own claim");
}

#[test]
fn whoever_has_an_address_is_named() {
    let why = |block| Cluster::new().with_block(block).why("two", &["10.0.0.3"]).unwrap();
    let (reason, message) = why(block("10.0.0.3", "team/one", None, "node1", 1, 0));
    assert_eq!(reason, Reason::AddressTaken);
    assert_eq!(message, "address 10.0.0.3 of network blue is held by pod team/one on node node1");
    assert_eq!(
        why(block("10.0.0.3", "team/web-0", Some("web"), "", 1, 1)).1,
        "address 10.0.0.3 of network blue is kept for pod team/web-0 by StatefulSet web; kubectl delete ipblock default-10-0-0-3-32 gives it up"
    );
}

#[test]
fn a_full_range_says_so() {
    let mut cluster = Cluster::new();
    for n in 1..7 {
        cluster = cluster.with_block(block(
            &format!("10.0.0.{n}"),
            &format!("team/web-{n}"),
            Some("web"),
            "",
            0,
            0,
        ));
    }
    let (reason, message) = cluster.why("web-7", &[]).unwrap();
    assert_eq!(reason, Reason::NoReservedAddress);
    assert!(message.contains("for pod team/web-7") && message.contains("IPBlock"), "{message}");
}

#[test]
fn nothing_is_granted_of_a_network_that_the_namespace_may_not_use() {
    let pod = Claimant { namespace: "other".into(), ..pod("one", &["10.0.0.3"], None) };
    assert!(Cluster::new().with_pod(pod).plan().is_empty());
}

#[test]
fn addresses_of_a_range_that_drains_are_given_up_and_not_granted() {
    let mut cluster = Cluster::new().with_pod(pod("web-0", &[], Some("node1"))).with_block(block(
        "10.0.0.1",
        "team/web-0",
        Some("web"),
        "",
        1,
        1,
    ));
    cluster.networks.insert("blue".into(), network("Draining"));
    cluster.rested = true;
    assert_eq!(cluster.plan(), ["give up default-10-0-0-1-32"]);
    let held = cluster.with_block(block("10.0.0.1", "team/web-0", Some("web"), "node1", 2, 1));
    assert!(held.plan().is_empty(), "a pod still has it");
}

/// A step of a made-up cluster: pods come, are bound, go; agents release; the plan is carried out or its writes are lost.
#[derive(Debug, Clone, Copy)]
enum Event {
    Create(usize),
    Bind(usize, usize),
    Delete(usize),
    Release,
    Plan(bool),
    Late(usize),
}

mod anything {
    use proptest::prelude::*;

    use super::*;

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let one = prop_oneof![
            (0..3usize).prop_map(Event::Create),
            (0..3usize, 0..3usize).prop_map(|(pod, node)| Event::Bind(pod, node)),
            (0..3usize).prop_map(Event::Delete),
            Just(Event::Release),
            any::<bool>().prop_map(Event::Plan),
            (0..4usize).prop_map(Event::Late),
        ];
        prop::collection::vec(one, 1..60)
    }

    /// The API server: every write names the version it was decided on, and the rule of the block is kept.
    struct Server {
        cluster: Cluster,
        /// Who uses an address: address, node, UID of the pod, turn.
        uses: BTreeMap<(String, String), (String, i64)>,
        late: Vec<(String, Action)>,
        uid: u32,
        version: u32,
    }

    impl Server {
        fn write(&mut self, version: &str, action: &Action) {
            self.version += 1;
            let fresh = self.version.to_string();
            match action {
                Action::Grant { name, spec } => {
                    let address = spec.cidr.addr().to_string();
                    let claim = spec.claim.clone().unwrap();
                    let made = block(&address, &claim.pod, claim.stateful_set.as_deref(), "", 0, 0);
                    self.cluster.blocks.entry(name.clone()).or_insert(made).reserved.as_mut().unwrap();
                    if let Some(reserved) = self.cluster.blocks.get_mut(name).unwrap().reserved.as_mut()
                        && reserved.resource_version.is_empty()
                    {
                        reserved.resource_version = fresh;
                    }
                }
                Action::Assign { name, node, holder } => {
                    if let Some(block) = self.at(name, version) {
                        block.node.clone_from(node);
                        let reserved = block.reserved.as_mut().unwrap();
                        assert!(reserved.free, "the API server's rule refuses this");
                        (reserved.holder, reserved.free, reserved.resource_version) =
                            (Some(holder.clone()), false, fresh);
                    }
                }
                Action::Free { name } => {
                    if let Some(block) = self.at(name, version) {
                        block.node.clear();
                        block.reserved.as_mut().unwrap().resource_version = fresh;
                    }
                }
                Action::GiveUp { name } => {
                    if self.at(name, version).is_some() {
                        self.cluster.blocks.remove(name);
                    }
                }
            }
        }

        fn at(&mut self, name: &str, version: &str) -> Option<&mut Block> {
            let block = self.cluster.blocks.get_mut(name)?;
            (block.reserved.as_ref()?.resource_version == version).then_some(block)
        }

        fn plan(&mut self, lost: bool) {
            for action in self.cluster.run(plan) {
                let name = match &action {
                    Action::Grant { name, .. }
                    | Action::Assign { name, .. }
                    | Action::Free { name }
                    | Action::GiveUp { name } => name.clone(),
                };
                let version = self.cluster.blocks.get(&name).and_then(|block| block.reserved.as_ref());
                let version = version.map(|reserved| reserved.resource_version.clone()).unwrap_or_default();
                if lost {
                    self.late.push((version, action));
                } else {
                    self.write(&version, &action);
                }
            }
            self.take();
        }

        /// Agents use what is assigned to a pod of theirs that lives.
        fn take(&mut self) {
            for (name, block) in &self.cluster.blocks {
                let reserved = block.reserved.as_ref().unwrap();
                let Some(holder) = reserved.holder.as_ref().filter(|_| !reserved.free) else { continue };
                let lives =
                    self.cluster.pods.values().flatten().any(|pod| {
                        pod.uid == holder.pod_uid && pod.node.as_deref() == Some(block.node.as_str())
                    });
                if lives {
                    let place = (name.clone(), block.node.clone());
                    self.uses.insert(place, (holder.pod_uid.clone(), holder.turn));
                }
            }
        }

        /// Every agent proves what is gone, and says so.
        fn release(&mut self) {
            let alive: BTreeSet<String> =
                self.cluster.pods.values().flatten().map(|pod| pod.uid.clone()).collect();
            self.uses.retain(|_, (uid, _)| alive.contains(uid));
            for block in self.cluster.blocks.values_mut() {
                let reserved = block.reserved.as_mut().unwrap();
                let gone = reserved.holder.as_ref().is_some_and(|holder| !alive.contains(&holder.pod_uid));
                if gone && !reserved.free {
                    self.version += 1;
                    (reserved.free, reserved.resource_version) = (true, self.version.to_string());
                }
            }
        }

        fn check(&self) {
            for (name, _) in self.uses.keys() {
                let holders: Vec<_> = self.uses.iter().filter(|((other, _), _)| other == name).collect();
                assert!(holders.len() == 1, "two holders: {holders:?}");
            }
        }

        fn step(&mut self, event: Event) {
            let key = |n: usize| format!("team/web-{n}");
            match event {
                Event::Create(n) if self.cluster.pods.get(&key(n)).is_none_or(Option::is_none) => {
                    self.uid += 1;
                    let pod = Claimant { uid: self.uid.to_string(), ..pod(&format!("web-{n}"), &[], None) };
                    self.cluster.pods.insert(key(n), Some(pod));
                }
                Event::Bind(n, node) => {
                    if let Some(Some(pod)) = self.cluster.pods.get_mut(&key(n)) {
                        pod.node.get_or_insert(format!("node{node}"));
                    }
                }
                // Forced: the pod's sandbox lives on until its agent has released it.
                Event::Delete(n) => drop(self.cluster.pods.insert(key(n), None)),
                Event::Release => self.release(),
                Event::Plan(lost) => self.plan(lost),
                Event::Late(n) if n < self.late.len() => {
                    let (version, action) = self.late.remove(n);
                    self.write(&version, &action);
                    self.take();
                }
                Event::Create(_) | Event::Late(_) => {}
            }
        }
    }

    proptest! {
        #[test]
        fn an_address_never_has_two_holders_whatever_comes_late(events in events()) {
            let mut cluster = Cluster::new();
            cluster.stateful_sets.insert("team/web".into(), true);
            let mut server = Server { cluster, uses: BTreeMap::new(), late: vec![], uid: 0, version: 0 };
            for event in events {
                server.step(event);
                server.check();
            }
        }
    }
}
