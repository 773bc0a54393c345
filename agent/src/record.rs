//! The record's edge: creates, patches and removes `PodNetwork`s of this node, and the pods' condition.
//!
//! At most five writes in a pod's life: record, status, condition, delete, finalizer.

use fairlead_crds::pod_network::Attachment;
use fairlead_crds::{PodNetwork, PodNetworkSpec, PodNetworkStatus, names};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::api::{ApiError, call, merge_patch};
use crate::clock::Clock;
use crate::model::{Pod, PodCondition, PodKey, Record};
use crate::wire::PodObject;

/// How many records are written at once where there are many to write.
const AT_ONCE: usize = 8;

/// Writes records of one node.
#[derive(Clone)]
pub struct Records {
    client: Client,
    node: String,
    clock: Clock,
}

/// An object that is not what its name says.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The name is taken by the record of another pod: eight digits of two UIDs are equal.
    #[error("record {0} belongs to another pod")]
    NameTaken(String),
    /// An object without UID or namespace.
    #[error("the API server answered with an incomplete PodNetwork")]
    Incomplete,
}

impl RecordError {
    /// Whether the write certainly did not happen.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Api(error) => error.is_refusal(),
            Self::NameTaken(_) => true,
            Self::Incomplete => false,
        }
    }
}

impl Records {
    /// Records of the named node.
    pub fn new(client: Client, node: &str, clock: Clock) -> Self {
        Self { client, node: node.to_owned(), clock }
    }

