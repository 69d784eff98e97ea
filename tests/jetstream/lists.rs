//! What is read: thousands of consumers in pages that move, servers that restart between scans, several accounts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use trimtab_events::{Candidate, Scope, SubscriberCandidate};
use trimtab_policy::Action;
use trimtab_targets::{Inventory, Reads};
use trimtab_tests::nats::NatsRig;

use crate::ground::{
    Ground, account, acknowledged, api, client, consumer, decide, inventory, publish, scan, state_of, stream_of,
};

/// Makes consumers that keep nothing on disk, many at a time.
async fn many(ground: &Ground, stream: &str, names: Vec<String>) {
    let made = names.iter().map(|name| consumer(&ground.client, stream, name, json!({ "mem_storage": true })));
    futures::stream::iter(made).buffer_unordered(64).collect::<Vec<()>>().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn ten_thousand_consumers_are_all_seen_while_others_come_and_go() {
    let ground = Ground::new().await;
    ground.stream("T", json!({ "max_consumers": 12_000, "storage": "memory" })).await;
    let stable: Vec<String> = (0..10_000).map(|index| format!("stable-{index:05}")).collect();
    many(&ground, "T", stable.clone()).await;
    ground.publish("t.a", 3).await;
    let begun = Instant::now();
    let mut log = ground.observe("T").await;
    println!("10,000 consumers in {:?}", begun.elapsed());
    let names = |log: &SubscriberCandidate| -> Vec<String> { log.subscribers.iter().map(|s| s.name.clone()).collect() };
    assert_eq!(names(&log), stable, "in order, each once");
    // Consumers are told of messages a moment after those are stored.
    let told = |log: &SubscriberCandidate| {
        stream_of(log).consumers.iter().all(|state| state.present().is_some_and(|state| state.pending == 3))
    };
    while !told(&log) {
        assert!(begun.elapsed() < Duration::from_secs(60), "some were not told");
        log = ground.observe("T").await;
    }

    // Before, between and behind them others come and go, so pages move in both directions while they are read.
    let stop = Arc::new(AtomicBool::new(false));
    let mut churning = Vec::new();
    for place in ["a", "stable-02500x", "stable-07777x", "z"] {
        let (client, stop) = (ground.client.clone(), stop.clone());
        churning.push(tokio::spawn(async move {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let names: Vec<String> = (0..40).map(|index| format!("{place}-{index}")).collect();
                for name in &names {
                    consumer(&client, "T", name, json!({ "mem_storage": true })).await;
                }
                for name in &names {
                    api(&client, &format!("CONSUMER.DELETE.T.{name}"), Value::Null).await;
                }
                rounds += 1;
            }
            rounds
        }));
    }
    for round in 0..3 {
        let log = ground.observe("T").await;
        let names: Vec<&str> = log.subscribers.iter().map(|subscriber| subscriber.name.as_str()).collect();
        let once: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(once.len(), names.len(), "round {round}: somebody is listed twice");
        let missing: Vec<&String> = stable.iter().filter(|name| !once.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "round {round}: {missing:?} were there all the time");
    }
    stop.store(true, Ordering::Relaxed);
    for churned in churning {
        assert!(churned.await.unwrap() > 0);
    }
}

/// What a restart forgets is unknown afterwards and never idle, and what it keeps is the same progress as before.
pub(crate) async fn a_restart_forgets_when_a_consumer_was_last_used_and_nothing_else() {
    let mut ground = Ground::new().await;
    ground.stream("R", json!({})).await;
    for (name, config) in [
        ("never", json!({})),
        ("some", json!({})),
        ("hand", json!({ "ack_wait": 600_000_000_000_u64 })),
        ("new", json!({ "deliver_policy": "new" })),
        ("bysubject", json!({ "deliver_policy": "last_per_subject", "filter_subject": "r.>" })),
        ("push", json!({ "deliver_subject": "nobody.listens" })),
    ] {
        ground.consumer("R", name, config).await;
    }
    ground.publish("r.a", 50).await;
    ground.drain("R", "some", 20).await;
    let hand = ground.reader("R", "hand").await;
    hand.ask(5).await;
    ground.says("R", "hand", "num_ack_pending", 5).await;
    drop(hand);
    let before = ground.observe("R").await;
    assert!(state_of(&before, "some").last_active_ms.is_some());
    assert_eq!(state_of(&before, "hand").ack_pending, 5);
    assert_eq!(state_of(&before, "never").last_active_ms, None);
    for gracefully in [true, false] {
        ground = tokio::task::spawn_blocking(move || {
            match gracefully {
                true => ground.rig.restart(0).unwrap(),
                false => {
                    ground.rig.kill9(0).unwrap();
                    ground.rig.start(0).unwrap();
                }
            }
            ground
        })
        .await
        .unwrap();
        let after = ground.observe("R").await;
        for (one, other) in before.subscribers.iter().zip(&after.subscribers) {
            assert_eq!(one.progress, other.progress, "{} after a restart (gracefully: {gracefully})", one.name);
            assert_eq!(state_of(&after, &other.name).last_active_ms, None);
            assert_eq!((other.stored_ms, other.alive_ms), (0, 0));
        }
        let idle = ground.idle("R", &[]).await;
        assert!(decide(&idle, Action::Delete).iter().any(|decision| decision.verdict.acts()), "history still counts");
    }
    // And whoever takes something afterwards has another progress.
    assert_eq!(ground.drain("R", "never", 1).await, [1]);
    let moved = ground.observe("R").await;
    let progress = |log: &trimtab_events::SubscriberCandidate, name: &str| {
        log.subscribers.iter().find(|subscriber| subscriber.name == name).unwrap().progress.clone()
    };
    assert_ne!(progress(&moved, "never"), progress(&before, "never"));
    assert_eq!(progress(&moved, "some"), progress(&before, "some"));
}

