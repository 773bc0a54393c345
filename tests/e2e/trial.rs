//! One trial: its name, what it needs, and what it gets.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use fairlead_tests::Cluster;
use libtest_mimic::Trial;
use tokio::runtime::Handle;

use crate::{
    audit,
    env::Shared,
    fixtures::{PATIENTLY, eventually},
};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(900);
/// Namespace names end at 63 characters; objects of trials get suffixes.
const NAME_LENGTH: usize = 40;

static COUNTER: AtomicU32 = AtomicU32::new(0);

type Body = Box<dyn FnOnce(Arc<Env>) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> + Send>;

/// A trial before it is handed to the harness.
pub struct Case {
    name: &'static str,
    body: Body,
    alone: bool,
    fairlead: bool,
    timeout: Duration,
}

impl Case {
    /// A trial that runs beside others, on a cluster with fairlead.
    pub fn new<F, Fut>(name: &'static str, body: F) -> Self
    where
        F: FnOnce(Arc<Env>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        let body: Body = Box::new(move |env| Box::pin(body(env)));
        Self { name, body, alone: false, fairlead: true, timeout: DEFAULT_TIMEOUT }
    }

    /// No other trial runs at the same time: it kills agents, changes nodes, or counts what all do.
    pub fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Needs no fairlead on the cluster.
    pub fn bare(self) -> Self {
        Self { fairlead: false, ..self }
    }

    /// Another limit than a quarter of an hour, without the time it waits for its turn.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Hands it to the harness.
    pub fn into_trial(self, runtime: &Handle, shared: &Shared) -> Trial {
        let (runtime, shared) = (runtime.clone(), shared.clone());
        Trial::test(self.name, move || {
            let name = self.name;
            runtime.block_on(self.run(&shared)).map_err(|error| {
                // The harness tells why only at its end.
                eprintln!("{name}: {error:#}");
                format!("{error:#}").into()
            })
        })
    }

    async fn run(self, shared: &Shared) -> Result<()> {
        let cluster = if self.fairlead { shared.with_fairlead().await? } else { shared.cluster().await? };
        let (_read, _write);
        if self.alone {
            _write = shared.quiet().write().await;
        } else {
            _read = shared.quiet().read().await;
        }
        let env = Arc::new(Env::new(cluster, self.name).await?);
        // In a task of its own, so that a failed assertion is an error here and the rest still happens.
        let mut task = tokio::spawn((self.body)(Arc::clone(&env)));
        let outcome = match tokio::time::timeout(self.timeout, &mut task).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => Err(anyhow!("{}", message_of(panic))),
            Err(_) => {
                task.abort();
                Err(anyhow!("not finished after {} s", self.timeout.as_secs()))
            }
        };
        let outcome = if self.fairlead { audited(outcome, &env).await } else { outcome };
        let outcome = env.explain(outcome).await;
        env.clean().await?;
        outcome
    }
}

/// A trial after which something disagrees has failed. Before its objects are deleted, so that all of them are seen.
async fn audited(outcome: Result<()>, env: &Env) -> Result<()> {
    outcome?;
    if std::env::var("FAIRLEAD_AUDIT").is_ok_and(|value| value == "0") {
        return Ok(());
    }
    audit::check(&env.cluster).await
}

fn message_of(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else {
        return "cancelled".into();
    };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "panicked".into())
}

/// What a trial gets: the cluster, and names of its own.
pub struct Env {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// The trial's own namespace.
    pub namespace: String,
    name: &'static str,
    id: u32,
    /// Namespaces and names of objects outside of the trial's namespace that it made.
    made: Mutex<Vec<(String, String)>>,
}

impl Env {
    async fn new(cluster: Arc<Cluster>, name: &'static str) -> Result<Self> {
        // Unique over runs too, for clusters that are reused.
        let id = std::process::id() % 10_000 * 100 + COUNTER.fetch_add(1, Ordering::Relaxed);
        let stem: String = name.replace('_', "-").chars().take(NAME_LENGTH).collect();
        let namespace = format!("{}-{id}", stem.trim_end_matches('-'));
        cluster.kubectl(&["create", "namespace", &namespace]).await?;
        // Without it the API server refuses pods.
        eventually("the namespace's service account", || async {
            cluster.kubectl(&["get", "-n", &namespace, "serviceaccount", "default"]).await.map(drop)
        })
        .await?;
        Ok(Self { cluster, namespace, name, id, made: Mutex::default() })
    }

    /// A name for an object without a namespace, which no other trial uses.
    pub fn unique(&self, name: &str) -> String {
        format!("{name}-{}", self.id)
    }

    /// A name for a link on the nodes, at most 15 bytes.
    pub fn link_name(&self, name: &str) -> String {
        let stem: String = name.chars().take(6).collect();
        format!("{stem}-{}", self.id)
    }

    /// A space for addresses, which no other trial uses.
    pub fn space(&self) -> String {
        format!("trial-{}", self.id)
    }

    /// Deletes an object without a namespace when the trial is over.
    pub fn delete_at_the_end(&self, object: &str) {
        self.delete_of_namespace_at_the_end("", object);
    }

    /// Deletes an object of another namespace when the trial is over, however it ends.
    pub fn delete_of_namespace_at_the_end(&self, namespace: &str, object: &str) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.push((namespace.to_owned(), object.to_owned()));
    }

    /// `kubectl` in the trial's namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[&["-n", &self.namespace][..], arguments].concat()).await
    }

    /// `kubectl apply -f -` in the trial's namespace.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.cluster.kubectl_with_input(&["-n", &self.namespace, "apply", "-f", "-"], manifest).await
    }

    /// Runs a command in a pod of the trial's namespace.
    pub async fn exec(&self, pod: &str, command: &[&str]) -> Result<String> {
        self.cluster.exec(&self.namespace, pod, command).await
    }

    /// Waits until all pods with this label are Ready.
    pub async fn wait_ready(&self, selector: &str) -> Result<()> {
        self.kubectl(&["wait", "pods", "-l", selector, "--for=condition=Ready", PATIENTLY]).await?;
        Ok(())
    }

    /// Waits until all replicas of a Deployment are Ready.
    pub async fn wait_rollout(&self, deployment: &str) -> Result<()> {
        self.kubectl(&["rollout", "status", &format!("deployment/{deployment}"), PATIENTLY]).await?;
        Ok(())
    }

    /// One field of an object, by JSON path.
    pub async fn field(&self, object: &str, path: &str) -> Result<String> {
        self.kubectl(&["get", object, "-o", &format!("jsonpath={{{path}}}")]).await
    }

    /// Adds to an error what the cluster looks like, and where the diagnosis is.
    async fn explain(&self, outcome: Result<()>) -> Result<()> {
        let Err(error) = outcome else { return Ok(()) };
        let outline = self.cluster.outline().await;
        let diagnosis = match self.cluster.diagnose(self.name).await {
            Ok(folder) => format!("see {}", folder.display()),
            Err(failed) => format!("and no diagnosis: {failed:#}"),
        };
        Err(anyhow!("{error:#}\n{outline}  {diagnosis}"))
    }

    async fn clean(&self) -> Result<()> {
        let arguments = ["delete", "namespace", &self.namespace, "--wait=false"];
        self.cluster.kubectl(&arguments).await.context("cleaning up")?;
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for (namespace, object) in made {
            let arguments = ["-n", &namespace, "delete", &object, "--ignore-not-found", "--wait=false"];
            self.cluster.kubectl(&arguments).await.context("cleaning up")?;
        }
        Ok(())
    }
}
