//! Three pods of a StatefulSet, whatever happens to them: the same addresses, and never two holders.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use fairlead_crds::{PodNetwork, names};
use fairlead_tests::{Cluster, fairlead, node::Node, wait};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    agents,
    fixtures::{self, EVENTUALLY, Net, PATIENTLY, eventually},
    trial::Env,
};

const REPLICAS: usize = 3;
/// How often it is looked for a second holder.
const LOOK: Duration = Duration::from_millis(150);
/// IPv4 addresses of every namespace of a node, one a line.
const ALL_ADDRESSES: &str = "for n in $(ls /run/netns); do ip -n $n -4 -o addr show 2>/dev/null; done; true";

fn network(env: &Env, name: &str, prefix: &str) -> Net {
    let ranges = json!([{ "cidr": format!("{prefix}.0/28"), "use": "Reserved" }]);
    Net::island(env, name, &[]).with("/ipam/ranges", ranges).with("/ipam/identity", "StatefulSet".into())
}

fn stateful_set(net: &Net) -> Value {
    let mut set = fixtures::deployment("web", 3, net.name());
    set["kind"] = "StatefulSet".into();
    set["spec"]["serviceName"] = "web".into();
    set["spec"]["podManagementPolicy"] = "Parallel".into();
    // Spread where there is room: a drained node must not keep them waiting.
    set["spec"]["template"]["spec"]["topologySpreadConstraints"][0]["whenUnsatisfiable"] =
        "ScheduleAnyway".into();
    set["spec"]["template"]["spec"]["tolerations"] = json!([
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1 },
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1 },
    ]);
    set
}

/// The address of each pod, once all are Ready.
async fn addresses(env: &Env) -> Result<BTreeMap<String, String>> {
    eventually("all pods to be Ready", || async {
        let records = fixtures::records(env).await?;
        let ready: Vec<&PodNetwork> =
            records.iter().filter(|record| record.status.as_ref().is_some_and(fixtures::is_ready)).collect();
        let pods = fixtures::pods(env, "web").await?;
        ensure!(
            ready.len() == REPLICAS && records.len() == REPLICAS,
            "{} of {} are ready",
            ready.len(),
            records.len()
        );
        ensure!(pods.len() == REPLICAS, "{pods:?}");
        Ok(())
    })
    .await?;
    env.wait_ready("app=web").await?;
    let mut found = BTreeMap::new();
    for pod in fixtures::pods(env, "web").await? {
        let [address] = &fixtures::addresses(env, &pod, "net1").await?[..] else {
            bail!("{pod} has not one")
        };
        found.insert(pod, address.clone());
    }
    Ok(found)
}

/// Looks all the time whether an address has two holders: two records, or two links on any node.
struct Sentry {
    task: JoinHandle<()>,
    seen: Arc<Mutex<(usize, Option<String>)>>,
}

