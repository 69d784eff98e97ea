//! `trimtab recover`: recovers the log dirs of a stopped Kafka broker before it starts again.
//!
//! Calls the recovery library in this process; with --nats, workers elsewhere verify segments for it. Progress goes to standard
//! error (bars on a terminal, plain lines otherwise), the result to standard output.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::{StreamExt, TryStreamExt};
use indicatif::{HumanBytes, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;
use trimtab_events::{Event, Trace};
use trimtab_recovery::{
    CutPolicy, DirProgress, DirReport, DirState, Options, Outcome, PartitionReport, PartitionState, Properties,
    RunReport, Settings, Stop,
};

use super::runtime::{self, Wires};
use super::{Context as CommandContext, Usage, roles};
use crate::clock::{Clock, timestamp};
use crate::http::{self, Served};
use crate::metrics::RecoveryMetrics;
use crate::recovery::{LogDirLane, OverBus, OverOptions, Run, Segments, outcomes, this_host};
use crate::sign::{Signer, Trusted};
use crate::workers::source;

/// How often a plain progress line is written when standard error is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(1);
/// How long reaching NATS may take before the log dirs are recovered without.
const REACH_BUS: Duration = Duration::from_secs(15);
/// How long telling the audit may take: the broker waits.
const TELL: Duration = Duration::from_secs(15);
const TOLD_AT_ONCE: usize = 64;

/// Recover the log dirs of a stopped Kafka broker, in parallel, so that it starts as after a clean stop.
///
/// Exit codes: 0 recovered, or nothing to do (the output says which); 1 failed; 2 wrong usage; 3 stopped by the time
/// limit or a signal; 4 a log dir or partition is refused, because a broker would not start on it either or because one
/// is running. After 1, 3 and 4 the log dirs are still recoverable, by a new run or by the broker itself.
#[derive(Args, Clone, Debug)]
pub struct RecoverArgs {
    /// Log dirs. Without any, those of --properties
    #[arg(value_name = "DIR", required_unless_present = "properties")]
    pub dirs: Vec<PathBuf>,
    /// The broker's server.properties: log dirs, index and producer settings, threads and limit
    #[arg(long, value_name = "FILE")]
    pub properties: Option<PathBuf>,
    /// A topic's setting, if the metadata cannot tell it (index.interval.bytes, segment.index.bytes, remote.storage.enable)
    #[arg(long, value_name = "NAME:key=value")]
    pub topic: Vec<String>,
    /// A setting for all topics, or of the broker (producer.id.expiration.ms, remote.log.storage.system.enable)
    #[arg(long, value_name = "key=value")]
    pub default: Vec<String>,
    /// Threads [default: log.recovery.threads, else num.recovery.threads.per.data.dir, else the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Give up after this time, such as 10m [default: log.recovery.max.interval.ms, else never]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub max_interval: Option<Duration>,
    /// Read only and tell what recovery would do
    #[arg(long)]
    pub check: bool,
    /// The time that idle producers are judged by [default: now]
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<jiff::Timestamp>,
    /// Keep cut data in this folder [default: DIR.trimtab-cut beside each log dir]
    #[arg(long, value_name = "DIR", conflicts_with = "discard")]
    pub cut_dir: Option<PathBuf>,
    /// Drop cut data, as a broker does
    #[arg(long)]
    pub discard: bool,
    /// Treat unreadable checkpoints as absent or empty, instead of refusing the log dir
    #[arg(long)]
    pub repair_checkpoints: bool,
    /// Cut a segment at an offset that does not fit it, instead of refusing the partition
    #[arg(long)]
    pub truncate_overflow: bool,
    /// Let workers (`trimtab recovery`) verify segments too, over NATS at this address
    #[arg(long, value_name = "URL", requires = "trust_worker")]
    pub nats: Option<String>,
    /// Serve progress as metrics here while it runs (127.0.0.1:8222)
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// With --nats: what it shares with workers.
    #[command(flatten)]
    pub shared: SharedArgs,
    /// With --nats: public key of a worker whose reports are believed; may be repeated
    #[arg(long, value_name = "KEY", requires = "nats")]
    pub trust_worker: Vec<String>,
}

/// What the two sides of a recovery over NATS must agree on, and their keys.
#[derive(Args, Clone, Debug, Default)]
pub struct SharedArgs {
    /// File with this process's signing seed
    #[arg(long, value_name = "FILE")]
    pub seed_file: Option<PathBuf>,
    /// Folder for what workers build; the same for `recover` and its workers [default: DIR.trimtab-images beside each log dir]
    #[arg(long, value_name = "DIR")]
    pub side_dir: Option<PathBuf>,
    /// Name of the host, the same for `recover` and its workers [default: the kernel's boot id]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
}

impl SharedArgs {
    /// The lanes of log dirs that a broker has used.
    pub(super) fn lanes<'a>(&self, dirs: impl IntoIterator<Item = &'a PathBuf>) -> Result<Vec<LogDirLane>> {
        let host = self.host.clone().map_or_else(this_host, Ok)?;
        let lanes = dirs.into_iter().map(|dir| LogDirLane::of(dir, &host, self.side_dir.as_deref()));
        Ok(lanes.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }
}

/// Runs the command and returns its exit code. With `--output json` the report is one JSON document on standard output.
///
/// # Errors
/// When flags or the properties file cannot be used (wrong usage, exit code 2). What happens to the log dirs is in the
/// output and the exit code.
pub(crate) async fn run(context: &CommandContext, args: RecoverArgs) -> Result<u8> {
    let usage = |e: anyhow::Error| anyhow::Error::from(Usage(format!("{e:#}")));
    let (options, limit) = options(&args).map_err(usage)?;
    let stop = Stop::at(limit.map(|limit| Instant::now() + limit));
    stop_on_signals(&stop);
    let metrics = Arc::new(RecoveryMetrics::new());
    crate::metrics::BUILD.level().set(1.0, &[env!("CARGO_PKG_VERSION"), "recover"]);
    let ended = CancellationToken::new();
    let _ended = ended.clone().drop_guard();
    if let Some(address) = args.http {
        let (listener, got) = http::listen(address).await.map_err(|e| usage(e.into()))?;
        tracing::info!(address = %got, "health and metrics");
        let served = Served {
            registry: context.registry.clone(),
            checks: Vec::new(),
            triggers: None,
            wishes: None,
            token: None,
            console: None,
        };
        tokio::spawn(http::serve(listener, served, ended.clone()));
    }
    let workers = match &args.nats {
        Some(url) => workers(context, &args, &options, url).await?,
        None => None,
    };
    let over = workers.as_ref().map(Workers::over_bus);
    let segments = Arc::new(Segments::new(options.threads, over, metrics.clone()));
    let listening = tokio::spawn(segments.clone().listen(ended.clone()));
    let started_ms = Clock::system().now_ms();
    let json = context.json();
    // Blocking work from its first to its last byte: a thread of its own, not one of the runtime's.
    let report = {
        let (segments, metrics) = (segments.clone(), metrics.clone());
        tokio::task::spawn_blocking(move || {
            let display = Display::new();
            let observer = |progress: &[DirProgress]| {
                metrics.progress(progress);
                display.show(progress);
            };
            let report = trimtab_recovery::recover_with(&options, &stop, &observer, segments.as_ref());
            display.finish();
            report.context("recovery was not started")
        })
        .await?
        .map_err(usage)?
    };
    metrics.ended(outcome_name(report.outcome));
    ended.cancel();
    let _ = listening.await;
    if json {
        println!("{}", serde_json::to_string_pretty(&report).context("the report could not be written as JSON")?);
    } else {
        print_report(&report);
    }
    if let Some(workers) = workers {
        if !json {
            println!("{} segments were verified by workers", segments.elsewhere());
        }
        workers.finish(&report, started_ms, &segments).await;
    }
    Ok(exit_code(report.outcome))
}

/// The way to workers, and what is told over it in the end.
struct Workers {
    wires: Wires,
    lanes: Vec<LogDirLane>,
    trusted: Trusted,
    signer: Signer,
    instance: String,
}

/// Reaches the bus. Whatever it lacks, the log dirs can be recovered without it: the broker's start must not depend on NATS.
async fn workers(
    context: &CommandContext,
    args: &RecoverArgs,
    options: &Options,
    url: &str,
) -> Result<Option<Workers>> {
    let mut config = context.global.config()?;
    config.nats.url = Some(url.to_owned());
    config.keys.seed_file = args.shared.seed_file.clone().or(config.keys.seed_file);
    let signer = roles::signer(&config, "finisher")?;
    let trusted = Trusted::new(args.trust_worker.iter().cloned()).map_err(|e| Usage(e.to_string()))?;
    let lanes = match args.shared.lanes(options.dirs.iter().chain(&options.optional_dirs)) {
        Ok(lanes) => lanes,
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "no worker can be asked; recovering without them");
            return Ok(None);
        }
    };
    let instance = runtime::instance();
    let reached = tokio::time::timeout(REACH_BUS, runtime::wires(&config, &instance)).await;
    match reached {
        Ok(Ok(wires)) => Ok(Some(Workers { wires, lanes, trusted, signer, instance })),
        Ok(Err(error)) if error.downcast_ref::<Usage>().is_some() => Err(error),
        Ok(Err(error)) => {
            tracing::warn!(url, error = format!("{error:#}"), "NATS cannot be used; recovering without workers");
            Ok(None)
        }
        Err(_) => {
            tracing::warn!(url, "NATS does not answer; recovering without workers");
            Ok(None)
        }
    }
}

