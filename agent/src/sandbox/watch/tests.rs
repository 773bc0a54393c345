use super::*;
use crate::sandbox::Sandbox;
use crate::sandbox::announce::{self, Announcer};
use crate::sandbox::cri::v1::ContainerEventType;
use crate::sandbox::fake::{FakeRuntime, Listeners, sandbox};

const PATIENCE: Duration = Duration::from_secs(10);
/// Nothing is listed by itself within a test, so that what is seen came by an event or by being armed.
const RARE: Timing = Timing {
    full: PATIENCE.saturating_mul(10),
    confirm: PATIENCE.saturating_mul(10),
    poll: Duration::from_millis(20),
    gap: Duration::from_millis(5),
    settle: Duration::from_millis(50),
    reopen: PATIENCE.saturating_mul(10),
    back_off: (Duration::from_millis(10), Duration::from_millis(50)),
};

struct Watched {
    subscription: Subscription,
    armed: watch::Sender<bool>,
    announcer: Announcer,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Watched {
    fn new(runtime: &FakeRuntime, timing: Timing) -> Self {
        let (armed, is_armed) = watch::channel(false);
        let stop = CancellationToken::new();
        let (announcer, heard) = announce::channel();
        let (subscription, task) = watch(runtime.client(), is_armed, heard, timing, stop.clone());
        let task = tokio::spawn(task);
        Self { subscription, armed, announcer, stop, task }
    }

    async fn until(&mut self, wanted: impl Fn(&Sandboxes) -> bool) -> Arc<Sandboxes> {
        let seen = self.subscription.latest();
        if wanted(&seen) {
            return seen;
        }
        let next = async {
            loop {
                let change = self.subscription.next().await.unwrap();
                if wanted(&change.now) {
                    return change.now;
                }
            }
        };
        tokio::time::timeout(PATIENCE, next).await.unwrap()
    }

    /// A source that has seen what there is and is quiet.
    async fn settled(runtime: &FakeRuntime) -> Self {
        let mut watched = Self::new(runtime, RARE);
        until(|| runtime.set(|state| state.lists >= 1 && state.subscriptions == 1)).await;
        // After one that begins once it listens, nothing is listed by itself.
        tokio::time::sleep(RARE.settle).await;
        let lists = runtime.set(|state| state.lists);
        watched.armed.send(true).unwrap();
        until(|| runtime.set(|state| state.lists > lists)).await;
        watched.armed.send(false).unwrap();
        while tokio::time::timeout(RARE.settle * 2, watched.subscription.next()).await.is_ok() {}
        watched
    }
}

async fn until(wanted: impl Fn() -> bool) {
    let polled = async {
        while !wanted() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polled).await.unwrap();
}

fn stopped(sandbox: &Sandbox) -> Sandbox {
    Sandbox { ready: false, ..sandbox.clone() }
}

#[tokio::test]
async fn an_event_brings_a_sandbox_and_names_its_pod_without_a_list() {
    let runtime = FakeRuntime::started();
    let mut watched = Watched::settled(&runtime).await;
    let lists = runtime.set(|state| state.lists);
    while tokio::time::timeout(RARE.settle, watched.subscription.next()).await.is_ok() {}

    let first = sandbox("a", "uid-1", 0);
    runtime.put(&first);
    runtime.tell(ContainerEventType::ContainerStartedEvent, &first);
    let change = watched.subscription.next().await.unwrap();
    assert_eq!(change.uids, BTreeSet::from(["uid-1".to_owned()]));
    assert_eq!(change.now.newest("uid-1"), Some(&first));

    runtime.tell(ContainerEventType::ContainerStoppedEvent, &stopped(&first));
    watched.until(|now| !now.any_ready("uid-1") && now.of("uid-1").len() == 1).await;
    runtime.tell(ContainerEventType::ContainerDeletedEvent, &stopped(&first));
    watched.until(|now| now.of("uid-1").is_empty()).await;
    assert_eq!(runtime.set(|state| state.lists), lists);
}

#[tokio::test]
async fn an_event_that_arrives_during_a_list_survives_it() {
    let runtime = FakeRuntime::started();
    let mut watched = Watched::settled(&runtime).await;
    let lists = runtime.set(|state| {
        state.delay = Duration::from_millis(300);
        state.lists
    });
    watched.armed.send_replace(true);
    until(|| runtime.set(|state| state.lists > lists)).await;

    let begun = Instant::now();
    let first = sandbox("a", "uid-1", 0);
    runtime.tell(ContainerEventType::ContainerStartedEvent, &first);
    watched.until(|now| now.any_ready("uid-1")).await;
    assert!(begun.elapsed() < Duration::from_millis(200), "it waited for the list");
    let before = watched.subscription.latest().synced();
    let after = watched.until(|now| now.synced() > before).await;
    assert!(after.any_ready("uid-1"), "the older list took it away");
}

#[tokio::test]
async fn a_lost_runtime_takes_the_trust_and_a_new_one_is_listed_anew() {
    let mut runtime = FakeRuntime::started();
    runtime.put(&sandbox("a", "uid-1", 0));
    let mut watched = Watched::settled(&runtime).await;

    runtime.crash().await;
    let lost = watched.until(|now| !now.trusted()).await;
    assert!(lost.complete() && lost.any_ready("uid-1"), "what was known is kept");
    assert!(!lost.trusted_since(lost.synced().unwrap()));

    runtime.set(|state| state.sandboxes = vec![sandbox("b", "uid-2", 0)]);
    runtime.start();
    let found = watched.until(Sandboxes::trusted).await;
    assert!(found.of("uid-1").is_empty() && found.any_ready("uid-2"));
    until(|| runtime.set(|state| state.subscriptions == 2)).await;
    runtime.tell(ContainerEventType::ContainerStartedEvent, &sandbox("c", "uid-3", 0));
    watched.until(|now| now.any_ready("uid-3")).await;
}

#[tokio::test]
async fn a_runtime_that_comes_late_is_waited_for() {
    let mut runtime = FakeRuntime::new();
    let mut watched = Watched::new(&runtime, RARE);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!watched.subscription.latest().complete());
    runtime.start();
    assert!(watched.until(Sandboxes::complete).await.trusted());
}

