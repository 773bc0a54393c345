//! Keeps a snapshot of the sandboxes current: the source of "sandbox" in the agent.
//!
//! With events, a sandbox is seen within a millisecond and lists only confirm. Without, lists are made
//! often while someone waits (`armed`) and rarely otherwise. Decides nothing and never blocks the runtime:
//! containerd stops starting sandboxes while a listener does not read, so events are read at all times.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::sandbox::Sandboxes;
use crate::sandbox::announce::Announcement;
use crate::sandbox::cri::{CriError, Event, Runtime};
use crate::sandbox::snapshot::Effect;

mod events;

use events::Events;

/// Events that may arrive while a list is under way; beyond, another list follows.
const MAX_DURING_LIST: usize = 4096;

/// How often the runtime is asked.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two complete lists while nobody waits.
    pub full: Duration,
    /// Between two lists while someone waits and the runtime has events.
    pub confirm: Duration,
    /// Between two lists while someone waits and the runtime has no events.
    pub poll: Duration,
    /// Least time between a list and one that an event or a new waiter asks for.
    pub gap: Duration,
    /// How long the runtime may take to register a listener; then it is listed once more.
    pub settle: Duration,
    /// When a runtime that had no events is asked for them again.
    pub reopen: Duration,
    /// First and longest pause after a failure.
    pub back_off: (Duration, Duration),
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            full: Duration::from_secs(30),
            confirm: Duration::from_secs(1),
            poll: Duration::from_millis(100),
            gap: Duration::from_millis(20),
            settle: Duration::from_millis(250),
            reopen: Duration::from_secs(60),
            back_off: (Duration::from_millis(100), Duration::from_secs(5)),
        }
    }
}

/// What [`Subscription::next`] saw.
#[derive(Debug, Clone)]
pub struct Change {
    /// The snapshot as it is now.
    pub now: Arc<Sandboxes>,
    /// UIDs of the pods whose sandboxes differ from the last change. Empty if only the trust, or the moment
    /// of the last complete list, is another.
    pub uids: BTreeSet<String>,
}

/// The consumer's end. Snapshots that come faster than they are taken are merged, no UID is lost.
#[derive(Debug)]
pub struct Subscription {
    snapshots: watch::Receiver<Arc<Sandboxes>>,
    seen: Arc<Sandboxes>,
}

impl Subscription {
    /// Follows snapshots from wherever they come; the first change tells of all sandboxes that there are.
    pub fn new(snapshots: watch::Receiver<Arc<Sandboxes>>) -> Self {
        Self { snapshots, seen: Arc::default() }
    }

    /// Waits for the next change; none when the source has ended. May be cancelled without losing one.
    pub async fn next(&mut self) -> Option<Change> {
        self.snapshots.changed().await.ok()?;
        let now = Arc::clone(&self.snapshots.borrow_and_update());
        let uids = now.changed_since(&self.seen);
        self.seen = Arc::clone(&now);
        Some(Change { now, uids })
    }

    /// The latest snapshot, also if [`Self::next`] has not yet told of it.
    pub fn latest(&self) -> Arc<Sandboxes> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// A second way to the latest snapshot, for other tasks.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Sandboxes>> {
        self.snapshots.clone()
    }
}

/// The source: the consumer's end, and the task that feeds it.
///
/// `announced` is what a plugin of the runtime hears. `armed` is true while someone waits for a sandbox to come or to end. Sending true, also once more, causes
/// a list within [`Timing::gap`]: so a new waiter soon gets a snapshot that is younger than its question.
/// The task ends on `stop`, or when the sender of `armed` is gone. It survives every failure of the runtime.
pub fn watch(
    runtime: Runtime,
    armed: watch::Receiver<bool>,
    announced: mpsc::Receiver<Announcement>,
    timing: Timing,
    stop: CancellationToken,
) -> (Subscription, impl Future<Output = ()> + Send) {
    let (out, snapshots) = watch::channel(Arc::default());
    let source = Source {
        runtime,
        armed,
        announced,
        timing,
        out,
        snapshot: Sandboxes::default(),
        listed: None,
        list_soon: false,
        failures: 0,
    };
    let task = async move {
        if stop.run_until_cancelled(source.run()).await.is_none() {
            debug!("sandboxes are not watched any more");
        }
    };
    (Subscription::new(snapshots), task)
}

struct Source {
    runtime: Runtime,
    armed: watch::Receiver<bool>,
    announced: mpsc::Receiver<Announcement>,
    timing: Timing,
    out: watch::Sender<Arc<Sandboxes>>,
    snapshot: Sandboxes,
    /// When the last list of this session came.
    listed: Option<Instant>,
    list_soon: bool,
    failures: u32,
}

