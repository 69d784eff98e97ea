//! Follows changes, and what falls due, between full scans: asks for scans of those topics only. docs/architecture.md, "Following changes".

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use trimtab_bus::{BusError, Lease, Store};
use trimtab_events::{Proposed, Scope, Trigger};
use trimtab_targets::{Change, Changes, Class, Inventory, TargetError};
use uuid::Uuid;

use crate::clock::Clock;
use crate::due::DueIndex;
use crate::metrics::FollowMetrics;
use crate::scans::Scans;
use crate::triggers::Triggers;
use crate::worker::Failure;

/// How long whoever follows does so without renewing its lease.
const LEASE: Duration = Duration::from_secs(30);
/// Topics that are collected before they become their namespaces.
const MOST_TOPICS: usize = 50_000;
/// Namespaces, and topics with all their partitions, that are collected before all of them become a full scan.
const MOST_SHARDS: usize = 1_000;
/// Followed scans that have not ended, before the next one is asked for.
const AT_ONCE: usize = 16;
/// Intervals between what is done again although the last time did not help: a full scan because changes may have been missed, watches that
/// a server does not want to set, a scan that did not change what is due.
const PATIENCE: u32 = 10;
/// Until everything that is due is read anew.
const RELOAD: Duration = Duration::from_secs(3600);

/// What a follower is made of.
pub struct FollowerParts {
    /// Name of the target.
    pub target: String,
    /// What is followed.
    pub inventory: Arc<dyn Inventory>,
    /// Asks for scans.
    pub triggers: Triggers,
    /// Leases, and what falls due.
    pub store: Arc<dyn Store>,
    /// The clock.
    pub clock: Clock,
    /// Name of this process.
    pub instance: String,
    /// How long changes are collected before they are looked at.
    pub interval: Duration,
    /// Between two full scans.
    pub every: Duration,
}

/// Follows one target. Several may be started: one of them does.
pub struct Follower {
    parts: FollowerParts,
    scans: Scans,
    due: DueIndex,
    metrics: FollowMetrics,
    state: FollowState,
}

/// Whether this process follows as it was told to, as others may ask.
#[derive(Clone, Default)]
pub struct FollowState(Arc<Mutex<Option<String>>>);

impl FollowState {
    /// # Errors
    /// Why it does not.
    pub fn check(&self) -> Result<(), String> {
        locked(&self.0).clone().map_or(Ok(()), Err)
    }

    fn set(&self, why: Option<String>) {
        *locked(&self.0) = why;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is to be looked at, each thing once. Bounded: of much, the whole that it is part of is looked at.
#[derive(Debug, Default)]
struct Collected {
    topics: BTreeMap<String, BTreeSet<String>>,
    count: usize,
    groups: BTreeSet<(String, String)>,
    shards: BTreeSet<String>,
    all: bool,
    /// Since when something waits.
    since: Option<Instant>,
}

/// One scan to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ask {
    Shard(String),
    /// A topic with all its partitions, and its shard.
    Group(String, String),
    /// Topics, each after its shard.
    Topics(Vec<(String, String)>),
}

impl Ask {
    fn scope(&self) -> Scope {
        match self {
            Ask::Shard(shard) => Scope { namespace: Some(shard.clone()), ..Scope::default() },
            Ask::Group(_, topic) => Scope { topic: Some(topic.clone()), ..Scope::default() },
            Ask::Topics(topics) => {
                Scope { topics: topics.iter().map(|(_, topic)| topic.clone()).collect(), ..Scope::default() }
            }
        }
    }

    fn shards(&self) -> BTreeSet<String> {
        match self {
            Ask::Shard(shard) | Ask::Group(shard, _) => [shard.clone()].into(),
            Ask::Topics(topics) => topics.iter().map(|(shard, _)| shard.clone()).collect(),
        }
    }
}

impl Collected {
    fn topic(&mut self, shard: String, topic: String) {
        self.since.get_or_insert_with(Instant::now);
        if self.all || self.shards.contains(&shard) {
            return;
        }
        self.count += usize::from(self.topics.entry(shard).or_default().insert(topic));
        if self.count > MOST_TOPICS {
            for shard in std::mem::take(&mut self.topics).into_keys() {
                self.shard(shard);
            }
            self.count = 0;
        }
    }

