//! The producer state of a partition, its snapshots, and the transaction index.
//!
//! Snapshot format (version 1): `i16` version, `u32` CRC-32C of everything from byte 6 on, `i32` count, then entries of
//! 46 bytes. Kafka writes entries in the order of a `java.util.HashMap<Long, _>`; so do we, to leave the same bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::batch::be;
use crate::error::{Error, Result};
use crate::spool::{Image, Spool, Writer};
use crate::summary::{LastBatch, LastData, ProducerDelta, TransactionEvent, TransactionKind};

const SNAPSHOT_VERSION: i16 = 1;
const SNAPSHOT_HEADER: usize = 10;
/// Bytes in front of what the checksum covers.
const SNAPSHOT_UNCHECKED: usize = 6;
const SNAPSHOT_ENTRY: usize = 46;
/// Bytes of an entry of the transaction index.
pub(crate) const ABORTED_ENTRY: usize = 34;

/// What is known of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Producer {
    epoch: i16,
    coordinator_epoch: i32,
    timestamp: i64,
    transaction: Option<i64>,
    last: Option<LastBatch>,
    /// Place in the order of insertion; see [`Producers::in_order`].
    sequence: i64,
}

/// The producer state as of [`end`](Self::end).
#[derive(Debug, Default)]
pub(crate) struct Producers {
    map: HashMap<i64, Producer>,
    next_sequence: i64,
    /// First offset to producer, of the open transactions.
    open: BTreeMap<i64, i64>,
    /// Offset up to which the state holds.
    pub(crate) end: i64,
    /// Offset of the last snapshot that was loaded or written.
    pub(crate) snapshot_offset: i64,
}

/// Spreads a key as `java.util.HashMap` spreads a boxed long.
fn spread(id: i64) -> u32 {
    let folded = (id ^ ((id as u64) >> 32) as i64) as u32;
    folded ^ (folded >> 16)
}

/// Orders (id, insertion sequence) pairs as a Java `HashMap` that was filled in that sequence iterates: by bucket, then
/// by insertion. The table starts at 16 and doubles above three quarters. (Buckets of eight and more colliding ids turn
/// into trees in Java; real ids are handed out in ascending blocks and never collide so often. The order is then still
/// a valid one.)
fn java_order(ids: &mut [(i64, i64)]) {
    let mut capacity = 16_usize;
    while ids.len() > capacity / 4 * 3 {
        capacity *= 2;
    }
    let mask = (capacity - 1) as u32;
    ids.sort_unstable_by_key(|&(id, sequence)| (spread(id) & mask, sequence));
}

impl Producers {
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn clear(&mut self) {
        self.map.clear();
        self.open.clear();
    }

