//! Who verifies a segment: a thread of this process, or a worker that is asked over the bus.
//!
//! Threads of ours are always busy with segments of their own. Beside those, a few more segments are offered on the bus than
//! workers have begun; each that is begun makes room for another offer, so any number of workers is kept busy, and what nobody
//! takes is verified here in the end. A worker is heard every second; one that falls silent is given up.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{Span, debug, warn};
use trimtab_bus::{Bus, BusError, Delivery, Role};
use trimtab_events::{Body, Event, RecoveryReport, RecoverySegment, RecoveryWork};
use trimtab_recovery::{
    Control, FileIdentity, PartitionReport, ScanEnd, SegmentJob, SegmentReport, Spool, Verifier, verify_segment,
};
use uuid::Uuid;

use super::{LogDirLane, seen, side};
use crate::clock::{Clock, timestamp};
use crate::metrics::RecoveryMetrics;
use crate::sign::Trusted;
use crate::telemetry;
use crate::workers::source;

/// How often a thread that waits looks at the time, whatever it is told.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long publishing one segment may take.
const PUBLISH: Duration = Duration::from_secs(3);
/// After the bus failed, how long everything is done here.
const BUS_REST: Duration = Duration::from_secs(30);

/// Times and sizes of asking over the bus.
#[derive(Debug, Clone)]
pub struct OverOptions {
    /// Segments that may be out at once, and so how many threads of workers can be of use.
    pub slots: usize,
    /// Segments on offer that nobody has begun.
    pub ahead: usize,
    /// Smaller segments are not worth the way.
    pub min_bytes: u64,
    /// A worker that was not heard for so long is given up.
    pub silence: Duration,
    /// A worker that reads no further for so long is given up, whatever it says.
    pub stalled: Duration,
    /// When an offer becomes void.
    pub valid: Duration,
}

impl Default for OverOptions {
    fn default() -> OverOptions {
        OverOptions {
            slots: 32,
            ahead: 4,
            min_bytes: 1 << 20,
            silence: Duration::from_secs(10),
            stalled: Duration::from_secs(60),
            valid: Duration::from_secs(60),
        }
    }
}

/// How workers are asked.
pub struct OverBus {
    /// The bus.
    pub bus: Arc<dyn Bus>,
    /// Where it runs.
    pub runtime: tokio::runtime::Handle,
    /// The log dirs.
    pub lanes: Vec<LogDirLane>,
    /// Whose reports are believed.
    pub trusted: Trusted,
    /// This process.
    pub instance: String,
    /// The clock.
    pub clock: Clock,
    /// Times and sizes.
    pub options: OverOptions,
}

/// The verifier.
pub struct Segments {
    /// Threads of ours that verify at once.
    here: usize,
    over: Option<OverBus>,
    metrics: Arc<RecoveryMetrics>,
    state: Mutex<State>,
    /// Something of the state changed.
    changed: Condvar,
    elsewhere: AtomicU64,
    traces: Mutex<HashMap<(PathBuf, String), String>>,
}

#[derive(Default)]
struct State {
    /// Threads that verify.
    busy: usize,
    /// Threads that have a segment and may neither verify nor offer it.
    idle: usize,
    /// Segments on offer that nobody has begun.
    unbegun: usize,
    out: HashMap<Uuid, Offered>,
    bus_rests_until: Option<Instant>,
}

/// A segment on offer.
struct Offered {
    begun: bool,
    heard: Instant,
    bytes: u64,
    /// When `bytes` last grew.
    moved: Instant,
    answer: Option<RecoveryReport>,
}

impl Offered {
    fn new() -> Offered {
        let now = Instant::now();
        Offered { begun: false, heard: now, bytes: 0, moved: now, answer: None }
    }

    /// Whether its worker is given up.
    fn is_lost(&self, options: &OverOptions) -> bool {
        self.heard.elapsed() > options.silence || self.moved.elapsed() > options.stalled
    }
}

/// Leave to verify in this process; given back when dropped.
struct Permit<'a>(Option<&'a Segments>);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(segments) = self.0 {
            lock(&segments.state).busy -= 1;
            segments.changed.notify_all();
        }
    }
}

