//! A ZooKeeper that is not there, hangs, goes away in the middle, forgets the session, or holds what nobody can read.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::trimtab::{Ended, begin, run};
use trimtab_tests::zk_proxy::{Op, ZkProxy};

use crate::ground::{Ground, Stage, Trims};

/// What matters of a plan: each item's verdict and ledgers, by subject, and the totals.
pub(crate) fn essence(plan: &Value) -> (BTreeMap<String, Value>, Value) {
    let items = plan["items"].as_array().unwrap().iter();
    let of = |item: &Value| serde_json::json!([item["verdict"], item["ledgers"], item["bytes"]]);
    (items.map(|item| (item["subject"].as_str().unwrap().to_owned(), of(item))).collect(), plan["totals"].clone())
}

fn plan(ground: &Ground, from: &str, more: &[&str]) -> Ended {
    let args = [&["plan", "--output", "json", "--from", from, "--metadata-rate", "0"][..], more].concat();
    run(ground.folder.path(), &args)
}

fn waits_until(what: &str, mut yes: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !yes() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "needs ZooKeeper"]
fn one_that_does_not_answer_is_an_error_that_names_it() {
    let ground = Ground::new("faults", 8);
    let begun = Instant::now();
    let ended = plan(&ground, "zk://127.0.0.1:1", &[]).exits(1);
    assert!(ended.err.contains("127.0.0.1:1") && ended.err.contains("no server answered"), "{ended:?}");

    // Connections are accepted, and nothing ever comes back.
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    proxy.proxy().stall();
    let ended = plan(&ground, &format!("zk://{}", proxy.address()), &[]).exits(1);
    assert!(ended.err.contains(proxy.address()), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());

    // There is one, but it is none of Pulsar's.
    let ended = plan(&ground, &format!("{}/nothing", ground.from()), &[]).exits(1);
    assert!(ended.err.contains("chroot"), "{ended:?}");
    let ended = plan(&ground, "zk://nonsense", &[]).exits(2);
    assert!(ended.err.contains("expected zk://"), "{ended:?}");
}

/// Scans the whole ground with a cap of no act at all; what the record says of the scan.
fn scanned(state: &Path, from: &str, rate: &str, during: impl FnOnce()) -> Value {
    let args = ["run", "--apply", "--from", from, "--metadata-rate", rate, "--max-acts", "0"];
    let running = begin(state, &args, &[]);
    during();
    let ended = running.wait().exits(3);
    assert!(ended.err.contains("max_acts"), "{ended:?}");
    let record = std::fs::read_to_string(state.join("audit/executor.jsonl")).unwrap();
    let lines: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["kind"] != "intent"), "{lines:#?}");
    let mut scans: Vec<Value> = lines.into_iter().filter(|line| line["kind"] == "scan").collect();
    assert_eq!(scans.len(), 1, "the record has the scan");
    scans.remove(0)["body"].clone()
}

/// What two scans of the same must agree in.
fn found(report: &Value) -> Value {
    let keys = ["complete", "topics", "bytes", "unknown", "verdicts", "proposed", "shards", "failed_shards"];
    keys.iter().map(|key| ((*key).to_owned(), report[*key].clone())).collect::<serde_json::Map<_, _>>().into()
}

#[test]
#[ignore = "needs ZooKeeper"]
fn a_scan_that_was_cut_off_finds_the_same() {
    let ground = Ground::new("faults", 4_000);
    let quiet = found(&scanned(&ground.state("quiet"), &ground.from(), "0", || {}));
    assert_eq!((quiet["complete"].as_bool(), quiet["topics"].as_u64()), (Some(true), Some(4_000)), "{quiet}");

    // Cut for two seconds, in the middle: the session lives on, the shard is read again.
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let from = format!("zk://{}", proxy.address());
    let reads = || proxy.record().counts().get(&Op::GetData).copied().unwrap_or(0);
    let cut = scanned(&ground.state("cut"), &from, "2000", || {
        waits_until("the scan is under way", || reads() > 2_500);
        proxy.proxy().cut();
        std::thread::sleep(Duration::from_secs(2));
        proxy.proxy().resume();
    });
    assert_eq!(found(&cut), quiet);

    // The same with a server that hangs: nothing is closed, nothing answers.
    proxy.record().clear();
    let hung = scanned(&ground.state("hung"), &from, "2000", || {
        waits_until("the scan is under way", || reads() > 2_500);
        proxy.proxy().stall();
        std::thread::sleep(Duration::from_secs(3));
        proxy.proxy().resume();
    });
    assert_eq!(found(&hung), quiet);

    // Away for longer than a session lives: new sessions, the same result.
    proxy.record().clear();
    let connects = || proxy.record().counts().get(&Op::Connect).copied().unwrap_or(0);
    let expired = scanned(&ground.state("expired"), &from, "2000", || {
        waits_until("the scan is under way", || reads() > 2_500);
        let before = connects();
        proxy.proxy().cut();
        std::thread::sleep(Duration::from_secs(24));
        proxy.proxy().resume();
        waits_until("it comes back", || connects() > before);
    });
    assert_eq!(found(&expired), quiet);
}

