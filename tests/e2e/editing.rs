//! Networks are edited while pods use them: what is added or left out counts at once, what is taken away waits for its
//! last pod and says for whom.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Reason, names};
use serde_json::{Value, json};

use crate::{
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

const FIRST: &str = "10.68.0.0/29";
const SECOND: &str = "10.68.1.0/28";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("editing_adds_a_range_and_leaves_addresses_out_at_once", adds_and_leaves_out),
        Case::new("editing_takes_a_range_away_when_its_last_pod_is_gone", takes_away),
        Case::new("editing_gives_a_range_that_overlaps_to_nobody_else", overlaps),
    ]
}

/// Nothing but addresses keeps its pods waiting.
fn uncounted(env: &Env, name: &str, ranges: &[&str]) -> Net {
    Net::island(env, name, ranges).with("/exhaustion", json!({ "resource": false, "taint": "None" }))
}

async fn create_pod(env: &Env, net: &Net, name: &str) -> Result<()> {
    let pod = fixtures::on_node(fixtures::pod(name, net.name()), "node1");
    env.apply(&pod.to_string()).await?;
    Ok(())
}

async fn start(env: &Env, net: &Net, name: &str) -> Result<String> {
    create_pod(env, net, name).await?;
    env.wait_ready(&format!("app={name}")).await?;
    let found = fixtures::addresses(env, name, "net1").await?;
    found.into_iter().next().with_context(|| format!("{name} has no address"))
}

/// Sets the ranges of a Network that is in use, and waits as an admin would until its status says that the edit was seen.
async fn set_ranges(env: &Env, net: &Net, ranges: &Value) -> Result<()> {
    let patch = json!({ "spec": { "ipam": { "ranges": ranges } } }).to_string();
    let generation = "jsonpath={.metadata.generation}";
    let edited =
        env.kubectl(&["patch", &object(net), "--type=merge", "-p", &patch, "-o", generation]).await?;
    let seen = format!("--for=jsonpath={{.status.observedGeneration}}={}", edited.trim());
    env.kubectl(&["wait", &object(net), &seen, PATIENTLY]).await?;
    Ok(())
}

fn object(net: &Net) -> String {
    format!("networks.{}/{}", names::GROUP, net.name())
}

/// Six addresses, of which one node can claim all, since it is the only one with the network.
async fn adds_and_leaves_out(env: Arc<Env>) -> Result<()> {
    let net = uncounted(&env, "edited", &[FIRST])
        .with("/ipam/ranges/0/exclude", json!(["10.68.0.4/30"]))
        .with("/nodeSelector", json!({ "kubernetes.io/hostname": "node1" }));
    net.create(&env).await?;
    for name in ["one", "two", "three"] {
        start(&env, &net, name).await?;
    }
    create_pod(&env, &net, "four").await?;
    fixtures::told(&env, "four", Reason::NoAddresses).await?;
    let first = json!({ "cidr": FIRST, "exclude": ["10.68.0.4/30"] });
    set_ranges(&env, &net, &json!([first, { "cidr": SECOND, "exclude": ["10.68.1.8/29"] }])).await?;
    env.wait_ready("app=four").await?;
    let four = fixtures::addresses(&env, "four", "net1").await?;
    ensure!(four.len() == 1 && four[0].starts_with("10.68.1."), "{four:?}");

    // What one pod has is left out from now on: it keeps it, and nobody gets it again.
    let left_out = format!("{}/32", four[0].split('/').next().context("an address")?);
    set_ranges(&env, &net, &json!([first, { "cidr": SECOND, "exclude": ["10.68.1.8/29", left_out] }]))
        .await?;
    let kept = fixtures::addresses(&env, "four", "net1").await?;
    ensure!(kept == four, "{four:?} before, {kept:?} after");
    env.kubectl(&["delete", "pod", "four", PATIENTLY]).await?;
    // More pods than addresses: each one that could be given out is given out.
    let more: Vec<String> = (5..=11).map(|number| format!("pod-{number}")).collect();
    for name in &more {
        create_pod(&env, &net, name).await?;
    }
    // Seven addresses are usable, less the one that is left out.
    let ready = eventually("all of them but one to be Ready", || async {
        let records = fixtures::records(&env).await?.into_iter();
        let ready = records.filter(|record| record.status.as_ref().is_some_and(fixtures::is_ready));
        let ready: BTreeSet<_> =
            ready.map(|record| record.spec.pod_name).filter(|name| more.contains(name)).collect();
        ensure!(ready.len() + 1 == more.len(), "{ready:?} are");
        Ok(ready)
    })
    .await?;
    for name in &more {
        if ready.contains(name) {
            env.wait_ready(&format!("app={name}")).await?;
            let found = fixtures::addresses(&env, name, "net1").await?;
            ensure!(found != four, "{name} got {found:?}, which is left out");
        } else {
            fixtures::told(&env, name, Reason::NoAddresses).await?;
        }
    }
    Ok(())
}

