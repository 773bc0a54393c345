//! What time it is: by the node's clock, which people read and which can step, and by a time that never steps.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The agent's clock. Cheap to clone; all clones are one clock.
#[derive(Clone)]
pub struct Clock {
    wall: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    began: (Timestamp, Instant),
}

impl Clock {
    /// The clock of this node.
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// A clock whose wall time is asked of `wall`; the steady time follows tokio's, which tests can pause.
    pub fn new(wall: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let began = (wall(), Instant::now());
        Self { wall: Arc::new(wall), began }
    }

    /// What the node's clock says, for people and for other programs. It can step in both directions.
    pub fn wall(&self) -> Timestamp {
        (self.wall)()
    }

    /// A time that began as the node's clock and has never stepped since: quarantines are measured by it, so that a
    /// clock that is set forward ends none early and one that is set back keeps none for hours.
    pub fn now(&self) -> Timestamp {
        let (wall, instant) = self.began;
        wall.saturating_add(instant.elapsed()).unwrap_or(Timestamp::MAX)
    }

    /// A time of [`Self::now`] as the node's clock says it at present. Stays a whole second if it was one.
    pub fn shown(&self, time: Timestamp) -> Timestamp {
        let step = self.wall().duration_since(self.now()).as_millis();
        let seconds = i64::try_from((step + 500).div_euclid(1000)).unwrap_or(0);
        time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(time)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("wall", &self.wall()).field("now", &self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_of_the_nodes_clock_changes_what_people_see_and_not_what_rests() {
        static WALL: AtomicI64 = AtomicI64::new(1_000);
        let clock = Clock::new(|| at(WALL.load(Ordering::SeqCst)));
        tokio::time::advance(Duration::from_secs(5)).await;
        WALL.store(1_005 + 3_600, Ordering::SeqCst);
        assert_eq!((clock.now(), clock.wall()), (at(1_005), at(4_605)));
        assert_eq!(clock.shown(at(1_100)), at(4_700));
        WALL.store(5, Ordering::SeqCst);
        assert_eq!((clock.now(), clock.shown(at(1_100))), (at(1_005), at(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_step_both_are_the_same() {
        let clock = Clock::new(|| at(1_000));
        assert_eq!(clock.shown(at(1_100)), at(1_100));
    }
}
