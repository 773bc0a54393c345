//! The API server as a judge: what it says to an object, without storing it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fairlead_crds::names;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::response::StatusCause,
};
use serde_json::{Value, json};

/// Keeps an object until the trial is over, whoever thinks that it is left over.
const FINALIZER: &str = "trial.fairlead.dev/keep";

/// One of the kinds, with its objects of one namespace if it has any.
#[derive(Clone)]
pub struct Server {
    api: Api<DynamicObject>,
    resource: ApiResource,
}

/// What the server says.
pub enum Answer {
    /// It would be stored like this. An `Admission` that is there already is not given back.
    Accepted(Value),
    /// Why not, by field.
    Refused(Vec<StatusCause>),
}

impl Server {
    /// Writes as the controller, which the policies of an installed fairlead let write every kind.
    pub async fn new(kubeconfig: &Path, kind: &str, namespace: &str) -> Result<Self> {
        let mut file = Kubeconfig::read_from(kubeconfig)?;
        for auth in file.auth_infos.iter_mut().filter_map(|user| user.auth_info.as_mut()) {
            let controller =
                format!("system:serviceaccount:{}:{}", names::INSTALL_NAMESPACE, names::CONTROLLER);
            auth.impersonate = Some(controller);
            auth.impersonate_groups = Some(vec!["system:masters".to_owned()]);
        }
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        let client = Client::try_from(config)?;
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(names::GROUP, names::API_VERSION, kind),
            &format!("{}s", kind.to_lowercase()),
        );
        let api = match kind {
            "PodNetwork" => Api::namespaced_with(client, namespace, &resource),
            _ => Api::all_with(client, &resource),
        };
        Ok(Self { api, resource })
    }

    /// A manifest of the kind.
    pub fn manifest(&self, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": { "name": name },
            "spec": spec,
        })
    }

    /// Asks whether the object could be created.
    pub async fn create(&self, object: &Value) -> Result<Answer> {
        // Sent as it is: a typed object could not hold what is wrong with it.
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        let url = self.api.resource_url();
        let body = serde_json::to_vec(object)?;
        let request = kube::core::Request::new(url).create(&parameters, body)?;
        judge(self.api.clone().into_client().request(request).await)
    }

    /// Asks whether an object that exists could be changed so.
    pub async fn edit(&self, name: &str, operations: &[Value]) -> Result<Answer> {
        let patch = Patch::<Value>::Json(serde_json::from_value(json!(operations))?);
        let edited = self.api.patch(name, &dry_run(), &patch).await;
        judge(edited.map(|object| json!(object)))
    }

    /// Asks whether an object that exists could have this status.
    pub async fn edit_status(&self, name: &str, status: &Value) -> Result<Answer> {
        let operations = json!([{ "op": "add", "path": "/status", "value": status }]);
        let patch = Patch::<Value>::Json(serde_json::from_value(operations)?);
        let edited = self.api.patch_status(name, &dry_run(), &patch).await;
        judge(edited.map(|object| json!(object)))
    }

    /// Really creates an object; [`Server::remove`] ends it.
    pub async fn make(&self, mut object: Value) -> Result<()> {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
        let object: DynamicObject = serde_json::from_value(object)?;
        self.api.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// Ends an object that [`Server::make`] made.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.api.delete(name, &DeleteParams::default()).await?;
        let object = self.api.get(name).await?;
        let rest: Vec<_> = object.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
        let patch = json!({ "metadata": { "finalizers": rest } });
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// The schema of the kind, as the server has it.
    pub async fn schema(&self) -> Result<Value> {
        let name = format!("{}.{}", self.resource.plural, names::GROUP);
        let request =
            http::Request::get(format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"));
        let definition: Value = self.api.clone().into_client().request(request.body(Vec::new())?).await?;
        let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema");
        schema.cloned().with_context(|| format!("{name} has no schema"))
    }

    /// The objects that a field selector selects.
    pub async fn select(&self, fields: &str) -> Result<Vec<String>> {
        let parameters = kube::api::ListParams::default().fields(fields);
        Ok(self.api.list(&parameters).await?.items.iter().map(ResourceExt::name_any).collect())
    }

    /// The columns of a table, in order, those of `-o wide` included.
    pub async fn columns(&self) -> Result<Vec<String>> {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let request = http::Request::get(self.api.resource_url()).header(http::header::ACCEPT, accept);
        let table: Value = self.api.clone().into_client().request(request.body(Vec::new())?).await?;
        let columns = table["columnDefinitions"].as_array().into_iter().flatten();
        Ok(columns.filter_map(|column| column["name"].as_str()).map(str::to_owned).collect())
    }
}

fn dry_run() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

fn judge(answer: kube::Result<Value>) -> Result<Answer> {
    match answer {
        Ok(stored) => Ok(Answer::Accepted(stored)),
        // Looked up after everything else: but for the name that is taken, it could have been created.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Ok(Answer::Accepted(Value::Null))
        }
        Err(kube::Error::Api(status)) if status.reason == "Invalid" => {
            Ok(Answer::Refused(status.details.map(|details| details.causes).unwrap_or_default()))
        }
        Err(error) => Err(error.into()),
    }
}

impl Answer {
    /// What would be stored.
    pub fn accepted(self) -> Result<Value> {
        match self {
            Self::Accepted(stored) => Ok(stored),
            Self::Refused(causes) => bail!("it was refused: {}", listed(&causes)),
        }
    }

    /// Checks that one of the reasons is about this field, and has these words; gives the whole message.
    pub fn refused(self, field: &str, words: &str) -> Result<String> {
        match self {
            Self::Accepted(stored) => bail!("it was accepted: {stored}"),
            Self::Refused(causes) => {
                let said = causes.iter().find(|cause| cause.field == field && cause.message.contains(words));
                let Some(cause) = said else {
                    bail!("nothing says {words:?} of {field}, but: {}", listed(&causes))
                };
                Ok(cause.message.clone())
            }
        }
    }

    /// Checks that none of the reasons, if there are any, is this one.
    pub fn allows(self, field: &str, words: &str) -> Result<()> {
        match self.refused(field, words) {
            Ok(message) => bail!("{field} was refused: {message}"),
            Err(_) => Ok(()),
        }
    }
}

fn listed(causes: &[StatusCause]) -> String {
    let lines: Vec<String> =
        causes.iter().map(|cause| format!("\n  {}: {}", cause.field, cause.message)).collect();
    lines.concat()
}
