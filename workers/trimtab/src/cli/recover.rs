//! `trimtab recover`: recovers the log dirs of a stopped Kafka broker before it starts again.
//!
//! Calls the recovery library in this process, without a bus. Progress goes to standard error (bars on a terminal, plain
//! lines otherwise), the result to standard output.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{HumanBytes, HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use trimtab_recovery::{
    CutPolicy, DirProgress, DirReport, DirState, Options, Outcome, PartitionState, Properties, RunReport, Settings,
    Stop,
};

/// How often a plain progress line is written when standard error is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(1);

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
}

/// Runs the command and returns its exit code. With `json` the report is one JSON document on standard output.
///
/// # Errors
/// When flags or the properties file cannot be used (wrong usage, exit code 2). What happens to the log dirs is in the
/// output and the exit code.
pub(crate) fn run(args: &RecoverArgs, json: bool) -> Result<u8> {
    let (options, limit) = options(args)?;
    let stop = Stop::at(limit.map(|limit| Instant::now() + limit));
    stop_on_signals(&stop);
    let display = Display::new();
    let report = trimtab_recovery::recover(&options, &stop, &|progress| display.show(progress))
        .context("recovery was not started")?;
    display.finish();
    if json {
        println!("{}", serde_json::to_string_pretty(&report).context("the report could not be written as JSON")?);
    } else {
        print_report(&report);
    }
    Ok(exit_code(report.outcome))
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

#[derive(Default)]
struct Shown {
    bars: BTreeMap<PathBuf, ProgressBar>,
    last_line: Option<Instant>,
}

impl Display {
    fn new() -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Self { bars, state: Mutex::default() }
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
                let due = state.last_line.get_or_insert_with(Instant::now);
                if due.elapsed() >= PLAIN_EVERY {
                    *due = Instant::now();
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
