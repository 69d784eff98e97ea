//! Limits on operations and calls: `governor` quotas that many tasks wait for in turn, and how many calls may be under way. Of each, a
//! part may be lent for a time, so that several processes keep one limit together.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{Quota, RateLimiter};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

/// The longest sleep between two looks at the limit.
const SLICE: Duration = Duration::from_millis(200);

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
    present: RwLock<Present>,
    clock: DefaultClock,
    /// Waiters stand in line: first come, first served, and only one of them sleeps.
    turn: Mutex<()>,
    waiting: AtomicU64,
    made: AtomicU64,
}

/// What holds now.
#[derive(Debug, Clone)]
struct Present {
    limit: Limit,
    /// It is lent: from then on nothing may start.
    until: Option<Instant>,
}

#[derive(Debug, Clone)]
enum Limit {
    /// There is none.
    None,
    /// Nothing may start.
    Nothing,
    /// So many per second.
    Rate(f64, Arc<Limiter>),
}

impl Limit {
    /// Of `per_second`; 0 is no limit.
    fn of(per_second: f64) -> Result<Limit, PaceError> {
        if per_second == 0.0 {
            return Ok(Limit::None);
        }
        if !(per_second > 0.0 && per_second <= 1_000_000.0) {
            return Err(PaceError(per_second.to_string()));
        }
        Ok(Limit::Rate(per_second, Arc::new(limiter(per_second)?)))
    }

    fn per_second(&self) -> f64 {
        match self {
            Limit::None | Limit::Nothing => 0.0,
            Limit::Rate(per_second, _) => *per_second,
        }
    }
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
        Ok(Pace {
            present: RwLock::new(Present { limit: Limit::of(per_second)?, until: None }),
            clock: DefaultClock::default(),
            turn: Mutex::new(()),
            waiting: AtomicU64::new(0),
            made: AtomicU64::new(0),
        })
    }

    /// A part of a limit, lent until then: 0 is nothing at all. One that is as large as the present one goes on undisturbed; any other
    /// begins with no saved-up burst.
    pub fn lend(&self, per_second: f64, until: Instant) -> Result<(), PaceError> {
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        if per_second == 0.0 {
            present.limit = Limit::Nothing;
        } else if present.limit.per_second() != per_second {
            present.limit = Limit::of(per_second)?;
        }
        present.until = Some(until);
        Ok(())
    }

    /// Waits until one more operation may start, and counts it.
    pub async fn one(&self) {
        let free = {
            let present = self.present();
            matches!(present.limit, Limit::None) && present.until.is_none()
        };
        if !free {
            let _waiter = Waiter::new(&self.waiting);
            let _turn = self.turn.lock().await;
            // Looked up in each round: the limit may change while we wait.
            while let Some(wait) = self.wait() {
                // In slices: a limit that was almost nothing may be raised while we wait for its next operation.
                tokio::time::sleep(wait.min(SLICE)).await;
            }
        }
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// How long to wait before looking again; none when an operation may start, which it then does.
    fn wait(&self) -> Option<Duration> {
        let Present { limit, until } = self.present();
        if until.is_some_and(|until| Instant::now() >= until) {
            return Some(SLICE);
        }
        match limit {
            Limit::None => None,
            Limit::Nothing => Some(SLICE),
            Limit::Rate(_, limiter) => {
                limiter.check().err().map(|not_until| not_until.wait_time_from(self.clock.now()))
            }
        }
    }

    /// Operations made so far.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Whether somebody waits for an operation right now.
    pub fn awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Operations per second that may start now; 0 where there is no limit, or where it is nothing.
    pub fn per_second(&self) -> f64 {
        self.present().limit.per_second()
    }

    fn present(&self) -> Present {
        self.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How many may be under way at once. The number may change: one that became smaller holds for whoever comes next.
#[derive(Debug)]
struct Slots {
    state: std::sync::Mutex<SlotState>,
    changed: Notify,
    turn: Mutex<()>,
    waiting: AtomicU64,
}

#[derive(Debug)]
struct SlotState {
    allowed: usize,
    used: usize,
    until: Option<Instant>,
}

/// One of them. It is free again when this is dropped.
#[derive(Debug)]
pub struct Slot<'a>(&'a Slots);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.lock().used -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Slots {
    fn new(allowed: usize, until: Option<Instant>) -> Slots {
        Slots {
            state: std::sync::Mutex::new(SlotState { allowed, used: 0, until }),
            changed: Notify::new(),
            turn: Mutex::new(()),
            waiting: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(&self, allowed: usize, until: Instant) {
        let mut state = self.lock();
        (state.allowed, state.until) = (allowed, Some(until));
        self.changed.notify_waiters();
    }

    fn take(&self) -> Option<Slot<'_>> {
        let mut state = self.lock();
        let free = state.used < state.allowed && state.until.is_none_or(|until| Instant::now() < until);
        free.then(|| {
            state.used += 1;
            Slot(self)
        })
    }

    async fn one(&self) -> Slot<'_> {
        let _waiter = Waiter::new(&self.waiting);
        let _turn = self.turn.lock().await;
        loop {
            if let Some(slot) = self.take() {
                return slot;
            }
            // A change between the look and this is seen one slice later.
            let _ = tokio::time::timeout(SLICE, self.changed.notified()).await;
        }
    }
}

/// The same limits on calls for each of several brokers or hubs. What of them may be used can be lent, as a part of the whole.
#[derive(Debug)]
pub struct Calls {
    per_second: f64,
    at_once: Option<usize>,
    part: std::sync::Mutex<Part>,
    owners: std::sync::Mutex<HashMap<String, Arc<CallsTo>>>,
}

/// The part of the limits that may be used.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Of the rate, 0 to 1.
    share: f64,
    at_once: Option<usize>,
    until: Option<Instant>,
}

