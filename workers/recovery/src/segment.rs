//! Verifies one segment: finds where it must be cut, builds its indexes, sums up what it does to its partition.
//!
//! Nothing here knows other segments or writes into the log dir, so segments can be verified in any order, by any
//! thread or process that sees the disk. The rules are those of the broker's own segment recovery (Kafka 4.4), the order
//! of its checks included.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::batch::{BatchHeader, Marker, be, read_marker};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::reader::{BatchReader, CONTROL_BATCH_LIMIT, Corruption, Step};
use crate::report::PartitionReport;
use crate::spool::{Image, Spool, Writer};
use crate::summary::{EPOCH_BYTES, PRODUCER_BYTES, Summary, TRANSACTION_BYTES, Verdict};

/// Bytes of an offset index entry: relative offset `i32`, position `i32`.
const OFFSET_ENTRY: i32 = 8;
/// Bytes of a time index entry: timestamp `i64`, relative offset `i32`.
const TIME_ENTRY: i32 = 12;

/// One segment to verify. Everything a worker needs, and nothing of the rest of the partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentJob {
    /// The `.log` file (or the `.log.swap` that will take its name).
    pub path: PathBuf,
    /// The offset in the file's name.
    pub base_offset: i64,
    /// The topic's `index.interval.bytes`.
    pub index_interval_bytes: i32,
    /// The topic's `segment.index.bytes`.
    pub segment_index_bytes: i32,
}

/// What tells whether a file is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl FileIdentity {
    /// The identity of the file at `path` as it is now.
    ///
    /// # Errors
    /// When the file cannot be looked at.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::of(&std::fs::metadata(path).map_err(Error::io("look at segment", path))?))
    }

    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        }
    }
}

/// How the scan of a segment ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "kebab-case")]
pub enum ScanEnd {
    /// Every byte belongs to a valid batch.
    Complete,
    /// The file ends inside a batch.
    Torn,
    /// Bytes at `valid_bytes` are no batch.
    Corrupt {
        /// Why not.
        corruption: Corruption,
    },
    /// An offset goes back at an index entry: a broker empties the whole segment.
    OffsetsGoBack {
        /// Where the batch begins whose offset is not above that of the last index entry.
        position: u64,
    },
    /// An offset that does not fit the segment: a broker tries to split it, which fails on damaged data. Indexes and
    /// summary are those of the batches before it.
    Overflow {
        /// The last offset of the batch at `valid_bytes`.
        offset: i64,
    },
    /// A broker does not start on this.
    Refused {
        /// Where the batch begins.
        position: u64,
        /// What was found.
        why: String,
        /// What to do about it.
        hint: String,
    },
}

/// What one segment holds. Serialisable, so that a worker can hand it to whoever folds the partition; the images lie
/// in the spool that the worker wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentReport {
    /// The offset in the file's name.
    pub base_offset: i64,
    /// The file as it was read.
    pub identity: FileIdentity,
    /// Why the scan ended.
    pub end: ScanEnd,
    /// Where the log must be cut; equal to the size when nothing must be.
    pub valid_bytes: u64,
    /// Last offset + 1 of the last valid batch, or the base offset.
    pub next_offset: i64,
    /// Valid batches.
    pub batches: u64,
    /// Records in them, as their headers say.
    pub records: u64,
    /// Largest timestamp in milliseconds, -1 when none.
    pub max_timestamp: i64,
    /// Last offset + 1 of the last batch of magic 2, if there is one.
    pub map_end: Option<i64>,
    /// The offset index as it must be.
    pub offset_index: Image,
    /// The time index as it must be.
    pub time_index: Image,
    /// Rises of the leader epoch.
    pub epochs: Image,
    /// Net effect on each producer.
    pub producers: Image,
    /// Begin and end of transactions.
    pub transactions: Image,
}

impl SegmentReport {
    /// Bytes that must be cut from the log.
    #[must_use]
    pub fn cut_bytes(&self) -> u64 {
        self.identity.size - self.valid_bytes
    }

