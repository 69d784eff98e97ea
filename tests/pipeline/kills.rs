//! Three scanners, two deciders and three executors over NATS, half of which are killed without warning in the middle of the work and stay away
//! until it is done. What goes is what one process frees.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::dice::Dice;
use trimtab_tests::mess::{Fate, Mess};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::roles::{Crew, Name, Role, Settings};
use trimtab_tests::trimtab::run;

use super::{Lists, lists, lost, topic_policies};

/// Topics that lost something else than their fate says, with what they lost.
fn wrong(before: &Lists, after: &Lists) -> (Vec<String>, Vec<String>) {
    let (mut too_much, mut too_little) = (Vec::new(), Vec::new());
    for (name, fate) in Mess::topics() {
        let gone = lost(before, after, &name).len();
        let due = match fate {
            Fate::Trim(n) | Fate::ExpireThenTrim(n) => n,
            _ => 0,
        };
        if gone > due {
            too_much.push(format!("{name}: {fate:?}, lost {gone}"));
        } else if gone < due {
            too_little.push(format!("{name}: {fate:?}, lost {gone}"));
        }
    }
    (too_much, too_little)
}

const ENOUGH: Duration = Duration::from_secs(200);

const SCANNERS: [Name; 3] = [(Role::Scanner, "a"), (Role::Scanner, "b"), (Role::Scanner, "c")];
const DECIDERS: [Name; 2] = [(Role::Decider, "a"), (Role::Decider, "b")];
const EXECUTORS: [Name; 3] = [(Role::Executor, "a"), (Role::Executor, "b"), (Role::Executor, "c")];
const AUDIT: Name = (Role::Audit, "one");

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper, nats-server"]
fn half_of_the_workers_are_killed_and_the_others_do_all_the_work_once() {
    let nats = NatsRig::single().unwrap();
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let mut client = mess.rig.client().unwrap();
    let before = lists(&mut client);
    let policies = topic_policies(state);
    let url = nats.url();
    let from = format!("zk://{}", mess.rig.zk());
    let settings = Settings { nats: url.clone(), from, policies: Some(policies), ..Settings::default() };
    let mut crew = Crew::new(state, settings);
    for worker in [&[AUDIT], &DECIDERS[..], &EXECUTORS, &SCANNERS].concat() {
        crew.start(worker);
    }
    let mut dice = Dice::new();

    // Asked for as any program may: a request over NATS, answered with the scan's id.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |body: &'static str| -> Value {
        let answer = runtime.block_on(async {
            let client = async_nats::connect(&url).await.unwrap();
            client.request("trimtab.scan.request", body.into()).await
        });
        answer.map_or(Value::Null, |answer| serde_json::from_slice(&answer.payload).unwrap())
    };
    let begun = Instant::now();
    let id = loop {
        // Nobody answers before a scanner is there.
        if let Some(id) = ask("")["scan"].as_str() {
            break id.to_owned();
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(ask("{\"namspace\":1}")["error"].as_str().is_some_and(|why| why.contains("namspace")));
    assert!(ask("{\"namespace\":\"attic\"}")["error"].as_str().is_some_and(|why| why.contains("tenant/namespace")));

    // A scanner and a decider die while the scan goes on, for good.
    dice.sleep_from(100, 1500);
    for worker in [SCANNERS[0], DECIDERS[0]] {
        crew.worker(worker).kill9().unwrap();
    }
    // Then executors, again and again while they act; the audit once.
    while crew.acts("intent", &EXECUTORS).is_empty() {
        let tails = EXECUTORS.map(|executor| crew.log(executor)).join("\n");
        assert!(begun.elapsed() < Duration::from_secs(120), "nothing begins; {tails}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut interrupted = 0;
    for round in 0..8 {
        dice.sleep_from(0, 600);
        let executor = EXECUTORS[dice.below(3) as usize];
        crew.worker(executor).kill9().unwrap();
        interrupted += crew.open(&[executor]).len();
        if round == 3 {
            crew.worker(AUDIT).kill9().unwrap();
            crew.start(AUDIT);
        }
        crew.start(executor);
        // Until somebody acts again, or nothing is left: kills before that would reach nothing.
        let (known, waited) = (crew.acts("intent", &EXECUTORS).len(), Instant::now());
        while crew.acts("intent", &EXECUTORS).len() == known && waited.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    eprintln!("{interrupted} acts were under way when their executor was killed");
    assert!(interrupted > 0, "no kill met an act: nothing was tried");
    // Two of three stay away: with the first two, half of all.
    let away = &EXECUTORS[..2];
    for executor in away {
        crew.worker(*executor).kill9().unwrap();
    }

    // Another scanner dies in the middle of a scan; the last one ends it.
    let second = crew.scan();
    dice.sleep_from(300, 900);
    crew.worker(SCANNERS[1]).kill9().unwrap();
    crew.start(SCANNERS[1]);

    // What was interrupted is found again by a later scan; in the end exactly what was due is gone.
    let mut asked = Instant::now();
    loop {
        let (too_much, too_little) = wrong(&before, &lists(&mut client));
        assert!(too_much.is_empty(), "{}", too_much.join("\n"));
        if too_little.is_empty() {
            break;
        }
        assert!(begun.elapsed() < ENOUGH, "{}\n{}", too_little.join("\n"), crew.log(EXECUTORS[2]));
        if asked.elapsed() > Duration::from_secs(20) {
            asked = Instant::now();
            crew.scan();
        }
        std::thread::sleep(Duration::from_secs(2));
    }

    // Who was killed knows what it had begun, and says what came of it. Each intent has one outcome, in its executor's record and in the one of
    // the audit; nobody began an act twice. (What a killed one had in hand was given to another, who looked again.)
    away.iter().for_each(|executor| crew.start(*executor));
    loop {
        EXECUTORS.iter().for_each(|executor| crew.begun_once(&[*executor]));
        let told: BTreeSet<String> = crew.acts("outcome", &[AUDIT]).into_iter().map(|(key, _)| key).collect();
        let scans: BTreeSet<String> = crew
            .records(AUDIT)
            .iter()
            .filter(|record| record["kind"] == "scan")
            .map(|record| record["id"].as_str().unwrap().to_owned())
            .collect();
        let intents = crew.acts("intent", &EXECUTORS).into_iter().map(|(key, _)| key);
        let open = EXECUTORS.iter().flat_map(|executor| crew.open(&[*executor]));
        let open = open.map(|key| format!("no outcome of {key}"));
        let untold = intents.filter(|key| !told.contains(key)).map(|key| format!("the audit lacks {key}"));
        let unknown = [&id, &second].into_iter().filter(|id| !scans.contains(*id)).map(|id| format!("no scan {id}"));
        let missing: Vec<String> = open.chain(untold).chain(unknown).collect();
        if missing.is_empty() {
            break;
        }
        assert!(begun.elapsed() < ENOUGH, "{missing:#?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    crew.freed_once(&EXECUTORS);
    for worker in [&[AUDIT], &EXECUTORS[..]].concat() {
        assert!(crew.worker(worker).stop().unwrap().success());
        let _ = run(&crew.folder(worker), &["audit", "verify"]).exits(0);
    }
    // Nobody's work became a dead letter.
    let dead = run(state, &["dead", "--nats", &url, "list", "--output", "json"]).exits(0);
    assert!(!dead.out.contains("decision"), "{dead:?}");
    eprintln!("{} s in all", begun.elapsed().as_secs());
}
