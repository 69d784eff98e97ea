//! Parallel recovery of Kafka log directories after an unclean stop.
//!
//! A Kafka broker that was killed validates every segment that may not have been flushed before it serves, one after
//! another inside each partition. This crate does that work without a broker, over all segments of all partitions in
//! parallel, and leaves the log dirs as the broker's own recovery followed by a clean stop would have left them: the next
//! start skips recovery. The formats and rules are those of Apache Kafka 4.x (record batches, indexes, producer
//! snapshots, checkpoints), checked against its own loader.
//!
//! ```text
//! discover ─► plan ─► verify_segment (any order, any thread or process) ─► fold_partition ─► repair ─► flush, marker
//! ```
//!
//! - [`recover`] does all of it in this process.
//! - [`recover_with`] lets a [`Verifier`] verify the segments, for instance workers in other processes: a [`SegmentJob`]
//!   and a [`SegmentReport`] can be serialised, and [`verify_segment`] writes its images into a [`Spool`] of the worker's
//!   choice, never into a log dir. The process that holds the broker's lock folds and is the only one that writes.
//! - [`fold_partition`] is the other pure half.
//!
//! Sizes are in bytes, times in milliseconds since 1970. Memory does not grow with the data: about 1 MiB a thread,
//! under 200 bytes for each producer that a partition knows, and a few hundred bytes for each segment.

mod aside;
mod batch;
mod change;
mod checkpoint;
mod config;
mod control;
mod discover;
mod error;
mod finish;
mod flush;
mod fold;
mod journal;
mod lock;
mod metadata;
mod plan;
mod producers;
mod reader;
mod repair;
mod replay;
mod report;
mod run;
mod segment;
mod spool;
mod summary;
mod work;

pub use aside::CutPolicy;
pub use batch::BatchHeader;
pub use change::{FoldInput, PartitionChange, PreparedReplay, Verified};
pub use config::{Properties, Settings, TopicSettings};
pub use control::{Control, Stop};
pub use discover::{FolderKind, LogDir, PartitionFolder, log_dir_id};
pub use error::{Error, Result};
pub use fold::fold_partition;
pub use plan::{EarlyReason, PartitionPlan};
pub use reader::Corruption;
pub use replay::Replayed;
pub use report::{
    CutReport, DirProgress, DirReport, DirState, Outcome, PartitionReport, PartitionState, RemovedReport, RunReport,
};
pub use run::{Options, recover, recover_with};
pub use segment::{FileIdentity, Here, ScanEnd, SegmentJob, SegmentReport, Verifier, verify_segment};
pub use spool::{FileSpool, Image, Spool};