    fn shard(&mut self, shard: String) {
        self.since.get_or_insert_with(Instant::now);
        if self.all {
            return;
        }
        self.count -= self.topics.remove(&shard).map_or(0, |topics| topics.len().min(self.count));
        self.shards.insert(shard);
        self.bound();
    }

    fn group(&mut self, shard: String, topic: String) {
        self.since.get_or_insert_with(Instant::now);
        if !self.all && !self.shards.contains(&shard) {
            self.groups.insert((shard, topic));
            self.bound();
        }
    }

    fn bound(&mut self) {
        if self.shards.len() + self.groups.len() > MOST_SHARDS {
            *self = Collected { all: true, since: self.since, ..Collected::default() };
        }
    }

    fn back(&mut self, ask: Ask) {
        match ask {
            Ask::Shard(shard) => self.shard(shard),
            Ask::Group(shard, topic) => self.group(shard, topic),
            Ask::Topics(topics) => topics.into_iter().for_each(|(shard, topic)| self.topic(shard, topic)),
        }
    }

    /// The next thing to ask for. What needs a full scan is not among them.
    fn take(&mut self) -> Option<Ask> {
        let group = |(shard, topic)| Ask::Group(shard, topic);
        let ask = self.shards.pop_first().map(Ask::Shard).or_else(|| self.groups.pop_first().map(group));
        let ask = ask.or_else(|| {
            let mut topics = Vec::new();
            while topics.len() < Scope::MOST_TOPICS
                && let Some(mut shard) = self.topics.first_entry()
            {
                while topics.len() < Scope::MOST_TOPICS
                    && let Some(topic) = shard.get_mut().pop_first()
                {
                    topics.push((shard.key().clone(), topic));
                }
                if shard.get().is_empty() {
                    shard.remove();
                }
            }
            self.count -= topics.len().min(self.count);
            (!topics.is_empty()).then_some(Ask::Topics(topics))
        });
        if ask.is_none() && !self.all {
            self.since = None;
        }
        ask
    }
}

/// What the watches have told, and whether they have ended.
#[derive(Default)]
struct Heard {
    collected: Collected,
    changes: u64,
    missed: Option<String>,
}

/// Collects what is told, however long whoever asks for scans is busy.
async fn hear(mut changes: Box<dyn Changes>, heard: Arc<Mutex<Heard>>) {
    loop {
        let change = changes.next().await;
        let mut heard = locked(&heard);
        heard.changes += 1;
        match change {
            Change::Topic { shard, subject } => heard.collected.topic(shard, subject),
            Change::Group { shard, subject } => heard.collected.group(shard, subject),
            Change::Shard(shard) => heard.collected.shard(shard),
            Change::Missed(why) => {
                heard.changes -= 1;
                heard.missed = Some(why);
                return;
            }
        }
    }
}

/// Ends the hearing with whoever follows.
struct Hearing(AbortHandle);

impl Drop for Hearing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A scan that was asked for and has not ended.
struct Asked {
    scan: Uuid,
    /// In which what is due is read anew after it; none for a full scan.
    shards: Option<BTreeSet<String>>,
    at: Instant,
}

/// What whoever follows knows.
struct Lead {
    heard: Arc<Mutex<Heard>>,
    hearing: Option<Hearing>,
    /// Not before this.
    watch_at: Instant,
    fallen: Collected,
    /// When something in a shard falls due.
    earliest: BTreeMap<String, i64>,
    /// What it was when a scan of the shard was asked for because of it.
    asked_for: BTreeMap<String, i64>,
    asked: Vec<Asked>,
    /// A full scan is owed, because changes may have been missed.
    owed: bool,
    full_at: Option<Instant>,
    reloaded: Option<Instant>,
}

impl Follower {
    /// A follower. Nothing happens before [`Follower::run`].
    pub fn new(parts: FollowerParts) -> Follower {
        let due = DueIndex::new(parts.store.clone(), &parts.target);
        let scans = Scans::new(parts.store.clone());
        Follower { scans, due, metrics: FollowMetrics::new(), state: FollowState::default(), parts }
    }

