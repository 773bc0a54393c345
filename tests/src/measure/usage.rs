//! Memory and processor time of the programs that a pod gives work to.

use std::fs;

use anyhow::{Context, Result};
use fairlead_crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};

use super::processors::TICKS;
use crate::{cluster::Cluster, node::Node, process::Process};

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Memory {
    /// All of it that is resident.
    pub resident: f64,
    /// The part of it that no file backs.
    pub anonymous: f64,
}

impl Memory {
    /// Reads it.
    pub fn of(pid: i32) -> Result<Self> {
        let file = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
        let mib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let line = line.with_context(|| format!("{file} has no {key}"))?;
            Ok::<_, anyhow::Error>(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1024.0)
        };
        Ok(Self { resident: mib("VmRSS:")?, anonymous: mib("RssAnon:")? })
    }
}

/// First processes of a container of the installation on all nodes, `app` being `fairlead-agent` or another.
///
/// # Errors
/// Also when there is none.
pub async fn pids(cluster: &Cluster, app: &str, container: &str) -> Result<Vec<i32>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), names::INSTALL_NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
    let mut found = Vec::new();
    for pod in pods.list(&ours).await? {
        let (uid, spec) = (pod.uid().context("a pod has a UID")?, pod.spec.context("a pod has a spec")?);
        let node = cluster.node(&spec.node_name.context("a pod of ours has no node")?)?;
        found.extend(node.container_pids(&uid, container).await?);
    }
    anyhow::ensure!(!found.is_empty(), "{container} of {app} has no process");
    Ok(found)
}

/// The processes of a cluster that pods give work to.
#[derive(Debug)]
pub struct Workers {
    programs: Vec<(&'static str, Vec<i32>)>,
    nodes: Vec<Node>,
}

/// What [`Workers::cpu`] calls the sum of a node's own daemons.
pub const DAEMONS: &str = "kubelet, containerd, kube-proxy, and all shims, runc and CNI plugins";

impl Workers {
    /// Those of a cluster, as they are now.
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let recorded = |program: &str| {
            cluster.nodes().iter().map(|node| Ok(node.process(program)?.pid())).collect::<Result<Vec<_>>>()
        };
        let layout = cluster.layout();
        let central = |programs: &[&str]| {
            let recorded = |program: &&str| Process::recorded(program, &layout.pids(), &layout.logs());
            programs.iter().map(|program| Ok(recorded(program)?.pid())).collect::<Result<Vec<_>>>()
        };
        let programs = vec![
            ("API server", central(&["kube-apiserver"])?),
            ("etcd", central(&["etcd"])?),
            ("scheduler and controller manager", central(&["kube-scheduler", "kube-controller-manager"])?),
            ("agent", pids(cluster, names::AGENT, "agent").await?),
            ("guard", pids(cluster, names::AGENT, "guard").await?),
            ("controller", pids(cluster, names::CONTROLLER, "controller").await?),
            ("kubelet", recorded("kubelet")?),
            ("containerd", recorded("containerd")?),
            ("the bench itself", vec![i32::try_from(std::process::id())?]),
        ];
        Ok(Self { programs, nodes: cluster.nodes().to_vec() })
    }

    /// Seconds of processor time so far of each program on all nodes, and of [`DAEMONS`].
    pub fn cpu(&self) -> Result<Vec<(&'static str, f64)>> {
        let mut seconds = Vec::new();
        for (program, pids) in &self.programs {
            seconds.push((*program, pids.iter().map(|pid| cpu(*pid)).sum::<Result<f64>>()?));
        }
        let daemons = self.nodes.iter().map(Node::cpu_of_daemons).sum::<Result<f64>>()?;
        seconds.push((DAEMONS, daemons));
        Ok(seconds)
    }
}

/// Seconds of processor time of a process and of all threads that it ever had.
fn cpu(pid: i32) -> Result<f64> {
    let file = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    ticks(&stat).map(|ticks| ticks / TICKS).with_context(|| format!("{file} has no times"))
}

/// The sum of `utime` and `stime`, fields 14 and 15 of `proc_pid_stat(5)`; field 2, the name, is in brackets and may
/// have spaces.
fn ticks(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_of_a_process_are_counted() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 99 1000 10";
        assert_eq!(ticks(stat), Some(42.0));
    }

    #[test]
    fn a_process_has_memory() {
        let memory = Memory::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(memory.anonymous > 0.0 && memory.resident > memory.anonymous, "{memory:?}");
    }
}
