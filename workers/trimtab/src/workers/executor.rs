//! Carries out decisions: looks again, decides again, sets aside a budget, records the intent, acts, and judges by looking once more.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tracing::{Instrument, Span, info, info_span, warn};
use trimtab_bus::Role;
use trimtab_events::{
    Announced, Body, Candidate, Decision, Event, Notice, Outcome, Position, Reason, Status, SubscriberCandidate,
    TopicState, Verdict, event_id, split_subscriber,
};
use trimtab_policy::{Context, Policy, check_any, decide_any, narrow, reinstate, reinstate_orphan};
use trimtab_targets::{Act, Class, Effect, Inventory, Mode, Permit, Record, TargetError};

use super::source;
use crate::activity::Activity;
use crate::clock::{Clock, timestamp};
use crate::config::Caps;
use crate::journal::{self, Entry, Journal, JournalError, RecordKind};
use crate::metrics::BEYOND_RULE;
use crate::scans::{LEADER_SILENCE_MS, Revisit, Scans};
use crate::sign::{Signer, Trusted};
use crate::telemetry;
use crate::wishes::wishes_about;
use crate::worker::{Failure, Out, Worker};

/// What an executor is made of.
pub struct ExecutorParts {
    /// Name of the target.
    pub target: String,
    /// Looks.
    pub inventory: Arc<dyn Inventory>,
    /// Acts.
    pub act: Arc<dyn Act>,
    /// Decides again.
    pub policy: Policy,
    /// Limits on what is carried out of one scan.
    pub caps: Caps,
    /// Whether anything may be changed.
    pub mode: Mode,
    /// Gates and budgets.
    pub scans: Scans,
    /// Marks, and wishes to be left alone.
    pub activity: Activity,
    /// The record.
    pub journal: Arc<Journal>,
    /// Whose decisions are obeyed.
    pub trusted: Trusted,
    /// Signs outcomes.
    pub signer: Signer,
    /// The clock.
    pub clock: Clock,
    /// Name of this process.
    pub instance: String,
}

/// The executor.
pub struct Executor {
    parts: ExecutorParts,
    source: String,
    /// Acts that are being carried out or are in the journal, by decision and scan.
    intents: Mutex<HashMap<String, Intent>>,
    /// The journal could not be written: nothing is taken until it can.
    stuck: AtomicBool,
    /// An act was begun by this process, and what came of it could not be recorded.
    left_open: AtomicBool,
    /// When a task of this process last found that nothing may be taken: the others need not ask as well.
    must_wait: Mutex<Option<tokio::time::Instant>>,
}

/// How far an act is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intent {
    /// Somebody in this process looks at it, and has recorded nothing yet.
    Claimed,
    /// It is recorded, and being carried out by this process.
    Running,
    /// It was begun, and what came of it is not recorded.
    Open,
    /// Its outcome is recorded.
    Closed,
}

/// Holds an act for one task. However that ends, in an error or a panic too, it is left as somebody else may find it.
struct Claim<'a> {
    executor: &'a Executor,
    key: &'a str,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut intents = lock(&self.executor.intents);
        match intents.get_mut(self.key) {
            Some(how @ Intent::Running) => {
                *how = Intent::Open;
                self.executor.left_open.store(true, Ordering::Relaxed);
            }
            Some(Intent::Claimed) => drop(intents.remove(self.key)),
            _ => {}
        }
    }
}

// Nothing is half done while one of these is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why an act is not carried out, or how it ended.
struct Ended {
    status: Status,
    reasons: Vec<Reason>,
    before: Option<TopicState>,
    after: Option<TopicState>,
    unloaded: bool,
    /// What the act itself measured to be free.
    freed_bytes: Option<i64>,
}

impl Ended {
    fn skipped(rule: &'static str, says: impl Into<String>) -> Ended {
        let reasons = vec![reason(rule, says)];
        Ended { status: Status::Skipped, reasons, before: None, after: None, unloaded: false, freed_bytes: None }
    }
}

fn reason(rule: &'static str, says: impl Into<String>) -> Reason {
    Reason { rule: rule.into(), says: says.into(), inputs: Default::default() }
}

