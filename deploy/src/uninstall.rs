//! `kubectl fairlead uninstall`: takes everything away but the interfaces of running pods.
//!
//! The order matters: while a policy holds pods, agents must run; while agents run, they hold finalizers; while an
//! object has a finalizer, its definition cannot go.

mod guard;
mod remains;

use std::time::Duration;

use anyhow::{Result, bail};
use fairlead_crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    cluster::{Cluster, describe, full_name, until},
    install::{is_held, is_held_by_the_runtime, probe},
    manifests::{self, Choices, kind},
    progress::Progress,
};

/// Dry runs that must come back as they are one after the other, before the policies count as gone.
const FREE_IN_A_ROW: usize = 5;
/// In which an agent has seen a change of the Admission.
const AGENTS_HEAR: Duration = Duration::from_secs(2);
/// Pods that are listed by name.
const LISTED: usize = 20;

/// How to uninstall.
#[derive(Debug, Clone)]
pub struct Options {
    /// Do what agents and controller would do, because they are gone.
    pub finish: bool,
    /// Limit of each step.
    pub timeout: Duration,
}

/// Removes fairlead; a second run goes on where the first one stopped.
///
/// # Errors
/// When a step does not end in time; the message says what is left and what to do about it.
pub async fn uninstall(cluster: &Cluster, options: &Options, progress: Progress) -> Result<()> {
    let objects = manifests::render(&Choices::default())?;
    tell_held_pods(cluster, progress).await?;
    remove_policies(cluster, &objects, options, progress).await?;
    if options.finish {
        guard::remove(cluster, options, progress).await?;
        remove_programs(cluster, &objects, options, progress).await?;
        remains::clear(cluster, options, progress).await?;
    } else {
        release(cluster, options, progress).await?;
        guard::remove(cluster, options, progress).await?;
        remove_programs(cluster, &objects, options, progress).await?;
    }
    remove_rest(cluster, &objects, options, progress).await
}

/// The object that tells agents and controller that they are being uninstalled.
pub(crate) fn admission() -> Value {
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::API_VERSION),
        "kind": "Admission",
        "metadata": { "name": names::ADMISSION },
    })
}

/// Marks the Admission, or takes the mark back. Nothing to do if there is none.
async fn set_uninstalling(cluster: &Cluster, value: bool, timeout: Duration) -> Result<()> {
    let (admission, patch) = (admission(), json!({ "spec": { "uninstalling": value } }));
    let api = cluster.api(&admission);
    // The policy that guards it takes a moment to go.
    until(
        timeout,
        "the Admission to be writable",
        |_| {},
        || async {
            match api.patch(names::ADMISSION, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(error) if !crate::cluster::is_missing(&error) => Err(error.into()),
                _ => Ok(None::<String>),
            }
        },
    )
    .await
}

/// Undoes what an uninstall that was broken off has begun.
pub(crate) async fn take_back(cluster: &Cluster, timeout: Duration) -> Result<()> {
    set_uninstalling(cluster, false, timeout).await?;
    // Agents that have not heard of it yet would drop the finalizers again.
    until(
        timeout,
        "the finalizers to stay",
        |_| {},
        || async {
            remains::put_back(cluster).await?;
            sleep(AGENTS_HEAR).await;
            let missing = remains::without_finalizer(cluster).await?;
            Ok((missing > 0).then(|| format!("{missing} objects without a finalizer")))
        },
    )
    .await
}

async fn tell_held_pods(cluster: &Cluster, progress: Progress) -> Result<()> {
    let pods = cluster.list("", "v1", "Pod", None).await?;
    tell(
        progress,
        "Pods that carry the gate",
        "a pod whose sandbox is created again (after a reboot of its node, for example) would wait for ever",
        &pods.iter().filter(|pod| has_gate(pod)).collect::<Vec<_>>(),
    );
    tell(
        progress,
        "Pods that the container runtime holds",
        "a container that is created again (after a crash, for example) may be refused for ever",
        &pods.iter().filter(|pod| !is_over(pod) && is_held_by_the_runtime(&pod.metadata)).collect::<Vec<_>>(),
    );
    Ok(())
}

fn tell(progress: Progress, which: &str, but: &str, held: &[&DynamicObject]) {
    if held.is_empty() {
        return;
    }
    progress.note(&format!(
        "{which}: {}. They keep running with their interfaces, but {but}: recreate them when it suits you.",
        held.len()
    ));
    for pod in held.iter().take(LISTED) {
        progress.note(&format!(
            "  {}{}",
            full_name(pod),
            if has_gate(pod) && is_waiting(pod) { "  (waits at the gate now)" } else { "" }
        ));
    }
    if held.len() > LISTED {
        progress.note(&format!("  and {} more", held.len() - LISTED));
    }
}

fn has_gate(pod: &DynamicObject) -> bool {
    let containers = pod.data["spec"]["initContainers"].as_array();
    !is_over(pod)
        && containers.into_iter().flatten().any(|container| container["name"] == names::GATE_CONTAINER)
}

