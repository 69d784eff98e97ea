//! Whole processes of trimtab inside this one, over a model of a cluster: workers, loop, bus, store and record are the real ones, on
//! a clock that does not wait where nothing happens. What one process leaves behind, the next one finds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trimtab::activity::Activity;
use trimtab::clock::Clock;
use trimtab::config::Caps;
use trimtab::journal::{self, Journal, RecordKind};
use trimtab::metrics::Metrics;
use trimtab::once::{Judgement, Once, Ran};
use trimtab::plan::Planning;
use trimtab::scans::Scans;
use trimtab::sign::{Signer, Trusted};
use trimtab::triggers::Triggers;
use trimtab::worker::{self, Failure, LoopOptions, Out, Worker};
use trimtab::workers::{Audit, Decider, Executor, ExecutorParts, Scanner, ScannerParts};
use trimtab_bus::{Bus, BusOptions, InProcess, SqliteStore, Store};
use trimtab_events::{Decision, Outcome, PlanItem, ScanRef, Scope};
use trimtab_policy::{Policy, PolicyConfig};
use trimtab_simulation::cluster::MINUTE;
use trimtab_targets::Mode as Acting;

use crate::model::{Client, Cluster, SHORT};
use crate::points::{FaultyBus, FaultyDisk, FaultyStore, Mode, Point, Points};

const TARGET: &str = "model";
/// Where the clock of a test stands at its beginning.
pub(crate) const EPOCH: i64 = 1_800_000_000_000;
/// Acts carried out at once.
pub(crate) const AT_ONCE: usize = 4;
/// Of calls that only look how far things are, how many are tried: they come every few milliseconds.
const LOOKS: u32 = 3;
/// What lasts longer than this, by the clock of the test, is stuck. A silent leader keeps executors waiting for ten minutes.
const STUCK: Duration = Duration::from_secs(30 * 60);

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since 1970 by the clock of the runtime that asks, which does not wait where nothing happens.
pub(crate) fn now_ms() -> i64 {
    let passed = tokio::time::Instant::now().into_std().saturating_duration_since(*BEGUN);
    EPOCH + i64::try_from(passed.as_millis()).unwrap()
}

/// What outlives a process.
pub(crate) struct Ground {
    folder: TempDir,
    pub(crate) cluster: Cluster,
    /// Queues on a server of their own. None: they are lost with the process.
    bus: Option<Arc<dyn Bus>>,
    /// How far the clock had come.
    clock: Mutex<Instant>,
    /// Acts that a scan may have carried out.
    max_acts: u64,
    /// How far the clock of the processes is ahead of that of the cluster.
    pub(crate) skew_ms: i64,
}

fn new_bus() -> Arc<dyn Bus> {
    Arc::new(InProcess::new(BusOptions { max_deliver: 1_000, ..BusOptions::default() }))
}

impl Ground {
    pub(crate) fn new(keeps_bus: bool) -> Ground {
        Ground::that_loses(keeps_bus, 0)
    }

    /// One in which the clock of the processes is ahead by so much.
    pub(crate) fn skewed(skew_ms: i64) -> Ground {
        Ground { skew_ms, ..Ground::that_loses(false, 10) }
    }

    /// One in which the budget of a scan is as much as is due, and what may be lost of it besides.
    pub(crate) fn that_loses(keeps_bus: bool, acts: u64) -> Ground {
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.unwrap();
        for role in ["decider", "executor"] {
            std::fs::write(folder.path().join(role), Signer::ephemeral().seed().unwrap()).unwrap();
        }
        Ground {
            folder,
            cluster: Cluster::small(EPOCH),
            bus: keeps_bus.then(new_bus),
            clock: Mutex::new(*BEGUN),
            max_acts: DUE.len() as u64 + 1 + acts,
            skew_ms: 0,
        }
    }

    fn key(&self, role: &str) -> Signer {
        Signer::from_file(&self.folder.path().join(role)).unwrap()
    }

    fn journal(&self) -> PathBuf {
        self.folder.path().join("journal.jsonl")
    }

