//! What is served, held against a real Prometheus and a receiver of OTLP.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trimtab_tests::http::once;
use trimtab_tests::nats::NatsRig;
use trimtab_tests::otlp::Receiver;
use trimtab_tests::ports::Port;
use trimtab_tests::prometheus::{Prometheus, promtool};
use trimtab_tests::trimtab::{binary, run, start};

use super::{alerts, expressions, metric_of, root};

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

const RULES: &str = r#"
[caps]
max_share = 1.0

[[rules]]
name = "age"
match = ["*/*"]
ttl = "1s"
override = true
allow_unguarded = true
"#;

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Streams with messages that are to go by age.
async fn streams(url: &str) {
    let client = async_nats::connect(url).await.unwrap();
    let context = async_nats::jetstream::new(client);
    for (name, messages) in [("ONE", 20), ("TWO", 7)] {
        let subjects = vec![format!("{}.>", name.to_lowercase())];
        let config = async_nats::jetstream::stream::Config { name: name.to_owned(), subjects, ..Default::default() };
        context.create_stream(config).await.unwrap();
        for _ in 0..messages {
            let sent = context.publish(format!("{}.a", name.to_lowercase()), vec![b'x'; 1_000].into()).await.unwrap();
            sent.await.unwrap();
        }
    }
}

