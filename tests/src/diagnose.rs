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
const OURS: &str = "app.kubernetes.io/part-of=fairlead";
/// Characters of a line in an outline.
const WIDTH: usize = 220;

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

    /// The few lines that tell most, for where the folder cannot be seen afterwards: the pods of fairlead, the last
    /// sentences of each, and the last warnings of the cluster.
    pub async fn outline(&self) -> String {
        let pods = answer(self.kubectl(&["get", "pods", "-n", INSTALL_NAMESPACE, "-o", "wide"])).await;
        let logs = ["logs", "-n", INSTALL_NAMESPACE, "-l", OURS, "--all-containers", "--prefix", "--tail=4"];
        let logs = answer(self.kubectl(&[&logs[..], &["--max-log-requests=20"]].concat())).await;
        let warnings = ["get", "events", "-A", "--field-selector=type=Warning"];
        let by_age = "--sort-by=.metadata.creationTimestamp";
        let warnings = answer(self.kubectl(&[&warnings[..], &[by_age]].concat())).await;
        [last(&pods, 8), last(&logs, 24), last(&warnings, 12)].concat()
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
    let path = folder.join(file);
    fs::write(&path, answer(question).await).with_context(|| format!("writing {}", path.display()))
}

/// What came of a question: the answer, or a sentence why there is none.
async fn answer(question: impl Future<Output = Result<String>>) -> String {
    match tokio::time::timeout(TIMEOUT, question).await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => format!("{error:#}\n"),
        Err(_) => format!("no answer within {} s\n", TIMEOUT.as_secs()),
    }
}

/// The last lines of a text, each cut to [`WIDTH`], behind a mark that tells them from other output.
fn last(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let cut = |line: &&str| format!("  | {}\n", line.chars().take(WIDTH).collect::<String>());
    all[all.len().saturating_sub(lines)..].iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_has_the_last_lines_and_no_long_ones() {
        assert_eq!(last("a\nb\nc\n", 2), "  | b\n  | c\n");
        assert_eq!(last("", 2), "");
        assert_eq!(last(&"é".repeat(WIDTH + 1), 1), format!("  | {}\n", "é".repeat(WIDTH)));
    }
}
