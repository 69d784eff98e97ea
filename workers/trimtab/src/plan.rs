//! Planning: reads, decides, and hands the items over one after the other. Nothing is called; what is kept is the plan itself.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Seek, Write};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::task::JoinHandle;
use tracing::warn;
use trimtab_bus::Store;
use trimtab_events::{
    Candidate, Decision, LedgerCandidate, PLAN_FORMAT, Plan, PlanItem, PlanTotals, Proposed, ScanRef, ScanReport,
    Scope, SubscriberCandidate, TopicClass, Verdict, split_subscriber,
};
use trimtab_policy::{Context, Policy, check_any, decide_any};
use trimtab_targets::bookkeeper::ALL_LEDGERS;
use trimtab_targets::{Class, Inventory, Item, Reads, TargetError};

use crate::activity::{Activity, Cleared, ShardWatch, Watch};
use crate::config::Caps;
use crate::scans::over_caps;
use crate::sightings::Sightings;
use crate::worker::Failure;
use crate::workers::{SHARD_TRIES, add_survey, count, count_log, count_orphan, count_subscriber, reads};

/// What a plan is made from.
pub struct Planning<'a> {
    /// What is read.
    pub inventory: &'a dyn Inventory,
    /// What decides.
    pub policy: &'a Policy,
    /// Name of the target.
    pub target: &'a str,
    /// What is looked at.
    pub scope: &'a Scope,
    /// The moment that ages count from, milliseconds since 1970.
    pub now_ms: i64,
    /// Kept topics too, with everything read of them.
    pub explain: bool,
    /// What is remembered of subscribers, and whether what is seen is remembered from now on. Without it nothing is known of their
    /// activity.
    pub watch: Option<(&'a Watch, bool)>,
    /// Where sightings of ledgers that nothing names are remembered, and whether what is seen is remembered from now on. Without it each
    /// of them is seen for the first time.
    pub sightings: Option<(Arc<dyn Store>, bool)>,
}

/// What a plan found, apart from its items.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The counts.
    pub report: ScanReport,
    /// Topics of users among them.
    pub user_topics: u64,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// What plans of one target are made with, again and again.
pub struct Planner {
    /// What is read.
    pub inventory: Arc<dyn Inventory>,
    /// What decides.
    pub policy: Policy,
    /// Name of the target.
    pub target: String,
    /// Name of the cluster that it is a part of.
    pub cluster: String,
    /// It is about ledgers that nothing names.
    pub orphans: bool,
    /// Where it is remembered what was seen of subscribers, or of ledgers that nothing names. Without it nothing is known of either.
    pub store: Option<Arc<dyn Store>>,
    /// What is seen is remembered from now on.
    pub remember: bool,
    /// How long a plan may be applied. Default: 24 h.
    pub valid: Option<Duration>,
}

impl Planner {
    /// Makes a plan, handing over its items. `scan` names it in its decisions.
    ///
    /// # Errors
    /// As [`Planning::run`], and when what is remembered cannot be read.
    pub async fn plan(
        &self,
        scan: ScanRef,
        scope: &Scope,
        now_ms: i64,
        explain: bool,
        each: &mut dyn FnMut(PlanItem),
    ) -> Result<Planned, Failure> {
        let watch = match &self.store {
            Some(store) => Some(Activity::new(store.clone(), &self.cluster).begin().await?),
            None => None,
        };
        let sightings = self.store.clone().map(|store| (store, self.remember && scope.is_all()));
        let planning = Planning {
            inventory: self.inventory.as_ref(),
            policy: &self.policy,
            target: &self.target,
            scope,
            now_ms,
            explain,
            watch: watch.as_ref().map(|watch| (watch, self.remember && scope.whole_namespaces())),
            sightings: sightings.filter(|_| self.orphans),
        };
        Ok(planning.run(scan, each).await?)
    }

