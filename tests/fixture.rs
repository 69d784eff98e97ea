//! The captured metadata of a real cluster (`data/pulsar`), planned from the file: every topic gets the verdict, the ledgers and
//! the bytes that were checked against the real broker.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;
use trimtab_events::{CHANGE_EVENTS_OPEN, Candidate, Decision, Evidence, LedgerCandidate, ScanRef, Scope, Verdict};
use trimtab_policy::{Context, Policy, PolicyConfig, check, decide};
use trimtab_targets::pulsar::snapshot::Snapshot;
use trimtab_targets::pulsar::{Settings, topic_policies_file};
use trimtab_targets::{Inventory, Item, Reads};

const NOW_MS: i64 = 1_795_986_124_974;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pulsar").join(name)
}

fn settings(with_topic_policies: bool) -> Settings {
    let text = std::fs::read_to_string(data("topic-policies.json")).unwrap();
    let known = with_topic_policies.then(|| Arc::new(topic_policies_file(&text).unwrap()));
    Settings { topic_policies: known, ..Settings::default() }
}

async fn topics(path: &Path, settings: Settings) -> (Vec<LedgerCandidate>, Vec<String>) {
    let snapshot = Snapshot::open(path, settings).unwrap();
    let scope = Scope::default();
    let mut items = snapshot.scan("", &scope, &|_| Reads::ALL);
    let (mut topics, mut problems) = (Vec::new(), Vec::new());
    while let Some(item) = items.next().await {
        match item.unwrap() {
            Item::Candidate(Candidate::Ledger(topic)) => topics.push(*topic),
            other @ (Item::Candidate(_) | Item::Surveyed(_)) => panic!("not asked for: {other:?}"),
            Item::Problem(problem) => problems.push(problem),
        }
    }
    (topics, problems)
}

fn decide_all(topics: &[LedgerCandidate]) -> BTreeMap<String, Decision> {
    let policy = Policy::new(PolicyConfig::default(), "test").unwrap();
    let scan = ScanRef { id: uuid::Uuid::nil(), fence: 0 };
    let context = Context { scan, target: "pulsar", now_ms: NOW_MS };
    let decided = |topic: &LedgerCandidate| {
        let decision = decide(topic, &policy, &context);
        check(&decision, topic, NOW_MS).unwrap_or_else(|e| panic!("{}: {e}\n{decision:#?}", topic.subject));
        (topic.subject.clone(), decision)
    };
    topics.iter().map(decided).collect()
}

/// What topics may have set since a broker opened `__change_events` only that broker knows. It heeds it when it trims, not when it
/// is asked to expire.
#[tokio::test]
async fn an_open_topic_of_policies_allows_trims_and_no_expiry() {
    let (topics, _) = topics(&data("metadata-small.jsonl.gz"), settings(true)).await;
    let decided = |name: &str, unknown: &str| {
        let mut topic = topics.iter().find(|topic| topic.subject == name).unwrap().clone();
        let Evidence::Present(policies) = &mut topic.policies else { panic!("{topic:?}") };
        policies.topic_level_unknown = Some(unknown.to_owned());
        let mut decisions = decide_all(std::slice::from_ref(&topic));
        decisions.remove(name).unwrap().verdict
    };
    let (trim, expire) = ("persistent://acme/week/caught-up", "persistent://acme/ttl/abandoned");
    assert_eq!(decided(trim, CHANGE_EVENTS_OPEN), Verdict::Trim);
    assert_eq!(decided(expire, CHANGE_EVENTS_OPEN), Verdict::Skip);
    assert_eq!(decided(trim, "something else"), Verdict::Skip);
}

fn expected() -> Vec<Value> {
    let text = std::fs::read_to_string(data("expected.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["kind"] == "topic").collect()
}

#[tokio::test]
async fn every_topic_of_the_fixture_gets_its_verdict() {
    let (topics, problems) = topics(&data("metadata-small.jsonl.gz"), settings(true)).await;
    assert_eq!(problems, Vec::<String>::new());
    let decisions = decide_all(&topics);
    let expected = expected();
    assert_eq!(decisions.len(), expected.len());
    let mut wrong = Vec::new();
    for row in &expected {
        let subject = row["topic"].as_str().unwrap();
        let Some(decision) = decisions.get(subject) else {
            wrong.push(format!("{subject}: not seen"));
            continue;
        };
        let verdict = row["verdict"].as_str().unwrap();
        let ids = |field: &str| -> Vec<i64> {
            row[field].as_array().into_iter().flatten().map(|id| id.as_i64().unwrap()).collect()
        };
        let ledgers = if decision.verdict.acts() { ids("deletableAfterExpiry") } else { Vec::new() };
        let bytes = if decision.verdict.acts() { row["bytes"].as_i64().unwrap_or(0) } else { 0 };
        if (decision.verdict.name(), &decision.ledgers, decision.bytes) != (verdict, &ledgers, bytes) {
            wrong.push(format!(
                "{subject}: {} {:?} {} instead of {verdict} {ledgers:?} {bytes}: {:?}",
                decision.verdict, decision.ledgers, decision.bytes, decision.reasons
            ));
        }
        if verdict == "blocked" {
            let holder = decision.holder.as_ref().map(|holder| holder.cursor.as_str());
            if holder != row["slowestCursor"].as_str() {
                wrong.push(format!("{subject}: held by {holder:?} instead of {}", row["slowestCursor"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
