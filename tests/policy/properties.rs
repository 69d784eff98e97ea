//! Properties of `decide` and `needs`, each over the whole space.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use trimtab_events::{
    Cursor, CursorKind, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Loaded, Partition, Policies, Position,
    Verdict,
};
use trimtab_policy::{AgeRule, Policy, PolicyConfig, Protect, Rule, decide, needs};

use super::reference::{Asked, answer};
use super::space::{DAY, MIB, MINUTE, NOW, asked, candidates};
use super::{config, context, decided, no_more, policy, rule, takes, unprotected};

/// A property over a space in which nothing is ever freed proves nothing.
#[test]
fn the_space_reaches_every_verdict() {
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..3000 {
        let topic = candidates().new_tree(&mut runner).unwrap().current();
        *seen.entry(decided(&topic, vec![], NOW).verdict).or_insert(0) += 1;
    }
    let elsewhere = |verdict: Verdict| verdict.on_subscriber() || verdict == Verdict::DeleteOrphan;
    let about_topics = Verdict::ALL.iter().filter(|verdict| !elsewhere(**verdict));
    let rare: Vec<_> = about_topics.filter(|verdict| seen.get(verdict).is_none_or(|n| *n < 20)).collect();
    assert!(rare.is_empty(), "{rare:?} of {seen:?}");
}

fn policies(topic: &mut LedgerCandidate) -> Option<&mut Policies> {
    match &mut topic.policies {
        Evidence::Present(policies) => Some(policies),
        _ => None,
    }
}

fn list(topic: &mut LedgerCandidate) -> &mut [LedgerInfo] {
    match &mut topic.ledgers {
        Evidence::Present(list) => list,
        _ => &mut [],
    }
}

fn cursors(topic: &mut LedgerCandidate) -> &mut [Cursor] {
    match &mut topic.cursors {
        Evidence::Present(cursors) => cursors,
        _ => &mut [],
    }
}

/// The candidate with one piece of evidence lost, once for each piece. A closing time only when it lies in the past: one in the
/// future is as good as none.
fn with_less_known(topic: &LedgerCandidate) -> Vec<(&'static str, LedgerCandidate)> {
    let why = || "lost".to_owned();
    let mut all = Vec::new();
    let mut lose = |what, change: &dyn Fn(&mut LedgerCandidate)| {
        let mut less = topic.clone();
        change(&mut less);
        all.push((what, less));
    };
    lose("ledgers", &|t| t.ledgers = Evidence::Unknown(why()));
    lose("last", &|t| t.last = LastLedger::Unknown { why: why() });
    lose("loaded", &|t| t.loaded = Loaded::Unknown { why: why() });
    lose("cursors", &|t| t.cursors = Evidence::Unknown(why()));
    lose("policies", &|t| t.policies = Evidence::Unknown(why()));
    lose("topic policies", &|t| {
        policies(t).into_iter().for_each(|p| p.topic_level_unknown = Some(why()));
    });
    lose("name", &|t| t.class = trimtab_events::TopicClass::UnknownName);
    if let Partition::Of { index, .. } = topic.partition {
        lose("partition", &|t| t.partition = Partition::Of { index, count: Evidence::Unknown(why()) });
        lose("partition unread", &|t| t.partition = Partition::Of { index, count: Evidence::not_read() });
    }
    let count = topic.ledgers.present().map_or(0, Vec::len);
    for i in 0..count {
        lose("entries", &|t| list(t)[i].entries = None);
        lose("bytes", &|t| list(t)[i].bytes = None);
        lose("offload", &|t| list(t)[i].offload = None);
        let before_last_and_past = |ms: i64| i + 1 < count && ms <= NOW;
        if topic.ledgers.present().is_some_and(|list| before_last_and_past(list[i].closed_ms)) {
            lose("closed 0", &|t| list(t)[i].closed_ms = 0);
            lose("closed -1", &|t| list(t)[i].closed_ms = -1);
            lose("closed in the future", &|t| list(t)[i].closed_ms = NOW + 400 * DAY);
        }
    }
    for i in 0..topic.cursors.present().map_or(0, Vec::len) {
        lose("position", &|t| cursors(t)[i].mark_delete = Evidence::Unknown(why()));
        lose("position absent", &|t| cursors(t)[i].mark_delete = Evidence::Absent);
    }
    all
}