impl Workers {
    fn over_bus(&self) -> OverBus {
        OverBus {
            bus: self.wires.bus.clone(),
            runtime: tokio::runtime::Handle::current(),
            lanes: self.lanes.clone(),
            trusted: self.trusted.clone(),
            instance: self.instance.clone(),
            clock: Clock::system(),
            options: OverOptions::default(),
        }
    }

    /// Tells the audit what came of it and clears up. The log dirs are done: nothing here changes how the run ended.
    async fn finish(self, report: &RunReport, started_ms: i64, segments: &Segments) {
        for lane in &self.lanes {
            lane.clean();
        }
        if !report.check
            && let Err(error) = self.tell(report, started_ms, segments).await
        {
            tracing::warn!(error = format!("{error:#}"), "what came of the recovery was not told to the audit");
        }
        #[cfg(feature = "nats")]
        if let Some(nats) = &self.wires.nats {
            let _ = nats.flush().await;
        }
    }

    async fn tell(&self, report: &RunReport, started_ms: i64, segments: &Segments) -> Result<()> {
        let now_ms = Clock::system().now_ms();
        let run = Run {
            id: uuid::Uuid::now_v7(),
            host: runtime::host(),
            finisher: self.instance.clone(),
            started_ms,
            ended_ms: now_ms,
        };
        let trace_of = |dir: &DirReport, partition: &PartitionReport| segments.trace_of(&dir.path, &partition.folder);
        let told = outcomes(&run, report, &self.lanes, trace_of).into_iter().map(|outcome| async {
            let (source, at) = (source("finisher", &self.instance), timestamp(now_ms));
            let id = format!("{}/{}/{}", run.id, outcome.lane, outcome.folder.as_deref().unwrap_or_default());
            let lane = outcome.lane.clone();
            let mut event = Event::new(id, &source, &lane, at, Trace::default(), outcome)?;
            self.signer.sign(&mut event)?;
            self.wires.bus.publish(&event).await?;
            anyhow::Ok(())
        });
        let all = futures::stream::iter(told).buffer_unordered(TOLD_AT_ONCE).try_collect::<Vec<()>>();
        tokio::time::timeout(TELL, all).await.context("not within the time for it")?.map(drop)
    }
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NothingToDo => "nothing-to-do",
        Outcome::Recovered => "recovered",
        Outcome::Failed => "failed",
        Outcome::Stopped => "stopped",
        Outcome::Refused => "refused",
    }
}

