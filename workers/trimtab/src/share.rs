//! One limit over all workers of a cluster together, without a bottleneck: of metadata operations, or of calls to its brokers or hubs.
//! Each member holds a share, agreed on in a small document. The shares never add up to more than the limit: a newcomer begins with what
//! is left over (nothing, at first) and gets its part once the others have made room. Who needs less than its part leaves it to others.
//!
//! A share is lent for a few seconds from each word on. A member that cannot be heard, or that was paused, starts nothing any more before
//! the others take its share; by each other's silence, not by anybody's clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::{debug, warn};
use trimtab_bus::{BusError, Expect, Role, Store};
use trimtab_events::{Body, Event};
use trimtab_targets::{Calls, Class, Pace, PaceError};

use crate::clock::Clock;
use crate::worker::{Failure, Out, Worker};

pub(crate) const BUCKET: &str = "limits";
/// How often a member says that it is still there.
const EVERY: Duration = Duration::from_secs(1);
/// How often one that has nothing asks whether there is something by now.
const AGAIN: Duration = Duration::from_millis(500);
/// After how long without a word a member counts as gone. Until then its share stays set aside.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// Whose last word is so long ago by our clock is gone, whenever it was heard of: no clocks differ that much where anything is acted on.
const LONG_GONE_MS: i64 = 10 * 60 * 1000;
/// How long a share may be used after the word that it was agreed on with: well shorter than that.
const LENT_FOR: Duration = Duration::from_secs(6);

/// The part of the limit that a member keeps that needs nothing while others do.
const LITTLE: f64 = 0.01;

/// What is limited, in this process: a share of it is lent for a time.
pub trait Limited: Send + Sync + 'static {
    /// The whole limit, operations per second; 0 where they are not limited.
    fn rate(&self) -> f64;
    /// How many operations may be under way in the whole, where that is limited.
    fn at_once(&self) -> Option<usize> {
        None
    }
    /// Operations made so far.
    fn made(&self) -> u64;
    /// Whether somebody waits for an operation right now.
    fn awaited(&self) -> bool;
    /// Operations under way and, besides, those that wait for others to end; none where that is not limited.
    fn under_way(&self) -> (usize, usize) {
        (0, 0)
    }
    /// Lends a share: `rate` of each second's operations (0 to 1) and `at_once` of those under way, until then.
    ///
    /// # Errors
    /// When the rate is not usable.
    fn lend(&self, rate: f64, at_once: usize, until: Instant) -> Result<(), PaceError>;
}

/// A pace, and the limit of which it may use a part.
pub struct Paced {
    /// The pace.
    pub pace: Arc<Pace>,
    /// The limit, operations per second.
    pub limit: f64,
}

impl Limited for Paced {
    fn rate(&self) -> f64 {
        self.limit
    }

    fn made(&self) -> u64 {
        self.pace.made()
    }

    fn awaited(&self) -> bool {
        self.pace.awaited()
    }

    fn lend(&self, rate: f64, _at_once: usize, until: Instant) -> Result<(), PaceError> {
        self.pace.lend(self.limit * rate, until)
    }
}

impl Limited for Calls {
    fn rate(&self) -> f64 {
        Calls::per_second(self)
    }

    fn at_once(&self) -> Option<usize> {
        Calls::at_once(self)
    }

    fn made(&self) -> u64 {
        Calls::made(self)
    }

    fn awaited(&self) -> bool {
        Calls::awaited(self)
    }

    fn under_way(&self) -> (usize, usize) {
        Calls::under_way(self)
    }

    fn lend(&self, rate: f64, at_once: usize, until: Instant) -> Result<(), PaceError> {
        Calls::lend(self, rate, at_once, until)
    }
}

