//! Builds the programs of the image with cargo: static, and without a path of this machine in them.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use serde::Deserialize;

use super::{ImageError, elf};

/// Package and program of everything that is in the image.
pub const BINARIES: [(&str, &str); 4] = [
    ("fairlead-agent", "fairlead-agent"),
    ("fairlead-gates", "fairlead-controller"),
    ("fairlead-gates", "fairlead-gate"),
    ("fairlead-gates", "fairlead-guard"),
];

/// What makes a program of the GNU target run in an empty image.
pub const STATIC_FLAGS: [&str; 2] = ["-C", "target-feature=+crt-static"];

/// Lines of cargo's errors that are kept.
const ERROR_LINES: usize = 40;

/// A built program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Its name, also in the image's root.
    pub name: &'static str,
    /// Where cargo put it.
    pub path: PathBuf,
    /// Bytes.
    pub size: usize,
}

/// What the image runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    triple: String,
    architecture: &'static str,
}

impl Platform {
    fn host() -> Result<Self, ImageError> {
        let output = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .arg("-vV")
            .output()
            .map_err(|source| ImageError::Start { program: "rustc".to_owned(), source })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let triple = text.lines().find_map(|line| line.strip_prefix("host: ")).ok_or(ImageError::NoHost)?;
        Self::of(triple)
    }

    fn of(triple: &str) -> Result<Self, ImageError> {
        let architecture = match triple.split_once('-') {
            Some(("x86_64", system)) if system.contains("-linux-") => "amd64",
            Some(("aarch64", system)) if system.contains("-linux-") => "arm64",
            _ => return Err(ImageError::Host(triple.to_owned())),
        };
        Ok(Self { triple: triple.to_owned(), architecture })
    }

    /// As images spell it.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }
}

/// Builds all of [`BINARIES`] and checks that they are static.
pub fn build(workspace: &Path, profile: &str, progress: bool) -> Result<(Platform, Vec<Binary>), ImageError> {
    let platform = Platform::host()?;
    let mut cargo = command(workspace, profile, &platform.triple);
    let start = |source| ImageError::Start { program: "cargo".to_owned(), source };
    let child = if progress {
        cargo.stderr(Stdio::inherit()).spawn()
    } else {
        cargo.arg("--quiet").stderr(Stdio::piped()).spawn()
    };
    let built = finish(child.map_err(start)?)?;
    let binaries = BINARIES.map(|(_, name)| find(&built, name));
    Ok((platform, binaries.into_iter().collect::<Result<_, _>>()?))
}

/// With a `--target` of its own, the flags do not reach build scripts and procedural macros.
fn command(workspace: &Path, profile: &str, triple: &str) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace).args(["build", "--locked", "--profile", profile, "--target", triple]);
    for (package, binary) in BINARIES {
        cargo.args(["--package", package, "--bin", binary]);
    }
    cargo.args(["--message-format", "json-render-diagnostics"]);
    // Encoded, so that it wins over every other place that may set flags, and may hold spaces.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(workspace, profile).join("\u{1f}"));
    // An outer `cargo run` describes its own package here; build scripts (ring's) would take that for a change
    // and build everything again.
    for (name, _) in env::vars_os().filter(|(name, _)| describes_a_package(name)) {
        cargo.env_remove(name);
    }
    cargo.stdin(Stdio::null()).stdout(Stdio::piped());
    cargo
}

