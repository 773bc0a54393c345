//! The two images that the cluster itself needs, made without a container engine.

use std::{
    env::consts,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use fairlead_deploy::image::Image;

use crate::{build, prereq, process};

/// Image of every pod's sandbox.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// Image for tests: a static busybox with all of its links.
pub const BUSYBOX: &str = "docker.io/library/busybox:stable";

/// Raised when what is put into an image changes.
const RECIPE: &str = "2";

/// Makes both images in the cache, unless they are there; gives their archives.
pub async fn build() -> Result<Vec<PathBuf>> {
    let busybox = fs::read(prereq::find("busybox")?).context("reading busybox")?;
    let source = build::module_source("kubernetes", "k8s.io/kubernetes").await?;
    let pause = source.join("build/pause/linux/pause.c");
    let pause_text = fs::read(&pause).with_context(|| format!("reading {}", pause.display()))?;
    let key = build::key(&[RECIPE.as_bytes(), &busybox, &pause_text]);
    let folder = build::cache()?.join(format!("images-{key}"));
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
    let image =
        Image::new(PAUSE, architecture()).file("pause", 0o755, fs::read(&program)?).entrypoint(&["/pause"]);
    write(&image, &folder.join("pause.tar"))
}

async fn busybox_image(busybox: &[u8], folder: &Path) -> Result<()> {
    let applets = process::run(&[prereq::find("busybox")?.as_os_str(), "--list".as_ref()]).await?;
    let mut image = Image::new(BUSYBOX, architecture())
        .file("bin/busybox", 0o755, busybox)
        .file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")
        .directory("tmp", 0o1777)
        .directory("root", 0o700)
        .env("PATH", "/bin")
        .cmd(&["sh"]);
    for applet in applets.lines().filter(|name| *name != "busybox") {
        image = image.symlink(&format!("bin/{applet}"), "busybox");
    }
    write(&image, &folder.join("busybox.tar"))
}

fn write(image: &Image, file: &Path) -> Result<()> {
    let packed = image.pack().with_context(|| format!("packing {}", file.display()))?;
    fs::write(file, packed.archive).with_context(|| format!("writing {}", file.display()))
}

/// This machine's architecture by its OCI name.
fn architecture() -> &'static str {
    match consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
