//! What every bus must do.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use trimtab_events::{Event, MAX_EVENT_BYTES};

use super::{BusCheck, BusRig, event, quick};
use crate::{Bus, BusError, BusOptions, DeadLetter, Delivery, Published, Role};

/// Longer than any of the times in the checks: what has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(15);

macro_rules! checks {
    ($($name:ident,)+) => {
        /// Every check, in the order in which they are run.
        pub const BUS_CHECKS: &[BusCheck] = &[$((stringify!($name), |rig| Box::pin($name(rig))),)+];
    };
}

checks! {
    each_type_goes_to_its_role,
    order_is_kept,
    bytes_survive,
    large_events_pass_and_larger_ones_are_refused,
    unfit_events_are_refused,
    unsettled_comes_back_after_the_time,
    progress_keeps_it_away,
    late_done_counts,
    again_comes_not_before,
    given_up_by_the_worker,
    given_up_by_the_bus,
    letters_are_retried_and_dropped,
    letters_wait_for_their_key,
    one_outstanding_per_key,
    ids_are_remembered,
    what_is_published_together_is_told_apart,
    full_waits_and_loses_nothing,
    what_is_published_together_waits_for_room,
    full_for_too_long_is_an_error,
    outstanding_is_limited,
    four_takers_share,
    dropped_takes_lose_nothing,
    many_dropped_takes_wake_the_others,
    malformed_is_delivered,
    lanes_are_kept_apart,
    lanes_give_back_and_hold_back,
    roles_and_lanes_are_asked_as_they_are,
    close_ends_takes_only,
}

async fn publish(bus: &dyn Bus, event: &Event) -> Published {
    timeout(PATIENCE, bus.publish(event)).await.expect("publish takes too long").expect("published")
}

async fn take(bus: &dyn Bus, role: Role) -> Delivery {
    timeout(PATIENCE, bus.take(role)).await.expect("nothing to take").expect("taken")
}

async fn nothing(bus: &dyn Bus, role: Role, within: Duration) {
    if let Ok(got) = timeout(within, bus.take(role)).await {
        let got = got.expect("taken");
        panic!("{} came (try {}) where nothing should", got.event.map_or_else(|m| m.why, |e| e.id), got.tries);
    }
}

fn id_of(delivery: &Delivery) -> String {
    delivery.event.as_ref().expect("an event").id.clone()
}

/// Waits until `depth` is as told: acknowledgements may be on their way.
async fn depth(bus: &dyn Bus, role: Role, expected: u64) {
    let end = Instant::now() + PATIENCE;
    loop {
        let depth = bus.depth(role).await.expect("depth");
        if depth == expected {
            return;
        }
        assert!(Instant::now() < end, "depth of {} is {depth}, not {expected}", role.name());
        sleep(Duration::from_millis(20)).await;
    }
}

