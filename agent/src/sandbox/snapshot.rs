//! The snapshot: every sandbox of the node, by pod UID, and how far it can be believed.
//!
//! Pure. A list replaces it; an event changes it only where the event cannot be older than the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sandbox::cri::{Event, EventKind};
use crate::sandbox::{Sandbox, newest};

/// How long a sandbox may be missing in lists after the runtime told its plugins of it: it comes into the list when
/// the last plugin has answered.
const UNLISTED: Duration = Duration::from_secs(5);

/// Every sandbox of the node at one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Sandboxes {
    by_uid: BTreeMap<String, Arc<[Sandbox]>>,
    /// By id of the sandbox.
    told: BTreeMap<String, Told>,
    synced: Option<Instant>,
    listed_at: i64,
    trusted: bool,
}

/// What the runtime told its plugin of a sandbox when it was made.
#[derive(Debug, Clone)]
struct Told {
    path: Arc<Path>,
    at: Instant,
    /// Whether a list had it. Until then it may as well be one that the runtime gave up.
    listed: bool,
}

/// What an event did to a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing new.
    None,
    /// The snapshot changed.
    Changed,
    /// The event contradicts the snapshot or says too little: only a list can tell.
    ListNeeded,
}

impl Sandboxes {
    /// A complete and trusted snapshot, as a list that was begun at `begun` gives it.
    pub fn complete_at(sandboxes: Vec<Sandbox>, begun: Instant) -> Self {
        let mut snapshot = Self::default();
        snapshot.replace(sandboxes, begun, 0);
        snapshot
    }

    /// The sandboxes of a pod, the oldest first, also those that stopped.
    pub fn of(&self, uid: &str) -> &[Sandbox] {
        self.by_uid.get(uid).map_or(&[], |sandboxes| sandboxes)
    }

    /// The sandbox in which a pod's containers run, see [`newest`].
    pub fn newest(&self, uid: &str) -> Option<&Sandbox> {
        newest(self.of(uid), uid)
    }

    /// Path of a sandbox's network namespace, if the runtime told its plugin.
    pub fn path(&self, id: &str) -> Option<&Path> {
        self.told.get(id).map(|told| told.path.as_ref())
    }

    /// When the runtime told its plugin of a sandbox, if it did.
    pub fn told_at(&self, id: &str) -> Option<Instant> {
        self.told.get(id).map(|told| told.at)
    }

    /// Whether any sandbox of the pod is READY. False proves nothing unless [`Self::trusted_since`].
    pub fn any_ready(&self, uid: &str) -> bool {
        self.of(uid).iter().any(|sandbox| sandbox.ready)
    }

    /// All sandboxes, by pod UID.
    pub fn iter(&self) -> impl Iterator<Item = &Sandbox> {
        self.by_uid.values().flat_map(|sandboxes| sandboxes.iter())
    }

    /// Whether a complete list has ever been there. Before, an absent sandbox means nothing.
    pub fn complete(&self) -> bool {
        self.synced.is_some()
    }

    /// Whether the runtime answers and its events, if it has them, arrive.
    pub fn trusted(&self) -> bool {
        self.trusted
    }

    /// When the last complete list was begun: everything older than this is in the snapshot.
    pub fn synced(&self) -> Option<Instant> {
        self.synced
    }

    /// Whether absence is proof: trusted, and completely listed after `moment`.
    pub fn trusted_since(&self, moment: Instant) -> bool {
        self.trusted && self.synced.is_some_and(|synced| synced >= moment)
    }

    /// UIDs whose sandboxes differ between two snapshots.
    pub fn changed_since(&self, older: &Self) -> BTreeSet<String> {
        let differs = |uid: &&String| self.by_uid.get(*uid) != older.by_uid.get(*uid);
        let uids = self.by_uid.keys().chain(older.by_uid.keys());
        uids.filter(differs).cloned().collect()
    }