    /// All records of this node.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn list(&self) -> Result<Vec<Record>, ApiError> {
        let mine = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let all: Api<PodNetwork> = Api::all(self.client.clone());
        let list = call("list PodNetworks of this node", all.list(&mine)).await?;
        Ok(list.items.into_iter().filter_map(to_record).collect())
    }

    /// Creates the record of a pod, with its finalizer. One that exists already, because an answer was lost, is adopted.
    ///
    /// # Errors
    /// [`RecordError`]; nothing may be attached then.
    pub async fn create(&self, pod: &Pod, attachments: Vec<Attachment>) -> Result<Record, RecordError> {
        match self.post(&self.object(pod, attachments.clone())).await {
            Ok(created) => to_record(created).ok_or(RecordError::Incomplete),
            Err(error) if error.is_already_exists() => self.adopt(pod, attachments).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn post(&self, object: &PodNetwork) -> Result<PodNetwork, ApiError> {
        let api =
            Api::namespaced(self.client.clone(), object.metadata.namespace.as_deref().unwrap_or_default());
        call("create PodNetwork", api.create(&PostParams::default(), object)).await
    }

    async fn adopt(&self, pod: &Pod, attachments: Vec<Attachment>) -> Result<Record, RecordError> {
        let name = names::pod_network(&pod.key.name, &pod.key.uid);
        let found = call("get PodNetwork", self.api(&pod.key).get(&name)).await?;
        let record = to_record(found).ok_or(RecordError::Incomplete)?;
        if record.key.uid != pod.key.uid {
            return Err(RecordError::NameTaken(name));
        }
        self.set_attachments(&record, attachments).await
    }

    /// The record of a pod, if the API server has it.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn find(&self, key: &PodKey) -> Result<Option<Record>, ApiError> {
        let name = names::pod_network(&key.name, &key.uid);
        let found = call("get PodNetwork", self.api(key).get_opt(&name)).await?;
        Ok(found.and_then(to_record).filter(|record| record.key.uid == key.uid))
    }

    fn object(&self, pod: &Pod, attachments: Vec<Attachment>) -> PodNetwork {
        let PodKey { namespace, name, uid } = pod.key.clone();
        let labels =
            [(names::POD_LABEL, names::pod_label(&name)), (names::NODE_LABEL, names::pod_label(&self.node))];
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.clone(),
            uid: uid.clone(),
            block_owner_deletion: Some(false),
            controller: None,
        };
        PodNetwork {
            metadata: ObjectMeta {
                name: Some(names::pod_network(&name, &uid)),
                namespace: Some(namespace),
                labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
                owner_references: Some(vec![owner]),
                finalizers: Some(vec![names::POD_NETWORK_FINALIZER.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: PodNetworkSpec { pod_name: name, pod_uid: uid, node_name: self.node.clone(), attachments },
            status: None,
        }
    }

    /// Pods that a record exists of, by name and UID of the record: what it costs to find out what is missing here.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn owners(&self) -> Result<Vec<PodKey>, ApiError> {
        let mine = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let all: Api<PodNetwork> = Api::all(self.client.clone());
        let list = call("list PodNetworks of this node", all.list_metadata(&mine)).await?;
        Ok(list.items.into_iter().filter_map(|object| owner(object.metadata)).collect())
    }

    /// Makes every write to these records fail that may be under way: all of them name a version, and each record gets
    /// a new one. What is written shows when that was.
    ///
    /// # Errors
    /// [`ApiError`] of the first that fails; asking again is safe.
    pub async fn take_over(&self, owners: &[PodKey]) -> Result<(), ApiError> {
        let take = |key| async move { self.take_over_one(key).await.map(drop) };
        each(owners.iter().map(take).collect()).await
    }

    async fn take_over_one(&self, key: &PodKey) -> Result<Option<PodNetwork>, ApiError> {
        let at = self.clock.wall().to_string();
        let patch =
            Patch::Merge(json!({ "metadata": { "annotations": { names::TAKEN_OVER_ANNOTATION: at } } }));
        let (api, name) = (self.api(key), names::pod_network(&key.name, &key.uid));
        match call("take over a PodNetwork", api.patch(&name, &PatchParams::default(), &patch)).await {
            Ok(taken) => Ok(Some(taken)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The record of a pod as it is and stays, whatever may be under way; one that holds nothing if there was none.
    ///
    /// # Errors
    /// [`RecordError`]; asking again is safe.
    pub async fn settle(&self, pod: &Pod) -> Result<Record, RecordError> {
        let found = match self.take_over_one(&pod.key).await? {
            Some(taken) => taken,
            None => self.post(&self.object(pod, Vec::new())).await?,
        };
        let record = to_record(found).ok_or(RecordError::Incomplete)?;
        if record.key.uid == pod.key.uid {
            Ok(record)
        } else {
            Err(RecordError::NameTaken(object_name(&record)))
        }
    }

    /// Gives pods a record that holds nothing, so that one which an earlier agent may have under way is refused. A pod
    /// that has one already keeps it; where none can be made, that other one is refused as well.
    ///
    /// # Errors
    /// [`ApiError`] of the first that fails; asking again is safe.
    pub async fn create_empty(&self, pods: &[Pod]) -> Result<(), ApiError> {
        let create = |pod| async move {
            match self.post(&self.object(pod, Vec::new())).await {
                Err(error) if error.is_refusal() => Ok(()),
                other => other.map(drop),
            }
        };
        each(pods.iter().map(create).collect()).await
    }

    /// Writes what a record holds, based on its last version: a request of ours that comes late undoes nothing.
    ///
    /// # Errors
    /// [`RecordError`]; nothing may be attached then.
    pub async fn set_attachments(
        &self,
        record: &Record,
        attachments: Vec<Attachment>,
    ) -> Result<Record, RecordError> {
        if record.spec.attachments == attachments {
            return Ok(record.clone());
        }
        match self.patch_attachments(record, &record.version, &attachments).await {
            Err(error) if error.is_conflict() => {
                let (_, version) = self.again(record, error).await?;
                to_record(self.patch_attachments(record, &version, &attachments).await?)
            }
            patched => to_record(patched?),
        }
        .ok_or(RecordError::Incomplete)
    }

    /// The record as it is after a conflict, and its version; the conflict if another record has its name.
    async fn again(&self, record: &Record, conflict: ApiError) -> Result<(PodNetwork, String), ApiError> {
        let found = call("get PodNetwork", self.api(&record.key).get(&object_name(record))).await?;
        let version = found.resource_version().filter(|_| found.uid().as_ref() == Some(&record.uid));
        version.map(|version| (found, version)).ok_or(conflict)
    }

    async fn patch_attachments(
        &self,
        record: &Record,
        version: &str,
        attachments: &[Attachment],
    ) -> Result<PodNetwork, ApiError> {
        let metadata = json!({ "uid": record.uid, "resourceVersion": version });
        let patch = Patch::Merge(json!({ "metadata": metadata, "spec": { "attachments": attachments } }));
        let (api, name) = (self.api(&record.key), object_name(record));
        call("patch PodNetwork", api.patch(&name, &PatchParams::default(), &patch)).await
    }

    /// Writes a record's status if it changed; its new version then. A write that arrives late, after a newer one, is
    /// refused by its version.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn set_status(
        &self,
        record: &Record,
        status: &PodNetworkStatus,
    ) -> Result<Option<String>, ApiError> {
        let Some(patch) = change(&record.status, status) else { return Ok(None) };
        match self.patch_status(record, &record.version, &patch).await {
            Err(error) if error.is_conflict() => {
                let (found, version) = self.again(record, error).await?;
                match change(&found.status.unwrap_or_default(), status) {
                    Some(patch) => self.patch_status(record, &version, &patch).await,
                    None => Ok(Some(version)),
                }
            }
            patched => patched,
        }
    }

    async fn patch_status(
        &self,
        record: &Record,
        version: &str,
        change: &Value,
    ) -> Result<Option<String>, ApiError> {
        let metadata = json!({ "uid": record.uid, "resourceVersion": version });
        let patch = Patch::Merge(json!({ "metadata": metadata, "status": change }));
        let (api, name) = (self.api(&record.key), object_name(record));
        let patched =
            call("patch PodNetwork status", api.patch_status(&name, &PatchParams::default(), &patch)).await?;
        Ok(patched.resource_version())
    }

    /// Writes our condition on a pod. A pod that is gone, or another of the same name, is success.
    ///
    /// While its containers start, the kubelet does not queue a pod for a condition that changed: what it does next may
    /// still be done with the pod as it was, without the condition, and Ready waits for its next look at the node, up to
    /// a second. For an annotation it queues the pod anew.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn set_condition(
        &self,
        pod: &Pod,
        condition: &PodCondition,
        flipped: bool,
    ) -> Result<(), ApiError> {
        let mut value = json!({
            "type": names::NETWORK_READY, "status": if condition.ready { "True" } else { "False" },
            "reason": condition.reason, "message": condition.message,
        });
        let mut metadata = json!({ "uid": pod.key.uid });
        if flipped {
            let now = self.clock.wall();
            let rounded = |unit| now.round(unit).unwrap_or(now).to_string();
            value["lastTransitionTime"] = json!(rounded(jiff::Unit::Second));
            if condition.ready && pod.nri {
                metadata["annotations"] =
                    json!({ names::ATTACHED_AT_ANNOTATION: rounded(jiff::Unit::Millisecond) });
            }
        }
        let patch = json!({ "metadata": metadata, "status": { "conditions": [value] } });
        let pods: Api<PodObject> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let patch = Patch::Strategic(patch);
        match call(
            "patch the pod's condition",
            pods.patch_status(&pod.key.name, &PatchParams::default(), &patch),
        )
        .await
        {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    /// Asks the controller to evict the pod of a record. A record that is gone is success.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn ask_for_eviction(&self, record: &Record) -> Result<(), ApiError> {
        let labels = json!({ names::EVICT_LABEL: names::EVICT_UNHELD });
        let patch = Patch::Merge(json!({ "metadata": { "uid": record.uid, "labels": labels } }));
        let (api, name) = (self.api(&record.key), object_name(record));
        match call("label a PodNetwork", api.patch(&name, &PatchParams::default(), &patch)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes a record and removes its finalizer. A record that is gone is success.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn remove(&self, record: &Record) -> Result<(), ApiError> {
        let this = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(record.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        match call("delete PodNetwork", self.api(&record.key).delete(&object_name(record), &this)).await {
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        self.drop_finalizer(record).await
    }

    /// Removes our finalizer from a record without deleting it. A record that is gone is success.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn drop_finalizer(&self, record: &Record) -> Result<(), ApiError> {
        let at = "/metadata/finalizers/0";
        let first = json!([
            { "op": "test", "path": "/metadata/uid", "value": record.uid },
            { "op": "test", "path": at, "value": names::POD_NETWORK_FINALIZER },
            { "op": "remove", "path": at },
        ]);
        match self.patch_json(record, first).await {
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) if error.is_refusal() => self.drop_finalizer_slowly(record).await,
            other => other,
        }
    }

    /// Someone else's finalizer stands in front of ours: look where ours is.
    async fn drop_finalizer_slowly(&self, record: &Record) -> Result<(), ApiError> {
        let found = match call("get PodNetwork", self.api(&record.key).get(&object_name(record))).await {
            Err(error) if error.is_not_found() => return Ok(()),
            found => found?,
        };
        if found.uid().as_deref() != Some(&record.uid) {
            return Ok(());
        }
        let Some(index) = found.finalizers().iter().position(|name| name == names::POD_NETWORK_FINALIZER)
        else {
            return Ok(());
        };
        let at = format!("/metadata/finalizers/{index}");
        let patch = json!([
            { "op": "test", "path": at, "value": names::POD_NETWORK_FINALIZER },
            { "op": "remove", "path": at },
        ]);
        self.patch_json(record, patch).await
    }

    async fn patch_json(&self, record: &Record, patch: Value) -> Result<(), ApiError> {
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap_or_default());
        let (api, name) = (self.api(&record.key), object_name(record));
        call("remove the finalizer of a PodNetwork", api.patch(&name, &PatchParams::default(), &patch))
            .await
            .map(drop)
    }

    fn api(&self, key: &PodKey) -> Api<PodNetwork> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }
}

/// Some side by side; the first error.
async fn each<F: Future<Output = Result<(), ApiError>>>(calls: Vec<F>) -> Result<(), ApiError> {
    stream::iter(calls).buffer_unordered(AT_ONCE).try_collect().await
}

/// The merge patch from one status to another; `None` if they are the same.
fn change(before: &PodNetworkStatus, after: &PodNetworkStatus) -> Option<Value> {
    let value = |status: &PodNetworkStatus| serde_json::to_value(status).unwrap_or(Value::Null);
    merge_patch(&value(before), &value(after))
}

fn object_name(record: &Record) -> String {
    names::pod_network(&record.key.name, &record.key.uid)
}

/// The pod that a record belongs to, as its metadata say.
fn owner(metadata: ObjectMeta) -> Option<PodKey> {
    let pod = metadata.owner_references?.into_iter().find(|owner| owner.kind == "Pod")?;
    Some(PodKey { namespace: metadata.namespace?, name: pod.name, uid: pod.uid })
}

fn to_record(object: PodNetwork) -> Option<Record> {
    let key = PodKey {
        namespace: object.metadata.namespace?,
        name: object.spec.pod_name.clone(),
        uid: object.spec.pod_uid.clone(),
    };
    Some(Record {
        key,
        uid: object.metadata.uid?,
        version: object.metadata.resource_version?,
        generation: object.metadata.generation,
        spec: object.spec,
        status: object.status.unwrap_or_default(),
    })
}
