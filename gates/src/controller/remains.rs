//! What nodes leave behind: their Leases, records and blocks. Reads, and the few writes both clearing drivers share.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_crds::{IPBlock, PodNetwork, names};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::info;

use super::api::{CallError, Caller, json_patch};
use super::metrics::{Kind, Verb};
use super::node_patch;

/// The agents' Leases that someone holds: name (of the node) and version.
pub(super) async fn leases(caller: &Caller) -> Result<BTreeMap<String, String>, CallError> {
    let api: Api<Lease> = Api::namespaced(caller.client.clone(), names::INSTALL_NAMESPACE);
    let leases = caller.read("list leases", api.list(&ListParams::default())).await?;
    let held = leases.items.into_iter().filter(is_held);
    Ok(held.map(|lease| (lease.name_any(), lease.resource_version().unwrap_or_default())).collect())
}

/// The records of one node.
pub(super) async fn records_of(caller: &Caller, node: &str) -> Result<Vec<PodNetwork>, CallError> {
    let api: Api<PodNetwork> = Api::all(caller.client.clone());
    Ok(caller.read("list the podnetworks of a node", api.list(&of_node(node))).await?.items)
}

/// The blocks of one node.
pub(super) async fn blocks_of(caller: &Caller, node: &str) -> Result<Vec<IPBlock>, CallError> {
    let api: Api<IPBlock> = Api::all(caller.client.clone());
    Ok(caller.read("list the ipblocks of a node", api.list(&of_node(node))).await?.items)
}

/// The nodes of all records. A large read: for once in a while.
pub(super) async fn nodes_with_records(caller: &Caller) -> Result<BTreeSet<String>, CallError> {
    let api: Api<PodNetwork> = Api::all(caller.client.clone());
    let records = caller.read("list podnetworks", api.list(&ListParams::default())).await?;
    Ok(records.items.into_iter().map(|record| record.spec.node_name).collect())
}

fn of_node(node: &str) -> ListParams {
    ListParams::default().fields(&format!("spec.nodeName={node}"))
}

/// The version of an agent's Lease, if someone holds it.
pub(super) async fn lease_version(caller: &Caller, node: &str) -> Result<Option<String>, CallError> {
    let api: Api<Lease> = Api::namespaced(caller.client.clone(), names::INSTALL_NAMESPACE);
    let lease = caller.read("get a lease", api.get_opt(node)).await?;
    Ok(lease.filter(is_held).and_then(|lease| lease.resource_version()))
}

fn is_held(lease: &Lease) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    lease.name_any() != names::CONTROLLER && holder.is_some_and(|holder| !holder.is_empty())
}

/// Removes our finalizer from a record, as it was read.
pub(super) async fn drop_record_finalizer(caller: &Caller, record: &PodNetwork) -> Result<(), CallError> {
    let api = Api::namespaced(caller.client.clone(), &record.namespace().unwrap_or_default());
    drop_finalizer(caller, &api, Kind::PodNetwork, record, names::POD_NETWORK_FINALIZER).await
}

/// Removes our finalizer from a block, as it was read.
pub(super) async fn drop_block_finalizer(caller: &Caller, block: &IPBlock) -> Result<(), CallError> {
    let api = Api::all(caller.client.clone());
    drop_finalizer(caller, &api, Kind::IPBlock, block, names::BLOCK_FINALIZER).await
}

/// Removes one finalizer from an object of exactly this version; success if it is already gone.
pub(super) async fn drop_finalizer<K>(
    caller: &Caller,
    api: &Api<K>,
    kind: Kind,
    object: &K,
    finalizer: &str,
) -> Result<(), CallError>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let uid = object.uid().unwrap_or_default();
    let Some(patch) = node_patch::without_finalizer(&uid, object.finalizers(), finalizer) else {
        return Ok(());
    };
    let patch = json_patch(node_patch::of_version(&object.resource_version().unwrap_or_default(), patch));
    let name = object.name_any();
    match caller.write(Verb::Patch, kind, &name, api.patch(&name, &PatchParams::default(), &patch)).await {
        Ok(_) => info!(?kind, name, finalizer, "finalizer removed"),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