    /// Runs one process until its work is done or it crashes; none when it crashed.
    pub(crate) fn process<T>(&self, points: &Points, work: impl AsyncFnOnce(&Process<'_>) -> T) -> Option<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let result = runtime.block_on(async {
            let now = tokio::time::Instant::now().into_std();
            let before = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
            tokio::time::advance(before.saturating_duration_since(now)).await;
            let live = async {
                let process = Process::open(self, points).await;
                let ticks = tokio::spawn(ticks(process.journal.clone(), points.clone()));
                let result = work(&process).await;
                ticks.abort();
                process.stop.cancel();
                process.tasks.close();
                process.tasks.wait().await;
                result
            };
            let result = tokio::select! {
                result = tokio::time::timeout(STUCK, live) => Some(result.expect("the run is stuck")),
                () = points.crashed() => None,
            };
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = tokio::time::Instant::now().into_std();
            result
        });
        drop(runtime);
        points.gone();
        result
    }

    /// What the record has of a kind, as `decision/scan`.
    pub(crate) fn recorded(&self, kind: RecordKind) -> Vec<String> {
        let mut found = Vec::new();
        journal::read(&self.journal(), |record| {
            let body = &record.body;
            let (decision, scan) = match kind {
                RecordKind::Intent => (&body["decision"]["id"], &body["decision"]["scan"]["id"]),
                _ => (&body["decision"], &body["scan"]["id"]),
            };
            if record.kind == kind {
                found.push(format!("{}/{}", decision.as_str().unwrap_or_default(), scan.as_str().unwrap()));
            }
        })
        .expect("the record is whole");
        found
    }
}

/// Checks that outcomes say of each ledger that is gone that it was freed, once, and of no other.
fn accounted_for(ground: &Ground, before: &Lists) {
    let (mut freed, now) = (BTreeSet::new(), ground.cluster.filled());
    journal::read(&ground.journal(), |record| {
        for id in record.body["freed"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_i64) {
            assert!(!now[&record.subject].contains(&id), "ledger {id} of {} is still there", record.subject);
            assert!(freed.insert((record.subject.clone(), id)), "ledger {id} of {} was freed twice", record.subject);
        }
    })
    .expect("the record is whole");
    for (topic, had) in before {
        for id in had.difference(&now[topic]) {
            assert!(freed.contains(&(topic.clone(), *id)), "no outcome says that ledger {id} of {topic} was freed");
        }
    }
}

/// Everything that one process has.
pub(crate) struct Process<'a> {
    ground: &'a Ground,
    client: Client,
    bus: Arc<dyn Bus>,
    scans: Scans,
    store: Arc<dyn Store>,
    journal: Arc<Journal>,
    clock: Clock,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Compiled once: its globs take longer than the run.
fn policy() -> Policy {
    static DEFAULT: LazyLock<Policy> = LazyLock::new(|| Policy::new(PolicyConfig::default(), "test").unwrap());
    DEFAULT.clone()
}

/// The clock of a test leaps to whatever falls due next when nobody of the runtime has anything to do. The record's own thread is nobody
/// of the runtime: while it works, the clock stands still.
async fn ticks(journal: Arc<Journal>, points: Points) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = Instant::now();
        while journal.pending() > 0 && !points.crashes() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