impl Sentry {
    fn start(env: &Arc<Env>, prefix: &'static str) -> Self {
        let seen = Arc::new(Mutex::new((0, None)));
        let (env, noted) = (Arc::clone(env), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            loop {
                // What cannot be asked now is asked again.
                let found = twice(&env, prefix).await.ok().flatten();
                note(&noted, found);
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { task, seen }
    }

    fn check(self) -> Result<()> {
        self.task.abort();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(seen.0 > 20, "only {} looks", seen.0);
        match &seen.1 {
            Some(found) => bail!("two holders: {found}"),
            None => Ok(()),
        }
    }
}

fn note(seen: &Mutex<(usize, Option<String>)>, found: Option<String>) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.0 += 1;
    seen.1 = seen.1.take().or(found);
}

async fn twice(env: &Env, prefix: &str) -> Result<Option<String>> {
    let mut holders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in env.cluster.nodes() {
        // One that is off has no links.
        let Ok(lines) = node.exec(&["sh", "-c", ALL_ADDRESSES]).await else { continue };
        for line in lines.lines() {
            let address = line.split_whitespace().nth(3).unwrap_or_default();
            if address.starts_with(prefix) {
                holders.entry(address.to_owned()).or_default().push(format!("{}: {line}", node.name()));
            }
        }
    }
    let double = holders.into_iter().find(|(_, links)| links.len() > 1);
    if let Some(double) = double {
        return Ok(Some(format!("{double:?}")));
    }
    let records: Api<PodNetwork> = Api::namespaced(env.cluster.client(), &env.namespace);
    let mut records_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in records.list(&ListParams::default()).await?.items {
        for held in record.spec.attachments.iter().flat_map(|attachment| &attachment.addresses) {
            let name = format!("{} on {}", record.spec.pod_uid, record.spec.node_name);
            records_of.entry(held.address.to_string()).or_default().push(name);
        }
    }
    Ok(records_of.into_iter().find(|(_, of)| of.len() > 1).map(|double| format!("{double:?}")))
}

/// Deleted, drained, forced: the same addresses.
pub async fn stays(env: Arc<Env>) -> Result<()> {
    let net = network(&env, "sticky", "10.72.0");
    net.create(&env).await?;
    let sentry = Sentry::start(&env, "10.72.0.");
    env.apply(&stateful_set(&net).to_string()).await?;
    let before = addresses(&env).await?;
    let same = async |what: &str| -> Result<()> {
        let after = addresses(&env).await.context(what.to_owned())?;
        ensure!(after == before, "{what}: {before:?} before, {after:?} after");
        Ok(())
    };
    env.kubectl(&["delete", "pods", "-l", "app=web", PATIENTLY]).await?;
    same("deleted").await?;
    env.kubectl(&["delete", "pods", "-l", "app=web", "--force", "--grace-period=0"]).await?;
    same("force deleted").await?;
    drain(&env.cluster, "node2").await?;
    let drained = same("drained").await;
    env.cluster.kubectl(&["uncordon", "node2"]).await?;
    drained?;
    let on =
        env.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"]).await?;
    ensure!(!on.contains("node2"), "the drained node has pods: {on}");
    env.kubectl(&["scale", "statefulset", "web", "--replicas=1"]).await?;
    eventually("one pod to be left", || async {
        let left = fixtures::records(&env).await?.len();
        ensure!(left == 1, "{left}");
        Ok(())
    })
    .await?;
    env.kubectl(&["scale", "statefulset", "web", "--replicas=3"]).await?;
    same("scaled down and up").await?;
    sentry.check()?;
    ends_with_the_set(&env, &net).await
}

async fn drain(cluster: &Cluster, node: &str) -> Result<()> {
    let options = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", PATIENTLY];
    cluster.kubectl(&[&["drain", node][..], &options].concat()).await?;
    Ok(())
}

async fn ends_with_the_set(env: &Env, net: &Net) -> Result<()> {
    env.kubectl(&["delete", "statefulset", "web", PATIENTLY]).await?;
    eventually("the claims to end with the StatefulSet", || async {
        let selector = format!("--field-selector=spec.network={}", net.name());
        let left = env.kubectl(&["get", "ipblocks", &selector, "-o", "name"]).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// Waits until every node has told the scheduler of the Network: before that, one that has gets all pods.
async fn wait_until_promised(env: &Env, net: &Net) -> Result<()> {
    let resource = names::resource(net.name());
    let allocatable = "jsonpath={range .items[*]}{.status.allocatable}{\"\\n\"}{end}";
    eventually("all nodes to promise addresses", || async {
        let promised = env.cluster.kubectl(&["get", "nodes", "-o", allocatable]).await?;
        ensure!(promised.lines().all(|node| node.contains(&resource)), "{promised}");
        Ok(())
    })
    .await
}

/// A node that is off keeps its addresses until somebody says that it is gone.
pub async fn node_loss(env: Arc<Env>) -> Result<()> {
    let net = network(&env, "loss", "10.73.0");
    net.create(&env).await?;
    wait_until_promised(&env, &net).await?;
    let sentry = Sentry::start(&env, "10.73.0.");
    env.apply(&stateful_set(&net).to_string()).await?;
    let before = addresses(&env).await?;
    let records = fixtures::records(&env).await?;
    let lost: Vec<String> = records
        .iter()
        .filter(|record| record.spec.node_name == "node2")
        .map(|record| record.spec.pod_name.clone())
        .collect();
    ensure!(!lost.is_empty() && lost.len() < REPLICAS, "the pods are not spread: {lost:?}");
    let node = env.cluster.node("node2")?.clone();
    node.kill_all().await?;
    let outcome = after_loss(&env, &lost, &before).await;
    bring_back(&env, &node).await?;
    outcome?;
    let after = addresses(&env).await?;
    ensure!(after == before, "with the node back: {before:?} before, {after:?} after");
    sentry.check()
}

async fn after_loss(env: &Env, lost: &[String], before: &BTreeMap<String, String>) -> Result<()> {
    for pod in lost {
        env.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]).await?;
    }
    // The new pods are there, and wait: nobody has said that the node is off the network.
    wait::stays(Duration::from_secs(10), "nothing is handed on", || async {
        let records = fixtures::records(env).await?;
        let ready = records.iter().filter(|one| one.spec.node_name != "node2");
        let ready = ready.filter(|one| one.status.as_ref().is_some_and(fixtures::is_ready)).count();
        ensure!(ready <= REPLICAS - lost.len(), "{ready} are ready");
        Ok(())
    })
    .await?;
    env.cluster.kubectl(&["delete", "node", "node2"]).await?;
    let after = addresses(env).await?;
    ensure!(after == *before, "lost: {before:?} before, {after:?} after");
    Ok(())
}

async fn bring_back(env: &Env, node: &Node) -> Result<()> {
    node.boot().await?;
    env.cluster.wait_for_node(node, EVENTUALLY).await?;
    agents::wait_ready(&env.cluster).await?;
    fairlead::wait_for_network(&env.cluster, &env.unique("loss"), EVENTUALLY).await
}