/// What becomes of a segment that was on offer.
enum Turn<'a> {
    /// It is verified here.
    Here(Permit<'a>),
    /// A worker has answered.
    Answer(Box<RecoveryReport>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Segments {
    /// With `here` threads of ours, and workers if `over` says how to ask them.
    pub fn new(here: usize, over: Option<OverBus>, metrics: Arc<RecoveryMetrics>) -> Segments {
        Segments {
            here,
            over,
            metrics,
            state: Mutex::default(),
            changed: Condvar::new(),
            elsewhere: AtomicU64::new(0),
            traces: Mutex::default(),
        }
    }

    /// Segments that workers verified.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Ordering::Relaxed)
    }

    /// The trace of a partition that was done.
    pub fn trace_of(&self, dir: &Path, folder: &str) -> String {
        lock(&self.traces).get(&(dir.to_path_buf(), folder.to_owned())).cloned().unwrap_or_default()
    }

    /// Hears what workers say, until `stop`. To be run beside the recovery, if there is a bus.
    pub async fn listen(self: Arc<Self>, stop: CancellationToken) {
        let lanes = self.over.iter().flat_map(|over| over.lanes.iter().map(|lane| lane.lane.clone()));
        let listening = lanes.map(|lane| {
            let (segments, stop) = (self.clone(), stop.clone());
            async move { stop.run_until_cancelled(segments.listen_to(&lane)).await }
        });
        futures::future::join_all(listening).await;
    }

    async fn listen_to(&self, lane: &str) {
        let Some(over) = &self.over else { return };
        loop {
            match over.bus.take_lane(Role::Finisher, lane).await {
                Ok(delivery) => self.heard(over, delivery).await,
                Err(BusError::Closed) => return,
                Err(error) => {
                    warn!(lane, %error, "reports of workers cannot be had; trying again");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn heard(&self, over: &OverBus, delivery: Delivery) {
        let Delivery { event, settle, .. } = delivery;
        let read = match event {
            Ok(event) => match over.trusted.check(&event) {
                Ok(()) => event.body().map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            },
            Err(malformed) => Err(malformed.why),
        };
        let settled = match read {
            Ok(Body::RecoveryReport(report)) => {
                self.note(report);
                settle.done().await
            }
            Ok(_) => settle.dead("a finisher takes reports on segments only".to_owned()).await,
            Err(why) => {
                warn!(why, "a report was refused");
                self.metrics.refused("not-believed");
                settle.dead(why).await
            }
        };
        if let Err(error) = settled {
            debug!(%error, "a report could not be settled; it comes again and is passed over");
        }
    }

    /// Takes a believed report to whoever waits for it.
    fn note(&self, report: RecoveryReport) {
        let mut state = lock(&self.state);
        let State { out, unbegun, .. } = &mut *state;
        let Some(offered) = out.get_mut(&report.job) else {
            debug!(job = %report.job, worker = report.worker, "a report that nobody waits for");
            return;
        };
        let now = Instant::now();
        if !offered.begun {
            offered.begun = true;
            offered.moved = now;
            *unbegun -= 1;
        }
        offered.heard = now;
        if report.bytes > offered.bytes {
            (offered.bytes, offered.moved) = (report.bytes, now);
        }
        if report.state != RecoveryWork::Working && offered.answer.is_none() {
            offered.answer = Some(report);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The job for workers; none when it is not for them.
    fn offer<'a>(&self, over: &'a OverBus, job: &SegmentJob) -> Option<(&'a LogDirLane, RecoverySegment)> {
        let folder = job.path.parent()?;
        let at = over.lanes.iter().find(|lane| Some(lane.dir.as_path()) == folder.parent())?;
        let text = |name: Option<&std::ffi::OsStr>| name.and_then(|name| name.to_str()).map(str::to_owned);
        let seen = seen(FileIdentity::read(&job.path).ok()?)?;
        if seen.size < over.options.min_bytes {
            return None;
        }
        let mut segment = RecoverySegment {
            id: Uuid::nil(),
            lane: at.lane.clone(),
            folder: text(folder.file_name())?,
            file: text(job.path.file_name())?,
            base_offset: job.base_offset,
            index_interval_bytes: job.index_interval_bytes,
            segment_index_bytes: job.segment_index_bytes,
            seen,
            // Known when it is published.
            void_after_ms: 0,
        };
        segment.id = segment.id_of();
        Some((at, segment))
    }

    /// Takes a permit if one is free.
    fn free_permit(&self, state: &mut State) -> Option<Permit<'_>> {
        (state.busy < self.here).then(|| {
            state.busy += 1;
            Permit(Some(self))
        })
    }

    /// Waits for a permit. Where this process verifies nothing by itself, it does what has to be done all the same.
    fn permit(&self, control: &Control) -> trimtab_recovery::Result<Permit<'_>> {
        let mut state = lock(&self.state);
        loop {
            control.proceed()?;
            if self.here == 0 {
                return Ok(Permit(None));
            }
            if let Some(permit) = self.free_permit(&mut state) {
                return Ok(permit);
            }
            state = self.wait_idle(state);
        }
    }

    /// Waits for a permit, or for a place on offer, which is taken at once: then there is none.
    fn permit_or_offer(
        &self,
        over: &OverBus,
        id: Uuid,
        control: &Control,
    ) -> trimtab_recovery::Result<Option<Permit<'_>>> {
        let mut state = lock(&self.state);
        loop {
            control.proceed()?;
            if let Some(permit) = self.free_permit(&mut state) {
                return Ok(Some(permit));
            }
            let rests = state.rests();
            if !rests && state.unbegun < over.options.ahead && !state.out.contains_key(&id) {
                state.unbegun += 1;
                state.out.insert(id, Offered::new());
                return Ok(None);
            }
            if self.here == 0 && rests {
                return Ok(Some(Permit(None)));
            }
            state = self.wait_idle(state);
        }
    }

    fn wait_idle<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.idle += 1;
        state = self.wait(state);
        state.idle -= 1;
        state
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Publishes an offer. On failure everything is done here for a while.
    fn publish(&self, over: &OverBus, segment: &RecoverySegment) {
        let now_ms = over.clock.now_ms();
        let void_after_ms = now_ms + i64::try_from(over.options.valid.as_millis()).unwrap_or(0);
        let event = Event::new(
            // An offer that is made again is no duplicate of the first.
            format!("{}-{now_ms}", segment.id),
            &source("recover", &over.instance),
            &segment.lane,
            timestamp(now_ms),
            telemetry::trace_of(&Span::current()),
            RecoverySegment { void_after_ms, ..segment.clone() },
        );
        let published = event.map_err(|e| e.to_string()).and_then(|event| {
            let publish = async { tokio::time::timeout(PUBLISH, over.bus.publish(&event)).await };
            match over.runtime.block_on(publish) {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("not answered in time".to_owned()),
            }
        });
        if let Err(why) = published {
            let mut state = lock(&self.state);
            if !state.rests() {
                warn!(why, "segments cannot be offered to workers; verifying here for a while");
            }
            state.bus_rests_until = Some(Instant::now() + BUS_REST);
        }
    }

    /// Waits until a worker has answered, or until the segment on offer is to be verified here. `counted` is what was counted
    /// of it so far.
    fn answer_or_permit(
        &self,
        over: &OverBus,
        segment: &RecoverySegment,
        control: &Control,
        counted: &mut u64,
    ) -> trimtab_recovery::Result<Turn<'_>> {
        let mut state = lock(&self.state);
        loop {
            let (rests, nobody_idle) = (state.rests(), state.idle == 0);
            let mut turn = None;
            if let Some(offered) = state.out.get_mut(&segment.id) {
                let bytes = offered.bytes.min(segment.seen.size);
                control.count(bytes.saturating_sub(*counted));
                *counted = bytes.max(*counted);
                let lost = offered.is_lost(&over.options);
                let wanted_here = if offered.begun { lost } else { nobody_idle || rests };
                let answer = offered.answer.take();
                if answer.as_ref().is_some_and(|report| report.state == RecoveryWork::Void) && !rests {
                    *offered = Offered::new();
                    state.unbegun += 1;
                    drop(state);
                    self.publish(over, segment);
                    state = lock(&self.state);
                    continue;
                }
                turn = answer.map(|report| Turn::Answer(Box::new(report)));
                if turn.is_none() && wanted_here {
                    turn = self.free_permit(&mut state).map(Turn::Here);
                }
                if turn.is_none() && self.here == 0 && (lost || rests) {
                    turn = Some(Turn::Here(Permit(None)));
                }
            }
            let stopped = control.proceed();
            if turn.is_some() || stopped.is_err() {
                if state.out.remove(&segment.id).is_some_and(|offered| !offered.begun) {
                    state.unbegun -= 1;
                }
                drop(state);
                self.changed.notify_all();
                stopped?;
                if let Some(turn) = turn {
                    return Ok(turn);
                }
                return self.permit(control).map(Turn::Here);
            }
            state = self.wait(state);
        }
    }

    /// The report of a worker, with its images in `spool`; or why it is not believed.
    fn accept(
        &self,
        at: &LogDirLane,
        job: &SegmentJob,
        segment: &RecoverySegment,
        report: &RecoveryReport,
        spool: &dyn Spool,
    ) -> Result<SegmentReport, (&'static str, String)> {
        if report.state != RecoveryWork::Verified {
            return Err(("failed", report.why.clone().unwrap_or_else(|| report.state.name().to_owned())));
        }
        let now = FileIdentity::read(&job.path).map_err(|e| ("other-file", e.to_string()))?;
        if report.seen != Some(segment.seen) || seen(now) != Some(segment.seen) {
            return Err(("other-file", format!("it is about {:?}, the file is {now:?}", report.seen)));
        }
        let images = report.images.as_ref().ok_or(("side-file", "it names no side file".to_owned()))?;
        let opened = side::open(&at.side, images, job.base_offset, &segment.seen);
        let (found, images) = opened.map_err(|e| ("side-file", e.to_string()))?;
        found.check(job, &images).map_err(|why| ("side-file", why))?;
        if found.end != ScanEnd::Complete {
            // What is cut is decided by who cuts it.
            let why = format!("it says that the segment is damaged at byte {}", found.valid_bytes);
            return Err(("damage", why));
        }
        let imported = found.import(&images, spool).map_err(|e| ("side-file", e.to_string()))?;
        Ok(SegmentReport { identity: now, ..imported })
    }
}

impl State {
    fn rests(&self) -> bool {
        self.bus_rests_until.is_some_and(|until| until > Instant::now())
    }
}

impl Segments {
    /// The report of a worker, or leave to verify here.
    fn elsewhere_or_permit(
        &self,
        over: &OverBus,
        job: &SegmentJob,
        spool: &dyn Spool,
        control: &Control,
    ) -> trimtab_recovery::Result<Result<SegmentReport, Permit<'_>>> {
        let Some((at, segment)) = self.offer(over, job) else { return self.permit(control).map(Err) };
        if let Some(permit) = self.permit_or_offer(over, segment.id, control)? {
            return Ok(Err(permit));
        }
        self.publish(over, &segment);
        let mut counted = 0;
        let report = match self.answer_or_permit(over, &segment, control, &mut counted)? {
            Turn::Answer(report) => report,
            Turn::Here(permit) => {
                control.uncount(counted);
                return Ok(Err(permit));
            }
        };
        match self.accept(at, job, &segment, &report, spool) {
            Ok(found) => {
                control.count(segment.seen.size.saturating_sub(counted));
                self.elsewhere.fetch_add(1, Ordering::Relaxed);
                self.metrics.verified("worker");
                Ok(Ok(found))
            }
            Err((kind, why)) => {
                let path = job.path.display();
                warn!(segment = %path, worker = report.worker, why, "a worker's report is not used; verifying here");
                self.metrics.refused(kind);
                control.uncount(counted);
                self.permit(control).map(Err)
            }
        }
    }
}

impl Verifier for Segments {
    fn verify(
        &self,
        job: &SegmentJob,
        spool: &dyn Spool,
        control: &Control,
    ) -> trimtab_recovery::Result<SegmentReport> {
        let _permit = match &self.over {
            None => Permit(None),
            Some(over) => match self.elsewhere_or_permit(over, job, spool, control)? {
                Ok(report) => return Ok(report),
                Err(permit) => permit,
            },
        };
        let report = verify_segment(job, spool, control)?;
        self.metrics.verified("here");
        Ok(report)
    }

    fn slots(&self) -> usize {
        self.over.as_ref().map_or(0, |over| over.options.slots)
    }

    fn partition_done(&self, dir: &Path, report: &PartitionReport) {
        let trace = telemetry::trace_id(&Span::current());
        if !trace.is_empty() {
            lock(&self.traces).insert((dir.to_path_buf(), report.folder.clone()), trace);
        }
    }
}
