//! The history over many scans, with the real store: whoever shows any sign of life inside the window is never acted on.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use trimtab::activity::Activity;
use trimtab_bus::{SqliteStore, Store};
use trimtab_events::{CursorKind, Evidence, Log, Position, Protection, ScanRef, SubscriberCandidate, Verdict};
use trimtab_policy::{Context, Policy, PolicyConfig, decide_subscribers};

use super::make::*;

const SUB: CursorKind = CursorKind::Subscription;

fn store(folder: &tempfile::TempDir) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.path().join("state.db")).unwrap())
}

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A log whose only subscriber stands at an entry of ledger 1.
fn at(topic_name: &str, entry: i64) -> SubscriberCandidate {
    let mut made = topic(&[("old", SUB, 1, entry)]);
    made.subject = format!("persistent://t/n/{topic_name}");
    let mut log = pulsar(made, vec![subscriber("old", 0)]);
    log.subscribers[0].progress = Evidence::Present(format!("{:016x}", entry + 100));
    log.subscribers[0].history = None;
    log
}

async fn see(activity: &Activity, logs: &mut [SubscriberCandidate], now_ms: i64) -> Vec<String> {
    let watch = activity.begin().await.unwrap();
    let mut shard = watch.shard("t/n", true).await.unwrap();
    for log in logs.iter_mut() {
        shard.see(log, now_ms).await.unwrap();
    }
    shard.finish(true).await.unwrap().into_iter().map(|cleared| cleared.subject).collect()
}

#[test]
fn what_several_scans_saw_is_counted_and_any_other_progress_starts_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let activity = Activity::new(store, "a");
    block(async {
        let mut got = Vec::new();
        for (scan, entry) in [0, 0, 0, 4, 4].into_iter().enumerate() {
            let mut log = at("x", entry);
            let now = NOW + scan as i64 * DAY;
            see(&activity, std::slice::from_mut(&mut log), now).await;
            let history = log.subscribers[0].history.unwrap();
            got.push(((now - history.since_ms) / DAY, history.sightings));
        }
        assert_eq!(got, [(0, 1), (1, 2), (2, 3), (0, 1), (1, 2)]);
    });
}

#[test]
fn a_scan_that_was_cut_off_or_saw_only_a_part_leaves_the_history_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        see(&activity, &mut [at("x", 0), at("y", 0)], NOW).await;
        // Cut off: what it saw of x is not remembered.
        let watch = activity.begin().await.unwrap();
        let mut shard = watch.shard("t/n", true).await.unwrap();
        shard.see(&mut at("x", 5), NOW + DAY).await.unwrap();
        shard.finish(false).await.unwrap();
        // A part: y is not forgotten.
        let mut shard = watch.shard("t/n", false).await.unwrap();
        let mut part = at("x", 0);
        shard.see(&mut part, NOW + DAY).await.unwrap();
        shard.finish(true).await.unwrap();
        assert_eq!(part.subscribers[0].history.unwrap().sightings, 2);
        let mut logs = [at("x", 0), at("y", 0)];
        see(&activity, &mut logs, NOW + 2 * DAY).await;
        let sightings = logs.map(|log| log.subscribers[0].history.unwrap().sightings);
        assert_eq!(sightings, [2, 2]);
    });
}

#[test]
fn of_two_scans_of_one_shard_only_one_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        let watch = activity.begin().await.unwrap();
        let (mut one, mut other) = (watch.shard("t/n", true).await.unwrap(), watch.shard("t/n", true).await.unwrap());
        one.see(&mut at("x", 0), NOW).await.unwrap();
        other.see(&mut at("x", 1), NOW).await.unwrap();
        one.finish(true).await.unwrap();
        assert!(
            other.finish(true).await.is_err(),
            "the one that lost its lease must not write over the other's history"
        );
    });
}

/// P-03: reloads make the stored time new each time; where a ledger's closing time explains it, it is none of the subscriber's.
#[test]
fn a_sign_of_life_in_stored_times_starts_it_anew() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        see(&activity, &mut [at("x", 0)], NOW).await;
        let mut log = at("x", 0);
        log.subscribers[0].alive_ms = NOW + DAY / 2;
        see(&activity, std::slice::from_mut(&mut log), NOW + DAY).await;
        let history = log.subscribers[0].history.unwrap();
        assert_eq!((history.since_ms, history.sightings), (NOW + DAY / 2, 1));
    });
}

