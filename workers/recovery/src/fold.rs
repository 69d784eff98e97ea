//! Folds the reports of a partition's segments in offset order: where the log ends, what each file must hold.
//!
//! This is the broker's loading and recovery (Kafka 4.4) over a picture of the folder instead of the folder itself: cuts,
//! indexes and snapshots only change the picture, and the result is a [`PartitionChange`] that `repair` carries out. No
//! log data is read, but for producers of flushed segments whose snapshot is missing, and that may have been prepared.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::change::{Content, Cut, FoldInput, PartitionChange, Removed, SegmentChange};
use crate::checkpoint::Epochs;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::{PartitionPlan, PlannedIndex, PlannedSegment};
use crate::producers::{Producers, read_snapshot, read_snapshot_image};
use crate::replay::{OffsetIndex, TrustedSegment};
use crate::segment::{ScanEnd, SegmentReport};
use crate::spool::{Image, Spool, Writer};
use crate::summary::{EPOCH_BYTES, PRODUCER_BYTES, ProducerDelta, TRANSACTION_BYTES, TransactionEvent};

/// A segment in the picture.
struct Segment<'a> {
    planned: Option<&'a PlannedSegment>,
    path: PathBuf,
    base: i64,
    size: u64,
    index: OffsetIndex<'a>,
    next_offset: Option<i64>,
    change: SegmentChange<'a>,
    has_transaction_index: bool,
}

#[derive(Clone, Debug)]
enum Snapshot {
    OnDisk,
    New(Image),
}

struct Fold<'a, 'p> {
    plan: &'a PartitionPlan,
    input: &'p FoldInput<'a>,
    control: &'p Control,
    segments: Vec<Segment<'a>>,
    removed: Vec<Removed>,
    snapshots: BTreeMap<i64, Snapshot>,
    epochs: Epochs,
}

/// Folds a partition.
///
/// # Errors
/// [`Error::Refused`] when a broker would not start on it; when files or spools cannot be read; when `control` says
/// stop.
pub fn fold_partition<'a>(
    plan: &'a PartitionPlan,
    input: &FoldInput<'a>,
    control: &Control,
) -> Result<PartitionChange<'a>> {
    let snapshots = plan.snapshots.keys().map(|offset| (*offset, Snapshot::OnDisk)).collect();
    let epochs = plan.epochs.clone();
    let mut fold = Fold { plan, input, control, segments: Vec::new(), removed: Vec::new(), snapshots, epochs };
    for planned in &plan.segments {
        let segment = fold.enter(planned);
        if planned.early.is_some() {
            let count = fold.segments.len();
            fold.segments.push(segment);
            fold.recover(count, count, true)?;
        } else {
            fold.segments.push(segment);
        }
    }
    let unflushed = fold.recover_unflushed()?;
    fold.finish(unflushed)
}