impl Executor {
    /// An executor. Reads the journal for acts that a crash left without an outcome; [`Executor::close_open_intents`] judges them.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn new(parts: ExecutorParts) -> Result<Executor, JournalError> {
        let mut intents = HashMap::new();
        journal::read(parts.journal.path(), |record| match record.kind {
            RecordKind::Intent => {
                intents.entry(intent_of(&record.body)).or_insert(Intent::Open);
            }
            RecordKind::Outcome => {
                intents.insert(outcome_key(&record.body), Intent::Closed);
            }
            _ => {}
        })?;
        let source = source("executor", &parts.instance);
        let (intents, stuck, left_open) = (Mutex::new(intents), AtomicBool::new(false), AtomicBool::new(false));
        Ok(Executor { source, parts, intents, stuck, left_open, must_wait: Mutex::default() })
    }

    fn now_ms(&self) -> i64 {
        self.parts.clock.now_ms()
    }

    /// Judges acts that were begun and of which nothing is recorded, by looking at the target: after a crash, and after the record could
    /// not be written. How many there were.
    ///
    /// # Errors
    /// When the target or the bus cannot be reached; it is tried again before the next decision, and at the next start.
    pub async fn close_open_intents(&self, out: &Out) -> Result<usize, Failure> {
        let known = lock(&self.intents).clone();
        let open = known.into_iter().filter(|(_, how)| *how == Intent::Open).map(|(key, _)| key);
        let open: BTreeSet<String> = open.collect();
        for key in &open {
            if let Some(how @ Intent::Open) = lock(&self.intents).get_mut(key) {
                *how = Intent::Running;
            } else {
                continue;
            }
            let _claim = Claim { executor: self, key };
            self.close_open(key, out).await?;
        }
        Ok(open.len())
    }

    /// Judges one act that was begun and whose outcome is not recorded.
    async fn close_open(&self, key: &str, out: &Out) -> Result<Outcome, Failure> {
        let lost = || Failure::new(Class::Bug, format!("the record has no intent {key}"));
        let body = self.recorded(RecordKind::Intent, key)?.ok_or_else(lost)?;
        let decision: Decision = serde_json::from_value(body["decision"].clone()).map_err(|_| lost())?;
        let before: Option<TopicState> = serde_json::from_value(body["before"].clone()).ok();
        let seen = self.parts.inventory.observe(&decision.subject).await?;
        let after = seen.as_ref().map(|seen| state_of(&decision, seen)).or_else(|| state_of_gone(&decision));
        let status = status_after_restart(&decision, before.as_ref(), after.as_ref());
        let mut reasons = vec![reason("restart", RESTART)];
        if after.is_none() {
            reasons.push(reason("verify", "it does not exist any more"));
        }
        let mut unloaded = false;
        if let (Some(seen), Some(permit)) = (&seen, Permit::for_mode(self.parts.mode)) {
            match self.parts.act.tidy(&decision, seen, &permit).await {
                Ok(effect) => {
                    unloaded = effect.unloaded;
                    reasons.extend(effect.notes.into_iter().map(|note| reason("call", note)));
                }
                Err(e) => reasons.push(reason("call", format!("what the act left open was not closed: {e}"))),
            }
        }
        let ended = Ended { status, reasons, before, after, unloaded, freed_bytes: None };
        self.finish(&decision, ended, decision.decided_ms, out).await
    }

    /// The body of the last record of a kind about an act.
    fn recorded(&self, kind: RecordKind, key: &str) -> Result<Option<serde_json::Value>, Failure> {
        let mut found = None;
        journal::read(self.parts.journal.path(), |record| {
            let is = match record.kind {
                RecordKind::Intent => intent_of(&record.body),
                RecordKind::Outcome => outcome_key(&record.body),
                _ => return,
            };
            if record.kind == kind && is == key {
                found = Some(record.body);
            }
        })?;
        Ok(found)
    }

    /// Carries out one decision, or says why not. What was carried out before is not carried out again: its outcome is emitted
    /// once more, in case it did not get through the first time.
    ///
    /// # Errors
    /// When something failed before the act: nothing was done. Or when what came of the act could not be read or recorded: it is in the
    /// record as begun. Either way it may be tried again, and is acted on once.
    pub async fn carry_out(&self, decision: &Decision, out: &Out) -> Result<Outcome, Failure> {
        let key = intent_key(decision);
        let known = {
            let mut intents = lock(&self.intents);
            let known = intents.get(&key).copied();
            match known {
                None => drop(intents.insert(key.clone(), Intent::Claimed)),
                Some(Intent::Open) => drop(intents.insert(key.clone(), Intent::Running)),
                _ => {}
            }
            known
        };
        match known {
            None => {
                let _claim = Claim { executor: self, key: &key };
                let started = self.now_ms();
                let ended = self.attempt(decision, out).await?;
                self.finish(decision, ended, started, out).await
            }
            Some(Intent::Claimed | Intent::Running) => {
                Err(Failure::Later { after: GATE_AGAIN, why: "it is being carried out".to_owned() })
            }
            Some(Intent::Open) => {
                let _claim = Claim { executor: self, key: &key };
                self.close_open(&key, out).await
            }
            Some(Intent::Closed) => {
                let lost = || Failure::new(Class::Bug, format!("the record has no outcome of {key}"));
                let body = self.recorded(RecordKind::Outcome, &key)?.ok_or_else(lost)?;
                let outcome: Outcome = serde_json::from_value(body).map_err(|_| lost())?;
                self.told(&outcome, out).await?;
                Ok(Outcome {
                    status: Status::Skipped,
                    reasons: vec![reason("repeated", "it was carried out before; the record has its outcome")],
                    freed: Vec::new(),
                    freed_bytes: 0,
                    ..outcome
                })
            }
        }
    }

    async fn may_act(&self) -> Result<bool, Failure> {
        let Some(leader) = self.parts.scans.leader(&self.parts.target).await? else { return Ok(false) };
        if !leader.ended {
            return Ok(self.now_ms().saturating_sub(leader.at_ms) > LEADER_SILENCE_MS);
        }
        let gate = self.parts.scans.gate(leader.scan.id).await?;
        Ok(gate.is_none_or(|gate| gate.closed().is_none()))
    }

    async fn attempt(&self, decision: &Decision, out: &Out) -> Result<Ended, Failure> {
        let parts = &self.parts;
        let Some(permit) = Permit::for_mode(parts.mode) else {
            return Ok(Ended::skipped("dry-run", "this executor only looks; it acts with --apply"));
        };
        let early_ms = decision.not_before_ms.saturating_sub(self.now_ms());
        if let Ok(early) = u64::try_from(early_ms).map(Duration::from_millis)
            && early > Duration::ZERO
            && early <= parts.caps.max_clock_skew
        {
            // Not skipped: on a machine whose clock is a little behind the deciders', every decision is early.
            let why = format!("it is valid in {} ms by the clock of this machine", early.as_millis());
            return Err(Failure::Later { after: early, why });
        }
        let mut seen = match parts.inventory.observe(&decision.subject).await? {
            Some(seen) => seen,
            None => return Ok(Ended::skipped("gone", "it does not exist any more")),
        };
        let mut decision = decision.clone();
        match &mut seen {
            Candidate::Ledger(topic) => {
                if let Some(wish) = parts.activity.protects(&topic.subject, self.now_ms()).await? {
                    return Ok(Ended::skipped("protected", format!("{} asked to leave it alone", wish.by)));
                }
            }
            Candidate::Subscriber(log) => {
                if decision.subject == log.subject
                    && let Some(wish) = parts.activity.protects(&log.subject, self.now_ms()).await?
                {
                    return Ok(Ended::skipped("protected", format!("{} asked to leave it alone", wish.by)));
                }
                self.remember(log, &mut decision).await?;
            }
            Candidate::Orphan(ledger) => {
                for name in wishes_about(ledger) {
                    if let Some(wish) = parts.activity.protects(&name, self.now_ms()).await? {
                        return Ok(Ended::skipped("protected", format!("{} asked to leave {name} alone", wish.by)));
                    }
                }
                reinstate_orphan(ledger, &decision);
            }
        }
        let context = Context { scan: decision.scan, target: &parts.target, now_ms: self.now_ms() };
        let again =
            decide_any(&seen, &parts.policy, &context).into_iter().find(|again| again.subject == decision.subject);
        let Some(again) = again else {
            return Ok(Ended::skipped("gone", "it does not exist any more"));
        };
        // The same act by the same name: a decision's own id tells of the version that was seen then, and the node may have been written since.
        let again = Decision { id: decision.id, ..again };
        if let Some(changed) = difference(&decision, &again) {
            let mut ended = Ended::skipped("changed", changed);
            ended.reasons.extend(again.reasons);
            return Ok(ended);
        }
        if let Err(violation) = check_any(&again, &seen, &parts.policy, context.now_ms) {
            warn!(subject = decision.subject, %violation, "a decision would break a promise; this is a bug in the rules");
            return Ok(Ended::skipped("check", format!("it would break a promise: {violation}")));
        }
        if context.now_ms > decision.expires_ms || context.now_ms < decision.not_before_ms {
            return Ok(Ended::skipped("expired", "it is not valid at this moment; the next scan decides anew"));
        }
        let before = state_of(&again, &seen);
        if again.verdict == Verdict::Mark {
            self.intend(&again, &before, &seen).await?;
            return self.mark(&again, &seen, before, out).await;
        }
        let bytes = u64::try_from(again.bytes).unwrap_or(0);
        if !parts.scans.reserve(decision.scan.id, bytes, &parts.caps).await? {
            let says = "carrying it out would cross max_acts or max_bytes for its scan";
            return Ok(Ended::skipped("caps", says));
        }
        if let Err(e) = self.intend(&again, &before, &seen).await {
            // It will be tried again, and must not count twice.
            if let Err(e) = parts.scans.give_back(decision.scan.id, bytes).await {
                warn!(error = %e, "what was set aside for an act that was not begun still counts for its scan");
            }
            return Err(e);
        }
        self.act(&again, &seen, before, &permit).await
    }

    /// Gives the subscribers of a log what is known of them: marks, wishes, and the histories of the decision where they have not moved
    /// since, or only by our own acts on other partitions.
    async fn remember(&self, log: &mut SubscriberCandidate, decision: &mut Decision) -> Result<(), Failure> {
        narrow(log, decision);
        self.parts.activity.recall(log).await?;
        for stale in decision.consume.iter_mut().flat_map(|consume| &mut consume.stale) {
            let now = log.subscribers.iter().find(|s| s.name == stale.subscription).and_then(|s| s.progress.present());
            let Some(now) = now.filter(|now| **now != stale.progress).cloned() else { continue };
            if self.parts.activity.is_ours(log, &stale.subscription, &stale.progress).await? {
                if let Some(subscriber) = log.subscribers.iter_mut().find(|s| s.name == stale.subscription) {
                    subscriber.alive_ms = 0;
                    if let Some(mark) = subscriber.mark.as_mut().filter(|mark| mark.progress == stale.progress) {
                        mark.progress.clone_from(&now);
                    }
                }
                stale.progress = now;
            }
        }
        reinstate(log, decision);
        Ok(())
    }

    /// Announces that a subscriber will be acted on.
    async fn mark(
        &self,
        decision: &Decision,
        seen: &Candidate,
        before: TopicState,
        out: &Out,
    ) -> Result<Ended, Failure> {
        let (Candidate::Subscriber(log), Some(consume)) = (seen, &decision.consume) else {
            return Err(Failure::new(Class::Bug, "only subscribers are marked"));
        };
        let own = consume.stale.iter().find(|stale| stale.subscription == consume.subscription);
        let progress = own.map(|stale| stale.progress.clone()).unwrap_or_default();
        let mark = self.parts.activity.mark(log, &consume.subscription, &progress, self.now_ms()).await?;
        let says = decision.reasons.first().map(|reason| reason.says.clone()).unwrap_or_default();
        let notice = Notice {
            scan: decision.scan.id,
            target: self.parts.target.clone(),
            subject: decision.subject.clone(),
            announced: Announced::Marked,
            says: says.clone(),
            at_ms: mark.marked_ms,
            not_before_ms: Some(mark.marked_ms.saturating_add(consume.grace_s.saturating_mul(1000))),
            bytes: decision.bytes,
            trace_id: telemetry::trace_id(&Span::current()),
        };
        let id = event_id("notice", &[&notice.scan.to_string(), &notice.subject, notice.announced.name()]);
        let trace = telemetry::trace_of(&Span::current());
        let now = timestamp(self.now_ms());
        let event = Event::new(id.to_string(), &self.source, &self.parts.target, now, trace, notice)?;
        out.emit(&event).await?;
        Ok(Ended {
            status: Status::Done,
            reasons: vec![reason("mark", says)],
            after: Some(before.clone()),
            before: Some(before),
            unloaded: false,
            freed_bytes: None,
        })
    }

    /// Records what is about to be done. It is on disk when this returns; without that, nothing is done.
    /// The evidence goes with it: a visit rewrites the times in cursors' nodes.
    async fn intend(&self, decision: &Decision, before: &TopicState, evidence: &Candidate) -> Result<(), Failure> {
        let entry = Entry {
            kind: RecordKind::Intent,
            id: decision.id.to_string(),
            subject: decision.subject.clone(),
            trace_id: telemetry::trace_id(&Span::current()),
            body: serde_json::json!({ "decision": decision, "before": before, "evidence": evidence }),
        };
        self.written(self.parts.journal.write(entry).await)?;
        lock(&self.intents).insert(intent_key(decision), Intent::Running);
        Ok(())
    }

    fn written(&self, result: Result<u64, JournalError>) -> Result<(), Failure> {
        self.stuck.store(result.is_err(), Ordering::Relaxed);
        if let Err(e) = &result {
            warn!(error = %e, "nothing is carried out until the record can be written");
        }
        result.map(|_| ()).map_err(Failure::from)
    }

    /// Acts, and reads what came of it. Where that cannot be read the act stays open, and is judged once it can: else what it freed would
    /// be in no outcome.
    async fn act(
        &self,
        decision: &Decision,
        seen: &Candidate,
        before: TopicState,
        permit: &Permit,
    ) -> Result<Ended, Failure> {
        let span = info_span!(
            "act",
            otel.name = format!("act {}", decision.verdict),
            otel.kind = "client",
            trimtab.subject = decision.subject,
            trimtab.verdict = decision.verdict.name(),
            trimtab.decision = %decision.id,
            trimtab.bytes = decision.bytes,
        );
        info!(subject = decision.subject, verdict = decision.verdict.name(), ledgers = ?decision.ledgers, "acting");
        let record = Evidence { journal: &self.parts.journal, decision };
        let acted = self.parts.act.act(decision, seen, &record, permit).instrument(span).await;
        // Judged by the metadata, whatever the answer to the call was.
        let seen = self.parts.inventory.observe(&decision.subject).await;
        if let (Ok(effect), Ok(Some(Candidate::Subscriber(log)))) = (&acted, &seen) {
            self.note_subscriber(decision, effect, log).await;
        }
        let after = match seen {
            Ok(seen) => seen.map(|seen| state_of(decision, &seen)).or_else(|| state_of_gone(decision)),
            // Nothing was done, whatever there is to be read.
            Err(_) if acted.as_ref().is_ok_and(|effect| effect.skipped.is_some()) => None,
            Err(e) => {
                let called = acted.map(|effect| effect.notes.join("; ")).unwrap_or_else(|e| e.to_string());
                warn!(
                    subject = decision.subject,
                    called, "what came of an act could not be read; it is judged once it can"
                );
                let why = format!(
                    "it was begun, and is judged when what came of it can be read, at the next start at the latest: {e}"
                );
                return Err(Failure::new(e.class(), why));
            }
        };
        Ok(judge(decision, before, acted, after))
    }

    /// Remembers where our own act left a subscriber, so that nobody takes that for a sign of life: only if it stands exactly there, for
    /// who stands further is back. And that the act found it alive, if it did.
    async fn note_subscriber(&self, decision: &Decision, effect: &Effect, log: &SubscriberCandidate) {
        let Some(consume) = &decision.consume else { return };
        let (name, now) = (&consume.subscription, self.now_ms());
        let noted = if effect.skipped.as_ref().is_some_and(|skipped| skipped.alive) {
            self.parts.activity.note_alive(log, name, effect.stood_at, now).await
        } else if effect.skipped.is_none() && log.position(name) == Some(effect.left_at.unwrap_or(consume.to)) {
            let own = consume.stale.iter().find(|stale| stale.subscription == *name);
            let decided = own.map(|stale| stale.progress.as_str()).unwrap_or_default();
            self.parts.activity.note_own(log, name, decided, now).await
        } else {
            return;
        };
        if let Err(e) = noted {
            warn!(subject = decision.subject, error = %e, "what the act saw of the subscriber was not noted");
        }
    }

    /// Records what came of a decision, and emits it.
    async fn finish(&self, decision: &Decision, ended: Ended, started_ms: i64, out: &Out) -> Result<Outcome, Failure> {
        let outcome = self.outcome(decision, ended, started_ms);
        let entry = Entry {
            kind: RecordKind::Outcome,
            id: decision.id.to_string(),
            subject: decision.subject.clone(),
            trace_id: outcome.trace_id.clone(),
            body: serde_json::to_value(&outcome).map_err(|e| Failure::new(Class::Bug, e))?,
        };
        self.written(self.parts.journal.write(entry).await)?;
        lock(&self.intents).insert(intent_key(decision), Intent::Closed);
        self.told(&outcome, out).await?;
        info!(
            subject = outcome.subject,
            status = outcome.status.name(),
            freed = outcome.freed.len(),
            freed_bytes = outcome.freed_bytes,
            why = outcome.reasons.first().map_or("", |r| r.says.as_str()),
            "outcome"
        );
        Ok(outcome)
    }

    /// What follows an outcome that is recorded: it is emitted, and the second visit that it asks for is noted. May be done again.
    async fn told(&self, outcome: &Outcome, out: &Out) -> Result<(), Failure> {
        self.emit(outcome, out).await?;
        if let Some(due_ms) = outcome.revisit_ms.filter(|_| outcome.status != Status::Skipped) {
            let revisit = Revisit { target: self.parts.target.clone(), subject: outcome.subject.clone(), due_ms };
            self.parts.scans.revisit(&revisit).await?;
        }
        Ok(())
    }

    /// Emits an outcome, signed. Its id is the same each time, so that one that gets through twice counts once.
    async fn emit(&self, outcome: &Outcome, out: &Out) -> Result<(), Failure> {
        let parts = [outcome.decision.to_string(), outcome.scan.id.to_string(), outcome.started_ms.to_string()];
        let id = event_id("outcome", &[&parts[0], &parts[1], &parts[2], &outcome.executor]);
        let trace = telemetry::trace_of(&Span::current());
        let now = timestamp(self.now_ms());
        let mut event = Event::new(id.to_string(), &self.source, &self.parts.target, now, trace, outcome.clone())?;
        self.parts.signer.sign(&mut event).map_err(|e| Failure::new(Class::Bug, e))?;
        out.emit(&event).await.map(|_| ())
    }

    fn outcome(&self, decision: &Decision, ended: Ended, started_ms: i64) -> Outcome {
        let now = self.now_ms();
        let (freed, bytes) = freed(ended.before.as_ref(), ended.after.as_ref());
        Outcome {
            decision: decision.id,
            scan: decision.scan,
            target: self.parts.target.clone(),
            subject: decision.subject.clone(),
            verdict: decision.verdict,
            status: ended.status,
            reasons: ended.reasons,
            before: ended.before,
            after: ended.after,
            predicted: decision.ledgers.clone(),
            freed,
            predicted_bytes: decision.bytes,
            freed_bytes: ended.freed_bytes.unwrap_or(bytes),
            unloaded: ended.unloaded,
            // Counted from the visit, not from the decision.
            revisit_ms: decision.revisit_ms.map(|at| at - decision.decided_ms + now),
            executor: self.parts.instance.clone(),
            started_ms,
            ended_ms: now,
            trace_id: telemetry::trace_id(&Span::current()),
        }
    }
}

