//! What else a user relies on: defaults, short names, columns, selectors, and that a typing error is noticed.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fairlead_crds::Network;
use serde_json::{Map, Value, json};

use super::{
    every::read,
    network,
    row::{patched, set},
    schema::{self, locate, nodes},
    server::{Answer, Server},
    specimen, values,
};
use crate::trial::Env;

/// What the API server stores, every program can read, or one odd object would stop all of them.
pub async fn readable(env: Arc<Env>) -> Result<()> {
    let server = super::server(&env, "Network").await?;
    let object = specimen::network(&server, &env.unique("odd"), &env.space()).objects.remove(0);
    // No routes, or they would be wrong as soon as the ranges are others.
    let object = patched(&object, &[set("/spec/routes", json!([]))])?;
    for odd in values::ODD {
        for text in odd.texts {
            let case = format!("{text:?} at {}", odd.path);
            let ranges = if text.contains(':') {
                json!([{ "cidr": "fd00::/64" }])
            } else {
                json!([{ "cidr": "10.20.0.0/16" }])
            };
            let operations = [set("/spec/ipam/ranges", ranges), set(odd.path, *text)];
            let answer =
                server.create(&patched(&object, &operations)?).await.with_context(|| case.clone())?;
            if let Some(reads) = odd.reads {
                let accepted = matches!(answer, Answer::Accepted(_));
                ensure!(
                    accepted == reads(text),
                    "{case}: the server accepts it: {accepted}; our programs do not agree"
                );
            }
            if let Answer::Accepted(stored) = answer {
                read::<Network>(&stored).context(case)?;
            }
        }
    }
    nulls(&server, &object).await
}

/// A null is as good as nothing wherever it is accepted.
async fn nulls(server: &Server, object: &Value) -> Result<()> {
    let schema = server.schema().await?;
    let pointers = nodes(&schema).into_iter().filter_map(|node| locate(object, &node.place));
    for pointer in pointers.filter(|pointer| pointer.starts_with("/spec/")) {
        let mut object = object.clone();
        if let Some(value) = object.pointer_mut(&pointer) {
            *value = Value::Null;
        }
        if let Answer::Accepted(stored) = server.create(&object).await.with_context(|| pointer.clone())? {
            read::<Network>(&stored).with_context(|| format!("null at {}", schema::field(&pointer)))?;
        }
    }
    Ok(())
}

/// The cost of rules is limited per request too: the largest object that the bounds allow must stay below.
pub async fn largest(env: Arc<Env>) -> Result<()> {
    let server = super::server(&env, "Network").await?;
    let spec = largest_spec(&env.space());
    let object = server.manifest(&env.unique("large"), &spec);
    server.create(&object).await?.accepted()?;
    // Transition rules cost too.
    server.make(object.clone()).await?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let edited = server.edit(name, &[set("/spec/mtu", 1400)]).await;
    server.remove(name).await?;
    edited?.accepted().map(drop)
}

fn largest_spec(space: &str) -> Value {
    let excluded =
        |i: usize| (0..32).map(|j| format!("fd00:20:{i:x}::{:x}00/120", j + 1)).collect::<Vec<_>>();
    let range = |i| json!({ "cidr": format!("fd00:20:{i:x}::/64"), "gateway": format!("fd00:20:{i:x}::1"), "exclude": excluded(i), "blockPrefix": 120 });
    let route = |i| json!({ "to": format!("fd99:20:{i:x}::/64"), "via": "fd00:20:f::1" });
    let labels: Map<_, _> = (0..8)
        .map(|i| (format!("{}.example/{i}{}", "a".repeat(60), "b".repeat(62)), json!("c".repeat(63))))
        .collect();
    let requirement = |i| json!({ "key": format!("example/{i}{}", "b".repeat(62)), "operator": "In", "values": vec!["c".repeat(63); 16] });
    let selector =
        json!({ "matchLabels": labels, "matchExpressions": (0..8).map(requirement).collect::<Vec<_>>() });
    let attach =
        json!({ "podSelector": selector, "namespaceSelector": selector, "interface": "fifteen-letters" });
    let mut spec = network::base(space);
    spec["ipam"]["ranges"] = (1..=16).map(range).collect();
    spec["routes"] = (1..=64).map(route).collect();
    spec["attach"] = vec![attach; 16].into();
    spec["allowedNamespaces"] = json!({ "from": "Selector", "selector": selector });
    spec["nodeSelector"] = labels.into();
    spec
}

