//! Measures recovery beside Kafka's own loader and beside a bare read-and-checksum pass, and prints the ratios.
//!
//! ```text
//! cargo run --release -p trimtab-bench-recovery -- [--rounds N] [--threads N] [--data DIR]... [SHAPE]...
//! ```
//!
//! Shapes: `many-small`, `few-large`, `one-partition`, `mix`, `speed-up`, `kill`, `memory`; all by default. `--data` measures
//! an unclean log dir that a broker left instead. Everything measured runs on identical copies with a warm page cache,
//! in both orders, and the medians are printed. Ours is the whole process, flush and marker included; Kafka's figure is
//! its `loadLogs` alone, in a process that has loaded before, without the start of the Java machine and without flush.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use trimtab_recovery::{CutPolicy, Options, Outcome, Properties, Settings, Stop, recover};
use trimtab_tests::kafka::{Load, Loaded, Loader};

mod generate;

use generate::{Kind, Shape, generate};

const NOW_MS: i64 = 1_795_984_174_072;

const SHAPES: [Shape; 4] = [
    Shape {
        name: "many-small",
        partitions: 2000,
        segments: 2,
        segment_bytes: 128 << 10,
        batch_bytes: 15 << 10,
        kind: Kind::PlainAndIdempotent,
    },
    Shape {
        name: "few-large",
        partitions: 8,
        segments: 2,
        segment_bytes: 75 << 20,
        batch_bytes: 65_000,
        kind: Kind::PlainAndIdempotent,
    },
    Shape {
        name: "one-partition",
        partitions: 1,
        segments: 12,
        segment_bytes: 100 << 20,
        batch_bytes: 65_000,
        kind: Kind::PlainAndIdempotent,
    },
    Shape { name: "mix", partitions: 12, segments: 10, segment_bytes: 4 << 20, batch_bytes: 4000, kind: Kind::Mixed },
];

const LARGE: [Shape; 2] = [
    Shape {
        name: "few-large, 4.8 GB",
        partitions: 8,
        segments: 6,
        segment_bytes: 100 << 20,
        batch_bytes: 65_000,
        kind: Kind::PlainAndIdempotent,
    },
    Shape {
        name: "one-partition, 4.8 GB",
        partitions: 1,
        segments: 48,
        segment_bytes: 100 << 20,
        batch_bytes: 65_000,
        kind: Kind::PlainAndIdempotent,
    },
];

/// One measured run.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    wall_ms: f64,
    cpu_ms: f64,
    peak_mb: f64,
    bytes: f64,
}