    fn patience(&self) -> Duration {
        self.parts.interval * PATIENCE
    }

    /// How it is, also while it runs.
    pub fn state(&self) -> FollowState {
        self.state.clone()
    }

    /// Follows until `stop`, or waits for whoever does to end.
    pub async fn run(self, stop: CancellationToken) {
        let name = format!("follow.{}", self.parts.target);
        while !stop.is_cancelled() {
            let lease = match self.parts.store.acquire(&name, &self.parts.instance, LEASE).await {
                Ok(lease) => lease,
                Err(e) => {
                    warn!(error = %e, "whether anybody follows changes could not be seen; trying again");
                    None
                }
            };
            if let Some(mut lease) = lease {
                info!(target = self.parts.target, "following changes");
                let led = stop.run_until_cancelled(self.lead(&mut lease)).await;
                if let Some(Err(e)) = led {
                    warn!(error = %e, "not following changes any more; another one does");
                }
                self.metrics.watching.set(0.0, &[]);
                self.state.set(None);
                if let Err(e) = self.parts.store.release(lease).await {
                    warn!(error = %e, "the lease of who follows could not be given back; it ends by itself");
                }
            }
            let wait = LEASE / 3;
            tokio::select! { biased; () = stop.cancelled() => {}, () = tokio::time::sleep(wait) => {} }
        }
    }

    async fn lead(&self, lease: &mut Lease) -> Result<(), Failure> {
        tokio::select! {
            biased;
            lost = self.keep(lease) => Err(lost),
            never = self.steps() => match never {},
        }
    }

    /// Keeps the lease until it is lost; why it was.
    async fn keep(&self, lease: &mut Lease) -> Failure {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(LEASE / 3).await;
            match self.parts.store.renew(lease, &self.parts.instance).await {
                Ok(()) => renewed = Instant::now(),
                Err(e) if matches!(e, BusError::Conflict { .. }) || renewed.elapsed() >= LEASE => return e.into(),
                Err(e) => warn!(error = %e, "the lease of who follows could not be renewed; trying again"),
            }
        }
    }

    async fn steps(&self) -> Infallible {
        let mut lead = Lead {
            heard: Arc::default(),
            hearing: None,
            watch_at: Instant::now(),
            fallen: Collected::default(),
            earliest: BTreeMap::new(),
            asked_for: BTreeMap::new(),
            asked: Vec::new(),
            owed: false,
            full_at: None,
            reloaded: None,
        };
        loop {
            let begun = Instant::now();
            if let Err(e) = self.step(&mut lead).await {
                warn!(error = %e, "not everything that changed could be asked for; trying again");
            }
            tokio::time::sleep(self.parts.interval.saturating_sub(begun.elapsed())).await;
        }
    }

    /// Everything that is done once in an interval. An error leaves what is not done yet to the next one.
    async fn step(&self, lead: &mut Lead) -> Result<(), Failure> {
        self.listen(lead).await;
        self.settle(lead).await?;
        if lead.reloaded.is_none_or(|at| at.elapsed() >= RELOAD) {
            lead.earliest = self.due.earliest().await?;
            for shard in lead.asked_for.keys() {
                lead.earliest.remove(shard);
            }
            lead.reloaded = Some(Instant::now());
        }
        self.fall(lead).await?;
        self.ask(lead).await?;
        let oldest = [locked(&lead.heard).collected.since, lead.fallen.since].into_iter().flatten().min();
        self.metrics.lag.set(oldest.map_or(0.0, |since| since.elapsed().as_secs_f64()), &[]);
        Ok(())
    }

