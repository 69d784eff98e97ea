//! Tables: what was met in the field, and the verdict that is right.

use trimtab_events::{
    CursorKind, Evidence, History, Level, Log, Mark, Partition, Protection, Setting, SubscriberClass,
};
use trimtab_policy::{Action, Rule, Trust, reinstate};

use super::make::*;

const SUB: CursorKind = CursorKind::Subscription;

/// `old` holds everything from ledger 1 on, `busy` is at the end.
fn one_abandoned() -> trimtab_events::SubscriberCandidate {
    let topic = topic(&[("busy", SUB, 6, 0), ("old", SUB, 1, -1)]);
    pulsar(topic, vec![subscriber("busy", 0), subscriber("old", 10 * DAY)])
}

#[test]
fn an_abandoned_subscription_is_consumed_to_the_end_of_the_last_ledger_but_one() {
    let decisions = decided(&one_abandoned(), vec![rule()]);
    assert_eq!(decisions[0].verdict.name(), "nothing", "{:?}", decisions[0].reasons);
    let old = &decisions[1];
    assert_eq!((old.verdict.name(), old.ledgers.as_slice(), old.bytes), ("consume", &[1, 2, 3, 4, 5][..], 500));
    let consume = old.consume.as_ref().unwrap();
    assert_eq!((consume.from.to_string(), consume.to.to_string(), consume.messages), ("1:-1".into(), "5:9".into(), 50));
    assert_eq!(old.subject, "persistent://t/n/x?subscription=old");
}

#[test]
fn without_a_rule_nobody_is_stale() {
    assert_eq!(verdicts(&one_abandoned(), vec![]), ["nothing", "keep"]);
    let keep = Rule { action: Action::Keep, ..rule() };
    assert_eq!(verdicts(&one_abandoned(), vec![keep]), ["keep", "keep"]);
}

#[test]
fn rules_about_subscriptions_win_over_those_behind_them_and_do_not_touch_topics() {
    let special = Rule { subscriptions: vec!["o*".into()], action: Action::Report, ..rule() };
    assert_eq!(verdicts(&one_abandoned(), vec![special, rule()])[1], "report");
    let other = Rule { subscriptions: vec!["x*".into()], action: Action::Keep, ..rule() };
    assert_eq!(verdicts(&one_abandoned(), vec![other, rule()])[1], "consume");
}

#[test]
fn whoever_was_seen_too_rarely_too_shortly_or_not_at_all_is_kept() {
    let with = |history| {
        let mut log = one_abandoned();
        log.subscribers[1].history = history;
        verdicts(&log, vec![rule()])[1]
    };
    let seen = |idle, sightings| Some(History { since_ms: NOW - idle, last_ms: NOW - DAY, sightings });
    assert_eq!(with(None), "keep");
    assert_eq!(with(seen(10 * DAY, 2)), "keep");
    assert_eq!(with(seen(3 * DAY, 9)), "keep", "exactly the limit is not over it");
    assert_eq!(with(seen(3 * DAY + 1000, 9)), "consume");
    assert_eq!(with(seen(-DAY, 9)), "keep", "a time in the future");
    assert_eq!(with(Some(History { since_ms: 0, last_ms: 0, sightings: 9 })), "keep", "no time at all");
}

#[test]
fn a_sign_of_life_inside_the_window_keeps_whatever_the_history_says() {
    let mut log = one_abandoned();
    log.subscribers[1].alive_ms = NOW - DAY;
    assert_eq!(verdicts(&log, vec![rule()])[1], "keep");
    log.subscribers[1].alive_ms = NOW - 5 * DAY;
    assert_eq!(verdicts(&log, vec![rule()])[1], "consume");
}

#[test]
fn stored_times_decide_only_when_a_rule_trusts_them_and_the_reason_says_so() {
    let mut log = one_abandoned();
    log.subscribers[1].history = None;
    assert_eq!(verdicts(&log, vec![rule()])[1], "keep");
    let field = Rule { trust: Trust::Field, ..rule() };
    assert_eq!(verdicts(&log, vec![field.clone()])[1], "consume");
    assert!(says(&log, vec![field.clone()], 1).contains("nobody confirmed"), "{}", says(&log, vec![field.clone()], 1));
    log.subscribers[1].stored_ms = NOW - DAY;
    assert_eq!(verdicts(&log, vec![field])[1], "keep");
}

/// P-01: a broker that died, and consumers that have not come back yet: the stored time is old, what we saw is not.
#[test]
fn an_old_stored_time_alone_never_decides() {
    let mut log = one_abandoned();
    log.subscribers[1].stored_ms = NOW - 8 * DAY;
    log.subscribers[1].history = Some(History { since_ms: NOW - 20_000, last_ms: NOW - 20_000, sightings: 1 });
    assert_eq!(verdicts(&log, vec![rule()])[1], "keep");
}

