//! Somebody is connected, or comes back, at each moment of an act.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use trimtab_targets::Class;
use trimtab_targets::pulsar::subscriptions::{Consume, Outcome, Skip, Trim};
use trimtab_targets::pulsar::wire::{AckType, SubType};
use trimtab_tests::pulsar::PulsarRig;

use crate::client::Client;
use crate::ground::{At, Ground, Hook, done, online, permit, skipped};

const KINDS: [SubType; 4] = [SubType::Exclusive, SubType::Shared, SubType::Failover, SubType::KeyShared];

pub(crate) fn connected_or_back(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "o");
    connected(&ground);
    comes_back_before_the_attach(&ground);
    comes_and_goes_before_the_attach(&ground);
    does_not_answer(&ground);
    the_topic_is_closed_meanwhile(&ground);
    another_of_us(&ground);
}

pub(crate) fn back_while_attached(rig: &Arc<PulsarRig>) {
    comes_back_while_attached(&Ground::at(rig, "w"));
}

fn connected(ground: &Ground) {
    for kind in KINDS {
        let topic = format!("acme/o/connected-{kind:?}");
        let entries = ground.topic(&topic, "s", 15);
        // As it was when the topic was not loaded: nothing in the metadata shows that somebody has connected since.
        let subscriber = ground.subscriber(&topic, "s");
        let mut consumer = ground.rest.consumer(&topic, "s", kind).unwrap();
        let hook = Hook::none();
        let job = Consume { subscriber, up_to: entries[9], trim: Trim::Nothing };
        let refused = online(ground.runtime.block_on(ground.subscriptions.consume(&job, &hook, &permit())));
        assert_eq!(refused.who.len(), 1, "{refused:?}");
        assert_eq!(refused.who[0].consumer_name, "a test's");
        assert!(!hook.reached(At::Attach) && !consumer.is_closed());
        assert_eq!(consumer.receive(), entries, "{kind:?}");
    }
}

/// After the owner was asked, and before the attach.
fn comes_back_before_the_attach(ground: &Ground) {
    for kind in KINDS {
        let topic = format!("acme/o/before-{kind:?}");
        let entries = ground.topic(&topic, "s", 15);
        let back: Arc<Mutex<Option<Client>>> = Arc::default();
        let (rest, kept, its) = (ground.rest.clone(), back.clone(), topic.clone());
        let hook = Hook::before(At::Attach, move || {
            *kept.lock().unwrap() = Some(rest.consumer(&its, "s", kind).unwrap());
        });
        let refused = online(ground.consume_watched(&topic, "s", entries[9], &hook));
        assert!(refused.how.contains("refuses to attach"), "{refused:?}");
        assert!(!hook.reached(At::Act));
        let mut consumer = back.lock().unwrap().take().unwrap();
        assert!(!consumer.is_closed());
        assert_eq!(consumer.receive(), entries, "{kind:?}");
    }
}

/// And has left again when we attach: it took something, so it is alive.
fn comes_and_goes_before_the_attach(ground: &Ground) {
    let topic = "acme/o/visits";
    let entries = ground.topic(topic, "s", 15);
    let (rest, had) = (ground.rest.clone(), entries[0]);
    let hook = Hook::before(At::Attach, move || {
        let mut consumer = rest.consumer(topic, "s", SubType::Exclusive).unwrap();
        assert_eq!(consumer.receive().first(), Some(&had));
        consumer.acknowledge(AckType::Individual, &[had]);
        consumer.close();
    });
    assert_eq!(skipped(ground.consume_watched(topic, "s", entries[9], &hook)), Skip::Moved(entries[0]));
    assert!(!hook.reached(At::Act));
    assert_eq!(ground.rest.owed(topic, "s"), &entries[1..]);
}

/// Between the attach and the acknowledgement it is refused. When it is exclusive the broker probes us, and that is noticed.
fn comes_back_while_attached(ground: &Ground) {
    for kind in KINDS {
        for at in [At::Act, At::Detach] {
            let topic = format!("acme/w/while-{kind:?}-{at:?}");
            let entries = ground.topic(&topic, "s", 15);
            let (rest, its) = (ground.rest.clone(), topic.clone());
            let said: Arc<Mutex<Option<String>>> = Arc::default();
            let heard = said.clone();
            let hook = Hook::before(at, move || *heard.lock().unwrap() = rest.consumer(&its, "s", kind).err());
            let outcome = ground.consume_watched(&topic, "s", entries[9], &hook);
            let said = said.lock().unwrap().take().expect("it was refused");
            let left = match (at, kind) {
                (At::Act, SubType::Exclusive) => {
                    let refused = online(outcome);
                    assert!(refused.how.contains("wants to connect"), "{refused:?}");
                    &entries[..]
                }
                _ => {
                    assert_eq!(done(outcome).now, Some(entries[9]));
                    &entries[10..]
                }
            };
            assert!(said.contains("already connected") || said.contains("different type"), "{said}");
            // It tries again, as clients do, and gets everything that was not decided on.
            let mut consumer = ground.rest.consumer(&topic, "s", kind).unwrap();
            assert_eq!(consumer.receive(), left, "{kind:?} at {at:?}");
        }
    }
}

