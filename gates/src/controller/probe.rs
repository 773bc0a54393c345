//! Proof that the mutating policy is active: pods created as a dry run come back held.
//!
//! An API server reads policies about once a second, and several of them cannot be addressed one by one, so every
//! attempt takes a new connection and only a row of successes counts.

use std::time::Duration;

use fairlead_crds::names;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::time::sleep;
use tracing::{debug, info};

use super::api::bounded;

/// Successes in a row that count as proof.
const ROW: u32 = 5;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// A namespace that no policy of ours exempts. Nothing is ever created there.
const NAMESPACE: &str = "default";

/// Returns once the policy is proven active.
pub async fn until_active(config: &Config) {
    let mut row = 0;
    let mut said = None;
    while row < ROW {
        match attempt(config).await {
            Ok(()) => row += 1,
            Err(why) => {
                row = 0;
                if said.as_ref() != Some(&why) {
                    info!(why, "the mutating policy is not active yet");
                    said = Some(why);
                }
            }
        }
        sleep(PAUSE).await;
    }
    info!("the mutating policy is active");
}

async fn attempt(config: &Config) -> Result<(), String> {
    let client = Client::try_from(config.clone()).map_err(|error| error.to_string())?;
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let pod = pod().map_err(|error| error.to_string())?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let answer = bounded(|| "create a probe pod as a dry run".to_owned(), pods.create(&dry_run, &pod)).await;
    let answer = answer.map_err(|error| error.to_string())?;
    debug!(held = is_held(&answer), "probe pod came back");
    if is_held(&answer) { Ok(()) } else { Err("the probe pod came back without a hold".to_owned()) }
}

/// A pod that asks for no network, and that the strictest pod security standard and any quota let through.
fn pod() -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "metadata": { "generateName": "fairlead-probe-", "annotations": { names::NETWORKS_ANNOTATION: "" } },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "probe",
                "image": "fairlead",
                "resources": { "requests": { "cpu": "1m", "memory": "1Mi" }, "limits": { "cpu": "10m", "memory": "16Mi" } },
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } }
            }]
        }
    }))
}

/// With the gate in front of everything, or by the container runtime.
fn is_held(pod: &Pod) -> bool {
    let first = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()?.first());
    let annotations = pod.metadata.annotations.as_ref();
    let hold = annotations.and_then(|annotations| annotations.get(names::HOLD_ANNOTATION));
    first.is_some_and(|container| container.name == names::GATE_CONTAINER)
        || hold.is_some_and(|hold| hold == names::HOLD_NRI)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;

    use super::*;

    #[test]
    fn only_a_gate_in_front_of_everything_or_the_runtimes_hold_is_proof() {
        let container = |name: &str| Container { name: name.into(), ..Container::default() };
        let with = |names: &[&str]| {
            let mut pod = pod().unwrap();
            pod.spec.as_mut().unwrap().init_containers =
                Some(names.iter().map(|name| container(name)).collect());
            is_held(&pod)
        };
        assert!(!is_held(&pod().unwrap()));
        assert!(with(&["fairlead-gate", "other"]) && !with(&["other", "fairlead-gate"]));
        let mut by_the_runtime = pod().unwrap();
        let hold = (names::HOLD_ANNOTATION.to_owned(), names::HOLD_NRI.to_owned());
        by_the_runtime.metadata.annotations = Some([hold].into());
        assert!(is_held(&by_the_runtime));
    }
}
