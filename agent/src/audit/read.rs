//! Reads what the API server, the runtime and the kernel say of this node.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use fairlead_crds::{Network, names};
use kube::api::ListParams;
use kube::{Api, Client};

use super::node::{Seen, World};
use crate::api::{self, call};
use crate::args::Args;
use crate::clock::Clock;
use crate::model::Record;
use crate::net::kernel::{Config, Kernel};
use crate::net::{Net, Place, netns};
use crate::record::Records;
use crate::sandbox::cri::{self, Runtime};

/// The ways to what is read.
pub(super) struct Reader {
    client: Client,
    records: Records,
    runtime: Runtime,
    kernel: Arc<Kernel>,
    boot_id: String,
}

impl Reader {
    pub(super) async fn new(args: &Args) -> Result<Self> {
        let client = api::client().await?;
        let kernel = Kernel::new(Config {
            node: args.node_name.clone(),
            devices: args.devices.clone(),
            sysctl_root: args.sysctl_root.clone(),
            ..Config::default()
        })?;
        Ok(Self {
            records: Records::new(client.clone(), &args.node_name, Clock::system()),
            runtime: Runtime::new(&args.cri_socket, cri::DEADLINE)?,
            kernel: Arc::new(kernel),
            boot_id: netns::boot_id().context("cannot read the boot id")?,
            client,
        })
    }

    /// The kernel is read first: what is made while the rest is read has its record already.
    pub(super) async fn world(&self) -> Result<World> {
        let kernel = Arc::clone(&self.kernel);
        let (links, bridges) =
            tokio::task::spawn_blocking(move || anyhow::Ok((kernel.host_links()?, kernel.bridges()?)))
                .await??;
        let networks: Api<Network> = Api::all(self.client.clone());
        let networks = call("list Networks", networks.list(&ListParams::default())).await?.items;
        let records = self.records.list().await?;
        let mut seen = HashMap::new();
        for record in &records {
            if let Some(found) = self.look_into(record).await? {
                seen.insert(record.key.uid.clone(), found);
            }
        }
        Ok(World { boot_id: self.boot_id.clone(), links, bridges, networks, records, seen })
    }

    /// What is in the namespace that a record is about; `None` if it is not there (any more).
    async fn look_into(&self, record: &Record) -> Result<Option<Seen>> {
        let Some(sandbox) = record.status.sandbox.as_ref().filter(|sandbox| sandbox.boot_id == self.boot_id)
        else {
            return Ok(None);
        };
        // A runtime that does not know it any more, or does not answer: the next look tells.
        let Ok(Some(path)) = self.runtime.netns_path(&sandbox.id).await else { return Ok(None) };
        let (kernel, uid) = (Arc::clone(&self.kernel), record.key.uid.clone());
        let interfaces: Vec<_> = record.spec.attachments.iter().map(|one| one.interface.clone()).collect();
        let looked = tokio::task::spawn_blocking(move || {
            let hosts: Vec<String> =
                interfaces.iter().map(|one| names::host_link(&uid, one.as_str())).collect();
            let places: Vec<Place<'_>> = interfaces
                .iter()
                .zip(&hosts)
                .map(|(interface, host)| Place { host, link: Some(interface.as_str()) })
                .collect();
            let mut seen = None;
            kernel.visit(&path, &mut |namespace, session| {
                let observed = session.observe(&places).ok();
                seen = observed.map(|observed| Seen { cookie: namespace.cookie, observed });
            })?;
            anyhow::Ok(seen)
        });
        // A namespace that has just gone is no disagreement.
        Ok(looked.await?.unwrap_or_default())
    }
}
