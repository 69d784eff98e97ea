//! A real cluster with every kind of ledger in it, on which brokers have died between two writes: exactly the orphans go, one that
//! went comes back, and everybody who owns a ledger still gets out of it what is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use trimtab_targets::bookkeeper::full_metadata;
use trimtab_targets::pulsar::cursor_references;
use trimtab_tests::formats::{ledger_of, ledger_path};
use trimtab_tests::http;
use trimtab_tests::java::{JavaClient, Shift, word};
use trimtab_tests::mess::Mess;
use trimtab_tests::pulsar::{Part, PulsarRig};
use trimtab_tests::trimtab::{Ended, run};
use trimtab_tests::zk_proxy::{Op, ZkProxy};

/// Seconds are enough here: the mess is months old, and what is younger is waited for. The rig's ZooKeeper has nobody else to serve.
const CONFIG: &str = r#"
[limits]
metadata_rate = 0.0
[bookkeeper]
min_age = "1s"
grace = "1s"
gc_wait = "1h"
absent_topics = true
"#;
/// Longer than both, so that what was there before is old enough after.
const RIPENS: Duration = Duration::from_millis(2100);
/// How long to wait for what is bound to come.
const PATIENCE: Duration = Duration::from_secs(180);
const PACKAGE: &str = "attic/tools/reverse.jar";

struct Ground {
    rig: PulsarRig,
    client: JavaClient,
    owners: JavaClient,
    /// Before ZooKeeper, for trimtab.
    proxy: ZkProxy,
    /// Before ZooKeeper, for the broker.
    broker: ZkProxy,
    state: tempfile::TempDir,
    began: Instant,
}

impl Ground {
    fn step(&self, what: &str) {
        eprintln!("{:6.1} s  {what}", self.began.elapsed().as_secs_f64());
    }

    fn from(&self) -> String {
        format!("zk://{}", self.proxy.address())
    }

    fn trimtab(&self, args: &[&str]) -> Ended {
        let config = self.state.path().join("config.toml");
        std::fs::write(&config, CONFIG).unwrap();
        run(self.state.path(), &[args, &["--config", config.to_str().unwrap()]].concat())
    }

    fn plan(&self, args: &[&str]) -> Value {
        let ended = self.trimtab(&[&["plan", "--kind", "orphan", "--output", "json"], args].concat());
        assert!([0, 4].contains(&ended.code), "{ended:?}");
        ended.json()
    }

    /// One scan, with everything that comes of it: what it did by status, and the ledgers that its transactions name.
    fn sweep(&self) -> (BTreeMap<String, u64>, BTreeSet<i64>) {
        self.proxy.record().clear();
        let ended = self.trimtab(&["run", "--kind", "orphan", "--apply", "--from", &self.from(), "--output", "json"]);
        assert!([0, 4].contains(&ended.code), "{ended:?}");
        let writes = self.proxy.record().writes();
        let ids: Vec<i64> = writes.iter().flat_map(|write| &write.paths).filter_map(|path| ledger_of(path)).collect();
        assert_eq!(ids.len(), writes.len(), "one ledger in each transaction, and nothing else is written: {writes:?}");
        let statuses = ended.json()["tally"]["statuses"].clone();
        (serde_json::from_value(statuses).unwrap(), ids.into_iter().collect())
    }

    /// All ledgers that BookKeeper has.
    fn ledgers(&mut self) -> BTreeSet<i64> {
        let told = self.client.run("dump /ledgers").unwrap();
        let paths = told.split(' ').filter_map(|node| node.split(':').next());
        paths.filter_map(|path| ledger_of(&path.replace("%2F", "/"))).collect()
    }

    fn listed(&mut self, topic: &str) -> Vec<i64> {
        self.client.listed(topic).unwrap().iter().map(|ledger| ledger.id).collect()
    }

    /// A node's value, unless there is no such node.
    fn value(&mut self, path: &str) -> Option<Vec<u8>> {
        self.client.run(&format!("get {}", word(path))).ok().map(|text| BASE64.decode(text).unwrap())
    }

