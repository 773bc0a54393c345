//! What happens in the cluster by itself: pods come and go, kubelets and runtimes do their work, and whatever can go
//! wrong does.

use std::sync::atomic::Ordering;

use fairlead_crds::names;
use serde_json::{Value, json};

use super::objects::{self, PODS, REQUESTS};
use super::store::Key;
use super::world::{NODES, World};

impl World {
    /// One thing happens.
    pub fn happen(&mut self) {
        let number = self.rng.below(NODES);
        match self.rng.below(200) {
            0..40 => self.watch(number),
            40..75 => self.runtime(number),
            75..115 => {
                let all = self.rng.chance(50);
                self.kubelet(number, all);
            }
            115..133 => self.new_pod(number),
            133..147 => self.end_pod(number),
            147..153 => self.edit_pod(number),
            153..157 => self.stop_some_sandbox(number),
            157..160 => self.collect_garbage(),
            160..165 => self.look_as_controller(),
            165..169 => self.crash(number),
            169..180 => self.start_what_is_down(number),
            180..183 => self.connection(number),
            183..188 => self.power(number),
            188..190 => self.step_clock(number),
            190..193 => self.stranger(number),
            193..195 => self.flip_network(),
            195..197 => self.hand_back_by_force(),
            _ => self.weather = [0, 5, 20, 40][self.rng.below(4)],
        }
    }

    fn watch(&mut self, number: usize) {
        if self.nodes[number].connected {
            self.nodes[number].deliver_news();
        }
    }

    fn runtime(&mut self, number: usize) {
        if self.nodes[number].list.is_none() {
            self.nodes[number].begin_list();
        } else {
            self.nodes[number].deliver_list();
        }
    }

    fn pods_of(&self, number: usize) -> Vec<(Key, Value)> {
        let (store, name) = (self.store.lock().unwrap(), &self.nodes[number].name);
        let pods = store.all("pods").filter(|(_, pod)| pod["spec"]["nodeName"] == name.as_str());
        pods.map(|(key, pod)| (key.clone(), pod.clone())).collect()
    }

    fn new_pod(&mut self, number: usize) {
        let node = self.nodes[number].name.clone();
        let exists = self.store.lock().unwrap().get(&Key::new("nodes", "", &node)).is_some();
        if self.pods_of(number).len() >= PODS || !exists {
            return;
        }
        self.pods_made += 1;
        let uid = format!("{:08x}-{node}", self.pods_made);
        let networks = *self.rng.one(&REQUESTS).unwrap();
        let pod = objects::pod(&uid, &uid, &node, networks);
        drop(self.store.lock().unwrap().create(&Key::new("pods", "ns", &uid), pod));
        self.tell(|| format!("pod {uid} wants {networks}"));
    }

