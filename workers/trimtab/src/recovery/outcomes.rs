//! What came of a run, as events: one for each partition that was not clean, one for each log dir.

use trimtab_events::{RecoveryCut, RecoveryOutcome, RecoveryState};
use trimtab_recovery::{DirReport, DirState, PartitionReport, PartitionState, RunReport};
use uuid::Uuid;

use super::LogDirLane;

/// Cuts, warnings and errors that one event names; an event has half a megabyte.
const NAMED: usize = 100;
/// Bytes of one text.
const TEXT: usize = 1_000;

/// The run that outcomes are of.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its id.
    pub id: Uuid,
    /// The host's name.
    pub host: String,
    /// Who did it.
    pub finisher: String,
    /// When it began, milliseconds since 1970.
    pub started_ms: i64,
    /// When it ended, milliseconds since 1970.
    pub ended_ms: i64,
}

/// Everything that came of a run in these log dirs; `trace_of` gives a partition's trace.
pub fn outcomes(
    run: &Run,
    report: &RunReport,
    lanes: &[LogDirLane],
    trace_of: impl Fn(&DirReport, &PartitionReport) -> String,
) -> Vec<RecoveryOutcome> {
    let mut all = Vec::new();
    for dir in &report.dirs {
        let Some(at) = lanes.iter().find(|lane| lane.dir == dir.path) else { continue };
        for partition in &dir.partitions {
            all.push(of_partition(run, dir, partition, &at.lane, trace_of(dir, partition)));
        }
        all.push(of_dir(run, dir, &at.lane));
    }
    all
}

fn texts(all: &[String]) -> Vec<String> {
    let cut = |text: &String| text.chars().take(TEXT).collect();
    let mut named: Vec<String> = all.iter().take(NAMED).map(cut).collect();
    if all.len() > NAMED {
        named.push(format!("and {} more", all.len() - NAMED));
    }
    named
}

fn of_partition(
    run: &Run,
    dir: &DirReport,
    partition: &PartitionReport,
    lane: &str,
    trace_id: String,
) -> RecoveryOutcome {
    let cuts = partition.cuts.iter().map(|cut| (cut.segment, cut.at_byte, cut.bytes, &cut.why));
    let gone = partition.removed.iter().map(|gone| (gone.segment, 0, gone.bytes, &gone.why));
    let named = cuts.chain(gone).take(NAMED).map(|(segment, from_byte, bytes, why)| RecoveryCut {
        segment,
        from_byte,
        bytes,
        why: why.chars().take(TEXT).collect(),
    });
    let done = partition.state == PartitionState::Recovered;
    RecoveryOutcome {
        run: run.id,
        lane: lane.to_owned(),
        host: run.host.clone(),
        log_dir: dir.path.display().to_string(),
        folder: Some(partition.folder.clone()),
        state: match partition.state {
            PartitionState::Recovered => RecoveryState::Recovered,
            PartitionState::Refused => RecoveryState::Refused,
            PartitionState::Failed => RecoveryState::Failed,
            PartitionState::Unfinished => RecoveryState::Unfinished,
            PartitionState::Skipped => RecoveryState::Skipped,
        },
        log_start: done.then_some(partition.log_start),
        log_end: done.then_some(partition.log_end),
        segments: (partition.unflushed_segments + partition.early.len()) as u64,
        cut_bytes: partition.lost_bytes(),
        cuts: named.collect(),
        cut_folder: dir.cut_folder.as_ref().filter(|_| partition.lost_bytes() > 0).map(|p| p.display().to_string()),
        warnings: texts(&partition.warnings),
        errors: texts(&partition.errors),
        started_ms: run.started_ms,
        ended_ms: run.ended_ms,
        finisher: run.finisher.clone(),
        trace_id,
    }
}

fn of_dir(run: &Run, dir: &DirReport, lane: &str) -> RecoveryOutcome {
    RecoveryOutcome {
        run: run.id,
        lane: lane.to_owned(),
        host: run.host.clone(),
        log_dir: dir.path.display().to_string(),
        folder: None,
        state: match dir.state {
            DirState::Clean => RecoveryState::Clean,
            DirState::Recovered | DirState::WouldRecover => RecoveryState::Recovered,
            DirState::Refused => RecoveryState::Refused,
            DirState::Failed => RecoveryState::Failed,
            DirState::Unfinished => RecoveryState::Unfinished,
        },
        log_start: None,
        log_end: None,
        segments: dir.partitions.iter().map(|p| (p.unflushed_segments + p.early.len()) as u64).sum(),
        cut_bytes: dir.partitions.iter().map(PartitionReport::lost_bytes).sum(),
        cuts: Vec::new(),
        cut_folder: dir.cut_folder.as_ref().map(|folder| folder.display().to_string()),
        warnings: texts(&dir.warnings),
        errors: texts(&dir.errors),
        started_ms: run.started_ms,
        ended_ms: run.ended_ms,
        finisher: run.finisher.clone(),
        trace_id: String::new(),
    }
}
