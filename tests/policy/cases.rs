//! States that people met in the field, each named by its case: what is decided, and what a person is told.

use trimtab_events::{
    Cursor, CursorKind, Decision, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded, Partition,
    Policies, Position, Retention, Seen, Setting, TopicClass, Verdict,
};
use trimtab_policy::{Policy, PolicyConfig, Rule, check, decide};
use trimtab_targets::pulsar::TopicName;

use super::space::{DAY, MIB, NOW};
use super::{context, decided};

const WEEK_MINUTES: i64 = 7 * 24 * 60;

pub fn ledger(id: i64, entries: i64, bytes: i64, age_ms: i64) -> LedgerInfo {
    LedgerInfo { id, entries: Some(entries), bytes: Some(bytes), closed_ms: NOW - age_ms, offload: None }
}

fn last(id: i64) -> LedgerInfo {
    LedgerInfo { id, entries: None, bytes: None, closed_ms: 0, offload: None }
}

fn closed(entries: i64, bytes: i64, age_ms: i64) -> LastLedger {
    LastLedger::Closed { entries, bytes, closed_ms: NOW - age_ms }
}

/// A plain topic that no broker has loaded, without cursors, retention 0/0, no TTL.
pub fn topic(ledgers: &[LedgerInfo], last: LastLedger) -> LedgerCandidate {
    LedgerCandidate {
        subject: "persistent://t/n/x".to_owned(),
        class: TopicClass::User,
        seen: Seen { version: 1, created_zxid: 1, modified_zxid: 2, modified_ms: NOW - 30 * DAY },
        partition: Partition::None,
        ledgers: Evidence::Present(ledgers.to_vec()),
        last,
        loaded: Loaded::No,
        cursors: Evidence::Absent,
        terminated: false,
        shadow: false,
        policies: limits(0, 0, 0),
    }
}

fn limits(minutes: i64, mib: i64, ttl_s: i64) -> Evidence<Policies> {
    Evidence::Present(Policies {
        deleted: false,
        retention: Setting { value: Retention { minutes, mib }, level: Level::Namespace },
        ttl_s: Setting { value: ttl_s, level: Level::Namespace },
        offload_deletion_lag_ms: -1,
        subscription_expiration_minutes: None,
        topic_level_unknown: None,
    })
}

fn cursors(all: &[(&str, CursorKind, i64, i64)]) -> Evidence<Vec<Cursor>> {
    let cursor = |(name, kind, ledger, entry): &(&str, CursorKind, i64, i64)| Cursor {
        name: (*name).to_owned(),
        kind: *kind,
        mark_delete: Evidence::Present(Position { ledger: *ledger, entry: *entry }),
        lower_bound: false,
        modified_ms: NOW - 30 * DAY,
        last_active_ms: 0,
        detail: None,
    };
    Evidence::Present(all.iter().map(cursor).collect())
}

fn say(decision: &Decision) -> String {
    let reasons: Vec<String> = decision.reasons.iter().map(|r| format!("{}: {}", r.rule, r.says)).collect();
    format!("{} {:?} {} bytes | {}", decision.verdict, decision.ledgers, decision.bytes, reasons.join("; "))
}

fn by_default(topic: &LedgerCandidate) -> Decision {
    let decision = decide(topic, &Policy::new(PolicyConfig::default(), "test").unwrap(), &context(NOW));
    check(&decision, topic, NOW).unwrap();
    decision
}

const SUB: CursorKind = CursorKind::Subscription;

#[test]
fn p_05_compaction_and_replication_cursors_are_not_moved() {
    let list = [ledger(1, 10, MIB, 9 * DAY), ledger(2, 10, MIB, 8 * DAY), last(3)];
    let both = [("__compaction", CursorKind::Compaction, 1, 0), ("pulsar.repl.b", CursorKind::Replicator, 1, 0)];
    for protected in both {
        let mut topic = topic(&list, closed(10, MIB, DAY));
        (topic.cursors, topic.policies) = (cursors(&[protected, ("s", SUB, 1, -1)]), limits(0, 0, 3600));
        let decision = by_default(&topic);
        assert_eq!((decision.verdict, decision.holder.unwrap().bytes), (Verdict::Blocked, 3 * MIB), "{protected:?}");
        // What is held by the subscription alone expires, and only it.
        topic.cursors = cursors(&[(protected.0, protected.1, 2, -1), ("s", SUB, 1, -1)]);
        let decision = by_default(&topic);
        assert_eq!((decision.verdict, decision.ledgers.as_slice()), (Verdict::ExpireThenTrim, &[1][..]));
        assert_eq!(decision.expire.iter().map(|e| e.subscription.as_str()).collect::<Vec<_>>(), ["s"]);
    }
}

