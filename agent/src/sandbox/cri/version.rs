//! Which runtimes the agent works with.

use std::fmt;

/// Name and version of a container runtime, as it gives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd` or `cri-o`.
    pub name: String,
    /// Such as `2.4.2` or `v2.0.0-rc.1`.
    pub version: String,
}

/// The runtime is too old, or another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the node's container runtime is {0}; containerd 2.0 or CRI-O 1.32, or newer, is needed")]
pub struct UnsupportedRuntime(RuntimeVersion);

impl RuntimeVersion {
    /// Whether the agent works with it. containerd 1.7 has one queue of events for all its clients, so that
    /// listening there takes events from the kubelet (containerd/containerd#7318).
    ///
    /// # Errors
    /// [`UnsupportedRuntime`] says what is there and what is needed.
    pub fn supported(&self) -> Result<(), UnsupportedRuntime> {
        let least = match self.name.as_str() {
            "containerd" => Some((2, 0)),
            "cri-o" => Some((1, 32)),
            _ => None,
        };
        match (self.major_minor(), least) {
            (Some(found), Some(least)) if found >= least => Ok(()),
            _ => Err(UnsupportedRuntime(self.clone())),
        }
    }

    fn major_minor(&self) -> Option<(u32, u32)> {
        let mut numbers = self.version.trim_start_matches('v').split(['.', '-', '+']);
        let major = numbers.next()?.parse().ok()?;
        Some((major, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supported(name: &str, version: &str) -> bool {
        let (name, version) = (name.to_owned(), version.to_owned());
        RuntimeVersion { name, version }.supported().is_ok()
    }

    #[test]
    fn runtimes_with_events_for_everyone_are_supported() {
        for version in ["2.0.0", "v2.4.2", "2.4.2+unknown", "v2.0-rc.1", "3.0.0"] {
            assert!(supported("containerd", version), "{version}");
        }
        assert!(supported("cri-o", "1.32.0") && supported("cri-o", "2.0.1"));
    }

    #[test]
    fn older_and_other_runtimes_are_refused_by_name() {
        assert!(!supported("containerd", "1.7.27") && !supported("containerd", "unknown"));
        assert!(!supported("cri-o", "1.31.9") && !supported("docker", "28.0.0"));
        let old = RuntimeVersion { name: "containerd".into(), version: "1.7.27".into() };
        let text = old.supported().unwrap_err().to_string();
        assert!(text.contains("is containerd 1.7.27; containerd 2.0 or"), "{text}");
    }
}
