//! The audit after every trial, and the proof that it can fail: each kind of disagreement that can be planted is found.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Finding, FindingCode, finding, names};
use fairlead_gates::audit;
use fairlead_tests::{Cluster, node::Node};
use futures::future::try_join_all;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{
    agents, controllers,
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

/// What other trials are in the middle of, and what controller and agents put right on their own, is over by then.
const SETTLE: Duration = Duration::from_secs(10);
/// How the advice on a finding begins that is none for a moment either.
const NEVER: &str = "It must never happen";
/// A node that never was.
const GHOST: &str = "ghost";
/// UID of a pod that never was.
const NOBODY: &str = "0f3c2a11-9d1e-4c3b-8f00-000000000000";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("audit_finds_what_is_planted", planted).alone(),
        Case::new("audit_runs_in_the_controllers_pod", in_the_pod).alone(),
    ]
}

/// The last trials before fairlead is uninstalled: what all others left.
pub fn last_cases() -> Vec<Case> {
    vec![Case::new("audit_finds_nothing_after_all_trials", after_all).alone()]
}

/// Fails with the table of what disagrees and stays so.
pub async fn check(cluster: &Cluster) -> Result<()> {
    let look = async || {
        let found =
            audit::check(&cluster.client(), names::TAINT_PREFIX, SETTLE).await.context("the audit")?;
        ensure!(found.is_empty(), "the audit found:\n{}", finding::text(&found));
        try_join_all(cluster.nodes().iter().map(|node| check_node(cluster, node))).await?;
        anyhow::Ok(())
    };
    let Err(error) = look().await else { return Ok(()) };
    // What has not been put right within SETTLE may have had no processor to be put right by. Some must never be.
    let said = format!("{error:#}");
    if said.contains(NEVER) { Err(error) } else { look().await.context(said) }
}

/// The kernel of a node against its records, in the agent's container.
async fn check_node(cluster: &Cluster, node: &Node) -> Result<()> {
    let pod = agents::pod(cluster, node).await?.name_any();
    let settle = format!("--settle={}s", SETTLE.as_secs());
    let audit = ["exec", "-n", names::INSTALL_NAMESPACE, &pod, "--", "/fairlead-agent", "audit", &settle];
    cluster.kubectl(&audit).await.with_context(|| format!("the audit of {}", node.name()))?;
    Ok(())
}

async fn after_all(env: Arc<Env>) -> Result<()> {
    fixtures::wait_for_quiet(&env).await?;
    // Counts that promise nothing new are written every 30 s.
    tokio::time::sleep(Duration::from_secs(35)).await;
    check(&env.cluster).await
}

/// With the rights of the controller's own service account, and its exit codes.
async fn in_the_pod(env: Arc<Env>) -> Result<()> {
    fixtures::wait_for_quiet(&env).await?;
    let deployment = format!("deployment/{}", names::CONTROLLER);
    let run = ["exec", "-n", names::INSTALL_NAMESPACE, &deployment, "--", "/fairlead-controller", "audit"];
    let clean = env.cluster.kubectl(&run).await?;
    ensure!(clean == "nothing disagrees\n", "{clean}");
    as_agent(&env, "node1", &["create", "-f", "-"], &record("leaked", "node1", NOBODY, &[])).await?;
    let json = env.cluster.kubectl(&[&run[..], &["--output=json", "--settle=1s"]].concat()).await;
    remove(&env, "node1", &["podnetwork/leaked"]).await?;
    let failed = format!("{:#}", json.err().context("the audit must end with 1")?);
    ensure!(failed.contains("exit code 1") && failed.contains("RecordLeaked"), "{failed}");
    stray_link(&env).await
}

/// A link by our group and name that no record has.
async fn stray_link(env: &Env) -> Result<()> {
    let node = env.cluster.nodes().first().context("a node")?;
    let (name, group) = ("fl0123456789", names::LINK_GROUP.to_string());
    node.exec(&["ip", "link", "add", "name", name, "group", &group, "type", "veth"]).await?;
    let found = check_node(&env.cluster, node).await;
    node.exec(&["ip", "link", "delete", name]).await?;
    let found = format!("{:#}", found.err().context("the audit of the node must end with 1")?);
    ensure!(found.contains("LinkWithoutRecord") && found.contains(name), "{found}");
    Ok(())
}

