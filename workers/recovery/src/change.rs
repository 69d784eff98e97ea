//! What goes into the fold of a partition and what comes out of it.

use std::collections::{BTreeMap, HashMap};

use crate::replay::Replayed;
use crate::segment::SegmentReport;
use crate::spool::{Image, Spool};

/// A report and the spool that holds its images.
#[derive(Clone, Debug)]
pub struct Verified<'a> {
    /// What the segment holds.
    pub report: SegmentReport,
    /// Where its images lie.
    pub spool: &'a dyn Spool,
}

/// A replay of a flushed segment that was prepared: from which offset on, and what it found.
#[derive(Clone, Debug)]
pub struct PreparedReplay<'a> {
    /// First offset that counts.
    pub from: i64,
    /// What was found; `None` when no batch reaches `from`.
    pub found: Option<Replayed>,
    /// Where its images lie.
    pub spool: &'a dyn Spool,
}

/// What the fold needs beside the plan.
#[derive(Debug)]
pub struct FoldInput<'a> {
    /// The report of every segment of [`PartitionPlan::jobs`], by base offset.
    pub verified: HashMap<i64, Verified<'a>>,
    /// Replays that were prepared, by base offset; what is missing is read on the way.
    pub replays: HashMap<i64, PreparedReplay<'a>>,
    /// Where new images (snapshots, transaction indexes) go.
    pub spool: &'a dyn Spool,
    /// The clock, milliseconds since 1970: producers idle for too long are dropped.
    pub now_ms: i64,
    /// After how long.
    pub producer_expiration_ms: i64,
    /// Cut at an offset that does not fit its segment, instead of refusing.
    pub truncate_overflow: bool,
}

/// What a file must hold at the end.
#[derive(Clone, Debug)]
pub(crate) enum Content<'a> {
    Empty,
    Image(Image, &'a dyn Spool),
}

/// What happens to one segment that stays.
#[derive(Clone, Debug)]
pub(crate) struct SegmentChange<'a> {
    pub(crate) base: i64,
    /// Its final length, when bytes must be cut, and why.
    pub(crate) cut: Option<Cut>,
    pub(crate) offset_index: Option<Content<'a>>,
    pub(crate) time_index: Option<Content<'a>>,
    pub(crate) transaction_index: Option<Content<'a>>,
    /// It was recovered while loading: its indexes are written last, since their absence is what makes a run that is
    /// repeated do the same again.
    pub(crate) early: bool,
    pub(crate) verified: bool,
}

/// Bytes to cut from the end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) size_before: u64,
    pub(crate) size_after: u64,
    pub(crate) next_offset: i64,
    pub(crate) why: String,
}

/// A segment that goes.
#[derive(Clone, Debug)]
pub(crate) struct Removed {
    pub(crate) base: i64,
    pub(crate) size: u64,
    pub(crate) why: String,
}

/// All that must change in one partition.
#[derive(Debug)]
pub struct PartitionChange<'a> {
    pub(crate) segments: Vec<SegmentChange<'a>>,
    pub(crate) removed: Vec<Removed>,
    /// Base offset of an empty segment to be created.
    pub(crate) fresh: Option<i64>,
    pub(crate) delete_snapshots: Vec<String>,
    pub(crate) write_snapshots: BTreeMap<i64, Image>,
    pub(crate) spool: &'a dyn Spool,
    /// New content of the leader epochs.
    pub(crate) epochs: Option<String>,
    /// Where the log begins, ends, and where its first segment begins.
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    pub(crate) first_segment: i64,
    pub(crate) producers: usize,
    pub(crate) unflushed: usize,
}
