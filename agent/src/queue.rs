//! A queue of pod UIDs: each is worked on by at most one task at a time, different ones side by side up to a bound.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What is to be done with a UID after its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing until something changes.
    Idle,
    /// Again after a while, if nothing changes before.
    After(Duration),
    /// It failed: again with growing back-off.
    Retry,
}

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// The queue. Cheap to clone; all clones are one queue.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<String>,
    queued: HashSet<String>,
    running: HashSet<String>,
    again: HashSet<String>,
    timers: BTreeMap<String, Instant>,
    failures: HashMap<String, u32>,
}

impl Queue {
    /// Asks for work on a UID now.
    pub fn add(&self, uid: &str) {
        self.lock().add(uid);
        self.shared.wake.notify_one();
    }

    /// Asks for work on a UID after a while, unless it is worked on before.
    pub fn add_later(&self, uid: &str, delay: Duration) {
        let at = Instant::now() + delay;
        let mut state = self.lock();
        if !state.queued.contains(uid) {
            let timer = state.timers.entry(uid.to_owned()).or_insert(at);
            *timer = at.min(*timer);
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Asks for work on many UIDs now.
    pub fn add_all(&self, uids: impl IntoIterator<Item = String>) {
        let mut state = self.lock();
        uids.into_iter().for_each(|uid| state.add(&uid));
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Works on UIDs with at most `parallel` tasks until cancelled; then waits for those that are under way.
    pub async fn run<F, W>(&self, parallel: usize, cancel: CancellationToken, work: W)
    where
        W: Fn(String) -> F + Send + Sync + 'static,
        F: Future<Output = Next> + Send + 'static,
    {
        let (work, permits, tasks) =
            (Arc::new(work), Arc::new(Semaphore::new(parallel.max(1))), TaskTracker::new());
        loop {
            let permit = tokio::select! {
                () = cancel.cancelled() => break,
                permit = Arc::clone(&permits).acquire_owned() => permit,
            };
            let uid = tokio::select! {
                () = cancel.cancelled() => break,
                uid = self.next() => uid,
            };
            let (queue, work) = (self.clone(), Arc::clone(&work));
            tasks.spawn(async move {
                let next = work(uid.clone()).await;
                queue.finish(&uid, next);
                drop(permit);
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    /// The next UID to work on; it counts as being worked on until [`Self::finish`]. May be cancelled without losing one.
    pub async fn next(&self) -> String {
        loop {
            let timer = match self.lock().pop(Instant::now()) {
                Popped::Uid(uid) => return uid,
                Popped::Wait(until) => until,
            };
            let sleep = timer.map_or(LAST_RETRY, |at| at.saturating_duration_since(Instant::now()));
            // Either way the state is looked at again: a lost wake-up costs at most one timer.
            drop(tokio::time::timeout(sleep, self.shared.wake.notified()).await);
        }
    }

    /// The work on a UID is done.
    pub fn finish(&self, uid: &str, next: Next) {
        let mut state = self.lock();
        state.finish(uid, next, Instant::now());
        drop(state);
        self.shared.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Popped {
    Uid(String),
    Wait(Option<Instant>),
}

impl State {
    fn add(&mut self, uid: &str) {
        self.timers.remove(uid);
        if self.running.contains(uid) {
            self.again.insert(uid.to_owned());
        } else if self.queued.insert(uid.to_owned()) {
            self.ready.push_back(uid.to_owned());
        }
    }

    fn pop(&mut self, now: Instant) -> Popped {
        let due: Vec<String> =
            self.timers.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()).collect();
        due.iter().for_each(|uid| self.add(uid));
        match self.ready.pop_front() {
            Some(uid) => {
                self.queued.remove(&uid);
                self.running.insert(uid.clone());
                Popped::Uid(uid)
            }
            None => Popped::Wait(self.timers.values().min().copied()),
        }
    }

    fn finish(&mut self, uid: &str, next: Next, now: Instant) {
        self.running.remove(uid);
        let delay = match next {
            Next::Retry => Some(self.back_off(uid)),
            Next::After(delay) => Some(delay),
            Next::Idle => None,
        };
        if next != Next::Retry {
            self.failures.remove(uid);
        }
        if self.again.remove(uid) {
            self.add(uid);
        } else if let Some(delay) = delay {
            let at = now + delay;
            self.timers.entry(uid.to_owned()).and_modify(|timer| *timer = at.min(*timer)).or_insert(at);
        }
    }

    fn back_off(&mut self, uid: &str) -> Duration {
        let failures = self.failures.entry(uid.to_owned()).or_default();
        let delay = FIRST_RETRY.saturating_mul(1 << (*failures).min(9)).min(LAST_RETRY);
        *failures = failures.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn pop(state: &mut State, now: Instant) -> Option<String> {
        match state.pop(now) {
            Popped::Uid(uid) => Some(uid),
            Popped::Wait(_) => None,
        }
    }

    #[test]
    fn what_is_asked_for_during_its_own_work_is_done_once_more() {
        let (mut state, now) = (State::default(), Instant::now());
        state.add("a");
        state.add("a");
        assert_eq!(pop(&mut state, now).as_deref(), Some("a"));
        state.add("a");
        state.add("a");
        assert_eq!(pop(&mut state, now), None, "never two at a time");
        state.finish("a", Next::Idle, now);
        assert_eq!(pop(&mut state, now).as_deref(), Some("a"));
        state.finish("a", Next::Idle, now);
        assert_eq!(pop(&mut state, now), None);
    }

    #[test]
    fn failures_back_off_and_a_success_starts_over() {
        let (mut state, now) = (State::default(), Instant::now());
        let delays: Vec<_> = (0..12).map(|_| state.back_off("a").as_millis()).collect();
        assert_eq!((delays[0], delays[1], delays[11]), (100, 200, 30_000));
        state.finish("a", Next::Idle, now);
        assert_eq!(state.back_off("a"), FIRST_RETRY);
    }

    #[test]
    fn a_change_comes_before_the_timer() {
        let (mut state, now) = (State::default(), Instant::now());
        state.finish("a", Next::After(Duration::from_secs(9)), now);
        assert_eq!(pop(&mut state, now), None);
        state.add("a");
        assert_eq!(pop(&mut state, now).as_deref(), Some("a"));
        state.finish("a", Next::Idle, now);
        assert_eq!(pop(&mut state, now + Duration::from_secs(10)), None, "the timer is gone");
    }

    #[tokio::test]
    async fn work_goes_on_side_by_side_up_to_the_bound_and_ends_when_cancelled() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        static DONE: AtomicUsize = AtomicUsize::new(0);
        let (queue, cancel) = (Queue::default(), CancellationToken::new());
        queue.add_all((0..20).map(|n| n.to_string()));
        let stop = cancel.clone();
        let work = move |_| {
            let stop = stop.clone();
            async move {
                MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                RUNNING.fetch_sub(1, Ordering::SeqCst);
                if DONE.fetch_add(1, Ordering::SeqCst) == 19 {
                    stop.cancel();
                }
                Next::Idle
            }
        };
        tokio::time::timeout(Duration::from_secs(10), queue.run(4, cancel, work)).await.unwrap();
        assert_eq!((MOST.load(Ordering::SeqCst), DONE.load(Ordering::SeqCst)), (4, 20));
    }
}
