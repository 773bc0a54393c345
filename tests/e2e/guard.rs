//! Pods held by the runtime: what the guard refuses, and what happens on each kind of node while it or the agent is
//! away. docs/hold.md has the table, and says which of its cells are trials here.
//!
//! The pods are in `kube-system`, which no admission policy touches: what a policy writes is written here by hand.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_crds::{Reason, names};
use fairlead_tests::{
    Cluster, fairlead,
    node::{NRI_PLUGINS, Node, Nri},
    wait,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{
    agents,
    fixtures::{self, Net, PATIENTLY, eventually},
    trial::{Case, Env},
};

const NAMESPACE: &str = "kube-system";
/// Longer than two tries, so that what stays refused was refused more than once.
const TWO_TRIES: Duration = Duration::from_secs(32);

const NOT_SEEN: &str = "the pod's networks are not attached: the agent of this node has not seen this pod";
/// What a strict node says where no guard is connected.
pub const NO_PLUGIN: &str = "required plugin \"fairlead-guard\" not present";
/// What the runtime says when a validator did not answer, or hung up.
const NO_ANSWER: &str = "fairlead-guard failed";
/// What it says when the validator did not answer in time.
pub const LATE: &str = "fairlead-guard failed: context deadline exceeded";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    [
        Case::new("guard_refuses_containers_until_the_networks_are_attached", refuses_until_attached),
        Case::new("guard_holds_while_the_agent_is_killed", |env| agent_killed(env, Nri::Plain)),
        Case::new("guard_holds_while_the_agent_is_killed_on_a_strict_node", |env| {
            agent_killed(env, Nri::Strict)
        }),
        Case::new("guard_holds_while_the_agent_hangs", |env| agent_hangs(env, Nri::Plain)),
        Case::new("guard_holds_while_the_agent_hangs_on_a_strict_node", |env| agent_hangs(env, Nri::Strict)),
        Case::new("guard_that_hangs_leaves_the_hold_to_the_agent", |env| guard_hangs(env, Nri::Plain)),
        Case::new("guard_that_hangs_lets_nothing_through_on_a_strict_node", |env| {
            guard_hangs(env, Nri::Strict)
        }),
        Case::new("guard_and_agent_gone_let_everything_through", |env| both_gone(env, Nri::Plain)),
        Case::new("guard_and_agent_gone_let_nothing_through_on_a_strict_node", |env| {
            both_gone(env, Nri::Strict)
        }),
        Case::new("guard_in_the_plugin_folder_holds_without_the_daemon_set", preinstalled),
        Case::new("guard_without_a_plugin_interface_leaves_the_gate", no_plugins),
    ]
    .into_iter()
    .map(Case::alone)
    .collect()
}

/// A pod as the policies make it for `hold: Nri`, on one node.
fn held(name: &str, networks: &str, node: &Node) -> Value {
    let mut pod = fixtures::on_node(fixtures::pod(name, networks), &node.name());
    pod["metadata"]["namespace"] = json!(NAMESPACE);
    pod["metadata"]["annotations"][names::HOLD_ANNOTATION] = json!(names::HOLD_NRI);
    let required = json!([names::GUARD_PLUGIN]).to_string();
    pod["metadata"]["annotations"][names::REQUIRED_PLUGINS_ANNOTATION] = json!(required);
    pod
}

async fn kubectl(env: &Env, arguments: &[&str]) -> Result<String> {
    env.cluster.kubectl(&[&["-n", NAMESPACE][..], arguments].concat()).await
}

/// A held pod of a trial; it wants a network that its agent can attach.
struct Subject {
    name: String,
    node: Node,
}

impl Subject {
    /// Creates the pod on the node; its Network has to be there or not, as the trial wants it.
    async fn create(env: &Env, networks: &str, node: &Node) -> Result<Self> {
        let name = env.unique(networks);
        env.delete_of_namespace_at_the_end(NAMESPACE, &format!("pod/{name}"));
        env.cluster.apply(&held(&name, networks, node).to_string()).await?;
        Ok(Self { name, node: node.clone() })
    }

