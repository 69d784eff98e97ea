//! The whole story by the command line: found over several scans, announced, moved, its storage given back, put back where that is possible.
//! And what a newcomer sees first.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trimtab_bus::{BusOptions, JetStream, NatsOptions};
use trimtab_tests::cache;
use trimtab_tests::nats::NatsRig;
use trimtab_tests::trimtab::{Ended, begin, binary, run};

use crate::ground::{Ground, PATIENCE};

const RULES: &str = r#"
[caps]
max_share = 1.0

[jetstream]
probe = "2s"

[[rules]]
name = "kept"
match = ["*/ORDERS"]
subscription = ["audit-*"]
protect = { by = "legal" }

[[rules]]
name = "idle"
match = ["*/*"]
stale_after = "1s"
sightings = 3
grace = "3s"
allow_unguarded = true
"#;

/// Goes in front of the others: the first rule that matches counts.
const AGE: &str = r#"
[[rules]]
name = "age"
match = ["*/AGED"]
ttl = "1s"
override = true
allow_unguarded = true
"#;

struct Operator<'a> {
    state: &'a Path,
    from: String,
    config: String,
}

impl Operator<'_> {
    fn place<'b>(&'b self, args: &[&'b str]) -> Vec<&'b str> {
        [args, &["--from", &self.from, "--config", &self.config]].concat()
    }

    fn run(&self) -> Ended {
        let ended = run(self.state, &self.place(&["run", "--apply"]));
        assert!([0, 4].contains(&ended.code), "{ended:?}");
        ended
    }

    fn explained(&self) -> Value {
        run(self.state, &self.place(&["plan", "--explain", "--output", "json"])).json()
    }

    fn records(&self) -> Vec<Value> {
        let listed = run(self.state, &["audit", "list", "--output", "json"]).exits(0);
        listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn verdicts(&self, subject: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = |record: &&Value| record["subject"].as_str() == Some(subject);
        self.records().iter().filter(about).map(|r| (text(&r["verdict"]), text(&r["status"]))).collect()
    }
}

fn operator<'a>(folder: &'a tempfile::TempDir, rig: &NatsRig, rules: &str) -> Operator<'a> {
    // Built before anything is waited for.
    let _ = binary();
    let config = folder.path().join("trimtab.toml");
    std::fs::write(&config, rules).unwrap();
    Operator { state: folder.path(), from: rig.url(), config: config.display().to_string() }
}

