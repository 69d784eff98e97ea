//! Limits that all workers of a cluster keep together while they join, leave and die, measured at the servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trimtab_tests::nats::NatsRig;
use trimtab_tests::roles::{Crew, Name, Role, until};
use trimtab_tests::zk_proxy::ZkProxy;
use wiremock::{Request, Respond, ResponseTemplate};

use crate::crew::{settings, still_due};
use crate::ground::{Ground, Stage, Trims};

const TOPICS: usize = 240;
/// How long a call takes.
const TAKES: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

const DECIDER: Name = (Role::Decider, "one");
const SCANNER: Name = (Role::Scanner, "one");
const EXECUTORS: [Name; 3] = [(Role::Executor, "a"), (Role::Executor, "b"), (Role::Executor, "c")];

/// When calls came.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Instant>>>);

impl Calls {
    fn all(&self) -> Vec<Instant> {
        let mut all = self.0.lock().unwrap().clone();
        all.sort();
        all
    }

    /// The most that were under way at once: each takes at least so long, for whoever waits for its answer.
    fn most_at_once(&self) -> usize {
        let all = self.all();
        let under_way = |at: &Instant| all.iter().filter(|begun| **begun <= *at && *at < **begun + TAKES).count();
        all.iter().map(under_way).max().unwrap_or(0)
    }
}

/// Takes down when a call came, and answers it after a while.
struct Noted<R>(Calls, R);

impl<R: Respond> Respond for Noted<R> {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        self.0.0.lock().unwrap().push(Instant::now());
        self.1.respond(request).set_delay(TAKES)
    }
}

/// The longest that this process was not let run: as much may come late, all at once.
struct Pauses {
    longest: Arc<Mutex<Duration>>,
    over: Arc<AtomicBool>,
}

impl Pauses {
    fn watch() -> Pauses {
        let (longest, over) = (Arc::new(Mutex::new(Duration::ZERO)), Arc::new(AtomicBool::new(false)));
        let (note, stop) = (longest.clone(), over.clone());
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                let mut longest = note.lock().unwrap();
                *longest = (*longest).max(last.elapsed());
                last = Instant::now();
            }
        });
        Pauses { longest, over }
    }

    fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }
}

impl Drop for Pauses {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// The most of these within any window of this length.
fn peak(all: &[Instant], window: Duration) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (index, at) in all.iter().enumerate() {
        while all[first] + window <= *at {
            first += 1;
        }
        most = most.max(index + 1 - first);
    }
    most
}

