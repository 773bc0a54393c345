//! Reads everything, in pages, each call bounded in time.

use std::fmt::Debug;

use fairlead_crds::{Admission, names};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::world::{Lease, Pod, World, our_finalizers};
use crate::controller::api::{CallError, bounded};

/// Objects of one page.
const PAGE: u32 = 500;
/// Most pages of one kind: five million objects.
const PAGES: usize = 10_000;

/// Something could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {0}")]
pub struct ReadError(#[from] CallError);

/// Reads the world. Records come first: one that is written while the rest is read is in the next look.
pub(super) async fn world(client: &Client, taint_prefix: &str) -> Result<World, ReadError> {
    let leases: Api<coordination::Lease> = Api::namespaced(client.clone(), names::INSTALL_NAMESPACE);
    let admissions: Api<Admission> = Api::all(client.clone());
    let whole = Api::all(client.clone());
    Ok(World {
        taint_prefix: taint_prefix.to_owned(),
        records: list(&Api::all(client.clone()), "list podnetworks", Some).await?,
        blocks: list(&Api::all(client.clone()), "list ipblocks", Some).await?,
        offers: list(&Api::all(client.clone()), "list nodenetworks", Some).await?,
        networks: list(&Api::all(client.clone()), "list networks", Some).await?,
        pods: list(&Api::all(client.clone()), "list pods", |pod: core::Pod| Some(Pod::from(pod))).await?,
        nodes: list(&whole, "list nodes", |mut node: core::Node| {
            let finalizers = our_finalizers(node.metadata.finalizers.take().unwrap_or_default());
            Some((node.into(), finalizers))
        })
        .await?,
        leases: list(&leases, "list leases", |lease| {
            (lease.name_any() != names::CONTROLLER).then(|| Lease::from(lease))
        })
        .await?,
        admission: bounded(|| "get the admission".to_owned(), admissions.get_opt(names::ADMISSION)).await?,
        now: Timestamp::now(),
    })
}

/// All objects of a kind, reduced as they come.
async fn list<K, T>(api: &Api<K>, what: &str, keep: fn(K) -> Option<T>) -> Result<Vec<T>, ReadError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let (mut found, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    for _ in 0..PAGES {
        let page = bounded(|| what.to_owned(), api.list(&params)).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        found.extend(page.items.into_iter().filter_map(keep));
        match next {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(found)
}
