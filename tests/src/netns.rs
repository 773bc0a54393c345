//! Bridges in the root namespace, and a network namespace per node. Only names of [`Layout`] are touched.

use std::fs;

use anyhow::{Context, Result};

use crate::{
    layout::{self, Layout},
    process,
};

/// Makes both bridges.
pub async fn create_bridges(layout: Layout) -> Result<()> {
    let (primary, uplink) = (layout.primary_bridge(), layout.uplink_bridge());
    // A fixed MAC: without one a bridge takes that of its lowest port, and changes it when ports come.
    // Multicast snooping without a querier may starve neighbour discovery.
    batch(&[
        format!("link add {primary} address 02:66:6c:63:00:00 type bridge mcast_snooping 0"),
        format!("address add {}/24 dev {primary}", layout.api_address()),
        format!("link set {primary} up"),
        format!("link add {uplink} address 02:66:6c:63:00:01 type bridge mcast_snooping 0"),
        format!("link set {uplink} addrgenmode none"),
        // The machine answers for its addresses on every link; here it must not take part at all.
        format!("link set {uplink} arp off"),
        format!("link set {uplink} up"),
    ])
    .await
}

/// Makes the namespace of a node, its links to both bridges and its routes.
pub async fn create_node(layout: Layout, index: u8, nodes: u8) -> Result<()> {
    let netns = layout.netns(index);
    process::run(&["ip", "netns", "add", &netns]).await?;
    let mut root = Vec::new();
    for (bridge, inside) in [(layout.primary_bridge(), "eth0"), (layout.uplink_bridge(), layout::UPLINK)] {
        let port = Layout::host_port(&bridge, index);
        root.push(format!("link add {port} type veth peer name {inside} netns {netns}"));
        root.push(format!("link set {port} addrgenmode none"));
        root.push(format!("link set {port} master {bridge} up"));
    }
    // So that the API server's proxy reaches pods.
    root.push(format!("route replace {} via {}", layout.pod_cidr(index), layout.node_address(index)));
    batch(&root).await?;
    let inside = node_commands(layout, index, nodes);
    process::run_with_input(&["ip", "-netns", &netns, "-batch", "-"], &inside.join("\n")).await?;
    let path = format!("--net=/run/netns/{netns}");
    process::run(&["nsenter", &path, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]).await?;
    Ok(())
}

fn node_commands(layout: Layout, index: u8, nodes: u8) -> Vec<String> {
    let mut commands = vec![
        "link set lo up".to_owned(),
        format!("address add {}/24 dev eth0", layout.node_address(index)),
        "link set eth0 up".to_owned(),
        format!("link set {} addrgenmode none", layout::UPLINK),
        format!("link set {} up", layout::UPLINK),
        format!("route add default via {}", layout.api_address()),
    ];
    for other in (1..=nodes).filter(|other| *other != index) {
        commands.push(format!("route add {} via {}", layout.pod_cidr(other), layout.node_address(other)));
    }
    commands
}

/// Deletes a node's namespace and links, as far as they exist.
pub async fn delete_node(layout: Layout, index: u8) -> Result<()> {
    for bridge in [layout.primary_bridge(), layout.uplink_bridge()] {
        delete_link(&Layout::host_port(&bridge, index)).await?;
    }
    delete_netns(&layout.netns(index)).await
}

/// Deletes every namespace and link of the cluster, as far as they exist.
pub async fn delete_all(layout: Layout) -> Result<()> {
    for index in 1..=layout::MAX_NODES {
        delete_node(layout, index).await?;
    }
    for bridge in [layout.primary_bridge(), layout.uplink_bridge()] {
        delete_link(&bridge).await?;
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
    process::run_with_input(&["ip", "-batch", "-"], &input)
        .await
        .with_context(|| format!("while running:\n{input}"))?;
    Ok(())
}
