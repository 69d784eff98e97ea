//! Scans a target and emits what may be worth acting on. One scan of a target at a time: whoever takes its request lists its shards, any
//! scanner reads them, each under a lease, and whoever has read the last one ends it. What is read is remembered, so a scan goes on whoever
//! dies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use opentelemetry::trace::TraceContextExt;
use tracing::{Span, info, info_span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use trimtab_bus::{BusError, Lease, Role, Store};
use trimtab_events::{
    Announced, Body, Candidate, Decision, Event, LedgerCandidate, Notice, OrphanCandidate, Page, ScanRef, ScanReport,
    ScanRequest, ScanShard, SubscriberCandidate, SubscriberClass, SurveyReport, TopicClass, Trace, Trigger, Verdict,
    event_id, key_of,
};
use trimtab_policy::rules::exclude::UNKNOWN;
use trimtab_policy::{Context, Policy, abridge, decide, decide_orphan, decide_subscribers, needs};
use trimtab_targets::{Class, Inventory, Item, Reads, TargetError};
use uuid::Uuid;

use super::source;
use crate::activity::{Activity, Cleared, ShardWatch, Watch};
use crate::clock::{Clock, timestamp};
use crate::config::Caps;
use crate::due::{DueIndex, Noting, horizon_ms};
use crate::metrics::Metrics;
use crate::scans::{
    Gate, LEADER_SILENCE_MS, Leader, Merged, Part, Progress, SHARDS_PAGE, Scans, Whole, over_caps, shrunk, skewed,
};
use crate::sightings::Sightings;
use crate::telemetry;
use crate::wishes::wishes_about;
use crate::worker::{Failure, Out, Worker};

/// How long a lease lasts without renewal.
const LEASE: Duration = Duration::from_secs(30);
/// When an event is looked at again that is new.
const LOOK_SOON: Duration = Duration::from_millis(500);
/// When one is that waits for long.
const LOOK_LATE: Duration = Duration::from_secs(30);
/// When a request is looked at again that waits for the end of another scan.
const NEXT_SCAN: Duration = Duration::from_secs(2);
/// How old an event gets before it is stored anew: it was delivered six hundred times at most by then.
const RENEWED_MS: i64 = 20 * 60 * 1000;
/// How long it is waited for room in the queue of scanners.
const ROOM: Duration = Duration::from_secs(10);
/// Candidates in one page. 64 is the most; 32 keeps a page of topics with many ledgers well below an event's size.
const PAGE: usize = 32;
/// Bytes of candidates in one page.
const PAGE_BYTES: usize = 256 * 1024;
/// Tries of one shard before it is reported as failed.
pub(crate) const SHARD_TRIES: u64 = 3;

/// What a scanner is made of.
pub struct ScannerParts {
    /// Name of the target.
    pub target: String,
    /// Name under which wishes to be left alone are noted: several targets may be parts of one cluster.
    pub cluster: String,
    /// What is scanned.
    pub inventory: Arc<dyn Inventory>,
    /// Decides what is worth emitting.
    pub policy: Policy,
    /// Limits on what a scan may have carried out.
    pub caps: Caps,
    /// Somebody follows changes: what falls due is noted for longer than this, the time between two full scans.
    pub follow: Option<Duration>,
    /// Leases.
    pub store: Arc<dyn Store>,
    /// The clock.
    pub clock: Clock,
    /// Name of this process.
    pub instance: String,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// The scanner.
pub struct Scanner {
    parts: ScannerParts,
    scans: Scans,
    due: DueIndex,
    source: String,
    /// What is remembered of subscribers, for the scan that goes on.
    watch: tokio::sync::Mutex<Option<(ScanRef, Arc<Watch>)>>,
    /// The scan that goes on, and how many of the inventory's operations count for what it has read.
    counted: Mutex<(Uuid, u64)>,
}

/// What is to be done about a shard.
enum Begun {
    /// It is read.
    Scan(Box<Scan>),
    /// It was read before; whether all are.
    Done { finished: bool },
}

/// A shard while it is read.
struct Scan {
    lease: Lease,
    trigger: Trigger,
    /// What it came to, as the report of a scan of it alone.
    report: ScanReport,
    /// Its place in the list.
    index: u32,
    /// Acts that other shards have proposed or emitted, when it was last looked at.
    others: u64,
    /// Acts of which candidates were emitted.
    emitted: u64,
    /// Nothing more is emitted.
    full: bool,
    user_topics: u64,
    page: u32,
    watch: Arc<Watch>,
    /// The latest time that a node was written, as the target's clock says.
    newest_ms: i64,
    /// How far the target's clock is behind ours at least.
    behind_ms: i64,
    /// What falls due in the present shard.
    due: Option<Noting>,
}

impl Scan {
    /// Whether all shards together have proposed no more than may be carried out.
    fn has_room(&self, caps: &Caps) -> bool {
        !self.full && self.others.saturating_add(self.report.proposed.acts) <= caps.max_acts
    }
}

/// Candidates on their way, by kind.
#[derive(Default)]
struct Pages {
    ledgers: Filling<LedgerCandidate>,
    subscribers: Filling<SubscriberCandidate>,
    orphans: Filling<OrphanCandidate>,
}

impl Scanner {
    /// A scanner.
    pub fn new(parts: ScannerParts) -> Scanner {
        let source = source("scanner", &parts.instance);
        let (counted, watch) = (Mutex::new((Uuid::nil(), 0)), tokio::sync::Mutex::default());
        let due = DueIndex::new(parts.store.clone(), &parts.target);
        Scanner { scans: Scans::new(parts.store.clone()), due, source, watch, counted, parts }
    }

    fn now_ms(&self) -> i64 {
        self.parts.clock.now_ms()
    }

    /// Begins a scan, or looks how it goes on. It is waited for by asking again: nobody is held up meanwhile.
    async fn request(&self, event: &Event, request: &ScanRequest, out: &Out) -> Result<(), Failure> {
        if let Some(gate) = self.scans.gate(request.id).await? {
            return self.ended(gate.scan).await;
        }
        let leader = self.scans.leader(&self.parts.target).await?;
        let other = |leader: &Leader| leads_another(leader, request.id, self.now_ms());
        if leader.as_ref().is_some_and(other) {
            // As soon as that has ended: there may be many, each of which lasts a moment.
            let why = format!("another scan of {} goes on", self.parts.target);
            return self.later(event, NEXT_SCAN, why, out).await;
        }
        let leads = leader.is_some_and(|leader| leader.scan.id == request.id && !leader.ended);
        let progress = self.scans.progress(request.id).await?;
        let looked = match progress.filter(|_| leads) {
            None => self.lead(request, out).await,
            Some(progress) if progress.finished() => self.end(request.id, out).await,
            Some(_) => self.look(request.id, out).await,
        };
        match looked {
            // Somebody else leads by now, or has ended it.
            Ok(()) | Err(Failure::Failed { class: Class::Gone, .. }) => {}
            failed => return failed,
        }
        if let Some(gate) = self.scans.gate(request.id).await? {
            return self.ended(gate.scan).await;
        }
        self.later(event, self.look_after(event), format!("scan {} goes on", request.id), out).await
    }

    /// When to look again at what an event is about: the later the longer it has been there.
    fn look_after(&self, event: &Event) -> Duration {
        let age_ms = self.now_ms().saturating_sub(event.time.as_millisecond());
        Duration::from_millis(u64::try_from(age_ms / 8).unwrap_or(0)).clamp(LOOK_SOON, LOOK_LATE)
    }

    /// Has an event come again. One that has been there for long is stored anew: a bus gives up what it delivered too often, and what is too
    /// old, and this has done nothing wrong.
    async fn later(&self, event: &Event, after: Duration, why: String, out: &Out) -> Result<(), Failure> {
        let now = self.now_ms();
        let age_ms = now.saturating_sub(event.time.as_millisecond());
        if age_ms > RENEWED_MS {
            let id = event_id("again", &[&event.id, &age_ms.to_string()]).to_string();
            out.emit(&Event { id, time: timestamp(now), ..event.clone() }).await?;
            return Ok(());
        }
        Err(Failure::Later { after, why })
    }

    /// Leads a scan from now on: lists its shards, if nobody has, and has them read.
    async fn lead(&self, request: &ScanRequest, out: &Out) -> Result<(), Failure> {
        let name = self.lease_name();
        let Some(mut lease) = self.parts.store.acquire(&name, &self.parts.instance, LEASE).await? else {
            return Ok(());
        };
        let led = self.lead_under(&mut lease, request).await;
        // Before anything is emitted: whoever reads the last shard ends the scan under this lease.
        self.release(lease).await;
        let Some(progress) = led? else { return Ok(()) };
        if progress.finished() {
            return self.end(request.id, out).await;
        }
        self.emit_missing(&progress, out).await
    }

    /// Leads a scan under a lease. None when another one goes on, or somebody else has begun this one at the same time.
    async fn lead_under(&self, lease: &mut Lease, request: &ScanRequest) -> Result<Option<Progress>, Failure> {
        let now = self.now_ms();
        let leader = self.scans.leader(&self.parts.target).await?;
        if leader.is_some_and(|leader| leads_another(&leader, request.id, now)) {
            return Ok(None);
        }
        let scan = ScanRef { id: request.id, fence: lease.fence };
        self.scans.lead(&self.parts.target, &Leader { scan, ended: false, at_ms: now }).await?;
        let resumed = self.scans.advance(request.id, |progress| {
            let newer = progress.report.scan.fence < scan.fence;
            if newer {
                progress.led(scan, now);
            }
            (newer, newer.then(|| progress.clone()))
        });
        if let Some(progress) = resumed.await? {
            info!(scan = %scan.id, fence = scan.fence, "the scan goes on where it was left");
            return Ok(progress);
        }
        self.begin_counting(scan.id);
        let shards = self.while_leading(lease, scan, self.parts.inventory.shards(&request.scope)).await??;
        let count = u32::try_from(shards.len()).map_err(|e| Failure::new(Class::Bug, e))?;
        let report = ScanReport::begun(scan, &self.parts.target, &request.scope, now);
        let progress = Progress::begun(request.trigger, report, count);
        let begun = self.while_leading(lease, scan, self.scans.begin(&progress, &shards)).await??;
        Ok(begun.then_some(progress))
    }

    /// Does something that may take longer than the lease lasts without renewal.
    async fn while_leading<T>(
        &self,
        lease: &mut Lease,
        scan: ScanRef,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(LEASE / 3) => {
                    self.renew_lease(lease).await?;
                    let leader = Leader { scan, ended: false, at_ms: self.now_ms() };
                    self.scans.lead(&self.parts.target, &leader).await?;
                }
            }
        }
    }

    /// Looks how a scan goes on: what is lost is emitted again.
    async fn look(&self, scan: Uuid, out: &Out) -> Result<(), Failure> {
        let now = self.now_ms();
        self.scans.leads(&self.parts.target, scan, now).await?;
        let lost = self.scans.advance(scan, |progress| {
            let lost = progress.lost(now);
            (lost, lost.then(|| progress.clone()))
        });
        let Some(Some(progress)) = lost.await? else { return Ok(()) };
        self.emit_missing(&progress, out).await
    }

    /// Emits the shards that are missing. Where the queue has no room, perhaps for requests that wait for the end of this scan, one is read
    /// right here.
    async fn emit_missing(&self, progress: &Progress, out: &Out) -> Result<(), Failure> {
        let shards = self.shard_events(progress, progress.missing()).await?;
        match tokio::time::timeout(ROOM, out.emit_all(&shards)).await {
            Ok(emitted) => emitted.map(drop),
            Err(_) => {
                let Some(first) = shards.first() else { return Ok(()) };
                let Body::ScanShard(asked) = first.body()? else { return Ok(()) };
                warn!(shard = asked.shard, "the queue of scanners has no room for shards; reading one meanwhile");
                match self.read(first, &asked, out).await {
                    Err(Failure::Later { .. }) => Ok(()),
                    read => read,
                }
            }
        }
    }

    /// The events of some shards of a scan, by their places in its list, in order.
    async fn shard_events(&self, progress: &Progress, places: Vec<u32>) -> Result<Vec<Event>, Failure> {
        let mut shards = Vec::with_capacity(places.len());
        let mut page = (usize::MAX, Vec::new());
        for index in places {
            let number = index as usize / SHARDS_PAGE;
            if page.0 != number {
                page = (number, self.scans.shards(progress, number).await?);
            }
            shards.extend(self.shard_event(progress, index, &page.1)?);
        }
        Ok(shards)
    }

    fn shard_event(&self, progress: &Progress, index: u32, page: &[String]) -> Result<Option<Event>, Failure> {
        let Some(shard) = page.get(index as usize % SHARDS_PAGE) else { return Ok(None) };
        let ScanRef { id, fence } = progress.report.scan;
        let parts = [&id.to_string(), &index.to_string(), &fence.to_string(), &progress.round.to_string()];
        let id = event_id("shard", &parts.map(String::as_str)).to_string();
        let target = &self.parts.target;
        let body = ScanShard { scan: progress.report.scan, target: target.clone(), shard: shard.clone(), index };
        let trace = telemetry::trace_of(&Span::current());
        Ok(Some(Event::new(id, &self.source, target, timestamp(self.now_ms()), trace, body)?))
    }

    /// Reads a shard of a scan and adds it to what the others came to; ends the scan if it was the last one.
    async fn read(&self, event: &Event, asked: &ScanShard, out: &Out) -> Result<(), Failure> {
        let parts = &self.parts;
        // By its name alone: two scans do not read a shard at once either, for they remember what they saw in the same place.
        let name = format!("shard.{}.{}", parts.target, key_of(&parts.target, &asked.shard));
        let Some(lease) = parts.store.acquire(&name, &parts.instance, LEASE).await? else {
            let why = format!("shard {} is being read", asked.shard);
            return self.later(event, self.look_after(event), why, out).await;
        };
        let mut scan = match self.begin(asked, lease.clone()).await {
            Ok(Begun::Scan(scan)) => *scan,
            Ok(Begun::Done { finished }) => {
                self.release(lease).await;
                // Whoever read the last one may have died before it ended the scan.
                return if finished { self.end(asked.scan.id, out).await } else { Ok(()) };
            }
            Err(e) => {
                self.release(lease).await;
                return Err(e);
            }
        };
        let read = self.read_and_merge(asked, &mut scan, out).await;
        self.release(scan.lease).await;
        if let Err(Failure::Failed { class: Class::Gone, why }) = &read {
            info!(shard = asked.shard, why, "what was read of a shard does not count");
        }
        let (merged, progress) = read?;
        match merged {
            Merged::Before | Merged::In(None) => {}
            Merged::Outdated => return Ok(()),
            Merged::In(Some(next)) => {
                let events = self.shard_events(&progress, next.collect()).await?;
                match tokio::time::timeout(ROOM, out.emit_all(&events)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(e)) => warn!(error = %e, "more shards could not be emitted; they are later"),
                    Err(_) => warn!("the queue of scanners has no room for more shards; they are emitted later"),
                }
            }
        }
        if progress.finished() { self.end(asked.scan.id, out).await } else { Ok(()) }
    }

    /// What is needed to read a shard, if it is to be read.
    async fn begin(&self, asked: &ScanShard, lease: Lease) -> Result<Begun, Failure> {
        let ScanRef { id, .. } = asked.scan;
        let gone = |why: &str| Failure::new(Class::Gone, format!("scan {id} {why}"));
        let progress = self.scans.progress(id).await?.ok_or_else(|| gone("has ended"))?;
        if progress.is_done(asked.index) {
            return Ok(Begun::Done { finished: progress.finished() });
        }
        if progress.report.scan != asked.scan {
            return Err(gone("is led by another lease: what is missing was emitted again"));
        }
        // Whoever may write to the queue must not have one shard taken for another, or a part of it for all.
        let page = self.scans.shards(&progress, asked.index as usize / SHARDS_PAGE).await?;
        if page.get(asked.index as usize % SHARDS_PAGE) != Some(&asked.shard) {
            let why = format!("scan {id} has no shard {:?} at {}", asked.shard, asked.index);
            return Err(Failure::new(Class::Invalid, why));
        }
        if !self.scans.leads(&self.parts.target, id, self.now_ms()).await? {
            return Err(gone("does not lead: another one does, or it has ended"));
        }
        self.begin_counting(id);
        let others = progress.acts_but(asked.index);
        Ok(Begun::Scan(Box::new(Scan {
            lease,
            report: ScanReport::begun(asked.scan, &self.parts.target, &progress.report.scope, self.now_ms()),
            trigger: progress.trigger,
            index: asked.index,
            others,
            emitted: 0,
            full: false,
            user_topics: 0,
            page: 0,
            watch: self.watch(asked.scan).await?,
            newest_ms: 0,
            behind_ms: 0,
            due: None,
        })))
    }

    /// What is remembered of subscribers, read once for all shards of a scan.
    async fn watch(&self, scan: ScanRef) -> Result<Arc<Watch>, Failure> {
        let mut present = self.watch.lock().await;
        if let Some((of, watch)) = &*present
            && *of == scan
        {
            return Ok(watch.clone());
        }
        let watch = Activity::new(self.parts.store.clone(), &self.parts.cluster).begin().await?;
        let watch = Arc::new(watch);
        *present = Some((scan, watch.clone()));
        Ok(watch)
    }

    async fn read_and_merge(
        &self,
        asked: &ScanShard,
        scan: &mut Scan,
        out: &Out,
    ) -> Result<(Merged, Progress), Failure> {
        match self.shard_with_tries(asked, scan, out).await {
            Err(Failure::Failed { class, why }) if !matches!(class, Class::Transient | Class::Gone) => {
                scan.report = ScanReport::begun(asked.scan, &self.parts.target, &scan.report.scope, self.now_ms());
                self.unread(&asked.shard, why, scan).await?;
            }
            read => read?,
        }
        self.renew(scan).await?;
        if let Some(due) = scan.due.take() {
            due.finish().await?;
        }
        scan.report.operations = self.count_operations();
        let Scan { user_topics, newest_ms, behind_ms, .. } = *scan;
        let part = Part { report: scan.report.clone(), user_topics, newest_ms, behind_ms };
        let now = self.now_ms();
        let merged = self.scans.advance(asked.scan.id, |progress| {
            let merged = progress.merge(asked.index, &part, now);
            (matches!(merged, Merged::In(_)), (merged, progress.clone()))
        });
        let gone = || Failure::new(Class::Gone, format!("scan {} has ended", asked.scan.id));
        merged.await?.ok_or_else(gone)
    }

    /// Metadata operations count for a scan from here on, if it is another than before.
    fn begin_counting(&self, scan: Uuid) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.0 != scan {
            *counted = (scan, self.parts.inventory.operations());
        }
    }

    /// Metadata operations since the last time: of this shard, and of a part of those that are read at the same time.
    fn count_operations(&self) -> u64 {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let operations = self.parts.inventory.operations();
        let since = operations.saturating_sub(counted.1);
        counted.1 = operations;
        self.parts.metrics.operations.add(since, &[]);
        since
    }

    /// Reads a shard. One that cannot be read is reported, and the scan goes on.
    async fn shard_with_tries(&self, asked: &ScanShard, scan: &mut Scan, out: &Out) -> Result<(), Failure> {
        let shard = &asked.shard;
        let before = scan.report.clone();
        for tries in 1.. {
            let Err(e) = self.shard(shard, scan, out).await? else { return Ok(()) };
            // Nothing is decided from a broken pass: its counts go, and the shard is read again from its beginning.
            (scan.report, scan.user_topics, scan.emitted) = (before.clone(), 0, 0);
            if e.class() != Class::Transient || tries == SHARD_TRIES {
                return self.unread(shard, e.to_string(), scan).await;
            }
            warn!(shard, error = %e, "reading a shard failed; reading it again");
            self.renew(scan).await?;
            tokio::time::sleep(Duration::from_secs(tries)).await;
        }
        Ok(())
    }

    /// Counts a shard as one that could not be read.
    async fn unread(&self, shard: &str, why: String, scan: &mut Scan) -> Result<(), Failure> {
        warn!(shard, error = why, "a shard could not be read");
        scan.report.complete = false;
        scan.report.failed_shards.insert(shard.to_owned(), why);
        scan.due = None;
        if self.parts.follow.is_some() {
            self.due.failed(shard, &scan.report.scope, self.now_ms()).await?;
        }
        Ok(())
    }

    fn lease_name(&self) -> String {
        format!("scan.{}", self.parts.target)
    }

    async fn renew_lease(&self, lease: &mut Lease) -> Result<(), Failure> {
        self.parts.store.renew(lease, &self.parts.instance).await.map_err(|e| match e {
            BusError::Conflict { .. } => {
                let why = format!("the lease {} was lost; whoever took it goes on", lease.name);
                Failure::new(Class::Transient, why)
            }
            other => other.into(),
        })
    }

    /// Renews the lease of the shard. When it was lost, or another scan leads, reading ends here.
    async fn renew(&self, scan: &mut Scan) -> Result<(), Failure> {
        self.renew_lease(&mut scan.lease).await?;
        let id = scan.report.scan.id;
        if !self.scans.leads(&self.parts.target, id, self.now_ms()).await? {
            return Err(Failure::new(Class::Gone, format!("scan {id} does not lead any more")));
        }
        Ok(())
    }

    async fn release(&self, lease: Lease) {
        let name = lease.name.clone();
        if let Err(e) = self.parts.store.release(lease).await {
            warn!(lease = name, error = %e, "a lease could not be given back; it ends by itself");
        }
    }

    /// Reads a shard once. The inner error is of reading, the outer one of everything else.
    async fn shard(&self, shard: &str, scan: &mut Scan, out: &Out) -> Result<Result<(), TargetError>, Failure> {
        let parts = &self.parts;
        let scope = scan.report.scope.clone();
        // Whether a subscriber is stale is seen over complete scans.
        let follows = scan.trigger.follows();
        let reads = |topic: &LedgerCandidate| {
            let reads = reads(topic, &parts.policy, &parts.target, parts.clock.now_ms());
            Reads { subscribers: reads.subscribers && !follows, ..reads }
        };
        scan.due = match parts.follow {
            Some(every) => {
                let until_ms = horizon_ms(self.now_ms(), every);
                self.due.begin(shard, scan.report.scan.id, &scope, follows, until_ms).await?
            }
            None => None,
        };
        scan.page = 0;
        let mut pages = Pages::default();
        // Whoever reads a part of a shard, or none of its subscribers, does not know what of the rest has changed.
        let whole = scope.whole_namespaces() && !follows;
        let mut watch = scan.watch.shard(shard, whole).await?.under(scan.lease.fence);
        // So whoever looks at some ledgers does not know which of the others are named by now.
        let mut sightings = Sightings::new(parts.store.clone(), &parts.target, scan.report.scan.id, scope.is_all());
        let complete = scan.report.failed_shards.len();
        let mut surveyed = None;
        let mut items = parts.inventory.scan(shard, &scope, &reads);
        let mut renewed = tokio::time::Instant::now();
        while let Some(item) = items.next().await {
            let item = match item {
                Ok(item) => item,
                Err(e) => return Ok(Err(e)),
            };
            let (topics, unknown) = (scan.report.topics, scan.report.unknown);
            match item {
                Item::Problem(problem) => {
                    warn!(shard, problem, "a shard is not complete");
                    scan.report.complete = false;
                    scan.report.failed_shards.insert(shard.to_owned(), problem);
                }
                Item::Candidate(Candidate::Ledger(topic)) => self.topic(*topic, scan, &mut pages.ledgers),
                Item::Candidate(Candidate::Subscriber(log)) => {
                    self.subscribers(*log, scan, &mut watch, &mut pages.subscribers).await?;
                }
                Item::Candidate(Candidate::Orphan(ledger)) => {
                    self.orphan(*ledger, scan, &mut sightings, &mut pages.orphans).await?;
                }
                Item::Surveyed(survey) => surveyed = Some(*survey),
            }
            self.parts.metrics.topics.add(scan.report.topics.saturating_sub(topics), &[]);
            self.parts.metrics.unknown.add(scan.report.unknown.saturating_sub(unknown), &[]);
            self.emit(shard, &mut pages, scan, false, out).await?;
            if renewed.elapsed() > LEASE / 3 {
                self.renew(scan).await?;
                renewed = tokio::time::Instant::now();
            }
        }
        drop(items);
        self.emit(shard, &mut pages, scan, true, out).await?;
        if let Some(survey) = surveyed {
            sightings.finish().await?;
            for (shard, problem) in add_survey(&mut scan.report, survey) {
                warn!(shard, problem, "not everything that may name a ledger could be read");
                scan.report.complete = false;
                scan.report.failed_shards.insert(shard, problem);
            }
        }
        let complete = scan.report.failed_shards.len() == complete;
        scan.behind_ms = scan.behind_ms.max(watch.behind_ms());
        for cleared in watch.finish(complete).await? {
            self.announce_cleared(&cleared, scan, out).await?;
        }
        Ok(Ok(()))
    }

    /// Says that somebody who was to be acted on is back.
    async fn announce_cleared(&self, cleared: &Cleared, scan: &Scan, out: &Out) -> Result<(), Failure> {
        let now_ms = self.now_ms();
        let says = match cleared.gone {
            true => "it does not exist any more",
            false => "it showed a sign of life, so it is not acted on",
        };
        info!(subject = cleared.subject, says, "its mark is gone");
        let notice = Notice {
            scan: scan.report.scan.id,
            target: self.parts.target.clone(),
            subject: cleared.subject.clone(),
            announced: Announced::Cleared,
            says: says.to_owned(),
            at_ms: now_ms,
            not_before_ms: None,
            bytes: 0,
            trace_id: telemetry::trace_id(&Span::current()),
        };
        let id = event_id("notice", &[&notice.scan.to_string(), &notice.subject, notice.announced.name()]);
        let trace = telemetry::trace_of(&Span::current());
        let event = Event::new(id.to_string(), &self.source, &self.parts.target, timestamp(now_ms), trace, notice)?;
        out.emit(&event).await.map(|_| ())
    }

    async fn subscribers(
        &self,
        mut log: SubscriberCandidate,
        scan: &mut Scan,
        watch: &mut ShardWatch,
        page: &mut Filling<SubscriberCandidate>,
    ) -> Result<(), Failure> {
        let context = Context { scan: scan.report.scan, target: &self.parts.target, now_ms: self.now_ms() };
        watch.see(&mut log, context.now_ms).await?;
        let decisions = decide_subscribers(&log, &self.parts.policy, &context);
        scan.user_topics += count_log(&mut scan.report, &log);
        for (index, decision) in decisions.iter().enumerate() {
            count_subscriber(&mut scan.report, decision);
            // The last one may be about the log itself.
            let Some(subscriber) = log.subscribers.get(index) else { continue };
            scan.newest_ms = scan.newest_ms.max(subscriber.seen.modified_ms);
            if decision.verdict == Verdict::Mark {
                watch.marking(&log, &subscriber.name);
            }
        }
        let acting = decisions.iter().find(|decision| decision.verdict.acts());
        if let Some(decision) = acting.filter(|_| scan.has_room(&self.parts.caps)) {
            let trace = sighting(&log.subject, "subscriber", scan, decision);
            abridge(&mut log, &decisions);
            let bytes = log.about_bytes();
            let acts = decisions.iter().filter(|d| d.verdict.acts() && d.verdict != Verdict::Mark).count() as u64;
            page.push(log, acts, bytes, trace);
        }
        Ok(())
    }

    fn topic(&self, topic: LedgerCandidate, scan: &mut Scan, page: &mut Filling<LedgerCandidate>) {
        let context = Context { scan: scan.report.scan, target: &self.parts.target, now_ms: self.now_ms() };
        let decision = decide(&topic, &self.parts.policy, &context);
        let again = scan.due.as_mut().is_some_and(|due| due.see(&topic, &decision, &self.parts.policy, &context));
        let before = scan.report.proposed;
        count(&mut scan.report, &topic, &decision);
        if again {
            scan.report.proposed = before;
        }
        scan.newest_ms = scan.newest_ms.max(topic.seen.modified_ms);
        scan.user_topics += u64::from(topic.class == TopicClass::User);
        if decision.reasons.iter().any(|reason| reason.rule == UNKNOWN) {
            warn!(subject = topic.subject, why = decision.reasons[0].says, "kept: something about it is not known");
        }
        // Past the limit nothing of this scan is carried out before a person confirms it: the rest is only counted, so that queues
        // stay bounded. The next scan finds it again.
        if !decision.verdict.acts() || again || !scan.has_room(&self.parts.caps) {
            return;
        }
        if let Some(wish) = scan.watch.wish(&topic.subject, context.now_ms) {
            info!(subject = topic.subject, by = wish.by, "left alone: somebody asked for it");
            return;
        }
        let trace = sighting(&topic.subject, "ledger", scan, &decision);
        let bytes = topic.about_bytes();
        page.push(topic, 1, bytes, trace);
    }

    async fn orphan(
        &self,
        mut ledger: OrphanCandidate,
        scan: &mut Scan,
        sightings: &mut Sightings,
        page: &mut Filling<OrphanCandidate>,
    ) -> Result<(), Failure> {
        let context = Context { scan: scan.report.scan, target: &self.parts.target, now_ms: self.now_ms() };
        sightings.recall(&mut ledger).await?;
        let decision = decide_orphan(&ledger, &self.parts.policy, &context);
        sightings.note(&ledger, &decision, context.now_ms);
        let decision = match wishes_about(&ledger).iter().find_map(|name| scan.watch.wish(name, context.now_ms)) {
            Some(wish) if decision.verdict.acts() => {
                info!(subject = ledger.subject, by = wish.by, "left alone: somebody asked for it");
                scan.report.survey.get_or_insert_default().comparison.keep("protected", ledger.ledger);
                return Ok(());
            }
            _ => decision,
        };
        count_orphan(&mut scan.report, &ledger, &decision);
        scan.newest_ms = scan.newest_ms.max(ledger.seen.modified_ms);
        if decision.verdict.acts() && scan.has_room(&self.parts.caps) {
            let trace = sighting(&ledger.subject, "orphan", scan, &decision);
            let bytes = ledger.about_bytes();
            page.push(ledger, 1, bytes, trace);
        }
        Ok(())
    }

    /// Emits the pages that are full; `rest` emits the others too.
    async fn emit(
        &self,
        shard: &str,
        pages: &mut Pages,
        scan: &mut Scan,
        rest: bool,
        out: &Out,
    ) -> Result<(), Failure> {
        if pages.ledgers.ready(rest) {
            let version = |topic: &LedgerCandidate| topic.seen.modified_zxid.to_string();
            self.emit_page(shard, std::mem::take(&mut pages.ledgers), &version, scan, out).await?;
        }
        if pages.subscribers.ready(rest) {
            let version = |log: &SubscriberCandidate| {
                log.subscribers.iter().map(|s| s.seen.modified_zxid.to_string()).collect::<Vec<_>>().join(",")
            };
            self.emit_page(shard, std::mem::take(&mut pages.subscribers), &version, scan, out).await?;
        }
        if pages.orphans.ready(rest) {
            let version = |ledger: &OrphanCandidate| ledger.seen.modified_zxid.to_string();
            self.emit_page(shard, std::mem::take(&mut pages.orphans), &version, scan, out).await?;
        }
        Ok(())
    }

    async fn emit_page<C: Subject>(
        &self,
        shard: &str,
        page: Filling<C>,
        version: &(dyn Fn(&C) -> String + Sync),
        scan: &mut Scan,
        out: &Out,
    ) -> Result<(), Failure>
    where
        Body: From<Page<C>>,
    {
        let Filling { candidates, traces, acts, .. } = page;
        if !self.admitted(acts, scan).await? {
            return Ok(());
        }
        let count = candidates.len() as u64;
        let scan_ref = scan.report.scan;
        // The scan is part of the id: a later scan's page must not be taken for this one. So is what the page holds: a shard that
        // is read again may put its topics on other pages.
        let holds: Vec<String> = candidates.iter().map(|c| format!("{}@{}", c.subject(), version(c))).collect();
        let id = event_id("page", &[&self.parts.target, &scan_ref.id.to_string(), C::KIND, &holds.join("\n")]);
        let body = Page { scan: scan_ref, shard: shard.to_owned(), page: scan.page, candidates, traces };
        let trace = telemetry::trace_of(&Span::current());
        let now = timestamp(self.now_ms());
        let event = Event::new(id.to_string(), &self.source, &self.parts.target, now, trace, body)?;
        self.emit_while_reading(&event, scan, out).await?;
        scan.page += 1;
        scan.report.candidates += count;
        self.parts.metrics.candidates.add(count, &[]);
        Ok(())
    }

    /// Sets aside room for acts of a page, in what all shards together may emit.
    async fn admitted(&self, acts: u64, scan: &mut Scan) -> Result<bool, Failure> {
        if scan.full || acts == 0 {
            return Ok(!scan.full);
        }
        let (index, all) = (scan.index, scan.emitted + acts);
        let admitted = self.scans.advance(scan.report.scan.id, |progress| {
            let admitted = progress.admit(index, all, self.parts.caps.max_acts);
            (admitted, (admitted, progress.acts_but(index)))
        });
        let gone = || Failure::new(Class::Gone, format!("scan {} has ended", scan.report.scan.id));
        let (admitted, others) = admitted.await?.ok_or_else(gone)?;
        scan.others = others;
        match admitted {
            true => scan.emitted = all,
            false => scan.full = true,
        }
        Ok(admitted)
    }

    /// Emits an event. A full queue lets it wait for longer than the lease lasts, so that is renewed meanwhile.
    async fn emit_while_reading(&self, event: &Event, scan: &mut Scan, out: &Out) -> Result<(), Failure> {
        let mut emitted = std::pin::pin!(out.emit(event));
        loop {
            tokio::select! {
                biased;
                emitted = &mut emitted => return emitted.map(|_| ()),
                () = tokio::time::sleep(LEASE / 3) => self.renew(scan).await?,
            }
        }
    }

    /// Ends a scan all of whose shards are in, unless somebody else is at it.
    async fn end(&self, scan: Uuid, out: &Out) -> Result<(), Failure> {
        let Some(mut lease) = self.parts.store.acquire(&self.lease_name(), &self.parts.instance, LEASE).await? else {
            return Ok(());
        };
        let ended = self.end_under(&mut lease, scan, out).await;
        self.release(lease).await;
        ended
    }

    async fn end_under(&self, lease: &mut Lease, id: Uuid, out: &Out) -> Result<(), Failure> {
        // A person may have confirmed it since.
        if let Some(gate) = self.scans.gate(id).await? {
            return self.ended(gate.scan).await;
        }
        // What is in does not change any more: whoever ends it judges the same.
        let Some(progress) = self.scans.progress(id).await?.filter(Progress::finished) else { return Ok(()) };
        if !self.scans.leads(&self.parts.target, id, self.now_ms()).await? {
            return Ok(());
        }
        let (scan, caps) = (ScanRef { id, fence: lease.fence }, &self.parts.caps);
        self.scans.lead(&self.parts.target, &Leader { scan, ended: false, at_ms: self.now_ms() }).await?;
        let Progress { trigger, mut report, user_topics, newest_ms, behind_ms, more_failed, .. } = progress;
        let last = self.scans.last_topics(&self.parts.target, &report.scope).await?;
        report.scan = scan;
        report.ended_ms = self.now_ms();
        if more_failed > 0 {
            report.failed_shards.insert("…".to_owned(), format!("{more_failed} more could not be read"));
        }
        report.stopped = skewed(newest_ms, behind_ms, report.ended_ms, caps);
        if report.stopped.is_none() {
            report.stopped = self.judge(trigger, &report, user_topics, last).await?;
        }
        let gate = Gate {
            scan,
            proposed: report.proposed,
            stopped: report.stopped.clone(),
            confirmed_by: None,
            incomplete: !report.complete || report.unknown > 0,
        };
        // The gate is what a scan ends with: a try that comes to its end again would not come by here any more.
        let trace = telemetry::trace_of(&Span::current());
        let event_id = event_id("report", &[&id.to_string()]).to_string();
        let now = timestamp(self.now_ms());
        let event = Event::new(event_id, &self.source, &self.parts.target, now, trace, report.clone())?;
        let _ = self.while_leading(lease, scan, out.emit(&event)).await??;
        self.scans.finish(&gate, &report).await?;
        self.ended(scan).await?;
        let result = match (&report.stopped, report.complete) {
            (Some(why), _) => {
                warn!(scan = %id, why, "nothing of this scan is carried out until a person confirms it");
                "stopped"
            }
            (None, true) => "complete",
            (None, false) => "incomplete",
        };
        if report.scope.is_all() {
            self.parts.metrics.saw_everything(&report);
        }
        self.parts.metrics.scans.add(1, &[result]);
        Ok(())
    }

    /// Holds what was seen against the limits: why nothing may be carried out, if so.
    async fn judge(
        &self,
        trigger: Trigger,
        report: &ScanReport,
        user_topics: u64,
        last_topics: Option<u64>,
    ) -> Result<Option<String>, Failure> {
        let caps = &self.parts.caps;
        if trigger.follows() {
            return match shrunk(report, last_topics, caps) {
                Some(why) => Ok(Some(why)),
                None => self.scans.follow(report, caps).await,
            };
        }
        // What could not be read makes shares of the whole look larger than they are, never smaller.
        if self.parts.follow.is_some() && report.scope.is_all() && shrunk(report, last_topics, caps).is_none() {
            let whole = Whole { scan: report.scan.id, user_topics, bytes: report.bytes, ..Whole::default() };
            self.scans.set_whole(&self.parts.target, &whole).await?;
        }
        Ok(over_caps(report, user_topics, last_topics, caps))
    }

    /// What follows the end of a scan, also where it was left out before: executors wait while a scan leads that has not ended.
    async fn ended(&self, scan: ScanRef) -> Result<(), Failure> {
        let leader = self.scans.leader(&self.parts.target).await?;
        if let Some(leader) = leader.filter(|leader| leader.scan.id == scan.id && !leader.ended) {
            let ended = Leader { ended: true, at_ms: self.now_ms(), ..leader };
            self.scans.lead(&self.parts.target, &ended).await?;
        }
        if let Err(e) = self.scans.forget(scan.id).await {
            warn!(error = %e, "how far the scan was stays in the store until its request comes again");
        }
        Ok(())
    }
}

