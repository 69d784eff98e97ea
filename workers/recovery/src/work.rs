//! The jobs of a run: segments in any order on a fixed pool, each partition folded and repaired by whoever verifies its
//! last segment.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{Span, field, info_span};

use crate::aside::Aside;
use crate::change::{FoldInput, PartitionChange, PreparedReplay, Verified};
use crate::control::Control;
use crate::discover::LogDir;
use crate::error::{Error, Result};
use crate::fold::fold_partition;
use crate::journal::{Journal, PartitionEntry, Remembered};
use crate::plan::{PartitionPlan, PlannedIndex};
use crate::producers::read_snapshot;
use crate::replay::{OffsetIndex, Replayed, TrustedSegment};
use crate::report::{CutReport, PartitionReport, PartitionState, RemovedReport};
use crate::segment::{FileIdentity, SegmentJob, SegmentReport, Verifier};
use crate::spool::{FileSpool, Spool};

/// Segments above this size are started first, so that no thread is left alone with a large one at the end.
const LARGE_SEGMENT: u64 = 16 << 20;

/// Where a log dir's intermediate results go.
#[derive(Debug)]
pub(crate) enum Store {
    Journal(Journal),
    Scratch(FileSpool),
}

impl Store {
    pub(crate) fn spool(&self) -> &dyn Spool {
        match self {
            Self::Journal(journal) => journal,
            Self::Scratch(spool) => spool,
        }
    }

    fn journal(&self) -> Option<&Journal> {
        match self {
            Self::Journal(journal) => Some(journal),
            Self::Scratch(_) => None,
        }
    }
}

/// A log dir that is being recovered.
#[derive(Debug)]
pub(crate) struct DirRun {
    pub(crate) dir: LogDir,
    pub(crate) store: Store,
    pub(crate) remembered: Remembered,
    pub(crate) aside: Aside,
    pub(crate) control: Control,
    pub(crate) counters: Counters,
}

/// What progress is made of.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_total: AtomicU64,
    pub(crate) bytes_remembered: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) segments_total: AtomicU64,
    pub(crate) segments_remembered: AtomicU64,
    pub(crate) partitions: AtomicU64,
    pub(crate) partitions_total: AtomicU64,
    pub(crate) phase: AtomicUsize,
}

/// What applies to every partition of a run.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) now_ms: i64,
    pub(crate) now_is_given: bool,
    pub(crate) producer_expiration_ms: i64,
    pub(crate) truncate_overflow: bool,
    pub(crate) check: bool,
}

/// One partition on its way.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    run: &'a DirRun,
    rules: &'a Rules,
    pub(crate) plan: PartitionPlan,
    inputs: String,
    remaining: AtomicUsize,
    /// Replays that the fold will probably want.
    expected: Vec<(i64, i64)>,
    segments: Mutex<HashMap<i64, SegmentReport>>,
    unverified: Mutex<Vec<i64>>,
    replays: Mutex<HashMap<i64, (i64, Option<Replayed>)>>,
    errors: Mutex<Vec<Error>>,
    /// The first span of the partition's trace, until it is done.
    span: Mutex<Span>,
}

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Job {
    Verify {
        task: usize,
        job: SegmentJob,
        size: u64,
    },
    Replay {
        task: usize,
        base: i64,
        from: i64,
    },
    /// Nothing to read: only to be folded.
    Fold {
        task: usize,
    },
}