fn any_cursor() -> impl Strategy<Value = Cursor> {
    use CursorKind::{Compaction, Dedup, Replicator, Subscription, System, Transaction};
    let kind = prop::sample::select(vec![Subscription, Compaction, Dedup, Replicator, System, Transaction]);
    (-1_i64..30, -1_i64..12, kind).prop_map(|(ledger, entry, kind)| Cursor {
        name: "more".to_owned(),
        kind,
        mark_delete: Evidence::Present(Position { ledger, entry }),
        lower_bound: false,
        modified_ms: 0,
        last_active_ms: 0,
        detail: None,
    })
}

/// Whether a cursor stands behind the last entry of its ledger: entries that come there would look acknowledged. No broker
/// writes such a position.
fn stands_beyond_an_end(topic: &LedgerCandidate) -> bool {
    let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    let entries = |info: &LedgerInfo| match topic.last {
        LastLedger::Closed { entries, .. } if list.last() == Some(info) && info.closed_ms <= 0 => Some(entries),
        _ => info.entries,
    };
    let beyond =
        |at: &Position| list.iter().any(|info| info.id == at.ledger && entries(info).is_some_and(|n| at.entry >= n));
    topic.cursors.present().into_iter().flatten().any(|cursor| cursor.mark_delete.present().is_some_and(beyond))
}

/// Limits from lax to strict: 0, the numbers, then -1 (for ever).
fn strictness(limit: i64) -> i64 {
    if limit < 0 { i64::MAX } else { limit }
}