impl<'a> Fold<'a, '_> {
    fn enter(&self, planned: &'a PlannedSegment) -> Segment<'a> {
        let index = match &planned.index {
            PlannedIndex::Missing => OffsetIndex::Empty,
            PlannedIndex::Zeros => OffsetIndex::Empty,
            PlannedIndex::File(name) => OffsetIndex::File(self.plan.path.join(name)),
        };
        let change = SegmentChange {
            base: planned.base,
            cut: None,
            offset_index: None,
            time_index: (!planned.has_time_index).then_some(Content::Empty),
            transaction_index: None,
            early: planned.early.is_some(),
            verified: planned.verify,
        };
        Segment {
            planned: Some(planned),
            path: self.plan.path.join(&planned.log),
            base: planned.base,
            size: planned.size,
            index,
            next_offset: None,
            change,
            has_transaction_index: planned.has_transaction_index,
        }
    }

    fn refuse(&self, path: &std::path::Path, why: impl Into<String>) -> Error {
        Error::refused(path, why, "a broker does not start on it; restore the partition from a replica or move it away")
    }

    /// Step 4: recovers from the segment that holds the recovery point on. The first cut ends the log.
    fn recover_unflushed(&mut self) -> Result<usize> {
        let first = self.plan.first_unflushed();
        let begin = self.segments.iter().position(|segment| segment.base >= first).unwrap_or(self.segments.len());
        let count = self.segments.len() - begin;
        for i in begin..self.segments.len() {
            let all = self.segments.len();
            if self.recover(i, all, false)? > 0 {
                let base = self.segments[i].base;
                let why = format!("segment {base} before it was cut");
                for segment in self.segments.split_off(i + 1) {
                    // A broker deletes the snapshots of these segments that it knew before recovery began; one that
                    // recovery has made since stays.
                    if self.plan.snapshots.contains_key(&segment.base) {
                        self.snapshots.remove(&segment.base);
                    }
                    self.removed.push(Removed { base: segment.base, size: segment.size, why: why.clone() });
                }
                break;
            }
        }
        Ok(count)
    }

    /// Recovers segment `i` on top of the producer state that the first `known` segments give; bytes cut.
    fn recover(&mut self, i: usize, known: usize, early: bool) -> Result<u64> {
        let base = self.segments[i].base;
        let Some(verified) = self.input.verified.get(&base) else {
            return Err(Error::setting(format!("segment {base}"), "no report was given for it"));
        };
        let (report, spool) = (&verified.report, verified.spool);
        let why = self.reason(i, report, early)?;
        let mut producers = Producers::default();
        self.rebuild(&mut producers, known, self.plan.log_start, base)?;
        let aborted = self.apply(i, report, spool, &mut producers)?;
        if let Some(end) = report.map_end {
            producers.end = end;
        }
        let emptied = matches!(report.end, ScanEnd::OffsetsGoBack { .. });
        let segment = &mut self.segments[i];
        let cut = segment.size.saturating_sub(report.valid_bytes);
        if cut > 0 {
            segment.change.cut = Some(Cut {
                size_before: segment.size,
                size_after: report.valid_bytes,
                next_offset: report.next_offset,
                why: why.unwrap_or_default(),
            });
        }
        segment.size = report.valid_bytes;
        segment.next_offset = Some(report.next_offset);
        segment.index = OffsetIndex::Built(report.offset_index.clone(), spool);
        segment.change.offset_index = Some(Content::Image(report.offset_index.clone(), spool));
        segment.change.time_index = Some(Content::Image(report.time_index.clone(), spool));
        if segment.has_transaction_index || aborted.length > 0 {
            let keep = !emptied && aborted.length > 0;
            segment.change.transaction_index =
                Some(if keep { Content::Image(aborted, self.input.spool) } else { Content::Empty });
            segment.has_transaction_index = true;
        }
        if !emptied {
            self.take_snapshot(&mut producers)?;
        }
        Ok(cut)
    }

    /// Why bytes of a segment go, in words; a refusal when a broker would not start.
    fn reason(&self, i: usize, report: &SegmentReport, early: bool) -> Result<Option<String>> {
        let path = &self.segments[i].path;
        let at = report.valid_bytes;
        match &report.end {
            ScanEnd::Complete => Ok(None),
            ScanEnd::Torn => Ok(Some(format!("the file ends inside a batch that begins at byte {at}"))),
            ScanEnd::Corrupt { corruption } => Ok(Some(format!("{} at byte {at}", corruption.text()))),
            ScanEnd::Overflow { offset } if self.input.truncate_overflow => {
                Ok(Some(format!("offset {offset} at byte {at} does not fit the segment")))
            }
            ScanEnd::Overflow { offset } => Err(Error::refused(
                path,
                format!("offset {offset} at byte {at} does not fit a segment that begins at {}", report.base_offset),
                "a broker would try to split the segment and fail; --truncate-overflow cuts it there like damage",
            )),
            ScanEnd::OffsetsGoBack { position } if early => {
                Err(self
                    .refuse(path, format!("offsets go back at byte {position} of a segment without usable indexes")))
            }
            ScanEnd::OffsetsGoBack { position } => {
                Ok(Some(format!("offsets go back at byte {position}, and a broker empties such a segment")))
            }
            ScanEnd::Refused { position, why, hint } => {
                Err(Error::refused(path, format!("{why} (byte {position})"), hint.clone()))
            }
        }
    }

    /// Applies epochs, producers and transactions of a segment; its transaction index.
    fn apply(
        &mut self,
        i: usize,
        report: &SegmentReport,
        spool: &dyn Spool,
        producers: &mut Producers,
    ) -> Result<Image> {
        let epochs = &mut self.epochs;
        report.epochs.entries::<EPOCH_BYTES>(spool, |entry| {
            let (epoch, offset) = entry.split_at(4);
            let epoch = i32::from_be_bytes(epoch.try_into().unwrap_or_default());
            epochs.observe(epoch, i64::from_be_bytes(offset.try_into().unwrap_or_default()));
            Ok(())
        })?;
        let path = &self.segments[i].path;
        report.producers.entries::<PRODUCER_BYTES>(spool, |entry| {
            let delta = ProducerDelta::decode(entry);
            producers.enter(delta.id);
            producers.check_start(&delta).map_err(|why| self.refuse(path, why))
        })?;
        let mut index = Writer::default();
        let mut last = None;
        report.transactions.entries::<TRANSACTION_BYTES>(spool, |entry| {
            let event = TransactionEvent::decode(entry);
            let aborted = producers.transaction(event).map_err(|why| self.refuse(path, why))?;
            if let Some(entry) = aborted {
                if last.is_some_and(|last| last >= event.offset) {
                    return Err(self.refuse(path, "aborted transactions whose markers are not in ascending order"));
                }
                last = Some(event.offset);
                index.push(&entry, self.input.spool)?;
            }
            Ok(())
        })?;
        report.producers.entries::<PRODUCER_BYTES>(spool, |entry| {
            producers.apply(&ProducerDelta::decode(entry));
            Ok(())
        })?;
        let [index] = Writer::finish([index], self.input.spool)?;
        Ok(index)
    }

    fn take_snapshot(&mut self, producers: &mut Producers) -> Result<()> {
        if producers.end > producers.snapshot_offset {
            let image = producers.snapshot(self.input.spool)?;
            self.snapshots.insert(producers.end, Snapshot::New(image));
            producers.snapshot_offset = producers.end;
        }
        Ok(())
    }

    /// Brings `producers` up to offset `end`, from the newest usable snapshot and the first `known` segments.
    fn rebuild(&mut self, producers: &mut Producers, known: usize, start: i64, end: i64) -> Result<()> {
        let was_enough = producers.is_empty() && producers.end >= end;
        self.reload(producers, start, end)?;
        if end > producers.end && !was_enough {
            let bases: Vec<i64> = self.segments[..known].iter().map(|segment| segment.base).collect();
            let to_snapshot = &bases[bases.len().saturating_sub(2)..];
            let floor = bases.iter().rposition(|base| *base <= end);
            let first = bases.iter().rposition(|base| *base <= producers.end).unwrap_or(0);
            for (i, &base) in bases.iter().enumerate().skip(first) {
                if base >= end {
                    break;
                }
                let from = base.max(producers.end).max(start);
                producers.end = from;
                if to_snapshot.contains(&base) {
                    self.take_snapshot(producers)?;
                }
                self.replay(producers, i, from, (Some(i) == floor).then_some(end))?;
            }
        }
        producers.end = end;
        self.take_snapshot(producers)
    }

    /// Drops snapshots out of range and loads the newest usable one.
    fn reload(&mut self, producers: &mut Producers, start: i64, end: i64) -> Result<()> {
        self.snapshots.retain(|offset, _| *offset <= end && *offset > start);
        if end == producers.end {
            producers.end = producers.end.max(start);
            producers.snapshot_offset = self.snapshots.keys().next_back().copied().unwrap_or(start);
            return Ok(());
        }
        producers.clear();
        while let Some((offset, snapshot)) = self.snapshots.iter().next_back().map(|(o, s)| (*o, s.clone())) {
            let (now, expiration) = (self.input.now_ms, self.input.producer_expiration_ms);
            let loaded = match snapshot {
                Snapshot::New(image) => {
                    read_snapshot_image(&image, self.input.spool, |entry| producers.load(entry, now, expiration))?;
                    true
                }
                Snapshot::OnDisk => {
                    let path = self.plan.path.join(format!("{offset:020}.snapshot"));
                    let path = self
                        .plan
                        .snapshots
                        .get(&offset)
                        .map_or(path, |name| self.plan.path.join(self.plan.present_name(name)));
                    read_snapshot(&path, |entry| producers.load(entry, now, expiration))?
                }
            };
            if loaded {
                producers.end = offset;
                producers.snapshot_offset = offset;
                return Ok(());
            }
            self.snapshots.remove(&offset);
        }
        producers.end = start;
        producers.snapshot_offset = start;
        Ok(())
    }

    fn trusted(&self, i: usize) -> TrustedSegment<'a> {
        let segment = &self.segments[i];
        TrustedSegment {
            path: segment.path.clone(),
            base: segment.base,
            size: segment.size,
            index: segment.index.clone(),
        }
    }

    fn replay(&self, producers: &mut Producers, i: usize, from: i64, to: Option<i64>) -> Result<()> {
        let prepared = self.input.replays.get(&self.segments[i].base);
        let untouched = self.segments[i].planned.is_some_and(|planned| planned.early.is_none());
        let (found, spool) = match prepared {
            Some(prepared) if to.is_none() && prepared.from == from && untouched => {
                (prepared.found.clone(), prepared.spool)
            }
            _ => (self.trusted(i).replay(from, to, self.input.spool, self.control)?, self.input.spool),
        };
        let Some(found) = found else { return Ok(()) };
        let path = &self.segments[i].path;
        let mut ids = Vec::new();
        found.producers.entries::<PRODUCER_BYTES>(spool, |entry| {
            let delta = ProducerDelta::decode(entry);
            ids.push(delta.id);
            producers.check_start(&delta).map_err(|why| self.refuse(path, why))
        })?;
        producers.enter_replayed(&ids);
        drop(ids);
        found.transactions.entries::<TRANSACTION_BYTES>(spool, |entry| {
            let event = TransactionEvent::decode(entry);
            producers.transaction(event).map(|_| ()).map_err(|why| self.refuse(path, why))
        })?;
        found.producers.entries::<PRODUCER_BYTES>(spool, |entry| {
            producers.apply(&ProducerDelta::decode(entry));
            Ok(())
        })
    }

    /// Steps 5 to 8, and what must change.
    fn finish(mut self, unflushed: usize) -> Result<PartitionChange<'a>> {
        let start = self.plan.log_start;
        let mut end = self.log_end()?;
        if let Some(reached) = end.filter(|end| *end < start) {
            let why = format!("the log ends at {reached}, before its start {start}");
            for segment in std::mem::take(&mut self.segments) {
                self.removed.push(Removed { base: segment.base, size: segment.size, why: why.clone() });
            }
            self.snapshots.clear();
            self.epochs.clear();
            end = None;
        }
        let fresh = self.segments.is_empty().then_some(start);
        let log_end = end.unwrap_or(start);
        let first_segment = self.segments.first().map_or(start, |segment| segment.base);
        let last_segment = self.segments.last().map_or(start, |segment| segment.base);
        self.epochs.cut_end(log_end);
        self.epochs.cut_start(start);
        let log_start = if self.plan.settings.remote_storage { start } else { start.max(first_segment) };
        self.drop_stray_snapshots(fresh, last_segment);
        let mut producers = Producers::default();
        let known = self.segments.len();
        self.rebuild(&mut producers, known, log_start, log_end)?;
        let plan = self.plan;
        let kept = |offset: &i64| matches!(self.snapshots.get(offset), Some(Snapshot::OnDisk));
        let delete_snapshots =
            plan.snapshots.iter().filter(|entry| !kept(entry.0)).map(|entry| entry.1.clone()).collect();
        let write_snapshots = self.snapshots.iter().filter_map(|(offset, snapshot)| match snapshot {
            Snapshot::New(image) => Some((*offset, image.clone())),
            Snapshot::OnDisk => None,
        });
        let epochs = match (self.epochs.dirty, plan.has_epochs_file) {
            (true, _) => Some(self.epochs.format()),
            (false, true) => None,
            (false, false) => Some(String::new()),
        };
        Ok(PartitionChange {
            write_snapshots: write_snapshots.collect(),
            delete_snapshots,
            segments: self.segments.into_iter().map(|segment| segment.change).collect(),
            removed: self.removed,
            fresh,
            spool: self.input.spool,
            epochs,
            log_start,
            log_end,
            first_segment,
            producers: producers.len(),
            unflushed,
        })
    }

    fn log_end(&self) -> Result<Option<i64>> {
        let Some(last) = self.segments.len().checked_sub(1) else {
            return Ok(None);
        };
        match self.segments[last].next_offset {
            Some(next) => Ok(Some(next)),
            None => self.trusted(last).next_offset(self.control).map(Some),
        }
    }

    /// Of the snapshots that belong to no segment only the newest stays, and only at or behind the last segment.
    fn drop_stray_snapshots(&mut self, fresh: Option<i64>, last_segment: i64) {
        let is_base = |offset: i64| fresh == Some(offset) || self.segments.iter().any(|segment| segment.base == offset);
        let stray: Vec<i64> = self.snapshots.keys().copied().filter(|offset| !is_base(*offset)).collect();
        let keep = stray.last().copied().filter(|offset| *offset >= last_segment);
        for offset in stray.into_iter().filter(|offset| Some(*offset) != keep) {
            self.snapshots.remove(&offset);
        }
    }
}
