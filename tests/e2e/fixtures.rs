//! Manifests that trials are made of, with names and ranges that no other trial uses.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Admission, Network, PodNetwork, PodNetworkStatus, Reason, names};
use fairlead_tests::{fairlead, layout, wait};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::trial::Env;

/// How long anything may take that must come in the end. Most of it needs a second or two, what waits for a back-off, a
/// Lease or a quarantine a minute. A machine whose host takes most of its processors needs several times that, and what
/// must be fast has a limit of its own.
pub const EVENTUALLY: Duration = Duration::from_secs(300);
/// The same for a command of `kubectl` that waits.
pub const PATIENTLY: &str = "--timeout=300s";

/// Asks `check` again and again until it gives a value: what must come in the end. See [`wait::until`].
///
/// # Errors
/// When it has not come within [`EVENTUALLY`].
pub async fn eventually<T, F, Fut>(what: &str, check: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    wait::until(EVENTUALLY, what, check).await
}

/// How long a freed address rests in these Networks.
pub const QUARANTINE: Duration = Duration::from_secs(5);

/// Ends at once when it is told to; the first process of a container has no default for SIGTERM.
const SLEEPER: &str = "trap 'exit 0' TERM; sleep infinity & wait";

/// What a container sees when it starts, left in its pod's status. Under load the runtime may lose what a short container
/// prints ("reading from a closed fifo"); this file the kubelet reads itself.
const LOOK: &str = "ip -o addr | tee /dev/termination-log";

/// The bridge of all Networks with the uplink: a device can be a port of one bridge only.
pub const UPLINK_BRIDGE: &str = "br-uplink";

/// A Network that is being described.
#[derive(Clone, Debug)]
pub struct Net {
    name: String,
    spec: Value,
}

impl Net {
    /// A network per node, with one range per family in a space of its own.
    pub fn island(env: &Env, name: &str, ranges: &[&str]) -> Self {
        let ranges: Vec<Value> = ranges.iter().map(|cidr| json!({ "cidr": cidr })).collect();
        let spec = json!({
            "bridge": { "name": env.link_name(name), "uplink": { "none": {} } },
            "ipam": { "space": env.space(), "quarantine": "5s", "ranges": ranges },
            "allowedNamespaces": { "from": "All" },
        });
        Self { name: env.unique(name), spec }
    }

    /// The same over all nodes, by their second interface.
    pub fn uplink(env: &Env, name: &str, ranges: &[&str]) -> Self {
        let bridge = json!({ "name": UPLINK_BRIDGE, "uplink": { "interface": layout::UPLINK } });
        Self::island(env, name, ranges).with("/bridge", bridge)
    }

    /// Sets a field of the spec, by a path such as `/exhaustion` or `/ipam/quarantine`.
    pub fn with(mut self, path: &str, value: Value) -> Self {
        let (parent, field) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some(parent) = self.spec.pointer_mut(parent) {
            parent[field] = value;
        }
        self
    }

    /// Its name on the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The manifest.
    pub fn manifest(&self) -> Value {
        json!({
            "apiVersion": format!("{}/{}", names::GROUP, names::API_VERSION),
            "kind": "Network",
            "metadata": { "name": self.name },
            "spec": self.spec,
        })
    }

    /// Applies it and waits until it is accepted.
    pub async fn create(&self, env: &Env) -> Result<()> {
        env.apply(&self.manifest().to_string()).await?;
        env.delete_at_the_end(&format!("networks.{}/{}", names::GROUP, self.name));
        fairlead::wait_for_network(&env.cluster, &self.name, EVENTUALLY).await?;
        // Only then admission knows what its pods need.
        eventually(&format!("{} to stand in the Admission", self.name), || async {
            let admissions: Api<Admission> = Api::all(env.cluster.client());
            let known = admissions.get(names::ADMISSION).await?.spec.networks;
            ensure!(known.iter().any(|network| network.name == self.name), "it does not");
            Ok(())
        })
        .await
    }
}