/// Where an act takes down what it needs on its way: in the record, under the decision's id.
struct Evidence<'a> {
    journal: &'a Journal,
    decision: &'a Decision,
}

impl Record for Evidence<'_> {
    fn record(&self, evidence: serde_json::Value) -> BoxFuture<'_, Result<(), TargetError>> {
        async move {
            let entry = Entry {
                kind: RecordKind::Evidence,
                id: self.decision.id.to_string(),
                subject: self.decision.subject.clone(),
                trace_id: telemetry::trace_id(&Span::current()),
                body: serde_json::json!({ "scan": self.decision.scan, "evidence": evidence }),
            };
            let what = format!("recording what was seen of {}", self.decision.subject);
            self.journal.write(entry).await.map(|_| ()).map_err(|e| TargetError::new(Class::Transient, what, e))
        }
        .boxed()
    }
}

/// What a decision's intent is known by: the same decision of a later scan is another act.
fn intent_key(decision: &Decision) -> String {
    format!("{}/{}", decision.id, decision.scan.id)
}

fn intent_of(body: &serde_json::Value) -> String {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&body["decision"]["id"]), text(&body["decision"]["scan"]["id"]))
}

fn outcome_key(body: &serde_json::Value) -> String {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&body["decision"]), text(&body["scan"]["id"]))
}

