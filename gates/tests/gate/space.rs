//! A network namespace of a test's own and the gate running in it as it runs in a pod: uid 65532, no
//! capabilities.

use std::{
    env, fs,
    fs::File,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Stdio, id},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use fairlead_gates::marker::own_cookie;
use nix::{
    sched::{CloneFlags, setns},
    unistd::geteuid,
};

const TOOLS: [&str; 5] = ["ip", "nsenter", "unshare", "setpriv", "pkill"];
static COUNT: AtomicU32 = AtomicU32::new(0);

fn missing() -> Option<String> {
    if !geteuid().is_root() {
        return Some("root".to_owned());
    }
    let paths: Vec<_> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    let tool = TOOLS.iter().find(|tool| !paths.iter().any(|path| path.join(tool).exists()))?;
    Some(format!("the tool {tool} (Debian: iproute2, util-linux, procps)"))
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn eventually<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= end {
            return found;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A network namespace; deleted when dropped.
pub struct Space {
    name: String,
}

impl Space {
    /// None, with a line that says what is missing, where the test cannot run; a failure under `CI=true`.
    pub fn new() -> Option<Self> {
        if let Some(what) = missing() {
            assert_ne!(env::var("CI").as_deref(), Ok("true"), "not run: {what} is missing");
            eprintln!("not run: {what} is missing");
            return None;
        }
        let name = format!("flgate-{}-{}", id(), COUNT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let space = Self { name };
        space.set_lo("up");
        Some(space)
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A container runtime sets `lo` up before the first container starts.
    pub fn set_lo(&self, state: &str) {
        run("ip", &["-n", &self.name, "link", "set", "dev", "lo", state]);
    }

    pub fn cookie(&self) -> u64 {
        let file = File::open(self.path()).unwrap();
        let inside = thread::spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            own_cookie().unwrap()
        });
        inside.join().unwrap()
    }

    pub fn set_alias(&self, alias: &str) {
        run("ip", &["-n", &self.name, "link", "set", "dev", "lo", "alias", alias]);
    }

    /// At least `count` link notifications.
    pub fn flood(&self, count: usize) {
        let mut ip =
            Command::new("ip").args(["-n", &self.name, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut lines = ip.stdin.take().unwrap();
        for n in 0..count {
            writeln!(lines, "link set dev lo alias {n}").unwrap();
        }
        drop(lines);
        assert!(ip.wait().unwrap().success());
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        run("ip", &["netns", "del", &self.name]);
    }
}

/// A running gate; killed when dropped.
pub struct Gate {
    child: Child,
    log: PathBuf,
}

impl Gate {
    /// The gate itself is the child.
    pub fn start(space: &Space, uid: &str) -> Self {
        Self::start_under(space, uid, &[])
    }

    /// The gate is process 1 of a namespace of its own; the child is the `unshare` that waits for it.
    pub fn start_as_process_one(space: &Space, uid: &str) -> Self {
        Self::start_under(space, uid, &["unshare", "--pid", "--fork", "--kill-child"])
    }

    fn start_under(space: &Space, uid: &str, wrapper: &[&str]) -> Self {
        let log =
            env::temp_dir().join(format!("{}.{}.log", space.name, COUNT.fetch_add(1, Ordering::Relaxed)));
        let child = Command::new("nsenter")
            .arg(format!("--net={}", space.path().display()))
            .args(wrapper)
            .args(["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"])
            .args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"])
            // By descriptor: the build may lie where this user may not go.
            .arg("/proc/self/fd/0")
            .stdin(File::open(env!("CARGO_BIN_EXE_fairlead-gate")).unwrap())
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap())
            .env("FAIRLEAD_POD_UID", uid)
            .env("FAIRLEAD_POD_NAME", "web-0")
            .env("FAIRLEAD_POD_NAMESPACE", "shop")
            .env("FAIRLEAD_NODE_NAME", "node1")
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// The exit status, or none if it still runs after `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> Option<i32> {
        let status = eventually(limit, || self.child.try_wait().unwrap())?;
        Some(status.code().unwrap_or_else(|| panic!("{status}: {}", self.log())))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub fn says_within(&self, limit: Duration, text: &str) {
        let said = eventually(limit, || self.log().contains(text).then_some(()));
        assert!(said.is_some(), "no {text:?} in:\n{}", self.log());
    }

    pub fn signal(&self, signal: &str) {
        run("kill", &["-s", signal, &self.child.id().to_string()]);
    }

    /// To the gate that a wrapper waits for.
    pub fn signal_child(&self, signal: &str) {
        run("pkill", &["--signal", signal, "--parent", &self.child.id().to_string()]);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_file(&self.log).ok();
    }
}
