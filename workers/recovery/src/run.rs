//! Recovers log dirs from beginning to end in this process.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rayon::prelude::*;

use crate::aside::{Aside, CutPolicy};
use crate::config::Settings;
use crate::control::{Control, Stop};
use crate::discover::{FolderKind, LogDir, PartitionFolder};
use crate::error::{Error, Result};
use crate::finish;
use crate::journal::{Journal, Remembered};
use crate::lock::DirLock;
use crate::metadata::{ClusterSettings, METADATA_FOLDER};
use crate::plan::{PartitionPlan, PlanInput};
use crate::report::{DirProgress, DirReport, DirState, PartitionReport, PartitionState, RunReport};
use crate::segment::{Here, Verifier};
use crate::spool::FileSpool;
use crate::work::{Counters, DirRun, Job, Rules, Store, Task, folder_state, inputs, state_of, work};

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
const PHASES: [&str; 4] = ["plan", "verify", "flush", "done"];

/// What to recover and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Log dirs. One that does not exist is an error.
    pub dirs: Vec<PathBuf>,
    /// Log dirs out of a configuration: one that does not exist has nothing to be recovered.
    pub optional_dirs: Vec<PathBuf>,
    /// The folder that holds the KRaft metadata log, if it is in none of the log dirs.
    pub metadata_dir: Option<PathBuf>,
    /// Settings from flags and `server.properties`.
    pub settings: Settings,
    /// Threads; at least one.
    pub threads: usize,
    /// Read only, and tell.
    pub check: bool,
    /// The clock, milliseconds since 1970; the system's when absent.
    pub now_ms: Option<i64>,
    /// Where cut data goes.
    pub cut: CutPolicy,
    /// Treat unreadable checkpoints as absent.
    pub repair_checkpoints: bool,
    /// Cut at an offset that does not fit its segment.
    pub truncate_overflow: bool,
}

/// Recovers the log dirs and reports. `observer` is called at least each second with the progress of every dir, from a
/// thread of its own. When `stop` says so, the run ends at its next read.
///
/// # Errors
/// Only when the options themselves cannot be used; everything else is in the report.
pub fn recover(options: &Options, stop: &Stop, observer: &(dyn Fn(&[DirProgress]) + Sync)) -> Result<RunReport> {
    recover_with(options, stop, observer, &Here)
}

/// As [`recover`], with segments verified by `verifier`, which may have somebody else do it. Only this process writes into the
/// log dirs.
///
/// # Errors
/// As [`recover`].
pub fn recover_with(
    options: &Options,
    stop: &Stop,
    observer: &(dyn Fn(&[DirProgress]) + Sync),
    verifier: &dyn Verifier,
) -> Result<RunReport> {
    let started = Instant::now();
    let threads = options.threads.max(1);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("recovery-{i}"))
        .build()
        .map_err(|error| Error::setting(format!("{threads} threads"), error.to_string()))?;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now_ms = options.now_ms.unwrap_or(i64::try_from(clock).unwrap_or(i64::MAX));
    let mut reports = Vec::new();
    let mut locks = Vec::new();
    let mut opened = Vec::new();
    for dir in distinct(options)? {
        match open_dir(&dir, options) {
            Ok(Some((lock, found))) => {
                locks.extend(lock);
                opened.push(found);
            }
            Ok(None) => reports.push(blank(&dir, DirState::Clean, vec!["no broker has used it yet".to_owned()])),
            Err(error) => reports.push(failed_dir(&dir, &error)),
        }
    }
    let settings = with_metadata(options, &opened)?;
    let rules = Rules {
        now_ms,
        now_is_given: options.now_ms.is_some(),
        producer_expiration_ms: settings.producer_expiration_ms()?,
        truncate_overflow: options.truncate_overflow,
        check: options.check,
    };
    let duplicates = duplicates(&opened);
    let mut runs = Vec::new();
    for dir in opened {
        if dir.clean {
            reports.push(blank(&dir.path, DirState::Clean, dir.warnings.clone()));
            continue;
        }
        let path = dir.path.clone();
        match start_dir(dir, options, stop) {
            Ok(run) => runs.push(run),
            Err(error) => reports.push(failed_dir(&path, &error)),
        }
    }
    let ours = Ours { options, settings: &settings, rules: &rules, duplicates: &duplicates, verifier };
    reports.extend(observed(&runs, observer, || ours.recover_dirs(&runs, &pool, threads)));
    for run in runs {
        finish_store(run, options.check, &mut reports);
    }
    drop(locks);
    reports.sort_by(|a, b| a.path.cmp(&b.path));
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(finish::summary(reports, options.check, threads, now_ms, duration_ms))
}

