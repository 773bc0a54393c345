//! One layer: a tar whose bytes depend on its entries only. Sorted by path, time 0, owner 0, parents made.

use std::{collections::BTreeMap, io};

use tar::{Builder, EntryType, Header};

/// What is under one path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Symlink { target: String },
}

/// Entries by path, relative to the root.
#[derive(Clone, Debug, Default)]
pub struct Layer(BTreeMap<String, Entry>);

impl Layer {
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.put(path, Entry::Directory { mode });
    }

    pub fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.put(path, Entry::File { mode, content });
    }

    pub fn symlink(&mut self, path: &str, target: &str) {
        self.put(path, Entry::Symlink { target: target.to_owned() });
    }

    fn put(&mut self, path: &str, entry: Entry) {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/') {
            let parent = path[..end].to_owned();
            self.0.entry(parent).or_insert(Entry::Directory { mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// The tar. The order of paths puts each directory before what is in it.
    pub fn tar(&self) -> io::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            append(&mut tar, path, entry)?;
        }
        tar.into_inner()
    }
}

fn append(tar: &mut Builder<Vec<u8>>, path: &str, entry: &Entry) -> io::Result<()> {
    match entry {
        Entry::Directory { mode } => {
            tar.append_data(&mut header(EntryType::Directory, *mode, 0), format!("{path}/"), io::empty())
        }
        Entry::File { mode, content } => append_file(tar, path, *mode, content),
        Entry::Symlink { target } => tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target),
    }
}

/// Adds one file with fixed owner and time.
pub fn append_file(tar: &mut Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let size = u64::try_from(content.len()).map_err(io::Error::other)?;
    tar.append_data(&mut header(EntryType::Regular, mode, size), path, content)
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn sample() -> Layer {
        let mut layer = Layer::default();
        layer.symlink("/bin/sh", "busybox");
        layer.directory("tmp", 0o1777);
        layer.file("/bin/busybox", 0o755, b"program".to_vec());
        layer
    }

    #[test]
    fn entries_are_sorted_below_their_directories_with_fixed_owner_and_time() {
        let bytes = sample().tar().unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
            let link = entry.link_name().unwrap().map(|l| l.display().to_string()).unwrap_or_default();
            seen.push(format!(
                "{} {:o} {link}{content}",
                entry.path().unwrap().display(),
                header.mode().unwrap()
            ));
        }
        assert_eq!(seen, ["bin/ 755 ", "bin/busybox 755 program", "bin/sh 777 busybox", "tmp/ 1777 "]);
    }

    #[test]
    fn the_order_of_adding_does_not_matter() {
        let mut other = Layer::default();
        other.file("bin/busybox", 0o755, b"program".to_vec());
        other.directory("/tmp/", 0o1777);
        other.symlink("bin/sh", "busybox");
        assert_eq!(other.tar().unwrap(), sample().tar().unwrap());
    }
}
