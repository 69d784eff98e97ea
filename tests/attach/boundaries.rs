//! Where an acknowledgement ends, and what it is that moves.

use std::collections::BTreeSet;
use std::sync::Arc;

use trimtab_events::{Position, Seen};
use trimtab_targets::pulsar::subscriptions::{CREATED_BY, Consume, Delete, Outcome, Skip, Trim};
use trimtab_targets::pulsar::wire::{AckType, SubType};
use trimtab_tests::java::{JavaClient, word};
use trimtab_tests::pulsar::PulsarRig;

use crate::ground::{At, Ground, Hook, done, name, online, permit, skipped};

/// The transaction that last wrote a node.
fn written(java: &mut JavaClient, path: &str) -> String {
    let stat = java.run(&format!("stat {}", word(path))).unwrap();
    stat.split_whitespace().find(|field| field.starts_with("mzxid=")).unwrap_or("none").to_owned()
}

fn mark_delete(ground: &Ground, topic: &str, subscription: &str) -> Position {
    ground.cursor(topic, subscription).unwrap().info.mark_delete
}

pub(crate) fn ends_and_identity(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "n");
    exactly(&ground);
    no_such_entry(&ground);
    not_the_same(&ground);
    created_by_the_attach(&ground);
    protected(&ground);
}

pub(crate) fn names_runs_and_deletions(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "p");
    names_and_partitions(&ground);
    acknowledged_one_by_one(&ground);
    loaded_topics(&ground);
    deleted(&ground);
}

pub(crate) fn batches_chunks_and_transactions(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "b");
    let mut java = rig.client().unwrap();
    batches(&ground, &mut java);
    chunks(&ground);
    transactions(&ground, &mut java);
    the_neighbours_stay_closed(&ground, &mut java);
}

fn exactly(ground: &Ground) {
    // To the end of a ledger, into the middle of one, to the very last message, and twice.
    for (number, messages, up_to) in [(0, 35, 19), (1, 35, 24), (2, 35, 34), (3, 35, 0), (4, 1, 0)] {
        let topic = format!("acme/n/exact-{number}");
        let entries = ground.topic(&topic, "s", messages);
        assert_eq!(entries.len(), messages);
        let before = ground.ledgers(&topic);
        let subscriber = ground.subscriber(&topic, "s");
        assert!(!subscriber.loaded);
        let freed: BTreeSet<i64> = entries[..=up_to].iter().map(|p| p.ledger).collect();
        let kept: BTreeSet<i64> = entries[up_to + 1..].iter().map(|p| p.ledger).collect();
        let freed: Vec<i64> = freed.difference(&kept).copied().collect();
        let job = Consume { subscriber, up_to: entries[up_to], trim: Trim::These(freed.clone()) };
        let acted = done(ground.runtime.block_on(ground.subscriptions.consume(&job, &Hook::none(), &permit())));
        assert_eq!((acted.up_to, acted.now), (Some(entries[up_to]), Some(entries[up_to])));
        assert_eq!(acted.before.resume_at, Some(entries[0]));
        assert_eq!(acted.node.as_ref().map(|node| node.info.mark_delete), Some(entries[up_to]), "{acted:?}");
        assert!(acted.unloaded && !acted.pending && acted.notes.is_empty(), "{acted:?}");
        assert!(!ground.loaded(&topic));
        let left = ground.ledgers(&topic);
        assert!(freed.iter().all(|id| before.contains(id) && !left.contains(id)), "{freed:?} of {before:?}, {left:?}");
        assert!(kept.iter().all(|id| left.contains(id)));
        println!("attached for {:?}", acted.attached);
        // Again: there already, from the metadata alone.
        let hook = Hook::none();
        let again = skipped(ground.consume_watched(&topic, "s", entries[up_to], &hook));
        assert_eq!((again, hook.reached(At::Ask)), (Skip::Already(entries[up_to]), false));
        assert_eq!(ground.rest.owed(&topic, "s"), &entries[up_to + 1..]);
    }
}