fn describes_a_package(variable: &OsStr) -> bool {
    let prefixes =
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "OUT_DIR"];
    prefixes.iter().any(|prefix| variable.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// Other profiles keep this machine's paths: what they build is not published, and checkouts can share it.
fn flags(workspace: &Path, profile: &str) -> Vec<String> {
    let static_flags = STATIC_FLAGS.iter().map(ToString::to_string);
    if profile != "release" {
        return static_flags.collect();
    }
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let remapped =
        [(Some(workspace.to_owned()), "/fairlead"), (cargo_home, "/cargo"), (target, "/fairlead/target")];
    let remaps = remapped
        .into_iter()
        .filter_map(|(from, to)| Some(format!("--remap-path-prefix={}={to}", from?.display())));
    static_flags.chain(remaps).collect()
}

#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Waits for cargo; the programs that it built or found fresh.
fn finish(mut child: Child) -> Result<Vec<PathBuf>, ImageError> {
    let stderr = child.stderr.take();
    let errors =
        thread::spawn(move || stderr.map(|from| last_lines(BufReader::new(from))).unwrap_or_default());
    let built = child.stdout.take().map(|from| executables(BufReader::new(from))).unwrap_or_default();
    let status = child.wait().map_err(|source| ImageError::Start { program: "cargo".to_owned(), source })?;
    let errors = errors.join().unwrap_or_default();
    if status.success() { Ok(built) } else { Err(ImageError::Cargo(errors)) }
}

fn executables(messages: impl BufRead) -> Vec<PathBuf> {
    let lines = messages.lines().map_while(Result::ok);
    lines.filter_map(|line| serde_json::from_str::<Message>(&line).ok()?.executable).collect()
}

fn last_lines(text: impl BufRead) -> String {
    let lines: Vec<_> = text.lines().map_while(Result::ok).collect();
    lines[lines.len().saturating_sub(ERROR_LINES)..].join("\n")
}

fn find(built: &[PathBuf], name: &'static str) -> Result<Binary, ImageError> {
    let path = built.iter().find(|path| path.ends_with(name)).ok_or(ImageError::NoBinary(name))?;
    let content = read(path)?;
    elf::check_static(&content).map_err(|error| ImageError::NotStatic(name, error))?;
    Ok(Binary { name, path: path.clone(), size: content.len() })
}

/// The content of a built program.
pub fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    fs::read(path).map_err(|source| ImageError::File { action: "read", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_kinds_of_machine_are_taken() {
        assert_eq!(Platform::of("x86_64-unknown-linux-gnu").unwrap().architecture(), "amd64");
        assert_eq!(Platform::of("aarch64-unknown-linux-gnu").unwrap().architecture(), "arm64");
        for other in ["aarch64-apple-darwin", "riscv64gc-unknown-linux-gnu", "x86_64"] {
            assert!(matches!(Platform::of(other), Err(ImageError::Host(_))), "{other}");
        }
    }

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let said = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"serde"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","executable":"/t/release/fairlead-gate"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executables(said.as_bytes()), [PathBuf::from("/t/release/fairlead-gate")]);
    }

    #[test]
    fn a_program_that_cargo_did_not_build_is_named() {
        let built = [PathBuf::from("/t/release/fairlead-gate-extra")];
        assert!(matches!(find(&built, "fairlead-gate"), Err(ImageError::NoBinary("fairlead-gate"))));
    }

    #[test]
    fn no_path_of_this_machine_stays_in_a_program() {
        let flags = flags(Path::new("/some/where"), "release").join(" ");
        assert!(flags.starts_with("-C target-feature=+crt-static "), "{flags}");
        assert!(flags.contains("--remap-path-prefix=/some/where=/fairlead"), "{flags}");
    }

    #[test]
    fn what_an_outer_cargo_says_of_its_own_package_is_not_passed_on() {
        for passed in ["CARGO_HOME", "CARGO_TARGET_DIR", "PATH", "CARGO_NET_OFFLINE"] {
            assert!(!describes_a_package(OsStr::new(passed)), "{passed}");
        }
        for own in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_LINKS"] {
            assert!(describes_a_package(OsStr::new(own)), "{own}");
        }
        let removed = command(Path::new("/x"), "release", "t");
        let removed: Vec<_> = removed.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert!(removed.contains(&(OsStr::new("CARGO_MANIFEST_DIR"), None)), "{removed:?}");
    }

    #[test]
    fn a_failed_build_keeps_the_end_of_the_errors() {
        let text: Vec<_> = (0..100).map(|n| n.to_string()).collect();
        let last = last_lines(text.join("\n").as_bytes());
        assert!(last.starts_with("60\n") && last.ends_with("\n99"), "{last}");
    }
}