/// The series of a page in Prometheus' format: name and labels, without values.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
#[ignore = "needs nats-server and Prometheus"]
fn a_real_prometheus_has_the_numbers_that_the_record_has() {
    let _ = binary();
    let rig = NatsRig::builder().sync_interval("2m").start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(streams(&rig.url()));
    let (folder, otlp, port) = (tempfile::tempdir().unwrap(), Receiver::start().unwrap(), Port::take().unwrap());
    let config = folder.path().join("trimtab.toml");
    std::fs::write(&config, RULES).unwrap();
    let (from, config, address) = (rig.url(), config.display().to_string(), port.address());
    let args = ["run", "--apply", "--every", "1s", "--from", &from, "--config", &config, "--http", &address];
    let (endpoint, often) = (otlp.url(), ("OTEL_METRIC_EXPORT_INTERVAL", "500"));
    let mut process = start("run", folder.path(), &args, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint), often]).unwrap();
    let page = || once("GET", &format!("http://{address}/metrics"), None, None, PATIENCE).unwrap().ok().unwrap().body;
    process
        .wait_until(PATIENCE, || once("GET", &format!("http://{address}/livez"), None, None, PATIENCE).is_ok())
        .unwrap();

    let rules = root().join("deploy/prometheus/rules.yml");
    let prometheus = Prometheus::start("trimtab", &address, &rules).unwrap();
    let value = |expression: &str| prometheus.value(expression).unwrap();
    until("both streams are trimmed", || value(r#"trimtab_outcomes_total{status="done"}"#) == Some(2.0));
    until("a whole scan has ended after that", || value("trimtab_scan_proposed_bytes") == Some(0.0));

    // What the record says is what Prometheus says.
    let listed = run(folder.path(), &["audit", "list", "--output", "json"]).exits(0);
    let records: Vec<Value> = listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done: Vec<&Value> = records.iter().filter(|record| record["status"] == "done").collect();
    let freed: f64 = done.iter().map(|record| record["freed_bytes"].as_f64().unwrap()).sum();
    assert!(done.len() == 2 && freed > 27_000.0, "{records:?}");
    assert_eq!(value("trimtab_freed_bytes_total"), Some(freed));
    assert_eq!(value(r#"trimtab_decisions_total{verdict="purge"}"#), Some(2.0));
    assert_eq!(value(r#"trimtab_outcomes_total{status="failed"}"#), Some(0.0), "it is there before it happens");
    assert_eq!(value(r#"sum(trimtab_events_handled_total{role="executor",result="done"})"#), Some(2.0));
    assert_eq!(value("trimtab_scan_stopped"), Some(0.0));
    assert_eq!(value("min(trimtab_check)"), Some(1.0));
    assert_eq!(value("count(trimtab_queue_depth)"), Some(4.0));
    let complete = value("time() - trimtab_scan_last_complete_timestamp_seconds").unwrap();
    assert!((-2.0..120.0).contains(&complete), "{complete}");
    assert_eq!(value(r#"count(trimtab_build_info{role="run"})"#), Some(1.0));

    // Every expression that is shipped is understood, every alert is loaded, and none is on.
    for (place, expression) in expressions() {
        let answer = prometheus.api("query", &[("query", &expression)]).unwrap();
        assert_eq!(answer.json().unwrap()["status"], "success", "{place}: {expression}: {answer:?}");
    }
    let loaded = || {
        let answer = prometheus.api("rules", &[]).unwrap().json().unwrap();
        answer["data"]["groups"][0]["rules"].as_array().unwrap().clone()
    };
    assert_eq!(loaded().len(), alerts().len());
    assert!(loaded().iter().all(|rule| rule["lastError"].is_null()), "{:?}", loaded());
    // One was pending before the first page was taken.
    until("no alert is on", || loaded().iter().all(|rule| rule["state"] == "inactive"));

    // The page itself: all of it is declared, with its kind; Prometheus' own tool finds nothing to say.
    let text = page();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        if name == "target_info" {
            continue;
        }
        let bucket = if kind == "histogram" { format!("{name}_bucket") } else { name.to_owned() };
        let declared = metric_of(&bucket).unwrap_or_else(|| panic!("{name} is not declared"));
        assert_eq!(declared.kind.name(), kind, "{name}");
    }
    let (content, said) = promtool(folder.path(), &["check", "metrics"], &text).unwrap();
    assert!(content && said.trim().is_empty(), "{said}");

    // The last outcome that was counted leads to its trace, which is that of the record.
    let traces: BTreeSet<&str> = done.iter().map(|record| record["trace_id"].as_str().unwrap()).collect();
    let found = || {
        let query = r#"trimtab_outcomes_total{status="done"}"#;
        let times = [("query", query), ("start", "0"), ("end", "9999999999")];
        let answer = prometheus.api("query_exemplars", &times).unwrap().json().unwrap();
        let all =
            answer["data"].as_array().into_iter().flatten().flat_map(|of| of["exemplars"].as_array().unwrap().clone());
        all.map(|exemplar| exemplar["labels"]["trace_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    until("an exemplar was taken", || !found().is_empty());
    assert!(found().iter().all(|id| traces.contains(id.as_str())), "{:?} {traces:?}", found());

    // Whoever is sent the metrics has the same ones.
    let sent = || otlp.metrics();
    until("the same metrics are sent", || {
        let sent: BTreeSet<String> = sent().keys().cloned().collect();
        let served: BTreeSet<String> = series(&page())
            .iter()
            .filter_map(|one| metric_of(one.split('{').next()?))
            .map(|m| m.name.to_owned())
            .collect();
        served.len() > 20 && sent == served
    });
    until("with the same numbers", || {
        sent().get("trimtab.freed") == Some(&freed) && sent().get("trimtab.outcomes") == Some(&2.0)
    });
    assert!(process.stop().unwrap().success());
}

/// The rules without what is written for people, which a test of them would have to repeat.
fn bare_rules() -> String {
    let mut rules: Value = serde_yaml_ng::from_str(&super::read("deploy/prometheus/rules.yml")).unwrap();
    for group in rules["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            rule.as_object_mut().unwrap().remove("annotations");
        }
    }
    rules.to_string()
}

#[test]
#[ignore = "needs Prometheus"]
fn each_alert_fires_in_its_case_and_not_before() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/prometheus");
    let (content, said) = promtool(&root(), &["check", "rules", "deploy/prometheus/rules.yml"], "").unwrap();
    assert!(content, "{said}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yml"), bare_rules()).unwrap();
    // By name: whether it fired in some case, and whether it kept quiet in another.
    let mut cases: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for name in ["alerts.yml", "alerts-of-days.yml"] {
        let text = std::fs::read_to_string(data.join(name)).unwrap();
        let file: Value = serde_yaml_ng::from_str(&text).unwrap();
        for case in
            file["tests"].as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap())
        {
            let (fired, quiet) = cases.entry(case["alertname"].as_str().unwrap().to_owned()).or_default();
            let fires = case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
            *if fires { fired } else { quiet } = true;
        }
        std::fs::write(folder.path().join(name), text).unwrap();
        let (content, said) = promtool(folder.path(), &["test", "rules", name], "").unwrap();
        assert!(content, "{said}");
    }
    let all: BTreeMap<String, (bool, bool)> = alerts().into_keys().map(|name| (name, (true, true))).collect();
    assert_eq!(cases, all, "fired, and kept quiet");

    // And a wrong one is found.
    let wrong = json!({ "rule_files": ["rules.yml"], "tests": [{ "input_series": [], "alert_rule_test": [
        { "eval_time": "5m", "alertname": "TrimtabAbsent", "exp_alerts": [{ "exp_labels": { "severity": "warning" } }] }] }] });
    std::fs::write(folder.path().join("wrong.yml"), wrong.to_string()).unwrap();
    assert!(!promtool(folder.path(), &["test", "rules", "wrong.yml"], "").unwrap().0);
}