    /// The plan but for its items. `identity` is the cluster's, read before.
    pub fn head(&self, identity: String, scope: Scope, now_ms: i64, planned: &Planned) -> Plan {
        let report = &planned.report;
        let valid = self.valid.map_or(24 * 3600 * 1000, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
        Plan {
            format_version: PLAN_FORMAT.to_owned(),
            made_by: format!("trimtab {}", env!("CARGO_PKG_VERSION")),
            target: self.target.clone(),
            cluster: identity,
            scope,
            policy: self.policy.hash().to_owned(),
            now_ms,
            expires_ms: now_ms.saturating_add(valid),
            complete: report.complete,
            totals: PlanTotals {
                topics: report.topics,
                bytes: report.bytes,
                verdicts: report.verdicts.clone(),
                subscribers: report.subscribers.clone(),
                unknown: report.unknown,
                proposed: report.proposed,
            },
            problems: planned.problems.clone(),
            survey: report.survey.clone(),
            items: Vec::new(),
        }
    }
}

/// Why `proposed`, all of a plan or a part of it, must not be carried out before a person has looked, if so.
pub fn stopped(plan: &Plan, proposed: Proposed, scan: ScanRef, caps: &Caps) -> Option<String> {
    let totals = &plan.totals;
    let report = ScanReport {
        topics: totals.topics,
        bytes: totals.bytes,
        proposed,
        survey: plan.survey.clone(),
        ..ScanReport::begun(scan, &plan.target, &plan.scope, plan.now_ms)
    };
    // Of a system whose logs are no candidates of their own, subscribers are what is acted on.
    let alone = totals.verdicts.is_empty();
    let parts = if alone { totals.subscribers.values().sum() } else { totals.topics };
    over_caps(&report, parts, None, caps)
}

/// Items on disk: a plan of a large cluster does not fit in memory.
pub struct Spool {
    file: BufWriter<File>,
    count: u64,
    failed: Option<std::io::Error>,
}

impl Spool {
    /// In a temporary file.
    ///
    /// # Errors
    /// When none can be made.
    pub fn new() -> std::io::Result<Spool> {
        Ok(Spool { file: BufWriter::new(tempfile::tempfile()?), count: 0, failed: None })
    }

    /// Adds an item. An error is told by whoever reads next.
    pub fn push(&mut self, item: &PlanItem) {
        self.count += 1;
        let written = serde_json::to_writer(&mut self.file, item).map_err(std::io::Error::from);
        if let Err(e) = written.and_then(|()| self.file.write_all(b"\n")) {
            self.failed.get_or_insert(e);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The items, each a line of JSON.
    ///
    /// # Errors
    /// When one could not be written, or they cannot be read.
    pub fn lines(&mut self) -> std::io::Result<impl Iterator<Item = std::io::Result<String>> + '_> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        self.file.flush().and_then(|()| self.file.rewind())?;
        Ok(BufReader::new(self.file.get_ref()).lines())
    }

    /// Writes the whole plan as one JSON object. `items` is its last field, so they follow the rest one by one.
    ///
    /// # Errors
    /// When it cannot be written, or the items cannot be read.
    pub fn write(&mut self, head: &Plan, out: &mut dyn Write) -> std::io::Result<()> {
        let text = serde_json::to_string(head)?;
        let open = text.strip_suffix("]}").ok_or_else(|| std::io::Error::other("a plan ends with its items"))?;
        out.write_all(open.as_bytes())?;
        for (index, line) in self.lines()?.enumerate() {
            out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            out.write_all(line?.as_bytes())?;
        }
        out.write_all(b"\n]}\n").and_then(|()| out.flush())
    }
}

/// How many problems a plan lists.
const MAX_PROBLEMS: usize = 100;

impl Planning<'_> {
    /// Plans, handing over the items shard by shard, by name within a shard (a snapshot: in its own order). `scan` names the plan
    /// in its decisions.
    ///
    /// # Errors
    /// When the target cannot be read at all, or a snapshot is damaged. A live shard that cannot be read is a problem of the plan.
    pub async fn run(&self, scan: ScanRef, each: &mut dyn FnMut(PlanItem)) -> Result<Planned, TargetError> {
        let report = ScanReport::begun(scan, self.target, self.scope, self.now_ms);
        let mut planned = Planned { report, user_topics: 0, problems: Vec::new() };
        let shards = self.inventory.shards(self.scope).await?;
        // A snapshot is one shard and cannot be sorted in memory, nor can all ledgers; a namespace can.
        let whole = shards.iter().any(|shard| shard.is_empty() || shard == ALL_LEDGERS);
        for shard in shards {
            let (mut items, mut tries) = (Vec::new(), 0);
            let before = planned.clone();
            loop {
                let read = self
                    .shard(&shard, scan, &mut planned, &mut |item| if whole { each(item) } else { items.push(item) })
                    .await;
                tries += 1;
                match read {
                    Ok(()) => planned.report.shards += 1,
                    Err(e) if whole => return Err(e),
                    Err(e) => {
                        // Nothing is planned from a broken pass: what it found goes.
                        (planned, _) = (before.clone(), items.clear());
                        if e.class() == Class::Transient && tries < SHARD_TRIES {
                            warn!(shard, error = %e, "reading a namespace failed; reading it again");
                            tokio::time::sleep(Duration::from_secs(tries)).await;
                            continue;
                        }
                        planned.problem(format!("namespace {shard} could not be read: {e}"));
                    }
                }
                break;
            }
            items.sort_by(|a: &PlanItem, b| a.subject.cmp(&b.subject));
            items.into_iter().for_each(&mut *each);
        }
        planned.report.operations = self.inventory.operations();
        Ok(planned)
    }

