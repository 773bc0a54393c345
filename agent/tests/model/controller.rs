//! The controller's part for nodes that are gone: the real driver, with a view that may be behind.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_gates::controller::api::{Caller, Leadership};
use fairlead_gates::controller::lost_nodes::LostNodes;
use fairlead_gates::controller::view::View;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::Client;

use super::objects;
use super::store::Store;
use super::tasks::Task;

/// A leader at work.
pub struct Controller {
    pub task: Task,
    view: Arc<Mutex<Arc<View>>>,
}

impl Controller {
    pub fn new(
        client: Client,
        store: &Arc<Mutex<Store>>,
        wall: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        let leadership = Arc::new(Leadership::default());
        let caller = Caller { client, metrics: Arc::default(), leadership: Arc::clone(&leadership) };
        let view = Arc::new(Mutex::new(copy(&store.lock().unwrap())));
        let seen = Arc::clone(&view);
        let work = async move {
            let mut driver = LostNodes::new(caller, Duration::from_secs(60)).by_clock(wall);
            loop {
                leadership.set(Some(Instant::now()));
                let view = Arc::clone(&seen.lock().unwrap());
                let pause = driver.look(&view).await;
                tokio::time::sleep(pause.unwrap_or(Duration::from_secs(5))).await;
            }
        };
        Self { task: Task::new("controller", work), view }
    }

    /// Its watches bring what is there now.
    pub fn look(&self, store: &Store) {
        *self.view.lock().unwrap() = copy(store);
    }
}

fn copy(store: &Store) -> Arc<View> {
    let view = View::default();
    for (_, node) in store.all("nodes") {
        let node: core::Node = serde_json::from_value(node.clone()).unwrap();
        view.nodes.put(node);
    }
    for (_, block) in store.all("ipblocks") {
        let block: fairlead_crds::IPBlock = serde_json::from_value(block.clone()).unwrap();
        view.blocks.put(block);
    }
    for network in objects::networks(store).into_values() {
        view.networks.put(network);
    }
    Arc::new(view)
}
