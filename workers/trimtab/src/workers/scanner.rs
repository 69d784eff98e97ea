//! Scans a target and emits what may be worth acting on. One scan of a target at a time, led under a lease; finished shards are
//! remembered, so a scan goes on where a crash left it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use opentelemetry::KeyValue;
use opentelemetry::trace::TraceContextExt;
use tracing::{Span, info, info_span, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use trimtab_bus::{Lease, Role, Store};
use trimtab_events::{
    Announced, Body, Candidate, Decision, Event, LedgerCandidate, Notice, OrphanCandidate, Page, ScanRef, ScanReport,
    ScanRequest, SubscriberCandidate, SubscriberClass, SurveyReport, TopicClass, Trace, Verdict, event_id,
};
use trimtab_policy::rules::exclude::UNKNOWN;
use trimtab_policy::{Context, Policy, abridge, decide, decide_orphan, decide_subscribers, needs};
use trimtab_targets::{Class, Inventory, Item, Reads, TargetError};

use super::source;
use crate::activity::{Activity, Cleared, ShardWatch, Watch};
use crate::clock::{Clock, timestamp};
use crate::config::Caps;
use crate::due::{DueIndex, Noting, horizon_ms};
use crate::metrics::Metrics;
use crate::scans::{Checkpoint, Gate, Leader, Scans, Whole, over_caps, shrunk, skewed};
use crate::sightings::Sightings;
use crate::telemetry;
use crate::wishes::wishes_about;
use crate::worker::{Failure, Out, Worker};

/// How long a scan's lease lasts without renewal.
const LEASE: Duration = Duration::from_secs(30);
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
}

