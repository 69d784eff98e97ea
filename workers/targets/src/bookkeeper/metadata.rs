//! The values of ledger nodes.
//!
//! Sources: `DataFormats.proto` and `LedgerMetadataSerDe` of BookKeeper 4.17.

use prost::Message;
use trimtab_events::{LedgerContent, LedgerStage};

use crate::Undecodable;

fn bad(why: impl std::fmt::Display) -> Undecodable {
    Undecodable::new(why)
}

#[derive(Clone, PartialEq, Message)]
struct RawState {
    #[prost(int64, tag = "3")]
    length: i64,
    #[prost(int64, optional, tag = "4")]
    last_entry: Option<i64>,
    #[prost(int32, optional, tag = "5")]
    state: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct RawCustom {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct RawLedger {
    #[prost(int64, tag = "3")]
    length: i64,
    #[prost(int64, optional, tag = "4")]
    last_entry: Option<i64>,
    #[prost(int32, optional, tag = "5")]
    state: Option<i32>,
    #[prost(int64, optional, tag = "10")]
    created_ms: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    custom: Vec<RawCustom>,
}

/// A ledger's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerMetadata {
    /// How far it is, and what is in it.
    pub content: LedgerContent,
    /// What its creator wrote of it, in the order stored. Keys need not be unique.
    pub custom: Vec<(String, Vec<u8>)>,
}

/// Whether a ledger is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerState {
    /// Open or in recovery.
    Open,
    /// Closed.
    Closed {
        /// Entries in it.
        entries: i64,
        /// Bytes of the entries, one replica.
        bytes: i64,
    },
}

impl From<LedgerContent> for LedgerState {
    fn from(content: LedgerContent) -> LedgerState {
        match content {
            LedgerContent { state: LedgerStage::Closed, entries: Some(entries), bytes: Some(bytes), .. } => {
                LedgerState::Closed { entries, bytes }
            }
            _ => LedgerState::Open,
        }
    }
}

/// Decodes the value of a ledger's node in any of its three versions: only whether it is closed, and what is in it.
///
/// # Errors
/// When the value is damaged or of another version.
pub fn ledger_metadata(value: &[u8]) -> Result<LedgerState, Undecodable> {
    match version(value)? {
        (b"3", body) => {
            let raw = RawState::decode_length_delimited(body).map_err(bad)?;
            content(raw.state, raw.last_entry, raw.length, None).map(Into::into)
        }
        _ => full_metadata(value).map(|ledger| ledger.content.into()),
    }
}

/// Decodes the value of a ledger's node in any of its three versions.
///
/// # Errors
/// When the value is damaged or of another version.
pub fn full_metadata(value: &[u8]) -> Result<LedgerMetadata, Undecodable> {
    match version(value)? {
        (b"3", body) => version_3(body),
        (b"2", body) => version_2(body),
        (b"1", body) => version_1(body),
        (other, _) => Err(bad(format!("metadata version {} is not known", String::from_utf8_lossy(other)))),
    }
}

fn version(value: &[u8]) -> Result<(&[u8], &[u8]), Undecodable> {
    let rest =
        value.strip_prefix(b"BookieMetadataFormatVersion\t").ok_or_else(|| bad("not the metadata of a ledger"))?;
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| bad("the metadata ends in its first line"))?;
    Ok((&rest[..end], &rest[end + 1..]))
}

fn content(
    state: Option<i32>,
    last_entry: Option<i64>,
    length: i64,
    created_ms: Option<i64>,
) -> Result<LedgerContent, Undecodable> {
    let open = |state| LedgerContent { state, entries: None, bytes: None, created_ms };
    match (state, last_entry) {
        (Some(1), _) => Ok(open(LedgerStage::Open)),
        (Some(2), _) => Ok(open(LedgerStage::InRecovery)),
        (Some(3), Some(last)) if (-1..i64::MAX).contains(&last) => {
            Ok(LedgerContent { state: LedgerStage::Closed, entries: Some(last + 1), bytes: Some(length), created_ms })
        }
        (Some(3), _) => Err(bad("a closed ledger without a last entry")),
        (other, _) => Err(bad(format!("ledger state {other:?} is not known"))),
    }
}

