//! A cluster that exists in memory only: topics with ledgers and cursors, and a broker that loads, expires, trims and closes them
//! as Pulsar's does, by rules of its own. Fast, and each of its calls can be made to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use trimtab::clock::Clock;
use trimtab::journal::{self, RecordKind};
use trimtab_events::{
    Candidate, Cursor, CursorKind, Decision, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded,
    Partition, Policies, Position, Retention, Scope, Seen, Setting, TopicClass, Verdict,
};
use trimtab_targets::{Act, Class, Effect, Inventory, Item, Permit, ReadsOf, Record, TargetError};

use crate::points::{Mode, Points};

pub(crate) const MINUTE: i64 = 60_000;
pub(crate) const DAY: i64 = 24 * 60 * MINUTE;
/// Retention of topics that are due: a week. Of those whose second visit a test waits for: ten minutes.
const WEEK: i64 = 7 * 24 * 60;
pub(crate) const SHORT: i64 = 10;

type Result<T> = std::result::Result<T, TargetError>;

/// The cluster itself. It outlives the processes that work on it.
#[derive(Clone, Default)]
pub(crate) struct Cluster(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    topics: BTreeMap<String, LedgerCandidate>,
    zxid: i64,
    /// Each act that was begun: decision and scan.
    acts: Vec<String>,
    /// What a call must never have done, in words.
    wrong: Vec<String>,
}

impl Cluster {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A few topics of each kind, as of `now_ms`: due, due after expiry, with an old last ledger only, held, young.
    pub(crate) fn small(now_ms: i64) -> Cluster {
        let cluster = Cluster::default();
        {
            let mut state = cluster.lock();
            let old = now_ms - 30 * DAY;
            for name in ["a/due-0", "a/due-1", "b/due-2"] {
                state.add(name, [Some(old), Some(old), Some(old), None], WEEK, 0, End::Caught);
            }
            state.add("a/young", [Some(now_ms - DAY), Some(now_ms - DAY), None, None], WEEK, 0, End::Caught);
            state.add("b/expire", [Some(old), Some(old), Some(old), None], SHORT, 3600, End::Start);
            state.add("b/clock", [None, None, None, None], SHORT, 0, End::Caught);
            state.add("b/held", [Some(old), Some(old), None, None], WEEK, 0, End::Start);
            state.add("a/forever", [Some(old), Some(old), None, None], -1, 0, End::Caught);
        }
        cluster
    }

    /// Ids that each topic has, ledgers without entries not counted.
    pub(crate) fn filled(&self) -> BTreeMap<String, BTreeSet<i64>> {
        let filled = |topic: &LedgerCandidate| {
            let list = topic.ledgers.present().cloned().unwrap_or_default();
            list.iter().filter(|info| entries(topic, info) > 0).map(|info| info.id).collect()
        };
        self.lock().topics.iter().map(|(name, topic)| (name.clone(), filled(topic))).collect()
    }

    /// Topics that are loaded now.
    pub(crate) fn loaded(&self) -> Vec<String> {
        let state = self.lock();
        state.topics.iter().filter(|(_, topic)| topic.loaded == Loaded::Yes).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn acts(&self) -> Vec<String> {
        self.lock().acts.clone()
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }
}

/// Where a topic's one cursor stands.
#[derive(Clone, Copy)]
enum End {
    Caught,
    Start,
}

fn subject(name: &str) -> String {
    format!("persistent://acme/{name}")
}

fn entries(topic: &LedgerCandidate, info: &LedgerInfo) -> i64 {
    match (&topic.last, info.closed_ms) {
        (LastLedger::Closed { entries, .. }, 0) => *entries,
        _ => info.entries.unwrap_or(0),
    }
}

impl State {
    /// A topic with these ledgers, each with the time it was closed, or the last one, closed long ago by BookKeeper only.
    fn add(&mut self, name: &str, closed: [Option<i64>; 4], minutes: i64, ttl_s: i64, end: End) {
        let first = i64::try_from(self.topics.len()).unwrap() * 100;
        let mut list: Vec<LedgerInfo> = Vec::new();
        for (index, closed_ms) in (0..).zip(closed.iter().flatten()) {
            let info = LedgerInfo {
                id: first + index,
                entries: Some(10),
                bytes: Some(1000),
                closed_ms: *closed_ms,
                offload: None,
            };
            list.push(info);
        }
        let last = first + i64::try_from(list.len()).unwrap();
        list.push(LedgerInfo { id: last, entries: None, bytes: None, closed_ms: 0, offload: None });
        let old = closed[0].unwrap_or(DAY);
        let position = match end {
            End::Caught => Position { ledger: last, entry: 9 },
            End::Start => Position { ledger: first, entry: -1 },
        };
        let cursor = Cursor {
            name: "s".to_owned(),
            kind: CursorKind::Subscription,
            mark_delete: Evidence::Present(position),
            lower_bound: false,
            modified_ms: old,
            last_active_ms: old,
            detail: None,
        };
        self.zxid += 1;
        let level = Level::Namespace;
        let topic = LedgerCandidate {
            subject: subject(name),
            class: TopicClass::User,
            seen: Seen { version: 0, created_zxid: self.zxid, modified_zxid: self.zxid, modified_ms: old },
            partition: Partition::None,
            ledgers: Evidence::Present(list),
            last: LastLedger::Closed { entries: 10, bytes: 1000, closed_ms: old },
            loaded: Loaded::No,
            cursors: Evidence::Present(vec![cursor]),
            terminated: false,
            shadow: false,
            policies: Evidence::Present(Policies {
                deleted: false,
                retention: Setting { value: Retention { minutes, mib: -1 }, level },
                ttl_s: Setting { value: ttl_s, level },
                offload_deletion_lag_ms: 4 * 60 * MINUTE,
                topic_level_unknown: None,
                subscription_expiration_minutes: None,
            }),
        };
        self.topics.insert(subject(name), topic);
    }