/// The smallest Network is stored with everything that it leaves out.
pub async fn defaults(env: Arc<Env>) -> Result<()> {
    let server = super::server(&env, "Network").await?;
    let spec = json!({
        "bridge": { "name": "br-trial", "uplink": { "none": {} } },
        "ipam": { "ranges": [{ "cidr": "10.20.0.0/16" }] },
        "allowedNamespaces": { "from": "All" },
        "attach": [{ "podSelector": {} }],
    });
    let stored = server.create(&server.manifest(&env.unique("plain"), &spec)).await?.accepted()?;
    let expected = json!({
        "bridge": {
            "name": "br-trial", "manage": "Create", "uplink": { "none": {} },
            "gateway": "None", "masquerade": false, "antiSpoof": false,
        },
        "ipam": {
            "space": "default",
            "ranges": [{ "cidr": "10.20.0.0/16", "use": "Pods" }],
            "quarantine": "130s", "hotplugReserve": 0, "identity": "None", "probe": "None",
        },
        "allowedNamespaces": { "from": "All" },
        "allowStatic": false,
        "attach": [{ "podSelector": {}, "namespaceSelector": {} }],
        "hold": "Auto",
        "unheld": "Attach",
        "exhaustion": { "resource": true, "taint": "PreferNoSchedule" },
    });
    ensure!(stored["spec"] == expected, "stored as {:#}", stored["spec"]);
    let sparse = set("/spec/exhaustion", json!({ "taint": "NoSchedule" }));
    let object = patched(&server.manifest(&env.unique("plain"), &spec), &[sparse])?;
    let stored = server.create(&object).await?.accepted()?;
    ensure!(stored["spec"]["exhaustion"]["resource"] == true, "stored as {:#}", stored["spec"]);
    Ok(())
}

/// `kubectl` refuses a field that does not exist and names it; other clients have it dropped.
pub async fn mistyped(env: Arc<Env>) -> Result<()> {
    let server = super::server(&env, "Network").await?;
    let object = server.manifest(&env.unique("typo"), &network::base(&env.space()));
    for (path, field) in [
        ("/spec/bridge/upLink", "spec.bridge.upLink"),
        ("/spec/ipam/ranges/0/blockprefix", "spec.ipam.ranges[0].blockprefix"),
        ("/spec/ipam/quarantaine", "spec.ipam.quarantaine"),
        ("/spec/bridge/uplink/none/at", "spec.bridge.uplink.none.at"),
    ] {
        let odd = patched(&object, &[set(path, "x")])?;
        let arguments = ["create", "--dry-run=server", "-f", "-"];
        let refused = env.cluster.kubectl_with_input(&arguments, &odd.to_string()).await;
        let message = format!("{:#}", refused.err().with_context(|| format!("{field} was accepted"))?);
        ensure!(message.contains(&format!("unknown field \"{field}\"")), "{message}");
        let stored = server.create(&odd).await?.accepted()?;
        ensure!(stored.pointer(path).is_none(), "{field} was kept: {stored}");
    }
    Ok(())
}

/// What `kubectl get` shows and finds.
pub async fn presentation(env: Arc<Env>) -> Result<()> {
    let blocks = super::server(&env, "IPBlock").await?;
    let records = super::server(&env, "PodNetwork").await?;
    let block = specimen::ip_block(&blocks, &env.space()).objects.remove(0);
    let record = specimen::pod_network(&records, "shown").objects.remove(0);
    blocks.make(block.clone()).await?;
    let outcome = match records.make(record).await {
        Ok(()) => selected(&env, &blocks, &records, &block).await,
        Err(error) => Err(error),
    };
    blocks.remove(block["metadata"]["name"].as_str().unwrap_or_default()).await?;
    records.remove("shown").await?;
    outcome?;
    for (short, columns) in [
        ("fnet", "NAME DRIVER REACH ACCEPTED REASON ADDRESSES UNCLAIMED AGE MESSAGE"),
        ("pnet", "NAME POD NODE NETWORKS ADDRESSES READY REASON AGE MESSAGE"),
        ("nnet", "NAME READY NETWORKS HOLD AGENT AGE"),
        ("ipblocks", "NAME NETWORK CIDR NODE CLAIM SPACE HOLDER KEPT BY AGE"),
        ("admissions", "NAME AGE"),
    ] {
        columns_of(&env, short, columns).await?;
    }
    Ok(())
}

async fn selected(env: &Env, blocks: &Server, records: &Server, block: &Value) -> Result<()> {
    let name = block["metadata"]["name"].as_str().unwrap_or_default();
    let fields = "spec.nodeName=nowhere,spec.network=none";
    ensure!(
        blocks.select(fields).await?.iter().any(|found| found == name),
        "{fields} does not select {name}"
    );
    for other in ["spec.nodeName=elsewhere", "spec.network=other"] {
        ensure!(blocks.select(other).await?.is_empty(), "{other} selects blocks");
    }
    ensure!(records.select("spec.nodeName=nowhere").await? == ["shown"], "the record is not selected");
    ensure!(records.select("spec.nodeName=elsewhere").await?.is_empty(), "another node's record is selected");
    let refused = records.select("spec.podName=shown").await;
    ensure!(refused.is_err(), "a field that is not selectable was accepted");
    let everything = env.kubectl(&["get", "fairlead", "-o", "name"]).await?;
    ensure!(everything.contains("podnetwork.fairlead.dev/shown"), "the category has only {everything}");
    Ok(())
}

/// The header is asked of the server: without objects `kubectl` prints none.
async fn columns_of(env: &Env, resource: &str, columns: &str) -> Result<()> {
    let server = super::server(env, kind_of(resource)).await?;
    let printed = server.columns().await?.join(" ").to_uppercase();
    ensure!(printed == columns, "{resource} has the columns {printed}");
    env.kubectl(&["get", resource]).await?;
    Ok(())
}

fn kind_of(resource: &str) -> &'static str {
    match resource {
        "fnet" => "Network",
        "pnet" => "PodNetwork",
        "nnet" => "NodeNetwork",
        "ipblocks" => "IPBlock",
        _ => "Admission",
    }
}
