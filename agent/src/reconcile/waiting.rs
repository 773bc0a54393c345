//! Pods that wait for their sandbox to come or to end, and when the runtime has to be asked for their sake.

use std::collections::HashMap;

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
