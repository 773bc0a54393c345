//! The guard in the runtimes' plugin folders: the agents' pods remove it, since nothing else reaches the hosts.

use anyhow::Result;
use fairlead_crds::names;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::Options;
use crate::{
    cluster::{Cluster, until},
    install::is_ready,
    manifests::INSTALLER,
    progress::Progress,
};

/// Lets every node's agent start once more with an init container that removes what the same one has installed.
/// A node that does not come back keeps the file, which holds no pod that does not ask for it.
///
/// # Errors
/// When the API server refuses it.
pub async fn remove(cluster: &Cluster, options: &Options, progress: Progress) -> Result<()> {
    let agents = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": names::AGENT, "namespace": names::INSTALL_NAMESPACE },
    });
    let Some(found) = cluster.get(&agents).await? else { return Ok(()) };
    let Some(patch) = removal(&found.data) else { return Ok(()) };
    let step = progress.step("guards removed from the runtimes' plugin folders");
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
    cluster.api(&agents).patch(names::AGENT, &PatchParams::default(), &patch).await?;
    let removed = until(
        options.timeout,
        "the guards to be removed",
        |missing| step.detail(missing),
        || is_ready(cluster, &agents),
    );
    if let Err(error) = removed.await {
        progress.note(&format!(
            "a guard may be left in a plugin folder, as 10-{}: {error:#}",
            names::GUARD_PLUGIN
        ));
    }
    step.done();
    Ok(())
}

/// The patch of the agents that makes the installer remove, on all nodes at once; none where there is no installer.
fn removal(agents: &Value) -> Option<Value> {
    let containers = agents.pointer("/spec/template/spec/initContainers")?.as_array()?;
    let index = containers.iter().position(|container| container["name"] == INSTALLER)?;
    let place = format!("/spec/template/spec/initContainers/{index}");
    let folder = containers[index]["args"].as_array()?.last()?;
    Some(json!([
        { "op": "test", "path": format!("{place}/name"), "value": INSTALLER },
        { "op": "replace", "path": format!("{place}/args"), "value": ["uninstall", "--from", folder] },
        { "op": "add", "path": "/spec/updateStrategy", "value": {
            "type": "RollingUpdate",
            "rollingUpdate": { "maxUnavailable": "100%" },
        } },
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{self, Choices, kind};

    fn agents(guard_folder: Option<&str>) -> Value {
        let choices = Choices { guard_folder: guard_folder.map(str::to_owned), ..Choices::default() };
        let objects = manifests::render(&choices).unwrap();
        objects.into_iter().find(|object| kind(object) == "DaemonSet").unwrap()
    }

    #[test]
    fn what_was_installed_is_removed_by_the_same_container() {
        let mut agents = agents(Some("/opt/nri/plugins"));
        let patch: json_patch::Patch = serde_json::from_value(removal(&agents).unwrap()).unwrap();
        json_patch::patch(&mut agents, &patch).unwrap();
        let first = &agents["spec"]["template"]["spec"]["initContainers"][0];
        assert_eq!(first["args"], json!(["uninstall", "--from", "/host/nri/plugins"]));
        assert_eq!(first["volumeMounts"][0]["mountPath"], "/host/nri/plugins");
    }

    #[test]
    fn agents_without_an_installer_are_left_alone() {
        assert_eq!(removal(&agents(None)), None);
    }
}
