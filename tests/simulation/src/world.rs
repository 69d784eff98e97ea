//! What all processes of a run share: the clock, the seed, the targets, and everything that is held against the promises.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use trimtab_bus::{InProcess, MemoryStore};
use trimtab_events::{LedgerCandidate, SubscriberCandidate};

use crate::cluster::{Cluster, MINUTE};
use crate::hubs::Hubs;

/// Where the clock stands at the beginning, milliseconds since 1970.
pub(crate) const EPOCH: i64 = 1_800_000_000_000;
/// How long things go wrong.
pub(crate) const FAULTY: Duration = Duration::from_secs(3 * 3600);
/// How long a run lasts: what is due must be done well before the 24 hours are over that it may take.
pub(crate) const WHOLE: Duration = Duration::from_secs(9 * 3600 + 1800);
/// How far a reader may lag behind.
pub(crate) const LAG: Duration = Duration::from_secs(60);

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It fails, and did nothing.
    Fail,
    /// It did what it was to do, and the answer was lost.
    TimeOut,
    /// It arrives late.
    Slow,
    /// Its answer arrives late.
    Late,
    /// The process ends right before it.
    CrashBefore,
    /// The process ends right after it.
    CrashAfter,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Fault; 6] =
        [Fault::Fail, Fault::TimeOut, Fault::Slow, Fault::Late, Fault::CrashBefore, Fault::CrashAfter];
}

/// How often what goes wrong in a run: some things often, others never, or rare combinations would hide each other.
#[derive(Debug, Clone)]
pub(crate) struct Weather {
    /// One call in so many goes wrong.
    pub(crate) one_in: u32,
    /// How much more often each kind of [`Fault`] than the others; 0 is never.
    pub(crate) weights: [u32; 6],
    /// One event in so many is lost, comes twice, comes late; 0 is never.
    pub(crate) lost: u32,
    /// See `lost`.
    pub(crate) twice: u32,
    /// See `lost`.
    pub(crate) delayed: u32,
    /// One read of the target in so many is of a server that lags; 0 is never.
    pub(crate) stale: u32,
    /// How long a target takes for an answer at most, milliseconds: only where that is long does anything happen in the middle of a scan.
    pub(crate) answers_ms: u64,
    /// What else happens to processes and to what they share, by the minutes between two on average; 0 is never.
    pub(crate) accident_minutes: u32,
}

/// A process that is running, or was.
#[derive(Debug, Clone)]
pub(crate) struct Proc {
    /// Its name, as instance.
    pub(crate) name: String,
    /// Which life of it this is.
    pub(crate) life: u32,
    /// It has ended.
    pub(crate) dead: bool,
    /// It stands still until then.
    pub(crate) paused: Option<Instant>,
    /// How far its clock is ahead, milliseconds.
    pub(crate) ahead_ms: i64,
    /// Told when it is to end.
    pub(crate) crash: Arc<Notify>,
}

/// Versions of something, newest last, each with the time from which on it was so.
#[derive(Debug, Clone)]
pub(crate) struct Versions<T>(VecDeque<(i64, Option<T>)>);

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Versions(VecDeque::new())
    }
}

impl<T: Clone> Versions<T> {
    fn note(&mut self, now_ms: i64, value: Option<T>) {
        self.0.push_back((now_ms, value));
        while self.0.len() > 64 {
            self.0.pop_front();
        }
    }

    /// What was there at that time.
    pub(crate) fn at(&self, ms: i64) -> Option<&T> {
        let found = self.0.iter().rev().find(|(since, _)| *since <= ms).or(self.0.front());
        found.and_then(|(_, value)| value.as_ref())
    }

    /// Everything that was there at some time since then.
    pub(crate) fn since(&self, ms: i64) -> impl Iterator<Item = Option<&T>> {
        let begun = self.0.iter().rposition(|(since, _)| *since <= ms).unwrap_or(0);
        self.0.iter().skip(begun).map(|(_, value)| value.as_ref())
    }
}

