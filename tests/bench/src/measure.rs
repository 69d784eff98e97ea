//! Running children and telling what they took.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The `trimtab` of the same build.
pub(crate) fn trimtab() -> Result<PathBuf> {
    let path = std::env::current_exe().context("finding this program")?.with_file_name("trimtab");
    ensure!(path.exists(), "{} does not exist: cargo build --release -p trimtab -p trimtab-bench", path.display());
    Ok(path)
}

/// Says on what machine this is.
pub(crate) fn say_where() {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let build = if cfg!(debug_assertions) { "a DEBUG build, figures mean nothing" } else { "release build" };
    println!("{cores} cores, load {}, {build}", load.split(' ').next().unwrap_or("unknown"));
}

/// What a process took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) wall: Duration,
    /// Processor time of the process.
    pub(crate) cpu: Duration,
    /// Highest resident memory, bytes.
    pub(crate) peak: u64,
}

/// Runs a command to its end; its exit code must be one of these.
pub(crate) fn run(command: &mut Command, codes: &[i32]) -> Result<Took> {
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).spawn().with_context(|| format!("starting {command:?}"))?;
    let mut took = Took::default();
    let status = loop {
        if let Some(now) = look(&child) {
            took = now;
        }
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    took.wall = started.elapsed();
    ensure!(status.code().is_some_and(|code| codes.contains(&code)), "{command:?}: {status}");
    Ok(took)
}

fn look(child: &Child) -> Option<Took> {
    let folder = PathBuf::from(format!("/proc/{}", child.id()));
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024;
    Some(Took { wall: Duration::ZERO, cpu: cpu_of(child.id())?, peak })
}

/// Processor time of a process so far.
pub(crate) fn cpu_of(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// The one in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// `what: 5.25 (must ..., aim ...), rounds ...`
pub(crate) fn ratio(what: &str, values: &[f64], wanted: &str) {
    let all: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
    println!("RATIO {what}: {:.2} ({wanted}); rounds {}", median(values), all.join(" "));
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
