//! What a segment does to the state of its partition, without knowing that state.
//!
//! Producers, open transactions and leader epochs depend on everything before a segment. So that segments can be read
//! in any order, a scan reduces each to three lists whose size depends on producers and transactions, not on batches:
//!
//! - **epochs**: (epoch `i32`, base offset `i64`) whenever the leader epoch rises inside the segment;
//! - **producers**: one [`ProducerDelta`] per producer in order of first appearance, the net effect of all its batches;
//! - **transactions**: first batch and end of each transaction in log order, which is what the transaction index and
//!   its "last stable offset" need.
//!
//! `fold` applies them in offset order; that costs no second read of the log.

use std::collections::HashMap;

use crate::batch::{BatchHeader, Marker, be};
use crate::error::Result;
use crate::spool::{Spool, Writer};

/// Bytes of an encoded [`ProducerDelta`].
pub(crate) const PRODUCER_BYTES: usize = 43;
/// Bytes of an encoded [`TransactionEvent`].
pub(crate) const TRANSACTION_BYTES: usize = 17;
/// Bytes of an encoded rise of the leader epoch.
pub(crate) const EPOCH_BYTES: usize = 12;

/// The last batch of data of a producer: what a producer snapshot keeps of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastBatch {
    pub(crate) last_sequence: i32,
    pub(crate) last_offset: i64,
    pub(crate) offset_delta: i32,
}

/// What becomes of the last batch that was known before the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastData {
    /// It stays, if the producer epoch before the segment is the first one inside it.
    Kept,
    /// It is forgotten: the producer epoch changed and no data followed.
    Gone,
    /// Another took its place.
    Replaced(LastBatch),
}

/// The net effect of a segment on one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProducerDelta {
    pub(crate) id: i64,
    /// The first batch is data outside a transaction: a broker fails on it if a transaction is open at that point.
    pub(crate) starts_plain: bool,
    /// Producer epoch of the first and of the last batch; `None` when only empty control batches were seen.
    pub(crate) epochs: Option<(i16, i16)>,
    pub(crate) data: LastData,
    pub(crate) coordinator_epoch: Option<i32>,
    pub(crate) timestamp: i64,
}

/// A transaction begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionEvent {
    pub(crate) kind: TransactionKind,
    pub(crate) producer_id: i64,
    /// Base offset of the first batch, or of the marker.
    pub(crate) offset: i64,
}

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionKind {
    /// Begins here, unless the producer's transaction is open already.
    Begin,
    Commit,
    Abort,
}

/// What a transaction of a producer is known to be while its segment is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    Unknown,
    Open,
    Closed,
}

/// What the scan must do after a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Continue,
    /// Keep this batch and cut behind it.
    CutAfter,
    /// A broker would not start.
    Refuse(&'static str),
}

/// Builds the three lists.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    by_id: HashMap<i64, usize>,
    deltas: Vec<(ProducerDelta, Local)>,
    pub(crate) transactions: Writer,
    pub(crate) epochs: Writer,
    highest_epoch: Option<i32>,
    /// Last offset + 1 of the last batch of magic 2.
    pub(crate) map_end: Option<i64>,
}

impl Summary {
    /// Notes a rise of the leader epoch. Batches that do not rise above what the segment has shown so far can never
    /// enter the list of epochs, whatever it holds, because its last epoch is then at least as high.
    pub(crate) fn epoch(&mut self, header: &BatchHeader, spool: &dyn Spool) -> Result<()> {
        let epoch = header.leader_epoch;
        if epoch >= 0 && self.highest_epoch.is_none_or(|highest| epoch > highest) {
            self.highest_epoch = Some(epoch);
            self.epochs.push(&epoch.to_be_bytes(), spool)?;
            self.epochs.push(&header.base_offset.to_be_bytes(), spool)?;
        }
        Ok(())
    }

