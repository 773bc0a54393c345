//! Ways to talk to the cluster's API server.

use std::path::Path;

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{cluster::Cluster, layout, process};

/// A client from a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).context("reading the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    // Retries on their own for minutes by default, which hides from a test what the server answered.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

impl Cluster {
    /// Runs `kubectl` as the administrator and gives its standard output.
    ///
    /// # Errors
    /// When it does not exit with 0; the message has the command and its standard error.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with_input(arguments, "").await
    }

    /// Like [`Cluster::kubectl`], with something on standard input.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let program = self.tools().argument("kubectl")?;
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig_path().display());
        process::run_with_input(&[&[program.as_str(), &kubeconfig][..], arguments].concat(), input).await
    }

    /// Runs `kubectl` as whoever a bearer token is of.
    pub async fn kubectl_with_token(&self, token: &str, arguments: &[&str], input: &str) -> Result<String> {
        let program = self.tools().argument("kubectl")?;
        let layout = self.layout();
        let server = format!("--server=https://{}:{}", layout.api_address(), layout::API_PORT);
        let authority = format!("--certificate-authority={}", layout.pki().join("ca.crt").display());
        let token = format!("--token={token}");
        // Without this the administrator's certificate would be used.
        let start = [program.as_str(), "--kubeconfig=/dev/null", &server, &authority, &token];
        process::run_with_input(&[&start[..], arguments].concat(), input).await
    }

    /// `kubectl apply -f -` of YAML or JSON.
    pub async fn apply(&self, manifest: &str) -> Result<String> {
        self.kubectl_with_input(&["apply", "-f", "-"], manifest).await
    }

    /// Runs a command in a container and gives its standard output.
    pub async fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<String> {
        self.kubectl(&[&["exec", "-n", namespace, pod, "--"][..], command].concat()).await
    }
}
