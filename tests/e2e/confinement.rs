//! What a stolen agent and a tenant cannot do. Each refusal stands beside a write that is allowed, so that a
//! policy that refuses everything, or a token that works nowhere, is seen too.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::{Reason, names};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::{
    agents,
    fixtures::{self, Net},
    policy::place::{Place, User, Verb, send},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("confinement_an_agent_writes_objects_of_its_own_node_only", agent_of_another_node),
        Case::new("confinement_an_agent_writes_nothing_that_its_code_does_not_need", agent_beyond_its_code),
        Case::new("confinement_a_tenant_cannot_touch_records_or_the_hold", tenant),
    ]
}

/// Somebody with a token, in the trial's namespace.
struct Someone {
    env: Arc<Env>,
    token: String,
    client: Client,
}

impl Someone {
    /// Whoever holds what the agent of `node1` holds.
    async fn agent(env: &Arc<Env>) -> Result<Self> {
        let pod = agents::pod(&env.cluster, env.cluster.node("node1")?).await?;
        let uid = pod.uid().context("a pod has a UID")?;
        let (name, uid) = (pod.name_any(), format!("--bound-object-uid={uid}"));
        let bound =
            ["--bound-object-kind=Pod", &format!("--bound-object-name={name}"), &uid].map(str::to_owned);
        let arguments = ["create", "token", names::AGENT, "-n", names::INSTALL_NAMESPACE];
        let bound: Vec<_> = bound.iter().map(String::as_str).collect();
        let token = env.cluster.kubectl(&[&arguments[..], &bound].concat()).await?;
        Self::with_token(env, token.trim()).await
    }

    async fn with_token(env: &Arc<Env>, token: &str) -> Result<Self> {
        let place = Place::new(&env.cluster.kubeconfig_path(), &env.namespace, "", "").await?;
        let client = place.client_of(User::Token(token)).await?;
        Ok(Self { env: Arc::clone(env), token: token.to_owned(), client })
    }

    /// A service account with the right to edit the trial's namespace, and to debug its pods.
    async fn tenant(env: &Arc<Env>) -> Result<Self> {
        env.kubectl(&["create", "serviceaccount", "tenant"]).await?;
        let account = format!("--serviceaccount={}:tenant", env.namespace);
        env.kubectl(&["create", "rolebinding", "tenant", "--clusterrole=edit", &account]).await?;
        let debug = ["create", "role", "debug", "--verb=patch", "--resource=pods/ephemeralcontainers"];
        env.kubectl(&debug).await?;
        env.kubectl(&["create", "rolebinding", "debug", "--role=debug", &account]).await?;
        let token = env.kubectl(&["create", "token", "tenant"]).await?;
        Self::with_token(env, token.trim()).await
    }

    async fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let place = ["-n", &self.env.namespace];
        let has_place = arguments.contains(&"-n");
        let all = if has_place { arguments.to_vec() } else { [&place[..], arguments].concat() };
        self.env.cluster.kubectl_with_token(&self.token, &all, input).await
    }

    /// The same as [`Self::may_patch`], which the API server must refuse.
    async fn may_not_patch(&self, patch: &Patch) -> Result<()> {
        match self.patch(patch).await {
            Ok(answer) => bail!("must be refused: {patch:?}, but: {answer}"),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("not refused, but failed otherwise: {patch:?}")),
        }
    }

    /// As a request of its own: `kubectl patch` reads the object first, which is another right.
    async fn may_patch(&self, patch: &Patch) -> Result<()> {
        self.patch(patch).await.with_context(|| format!("must be allowed: {patch:?}"))?;
        Ok(())
    }

    /// Without effect even if it is allowed.
    async fn patch(&self, patch: &Patch) -> kube::Result<Value> {
        send(&self.client, patch.verb, &format!("{}?dryRun=All", patch.path), &patch.body).await
    }

    async fn may(&self, arguments: &[&str]) -> Result<()> {
        self.kubectl(arguments, "").await.with_context(|| format!("must be allowed: {arguments:?}"))?;
        Ok(())
    }

    async fn may_not(&self, arguments: &[&str]) -> Result<()> {
        self.may_not_send(arguments, "").await
    }

    /// Refused for who asks, not because the request makes no sense.
    async fn may_not_send(&self, arguments: &[&str], input: &str) -> Result<()> {
        match self.kubectl(arguments, input).await {
            Ok(answer) => bail!("must be refused: {arguments:?} {input}, but: {answer}"),
            Err(error) => {
                let text = format!("{error:#}");
                let refused = text.contains("orbidden") || text.contains("denied request");
                ensure!(refused, "not refused, but failed otherwise: {arguments:?}: {text}");
                Ok(())
            }
        }
    }
}

