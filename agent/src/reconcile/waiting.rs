//! Pods that wait for their sandbox to come or to end: when the runtime has to be asked for their sake, and when it is to
//! be said that they wait.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a sandbox may be missing before the record says so, while the node makes no other one either: usually it
/// comes within that time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same while the node makes others. It has many pods to start: each of them saying that it waits would cost two
/// requests more, when there are most of them, and tell nothing that is wrong.
const PATIENCE_IN_LINE: Duration = Duration::from_secs(30);

/// What a pod waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// A sandbox. The runtime tells when it makes one; it is only asked now and then, in case it did not.
    Start,
    /// The end of its sandboxes. Only a list that is younger than the question proves it.
    End,
}

/// The pods that wait, by UID.
#[derive(Debug, Default)]
pub struct Waiting {
    pods: HashMap<String, Awaited>,
    came: Option<Instant>,
}

impl Waiting {
    /// Notes what a pod waits for, if anything. True asks for a list at once and more often from now on, false for none
    /// but the rare ones; nothing is to be told otherwise.
    pub fn note(&mut self, uid: &str, awaited: Option<Awaited>) -> Option<bool> {
        let before = match awaited {
            Some(awaited) => self.pods.insert(uid.to_owned(), awaited),
            None => self.pods.remove(uid),
        };
        match awaited {
            _ if awaited == before => None,
            Some(Awaited::End) => Some(true),
            Some(Awaited::Start) => (self.pods.len() == 1).then_some(true),
            None => self.pods.is_empty().then_some(false),
        }
    }

    /// Notes that a sandbox of any pod of the node was first seen.
    pub fn came(&mut self, at: Instant) {
        self.came = self.came.max(Some(at));
    }

    /// How much longer a pod waits silently for its sandbox, which it misses since then; none when it is to be said.
    pub fn patience(&self, missing_since: Instant, now: Instant) -> Option<Duration> {
        let last = self.came.map_or(missing_since, |came| came.max(missing_since));
        let until = (last + PATIENCE).min(missing_since + PATIENCE_IN_LINE);
        Some(until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_pods_that_wait_for_a_sandbox_only_the_first_asks_for_a_list() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.note("a", Some(Awaited::Start)), Some(true));
        assert_eq!(waiting.note("a", Some(Awaited::Start)), None);
        assert_eq!(waiting.note("b", Some(Awaited::Start)), None);
        assert_eq!(waiting.note("a", None), None, "b waits still");
        assert_eq!(waiting.note("b", None), Some(false));
        assert_eq!(waiting.note("b", None), None);
    }

    #[test]
    fn a_pod_says_that_it_waits_when_the_node_makes_no_sandbox_for_a_while() {
        let (mut waiting, missing) = (Waiting::default(), Instant::now());
        let after = |seconds| missing + Duration::from_secs(seconds);
        let seconds = |left: u64| Some(Duration::from_secs(left));
        assert_eq!(waiting.patience(missing, after(1)), seconds(4));
        assert_eq!(waiting.patience(missing, after(5)), None);
        waiting.came(after(3));
        waiting.came(after(2));
        assert_eq!(waiting.patience(missing, after(5)), seconds(3), "since the latest one");
        assert_eq!(waiting.patience(missing, after(8)), None);
        assert_eq!(waiting.patience(after(20), after(24)), seconds(1), "what came before says nothing");
    }

    #[test]
    fn a_pod_does_not_wait_in_line_in_silence_for_ever() {
        let (mut waiting, missing) = (Waiting::default(), Instant::now());
        waiting.came(missing + PATIENCE_IN_LINE);
        assert_eq!(waiting.patience(missing, missing + PATIENCE), Some(Duration::from_secs(25)));
        assert_eq!(waiting.patience(missing, missing + PATIENCE_IN_LINE), None);
    }

    #[test]
    fn every_pod_that_waits_for_the_end_asks_for_a_list_once() {
        let mut waiting = Waiting::default();
        waiting.note("a", Some(Awaited::Start));
        assert_eq!(waiting.note("b", Some(Awaited::End)), Some(true));
        assert_eq!(waiting.note("b", Some(Awaited::End)), None);
        assert_eq!(
            waiting.note("a", Some(Awaited::End)),
            Some(true),
            "what it waited for before proves nothing"
        );
    }
}