/// Whether the metadata shows what was to be: the subscriber stands where it was to go or further (a hub or broker collects the ledgers
/// in its own time), or is gone; without one, the ledgers are gone.
fn shows(decision: &Decision, aim: Option<Position>, after: &TopicState) -> bool {
    match (&decision.consume, decision.verdict) {
        (Some(_), Verdict::DeleteSubscription) => after.position.is_none(),
        (Some(consume), _) => after.position.is_some_and(|at| at >= aim.unwrap_or(consume.to)),
        (None, _) => !decision.ledgers.iter().any(|id| after.ledgers.contains(id)),
    }
}

/// Why the reasons of an outcome do not say what the calls answered.
const RESTART: &str =
    "its executor was stopped during the act, or could not read or record what came of it; this was read afterwards";

/// What came of such an act, as far as the metadata tells.
fn status_after_restart(decision: &Decision, before: Option<&TopicState>, after: Option<&TopicState>) -> Status {
    let Some(after) = after else { return Status::Failed };
    let changed = before.is_none_or(|before| before.ledgers != after.ledgers);
    let shown = shows(decision, None, after);
    if decision.consume.is_some() {
        return if shown { Status::Done } else { Status::Failed };
    }
    // Where no ledger was to go, the visit shows in the list alone.
    if shown && (changed || !decision.ledgers.is_empty()) { Status::Done } else { Status::Failed }
}

