//! The loop that every worker runs in: validate, span, handle, publish, then acknowledge; delay or dead-letter by class of error.
//!
//! Workers never publish, sleep or retry by themselves. An input is acknowledged only after everything that came of it is stored.
//!
//! Whatever waits for several things looks at them in one order (`biased`), here and in the bus inside one process: a simulation that runs
//! these on a virtual clock can be repeated step by step.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, error, field, info, info_span, warn};
use trimtab_bus::{Bus, BusError, Delivery, Published, Role};
use trimtab_events::{Body, Event, Invalid};
use trimtab_targets::{Class, TargetError};

use crate::journal::JournalError;
use crate::metrics::Metrics;
use crate::retry::Delays;
use crate::telemetry;

/// Why an event could not be handled.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// Not now: nothing is wrong, but it cannot be handled before something else has happened.
    #[error("not yet: {why}")]
    Later {
        /// When to look again.
        after: Duration,
        /// What is waited for.
        why: String,
    },
    /// Something failed.
    #[error("{why}")]
    Failed {
        /// What to do about it.
        class: Class,
        /// What was attempted, on what, why it failed.
        why: String,
    },
}

impl Failure {
    /// A failure of this class.
    pub fn new(class: Class, why: impl std::fmt::Display) -> Failure {
        Failure::Failed { class, why: why.to_string() }
    }
}

impl From<TargetError> for Failure {
    fn from(e: TargetError) -> Failure {
        Failure::new(e.class(), e)
    }
}

impl From<BusError> for Failure {
    fn from(e: BusError) -> Failure {
        let class = match &e {
            BusError::Full { .. } | BusError::Unavailable { .. } | BusError::Conflict { .. } | BusError::Closed => {
                Class::Transient
            }
            BusError::Refused { .. } => Class::Refused,
            BusError::Unfit { .. } => Class::Bug,
        };
        Failure::new(class, e)
    }
}

impl From<JournalError> for Failure {
    fn from(e: JournalError) -> Failure {
        // A full disk is emptied some day; until then nothing may happen.
        Failure::new(Class::Transient, e)
    }
}

impl From<Invalid> for Failure {
    fn from(e: Invalid) -> Failure {
        Failure::new(Class::Bug, e)
    }
}

/// Where a worker's outputs go.
#[derive(Clone)]
pub struct Out {
    bus: Arc<dyn Bus>,
}

impl Out {
    /// Outputs to this bus.
    pub fn new(bus: Arc<dyn Bus>) -> Out {
        Out { bus }
    }

    /// Publishes an event; it is stored when this returns.
    ///
    /// # Errors
    /// When it could not be stored.
    pub async fn emit(&self, event: &Event) -> Result<Published, Failure> {
        Ok(self.bus.publish(event).await?)
    }

    /// Publishes several events that do not depend on each other; all are stored when this returns.
    ///
    /// # Errors
    /// When one could not be stored. Others may be.
    pub async fn emit_all(&self, events: &[Event]) -> Result<Vec<Published>, Failure> {
        Ok(self.bus.publish_all(events).await.into_iter().collect::<Result<_, _>>()?)
    }
}

/// One role's work.
pub trait Worker: Send + Sync + 'static {
    /// Whose queue it takes from.
    fn role(&self) -> Role;

    /// The lane it takes from, if its role has lanes.
    fn lane(&self) -> Option<&str> {
        None
    }

    /// Whether it can take anything now. Asked before each take; what was left undone before may be done first.
    fn ready<'a>(&'a self, _out: &'a Out) -> BoxFuture<'a, bool> {
        Box::pin(futures::future::ready(true))
    }

    /// How long what was begun may go on after the worker was told to stop. What is cut off then comes again.
    fn grace(&self) -> Duration {
        Duration::from_secs(25)
    }

    /// Handles one event that fits its schema.
    fn handle<'a>(&'a self, event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>>;
}

/// Numbers of a loop.
#[derive(Debug, Clone)]
pub struct LoopOptions {
    /// Events handled at once.
    pub at_once: usize,
    /// Tries before an event that keeps failing is given up.
    pub tries: u64,
    /// How often the bus is told that an event is still being handled.
    pub working_every: Duration,
    /// Delays between tries.
    pub delays: Delays,
    /// Ends the whole process, by its stop token, once its queue had nothing for so long.
    pub exit_when_idle: Option<Duration>,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions {
            at_once: 8,
            tries: 10,
            working_every: Duration::from_secs(20),
            delays: Delays::default(),
            exit_when_idle: None,
        }
    }
}

