//! Pods that plugins of the container runtime hold, instead of a gate.
//!
//! The pods are in a namespace that admission leaves alone, so that they are held as the trial says.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fairlead_crds::{PodNetwork, names};
use fairlead_tests::fairlead;
use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{
    agents,
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

const NAMESPACE: &str = "kube-system";
const PODS: usize = 10;
/// What an attach is made to take: longer than the runtime allows its plugins, and than this trial lasts.
const SLOW: &str = "slow-=3600";
const KNOB: &str = "FAIRLEAD_TEST_SLOW_ATTACH";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("nri_the_first_container_sees_net1_without_a_gate", sees_net1),
        Case::new("nri_containers_are_refused_with_the_reason_until_the_network_is_there", refused),
        Case::new("nri_a_slow_attach_neither_lets_its_pod_start_nor_stalls_others", slow).alone(),
        Case::new("nri_a_pod_that_started_unheld_is_found_and_attached_late", unheld).alone(),
    ]
}

/// Pods of one trial, deleted with it.
struct Held<'a> {
    env: &'a Env,
    app: String,
}

impl<'a> Held<'a> {
    fn new(env: &'a Env, app: &str) -> Self {
        Self { env, app: env.unique(app) }
    }

    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.app)
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.env.cluster.kubectl(&[&["-n", NAMESPACE][..], arguments].concat()).await
    }

    /// The pod says when it was attached: after it was created, and before its container started.
    async fn check_attached_at(&self, number: usize) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.env.cluster.client(), NAMESPACE);
        let pod = pods.get(&self.name(number)).await?;
        let said = pod.annotations().get(names::ATTACHED_AT_ANNOTATION).context("no time")?;
        let at: Timestamp = said.parse()?;
        let created = pod.creation_timestamp().context("never created")?.0;
        let state = pod.status.and_then(|status| status.container_statuses?.into_iter().next()?.state);
        let running = state.and_then(|state| state.running?.started_at).context("it does not run")?.0;
        // Both are of the second that began.
        ensure!(created <= at && at < running + SignedDuration::from_secs(1), "{created}, {at}, {running}");
        Ok(())
    }

    /// Creates pods on one node.
    async fn create(&self, count: usize, network: &str, node: &str) -> Result<()> {
        let pods: Vec<Value> = (0..count).map(|number| self.pod(number, network, node)).collect();
        let names = (0..count).map(|number| format!("pod/{}", self.name(number)));
        names.for_each(|pod| self.env.delete_of_namespace_at_the_end(NAMESPACE, &pod));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": pods });
        self.env
            .cluster
            .kubectl_with_input(&["-n", NAMESPACE, "create", "-f", "-"], &list.to_string())
            .await?;
        Ok(())
    }

    fn pod(&self, number: usize, network: &str, node: &str) -> Value {
        let mut pod = fixtures::on_node(fixtures::pod(&self.name(number), network), node);
        pod["metadata"]["labels"]["app"] = self.app.clone().into();
        pod["metadata"]["annotations"][names::HOLD_ANNOTATION] = names::HOLD_NRI.into();
        pod
    }

    async fn wait_ready(&self) -> Result<()> {
        let selector = format!("app={}", self.app);
        self.kubectl(&["wait", "pods", "-l", &selector, "--for=condition=Ready", PATIENTLY]).await?;
        Ok(())
    }

    /// What a pod's first container saw when it started.
    async fn first_look(&self, number: usize) -> Result<String> {
        fixtures::first_look(self.env, NAMESPACE, &self.name(number)).await
    }

    async fn record(&self, number: usize) -> Result<PodNetwork> {
        let api: Api<PodNetwork> = Api::namespaced(self.env.cluster.client(), NAMESPACE);
        let label = format!("{}={}", names::POD_LABEL, names::pod_label(&self.name(number)));
        let found = api.list(&ListParams::default().labels(&label)).await?.items;
        found.into_iter().next().with_context(|| format!("{} has no record", self.name(number)))
    }

    /// Status and reason of a condition of a pod's record.
    async fn condition(&self, number: usize, type_: &str) -> Result<(String, String)> {
        let conditions = self.record(number).await?.status.context("a record without a status")?.conditions;
        let found = conditions.into_iter().find(|condition| condition.type_ == type_);
        found.map(|found| (found.status, found.reason)).with_context(|| format!("no condition {type_}"))
    }

    async fn events(&self, number: usize) -> Result<String> {
        let about = format!("involvedObject.name={}", self.name(number));
        self.kubectl(&["get", "events", "--field-selector", &about, "-o", "jsonpath={.items[*].message}"])
            .await
    }

    /// Waits until an event of a pod has these words.
    async fn wait_for_words(&self, number: usize, words: &str) -> Result<()> {
        eventually(&format!("an event of {} that says {words:?}", self.name(number)), || async {
            let said = self.events(number).await?;
            ensure!(said.contains(words), "the events say {said:?}");
            Ok(())
        })
        .await
    }

    /// Checks that the first container of each of so many pods saw its interface.
    async fn all_saw_net1(&self, count: usize) -> Result<()> {
        for number in 0..count {
            let seen = self.first_look(number).await?;
            ensure!(seen.contains("net1"), "{} started without net1:\n{seen}", self.name(number));
        }
        Ok(())
    }
}

