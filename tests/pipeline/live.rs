//! A real Pulsar: plans that are no longer true, snapshots of it, and what can be asked for over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trimtab_targets::pulsar::managed_ledger_info;
use trimtab_tests::book::quickstart;
use trimtab_tests::formats::Proto;
use trimtab_tests::http::request;
use trimtab_tests::java::JavaClient;
use trimtab_tests::mess::Mess;
use trimtab_tests::now_ms;
use trimtab_tests::ports::Port;
use trimtab_tests::trimtab::{run, start};

fn ids(client: &mut JavaClient, topic: &str) -> Vec<i64> {
    client.listed(&Mess::managed_ledger(topic)).unwrap().iter().map(|ledger| ledger.id).collect()
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A cursor before the first entry of this ledger, as a broker stores it.
fn cursor_before(ledger: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (field, value) in [(1, -1), (2, ledger), (3, -1)] {
        varint(field << 3, &mut bytes);
        varint(value as u64, &mut bytes);
    }
    bytes
}

/// X-04: what was reviewed is what is carried out. One topic changed since: it is left out, and told with the difference. One
/// that is due and not in the plan stays.
#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn a_plan_is_carried_out_as_it_was_reviewed_or_not_at_all() {
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let mut client = mess.rig.client().unwrap();
    let from = format!("zk://{}", mess.rig.zk());
    let file = state.join("plan.json").display().to_string();
    // Known to be none. Without that the first visit of a namespace, which makes the broker open its `__change_events`, would
    // leave the policies of all its other topics unknown, and so keep them.
    let policies = state.join("policies.json").display().to_string();
    std::fs::write(&policies, "{}").unwrap();
    let planned = run(
        state,
        &[
            "plan",
            "--from",
            &from,
            "--topic-policies",
            &policies,
            "--include",
            "attic/bulk/t00?",
            "-o",
            &file,
            "--output",
            "json",
        ],
    );
    let plan = planned.exits(0).json();
    let items: BTreeMap<String, Vec<i64>> = plan["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            (item["subject"].as_str().unwrap().to_owned(), serde_json::from_value(item["ledgers"].clone()).unwrap())
        })
        .collect();
    assert_eq!(items.len(), 10, "{plan}");

    let changed = "persistent://attic/bulk/t004";
    let first = ids(&mut client, changed)[0];
    client.put(&format!("/managed-ledgers/{}/late", Mess::managed_ledger(changed)), &cursor_before(first)).unwrap();
    let outside = "persistent://attic/zero/consumed";
    let before: BTreeMap<&str, Vec<i64>> =
        items.keys().map(String::as_str).chain([outside]).map(|topic| (topic, ids(&mut client, topic))).collect();

    let ended = run(
        state,
        &["apply", &file, "--from", &from, "--topic-policies", &policies, "--max-share", "1", "--output", "json"],
    )
    .exits(4);
    let outcomes: Vec<Value> = ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let subjects: BTreeSet<&str> = outcomes.iter().map(|outcome| outcome["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, items.keys().map(String::as_str).collect(), "exactly the plan's topics, no other");
    for outcome in &outcomes {
        let topic = outcome["subject"].as_str().unwrap();
        let now = ids(&mut client, topic);
        if topic == changed {
            assert_eq!(outcome["status"], "skipped", "{outcome}");
            let says = outcome["reasons"].to_string();
            assert!(says.contains("it was to be trim, by now it is blocked") && says.contains("late"), "{says}");
            assert!(before[topic].iter().take(3).all(|id| now.contains(id)), "{:?} -> {now:?}", before[topic]);
        } else {
            assert_eq!(outcome["status"], "done", "{outcome}");
            assert!(items[topic].iter().all(|id| !now.contains(id)), "{topic}: {now:?}");
            let beyond = before[topic].iter().filter(|id| !now.contains(id) && !items[topic].contains(id));
            assert!(beyond.count() <= 1, "{topic}: only an empty last ledger may go besides: {outcome}");
        }
    }
    assert_eq!(ids(&mut client, outside), before[outside]);
    // The same plan once more: everything in it is done, nothing is done twice.
    let again = run(
        state,
        &["apply", &file, "--from", &from, "--topic-policies", &policies, "--max-share", "1", "--output", "json"],
    );
    assert!(again.out.lines().all(|line| line.contains("\"skipped\"")), "{again:?}");

    // A plan of another cluster, an old one, and none at all.
    for (name, text, code) in [
        ("other", plan.to_string().replace(plan["cluster"].as_str().unwrap(), "pulsar 1@2"), 2),
        (
            "old",
            {
                let mut old = plan.clone();
                old["expires_ms"] = json!(1);
                old.to_string()
            },
            2,
        ),
        ("none", "{}".to_owned(), 2),
    ] {
        let file = state.join(name).display().to_string();
        std::fs::write(&file, text).unwrap();
        let _ = run(state, &["apply", &file, "--from", &from, "--max-share", "1"]).exits(code);
    }
}

fn essence(plan: &Value) -> BTreeMap<String, Value> {
    let of = |item: &Value| json!([item["verdict"], item["ledgers"], item["bytes"], item["reasons"], item["holder"]]);
    plan["items"].as_array().unwrap().iter().map(|i| (i["subject"].as_str().unwrap().to_owned(), of(i))).collect()
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn a_snapshot_is_planned_like_the_cluster_it_was_taken_of() {
    let mess = Mess::start_with(trimtab_tests::pulsar::PulsarRig::builder().null_metadata()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let from = format!("zk://{}", mess.rig.zk());
    let at = ["--now", "2030-01-01T00:00:00Z", "--explain", "--output", "json"];
    let policies = state.join("policies.json").display().to_string();
    std::fs::write(&policies, r#"{"persistent://attic/topical/short": {"retention": [60, -1]}}"#).unwrap();
    for more in [&[][..], &["--topic-policies", &policies], &["--namespace", "attic/names"]] {
        let live = run(state, &[&["plan", "--from", &from], &at[..], more].concat());
        let live = (live.code, live.json());
        for name in ["mess.jsonl", "mess.jsonl.gz", "mess.jsonl.zst"] {
            let file = state.join(name).display().to_string();
            if !std::path::Path::new(&file).exists() {
                let _ = run(state, &["snapshot", "--from", &from, "-o", &file]).exits(0);
            }
            let planned = run(state, &[&["plan", "--snapshot", &file], &at[..], more].concat());
            assert_eq!(planned.code, live.0, "{name}: {}", planned.err);
            let planned = planned.json();
            assert_eq!(planned["totals"], live.1["totals"], "{name} {more:?}");
            let (is, should) = (essence(&planned), essence(&live.1));
            for (subject, should) in &should {
                assert_eq!(is.get(subject), Some(should), "{name} {more:?} {subject}");
            }
            assert_eq!(is.len(), should.len(), "{name}");
        }
    }
    // A file that was cut says where.
    let text = std::fs::read_to_string(state.join("mess.jsonl")).unwrap();
    let cut = state.join("cut.jsonl");
    std::fs::write(&cut, &text[..text.len() / 2]).unwrap();
    let ended = run(state, &["plan", "--snapshot", &cut.display().to_string()]).exits(1);
    assert!(ended.err.contains("line"), "{ended:?}");
}

/// The last thing that is done to a mess: it is carried out.
fn the_quick_start_can_be_typed(from: &str) {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let planned = run(state, &["plan", "--from", from, "--output", "json"]).json();
    let items = planned["items"].as_array().unwrap().iter();
    let due = items.filter(|item| item["verdict"] == "trim").map(|item| item["subject"].as_str().unwrap());
    let topic = due.min().expect("something is due");
    let file = state.join("plan.json").display().to_string();
    for section in ["Orphan ledgers of BookKeeper", "Pulsar"] {
        for command in quickstart(section, &[("zk://HOST:2181", from), ("TOPIC", topic), ("plan.json", &file)]) {
            let args: Vec<&str> = command.iter().map(String::as_str).collect();
            let ended = run(state, &args);
            // Of a mess not everything can be read.
            assert!([0, 4].contains(&ended.code), "{command:?}: {ended:?}");
        }
    }
    let story = run(state, &["audit", "show", topic]).exits(0);
    assert!(story.out.contains("freed"), "{story:?}");
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn what_can_be_asked_for_over_http() {
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let mut client = mess.rig.client().unwrap();
    let from = format!("zk://{}", mess.rig.zk());
    let port = Port::take().unwrap();
    let address = port.address();
    let token_file = state.join("http-token");
    std::fs::write(&token_file, "open-sesame\n").unwrap();
    let config = state.join("trimtab.toml").display().to_string();
    std::fs::write(&config, format!("[http]\ntoken_file = {token_file:?}\n")).unwrap();
    // The timer looks at one empty corner; everything else is asked for.
    let args = [
        "run",
        "--apply",
        "--every",
        "1h",
        "--namespace",
        "attic/forever",
        "--from",
        &from,
        "--http",
        &address,
        "--config",
        &config,
    ];
    let mut process = start("serving", state, &args, &[]).unwrap();
    let url = |path: &str| format!("http://{address}{path}");
    let get = |path: &str| request("GET", &url(path), None, None);
    process.wait_until(Duration::from_secs(30), || get("/livez").is_ok_and(|reply| reply.status == 200)).unwrap();
    let post = |path: &str, token: Option<&str>, body: &Value| {
        request("POST", &url(path), token, Some(&body.to_string())).unwrap()
    };
    let scanned = |id: &str| {
        let begun = Instant::now();
        loop {
            let shown = run(state, &["audit", "show", id, "--output", "json"]);
            if shown.code == 0 {
                return serde_json::from_str::<Value>(shown.out.lines().next().unwrap()).unwrap()["body"].clone();
            }
            assert!(begun.elapsed() < Duration::from_secs(40), "{id} is not recorded: {shown:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };

    let ready = get("/readyz?verbose").unwrap();
    assert_eq!(ready.status, 200);
    assert!(ready.body.contains("[+] bus ok") && ready.body.contains("[+] store ok"), "{}", ready.body);

    // Whoever starts something needs the token; whoever only looks does not.
    let topic = "persistent://attic/zero/consumed";
    let before = ids(&mut client, topic);
    let trim = json!({ "topic": topic });
    for token in [None, Some("open-sesam"), Some("open-sesame!"), Some("")] {
        assert_eq!(post("/v1/trims", token, &trim).status, 401, "{token:?}");
        assert_eq!(post("/v1/scans", token, &json!({})).status, 401, "{token:?}");
    }
    let token = Some("open-sesame");
    for (path, body) in [
        ("/v1/trims", json!({ "topic": "no topic's name" })),
        ("/v1/trims", json!({ "topics": topic })),
        ("/v1/trims", json!({})),
        ("/v1/scans", json!({ "namspace": "attic/week" })),
        ("/v1/scans", json!({ "namespace": "attic" })),
        ("/v1/scans", json!({ "include": ["["] })),
        ("/v1/scans", json!([])),
    ] {
        let reply = post(path, token, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {reply:?}");
        assert!(reply.json().unwrap()["error"].as_str().is_some_and(|why| why.len() > 10), "{reply:?}");
    }
    assert_eq!(ids(&mut client, topic), before);

    // One topic, as PIP-219's TrimLedger: through scanner, decider and executor.
    let reply = post("/v1/trims", token, &trim);
    assert_eq!(reply.status, 202, "{reply:?}");
    let id = reply.json().unwrap()["scan"].as_str().unwrap().to_owned();
    let report = scanned(&id);
    assert_eq!((report["scope"]["topic"].as_str(), report["topics"].as_u64()), (Some(topic), Some(1)), "{report}");
    let begun = Instant::now();
    let outcome = loop {
        let shown = run(state, &["audit", "list", "--subject", topic, "--output", "json"]).exits(0);
        if let Some(line) = shown.out.lines().find(|line| line.contains("\"done\"")) {
            break serde_json::from_str::<Value>(line).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(40), "{shown:?}");
        std::thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(outcome["scan"].as_str(), Some(id.as_str()));
    let after = ids(&mut client, topic);
    assert!(!after.contains(&before[0]), "{before:?} -> {after:?}");

    // A scope, and an alert about a namespace: scans of these and nothing else. Both hold nothing that is due.
    let reply = post("/v1/scans", token, &json!({ "namespace": "attic/live" }));
    assert_eq!(reply.status, 202, "{reply:?}");
    let report = scanned(reply.json().unwrap()["scans"][0].as_str().unwrap());
    assert_eq!(
        (report["scope"]["namespace"].as_str(), report["proposed"]["acts"].as_u64()),
        (Some("attic/live"), Some(0))
    );
    let alert = json!({ "version": "4", "groupKey": "{}", "status": "firing", "receiver": "trimtab", "alerts": [
        { "status": "firing", "labels": { "alertname": "BookieDiskFull", "namespace": "attic/size" } },
        { "status": "firing", "labels": { "alertname": "BookieDiskFull", "tenant": "attic", "namespace": "size" } },
        { "status": "resolved", "labels": { "namespace": "attic/week" } },
        { "status": "firing", "labels": { "alertname": "Watchdog" } } ] });
    let reply = post("/v1/scans", token, &alert);
    let scans = reply.json().unwrap()["scans"].as_array().unwrap().clone();
    assert_eq!((reply.status, scans.len()), (202, 1), "{reply:?}");
    let report = scanned(scans[0].as_str().unwrap());
    assert_eq!(
        (report["scope"]["namespace"].as_str(), report["proposed"]["acts"].as_u64()),
        (Some("attic/size"), Some(0))
    );
    assert!(report["topics"].as_u64().is_some_and(|topics| topics >= 2), "{report}");

    let metrics = get("/metrics").unwrap();
    assert_eq!(metrics.status, 200);
    for name in ["operations", "topics", "candidates", "scans", "decisions"] {
        let lines = metrics.body.lines().filter(|line| line.starts_with("trimtab_") && line.contains(name));
        let mut values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        assert!(values.any(|value| value > 0.0), "{name}\n{}", metrics.body);
    }
    assert_eq!(get("/v1/scans").unwrap().status, 405);
    assert_eq!(get("/nothing").unwrap().status, 404);
    assert!(process.stop().unwrap().success());

    follows(&mess, &mut client);
    the_quick_start_can_be_typed(&from);
}

/// Following the same cluster: a topic that nobody has loaded changes, falls due a few seconds later by time alone, and is trimmed by its
/// broker, without a second full scan.
fn follows(mess: &Mess, client: &mut JavaClient) {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let config = state.join("trimtab.toml").display().to_string();
    let rules = "[follow]\nenabled = true\ninterval = \"500ms\"\n[[rules]]\nmatch = [\"attic/bulk/t000\"]\n\
                 [[rules]]\nmatch = [\"**\"]\naction = \"keep\"\n";
    std::fs::write(&config, rules).unwrap();
    // Its ledgers were closed now, but for the first.
    let topic = "persistent://attic/bulk/t000";
    let node = format!("/managed-ledgers/{}", Mess::managed_ledger(topic));
    let list = managed_ledger_info(&client.get(&node).unwrap()).unwrap().ledgers;
    let write = |client: &mut JavaClient, first_ms: i64| {
        let mut changed = Proto::default();
        for (index, info) in list.iter().enumerate() {
            let closed_ms = if index == 0 { first_ms } else { now_ms() };
            let ledger = Proto::default().int(1, info.id);
            let ledger = match (info.entries, info.bytes) {
                (Some(entries), Some(bytes)) if info.closed_ms > 0 => {
                    ledger.int(2, entries).int(3, bytes).int(4, closed_ms)
                }
                _ => ledger.int(4, 0),
            };
            changed = changed.bytes(1, &ledger.0);
        }
        client.put(&node, &changed.0).unwrap();
    };
    write(client, now_ms());
    let from = format!("zk://{}", mess.rig.zk());
    let args = ["run", "--apply", "--from", &from, "--config", &config];
    let mut process = start("following", state, &args, &[]).unwrap();
    let scans = || {
        let record = std::fs::read_to_string(state.join("audit/executor.jsonl")).unwrap_or_default();
        let lines = record.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["kind"] == "scan").map(|line| line["body"].clone()).collect::<Vec<_>>()
    };
    process.wait_until(Duration::from_secs(60), || !scans().is_empty()).unwrap();
    assert_eq!(scans()[0]["proposed"]["acts"], 0, "{:?}", scans());
    // Its first ledger gets past the seven days of its namespace in five seconds.
    let due_ms = now_ms() + 5_000;
    write(client, due_ms - 7 * 86_400_000);
    process.wait_until(Duration::from_secs(90), || !ids(client, topic).contains(&list[0].id)).unwrap();
    assert!(now_ms() > due_ms);
    assert!(ids(client, topic).contains(&list[1].id));
    let all = scans().iter().filter(|report| report["scope"] == json!({})).count();
    assert_eq!(all, 1, "{:#?}", scans());
    assert!(process.stop().unwrap().success());
}
