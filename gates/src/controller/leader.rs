//! The leader Lease: taking, renewing and releasing it, and running the leader's work for exactly one term.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use fairlead_crds::names;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::api::{CallError, Caller, bounded};
use super::election::{self, Move, RENEW, Watched};
use super::metrics::{Kind, Verb};

/// How long the leader's tasks may take to end before they are dropped.
const STOP: Duration = Duration::from_secs(6);

/// One candidate.
pub struct Elector {
    caller: Caller,
    leases: Api<Lease>,
    me: String,
    watched: Watched,
}

impl Elector {
    /// A candidate of that name.
    pub fn new(caller: Caller, me: String) -> Self {
        let leases = Api::namespaced(caller.client.clone(), names::INSTALL_NAMESPACE);
        Self { caller, leases, me, watched: Watched::default() }
    }

    /// Runs `work` whenever this candidate leads, until the token ends; then releases the Lease.
    pub async fn run<F: Future<Output = ()>>(
        mut self,
        token: CancellationToken,
        work: impl Fn(CancellationToken) -> F,
    ) {
        while !token.is_cancelled() {
            if self.try_lead().await {
                info!(identity = self.me, "leading");
                self.caller.metrics.leader.set(1);
                self.hold(&token, &work).await;
                self.caller.metrics.leader.set(0);
                self.caller.leadership.set(None);
                info!(identity = self.me, "not leading any more");
            } else {
                pause(RENEW, &token).await;
            }
        }
        self.release().await;
    }

    /// Renews while `work` runs; ends `work` when the term cannot be renewed.
    async fn hold<F: Future<Output = ()>>(
        &mut self,
        token: &CancellationToken,
        work: impl Fn(CancellationToken) -> F,
    ) {
        let term = token.child_token();
        let mut work = pin!(work(term.clone()));
        loop {
            tokio::select! {
                () = &mut work => return,
                () = pause(RENEW, &term) => {}
            }
            if term.is_cancelled() {
                break;
            }
            let still = tokio::select! {
                () = &mut work => return,
                still = self.try_lead() => still,
            };
            if !still && !self.caller.leadership.is_fresh() {
                term.cancel();
            }
        }
        if timeout(STOP, work).await.is_err() {
            warn!("the leader's tasks did not end in time and were dropped");
        }
    }

    /// Takes or renews the Lease if it may; says whether this candidate leads.
    async fn try_lead(&mut self) -> bool {
        let sent = Instant::now();
        match self.attempt().await {
            Ok(true) => {
                self.caller.leadership.set(Some(sent));
                true
            }
            Ok(false) => {
                self.caller.leadership.set(None);
                false
            }
            Err(error) if error.is_conflict() => {
                debug!(%error, "another candidate was faster");
                false
            }
            Err(error) => {
                warn!(error = %error, "leader Lease cannot be read or written");
                false
            }
        }
    }

    async fn attempt(&mut self) -> Result<bool, CallError> {
        let Some(lease) =
            self.caller.read("get the leader Lease", self.leases.get_opt(names::CONTROLLER)).await?
        else {
            return self.create().await.map(|()| true);
        };
        let (spec, version) =
            (lease.spec.unwrap_or_default(), lease.metadata.resource_version.unwrap_or_default());
        let taken = match self.watched.decide(&spec, &version, &self.me, Instant::now()) {
            Move::Wait => return Ok(false),
            Move::Take => true,
            Move::Renew => false,
        };
        let now = MicroTime(Timestamp::now());
        self.write(&version, &election::held_by(&self.me, &spec, taken, &now)).await.map(|()| true)
    }

    async fn create(&self) -> Result<(), CallError> {
        let spec = election::held_by(&self.me, &LeaseSpec::default(), true, &MicroTime(Timestamp::now()));
        let metadata = ObjectMeta { name: Some(names::CONTROLLER.to_owned()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(spec) };
        self.caller.metrics.count(Verb::Create, Kind::Lease);
        bounded(|| "create the leader Lease".to_owned(), self.leases.create(&PostParams::default(), &lease))
            .await?;
        Ok(())
    }

    async fn write(&self, version: &str, spec: &LeaseSpec) -> Result<(), CallError> {
        let patch = Patch::Merge(json!({ "metadata": { "resourceVersion": version }, "spec": spec }));
        self.caller.metrics.count(Verb::Patch, Kind::Lease);
        let params = PatchParams::default();
        let call = self.leases.patch(names::CONTROLLER, &params, &patch);
        bounded(|| "write the leader Lease".to_owned(), call).await?;
        Ok(())
    }

    /// Lets another candidate lead at once.
    async fn release(&self) {
        let read =
            bounded(|| "get the leader Lease".to_owned(), self.leases.get_opt(names::CONTROLLER)).await;
        let Ok(Some(Lease { metadata, spec: Some(spec) })) = read else { return };
        if spec.holder_identity.as_deref() != Some(&self.me) {
            return;
        }
        let released = LeaseSpec { holder_identity: Some(String::new()), ..spec };
        if let Err(error) =
            self.write(metadata.resource_version.as_deref().unwrap_or_default(), &released).await
        {
            warn!(%error, "leader Lease was not released; it runs out by itself");
        }
    }
}

async fn pause(time: Duration, token: &CancellationToken) {
    tokio::select! {
        () = sleep(time) => {}
        () = token.cancelled() => {}
    }
}

#[cfg(test)]
mod tests;
