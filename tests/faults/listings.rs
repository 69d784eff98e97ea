//! A ZooKeeper whose answers are not to be trusted: each single request fails once in a plan, and listings come short, empty or
//! not at all. What is not in a listing is not gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use trimtab::plan::{Planned, Planning};
use trimtab_events::{PlanItem, ScanRef, Scope, Verdict};
use trimtab_policy::{Policy, PolicyConfig};
use trimtab_targets::pulsar::{PulsarInventory, Settings};

use trimtab_targets::{Connection, Inventory, Pace, TargetError, Zk, ZkOptions};
use trimtab_tests::trimtab::run;
use trimtab_tests::zk_liar::{Call, Lie, ZkLiar};
use trimtab_tests::zk_proxy::Op;

use crate::ground::{Ground, Stage, Trims};

/// ZooKeeper's error codes.
const SYSTEM_ERROR: i32 = -1;
const NO_NODE: i32 = -101;
const NO_AUTH: i32 = -102;
const SESSION_EXPIRED: i32 = -112;

type Items = BTreeMap<String, (Verdict, Vec<i64>)>;

/// A plan over `address`, in this process: many of them run at once.
async fn plan(address: &str) -> Result<(Items, Planned), TargetError> {
    let connection = Connection::parse(&format!("zk://{address}"))?;
    let options = ZkOptions {
        request_timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(8),
        ..ZkOptions::default()
    };
    let pace = Arc::new(Pace::new(0.0).unwrap());
    let zk = Zk::connect(connection, options, pace).await?;
    let inventory = PulsarInventory::new(zk, Settings::default(), None);
    inventory.identity().await?;
    let policy = Policy::new(PolicyConfig { protect: Vec::new(), ..PolicyConfig::default() }, "test").unwrap();
    let planning = Planning {
        sightings: None,
        inventory: &inventory,
        policy: &policy,
        target: "pulsar",
        scope: &Scope::default(),
        now_ms: trimtab_tests::now_ms(),
        explain: false,
        watch: None,
    };
    let mut items = Items::new();
    let mut each = |item: PlanItem| drop(items.insert(item.subject, (item.verdict, item.ledgers)));
    let planned = planning.run(ScanRef { id: uuid::Uuid::nil(), fence: 0 }, &mut each).await?;
    Ok((items, planned))
}

fn acting(items: &Items) -> Items {
    items.iter().filter(|(_, (verdict, _))| verdict.acts()).map(|(name, item)| (name.clone(), item.clone())).collect()
}

