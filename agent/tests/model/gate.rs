//! The way to a node's kernel: work on another thread waits until the task that asked for it has come to its next await,
//! or it would depend on the machine's mood whether that await is one.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::Duration;

use fairlead_agent::net::fake::Fake;
use fairlead_agent::net::{
    Asked, BridgeProblem, BridgeReady, Namespace, Net, NetError, Session, Stranger, WantedBridge,
};
use fairlead_agent::plan::HostLink;
use fairlead_crds::{IfName, Ip};

/// Closed while the model polls a task.
pub type Gate = Arc<Mutex<()>>;

/// A kernel behind the gate.
#[derive(Debug)]
pub struct Gated {
    kernel: Arc<Fake>,
    gate: Gate,
    model: ThreadId,
    /// The bug that says that links are cut, and leaves them.
    keeps_links: bool,
}

impl Gated {
    pub fn around(kernel: &Arc<Fake>, gate: &Gate, keeps_links: bool) -> Arc<dyn Net> {
        let (kernel, gate, model) = (Arc::clone(kernel), Arc::clone(gate), thread::current().id());
        Arc::new(Self { kernel, gate, model, keeps_links })
    }

    fn pass(&self) -> (&Fake, Option<MutexGuard<'_, ()>>) {
        (&self.kernel, (thread::current().id() != self.model).then(|| self.gate.lock().unwrap()))
    }
}

impl Net for Gated {
    fn visit(
        &self,
        path: &Path,
        work: &mut (dyn FnMut(Namespace, &mut dyn Session) + Send),
    ) -> Result<(), NetError> {
        self.pass().0.visit(path, work)
    }

    fn ensure_bridge(&self, wanted: &WantedBridge) -> Result<BridgeReady, BridgeProblem> {
        self.pass().0.ensure_bridge(wanted)
    }

    fn remove_bridge(&self, name: &str) -> Result<(), NetError> {
        self.pass().0.remove_bridge(name)
    }

    fn bridges(&self) -> Result<Vec<String>, NetError> {
        self.pass().0.bridges()
    }

    fn host_links(&self) -> Result<Vec<HostLink>, NetError> {
        self.pass().0.host_links()
    }

    fn delete_host_links(&self, names: &[String]) -> Result<(), NetError> {
        let (kernel, _gate) = self.pass();
        if self.keeps_links { Ok(()) } else { kernel.delete_host_links(names) }
    }

    fn probe(&self, link: &IfName, asked: &[Asked], time: Duration) -> Result<Vec<Stranger>, NetError> {
        self.pass().0.probe(link, asked, time)
    }

    fn forget(&self, addresses: &[(IfName, Ip)]) -> Result<(), NetError> {
        self.pass().0.forget(addresses)
    }
}
