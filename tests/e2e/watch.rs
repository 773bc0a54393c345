//! Watches a node, and traffic between two of its pods, while something happens that must not disturb them.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use fairlead_crds::PodNetwork;
use fairlead_tests::{node::Node, wait};

use crate::{fixtures, trial::Env};

const SEEN: Duration = Duration::from_secs(5);
/// A watch during which fewer packets were sent has not watched.
const FEWEST: u32 = 20;
/// The watches end by themselves if the trial does not come to its end.
const LONGEST: &str = "3600";
/// The kernel tells of the ports of the primary network's bridge long after they came up.
const PRIMARY_BRIDGE: &str = "master cni0";
const OBJECTS: &str = "link address route";
/// Added at the end, so that a watch that saw nothing is known to have watched. For documentation (RFC 5737).
const CANARY: &str = "192.0.2.77";

/// Every change of links, addresses and routes of a node and of one of its pods, and a ping to another.
pub struct NodeWatch {
    node: Node,
    monitors: Vec<Monitor>,
    ping: Ping,
}

/// A ping from one pod of a node to another, over `net1`.
pub struct Ping {
    pod: String,
    /// Its process, in the pod.
    pid: String,
}

struct Monitor {
    place: String,
    /// What enters its namespace from the node's, as the start of a command line.
    enter: String,
    pid: String,
    file: PathBuf,
}

impl NodeWatch {
    /// Starts to watch. The node must have two pods of ours.
    pub async fn start(env: &Env, node: &Node) -> Result<Self> {
        let [first, second] = pair(env, node).await?;
        let sandbox = *node.sandbox_pids(&first.spec.pod_uid).await?.first().context("a sandbox")?;
        let inside = format!("nsenter -t {sandbox} -n ");
        let mut monitors = Vec::new();
        for (place, enter) in [(node.name(), ""), (format!("a pod of {}", node.name()), inside.as_str())] {
            monitors.push(Monitor::start(env, node, place, enter).await?);
        }
        let ping = Ping::between(env, &first, &second).await?;
        Ok(Self { node: node.clone(), monitors, ping })
    }

    /// Stops to watch.
    ///
    /// # Errors
    /// When anything changed or a packet was lost, with what it was.
    pub async fn check(self, env: &Env) -> Result<()> {
        self.ping.check(env).await.with_context(|| self.node.name())?;
        for monitor in self.monitors {
            monitor.check(&self.node).await?;
        }
        Ok(())
    }
}

/// Two pods of a node that have networks.
async fn pair(env: &Env, node: &Node) -> Result<[PodNetwork; 2]> {
    let records = fixtures::records(env).await?;
    let here: Vec<_> = records.into_iter().filter(|record| record.spec.node_name == node.name()).collect();
    let count = here.len();
    let pair = here.into_iter().take(2).collect::<Vec<_>>().try_into();
    pair.map_err(|_| anyhow!("{count} pods on {}", node.name()))
}

impl Ping {
    /// Starts it. The node must have two pods of the trial.
    pub async fn start(env: &Env, node: &Node) -> Result<Self> {
        let [first, second] = pair(env, node).await?;
        Self::between(env, &first, &second).await
    }

    async fn between(env: &Env, from: &PodNetwork, to: &PodNetwork) -> Result<Self> {
        let address = to.spec.attachments.first().and_then(|attachment| attachment.addresses.first());
        let address = address.context("an address")?.address.addr();
        let pod = from.spec.pod_name.clone();
        let ping = format!("ping -I net1 -i 0.2 -w {LONGEST} {address} >/ping 2>&1 & echo $!");
        let pid = env.exec(&pod, &["sh", "-c", &ping]).await?.trim().to_owned();
        Ok(Self { pod, pid })
    }

    /// Waits until a packet sent from now on is answered, and stops it.
    ///
    /// # Errors
    /// When a packet before that one was lost, with which, or when none is answered any more.
    pub async fn check(self, env: &Env) -> Result<()> {
        let seen = self.answered(env).await?.last().copied();
        // The one after it may be on its way already.
        let later = seen.map_or(0, |last| last + 2);
        let answered =
            wait::promptly(SEEN, &format!("an answer for {} after packet {seen:?}", self.pod), || async {
                let answered = self.answered(env).await?;
                ensure!(answered.last().is_some_and(|last| *last >= later), "{} answers", answered.len());
                Ok(answered)
            })
            .await;
        // It may have ended by itself, and what it was about is then the better error.
        env.exec(&self.pod, &["sh", "-c", &format!("kill {} || true", self.pid)]).await?;
        let answered = answered?;
        let sent = answered.last().map_or(0, |last| last + 1);
        let lost: Vec<_> = (0..sent).filter(|packet| !answered.contains(packet)).collect();
        ensure!(sent >= FEWEST && lost.is_empty(), "{}: of {sent} packets lost {lost:?}", self.pod);
        Ok(())
    }

    /// The packets that were answered. Its own count of losses has the one that is on its way when it is stopped.
    async fn answered(&self, env: &Env) -> Result<BTreeSet<u32>> {
        let pinged = env.exec(&self.pod, &["cat", "/ping"]).await?;
        let number = |line: &str| line.split_once(" seq=")?.1.split_whitespace().next()?.parse().ok();
        Ok(pinged.lines().filter_map(number).collect())
    }
}

impl Monitor {
    async fn start(env: &Env, node: &Node, place: String, enter: &str) -> Result<Self> {
        let file = env.cluster.logs_dir().join(format!("{}.txt", env.unique(&place.replace(' ', "-"))));
        let script = format!(
            "{enter}timeout {LONGEST} ip -o monitor {OBJECTS} >{} 2>&1 </dev/null & echo $!",
            file.display()
        );
        let pid = node.exec(&["sh", "-c", &script]).await?.trim().to_owned();
        Ok(Self { place, enter: enter.to_owned(), pid, file })
    }

    async fn check(self, node: &Node) -> Result<()> {
        let on_lo = |verb: &str| format!("{}ip address {verb} {CANARY}/32 dev lo", self.enter);
        node.exec(&["sh", "-c", &on_lo("add")]).await?;
        let what = format!("the watch of {} to see a change", self.place);
        let seen = wait::promptly(SEEN, &what, || async {
            let seen = std::fs::read_to_string(&self.file)?;
            ensure!(seen.contains(CANARY), "not yet");
            Ok(seen)
        })
        .await;
        node.exec(&["sh", "-c", &format!("{}; kill {}", on_lo("delete"), self.pid)]).await?;
        let seen = seen?;
        let foreign = |line: &&str| line.contains(CANARY) || line.contains(PRIMARY_BRIDGE);
        let changes: Vec<_> = seen.lines().filter(|line| !foreign(line)).collect();
        ensure!(changes.is_empty(), "changes in {}:\n{}", self.place, changes.join("\n"));
        Ok(())
    }
}