/// The agreed document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Agreement {
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Member {
    /// What it holds of the rate, 0 to 1.
    share: f64,
    /// What it holds of the operations under way.
    #[serde(default)]
    at_once: usize,
    /// When it said so, by its own clock. Another one each time.
    at_ms: i64,
    /// What it could use.
    #[serde(flatten)]
    wants: Wants,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Wants {
    /// Of the rate.
    #[serde(default)]
    wants: f64,
    /// Operations under way; 0 when it does nothing.
    #[serde(default)]
    wants_at_once: usize,
}

/// What a member may use.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Part {
    share: f64,
    at_once: usize,
}

impl Agreement {
    /// What a member may use from now on, of the rate and of `at_once` operations under way.
    fn join(&self, member: &str, wants: Wants, at_once: usize) -> Part {
        let others = || self.members.iter().filter(|(name, _)| *name != member).map(|(_, other)| other);
        let taken: f64 = others().map(|other| other.share).sum();
        let taken_at_once = others().fold(0_usize, |sum, other| sum.saturating_add(other.at_once));
        let mut all = self.members.clone();
        all.entry(member.to_owned()).or_insert(Member { share: 0.0, at_once: 0, at_ms: 0, wants }).wants = wants;
        Part {
            share: fair(&all, wants.wants).min((1.0 - taken).max(0.0)),
            at_once: fair_at_once(&all, member, at_once).min(at_once.saturating_sub(taken_at_once)),
        }
    }
}

/// The fair part of the rate: who wants less than an even part has that, and the others share what is left evenly.
fn fair(all: &BTreeMap<String, Member>, mine: f64) -> f64 {
    let mut left = all.len() as f64;
    let little = LITTLE.min(0.5 / left);
    let bounded = |wants: f64| wants.clamp(little, 1.0);
    let mut wants: Vec<f64> = all.values().map(|member| bounded(member.wants.wants)).collect();
    wants.sort_by(f64::total_cmp);
    let (count, mut rest) = (left, 1.0);
    for want in wants {
        let even = rest / left;
        if want > even {
            return bounded(mine).min(even);
        }
        (rest, left) = (rest - want, left - 1.0);
    }
    bounded(mine) + rest.max(0.0) / count
}

/// The fair part of what may be under way, a whole number: one for each as far as it goes, for those first that do something and of
/// these for those first that have one already; then what they want, and what is left over evenly.
fn fair_at_once(all: &BTreeMap<String, Member>, mine: &str, at_once: usize) -> usize {
    let mut order: Vec<(&String, &Member)> = all.iter().collect();
    order.sort_by_key(|(name, member)| (member.wants.wants_at_once == 0, member.at_once == 0, *name));
    let mut given: Vec<usize> = vec![0; order.len()];
    let mut left = at_once;
    for given in given.iter_mut().take(left) {
        (*given, left) = (1, left - 1);
    }
    loop {
        let before = left;
        for (given, (_, member)) in given.iter_mut().zip(&order) {
            if left > 0 && *given < member.wants.wants_at_once {
                (*given, left) = (*given + 1, left - 1);
            }
        }
        if left == before {
            break;
        }
    }
    let (each, over) = (left / order.len().max(1), left % order.len().max(1));
    let at = order.iter().position(|(name, _)| *name == mine);
    at.map_or(0, |at| given[at] + each + usize::from(at < over))
}

/// A member's part of a limit. [`Share::leave`] gives it back.
pub struct Share {
    store: Arc<dyn Store>,
    key: String,
    member: String,
    limited: Arc<dyn Limited>,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    /// What may be used, and until when.
    part: Part,
    until: Instant,
    /// Operations at the time of the last word, and when that was.
    made: u64,
    said: Instant,
    /// The last word of each other member, and since when it is known here.
    heard: HashMap<String, (i64, Instant)>,
}

