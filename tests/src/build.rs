//! Builds the cluster's programs from Go modules into a cache outside of the work tree.
//!
//! One folder per module, named by a hash of everything that goes into it; it appears by a rename, so a
//! build that was cut off leaves nothing that looks finished. Every file there can be deleted at any time.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    prereq, process,
    progress::{Progress, Stage},
};

const KUBERNETES_LDFLAGS: &str = "-s -w \
    -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=36";

/// One Go module below `tests/modules`.
struct Module {
    name: &'static str,
    ldflags: &'static str,
    tags: &'static str,
    /// The package whose last path element is not the program's name; built with `go build -o`.
    renamed: Option<(&'static str, &'static str)>,
    programs: &'static [&'static str],
}

const MODULES: [Module; 4] = [
    Module {
        name: "cni",
        ldflags: "-s -w",
        tags: "",
        renamed: None,
        programs: &["bridge", "host-local", "loopback"],
    },
    Module {
        name: "etcd",
        ldflags: "-s -w",
        tags: "",
        renamed: Some(("etcd", "go.etcd.io/etcd/server/v3")),
        programs: &["etcd"],
    },
    Module {
        name: "containerd",
        ldflags: "-s -w",
        tags: "no_btrfs,no_zfs,no_devmapper,no_aufs",
        renamed: None,
        programs: &["containerd", "containerd-shim-runc-v2", "ctr"],
    },
    Module {
        name: "kubernetes",
        ldflags: KUBERNETES_LDFLAGS,
        tags: "",
        renamed: None,
        programs: &[
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        ],
    },
];

/// The programs, built.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tools {
    folders: Vec<PathBuf>,
}

impl Tools {
    /// Builds what is missing in the cache.
    pub async fn build(progress: &Progress) -> Result<Self> {
        let mut folders = Vec::new();
        for module in &MODULES {
            folders.push(module.build(progress).await?);
        }
        Ok(Self { folders })
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
        found.with_context(|| format!("no module of the cluster has a program `{name}`"))
    }

    /// The path of a program, as an argument.
    pub fn argument(&self, name: &str) -> Result<String> {
        Ok(self.program(name)?.to_string_lossy().into_owned())
    }

    /// Folder of the CNI plugins.
    pub fn cni(&self) -> Result<PathBuf> {
        folder_of(self.program("bridge")?)
    }

    /// Folder of `kubectl`.
    pub fn kubernetes(&self) -> Result<PathBuf> {
        folder_of(self.program("kubectl")?)
    }

    /// `PATH` with these programs first.
    pub fn path(&self) -> String {
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.to_string_lossy()).collect();
        format!("{}:{}", folders.join(":"), prereq::path())
    }
}

fn folder_of(mut program: PathBuf) -> Result<PathBuf> {
    if !program.pop() {
        bail!("{} has no folder", program.display());
    }
    Ok(program)
}

/// The cache: `$XDG_CACHE_HOME/fairlead` or `~/.cache/fairlead`.
pub fn cache() -> Result<PathBuf> {
    let base = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => Path::new(&home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set: where should the build cache be?"),
    };
    Ok(base.join("fairlead"))
}

/// Makes `folder` with `fill` unless it exists; it appears complete or not at all. Of two processes that want
/// the same, one waits for the other.
pub async fn once<F>(folder: &Path, fill: F) -> Result<()>
where
    F: AsyncFnOnce(&Path) -> Result<()>,
{
    if folder.is_dir() {
        return Ok(());
    }
    let unfinished = folder.with_extension("unfinished");
    fs::create_dir_all(&unfinished).with_context(|| format!("creating {}", unfinished.display()))?;
    let lock = fs::File::open(&unfinished)?;
    lock.lock().with_context(|| format!("locking {}", unfinished.display()))?;
    if folder.is_dir() {
        return Ok(());
    }
    empty(&unfinished)?;
    fill(&unfinished).await?;
    fs::rename(&unfinished, folder)
        .with_context(|| format!("moving a finished build to {}", folder.display()))
}

/// Removes what a build that was cut off has left.
fn empty(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

/// Twelve hex digits over everything that decides what comes out.
pub fn key<T: AsRef<[u8]>>(parts: &[T]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.as_ref().len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(part.as_ref());
    }
    let mut hex = format!("{:x}", hash.finalize());
    hex.truncate(12);
    hex
}

impl Module {
    fn source(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("modules").join(self.name)
    }