/// Runs a worker until `stop`, then finishes what it has begun.
///
/// As many tasks take events as may be handled at once, so that a bus knows how many are wanted. They end where they are when this is
/// dropped.
pub async fn run(
    worker: Arc<dyn Worker>,
    bus: Arc<dyn Bus>,
    options: LoopOptions,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    metrics.begins(worker.role());
    let mut takers = JoinSet::new();
    let cut_off = CancellationToken::new();
    let idle = Arc::new(Idle::new());
    for number in 0..options.at_once.max(1) {
        let taker = Taker {
            number,
            worker: worker.clone(),
            bus: bus.clone(),
            out: Out::new(bus.clone()),
            options: options.clone(),
            metrics: metrics.clone(),
            stop: stop.clone(),
            cut_off: cut_off.clone(),
            idle: idle.clone(),
        };
        takers.spawn(taker.run());
    }
    let quiet = async {
        match options.exit_when_idle {
            Some(limit) => idle.wait(limit, worker.as_ref(), bus.as_ref()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = ended(&mut takers) => return,
        () = quiet => {
            info!(role = worker.role().name(), "nothing to do any more; ending");
            stop.cancel();
        }
    }
    if tokio::time::timeout(worker.grace(), ended(&mut takers)).await.is_err() {
        cut_off.cancel();
        ended(&mut takers).await;
    }
}

/// Returns once all have ended.
async fn ended(takers: &mut JoinSet<()>) {
    while takers.join_next().await.is_some() {}
}

/// How often a worker that is not ready is asked again.
const READY_EVERY: Duration = Duration::from_millis(500);

/// Since when nothing was done.
struct Idle {
    at_work: AtomicUsize,
    since: Mutex<tokio::time::Instant>,
}

impl Idle {
    fn new() -> Idle {
        Idle { at_work: AtomicUsize::new(0), since: Mutex::new(tokio::time::Instant::now()) }
    }

    fn touch(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = tokio::time::Instant::now();
    }

    /// Until this is dropped, somebody is at work.
    fn work(&self) -> AtWork<'_> {
        self.at_work.fetch_add(1, Ordering::AcqRel);
        AtWork(self)
    }

    /// Returns once nobody has been at work for `limit`, and the queue has nothing, not for later either.
    async fn wait(&self, limit: Duration, worker: &dyn Worker, bus: &dyn Bus) {
        loop {
            let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
            if self.at_work.load(Ordering::Acquire) > 0 || since.elapsed() < limit {
                let until = (since + limit).max(tokio::time::Instant::now() + limit.min(READY_EVERY));
                tokio::time::sleep_until(until).await;
            } else if matches!(bus.depth(worker.role()).await, Ok(0)) {
                return;
            } else {
                self.touch();
            }
        }
    }
}

struct AtWork<'a>(&'a Idle);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Takes one event after the other.
struct Taker {
    number: usize,
    worker: Arc<dyn Worker>,
    bus: Arc<dyn Bus>,
    out: Out,
    options: LoopOptions,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    cut_off: CancellationToken,
    idle: Arc<Idle>,
}

impl Taker {
    async fn run(self) {
        let mut failures = 0;
        loop {
            let taken = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                taken = self.next() => taken,
            };
            match taken {
                Ok((delivery, waited)) => {
                    let _at_work = self.idle.work();
                    failures = 0;
                    // What was long in coming may find a worker that is no longer ready for it.
                    if waited > READY_EVERY && !self.worker.ready(&self.out).await {
                        if let Err(e) = delivery.settle.again(READY_EVERY).await {
                            warn!(error = %e, "an event could not be given back; it comes again by itself");
                        }
                        continue;
                    }
                    let one = One {
                        worker: self.worker.clone(),
                        out: self.out.clone(),
                        options: self.options.clone(),
                        metrics: self.metrics.clone(),
                    };
                    // A panic ends only this one: nothing of it is looked at again, and its event comes back.
                    let handled = AssertUnwindSafe(one.handle(delivery)).catch_unwind();
                    let _ = self.cut_off.run_until_cancelled(handled).await;
                }
                Err(BusError::Closed) => return,
                Err(e) => {
                    failures += 1;
                    let delay = self.options.delays.after(failures);
                    // The others are told the same; one says it.
                    if self.number == 0 {
                        let role = self.worker.role().name();
                        warn!(role, error = %e, delay_ms = delay.as_millis(), "taking from the queue failed; trying again");
                    }
                    tokio::select! { biased; () = self.stop.cancelled() => return, () = tokio::time::sleep(delay) => {} }
                }
            }
        }
    }

    /// The next event, and how long it was in coming. May be dropped while it waits.
    async fn next(&self) -> Result<(Delivery, Duration), BusError> {
        while !self.worker.ready(&self.out).await {
            // It waits for others, with work of its own perhaps.
            self.idle.touch();
            tokio::time::sleep(READY_EVERY).await;
        }
        let asked = tokio::time::Instant::now();
        let role = self.worker.role();
        let delivery = match self.worker.lane() {
            Some(lane) => self.bus.take_lane(role, lane).await?,
            None => self.bus.take(role).await?,
        };
        Ok((delivery, asked.elapsed()))
    }
}