    /// The topic whose data a ledger holds, by its marks.
    fn data_of(&mut self, id: i64) -> Option<String> {
        let marks: BTreeMap<String, Vec<u8>> =
            full_metadata(&self.value(&ledger_path(id))?).unwrap().custom.into_iter().collect();
        let topic = marks.get("pulsar/managed-ledger").filter(|_| !marks.contains_key("pulsar/cursor"));
        topic.map(|topic| String::from_utf8(topic.clone()).unwrap())
    }

    fn until(&mut self, what: &str, mut yes: impl FnMut(&mut Ground) -> bool) {
        let begun = Instant::now();
        while !yes(self) {
            assert!(begun.elapsed() < PATIENCE, "not {what} within {} s", PATIENCE.as_secs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reads and acknowledges until so many different messages came, all that there are, however many tries that takes.
    fn drained(&mut self, topic: &str, sub: &str, count: usize) {
        let mut seen = BTreeSet::new();
        self.until(&format!("all of {topic} read"), |g| {
            let told = g.client.run(&format!("drain {topic} {sub} wait=500")).unwrap_or_default();
            seen.extend(told.split_whitespace().map(str::to_owned));
            seen.len() >= count
        });
    }

    /// Time passes in the metadata, too: where nobody writes anything, nothing grows old.
    fn ripen(&mut self) {
        std::thread::sleep(RIPENS);
        let cursor = format!("tick-{}", self.began.elapsed().as_millis());
        self.client.run(&format!("sub attic/torn/after {cursor}")).unwrap();
    }

    fn rest(&self, method: &str, path: &str, json: Option<&str>) -> String {
        self.rig.rest(method, path, json).unwrap().ok().unwrap().body
    }

    /// The broker dies, and its session with it.
    fn broker_dies(&mut self) {
        self.broker.record().bury(true);
        self.rig.kill9(Part::Broker).unwrap();
        self.until("rid of the dead broker", |g| !g.client.run("ls /loadbalance/brokers").unwrap().contains(':'));
        self.broker.record().bury(false);
        self.rig.start(Part::Broker).unwrap();
    }
}

/// A cluster whose broker reaches ZooKeeper through a proxy of its own, with what dying brokers leave: a ledger that was made and never
/// listed, and ledgers that were taken off a list and never deleted.
fn torn(mess: Mess) -> (Ground, i64, BTreeSet<i64>) {
    let mut rig = mess.rig;
    let broker = ZkProxy::start(&rig.zk()).unwrap();
    for key in ["metadataStoreUrl", "configurationMetadataStoreUrl"] {
        rig.set(key, &format!("zk:{}", broker.address()));
    }
    rig.start(Part::Broker).unwrap();
    let (client, owners) = (rig.client().unwrap(), rig.owners().unwrap());
    let proxy = ZkProxy::start(&rig.zk()).unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut ground = Ground { rig, client, owners, proxy, broker, state, began: Instant::now() };
    ground.rest("PUT", "namespaces/attic/torn", Some(r#"{"bundles":{"numBundles":1}}"#));
    let keep = r#"{"retentionTimeInMinutes":60,"retentionSizeInMB":-1}"#;
    ground.rest("POST", "namespaces/attic/torn/retention", Some(keep));
    ground
        .client
        .run_all(["made", "cut", "tx"].map(|topic| format!("sub attic/torn/{topic} s")).each_ref().map(String::as_str))
        .unwrap();
    ground.client.run_all(["produce attic/torn/made 5 100", "produce attic/torn/cut 25 100"]).unwrap();
    ground.owners.run_all(["txn-begin x", "txn-produce x attic/torn/tx 0 3"]).unwrap();
    ground.owners.run(&format!("package-put {PACKAGE} 300000")).unwrap();
    ground.step("owners at work: a transaction in the middle, a package");

    // It dies after a full ledger's successor was made, and before the list names it.
    let topic = "attic/torn/persistent/made";
    let before = ground.ledgers();
    ground.broker.record().hold(Op::SetData, &format!("/managed-ledgers/{topic}"));
    ground.client.run("bg x produce attic/torn/made 12 100 from=5").unwrap();
    ground.until("held back", |g| g.broker.record().holds());
    ground.broker_dies();
    let new: Vec<i64> = ground.ledgers().difference(&before).copied().collect();
    // Whoever came after it has made another one, and listed it.
    let listed = ground.listed(topic);
    let made: Vec<i64> =
        new.into_iter().filter(|id| !listed.contains(id) && ground.data_of(*id).as_deref() == Some(topic)).collect();
    assert_eq!(made.len(), 1, "{made:?} {listed:?}");
    // What it had not confirmed comes again.
    if ground.client.run("join").is_err() {
        ground.owners.run("produce attic/torn/made 5 12").unwrap();
    }
    ground.step("a broker died after it made a ledger");

    // It dies after it took read ledgers off the list, and before it deletes them.
    ground.until("read", |g| {
        let read = g.client.run("drain attic/torn/cut s wait=500").is_ok();
        let stats = g.rig.rest("GET", "persistent/attic/torn/cut/stats", None).and_then(|reply| reply.ok()?.json());
        read && stats.is_ok_and(|stats| stats["subscriptions"]["s"]["msgBacklog"] == 0)
    });
    let listed = ground.listed("attic/torn/persistent/cut");
    ground.broker.record().hold(Op::Delete, &ledger_path(listed[0]));
    let free = r#"{"retentionTimeInMinutes":0,"retentionSizeInMB":0}"#;
    ground.rest("POST", "namespaces/attic/torn/retention", Some(free));
    let trim = format!("{}/admin/v2/persistent/attic/torn/cut/trim", ground.rig.web());
    ground.until("held back", |g| {
        // The broker hears of the policy in its own time; the call that meets it has no answer.
        let _ = http::once("POST", &trim, None, None, Duration::from_secs(1));
        g.broker.record().holds()
    });
    let left = ground.listed("attic/torn/persistent/cut");
    let cut: BTreeSet<i64> = listed.iter().copied().filter(|id| !left.contains(id)).collect();
    ground.broker_dies();
    let now = ground.ledgers();
    let cut: BTreeSet<i64> = cut.intersection(&now).copied().collect();
    assert!(cut.contains(&listed[0]), "{listed:?} {left:?}");
    assert!(now.contains(&made[0]));
    ground.step("a broker died before it deleted ledgers");
    (ground, made[0], cut)
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn exactly_the_orphans_go_and_every_owner_goes_on() {
    // Built before anything waits for it.
    trimtab_tests::trimtab::binary();
    let began = Instant::now();
    let builder = PulsarRig::builder().only(&[Part::ZooKeeper, Part::Bookie]);
    let builder = builder.setting("retentionCheckIntervalInSeconds", "3600");
    // Bookies collect when they are told to.
    let mess = Mess::start_with(builder.bookie_setting("gcWaitTime", "3600000")).unwrap();
    let ledgers = mess.ledgers.clone();
    eprintln!("{:6.1} s  the mess", began.elapsed().as_secs_f64());
    let (mut ground, made, cut) = torn(mess);

    ground.until("delayed messages in buckets", |g| {
        let cursor = g.value("/managed-ledgers/attic/delayed/persistent/t/s").unwrap();
        let there = !cursor_references(&cursor).unwrap().buckets.is_empty();
        there || g.client.run("peek attic/delayed/t s").is_err()
    });
    ground.step("delayed messages in buckets");
    // The ceiling: ids above the highest that is named may be in creation.
    ground.owners.run("produce attic/torn/after 0 1").unwrap();
    ground.step("something newer");

    ground.ripen();
    ground.step("time passed");
    assert_eq!(ground.sweep(), (BTreeMap::new(), BTreeSet::new()), "the first scan only looks");
    ground.ripen();
    ground.step("first scan");
    let made_by_hand = [&ledgers.orphans, &ledgers.open, &ledgers.young, &ledgers.foreign].into_iter().flatten();
    let nobodys: BTreeSet<i64> = made_by_hand.chain(&cut).chain([&made]).copied().collect();
    a_snapshot_says_the_same(&mut ground, &nobodys);

    let one = ledgers.orphans[1];
    one_goes_and_comes_back(&mut ground, one);

    // Everything else that is nobody's goes, in transactions, and nothing besides.
    let before = ground.ledgers();
    let values: BTreeMap<i64, Option<Vec<u8>>> = cut.iter().map(|id| (*id, ground.value(&ledger_path(*id)))).collect();
    let mut expected: BTreeSet<i64> = ledgers.orphans.iter().copied().chain(cut.iter().copied()).collect();
    expected.retain(|id| before.contains(id) && *id != one);
    let (statuses, swept) = ground.sweep();
    assert_eq!(swept, expected, "{statuses:?}");
    assert_eq!(statuses, BTreeMap::from([("done".to_owned(), swept.len() as u64)]));
    let after = ground.ledgers();
    assert_eq!(after.intersection(&swept).count(), 0);
    for kept in ledgers.open.iter().chain(&ledgers.young).chain(&ledgers.foreign).chain([&one, &made]) {
        assert!(after.contains(kept), "{kept}");
    }
    ground.step("the orphans went");

    // Bookies drop the data: brought back by hand, nothing can be read of it.
    let (lost, value) = values.into_iter().next().unwrap();
    collect(&mut ground);
    ground.client.run(&format!("put {} {}", ledger_path(lost), word(&BASE64.encode(value.unwrap())))).unwrap();
    assert_eq!(ground.client.run(&format!("has-ledger {lost}")).unwrap(), "no");
    ground.client.run(&format!("rm {}", ledger_path(lost))).unwrap();
    assert_eq!(ground.client.run(&format!("has-ledger {one}")).unwrap(), "yes");
    ground.step("the bookie collected them");

    // What came back is seen anew, and goes; so does, once it is recovered, the ledger of the writer that died.
    ground.owners.run(&format!("recover {made}")).unwrap();
    ground.ripen();
    assert_eq!(ground.sweep().1, BTreeSet::from([one]));
    ground.ripen();
    assert_eq!(ground.sweep().1, BTreeSet::from([made]));
    audit_is_whole(ground.state.path());
    ground.step("the last two went");

    owners_go_on(&mut ground);
}

/// The bookie compares its ledgers with the metadata, from beginning to end.
fn collect(ground: &mut Ground) {
    let url = format!("{}/api/v1/bookie/gc", ground.rig.bookie_http());
    http::request("PUT", &url, None, Some("{}")).unwrap().ok().unwrap();
    ground.until("collected", |_| {
        let state = http::request("GET", &url, None, None).unwrap().ok().unwrap();
        state.json().unwrap()["is_in_force_gc"] == "false"
    });
}

/// A plan for one owner's ledger is applied and taken back while the bookies have not collected it.
fn one_goes_and_comes_back(ground: &mut Ground, one: i64) {
    let (from, plan) = (ground.from(), ground.state.path().join("plan.json"));
    let plan = plan.to_str().unwrap();
    let planned = ground.plan(&["--from", &from, "--topic", "persistent://attic/bare/never-was", "-o", plan]);
    let items: Vec<&Value> =
        planned["items"].as_array().unwrap().iter().filter(|i| i["decision"].is_object()).collect();
    assert_eq!(items.len(), 1, "{planned}");
    assert_eq!(items[0]["ledgers"], serde_json::json!([one]));
    assert_eq!(items[0]["decision"]["orphan"]["collected_within_s"], 3600);
    let (value, decision) = (ground.value(&ledger_path(one)), items[0]["decision"]["id"].as_str().unwrap());
    let applied = ground.trimtab(&["apply", plan, "--from", &from]).exits(0);
    assert!(applied.out.contains("trimtab undo"), "{applied:?}");
    assert_eq!(ground.client.run(&format!("stat {}", ledger_path(one))).unwrap(), "none");
    let undo = ["undo", decision, "--by", "test", "--from", &from];
    let undone = ground.trimtab(&undo).exits(0);
    assert!(undone.out.contains("Taken back"), "{undone:?}");
    assert_eq!(ground.value(&ledger_path(one)), value);
    // A second one finds it there.
    assert!(ground.trimtab(&undo).exits(4).out.contains("exists"));
    // It is a ledger like any other again.
    collect(ground);
    assert_eq!(ground.client.run(&format!("has-ledger {one}")).unwrap(), "yes");
    // Old enough to be seen by the next scan.
    ground.ripen();
    ground.step("one went and came back, readable");
}

/// A file that trimtab took is planned like the cluster, and every kind of name is met in both.
fn a_snapshot_says_the_same(ground: &mut Ground, nobodys: &BTreeSet<i64>) {
    let (from, file) = (ground.from(), ground.state.path().join("ledgers.jsonl.gz"));
    let file = file.to_str().unwrap();
    let planned = |g: &Ground, source: [&str; 2]| {
        let plan = g.plan(&[&["--explain"], &source[..]].concat());
        if !plan["problems"].is_null() {
            return None;
        }
        let named = plan["survey"]["comparison"]["named"].as_object().unwrap();
        let kinds: Vec<&str> = named.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["compacted", "cursor", "delayed-bucket", "distributed-log", "schema"], "{source:?}");
        let id = |item: &Value| item["subject"].as_str().unwrap().strip_prefix("ledger/").unwrap().parse().unwrap();
        let ids: BTreeSet<i64> = plan["items"].as_array().unwrap().iter().map(id).collect();
        assert!(ids.is_superset(nobodys), "{source:?}: {ids:?} lacks some of {nobodys:?}");
        Some(ids)
    };
    // The broker is alive: what it makes in between is in one of them only, or keeps one from being complete.
    ground.until("the same", |g| {
        g.proxy.record().clear();
        let _ = g.trimtab(&["snapshot", "--kind", "orphan", "--from", &from, "-o", file]).exits(0);
        assert_eq!(g.proxy.record().writes().len(), 0);
        let (live, snapshot) = (planned(g, ["--from", &from]), planned(g, ["--snapshot", file]));
        live.is_some() && live == snapshot
    });
    ground.step("a snapshot says the same");
}

/// Everybody who owns a ledger gets out of it what is in it, through a broker that knows nothing yet.
fn owners_go_on(ground: &mut Ground) {
    // For it the delayed messages are due.
    ground.rig.stop(Part::Broker).unwrap();
    ground.rig.set_clock(Shift::days_ago(-2));
    ground.rig.start(Part::Broker).unwrap();
    ground.owners.run_all(["txn-produce x attic/torn/tx 3 2", "txn-commit x"]).unwrap();
    ground.drained("attic/torn/tx", "s", 5);
    ground.drained("attic/torn/made", "s", 17);
    ground.step("a transaction, and the topic of a broker that died");
    for version in [0, 1] {
        let schema = ground.rest("GET", &format!("schemas/attic/schema/t/schema/{version}"), None);
        assert!(schema.contains("number"), "{schema}");
    }
    assert_eq!(ground.owners.run("compacted attic/compact/t").unwrap(), "keys=5 messages=5");
    assert_eq!(ground.owners.run(&format!("package-get {PACKAGE}")).unwrap(), "300000 whole");
    ground.step("schemas, a compacted topic, a package");
    // Acknowledged in part, in a transaction; then positions in cursor ledgers of a broker that was killed long ago.
    ground.drained("attic/txn/t", "s", 15);
    ground.drained("attic/crash/t", "slow", 40);
    ground.drained("attic/delayed/t", "s", 30);
    ground.step("acknowledgements of a transaction, a topic that crashed, delayed messages");
}

/// The record is a chain, and each act has its intent with the bytes before it.
fn audit_is_whole(state: &Path) {
    let _ = run(state, &["audit", "verify"]).exits(0);
    let text = std::fs::read_to_string(state.join("audit/executor.jsonl")).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| records.iter().filter(|record| record["kind"] == kind).count();
    assert!(of("intent") > 0);
    assert_eq!((of("intent"), of("evidence")), (of("outcome"), of("outcome")));
    for record in records.iter().filter(|record| record["kind"] == "intent") {
        assert!(!record["body"]["evidence"]["metadata"].as_str().unwrap().is_empty(), "{record}");
    }
}
