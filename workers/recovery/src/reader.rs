//! Walks the batches of a segment with large positioned reads.
//!
//! A broker does two small reads a batch and a fresh buffer for each; here one buffer of a fixed size slides over the
//! file, so that a scan costs one sequential read and one checksum pass, and memory does not grow with the batches. The
//! file is never mapped: a mapped file that shrinks under us would kill the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::batch::{
    BatchHeader, HEADER_UP_TO_MAGIC, LEGACY_CRC_FROM, LOG_OVERHEAD, MIN_LENGTH, V1_HEADER, V2_CRC_FROM, V2_HEADER, be,
};
use crate::control::Control;

/// Bytes of the sliding buffer. Half a megabyte stays in a core's second-level cache, so the checksum reads it hot.
const BUFFER: usize = 512 * 1024;
/// How much to read at once when the payload is skipped and the batches are large.
const SKIMMING_READ: usize = 4 * 1024;
/// A batch above this size is worth jumping over when nobody checks it.
const WORTH_SKIPPING: u64 = 64 * 1024;
/// The most of a control batch that is looked at. Markers have 78 bytes.
pub(crate) const CONTROL_BATCH_LIMIT: u64 = 64 * 1024;

/// What the next position of a segment holds.
#[derive(Debug)]
pub(crate) enum Step {
    /// A batch that lies whole in the file and, if asked for, fits its checksum.
    Batch(BatchHeader),
    /// The readable end; `torn` when bytes are left that are no whole batch.
    End { torn: bool },
    /// Bytes that are no batch.
    Corrupt(Corruption),
}

/// Why bytes are no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corruption {
    /// The length field is below the smallest possible message (14).
    ImpossibleLength,
    /// A batch of magic 2 with a length below its own header.
    ShortBatch,
    /// The checksum does not fit.
    Checksum,
    /// The checksum fits, but a transaction marker inside cannot be read. The batch itself is kept.
    MalformedMarker,
}

impl Corruption {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::ImpossibleLength => "a length field below 14",
            Self::ShortBatch => "a batch shorter than its own header",
            Self::Checksum => "a checksum that does not fit",
            Self::MalformedMarker => "a transaction marker that cannot be read",
        }
    }
}

/// Reads batches one after another, never a byte at or behind `size`.
pub(crate) struct BatchReader<'a> {
    file: &'a File,
    control: &'a Control,
    size: u64,
    position: u64,
    check: bool,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins, and how much of it is filled.
    start: u64,
    filled: usize,
    last_size: u64,
}

impl<'a> BatchReader<'a> {
    /// A reader over bytes `from..size`. With `check` every batch's checksum is verified.
    pub(crate) fn new(file: &'a File, from: u64, size: u64, check: bool, control: &'a Control) -> Self {
        let capacity = usize::try_from(size.saturating_sub(from)).unwrap_or(BUFFER).min(BUFFER);
        Self {
            file,
            control,
            size,
            position: from,
            check,
            buffer: vec![0; capacity.max(V2_HEADER as usize)],
            start: from,
            filled: 0,
            last_size: 0,
        }
    }