/// A clock that jumps, and a scanner that was off for a year, look the same: what nobody looked at does not count.
#[test]
fn a_long_time_without_a_scan_counts_for_a_week() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        let mut got = Vec::new();
        for now in [NOW, NOW + 6 * DAY, NOW + 406 * DAY, NOW + 407 * DAY, NOW + 7 * DAY, NOW + 8 * DAY] {
            let mut log = at("x", 0);
            see(&activity, std::slice::from_mut(&mut log), now).await;
            let history = log.subscribers[0].history.unwrap();
            got.push(((now - history.since_ms) / DAY, history.sightings));
        }
        assert_eq!(got, [(0, 1), (6, 2), (13, 3), (14, 4), (0, 1), (1, 2)], "and a clock that went back starts anew");
    });
}

#[test]
fn the_same_snapshot_twice_is_one_sighting() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        for _ in 0..3 {
            let mut log = at("x", 0);
            see(&activity, std::slice::from_mut(&mut log), NOW).await;
            assert_eq!(log.subscribers[0].history.unwrap().sightings, 1);
        }
    });
}

#[test]
fn idleness_counts_only_while_it_holds_something() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        let caught_up = || {
            let mut log = at("x", 0);
            if let Log::Pulsar(topic) = &mut log.log
                && let Evidence::Present(cursors) = &mut topic.cursors
            {
                cursors[0].mark_delete = Evidence::Present(Position { ledger: 6, entry: -1 });
            }
            log
        };
        see(&activity, &mut [at("x", 0)], NOW).await;
        see(&activity, &mut [caught_up()], NOW + DAY).await;
        let mut log = at("x", 0);
        see(&activity, std::slice::from_mut(&mut log), NOW + 30 * DAY).await;
        assert_eq!(log.subscribers[0].history.unwrap().since_ms, NOW + 30 * DAY);
    });
}

#[test]
fn what_we_did_ourselves_is_no_sign_of_life() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        see(&activity, &mut [at("x", 0)], NOW).await;
        let before = at("x", 0).subscribers[0].progress.present().unwrap().clone();
        let mut after = at("x", 9);
        activity.note_own(&after, "old", &before, NOW + DAY).await.unwrap();
        assert!(activity.is_ours(&after, "old", &before).await.unwrap());
        assert!(!activity.is_ours(&at("x", 10), "old", &before).await.unwrap());
        // The visit left a time of activity behind, too.
        after.subscribers[0].alive_ms = NOW + DAY - 1000;
        for scan in 2..4 {
            let mut seen = after.clone();
            see(&activity, std::slice::from_mut(&mut seen), NOW + scan * DAY).await;
            assert_eq!(seen.subscribers[0].history.unwrap().since_ms, NOW);
            assert_eq!(seen.subscribers[0].alive_ms, 0);
        }
    });
}

