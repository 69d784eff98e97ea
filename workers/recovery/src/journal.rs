//! Remembers finished work, so that a run that was killed is not repeated from the start.
//!
//! One append-only file in each log dir, which brokers ignore; removed at the end. It is not flushed: it serves a run
//! after a killed process, where the page cache survives. After a crash of the machine the boot id differs, and nothing
//! in it counts. Each entry is bound to the file it is about (device, inode, size, modification time); an entry that
//! does not fit any more is not used, and the file is read again.
//!
//! Format: 8 bytes of magic, then frames: kind `u8`, length `u32`, CRC-32C of the payload `u32`, payload. The first
//! frame is the header. A frame that is cut short ends the journal.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::batch::be;
use crate::error::{Error, Result};
use crate::finish::log_start_line;
use crate::plan::PlanInput;
use crate::report::PartitionReport;
use crate::segment::{SegmentJob, SegmentReport};
use crate::spool::Spool;

/// Name of the journal in a log dir.
pub(crate) const JOURNAL: &str = ".trimtab-recovery.journal";
/// The last digits are the version of the frames and of what the reports mean.
const MAGIC: [u8; 8] = *b"ttrcvj01";
const FRAME: usize = 9;
const HEADER: u8 = 1;
const PART: u8 = 2;
const SEGMENT: u8 = 3;
const PARTITION: u8 = 4;
/// A report is below a few kilobytes; an image is split in parts of a quarter of a megabyte.
const FRAME_LIMIT: usize = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    boot_id: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct SegmentEntry {
    job: SegmentJob,
    report: SegmentReport,
}

/// A partition that was finished.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PartitionEntry {
    /// Settings and flags it was finished with.
    pub(crate) inputs: String,
    /// Recovery point and log start it was finished with.
    pub(crate) points: (i64, i64),
    /// What its folder looks like once it is finished.
    pub(crate) folder: u32,
    /// Files that may still have to take their names: temporary and final ones.
    pub(crate) pending: Vec<(String, String)>,
    pub(crate) report: PartitionReport,
}

impl PartitionEntry {
    /// Whether the checkpoints are those that the partition was finished with, or those that were written after it: a
    /// run may have died between the recovery points and the marker.
    pub(crate) fn fits(&self, input: &PlanInput<'_>) -> bool {
        let written = log_start_line(&self.report, input.settings.remote_storage).unwrap_or(0);
        [self.points.0, self.report.log_end].contains(&input.recovery_point)
            && [self.points.1, written].contains(&input.log_start)
    }
}

/// What an earlier run left.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    pub(crate) segments: HashMap<SegmentJob, SegmentReport>,
    pub(crate) partitions: HashMap<String, PartitionEntry>,
}

/// The open journal of a log dir.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    end: Mutex<u64>,
}

impl Journal {
    /// Opens the journal of `dir` and returns what in it still counts.
    pub(crate) fn open(dir: &Path, like: Option<&Metadata>) -> Result<(Self, Remembered)> {
        let path = dir.join(JOURNAL);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(Error::io("open the journal", &path))?;
        if let Some(like) = like {
            crate::repair::give(&file, &path, like)?;
        }
        let boot_id = boot_id();
        let (end, remembered) = scan(&file, &path, &boot_id)?.unwrap_or_default();
        file.set_len(end).map_err(Error::io("cut the journal", &path))?;
        let journal = Self { path, file, end: Mutex::new(end) };
        if end == 0 {
            journal.file.write_all_at(&MAGIC, 0).map_err(Error::io("write the journal", &journal.path))?;
            *journal.lock() = MAGIC.len() as u64;
            journal.frame(HEADER, &[&encode(&Header { boot_id }, &journal.path)?])?;
        }
        Ok((journal, remembered))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, u64> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one frame; the position of its payload.
    fn frame(&self, kind: u8, parts: &[&[u8]]) -> Result<u64> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let crc = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        let mut bytes = Vec::with_capacity(FRAME + length);
        bytes.push(kind);
        bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&crc.to_be_bytes());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        let mut end = self.lock();
        let at = *end;
        self.file.write_all_at(&bytes, at).map_err(Error::io("write the journal", &self.path))?;
        *end = at + bytes.len() as u64;
        Ok(at + FRAME as u64)
    }

    /// Remembers a verified segment.
    pub(crate) fn segment(&self, job: &SegmentJob, report: &SegmentReport) -> Result<()> {
        let entry = SegmentEntry { job: job.clone(), report: report.clone() };
        self.frame(SEGMENT, &[&encode(&entry, &self.path)?]).map(|_| ())
    }

    /// Remembers a finished partition.
    pub(crate) fn partition(&self, entry: &PartitionEntry) -> Result<()> {
        self.frame(PARTITION, &[&encode(entry, &self.path)?]).map(|_| ())
    }

    /// Removes the journal.
    pub(crate) fn remove(self) -> Result<()> {
        crate::aside::remove(&self.path)
    }
}

