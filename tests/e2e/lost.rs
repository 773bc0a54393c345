//! A node loses its power: its addresses are nobody's until somebody says that it is off the network, and when it comes
//! back no two pods have one.

mod sniffer;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_tests::{Cluster, fairlead, node::Node, wait};
use serde_json::json;

use self::sniffer::Sniffer;
use crate::{
    agents,
    fixtures::{self, EVENTUALLY, Net, eventually},
    trial::{Case, Env},
};

/// Longer than an agent's Lease.
const SILENT: Duration = Duration::from_secs(60);
/// What the lost node might still send when it is back.
const LAST_LOOK: Duration = Duration::from_secs(10);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
/// As many as are left of the range and one more.
const RIVALS: usize = 6;

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("lost_nodes_keep_their_addresses_until_they_are_out_of_service", out_of_service).alone()]
}

async fn out_of_service(env: Arc<Env>) -> Result<()> {
    let grown = env.cluster.grow().await?;
    let outcome = async {
        let node = grown.nodes().last().context("a third node")?;
        fairlead::bring(&grown, node).await?;
        agents::wait_ready(&grown).await?;
        power_cut(&env, &grown, node).await
    }
    .await;
    let shrunk = env.cluster.shrink(&grown).await;
    outcome.and(shrunk)
}

async fn power_cut(env: &Env, cluster: &Cluster, node: &Node) -> Result<()> {
    let net = Net::uplink(env, "lost", &["10.69.0.0/29"])
        .with("/exhaustion", json!({ "resource": false, "taint": "None" }));
    net.create(env).await?;
    let lonely = fixtures::on_node(fixtures::pod("lonely", net.name()), &node.name());
    env.apply(&lonely.to_string()).await?;
    env.wait_ready("app=lonely").await?;
    let address = fixtures::addresses(env, "lonely", "net1").await?;
    let bridge = cluster.layout().uplink_bridge();
    let sniffer = Sniffer::start(&bridge, (1..=6).map(|host| Ipv4Addr::new(10, 69, 0, host)).collect())?;
    node.kill_all().await?;
    for number in 0..RIVALS {
        let rival = fixtures::on_node(fixtures::pod(&format!("rival-{number}"), net.name()), "node1");
        env.apply(&rival.to_string()).await?;
    }
    wait::stays(SILENT, "the address of the lost pod is nobody's", || async {
        let records = fixtures::records(env).await?;
        let holders = records.iter().filter(|record| holds(record, &address)).count();
        ensure!(holders == 1, "{holders} records have {address:?}");
        Ok(())
    })
    .await?;
    let name = node.name();
    cluster.kubectl(&["taint", "node", &name, OUT_OF_SERVICE]).await?;
    eventually("the lost pod's record to go", || async {
        let records = fixtures::records(env).await?;
        ensure!(records.iter().all(|record| record.spec.pod_name != "lonely"), "it is there");
        Ok(())
    })
    .await?;
    eventually("its address to be another pod's", || async {
        let records = fixtures::records(env).await?;
        ensure!(records.iter().any(|record| holds(record, &address)), "nobody has {address:?}");
        Ok(())
    })
    .await?;
    node.boot().await?;
    cluster.wait_for_node(node, EVENTUALLY).await?;
    cluster.kubectl(&["taint", "node", &name, &format!("{OUT_OF_SERVICE}-")]).await?;
    agents::wait_ready(cluster).await?;
    tokio::time::sleep(LAST_LOOK).await;
    sniffer.check()
}

fn holds(record: &fairlead_crds::PodNetwork, address: &[String]) -> bool {
    let held = record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses);
    held.into_iter().any(|held| address.contains(&held.address.to_string()))
}
