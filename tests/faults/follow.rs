//! Following changes on a real ZooKeeper: what changes or falls due is looked at, and little else; what was missed is found.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use trimtab::clock::Clock;
use trimtab::config::Caps;
use trimtab::follow::{FollowState, Follower, FollowerParts};
use trimtab::metrics::Metrics;
use trimtab::triggers::Triggers;
use trimtab::worker::{self, LoopOptions};
use trimtab::workers::{Scanner, ScannerParts};
use trimtab_bus::{Bus, BusOptions, InProcess, MemoryStore, Role, Store};
use trimtab_events::{Body, ScanReport, Scope, Trigger};
use trimtab_policy::{Context, Policy, PolicyConfig, decide};
use trimtab_targets::pulsar::{PulsarInventory, Settings};
use trimtab_targets::{Connection, Inventory, Pace, Zk, ZkOptions};
use trimtab_tests::formats::Proto;
use trimtab_tests::now_ms;
use trimtab_tests::pulsar::Part;
use trimtab_tests::zk_proxy::{Op, ZkProxy};

use crate::ground::Ground;

const TARGET: &str = "pulsar";
const TOPICS: usize = 4_000;
/// Retention of the ground's topics.
const WEEK_MS: i64 = 7 * 24 * 3_600_000;
const INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn policy() -> Policy {
    Policy::new(PolicyConfig::default(), "test").unwrap()
}

/// What a scanner proposes: the ledgers that would go, by topic.
pub(crate) type Proposals = BTreeMap<String, Vec<i64>>;

#[derive(Default)]
struct Seen {
    proposals: Proposals,
    /// Topics each time one was proposed.
    all: Vec<String>,
    reports: Vec<ScanReport>,
}

/// A scanner, and whoever follows; in the place of the decider and the audit, the test's own notes.
pub(crate) struct Crew {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) store: Arc<MemoryStore>,
    inventory: Arc<dyn Inventory>,
    clock: Clock,
    interval: Duration,
    every: Duration,
    seen: Arc<Mutex<Seen>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// A reader that notices within seconds that a server is away, and gives its sessions up.
async fn reader(address: &str) -> Arc<dyn Inventory> {
    let connection = Connection::parse(&format!("zk://{address}")).unwrap();
    let options = ZkOptions { session_timeout: Duration::from_secs(4), ..ZkOptions::default() };
    let zk = Zk::connect(connection, options, Arc::new(Pace::new(0.0).unwrap())).await.unwrap();
    Arc::new(PulsarInventory::new(zk, Settings::default(), None))
}

impl Crew {
    pub(crate) fn new(
        inventory: Arc<dyn Inventory>,
        clock: Clock,
        caps: Caps,
        interval: Duration,
        every: Duration,
    ) -> Crew {
        let bus: Arc<dyn Bus> = Arc::new(InProcess::new(BusOptions::default()));
        let store = Arc::new(MemoryStore::default());
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let scanner = Scanner::new(ScannerParts {
            target: TARGET.to_owned(),
            cluster: TARGET.to_owned(),
            inventory: inventory.clone(),
            policy: policy(),
            caps,
            follow: Some(every),
            store: store.clone(),
            clock: clock.clone(),
            instance: "scanner".to_owned(),
            metrics: Arc::new(Metrics::new()),
        });
        let options = LoopOptions { at_once: 1, ..LoopOptions::default() };
        tasks.spawn(worker::run(Arc::new(scanner), bus.clone(), options, Arc::new(Metrics::new()), stop.clone()));
        for role in [Role::Decider, Role::Audit] {
            tasks.spawn(note(bus.clone(), role, seen.clone(), clock.clone()));
        }
        Crew { bus, store, inventory, clock, interval, every, seen, stop, tasks }
    }

    /// Starts to follow. Aborting the task is a sudden death.
    pub(crate) fn follow(&self, instance: &str) -> (JoinHandle<()>, FollowState) {
        let follower = Follower::new(FollowerParts {
            target: TARGET.to_owned(),
            inventory: self.inventory.clone(),
            triggers: self.triggers(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            instance: instance.to_owned(),
            interval: self.interval,
            every: self.every,
        });
        let state = follower.state();
        (tokio::spawn(follower.run(self.stop.clone())), state)
    }

    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
    }

