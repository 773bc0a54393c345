//! An image with one layer as an OCI archive (OCI image-spec 1.1: layout, index, manifest, config), which
//! `ctr images import`, `kind load image-archive`, `podman load` and `skopeo` take.
//!
//! Packs bytes that it is given. Every structure has a fixed order, so equal input gives equal bytes.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use flate2::{Compression, GzBuilder};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tar::Builder;

use super::layer::{self, Layer};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// No time at all, as reproducible images have it.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// An image in the making.
#[derive(Clone, Debug)]
pub struct Image {
    reference: String,
    architecture: String,
    layer: Layer,
    gzip: bool,
    process: Process,
}

/// A packed image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The OCI archive, a tar.
    pub archive: Vec<u8>,
    /// Digest of the manifest, `sha256:…`.
    pub digest: String,
}

/// What runs in a container of the image; `config` of the OCI configuration.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Process {
    #[serde(skip_serializing_if = "String::is_empty")]
    user: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cmd: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

impl Image {
    /// An empty image. `reference` is the full name with registry and tag, `architecture` as Go spells it
    /// (`amd64`, `arm64`).
    pub fn new(reference: &str, architecture: &str) -> Self {
        Self {
            reference: reference.to_owned(),
            architecture: architecture.to_owned(),
            layer: Layer::default(),
            gzip: false,
            process: Process::default(),
        }
    }

    /// Adds a file; directories above it are made with mode 755.
    #[must_use]
    pub fn file(mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        self.layer.file(path, mode, content.into());
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn symlink(mut self, path: &str, target: &str) -> Self {
        self.layer.symlink(path, target);
        self
    }

    /// Adds an empty directory.
    #[must_use]
    pub fn directory(mut self, path: &str, mode: u32) -> Self {
        self.layer.directory(path, mode);
        self
    }

    /// What a container starts, before its arguments.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.process.entrypoint = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// The arguments of the entrypoint, or the command if there is none.
    #[must_use]
    pub fn cmd(mut self, words: &[&str]) -> Self {
        self.process.cmd = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.process.env.push(format!("{name}={value}"));
        self
    }

    /// `user:group` of containers that name none.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.process.user);
        self
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.process.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Compresses the layer.
    #[must_use]
    pub fn gzip(mut self) -> Self {
        self.gzip = true;
        self
    }

    /// The image as an archive.
    ///
    /// # Errors
    /// A path or link target that a tar cannot hold.
    pub fn pack(&self) -> io::Result<Packed> {
        let tar = self.layer.tar()?;
        let diff_id = digest(&tar);
        let (media_type, content) = if self.gzip { (LAYER_GZIP, gzip(&tar)?) } else { (LAYER, tar) };
        let layer = Blob::new(media_type, content);
        let config = Blob::json(CONFIG, &self.config(&diff_id))?;
        let manifest = Blob::json(
            MANIFEST,
            &Manifest {
                schema_version: 2,
                media_type: MANIFEST,
                config: config.descriptor(),
                layers: [layer.descriptor()],
            },
        )?;
        let index = Index {
            schema_version: 2,
            media_type: INDEX,
            manifests: [Named {
                manifest: manifest.descriptor(),
                platform: Platform { architecture: &self.architecture, os: "linux" },
                annotations: BTreeMap::from([
                    // The first is containerd's, the second is everyone's.
                    ("io.containerd.image.name", self.reference.as_str()),
                    ("org.opencontainers.image.ref.name", self.reference.as_str()),
                ]),
            }],
        };
        let digest = manifest.digest.clone();
        let archive = archive(&serde_json::to_vec(&index)?, [config, layer, manifest])?;
        Ok(Packed { archive, digest })
    }

    fn config<'a>(&'a self, diff_id: &'a str) -> Configuration<'a> {
        Configuration {
            created: EPOCH,
            architecture: &self.architecture,
            os: "linux",
            config: &self.process,
            rootfs: RootFs { r#type: "layers", diff_ids: [diff_id] },
            history: [History { created: EPOCH, created_by: "fairlead-image" }],
        }
    }
}

#[derive(Serialize)]
struct Configuration<'a> {
    created: &'a str,
    architecture: &'a str,
    os: &'a str,
    config: &'a Process,
    rootfs: RootFs<'a>,
    history: [History<'a>; 1],
}

#[derive(Serialize)]
struct RootFs<'a> {
    r#type: &'a str,
    diff_ids: [&'a str; 1],
}

#[derive(Serialize)]
struct History<'a> {
    created: &'a str,
    created_by: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u8,
    media_type: &'a str,
    config: Descriptor<'a>,
    layers: [Descriptor<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u8,
    media_type: &'a str,
    manifests: [Named<'a>; 1],
}

#[derive(Serialize)]
struct Named<'a> {
    #[serde(flatten)]
    manifest: Descriptor<'a>,
    platform: Platform<'a>,
    annotations: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct Platform<'a> {
    architecture: &'a str,
    os: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    media_type: &'a str,
    digest: &'a str,
    size: usize,
}

/// Content under its digest.
struct Blob {
    media_type: &'static str,
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&content), content }
    }

    fn json(media_type: &'static str, value: &impl Serialize) -> io::Result<Self> {
        Ok(Self::new(media_type, serde_json::to_vec(value)?))
    }

    fn descriptor(&self) -> Descriptor<'_> {
        Descriptor { media_type: self.media_type, digest: &self.digest, size: self.content.len() }
    }
}

/// `blobs/`, `index.json`, `oci-layout`, in this order.
fn archive(index: &[u8], mut blobs: [Blob; 3]) -> io::Result<Vec<u8>> {
    blobs.sort_by(|a, b| a.digest.cmp(&b.digest));
    let mut tar = Builder::new(Vec::new());
    for blob in &blobs {
        let path = format!("blobs/{}", blob.digest.replace(':', "/"));
        layer::append_file(&mut tar, &path, 0o644, &blob.content)?;
    }
    layer::append_file(&mut tar, "index.json", 0o644, index)?;
    layer::append_file(&mut tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    tar.into_inner()
}

fn gzip(content: &[u8]) -> io::Result<Vec<u8>> {
    // 255: unknown system, so that the header is the same everywhere.
    let mut gzip = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::default());
    gzip.write_all(content)?;
    gzip.finish()
}

fn digest(content: &[u8]) -> String {
    let hash = Sha256::digest(content);
    hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests;