#[test]
#[ignore = "needs ZooKeeper"]
fn any_request_of_a_plan_may_go_wrong_once() {
    let ground = Ground::new("faults", 12);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let liar = ZkLiar::start(&ground.rig.zk(), |_| None).unwrap();
    let (whole, planned) = runtime.block_on(plan(liar.address())).unwrap();
    assert!(planned.report.complete && acting(&whole).len() > 5, "{whole:?}");
    let calls = liar.calls();
    assert!(calls > 30, "{calls}");

    // Those that pass are tried again; the others cost what they are about, and the plan says so.
    let passing = [Lie::CutBefore, Lie::CutAfter, Lie::Silent, Lie::Error(SYSTEM_ERROR), Lie::Error(SESSION_EXPIRED)];
    let all: Vec<(u64, Lie)> = (0..calls)
        .flat_map(|number| passing.iter().chain(&[Lie::Error(NO_AUTH)]).map(move |lie| (number, *lie)))
        .collect();
    let target = ground.rig.zk();
    let trial = |(number, lie): (u64, Lie)| {
        let target = target.clone();
        async move {
            let liar = ZkLiar::start(&target, move |call: &Call| (call.number == number).then_some(lie)).unwrap();
            (number, lie, plan(liar.address()).await)
        }
    };
    let ended: Vec<_> =
        runtime.block_on(async { stream::iter(all).map(trial).buffer_unordered(24).collect::<Vec<_>>().await });
    let (mut wrong, mut told, mut same) = (Vec::new(), 0, 0);
    for (number, lie, result) in &ended {
        match result {
            Err(e) => {
                told += 1;
                if !e.to_string().contains("ZooKeeper") {
                    wrong.push(format!("{number} {lie:?}: the error does not say where: {e}"));
                }
            }
            Ok((items, planned)) => {
                let known = planned.report.complete && planned.report.unknown == 0;
                let says = format!("{number} {lie:?}: complete {known}, {items:?}, {:?}", planned.problems);
                let fine = match (known, *lie) {
                    (true, _) => *items == whole,
                    (false, Lie::Error(NO_AUTH)) => {
                        let told = !planned.problems.is_empty() || planned.report.unknown > 0;
                        told && acting(items).iter().all(|(subject, item)| whole.get(subject) == Some(item))
                    }
                    (false, _) => false,
                };
                if !fine {
                    wrong.push(says);
                }
                same += usize::from(*items == whole);
            }
        }
    }
    eprintln!("{calls} requests, {} trials: {same} with the same plan, {told} with an error", ended.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What is asked for before the first namespace is not tried again: somebody stands by and reads the error.
    assert!(same * 2 > ended.len() && told < ended.len() / 3, "{same} {told} of {}", ended.len());
}

#[test]
#[ignore = "needs ZooKeeper"]
fn what_a_listing_lacks_is_not_gone() {
    // Of each eight topics the sixth is held by its cursor, which stands at the beginning.
    let ground = Ground::new("faults", 16);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (whole, _) = runtime.block_on(plan(&ground.rig.zk())).unwrap();
    let held = ground.topic(5);
    assert_eq!(whole[&held].0, Verdict::Blocked);
    let topics = "/managed-ledgers/faults/n0000/persistent";
    let cursors = ground.node(5);
    let cursor = format!("{cursors}/s");
    let names = |first, true_count| Lie::Names { first, true_count };
    // What is asked, and how it is answered each time; whether the plan is complete nevertheless.
    let cases: Vec<(&str, Op, Lie, bool)> = vec![
        (topics, Op::GetChildren2, names(0, true), false),
        (topics, Op::GetChildren2, names(7, true), false),
        // A listing that agrees with its own count cannot be told from a true one. It makes the plan smaller, never larger.
        (topics, Op::GetChildren2, names(0, false), true),
        (topics, Op::GetChildren2, names(7, false), true),
        (topics, Op::GetChildren2, Lie::Error(NO_NODE), true),
        ("/managed-ledgers/faults", Op::GetChildren2, names(0, false), true),
        // A cursor that is not listed, or listed and not there, still holds its topic.
        (&cursors, Op::GetChildren2, names(0, true), false),
        // One that agrees with its own count is older than the node that was read before it.
        (&cursors, Op::GetChildren2, names(0, false), false),
        (&cursors, Op::GetChildren2, Lie::Error(NO_NODE), true),
        (&cursor, Op::GetData, Lie::Error(NO_NODE), true),
        (&cursor, Op::GetData, Lie::Error(NO_AUTH), false),
        // A parent that went away.
        ("/admin/policies/faults/n0000", Op::GetData, Lie::Error(NO_NODE), true),
        ("/admin/policies/faults/n0000", Op::GetData, Lie::Error(NO_AUTH), false),
        (&cursors, Op::GetData, Lie::Error(NO_NODE), true),
    ];
    for (path, op, lie, complete) in cases {
        let wanted = path.to_owned();
        let decide = move |call: &Call| (call.op == op && call.path == wanted).then_some(lie);
        let liar = ZkLiar::start(&ground.rig.zk(), decide).unwrap();
        let (items, planned) = runtime.block_on(plan(liar.address())).unwrap_or_else(|e| panic!("{path} {lie:?}: {e}"));
        let more: Vec<_> = acting(&items).into_iter().filter(|(name, item)| whole.get(name) != Some(item)).collect();
        assert!(more.is_empty(), "{path} {lie:?}: {more:?}");
        assert_eq!(planned.report.complete, complete, "{path} {lie:?}: {:?}", planned.problems);
        assert!(complete || !planned.problems.is_empty(), "{path} {lie:?}");
        assert!(!items.get(&held).is_some_and(|(verdict, _)| verdict.acts()), "{path} {lie:?}: {items:?}");
    }
}

/// The whole pipeline against a server that hides a cursor from listings: no broker is called.
#[test]
#[ignore = "needs ZooKeeper"]
fn a_hidden_cursor_still_holds_its_topic_when_it_comes_to_acting() {
    let ground = Ground::new("faults", 16);
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let hidden = ground.node(5);
    let hide = move |call: &Call| {
        let lie = Lie::Names { first: 0, true_count: false };
        (call.op == Op::GetChildren2 && call.path == hidden).then_some(lie)
    };
    let liar = ZkLiar::start(&ground.rig.zk(), hide).unwrap();
    let (from, url, topic) = (format!("zk://{}", liar.address()), broker.url(), ground.topic(5));
    let args = ["run", "--apply", "--from", &from, "--admin", &url, "--topic", &topic];
    let _ = run(&ground.state("hidden"), &args).exits(4);
    assert!(broker.requests().is_empty(), "{:?}", broker.requests());
}

/// A scan that sees much less than the one before it stops, whatever the listing says of itself; a person can allow it.
#[test]
#[ignore = "needs ZooKeeper"]
fn a_cluster_that_seems_to_have_shrunk_stops_the_run() {
    let ground = Ground::new("faults", 1_600);
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let url = broker.url();
    let config = ground.file("keep.toml", "protect = [\"**\"]\n");
    let topics = "/managed-ledgers/faults/n0000/persistent";
    let cases = [
        (topics, Lie::Names { first: 0, true_count: false }),
        (topics, Lie::Names { first: 300, true_count: false }),
        (topics, Lie::Error(NO_NODE)),
        ("/managed-ledgers/faults", Lie::Names { first: 1, true_count: false }),
        ("/managed-ledgers/faults", Lie::Names { first: 0, true_count: false }),
        ("/managed-ledgers", Lie::Names { first: 0, true_count: false }),
    ];
    for (number, (path, lie)) in cases.into_iter().enumerate() {
        let state = ground.state(&format!("shrunk-{number}"));
        // What is due there is left alone: scans have to come to their end, no more.
        let common = ["--admin", &url, "--metadata-rate", "0", "--config", &config];
        let scan = |from: &str, more: &[&str]| {
            let from = format!("zk://{from}");
            run(&state, &[&["run", "--apply", "--from", &from], &common[..], more].concat())
        };
        let _ = scan(&ground.rig.zk(), &[]).exits(0);
        let decide = move |call: &Call| (call.op == Op::GetChildren2 && call.path == path).then_some(lie);
        let liar = ZkLiar::start(&ground.rig.zk(), decide).unwrap();
        let ended = scan(liar.address(), &[]).exits(3);
        assert!(ended.err.contains("max_shrink") && ended.err.contains("stopped before the first act"), "{ended:?}");
        // The true listing is compared with the last one that was believed.
        let _ = scan(&ground.rig.zk(), &[]).exits(0);
        let _ = scan(liar.address(), &["--max-shrink", "1"]).exits(0);
    }
    assert!(broker.requests().is_empty());
}
