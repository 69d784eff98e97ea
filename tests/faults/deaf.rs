//! Following changes where nobody listens, where too much happens, and where the same happens again and again: on a clock that does not wait.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use trimtab::clock::Clock;
use trimtab::config::Caps;
use trimtab_bus::{Expect, Store};
use trimtab_events::{Candidate, Scope, key_of};
use trimtab_simulation::cluster::{Cluster, DAY, End, subject};
use trimtab_targets::{Change, Changes, Class, Inventory, Item, ReadsOf, TargetError};

use crate::follow::Crew;

const NOW: i64 = 1_800_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const WEEK: i64 = 7 * 24 * 60;

type Result<T> = std::result::Result<T, TargetError>;

/// A cluster that tells of changes, or does not.
#[derive(Default)]
struct Told {
    cluster: Mutex<Cluster>,
    listener: Mutex<Option<UnboundedSender<Change>>>,
    refuses: AtomicBool,
    unreadable: AtomicBool,
}

struct Listener(UnboundedReceiver<Change>);

impl Changes for Listener {
    fn next(&mut self) -> BoxFuture<'_, Change> {
        async {
            match self.0.recv().await {
                Some(change) => change,
                None => futures::future::pending().await,
            }
        }
        .boxed()
    }
}

impl Told {
    fn tell(&self, change: Change) {
        if let Some(listener) = &*self.listener.lock().unwrap() {
            let _ = listener.send(change);
        }
    }

    fn changed(&self, name: &str) {
        let shard = format!("acme/{}", name.split('/').next().unwrap());
        self.tell(Change::Topic { shard, subject: subject(name) });
    }

    fn add(&self, name: &str, closed_ms: i64) {
        self.cluster.lock().unwrap().add(name, &[closed_ms], WEEK, 0, End::Caught);
    }
}

impl Inventory for Told {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        futures::future::ready(Ok("told".to_owned())).boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        let shard = |name: &String| name.trim_start_matches("persistent://").rsplit_once('/').unwrap().0.to_owned();
        let all: BTreeSet<String> = match (&scope.namespace, scope.topics.as_slice()) {
            (Some(one), _) => [one.clone()].into(),
            (None, []) => self.cluster.lock().unwrap().topics.keys().map(shard).collect(),
            (None, topics) => topics.iter().map(shard).collect(),
        };
        futures::future::ready(Ok(all.into_iter().collect())).boxed()
    }

    fn scan<'a>(&'a self, shard: &'a str, scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        if self.unreadable.load(Ordering::Relaxed) && shard == "acme/a" {
            let e = TargetError::new(Class::Refused, "reading acme/a", "the test says so");
            return stream::iter([Err(e)]).boxed();
        }
        let cluster = self.cluster.lock().unwrap();
        let wanted = |name: &String| {
            name.starts_with(&format!("persistent://{shard}/"))
                && (scope.topics.is_empty() || scope.topics.contains(name))
        };
        let topics: Vec<_> =
            cluster.topics.iter().filter(|(name, _)| wanted(name)).map(|(_, topic)| topic.clone()).collect();
        let item = |topic| Ok(Item::Candidate(Candidate::Ledger(Box::new(topic))));
        stream::iter(topics.into_iter().map(item)).boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        let topic = self.cluster.lock().unwrap().topics.get(subject).cloned();
        futures::future::ready(Ok(topic.map(|topic| Candidate::Ledger(Box::new(topic))))).boxed()
    }

    fn follow(&self) -> BoxFuture<'_, Result<Box<dyn Changes>>> {
        let followed = if self.refuses.load(Ordering::Relaxed) {
            Err(TargetError::new(Class::Refused, "setting a watch", "the server is too old"))
        } else {
            let (sender, receiver) = unbounded_channel();
            *self.listener.lock().unwrap() = Some(sender);
            Ok(Box::new(Listener(receiver)) as Box<dyn Changes>)
        };
        futures::future::ready(followed).boxed()
    }

    fn operations(&self) -> u64 {
        0
    }
}

