//! Pods come and go where exactly as many addresses exist as pods run, while agents, kubelets and nodes go and come
//! back: every address is accounted for all the time, and nobody is harmed who has nothing to do with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Reason, names};
use fairlead_tests::{Cluster, fairlead};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;

use crate::{
    agents, audit,
    fixtures::{self, EVENTUALLY, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

/// Rounds of the long trial; `FAIRLEAD_CHURN_ROUNDS` asks for another number.
const ROUNDS: u32 = 4;
/// Pods that go in each round.
const GO: usize = 10;
/// Longer than an agent's Lease.
const AWAY: Duration = Duration::from_secs(60);

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("churn_of_as_many_pods_as_addresses_while_agents_are_killed", rounds)
            .alone()
            .timeout(Duration::from_secs(2400)),
        Case::new("churn_while_kubelets_restart_and_a_node_registers_again", registered_again).alone(),
        Case::new("churn_while_no_agent_runs_for_a_minute", agents_away).alone(),
    ]
}

/// A Network with exactly that many addresses, of which all are promised to the scheduler.
async fn scarce(env: &Env, range: &str, gateway: &str, exclude: &str) -> Result<Net> {
    let net = Net::island(env, "scarce", &[range])
        .with("/ipam/ranges/0/gateway", gateway.into())
        .with("/ipam/ranges/0/exclude", json!([exclude]));
    net.create(env).await?;
    Ok(net)
}

async fn scale(env: &Env, replicas: usize) -> Result<()> {
    env.kubectl(&["scale", "deployment/churn", &format!("--replicas={replicas}")]).await?;
    Ok(())
}

async fn start(env: &Env, net: &Net, replicas: u32) -> Result<()> {
    let mut churn = fixtures::deployment("churn", replicas, net.name());
    // Addresses decide where they go.
    churn["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([]);
    env.apply(&churn.to_string()).await?;
    Ok(())
}

/// The trial's pods as the API server has them.
#[derive(Debug, Default)]
struct Census {
    /// Names of those that are ready.
    ready: BTreeSet<String>,
    /// How many have no node.
    unscheduled: usize,
    /// Those that failed, with the reason.
    failed: BTreeMap<String, String>,
    /// Those that are on their way to one or the other.
    between: usize,
}

async fn census(env: &Env) -> Result<Census> {
    let api: Api<Pod> = Api::namespaced(env.cluster.client(), &env.namespace);
    let mut census = Census::default();
    for pod in api.list(&ListParams::default().labels("app=churn")).await?.items {
        let (name, status) = (pod.name_any(), pod.status.clone().unwrap_or_default());
        let ready =
            status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
        if status.phase.as_deref() == Some("Failed") {
            census.failed.insert(name, format!("{:?}: {:?}", status.reason, status.message));
        } else if pod.metadata.deletion_timestamp.is_some() {
            census.between += 1;
        } else if ready {
            census.ready.insert(name);
        } else if pod.spec.is_none_or(|spec| spec.node_name.is_none()) {
            census.unscheduled += 1;
        } else {
            census.between += 1;
        }
    }
    ensure!(census.failed.is_empty(), "pods failed: {:?}", census.failed);
    Ok(census)
}

/// Waits until that many pods are ready and that many have no node, and nothing is under way.
async fn settled(env: &Env, ready: usize, unscheduled: usize) -> Result<BTreeSet<String>> {
    eventually(&format!("{ready} pods to be ready and {unscheduled} to have no node"), || async {
        let census = census(env).await?;
        let found = (census.ready.len(), census.unscheduled, census.between);
        ensure!(found == (ready, unscheduled, 0), "ready, without a node and in between: {found:?}");
        Ok(census.ready)
    })
    .await
}

/// What must hold whenever nothing is under way: every ready pod has its network, no address is used twice, nothing
/// disagrees.
async fn inspect(env: &Env, ready: &BTreeSet<String>) -> Result<()> {
    let records = fixtures::records(env).await?;
    let attached: BTreeSet<String> = records
        .iter()
        .filter(|record| record.status.as_ref().is_some_and(fixtures::is_ready))
        .map(|record| record.spec.pod_name.clone())
        .collect();
    let without: Vec<_> = ready.difference(&attached).collect();
    ensure!(without.is_empty(), "{without:?} run without their network");
    audit::check(&env.cluster).await
}

/// Every pod has on its interface what its record says, and no two have the same.
async fn look_inside(env: &Env, ready: &BTreeSet<String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for pod in ready {
        let record = fixtures::record(env, pod).await?;
        let held = record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses);
        let held: Vec<String> = held.map(|held| held.address.to_string()).collect();
        let found = fixtures::addresses(env, pod, "net1").await?;
        ensure!(found == held && found.len() == 1, "{pod} has {found:?}, its record {held:?}");
        ensure!(seen.insert(found), "{pod} has an address that another has");
    }
    Ok(())
}