/// An exclusive consumer that does not answer loses its place to the next exclusive one, after 5 s. Not to us.
fn does_not_answer(ground: &Ground) {
    // Known to the topic's statistics: no attach is tried.
    let topic = "acme/o/frozen";
    let entries = ground.topic(topic, "s", 15);
    let consumer = ground.rest.consumer(topic, "s", SubType::Exclusive).unwrap();
    consumer.freeze();
    let refused = online(ground.consume(topic, "s", entries[9]));
    assert_eq!(refused.who.len(), 1);
    assert!(!consumer.is_closed(), "it keeps its place");
    drop(consumer);

    // Connected and frozen only after the statistics were read: its place is lost to us, and nothing is acknowledged.
    let topic = "acme/o/freezes";
    let entries = ground.topic(topic, "s", 15);
    let back: Arc<Mutex<Option<Client>>> = Arc::default();
    let (rest, kept) = (ground.rest.clone(), back.clone());
    let hook = Hook::before(At::Attach, move || {
        let consumer = rest.consumer(topic, "s", SubType::Exclusive).unwrap();
        consumer.freeze();
        *kept.lock().unwrap() = Some(consumer);
    });
    let since = Instant::now();
    let given_up = ground.consume_watched(topic, "s", entries[9], &hook).unwrap_err();
    assert_eq!(given_up.class(), Class::Transient);
    assert!(given_up.why.contains("may have waited for a consumer"), "{given_up}");
    assert!(since.elapsed().as_secs() >= 3 && !hook.reached(At::Act));
    assert!(back.lock().unwrap().as_ref().unwrap().is_closed());
    assert_eq!(ground.rest.owed(topic, "s"), entries);
}

/// The attachment is gone, and so is what would have been acknowledged on it.
fn the_topic_is_closed_meanwhile(ground: &Ground) {
    for (topic, whole) in [("acme/o/closed", false), ("acme/o/bundle", true)] {
        let entries = ground.topic(topic, "s", 15);
        let rest = ground.rest.clone();
        let hook = Hook::before(At::Act, move || match whole {
            true => drop(rest.call("PUT", "admin/v2/namespaces/acme/o/unload", None)),
            false => rest.unload(topic),
        });
        let lost = ground.consume_watched(topic, "s", entries[9], &hook).unwrap_err();
        assert!(lost.class() == Class::Transient && lost.why.contains("nothing was sent"), "{lost}");
        assert_eq!(ground.rest.owed(topic, "s"), entries);
        ground.rest.unload(topic);
        // The next attempt succeeds.
        assert_eq!(done(ground.consume(topic, "s", entries[9])).now, Some(entries[9]));
    }
}

/// Another instance is no sign of life.
fn another_of_us(ground: &Ground) {
    let topic = "acme/o/both";
    let entries = ground.topic(topic, "s", 15);
    let job = Consume { subscriber: ground.subscriber(topic, "s"), up_to: entries[9], trim: Trim::Nothing };
    let second: Arc<Mutex<Option<String>>> = Arc::default();
    let (subscriptions, runtime, heard) =
        (ground.subscriptions.clone(), ground.runtime.handle().clone(), second.clone());
    let its = job.clone();
    let hook = Hook::before(At::Act, move || {
        let outcome = runtime.block_on(subscriptions.consume(&its, &Hook::none(), &permit()));
        *heard.lock().unwrap() = outcome.err().map(|e| e.to_string());
    });
    let first = ground.runtime.block_on(ground.subscriptions.consume(&job, &hook, &permit()));
    let said = second.lock().unwrap().take().expect("an error");
    assert!(said.contains("another trimtab"), "{said}");
    // The second one has closed the topic behind the first one's back, or not: either way nothing but this was acknowledged.
    match first {
        Ok(Outcome::Done(acted)) => assert_eq!(acted.now, Some(entries[9])),
        Err(e) => assert!(e.why.contains("nothing was sent"), "{e}"),
        other => panic!("{other:?}"),
    }
}