    /// Notes what a batch of a producer does; `marker` reads the record of a control batch.
    pub(crate) fn batch(
        &mut self,
        header: &BatchHeader,
        marker: impl FnOnce() -> Result<Marker>,
        spool: &dyn Spool,
    ) -> Result<Verdict> {
        if header.has_producer() {
            let marker = if header.is_control() { Some(marker()?) } else { None };
            match marker {
                Some(Marker::Malformed(_)) => return Ok(Verdict::CutAfter),
                Some(Marker::Refused(why)) => return Ok(Verdict::Refuse(why)),
                _ => {}
            }
            let slot = self.slot(header.producer_id);
            let verdict = match marker {
                Some(Marker::End { abort, coordinator_epoch, timestamp }) => {
                    self.marker(slot, header, abort, coordinator_epoch, timestamp, spool)?;
                    Verdict::Continue
                }
                Some(_) => Verdict::Continue,
                None => self.data(slot, header, spool)?,
            };
            if verdict != Verdict::Continue {
                return Ok(verdict);
            }
        }
        self.map_end = Some(header.last_offset().wrapping_add(1));
        Ok(Verdict::Continue)
    }

    fn slot(&mut self, id: i64) -> usize {
        let next = self.deltas.len();
        let slot = *self.by_id.entry(id).or_insert(next);
        if slot == next {
            let delta = ProducerDelta {
                id,
                starts_plain: false,
                epochs: None,
                data: LastData::Kept,
                coordinator_epoch: None,
                timestamp: -1,
            };
            self.deltas.push((delta, Local::Unknown));
        }
        slot
    }

    fn data(&mut self, slot: usize, header: &BatchHeader, spool: &dyn Spool) -> Result<Verdict> {
        let (delta, local) = &mut self.deltas[slot];
        delta.see_epoch(header.producer_epoch);
        delta.timestamp = header.max_timestamp;
        delta.data = LastData::Replaced(LastBatch {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
        });
        match (header.is_transactional(), *local) {
            (false, Local::Open) => {
                return Ok(Verdict::Refuse("a batch outside a transaction while its producer's transaction is open"));
            }
            (false, Local::Unknown) => {
                delta.starts_plain = true;
                *local = Local::Closed;
            }
            (true, Local::Unknown | Local::Closed) => {
                *local = Local::Open;
                self.transaction(TransactionKind::Begin, header, spool)?;
            }
            (true, Local::Open) | (false, Local::Closed) => {}
        }
        Ok(Verdict::Continue)
    }

    fn marker(
        &mut self,
        slot: usize,
        header: &BatchHeader,
        abort: bool,
        coordinator_epoch: i32,
        timestamp: i64,
        spool: &dyn Spool,
    ) -> Result<()> {
        let (delta, local) = &mut self.deltas[slot];
        delta.see_epoch(header.producer_epoch);
        delta.coordinator_epoch = Some(coordinator_epoch);
        delta.timestamp = timestamp;
        if *local != Local::Closed {
            *local = Local::Closed;
            let kind = if abort { TransactionKind::Abort } else { TransactionKind::Commit };
            self.transaction(kind, header, spool)?;
        }
        Ok(())
    }

    fn transaction(&mut self, kind: TransactionKind, header: &BatchHeader, spool: &dyn Spool) -> Result<()> {
        let event = TransactionEvent { kind, producer_id: header.producer_id, offset: header.base_offset };
        self.transactions.push(&event.encode(), spool)
    }

    /// The encoded producers, and the other two lists.
    pub(crate) fn into_writers(self, spool: &dyn Spool) -> Result<[Writer; 3]> {
        let mut producers = Writer::default();
        for (delta, _) in &self.deltas {
            producers.push(&delta.encode(), spool)?;
        }
        Ok([self.epochs, producers, self.transactions])
    }
}

impl ProducerDelta {
    fn see_epoch(&mut self, epoch: i16) {
        match &mut self.epochs {
            None => self.epochs = Some((epoch, epoch)),
            Some((_, last)) if *last != epoch => {
                *last = epoch;
                self.data = LastData::Gone;
            }
            Some(_) => {}
        }
    }