/// A patch of an object.
#[derive(Clone, Debug)]
struct Patch {
    verb: Verb,
    path: String,
    body: Value,
}

const OURS: &str = "/apis/fairlead.dev/v1alpha1";

/// A merge patch of the object at a path.
fn patch(path: &str, body: Value) -> Patch {
    Patch { verb: Verb::Merge, path: path.to_owned(), body }
}

fn patch_status(path: &str, body: Value) -> Patch {
    patch(&format!("{path}/status"), body)
}

fn labels() -> Value {
    json!({ "metadata": { "labels": { "a": "b" } } })
}

fn no_finalizers() -> Value {
    json!({ "metadata": { "finalizers": null } })
}

fn status() -> Value {
    json!({ "status": { "observedGeneration": 1 } })
}

fn path_of_record(record: &fairlead_crds::PodNetwork) -> String {
    let namespace = record.namespace().unwrap_or_default();
    format!("{OURS}/namespaces/{namespace}/podnetworks/{}", record.name_any())
}

/// One running pod per node, and the names of both records: of node1, of node2.
async fn a_pod_per_node(env: &Env, prefix: &str) -> Result<[fairlead_crds::PodNetwork; 2]> {
    let net = Net::island(env, "confined", &[&format!("{prefix}.0/24")]);
    net.create(env).await?;
    let mut records = Vec::new();
    for node in ["node1", "node2"] {
        env.apply(&fixtures::on_node(fixtures::pod(node, net.name()), node).to_string()).await?;
        env.wait_ready(&format!("app={node}")).await?;
        records.push(fixtures::record(env, node).await?);
    }
    records.try_into().map_err(|_| anyhow::anyhow!("two nodes, two records"))
}

async fn agent_of_another_node(env: Arc<Env>) -> Result<()> {
    let [own, other] = a_pod_per_node(&env, "10.80.0").await?;
    let agent = Someone::agent(&env).await?;
    for (record, allowed) in [(&own, true), (&other, false)] {
        let (pnet, node) = (path_of_record(record), &record.spec.node_name);
        let block = &record.spec.attachments[0].addresses.first().context("an address")?.block;
        let block = format!("{OURS}/ipblocks/{block}");
        let lease =
            format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{node}", names::INSTALL_NAMESPACE);
        let pod = format!("{}/{}", Place::pods(&env.namespace), record.spec.pod_name);
        let conditions = json!([{ "type": names::NETWORK_READY, "status": "False" }]);
        let condition = patch_status(&pod, json!({ "status": { "conditions": conditions } }));
        let writes = [
            patch(&pnet, no_finalizers()),
            patch_status(&pnet, status()),
            patch(&block, no_finalizers()),
            patch_status(&block, json!({ "status": { "held": [] } })),
            patch_status(&format!("{OURS}/nodenetworks/{node}"), json!({ "status": { "summary": "x" } })),
            patch(&lease, json!({ "spec": { "leaseDurationSeconds": 40 } })),
            Patch { verb: Verb::Strategic, ..condition },
        ];
        for write in &writes {
            if allowed {
                agent.may_patch(write).await?;
            } else {
                agent.may_not_patch(write).await?;
            }
        }
    }
    create_for_another_node(&agent, &other).await
}

async fn create_for_another_node(agent: &Someone, other: &fairlead_crds::PodNetwork) -> Result<()> {
    let mut record = other.clone();
    record.metadata = kube::api::ObjectMeta { name: Some("forged-00000000".into()), ..Default::default() };
    record.status = None;
    let create = ["create", "--dry-run=server", "-f", "-"];
    agent.may_not_send(&create, &serde_json::to_string(&record)?).await?;
    record.spec.node_name = "node1".into();
    agent
        .kubectl(&create, &serde_json::to_string(&record)?)
        .await
        .context("of its own node it must be allowed")?;
    let block = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": "forged-10-80-9-0-28" },
        "spec": { "space": "forged", "network": "x", "networkUID": "x", "nodeName": "node2", "cidr": "10.80.9.0/28" },
    });
    agent.may_not_send(&create, &block.to_string()).await
}

