//! A real cluster with every kind of ledger in it, on which brokers have died between two writes: exactly the orphans go, one that
//! went comes back, and everybody who owns a ledger still gets out of it what is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::http;
use trimtab_tests::java::JavaClient;
use trimtab_tests::mess::Mess;
use trimtab_tests::pulsar::{Part, PulsarRig};
use trimtab_tests::trimtab::{Ended, run};
use trimtab_tests::zk_proxy::{Op, ZkProxy};

/// Seconds are enough here: the mess is months old, and what is younger is waited for.
const CONFIG: &str = r#"
[bookkeeper]
min_age = "1s"
grace = "1s"
gc_wait = "1h"
absent_topics = true
"#;

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

fn step(ground: &Ground, what: &str) {
    eprintln!("{:6.1} s  {what}", ground.began.elapsed().as_secs_f64());
}

impl Ground {
    fn trimtab(&self, args: &[&str]) -> Ended {
        let config = self.state.path().join("config.toml");
        std::fs::write(&config, CONFIG).unwrap();
        run(self.state.path(), &[args, &["--config", config.to_str().unwrap()]].concat())
    }

    /// One scan, with everything that comes of it: what it did by status, and what it wrote.
    fn sweep(&self) -> (BTreeMap<String, u64>, usize) {
        self.proxy.record().clear();
        let from = format!("zk://{}", self.proxy.address());
        let ended = self.trimtab(&["run", "--kind", "orphan", "--apply", "--from", &from, "--output", "json"]);
        assert!([0, 4].contains(&ended.code), "{ended:?}");
        let statuses = ended.json()["tally"]["statuses"].clone();
        (serde_json::from_value(statuses).unwrap(), self.proxy.record().writes().len())
    }

    /// All ledgers that BookKeeper has.
    fn ledgers(&mut self) -> BTreeSet<i64> {
        let told = self.client.run("dump /ledgers").unwrap();
        let paths = told.split(' ').filter_map(|node| node.split(':').next());
        let id = |path: &str| {
            let path = path.replace("%2F", "/");
            let (folders, last) = path.strip_prefix("/ledgers/")?.rsplit_once("/L")?;
            format!("{}{last}", folders.replace('/', "")).parse().ok()
        };
        paths.filter_map(id).collect()
    }

    fn listed(&mut self, topic: &str) -> Vec<i64> {
        self.client.listed(topic).unwrap().iter().map(|ledger| ledger.id).collect()
    }

