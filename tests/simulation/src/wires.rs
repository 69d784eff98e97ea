//! The bus, the store and the disk of a process, each of whose calls may go wrong. Behind them are the real bus inside one process and a
//! store in memory; what goes through them is held against what may be said there.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::time::sleep;
use trimtab::journal::Disk;
use trimtab_bus::{
    Bus, BusError, DeadLetter, Delivery, Document, Expect, InProcess, Lease, MemoryStore, Published, Role, Settle,
    Store,
};
use trimtab_events::{Announced, Body, Event, Mark, ScanReport, Status, split_subscriber};

use crate::target::SHARDS;
use crate::world::{Hands, State, World};

type Result<T> = std::result::Result<T, BusError>;

fn failed(label: &str) -> impl Fn(&str) -> BusError {
    move |why| BusError::Unavailable { what: label.to_owned(), why: why.to_owned() }
}

/// The bus, as one process reaches it.
pub(crate) struct SimBus(pub Hands);

impl SimBus {
    fn bus(&self) -> Arc<InProcess> {
        self.0.world.lock().bus.clone()
    }

    /// Publishes, or has the network do something else with it.
    async fn send(&self, event: &Event) -> Result<Published> {
        enum Way {
            Lost,
            Twice(Duration),
            Later(Duration),
            Straight,
        }
        let way = {
            let mut state = self.0.world.lock();
            let weather = state.weather.clone();
            state.seen_events.push_back(event.clone());
            if state.seen_events.len() > 32 {
                state.seen_events.pop_front();
            }
            let wait = Duration::from_millis(state.rng.u64(0..600_000));
            let quiet = state.quiet;
            let way = match quiet {
                true => Way::Straight,
                false if state.one_in(weather.lost) => Way::Lost,
                false if state.one_in(weather.twice) => Way::Twice(wait),
                false if state.one_in(weather.delayed) => Way::Later(wait),
                false => Way::Straight,
            };
            let how = match way {
                Way::Lost => " lost",
                Way::Twice(_) => " twice",
                Way::Later(_) => " late",
                Way::Straight => "",
            };
            let kind = trimtab::worker::short(&event.kind);
            state.say(&self.0.name, format_args!("publishes {kind} {} {}{how}", event.id, event.subject));
            if let Ok(Body::Outcome(outcome)) = event.body() {
                let why = outcome.reasons.first().map_or("", |reason| reason.says.as_str());
                let (status, freed) = (outcome.status.name(), &outcome.freed);
                let gone = outcome.reasons.first().is_some_and(|reason| reason.rule == "gone");
                if gone && outcome.status == Status::Skipped {
                    must_have_gone(&mut state, &outcome.subject, "skipped");
                }
                state.say(&self.0.name, format_args!("  {} {status}, freed {freed:?}: {why}", outcome.verdict));
            }
            if let Ok(Body::ScanReport(report)) = event.body() {
                ends(&mut state, &report);
            }
            if let Ok(Body::Notice(notice)) = event.body()
                && notice.announced == Announced::Cleared
                && notice.says.contains("does not exist")
            {
                must_have_gone(&mut state, &notice.subject, "cleared");
            }
            way
        };
        match way {
            Way::Lost => Ok(Published::Stored),
            Way::Straight => self.bus().publish(event).await,
            Way::Later(wait) => {
                let (world, event) = (self.0.world.clone(), event.clone());
                tokio::spawn(async move {
                    sleep(wait).await;
                    let bus = world.lock().bus.clone();
                    let _ = bus.publish(&event).await;
                });
                Ok(Published::Stored)
            }
            Way::Twice(wait) => {
                let (world, event) = (self.0.world.clone(), event.clone());
                let published = self.bus().publish(&event).await?;
                tokio::spawn(async move {
                    sleep(wait).await;
                    again(&world, &event).await;
                });
                Ok(published)
            }
        }
    }
}