fn no_such_entry(ground: &Ground) {
    let topic = "acme/n/nowhere";
    let entries = ground.topic(topic, "s", 15);
    let begin = mark_delete(ground, topic, "s");
    let (first, last) = (entries[0].ledger, entries[14].ledger);
    // Behind the end of a closed ledger, of the last one, in a ledger that is not the topic's, in one that will be.
    for (ledger, entry) in [(first, 10), (last, 5), (last + 1000, 0), (first, -1), (first, i64::MAX)] {
        let skip = skipped(ground.consume(topic, "s", Position { ledger, entry }));
        let before_it = Position { ledger, entry } <= begin;
        assert!(
            matches!(skip, Skip::NoSuchEntry(_) if !before_it) || matches!(skip, Skip::Already(_) if before_it),
            "{skip:?}"
        );
    }
    assert_eq!(ground.rest.owed(topic, "s"), entries);
    // A topic that somebody writes: what its open ledger holds only the broker can say.
    let topic = "acme/n/written";
    let mut entries = ground.topic(topic, "s", 3);
    let mut producer = ground.rest.producer(topic);
    entries.push(producer.send());
    let beyond = Position { entry: entries[3].entry + 1, ..entries[3] };
    assert!(matches!(skipped(ground.consume(topic, "s", beyond)), Skip::NoSuchEntry(_)));
    let acted = done(ground.consume(topic, "s", entries[3]));
    assert!(!acted.unloaded && acted.pending, "{acted:?}");
    assert_eq!(acted.now, Some(entries[3]));
    let next = producer.send();
    assert_eq!(ground.rest.owed(topic, "s"), [next]);
}

fn not_the_same(ground: &Ground) {
    let topic = "acme/n/same";
    let entries = ground.topic(topic, "s", 15);
    let consume = |subscription: &str, cursor: Seen| {
        let mut subscriber = ground.subscriber(topic, "s");
        subscriber.subscription = subscription.to_owned();
        subscriber.cursor = cursor;
        let job = Consume { subscriber, up_to: entries[9], trim: Trim::Nothing };
        skipped(ground.runtime.block_on(ground.subscriptions.consume(&job, &Hook::none(), &permit())))
    };
    let seen = ground.cursor(topic, "s").unwrap().seen;
    assert_eq!(consume("t", seen), Skip::Gone);
    assert_eq!(consume("s", Seen { created_zxid: seen.created_zxid - 1, ..seen }), Skip::MadeAnew);
    let (then, now) = (seen.version - 1, seen.version);
    assert_eq!(consume("s", Seen { version: then, ..seen }), Skip::Written(then, now));
    assert_eq!(ground.cursor(topic, "s").unwrap().seen, seen, "nothing was written");
    assert!(!ground.loaded(topic), "nobody was asked");
    assert!(ground.cursor(topic, "t").is_none());
    assert_eq!(ground.rest.owed(topic, "s"), entries);
}

