//! Every rule of the kinds, on a real API server: objects that it accepts, objects that it refuses, and what the
//! user then reads. Dry runs but for the objects whose changes are tried; needs nothing but the definitions.

mod bounds;
mod edits;
mod every;
mod machine;
mod network;
mod row;
mod schema;
mod server;
mod specimen;
mod usage;
mod values;

use std::sync::Arc;

use anyhow::Result;
use fairlead_crds::{Admission, IPBlock, Network, NodeNetwork, PodNetwork};
use serde_json::Value;

use self::{every::every_rule, server::Server};
use crate::{
    fixtures::eventually,
    trial::{Case, Env},
};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/crds.yaml");

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("validation_every_rule_of_network", networks).bare(),
        Case::new("validation_every_rule_of_podnetwork", pod_networks).bare(),
        Case::new("validation_every_rule_of_ipblock", ip_blocks).bare(),
        Case::new("validation_every_rule_of_nodenetwork", node_networks).bare(),
        Case::new("validation_every_rule_of_admission", admissions).bare(),
        Case::new("validation_what_the_server_stores_can_be_read", usage::readable).bare(),
        Case::new("validation_the_largest_network_is_affordable", usage::largest).bare(),
        Case::new("validation_defaults_are_filled_in", usage::defaults).bare(),
        Case::new("validation_mistyped_fields_are_refused", usage::mistyped).bare(),
        Case::new("validation_kinds_have_short_names_columns_and_selectors", usage::presentation).bare(),
    ]
}

/// The definitions of the tree are on the cluster, and this is the judge of one kind.
async fn server(env: &Env, kind: &str) -> Result<Server> {
    env.cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", MANIFEST]).await?;
    let server = Server::new(&env.cluster.kubeconfig_path(), kind, &env.namespace).await?;
    // A new definition is served a moment after it is stored.
    eventually(&format!("{kind} to be served"), || async {
        let nothing = server.manifest("x", &Value::Null);
        server.create(&nothing).await?.refused("spec", "").map(drop)
    })
    .await?;
    Ok(server)
}

async fn networks(env: Arc<Env>) -> Result<()> {
    let server = server(&env, "Network").await?;
    let base = server.manifest(&env.unique("rules"), &network::base(&env.space()));
    let rows: Vec<_> = network::rules().into_iter().chain(edits::network()).collect();
    let specimens = specimen::network(&server, &env.unique("bounds"), &env.space());
    every_rule::<Network>(&server, &base, &rows, &specimens).await
}

async fn pod_networks(env: Arc<Env>) -> Result<()> {
    let server = server(&env, "PodNetwork").await?;
    let base = specimen::pod_network(&server, "rules").objects.remove(0);
    every_rule::<PodNetwork>(&server, &base, &edits::pod_network(), &specimen::pod_network(&server, "bounds"))
        .await
}

async fn ip_blocks(env: Arc<Env>) -> Result<()> {
    let server = server(&env, "IPBlock").await?;
    let space = env.space();
    let specimens = specimen::ip_block(&server, &space);
    let rows: Vec<_> = machine::ip_block(&space).into_iter().chain(edits::ip_block(&space)).collect();
    every_rule::<IPBlock>(&server, &specimens.objects[0], &rows, &specimens).await
}

async fn node_networks(env: Arc<Env>) -> Result<()> {
    let server = server(&env, "NodeNetwork").await?;
    let specimens = specimen::node_network(&server, &env.unique("bounds"));
    every_rule::<NodeNetwork>(&server, &specimens.objects[0], &[], &specimens).await
}

async fn admissions(env: Arc<Env>) -> Result<()> {
    let server = server(&env, "Admission").await?;
    let specimens = specimen::admission(&server);
    every_rule::<Admission>(&server, &specimens.objects[0], &machine::admission(), &specimens).await
}
