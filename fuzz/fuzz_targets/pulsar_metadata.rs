//! Any bytes as values of Pulsar's metadata: decoding never panics, and neither does what is computed from the result.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trimtab_events::{LastLedger, Position};
use trimtab_targets::pulsar::{Row, cursor_info, ledger_metadata, managed_ledger_info};

fuzz_target!(|data: &[u8]| {
    let Some((&split, rest)) = data.split_first() else { return };
    let (list, cursor) = rest.split_at(usize::from(split).min(rest.len()));
    let _ = ledger_metadata(rest);
    let (Ok(list), Ok(cursor)) = (managed_ledger_info(list), cursor_info(cursor)) else { return };
    let closed = LastLedger::Closed { entries: i64::from(split), bytes: 7, closed_ms: 1 };
    for last in [LastLedger::Open, LastLedger::Missing, closed] {
        let row = Row::new(&list.ledgers, &last);
        let backlog = row.backlog(cursor.mark_delete, &cursor.holes);
        assert!(backlog.entries >= 0 && backlog.bytes >= 0);
        let all = row.backlog(Position { ledger: -1, entry: -1 }, &[]);
        assert!(backlog.entries <= all.entries && backlog.bytes <= all.bytes);
        let _ = (row.place(cursor.mark_delete), row.before(cursor.mark_delete));
        if let Some(after) = row.after(cursor.mark_delete) {
            assert!(after > cursor.mark_delete || cursor.mark_delete.entry == i64::MAX);
        }
    }
});
