//! What a recovery tells: per partition, per log dir, for the whole run; and its progress.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::discover::FolderKind;
use crate::plan::EarlyReason;

/// How a partition came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionState {
    /// It is as after a clean stop. In `--check`: it would be.
    Recovered,
    /// A broker would not start on it.
    Refused,
    /// Something failed.
    Failed,
    /// The limit was reached first.
    Unfinished,
    /// Waiting for deletion; left alone.
    Skipped,
}

/// Bytes cut from the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutReport {
    /// Base offset of the segment.
    pub segment: i64,
    /// Where it was cut.
    pub at_byte: u64,
    /// How much went.
    pub bytes: u64,
    /// The first offset that is gone.
    pub next_offset: i64,
    /// Why.
    pub why: String,
}

/// A segment that went whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedReport {
    /// Base offset.
    pub segment: i64,
    /// Size.
    pub bytes: u64,
    /// Why.
    pub why: String,
}

/// What became of one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionReport {
    /// Name of its folder.
    pub folder: String,
    /// Topic.
    pub topic: String,
    /// Partition number.
    pub partition: i32,
    /// What the folder is for.
    pub kind: FolderKind,
    /// How it came out.
    pub state: PartitionState,
    /// First offset of the log.
    pub log_start: i64,
    /// Offset that the next record gets; also the new recovery point.
    pub log_end: i64,
    /// Base offset of its first segment.
    pub first_segment: i64,
    /// The recovery point that was found.
    pub recovery_point: i64,
    /// Segments that remain.
    pub segments: usize,
    /// Segments from the recovery point on.
    pub unflushed_segments: usize,
    /// Segments that were recovered because their indexes were unusable.
    pub early: Vec<(i64, EarlyReason)>,
    /// Producers in the last snapshot.
    pub producers: usize,
    /// What was cut.
    pub cuts: Vec<CutReport>,
    /// What went whole.
    pub removed: Vec<RemovedReport>,
    /// Files written, trimmed or cut.
    pub files_written: u64,
    /// An earlier run had finished it.
    pub resumed: bool,
    /// Segments that were not verified when the run had to stop.
    pub unverified: Vec<i64>,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// Why it is refused, failed or unfinished: one text per segment or step.
    pub errors: Vec<String>,
}

impl PartitionReport {
    /// Bytes that are gone from the log.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        let cut: u64 = self.cuts.iter().map(|cut| cut.bytes).sum();
        cut + self.removed.iter().map(|gone| gone.bytes).sum::<u64>()
    }
}

/// How a log dir came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirState {
    /// It was stopped cleanly, or holds nothing yet.
    Clean,
    /// Recovered, flushed and marked.
    Recovered,
    /// `--check`: it would be recovered.
    WouldRecover,
    /// It, or a partition in it, is refused. No marker was written.
    Refused,
    /// Something failed. No marker was written.
    Failed,
    /// The limit was reached first. No marker was written.
    Unfinished,
}

/// What became of one log dir.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirReport {
    /// Its path.
    pub path: PathBuf,
    /// How it came out.
    pub state: DirState,
    /// Its partitions by folder name.
    pub partitions: Vec<PartitionReport>,
    /// Log bytes that were read.
    pub bytes_read: u64,
    /// Segments that an earlier run had verified, those of partitions that it had finished included.
    pub segments_remembered: u64,
    /// Where cut data was kept.
    pub cut_folder: Option<PathBuf>,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// Why the dir itself is refused or failed.
    pub errors: Vec<String>,
}

/// How a run came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every log dir was clean.
    NothingToDo,
    /// Every log dir is clean now. In `--check`: would be.
    Recovered,
    /// Something failed.
    Failed,
    /// The limit was reached first.
    Stopped,
    /// A log dir or partition is refused; the others were recovered.
    Refused,
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    /// How it came out.
    pub outcome: Outcome,
    /// Nothing was written.
    pub check: bool,
    /// Its log dirs.
    pub dirs: Vec<DirReport>,
    /// Threads used.
    pub threads: usize,
    /// The clock that producers were judged by, milliseconds since 1970.
    pub now_ms: i64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Every failure and refusal, one text each.
    pub errors: Vec<String>,
}

/// How far a log dir is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DirProgress {
    /// Its path.
    pub path: PathBuf,
    /// What is being done: `plan`, `verify`, `flush`, `done`.
    pub phase: &'static str,
    /// Log bytes read, and to be read.
    pub bytes: (u64, u64),
    /// Segments verified, and to be verified.
    pub segments: (u64, u64),
    /// Partitions finished, and to be finished.
    pub partitions: (u64, u64),
    /// Bytes per second since the verification began.
    pub bytes_per_second: u64,
    /// Seconds left at that rate, once it is known.
    pub seconds_left: Option<u64>,
}
