//! Calls to the API server: every one under a deadline, none retried behind our back, writes counted.

use std::future::Future;
use std::time::Duration;

use kube::{Client, Config};

/// Longest time a single call may take.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Longest time after its caller gave up that a write may still be carried out: an API server ends a request after a minute.
pub const LATE: Duration = Duration::from_secs(70);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No answer within [`DEADLINE`]: whether a write happened is unknown.
    #[error("cannot {0}: no answer from the API server in time")]
    Deadline(String),
    /// The API server answered with an error, or could not be reached.
    #[error("cannot {action}: {source}")]
    Kube {
        /// What was attempted.
        action: String,
        /// The answer.
        source: Box<kube::Error>,
    },
}

impl ApiError {
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Deadline(_) => None,
        }
    }

    /// Whether the API server said that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// Whether the API server said that the object exists.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_already_exists)
    }

    /// Whether a `test` of a JSON patch failed: the object is not what the patch was made for.
    pub fn is_failed_test(&self) -> bool {
        self.status().is_some_and(|status| status.code == 422)
    }

    /// Whether the object is not the one, or not the version, that a write was meant for.
    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_conflict)
    }

    /// Whether the API server looked at a write and refused it: it certainly did not happen.
    pub fn is_refusal(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status.code) && status.code != 429)
    }
}

/// A client that leaves retries to us: its own would hide a call for minutes.
///
/// # Errors
/// If no configuration is found, neither in-cluster nor `KUBECONFIG`.
pub async fn client() -> anyhow::Result<Client> {
    let mut config = Config::infer().await?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(Client::try_from(config)?)
}

/// Runs one call under [`DEADLINE`]; `action` says what was attempted, for people.
///
/// # Errors
/// [`ApiError`].
pub async fn call<T>(
    action: &str,
    future: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(ApiError::Kube { action: action.to_owned(), source: Box::new(source) }),
        Err(_) => Err(ApiError::Deadline(action.to_owned())),
    }
}

/// The smallest JSON merge patch that turns `before` into `after`: changed keys of objects, `null` for removed ones.
/// `None` if there is nothing to change.
pub fn merge_patch(before: &serde_json::Value, after: &serde_json::Value) -> Option<serde_json::Value> {
    use serde_json::Value::{Null, Object};
    let (Object(old), Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = serde_json::Map::new();
    for (key, value) in new {
        if let Some(change) = merge_patch(old.get(key).unwrap_or(&Null), value) {
            patch.insert(key.clone(), change);
        }
    }
    patch.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Null)));
    (!patch.is_empty()).then_some(Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_has_only_what_changed() {
        let before = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "e": [1] });
        let after = json!({ "a": 1, "b": { "c": 3 }, "e": [1, 2], "f": {} });
        assert_eq!(
            merge_patch(&before, &after),
            Some(json!({ "b": { "c": 3, "d": null }, "e": [1, 2], "f": {} }))
        );
        assert_eq!(merge_patch(&after, &after), None);
    }
}
