//! `trimtab plan --kind orphan` from a snapshot of a whole tree against `gzip -dc` of the same file: time, and memory at two sizes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::measure::{self, Took, mib};
use crate::snapshot::against_gunzip;
use crate::{Options, snapshot_file};

/// Ledgers of one topic.
pub(crate) const EACH: u64 = 5;

fn plan(file: &Path, state: &Path) -> Result<Took> {
    let mut command = Command::new(measure::trimtab()?);
    command.args(["plan", "--kind", "orphan", "--snapshot"]).arg(file).arg("--state-dir").arg(state);
    // What is read is complete: anything unknown would end with another code.
    measure::run(command.stdout(Stdio::null()), &[0])
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 3)?;
    let sizes = [options.number("small", 100_000)?, options.number("large", 1_000_000)?];
    let scratch = tempfile::tempdir().context("making a folder")?;
    let folder = options.text("folder").map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let (mut peaks, mut walls, mut cpus) = ([0, 0], Vec::new(), Vec::new());
    for (which, ledgers) in sizes.into_iter().enumerate() {
        let file = folder.join(format!("bench-ledgers-{ledgers}.jsonl.gz"));
        if !file.exists() {
            let partial = file.with_extension("partial");
            snapshot_file::write_ledgers(&partial, ledgers)?;
            std::fs::rename(&partial, &file)?;
        }
        println!("{ledgers} ledgers of {} topics, {:.0} MiB compressed", ledgers / EACH, mib(file.metadata()?.len()));
        let (peak, ratios) = against_gunzip(&file, (ledgers, "ledgers"), rounds, || plan(&file, scratch.path()))?;
        peaks[which] = peak;
        (walls, cpus) = ratios.into_iter().unzip();
    }
    measure::ratio("orphans: wall time of plan to gzip -dc", &walls, "must be at most 4");
    measure::ratio("orphans: processor time of plan to gzip -dc", &cpus, "for comparison");
    let what = format!("orphans: peak memory, {} ledgers to {}", sizes[1], sizes[0]);
    measure::ratio(&what, &[peaks[1] as f64 / peaks[0] as f64], "must be at most 1.2");
    println!("FIGURE orphans: peak memory {:.1} MiB (must be below 200)", mib(peaks[1]));
    Ok(())
}
