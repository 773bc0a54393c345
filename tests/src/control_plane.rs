//! etcd, API server, controller manager and scheduler, as processes in the root namespace.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    build::Tools,
    cgroup::Group,
    layout::{self, Layout},
    pki::{Authority, write_private},
    process::{Daemon, Process},
    wait,
};

const READY_TIMEOUT: Duration = Duration::from_secs(90);

/// The names of the processes, in the order of their start.
pub const PROCESSES: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Starts etcd and the API server and waits until it is ready.
pub async fn start_api(layout: Layout, tools: &Tools, authority: &Authority) -> Result<()> {
    let group = Group::named(layout, "control-plane")?;
    group.create()?;
    fs::create_dir_all(layout.etcd())?;
    start(layout, tools, &group, "etcd", etcd(layout))?;
    let arguments = api_server(layout, authority)?;
    let process = start(layout, tools, &group, "kube-apiserver", arguments)?;
    let admin = authority.client("admin", "fairlead-cluster-admin", Some("system:masters"))?;
    authority.kubeconfig(&layout.kubeconfig(), &admin)?;
    ready(&layout.kubeconfig(), &process).await
}

/// Starts what needs a working API server.
pub fn start_controllers(layout: Layout, tools: &Tools, authority: &Authority) -> Result<()> {
    let group = Group::named(layout, "control-plane")?;
    let pki = layout.pki();
    let mut common = Vec::new();
    for name in ["kube-controller-manager", "kube-scheduler"] {
        let file = pki.join(format!("{name}.conf"));
        authority.kubeconfig(&file, &authority.client(name, &format!("system:{name}"), None)?)?;
        common.push(vec![flag("kubeconfig", &file), "--leader-elect=false".into(), "--secure-port=0".into()]);
    }
    let [mut manager, scheduler] = [common.remove(0), common.remove(0)];
    manager.extend([
        "--use-service-account-credentials".into(),
        flag("root-ca-file", &authority.certificate_file()),
        flag("service-account-private-key-file", &pki.join("sa.key")),
        flag("cluster-signing-cert-file", &authority.certificate_file()),
        flag("cluster-signing-key-file", &authority.key_file()),
    ]);
    start(layout, tools, &group, "kube-controller-manager", manager)?;
    start(layout, tools, &group, "kube-scheduler", scheduler)?;
    Ok(())
}

/// Waits until the API server says that it is ready.
async fn ready(kubeconfig: &Path, process: &Process) -> Result<()> {
    let client = crate::kubectl::client(kubeconfig).await?;
    wait::until(READY_TIMEOUT, "the API server", || async {
        let request = http::Request::get("/readyz").body(Vec::new())?;
        // A dead process is not waited for to the end: its log is the answer.
        match process.check() {
            Ok(()) => client.request_text(request).await.context("asking /readyz").map(Ok),
            Err(dead) => Ok(Err(dead)),
        }
    })
    .await??;
    Ok(())
}

fn start(
    layout: Layout,
    tools: &Tools,
    group: &Group,
    name: &str,
    arguments: Vec<String>,
) -> Result<Process> {
    let argv = [vec![tools.argument(name)?], arguments].concat();
    Daemon { name, argv, group, path: &tools.path(), logs: layout.logs(), pids: layout.pids() }.start()
}

fn flag(name: &str, value: &Path) -> String {
    format!("--{name}={}", value.display())
}

fn etcd_url(layout: Layout, which: u16) -> String {
    format!("http://127.0.0.1:{}", layout.etcd_port(which))
}

fn etcd(layout: Layout) -> Vec<String> {
    let (client, peer) = (etcd_url(layout, 0), etcd_url(layout, 1));
    let urls = [
        ("listen-client-urls", &client),
        ("advertise-client-urls", &client),
        ("listen-peer-urls", &peer),
        ("initial-advertise-peer-urls", &peer),
    ];
    let mut arguments: Vec<_> = urls.iter().map(|(name, url)| format!("--{name}={url}")).collect();
    arguments.extend([
        format!("--initial-cluster=default={peer}"),
        flag("data-dir", &layout.etcd()),
        "--log-level=warn".into(),
        // Nothing of it has to survive this machine.
        "--unsafe-no-fsync".into(),
    ]);
    arguments
}

fn api_server(layout: Layout, authority: &Authority) -> Result<Vec<String>> {
    let pki = layout.pki();
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let addresses =
        [layout.api_address().to_string(), layout::KUBERNETES_SERVICE.to_string(), "127.0.0.1".to_owned()];
    let all: Vec<&str> = names.into_iter().chain(addresses.iter().map(String::as_str)).collect();
    let serving = authority.server("apiserver", &all)?;
    let kubelet = authority.client("apiserver-kubelet", "kube-apiserver", Some("system:masters"))?;
    let (private, public) = authority.service_account_key()?;
    let policy = pki.join("audit-policy.json");
    write_private(&policy, &audit_policy().to_string())?;
    Ok(vec![
        format!("--advertise-address={}", layout.api_address()),
        format!("--bind-address={}", layout.api_address()),
        format!("--secure-port={}", layout::API_PORT),
        format!("--etcd-servers={}", etcd_url(layout, 0)),
        format!("--service-cluster-ip-range={}", layout::SERVICE_CIDR),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        "--audit-log-maxsize=500".into(),
        "--audit-log-maxbackup=1".into(),
        flag("client-ca-file", &authority.certificate_file()),
        flag("tls-cert-file", &serving.certificate_file),
        flag("tls-private-key-file", &serving.key_file),
        flag("service-account-signing-key-file", &private),
        flag("service-account-key-file", &public),
        flag("kubelet-certificate-authority", &authority.certificate_file()),
        flag("kubelet-client-certificate", &kubelet.certificate_file),
        flag("kubelet-client-key", &kubelet.key_file),
        flag("audit-policy-file", &policy),
        flag("audit-log-path", &layout.audit_log()),
    ])
}

/// One line per finished request, without bodies: enough to count what somebody asked for.
fn audit_policy() -> serde_json::Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "None", "nonResourceURLs": ["/*"] },
            { "level": "Metadata" },
        ],
    })
}