/// Version 3: a protobuf message after its length.
fn version_3(body: &[u8]) -> Result<LedgerMetadata, Undecodable> {
    let raw = RawLedger::decode_length_delimited(body).map_err(bad)?;
    let pair = |custom: RawCustom| match custom {
        RawCustom { key: Some(key), value } => Ok((key, value.unwrap_or_default())),
        RawCustom { key: None, .. } => Err(bad("custom metadata without a key")),
    };
    let custom = raw.custom.into_iter().map(pair).collect::<Result<_, _>>()?;
    Ok(LedgerMetadata { content: content(raw.state, raw.last_entry, raw.length, raw.created_ms)?, custom })
}

/// Version 2: the same message in protobuf's text format.
fn version_2(body: &[u8]) -> Result<LedgerMetadata, Undecodable> {
    let text = std::str::from_utf8(body).map_err(bad)?;
    let (mut state, mut last, mut length, mut created_ms) = (None, None, 0, None);
    let mut custom: Vec<(Option<String>, Vec<u8>)> = Vec::new();
    let mut inside: Vec<&str> = Vec::new();
    let number = |field: &str, value: &str| value.parse::<i64>().map_err(|e| bad(format!("{field}: {e}")));
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_suffix('{') {
            inside.push(name.trim().trim_end_matches(':'));
            if inside == ["customMetadata"] {
                custom.push((None, Vec::new()));
            }
            continue;
        }
        if line == "}" {
            inside.pop().ok_or_else(|| bad("a closing brace too many"))?;
            continue;
        }
        let (field, value) = line.split_once(':').ok_or_else(|| bad(format!("{line:?} is no field")))?;
        let value = value.trim();
        match (inside.as_slice(), field) {
            ([], "state") => state = ["OPEN", "IN_RECOVERY", "CLOSED"].iter().position(|s| *s == value),
            ([], "lastEntryId") => last = Some(number(field, value)?),
            ([], "length") => length = number(field, value)?,
            ([], "ctime") => created_ms = Some(number(field, value)?),
            (["customMetadata"], "key") => {
                let key = String::from_utf8(unquoted(value)?).map_err(bad)?;
                custom.last_mut().ok_or_else(|| bad("a key outside"))?.0 = Some(key);
            }
            (["customMetadata"], "value") => {
                custom.last_mut().ok_or_else(|| bad("a value outside"))?.1 = unquoted(value)?;
            }
            _ => {}
        }
    }
    if !inside.is_empty() {
        return Err(bad("the metadata ends inside a field"));
    }
    let pair = |(key, value): (Option<String>, Vec<u8>)| {
        key.map(|key| (key, value)).ok_or_else(|| bad("custom metadata without a key"))
    };
    let custom = custom.into_iter().map(pair).collect::<Result<_, _>>()?;
    let state = state.and_then(|index| i32::try_from(index + 1).ok());
    Ok(LedgerMetadata { content: content(state, last, length, created_ms)?, custom })
}

/// A quoted string of protobuf's text format.
fn unquoted(text: &str) -> Result<Vec<u8>, Undecodable> {
    let wrong = || bad(format!("{text} is no quoted string"));
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or_else(wrong)?;
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let escaped = bytes.next().ok_or_else(wrong)?;
        match escaped {
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'"' | b'\'' | b'\\' => out.push(escaped),
            b'0'..=b'7' => {
                let mut value = u32::from(escaped - b'0');
                for _ in 0..2 {
                    let Some(digit) = bytes.next_if(|byte| (b'0'..=b'7').contains(byte)) else { break };
                    value = value * 8 + u32::from(digit - b'0');
                }
                out.push(u8::try_from(value).map_err(|_| wrong())?);
            }
            _ => return Err(wrong()),
        }
    }
    Ok(out)
}

