//! One node: its kernel, its sandboxes, and its agent, which can be killed and started at any moment.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use fairlead_agent::blocks::Blocks;
use fairlead_agent::clock::Clock;
use fairlead_agent::maintain;
use fairlead_agent::model::Pod;
use fairlead_agent::net::Net;
use fairlead_agent::net::fake::Fake;
use fairlead_agent::reconcile::{Agent, Edges};
use fairlead_agent::sandbox::memory::Paths;
use fairlead_agent::sandbox::watch::Change;
use fairlead_agent::sandbox::{Namespaces, Sandbox, Sandboxes};
use fairlead_agent::startup;
use fairlead_agent::view::Inner;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gate::{Gate, Gated};
use super::tasks::Task;

/// A sandbox of a pod.
#[derive(Debug, Clone)]
pub struct Sandboxed {
    pub sandbox: Sandbox,
    /// Where its namespace is, while it is there.
    pub path: Option<PathBuf>,
}

/// What a watch of the agent has still to tell it: a pod, or that the pod of this UID is gone.
pub type News = (String, Option<Pod>);

/// A node.
pub struct Node {
    pub name: String,
    pub kernel: Arc<Fake>,
    net: Arc<dyn Net>,
    gate: Gate,
    keeps_links: bool,
    pub boxes: Vec<Sandboxed>,
    pub powered: bool,
    pub connected: bool,
    /// How far the node's clock is off, in seconds.
    pub step: Arc<AtomicI64>,
    pub news: VecDeque<News>,
    /// A list of the sandboxes that the agent has not got yet, and when it was begun.
    pub list: Option<(Instant, Vec<Sandbox>)>,
    pub boot: u32,
    /// Grows whenever a namespace comes or goes.
    pub moves: u64,
    pub agent: Option<Running>,
    zero: Instant,
    paths: Arc<Paths>,
    made: u32,
}

/// An agent at work.
pub struct Running {
    pub agent: Arc<Agent>,
    pub tasks: Vec<Task>,
    starts: Arc<Mutex<Vec<String>>>,
    recovered: Arc<AtomicBool>,
    at_work: bool,
    snapshots: watch::Sender<Arc<Sandboxes>>,
    seen: Arc<Sandboxes>,
}

impl Node {
    pub fn new(number: usize, zero: Instant, gate: &Gate, keeps_links: bool) -> Self {
        let kernel = Arc::new(Fake::new(&[]));
        Self {
            name: format!("node-{number}"),
            net: Gated::around(&kernel, gate, keeps_links),
            gate: Arc::clone(gate),
            keeps_links,
            kernel,
            boxes: Vec::new(),
            powered: true,
            connected: true,
            step: Arc::default(),
            news: VecDeque::new(),
            list: None,
            boot: 0,
            moves: 0,
            agent: None,
            zero,
            paths: Arc::default(),
            made: 0,
        }
    }

    /// Power is cut: nothing that ran here is left.
    pub fn power_off(&mut self) {
        self.agent = None;
        self.powered = false;
        self.boxes.clear();
        self.paths.clear();
        (self.list, self.boot, self.moves) = (None, self.boot + 1, self.moves + 1);
        self.news.clear();
        self.kernel = Arc::new(Fake::new(&[]));
        self.net = Gated::around(&self.kernel, &self.gate, self.keeps_links);
    }

    pub fn start_sandbox(&mut self, uid: &str) {
        (self.made, self.moves) = (self.made + 1, self.moves + 1);
        let id = format!("{}-{}-{}", self.name, self.boot, self.made);
        let path = PathBuf::from(format!("/run/netns/{id}"));
        self.kernel.add_namespace(&path);
        self.paths.insert(&id, path.clone());
        let attempt = self.boxes.iter().filter(|one| one.sandbox.uid == uid).count();
        let sandbox = Sandbox {
            uid: uid.to_owned(),
            namespace: "ns".into(),
            name: uid.to_owned(),
            id,
            attempt: u32::try_from(attempt).unwrap(),
            ready: true,
            created_at: i64::from(self.made),
            runtime_handler: String::new(),
        };
        self.boxes.push(Sandboxed { sandbox, path: Some(path) });
    }

    /// The sandbox does not run any more; its namespace may live on for a while.
    pub fn stop_sandbox(&mut self, at: usize) {
        self.boxes[at].sandbox.ready = false;
    }

    pub fn remove_namespace(&mut self, at: usize) {
        if let Some(path) = self.boxes[at].path.take() {
            self.moves += 1;
            self.kernel.remove_namespace(&path);
        }
    }

    /// The runtime forgets a sandbox that is gone.
    pub fn forget_sandbox(&mut self, at: usize) {
        let gone = self.boxes.remove(at);
        self.paths.remove(&gone.sandbox.id);
    }

    pub fn begin_list(&mut self) {
        let all = self.boxes.iter().map(|one| one.sandbox.clone()).collect();
        self.list = Some((Instant::now(), all));
    }