/// How a decision made now differs from the one that was to be carried out; none when it still says the same.
fn difference(was: &Decision, is: &Decision) -> Option<String> {
    if is.verdict != was.verdict {
        let why = is.reasons.first().map_or("", |reason| reason.says.as_str());
        return Some(format!("it was to be {}, by now it is {}: {why}", was.verdict, is.verdict));
    }
    if is.ledgers != was.ledgers {
        return Some(format!("it was to free ledgers {:?}, by now that would be {:?}", was.ledgers, is.ledgers));
    }
    let bound = |d: &Decision| d.consume.as_ref().map(|consume| (consume.from, consume.to));
    if bound(is) != bound(was) {
        return Some(match (&was.consume, &is.consume) {
            (Some(was), Some(is)) => {
                format!(
                    "it was to go from {} to {}, by now that would be from {} to {}",
                    was.from, was.to, is.from, is.to
                )
            }
            _ => "what is to be consumed has changed".to_owned(),
        });
    }
    if is.expire != was.expire {
        return Some("the subscriptions whose messages expire have changed".to_owned());
    }
    (is.offloaded_copies != was.offloaded_copies).then(|| "the copies in tiered storage have changed".to_owned())
}

/// A log's ledgers, and where the subscriber of the decision stands, for records.
fn state_of(decision: &Decision, seen: &Candidate) -> TopicState {
    match seen {
        Candidate::Ledger(topic) => TopicState::of_topic(topic),
        Candidate::Subscriber(log) => {
            let name = split_subscriber(&decision.subject).map(|(_, name)| name).unwrap_or_default();
            TopicState::of_subscriber(log, &name, decision.seen)
        }
        Candidate::Orphan(ledger) => TopicState::of_orphan(ledger),
    }
}