/// A reader is a cursor that is stored nowhere: it holds nothing back.
#[test]
fn p_09_without_durable_cursors_retention_alone_decides() {
    let mut topic = topic(&[ledger(1, 10, MIB, 9 * DAY), ledger(2, 10, MIB, DAY), last(3)], closed(10, MIB, DAY));
    topic.policies = limits(WEEK_MINUTES, -1, 0);
    insta::assert_snapshot!(say(&by_default(&topic)), @"trim [1] 1048576 bytes | retention: ledgers past retention or over the size, before every cursor");
}

#[test]
fn p_10_system_topics_are_never_candidates() {
    for path in [
        "pulsar/c/127.0.0.1:8080/persistent/healthcheck",
        "t/n/persistent/__change_events",
        "t/n/persistent/__transaction_buffer_snapshot",
        "t/n/persistent/x-s__transaction_pending_ack",
        "pulsar/system/persistent/__transaction_log_0",
    ] {
        let name = TopicName::of_managed_ledger(path).unwrap();
        let plain = topic(&[ledger(1, 10, MIB, 9 * DAY), last(2)], closed(10, MIB, 8 * DAY));
        let topic = LedgerCandidate { subject: name.subject(), class: name.class, ..plain };
        let decision = by_default(&topic);
        assert_eq!((decision.verdict, &*decision.reasons[0].rule), (Verdict::Skip, "system-topic"), "{path}");
    }
}

#[test]
fn p_20_a_topic_that_nobody_has_loaded_is_trimmed_by_retention() {
    let mut topic = topic(&[ledger(10, 5, MIB, 9 * DAY), ledger(11, 5, MIB, 8 * DAY), last(12)], LastLedger::Open);
    (topic.cursors, topic.policies) = (cursors(&[("s", SUB, 12, -1)]), limits(WEEK_MINUTES, -1, 0));
    topic.loaded = Loaded::LeftOver;
    insta::assert_snapshot!(say(&by_default(&topic)), @"trim [10, 11] 2097152 bytes | retention: ledgers past retention or over the size, before every cursor");
    topic.loaded = Loaded::Yes;
    insta::assert_snapshot!(say(&by_default(&topic)), @"skip [] 0 bytes | loaded: loaded: its last ledger is open and younger than its bundle's owner, so its broker trims it");
}

#[test]
fn p_21_a_cursor_on_the_last_entry_of_a_closed_ledger_has_passed_it() {
    let mut topic = topic(&[ledger(3, 100, MIB, DAY), last(4)], closed(0, 0, DAY));
    topic.cursors = cursors(&[("a", SUB, 3, 99), ("b", SUB, 3, 99)]);
    insta::assert_snapshot!(say(&by_default(&topic)), @"trim [3] 1048576 bytes | retention: ledgers past retention or over the size, before every cursor");
    topic.cursors = cursors(&[("a", SUB, 3, 99), ("b", SUB, 3, 98)]);
    insta::assert_snapshot!(say(&by_default(&topic)), @"blocked [] 0 bytes | cursor: past retention, but cursor b stands before them at 3:98: [3]");
}

#[test]
fn p_22_an_open_ledger_is_never_freed_and_needs_a_roll_over_first() {
    let mut topic = topic(&[last(1)], LastLedger::Open);
    (topic.loaded, topic.cursors) = (Loaded::LeftOver, cursors(&[("s", SUB, 1, 75_561)]));
    insta::assert_snapshot!(say(&by_default(&topic)), @"keep [] 0 bytes | retention: nothing is due; the last ledger was left open by a broker that died and needs a roll-over first");
    // Once BookKeeper says that it is closed, its size comes from there: the list has none.
    (topic.last, topic.loaded) = (closed(75_562, 8_400 * MIB, 30 * DAY), Loaded::No);
    insta::assert_snapshot!(say(&by_default(&topic)), @"trim [1] 8808038400 bytes | retention: ledgers past retention or over the size, before every cursor");
}