/// A crew that looks once a minute and reads everything once an hour, on the runtime's clock.
fn crew(told: &Arc<Told>, caps: Caps) -> Crew {
    let begun = Instant::now();
    let clock = Clock::from_fn(move || NOW + i64::try_from(begun.elapsed().as_millis()).unwrap());
    Crew::new(told.clone(), clock, caps, MINUTE, HOUR)
}

fn lax() -> Caps {
    Caps { max_share: 1.0, ..Caps::default() }
}

#[tokio::test(start_paused = true)]
async fn where_nobody_listens_topics_fall_due_and_full_scans_find_the_rest() {
    let told = Arc::new(Told::default());
    told.refuses.store(true, Ordering::Relaxed);
    // One falls due in half an hour by time alone.
    told.add("a/later", NOW - 7 * DAY + 30 * 60_000);
    let crew = crew(&told, lax());
    let (_, state) = crew.follow("one");
    tokio::time::sleep(20 * MINUTE).await;
    assert!(state.check().unwrap_err().contains("too old"));
    assert_eq!((crew.full_scans(), crew.times(&subject("a/later"))), (1, 0));
    tokio::time::sleep(15 * MINUTE).await;
    assert_eq!((crew.full_scans(), crew.times(&subject("a/later"))), (1, 1));
    told.add("a/new", NOW - 30 * DAY);
    told.changed("a/new");
    tokio::time::sleep(15 * MINUTE).await;
    assert_eq!(crew.times(&subject("a/new")), 0);
    tokio::time::sleep(15 * MINUTE).await;
    assert_eq!((crew.full_scans(), crew.times(&subject("a/new"))), (2, 1));
    // Once it can be listened to, everything is read after that.
    told.refuses.store(false, Ordering::Relaxed);
    tokio::time::sleep(15 * MINUTE).await;
    assert_eq!((state.check(), crew.full_scans()), (Ok(()), 3));
    told.add("a/heard", NOW - 30 * DAY);
    told.changed("a/heard");
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!((crew.full_scans(), crew.times(&subject("a/heard"))), (3, 1));
    crew.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_changes_all_the_time_is_proposed_once_between_full_scans() {
    let told = Arc::new(Told::default());
    told.add("a/x", NOW - 30 * DAY);
    let crew = crew(&told, lax());
    crew.follow("one");
    for _ in 0..50 {
        tokio::time::sleep(MINUTE).await;
        told.changed("a/x");
    }
    // Once by the full scan, once by a followed one.
    assert_eq!((crew.full_scans(), crew.times(&subject("a/x"))), (1, 2));
    assert!(crew.reports().len() > 40, "it was looked at all the time");
    // Its gates are forgotten, since nothing came of them.
    tokio::time::sleep(3 * MINUTE).await;
    let gates = crew.store.list("scans", "gate/", None, 1000).await.unwrap();
    assert_eq!(gates.len(), 2);
    tokio::time::sleep(15 * MINUTE).await;
    told.changed("a/x");
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!((crew.full_scans(), crew.times(&subject("a/x"))), (2, 4));
    crew.end().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_that_end_all_the_time_do_not_make_scans_of_everything_all_the_time() {
    let told = Arc::new(Told::default());
    told.add("a/x", NOW - DAY);
    let crew = crew(&told, lax());
    let (follower, _) = crew.follow("one");
    for _ in 0..50 {
        tokio::time::sleep(MINUTE).await;
        told.tell(Change::Missed("the test says so".to_owned()));
    }
    let scans = crew.full_scans();
    assert!((4..=6).contains(&scans), "{scans} in 50 minutes");
    // Nobody else follows meanwhile, and one does once it has died.
    let (second, _) = crew.follow("two");
    tokio::time::sleep(15 * MINUTE).await;
    let scans = crew.full_scans();
    tokio::time::sleep(15 * MINUTE).await;
    assert_eq!(crew.full_scans(), scans);
    follower.abort();
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!((crew.full_scans(), second.is_finished()), (scans + 1, false));
    crew.end().await;
}

#[tokio::test(start_paused = true)]
async fn too_many_changes_become_namespaces_and_too_many_of_those_a_full_scan() {
    let told = Arc::new(Told::default());
    told.add("a/x", NOW - DAY);
    told.add("b/x", NOW - DAY);
    let crew = crew(&told, lax());
    crew.follow("one");
    tokio::time::sleep(3 * MINUTE).await;
    for number in 0..50_001 {
        told.changed(&format!("a/{number}"));
    }
    told.changed("b/x");
    tokio::time::sleep(3 * MINUTE).await;
    let scopes: Vec<Scope> = crew.reports().into_iter().map(|report| report.scope).collect();
    let namespaces: Vec<_> = scopes.iter().filter_map(|scope| scope.namespace.as_deref()).collect();
    // What came after the overflow is still a topic.
    assert_eq!((namespaces, scopes.len(), scopes[2].topics.len()), (vec!["acme/a"], 3, 1));
    for number in 0..1_001 {
        told.tell(Change::Shard(format!("acme/{number}")));
    }
    // Not sooner than ten minutes after the last one.
    tokio::time::sleep(9 * MINUTE).await;
    assert_eq!((crew.full_scans(), crew.reports().len()), (2, 4));
    crew.end().await;
}

#[tokio::test(start_paused = true)]
async fn many_small_scans_do_not_do_together_what_one_may_not() {
    let told = Arc::new(Told::default());
    for number in 0..40 {
        told.add(&format!("a/{number:02}"), NOW - DAY);
    }
    let crew = crew(&told, Caps { max_share: 0.25, ..Caps::default() });
    crew.follow("one");
    tokio::time::sleep(3 * MINUTE).await;
    for number in 0..12 {
        let name = format!("a/{number:02}");
        told.add(&name, NOW - 30 * DAY);
        told.changed(&name);
        tokio::time::sleep(3 * MINUTE).await;
    }
    let stopped: Vec<bool> = crew.reports().iter().map(|report| report.stopped.is_some()).collect();
    assert_eq!(stopped, [vec![false; 11], vec![true; 2]].concat(), "ten of forty, and no more");
    assert!(crew.reports()[11].stopped.as_deref().unwrap().contains("max_share"));
    // A full scan says what it says of all of them together.
    tokio::time::sleep(HOUR).await;
    let full = crew.reports().into_iter().rfind(|report| report.scope.is_all()).unwrap();
    assert!(full.stopped.is_some_and(|why| why.contains("max_share")) && full.proposed.acts == 12);
    crew.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_read_is_looked_at_again() {
    let told = Arc::new(Told::default());
    told.add("a/x", NOW - DAY);
    let crew = crew(&told, lax());
    crew.follow("one");
    tokio::time::sleep(3 * MINUTE).await;
    told.unreadable.store(true, Ordering::Relaxed);
    told.add("a/x", NOW - 30 * DAY);
    told.changed("a/x");
    tokio::time::sleep(3 * MINUTE).await;
    assert!(!crew.reports()[1].complete && crew.reports().len() == 2);
    told.unreadable.store(false, Ordering::Relaxed);
    tokio::time::sleep(12 * MINUTE).await;
    assert_eq!((crew.full_scans(), crew.times(&subject("a/x"))), (1, 1));
    crew.end().await;
}

/// Who does not look at subscribers must not forget them.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_changed_keeps_the_histories_of_its_subscribers() {
    let told = Arc::new(Told::default());
    told.add("a/x", NOW - DAY);
    let crew = crew(&told, lax());
    crew.follow("one");
    tokio::time::sleep(3 * MINUTE).await;
    let history = format!("pulsar/{}/directory", key_of("pulsar", "acme/a"));
    let noted = br#"{"generation":7,"firsts":["x"],"last":""}"#;
    crew.store.put("history", &history, noted, Expect::Anything).await.unwrap();
    told.tell(Change::Shard("acme/a".to_owned()));
    tokio::time::sleep(3 * MINUTE).await;
    assert_eq!(crew.reports().last().unwrap().scope.namespace.as_deref(), Some("acme/a"));
    assert_eq!(crew.store.get("history", &history).await.unwrap().unwrap().value, noted);
    // A full scan sees that nobody is there.
    tokio::time::sleep(HOUR).await;
    assert_ne!(crew.store.get("history", &history).await.unwrap().unwrap().value, noted);
    crew.end().await;
}