/// `kubectl` as the agent of a node, which may not exist.
async fn as_agent(env: &Env, node: &str, arguments: &[&str], input: &Value) -> Result<String> {
    let user = format!("--as=system:serviceaccount:{}:{}", names::INSTALL_NAMESPACE, names::AGENT);
    let node = format!("--as-user-extra=authentication.kubernetes.io/node-name={node}");
    let start = ["-n", &env.namespace, &user, "--as-group=system:authenticated", &node];
    env.cluster.kubectl_with_input(&[&start[..], arguments].concat(), &input.to_string()).await
}

async fn as_controller(env: &Env, arguments: &[&str]) -> Result<String> {
    let user = format!("--as=system:serviceaccount:{}:{}", names::INSTALL_NAMESPACE, names::CONTROLLER);
    env.cluster.kubectl(&[&[user.as_str()][..], arguments].concat()).await
}

/// Removes planted records and blocks: the finalizer first, as an agent does.
async fn remove(env: &Env, node: &str, objects: &[&str]) -> Result<()> {
    let patch = json!({ "metadata": { "finalizers": null } }).to_string();
    for object in objects {
        as_agent(env, node, &["patch", object, "--type=merge", "-p", &patch], &Value::Null).await?;
        as_agent(env, node, &["delete", object], &Value::Null).await?;
    }
    Ok(())
}

fn record(name: &str, node: &str, uid: &str, attachments: &[Value]) -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "PodNetwork",
        "metadata": { "name": name, "finalizers": [names::POD_NETWORK_FINALIZER] },
        "spec": { "podName": name, "podUID": uid, "nodeName": node, "attachments": attachments },
    })
}

fn block(space: &str, cidr: &str, network: &str, uid: &str, node: &str) -> (String, Value) {
    let name = format!("{space}-{}", cidr.replace(['.', '/'], "-"));
    let object = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": name },
        "spec": { "space": space, "network": network, "networkUID": uid, "nodeName": node, "cidr": cidr },
    });
    (format!("ipblock/{name}"), object)
}

/// Everything that is planted, so that it can be taken away again.
struct Planted {
    node: String,
    network: String,
    network_uid: String,
    pod_uid: String,
    attachment: Value,
    block: String,
    address: String,
}

async fn planted(env: Arc<Env>) -> Result<()> {
    ensure!(FindingCode::AddressTwice.todo().starts_with(NEVER), "no finding would count at the first look");
    fixtures::wait_for_quiet(&env).await?;
    agents::wait_until_read(&env.cluster).await?;
    let net = Net::island(&env, "plant", &["10.62.0.0/24"]);
    net.create(&env).await?;
    env.apply(&fixtures::pod("real", net.name()).to_string()).await?;
    env.wait_ready("app=real").await?;
    let record = fixtures::record(&env, "real").await?;
    let attachment = record.spec.attachments.first().context("an attachment")?;
    let held = attachment.addresses.first().context("an address")?;
    let planted = Planted {
        node: record.spec.node_name.clone(),
        network: net.name().to_owned(),
        network_uid: attachment.network_uid.clone(),
        pod_uid: record.spec.pod_uid.clone(),
        attachment: serde_json::to_value(attachment)?,
        block: format!("ipblock/{}", held.block),
        address: held.address.addr().to_string(),
    };
    let object = format!("podnetwork/{}", record.name_any());
    controllers::scale(&env.cluster, 0).await?;
    let outcome = plant_and_find(&env, &planted, &object).await;
    let cleaned = clean(&env, &planted, &object, &record).await;
    controllers::scale(&env.cluster, 2).await?;
    outcome.and(cleaned)
}

/// What is looked for; kernel findings and those that only a broken API server could show are not in it.
const EXPECTED: [FindingCode; 24] = [
    FindingCode::AddressTwice,
    FindingCode::AddressOutsideBlock,
    FindingCode::AddressNotFree,
    FindingCode::BlockUnknown,
    FindingCode::BlockForeign,
    FindingCode::BlocksOverlap,
    FindingCode::BlockOutsideRanges,
    FindingCode::NetworkMissing,
    FindingCode::MacTwice,
    FindingCode::RecordTwice,
    FindingCode::RecordMissing,
    FindingCode::RecordMisplaced,
    FindingCode::RecordLeaked,
    FindingCode::StatusDiffers,
    FindingCode::QuarantineTooLong,
    FindingCode::HeldTooLong,
    FindingCode::NodeGone,
    FindingCode::CountsDiffer,
    FindingCode::ResourceDiffers,
    FindingCode::TaintDiffers,
    FindingCode::FinalizerMissing,
    FindingCode::FinalizerLeft,
    FindingCode::RangesOverlap,
    FindingCode::AdmissionDiffers,
];