    fn until(&mut self, what: &str, mut yes: impl FnMut(&mut Ground) -> bool) {
        let begun = Instant::now();
        while !yes(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "not {what} within a minute");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn rest(&self, method: &str, path: &str, json: Option<&str>) -> String {
        self.rig.rest(method, path, json).unwrap().ok().unwrap().body
    }
}

fn path_of(id: i64) -> String {
    trimtab_tests::formats::ledger_path(id)
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
    step(&ground, "broker");
    ground.rest("PUT", "namespaces/attic/torn", Some(r#"{"bundles":{"numBundles":1}}"#));
    let keep = r#"{"retentionTimeInMinutes":60,"retentionSizeInMB":-1}"#;
    ground.rest("POST", "namespaces/attic/torn/retention", Some(keep));
    ground.client.run_all(["sub attic/torn/made s", "produce attic/torn/made 5 100", "sub attic/torn/cut s"]).unwrap();
    ground.client.run("produce attic/torn/cut 25 100").unwrap();
    ground.owners.run_all(["txn-begin x", "txn-produce x attic/torn/tx 3"]).unwrap();
    step(&ground, "a transaction has begun");
    // It dies after a full ledger's successor was made, and before the list names it.
    let before = ground.ledgers();
    ground.broker.record().hold(Op::SetData, "/managed-ledgers/attic/torn/persistent/made");
    ground.client.run("bg x produce attic/torn/made 12 100").unwrap();
    ground.until("held back", |g| g.broker.record().holds());
    let made: Vec<i64> = ground.ledgers().difference(&before).copied().collect();
    assert_eq!(made.len(), 1, "{made:?}");
    ground.rig.kill9(Part::Broker).unwrap();
    ground.rig.start(Part::Broker).unwrap();
    step(&ground, "a broker died after it made a ledger");
    // It dies after it took read ledgers off the list, and before it deletes them.
    ground.until("a broker is back", |g| g.client.run("consume attic/torn/cut s 25").is_ok());
    let listed = ground.listed("attic/torn/persistent/cut");
    ground.broker.record().hold(Op::Delete, &path_of(listed[0]));
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
    assert!(!cut.is_empty(), "{listed:?} {left:?}");
    ground.rig.kill9(Part::Broker).unwrap();
    ground.rig.start(Part::Broker).unwrap();
    // Both go on with the broker that came.
    let _ = ground.client.run("join");
    let now = ground.ledgers();
    let cut = cut.intersection(&now).copied().collect();
    assert!(now.contains(&made[0]) && !ground.listed("attic/torn/persistent/made").contains(&made[0]));
    step(&ground, "a broker died before it deleted ledgers");
    (ground, made[0], cut)
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn exactly_the_orphans_go_and_every_owner_goes_on() {
    let began = Instant::now();
    let builder = PulsarRig::builder().only(&[Part::ZooKeeper, Part::Bookie]);
    let mess = Mess::start_with(builder.setting("retentionCheckIntervalInSeconds", "3600")).unwrap();
    let ledgers = mess.ledgers.clone();
    eprintln!("{:6.1} s  the mess", began.elapsed().as_secs_f64());
    let (mut ground, made, cut) = torn(mess);
    assert!(!cut.is_empty());

    // Owners at work: a transaction in the middle, messages that are due later.
    ground.client.run_all(["sub attic/torn/tx s", "sub attic/torn/soon s"]).unwrap();
    ground.client.run_all(["produce attic/torn/soon 30 100 delay=30000", "peek attic/torn/soon s"]).unwrap();
    // The ceiling: ids above the highest that is named may be in creation.
    ground.client.run("produce attic/torn/after 1 10").unwrap();
    step(&ground, "owners at work");

    let before = ground.ledgers();
    let first = ground.sweep();
    assert_eq!(first, (BTreeMap::new(), 0), "the first scan only looks");
    assert_eq!(ground.ledgers().difference(&before).count(), 0);
    step(&ground, "first scan");

    a_snapshot_says_the_same(&ground);

    // One goes, and comes back while the bookies have not collected it: its bookie stands still meanwhile.
    std::thread::sleep(Duration::from_millis(1500));
    let one = ledgers.orphans[1];
    let (from, plan) = (format!("zk://{}", ground.proxy.address()), ground.state.path().join("plan.json"));
    let plan = plan.to_str().unwrap();
    let topic = "persistent://attic/bare/never-was";
    let planned = ["plan", "--kind", "orphan", "--from", &from, "--topic", topic, "-o", plan, "--output", "json"];
    let planned = ground.trimtab(&planned);
    assert!([0, 4].contains(&planned.code), "{planned:?}");
    let planned = planned.json();
    let items: Vec<&Value> =
        planned["items"].as_array().unwrap().iter().filter(|i| i["decision"].is_object()).collect();
    assert_eq!(items.len(), 1, "{planned}");
    assert_eq!(items[0]["ledgers"], serde_json::json!([one]));
    assert_eq!(items[0]["decision"]["orphan"]["collected_within_s"], 3600);
    let (value, decision) = (ground.client.run(&format!("get {}", path_of(one))).unwrap(), &items[0]["decision"]["id"]);
    ground.rig.process(Part::Bookie).unwrap().freeze().unwrap();
    let applied = ground.trimtab(&["apply", plan, "--from", &from]).exits(0);
    assert!(applied.out.contains("trimtab undo"), "{applied:?}");
    assert_eq!(ground.client.run(&format!("stat {}", path_of(one))).unwrap(), "none");
    let undo = ["undo", decision.as_str().unwrap(), "--by", "test", "--from", &from];
    let undone = ground.trimtab(&undo).exits(0);
    assert!(undone.out.contains("Taken back"), "{undone:?}");
    assert_eq!(ground.client.run(&format!("get {}", path_of(one))).unwrap(), value);
    // A second one finds it there.
    assert!(ground.trimtab(&undo).exits(4).out.contains("exists"));
    ground.rig.process(Part::Bookie).unwrap().thaw().unwrap();
    assert_eq!(ground.client.run(&format!("has-ledger {one}")).unwrap(), "yes");
    step(&ground, "one went and came back, readable");

    // Everything else that is nobody's goes, in transactions, and nothing besides.
    let values: BTreeMap<i64, String> =
        cut.iter().map(|id| (*id, ground.client.run(&format!("get {}", path_of(*id))).unwrap())).collect();
    let before = ground.ledgers();
    let (statuses, writes) = ground.sweep();
    let after = ground.ledgers();
    let gone: BTreeSet<i64> = before.difference(&after).copied().collect();
    let mut expected: BTreeSet<i64> = ledgers.orphans.iter().copied().chain(cut.iter().copied()).collect();
    expected.retain(|id| before.contains(id) && *id != one);
    assert_eq!(gone, expected, "{statuses:?}");
    assert_eq!(statuses, BTreeMap::from([("done".to_owned(), gone.len() as u64)]));
    assert_eq!(writes, gone.len(), "one transaction for each, and nothing else is written");
    for kept in ledgers.open.iter().chain(&ledgers.young).chain(&ledgers.foreign).chain([&one, &made]) {
        assert!(after.contains(kept), "{kept}");
    }
    step(&ground, "the orphans went");

    // Bookies drop the data: brought back by hand, nothing can be read of it.
    let lost = *cut.iter().next().unwrap();
    let (put, look, rm) = (
        format!("put {} {}", path_of(lost), trimtab_tests::java::word(&values[&lost])),
        format!("has-ledger {lost}"),
        format!("rm {}", path_of(lost)),
    );
    ground.until("collected", |g| {
        g.client.run(&put).unwrap();
        let there = g.client.run(&look).is_ok_and(|there| there == "yes");
        g.client.run(&rm).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        !there
    });
    step(&ground, "the bookie collected them");

    owners_go_on(&mut ground);

    // What nobody could tell before: the ledger of the writer that died is recovered. What came back is seen anew.
    ground.owners.run(&format!("recover {made}")).unwrap();
    let before = ground.ledgers();
    let plan = ["plan", "--kind", "orphan", "--explain", "--from", &from];
    let begun = Instant::now();
    for tick in 0.. {
        // Ages count from the newest time in the metadata: where nobody writes anything, nothing grows old.
        ground.client.run(&format!("sub attic/torn/tick-{tick} s")).unwrap();
        ground.sweep();
        let gone: BTreeSet<i64> = before.difference(&ground.ledgers()).copied().collect();
        if gone.is_superset(&BTreeSet::from([one, made])) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(40), "{gone:?} of {one}, {made}: {}", ground.trimtab(&plan).out);
        std::thread::sleep(Duration::from_millis(1500));
    }
    audit_is_whole(ground.state.path());
    step(&ground, "done");
}

/// A file that trimtab took is planned like the cluster.
fn a_snapshot_says_the_same(ground: &Ground) {
    let (from, file) = (format!("zk://{}", ground.proxy.address()), ground.state.path().join("ledgers.jsonl.gz"));
    let file = file.to_str().unwrap();
    ground.proxy.record().clear();
    let _ = ground.trimtab(&["snapshot", "--kind", "orphan", "--from", &from, "-o", file]).exits(0);
    assert_eq!(ground.proxy.record().writes().len(), 0);
    let planned = |source: &[&str]| {
        let plan = ["plan", "--kind", "orphan", "--explain", "--output", "json"];
        let ended = ground.trimtab(&[&plan, source].concat());
        assert!([0, 4].contains(&ended.code), "{ended:?}");
        let plan = ended.json();
        assert_eq!(plan["problems"], Value::Null, "{source:?}");
        let items = plan["items"].as_array().unwrap().iter();
        items.map(|item| item["subject"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let live = planned(&["--from", &from]);
    assert_eq!(planned(&["--snapshot", file]), live);
    assert!(live.len() > 10, "{live:?}");
    step(ground, "a snapshot says the same");
}

/// Everybody who owns a ledger gets out of it what is in it.
fn owners_go_on(ground: &mut Ground) {
    for version in [0, 1] {
        let schema = ground.rest("GET", &format!("schemas/attic/schema/t/schema/{version}"), None);
        assert!(schema.contains("number"), "{schema}");
    }
    assert_eq!(ground.owners.run("compacted attic/compact/t").unwrap(), "keys=5 messages=5");
    ground.owners.run_all(["txn-produce x attic/torn/tx 2", "txn-commit x"]).unwrap();
    assert_eq!(ground.client.run("drain attic/torn/tx s").unwrap().split(' ').count(), 5);
    step(ground, "schemas, compacted topic, transaction");
    // Acknowledged in part, and positions in cursor ledgers of a broker that was killed.
    let crashed = ground.client.run("drain attic/crash/t slow").unwrap();
    assert!(crashed.split(' ').count() >= 40, "{crashed}");
    let mut soon = BTreeSet::new();
    ground.until("all delayed messages delivered", |g| {
        let told = g.client.run("drain attic/torn/soon s wait=3000").unwrap();
        soon.extend(told.split_whitespace().map(str::to_owned));
        soon.len() == 30
    });
    step(ground, "a crashed topic and delayed messages");
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
