//! JetStream: verdicts with their reasons, and what acts do to streams that a model keeps message by message.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use trimtab_events::{
    Aged, Decision, DeliverPolicy, Evidence, JetStreamConsumer, JetStreamStream, Log, Mark, StreamOwner,
    StreamRetention, SubscriberCandidate, SubscriberClass, Verdict,
};
use trimtab_policy::{Action, Policy, PolicyConfig, Rule, Trust, abridge, narrow, reinstate};

use super::make::*;

/// Three days of idleness, no grace, and leave to act.
fn bold() -> Rule {
    Rule { allow_unguarded: true, ..rule() }
}

fn inner(log: &mut SubscriberCandidate) -> &mut JetStreamStream {
    match &mut log.log {
        Log::JetStream(stream) => stream,
        other => panic!("{other:?}"),
    }
}

fn state(log: &mut SubscriberCandidate, index: usize) -> &mut JetStreamConsumer {
    match &mut inner(log).consumers[index] {
        Evidence::Present(consumer) => consumer,
        other => panic!("{other:?}"),
    }
}

/// `active` is at the end, `old` stopped at 20 long ago.
fn one_abandoned() -> SubscriberCandidate {
    stream(vec![("active", consumer(1_000, 0), 0), ("old", consumer(20, 980), 10)])
}

fn to(decision: &Decision) -> i64 {
    decision.consume.as_ref().map_or(-1, |consume| consume.to.entry)
}

#[test]
fn an_abandoned_consumer_is_moved_to_the_end_as_it_was_seen() {
    let mut log = one_abandoned();
    inner(&mut log).first = 21;
    inner(&mut log).messages = 980;
    inner(&mut log).bytes = 98_000;
    let decisions = decided(&log, vec![bold()]);
    assert_eq!(decisions[0].verdict.name(), "nothing", "{:?}", decisions[0].reasons);
    let old = &decisions[1];
    assert_eq!((old.verdict.name(), old.bytes, old.ledgers.len()), ("consume", 98_000, 0));
    let consume = old.consume.as_ref().unwrap();
    assert_eq!(
        (consume.from.to_string(), consume.to.to_string(), consume.messages),
        ("0:20".into(), "0:1000".into(), 980)
    );
    assert_eq!(old.subject, "jetstream://acme/ORDERS?subscription=old");
}

/// Promise 3: nothing that its owner does not guard is offered unless a rule says so in so many words.
#[test]
fn without_leave_for_unguarded_acts_a_stale_consumer_is_only_reported() {
    for action in [Action::Reclaim, Action::Delete, Action::Report] {
        let told = Rule { action, ..rule() };
        assert_eq!(verdicts(&one_abandoned(), vec![told.clone()]), ["nothing", "report"], "{action:?}");
        let says = says(&one_abandoned(), vec![told], 1);
        assert!(says.contains("98000 bytes could go"), "{says}");
        assert_eq!(says.contains("allow_unguarded"), action != Action::Report, "{says}");
    }
    let told = Rule { action: Action::Report, ..bold() };
    assert_eq!(verdicts(&one_abandoned(), vec![told])[1], "report");
    assert_eq!(verdicts(&one_abandoned(), vec![Rule { action: Action::Delete, ..bold() }])[1], "delete-subscription");
    assert_eq!(verdicts(&one_abandoned(), vec![])[1], "keep", "without a rule nobody is stale");
}

