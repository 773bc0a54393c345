//! Bridges in the root namespace, and a network namespace per node. Only names of [`layout`] are touched.

use std::fs;

use anyhow::{Context, Result};

use crate::{layout, process};

/// Makes both bridges.
pub async fn create_bridges() -> Result<()> {
    let (primary, uplink) = (layout::PRIMARY_BRIDGE, layout::UPLINK_BRIDGE);
    // A fixed MAC: without one a bridge takes that of its lowest port, and changes it when ports come.
    // Multicast snooping without a querier may starve neighbour discovery.
    batch(&[
        format!("link add {primary} address 02:fc:00:00:00:01 type bridge mcast_snooping 0"),
        format!("address add {}/24 dev {primary}", layout::API_ADDRESS),
        format!("link set {primary} up"),
        format!("link add {uplink} address 02:fc:00:00:01:01 type bridge mcast_snooping 0"),
        format!("link set {uplink} addrgenmode none"),
        format!("link set {uplink} up"),
    ])
    .await
}

/// Makes the namespace of a node, its links to both bridges and its routes.
pub async fn create_node(index: u8, nodes: u8) -> Result<()> {
    let netns = layout::netns_name(index);
    process::run(&["ip", "netns", "add", &netns]).await?;
    let mut root = Vec::new();
    for (bridge, inside) in [(layout::PRIMARY_BRIDGE, "eth0"), (layout::UPLINK_BRIDGE, layout::UPLINK)] {
        let port = layout::host_port(bridge, index);
        root.push(format!("link add {port} type veth peer name {inside} netns {netns}"));
        root.push(format!("link set {port} addrgenmode none"));
        root.push(format!("link set {port} master {bridge} up"));
    }
    // So that the API server's proxy reaches pods.
    root.push(format!("route add {} via {}", layout::pod_cidr(index), layout::node_address(index)));
    batch(&root).await?;
    let inside = node_commands(index, nodes);
    process::run_with_input(&["ip", "-netns", &netns, "-batch", "-"], &inside.join("\n")).await?;
    let sysctls = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
    let path = format!("--net=/run/netns/{netns}");
    process::run(&[&["nsenter", &path, "sysctl", "-q", "-w"][..], &sysctls[..]].concat()).await?;
    Ok(())
}

fn node_commands(index: u8, nodes: u8) -> Vec<String> {
    let mut commands = vec![
        "link set lo up".to_owned(),
        format!("address add {}/24 dev eth0", layout::node_address(index)),
        "link set eth0 up".to_owned(),
        format!("link set {} addrgenmode none", layout::UPLINK),
        format!("link set {} up", layout::UPLINK),
        format!("route add default via {}", layout::API_ADDRESS),
    ];
    for other in (1..=nodes).filter(|other| *other != index) {
        commands.push(format!("route add {} via {}", layout::pod_cidr(other), layout::node_address(other)));
    }
    commands
}

/// Deletes a node's namespace and links, as far as they exist.
pub async fn delete_node(index: u8) -> Result<()> {
    for bridge in [layout::PRIMARY_BRIDGE, layout::UPLINK_BRIDGE] {
        delete_link(&layout::host_port(bridge, index)).await?;
    }
    delete_netns(&layout::netns_name(index)).await
}

/// Deletes every namespace and link of the cluster, as far as they exist.
pub async fn delete_all() -> Result<()> {
    for index in 1..=layout::MAX_NODES {
        delete_node(index).await?;
    }
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if let Some(name) = entry.file_name().to_str().filter(|name| layout::is_our_netns(name)) {
            delete_netns(name).await?;
        }
    }
    for bridge in [layout::PRIMARY_BRIDGE, layout::UPLINK_BRIDGE] {
        delete_link(bridge).await?;
    }
    Ok(())
}

async fn delete_netns(name: &str) -> Result<()> {
    if fs::exists(format!("/run/netns/{name}"))? {
        process::run(&["ip", "netns", "delete", name]).await?;
    }
    Ok(())
}

async fn delete_link(name: &str) -> Result<()> {
    if fs::exists(format!("/sys/class/net/{name}"))? {
        process::run(&["ip", "link", "delete", name]).await?;
    }
    Ok(())
}

async fn batch(commands: &[String]) -> Result<()> {
    let input = commands.join("\n");
    process::run_with_input(&["ip", "-batch", "-"], &input).await.with_context(|| format!("while running:\n{input}"))?;
    Ok(())
}