/// An owner may stand further with a subscriber than its metadata says. At the first visit that is a sign of life of an unknown time; the same
/// place later is none, another one is.
#[test]
fn where_an_owner_stood_is_kept_until_the_next_visit() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let activity = Activity::new(store.clone(), "a");
    block(async {
        see(&activity, &mut [at("x", 0), at("y", 0)], NOW).await;
        activity.note_alive(&at("x", 0), "old", Some(5), NOW + DAY).await.unwrap();
        // Seen by two scans, and told to executors, for whom idleness counts from the visit.
        for scan in 2..4 {
            let mut log = at("x", 0);
            see(&activity, &mut [log.clone(), at("y", 0)], NOW + scan * DAY).await;
            activity.recall(&mut log).await.unwrap();
            let stood = log.subscribers[0].stood.unwrap();
            assert_eq!((stood.at, stood.since_ms, log.subscribers[0].alive_ms), (5, NOW + DAY, NOW + DAY));
        }
        let mut log = at("x", 0);
        see(&activity, &mut [log.clone(), at("y", 0)], NOW + 4 * DAY).await;
        // The same place again starts nothing anew; another does.
        for (place, day) in [(5, 1), (8, 5)] {
            activity.note_alive(&log, "old", Some(place), NOW + 5 * DAY).await.unwrap();
            see(&activity, std::slice::from_mut(&mut log), NOW + 6 * DAY).await;
            let seen = &log.subscribers[0];
            assert_eq!(seen.stood.map(|stood| (stood.at, stood.since_ms)), Some((place, NOW + day * DAY)));
            assert_eq!(seen.history.unwrap().since_ms, NOW + day * DAY);
        }
        // Its node was written: where it stood is of no use any more.
        let mut log = at("x", 9);
        see(&activity, std::slice::from_mut(&mut log), NOW + 7 * DAY).await;
        activity.recall(&mut log).await.unwrap();
        assert_eq!(log.subscribers[0].stood, None);
        assert!(store.list("own", "", None, 9).await.unwrap().is_empty());
        // It is gone.
        activity.note_alive(&log, "old", Some(10), NOW + 8 * DAY).await.unwrap();
        see(&activity, &mut [at("y", 0)], NOW + 9 * DAY).await;
        assert!(store.list("own", "", None, 9).await.unwrap().is_empty());
    });
}

#[test]
fn a_mark_is_cleared_by_a_sign_of_life_and_by_catching_up() {
    for back in [5, i64::MAX] {
        let folder = tempfile::tempdir().unwrap();
        let activity = Activity::new(store(&folder), "a");
        block(async {
            let watch = activity.begin().await.unwrap();
            let mut shard = watch.shard("t/n", true).await.unwrap();
            let mut log = at("x", 0);
            shard.see(&mut log, NOW).await.unwrap();
            shard.marking(&log, "old");
            shard.finish(true).await.unwrap();
            let progress = log.subscribers[0].progress.present().unwrap().clone();
            activity.mark(&log, "old", &progress, NOW).await.unwrap();
            let mut log = at("x", 0);
            assert!(see(&activity, std::slice::from_mut(&mut log), NOW + DAY).await.is_empty());
            assert_eq!(log.subscribers[0].mark.as_ref().map(|mark| mark.marked_ms), Some(NOW));
            let mut log = at("x", back.min(8));
            if back == i64::MAX
                && let Log::Pulsar(topic) = &mut log.log
                && let Evidence::Present(cursors) = &mut topic.cursors
            {
                cursors[0].mark_delete = Evidence::Present(Position { ledger: 6, entry: -1 });
            }
            let cleared = see(&activity, std::slice::from_mut(&mut log), NOW + 2 * DAY).await;
            assert_eq!(cleared, ["persistent://t/n/x?subscription=old"]);
            assert!(activity.marks().await.unwrap().is_empty());
        });
    }
}

#[test]
fn wishes_cover_a_topic_or_one_subscriber_and_can_be_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        for subject in ["persistent://t/n/x", "persistent://t/n/x?subscription=old"] {
            let wish = Protection { subject: subject.into(), by: "ops".into(), until_ms: None };
            activity.protect(&wish).await.unwrap();
            let mut log = at("x", 0);
            see(&activity, std::slice::from_mut(&mut log), NOW).await;
            assert_eq!(log.subscribers[0].protected.as_ref().map(|w| w.by.as_str()), Some("ops"), "{subject}");
            log.subscribers[0].protected = None;
            activity.recall(&mut log).await.unwrap();
            assert!(log.subscribers[0].protected.is_some(), "{subject}");
            assert!(activity.unprotect(subject).await.unwrap());
            assert!(!activity.unprotect(subject).await.unwrap());
            activity.recall(&mut log).await.unwrap();
            assert!(log.subscribers[0].protected.is_none(), "{subject}");
        }
    });
}