    pub(crate) fn triggers(&self) -> Triggers {
        Triggers::new(self.bus.clone(), TARGET, self.clock.clone(), "test")
    }

    pub(crate) fn full_scans(&self) -> usize {
        self.seen.lock().unwrap().reports.iter().filter(|report| report.scope.is_all()).count()
    }

    pub(crate) fn proposals(&self) -> Proposals {
        self.seen.lock().unwrap().proposals.clone()
    }

    /// What came of all scans so far.
    pub(crate) fn reports(&self) -> Vec<ScanReport> {
        self.seen.lock().unwrap().reports.clone()
    }

    /// How often a topic was proposed.
    pub(crate) fn times(&self, topic: &str) -> usize {
        self.seen.lock().unwrap().all.iter().filter(|name| *name == topic).count()
    }

    /// Whether a topic is listed as falling due later.
    async fn listed(&self, local: &str) -> bool {
        let all = self.store.list("scans", "due/", None, 100).await.unwrap();
        let all = all.iter().map(|document| String::from_utf8_lossy(&document.value).into_owned());
        all.into_iter()
            .any(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap()["due"].to_string().contains(local))
    }
}

async fn note(bus: Arc<dyn Bus>, role: Role, seen: Arc<Mutex<Seen>>, clock: Clock) {
    while let Ok(delivery) = bus.take(role).await {
        let event = delivery.event.unwrap();
        {
            let mut seen = seen.lock().unwrap();
            match event.body().unwrap() {
                Body::LedgerPage(page) => {
                    for topic in page.candidates {
                        let context = Context { scan: page.scan, target: TARGET, now_ms: clock.now_ms() };
                        let ledgers = decide(&topic, &policy(), &context).ledgers;
                        seen.all.push(topic.subject.clone());
                        seen.proposals.insert(topic.subject, ledgers);
                    }
                }
                Body::ScanReport(report) => seen.reports.push(report),
                other => panic!("{other:?}"),
            }
        }
        delivery.settle.done().await.unwrap();
    }
}

