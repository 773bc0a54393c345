//! Manifests that trials are made of, with names and ranges that no other trial uses.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_crds::{PodNetwork, Reason, names};
use fairlead_tests::{fairlead, layout, wait};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::trial::Env;

/// How long a healthy cluster needs for anything.
pub const SOON: Duration = Duration::from_secs(40);

/// The bridge of all Networks with the uplink: a device can be a port of one bridge only.
const UPLINK_BRIDGE: &str = "br-uplink";

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
        Self {
            name: env.unique(name),
            spec,
        }
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
        fairlead::wait_for_network(&env.cluster, &self.name, SOON).await
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
        "terminationGracePeriodSeconds": 0,
        "initContainers": [{ "name": "first-look", "image": "busybox:stable", "command": ["ip", "-o", "addr"] }],
        "containers": [{ "name": "app", "image": "busybox:stable", "command": ["sleep", "infinity"] }],
    })
}

/// All records of the trial's namespace.
pub async fn records(env: &Env) -> Result<Vec<PodNetwork>> {
    let api: Api<PodNetwork> = Api::namespaced(env.cluster.client(), &env.namespace);
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Names of the pods with this label that are not being deleted.
pub async fn pods(env: &Env, app: &str) -> Result<Vec<String>> {
    let listed = env
        .kubectl(&["get", "pods", "-l", &format!("app={app}"), "-o", "name"])
        .await?;
    Ok(listed
        .lines()
        .map(|name| name.trim_start_matches("pod/").to_owned())
        .collect())
}

/// Addresses of a pod's interface in CIDR form, but for those that the kernel makes by itself.
pub async fn addresses(env: &Env, pod: &str, interface: &str) -> Result<Vec<String>> {
    let printed = env
        .exec(
            pod,
            &["ip", "-o", "addr", "show", "dev", interface, "scope", "global"],
        )
        .await?;
    Ok(printed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3))
        .map(str::to_owned)
        .collect())
}

/// Puts a pod on one node.
pub fn on_node(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    pod
}

/// The record of a pod, by the pod's name.
pub async fn record(env: &Env, pod: &str) -> Result<PodNetwork> {
    let found = records(env)
        .await?
        .into_iter()
        .find(|record| record.spec.pod_name == pod);
    found.with_context(|| format!("{pod} has no record"))
}

/// Waits until the record of a pod says why it waits, and gives the sentence.
pub async fn wait_for_reason(env: &Env, pod: &str, reasons: &[Reason]) -> Result<String> {
    wait::until(
        SOON,
        &format!("the record of {pod} to say {reasons:?}"),
        || async {
            let record = record(env, pod).await?;
            let conditions = record.status.map(|status| status.conditions).unwrap_or_default();
            let ready = conditions
                .into_iter()
                .find(|condition| condition.type_ == "Ready")
                .context("no condition")?;
            let wanted = reasons.iter().any(|reason| reason.as_str() == ready.reason);
            ensure!(
                wanted && ready.status == "False",
                "it says {} ({}): {}",
                ready.reason,
                ready.status,
                ready.message
            );
            ensure!(!ready.message.is_empty(), "a reason without a sentence");
            Ok(ready.message)
        },
    )
    .await
}

/// Checks that a pod's own containers have not started.
pub async fn is_held(env: &Env, pod: &str) -> Result<()> {
    let pod: Pod = Api::namespaced(env.cluster.client(), &env.namespace)
        .get(pod)
        .await?;
    let status = pod.status.context("a pod without a status")?;
    let own = status
        .init_container_statuses
        .into_iter()
        .chain(status.container_statuses)
        .flatten();
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

/// What has to be gone after a pod: its record, and its links on the node.
#[derive(Clone, Debug)]
pub struct Traces {
    pod: String,
    node: String,
    links: Vec<String>,
    /// Addresses in CIDR form.
    pub addresses: Vec<String>,
}

/// Notes what a running pod leaves if nobody cleans up.
pub async fn traces(env: &Env, pod: &str) -> Result<Traces> {
    let record = record(env, pod).await?;
    let interfaces = record.status.map(|status| status.interfaces).unwrap_or_default();
    let links: Vec<_> = interfaces
        .into_iter()
        .filter_map(|interface| interface.host_interface)
        .collect();
    ensure!(!links.is_empty(), "{pod} has no link on its node");
    let traces = Traces {
        pod: pod.to_owned(),
        node: record.spec.node_name,
        links,
        addresses: addresses(env, pod, "net1").await?,
    };
    ensure!(
        traces.left(env).await?.len() > 1,
        "the record and the links of a running pod must be seen"
    );
    Ok(traces)
}

impl Traces {
    /// What is still there.
    async fn left(&self, env: &Env) -> Result<Vec<String>> {
        let mut left: Vec<_> = records(env)
            .await?
            .into_iter()
            .filter(|record| record.spec.pod_name == self.pod)
            .map(|record| record.name_any())
            .collect();
        let links = env.cluster.node(&self.node)?.exec(&["ip", "-o", "link"]).await?;
        left.extend(
            self.links
                .iter()
                .filter(|name| links.contains(&format!(" {name}@")))
                .cloned(),
        );
        Ok(left)
    }

    /// Waits until nothing is left.
    pub async fn wait_gone(&self, env: &Env, timeout: Duration) -> Result<()> {
        wait::until(timeout, &format!("every trace of {} to go", self.pod), || async {
            let left = self.left(env).await?;
            ensure!(left.is_empty(), "{left:?} are left");
            Ok(())
        })
        .await
    }
}