/// Whether another scan goes on. One of which nothing was heard for long does not; nor does one that was heard of long from now, by a clock
/// that was wrong.
fn leads_another(leader: &Leader, scan: Uuid, now_ms: i64) -> bool {
    let heard = now_ms.abs_diff(leader.at_ms) <= LEADER_SILENCE_MS.unsigned_abs();
    leader.scan.id != scan && !leader.ended && heard
}

/// What `needs` is given for a scan: it does not look at it.
fn scan_ref_unused() -> ScanRef {
    ScanRef { id: Uuid::nil(), fence: 0 }
}

/// Adds a topic to a report.
pub(crate) fn count(report: &mut ScanReport, topic: &LedgerCandidate, decision: &Decision) {
    report.topics += 1;
    match report.verdicts.get_mut(decision.verdict.name()) {
        Some(count) => *count += 1,
        None => *report.verdicts.entry(decision.verdict.name().to_owned()).or_default() += 1,
    }
    report.unknown += u64::from(decision.reasons.iter().any(|reason| reason.rule == UNKNOWN));
    let bytes: i64 = topic.ledgers.present().into_iter().flatten().map(|info| info.bytes.unwrap_or(0).max(0)).sum();
    report.bytes = report.bytes.saturating_add(u64::try_from(bytes).unwrap_or(0));
    if decision.verdict.acts() {
        propose(report, decision);
    }
}