fn is_over(pod: &DynamicObject) -> bool {
    matches!(pod.data["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn is_waiting(pod: &DynamicObject) -> bool {
    let statuses = pod.data["status"]["initContainerStatuses"].as_array();
    let gate = statuses.into_iter().flatten().find(|status| status["name"] == names::GATE_CONTAINER);
    !gate.is_some_and(|status| status["state"]["terminated"].is_object())
}

/// Bindings first: a policy without a binding does nothing.
async fn remove_policies(
    cluster: &Cluster,
    objects: &[Value],
    options: &Options,
    progress: Progress,
) -> Result<()> {
    let step = progress.step("admission policies removed");
    for suffix in ["Binding", "Policy"] {
        for object in objects
            .iter()
            .filter(|object| kind(object).contains("AdmissionPolicy") && kind(object).ends_with(suffix))
        {
            cluster.delete(object).await?;
        }
    }
    until(
        options.timeout,
        "the policies to be inactive",
        |missing| step.detail(missing),
        || async {
            for _ in 0..FREE_IN_A_ROW {
                match probe(cluster).await {
                    Ok(pod) if !is_held(&pod) => {}
                    Ok(_) => return Ok(Some("pods are still held".to_owned())),
                    Err(kube::Error::Api(status)) => return Ok(Some(status.message.clone())),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(None)
        },
    )
    .await?;
    step.done();
    Ok(())
}

/// Lets agents and controller give back what is theirs.
async fn release(cluster: &Cluster, options: &Options, progress: Progress) -> Result<()> {
    let found = remains::find(cluster).await?;
    if found.is_empty() {
        return Ok(());
    }
    let controller = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": names::CONTROLLER, "namespace": names::INSTALL_NAMESPACE },
    });
    if cluster.get(&controller).await?.is_none() || cluster.get(&admission()).await?.is_none() {
        bail!(
            "the controller is gone, so nothing gives back {}; run `kubectl fairlead uninstall --finish`",
            found.sentence()
        );
    }
    let step = progress.step("finalizers, taints, resources and gates given back");
    set_uninstalling(cluster, true, options.timeout).await?;
    let given_back = until(
        options.timeout,
        "fairlead to give back what it holds",
        |missing| step.detail(missing),
        || async {
            let found = remains::find(cluster).await?;
            Ok((!found.is_empty()).then(|| found.sentence()))
        },
    );
    if let Err(error) = given_back.await {
        bail!(
            "{error:#}; if agents or controller cannot run any more, use `kubectl fairlead uninstall --finish`"
        );
    }
    step.done();
    Ok(())
}

async fn remove_programs(
    cluster: &Cluster,
    objects: &[Value],
    options: &Options,
    progress: Progress,
) -> Result<()> {
    let step = progress.step("agents and controllers stopped");
    for object in objects.iter().filter(|object| matches!(kind(object), "DaemonSet" | "Deployment")) {
        cluster.delete(object).await?;
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client(), names::INSTALL_NAMESPACE);
    let ours = ListParams::default().labels(manifests::PART_OF);
    let stopped = until(
        options.timeout,
        "the pods to end",
        |missing| step.detail(missing),
        || async {
            let names: Vec<_> = pods.list(&ours).await?.items.iter().map(ResourceExt::name_any).collect();
            Ok((!names.is_empty()).then(|| names.join(", ")))
        },
    );
    match stopped.await {
        // A pod of a dead node never ends, and cannot write anything either.
        Err(error) if options.finish => progress.note(&format!("going on although {error:#}")),
        stopped => stopped?,
    }
    step.done();
    Ok(())
}

async fn remove_rest(
    cluster: &Cluster,
    objects: &[Value],
    options: &Options,
    progress: Progress,
) -> Result<()> {
    let step = progress.step("everything else removed");
    let is_definition = |object: &&Value| kind(object) == "CustomResourceDefinition";
    for object in objects.iter().rev().filter(|object| !is_definition(object)) {
        cluster.delete(object).await?;
    }
    for object in objects.iter().filter(is_definition) {
        cluster.delete(object).await?;
    }
    let lasting = |object: &&Value| matches!(kind(object), "CustomResourceDefinition" | "Namespace");
    for object in objects.iter().filter(lasting) {
        step.detail(&describe(object));
        let what = format!("{} to go", describe(object));
        let gone = until(options.timeout, &what, |_| {}, || still_there(cluster, object));
        if let Err(error) = gone.await {
            bail!("{error:#}; look for objects with a finalizer of somebody else");
        }
    }
    step.done();
    Ok(())
}

async fn still_there(cluster: &Cluster, object: &Value) -> Result<Option<String>> {
    let Some(found) = cluster.get(object).await? else { return Ok(None) };
    let conditions = found.data["status"]["conditions"].as_array();
    let messages = conditions.into_iter().flatten().filter(|condition| condition["status"] == "True");
    let why = messages.filter_map(|condition| condition["message"].as_str()).next_back();
    Ok(Some(why.unwrap_or("it is being deleted").to_owned()))
}