impl Spool for Journal {
    fn append(&self, parts: &[&[u8]]) -> Result<u64> {
        self.frame(PART, parts)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, at).map_err(Error::io("read the journal", &self.path))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

fn encode(value: &impl Serialize, path: &Path) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::io("describe work in the journal", path)(error.into()))
}

/// Identifies this boot of this machine. Where the kernel does not tell, nothing is ever remembered.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = id.trim();
    if id.is_empty() { format!("unknown-{}", std::process::id()) } else { id.to_owned() }
}

/// Reads a journal to its last whole frame; `None` when it is of another boot or version.
fn scan(file: &File, path: &Path, boot_id: &str) -> Result<Option<(u64, Remembered)>> {
    let size = file.metadata().map_err(Error::io("look at the journal", path))?.len();
    let mut reader = std::io::BufReader::with_capacity(256 * 1024, file);
    let mut magic = [0; MAGIC.len()];
    if reader.read_exact(&mut magic).is_err() || magic != MAGIC {
        return Ok(None);
    }
    let mut at = MAGIC.len() as u64;
    let mut remembered = Remembered::default();
    let mut payload = Vec::new();
    let mut head = [0; FRAME];
    let mut known = false;
    while at + FRAME as u64 <= size && reader.read_exact(&mut head).is_ok() {
        let (kind, length, crc) = (head[0], be!(u32, head, 1) as usize, be!(u32, head, 5));
        if length > FRAME_LIMIT || at + (FRAME + length) as u64 > size {
            break;
        }
        payload.resize(length, 0);
        if reader.read_exact(&mut payload).is_err() || crc32c::crc32c(&payload) != crc {
            break;
        }
        match kind {
            HEADER => {
                let same = serde_json::from_slice::<Header>(&payload).is_ok_and(|header| header.boot_id == boot_id);
                if !same {
                    return Ok(None);
                }
                known = true;
            }
            _ if !known => return Ok(None),
            SEGMENT => {
                if let Ok(entry) = serde_json::from_slice::<SegmentEntry>(&payload) {
                    remembered.segments.insert(entry.job, entry.report);
                }
            }
            PARTITION => {
                if let Ok(entry) = serde_json::from_slice::<PartitionEntry>(&payload) {
                    remembered.partitions.insert(entry.report.folder.clone(), entry);
                }
            }
            _ => {}
        }
        at += (FRAME + length) as u64;
    }
    Ok(known.then_some((at, remembered)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_and_any_flip_is_survived() {
        let dir = tempfile::tempdir().expect("a folder");
        let (journal, _) = Journal::open(dir.path(), None).expect("opened");
        let at = journal.append(&[b"abc", b"def"]).expect("written");
        let mut back = [0; 6];
        journal.read(at, &mut back).expect("read");
        assert_eq!(&back, b"abcdef");
        let path = dir.path().join(JOURNAL);
        let bytes = std::fs::read(&path).expect("read");
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).expect("written");
            Journal::open(dir.path(), None).expect("opened");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xFF;
            std::fs::write(&path, &damaged).expect("written");
            Journal::open(dir.path(), None).expect("opened");
        }
    }
}