fn distinct(options: &Options) -> Result<Vec<PathBuf>> {
    let mut seen = HashMap::new();
    let mut out = Vec::new();
    for (required, dir) in
        options.dirs.iter().map(|dir| (true, dir)).chain(options.optional_dirs.iter().map(|dir| (false, dir)))
    {
        match std::fs::canonicalize(dir) {
            Ok(real) => {
                if seen.insert(real, ()).is_none() {
                    out.push(dir.clone());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => out.push(dir.clone()),
            Err(error) => return Err(Error::io("find log dir", dir)(error)),
        }
    }
    if out.is_empty() {
        return Err(Error::setting("no log dir", "name at least one, or a --properties file with log.dirs"));
    }
    Ok(out)
}

/// Whose owner and mode our files at the top of a log dir get.
pub(crate) fn model_of(dir: &Path) -> Option<Metadata> {
    std::fs::metadata(dir.join("meta.properties")).or_else(|_| std::fs::metadata(dir)).ok()
}

type Opened = (Option<DirLock>, LogDir);

fn open_dir(dir: &Path, options: &Options) -> Result<Option<Opened>> {
    if !dir.exists() {
        return Ok(None);
    }
    if !dir.join("meta.properties").exists() {
        // No broker has used it. If it holds partitions it is refused, else there is nothing to do and nothing to lock.
        return LogDir::open(dir, options.repair_checkpoints).map(|_| None);
    }
    let lock = if options.check {
        DirLock::probe(dir)?;
        None
    } else {
        Some(DirLock::take(dir, model_of(dir).as_ref())?)
    };
    Ok(Some((lock, LogDir::open(dir, options.repair_checkpoints)?)))
}

fn start_dir(dir: LogDir, options: &Options, stop: &Stop) -> Result<DirRun> {
    let (store, remembered) = if options.check {
        (Store::Scratch(FileSpool::unnamed()?), Remembered::default())
    } else {
        let (journal, remembered) = Journal::open(&dir.path, model_of(&dir.path).as_ref())?;
        (Store::Journal(journal), remembered)
    };
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let name = format!("{started}-{}", std::process::id());
    let aside = Aside::new(&options.cut, &dir.path, &name);
    Ok(DirRun { dir, store, remembered, aside, control: Control::new(stop), counters: Counters::default() })
}

/// Adds what the KRaft metadata says about topics and brokers.
fn with_metadata(options: &Options, dirs: &[LogDir]) -> Result<Settings> {
    let mut settings = options.settings.clone();
    let node_id = dirs.iter().map(|dir| dir.node_id.as_str()).find(|id| !id.is_empty()).unwrap_or_default();
    let candidates = options.metadata_dir.iter().chain(dirs.iter().map(|dir| &dir.path));
    if let Some(folder) = candidates.map(|dir| dir.join(METADATA_FOLDER)).find(|folder| folder.is_dir()) {
        settings.set_cluster(ClusterSettings::read(&folder, node_id)?);
    }
    Ok(settings)
}

/// Partitions that are current in more than one log dir; a broker does not start on them.
fn duplicates(dirs: &[LogDir]) -> BTreeMap<(String, i32), usize> {
    let mut counts = BTreeMap::new();
    let folders = dirs.iter().flat_map(|dir| &dir.folders).filter(|folder| folder.kind == FolderKind::Current);
    for folder in folders {
        *counts.entry((folder.topic.clone(), folder.partition)).or_insert(0) += 1;
    }
    counts.retain(|_, count| *count > 1);
    counts
}

fn blank(path: &Path, state: DirState, warnings: Vec<String>) -> DirReport {
    DirReport {
        path: path.to_path_buf(),
        state,
        partitions: Vec::new(),
        bytes_read: 0,
        segments_remembered: 0,
        cut_folder: None,
        warnings,
        errors: Vec::new(),
    }
}

fn failed_dir(path: &Path, error: &Error) -> DirReport {
    let state = if error.is_refusal() { DirState::Refused } else { DirState::Failed };
    DirReport { errors: vec![error.to_string()], ..blank(path, state, Vec::new()) }
}

/// Runs `act` while a thread of its own tells the progress.
fn observed<T: Send>(runs: &[DirRun], observer: &(dyn Fn(&[DirProgress]) + Sync), act: impl FnOnce() -> T + Send) -> T {
    let started = Instant::now();
    let tell = || {
        let progress: Vec<_> = runs.iter().map(|run| progress(run, started)).collect();
        if !progress.is_empty() {
            observer(&progress);
        }
    };
    let (done, wait) = mpsc::channel::<()>();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Err(mpsc::RecvTimeoutError::Timeout) = wait.recv_timeout(PROGRESS_EVERY) {
                tell();
            }
            drop(wait);
        });
        let result = act();
        drop(done);
        result
    });
    tell();
    result
}

