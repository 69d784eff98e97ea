//! `trimtab plan --snapshot` against `gzip -dc` of the same file: time, and memory at two sizes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::measure::{self, Took, mib};
use crate::{Options, snapshot_file};

pub(crate) fn generate(options: &Options) -> Result<()> {
    let file = options.text("file").context("file=FILE is missing")?;
    snapshot_file::write(Path::new(file), options.number("topics", 100_000)?, options.number("behind", 0)? > 0)
}

/// Plans from a file and unpacks it, each first in half of the rounds: the largest peak memory of the plan, and how much longer than
/// unpacking it took each time, by wall and by processor time. The file has so many of what is counted.
pub(crate) fn against_gunzip(
    file: &Path,
    (count, of): (u64, &str),
    rounds: u64,
    plan: impl Fn() -> Result<Took>,
) -> Result<(u64, Vec<(f64, f64)>)> {
    let (mut peak, mut ratios) = (0, Vec::new());
    for round in 0..rounds {
        let (peer, ours) = if round % 2 == 0 {
            let peer = gunzip(file)?;
            (peer, plan()?)
        } else {
            let ours = plan()?;
            (gunzip(file)?, ours)
        };
        println!(
            "  gzip -dc {:.2} s (CPU {:.2} s); plan {:.2} s (CPU {:.2} s), peak {:.1} MiB, {:.0} {of}/s",
            peer.wall.as_secs_f64(),
            peer.cpu.as_secs_f64(),
            ours.wall.as_secs_f64(),
            ours.cpu.as_secs_f64(),
            mib(ours.peak),
            count as f64 / ours.wall.as_secs_f64(),
        );
        peak = peak.max(ours.peak);
        let ratio = |of: fn(&Took) -> std::time::Duration| of(&ours).as_secs_f64() / of(&peer).as_secs_f64();
        ratios.push((ratio(|took| took.wall), ratio(|took| took.cpu)));
    }
    Ok((peak, ratios))
}

fn gunzip(file: &Path) -> Result<Took> {
    measure::run(Command::new("gzip").arg("-dc").arg(file).stdout(File::create("/dev/null")?), &[0])
}

fn plan(file: &Path, state: &Path) -> Result<Took> {
    let mut command = Command::new(measure::trimtab()?);
    command.arg("plan").arg("--snapshot").arg(file).arg("--state-dir").arg(state);
    measure::run(command.stdout(Stdio::null()), &[0])
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 3)?;
    let sizes = [options.number("small", 100_000)?, options.number("large", 1_000_000)?];
    let scratch = tempfile::tempdir().context("making a folder")?;
    let folder = options.text("folder").map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let mut peaks = [0, 0];
    let mut walls = Vec::new();
    for (which, topics) in sizes.into_iter().enumerate() {
        let file = folder.join(format!("bench-{topics}.jsonl.gz"));
        if !file.exists() {
            let partial = file.with_extension("partial");
            snapshot_file::write(&partial, topics, false)?;
            std::fs::rename(&partial, &file)?;
        }
        println!("{topics} topics, {:.0} MiB compressed", mib(file.metadata()?.len()));
        let (peak, ratios) = against_gunzip(&file, (topics, "topics"), rounds, || plan(&file, scratch.path()))?;
        peaks[which] = peak;
        walls = ratios.into_iter().map(|(wall, _)| wall).collect();
    }
    measure::ratio("snapshot: wall time of plan to gzip -dc", &walls, "must be at most 3, aim 1.5");
    let what = format!("snapshot: peak memory, {} topics to {}", sizes[1], sizes[0]);
    measure::ratio(&what, &[peaks[1] as f64 / peaks[0] as f64], "must be at most 1.5");
    println!("FIGURE snapshot: peak memory {:.1} MiB (must be below 200)", mib(peaks[1]));
    Ok(())
}