fn main() -> Result<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--child") {
        return child(&args[1..]);
    }
    let mut take = |name: &str| -> Option<String> {
        let at = args.iter().position(|arg| arg == name)?;
        args.remove(at);
        (at < args.len()).then(|| args.remove(at))
    };
    let rounds: usize = take("--rounds").map_or(Ok(5), |v| v.parse())?;
    let threads: usize = take("--threads").map_or(Ok(2), |v| v.parse())?;
    let mut data = Vec::new();
    while let Some(dir) = take("--data") {
        data.push(PathBuf::from(dir));
    }
    let scratch =
        tempfile::tempdir_in(std::env::var_os("TRIMTAB_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from))?;
    let wanted = |name: &str| (args.is_empty() && data.is_empty()) || args.iter().any(|arg| arg == name);
    println!("shape | threads | ours wall | ours CPU | Kafka wall | Kafka CPU | wall ratio | CPU ratio | peak memory");
    for dir in &data {
        against_kafka(&dir.display().to_string(), dir, &scratch.path().join("work"), rounds, threads)?;
    }
    for shape in SHAPES.iter().filter(|shape| wanted(shape.name)) {
        let pristine = made(shape, scratch.path())?;
        against_kafka(shape.name, &pristine, &scratch.path().join("work"), rounds, threads)?;
        if shape.name == "few-large" {
            against_the_floor(&pristine, rounds, threads)?;
        }
        each_thread_count(shape.name, &pristine, &scratch.path().join("work"), rounds)?;
        fs::remove_dir_all(&pristine)?;
    }
    if ["speed-up", "kill", "memory"].into_iter().any(wanted) {
        for shape in &LARGE {
            let pristine = made(shape, scratch.path())?;
            if wanted("speed-up") {
                speed_up(shape.name, &pristine, rounds)?;
            }
            if wanted("kill") {
                killed_at_half(shape.name, &pristine, &scratch.path().join("work"), rounds)?;
            }
            fs::remove_dir_all(&pristine)?;
        }
    }
    Ok(())
}

fn made(shape: &Shape, scratch: &Path) -> Result<PathBuf> {
    let dir = scratch.join(shape.name.replace([' ', ',', '.'], "-"));
    fs::create_dir(&dir)?;
    generate(shape, &dir)?;
    // A broker has written the indexes of rolled segments; a recovery of a copy gives them, the copy is thrown away.
    let copy = dir.with_extension("indexed");
    twin(&dir, &copy)?;
    run_child(&copy, 2, "recover")?;
    for (partition, file) in files(&copy)? {
        if file.ends_with(".index") || file.ends_with(".timeindex") {
            let (from, to) = (copy.join(&partition).join(&file), dir.join(&partition).join(&file));
            if fs::metadata(&to)?.len() == 0 {
                fs::copy(from, to)?;
            }
        }
    }
    fs::remove_dir_all(&copy)?;
    flush(&dir)?;
    Ok(dir)
}

fn files(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let folder = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && folder != "__cluster_metadata-0" {
            for file in fs::read_dir(entry.path())? {
                out.push((folder.clone(), file?.file_name().to_string_lossy().into_owned()));
            }
        }
    }
    Ok(out)
}

fn flush(dir: &Path) -> Result<()> {
    rustix::fs::syncfs(File::open(dir)?).context("flushing")
}

/// A copy whose logs are the same files: nobody changes an undamaged log, and both runs then share its cached pages.
fn twin(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if !entry.file_type()?.is_dir() {
            fs::copy(&path, &target)?;
            continue;
        }
        fs::create_dir(&target)?;
        for file in fs::read_dir(&path)? {
            let (path, name) = (file.as_ref().map(|f| f.path()).unwrap_or_default(), file?.file_name());
            let new = target.join(&name);
            let metadata = fs::metadata(&path)?;
            let size = metadata.len();
            if name.to_string_lossy().ends_with(".log") {
                fs::hard_link(&path, &new)?;
            } else if metadata.blocks() * 512 < size {
                // A preallocated index: what there is lies at its beginning.
                let mut head = vec![0; usize::try_from(metadata.blocks() * 512)?];
                File::open(&path)?.read_exact_at(&mut head, 0)?;
                let file = File::create(&new)?;
                file.write_all_at(&head, 0)?;
                file.set_len(size)?;
            } else {
                fs::copy(&path, &new)?;
            }
        }
    }
    flush(to)
}

/// What a child process does, and how it tells.
fn child(args: &[String]) -> Result<()> {
    let [dir, threads, mode] = args else { bail!("--child DIR THREADS MODE") };
    let threads: usize = threads.parse()?;
    let dir = PathBuf::from(dir);
    let started = Instant::now();
    let bytes = if mode == "floor" { read_all(&dir, threads)? } else { recover_once(&dir, threads, mode == "check")? };
    let wall = started.elapsed().as_secs_f64() * 1000.0;
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // Clock ticks of user and system time; 100 a second on Linux.
    let ticks: f64 = fields.get(11).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0)
        + fields.get(12).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    println!("{wall} {} {} {bytes}", ticks * 10.0, peak.unwrap_or(0.0) / 1024.0);
    Ok(())
}

