//! The values of Hedwig's nodes in ZooKeeper.
//!
//! Source: Hedwig 4.3.2's `ZkMetadataManagerFactory`, `HubInfo`, `HubLoad`, `FactoryLayout` and `SubscriptionStateUtils`. What a hub
//! could not read either, or could read in two ways, is not decoded.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use prost::Message;

use super::proto;
use crate::Undecodable;

fn bad(why: impl fmt::Display) -> Undecodable {
    Undecodable::new(why)
}

/// The largest number of a message: hubs count with signed 64 bit.
pub const MAX_ID: u64 = i64::MAX as u64;

/// A message's id in the very bytes of its writer, because it carries the positions of other regions too and is sent back as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct MessageId {
    local: u64,
    raw: Bytes,
}

impl MessageId {
    /// From a `MessageSeqId`. A number that is missing counts as 0.
    ///
    /// # Errors
    /// When it is damaged, or its number is none a hub could have written.
    pub fn decode(raw: Bytes) -> Result<MessageId, Undecodable> {
        let seq = proto::MessageSeqId::decode(raw.clone()).map_err(|e| bad(format!("message id: {e}")))?;
        Ok(MessageId { local: local(&seq)?, raw })
    }

    /// Its number in this region: 1 is the first message, 0 stands before it.
    pub fn local(&self) -> u64 {
        self.local
    }

    /// The bytes it was read from.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({})", self.local)
    }
}

/// The number in a message id.
pub(super) fn local(seq: &proto::MessageSeqId) -> Result<u64, Undecodable> {
    match seq.local.unwrap_or(0) {
        id if id > MAX_ID => Err(bad(format!("message id {id} is larger than any a hub counts to"))),
        id => Ok(id),
    }
}

/// The messages that one ledger of a topic holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRange {
    /// The ledger.
    pub ledger: i64,
    /// Its first message, unless a release before 4.2 wrote it.
    pub start: Option<u64>,
    /// Its last message; absent while it is open.
    pub end: Option<MessageId>,
}

/// Decodes the value of a topic's `ledgers` node: its ledgers in the order of their messages, each but the last with an end.
///
/// # Errors
/// When it is damaged, an open range is not the last, ranges are not in order, or a ledger is there twice.
pub fn ledger_ranges(value: &[u8]) -> Result<Vec<LedgerRange>, Undecodable> {
    let raw = proto::LedgerRanges::decode(value).map_err(bad)?;
    let count = raw.ranges.len();
    let mut ranges = Vec::with_capacity(count);
    let mut before = 0;
    for (index, range) in raw.ranges.into_iter().enumerate() {
        let id = range.ledger_id.ok_or_else(|| bad(format!("range {index} has no ledger")))?;
        let ledger = i64::try_from(id).map_err(|_| bad(format!("range {index} has ledger {id}")))?;
        let end = range.end_seq_id_included.map(MessageId::decode).transpose()?;
        if end.is_none() && index + 1 < count {
            return Err(bad(format!("ledger {ledger} has no end and is not the last")));
        }
        let start = range.start_seq_id_included;
        if let Some(start) = start.filter(|start| *start <= before || *start > MAX_ID) {
            return Err(bad(format!("ledger {ledger} starts at {start}, the one before it ends at {before}")));
        }
        if let Some(end) = &end {
            if end.local < start.unwrap_or(before + 1) {
                return Err(bad(format!("ledger {ledger} ends at {}, before it starts", end.local)));
            }
            before = end.local;
        }
        ranges.push(LedgerRange { ledger, start, end });
    }
    let mut ids: Vec<i64> = ranges.iter().map(|range| range.ledger).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(bad(format!("ledger {} is there twice", pair[0])));
    }
    Ok(ranges)
}

/// A subscriber, as its node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Consumed up to and including this.
    pub pointer: u64,
    /// The hub keeps at most so many messages for it; 0 is no bound.
    pub bound: u32,
    /// At most so many messages are delivered ahead of what is consumed; 0 is the hub's own limit.
    pub window: u32,
    /// The Java class that picks what is delivered.
    pub filter: Option<String>,
}

/// Decodes the value of a subscriber's node, also in the form that releases before 4.2 wrote.
///
/// # Errors
/// When it is damaged, or has no position. An empty value is one: a subscriber with a slash in its name leaves such a node behind.
pub fn subscription(value: &[u8]) -> Result<Subscription, Undecodable> {
    if value.is_empty() {
        return Err(bad("it is empty; a subscriber with a slash in its name leaves such a node behind"));
    }
    let present = proto::SubscriptionData::decode(value);
    let (state, preferences) = match present {
        Ok(proto::SubscriptionData { state: Some(state), preferences }) if state.msg_id.is_some() => {
            (state, preferences.unwrap_or_default())
        }
        present => {
            let state = proto::SubscriptionState::decode(value).map_err(|old| match present {
                Ok(_) => bad("it has no position"),
                Err(e) => bad(format!("{e}; as releases before 4.2 wrote it: {old}")),
            })?;
            (state, proto::SubscriptionPreferences::default())
        }
    };
    let position = state.msg_id.ok_or_else(|| bad("it has no position"))?;
    Ok(Subscription {
        pointer: local(&position)?,
        bound: preferences.message_bound.or(state.message_bound).unwrap_or(0),
        window: preferences.message_window_size.unwrap_or(0),
        filter: preferences.message_filter.filter(|class| !class.is_empty()),
    })
}

