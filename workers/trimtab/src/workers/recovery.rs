//! Verifies segments of one log dir for the process that recovers it. Only reads there; what it builds goes to side files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::Semaphore;
use tracing::{Span, debug, warn};
use trimtab_bus::Role;
use trimtab_events::{Body, Event, RecoveryReport, RecoverySegment, RecoveryWork, SegmentFound, SideFile};
use trimtab_recovery::{Control, ScanEnd, SegmentReport, Stop};
use trimtab_targets::Class;

use super::source;
use crate::clock::{Clock, timestamp};
use crate::metrics::RecoveryMetrics;
use crate::recovery::{LogDirLane, SideError, build};
use crate::sign::Signer;
use crate::telemetry;
use crate::worker::{Failure, Out, Worker};

/// How often it says that it is at work.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// How long saying so may take; the next time is as good.
const SAY_WITHIN: Duration = Duration::from_secs(1);

/// What workers of several log dirs share.
pub struct RecoveryParts {
    /// Its key.
    pub signer: Signer,
    /// Segments read at once, over all log dirs.
    pub at_once: Semaphore,
    /// The clock.
    pub clock: Clock,
    /// Its name.
    pub instance: String,
    /// Its counters.
    pub metrics: Arc<RecoveryMetrics>,
}

/// The worker of one log dir.
pub struct RecoveryWorker {
    at: LogDirLane,
    parts: Arc<RecoveryParts>,
    number: AtomicU64,
}

/// Ends the read when nobody waits for it any more.
struct StopReading(Stop);

impl Drop for StopReading {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl RecoveryWorker {
    /// The worker of this log dir.
    pub fn new(at: LogDirLane, parts: Arc<RecoveryParts>) -> RecoveryWorker {
        RecoveryWorker { at, parts, number: AtomicU64::new(0) }
    }

    /// Signs and emits what is said about a job.
    async fn say(&self, report: RecoveryReport, out: &Out) -> Result<(), Failure> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let now_ms = self.parts.clock.now_ms();
        let id = format!("{}/{}/{now_ms}-{number}", report.job, self.parts.instance);
        let (source, trace) = (source("recovery", &self.parts.instance), telemetry::trace_of(&Span::current()));
        let mut event = Event::new(id, &source, &self.at.lane, timestamp(now_ms), trace, report)?;
        self.parts.signer.sign(&mut event).map_err(|e| Failure::new(Class::Bug, e))?;
        out.emit(&event).await.map(|_| ())
    }

    fn report(&self, job: &RecoverySegment, state: RecoveryWork, bytes: u64) -> RecoveryReport {
        RecoveryReport {
            job: job.id,
            lane: self.at.lane.clone(),
            worker: self.parts.instance.clone(),
            state,
            bytes,
            seen: None,
            found: None,
            images: None,
            why: None,
        }
    }

    /// Says how far it is. Nothing depends on it but that it is not given up.
    async fn say_working(&self, job: &RecoverySegment, bytes: u64, out: &Out) {
        let said = self.say(self.report(job, RecoveryWork::Working, bytes), out);
        match tokio::time::timeout(SAY_WITHIN, said).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(job = %job.id, %error, "could not say that this is being read"),
            Err(_) => warn!(job = %job.id, "could not say in time that this is being read"),
        }
    }

    async fn work(&self, job: &RecoverySegment, out: &Out) -> Result<(), Failure> {
        self.say_working(job, 0, out).await;
        let stop = Stop::default();
        let _stop = StopReading(stop.clone());
        let control = Arc::new(Control::new(&stop));
        let mut reading = {
            let (at, job, control) = (self.at.clone(), job.clone(), control.clone());
            let number = self.number.fetch_add(1, Ordering::Relaxed);
            let unique = format!("{}-{}-{number}", std::process::id(), self.parts.clock.now_ms());
            let span = tracing::info_span!("read segment", trimtab.segment = job.base_offset);
            tokio::task::spawn_blocking(move || span.in_scope(|| build(&at, &job, &unique, &control)))
        };
        let built = loop {
            tokio::select! {
                built = &mut reading => break built.unwrap_or_else(|e| Err(SideError(e.to_string()))),
                () = tokio::time::sleep(SAY_EVERY) => self.say_working(job, control.bytes(), out).await,
            }
        };
        self.parts.metrics.read.add(control.bytes(), &[]);
        let report = match built {
            Ok((found, images)) => {
                verified(self.report(job, RecoveryWork::Verified, control.bytes()), job, &found, images)
            }
            Err(why) => {
                warn!(folder = job.folder, file = job.file, %why, "a segment could not be verified");
                let failed = self.report(job, RecoveryWork::Failed, control.bytes());
                RecoveryReport { why: Some(why.to_string()), ..failed }
            }
        };
        self.say(report, out).await
    }
}

fn verified(report: RecoveryReport, job: &RecoverySegment, found: &SegmentReport, images: SideFile) -> RecoveryReport {
    RecoveryReport {
        seen: Some(job.seen),
        found: Some(SegmentFound {
            whole: found.end == ScanEnd::Complete,
            valid_bytes: found.valid_bytes,
            next_offset: found.next_offset,
            batches: found.batches,
            records: found.records,
        }),
        images: Some(images),
        ..report
    }
}

impl Worker for RecoveryWorker {
    fn role(&self) -> Role {
        Role::Recovery
    }

    fn lane(&self) -> Option<&str> {
        Some(&self.at.lane)
    }

    /// Takes no segment that would have to wait here: somebody else may be idle.
    fn ready<'a>(&'a self, _out: &'a Out) -> BoxFuture<'a, bool> {
        Box::pin(futures::future::ready(self.parts.at_once.available_permits() > 0))
    }

    fn handle<'a>(&'a self, _event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Body::RecoverySegment(job) = body else {
                return Err(Failure::new(Class::Invalid, "a recovery worker takes segments only"));
            };
            if job.id != job.id_of() {
                return Err(Failure::new(Class::Invalid, "its id is not that of the segment it names"));
            }
            let _permit = self.parts.at_once.acquire().await.map_err(|e| Failure::new(Class::Transient, e))?;
            if self.parts.clock.now_ms() > job.void_after_ms {
                debug!(folder = job.folder, file = job.file, "perhaps nobody waits for this segment any more");
                return self.say(self.report(&job, RecoveryWork::Void, 0), out).await;
            }
            self.work(&job, out).await
        }
        .boxed()
    }
}