impl Job {
    fn size(&self) -> u64 {
        match self {
            Self::Verify { size, .. } => *size,
            _ => 0,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a partition's result depends on beside its files.
pub(crate) fn inputs(plan_inputs: &impl std::fmt::Debug, rules: &Rules) -> String {
    let now = rules.now_is_given.then_some(rules.now_ms);
    format!("{plan_inputs:?} {now:?} {} {}", rules.producer_expiration_ms, rules.truncate_overflow)
}

/// A checksum over names, sizes, inodes and times of a folder's files, as they are once `pending` files (temporary and
/// final names) have their names. Equal means untouched.
pub(crate) fn folder_state(path: &Path, pending: &[(String, String)]) -> Result<u32> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(Error::io("list partition", path))? {
        let entry = entry.map_err(Error::io("list partition", path))?;
        let m = entry.metadata().map_err(Error::io("look at", &entry.path()))?;
        let state = format!("{} {} {} {}", m.len(), m.ino(), m.mtime(), m.mtime_nsec());
        files.insert(entry.file_name().to_string_lossy().into_owned(), state);
    }
    for (temporary, name) in pending {
        if let Some(state) = files.remove(temporary) {
            files.insert(name.clone(), state);
        }
    }
    Ok(files.iter().fold(0, |crc, (name, state)| {
        crc32c::crc32c_append(crc32c::crc32c_append(crc, name.as_bytes()), state.as_bytes())
    }))
}

/// Flushed segments whose producers the fold will want to read, and from which offset: those between the newest
/// usable snapshot and the first segment that is recovered, and those between two recovered ones. If the guess is
/// wrong the fold reads what it needs itself.
fn expected_replays(plan: &PartitionPlan) -> Result<Vec<(i64, i64)>> {
    let mut out = Vec::new();
    let Some(first) = plan.segments.iter().find(|segment| segment.verify).map(|segment| segment.base) else {
        return Ok(out);
    };
    let mut end = plan.log_start;
    for (offset, name) in plan.snapshots.iter().rev().filter(|entry| *entry.0 <= first && *entry.0 > plan.log_start) {
        if read_snapshot(&plan.path.join(plan.present_name(name)), |_| ())? {
            end = *offset;
            break;
        }
    }
    let begin = plan.segments.iter().rposition(|segment| segment.base <= end).unwrap_or(0);
    for segment in &plan.segments[begin..] {
        if segment.verify {
            end = i64::MIN;
        } else if segment.base < first || end == i64::MIN {
            out.push((segment.base, segment.base.max(end).max(plan.log_start)));
        }
    }
    // The last one before a recovered segment is searched for its end as well, which only the fold knows.
    Ok(out)
}

impl<'a> Task<'a> {
    pub(crate) fn new(run: &'a DirRun, rules: &'a Rules, plan: PartitionPlan, inputs: String) -> Result<Self> {
        let expected = expected_replays(&plan)?;
        let span = info_span!(
            parent: None,
            "recover partition",
            trimtab.folder = plan.folder.name,
            trimtab.log_dir = %run.dir.path.display(),
            trimtab.recovery_point = plan.recovery_point,
            trimtab.segments = plan.segments.iter().filter(|segment| segment.verify).count(),
            trimtab.log_end = field::Empty,
            trimtab.state = field::Empty,
        );
        Ok(Self {
            run,
            rules,
            plan,
            inputs,
            remaining: AtomicUsize::new(0),
            expected,
            segments: Mutex::default(),
            unverified: Mutex::default(),
            replays: Mutex::default(),
            errors: Mutex::default(),
            span: Mutex::new(span),
        })
    }

    /// The jobs of this partition; counts them.
    pub(crate) fn jobs(&self, task: usize) -> Vec<Job> {
        let mut jobs = Vec::new();
        for job in self.plan.jobs() {
            let size = self.plan.segments.iter().find(|s| s.base == job.base_offset).map_or(0, |s| s.size);
            jobs.push(Job::Verify { task, job, size });
        }
        let counters = &self.run.counters;
        counters.segments_total.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        counters.bytes_total.fetch_add(jobs.iter().map(Job::size).sum(), Ordering::Relaxed);
        jobs.extend(self.expected.iter().map(|&(base, from)| Job::Replay { task, base, from }));
        if jobs.is_empty() {
            jobs.push(Job::Fold { task });
        }
        self.remaining.store(jobs.len(), Ordering::Relaxed);
        jobs
    }

    fn fail(&self, error: Error) {
        lock(&self.errors).push(error);
    }

    fn verify(&self, job: &SegmentJob, verifier: &dyn Verifier) -> Result<()> {
        let counters = &self.run.counters;
        if let Some(report) = self.run.remembered.segments.get(job) {
            let metadata = std::fs::metadata(&job.path).map_err(Error::io("look at segment", &job.path))?;
            if FileIdentity::of(&metadata) == report.identity {
                counters.bytes_remembered.fetch_add(report.identity.size, Ordering::Relaxed);
                counters.segments_remembered.fetch_add(1, Ordering::Relaxed);
                counters.segments.fetch_add(1, Ordering::Relaxed);
                lock(&self.segments).insert(job.base_offset, report.clone());
                return Ok(());
            }
        }
        let span = info_span!(parent: &*lock(&self.span), "verify segment", trimtab.segment = job.base_offset);
        let report = span.in_scope(|| verifier.verify(job, self.run.store.spool(), &self.run.control))?;
        if let Some(journal) = self.run.store.journal() {
            journal.segment(job, &report)?;
        }
        counters.segments.fetch_add(1, Ordering::Relaxed);
        lock(&self.segments).insert(job.base_offset, report);
        Ok(())
    }

    fn prepare_replay(&self, base: i64, from: i64) -> Result<()> {
        let Some(segment) = self.plan.segments.iter().find(|segment| segment.base == base) else {
            return Ok(());
        };
        let index = match &segment.index {
            PlannedIndex::File(name) => OffsetIndex::File(self.plan.path.join(name)),
            _ => OffsetIndex::Empty,
        };
        let path = self.plan.path.join(&segment.log);
        let trusted = TrustedSegment { path, base, size: segment.size, index };
        let found = trusted.replay(from, None, self.run.store.spool(), &self.run.control.aside())?;
        lock(&self.replays).insert(base, (from, found));
        Ok(())
    }

    /// Folds and repairs; to be called once every job is done.
    fn complete(&self, verifier: &dyn Verifier) -> PartitionReport {
        let span = std::mem::replace(&mut *lock(&self.span), Span::none());
        let report = span.in_scope(|| {
            let report = self.fold_all();
            verifier.partition_done(&self.run.dir.path, &report);
            report
        });
        span.record("trimtab.log_end", report.log_end);
        span.record("trimtab.state", field::debug(report.state));
        report
    }

    fn fold_all(&self) -> PartitionReport {
        let mut report = self.blank();
        if lock(&self.errors).is_empty()
            && let Err(error) = self.fold_and_repair(&mut report)
        {
            self.fail(error);
        }
        let mut errors = std::mem::take(&mut *lock(&self.errors));
        report.unverified = std::mem::take(&mut *lock(&self.unverified));
        report.unverified.sort_unstable();
        if !report.unverified.is_empty() {
            // One text for all of them, not one each.
            errors.retain(|error| !matches!(error, Error::Stopped(_)));
            errors.push(Error::Unfinished { why: self.run.control.stop_reason(), segments: list(&report.unverified) });
        }
        if let Some(worst) = errors.iter().map(state_of).max_by_key(|state| severity(*state)) {
            report.state = worst;
            report.errors = errors.iter().map(ToString::to_string).collect();
        }
        self.run.counters.partitions.fetch_add(1, Ordering::Relaxed);
        report
    }

    fn fold_and_repair(&self, report: &mut PartitionReport) -> Result<()> {
        let spool = self.run.store.spool();
        let verified = std::mem::take(&mut *lock(&self.segments));
        let replays = std::mem::take(&mut *lock(&self.replays));
        let input = FoldInput {
            verified: verified.into_iter().map(|(base, report)| (base, Verified { report, spool })).collect(),
            replays: replays
                .into_iter()
                .map(|(base, (from, found))| (base, PreparedReplay { from, found, spool }))
                .collect(),
            spool,
            now_ms: self.rules.now_ms,
            producer_expiration_ms: self.rules.producer_expiration_ms,
            truncate_overflow: self.rules.truncate_overflow,
        };
        let change = info_span!("fold").in_scope(|| fold_partition(&self.plan, &input, &self.run.control.aside()))?;
        describe(report, &change);
        if self.rules.check {
            return Ok(());
        }
        let _repair = info_span!("repair").entered();
        let repaired = crate::repair::apply(&self.plan, &change, &self.run.aside)?;
        report.files_written = repaired.files;
        if let Some(journal) = self.run.store.journal() {
            let folder = folder_state(&self.plan.path, &repaired.pending)?;
            journal.partition(&PartitionEntry {
                inputs: self.inputs.clone(),
                points: (self.plan.recovery_point, self.plan.log_start),
                folder,
                pending: repaired.pending.clone(),
                report: report.clone(),
            })?;
        }
        crate::repair::finish_pending(&self.plan.path, &repaired.pending)
    }

    /// A report before anything is known.
    pub(crate) fn blank(&self) -> PartitionReport {
        let plan = &self.plan;
        PartitionReport {
            folder: plan.folder.name.clone(),
            topic: plan.folder.topic.clone(),
            partition: plan.folder.partition,
            kind: plan.folder.kind,
            state: PartitionState::Recovered,
            log_start: plan.log_start,
            log_end: 0,
            first_segment: 0,
            recovery_point: plan.recovery_point,
            segments: plan.segments.len(),
            unflushed_segments: 0,
            early: plan.segments.iter().filter_map(|s| Some((s.base, s.early?))).collect(),
            producers: 0,
            cuts: Vec::new(),
            removed: Vec::new(),
            files_written: 0,
            resumed: false,
            unverified: Vec::new(),
            warnings: plan.warnings.clone(),
            errors: Vec::new(),
        }
    }
}

fn describe(report: &mut PartitionReport, change: &PartitionChange<'_>) {
    report.log_start = change.log_start;
    report.log_end = change.log_end;
    report.first_segment = change.first_segment;
    report.segments = change.segments.len() + usize::from(change.fresh.is_some());
    report.unflushed_segments = change.unflushed;
    report.producers = change.producers;
    let cuts = change.segments.iter().filter_map(|segment| Some((segment.base, segment.cut.as_ref()?)));
    report.cuts = cuts
        .map(|(segment, cut)| CutReport {
            segment,
            at_byte: cut.size_after,
            bytes: cut.size_before - cut.size_after,
            next_offset: cut.next_offset,
            why: cut.why.clone(),
        })
        .collect();
    let removed = change.removed.iter();
    report.removed =
        removed.map(|gone| RemovedReport { segment: gone.base, bytes: gone.size, why: gone.why.clone() }).collect();
}

/// The first few of many numbers, and how many more there are.
fn list(numbers: &[i64]) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(i64::to_string).collect();
    let more = numbers.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

pub(crate) fn state_of(error: &Error) -> PartitionState {
    match error {
        Error::Stopped(_) | Error::Unfinished { .. } => PartitionState::Unfinished,
        error if error.is_refusal() => PartitionState::Refused,
        _ => PartitionState::Failed,
    }
}

fn severity(state: PartitionState) -> u8 {
    match state {
        PartitionState::Failed => 3,
        PartitionState::Unfinished => 2,
        PartitionState::Refused => 1,
        PartitionState::Recovered | PartitionState::Skipped => 0,
    }
}

/// Works through all jobs with `threads` threads, and one for each segment that may be out elsewhere; reports of the
/// partitions, by task.
pub(crate) fn work(
    threads: usize,
    verifier: &dyn Verifier,
    tasks: &[Task<'_>],
    mut jobs: Vec<Job>,
) -> Vec<PartitionReport> {
    jobs.sort_by_key(|job| std::cmp::Reverse(if job.size() >= LARGE_SEGMENT { job.size() } else { 0 }));
    let next = AtomicUsize::new(0);
    let reports: Mutex<Vec<Option<PartitionReport>>> = Mutex::new(tasks.iter().map(|_| None).collect());
    let one_thread = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (index, result) = run_job(tasks, job, verifier);
            let task = &tasks[index];
            if let Err(error) = result {
                if let (Error::Stopped(_), Job::Verify { job, .. }) = (&error, job) {
                    lock(&task.unverified).push(job.base_offset);
                }
                task.fail(error);
            }
            if task.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                let report = task.complete(verifier);
                if let Some(slot) = lock(&reports).get_mut(index) {
                    *slot = Some(report);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 1..(threads + verifier.slots()).min(jobs.len()) {
            let thread = std::thread::Builder::new().name(format!("recovery-{number}"));
            if let Err(error) = thread.spawn_scoped(scope, one_thread) {
                tracing::warn!(number, %error, "a thread could not be started; going on with those that were");
                break;
            }
        }
        one_thread();
    });
    let reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
    reports.into_iter().zip(tasks).map(|(report, task)| report.unwrap_or_else(|| task.blank())).collect()
}

fn run_job(tasks: &[Task<'_>], job: &Job, verifier: &dyn Verifier) -> (usize, Result<()>) {
    match job {
        Job::Verify { task, job, .. } => (*task, tasks[*task].verify(job, verifier)),
        Job::Replay { task, base, from } => (*task, tasks[*task].prepare_replay(*base, *from)),
        Job::Fold { task } => (*task, Ok(())),
    }
}
