//! Programs: those that are waited for, and those that outlive us.
//!
//! A long-lived one is a session of its own, in a cgroup of the cluster, with its output in a log file
//! and its identity (pid and start time, so that a reused pid is never mistaken for it) in a pid file.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    sys::signal::{self, Signal},
    unistd::Pid,
};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{cgroup::Group, wait};

/// Moves itself into as many groups as its first argument says, then becomes the program. A process that is
/// moved by somebody else could have children outside by then.
const LAUNCHER: &str = r#"set -eu
left=$1; shift
while [ "$left" -gt 0 ]; do
    echo 0 >"$1"; shift
    left=$((left - 1))
done
exec setsid "$@""#;
/// How much of a log an error shows.
const TAIL_LINES: usize = 15;

/// What to start, and how.
#[derive(Debug)]
pub struct Daemon<'a> {
    /// Names the log and pid file.
    pub name: &'a str,
    /// The program with its arguments.
    pub argv: Vec<String>,
    /// Where it runs.
    pub group: &'a Group,
    /// `PATH` of it and its children.
    pub path: &'a str,
    /// Folder of logs.
    pub logs: PathBuf,
    /// Folder of pid files.
    pub pids: PathBuf,
}

impl Daemon<'_> {
    /// Starts it; it is not waited for.
    pub fn start(&self) -> Result<Process> {
        let log = self.logs.join(format!("{}.log", self.name));
        let output = fs::OpenOptions::new().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("opening {}", log.display()))?;
        let child = Command::new("sh")
            .args(["-c", LAUNCHER, "sh"])
            .arg(self.group.procs_files().len().to_string())
            .args(self.group.procs_files())
            .args(&self.argv)
            .current_dir("/")
            .env_clear()
            .envs([("PATH", self.path), ("HOME", "/root"), ("LANG", "C.UTF-8")])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {}", self.name))?;
        let pid = child.id().context("a child that was not waited for has a pid")?;
        let process = Process::new(self.name, i32::try_from(pid)?, log);
        fs::write(self.pids.join(self.name), process.identity())?;
        Ok(process)
    }
}

/// A program that was started by [`Daemon::start`], perhaps by another process of ours.
#[derive(Clone, Debug)]
pub struct Process {
    name: String,
    pid: i32,
    born: Option<u64>,
    log: PathBuf,
}

impl Process {
    fn new(name: &str, pid: i32, log: PathBuf) -> Self {
        Self { name: name.into(), pid, born: born(pid), log }
    }

    /// Reads what [`Daemon::start`] recorded.
    pub fn recorded(name: &str, pids: &Path, logs: &Path) -> Result<Self> {
        let file = pids.join(name);
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let mut words = text.split_whitespace();
        let pid = words.next().and_then(|word| word.parse().ok()).context("pid file without a pid")?;
        let born = words.next().and_then(|word| word.parse().ok());
        Ok(Self { name: name.into(), pid, born, log: logs.join(format!("{name}.log")) })
    }

    fn identity(&self) -> String {
        format!("{} {}\n", self.pid, self.born.unwrap_or_default())
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it still runs, and is the one that was started.
    pub fn alive(&self) -> bool {
        self.born.is_some() && born(self.pid) == self.born
    }

    /// The sentence to show when it ended on its own, with the end of its log.
    ///
    /// # Errors
    /// When it has ended.
    pub fn check(&self) -> Result<()> {
        if self.alive() {
            return Ok(());
        }
        bail!("{} has ended; the end of {}:\n{}", self.name, self.log.display(), tail(&self.log))
    }

    /// Sends a signal; a process that has ended already is success.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if !self.alive() {
            return Ok(());
        }
        match signal::kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).context(format!("sending {signal} to {}", self.name)),
        }
    }

    /// SIGTERM, and SIGKILL after `grace`; returns when it has ended.
    pub async fn stop(&self, grace: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        if self.ended(grace).await.is_err() {
            self.signal(Signal::SIGKILL)?;
        }
        self.ended(Duration::from_secs(10)).await
    }

    async fn ended(&self, timeout: Duration) -> Result<()> {
        let what = format!("the end of {}", self.name);
        wait::until_true(timeout, &what, || async { Ok(!self.alive()) }).await
    }
}

/// Start time in clock ticks since boot; `None` if there is no such process or only its zombie.
fn born(pid: i32) -> Option<u64> {
    born_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// See [`born`], in the text of `proc_pid_stat(5)`. A first thread that has ended before the others is no zombie
/// of its process: they still have its sockets, and who starts anew cannot listen.
fn born_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    // The page counts from 1, and the first two fields are cut off here.
    let field = |number: usize| fields.get(number - 3).copied();
    let (state, threads) = (field(3)?, field(20)?.parse::<u32>().ok()?);
    let ended = matches!(state, "Z" | "X") && threads <= 1;
    if ended { None } else { field(22)?.parse().ok() }
}

/// The last lines of a log file.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Runs a program to its end and gives what it printed.
///
/// # Errors
/// When it cannot be started or does not exit with 0; the message has the command and its standard error.
pub async fn run<S: AsRef<OsStr>>(argv: &[S]) -> Result<String> {
    run_with_input(argv, "").await
}

/// Like [`run`], with something on standard input.
pub async fn run_with_input<S: AsRef<OsStr>>(argv: &[S], input: &str) -> Result<String> {
    let finished = output(argv, input).await?;
    if finished.status.success() {
        return Ok(String::from_utf8_lossy(&finished.stdout).into_owned());
    }
    bail!(
        "`{}` failed ({}): {}{}",
        shown(argv),
        finished.status,
        String::from_utf8_lossy(&finished.stderr).trim(),
        String::from_utf8_lossy(&finished.stdout).trim()
    )
}

/// Runs a program to its end, whatever its exit code is.
pub async fn output<S: AsRef<OsStr>>(argv: &[S], input: &str) -> Result<Output> {
    let (program, arguments) = argv.split_first().context("empty command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting `{}`", shown(argv)))?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input to the end closes it; its exit code says whether that is bad.
            stdin.write_all(input.as_bytes()).await.ok();
        }
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    output.with_context(|| format!("running `{}`", shown(argv)))
}

fn shown<S: AsRef<OsStr>>(argv: &[S]) -> String {
    let words: Vec<_> = argv.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_command_shows_itself_and_its_standard_error() {
        let error = run(&["sh", "-c", "echo no luck >&2; exit 3"]).await.unwrap_err().to_string();
        assert_eq!(error, "`sh -c echo no luck >&2; exit 3` failed (exit status: 3): no luck");
    }

    #[tokio::test]
    async fn input_reaches_the_program() {
        assert_eq!(run_with_input(&["cat"], "line\n").await.unwrap(), "line\n");
    }

    #[test]
    fn a_reused_pid_is_not_the_recorded_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let mut process = Process::new("me", pid, PathBuf::new());
        assert!(process.alive());
        process.born = process.born.map(|ticks| ticks + 1);
        assert!(!process.alive());
    }

    fn stat(state: &str, threads: u32) -> String {
        format!("7 (a ) b) {state} 1 7 7 0 -1 4 0 0 0 0 1 2 0 0 20 0 {threads} 0 4242 99 0\n")
    }

    #[test]
    fn a_process_has_ended_when_its_last_thread_has() {
        assert_eq!(born_in(&stat("S", 1)), Some(4242));
        assert_eq!(born_in(&stat("Z", 3)), Some(4242), "other threads still have the sockets");
        assert_eq!(born_in(&stat("Z", 1)), None);
        assert_eq!(born_in(&stat("X", 0)), None);
    }
}