#[test]
fn each_kind_of_consumer_that_is_left_alone_has_its_reason() {
    type Change = fn(&mut SubscriberCandidate);
    let cases: [(&str, &str, &str, Change); 17] = [
        ("keep", "paused", "somebody paused it", |log| state(log, 1).paused_until_ms = Some(NOW + 1000)),
        ("keep", "inactive-threshold", "after 3600 s", |log| state(log, 1).inactive_threshold_ms = Some(3_600_000)),
        ("keep", "protected", "trimtab.keep = \"billing\"", |log| state(log, 1).keep = Some("billing".into())),
        ("keep", "protected", "trimtab.keep = \"\"", |log| inner(log).keep = Some(String::new())),
        ("skip", "protected", "servers'", |log| inner(log).owner = StreamOwner::System),
        ("skip", "protected", "trimtab's own", |log| inner(log).owner = StreamOwner::Trimtab),
        ("skip", "protected", "system itself", |log| log.subscribers[1].class = SubscriberClass::System),
        ("skip", "work-queue", "waits for whoever comes", |log| inner(log).retention = StreamRetention::WorkQueue),
        ("skip", "unknown", "of a kind that is not known", |log| inner(log).retention = StreamRetention::Unknown),
        ("nothing", "limits", "hold nothing", |log| inner(log).retention = StreamRetention::Limits),
        ("nothing", "sealed", "sealed", |log| inner(log).sealed = true),
        ("nothing", "caught-up", "not acknowledged", |log| state(log, 1).pending = 0),
        ("keep", "online", "1 consumers", |log| log.subscribers[1].connected = Evidence::Present(1)),
        ("skip", "unknown", "a node is down", |log| {
            inner(log).consumers[1] = Evidence::Unknown("a node is down".into());
        }),
        ("skip", "unknown", "not every consumer", |log| drop(inner(log).consumers.pop())),
        ("skip", "unknown", "sequences", |log| inner(log).last = u64::MAX),
        ("keep", "activity", "seen for the first time", |log| log.subscribers[1].history = None),
    ];
    for (verdict, rule, text, change) in cases {
        let mut log = one_abandoned();
        change(&mut log);
        for action in [Action::Reclaim, Action::Delete] {
            let decision = decided(&log, vec![Rule { action, ..bold() }]).pop().unwrap();
            let reason = &decision.reasons[0];
            assert_eq!((decision.verdict.name(), reason.rule.as_ref()), (verdict, rule), "{reason:?}");
            assert!(reason.says.contains(text), "{}", reason.says);
        }
    }
}

/// The servers keep `last_active` in memory: after a restart its absence proves nothing, whatever a rule trusts.
#[test]
fn an_absent_time_of_activity_is_unknown_and_never_idle() {
    let field = || vec![Rule { trust: Trust::Field, ..bold() }];
    let mut log = one_abandoned();
    log.subscribers[1].stored_ms = 0;
    assert_eq!(verdicts(&log, field())[1], "keep");
    assert!(says(&log, field(), 1).contains("forgets that when it restarts"));
    let long_ago = NOW - 9 * DAY;
    state(&mut log, 1).last_active_ms = Some(long_ago);
    (log.subscribers[1].stored_ms, log.subscribers[1].alive_ms) = (long_ago, long_ago);
    assert_eq!(verdicts(&log, field())[1], "consume");
    // And what our own scans saw is only ever shortened by it.
    (log.subscribers[1].stored_ms, log.subscribers[1].alive_ms) = (NOW - DAY, NOW - DAY);
    assert_eq!(verdicts(&log, vec![bold()])[1], "keep");
}

#[test]
fn what_others_have_not_taken_is_not_given_up() {
    // A slow one that is alive has 500 of 1,000: the stale one is moved there and no further.
    let log = stream(vec![("old", consumer(20, 980), 10), ("slow", consumer(500, 500), 0)]);
    let decisions = decided(&log, vec![bold()]);
    assert_eq!((decisions[0].verdict.name(), to(&decisions[0]), decisions[0].bytes), ("consume", 500, 48_000));
    // One that is alive and stands lower: nothing would go.
    let log = stream(vec![("old", consumer(20, 980), 10), ("slow", consumer(10, 990), 0)]);
    let decisions = decided(&log, vec![bold()]);
    assert_eq!(decisions[0].verdict.name(), "blocked");
    assert_eq!(decisions[0].holder.as_ref().map(|holder| holder.cursor.as_str()), Some("slow"));
    // One that is alive and has a single message in hand since long ago holds that one only.
    let mut log = stream(vec![("old", consumer(20, 980), 10), ("stuck", consumer(4, 0), 0)]);
    (state(&mut log, 1).delivered, state(&mut log, 1).ack_pending) = (1_000, 1);
    let decisions = decided(&log, vec![bold()]);
    assert_eq!((decisions[0].verdict.name(), to(&decisions[0]), decisions[0].bytes), ("consume", 1_000, 97_900));
    // One of which nothing is known may stand anywhere.
    inner(&mut log).consumers[1] = Evidence::Unknown("its node is down".into());
    assert_eq!(verdicts(&log, vec![bold()])[0], "skip");
}

