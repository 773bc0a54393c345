//! Pods as the API server sends them, without what the agent does not read: four fifths of a pod's JSON are skipped and
//! never kept. Every update of every pod of the node comes by here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// A Pod.
#[derive(Debug, Clone, Deserialize)]
pub struct PodObject {
    /// Of its metadata: name, namespace, UID, version, annotations, owners and the time of its deletion.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// What it is made of.
    pub spec: Option<PodSpec>,
    /// How it is.
    pub status: Option<PodStatus>,
}

/// Of a Pod's spec.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Whether it uses the node's own network.
    pub host_network: Option<bool>,
    /// Its runtime class.
    pub runtime_class_name: Option<String>,
    /// In the order in which they start.
    pub init_containers: Option<Vec<Container>>,
    /// In the order in which they start.
    pub containers: Option<Vec<Container>>,
}

/// Of a container.
#[derive(Debug, Clone, Deserialize)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// What it needs.
    pub resources: Option<Resources>,
}

/// Of what a container needs.
#[derive(Debug, Clone, Deserialize)]
pub struct Resources {
    /// What the scheduler counts, by the resource's name.
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// Of a Pod's status.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PodStatus {
    /// Where it is in its life.
    pub phase: Option<String>,
    /// By type.
    pub conditions: Option<Vec<Condition>>,
}

/// Of a condition.
#[derive(Debug, Clone, Deserialize)]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word.
    pub reason: Option<String>,
    /// One sentence.
    pub message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    deletion_timestamp: Option<Time>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let read = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        annotations: read.annotations,
        owner_references: read.owner_references,
        deletion_timestamp: read.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

impl Resource for PodObject {
    type DynamicType = ();
    type Scope = <core::Pod as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        core::Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        core::Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        core::Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        core::Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_asked_for_where_pods_are() {
        assert_eq!(PodObject::url_path(&(), Some("ns")), core::Pod::url_path(&(), Some("ns")));
        assert_eq!(PodObject::api_version(&()), core::Pod::api_version(&()));
    }

    #[test]
    fn what_is_not_read_is_skipped_whatever_it_is() {
        let pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "managedFields": [{ "fieldsV1": { "f:x": {} } }],
                "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": { "a": "b" }, "annotations": { "x": "y" },
            },
            "spec": {
                "volumes": [{ "name": "token", "projected": { "sources": [{}] } }],
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "10m" } }, "image": "i" }],
            },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "observedGeneration": 1 }] },
        });
        let event = json!({ "type": "MODIFIED", "object": pod }).to_string();
        let Ok(WatchEvent::Modified(seen)) = serde_json::from_str::<WatchEvent<PodObject>>(&event) else {
            panic!("no event: {event}");
        };
        assert_eq!(seen.metadata.resource_version.as_deref(), Some("7"));
        assert!(seen.metadata.deletion_timestamp.is_some() && seen.metadata.managed_fields.is_none());
        assert_eq!(seen.spec.unwrap().containers.unwrap()[0].name, "c");
        assert_eq!(seen.status.unwrap().phase.as_deref(), Some("Running"));
        let list = json!({ "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": "9" }, "items": [pod] });
        let list: ObjectList<PodObject> = serde_json::from_str(&list.to_string()).unwrap();
        assert_eq!(list.items[0].metadata.uid.as_deref(), Some("u"));
    }

    #[test]
    fn a_pod_without_a_status_is_one() {
        let pod: PodObject = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
        assert!(pod.status.is_none() && pod.spec.unwrap().containers.is_none());
    }
}
