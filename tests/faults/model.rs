//! The model of a Pulsar cluster that simulations use, in the hands of a process each of whose calls can be made to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use trimtab::clock::Clock;
use trimtab::journal::{self, RecordKind};
use trimtab_events::{Candidate, Decision, Loaded, Scope, Verdict};
use trimtab_simulation::cluster::{self as model, DAY, End};
use trimtab_targets::{Act, Class, Effect, Inventory, Item, Permit, ReadsOf, Record, TargetError};

use crate::points::{Mode, Points};

/// Retention of topics that are due: a week. Of those whose second visit a test waits for: ten minutes.
const WEEK: i64 = 7 * 24 * 60;
pub(crate) const SHORT: i64 = 10;

type Result<T> = std::result::Result<T, TargetError>;

/// The cluster itself. It outlives the processes that work on it.
#[derive(Clone, Default)]
pub(crate) struct Cluster(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    model: model::Cluster,
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
            let topics = &mut cluster.lock().model;
            let old = now_ms - 30 * DAY;
            for name in ["a/due-0", "a/due-1", "b/due-2"] {
                topics.add(name, &[old, old, old], WEEK, 0, End::Caught);
            }
            topics.add("a/young", &[now_ms - DAY, now_ms - DAY], WEEK, 0, End::Caught);
            topics.add("b/expire", &[old, old, old], SHORT, 3600, End::Start);
            topics.add("b/clock", &[], SHORT, 0, End::Caught);
            topics.add("b/held", &[old, old], WEEK, 0, End::Start);
            topics.add("a/forever", &[old, old], -1, 0, End::Caught);
        }
        cluster
    }

    /// Ids that each topic has, ledgers without entries not counted.
    pub(crate) fn filled(&self) -> BTreeMap<String, BTreeSet<i64>> {
        let filled = |topic| model::filled(topic).into_iter().collect();
        self.lock().model.topics.iter().map(|(name, topic)| (name.clone(), filled(topic))).collect()
    }

    /// Topics that are loaded now.
    pub(crate) fn loaded(&self) -> Vec<String> {
        let state = self.lock();
        let topics = &state.model.topics;
        topics.iter().filter(|(_, topic)| topic.loaded == Loaded::Yes).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn acts(&self) -> Vec<String> {
        self.lock().acts.clone()
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
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
        match self.call("act.close", |state| state.model.close(name, 0, self.clock.now_ms())).await {
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
            self.cluster.lock().model.topics.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        let read = move |name: String| async move {
            let topic = self.call("target.scan", |state| state.model.topics[&name].clone()).await?;
            Ok(Item::Candidate(Candidate::Ledger(Box::new(topic))))
        };
        stream::iter(names).then(read).boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let topic = self.call("target.observe", |state| state.model.topics.get(subject).cloned()).await?;
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
                        self.call("act.expire", |s| s.model.expire(name, &expire.subscription, expire.ttl_s, now))
                            .await?;
                        visited = true;
                    }
                }
                self.call("act.trim", |state| state.model.trim(name, self.clock.now_ms())).await
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
