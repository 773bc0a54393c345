//! `cargo demo`: a local cluster with fairlead on it.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Write as _},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use fairlead_tests::{Cluster, Layout, Options, fairlead, node::Nri, progress::Progress, show};

const NODES: u8 = 2;

#[derive(Parser)]
#[command(name = "cargo demo", version, about = "A local cluster with fairlead on it")]
#[command(long_about = "Boots a local cluster, installs fairlead and shows what it does.")]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a cluster and install fairlead, without the show
    Up {
        /// Number of nodes
        #[arg(long, default_value_t = NODES, value_parser = clap::value_parser!(u8).range(1..))]
        nodes: u8,
        /// What the nodes' containerd does with plugins
        #[arg(long, value_enum, default_value_t)]
        nri: Nri,
        /// Leave fairlead out
        #[arg(long)]
        bare: bool,
    },
    /// End the cluster
    Down,
    /// Say what runs
    Status,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    let layout = Layout::DEMO.or_from_env()?;
    let progress = Progress::auto();
    match args.command {
        Some(Command::Down) => Cluster::down(layout).await,
        Some(Command::Status) => status(layout).await,
        Some(Command::Up { nodes, nri, bare }) => {
            ensure!(
                !(bare && nri == Nri::Preinstalled),
                "what shall be preinstalled is a part of fairlead: leave out --bare"
            );
            let cluster = up(layout, nodes, nri, &progress).await?;
            if !bare {
                fairlead::install(&cluster, &progress).await?;
            }
            say(&how_to_use(&cluster)?)
        }
        None => demo(layout, &progress).await,
    }
}

async fn demo(layout: Layout, progress: &Progress) -> Result<()> {
    let started = Instant::now();
    let (nodes, nri) = running(layout).await;
    let cluster = up(layout, nodes, nri, progress).await?;
    fairlead::install(&cluster, progress).await?;
    let lines = show::run(&cluster, progress).await?;
    let mut answer = String::new();
    for question in show::QUESTIONS {
        let seen = cluster.kubectl(question).await?;
        writeln!(answer, "$ kubectl {}\n{seen}", question.join(" "))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    writeln!(answer, "{}\nAll of it took {seconds:.0} s.\n", show::table(&lines))?;
    say(&(answer + &how_to_use(&cluster)?))
}

/// The show takes the cluster that runs, whatever its size.
async fn running(layout: Layout) -> (u8, Nri) {
    let Ok(cluster) = Cluster::attach(layout).await else {
        return (NODES, Nri::default());
    };
    (u8::try_from(cluster.nodes().len()).unwrap_or(NODES), cluster.nri())
}

/// The running cluster if it is whole, else a new one.
async fn up(layout: Layout, nodes: u8, nri: Nri, progress: &Progress) -> Result<Cluster> {
    if let Ok(cluster) = Cluster::attach(layout).await
        && cluster.wait_for_nodes().await.is_ok()
    {
        let running = cluster.nodes().len();
        ensure!(
            running == usize::from(nodes) && cluster.nri() == nri,
            "a cluster with {running} nodes and NRI {:?} is running: end it first with `cargo demo down`",
            cluster.nri()
        );
        return Ok(cluster);
    }
    Cluster::up(&Options { layout, nodes, nri, progress: progress.clone() }).await
}

fn how_to_use(cluster: &Cluster) -> Result<String> {
    Ok(format!(
        "The cluster is up. To use it:\n  \
           export KUBECONFIG={}\n  \
           export PATH={}:$PATH\n  \
           kubectl get nodes\n\
         Logs are in {}. `cargo demo down` ends it.\n",
        cluster.kubeconfig_path().display(),
        cluster.tools().kubernetes()?.display(),
        cluster.logs_dir().display()
    ))
}

async fn status(layout: Layout) -> Result<()> {
    let cluster = Cluster::attach(layout).await?;
    let mut answer = cluster.kubectl(&["get", "nodes", "-o", "wide"]).await?;
    for node in cluster.nodes() {
        if let Err(error) = node.check() {
            writeln!(answer, "{}: {error:#}", node.name())?;
        }
    }
    answer += &cluster.kubectl(&["get", "pods", "-A", "-o", "wide"]).await?;
    say(&(answer + &how_to_use(&cluster)?))
}

/// A reader that went away, such as `head`, is no failure.
fn say(answer: &str) -> Result<()> {
    match std::io::stdout().write_all(answer.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
