//! Logs, subscribers and policies to judge.

use trimtab_events::{
    Cursor, CursorKind, Decision, DeliverPolicy, Evidence, HedwigHub, HedwigPointer, HedwigRange, HedwigTopic, History,
    JetStreamConsumer, JetStreamStream, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded, Log, Partition,
    Policies, Position, Retention, ScanRef, Seen, Setting, StreamOwner, StreamRetention, Subscriber,
    SubscriberCandidate, SubscriberClass, TopicClass,
};
use trimtab_policy::{Context, Policy, PolicyConfig, Rule, check_subscriber, decide_subscribers};

pub const DAY: i64 = 86_400_000;
pub const NOW: i64 = 1_800_000_000_000;

pub fn seen(version: i32) -> Seen {
    Seen { version, created_zxid: 7, modified_zxid: 7 + i64::from(version), modified_ms: NOW - 40 * DAY }
}

/// A subscriber that three scans have seen unchanged for `idle` milliseconds.
pub fn subscriber(name: &str, idle: i64) -> Subscriber {
    Subscriber {
        name: name.to_owned(),
        class: SubscriberClass::User,
        seen: seen(0),
        progress: Evidence::Present(format!("{:016x}", name.len())),
        stored_ms: NOW - idle,
        alive_ms: 0,
        connected: Evidence::not_read(),
        history: Some(History { since_ms: NOW - idle, last_ms: NOW - 3_600_000, sightings: 5 }),
        mark: None,
        protected: None,
        stood: None,
        expiration_s: None,
    }
}

/// A topic with ledgers 1 to 5 of ten messages and 100 bytes each, closed one a day until a day ago, and an open one, 6.
pub fn topic(cursors: &[(&str, CursorKind, i64, i64)]) -> LedgerCandidate {
    let closed = |id: i64| LedgerInfo {
        id,
        entries: Some(10),
        bytes: Some(100),
        closed_ms: NOW - (6 - id) * DAY,
        offload: None,
    };
    let open = LedgerInfo { id: 6, entries: None, bytes: None, closed_ms: 0, offload: None };
    let cursor = |(name, kind, ledger, entry): &(&str, CursorKind, i64, i64)| Cursor {
        name: (*name).to_owned(),
        kind: *kind,
        mark_delete: Evidence::Present(Position { ledger: *ledger, entry: *entry }),
        lower_bound: false,
        modified_ms: NOW - 40 * DAY,
        last_active_ms: NOW - 40 * DAY,
        detail: None,
    };
    LedgerCandidate {
        subject: "persistent://t/n/x".to_owned(),
        class: TopicClass::User,
        seen: seen(3),
        partition: Partition::None,
        ledgers: Evidence::Present((1..=5).map(closed).chain([open]).collect()),
        last: LastLedger::Unknown { why: trimtab_events::NOT_READ.to_owned() },
        loaded: Loaded::Unknown { why: trimtab_events::NOT_READ.to_owned() },
        cursors: Evidence::Present(cursors.iter().map(cursor).collect()),
        terminated: false,
        shadow: false,
        policies: Evidence::Present(Policies {
            deleted: false,
            retention: Setting { value: Retention { minutes: 0, mib: 0 }, level: Level::Namespace },
            ttl_s: Setting { value: 0, level: Level::Namespace },
            offload_deletion_lag_ms: -1,
            subscription_expiration_minutes: None,
            topic_level_unknown: None,
        }),
    }
}

pub fn pulsar(topic: LedgerCandidate, subscribers: Vec<Subscriber>) -> SubscriberCandidate {
    SubscriberCandidate { subject: topic.subject.clone(), log: Log::Pulsar(Box::new(topic)), subscribers }
}

