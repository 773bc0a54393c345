//! The verbose status of a sandbox: JSON that containerd and CRI-O document nowhere and keep stable.
//!
//! Both give the OCI specification of the sandbox; containerd, where another component makes the sandbox
//! (Kata's shim), only its own metadata.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::Error as _;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Info {
    runtime_spec: Option<Spec>,
    sandbox_metadata: Option<Versioned>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    linux: Option<Linux>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Option<Vec<Namespace>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Versioned {
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(rename = "NetNSPath")]
    netns_path: String,
}

/// The path of the network namespace in a verbose status; none if the sandbox has no namespace of its own.
///
/// A status that says nothing about namespaces is an error: it must not pass for a pod on the host's network.
pub(super) fn netns_path(info: &str) -> Result<Option<PathBuf>, serde_json::Error> {
    let info: Info = serde_json::from_str(info)?;
    let specified = info.runtime_spec.and_then(Spec::netns_path);
    let path = specified.or_else(|| info.sandbox_metadata.map(|versioned| versioned.metadata.netns_path));
    let path =
        path.ok_or_else(|| serde_json::Error::custom("neither runtimeSpec nor sandboxMetadata is there"))?;
    Ok(Some(path).filter(|path| !path.is_empty()).map(|path| below_run(&path)))
}

impl Spec {
    /// None if nothing is said about namespaces; empty if the network is not among them.
    fn netns_path(self) -> Option<String> {
        let namespaces = self.linux?.namespaces?;
        let network = namespaces.into_iter().find(|namespace| namespace.kind == "network");
        Some(network.map(|namespace| namespace.path).unwrap_or_default())
    }
}

/// `/var/run` is a link to `/run` on every distribution that runs containerd 2, but not in the agent's image.
fn below_run(path: &str) -> PathBuf {
    match path.strip_prefix("/var/run/") {
        Some(rest) => PathBuf::from("/run").join(rest),
        None => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CONTAINERD: &str = include_str!("testdata/containerd.json");
    const CRIO: &str = include_str!("testdata/crio.json");

    fn path(info: &str) -> Option<PathBuf> {
        netns_path(info).unwrap()
    }

    #[test]
    fn containerd_names_the_namespace_in_the_specification() {
        let wanted = Path::new("/run/netns/cni-0b8ef3d4-3ea3-845c-8994-0c6f55e5c78f");
        assert_eq!(path(CONTAINERD).as_deref(), Some(wanted));
    }

    #[test]
    fn crio_names_the_namespace_in_the_specification() {
        let wanted = Path::new("/run/netns/8b1f3c7d-2f0b-4f3c-9a55-0d8c0f1d7f11");
        assert_eq!(path(CRIO).as_deref(), Some(wanted));
    }

    #[test]
    fn a_sandbox_made_by_a_shim_is_known_from_containerds_metadata() {
        let info = r#"{"runtimeSpec":null,"sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":"/run/containerd/netns/x"}}}"#;
        assert_eq!(path(info).as_deref(), Some(Path::new("/run/containerd/netns/x")));
    }

    #[test]
    fn a_pod_on_the_hosts_network_has_no_namespace() {
        let metadata = r#""sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":""}}"#;
        let spec = r#""runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"mount"}]}}"#;
        assert_eq!(path(&format!("{{{spec},{metadata}}}")), None);
        assert_eq!(path(&format!("{{{spec}}}")), None);
        assert_eq!(path(r#"{"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}"#), None);
        assert_eq!(path(&format!("{{{metadata}}}")), None);
    }

    #[test]
    fn a_status_that_says_nothing_is_not_taken_for_the_hosts_network() {
        let silent = ["cni-1234", "{}", r#"{"runtimeSpec":{"linux":null},"sandboxMetadata":null}"#];
        for info in silent {
            assert!(netns_path(info).is_err(), "{info}");
        }
    }
}
