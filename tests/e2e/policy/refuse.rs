//! What the validating policies refuse tenants and admins.

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use serde_json::{Value, json};

use super::{
    hold::{asking, container, plain},
    place::{ADMISSION, Place, User, Verb, refused, send},
};
use crate::fixtures::eventually;

/// A sandbox that shows its containers no interface added later, and a system without network namespaces.
pub async fn unsupported_runtimes_are_refused_by_name(place: &Place) -> Result<()> {
    let class = format!("kata-{}", place.namespace);
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let manifest = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": class }, "handler": "kata" });
    send(&place.client, Verb::Create, classes, &manifest).await?;
    let mut kata = asking(&place.counted);
    kata["spec"]["runtimeClassName"] = json!(class);
    let answer = eventually("the RuntimeClass to be seen", || async {
        match place.try_pod(&kata).await {
            Err(kube::Error::Api(status)) if status.message.contains("not found") => {
                Err(kube::Error::Api(status).into())
            }
            other => Ok(other),
        }
    })
    .await;
    let mut unasked = plain();
    unasked["spec"]["runtimeClassName"] = json!(class);
    let unrelated = place.try_pod(&unasked).await;
    send(&place.client, Verb::Delete, &format!("{classes}/{class}"), &Value::Null).await?;
    refused(answer?, &format!("RuntimeClass {class}"))?;
    unrelated?;
    let mut windows = asking(&place.counted);
    windows["spec"]["os"] = json!({ "name": "windows" });
    refused(place.try_pod(&windows).await, "Windows")?;
    windows["spec"]["os"] = Value::Null;
    windows["spec"]["nodeSelector"] = json!({ "kubernetes.io/os": "windows" });
    refused(place.try_pod(&windows).await, "Windows")
}

/// The scheduler's count of addresses is taken by a gate only, and only as often as the pod asks. What a container of a
/// held pod brings of it goes, since it may be left from another form of the pod.
pub async fn our_resources_stand_on_the_gate_only(place: &Place) -> Result<()> {
    let ours = json!({ "limits": { names::resource(&place.counted): "7" } });
    for (field, mut pod) in
        [("containers", plain()), ("initContainers", plain()), ("initContainers", asking(&place.counted))]
    {
        pod["spec"][field] = json!([container("thief", &ours)]);
        refused(place.try_pod(&pod).await, "by hand")?;
    }
    let mut pod = asking(&place.counted);
    pod["spec"]["containers"] = json!([container("thief", &ours)]);
    let stored = place.try_pod(&pod).await?;
    ensure!(stored["spec"]["containers"][0]["resources"] == json!({}), "{stored:#}");
    let mut system = plain();
    system["metadata"]["namespace"] = json!("kube-system");
    system["spec"]["containers"] = json!([container("thief", &ours)]);
    refused(place.try_pod(&system).await, "by hand")?;
    // A gate that nothing replaces.
    system["spec"]["containers"] = json!([container("app", &json!({}))]);
    system["spec"]["initContainers"] = json!([container(names::GATE_CONTAINER, &ours)]);
    refused(place.try_pod(&system).await, "not what the pod's annotations")?;
    let mut on_the_node = asking(&place.counted);
    on_the_node["spec"]["hostNetwork"] = json!(true);
    on_the_node["spec"]["initContainers"] = json!([container(names::GATE_CONTAINER, &ours)]);
    refused(place.try_pod(&on_the_node).await, "not what the pod's annotations")
}

