//! Values of nodes as Pulsar, BookKeeper and Hedwig write them, for trees made up by tests and benchmarks.
//!
//! Sources: `MLDataFormats.proto` and `SchemaStorageFormat.proto` of Pulsar 4.2, `DataFormats.proto` of BookKeeper 4.17,
//! `PubSubProtocol.proto` of Hedwig 4.3.

/// Just enough of protobuf.
#[derive(Debug, Clone, Default)]
pub struct Proto(pub Vec<u8>);

impl Proto {
    /// A number without a tag.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A field that is a number.
    pub fn int(mut self, tag: u64, value: i64) -> Proto {
        self.varint(tag << 3);
        self.varint(value as u64);
        self
    }

    /// A field that is a string, bytes or a message.
    pub fn bytes(mut self, tag: u64, value: &[u8]) -> Proto {
        self.varint(tag << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }
}

/// A topic that lists these ledgers, ten entries each, the last one open.
pub fn managed_ledger(ledgers: &[i64]) -> Vec<u8> {
    let mut list = Proto::default();
    for (index, id) in ledgers.iter().enumerate() {
        let info = Proto::default().int(1, *id);
        let last = index + 1 == ledgers.len();
        let info = if last { info.int(4, 0) } else { info.int(2, 10).int(3, 1000).int(4, 1_700_000_000_000) };
        list = list.bytes(1, &info.0);
    }
    list.0
}

/// A topic that lists one ledger, with a complete copy in tiered storage, and says that BookKeeper's is gone.
pub fn tiered_ledger(ledger: i64) -> Vec<u8> {
    let offload = Proto::default().int(1, 1).int(2, 1).int(3, 1).int(4, 1).int(5, 1_700_000_000_000);
    let info = Proto::default().int(1, ledger).int(2, 10).int(3, 1000).int(4, 1_700_000_000_000).bytes(5, &offload.0);
    Proto::default().bytes(1, &info.0).0
}

/// A cursor with its positions in a ledger (-1: in its node), a compacted form and buckets of delayed messages.
pub fn cursor(positions: i64, compacted: Option<i64>, buckets: &[i64]) -> Vec<u8> {
    let mut cursor = Proto::default().int(1, positions).int(2, 3).int(3, -1);
    if let Some(id) = compacted {
        cursor = cursor.bytes(5, &Proto::default().bytes(1, b"CompactedTopicLedger").int(2, id).0);
    }
    cursor = cursor.int(6, 1_700_000_000_000);
    for id in buckets {
        let key = format!("#pulsar.internal.delayed.bucket_{id}_{id}");
        let property = Proto::default().bytes(1, key.as_bytes()).bytes(2, id.to_string().as_bytes());
        cursor = cursor.bytes(8, &property.0);
    }
    cursor.0
}

/// A schema with a version in each of these ledgers.
pub fn schema(ledgers: &[i64]) -> Vec<u8> {
    let entry = |version: usize, id: i64| {
        let position = Proto::default().int(1, id).int(2, 0);
        Proto::default().int(1, version as i64).bytes(2, &position.0).bytes(3, b"hash").0
    };
    let newest = ledgers.last().copied().unwrap_or(0);
    let mut locator = Proto::default().bytes(1, &entry(ledgers.len().saturating_sub(1), newest));
    for (version, id) in ledgers.iter().enumerate() {
        locator = locator.bytes(2, &entry(version, *id));
    }
    locator.0
}

/// A Hedwig topic with a range in each of these ledgers.
pub fn hedwig_ranges(ledgers: &[i64]) -> Vec<u8> {
    let range = |id: &i64| Proto::default().int(1, *id).int(3, 1).0;
    ledgers.iter().fold(Proto::default(), |ranges, id| ranges.bytes(1, &range(id))).0
}

/// How far a ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Open.
    Open,
    /// Closed, with so many entries and bytes.
    Closed(i64, i64),
}

/// A ledger's metadata, version 3, on these bookies, with this custom metadata.
pub fn ledger(stage: Stage, bookies: &[String], created_ms: Option<i64>, custom: &[(&str, &str)]) -> Vec<u8> {
    let (entries, length, state) = match stage {
        Stage::Open => (0, 0, 1),
        Stage::Closed(entries, bytes) => (entries, bytes, 3),
    };
    let copies = bookies.len() as i64;
    let segment =
        bookies.iter().fold(Proto::default(), |segment, bookie| segment.bytes(1, bookie.as_bytes())).int(2, 0);
    let mut body = Proto::default().int(1, copies).int(2, copies).int(3, length).int(4, entries - 1).int(5, state);
    body = body.bytes(6, &segment.0).int(7, 2).bytes(8, b"").int(9, copies);
    if let Some(created_ms) = created_ms {
        body = body.int(10, created_ms);
    }
    for (key, value) in custom {
        body = body.bytes(11, &Proto::default().bytes(1, key.as_bytes()).bytes(2, value.as_bytes()).0);
    }
    let mut value = Proto(b"BookieMetadataFormatVersion\t3\n".to_vec());
    value.varint(body.0.len() as u64);
    value.0.extend_from_slice(&body.0);
    value.0
}

/// Where a ledger's node is in the usual layout.
pub fn ledger_path(id: i64) -> String {
    let digits = format!("{id:010}");
    format!("/ledgers/{}/{}/L{}", &digits[..2], &digits[2..6], &digits[6..])
}

/// The ledger whose node this is, by a path of [`ledger_path`].
pub fn ledger_of(path: &str) -> Option<i64> {
    let (folders, last) = path.strip_prefix("/ledgers/")?.rsplit_once("/L")?;
    format!("{}{last}", folders.replace('/', "")).parse().ok()
}