/// Publishing, limits that cut the beginning off, and our own hold are no progress; what somebody changes about a consumer is.
pub(crate) async fn progress_is_what_the_consumer_does() {
    let ground = Ground::new().await;
    ground.stream("G", json!({ "max_msgs": 30 })).await;
    ground.consumer("G", "old", json!({})).await;
    ground.publish("g.a", 20).await;
    let progress = async || ground.observe("G").await.subscribers[0].progress.clone();
    let before = progress().await;
    ground.publish("g.a", 50).await;
    assert_eq!(ground.held("G").await.2, 41, "the limit has cut the beginning off");
    assert_eq!(progress().await, before);
    ground.api("CONSUMER.PAUSE.G.old", json!({ "pause_until": "2100-01-01T00:00:00Z" })).await;
    assert_eq!(progress().await, before);
    ground.api("CONSUMER.PAUSE.G.old", json!({})).await;
    assert_eq!(progress().await, before);
    ground.consumer("G", "old", json!({ "description": "mine" })).await;
    assert_ne!(progress().await, before);
    let before = progress().await;
    // Delivered and never acknowledged: somebody is there, and fails.
    let reader = ground.reader("G", "old").await;
    reader.ask(3).await;
    ground.says("G", "old", "num_ack_pending", 3).await;
    assert_ne!(progress().await, before);
    let before = progress().await;
    // Acknowledged out of order: where it stands stays the same, and still somebody is there.
    let (mut reader, mut last) = (reader, None);
    for _ in 0..3 {
        last = reader.message().await;
    }
    acknowledged(&ground.client, last.unwrap()).await;
    assert_eq!(state_of(&ground.observe("G").await, "old").floor, 0);
    assert_ne!(progress().await, before);
}

const ACCOUNTS: &str = r#"
accounts {
  ONE { jetstream: enabled, users: [{ user: one, password: one }] }
  TWO { jetstream: enabled, users: [{ user: two, password: two }] }
}
"#;

pub(crate) async fn accounts_are_kept_apart_by_name() {
    let rig = tokio::task::spawn_blocking(|| NatsRig::builder().extra_config(ACCOUNTS).start().unwrap()).await.unwrap();
    for user in ["one", "two"] {
        let client = client(&rig, Some(user)).await;
        let made = api(
            &client,
            "STREAM.CREATE.ORDERS",
            json!({
                "name": "ORDERS", "subjects": ["orders.>"], "retention": "interest", "storage": "memory",
            }),
        )
        .await;
        assert!(made["error"].is_null(), "{made}");
        consumer(&client, "ORDERS", &format!("of-{user}"), json!({})).await;
        publish(&client, "orders.a", 3).await;
    }
    // The servers' name for one, a name of ours for the other.
    let accounts = vec![
        account(&rig.url(), Some("second"), Some("two")).await.unwrap(),
        account(&rig.url(), None, Some("one")).await.unwrap(),
    ];
    let inventory = inventory(accounts);
    let found = scan(&inventory).await;
    let named: Vec<(&str, &str)> =
        found.iter().map(|log| (log.subject.as_str(), log.subscribers[0].name.as_str())).collect();
    assert_eq!(named, [("jetstream://ONE/ORDERS", "of-one"), ("jetstream://second/ORDERS", "of-two")]);
    assert_eq!(inventory.identity().await.unwrap(), "jetstream single server, ONE, second");

    let shards = async |scope: Scope| inventory.shards(&scope).await.map_err(|e| e.to_string());
    let all = ["ONE/ORDERS", "second/ORDERS"];
    assert_eq!(shards(Scope::default()).await.unwrap(), all);
    assert_eq!(shards(Scope { tenant: Some("ONE".into()), ..Scope::default() }).await.unwrap(), all[..1]);
    assert_eq!(shards(Scope { namespace: Some("second/ORDERS".into()), ..Scope::default() }).await.unwrap(), all[1..]);
    let topic = Some("jetstream://second/ORDERS".into());
    assert_eq!(shards(Scope { topic, ..Scope::default() }).await.unwrap(), all[1..]);
    assert_eq!(shards(Scope { exclude: vec!["second/*".into()], ..Scope::default() }).await.unwrap(), all[..1]);
    assert!(
        shards(Scope { topic: Some("ORDERS".into()), ..Scope::default() })
            .await
            .unwrap_err()
            .contains("account/stream")
    );
    // What is not there is not there, and what cannot be anybody's is refused.
    assert!(inventory.observe("jetstream://ONE/NONE").await.unwrap().is_none());
    assert!(
        inventory
            .observe("jetstream://three/ORDERS")
            .await
            .unwrap_err()
            .to_string()
            .contains("not in the configuration")
    );
    assert!(inventory.observe("jetstream://ONE/a.b").await.is_err());
    // A stream that goes away between the list and the read is no error.
    let scope = Scope::default();
    let items: Vec<_> = inventory.scan("ONE/NONE", &scope, &|_| Reads::default()).try_collect().await.unwrap();
    assert!(items.is_empty());
    let subject = "jetstream://ONE/ORDERS?subscription=of-one";
    assert!(matches!(inventory.observe(subject).await.unwrap(), Some(Candidate::Subscriber(_))));
}