/// P-04: the namespace's own expiration nominates, and its level is named; 0 is never, absent inherits.
#[test]
fn the_targets_own_expiration_counts() {
    let with = |minutes: Option<(i64, Level)>, rules: Vec<Rule>| {
        let mut log = one_abandoned();
        if let Log::Pulsar(topic) = &mut log.log
            && let Evidence::Present(policies) = &mut topic.policies
        {
            policies.subscription_expiration_minutes = minutes.map(|(value, level)| Setting { value, level });
        }
        log.subscribers.iter_mut().for_each(|s| s.expiration_s = minutes.map(|(value, _)| value * 60));
        let grace = Rule { grace_s: Some(0), ..Rule::default() };
        let rules = rules.into_iter().chain([grace]).collect::<Vec<_>>();
        (verdicts(&log, rules.clone())[1], says(&log, rules, 1))
    };
    let (verdict, says) = with(Some((5, Level::Namespace)), vec![]);
    assert_eq!(verdict, "consume");
    assert!(says.contains("the namespace's expiration"), "{says}");
    assert_eq!(with(None, vec![]).0, "keep");
    assert_eq!(with(Some((20 * 24 * 60, Level::Namespace)), vec![]).0, "keep");
    // A rule may only be longer, unless it overrides.
    assert_eq!(with(Some((20 * 24 * 60, Level::Namespace)), vec![rule()]).0, "keep");
    assert_eq!(with(Some((20 * 24 * 60, Level::Namespace)), vec![Rule { overrides: true, ..rule() }]).0, "consume");
    let never = Some((0, Level::Namespace));
    assert_eq!(with(never, vec![rule()]).0, "keep");
    assert_eq!(with(never, vec![Rule { overrides: true, ..rule() }]).0, "consume");
    assert_eq!(with(Some((0, Level::Broker)), vec![rule()]).0, "consume");
}

/// P-05, P-10: cursors of the system, and subscriptions of the system's topics.
#[test]
fn nobody_but_users_subscriptions_is_ever_touched() {
    let kinds = [
        CursorKind::Compaction,
        CursorKind::Replicator,
        CursorKind::Dedup,
        CursorKind::Transaction,
        CursorKind::System,
    ];
    for kind in kinds {
        let mut log = pulsar(topic(&[("c", kind, 1, -1)]), vec![subscriber("c", 90 * DAY)]);
        log.subscribers[0].class = SubscriberClass::System;
        assert_eq!(verdicts(&log, vec![rule()]), ["skip"], "{kind:?}");
    }
    let mut log = one_abandoned();
    log.subscribers[1].class = SubscriberClass::Replicated;
    assert_eq!(verdicts(&log, vec![rule()])[1], "skip");
    let mut log = one_abandoned();
    if let Log::Pulsar(topic) = &mut log.log {
        topic.class = trimtab_events::TopicClass::System;
    }
    assert_eq!(verdicts(&log, vec![rule()]), ["skip", "skip"]);
}

/// dead letters look idle by nature.
#[test]
fn subscribers_of_dead_letter_topics_are_kept() {
    let mut log = one_abandoned();
    log.subject = "persistent://t/n/orders-sub-DLQ".into();
    if let Log::Pulsar(topic) = &mut log.log {
        topic.subject.clone_from(&log.subject);
    }
    assert_eq!(verdicts(&log, vec![rule()]), ["keep", "keep"]);
    assert!(says(&log, vec![rule()], 1).contains("-DLQ"));
}

#[test]
fn whoever_is_connected_or_cannot_be_seen_is_kept() {
    let mut log = one_abandoned();
    log.subscribers[1].connected = Evidence::Present(1);
    assert_eq!(verdicts(&log, vec![rule()])[1], "keep");
    log.subscribers[1].connected = Evidence::Present(0);
    assert_eq!(verdicts(&log, vec![rule()])[1], "consume");
    log.subscribers[1].progress = Evidence::Unknown("in a cursor ledger".into());
    assert_eq!(verdicts(&log, vec![rule()])[1], "skip");
    let mut log = one_abandoned();
    if let Log::Pulsar(topic) = &mut log.log
        && let Evidence::Present(cursors) = &mut topic.cursors
    {
        cursors[0].mark_delete = Evidence::Unknown("cannot be decoded".into());
    }
    assert_eq!(
        verdicts(&log, vec![rule()]),
        ["skip", "skip"],
        "somebody else's unknown position may be before its end"
    );
}

