//! Each call to a broker goes wrong once in a run of the real binary: an error, a refusal, an answer that never comes although the
//! call was carried out, or the end of the process right before or after it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trimtab_tests::trimtab::{begin, run};
use wiremock::{Request, Respond, ResponseTemplate};

use crate::ground::{Ground, LEDGERS, Stage, Trims};

const CONFIG: &str = "[limits]\nbroker_timeout = \"1s\"\nsettle = \"2s\"\nmetadata_rate = 0.0\n";
/// Topics of each run.
const TOPICS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Error,
    Refused,
    Late,
    KilledBefore,
    KilledAfter,
}

/// A broker whose n-th answer is wrong.
struct Nth {
    trims: Trims,
    number: usize,
    wrong: Option<Wrong>,
    calls: AtomicUsize,
    pid: Arc<AtomicI32>,
}

impl Nth {
    /// Does what is asked for, and answers.
    fn right(&self, request: &Request) -> ResponseTemplate {
        let path = request.url.path();
        if path.ends_with("/trim") {
            self.trims.trim(path);
        }
        if !path.ends_with("/stats") {
            return ResponseTemplate::new(204);
        }
        let nobody = serde_json::json!({ "publishers": [], "subscriptions": { "s": { "consumers": [] } } });
        ResponseTemplate::new(200).set_body_json(nobody)
    }

    fn kill(&self) {
        while self.pid.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = Pid::from_raw(self.pid.load(Ordering::SeqCst)).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }
}

impl Respond for Nth {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let because = serde_json::json!({ "reason": "the test says so" });
        match self.wrong.filter(|_| number == self.number) {
            None => self.right(request),
            Some(Wrong::Error) => ResponseTemplate::new(500).set_body_json(because),
            Some(Wrong::Refused) => ResponseTemplate::new(403).set_body_json(because),
            Some(Wrong::Late) => self.right(request).set_delay(Duration::from_secs(3)),
            Some(Wrong::KilledBefore) => {
                self.kill();
                ResponseTemplate::new(500)
            }
            Some(Wrong::KilledAfter) => {
                let answer = self.right(request);
                self.kill();
                answer
            }
        }
    }
}

/// The keys of all records of a kind, `decision/scan`.
fn keys(state: &Path, kind: &str) -> Vec<String> {
    let text = std::fs::read_to_string(state.join("audit/executor.jsonl")).unwrap_or_default();
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let key = |record: Value| {
        let body = &record["body"];
        let (decision, scan) = match kind {
            "intent" => (&body["decision"]["id"], &body["decision"]["scan"]["id"]),
            _ => (&body["decision"], &body["scan"]["id"]),
        };
        format!("{}/{}", decision.as_str().unwrap(), scan.as_str().unwrap())
    };
    records.filter(|record| record["kind"] == kind).map(key).collect()
}

/// How often each topic was trimmed.
fn trims(calls: &[Request]) -> BTreeMap<String, usize> {
    let mut trims = BTreeMap::new();
    for path in calls.iter().map(|call| call.url.path()).filter(|path| path.ends_with("/trim")) {
        *trims.entry(path.to_owned()).or_default() += 1;
    }
    trims
}

/// One run with one wrong answer over the topics of a group, then one without. How many calls the first one made.
fn trial(ground: &Ground, config: &str, group: usize, number: usize, wrong: Option<Wrong>) -> usize {
    let stage = Stage::new();
    let state = ground.state(&format!("calls-{group}"));
    // The first three of each eight are due.
    let topics: Vec<usize> = (0..TOPICS).map(|k| group * 8 + k).collect();
    let globs: Vec<String> = topics.iter().map(|n| ground.topic(*n).replace("persistent://", "")).collect();
    let from = ground.from();
    let args = |url: &str| {
        let mut args = vec!["run", "--apply", "--from", &from, "--config", config, "--max-share", "1"];
        args.extend(globs.iter().flat_map(|glob| ["--include", glob.as_str()]));
        [args, vec!["--admin", url]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let start = |url: &str| {
        let args = args(url);
        begin(&state, &args.iter().map(String::as_str).collect::<Vec<_>>(), &[])
    };

    let broker = stage.bare();
    let pid = Arc::new(AtomicI32::new(0));
    let nth = Nth { trims: Trims::of(ground), number, wrong, calls: AtomicUsize::new(0), pid: pid.clone() };
    broker.on_anything(nth);
    let running = start(&broker.url());
    pid.store(i32::try_from(running.pid()).unwrap(), Ordering::SeqCst);
    let first = running.wait();
    let calls = broker.requests();
    assert!(trims(&calls).values().all(|count| *count == 1), "a topic was trimmed twice: {calls:?}");
    let left: Vec<usize> = topics.iter().copied().filter(|n| ground.ids(*n).len() == LEDGERS).collect();
    match first.code {
        0 => assert!(left.is_empty(), "it says that it is done, and {left:?} are left: {first:?}"),
        -1 => assert!(matches!(wrong, Some(Wrong::KilledBefore | Wrong::KilledAfter)), "{first:?}"),
        1 | 4 => assert!(first.out.contains("persistent://faults/"), "{first:?}"),
        other => panic!("{other}: {first:?}"),
    }
    if wrong.is_none() {
        assert_eq!(first.code, 0, "{first:?}");
    }

    let good = stage.bare();
    let nth = Nth { trims: Trims::of(ground), number: 0, wrong: None, calls: AtomicUsize::new(0), pid };
    good.on_anything(nth);
    let second = start(&good.url()).wait();
    assert_eq!(second.code, 0, "{second:?}");
    assert!(topics.iter().all(|n| ground.ids(*n).len() == 1), "{second:?}");
    // What was done is not done again, and what was left is.
    let again: BTreeSet<String> = trims(&good.requests()).into_keys().collect();
    let wanted: BTreeSet<String> = left
        .iter()
        .map(|n| format!("/admin/v2/persistent/{}/trim", ground.topic(*n).replace("persistent://", "")))
        .collect();
    assert_eq!(again, wanted);
    let (intents, outcomes) = (keys(&state, "intent"), keys(&state, "outcome"));
    assert_eq!(intents.iter().collect::<BTreeSet<_>>().len(), intents.len(), "an act was begun twice");
    for intent in &intents {
        assert_eq!(outcomes.iter().filter(|outcome| *outcome == intent).count(), 1, "outcomes of {intent}");
    }
    let _ = run(&state, &["audit", "verify"]).exits(0);
    calls.len()
}

#[test]
#[ignore = "needs ZooKeeper"]
fn any_call_to_a_broker_may_go_wrong_once() {
    const CALLS: usize = 3 * TOPICS;
    let all = [Wrong::Error, Wrong::Refused, Wrong::Late, Wrong::KilledBefore, Wrong::KilledAfter];
    let trials: Vec<(usize, Wrong)> = (0..CALLS).flat_map(|number| all.map(|wrong| (number, wrong))).collect();
    let ground = Ground::new("faults", 8 * (trials.len() + 1));
    let config = ground.file("config.toml", CONFIG);
    assert_eq!(trial(&ground, &config, trials.len(), 0, None), CALLS, "each topic is trimmed, looked at and closed");
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let group = next.fetch_add(1, Ordering::SeqCst);
                    let Some((number, wrong)) = trials.get(group) else { return };
                    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        trial(&ground, &config, group, *number, Some(*wrong))
                    }));
                    if let Err(why) = tried {
                        let says = why.downcast_ref::<String>().cloned().unwrap_or_default();
                        failures.lock().unwrap().push(format!("call {number} {wrong:?}: {says}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), trials.len(), failures.join("\n"));
}