pub(crate) async fn an_abandoned_consumer_is_found_announced_moved_and_put_back() {
    let mut ground = Ground::new().await;
    let folder = tempfile::tempdir().unwrap();
    for stream in ["ORDERS", "LATE", "WISH"] {
        ground.stream(stream, json!({})).await;
    }
    for (stream, consumer) in [("ORDERS", "billing"), ("ORDERS", "gone"), ("LATE", "s"), ("WISH", "s")] {
        ground.consumer(stream, consumer, json!({})).await;
    }
    for stream in ["orders", "late", "wish"] {
        ground.publish(&format!("{stream}.a"), 100).await;
    }
    ground.drain("ORDERS", "billing", 60).await;
    ground.drain("ORDERS", "gone", 10).await;
    let operator = operator(&folder, &ground.rig, RULES);
    let gone = "jetstream://$G/ORDERS?subscription=gone";
    let late = "jetstream://$G/LATE?subscription=s";
    let wish = "jetstream://$G/WISH?subscription=s";
    let _ = run(folder.path(), &["protect", wish, "--by", "anna"]).exits(0);

    for scan in 1..=2 {
        operator.run();
        assert!(operator.verdicts(gone).is_empty(), "acted on after {scan} scans");
        // `billing` goes on, a message at a time.
        ground.drain("ORDERS", "billing", 1).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
    operator.run();
    assert_eq!(operator.verdicts(gone), [("mark".to_owned(), "done".to_owned())]);
    assert_eq!(ground.held("ORDERS").await.0, 90, "an announcement changes nothing");
    assert!(operator.verdicts(wish).is_empty(), "what is protected is not even announced");
    // One of those that were announced comes back for a moment.
    assert_eq!(operator.verdicts(late), [("mark".to_owned(), "done".to_owned())]);
    ground.drain("LATE", "s", 1).await;
    ground.drain("ORDERS", "billing", 1).await;
    // A restart forgets when anybody was last used, and nothing of what we saw.
    ground = tokio::task::spawn_blocking(move || {
        ground.rig.restart(0).unwrap();
        ground
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;

    let bytes_before = ground.held("ORDERS").await.1;
    operator.run();
    let listed = run(folder.path(), &["protect", "--list", "--config", &operator.config]);
    assert!(!listed.out.contains(late), "its mark is still there: {}", listed.out);
    let acted = operator.verdicts(gone);
    assert_eq!(acted.last(), Some(&("consume".to_owned(), "done".to_owned())), "{acted:?}");
    let record = operator.records().into_iter().rfind(|record| record["subject"] == gone).unwrap();
    let (messages, bytes, first) = ground.held("ORDERS").await;
    assert_eq!((messages, first), (37, 64), "up to where `billing` is");
    assert_eq!(record["freed_bytes"].as_u64(), Some(bytes_before - bytes), "{record}");
    assert!(!operator.verdicts(late).iter().any(|(verdict, _)| verdict == "consume"));
    let explained = operator.explained();
    let item = |subject: &str| {
        explained["items"].as_array().unwrap().iter().find(|i| i["subject"] == subject).cloned().unwrap()
    };
    assert_eq!(item(gone)["verdict"], "blocked", "{}", item(gone));
    assert_eq!(item(gone)["holder"]["cursor"], "billing");
    assert_eq!(item(wish)["reasons"][0]["rule"], "protected");

    // Taken back: it gets what is left of what it had not taken.
    let id = record["decision"].as_str().unwrap();
    let undone = run(folder.path(), &operator.place(&["undo", id, "--by", "anna"])).exits(0);
    assert!(undone.out.contains("53 sequences behind its place are gone for good"), "{undone:?}");
    let _ = run(folder.path(), &["audit", "verify"]).exits(0);
    let shown = run(folder.path(), &["audit", "show", gone]).exits(0).out;
    assert!(["intent", "evidence", "outcome", "undo"].iter().all(|kind| shown.contains(kind)), "{shown}");

    // Nobody has lost anything but what was given up.
    assert_eq!(ground.owed("ORDERS", "gone", 37).await, (64..=100).collect::<Vec<u64>>());
    assert_eq!(ground.owed("ORDERS", "billing", 37).await, (64..=100).collect::<Vec<u64>>());
    assert_eq!(ground.owed("LATE", "s", 99).await, (2..=100).collect::<Vec<u64>>());
    assert_eq!(ground.owed("WISH", "s", 100).await, (1..=100).collect::<Vec<u64>>());

    // N-03: the servers lose everything that they stored. What was done is in a record of our own.
    ground = tokio::task::spawn_blocking(move || {
        ground.rig.kill9(0).unwrap();
        ground.rig.clean_store(0).unwrap();
        ground.rig.start(0).unwrap();
        ground
    })
    .await
    .unwrap();
    assert_eq!(ground.api("STREAM.INFO.ORDERS", Value::Null).await["error"]["code"], 404);
    assert_eq!(run(folder.path(), &["audit", "show", gone]).exits(0).out, shown);
    let _ = run(folder.path(), &["audit", "verify"]).exits(0);
    // N-02: a list that shrinks like this stops the run, whatever there is to do.
    let stopped = run(folder.path(), &operator.place(&["run", "--apply"]));
    assert!(format!("{stopped:?}").contains("max_shrink") && stopped.code != 0, "{stopped:?}");
}

/// The reviewed plan is what runs: of four items one is not true any more. One is a purge below somebody who is slow, since the servers do
/// not move a consumer that began at what was new; one is of messages that are old.
pub(crate) async fn a_plan_that_is_applied_skips_what_changed_since() {
    let ground = Ground::new().await;
    let folder = tempfile::tempdir().unwrap();
    for stream in ["ONE", "TWO"] {
        ground.stream(stream, json!({})).await;
        ground.consumer(stream, "old", json!({})).await;
        ground.publish(&format!("{}.a", stream.to_lowercase()), 50).await;
    }
    ground.stream("ORDERS", json!({})).await;
    ground.consumer("ORDERS", "audit-slow", json!({})).await;
    ground.consumer("ORDERS", "old", json!({ "deliver_policy": "new" })).await;
    ground.publish("orders.a", 50).await;
    ground.drain("ORDERS", "audit-slow", 30).await;
    ground.stream("AGED", json!({ "retention": "limits" })).await;
    ground.publish("aged.a", 20).await;
    let rules = format!("{AGE}{}", RULES.replace("grace = \"3s\"", "grace = \"0s\""));
    let operator = operator(&folder, &ground.rig, &rules);
    let file = folder.path().join("plan.json").display().to_string();
    let begun = Instant::now();
    loop {
        let planned = run(folder.path(), &operator.place(&["plan", "--remember", "-o", &file])).exits(0);
        if planned.out.contains("4 acts would free") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{planned:?}");
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    // Without leave in so many words the same plan only reports.
    let told = folder.path().join("told.toml");
    std::fs::write(&told, rules.replace("allow_unguarded = true\n", "")).unwrap();
    let told = told.display().to_string();
    let reported = run(folder.path(), &["plan", "--explain", "--from", &operator.from, "--config", &told]).exits(0);
    assert!(reported.out.contains("allow_unguarded = true") && reported.out.contains("0 acts"), "{reported:?}");

    ground.drain("TWO", "old", 1).await;
    // More comes meanwhile, which was not decided about.
    ground.publish("one.a", 5).await;
    let applied = run(folder.path(), &operator.place(&["apply", &file])).exits(4);
    assert!(applied.out.contains("3 done, 0 pending, 1 skipped, 0 failed"), "{applied:?}");
    let old = "jetstream://$G/ORDERS?subscription=old";
    assert_eq!(operator.verdicts(old), [("purge".to_owned(), "done".to_owned())]);
    assert_eq!(operator.verdicts("jetstream://$G/AGED"), [("purge".to_owned(), "done".to_owned())]);
    let (messages, _, first) = ground.held("ORDERS").await;
    assert_eq!((messages, first), (20, 31), "up to where the slow one is");
    for consumer in ["audit-slow", "old"] {
        assert_eq!(ground.owed("ORDERS", consumer, 20).await, (31..=50).collect::<Vec<u64>>(), "{consumer}");
    }
    assert_eq!(ground.held("AGED").await.0, 0);
    assert_eq!(ground.owed("ONE", "old", 5).await, (51..=55).collect::<Vec<u64>>());
    assert_eq!(ground.owed("TWO", "old", 49).await, (2..=50).collect::<Vec<u64>>());
}

/// trimtab's own streams, on the same servers, by rules that would take anything.
pub(crate) async fn our_own_streams_are_scanned_without_harm() {
    let ground = Ground::new().await;
    let folder = tempfile::tempdir().unwrap();
    let options =
        NatsOptions { servers: ground.rig.urls(), create: true, bus: BusOptions::default(), ..NatsOptions::default() };
    let bus = JetStream::connect(options).await.unwrap();
    let _store = bus.store();
    let streams = ground.api("STREAM.NAMES", Value::Null).await;
    let names: Vec<String> = serde_json::from_value(streams["streams"].clone()).unwrap();
    assert!(names.len() > 5, "{names:?}");
    // Something lies in each, and nobody takes it.
    for (subject, messages) in [
        ("trimtab.cand.x.ledger.0", 3),
        // One for each key.
        ("trimtab.dec.x.trim.0.k", 1),
        ("trimtab.res.x.done", 3),
        ("trimtab.dlq.decider.x", 3),
    ] {
        ground.publish(subject, messages).await;
    }
    let before = states(&ground, &names).await;
    for action in ["reclaim", "delete"] {
        let rules = RULES.replace("grace = \"3s\"", "grace = \"0s\"");
        let rules = rules.replace("allow_unguarded", &format!("action = \"{action}\"\nallow_unguarded"));
        let operator = operator(&folder, &ground.rig, &rules);
        for _ in 0..4 {
            let ended = operator.run();
            assert!(ended.out.contains("nothing was to be done"), "{ended:?}");
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        let explained = operator.explained();
        for item in explained["items"].as_array().unwrap() {
            assert_eq!(item["reasons"][0]["rule"], "protected", "{item}");
        }
    }
    assert_eq!(states(&ground, &names).await, before);
}

async fn states(ground: &Ground, names: &[String]) -> Vec<(String, Value, Value)> {
    let mut states = Vec::new();
    for name in names {
        let info = ground.api(&format!("STREAM.INFO.{name}"), Value::Null).await;
        let consumers = ground.api(&format!("CONSUMER.NAMES.{name}"), Value::Null).await;
        states.push((name.clone(), info["state"]["messages"].clone(), consumers["consumers"].clone()));
    }
    states
}

/// README's second example.
pub(crate) async fn a_newcomer_sees_storage_come_back() {
    let server = cache::nats_server().unwrap();
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    assert!(readme.contains("-p trimtab -- demo"), "README shows it");
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::join_paths(
        std::iter::once(server.parent().unwrap().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )
    .unwrap();
    // Built first: that is no part of the minute.
    let _ = binary();
    let begun = Instant::now();
    let ended = begin(folder.path(), &["demo"], &[("PATH", path.to_str().unwrap())]).wait().exits(0);
    println!("{}\nin {:.1} s", ended.out, begun.elapsed().as_secs_f64());
    for text in [
        "1980 messages",
        "1 acts would free",
        "1 done, 0 pending",
        "and holds 0 messages",
        "consume",
        "of 3 new messages it gets 3",
    ] {
        assert!(ended.out.contains(text), "{text:?} is not in\n{}", ended.out);
    }
}
