//! Cursors: the first ledger that must stay because a durable cursor of any kind has not passed it.

use trimtab_events::{Cursor, Position};

use super::retention::AfterLoad;

/// The cursor that stands furthest back, and the first ledger it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slowest<'a> {
    /// The cursor.
    pub cursor: &'a Cursor,
    /// Where it stands.
    pub position: Position,
    /// Ledgers from this id on are held.
    pub first_kept: i64,
}

/// The slowest cursor; with `expire_s`, after message expiry has moved those it moves over the ledgers closed longer ago than
/// that. The time is the ledger's real closing time: the newest message in it is no younger.
///
/// # Errors
/// The name of a cursor whose position is not known, and why: nothing can be said then.
pub fn slowest<'a>(
    cursors: &'a [Cursor],
    after: &AfterLoad,
    expire_s: Option<i64>,
    now_ms: i64,
) -> Result<Option<Slowest<'a>>, (&'a str, String)> {
    let mut slowest: Option<Slowest<'a>> = None;
    for cursor in cursors {
        let Some(position) = cursor.mark_delete.present().copied() else {
            let why = cursor.mark_delete.unknown().unwrap_or("its node has no position");
            return Err((&cursor.name, why.to_owned()));
        };
        let mut first_kept = passed(position, after);
        if let Some(ttl_s) = expire_s.filter(|_| cursor.kind.expires()) {
            first_kept = expired(first_kept, after, ttl_s, now_ms);
        }
        if slowest.is_none_or(|s| first_kept < s.first_kept) {
            slowest = Some(Slowest { cursor, position, first_kept });
        }
    }
    Ok(slowest)
}

/// The first ledger that a cursor at this position holds: its own, or the next one when it stands on the last entry. (The last
/// ledger of the list counts as well: loading the topic makes a new current one.)
pub(crate) fn passed(position: Position, after: &AfterLoad) -> i64 {
    let at_end = |ledger: &&super::retention::Ledger| {
        ledger.id == position.ledger && !ledger.open && position.entry.checked_add(1) == Some(ledger.entries)
    };
    if after.ledgers.iter().any(|ledger| at_end(&ledger)) { position.ledger.saturating_add(1) } else { position.ledger }
}

/// The first ledger that message expiry leaves to a cursor that holds the ledgers from `first_kept` on. One that is young, or of
/// which nobody knows when it was closed, ends it, whatever the ones behind it say: clocks were wrong.
fn expired(first_kept: i64, after: &AfterLoad, ttl_s: i64, now_ms: i64) -> i64 {
    let held = after.ledgers.iter().skip_while(|ledger| ledger.id < first_kept);
    let old = held.take_while(|ledger| !ledger.open && old_enough(ledger.really_closed_ms, ttl_s, now_ms));
    old.last().map_or(first_kept, |ledger| ledger.id.saturating_add(1))
}

/// Whether everything in a ledger closed then is older than the TTL.
pub fn old_enough(closed_ms: Option<i64>, ttl_s: i64, now_ms: i64) -> bool {
    closed_ms.is_some_and(|closed| closed > 0 && now_ms.saturating_sub(closed) > ttl_s.saturating_mul(1000))
}
