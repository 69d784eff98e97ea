//! `check` agrees with `decide`, and refuses whatever else a decision could say.

use proptest::prelude::*;
use trimtab_events::{
    Candidate, Cursor, CursorKind, Decision, Evidence, Expire, LastLedger, LedgerCandidate, LedgerInfo, Loaded,
    Partition, Position, Retention, TopicClass, Verdict,
};
use trimtab_policy::{AgeRule, Policy, PolicyConfig, act_on_any, check, decide};

use super::space::{MIB, NOW, asked, candidates};
use super::{config, context, decided, rule, unprotected};

type Case = (Decision, LedgerCandidate, i64);
type Add<'a> = dyn FnMut(&'static str, &dyn Fn(&mut Case)) + 'a;

/// Every way in which a decision can be wrong for a topic, as far as this one can.
fn damaged(good: &Decision, topic: &LedgerCandidate) -> Vec<(&'static str, Case)> {
    let mut all: Vec<(&'static str, Case)> = Vec::new();
    let mut add = |what, change: &dyn Fn(&mut Case)| {
        let mut case = (good.clone(), topic.clone(), NOW);
        change(&mut case);
        all.push((what, case));
    };
    add("another version", &|c| c.0.seen.version += 1);
    add("a node made again", &|c| c.0.seen.created_zxid += 1);
    add("a later write", &|c| c.1.seen.modified_zxid += 1);
    add("another topic", &|c| c.0.subject.push('y'));
    add("expired", &|c| c.2 = good.expires_ms + 1);
    add("too early", &|c| c.2 = good.not_before_ms - 1);
    add("wrong bytes", &|c| c.0.bytes += 1);
    add("a ledger that is not listed", &|c| c.0.ledgers.push(i64::MAX));
    add("a kept topic", &|c| (c.0.verdict, c.0.ledgers) = (Verdict::Keep, vec![1]));
    add("a loaded topic", &|c| c.1.loaded = Loaded::Yes);
    add("loaded unknown", &|c| c.1.loaded = Loaded::Unknown { why: "?".into() });
    add("a shadow", &|c| c.1.shadow = true);
    add("a system topic", &|c| c.1.class = TopicClass::System);
    add("an unknown name", &|c| c.1.class = TopicClass::UnknownName);
    add("a namespace without policies", &|c| c.1.policies = Evidence::Absent);
    add("policies unknown", &|c| c.1.policies = Evidence::Unknown("?".into()));
    add("ledgers unknown", &|c| c.1.ledgers = Evidence::Unknown("?".into()));
    for count in [Evidence::Present(1), Evidence::Absent, Evidence::Unknown("?".into()), Evidence::not_read()] {
        add("a stray partition", &|c| c.1.partition = Partition::Of { index: 1, count: count.clone() });
    }
    if let Evidence::Present(policies) = &topic.policies {
        let with = |change: &dyn Fn(&mut trimtab_events::Policies)| {
            let mut policies = policies.clone();
            change(&mut policies);
            Evidence::Present(policies)
        };
        add("a namespace being deleted", &|c| c.1.policies = with(&|p| p.deleted = true));
        add("topic policies unknown", &|c| c.1.policies = with(&|p| p.topic_level_unknown = Some("?".into())));
        if !good.ledgers.is_empty() {
            let forever = Retention { minutes: -1, mib: -1 };
            add("inside retention", &|c| c.1.policies = with(&|p| p.retention.value = forever));
        }
        if !good.offloaded_copies.is_empty() {
            add("copies kept for ever", &|c| c.1.policies = with(&|p| p.offload_deletion_lag_ms = -1));
        }
    }
    let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    let plain = |info: &&LedgerInfo| info.offload.is_none();
    if let Some(info) = list.iter().find(plain) {
        add("a copy that is in no tiered storage", &|c| c.0.offloaded_copies.push(info.id));
    }
    for kind in [CursorKind::Compaction, CursorKind::Replicator, CursorKind::Dedup, CursorKind::System] {
        let cursor = cursor("protected", kind, i64::MAX);
        add("expiry of a protected cursor", &|c| {
            c.1.cursors = with_cursor(topic, cursor.clone());
            c.0.expire.push(Expire { subscription: "protected".into(), ttl_s: 1 });
        });
    }
    add("expiry of nobody", &|c| c.0.expire.push(Expire { subscription: "nobody".into(), ttl_s: 1 }));
    if !good.ledgers.is_empty() {
        with_ledgers(good, topic, &mut add);
    }
    all
}

fn with_ledgers(good: &Decision, topic: &LedgerCandidate, add: &mut Add<'_>) {
    let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    let (first, highest) = (good.ledgers[0], good.ledgers[good.ledgers.len() - 1]);
    let last_id = list.last().map(|info| info.id);
    let stays = |info: &&LedgerInfo| info.id > highest && !good.dropped_by_load.contains(&info.id);
    if let Some(next) = list.iter().find(stays) {
        let bytes = match topic.last {
            LastLedger::Closed { bytes, .. } if Some(next.id) == last_id && next.closed_ms <= 0 => bytes,
            _ => next.bytes.unwrap_or(0).max(0),
        };
        add("one ledger more", &|c| {
            c.0.ledgers.push(next.id);
            c.0.bytes += bytes;
        });
    }
    if good.ledgers.len() > 1 {
        add("reordered", &|c| c.0.ledgers.reverse());
        add("not from the front", &|c| {
            c.0.ledgers.remove(0);
        });
    }
    add("a ledger twice", &|c| c.0.ledgers.push(highest));
    add("cursors unknown", &|c| c.1.cursors = Evidence::Unknown("?".into()));
    add("a list out of order", &|c| {
        c.1.ledgers = Evidence::Present(list.iter().chain(list.first()).cloned().collect());
    });
    for kind in [CursorKind::Compaction, CursorKind::Replicator, CursorKind::Dedup, CursorKind::Transaction] {
        add("past a cursor", &|c| c.1.cursors = with_cursor(topic, cursor("more", kind, first)));
    }
    add("past an unknown cursor", &|c| {
        let nowhere =
            Cursor { mark_delete: Evidence::Unknown("?".into()), ..cursor("more", CursorKind::Subscription, 0) };
        c.1.cursors = with_cursor(topic, nowhere);
    });
    if good.verdict == Verdict::ExpireThenTrim {
        add("without expiry", &|c| (c.0.verdict, c.0.expire) = (Verdict::Trim, vec![]));
        add("expiry named, but not asked for", &|c| c.0.verdict = Verdict::Trim);
        add("with a longer TTL", &|c| c.0.expire.iter_mut().for_each(|e| e.ttl_s = i64::MAX));
        add("as if decided later", &|c| {
            c.0.decided_ms = i64::MAX;
            c.0.expire.iter_mut().for_each(|e| e.ttl_s = NOW / 1000);
        });
    } else {
        add("past a subscription", &|c| {
            c.1.cursors = with_cursor(topic, cursor("more", CursorKind::Subscription, first));
        });
    }
    if last_id == Some(highest) {
        add("open last", &|c| c.1.last = LastLedger::Open);
        add("unknown last", &|c| c.1.last = LastLedger::Unknown { why: "?".into() });
        add("missing last", &|c| c.1.last = LastLedger::Missing);
        add("last of a terminated topic", &|c| c.1.terminated = true);
    }
}

fn cursor(name: &str, kind: CursorKind, ledger: i64) -> Cursor {
    let mark_delete = Evidence::Present(Position { ledger, entry: -1 });
    Cursor { name: name.into(), kind, mark_delete, lower_bound: false, modified_ms: 0, last_active_ms: 0, detail: None }
}

fn with_cursor(topic: &LedgerCandidate, more: Cursor) -> Evidence<Vec<Cursor>> {
    let mut all = topic.cursors.present().cloned().unwrap_or_default();
    all.push(more);
    Evidence::Present(all)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn check_agrees_with_decide(topic in candidates(), asked in prop::option::of(asked()), pip in prop::bool::weighted(0.1)) {
        let age_rule = if pip { AgeRule::Pip219 } else { AgeRule::Broker };
        let config = PolicyConfig { rules: asked.iter().map(rule).collect(), age_rule, ..unprotected() };
        let policy = Policy::new(config, "test").unwrap();
        let decision = decide(&topic, &policy, &context(NOW));
        prop_assert_eq!(check(&decision, &topic, NOW), Ok(()), "{:#?}", decision);
        // Deciders ask for what acts only.
        let acts = act_on_any(&Candidate::Ledger(Box::new(topic)), &policy, &context(NOW));
        let verdict = decision.verdict;
        prop_assert_eq!(acts, vec![if verdict.acts() { Ok(Box::new(decision)) } else { Err(verdict) }]);
    }

    #[test]
    fn check_refuses_every_damage(topic in candidates()) {
        let decision = decided(&topic, vec![], NOW);
        if !decision.verdict.acts() {
            let names_one = Decision { ledgers: vec![0], ..decision };
            prop_assert!(check(&names_one, &topic, NOW).is_err());
            return Ok(());
        }
        for (what, (decision, topic, now_ms)) in damaged(&decision, &topic) {
            prop_assert!(check(&decision, &topic, now_ms).is_err(), "{what} is not refused: {decision:#?}");
        }
    }

    /// Figures that no cluster has, but a damaged value may.
    #[test]
    fn absurd_figures_do_no_harm(topic in candidates(), figures in prop::collection::vec(prop::sample::select(vec![i64::MAX, i64::MAX / 2, MIB, i64::MIN]), 12)) {
        let mut topic = topic;
        if let Evidence::Present(list) = &mut topic.ledgers {
            for (info, pair) in list.iter_mut().zip(figures.chunks(2)) {
                (info.bytes, info.entries) = (Some(pair[0]), info.entries.map(|_| pair[1]));
            }
        }
        let decision = decided(&topic, vec![], NOW);
        prop_assert_eq!(check(&decision, &topic, NOW), Ok(()), "{:#?}", decision);
    }
}

/// What only retention or size lets go must be let go by them, also where the figures of the list mislead: a lost last ledger,
/// and an empty one, leave nothing behind.
#[test]
fn what_is_lost_or_empty_does_not_count_as_what_stays() {
    let of = |end: LedgerInfo, last| {
        let mut topic = super::cases::topic(&[super::cases::ledger(1, 10, MIB, 0)], last);
        let Evidence::Present(list) = &mut topic.ledgers else { unreachable!("it has ledgers") };
        list.push(end);
        let Evidence::Present(policies) = &mut topic.policies else { unreachable!("it has policies") };
        policies.retention.value = Retention { minutes: -1, mib: 1 };
        topic
    };
    let listed =
        |entries| LedgerInfo { id: 2, entries: Some(entries), bytes: Some(9 * MIB), closed_ms: NOW - 1, offload: None };
    let closed = LastLedger::Closed { entries: 1, bytes: 9 * MIB, closed_ms: NOW - 1 };
    let fine = of(listed(1), closed.clone());
    let good = decided(&fine, vec![], NOW);
    assert_eq!((good.verdict, good.ledgers.as_slice()), (Verdict::Trim, &[1][..]));
    check(&good, &fine, NOW).unwrap();
    for topic in [of(listed(1), LastLedger::Missing), of(listed(0), closed), of(listed(1), LastLedger::Open)] {
        assert!(!decided(&topic, vec![], NOW).verdict.acts());
        check(&good, &topic, NOW).unwrap_err();
    }
}