/// What it is where nothing is there any more, and that is what was to be.
fn state_of_gone(decision: &Decision) -> Option<TopicState> {
    (decision.verdict == Verdict::DeleteOrphan).then(|| TopicState::of_gone(decision.seen))
}

/// Which ledgers are gone, and how many bytes that is.
fn freed(before: Option<&TopicState>, after: Option<&TopicState>) -> (Vec<i64>, i64) {
    let (Some(before), Some(after)) = (before, after) else { return (Vec::new(), 0) };
    let gone = before.ledgers.iter().copied().filter(|id| !after.ledgers.contains(id)).collect::<Vec<_>>();
    let bytes = if gone.is_empty() { 0 } else { (before.bytes - after.bytes).max(0) };
    (gone, bytes)
}

fn judge(
    decision: &Decision,
    before: TopicState,
    acted: Result<trimtab_targets::Effect, TargetError>,
    after: Option<TopicState>,
) -> Ended {
    let mut reasons = Vec::new();
    let (mut unloaded, mut pending, mut skipped, mut aim, mut freed_bytes) = (false, false, false, None, None);
    let failed = match acted {
        Ok(effect) => {
            if let Some(why) = &effect.skipped {
                reasons.push(reason(why.rule, why.says.clone()));
                skipped = true;
            }
            reasons.extend(effect.notes.iter().map(|note| reason("call", note.clone())));
            (unloaded, pending, aim, freed_bytes) = (effect.unloaded, effect.pending, effect.aim, effect.freed_bytes);
            false
        }
        Err(e) => {
            reasons.push(reason("call", e.to_string()));
            true
        }
    };
    let (gone, _) = freed(Some(&before), after.as_ref());
    let beyond: Vec<i64> = gone
        .iter()
        .copied()
        .filter(|id| !decision.ledgers.contains(id) && !decision.dropped_by_load.contains(id))
        .collect();
    if !beyond.is_empty() {
        reasons.push(reason(BEYOND_RULE, format!("more was freed than predicted: {beyond:?}")));
    }
    let shown = after.as_ref().is_some_and(|after| shows(decision, aim, after));
    let status = match (shown, failed, pending) {
        _ if skipped => Status::Skipped,
        _ if after.is_none() => {
            reasons.push(reason("verify", "it does not exist any more"));
            Status::Failed
        }
        (true, true, _) if decision.ledgers.is_empty() && decision.consume.is_none() => Status::Failed,
        (true, _, _) => Status::Done,
        (false, true, _) => Status::Failed,
        (false, false, true) => Status::Pending,
        (false, false, false) => Status::Failed,
    };
    if decision.verdict == Verdict::StartClock && status == Status::Done {
        reasons.push(reason(
            "start-clock",
            "the retention time of its last ledger runs from now; a second visit frees it",
        ));
    }
    Ended { status, reasons, before: Some(before), after, unloaded, freed_bytes }
}

