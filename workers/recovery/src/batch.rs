//! Record batches as they lie in a segment: headers of all magic versions, and the record inside a transaction marker.
//!
//! Format: Apache Kafka's message format documentation (record batch, magic 2; message set, magic 0 and 1). All
//! integers are big-endian. Nothing is decompressed: recovery needs headers, checksums and uncompressed markers only.

/// Bytes in front of what the length field counts: base offset (8) and the length itself (4).
pub(crate) const LOG_OVERHEAD: u64 = 12;
/// Bytes up to and including the magic byte; fewer cannot be told apart from a torn header.
pub(crate) const HEADER_UP_TO_MAGIC: u64 = 17;
/// Bytes of the header of magic 2.
pub(crate) const V2_HEADER: u64 = 61;
/// Where the bytes under the checksum begin in magic 2.
pub(crate) const V2_CRC_FROM: u64 = 21;
/// The smallest value of the length field: the overhead of a magic 0 message.
pub(crate) const MIN_LENGTH: i32 = 14;
/// Where the bytes under the checksum begin in magic 0 and 1.
pub(crate) const LEGACY_CRC_FROM: u64 = 16;
/// Header bytes of magic 1, timestamp included.
pub(crate) const V1_HEADER: u64 = 26;

const TIMESTAMP_TYPE: u8 = 0x08;
const TRANSACTIONAL: u8 = 0x10;
const CONTROL: u8 = 0x20;
const COMPRESSION: u8 = 0x07;

/// The fields of a batch header that recovery uses. For magic 0 and 1 the fields that do not exist hold "none" (-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// First offset (magic 2), or the offset field (magic 0 and 1, where it is the last offset).
    pub base_offset: i64,
    /// Size of the whole batch in bytes, header included.
    pub size: u64,
    /// Leader epoch, -1 when none.
    pub leader_epoch: i32,
    /// 2 for every magic of 2 and above (the byte is not under the checksum and brokers read it so), else 1 or below.
    pub magic: i8,
    /// The stored checksum.
    pub crc: u32,
    /// Low byte of the attributes.
    pub attributes: u8,
    /// Last offset minus base offset.
    pub last_offset_delta: i32,
    /// Timestamp that record deltas refer to, in milliseconds.
    pub base_timestamp: i64,
    /// Largest timestamp, in milliseconds, -1 when none.
    pub max_timestamp: i64,
    /// Producer id, -1 when none.
    pub producer_id: i64,
    /// Producer epoch, -1 when none.
    pub producer_epoch: i16,
    /// First sequence number, -1 when none.
    pub base_sequence: i32,
    /// Number of records.
    pub records: i32,
}

/// Reads a big-endian integer at `at`; the caller has checked the length.
macro_rules! be {
    ($kind:ty, $bytes:expr, $at:expr) => {{
        const N: usize = size_of::<$kind>();
        let mut raw = [0_u8; N];
        raw.copy_from_slice(&$bytes[$at..$at + N]);
        <$kind>::from_be_bytes(raw)
    }};
}
pub(crate) use be;