    /// Has somebody listen, and notes what was missed.
    async fn listen(&self, lead: &mut Lead) {
        let (missed, changes) = {
            let mut heard = locked(&lead.heard);
            (heard.missed.take(), std::mem::take(&mut heard.changes))
        };
        self.metrics.changes.add(changes, &[]);
        if let Some(why) = missed {
            warn!(why, "changes may have been missed; listening anew, and everything is read after that");
            lead.hearing = None;
        }
        if lead.hearing.is_none() && Instant::now() >= lead.watch_at {
            match self.parts.inventory.follow().await {
                Ok(changes) => {
                    lead.hearing = Some(Hearing(tokio::spawn(hear(changes, lead.heard.clone())).abort_handle()));
                    // Whatever happened before.
                    lead.owed = true;
                    self.state.set(None);
                }
                Err(e) => self.deaf(lead, &e),
            }
        }
        self.metrics.watching.set(f64::from(u8::from(lead.hearing.is_some())), &[]);
    }

    fn deaf(&self, lead: &mut Lead, error: &TargetError) {
        if error.class() != Class::Transient {
            lead.watch_at = Instant::now() + self.patience();
        }
        let why = format!("changes are found by full scans only: {error}");
        if self.state.check().as_ref().err() != Some(&why) {
            warn!(every_s = self.parts.every.as_secs(), why, "changes are not followed");
        }
        self.state.set(Some(why));
    }

    /// Looks which scans have ended.
    async fn settle(&self, lead: &mut Lead) -> Result<(), Failure> {
        let mut at = 0;
        while let Some(asked) = lead.asked.get(at) {
            let gate = self.scans.gate(asked.scan).await?;
            if gate.is_none() && asked.at.elapsed() < self.parts.every.max(LEASE * 2) {
                at += 1;
                continue;
            }
            let Some(gate) = gate else {
                let scan = asked.scan;
                warn!(%scan, "a scan that was asked for has not ended for very long: everything is read again");
                lead.owed = true;
                lead.asked.remove(at);
                lead.asked_for.clear();
                lead.reloaded = None;
                continue;
            };
            match asked.shards.clone() {
                None => {
                    lead.earliest = self.due.earliest().await?;
                    lead.asked_for.clear();
                }
                Some(shards) => {
                    for shard in &shards {
                        let first = self.due.first_ms(shard).await?;
                        let before = lead.asked_for.get(shard).copied();
                        self.known(lead, shard, first, before);
                    }
                    for shard in &shards {
                        lead.asked_for.remove(shard);
                    }
                    if gate.proposed == Proposed::default() && gate.closed().is_none() {
                        // There are many of them, and nobody asks for it any more.
                        self.scans.forget_gate(gate.scan.id).await?;
                    }
                }
            }
            lead.asked.remove(at);
        }
        Ok(())
    }

    fn known(&self, lead: &mut Lead, shard: &str, first: Option<i64>, before: Option<i64>) {
        let earliest = &mut lead.earliest;
        match first {
            Some(at) if before == Some(at) => {
                warn!(
                    shard,
                    "a scan of what was due there has not noted that it was: do all scanners follow (--follow)?"
                );
                let wait = i64::try_from(self.patience().as_millis()).unwrap_or(i64::MAX);
                earliest.insert(shard.to_owned(), self.parts.clock.now_ms().saturating_add(wait));
            }
            Some(at) => drop(earliest.insert(shard.to_owned(), at)),
            None => drop(earliest.remove(shard)),
        }
    }

    /// Collects what has fallen due.
    async fn fall(&self, lead: &mut Lead) -> Result<(), Failure> {
        let now_ms = self.parts.clock.now_ms();
        let due: Vec<String> =
            lead.earliest.iter().filter(|(_, at)| **at <= now_ms).map(|(shard, _)| shard.clone()).collect();
        for shard in due {
            let fallen = self.due.fallen(&shard, now_ms).await?;
            self.metrics.due.add(fallen.topics.len() as u64, &[]);
            match (fallen.whole, fallen.topics.is_empty()) {
                (true, _) => lead.fallen.shard(shard.clone()),
                (false, true) => {}
                (false, false) => fallen.topics.into_iter().for_each(|topic| lead.fallen.topic(shard.clone(), topic)),
            }
            if let Some(at) = lead.earliest.remove(&shard) {
                lead.asked_for.insert(shard, at);
            }
        }
        Ok(())
    }

