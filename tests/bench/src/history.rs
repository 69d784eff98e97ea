//! What remembering the activity of subscribers costs: a plan that remembers against one that does not, from the same file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::measure::{self, Took, mib};
use crate::{Options, scan, snapshot_file};

/// A rule by which everybody is judged and nobody is stale, so that the two plans differ in nothing else.
const RULES: &str = "[[rules]]\nname = \"idle\"\nstale_after = \"3650d\"\n";

fn plan(file: &Path, state: &Path, remember: bool) -> Result<Took> {
    let mut command = Command::new(measure::trimtab()?);
    command.arg("plan").arg("--snapshot").arg(file).arg("--state-dir").arg(state);
    command.arg("--config").arg(state.join("rules.toml"));
    if remember {
        command.arg("--remember");
    }
    measure::run(command.stdout(Stdio::null()), &[0])
}

/// The same from a live ZooKeeper, within a limit of operations or without one.
fn live(topics: u64, limit: u64, rounds: u64) -> Result<()> {
    let rig = scan::filled(topics)?;
    let state = tempfile::tempdir().context("making a folder")?;
    std::fs::write(state.path().join("rules.toml"), RULES)?;
    let plan = |remember: bool| -> Result<Took> {
        let mut command = Command::new(measure::trimtab()?);
        command.args(["plan", "--from", &format!("zk://{}", rig.zk()), "--metadata-rate", &limit.to_string()]);
        command.arg("--state-dir").arg(state.path()).arg("--config").arg(state.path().join("rules.toml"));
        if remember {
            command.arg("--remember");
        }
        measure::run(command.stdout(Stdio::null()), &[0])
    };
    plan(true)?;
    let mut walls = Vec::new();
    for round in 0..rounds {
        let (without, with) = if round % 2 == 0 {
            let without = plan(false)?;
            (without, plan(true)?)
        } else {
            let with = plan(true)?;
            (plan(false)?, with)
        };
        println!("  without {:.2} s, with {:.2} s", without.wall.as_secs_f64(), with.wall.as_secs_f64());
        walls.push(with.wall.as_secs_f64() / without.wall.as_secs_f64());
    }
    let what = format!("history, live, {limit} operations a second (0: no limit): wall time with to without");
    measure::ratio(&what, &walls, "must be at most 1.10");
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(topics) = options.text("live") {
        return live(topics.parse()?, options.number("limit", 0)?, options.number("rounds", 3)?);
    }
    let rounds = options.number("rounds", 3)?;
    let sizes = [options.number("small", 100_000)?, options.number("large", 1_000_000)?];
    let scratch = tempfile::tempdir().context("making a folder")?;
    let folder = options.text("folder").map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let (mut peaks, mut walls, mut cpus) = ([0, 0], Vec::new(), Vec::new());
    for (which, topics) in sizes.into_iter().enumerate() {
        let file = folder.join(format!("bench-behind-{topics}.jsonl.gz"));
        if !file.exists() {
            let partial = file.with_extension("partial");
            snapshot_file::write(&partial, topics, true)?;
            std::fs::rename(&partial, &file)?;
        }
        let state = scratch.path().join(format!("state-{topics}"));
        std::fs::create_dir_all(&state)?;
        std::fs::write(state.join("rules.toml"), RULES)?;
        // The first one has nothing to read.
        plan(&file, &state, true)?;
        for round in 0..rounds {
            let (without, with) = if round % 2 == 0 {
                let without = plan(&file, &state, false)?;
                (without, plan(&file, &state, true)?)
            } else {
                let with = plan(&file, &state, true)?;
                (plan(&file, &state, false)?, with)
            };
            println!(
                "  {topics} subscribers: without {:.2} s (CPU {:.2} s), with {:.2} s (CPU {:.2} s), peak {:.1} and {:.1} MiB",
                without.wall.as_secs_f64(),
                without.cpu.as_secs_f64(),
                with.wall.as_secs_f64(),
                with.cpu.as_secs_f64(),
                mib(without.peak),
                mib(with.peak),
            );
            peaks[which] = peaks[which].max(with.peak);
            walls.push(with.wall.as_secs_f64() / without.wall.as_secs_f64());
            cpus.push(with.cpu.as_secs_f64() / without.cpu.as_secs_f64());
        }
        let file = state.join("state.db").metadata().map(|data| data.len()).unwrap_or(0);
        println!(
            "FIGURE history: {:.1} bytes of state a subscriber, {topics} subscribers",
            file as f64 / topics as f64
        );
    }
    measure::ratio("history: wall time with to without", &walls, "must be at most 1.10");
    measure::ratio("history: processor time with to without", &cpus, "for comparison");
    let what = format!("history: peak memory, {} subscribers to {}", sizes[1], sizes[0]);
    measure::ratio(&what, &[peaks[1] as f64 / peaks[0] as f64], "flat");
    Ok(())
}