#[tokio::test]
async fn each_new_waiter_gets_a_snapshot_younger_than_its_question() {
    let runtime = FakeRuntime::started();
    let mut watched = Watched::settled(&runtime).await;
    for _ in 0..3 {
        let asked = Instant::now();
        watched.armed.send_replace(true);
        watched.until(|now| now.trusted_since(asked)).await;
    }
}

async fn lists_instead_of_events(runtime: FakeRuntime) {
    let mut watched = Watched::new(&runtime, RARE);
    watched.until(Sandboxes::trusted).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let lists = runtime.set(|state| state.lists);
    assert!(lists <= 2, "{lists} lists while nobody waits");
    assert!(watched.subscription.latest().trusted());

    watched.armed.send_replace(true);
    until(|| runtime.set(|state| state.lists >= lists + 3)).await;
    runtime.put(&sandbox("a", "uid-1", 0));
    watched.until(|now| now.any_ready("uid-1")).await;
    runtime.put(&stopped(&sandbox("a", "uid-1", 0)));
    watched.until(|now| !now.any_ready("uid-1")).await;

    watched.armed.send_replace(false);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let lists = runtime.set(|state| state.lists);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(runtime.set(|state| state.lists), lists);
}

#[tokio::test]
async fn a_stream_that_ends_at_once_is_replaced_by_lists_while_someone_waits() {
    let runtime = FakeRuntime::started();
    runtime.set(|state| state.listeners = Listeners::EndAtOnce);
    lists_instead_of_events(runtime).await;
}

#[tokio::test]
async fn a_runtime_without_the_call_is_listed_while_someone_waits() {
    let runtime = FakeRuntime::started();
    runtime.set(|state| state.listeners = Listeners::Unimplemented);
    lists_instead_of_events(runtime).await;
}