impl Share {
    /// A member of the limit with this key. Nothing may start before [`Share::speak`] has given it a share.
    ///
    /// # Errors
    /// When the limit is not usable.
    pub fn new(
        store: Arc<dyn Store>,
        key: &str,
        member: &str,
        limited: Arc<dyn Limited>,
        clock: Clock,
    ) -> Result<Share, PaceError> {
        let (now, part) = (Instant::now(), Part { share: 0.0, at_once: 0 });
        limited.lend(part.share, part.at_once, now)?;
        let state = State { part, until: now, made: limited.made(), said: now, heard: HashMap::new() };
        Ok(Share { store, key: key.to_owned(), member: member.to_owned(), limited, clock, state: state.into() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may start anything at all.
    pub fn may_start(&self) -> bool {
        let state = self.state();
        let some = state.part.share > 0.0 && (state.part.at_once > 0 || self.limited.at_once().is_none());
        some && Instant::now() < state.until
    }

    /// What it could use, as far as the time since the last word tells: all, if somebody waits, and else twice what was used, in steps,
    /// so that shares do not change all the time.
    fn wants(&self) -> Wants {
        let (made, now, (used, waiting)) = (self.limited.made(), Instant::now(), self.limited.under_way());
        let mut state = self.state();
        let since = made.saturating_sub(state.made) as f64 / (now - state.said).as_secs_f64().max(0.001);
        (state.made, state.said) = (made, now);
        let twice = if self.limited.rate() > 0.0 { 2.0 * since / self.limited.rate() } else { 0.0 };
        let steps = std::iter::successors(Some(LITTLE), |wants| Some(wants * 2.0)).take_while(|wants| *wants < 1.0);
        let some = steps.into_iter().find(|wants| *wants >= twice).unwrap_or(1.0);
        let wants = if self.limited.awaited() { 1.0 } else { some };
        let busy = self.limited.awaited() || since > 0.0;
        Wants { wants, wants_at_once: (used + waiting).max(usize::from(busy)) }
    }

    /// Leaves out the members that were silent for too long. What was heard here counts, for clocks differ.
    fn without_the_gone(&self, agreement: &mut Agreement) {
        let (mut state, now, now_ms) = (self.state(), Instant::now(), self.clock.now_ms());
        state.heard.retain(|name, _| agreement.members.contains_key(name));
        agreement.members.retain(|name, member| {
            let heard = state.heard.entry(name.clone()).or_insert((member.at_ms, now));
            if heard.0 != member.at_ms {
                *heard = (member.at_ms, now);
            }
            let gone = now - heard.1 >= GONE_AFTER || now_ms.saturating_sub(member.at_ms) > LONG_GONE_MS;
            *name == self.member || !gone
        });
    }

    fn lend(&self, part: Part, until: Instant) -> Result<(), Failure> {
        let mut state = self.state();
        (state.part, state.until) = (part, until);
        self.limited.lend(part.share, part.at_once, until).map_err(|e| Failure::new(Class::Invalid, e))
    }

    /// Says that this member is there, and agrees on its share: the rate, 0 to 1.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn speak(&self) -> Result<f64, Failure> {
        let wants = self.wants();
        for _ in 0..100 {
            let begun = Instant::now();
            let (mut agreement, expect) = self.agreement().await?;
            self.without_the_gone(&mut agreement);
            let part = agreement.join(&self.member, wants, self.limited.at_once().unwrap_or(0));
            // What is given up is not used any more before anybody can read so; what is gained, only after that was agreed on.
            let (had, until) = {
                let state = self.state();
                (state.part, state.until)
            };
            let kept = Part { share: part.share.min(had.share), at_once: part.at_once.min(had.at_once) };
            self.lend(kept, until)?;
            let held = part.at_once.max(self.limited.under_way().0);
            let before = agreement.members.get(&self.member).map_or(i64::MIN, |member| member.at_ms);
            let at_ms = self.clock.now_ms().max(before.saturating_add(1));
            agreement.members.insert(self.member.clone(), Member { share: part.share, at_once: held, at_ms, wants });
            let value = serde_json::to_vec(&agreement).map_err(|e| Failure::new(Class::Bug, e))?;
            match self.store.put(BUCKET, &self.key, &value, expect).await {
                Ok(_) => {
                    self.lend(part, begun + LENT_FOR)?;
                    return Ok(part.share);
                }
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(Class::Transient, "the document of shares kept changing"))
    }

    async fn agreement(&self) -> Result<(Agreement, Expect), Failure> {
        Ok(match self.store.get(BUCKET, &self.key).await? {
            Some(document) => {
                (serde_json::from_slice(&document.value).unwrap_or_default(), Expect::Revision(document.revision))
            }
            None => (Agreement::default(), Expect::Absent),
        })
    }

    /// Keeps speaking for as long as it is polled.
    pub async fn keep(&self) {
        loop {
            if let Err(e) = self.speak().await {
                let until = self.state().until;
                match until > Instant::now() {
                    true => debug!(key = self.key, error = %e, "the shared limit could not be agreed on this time"),
                    false => {
                        warn!(key = self.key, error = %e, "the shared limit cannot be agreed on; nothing starts until it can")
                    }
                }
            }
            tokio::time::sleep(if self.may_start() { EVERY } else { AGAIN }).await;
        }
    }

    /// Gives the share back. Nothing starts any more.
    ///
    /// # Errors
    /// When the store fails; the share is free again after ten seconds anyway.
    pub async fn leave(&self) -> Result<(), Failure> {
        self.lend(Part { share: 0.0, at_once: 0 }, Instant::now())?;
        for _ in 0..10 {
            let (mut agreement, expect) = self.agreement().await?;
            agreement.members.remove(&self.member);
            let value = serde_json::to_vec(&agreement).map_err(|e| Failure::new(Class::Bug, e))?;
            match self.store.put(BUCKET, &self.key, &value, expect).await {
                Ok(_) => break,
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// A worker that takes nothing while its share of a limit is nothing: others have it, and do the work.
pub struct Sharing {
    /// The worker.
    pub worker: Arc<dyn Worker>,
    /// Its shares.
    pub shares: Vec<Arc<Share>>,
}

impl Worker for Sharing {
    fn role(&self) -> Role {
        self.worker.role()
    }

    fn lane(&self) -> Option<&str> {
        self.worker.lane()
    }

    fn ready<'a>(&'a self, out: &'a Out) -> BoxFuture<'a, bool> {
        match self.shares.iter().all(|share| share.may_start()) {
            true => self.worker.ready(out),
            false => futures::future::ready(false).boxed(),
        }
    }

    fn grace(&self) -> Duration {
        self.worker.grace()
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        self.worker.handle(event, body, out)
    }
}

#[cfg(test)]
mod tests {
    use trimtab_bus::SqliteStore;

    use super::*;

    fn wants(wants: f64, wants_at_once: usize) -> Wants {
        Wants { wants, wants_at_once }
    }

    /// One round: each says what it wants.
    fn round(agreement: &mut Agreement, all: &[(&str, Wants)], at_once: usize) -> Vec<(f64, usize)> {
        let say = |agreement: &mut Agreement, name: &str, wants: Wants| {
            let Part { share, at_once } = agreement.join(name, wants, at_once);
            agreement.members.insert(name.to_owned(), Member { share, at_once, at_ms: 0, wants });
            (share, at_once)
        };
        for _ in 0..2 {
            for (name, wants) in all {
                say(agreement, name, *wants);
            }
        }
        let rounded = |(share, at_once): (f64, usize)| ((share * 1000.0).round() / 1000.0, at_once);
        all.iter().map(|(name, wants)| rounded(say(agreement, name, *wants))).collect()
    }

    #[test]
    fn shares_never_add_up_to_more_than_the_limit() {
        let mut agreement = Agreement::default();
        let members = ["a", "b", "c", "d", "e"];
        let mut state: u64 = 7;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let member = members[(state >> 33) as usize % members.len()];
            if state >> 60 == 3 {
                agreement.members.remove(member);
                continue;
            }
            let asked = wants((state >> 50 & 7) as f64 / 7.0, (state >> 40 & 7) as usize);
            let Part { share, at_once } = agreement.join(member, asked, 4);
            agreement.members.insert(member.to_owned(), Member { share, at_once, at_ms: 0, wants: asked });
            let sum: f64 = agreement.members.values().map(|m| m.share).sum();
            let slots: usize = agreement.members.values().map(|m| m.at_once).sum();
            assert!(sum <= 1.0 + 1e-9 && share >= 0.0 && slots <= 4, "{agreement:?}");
        }
        let all: Vec<_> = members.iter().map(|name| (*name, wants(1.0, 8))).collect();
        let mut parts = round(&mut agreement, &all, 4);
        parts.sort_by_key(|(_, at_once)| *at_once);
        assert_eq!(parts, [(0.2, 0), (0.2, 1), (0.2, 1), (0.2, 1), (0.2, 1)]);
    }

    #[test]
    fn who_needs_much_has_what_others_do_not_need() {
        let mut agreement = Agreement::default();
        let mut of = |a: Wants, b: Wants| {
            let parts = round(&mut agreement, &[("a", a), ("b", b)], 4);
            (parts[0], parts[1])
        };
        let (idle, some, all) = (wants(0.0, 0), wants(0.16, 1), wants(1.0, 8));
        assert_eq!(of(idle, idle), ((0.5, 2), (0.5, 2)));
        assert_eq!(of(all, idle), ((0.99, 3), (0.01, 1)));
        assert_eq!(of(all, some), ((0.84, 3), (0.16, 1)));
        assert_eq!(of(all, all), ((0.5, 2), (0.5, 2)));
        assert_eq!(of(idle, all), ((0.01, 1), (0.99, 3)));
        assert_eq!(of(some, idle).0.1, 2);
    }

    #[test]
    fn who_has_one_and_is_busy_keeps_it() {
        let mut agreement = Agreement::default();
        assert_eq!(round(&mut agreement, &[("b", wants(1.0, 3))], 1), [(1.0, 1)]);
        let parts = round(&mut agreement, &[("a", wants(1.0, 3)), ("b", wants(1.0, 3))], 1);
        assert_eq!(parts, [(0.5, 0), (0.5, 1)]);
        let parts = round(&mut agreement, &[("a", wants(1.0, 3)), ("b", wants(0.0, 0))], 1);
        assert_eq!(parts, [(0.99, 1), (0.01, 0)]);
    }

    fn member(store: &Arc<dyn Store>, name: &str, calls: &Arc<Calls>) -> Share {
        Share::new(store.clone(), "x", name, calls.clone(), Clock::system()).expect("a usable limit")
    }

    /// However long a member is silent: it stops by itself before anybody else has its share, and asks anew when it is back.
    #[tokio::test(start_paused = true)]
    async fn a_silent_member_stops_before_its_share_goes_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(folder.path().join("state.db")).unwrap());
        let calls = || Arc::new(Calls::new(20.0, Some(4)).unwrap());
        let (ours, theirs) = (calls(), calls());
        let (silent, other) = (member(&store, "silent", &ours), member(&store, "other", &theirs));
        assert!(!silent.may_start());
        assert_eq!(silent.speak().await.unwrap(), 1.0);
        assert!(silent.may_start());
        let mut stopped = None;
        for step in 0..60 {
            let share = other.speak().await.unwrap();
            if stopped.is_none() && !silent.may_start() {
                stopped = Some(step);
                let to = ours.to("broker").unwrap();
                assert!(tokio::time::timeout(Duration::from_millis(1), to.slot()).await.is_err());
            }
            if share > 0.0 {
                assert!(stopped.is_some_and(|stopped| stopped + 5 < step), "{stopped:?} {step}");
                assert_eq!((share, silent.speak().await.unwrap()), (1.0, 0.0));
                assert!(!silent.may_start());
                return;
            }
            tokio::time::advance(Duration::from_millis(500)).await;
        }
        panic!("nobody ever had its share");
    }
}
