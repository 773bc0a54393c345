//! `kubectl fairlead install`: applies the manifests in order and waits until a pod would be held.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use fairlead_crds::names;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Missing, describe, until},
    manifests::{self, Choices, kind},
    progress::Progress,
};

/// The first minor version of Kubernetes 1 whose API server has mutating admission policies by default.
const MINOR: u32 = 36;
/// Limit for a policy to be gone, and for agents to learn that they stay.
const SETTLE: Duration = Duration::from_secs(30);
/// Dry runs that must come back held one after the other: several API servers may stand behind one address.
const HELD_IN_A_ROW: usize = 5;

/// Applies everything and waits until it works; installing over another version replaces it.
///
/// # Errors
/// When something is refused, or does not work after `timeout`; the message says what is missing.
pub async fn install(
    cluster: &Cluster,
    choices: &Choices,
    timeout: Duration,
    progress: Progress,
) -> Result<()> {
    let objects = manifests::render(choices)?;
    check_version(cluster).await?;
    take_back_uninstall(cluster, &objects).await?;
    let step = progress.step(&format!("{} objects applied", objects.len()));
    for object in &objects {
        step.detail(&describe(object));
        cluster.apply(object).await?;
        if kind(object) == "CustomResourceDefinition" {
            until(timeout, &describe(object), |_| {}, || is_established(cluster, object)).await?;
        }
    }
    step.done();
    for object in objects.iter().filter(|object| matches!(kind(object), "DaemonSet" | "Deployment")) {
        let step = progress.step(&format!("{} ready", describe(object)));
        until(timeout, &describe(object), |missing| step.detail(missing), || is_ready(cluster, object))
            .await?;
        step.done();
    }
    let step = progress.step("pods that ask for networks are held");
    until(timeout, "a pod to be held", |missing| step.detail(missing), || is_holding(cluster)).await?;
    step.done();
    Ok(())
}

async fn check_version(cluster: &Cluster) -> Result<()> {
    let version = cluster.client().apiserver_version().await.context("cannot reach the API server")?;
    let number =
        |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
    if (number(&version.major), number(&version.minor)) < (1, MINOR) {
        bail!(
            "fairlead needs Kubernetes 1.{MINOR} for mutating admission policies; this API server is {}",
            version.git_version
        );
    }
    Ok(())
}

/// After an uninstall that was broken off, agents would go on dropping what they hold.
async fn take_back_uninstall(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let admission = crate::uninstall::admission();
    let Some(found) = cluster.get(&admission).await? else { return Ok(()) };
    if found.data["spec"]["uninstalling"] != true {
        return Ok(());
    }
    for binding in objects.iter().filter(|object| kind(object) == "ValidatingAdmissionPolicyBinding") {
        cluster.delete(binding).await?;
    }
    crate::uninstall::take_back(cluster, SETTLE).await
}

async fn is_established(cluster: &Cluster, definition: &Value) -> Result<Option<String>> {
    let found = cluster.get(definition).await?.context("it is gone again")?;
    let conditions = found.data["status"]["conditions"].as_array();
    let established = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
    let done = conditions.is_some_and(|conditions| conditions.iter().any(established));
    Ok((!done).then(|| "it is not served yet".to_owned()))
}

/// What is missing until a workload runs as it stands there; none once it does.
pub(crate) async fn is_ready(cluster: &Cluster, workload: &Value) -> Result<Option<Missing>> {
    let found = cluster.get(workload).await?.context("it is gone again")?;
    let status = &found.data["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    let (wanted, updated, ready) = if kind(workload) == "DaemonSet" {
        (status["desiredNumberScheduled"].as_i64(), count("updatedNumberScheduled"), count("numberReady"))
    } else {
        (found.data["spec"]["replicas"].as_i64(), count("updatedReplicas"), count("readyReplicas"))
    };
    let seen = status["observedGeneration"].as_i64() == found.metadata.generation;
    match wanted {
        Some(wanted) if seen && updated >= wanted && ready >= wanted => Ok(None),
        Some(wanted) if seen => {
            let why = why_not_ready(cluster, workload).await?;
            let what = format!("{ready} of {wanted} ready, {updated} of this version{why}");
            Ok(Some(Missing { what, done: updated }))
        }
        _ => Ok(Some("its controller has not seen it yet".to_owned().into())),
    }
}

/// The first reason that a pod of a workload gives, as a clause to append.
async fn why_not_ready(cluster: &Cluster, workload: &Value) -> Result<String> {
    let app =
        workload["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"].as_str().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(cluster.client(), names::INSTALL_NAMESPACE);
    let pods =
        pods.list(&kube::api::ListParams::default().labels(&format!("app.kubernetes.io/name={app}"))).await?;
    let reason = pods.items.iter().find_map(|pod| {
        let status = pod.status.as_ref()?;
        let waiting = status.container_statuses.iter().flatten().find_map(|container| {
            let waiting = container.state.as_ref()?.waiting.as_ref()?;
            Some(format!("{} {}", waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
        });
        let unscheduled = || {
            let conditions = status.conditions.iter().flatten();
            conditions
                .filter(|condition| condition.status == "False")
                .find_map(|condition| condition.message.clone())
        };
        Some(format!("; {}: {}", pod.metadata.name.as_deref()?, waiting.or_else(unscheduled)?))
    });
    Ok(reason.unwrap_or_default())
}

/// Whether dry runs of a pod that asks for no network by name come back held.
async fn is_holding(cluster: &Cluster) -> Result<Option<String>> {
    for _ in 0..HELD_IN_A_ROW {
        match probe(cluster).await {
            Ok(pod) if is_held(&pod) => {}
            Ok(_) => return Ok(Some("the mutating policies are not active yet".to_owned())),
            Err(kube::Error::Api(status)) => return Ok(Some(status.message.clone())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Creates a pod that asks for networks, as a dry run.
///
/// # Errors
/// When the API server refuses it.
pub(crate) async fn probe(cluster: &Cluster) -> kube::Result<Pod> {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "generateName": "fairlead-probe-", "annotations": { names::NETWORKS_ANNOTATION: "" } },
        "spec": {
            "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "probe",
                "image": "none.invalid/none",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
    let api: Api<Pod> = Api::namespaced(cluster.client(), "default");
    api.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await
}

/// Whether a pod has the gate as its first init container, or is held by the container runtime.
pub(crate) fn is_held(pod: &Pod) -> bool {
    let first = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()?.first());
    first.is_some_and(|first| first.name == names::GATE_CONTAINER) || is_held_by_the_runtime(&pod.metadata)
}

/// Whether the container runtime holds a pod.
pub(crate) fn is_held_by_the_runtime(pod: &ObjectMeta) -> bool {
    let hold = pod.annotations.as_ref().and_then(|annotations| annotations.get(names::HOLD_ANNOTATION));
    hold.is_some_and(|hold| hold == names::HOLD_NRI)
}
