//! What has to be on the machine before anything starts. A missing thing is one sentence with the command
//! that installs it.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::process;

/// Packages of Debian and Ubuntu that give every program below but Go.
pub const PACKAGES: &str = "busybox-static gcc iproute2 libc6-dev mount nftables procps runc util-linux";
/// The oldest Go that builds the cluster's modules.
pub const GO_MINIMUM: (u32, u32, u32) = (1, 26, 6);

const PROGRAMS: [&str; 12] =
    ["busybox", "cc", "ip", "mount", "nft", "nsenter", "runc", "setsid", "sh", "sleep", "sysctl", "unshare"];
const SEARCH: &str = "/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// `PATH` of everything the cluster runs: the caller's, and where Debian and Go install programs.
pub fn path() -> String {
    match env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{SEARCH}"),
        _ => SEARCH.to_owned(),
    }
}

/// Finds a program.
///
/// # Errors
/// One sentence with the command that installs it.
pub fn find(program: &str) -> Result<PathBuf> {
    let search = path();
    let found = search.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file());
    let Some(found) = found else {
        bail!("`{program}` is missing: install it with `apt-get install -y {PACKAGES}`");
    };
    Ok(found)
}

/// Checks everything that booting needs.
///
/// # Errors
/// One sentence about the first thing that is missing.
pub async fn check() -> Result<()> {
    check_root()?;
    for program in PROGRAMS {
        find(program)?;
    }
    if is_dynamic(&find("busybox")?)? {
        bail!("`busybox` is not static: install it with `apt-get install -y busybox-static`");
    }
    check_go().await
}

/// Checks for root, which everything about a local cluster needs.
pub fn check_root() -> Result<()> {
    if !geteuid().is_root() {
        bail!(
            "the local cluster makes network namespaces and cgroups: run this as root (`sudo -E cargo ...`)"
        );
    }
    Ok(())
}

async fn check_go() -> Result<()> {
    let (major, minor, patch) = GO_MINIMUM;
    let wanted =
        format!("Go {major}.{minor}.{patch} or newer: install it from https://go.dev/dl into /usr/local/go");
    let Ok(go) = find("go") else { bail!("`go` is missing; the cluster is built with {wanted}") };
    let said =
        process::run(&[go.as_os_str(), "env".as_ref(), "GOVERSION".as_ref(), "GOTOOLCHAIN".as_ref()]).await?;
    let mut lines = said.lines();
    let version = lines.next().unwrap_or_default();
    // Another value of GOTOOLCHAIN lets an older Go fetch the one that the modules ask for.
    let fixed = lines.next() == Some("local");
    if fixed && go_version(version).is_some_and(|have| have < GO_MINIMUM) {
        bail!("`go` is {version}; the cluster is built with {wanted}");
    }
    Ok(())
}

fn go_version(text: &str) -> Option<(u32, u32, u32)> {
    let number = text.trim().strip_prefix("go")?.split([' ', '-']).next()?;
    let mut parts = number.split('.').map(str::parse::<u32>);
    Some((parts.next()?.ok()?, parts.next()?.ok()?, parts.next().and_then(Result::ok).unwrap_or(0)))
}

/// Whether an ELF file names a dynamic loader.
fn is_dynamic(program: &Path) -> Result<bool> {
    let bytes = std::fs::read(program)?;
    // The loader's path stands in the first page of every dynamic program.
    let head = &bytes[..bytes.len().min(4096)];
    Ok(head.windows(8).any(|window| window == b"/ld-linu" || window == b"/ld-musl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_are_compared_as_numbers() {
        assert_eq!(go_version("go1.26.10"), Some((1, 26, 10)));
        assert!(go_version("go1.26.10") > Some(GO_MINIMUM));
        assert!(go_version("go1.9") < Some(GO_MINIMUM));
        assert_eq!(go_version("devel"), None);
    }

    #[test]
    fn a_missing_program_names_the_command_that_installs_it() {
        let error = find("no-such-program").unwrap_err().to_string();
        assert!(error.contains("`no-such-program` is missing"), "{error}");
        assert!(error.contains("apt-get install -y busybox-static"), "{error}");
    }
}
