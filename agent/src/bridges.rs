//! The bridges of this node, as its Networks want them: made before the first pod needs them, looked at
//! again when something changes, and remembered in between so that a pod costs no look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairlead_crds::network::{Bridge, Manage};
use fairlead_crds::{Network, Reason};
use tokio::time::Instant;

use crate::intent::Problem;
use crate::model;
use crate::net::{BridgeReady, Net, WantedBridge};
use crate::view::View;

/// Bridges of the node.
pub struct Bridges {
    net: Arc<dyn Net>,
    view: Arc<View>,
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    wanted: WantedBridge,
    state: Result<BridgeReady, Problem>,
    at: Instant,
}

/// How long a bridge that is ready is believed without looking: longer than until it is next surveyed, so that no pod has
/// to wait for a look.
const TRUST: Duration = Duration::from_secs(60);
/// The same for a survey.
const SURVEY_TRUST: Duration = Duration::from_secs(15);
/// The same for one that is not.
const DISTRUST: Duration = Duration::from_secs(2);

impl Bridges {
    /// No bridge is known yet.
    pub fn new(net: Arc<dyn Net>, view: Arc<View>) -> Self {
        Self { net, view, known: Mutex::default() }
    }

    /// The bridge of a Network, brought to what is wanted if it was not looked at lately.
    ///
    /// # Errors
    /// [`Problem`] for people.
    pub async fn ready(&self, network: &str) -> Result<BridgeReady, Problem> {
        self.look(network, TRUST).await
    }

    async fn look(&self, network: &str, trust: Duration) -> Result<BridgeReady, Problem> {
        let wanted = self.wanted(network)?;
        let name = wanted.name.to_string();
        if let Some(known) =
            self.lock().get(&name).filter(|known| known.wanted == wanted && known.is_trusted(trust))
        {
            return known.state.clone();
        }
        let (net, ask) = (Arc::clone(&self.net), wanted.clone());
        let state = tokio::task::spawn_blocking(move || net.ensure_bridge(&ask)).await;
        let state = match state {
            Ok(state) => state.map_err(|problem| Problem::new(problem.reason, problem.message)),
            Err(_) => Err(Problem::new(Reason::AttachFailed, "the agent stops")),
        };
        self.lock().insert(name, Known { wanted, state: state.clone(), at: Instant::now() });
        state
    }

    /// What all Networks of one bridge want of it together. The first by name decides how it is made.
    fn wanted(&self, network: &str) -> Result<WantedBridge, Problem> {
        let view = self.view.lock();
        let bridge = view.networks.get(network).and_then(|network| network.spec.bridge.as_ref());
        let bridge = bridge.ok_or_else(|| {
            Problem::new(Reason::NetworkNotFound, format!("network {network} does not exist"))
        })?;
        let here = |other: &&Network| other.is_accepted() && model::is_on_node(other, &view.node.labels);
        let sharing = view
            .networks
            .values()
            .filter(here)
            .filter_map(|other| Some((other, other.spec.bridge.as_ref()?)));
        let sharing: Vec<_> = sharing.filter(|(_, other)| other.name == bridge.name).collect();
        if let Some((first, _)) = sharing.first().filter(|(_, first)| !same_wire(first, bridge)) {
            let first = first.metadata.name.as_deref().unwrap_or_default();
            let message = format!(
                "network {first} uses bridge {} with another uplink or manage; use another bridge name",
                bridge.name
            );
            return Err(Problem::new(Reason::ParentBusy, message));
        }
        Ok(WantedBridge {
            name: bridge.name.clone(),
            create: bridge.manage == Manage::Create,
            uplink: bridge.uplink.interface.clone(),
            mtu: sharing.iter().filter_map(|(network, _)| network.spec.mtu).max(),
        })
    }

    /// Forgets what is known of a link: it changed. True if a bridge of ours is about it.
    pub fn forget(&self, link: &str) -> bool {
        let mut known = self.lock();
        let before = known.len();
        known.retain(|name, known| {
            name != link && known.wanted.uplink.as_ref().is_none_or(|uplink| uplink.as_str() != link)
        });
        known.len() < before
    }

    /// Forgets everything.
    pub fn forget_all(&self) {
        self.lock().clear();
    }

    /// Looks at the bridges of all Networks of this node and notes in the view what is wrong. True if that changed.
    pub async fn survey(&self) -> bool {
        let names: Vec<String> = {
            let view = self.view.lock();
            let here = |network: &&Network| {
                network.is_accepted()
                    && model::is_on_node(network, &view.node.labels)
                    && network.spec.bridge.is_some()
            };
            view.networks.values().filter(here).filter_map(|network| network.metadata.name.clone()).collect()
        };
        let mut troubles = std::collections::BTreeMap::new();
        for name in names {
            if let Err(problem) = self.look(&name, SURVEY_TRUST).await {
                troubles.insert(name, problem);
            }
        }
        let mut view = self.view.lock();
        let changed = view.troubles != troubles;
        view.troubles = troubles;
        changed
    }

    /// Removes bridges that no Network wants any more, also those of an earlier agent; only those an agent made are
    /// touched, and only when no pod's link is left in them.
    pub async fn sweep(&self) {
        let wanted: Vec<String> = {
            let view = self.view.lock();
            view.networks
                .values()
                .filter_map(|network| Some(network.spec.bridge.as_ref()?.name.to_string()))
                .collect()
        };
        let net = Arc::clone(&self.net);
        let Ok(made) = tokio::task::spawn_blocking(move || net.bridges()).await else { return };
        let made = made.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the bridges of this node");
            Vec::new()
        });
        self.lock().retain(|name, _| wanted.contains(name));
        for name in made.into_iter().filter(|name| !wanted.contains(name)) {
            let (net, bridge) = (Arc::clone(&self.net), name.clone());
            let removed = tokio::task::spawn_blocking(move || net.remove_bridge(&bridge)).await;
            match removed {
                Ok(Ok(())) => tracing::info!(bridge = %name, "bridge that no network uses removed"),
                Ok(Err(error)) => {
                    tracing::debug!(bridge = %name, %error, "bridge that no network uses is kept");
                }
                Err(_) => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_trusted(&self, ready: Duration) -> bool {
        self.at.elapsed() < if self.state.is_ok() { ready } else { DISTRUST }
    }
}

fn same_wire(first: &Bridge, other: &Bridge) -> bool {
    first.manage == other.manage && first.uplink == other.uplink
}
