//! The values of managed-ledger and cursor nodes.
//!
//! Sources: `MLDataFormats.proto` of Pulsar 4.2 (with `MetadataCompressionConfig`'s header).

use std::io::Read;

use prost::Message;
use trimtab_events::{Offload, Position};

use crate::Undecodable;

fn bad(why: impl std::fmt::Display) -> Undecodable {
    Undecodable::new(why)
}

/// No value of a metadata store is larger, compressed or not.
const MAX_VALUE: usize = 64 * 1024 * 1024;

#[derive(Clone, PartialEq, Message)]
struct NestedPosition {
    #[prost(int64, optional, tag = "1")]
    ledger: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    entry: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct OffloadContext {
    #[prost(bool, tag = "3")]
    complete: bool,
    #[prost(bool, tag = "4")]
    bookkeeper_deleted: bool,
    #[prost(int64, tag = "5")]
    timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RawLedgerInfo {
    #[prost(int64, optional, tag = "1")]
    ledger_id: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    entries: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    size: Option<i64>,
    #[prost(int64, tag = "4")]
    timestamp: i64,
    #[prost(message, optional, tag = "5")]
    offload: Option<OffloadContext>,
}

#[derive(Clone, PartialEq, Message)]
struct RawManagedLedgerInfo {
    #[prost(message, repeated, tag = "1")]
    ledgers: Vec<RawLedgerInfo>,
    #[prost(message, optional, tag = "2")]
    terminated: Option<NestedPosition>,
    #[prost(message, repeated, tag = "3")]
    properties: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct RawCursorInfo {
    #[prost(int64, optional, tag = "1")]
    cursors_ledger: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    mark_delete_ledger: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    mark_delete_entry: Option<i64>,
    #[prost(message, repeated, tag = "4")]
    holes: Vec<MessageRange>,
    #[prost(message, repeated, tag = "5")]
    properties: Vec<LongProperty>,
    #[prost(int64, tag = "6")]
    last_active: i64,
    #[prost(message, repeated, tag = "7")]
    batches: Vec<PartOfBatch>,
    #[prost(message, repeated, tag = "8")]
    cursor_properties: Vec<KeyValue>,
    #[prost(int64, tag = "9")]
    idle_since: i64,
}

#[derive(Clone, PartialEq, Message)]
struct MessageRange {
    #[prost(message, optional, tag = "1")]
    lower: Option<NestedPosition>,
    #[prost(message, optional, tag = "2")]
    upper: Option<NestedPosition>,
}

#[derive(Clone, PartialEq, Message)]
struct LongProperty {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    value: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PartOfBatch {
    #[prost(message, optional, tag = "1")]
    position: Option<NestedPosition>,
    #[prost(int64, repeated, packed = "false", tag = "2")]
    set: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct CompressionHeader {
    #[prost(int32, optional, tag = "1")]
    kind: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    size: Option<i32>,
}

/// A topic's list of ledgers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedLedger {
    /// Sorted by id: the stored list need not be (offloading moves entries to its end).
    pub ledgers: Vec<trimtab_events::LedgerInfo>,
    /// The topic was terminated.
    pub terminated: bool,
    /// It is the shadow of another topic.
    pub shadow: bool,
}

/// A cursor, as its node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorInfo {
    /// Everything up to and including this is acknowledged.
    pub mark_delete: Position,
    /// The cursor ledger whose last entry has the true position. With one, everything else here is as it was when that ledger was
    /// made: the position a lower bound, the holes and properties perhaps fewer than there are.
    pub cursor_ledger: Option<i64>,
    /// What is acknowledged beyond the position, in order and not overlapping. Such holes never free a ledger.
    pub holes: Vec<Hole>,
    /// Entries beyond the position that are batches of which a part is acknowledged.
    pub parts_of_batches: usize,
    /// What the broker keeps with the position: `CompactedTopicLedger` of a compaction cursor, sequence ids of producers, and
    /// whether the subscription is replicated.
    pub properties: Vec<(String, i64)>,
    /// Properties of the subscription, and references to buckets of delayed messages.
    pub cursor_properties: Vec<(String, String)>,
    /// Stored time of last activity, 0 when absent.
    pub last_active_ms: i64,
    /// Since when it is idle, as brokers from 5.0.1 on store it; 0 when absent.
    pub idle_since_ms: i64,
    /// A digest of the position and of everything acknowledged beyond it; 16 hexadecimal digits.
    pub digest: String,
}

impl CursorInfo {
    /// The true position is in a cursor ledger; this one is a lower bound.
    pub fn lower_bound(&self) -> bool {
        self.cursor_ledger.is_some()
    }

    /// The subscription is kept in step with other clusters.
    pub fn replicated(&self) -> bool {
        self.properties.iter().any(|(name, value)| name == "pulsar.replicated.subscription" && *value != 0)
    }
}

/// A run of acknowledged entries beyond a cursor's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// The entry before the first; can lie in an earlier ledger.
    pub after: Position,
    /// The last entry.
    pub last: Position,
}

/// Undoes Pulsar's compression of metadata values: `0x47 0x78`, the length of a header, the header, the compressed value. No
/// protobuf message of these kinds begins with those bytes.
fn decompress(value: &[u8]) -> Result<std::borrow::Cow<'_, [u8]>, Undecodable> {
    let Some(rest) = value.strip_prefix(&[0x47, 0x78]) else { return Ok(value.into()) };
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(|| bad("compressed value ends in its header"))?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(bad)?;
    let (header, body) = rest.split_at_checked(length).ok_or_else(|| bad("compressed value ends in its header"))?;
    let header = CompressionHeader::decode(header).map_err(|e| bad(format!("compression header: {e}")))?;
    let size = usize::try_from(header.size.unwrap_or(-1)).map_err(|_| bad("compression header has no size"))?;
    if size > MAX_VALUE {
        return Err(bad(format!("compressed value says it has {size} bytes, more than {MAX_VALUE}")));
    }
    let out = match header.kind {
        Some(0) => body.to_vec(),
        Some(1) => lz4_flex::block::decompress(body, size).map_err(|e| bad(format!("lz4: {e}")))?,
        Some(2) => inflate(body, size)?,
        Some(3) => {
            let mut out = Vec::new();
            let decoder = ruzstd::decoding::StreamingDecoder::new(body).map_err(|e| bad(format!("zstd: {e}")))?;
            decoder.take(size as u64 + 1).read_to_end(&mut out).map_err(|e| bad(format!("zstd: {e}")))?;
            out
        }
        Some(4) => snappy(body, size)?,
        other => return Err(bad(format!("compression type {other:?} is not known"))),
    };
    if out.len() != size {
        return Err(bad(format!("compressed value has {} bytes, its header says {size}", out.len())));
    }
    Ok(out.into())
}

/// Pulsar ends a zlib value with a sync flush: no final block, no checksum. So inflate until the size is reached, then stop.
fn inflate(body: &[u8], size: usize) -> Result<Vec<u8>, Undecodable> {
    let mut out = Vec::new();
    let mut chunk = [0; 8192];
    let mut decoder = flate2::Decompress::new(true);
    while out.len() < size {
        let from = usize::try_from(decoder.total_in()).map_err(bad)?;
        let before = decoder.total_out();
        let input = body.get(from..).unwrap_or_default();
        decoder.decompress(input, &mut chunk, flate2::FlushDecompress::Sync).map_err(|e| bad(format!("zlib: {e}")))?;
        let made = usize::try_from(decoder.total_out() - before).map_err(bad)?;
        if made == 0 {
            return Err(bad("zlib value ends early"));
        }
        out.extend_from_slice(&chunk[..made]);
    }
    Ok(out)
}

fn snappy(body: &[u8], size: usize) -> Result<Vec<u8>, Undecodable> {
    let says = snap::raw::decompress_len(body).map_err(|e| bad(format!("snappy: {e}")))?;
    if says != size {
        return Err(bad(format!("snappy value has {says} bytes, its header says {size}")));
    }
    snap::raw::Decoder::new().decompress_vec(body).map_err(|e| bad(format!("snappy: {e}")))
}

/// Decodes the value of a topic's node. No bytes at all is a topic that was created and never opened: no ledgers.
///
/// # Errors
/// When the value is damaged, or has a ledger without an id or twice.
pub fn managed_ledger_info(value: &[u8]) -> Result<ManagedLedger, Undecodable> {
    let raw = RawManagedLedgerInfo::decode(decompress(value)?.as_ref()).map_err(bad)?;
    let mut ledgers = Vec::with_capacity(raw.ledgers.len());
    for info in raw.ledgers {
        let id = info.ledger_id.filter(|id| *id >= 0).ok_or_else(|| bad("the list has a ledger without an id"))?;
        let offload = info.offload.map(|o| Offload {
            complete: o.complete,
            bookkeeper_deleted: o.bookkeeper_deleted,
            offloaded_ms: o.timestamp,
        });
        ledgers.push(trimtab_events::LedgerInfo {
            id,
            entries: info.entries,
            bytes: info.size,
            closed_ms: info.timestamp,
            offload,
        });
    }
    ledgers.sort_by_key(|info| info.id);
    if let Some(pair) = ledgers.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(bad(format!("the list has ledger {} twice", pair[0].id)));
    }
    let shadow = raw.properties.iter().any(|property| property.key == "PULSAR.SHADOW_SOURCE");
    Ok(ManagedLedger { ledgers, terminated: raw.terminated.is_some(), shadow })
}

