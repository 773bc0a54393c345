//! Pods that the container runtime holds.

use std::sync::Arc;

use anyhow::{Result, ensure};
use fairlead_crds::{Reason, names};
use fairlead_tests::wait;
use serde_json::json;

use crate::{
    fixtures::{self, Net, SOON},
    trial::{Case, Env},
};

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("hold_by_the_runtime_waits_for_a_strict_node_and_says_so", no_strict_node)]
}

/// On nodes of which none is strict, a Network that demands it keeps its pods from all of them.
async fn no_strict_node(env: Arc<Env>) -> Result<()> {
    let net = Net::island(&env, "strict", &["10.39.0.0/24"]).with("/hold", json!("Nri"));
    net.create(&env).await?;
    wait::until(SOON, "the Admission to say how the pods are held", || async {
        let path = format!("jsonpath={{.spec.networks[?(@.name=='{}')].hold}}", net.name());
        let admission = format!("admissions.{}/{}", names::GROUP, names::ADMISSION);
        let said = env.cluster.kubectl(&["get", &admission, "-o", &path]).await?;
        ensure!(said == "Nri", "it says {said:?}");
        Ok(())
    })
    .await?;
    env.apply(&fixtures::pod("patient", net.name()).to_string()).await?;
    wait::until(SOON, "the pod to say what it waits for", || async {
        let described = env.kubectl(&["describe", "pod", "patient"]).await?;
        ensure!(described.contains(&format!("{}: ", Reason::NoStrictNode)), "{described}");
        ensure!(described.contains("a node that is nri-strict, and no ready node is"), "{described}");
        ensure!(described.contains("FailedScheduling"), "an autoscaler does not see it: {described}");
        ensure!(!described.contains(names::GATE_CONTAINER), "{described}");
        Ok(())
    })
    .await?;
    // Another network with another hold takes nobody by surprise: the pod has to be created again.
    let gate = Net::island(&env, "gate", &["10.42.0.0/24"]).with("/hold", json!("Gate"));
    gate.create(&env).await?;
    env.apply(&fixtures::pod("gated", gate.name()).to_string()).await?;
    env.wait_ready("app=gated", SOON).await
}