/// What a subscribe creates when the subscription went away at the last moment.
fn created_by_the_attach(ground: &Ground) {
    let topic = "acme/keep/vanishes";
    let entries = ground.topic(topic, "s", 15);
    let rest = ground.rest.clone();
    let hook = Hook::before(At::Attach, move || rest.unsubscribe(topic, "s"));
    assert_eq!(skipped(ground.consume_watched(topic, "s", entries[9], &hook)), Skip::CreatedAndRemoved);
    assert!(ground.cursor(topic, "s").is_none(), "it is gone again");
    assert_eq!(ground.rest.stats(topic)["subscriptions"], serde_json::json!({}));

    // Somebody else has made one of that name: theirs is left alone, wherever it is.
    let topic = "acme/keep/made-anew";
    let entries = ground.topic(topic, "s", 15);
    let rest = ground.rest.clone();
    let hook = Hook::before(At::Attach, move || {
        rest.unsubscribe(topic, "s");
        rest.subscribe(topic, "s");
    });
    assert_eq!(skipped(ground.consume_watched(topic, "s", entries[9], &hook)), Skip::MadeAnew);
    assert_eq!(ground.rest.owed(topic, "s"), entries);

    // Before a broker is asked: it says so, and nothing is made.
    let topic = "acme/keep/unsubscribed";
    let entries = ground.topic(topic, "s", 15);
    let rest = ground.rest.clone();
    let hook = Hook::before(At::Ask, move || rest.unsubscribe(topic, "s"));
    assert_eq!(skipped(ground.consume_watched(topic, "s", entries[9], &hook)), Skip::Gone);
    assert!(!hook.reached(At::Attach) && ground.cursor(topic, "s").is_none());

    // The topic itself goes: it is not made again.
    let topic = "acme/n/deleted";
    let entries = ground.topic(topic, "s", 15);
    let rest = ground.rest.clone();
    let hook = Hook::before(At::Attach, move || {
        rest.call("DELETE", "admin/v2/persistent/acme/n/deleted?force=true", None);
    });
    assert_eq!(skipped(ground.consume_watched(topic, "s", entries[9], &hook)), Skip::Gone);
    assert!(ground.runtime.block_on(ground.inventory.list(&name(topic))).unwrap().is_none());

    // An existing subscription never gets the property that says whose it is.
    let topic = "acme/n/existing";
    let entries = ground.topic(topic, "s", 15);
    done(ground.consume(topic, "s", entries[9]));
    let properties = ground.cursor(topic, "s").unwrap().info.cursor_properties;
    assert!(!properties.iter().any(|(key, _)| key == CREATED_BY), "{properties:?}");
}

fn protected(ground: &Ground) {
    let topic = "acme/n/protected";
    let entries = ground.topic(topic, "s", 15);
    let attempt = |topic: &str, subscription: &str| {
        let mut subscriber = ground.subscriber("acme/n/protected", "s");
        subscriber.topic = name(topic);
        subscriber.subscription = subscription.to_owned();
        let job = Consume { subscriber: subscriber.clone(), up_to: entries[9], trim: Trim::Nothing };
        let consumed = skipped(ground.runtime.block_on(ground.subscriptions.consume(&job, &Hook::none(), &permit())));
        let job = Delete { subscriber, trim: Trim::Nothing };
        let deleted = skipped(ground.runtime.block_on(ground.subscriptions.delete(&job, &Hook::none(), &permit())));
        assert!(matches!((&consumed, &deleted), (Skip::Protected(_), Skip::Protected(_))), "{consumed:?} {deleted:?}");
    };
    for cursor in
        ["__compaction", "pulsar.dedup", "pulsar.repl.west", "__pending_ack_state", "transaction.subscription"]
    {
        attempt(topic, cursor);
    }
    for topic in ["acme/n/__change_events", "pulsar/system/t", "acme/n/x__transaction_pending_ack"] {
        attempt(topic, "s");
    }
    // One that is kept in step with other clusters.
    ground.rest.subscribe(topic, "r");
    let path = "admin/v2/persistent/acme/n/protected/subscription/r/replicatedSubscriptionStatus";
    ground.rest.call("POST", path, Some("true"));
    ground.rest.unload(topic);
    assert!(ground.cursor(topic, "r").unwrap().info.replicated());
    let skip = skipped(ground.consume(topic, "r", entries[9]));
    assert!(matches!(skip, Skip::Protected(_)), "{skip:?}");
}