/// What is known of a scan's gate: since when it has been open or closed, in order.
pub(crate) type GateStory = Vec<(i64, bool)>;

/// Everything shared.
pub(crate) struct State {
    /// Draws whatever is not given.
    pub(crate) rng: fastrand::Rng,
    began: Instant,
    /// How things go wrong.
    pub(crate) weather: Weather,
    /// Nothing goes wrong any more.
    pub(crate) quiet: bool,
    /// The processes.
    pub(crate) procs: Vec<Proc>,
    /// Everything that happened, a line each.
    pub(crate) log: String,
    /// Promises that were broken, in words.
    pub(crate) wrong: Vec<String>,
    /// How often each call went wrong in each way, and how often it was made.
    pub(crate) reached: BTreeMap<(String, Fault), u64>,
    /// How often each call was made.
    pub(crate) made: BTreeMap<String, u64>,
    /// Pulsar's topics.
    pub(crate) cluster: Cluster,
    /// Hedwig's.
    pub(crate) hubs: Hubs,
    /// How topics were.
    pub(crate) topics: BTreeMap<String, Versions<LedgerCandidate>>,
    /// How Hedwig's logs were.
    pub(crate) logs: BTreeMap<String, Versions<SubscriberCandidate>>,
    /// Topics that clients use at this moment.
    pub(crate) used: BTreeSet<String>,
    /// The queues.
    pub(crate) bus: Arc<InProcess>,
    /// Gates, by scan.
    pub(crate) gates: BTreeMap<String, GateStory>,
    /// The highest fencing number by key: of the leader, and of each scan's gate with whether that closes it.
    pub(crate) fences: BTreeMap<String, (u64, bool)>,
    /// How far scans are: which shards are in, and how many.
    pub(crate) progress: BTreeMap<String, (String, u64)>,
    /// Wishes to be left alone, by subject: since when.
    pub(crate) wishes: BTreeMap<String, i64>,
    /// When an executor took a decision, by process, decision and scan.
    pub(crate) taken: BTreeMap<(String, String), i64>,
    /// When an executor last looked at something, by process and subject.
    pub(crate) looked: BTreeMap<(String, String), i64>,
    /// Acts that a process began, by decision and scan.
    pub(crate) begun: BTreeMap<(String, String), u32>,
    /// Acts begun of each scan.
    pub(crate) of_scan: BTreeMap<String, u64>,
    /// Decisions that nobody trusted made, as their executors would know them.
    pub(crate) forged: BTreeSet<String>,
    /// Marks by subscriber's subject: since when, with which progress.
    pub(crate) marked: BTreeMap<String, (i64, String)>,
    /// The number of the last connection to a hub, and those that are closed.
    pub(crate) connections: (u64, BTreeSet<u64>),
    /// The last events that were published, to forge others from.
    pub(crate) seen_events: VecDeque<trimtab_events::Event>,
    /// Intents that are on disk, by process, decision and scan.
    pub(crate) intents: BTreeSet<(String, String)>,
    /// Topics that may be found loaded by nobody: the call that was to close them failed, one that loads them came late, or whoever was to
    /// close them after a crash was shown them as they had been before.
    pub(crate) excused: BTreeSet<String>,
    /// Acts that a scan may have carried out.
    pub(crate) caps: u64,
    /// Acts that the targets carried out.
    pub(crate) acts: u64,
    /// Subscribers that were moved.
    pub(crate) moved: u64,
}

/// The world of one run.
#[derive(Clone)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    /// Documents and leases.
    pub(crate) store: Arc<MemoryStore>,
}