/// Adds a log that is no candidate of its own otherwise to a report; how many parts it has that may be acted on.
pub(crate) fn count_log(report: &mut ScanReport, log: &SubscriberCandidate) -> u64 {
    let Some(bytes) = log.alone() else { return 0 };
    report.topics += 1;
    report.bytes = report.bytes.saturating_add(bytes);
    log.subscribers.iter().filter(|subscriber| subscriber.class == SubscriberClass::User).count() as u64
}

/// Adds a subscriber to a report. An announcement does nothing to the target, so it is none of the acts that are limited.
pub(crate) fn count_subscriber(report: &mut ScanReport, decision: &Decision) {
    *report.subscribers.entry(decision.verdict.name().to_owned()).or_default() += 1;
    report.unknown += u64::from(decision.reasons.iter().any(|reason| reason.rule == UNKNOWN));
    if decision.verdict.acts() && decision.verdict != Verdict::Mark {
        propose(report, decision);
    }
}

/// Adds a ledger that nothing names to a report.
pub(crate) fn count_orphan(report: &mut ScanReport, ledger: &OrphanCandidate, decision: &Decision) {
    *report.verdicts.entry(decision.verdict.name().to_owned()).or_default() += 1;
    let rule = decision.reasons.first().map_or("", |reason| reason.rule.as_ref());
    report.unknown += u64::from(rule == UNKNOWN);
    if decision.verdict.acts() {
        propose(report, decision);
    } else {
        report.survey.get_or_insert_default().comparison.keep(rule, ledger.ledger);
    }
}