/// How long one task's finding that nothing may be taken holds for the others: less than they wait between two questions.
const WAIT_AGAIN: Duration = Duration::from_millis(400);
/// When a decision is looked at again whose scan has not ended.
const GATE_AGAIN: Duration = Duration::from_secs(5);

impl Worker for Executor {
    fn role(&self) -> Role {
        Role::Executor
    }

    /// Not while a scan goes on, nor when a limit stopped it: its decisions stay where they are until its limits were judged, or a
    /// person has confirmed it.
    fn ready<'a>(&'a self, out: &'a Out) -> BoxFuture<'a, bool> {
        async move {
            if self.stuck.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_secs(5)).await;
                self.stuck.store(false, Ordering::Relaxed);
            }
            // The bus may give that decision to somebody else, who finds nothing left to do.
            if self.left_open.swap(false, Ordering::Relaxed)
                && let Err(e) = self.close_open_intents(out).await
            {
                warn!(error = %e, "what came of an act could not be recorded yet");
                self.left_open.store(true, Ordering::Relaxed);
                return false;
            }
            if lock(&self.must_wait).is_some_and(|since| since.elapsed() < WAIT_AGAIN) {
                return false;
            }
            let may = match self.may_act().await {
                Ok(may) => may,
                Err(e) => {
                    warn!(error = %e, "cannot see whether a scan goes on");
                    false
                }
            };
            if !may {
                *lock(&self.must_wait) = Some(tokio::time::Instant::now());
            }
            may
        }
        .boxed()
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Body::Decision(decision) = body else {
                return Err(Failure::new(Class::Invalid, "an executor takes decisions only"));
            };
            self.parts.trusted.check(event).map_err(|e| Failure::new(Class::Refused, e))?;
            if decision.target != self.parts.target {
                let why =
                    format!("this executor acts on {:?}, the decision is for {:?}", self.parts.target, decision.target);
                return Err(Failure::new(Class::Invalid, why));
            }
            let gate = self.parts.scans.gate(decision.scan.id).await?;
            // One by a leader before the one that made the decision has not judged it.
            let judged = gate.as_ref().is_some_and(|gate| gate.scan.fence >= decision.scan.fence);
            if !judged && self.now_ms() <= decision.expires_ms {
                let why = format!("scan {} has not ended", decision.scan.id);
                return Err(Failure::Later { after: GATE_AGAIN, why });
            }
            if let Some(why) = gate.as_ref().and_then(|gate| gate.closed()) {
                self.finish(&decision, Ended::skipped("caps", why), self.now_ms(), out).await?;
                return Ok(());
            }
            self.carry_out(&decision, out).await.map(|_| ())
        }
        .boxed()
    }
}
