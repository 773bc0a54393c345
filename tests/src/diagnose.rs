//! Writes down what a failed test leaves: objects, events, logs of pods, links of nodes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{cluster::Cluster, layout};

const TIMEOUT: Duration = Duration::from_secs(20);
const INSTALL_NAMESPACE: &str = "fairlead-system";

/// Everything worth seeing: name of the file, and arguments of `kubectl`.
const QUESTIONS: [(&str, &[&str]); 8] = [
    ("nodes.txt", &["describe", "nodes"]),
    ("pods.txt", &["get", "pods", "-A", "-o", "wide"]),
    ("pods.yaml", &["get", "pods", "-A", "-o", "yaml"]),
    ("events.txt", &["get", "events", "-A", "--sort-by=.metadata.creationTimestamp"]),
    ("workloads.txt", &["get", "deployments,daemonsets,statefulsets,jobs", "-A", "-o", "wide"]),
    ("fairlead.txt", &["get", "networks,podnetworks,ipblocks,nodenetworks,admissions", "-A", "-o", "wide"]),
    ("fairlead.yaml", &["get", "networks,podnetworks,ipblocks,nodenetworks,admissions", "-A", "-o", "yaml"]),
    ("leases.txt", &["get", "leases", "-A", "-o", "wide"]),
];

/// What is asked on every node.
const NODE_QUESTIONS: [(&str, &str); 4] = [
    ("links", "ip -details address"),
    ("routes", "ip route show table all; ip -6 route show table all"),
    ("bridge", "bridge fdb; bridge link"),
    ("nft", "nft list ruleset"),
];

impl Cluster {
    /// Writes all of it to a folder below the logs, and gives that folder. What cannot be had is in it as a
    /// sentence why.
    pub async fn diagnose(&self, name: &str) -> Result<PathBuf> {
        let folder = self.logs_dir().join("diagnosis").join(name);
        layout::create_private(&folder)?;
        for (file, question) in QUESTIONS {
            write(&folder, file, self.kubectl(question)).await?;
        }
        for node in self.nodes() {
            for (file, question) in NODE_QUESTIONS {
                let file = format!("{}-{file}.txt", node.name());
                write(&folder, &file, node.exec(&["sh", "-c", question])).await?;
            }
        }
        self.pod_logs(&folder).await?;
        Ok(folder)
    }

    async fn pod_logs(&self, folder: &Path) -> Result<()> {
        let listed =
            self.kubectl(&["get", "pods", "-n", INSTALL_NAMESPACE, "-o", "name"]).await.unwrap_or_default();
        for pod in listed.lines() {
            let file = format!("{}.log", pod.replace('/', "-"));
            let arguments =
                ["logs", "-n", INSTALL_NAMESPACE, pod, "--all-containers", "--prefix", "--tail=5000"];
            write(folder, &file, self.kubectl(&arguments)).await?;
            let file = format!("{}-previous.log", pod.replace('/', "-"));
            write(folder, &file, self.kubectl(&[&arguments[..], &["--previous"]].concat())).await?;
        }
        Ok(())
    }
}

async fn write(folder: &Path, file: &str, question: impl Future<Output = Result<String>>) -> Result<()> {
    let text = match tokio::time::timeout(TIMEOUT, question).await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => format!("{error:#}\n"),
        Err(_) => format!("no answer within {} s\n", TIMEOUT.as_secs()),
    };
    let path = folder.join(file);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