/// Adds what a survey of all ledgers found to a report. What of it could not be read completely, by name, with the reasons.
pub(crate) fn add_survey(report: &mut ScanReport, mut survey: SurveyReport) -> Vec<(String, String)> {
    survey.comparison.kept = report.survey.take().map(|counted| counted.comparison.kept).unwrap_or_default();
    report.topics = survey.topics;
    let broken = survey.broken.iter().map(|why| ("ledgers".to_owned(), why.clone()));
    let incomplete = survey.incomplete.iter().map(|(shard, why)| (shard.clone(), why.clone()));
    let unread =
        survey.unread.iter().map(|unread| (format!("ledgers {} to {}", unread.from, unread.to), unread.why.clone()));
    let problems = broken.chain(incomplete).chain(unread).collect();
    report.survey = Some(survey);
    problems
}

fn propose(report: &mut ScanReport, decision: &Decision) {
    report.proposed.acts += 1;
    report.proposed.ledgers += decision.ledgers.len() as u64;
    report.proposed.bytes = report.proposed.bytes.saturating_add(u64::try_from(decision.bytes).unwrap_or(0));
}

/// The first span of a candidate's own trace, linked to that of the scan.
fn sighting(subject: &str, kind: &str, reading: &Scan, decision: &Decision) -> Trace {
    let span = info_span!(
        parent: None,
        "sight",
        otel.name = format!("create candidate.{kind}"),
        otel.kind = "producer",
        messaging.system = "trimtab",
        messaging.operation.type = "create",
        messaging.operation.name = "create",
        messaging.destination.template = format!("candidate.{kind}"),
        trimtab.subject = subject,
        trimtab.scan = %reading.report.scan.id,
        trimtab.verdict = decision.verdict.name(),
        trimtab.bytes = decision.bytes,
    );
    let scan = Span::current().context().span().span_context().clone();
    if scan.is_valid() {
        span.add_link(scan);
    }
    telemetry::trace_of(&span)
}