/// Decodes the value of a cursor's node.
///
/// # Errors
/// When the value is damaged or has no position.
pub fn cursor_info(value: &[u8]) -> Result<CursorInfo, Undecodable> {
    let raw = RawCursorInfo::decode(decompress(value)?.as_ref()).map_err(bad)?;
    let (Some(ledger), Some(entry)) = (raw.mark_delete_ledger, raw.mark_delete_entry) else {
        return Err(bad("the cursor has no position"));
    };
    let cursor_ledger = raw.cursors_ledger.ok_or_else(|| bad("the cursor does not say where its position is"))?;
    // Whatever changes when messages are acknowledged, and nothing else.
    let acknowledged = RawCursorInfo {
        cursors_ledger: None,
        properties: Vec::new(),
        cursor_properties: Vec::new(),
        last_active: 0,
        idle_since: 0,
        ..raw.clone()
    };
    let holes = raw.holes.iter().map(|range| {
        let (after, last) = (place(range.lower.as_ref())?, place(range.upper.as_ref())?);
        Some(Hole { after, last })
    });
    let mut holes: Vec<Hole> =
        holes.collect::<Option<_>>().ok_or_else(|| bad("the cursor has a range without ends"))?;
    holes.retain(|hole| hole.after < hole.last);
    holes.sort_unstable_by_key(|hole| hole.after);
    // No broker writes ranges that overlap; whoever goes through them relies on that.
    holes.dedup_by(|next, hole| {
        let overlaps = next.after < hole.last;
        if overlaps {
            hole.last = hole.last.max(next.last);
        }
        overlaps
    });
    Ok(CursorInfo {
        mark_delete: Position { ledger, entry },
        cursor_ledger: (cursor_ledger >= 0).then_some(cursor_ledger),
        holes,
        parts_of_batches: raw.batches.iter().filter(|part| part.position.is_some()).count(),
        properties: raw.properties.into_iter().map(|p| (p.name, p.value)).collect(),
        cursor_properties: raw.cursor_properties.into_iter().map(|p| (p.key, p.value)).collect(),
        last_active_ms: raw.last_active,
        idle_since_ms: raw.idle_since,
        digest: digest(&acknowledged.encode_to_vec()),
    })
}