/// Three executors: the second and the third join, the first is killed, the second leaves, while the work goes on. `used` is how much of
/// the limit some three seconds saw since a moment, counted where it is measured.
fn come_and_go(ground: &Ground, crew: &mut Crew, used: &dyn Fn(Instant) -> f64) {
    let [a, b, c] = EXECUTORS;
    for worker in [DECIDER, SCANNER, a] {
        crew.start(worker);
    }
    crew.runs(SCANNER, 1);
    crew.scan();
    let since = Instant::now();
    let full = |what: &str, since: Instant| until(&format!("the limit is used {what}"), || used(since) > 0.75);
    let acted = |crew: &Crew, worker: Name| crew.acts("outcome", &[worker]).len();
    full("by one executor", since);
    crew.start(b);
    until("the second acts", || acted(crew, b) > 0);
    crew.start(c);
    crew.runs(c, 1);
    full("by three", Instant::now());
    crew.worker(a).kill9().unwrap();
    let killed = Instant::now();
    until("the third acts", || acted(crew, c) > 0);
    assert!(still_due(ground, TOPICS) > 0, "the work was done before anything happened");
    full("by the two that are left", killed);
    assert!(crew.worker(b).stop().unwrap().success());
    // What the first had in hand is another's, once the bus gives it up; or the next scan finds it.
    crew.start(a);
    let mut asked = Instant::now();
    until("everything that was due is gone", || {
        if asked.elapsed() > Duration::from_secs(40) {
            crew.scan();
            asked = Instant::now();
        }
        still_due(ground, TOPICS) == 0
    });
    EXECUTORS.iter().for_each(|executor| crew.begun_once(&[*executor]));
    crew.freed_once(&EXECUTORS);
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn calls_to_a_broker_keep_one_limit_over_all_executors() {
    const RATE: f64 = 15.0;
    const AT_ONCE: usize = 2;
    let (nats, ground, stage) = (NatsRig::single().unwrap(), Ground::new("limits", TOPICS), Stage::new());
    let calls = Calls::default();
    let broker = stage.bare();
    let nobody = serde_json::json!({ "publishers": [], "subscriptions": { "s": { "consumers": [] } } });
    broker.on("POST", "/trim$", Noted(calls.clone(), Trims::of(&ground)));
    broker.on("GET", "/stats$", Noted(calls.clone(), ResponseTemplate::new(200).set_body_json(nobody)));
    broker.on("PUT", "/unload$", Noted(calls.clone(), ResponseTemplate::new(204)));
    let config = format!("[limits]\nmetadata_rate = 0.0\nbroker_rate = {RATE}\nbroker_concurrency = {AT_ONCE}\n");
    let config = ground.file("config.toml", &config);
    let mut crew = Crew::new(&ground.state("crew"), settings(&nats.url(), &ground.from(), &broker, &config));
    let pauses = Pauses::watch();
    let used = |since: Instant| {
        let all: Vec<Instant> = calls.all().into_iter().filter(|at| *at > since).collect();
        peak(&all, 3 * SECOND) as f64 / (3.0 * RATE)
    };
    come_and_go(&ground, &mut crew, &used);
    let (most, at_once) = (peak(&calls.all(), SECOND), calls.most_at_once());
    println!("calls: most in a second {most} of {RATE}, at once {at_once} of {AT_ONCE}, in all {}", calls.all().len());
    // Each member may have one call saved up; what this process did not take in time came all at once.
    let bound = RATE * (SECOND + pauses.longest()).as_secs_f64() + EXECUTORS.len() as f64 + 1.0;
    assert!(most as f64 <= bound, "{most} calls in a second, and at most {bound} may be");
    assert!(at_once <= AT_ONCE, "{at_once} calls at once");
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn metadata_operations_keep_one_limit_over_all_workers() {
    const RATE: f64 = 60.0;
    let (nats, ground, stage) = (NatsRig::single().unwrap(), Ground::new("limits", TOPICS), Stage::new());
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let begun = Instant::now();
    let broker = stage.broker(Trims::of(&ground));
    let config = format!("[limits]\nmetadata_rate = {RATE}\nbroker_rate = 0.0\nbroker_concurrency = 64\n");
    let config = ground.file("config.toml", &config);
    let from = format!("zk://{}", proxy.address());
    let mut crew = Crew::new(&ground.state("crew"), settings(&nats.url(), &from, &broker, &config));
    let pauses = Pauses::watch();
    let operations = || -> Vec<Instant> {
        let all = proxy.record().requests().into_iter().filter(|request| !request.op.housekeeping());
        all.flat_map(|request| std::iter::repeat_n(begun + request.at, usize::try_from(request.weight).unwrap()))
            .collect()
    };
    let used = |since: Instant| {
        let all: Vec<Instant> = operations().into_iter().filter(|at| *at > since).collect();
        peak(&all, 3 * SECOND) as f64 / (3.0 * RATE)
    };
    come_and_go(&ground, &mut crew, &used);
    let most = peak(&operations(), SECOND);
    println!("metadata: most in a second {most} of {RATE}, in all {}", operations().len());
    // A burst has a twentieth of a second's operations, and at least one for each member.
    let members = EXECUTORS.len() as f64 + 1.0;
    let bound = RATE * (1.05 + pauses.longest().as_secs_f64()) + 2.0 * members;
    assert!(most as f64 <= bound, "{most} operations in a second, and at most {bound} may be");
}