fn progress(run: &DirRun, started: Instant) -> DirProgress {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &run.counters;
    let (read, total) = (run.control.bytes(), get(&counters.bytes_total));
    let bytes = (read + get(&counters.bytes_remembered)).min(total);
    let seconds = started.elapsed().as_secs_f64().max(0.001);
    let rate = read as f64 / seconds;
    DirProgress {
        path: run.dir.path.clone(),
        phase: PHASES[counters.phase.load(Ordering::Relaxed).min(PHASES.len() - 1)],
        bytes: (bytes, total),
        segments: (get(&counters.segments), get(&counters.segments_total)),
        partitions: (get(&counters.partitions), get(&counters.partitions_total)),
        bytes_per_second: rate as u64,
        seconds_left: (rate >= 1.0).then(|| ((total - bytes) as f64 / rate).ceil() as u64),
    }
}

/// What planning a partition came to.
enum Planned<'a> {
    Task(Box<Task<'a>>),
    Done(Box<PartitionReport>),
}

struct Ours<'a> {
    options: &'a Options,
    settings: &'a Settings,
    rules: &'a Rules,
    duplicates: &'a BTreeMap<(String, i32), usize>,
    verifier: &'a dyn Verifier,
}

impl Ours<'_> {
    fn recover_dirs(&self, runs: &[DirRun], pool: &rayon::ThreadPool, threads: usize) -> Vec<DirReport> {
        let all: Vec<_> =
            runs.iter().enumerate().flat_map(|(i, run)| run.dir.folders.iter().map(move |f| (i, f))).collect();
        for run in runs {
            run.counters.partitions_total.store(run.dir.folders.len() as u64, Ordering::Relaxed);
        }
        let planned: Vec<_> = pool.install(|| all.par_iter().map(|(i, folder)| self.plan(&runs[*i], folder)).collect());
        let mut reports: Vec<Vec<PartitionReport>> = runs.iter().map(|_| Vec::new()).collect();
        let (mut tasks, mut owners, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
        for ((i, _), planned) in all.iter().zip(planned) {
            match planned {
                Planned::Done(report) => reports[*i].push(*report),
                Planned::Task(task) => {
                    jobs.extend::<Vec<Job>>(task.jobs(tasks.len()));
                    tasks.push(*task);
                    owners.push(*i);
                }
            }
        }
        set_phase(runs, 1);
        let done = work(threads, self.verifier, &tasks, jobs);
        for (report, owner) in done.into_iter().zip(owners) {
            reports[owner].push(report);
        }
        drop(tasks);
        set_phase(runs, 2);
        let together: Vec<_> = runs.iter().zip(reports).collect();
        let out = pool.install(|| together.into_par_iter().map(|(run, r)| self.close(run, r)).collect());
        set_phase(runs, 3);
        out
    }

    fn plan<'a>(&'a self, run: &'a DirRun, folder: &'a PartitionFolder) -> Planned<'a> {
        match self.try_plan(run, folder) {
            Ok(planned) => planned,
            Err(error) => Planned::Done(Box::new(with_error(empty_report(folder), &error))),
        }
    }

    fn try_plan<'a>(&'a self, run: &'a DirRun, folder: &'a PartitionFolder) -> Result<Planned<'a>> {
        let path = run.dir.path.join(&folder.name);
        if folder.kind == FolderKind::Delete {
            let report = PartitionReport { state: PartitionState::Skipped, ..empty_report(folder) };
            return Ok(Planned::Done(Box::new(report)));
        }
        run.control.check().map_err(|error| crate::segment::read_error(error, &path))?;
        self.check_place(run, folder, &path)?;
        let key = (folder.topic.clone(), folder.partition);
        let input = PlanInput {
            log_dir: &run.dir.path,
            folder,
            settings: self.settings.topic(&folder.topic)?,
            recovery_point: run.dir.recovery_points.get(&key).copied().unwrap_or(0),
            log_start: run.dir.log_starts.get(&key).copied().unwrap_or(0),
            repair_checkpoints: self.options.repair_checkpoints,
        };
        let inputs = inputs(&input.settings, self.rules);
        if let Some(entry) = run.remembered.partitions.get(&folder.name)
            && entry.inputs == inputs
            && entry.fits(&input)
            && entry.folder == folder_state(&path, &entry.pending)?
        {
            if !self.options.check {
                crate::repair::finish_pending(&path, &entry.pending)?;
            }
            run.counters.partitions.fetch_add(1, Ordering::Relaxed);
            let verified = entry.report.unflushed_segments + entry.report.early.len();
            run.counters.segments_remembered.fetch_add(verified as u64, Ordering::Relaxed);
            return Ok(Planned::Done(Box::new(PartitionReport { resumed: true, ..entry.report.clone() })));
        }
        let plan = PartitionPlan::make(&input, &run.control)?;
        Ok(Planned::Task(Box::new(Task::new(run, self.rules, plan, inputs)?)))
    }

    fn check_place(&self, run: &DirRun, folder: &PartitionFolder, path: &Path) -> Result<()> {
        let twice = |kind| {
            let same =
                |f: &&PartitionFolder| f.topic == folder.topic && f.partition == folder.partition && f.kind == kind;
            run.dir.folders.iter().any(|other| same(&other) && other.name != folder.name)
        };
        if folder.kind == FolderKind::Future && twice(FolderKind::Current) {
            return Err(Error::refused(
                path,
                "a future replica beside the current one in the same log dir, on which a broker does not start",
                "remove the future folder: the broker will move the replica again",
            ));
        }
        if folder.kind == FolderKind::Current && self.duplicates.contains_key(&(folder.topic.clone(), folder.partition))
        {
            return Err(Error::refused(
                path,
                "the same partition lies in another log dir as well, on which a broker does not start",
                "find out which of the two is the right one and move the other away",
            ));
        }
        Ok(())
    }

    /// Flushes, writes checkpoints and marker, if every partition of the dir is done.
    fn close(&self, run: &DirRun, mut partitions: Vec<PartitionReport>) -> DirReport {
        partitions.sort_by(|a, b| a.folder.cmp(&b.folder));
        let mut report = blank(&run.dir.path, DirState::Recovered, run.dir.warnings.clone());
        if !self.settings.knows_topics() {
            report.warnings.push(
                "topic settings come from flags, properties and defaults only: no KRaft metadata was found".to_owned(),
            );
        }
        report.state = finish::dir_state(&partitions);
        if report.state == DirState::Recovered {
            if self.options.check {
                report.state = DirState::WouldRecover;
            } else if let Err(error) = finish::seal(&run.dir, &partitions, |topic| {
                self.settings.topic(topic).is_ok_and(|settings| settings.remote_storage)
            }) {
                report.state = DirState::Failed;
                report.errors.push(error.to_string());
            }
        }
        report.partitions = partitions;
        report.bytes_read = run.control.bytes();
        report.segments_remembered = run.counters.segments_remembered.load(Ordering::Relaxed);
        report.cut_folder = run.aside.folder();
        report
    }
}

