//! An address that something else on the wire has is not used, and people learn who has it.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{IPBlock, names};
use kube::{Api, api::ListParams};
use serde_json::json;

use crate::{
    fixtures::{self, Net, eventually},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("probe_an_address_that_a_stranger_has_is_left_out", left_out)]
}

/// Two Networks on one wire with the same addresses in different spaces: each other's pods are strangers.
async fn left_out(env: Arc<Env>) -> Result<()> {
    let theirs = Net::uplink(&env, "theirs", &["10.98.7.0/29"]);
    theirs.create(&env).await?;
    let [first, second] = &env.cluster.nodes()[..2] else { unreachable!("the slice has two elements") };
    env.apply(&fixtures::on_node(fixtures::pod("stranger", theirs.name()), &first.name()).to_string())
        .await?;
    env.wait_ready("app=stranger").await?;
    let taken = fixtures::addresses(&env, "stranger", "net1").await?;
    let taken = taken.first().and_then(|cidr| cidr.split('/').next()).context("an address")?.to_owned();
    let mac = fixtures::record(&env, "stranger").await?.spec.attachments.first().context("net1")?.mac;

    let hosts: BTreeSet<String> = (1..=6).map(|host| format!("10.98.7.{host}")).collect();
    let free = hosts.iter().find(|address| **address != taken).context("another address")?;
    let others = hosts.iter().filter(|address| **address != taken && *address != free);
    let excluded: Vec<String> = others.map(|address| format!("{address}/32")).collect();
    let ours = Net::uplink(&env, "ours", &["10.98.7.0/29"])
        .with("/ipam/space", format!("{}x", env.space()).into())
        .with("/ipam/ranges/0/exclude", json!(excluded))
        .with("/ipam/probe", "300ms".into())
        .with("/exhaustion", json!({ "resource": false, "taint": "None" }))
        // No other node claims the stranger's address.
        .with("/nodeSelector", json!({ "kubernetes.io/hostname": second.name() }));
    ours.create(&env).await?;
    for pod in ["one", "two"] {
        let on_second = fixtures::on_node(fixtures::pod(pod, ours.name()), &second.name());
        env.apply(&on_second.to_string()).await?;
    }
    wait_for_conflict(&env, ours.name(), &taken, &mac.to_string()).await?;
    eventually("one of two pods to get the free address", || async {
        let mut got = BTreeSet::new();
        for record in fixtures::records(&env).await? {
            let ready = record.status.as_ref().is_some_and(fixtures::is_ready);
            if ready && record.spec.pod_name != "stranger" {
                got.extend(
                    record
                        .spec
                        .attachments
                        .iter()
                        .flat_map(|one| &one.addresses)
                        .map(|held| held.address.addr().to_string()),
                );
            }
        }
        ensure!(got == BTreeSet::from([free.clone()]), "{got:?}, and not {free}");
        Ok(())
    })
    .await?;
    let path =
        "jsonpath={.items[?(@.reason=='AddressInUse')].note}{.items[?(@.reason=='AddressInUse')].message}";
    eventually("the event that names the stranger", || async {
        let events = env.kubectl(&["get", "events", "-o", path]).await?;
        ensure!(events.contains(&taken) && events.contains(&mac.to_string()), "the event says {events:?}");
        Ok(())
    })
    .await
}

async fn wait_for_conflict(env: &Env, network: &str, address: &str, mac: &str) -> Result<()> {
    let blocks: Api<IPBlock> = Api::all(env.cluster.client());
    eventually(&format!("a block of {}/{network} to name {mac}", names::GROUP), || async {
        let all = blocks.list(&ListParams::default()).await?.items;
        let of_network = all.into_iter().filter(|block| block.spec.network == network);
        let conflicts: Vec<_> =
            of_network.flat_map(|block| block.status.unwrap_or_default().conflicts).collect();
        let named = conflicts.iter().any(|conflict| {
            (conflict.address.to_string(), conflict.mac.to_string()) == (address.to_owned(), mac.to_owned())
        });
        ensure!(named, "{conflicts:?}");
        Ok(())
    })
    .await
}
