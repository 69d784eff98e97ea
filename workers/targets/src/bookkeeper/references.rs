//! Values outside `/managed-ledgers` that name ledgers: schema locators, segments of DistributedLog, ranges of Hedwig topics.
//!
//! Sources: `SchemaStorageFormat.proto` of Pulsar 4.2, `LogSegmentMetadata` of DistributedLog (in BookKeeper 4.17),
//! `PubSubProtocol.proto` of Hedwig 4.3.

use prost::Message;

use crate::Undecodable;
use crate::pulsar::metadata::only_fields;

fn bad(why: impl std::fmt::Display) -> Undecodable {
    Undecodable::new(why)
}

#[derive(Clone, PartialEq, Message)]
struct RawPosition {
    #[prost(int64, optional, tag = "1")]
    ledger: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct RawSchemaEntry {
    #[prost(message, optional, tag = "2")]
    position: Option<RawPosition>,
}

#[derive(Clone, PartialEq, Message)]
struct RawSchemaLocator {
    #[prost(message, optional, tag = "1")]
    info: Option<RawSchemaEntry>,
    #[prost(message, repeated, tag = "2")]
    index: Vec<RawSchemaEntry>,
}

/// The ledgers of a schema, one for each of its versions.
///
/// # Errors
/// When the value is damaged, or has something in it that is not known here.
pub fn schema_locator(value: &[u8]) -> Result<Vec<i64>, Undecodable> {
    only_fields(value, 2)?;
    let raw = RawSchemaLocator::decode(value).map_err(bad)?;
    let info = raw.info.ok_or_else(|| bad("a schema without its newest version"))?;
    let id = |entry: RawSchemaEntry| {
        let ledger = entry.position.and_then(|position| position.ledger).filter(|id| *id >= 0);
        ledger.ok_or_else(|| bad("a version of a schema without a ledger"))
    };
    let mut ids = raw.index.into_iter().chain([info]).map(id).collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// The ledger of a segment of a DistributedLog: numbers with semicolons between, the first one ending in the version (1 to 5), the
/// second one the ledger.
///
/// # Errors
/// When it is none.
pub fn log_segment(value: &[u8]) -> Result<i64, Undecodable> {
    let text = std::str::from_utf8(value).map_err(bad)?;
    let mut parts = text.split(';').map(|part| part.trim().parse::<i64>());
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Ok(first)), Some(Ok(ledger)), Some(Ok(_))) if (1..=5).contains(&(first & 0xff)) && ledger >= 0 => {
            Ok(ledger)
        }
        _ => Err(bad(format!("{text:?} is no segment of a log"))),
    }
}

/// The ledger that an allocator of a DistributedLog has set aside, if any.
///
/// # Errors
/// When it is none.
pub fn log_allocation(value: &[u8]) -> Result<Option<i64>, Undecodable> {
    let text = std::str::from_utf8(value).map_err(bad)?.trim();
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| bad(format!("{text:?} is no ledger"))),
    }
}

#[derive(Clone, PartialEq, Message)]
struct RawRange {
    #[prost(uint64, optional, tag = "1")]
    ledger: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct RawRanges {
    #[prost(message, repeated, tag = "1")]
    ranges: Vec<RawRange>,
}

/// The ledgers of a Hedwig topic.
///
/// # Errors
/// When the value is damaged.
pub fn hedwig_ranges(value: &[u8]) -> Result<Vec<i64>, Undecodable> {
    only_fields(value, 1)?;
    let raw = RawRanges::decode(value).map_err(bad)?;
    let id = |range: RawRange| {
        range.ledger.and_then(|id| i64::try_from(id).ok()).ok_or_else(|| bad("a range without a ledger"))
    };
    raw.ranges.into_iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(ledger: Option<i64>) -> RawSchemaEntry {
        RawSchemaEntry { position: Some(RawPosition { ledger }) }
    }

    #[test]
    fn every_version_of_a_schema_counts() {
        let raw = RawSchemaLocator { info: Some(entry(Some(9))), index: vec![entry(Some(0)), entry(Some(9))] };
        assert_eq!(schema_locator(&raw.encode_to_vec()).unwrap(), [0, 9]);
        let without = RawSchemaLocator { info: Some(entry(Some(9))), index: vec![entry(None)] };
        assert!(schema_locator(&without.encode_to_vec()).is_err());
        assert!(schema_locator(b"").is_err());
    }

    #[test]
    fn segments_of_logs() {
        assert_eq!(log_segment(b"5;17;1;1;0;0;0").unwrap(), 17);
        assert_eq!(log_segment(b"4294967298;17;1;20;1;1;3;0").unwrap(), 17);
        for other in [&b"6;17;1"[..], b"5;17", b"5;-1;1", b"5;x;1", b"", b"\xff"] {
            assert!(log_segment(other).is_err());
        }
        assert_eq!(log_allocation(b"").unwrap(), None);
        assert_eq!(log_allocation(b"8").unwrap(), Some(8));
        assert!(log_allocation(b"x").is_err());
    }

    #[test]
    fn ranges_of_hedwig() {
        assert_eq!(hedwig_ranges(&[0x0a, 0x04, 0x08, 0x05, 0x18, 0x01]).unwrap(), [5]);
        assert!(hedwig_ranges(&[0x0a, 0x02, 0x18, 0x01]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (schema_locator(&bytes), log_segment(&bytes), log_allocation(&bytes), hedwig_ranges(&bytes));
        }
    }
}
