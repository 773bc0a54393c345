//! What runs in a node, asked from its containerd.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path};

use super::{CONTAINERD_SOCKET, Node};

const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const KIND: &str = "io.cri-containerd.kind";

/// A container or a sandbox whose first process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Id in containerd.
    pub id: String,
    /// Its first process, as seen from the machine.
    pub pid: i32,
    /// UID of its pod.
    pub pod_uid: String,
    /// Name in the pod; `None` for the sandbox.
    pub name: Option<String>,
}

#[derive(Deserialize)]
struct Info {
    #[serde(rename = "Labels", default)]
    labels: BTreeMap<String, String>,
}

impl Node {
    /// Runs `ctr` in the namespace of Kubernetes and gives its standard output.
    pub async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let program = self.tools.argument("ctr")?;
        let start = [program.as_str(), "-a", CONTAINERD_SOCKET, "-n", "k8s.io"];
        self.exec(&[&start[..], arguments].concat()).await
    }

    /// Imports an OCI archive.
    pub async fn import_image(&self, archive: &Path) -> Result<()> {
        let archive = archive.to_str().context("the path of an image is not text")?;
        self.ctr(&["images", "import", "--all-platforms", archive]).await?;
        Ok(())
    }

    /// Every running container of a pod, its sandbox included.
    pub async fn containers(&self, pod_uid: &str) -> Result<Vec<Container>> {
        let filter = format!("labels.\"{POD_UID}\"=={pod_uid}");
        let ids = self.ctr(&["containers", "list", "--quiet", &filter]).await?;
        let tasks = self.ctr(&["tasks", "list"]).await?;
        let mut found = Vec::new();
        for id in ids.split_whitespace() {
            let Some(pid) = running_pid(&tasks, id) else {
                continue;
            };
            let info: Info = serde_json::from_str(&self.ctr(&["containers", "info", id]).await?)?;
            found.push(container(id, pid, &info));
        }
        Ok(found)
    }

    /// First processes of the containers of this name in a pod, without the sandbox.
    pub async fn container_pids(&self, pod_uid: &str, name: &str) -> Result<Vec<i32>> {
        let containers = self.containers(pod_uid).await?;
        Ok(containers
            .into_iter()
            .filter(|found| found.name.as_deref() == Some(name))
            .map(|found| found.pid)
            .collect())
    }

    /// First processes of a pod's sandboxes, as a rule one.
    pub async fn sandbox_pids(&self, pod_uid: &str) -> Result<Vec<i32>> {
        let containers = self.containers(pod_uid).await?;
        Ok(containers.into_iter().filter(|found| found.name.is_none()).map(|found| found.pid).collect())
    }
}

fn container(id: &str, pid: i32, info: &Info) -> Container {
    let label = |key: &str| info.labels.get(key).cloned();
    let sandbox = label(KIND).as_deref() == Some("sandbox");
    Container {
        id: id.into(),
        pid,
        pod_uid: label(POD_UID).unwrap_or_default(),
        name: if sandbox { None } else { label(CONTAINER_NAME) },
    }
}

/// Reads the table of `ctr tasks list`: `TASK PID STATUS`.
fn running_pid(tasks: &str, id: &str) -> Option<i32> {
    let mut rows = tasks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&id) && row.get(2) == Some(&"RUNNING"))?;
    row.get(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_running_tasks_have_a_pid() {
        let table = "TASK    PID     STATUS    \nabc     12      RUNNING\ndef     13      STOPPED\n";
        assert_eq!(running_pid(table, "abc"), Some(12));
        assert_eq!(running_pid(table, "def"), None);
        assert_eq!(running_pid(table, "ab"), None);
    }
}
