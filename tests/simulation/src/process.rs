//! Processes: the real workers with everything they need, from their start to their death and on to their next life.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use trimtab::activity::Activity;
use trimtab::clock::Clock;
use trimtab::config::Caps;
use trimtab::journal::{Disk, Journal};
use trimtab::metrics::Metrics;
use trimtab::retry::Delays;
use trimtab::scans::Scans;
use trimtab::sign::{Signer, Trusted};
use trimtab::triggers::Triggers;
use trimtab::worker::{self, Failure, LoopOptions, Out, Worker};
use trimtab::workers::{Audit, Decider, Executor, ExecutorParts, Scanner, ScannerParts};
use trimtab_bus::{Bus, Store};
use trimtab_events::Scope;
use trimtab_policy::{Policy, PolicyConfig, Rule};
use trimtab_targets::Mode;

use crate::target::Client;
use crate::wires::{SimBus, SimDisk, SimStore, Synced};
use crate::world::{Hands, Proc, World};

/// Name of the target.
pub(crate) const TARGET: &str = "model";
/// After how long without progress a subscriber is stale.
pub(crate) const STALE_S: i64 = 3600;
/// How long it is announced before it is moved.
pub(crate) const GRACE_S: i64 = 1800;
/// How often everything is scanned.
const SCAN_EVERY: Duration = Duration::from_secs(5400);

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// Asks for scans.
    Trigger,
    /// Scans.
    Scanner,
    /// Decides.
    Decider,
    /// Acts.
    Executor,
    /// Records.
    Audit,
    /// All of it, as `run` does.
    Everything,
}

impl Does {
    fn includes(self, role: Does) -> bool {
        self == role || self == Does::Everything
    }
}

/// Compiled once: its globs take longer than a run.
fn policy() -> Policy {
    static POLICY: LazyLock<Policy> = LazyLock::new(|| {
        let rule = Rule {
            name: "stale".to_owned(),
            subscriptions: vec!["*".to_owned()],
            stale_after_s: Some(STALE_S),
            sightings: Some(2),
            grace_s: Some(GRACE_S),
            ..Rule::default()
        };
        let config = PolicyConfig { rules: vec![rule], ..PolicyConfig::default() };
        Policy::new(config, "simulation").expect("the policy of the simulation is valid")
    });
    POLICY.clone()
}

/// The keys of the roles. They stand in no log: what a key is changes nothing of what happens.
struct Keys {
    decider: String,
    executor: String,
}

fn keys() -> &'static Keys {
    static KEYS: LazyLock<Keys> = LazyLock::new(|| {
        let seed = || Signer::ephemeral().seed().expect("a new key has a seed");
        Keys { decider: seed(), executor: seed() }
    });
    &KEYS
}

fn signer(seed: &str) -> Signer {
    Signer::from_seed(seed).expect("a seed of ours")
}

fn trusted(seed: &str) -> Trusted {
    Trusted::new([signer(seed).public_key()]).expect("a key of ours")
}

/// A process over all its lives.
pub(crate) struct Process {
    world: World,
    index: usize,
    does: Does,
    name: Arc<str>,
    journal: PathBuf,
    synced: Arc<Mutex<Synced>>,
}

impl Process {
    /// Adds a process to the world; its record is in this folder.
    pub(crate) fn add(world: &World, does: Does, name: &str, folder: &Path, ahead_ms: i64) -> Process {
        let mut state = world.lock();
        let proc = Proc { name: name.to_owned(), life: 0, dead: true, paused: None, ahead_ms, crash: Arc::default() };
        state.procs.push(proc);
        Process {
            world: world.clone(),
            index: state.procs.len() - 1,
            does,
            name: name.into(),
            journal: folder.join(format!("{name}.jsonl")),
            synced: Arc::default(),
        }
    }

    /// Where its record is.
    pub(crate) fn journal(&self) -> &Path {
        &self.journal
    }

    /// Whether it keeps a record of acts.
    pub(crate) fn acts(&self) -> bool {
        self.does.includes(Does::Executor)
    }

    /// One life after the other.
    pub(crate) async fn lives(&self) {
        loop {
            let (hands, crash) = self.born();
            let ended = tokio::select! {
                biased;
                () = crash.notified() => None,
                ended = self.life(&hands) => Some(ended),
            };
            hands.die();
            self.bury();
            let wait = {
                let mut state = self.world.lock();
                match ended {
                    None => state.say(&self.name, format_args!("is gone")),
                    Some(Err(e)) => {
                        // Where its record is differs from run to run.
                        let why = e.to_string().replace(&self.journal.display().to_string(), "(the record)");
                        state.say(&self.name, format_args!("ends: {why}"));
                    }
                    Some(Ok(())) => state.say(&self.name, format_args!("ends")),
                }
                // Mostly a supervisor is there; sometimes nobody for longer than any lease.
                let most = if state.quiet || state.rng.u8(0..4) > 0 { 20_000 } else { 900_000 };
                Duration::from_millis(state.rng.u64(1_000..most))
            };
            sleep(wait).await;
        }
    }