    /// A pod is deleted, with grace or by force, or completes.
    fn end_pod(&mut self, number: usize) {
        let pods = self.pods_of(number);
        let Some((key, _)) = self.rng.one(&pods).cloned() else { return };
        let how = self.rng.below(4);
        self.tell(|| format!("pod {} ends: {}", key.name, ["grace", "grace", "force", "complete"][how]));
        match how {
            0 | 1 => self.edit(&key, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                pod["metadata"]["finalizers"] = json!(["model/kubelet"]);
            }),
            2 => self.store.lock().unwrap().remove(&key),
            _ => self.edit(&key, |pod| pod["status"]["phase"] = json!("Succeeded")),
        }
    }

    fn edit_pod(&mut self, number: usize) {
        let pods = self.pods_of(number);
        let Some((key, _)) = self.rng.one(&pods).cloned() else { return };
        let networks = *self.rng.one(&REQUESTS).unwrap();
        self.tell(|| format!("pod {} wants {networks} now", key.name));
        self.edit(&key, |pod| pod["metadata"]["annotations"][names::NETWORKS_ANNOTATION] = json!(networks));
    }

    /// The kubelet of a node does one thing for each of its pods, or for one of them.
    pub fn kubelet(&mut self, number: usize, all: bool) {
        if !self.nodes[number].powered {
            return;
        }
        let pods = self.pods_of(number);
        if let (true, false) = (all, pods.is_empty()) {
            pods.iter().for_each(|(key, pod)| self.kubelet_starts_or_ends(number, key, pod));
        } else if let Some((key, pod)) = self.rng.one(&pods).cloned() {
            self.kubelet_starts_or_ends(number, &key, &pod);
        }
        self.kubelet_clears(number, all);
    }

    fn kubelet_starts_or_ends(&mut self, number: usize, key: &Key, pod: &Value) {
        let ready = |one: &super::node::Sandboxed| one.sandbox.uid == key.name && one.sandbox.ready;
        let runs = self.nodes[number].boxes.iter().any(ready);
        let deleting = pod["metadata"]["deletionTimestamp"].is_string();
        let over = pod["status"]["phase"] == "Succeeded";
        match (runs, deleting || over) {
            (false, false) => {
                self.tell(|| format!("sandbox of {}", key.name));
                self.nodes[number].start_sandbox(&key.name);
            }
            (false, true) if deleting => self.store.lock().unwrap().remove(key),
            _ => {}
        }
    }

    /// Sandboxes of pods that end are stopped, then their namespaces go, then the runtime forgets them.
    fn kubelet_clears(&mut self, number: usize, all: bool) {
        let lives: Vec<String> = self
            .pods_of(number)
            .into_iter()
            .filter(|(_, pod)| {
                !pod["metadata"]["deletionTimestamp"].is_string() && pod["status"]["phase"] != "Succeeded"
            })
            .map(|(key, _)| key.name)
            .collect();
        let mut at = 0;
        while at < self.nodes[number].boxes.len() {
            let one = self.nodes[number].boxes[at].clone();
            let unwanted = !lives.contains(&one.sandbox.uid);
            let acts = all || self.rng.chance(30);
            match (one.sandbox.ready, &one.path) {
                (true, _) if unwanted && acts => {
                    self.tell(|| format!("sandbox {} of {} stops", one.sandbox.id, one.sandbox.uid));
                    self.nodes[number].stop_sandbox(at);
                    if self.rng.chance(60) {
                        self.nodes[number].remove_namespace(at);
                    }
                }
                (false, Some(_)) if acts => {
                    self.tell(|| format!("namespace of {} goes", one.sandbox.id));
                    self.nodes[number].remove_namespace(at);
                }
                (false, None) if acts => {
                    self.nodes[number].forget_sandbox(at);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn stop_some_sandbox(&mut self, number: usize) {
        let count = self.nodes[number].boxes.len();
        if count > 0 {
            let at = self.rng.below(count);
            let id = self.nodes[number].boxes[at].sandbox.id.clone();
            self.tell(|| format!("sandbox {id} dies"));
            self.nodes[number].stop_sandbox(at);
        }
    }

    /// The garbage collector deletes records of pods that are gone; a deleted namespace takes others with it.
    fn collect_garbage(&mut self) {
        let found: Vec<Key> = {
            let store = self.store.lock().unwrap();
            let all: Vec<_> = store.all("podnetworks").map(|(key, _)| key.clone()).collect();
            let gone = |key: &Key| {
                let uid = store.get(key).map(|record| record["spec"]["podUID"].clone());
                uid.is_some_and(|uid| store.all("pods").all(|(_, pod)| pod["metadata"]["uid"] != uid))
            };
            let any = self.rng.chance(10);
            all.into_iter().filter(|key| any || gone(key)).collect()
        };
        if let Some(key) = self.rng.one(&found).cloned() {
            self.tell(|| format!("record {} is deleted by someone", key.name));
            self.delete(&key);
        }
    }

    fn look_as_controller(&mut self) {
        match &self.controller {
            Some(controller) => controller.look(&self.store.lock().unwrap()),
            None => self.start_controller(),
        }
        if self.chaos.crashes && self.rng.chance(2) {
            self.tell(|| "controller dies".to_owned());
            self.controller = None;
        }
    }

    fn crash(&mut self, number: usize) {
        if self.chaos.crashes && self.nodes[number].agent.is_some() {
            self.tell(|| format!("agent of node-{number} dies"));
            self.nodes[number].agent = None;
        }
    }

    pub fn start_what_is_down(&mut self, number: usize) {
        if !self.nodes[number].powered {
            return;
        }
        let key = Key::new("nodes", "", &self.nodes[number].name);
        if self.store.lock().unwrap().get(&key).is_none() {
            drop(self.store.lock().unwrap().create(&key, objects::node(&key.name)));
        }
        if self.nodes[number].agent.is_none() && self.nodes[number].connected {
            self.start_agent(number);
        }
    }

    fn connection(&mut self, number: usize) {
        // Most of the time it is.
        if self.chaos.partitions && (!self.nodes[number].connected || self.rng.chance(30)) {
            let connected = !self.nodes[number].connected;
            self.nodes[number].connected = connected;
            self.tell(|| format!("node-{number} is connected: {connected}"));
        }
    }

    /// A node goes down and comes back; in between someone may say that it is gone for good, and its pods go with it.
    fn power(&mut self, number: usize) {
        if !self.chaos.power {
            return;
        }
        if self.nodes[number].powered {
            if self.rng.chance(10) {
                self.tell(|| format!("node-{number} loses power"));
                self.nodes[number].power_off();
            }
        } else if self.rng.chance(25) {
            self.fence(number);
        } else if self.rng.chance(40) {
            self.power_on(number);
        }
    }

    pub fn power_on(&mut self, number: usize) {
        let key = Key::new("nodes", "", &self.nodes[number].name);
        self.edit(&key, |node| node["spec"] = json!({}));
        self.nodes[number].powered = true;
        self.nodes[number].connected = true;
        self.tell(|| format!("node-{number} is back"));
    }

    fn fence(&mut self, number: usize) {
        let key = Key::new("nodes", "", &self.nodes[number].name);
        if self.rng.chance(50) {
            self.tell(|| format!("node-{number} is deleted"));
            self.store.lock().unwrap().remove(&key);
        } else {
            self.tell(|| format!("node-{number} is out of service"));
            let taint = json!({ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" });
            self.edit(&key, |node| node["spec"]["taints"] = json!([taint]));
        }
        for (key, _) in self.pods_of(number) {
            self.store.lock().unwrap().remove(&key);
        }
    }

    fn step_clock(&mut self, number: usize) {
        if self.chaos.clocks {
            let seconds = [-7200, -30, 0, 30, 7200][self.rng.below(5)];
            self.nodes[number].step.store(seconds, Ordering::Relaxed);
            self.tell(|| format!("clock of node-{number} is off by {seconds} s"));
        }
    }

    /// Someone cuts a link of ours, or the kernel refuses a step.
    fn stranger(&mut self, number: usize) {
        if !self.chaos.strangers {
            return;
        }
        if self.rng.chance(50) {
            let steps = self.rng.below(12);
            return self.nodes[number].kernel.fail_after(steps);
        }
        let node = &self.nodes[number];
        let links = fairlead_agent::net::Net::host_links(node.kernel.as_ref()).unwrap_or_default();
        let Some(link) = self.rng.one(&links).map(|link| link.name.clone()) else { return };
        drop(fairlead_agent::net::Net::delete_host_links(node.kernel.as_ref(), std::slice::from_ref(&link)));
        if let Some(running) = &node.agent {
            running.agent.owner_of_link(&link).iter().for_each(|uid| running.agent.queue.add(uid));
        }
        self.tell(|| format!("someone cuts {link}"));
    }

    /// A Network is not accepted for a while.
    fn flip_network(&mut self) {
        if !self.chaos.networks {
            return;
        }
        let name = *self.rng.one(&["blue", "red"]).unwrap();
        let is = self.rng.chance(60);
        self.accept(name, is);
    }

    pub fn accept(&mut self, name: &str, is: bool) {
        self.tell(|| format!("network {name} is accepted: {is}"));
        self.edit(&Key::new("networks", "", name), |network| {
            network["status"]["conditions"] = json!([objects::accepted(is)]);
        });
        self.tell_networks();
    }

    /// All agents learn what the Networks are now.
    pub fn tell_networks(&mut self) {
        let networks = objects::networks(&self.store.lock().unwrap());
        for running in self.nodes.iter().filter_map(|node| node.agent.as_ref()) {
            let mut view = running.agent.view.lock();
            view.set_networks(networks.clone());
            running.agent.queue.add_all(view.uids());
            running.agent.networks_changed.notify_one();
        }
    }

    /// The bug that gives a block away under its users.
    fn hand_back_by_force(&mut self) {
        if self.mutant != Some(super::mutant::Mutant::HandBackUsed) {
            return;
        }
        let blocks: Vec<Key> =
            self.store.lock().unwrap().all("ipblocks").map(|(key, _)| key.clone()).collect();
        if let Some(key) = self.rng.one(&blocks) {
            self.store.lock().unwrap().remove(key);
        }
    }
}
