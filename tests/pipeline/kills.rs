//! Roles over NATS, each killed without warning in the middle of its work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::java::JavaClient;
use trimtab_tests::mess::{Fate, Mess};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::now_ms;
use trimtab_tests::roles::{Role, Roles, Settings};
use trimtab_tests::trimtab::run;

type Lists = BTreeMap<String, BTreeMap<i64, i64>>;

fn lists(client: &mut JavaClient) -> Lists {
    let list = |(name, _): (String, Fate)| {
        let listed = client.listed(&Mess::managed_ledger(&name)).unwrap();
        (name, listed.iter().map(|ledger| (ledger.id, ledger.entries)).collect())
    };
    Mess::topics().into_iter().map(list).collect()
}

/// Topics that lost something else than their fate says, with what they lost.
fn wrong(before: &Lists, after: &Lists, policies_known: bool) -> (Vec<String>, Vec<String>) {
    let (mut too_much, mut too_little) = (Vec::new(), Vec::new());
    for (name, fate) in Mess::topics() {
        let gone = before[&name].iter().filter(|(id, entries)| **entries > 0 && !after[&name].contains_key(id)).count();
        let due = match fate {
            Fate::Trim(n) | Fate::ExpireThenTrim(n) if policies_known || !name.contains("/topical/") => n,
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

fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may be half written while its writer runs.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn of(records: &[Value], kind: &str) -> Vec<String> {
    let key = |record: &Value| {
        let body = &record["body"];
        let (decision, scan) = match kind {
            "intent" => (&body["decision"]["id"], &body["decision"]["scan"]["id"]),
            _ => (&body["decision"], &body["scan"]["id"]),
        };
        format!("{}/{}", decision.as_str().unwrap(), scan.as_str().unwrap())
    };
    records.iter().filter(|record| record["kind"] == kind).map(key).collect()
}

/// Numbers from a seed that is printed, so that a failure can be had again.
struct Dice(u64);

impl Dice {
    fn millis(&mut self, from: u64, to: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(from + (self.0 >> 33) % (to - from))
    }
}

const ENOUGH: Duration = Duration::from_secs(200);

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper, nats-server"]
fn killed_roles_neither_act_twice_nor_lose_anything() {
    let nats = NatsRig::single().unwrap();
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let mut client = mess.rig.client().unwrap();
    let before = lists(&mut client);
    let policies = state.join("policies.json").display().to_string();
    std::fs::write(
        &policies,
        r#"{"persistent://attic/topical/short": {"retention": [60, -1]},
            "persistent://attic/topical/long": {"retention": [-1, -1]},
            "persistent://attic/topical/ttl": {"ttl": 3600}}"#,
    )
    .unwrap();
    let url = nats.url();
    let _ = run(state, &["nats", "--nats", &url, "setup"]).exits(0);
    let settings = Settings {
        nats: url.clone(),
        from: format!("zk://{}", mess.rig.zk()),
        policies: Some(policies),
        otlp: None,
        config: None,
    };
    let mut roles = Roles::start(state, settings).unwrap();
    let executor = roles.folder(Role::Executor).join("audit/executor-one.jsonl");
    let audit = roles.folder(Role::Audit).join("audit/audit-one.jsonl");
    let seed = now_ms().unsigned_abs();
    eprintln!("seed {seed}");
    let mut dice = Dice(seed);

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

    // The decider dies while the scan goes on; then the executor, again and again while it acts; the audit once.
    std::thread::sleep(dice.millis(100, 1500));
    roles.process(Role::Decider).kill9().unwrap();
    roles.restart(Role::Decider).unwrap();
    while of(&records(&executor), "intent").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(90), "nothing begins; {}", roles.process(Role::Executor).tail());
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut interrupted = 0;
    for round in 0..8 {
        std::thread::sleep(dice.millis(0, 600));
        roles.process(Role::Executor).kill9().unwrap();
        let now = records(&executor);
        let (intents, outcomes): (BTreeSet<_>, BTreeSet<_>) =
            (of(&now, "intent").into_iter().collect(), of(&now, "outcome").into_iter().collect());
        interrupted += intents.difference(&outcomes).count();
        if round == 3 {
            roles.process(Role::Audit).kill9().unwrap();
            roles.restart(Role::Audit).unwrap();
        }
        roles.restart(Role::Executor).unwrap();
        // Until it acts again, or has nothing left: a kill before that would reach nothing.
        let known = intents.len();
        let waited = Instant::now();
        while of(&records(&executor), "intent").len() == known && waited.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    eprintln!("{interrupted} acts were under way when the executor was killed");
    assert!(interrupted > 0, "no kill met an act: nothing was tried");

    // The scanner dies in the middle of a scan; the one that follows ends it.
    let second = run(state, &["scan", "--nats", &url, "--output", "json"]).exits(0).json();
    std::thread::sleep(dice.millis(300, 900));
    roles.process(Role::Scanner).kill9().unwrap();
    roles.restart(Role::Scanner).unwrap();

    // What was interrupted is found again by a later scan; in the end exactly what was due is gone.
    let mut asked = Instant::now();
    loop {
        let (too_much, too_little) = wrong(&before, &lists(&mut client), true);
        assert!(too_much.is_empty(), "{}", too_much.join("\n"));
        if too_little.is_empty() {
            break;
        }
        if begun.elapsed() > ENOUGH {
            panic!("{}\n{}", too_little.join("\n"), roles.process(Role::Executor).tail());
        }
        if asked.elapsed() > Duration::from_secs(20) {
            asked = Instant::now();
            let _ = run(state, &["scan", "--nats", &url]).exits(0);
        }
        std::thread::sleep(Duration::from_secs(2));
    }

    // Each intent has one outcome, in the executor's record and in the one of the audit; no act was begun twice.
    let settled = || {
        let (acted, kept) = (records(&executor), records(&audit));
        let intents = of(&acted, "intent");
        let once: BTreeSet<String> = intents.iter().cloned().collect();
        assert_eq!(once.len(), intents.len(), "an act was begun twice");
        let outcomes: Vec<String> = of(&acted, "outcome").into_iter().filter(|key| once.contains(key)).collect();
        assert_eq!(outcomes.iter().collect::<BTreeSet<_>>().len(), outcomes.len(), "two outcomes of one act");
        let told: BTreeSet<String> = of(&kept, "outcome").into_iter().collect();
        let scans: BTreeSet<String> = kept
            .iter()
            .filter(|record| record["kind"] == "scan")
            .map(|record| record["id"].as_str().unwrap().to_owned())
            .collect();
        let mut missing: Vec<String> = Vec::new();
        missing.extend(once.iter().filter(|key| !outcomes.contains(key)).map(|key| format!("no outcome of {key}")));
        missing.extend(once.iter().filter(|key| !told.contains(*key)).map(|key| format!("the audit lacks {key}")));
        let second = second["scan"].as_str().unwrap();
        missing
            .extend([id.as_str(), second].iter().filter(|id| !scans.contains(**id)).map(|id| format!("no scan {id}")));
        missing
    };
    loop {
        let missing = settled();
        if missing.is_empty() {
            break;
        }
        assert!(begun.elapsed() < ENOUGH, "{missing:#?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    for role in [Role::Executor, Role::Audit] {
        assert!(roles.process(role).stop().unwrap().success());
        let _ = run(&roles.folder(role), &["audit", "verify"]).exits(0);
    }
    // Nobody's work became a dead letter.
    let dead = run(state, &["dead", "--nats", &url, "list", "--output", "json"]).exits(0);
    assert!(!dead.out.contains("decision"), "{dead:?}");
    eprintln!("{} s in all", begun.elapsed().as_secs());
}
