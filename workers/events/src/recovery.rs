//! `recovery.segment`, `recovery.report`, `recovery.outcome`: one segment to verify, what was found in it, and what became of a
//! partition or of a whole log dir.
//!
//! Jobs and reports travel in a *lane*: one for each log dir of each host, so that only workers that see that disk get them. The
//! lane is the events' target.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{event_id, key_of};

/// The lane of a log dir: `host` is whatever names the kernel (or the shared file system), `log_dir` the log dir's own id.
pub fn lane_of(host: &str, log_dir: &str) -> String {
    key_of(host, log_dir)
}

/// What tells whether a file is still the one that was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSeen {
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub modified_ns: i64,
}

/// Verify this segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverySegment {
    /// See [`RecoverySegment::id_of`].
    pub id: Uuid,
    /// The lane.
    pub lane: String,
    /// Folder of the partition, in the log dir.
    pub folder: String,
    /// Name of the log in that folder.
    pub file: String,
    /// The offset in the file's name.
    pub base_offset: i64,
    /// The topic's `index.interval.bytes`.
    pub index_interval_bytes: i32,
    /// The topic's `segment.index.bytes`.
    pub segment_index_bytes: i32,
    /// The file as the planner saw it.
    pub seen: FileSeen,
    /// Whoever takes it after this time, milliseconds since 1970, says that it is void instead of reading it: the process that
    /// wanted it may be long gone.
    pub void_after_ms: i64,
}

impl RecoverySegment {
    /// The id of a job: the same segment in the same state with the same settings is the same job, whoever asks.
    pub fn id_of(&self) -> Uuid {
        let seen = self.seen;
        let numbers = format!(
            "{} {} {} {} {} {}",
            self.base_offset,
            self.index_interval_bytes,
            self.segment_index_bytes,
            seen.inode,
            seen.size,
            seen.modified_ns
        );
        event_id("recovery.segment", &[&self.lane, &self.folder, &self.file, &numbers])
    }
}

/// How far a worker is with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryWork {
    /// It is being read.
    Working,
    /// It was read to its end, whatever was found.
    Verified,
    /// It could not be read, or is not the file that was meant.
    Failed,
    /// It was not begun: it came when nobody should have been waiting for it any more. Who does offers it again.
    Void,
}

impl RecoveryWork {
    /// The name used in events and subjects.
    pub fn name(self) -> &'static str {
        match self {
            RecoveryWork::Working => "working",
            RecoveryWork::Verified => "verified",
            RecoveryWork::Failed => "failed",
            RecoveryWork::Void => "void",
        }
    }
}

/// What a segment holds, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SegmentFound {
    /// Every byte belongs to a valid batch.
    pub whole: bool,
    /// Bytes before the first that does not.
    pub valid_bytes: u64,
    /// Offset that follows its last batch.
    pub next_offset: i64,
    /// Valid batches.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
}

/// The file with what a worker built of a segment: its indexes and summaries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SideFile {
    /// Path in the folder that workers and finisher share.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, 64 hexadecimal digits.
    pub sha256: String,
}

/// What a worker says about a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoveryReport {
    /// The job.
    pub job: Uuid,
    /// Its lane.
    pub lane: String,
    /// The worker.
    pub worker: String,
    /// How far it is.
    pub state: RecoveryWork,
    /// Bytes read so far.
    pub bytes: u64,
    /// The file that was read, once it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<FileSeen>,
    /// What it holds, when it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<SegmentFound>,
    /// Where the rest is, when it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<SideFile>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a partition or log dir came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryState {
    /// It was stopped cleanly: there was nothing to do.
    Clean,
    /// It is as after a clean stop.
    Recovered,
    /// A broker would not start on it.
    Refused,
    /// Something failed.
    Failed,
    /// The limit was reached first.
    Unfinished,
    /// Left alone: it waits to be deleted.
    Skipped,
}

impl RecoveryState {
    /// The name used in events and subjects.
    pub fn name(self) -> &'static str {
        match self {
            RecoveryState::Clean => "clean",
            RecoveryState::Recovered => "recovered",
            RecoveryState::Refused => "refused",
            RecoveryState::Failed => "failed",
            RecoveryState::Unfinished => "unfinished",
            RecoveryState::Skipped => "skipped",
        }
    }
}

/// Bytes taken out of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoveryCut {
    /// Base offset of the segment.
    pub segment: i64,
    /// From this byte on; 0 when the segment went whole.
    pub from_byte: u64,
    /// How many.
    pub bytes: u64,
    /// Why.
    pub why: String,
}

/// What became of a partition, or (without `folder`) of a log dir.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoveryOutcome {
    /// The run (version 7: sortable by time).
    pub run: Uuid,
    /// The lane.
    pub lane: String,
    /// The host, by name.
    pub host: String,
    /// The log dir.
    pub log_dir: String,
    /// Folder of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// How it came out.
    pub state: RecoveryState,
    /// First offset of the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_start: Option<i64>,
    /// Offset that its next record gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_end: Option<i64>,
    /// Segments that were verified.
    pub segments: u64,
    /// Bytes that are gone from the logs.
    pub cut_bytes: u64,
    /// What was cut: the first of it, when there is much.
    pub cuts: Vec<RecoveryCut>,
    /// Where that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_folder: Option<String>,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// Why it is refused, failed or unfinished.
    pub errors: Vec<String>,
    /// When the run began, milliseconds since 1970.
    pub started_ms: i64,
    /// When it ended, milliseconds since 1970.
    pub ended_ms: i64,
    /// Who did it.
    pub finisher: String,
    /// Trace id, 32 hexadecimal digits; empty when nothing is traced.
    pub trace_id: String,
}