/// A candidate that has a name.
trait Subject {
    const KIND: &'static str;
    fn subject(&self) -> &str;
}

impl Subject for LedgerCandidate {
    const KIND: &'static str = "ledger";
    fn subject(&self) -> &str {
        &self.subject
    }
}

impl Subject for SubscriberCandidate {
    const KIND: &'static str = "subscriber";
    fn subject(&self) -> &str {
        &self.subject
    }
}

impl Subject for OrphanCandidate {
    const KIND: &'static str = "orphan";
    fn subject(&self) -> &str {
        &self.subject
    }
}

/// A page while it is filled.
struct Filling<C> {
    candidates: Vec<C>,
    traces: Vec<String>,
    /// What they propose.
    acts: u64,
    bytes: usize,
}

impl<C> Default for Filling<C> {
    fn default() -> Self {
        Filling { candidates: Vec::new(), traces: Vec::new(), acts: 0, bytes: 0 }
    }
}

impl<C> Filling<C> {
    fn push(&mut self, candidate: C, acts: u64, bytes: usize, trace: Trace) {
        self.acts += acts;
        self.bytes += bytes;
        self.candidates.push(candidate);
        self.traces.push(trace.parent.unwrap_or_default());
    }

    fn ready(&self, rest: bool) -> bool {
        self.candidates.len() >= PAGE || self.bytes >= PAGE_BYTES || (rest && !self.candidates.is_empty())
    }
}