/// A held pod keeps its gate and its snapshot, and takes a debug container only once its networks are there.
pub async fn a_held_pod_stays_as_it_was_admitted(place: &Place) -> Result<()> {
    let mut pod = asking(&place.uncounted);
    pod["spec"]["nodeSelector"] = json!({ "no-node": "has-this" });
    let pods = Place::pods(&place.namespace);
    let stored = send(&place.client, Verb::Create, &pods, &pod).await?;
    let path = format!("{pods}/{}", stored["metadata"]["name"].as_str().context("a pod without a name")?);
    let change = |body: Value| send_to(place, Verb::Strategic, path.clone(), body);
    let image = json!({ "spec": { "initContainers": [{ "name": names::GATE_CONTAINER, "image": "busybox:stable" }] } });
    refused(change(image).await, "fairlead-gate cannot be changed")?;
    for value in [json!(r#"[{"name":"forged"}]"#), Value::Null] {
        let annotation = json!({ "metadata": { "annotations": { names::SELECTED_ANNOTATION: value } } });
        refused(change(annotation).await, "written by fairlead only")?;
    }
    change(json!({ "metadata": { "labels": { "free": "yes" }, "annotations": { names::NETWORKS_ANNOTATION: "other" } } })).await?;
    let debug =
        json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": "busybox:stable" }] } });
    let debugger = || send_to(place, Verb::Strategic, format!("{path}/ephemeralcontainers"), debug.clone());
    refused(debugger().await, "would start before the pod's networks")?;
    let ready = json!({ "status": { "conditions": [{ "type": names::NETWORK_READY, "status": "True" }] } });
    send(&place.client, Verb::Strategic, &format!("{path}/status"), &ready).await?;
    debugger().await?;
    send(&place.client, Verb::Delete, &path, &Value::Null).await?;
    Ok(())
}

async fn send_to(place: &Place, verb: Verb, path: String, body: Value) -> kube::Result<Value> {
    send(&place.client, verb, &path, &body).await
}

/// Someone with edit rights in a namespace reads records and writes none; an admin deletes them and no more.
pub async fn nobody_changes_a_record_by_hand(place: &Place) -> Result<()> {
    let agent = place.agent("node1").await?;
    let records = format!("/apis/fairlead.dev/v1alpha1/namespaces/{}/podnetworks", place.namespace);
    let path = format!("{records}/held");
    let record = super::agent::pod_network("held", "node1", true);
    send(&agent, Verb::Create, &records, &record).await?;
    let outcome = attack(place, &records, &path).await;
    let release = json!({ "metadata": { "finalizers": null } });
    send(&agent, Verb::Merge, &path, &release).await?;
    outcome?;
    eventually("the record to go", || async {
        ensure!(send(&place.client, Verb::Get, &path, &Value::Null).await.is_err());
        Ok(())
    })
    .await
}

async fn attack(place: &Place, records: &str, path: &str) -> Result<()> {
    let namespace = &place.namespace;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": "tenant" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "kind": "ServiceAccount", "name": "tenant", "namespace": namespace }],
    });
    let bindings = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings");
    send(&place.client, Verb::Create, &bindings, &binding).await?;
    let tenant = place.client_of(User::Named(&format!("system:serviceaccount:{namespace}:tenant"))).await?;
    eventually("the tenant's rights", || async {
        send(&tenant, Verb::Get, path, &Value::Null).await?;
        Ok(())
    })
    .await?;
    let changes = [
        ("", json!({ "metadata": { "finalizers": null } })),
        ("", json!({ "metadata": { "finalizers": [names::POD_NETWORK_FINALIZER, "mine.example/keep"] } })),
        ("", json!({ "spec": { "attachments": [] } })),
        ("/status", json!({ "status": { "networks": "forged" } })),
    ];
    for (subresource, change) in &changes {
        let path = format!("{path}{subresource}");
        refused(send(&tenant, Verb::Merge, &path, change).await, "cannot patch resource")?;
        refused(send(&place.client, Verb::Merge, &path, change).await, "by fairlead")?;
    }
    refused(send(&tenant, Verb::Delete, path, &Value::Null).await, "cannot delete resource")?;
    let forged = super::agent::pod_network("forged", "node1", false);
    refused(send(&tenant, Verb::Create, records, &forged).await, "cannot create resource")?;
    refused(send(&place.client, Verb::Create, records, &forged).await, "by fairlead only")?;
    let note = json!({ "metadata": { "annotations": { "note": "seen" } } });
    send(&place.client, Verb::Merge, path, &note).await?;
    send(&place.client, Verb::Delete, path, &Value::Null).await?;
    let left = send(&place.client, Verb::Get, path, &Value::Null).await?;
    ensure!(left["metadata"]["deletionTimestamp"].is_string(), "the finalizer keeps the record: {left:#}");
    Ok(())
}

/// The parameter of the mutating policies is the controller's.
pub async fn nobody_changes_the_admission_by_hand(place: &Place) -> Result<()> {
    let change = json!({ "spec": { "attach": [] , "networks": [] } });
    refused(
        send(&place.client, Verb::Merge, ADMISSION, &change).await,
        "written by fairlead-controller only",
    )?;
    refused(
        send(&place.client, Verb::Delete, ADMISSION, &Value::Null).await,
        "written by fairlead-controller only",
    )
}

/// The controller makes pods as a dry run only, and only where its probe lives.
pub async fn the_controller_makes_no_real_pod(place: &Place) -> Result<()> {
    let controller = place.controller().await?;
    let (probe, pods) = (asking(""), Place::pods("default"));
    let stored = send(&controller, Verb::Create, &format!("{pods}?dryRun=All"), &probe).await?;
    ensure!(stored["spec"]["initContainers"][0]["name"] == names::GATE_CONTAINER, "{stored:#}");
    refused(send(&controller, Verb::Create, &pods, &probe).await, "dry run only")?;
    let elsewhere = format!("{}?dryRun=All", Place::pods(&place.namespace));
    refused(send(&controller, Verb::Create, &elsewhere, &probe).await, "cannot create resource")
}
