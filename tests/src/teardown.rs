//! Ends a cluster, whole or what is left of one. Works from names alone: no file has to be right.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use nix::{
    mount::{MntFlags, umount2},
    sys::signal::Signal,
};

use crate::{cgroup::Group, layout::Layout, netns, process::Process};

/// Whether anything is left of an earlier cluster.
pub fn has_remains(layout: Layout) -> Result<bool> {
    let links = [layout.primary_bridge(), layout.uplink_bridge()]
        .map(|name| PathBuf::from("/sys/class/net").join(name));
    let group = Group::named(layout, "")?;
    Ok(layout.pids().exists() || group.exists() || links.iter().any(|link| link.exists()))
}

/// Ends all processes, then removes namespaces, links, cgroups and state. Logs stay.
pub async fn run(layout: Layout) -> Result<()> {
    let group = Group::named(layout, "")?;
    group.kill()?;
    kill_recorded(layout)?;
    group.remove()?;
    netns::delete_all(layout).await?;
    unmount_below(&layout.root())?;
    remove_mount_points(layout)?;
    remove_state(layout)
}

/// A process that left its cgroup is still known by its pid and start time.
fn kill_recorded(layout: Layout) -> Result<()> {
    for entry in fs::read_dir(layout.pids()).into_iter().flatten() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A file that was cut off in the middle of writing names nobody.
        if let Ok(process) = Process::recorded(&name, &layout.pids(), &layout.logs()) {
            process.signal(Signal::SIGKILL)?;
        }
    }
    Ok(())
}

/// The nodes' mounts end with their mount namespaces; this is for whatever else somebody mounted there, so
/// that nothing of it is deleted.
fn unmount_below(root: &Path) -> Result<()> {
    for _ in 0..100 {
        let Some(mount) = mounts_below(root)?.pop() else {
            return Ok(());
        };
        umount2(&mount, MntFlags::MNT_DETACH).with_context(|| format!("unmounting {}", mount.display()))?;
    }
    bail!("{} still has mounts: {:?}", root.display(), mounts_below(root)?)
}

fn mounts_below(root: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("reading the mount table")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(root) && point != root).collect())
}

/// Removing a folder takes away what is mounted on it in other namespaces too, so as long as another cluster
/// runs they stay.
fn remove_mount_points(layout: Layout) -> Result<()> {
    if layout.others().iter().any(|other| other.pids().exists()) {
        return Ok(());
    }
    let list = fs::read_to_string(layout.mount_points()).unwrap_or_default();
    for folder in list.lines().rev() {
        match fs::remove_dir(folder) {
            Ok(()) => {}
            // Somebody uses it by now.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {}
            Err(error) => return Err(error).with_context(|| format!("removing {folder}")),
        }
    }
    Ok(())
}

fn remove_state(layout: Layout) -> Result<()> {
    let keep = [layout.logs(), layout.lock()];
    for entry in fs::read_dir(layout.root()).into_iter().flatten() {
        let path = entry?.path();
        if keep.contains(&path) {
            continue;
        }
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}
