//! Hubs that die, freeze, restart and give topics up, before, in the middle of and after an act.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trimtab_targets::Class;
use trimtab_targets::hedwig::wire::{self, Incoming, op};
use trimtab_targets::hedwig::{ActOptions, HubOptions, Outcome};
use trimtab_tests::frame_proxy::Fate;
use trimtab_tests::hedwig::{Hands, HedwigRig, Part, TOPICS};

use super::region::{Ours, Watched, quick, request, settings};

const SOON: Duration = Duration::from_secs(60);

/// The hub that a topic's node names.
fn owner(rig: &HedwigRig, hands: &mut Hands, topic: &str) -> Part {
    let node = hands.run(&format!("get {TOPICS}/{topic}/hub")).unwrap();
    let text = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, node).unwrap();
    let text = String::from_utf8(text).unwrap();
    let is = |part| text.contains(&rig.hub(part));
    [Part::Hub1, Part::Hub2].into_iter().find(|part| is(*part)).unwrap_or_else(|| panic!("{text}"))
}

/// A topic with 110 messages that `hub` owns, and an idle subscriber.
fn topic_at(rig: &HedwigRig, hands: &mut Hands, name: &str, hub: Part) -> String {
    for number in 0..40 {
        let topic = format!("{name}{number}");
        hands.prepare(&topic, &["idle"]).unwrap();
        hands.run(&format!("publish {topic} 1")).unwrap();
        if owner(rig, hands, &topic) == hub {
            hands.run(&format!("publish {topic} 109")).unwrap();
            return topic;
        }
    }
    panic!("hub {hub:?} takes no topic");
}

