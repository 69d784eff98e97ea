//! Any bytes as what names a ledger, or says whose it is: decoding never panics, and whatever is not known in a value is refused and not
//! passed over, since it might name a ledger.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trimtab_events::{GuardKind, LedgerContent, LedgerStage, Marks};
use trimtab_targets::Undecodable;
use trimtab_targets::bookkeeper::{
    LedgerMetadata, full_metadata, hedwig_ranges, ledger_metadata, log_allocation, log_segment, owned, schema_locator,
};
use trimtab_targets::pulsar::{TopicName, cursor_info, cursor_references, managed_ledger_info, topic_references};

/// A field that no format has, with a number of one byte.
const LATER: [u8; 2] = [15 << 3, 1];

/// The value with a field that a later version might add. Behind a compressed one it would not be part of the message.
fn refuses_what_is_later<T>(data: &[u8], decode: fn(&[u8]) -> Result<T, Undecodable>) {
    if !data.starts_with(b"\x47\x78") {
        assert!(decode(&[data, &LATER].concat()).is_err());
    }
}

fn marks_of(ledger: &LedgerMetadata) {
    let Ok(of) = owned(ledger) else { return };
    let name = TopicName::of_managed_ledger(&of.managed_ledger).expect("whoever owns a ledger has a name");
    assert_eq!((name.subject(), &name.namespace), (of.owner.topic, &of.owner.namespace));
    let (kind, first) = &of.nodes[0];
    match kind {
        GuardKind::Schema => assert!(first.starts_with("/schemas/") && of.nodes.len() == 1),
        GuardKind::Topic => assert_eq!(*first, format!("/managed-ledgers/{}", of.managed_ledger)),
        GuardKind::Cursor => panic!("a cursor without its topic"),
    }
    for (kind, path) in &of.nodes[1..] {
        let cursor = path.strip_prefix(first).and_then(|rest| rest.strip_prefix('/')).expect("it lies below its topic");
        assert!(*kind == GuardKind::Cursor && !cursor.is_empty() && !cursor.contains('/'));
    }
    // One more mark, and nobody here knows what it is for.
    let mut marked = ledger.clone();
    marked.custom.push(("plans".to_owned(), Vec::new()));
    assert!(matches!(owned(&marked), Err(Marks::Unknown { .. })));
}

fuzz_target!(|data: &[u8]| {
    if let Ok(ledger) = full_metadata(data) {
        assert_eq!(ledger_metadata(data), Ok(ledger.content.into()));
        marks_of(&ledger);
    }
    // Marks by themselves, so that not every input needs a ledger around them: `key=value` in each line.
    let pair = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        Some((String::from_utf8(line[..at].to_vec()).ok()?, line[at + 1..].to_vec()))
    };
    let content = LedgerContent { state: LedgerStage::Open, entries: None, bytes: None, created_ms: None };
    marks_of(&LedgerMetadata { content, custom: data.split(|byte| *byte == b'\n').filter_map(pair).collect() });
    if let Ok(named) = topic_references(data) {
        let list = managed_ledger_info(data).expect("whoever finds its ledgers can read it");
        assert!(list.ledgers.iter().map(|ledger| ledger.id).eq(named.iter().map(|(id, _)| *id)));
        refuses_what_is_later(data, topic_references);
    }
    if let Ok(named) = cursor_references(data) {
        let cursor = cursor_info(data).expect("whoever finds its ledgers can read it");
        assert_eq!(named.positions, cursor.cursor_ledger);
        assert!(named.compacted.iter().chain(&named.buckets).all(|id| *id >= 0));
        refuses_what_is_later(data, cursor_references);
    }
    if let Ok(named) = schema_locator(data) {
        assert!(!named.is_empty() && named[0] >= 0 && named.is_sorted_by(|a, b| a < b));
        refuses_what_is_later(data, schema_locator);
    }
    if let Ok(named) = hedwig_ranges(data) {
        assert!(named.iter().all(|id| *id >= 0));
        refuses_what_is_later(data, hedwig_ranges);
    }
    if let Ok(named) = log_segment(data) {
        assert!(named >= 0);
    }
    let _ = log_allocation(data);
});