    /// Where the next batch begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next batch; the position moves behind it only for [`Step::Batch`].
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        let at = self.position;
        if at.saturating_add(HEADER_UP_TO_MAGIC) >= self.size {
            return Ok(Step::End { torn: at < self.size });
        }
        let head = self.window(at, HEADER_UP_TO_MAGIC as usize)?;
        let (length, magic) = (be!(i32, head, 8), be!(i8, head, 16));
        if length < MIN_LENGTH {
            return Ok(Step::Corrupt(Corruption::ImpossibleLength));
        }
        let size = LOG_OVERHEAD + length as u64;
        if size > self.size - at {
            return Ok(Step::End { torn: true });
        }
        let header_size = match magic {
            2.. => V2_HEADER,
            0 => HEADER_UP_TO_MAGIC,
            _ => V1_HEADER,
        };
        if size < header_size {
            return Ok(Step::Corrupt(if magic >= 2 { Corruption::ShortBatch } else { Corruption::Checksum }));
        }
        // One byte more for magic 0: its attributes.
        let wanted = header_size.max(18).min(size) as usize;
        let Some(header) = BatchHeader::parse(self.window(at, wanted)?) else {
            return Ok(Step::Corrupt(Corruption::ShortBatch));
        };
        if self.check && !self.checksum_fits(at, &header)? {
            return Ok(Step::Corrupt(Corruption::Checksum));
        }
        self.position = at + size;
        self.last_size = size;
        Ok(Step::Batch(header))
    }

    /// The bytes of the batch just returned, at most [`CONTROL_BATCH_LIMIT`] of them; `None` when it is longer.
    pub(crate) fn bytes_of(&mut self, header: &BatchHeader) -> io::Result<Option<Vec<u8>>> {
        if header.size > CONTROL_BATCH_LIMIT {
            return Ok(None);
        }
        let mut bytes = vec![0; header.size as usize];
        let at = self.position - header.size;
        match self.buffered(at, bytes.len()) {
            Some(part) => bytes.copy_from_slice(part),
            None => self.file.read_exact_at(&mut bytes, at)?,
        }
        Ok(Some(bytes))
    }

    /// Whether the batch at `at` with this header fits its checksum.
    pub(crate) fn checksum_fits(&mut self, at: u64, header: &BatchHeader) -> io::Result<bool> {
        let end = at + header.size;
        if header.magic >= 2 {
            let mut crc = 0;
            self.each_part(at + V2_CRC_FROM, end, |part| crc = crc32c::crc32c_append(crc, part))?;
            Ok(crc == header.crc)
        } else {
            let mut crc = crc32fast::Hasher::new();
            self.each_part(at + LEGACY_CRC_FROM, end, |part| crc.update(part))?;
            Ok(crc.finalize() == header.crc)
        }
    }

    fn each_part(&mut self, mut from: u64, end: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        while from < end {
            let buffer_end = self.start + self.filled as u64;
            if from < self.start || from >= buffer_end {
                self.fill(from, 1)?;
                continue;
            }
            let part = &self.buffer[(from - self.start) as usize..(end.min(buffer_end) - self.start) as usize];
            take(part);
            from += part.len() as u64;
        }
        Ok(())
    }

    fn buffered(&self, at: u64, need: usize) -> Option<&[u8]> {
        let offset = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let end = offset.checked_add(need)?;
        if end > self.filled { None } else { self.buffer.get(offset..end) }
    }

    fn window(&mut self, at: u64, need: usize) -> io::Result<&[u8]> {
        if self.buffered(at, need).is_none() {
            self.fill(at, need)?;
        }
        self.buffered(at, need).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }

    /// Makes the buffer begin at `at` and hold at least `need` bytes, keeping what it already has of them.
    fn fill(&mut self, at: u64, need: usize) -> io::Result<()> {
        self.control.check()?;
        let kept = match self.buffered(at, 0) {
            Some(_) => {
                let offset = (at - self.start) as usize;
                self.buffer.copy_within(offset..self.filled, 0);
                self.filled - offset
            }
            None => 0,
        };
        self.start = at;
        self.filled = kept;
        let skim = !self.check && self.last_size > WORTH_SKIPPING;
        let room = if skim { SKIMMING_READ.min(self.buffer.len()) } else { self.buffer.len() };
        let left = usize::try_from(self.size - at).unwrap_or(usize::MAX);
        let target = room.max(need).min(left).min(self.buffer.len());
        while self.filled < target {
            let read = match self.file.read_at(&mut self.buffer[self.filled..target], at + self.filled as u64) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if read == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
            }
            self.filled += read;
            self.control.count(read as u64);
        }
        Ok(())
    }
}
