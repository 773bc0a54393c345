//! Putting an agent together from what it talks to.

use std::sync::{Arc, Mutex};

use kube::Client;
use tokio::sync::watch;

use super::Agent;
use crate::blocks::Blocks;
use crate::bridges::Bridges;
use crate::clock::Clock;
use crate::events::Events;
use crate::lease::Lease;
use crate::net::Net;
use crate::queue::Queue;
use crate::record::Records;
use crate::reserved::Reserved;
use crate::sandbox::{Namespaces, Sandboxes};
use crate::view::View;

/// What an agent talks to, and who it is.
pub struct Edges {
    /// The API server.
    pub client: Client,
    /// Name of the node.
    pub node: String,
    /// UID of the agent's pod.
    pub agent_uid: String,
    /// The kernel.
    pub net: Arc<dyn Net>,
    /// The container runtime.
    pub runtime: Arc<dyn Namespaces>,
    /// Its sandboxes.
    pub sandboxes: watch::Receiver<Arc<Sandboxes>>,
    /// Told whether someone waits for a sandbox to come or to end.
    pub armed: watch::Sender<bool>,
    /// Boot id of the kernel.
    pub boot_id: String,
    /// What time it is.
    pub clock: Clock,
}

impl Agent {
    /// An agent that knows nothing yet.
    pub fn new(edges: Edges) -> Self {
        let Edges { client, node, agent_uid, net, runtime, sandboxes, armed, boot_id, clock } = edges;
        let view = Arc::new(View::default());
        let lease = Lease::new(client.clone(), &node, &agent_uid, clock.clone());
        let blocks = Blocks::new(client.clone(), &node, Arc::clone(&view), Arc::clone(&lease), clock.clone());
        Self {
            bridges: Arc::new(Bridges::new(Arc::clone(&net), Arc::clone(&view))),
            records: Records::new(client.clone(), &node, clock.clone()),
            reserved: Reserved::new(client.clone(), &node, Arc::clone(&view), clock.clone()),
            events: Events::new(client, &node),
            blocks: Arc::new(blocks),
            queue: Queue::default(),
            metrics: Arc::default(),
            changed: Arc::default(),
            networks_changed: Arc::default(),
            orphans: Mutex::default(),
            memory: Mutex::default(),
            links: Mutex::default(),
            waiting: Mutex::default(),
            waits: Arc::default(),
            slow: None,
            view,
            net,
            runtime,
            sandboxes,
            armed,
            lease,
            clock,
            boot_id,
        }
    }
}