/// Holds the end of a scan against what was read of it.
fn ends(state: &mut State, report: &ScanReport) {
    let id = report.scan.id;
    let shards = if report.scope.topic.is_some() { 1 } else { SHARDS.len() as u64 };
    if report.shards != shards {
        state.broken(format!("scan {id} ends with {} of {shards} shards", report.shards));
    }
    // A topic more or less may come or go while it is read, and each of them once.
    let most = state.topics.len() as u64 + state.logs.len() as u64;
    if report.topics > most {
        state.broken(format!("scan {id} has counted {} topics, and there were never more than {most}", report.topics));
    }
}

/// Holds it against the truth when somebody says that something is not there.
fn must_have_gone(state: &mut State, subject: &str, how: &str) {
    let whole = split_subscriber(subject).map_or(subject, |(log, _)| log);
    let hour = state.now_ms() - 3_600_000;
    let topic = state.topics.get(whole).is_some_and(|versions| versions.since(hour).all(|topic| topic.is_some()));
    let log = state.logs.get(whole).is_some_and(|versions| versions.since(hour).all(|log| log.is_some()));
    if topic || log {
        state.broken(format!("{how} {subject}: it is said not to exist, and it does"));
    }
}

/// Puts an event into its queue, whatever de-duplication and keys say.
pub(crate) async fn again(world: &World, event: &Event) {
    let bus = world.lock().bus.clone();
    if let (Some(role), Ok(bytes)) = (Role::of(event), event.to_bytes()) {
        let _ = bus.publish_bytes(role, bytes).await;
    }
}

impl Bus for SimBus {
    fn publish<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Result<Published>> {
        async move {
            let label = format!("publish {}", trimtab::worker::short(&event.kind));
            self.0.call(&label, self.send(event), failed(&label)).await
        }
        .boxed()
    }

    fn take(&self, role: Role) -> BoxFuture<'_, Result<Delivery>> {
        async move {
            let label = format!("take {}", role.name());
            let taken = self.0.call(&label, async { self.bus().take(role).await }, failed(&label)).await;
            // The server lost the queue: its clients find another one there.
            let taken = taken.map_err(|e| match e {
                BusError::Closed => failed(&label)("the queue is gone"),
                other => other,
            })?;
            if let (Role::Executor, Ok(event)) = (role, &taken.event)
                && let Ok(Body::Decision(decision)) = event.body()
            {
                let mut state = self.0.world.lock();
                let now = state.now_ms();
                let key = format!("{}/{}", decision.id, decision.scan.id);
                // The first time: while it is at it, another task of it may be given the same event, and waits.
                state.taken.entry((self.0.name.to_string(), key)).or_insert(now);
            }
            let settle = SimSettle { settle: taken.settle, role, hands: self.0.clone() };
            Ok(Delivery { settle: Box::new(settle), ..taken })
        }
        .boxed()
    }

    fn take_lane<'a>(&'a self, role: Role, lane: &'a str) -> BoxFuture<'a, Result<Delivery>> {
        async move { self.bus().take_lane(role, lane).await }.boxed()
    }

    fn depth(&self, role: Role) -> BoxFuture<'_, Result<u64>> {
        async move { self.0.call("depth", async { self.bus().depth(role).await }, failed("depth")).await }.boxed()
    }

    fn dead(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>>> {
        async move { self.bus().dead(limit).await }.boxed()
    }

    fn letter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<DeadLetter>>> {
        async move { self.bus().letter(id).await }.boxed()
    }

    fn retry<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Published>>> {
        async move { self.bus().retry(id).await }.boxed()
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        async move { self.bus().forget(id).await }.boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

struct SimSettle {
    settle: Box<dyn Settle>,
    role: Role,
    hands: Hands,
}

impl SimSettle {
    fn settled(
        self: Box<Self>,
        how: &'static str,
        settle: impl FnOnce(Box<dyn Settle>) -> BoxFuture<'static, Result<()>> + Send + 'static,
    ) -> BoxFuture<'static, Result<()>> {
        async move {
            let SimSettle { settle: inner, role, hands } = *self;
            let label = format!("{how} {}", role.name());
            hands.call(&label, settle(inner), failed(&label)).await
        }
        .boxed()
    }
}

impl Settle for SimSettle {
    fn done(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        self.settled("done", |settle| settle.done())
    }

    fn again(self: Box<Self>, after: Duration) -> BoxFuture<'static, Result<()>> {
        self.settled("again", move |settle| settle.again(after))
    }

    fn dead(self: Box<Self>, why: String) -> BoxFuture<'static, Result<()>> {
        // Not why: that names keys, which no run has from its seed.
        self.hands.world.lock().say(&self.hands.name, format_args!("gives up an event for {}", self.role.name()));
        self.settled("dead", move |settle| settle.dead(why))
    }

    fn working(&self) -> BoxFuture<'_, Result<()>> {
        async move { self.hands.call("working", self.settle.working(), failed("working")).await }.boxed()
    }
}

