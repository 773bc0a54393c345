//! What the trials share: the cluster, and the lock between those that disturb others and those that do not.

use std::{env, sync::Arc};

use anyhow::{Result, anyhow};
use fairlead_tests::{Cluster, Layout, Options, node::Nri, progress::Progress};
use tokio::sync::{OnceCell, RwLock};

const NODES: u8 = 2;

/// One per run.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    layout: Layout,
    cluster: OnceCell<Result<Arc<Cluster>, String>>,
    fairlead: OnceCell<Result<(), String>>,
    /// Held for writing by a trial that disturbs others.
    quiet: RwLock<()>,
}

impl Shared {
    /// Boots nothing yet.
    pub fn new() -> Result<Self> {
        let layout = Layout::TESTS.or_from_env()?;
        let (cluster, fairlead) = (OnceCell::new(), OnceCell::new());
        Ok(Self(Arc::new(Inner { layout, cluster, fairlead, quiet: RwLock::new(()) })))
    }

    /// The lock between trials.
    pub fn quiet(&self) -> &RwLock<()> {
        &self.0.quiet
    }

    /// The cluster; the first caller boots it, the others wait. An error is the same for all.
    pub async fn cluster(&self) -> Result<Arc<Cluster>> {
        let booted = self.0.cluster.get_or_init(|| async {
            let booted = boot(self.0.layout).await;
            booted.map(Arc::new).map_err(|error| format!("{error:#}"))
        });
        booted.await.clone().map_err(|sentence| anyhow!(sentence))
    }

    /// The cluster with fairlead on it.
    pub async fn with_fairlead(&self) -> Result<Arc<Cluster>> {
        let cluster = self.cluster().await?;
        let installed = self.0.fairlead.get_or_init(|| async {
            let installed = fairlead_tests::fairlead::install(&cluster, &Progress::auto()).await;
            installed.map_err(|error| format!("installing fairlead: {error:#}"))
        });
        installed.await.clone().map_err(|sentence| anyhow!(sentence))?;
        Ok(cluster)
    }

    /// Ends the cluster that was booted, unless it shall be kept.
    pub async fn finish(&self) -> Result<()> {
        let Some(Ok(cluster)) = self.0.cluster.get() else {
            return Ok(());
        };
        if is_set("FAIRLEAD_KEEP") || is_set("FAIRLEAD_REUSE") {
            eprintln!("the cluster is kept: export KUBECONFIG={}", cluster.kubeconfig_path().display());
            return Ok(());
        }
        Cluster::down(self.0.layout).await
    }
}

async fn boot(layout: Layout) -> Result<Cluster> {
    if is_set("FAIRLEAD_REUSE")
        && let Ok(cluster) = Cluster::attach(layout).await
    {
        return Ok(cluster);
    }
    Cluster::up(&Options { layout, nodes: NODES, nri: Nri::default(), progress: Progress::auto() }).await
}

fn is_set(variable: &str) -> bool {
    env::var(variable).is_ok_and(|value| value == "1")
}