async fn plant_and_find(env: &Env, planted: &Planted, real: &str) -> Result<()> {
    plant_records(env, planted, real).await?;
    plant_blocks(env, planted).await?;
    plant_range(env).await?;
    plant_nodes(env, planted).await?;
    let client = env.cluster.client();
    eventually("everything that was planted to be found", || async {
        let found = audit::look(&client, names::TAINT_PREFIX).await?;
        let codes: BTreeSet<FindingCode> = found.iter().map(|finding| finding.code).collect();
        let missing: Vec<_> = EXPECTED.iter().filter(|code| !codes.contains(code)).collect();
        ensure!(missing.is_empty(), "{missing:?} are not in\n{}", finding::text(&found));
        concerns_the_trial(env, planted, &found)
    })
    .await
}

/// Nothing else is found: every finding names something that was planted.
fn concerns_the_trial(env: &Env, planted: &Planted, found: &[Finding]) -> Result<()> {
    let (space, rival) = (env.space(), env.unique("rival"));
    let ours = [&env.namespace, &planted.network, &space, &rival, &planted.node, GHOST, "admission"];
    let other: Vec<_> =
        found.iter().filter(|finding| !ours.iter().any(|name| finding.object.contains(*name))).collect();
    ensure!(other.is_empty(), "nobody planted {other:?}");
    Ok(())
}