/// Many pages: everybody is found again, those who are new and those who went away included.
#[test]
fn a_large_shard_is_remembered_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    let names = |step: usize| (0..30_000).filter(move |n| n % step != 1).map(|n| format!("topic-{n:06}"));
    block(async {
        for (scan, step) in [(0, 7), (1, 5), (2, 7)] {
            let watch = activity.begin().await.unwrap();
            let mut shard = watch.shard("t/n", true).await.unwrap();
            for name in names(step) {
                let mut log = at(&name, 0);
                shard.see(&mut log, NOW + scan * DAY).await.unwrap();
                let number: usize = name[6..].parse().unwrap();
                let wanted = match (scan, number % 7 != 1, number % 5 != 1) {
                    (0, ..) => 1,
                    (1, known, _) => 1 + u32::from(known),
                    (_, _, seen_last) => {
                        if seen_last {
                            3
                        } else {
                            1
                        }
                    }
                };
                assert_eq!(log.subscribers[0].history.unwrap().sightings, wanted, "{name} in scan {scan}");
            }
            shard.finish(true).await.unwrap();
        }
        let pages = activity.pages().await.unwrap();
        assert!(pages.documents > 3, "{pages:?}");
        assert!(pages.largest <= 512 * 1024, "{pages:?}");
        assert!(pages.bytes / names(7).count() <= 64, "{pages:?}");
    });
}

/// What one subscriber does between two scans.
#[derive(Debug, Clone, Copy)]
enum Event {
    Nothing,
    /// Takes a message.
    Takes,
    /// Connects and takes nothing: a stored time of activity that nothing explains.
    Connects,
    /// Its state cannot be read in this scan.
    Hidden,
}

fn events() -> impl Strategy<Value = Vec<(Event, i64)>> {
    let event = prop_oneof![
        6 => Just(Event::Nothing), 1 => Just(Event::Takes), 1 => Just(Event::Connects), 1 => Just(Event::Hidden),
    ];
    proptest::collection::vec((event, 1..36_i64), 1..24)
}

/// The oracle is kept by the test: the last moment at which the subscriber did anything.
#[test]
fn nobody_who_showed_a_sign_of_life_inside_the_window_is_acted_on() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let reached = std::cell::Cell::new((0, 0));
    let result = runner.run(&events(), |events| {
        // Nothing of it has to survive a loss of power.
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let activity = Activity::new(store(&folder), "a");
        block(async {
            let (mut now, mut entry, mut alive_ms, mut truth) = (NOW - 2000 * DAY, 0, 0, NOW - 2000 * DAY);
            for (event, hours) in &events {
                let then = now;
                now += hours * 3_600_000;
                // It happened right after the scan before.
                match event {
                    Event::Takes if entry < 8 => (entry, truth) = (entry + 1, then),
                    Event::Connects => (alive_ms, truth) = (then + 1000, then + 1000),
                    _ => {}
                }
                let mut log = at("x", entry);
                log.subscribers[0].alive_ms = alive_ms;
                if matches!(event, Event::Hidden) {
                    log.subscribers[0].progress = Evidence::Unknown("hidden".into());
                }
                see(&activity, std::slice::from_mut(&mut log), now).await;
                let config = PolicyConfig { rules: vec![rule()], ..PolicyConfig::default() };
                let policy = Policy::new(config, "test").unwrap();
                let scan = ScanRef { id: uuid::Uuid::nil(), fence: 0 };
                let context = Context { scan, target: "a", now_ms: now };
                let acts = decide_subscribers(&log, &policy, &context).remove(0).verdict == Verdict::Consume;
                let (acted, kept) = reached.get();
                reached.set((acted + u32::from(acts), kept + u32::from(!acts)));
                let since_h = (now - truth) / 3_600_000;
                prop_assert!(!acts || since_h >= 72, "acted on {} h after a sign of life: {:?}", since_h, events);
                prop_assert!(!acts || !matches!(event, Event::Hidden));
            }
            Ok(())
        })
    });
    result.unwrap_or_else(|e| panic!("{e}"));
    let (acted, kept) = reached.get();
    assert!(acted > 100 && kept > 100, "a property over nothing proves nothing: acted {acted}, kept {kept}");
}