/// A pod that sleeps, with a first look at its links in an init container of its own.
pub fn pod(name: &str, networks: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name }, "annotations": { names::NETWORKS_ANNOTATION: networks } },
        "spec": pod_spec(),
    })
}

/// Such pods, spread evenly over the nodes.
pub fn deployment(name: &str, replicas: u32, networks: &str) -> Value {
    let mut spec = pod_spec();
    spec["topologySpreadConstraints"] = json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": name } },
    }]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name }, "annotations": { names::NETWORKS_ANNOTATION: networks } },
                "spec": spec,
            },
        },
    })
}

fn pod_spec() -> Value {
    json!({
        // With 0 every deletion would be a forced one: the pod goes before its sandbox.
        "terminationGracePeriodSeconds": 5,
        "initContainers": [{ "name": "first-look", "image": "busybox:stable", "command": ["sh", "-c", LOOK] }],
        "containers": [{ "name": "app", "image": "busybox:stable", "command": ["sh", "-c", SLEEPER] }],
    })
}

/// All records of the trial's namespace.
pub async fn records(env: &Env) -> Result<Vec<PodNetwork>> {
    let api: Api<PodNetwork> = Api::namespaced(env.cluster.client(), &env.namespace);
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Names of the pods with this label that are not being deleted.
pub async fn pods(env: &Env, app: &str) -> Result<Vec<String>> {
    let listed = env.kubectl(&["get", "pods", "-l", &format!("app={app}"), "-o", "name"]).await?;
    Ok(listed.lines().map(|name| name.trim_start_matches("pod/").to_owned()).collect())
}

/// Addresses of a pod's interface in CIDR form, but for those that the kernel makes by itself.
pub async fn addresses(env: &Env, pod: &str, interface: &str) -> Result<Vec<String>> {
    let printed = env.exec(pod, &["ip", "-o", "addr", "show", "dev", interface, "scope", "global"]).await?;
    Ok(printed.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect())
}

/// Pings each address of `to` from `from`, over `net1`.
pub async fn ping(env: &Env, from: &str, to: &str) -> Result<()> {
    let addresses = addresses(env, to, "net1").await?;
    ensure!(!addresses.is_empty(), "{to} has no address on net1");
    for address in addresses {
        let address = address.split('/').next().context("an address")?;
        env.exec(from, &["ping", "-I", "net1", "-c", "1", "-W", "3", address]).await?;
    }
    Ok(())
}

/// Puts a pod on one node.
pub fn on_node(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    pod
}

/// Binds a pod to a node without the scheduler, so that nothing keeps it from the agent there.
pub fn bound(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod
}

/// What the first container of a pod saw when it started.
pub async fn first_look(env: &Env, namespace: &str, pod: &str) -> Result<String> {
    let pod: Pod = Api::namespaced(env.cluster.client(), namespace).get(pod).await?;
    Ok(seen_first(&pod).to_owned())
}

/// What the first container of a pod left behind when it ended.
pub fn seen_first(pod: &Pod) -> &str {
    let statuses = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let look = statuses.filter(|status| status.name == "first-look").find_map(|status| status.state.as_ref());
    look.and_then(|state| state.terminated.as_ref()?.message.as_deref()).unwrap_or_default()
}

/// The record of a pod, by the pod's name.
pub async fn record(env: &Env, pod: &str) -> Result<PodNetwork> {
    let found = records(env).await?.into_iter().find(|record| record.spec.pod_name == pod);
    found.with_context(|| format!("{pod} has no record"))
}

/// Whether a record says that every interface is up.
pub fn is_ready(status: &PodNetworkStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Waits until the record of a pod says why it waits, and gives the sentence.
pub async fn wait_for_reason(env: &Env, pod: &str, reasons: &[Reason]) -> Result<String> {
    eventually(&format!("the record of {pod} to say {reasons:?}"), || async {
        let record = record(env, pod).await?;
        let conditions = record.status.map(|status| status.conditions).unwrap_or_default();
        let ready =
            conditions.into_iter().find(|condition| condition.type_ == "Ready").context("no condition")?;
        let wanted = reasons.iter().any(|reason| reason.as_str() == ready.reason);
        ensure!(
            wanted && ready.status == "False",
            "it says {} ({}): {}",
            ready.reason,
            ready.status,
            ready.message
        );
        let is_sentence = ready.message.split_whitespace().count() > 2 && !ready.message.contains('\n');
        ensure!(is_sentence, "{:?} is no sentence", ready.message);
        Ok(ready.message)
    })
    .await
}

/// Waits until the pod's condition has this reason, and gives its sentence.
pub async fn told(env: &Env, pod: &str, reason: Reason) -> Result<String> {
    let path = |field: &str| format!(".status.conditions[?(@.type==\"{}\")].{field}", names::NETWORK_READY);
    eventually(&format!("{pod} to be told {reason}"), || async {
        let object = format!("pod/{pod}");
        let (found, message) =
            (env.field(&object, &path("reason")).await?, env.field(&object, &path("message")).await?);
        ensure!(found == reason.as_str(), "{found}: {message}");
        Ok(message)
    })
    .await
}

/// Waits until the gate of a pod has said something, and gives its log.
pub async fn wait_for_gate(env: &Env, pod: &str, something: &str) -> Result<String> {
    eventually(&format!("the gate of {pod} to say `{something}`"), || async {
        let said = env.kubectl(&["logs", pod, "-c", names::GATE_CONTAINER]).await?;
        ensure!(said.contains(something), "it says {said:?}");
        Ok(said)
    })
    .await
}

/// Waits until nothing of earlier trials is left that an agent still works on.
pub async fn wait_for_quiet(env: &Env) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(env.cluster.client());
    let networks: Api<Network> = Api::all(env.cluster.client());
    eventually("earlier trials to be cleaned up", || async {
        let namespaces =
            namespaces.list(&ListParams::default()).await?.items.into_iter().map(|one| one.metadata);
        let networks = networks.list(&ListParams::default()).await?.items.into_iter().map(|one| one.metadata);
        let leaving =
            namespaces.chain(networks).filter(|metadata| metadata.deletion_timestamp.is_some()).count();
        ensure!(leaving == 0, "{leaving} namespaces and Networks are left");
        Ok(())
    })
    .await
}

/// The rows of `kubectl get`, by the titles of their columns. Cells must not be empty.
pub async fn table(env: &Env, kind: &str) -> Result<Vec<BTreeMap<String, String>>> {
    let printed = env.kubectl(&["get", kind]).await?;
    let mut lines =
        printed.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let titles = lines.next().context("no rows")?;
    lines
        .map(|cells| {
            ensure!(cells.len() == titles.len(), "{titles:?} does not fit {cells:?}");
            Ok(titles.iter().cloned().zip(cells).collect())
        })
        .collect()
}

/// Checks that a pod's own containers have not started, and that people see it.
pub async fn is_held(env: &Env, pod: &str) -> Result<()> {
    let shown = env.kubectl(&["get", "pod", pod]).await?;
    ensure!(shown.contains("Init:0/2"), "{shown}");
    let pod: Pod = Api::namespaced(env.cluster.client(), &env.namespace).get(pod).await?;
    let status = pod.status.context("a pod without a status")?;
    let own = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
    for container in own.filter(|container| container.name != names::GATE_CONTAINER) {
        ensure!(
            container.started != Some(true) && container.restart_count == 0,
            "{} has started",
            container.name
        );
        let waiting = container.state.is_none_or(|state| state.waiting.is_some());
        ensure!(waiting, "{} does not wait", container.name);
    }
    Ok(())
}