    async fn build(&self, progress: &Progress) -> Result<PathBuf> {
        let folder = cache()?.join(format!("{}-{}", self.name, self.key().await?));
        once(&folder, async |inside: &Path| {
            let stage = progress.long_stage(format!("building {}", self.name));
            stage.total(self.package_count().await?);
            self.compile(inside, &stage).await?;
            stage.done();
            Ok(())
        })
        .await?;
        Ok(folder)
    }

    async fn key(&self) -> Result<String> {
        let read = |file: &str| {
            let path = self.source().join(file);
            fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let version = self.go(&["version"]).await?;
        Ok(key(&[
            read("go.mod")?,
            read("go.sum")?,
            version.into_bytes(),
            self.arguments(Path::new("")).join(" ").into_bytes(),
            self.programs.join(" ").into_bytes(),
        ]))
    }

    async fn package_count(&self) -> Result<u64> {
        let listed = self.go(&["list", "-deps", "tool"]).await?;
        Ok(listed.lines().count().try_into()?)
    }

    fn arguments(&self, output: &Path) -> Vec<String> {
        let mut arguments: Vec<String> = match self.renamed {
            Some((name, _)) => {
                ["build", "-o", &output.join(name).to_string_lossy()].map(String::from).to_vec()
            }
            None => vec!["install".into()],
        };
        // What the linker is told to leave out need not be made: a fifth of the time goes with it.
        arguments
            .extend(["-v", "-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"].map(String::from));
        arguments.extend(["-ldflags", self.ldflags].map(String::from));
        arguments.extend([format!("-tags={}", self.tags)]);
        arguments.push(self.renamed.map_or("tool", |(_, package)| package).into());
        arguments
    }

    async fn compile(&self, output: &Path, stage: &Stage) -> Result<()> {
        let mut child = self
            .command()?
            .args(self.arguments(output))
            .env("GOBIN", output)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting go")?;
        let stderr = child.stderr.take().context("standard error is a pipe")?;
        let said = follow(stderr, stage).await?;
        if !child.wait().await?.success() {
            bail!("building the Go module {} failed:\n{}", self.source().display(), said.join("\n"));
        }
        for program in self.programs {
            if !output.join(program).is_file() {
                bail!("the Go module {} has built no {program}", self.source().display());
            }
        }
        Ok(())
    }

    async fn go(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command()?.args(arguments).output().await.context("starting go")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("`go {}` in {} failed: {said}", arguments.join(" "), self.source().display());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(prereq::find("go")?);
        // Settings of the user must not change what comes out under one key.
        command.current_dir(self.source()).envs([("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOWORK", "off")]);
        command.kill_on_drop(true);
        Ok(command)
    }
}

/// `go -v` prints each package that it compiles; gives the last lines, which have the error if there is one.
async fn follow(stderr: tokio::process::ChildStderr, stage: &Stage) -> Result<Vec<String>> {
    let mut lines = BufReader::new(stderr).lines();
    let mut last = Vec::new();
    while let Some(line) = lines.next_line().await? {
        stage.step();
        stage.detail(&line);
        last.push(line);
        if last.len() > 30 {
            last.remove(0);
        }
    }
    Ok(last)
}

/// Source folder of a dependency of one of the modules.
pub async fn module_source(module: &str, dependency: &str) -> Result<PathBuf> {
    let module = MODULES.iter().find(|known| known.name == module).context("unknown module")?;
    let folder = module.go(&["list", "-m", "-f", "{{.Dir}}", dependency]).await?;
    Ok(folder.trim().into())
}

/// Compiles one C file to a small static program.
pub async fn compile_c(source: &Path, output: &Path) -> Result<()> {
    let cc = prereq::find("cc")?;
    let argv = [
        cc.as_os_str(),
        "-Os".as_ref(),
        "-static".as_ref(),
        "-s".as_ref(),
        "-o".as_ref(),
        output.as_ref(),
        source.as_ref(),
    ];
    process::run(&argv).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_does_not_depend_on_where_one_part_ends() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]).len(), 12);
    }

    #[tokio::test]
    async fn a_build_that_fails_is_not_taken_for_a_whole_one_and_the_next_one_starts_afresh() {
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("thing-1");
        let failed = once(&folder, async |inside: &Path| {
            fs::write(inside.join("half"), "")?;
            bail!("cut off")
        });
        failed.await.unwrap_err();
        assert!(!folder.exists());
        let whole = async |inside: &Path| Ok(fs::write(inside.join("whole"), "")?);
        once(&folder, whole).await.unwrap();
        once(&folder, async |_: &Path| bail!("must not be asked again")).await.unwrap();
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["whole"]);
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }
}
