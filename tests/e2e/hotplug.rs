//! Editing the annotation of a running pod changes its interfaces, without a restart.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_crds::names;
use fairlead_tests::wait;

use crate::{
    fixtures::{self, Net},
    traces,
    trial::{Case, Env},
};

/// From the answer to the edit to the kernel and the record, without the time that `kubectl` takes to look.
const FOLLOWS: Duration = Duration::from_secs(2);

const CONTAINER: &str = ".status.containerStatuses[0].containerID";

/// The trials of this module.
pub fn cases() -> Vec<Case> {
    vec![Case::new("hotplug_add_swap_and_remove_a_network_of_a_running_pod", edit)]
}

async fn edit(env: Arc<Env>) -> Result<()> {
    let one = Net::island(&env, "one", &["10.70.0.0/24"]);
    let two = Net::island(&env, "two", &["10.71.0.0/24"]);
    let three = Net::island(&env, "three", &["10.72.0.0/24"]);
    for net in [&one, &two, &three] {
        net.create(&env).await?;
    }
    env.apply(&fixtures::pod("live", one.name()).to_string()).await?;
    env.wait_ready("app=live").await?;
    let container = env.field("pod/live", CONTAINER).await?;
    let kept = fixtures::addresses(&env, "live", "net1").await?;

    annotate(&env, &format!("{}@net1,{}@net2", one.name(), two.name())).await?;
    follows(&env, &[("net1", "10.70.0."), ("net2", "10.71.0.")]).await.context("after adding net2")?;
    annotate(&env, &format!("{}@net1,{}@net2", one.name(), three.name())).await?;
    follows(&env, &[("net1", "10.70.0."), ("net2", "10.72.0.")]).await.context("after a swap on net2")?;
    annotate(&env, &format!("{}@net1", one.name())).await?;
    follows(&env, &[("net1", "10.70.0.")]).await.context("after removing net2")?;

    ensure!(fixtures::addresses(&env, "live", "net1").await? == kept, "net1 has changed meanwhile");
    // One interface has one link on the node: those of the others are gone.
    traces::of(&env, "live").await?;
    ensure!(env.field("pod/live", CONTAINER).await? == container, "the container has been restarted");
    Ok(())
}

async fn annotate(env: &Env, networks: &str) -> Result<()> {
    let annotation = format!("{}={networks}", names::NETWORKS_ANNOTATION);
    env.kubectl(&["annotate", "--overwrite", "pod", "live", &annotation]).await?;
    Ok(())
}

/// Waits until the pod has exactly these interfaces with one address each, and its record says so.
async fn follows(env: &Env, wanted: &[(&str, &str)]) -> Result<()> {
    wait::promptly(FOLLOWS, "the kernel and the record to follow", || async {
        let links = env.exec("live", &["ls", "/sys/class/net"]).await?;
        let networks: Vec<_> = links.split_whitespace().filter(|name| name.starts_with("net")).collect();
        let names: Vec<_> = wanted.iter().map(|(name, _)| *name).collect();
        ensure!(networks == names, "links {networks:?}");
        for (interface, start) in wanted {
            let found = fixtures::addresses(env, "live", interface).await?;
            ensure!(found.len() == 1 && found[0].starts_with(start), "{interface} has {found:?}");
        }
        let status = fixtures::record(env, "live").await?.status.context("no status")?;
        let recorded: Vec<_> = status.interfaces.iter().map(|one| one.interface_name.to_string()).collect();
        ensure!(recorded == names, "the record has {recorded:?}");
        ensure!(fixtures::is_ready(&status), "the record is not Ready");
        Ok(())
    })
    .await
}