/// The limits on calls to one broker or hub.
#[derive(Debug)]
pub struct CallsTo {
    /// How many may start.
    pub pace: Pace,
    slots: Option<Slots>,
}

impl CallsTo {
    /// Waits until one more call may be under way; none where that is not limited.
    pub async fn slot(&self) -> Option<Slot<'_>> {
        match &self.slots {
            Some(slots) => Some(slots.one().await),
            None => None,
        }
    }
}

impl Calls {
    /// `per_second` calls started each second (0 is no limit) and `at_once` under way, for each owner. At least one is.
    pub fn new(per_second: f64, at_once: Option<usize>) -> Result<Calls, PaceError> {
        Limit::of(per_second)?;
        let at_once = at_once.map(|at_once| at_once.max(1));
        let part = Part { share: 1.0, at_once, until: None };
        Ok(Calls { per_second, at_once, part: part.into(), owners: Default::default() })
    }

    /// Of an owner, by its name.
    pub fn to(&self, owner: &str) -> Result<Arc<CallsTo>, PaceError> {
        let mut owners = self.owners();
        if let Some(calls) = owners.get(owner) {
            return Ok(calls.clone());
        }
        let part = *self.part.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = Pace::new(self.per_second)?;
        if let Some(until) = part.until {
            self.lend_pace(&pace, part.share, until)?;
        }
        let slots = part.at_once.map(|at_once| Slots::new(at_once, part.until));
        let calls = Arc::new(CallsTo { pace, slots });
        owners.insert(owner.to_owned(), calls.clone());
        Ok(calls)
    }

    /// Calls started each second, in the whole; 0 is no limit.
    pub fn per_second(&self) -> f64 {
        self.per_second
    }

    /// How many calls to one owner may be under way, in the whole.
    pub fn at_once(&self) -> Option<usize> {
        self.at_once
    }

