//! How a running recovery is watched and stopped: the overall limit, a cancel flag, counters of what was read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::error::Error;

/// Tells all threads of a run to stop. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Debug, Default)]
struct StopState {
    cancelled: AtomicBool,
    expired: AtomicBool,
    deadline: Option<Instant>,
}

impl Stop {
    /// Stops by itself at `deadline`, if there is one.
    #[must_use]
    pub fn at(deadline: Option<Instant>) -> Self {
        Self(Arc::new(StopState { deadline, ..StopState::default() }))
    }

    /// Asks every thread to stop at its next read. The log dirs stay recoverable.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Why work must stop, or `None`. Once it says so it never takes it back.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        if self.0.cancelled.load(Ordering::Relaxed) {
            return Some("it was asked to stop");
        }
        let over = self.0.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if over || self.0.expired.load(Ordering::Relaxed) {
            self.0.expired.store(true, Ordering::Relaxed);
            return Some("the time limit was reached");
        }
        None
    }
}

/// What readers ask before every large read, and where they count what they have read.
#[derive(Debug, Default)]
pub struct Control {
    stop: Stop,
    bytes: AtomicU64,
}

impl Control {
    /// Readers stop when `stop` says so.
    #[must_use]
    pub fn new(stop: &Stop) -> Self {
        Self { stop: stop.clone(), bytes: AtomicU64::new(0) }
    }

    /// Stops with this one, and counts for itself: for reads that are no part of the announced work.
    #[must_use]
    pub(crate) fn aside(&self) -> Self {
        Self::new(&self.stop)
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes back what was counted for a read that will be made again.
    pub fn uncount(&self, n: u64) {
        self.bytes.fetch_sub(n.min(self.bytes()), Ordering::Relaxed);
    }

    /// Whether work may go on.
    ///
    /// # Errors
    /// [`Error::Stopped`] when it must not.
    pub fn proceed(&self) -> Result<(), Error> {
        self.stop.reason().map_or(Ok(()), |why| Err(Error::Stopped(why)))
    }

    /// Why work must stop.
    pub(crate) fn stop_reason(&self) -> &'static str {
        self.stop.reason().unwrap_or("it was asked to stop")
    }

    /// Counts bytes that were read, here or by a worker on behalf of this run.
    pub fn count(&self, n: u64) {
        self.bytes.fetch_add(n, Ordering::Relaxed);
    }

    /// An error that carries [`Error::Stopped`] when work must stop.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.proceed().map_err(io::Error::other)
    }
}
