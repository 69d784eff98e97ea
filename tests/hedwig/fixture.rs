//! The captured tree of a real region (`data/hedwig`), read from the file in its own order and in scan order: every subscriber is seen as it
//! is, and gets the verdict that was worked out by hand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::TryStreamExt;
use serde_json::Value;
use trimtab_events::{Candidate, Decision, Evidence, Log, ScanRef, Scope, SubscriberCandidate};
use trimtab_policy::{Context, Policy, PolicyConfig, Rule, Trust, check_subscriber, decide_subscribers};
use trimtab_targets::hedwig::{HedwigSnapshot, Settings};
use trimtab_targets::{Inventory, Item};

use super::region::{NO_READS, scan};

const NOW_MS: i64 = 1_795_983_400_675;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/hedwig").join(name)
}

fn settings() -> Settings {
    Settings { region: "local".to_owned(), ..Settings::default() }
}

fn expected() -> Vec<Value> {
    let text = std::fs::read_to_string(data("expected.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn logs(path: &Path, settings: Settings) -> Vec<SubscriberCandidate> {
    scan(&HedwigSnapshot::open(path, settings).unwrap()).await
}

/// Thirty days, by the stored times alone.
fn decided(logs: &[SubscriberCandidate]) -> BTreeMap<(String, String), Decision> {
    let rule = Rule {
        name: "month".to_owned(),
        stale_after_s: Some(30 * 86_400),
        grace_s: Some(0),
        trust: Trust::Field,
        ..Rule::default()
    };
    let policy = Policy::new(PolicyConfig { rules: vec![rule], ..PolicyConfig::default() }, "test").unwrap();
    let context = Context { scan: ScanRef { id: uuid::Uuid::nil(), fence: 0 }, target: "hedwig", now_ms: NOW_MS };
    let mut all = BTreeMap::new();
    for log in logs {
        let topic = log.subject.strip_prefix("hedwig://local/").unwrap();
        for (subscriber, decision) in log.subscribers.iter().zip(decide_subscribers(log, &policy, &context)) {
            check_subscriber(&decision, log, NOW_MS).unwrap_or_else(|e| panic!("{}: {e}", decision.subject));
            all.insert((topic.to_owned(), subscriber.name.clone()), decision);
        }
    }
    all
}

#[tokio::test]
async fn every_subscriber_is_seen_as_it_is() {
    let logs = logs(&data("metadata-small.jsonl.gz"), settings()).await;
    let seen = |row: &Value, name: &str| {
        let log = logs.iter().find(|log| log.subject == format!("hedwig://local/{}", row["topic"].as_str().unwrap()));
        let log = log.unwrap_or_else(|| panic!("no topic {}", row["topic"]));
        let index = log.subscribers.iter().position(|subscriber| subscriber.name == name).unwrap();
        let Log::Hedwig(topic) = &log.log else { panic!("{log:?}") };
        let at = topic.pointers[index].consumed.present().copied();
        let closed = topic.ranges.present().map(|ranges| ranges.iter().filter_map(|range| range.end).max());
        let owner = topic.hub.present().map(|hub| {
            assert!(hub.alive, "{hub:?}");
            hub.address.clone()
        });
        (at, closed.map(|end| end.unwrap_or(0)), log.subscribers[index].stored_ms, owner, topic.pointers[index].bound)
    };
    let expected = expected();
    for row in &expected {
        let name = row["subscriber"].as_str().unwrap();
        let (at, closed, mtime, owner, bound) = seen(row, name);
        assert_eq!(at, row["at"].as_i64(), "{row}");
        assert_eq!(closed, row["closed"].as_i64(), "{row}");
        assert_eq!(mtime, row["mtime"].as_i64().unwrap(), "{row}");
        assert_eq!(owner.as_deref(), row["owner"].as_str(), "{row}");
        assert_eq!(bound, row["bound"].as_u64().unwrap_or(0), "{row}");
    }
    let count: usize = logs.iter().map(|log| log.subscribers.len()).sum();
    assert_eq!(count, expected.len(), "nobody else");
}

#[tokio::test]
async fn every_subscriber_gets_its_verdict() {
    let decided = decided(&logs(&data("metadata-small.jsonl.gz"), settings()).await);
    let mut freed = BTreeMap::<String, Vec<i64>>::new();
    for row in expected() {
        let (topic, name) = (row["topic"].as_str().unwrap().to_owned(), row["subscriber"].as_str().unwrap().to_owned());
        let decision = &decided[&(topic.clone(), name.clone())];
        let why = &decision.reasons[0];
        match row["kept"].as_str() {
            None => {
                let consume = decision.consume.as_ref().unwrap_or_else(|| panic!("{row} {decision:#?}"));
                assert_eq!((decision.verdict.name(), Some(consume.to.entry)), ("consume", row["to"].as_i64()), "{row}");
                // What goes when several have moved is counted once.
                freed.entry(topic).or_default().extend(&decision.ledgers);
            }
            Some(kept) => {
                assert!(!decision.verdict.acts() && decision.ledgers.is_empty(), "{row} {decision:#?}");
                let says = format!("{} {}", why.rule, why.says);
                let wanted = match kept {
                    "recent" => "activity idle for",
                    "hub-subscriber" => "protected it belongs to the system itself",
                    other => other,
                };
                assert!(says.contains(wanted), "{row} {says}");
            }
        }
    }
    for row in expected().iter().filter(|row| row["kept"].is_null()) {
        let ids: Vec<i64> = row["frees"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        assert_eq!(freed[row["topic"].as_str().unwrap()], ids, "{row}");
    }
}

#[tokio::test]
async fn a_region_that_is_gone_for_good_can_be_named() {
    let gone = Settings { gone_regions: ["__gone".to_owned()].into(), ..settings() };
    let decided = decided(&logs(&data("metadata-small.jsonl.gz"), gone).await);
    let one = &decided[&("t16-gone-region".to_owned(), "__gone".to_owned())];
    assert_eq!((one.verdict.name(), one.consume.as_ref().unwrap().to.entry), ("consume", 100));
    assert!(!decided[&("t15-hub-sub".to_owned(), "__remote".to_owned())].verdict.acts());
}

fn lines() -> Vec<Value> {
    let mut text = String::new();
    let file = std::fs::File::open(data("metadata-small.jsonl.gz")).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn file_of(folder: &Path, lines: &[Value]) -> PathBuf {
    let path = folder.join(format!("{}.jsonl", uuid::Uuid::new_v4()));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&path, text).unwrap();
    path
}

/// What a scan of a file yields: what it found, and what was wrong.
async fn read(path: &Path) -> Result<(Vec<String>, Vec<String>), String> {
    let snapshot = HedwigSnapshot::open(path, settings()).map_err(|e| e.to_string())?;
    let scope = Scope::default();
    let items: Vec<Item> = snapshot.scan("", &scope, NO_READS).try_collect().await.map_err(|e| e.to_string())?;
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Candidate(candidate) => found.push(candidate.subject().to_owned()),
            Item::Problem(problem) => problems.push(problem),
            Item::Surveyed(survey) => panic!("not asked for: {survey:?}"),
        }
    }
    Ok((found, problems))
}

#[tokio::test]
async fn any_order_of_lines_yields_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines();
    let (found, problems) = read(&data("metadata-small.jsonl.gz")).await.unwrap();
    assert!(found.is_sorted() && problems.is_empty(), "{problems:?}");
    assert_eq!(found.len(), 21);
    lines.reverse();
    let path = file_of(folder.path(), &lines);
    assert_eq!(read(&path).await.unwrap(), (found, vec![]));
    assert_eq!(logs(&path, settings()).await, logs(&data("metadata-small.jsonl.gz"), settings()).await);
}

