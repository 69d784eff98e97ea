//! What operators see: every metric is declared, documented, and served alike to whoever scrapes and whoever is sent to; a real Prometheus
//! takes them; the alerts fire when they should and not before; nothing that is shipped names a metric that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use trimtab::metrics::{ALL, Declared, Kind, Values, table};

#[path = "metrics/served.rs"]
mod served;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// `TRIMTAB_UPDATE_DOCS=1` writes it instead.
#[test]
fn the_documentation_has_every_metric() {
    let (path, begin, end) = (root().join("docs/metrics.md"), "<!-- declared -->\n", "<!-- /declared -->");
    let text = read("docs/metrics.md");
    let (before, rest) = text.split_once(begin).expect("a table");
    let (kept, after) = rest.split_once(end).expect("its end");
    let table = table();
    if std::env::var_os("TRIMTAB_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        let how = "TRIMTAB_UPDATE_DOCS=1 cargo test --test metrics writes it";
        assert!(kept == table, "docs/metrics.md is not what workers/trimtab/src/metrics.rs declares; {how}");
    }
}

/// Every alert: its name, and all of it.
fn alerts() -> BTreeMap<String, Value> {
    let rules: Value = serde_yaml_ng::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule.clone())).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/grafana/trimtab.json")).unwrap()
}

/// Every panel of the dashboard that shows something: its title and its expressions.
fn panels(dashboard: &Value) -> Vec<(String, Vec<String>)> {
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let shown = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap_or_else(|| panic!("{title} shows nothing"));
        assert!(!targets.is_empty(), "{title} shows nothing");
        (title, targets.iter().map(|target| target["expr"].as_str().unwrap().to_owned()).collect())
    };
    panels.map(shown).collect()
}

/// What Grafana puts in for its variables.
fn filled_in(expression: &str) -> String {
    let filled = expression.replace("$__rate_interval", "1m").replace("$__range", "1h").replace("$job", "trimtab");
    assert!(!filled.contains('$'), "{expression} has a variable that the dashboard does not");
    filled
}

/// Every expression that is shipped: where it is, and the expression.
fn expressions() -> Vec<(String, String)> {
    let rules = alerts().into_iter().map(|(name, rule)| (name, rule["expr"].as_str().unwrap().to_owned()));
    let shown = panels(&dashboard()).into_iter().flat_map(|(title, all)| {
        all.into_iter().map(move |expression| (format!("panel {title:?}"), filled_in(&expression)))
    });
    rules.chain(shown).collect()
}

/// The metric that a series of this name belongs to.
fn metric_of(series: &str) -> Option<&'static Declared> {
    ALL.iter().copied().find(|metric| {
        let name = metric.exposed();
        match metric.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"].iter().any(|part| series == format!("{name}{part}")),
            _ => series == name,
        }
    })
}

/// Labels that Prometheus adds by itself.
const ADDED: [&str; 3] = ["job", "instance", "le"];

/// What is wrong with an expression: a metric, a label or a value that is not declared.
fn wrong(expression: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut labels: BTreeSet<&str> = ADDED.into();
    let mut rest = expression;
    while let Some(at) = rest.find("trimtab_") {
        let found = &rest[at..];
        let end = found.find(|c| !word(c)).unwrap_or(found.len());
        let (name, after) = found.split_at(end);
        rest = after;
        let Some(metric) = metric_of(name) else {
            wrong.push(format!("there is no metric {name}"));
            continue;
        };
        labels.extend(metric.labels.iter().map(|label| label.name));
        let Some(selector) = after.strip_prefix('{').and_then(|text| text.split_once('}')) else { continue };
        for one in selector.0.split(',') {
            let (label, value) = one.split_once('=').unwrap_or_else(|| panic!("{one:?} in {expression}"));
            let (label, value) = (label.trim(), value.trim_start_matches('~').trim_matches('"'));
            let Some(declared) = metric.labels.iter().find(|known| known.name == label) else {
                if !ADDED.contains(&label) {
                    wrong.push(format!("{name} has no label {label}"));
                }
                continue;
            };
            if let Values::These(values) | Values::OneOf(values) = declared.values {
                let unknown = value.split('|').filter(|one| !values().contains(one));
                wrong.extend(unknown.map(|one| format!("{label} of {name} is never {one:?}")));
            }
        }
    }
    for list in expression.split("by (").skip(1).chain(expression.split("on (").skip(1)) {
        let names = list.split(')').next().unwrap_or_default().split(',').map(str::trim);
        wrong.extend(
            names.filter(|name| !labels.contains(name)).map(|name| format!("no metric in it has a label {name}")),
        );
    }
    wrong
}

#[test]
fn what_is_shipped_names_only_what_is_declared() {
    for (place, expression) in expressions() {
        assert_eq!(wrong(&expression), Vec::<String>::new(), "{place}: {expression}");
        assert!(expression.contains("trimtab_"), "{place}: {expression}");
    }
    assert_eq!(wrong(r#"sum by (verdict) (trimtab_outcomes_total{status="dome"})"#).len(), 2);
    assert_eq!(
        wrong("trimtab_outcome_total + trimtab_freed_bytes_total"),
        ["there is no metric trimtab_outcome_total"]
    );
}

/// How an address of a heading of a page is made.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings
        .map(|text| text.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect())
        .collect()
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() > 10, "{}", alerts.len());
    let runbook = anchors(&read("docs/runbook.md"));
    for (name, alert) in &alerts {
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        for text in ["summary", "description"] {
            assert!(alert["annotations"][text].as_str().is_some_and(|text| text.len() > 20), "{name} has no {text}");
        }
        let link = alert["annotations"]["runbook_url"].as_str().unwrap();
        let anchor = link.strip_prefix("docs/runbook.md#").unwrap_or_else(|| panic!("{name}: {link}"));
        assert!(anchor == name.to_lowercase() && runbook.contains(anchor), "{name}: {link} leads nowhere");
    }
    let told = runbook.iter().filter(|anchor| anchor.starts_with("trimtab") && *anchor != "trimtab");
    for anchor in told {
        assert!(
            alerts.keys().any(|name| name.to_lowercase() == *anchor),
            "the runbook has {anchor}, which is no alert"
        );
    }
}

#[test]
fn the_dashboard_can_be_put_on_any_data_source() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(
        variables
            .iter()
            .any(|one| one["name"] == "datasource" && one["type"] == "datasource" && one["query"] == "prometheus")
    );
    assert!(variables.iter().any(|one| one["name"] == "job"));
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = &panel["title"];
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has the id of another panel");
        let place = &panel["gridPos"];
        let [x, y, w] = ["x", "y", "w"].map(|side| place[side].as_u64().unwrap());
        assert!(x + w <= 24 && places.insert((y, x)), "{title} is in the way of another panel");
        let sources = panel["targets"].as_array().into_iter().flatten().map(|target| &target["datasource"]);
        for source in sources.chain(panel.get("datasource")) {
            assert_eq!(source["uid"], "${datasource}", "{title}");
        }
    }
    let shown: String = panels(&dashboard).into_iter().flat_map(|(_, all)| all).collect();
    // What an operator asks first.
    for name in [
        "trimtab_freed_bytes_total",
        "trimtab_scan_proposed_bytes",
        "trimtab_scan_stopped",
        "trimtab_events_dead_total",
    ] {
        assert!(shown.contains(name), "{name}");
    }
}