/// Reads what `needs` asks for, in the order and as often as an inventory does.
fn read_as_asked(full: &LedgerCandidate, policy: &Policy) -> LedgerCandidate {
    let mut topic = full.clone();
    topic.last = LastLedger::Unknown { why: trimtab_events::NOT_READ.to_owned() };
    topic.loaded = Loaded::Unknown { why: trimtab_events::NOT_READ.to_owned() };
    if let Partition::Of { index, .. } = topic.partition {
        topic.partition = Partition::Of { index, count: Evidence::not_read() };
        if needs(&topic, policy, &context(NOW)).partition {
            topic.partition = full.partition.clone();
        }
    }
    if topic.cursors != Evidence::Absent {
        topic.cursors = Evidence::not_read();
    }
    if needs(&topic, policy, &context(NOW)).last {
        (topic.last, topic.loaded) = (full.last.clone(), full.loaded.clone());
    }
    if needs(&topic, policy, &context(NOW)).cursors {
        topic.cursors = full.cursors.clone();
    }
    topic
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_decision_equals_the_reference(topic in candidates(), asked in prop::option::of(asked())) {
        let decision = decided(&topic, asked.iter().map(rule).collect(), NOW);
        let expected = answer(&topic, asked.as_ref(), NOW);
        prop_assert_eq!(decision.verdict, expected.verdict, "{:#?}", decision.reasons);
        prop_assert_eq!(&decision.ledgers, &expected.ledgers);
        prop_assert_eq!(decision.bytes, expected.bytes);
        prop_assert_eq!(&decision.offloaded_copies, &expected.copies);
        prop_assert_eq!(&decision.dropped_by_load, &expected.dropped);
        prop_assert!(!decision.reasons.is_empty());
    }

    /// The one that counts, stated without rows or walks: whatever goes has been acknowledged by every durable cursor, or is
    /// older than the TTL and held by a plain subscription only.
    #[test]
    fn nothing_goes_that_a_durable_cursor_has_not_passed(topic in candidates(), asked in prop::option::of(asked())) {
        let decision = decided(&topic, asked.iter().map(rule).collect(), NOW);
        let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
        for (id, cursor) in decision.ledgers.iter().flat_map(|id| topic.cursors.present().into_iter().flatten().map(move |c| (id, c))) {
            let at = cursor.mark_delete.present().expect("nothing goes while a position is unknown");
            let info = list.iter().find(|info| info.id == *id).expect("only listed ledgers go");
            let is_last = list.last() == Some(info);
            let (entries, closed_ms) = match topic.last {
                LastLedger::Closed { entries, closed_ms, .. } if is_last && info.closed_ms <= 0 => (entries, closed_ms),
                _ => (info.entries.expect("nothing goes whose entries are unknown"), info.closed_ms),
            };
            let acknowledged = at.ledger > *id || (at.ledger == *id && at.entry == entries - 1);
            let ttl_ms = decision.expire.iter().filter(|e| e.subscription == cursor.name).map(|e| e.ttl_s * 1000).max();
            let expired = cursor.kind == CursorKind::Subscription
                && decision.verdict == Verdict::ExpireThenTrim
                && ttl_ms.is_some_and(|ttl| closed_ms > 0 && NOW - closed_ms > ttl);
            prop_assert!(acknowledged || expired, "{id} is not passed by {cursor:?}: {decision:#?}");
        }
    }

    #[test]
    fn what_is_not_known_keeps(topic in candidates()) {
        let full = decided(&topic, vec![], NOW);
        for (what, less) in with_less_known(&topic) {
            let decision = decided(&less, vec![], NOW);
            prop_assert!(full.verdict.acts() || !decision.verdict.acts(), "{what}: {} became {decision:#?}", full.verdict);
            prop_assert!(no_more(&decision, &full), "{what}: {:?} became {:?}", takes(&full), takes(&decision));
        }
    }

    #[test]
    fn the_same_input_gives_the_same_answer_also_through_json(topic in candidates(), asked in asked()) {
        let decision = decided(&topic, vec![rule(&asked)], NOW);
        let sent: LedgerCandidate = serde_json::from_str(&serde_json::to_string(&topic).unwrap()).unwrap();
        prop_assert_eq!(&decided(&sent, vec![rule(&asked)], NOW), &decision);
    }

    /// Without rules of our own: a rule refuses a visit as a whole, so that a target which is stricter itself may leave the rule
    /// nothing to object to. Copies in tiered storage count: one that is due goes with its ledger or without it.
    #[test]
    fn a_target_with_stricter_limits_loses_no_more(
        topic in candidates(),
        minutes in prop::sample::select(vec![0, 1, 10, 11, 7 * 24 * 60, -1]),
        mib in prop::sample::select(vec![0, 1, 3, 6, -1]),
        ttl in prop::sample::select(vec![1, 60, 601, 30 * 86_400, 0]),
        lag in prop::sample::select(vec![0, 3_600_000, DAY, -1]),
    ) {
        let lax = decided(&topic, vec![], NOW);
        let mut strict = topic.clone();
        if let Some(p) = policies(&mut strict) {
            let limits = &mut p.retention.value;
            if strictness(minutes) > strictness(limits.minutes) { limits.minutes = minutes }
            if strictness(mib) > strictness(limits.mib) { limits.mib = mib }
            // No TTL is the longest.
            if strictness(ttl - 1) > strictness(p.ttl_s.value - 1) { p.ttl_s.value = ttl }
            if strictness(lag) > strictness(p.offload_deletion_lag_ms) { p.offload_deletion_lag_ms = lag }
        }
        let decision = decided(&strict, vec![], NOW);
        prop_assert!(no_more(&decision, &lax), "{:?} became {:?}", takes(&lax), takes(&decision));
    }

    /// Only `override` may take more than the target itself would.
    #[test]
    fn a_rule_without_override_takes_no_more_than_none(topic in candidates(), asked in asked()) {
        let without = decided(&topic, vec![], NOW);
        let with = decided(&topic, vec![rule(&Asked { overrides: false, ..asked })], NOW);
        prop_assert!(no_more(&with, &without), "{:?} became {:?}", takes(&without), takes(&with));
        prop_assert!(!with.verdict.acts() || without.verdict.acts());
    }

    /// One field at a time; a longer TTL only where the rule has no other wish (see above: a visit is refused as a whole).
    #[test]
    fn a_stricter_rule_takes_no_more(topic in candidates(), asked in asked(), more in 1_i64..(40 * 86_400)) {
        let ttl_only = Asked { ttl_s: asked.ttl_s, overrides: asked.overrides, ..Asked::default() };
        let by = |value: Option<i64>| Some(value.unwrap_or(0) + more);
        let changes = [
            (rule(&asked), rule(&Asked { retention_s: by(asked.retention_s), ..asked.clone() })),
            (rule(&asked), rule(&Asked { retention_bytes: by(asked.retention_bytes), ..asked.clone() })),
            (rule(&asked), rule(&Asked { min_reclaim_bytes: asked.min_reclaim_bytes + more, ..asked.clone() })),
            (rule(&asked), rule(&Asked { report: true, ..asked.clone() })),
            (rule(&asked), rule(&Asked { keep: true, ..asked.clone() })),
            (rule(&asked), Rule { protect: Some(Protect { by: "x".into(), until_ms: Some(NOW + 1) }), ..rule(&asked) }),
            (rule(&ttl_only), rule(&Asked { overrides: false, ..ttl_only.clone() })),
            (rule(&ttl_only), rule(&Asked { ttl_s: ttl_only.ttl_s.map(|ttl| ttl + more), ..ttl_only.clone() })),
        ];
        for (lax, strict) in changes {
            let (lax_rule, strict_rule) = (lax.clone(), strict.clone());
            let (lax, strict) = (decided(&topic, vec![lax], NOW), decided(&topic, vec![strict], NOW));
            prop_assert!(no_more(&strict, &lax), "{lax_rule:?} {:?}, {strict_rule:?} {:?}", takes(&lax), takes(&strict));
        }
    }

    /// One more cursor of any kind, or any cursor further back.
    #[test]
    fn more_cursors_and_cursors_further_back_take_no_more(topic in candidates(), cursor in any_cursor(), which in any::<Index>()) {
        let before = decided(&topic, vec![], NOW);
        let mut more = topic.clone();
        more.cursors = match more.cursors {
            Evidence::Present(mut all) => { all.push(cursor.clone()); Evidence::Present(all) }
            Evidence::Absent => Evidence::Present(vec![cursor]),
            unknown @ Evidence::Unknown(_) => unknown,
        };
        prop_assert!(no_more(&decided(&more, vec![], NOW), &before));
        let mut back = topic.clone();
        if let (all @ [_, ..], false) = (cursors(&mut back), stands_beyond_an_end(&topic)) {
            let cursor = &mut all[which.index(all.len())];
            if let Evidence::Present(at) = &mut cursor.mark_delete {
                *at = if at.entry >= 0 { Position { entry: at.entry - 1, ..*at } } else { Position { ledger: at.ledger - 1, ..*at } };
            }
        }
        prop_assert!(no_more(&decided(&back, vec![], NOW), &before));
    }

    /// Of what was there, no more goes when more comes. True without a limit of size only: with one, more data is what makes old
    /// data due, by the broker's own rule (`more_data_makes_size_retention_due` shows it). A topic that was terminated or whose
    /// last ledger is open gets no new ledger.
    #[test]
    fn more_data_takes_no_more_of_what_was_there(topic in candidates(), entries in 1_i64..20) {
        let sized = topic.policies.present().is_some_and(|p| p.retention.value.mib >= 0);
        let before = decided(&topic, vec![], NOW);
        if let (LastLedger::Closed { entries: had, bytes, .. }, false, false) = (&topic.last, sized, topic.terminated) {
            let mut grown = topic.clone();
            if let Evidence::Present(list) = &mut grown.ledgers && let Some(end) = list.last_mut() {
                // Loading the topic to write to it is what closes the last ledger in the list.
                let figures = if end.closed_ms <= 0 { (Some(*had), Some(*bytes)) } else { (end.entries, end.bytes) };
                *end = LedgerInfo { entries: figures.0, bytes: figures.1, closed_ms: NOW, ..end.clone() };
                let id = list.iter().map(|info| info.id).max().unwrap_or(0) + 1;
                list.push(LedgerInfo { id, entries: None, bytes: None, closed_ms: 0, offload: None });
                grown.last = LastLedger::Closed { entries, bytes: MIB, closed_ms: NOW };
                let old: Vec<i64> = takes(&decided(&grown, vec![], NOW)).into_iter().filter(|taken| *taken != id).collect();
                prop_assert!(old.iter().all(|id| takes(&before).contains(id)), "{:?} became {old:?}", takes(&before));
            }
        }
        // Without more ledgers, more entries in any of them: a cursor that stood at the end does so no more.
        let mut fuller = topic.clone();
        list(&mut fuller).iter_mut().filter(|info| info.entries.is_some_and(|n| n > 0)).for_each(|info| {
            info.entries = info.entries.map(|n| n + entries);
        });
        if let LastLedger::Closed { entries: n, .. } = &mut fuller.last && *n > 0 {
            *n += entries;
        }
        let fuller = decided(&fuller, vec![], NOW);
        if !stands_beyond_an_end(&topic) {
            prop_assert!(no_more(&fuller, &before), "{:?} became {:?}", takes(&before), takes(&fuller));
        }
    }

    #[test]
    fn an_older_clock_takes_no_more(topic in candidates(), back in prop_oneof![0..(2 * MINUTE), 0..(40 * DAY)]) {
        let (now, earlier) = (decided(&topic, vec![], NOW), decided(&topic, vec![], NOW - back));
        prop_assert!(no_more(&earlier, &now), "{:?} became {:?}", takes(&now), takes(&earlier));
    }

    /// Reading only what `needs` asks for leads to the same act. Only acts are compared: where nothing is due, a topic that is
    /// loaded is `keep` instead of `skip`, since nobody read what would tell. Holds because a last ledger that the list does not
    /// close was closed no earlier than the list was written.
    #[test]
    fn deciding_on_what_needs_asks_for_is_enough(topic in candidates(), asked in prop::option::of(asked()), pip in prop::bool::weighted(0.2)) {
        let mut topic = topic;
        if let LastLedger::Closed { closed_ms, .. } = &mut topic.last {
            *closed_ms = (*closed_ms).max(topic.seen.modified_ms);
        }
        let age_rule = if pip { AgeRule::Pip219 } else { AgeRule::Broker };
        let config = PolicyConfig { rules: asked.iter().map(rule).collect(), age_rule, ..unprotected() };
        let policy = Policy::new(config, "test").unwrap();
        let full = decide(&topic, &policy, &context(NOW));
        let asked_for = decide(&read_as_asked(&topic, &policy), &policy, &context(NOW));
        if full.verdict.acts() || asked_for.verdict.acts() {
            prop_assert_eq!(asked_for, full);
        }
    }

    /// PIP-219's age rule says when to visit; what goes is the broker's word all the same.
    #[test]
    fn pip_219_takes_no_more_than_the_broker(topic in candidates()) {
        let config = PolicyConfig { age_rule: AgeRule::Pip219, ..unprotected() };
        let pip = decide(&topic, &Policy::new(config, "test").unwrap(), &context(NOW));
        prop_assert!(no_more(&pip, &decide(&topic, &policy(vec![]), &context(NOW))));
    }
}
