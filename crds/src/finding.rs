//! What an audit can find: one table of codes, and findings that are still there when one looks again.
//!
//! The controller's audit compares objects with each other, the agent's compares them with the kernel of its node.
//! Both look more than once: what is under way disagrees for a moment and then does not any more.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

pub use self::report::{Output, Report};
use crate::reason::table;

mod report;

table! {
    /// What can disagree.
    FindingCode {
        AddressTwice: "Two interfaces hold one address of a space.", "It must never happen: keep both records and blocks as they are, report it, then delete the younger pod.";
        AddressOutsideBlock: "A record holds an address that is not in the block it names.", "It must never happen: report it, then delete the pod.";
        AddressNotFree: "A record holds an address that is in quarantine, kept or reserved for another pod.", "It must never happen: report it, then delete the pod.";
        BlockUnknown: "A record names a block that does not exist, or that was claimed anew since.", "Delete the pod, so that it gets another address.";
        BlockForeign: "A record names a block of another node or network.", "It must never happen: report it, then delete the pod.";
        BlocksOverlap: "Two blocks of a space share addresses.", "It must never happen: report it; drain the node of the younger block.";
        RangesOverlap: "Two Networks were given ranges of a space that share addresses.", "It must never happen: report it; remove one of the ranges.";
        BlockOutsideRanges: "A block lies in no range that its Network was given.", "See `kubectl get fnet NETWORK -o yaml`; report it if the range was never removed.";
        NetworkMissing: "A record or block belongs to a Network that does not exist.", "Create the Network again or delete the pods; a Network cannot go before them unless its finalizer was removed by hand.";
        MacTwice: "Two interfaces of a network have one hardware address.", "Delete one of the pods.";
        RecordTwice: "A pod has two records.", "Report it; deleting the pod ends both.";
        RecordMissing: "A pod counts as attached and has no record.", "See the log of the agent of its node; delete the pod if it stays so.";
        RecordMisplaced: "A record is of another node than its pod.", "Report it; deleting the record lets the agent of its node release it.";
        RecordLeaked: "A record is left although its pod is gone or over.", "See that the agent of its node runs; for a node that is gone read about dead nodes.";
        StatusDiffers: "A record says that everything is attached, and lists other interfaces than it holds.", "See the log of the agent of its node.";
        QuarantineTooLong: "An address is in quarantine for much longer than its Network says.", "Compare the clocks of the nodes; nothing is to be done if the Network's quarantine was shortened.";
        HeldTooLong: "An address is kept for a pod that is gone, and the agent of its node is back.", "See the log of the agent of its node.";
        NodeGone: "Something is left of a node that does not exist.", "See that the controller runs; its log says what it waits for.";
        CountsDiffer: "A NodeNetwork counts other addresses than blocks and records do.", "See the log of the agent of its node; restarting the agent counts anew.";
        ResourceDiffers: "A node offers the scheduler another number than its NodeNetwork promises.", "See that the controller runs and leads.";
        ResourceTooSmall: "A node offers less than its pods asked for: a kubelet that restarts would fail pods.", "See that the controller runs and leads; do not restart the kubelet meanwhile.";
        TaintDiffers: "A node has another taint of ours than its free addresses call for.", "See that the controller runs and leads, and with which --taint-prefix.";
        FinalizerMissing: "A finalizer of ours is missing, so the object can go before its addresses are free.", "Find who removed it; a policy refuses that to everybody but fairlead.";
        FinalizerLeft: "A finalizer of ours keeps an object that nothing of ours needs.", "See the log of whoever removes it: the controller for Networks and lost nodes, else the agent.";
        AdmissionDiffers: "Admission/default is not what the Networks say.", "See that the controller runs and leads.";
        LinkWithoutRecord: "A link of ours on the node belongs to no record.", "See the log of the node's agent; restarting the agent cuts it if its pod is gone.";
        LinkMissing: "A record says that an interface is up, and its link is not there.", "See the log of the node's agent: it repairs links, at most three times in ten minutes.";
        LinkDiffers: "A link has other addresses or another hardware address than its record.", "Find who changes it; see the log of the node's agent.";
        MarkerDiffers: "The marker in a pod's namespace is missing or not what its record calls for.", "The agent writes it again; see its log if it does not.";
        BridgeLeft: "A bridge that fairlead made is left although no Network wants it.", "See what is still a port of it: `ip link show master BRIDGE`.";
    }
}

impl FindingCode {
    /// How long such a disagreement may last in a cluster that works.
    pub fn patience(self) -> Duration {
        Duration::from_secs(match self {
            // A resource shrinks by being gone for some seconds; one taint changes at most every five.
            Self::ResourceDiffers | Self::ResourceTooSmall | Self::TaintDiffers => 15,
            // The garbage collector, the end of a sandbox, the repair of a link, the sweep of bridges.
            Self::RecordLeaked
            | Self::AdmissionDiffers
            | Self::LinkDiffers
            | Self::MarkerDiffers
            | Self::LinkWithoutRecord
            | Self::LinkMissing => 10,
            // The agent looks at both every 30 s.
            Self::BridgeLeft | Self::HeldTooLong => 40,
            _ => 0,
        })
    }
}

