//! A pod's first container starts with its networks up, and they reach as far as the Network says.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use fairlead_crds::PodNetwork;

use crate::{
    fixtures::{self, Net},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("attach_the_first_container_sees_net1_with_both_addresses", first_container_sees_net1),
        Case::new("attach_an_uplink_reaches_pods_of_other_nodes", uplink_reaches_other_nodes),
        Case::new("attach_without_an_uplink_a_network_reaches_its_node", island_reaches_its_node),
        Case::new("attach_several_networks_get_the_names_asked_for", several_networks),
    ]
}

async fn first_container_sees_net1(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "blue", &["10.20.0.0/24", "fd00:20::/64"]);
    net.create(&env).await?;
    env.apply(&fixtures::deployment("web", 6, net.name()).to_string()).await?;
    env.wait_rollout("web").await?;
    let mut seen = BTreeSet::new();
    let pods = fixtures::pods(&env, "web").await?;
    ensure!(pods.len() == 6, "{pods:?}");
    for pod in &pods {
        let now = fixtures::addresses(&env, pod, "net1").await?;
        let first = fixtures::first_look(&env, &env.namespace, pod).await?;
        ensure!(now.len() == 2, "{pod} has {now:?}");
        for address in now {
            let looks = |line: &str| line.contains("net1") && line.contains(&address);
            ensure!(first.lines().any(looks), "{pod} did not see {address} at its start:\n{first}");
            ensure!(seen.insert(address.clone()), "{address} was given twice");
        }
    }
    let nodes = env.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]).await?;
    let nodes: BTreeSet<_> = nodes.split_whitespace().collect();
    ensure!(nodes.len() == 2, "all pods are on {nodes:?}");
    check_records(&env, net.name(), &pods, &seen).await?;
    check_rows(&env, net.name(), &seen).await
}

/// What people see in `kubectl get podnetworks`.
async fn check_rows(env: &Env, network: &str, used: &BTreeSet<String>) -> Result<()> {
    let rows = fixtures::table(env, "podnetworks").await?;
    let mut shown = BTreeSet::new();
    for row in &rows {
        let cell = |title: &str| row.get(title).map(String::as_str).unwrap_or_default();
        let pod = env.field(&format!("pod/{}", cell("POD")), ".spec.nodeName").await?;
        let right = pod == cell("NODE")
            && cell("NETWORKS") == network
            && cell("READY") == "True"
            && cell("REASON") == "Attached"
            && !cell("AGE").is_empty();
        ensure!(right, "{row:?}");
        shown.extend(cell("ADDRESSES").split(',').map(str::to_owned));
    }
    let used: BTreeSet<_> =
        used.iter().filter_map(|cidr| cidr.split('/').next()).map(str::to_owned).collect();
    ensure!(rows.len() == 6 && shown == used, "the rows show {shown:?}, pods use {used:?}");
    Ok(())
}

/// Every pod has one record, and the records hold exactly the addresses that are in use.
async fn check_records(env: &Env, network: &str, pods: &[String], used: &BTreeSet<String>) -> Result<()> {
    let records = fixtures::records(env).await?;
    let mut held = BTreeSet::new();
    for record in &records {
        let [attachment] = &record.spec.attachments[..] else { anyhow::bail!("{:?}", record.spec) };
        ensure!(attachment.network == network && attachment.interface.as_str() == "net1", "{attachment:?}");
        held.extend(attachment.addresses.iter().map(|held| held.address.to_string()));
        check_status(record)?;
    }
    let named: BTreeSet<_> = records.iter().map(|record| &record.spec.pod_name).collect();
    ensure!(named == pods.iter().collect(), "records of {named:?}, pods {pods:?}");
    ensure!(held == *used, "records hold {held:?}, pods use {used:?}");
    Ok(())
}

fn check_status(record: &PodNetwork) -> Result<()> {
    let status = record.status.as_ref().context("a record without a status")?;
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .context("no condition Ready")?;
    ensure!(ready.status == "True", "{}: {}", ready.reason, ready.message);
    let [interface] = &status.interfaces[..] else { anyhow::bail!("{:?}", status.interfaces) };
    let ips: BTreeSet<_> = interface.ips.iter().map(ToString::to_string).collect();
    let held = record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses);
    ensure!(ips == held.map(|held| held.address.to_string()).collect(), "{interface:?}");
    ensure!(status.sandbox.is_some(), "the record does not say in which sandbox it is");
    Ok(())
}

async fn uplink_reaches_other_nodes(env: Arc<Env>) -> Result<()> {
    let net = Net::uplink(&env, "wide", &["10.21.0.0/24", "fd00:21::/64"]);
    net.create(&env).await?;
    env.apply(&fixtures::deployment("far", 4, net.name()).to_string()).await?;
    env.wait_rollout("far").await?;
    let pods = fixtures::pods(&env, "far").await?;
    for pair in pods.windows(2) {
        fixtures::ping(&env, &pair[0], &pair[1]).await?;
        fixtures::ping(&env, &pair[1], &pair[0]).await?;
    }
    let path = [&format!("networks.fairlead.dev/{}", net.name()), ".status.reach"];
    let reach = env.field(path[0], path[1]).await?;
    ensure!(reach == "Underlay", "REACH says {reach}");
    Ok(())
}

async fn island_reaches_its_node(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "island", &["10.22.0.0/24"]);
    net.create(&env).await?;
    for (name, node) in [("one", "node1"), ("two", "node1"), ("away", "node2")] {
        let mut pod = fixtures::pod(name, net.name());
        pod["spec"]["nodeSelector"] = serde_json::json!({ "kubernetes.io/hostname": node });
        pod["metadata"]["labels"]["app"] = "island".into();
        env.apply(&pod.to_string()).await?;
    }
    env.wait_ready("app=island").await?;
    fixtures::ping(&env, "one", "two").await?;
    ensure!(fixtures::ping(&env, "one", "away").await.is_err(), "an island reached another node");
    let reach = env.field(&format!("networks.fairlead.dev/{}", net.name()), ".status.reach").await?;
    ensure!(reach == "Node", "REACH says {reach}");
    Ok(())
}

async fn several_networks(env: Arc<Env>) -> Result<()> {
    let (red, green) =
        (Net::island(&env, "red", &["10.23.0.0/24"]), Net::island(&env, "green", &["10.24.0.0/24"]));
    red.create(&env).await?;
    green.create(&env).await?;
    let networks = format!("{}@lan7,{}", red.name(), green.name());
    env.apply(&fixtures::pod("both", &networks).to_string()).await?;
    env.wait_ready("app=both").await?;
    for (interface, start) in [("lan7", "10.23.0."), ("net1", "10.24.0.")] {
        let found = fixtures::addresses(&env, "both", interface).await?;
        ensure!(found.len() == 1 && found[0].starts_with(start), "{interface} has {found:?}");
    }
    Ok(())
}