    fn touched(&mut self, name: &str, now_ms: i64) {
        self.zxid += 1;
        let zxid = self.zxid;
        let topic = self.topics.get_mut(name).unwrap();
        topic.seen = Seen {
            version: topic.seen.version + 1,
            modified_zxid: zxid,
            modified_ms: now_ms.max(topic.seen.modified_ms),
            ..topic.seen
        };
    }

    /// Loading closes the last ledger in the list as of now, and makes a new one.
    fn load(&mut self, name: &str, now_ms: i64) {
        let Some(topic) = self.topics.get_mut(name).filter(|topic| topic.loaded == Loaded::No) else { return };
        let LastLedger::Closed { entries, bytes, .. } = topic.last else { return };
        let Evidence::Present(list) = &mut topic.ledgers else { return };
        let end = list.pop().unwrap();
        let next = end.id + 1;
        if entries > 0 {
            list.push(LedgerInfo { entries: Some(entries), bytes: Some(bytes), closed_ms: now_ms, ..end });
        }
        list.push(LedgerInfo { id: next, entries: None, bytes: None, closed_ms: 0, offload: None });
        (topic.last, topic.loaded) = (LastLedger::Open, Loaded::Yes);
        self.touched(name, now_ms);
    }

    fn close(&mut self, name: &str, now_ms: i64) {
        let Some(topic) = self.topics.get_mut(name).filter(|topic| topic.loaded == Loaded::Yes) else { return };
        (topic.last, topic.loaded) = (LastLedger::Closed { entries: 0, bytes: 0, closed_ms: now_ms }, Loaded::No);
        self.touched(name, now_ms);
    }

    /// Moves a cursor behind each ledger whose messages are all older than that.
    fn expire(&mut self, name: &str, subscription: &str, ttl_s: i64, now_ms: i64) {
        self.load(name, now_ms);
        let Some(topic) = self.topics.get_mut(name) else { return };
        let Some(list) = topic.ledgers.present().cloned() else { return };
        let Evidence::Present(cursors) = &mut topic.cursors else { return };
        let Some(cursor) = cursors.iter_mut().find(|cursor| cursor.name == subscription) else { return };
        let written = |info: &&LedgerInfo| info.closed_ms > 0 && now_ms - info.closed_ms > ttl_s * 1000;
        if let Some(old) = list.iter().take_while(written).last() {
            let behind = Position { ledger: old.id, entry: old.entries.unwrap_or(0) - 1 };
            if cursor.mark_delete.present().is_some_and(|at| *at < behind) {
                cursor.mark_delete = Evidence::Present(behind);
            }
        }
    }

    /// Removes what is before every cursor and past retention, from the front.
    fn trim(&mut self, name: &str, now_ms: i64) {
        self.load(name, now_ms);
        let Some(topic) = self.topics.get_mut(name) else { return };
        let minutes = topic.policies.present().map_or(-1, |policies| policies.retention.value.minutes);
        let cursors = topic.cursors.present().cloned().unwrap_or_default();
        let Evidence::Present(list) = &mut topic.ledgers else { return };
        let passed = |info: &LedgerInfo| {
            let at_end = Position { ledger: info.id, entry: info.entries.unwrap_or(0) - 1 };
            cursors.iter().all(|cursor| cursor.mark_delete.present().is_some_and(|at| *at >= at_end))
        };
        while list.len() > 1
            && passed(&list[0])
            && minutes >= 0
            && (minutes == 0 || now_ms - list[0].closed_ms > minutes * MINUTE)
        {
            list.remove(0);
        }
        self.touched(name, now_ms);
    }
}

/// What one process sees of the cluster, and how it calls it.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) cluster: Cluster,
    pub(crate) points: Points,
    pub(crate) clock: Clock,
    /// Where the intent of each act must stand before its first call.
    pub(crate) journal: PathBuf,
}

