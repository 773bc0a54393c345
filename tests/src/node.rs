//! One node: a network and a mount namespace with containerd, kubelet and kube-proxy in it.
//!
//! The namespaces are held by a process that sleeps (`holder`); whoever enters the node enters those of it.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use crate::{
    build::Tools,
    cgroup::Group,
    layout::{self, Layout},
    netns,
    pki::Authority,
    process::{self, Daemon, Process},
    wait,
};

mod config;
mod containers;

pub use config::{NRI_PLUGINS, Nri};
pub use containers::Container;

/// The container runtime's socket, in the node's mount namespace.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

const HOLDER: &str = "holder";
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A node, running or not.
#[derive(Clone, Debug)]
pub struct Node {
    index: u8,
    /// How many nodes the cluster has.
    nodes: u8,
    layout: Layout,
    tools: Tools,
    nri: Nri,
}

impl Node {
    pub(crate) fn new(index: u8, nodes: u8, layout: Layout, tools: &Tools, nri: Nri) -> Self {
        Self { index, nodes, layout, tools: tools.clone(), nri }
    }

    /// Name of the Node object.
    pub fn name(&self) -> String {
        layout::node_name(self.index)
    }

    /// Address of its `eth0`.
    pub fn address(&self) -> Ipv4Addr {
        self.layout.node_address(self.index)
    }

    fn folder(&self) -> PathBuf {
        self.layout.node(self.index)
    }

    fn group(&self) -> Result<Group> {
        Group::named(self.layout, &self.name())
    }

    /// The node's processes; containers have groups of their own beside it.
    fn daemons(&self) -> Result<Group> {
        Group::named(self.layout, &format!("{}/daemons", self.name()))
    }

    /// Seconds of processor time of its daemons so far, and of all that they started outside of containers.
    pub fn cpu_of_daemons(&self) -> Result<f64> {
        self.daemons()?.cpu()
    }

    fn cgroup_root(&self) -> String {
        format!("/{}/{}", self.layout.cgroup(), self.name())
    }

    fn process_name(&self, program: &str) -> String {
        format!("{}-{program}", self.name())
    }

    /// A recorded process: `holder`, `containerd`, `kubelet` or `kube-proxy`.
    pub fn process(&self, program: &str) -> Result<Process> {
        Process::recorded(&self.process_name(program), &self.layout.pids(), &self.layout.logs())
    }

    /// Makes the namespaces and starts the runtime, which needs no API server.
    pub(crate) async fn start_runtime(&self) -> Result<()> {
        self.daemons()?.create()?;
        netns::create_node(self.layout, self.index, self.nodes).await?;
        fs::create_dir_all(self.folder())?;
        self.hold_namespaces().await?;
        self.start_containerd().await
    }

    /// Writes certificates and settings of kubelet and kube-proxy, and starts both.
    pub(crate) fn join(&self, authority: &Authority) -> Result<()> {
        self.write_kubelet_files(authority)?;
        self.start_programs()
    }

    fn start_programs(&self) -> Result<()> {
        self.start_kubelet()?;
        let file = self.folder().join("kube-proxy.json");
        self.start(
            "kube-proxy",
            vec![self.tools.argument("kube-proxy")?, format!("--config={}", file.display())],
        )?;
        Ok(())
    }

    /// Whether the node's programs run.
    ///
    /// # Errors
    /// When one has ended; with the end of its log.
    pub fn check(&self) -> Result<()> {
        [HOLDER, "containerd", "kubelet", "kube-proxy"]
            .iter()
            .try_for_each(|name| self.process(name)?.check())
    }