fn names_and_partitions(ground: &Ground) {
    for (topic, subscription) in
        [("acme/p/a b+c", "a/b ü#?"), ("acme/p/per%25cent ü", "%2F"), ("acme/p/trimtab:", "trimtab:x")]
    {
        let entries = ground.topic(topic, subscription, 12);
        let acted = done(ground.consume(topic, subscription, entries[4]));
        assert_eq!(acted.now, Some(entries[4]), "{topic} {subscription}");
        assert_eq!(ground.rest.owed(topic, subscription), &entries[5..]);
    }
    // Each partition has its own positions.
    ground.rest.call("PUT", "admin/v2/persistent/acme/p/parts/partitions", Some("2"));
    let parts = ["acme/p/parts-partition-0", "acme/p/parts-partition-1"];
    let entries = parts.map(|part| {
        ground.rest.subscribe(part, "s");
        ground.produce(part, 12)
    });
    for part in parts {
        ground.rest.unload(part);
    }
    let acted = done(ground.consume(parts[1], "s", entries[1][9]));
    assert_eq!(acted.node.map(|node| node.info.mark_delete), Some(entries[1][9]));
    assert_eq!(ground.rest.owed(parts[0], "s"), entries[0]);
    assert_eq!(ground.rest.owed(parts[1], "s"), &entries[1][10..]);
}

fn acknowledged_one_by_one(ground: &Ground) {
    let topic = "acme/p/holes";
    let entries = ground.topic(topic, "s", 25);
    let mut consumer = ground.rest.consumer(topic, "s", SubType::Shared).unwrap();
    assert_eq!(consumer.receive(), entries);
    let one_by_one = [entries[5], entries[6], entries[12], entries[13], entries[20]];
    consumer.acknowledge(AckType::Individual, &one_by_one);
    consumer.close();
    ground.rest.unload(topic);
    let info = ground.cursor(topic, "s").unwrap().info;
    let holes: Vec<(Position, Position)> = info.holes.iter().map(|hole| (hole.after, hole.last)).collect();
    let begin = Position { entry: -1, ..entries[20] };
    assert_eq!(holes, [(entries[4], entries[6]), (entries[11], entries[13]), (begin, entries[20])]);
    // The position moves on over what follows and is acknowledged already; it does not touch what is not.
    let acted = done(ground.consume(topic, "s", entries[11]));
    assert_eq!((acted.up_to, acted.now), (Some(entries[11]), Some(entries[13])));
    let left: Vec<Position> = entries[14..].iter().copied().filter(|p| *p != entries[20]).collect();
    assert_eq!(ground.rest.owed(topic, "s"), left);
}

/// An entry is a batch: all of it, or nothing.
fn batches(ground: &Ground, java: &mut JavaClient) {
    let topic = "acme/b/batches";
    ground.topic(topic, "s", 0);
    java.run(&format!("produce persistent://{topic} 30 20 batch=5")).unwrap();
    ground.rest.unload(topic);
    let (list, last) = ground.runtime.block_on(ground.inventory.list(&name(topic))).unwrap().unwrap();
    let row = trimtab_targets::pulsar::Row::new(&list.ledgers, &last);
    let first = row.after(Position { ledger: -1, entry: -1 }).unwrap();
    let second = row.after(first).unwrap();
    done(ground.consume(topic, "s", second));
    let drained = java.run(&format!("drain persistent://{topic} s")).unwrap();
    let left: Vec<u32> = drained.split_whitespace().map(|number| number.parse().unwrap()).collect();
    // Five messages an entry, or fewer where the client was slow: what is left is whole entries from the third on.
    assert_eq!(left, (30 - u32::try_from(left.len()).unwrap()..30).collect::<Vec<_>>());
    assert!(!left.is_empty() && left.len() < 30, "{left:?}");
}

