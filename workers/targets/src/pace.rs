//! The limit on operations: a `governor` quota that many tasks wait for in turn.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use governor::clock::{Clock, DefaultClock};
use governor::{Quota, RateLimiter};
use tokio::sync::Mutex;

/// The longest sleep between two looks at the limit.
const SLICE: std::time::Duration = std::time::Duration::from_millis(200);

type Limiter = governor::DefaultDirectRateLimiter;

/// A limit that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a rate of {0} per second is not usable: it must be a number from 0 (no limit) to 1000000")]
pub struct PaceError(pub String);

/// A limit of operations per second, and the count of those made.
///
/// Evenly spaced: a burst has at most 5 % of a second's operations, so no second ever has more than 1.05 times the limit.
#[derive(Debug)]
pub struct Pace {
    limiter: RwLock<(f64, Option<Arc<Limiter>>)>,
    clock: DefaultClock,
    /// Waiters stand in line: first come, first served, and only one of them sleeps.
    turn: Mutex<()>,
    waiting: AtomicU64,
    made: AtomicU64,
}

/// Counts a waiter for as long as it waits, however that ends.
struct Waiter<'a>(&'a AtomicU64);

impl<'a> Waiter<'a> {
    fn new(waiting: &'a AtomicU64) -> Waiter<'a> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiter(waiting)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    /// A limit of `per_second`; 0 is no limit.
    pub fn new(per_second: f64) -> Result<Pace, PaceError> {
        let pace = Pace {
            limiter: RwLock::new((0.0, None)),
            clock: DefaultClock::default(),
            turn: Mutex::new(()),
            waiting: AtomicU64::new(0),
            made: AtomicU64::new(0),
        };
        pace.set(per_second)?;
        Ok(pace)
    }

    /// Another limit from now on. It begins with no saved-up burst.
    pub fn set(&self, per_second: f64) -> Result<(), PaceError> {
        let limiter = limiter(per_second)?;
        *self.limiter.write().unwrap_or_else(PoisonError::into_inner) = (per_second, limiter.map(Arc::new));
        Ok(())
    }

    /// The same, unless it is the present limit: that one goes on undisturbed.
    pub fn set_if_changed(&self, per_second: f64) -> Result<(), PaceError> {
        let present = self.limiter.read().unwrap_or_else(PoisonError::into_inner).0;
        if present == per_second { Ok(()) } else { self.set(per_second) }
    }

    /// Waits until one more operation may start, and counts it.
    pub async fn one(&self) {
        if self.current().is_none() {
            self.made.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let _waiter = Waiter::new(&self.waiting);
        let _turn = self.turn.lock().await;
        // Looked up in each round: the limit may change while we wait.
        while let Some(limiter) = self.current() {
            match limiter.check() {
                Ok(()) => break,
                // In slices: a limit that was almost nothing may be raised while we wait for its next operation.
                Err(not_until) => tokio::time::sleep(not_until.wait_time_from(self.clock.now()).min(SLICE)).await,
            }
        }
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// Operations made so far.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Whether somebody waits for an operation right now.
    pub fn awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn current(&self) -> Option<Arc<Limiter>> {
        self.limiter.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

fn limiter(per_second: f64) -> Result<Option<Limiter>, PaceError> {
    if per_second == 0.0 {
        return Ok(None);
    }
    let unusable = || PaceError(per_second.to_string());
    if !(per_second > 0.0 && per_second <= 1_000_000.0) {
        return Err(unusable());
    }
    let period = std::time::Duration::from_secs_f64(1.0 / per_second);
    let burst = NonZeroU32::new((per_second / 20.0) as u32).unwrap_or(NonZeroU32::MIN);
    let quota = Quota::with_period(period).ok_or_else(unusable)?.allow_burst(burst);
    let limiter = RateLimiter::direct(quota);
    // A new limiter is full; spend that, or changing the limit would itself be a burst.
    let _ = limiter.check_n(burst);
    Ok(Some(limiter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_limit_only_counts() {
        let pace = Pace::new(0.0).unwrap();
        for _ in 0..1000 {
            pace.one().await;
        }
        assert_eq!(pace.made(), 1000);
    }

    #[tokio::test]
    async fn waiters_are_seen_until_they_go() {
        let pace = Pace::new(0.01).unwrap();
        assert!(!pace.awaited());
        let mut one = Box::pin(pace.one());
        assert!(futures::poll!(&mut one).is_pending() && pace.awaited());
        drop(one);
        assert!(!pace.awaited());
    }

    #[test]
    fn unusable_rates_are_refused() {
        for rate in [-1.0, f64::NAN, f64::INFINITY, 2e6] {
            assert!(Pace::new(rate).is_err(), "{rate}");
        }
    }
}
