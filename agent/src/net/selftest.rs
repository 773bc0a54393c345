//! What this process lacks to do its work, found out before the first pod, each in one sentence with the way out.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use super::kernel::attempt;
use super::{NetError, netns};

/// Names and numbers, linux/capability.h, and what each is for.
const CAPABILITIES: [(&str, u32, &str); 3] = [
    ("NET_ADMIN", 12, "to make and change links"),
    ("NET_RAW", 13, "to announce addresses"),
    ("SYS_ADMIN", 21, "to enter pods' network namespaces"),
];

/// Tries everything. `sysctl_root` is as in [`super::kernel::Config`]; `namespaces` is where the runtime
/// binds pods' namespaces, usually `/run/netns`. Empty if nothing is missing.
pub fn run(sysctl_root: &Path, namespaces: &Path) -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut missing = missing_capabilities(&status);
    // What follows would only repeat it in worse words.
    if missing.is_empty() {
        missing.extend(enter_own().err().map(|error| format!("{error}: a seccomp profile may forbid setns")));
        missing.extend(netns::own_cookie().err().map(|error| format!("{error}: this kernel is too old")));
        missing.extend(attempt::run(sysctl_root));
    }
    if let Err(error) = fs::read_dir(namespaces) {
        let path = namespaces.display();
        missing.push(format!(
            "cannot read {path} ({error}): mount the node's {path} with mountPropagation HostToContainer"
        ));
    }
    missing
}

fn enter_own() -> Result<(), NetError> {
    netns::run(netns::own()?.as_fd(), || ())
}

fn missing_capabilities(status: &str) -> Vec<String> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(mask) = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()) else {
        return vec!["cannot read the own capabilities in /proc/self/status".to_owned()];
    };
    let lacking = CAPABILITIES.iter().filter(|(_, bit, _)| mask >> bit & 1 == 0);
    lacking
        .map(|(name, _, purpose)| format!("the capability {name} is missing, which is needed {purpose}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_capability_is_named_with_its_purpose() {
        let status = format!("Name:\tx\nCapEff:\t{:016x}\n", 1_u64 << 13);
        assert_eq!(
            missing_capabilities(&status),
            [
                "the capability NET_ADMIN is missing, which is needed to make and change links",
                "the capability SYS_ADMIN is missing, which is needed to enter pods' network namespaces",
            ]
        );
        let all = format!("CapEff:\t{:016x}\n", 1_u64 << 12 | 1 << 13 | 1 << 21);
        assert_eq!(missing_capabilities(&all), [""; 0]);
    }

    #[test]
    fn a_status_that_cannot_be_read_is_not_taken_for_all_capabilities() {
        assert_eq!(missing_capabilities("").len(), 1);
    }
}
