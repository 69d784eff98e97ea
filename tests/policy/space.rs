//! The whole space of candidates: everything that a reader could hand over, sane or not.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use trimtab_events::{
    Cursor, CursorKind, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded, Offload, Partition, Policies,
    Position, Retention, Seen, Setting, TopicClass,
};

use super::reference::Asked;

pub const NOW: i64 = 1_800_000_000_000;
pub const MINUTE: i64 = 60_000;
pub const DAY: i64 = 24 * 60 * MINUTE;
pub const MIB: i64 = 1024 * 1024;

fn unknown<T>() -> Evidence<T> {
    Evidence::Unknown("the test says so".to_owned())
}

/// Moments around every limit of the space, and values that are none.
fn time() -> impl Strategy<Value = i64> {
    let around = [1, 1000, MINUTE, 10 * MINUTE, 7 * DAY];
    let edges: Vec<i64> = around.iter().flat_map(|age| [NOW - age - 1, NOW - age, NOW - age + 1]).collect();
    prop_oneof![
        6 => Just(NOW - 30 * DAY),
        3 => select(edges),
        1 => select(vec![0, -1, NOW, NOW + 1, NOW + 400 * DAY, i64::MAX, i64::MIN, 1]),
    ]
}

fn maybe<T: std::fmt::Debug + Clone + 'static>(
    known: u32,
    inner: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<T>> {
    prop_oneof![1 => Just(None), known => inner.prop_map(Some)].boxed()
}

fn ledger() -> impl Strategy<Value = (i64, LedgerInfo)> {
    let offload = (any::<bool>(), proptest::bool::weighted(0.2), time()).prop_map(
        |(complete, bookkeeper_deleted, offloaded_ms)| Offload { complete, bookkeeper_deleted, offloaded_ms },
    );
    let entries = maybe(20, select(vec![0, 1, 10, 10, 10, 10, 10, 10, 10]));
    let bytes = maybe(20, select(vec![0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB, -1]));
    let offload = prop_oneof![9 => Just(None), 1 => offload.prop_map(Some)];
    let gap = prop_oneof![20 => Just(1_i64), 5 => Just(2), 5 => Just(7)];
    (gap, entries, bytes, time(), offload).prop_map(|(gap, entries, bytes, closed_ms, offload)| {
        (gap, LedgerInfo { id: 0, entries, bytes, closed_ms, offload })
    })
}

fn last() -> impl Strategy<Value = LastLedger> {
    let closed = (select(vec![0, 1, 10, 10, 10]), select(vec![0, MIB, 3 * MIB]), time())
        .prop_map(|(entries, bytes, closed_ms)| LastLedger::Closed { entries, bytes, closed_ms });
    prop_oneof![
        10 => closed,
        2 => Just(LastLedger::Open),
        1 => Just(LastLedger::Missing),
        1 => Just(LastLedger::Unknown { why: "the test says so".to_owned() }),
    ]
}

fn loaded() -> impl Strategy<Value = Loaded> {
    prop_oneof![
        10 => Just(Loaded::No),
        3 => Just(Loaded::LeftOver),
        1 => Just(Loaded::Yes),
        1 => Just(Loaded::Unknown { why: "the test says so".to_owned() }),
    ]
}

/// Where a cursor stands, relative to a list that is not known yet.
#[derive(Debug, Clone, Copy)]
enum Stand {
    Start,
    Middle,
    LastEntry,
    BeyondEnd,
    BeforeFirst,
    AfterLast,
    Unlisted,
    Negative,
    Unknown,
}

impl Stand {
    fn position(self, at: &LedgerInfo, last: &LastLedger, list: &[LedgerInfo]) -> Evidence<Position> {
        let entries = match last {
            LastLedger::Closed { entries, .. } if list.last() == Some(at) && at.closed_ms <= 0 => *entries,
            _ => at.entries.unwrap_or(10),
        };
        let (first, end) = (list.first().map_or(0, |l| l.id), list.last().map_or(0, |l| l.id));
        let (ledger, entry) = match self {
            Stand::Start => (at.id, -1),
            Stand::Middle => (at.id, 0),
            Stand::LastEntry => (at.id, entries - 1),
            Stand::BeyondEnd => (at.id, entries),
            Stand::BeforeFirst => (first - 1, 5),
            Stand::AfterLast => (end + 1, -1),
            Stand::Unlisted => (at.id + 1, -1),
            Stand::Negative => (-1, -1),
            Stand::Unknown => return unknown(),
        };
        Evidence::Present(Position { ledger, entry })
    }
}

fn cursor() -> impl Strategy<Value = (Index, Stand, CursorKind)> {
    use CursorKind::{Compaction, Dedup, Replicator, Subscription, System, Transaction};
    let stand = prop_oneof![
        4 => Just(Stand::Start), 2 => Just(Stand::Middle), 6 => Just(Stand::LastEntry), 1 => Just(Stand::BeyondEnd),
        1 => Just(Stand::BeforeFirst), 6 => Just(Stand::AfterLast), 2 => Just(Stand::Unlisted),
    ];
    let stand = prop_oneof![30 => stand, 1 => Just(Stand::Negative), 1 => Just(Stand::Unknown)];
    let other = select(vec![Compaction, Dedup, Replicator, System, Transaction]);
    (any::<Index>(), stand, prop_oneof![6 => Just(Subscription), 1 => other])
}

