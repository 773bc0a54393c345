//! The agent's Lease: an agent allocates, attaches and marks only while it is fresh.
//!
//! One agent per node is ensured by an abstract socket in the node's own network namespace; the Lease
//! tells the rest of the cluster that the agent lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fairlead_crds::names;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1 as coordination;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::{ApiError, call};
use crate::clock::Clock;

/// How long a Lease is valid after a renewal, in seconds.
pub const DURATION: u64 = 40;
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Kept clear of the end, so that a write that is under way lands before others may act.
const MARGIN: u64 = 12;

/// The Lease of this agent.
pub struct Lease {
    client: Client,
    node: String,
    holder: String,
    clock: Clock,
    started: Instant,
    /// Seconds after `started` until which the Lease is fresh; monotonic, so that a clock step changes nothing.
    fresh_until: AtomicU64,
    lapsed: AtomicBool,
}

impl Lease {
    /// The Lease of the named node, held by the agent pod with the given UID.
    pub fn new(client: Client, node: &str, holder: &str, clock: Clock) -> Arc<Self> {
        let (fresh_until, lapsed) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self {
            client,
            node: node.to_owned(),
            holder: holder.to_owned(),
            clock,
            started: Instant::now(),
            fresh_until,
            lapsed,
        })
    }

    /// Whether the agent may allocate, attach and mark.
    pub fn is_fresh(&self) -> bool {
        self.started.elapsed().as_secs() < self.fresh_until.load(Ordering::Acquire)
            && !self.lapsed.load(Ordering::Acquire)
    }

    /// Whether an earlier agent may have left requests under way: the Lease does not say that it stopped.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn is_left_open(&self) -> Result<bool, ApiError> {
        let lease = call("read the agent's Lease", self.api().get_opt(&self.node)).await?;
        Ok(!lease.is_some_and(|lease| lease.annotations().contains_key(names::STOPPED_ANNOTATION)))
    }

    /// Says that nothing of this agent is under way any more, unless another one has the Lease already.
    ///
    /// # Errors
    /// [`ApiError`], also if the Lease was written meanwhile; the next agent then takes over what may be under way.
    pub async fn close(&self) -> Result<(), ApiError> {
        let api = self.api();
        let lease = call("read the agent's Lease", api.get(&self.node)).await?;
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(&self.holder) {
            return Ok(());
        }
        let stopped = json!({ names::STOPPED_ANNOTATION: micros(self.clock.wall()) });
        // With its version: a request that is carried out late must not speak for the next agent.
        let metadata = json!({ "resourceVersion": lease.resource_version(), "annotations": stopped });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        call("close the agent's Lease", api.patch(&self.node, &PatchParams::default(), &patch)).await?;
        Ok(())
    }

    /// UID of the pod of the agent that renewed the Lease last, which may be this one.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn holder(&self) -> Result<Option<String>, ApiError> {
        let lease = call("read the agent's Lease", self.api().get_opt(&self.node)).await?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity))
    }

    /// Asks the agent that holds the Lease to hand over to this one. It sees that when it renews.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn ask(&self) -> Result<(), ApiError> {
        let preferred = json!({ names::PREFERRED_HOLDER_ANNOTATION: self.holder });
        let patch = Patch::Merge(json!({ "metadata": { "annotations": preferred } }));
        let api = self.api();
        call(
            "ask for the Lease of this node's agent",
            api.patch(&self.node, &PatchParams::default(), &patch),
        )
        .await?;
        Ok(())
    }

    fn api(&self) -> Api<coordination::Lease> {
        Api::namespaced(self.client.clone(), names::INSTALL_NAMESPACE)
    }

    /// Takes the Lease, whoever held it; nobody has asked this agent for it yet.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn take(&self) -> Result<(), ApiError> {
        let open = json!({ names::STOPPED_ANNOTATION: null, names::PREFERRED_HOLDER_ANNOTATION: null });
        self.write(&open).await.map(drop)
    }

    /// Renews the Lease once; the UID of the pod of an agent that asks for it, if one does.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn renew(&self) -> Result<Option<String>, ApiError> {
        let mut lease = self.write(&json!({ names::STOPPED_ANNOTATION: null })).await?;
        let preferred = lease.annotations_mut().remove(names::PREFERRED_HOLDER_ANNOTATION);
        Ok(preferred.filter(|uid| *uid != self.holder))
    }

    async fn write(&self, annotations: &Value) -> Result<coordination::Lease, ApiError> {
        let asked = self.started.elapsed().as_secs();
        let now = self.clock.wall();
        let spec = json!({ "holderIdentity": self.holder, "leaseDurationSeconds": DURATION, "renewTime": micros(now) });
        let api = self.api();
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations }, "spec": spec }));
        let lease = match call(
            "renew the agent's Lease",
            api.patch(&self.node, &PatchParams::default(), &patch),
        )
        .await
        {
            Err(error) if error.is_not_found() => {
                let lease = json!({ "metadata": { "name": self.node, "namespace": names::INSTALL_NAMESPACE }, "spec": spec });
                let lease = serde_json::from_value(lease).unwrap_or_default();
                call("create the agent's Lease", api.create(&PostParams::default(), &lease)).await?
            }
            written => written?,
        };
        // Counted from before the request: the server's clock for it started no earlier.
        self.fresh_until.store(asked + DURATION - MARGIN, Ordering::Release);
        Ok(lease)
    }

    /// Renews until cancelled. After a lapse `reload` runs before the Lease counts as fresh again: blocks may have gone.
    /// `asked` hears who asks for the Lease, with every renewal.
    pub async fn run<F>(&self, cancel: CancellationToken, reload: impl Fn() -> F, asked: impl Fn(&str))
    where
        F: Future<Output = Result<(), ApiError>>,
    {
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RENEW_EVERY) => {}
            }
            if self.started.elapsed().as_secs() >= self.fresh_until.load(Ordering::Acquire) {
                self.lapsed.store(true, Ordering::Release);
            }
            match self.renew().await {
                Ok(None) => {}
                Ok(Some(successor)) => asked(&successor),
                Err(error) => {
                    warn!(%error, "the agent's Lease is not renewed; nothing is attached once it lapses");
                    continue;
                }
            }
            if self.lapsed.load(Ordering::Acquire) {
                match reload().await {
                    Ok(()) => self.lapsed.store(false, Ordering::Release),
                    Err(error) => warn!(%error, "cannot read this node's blocks after the Lease had lapsed"),
                }
                info!(fresh = self.is_fresh(), "the agent's Lease is renewed after a lapse");
            }
        }
    }
}

