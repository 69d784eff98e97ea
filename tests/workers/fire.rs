//! A cleanup during which workers, servers and connections go away again and again. What must hold whatever happens: nothing is freed that
//! was not due, no broker is called before the record says so, no act is begun twice by one executor nor counted twice, and in the end
//! everything that was due is gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::dice::Dice;
use trimtab_tests::nats::NatsRig;
use trimtab_tests::proxy::Proxy;
use trimtab_tests::roles::{Crew, Name, PATIENCE, Role, until};
use trimtab_tests::trimtab::run;
use trimtab_tests::zk_proxy::ZkProxy;
use wiremock::{Request, Respond, ResponseTemplate};

use crate::crew::{settings, still_due, to_keep};
use crate::ground::{Broker, Ground, LEDGERS, Stage, Trims};

const EXECUTORS: [Name; 2] = [(Role::Executor, "a"), (Role::Executor, "b")];
const SCANNERS: [Name; 2] = [(Role::Scanner, "a"), (Role::Scanner, "b")];
const DECIDERS: [Name; 2] = [(Role::Decider, "a"), (Role::Decider, "b")];
const AUDIT: Name = (Role::Audit, "one");

/// So that the work lasts as long as the test needs it: ten acts a second, of three calls each.
const CONFIG: &str = "[limits]\nmetadata_rate = 0.0\nbroker_rate = 30.0\n[caps]\nmax_acts = 100000\n";

/// How often something is done: in CI, or as often as the environment says.
fn rounds(name: &str, in_ci: usize) -> usize {
    std::env::var(name).map_or(in_ci, |text| text.parse().unwrap())
}

/// Trims what was recorded before; takes down what was not.
struct Witness {
    trims: Trims,
    records: Vec<PathBuf>,
    unrecorded: Arc<Mutex<Vec<String>>>,
}

impl Respond for Witness {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let name = request.url.path().strip_prefix("/admin/v2/persistent/").unwrap().strip_suffix("/trim").unwrap();
        let subject = format!("\"persistent://{name}\"");
        let recorded =
            |file: &PathBuf| end_of(file).lines().any(|line| line.contains("\"intent\"") && line.contains(&subject));
        if !self.records.iter().any(recorded) {
            self.unrecorded.lock().unwrap().push(subject);
        }
        self.trims.respond(request)
    }
}

/// The end of a record: more than was written since any act that is under way was begun.
fn end_of(file: &Path) -> String {
    let Ok(mut file) = File::open(file) else { return String::new() };
    let length = file.metadata().unwrap().len();
    file.seek(SeekFrom::Start(length.saturating_sub(1 << 20))).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Fire<'a> {
    ground: &'a Ground,
    broker: Broker<'a>,
    crew: Crew,
    nats: String,
    topics: usize,
    unrecorded: Arc<Mutex<Vec<String>>>,
    begun: Instant,
}