/// A message in several entries: all of it, or nothing.
fn chunks(ground: &Ground) {
    let topic = "acme/b/chunks";
    ground.topic(topic, "s", 0);
    let mut producer = ground.rest.producer(topic);
    let plain: Vec<Position> = (0..3).map(|_| producer.send()).collect();
    let mut between = Vec::new();
    let chunks = producer.send_chunks("one", 4, |producer| between.push(producer.send()));
    let after = producer.send();
    drop(producer);
    ground.rest.unload(topic);
    // The end lies on a chunk, or on a message between two: before the first chunk. On the last chunk: there.
    for (up_to, end) in [(chunks[1], plain[2]), (between[0], plain[2]), (between[2], plain[2]), (chunks[0], plain[2])] {
        let subscription = format!("s-{}-{}", up_to.ledger, up_to.entry);
        ground.rest.subscribe(topic, &subscription);
        ground.rest.unload(topic);
        let acted = done(ground.consume(topic, &subscription, up_to));
        assert_eq!((acted.up_to, acted.now), (Some(end), Some(end)), "{up_to}");
        assert!(acted.notes.iter().any(|note| note.contains("chunks")), "{acted:?}");
    }
    let acted = done(ground.consume(topic, "s", chunks[3]));
    assert_eq!((acted.up_to, acted.now, acted.notes.len()), (Some(chunks[3]), Some(chunks[3]), 0));
    assert_eq!(ground.rest.owed(topic, "s"), [after]);
    // Nothing before it that could be acknowledged.
    let topic = "acme/b/all-chunks";
    ground.topic(topic, "s", 0);
    let mut producer = ground.rest.producer(topic);
    let chunks = producer.send_chunks("two", 3, |_| {});
    drop(producer);
    ground.rest.unload(topic);
    let skip = skipped(ground.consume(topic, "s", chunks[1]));
    assert!(matches!(skip, Skip::NoSuchEntry(_)), "{skip:?}");
    assert_eq!(ground.rest.owed(topic, "s"), chunks);
}

fn transactions(ground: &Ground, java: &mut JavaClient) {
    // Messages of an open transaction cannot be delivered yet, so they are not acknowledged either, nor what lies behind them.
    let topic = "acme/b/open-txn";
    let before = ground.topic(topic, "s", 5);
    java.run(&format!("txn-produce persistent://{topic} 3 open")).unwrap();
    let after = ground.produce(topic, 8);
    let skip = skipped(ground.consume(topic, "s", after[0]));
    assert!(matches!(&skip, Skip::NoSuchEntry(why) if why.contains("delivered now")), "{skip:?}");
    let acted = done(ground.consume(topic, "s", before[4]));
    assert_eq!(acted.now, Some(before[4]));
    ground.rest.unload(topic);

    // One that is over leaves a marker at the end of the ledger, which nobody is owed.
    let topic = "acme/b/aborted-txn";
    let before = ground.topic(topic, "s", 5);
    java.run(&format!("txn-produce persistent://{topic} 2 abort")).unwrap();
    ground.rest.unload(topic);
    let (list, last) = ground.runtime.block_on(ground.inventory.list(&name(topic))).unwrap().unwrap();
    let row = trimtab_targets::pulsar::Row::new(&list.ledgers, &last);
    let mut end = before[4];
    while let Some(next) = row.after(end).filter(|next| row.place(*next) == trimtab_targets::pulsar::Place::Entry) {
        end = next;
    }
    assert!(end > before[4]);
    let acted = done(ground.consume(topic, "s", end));
    assert_eq!(acted.now, Some(end));
    let next = ground.produce(topic, 1);
    assert_eq!(ground.rest.owed(topic, "s"), next);

    // Acknowledged in a transaction that is still open: passed over, and the transaction can end either way.
    for (topic, how) in [("acme/b/ack-commit", "commit"), ("acme/b/ack-abort", "abort")] {
        let entries = ground.topic(topic, "s", 15);
        java.run(&format!("txn-ack persistent://{topic} s 3 {how}")).unwrap();
        java.run(&format!("txn-ack persistent://{topic} s 2 open")).unwrap();
        let acted = done(ground.consume(topic, "s", entries[9]));
        assert_eq!(acted.now, Some(entries[9]), "{how}: {acted:?}");
        let owed = ground.rest.owed(topic, "s");
        assert_eq!(owed, &entries[10..], "{how}");
    }
}