fn recover_once(dir: &Path, threads: usize, check: bool) -> Result<u64> {
    let options = Options {
        dirs: vec![dir.to_path_buf()],
        optional_dirs: Vec::new(),
        metadata_dir: None,
        settings: Settings::new(Properties::default()),
        threads,
        check,
        now_ms: Some(NOW_MS),
        cut: CutPolicy::Beside,
        repair_checkpoints: false,
        truncate_overflow: false,
    };
    let report = recover(&options, &Stop::default(), &|_| ())?;
    ensure!(report.outcome == Outcome::Recovered, "{:?} {:?}", report.outcome, report.errors);
    Ok(report.dirs[0].bytes_read)
}

/// One `pread` and CRC-32C pass over the same logs.
fn read_all(dir: &Path, threads: usize) -> Result<u64> {
    let mut logs: Vec<PathBuf> =
        files(dir)?.into_iter().filter(|f| f.1.ends_with(".log")).map(|f| dir.join(f.0).join(f.1)).collect();
    logs.sort();
    let next = AtomicUsize::new(0);
    let totals: Vec<Result<u64>> = std::thread::scope(|scope| {
        let work = || -> Result<u64> {
            let mut buffer = vec![0; 512 * 1024];
            let mut total = 0;
            while let Some(log) = logs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let file = File::open(log)?;
                let (mut at, mut crc) = (0, 0);
                loop {
                    let n = file.read_at(&mut buffer, at)?;
                    if n == 0 {
                        break;
                    }
                    crc = crc32c::crc32c_append(crc, &buffer[..n]);
                    at += n as u64;
                }
                std::hint::black_box(crc);
                total += at;
            }
            Ok(total)
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| bail!("a reader died"))).collect()
    });
    totals.into_iter().sum()
}

fn start_child(dir: &Path, threads: usize, mode: &str) -> Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg(dir).arg(threads.to_string()).arg(mode).stdout(Stdio::piped());
    command.spawn().context("starting a child")
}

fn run_child(dir: &Path, threads: usize, mode: &str) -> Result<Sample> {
    let output = start_child(dir, threads, mode)?.wait_with_output()?;
    ensure!(output.status.success(), "the child failed on {}", dir.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [wall_ms, cpu_ms, peak_mb, bytes] = numbers[..] else { bail!("the child said {text}") };
    Ok(Sample { wall_ms, cpu_ms, peak_mb, bytes })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn of(samples: &[Sample], what: fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(what).collect())
}

/// Both on twins, alternating which comes first; the results must be equal.
fn against_kafka(name: &str, pristine: &Path, work: &Path, rounds: usize, threads: usize) -> Result<()> {
    let mut loader = Loader::start()?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let other = work.with_extension("kafka");
    for round in 0..=rounds {
        twin(pristine, work)?;
        twin(pristine, &other)?;
        read_all(work, 2)?;
        for first in [true, false] {
            if first == (round % 2 == 0) {
                let sample = run_child(work, threads, "recover")?;
                // The first round warms the Java machine and the caches; it does not count.
                if round > 0 {
                    ours.push(sample);
                }
            } else {
                let load =
                    Load { dirs: vec![&other], threads, now_ms: NOW_MS, defaults: Vec::new(), topics: Vec::new() };
                let Loaded::Well { ms, cpu_ms } = loader.load(&load)? else { bail!("Kafka does not load {name}") };
                if round > 0 {
                    theirs.push(Sample { wall_ms: ms as f64, cpu_ms: cpu_ms as f64, ..Sample::default() });
                }
            }
        }
        if round == 0 {
            same(work, &other).with_context(|| format!("comparing the results for {name}"))?;
        }
    }
    let (wall, cpu, peak) = (of(&ours, |s| s.wall_ms), of(&ours, |s| s.cpu_ms), of(&ours, |s| s.peak_mb));
    let (kafka_wall, kafka_cpu) = (of(&theirs, |s| s.wall_ms), of(&theirs, |s| s.cpu_ms));
    println!(
        "{name} | {threads} | {wall:.0} ms | {cpu:.0} ms | {kafka_wall:.0} ms | {kafka_cpu:.0} ms | {:.3} | {:.3} | {peak:.1} MB",
        wall / kafka_wall,
        cpu / kafka_cpu,
    );
    fs::remove_dir_all(work)?;
    fs::remove_dir_all(&other)?;
    Ok(())
}

/// Every file but logs (which are the same files) and unordered checkpoints.
fn same(a: &Path, b: &Path) -> Result<()> {
    let (mut left, mut right) = (files(a)?, files(b)?);
    left.sort();
    right.sort();
    ensure!(left == right, "different files");
    for (folder, file) in left.iter().filter(|f| !f.1.ends_with(".log")) {
        let path = Path::new(folder).join(file);
        ensure!(fs::read(a.join(&path))? == fs::read(b.join(&path))?, "{} differs", path.display());
    }
    Ok(())
}

fn against_the_floor(pristine: &Path, rounds: usize, threads: usize) -> Result<()> {
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        for first in [true, false] {
            let verify = first == (round % 2 == 0);
            let sample = run_child(pristine, threads, if verify { "check" } else { "floor" })?;
            if round > 0 {
                if verify { &mut ours } else { &mut floor }.push(sample);
            }
        }
    }
    let rate = |samples: &[Sample]| of(samples, |s| s.bytes / s.wall_ms / 1e6);
    let cpu = |samples: &[Sample]| of(samples, |s| s.cpu_ms);
    println!(
        "few-large, --check beside one pread + CRC-32C pass, {threads} threads: {:.2} and {:.2} GB/s, ratio {:.3}; CPU {:.0} and {:.0} ms",
        rate(&ours),
        rate(&floor),
        rate(&ours) / rate(&floor),
        cpu(&ours),
        cpu(&floor),
    );
    Ok(())
}