    /// Whether this can be a report on `job`: sizes and order of everything in it fit each other and the file. To be asked of
    /// reports that another process made; it does not prove that the report is true.
    ///
    /// # Errors
    /// What does not fit, or that `spool` cannot be read.
    pub fn check(&self, job: &SegmentJob, spool: &dyn Spool) -> std::result::Result<(), String> {
        let whole = matches!(self.end, ScanEnd::Complete);
        let ends = self.valid_bytes <= self.identity.size && (!whole || self.valid_bytes == self.identity.size);
        if self.base_offset != job.base_offset || !ends || self.next_offset < self.base_offset {
            return Err("its offsets or bytes do not fit the segment".to_owned());
        }
        let entries = [
            (&self.offset_index, OFFSET_ENTRY as u64, "offset index"),
            (&self.time_index, TIME_ENTRY as u64, "time index"),
            (&self.epochs, EPOCH_BYTES as u64, "epochs"),
            (&self.producers, PRODUCER_BYTES as u64, "producers"),
            (&self.transactions, TRANSACTION_BYTES as u64, "transactions"),
        ];
        for (image, entry, what) in entries {
            let parts = image.parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.1));
            if parts != Some(image.length) || image.length % entry != 0 {
                return Err(format!("its {what} have no possible length"));
            }
        }
        let capacity = job.segment_index_bytes.max(0) as u64;
        if self.offset_index.length.max(self.time_index.length) > capacity {
            return Err("its indexes are larger than an index may be".to_owned());
        }
        let mut last = (-1_i64, 0_u64);
        let mut in_order = true;
        self.offset_index
            .entries::<8>(spool, |entry| {
                let (offset, position) = (i64::from(be!(i32, entry, 0)), u64::from(be!(u32, entry, 4)));
                in_order &= offset > last.0 && position > last.1 && position < self.valid_bytes;
                last = (offset, position);
                Ok(())
            })
            .map_err(|error| error.to_string())?;
        let mut last = (-1_i64, 0_i32);
        self.time_index
            .entries::<12>(spool, |entry| {
                let (timestamp, offset) = (be!(i64, entry, 0), be!(i32, entry, 8));
                in_order &= timestamp > last.0 && offset >= last.1 && timestamp <= self.max_timestamp;
                last = (timestamp, offset);
                Ok(())
            })
            .map_err(|error| error.to_string())?;
        if in_order { Ok(()) } else { Err("the entries of its indexes are not in order".to_owned()) }
    }

    /// The same report with its images copied from the side file of the worker that made it into another spool.
    ///
    /// # Errors
    /// When either spool fails, or an image is not what the worker wrote.
    pub fn import(self, from: &dyn Spool, to: &dyn Spool) -> Result<Self> {
        Ok(Self {
            offset_index: self.offset_index.copy(from, to)?,
            time_index: self.time_index.copy(from, to)?,
            epochs: self.epochs.copy(from, to)?,
            producers: self.producers.copy(from, to)?,
            transactions: self.transactions.copy(from, to)?,
            ..self
        })
    }
}

/// Who verifies the segments of a recovery: this process, or workers that it asks.
///
/// A verifier is called from as many threads as the recovery has, and [`Verifier::slots`] more, one segment each, inside a
/// span of the partition's trace; it may block for as long as it needs, and should end when [`Control::check`] says so. It must return what [`verify_segment`] returns for the file as it is now, with the images in `spool`
/// ([`SegmentReport::import`] brings them there), and count the bytes with [`Control::count`], so that progress is told.
pub trait Verifier: Sync {
    /// Verifies one segment.
    ///
    /// # Errors
    /// When the segment could not be verified; never because of what it holds.
    fn verify(&self, job: &SegmentJob, spool: &dyn Spool, control: &Control) -> Result<SegmentReport>;

    /// How many segments may be out at once beside those that the run's own threads are at.
    fn slots(&self) -> usize {
        0
    }

    /// A partition of the log dir `dir` was folded and, unless this is a check, repaired; or it failed. Called in the
    /// partition's span.
    fn partition_done(&self, dir: &Path, report: &PartitionReport) {
        let _ = (dir, report);
    }
}

/// Verifies in the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here;

impl Verifier for Here {
    fn verify(&self, job: &SegmentJob, spool: &dyn Spool, control: &Control) -> Result<SegmentReport> {
        verify_segment(job, spool, control)
    }
}

/// Opens a segment and checks that a broker could.
pub(crate) fn open_segment(path: &Path) -> Result<(File, FileIdentity)> {
    let file = File::open(path).map_err(Error::io("open segment", path))?;
    let identity = FileIdentity::of(&file.metadata().map_err(Error::io("look at segment", path))?);
    if identity.size > i32::MAX as u64 {
        return Err(Error::refused(
            path,
            format!("a segment of {} bytes, above the 2147483647 that a broker can open", identity.size),
            "move the file away if it is no segment",
        ));
    }
    Ok((file, identity))
}

