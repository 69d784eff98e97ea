//! Reads flushed segments again for their producers, when a snapshot is missing.
//!
//! A broker does this without checking checksums, from the first batch that reaches a wished offset. That batch is found
//! through the offset index, garbage or not, so the index is searched exactly as the broker searches it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::batch::{BatchHeader, be};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::reader::{BatchReader, Step};
use crate::segment::{marker_of, open_segment, read_error};
use crate::spool::{Image, Spool, Writer};
use crate::summary::{Summary, Verdict};

const ENTRY: u64 = 8;
/// Entries at the end of an index that a broker searches first.
const WARM_ENTRIES: u64 = 8192 / ENTRY;

/// An offset index, wherever its entries are at the moment.
#[derive(Clone, Debug)]
pub(crate) enum OffsetIndex<'a> {
    /// None, or one without entries. One full of zeros (preallocated and never written) leads to the same place.
    Empty,
    /// A file in the log dir.
    File(PathBuf),
    /// One that was just built.
    Built(Image, &'a dyn Spool),
}

impl std::fmt::Debug for dyn Spool + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "spool {}", self.path().display())
    }
}

impl OffsetIndex<'_> {
    /// The position that the index gives for `target`: 0 when it has no entry at or below it.
    fn position(&self, base: i64, target: i64) -> Result<u64> {
        match self {
            Self::Empty => Ok(0),
            Self::File(path) => search_file(path, base, target),
            Self::Built(image, spool) => {
                let mut position = 0;
                image.entries::<8>(*spool, |entry| {
                    if base.wrapping_add(i64::from(be!(i32, entry, 0))) <= target {
                        position = u64::from(be!(u32, entry, 4));
                    }
                    Ok(())
                })?;
                Ok(position)
            }
        }
    }

    /// The offset of the last entry, or the base offset.
    fn last_offset(&self, base: i64) -> Result<i64> {
        let mut last = base;
        match self {
            Self::Empty => {}
            Self::File(path) => {
                let (file, entries) = open_index(path)?;
                if let Some(n) = entries.checked_sub(1) {
                    last = read_entry(&file, path, base, n)?.0;
                }
            }
            Self::Built(image, spool) => image.entries::<8>(*spool, |entry| {
                last = base.wrapping_add(i64::from(be!(i32, entry, 0)));
                Ok(())
            })?,
        }
        Ok(last)
    }
}

fn open_index(path: &Path) -> Result<(File, u64)> {
    let file = File::open(path).map_err(Error::io("open offset index", path))?;
    let size = file.metadata().map_err(Error::io("look at", path))?.len();
    Ok((file, size / ENTRY))
}

fn read_entry(file: &File, path: &Path, base: i64, n: u64) -> Result<(i64, i32)> {
    let mut raw = [0; 8];
    file.read_exact_at(&mut raw, n * ENTRY).map_err(Error::io("read offset index", path))?;
    Ok((base.wrapping_add(i64::from(be!(i32, raw, 0))), be!(i32, raw, 4)))
}

/// Binary search as in the broker: in the warm end if the target lies there, else in the rest. On a sorted index any
/// search finds the same; on garbage only this one does.
fn search_file(path: &Path, base: i64, target: i64) -> Result<u64> {
    let (file, entries) = open_index(path)?;
    if entries == 0 {
        return Ok(0);
    }
    let entry = |n| read_entry(&file, path, base, n);
    let first_warm = (entries - 1).saturating_sub(WARM_ENTRIES);
    let (mut low, mut high) = if entry(first_warm)?.0 < target {
        (first_warm, entries - 1)
    } else if entry(0)?.0 > target {
        return Ok(0);
    } else {
        (0, first_warm)
    };
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        let found = entry(middle)?.0;
        match found.cmp(&target) {
            std::cmp::Ordering::Greater => high = middle - 1,
            std::cmp::Ordering::Less => low = middle,
            std::cmp::Ordering::Equal => {
                low = middle;
                break;
            }
        }
    }
    Ok(u64::try_from(entry(low)?.1).unwrap_or(0))
}

/// A segment as a reader that trusts it sees it.
#[derive(Clone, Debug)]
pub(crate) struct TrustedSegment<'a> {
    pub(crate) path: PathBuf,
    pub(crate) base: i64,
    /// Bytes that count; the file may be longer when its cut is decided but not done.
    pub(crate) size: u64,
    pub(crate) index: OffsetIndex<'a>,
}

fn corrupt(path: &Path, position: u64, what: &str) -> Error {
    Error::refused(
        path,
        format!("{what} at byte {position} of a segment that counts as flushed"),
        "restore the segment from a replica, or lower the partition's recovery point so that it is recovered",
    )
}