#[test]
fn p_23_size_retention_leaves_at_least_the_limit() {
    let list: Vec<LedgerInfo> = (1..=10).map(|id| ledger(id, 10, MIB, DAY)).chain([last(11)]).collect();
    let mut topic = topic(&list, closed(0, 0, DAY));
    topic.policies = limits(-1, 5, 0);
    assert_eq!(by_default(&topic).ledgers, [1, 2, 3, 4, 5]);
    topic.policies = limits(-1, 10, 0);
    assert_eq!(by_default(&topic).verdict, Verdict::Keep);
}

#[test]
fn more_data_makes_size_retention_due() {
    let mut topic = topic(&[ledger(1, 10, MIB, DAY), last(2)], closed(1, MIB, DAY));
    topic.policies = limits(-1, 2, 0);
    assert_eq!(by_default(&topic).verdict, Verdict::Keep);
    topic.last = closed(1, 2 * MIB, DAY);
    assert_eq!(by_default(&topic).ledgers, [1]);
}

#[test]
fn p_26_a_closing_time_of_zero_is_not_1970() {
    let mut topic = topic(&[ledger(1, 10, MIB, 3 * DAY), last(2)], closed(10, MIB, 3600));
    (topic.cursors, topic.policies) = (cursors(&[("s", SUB, 1, -1)]), limits(0, 0, 86_400));
    let decision = by_default(&topic);
    assert_eq!((decision.verdict, decision.ledgers.as_slice()), (Verdict::ExpireThenTrim, &[1][..]));
    // Nor is it in the middle of a list, where it is one of the times that are none.
    for none in [0, -1, NOW + 1, NOW + 400 * DAY, i64::MAX, i64::MIN] {
        let middle = LedgerInfo { closed_ms: none, ..ledger(1, 10, MIB, 0) };
        topic.ledgers = Evidence::Present(vec![middle.clone(), ledger(2, 10, MIB, 3 * DAY), last(3)]);
        assert_eq!(by_default(&topic).verdict, Verdict::Blocked, "expiry, {none}");
        let aged = LedgerCandidate { cursors: Evidence::Absent, policies: limits(60, -1, 0), ..topic.clone() };
        assert_eq!(by_default(&aged).verdict, Verdict::Keep, "retention, {none}");
    }
}