async fn dead(bus: &dyn Bus, expected: usize) -> Vec<DeadLetter> {
    let end = Instant::now() + PATIENCE;
    loop {
        let letters = bus.dead(100).await.expect("dead letters");
        if letters.len() >= expected || Instant::now() > end {
            assert_eq!(letters.len(), expected, "{letters:?}");
            return letters;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn each_type_goes_to_its_role(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    for role in Role::ALL {
        assert_eq!(publish(&*bus, &event(role, role.name(), "x")).await, Published::Stored);
        depth(&*bus, role, 1).await;
    }
    for role in Role::ALL {
        let got = take(&*bus, role).await;
        assert_eq!((id_of(&got).as_str(), got.tries), (role.name(), 1));
        depth(&*bus, role, 1).await;
        got.settle.done().await.expect("settled");
        depth(&*bus, role, 0).await;
    }
}

async fn order_is_kept(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    for n in 0..50 {
        publish(&*bus, &event(Role::Decider, &n.to_string(), "x")).await;
    }
    for n in 0..50 {
        let got = take(&*bus, Role::Decider).await;
        assert_eq!(id_of(&got), n.to_string());
        got.settle.done().await.expect("settled");
    }
}

async fn bytes_survive(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    let sent = event(Role::Executor, "a", "persistent://t/n/\u{fc}ber \"x\"");
    publish(&*bus, &sent).await;
    let got = take(&*bus, Role::Executor).await;
    let back = got.event.expect("an event");
    assert_eq!(back.data.get(), sent.data.get());
    assert_eq!(back.signed_bytes(), sent.signed_bytes(), "a signature would no longer fit");
    assert_eq!(back.trace(), sent.trace());
    assert_eq!(back.to_bytes().expect("small"), sent.to_bytes().expect("small"));
    got.settle.done().await.expect("settled");
}

async fn large_events_pass_and_larger_ones_are_refused(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    let mut large = event(Role::Decider, "large", "x");
    let overhead = large.to_bytes().expect("small").len() - large.data.get().len();
    let of = |bytes: usize| {
        let text = format!("\"{}\"", "x".repeat(bytes - 2));
        trimtab_events::Data::from(serde_json::value::RawValue::from_string(text).expect("JSON"))
    };
    large.data = of(MAX_EVENT_BYTES - overhead);
    publish(&*bus, &large).await;
    let got = take(&*bus, Role::Decider).await;
    assert_eq!(got.event.expect("an event").data.get(), large.data.get());
    got.settle.done().await.expect("settled");
    large.id = "larger".to_owned();
    large.data = of(MAX_EVENT_BYTES - overhead + 1);
    assert!(matches!(bus.publish(&large).await, Err(BusError::Unfit { .. })));
}

async fn unfit_events_are_refused(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    for change in [
        |e: &mut Event| e.kind = "dev.trimtab.nothing.v1".into(),
        |e: &mut Event| e.target = "a.b".into(),
        |e: &mut Event| e.target = String::new(),
        |e: &mut Event| e.action = "*".into(),
        |e: &mut Event| e.key = ">".into(),
        |e: &mut Event| e.key = "a b".into(),
        |e: &mut Event| e.id = "a\r\nb".into(),
        |e: &mut Event| e.id = String::new(),
    ] {
        let mut unfit = event(Role::Executor, "a", "x");
        change(&mut unfit);
        assert!(matches!(bus.publish(&unfit).await, Err(BusError::Unfit { .. })), "{unfit:?}");
    }
    depth(&*bus, Role::Executor, 0).await;
}

async fn unsettled_comes_back_after_the_time(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    publish(&*bus, &event(Role::Executor, "a", "x")).await;
    let started = Instant::now();
    drop(take(&*bus, Role::Executor).await);
    nothing(&*bus, Role::Executor, options.ack_wait / 2).await;
    let got = take(&*bus, Role::Executor).await;
    assert!(started.elapsed() >= options.ack_wait * 9 / 10, "came back after {:?}", started.elapsed());
    assert_eq!((id_of(&got).as_str(), got.tries), ("a", 2));
    got.settle.done().await.expect("settled");
    nothing(&*bus, Role::Executor, options.ack_wait * 2).await;
    depth(&*bus, Role::Executor, 0).await;
}

async fn progress_keeps_it_away(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    publish(&*bus, &event(Role::Executor, "a", "x")).await;
    let got = take(&*bus, Role::Executor).await;
    for _ in 0..9 {
        nothing(&*bus, Role::Executor, options.ack_wait / 3).await;
        got.settle.working().await.expect("still at it");
    }
    got.settle.done().await.expect("settled");
    nothing(&*bus, Role::Executor, options.ack_wait * 2).await;
    depth(&*bus, Role::Executor, 0).await;
}

async fn late_done_counts(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    publish(&*bus, &event(Role::Executor, "a", "x")).await;
    let first = take(&*bus, Role::Executor).await;
    let second = take(&*bus, Role::Executor).await;
    assert_eq!(second.tries, 2);
    first.settle.done().await.expect("settled");
    depth(&*bus, Role::Executor, 0).await;
    second.settle.done().await.expect("no harm");
    nothing(&*bus, Role::Executor, options.ack_wait * 2).await;
    assert_eq!(publish(&*bus, &event(Role::Executor, "b", "x")).await, Published::Stored, "its key is free");
}

async fn again_comes_not_before(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    publish(&*bus, &event(Role::Scanner, "a", "x")).await;
    let got = take(&*bus, Role::Scanner).await;
    let started = Instant::now();
    // Longer than the acknowledgement time, so that it is this delay and not that one.
    got.settle.again(options.ack_wait * 2).await.expect("settled");
    let got = take(&*bus, Role::Scanner).await;
    assert!(started.elapsed() >= options.ack_wait * 19 / 10, "came back after {:?}", started.elapsed());
    assert_eq!(got.tries, 2);
    let started = Instant::now();
    got.settle.again(Duration::ZERO).await.expect("settled");
    let got = take(&*bus, Role::Scanner).await;
    assert!(started.elapsed() < options.ack_wait * 9 / 10, "came back after {:?}", started.elapsed());
    got.settle.done().await.expect("settled");
    depth(&*bus, Role::Scanner, 0).await;
}

async fn given_up_by_the_worker(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    let sent = event(Role::Decider, "a", "x");
    publish(&*bus, &sent).await;
    drop(take(&*bus, Role::Decider).await);
    let got = take(&*bus, Role::Decider).await;
    got.settle.dead("its data\r\nis \u{fc}nfit".to_owned()).await.expect("settled");
    let letters = dead(&*bus, 1).await;
    assert_eq!((letters[0].role.as_str(), letters[0].tries), ("decider", 2));
    assert!(
        letters[0].why.starts_with("its data") && letters[0].why.ends_with("is \u{fc}nfit"),
        "{:?}",
        letters[0].why
    );
    assert_eq!(letters[0].event.as_bytes(), sent.to_bytes().expect("small"));
    nothing(&*bus, Role::Decider, options.ack_wait * 2).await;
    depth(&*bus, Role::Decider, 0).await;
}

async fn letters_are_retried_and_dropped(rig: &dyn BusRig) {
    let rigged = rig.fresh(quick()).await;
    let bus = &*rigged.bus;
    let sent = [event(Role::Decider, "a", "x"), event(Role::Decider, "b", "y")];
    for event in &sent {
        publish(bus, event).await;
        take(bus, Role::Decider).await.settle.dead("no".to_owned()).await.expect("settled");
    }
    (rigged.inject)(Role::Decider, b"none".to_vec()).await;
    take(bus, Role::Decider).await.settle.dead("no event".to_owned()).await.expect("settled");
    let letters = dead(bus, 3).await;
    assert_eq!(bus.letter(&letters[1].id).await.expect("asked").as_ref(), Some(&letters[1]));
    // At once, though its id is remembered; and a letter is used once.
    assert_eq!(bus.retry(&letters[0].id).await.expect("retried"), Some(Published::Stored));
    let got = take(bus, Role::Decider).await;
    assert_eq!((id_of(&got).as_str(), got.tries), ("a", 1));
    assert_eq!(bus.retry(&letters[0].id).await.expect("asked"), None);
    // Given up again, it is another letter.
    got.settle.dead("still not".to_owned()).await.expect("settled");
    let again = dead(bus, 3).await;
    assert_eq!(again[2].why, "still not");
    assert!(letters.iter().all(|letter| letter.id != again[2].id), "{again:?}");
    assert!(matches!(bus.retry(&letters[2].id).await, Err(BusError::Unfit { .. })));
    for (letter, is) in [(&letters[1], true), (&letters[1], false), (&letters[2], true), (&letters[0], false)] {
        assert_eq!(bus.forget(&letter.id).await.expect("asked"), is, "{letter:?}");
    }
    assert_eq!(dead(bus, 1).await, again[2..]);
    for id in ["", "no", "999999"] {
        let found = (bus.letter(id).await, bus.retry(id).await, bus.forget(id).await);
        assert!(matches!(found, (Ok(None), Ok(None), Ok(false))), "{id}: {found:?}");
    }
    depth(bus, Role::Decider, 0).await;
}

async fn letters_wait_for_their_key(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    publish(&*bus, &event(Role::Executor, "a", "x")).await;
    take(&*bus, Role::Executor).await.settle.dead("no".to_owned()).await.expect("settled");
    let letters = dead(&*bus, 1).await;
    publish(&*bus, &event(Role::Executor, "b", "x")).await;
    assert_eq!(bus.retry(&letters[0].id).await.expect("asked"), Some(Published::Outstanding));
    assert_eq!(dead(&*bus, 1).await, letters);
    let other = take(&*bus, Role::Executor).await;
    assert_eq!(id_of(&other), "b");
    other.settle.done().await.expect("settled");
    depth(&*bus, Role::Executor, 0).await;
    assert_eq!(bus.retry(&letters[0].id).await.expect("asked"), Some(Published::Stored));
    let got = take(&*bus, Role::Executor).await;
    assert_eq!(id_of(&got), "a");
    got.settle.done().await.expect("settled");
    dead(&*bus, 0).await;
}

async fn given_up_by_the_bus(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    publish(&*bus, &event(Role::Executor, "a", "x")).await;
    for tries in 1..=options.max_deliver {
        assert_eq!(take(&*bus, Role::Executor).await.tries, tries);
    }
    nothing(&*bus, Role::Executor, options.ack_wait * 3).await;
    let letters = dead(&*bus, 1).await;
    assert_eq!(letters[0].tries, options.max_deliver);
    assert!(letters[0].why.contains("without being settled"), "{:?}", letters[0].why);
    depth(&*bus, Role::Executor, 0).await;
    assert_eq!(publish(&*bus, &event(Role::Executor, "b", "x")).await, Published::Stored, "its key is free");
}

/// Publishes until it is stored: an acknowledgement may be on its way.
async fn stored_soon(bus: &dyn Bus, event: &Event) {
    let end = Instant::now() + PATIENCE;
    loop {
        match publish(bus, event).await {
            Published::Stored => return,
            Published::Outstanding if Instant::now() < end => sleep(Duration::from_millis(20)).await,
            other => panic!("{other:?} after the key should be free"),
        }
    }
}

async fn one_outstanding_per_key(rig: &dyn BusRig) {
    let options = BusOptions { ack_wait: PATIENCE * 4, ..quick() };
    let bus = rig.fresh(options).await.bus;
    let decision = event(Role::Executor, "a", "x");
    let mut other_verdict = event(Role::Executor, "b", "x");
    other_verdict.action = "expire-then-trim".to_owned();
    assert_eq!(publish(&*bus, &decision).await, Published::Stored);
    assert_eq!(publish(&*bus, &decision).await, Published::Outstanding, "while it waits");
    assert_eq!(publish(&*bus, &other_verdict).await, Published::Outstanding, "at most one act, whatever act");
    assert_eq!(publish(&*bus, &event(Role::Executor, "c", "y")).await, Published::Stored, "another key");
    let got = take(&*bus, Role::Executor).await;
    assert_eq!(publish(&*bus, &decision).await, Published::Outstanding, "while it is out");
    got.settle.done().await.expect("settled");
    stored_soon(&*bus, &decision).await;
    take(&*bus, Role::Executor).await.settle.done().await.expect("settled");
    take(&*bus, Role::Executor).await.settle.dead("no".to_owned()).await.expect("settled");
    stored_soon(&*bus, &other_verdict).await;
    depth(&*bus, Role::Executor, 1).await;
}

async fn ids_are_remembered(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    for role in [Role::Scanner, Role::Decider, Role::Audit] {
        let sent = event(role, "a", "x");
        assert_eq!(publish(&*bus, &sent).await, Published::Stored);
        assert_eq!(publish(&*bus, &sent).await, Published::Duplicate);
        take(&*bus, role).await.settle.done().await.expect("settled");
        assert_eq!(publish(&*bus, &sent).await, Published::Duplicate, "after it was handled, too");
        nothing(&*bus, role, options.ack_wait / 4).await;
    }
}

async fn what_is_published_together_is_told_apart(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    assert!(bus.publish_all(&[]).await.is_empty());
    publish(&*bus, &event(Role::Decider, "known", "known")).await;
    publish(&*bus, &event(Role::Executor, "out", "out")).await;
    let mut unfit = event(Role::Executor, "unfit", "unfit");
    unfit.target = "a.b".to_owned();
    let fresh = |n: usize| event(Role::Executor, &format!("e{n}"), &format!("e{n}"));
    let mut all: Vec<Event> = (0..40).map(fresh).collect();
    all.extend([event(Role::Decider, "known", "known"), unfit, event(Role::Executor, "again", "out")]);
    all.extend((40..80).map(fresh));
    let told = timeout(PATIENCE, bus.publish_all(&all)).await.expect("publishing takes too long");
    assert_eq!(told.len(), all.len());
    for (event, told) in all.iter().zip(&told) {
        match event.id.as_str() {
            "known" => assert!(matches!(told, Ok(Published::Duplicate)), "{told:?}"),
            "again" => assert!(matches!(told, Ok(Published::Outstanding)), "{told:?}"),
            "unfit" => assert!(matches!(told, Err(BusError::Unfit { id, .. }) if id == "unfit"), "{told:?}"),
            id => assert!(matches!(told, Ok(Published::Stored)), "{id}: {told:?}"),
        }
    }
    let mut seen = HashSet::new();
    for _ in 0..81 {
        let got = take(&*bus, Role::Executor).await;
        assert!(seen.insert(id_of(&got)), "twice");
        got.settle.done().await.expect("settled");
    }
    depth(&*bus, Role::Executor, 0).await;
}

async fn what_is_published_together_waits_for_room(rig: &dyn BusRig) {
    let bus = rig.fresh(BusOptions { queue_events: 10, ..quick() }).await.bus;
    let publishers: Vec<_> = (0..3)
        .map(|who| {
            let bus = Arc::clone(&bus);
            tokio::spawn(async move {
                let all: Vec<Event> =
                    (0..30).map(|n| format!("{who}-{n}")).map(|id| event(Role::Executor, &id, &id)).collect();
                timeout(PATIENCE, bus.publish_all(&all)).await.expect("publishing takes too long")
            })
        })
        .collect();
    let mut seen = HashSet::new();
    for _ in 0..90 {
        let got = take(&*bus, Role::Executor).await;
        assert!(seen.insert(id_of(&got)), "twice");
        got.settle.done().await.expect("settled");
    }
    for publisher in publishers {
        let told = publisher.await.expect("ended");
        assert!(told.iter().all(|told| matches!(told, Ok(Published::Stored))), "{told:?}");
    }
    let bus = rig.fresh(BusOptions { queue_events: 10, full_wait: Duration::from_millis(300), ..quick() }).await.bus;
    let all: Vec<Event> = (0..12).map(|n| event(Role::Executor, &n.to_string(), &n.to_string())).collect();
    let told = timeout(PATIENCE, bus.publish_all(&all)).await.expect("publishing takes too long");
    assert_eq!(told.iter().filter(|told| matches!(told, Ok(Published::Stored))).count(), 10, "{told:?}");
    assert_eq!(told.iter().filter(|told| matches!(told, Err(BusError::Full { .. }))).count(), 2, "{told:?}");
}

async fn full_waits_and_loses_nothing(rig: &dyn BusRig) {
    for role in [Role::Decider, Role::Executor] {
        let bus = rig.fresh(BusOptions { queue_events: 10, ..quick() }).await.bus;
        let publishers: Vec<_> = (0..60)
            .map(|n| {
                let bus = Arc::clone(&bus);
                tokio::spawn(async move { publish(&*bus, &event(role, &n.to_string(), &n.to_string())).await })
            })
            .collect();
        sleep(Duration::from_millis(500)).await;
        assert_eq!(bus.depth(role).await.expect("depth"), 10);
        assert!(publishers.iter().filter(|p| p.is_finished()).count() <= 10);
        let mut seen = HashSet::new();
        for _ in 0..60 {
            let got = take(&*bus, role).await;
            assert!(seen.insert(id_of(&got)), "twice");
            got.settle.done().await.expect("settled");
        }
        for publisher in publishers {
            assert_eq!(publisher.await.expect("no panic"), Published::Stored);
        }
        depth(&*bus, role, 0).await;
    }
}

async fn full_for_too_long_is_an_error(rig: &dyn BusRig) {
    let options = BusOptions { queue_events: 5, full_wait: Duration::from_millis(700), ..quick() };
    let bus = rig.fresh(options.clone()).await.bus;
    for n in 0..5 {
        publish(&*bus, &event(Role::Decider, &n.to_string(), "x")).await;
    }
    assert_eq!(publish(&*bus, &event(Role::Decider, "0", "x")).await, Published::Duplicate, "a repeat needs no room");
    let started = Instant::now();
    let refused = timeout(PATIENCE, bus.publish(&event(Role::Decider, "5", "x"))).await.expect("in time");
    assert!(matches!(refused, Err(BusError::Full { .. })), "{refused:?}");
    assert!(started.elapsed() >= options.full_wait * 9 / 10);
    // Other queues do not care.
    publish(&*bus, &event(Role::Executor, "6", "x")).await;
    take(&*bus, Role::Decider).await.settle.done().await.expect("settled");
    depth(&*bus, Role::Decider, 4).await;
    assert_eq!(publish(&*bus, &event(Role::Decider, "5", "x")).await, Published::Stored);
}

async fn outstanding_is_limited(rig: &dyn BusRig) {
    let bus = rig.fresh(BusOptions { max_outstanding: 3, ack_wait: PATIENCE * 4, ..quick() }).await.bus;
    for n in 0..5 {
        publish(&*bus, &event(Role::Executor, &n.to_string(), &n.to_string())).await;
    }
    let mut out = Vec::new();
    for _ in 0..3 {
        out.push(take(&*bus, Role::Executor).await);
    }
    nothing(&*bus, Role::Executor, Duration::from_millis(500)).await;
    out.remove(0).settle.done().await.expect("settled");
    out.push(take(&*bus, Role::Executor).await);
    nothing(&*bus, Role::Executor, Duration::from_millis(500)).await;
    for got in out {
        got.settle.done().await.expect("settled");
    }
    take(&*bus, Role::Executor).await.settle.done().await.expect("settled");
    depth(&*bus, Role::Executor, 0).await;
}

async fn four_takers_share(rig: &dyn BusRig) {
    const EVENTS: u64 = 2_000;
    let bus = rig.fresh(BusOptions { ack_wait: Duration::from_secs(30), ..quick() }).await.bus;
    let handled = Arc::new(AtomicU64::new(0));
    let takers: Vec<_> = (0..4)
        .map(|_| {
            let (bus, handled) = (Arc::clone(&bus), Arc::clone(&handled));
            tokio::spawn(async move {
                let mut ids = Vec::new();
                while let Ok(got) = bus.take(Role::Executor).await {
                    assert_eq!(got.tries, 1);
                    ids.push(id_of(&got));
                    got.settle.done().await.expect("settled");
                    handled.fetch_add(1, Ordering::Relaxed);
                }
                ids
            })
        })
        .collect();
    let publishers: Vec<_> = (0..4)
        .map(|p| {
            let bus = Arc::clone(&bus);
            tokio::spawn(async move {
                for n in (p..EVENTS).step_by(4) {
                    publish(&*bus, &event(Role::Executor, &n.to_string(), &n.to_string())).await;
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.expect("no panic");
    }
    let end = Instant::now() + PATIENCE * 2;
    while handled.load(Ordering::Relaxed) < EVENTS && Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
    }
    depth(&*bus, Role::Executor, 0).await;
    bus.close().await;
    let mut all = Vec::new();
    for taker in takers {
        all.extend(taker.await.expect("no panic"));
    }
    assert_eq!(all.len() as u64, EVENTS, "each once");
    assert_eq!(all.into_iter().collect::<HashSet<_>>().len() as u64, EVENTS);
}

async fn dropped_takes_lose_nothing(rig: &dyn BusRig) {
    const EVENTS: usize = 400;
    let bus = rig.fresh(BusOptions { ack_wait: PATIENCE * 4, ..quick() }).await.bus;
    let publisher = {
        let bus = Arc::clone(&bus);
        tokio::spawn(async move {
            for n in 0..EVENTS {
                publish(&*bus, &event(Role::Executor, &n.to_string(), &n.to_string())).await;
                sleep(Duration::from_micros(n as u64 * 7 % 1900)).await;
            }
        })
    };
    let end = Instant::now() + PATIENCE * 2;
    let mut seen = HashSet::new();
    let mut dropped = 0;
    let mut random = 1u64;
    while seen.len() < EVENTS && Instant::now() < end {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match timeout(Duration::from_micros((random >> 33) % 2_000), bus.take(Role::Executor)).await {
            Ok(got) => {
                let got = got.expect("taken");
                assert_eq!(got.tries, 1, "it was lost to a dropped take and came back");
                assert!(seen.insert(id_of(&got)), "twice");
                got.settle.done().await.expect("settled");
            }
            Err(_) => dropped += 1,
        }
    }
    publisher.await.expect("no panic");
    assert_eq!(seen.len(), EVENTS, "after {dropped} dropped takes");
    assert!(dropped > 20, "only {dropped} takes were dropped");
    depth(&*bus, Role::Executor, 0).await;
}

/// A taker that goes away must pass on what woke it, and a publisher that waits must see every place that gets free.
async fn many_dropped_takes_wake_the_others(rig: &dyn BusRig) {
    const EVENTS: u64 = 600;
    let options = BusOptions { queue_events: 8, max_outstanding: 5, ack_wait: PATIENCE * 4, ..quick() };
    let bus = rig.fresh(options).await.bus;
    let handled = Arc::new(AtomicU64::new(0));
    let takers = (1..=8_u64).map(|taker| {
        let (bus, handled) = (Arc::clone(&bus), Arc::clone(&handled));
        tokio::spawn(async move {
            let mut random = taker;
            while handled.load(Ordering::Relaxed) < EVENTS {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Two of the takers wait as long as it takes.
                let patience = if taker <= 2 { PATIENCE } else { Duration::from_micros((random >> 33) % 3_000) };
                if let Ok(Ok(got)) = timeout(patience, bus.take(Role::Executor)).await {
                    assert_eq!(got.tries, 1, "it was lost to a dropped take and came back");
                    if random % 5 == 0 {
                        sleep(Duration::from_micros((random >> 40) % 500)).await;
                    }
                    got.settle.done().await.expect("settled");
                    if handled.fetch_add(1, Ordering::Relaxed) + 1 == EVENTS {
                        bus.close().await;
                    }
                }
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    let publishers: Vec<_> = (0..4)
        .map(|p| {
            let bus = Arc::clone(&bus);
            tokio::spawn(async move {
                for n in (p..EVENTS).step_by(4) {
                    publish(&*bus, &event(Role::Executor, &n.to_string(), &n.to_string())).await;
                }
            })
        })
        .collect();
    for task in publishers.into_iter().chain(takers) {
        timeout(PATIENCE * 2, task).await.expect("somebody was not woken").expect("no panic");
    }
    assert_eq!(handled.load(Ordering::Relaxed), EVENTS);
}

async fn malformed_is_delivered(rig: &dyn BusRig) {
    let rigged = rig.fresh(quick()).await;
    let bus = rigged.bus;
    for (n, bytes) in [&b""[..], b"{", b"\xff\x00\x01", b"{\"specversion\":\"1.0\"}"].iter().enumerate() {
        (rigged.inject)(Role::Executor, bytes.to_vec()).await;
        let got = take(&*bus, Role::Executor).await;
        let malformed = got.event.expect_err("no event");
        assert_eq!(malformed.bytes, *bytes);
        assert!(!malformed.why.is_empty());
        got.settle.dead(malformed.why).await.expect("settled");
        assert_eq!(dead(&*bus, n + 1).await.len(), n + 1);
    }
    let letters = dead(&*bus, 4).await;
    assert_eq!(letters[2].event, "/wAB", "base64");
    depth(&*bus, Role::Executor, 0).await;
}

fn in_lane(role: Role, id: &str, lane: &str) -> Event {
    Event { target: lane.to_owned(), ..event(role, id, id) }
}

async fn take_lane(bus: &dyn Bus, role: Role, lane: &str) -> Delivery {
    timeout(PATIENCE, bus.take_lane(role, lane)).await.expect("nothing to take").expect("taken")
}

async fn nothing_in_lane(bus: &dyn Bus, role: Role, lane: &str, within: Duration) {
    if let Ok(got) = timeout(within, bus.take_lane(role, lane)).await {
        panic!("{} came in lane {lane}, where nothing should", id_of(&got.expect("taken")));
    }
}

/// What waits for one lane is not seen by those who take from another, and waits for them who come later.
async fn lanes_are_kept_apart(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    for role in Role::LANED {
        for lane in ["a", "b"] {
            publish(&*bus, &in_lane(role, &format!("{lane}-{}", role.name()), lane)).await;
        }
        depth(&*bus, role, 2).await;
        nothing_in_lane(&*bus, role, "c", Duration::from_millis(300)).await;
        for lane in ["b", "a"] {
            let got = take_lane(&*bus, role, lane).await;
            assert_eq!(id_of(&got), format!("{lane}-{}", role.name()));
            got.settle.done().await.expect("settled");
            nothing_in_lane(&*bus, role, lane, Duration::from_millis(300)).await;
        }
        depth(&*bus, role, 0).await;
    }
}

/// Segments are redelivered like any other event, and one of a key is enough; it may be wanted again as soon as it is done.
async fn lanes_give_back_and_hold_back(rig: &dyn BusRig) {
    let options = quick();
    let bus = rig.fresh(options.clone()).await.bus;
    let job = in_lane(Role::Recovery, "job", "a");
    assert_eq!(publish(&*bus, &job).await, Published::Stored);
    assert_eq!(publish(&*bus, &job).await, Published::Outstanding);
    drop(take_lane(&*bus, Role::Recovery, "a").await);
    nothing_in_lane(&*bus, Role::Recovery, "a", options.ack_wait / 2).await;
    let again = take_lane(&*bus, Role::Recovery, "a").await;
    assert_eq!((id_of(&again).as_str(), again.tries), ("job", 2));
    assert_eq!(publish(&*bus, &job).await, Published::Outstanding, "while it is out");
    again.settle.done().await.expect("settled");
    depth(&*bus, Role::Recovery, 0).await;
    assert_eq!(publish(&*bus, &job).await, Published::Stored, "at once");
    take_lane(&*bus, Role::Recovery, "a").await.settle.done().await.expect("settled");
    let report = in_lane(Role::Finisher, "report", "a");
    assert_eq!(publish(&*bus, &report).await, Published::Stored);
    assert_eq!(publish(&*bus, &report).await, Published::Duplicate);
}

async fn roles_and_lanes_are_asked_as_they_are(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    for role in Role::LANED {
        assert!(matches!(bus.take(role).await, Err(BusError::Refused { .. })));
        for lane in ["", "a.b", "*"] {
            assert!(matches!(bus.take_lane(role, lane).await, Err(BusError::Refused { .. })), "{lane:?}");
        }
    }
    assert!(matches!(bus.take_lane(Role::Executor, "a").await, Err(BusError::Refused { .. })));
    let waiting = {
        let bus = Arc::clone(&bus);
        tokio::spawn(async move { bus.take_lane(Role::Recovery, "a").await.map(drop) })
    };
    sleep(Duration::from_millis(200)).await;
    bus.close().await;
    let ended = timeout(PATIENCE, waiting).await.expect("in time").expect("no panic");
    assert!(matches!(ended, Err(BusError::Closed)), "{ended:?}");
    assert!(matches!(bus.take_lane(Role::Recovery, "b").await, Err(BusError::Closed)));
}

async fn close_ends_takes_only(rig: &dyn BusRig) {
    let bus = rig.fresh(quick()).await.bus;
    publish(&*bus, &event(Role::Executor, "a", "x")).await;
    let got = take(&*bus, Role::Executor).await;
    let waiting: Vec<_> = Role::ALL
        .iter()
        .map(|role| {
            let bus = Arc::clone(&bus);
            tokio::spawn(async move { bus.take(*role).await.map(drop) })
        })
        .collect();
    sleep(Duration::from_millis(100)).await;
    bus.close().await;
    for take in waiting {
        let ended = timeout(PATIENCE, take).await.expect("in time").expect("no panic");
        assert!(matches!(ended, Err(BusError::Closed)), "{ended:?}");
    }
    assert!(matches!(bus.take(Role::Executor).await, Err(BusError::Closed)));
    publish(&*bus, &event(Role::Audit, "outcome", "x")).await;
    got.settle.done().await.expect("settled after the close");
    depth(&*bus, Role::Executor, 0).await;
}
