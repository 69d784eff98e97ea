//! Recovery of log dirs over several processes: what travels between the one that holds the brokers' locks and those that verify
//! segments for it.
//!
//! `segments` is the former's side: it verifies here, offers segments to workers, and judges what they say. The worker is
//! `workers::RecoveryWorker`; `side` is the file that a worker's results are in; `outcomes` tells what came of a run.

mod outcomes;
mod segments;
mod side;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use trimtab_events::{FileSeen, RecoverySegment, lane_of};
use trimtab_recovery::{FileIdentity, SegmentJob, log_dir_id};

pub use outcomes::{Run, outcomes};
pub use segments::{OverBus, OverOptions, Segments};
pub use side::{SideError, build, open};

/// A log dir and the lane that its segments travel in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirLane {
    /// The log dir, as it was named.
    pub dir: PathBuf,
    /// Its lane.
    pub lane: String,
    /// The folder for side files of this lane.
    pub side: PathBuf,
}

impl LogDirLane {
    /// The lane of a log dir; none when no broker has used it yet. `host` is that of [`this_host`] or the same name on all hosts
    /// that share the disk; side files go below `side`, or beside the log dir.
    ///
    /// # Errors
    /// When the log dir cannot be looked at.
    pub fn of(dir: &Path, host: &str, side: Option<&Path>) -> anyhow::Result<Option<LogDirLane>> {
        let Some(id) = log_dir_id(dir)? else { return Ok(None) };
        let lane = lane_of(host, &id);
        let side = match side {
            Some(side) => side.join(&lane),
            None => {
                let real = dir.canonicalize().with_context(|| format!("finding log dir {}", dir.display()))?;
                let mut name = real.file_name().unwrap_or_default().to_os_string();
                name.push(".trimtab-images");
                real.with_file_name(name).join(&lane)
            }
        };
        Ok(Some(LogDirLane { dir: dir.to_path_buf(), lane, side }))
    }

    /// Removes what is left of side files. Only to be called by the holder of the log dir's lock: whatever else is built is
    /// wanted by nobody.
    pub fn clean(&self) {
        for entry in std::fs::read_dir(&self.side).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(side::is_ours) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        // Only when they are empty.
        let _ = std::fs::remove_dir(&self.side);
        if let Some(above) = self.side.parent().filter(|above| above.extension().is_some_and(|e| e == "trimtab-images"))
        {
            let _ = std::fs::remove_dir(above);
        }
    }
}

/// What names this host in lanes: the kernel's boot id, which all containers on it see. Inode numbers and times mean the same
/// to all who have it.
///
/// # Errors
/// When the kernel does not tell.
pub fn this_host() -> anyhow::Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).with_context(|| format!("reading {path}; name the host with --host"))?;
    Ok(id.trim().to_owned())
}

/// A file as events tell of it; none when its time does not fit (before 1678, after 2262).
fn seen(identity: FileIdentity) -> Option<FileSeen> {
    let modified_ns = i64::try_from(identity.modified_ns).ok()?;
    Some(FileSeen { inode: identity.inode, size: identity.size, modified_ns })
}

/// The job as the library knows it, if its names are those of a segment in a partition's folder.
fn segment_job(dir: &Path, job: &RecoverySegment) -> Option<SegmentJob> {
    let plain = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    let name = job.file.strip_suffix(".swap").unwrap_or(&job.file);
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 20)?;
    let is_base = digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse() == Ok(job.base_offset);
    (plain(&job.folder) && plain(&job.file) && is_base).then(|| SegmentJob {
        path: dir.join(&job.folder).join(&job.file),
        base_offset: job.base_offset,
        index_interval_bytes: job.index_interval_bytes,
        segment_index_bytes: job.segment_index_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(folder: &str, file: &str, base_offset: i64) -> RecoverySegment {
        RecoverySegment {
            id: uuid::Uuid::nil(),
            lane: "l".into(),
            folder: folder.into(),
            file: file.into(),
            base_offset,
            index_interval_bytes: 4096,
            segment_index_bytes: 10_485_760,
            seen: FileSeen { inode: 1, size: 1, modified_ns: 1 },
            void_after_ms: 0,
        }
    }

    #[test]
    fn a_job_names_a_segment_inside_the_log_dir_or_nothing() {
        let dir = Path::new("/d");
        let good = segment_job(dir, &job("t-0", "00000000000000000402.log", 402)).unwrap();
        assert_eq!(good.path, Path::new("/d/t-0/00000000000000000402.log"));
        assert!(segment_job(dir, &job("t-0", "00000000000000000402.log.swap", 402)).is_some());
        for (folder, file, base) in [
            ("..", "00000000000000000402.log", 402),
            ("../x", "00000000000000000402.log", 402),
            ("", "00000000000000000402.log", 402),
            ("t-0", "../00000000000000000402.log", 402),
            ("t-0", "00000000000000000402.log", 401),
            ("t-0", "402.log", 402),
            ("t-0", "00000000000000000402.index", 402),
            ("t-0", "meta.properties", 0),
            ("t-0", "+0000000000000000402.log", 402),
        ] {
            assert_eq!(segment_job(dir, &job(folder, file, base)), None, "{folder} {file}");
        }
    }

    #[test]
    fn a_lane_is_of_one_host_and_one_log_dir() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("data");
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(LogDirLane::of(&dir, "h", None).unwrap(), None, "nobody has used it");
        std::fs::write(dir.join("meta.properties"), "version=1\ndirectory.id=abc\n").unwrap();
        let lane = LogDirLane::of(&dir, "h", None).unwrap().unwrap();
        assert_ne!(lane.lane, LogDirLane::of(&dir, "g", None).unwrap().unwrap().lane);
        assert_eq!(lane.side.parent(), Some(&*top.path().canonicalize().unwrap().join("data.trimtab-images")));
        std::fs::create_dir_all(&lane.side).unwrap();
        for name in ["x.images", "y.part"] {
            std::fs::write(lane.side.join(name), b"").unwrap();
        }
        lane.clean();
        assert!(!top.path().join("data.trimtab-images").exists());
        std::fs::create_dir_all(&lane.side).unwrap();
        std::fs::write(lane.side.join("notes.txt"), b"").unwrap();
        lane.clean();
        assert!(lane.side.join("notes.txt").exists(), "what is not ours stays");
    }
}
