//! Retention: which ledgers the broker's own trimming frees, and in what order.
//!
//! Source: `internalTrimLedgers` of `ManagedLedgerImpl` (Pulsar 4.2). Ledgers are walked from the oldest; the first that
//! stays ends the walk. Retention counts from the closing of a ledger.

use trimtab_events::{LastLedger, LedgerCandidate, LedgerInfo, Retention};

const MIB: i64 = 1024 * 1024;

/// One ledger as it will be once the broker has loaded the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// Its id.
    pub id: i64,
    /// Entries in it; more than 0.
    pub entries: i64,
    /// Bytes, one replica.
    pub bytes: i64,
    /// The closing time the broker will count from; none when it counts from the moment of loading.
    pub closed_ms: Option<i64>,
    /// When it was really closed, if that is known: what message ages are judged by.
    pub really_closed_ms: Option<i64>,
    /// It is the last of the list.
    pub last: bool,
    /// It is open: nobody can free it.
    pub open: bool,
}

/// The list as the broker will see it after loading the topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfterLoad {
    /// Ledgers that stay in the list, in order.
    pub ledgers: Vec<Ledger>,
    /// Ledgers that leave it by the loading alone: empty ones, and a last one that BookKeeper lost.
    pub dropped: Vec<i64>,
}

impl AfterLoad {
    /// Applies what loading does to a list. The last ledger gets the time of loading whatever the list says; empty ledgers go.
    pub fn of(list: &[LedgerInfo], last: &LastLedger) -> AfterLoad {
        let mut after = AfterLoad { ledgers: Vec::with_capacity(list.len()), dropped: Vec::new() };
        for (index, info) in list.iter().enumerate() {
            let is_last = index + 1 == list.len();
            let ledger = if is_last { last_ledger(info, last) } else { listed(info) };
            match ledger {
                Some(ledger) => after.ledgers.push(ledger),
                None => after.dropped.push(info.id),
            }
        }
        after
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> i64 {
        self.ledgers.iter().fold(0, |sum: i64, ledger| sum.saturating_add(ledger.bytes))
    }

    /// Bytes of those named.
    pub fn bytes_of(&self, ids: &[i64]) -> i64 {
        let named = self.ledgers.iter().filter(|ledger| ids.contains(&ledger.id));
        named.fold(0, |sum: i64, ledger| sum.saturating_add(ledger.bytes))
    }
}

fn listed(info: &LedgerInfo) -> Option<Ledger> {
    // Entries that the list does not give make the ledger unknown, see `exclude::unknown_entries`; here it counts as data.
    let entries = info.entries.unwrap_or(i64::MAX);
    (entries > 0).then(|| Ledger {
        id: info.id,
        entries,
        bytes: info.bytes.unwrap_or(0).max(0),
        closed_ms: (info.closed_ms > 0).then_some(info.closed_ms),
        really_closed_ms: (info.closed_ms > 0).then_some(info.closed_ms),
        last: false,
        open: false,
    })
}

fn last_ledger(info: &LedgerInfo, last: &LastLedger) -> Option<Ledger> {
    let base = Ledger {
        id: info.id,
        entries: 0,
        bytes: 0,
        closed_ms: None,
        really_closed_ms: (info.closed_ms > 0).then_some(info.closed_ms),
        last: true,
        open: false,
    };
    match (last, info.closed_ms > 0) {
        (LastLedger::Missing, _) => None,
        (LastLedger::Closed { entries, bytes, closed_ms }, false) => (*entries > 0).then_some(Ledger {
            entries: *entries,
            bytes: (*bytes).max(0),
            really_closed_ms: Some(*closed_ms),
            ..base
        }),
        (LastLedger::Open | LastLedger::Unknown { .. }, false) => {
            Some(Ledger { open: true, entries: i64::MAX, ..base })
        }
        // The list closed it: its own figures count, unless BookKeeper says that somebody writes it.
        (LastLedger::Open, true) => Some(Ledger { open: true, entries: i64::MAX, ..base }),
        (_, true) => {
            let entries = info.entries.unwrap_or(i64::MAX);
            (entries > 0).then(|| Ledger { entries, bytes: info.bytes.unwrap_or(0).max(0), ..base })
        }
    }
}

/// Whether a ledger of this closing time is past the time limit. A time in the future is never past.
pub fn past_time(retention: Retention, closed_ms: Option<i64>, now_ms: i64) -> bool {
    match (retention.minutes, closed_ms) {
        (..0, _) => false,
        (0, None) => true,
        (0, Some(closed)) => closed <= now_ms,
        (_, None) => false,
        (minutes, Some(closed)) => now_ms.saturating_sub(closed) > minutes.saturating_mul(60_000),
    }
}

/// Ledgers that a trim frees: a prefix of the list that ends before `first_kept`.
pub fn freed(
    topic: &LedgerCandidate,
    after: &AfterLoad,
    retention: Retention,
    first_kept: Option<i64>,
    now_ms: i64,
) -> Vec<i64> {
    let total = after.bytes();
    let mut to_delete: i64 = 0;
    let mut ids = Vec::new();
    for ledger in &after.ledgers {
        let held = first_kept.is_some_and(|first| ledger.id >= first);
        if held || ledger.open || (topic.terminated && ledger.last) {
            break;
        }
        to_delete = to_delete.saturating_add(ledger.bytes);
        let over_size = retention.mib >= 0 && total - to_delete >= retention.mib.saturating_mul(MIB);
        if !past_time(retention, ledger.closed_ms, now_ms) && !over_size {
            break;
        }
        ids.push(ledger.id);
    }
    ids
}

/// Ledgers whose BookKeeper copy the broker deletes because a complete copy in tiered storage is older than the lag. Where the
/// cursors stand does not matter.
pub fn offloaded_copies(list: &[LedgerInfo], lag_ms: i64, freed: &[i64], now_ms: i64) -> Vec<i64> {
    let due = |info: &&LedgerInfo| {
        let offload = info.offload.filter(|o| o.complete && !o.bookkeeper_deleted && o.offloaded_ms > 0);
        lag_ms >= 0
            && !freed.contains(&info.id)
            && offload.is_some_and(|o| now_ms.saturating_sub(o.offloaded_ms) > lag_ms)
    };
    list.iter().filter(due).map(|info| info.id).collect()
}