async fn sees_net1(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "held", &["10.70.0.0/24", "fd00:70::/64"]);
    net.create(&env).await?;
    let held = Held::new(&env, "held");
    held.create(PODS, net.name(), "node1").await?;
    held.wait_ready().await?;
    for number in 0..PODS {
        let seen = held.first_look(number).await?;
        let addresses = seen.lines().filter(|line| line.contains("net1")).count();
        ensure!(addresses >= 2, "{} did not see its addresses at its start:\n{seen}", held.name(number));
        // The runtime need not wait for what is written when the interfaces are up.
        eventually(&format!("{} to say how it was held", held.name(number)), || async {
            let condition = held.condition(number, "Held").await?;
            ensure!(condition == ("True".into(), "Nri".into()), "Held is {condition:?}");
            held.check_attached_at(number).await
        })
        .await?;
    }
    Ok(())
}

async fn refused(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "later", &["10.71.0.0/24"]);
    let held = Held::new(&env, "early");
    held.create(1, net.name(), "node1").await?;
    let refusal = "fairlead: the pod's networks are not attached: NetworkNotFound: network";
    held.wait_for_words(0, &format!("{refusal} {}", net.name())).await?;
    net.create(&env).await?;
    held.wait_ready().await?;
    held.all_saw_net1(1).await
}

async fn slow(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "slow", &["10.72.0.0/24"]);
    net.create(&env).await?;
    let (slow, quick) = (Held::new(&env, "slow"), Held::new(&env, "quick"));
    with_knob(&env, async {
        slow.create(3, net.name(), "node1").await?;
        quick.create(PODS, net.name(), "node1").await?;
        quick.wait_ready().await?;
        quick.all_saw_net1(PODS).await?;
        for number in 0..3 {
            // These words make the kubelet try again soon.
            slow.wait_for_words(number, "network is not ready yet").await?;
            let seen = slow.first_look(number).await?;
            ensure!(seen.is_empty(), "{} started before it was attached:\n{seen}", slow.name(number));
        }
        Ok(())
    })
    .await?;
    slow.wait_ready().await?;
    slow.all_saw_net1(3).await
}

/// Runs `body` with agents that attach some pods late.
async fn with_knob(env: &Env, body: impl Future<Output = Result<()>>) -> Result<()> {
    set_knob(env, &format!("{KNOB}={SLOW}")).await?;
    let outcome = body.await;
    set_knob(env, &format!("{KNOB}-")).await?;
    outcome
}

async fn set_knob(env: &Env, setting: &str) -> Result<()> {
    let object = format!("daemonset/{}", names::AGENT);
    env.cluster.kubectl(&["set", "env", "-n", names::INSTALL_NAMESPACE, &object, setting]).await?;
    fairlead::wait_until_ready(&env.cluster).await?;
    agents::wait_ready(&env.cluster).await
}

async fn unheld(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "late", &["10.73.0.0/24"]);
    net.create(&env).await?;
    let held = Held::new(&env, "bare");
    agents::while_stopped(&env.cluster, async {
        held.create(1, net.name(), "node1").await?;
        eventually("the first container to have run", || async {
            let seen = held.first_look(0).await?;
            ensure!(!seen.is_empty() && !seen.contains("net1"), "it saw {seen:?}");
            Ok(())
        })
        .await
    })
    .await?;
    eventually("the pod to be found and attached late", || async {
        let (ready, said) = (held.condition(0, "Ready").await?, held.condition(0, "Held").await?);
        ensure!(said == ("False".into(), "StartedUnheld".into()), "Held is {said:?}");
        ensure!(ready.0 == "True", "Ready is {ready:?}");
        Ok(())
    })
    .await?;
    // Its later containers are held again, and refused ones tried again.
    held.wait_ready().await?;
    let now = held.kubectl(&["exec", &held.name(0), "--", "ip", "-o", "addr"]).await?;
    ensure!(now.contains("net1"), "it was not attached late:\n{now}");
    Ok(())
}