fn place(position: Option<&NestedPosition>) -> Option<Position> {
    let position = position?;
    Some(Position { ledger: position.ledger?, entry: position.entry? })
}

/// The digest that a cursor's node has when nothing but this is acknowledged.
pub(crate) fn digest_of(mark_delete: Position, holes: &[Hole]) -> String {
    let place = |at: Position| Some(NestedPosition { ledger: Some(at.ledger), entry: Some(at.entry) });
    let holes = holes.iter().map(|hole| MessageRange { lower: place(hole.after), upper: place(hole.last) });
    let raw = RawCursorInfo {
        mark_delete_ledger: Some(mark_delete.ledger),
        mark_delete_entry: Some(mark_delete.entry),
        holes: holes.collect(),
        ..RawCursorInfo::default()
    };
    digest(&raw.encode_to_vec())
}

fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Ledgers that a cursor names as its own. Its positions own nothing: they may stay in a ledger that is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CursorReferences {
    /// Where it keeps its positions, and its newest properties with them.
    pub positions: Option<i64>,
    /// The compacted form of its topic.
    pub compacted: Option<i64>,
    /// Buckets of delayed messages.
    pub buckets: Vec<i64>,
}

/// Property that names the compacted form of a topic.
const COMPACTED: &str = "CompactedTopicLedger";
/// Begins the properties that Pulsar keeps for itself.
const INTERNAL: &str = "#pulsar.internal.";
/// Begins those that name buckets of delayed messages.
const BUCKET: &str = "#pulsar.internal.delayed.bucket";

