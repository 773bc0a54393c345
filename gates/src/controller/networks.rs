//! Driver: statuses and finalizers of Networks, and what is compiled from them into `Admission/default`.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use fairlead_crds::{Admission, AdmissionSpec, ConditionType, IPBlock, Network, PodNetwork, Reason, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use tracing::{debug, error, info, warn};

use super::admit::{self, Plan, Urgency, World};
use super::api::{CallError, Caller, json_patch, status_patch};
use super::events::Events;
use super::metrics::{Kind, Verb};
use super::model::{Block, Node, NodeOffer};
use super::occupancy::Claimed;
use super::run::Driver;
use super::settle::{SETTLE, Settling};
use super::users::Users;
use super::view::View;
use super::{compile, hold, island, node_patch, occupancy, remains, scheduling};

/// Fewest time between two writes of one Network that change only flags and counts: every agent hears of each.
const LAZY: Duration = Duration::from_secs(10);
/// How often the records of terminating Networks are counted.
const COUNT: Duration = Duration::from_secs(3);
/// Longest rest between two counts, however slow the API server was the last time.
const COUNT_LATEST: Duration = Duration::from_secs(30);

/// When records were counted.
struct Counted {
    at: Instant,
    took: Duration,
}

impl Counted {
    /// How long to rest before they are counted again: in a large cluster a list of all records is dear.
    fn rest(&self, wanted: &Users) -> Duration {
        let least = if wanted.has_terminating() { COUNT } else { LAZY };
        (self.took * 20).clamp(least, COUNT_LATEST)
    }
}

/// The driver.
pub struct Networks {
    caller: Caller,
    events: Events,
    api: Api<Network>,
    settling: Settling,
    lazy: HashMap<String, Instant>,
    users: Users,
    counted: Option<Counted>,
    islands: BTreeSet<String>,
    /// When who gets the scheduling gate was written last.
    gates_written: Option<Instant>,
}

impl Networks {
    /// A driver that begins its term.
    pub fn new(caller: Caller, events: Events) -> Self {
        Self {
            api: Api::all(caller.client.clone()),
            caller,
            events,
            settling: Settling::new(Instant::now()),
            lazy: HashMap::new(),
            users: Users::default(),
            counted: None,
            islands: BTreeSet::new(),
            gates_written: None,
        }
    }

