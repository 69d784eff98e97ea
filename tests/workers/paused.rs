//! Scanners that are killed, or paused for longer than their leases, in the middle of shards, while another reads those and ends the scan.

use serde_json::Value;
use tokio::runtime::Runtime;
use trimtab_bus::{JetStream, NatsOptions, Store};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::roles::{Crew, Name, Role, until};
use trimtab_tests::zk_proxy::ZkProxy;

use crate::crew::{settings, still_due};
use crate::ground::{Ground, Stage, Trims};

/// A namespace of a thousand, and another.
const TOPICS: usize = 1_240;
const FIRST: Name = (Role::Scanner, "first");
const KILLED: Name = (Role::Scanner, "killed");
const SECOND: Name = (Role::Scanner, "second");
const EXECUTORS: [Name; 2] = [(Role::Executor, "a"), (Role::Executor, "b")];

/// What scanners agree on, as it is stored: value and revision.
struct Documents {
    runtime: Runtime,
    store: Box<dyn Store>,
}

impl Documents {
    fn of(nats: &NatsRig) -> Documents {
        let runtime = Runtime::new().unwrap();
        let options = NatsOptions { servers: nats.urls(), ..NatsOptions::default() };
        let store = runtime.block_on(JetStream::connect(options)).unwrap().store();
        Documents { runtime, store: Box::new(store) }
    }

    fn get(&self, key: &str) -> Option<(Value, u64)> {
        let document = self.runtime.block_on(self.store.get("scans", key)).unwrap()?;
        Some((serde_json::from_slice(&document.value).unwrap(), document.revision))
    }
}

fn fence(document: &Option<(Value, u64)>) -> u64 {
    document.as_ref().and_then(|(value, _)| value["scan"]["fence"].as_u64()).unwrap_or(0)
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn scanners_that_were_killed_or_paused_leave_their_shards_to_another() {
    let (nats, ground, stage) = (NatsRig::single().unwrap(), Ground::new("paused", TOPICS), Stage::new());
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let broker = stage.broker(Trims::of(&ground));
    let config = "[limits]\nmetadata_rate = 300.0\nbroker_rate = 0.0\nbroker_concurrency = 64\nacts_at_once = 16\n";
    let config = ground.file("config.toml", config);
    let from = format!("zk://{}", proxy.address());
    let mut crew = Crew::new(&ground.state("crew"), settings(&nats.url(), &from, &broker, &config));
    let documents = Documents::of(&nats);
    for scanner in [FIRST, KILLED] {
        crew.start(scanner);
        crew.runs(scanner, 1);
    }
    crew.start((Role::Decider, "one"));
    let scan = crew.scan();
    // Each of the two shards is being read, or waits for one of these.
    let inside = format!("{}/", ground.node(1000).rsplit_once('/').unwrap().0);
    let read =
        || proxy.record().requests().iter().filter(|r| r.paths.iter().any(|path| path.starts_with(&inside))).count();
    until("the second shard is being read", || read() > 20);
    crew.worker(FIRST).freeze().unwrap();
    crew.worker(KILLED).kill9().unwrap();
    let leader = documents.get("leader/pulsar");
    assert_eq!(leader.as_ref().map(|(leader, _)| leader["ended"].clone()), Some(false.into()), "{leader:?}");
    assert_eq!(documents.get(&format!("gate/{scan}")), None, "it ended before it was paused");
    crew.start(SECOND);
    for executor in EXECUTORS {
        crew.start_with(executor, &["--metadata-rate", "0"]);
    }

    // Another takes the shards once their leases have run out and the bus gives them up. Whatever was read of them before, and by whomever:
    // each counts once.
    let gate = format!("gate/{scan}");
    until("another has ended the scan", || documents.get(&gate).is_some());
    let proposed = documents.get(&gate).unwrap().0["proposed"]["acts"].as_u64();
    assert_eq!(proposed, Some(TOPICS as u64 / 8 * 6));
    assert!(fence(&documents.get(&gate)) > fence(&leader));
    // Executors are in the middle of what it led to. Now the first wakes up, in the middle of what it was at.
    until("acts have begun", || !crew.acts("outcome", &EXECUTORS).is_empty());
    until("the leader has ended", || documents.get("leader/pulsar").unwrap().0["ended"] == true);
    until("nothing is kept of its shards", || documents.get(&format!("progress/{scan}")).is_none());
    let before = [documents.get(&gate), documents.get("leader/pulsar")];
    assert!(still_due(&ground, TOPICS) > 0, "everything was done before it woke up");
    crew.worker(FIRST).thaw().unwrap();
    // By the lease of the shard that it reads, or by the scan's end: which it meets first is chance.
    let sees = || ["was lost", "does not count"].iter().any(|says| crew.log(FIRST).contains(says));
    until("it sees that its shard is another's", sees);
    until("everything that was due is gone", || still_due(&ground, TOPICS) == 0);
    assert_eq!([documents.get(&gate), documents.get("leader/pulsar")], before);
    crew.acted_once(&EXECUTORS);

    // Whichever of the two takes it: a later scan finds nothing that was missed, and both still work.
    let again = crew.scan_and_wait();
    assert_eq!((again["proposed"]["acts"].as_u64(), again["incomplete"].as_bool()), (Some(0), Some(false)), "{again}");
    for worker in [FIRST, SECOND, EXECUTORS[0], EXECUTORS[1]] {
        assert!(crew.worker(worker).stop().unwrap().success(), "{worker:?}");
    }
    crew.acted_once(&EXECUTORS);
}
