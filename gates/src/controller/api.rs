//! Every call to the API server: bounded in time, counted, and refused when the leader's term is not fresh.
//!
//! kube's own retries (minutes, any verb) are off: drivers look at everything again, which is the better retry.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::{Client, Config};
use serde::Serialize;
use tokio::time::timeout;

use super::election::DEADLINE;
use super::metrics::{Kind, Metrics, Verb};

/// How long one call may take.
pub const CALL: Duration = Duration::from_secs(5);

/// Why a call did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server answered with an error, or not at all.
    #[error("{what}: {}", brief(source))]
    Failed {
        /// What was attempted.
        what: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// No answer came in time.
    #[error("{what}: no answer within {} s", CALL.as_secs())]
    Timeout {
        /// What was attempted.
        what: String,
    },
    /// Another replica may lead by now.
    #[error("{what}: not attempted, the leader Lease was not renewed in time")]
    NotLeading {
        /// What was to be attempted.
        what: String,
    },
}

impl CallError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Failed { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether someone else changed the object first: a version conflict, or a `test` of a JSON patch that failed.
    pub fn is_conflict(&self) -> bool {
        matches!(self.code(), Some(409 | 422))
    }
}

/// The API server's own sentence, without the status around it.
fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// When the leader's term was renewed last.
#[derive(Debug, Default)]
pub struct Leadership(Mutex<Option<Instant>>);

impl Leadership {
    /// The term was renewed by a request that was sent then; `None` ends it.
    pub fn set(&self, renewed: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
    }

    /// Whether nobody else can lead before a call that starts now is over.
    pub fn is_fresh(&self) -> bool {
        let renewed = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.is_some_and(|at| at.elapsed() < DEADLINE)
    }
}

/// The way to the API server.
#[derive(Clone)]
pub struct Caller {
    /// The client.
    pub client: Client,
    /// Counts writes.
    pub metrics: Arc<Metrics>,
    /// Whether this replica may write.
    pub leadership: Arc<Leadership>,
}

/// The configuration from the pod's service account or a kubeconfig, without kube's own retries.
pub async fn config() -> Result<Config, kube::config::InferConfigError> {
    let mut config = Config::infer().await?;
    config.default_retry = false;
    Ok(config)
}

/// A call of any kind, bounded in time.
pub async fn bounded<T>(
    what: impl FnOnce() -> String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match timeout(CALL, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(CallError::Failed { what: what(), source: Box::new(source) }),
        Err(_) => Err(CallError::Timeout { what: what() }),
    }
}

impl Caller {
    /// A read.
    pub async fn read<T>(
        &self,
        what: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        bounded(|| what.to_owned(), call).await
    }

    /// A write, which only the leader may do.
    pub async fn write<T>(
        &self,
        verb: Verb,
        kind: Kind,
        name: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        let what = || format!("{verb:?} {kind:?} {name}").to_lowercase();
        if !self.leadership.is_fresh() {
            return Err(CallError::NotLeading { what: what() });
        }
        self.metrics.count(verb, kind);
        bounded(what, call).await
    }
}

/// A JSON patch for kube, whose own type cannot be serialised into by a reference.
pub fn json_patch(patch: json_patch::Patch) -> kube::api::Patch<()> {
    kube::api::Patch::Json(patch)
}

/// A merge patch of a status that is refused unless the object is still at this version.
pub fn status_patch(resource_version: &str, status: &impl Serialize) -> kube::api::Patch<serde_json::Value> {
    kube::api::Patch::Merge(
        serde_json::json!({ "metadata": { "resourceVersion": resource_version }, "status": status }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: u16) -> CallError {
        let status = kube::core::Status::failure("m", "r").with_code(code);
        CallError::Failed {
            what: "patch node n".into(),
            source: Box::new(kube::Error::Api(Box::new(status))),
        }
    }

    #[test]
    fn a_failed_test_of_a_json_patch_is_a_conflict() {
        assert!(failed(422).is_conflict() && failed(409).is_conflict() && !failed(404).is_conflict());
        assert!(failed(404).is_not_found());
    }

    #[test]
    fn a_term_that_was_never_renewed_or_ended_is_not_fresh() {
        let leadership = Leadership::default();
        assert!(!leadership.is_fresh());
        leadership.set(Some(Instant::now()));
        assert!(leadership.is_fresh());
        leadership.set(Instant::now().checked_sub(DEADLINE));
        assert!(!leadership.is_fresh());
        leadership.set(None);
        assert!(!leadership.is_fresh());
    }
}