/// Turns an error while reading into ours: stopped by the control, or the disk.
pub(crate) fn read_error(error: std::io::Error, path: &Path) -> Error {
    match error.downcast::<Error>() {
        Ok(ours) => ours,
        Err(error) => Error::io("read segment", path)(error),
    }
}

/// Verifies one segment.
///
/// Reads the file once, front to back, in reads of half a megabyte; memory does not depend on its size (a summary of
/// each producer in it is kept). The report is the result even when the segment is damaged or refused.
///
/// # Errors
/// When the file cannot be opened or read, when the spool cannot be written, or when `control` says stop. Never
/// because of what the file holds: damage is a result.
pub fn verify_segment(job: &SegmentJob, spool: &dyn Spool, control: &Control) -> Result<SegmentReport> {
    let (file, identity) = open_segment(&job.path)?;
    let mut scan = Scan::new(job, spool);
    let mut reader = BatchReader::new(&file, 0, identity.size, true, control);
    let end = loop {
        match reader.step().map_err(|error| read_error(error, &job.path))? {
            Step::Batch(header) => {
                if let Some(end) = scan.batch(&header, &mut reader)? {
                    break end;
                }
            }
            Step::End { torn: false } => break ScanEnd::Complete,
            Step::End { torn: true } => break ScanEnd::Torn,
            Step::Corrupt(corruption) => break ScanEnd::Corrupt { corruption },
        }
    };
    scan.finish(end, identity)
}

/// The running state of a scan.
struct Scan<'a> {
    job: &'a SegmentJob,
    spool: &'a dyn Spool,
    offset_index: Writer,
    time_index: Writer,
    offset_entries: i32,
    time_entries: i32,
    last_indexed_offset: i64,
    /// Position of the first index entry, if its offset is the base offset itself, and the next offset before it.
    entry_at_base: Option<(u64, i64)>,
    last_time: (i64, i64),
    /// Running maximum: timestamp, and last offset of the batch that has it.
    max_time: (i64, i64),
    last_entry_position: u64,
    valid_bytes: u64,
    next_offset: i64,
    batches: u64,
    records: u64,
    summary: Summary,
}

impl<'a> Scan<'a> {
    fn new(job: &'a SegmentJob, spool: &'a dyn Spool) -> Self {
        Self {
            job,
            spool,
            offset_index: Writer::default(),
            time_index: Writer::default(),
            offset_entries: 0,
            time_entries: 0,
            last_indexed_offset: job.base_offset,
            entry_at_base: None,
            last_time: (-1, job.base_offset),
            max_time: (-1, job.base_offset),
            last_entry_position: 0,
            valid_bytes: 0,
            next_offset: job.base_offset,
            batches: 0,
            records: 0,
            summary: Summary::default(),
        }
    }

    fn refuse(&self, why: impl Into<String>, hint: &str) -> Option<ScanEnd> {
        Some(ScanEnd::Refused { position: self.valid_bytes, why: why.into(), hint: hint.to_owned() })
    }

    /// Takes one valid batch; `Some` ends the scan.
    fn batch(&mut self, header: &BatchHeader, reader: &mut BatchReader<'_>) -> Result<Option<ScanEnd>> {
        let last = header.last_offset();
        let relative = last.wrapping_sub(self.job.base_offset);
        if !(0..=i64::from(i32::MAX)).contains(&relative) {
            return Ok(Some(ScanEnd::Overflow { offset: last }));
        }
        if header.max_timestamp > self.max_time.0 {
            self.max_time = (header.max_timestamp, last);
        }
        if self.valid_bytes - self.last_entry_position > self.job.index_interval_bytes.max(0) as u64
            && let Some(end) = self.index_entry(last, relative as i32)?
        {
            return Ok(Some(end));
        }
        self.valid_bytes += header.size;
        self.next_offset = last.wrapping_add(1);
        self.batches += 1;
        self.records += u64::try_from(header.records).unwrap_or(0);
        if header.magic < 2 {
            return Ok(None);
        }
        self.summary.epoch(header, self.spool)?;
        let path = &self.job.path;
        let marker = || marker_of(header, reader, path);
        Ok(match self.summary.batch(header, marker, self.spool)? {
            Verdict::Continue => None,
            Verdict::CutAfter => Some(ScanEnd::Corrupt { corruption: Corruption::MalformedMarker }),
            Verdict::Refuse(why) => {
                self.refuse(why, "look at the segment with kafka-dump-log; only restoring a good copy helps")
            }
        })
    }