/// Acts until something comes of it that is not the hubs' trouble.
async fn until_settled(ours: &Ours, topic: &str) -> Outcome {
    let start = Instant::now();
    loop {
        let tried = ours.try_consume(topic, "idle", None).await;
        match &tried {
            Ok((Outcome::Settling | Outcome::Lost(_), _)) => {}
            Ok((outcome, _)) => return outcome.clone(),
            Err(e) => assert_eq!(e.class(), Class::Transient, "{e}"),
        }
        assert!(start.elapsed() < SOON, "{topic} does not settle: {tried:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Hedwig"]
async fn hubs_that_freeze_die_and_give_topics_up() {
    let rig = HedwigRig::builder().start().unwrap();
    let mut hands = rig.hands().unwrap();
    let [online, idle, frozen, asked, dying] =
        ["on", "off", "frozen", "asked", "dying"].map(|name| topic_at(&rig, &mut hands, name, Part::Hub2));
    let [answer, third] = ["answer", "third"].map(|name| topic_at(&rig, &mut hands, name, Part::Hub1));
    let quiet = "quiet";
    hands.prepare(quiet, &["idle"]).unwrap();
    hands.run("publish quiet 40").unwrap();
    let watched = Watched::hubs(&rig);
    let hasty = HubOptions {
        hold: Duration::from_millis(1500),
        attach_timeout: Duration::from_millis(1500),
        ..watched.options.clone()
    };
    let hasty =
        Ours::with(&rig, settings(), hasty, ActOptions { shown_within: Duration::from_millis(500), ..quick() }).await;
    let ours = Ours::with(&rig, settings(), watched.options.clone(), quick()).await;
    let patient = ActOptions { settle: Duration::from_secs(10), ..quick() };
    let patient = Ours::with(&rig, settings(), watched.options.clone(), patient).await;
    let rig = Arc::new(Mutex::new(rig));
    let freeze = |hub| {
        let rig = rig.clone();
        move || {
            rig.lock().unwrap().process(hub).unwrap().freeze().unwrap();
            Fate::Pass
        }
    };
    let thaw = |hub| rig.lock().unwrap().process(hub).unwrap().thaw().unwrap();

    // A slow hub has the CONSUME in its hands, and goes on later: not known now, and the metadata shows it in the end.
    watched.at(op::CONSUME, freeze(Part::Hub2));
    let (outcome, _) = hasty.consume(&frozen, "idle", None).await;
    assert!(matches!(&outcome, Outcome::Uncertain(why) if why.contains("did not answer the close")), "{outcome:?}");
    assert_eq!(hands.show(&frozen).unwrap().subscribers["idle"].1, 0);
    thaw(Part::Hub2);
    watched.unset();
    let shown = hands.wait_for(&frozen, SOON, |shown| shown.subscribers["idle"].1 > 0).unwrap();
    assert_eq!(shown.subscribers["idle"].0, 100);
    // It is frozen when it is asked: an answer is not waited for for ever.
    watched.at(op::SUBSCRIBE, freeze(Part::Hub2));
    let error = hasty.try_consume(&asked, "idle", None).await.unwrap_err();
    assert!(error.class() == Class::Transient && error.why.contains("no answer within"), "{error}");
    thaw(Part::Hub2);
    watched.unset();
    assert_eq!(hands.show(&asked).unwrap().subscribers["idle"].1, 0);

    // It dies before it gets the CONSUME: nothing has happened, and nobody says otherwise.
    hands.run(&format!("online busy {online} idle")).unwrap();
    hands.heard("busy", SOON, |heard| heard.contains("last=110")).unwrap();
    assert!(matches!(ours.consume(&online, "idle", None).await.0, Outcome::Online(_)));
    let shared = rig.clone();
    watched.at(op::CONSUME, move || {
        shared.lock().unwrap().kill9(Part::Hub2).unwrap();
        Fate::Close
    });
    let (outcome, _) = ours.consume(&dying, "idle", None).await;
    assert!(matches!(&outcome, Outcome::Uncertain(why) if why.contains("its node has not changed")), "{outcome:?}");
    assert_eq!(hands.show(&dying).unwrap().subscribers["idle"].1, 0);
    watched.unset();
    // D4: whoever was online there comes back, by himself, before anything is done: with what clients wait for in this rig, 2 s, and the
    // sessions, 6 s, it is settled after ten seconds without a change.
    let (first, second, again) =
        tokio::join!(until_settled(&patient, &online), until_settled(&patient, &idle), until_settled(&ours, &dying));
    assert!(matches!(first, Outcome::Online(_)), "{first:?}");
    assert_eq!((second, again), (Outcome::Consumed, Outcome::Consumed));
    hands.run(&format!("publish {online} 3")).unwrap();
    // From its pointer, 0, on again, and what was published since.
    hands.heard("busy", SOON, |heard| heard.contains("last=113")).unwrap();
    assert_eq!(hands.show(&online).unwrap().subscribers["idle"].1, 0);
    assert_eq!(owner(&rig.lock().unwrap(), &mut hands, &idle), Part::Hub1);
    // What the acquisition closed came after the decision, and stays.
    let left = hands.wait_for(&idle, SOON, |shown| shown.ledgers.len() == 2).unwrap();
    assert_eq!(left.ledgers[0].1, Some(101));

    // It takes the CONSUME, and dies before it answers: the metadata shows it.
    let (shared, mut eyes, name) = (rig.clone(), rig.lock().unwrap().hands().unwrap(), answer.clone());
    watched.set(move |frame| {
        let closed =
            matches!(wire::incoming(&bytes::Bytes::copy_from_slice(frame.body)), Ok(Incoming::Answer { txn: 3, .. }));
        if frame.from_client || !closed {
            return Fate::Pass;
        }
        eyes.wait_for(&name, SOON, |shown| shown.subscribers["idle"].1 > 0).unwrap();
        shared.lock().unwrap().kill9(Part::Hub1).unwrap();
        Fate::Close
    });
    let (outcome, visit) = ours.consume(&answer, "idle", None).await;
    assert_eq!(outcome, Outcome::Consumed, "{visit:?}");
    assert!(visit.notes.iter().any(|note| note.contains("closed the connection")), "{visit:?}");
    watched.unset();

    // All hubs gone: nothing to go to, to be tried again.
    let start = Instant::now();
    let error = loop {
        match ours.try_consume(&third, "idle", None).await {
            Err(e) => break e,
            Ok((outcome, _)) => assert!(matches!(outcome, Outcome::Settling | Outcome::Lost(_)), "{outcome:?}"),
        }
        assert!(start.elapsed() < SOON);
    };
    assert_eq!(error.class(), Class::Transient, "{error}");
    assert_eq!(hands.show(&third).unwrap().subscribers["idle"].1, 0);
    // One is back, with nobody owning anything; and it keeps three topics only, giving one up whenever it takes a fourth.
    rig.lock().unwrap().set("max_num_topics", "3");
    rig.lock().unwrap().start(Part::Hub1).unwrap();
    // D6: no hub takes a topic, and makes a ledger, for nothing.
    let wait = Instant::now();
    while ours.topic(quiet).await.owner.present().is_some_and(|owner| owner.alive) {
        assert!(wait.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let ledgers = hands.bookkeeper_ledgers().unwrap();
    assert_eq!(ours.consume(quiet, "idle", None).await.0, Outcome::GapBelowInterval);
    assert!(ours.topic(quiet).await.owner.present().is_none_or(|owner| !owner.alive));
    assert_eq!(hands.bookkeeper_ledgers().unwrap(), ledgers);
    assert_eq!(until_settled(&ours, &third).await, Outcome::Consumed);
    let after = hands.show(&third).unwrap();
    assert_eq!(after.subscribers["idle"].0, 100, "what was decided, though the acquisition closed ten more");
    assert_eq!(after.last_closed(), 110);
    moved_in_the_middle(hands, &ours, &watched).await;
}

/// The only hub keeps three topics.
async fn moved_in_the_middle(mut hands: Hands, ours: &Ours, watched: &Watched) {
    for topic in ["m1", "m2"] {
        hands.prepare(topic, &["idle"]).unwrap();
        hands.run(&format!("publish {topic} 110")).unwrap();
    }
    let hands = Arc::new(Mutex::new(hands));
    let take = |hands: &Arc<Mutex<Hands>>, name: &'static str| {
        let hands = hands.clone();
        move || {
            for number in 0..4 {
                hands.lock().unwrap().run(&format!("publish {name}{number} 1")).ok();
            }
        }
    };
    // Right after the first message came: the hub says so, and nothing is sent any more.
    let (requests, mut others) = (Arc::new(Mutex::new(Vec::new())), Some(take(&hands, "x")));
    let seen = requests.clone();
    watched.set(move |frame| {
        seen.lock().unwrap().extend(request(frame));
        // The answer is number 0, the first message number 1.
        if !frame.from_client && frame.number == 1 {
            others.take().into_iter().for_each(|take| take());
        }
        Fate::Pass
    });
    let outcome = until_told(ours, "m1").await;
    assert!(matches!(&outcome, Outcome::Lost(why) if why.contains("gave the topic up")), "{outcome:?}");
    let sent = requests.lock().unwrap().clone();
    assert!(sent.iter().all(|kind| *kind == op::SUBSCRIBE), "{sent:?}");
    assert_eq!(hands.lock().unwrap().show("m1").unwrap().subscribers["idle"].1, 0);

    // With the CONSUME on its way: whatever the hub makes of it, what is told is what the metadata shows.
    let others = take(&hands, "y");
    watched.at(op::CONSUME, move || {
        others();
        Fate::Pass
    });
    let outcome = until_told(ours, "m2").await;
    watched.unset();
    let stands = hands.lock().unwrap().show("m2").unwrap().subscribers["idle"];
    match outcome {
        Outcome::Consumed => assert_eq!((stands.0, stands.1), (100, 1)),
        Outcome::Lost(_) | Outcome::Uncertain(_) => assert_eq!((stands.0, stands.1), (0, 0), "{outcome:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(until_settled(ours, "m1").await, Outcome::Consumed);
}

/// Acts until an attachment came about: a hub that gives a topic up closes connections that come at that moment.
async fn until_told(ours: &Ours, topic: &str) -> Outcome {
    let start = Instant::now();
    loop {
        match ours.try_consume(topic, "idle", None).await {
            Ok((Outcome::Settling, _)) => {}
            Ok((outcome, _)) => return outcome,
            Err(e) => assert_eq!(e.class(), Class::Transient, "{e}"),
        }
        assert!(start.elapsed() < SOON, "{topic} is not attached to");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Hedwig"]
async fn owners_in_persistent_nodes_are_told_from_the_living() {
    let rig = HedwigRig::builder().setting("metadata_manager_based_topic_manager_enabled", "true");
    // What is not read at once must be read from bookies.
    let mut rig = rig.setting("cache_size", "262144").start().unwrap();
    let mut hands = rig.hands().unwrap();
    let topic = topic_at(&rig, &mut hands, "t", Part::Hub2);
    let second = topic_at(&rig, &mut hands, "u", Part::Hub1);
    let ours = Ours::at(&rig).await;
    assert!(ours.topic(&topic).await.owner.present().unwrap().alive);
    rig.kill9(Part::Hub2).unwrap();
    let start = Instant::now();
    while ours.topic(&topic).await.owner.present().unwrap().alive {
        assert!(start.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Its node still names it; the other hub takes the topic.
    assert_eq!(owner(&rig, &mut hands, &topic), Part::Hub2);
    assert_eq!(until_settled(&ours, &topic).await, Outcome::Consumed);
    assert_eq!(owner(&rig, &mut hands, &topic), Part::Hub1);
    // Restarted under the same address, it is another hub.
    rig.kill9(Part::Hub1).unwrap();
    rig.start(Part::Hub1).unwrap();
    let seen = ours.topic(&second).await;
    assert!(seen.owner.present().is_none_or(|owner| !owner.alive), "{seen:?}");
    assert_eq!(until_settled(&ours, &second).await, Outcome::Consumed);
    wedged(&mut rig, &mut hands, &ours).await;
}

/// D2: somebody consumes what it has not been given yet, and is slow to take it. The hub collects the ledgers, still reads them for it, and
/// loses the topic while it goes on owning it. Whoever is sent there then raises an alarm; a restart of the hub helps.
async fn wedged(rig: &mut HedwigRig, hands: &mut Hands, ours: &Ours) {
    let topic = "wedged";
    hands.prepare(topic, &["slow", "idle"]).unwrap();
    hands.run(&format!("publish {topic} 2000 size=8000")).unwrap();
    hands.run(&format!("consumeto {topic} idle 1500")).unwrap();
    let hub = owner(rig, hands, topic);
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let mut slow = socket.connect(rig.hub_plain(hub).parse().unwrap()).await.unwrap();
    let seen = ours.topic(topic).await;
    let (_, end) = seen.ledgers.present().unwrap().closed_up_to(1500).unwrap();
    let about = |txn| wire::About { txn, topic, subscriber: "slow" };
    let mut out = Vec::new();
    wire::put_frame(&about(1).attach(&[]), &mut out);
    slow.write_all(&out).await.unwrap();
    let mut received = bytes::BytesMut::new();
    let frame = loop {
        slow.read_buf(&mut received).await.unwrap();
        if let Some(frame) = wire::take_frame(&mut received, wire::MAX_FRAME).unwrap() {
            break frame;
        }
    };
    assert!(matches!(wire::incoming(&frame), Ok(Incoming::Answer { txn: 1, status: wire::Status::SUCCESS, .. })));
    out.clear();
    wire::put_frame(&about(2).consume(end), &mut out);
    slow.write_all(&out).await.unwrap();
    hands.wait_for(topic, SOON, |shown| shown.ledgers.len() < 30).unwrap();
    let start = Instant::now();
    while !rig.log_has(hub, "Invalid RangeScan") {
        received.clear();
        tokio::time::timeout(Duration::from_millis(200), slow.read_buf(&mut received)).await.ok();
        assert!(start.elapsed() < SOON, "the hub did not lose the topic");
    }
    drop(slow);
    // Until it has lost it altogether, it gives nothing.
    let start = Instant::now();
    loop {
        match until_told(ours, topic).await {
            Outcome::Wedged(_) => break,
            Outcome::CaughtUpInHub | Outcome::Lost(_) => assert!(start.elapsed() < SOON, "the topic is still served"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(hands.show(topic).unwrap().subscribers["idle"].1, 1);
    rig.kill9(hub).unwrap();
    rig.start(hub).unwrap();
    assert_eq!(until_settled(ours, topic).await, Outcome::Consumed);
}
