//! Consumers of every kind that nobody came back for, each holding an interest stream by itself.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use serde_json::{Value, json};
use trimtab_events::{Candidate, Decision, StreamOwner, StreamRetention, SubscriberClass, Verdict};
use trimtab_policy::{Action, Rule};
use trimtab_targets::jetstream::{JetStreamInventory, Moment};
use trimtab_targets::{Act, Inventory, Pace};

use crate::ground::{
    Ground, PATIENCE, QUICK, Taken, account, at, by, decide, permit, seconds, state_of, stream_of, until,
};

/// Name, configuration, and how it is made to let go.
fn kinds() -> Vec<(&'static str, Value, Verdict)> {
    let push = json!({ "deliver_subject": "nobody.listens" });
    vec![
        ("all", json!({}), Verdict::Consume),
        ("ackall", json!({ "ack_policy": "all" }), Verdict::Consume),
        ("acknone", json!({ "ack_policy": "none" }), Verdict::Consume),
        ("bystart", json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": 1 }), Verdict::Consume),
        (
            "bytime",
            json!({ "deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z" }),
            Verdict::Consume,
        ),
        ("filtered", json!({ "filter_subject": "k.*" }), Verdict::Consume),
        ("several", json!({ "filter_subjects": ["k.a", "k.b"] }), Verdict::Consume),
        ("push", push.clone(), Verdict::Consume),
        ("group", json!({ "deliver_subject": "nobody.listens", "deliver_group": "workers" }), Verdict::Consume),
        ("memory", json!({ "mem_storage": true }), Verdict::Consume),
        ("new", json!({ "deliver_policy": "new" }), Verdict::Purge),
        ("last", json!({ "deliver_policy": "last" }), Verdict::Purge),
        ("bysubject", json!({ "deliver_policy": "last_per_subject", "filter_subject": "k.a" }), Verdict::Purge),
    ]
}

pub(crate) async fn whatever_holds_a_stream_lets_go_and_goes_on_behind() {
    let ground = Ground::new().await;
    let cases = kinds().into_iter().flat_map(|(kind, config, verdict)| {
        [Action::Reclaim, Action::Delete].map(|action| (kind, config.clone(), verdict, action))
    });
    futures::future::join_all(cases.map(async |(kind, config, verdict, action)| {
        let stream = format!("K{}{}", kind.to_uppercase(), if action == Action::Delete { "D" } else { "" });
        ground.stream(&stream, json!({ "subjects": [format!("{stream}.>")] })).await;
        let config: Value = serde_json::from_str(&config.to_string().replace("\"k.", &format!("\"{stream}."))).unwrap();
        ground.consumer(&stream, "active", json!({})).await;
        ground.consumer(&stream, "old", config).await;
        let subject = format!("{stream}.a");
        ground.publish(&subject, 100).await;
        assert_eq!(ground.drain(&stream, "active", 100).await.len(), 100, "{kind}");
        assert_eq!(ground.held(&stream).await.0, 100, "{kind}: nothing goes while it holds all of it");
        let bytes = ground.held(&stream).await.1;

        let (decision, seen) = ground.decided(&stream, "old", &["active"], action).await;
        let expected = if action == Action::Delete { Verdict::DeleteSubscription } else { verdict };
        assert_eq!(decision.verdict, expected, "{kind}: {:?}", decision.reasons);
        assert_eq!(decision.bytes.unsigned_abs(), bytes, "{kind}");
        let seen = Candidate::Subscriber(Box::new(seen));
        let effect = ground.acting(QUICK).act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
        assert_eq!(effect.skipped, None, "{kind}");
        assert_eq!(effect.freed_bytes.map(i64::unsigned_abs), Some(bytes), "{kind}: {effect:?}");
        assert_eq!(ground.held(&stream).await.0, 0, "{kind}");
        let after = ground.observe(&stream).await;
        if action == Action::Delete {
            assert!(after.subscribers.iter().all(|subscriber| subscriber.name != "old"), "{kind}");
            return;
        }
        assert_eq!(state_of(&after, "old").floor, 100, "{kind}");
        assert!(state_of(&after, "old").paused_until_ms.is_none(), "{kind}: let go");
        assert_eq!(effect.left_at, after.position("old"), "{kind}");

        // It is there, and goes on behind what was given up; the other one has lost nothing.
        ground.publish(&subject, 5).await;
        assert_eq!(ground.owed(&stream, "active", 5).await, [101, 102, 103, 104, 105], "{kind}");
        if ["push", "group", "acknone"].contains(&kind) {
            // Nobody listens, or nothing would be confirmed.
            assert_eq!(state_of(&ground.observe(&stream).await, "old").pending, 5, "{kind}");
        } else {
            assert_eq!(ground.owed(&stream, "old", 5).await, [101, 102, 103, 104, 105], "{kind}");
        }
    }))
    .await;
}

/// A slow one that is alive keeps what it has not taken, whatever is moved, deleted or purged.
pub(crate) async fn whoever_is_alive_keeps_what_it_has_not_taken() {
    let ground = Ground::new().await;
    futures::future::join_all(kinds().into_iter().map(async |(kind, config, verdict)| {
        let stream = format!("S{}", kind.to_uppercase());
        ground.stream(&stream, json!({ "subjects": [format!("{stream}.>")] })).await;
        let config: Value = serde_json::from_str(&config.to_string().replace("\"k.", &format!("\"{stream}."))).unwrap();
        ground.consumer(&stream, "slow", json!({})).await;
        ground.consumer(&stream, "old", config).await;
        let subject = format!("{stream}.a");
        ground.publish(&subject, 100).await;
        assert_eq!(ground.drain(&stream, "slow", 60).await.len(), 60);
        let effect = ground.act(&ground.acting(QUICK), &stream, "old", &["slow"], Action::Reclaim).await.unwrap();
        assert_eq!(effect.skipped, None, "{kind}");
        assert_eq!(ground.held(&stream).await.0, 40, "{kind} {verdict}");
        assert_eq!(ground.owed(&stream, "slow", 40).await, (61..=100).collect::<Vec<u64>>(), "{kind}");
    }))
    .await;
}

pub(crate) async fn an_end_beyond_the_streams_is_never_reset_to() {
    let ground = Ground::new().await;
    ground.stream("E", json!({})).await;
    ground.consumer("E", "old", json!({})).await;
    ground.publish("e.a", 100).await;
    let (mut decision, seen) = ground.decided("E", "old", &[], Action::Reclaim).await;
    // What no rule says. The server would take it, and the consumer would miss the next 899 messages.
    decision.consume.as_mut().unwrap().to.entry = 1_000;
    let seen = Candidate::Subscriber(Box::new(seen));
    let effect = ground.acting(QUICK).act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
    assert_eq!(effect.aim.map(|at| at.entry), Some(100), "{effect:?}");
    ground.publish("e.a", 3).await;
    assert_eq!(ground.owed("E", "old", 3).await, [101, 102, 103]);
}

/// What its servers take away by themselves, what somebody labelled, paused, or made for a stream: each is seen for what it is.
pub(crate) async fn what_is_to_be_left_alone_is_seen_for_what_it_is() {
    let ground = Ground::new().await;
    ground.stream("L", json!({})).await;
    let configs = [
        ("threshold", json!({ "inactive_threshold": seconds(3_600) })),
        ("labelled", json!({ "metadata": { "trimtab.keep": "billing" } })),
        ("paused", json!({ "pause_until": "2100-01-01T00:00:00Z" })),
        ("bound", json!({ "deliver_subject": "somebody.listens" })),
        ("waiting", json!({})),
        ("old", json!({})),
    ];
    for (name, config) in configs {
        ground.consumer("L", name, config).await;
    }
    let _listens = ground.client.subscribe("somebody.listens").await.unwrap();
    ground.publish("l.a", 10).await;
    // Nothing more for it comes, so its pull goes on waiting.
    assert_eq!(ground.drain("L", "waiting", 10).await.len(), 10);
    let waits = ground.reader("L", "waiting").await;
    waits.ask(1).await;
    ground.says("L", "waiting", "num_waiting", 1).await;
    ground.says("L", "bound", "push_bound", true).await;
    let log = ground.idle("L", &[]).await;
    let said: Vec<(String, String)> = decide(&log, Action::Reclaim)
        .iter()
        .map(|decision| (decision.verdict.name().to_owned(), decision.reasons[0].rule.to_string()))
        .collect();
    let said: Vec<(&str, &str, &str)> = log
        .subscribers
        .iter()
        .zip(&said)
        .map(|(subscriber, (verdict, rule))| (subscriber.name.as_str(), verdict.as_str(), rule.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            ("bound", "keep", "online"),
            ("labelled", "keep", "protected"),
            // Each of them holds it all.
            ("old", "blocked", "pinned-by-other"),
            ("paused", "keep", "paused"),
            ("threshold", "keep", "inactive-threshold"),
            ("waiting", "nothing", "caught-up"),
        ]
    );
}

/// Mirrors and sources read by consumers that are not listed, or that somebody made for them; and streams that are nobody's to clean.
pub(crate) async fn consumers_of_mirrors_and_sources_and_streams_of_the_servers_are_never_taken_for_stale() {
    let ground = Ground::new().await;
    ground.stream("ORIGIN", json!({ "retention": "limits" })).await;
    ground.stream("LIMITED", json!({ "subjects": [], "retention": "limits", "mirror": { "name": "ORIGIN" } })).await;
    ground
        .stream("GATHERED", json!({ "subjects": [], "retention": "limits", "sources": [{ "name": "ORIGIN" }] }))
        .await;
    ground.stream("QUEUE", json!({ "retention": "workqueue" })).await;
    ground.consumer("QUEUE", "old", json!({})).await;
    ground.publish("queue.a", 10).await;
    ground.publish("origin.a", 10).await;
    let store = async_nats::jetstream::new(ground.client.clone());
    let bucket = async_nats::jetstream::kv::Config { bucket: "B".into(), ..Default::default() };
    store.create_key_value(bucket).await.unwrap();
    // A consumer that somebody made for a stream elsewhere to read by.
    let durable = json!({
        "ack_policy": "flow_control", "deliver_subject": "deliver.elsewhere", "flow_control": true,
        "idle_heartbeat": seconds(1), "ack_wait": 0,
    });
    ground.consumer("ORIGIN", "forElsewhere", durable).await;
    // Of an interest stream they read by consumers that are listed and hold it.
    ground.stream("FEED", json!({})).await;
    ground.stream("COPY", json!({ "subjects": [], "retention": "limits", "mirror": { "name": "FEED" } })).await;
    ground.stream("PART", json!({ "subjects": [], "retention": "limits", "sources": [{ "name": "FEED" }] })).await;
    ground.consumer("FEED", "old", json!({})).await;
    until!("both read it", ground.observe("FEED").await.subscribers.len() == 3);
    ground.publish("feed.a", 10).await;
    for copy in ["LIMITED", "GATHERED", "COPY", "PART"] {
        until!("it is copied", ground.held(copy).await.0 == 10);
    }
    let classes: Vec<SubscriberClass> = ground.observe("FEED").await.subscribers.iter().map(|s| s.class).collect();
    assert_eq!(classes, [SubscriberClass::System, SubscriberClass::System, SubscriberClass::User]);
    // Even where they were seen to do nothing for days.
    for action in [Action::Reclaim, Action::Delete] {
        for decision in decide(&ground.idle("FEED", &["old"]).await, action) {
            assert!(!decision.verdict.acts(), "{decision:?}");
        }
    }
    let found = ground.scan().await;
    let of = |name: &str| found.iter().find(|log| log.subject.ends_with(&format!("/{name}"))).unwrap();
    assert!(stream_of(of("LIMITED")).mirror && stream_of(of("GATHERED")).sources == 1);
    let names: Vec<&str> = of("ORIGIN").subscribers.iter().map(|subscriber| subscriber.name.as_str()).collect();
    assert_eq!(names, ["forElsewhere"], "those that servers make themselves are not listed");
    assert_eq!(of("ORIGIN").subscribers[0].class, SubscriberClass::System);
    assert_eq!(stream_of(of("KV_B")).owner, StreamOwner::System);
    assert_eq!(stream_of(of("QUEUE")).retention, StreamRetention::WorkQueue);
    for stream in ["ORIGIN", "LIMITED", "GATHERED", "QUEUE", "KV_B"] {
        let log = ground.idle(stream, &[]).await;
        assert!(decide(&log, Action::Delete).iter().all(|decision| !decision.verdict.acts()), "{stream}");
    }
}

/// Two executors at once: one acts, the other one sees that, and neither takes it for a sign of life.
pub(crate) async fn of_two_that_act_at_once_one_acts() {
    let ground = Ground::new().await;
    ground.stream("T", json!({})).await;
    ground.consumer("T", "old", json!({})).await;
    ground.publish("t.a", 100).await;
    let (decision, seen) = ground.decided("T", "old", &[], Action::Reclaim).await;
    let seen = Candidate::Subscriber(Box::new(seen));
    let (record, permit) = (Taken::default(), permit());
    let (other, same, second) = (ground.acting(QUICK), (decision.clone(), seen.clone()), Arc::new(Mutex::new(None)));
    let told = second.clone();
    let one = at(ground.acting(QUICK), Moment::Held, move || {
        async move {
            let effect = other.act(&same.0, &same.1, &Taken::default(), &crate::ground::permit()).await.unwrap();
            *told.lock().unwrap() = effect.skipped;
        }
        .boxed()
    });
    let first = one.act(&decision, &seen, &record, &permit).await.unwrap();
    assert_eq!(first.skipped, None);
    let why = second.lock().unwrap().take().unwrap();
    assert!(why.rule == "paused" && !why.alive, "{why:?}");
    assert_eq!(ground.held("T").await.0, 0);
    assert!(!ground.info("T", "old").await["paused"].as_bool().unwrap_or(false));
}

/// Old messages of a limits stream and of an interest stream go, up to where the slowest one is.
pub(crate) async fn old_messages_go_below_whoever_has_not_taken_them() {
    let ground = Ground::new().await;
    let streams = [("OLDL", "limits"), ("OLDI", "interest")];
    futures::future::join_all(streams.map(async |(stream, retention)| {
        ground.stream(stream, json!({ "retention": retention })).await;
        for consumer in ["slow", "fast"] {
            ground.consumer(stream, consumer, json!({})).await;
        }
        let subject = format!("{}.a", stream.to_lowercase());
        ground.publish(&subject, 60).await;
        let old = grown_old().await;
        tokio::time::sleep(LATE).await;
        ground.publish(&subject, 40).await;
        ground.drain(stream, "fast", 100).await;
        ground.drain(stream, "slow", 20).await;
        for (taken, first) in [(0, 21), (50, 61)] {
            if taken > 0 {
                ground.drain(stream, "slow", taken).await;
            }
            let (decision, seen) = aging(&ground, stream, old, &|rule| rule).await;
            if retention == "interest" {
                // What everybody has taken is gone already.
                assert!(!decision.verdict.acts(), "{:?}", decision.reasons);
                continue;
            }
            // A size keeps so much, and so does a longer time.
            let large = Rule { retention_bytes: Some(1 << 30), ..Rule::default() };
            let long = Rule { retention_s: Some(3_600), ..Rule::default() };
            for keeps in [large, long] {
                let kept = &|rule: Rule| Rule {
                    retention_bytes: keeps.retention_bytes,
                    retention_s: keeps.retention_s,
                    ..rule
                };
                let (decision, _) = aging(&ground, stream, old, kept).await;
                assert!(!decision.verdict.acts(), "{:?}", decision.reasons);
            }
            assert_eq!(decision.verdict, Verdict::Purge, "{:?}", decision.reasons);
            let effect = ground.acting(QUICK).act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
            assert_eq!(effect.skipped, None);
            assert_eq!(ground.held(stream).await.2, first, "{stream}");
            let after = ground.observe(stream).await;
            assert_eq!(after.position(""), effect.aim, "it begins behind what was decided");
        }
        assert_eq!(ground.owed(stream, "slow", 30).await, (71..=100).collect::<Vec<u64>>(), "{stream}");
    }))
    .await;
    // Nobody reads it at all: only its age counts.
    ground.stream("OLDN", json!({ "retention": "limits" })).await;
    ground.publish("oldn.a", 30).await;
    let (decision, seen) = aging(&ground, "OLDN", grown_old().await, &|rule| rule).await;
    let effect = ground.acting(QUICK).act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
    assert_eq!((effect.skipped, ground.held("OLDN").await.0), (None, 0));
    // Somebody who wants them all comes between the decision and the act.
    ground.publish("oldn.a", 30).await;
    let (decision, seen) = aging(&ground, "OLDN", grown_old().await, &|rule| rule).await;
    ground.consumer("OLDN", "late", json!({})).await;
    let effect = ground.acting(QUICK).act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
    assert_eq!(effect.skipped.map(|why| why.rule), Some("changed"));
    assert_eq!(ground.owed("OLDN", "late", 30).await.len(), 30);
}

/// How much later than what was old at a moment something is that is young at that moment.
const LATE: Duration = Duration::from_millis(1_500);

/// The moment by which what was published before is old: rules say ages in whole seconds.
async fn grown_old() -> Instant {
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    Instant::now()
}

/// The decision about a stream whose messages may go that were old at a moment.
async fn aging(
    ground: &Ground,
    stream: &str,
    old: Instant,
    more: &(dyn Fn(Rule) -> Rule + Sync),
) -> (Decision, Candidate) {
    let account = account(&ground.rig.url(), None, None).await.unwrap();
    let pace = Arc::new(Pace::new(0.0).unwrap());
    let subject = format!("jetstream://$G/{stream}");
    let begun = Instant::now();
    loop {
        let age_s = i64::try_from(old.elapsed().as_secs()).unwrap() + 1;
        let inventory = JetStreamInventory::new(vec![account.clone()], pace.clone()).unwrap();
        let inventory = inventory.with_ages(Arc::new(move |_| Some(age_s)));
        let seen = inventory.observe(&subject).await.unwrap().unwrap();
        // Otherwise what is young was taken for old, since it took so long to ask.
        if old.elapsed() < Duration::from_secs(age_s.unsigned_abs()) + LATE {
            let rule = Rule { ttl_s: Some(age_s), overrides: true, allow_unguarded: true, ..Rule::default() };
            let decision = by(&seen, more(rule)).into_iter().find(|decision| decision.subject == subject).unwrap();
            return (decision, seen);
        }
        assert!(begun.elapsed() < PATIENCE);
    }
}