    fn index_entry(&mut self, last: i64, relative: i32) -> Result<Option<ScanEnd>> {
        let capacity = self.job.segment_index_bytes;
        if self.offset_entries >= capacity / OFFSET_ENTRY || self.time_entries >= capacity / TIME_ENTRY - 1 {
            let interval = self.job.index_interval_bytes;
            return Ok(self.refuse(
                format!("an index of {capacity} bytes is full at byte {}", self.valid_bytes),
                &format!("segment.index.bytes={capacity} and index.interval.bytes={interval} do not fit this segment; give the settings it was written with"),
            ));
        }
        if self.offset_entries > 0 && last <= self.last_indexed_offset {
            return Ok(Some(ScanEnd::OffsetsGoBack { position: self.valid_bytes }));
        }
        if self.offset_entries == 0 && relative == 0 {
            self.entry_at_base = Some((self.valid_bytes, self.next_offset));
        }
        self.offset_index.push(&relative.to_be_bytes(), self.spool)?;
        // Positions fit 31 bits: larger files are refused when they are opened.
        self.offset_index.push(&(self.valid_bytes as u32).to_be_bytes(), self.spool)?;
        self.offset_entries += 1;
        self.last_indexed_offset = last;
        if self.time_goes_back() {
            return Ok(Some(ScanEnd::OffsetsGoBack { position: self.valid_bytes }));
        }
        self.time_entry()?;
        self.last_entry_position = self.valid_bytes;
        Ok(None)
    }

    fn time_goes_back(&self) -> bool {
        self.time_entries > 0 && self.max_time.1 < self.last_time.1
    }

    fn time_entry(&mut self) -> Result<()> {
        if self.max_time.0 > self.last_time.0 {
            let relative = self.max_time.1.wrapping_sub(self.job.base_offset) as i32;
            self.time_index.push(&self.max_time.0.to_be_bytes(), self.spool)?;
            self.time_index.push(&relative.to_be_bytes(), self.spool)?;
            self.time_entries += 1;
            self.last_time = self.max_time;
        }
        Ok(())
    }

    fn finish(mut self, mut end: ScanEnd, identity: FileIdentity) -> Result<SegmentReport> {
        // A closed segment always ends its time index with the largest timestamp.
        if !matches!(end, ScanEnd::Refused { .. } | ScanEnd::OffsetsGoBack { .. }) {
            if self.time_goes_back() {
                end = ScanEnd::OffsetsGoBack { position: self.valid_bytes };
            } else {
                self.time_entry()?;
            }
        }
        if matches!(end, ScanEnd::OffsetsGoBack { .. }) {
            // A broker looks the base offset up in the index it has built so far and cuts where that leads: at 0, but
            // for a first entry that carries the base offset itself. Then it empties the indexes.
            (self.valid_bytes, self.next_offset) = self.entry_at_base.unwrap_or((0, self.job.base_offset));
            self.offset_index.clear();
            self.time_index.clear();
        }
        let map_end = self.summary.map_end;
        let [epochs, producers, transactions] = self.summary.into_writers(self.spool)?;
        let writers = [self.offset_index, self.time_index, epochs, producers, transactions];
        let [offset_index, time_index, epochs, producers, transactions] = Writer::finish(writers, self.spool)?;
        Ok(SegmentReport {
            base_offset: self.job.base_offset,
            identity,
            end,
            valid_bytes: self.valid_bytes,
            next_offset: self.next_offset,
            batches: self.batches,
            records: self.records,
            max_timestamp: self.max_time.0,
            map_end,
            offset_index,
            time_index,
            epochs,
            producers,
            transactions,
        })
    }
}

/// Reads the record of a control batch that `reader` has just returned.
pub(crate) fn marker_of(header: &BatchHeader, reader: &mut BatchReader<'_>, path: &Path) -> Result<Marker> {
    match reader.bytes_of(header).map_err(|error| read_error(error, path))? {
        Some(bytes) => Ok(read_marker(header, &bytes)),
        None => {
            const _: () = assert!(CONTROL_BATCH_LIMIT == 65_536, "the text below names the limit");
            Ok(Marker::Refused("a control batch above 65536 bytes, which no broker writes"))
        }
    }
}