    /// Waits until an event of the pod has this in its sentence. The pod's status shows the last try only, and the
    /// kubelet may try again at once.
    async fn is_refused(&self, env: &Env, sentence: &str) -> Result<()> {
        let of_the_pod = format!("--field-selector=involvedObject.name={}", self.name);
        let path = r#"jsonpath={range .items[?(@.reason=="Failed")]}{.message}{"\n"}{end}"#;
        eventually(&format!("a refusal that says {sentence:?}"), || async {
            let refusals = kubectl(env, &["get", "events", &of_the_pod, "-o", path]).await?;
            ensure!(refusals.contains(sentence), "its events say {refusals:?}");
            Ok(())
        })
        .await
    }

    /// No container of the pod runs, asked from the runtime.
    async fn runs_nothing(&self, env: &Env) -> Result<()> {
        let uid = kubectl(env, &["get", "pod", &self.name, "-o", "jsonpath={.metadata.uid}"]).await?;
        let running = self.node.containers(&uid).await?;
        let names: Vec<_> = running.into_iter().filter_map(|container| container.name).collect();
        ensure!(names.is_empty(), "{names:?} of {} runs", self.name);
        Ok(())
    }

    async fn stays_refused(&self, env: &Env) -> Result<()> {
        let what = format!("{} runs nothing", self.name);
        wait::stays(TWO_TRIES, &what, || async { self.runs_nothing(env).await }).await
    }

    async fn starts(&self, env: &Env) -> Result<()> {
        kubectl(env, &["wait", "pod", &self.name, "--for=condition=Ready", PATIENTLY]).await?;
        Ok(())
    }

    /// It started, and its first container found the interface.
    async fn starts_attached(&self, env: &Env) -> Result<()> {
        self.starts(env).await?;
        let look = fixtures::first_look(env, NAMESPACE, &self.name).await?;
        ensure!(look.contains(" net1 "), "the first container saw\n{look}");
        Ok(())
    }
}

/// Restarts the runtime of the first node as such a node, and as it was after `body`.
async fn on_a_node<T>(env: &Arc<Env>, nri: Nri, body: impl AsyncFnOnce(Node) -> Result<T>) -> Result<T> {
    let node = env.cluster.nodes().first().context("a node")?.clone();
    restart(&node, nri).await?;
    agents::wait_ready(&env.cluster).await?;
    if matches!(nri, Nri::Plain | Nri::Strict) {
        wait_for_guard(&env.cluster, &node).await?;
    }
    let outcome = body(node.clone()).await;
    restart(&node, env.cluster.nri()).await?;
    agents::wait_ready(&env.cluster).await?;
    outcome
}

/// Waits until the guard is a plugin of the runtime that was just started: one that is stopped before is none.
async fn wait_for_guard(cluster: &Cluster, node: &Node) -> Result<()> {
    let pod = agents::pod(cluster, node).await?.name_any();
    let wait = ["/fairlead-guard", "wait", "--report", "/run/fairlead/guard"];
    let exec = ["exec", "-n", names::INSTALL_NAMESPACE, &pod, "-c", "guard", "--"];
    eventually("the guard to be connected", || async {
        cluster.kubectl(&[&exec[..], &wait[..]].concat()).await.map(drop)
    })
    .await
}

/// The same for all nodes, made strict by the runtime's validator, once they say so.
pub async fn on_strict_nodes<T>(env: &Arc<Env>, body: impl Future<Output = Result<T>>) -> Result<T> {
    for node in env.cluster.nodes() {
        restart(node, Nri::Strict).await?;
    }
    let outcome = async {
        agents::wait_ready(&env.cluster).await?;
        for node in env.cluster.nodes() {
            create_a_container(env, node, "witness").await?;
            says(env, node, names::HOLD_NRI_STRICT, Reason::DefaultValidator).await?;
        }
        body.await
    }
    .await;
    let restored = back_to_gates(env).await;
    let outcome = outcome?;
    restored?;
    Ok(outcome)
}

async fn back_to_gates(env: &Env) -> Result<()> {
    for node in env.cluster.nodes() {
        restart(node, env.cluster.nri()).await?;
    }
    agents::wait_ready(&env.cluster).await?;
    // Only nodes on which containers are created tell that they changed, and a pod that is created before that waits
    // for a strict node for good.
    for node in env.cluster.nodes() {
        create_a_container(env, node, "again").await?;
    }
    wait_for_auto(&env.cluster, "Gate").await
}

