//! What the guard of a node reports to its agent: one line in a file that both containers mount.
//!
//! Owns the text form only: `fairlead-guard/v1;runtime=<text>;connected=<bool>;validator=<sight>;preinstalled=<sight>`.
//! Unknown keys are ignored. That the writer still lives is told by its lock on the file, not by the text.

use std::fmt;
use std::str::FromStr;

/// First field of every report of this version.
const PREFIX: &str = "fairlead-guard/v1";
/// Bytes of a runtime's name and version that are kept.
const RUNTIME_MAX: usize = 64;

/// What is known of something that shows only when a container is created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sight {
    /// No container was created since the guard started.
    #[default]
    Unknown,
    /// It was not there when the last container was created.
    Missing,
    /// It was there when the last container was created.
    Seen,
}

/// What a guard knows about the runtime that it is connected to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardReport {
    /// Name and version of the runtime, `containerd v2.4.2`; empty before the first connection.
    pub runtime: String,
    /// Whether the guard is connected and asked about every container.
    pub connected: bool,
    /// The runtime's default validator, which refuses containers whose required plugin is missing.
    pub validator: Sight,
    /// A guard that the runtime itself has started from its plugin folder.
    pub preinstalled: Sight,
}

/// The text is not a report of a version that this code knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a {PREFIX} report")]
pub struct ReportError;

impl fmt::Display for GuardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: &char| c.is_ascii_graphic() && *c != ';' || *c == ' ';
        let runtime: String = self.runtime.chars().filter(plain).take(RUNTIME_MAX).collect();
        let Self { connected, validator, preinstalled, .. } = self;
        write!(f, "{PREFIX};runtime={runtime};connected={connected}")?;
        write!(f, ";validator={validator};preinstalled={preinstalled}")
    }
}

impl FromStr for GuardReport {
    type Err = ReportError;

    fn from_str(text: &str) -> Result<Self, ReportError> {
        let mut fields = text.trim_end().split(';');
        if fields.next() != Some(PREFIX) {
            return Err(ReportError);
        }
        let mut report = Self::default();
        for (key, value) in fields.filter_map(|field| field.split_once('=')) {
            match key {
                "runtime" => value.clone_into(&mut report.runtime),
                "connected" => report.connected = value.parse().map_err(|_| ReportError)?,
                "validator" => report.validator = value.parse()?,
                "preinstalled" => report.preinstalled = value.parse()?,
                _ => {}
            }
        }
        Ok(report)
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::Seen => "seen",
        })
    }
}

impl FromStr for Sight {
    type Err = ReportError;

    fn from_str(text: &str) -> Result<Self, ReportError> {
        match text {
            "unknown" => Ok(Self::Unknown),
            "missing" => Ok(Self::Missing),
            "seen" => Ok(Self::Seen),
            _ => Err(ReportError),
        }
    }
}

impl From<bool> for Sight {
    fn from(seen: bool) -> Self {
        if seen { Self::Seen } else { Self::Missing }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_report_reads_as_documented() {
        let report = GuardReport {
            runtime: "containerd v2.4.2".into(),
            connected: true,
            validator: Sight::Seen,
            preinstalled: Sight::Missing,
        };
        let text =
            "fairlead-guard/v1;runtime=containerd v2.4.2;connected=true;validator=seen;preinstalled=missing";
        assert_eq!(report.to_string(), text);
        assert_eq!(format!("{text}   \n").parse(), Ok(report));
    }

    #[test]
    fn a_later_version_may_add_keys_and_another_version_is_not_read() {
        let later = "fairlead-guard/v1;connected=true;colour=red";
        assert_eq!(later.parse::<GuardReport>().map(|report| report.connected), Ok(true));
        for text in
            ["", "fairlead-guard/v2;connected=true", "fairlead-guard/v1;connected=maybe", "x;validator=seen"]
        {
            assert_eq!(text.parse::<GuardReport>(), Err(ReportError), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_runtime_name_forges_another_field(runtime: String, connected: bool) {
            let report = GuardReport { runtime, connected, ..GuardReport::default() };
            let read: GuardReport = report.to_string().parse().unwrap();
            prop_assert_eq!(read.connected, connected);
            prop_assert_eq!((read.validator, read.preinstalled), (Sight::Unknown, Sight::Unknown));
        }
    }
}