    /// The list comes to the agent.
    pub fn deliver_list(&mut self) {
        let Some((begun, all)) = self.list.take() else { return };
        let Some(running) = &mut self.agent else { return };
        let now = Arc::new(Sandboxes::complete_at(all, begun.into_std()));
        let uids = now.changed_since(&running.seen);
        running.seen = Arc::clone(&now);
        running.snapshots.send_replace(Arc::clone(&now));
        if running.at_work {
            running.agent.saw(&Change { now, uids: uids.clone() });
            let waiting = running.agent.gone_pods();
            running.agent.queue.add_all(uids.into_iter().chain(waiting));
        }
    }

    /// One piece of news comes to the agent.
    pub fn deliver_news(&mut self) {
        let Some(running) = self.agent.as_ref() else { return };
        let Some((uid, pod)) = self.news.pop_front() else { return };
        let mut view = running.agent.view.lock();
        match pod {
            Some(pod) if view.pods.get(&uid) == Some(&pod) => return,
            Some(pod) => drop(view.pods.insert(uid.clone(), pod)),
            None => drop(view.pods.remove(&uid)),
        }
        running.agent.queue.add(&uid);
    }

    /// Starts an agent; `fill` tells it what it watches.
    pub fn start_agent(&mut self, client: &Client, base: jiff::Timestamp, fill: impl FnOnce(&mut Inner)) {
        self.news.clear();
        self.begin_list();
        let begun = self.list.take().map_or_else(Instant::now, |(begun, _)| begun);
        let all = self.boxes.iter().map(|one| one.sandbox.clone()).collect();
        let seen = Arc::new(Sandboxes::complete_at(all, begun.into_std()));
        let (snapshots, sandboxes) = watch::channel(Arc::clone(&seen));
        let (armed, _) = watch::channel(false);
        let (step, zero) = (Arc::clone(&self.step), self.zero);
        let wall = move || {
            let seconds = jiff::SignedDuration::from_secs(step.load(Ordering::Relaxed));
            base.saturating_add(zero.elapsed()).and_then(|now| now.checked_add(seconds)).unwrap()
        };
        let agent = Arc::new(Agent::new(Edges {
            client: client.clone(),
            node: self.name.clone(),
            agent_uid: format!("{}-agent", self.name),
            net: Arc::clone(&self.net),
            runtime: Arc::clone(&self.paths) as Arc<dyn Namespaces>,
            sandboxes,
            armed,
            boot_id: format!("boot-{}", self.boot),
            clock: Clock::new(wall),
        }));
        fill(&mut agent.view.lock());
        let recovered = Arc::new(AtomicBool::new(false));
        let boot = {
            let (agent, recovered) = (Arc::clone(&agent), Arc::clone(&recovered));
            Task::new("recover", async move {
                startup::recover(&agent).await.unwrap();
                recovered.store(true, Ordering::Release);
            })
        };
        self.agent = Some(Running {
            agent,
            tasks: vec![boot],
            starts: Arc::default(),
            recovered,
            at_work: false,
            snapshots,
            seen,
        });
    }

    /// Starts what was asked for: the loops once the agent has recovered, and work on pods.
    pub fn tend(&mut self) {
        let Some(running) = &mut self.agent else { return };
        for task in running.tasks.iter_mut().filter(|task| task.name == "queue" && task.is_woken()) {
            task.poll();
        }
        if running.recovered.load(Ordering::Acquire) && !std::mem::replace(&mut running.at_work, true) {
            running.tasks.extend(loops(&running.agent, &running.starts));
            let uids = running.agent.view.lock().uids();
            running.agent.queue.add_all(uids);
        }
        for uid in std::mem::take(&mut *running.starts.lock().unwrap()) {
            let (agent, queue) = (Arc::clone(&running.agent), running.agent.queue.clone());
            running.tasks.push(Task::new(format!("pod {uid}"), async move {
                let next = Box::pin(agent.reconcile(uid.clone())).await;
                queue.finish(&uid, next);
            }));
        }
    }
}

/// What an agent does besides its pods, as `run` starts it.
fn loops(agent: &Arc<Agent>, starts: &Arc<Mutex<Vec<String>>>) -> Vec<Task> {
    let never = CancellationToken::new;
    let blocks: Arc<Blocks> = Arc::clone(&agent.blocks);
    let (leased, queue, starts) = (Arc::clone(agent), agent.queue.clone(), Arc::clone(starts));
    vec![
        Task::new("bridges", maintain::bridges(Arc::clone(agent), never())),
        Task::new("records", maintain::records(Arc::clone(agent), never())),
        Task::new("addresses", maintain::addresses(Arc::clone(agent), never())),
        Task::new("blocks", async move { blocks.run(never()).await }),
        Task::new("lease", async move { leased.lease.run(never(), || leased.blocks.load(), |_| ()).await }),
        Task::new("queue", async move {
            loop {
                let uid = queue.next().await;
                starts.lock().unwrap().push(uid);
            }
        }),
    ]
}
