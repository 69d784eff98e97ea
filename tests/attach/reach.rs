//! Finding the owner: redirects, tokens, TLS.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trimtab_targets::Class;
use trimtab_targets::pulsar::subscriptions::{Consume, Outcome, Trim};
use trimtab_targets::pulsar::wire::{SubType, TlsOptions};
use trimtab_targets::pulsar::{Binary, BinaryOptions};
use trimtab_tests::http;
use trimtab_tests::ports::Port;
use trimtab_tests::pulsar::{Part, PulsarRig, SUPERUSER};

use crate::ground::{At, Ground, Hook, acting, cluster, done, online, permit};

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn two_brokers_that_ask_for_tokens() {
    let builder = PulsarRig::builder().two_brokers().tokens();
    let mut rig = cluster(builder);
    let second = Arc::get_mut(&mut rig).unwrap().process(Part::Broker2).unwrap().pid();
    let second = Pid::from_raw(i32::try_from(second).unwrap()).unwrap();
    // Look-ups begin at the first broker, whoever owns the topic.
    let first = BinaryOptions { urls: vec![rig.service()], ..BinaryOptions::default() };
    let ground = Ground::of(&rig, "n", Some(SUPERUSER), first);
    let topics: Vec<String> = (0..12).map(|i| format!("acme/n/t{i}")).collect();
    let entries: Vec<_> = topics.iter().map(|topic| ground.topic(topic, "s", 15)).collect();
    let mut owners = [0, 0];
    for (topic, entries) in topics.iter().zip(&entries) {
        let acted = done(ground.consume(topic, "s", entries[9]));
        assert_eq!((acted.now, acted.unloaded), (Some(entries[9]), true), "{topic}: {acted:?}");
        owners[usize::from(ground.rest.owner(topic) == ground.rig.service2())] += 1;
        assert_eq!(ground.rest.owed(topic, "s"), &entries[10..]);
    }
    assert!(owners.iter().all(|n| *n > 0), "one broker owns everything, nothing was redirected: {owners:?}");

    // A broker that is not known gets no credentials.
    let elsewhere = topics.iter().find(|topic| ground.rest.owner(topic) == ground.rig.service2()).unwrap();
    let options = |token: Option<String>, hosts: Vec<String>| BinaryOptions {
        urls: vec![ground.rig.service()],
        allowed_hosts: hosts,
        token,
        ..BinaryOptions::default()
    };
    let owner = |options| {
        let binary = Binary::new(options).unwrap();
        ground.runtime.block_on(binary.owner(&format!("persistent://{elsewhere}"))).map(drop)
    };
    let token = Some(ground.rig.token(SUPERUSER).unwrap());
    let unknown = owner(options(token.clone(), Vec::new())).unwrap_err();
    assert!(unknown.class() == Class::Refused && unknown.why.contains("allowed_hosts"), "{unknown}");
    let host = ground.rig.service2().strip_prefix("pulsar://").unwrap().to_owned();
    owner(options(token, vec![host])).unwrap();

    // Without a token, with a false one, and as a role without rights.
    for token in [None, Some("false".to_owned())] {
        let refused = owner(options(token, Vec::new())).unwrap_err();
        assert!(refused.class() == Class::Refused && refused.why.contains("token"), "{refused}");
    }
    let nobody = ground.rig.token("nobody").unwrap();
    let (_, theirs) = acting(&ground.runtime, &ground.rig, Some(nobody.clone()), options(Some(nobody), Vec::new()));
    let subscriber = ground.subscriber(&topics[0], "s");
    let job = Consume { subscriber, up_to: entries[0][14], trim: Trim::Nothing };
    let refused = ground.runtime.block_on(theirs.consume(&job, &Hook::none(), &permit())).unwrap_err();
    assert_eq!(refused.class(), Class::Refused, "{refused}");
    assert_eq!(ground.rest.owed(&topics[0], "s"), &entries[0][10..]);
    a_broker_dies(&ground, second);
}