/// Records of nobody, of the real pod on a node that never was, with addresses that are elsewhere; a status that lies; a
/// pod that counts as attached.
async fn plant_records(env: &Env, planted: &Planted, real: &str) -> Result<()> {
    let mut strange = planted.attachment.clone();
    strange["networkUID"] = json!("no-such-network");
    strange["addresses"][0]["address"] = json!("10.63.0.9/24");
    let mut unknown = strange.clone();
    unknown["interface"] = json!("net2");
    unknown["addresses"][0]["blockUID"] = json!("no-such-block");
    let twin = record("twin", &planted.node, NOBODY, &[planted.attachment.clone(), strange, unknown]);
    as_agent(env, &planted.node, &["create", "-f", "-"], &twin).await?;
    let mut misplaced = record("misplaced", GHOST, &planted.pod_uid, &[]);
    misplaced["metadata"]["finalizers"] = json!([]);
    as_agent(env, GHOST, &["create", "-f", "-"], &misplaced).await?;
    let lie = json!({ "status": { "interfaces": [] } }).to_string();
    as_agent(
        env,
        &planted.node,
        &["patch", real, "--subresource=status", "--type=merge", "-p", &lie],
        &Value::Null,
    )
    .await?;
    let mut plain = fixtures::pod("plain", "");
    plain["metadata"]["annotations"] = json!({});
    env.apply(&plain.to_string()).await?;
    env.wait_ready("app=plain").await?;
    let ready = json!({ "status": { "conditions": [{ "type": names::NETWORK_READY, "status": "True" }] } })
        .to_string();
    env.kubectl(&["patch", "pod", "plain", "--subresource=status", "-p", &ready]).await?;
    env.kubectl(&["patch", "pod", "plain", "-p", r#"{"metadata":{"finalizers":["fairlead.dev/planted"]}}"#])
        .await?;
    Ok(())
}

/// Blocks inside of others, of ranges and nodes that never were, without a finalizer; addresses in quarantine or kept
/// that the real pod has.
async fn plant_blocks(env: &Env, planted: &Planted) -> Result<()> {
    for (cidr, node) in planted_blocks(planted) {
        let (_, object) = block(&env.space(), &cidr, &planted.network, &planted.network_uid, node);
        as_agent(env, node, &["create", "-f", "-"], &object).await?;
    }
    let (address, since) = (&planted.address, Timestamp::now() - Duration::from_secs(3600));
    let status = json!({ "status": {
        "quarantined": [{ "address": address, "until": "2099-01-01T00:00:00Z", "podUID": NOBODY }],
        "held": [{ "address": address, "pod": "nobody/nobody", "podUID": NOBODY, "since": since.to_string() }],
    } });
    let status = status.to_string();
    let patch = ["patch", &planted.block, "--subresource=status", "--type=merge", "-p", &status];
    as_agent(env, &planted.node, &patch, &Value::Null).await?;
    Ok(())
}

/// One inside of the real pod's block, one outside of all ranges on a node that never was.
fn planted_blocks(planted: &Planted) -> [(String, &str); 2] {
    [(format!("{}/32", planted.address), &planted.node), ("10.99.0.0/28".to_owned(), GHOST)]
}

/// A Network that was given a part of another's range.
async fn plant_range(env: &Env) -> Result<()> {
    let net = Net::island(env, "rival", &["10.62.0.128/25"]);
    env.apply(&net.manifest().to_string()).await?;
    let range = json!({ "cidr": "10.62.0.128/25", "blockPrefix": 28, "state": "Admitted" });
    let status = json!({ "status": { "ranges": [range] } }).to_string();
    let object = rival(env);
    env.kubectl(&["patch", &object, "--subresource=status", "--type=merge", "-p", &status]).await?;
    Ok(())
}

fn rival(env: &Env) -> String {
    format!("networks.{}/{}", names::GROUP, env.unique("rival"))
}

/// Counts, resources, taints and an Admission that nobody puts right while the controller is away.
async fn plant_nodes(env: &Env, planted: &Planted) -> Result<()> {
    let (node, network) = (&planted.node, &planted.network);
    let at = "jsonpath={.status.networks}";
    let networks = env.cluster.kubectl(&["get", "nodenetwork", node, "-o", at]).await?;
    let mut networks: Value = serde_json::from_str(&networks)?;
    for one in networks.as_array_mut().into_iter().flatten() {
        one["used"] = json!(7);
    }
    let lie = json!({ "status": { "networks": networks } }).to_string();
    let patch = ["patch", "nodenetwork", node, "--subresource=status", "--type=merge", "-p", &lie];
    as_agent(env, node, &patch, &Value::Null).await?;
    let number = json!({ names::resource(network): "999" });
    let status = json!({ "status": { "capacity": number, "allocatable": number } }).to_string();
    env.cluster
        .kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &status])
        .await?;
    let taint = format!("{}=:PreferNoSchedule", names::taint_key(names::TAINT_PREFIX, network));
    env.cluster.kubectl(&["taint", "node", node, &taint]).await?;
    let empty = json!({ "spec": { "networks": [] } }).to_string();
    as_controller(env, &["patch", "admission", names::ADMISSION, "--type=merge", "-p", &empty]).await?;
    Ok(())
}

/// Takes everything away that neither controller nor agent would put right.
async fn clean(env: &Env, planted: &Planted, real: &str, before: &fairlead_crds::PodNetwork) -> Result<()> {
    remove(env, &planted.node, &["podnetwork/twin"]).await?;
    remove(env, GHOST, &["podnetwork/misplaced"]).await?;
    for (cidr, node) in planted_blocks(planted) {
        let (name, _) = block(&env.space(), &cidr, &planted.network, &planted.network_uid, node);
        remove(env, node, &[&name]).await?;
    }
    let status = json!({ "status": before.status }).to_string();
    let patch = ["patch", real, "--subresource=status", "--type=merge", "-p", &status];
    as_agent(env, &planted.node, &patch, &Value::Null).await?;
    let status = json!({ "status": { "quarantined": null, "held": null } }).to_string();
    let patch = ["patch", &planted.block, "--subresource=status", "--type=merge", "-p", &status];
    as_agent(env, &planted.node, &patch, &Value::Null).await?;
    env.kubectl(&["delete", &rival(env)]).await?;
    env.kubectl(&["patch", "pod", "plain", "-p", r#"{"metadata":{"finalizers":null}}"#]).await?;
    // With that the node's agent also writes its counts anew.
    env.kubectl(&["delete", "pod", "plain", "real", PATIENTLY]).await?;
    Ok(())
}