impl BatchHeader {
    /// Reads a header from the first bytes of a batch. `None` when `bytes` holds fewer than that magic's header needs
    /// (61 for magic 2, 17 for magic 0, 26 for magic 1), or when the length field is below 14.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_UP_TO_MAGIC as usize {
            return None;
        }
        let length = be!(i32, bytes, 8);
        let size = u64::try_from(length).ok().filter(|_| length >= MIN_LENGTH)? + LOG_OVERHEAD;
        let magic = be!(i8, bytes, 16);
        if magic < 2 { Self::legacy(bytes, size, magic) } else { Self::current(bytes, size) }
    }

    fn current(bytes: &[u8], size: u64) -> Option<Self> {
        if bytes.len() < V2_HEADER as usize || size < V2_HEADER {
            return None;
        }
        Some(Self {
            base_offset: be!(i64, bytes, 0),
            size,
            leader_epoch: be!(i32, bytes, 12),
            magic: 2,
            crc: be!(u32, bytes, 17),
            attributes: bytes[22],
            last_offset_delta: be!(i32, bytes, 23),
            base_timestamp: be!(i64, bytes, 27),
            max_timestamp: be!(i64, bytes, 35),
            producer_id: be!(i64, bytes, 43),
            producer_epoch: be!(i16, bytes, 51),
            base_sequence: be!(i32, bytes, 53),
            records: be!(i32, bytes, 57),
        })
    }

    fn legacy(bytes: &[u8], size: u64, magic: i8) -> Option<Self> {
        let timestamp = if magic == 0 {
            -1
        } else if bytes.len() >= V1_HEADER as usize && size >= V1_HEADER {
            be!(i64, bytes, 18)
        } else {
            return None;
        };
        Some(Self {
            base_offset: be!(i64, bytes, 0),
            size,
            leader_epoch: -1,
            magic,
            crc: be!(u32, bytes, 12),
            attributes: bytes.get(17).copied().unwrap_or(0),
            last_offset_delta: 0,
            base_timestamp: timestamp,
            max_timestamp: timestamp,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            records: 1,
        })
    }

    /// The last offset. Wraps as the broker's arithmetic does, since neither part is trustworthy before the checksum.
    #[must_use]
    pub fn last_offset(&self) -> i64 {
        self.base_offset.wrapping_add(i64::from(self.last_offset_delta))
    }

    /// The last sequence number: -1 without sequence numbers, and wrapped to 0 after 2^31-1.
    #[must_use]
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence == -1 {
            return -1;
        }
        let last = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        let wrapped = if last > i64::from(i32::MAX) { last - (1 << 31) } else { last };
        // Both inputs are 32 bit, so the result of one wrap fits; a negative delta only occurs in crafted batches.
        i32::try_from(wrapped).unwrap_or(-1)
    }

    /// Whether an idempotent or transactional producer wrote it.
    #[must_use]
    pub fn has_producer(&self) -> bool {
        self.producer_id > -1
    }

    /// Whether it belongs to a transaction.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Whether it holds control records (transaction markers).
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.magic >= 2 && self.attributes & CONTROL != 0
    }

    /// Whether its records are compressed.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        self.attributes & COMPRESSION != 0
    }
}