/// The store, as one process reaches it.
pub(crate) struct SimStore(pub Hands);

impl SimStore {
    fn store(&self) -> &MemoryStore {
        &self.0.world.store
    }

    async fn call<T>(&self, verb: &str, key: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        // `gate.<scan>` of every scan is one kind of call.
        let label = format!("{verb} {}", key.split(['.', '/']).next().unwrap_or_default());
        self.0.call(&label, work, failed(&label)).await
    }
}

/// Holds what was written about scans against what may be.
fn watch(state: &mut State, key: &str, value: &[u8]) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(value) else { return };
    let fence = value["scan"]["fence"].as_u64().unwrap_or(0);
    let now = state.now_ms();
    if let Some(scan) = key.strip_prefix("gate/") {
        let closed = value["stopped"].is_string() && value["confirmed_by"].is_null();
        state.gates.entry(scan.to_owned()).or_default().push((now, closed));
        let before = state.fences.insert(key.to_owned(), (fence, closed));
        if let Some((known, was_closed)) = before.filter(|(known, _)| *known > fence) {
            state.broken(format!(
                "the gate of scan {scan} by lease {known} (closed: {was_closed}) was replaced by lease {fence}'s"
            ));
        }
    } else if let Some(scan) = key.strip_prefix("progress/") {
        let done = value["done"].as_str().unwrap_or_default().to_owned();
        let shards = value["report"]["shards"].as_u64().unwrap_or(0);
        let before = state.progress.insert(scan.to_owned(), (done.clone(), shards));
        if let Some((known, count)) = before.filter(|(known, count)| (*known == done) != (*count == shards)) {
            state.broken(format!("scan {scan} has {shards} shards, {done}, after {count}, {known}"));
        }
    } else if key.starts_with("leader/") {
        let before = state.fences.insert(key.to_owned(), (fence, false));
        if let Some((known, _)) = before.filter(|(known, _)| *known > fence) {
            state.broken(format!("lease {fence} leads after lease {known} has led"));
        }
    }
}

/// Remembers since when a subscriber has been announced.
fn note_mark(state: &mut State, value: &[u8]) {
    let Ok(mark) = serde_json::from_slice::<Mark>(value) else { return };
    let now = state.now_ms();
    let since = state.marked.get(&mark.subject).filter(|(_, progress)| *progress == mark.progress);
    let since = since.map_or(now, |(since, _)| *since);
    state.marked.insert(mark.subject, (since, mark.progress));
}