    async fn pass(&mut self, view: &View) -> Result<Option<Duration>, CallError> {
        let networks = view.networks();
        self.settling.observe(&networks, Instant::now());
        self.count_users(&networks).await?;
        let blocks = view.blocks.all();
        let mut plans = self.plan(view, &networks, &blocks.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        if plans.iter().any(|plan| plan.admits) {
            plans = self.plan_anew(view).await?;
        }
        let mut again = plans.iter().any(|plan| plan.waits).then_some(SETTLE / 3);
        for plan in &plans {
            again = soonest(again, self.write(plan, view).await);
        }
        if networks.iter().any(|network| network.metadata.deletion_timestamp.is_some()) {
            again = soonest(again, Some(COUNT));
            self.let_go(&networks).await?;
        }
        again = soonest(again, self.compile(view).await?);
        self.tell_islands(view, &networks).await;
        Ok(again)
    }

    fn plan(&self, view: &View, networks: &[Network], blocks: &[&Block]) -> Vec<Plan> {
        let (nodes, offers) = (view.nodes.all(), view.offers.all());
        let nodes: Vec<&Node> = nodes.iter().map(AsRef::as_ref).collect();
        let in_use = offers.iter().flat_map(|offer| &offer.networks).filter(|network| network.used > 0);
        admit::plan(&World {
            networks,
            blocks,
            nodes: &nodes,
            used: &in_use.map(|network| network.name.clone()).collect(),
            users: &self.users,
            settling: &self.settling,
            instant: Instant::now(),
            now: Time(Timestamp::now()),
        })
    }

    /// A range is admitted only on the newest state of all Networks and blocks, never on a copy.
    async fn plan_anew(&mut self, view: &View) -> Result<Vec<Plan>, CallError> {
        let guarded: Api<DeserializeGuard<Network>> = Api::all(self.caller.client.clone());
        let listed = self.caller.read("list networks", guarded.list(&ListParams::default())).await?;
        let blocks: Api<IPBlock> = Api::all(self.caller.client.clone());
        let blocks = self.caller.read("list ipblocks", blocks.list(&ListParams::default())).await?;
        let (networks, unread): (Vec<_>, Vec<_>) =
            listed.items.into_iter().partition(|network| network.0.is_ok());
        let networks: Vec<Network> = networks.into_iter().filter_map(|network| network.0.ok()).collect();
        let blocks: Vec<Block> = blocks.items.into_iter().map(Into::into).collect();
        self.settling.observe(&networks, Instant::now());
        let mut plans = self.plan(view, &networks, &blocks.iter().collect::<Vec<_>>());
        if let Some(network) = unread.first() {
            error!(
                network = network.meta().name,
                "a Network cannot be read, so its ranges are unknown and nothing is admitted"
            );
            plans.retain(|plan| !plan.admits);
        }
        Ok(plans)
    }

    async fn write(&mut self, plan: &Plan, view: &View) -> Option<Duration> {
        let now = Instant::now();
        let rests = self
            .lazy
            .get(&plan.uid)
            .and_then(|last| LAZY.checked_sub(now - *last))
            .filter(|rest| !rest.is_zero());
        let written = match plan.urgency {
            _ if plan.needs_finalizer => self.add_finalizer(plan, view).await,
            Urgency::None => return None,
            Urgency::Lazy if rests.is_some() => return rests,
            Urgency::Lazy | Urgency::Now => self.write_status(plan).await,
        };
        match written {
            Ok(network) => {
                if plan.urgency == Urgency::Lazy && !plan.needs_finalizer {
                    self.lazy.insert(plan.uid.clone(), now);
                }
                view.networks.put(network);
                plan.needs_finalizer.then_some(Duration::ZERO)
            }
            Err(error) if error.is_conflict() || error.is_not_found() => {
                debug!(network = plan.name, %error, "Network changed meanwhile");
                Some(Duration::from_millis(200))
            }
            Err(error) => {
                warn!(network = plan.name, %error, "Network was not written");
                Some(Duration::from_secs(2))
            }
        }
    }

    /// The finalizer comes before the status that lets agents act, and only on the version that was decided on.
    async fn add_finalizer(&self, plan: &Plan, view: &View) -> Result<Network, CallError> {
        let current = view.networks.get(&plan.name);
        let finalizers = current.as_ref().and_then(|network| network.metadata.finalizers.as_deref());
        let patch = json_patch(node_patch::with_finalizer(
            &plan.resource_version,
            finalizers,
            names::NETWORK_FINALIZER,
        ));
        let (name, params) = (&plan.name, PatchParams::default());
        self.caller.write(Verb::Patch, Kind::Network, name, self.api.patch(name, &params, &patch)).await
    }

    async fn write_status(&self, plan: &Plan) -> Result<Network, CallError> {
        let patch = status_patch(&plan.resource_version, &full(&plan.status));
        let (name, params) = (&plan.name, PatchParams::default());
        let network = self
            .caller
            .write(Verb::Patch, Kind::Network, name, self.api.patch_status(name, &params, &patch))
            .await?;
        let accepted = plan.status.conditions.iter().find(|c| c.type_ == ConditionType::Accepted.as_str());
        info!(network = name, accepted = accepted.map(|c| c.reason.as_str()), "Network status written");
        Ok(network)
    }

    /// Counts who holds addresses of terminating Networks and draining ranges; nothing else needs a look at all records.
    async fn count_users(&mut self, networks: &[Network]) -> Result<(), CallError> {
        let wanted = Users::wanted(networks);
        let rests = self.counted.as_ref().is_some_and(|counted| counted.at.elapsed() < counted.rest(&wanted));
        if wanted.is_empty() || self.users.covers(&wanted) && rests {
            return Ok(());
        }
        let began = Instant::now();
        let records: Api<PodNetwork> = Api::all(self.caller.client.clone());
        let records = self.caller.read("list podnetworks", records.list(&ListParams::default())).await?;
        self.users = Users::count(networks, &records.items);
        self.counted = Some(Counted { at: Instant::now(), took: began.elapsed() });
        Ok(())
    }

    /// Removes our finalizer from Networks that nothing uses, after looking at blocks and records once more.
    async fn let_go(&mut self, networks: &[Network]) -> Result<(), CallError> {
        let mut unused = Vec::new();
        for network in networks.iter().filter(|network| self.may_go(network)) {
            if !self.has_blocks(network).await? {
                unused.push(network);
            }
        }
        if unused.is_empty() {
            return Ok(());
        }
        self.counted = None;
        self.count_users(networks).await?;
        for network in unused.into_iter().filter(|network| self.is_unheld(network)) {
            let name = network.name_any();
            info!(network = name, "nothing uses the Network any more");
            let (caller, finalizer) = (&self.caller, names::NETWORK_FINALIZER);
            let dropped = remains::drop_finalizer(caller, &self.api, Kind::Network, network, finalizer).await;
            if let Err(error) = dropped {
                warn!(network = name, %error, "Network was not let go");
            }
        }
        Ok(())
    }

    fn may_go(&self, network: &Network) -> bool {
        let uid = network.metadata.uid.as_deref().unwrap_or_default();
        network.metadata.deletion_timestamp.is_some()
            && network.finalizers().iter().any(|finalizer| finalizer == names::NETWORK_FINALIZER)
            && self.is_unheld(network)
            && self.settling.has_ended(uid, Instant::now())
    }

    fn is_unheld(&self, network: &Network) -> bool {
        let uid = network.metadata.uid.as_deref().unwrap_or_default();
        self.users.of_network(uid).is_some_and(|holders| holders.attachments == 0)
    }

    async fn has_blocks(&self, network: &Network) -> Result<bool, CallError> {
        let blocks: Api<IPBlock> = Api::all(self.caller.client.clone());
        let of_network = ListParams::default().fields(&format!("spec.network={}", network.name_any()));
        let blocks = self.caller.read("list ipblocks", blocks.list(&of_network)).await?;
        Ok(blocks.items.iter().any(|block| Some(&block.spec.network_uid) == network.metadata.uid.as_ref()))
    }

    /// Brings the Admission in line; says when to look again if a change of gates alone has to rest, since agents
    /// hear of each.
    async fn compile(&mut self, view: &View) -> Result<Option<Duration>, CallError> {
        let networks = view.networks();
        let accepted = networks.iter().filter(|network| network.is_accepted()).count();
        self.caller.metrics.set_networks(accepted, networks.len() - accepted);
        let (api, wanted) = (Api::<Admission>::all(self.caller.client.clone()), wanted(view, &networks));
        let Some(current) = view.admission.get(names::ADMISSION) else {
            return self.create_admission(&api, wanted, view).await.map(|()| None);
        };
        let Some(patch) = compile::patch(&current.spec, &wanted) else { return Ok(None) };
        let rest = self.gates_written.and_then(|at| LAZY.checked_sub(at.elapsed()));
        if compile::differ_in_gates_only(&current.spec, &wanted) {
            if rest.is_some() {
                return Ok(rest);
            }
            self.gates_written = Some(Instant::now());
        }
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = api.patch(names::ADMISSION, &params, &patch);
        let written = self.caller.write(Verb::Patch, Kind::Admission, names::ADMISSION, call).await?;
        let gated = wanted.networks.iter().filter(|network| network.gated).count();
        let (networks, attach) = (wanted.networks.len(), wanted.attach.len());
        info!(networks, gated, attach, hold = ?wanted.hold, "Admission written");
        view.admission.put(written);
        Ok(None)
    }

    async fn create_admission(
        &self,
        api: &Api<Admission>,
        spec: AdmissionSpec,
        view: &View,
    ) -> Result<(), CallError> {
        let (params, admission) = (PostParams::default(), Admission::new(names::ADMISSION, spec));
        let call = api.create(&params, &admission);
        match self.caller.write(Verb::Create, Kind::Admission, names::ADMISSION, call).await {
            Ok(created) => {
                info!("Admission created");
                view.admission.put(created);
                Ok(())
            }
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn tell_islands(&mut self, view: &View, networks: &[Network]) {
        let offers = view.offers.all();
        let offers: Vec<&NodeOffer> = offers.iter().map(AsRef::as_ref).collect();
        let islands = island::islands(networks, &offers);
        for name in islands.difference(&self.islands) {
            let Some(network) = networks.iter().find(|network| network.metadata.name.as_ref() == Some(name))
            else {
                continue;
            };
            let note = format!(
                "pods of network {name} run on several nodes, but its bridges are not connected: give it an uplink, or keep its pods on one node"
            );
            let told =
                self.events.warn(&network.object_ref(&()), Reason::NetworkIsland, "Attach", note).await;
            if let Err(error) = told {
                warn!(network = name, %error, "event was not published");
            }
        }
        self.islands = islands;
    }
}

fn wanted(view: &View, networks: &[Network]) -> AdmissionSpec {
    let (offers, blocks) = (view.offers.all(), view.blocks.all());
    let offers: Vec<&NodeOffer> = offers.iter().map(AsRef::as_ref).collect();
    let claimed = Claimed::of(blocks.iter().map(AsRef::as_ref));
    let gated =
        |network: &Network| scheduling::gates(network, &offers, occupancy::is_exhausted(network, &claimed));
    let before = view.admission.get(names::ADMISSION).map(|admission| admission.spec.hold);
    let nodes = view.nodes.all();
    let nodes: Vec<&Node> = nodes.iter().map(AsRef::as_ref).collect();
    compile::compile(networks, &gated, hold::auto(before.unwrap_or_default(), networks, &nodes))
}

/// The status with every field present, so that a merge patch also removes.
fn full(status: &fairlead_crds::NetworkStatus) -> serde_json::Value {
    serde_json::json!({
        "observedGeneration": status.observed_generation,
        "driver": status.driver,
        "reach": status.reach,
        "addresses": status.addresses,
        "unclaimed": status.unclaimed,
        "ranges": status.ranges,
        "conditions": status.conditions,
    })
}

fn soonest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

impl Driver for Networks {
    async fn look(&mut self, view: &View) -> Option<Duration> {
        if view.is_uninstalling() {
            return None;
        }
        match self.pass(view).await {
            Ok(again) => again,
            Err(error) => {
                warn!(%error, "Networks were not looked at to the end");
                Some(Duration::from_secs(2))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_list_delays_the_next_count_but_not_for_long() {
        let rest = |took| Counted { at: Instant::now(), took }.rest(&Users::default());
        assert_eq!(rest(Duration::from_millis(1)), LAZY);
        assert_eq!(rest(Duration::from_secs(1)), Duration::from_secs(20));
        assert_eq!(rest(Duration::from_secs(4)), COUNT_LATEST);
    }
}