#[test]
fn who_reads_other_subjects_holds_nothing_of_it() {
    let filtered = |floor, pending, filter: &str| JetStreamConsumer {
        filters: vec![filter.to_owned()],
        ..consumer(floor, pending)
    };
    let with = |other: &str| {
        let log = stream(vec![("old", filtered(20, 300, "orders.a"), 10), ("slow", filtered(5, 300, other), 0)]);
        verdicts(&log, vec![bold()])[0]
    };
    assert_eq!(with("orders.b"), "consume");
    assert_eq!(with("orders.a"), "blocked");
    assert_eq!(with("orders.*"), "blocked");
    assert_eq!(with(">"), "blocked");
}

#[test]
fn several_that_are_stale_let_go_together_and_each_counts_what_it_holds_alone() {
    let log = stream(vec![
        ("c", consumer(900, 100), 10),
        ("a", consumer(10, 990), 10),
        ("live", consumer(950, 50), 0),
        ("b", consumer(50, 950), 10),
    ]);
    let decisions = decided(&log, vec![bold()]);
    let got: Vec<_> = decisions.iter().map(|d| (d.verdict.name(), to(d), d.bytes)).collect();
    assert_eq!(
        got,
        [("consume", 950, 5_000), ("consume", 950, 4_000), ("keep", -1, 0), ("consume", 950, 85_000)],
        "what goes is counted once"
    );
    // One that is only reported stays where it is.
    let report = Rule { subscriptions: vec!["a".into()], action: Action::Report, ..bold() };
    assert_eq!(verdicts(&log, vec![report, bold()]), ["blocked", "report", "keep", "blocked"]);
}

#[test]
fn those_in_their_grace_are_announced_and_not_counted_on() {
    let graced = Rule { grace_s: Some(86_400), ..bold() };
    let mut log = stream(vec![("a", consumer(10, 990), 10), ("b", consumer(50, 950), 10)]);
    assert_eq!(verdicts(&log, vec![graced.clone()]), ["mark", "mark"]);
    let mark = |log: &mut SubscriberCandidate, index: usize| {
        let progress = log.subscribers[index].progress.present().unwrap().clone();
        log.subscribers[index].mark = Some(Mark { subject: "x".into(), marked_ms: NOW - 2 * DAY, progress });
    };
    mark(&mut log, 1);
    assert_eq!(verdicts(&log, vec![graced.clone()]), ["mark", "keep"], "a still holds what b would let go");
    mark(&mut log, 0);
    assert_eq!(verdicts(&log, vec![graced]), ["consume", "consume"]);
}

#[test]
fn who_cannot_be_moved_is_purged_below_everybody_who_is_alive() {
    for deliver in [DeliverPolicy::New, DeliverPolicy::Last, DeliverPolicy::LastPerSubject, DeliverPolicy::Unknown] {
        let old = JetStreamConsumer { deliver, ..consumer(20, 980) };
        let mut log = stream(vec![("old", old, 10), ("slow", consumer(500, 500), 0)]);
        let decisions = decided(&log, vec![bold()]);
        assert_eq!((decisions[0].verdict, to(&decisions[0])), (Verdict::Purge, 500), "{deliver:?}");
        // Everybody counts, whatever they read, and what was given up after max_deliver tries too.
        let mut poisoned = log.clone();
        (state(&mut poisoned, 1).pending, state(&mut poisoned, 1).delivered) = (0, 1_000);
        state(&mut poisoned, 1).filters = vec!["other".into()];
        assert_eq!(to(&decided(&poisoned, vec![bold()])[0]), 500);
        inner(&mut log).deny_purge = true;
        assert_eq!(verdicts(&log, vec![bold()])[0], "report");
        assert_eq!(verdicts(&log, vec![Rule { action: Action::Delete, ..bold() }])[0], "delete-subscription");
    }
    for deliver in [DeliverPolicy::All, DeliverPolicy::ByStartSequence, DeliverPolicy::ByStartTime] {
        let mut log = stream(vec![("old", JetStreamConsumer { deliver, ..consumer(20, 980) }, 10)]);
        assert_eq!(verdicts(&log, vec![bold()])[0], "consume");
        inner(&mut log).can_reset = false;
        assert_eq!(verdicts(&log, vec![bold()])[0], "purge", "servers that cannot move anybody");
    }
}