impl<'a> Fire<'a> {
    /// Two of each role, and two requests for the same at once. The first acts have begun.
    fn lit(ground: &'a Ground, stage: &'a Stage, topics: usize, nats: &str, zk: &str, config: &str) -> Fire<'a> {
        let config = ground.file("config.toml", &format!("{CONFIG}{config}"));
        let broker = stage.bare();
        let crew = Crew::new(&ground.state("crew"), settings(nats, &format!("zk://{zk}"), &broker, &config));
        let record = |(role, name): Name| crew.folder((role, name)).join(format!("audit/executor-{name}.jsonl"));
        let unrecorded = Arc::default();
        let witness = Witness {
            trims: Trims::of(ground),
            records: EXECUTORS.map(record).to_vec(),
            unrecorded: Arc::clone(&unrecorded),
        };
        broker.on("POST", "/trim$", witness);
        let nobody = serde_json::json!({ "publishers": [], "subscriptions": { "s": { "consumers": [] } } });
        broker.on("GET", "/stats$", ResponseTemplate::new(200).set_body_json(nobody));
        broker.on("PUT", "/unload$", ResponseTemplate::new(204));
        let mut fire = Fire { ground, broker, crew, nats: nats.to_owned(), topics, unrecorded, begun: Instant::now() };
        for worker in Fire::everybody() {
            fire.crew.start(worker);
        }
        fire.crew.scan();
        fire.crew.scan();
        until("acts have begun", || fire.open() > 0);
        fire
    }

    fn everybody() -> Vec<Name> {
        [&[AUDIT], &DECIDERS[..], &EXECUTORS, &SCANNERS].concat()
    }

    /// How many acts were begun and have not ended.
    fn open(&self) -> usize {
        self.crew.open(&EXECUTORS).len()
    }

    /// Lets the work come to its end, asking for further scans as a timer would, and checks everything.
    fn burnt_out(mut self, what: &str) {
        // As long as it goes on it may take its time; a scan makes executors wait.
        let (mut left, mut moved, mut asked) = (usize::MAX, Instant::now(), Instant::now());
        while left > 0 {
            let due = still_due(self.ground, self.topics);
            if due < left {
                (left, moved, asked) = (due, Instant::now(), Instant::now());
            }
            assert!(moved.elapsed() < PATIENCE, "{left} topics are still due, and nothing goes on");
            if asked.elapsed() > Duration::from_secs(15) {
                asked = Instant::now();
                self.crew.scan();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        until("every act has its outcome", || self.open() == 0);
        for worker in Fire::everybody() {
            assert!(self.crew.worker(worker).stop().unwrap().success(), "{worker:?}");
        }
        assert_eq!(still_due(self.ground, self.topics), 0);
        assert_eq!(*self.unrecorded.lock().unwrap(), Vec::<String>::new(), "called before it was recorded");
        let due: BTreeSet<String> = (0..self.topics)
            .filter(|number| to_keep(*number) < LEDGERS)
            .map(|number| self.ground.topic(number).replacen("://", "/", 1))
            .collect();
        for request in self.broker.requests() {
            let topic = request.url.path().strip_prefix("/admin/v2/").unwrap().rsplit_once('/').unwrap().0.to_owned();
            assert!(due.contains(&topic), "{} was called about", request.url);
        }
        for executor in EXECUTORS {
            self.crew.begun_once(&[executor]);
            let _ = run(&self.crew.folder(executor), &["audit", "verify"]).exits(0);
        }
        let freed = self.crew.freed_once(&EXECUTORS);
        // What somebody else saw freed was still freed by one of the acts: the record has every ledger.
        assert_eq!(freed, due.len() * (LEDGERS - 1), "ledgers that outcomes say are freed");
        let dead = run(self.ground.folder.path(), &["dead", "list", "--nats", &self.nats, "--output", "json"]).exits(0);
        assert!(!dead.out.contains("decision"), "{dead:?}");
        let acts = self.crew.acts("intent", &EXECUTORS).len();
        println!("{what}: {} topics, {acts} acts, {} s", due.len(), self.begun.elapsed().as_secs());
    }
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn workers_are_killed() {
    let rounds = rounds("TRIMTAB_KILL_ROUNDS", 50);
    let (nats, topics) = (NatsRig::single().unwrap(), 280 + rounds * 4);
    let (ground, stage, mut dice) = (Ground::new("fire", topics), Stage::new(), Dice::new());
    let mut fire = Fire::lit(&ground, &stage, topics, &nats.url(), &ground.rig.zk(), "");
    let (mut interrupted, mut killed) = (0, std::collections::BTreeMap::<&str, usize>::new());
    // One at least meets an act, whatever the dice say: while a scan goes on that was killed, too, executors wait.
    until("a kill meets an act", || {
        fire.crew.worker(EXECUTORS[0]).kill9().unwrap();
        interrupted += fire.open();
        fire.crew.start(EXECUTORS[0]);
        interrupted > 0
    });
    for round in 0..rounds {
        dice.sleep(500);
        let all = Fire::everybody();
        // Every second time one that acts.
        let victim = match dice.below(2) {
            0 => EXECUTORS[dice.below(2) as usize],
            _ => all[dice.below(all.len() as u64) as usize],
        };
        fire.crew.worker(victim).kill9().unwrap();
        *killed.entry(victim.0.name()).or_default() += 1;
        // The records are read for that, and grow.
        if round % (rounds / 50).max(1) == 0 {
            interrupted += fire.open();
        }
        fire.crew.start(victim);
        if round % 50 == 45 {
            fire.crew.scan();
        }
    }
    println!("{rounds} kills {killed:?}; {interrupted} acts were under way at {} of them", rounds.min(50));
    fire.burnt_out("workers killed");
}

/// A copy of a folder and everything in it.
fn copy(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).ok();
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "copying {}", from.display());
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn the_nats_server_is_killed_and_loses_what_came_last() {
    let rounds = rounds("TRIMTAB_SERVER_ROUNDS", 10);
    let (mut nats, topics) = (NatsRig::single().unwrap(), 200 + rounds * 16);
    let (ground, stage, mut dice) = (Ground::new("fire", topics), Stage::new(), Dice::new());
    let url = nats.url();
    let fire = Fire::lit(&ground, &stage, topics, &url, &ground.rig.zk(), "");
    let (store, kept) = (nats.store(0), nats.folder().join("kept"));
    let mut cut_back = 0;
    for round in 0..rounds {
        dice.sleep(1500);
        nats.kill9(0).unwrap();
        match round % 3 {
            0 => copy(&store, &kept),
            2 => {
                copy(&kept, &store);
                cut_back += 1;
            }
            _ => {}
        }
        nats.start(0).unwrap();
    }
    println!("{rounds} kills of the server, {cut_back} with its store put back to an earlier kill's");
    fire.burnt_out("server killed");
}

/// A server whose disk is full ends JetStream until it is started again; who restarts it while there is no room gets no further.
#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn the_disk_of_the_nats_server_is_full() {
    const ROUNDS: usize = 2;
    let (mut nats, topics) = (NatsRig::builder().disk(48).start().unwrap(), 200);
    let (ground, stage, mut dice) = (Ground::new("fire", topics), Stage::new(), Dice::new());
    let url = nats.url();
    let fire = Fire::lit(&ground, &stage, topics, &url, &ground.rig.zk(), "");
    let filler = nats.disk().unwrap().join("filler");
    for _ in 0..ROUNDS {
        dice.sleep(2000);
        let full = fill(&filler);
        let begun = fire.crew.acts("intent", &EXECUTORS).len();
        // Everybody goes on trying for longer than a lease lasts, or ends what it has begun.
        std::thread::sleep(Duration::from_secs(8));
        let meanwhile = fire.crew.acts("intent", &EXECUTORS).len() - begun;
        println!("full after {} KiB more; {meanwhile} acts were begun in the next 8 s", full / 1024);
        std::fs::remove_file(&filler).unwrap();
        nats.restart(0).unwrap();
    }
    fire.burnt_out("a full disk");
}