impl Store for SimStore {
    fn get<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        self.call("get", key, self.store().get(bucket, key)).boxed()
    }

    fn put<'a>(&'a self, bucket: &'a str, key: &'a str, value: &'a [u8], expect: Expect) -> BoxFuture<'a, Result<u64>> {
        let put = async move {
            let revision = self.store().put(bucket, key, value, expect).await?;
            let mut state = self.0.world.lock();
            state.say(&self.0.name, format_args!("writes {bucket}/{key}, {} bytes", value.len()));
            match bucket {
                "scans" => watch(&mut state, key, value),
                "marks" => note_mark(&mut state, value),
                _ => {}
            }
            Ok(revision)
        };
        self.call("put", key, put).boxed()
    }

    fn delete<'a>(&'a self, bucket: &'a str, key: &'a str, expect: Expect) -> BoxFuture<'a, Result<()>> {
        self.call("delete", key, self.store().delete(bucket, key, expect)).boxed()
    }

    fn list<'a>(
        &'a self,
        bucket: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Document>>> {
        self.call("list", prefix, self.store().list(bucket, prefix, after, limit)).boxed()
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, ttl: Duration) -> BoxFuture<'a, Result<Option<Lease>>> {
        self.call("acquire", name, self.store().acquire(name, holder, ttl)).boxed()
    }

    fn renew<'a>(&'a self, lease: &'a mut Lease, holder: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let (name, mut renewed) = (lease.name.clone(), lease.clone());
            self.call("renew", &name, self.store().renew(&mut renewed, holder)).await?;
            // Who was not told the new revision has the old one.
            *lease = renewed;
            Ok(())
        }
        .boxed()
    }

    fn release(&self, lease: Lease) -> BoxFuture<'_, Result<()>> {
        async move {
            let name = lease.name.clone();
            self.call("release", &name, self.store().release(lease)).await
        }
        .boxed()
    }
}

/// What of a record's file is on disk for good.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Synced {
    /// Bytes that a crash leaves.
    pub(crate) synced: u64,
    /// Bytes that were written.
    pub(crate) written: u64,
}

/// The disk of a record: what is not synced may be lost with its process, and an append that fails leaves a part behind.
pub(crate) struct SimDisk {
    /// The file.
    pub(crate) file: File,
    /// Whose.
    pub(crate) hands: Hands,
    /// What of it is safe.
    pub(crate) state: Arc<std::sync::Mutex<Synced>>,
    /// Intents that are written and not yet safe.
    pub(crate) intents: Vec<String>,
}

impl SimDisk {
    fn goes_wrong(&self, what: &str) -> io::Result<bool> {
        if !self.hands.lives() {
            return Err(io::Error::other("the process has ended"));
        }
        let (fails, crashes) = {
            let mut state = self.hands.world.lock();
            let one_in = state.weather.one_in;
            let goes = !state.quiet && state.one_in(one_in);
            (goes, goes && state.rng.bool())
        };
        if fails {
            self.hands.world.lock().say(&self.hands.name, format_args!("{what} fails, crash: {crashes}"));
        }
        if crashes {
            self.hands.die();
        }
        Ok(fails)
    }

    fn synced(&self) -> std::sync::MutexGuard<'_, Synced> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The act that a line of a record announces, if it does.
fn intent(line: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(line).ok()?;
    if !text.contains("\"kind\":\"intent\"") {
        return None;
    }
    let record: serde_json::Value = serde_json::from_str(text).ok()?;
    let decision = &record["body"]["decision"];
    Some(format!("{}/{}", decision["id"].as_str()?, decision["scan"]["id"].as_str()?))
}

impl Disk for SimDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.goes_wrong("append")? {
            let part = self.hands.world.lock().rng.usize(0..bytes.len());
            self.file.append(&bytes[..part])?;
            self.synced().written += part as u64;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.append(bytes)?;
        self.synced().written += bytes.len() as u64;
        self.intents.extend(bytes.split(|byte| *byte == b'\n').filter_map(intent));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.goes_wrong("sync")? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        {
            let mut synced = self.synced();
            synced.synced = synced.written;
        }
        let name = self.hands.name.to_string();
        let safe = self.intents.drain(..).map(|key| (name.clone(), key));
        self.hands.world.lock().intents.extend(safe);
        Ok(())
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        if self.goes_wrong("cut")? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.cut(length)?;
        self.intents.clear();
        *self.synced() = Synced { synced: length, written: length };
        Ok(())
    }
}