#[test]
fn what_would_give_back_too_little_is_kept() {
    let least = |min_reclaim_bytes| verdicts(&one_abandoned(), vec![Rule { min_reclaim_bytes, ..bold() }])[1];
    assert_eq!((least(98_001), least(98_000)), ("keep", "consume"));
}

#[test]
fn a_decision_that_is_looked_at_again_has_its_end_whatever_came_since() {
    let mut log = stream(vec![("active", consumer(990, 10), 0), ("old", consumer(20, 980), 10)]);
    let decision = decided(&log, vec![bold()]).pop().unwrap();
    assert_eq!(to(&decision), 990);
    // By now there are 500 more messages, which `active` has taken, and many more consumers.
    (inner(&mut log).last, inner(&mut log).messages) = (1_500, 1_500);
    *state(&mut log, 0) = consumer(1_500, 0);
    state(&mut log, 1).pending = 1_480;
    for index in 0..200 {
        log.subscribers.push(subscriber(&format!("more{index}"), 0));
        inner(&mut log).consumers.push(Evidence::Present(consumer(1_400, 100)));
    }
    log.subscribers.iter_mut().for_each(|subscriber| subscriber.history = None);
    let again = |mut log: SubscriberCandidate| {
        narrow(&mut log, &decision);
        reinstate(&mut log, &decision);
        assert_eq!(log.subscribers.len(), 1, "only what the decision is about is recorded");
        decided(&log, vec![bold()]).pop().unwrap()
    };
    let same = again(log.clone());
    assert_eq!(
        (same.verdict, same.consume.as_ref().map(|c| (c.from, c.to))),
        (Verdict::Consume, decision.consume.as_ref().map(|c| (c.from, c.to)))
    );
    // Somebody who stands lower by now holds it all.
    let mut lower = log.clone();
    lower.subscribers.push(subscriber("new", 0));
    inner(&mut lower).consumers.push(Evidence::Present(consumer(0, 1_500)));
    assert_eq!(again(lower).verdict, Verdict::Blocked);
    // It has taken something.
    let mut moved = log.clone();
    moved.subscribers[1].progress = Evidence::Present("ffff".into());
    assert_eq!(again(moved).verdict, Verdict::Keep);
}

/// N-05: hundreds of consumers that were made at each start of a worker and left behind.
#[test]
fn hundreds_that_are_stale_go_in_turns_and_fit_into_an_event() {
    let mut all: Vec<(String, JetStreamConsumer, i64)> =
        (0..587).map(|index| (format!("worker-{index:03}"), consumer(index, 1_000 - index), 10)).collect();
    all.push(("active".into(), consumer(990, 10), 0));
    let mut log = stream(all.iter().map(|(name, consumer, days)| (name.as_str(), consumer.clone(), *days)).collect());
    let mut turns = 0;
    loop {
        let decisions = decided(&log, vec![bold()]);
        let acting: Vec<&Decision> = decisions.iter().filter(|decision| decision.verdict.acts()).collect();
        if acting.is_empty() {
            break;
        }
        turns += 1;
        assert!(acting.len() <= 64 && acting.iter().all(|decision| to(decision) == 990), "{turns}");
        // What travels is decided about in the same way.
        let mut travels = log.clone();
        abridge(&mut travels, &decisions);
        let bytes = serde_json::to_vec(&travels).unwrap().len();
        assert!(bytes < 100_000, "{bytes} bytes");
        let again = decided(&travels, vec![bold()]);
        let short = |decision: &&Decision| (decision.subject.clone(), decision.verdict, to(decision), decision.bytes);
        let acting_again: Vec<_> = again.iter().filter(|decision| decision.verdict.acts()).collect();
        assert_eq!(acting_again.iter().map(short).collect::<Vec<_>>(), acting.iter().map(short).collect::<Vec<_>>());
        for (index, decision) in decisions.iter().enumerate().filter(|(_, decision)| decision.verdict.acts()) {
            *state(&mut log, index) = consumer(to(decision).unsigned_abs(), 10);
        }
    }
    assert_eq!(turns, 10, "587 in turns of 64");
}

