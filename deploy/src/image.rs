//! The container image, built without an engine: one OCI archive with the static programs and nothing else.
//!
//! The same sources, tool chain and git revision give the same bytes wherever they are built. Knows neither a
//! cluster nor a registry: what is done with the file is the caller's business.

mod binaries;
mod elf;
mod layer;
mod oci;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

pub use self::{
    binaries::{BINARIES, Binary},
    elf::{ElfError, check_static},
    oci::{Image, Packed},
};

/// Name of the image in the manifests, as a container runtime spells it.
pub const DEFAULT_NAME: &str = "docker.io/library/fairlead";

/// Tag of the image in the manifests: the version of the workspace.
pub const DEFAULT_TAG: &str = env!("CARGO_PKG_VERSION");

/// Most bytes of the archive of a release build.
pub const MAX_SIZE: usize = 20_000_000;

/// User and group of a container that names none. The agent's manifest asks for 0.
const USER: &str = "65532:65532";

/// What to build and where to put it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The archive; replaced if it exists.
    pub output: PathBuf,
    /// Name without a tag, with its registry.
    pub name: String,
    /// Tag.
    pub tag: String,
    /// Profile of cargo. [`MAX_SIZE`] holds for `release` only.
    pub profile: String,
    /// Let cargo show its progress on standard error.
    pub progress: bool,
}

impl Options {
    /// The release image under the name that the manifests use.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        Self {
            output: output.into(),
            name: DEFAULT_NAME.to_owned(),
            tag: DEFAULT_TAG.to_owned(),
            profile: "release".to_owned(),
            progress: false,
        }
    }
}

/// What was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// Full name of the image, with its tag.
    pub reference: String,
    /// Digest of the manifest, `sha256:…`.
    pub digest: String,
    /// Bytes of the archive.
    pub size: usize,
    /// The programs in it.
    pub binaries: Vec<Binary>,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A program could not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `rustc -vV` gave no host.
    #[error("rustc -vV names no host")]
    NoHost,
    /// No image for this kind of machine.
    #[error("cannot build an image on {0}: only x86_64 and aarch64 Linux")]
    Host(String),
    /// Cargo failed; its last lines, unless they were shown.
    #[error("cargo build failed\n{0}")]
    Cargo(String),
    /// Cargo built no such program.
    #[error("cargo build gave no {0}")]
    NoBinary(&'static str),
    /// A program would need files that the image does not have.
    #[error("{0} cannot run in an empty image")]
    NotStatic(&'static str, #[source] ElfError),
    /// Reading or writing a file.
    #[error("{action} {path}")]
    File {
        /// Read, write.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Bytes of the archive, which are more than [`MAX_SIZE`].
    #[error("the image has {0} bytes, more than {MAX_SIZE}")]
    TooLarge(usize),
    /// A path, name or digest that the archive cannot hold.
    #[error("pack the image")]
    Pack(#[source] io::Error),
}

/// Builds the programs and packs them into an image.
///
/// # Errors
/// Cargo fails, a program is not static, or the release image is larger than [`MAX_SIZE`].
pub fn build_image(options: &Options) -> Result<Built, ImageError> {
    let workspace = workspace();
    let (platform, binaries) = binaries::build(&workspace, &options.profile, options.progress)?;
    let reference = format!("{}:{}", options.name, options.tag);
    let mut image = Image::new(&reference, platform.architecture())
        .user(USER)
        .label("org.opencontainers.image.title", "fairlead")
        .label("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE"))
        .label("org.opencontainers.image.version", DEFAULT_TAG);
    if options.profile == "release" {
        // Two programs with the same client inside; other profiles are for speed.
        image = image.gzip();
    }
    if let Some(revision) = revision(&workspace) {
        image = image.label("org.opencontainers.image.revision", &revision);
    }
    for binary in &binaries {
        image = image.file(binary.name, 0o755, binaries::read(&binary.path)?);
    }
    let packed = image.pack().map_err(ImageError::Pack)?;
    let size = packed.archive.len();
    if options.profile == "release" && size > MAX_SIZE {
        return Err(ImageError::TooLarge(size));
    }
    write(&options.output, &packed.archive)?;
    Ok(Built { reference, digest: packed.digest, size, binaries })
}

/// Where the sources are: this crate's parent.
fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The commit, with `-dirty` if the tree differs from it; none without git.
fn revision(workspace: &Path) -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
        .current_dir(workspace)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Whole or not at all: a reader never sees half an archive.
fn write(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    let part = part_of(path);
    fs::write(&part, bytes).and_then(|()| fs::rename(&part, path)).map_err(|source| ImageError::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

/// In the same directory, so that it can be renamed.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKERFILE: &str = include_str!("../Dockerfile");

    #[test]
    fn the_dockerfile_makes_the_same_image() {
        for flag in binaries::STATIC_FLAGS {
            assert!(DOCKERFILE.contains(flag), "{flag}");
        }
        for (package, binary) in BINARIES {
            assert!(DOCKERFILE.contains(&format!("--package {package} --bin {binary}")), "{binary}");
            assert!(DOCKERFILE.contains(&format!("/{binary} /{binary}\n")), "{binary}");
        }
        assert!(DOCKERFILE.contains(&format!("USER {USER}\n")));
        assert!(DOCKERFILE.contains("FROM scratch\n"));
        assert!(DOCKERFILE.contains(&format!("ARG VERSION={DEFAULT_TAG}\n")));
    }

    #[test]
    fn an_archive_replaces_the_older_one_whole() {
        let path = std::env::temp_dir().join(format!("fairlead-image-test-{}", std::process::id()));
        write(&path, b"older and longer").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(!part_of(&path).exists());
        fs::remove_file(&path).unwrap();
    }
}