/// A time as `metav1.MicroTime` wants it.
fn micros(time: Timestamp) -> String {
    time.round(jiff::Unit::Microsecond).map_or_else(|_| time.to_string(), |time| format!("{time:.6}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use http_body_util::BodyExt;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An API server that keeps one Lease.
    fn server() -> Client {
        let kept = Arc::new(Mutex::new(json!({ "metadata": { "name": "node1" } })));
        let service = tower::service_fn(move |request: Request<Body>| {
            let kept = Arc::clone(&kept);
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if let Ok(patch) = serde_json::from_slice::<Value>(&body) {
                    json_patch::merge(&mut kept, &patch);
                }
                Ok::<_, tower::BoxError>(Response::new(Body::from(kept.to_string().into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn only_a_closed_lease_says_that_nothing_is_under_way() {
        let lease = Lease::new(server(), "node1", "agent", Clock::system());
        assert!(lease.is_left_open().await.unwrap(), "who was here before did not know how to close it");
        lease.take().await.unwrap();
        assert!(lease.is_left_open().await.unwrap(), "as after a crash");
        lease.close().await.unwrap();
        assert!(!lease.is_left_open().await.unwrap());
        lease.take().await.unwrap();
        assert!(lease.is_left_open().await.unwrap(), "the next agent is at work");
    }

    #[tokio::test]
    async fn an_agent_hears_who_asks_for_its_lease_until_that_one_has_it() {
        let client = server();
        let [old, new] = ["old", "new"].map(|uid| Lease::new(client.clone(), "node1", uid, Clock::system()));
        old.take().await.unwrap();
        assert_eq!(old.renew().await.unwrap(), None);
        assert_eq!(new.holder().await.unwrap().as_deref(), Some("old"));
        new.ask().await.unwrap();
        assert_eq!(old.renew().await.unwrap().as_deref(), Some("new"));
        assert_eq!(old.renew().await.unwrap().as_deref(), Some("new"), "it goes on asking");
        new.take().await.unwrap();
        assert_eq!(new.renew().await.unwrap(), None);
        assert_eq!(new.holder().await.unwrap().as_deref(), Some("new"));
        new.ask().await.unwrap();
        assert_eq!(new.renew().await.unwrap(), None, "a late request of its own is none");
        old.close().await.unwrap();
        assert!(new.is_left_open().await.unwrap(), "an agent speaks for itself only");
    }

    #[test]
    fn a_renewal_time_has_six_digits() {
        assert_eq!(micros(Timestamp::from_nanosecond(1_500_000_000).unwrap()), "1970-01-01T00:00:01.500000Z");
    }
}