/// Decodes which ledgers a cursor's node names.
///
/// # Errors
/// When the value is damaged, or has something in it that may name a ledger in a way that is not known here.
pub fn cursor_references(value: &[u8]) -> Result<CursorReferences, Undecodable> {
    only_fields(&decompress(value)?, 9)?;
    let info = cursor_info(value)?;
    let mut found = CursorReferences { positions: info.cursor_ledger, ..CursorReferences::default() };
    for (_, id) in info.properties.iter().filter(|(name, _)| name == COMPACTED) {
        if *id < 0 || found.compacted.replace(*id).is_some() {
            return Err(bad(format!("property {COMPACTED} is {id}, or there twice")));
        }
    }
    for (name, value) in info.cursor_properties.iter().filter(|(name, _)| name.starts_with(INTERNAL)) {
        let id = value.parse::<i64>().ok().filter(|id| name.starts_with(BUCKET) && *id >= 0);
        found.buckets.push(id.ok_or_else(|| bad(format!("property {name} = {value} is not of a known form")))?);
    }
    Ok(found)
}

/// Decodes which ledgers a topic's node names, and of which its copy in BookKeeper is said to be gone. Stricter than
/// [`managed_ledger_info`]: what a later version may have added could name ledgers too.
///
/// # Errors
/// When the value is damaged, or has something in it that is not known here.
pub fn topic_references(value: &[u8]) -> Result<Vec<(i64, bool)>, Undecodable> {
    only_fields(&decompress(value)?, 3)?;
    let list = managed_ledger_info(value)?;
    let tiered = |info: &trimtab_events::LedgerInfo| info.offload.is_some_and(|o| o.complete && o.bookkeeper_deleted);
    Ok(list.ledgers.iter().map(|info| (info.id, tiered(info))).collect())
}

