//! The two images that the cluster itself needs, made without a container engine.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{build, prereq, process};

/// Image of every pod's sandbox.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// Image for tests: a static busybox with all of its links.
pub const BUSYBOX: &str = "docker.io/library/busybox:stable";

/// Raised when what is put into an image changes.
const RECIPE: &str = "1";

/// Makes both images in the cache, unless they are there; gives their archives.
pub async fn build() -> Result<Vec<PathBuf>> {
    let busybox = fs::read(prereq::find("busybox")?).context("reading busybox")?;
    let source = build::module_source("kubernetes", "k8s.io/kubernetes").await?;
    let pause = source.join("build/pause/linux/pause.c");
    let pause_text = fs::read(&pause).with_context(|| format!("reading {}", pause.display()))?;
    let folder =
        build::cache()?.join(format!("images-{}", build::key(&[RECIPE.as_bytes(), &busybox, &pause_text])));
    build::once(&folder, async |inside: &Path| {
        pause_image(&pause, inside).await?;
        busybox_image(&busybox, inside).await
    })
    .await?;
    Ok(["pause.tar", "busybox.tar"].map(|file| folder.join(file)).to_vec())
}

async fn pause_image(source: &Path, folder: &Path) -> Result<()> {
    let program = folder.join("pause");
    build::compile_c(source, &program).await?;
    let mut layer = Layer::new();
    layer.file("pause", &fs::read(&program)?)?;
    archive(&folder.join("pause.tar"), PAUSE, layer, &json!({ "Entrypoint": ["/pause"] }))
}

async fn busybox_image(busybox: &[u8], folder: &Path) -> Result<()> {
    let applets = process::run(&[prereq::find("busybox")?.as_os_str(), "--list".as_ref()]).await?;
    let mut layer = Layer::new();
    layer.file("bin/busybox", busybox)?;
    for applet in applets.lines().filter(|name| *name != "busybox") {
        layer.link(&format!("bin/{applet}"), "/bin/busybox")?;
    }
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")?;
    layer.folder("tmp", 0o1777)?;
    layer.folder("root", 0o700)?;
    let config = json!({ "Cmd": ["sh"], "Env": ["PATH=/bin:/usr/bin:/sbin:/usr/sbin"] });
    archive(&folder.join("busybox.tar"), BUSYBOX, layer, &config)
}

/// A tar stream whose bytes depend on its content only.
struct Layer(tar::Builder<Vec<u8>>);

impl Layer {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let mut header = header(tar::EntryType::Regular, 0o755);
        header.set_size(content.len().try_into()?);
        Ok(self.0.append_data(&mut header, path, content)?)
    }

    fn link(&mut self, path: &str, target: &str) -> Result<()> {
        Ok(self.0.append_link(&mut header(tar::EntryType::Symlink, 0o777), path, target)?)
    }

    fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        Ok(self.0.append_data(&mut header(tar::EntryType::Directory, mode), path, std::io::empty())?)
    }
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header
}

/// Writes an OCI archive of one layer.
fn archive(file: &Path, image: &str, layer: Layer, config: &Value) -> Result<()> {
    let layer = layer.0.into_inner()?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    let config = serde_json::to_vec(&config)?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    }))?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({
        "io.containerd.image.name": image,
        "org.opencontainers.image.ref.name": image.rsplit(':').next(),
    });
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": [entry] }))?;
    let mut archive = Layer::new();
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive.file("index.json", &index)?;
    for blob in [&layer, &config, &manifest] {
        archive.file(&format!("blobs/{}", digest(blob).replace(':', "/")), blob)?;
    }
    let mut out = fs::File::create(file).with_context(|| format!("creating {}", file.display()))?;
    Ok(out.write_all(&archive.0.into_inner()?)?)
}

fn descriptor(kind: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": digest(blob), "size": blob.len() })
}

fn digest(blob: &[u8]) -> String {
    let hex: String = Sha256::digest(blob).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// This machine's architecture by its OCI name.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