    async fn shard(
        &self,
        shard: &str,
        scan: ScanRef,
        planned: &mut Planned,
        each: &mut (dyn FnMut(PlanItem) + '_),
    ) -> Result<(), TargetError> {
        let context = Context { scan, target: self.target, now_ms: self.now_ms };
        let reads = |topic: &LedgerCandidate| {
            let wanted = reads(topic, self.policy, self.target, self.now_ms);
            if self.explain { Reads { subscribers: wanted.subscribers, ..Reads::ALL } } else { wanted }
        };
        let mut watched = Watched { watch: self.watch, group: None, writing: None };
        let sightings = self.sightings.as_ref();
        let mut sightings =
            sightings.map(|(store, record)| Sightings::new(store.clone(), self.target, scan.id, *record));
        let mut items = self.inventory.scan(shard, self.scope, &reads);
        while let Some(item) = items.next().await {
            let mut candidate = match item? {
                Item::Candidate(candidate) => candidate,
                Item::Problem(problem) => {
                    planned.problem(problem);
                    continue;
                }
                Item::Surveyed(survey) => {
                    if let Some(sightings) = sightings.take() {
                        sightings.finish().await.map_err(remembering)?;
                    }
                    for (shard, problem) in add_survey(&mut planned.report, *survey) {
                        planned.problem(format!("{shard}: {problem}"));
                    }
                    continue;
                }
            };
            if let (Candidate::Orphan(ledger), Some(sightings)) = (&mut candidate, &mut sightings) {
                sightings.recall(ledger).await.map_err(remembering)?;
            }
            if let Candidate::Subscriber(log) = &mut candidate {
                watched.see(log, self.now_ms, planned.problems.len()).await.map_err(remembering)?;
                planned.user_topics += count_log(&mut planned.report, log);
            }
            for decision in decide_any(&candidate, self.policy, &context) {
                if let (Candidate::Orphan(ledger), Some(sightings)) = (&candidate, &mut sightings) {
                    sightings.note(ledger, &decision, self.now_ms);
                }
                self.item(&candidate, decision, planned, each);
            }
        }
        watched.written().await.map_err(remembering)?;
        watched.finish(planned.problems.len());
        watched.written().await.map_err(remembering)
    }

    fn item(
        &self,
        candidate: &Candidate,
        decision: Decision,
        planned: &mut Planned,
        each: &mut (dyn FnMut(PlanItem) + '_),
    ) {
        let kind = match candidate {
            Candidate::Ledger(topic) => {
                count(&mut planned.report, topic, &decision);
                planned.user_topics += u64::from(topic.class == TopicClass::User);
                "topic"
            }
            Candidate::Subscriber(log) => {
                count_subscriber(&mut planned.report, &decision);
                if decision.subject == log.subject { "log" } else { "subscriber" }
            }
            Candidate::Orphan(ledger) => {
                count_orphan(&mut planned.report, ledger, &decision);
                "ledger"
            }
        };
        let acts = decision.verdict.acts();
        if acts && let Err(violation) = check_any(&decision, candidate, self.policy, self.now_ms) {
            planned.problem(format!("{}: left out, it would break a promise: {violation}", decision.subject));
            return;
        }
        if !(acts || self.explain || matches!(decision.verdict, Verdict::Blocked | Verdict::Report)) {
            return;
        }
        each(PlanItem {
            kind: kind.to_owned(),
            subject: decision.subject.clone(),
            verdict: decision.verdict,
            ledgers: decision.ledgers.clone(),
            bytes: decision.bytes,
            holder: decision.holder.clone(),
            reasons: decision.reasons.clone(),
            decision: acts.then_some(decision),
        });
    }
}

/// What is remembered of subscribers, namespace by namespace: a snapshot has them all in one.
struct Watched<'a> {
    watch: Option<(&'a Watch, bool)>,
    /// The present namespace, its memory, and how many problems there were before it.
    group: Option<(String, ShardWatch, usize)>,
    /// The one before it, whose memory is being written: to wait for the disk each time would take longer than to read.
    writing: Option<JoinHandle<Result<Vec<Cleared>, Failure>>>,
}

impl Watched<'_> {
    async fn see(&mut self, log: &mut SubscriberCandidate, now_ms: i64, problems: usize) -> Result<(), Failure> {
        let Some((watch, record)) = self.watch else { return Ok(()) };
        let group = group_of(&log.subject);
        if self.group.as_ref().is_none_or(|(present, ..)| present != group) {
            self.written().await?;
            let next = watch.shard(group, record).await?;
            let group = group.to_owned();
            self.finish(problems);
            self.group = Some((group, next, problems));
        }
        match &mut self.group {
            Some((_, watch, _)) => watch.see(log, now_ms).await,
            None => Ok(()),
        }
    }

    /// Begins to write what was seen of the present namespace.
    fn finish(&mut self, problems: usize) {
        if let Some((_, watch, before)) = self.group.take() {
            self.writing = Some(tokio::spawn(watch.finish(problems == before)));
        }
    }

    async fn written(&mut self) -> Result<(), Failure> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        writing.await.map_err(|e| Failure::new(Class::Bug, e))?.map(|_| ())
    }
}

/// What groups an item is counted in: a ledger belongs where its owner does.
pub(crate) fn group_of_item(item: &PlanItem) -> &str {
    let owner = item.reasons.first().and_then(|reason| reason.inputs.get("owner"));
    match owner {
        None if item.kind == "ledger" => "(no owner)",
        owner => group_of(owner.map_or(item.subject.as_str(), |owner| owner.as_ref())),
    }
}

/// The part of a name that groups go by: `tenant/namespace`, a region, or a stream.
fn group_of(subject: &str) -> &str {
    if let Some(stream) = subject.strip_prefix("jetstream://") {
        return split_subscriber(subject).map_or(stream, |(log, _)| &log["jetstream://".len()..]);
    }
    let name = subject.split_once("://").map_or(subject, |(_, rest)| rest);
    let ends: Vec<usize> = name.match_indices('/').map(|(at, _)| at).take(2).collect();
    ends.last().map_or(name, |end| &name[..*end])
}

fn remembering(failure: Failure) -> TargetError {
    TargetError::new(Class::Invalid, "remembering what was seen", failure)
}

impl Planned {
    fn problem(&mut self, says: String) {
        self.report.complete = false;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(says);
        }
    }
}