pub(crate) async fn until(what: &str, mut yes: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(120), async {
        while !yes().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for too long: {what}"));
}

/// A list of the ledgers that a topic has, the closed ones of this closing time.
fn list(ids: &[i64], closed_ms: i64) -> Vec<u8> {
    let mut all = Proto::default();
    for (index, id) in ids.iter().enumerate() {
        let info = Proto::default().int(1, *id);
        let last = index + 1 == ids.len();
        let info = if last { info.int(4, 0) } else { info.int(2, 10).int(3, 1000).int(4, closed_ms) };
        all = all.bytes(1, &info.0);
    }
    all.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs ZooKeeper"]
async fn what_changes_or_falls_due_is_looked_at_and_little_else() {
    let mut ground = Ground::new("follow", TOPICS);
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let caps = Caps { max_share: 1.0, max_acts: 1_000_000, ..Caps::default() };
    let crew = Crew::new(reader(proxy.address()).await, Clock::system(), caps, INTERVAL, Duration::from_secs(86_400));
    let (follower, _) = crew.follow("first");
    until("the first full scan ends", async || crew.full_scans() == 1).await;
    let whole = proxy.record().operations();
    assert_eq!(proxy.record().counts()[&Op::AddWatch], 3, "{:?}", proxy.record().counts());
    let caught_up = async || crew.bus.depth(Role::Decider).await.unwrap() == 0;
    until("its candidates are noted", caught_up).await;
    assert_eq!(crew.proposals().len(), TOPICS / 8 * 6, "of each eight, six are due");
    // Of each eight the seventh is young.
    let young = |number: usize| number * 8 + 6;
    let write = |ground: &Ground, number: usize, closed_ms: i64| {
        ground.put(&ground.node(number), &list(&ground.ids(number), closed_ms));
    };

    // One of a thousand changes, as a roll-over changes a topic; all of them may be trimmed now, so each is read to the end.
    proxy.record().clear();
    let changed: Vec<usize> = (0..TOPICS / 1000).map(|namespace| young(namespace * 125)).collect();
    for number in &changed {
        write(&ground, *number, now_ms() - 2 * WEEK_MS);
    }
    until("they are proposed", async || {
        let proposals = crew.proposals();
        changed.iter().all(|number| proposals.contains_key(&ground.topic(*number)))
    })
    .await;
    assert_eq!(crew.full_scans(), 1);
    let followed = proxy.record().operations();
    println!(
        "BENCH follow: {followed} metadata operations after {} of {TOPICS} topics changed, a full scan takes {whole}: {:.2} %",
        changed.len(),
        followed as f64 * 100.0 / whole as f64
    );
    assert!(followed > 0 && followed * 100 <= whole, "{followed} of {whole}");

    // One falls due by time alone: the change that made it so is looked at and gives nothing.
    let later = young(1);
    let due_ms = now_ms() + 4_000;
    write(&ground, later, due_ms - WEEK_MS);
    let name = format!("t{later:05}");
    until("it is noted", async || crew.listed(&name).await).await;
    assert!(!crew.proposals().contains_key(&ground.topic(later)) || now_ms() > due_ms);
    until("it falls due", async || crew.proposals().contains_key(&ground.topic(later))).await;
    assert!(now_ms() > due_ms);

    // One that is gone is forgotten.
    let gone = young(2);
    write(&ground, gone, now_ms() + 3_600_000 - WEEK_MS);
    let name = format!("t{gone:05}");
    until("it is noted", async || crew.listed(&name).await).await;
    for path in [format!("{}/s", ground.node(gone)), ground.node(gone)] {
        ground.client.lock().unwrap().run(&format!("rm {path}")).unwrap();
    }
    until("it is forgotten", async || !crew.listed(&name).await).await;

    // A namespace's policies: all of its topics.
    let minute = br#"{"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1},
        "retention_policies":{"retentionTimeInMinutes":1,"retentionSizeInMB":-1}}"#;
    ground.put("/admin/policies/follow/n0003", minute);
    let in_it = (375..500).map(young);
    until("its young topics are proposed", async || {
        let proposals = crew.proposals();
        in_it.clone().all(|number| proposals.contains_key(&ground.topic(number)))
    })
    .await;
    assert_eq!(crew.full_scans(), 1, "none of this took a full scan");

    // While nobody can hear it, one changes. Only the full scan after that can know.
    let opened = || proxy.record().counts().get(&Op::AddWatch).copied().unwrap_or(0);
    let watches = opened();
    proxy.proxy().cut();
    write(&ground, young(3), now_ms() - 2 * WEEK_MS);
    proxy.proxy().resume();
    until("what was missed is found", async || crew.proposals().contains_key(&ground.topic(young(3)))).await;
    assert!(opened() >= watches + 3, "new watches on a new session");
    until("the catch-up ends", async || crew.full_scans() >= 2).await;

    // The same with a server that is stopped and started.
    let before = crew.full_scans();
    ground.rig.restart(Part::ZooKeeper).unwrap();
    until("it is read again", async || crew.full_scans() > before).await;
    ground.client = Arc::new(Mutex::new(ground.rig.client().unwrap()));
    write(&ground, young(4), now_ms() - 2 * WEEK_MS);
    until("changes are heard again", async || crew.proposals().contains_key(&ground.topic(young(4)))).await;

    // Whoever follows dies; what changes before another one follows is found by it.
    let before = crew.full_scans();
    follower.abort();
    let _ = follower.await;
    write(&ground, young(5), now_ms() - 2 * WEEK_MS);
    let (second, state) = crew.follow("second");
    // Not to wait for the end of its lease.
    crew.store.lose_lease("follow.pulsar");
    until("another one follows", async || crew.proposals().contains_key(&ground.topic(young(5)))).await;
    until("its full scan ends", async || crew.full_scans() > before).await;
    write(&ground, young(6), now_ms() - 2 * WEEK_MS);
    until("it hears changes", async || crew.proposals().contains_key(&ground.topic(young(6)))).await;

    // What a full scan finds in the end has been proposed before, with the same ledgers.
    let followed = crew.proposals();
    let before = crew.full_scans();
    crew.triggers().scan(Scope::default(), Trigger::Cli).await.unwrap();
    until("the last full scan ends", async || crew.full_scans() > before).await;
    until("its candidates are noted", caught_up).await;
    let new: Vec<_> = crew.proposals().into_iter().filter(|(name, ids)| followed.get(name) != Some(ids)).collect();
    assert!(new.is_empty(), "{new:?}");
    assert_eq!((state.check(), second.is_finished()), (Ok(()), false));
    crew.end().await;
}