impl Serialize for FindingCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// One disagreement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// What kind it is.
    pub code: FindingCode,
    /// The object: kind, and name or namespace and name.
    pub object: String,
    /// What of the object, such as an address; with code and object it tells findings apart.
    pub subject: String,
    /// What disagrees, in one sentence.
    pub message: String,
}

impl Finding {
    /// A finding.
    pub fn new(
        code: FindingCode,
        object: impl Into<String>,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { code, object: object.into(), subject: subject.into(), message: message.into() }
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.code, &self.object, &self.subject) == (other.code, &other.object, &other.subject)
    }
}

/// What was found at first and in every look since.
#[derive(Debug)]
pub struct Lasting {
    findings: Vec<Finding>,
    since: Instant,
}

impl Lasting {
    /// The first look.
    pub fn new(found: Vec<Finding>, now: Instant) -> Self {
        let mut findings = found;
        findings.sort();
        findings.dedup_by(|a, b| a.is_same(b));
        Self { findings, since: now }
    }

    /// Another look: what is not there any more was under way.
    pub fn look(&mut self, found: &[Finding]) {
        self.findings.retain(|before| found.iter().any(|now| now.is_same(before)));
    }

    /// How long to wait at least before what is left counts; `None` once it does.
    pub fn rest(&self, settle: Duration, now: Instant) -> Option<Duration> {
        let longest = self.findings.iter().map(|finding| settle.max(finding.code.patience())).max()?;
        longest.checked_sub(now.saturating_duration_since(self.since)).filter(|rest| !rest.is_zero())
    }

    /// What is left.
    pub fn into_findings(self) -> Vec<Finding> {
        self.findings
    }
}

/// The findings as one table for people, and below it what to do; a sentence if there are none.
pub fn text(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing disagrees\n".to_owned();
    }
    let width =
        |of: fn(&Finding) -> usize, title: &str| findings.iter().map(of).max().unwrap_or(0).max(title.len());
    let (code, object) = (width(|f| f.code.as_str().len(), "CODE"), width(|f| f.object.len(), "OBJECT"));
    let mut page = format!("{:code$}  {:object$}  WHAT\n", "CODE", "OBJECT");
    for finding in findings {
        // Writing to a String cannot fail.
        writeln!(page, "{:code$}  {:object$}  {}", finding.code.as_str(), finding.object, finding.message)
            .ok();
    }
    let mut codes: Vec<FindingCode> = findings.iter().map(|finding| finding.code).collect();
    codes.sort_unstable();
    codes.dedup();
    page.push('\n');
    for code in codes {
        writeln!(page, "{code}: {} {}", code.means(), code.todo()).ok();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: FindingCode, subject: &str) -> Finding {
        Finding::new(code, "podnetwork ns/p", subject, format!("{subject} disagrees"))
    }

    #[test]
    fn what_is_gone_in_a_second_look_does_not_count() {
        let (start, settle) = (Instant::now(), Duration::from_secs(3));
        let both =
            [finding(FindingCode::AddressTwice, "10.0.0.1"), finding(FindingCode::AddressTwice, "10.0.0.2")];
        let mut lasting = Lasting::new(both.to_vec(), start);
        assert_eq!(lasting.rest(settle, start), Some(settle));
        lasting.look(&[both[1].clone(), finding(FindingCode::MacTwice, "new")]);
        assert_eq!(lasting.rest(settle, start + settle), None);
        assert_eq!(lasting.into_findings(), both[1..]);
    }

    #[test]
    fn a_disagreement_that_may_last_is_waited_for() {
        let (start, code) = (Instant::now(), FindingCode::ResourceDiffers);
        let lasting = Lasting::new(vec![finding(code, "a")], start);
        assert_eq!(lasting.rest(Duration::ZERO, start), Some(code.patience()));
        assert_eq!(lasting.rest(Duration::ZERO, start + code.patience()), None);
        assert_eq!(Lasting::new(vec![], start).rest(Duration::from_secs(3), start), None, "clean at once");
    }

    #[test]
    fn the_table_says_what_where_and_what_to_do() {
        let page = text(&[
            finding(FindingCode::AddressTwice, "10.0.0.1"),
            finding(FindingCode::AddressTwice, "10.0.0.2"),
        ]);
        assert!(page.starts_with(
            "CODE          OBJECT           WHAT\nAddressTwice  podnetwork ns/p  10.0.0.1 disagrees\n"
        ));
        assert_eq!(page.matches("It must never happen").count(), 1);
    }
}