#[test]
fn p_27_either_limit_of_retention_is_enough() {
    let list: Vec<LedgerInfo> = (1..=7).map(|id| ledger(id, 10, MIB, (10 - id) * DAY)).chain([last(8)]).collect();
    let mut table = String::new();
    for minutes in [0, -1, WEEK_MINUTES] {
        for mib in [0, -1, 5] {
            let topic = LedgerCandidate { policies: limits(minutes, mib, 0), ..topic(&list, closed(10, MIB, DAY)) };
            let decision = by_default(&topic);
            table += &format!("{minutes:>5} min {mib:>2} MiB: {} {:?}\n", decision.verdict, decision.ledgers);
        }
    }
    insta::assert_snapshot!(table, @r"
        0 min  0 MiB: trim [1, 2, 3, 4, 5, 6, 7, 8]
        0 min -1 MiB: trim [1, 2, 3, 4, 5, 6, 7, 8]
        0 min  5 MiB: trim [1, 2, 3, 4, 5, 6, 7, 8]
       -1 min  0 MiB: trim [1, 2, 3, 4, 5, 6, 7, 8]
       -1 min -1 MiB: keep []
       -1 min  5 MiB: trim [1, 2, 3]
    10080 min  0 MiB: trim [1, 2, 3, 4, 5, 6, 7, 8]
    10080 min -1 MiB: trim [1, 2]
    10080 min  5 MiB: trim [1, 2, 3]
    ");
}

#[test]
fn p_28_an_empty_last_ledger_does_not_hinder_expiry() {
    let mut topic = topic(&[ledger(1, 1000, MIB, 3 * DAY), last(2)], closed(0, 0, 3 * DAY));
    (topic.cursors, topic.policies) = (cursors(&[("s", SUB, 1, 10)]), limits(0, 0, 86_400));
    let decision = by_default(&topic);
    insta::assert_snapshot!(say(&decision), @"expire-then-trim [1] 1048576 bytes | ttl: only the TTL of 86400 s frees these ledgers: expire messages, then trim");
    assert_eq!((decision.expire.len(), decision.dropped_by_load), (1, vec![2]));
}

#[test]
fn p_31_the_report_names_the_cursor_that_keeps_it() {
    let list: Vec<LedgerInfo> = (5..40).map(|id| ledger(id, 10, MIB, 9 * DAY)).chain([last(40)]).collect();
    let mut topic = topic(&list, closed(0, 0, DAY));
    topic.cursors = cursors(&[("fast", SUB, 39, 9), ("stuck", SUB, 5, 3), ("slow", SUB, 20, -1)]);
    let decision = by_default(&topic);
    assert_eq!(decision.verdict, Verdict::Blocked);
    insta::assert_json_snapshot!(decision.holder, @r#"
    {
      "cursor": "stuck",
      "position": {
        "ledger": 5,
        "entry": 3
      },
      "bytes": 36700160,
      "since_ms": 1797408000000
    }
    "#);
    // The same question of a topic that is trimmed up to it.
    topic.cursors = cursors(&[("fast", SUB, 39, 9), ("stuck", SUB, 20, 3)]);
    let decision = by_default(&topic);
    let holder = decision.holder.unwrap();
    assert_eq!((decision.verdict, holder.cursor.as_str(), holder.bytes), (Verdict::Trim, "stuck", 20 * MIB));
}

#[test]
fn x_03_every_name_has_one_form_and_an_unknown_form_is_kept() {
    let of = |path: &str| {
        let name = TopicName::of_managed_ledger(path).unwrap();
        let partition = match name.partition {
            Some(index) => Partition::Of { index, count: Evidence::Present(2) },
            None => Partition::None,
        };
        let plain = topic(&[ledger(1, 10, MIB, 9 * DAY), last(2)], closed(10, MIB, 8 * DAY));
        let topic = LedgerCandidate { subject: name.subject(), class: name.class, partition, ..plain };
        format!("{path} is {}: {}\n", name.subject(), by_default(&topic).verdict)
    };
    let paths = [
        "t/n/persistent/a%2Fb",
        "t/n/persistent/a%2fb",
        "t/c/n/persistent/x",
        "t/n/persistent/a-partition-1-b",
        "t/n/persistent/a-partition-1",
        "t/n/persistent/a-partition-2",
        "t/n/persistent/a-partition-01",
    ];
    insta::assert_snapshot!(paths.map(of).concat(), @r"
    t/n/persistent/a%2Fb is persistent://t/n/a/b: trim
    t/n/persistent/a%2fb is persistent://t/n/a%2fb: skip
    t/c/n/persistent/x is persistent://t/c/n/x: skip
    t/n/persistent/a-partition-1-b is persistent://t/n/a-partition-1-b: trim
    t/n/persistent/a-partition-1 is persistent://t/n/a-partition-1: trim
    t/n/persistent/a-partition-2 is persistent://t/n/a-partition-2: report
    t/n/persistent/a-partition-01 is persistent://t/n/a-partition-01: trim
    ");
}

#[test]
fn x_06_dead_letter_and_retry_topics_are_kept_by_the_default_profile() {
    for local in ["orders-sub-DLQ", "orders-sub-RETRY", "orders-sub-DLQ-partition-0"] {
        let mut topic = topic(&[ledger(1, 10, MIB, 9 * DAY), last(2)], closed(10, MIB, 8 * DAY));
        topic.subject = format!("persistent://t/n/{local}");
        if local.ends_with("-0") {
            topic.partition = Partition::Of { index: 0, count: Evidence::Present(1) };
        }
        let decision = by_default(&topic);
        assert_eq!((decision.verdict, &*decision.reasons[0].rule), (Verdict::Keep, "protected"), "{local}");
        // Naming other patterns replaces the default.
        assert_eq!(decided(&topic, vec![], NOW).verdict, Verdict::Trim, "{local}");
    }
}

/// The rule is obeyed; what stops the run is the cap, which is not the policy's. Here: it needs `override`, it takes no protected
/// cursor with it, and everything it does is expiry that a person sees in the plan.
#[test]
fn x_07_a_ttl_of_zero_that_matches_everything() {
    let mut topic = topic(&[ledger(1, 10, MIB, 9 * DAY), ledger(2, 10, MIB, DAY), last(3)], closed(0, 0, DAY));
    topic.cursors = cursors(&[("s", SUB, 1, -1)]);
    let zero = |overrides| vec![Rule { ttl_s: Some(0), overrides, ..Rule::default() }];
    assert_eq!(decided(&topic, zero(false), NOW).verdict, Verdict::Blocked);
    insta::assert_snapshot!(say(&decided(&topic, zero(true), NOW)), @"expire-then-trim [1, 2] 2097152 bytes | ttl: a rule's TTL of 1 s frees these ledgers: expire messages, then trim");
    topic.cursors = cursors(&[("s", SUB, 1, -1), ("pulsar.repl.b", CursorKind::Replicator, 1, -1)]);
    assert_eq!(decided(&topic, zero(true), NOW).verdict, Verdict::Blocked);
    assert!(
        Policy::new(
            PolicyConfig { rules: vec![Rule { ttl_s: Some(-1), ..Rule::default() }], ..PolicyConfig::default() },
            ""
        )
        .is_err()
    );
}

/// The worker's clock is wrong, the metadata's times are right, and the other way round. Only a clock that is ahead takes more,
/// and then a decision of it does not hold for anybody whose clock is right.
#[test]
fn clocks_that_are_wrong() {
    let times = [NOW - 8 * DAY, 0, -1, NOW + 400 * DAY, i64::MAX, i64::MIN];
    let mut table = String::new();
    for (name, now) in
        [("right", NOW), ("1 d behind", NOW - DAY), ("1 d ahead", NOW + DAY), ("400 d ahead", NOW + 400 * DAY)]
    {
        for closed_ms in times {
            let first = LedgerInfo { closed_ms, ..ledger(1, 10, MIB, 0) };
            let mut topic = topic(
                &[first, ledger(2, 10, MIB, 13 * DAY / 2), ledger(3, 10, MIB, DAY / 2), last(4)],
                closed(10, MIB, 0),
            );
            topic.policies = limits(WEEK_MINUTES, -1, 0);
            let decision = decided(&topic, vec![], now);
            let written = if closed_ms == times[0] {
                "8 d ago".to_owned()
            } else if closed_ms > NOW {
                "in the future".to_owned()
            } else {
                format!("{}", closed_ms.max(-2))
            };
            table += &format!("clock {name}, closed {written}: {:?}\n", decision.ledgers);
            if now > NOW && decision.verdict.acts() {
                assert!(check(&decision, &topic, NOW).is_err(), "not valid yet for a clock that is right");
            }
        }
    }
    insta::assert_snapshot!(table, @r"
    clock right, closed 8 d ago: [1]
    clock right, closed 0: []
    clock right, closed -1: []
    clock right, closed in the future: []
    clock right, closed in the future: []
    clock right, closed -2: []
    clock 1 d behind, closed 8 d ago: []
    clock 1 d behind, closed 0: []
    clock 1 d behind, closed -1: []
    clock 1 d behind, closed in the future: []
    clock 1 d behind, closed in the future: []
    clock 1 d behind, closed -2: []
    clock 1 d ahead, closed 8 d ago: [1, 2]
    clock 1 d ahead, closed 0: []
    clock 1 d ahead, closed -1: []
    clock 1 d ahead, closed in the future: []
    clock 1 d ahead, closed in the future: []
    clock 1 d ahead, closed -2: []
    clock 400 d ahead, closed 8 d ago: [1, 2, 3]
    clock 400 d ahead, closed 0: []
    clock 400 d ahead, closed -1: []
    clock 400 d ahead, closed in the future: []
    clock 400 d ahead, closed in the future: []
    clock 400 d ahead, closed -2: []
    ");
}
