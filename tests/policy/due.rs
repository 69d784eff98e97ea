//! `due` names a moment before which time alone changes no answer.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use trimtab_events::{Evidence, Expire, LastLedger, LedgerCandidate, Loaded, NOT_READ, Verdict};
use trimtab_policy::{AgeRule, Needs, Policy, PolicyConfig, Protect, Rule, decide, due, needs};

use super::reference::Asked;
use super::space::{DAY, MINUTE, NOW, asked, candidates};
use super::{config, context, policy, rule, takes, unprotected};

const MONTH: i64 = 31 * DAY;

/// What is worth a look: what would be read, and what would be done.
#[derive(Debug, PartialEq)]
struct Answer {
    needs: Needs,
    acts: Option<Verdict>,
    takes: Vec<i64>,
    expire: Vec<Expire>,
}

fn answer(topic: &LedgerCandidate, policy: &Policy, now_ms: i64) -> Answer {
    let decision = decide(topic, policy, &context(now_ms));
    let acts = decision.verdict.acts().then_some(decision.verdict);
    let (takes, expire) = (takes(&decision), if acts.is_some() { decision.expire } else { Vec::new() });
    Answer { needs: needs(topic, policy, &context(now_ms)), acts, takes, expire }
}

/// How a scan leaves a topic of which it has not read everything.
fn unread(mut topic: LedgerCandidate, last: bool, cursors: bool) -> LedgerCandidate {
    if last {
        topic.last = LastLedger::Unknown { why: NOT_READ.to_owned() };
        topic.loaded = Loaded::Unknown { why: NOT_READ.to_owned() };
    }
    if cursors {
        topic.cursors = Evidence::not_read();
    }
    topic
}

fn made(asked: &Asked, protect: bool, pip219: bool) -> Policy {
    let protect = protect.then(|| Protect { by: "x".into(), until_ms: Some(NOW + 10 * MINUTE) });
    let age_rule = if pip219 { AgeRule::Pip219 } else { AgeRule::Broker };
    let rules = vec![Rule { protect, ..rule(asked) }];
    Policy::new(PolicyConfig { rules, age_rule, ..unprotected() }, "test").unwrap()
}

/// Moments at which something of the space turns, the last one before and the first one after.
fn around(at: i64) -> impl Strategy<Value = i64> {
    let ages =
        [0, 1, 60_000, 10 * MINUTE, 7 * DAY, 30 * DAY, 4 * 60 * MINUTE, 10 * MINUTE + 1000, 7 * DAY + 10 * MINUTE];
    let mut edges: Vec<i64> = ages.iter().flat_map(|age| (-2..=2).map(move |by| NOW + age + by)).collect();
    edges.extend([at - 1, at - 2, NOW + 1]);
    let last = at.max(NOW + 2);
    prop_oneof![4 => prop::sample::select(edges), 1 => NOW + 1..last]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_changes_before_it_is_due(
        (topic, policy, due, at) in (
            candidates(), any::<(bool, bool)>(), asked(), proptest::bool::weighted(0.1), proptest::bool::weighted(0.2),
        ).prop_flat_map(|(topic, (last, cursors), asked, protect, pip219)| {
            let (topic, policy) = (unread(topic, last, cursors), made(&asked, protect, pip219));
            let due = due(&topic, &policy, &context(NOW), NOW + MONTH);
            let end = due.unwrap_or(NOW + MONTH + 1);
            (Just(topic), Just(policy), Just(due), around(end))
        })
    ) {
        let end = due.unwrap_or(NOW + MONTH + 1);
        prop_assert!(end > NOW && due.is_none_or(|at| at <= NOW + MONTH));
        if at > NOW && at < end {
            prop_assert_eq!(answer(&topic, &policy, NOW), answer(&topic, &policy, at), "at now + {}", at - NOW);
        }
    }
}

/// It may be early, but whoever is called for nothing most of the time spares nothing. And topics that fall due are there.
#[test]
fn it_is_seldom_early() {
    let mut runner = TestRunner::deterministic();
    let policy = policy(vec![]);
    let (mut right, mut early) = (0, 0);
    for _ in 0..5000 {
        let topic = candidates().new_tree(&mut runner).unwrap().current();
        if let Some(at) = due(&topic, &policy, &context(NOW), NOW + MONTH).filter(|_| topic.loaded != Loaded::Yes) {
            let same = answer(&topic, &policy, NOW) == answer(&topic, &policy, at);
            *if same { &mut early } else { &mut right } += 1;
        }
    }
    assert!(right > 150 && early * 10 < right, "{right} at the right time, {early} early");
}

/// A topic that a broker has loaded is judged as what it may be by then.
#[test]
fn being_loaded_ends() {
    let mut runner = TestRunner::deterministic();
    let policy = policy(vec![]);
    let mut found = 0;
    for _ in 0..3000 {
        let mut topic = candidates().new_tree(&mut runner).unwrap().current();
        topic.loaded = Loaded::No;
        let unloaded = due(&topic, &policy, &context(NOW), NOW + MONTH);
        topic.loaded = Loaded::Yes;
        assert_eq!(unloaded, due(&topic, &policy, &context(NOW), NOW + MONTH));
        found += u32::from(unloaded.is_some());
    }
    assert!(found > 100, "{found}");
}
