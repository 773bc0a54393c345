//! The cluster: what it is made of, and the two ways it goes on: a step by chance, and everything in order.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{Instant, advance};

use super::check::Checker;
use super::controller::Controller;
use super::gate::Gate;
use super::mutant::Mutant;
use super::node::Node;
use super::objects;
use super::rng::Rng;
use super::server::{Fate, Inbox, Pending, Who, client};
use super::store::{Key, Store};

/// Nodes of the cluster.
pub const NODES: usize = 2;
/// How long a request may be under way after its caller has given up: an API server ends it after a minute.
const LATEST: Duration = Duration::from_secs(60);
/// How much of what happened is told when something is wrong.
const TOLD: usize = 250;

/// What may happen besides ordinary life.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Chaos {
    pub crashes: bool,
    pub faults: bool,
    pub partitions: bool,
    pub power: bool,
    pub clocks: bool,
    pub strangers: bool,
    pub networks: bool,
}

impl Chaos {
    /// All of it, but what the variable `FAIRLEAD_MODEL_WITHOUT` names.
    pub fn from_env() -> Self {
        let without = std::env::var("FAIRLEAD_MODEL_WITHOUT").unwrap_or_default();
        let on = |name: &str| without.split(',').all(|off| off != name);
        Self {
            crashes: on("crashes"),
            faults: on("faults"),
            partitions: on("partitions"),
            power: on("power"),
            clocks: on("clocks"),
            strangers: on("strangers"),
            networks: on("networks"),
        }
    }
}

/// The cluster.
pub struct World {
    pub rng: Rng,
    pub chaos: Chaos,
    pub nodes: Vec<Node>,
    pub store: Arc<Mutex<Store>>,
    pub inbox: Inbox,
    pub controller: Option<Controller>,
    pub mutant: Option<Mutant>,
    pub pods_made: u32,
    pub steps: u64,
    /// Share of requests that go wrong, in percent.
    pub weather: usize,
    gate: Gate,
    checker: Checker,
    vain: Vec<tokio::sync::oneshot::Sender<super::store::Answer>>,
    zero: Instant,
    told: Vec<String>,
    aloud: bool,
}

impl World {
    pub fn new(seed: u64, chaos: Chaos, mutant: Option<Mutant>) -> Self {
        let zero = Instant::now();
        let (gate, keeps) = (Gate::default(), mutant == Some(Mutant::KeepLinks));
        let nodes = (0..NODES).map(|number| Node::new(number, zero, &gate, keeps)).collect();
        let mut store = Store::default();
        store.mutant = mutant;
        objects::fill(&mut store, NODES);
        Self {
            rng: Rng::new(seed),
            chaos,
            nodes,
            gate,
            store: Arc::new(Mutex::new(store)),
            inbox: Inbox::default(),
            controller: None,
            mutant,
            pods_made: 0,
            steps: 0,
            weather: 0,
            checker: Checker::default(),
            vain: Vec::new(),
            zero,
            told: Vec::new(),
            aloud: std::env::var_os("FAIRLEAD_MODEL_ALOUD").is_some(),
        }
    }

    pub fn now(&self) -> Duration {
        self.zero.elapsed()
    }