/// Writes to a file until there is no room for one byte more; how many bytes that were.
fn fill(file: &Path) -> u64 {
    let mut file = File::create(file).unwrap();
    let (mut written, mut size) = (0, 1 << 20);
    while size > 0 {
        match file.write(&vec![0; size]) {
            Ok(count) => written += count as u64,
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::StorageFull, "{e}");
                size /= 2;
            }
        }
    }
    written
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn a_cluster_loses_its_leaders() {
    const ROUNDS: usize = 4;
    let (mut nats, topics) = (NatsRig::builder().cluster().start().unwrap(), 240);
    let (ground, stage, mut dice) = (Ground::new("fire", topics), Stage::new(), Dice::new());
    let url = nats.url();
    let fire = Fire::lit(&ground, &stage, topics, &url, &ground.rig.zk(), "[nats]\nreplicas = 3\n");
    let leader = |url: &str, stream: &str| -> Option<usize> {
        let answer: Value = tokio::runtime::Runtime::new().unwrap().block_on(async {
            let client = async_nats::connect(url.split(',').collect::<Vec<_>>()).await.ok()?;
            let answer = client.request(format!("$JS.API.STREAM.INFO.{stream}"), "".into()).await.ok()?;
            serde_json::from_slice(&answer.payload).ok()
        })?;
        answer["cluster"]["leader"].as_str()?.strip_prefix("node")?.parse().ok()
    };
    for round in 0..ROUNDS {
        dice.sleep(1000);
        let stream = ["TT_DEC", "KV_tt_scans"][round % 2];
        let mut led = None;
        until("the stream has a leader", || {
            led = leader(&url, stream);
            led.is_some()
        });
        let led = led.unwrap();
        nats.kill9(led).unwrap();
        until("another leads", || leader(&url, stream).is_some_and(|now| now != led));
        dice.sleep(2000);
        nats.start(led).unwrap();
    }
    fire.burnt_out("cluster without its leader");
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn networks_stall_and_sessions_end() {
    const ROUNDS: usize = 3;
    let (nats, topics) = (NatsRig::single().unwrap(), 320);
    let (ground, stage) = (Ground::new("fire", topics), Stage::new());
    let to_nats = Proxy::start(nats.url().strip_prefix("nats://").unwrap(), || |_: &[u8]| {}).unwrap();
    let to_zk = ZkProxy::start(&ground.rig.zk()).unwrap();
    let url = format!("nats://{}", to_nats.address());
    let fire = Fire::lit(&ground, &stage, topics, &url, to_zk.address(), "");
    let stall = |proxy: &Proxy, seconds| {
        proxy.stall();
        std::thread::sleep(Duration::from_secs(seconds));
        proxy.resume();
        std::thread::sleep(Duration::from_millis(500));
    };
    for _ in 0..ROUNDS {
        stall(&to_nats, 3);
        stall(to_zk.proxy(), 3);
        // Every session ends at once, and not only when its time is up.
        to_zk.record().bury(true);
        to_zk.proxy().drop_connections();
        std::thread::sleep(Duration::from_millis(500));
        to_zk.record().bury(false);
    }
    fire.burnt_out("networks that stall");
}