/// What holds pods whose networks leave it open.
pub async fn wait_for_auto(cluster: &Cluster, hold: &str) -> Result<()> {
    eventually(&format!("the Admission to say {hold}"), || async {
        let admission = format!("admissions.{}/{}", names::GROUP, names::ADMISSION);
        let said = cluster.kubectl(&["get", &admission, "-o", "jsonpath={.spec.hold}"]).await?;
        ensure!(said == hold, "it says {said:?}");
        Ok(())
    })
    .await
}

async fn restart(node: &Node, nri: Nri) -> Result<()> {
    node.stop_containerd().await?;
    node.start_containerd_with(nri).await
}

/// A container on the node: with each that it creates, the runtime shows its plugins.
pub async fn create_a_container(env: &Env, node: &Node, stem: &str) -> Result<()> {
    let name = format!("{stem}-{}", node.name());
    let mut pod = fixtures::on_node(fixtures::pod(&name, ""), &node.name());
    pod["metadata"]["annotations"] = json!({});
    env.apply(&pod.to_string()).await?;
    env.wait_ready(&format!("app={name}")).await
}

/// The node's label and the condition of its `NodeNetwork` say how it can hold.
async fn says(env: &Env, node: &Node, hold: &str, reason: Reason) -> Result<()> {
    eventually(&format!("{} to say {hold}", node.name()), || async {
        let label = format!("jsonpath={{.metadata.labels.{}}}", names::HOLD_LABEL.replace('.', "\\."));
        let label = env.cluster.kubectl(&["get", "node", &node.name(), "-o", &label]).await?;
        let path = "jsonpath={.status.hold} {.status.conditions[?(@.type=='HoldStrict')].reason}";
        let said = env.cluster.kubectl(&["get", "nodenetwork", &node.name(), "-o", path]).await?;
        ensure!(
            label == hold && said == format!("{hold} {reason}"),
            "the label says {label:?}, the status {said:?}"
        );
        Ok(())
    })
    .await
}

/// What is in the refusal while a Network does not exist, whether it is the agent's or the guard's.
fn not_found(net: &Net) -> String {
    format!("{}: network {} does not exist", Reason::NetworkNotFound, net.name())
}

async fn island(env: &Env) -> Result<Net> {
    let net = Net::island(env, "held", &["10.60.0.0/24"]);
    net.create(env).await?;
    Ok(net)
}

async fn refuses_until_attached(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "held", &["10.60.0.0/24"]);
    on_a_node(&env, Nri::Strict, async |node| {
        let pod = Subject::create(&env, net.name(), &node).await?;
        // The agent's reason is in the refusal.
        pod.is_refused(&env, &not_found(&net)).await?;
        create_a_container(&env, &node, "witness").await?;
        says(&env, &node, names::HOLD_NRI_STRICT, Reason::DefaultValidator).await?;
        // The kubelet starts ephemeral containers before all others.
        kubectl(
            &env,
            &["debug", &pod.name, "--image=busybox:stable", "--container=debugger", "--", "sleep", "600"],
        )
        .await?;
        pod.stays_refused(&env).await?;
        net.create(&env).await?;
        pod.starts_attached(&env).await?;
        Ok(())
    })
    .await
}

/// A killed agent is started again by the kubelet: killed whenever it runs, until the guard has refused.
async fn agent_killed(env: Arc<Env>, nri: Nri) -> Result<()> {
    let net = island(&env).await?;
    on_a_node(&env, nri, async |node| {
        let guard = agents::container_pids(&env.cluster, &node, "guard").await?;
        let killed = agents::kept_dead(&node, async {
            let pod = Subject::create(&env, net.name(), &node).await?;
            pod.is_refused(&env, NOT_SEEN).await?;
            pod.runs_nothing(&env).await?;
            Ok(pod)
        });
        let pod = killed.await?;
        pod.starts_attached(&env).await?;
        let now = agents::container_pids(&env.cluster, &node, "guard").await?;
        ensure!(now == guard, "the guard was restarted: {guard:?} before, {now:?} after");
        Ok(())
    })
    .await
}