    /// Adds an unknown producer to the map, last in its bucket.
    pub(crate) fn enter(&mut self, id: i64) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.map.entry(id).or_insert(Producer {
            epoch: -1,
            coordinator_epoch: -1,
            timestamp: -1,
            transaction: None,
            last: None,
            sequence,
        });
    }

    /// Adds the unknown ones among the producers of a replayed segment, in the order in which a broker does: it collects
    /// them in a map of their own, where each new one comes first in its bucket, and copies that map's order.
    pub(crate) fn enter_replayed(&mut self, first_seen: &[i64]) {
        let mut ids: Vec<(i64, i64)> = first_seen.iter().zip(0_i64..).map(|(&id, i)| (id, -i)).collect();
        java_order(&mut ids);
        for (id, _) in ids {
            if !self.map.contains_key(&id) {
                self.enter(id);
            }
        }
    }

    /// Fails when a batch outside a transaction comes while one is open; a broker does not start on that.
    pub(crate) fn check_start(&self, delta: &ProducerDelta) -> std::result::Result<(), String> {
        let open = self.map.get(&delta.id).and_then(|producer| producer.transaction);
        match open {
            Some(first) if delta.starts_plain => Err(format!(
                "producer {} writes outside a transaction while its transaction from offset {first} is open",
                delta.id
            )),
            _ => Ok(()),
        }
    }

    /// Applies a beginning or an end; the entry of the transaction index if the transaction was aborted.
    pub(crate) fn transaction(
        &mut self,
        event: TransactionEvent,
    ) -> std::result::Result<Option<[u8; ABORTED_ENTRY]>, String> {
        let Some(producer) = self.map.get_mut(&event.producer_id) else {
            return Ok(None);
        };
        if event.kind == TransactionKind::Begin {
            if producer.transaction.is_none() {
                producer.transaction = Some(event.offset);
                self.open.insert(event.offset, event.producer_id);
            }
            return Ok(None);
        }
        let Some(first) = producer.transaction.take() else {
            return Ok(None);
        };
        let other = self.open.iter().find(|entry| *entry.1 != event.producer_id).map(|entry| *entry.0);
        if self.open.remove(&first).is_none() {
            return Err(format!(
                "producer {} ends a transaction from offset {first}, where another one began as well",
                event.producer_id
            ));
        }
        if event.kind == TransactionKind::Commit {
            return Ok(None);
        }
        let mut entry = [0; ABORTED_ENTRY];
        entry[2..10].copy_from_slice(&event.producer_id.to_be_bytes());
        entry[10..18].copy_from_slice(&first.to_be_bytes());
        entry[18..26].copy_from_slice(&event.offset.to_be_bytes());
        entry[26..].copy_from_slice(&other.unwrap_or(event.offset.wrapping_add(1)).to_be_bytes());
        Ok(Some(entry))
    }

    /// Applies the net effect of a segment, except for transactions.
    pub(crate) fn apply(&mut self, delta: &ProducerDelta) {
        let Some(producer) = self.map.get_mut(&delta.id) else {
            return;
        };
        let Some((first, last)) = delta.epochs else {
            return;
        };
        if producer.epoch != first {
            producer.last = None;
        }
        match delta.data {
            LastData::Kept => {}
            LastData::Gone => producer.last = None,
            LastData::Replaced(batch) => producer.last = Some(batch),
        }
        producer.epoch = last;
        producer.timestamp = delta.timestamp;
        if let Some(epoch) = delta.coordinator_epoch {
            producer.coordinator_epoch = epoch;
        }
    }

    fn in_order(&self) -> Vec<(i64, i64)> {
        let mut ids: Vec<(i64, i64)> = self.map.iter().map(|(id, producer)| (*id, producer.sequence)).collect();
        java_order(&mut ids);
        ids
    }

    /// The snapshot file of the present state.
    pub(crate) fn snapshot(&self, spool: &dyn Spool) -> Result<Image> {
        let order = self.in_order();
        let count = i32::try_from(order.len()).unwrap_or(i32::MAX).to_be_bytes();
        let mut crc = crc32c::crc32c(&count);
        for &(id, _) in &order {
            crc = crc32c::crc32c_append(crc, &self.entry(id));
        }
        let mut writer = Writer::default();
        writer.push(&SNAPSHOT_VERSION.to_be_bytes(), spool)?;
        writer.push(&crc.to_be_bytes(), spool)?;
        writer.push(&count, spool)?;
        for &(id, _) in &order {
            writer.push(&self.entry(id), spool)?;
        }
        let [image] = Writer::finish([writer], spool)?;
        Ok(image)
    }

    fn entry(&self, id: i64) -> [u8; SNAPSHOT_ENTRY] {
        let mut out = [0; SNAPSHOT_ENTRY];
        let Some(producer) = self.map.get(&id) else {
            return out;
        };
        let none = LastBatch { last_sequence: -1, last_offset: -1, offset_delta: 0 };
        let last = producer.last.unwrap_or(none);
        out[..8].copy_from_slice(&id.to_be_bytes());
        out[8..10].copy_from_slice(&producer.epoch.to_be_bytes());
        out[10..14].copy_from_slice(&last.last_sequence.to_be_bytes());
        out[14..22].copy_from_slice(&last.last_offset.to_be_bytes());
        out[22..26].copy_from_slice(&last.offset_delta.to_be_bytes());
        out[26..34].copy_from_slice(&producer.timestamp.to_be_bytes());
        out[34..38].copy_from_slice(&producer.coordinator_epoch.to_be_bytes());
        out[38..].copy_from_slice(&producer.transaction.unwrap_or(-1).to_be_bytes());
        out
    }

    /// Takes one entry of a snapshot, unless the producer is idle for longer than `expiration_ms` and has no open
    /// transaction.
    pub(crate) fn load(&mut self, raw: &[u8; SNAPSHOT_ENTRY], now_ms: i64, expiration_ms: i64) {
        let id = be!(i64, raw, 0);
        let transaction = Some(be!(i64, raw, 38)).filter(|offset| *offset >= 0);
        let timestamp = be!(i64, raw, 26);
        if transaction.is_none() && now_ms.wrapping_sub(timestamp) >= expiration_ms {
            return;
        }
        let last_offset = be!(i64, raw, 14);
        let last = LastBatch { last_sequence: be!(i32, raw, 10), last_offset, offset_delta: be!(i32, raw, 22) };
        self.enter(id);
        if let Some(producer) = self.map.get_mut(&id) {
            producer.epoch = be!(i16, raw, 8);
            producer.coordinator_epoch = be!(i32, raw, 34);
            producer.timestamp = timestamp;
            producer.transaction = transaction;
            producer.last = (last_offset >= 0).then_some(last);
        }
        if let Some(first) = transaction {
            self.open.insert(first, id);
        }
    }
}