/// A scan while it goes on.
struct Scan {
    lease: Lease,
    report: ScanReport,
    user_topics: u64,
    after: Option<String>,
    operations_before: u64,
    page: u32,
    watch: Watch,
    /// The latest time that a node was written, as the target's clock says.
    newest_ms: i64,
    /// How far the target's clock is behind ours at least.
    behind_ms: i64,
    /// What falls due in the present shard.
    due: Option<Noting>,
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
        let due = DueIndex::new(parts.store.clone(), &parts.target);
        Scanner { scans: Scans::new(parts.store.clone()), due, source, parts }
    }

    fn now_ms(&self) -> i64 {
        self.parts.clock.now_ms()
    }

    async fn scan(&self, request: &ScanRequest, out: &Out) -> Result<(), Failure> {
        if let Some(gate) = self.scans.gate(request.id).await? {
            return self.ended(gate.scan).await;
        }
        let name = format!("scan.{}", self.parts.target);
        let Some(lease) = self.parts.store.acquire(&name, &self.parts.instance, LEASE).await? else {
            let why = format!("another scan of {} goes on", self.parts.target);
            return Err(Failure::Later { after: Duration::from_secs(2), why });
        };
        let mut scan = self.begin(request, lease).await?;
        let ended = self.shards(request, &mut scan, out).await;
        let ended = match ended {
            Ok(()) => self.end(request, &mut scan, out).await,
            failed => failed,
        };
        if let Err(e) = self.parts.store.release(scan.lease).await {
            warn!(error = %e, "the lease of the scan could not be given back; it ends by itself");
        }
        if ended.is_err() {
            self.parts.metrics.scans.add(1, &[KeyValue::new("result", "failed")]);
        }
        ended
    }

    async fn begin(&self, request: &ScanRequest, lease: Lease) -> Result<Scan, Failure> {
        let now = self.now_ms();
        let scan = ScanRef { id: request.id, fence: lease.fence };
        let Checkpoint { report, user_topics, after } = self.scans.checkpoint(request.id).await?;
        let fresh = || ScanReport::begun(scan, &self.parts.target, &request.scope, now);
        let mut report = report.unwrap_or_else(fresh);
        if let Some(after) = &after {
            info!(scan = %scan.id, after, "the scan goes on where it was left");
        }
        report.scan = scan;
        self.scans.lead(&self.parts.target, &Leader { scan, ended: false, at_ms: now }).await?;
        let watch = Activity::new(self.parts.store.clone(), &self.parts.cluster).begin().await?;
        let operations_before = self.parts.inventory.operations();
        let (page, newest_ms, behind_ms) = (0, 0, 0);
        Ok(Scan { lease, report, user_topics, after, operations_before, page, watch, newest_ms, behind_ms, due: None })
    }

    async fn shards(&self, request: &ScanRequest, scan: &mut Scan, out: &Out) -> Result<(), Failure> {
        let shards = self.parts.inventory.shards(&request.scope).await?;
        for shard in shards {
            if scan.after.as_deref().is_some_and(|after| !comes_after(&shard, after)) {
                continue;
            }
            self.shard_with_tries(&shard, request, scan, out).await?;
            scan.report.shards += 1;
            let operations = self.parts.inventory.operations();
            scan.report.operations += operations - scan.operations_before;
            self.parts.metrics.operations.add(operations - scan.operations_before, &[]);
            scan.operations_before = operations;
            self.renew(scan).await?;
            scan.after = Some(shard);
            let checkpoint = Checkpoint {
                report: Some(scan.report.clone()),
                user_topics: scan.user_topics,
                after: scan.after.clone(),
            };
            self.scans.set_checkpoint(request.id, &checkpoint).await?;
        }
        Ok(())
    }

    /// Reads a shard. One that cannot be read is reported, and the scan goes on.
    async fn shard_with_tries(
        &self,
        shard: &str,
        request: &ScanRequest,
        scan: &mut Scan,
        out: &Out,
    ) -> Result<(), Failure> {
        let before = (scan.report.clone(), scan.user_topics);
        for tries in 1.. {
            let Err(e) = self.shard(shard, request, scan, out).await? else { return Ok(()) };
            // Nothing is decided from a broken pass: its counts go, and the shard is read again from its beginning.
            (scan.report, scan.user_topics) = before.clone();
            if e.class() != Class::Transient || tries == SHARD_TRIES {
                warn!(shard, error = %e, "a shard could not be read");
                scan.report.complete = false;
                scan.report.failed_shards.insert(shard.to_owned(), e.to_string());
                if self.parts.follow.is_some() {
                    self.due.failed(shard, &request.scope, self.now_ms()).await?;
                }
                return Ok(());
            }
            warn!(shard, error = %e, "reading a shard failed; reading it again");
            self.renew(scan).await?;
            tokio::time::sleep(Duration::from_secs(tries)).await;
        }
        Ok(())
    }

    /// Renews the lease. When it was lost, the scan ends here: somebody else leads.
    async fn renew(&self, scan: &mut Scan) -> Result<(), Failure> {
        self.parts.store.renew(&mut scan.lease, &self.parts.instance).await.map_err(|e| match e {
            trimtab_bus::BusError::Conflict { .. } => {
                Failure::new(Class::Transient, "the lease of the scan was lost; whoever took it goes on")
            }
            other => other.into(),
        })?;
        let leader = Leader { scan: scan.report.scan, ended: false, at_ms: self.now_ms() };
        self.scans.lead(&self.parts.target, &leader).await
    }

    /// Reads a shard once. The inner error is of reading, the outer one of everything else.
    async fn shard(
        &self,
        shard: &str,
        request: &ScanRequest,
        scan: &mut Scan,
        out: &Out,
    ) -> Result<Result<(), TargetError>, Failure> {
        let parts = &self.parts;
        // Whether a subscriber is stale is seen over complete scans.
        let follows = request.trigger.follows();
        let reads = |topic: &LedgerCandidate| {
            let reads = reads(topic, &parts.policy, &parts.target, parts.clock.now_ms());
            Reads { subscribers: reads.subscribers && !follows, ..reads }
        };
        scan.due = match parts.follow {
            Some(every) => self.due.begin(shard, request, horizon_ms(self.now_ms(), every)).await?,
            None => None,
        };
        scan.page = 0;
        let mut pages = Pages::default();
        // Whoever reads a part of a shard, or none of its subscribers, does not know what of the rest has changed.
        let mut watch = scan.watch.shard(shard, request.scope.whole_namespaces() && !follows).await?;
        // So whoever looks at some ledgers does not know which of the others are named by now.
        let mut sightings =
            Sightings::new(parts.store.clone(), &parts.target, scan.report.scan.id, request.scope.is_all());
        let complete = scan.report.failed_shards.len();
        let mut surveyed = None;
        let mut items = parts.inventory.scan(shard, &request.scope, &reads);
        let mut renewed = tokio::time::Instant::now();
        while let Some(item) = items.next().await {
            let item = match item {
                Ok(item) => item,
                Err(e) => return Ok(Err(e)),
            };
            match item {
                Item::Problem(problem) => {
                    warn!(shard, problem, "a shard is not complete");
                    scan.report.complete = false;
                    scan.report.failed_shards.insert(shard.to_owned(), problem);
                }
                Item::Candidate(Candidate::Ledger(topic)) => self.topic(*topic, request, scan, &mut pages.ledgers),
                Item::Candidate(Candidate::Subscriber(log)) => {
                    self.subscribers(*log, request, scan, &mut watch, &mut pages.subscribers).await?;
                }
                Item::Candidate(Candidate::Orphan(ledger)) => {
                    self.orphan(*ledger, request, scan, &mut sightings, &mut pages.orphans).await?;
                }
                Item::Surveyed(survey) => surveyed = Some(*survey),
            }
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
        if let Some(due) = scan.due.take() {
            due.finish().await?;
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
        request: &ScanRequest,
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
        if let Some(decision) = acting.filter(|_| scan.report.proposed.acts <= self.parts.caps.max_acts) {
            let trace = sighting(&log.subject, "subscriber", request, decision);
            abridge(&mut log, &decisions);
            let bytes = log.about_bytes();
            page.push(log, bytes, trace);
        }
        Ok(())
    }

    fn topic(
        &self,
        topic: LedgerCandidate,
        request: &ScanRequest,
        scan: &mut Scan,
        page: &mut Filling<LedgerCandidate>,
    ) {
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
        self.parts.metrics.topics.add(1, &[]);
        if decision.reasons.iter().any(|reason| reason.rule == UNKNOWN) {
            self.parts.metrics.unknown.add(1, &[]);
            warn!(subject = topic.subject, why = decision.reasons[0].says, "kept: something about it is not known");
        }
        // Past the limit nothing of this scan is carried out before a person confirms it: the rest is only counted, so that queues
        // stay bounded. The next scan finds it again.
        if !decision.verdict.acts() || again || scan.report.proposed.acts > self.parts.caps.max_acts {
            return;
        }
        if let Some(wish) = scan.watch.wish(&topic.subject, context.now_ms) {
            info!(subject = topic.subject, by = wish.by, "left alone: somebody asked for it");
            return;
        }
        let trace = sighting(&topic.subject, "ledger", request, &decision);
        let bytes = topic.about_bytes();
        page.push(topic, bytes, trace);
    }

    async fn orphan(
        &self,
        mut ledger: OrphanCandidate,
        request: &ScanRequest,
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
        if decision.verdict.acts() && scan.report.proposed.acts <= self.parts.caps.max_acts {
            let trace = sighting(&ledger.subject, "orphan", request, &decision);
            let bytes = ledger.about_bytes();
            page.push(ledger, bytes, trace);
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
        let Filling { candidates, traces, .. } = page;
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
        self.emit_while_leading(&event, scan, out).await?;
        scan.page += 1;
        scan.report.candidates += count;
        self.parts.metrics.candidates.add(count, &[]);
        Ok(())
    }

    /// Emits an event. A full queue lets it wait for longer than the lease lasts, so that is renewed meanwhile.
    async fn emit_while_leading(&self, event: &Event, scan: &mut Scan, out: &Out) -> Result<(), Failure> {
        let mut emitted = std::pin::pin!(out.emit(event));
        loop {
            tokio::select! {
                biased;
                emitted = &mut emitted => return emitted.map(|_| ()),
                () = tokio::time::sleep(LEASE / 3) => self.renew(scan).await?,
            }
        }
    }

    async fn end(&self, request: &ScanRequest, scan: &mut Scan, out: &Out) -> Result<(), Failure> {
        let last = self.scans.last_topics(&self.parts.target, &request.scope).await?;
        scan.report.ended_ms = self.now_ms();
        scan.report.stopped = skewed(scan.newest_ms, scan.behind_ms, scan.report.ended_ms, &self.parts.caps);
        self.judge(request, scan, last).await?;
        let scan_ref = scan.report.scan;
        self.renew(scan).await?;
        let gate = Gate {
            scan: scan_ref,
            proposed: scan.report.proposed,
            stopped: scan.report.stopped.clone(),
            confirmed_by: None,
            incomplete: !scan.report.complete || scan.report.unknown > 0,
        };
        // The gate is what a scan ends with: a try that comes to its end again would not come by here any more.
        let trace = telemetry::trace_of(&Span::current());
        let id = event_id("report", &[&scan_ref.id.to_string()]);
        let now = timestamp(self.now_ms());
        let event = Event::new(id.to_string(), &self.source, &self.parts.target, now, trace, scan.report.clone())?;
        out.emit(&event).await?;
        self.scans.finish(&gate, &scan.report).await?;
        self.ended(scan_ref).await?;
        let result = match (&scan.report.stopped, scan.report.complete) {
            (Some(why), _) => {
                warn!(scan = %scan_ref.id, why, "nothing of this scan is carried out until a person confirms it");
                "stopped"
            }
            (None, true) => "complete",
            (None, false) => "incomplete",
        };
        self.parts.metrics.scans.add(1, &[KeyValue::new("result", result)]);
        Ok(())
    }

    /// Holds what was seen against the limits, unless it is stopped already.
    async fn judge(&self, request: &ScanRequest, scan: &mut Scan, last_topics: Option<u64>) -> Result<(), Failure> {
        let (report, caps) = (&scan.report, &self.parts.caps);
        if report.stopped.is_some() {
            return Ok(());
        }
        if request.trigger.follows() {
            scan.report.stopped = match shrunk(report, last_topics, caps) {
                Some(why) => Some(why),
                None => self.scans.follow(report, caps).await?,
            };
            return Ok(());
        }
        // What could not be read makes shares of the whole look larger than they are, never smaller.
        if self.parts.follow.is_some() && request.scope.is_all() && shrunk(report, last_topics, caps).is_none() {
            let (scan, user_topics, bytes) = (report.scan.id, scan.user_topics, report.bytes);
            let whole = Whole { scan, user_topics, bytes, ..Whole::default() };
            self.scans.set_whole(&self.parts.target, &whole).await?;
        }
        scan.report.stopped = over_caps(report, scan.user_topics, last_topics, caps);
        Ok(())
    }

    /// What follows the end of a scan, also where it was left out before: executors wait while a scan leads that has not ended.
    async fn ended(&self, scan: ScanRef) -> Result<(), Failure> {
        let leader = self.scans.leader(&self.parts.target).await?;
        if leader.is_some_and(|leader| leader.scan == scan && !leader.ended) {
            self.scans.lead(&self.parts.target, &Leader { scan, ended: true, at_ms: self.now_ms() }).await?;
        }
        if let Err(e) = self.scans.forget_checkpoint(scan.id).await {
            warn!(error = %e, "how far the scan was stays in the store; nobody looks at it any more");
        }
        Ok(())
    }
}

/// Whether a shard stands behind another in the order of scanning: by tenant, then by namespace.
fn comes_after(shard: &str, other: &str) -> bool {
    let parts = |shard: &str| shard.split('/').map(str::to_owned).collect::<Vec<_>>();
    parts(shard) > parts(other)
}

/// What `needs` is given for a scan: it does not look at it.
fn scan_ref_unused() -> ScanRef {
    ScanRef { id: uuid::Uuid::nil(), fence: 0 }
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
fn sighting(subject: &str, kind: &str, request: &ScanRequest, decision: &Decision) -> Trace {
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
        trimtab.scan = %request.id,
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
    bytes: usize,
}

impl<C> Default for Filling<C> {
    fn default() -> Self {
        Filling { candidates: Vec::new(), traces: Vec::new(), bytes: 0 }
    }
}

impl<C> Filling<C> {
    fn push(&mut self, candidate: C, bytes: usize, trace: Trace) {
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
            let Body::ScanRequest(request) = body else {
                return Err(Failure::new(Class::Invalid, "a scanner takes scan requests only"));
            };
            if event.target != self.parts.target {
                let why = format!("this scanner reads {:?}, the request is for {:?}", self.parts.target, event.target);
                return Err(Failure::new(Class::Invalid, why));
            }
            self.scan(&request, out).await
        }
        .boxed()
    }
}
