//! What the tests of the policies run on: an API server with the manifests, and clients of several users.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config, ResourceExt,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::fixtures::eventually;

/// The parameter of the mutating policies.
pub const ADMISSION: &str = "/apis/fairlead.dev/v1alpha1/admissions/default";

/// Who a client is.
pub enum User<'a> {
    /// Someone that the admin pretends to be.
    Named(&'a str),
    /// The owner of a token.
    Token(&'a str),
}

/// An API server, a namespace on it, and the Networks that are accepted on it.
pub struct Place {
    kubeconfig: Kubeconfig,
    /// The administrator's.
    pub client: Client,
    /// The test's own namespace.
    pub namespace: String,
    /// A Network whose addresses the scheduler counts.
    pub counted: String,
    /// A Network whose addresses nobody counts.
    pub uncounted: String,
}

impl Place {
    /// Opens a kubeconfig file.
    pub async fn new(kubeconfig: &Path, namespace: &str, counted: &str, uncounted: &str) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let client = connect(kubeconfig.clone()).await?;
        let [namespace, counted, uncounted] = [namespace, counted, uncounted].map(str::to_owned);
        Ok(Self { kubeconfig, client, namespace, counted, uncounted })
    }

    /// A client of another user.
    pub async fn client_of(&self, user: User<'_>) -> Result<Client> {
        let mut kubeconfig = self.kubeconfig.clone();
        let auth = match user {
            User::Named(name) => {
                let mut auth = kubeconfig.auth_infos.first().and_then(|user| user.auth_info.clone());
                if let Some(auth) = &mut auth {
                    auth.impersonate = Some(name.to_owned());
                    auth.impersonate_groups = Some(groups(name));
                }
                auth.context("the kubeconfig has no user")?
            }
            User::Token(token) => serde_json::from_value(json!({ "token": token }))?,
        };
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(auth.clone());
        }
        connect(kubeconfig).await
    }

    /// A client of the controller.
    pub async fn controller(&self) -> Result<Client> {
        self.client_of(User::Named(&service_account(names::INSTALL_NAMESPACE, names::CONTROLLER))).await
    }

    /// A client of the agent of a node: a token that is bound to its pod.
    pub async fn agent(&self, node: &str) -> Result<Client> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), names::INSTALL_NAMESPACE);
        let of_node = ListParams::default()
            .labels(&format!("app.kubernetes.io/name={}", names::AGENT))
            .fields(&format!("spec.nodeName={node}"));
        let pod = pods.list(&of_node).await?.items.into_iter().next();
        let pod = pod.with_context(|| format!("no agent on {node}"))?;
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid() });
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "audiences": [], "boundObjectRef": bound },
        });
        let path =
            format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", names::INSTALL_NAMESPACE, names::AGENT);
        let answer = send(&self.client, Verb::Create, &path, &request).await?;
        let token = answer["status"]["token"].as_str().context("no token in the answer")?;
        self.client_of(User::Token(token)).await
    }

    /// Waits until the policies know the two Networks: Admission names them, and pods come back held and counted.
    pub async fn wait_for_admission(&self) -> Result<()> {
        let mut pod = super::hold::asking(&self.counted);
        pod["metadata"]["namespace"] = json!("default");
        let rules = || async {
            let admission = send(&self.client, Verb::Get, ADMISSION, &Value::Null).await?;
            let text = admission["spec"].to_string();
            ensure!(text.contains(&self.counted) && text.contains(&self.uncounted), "{admission:#}");
            let stored = self.try_pod(&pod).await?;
            let gate = &stored["spec"]["initContainers"][0];
            ensure!(gate["resources"]["limits"][names::resource(&self.counted)] == "1", "{stored:#}");
            Ok(())
        };
        eventually("the policies to know the Networks", rules).await
    }

    /// Two numbers below 256 that other tests hardly have, for `10.<them>.0`, separated by a dash.
    pub fn octets(&self) -> String {
        let hash = u32::from_str_radix(&names::hash8(&[&self.namespace]), 16).unwrap_or_default();
        format!("{}-{}", hash % 256, hash / 256 % 256)
    }

    /// The path of the pods of a namespace.
    pub fn pods(namespace: &str) -> String {
        format!("/api/v1/namespaces/{namespace}/pods")
    }

    /// Sends a pod as a dry run, and gives what would have been stored.
    pub async fn try_pod(&self, pod: &Value) -> kube::Result<Value> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
        send(&self.client, Verb::Create, &format!("{}?dryRun=All", Self::pods(namespace)), pod).await
    }

    /// Sets labels of the test's namespace; null removes one.
    pub async fn label_namespace(&self, labels: &Value) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        send(&self.client, Verb::Merge, &path, &json!({ "metadata": { "labels": labels } })).await?;
        Ok(())
    }
}

/// What to do with an object.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    Get,
    Create,
    Merge,
    Strategic,
    Json,
    Delete,
}

/// One request, by path.
pub async fn send(client: &Client, verb: Verb, path: &str, body: &Value) -> kube::Result<Value> {
    let (method, content) = match verb {
        Verb::Get => ("GET", "application/json"),
        Verb::Create => ("POST", "application/json"),
        Verb::Merge => ("PATCH", "application/merge-patch+json"),
        Verb::Strategic => ("PATCH", "application/strategic-merge-patch+json"),
        Verb::Json => ("PATCH", "application/json-patch+json"),
        Verb::Delete => ("DELETE", "application/json"),
    };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request =
        http::Request::builder().method(method).uri(path).header("content-type", content).body(body);
    client.request(request.map_err(kube::Error::HttpError)?).await
}

/// Demands that the API server refused something, and said why with these words.
pub fn refused<T: std::fmt::Debug>(answer: kube::Result<T>, words: &str) -> Result<()> {
    match answer {
        Ok(stored) => bail!("not refused: {stored:?}"),
        Err(kube::Error::Api(status)) => {
            ensure!(matches!(status.code, 403 | 422), "{status:?}");
            ensure!(status.message.contains(words), "{:?} does not contain {words:?}", status.message);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

async fn connect(kubeconfig: Kubeconfig) -> Result<Client> {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // Retries on their own for minutes by default, which hides from a test what the server answered.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

fn service_account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The groups that a service account is in; those of others do not matter here.
fn groups(user: &str) -> Vec<String> {
    let namespace = user.split(':').nth(2).unwrap_or_default();
    [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{namespace}"),
        "system:authenticated".into(),
    ]
    .into()
}