    pub fn base() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// Notes what happens, for whoever has to find out why.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.told.len() >= 2 * TOLD {
            self.told.drain(..TOLD);
        }
        let line = format!("{:>9.3} {}", self.now().as_secs_f64(), what());
        if self.aloud {
            eprintln!("{line}");
        }
        self.told.push(line);
    }

    pub fn story(&self) -> String {
        let from = self.told.len().saturating_sub(TOLD);
        self.told[from..].join("\n")
    }

    pub fn start_agent(&mut self, number: usize) {
        let zero = self.zero;
        let client = client(&self.inbox, Who::Node(number), move || zero.elapsed());
        let (store, name) = (self.store.lock().unwrap(), self.nodes[number].name.clone());
        self.nodes[number].start_agent(&client, Self::base(), |view| objects::show(&store, &name, view));
        drop(store);
        self.tell(|| format!("agent of {name} starts"));
    }

    pub fn start_controller(&mut self) {
        let zero = self.zero;
        let client = client(&self.inbox, Who::Controller, move || zero.elapsed());
        let wall = move || Self::base().saturating_add(zero.elapsed()).unwrap();
        self.controller = Some(Controller::new(client, &self.store, wall));
        self.tell(|| "controller starts".to_owned());
    }

    /// Whatever ran has come to rest: our client's own tasks, and work in the kernel.
    async fn settle(&mut self, kernel: bool) {
        yield_now().await;
        if kernel {
            spawn_blocking(|| ()).await.unwrap();
            yield_now().await;
        }
        self.nodes.iter_mut().for_each(Node::tend);
        let mut inbox = self.inbox.lock().unwrap();
        let chatter: Vec<Pending> = inbox.extract_if(.., |pending| pending.call.is_chatter()).collect();
        drop(inbox);
        chatter.into_iter().for_each(Pending::echo);
        self.hand_out_news();
    }

    /// What the store saw change in pods goes to the agents' watches, and what changed in Networks to all.
    fn hand_out_news(&mut self) {
        let mut store = self.store.lock().unwrap();
        for key in std::mem::take(&mut store.changed) {
            if key.resource == "pods" {
                for node in &mut self.nodes {
                    node.news.extend(objects::news(&store, &key, &node.name));
                }
            }
        }
    }

    /// Polls one woken task of a node, or of the controller.
    async fn poll(&mut self, who: Who, at: usize) {
        let task = match who {
            Who::Node(number) => self.nodes[number].agent.as_mut().map(|running| &mut running.tasks[at]),
            Who::Controller => self.controller.as_mut().map(|controller| &mut controller.task),
        };
        let Some(task) = task else { return };
        let closed = self.gate.lock().unwrap();
        let (name, ended) = (task.name.clone(), task.poll());
        drop(closed);
        yield_now().await;
        // A task that still waits may wait for the kernel, whose work is done on another thread.
        let waits = !ended && !task.is_woken();
        if let (true, Who::Node(number)) = (ended, who) {
            self.nodes[number].agent.iter_mut().for_each(|running| drop(running.tasks.swap_remove(at)));
        }
        self.tell(|| format!("{who:?} {name}{}", if ended { " ends" } else { "" }));
        self.settle(waits).await;
    }

    fn woken(&self) -> Vec<(Who, usize)> {
        let mut woken = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let tasks = node.agent.iter().flat_map(|running| running.tasks.iter().enumerate());
            woken.extend(tasks.filter(|(_, task)| task.is_woken()).map(|(at, _)| (Who::Node(number), at)));
        }
        let controller = self.controller.iter().filter(|controller| controller.task.is_woken());
        woken.extend(controller.map(|_| (Who::Controller, 0)));
        woken
    }

    fn is_connected(&self, who: Who) -> bool {
        match who {
            Who::Node(number) => self.nodes[number].connected && self.nodes[number].powered,
            Who::Controller => true,
        }
    }

    /// Lets one request come to its fate.
    async fn serve(&mut self, at: usize, fate: Fate, told: bool) {
        let pending = self.inbox.lock().unwrap().remove(at);
        let late = if pending.is_abandoned() { " late" } else { "" };
        self.tell(|| format!("{:?} {fate:?}{late}: {}", pending.who, pending.call));
        let vain = pending.settle(fate, told, &mut self.store.lock().unwrap());
        self.vain.extend(vain);
        self.vain.retain(|reply| !reply.is_closed());
        self.settle(false).await;
    }

    async fn pass_by_chance(&mut self, most_ms: usize) {
        let time = Duration::from_millis(1 + self.rng.below(most_ms) as u64);
        self.pass(time).await;
    }

    async fn pass(&mut self, time: Duration) {
        advance(time).await;
        self.settle(false).await;
    }

    /// One step by chance.
    pub async fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        let woken = self.woken();
        let requests = self.inbox.lock().unwrap().len();
        let busy = !woken.is_empty() || requests > 0;
        match self.rng.below(100) {
            0..50 if !woken.is_empty() => self.poll_by_chance(&woken).await,
            0..80 if requests > 0 => self.serve_by_chance(requests).await,
            0..80 if !woken.is_empty() => self.poll_by_chance(&woken).await,
            80..82 if busy => self.pass_by_chance(500).await,
            0..50 => {
                let most = [100, 1000, 5000][self.rng.below(3)];
                self.pass_by_chance(most).await;
            }
            _ => {
                self.happen();
                self.settle(false).await;
            }
        }
        self.check()
    }

    /// The controller goes on slowly: it looks at everything, over and over.
    async fn poll_by_chance(&mut self, woken: &[(Who, usize)]) {
        let (who, at) = woken[self.rng.below(woken.len())];
        if who != Who::Controller || woken.len() == 1 || self.rng.chance(25) {
            self.poll(who, at).await;
        }
    }

    async fn serve_by_chance(&mut self, requests: usize) {
        let at = self.rng.below(requests);
        let (who, abandoned, age) = {
            let inbox = self.inbox.lock().unwrap();
            let pending = &inbox[at];
            (pending.who, pending.is_abandoned(), self.zero.elapsed().saturating_sub(pending.since))
        };
        if abandoned {
            // A request whose caller has given up or died: it is lost, or comes late.
            let fate = if age > LATEST || self.rng.chance(50) { Fate::Lose } else { Fate::Serve };
            if age > LATEST || self.rng.chance(7) {
                return self.serve(at, fate, false).await;
            }
            return;
        }
        let wrong = self.chaos.faults && self.rng.below(100) < self.weather;
        if !self.is_connected(who) && self.rng.chance(40) {
            // It is on its way for longer than its caller waits.
            return self.pass_by_chance(2000).await;
        }
        if !self.is_connected(who) {
            let fate = if self.rng.chance(3) { Fate::LoseAnswer } else { Fate::Lose };
            return self.serve(at, fate, false).await;
        }
        if !wrong {
            return self.serve(at, Fate::Serve, true).await;
        }
        let told = self.rng.chance(50);
        match self.rng.below(5) {
            0 => self.serve(at, Fate::Refuse, true).await,
            1 => self.serve(at, Fate::Lose, told).await,
            2 | 3 => self.serve(at, Fate::LoseAnswer, told).await,
            // It stays where it is, until its caller has given up.
            _ => self.pass(Duration::from_secs(10)).await,
        }
    }

    /// Everything in order for a while: all requests are served, everyone goes on, and time passes.
    pub async fn calm(&mut self, time: Duration) -> Result<(), String> {
        self.steps += 1;
        for number in 0..NODES {
            self.nodes[number].begin_list();
            self.nodes[number].deliver_list();
            while !self.nodes[number].news.is_empty() && self.nodes[number].agent.is_some() {
                self.nodes[number].deliver_news();
            }
        }
        if let Some(controller) = &self.controller {
            controller.look(&self.store.lock().unwrap());
        }
        for _ in 0..400 {
            let woken = self.woken();
            if let Some((who, at)) = woken.first() {
                self.steps += 1;
                self.poll(*who, *at).await;
            } else if !self.inbox.lock().unwrap().is_empty() {
                self.steps += 1;
                self.serve(0, Fate::Serve, true).await;
            } else {
                break;
            }
            self.check()?;
        }
        self.pass(time).await;
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        let now = self.now();
        self.checker.check(&self.nodes, &self.store.lock().unwrap(), now, quarantine)
    }

    pub fn in_use(&self) -> usize {
        self.checker.in_use()
    }

    /// Says what is wrong, with the end of the story.
    pub fn blame(&self, what: &str) -> String {
        format!("{}\n\nafter {} steps: {what}", self.story(), self.steps)
    }

    pub fn edit(&self, key: &Key, edit: impl FnOnce(&mut serde_json::Value)) {
        self.store.lock().unwrap().edit(key, edit);
    }

    /// Someone deletes an object, without preconditions.
    pub fn delete(&self, key: &Key) {
        drop(self.store.lock().unwrap().delete(key, &json!({})));
    }
}

/// How long an address of each network rests.
pub fn quarantine(address: IpAddr) -> Duration {
    Duration::from_secs(if objects::is_blue(address) { objects::BLUE_RESTS } else { objects::RED_RESTS })
}
