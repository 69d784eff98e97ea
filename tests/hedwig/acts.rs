//! Acts on real hubs: who is idle is freed as predicted, who is online is refused, and the dangers that were seen on real hubs.

use std::time::Duration;

use trimtab_targets::hedwig::{Collection, Outcome, collection};
use trimtab_tests::hedwig::{HedwigRig, Part};

use super::region::Ours;

const SOON: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Hedwig"]
async fn who_is_idle_is_freed_and_who_is_online_is_left_alone() {
    let rig = HedwigRig::builder().start().unwrap();
    let mut hands = rig.hands().unwrap();
    hands.run("subscribe t3 other").unwrap();
    for topic in ["t1", "t2", "t3", "ns/t4", "zażółć"] {
        hands.run(&format!("subscribe {} idle", trimtab_tests::java::word(topic))).unwrap();
        hands.run(&format!("publish {} 250", trimtab_tests::java::word(topic))).unwrap();
    }
    hands.run("online busy t2 idle").unwrap();
    let ours = Ours::at(&rig).await;

    // The plain case: everything closed goes, in BookKeeper too.
    for topic in ["t1", "ns/t4", "zażółć"] {
        let before = hands.show(topic).unwrap();
        assert_eq!((before.ledgers.len(), before.last_closed()), (13, 240), "{topic}");
        let (outcome, visit) = ours.consume(topic, "idle", None).await;
        assert_eq!(outcome, Outcome::Consumed, "{topic} {visit:?}");
        assert_eq!((visit.stood_at, visit.to.map(|to| to.entry)), (Some(0), Some(240)));
        assert!(visit.held.unwrap() < Duration::from_millis(500), "{visit:?}");
        let after = hands.wait_for(topic, SOON, |shown| shown.ledgers.len() == 1).unwrap();
        assert_eq!(after.subscribers["idle"].0, 240);
        assert_eq!(after.subscribers["idle"].1, 1);
        assert_eq!(visit.written.unwrap().version, 1);
        assert_eq!(after.ids(), before.ids()[12..], "{topic}");
        let left = hands.bookkeeper_ledgers().unwrap();
        assert!(before.ids()[..12].iter().all(|id| !left.contains(id)), "{topic}");
        let now = ours.topic(topic).await;
        let judged = collection(now.ledgers.present().unwrap(), &before.ids()[..12], SOON, Duration::from_secs(1));
        assert_eq!(judged, Collection::Collected);
    }
    // Who is online is refused, and does not notice.
    let before = hands.show("t2").unwrap();
    let (outcome, visit) = ours.consume("t2", "idle", None).await;
    assert!(matches!(outcome, Outcome::Online(_)), "{outcome:?}");
    assert_eq!((visit.hub, visit.held, visit.written), (None, None, None));
    assert_eq!(hands.show("t2").unwrap(), before);
    hands.run("publish t2 5").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let heard = hands.run("heard busy").unwrap();
    assert!(heard.contains("received=255") && heard.ends_with("events="), "{heard}");
    // Once it is gone it is idle.
    hands.run("release busy").unwrap();
    assert_eq!(ours.consume("t2", "idle", None).await.0, Outcome::Consumed);
    // Pinned by another one: it stands where it was put, and nothing goes.
    let before = hands.show("t3").unwrap();
    assert_eq!(ours.consume("t3", "idle", Some(100)).await.0, Outcome::Consumed);
    std::thread::sleep(Duration::from_secs(3));
    let after = hands.show("t3").unwrap();
    assert_eq!((after.ids(), after.subscribers["idle"].0), (before.ids(), 100));
    assert!(!rig.log_has(Part::Hub1, "Invalid RangeScan") && !rig.log_has(Part::Hub2, "Invalid RangeScan"));
}