    /// Takes a complete list that was begun at `begun`, by the node's clock at `listed_at` (ns since 1970).
    pub(crate) fn replace(&mut self, listed: Vec<Sandbox>, begun: Instant, listed_at: i64) {
        for sandbox in &listed {
            if let Some(told) = self.told.get_mut(&sandbox.id) {
                told.listed = true;
            }
        }
        let is_kept = |told: &Told| !told.listed && begun < told.at + UNLISTED;
        let kept = self.iter().filter(|sandbox| self.told.get(&sandbox.id).is_some_and(is_kept)).cloned();
        let mut by_uid: BTreeMap<String, Vec<Sandbox>> = BTreeMap::new();
        for sandbox in listed.into_iter().map(|sandbox| self.unless_known(sandbox)).chain(kept) {
            by_uid.entry(sandbox.uid.clone()).or_default().push(sandbox);
        }
        self.by_uid = by_uid.into_iter().map(|(uid, all)| (uid, sorted(all))).collect();
        let ids: BTreeSet<String> = self.iter().map(|sandbox| sandbox.id.clone()).collect();
        self.told.retain(|id, _| ids.contains(id));
        self.synced = Some(begun);
        self.listed_at = listed_at;
        self.trusted = true;
    }

    /// A sandbox that is listed as it is known but for its time stays as it is: the runtime tells its plugins none.
    fn unless_known(&self, listed: Sandbox) -> Sandbox {
        let known = self.of(&listed.uid).iter().find(|known| known.id == listed.id);
        let at = known.map_or(listed.created_at, |known| known.created_at);
        let same = Sandbox { created_at: at, ..listed.clone() };
        if known == Some(&same) { same } else { listed }
    }

    /// Takes a sandbox of which the runtime tells its plugin, before it tells anyone else. Its attempt is not told:
    /// the kubelet counts on from what there is.
    pub(crate) fn announce(&mut self, mut sandbox: Sandbox, path: PathBuf, at: Instant) -> Effect {
        self.told.insert(sandbox.id.clone(), Told { path: path.into(), at, listed: false });
        let all = self.of(&sandbox.uid);
        if all.iter().any(|known| known.id == sandbox.id) {
            return Effect::None;
        }
        sandbox.attempt = all.iter().map(|known| known.attempt + 1).max().unwrap_or(0);
        self.update(&sandbox.uid.clone(), |all| all.push(sandbox))
    }

    /// The runtime tells its plugin that a sandbox ends. One that no list had is not kept against the next; of the
    /// others the runtime's events tell how far they are.
    pub(crate) fn ending(&mut self, id: &str) -> Effect {
        if self.told.get(id).is_some_and(|told| told.listed) {
            return Effect::None;
        }
        self.told.remove(id).map_or(Effect::None, |_| Effect::ListNeeded)
    }

    /// Takes back the trust; says whether there was any.
    pub(crate) fn distrust(&mut self) -> bool {
        std::mem::take(&mut self.trusted)
    }

    /// Takes what an event says of its sandbox.
    ///
    /// containerd keeps events for five minutes while nobody listens and then sends them all, so an event
    /// may tell of a sandbox that is long gone; and two events of one sandbox, made side by side, may
    /// arrive the wrong way round. Neither is allowed to bring a sandbox back.
    pub(crate) fn apply(&mut self, event: &Event) -> Effect {
        if event.kind == EventKind::Deleted && self.remove(&event.container) {
            return Effect::Changed;
        }
        let Some(sandbox) = &event.sandbox else {
            // The deletion of a container, or of a sandbox that is not here any more.
            let deleted = event.kind == EventKind::Deleted;
            return if deleted { Effect::None } else { Effect::ListNeeded };
        };
        if event.kind == EventKind::Deleted && event.container == sandbox.id {
            return Effect::None;
        }
        let known = self.of(&sandbox.uid).iter().find(|known| known.id == sandbox.id);
        match (known.map(|known| known.ready), sandbox.ready) {
            (Some(true), true) | (Some(false) | None, false) => Effect::None,
            (Some(false), true) => Effect::ListNeeded,
            _ if event.at < self.listed_at => Effect::ListNeeded,
            (None, true) => self.update(&sandbox.uid, |all| all.push(sandbox.clone())),
            (Some(true), false) => self.update(&sandbox.uid, |all| stop(all, &sandbox.id)),
        }
    }

