//! What of fairlead keeps objects from going, or stays on nodes and pods: finalizers, taints, extended resources,
//! labels, scheduling gates.

use anyhow::Result;
use fairlead_crds::names;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::Options;
use crate::{
    cluster::{Cluster, full_name, is_missing, until},
    progress::Progress,
};

/// Kinds with a finalizer of ours.
const HELD: [(&str, &str); 3] = [
    ("PodNetwork", names::POD_NETWORK_FINALIZER),
    ("IPBlock", names::BLOCK_FINALIZER),
    ("Network", names::NETWORK_FINALIZER),
];

/// An object with our finalizer, or one that ought to have it.
pub struct Held {
    kind: &'static str,
    finalizer: &'static str,
    object: DynamicObject,
}

/// Everything that is left.
pub struct Remains {
    held: Vec<Held>,
    nodes: Vec<Node>,
    /// Pods that our scheduling gate keeps from any node.
    gated: Vec<Pod>,
}

impl Remains {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.nodes.is_empty() && self.gated.is_empty()
    }

    /// What is left, counted by kind, with one name of each.
    pub fn sentence(&self) -> String {
        let held = HELD.iter().filter_map(|(kind, _)| {
            let mut of_kind = self.held.iter().filter(|held| held.kind == *kind);
            let first = of_kind.next()?;
            let node = first.object.data["spec"]["nodeName"].as_str();
            let node = node.map(|node| format!(" of node {node}")).unwrap_or_default();
            Some(format!("{} {kind}(s), one is {}{node}", of_kind.count() + 1, full_name(&first.object)))
        });
        let nodes = self.nodes.first().map(|first| {
            format!(
                "taints, resources or labels on {} node(s), one is {}",
                self.nodes.len(),
                first.name_any()
            )
        });
        let gated = self.gated.first().map(|first| {
            let namespace = first.namespace().unwrap_or_default();
            format!(
                "scheduling gates of {} pod(s), one is {namespace}/{}",
                self.gated.len(),
                first.name_any()
            )
        });
        held.chain(nodes).chain(gated).collect::<Vec<_>>().join("; ")
    }
}

/// Looks at all objects and nodes.
pub async fn find(cluster: &Cluster) -> Result<Remains> {
    let mut held = Vec::new();
    for (kind, finalizer) in HELD {
        let objects = cluster.list(names::GROUP, names::API_VERSION, kind, None).await?;
        let ours =
            objects.into_iter().filter(|object| object.finalizers().iter().any(|name| name == finalizer));
        held.extend(ours.map(|object| Held { kind, finalizer, object }));
    }
    let nodes: Api<Node> = Api::all(cluster.client());
    let mut nodes = nodes.list(&kube::api::ListParams::default()).await?.items;
    nodes.retain(|node| !resources(node).is_empty() || our_taints(node) > 0 || is_labelled(node));
    let pods: Api<Pod> = Api::all(cluster.client());
    let unscheduled = kube::api::ListParams::default().fields("spec.nodeName=");
    let mut gated = pods.list(&unscheduled).await?.items;
    gated.retain(|pod| pod.metadata.deletion_timestamp.is_none() && our_gate(pod).is_some());
    Ok(Remains { held, nodes, gated })
}

/// Removes all of it, and looks again until nothing is left.
///
/// # Errors
/// When something is still left after the time-out.
pub async fn clear(cluster: &Cluster, options: &Options, progress: Progress) -> Result<()> {
    let step = progress.step("finalizers, taints, resources, labels and gates removed");
    until(
        options.timeout,
        "what is left to go",
        |missing| step.detail(missing),
        || async {
            let found = find(cluster).await?;
            for held in &found.held {
                drop_finalizer(cluster, held).await?;
            }
            for node in &found.nodes {
                clean_node(cluster, node).await?;
            }
            for pod in &found.gated {
                lift_gate(cluster, pod).await?;
            }
            Ok((!found.is_empty()).then(|| found.sentence()))
        },
    )
    .await?;
    step.done();
    Ok(())
}