/// With the default load manager, a look-up that makes a broker take a bundle loads every topic of it.
fn the_neighbours_stay_closed(ground: &Ground, java: &mut JavaClient) {
    let topics: Vec<String> = (0..8).map(|i| format!("acme/b/neighbour-{i}")).collect();
    let entries: Vec<Vec<Position>> = topics.iter().map(|topic| ground.topic(topic, "s", 15)).collect();
    ground.rest.call("PUT", "admin/v2/namespaces/acme/b/unload", None);
    let before: Vec<String> = topics.iter().map(|topic| written(java, &name(topic).path())).collect();
    done(ground.consume(&topics[0], "s", entries[0][9]));
    for (topic, before) in topics.iter().zip(&before).skip(1) {
        assert_eq!(&written(java, &name(topic).path()), before, "{topic} was loaded");
    }
}

/// A topic that others use is not closed, and its cursor's node shows it later.
fn loaded_topics(ground: &Ground) {
    let topic = "acme/p/loaded";
    let entries = ground.topic(topic, "s", 35);
    let producer = ground.rest.producer(topic);
    let mut other = {
        ground.rest.subscribe(topic, "other");
        ground.rest.consumer(topic, "other", SubType::Shared).unwrap()
    };
    let subscriber = ground.subscriber(topic, "s");
    assert!(subscriber.loaded);
    let job = Consume { subscriber, up_to: entries[19], trim: Trim::Nothing };
    let acted = done(ground.runtime.block_on(ground.subscriptions.consume(&job, &Hook::none(), &permit())));
    assert!(acted.pending && !acted.unloaded && acted.now == Some(entries[19]), "{acted:?}");
    assert!(!other.is_closed() && !producer.is_closed());
    assert_eq!(other.receive(), entries);
    drop((producer, other));
    ground.rest.unload(topic);
    assert_eq!(mark_delete(ground, topic, "s"), entries[19]);
    assert_eq!(ground.rest.owed(topic, "s"), &entries[20..]);
}

fn deleted(ground: &Ground) {
    let topic = "acme/p/deletion";
    let entries = ground.topic(topic, "s", 35);
    ground.rest.subscribe(topic, "kept");
    let mut consumer = ground.rest.consumer(topic, "kept", SubType::Exclusive).unwrap();
    consumer.acknowledge(AckType::Cumulative, &[entries[24]]);
    // The first one after a load makes the broker write the cursor's node anew.
    ground.rest.stored(topic);
    let delete = |hook: &Hook<'_>, subscription: &str, ledgers: Vec<i64>| {
        let job = Delete { subscriber: ground.subscriber(topic, subscription), trim: Trim::These(ledgers) };
        ground.runtime.block_on(ground.subscriptions.delete(&job, hook, &permit()))
    };
    // Never by force.
    let refused = online(delete(&Hook::none(), "kept", Vec::new()));
    assert_eq!(refused.who[0].consumer_name, "a test's");
    assert!(!consumer.is_closed());
    consumer.close();
    ground.rest.unload(topic);
    let freed: BTreeSet<i64> = entries[..20].iter().map(|p| p.ledger).collect();
    let acted = done(delete(&Hook::none(), "s", freed.iter().copied().collect()));
    assert!(ground.cursor(topic, "s").is_none() && acted.unloaded && !acted.pending, "{acted:?}");
    assert!(!ground.ledgers(topic).iter().any(|id| freed.contains(id)));
    assert_eq!(ground.rest.owed(topic, "kept"), &entries[25..]);
    // Deleted and made anew at the last moment: that one is left.
    ground.rest.unload(topic);
    let rest = ground.rest.clone();
    let hook = Hook::before(At::Attach, move || {
        rest.unsubscribe(topic, "kept");
        rest.subscribe(topic, "kept");
    });
    assert!(matches!(delete(&hook, "kept", Vec::new()), Ok(Outcome::Skipped(Skip::MadeAnew))));
    assert!(ground.cursor(topic, "kept").is_some());
}