/// Refuses a message with fields beyond the highest that is known.
pub(crate) fn only_fields(mut message: &[u8], highest: u32) -> Result<(), Undecodable> {
    use prost::encoding::{DecodeContext, decode_key, skip_field};
    while !message.is_empty() {
        let (tag, wire) = decode_key(&mut message).map_err(bad)?;
        if tag > highest {
            return Err(bad(format!("field {tag} is not known to this version, and may name ledgers")));
        }
        skip_field(wire, tag, &mut message, DecodeContext::default()).map_err(bad)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn a_captured_list() {
        let value = hex("0a0e 0823 100a 18c650 20eebfcecb8534 0a04 082a 2000");
        let info = managed_ledger_info(&value).unwrap();
        assert_eq!(info.ledgers.len(), 2);
        assert_eq!((info.ledgers[0].id, info.ledgers[0].entries, info.ledgers[0].bytes), (35, Some(10), Some(10310)));
        assert_eq!((info.ledgers[1].id, info.ledgers[1].entries, info.ledgers[1].closed_ms), (42, None, 0));
    }

    #[test]
    fn lists_are_sorted_and_have_no_ledger_twice() {
        let two = RawManagedLedgerInfo {
            ledgers: [9, 3].map(|id| RawLedgerInfo { ledger_id: Some(id), ..Default::default() }).to_vec(),
            ..Default::default()
        };
        let ids: Vec<i64> = managed_ledger_info(&two.encode_to_vec()).unwrap().ledgers.iter().map(|l| l.id).collect();
        assert_eq!(ids, [3, 9]);
        let twice = RawManagedLedgerInfo { ledgers: vec![two.ledgers[0].clone(), two.ledgers[0].clone()], ..two };
        assert!(managed_ledger_info(&twice.encode_to_vec()).is_err());
        assert_eq!(managed_ledger_info(&[]).unwrap(), ManagedLedger::default());
    }

    #[test]
    fn what_cursors_name() {
        let long = |name: &str, value| LongProperty { name: name.into(), value };
        let text = |key: &str, value: &str| KeyValue { key: key.into(), value: value.into() };
        let raw = RawCursorInfo {
            cursors_ledger: Some(0),
            mark_delete_ledger: Some(1),
            mark_delete_entry: Some(-1),
            properties: vec![long("CompactedTopicLedger", 7), long("producer-1", 9)],
            cursor_properties: vec![text("#pulsar.internal.delayed.bucket_1_2", "8"), text("mine", "10")],
            ..RawCursorInfo::default()
        };
        let found = cursor_references(&raw.encode_to_vec()).unwrap();
        assert_eq!(found, CursorReferences { positions: Some(0), compacted: Some(7), buckets: vec![8] });
        for change in [
            |raw: &mut RawCursorInfo| raw.cursors_ledger = None,
            |raw: &mut RawCursorInfo| raw.properties[0].value = -1,
            |raw: &mut RawCursorInfo| raw.properties.push(raw.properties[0].clone()),
            |raw: &mut RawCursorInfo| raw.cursor_properties[0].value = "x".into(),
            |raw: &mut RawCursorInfo| raw.cursor_properties[0].key = "#pulsar.internal.new".into(),
        ] {
            let mut raw = raw.clone();
            change(&mut raw);
            assert!(cursor_references(&raw.encode_to_vec()).is_err(), "{raw:?}");
        }
        let mut later = raw.encode_to_vec();
        later.extend([10 << 3, 1]);
        assert!(cursor_references(&later).is_err());
    }

    #[test]
    fn a_captured_cursor() {
        let value = hex("08 ffffffffffffffffff01 10 2a 18 04 30 eac5cecb8534");
        let info = cursor_info(&value).unwrap();
        assert_eq!(info.mark_delete, Position { ledger: 42, entry: 4 });
        assert!(!info.lower_bound() && info.holes.is_empty() && info.last_active_ms > 0);
        assert!(cursor_info(&[]).is_err());
    }

    #[test]
    fn captured_cursors_with_more_than_a_position() {
        let at = |ledger, entry| Position { ledger, entry };
        let holes = cursor_info(&hex(
            "08ffffffffffffffffff0110f5021801220e0a0508f5021004120508f502100922170a0e08f70210ffffffffffffffffff01120508f7021009\
             22170a0e08f80210ffffffffffffffffff01120508f802100130fcd0f2cc8534",
        ));
        let ranges = [(at(373, 4), at(373, 9)), (at(375, -1), at(375, 9)), (at(376, -1), at(376, 1))];
        assert_eq!(holes.unwrap().holes, ranges.map(|(after, last)| Hole { after, last }));
        let compaction =
            hex("08ffffffffffffffffff0110ed0218042a190a14436f6d706163746564546f7069634c656467657210b8053097f0f4cc8534");
        let compaction = cursor_info(&compaction).unwrap();
        assert_eq!(compaction.properties, [("CompactedTopicLedger".to_owned(), 696)]);
        assert!(!compaction.replicated());
        let delayed = hex(
            "08ffffffffffffffffff0110aa0618ffffffffffffffffff013084c6f0c8a234422e0a272370756c7361722e696e7465726e616c2e64656c\
             617965642e6275636b65745f3831305f3831301203383137",
        );
        let bucket = ("#pulsar.internal.delayed.bucket_810_810".to_owned(), "817".to_owned());
        assert_eq!(cursor_info(&delayed).unwrap().cursor_properties, [bucket]);
        // One whose position is in a cursor ledger, and ranges that overlap, are empty, or lack an end.
        let range = |after: Option<(i64, i64)>, last: (i64, i64)| {
            let nested = |(ledger, entry)| NestedPosition { ledger: Some(ledger), entry: Some(entry) };
            MessageRange { lower: after.map(nested), upper: Some(nested(last)) }
        };
        let raw = |holes| RawCursorInfo {
            cursors_ledger: Some(0),
            mark_delete_ledger: Some(1),
            mark_delete_entry: Some(-1),
            holes,
            ..RawCursorInfo::default()
        };
        let odd = vec![range(Some((1, 5)), (1, 5)), range(Some((1, 6)), (1, 9)), range(Some((1, 2)), (1, 8))];
        let info = cursor_info(&raw(odd).encode_to_vec()).unwrap();
        assert_eq!((info.cursor_ledger, info.lower_bound()), (Some(0), true));
        assert_eq!(info.holes, [Hole { after: at(1, 2), last: at(1, 9) }]);
        assert!(cursor_info(&raw(vec![range(None, (1, 5))]).encode_to_vec()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0_u8..6, size in 0_u8..127) {
            let _ = (managed_ledger_info(&bytes), cursor_info(&bytes), cursor_references(&bytes));
            let mut compressed = vec![0x47, 0x78, 0, 0, 0, 4, 8, kind, 16, size];
            compressed.extend_from_slice(&bytes);
            let _ = (managed_ledger_info(&compressed), cursor_info(&compressed));
        }
    }
}
