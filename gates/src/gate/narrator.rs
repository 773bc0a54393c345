//! What the gate's log says, and when. Pure: time is an argument.

use std::time::{Duration, Instant};

use fairlead_crds::names;

use super::Pod;
use crate::marker::{Verdict, Wait};

/// How often it is said that the pod still waits.
const REMIND_EVERY: Duration = Duration::from_secs(30);

/// Two lines about a changed reason are at least this far apart.
const REASON_GAP: Duration = Duration::from_secs(1);

/// Turns verdicts into lines for people.
#[derive(Debug)]
pub struct Narrator {
    pod: String,
    node: String,
    look_at: String,
    began: Instant,
    reminded: Instant,
    /// The last reason told; none before the first line.
    told: Option<Wait>,
    told_at: Option<Instant>,
}

impl Narrator {
    /// For this pod, waiting since `now`.
    pub fn new(pod: &Pod, now: Instant) -> Self {
        let named = |text: &str, what: &str| {
            if text.is_empty() { format!("<{what}>") } else { text.to_owned() }
        };
        let (namespace, name) = (named(&pod.namespace, "namespace"), named(&pod.name, "pod"));
        let label = names::pod_label(&name);
        Self {
            pod: format!("{namespace}/{name}"),
            node: named(&pod.node, "node"),
            look_at: format!("kubectl get podnetwork -n {namespace} -l {}={label}", names::POD_LABEL),
            began: now,
            reminded: now,
            told: None,
            told_at: None,
        }
    }

    /// The lines that this verdict is worth now; mostly none.
    pub fn tell(&mut self, verdict: &Verdict, now: Instant) -> Vec<String> {
        match verdict {
            Verdict::Open => vec![format!(
                "going on: the networks of pod {} are attached, waited {:.1} s",
                self.pod,
                (now - self.began).as_secs_f32()
            )],
            Verdict::Wait(why) => {
                [self.begin(), self.reason(why, now), self.remind(why, now)].into_iter().flatten().collect()
            }
        }
    }

    /// The last line of a gate that was told to stop.
    pub fn stopped() -> String {
        "stopped by a signal before the networks were attached".to_owned()
    }

    fn begin(&mut self) -> Option<String> {
        if self.told.is_some() {
            return None;
        }
        // That there is no marker yet is how every wait begins, and not worth a line of its own.
        self.told = Some(Wait::NoMarker);
        Some(format!(
            "waiting until the agent of node {} has attached the networks of pod {}",
            self.node, self.pod
        ))
    }

    fn reason(&mut self, why: &Wait, now: Instant) -> Option<String> {
        let too_soon = self.told_at.is_some_and(|at| now.saturating_duration_since(at) < REASON_GAP);
        if too_soon || self.told.as_ref() == Some(why) {
            return None;
        }
        self.told = Some(why.clone());
        self.told_at = Some(now);
        Some(format!("waiting: {}", one_line(&why.to_string())))
    }

    fn remind(&mut self, why: &Wait, now: Instant) -> Option<String> {
        if now.saturating_duration_since(self.reminded) < REMIND_EVERY {
            return None;
        }
        self.reminded = now;
        let waited = now.saturating_duration_since(self.began).as_secs();
        let (why, look_at) = match why {
            Wait::NoMarker => (
                format!("the agent of node {} has not seen this pod", self.node),
                format!(
                    "kubectl get pods -n {} -o wide --field-selector spec.nodeName={}; {}",
                    names::INSTALL_NAMESPACE,
                    self.node,
                    self.look_at
                ),
            ),
            why => (one_line(&why.to_string()), self.look_at.clone()),
        };
        Some(format!("still waiting after {waited} s: {why}; look at: {look_at}"))
    }
}