impl World {
    /// An empty one.
    pub(crate) fn new(rng: fastrand::Rng, weather: Weather, bus: Arc<InProcess>) -> World {
        let state = State {
            rng,
            began: Instant::now(),
            weather,
            quiet: false,
            procs: Vec::new(),
            log: String::new(),
            wrong: Vec::new(),
            reached: BTreeMap::new(),
            made: BTreeMap::new(),
            cluster: Cluster::default(),
            hubs: Hubs::default(),
            topics: BTreeMap::new(),
            logs: BTreeMap::new(),
            used: BTreeSet::new(),
            bus,
            gates: BTreeMap::new(),
            fences: BTreeMap::new(),
            progress: BTreeMap::new(),
            wishes: BTreeMap::new(),
            taken: BTreeMap::new(),
            looked: BTreeMap::new(),
            begun: BTreeMap::new(),
            of_scan: BTreeMap::new(),
            forged: BTreeSet::new(),
            marked: BTreeMap::new(),
            connections: (0, BTreeSet::new()),
            seen_events: VecDeque::new(),
            intents: BTreeSet::new(),
            excused: BTreeSet::new(),
            caps: 0,
            acts: 0,
            moved: 0,
        };
        World { state: Arc::new(Mutex::new(state)), store: Arc::default() }
    }

    /// Looks at or changes what is shared. Never held over an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The targets' own time, milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        EPOCH + i64::try_from(self.began.elapsed().as_millis()).unwrap_or(0)
    }

    /// Adds a line to the log.
    pub(crate) fn say(&mut self, who: &str, what: std::fmt::Arguments<'_>) {
        let ms = self.now_ms() - EPOCH;
        let _ = writeln!(self.log, "{ms:>9} {who}: {what}");
    }

    /// A promise was broken.
    pub(crate) fn broken(&mut self, what: String) {
        self.say("BROKEN", format_args!("{what}"));
        self.wrong.push(what);
    }

    /// One in so many; never when 0.
    pub(crate) fn one_in(&mut self, many: u32) -> bool {
        many > 0 && self.rng.u32(0..many) == 0
    }

    /// How a call of a process goes wrong, if it does.
    fn draw(&mut self, who: &str, label: &str) -> Option<(Fault, Duration)> {
        match self.made.get_mut(label) {
            Some(count) => *count += 1,
            None => drop(self.made.insert(label.to_owned(), 1)),
        }
        if self.quiet || self.rng.u32(0..self.weather.one_in) != 0 {
            return None;
        }
        let all: u32 = self.weather.weights.iter().sum();
        let mut drawn = self.rng.u32(0..all.max(1));
        let kinds = Fault::ALL.iter().zip(self.weather.weights);
        let fault = kinds.into_iter().find_map(|(fault, weight)| {
            let hit = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            hit.then_some(*fault)
        })?;
        // Mostly a moment; sometimes longer than a lease, or than a taken event stays taken.
        let longest = if self.rng.u8(0..4) == 0 { 180_000 } else { 2_000 };
        let wait = Duration::from_millis(self.rng.u64(0..longest));
        *self.reached.entry((label.to_owned(), fault)).or_default() += 1;
        self.say(who, format_args!("{label} {fault:?}"));
        Some((fault, wait))
    }

    /// Notes how a topic is from now on.
    pub(crate) fn note_topic(&mut self, name: &str) {
        let now = self.now_ms();
        let topic = self.cluster.topics.get(name).cloned();
        self.topics.entry(name.to_owned()).or_default().note(now, topic);
    }

    /// Notes how a log is from now on.
    pub(crate) fn note_log(&mut self, name: &str) {
        let now = self.now_ms();
        let log = self.hubs.topics.get(name).map(|topic| topic.candidate(name));
        self.logs.entry(name.to_owned()).or_default().note(now, log);
    }

    /// A call that may have loaded a topic arrived: by a visit that is over, nobody closes it.
    pub(crate) fn excuse(&mut self, topic: &str, visit: u64) {
        if self.connections.1.contains(&visit) {
            self.excused.insert(topic.to_owned());
        }
    }

    /// The time of which a read tells, now or somewhat earlier.
    pub(crate) fn read_at(&mut self) -> i64 {
        let now = self.now_ms();
        if self.quiet || !self.one_in(self.weather.stale) {
            return now;
        }
        let lag = i64::try_from(LAG.as_millis()).unwrap_or(MINUTE);
        now - self.rng.i64(0..lag)
    }
}

