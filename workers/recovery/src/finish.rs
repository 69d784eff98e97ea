//! The end of a log dir's recovery: flush, recovery points, marker, in this order; and the summary of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::aside::sync_folder;
use crate::checkpoint::format_offsets;
use crate::discover::{CLEAN_MARKER, FolderKind, LOG_STARTS, LogDir, RECOVERY_POINTS};
use crate::error::{Error, Result};
use crate::flush::flush;
use crate::report::{DirReport, DirState, Outcome, PartitionReport, PartitionState, RunReport};
use crate::run::model_of;

/// Content of the marker. The epoch is always -1: a broker tells it to the controller as proof that it lost nothing, and
/// after a crash that is not proven, even if recovery cut nothing (KIP-966).
const MARKER: &str = r#"{"version":0,"brokerEpoch":-1}"#;

/// The state of a dir with these partitions.
pub(crate) fn dir_state(partitions: &[PartitionReport]) -> DirState {
    let any = |state| partitions.iter().any(|partition| partition.state == state);
    if any(PartitionState::Failed) {
        DirState::Failed
    } else if any(PartitionState::Unfinished) {
        DirState::Unfinished
    } else if any(PartitionState::Refused) {
        DirState::Refused
    } else {
        DirState::Recovered
    }
}

/// The line of a partition in the log-start checkpoint, if it has one.
pub(crate) fn log_start_line(partition: &PartitionReport, is_remote: bool) -> Option<i64> {
    (partition.log_start > partition.first_segment || is_remote).then_some(partition.log_start)
}

/// Makes a dir whose partitions are all recovered as after a clean stop. The marker is the very last thing: a broker
/// trusts it blindly.
pub(crate) fn seal(dir: &LogDir, partitions: &[PartitionReport], is_remote: impl Fn(&str) -> bool) -> Result<()> {
    let in_service: Vec<_> = partitions
        .iter()
        .filter(|partition| matches!(partition.kind, FolderKind::Current | FolderKind::Future))
        .collect();
    let folders: Vec<PathBuf> = partitions.iter().map(|partition| dir.path.join(&partition.folder)).collect();
    flush(&dir.path, &folders)?;
    for name in &dir.rewrite_empty {
        replace(&dir.path, name, &format_offsets(&BTreeMap::new()))?;
    }
    let key = |partition: &PartitionReport| (partition.topic.clone(), partition.partition);
    let ends = in_service.iter().map(|partition| (key(partition), partition.log_end)).collect();
    let starts = in_service
        .iter()
        .filter_map(|partition| Some((key(partition), log_start_line(partition, is_remote(&partition.topic))?)))
        .collect();
    replace(&dir.path, RECOVERY_POINTS, &format_offsets(&ends))?;
    replace(&dir.path, LOG_STARTS, &format_offsets(&starts))?;
    replace(&dir.path, CLEAN_MARKER, MARKER)
}

/// Replaces a file at the top of a log dir: flushed, renamed, and the folder flushed.
fn replace(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    let temporary = dir.join(format!("{name}.tmp"));
    let mut file = File::create(&temporary).map_err(Error::io("create", &temporary))?;
    if let Some(like) = std::fs::metadata(&path).ok().or_else(|| model_of(dir)) {
        crate::repair::give(&file, &temporary, &like)?;
    }
    file.write_all(text.as_bytes()).map_err(Error::io("write", &temporary))?;
    file.sync_all().map_err(Error::io("flush", &temporary))?;
    std::fs::rename(&temporary, &path).map_err(Error::io("rename to its place", &temporary))?;
    sync_folder(dir)
}

/// The report of a run out of those of its dirs.
pub(crate) fn summary(dirs: Vec<DirReport>, check: bool, threads: usize, now_ms: i64, duration_ms: u64) -> RunReport {
    let any = |state| dirs.iter().any(|dir| dir.state == state);
    let outcome = if any(DirState::Failed) {
        Outcome::Failed
    } else if any(DirState::Unfinished) {
        Outcome::Stopped
    } else if any(DirState::Refused) {
        Outcome::Refused
    } else if dirs.iter().all(|dir| dir.state == DirState::Clean) {
        Outcome::NothingToDo
    } else {
        Outcome::Recovered
    };
    let errors = dirs.iter().flat_map(|dir| {
        let own = dir.errors.iter().map(|error| format!("{}: {error}", dir.path.display()));
        let parts = dir.partitions.iter().flat_map(|partition| {
            partition.errors.iter().map(|error| format!("{}/{}: {error}", dir.path.display(), partition.folder))
        });
        own.chain(parts).collect::<Vec<_>>()
    });
    RunReport { outcome, check, errors: errors.collect(), dirs, threads, now_ms, duration_ms }
}