/// A Hedwig topic of these ranges (ledger, end) and subscribers at these positions, each with its bound.
pub fn hedwig(ranges: &[(i64, Option<i64>)], at: &[(i64, u64)], subscribers: Vec<Subscriber>) -> SubscriberCandidate {
    let range = |(ledger, end): &(i64, Option<i64>)| HedwigRange { ledger: *ledger, end: *end };
    let pointer =
        |(consumed, bound): &(i64, u64)| HedwigPointer { consumed: Evidence::Present(*consumed), bound: *bound };
    SubscriberCandidate {
        subject: "hedwig://region/t".to_owned(),
        log: Log::Hedwig(HedwigTopic {
            seen: Evidence::Present(seen(2)),
            ranges: Evidence::Present(ranges.iter().map(range).collect()),
            hub: Evidence::Present(HedwigHub { address: "h:1:2".to_owned(), alive: true, since_ms: NOW - DAY }),
            pointers: at.iter().map(pointer).collect(),
            consume_interval: 50,
        }),
        subscribers,
    }
}

/// Three days of idleness, no grace.
pub fn rule() -> Rule {
    Rule { name: "idle".to_owned(), stale_after_s: Some(3 * 86_400), grace_s: Some(0), ..Rule::default() }
}

/// Decides, and checks every decision by the promises.
pub fn decided(log: &SubscriberCandidate, rules: Vec<Rule>) -> Vec<Decision> {
    let policy = Policy::new(PolicyConfig { rules, ..PolicyConfig::default() }, "test").unwrap();
    let context = Context { scan: ScanRef { id: uuid::Uuid::nil(), fence: 0 }, target: "a", now_ms: NOW };
    let decisions = decide_subscribers(log, &policy, &context);
    assert!([log.subscribers.len(), log.subscribers.len() + 1].contains(&decisions.len()));
    assert_eq!(decisions, decide_subscribers(log, &policy, &context), "the same input gives the same answer");
    for decision in &decisions {
        check_subscriber(decision, log, NOW).unwrap_or_else(|e| panic!("{e}: {decision:#?}"));
    }
    decisions
}

/// The verdicts by name.
pub fn verdicts(log: &SubscriberCandidate, rules: Vec<Rule>) -> Vec<&'static str> {
    decided(log, rules).iter().map(|decision| decision.verdict.name()).collect()
}

/// What the first reason of a subscriber's decision says.
pub fn says(log: &SubscriberCandidate, rules: Vec<Rule>, index: usize) -> String {
    let decisions = decided(log, rules);
    decisions[index].reasons.iter().map(|r| format!("{}: {}", r.rule, r.says)).collect::<Vec<_>>().join("\n")
}

/// A consumer that stands at `floor`, was sent everything up to there, and has `pending` messages before it.
pub fn consumer(floor: u64, pending: u64) -> JetStreamConsumer {
    JetStreamConsumer {
        created_ns: (NOW - 90 * DAY) * 1_000_000,
        floor,
        delivered: floor,
        pending,
        ack_pending: 0,
        waiting: 0,
        push_bound: false,
        paused_until_ms: None,
        inactive_threshold_ms: None,
        deliver: DeliverPolicy::All,
        filters: Vec::new(),
        last_active_ms: None,
        keep: None,
    }
}

/// An interest stream of 1,000 messages of 100 bytes, none of which is gone, and these consumers, idle for so many days.
pub fn stream(consumers: Vec<(&str, JetStreamConsumer, i64)>) -> SubscriberCandidate {
    let subscribers = consumers.iter().map(|(name, _, days)| subscriber(name, days * DAY)).collect();
    SubscriberCandidate {
        subject: "jetstream://acme/ORDERS".to_owned(),
        log: Log::JetStream(JetStreamStream {
            created_ns: (NOW - 100 * DAY) * 1_000_000,
            read_ms: NOW,
            retention: StreamRetention::Interest,
            owner: StreamOwner::User,
            keep: None,
            first: 1,
            last: 1_000,
            messages: 1_000,
            bytes: 100_000,
            sealed: false,
            deny_purge: false,
            mirror: false,
            sources: 0,
            can_reset: true,
            consumers: consumers.into_iter().map(|(_, consumer, _)| Evidence::Present(consumer)).collect(),
            rest: Vec::new(),
            largest: 1_000,
            aged: None,
            until: None,
        }),
        subscribers,
    }
}