fn set_phase(runs: &[DirRun], phase: usize) {
    for run in runs {
        run.counters.phase.store(phase, Ordering::Relaxed);
    }
}

/// The journal of a finished log dir goes; that of another stays for the next run.
fn finish_store(run: DirRun, check: bool, reports: &mut [DirReport]) {
    let Some(report) = reports.iter_mut().find(|report| report.path == run.dir.path) else {
        return;
    };
    if check || report.state != DirState::Recovered {
        return;
    }
    if let Store::Journal(journal) = run.store
        && let Err(error) = journal.remove()
    {
        report.warnings.push(error.to_string());
    }
}

fn with_error(mut report: PartitionReport, error: &Error) -> PartitionReport {
    report.state = state_of(error);
    report.errors.push(error.to_string());
    report
}

fn empty_report(folder: &PartitionFolder) -> PartitionReport {
    PartitionReport {
        folder: folder.name.clone(),
        topic: folder.topic.clone(),
        partition: folder.partition,
        kind: folder.kind,
        state: PartitionState::Recovered,
        log_start: 0,
        log_end: 0,
        first_segment: 0,
        recovery_point: 0,
        segments: 0,
        unflushed_segments: 0,
        early: Vec::new(),
        producers: 0,
        cuts: Vec::new(),
        removed: Vec::new(),
        files_written: 0,
        resumed: false,
        unverified: Vec::new(),
        warnings: Vec::new(),
        errors: Vec::new(),
    }
}