/// One event on its way.
struct One {
    worker: Arc<dyn Worker>,
    out: Out,
    options: LoopOptions,
    metrics: Arc<Metrics>,
}

impl One {
    async fn handle(&self, delivery: Delivery) {
        let role = self.worker.role().name();
        let Delivery { event, tries, settle } = delivery;
        let started = tokio::time::Instant::now();
        let mut span = Span::none();
        let (result, settled) = match event {
            Err(malformed) => ("malformed", self.bury(settle, format!("not an event: {}", malformed.why)).await),
            Ok(event) => match event.body() {
                Err(e) => ("invalid", self.bury(settle, e.to_string()).await),
                Ok(body) => {
                    span = process_span(role, &event, tries);
                    let handled = self.work(&event, body, settle.as_ref()).instrument(span.clone()).await;
                    self.settle(handled, &event, tries, settle).instrument(span.clone()).await
                }
            },
        };
        // In its trace: a person who sees the number finds the event.
        span.in_scope(|| {
            self.metrics.events.add(1, &[role, result]);
            self.metrics.handle.note(started.elapsed().as_secs_f64(), &[role]);
        });
        if let Err(e) = settled {
            // It will come again, and be found to be done already.
            warn!(role, error = %e, "an event could not be settled");
        }
    }

    /// Handles the event, telling the bus from time to time that it is still being handled.
    async fn work(&self, event: &Event, body: Body, settle: &dyn trimtab_bus::Settle) -> Result<(), Failure> {
        let mut work = self.worker.handle(event, body, &self.out);
        loop {
            tokio::select! {
                // In this order, so that what is done at once sets no timer.
                biased;
                handled = &mut work => return handled,
                () = tokio::time::sleep(self.options.working_every) => {
                    if let Err(e) = settle.working().await {
                        warn!(event = event.id, error = %e, "could not tell the bus that this is still being handled");
                    }
                }
            }
        }
    }

    async fn settle(
        &self,
        handled: Result<(), Failure>,
        event: &Event,
        tries: u64,
        settle: Box<dyn trimtab_bus::Settle>,
    ) -> (&'static str, Result<(), BusError>) {
        match handled {
            Ok(()) => ("done", settle.done().await),
            Err(Failure::Later { after, why }) => {
                debug!(event = event.id, why, "later");
                ("later", settle.again(after).await)
            }
            Err(Failure::Failed { class: Class::Transient, why }) if tries < self.options.tries => {
                let delay = self.options.delays.after(tries);
                warn!(
                    event = event.id,
                    subject = event.subject,
                    tries,
                    delay_ms = delay.as_millis(),
                    error = why,
                    "trying again"
                );
                Span::current().record("otel.status_code", "ERROR");
                ("again", settle.again(delay).await)
            }
            Err(Failure::Failed { class: Class::Gone, why }) => {
                debug!(event = event.id, subject = event.subject, why, "what it is about is gone");
                ("gone", settle.done().await)
            }
            Err(Failure::Failed { class, why }) => {
                error!(event = event.id, subject = event.subject, tries, ?class, error = why, "given up");
                Span::current().record("otel.status_code", "ERROR");
                ("dead", self.bury(settle, why).await)
            }
        }
    }

    async fn bury(&self, settle: Box<dyn trimtab_bus::Settle>, why: String) -> Result<(), BusError> {
        self.metrics.dead.add(1, &[self.worker.role().name()]);
        settle.dead(why).await
    }
}

/// The span of handling one event. A page is only linked to what made it: each of its candidates has a trace of its own.
fn process_span(role: &'static str, event: &Event, tries: u64) -> Span {
    let span = info_span!(
        "process",
        otel.name = format!("process {}", short(&event.kind)),
        otel.kind = "consumer",
        otel.status_code = field::Empty,
        messaging.system = "trimtab",
        messaging.operation.type = "process",
        messaging.operation.name = "process",
        messaging.destination.template = short(&event.kind),
        messaging.message.id = event.id,
        trimtab.role = role,
        trimtab.subject = event.subject,
        trimtab.tries = tries,
    );
    if event.kind.contains(".candidate.") {
        telemetry::link(&span, &event.trace());
    } else {
        telemetry::follow(&span, &event.trace());
    }
    span
}

/// A type's name without the prefix and version that all have.
pub fn short(kind: &str) -> &str {
    kind.strip_prefix("dev.trimtab.").and_then(|rest| rest.strip_suffix(".v1")).unwrap_or(kind)
}