#[test]
fn a_partition_that_cannot_be_loaded_is_not_visited() {
    for count in [Evidence::Absent, Evidence::Present(1), Evidence::not_read()] {
        let mut log = one_abandoned();
        if let Log::Pulsar(topic) = &mut log.log {
            topic.partition = Partition::Of { index: 1, count };
        }
        assert!(["report", "skip"].contains(&verdicts(&log, vec![rule()])[1]));
    }
}

#[test]
fn nobody_is_moved_when_nothing_would_be_freed() {
    // Another one that is not stale stands just as far back.
    let two = topic(&[("busy", SUB, 1, 0), ("old", SUB, 1, -1)]);
    let log = pulsar(two, vec![subscriber("busy", 0), subscriber("old", 10 * DAY)]);
    assert_eq!(verdicts(&log, vec![rule()]), ["keep", "blocked"]);
    let decisions = decided(&log, vec![rule()]);
    assert_eq!(decisions[1].holder.as_ref().map(|h| h.cursor.as_str()), Some("busy"));
    // Retention keeps everything.
    let mut log = one_abandoned();
    if let Log::Pulsar(topic) = &mut log.log
        && let Evidence::Present(policies) = &mut topic.policies
    {
        policies.retention.value = trimtab_events::Retention { minutes: -1, mib: -1 };
    }
    assert_eq!(verdicts(&log, vec![rule()])[1], "keep");
    // Too little.
    assert_eq!(verdicts(&one_abandoned(), vec![Rule { min_reclaim_bytes: 501, ..rule() }])[1], "keep");
    assert_eq!(verdicts(&one_abandoned(), vec![Rule { min_reclaim_bytes: 500, ..rule() }])[1], "consume");
}

#[test]
fn two_that_are_stale_are_moved_together_and_counted_once() {
    let two = topic(&[("a", SUB, 1, -1), ("b", SUB, 2, 3)]);
    let log = pulsar(two, vec![subscriber("a", 10 * DAY), subscriber("b", 10 * DAY)]);
    let decisions = decided(&log, vec![rule()]);
    assert_eq!(decisions.iter().map(|d| d.verdict.name()).collect::<Vec<_>>(), ["consume", "consume"]);
    assert_eq!(decisions[0].ledgers, [1, 2, 3, 4, 5]);
    assert_eq!((decisions[1].ledgers.len(), decisions[1].bytes), (0, 0));
    assert_eq!(decisions[1].consume.as_ref().unwrap().stale.len(), 2);
    // One that is only reported cannot be counted on.
    let report = Rule { subscriptions: vec!["b".into()], action: Action::Report, ..rule() };
    let decisions = decided(&log, vec![report, rule()]);
    assert_eq!(decisions.iter().map(|d| d.verdict.name()).collect::<Vec<_>>(), ["consume", "report"]);
    assert_eq!(decisions[0].ledgers, [1], "b stands in ledger 2");
}

#[test]
fn delete_is_only_what_a_rule_says() {
    let delete = Rule { action: Action::Delete, ..rule() };
    assert_eq!(verdicts(&one_abandoned(), vec![delete])[1], "delete-subscription");
}

#[test]
fn a_mark_comes_before_the_act_and_only_for_the_same_progress() {
    let graced = Rule { grace_s: Some(86_400), ..rule() };
    let mut log = one_abandoned();
    assert_eq!(verdicts(&log, vec![graced.clone()])[1], "mark");
    assert_eq!(
        verdicts(&log, vec![Rule { grace_s: None, ..rule() }])[1],
        "mark",
        "there is a grace unless a rule says none"
    );
    let progress = log.subscribers[1].progress.present().unwrap().clone();
    let mut with = |marked_ms: i64, progress: &str| {
        let mark = Mark { subject: "x".into(), marked_ms, progress: progress.to_owned() };
        log.subscribers[1].mark = Some(mark);
        verdicts(&log, vec![graced.clone()])[1]
    };
    assert_eq!(with(NOW - DAY + 1, &progress), "keep");
    assert_eq!(with(NOW - DAY, &progress), "consume");
    assert_eq!(with(NOW - 9 * DAY, "another"), "mark");
    assert_eq!(with(NOW + DAY, &progress), "keep", "a mark from the future");
}

