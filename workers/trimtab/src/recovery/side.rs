//! The side file of a segment: the images that a worker built, and its report on them.
//!
//! Format: the images, as the report names their places; the report as JSON; its length `u32`, 8 bytes of magic. An event names
//! the file with its SHA-256.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};
use trimtab_events::{FileSeen, RecoverySegment, SideFile};
use trimtab_recovery::{Control, FileIdentity, FileSpool, SegmentReport, Spool, verify_segment};

use super::{LogDirLane, seen, segment_job};

/// The last digits are the version of the format and of what the report means.
const MAGIC: [u8; 8] = *b"ttrcvs01";
const TAIL: usize = 4 + MAGIC.len();
const DONE: &str = ".images";
const UNFINISHED: &str = ".part";
/// A report has a few kilobytes, and a line for each quarter of a megabyte of images.
const MAX_REPORT: u64 = 16 << 20;
/// What images may have beside one byte for each byte of the segment: summaries of very small batches are large.
const MAX_EXTRA: u64 = 64 << 20;

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SideError(pub String);

impl SideError {
    fn because(why: impl std::fmt::Display) -> SideError {
        SideError(why.to_string())
    }
}

/// Whether a side file of ours may have this name.
pub(super) fn is_ours(name: &str) -> bool {
    let stem = name.strip_suffix(DONE).or_else(|| name.strip_suffix(UNFINISHED));
    stem.is_some_and(|stem| !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

/// Verifies the segment of a job, for a worker: reads it, and builds its images in a side file named after `unique`.
///
/// # Errors
/// When the job does not name a segment of this log dir, its file is not the one that was meant or changed meanwhile, it
/// cannot be read, or the side file cannot be written.
pub fn build(
    at: &LogDirLane,
    job: &RecoverySegment,
    unique: &str,
    control: &Control,
) -> Result<(SegmentReport, SideFile), SideError> {
    let segment =
        segment_job(&at.dir, job).ok_or_else(|| SideError("it names no segment of this log dir".to_owned()))?;
    let same = |now: FileIdentity| match seen(now) {
        Some(now) if now == job.seen => Ok(()),
        now => Err(SideError(format!("the file is {now:?}, not {:?}", job.seen))),
    };
    same(FileIdentity::read(&segment.path).map_err(SideError::because)?)?;
    std::fs::create_dir_all(&at.side).map_err(|e| {
        SideError(format!("could not make {} ({e}); choose a folder with --side-dir", at.side.display()))
    })?;
    let name = format!("{}-{unique}{DONE}", job.id);
    let part = at.side.join(format!("{}-{unique}{UNFINISHED}", job.id));
    let built = (|| {
        let spool = FileSpool::create(&part).map_err(SideError::because)?;
        let report = verify_segment(&segment, &spool, control).map_err(SideError::because)?;
        same(report.identity)?;
        same(FileIdentity::read(&segment.path).map_err(SideError::because)?)?;
        seal(&spool, &report).map_err(SideError::because)?;
        let (bytes, sha256) = digest(&part)?;
        let target = at.side.join(&name);
        std::fs::rename(&part, &target).map_err(|e| SideError(format!("could not rename {}: {e}", part.display())))?;
        Ok((report, SideFile { path: name.clone(), bytes, sha256 }))
    })();
    if built.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    built
}

fn seal(spool: &FileSpool, report: &SegmentReport) -> anyhow::Result<()> {
    let json = serde_json::to_vec(report)?;
    let length = u32::try_from(json.len())?.to_be_bytes();
    spool.append(&[&json, &length, &MAGIC])?;
    Ok(())
}

fn digest(path: &Path) -> Result<(u64, String), SideError> {
    let failed = |e: std::io::Error| SideError(format!("could not read {}: {e}", path.display()));
    let mut file = File::open(path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer).map_err(failed)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        bytes += n as u64;
    }
    Ok((bytes, hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Opens a side file that a report names: its report and images, if they are what was named and fit the segment that was meant.
///
/// # Errors
/// Why they are not believed.
pub fn open(
    side: &Path,
    file: &SideFile,
    base_offset: i64,
    meant: &FileSeen,
) -> Result<(SegmentReport, FileSpool), SideError> {
    if !is_ours(&file.path) || !file.path.ends_with(DONE) {
        return Err(SideError(format!("{:?} is no name of a side file", file.path)));
    }
    if file.bytes > meant.size.saturating_add(MAX_EXTRA) {
        return Err(SideError(format!("a side file of {} bytes for a segment of {}", file.bytes, meant.size)));
    }
    let path = side.join(&file.path);
    let failed = |e: std::io::Error| SideError(format!("could not read {}: {e}", path.display()));
    let found = std::fs::symlink_metadata(&path).map_err(failed)?;
    if !found.is_file() || found.len() != file.bytes {
        return Err(SideError(format!("{} is no file of {} bytes", path.display(), file.bytes)));
    }
    let (bytes, sha256) = digest(&path)?;
    if (bytes, &sha256) != (file.bytes, &file.sha256) {
        return Err(SideError(format!("{} has another SHA-256 than the report says", path.display())));
    }
    let report = report_of(&File::open(&path).map_err(failed)?, bytes).map_err(|e| match e {
        Ok(why) => SideError(format!("{} {why}", path.display())),
        Err(e) => failed(e),
    })?;
    if report.base_offset != base_offset || seen(report.identity) != Some(*meant) {
        return Err(SideError("its report is about another file".to_owned()));
    }
    let spool = FileSpool::open(&path).map_err(SideError::because)?;
    Ok((report, spool))
}

fn report_of(file: &File, bytes: u64) -> Result<SegmentReport, Result<&'static str, std::io::Error>> {
    let tail_at = bytes.checked_sub(TAIL as u64).ok_or(Ok("is too short"))?;
    let mut tail = [0; TAIL];
    file.read_exact_at(&mut tail, tail_at).map_err(Err)?;
    let (length, magic) = tail.split_at(4);
    if magic != MAGIC {
        return Err(Ok("is of another version"));
    }
    let length = u64::from(length.try_into().map_or(0, u32::from_be_bytes));
    let at = tail_at.checked_sub(length).filter(|_| length <= MAX_REPORT).ok_or(Ok("is cut short"))?;
    let mut json = vec![0; length as usize];
    file.read_exact_at(&mut json, at).map_err(Err)?;
    serde_json::from_slice(&json).map_err(|_| Ok("holds no report that this version reads"))
}