    async fn hold_namespaces(&self) -> Result<()> {
        let ready = self.folder().join("namespaces-ready");
        fs::remove_file(&ready).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let net = format!("--net=/run/netns/{}", self.layout.netns(self.index));
        // `ip netns exec` would remount /sys and hide the cgroups.
        let enter = ["nsenter", &net, "unshare", "-m", "--propagation", "private", "sh", "-c"];
        let mut argv: Vec<String> = enter.iter().map(ToString::to_string).collect();
        argv.push(self.mount_script(&ready)?);
        let holder = self.spawn(HOLDER, argv)?;
        let what = format!("the namespaces of {}", self.name());
        wait::until(START_TIMEOUT, &what, || async {
            holder.check()?;
            fs::metadata(&ready).context("its mounts are not made")
        })
        .await?;
        Ok(())
    }

    /// Gives the node the usual paths, with nothing of the machine's own in them.
    fn mount_script(&self, ready: &Path) -> Result<String> {
        let mut script = String::from(
            "set -eu\n\
             mount -t tmpfs -o mode=755 tmpfs /run\n\
             mkdir -p /run/netns /run/containerd /run/nri /run/lock\n\
             mount --make-rshared /\n\
             mount --bind /run/netns /run/netns\n\
             mount --make-private /run/netns\n\
             mount --make-shared /run/netns\n",
        );
        for (folder, target) in config::BIND_MOUNTS {
            let source = self.folder().join(folder);
            fs::create_dir_all(&source)?;
            self.make_mount_point(target)?;
            // Private first: else it would be a peer of the root mount and show every mount twice.
            writeln!(script, "mount --bind {} {target}", source.display())?;
            writeln!(script, "mount --make-private {target}\nmount --make-shared {target}")?;
        }
        write!(script, "touch {}\nexec sleep infinity\n", ready.display())?;
        Ok(script)
    }

    /// Remembers what was made on the machine, so that `down` removes that and nothing else.
    fn make_mount_point(&self, target: &str) -> Result<()> {
        let missing: Vec<_> = Path::new(target).ancestors().take_while(|folder| !folder.exists()).collect();
        let mut list = fs::OpenOptions::new().create(true).append(true).open(self.layout.mount_points())?;
        for folder in missing.iter().rev() {
            fs::create_dir(folder).with_context(|| format!("creating {}", folder.display()))?;
            writeln!(list, "{}", folder.display())?;
        }
        Ok(())
    }

    /// Starts a program in the cgroup of the node.
    fn spawn(&self, program: &str, argv: Vec<String>) -> Result<Process> {
        let name = self.process_name(program);
        let daemon = Daemon {
            name: &name,
            argv,
            group: &self.daemons()?,
            path: &self.tools.path(),
            logs: self.layout.logs(),
            pids: self.layout.pids(),
        };
        daemon.start()
    }

    /// Starts a program in the namespaces of the node.
    fn start(&self, program: &str, argv: Vec<String>) -> Result<Process> {
        self.spawn(program, [self.entrance()?, argv].concat())
    }

    /// The start of a command line that enters the node.
    fn entrance(&self) -> Result<Vec<String>> {
        let holder = self.process(HOLDER)?;
        holder.check()?;
        Ok(["nsenter", "-t", &holder.pid().to_string(), "-n", "-m", "--"].map(String::from).to_vec())
    }

    /// Starts containerd and waits until it answers.
    pub async fn start_containerd(&self) -> Result<()> {
        self.start_containerd_with(self.nri).await
    }

    /// The same, with this in place of what the cluster was booted with.
    pub async fn start_containerd_with(&self, nri: Nri) -> Result<()> {
        let file = self.folder().join("containerd.toml");
        fs::write(&file, config::containerd(&self.folder(), &self.tools, nri)?)?;
        fs::write(
            self.folder().join("cni-conf/10-primary.conflist"),
            config::cni(&self.layout.pod_cidr(self.index)).to_string(),
        )?;
        let argv = vec![self.tools.argument("containerd")?, format!("--config={}", file.display())];
        let process = self.start("containerd", argv)?;
        let what = format!("containerd of {}", self.name());
        wait::until(START_TIMEOUT, &what, || async {
            process.check()?;
            self.ctr(&["version"]).await
        })
        .await?;
        Ok(())
    }

