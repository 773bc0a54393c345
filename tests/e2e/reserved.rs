//! Addresses that stay: asked for by value, or kept by a StatefulSet, and never with two holders.

mod sticky;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Reason, names};
use serde_json::{Value, json};

use crate::{
    fixtures::{self, Net, PATIENTLY, QUARANTINE, eventually},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("reserved_by_value_an_address_and_a_mac_are_the_pods", by_value),
        Case::new("reserved_values_that_cannot_be_given_have_their_sentence", refused),
        Case::new("reserved_addresses_of_a_statefulset_stay_on_any_node", sticky::stays).alone(),
        Case::new("reserved_addresses_of_a_lost_node_wait_for_the_word", sticky::node_loss).alone(),
    ]
}

/// 10.x.0.0/24 for any pod, but for 10.x.0.64/28, which is reserved.
fn network(env: &Env, name: &str, prefix: &str) -> Net {
    let ranges = json!([
        { "cidr": format!("{prefix}.0/24"), "exclude": [format!("{prefix}.64/28")], "gateway": format!("{prefix}.1") },
        { "cidr": format!("{prefix}.64/28"), "use": "Reserved", "gateway": format!("{prefix}.65"), "exclude": [format!("{prefix}.76/30")] },
    ]);
    Net::island(env, name, &[]).with("/ipam/ranges", ranges).with("/allowStatic", true.into())
}

fn asking(name: &str, net: &Net, more: &Value) -> Value {
    let mut request = json!({ "name": net.name() });
    request
        .as_object_mut()
        .into_iter()
        .for_each(|map| map.extend(more.as_object().cloned().unwrap_or_default()));
    fixtures::pod(name, &json!([request]).to_string())
}

async fn by_value(env: Arc<Env>) -> Result<()> {
    let net = network(&env, "value", "10.70.0");
    net.create(&env).await?;
    let one = |name: &str| asking(name, &net, &json!({ "ips": ["10.70.0.70"], "mac": "52:54:00:12:34:56" }));
    env.apply(&one("one").to_string()).await?;
    env.wait_ready("app=one").await?;
    let found = fixtures::addresses(&env, "one", "net1").await?;
    ensure!(found == ["10.70.0.70/24"], "{found:?}");
    let mac = env.exec("one", &["cat", "/sys/class/net/net1/address"]).await?;
    ensure!(mac.trim() == "52:54:00:12:34:56", "{mac}");
    let block = format!("ipblock/{}-10-70-0-70-32", env.space());
    let shown = env.kubectl(&["get", &block]).await?;
    ensure!(shown.contains(&format!("{}/one", env.namespace)), "{shown}");
    env.apply(&fixtures::pod("any", net.name()).to_string()).await?;
    env.wait_ready("app=any").await?;
    // On one node they see each other: the address keeps the prefix of the range it was cut out of.
    let any = fixtures::addresses(&env, "any", "net1").await?;
    ensure!(any.iter().all(|address| !address.starts_with("10.70.0.7")), "{any:?} was handed out");

    let uid = env.field("pod/one", ".metadata.uid").await?;
    env.kubectl(&["delete", "pod", "one", PATIENTLY]).await?;
    env.apply(&one("one").to_string()).await?;
    env.wait_ready("app=one").await?;
    let again = env.field(&block, ".spec.holder").await?;
    ensure!(again.contains("\"turn\":2") && !again.contains(&uid), "{again}");

    env.apply(&one("two").to_string()).await?;
    let message = fixtures::told(&env, "two", Reason::AddressTaken).await?;
    ensure!(message.contains(&format!("{}/one", env.namespace)), "{message}");
    let asked = std::time::Instant::now();
    env.kubectl(&["delete", "pod", "one", PATIENTLY]).await?;
    env.wait_ready("app=two").await?;
    ensure!(asked.elapsed() >= QUARANTINE, "another pod had the address after {:?}", asked.elapsed());
    let found = fixtures::addresses(&env, "two", "net1").await?;
    ensure!(found == ["10.70.0.70/24"], "{found:?}");
    env.kubectl(&["delete", "pod", "two", PATIENTLY]).await?;
    eventually("the claim to end with its last pod", || async {
        let left = env.kubectl(&["get", &block, "--ignore-not-found", "-o", "name"]).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

async fn refused(env: Arc<Env>) -> Result<()> {
    let net = network(&env, "wrong", "10.71.0");
    net.create(&env).await?;
    let cases = [
        ("outside", json!({ "ips": ["192.168.7.7"] }), "lies in no range of it"),
        ("family", json!({ "ips": ["fd00::7"] }), "has no IPv6 range with use: Reserved"),
        ("gateway", json!({ "ips": ["10.71.0.65"] }), "is the gateway of 10.71.0.64/28"),
        ("zero", json!({ "ips": ["10.71.0.64"] }), "is the network address of 10.71.0.64/28"),
        ("excluded", json!({ "ips": ["10.71.0.77"] }), "is excluded from 10.71.0.64/28"),
        ("any", json!({ "ips": ["10.71.0.9"] }), "whose addresses are handed out to any pod"),
        ("multicast", json!({ "mac": "01:00:5e:00:00:01" }), "is a multicast address"),
    ];
    for (name, more, _) in &cases {
        env.apply(&asking(name, &net, more).to_string()).await?;
    }
    for (name, _, sentence) in &cases {
        let message = fixtures::told(&env, name, Reason::AddressRefused).await?;
        ensure!(message.contains(sentence) && message.contains(net.name()), "{name}: {message}");
    }
    let twice = json!([
        { "name": net.name(), "ips": ["10.71.0.70"] }, { "name": net.name(), "ips": ["10.71.0.70/28"] }
    ]);
    env.apply(&fixtures::pod("twice", &twice.to_string()).to_string()).await?;
    let message = fixtures::told(&env, "twice", Reason::InvalidRequest).await?;
    ensure!(message.contains("is asked for twice"), "{message}");
    goes_on_by_itself(&env, &net).await
}

/// The network's word is enough: nobody has to touch the pod.
async fn goes_on_by_itself(env: &Env, net: &Net) -> Result<()> {
    let object = format!("networks.{}/{}", names::GROUP, net.name());
    let set = |value: &str| format!("{{\"spec\":{{\"allowStatic\":{value}}}}}");
    env.kubectl(&["patch", &object, "--type=merge", "-p", &set("false")]).await?;
    env.apply(&asking("cured", net, &json!({ "ips": ["10.71.0.70"] })).to_string()).await?;
    let message = fixtures::told(env, "cured", Reason::StaticNotAllowed).await?;
    ensure!(message.contains("allowStatic"), "{message}");
    env.kubectl(&["patch", &object, "--type=merge", "-p", &set("true")]).await?;
    env.wait_ready("app=cured").await?;
    let found = fixtures::addresses(env, "cured", "net1").await?;
    let first = found.first().context("no address")?;
    ensure!(first == "10.71.0.70/24", "{found:?}");
    Ok(())
}