    fn born(&self) -> (Hands, Arc<Notify>) {
        let mut state = self.world.lock();
        let proc = &mut state.procs[self.index];
        proc.life += 1;
        (proc.dead, proc.paused, proc.crash) = (false, None, Arc::default());
        let (life, crash) = (proc.life, proc.crash.clone());
        state.say(&self.name, format_args!("starts, life {life}"));
        (Hands { world: self.world.clone(), process: self.index, life, name: self.name.clone() }, crash)
    }

    /// What was not synced is lost, or a part of it.
    fn bury(&self) {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if synced.written > synced.synced {
            let left = self.world.lock().rng.u64(synced.synced..=synced.written);
            let file = std::fs::OpenOptions::new().write(true).open(&self.journal);
            file.and_then(|file| file.set_len(left)).expect("the record of the simulation can be cut");
        }
        let length = std::fs::metadata(&self.journal).map_or(0, |metadata| metadata.len());
        *synced = Synced { synced: length, written: length };
    }

    fn clock(&self) -> Clock {
        let (world, index) = (self.world.clone(), self.index);
        Clock::from_fn(move || {
            let state = world.lock();
            state.now_ms() + state.procs[index].ahead_ms
        })
    }

    async fn open(&self, hands: &Hands, clock: &Clock) -> Arc<Journal> {
        loop {
            let (hands, state) = (hands.clone(), self.synced.clone());
            let disk = |file| Box::new(SimDisk { file, hands, state, intents: Vec::new() }) as Box<dyn Disk>;
            match Journal::open_in_turn(&self.journal, clock.clone(), disk) {
                Ok(journal) => {
                    let length = std::fs::metadata(&self.journal).map_or(0, |metadata| metadata.len());
                    *self.synced.lock().unwrap_or_else(PoisonError::into_inner) =
                        Synced { synced: length, written: length };
                    return Arc::new(journal);
                }
                // The task of the life before that had it open is about to end.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn life(&self, hands: &Hands) -> Result<(), Failure> {
        let clock = self.clock();
        let bus: Arc<dyn Bus> = Arc::new(SimBus(hands.clone()));
        let store: Arc<dyn Store> = Arc::new(SimStore(hands.clone()));
        let (scans, activity) = (Scans::new(store.clone()), Activity::new(store.clone(), TARGET));
        let metrics = Arc::new(Metrics::new());
        let client = Arc::new(Client(hands.clone()));
        let max_acts = self.world.lock().caps;
        let caps = Caps { max_acts, max_share: 1.0, max_shrink: 1.0, ..Caps::default() };
        let stop = CancellationToken::new();
        let mut loops = tokio::task::JoinSet::new();
        let mut start = |worker: Arc<dyn Worker>, at_once| {
            let delays = Delays { vary: 0.0, ..Delays::default() };
            let options = LoopOptions { at_once, delays, ..LoopOptions::default() };
            loops.spawn(worker::run(worker, bus.clone(), options, metrics.clone(), stop.clone()));
        };
        let journal = match self.does.includes(Does::Executor) || self.does.includes(Does::Audit) {
            true => Some(self.open(hands, &clock).await),
            false => None,
        };
        if self.does.includes(Does::Scanner) {
            let parts = ScannerParts {
                target: TARGET.to_owned(),
                cluster: TARGET.to_owned(),
                inventory: client.clone(),
                policy: policy(),
                caps,
                follow: None,
                store: store.clone(),
                clock: clock.clone(),
                instance: self.name.to_string(),
                metrics: metrics.clone(),
            };
            start(Arc::new(Scanner::new(parts)), 2);
        }
        if self.does.includes(Does::Decider) {
            let signer = signer(&keys().decider);
            start(Arc::new(Decider::new(policy(), signer, clock.clone(), &self.name, metrics.clone())), 4);
        }
        if let Some(journal) = journal.clone().filter(|_| self.does.includes(Does::Executor)) {
            let parts = ExecutorParts {
                target: TARGET.to_owned(),
                inventory: client.clone(),
                act: client.clone(),
                policy: policy(),
                caps,
                mode: Mode::Apply,
                scans: scans.clone(),
                activity,
                journal,
                trusted: trusted(&keys().decider),
                signer: signer(&keys().executor),
                clock: clock.clone(),
                instance: self.name.to_string(),
            };
            let executor = Executor::new(parts)?;
            executor.close_open_intents(&Out::new(bus.clone())).await?;
            start(Arc::new(executor), 4);
        }
        if let Some(journal) = journal.filter(|_| self.does.includes(Does::Audit)) {
            let outcomes = self.does == Does::Audit;
            let audit = Audit::new(journal, outcomes, trusted(&keys().executor), scans.clone(), metrics.clone(), None)?;
            start(Arc::new(audit), 4);
        }
        if self.does.includes(Does::Trigger) {
            let world = self.world.clone();
            let ids = move || uuid::Uuid::from_u128(world.lock().rng.u128(..));
            let triggers = Triggers::new(bus.clone(), TARGET, clock, &self.name).with_ids(ids);
            triggers.timer(Some(SCAN_EVERY), Scope::default(), scans, stop).await;
        }
        while loops.join_next().await.is_some() {}
        Ok(())
    }
}