#[test]
fn marks_of_who_is_gone_go_and_those_elsewhere_stay() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        let scan = async |shard: &str, names: &[&str], whole: bool, now: i64| {
            let watch = activity.begin().await.unwrap();
            let mut shard = watch.shard(shard, true).await.unwrap();
            for name in names {
                let mut log = at(name, 0);
                shard.see(&mut log, now).await.unwrap();
                shard.marking(&log, "old");
                let progress = log.subscribers[0].progress.present().unwrap().clone();
                activity.mark(&log, "old", &progress, now).await.unwrap();
            }
            shard.finish(whole).await.unwrap()
        };
        let marked = async || {
            let mut marks: Vec<String> = activity.marks().await.unwrap().into_iter().map(|mark| mark.subject).collect();
            marks.sort();
            marks
        };
        let subject = |name: &str| format!("persistent://t/n/{name}?subscription=old");
        assert!(scan("t/n", &["x", "y", "z"], true, NOW).await.is_empty());
        assert!(scan("t/m", &["elsewhere"], true, NOW).await.is_empty());
        assert_eq!(marked().await.len(), 4);
        // A scan that did not see the whole shard does not know.
        assert!(scan("t/n", &["x"], false, NOW + DAY).await.is_empty());
        assert_eq!(marked().await.len(), 4);
        // One topic is gone, and so is the subscriber of another.
        let gone = scan("t/n", &["y"], true, NOW + 2 * DAY).await;
        assert!(gone.iter().all(|cleared| cleared.gone), "{gone:?}");
        assert_eq!(marked().await, [subject("elsewhere"), subject("y")]);
        // Nothing is left: not even the topics.
        scan("t/n", &[], true, NOW + 3 * DAY).await;
        assert_eq!(marked().await, [subject("elsewhere")]);
    });
}

#[test]
fn a_target_whose_clock_is_behind_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    block(async {
        let scan = async |entry: i64, written_ms: i64, now: i64| {
            let watch = activity.begin().await.unwrap();
            let mut shard = watch.shard("t/n", true).await.unwrap();
            let mut log = at("x", entry);
            log.subscribers[0].seen.modified_ms = written_ms;
            shard.see(&mut log, now).await.unwrap();
            let behind = shard.behind_ms();
            shard.finish(true).await.unwrap();
            behind
        };
        assert_eq!(scan(0, NOW - 9 * DAY, NOW).await, 0);
        assert_eq!(scan(0, NOW - 9 * DAY, NOW + DAY).await, 0, "not written since");
        assert_eq!(scan(3, NOW + DAY + 1000, NOW + 2 * DAY).await, 0, "written since, and says so");
        assert_eq!(scan(4, NOW + DAY, NOW + 3 * DAY).await, DAY, "written since, and says a day before");
    });
}

/// One log with more subscribers than a page has room for, between others.
#[test]
fn the_subscribers_of_one_log_may_fill_several_pages() {
    let folder = tempfile::tempdir().unwrap();
    let activity = Activity::new(store(&folder), "a");
    let names: Vec<String> = (0..20_000).map(|index| format!("consumer-{index:05}")).collect();
    let many = || {
        let mut log = stream(names.iter().map(|name| (name.as_str(), consumer(0, 5), 0)).collect());
        log.subject = "jetstream://t/n".to_owned();
        for (index, subscriber) in log.subscribers.iter_mut().enumerate() {
            subscriber.progress = Evidence::Present(format!("{index:016x}"));
            subscriber.history = None;
        }
        log
    };
    block(async {
        for scan in 0..3 {
            // Names in the order of a scan, before and behind.
            let mut logs = [at("a", 0), many(), at("x", 0)];
            logs[0].subject = "a://t/n".to_owned();
            if let Log::Pulsar(topic) = &mut logs[0].log {
                topic.subject.clone_from(&logs[0].subject);
            }
            see(&activity, &mut logs, NOW + scan * DAY).await;
            for log in &logs {
                for subscriber in &log.subscribers {
                    let history = subscriber.history.unwrap();
                    let seen = (history.since_ms, i64::from(history.sightings));
                    assert_eq!(seen, (NOW, scan + 1), "{} of {}", subscriber.name, log.subject);
                }
            }
        }
        let room = activity.pages().await.unwrap();
        assert!(room.largest < 400_000 && room.documents == 3, "{room:?}");
    });
}