#[tokio::test]
async fn containerd_1_is_never_listened_to() {
    let runtime = FakeRuntime::started();
    runtime.set(|state| state.version.1 = "1.7.27".into());
    let mut watched = Watched::new(&runtime, Timing { reopen: RARE.poll, ..RARE });
    watched.until(Sandboxes::trusted).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(runtime.set(|state| state.subscriptions), 0);
}

#[tokio::test]
async fn a_runtime_that_gets_events_later_is_asked_again() {
    let runtime = FakeRuntime::started();
    runtime.set(|state| state.listeners = Listeners::EndAtOnce);
    let mut watched = Watched::new(&runtime, Timing { reopen: Duration::from_millis(100), ..RARE });
    watched.until(Sandboxes::trusted).await;
    until(|| runtime.set(|state| state.subscriptions == 2)).await;
    runtime.set(|state| state.listeners = Listeners::Served);
    until(|| runtime.set(|state| state.subscriptions == 3)).await;
    runtime.tell(ContainerEventType::ContainerStartedEvent, &sandbox("a", "uid-1", 0));
    assert!(watched.until(|now| now.any_ready("uid-1")).await.trusted());
}

#[tokio::test]
async fn lists_go_on_while_nobody_waits_and_more_often_while_someone_does() {
    let runtime = FakeRuntime::started();
    let timing = Timing { full: Duration::from_millis(400), confirm: Duration::from_millis(10), ..RARE };
    let watched = Watched::new(&runtime, timing);
    until(|| runtime.set(|state| state.lists >= 3)).await;
    watched.armed.send_replace(true);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (begun, lists) = (Instant::now(), runtime.set(|state| state.lists));
    until(|| runtime.set(|state| state.lists >= lists + 8)).await;
    assert!(begun.elapsed() < timing.full * 8, "no faster than when nobody waits");
}

#[tokio::test]
async fn a_runtime_that_hangs_takes_the_trust() {
    let runtime = FakeRuntime::started();
    let mut watched = Watched::settled(&runtime).await;
    runtime.set(|state| state.delay = PATIENCE * 10);
    watched.armed.send_replace(true);
    watched.until(|now| !now.trusted()).await;
    runtime.set(|state| state.delay = Duration::ZERO);
    watched.until(Sandboxes::trusted).await;
}

#[tokio::test]
async fn the_task_ends_on_its_token_and_tells_its_subscriber() {
    let runtime = FakeRuntime::started();
    let mut watched = Watched::new(&runtime, RARE);
    watched.until(Sandboxes::trusted).await;
    watched.stop.cancel();
    tokio::time::timeout(PATIENCE, watched.task).await.unwrap().unwrap();
    while watched.subscription.next().await.is_some() {}
}

#[test]
fn pauses_grow_and_stay_below_the_longest() {
    let limits = (Duration::from_millis(100), Duration::from_secs(5));
    for failures in [0, 1, 5, 40, u32::MAX] {
        let full = limits.0.saturating_mul(1 << failures.min(16)).min(limits.1);
        let pause = back_off(limits, failures);
        assert!(pause >= full / 2 && pause <= full, "{failures}: {pause:?}");
    }
}

#[tokio::test]
async fn what_the_runtime_tells_its_plugin_is_there_at_once_and_its_end_causes_a_list() {
    let runtime = FakeRuntime::started();
    let mut watched = Watched::settled(&runtime).await;
    let lists = runtime.set(|state| state.lists);
    let (sandbox, path) = (sandbox("a", "uid-1", 0), std::path::PathBuf::from("/run/netns/x"));
    watched.announcer.announce(Announcement::Made { sandbox, path, at: Instant::now() });
    let seen = watched.until(|now| now.any_ready("uid-1")).await;
    assert!(seen.path("a").is_some() && runtime.set(|state| state.lists) == lists);
    watched.announcer.announce(Announcement::Ending("a".into()));
    watched.until(|now| !now.any_ready("uid-1")).await;
}