/// A rule that lets messages go that are older than a day.
fn aging() -> Rule {
    Rule { name: "age".to_owned(), ttl_s: Some(86_400), overrides: true, allow_unguarded: true, ..Rule::default() }
}

/// The decision about a stream as a whole, with 600 of its 1,000 messages older than a day.
fn whole(log: &SubscriberCandidate, rule: Rule) -> Option<Decision> {
    decided(log, vec![rule]).into_iter().find(|decision| decision.subject == log.subject)
}

#[test]
fn old_messages_go_below_everybody_who_has_not_taken_them() {
    let old = |consumers: Vec<(&str, JetStreamConsumer, i64)>| {
        let mut log = stream(consumers);
        inner(&mut log).aged = Some(Aged { age_s: 86_400, first_younger: 601 });
        log
    };
    let log = old(vec![("active", consumer(1_000, 0), 0)]);
    let decision = whole(&log, aging()).unwrap();
    assert_eq!((decision.verdict, to(&decision), decision.bytes), (Verdict::Purge, 600, 60_000));
    assert_eq!(decision.consume.as_ref().map(|c| (c.subscription.as_str(), c.from.entry)), Some(("", 0)));
    // Nothing is said of streams that no rule is about, nor of those that a rule says less of.
    for rule in [
        Rule { ttl_s: None, ..aging() },
        Rule { overrides: false, ..aging() },
        Rule { allow_unguarded: false, ..aging() },
        Rule { topics: vec!["acme/OTHER".into()], ..aging() },
    ] {
        assert_eq!(whole(&log, rule), None);
    }
    // Whoever has not taken them holds them, idle or not; who has given some up after max_deliver tries too.
    for (floor, delivered, pending) in [(100, 100, 900), (100, 1_000, 0)] {
        let behind = JetStreamConsumer { delivered, ..consumer(floor, pending) };
        let decision = whole(&old(vec![("behind", behind, 10)]), aging()).unwrap();
        assert_eq!((decision.verdict, to(&decision)), (Verdict::Purge, 100));
    }
    let waits = old(vec![("none", consumer(0, 1_000), 10)]);
    assert_eq!(whole(&waits, aging()).map(|decision| decision.verdict), Some(Verdict::Keep));
    type Change = fn(&mut SubscriberCandidate);
    let cases: [(&str, Change); 12] = [
        ("keep", |log| inner(log).keep = Some("x".into())),
        ("skip", |log| inner(log).owner = StreamOwner::System),
        ("skip", |log| inner(log).owner = StreamOwner::Trimtab),
        ("skip", |log| inner(log).retention = StreamRetention::WorkQueue),
        ("skip", |log| inner(log).retention = StreamRetention::Unknown),
        ("skip", |log| inner(log).mirror = true),
        ("skip", |log| inner(log).deny_purge = true),
        ("skip", |log| inner(log).aged = None),
        ("skip", |log| inner(log).aged = Some(Aged { age_s: 86_399, first_younger: 601 })),
        ("skip", |log| inner(log).consumers[0] = Evidence::Unknown("away".into())),
        ("nothing", |log| inner(log).aged = Some(Aged { age_s: 86_400, first_younger: 1 })),
        ("nothing", |log| (inner(log).messages, inner(log).first) = (0, 1_001)),
    ];
    for (verdict, change) in cases {
        let mut log = log.clone();
        change(&mut log);
        let decision = whole(&log, aging()).unwrap();
        assert_eq!(decision.verdict.name(), verdict, "{:?}", decision.reasons);
    }
    // On a stream that only its limits bound, too.
    let mut limits = log.clone();
    inner(&mut limits).retention = StreamRetention::Limits;
    assert_eq!(whole(&limits, aging()).map(|decision| to(&decision)), Some(600));
    // A rule may keep more: for longer, or more of it, as far as that can be told.
    let longer = Rule { retention_s: Some(2 * 86_400), ..aging() };
    assert_eq!(whole(&log, longer.clone()).map(|decision| decision.verdict), Some(Verdict::Skip));
    let mut older = log.clone();
    inner(&mut older).aged = Some(Aged { age_s: 2 * 86_400, first_younger: 301 });
    assert_eq!(whole(&older, longer.clone()).map(|decision| to(&decision)), Some(300));
    let policy = Policy::new(PolicyConfig { rules: vec![longer], ..PolicyConfig::default() }, "test").unwrap();
    assert_eq!(policy.ages_out("a", &log.subject), Some(2 * 86_400), "that is the age that is asked for");
    let larger = Rule { retention_bytes: Some(60_000), ..aging() };
    assert_eq!(whole(&log, larger).map(|decision| to(&decision)), Some(40), "no message is larger than 1,000 bytes");
    let report = Rule { action: Action::Report, ..aging() };
    assert_eq!(whole(&log, report).map(|decision| decision.verdict), Some(Verdict::Report));
    // Looked at again a day later: no further than was decided.
    let mut later = log.clone();
    inner(&mut later).aged = Some(Aged { age_s: 86_400, first_younger: 900 });
    narrow(&mut later, &decision);
    assert_eq!(whole(&later, aging()).map(|decision| to(&decision)), Some(600));
}