impl TrustedSegment<'_> {
    fn batches<'f>(&self, file: &'f File, from: u64, to: u64, control: &'f Control) -> BatchReader<'f> {
        BatchReader::new(file, from, to.min(self.size), false, control)
    }

    fn next(&self, reader: &mut BatchReader<'_>) -> Result<Option<BatchHeader>> {
        match reader.step().map_err(|error| read_error(error, &self.path))? {
            Step::Batch(header) => Ok(Some(header)),
            Step::End { .. } => Ok(None),
            Step::Corrupt(corruption) => Err(corrupt(&self.path, reader.position(), corruption.text())),
        }
    }

    /// Where the batch begins that holds `target`, or the first one behind it. (The base offset of a compressed batch
    /// of magic 0 or 1 lies inside the compressed data; its last offset stands for it, which on ascending offsets
    /// leads to the same batch.)
    fn translate(&self, file: &File, target: i64, control: &Control) -> Result<Option<u64>> {
        let from = self.index.position(self.base, target)?;
        let mut reader = self.batches(file, from, self.size, control);
        let mut before: Option<(u64, i64)> = None;
        loop {
            let at = reader.position();
            let Some(header) = self.next(&mut reader)? else {
                break;
            };
            if header.base_offset == target {
                return Ok(Some(at));
            }
            if header.base_offset > target {
                return Ok(Some(before.filter(|entry| entry.1 >= target).map_or(at, |entry| entry.0)));
            }
            before = Some((at, header.last_offset()));
        }
        Ok(before.filter(|entry| entry.1 >= target).map(|entry| entry.0))
    }

    /// Last offset + 1 of the last batch, found as the broker finds it.
    pub(crate) fn next_offset(&self, control: &Control) -> Result<i64> {
        let (file, _) = open_segment(&self.path)?;
        let last = self.index.last_offset(self.base)?;
        let Some(from) = self.translate(&file, last, control)? else {
            return Ok(self.base);
        };
        let mut reader = self.batches(&file, from, self.size, control);
        let mut next = self.base;
        while let Some(header) = self.next(&mut reader)? {
            next = header.last_offset().wrapping_add(1);
        }
        Ok(next)
    }

    /// What the batches from offset `from` on do to producers, up to the batch that holds `to` (excluded) if given.
    /// `None` when no batch reaches `from`.
    pub(crate) fn replay(
        &self,
        from: i64,
        to: Option<i64>,
        spool: &dyn Spool,
        control: &Control,
    ) -> Result<Option<Replayed>> {
        let (file, _) = open_segment(&self.path)?;
        let stop = match to {
            Some(to) => self.translate(&file, to, control)?.unwrap_or(self.size),
            None => self.size,
        };
        let Some(start) = self.translate(&file, from, control)? else {
            return Ok(None);
        };
        if stop < start {
            return Err(corrupt(&self.path, start, "offsets that go back across the replayed range"));
        }
        let mut reader = self.batches(&file, start, stop, control);
        let mut summary = Summary::default();
        loop {
            let at = reader.position();
            let Some(header) = self.next(&mut reader)? else {
                break;
            };
            if !header.has_producer() {
                continue;
            }
            let marker = || marker_of(&header, &mut reader, &self.path);
            match summary.batch(&header, marker, spool)? {
                Verdict::Continue => {}
                Verdict::CutAfter => {
                    return Err(corrupt(&self.path, at, "a transaction marker that cannot be read"));
                }
                Verdict::Refuse(why) => return Err(corrupt(&self.path, at, why)),
            }
        }
        let [_, producers, transactions] = summary.into_writers(spool)?;
        let [producers, transactions] = Writer::finish([producers, transactions], spool)?;
        Ok(Some(Replayed { producers, transactions }))
    }
}

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Replayed {
    /// Net effect on each producer.
    pub producers: Image,
    /// Begin and end of transactions.
    pub transactions: Image,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_can_be_searched() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("i");
        for (bytes, target, expected) in [
            (vec![], 5, 0),
            (vec![0xFF; 64], 5, 0),
            (vec![0; 80_000], 5, 0),
            ([[0, 0, 0, 1, 0, 0, 0, 9], [0, 0, 0, 7, 0, 0, 0, 99]].concat(), 7, 99),
            ([[0, 0, 0, 1, 0, 0, 0, 9], [0, 0, 0, 7, 0, 0, 0, 99]].concat(), 6, 9),
            ([[0, 0, 0, 1, 0, 0, 0, 9], [0, 0, 0, 7, 0, 0, 0, 99]].concat(), 0, 0),
        ] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(search_file(&path, 0, target).expect("searched"), expected);
        }
    }
}