/// Where a hub listens, as hubs write it: `host:port:sslport`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HubAddress {
    /// Name or number of the host; hubs announce numbers.
    pub host: String,
    /// The port without TLS.
    pub port: u16,
    /// The port with TLS. Announced even where TLS is off.
    pub tls_port: Option<u16>,
}

impl HubAddress {
    /// `host:port`, what identifies the hub.
    pub fn plain(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl FromStr for HubAddress {
    type Err = Undecodable;

    fn from_str(text: &str) -> Result<HubAddress, Undecodable> {
        let odd = || bad(format!("{text:?} is not a hub's address, host:port:sslport"));
        let mut parts = text.split(':');
        let (host, port, tls, more) = (parts.next(), parts.next(), parts.next(), parts.next());
        let host =
            host.filter(|host| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control()));
        let (Some(host), Some(port), None) = (host, port, more) else { return Err(odd()) };
        Ok(HubAddress {
            host: host.to_owned(),
            port: port.parse().map_err(|_| odd())?,
            tls_port: tls.map(|port| port.parse().map_err(|_| odd())).transpose()?,
        })
    }
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        self.tls_port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Who owns a topic, as the topic's `hub` node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubInfo {
    /// The hub.
    pub address: HubAddress,
    /// The transaction that made the hub's own node below `hosts`; older releases do not say.
    pub registered_zxid: Option<i64>,
}

/// Decodes the value of a topic's `hub` node, also in the form of a bare address.
///
/// # Errors
/// When it is neither.
pub fn hub_info(value: &[u8]) -> Result<HubInfo, Undecodable> {
    let text = utf8(value)?;
    if !text.starts_with("hostname") {
        return Ok(HubInfo { address: text.trim().parse()?, registered_zxid: None });
    }
    let mut info = (None, None);
    for (field, value) in text_fields(text)? {
        match field {
            "hostname" => info.0 = Some(value.parse::<HubAddress>()?),
            "czxid" => info.1 = Some(number(field, &value)?),
            _ => {}
        }
    }
    match info {
        (Some(address), Some(registered)) => Ok(HubInfo { address, registered_zxid: Some(registered) }),
        _ => Err(bad("hostname and czxid are needed, one is missing")),
    }
}

/// Decodes the value of a hub's node below `hosts`, the number of its topics; also in the form of a bare number.
///
/// # Errors
/// When it is neither.
pub fn hub_load(value: &[u8]) -> Result<u64, Undecodable> {
    let text = utf8(value)?;
    if !text.starts_with("numTopics") {
        return text.trim().parse().map_err(|e| bad(format!("load {:?}: {e}", text.trim())));
    }
    let fields = text_fields(text)?;
    let found = fields.iter().find(|(field, _)| *field == "numTopics").ok_or_else(|| bad("numTopics is missing"))?;
    found.1.parse().map_err(|e| bad(format!("numTopics {:?}: {e}", found.1)))
}

/// What keeps a region's metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The Java class of the metadata manager's factory.
    pub manager: String,
    /// Its version.
    pub version: i64,
}

/// The manager that is understood, at version 1: everything is in ZooKeeper.
pub const ZK_MANAGER: &str = "org.apache.hedwig.server.meta.ZkMetadataManagerFactory";

/// Decodes the value of a region's `LAYOUT` node.
///
/// # Errors
/// When it is damaged.
pub fn layout(value: &[u8]) -> Result<Layout, Undecodable> {
    let mut layout = (None, None);
    for (field, value) in text_fields(utf8(value)?)? {
        match field {
            "managerImpl" => layout.0 = Some(value),
            "managerVersion" => layout.1 = Some(number(field, &value)?),
            _ => {}
        }
    }
    match layout {
        (Some(manager), Some(version)) => Ok(Layout { manager, version }),
        _ => Err(bad("managerImpl and managerVersion are needed, one is missing")),
    }
}

fn utf8(value: &[u8]) -> Result<&str, Undecodable> {
    std::str::from_utf8(value).map_err(|e| bad(format!("it is not text: {e}")))
}

