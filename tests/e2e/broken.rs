//! A broken installation harms only the pods that want something from it.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use fairlead_crds::names;
use fairlead_tests::{Cluster, fairlead};
use serde_json::json;

use crate::{
    controllers,
    fixtures::{self, Net, eventually},
    trial::{Case, Env},
};

const BINDING: &str = "validatingadmissionpolicybinding/fairlead-admission";

/// What people read who want something from it.
const SENTENCE: &str =
    "fairlead does not work at the moment, so a pod that asks for a network cannot be created";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("broken_installation_stops_only_pods_that_ask_for_a_network", broken).alone()]
}

async fn broken(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "broken", &["10.90.0.0/24"]);
    net.create(&env).await?;
    for name in ["one", "two"] {
        env.apply(&fixtures::on_node(fixtures::pod(name, net.name()), "node1").to_string()).await?;
        env.wait_ready(&format!("app={name}")).await?;
    }
    let outcome = async {
        break_it(&env.cluster).await?;
        refused(&env, &net).await?;
        unrelated(&env).await?;
        fixtures::ping(&env, "one", "two").await
    }
    .await;
    fairlead::apply(&env.cluster).await?;
    fairlead::wait_until_ready(&env.cluster).await?;
    outcome?;
    env.apply(&fixtures::pod("late", net.name()).to_string()).await?;
    env.wait_ready("app=late").await
}

async fn break_it(cluster: &Cluster) -> Result<()> {
    controllers::scale(cluster, 0).await?;
    cluster.kubectl(&["delete", BINDING]).await?;
    // The API server takes a moment to forget a binding.
    eventually("the deletion of Admission", || async {
        cluster.kubectl(&["delete", "admission", names::ADMISSION, "--ignore-not-found"]).await
    })
    .await?;
    Ok(())
}

/// Also until the API server has noticed that the parameter is gone.
async fn refused(env: &Env, net: &Net) -> Result<()> {
    let pod = fixtures::pod("wanting", net.name()).to_string();
    let create = ["-n", &env.namespace, "create", "--dry-run=server", "-f", "-"];
    eventually("an annotated pod to be refused", || async {
        match env.cluster.kubectl_with_input(&create, &pod).await {
            Ok(answer) => bail!("not refused: {answer}"),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("orbidden") && text.contains(SENTENCE), "{text}");
                Ok(())
            }
        }
    })
    .await
}

async fn unrelated(env: &Env) -> Result<()> {
    let mut pod = fixtures::pod("unrelated", "");
    pod["metadata"]["annotations"] = json!({});
    env.apply(&pod.to_string()).await?;
    env.wait_ready("app=unrelated").await
}