fn each_thread_count(name: &str, pristine: &Path, work: &Path, rounds: usize) -> Result<()> {
    let counts = [1, 2, 4, 8];
    let mut samples = vec![Vec::new(); counts.len()];
    for _ in 0..rounds.min(3) {
        for (count, samples) in counts.iter().zip(&mut samples) {
            twin(pristine, work)?;
            samples.push(run_child(work, *count, "recover")?);
        }
    }
    let walls: Vec<String> =
        counts.iter().zip(&samples).map(|(count, s)| format!("{count}: {:.0} ms", of(s, |s| s.wall_ms))).collect();
    println!("{name}, whole recovery by threads: {}", walls.join(", "));
    fs::remove_dir_all(work)?;
    Ok(())
}

fn speed_up(name: &str, pristine: &Path, rounds: usize) -> Result<()> {
    let mut by_threads = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for threads in if round % 2 == 0 { [1, 2] } else { [2, 1] } {
            let sample = run_child(pristine, threads, "check")?;
            if round > 0 {
                by_threads[threads - 1].push(sample);
            }
        }
    }
    let (one, two) = (of(&by_threads[0], |s| s.wall_ms), of(&by_threads[1], |s| s.wall_ms));
    let peak = of(&by_threads[1], |s| s.peak_mb);
    println!(
        "{name}, verifying with 1 and 2 threads: {one:.0} and {two:.0} ms, speed-up {:.2}; peak memory {peak:.1} MB",
        one / two
    );
    Ok(())
}

fn killed_at_half(name: &str, pristine: &Path, work: &Path, rounds: usize) -> Result<()> {
    let (mut full, mut second) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        twin(pristine, work)?;
        read_all(work, 2)?;
        let whole = run_child(work, 1, "recover")?;
        full.push(whole);
        twin(pristine, work)?;
        let mut child = start_child(work, 1, "recover")?;
        std::thread::sleep(Duration::from_secs_f64(whole.wall_ms / 2000.0));
        child.kill()?;
        child.wait()?;
        second.push(run_child(work, 1, "recover")?);
    }
    let (full, second) = (of(&full, |s| s.wall_ms), of(&second, |s| s.wall_ms));
    println!(
        "{name}, killed at half and run again (1 thread): {second:.0} ms of {full:.0} ms, ratio {:.2}",
        second / full
    );
    fs::remove_dir_all(work)?;
    Ok(())
}
