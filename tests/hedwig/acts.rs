//! Acts on real hubs: who is idle is freed as predicted, who is online is refused, and what was decided is never overstepped.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Runtime;
use trimtab_targets::Class;
use trimtab_targets::hedwig::wire::op;
use trimtab_targets::hedwig::{Collection, Outcome, Settings, collection};
use trimtab_tests::frame_proxy::Fate;
use trimtab_tests::hedwig::{Hands, HedwigRig, TOPICS};
use trimtab_tests::java::word;

use super::region::{Ours, Watched, decided, quick, request, scan, settings};

const SOON: Duration = Duration::from_secs(30);

/// A topic whose one subscriber stands at 0.
fn topic(hands: &mut Hands, name: &str, subscribers: &[&str], messages: u64) {
    hands.prepare(name, subscribers).unwrap();
    hands.run(&format!("publish {} {messages}", word(name))).unwrap();
}

/// What the metadata says of a subscriber: where it stands, version, time of the last write.
fn stands(hands: &mut Hands, topic: &str, name: &str) -> (u64, i32, i64) {
    hands.show(topic).unwrap().subscribers[name]
}

pub(crate) fn idle_is_freed_online_is_not(rig: &HedwigRig) {
    let mut hands = rig.hands().unwrap();
    for name in ["t1", "t2", "ns/t4", "zażółć"] {
        topic(&mut hands, name, &["idle"], 250);
    }
    topic(&mut hands, "t3", &["idle", "other"], 250);
    hands.run("online busy t2 idle").unwrap();
    let watched = Watched::hubs(rig);
    let requests: Arc<Mutex<Vec<i32>>> = Arc::default();
    let seen = requests.clone();
    watched.set(move |frame| {
        seen.lock().unwrap().extend(request(frame));
        Fate::Pass
    });
    Runtime::new().unwrap().block_on(async {
        let ours = Ours::with(rig, settings(), watched.options.clone(), quick()).await;
        // Pinned by another one: it stands where it was put.
        let pinned = hands.show("t3").unwrap();
        assert_eq!(ours.consume("t3", "idle", Some(100)).await.0, Outcome::Consumed);
        // The plain case: everything closed goes, in BookKeeper too.
        for topic in ["t1", "ns/t4", "zażółć"] {
            let before = hands.show(topic).unwrap();
            assert_eq!((before.ledgers.len(), before.last_closed()), (13, 240), "{topic}");
            let (outcome, visit) = ours.consume(topic, "idle", None).await;
            assert_eq!(outcome, Outcome::Consumed, "{topic} {visit:?}");
            assert_eq!((visit.stood_at, visit.to.map(|to| to.entry)), (Some(0), Some(240)));
            let after = hands.wait_for(topic, SOON, |shown| shown.ledgers.len() == 1).unwrap();
            assert_eq!((after.subscribers["idle"].0, after.subscribers["idle"].1), (240, 1));
            assert_eq!(visit.written.unwrap().version, 1);
            assert_eq!(after.ids(), before.ids()[12..], "{topic}");
            let left = hands.bookkeeper_ledgers().unwrap();
            assert!(before.ids()[..12].iter().all(|id| !left.contains(id)), "{topic}");
            let now = ours.topic(topic).await;
            let judged = collection(now.ledgers.present().unwrap(), &before.ids()[..12], SOON, Duration::from_secs(1));
            assert_eq!(judged, Collection::Collected);
        }
        // D3: who is online is refused, hears nothing of it, and nothing but the question is sent.
        requests.lock().unwrap().clear();
        let before = hands.show("t2").unwrap();
        let (outcome, visit) = ours.consume("t2", "idle", None).await;
        assert!(matches!(outcome, Outcome::Online(_)), "{outcome:?}");
        assert_eq!((visit.hub, visit.held, visit.written), (None, None, None));
        let sent = requests.lock().unwrap().clone();
        assert!(!sent.is_empty() && sent.iter().all(|kind| *kind == op::SUBSCRIBE), "{sent:?}");
        assert_eq!(hands.show("t2").unwrap(), before);
        hands.run("publish t2 5").unwrap();
        let heard = hands.heard("busy", SOON, |heard| heard.contains("received=255")).unwrap();
        assert!(heard.ends_with("events="), "{heard}");
        // Once it is gone it is idle.
        hands.run("release busy").unwrap();
        assert_eq!(ours.consume("t2", "idle", None).await.0, Outcome::Consumed);
        // Every hub has come by since.
        let after = hands.show("t3").unwrap();
        assert_eq!((after.ids(), after.subscribers["idle"].0), (pinned.ids(), 100));
    });
}