impl<'a> Process<'a> {
    async fn open(ground: &'a Ground, points: &Points) -> Process<'a> {
        let (skew_ms, steps) = (ground.skew_ms, points.clone());
        let clock = Clock::from_fn(move || now_ms() + skew_ms + steps.stepped_ms());
        let path = ground.journal();
        let faulty = |file| Box::new(FaultyDisk { file, points: points.clone() }) as Box<dyn journal::Disk>;
        // The one before gives its lock back when its thread has ended.
        let deadline = Instant::now() + Duration::from_secs(10);
        let journal = loop {
            match Journal::open_through(&path, clock.clone(), faulty) {
                Ok(journal) => break Arc::new(journal),
                Err(e) => assert!(Instant::now() < deadline, "{e}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let store = Arc::new(SqliteStore::open_with_clock(ground.folder.path().join("state.db"), now_ms).unwrap());
        let store: Arc<dyn Store> = Arc::new(FaultyStore { store, points: points.clone() });
        let bus = ground.bus.clone().unwrap_or_else(new_bus);
        let client = Client {
            cluster: ground.cluster.clone(),
            points: points.clone(),
            clock: Clock::from_fn(now_ms),
            journal: path,
        };
        Process {
            ground,
            client,
            bus: Arc::new(FaultyBus { bus, points: points.clone() }),
            scans: Scans::new(store.clone()),
            store,
            journal,
            clock,
            metrics: Arc::new(Metrics::new()),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    fn caps(&self) -> Caps {
        Caps { max_acts: self.ground.max_acts, max_share: 1.0, ..Caps::default() }
    }

    fn executor(&self, acting: Acting) -> Executor {
        let parts = ExecutorParts {
            target: TARGET.to_owned(),
            inventory: Arc::new(self.client.clone()),
            act: Arc::new(self.client.clone()),
            policy: policy(),
            caps: self.caps(),
            mode: acting,
            scans: self.scans.clone(),
            activity: Activity::new(self.store.clone(), TARGET),
            journal: self.journal.clone(),
            trusted: Trusted::new([self.ground.key("decider").public_key()]).unwrap(),
            signer: self.ground.key("executor"),
            clock: self.clock.clone(),
            instance: "one".to_owned(),
        };
        Executor::new(parts).unwrap()
    }

    fn start(&self, worker: impl Worker, at_once: usize) {
        let options = LoopOptions { at_once, ..LoopOptions::default() };
        let worker = worker::run(Arc::new(worker), self.bus.clone(), options, self.metrics.clone(), self.stop.clone());
        self.tasks.spawn(worker);
    }

    /// What `run --apply` does.
    pub(crate) async fn run(&self) -> Result<Ran, Failure> {
        let scanner = Scanner::new(ScannerParts {
            target: TARGET.to_owned(),
            cluster: TARGET.to_owned(),
            inventory: Arc::new(self.client.clone()),
            policy: policy(),
            caps: self.caps(),
            follow: None,
            store: self.store.clone(),
            clock: self.clock.clone(),
            instance: "one".to_owned(),
            metrics: self.metrics.clone(),
        });
        let executor = self.executor(Acting::Apply);
        let trusted = Trusted::new([self.ground.key("executor").public_key()]).unwrap();
        let audit = Audit::new(self.journal.clone(), false, trusted, self.scans.clone(), self.metrics.clone(), None);
        self.start(scanner, 1);
        let decider =
            Decider::new(policy(), self.ground.key("decider"), self.clock.clone(), "one", self.metrics.clone());
        self.start(decider, 4);
        executor.close_open_intents(&Out::new(self.bus.clone())).await?;
        self.start(executor, AT_ONCE);
        self.start(audit.map_err(Failure::from)?, 4);
        let once = Once {
            bus: self.bus.clone(),
            scans: self.scans.clone(),
            triggers: Triggers::new(self.bus.clone(), TARGET, self.clock.clone(), "one"),
            stop: self.stop.clone(),
        };
        once.run(Scope::default()).await
    }

    /// What `apply` does.
    pub(crate) async fn apply(&self, decisions: &[Decision]) -> Vec<Result<Outcome, Failure>> {
        let executor = self.executor(Acting::Apply);
        let out = Out::new(self.bus.clone());
        if let Err(e) = executor.close_open_intents(&out).await {
            return vec![Err(e)];
        }
        let carried = decisions.iter().map(|decision| executor.carry_out(decision, &out));
        stream::iter(carried).buffered(AT_ONCE).collect().await
    }

    /// What `plan` does.
    pub(crate) async fn plan(&self) -> Result<(Vec<PlanItem>, trimtab::plan::Planned), trimtab_targets::TargetError> {
        let policy = policy();
        let planning = Planning {
            sightings: None,
            inventory: &self.client,
            policy: &policy,
            target: TARGET,
            scope: &Scope::default(),
            now_ms: self.clock.now_ms(),
            explain: false,
            watch: None,
        };
        let mut items = Vec::new();
        let scan = ScanRef { id: uuid::Uuid::now_v7(), fence: 0 };
        let planned = planning.run(scan, &mut |item| items.push(item)).await?;
        Ok((items, planned))
    }
}

/// Topics of the small cluster that have ledgers to lose at once, with how many.
pub(crate) const DUE: [(&str, usize); 4] = [("a/due-0", 3), ("a/due-1", 3), ("b/due-2", 3), ("b/expire", 3)];
/// The one that needs two visits.
pub(crate) const CLOCK: &str = "persistent://acme/b/clock";

pub(crate) type Lists = BTreeMap<String, BTreeSet<i64>>;

/// What each topic has lost.
pub(crate) fn lost(before: &Lists, after: &Lists) -> BTreeMap<String, usize> {
    let lost = before.iter().map(|(name, had)| (name.clone(), had.difference(&after[name]).count()));
    lost.filter(|(_, count)| *count > 0).collect()
}

pub(crate) fn all_due() -> BTreeMap<String, usize> {
    DUE.iter().map(|(name, count)| (format!("persistent://acme/{name}"), *count)).collect()
}

/// What is lost is due, every one of it or nothing.
pub(crate) fn only_what_is_due(lost: &BTreeMap<String, usize>) {
    let due = all_due();
    for (name, count) in lost {
        assert_eq!(due.get(name), Some(count), "{name} lost something else");
    }
}

/// The calls of `work`, as points: looks only a few times.
fn points_of(runs: &[Points]) -> Vec<Point> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for run in runs {
        for (label, count) in run.seen() {
            let most = counts.entry(label).or_default();
            *most = count.max(*most);
        }
    }
    let looks = |label: &str| {
        label.starts_with("bus.take")
            || ["bus.depth", "bus.dead", "bus.again.executor", "store.get.leader", "store.get.gate"].contains(&label)
    };
    let points = counts.into_iter().flat_map(|(label, count)| {
        let count = if looks(&label) { count.min(LOOKS) } else { count };
        (0..count).map(move |number| Point { label: label.clone(), number })
    });
    points.collect()
}

/// Tries every point in every mode, on all processors; how many there were and how many of them were reached.
pub(crate) fn each(
    points: &[Point],
    modes: &[Mode],
    keeps_bus: &[bool],
    trial: impl Fn(&Point, Mode, bool) -> bool + Sync,
) {
    let all: Vec<(&Point, Mode, bool)> = points
        .iter()
        .flat_map(|point| modes.iter().map(move |mode| (point, *mode)))
        // Where nothing crashes, nothing is lost with the process.
        .flat_map(|(point, mode)| {
            let keeps = if mode.crashes() { keeps_bus } else { &keeps_bus[..1] };
            keeps.iter().map(move |keeps| (point, mode, *keeps))
        })
        .collect();
    // One alone, to look at: `NTH="disk.sync 3 CrashBefore false"`.
    let only = std::env::var("NTH").ok();
    let all: Vec<_> = all
        .into_iter()
        .filter(|(point, mode, keeps)| {
            only.as_ref().is_none_or(|only| *only == format!("{} {} {mode:?} {keeps}", point.label, point.number))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let (failures, reached) = (Mutex::<Vec<String>>::default(), Mutex::<Vec<(String, String)>>::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some((point, mode, keeps)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trial(point, *mode, *keeps)));
                    match tried {
                        Ok(true) => reached.lock().unwrap().push((point.label.clone(), format!("{mode:?}"))),
                        Ok(false) => {}
                        Err(why) => {
                            let text = why.downcast_ref::<String>().cloned();
                            let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                            let says = format!("{point:?} {mode:?} keeps bus {keeps}: {}", text.unwrap_or_default());
                            failures.lock().unwrap().push(says);
                        }
                    }
                }
            });
        }
    });
    let (failures, reached) = (failures.into_inner().unwrap(), reached.into_inner().unwrap());
    eprintln!("{} calls, {} trials, {} of them reached their call", points.len(), all.len(), reached.len());
    assert!(failures.is_empty(), "{} of {} failed:\n{}", failures.len(), all.len(), failures.join("\n"));
    // Which call is the n-th of its kind depends on who is faster, and the last few are not made in every run. Each kind is made
    // in every run, and so it went wrong in every way.
    let kinds = |all: Vec<(String, String)>| all.into_iter().collect::<BTreeSet<_>>();
    let wanted = kinds(all.iter().map(|(point, mode, _)| (point.label.clone(), format!("{mode:?}"))).collect());
    let reached = kinds(reached);
    assert!(wanted == reached, "not reached: {:?}", wanted.difference(&reached).collect::<Vec<_>>());
}

/// Calls of a run in which nothing goes wrong.
pub(crate) fn quiet(work: impl AsyncFn(&Process<'_>)) -> Vec<Point> {
    let runs: Vec<Points> = (0..3)
        .map(|_| {
            let points = Points::default();
            let ground = Ground::new(false);
            ground.process(&points, async |process| work(process).await).unwrap();
            points
        })
        .collect();
    points_of(&runs)
}

/// What must hold after any run.
pub(crate) fn in_order(ground: &Ground) {
    let wrong = ground.cluster.wrong();
    assert!(wrong.is_empty(), "{wrong:?}");
    let intents = ground.recorded(RecordKind::Intent);
    let once: BTreeSet<&String> = intents.iter().collect();
    assert_eq!(once.len(), intents.len(), "an act was begun twice: {intents:?}");
    for act in ground.cluster.acts() {
        assert!(once.contains(&act), "an act without an intent");
    }
}

/// Runs without faults, after whatever happened: they do the rest, and everything is in order.
pub(crate) fn clean_runs(ground: &Ground, before: &Lists, left_open: bool) {
    // Where queues outlive the process, the first run may find decisions of the one that crashed in them. These are carried out
    // and counted for the scan that they come from.
    let tries = if ground.bus.is_some() { 2 } else { 1 };
    let mut number = 0;
    let (dead, revisits) = loop {
        number += 1;
        let (ran, dead, revisits) = ground
            .process(&Points::default(), async |process| {
                let ran = process.run().await;
                let dead = process.bus.dead(100).await.unwrap();
                (ran, dead, process.scans.due(now_ms() + (SHORT + 1) * MINUTE, 100).await.unwrap())
            })
            .unwrap();
        let ran = ran.unwrap_or_else(|e| panic!("run {number} of those that follow fails: {e}"));
        if ran.judgement() == Judgement::Done {
            break (dead, revisits);
        }
        assert!(number < tries, "run {number} of those that follow: {ran:?}");
    };
    in_order(ground);
    let (intents, outcomes) = (ground.recorded(RecordKind::Intent), ground.recorded(RecordKind::Outcome));
    for intent in &intents {
        let count = outcomes.iter().filter(|outcome| *outcome == intent).count();
        assert_eq!(count, 1, "{count} outcomes of {intent}");
    }
    accounted_for(ground, before);
    assert!(dead.iter().all(|letter| letter.why.contains("the test says so")), "{dead:?}");
    let loaded = ground.cluster.loaded();
    assert!(left_open || loaded.is_empty(), "left open: {loaded:?}");
    if !left_open {
        let mut gone = lost(before, &ground.cluster.filled());
        // Waiting for a leader that fell silent can take so long that the second visit is due already.
        let passed = ground.clock.lock().unwrap().duration_since(*BEGUN);
        let visited = passed.as_millis() >= u128::try_from(SHORT * MINUTE).unwrap() && gone.remove(CLOCK).is_some();
        assert_eq!(gone, all_due());
        let coming = revisits.iter().any(|revisit| revisit.subject == CLOCK);
        assert!(visited || coming || ground.bus.is_none(), "{revisits:?}");
    }
    // The second visit, once it is due.
    let advance = Duration::from_millis(u64::try_from((SHORT + 1) * MINUTE).unwrap());
    *ground.clock.lock().unwrap() += advance;
    let ran = ground.process(&Points::default(), async |process| process.run().await).unwrap().unwrap();
    assert_eq!(ran.judgement(), Judgement::Done, "the second visit: {ran:?}");
    in_order(ground);
    let gone = lost(before, &ground.cluster.filled());
    assert!(left_open || gone.contains_key(CLOCK), "the last ledger of {CLOCK} was to go: {gone:?}");
    let kept = ["a/young", "b/held", "a/forever"].map(|name| format!("persistent://acme/{name}"));
    assert!(kept.iter().all(|name| !gone.contains_key(name)), "{gone:?}");
}