    fn encode(&self) -> [u8; PRODUCER_BYTES] {
        let mut out = [0; PRODUCER_BYTES];
        out[..8].copy_from_slice(&self.id.to_be_bytes());
        out[8] = u8::from(self.starts_plain)
            | u8::from(self.epochs.is_some()) << 1
            | u8::from(self.coordinator_epoch.is_some()) << 2;
        let (first, last) = self.epochs.unwrap_or_default();
        out[9..11].copy_from_slice(&first.to_be_bytes());
        out[11..13].copy_from_slice(&last.to_be_bytes());
        out[13..17].copy_from_slice(&self.coordinator_epoch.unwrap_or_default().to_be_bytes());
        out[17..25].copy_from_slice(&self.timestamp.to_be_bytes());
        match self.data {
            LastData::Kept => {}
            LastData::Gone => out[25] = 1,
            LastData::Replaced(batch) => {
                out[25] = 2;
                out[26..30].copy_from_slice(&batch.last_sequence.to_be_bytes());
                out[30..38].copy_from_slice(&batch.last_offset.to_be_bytes());
                out[38..42].copy_from_slice(&batch.offset_delta.to_be_bytes());
            }
        }
        out
    }

    pub(crate) fn decode(raw: &[u8; PRODUCER_BYTES]) -> Self {
        Self {
            id: be!(i64, raw, 0),
            starts_plain: raw[8] & 1 != 0,
            epochs: (raw[8] & 2 != 0).then(|| (be!(i16, raw, 9), be!(i16, raw, 11))),
            coordinator_epoch: (raw[8] & 4 != 0).then(|| be!(i32, raw, 13)),
            timestamp: be!(i64, raw, 17),
            data: match raw[25] {
                0 => LastData::Kept,
                1 => LastData::Gone,
                _ => LastData::Replaced(LastBatch {
                    last_sequence: be!(i32, raw, 26),
                    last_offset: be!(i64, raw, 30),
                    offset_delta: be!(i32, raw, 38),
                }),
            },
        }
    }
}

impl TransactionEvent {
    fn encode(self) -> [u8; TRANSACTION_BYTES] {
        let mut out = [0; TRANSACTION_BYTES];
        out[0] = match self.kind {
            TransactionKind::Begin => 0,
            TransactionKind::Commit => 1,
            TransactionKind::Abort => 2,
        };
        out[1..9].copy_from_slice(&self.producer_id.to_be_bytes());
        out[9..].copy_from_slice(&self.offset.to_be_bytes());
        out
    }

    pub(crate) fn decode(raw: &[u8; TRANSACTION_BYTES]) -> Self {
        Self {
            kind: match raw[0] {
                0 => TransactionKind::Begin,
                1 => TransactionKind::Commit,
                _ => TransactionKind::Abort,
            },
            producer_id: be!(i64, raw, 1),
            offset: be!(i64, raw, 9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back() {
        let delta = ProducerDelta {
            id: i64::MAX,
            starts_plain: true,
            epochs: Some((-1, 7)),
            data: LastData::Replaced(LastBatch { last_sequence: -1, last_offset: 1 << 40, offset_delta: 3 }),
            coordinator_epoch: Some(9),
            timestamp: -5,
        };
        for delta in [
            delta,
            ProducerDelta { data: LastData::Gone, epochs: None, coordinator_epoch: None, ..delta },
            ProducerDelta { data: LastData::Kept, starts_plain: false, ..delta },
        ] {
            assert_eq!(ProducerDelta::decode(&delta.encode()), delta);
        }
        for kind in [TransactionKind::Begin, TransactionKind::Commit, TransactionKind::Abort] {
            let event = TransactionEvent { kind, producer_id: 4, offset: i64::MIN };
            assert_eq!(TransactionEvent::decode(&event.encode()), event);
        }
    }
}