/// D8: a hub that came by while a topic had no subscriber takes that for the furthest pointer there can be, and never sees one that is further.
pub(crate) fn never_collected(rig: &HedwigRig) {
    let mut hands = rig.hands().unwrap();
    hands.run("publish early 50").unwrap();
    // Nobody subscribes, so what is closed goes: the hub has come by.
    let empty = hands.wait_for("early", SOON, |shown| shown.ledgers.len() == 1).unwrap();
    hands.run("subscribe early idle").unwrap();
    hands.run("publish early 200").unwrap();
    topic(&mut hands, "witness", &["idle"], 110);
    Runtime::new().unwrap().block_on(async {
        let ours = Ours::at(rig).await;
        assert_eq!(stands(&mut hands, "early", "idle").0, 50);
        let before = hands.show("early").unwrap();
        assert_eq!((before.ledgers.len(), before.last_closed()), (11, 240), "{before:?}");
        assert_eq!(empty.ids()[0], before.ids()[0]);
        let (outcome, visit) = ours.consume("early", "idle", None).await;
        assert_eq!(outcome, Outcome::Consumed, "{visit:?}");
        assert_eq!(ours.consume("witness", "idle", None).await.0, Outcome::Consumed);
        hands.wait_for("witness", SOON, |shown| shown.ledgers.len() == 1).unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        // The act is done, and says what it did; what became of it is said as well, and is no reason to consume again.
        assert_eq!(hands.show("early").unwrap().ids(), before.ids());
        let now = ours.topic("early").await;
        let (ledgers, expected) = (now.ledgers.present().unwrap(), &before.ids()[..10]);
        let interval = Duration::from_secs(1);
        assert_eq!(collection(ledgers, expected, Duration::from_millis(1500), interval), Collection::Pending);
        assert_eq!(collection(ledgers, expected, Duration::from_secs(3), interval), Collection::NotCollected);
        assert_eq!(ours.consume("early", "idle", None).await.0, Outcome::NothingToFree);
    });
}

pub(crate) fn never_overstepped(rig: &HedwigRig) {
    let mut hands = rig.hands().unwrap();
    for name in ["bound", "inside", "large", "gone", "moved", "ahead", "ahead2", "quiet"] {
        topic(&mut hands, name, &["idle"], 110);
    }
    Runtime::new().unwrap().block_on(async {
        let ours = Ours::at(rig).await;
        // What is published and closed after the decision is not consumed, nor what lies beyond the last closed range.
        let seen = ours.topic("bound").await;
        let what = decided(&seen, "idle", None);
        hands.run("publish bound 100").unwrap();
        let (outcome, visit) = ours.act.carry_out(&what, &ours.permit).await.unwrap();
        assert_eq!((outcome, visit.to.unwrap().entry), (Outcome::Consumed, 100));
        assert_eq!(stands(&mut hands, "bound", "idle").0, 100);
        let (outcome, visit) = ours.consume("bound", "idle", Some(1_000_000)).await;
        assert_eq!((outcome, visit.to.unwrap().entry), (Outcome::Consumed, 200));
        // A bound inside a range stands for the range before it.
        let (outcome, visit) = ours.consume("inside", "idle", Some(99)).await;
        assert_eq!((outcome, visit.to.unwrap().entry), (Outcome::Consumed, 80));
        // D1: a pointer beyond the last message is never moved.
        hands.run("consumeto large idle 1000").unwrap();
        let before = stands(&mut hands, "large", "idle");
        assert_eq!(before.0, 1000);
        assert_eq!(ours.consume("large", "idle", Some(u64::MAX)).await.0, Outcome::NothingToFree);
        assert_eq!(stands(&mut hands, "large", "idle"), before);
        // H-03: unsubscribed between decision and act; not made anew.
        let seen = ours.topic("gone").await;
        hands.run("unsubscribe gone idle").unwrap();
        assert_eq!(ours.act.carry_out(&decided(&seen, "idle", None), &ours.permit).await.unwrap().0, Outcome::Gone);
        assert!(hands.show("gone").unwrap().subscribers.is_empty());
        // D10: it took messages between decision and act, which shows in its node;
        let seen = ours.topic("moved").await;
        hands.run("consume moved idle 60").unwrap();
        let before = stands(&mut hands, "moved", "idle");
        assert_eq!(ours.act.carry_out(&decided(&seen, "idle", None), &ours.permit).await.unwrap().0, Outcome::MovedOn);
        assert_eq!(stands(&mut hands, "moved", "idle"), before);
        // D12: or only in the hub's memory, where it may have come from today.
        for topic in ["ahead", "ahead2"] {
            hands.run(&format!("consume {topic} idle 5")).unwrap();
            assert_eq!(stands(&mut hands, topic, "idle").1, 0);
            let (outcome, visit) = ours.consume(topic, "idle", None).await;
            assert_eq!((outcome, visit.stood_at), (Outcome::Ahead { stands: 5 }, Some(5)));
            assert_eq!(stands(&mut hands, topic, "idle").1, 0);
        }
        // The same place at a second visit: it did not come back in between.
        let seen = ours.topic("ahead").await;
        let mut what = decided(&seen, "idle", None);
        what.stood_at = Some(5);
        assert_eq!(ours.act.carry_out(&what, &ours.permit).await.unwrap().0, Outcome::Consumed);
        // Another place: it did.
        hands.run("consume ahead2 idle 3").unwrap();
        let seen = ours.topic("ahead2").await;
        let mut what = decided(&seen, "idle", None);
        what.stood_at = Some(5);
        assert_eq!(ours.act.carry_out(&what, &ours.permit).await.unwrap().0, Outcome::Ahead { stands: 8 });
        // Too little to be written down, or nothing that would be freed.
        assert_eq!(ours.consume("quiet", "idle", Some(40)).await.0, Outcome::GapBelowInterval);
        assert_eq!(ours.consume("quiet", "idle", Some(10)).await.0, Outcome::NothingToFree);
        assert_eq!(stands(&mut hands, "quiet", "idle").1, 0);
    });
}