fn exit_code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::NothingToDo | Outcome::Recovered => 0,
        Outcome::Failed => 1,
        Outcome::Stopped => 3,
        Outcome::Refused => 4,
    }
}

/// Flags first, then the broker's properties, then defaults.
fn options(args: &RecoverArgs) -> Result<(Options, Option<Duration>)> {
    let properties = match &args.properties {
        Some(path) => Properties::read(path)?,
        None => Properties::default(),
    };
    let configured = properties.log_dirs();
    if args.dirs.is_empty() && configured.is_empty() {
        bail!("the properties file names no log.dirs; give the log dirs as arguments");
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = match args.threads {
        Some(threads) => usize::from(threads),
        None => {
            let own = properties.positive("log.recovery.threads")?;
            let kafka = properties.positive("num.recovery.threads.per.data.dir")?;
            own.or(kafka).map_or(cores, |n| usize::try_from(n).unwrap_or(cores).min(1024))
        }
    };
    let limit = match args.max_interval {
        Some(limit) => Some(limit),
        None => properties.positive("log.recovery.max.interval.ms")?.map(Duration::from_millis),
    };
    let metadata_dir = properties.metadata_log_dir();
    let mut settings = Settings::new(properties);
    for text in &args.topic {
        settings.add_topic(text)?;
    }
    for text in &args.default {
        settings.add_default(text)?;
    }
    let cut = match (&args.cut_dir, args.discard) {
        (Some(folder), _) => CutPolicy::Into(folder.clone()),
        (None, true) => CutPolicy::Discard,
        (None, false) => CutPolicy::Beside,
    };
    let options = Options {
        optional_dirs: if args.dirs.is_empty() { configured } else { Vec::new() },
        dirs: args.dirs.clone(),
        metadata_dir,
        settings,
        threads,
        check: args.check,
        now_ms: args.now.map(jiff::Timestamp::as_millisecond),
        cut,
        repair_checkpoints: args.repair_checkpoints,
        truncate_overflow: args.truncate_overflow,
    };
    Ok((options, limit))
}

/// SIGTERM and SIGINT end the run at its next read, with a report. Where signals cannot be watched they end the process,
/// which leaves the log dirs recoverable as well.
fn stop_on_signals(stop: &Stop) {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
                return;
            };
            tokio::select! {
                _ = term.recv() => stop.cancel(),
                _ = int.recv() => stop.cancel(),
            }
        });
    });
}