/// A stream as its server keeps it: who has not acknowledged what.
#[derive(Debug, Clone)]
struct Model {
    subjects: Vec<char>,
    present: BTreeSet<u64>,
    consumers: Vec<Reader>,
}

#[derive(Debug, Clone)]
struct Reader {
    filter: Option<char>,
    deliver: DeliverPolicy,
    /// Sent up to here.
    delivered: u64,
    /// Not acknowledged of those.
    in_hand: BTreeSet<u64>,
    idle: bool,
}

impl Reader {
    fn reads(&self, subject: char) -> bool {
        self.filter.is_none_or(|filter| filter == subject)
    }
}

impl Model {
    fn owed(&self, reader: &Reader) -> BTreeSet<u64> {
        let read = |seq: &&u64| reader.reads(self.subjects[(**seq - 1) as usize]);
        let open = |seq: &&u64| **seq > reader.delivered || reader.in_hand.contains(seq);
        self.present.iter().filter(read).filter(open).copied().collect()
    }

    fn settle(&mut self) {
        let held: BTreeSet<u64> = self.consumers.iter().flat_map(|reader| self.owed(reader)).collect();
        self.present.retain(|seq| held.contains(seq));
    }

    fn log(&self) -> SubscriberCandidate {
        let names: Vec<String> = (0..self.consumers.len()).map(|index| format!("c{index}")).collect();
        let made = self.consumers.iter().zip(&names).map(|(reader, name)| {
            let owed = self.owed(reader);
            let in_hand = owed.iter().filter(|seq| **seq <= reader.delivered).count() as u64;
            let floor = owed.first().map_or(reader.delivered, |first| (first - 1).min(reader.delivered));
            let consumer = JetStreamConsumer {
                delivered: reader.delivered,
                ack_pending: in_hand,
                deliver: reader.deliver,
                filters: reader.filter.iter().map(char::to_string).collect(),
                ..consumer(floor, owed.len() as u64 - in_hand)
            };
            (name.as_str(), consumer, if reader.idle { 10 } else { 0 })
        });
        let mut log = stream(made.collect());
        let (first, messages) = (self.present.first().copied(), self.present.len() as u64);
        let last = self.subjects.len() as u64;
        let stream = inner(&mut log);
        (stream.first, stream.last, stream.messages, stream.bytes) =
            (first.unwrap_or(last + 1), last, messages, messages * 100);
        log
    }