async fn agent_hangs(env: Arc<Env>, nri: Nri) -> Result<()> {
    let net = island(&env).await?;
    on_a_node(&env, nri, async |node| {
        let pod = agents::while_frozen(&env.cluster, &node, "agent", async {
            let pod = Subject::create(&env, net.name(), &node).await?;
            pod.is_refused(&env, NOT_SEEN).await?;
            pod.runs_nothing(&env).await?;
            Ok(pod)
        })
        .await?;
        pod.starts_attached(&env).await?;
        Ok(())
    })
    .await
}

/// The container at hand is refused. Then the runtime does without the guard: on a plain node the agent alone holds.
async fn guard_hangs(env: Arc<Env>, nri: Nri) -> Result<()> {
    let (net, late) = (island(&env).await?, Net::island(&env, "late", &["10.61.0.0/24"]));
    on_a_node(&env, nri, async |node| {
        let pod = agents::while_frozen(&env.cluster, &node, "guard", async {
            let pod = Subject::create(&env, net.name(), &node).await?;
            pod.is_refused(&env, NO_ANSWER).await?;
            if nri == Nri::Strict {
                pod.is_refused(&env, NO_PLUGIN).await?;
                pod.runs_nothing(&env).await?;
            } else {
                pod.starts_attached(&env).await?;
                let other = Subject::create(&env, late.name(), &node).await?;
                other.is_refused(&env, &not_found(&late)).await?;
                other.stays_refused(&env).await?;
            }
            Ok(pod)
        })
        .await?;
        // Connected again by itself.
        pod.starts_attached(&env).await?;
        Ok(())
    })
    .await
}

async fn both_gone(env: Arc<Env>, nri: Nri) -> Result<()> {
    let net = Net::island(&env, "held", &["10.60.0.0/24"]);
    on_a_node(&env, nri, async |node| {
        let pod = agents::while_stopped(&env.cluster, async {
            let pod = Subject::create(&env, net.name(), &node).await?;
            match nri {
                Nri::Strict => {
                    pod.is_refused(&env, NO_PLUGIN).await?;
                    pod.stays_refused(&env).await?;
                }
                _ => pod.starts(&env).await?,
            }
            Ok(pod)
        })
        .await?;
        if nri == Nri::Strict {
            net.create(&env).await?;
            pod.starts_attached(&env).await?;
        }
        Ok(())
    })
    .await
}

async fn preinstalled(env: Arc<Env>) -> Result<()> {
    let net = island(&env).await?;
    let node = env.cluster.nodes().first().context("a node")?.clone();
    let outcome = async {
        fairlead::preinstall_guard(&env.cluster).await?;
        let files = node.exec(&["ls", "-A", NRI_PLUGINS]).await?;
        ensure!(files.trim() == "10-fairlead-guard", "the plugin folder has {files:?}");
        create_a_container(&env, &node, "witness").await?;
        says(&env, &node, names::HOLD_NRI_STRICT, Reason::GuardPreinstalled).await?;
        let pod = agents::while_stopped(&env.cluster, async {
            let pod = Subject::create(&env, net.name(), &node).await?;
            pod.is_refused(&env, NOT_SEEN).await?;
            pod.stays_refused(&env).await?;
            Ok(pod)
        })
        .await?;
        pod.starts_attached(&env).await?;
        Ok(())
    }
    .await;
    // As `kubectl fairlead uninstall` does it, but for the rest of fairlead.
    fairlead::apply(&env.cluster).await?;
    for node in env.cluster.nodes() {
        node.exec(&["rm", "-f", &format!("{NRI_PLUGINS}/10-fairlead-guard")]).await?;
        restart(node, env.cluster.nri()).await?;
    }
    agents::wait_ready(&env.cluster).await?;
    outcome
}

async fn no_plugins(env: Arc<Env>) -> Result<()> {
    let net = island(&env).await?;
    on_a_node(&env, Nri::Off, async |node| {
        says(&env, &node, names::HOLD_GATE, Reason::NoGuard).await?;
        let pod = fixtures::on_node(fixtures::pod("gated", net.name()), &node.name());
        env.apply(&pod.to_string()).await?;
        env.wait_ready("app=gated").await?;
        // Nothing holds a pod that asks for what the node does not have: the node selector keeps it away.
        let pod = Subject::create(&env, "no-such-network", &node).await?;
        pod.starts(&env).await?;
        Ok(())
    })
    .await
}
