//! `trimtab recovery`: a worker that verifies segments of log dirs for `trimtab recover`, over NATS.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::sync::Semaphore;
use trimtab_bus::Role;
use trimtab_recovery::Properties;

use super::recover::SharedArgs;
use super::run::{Process, Told, stop_on_signals};
use super::{Context, Exit, Usage, roles, runtime};
use crate::metrics::RecoveryMetrics;
use crate::workers::{RecoveryParts, RecoveryWorker};

/// Verify segments of Kafka log dirs for `trimtab recover`, over NATS. Reads the log dirs only.
#[derive(Args, Debug)]
pub struct RecoveryArgs {
    /// Log dirs that this process sees. Without any, those of --properties
    #[arg(value_name = "DIR", required_unless_present = "properties")]
    pub dirs: Vec<PathBuf>,
    /// The broker's server.properties: its log dirs
    #[arg(long, value_name = "FILE")]
    pub properties: Option<PathBuf>,
    /// Segments read at once [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Name of this process in records (default: host and process id)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What it shares with `recover`.
    #[command(flatten)]
    pub shared: SharedArgs,
    /// The bus.
    #[command(flatten)]
    pub bus: super::args::BusArgs,
}

/// Runs it until it is told to stop.
pub(crate) async fn run(context: &Context, args: RecoveryArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.bus.apply(&mut config);
    config.keys.seed_file = args.shared.seed_file.clone().or(config.keys.seed_file);
    if config.nats.url.as_deref().is_none_or(|url| url == "spawn") {
        anyhow::bail!(Usage(
            "`recovery` verifies for another process over NATS: give --nats URL. In one process, use `recover`"
                .to_owned()
        ));
    }
    let mut dirs = args.dirs.clone();
    if let (Some(file), true) = (&args.properties, dirs.is_empty()) {
        dirs = Properties::read(file).map_err(|e| Usage(e.to_string()))?.log_dirs();
    }
    let lanes = args.shared.lanes(&dirs).map_err(|e| Usage(format!("{e:#}")))?;
    if lanes.is_empty() {
        anyhow::bail!(Usage("no broker has used these log dirs yet: none has a meta.properties".to_owned()));
    }
    for lane in &lanes {
        std::fs::create_dir_all(&lane.side)
            .with_context(|| format!("making {}; choose another folder with --side-dir", lane.side.display()))?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cores, usize::from);
    let signer = roles::signer(&config, "recovery worker")?;
    let instance = args.name.clone().unwrap_or_else(runtime::instance);
    let process = Process::open(config, instance).await?;
    stop_on_signals(&process.stop);
    let parts = Arc::new(RecoveryParts {
        signer,
        at_once: Semaphore::new(threads),
        clock: process.clock.clone(),
        instance: process.instance.clone(),
        metrics: Arc::new(RecoveryMetrics::new()),
    });
    for lane in lanes {
        tracing::info!(dir = %lane.dir.display(), lane = lane.lane, "verifying segments of this log dir");
        process.start(Arc::new(RecoveryWorker::new(lane, parts.clone())), threads);
    }
    let told = Told { name: "recovery", queue: Role::Recovery, store: false, live: None, follow: None };
    process.tell(context.registry.clone(), told, None, None, None).await?;
    tracing::info!(role = "recovery", instance = process.instance, threads, "running");
    process.stop.cancelled().await;
    process.finish().await;
    Ok(Exit::Done)
}
