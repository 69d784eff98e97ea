//! The captured tree against what is to be said of each of its ledgers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fake::Judged;
use crate::fake::{Fake, Nodes, captured_file, live, snapshot, snapshot_file};

/// What is to be said of each ledger, by verdict.
fn expected() -> BTreeMap<String, BTreeSet<i64>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pulsar/expected.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut all: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        if line["kind"] == "ledger" {
            let verdict = line["verdict"].as_str().unwrap().to_owned();
            all.entry(verdict).or_default().insert(line["id"].as_i64().unwrap());
        }
    }
    all
}

fn as_expected(judged: &Judged) {
    let expected = expected();
    assert_eq!(judged.orphans(), expected["orphan"]);
    assert_eq!(judged.orphans().len(), 16);
    let rule = |rule: &str| judged.by_rule(rule).into_iter().collect::<BTreeSet<i64>>();
    assert_eq!(rule("foreign"), expected["foreign"]);
    assert_eq!(rule("suspect-open"), expected["suspect-open"]);
    let young: BTreeSet<i64> = rule("too-young").union(&rule("ceiling")).copied().collect();
    assert_eq!(young, expected["too-young"]);
    assert_eq!(judged.decisions.len(), 16 + 3 + 1 + 2);
    assert_eq!(judged.report.ledgers, 622);
    assert_eq!(judged.report.lonely, 22);
    let missing: BTreeSet<i64> = judged.report.missing_examples.iter().map(|missing| missing.ledger).collect();
    assert_eq!(missing, expected["missing"]);
    assert_eq!(judged.report.namespaces_missing_examples, ["acme/halfgone"]);
    assert_eq!(judged.report.incomplete, BTreeMap::new());
    assert_eq!((&judged.report.broken, judged.report.strays), (&None, 0));
    // What a set difference against the topics' lists would delete: the 22, and what something else names.
    let comparison = &judged.report.comparison;
    let named: BTreeMap<&str, u64> =
        comparison.named.iter().map(|(kind, kept)| (kind.as_str(), kept.ledgers)).collect();
    assert_eq!(named, BTreeMap::from([("compacted", 1), ("cursor", 8), ("delayed-bucket", 2), ("schema", 71)]));
    assert_eq!(comparison.naive, 22 + 82);
}

#[test]
fn a_snapshot_has_the_sixteen_and_no_other() {
    as_expected(&snapshot_file(&captured_file()).unwrap());
    as_expected(&snapshot(&Nodes::captured()).unwrap());
}

#[test]
fn a_live_tree_has_the_sixteen_and_no_other() {
    let tree = Fake::new(&Nodes::captured());
    as_expected(&live(&tree).unwrap());
    // At most one look at each ledger that nothing names, and at the three that are named and not there; none at the others.
    let log = tree.log.lock().unwrap();
    let looks = |what: &str| log.iter().filter(|call| call.starts_with(what) && call.contains("/L0")).count();
    assert_eq!((looks("get"), looks("stat"), looks("children")), (22, 3, 0));
}
