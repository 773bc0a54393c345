//! `kubectl fairlead`: installs and uninstalls fairlead.

use std::{
    path::{Component, Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use fairlead_deploy::{
    cluster::Cluster, install, manifests, manifests::Choices, progress::Progress, uninstall,
};

/// Installs and uninstalls fairlead, the pod network agent.
#[derive(Parser)]
#[command(name = "kubectl-fairlead", bin_name = "kubectl fairlead", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    access: Access,
}

#[derive(Args)]
struct Access {
    /// Kubeconfig file; the default is that of kubectl.
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig.
    #[arg(long, global = true)]
    context: Option<String>,
    /// Limit of each step, in seconds.
    #[arg(long, global = true, default_value = "300", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Applies the manifests and waits until pods are held.
    Install {
        /// Image of agents, controllers and gates, with tag or digest.
        #[arg(long, default_value_t = Choices::default().image)]
        image: String,
        /// Devices of the nodes that Networks may use: globs such as eth1 or ens5f*. Repeatable; none by default.
        #[arg(long, value_delimiter = ',')]
        devices: Vec<String>,
        /// When the image is pulled.
        #[arg(long, value_parser = ["Always", "IfNotPresent", "Never"])]
        image_pull_policy: Option<String>,
        /// Also install the guard in the container runtime's plugin folder on every node, usually /opt/nri/plugins.
        #[arg(long, value_parser = absolute_folder)]
        guard_folder: Option<String>,
        /// Print the manifests as YAML, and apply nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Removes everything but the interfaces of running pods.
    Uninstall {
        /// Complete a removal that fairlead itself cannot complete any more, such as `kubectl delete -k`.
        #[arg(long)]
        finish: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { command, access } = arguments;
    let timeout = Duration::from_secs(access.timeout);
    let connect = || Cluster::connect(access.kubeconfig.as_deref(), access.context.as_deref());
    match command {
        Command::Install { image, devices, image_pull_policy, guard_folder, dry_run } => {
            let choices = Choices { image, devices, pull_policy: image_pull_policy, guard_folder };
            if dry_run {
                return print(&choices);
            }
            install::install(&connect().await?, &choices, timeout, Progress::auto()).await
        }
        Command::Uninstall { finish } => {
            let options = uninstall::Options { finish, timeout };
            uninstall::uninstall(&connect().await?, &options, Progress::auto()).await
        }
    }
}

fn absolute_folder(text: &str) -> Result<String, String> {
    let plain =
        Path::new(text).components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if text.starts_with('/') && plain {
        Ok(text.to_owned())
    } else {
        Err("it is no absolute path".to_owned())
    }
}

#[expect(clippy::print_stdout, reason = "printing the manifests is what was asked for")]
fn print(choices: &Choices) -> Result<()> {
    for object in manifests::render(choices)? {
        print!("---\n{}", serde_saphyr::to_string(&object)?);
    }
    Ok(())
}