    fn update(&mut self, uid: &str, change: impl FnOnce(&mut Vec<Sandbox>)) -> Effect {
        let mut all = self.of(uid).to_vec();
        change(&mut all);
        self.by_uid.insert(uid.to_owned(), sorted(all));
        Effect::Changed
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(uid) = self.iter().find(|sandbox| sandbox.id == id).map(|s| s.uid.clone()) else {
            return false;
        };
        self.told.remove(id);
        self.update(&uid, |all| all.retain(|sandbox| sandbox.id != id));
        if self.of(&uid).is_empty() {
            self.by_uid.remove(&uid);
        }
        true
    }
}

fn sorted(mut all: Vec<Sandbox>) -> Arc<[Sandbox]> {
    all.sort_by_key(Sandbox::age);
    all.into()
}

fn stop(all: &mut [Sandbox], id: &str) {
    for sandbox in all.iter_mut().filter(|sandbox| sandbox.id == id) {
        sandbox.ready = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::fake;

    const LISTED: i64 = 1_000;

    fn listed(sandboxes: &[Sandbox]) -> Sandboxes {
        let mut snapshot = Sandboxes::default();
        snapshot.replace(sandboxes.to_vec(), Instant::now(), LISTED);
        snapshot
    }

    fn event(kind: EventKind, sandbox: &Sandbox, at: i64) -> Event {
        Event { container: sandbox.id.clone(), kind, at, sandbox: Some(sandbox.clone()) }
    }

    fn stopped(sandbox: &Sandbox) -> Sandbox {
        Sandbox { ready: false, ..sandbox.clone() }
    }

    #[test]
    fn events_carry_a_sandbox_through_its_life_without_a_list() {
        let mut snapshot = listed(&[]);
        let sandbox = fake::sandbox("a", "uid-1", 0);
        let empty = snapshot.clone();
        assert_eq!(snapshot.apply(&event(EventKind::Started, &sandbox, 2_000)), Effect::Changed);
        assert_eq!(snapshot.newest("uid-1"), Some(&sandbox));
        assert_eq!(snapshot.changed_since(&empty), BTreeSet::from(["uid-1".to_owned()]));
        assert_eq!(snapshot.apply(&event(EventKind::Started, &sandbox, 2_001)), Effect::None);

        let gone = stopped(&sandbox);
        assert_eq!(snapshot.apply(&event(EventKind::Stopped, &gone, 2_002)), Effect::Changed);
        assert!(!snapshot.any_ready("uid-1"));
        assert_eq!(snapshot.of("uid-1").len(), 1);
        assert_eq!(snapshot.apply(&event(EventKind::Deleted, &gone, 2_003)), Effect::Changed);
        assert_eq!(snapshot.apply(&event(EventKind::Deleted, &gone, 2_003)), Effect::None);
        assert!(snapshot.changed_since(&empty).is_empty());
    }

    #[test]
    fn an_event_older_than_the_list_brings_no_sandbox_back() {
        let mut snapshot = listed(&[]);
        let old = event(EventKind::Started, &fake::sandbox("a", "uid-1", 0), LISTED - 1);
        assert_eq!(snapshot.apply(&old), Effect::ListNeeded);
        assert_eq!(snapshot.newest("uid-1"), None);
    }

    #[test]
    fn an_event_that_overtook_the_stop_makes_no_sandbox_ready() {
        let sandbox = fake::sandbox("a", "uid-1", 0);
        let mut snapshot = listed(&[stopped(&sandbox)]);
        let late = event(EventKind::Started, &sandbox, 2_000);
        assert_eq!(snapshot.apply(&late), Effect::ListNeeded);
        assert!(!snapshot.any_ready("uid-1"));
    }

    #[test]
    fn an_event_without_a_status_asks_for_a_list() {
        let sandbox = fake::sandbox("a", "uid-1", 0);
        let mut snapshot = listed(std::slice::from_ref(&sandbox));
        let bare = |kind| Event { sandbox: None, ..event(kind, &sandbox, 2_000) };
        assert_eq!(snapshot.apply(&bare(EventKind::Stopped)), Effect::ListNeeded);
        assert_eq!(snapshot.apply(&bare(EventKind::Deleted)), Effect::Changed);
        assert_eq!(snapshot.apply(&bare(EventKind::Deleted)), Effect::None);
    }

    #[test]
    fn events_of_a_pods_containers_change_nothing() {
        let sandbox = fake::sandbox("a", "uid-1", 0);
        let mut snapshot = listed(std::slice::from_ref(&sandbox));
        for kind in [EventKind::Created, EventKind::Started, EventKind::Stopped, EventKind::Deleted] {
            let container = Event { container: "app".into(), ..event(kind, &sandbox, 2_000) };
            assert_eq!(snapshot.apply(&container), Effect::None);
        }
        assert_eq!(snapshot.of("uid-1"), [sandbox]);
    }

    fn told(snapshot: &mut Sandboxes, id: &str, at: Instant) -> Effect {
        let sandbox = Sandbox { created_at: 7, ..fake::sandbox(id, "uid-1", 0) };
        snapshot.announce(sandbox, PathBuf::from("/run/netns/x"), at)
    }

    #[test]
    fn a_sandbox_that_the_runtime_told_its_plugin_of_is_there_before_any_list_has_it() {
        let (mut snapshot, now) = (listed(&[stopped(&fake::sandbox("old", "uid-1", 3))]), Instant::now());
        assert_eq!(told(&mut snapshot, "a", now), Effect::Changed);
        assert_eq!(snapshot.newest("uid-1").map(|s| (s.id.as_str(), s.attempt)), Some(("a", 4)));
        assert_eq!((snapshot.path("a"), snapshot.told_at("a")), (Some(Path::new("/run/netns/x")), Some(now)));
        snapshot.replace(vec![], now, LISTED);
        assert!(snapshot.any_ready("uid-1"), "the list is too young to contradict");
        snapshot.replace(vec![], now + UNLISTED, LISTED);
        assert!(!snapshot.any_ready("uid-1") && snapshot.path("a").is_none());
    }

    #[test]
    fn a_list_that_confirms_what_was_told_changes_nothing_and_the_next_one_decides() {
        let (mut snapshot, now) = (listed(&[]), Instant::now());
        told(&mut snapshot, "a", now);
        let before = snapshot.clone();
        snapshot.replace(vec![fake::sandbox("a", "uid-1", 0)], now, LISTED);
        assert!(snapshot.changed_since(&before).is_empty() && snapshot.path("a").is_some());
        let event = event(EventKind::Started, &fake::sandbox("a", "uid-1", 0), 2_000);
        assert_eq!(snapshot.apply(&event), Effect::None);
        snapshot.replace(vec![fake::sandbox("a", "uid-1", 1)], now, LISTED);
        assert_eq!(snapshot.newest("uid-1").map(|s| s.attempt), Some(1), "the runtime knows the attempt");
        snapshot.replace(vec![], now, LISTED);
        assert!(!snapshot.any_ready("uid-1") && snapshot.path("a").is_none());
    }

    #[test]
    fn a_sandbox_that_the_runtime_gave_up_goes_with_the_next_list() {
        let (mut snapshot, now) = (listed(&[]), Instant::now());
        told(&mut snapshot, "a", now);
        assert_eq!(snapshot.ending("a"), Effect::ListNeeded);
        assert!(snapshot.any_ready("uid-1"), "a hint proves nothing");
        snapshot.replace(vec![], now, LISTED);
        assert!(!snapshot.any_ready("uid-1"));
    }

    #[test]
    fn absence_is_proof_only_with_a_list_after_the_moment_and_while_the_runtime_answers() {
        let before = Instant::now();
        assert!(!Sandboxes::default().trusted_since(before));
        let mut snapshot = listed(&[]);
        assert!(snapshot.trusted_since(before));
        assert!(!snapshot.trusted_since(Instant::now() + std::time::Duration::from_secs(1)));
        assert!(snapshot.distrust() && !snapshot.distrust());
        assert!(!snapshot.trusted_since(before) && snapshot.complete());
    }
}