    /// Stops containerd; containers keep running.
    pub async fn stop_containerd(&self) -> Result<()> {
        self.process("containerd")?.stop(STOP_GRACE).await
    }

    fn write_kubelet_files(&self, authority: &Authority) -> Result<()> {
        let name = self.name();
        let address = self.address().to_string();
        let serving = authority.server(&format!("{name}-serving"), &[&name, &address])?;
        let client = authority.client(&name, &format!("system:node:{name}"), Some("system:nodes"))?;
        let proxy = authority.client(&format!("{name}-proxy"), "system:kube-proxy", None)?;
        let folder = self.folder();
        authority.kubeconfig(&folder.join("kubelet.conf"), &client)?;
        authority.kubeconfig(&folder.join("kube-proxy.conf"), &proxy)?;
        let kubelet = config::kubelet(&self.cgroup_root(), &authority.certificate_file(), &serving);
        fs::write(folder.join("kubelet.json"), kubelet.to_string())?;
        let proxy = config::kube_proxy(&name, &self.layout.cluster_cidr(), &folder.join("kube-proxy.conf"));
        Ok(fs::write(folder.join("kube-proxy.json"), proxy.to_string())?)
    }

    /// Starts the kubelet; the node is Ready some seconds later.
    pub fn start_kubelet(&self) -> Result<()> {
        let folder = self.folder();
        let argv = vec![
            self.tools.argument("kubelet")?,
            format!("--config={}", folder.join("kubelet.json").display()),
            format!("--kubeconfig={}", folder.join("kubelet.conf").display()),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={}", self.address()),
        ];
        self.start("kubelet", argv)?;
        Ok(())
    }

    /// Stops the kubelet; containers keep running.
    pub async fn stop_kubelet(&self) -> Result<()> {
        self.process("kubelet")?.stop(STOP_GRACE).await
    }

    /// Ends every process of the node with SIGKILL and takes its links away, as if its power was cut.
    pub async fn kill_all(&self) -> Result<()> {
        self.group()?.kill()?;
        self.group()?.remove()?;
        netns::delete_node(self.layout, self.index).await
    }

    /// Starts a node after [`Node::kill_all`], as a machine that boots: its disk is still there.
    pub async fn boot(&self) -> Result<()> {
        self.start_runtime().await?;
        self.start_programs()
    }

    /// Runs a command in the node's network and mount namespace and gives its standard output.
    ///
    /// # Errors
    /// When it does not exit with 0; the message has the command and its standard error.
    pub async fn exec(&self, command: &[&str]) -> Result<String> {
        process::run(&self.inside(command)?).await.with_context(|| format!("on {}", self.name()))
    }

    /// Like [`Node::exec`], whatever the exit code is.
    pub async fn output(&self, command: &[&str]) -> Result<Output> {
        process::output(&self.inside(command)?, "").await
    }

    fn inside(&self, command: &[&str]) -> Result<Vec<String>> {
        Ok([self.entrance()?, command.iter().map(ToString::to_string).collect()].concat())
    }

    /// Processes of the node, in containers or not, that run a program of this name (15 bytes at most). Takes a
    /// millisecond or two: the runtime is not asked.
    pub fn running(&self, program: &str) -> Result<Vec<i32>> {
        let runs = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == program)
        };
        Ok(self.group()?.pids().into_iter().filter(runs).collect())
    }

    /// Sends SIGKILL to a process of the node.
    pub fn kill(&self, pid: i32) -> Result<()> {
        self.signal(pid, Signal::SIGKILL)
    }

    /// Sends a signal to a process of the node; one of another node or of the machine is refused.
    pub fn signal(&self, pid: i32, signal: Signal) -> Result<()> {
        let known = self.group()?.pids();
        anyhow::ensure!(known.contains(&pid), "process {pid} is none of {}", self.name());
        signal::kill(Pid::from_raw(pid), signal).with_context(|| format!("sending {signal} to {pid}"))
    }
}