/// What a control batch of a producer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// No records: compaction removed the whole transaction.
    Empty,
    /// A transaction ended.
    End { abort: bool, coordinator_epoch: i32, timestamp: i64 },
    /// The record cannot be read; a broker cuts the log behind this batch.
    Malformed(&'static str),
    /// A broker fails on it and does not start.
    Refused(&'static str),
}

/// Reads the first record of the control batch `batch` (the bytes of the whole batch, or as many as the caller has).
pub(crate) fn read_marker(header: &BatchHeader, batch: &[u8]) -> Marker {
    if header.records == 0 {
        return Marker::Empty;
    }
    if header.records < 0 {
        return Marker::Malformed("negative record count in a control batch");
    }
    if header.is_compressed() {
        return Marker::Refused("compressed control batch, which no broker writes");
    }
    let body = batch.get(V2_HEADER as usize..).unwrap_or_default();
    let mut outer = Cursor { bytes: body, at: 0 };
    let Some(length) = outer.varint() else {
        return Marker::Refused("control batch without a readable record");
    };
    let Some(record) = usize::try_from(length).ok().and_then(|n| outer.take(n)) else {
        return Marker::Malformed("control record longer than its batch");
    };
    match read_control_record(header, record) {
        Some(marker) => marker,
        None => Marker::Malformed("control record with fields beyond its end"),
    }
}

fn read_control_record(header: &BatchHeader, record: &[u8]) -> Option<Marker> {
    let mut cursor = Cursor { bytes: record, at: 0 };
    cursor.take(1)?;
    let timestamp_delta = cursor.varlong()?;
    cursor.varint()?;
    let key = cursor.nullable()?;
    let value = cursor.nullable()?;
    for _ in 0..u32::try_from(cursor.varint()?).ok()? {
        let name = cursor.varint()?;
        cursor.take(usize::try_from(name).ok()?)?;
        cursor.nullable()?;
    }
    if cursor.at != record.len() {
        return None;
    }
    let (Some(key), Some(value)) = (key, value) else {
        return Some(Marker::Refused("control record without key or value"));
    };
    if key.len() < 4 || be!(i16, key, 0) < 0 {
        return Some(Marker::Malformed("control record with a malformed key"));
    }
    let abort = match be!(i16, key, 2) {
        0 => true,
        1 => false,
        _ => {
            return Some(Marker::Refused("control record of a kind that ends no transaction"));
        }
    };
    if value.len() < 6 || be!(i16, value, 0) < 0 {
        return Some(Marker::Malformed("transaction marker with a malformed value"));
    }
    let log_append_time = header.attributes & TIMESTAMP_TYPE != 0;
    let timestamp =
        if log_append_time { header.max_timestamp } else { header.base_timestamp.wrapping_add(timestamp_delta) };
    Some(Marker::End { abort, coordinator_epoch: be!(i32, value, 2), timestamp })
}

/// A position in a slice that never leaves it.
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let part = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(part)
    }

    fn unsigned(&mut self, max_bytes: u32) -> Option<u64> {
        let mut value = 0_u64;
        for i in 0..max_bytes {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7F) << (7 * i);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// An unsigned varint of at most five bytes.
    pub(crate) fn uvarint(&mut self) -> Option<u32> {
        self.unsigned(5).map(|v| v as u32)
    }

    /// A zig-zag varint of at most five bytes.
    pub(crate) fn varint(&mut self) -> Option<i32> {
        let raw = self.uvarint()?;
        Some(((raw >> 1) as i32) ^ -((raw & 1) as i32))
    }

    /// A zig-zag varlong of at most ten bytes.
    pub(crate) fn varlong(&mut self) -> Option<i64> {
        let raw = self.unsigned(10)?;
        Some(((raw >> 1) as i64) ^ -((raw & 1) as i64))
    }

    /// Bytes behind a zig-zag length; a negative length is null.
    pub(crate) fn nullable(&mut self) -> Option<Option<&'a [u8]>> {
        match usize::try_from(self.varint()?) {
            Ok(n) => self.take(n).map(Some),
            Err(_) => Some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(attributes: u8, records: i32) -> BatchHeader {
        let mut bytes = [0_u8; 61];
        bytes[8..12].copy_from_slice(&49_i32.to_be_bytes());
        bytes[16] = 2;
        bytes[22] = attributes;
        bytes[57..61].copy_from_slice(&records.to_be_bytes());
        BatchHeader::parse(&bytes).expect("a whole header")
    }

    #[test]
    fn a_marker_is_read() {
        let header = header(0x30, 1);
        let record = [0_u8, 4, 0, 8, 0, 0, 0, 1, 12, 0, 0, 0, 0, 0, 7, 0];
        let mut batch = vec![0; 61];
        batch.push((record.len() * 2) as u8);
        batch.extend_from_slice(&record);
        assert_eq!(read_marker(&header, &batch), Marker::End { abort: false, coordinator_epoch: 7, timestamp: 2 });
        for cut in 61..batch.len() {
            assert!(!matches!(read_marker(&header, &batch[..cut]), Marker::End { .. }), "cut at {cut}");
        }
    }

    #[test]
    fn sequences_wrap_to_zero() {
        let mut header = header(0, 1);
        header.base_sequence = i32::MAX;
        header.last_offset_delta = 1;
        assert_eq!(header.last_sequence(), 0);
        header.base_sequence = -1;
        assert_eq!(header.last_sequence(), -1);
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut bytes = vec![0_u8; 200];
        for _ in 0..100_000 {
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *byte = (state >> 33) as u8;
            }
            let length = (state >> 40) as usize % bytes.len();
            let magic = bytes[16] % 4;
            bytes[16] = magic;
            if let Some(mut header) = BatchHeader::parse(&bytes[..length]) {
                header.attributes &= !7;
                let _ = (header.last_offset(), header.last_sequence(), read_marker(&header, &bytes[..length]));
            }
        }
    }
}