/// Deletes some of the pods without a wait: another part of them in every round.
async fn let_go(env: &Env, ready: &BTreeSet<String>, round: u32, count: usize) -> Result<()> {
    let all = ready.iter().cycle().skip(round as usize * 7 % ready.len().max(1));
    let victims: BTreeSet<&str> = all.take(count.min(ready.len())).map(String::as_str).collect();
    let arguments = ["delete", "pods", "--wait=false"].into_iter().chain(victims);
    env.kubectl(&arguments.collect::<Vec<_>>()).await?;
    Ok(())
}

async fn rounds(env: Arc<Env>) -> Result<()> {
    let grown = env.cluster.grow().await?;
    let outcome = async {
        let third = grown.nodes().last().context("a third node")?;
        fairlead::bring(&grown, third).await?;
        agents::wait_ready(&grown).await?;
        sixty_addresses(&env, &grown).await
    }
    .await;
    env.kubectl(&["delete", "deployment", "churn", "--ignore-not-found", PATIENTLY]).await?;
    let gone = eventually("all records to go", || async {
        let left = fixtures::records(&env).await?.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await;
    let shrunk = env.cluster.shrink(&grown).await;
    outcome.and(gone).and(shrunk)
}

/// 62 addresses of a /26, less a gateway and an excluded one.
async fn sixty_addresses(env: &Env, cluster: &Cluster) -> Result<()> {
    let net = scarce(env, "10.64.0.0/26", "10.64.0.1", "10.64.0.62/32").await?;
    start(env, &net, 61).await?;
    let mut ready = settled(env, 60, 1).await?;
    insufficient(env, &net).await?;
    let nodes: BTreeSet<_> =
        fixtures::records(env).await?.into_iter().map(|record| record.spec.node_name).collect();
    ensure!(nodes.len() == 3, "all addresses are on {nodes:?}");
    inspect(env, &ready).await?;
    one_more_is_gated(env, &net).await?;
    unrelated_pods_run_everywhere(env, cluster, &ready).await?;
    let wanted = env::var("FAIRLEAD_CHURN_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    for round in 0..wanted {
        let_go(env, &ready, round, GO).await?;
        let victim = &cluster.nodes()[round as usize % cluster.nodes().len()];
        tokio::time::sleep(Duration::from_millis(u64::from(round) * 700 % 4000)).await;
        agents::kill_and_replace(cluster, victim).await?;
        ready = settled(env, 60, 1).await.with_context(|| format!("round {round}"))?;
        agents::wait_ready(cluster).await?;
        inspect(env, &ready).await.with_context(|| format!("after round {round}"))?;
    }
    look_inside(env, &ready).await
}

/// The scheduler itself says what is missing, and names the network.
async fn insufficient(env: &Env, net: &Net) -> Result<()> {
    let resource = names::resource(net.name());
    eventually("the scheduler to name the network", || async {
        let events = env.kubectl(&["get", "events", "--field-selector=reason=FailedScheduling"]).await?;
        ensure!(events.contains(&format!("Insufficient {resource}")), "{events}");
        Ok(())
    })
    .await
}

/// A pod that comes when the range is known to be full has the scheduling gate, so that no autoscaler adds a node for it.
async fn one_more_is_gated(env: &Env, net: &Net) -> Result<()> {
    let marked = format!("jsonpath={{.spec.networks[?(@.name==\"{}\")].gated}}", net.name());
    eventually("the network to be marked as full", || async {
        let gated = env.cluster.kubectl(&["get", "admission", names::ADMISSION, "-o", &marked]).await?;
        ensure!(gated == "true", "{gated:?}");
        Ok(())
    })
    .await?;
    scale(env, 62).await?;
    eventually("a gated pod to be told why", || async {
        let api: Api<Pod> = Api::namespaced(env.cluster.client(), &env.namespace);
        let pods = api.list(&ListParams::default().labels("app=churn")).await?.items;
        let is_gated = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.scheduling_gates.is_some());
        let gated = pods.iter().find(is_gated).context("no pod is gated")?;
        let told = fixtures::told(env, &gated.name_any(), Reason::NoAddresses).await?;
        ensure!(told.contains(net.name()), "{told}");
        Ok(())
    })
    .await?;
    scale(env, 61).await
}

/// On every exhausted node a pod starts that asks for nothing, and those that run stay.
async fn unrelated_pods_run_everywhere(
    env: &Env,
    cluster: &Cluster,
    before: &BTreeSet<String>,
) -> Result<()> {
    for node in cluster.nodes() {
        let mut pod = fixtures::pod(&format!("unrelated-{}", node.name()), "");
        pod["metadata"]["annotations"] = json!({});
        pod["metadata"]["labels"] = json!({ "app": "unrelated" });
        env.apply(&fixtures::on_node(pod, &node.name()).to_string()).await?;
    }
    env.wait_ready("app=unrelated").await?;
    let after = settled(env, before.len(), 1).await?;
    ensure!(after == *before, "{before:?} ran, {after:?} run");
    env.kubectl(&["delete", "pods", "-l", "app=unrelated", PATIENTLY]).await?;
    Ok(())
}

async fn registered_again(env: Arc<Env>) -> Result<()> {
    let (net, mut ready) = twelve_addresses(&env, "10.65.0").await?;
    for (round, node) in (0..).zip(env.cluster.nodes()) {
        let_go(&env, &ready, round, 3).await?;
        node.stop_kubelet().await?;
        node.start_kubelet()?;
        env.cluster.wait_for_node(node, EVENTUALLY).await?;
        ready = settled(&env, 12, 1).await.with_context(|| format!("kubelet of {}", node.name()))?;
        inspect(&env, &ready).await?;
    }
    let node = env.cluster.nodes().last().context("a node")?;
    let_go(&env, &ready, 5, 3).await?;
    env.cluster.kubectl(&["delete", "node", &node.name()]).await?;
    // It registers when it starts.
    node.stop_kubelet().await?;
    node.start_kubelet()?;
    env.cluster.wait_for_node(node, EVENTUALLY).await?;
    let ready = settled(&env, 12, 1).await.context("after the node was registered again")?;
    inspect(&env, &ready).await?;
    insufficient(&env, &net).await?;
    look_inside(&env, &ready).await
}

/// 14 addresses of a /28, less a gateway and an excluded one: all in use, and one pod too many.
async fn twelve_addresses(env: &Env, prefix: &str) -> Result<(Net, BTreeSet<String>)> {
    let (gateway, exclude) = (format!("{prefix}.1"), format!("{prefix}.14/32"));
    let net = scarce(env, &format!("{prefix}.0/28"), &gateway, &exclude).await?;
    start(env, &net, 13).await?;
    let ready = settled(env, 12, 1).await?;
    Ok((net, ready))
}

async fn agents_away(env: Arc<Env>) -> Result<()> {
    let (_, ready) = twelve_addresses(&env, "10.66.0").await?;
    agents::while_stopped(&env.cluster, async {
        let_go(&env, &ready, 1, 4).await?;
        tokio::time::sleep(AWAY).await;
        let stay = census(&env).await?.ready.len();
        ensure!(stay <= 8, "{stay} pods are ready, though no agent could attach the new ones");
        Ok(())
    })
    .await?;
    let ready = settled(&env, 12, 1).await?;
    inspect(&env, &ready).await?;
    look_inside(&env, &ready).await
}