    fn carry_out(&mut self, index: usize, decision: &Decision) {
        let to = to(decision).unsigned_abs();
        let reader = &mut self.consumers[index];
        match decision.verdict {
            Verdict::Consume => {
                reader.delivered = to;
                reader.in_hand.clear();
            }
            Verdict::DeleteSubscription => {
                reader.in_hand.clear();
                reader.delivered = u64::MAX;
            }
            Verdict::Purge => self.present.retain(|seq| *seq > to),
            other => panic!("{other}"),
        }
        self.settle();
    }
}

fn model() -> impl Strategy<Value = Model> {
    let reader = |last: u64| {
        let filter = prop_oneof![3 => Just(None), 1 => Just(Some('a')), 1 => Just(Some('b'))];
        let deliver = prop_oneof![3 => Just(DeliverPolicy::All), 1 => Just(DeliverPolicy::New)];
        let hand = proptest::collection::btree_set(1..=last, 0..4);
        (filter, deliver, 0..=last, hand, any::<bool>()).prop_map(|(filter, deliver, delivered, in_hand, idle)| {
            Reader {
                filter,
                deliver,
                delivered,
                in_hand: in_hand.into_iter().filter(|seq| *seq <= delivered).collect(),
                idle,
            }
        })
    };
    proptest::collection::vec(prop_oneof![Just('a'), Just('b')], 1..30).prop_flat_map(move |subjects| {
        let last = subjects.len() as u64;
        proptest::collection::vec(reader(last), 1..6).prop_map(move |consumers| {
            let mut model = Model { subjects: subjects.clone(), present: (1..=last).collect(), consumers };
            model.settle();
            model
        })
    })
}

/// Whatever is decided, nobody who is alive is owed a message that goes; and what is decided frees something, in whatever order.
#[test]
fn no_act_takes_a_message_from_anybody_who_is_alive() {
    let (acted, purged) = (Cell::new(0_u32), Cell::new(0_u32));
    let mut runner = TestRunner::new(ProptestConfig { cases: 2_000, ..ProptestConfig::default() });
    runner
        .run(&(model(), any::<bool>(), any::<bool>()), |(model, delete, backwards)| {
            let action = if delete { Action::Delete } else { Action::Reclaim };
            let decisions = decided(&model.log(), vec![Rule { action, ..bold() }]);
            let mut acting: Vec<(usize, &Decision)> =
                decisions.iter().enumerate().filter(|(_, decision)| decision.verdict.acts()).collect();
            if backwards {
                acting.reverse();
            }
            let mut after = model.clone();
            for (index, decision) in &acting {
                prop_assert!(model.consumers[*index].idle, "{decision:?}");
                after.carry_out(*index, decision);
                purged.set(purged.get() + u32::from(decision.verdict == Verdict::Purge));
            }
            for (before, now) in model.consumers.iter().zip(&after.consumers).filter(|(before, _)| !before.idle) {
                prop_assert_eq!(model.owed(before), after.owed(now));
            }
            let freed = model.present.len() - after.present.len();
            // Where messages are missing in between, or somebody reads only some, there may be less than can be counted.
            let plain = model.consumers.iter().all(|reader| reader.filter.is_none());
            let whole = model.present.first().is_none_or(|first| {
                model.present.last().is_some_and(|last| last - first + 1 == model.present.len() as u64)
            });
            prop_assert!(acting.is_empty() || freed > 0 || !(plain && whole), "nothing went: {:#?}", acting);
            acted.set(acted.get() + u32::from(!acting.is_empty()));
            Ok(())
        })
        .unwrap();
    let (acted, purged) = (acted.get(), purged.get());
    assert!(acted > 500 && purged > 100, "the cases reach too little: {acted} acted on, {purged} purged");
}