fn policies() -> impl Strategy<Value = Evidence<Policies>> {
    let minutes = select(vec![-1, 0, 10, 7 * 24 * 60, i64::MAX]);
    let mib = select(vec![-1, 0, 1, 2, 5, i64::MAX]);
    let level = select(vec![Level::Topic, Level::Namespace, Level::Broker]);
    let ttl = select(vec![-1, 0, 0, 1, 60, 600, 600, 7 * 86_400]);
    let lag = select(vec![-1, 0, 4 * 3_600_000]);
    let odd = prop_oneof![30 => Just((false, None)), 1 => Just((true, None)), 1 => Just((false, Some("?".to_owned())))];
    let known =
        (minutes, mib, level, ttl, lag, odd).prop_map(|(minutes, mib, level, ttl, lag, (deleted, why))| Policies {
            deleted,
            retention: Setting { value: Retention { minutes, mib }, level },
            ttl_s: Setting { value: ttl, level },
            offload_deletion_lag_ms: lag,
            subscription_expiration_minutes: None,
            topic_level_unknown: why,
        });
    prop_oneof![30 => known.prop_map(Evidence::Present), 1 => Just(Evidence::Absent), 1 => Just(unknown())]
}

fn partition() -> impl Strategy<Value = Partition> {
    let count = prop_oneof![
        4 => Just(Evidence::Present(3)), 1 => Just(Evidence::Absent), 1 => Just(unknown()), 1 => Just(Evidence::not_read()),
    ];
    let of = (0_u32..4, count).prop_map(|(index, count)| Partition::Of { index, count });
    prop_oneof![6 => Just(Partition::None), 1 => of]
}

fn class() -> impl Strategy<Value = TopicClass> {
    use TopicClass::{LegacyName, System, UnknownName, User};
    prop_oneof![40 => Just(User), 1 => select(vec![System, LegacyName, UnknownName])]
}

/// Any candidate.
pub fn candidates() -> impl Strategy<Value = LedgerCandidate> {
    let list = (
        0_i64..3,
        prop_oneof![1 => proptest::collection::vec(ledger(), 1), 4 => proptest::collection::vec(ledger(), 0..6)],
        proptest::bool::weighted(0.85),
        0_u32..60,
    );
    let cursors = (0_u32..20, proptest::collection::vec(cursor(), 0..4));
    let flags = (proptest::bool::weighted(0.1), proptest::bool::weighted(0.02), 0_u32..60);
    let rest = (class(), partition(), policies(), flags, time());
    (list, last(), loaded(), cursors, rest).prop_map(|(list, last, loaded, (known, cursors), rest)| {
        let (first, raw, last_not_closed, disorder) = list;
        let (class, partition, policies, (terminated, shadow, unreadable), modified_ms) = rest;
        let mut id = first - 1;
        let mut list: Vec<LedgerInfo> = raw
            .into_iter()
            .map(|(gap, info)| {
                id += gap;
                LedgerInfo { id, ..info }
            })
            .collect();
        if let Some(end) = list.last_mut().filter(|_| last_not_closed) {
            *end = LedgerInfo { entries: None, bytes: None, closed_ms: 0, ..end.clone() };
        }
        let cursors: Vec<Cursor> = cursors
            .into_iter()
            .enumerate()
            .map(|(number, (index, stand, kind))| Cursor {
                name: format!("c{number}"),
                kind,
                mark_delete: match list.as_slice() {
                    [] => Evidence::Present(Position { ledger: 0, entry: -1 }),
                    list => stand.position(index.get(list), &last, list),
                },
                lower_bound: false,
                modified_ms: NOW - DAY,
                last_active_ms: 0,
                detail: None,
            })
            .collect();
        match disorder {
            0 => list.reverse(),
            1 => list.extend(list.first().cloned()),
            _ => {}
        }
        LedgerCandidate {
            subject: "persistent://t/n/x".to_owned(),
            class,
            seen: Seen { version: 3, created_zxid: 7, modified_zxid: 9, modified_ms },
            partition,
            ledgers: match (unreadable, list.is_empty()) {
                (0, _) => unknown(),
                (1, true) => Evidence::Absent,
                _ => Evidence::Present(list),
            },
            last,
            loaded,
            cursors: match (known, cursors.is_empty()) {
                (0, _) => unknown(),
                (_, true) => Evidence::Absent,
                _ => Evidence::Present(cursors),
            },
            terminated,
            shadow,
            policies,
        }
    })
}

/// What one rule of an operator may ask for.
pub fn asked() -> impl Strategy<Value = Asked> {
    let action =
        select(vec![(false, false), (false, false), (false, false), (false, false), (true, false), (false, true)]);
    let limits = (
        maybe(1, select(vec![0, 600, 7 * 86_400])),
        maybe(1, select(vec![0, MIB, 5 * MIB])),
        maybe(1, select(vec![0, 1, 60, 600, 30 * 86_400])),
    );
    (action, limits, any::<bool>(), select(vec![0, 0, 0, 1, 2 * MIB])).prop_map(
        |((keep, report), (retention_s, retention_bytes, ttl_s), overrides, min_reclaim_bytes)| Asked {
            keep,
            report,
            retention_s,
            retention_bytes,
            ttl_s,
            overrides,
            min_reclaim_bytes,
        },
    )
}