/// The broker dies while we are attached: once before the acknowledgement, once after it was answered.
fn a_broker_dies(ground: &Ground, second: Pid) {
    let theirs = |topic: &str| ground.rest.owner(topic) == ground.rig.service2();
    let mut topics = (0..40).map(|i| format!("acme/n/dies-{i}"));
    let mut next = || {
        let topic = topics.find(|topic| theirs(topic));
        let topic = topic.expect("the second broker takes no topic");
        let entries = ground.topic(&topic, "s", 15);
        assert!(theirs(&topic));
        (topic, entries)
    };
    let ((before, unread), (after, read)) = (next(), next());
    let (ready, is_ready) = channel();
    let (killed, is_killed) = channel();
    let (lost, answered) = std::thread::scope(|scope| {
        let (topic, entries) = (&after, &read);
        let answered = scope.spawn(move || {
            let hook = Hook::before(At::Detach, move || {
                ready.send(()).unwrap();
                is_killed.recv().unwrap();
            });
            ground.consume_watched(topic, "s", entries[9], &hook)
        });
        let hook = Hook::before(At::Act, move || {
            is_ready.recv().unwrap();
            kill_process(second, Signal::KILL).unwrap();
            killed.send(()).unwrap();
        });
        (ground.consume_watched(&before, "s", unread[9], &hook), answered.join().unwrap())
    });
    // What comes of it is not claimed to be known.
    for told in [&lost, &answered] {
        match told {
            Ok(Outcome::Done(acted)) => assert!(acted.pending && !acted.notes.is_empty(), "{acted:?}"),
            Err(e) => assert_eq!(e.class(), Class::Transient, "{e}"),
            other => panic!("{other:?}"),
        }
    }
    // The other broker takes its topics once the session is over.
    for topic in [&before, &after] {
        let start = Instant::now();
        let url = format!("{}/lookup/v2/topic/persistent/{topic}", ground.rig.web());
        let served = || {
            let said = http::request("GET", &url, ground.rest.token.as_deref(), None).ok()?.ok().ok()?.json().ok()?;
            (said["brokerUrl"].as_str()? != ground.rig.service2()).then_some(())
        };
        while served().is_none() {
            assert!(start.elapsed() < Duration::from_secs(90), "nobody takes {topic}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    // A broker that has just taken a topic may be slow to deliver. What comes at all was not acknowledged.
    let owed = |topic: &str| {
        let start = Instant::now();
        loop {
            let owed = ground.rest.owed(topic, "s");
            if !owed.is_empty() || start.elapsed() > Duration::from_secs(60) {
                return owed;
            }
        }
    };
    // Nothing was acknowledged that was not decided on, and the next attempt does it.
    assert_eq!(owed(&before), unread);
    assert_eq!(done(ground.consume(&before, "s", unread[9])).now, Some(unread[9]));
    assert_eq!(owed(&before), &unread[10..]);
    let owed = owed(&after);
    assert!(owed == read[10..] || owed == read, "{owed:?} after {answered:?}");
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn a_broker_by_tls() {
    let port = Port::take().unwrap();
    let builder = PulsarRig::builder().tokens().tls().setting("brokerServicePortTls", &port.number().to_string());
    let url = format!("pulsar+ssl://{}", port.address());
    let rig = cluster(builder);
    let binary = BinaryOptions {
        urls: vec![url.clone()],
        certificates: TlsOptions { ca_pem: Some(std::fs::read(rig.ca()).unwrap()), identity_pem: None },
        ..BinaryOptions::default()
    };
    let ground = Ground::of(&rig, "n", Some(SUPERUSER), binary);
    let topic = "acme/n/t";
    let entries = ground.topic(topic, "s", 15);
    assert_eq!(done(ground.consume(topic, "s", entries[4])).now, Some(entries[4]));
    let consumer = ground.rest.consumer(topic, "s", SubType::Exclusive).unwrap();
    online(ground.consume(topic, "s", entries[9]));
    drop(consumer);

    // Of the registered brokers' addresses, those by TLS.
    let token = Some(ground.rig.token(SUPERUSER).unwrap());
    let certificates = TlsOptions { ca_pem: Some(std::fs::read(ground.rig.ca()).unwrap()), identity_pem: None };
    let registered = BinaryOptions { tls: true, token: token.clone(), certificates, ..BinaryOptions::default() };
    let consume = |options: BinaryOptions, up_to| {
        let (_, subscriptions) = acting(&ground.runtime, &ground.rig, token.clone(), options);
        ground.rest.unload(topic);
        let job = Consume { subscriber: ground.subscriber(topic, "s"), up_to, trim: Trim::Nothing };
        ground.runtime.block_on(subscriptions.consume(&job, &Hook::none(), &permit()))
    };
    assert!(matches!(consume(registered, entries[5]), Ok(Outcome::Done(_))));

    // A broker whose certificate nobody vouches for gets no token.
    let stranger = BinaryOptions { urls: vec![url.clone()], token: token.clone(), ..BinaryOptions::default() };
    let refused = consume(stranger, entries[6]).unwrap_err();
    assert!(refused.why.contains("TLS"), "{refused}");
    // Plain where TLS is expected, and the other way round.
    let plain = url.replace("pulsar+ssl", "pulsar");
    let garbage = BinaryOptions { urls: vec![plain], token: token.clone(), ..BinaryOptions::default() };
    assert_eq!(consume(garbage, entries[6]).unwrap_err().class(), Class::Transient);
    assert_eq!(ground.rest.owed(topic, "s"), &entries[6..]);
    let _ = Arc::new(port);
}
