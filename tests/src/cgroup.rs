//! The cgroups in which everything of the cluster runs, and by which it is ended.
//!
//! Works with cgroup v1 (one folder in every mounted hierarchy) and v2. Only folders below
//! [`Layout::cgroup`] are created, killed or removed.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::layout::Layout;

const V2_ROOT: &str = "/sys/fs/cgroup";
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// One group: the same path in every hierarchy.
#[derive(Clone, Debug)]
pub struct Group {
    folders: Vec<PathBuf>,
}

impl Group {
    /// Names a group below the cluster's own; `""` is that one. Creates nothing.
    pub fn named(layout: Layout, path: &str) -> Result<Self> {
        let relative = Path::new(&layout.cgroup()).join(path);
        let folders = hierarchies()?.iter().map(|root| root.join(&relative)).collect();
        Ok(Self { folders })
    }

    /// Creates the group in every hierarchy; it may exist.
    pub fn create(&self) -> Result<()> {
        for (folder, root) in self.folders.iter().zip(hierarchies()?) {
            create(&root, folder)?;
        }
        Ok(())
    }

    /// Whether any hierarchy has it.
    pub fn exists(&self) -> bool {
        self.folders.iter().any(|folder| folder.exists())
    }

    /// The `cgroup.procs` files into which a process has to write itself.
    pub fn procs_files(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    /// Every process of the group and of the groups below it.
    pub fn pids(&self) -> BTreeSet<i32> {
        let mut pids = BTreeSet::new();
        for folder in &self.folders {
            collect_pids(folder, &mut pids);
        }
        pids
    }

    /// Seconds of processor time of everything that ever ran in the group and below.
    ///
    /// # Errors
    /// When no hierarchy counts it.
    pub fn cpu(&self) -> Result<f64> {
        let read = |file: &str| self.folders.iter().find_map(|at| fs::read_to_string(at.join(file)).ok());
        let v1 = || read("cpuacct.usage").and_then(|text| Some(text.trim().parse::<f64>().ok()? / 1e9));
        let v2 = || read("cpu.stat").and_then(|text| usage(&text));
        v1().or_else(v2).context("no cgroup counts processor time: mount the cpuacct controller")
    }

    /// Ends every process of the group and below with SIGKILL and waits until they are gone.
    pub fn kill(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            let pids: Vec<_> = self.pids().into_iter().filter(|pid| !is_zombie(*pid)).collect();
            if pids.is_empty() {
                return Ok(());
            }
            if started.elapsed() > KILL_TIMEOUT {
                bail!("processes {pids:?} do not end after SIGKILL");
            }
            for pid in pids {
                // It may have ended since; the next round sees what is left.
                kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Removes the empty group and the groups below it.
    pub fn remove(&self) -> Result<()> {
        let started = Instant::now();
        for folder in &self.folders {
            // A group stays busy for a moment after its last process was reaped.
            while let Err(error) = remove(folder) {
                if started.elapsed() > KILL_TIMEOUT {
                    return Err(error).context(format!("removing cgroup {}", folder.display()));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

/// Mount points of all hierarchies: one for v2, one per controller set for v1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    if Path::new(V2_ROOT).join("cgroup.controllers").exists() {
        return Ok(vec![V2_ROOT.into()]);
    }
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mount table")?;
    let found = hybrid_mounts(&mounts);
    if found.is_empty() {
        bail!("no cgroup is mounted: the nodes' containers need cgroup v1 or v2 under {V2_ROOT}");
    }
    Ok(found)
}

/// Every v1 hierarchy, and the v2 one without controllers that often stands beside them: runc uses it too.
fn hybrid_mounts(mounts: &str) -> Vec<PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let cgroups = fields.filter(|field| matches!(field.get(2), Some(&"cgroup" | &"cgroup2")));
    cgroups.map(|field| PathBuf::from(field[1])).collect()
}

fn create(root: &Path, folder: &Path) -> Result<()> {
    let relative = folder.strip_prefix(root).context("cgroup outside its hierarchy")?;
    let mut at = root.to_owned();
    for part in relative.components() {
        delegate(&at)?;
        let parent = at.clone();
        at.push(part);
        match fs::create_dir(&at) {
            Ok(()) => inherit_cpuset(&parent, &at)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context(format!("creating cgroup {}", at.display())),
        }
    }
    Ok(())
}

/// v2 only: hands every controller on to the groups below.
fn delegate(group: &Path) -> Result<()> {
    let Ok(controllers) = fs::read_to_string(group.join("cgroup.controllers")) else {
        return Ok(());
    };
    for controller in controllers.split_whitespace() {
        let file = group.join("cgroup.subtree_control");
        fs::write(&file, format!("+{controller}"))
            .with_context(|| format!("enabling the {controller} controller in {}", file.display()))?;
    }
    Ok(())
}

/// v1 only: a new cpuset is empty, and no process can join it until it has processors and memory nodes.
fn inherit_cpuset(parent: &Path, group: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let is_v1 = !parent.join("cgroup.controllers").exists();
        if let (true, Ok(value)) = (is_v1, fs::read_to_string(parent.join(file))) {
            fs::write(group.join(file), value.trim()).with_context(|| format!("filling {file}"))?;
        }
    }
    Ok(())
}

/// v2 only: the first line of `cpu.stat`, in microseconds.
fn usage(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(line.parse::<f64>().ok()? / 1e6)
}

fn subgroups(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn collect_pids(folder: &Path, pids: &mut BTreeSet<i32>) {
    let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    pids.extend(procs.lines().filter_map(|line| line.parse::<i32>().ok()));
    for below in subgroups(folder) {
        collect_pids(&below, pids);
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    for below in subgroups(folder) {
        remove(&below)?;
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A zombie waits for its parent and holds nothing any more.
pub fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name is in brackets and may itself contain brackets and spaces.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hierarchy_is_found_in_a_hybrid_setup() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"];
        assert_eq!(hybrid_mounts(mounts), expected.map(PathBuf::from));
    }

    #[test]
    fn processor_time_is_in_seconds() {
        assert_eq!(usage("usage_usec 2500000\nuser_usec 1\n"), Some(2.5));
        assert_eq!(usage("nr_periods 0\n"), None);
    }

    #[test]
    fn our_own_process_is_no_zombie() {
        assert!(!is_zombie(i32::try_from(std::process::id()).unwrap()));
    }
}