/// A reason may quote what a user wrote; it must not look like several lines of the log.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        Pod { uid: "u1".into(), namespace: "shop".into(), name: "web-0".into(), node: "node1".into() }
    }

    fn because(reason: &str) -> Verdict {
        Verdict::Wait(Wait::Reason(reason.into()))
    }

    /// Lines by the second they came in, one verdict per second.
    fn log(verdicts: impl IntoIterator<Item = Verdict>) -> Vec<(u64, String)> {
        let start = Instant::now();
        let mut narrator = Narrator::new(&pod(), start);
        let mut log = Vec::new();
        for (second, verdict) in (0..).zip(verdicts) {
            let lines = narrator.tell(&verdict, start + Duration::from_secs(second));
            log.extend(lines.into_iter().map(|line| (second, line)));
        }
        log
    }

    const BEGIN: &str = "waiting until the agent of node node1 has attached the networks of pod shop/web-0";

    #[test]
    fn a_pod_that_never_waits_gets_one_line() {
        assert_eq!(
            log([Verdict::Open]),
            [(0, "going on: the networks of pod shop/web-0 are attached, waited 0.0 s".to_owned())]
        );
    }

    #[test]
    fn one_line_when_it_begins_one_per_reason_and_one_when_it_goes_on() {
        let none = Verdict::Wait(Wait::NoMarker);
        let verdicts = [none, because("a"), because("a"), because("b"), because("a"), Verdict::Open];
        assert_eq!(
            log(verdicts),
            [
                (0, BEGIN.to_owned()),
                (1, "waiting: a".to_owned()),
                (3, "waiting: b".to_owned()),
                (4, "waiting: a".to_owned()),
                (5, "going on: the networks of pod shop/web-0 are attached, waited 5.0 s".to_owned()),
            ]
        );
    }

    #[test]
    fn a_reason_that_is_there_at_once_is_told_at_once() {
        assert_eq!(log([because("a")]), [(0, BEGIN.to_owned()), (0, "waiting: a".to_owned())]);
    }

    #[test]
    fn every_thirty_seconds_it_says_what_to_look_at() {
        let log = log(vec![because("no address is free"); 65]);
        let line = |waited| {
            format!(
                "still waiting after {waited} s: no address is free; look at: \
                 kubectl get podnetwork -n shop -l fairlead.dev/pod=web-0"
            )
        };
        assert_eq!(log[2..], [(30, line(30)), (60, line(60))]);
    }

    #[test]
    fn without_a_marker_it_names_the_node_whose_agent_to_look_at() {
        let log = log(vec![Verdict::Wait(Wait::NoMarker); 31]);
        assert_eq!(
            log[1..],
            [(
                30,
                "still waiting after 30 s: the agent of node node1 has not seen this pod; look at: \
                 kubectl get pods -n fairlead-system -o wide --field-selector spec.nodeName=node1; \
                 kubectl get podnetwork -n shop -l fairlead.dev/pod=web-0"
                    .to_owned()
            )]
        );
    }

    #[test]
    fn a_flapping_reason_fills_no_log() {
        let start = Instant::now();
        let mut narrator = Narrator::new(&pod(), start);
        let lines: usize = (0..1000)
            .map(|n| narrator.tell(&because(&n.to_string()), start + Duration::from_millis(n)).len())
            .sum();
        assert_eq!(lines, 2, "the begin and the first reason within one second");
        assert_eq!(narrator.tell(&because("last"), start + Duration::from_secs(2)), ["waiting: last"]);
    }

    #[test]
    fn a_reason_with_newlines_is_one_line() {
        assert_eq!(log([because("a\nwaiting: b\x1b[2J")])[1].1, "waiting: a waiting: b [2J");
    }

    #[test]
    fn names_that_are_not_known_are_placeholders() {
        let nobody =
            Pod { uid: String::new(), namespace: String::new(), name: String::new(), node: String::new() };
        let start = Instant::now();
        let lines = Narrator::new(&nobody, start).tell(&Verdict::Wait(Wait::NoUid), start);
        assert_eq!(
            lines[0],
            "waiting until the agent of node <node> has attached the networks of pod <namespace>/<pod>"
        );
    }
}