/// How one life of a process reaches the world. Once that life has ended, nothing of it reaches anything any more.
#[derive(Clone)]
pub(crate) struct Hands {
    /// The world.
    pub(crate) world: World,
    /// Which process.
    pub(crate) process: usize,
    /// Which life of it.
    pub(crate) life: u32,
    /// Its name.
    pub(crate) name: Arc<str>,
}

impl Hands {
    /// Whether this life goes on.
    pub(crate) fn lives(&self) -> bool {
        let state = self.world.lock();
        let proc = &state.procs[self.process];
        proc.life == self.life && !proc.dead
    }

    /// Returns when the process may go on: never once it has ended, later while it stands still.
    async fn alive(&self) {
        loop {
            let until = {
                let state = self.world.lock();
                let proc = &state.procs[self.process];
                if proc.life != self.life || proc.dead { None } else { Some(proc.paused) }
            };
            match until {
                None => std::future::pending().await,
                Some(Some(until)) if until > Instant::now() => sleep_until(until).await,
                Some(_) => return,
            }
        }
    }

    /// The process ends here.
    pub(crate) fn die(&self) {
        let mut state = self.world.lock();
        let proc = &mut state.procs[self.process];
        if proc.life == self.life && !proc.dead {
            proc.dead = true;
            proc.crash.notify_one();
        }
    }

    /// Makes a call, which may go wrong.
    ///
    /// # Errors
    /// As `work`, or as `error` says when the call goes wrong.
    pub(crate) async fn call<T, E>(
        &self,
        label: &str,
        work: impl Future<Output = Result<T, E>>,
        error: impl Fn(&str) -> E,
    ) -> Result<T, E> {
        self.alive().await;
        let fault = self.world.lock().draw(&self.name, label);
        let result = match fault {
            None => work.await,
            Some((Fault::Fail, wait)) => {
                sleep(wait).await;
                Err(error("the simulation says so"))
            }
            Some((Fault::TimeOut, wait)) => {
                let worked = work.await;
                sleep(wait).await;
                worked.and_then(|_| Err(error("no answer came")))
            }
            Some((Fault::Slow, wait)) => {
                sleep(wait).await;
                work.await
            }
            Some((Fault::Late, wait)) => {
                let worked = work.await;
                sleep(wait).await;
                worked
            }
            Some((Fault::CrashBefore, _)) => {
                self.die();
                std::future::pending().await
            }
            Some((Fault::CrashAfter, _)) => {
                let _ = work.await;
                self.die();
                std::future::pending().await
            }
        };
        self.alive().await;
        result
    }

    /// Sends something to a target, which may go wrong. What was sent arrives, whatever becomes of its sender.
    ///
    /// # Errors
    /// As `error` says when it goes wrong.
    pub(crate) async fn send<T, E>(
        &self,
        label: &str,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
        error: impl Fn(&str) -> E,
    ) -> Result<T, E>
    where
        T: Send + 'static,
    {
        let slow = {
            let mut state = self.world.lock();
            let (one_in, answers, quiet) = (state.weather.one_in, state.weather.answers_ms, state.quiet);
            match quiet {
                true => None,
                false if state.one_in(one_in) => Some(state.rng.u64(0..120_000)),
                false => (answers > 0).then(|| state.rng.u64(0..answers)),
            }
        };
        let slow = slow.map(Duration::from_millis);
        let world = self.world.clone();
        let arrives = async move {
            if let Some(slow) = slow {
                sleep(slow).await;
            }
            work(&mut world.lock())
        };
        let work = async {
            match slow {
                None => Ok(arrives.await),
                Some(_) => tokio::spawn(arrives).await.map_err(|e| error(&e.to_string())),
            }
        };
        self.call(label, work, &error).await
    }
}