/// Calls `take` with each entry of the snapshot file `path`; `Ok(false)` when it is damaged (then nothing was taken).
pub(crate) fn read_snapshot(path: &Path, mut take: impl FnMut(&[u8; SNAPSHOT_ENTRY])) -> Result<bool> {
    let mut file = File::open(path).map_err(Error::io("open producer snapshot", path))?;
    let size = file.metadata().map_err(Error::io("look at", path))?.len();
    let mut header = [0; SNAPSHOT_HEADER];
    if size < SNAPSHOT_HEADER as u64 {
        return Ok(false);
    }
    // Two passes, so that a damaged file of any size costs no memory: the checksum first, then the entries.
    file.read_exact(&mut header).map_err(Error::io("read", path))?;
    let mut crc = crc32c::crc32c(&header[SNAPSHOT_UNCHECKED..]);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if n == 0 {
            break;
        }
        crc = crc32c::crc32c_append(crc, &buffer[..n]);
    }
    let Some(count) = snapshot_count(&header, crc, size) else {
        return Ok(false);
    };
    let file = File::open(path).map_err(Error::io("open producer snapshot", path))?;
    let mut file = std::io::BufReader::with_capacity(64 * 1024, file);
    file.read_exact(&mut header).map_err(Error::io("read", path))?;
    let mut entry = [0; SNAPSHOT_ENTRY];
    for _ in 0..count {
        file.read_exact(&mut entry).map_err(Error::io("read", path))?;
        take(&entry);
    }
    Ok(true)
}

/// The number of entries of a snapshot with this header, if version, checksum and size are right.
fn snapshot_count(header: &[u8; SNAPSHOT_HEADER], crc: u32, size: u64) -> Option<u64> {
    let count = u64::try_from(be!(i32, header, 6)).ok()?;
    let needed = SNAPSHOT_HEADER as u64 + count.checked_mul(SNAPSHOT_ENTRY as u64)?;
    let fits = be!(i16, header, 0) == SNAPSHOT_VERSION && be!(u32, header, 2) == crc && size >= needed;
    fits.then_some(count)
}

/// Calls `take` with each entry of a snapshot that lies in the spool.
pub(crate) fn read_snapshot_image(
    image: &Image,
    spool: &dyn Spool,
    mut take: impl FnMut(&[u8; SNAPSHOT_ENTRY]),
) -> Result<()> {
    let mut skip = SNAPSHOT_HEADER;
    let mut entry = [0; SNAPSHOT_ENTRY];
    let mut have = 0;
    image.read(spool, |mut part| {
        let skipped = part.len().min(skip);
        skip -= skipped;
        part = &part[skipped..];
        while !part.is_empty() {
            let n = part.len().min(SNAPSHOT_ENTRY - have);
            entry[have..have + n].copy_from_slice(&part[..n]);
            have += n;
            part = &part[n..];
            if have == SNAPSHOT_ENTRY {
                take(&entry);
                have = 0;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::FileSpool;

    #[test]
    fn order_is_that_of_a_java_map() {
        // Iteration order of a HashMap<Long, _> in OpenJDK 17 filled with these keys in this order.
        let mut ids = [(33, 0), (1, 1), (17, 2), (4_294_967_296, 3), (0, 4)];
        java_order(&mut ids);
        assert_eq!(ids.map(|entry| entry.0), [0, 33, 1, 17, 4_294_967_296]);
    }

    #[test]
    fn a_snapshot_reads_back() {
        let spool = FileSpool::unnamed().expect("a temporary file");
        let mut producers = Producers::default();
        for id in 0..1000 {
            producers.enter(id * 7);
        }
        let image = producers.snapshot(&spool).expect("written");
        assert_eq!(image.length, 10 + 46 * 1000);
        let mut bytes = Vec::new();
        image
            .read(&spool, |part| {
                bytes.extend_from_slice(part);
                Ok(())
            })
            .expect("read");
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("s");
        let mut loaded = Producers::default();
        std::fs::write(&path, &bytes).expect("written");
        assert!(read_snapshot(&path, |entry| loaded.load(entry, 0, 10)).expect("readable"));
        assert_eq!(loaded.snapshot(&spool).expect("written").crc, image.crc);
        for at in [0, 1, 3, 8, 20, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).expect("written");
            assert!(
                !read_snapshot(&path, |_| panic!("an entry of a damaged snapshot")).expect("readable"),
                "byte {at}"
            );
        }
        for length in 0..60 {
            std::fs::write(&path, &bytes[..length]).expect("written");
            assert!(!read_snapshot(&path, |_| panic!("an entry of a cut snapshot")).expect("readable"));
        }
    }
}