/// Gives records and blocks their finalizers back, after an uninstall that was broken off: agents set them when they
/// create an object only. Networks get theirs back from the controller.
pub async fn put_back(cluster: &Cluster) -> Result<()> {
    for free in find_free(cluster).await? {
        let mut finalizers = free.object.finalizers().to_vec();
        finalizers.push(free.finalizer.to_owned());
        let version = &free.object.metadata.resource_version;
        let patch =
            Patch::Merge(json!({ "metadata": { "finalizers": finalizers, "resourceVersion": version } }));
        let api = api_of(cluster, free.kind, &free.object);
        match api.patch(&free.object.name_any(), &PatchParams::default(), &patch).await {
            Err(error) if !is_missing(&error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// How many records and blocks ought to have our finalizer and have not.
pub async fn without_finalizer(cluster: &Cluster) -> Result<usize> {
    Ok(find_free(cluster).await?.len())
}

async fn find_free(cluster: &Cluster) -> Result<Vec<Held>> {
    let mut free = Vec::new();
    for (kind, finalizer) in HELD.into_iter().filter(|(kind, _)| *kind != "Network") {
        let objects = cluster.list(names::GROUP, names::API_VERSION, kind, None).await?;
        let lacking = objects.into_iter().filter(|object| {
            let has = object.finalizers().iter().any(|name| name == finalizer);
            !has && object.metadata.deletion_timestamp.is_none()
        });
        free.extend(lacking.map(|object| Held { kind, finalizer, object }));
    }
    Ok(free)
}

fn api_of(cluster: &Cluster, kind: &str, object: &DynamicObject) -> Api<DynamicObject> {
    cluster.api(&json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::API_VERSION),
        "kind": kind,
        "metadata": { "namespace": object.namespace() },
    }))
}

async fn drop_finalizer(cluster: &Cluster, held: &Held) -> Result<()> {
    let Some(index) = held.object.finalizers().iter().position(|name| name == held.finalizer) else {
        return Ok(());
    };
    let place = format!("/metadata/finalizers/{index}");
    let patch = json!([
        { "op": "test", "path": place, "value": held.finalizer },
        { "op": "remove", "path": place },
    ]);
    let api = api_of(cluster, held.kind, &held.object);
    match api.patch(&held.object.name_any(), &PatchParams::default(), &json_patch(patch)?).await {
        Err(error) if !is_missing(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

async fn clean_node(cluster: &Cluster, node: &Node) -> Result<()> {
    let (nodes, name): (Api<Node>, _) = (Api::all(cluster.client()), node.name_any());
    let removals: Vec<Value> =
        resources(node).into_iter().map(|path| json!({ "op": "remove", "path": path })).collect();
    if !removals.is_empty() {
        nodes.patch_status(&name, &PatchParams::default(), &json_patch(json!(removals))?).await?;
    }
    if our_taints(node) > 0 {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let others: Vec<_> = taints.iter().filter(|taint| !is_ours(taint)).collect();
        let patch = json!([
            { "op": "test", "path": "/spec/taints", "value": taints },
            { "op": "replace", "path": "/spec/taints", "value": others },
        ]);
        nodes.patch(&name, &PatchParams::default(), &json_patch(patch)?).await?;
    }
    if is_labelled(node) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { names::HOLD_LABEL: null } } }));
        nodes.patch(&name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

async fn lift_gate(cluster: &Cluster, pod: &Pod) -> Result<()> {
    let Some(index) = our_gate(pod) else { return Ok(()) };
    let place = format!("/spec/schedulingGates/{index}");
    let patch = json!([
        { "op": "test", "path": format!("{place}/name"), "value": names::SCHEDULING_GATE },
        { "op": "remove", "path": place },
    ]);
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &pod.namespace().unwrap_or_default());
    match pods.patch(&pod.name_any(), &PatchParams::default(), &json_patch(patch)?).await {
        Err(error) if !is_missing(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

fn our_gate(pod: &Pod) -> Option<usize> {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().position(|gate| gate.name == names::SCHEDULING_GATE)
}

fn is_labelled(node: &Node) -> bool {
    node.labels().contains_key(names::HOLD_LABEL)
}

/// JSON paths of our extended resources in a node's status.
fn resources(node: &Node) -> Vec<String> {
    let Some(status) = &node.status else { return Vec::new() };
    let lists = [("capacity", &status.capacity), ("allocatable", &status.allocatable)];
    let keys =
        lists.into_iter().flat_map(|(field, list)| list.iter().flatten().map(move |(key, _)| (field, key)));
    keys.filter(|(_, key)| key.starts_with(names::RESOURCE_PREFIX))
        .map(|(field, key)| format!("/status/{field}/{}", key.replace('/', "~1")))
        .collect()
}

fn our_taints(node: &Node) -> usize {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| is_ours(taint)).count()
}

fn is_ours(taint: &Taint) -> bool {
    let value = taint.value.as_deref();
    names::is_our_taint(&taint.key, value) || names::is_startup_taint(&taint.key, value)
}

fn json_patch(patch: Value) -> Result<Patch<()>> {
    Ok(Patch::Json(serde_json::from_value(patch)?))
}