/// What is worth reading of a topic.
pub(crate) fn reads(topic: &LedgerCandidate, policy: &Policy, target: &str, now_ms: i64) -> Reads {
    let context = Context { scan: scan_ref_unused(), target, now_ms };
    let needs = needs(topic, policy, &context);
    Reads { last: needs.last, cursors: needs.cursors, partition: needs.partition, subscribers: needs.subscribers }
}

impl Worker for Scanner {
    fn role(&self) -> Role {
        Role::Scanner
    }

    /// A scan goes on where it was left, so there is nothing to wait for.
    fn grace(&self) -> std::time::Duration {
        Duration::from_secs(1)
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            if event.target != self.parts.target {
                let why = format!("this scanner reads {:?}, the event is for {:?}", self.parts.target, event.target);
                return Err(Failure::new(Class::Invalid, why));
            }
            match body {
                Body::ScanRequest(request) => {
                    let handled = self.request(event, &request, out).await;
                    if matches!(handled, Err(Failure::Failed { .. })) {
                        self.parts.metrics.scans.add(1, &["failed"]);
                    }
                    handled
                }
                Body::ScanShard(shard) => self.read(event, &shard, out).await,
                _ => Err(Failure::new(Class::Invalid, "a scanner takes scan requests and shards only")),
            }
        }
        .boxed()
    }
}
