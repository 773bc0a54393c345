//! The controller's pods, as the cluster runs them.

use anyhow::Result;
use fairlead_crds::names;
use fairlead_tests::Cluster;

use crate::fixtures::PATIENTLY;

/// Scales the controller, and waits until as many of its pods are there.
pub async fn scale(cluster: &Cluster, replicas: u8) -> Result<()> {
    let object = format!("deployment/{}", names::CONTROLLER);
    let count = format!("--replicas={replicas}");
    in_its_namespace(cluster, &["scale", &object, &count]).await?;
    in_its_namespace(cluster, &["rollout", "status", &object, PATIENTLY]).await?;
    if replicas == 0 {
        let selector = format!("app.kubernetes.io/name={}", names::CONTROLLER);
        let wait = ["wait", "pods", "-l", &selector, "--for=delete", PATIENTLY];
        in_its_namespace(cluster, &wait).await?;
    }
    Ok(())
}

async fn in_its_namespace(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.kubectl(&[&["-n", names::INSTALL_NAMESPACE][..], arguments].concat()).await
}
