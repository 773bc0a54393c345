//! The few calls to an API server that installing and uninstalling are made of, each with a limit in time.

use std::{future::Future, path::Path, time::Duration};

use anyhow::{Context, Result, anyhow};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PropagationPolicy,
    },
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// The name under which the API server records what was applied.
const FIELD_MANAGER: &str = "kubectl-fairlead";
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
/// Objects per page of a list.
const PAGE: u32 = 500;

/// A cluster, with an administrator's rights.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    /// Connects as `kubectl` would, unless told otherwise.
    ///
    /// # Errors
    /// When there is no usable kubeconfig.
    pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Self> {
        let options =
            KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let mut config = match kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await,
            None => Config::from_kubeconfig(&options).await,
        }
        .context("cannot read the kubeconfig")?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(CALL_TIMEOUT);
        // What is worth another try is tried by whoever waits; on its own the client tries for minutes.
        config.default_retry = false;
        Ok(Self { client: Client::try_from(config)? })
    }

    /// A cluster that somebody else connected to.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Applies an object on the server's side, taking over fields that others set.
    ///
    /// # Errors
    /// With the object's name, when the API server refuses.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let applied = self.api(object).patch(name(object), &parameters, &Patch::Apply(object)).await;
        applied.with_context(|| format!("cannot apply {}", describe(object)))?;
        Ok(())
    }

    /// Deletes an object; one that is not there is a success.
    ///
    /// # Errors
    /// With the object's name, when the API server refuses.
    pub async fn delete(&self, object: &Value) -> Result<()> {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        match self.api(object).delete(name(object), &parameters).await {
            Err(error) if !is_missing(&error) => {
                Err(error).with_context(|| format!("cannot delete {}", describe(object)))
            }
            _ => Ok(()),
        }
    }

    /// The object as it is on the server, or `None`.
    ///
    /// # Errors
    /// With the object's name, when the API server does not answer.
    pub async fn get(&self, object: &Value) -> Result<Option<DynamicObject>> {
        match self.api(object).get(name(object)).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", describe(object))),
        }
    }

    /// All objects of a kind, page by page; none if the kind does not exist.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn list(
        &self,
        group: &str,
        version: &str,
        kind: &str,
        labels: Option<&str>,
    ) -> Result<Vec<DynamicObject>> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let mut found = Vec::new();
        let mut page =
            ListParams { label_selector: labels.map(str::to_owned), ..ListParams::default().limit(PAGE) };
        loop {
            let answer = match api.list(&page).await {
                Err(error) if is_missing(&error) => return Ok(Vec::new()),
                answer => answer.with_context(|| format!("cannot list objects of kind {kind}"))?,
            };
            found.extend(answer.items);
            match answer.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page.continue_token = Some(token),
                None => return Ok(found),
            }
        }
    }

    /// The endpoint of an object's kind, in its namespace.
    pub fn api(&self, object: &Value) -> Api<DynamicObject> {
        let (group, version) = group_version(object["apiVersion"].as_str().unwrap_or_default());
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

/// Whether the object, or its kind, is not there.
pub fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// `Kind namespace/name`, or `Kind name`.
pub fn describe(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{}", name(object)),
        None => format!("{kind} {}", name(object)),
    }
}

/// `namespace/name`, or the name alone.
pub fn full_name(object: &DynamicObject) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn group_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// What is missing until something is as it should be.
#[derive(Debug)]
pub struct Missing {
    /// For people.
    pub what: String,
    /// How many parts of it are done: as long as that grows, nobody gives up.
    pub done: i64,
}

impl From<String> for Missing {
    fn from(what: String) -> Self {
        Self { what, done: 0 }
    }
}

/// Asks until there is nothing left to wait for. `check` gives what is still missing, or `None`; its errors are
/// tried again too, because an API server takes a moment to forget a policy.
///
/// # Errors
/// After `timeout` without any more parts done, with what was missing last.
pub async fn until<F, Fut, M>(
    timeout: Duration,
    what: &str,
    mut seen: impl FnMut(&str),
    mut check: F,
) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<M>>>,
    M: Into<Missing>,
{
    let (mut deadline, mut done) = (Instant::now() + timeout, 0);
    loop {
        let missing = match check().await {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing.into(),
            Err(error) => Missing::from(format!("{error:#}")),
        };
        if missing.done > done {
            (deadline, done) = (Instant::now() + timeout, missing.done);
        }
        if Instant::now() >= deadline {
            let (seconds, missing) = (timeout.as_secs(), missing.what);
            return Err(anyhow!("gave up after {seconds} s waiting for {what}: {missing}"));
        }
        seen(&missing.what);
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(2);

    /// One part more is done with every third look, up to `most` of ten.
    async fn wait_for_ten(most: i64) -> Result<()> {
        let mut looks = 0;
        let check = || {
            looks += 1;
            let done = most.min(looks / 3);
            async move { Ok((done < 10).then(|| Missing { what: format!("{done} of 10"), done })) }
        };
        until(LONG, "ten parts", |_| {}, check).await
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_gives_up_while_more_is_done() {
        wait_for_ten(10).await.unwrap();
        let error = wait_for_ten(7).await.unwrap_err().to_string();
        assert_eq!(error, "gave up after 2 s waiting for ten parts: 7 of 10");
    }
}