#[test]
#[ignore = "needs ZooKeeper"]
fn a_plan_that_was_cut_off_is_the_same() {
    let ground = Ground::new("faults", 4_000);
    let quiet = essence(&plan(&ground, &ground.from(), &[]).exits(0).json());
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let from = format!("zk://{}", proxy.address());
    let args = ["plan", "--output", "json", "--from", &from, "--metadata-rate", "2000"];
    let running = begin(ground.folder.path(), &args, &[]);
    waits_until("the scan is under way", || proxy.record().counts().get(&Op::GetData).copied().unwrap_or(0) > 2_500);
    proxy.proxy().cut();
    std::thread::sleep(Duration::from_secs(1));
    proxy.proxy().resume();
    assert_eq!(essence(&running.wait().exits(0).json()), quiet);
}

#[test]
#[ignore = "needs ZooKeeper"]
fn a_server_that_stays_away_costs_its_namespaces_and_the_plan_says_so() {
    let ground = Ground::new("faults", 2_000);
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let from = format!("zk://{}", proxy.address());
    let args = ["plan", "--output", "json", "--from", &from, "--metadata-rate", "1000"];
    let running = begin(ground.folder.path(), &args, &[]);
    waits_until("the scan is under way", || proxy.record().counts().get(&Op::GetData).copied().unwrap_or(0) > 300);
    proxy.proxy().cut();
    let ended = running.wait().exits(4);
    let plan = ended.json();
    assert_eq!(plan["complete"], false);
    let problems = plan["problems"].to_string();
    assert!(problems.contains("faults/n0000") && problems.contains("faults/n0001"), "{problems}");
}

#[test]
#[ignore = "needs ZooKeeper"]
fn topics_that_vanish_between_listing_and_reading_are_no_problem() {
    let ground = Ground::new("faults", 160);
    let proxy = ZkProxy::start(&ground.rig.zk()).unwrap();
    let from = format!("zk://{}", proxy.address());
    let args = ["plan", "--output", "json", "--from", &from, "--metadata-rate", "40"];
    let running = begin(ground.folder.path(), &args, &[]);
    let topics = "/managed-ledgers/faults/n0000/persistent";
    let listed = |request: &trimtab_tests::zk_proxy::Request| request.paths.iter().any(|path| path == topics);
    waits_until("the topics are listed", || proxy.record().requests().iter().any(listed));
    let mut client = ground.client.lock().unwrap();
    for number in 150..160 {
        let node = ground.node(number);
        // a topic whose number is 7 modulo 8 has no cursor
        client.run(&format!("rm {node}/s")).ok();
        client.run(&format!("rm {node}")).unwrap();
    }
    // One whose cursor alone goes away: it holds nothing any more.
    client.run(&format!("rm {}/s", ground.node(149))).unwrap();
    drop(client);
    let plan = running.wait().exits(0).json();
    assert_eq!((plan["complete"].as_bool(), plan["totals"]["topics"].as_u64()), (Some(true), Some(150)), "{plan}");
}

/// What cannot be read is kept, counted and told, and everything else goes on.
#[test]
#[ignore = "needs ZooKeeper"]
fn undecodable_metadata_keeps_its_topics_and_no_others() {
    let ground = Ground::new("faults", 2_016);
    let before = essence(&plan(&ground, &ground.from(), &[]).exits(0).json());
    // A list of ledgers, a cursor, the policies of a namespace; and a node whose name is no topic's.
    ground.put(&ground.node(0), b"\xff\xff\xff\xff not protobuf");
    ground.put(&format!("{}/s", ground.node(1)), b"\x07garbage");
    ground.put("/admin/policies/faults/n0002", b"{\"retention_policies\": ");
    // A list that breaks off in the middle of a ledger.
    let list = ground.client.lock().unwrap().get(&ground.node(2)).unwrap();
    ground.put(&ground.node(2), &list[..list.len() - 3]);
    let ended = plan(&ground, &ground.from(), &["--explain"]).exits(4);
    let plan = ended.json();
    let unknown: Vec<usize> = [0, 1, 2].into_iter().chain(2_000..2_016).collect();
    assert_eq!(plan["totals"]["unknown"].as_u64(), Some(unknown.len() as u64), "{}", plan["totals"]);
    let (items, _) = essence(&plan);
    for (subject, was) in &before.0 {
        if unknown.iter().all(|number| ground.topic(*number) != *subject) {
            assert_eq!(items[subject], *was, "{subject}");
        }
    }
    for number in &unknown {
        let subject = ground.topic(*number);
        let item = plan["items"].as_array().unwrap().iter().find(|item| item["subject"] == subject).unwrap();
        assert!(["keep", "skip"].contains(&item["verdict"].as_str().unwrap()), "{item}");
        assert!(item["ledgers"].as_array().unwrap().is_empty() && item["decision"].is_null(), "{item}");
    }

    // A run acts on the others and says with its exit code that it did not know everything.
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let state = ground.state("run");
    let (from, url) = (ground.from(), broker.url());
    let include = ["--include", "faults/n0000/t0000?", "--metadata-rate", "0", "--max-share", "1"];
    let args = [&["run", "--apply", "--from", &from, "--admin", &url, "--output", "json"][..], &include].concat();
    let ended = run(&state, &args).exits(4);
    assert_eq!(ended.json()["tally"]["statuses"], serde_json::json!({ "done": 5 }), "{ended:?}");
    let trimmed: Vec<String> = broker.requests().iter().map(|request| request.url.path().to_owned()).collect();
    assert!(unknown.iter().all(|n| !trimmed.iter().any(|path| path.contains(&format!("/t{n:05}/")))), "{trimmed:?}");
}