#[test]
fn those_in_their_grace_are_not_counted_on_by_others() {
    let two = topic(&[("a", SUB, 1, -1), ("b", SUB, 1, 3)]);
    let mut log = pulsar(two, vec![subscriber("a", 10 * DAY), subscriber("b", 10 * DAY)]);
    let graced = Rule { grace_s: Some(86_400), ..rule() };
    assert_eq!(verdicts(&log, vec![graced.clone()]), ["mark", "mark"]);
    let progress = log.subscribers[0].progress.present().unwrap().clone();
    log.subscribers[0].mark = Some(Mark { subject: "a".into(), marked_ms: NOW - 2 * DAY, progress });
    assert_eq!(verdicts(&log, vec![graced]), ["keep", "mark"], "b still holds everything that a does");
}

#[test]
fn a_wish_to_be_left_alone_is_heeded_while_it_lasts() {
    let mut log = one_abandoned();
    let mut with = |until_ms| {
        log.subscribers[1].protected = Some(Protection { subject: "x".into(), by: "ops".into(), until_ms });
        verdicts(&log, vec![rule()])[1]
    };
    assert_eq!(with(None), "keep");
    assert_eq!(with(Some(NOW + 1)), "keep");
    assert_eq!(with(Some(NOW)), "consume");
}

#[test]
fn histories_are_given_back_only_to_those_who_have_not_moved() {
    let log = one_abandoned();
    let decision = decided(&log, vec![rule()]).remove(1);
    let mut again = log.clone();
    again.subscribers.iter_mut().for_each(|s| s.history = None);
    let mut moved = again.clone();
    reinstate(&mut again, &decision);
    assert_eq!(verdicts(&again, vec![rule()])[1], "consume");
    moved.subscribers[1].progress = Evidence::Present("ffff".into());
    reinstate(&mut moved, &decision);
    assert_eq!(verdicts(&moved, vec![rule()])[1], "keep");
}

/// H-01: the seed. One subscriber forty days old, one a day; a closed range and an open one.
#[test]
fn hedwig_the_seed() {
    let log = hedwig(
        &[(5, Some(100)), (6, None)],
        &[(0, 0), (100, 0)],
        vec![subscriber("s1", 40 * DAY), subscriber("s2", DAY)],
    );
    let decisions = decided(&log, vec![rule()]);
    assert_eq!(decisions[0].verdict.name(), "consume");
    assert_eq!(decisions[0].ledgers, [5]);
    assert_eq!(decisions[0].consume.as_ref().unwrap().to.entry, 100);
    assert_eq!(decisions[1].verdict.name(), "keep");
}

#[test]
fn hedwig_verdicts_in_the_order_of_the_spec() {
    let idle = || subscriber("s", 40 * DAY);
    let one =
        |ranges: &[(i64, Option<i64>)], at: (i64, u64)| says(&hedwig(ranges, &[at], vec![idle()]), vec![rule()], 0);
    assert!(one(&[], (0, 0)).starts_with("no-ledgers"));
    assert!(one(&[(5, Some(100)), (6, None)], (100, 0)).starts_with("caught-up"));
    assert!(one(&[(5, None)], (0, 0)).starts_with("caught-up"), "H-05: a single open range frees nothing");
    assert!(one(&[(5, Some(49)), (6, None)], (0, 0)).starts_with("gap-below-interval"));
    assert!(one(&[(5, Some(50)), (6, None)], (0, 0)).starts_with("stale"));
    assert!(one(&[(5, Some(100)), (6, None)], (0, 10)).starts_with("bounded"));
    assert!(one(&[(5, None), (6, Some(10))], (0, 0)).contains("unreadable"));
    assert!(one(&[(5, Some(100)), (6, Some(90))], (0, 0)).contains("unreadable"));
    // H-04: another region's hub.
    let mut log = hedwig(&[(5, Some(100)), (6, None)], &[(0, 0)], vec![idle()]);
    log.subscribers[0].class = SubscriberClass::System;
    assert_eq!(verdicts(&log, vec![rule()]), ["skip"]);
    // Another one that stands at 0, or that nobody can read, pins it all.
    let two = hedwig(&[(5, Some(100)), (6, None)], &[(0, 0), (0, 0)], vec![idle(), subscriber("t", 0)]);
    assert_eq!(verdicts(&two, vec![rule()]), ["blocked", "keep"]);
    let mut unreadable = two.clone();
    if let Log::Hedwig(topic) = &mut unreadable.log {
        topic.pointers[1].consumed = Evidence::Unknown("no position".into());
    }
    assert_eq!(verdicts(&unreadable, vec![rule()]), ["blocked", "skip"]);
    // A hub deletes whoever is named, online or not: never asked.
    let log = hedwig(&[(5, Some(100)), (6, None)], &[(0, 0)], vec![idle()]);
    assert_eq!(verdicts(&log, vec![Rule { action: Action::Delete, ..rule() }]), ["report"]);
}