impl Source {
    async fn run(mut self) {
        let mut begun = Instant::now();
        while let Err(error) = self.session().await {
            if begun.elapsed() > self.timing.back_off.1 {
                self.failures = 0;
            }
            self.lost(&error);
            tokio::time::sleep(back_off(self.timing.back_off, self.failures)).await;
            self.failures = self.failures.saturating_add(1);
            begun = Instant::now();
        }
    }

    fn lost(&mut self, error: &CriError) {
        if self.snapshot.distrust() {
            self.publish();
            warn!(%error, "container runtime lost");
        } else if self.failures == 0 {
            warn!(%error, "no container runtime");
        } else {
            debug!(%error, "still no container runtime");
        }
    }

    /// One connection to the runtime, until it fails. Ends well only when nobody can be armed any more.
    async fn session(&mut self) -> Result<(), CriError> {
        let version = self.runtime.version().await?;
        let mut events = match version.supported() {
            Ok(()) => Events::open(self.runtime.clone(), self.timing.reopen),
            Err(_) => Events::none(self.runtime.clone()),
        };
        self.listed = None;
        self.list(&mut events).await?;
        info!(runtime = %version, "container runtime connected");
        loop {
            let due = self.due(&events);
            tokio::select! {
                event = events.next() => self.take(event?.as_ref()),
                Some(announcement) = self.announced.recv() => self.hear(announcement, &events),
                () = tokio::time::sleep_until(due.into()) => self.list(&mut events).await?,
                changed = self.armed.changed() => match changed {
                    Ok(()) => self.list_soon |= *self.armed.borrow_and_update(),
                    Err(_) => return Ok(()),
                },
            }
        }
    }

    /// When the next list is made.
    fn due(&self, events: &Events) -> Instant {
        let Some(listed) = self.listed else {
            return Instant::now();
        };
        let interval = match (self.list_soon, *self.armed.borrow(), events.opened()) {
            (true, _, _) => self.timing.gap,
            (false, false, _) => self.timing.full,
            (false, true, Some(_)) => self.timing.confirm,
            (false, true, None) => self.timing.poll,
        };
        let regular = listed + interval;
        // An event between the first list and the moment the runtime has us registered would be lost.
        let settled = events.opened().map(|opened| opened + self.timing.settle);
        settled.filter(|settled| listed < *settled).map_or(regular, |settled| regular.min(settled))
    }

    async fn list(&mut self, events: &mut Events) -> Result<(), CriError> {
        self.list_soon = false;
        let (begun, by_clock) = (Instant::now(), now_ns());
        let runtime = self.runtime.clone();
        let mut list = pin!(runtime.list());
        let mut during: Vec<Event> = Vec::new();
        let found = loop {
            tokio::select! {
                biased;
                found = &mut list => break found?,
                event = events.next() => if let Some(event) = event? {
                    self.take(Some(&event));
                    during.push(event);
                    during.truncate(MAX_DURING_LIST);
                },
                Some(announcement) = self.announced.recv() => self.hear(announcement, events),
            }
        };
        self.list_soon |= during.len() == MAX_DURING_LIST;
        self.snapshot.replace(found, begun, by_clock);
        for event in &during {
            self.list_soon |= self.snapshot.apply(event) == Effect::ListNeeded;
        }
        self.listed = Some(Instant::now());
        self.publish();
        Ok(())
    }

    fn take(&mut self, event: Option<&Event>) {
        match event.map(|event| self.snapshot.apply(event)) {
            Some(Effect::Changed) => self.publish(),
            Some(Effect::ListNeeded) => self.list_soon = true,
            Some(Effect::None) | None => {}
        }
    }

    fn hear(&mut self, announcement: Announcement, events: &Events) {
        let effect = match announcement {
            Announcement::Made { sandbox, path, at } => self.snapshot.announce(sandbox, path, at),
            Announcement::Ending(id) if events.opened().is_some() => self.snapshot.ending(&id),
            Announcement::Ending(id) => {
                self.snapshot.ending(&id);
                Effect::ListNeeded
            }
            Announcement::Look => Effect::ListNeeded,
        };
        match effect {
            Effect::Changed => self.publish(),
            Effect::ListNeeded => self.list_soon = true,
            Effect::None => {}
        }
    }

    fn publish(&self) {
        self.out.send_replace(Arc::new(self.snapshot.clone()));
    }
}

/// A pause that doubles with each failure, somewhere in its upper half.
fn back_off((first, longest): (Duration, Duration), failures: u32) -> Duration {
    let pause = first.saturating_mul(1 << failures.min(16)).min(longest);
    let share = RandomState::new().hash_one(failures) % 1024;
    pause / 2 + (pause / 2).mul_f64(f64::from(u32::try_from(share).unwrap_or(0)) / 1024.0)
}

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