/// Shows progress on standard error.
struct Display {
    bars: Option<MultiProgress>,
    state: Mutex<Shown>,
}

struct Shown {
    bars: BTreeMap<PathBuf, ProgressBar>,
    /// When lines were last written; in the beginning, when it began.
    last_lines: Instant,
}

impl Display {
    fn new() -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Self { bars, state: Mutex::new(Shown { bars: BTreeMap::new(), last_lines: Instant::now() }) }
    }

    fn show(&self, progress: &[DirProgress]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &self.bars {
            Some(bars) => {
                for dir in progress {
                    let bar = state.bars.entry(dir.path.clone()).or_insert_with(|| {
                        let style = ProgressStyle::with_template("{prefix} {bar:30} {msg}");
                        let bar = bars.add(ProgressBar::new(0));
                        bar.set_prefix(dir.path.display().to_string());
                        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                    });
                    bar.set_length(dir.bytes.1);
                    bar.set_position(dir.bytes.0);
                    bar.set_message(progress_text(dir));
                }
            }
            None => {
                if state.last_lines.elapsed() >= PLAIN_EVERY {
                    state.last_lines = Instant::now();
                    for dir in progress {
                        eprintln!("{}: {}", dir.path.display(), progress_text(dir));
                    }
                }
            }
        }
    }

    fn finish(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for bar in state.bars.values() {
            bar.finish_and_clear();
        }
    }
}

fn progress_text(dir: &DirProgress) -> String {
    let left = match dir.seconds_left {
        Some(seconds) => format!("{} left", HumanDuration(Duration::from_secs(seconds))),
        None => "remaining time not known yet".to_owned(),
    };
    format!(
        "{}: {} of {}, {} of {} segments, {} of {} partitions, {}/s, {left}",
        dir.phase,
        HumanBytes(dir.bytes.0),
        HumanBytes(dir.bytes.1),
        dir.segments.0,
        dir.segments.1,
        dir.partitions.0,
        dir.partitions.1,
        HumanBytes(dir.bytes_per_second),
    )
}

fn print_report(report: &RunReport) {
    for dir in &report.dirs {
        print_dir(dir);
    }
    let what = match (report.outcome, report.check) {
        (Outcome::NothingToDo, _) => "nothing to do",
        (Outcome::Recovered, true) => "check only: recovery would succeed",
        (Outcome::Recovered, false) => "recovered",
        (Outcome::Failed, _) => "log recovery failed",
        (Outcome::Stopped, _) => "log recovery stopped before it was finished",
        (Outcome::Refused, _) => "log recovery refused a part",
    };
    println!("{what} ({:.1} s, {} threads)", report.duration_ms as f64 / 1000.0, report.threads);
    if !report.errors.is_empty() {
        eprintln!("{what}:");
        for error in &report.errors {
            eprintln!("  {error}");
        }
    }
}

fn print_dir(dir: &DirReport) {
    let state = match dir.state {
        DirState::Clean => "clean, nothing to do",
        DirState::Recovered => "recovered",
        DirState::WouldRecover => "would be recovered",
        DirState::Refused => "refused, no clean-shutdown marker",
        DirState::Failed => "failed, no clean-shutdown marker",
        DirState::Unfinished => "not finished, no clean-shutdown marker",
    };
    let unflushed: usize = dir.partitions.iter().map(|partition| partition.unflushed_segments).sum();
    let lost: u64 = dir.partitions.iter().map(|partition| partition.lost_bytes()).sum();
    println!("{}: {state}", dir.path.display());
    if !dir.partitions.is_empty() {
        println!(
            "  {} partitions, {unflushed} unflushed segments, {} read, {} verified earlier, {} cut",
            dir.partitions.len(),
            HumanBytes(dir.bytes_read),
            dir.segments_remembered,
            HumanBytes(lost),
        );
    }
    for partition in &dir.partitions {
        let name = &partition.folder;
        if partition.state == PartitionState::Skipped {
            println!("  {name}: waits to be deleted, left alone");
        }
        for cut in &partition.cuts {
            println!(
                "  {name}: segment {} cut at byte {}, {} from offset {} on ({})",
                cut.segment,
                cut.at_byte,
                HumanBytes(cut.bytes),
                cut.next_offset,
                cut.why
            );
        }
        for gone in &partition.removed {
            println!("  {name}: segment {} taken out, {} ({})", gone.segment, HumanBytes(gone.bytes), gone.why);
        }
        for warning in &partition.warnings {
            println!("  {name}: {warning}");
        }
    }
    for warning in &dir.warnings {
        println!("  {warning}");
    }
    if let Some(folder) = &dir.cut_folder {
        println!("  what was cut is in {}", folder.display());
    }
}