async fn agent_beyond_its_code(env: Arc<Env>) -> Result<()> {
    let [own, _] = a_pod_per_node(&env, "10.81.0").await?;
    let agent = Someone::agent(&env).await?;
    agent.may(&["get", "pods"]).await?;
    let network = format!("{OURS}/networks/{}", own.spec.attachments[0].network);
    let pod = format!("{}/{}", Place::pods(&env.namespace), own.spec.pod_name);
    let node = "/api/v1/nodes/node1";
    for write in [
        patch(node, labels()),
        patch_status(node, json!({ "status": { "capacity": { "x.io/y": "1" } } })),
        patch(&network, labels()),
        patch_status(&network, status()),
        patch(&format!("{OURS}/admissions/{}", names::ADMISSION), labels()),
        patch(&pod, labels()),
        patch_status(&pod, json!({ "status": { "phase": "Failed" } })),
        patch_status(&pod, labels()),
    ] {
        agent.may_not_patch(&write).await?;
    }
    let (network, pod) =
        (format!("network/{}", own.spec.attachments[0].network), format!("pod/{}", own.spec.pod_name));
    let writes: [Vec<&str>; 6] = [
        vec!["delete", &pod, "--dry-run=server"],
        vec!["delete", &network, "--dry-run=server"],
        vec!["get", "secrets"],
        vec!["create", "configmap", "x", "--dry-run=server"],
        vec!["exec", &own.spec.pod_name, "--", "true"],
        vec!["create", "token", names::CONTROLLER, "-n", names::INSTALL_NAMESPACE],
    ];
    for write in &writes {
        agent.may_not(write).await?;
    }
    Ok(())
}

async fn tenant(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "tenant", &["10.82.0.0/24"]);
    net.create(&env).await?;
    env.apply(&fixtures::pod("mine", net.name()).to_string()).await?;
    env.wait_ready("app=mine").await?;
    let record = path_of_record(&fixtures::record(&env, "mine").await?);
    let tenant = Someone::tenant(&env).await?;
    let pod = format!("{}/mine", Place::pods(&env.namespace));
    tenant.may_patch(&patch(&pod, labels())).await?;
    for body in [no_finalizers(), labels(), json!({ "spec": { "attachments": [] } })] {
        tenant.may_not_patch(&patch(&record, body)).await?;
    }
    tenant.may_not_patch(&patch_status(&record, status())).await?;
    let selected =
        json!({ "metadata": { "annotations": { names::SELECTED_ANNOTATION: r#"[{"name":"x"}]"# } } });
    tenant.may_not_patch(&patch(&pod, selected)).await?;
    tenant.may_not(&["set", "image", "pod/mine", "fairlead-gate=busybox:stable"]).await?;
    tenant_pods(&tenant, &net).await?;
    no_debug_container_while_held(&tenant).await
}

/// What a tenant writes into a new pod does not stay there, or the pod is refused.
async fn tenant_pods(tenant: &Someone, net: &Net) -> Result<()> {
    let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let mut pod = fixtures::pod("forged", net.name());
    pod["metadata"]["annotations"][names::SELECTED_ANNOTATION] = r#"[{"name":"secret"}]"#.into();
    let gate = json!({ "name": names::GATE_CONTAINER, "image": "busybox:stable", "command": ["true"] });
    let first = pod["spec"]["initContainers"][0].clone();
    pod["spec"]["initContainers"] = json!([first, gate]);
    let made: serde_json::Value = serde_json::from_str(&tenant.kubectl(&create, &pod.to_string()).await?)?;
    ensure!(
        made["metadata"]["annotations"][names::SELECTED_ANNOTATION] == "[]",
        "the snapshot was taken over"
    );
    let containers = made["spec"]["initContainers"].as_array().context("init containers")?;
    let order: Vec<_> = containers.iter().filter_map(|container| container["name"].as_str()).collect();
    ensure!(order == [names::GATE_CONTAINER, "first-look"], "{order:?}");
    ensure!(containers[0]["command"] == json!(["/fairlead-gate"]), "{}", containers[0]);

    let mut greedy = fixtures::pod("greedy", net.name());
    let resources = json!({ "limits": { names::resource(net.name()): "1" } });
    greedy["spec"]["initContainers"][0]["resources"] = resources;
    tenant.may_not_send(&create, &greedy.to_string()).await
}

async fn no_debug_container_while_held(tenant: &Someone) -> Result<()> {
    tenant.env.apply(&fixtures::bound(fixtures::pod("held", "no-such-network"), "node1").to_string()).await?;
    fixtures::wait_for_reason(&tenant.env, "held", &[Reason::NetworkNotFound]).await?;
    let debug = ["debug", "held", "--image=busybox:stable", "--profile=general", "--", "true"];
    tenant.may_not(&debug).await?;
    let debug = ["debug", "mine", "--image=busybox:stable", "--profile=general", "--", "true"];
    tenant.may(&debug).await
}