fn error(what: &str, mode: Mode) -> TargetError {
    let class = if mode == Mode::Refuse { Class::Refused } else { Class::Transient };
    TargetError::new(class, what, "the test says so")
}

impl Client {
    async fn call<T>(&self, label: &str, work: impl FnOnce(&mut State) -> T) -> Result<T> {
        let cluster = &self.cluster;
        let work = async move { Ok(work(&mut cluster.lock())) };
        self.points.call(label, work, |mode| error(label, mode)).await
    }

    fn recorded(&self, key: &str) -> bool {
        let mut found = false;
        let read = journal::read(&self.journal, |record| {
            let decision = &record.body["decision"];
            found |= record.kind == RecordKind::Intent && key_of(&decision["id"], &decision["scan"]["id"]) == key;
        });
        read.is_ok() && found
    }

    async fn closed(&self, name: &str, effect: &mut Effect) {
        match self.call("act.close", |state| state.close(name, self.clock.now_ms())).await {
            Ok(()) => effect.unloaded = true,
            Err(e) => effect.notes.push(format!("the topic was not closed again: {e}")),
        }
    }
}

fn loaded(seen: &Candidate) -> bool {
    seen.topic().is_some_and(|topic| topic.loaded != Loaded::No)
}

fn key_of(decision: &serde_json::Value, scan: &serde_json::Value) -> String {
    format!("{}/{}", decision.as_str().unwrap_or_default(), scan.as_str().unwrap_or_default())
}

impl Inventory for Client {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        async { self.call("target.identity", |_| "model".to_owned()).await }.boxed()
    }

    fn shards<'a>(&'a self, _scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        async { self.call("target.shards", |_| vec!["acme/a".to_owned(), "acme/b".to_owned()]).await }.boxed()
    }

    fn scan<'a>(&'a self, shard: &'a str, _scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let prefix = format!("persistent://{shard}/");
        let names: Vec<String> =
            self.cluster.lock().topics.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        let read = move |name: String| async move {
            let topic = self.call("target.scan", |state| state.topics[&name].clone()).await?;
            Ok(Item::Candidate(Candidate::Ledger(Box::new(topic))))
        };
        stream::iter(names).then(read).boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let topic = self.call("target.observe", |state| state.topics.get(subject).cloned()).await?;
            Ok(topic.map(|topic| Candidate::Ledger(Box::new(topic))))
        }
        .boxed()
    }

    fn operations(&self) -> u64 {
        0
    }
}

impl Act for Client {
    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        _record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            let name = decision.subject.as_str();
            let key = format!("{}/{}", decision.id, decision.scan.id);
            {
                let recorded = self.recorded(&key);
                let mut state = self.cluster.lock();
                if !recorded {
                    state.wrong.push(format!("{name}: called before its intent was on disk"));
                }
                if state.acts.contains(&key) {
                    state.wrong.push(format!("{name}: carried out twice"));
                }
                if loaded(seen) {
                    state.wrong.push(format!("{name}: called although somebody has it loaded"));
                }
                state.acts.push(key);
            }
            let (mut effect, mut visited) = (Effect::default(), false);
            let done = async {
                if decision.verdict == Verdict::ExpireThenTrim {
                    for expire in &decision.expire {
                        let now = self.clock.now_ms();
                        self.call("act.expire", |s| s.expire(name, &expire.subscription, expire.ttl_s, now)).await?;
                        visited = true;
                    }
                }
                self.call("act.trim", |state| state.trim(name, self.clock.now_ms())).await
            };
            let done = done.await;
            // As with the real one: a call that was not understood is no visit.
            if visited || !matches!(&done, Err(e) if e.class() != Class::Transient) {
                self.closed(name, &mut effect).await;
            }
            done.map(|()| effect)
        }
        .boxed()
    }

    fn tidy<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            let mut effect = Effect::default();
            if loaded(seen) {
                self.closed(&decision.subject, &mut effect).await;
            }
            Ok(effect)
        }
        .boxed()
    }
}