pub(crate) fn doubt_keeps(rig: &HedwigRig) {
    let mut hands = rig.hands().unwrap();
    for name in ["filter", "window", "hub", "broken"] {
        hands.prepare(name, &["idle"]).unwrap();
    }
    hands.run("subscribe hub __gone hub=true").unwrap();
    hands.run("subscribe filter picky filter=NothingFilter").unwrap();
    hands.run("subscribe window few window=10").unwrap();
    // A slash in an id: the hub makes an empty node of it, and takes it for a subscriber at 0 from the next acquisition on.
    hands.run("subscribe broken x/y").unwrap();
    for name in ["filter", "window", "hub", "broken"] {
        hands.run(&format!("publish {name} 110")).unwrap();
    }
    Runtime::new().unwrap().block_on(async {
        let ours = Ours::at(rig).await;
        // D11: behind a filter that lets nothing through, and within a window, the metadata says where it stands.
        for (topic, name) in [("filter", "picky"), ("window", "few")] {
            let (outcome, visit) = ours.consume(topic, name, None).await;
            assert_eq!(outcome, Outcome::Consumed, "{topic} {visit:?}");
            assert_eq!(stands(&mut hands, topic, name).0, 100);
        }
        // D7: another region's hub, unless its region is said to be gone.
        let before = stands(&mut hands, "hub", "__gone");
        assert_eq!(ours.consume("hub", "__gone", None).await.0, Outcome::HubSubscriber);
        assert_eq!(stands(&mut hands, "hub", "__gone"), before);
        let named = Settings { gone_regions: ["__gone".to_owned()].into(), ..settings() };
        let allowed = Ours::with(rig, named, Default::default(), quick()).await;
        let (outcome, visit) = allowed.consume("hub", "__gone", None).await;
        assert_eq!(outcome, Outcome::Consumed, "{visit:?}");
        // Nodes that cannot be read.
        let scanned = scan(&*ours.inventory).await;
        let log = scanned.iter().find(|log| log.subject.ends_with("/broken")).unwrap();
        assert_eq!(log.subscribers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["idle", "x"]);
        assert_eq!(ours.consume("broken", "x", None).await.0, unreadable("its node: it is empty"));
        hands.run(&format!("put {TOPICS}/broken/ledgers AAEC")).unwrap();
        let (outcome, _) = ours.consume("broken", "idle", Some(100)).await;
        assert!(matches!(&outcome, Outcome::Unreadable(why) if why.contains("ledgers node")), "{outcome:?}");
        hands.run(&format!("rm {TOPICS}/broken/ledgers")).unwrap();
        assert_eq!(ours.consume("broken", "idle", Some(100)).await.0, Outcome::NothingToFree);
    });
}

fn unreadable(why: &str) -> Outcome {
    Outcome::Unreadable(format!("{why}; a subscriber with a slash in its name leaves such a node behind"))
}

/// A region where only releases before 4.2 ever ran: they know no CLOSESUBSCRIPTION.
pub(crate) fn old_hubs_are_left_alone(rig: &HedwigRig) {
    let mut hands = rig.hands().unwrap();
    topic(&mut hands, "old", &["idle"], 110);
    hands.run("rm /hedwig/rig/managers/METADATA/LAYOUT").unwrap();
    Runtime::new().unwrap().block_on(async {
        let ours = Ours::at(rig).await;
        let error = ours.try_consume("old", "idle", None).await.unwrap_err();
        assert!(error.class() == Class::Refused && error.why.contains("before 4.2"), "{error}");
        assert_eq!(stands(&mut hands, "old", "idle").0, 0);
    });
}
