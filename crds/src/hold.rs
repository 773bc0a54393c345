//! How a node can hold pods, and how that follows from what its guard reports. Pure.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::guard_report::{GuardReport, Sight};
use crate::names;
use crate::reason::Reason;

/// How a node can hold pods: the value of [`crate::names::HOLD_LABEL`]. Each can also do what those before it can.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum NodeHold {
    /// By a first init container that waits.
    #[default]
    Gate,
    /// In the container runtime; while the guard is missing, nothing holds.
    Nri,
    /// In the container runtime, which lets nothing through while the guard is missing.
    NriStrict,
}

impl NodeHold {
    /// As in the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gate => names::HOLD_GATE,
            Self::Nri => names::HOLD_NRI,
            Self::NriStrict => names::HOLD_NRI_STRICT,
        }
    }

    /// What the report of a living guard says about its node; `None` without one.
    pub fn of(report: Option<&GuardReport>) -> (Self, Reason) {
        let Some(report) = report.filter(|report| report.connected) else {
            return (Self::Gate, Reason::NoGuard);
        };
        match (report.validator, report.preinstalled) {
            (Sight::Seen, _) => (Self::NriStrict, Reason::DefaultValidator),
            (_, Sight::Seen) => (Self::NriStrict, Reason::GuardPreinstalled),
            (Sight::Unknown, _) => (Self::Nri, Reason::StrictnessUnknown),
            (Sight::Missing, _) => (Self::Nri, Reason::MissingPluginOpens),
        }
    }
}

impl fmt::Display for NodeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(connected: bool, validator: Sight, preinstalled: Sight) -> GuardReport {
        GuardReport { connected, validator, preinstalled, ..GuardReport::default() }
    }

    #[test]
    fn a_node_is_strict_only_if_something_was_seen_that_makes_it_so() {
        use Sight::{Missing, Seen, Unknown};
        for (validator, preinstalled, hold, reason) in [
            (Seen, Missing, NodeHold::NriStrict, Reason::DefaultValidator),
            (Seen, Seen, NodeHold::NriStrict, Reason::DefaultValidator),
            (Missing, Seen, NodeHold::NriStrict, Reason::GuardPreinstalled),
            (Missing, Missing, NodeHold::Nri, Reason::MissingPluginOpens),
            (Unknown, Unknown, NodeHold::Nri, Reason::StrictnessUnknown),
        ] {
            assert_eq!(NodeHold::of(Some(&report(true, validator, preinstalled))), (hold, reason));
        }
    }

    #[test]
    fn without_a_connected_guard_only_the_gate_holds() {
        assert_eq!(NodeHold::of(None), (NodeHold::Gate, Reason::NoGuard));
        let away = report(false, Sight::Seen, Sight::Seen);
        assert_eq!(NodeHold::of(Some(&away)), (NodeHold::Gate, Reason::NoGuard));
    }

    #[test]
    fn the_label_is_what_stands_in_the_status() {
        for hold in [NodeHold::Gate, NodeHold::Nri, NodeHold::NriStrict] {
            assert_eq!(serde_json::to_value(hold).unwrap(), hold.as_str());
        }
    }
}