async fn takes_away(env: Arc<Env>) -> Result<()> {
    let net = uncounted(&env, "drained", &[FIRST, SECOND]);
    net.create(&env).await?;
    let before = start(&env, &net, "stays").await?;
    ensure!(before.starts_with("10.68.0."), "{before}");
    set_ranges(&env, &net, &json!([{ "cidr": SECOND }])).await?;
    let message = format!(".status.conditions[?(@.type==\"{}\")].message", "Draining");
    let who = format!("{}/stays", env.namespace);
    eventually("the Network to say who is in the way", || async {
        let said = env.field(&object(&net), &message).await?;
        ensure!(said.contains(&who) && said.contains(FIRST), "{said:?}");
        Ok(())
    })
    .await?;
    let after = fixtures::addresses(&env, "stays", "net1").await?;
    ensure!(after == [before.clone()], "{before} before, {after:?} after");
    let later = start(&env, &net, "next").await?;
    ensure!(later.starts_with("10.68.1."), "{later} is of a range that was taken away");
    env.kubectl(&["delete", "pod", "stays", PATIENTLY]).await?;
    eventually("the range to be gone", || async {
        let ranges = env.field(&object(&net), ".status.ranges[*].cidr").await?;
        let said = env.field(&object(&net), &message).await?;
        ensure!(ranges == SECOND && said.is_empty(), "{ranges}: {said}");
        Ok(())
    })
    .await?;
    // Deleted, it counts what is left.
    env.kubectl(&["delete", &object(&net), "--wait=false"]).await?;
    let in_use = ".status.conditions[?(@.type==\"InUse\")].message";
    eventually("the Network to count what is left", || async {
        let said = env.field(&object(&net), in_use).await?;
        ensure!(said.contains("attachments of pods left: 1") && said.contains("next"), "{said:?}");
        Ok(())
    })
    .await?;
    env.kubectl(&["delete", "pod", "next", PATIENTLY]).await?;
    eventually("the Network to go", || async {
        let left = env.kubectl(&["get", &object(&net), "--ignore-not-found", "-o", "name"]).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// Two Networks of one space are edited towards each other at once: one of them gets the range, the other is told.
async fn overlaps(env: Arc<Env>) -> Result<()> {
    let (one, two) = (uncounted(&env, "one", &["10.68.2.0/28"]), uncounted(&env, "two", &["10.68.3.0/28"]));
    one.create(&env).await?;
    two.create(&env).await?;
    let add = |own: &str| json!([{ "cidr": own }, { "cidr": "10.68.4.0/28" }]);
    let (first, second) = (add("10.68.2.0/28"), add("10.68.3.0/28"));
    futures::try_join!(set_ranges(&env, &one, &first), set_ranges(&env, &two, &second))?;
    let state = r#".status.ranges[?(@.cidr=="10.68.4.0/28")].state"#;
    let message = r#".status.conditions[?(@.type=="Accepted")].message"#;
    eventually("one of both to be told", || async {
        let states = (env.field(&object(&one), state).await?, env.field(&object(&two), state).await?);
        let (loser, winner) = match (states.0.as_str(), states.1.as_str()) {
            ("Admitted", "Refused") => (&two, &one),
            ("Refused", "Admitted") => (&one, &two),
            _ => anyhow::bail!("{states:?}"),
        };
        let said = env.field(&object(loser), message).await?;
        ensure!(said.contains(winner.name()), "{said:?} does not name {}", winner.name());
        Ok(())
    })
    .await?;
    // Both go on with what they had.
    start(&env, &one, "first").await?;
    start(&env, &two, "second").await?;
    Ok(())
}