    /// Lends a part: `share` of the rate, 0 to 1, and `at_once` calls under way, with each owner, until then.
    pub fn lend(&self, share: f64, at_once: usize, until: Instant) -> Result<(), PaceError> {
        let owners = self.owners();
        let at_once = self.at_once.map(|_| at_once);
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = Part { share, at_once, until: Some(until) };
        for calls in owners.values() {
            self.lend_pace(&calls.pace, share, until)?;
            if let (Some(slots), Some(at_once)) = (&calls.slots, at_once) {
                slots.lend(at_once, until);
            }
        }
        Ok(())
    }

    fn lend_pace(&self, pace: &Pace, share: f64, until: Instant) -> Result<(), PaceError> {
        if self.per_second == 0.0 { Ok(()) } else { pace.lend(self.per_second * share, until) }
    }

    /// Calls made so far.
    pub fn made(&self) -> u64 {
        self.owners().values().map(|calls| calls.pace.made()).sum()
    }

    /// Whether somebody waits for a call to be due.
    pub fn awaited(&self) -> bool {
        self.owners().values().any(|calls| calls.pace.awaited())
    }

    /// Calls under way with the owner that has the most, and how many wait for it as well.
    pub fn under_way(&self) -> (usize, usize) {
        let slots = |calls: &Arc<CallsTo>| {
            let slots = calls.slots.as_ref()?;
            let waiting = usize::try_from(slots.waiting.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
            Some((slots.lock().used, waiting))
        };
        let all: Vec<(usize, usize)> = self.owners().values().filter_map(slots).collect();
        let used = all.iter().map(|(used, _)| *used).max().unwrap_or(0);
        (used, all.iter().map(|(used, waiting)| used + waiting).max().unwrap_or(0) - used)
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, Arc<CallsTo>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limiter(per_second: f64) -> Result<Limiter, PaceError> {
    let unusable = || PaceError(per_second.to_string());
    // A share may be so small that its period is longer than the quota can say.
    let period = Duration::from_secs_f64((1.0 / per_second).min(1e6));
    let burst = NonZeroU32::new((per_second / 20.0) as u32).unwrap_or(NonZeroU32::MIN);
    let quota = Quota::with_period(period).ok_or_else(unusable)?.allow_burst(burst);
    let limiter = RateLimiter::direct(quota);
    // A new limiter is full; spend that, or changing the limit would itself be a burst.
    let _ = limiter.check_n(burst);
    Ok(limiter)
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

    #[tokio::test(start_paused = true)]
    async fn what_is_lent_ends_by_itself() {
        let calls = Calls::new(1000.0, Some(2)).unwrap();
        let to = calls.to("a").unwrap();
        calls.lend(0.0, 0, Instant::now() + Duration::from_secs(5)).unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(1), to.slot()).await.is_err());
        calls.lend(0.5, 1, Instant::now() + Duration::from_secs(5)).unwrap();
        // One that is first asked for later has no more than that.
        for owner in ["a", "b"] {
            let to = calls.to(owner).unwrap();
            let slot = to.slot().await;
            assert!(slot.is_some() && to.pace.per_second() == 500.0);
            assert!(tokio::time::timeout(Duration::from_secs(1), to.slot()).await.is_err(), "{:?}", calls.under_way());
            assert_eq!(calls.under_way(), (1, 0));
        }
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(tokio::time::timeout(Duration::from_secs(1), to.slot()).await.is_err());
        assert!(tokio::time::timeout(Duration::from_secs(1), to.pace.one()).await.is_err());
        assert_eq!(calls.made(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_is_free_again_goes_to_who_waits() {
        let calls = Calls::new(0.0, Some(1)).unwrap();
        let to = calls.to("a").unwrap();
        let slot = to.slot().await;
        let mut other = Box::pin(to.slot());
        assert!(futures::poll!(&mut other).is_pending());
        assert_eq!(calls.under_way(), (1, 1));
        drop(slot);
        assert!(other.await.is_some());
        assert_eq!(calls.under_way(), (0, 0));
    }
}