#[tokio::test]
async fn what_is_missing_is_said_and_frees_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let all = lines();
    let without = |gone: &dyn Fn(&str) -> bool| {
        let kept: Vec<Value> = all.iter().filter(|line| !gone(line["path"].as_str().unwrap())).cloned().collect();
        file_of(folder.path(), &kept)
    };
    let topics = "/hedwig/local/topics";
    // A subscriber: whoever is missing may stand before everybody else.
    let path = without(&|path| path == format!("{topics}/t06-pinned/subscribers/slow"));
    let (found, problems) = read(&path).await.unwrap();
    assert!(!found.iter().any(|subject| subject.ends_with("t06-pinned")));
    assert!(problems.len() == 1 && problems[0].contains("1 subscribers of t06-pinned"), "{problems:?}");
    // The node that says how many there are.
    let path = without(&|path| path == format!("{topics}/t06-pinned/subscribers"));
    let (found, problems) = read(&path).await.unwrap();
    assert!(!found.iter().any(|subject| subject.ends_with("t06-pinned")) && problems.len() == 1, "{problems:?}");
    // A whole topic.
    let path = without(&|path| path.starts_with(&format!("{topics}/t06-pinned")));
    let (_, problems) = read(&path).await.unwrap();
    assert!(problems.len() == 1 && problems[0].contains("21 nodes below"), "{problems:?}");
    // The hosts: nobody knows which hub lives.
    let path = without(&|path| path.starts_with("/hedwig/local/hosts"));
    let logs = logs(&path, settings()).await;
    let owners = logs.iter().filter_map(|log| match &log.log {
        Log::Hedwig(topic) => topic.hub.unknown(),
        Log::Pulsar(_) | Log::JetStream(_) => None,
    });
    assert_eq!(owners.count(), 5);
    // Everything.
    let path = without(&|path| path.starts_with("/hedwig"));
    let (found, problems) = read(&path).await.unwrap();
    assert!(found.is_empty() && problems[0].contains("are zk_prefix and region right"), "{problems:?}");
}

#[tokio::test]
async fn another_layout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = lines();
    let layout = lines.iter_mut().find(|line| line["path"].as_str().unwrap().ends_with("/LAYOUT")).unwrap();
    let other = "managerImpl: \"org.apache.hedwig.server.meta.MsMetadataManagerFactory\"\nmanagerVersion: 1\n";
    layout["data"] = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, other).into();
    let error = read(&file_of(folder.path(), &lines)).await.unwrap_err();
    assert!(error.contains("MsMetadataManagerFactory"), "{error}");
}

#[tokio::test]
async fn one_topic_can_be_observed() {
    let snapshot = HedwigSnapshot::open(&data("metadata-small.jsonl.gz"), settings()).unwrap();
    let subject = "hedwig://local/ns/t18-slash?subscription=idle";
    let Some(Candidate::Subscriber(log)) = snapshot.observe(subject).await.unwrap() else { panic!("nothing") };
    assert_eq!((log.subject.as_str(), log.subscribers.len()), ("hedwig://local/ns/t18-slash", 1));
    assert!(matches!(log.subscribers[0].progress, Evidence::Present(_)));
    assert!(snapshot.observe("hedwig://local/ns").await.unwrap().is_none());
    assert!(snapshot.observe("hedwig://remote/t").await.is_err());
}