fn number(field: &str, value: &str) -> Result<i64, Undecodable> {
    value.parse().ok().filter(|n| *n >= 0).ok_or_else(|| bad(format!("{field} {value:?} is not a number")))
}

/// The fields of a flat message in protobuf's text format: `name: value` each, the value a token or a quoted string.
fn text_fields(text: &str) -> Result<Vec<(&str, String)>, Undecodable> {
    let mut fields = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest.split_once(':').ok_or_else(|| bad("a field without a value"))?;
        let name = name.trim_end();
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(bad(format!("{name:?} is not the name of a field")));
        }
        let after = after.trim_start();
        let value = if after.starts_with('"') {
            let (value, end) = quoted(after)?;
            rest = &after[end..];
            value
        } else {
            let end = after.find(char::is_whitespace).unwrap_or(after.len());
            rest = &after[end..];
            after[..end].to_owned()
        };
        fields.push((name, value));
        rest = rest.trim_start();
    }
    Ok(fields)
}

/// A quoted string at the beginning of `text`, and where it ends. Java writes octal escapes for all that is not printable ASCII.
fn quoted(text: &str) -> Result<(String, usize), Undecodable> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => {
                let value = String::from_utf8(out).map_err(|e| bad(format!("a string is not text: {e}")))?;
                return Ok((value, at));
            }
            b'\\' => {
                let digits = bytes[at..].iter().take(3).take_while(|b| matches!(b, b'0'..=b'7')).count();
                if digits > 0 {
                    let code = bytes[at..at + digits].iter().fold(0_u32, |code, b| code * 8 + u32::from(b - b'0'));
                    out.push(u8::try_from(code).map_err(|_| bad(format!("escape {code:o} is no byte")))?);
                    at += digits;
                    continue;
                }
                let escaped = *bytes.get(at).ok_or_else(|| bad("a string ends in its escape"))?;
                out.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'"' | b'\\' | b'\'' => escaped,
                    other => return Err(bad(format!("escape \\{} is not known", char::from(other)))),
                });
                at += 1;
            }
            other => out.push(*other),
        }
    }
    Err(bad("a string does not end"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hedwig::hex;

    #[test]
    fn golden_subscribers() {
        let at = |pointer, bound| Subscription { pointer, bound, window: 0, filter: None };
        for (bytes, expected) in [
            ("0a 04 0a 02 08 00 12 00", at(0, 0)),
            ("0a 04 0a 02 08 46 12 00", at(70, 0)),
            // before 4.2
            ("0a 02 08 07 10 00", at(7, 0)),
            ("0a 02 08 07", at(7, 0)),
            ("0a 02 08 07 10 32", at(7, 50)),
            ("0a 00", at(0, 0)),
            // a bound in the preferences, and a window
            ("0a 04 0a 02 08 07 12 02 10 32", at(7, 50)),
            ("0a 04 0a 02 08 07 12 02 20 0a", Subscription { window: 10, ..at(7, 0) }),
            // no local component
            ("0a 02 0a 00", at(0, 0)),
        ] {
            assert_eq!(subscription(&hex(bytes)).as_ref(), Ok(&expected), "{bytes}");
        }
        let value = hex("0a 04 0a 02 08 46 12 00");
        assert_eq!(proto::SubscriptionData::decode(value.as_slice()).unwrap().encode_to_vec(), value);
        let old = hex("0a 02 08 07 10 00");
        assert_eq!(proto::SubscriptionState::decode(old.as_slice()).unwrap().encode_to_vec(), old);
    }

    #[test]
    fn subscribers_that_cannot_be_read() {
        for bytes in [
            "",
            "12 00",
            "0a 00 12 00",
            "ff fe 6e 6f",
            "0a 04 0a 02 08",
            // 2^63
            "0a 0d 0a 0b 08 80 80 80 80 80 80 80 80 80 01 12 00",
        ] {
            assert!(subscription(&hex(bytes)).is_err(), "{bytes}");
        }
    }

    #[test]
    fn golden_ranges() {
        let value = hex("0a 04 08 05 18 01");
        let range = LedgerRange { ledger: 5, start: Some(1), end: None };
        assert_eq!(ledger_ranges(&value), Ok(vec![range]));
        assert_eq!(proto::LedgerRanges::decode(value.as_slice()).unwrap().encode_to_vec(), value);
        assert_eq!(ledger_ranges(&[]), Ok(vec![]));
    }

    #[test]
    fn an_end_keeps_its_bytes_with_other_regions() {
        // local 9, region "r" at 4, and a field that this version does not know
        let end = hex("08 09 12 05 0a 01 72 10 04 78 01");
        let mut value = vec![0x0a, 4 + end.len() as u8, 0x08, 0x05, 0x12, end.len() as u8];
        value.extend_from_slice(&end);
        let ranges = ledger_ranges(&value).unwrap();
        let read = ranges[0].end.as_ref().unwrap();
        assert_eq!((read.local(), read.raw().as_ref()), (9, end.as_slice()));
    }

    fn ranges(of: &[(u64, Option<u64>, Option<u64>)]) -> Vec<u8> {
        let ranges = of.iter().map(|(ledger, start, end)| proto::LedgerRange {
            ledger_id: Some(*ledger),
            start_seq_id_included: *start,
            end_seq_id_included: end
                .map(|end| proto::MessageSeqId { local: Some(end), remote: vec![] }.encode_to_vec().into()),
        });
        proto::LedgerRanges { ranges: ranges.collect() }.encode_to_vec()
    }

    #[test]
    fn ranges_that_make_no_sense_are_not_read() {
        assert!(ledger_ranges(&ranges(&[(1, None, Some(20)), (2, None, Some(40)), (3, None, None)])).is_ok());
        assert!(ledger_ranges(&ranges(&[(1, Some(21), Some(40)), (2, Some(41), None)])).is_ok());
        for odd in [
            // open, and not the last
            ranges(&[(1, Some(1), None), (2, Some(21), None)]),
            // not in order
            ranges(&[(1, Some(21), Some(40)), (2, Some(1), Some(20))]),
            ranges(&[(1, None, Some(40)), (2, None, Some(20))]),
            ranges(&[(1, None, Some(40)), (2, None, Some(40))]),
            ranges(&[(1, Some(1), Some(40)), (2, Some(40), None)]),
            ranges(&[(1, Some(5), Some(4))]),
            ranges(&[(1, Some(0), None)]),
            ranges(&[(1, None, Some(0))]),
            // twice
            ranges(&[(1, Some(1), Some(20)), (1, Some(21), None)]),
            // no hub counts so far
            ranges(&[(1, Some(1), Some(MAX_ID + 1))]),
            ranges(&[(u64::MAX, Some(1), Some(2))]),
            // no ledger
            hex("0a 02 18 01"),
            b"\xff\xfe not a protobuf".to_vec(),
        ] {
            assert!(ledger_ranges(&odd).is_err(), "{odd:02x?}");
        }
        assert!(ledger_ranges(&ranges(&[(1, Some(1), Some(MAX_ID)), (2, None, None)])).is_ok());
    }

    #[test]
    fn hubs() {
        let info = hub_info(b"hostname: \"127.0.0.1:17021:17041\"\nczxid: 29\n").unwrap();
        assert_eq!(info.address.to_string(), "127.0.0.1:17021:17041");
        assert_eq!((info.address.plain(), info.registered_zxid), ("127.0.0.1:17021".to_owned(), Some(29)));
        let old = hub_info(b"10.0.0.1:4080:9876").unwrap();
        assert_eq!((old.address.tls_port, old.registered_zxid), (Some(9876), None));
        for odd in [
            "",
            "hostname: \"a:1:2\"\n",
            "czxid: 1\n",
            "a",
            "a:x:1",
            ":1:2",
            "a:1:2:3",
            "a:70000",
            "hostname: \"a:1:2",
            "a b:1",
        ] {
            assert!(hub_info(odd.as_bytes()).is_err(), "{odd}");
        }
        assert_eq!(hub_load(b"numTopics: 3\n"), Ok(3));
        assert_eq!(hub_load(b"17"), Ok(17));
        assert!(hub_load(b"numTopics: x\n").is_err() && hub_load(b"").is_err());
    }

    #[test]
    fn layouts() {
        let value = b"managerImpl: \"org.apache.hedwig.server.meta.ZkMetadataManagerFactory\"\nmanagerVersion: 1\n";
        assert_eq!(layout(value), Ok(Layout { manager: ZK_MANAGER.to_owned(), version: 1 }));
        assert!(layout(b"managerVersion: 1\n").is_err() && layout(b"").is_err() && layout(b"{}").is_err());
    }

    #[test]
    fn text_strings_are_unescaped() {
        let text = r#"a: "q\"\\\303\251\n" b_2:7"#;
        assert_eq!(text_fields(text).unwrap(), [("a", "q\"\\é\n".to_owned()), ("b_2", "7".to_owned())]);
        for odd in [r#"a: "\"#, r#"a: "\777""#, r#"a: "\q""#, r#"a: "\377""#, "a", ": 1", "a b: 1"] {
            assert!(text_fields(odd).is_err(), "{odd}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (ledger_ranges(&bytes), subscription(&bytes), hub_info(&bytes), hub_load(&bytes), layout(&bytes));
        }

        #[test]
        fn no_text_makes_a_decoder_panic(text in "(hostname|czxid|numTopics|managerImpl)?[:\" \\\\0-9a-z\n]{0,40}") {
            let _ = (hub_info(text.as_bytes()), hub_load(text.as_bytes()), layout(text.as_bytes()));
        }
    }
}