/// Version 1: lines of text. Quorum size, ensemble size, length, one line a segment; the last one, `<entry>\tCLOSED`, once it
/// is closed, with -102 for a ledger in recovery. It has no room for custom metadata.
fn version_1(body: &[u8]) -> Result<LedgerMetadata, Undecodable> {
    let text = std::str::from_utf8(body).map_err(bad)?;
    let mut lines = text.lines().skip(2);
    let length = lines.next().ok_or_else(|| bad("the metadata has no length"))?;
    let length: i64 = length.trim().parse().map_err(|e| bad(format!("length: {e}")))?;
    let (mut state, mut last) = (1, None);
    if let Some(entry) = lines.find_map(|line| line.strip_suffix("\tCLOSED")) {
        match entry.parse::<i64>().map_err(|e| bad(format!("last entry: {e}")))? {
            -102 => state = 2,
            entry => (state, last) = (3, Some(entry)),
        }
    }
    Ok(LedgerMetadata { content: content(Some(state), last, length, None)?, custom: Vec::new() })
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
    fn ledgers_in_three_versions() {
        let mut v3 = b"BookieMetadataFormatVersion\t3\n".to_vec();
        let body = hex("08011001 18c650 2009 2803");
        v3.push(body.len() as u8);
        v3.extend_from_slice(&body);
        assert_eq!(ledger_metadata(&v3).unwrap(), LedgerState::Closed { entries: 10, bytes: 10310 });
        let v2 = b"BookieMetadataFormatVersion\t2\nquorumSize: 1\nlength: 7\nlastEntryId: 0\nstate: CLOSED\nsegment {\n  firstEntryId: 0\n}\n";
        assert_eq!(ledger_metadata(v2).unwrap(), LedgerState::Closed { entries: 1, bytes: 7 });
        let v1 = |end: &str| format!("BookieMetadataFormatVersion\t1\n1\n1\n0\n0\t127.0.0.1:3181\n{end}");
        assert_eq!(ledger_metadata(v1("9\tCLOSED").as_bytes()).unwrap(), LedgerState::Closed { entries: 10, bytes: 0 });
        assert_eq!(ledger_metadata(v1("-102\tCLOSED").as_bytes()).unwrap(), LedgerState::Open);
        assert_eq!(ledger_metadata(v1("").as_bytes()).unwrap(), LedgerState::Open);
        assert!(ledger_metadata(b"BookieMetadataFormatVersion\t4\n").is_err());
    }

    #[test]
    fn custom_metadata_in_versions_2_and_3() {
        let mut v3 = b"BookieMetadataFormatVersion\t3\n".to_vec();
        let raw = RawLedger {
            state: Some(1),
            created_ms: Some(5),
            custom: vec![RawCustom { key: Some("application".into()), value: Some(b"pulsar".to_vec()) }],
            ..Default::default()
        };
        v3.extend(raw.encode_length_delimited_to_vec());
        let full = full_metadata(&v3).unwrap();
        assert_eq!((full.content.state, full.content.created_ms), (LedgerStage::Open, Some(5)));
        assert_eq!(full.custom, [("application".to_owned(), b"pulsar".to_vec())]);
        let v2 = concat!(
            "BookieMetadataFormatVersion\t2\nquorumSize: 1\nlength: 0\nstate: IN_RECOVERY\nsegment {\n  firstEntryId: 0\n  ",
            "ensembleMember: \"a:1\"\n}\nctime: 7\ncustomMetadata {\n  key: \"pulsar/cursor\"\n  value: \"a\\\"\\303\\274\\n\"\n}\n",
            "customMetadata {\n  key: \"none\"\n}\n"
        );
        let full = full_metadata(v2.as_bytes()).unwrap();
        assert_eq!((full.content.state, full.content.created_ms), (LedgerStage::InRecovery, Some(7)));
        let custom = [("pulsar/cursor".to_owned(), "a\"ü\n".as_bytes().to_vec()), ("none".to_owned(), Vec::new())];
        assert_eq!(full.custom, custom);
        for broken in [&v2[..v2.len() - 3], &v2.replace("\\n\"", "\\q\""), &v2.replace("key: \"none\"", "")] {
            assert!(full_metadata(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = (full_metadata(&bytes), ledger_metadata(&bytes));
            for version in ["1", "2", "3"] {
                let mut ledger = format!("BookieMetadataFormatVersion\t{version}\n").into_bytes();
                ledger.extend_from_slice(&bytes);
                let full = full_metadata(&ledger);
                prop_assert!(full.is_err() || ledger_metadata(&ledger).is_ok());
            }
        }
    }
}
