//! Private nodes and pods for tests: each test makes its own "node" namespace on a thread that leaves ours,
//! so tests at the same time disturb neither each other nor the machine.

use std::env;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use fairlead_agent::net::kernel::{Config, Kernel};
use fairlead_agent::net::{BridgeReady, Namespace, Net, NetError, Place, Session, WantedBridge, netns};
use fairlead_agent::plan::{self, WantedInterface};
use fairlead_crds::names;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Runs a test on a thread whose namespace is a new, empty node. Says what is missing where it cannot.
pub fn on_a_node(test: impl FnOnce() + Send) {
    if let Some(missing) = missing() {
        assert!(env::var_os("CI").is_none(), "cannot run: {missing}");
        eprintln!("NOT RUN: {missing}");
        return;
    }
    let run = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace");
        ip("link set lo up");
        test();
    };
    let done = thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("kernel tests need root".into());
    }
    let tools = ["ip", "bridge", "busybox"];
    let found = |tool: &&str| {
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(tool).exists())
    };
    let tool = tools.iter().find(|tool| !found(tool))?;
    Some(format!("the tool {tool} (Debian: busybox-static, iproute2)"))
}

/// A kernel as the agent has it, for the calling thread's namespace.
pub fn kernel(devices: &[&str]) -> Kernel {
    let devices = devices.iter().map(|glob| (*glob).to_owned()).collect();
    Kernel::new(Config { node: "node1".into(), devices, ..Config::default() }).expect("Linux 5.14 or later")
}

/// A pod's namespace, bound to a path as runtimes do. Unmounted at the end.
pub struct Pod {
    pub path: PathBuf,
    pub fd: OwnedFd,
}

impl Pod {
    pub fn new() -> Self {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("fairlead-test-{}-{number}", std::process::id()));
        File::create(&path).expect("a file to mount on");
        let fd = thread::scope(|scope| {
            let make = || {
                unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace");
                let source = "/proc/thread-self/ns/net";
                mount(Some(source), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                    .expect("a bind mount");
                ip("link set lo up");
                netns::own().expect("the namespace")
            };
            scope.spawn(make).join().expect("the pod's namespace")
        });
        Self { path, fd }
    }

    /// Runs something inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run(self.fd.as_fd(), work).expect("enter the pod")
    }

    /// Runs `ip` inside.
    pub fn ip(&self, arguments: &str) -> String {
        self.run(|| ip(arguments))
    }

    /// Whether one ping, without waiting before, is answered within a second.
    pub fn pings(&self, address: &str) -> bool {
        self.run(|| command("busybox", &format!("ping -c 1 -W 1 {address}")).status.success())
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        umount2(&self.path, MntFlags::MNT_DETACH).ok();
        fs::remove_file(&self.path).ok();
    }
}

/// Runs `ip` in the calling thread's namespace and returns what it prints.
pub fn ip(arguments: &str) -> String {
    let output = command("ip", arguments);
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn command(program: &str, arguments: &str) -> Output {
    Command::new(program).args(arguments.split_whitespace()).output().expect(program)
}

/// A bridge that the agent makes.
pub fn wanted_bridge(name: &str) -> WantedBridge {
    WantedBridge { name: name.parse().unwrap(), create: true, uplink: None, mtu: None }
}

/// `net1` of a pod, dual stack, in a bridge.
pub fn wanted(uid: &str, number: u8, bridge: BridgeReady) -> WantedInterface {
    WantedInterface {
        name: "net1".parse().unwrap(),
        host: names::host_link(uid, "net1"),
        mac: format!("02:00:5e:10:00:{number:02x}").parse().unwrap(),
        mtu: bridge.mtu,
        bridge: bridge.index,
        addresses: vec![
            format!("10.20.0.{number}/24").parse().unwrap(),
            format!("fd00:20::{number:x}/64").parse().unwrap(),
        ],
        routes: vec![fairlead_crds::network::Route {
            to: "10.99.0.0/16".parse().unwrap(),
            via: Some("10.20.0.254".parse().unwrap()),
        }],
        alias: format!("fairlead/v1;uid={uid};interface=net1"),
    }
}

/// Runs `work` in a pod's session.
pub fn in_session<T: Send>(
    kernel: &Kernel,
    pod: &Pod,
    mut work: impl FnMut(&mut dyn Session) -> T + Send,
) -> T {
    let mut out = None;
    kernel.visit(&pod.path, &mut |_, session| out = Some(work(session))).expect("visit");
    out.expect("the work was done")
}

/// Opens a namespace, which gives it an id.
pub fn open(kernel: &Kernel, path: &Path) -> Result<Namespace, NetError> {
    let mut found = None;
    kernel.visit(path, &mut |namespace, _| found = Some(namespace))?;
    Ok(found.expect("the work was done"))
}

/// Where to look for interfaces.
pub fn places(wanted: &[WantedInterface]) -> Vec<Place<'_>> {
    wanted.iter().map(Place::from).collect()
}

/// Observe, plan, apply: what the agent does. Returns the steps.
pub fn attach(kernel: &Kernel, pod: &Pod, wanted: &[WantedInterface]) -> Vec<plan::Step> {
    in_session(kernel, pod, |session| {
        let observed = session.observe(&places(wanted)).expect("observe");
        let steps = plan::attach(wanted, &observed).expect("no conflict");
        let report = session.apply(&steps);
        assert!(report.failed.is_none(), "{:?}", report.failed);
        assert_eq!(report.done, steps.len());
        steps
    })
}