    /// Asks for scans.
    async fn ask(&self, lead: &mut Lead) -> Result<(), Failure> {
        // Whatever was collected is part of everything; what changes from now on is not.
        let all = locked(&lead.heard).collected.all || lead.fallen.all;
        let catch_up = lead.owed || all;
        let since = lead.full_at.map(|at| at.elapsed());
        let net = since.is_none_or(|since| since >= self.parts.every);
        let reading_all = lead.asked.iter().any(|asked| asked.shards.is_none());
        if !reading_all && (net || catch_up && since.is_none_or(|since| since >= self.patience())) {
            locked(&lead.heard).collected = Collected::default();
            // Until it is asked for, whatever becomes of the asking.
            lead.owed = true;
            let trigger = if catch_up { Trigger::CatchUp } else { Trigger::Timer };
            let scan = self.parts.triggers.scan(Scope::default(), trigger).await?;
            self.metrics.requests.add(1, &["full"]);
            self.metrics.catch_ups.add(u64::from(catch_up), &[]);
            (lead.owed, lead.full_at, lead.fallen) = (false, Some(Instant::now()), Collected::default());
            lead.asked.push(Asked { scan, shards: None, at: Instant::now() });
            return Ok(());
        }
        // They would only wait for its end.
        if reading_all {
            return Ok(());
        }
        while lead.asked.len() < AT_ONCE {
            let changed = locked(&lead.heard).collected.take();
            let (ask, trigger) = match changed {
                Some(ask) => (ask, Trigger::Change),
                None => match lead.fallen.take() {
                    Some(ask) => (ask, Trigger::Due),
                    None => return Ok(()),
                },
            };
            debug!(?ask, ?trigger, "asking");
            let asked = self.parts.triggers.scan(ask.scope(), trigger).await;
            let shards = ask.shards();
            match asked {
                Ok(scan) => lead.asked.push(Asked { scan, shards: Some(shards), at: Instant::now() }),
                // What is no name of anything is looked at with everything else.
                Err(e @ Failure::Failed { class: Class::Invalid, .. }) => {
                    lead.owed = true;
                    return Err(e);
                }
                Err(e) => {
                    match trigger {
                        Trigger::Due => lead.fallen.back(ask),
                        _ => locked(&lead.heard).collected.back(ask),
                    }
                    return Err(e);
                }
            }
            let name = if trigger == Trigger::Due { "due" } else { "change" };
            self.metrics.requests.add(1, &[name]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|n| format!("persistent://t/n/{n:06}"))
    }

    #[test]
    fn each_topic_once_in_requests_of_bounded_size() {
        let mut collected = Collected::default();
        for topic in names(Scope::MOST_TOPICS + 1).chain(names(3)) {
            collected.topic("t/n".to_owned(), topic);
        }
        collected.topic("t/a".to_owned(), "persistent://t/a/x".to_owned());
        collected.shard("t/z".to_owned());
        collected.topic("t/z".to_owned(), "persistent://t/z/x".to_owned());
        let asks: Vec<Ask> = std::iter::from_fn(|| collected.take()).collect();
        let sizes: Vec<usize> = asks.iter().map(|ask| ask.scope().topics.len()).collect();
        assert_eq!((asks[0].clone(), sizes), (Ask::Shard("t/z".to_owned()), vec![0, 500, 2]));
        assert_eq!(asks[1].shards().into_iter().collect::<Vec<_>>(), ["t/a", "t/n"]);
        assert!(collected.since.is_none() && collected.count == 0);
    }

    #[test]
    fn too_much_becomes_the_whole_that_it_is_part_of() {
        let mut collected = Collected::default();
        for topic in names(MOST_TOPICS) {
            collected.topic("t/n".to_owned(), topic);
        }
        assert!(collected.shards.is_empty());
        collected.topic("t/m".to_owned(), "persistent://t/m/x".to_owned());
        assert!(collected.topics.is_empty() && collected.count == 0);
        assert_eq!(collected.shards.iter().collect::<Vec<_>>(), ["t/m", "t/n"]);
        for shard in 0..MOST_SHARDS {
            collected.shard(format!("x/{shard}"));
        }
        assert!(collected.all && collected.shards.is_empty() && collected.take().is_none());
        // Until a full scan takes it, it waits.
        assert!(collected.since.is_some());
    }
}
