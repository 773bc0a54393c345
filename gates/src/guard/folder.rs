//! The guard in the runtime's plugin folder, from where the runtime starts it before the first pod of a boot.
//!
//! A runtime does not start at all when an executable file in that folder has another name than `<two digits>-<name>`
//! (`discoverPlugins`, containerd/nri, pkg/adaptation): what is unfinished is in a folder below, which it skips.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufReader, ErrorKind, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use fairlead_crds::names;
use fairlead_nri::Identity;

/// Index of an installed guard, by which others know it.
const INDEX: u8 = 10;
/// This program.
const SELF: &str = "/proc/self/exe";

/// What a guard registers as that the runtime has started from its folder.
pub fn identity() -> Identity {
    Identity { name: names::GUARD_PLUGIN.to_owned(), index: INDEX }
}

/// Puts this program into a folder, whole or not at all; the runtime starts it when it next starts itself.
///
/// # Errors
/// A sentence with the folder.
pub fn install(folder: &Path) -> Result<String, String> {
    let done = put(folder, Path::new(SELF))
        .map_err(|error| format!("cannot install into {}: {error}", folder.display()))?;
    let what = if done { "installed" } else { "already there" };
    let file = folder.join(file_name());
    Ok(format!("{what}: {}; the runtime starts it when it is next restarted", file.display()))
}

/// Removes the program from a folder. One that runs goes on until the runtime is restarted, and refuses nothing
/// but pods held by the runtime.
///
/// # Errors
/// A sentence with the folder.
pub fn remove(folder: &Path) -> Result<String, String> {
    let file = folder.join(file_name());
    let cleared = clear(&unfinished(folder)).and_then(|()| absent(fs::remove_file(&file)));
    cleared.map_err(|error| format!("cannot remove {}: {error}", file.display()))?;
    Ok(format!("removed: {}", file.display()))
}

fn file_name() -> String {
    identity().to_string()
}

fn unfinished(folder: &Path) -> std::path::PathBuf {
    folder.join(format!(".{}", names::GUARD_PLUGIN))
}

/// Whether something had to be written.
fn put(folder: &Path, program: &Path) -> io::Result<bool> {
    let (file, below) = (folder.join(file_name()), unfinished(folder));
    clear(&below)?;
    if is_same(program, &file)? {
        return Ok(false);
    }
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    DirBuilder::new().mode(0o700).create(&below)?;
    let part = below.join(file_name());
    let mut written = OpenOptions::new().create_new(true).write(true).mode(0o755).open(&part)?;
    // Never whole in memory: the container has little of it.
    io::copy(&mut File::open(program)?, &mut written)?;
    written.sync_all()?;
    fs::rename(&part, &file)?;
    clear(&below)?;
    File::open(folder)?.sync_all()?;
    Ok(true)
}

/// Whether the second file is there and has the first one's content.
fn is_same(program: &Path, file: &Path) -> io::Result<bool> {
    let present = match File::open(file) {
        Ok(present) => present,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let program = File::open(program)?;
    if program.metadata()?.len() != present.metadata()?.len() {
        return Ok(false);
    }
    let (ours, theirs) = (BufReader::new(program).bytes(), BufReader::new(present).bytes());
    for (ours, theirs) in ours.zip(theirs) {
        if ours? != theirs? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what an installation left that was broken off.
fn clear(below: &Path) -> io::Result<()> {
    absent(fs::remove_dir_all(below))
}

fn absent(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Installs a program with this content.
    fn put(folder: &Path, content: &[u8]) -> io::Result<bool> {
        let elsewhere = tempfile::tempdir().unwrap();
        let program = elsewhere.path().join("program");
        fs::write(&program, content).unwrap();
        super::put(folder, &program)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn an_upgrade_replaces_the_file_and_leaves_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("nri/plugins");
        assert!(put(&folder, b"old").unwrap());
        assert!(put(&folder, b"newer").unwrap());
        assert!(put(&folder, b"newes").unwrap(), "of the same length");
        assert!(put(&folder, b"newer").unwrap());
        assert!(!put(&folder, b"newer").unwrap());
        assert_eq!(names(&folder), ["10-fairlead-guard"]);
        let file = folder.join("10-fairlead-guard");
        assert_eq!(fs::read(&file).unwrap(), b"newer");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn what_a_broken_installation_left_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let below = unfinished(folder.path());
        fs::create_dir(&below).unwrap();
        fs::write(below.join("10-fairlead-guard"), b"half").unwrap();
        put(folder.path(), b"whole").unwrap();
        assert_eq!(names(folder.path()), ["10-fairlead-guard"]);
        fs::create_dir(&below).unwrap();
        remove(folder.path()).unwrap();
        assert!(names(folder.path()).is_empty());
        assert!(remove(folder.path()).is_ok(), "a second time");
    }

    #[test]
    fn other_plugins_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("50-other"), b"other").unwrap();
        put(folder.path(), b"guard").unwrap();
        remove(folder.path()).unwrap();
        assert_eq!(names(folder.path()), ["50-other"]);
    }

    #[test]
    fn the_file_is_named_as_the_runtime_wants_it() {
        let name = file_name();
        let (index, base) = name.split_once('-').unwrap();
        assert_eq!((index, base), ("10", "fairlead-guard"));
    }
}
