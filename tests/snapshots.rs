//! The snapshot file: whatever its order and compression, the same decisions; whatever is cut, damaged or missing, never more
//! of them and never silence.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use futures::StreamExt;
use serde_json::{Value, json};
use trimtab_events::{Candidate, Decision, Evidence, LastLedger, LedgerCandidate, Loaded, ScanRef, Scope, Verdict};
use trimtab_policy::{Context, Policy, PolicyConfig, check, decide};
use trimtab_targets::pulsar::snapshot::Snapshot;
use trimtab_targets::pulsar::{Settings, TopicName, ledger_path, managed_ledger_info, topic_policies_file};
use trimtab_targets::{Inventory, Item, Reads};

const NOW_MS: i64 = 1_795_986_124_974;
const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pulsar").join(name)
}

/// The captured nodes, sorted by path.
fn captured() -> Vec<Value> {
    let file = std::fs::File::open(data("metadata-small.jsonl.gz")).unwrap();
    let text = std::io::read_to_string(flate2::read::GzDecoder::new(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A few namespaces of it, with one topic or more for every verdict, and numbers of children that agree.
fn few() -> Vec<Value> {
    let wanted = ["acme/week", "acme/live", "acme/parts", "acme/ttl", "acme/misc2"];
    let nodes = captured();
    let ledgers: BTreeSet<String> = nodes
        .iter()
        .filter(|node| {
            wanted.iter().any(|shard| path(node).starts_with(&format!("/managed-ledgers/{shard}/persistent/")))
        })
        .flat_map(|node| managed_ledger_info(&value(node)).into_iter().flat_map(|list| list.ledgers))
        .map(|info| ledger_path("/ledgers", false, false, info.id))
        .collect();
    let keep = |node: &&Value| {
        let path = path(node);
        let parts: Vec<&str> = path.split('/').collect();
        let shard = |at: usize| {
            parts.len() <= at
                || (parts[at] == "acme"
                    && (parts.len() == at + 1 || wanted.contains(&format!("acme/{}", parts[at + 1]).as_str())))
        };
        match parts[1] {
            "" => true,
            "ledgers" => path.split("/L").count() == 1 && !path.contains("available") || ledgers.contains(path),
            "managed-ledgers" | "namespace" => shard(2),
            "admin" => {
                ["policies", "local-policies", "partitioned-topics"].contains(parts.get(2).unwrap_or(&"")) && shard(3)
            }
            _ => false,
        }
    };
    let mut nodes: Vec<Value> = nodes.iter().filter(keep).cloned().collect();
    let paths: Vec<String> = nodes.iter().map(|node| path(node).to_owned()).collect();
    for node in &mut nodes {
        let above = format!("{}/", path(node).trim_end_matches('/'));
        let below =
            |other: &&String| other.strip_prefix(&above).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'));
        node["numChildren"] = json!(paths.iter().filter(below).count());
    }
    nodes
}

fn path(node: &Value) -> &str {
    node["path"].as_str().unwrap()
}

fn value(node: &Value) -> Vec<u8> {
    BASE64.decode(node["data"].as_str().unwrap()).unwrap()
}

/// The nodes as `trimtab snapshot` writes them: roots, then by namespace its own nodes, then by topic what it needs, itself, its
/// cursors. Not the writer's code: what it must come to.
fn scan_order(nodes: &[Value]) -> Vec<Value> {
    let by_path: BTreeMap<&str, &Value> = nodes.iter().map(|node| (path(node), node)).collect();
    let mut out: Vec<Value> = vec![by_path["/"].clone()];
    let roots = ["/ledgers", "/admin/policies", "/admin/partitioned-topics", "/managed-ledgers", "/namespace"];
    out.extend(roots.iter().filter_map(|root| by_path.get(root)).map(|node| (*node).clone()));
    let topics = |path: &&str| {
        let parts: Vec<&str> = path.split('/').collect();
        parts.len() == parts.iter().position(|part| *part == "persistent").map_or(0, |at| at + 2)
            && parts[1] == "managed-ledgers"
    };
    let mut shards: BTreeMap<String, Vec<(String, &str)>> = BTreeMap::new();
    for path in by_path.keys().copied().filter(topics) {
        let relative = path.strip_prefix("/managed-ledgers/").unwrap();
        let name = TopicName::of_managed_ledger(relative).unwrap();
        let first = if name.local.starts_with("__change_events") { "a" } else { "b" };
        let key = format!("{first}{}", name.partitioned_path());
        shards.entry(relative.split('/').take(2).collect::<Vec<_>>().join("/")).or_default().push((key, path));
    }
    for (shard, mut topics) in shards {
        let own = ["managed-ledgers", "admin/policies", "admin/local-policies", "namespace"];
        for root in own {
            let node = format!("/{root}/{shard}{}", if root == "managed-ledgers" { "/persistent" } else { "" });
            out.extend(by_path.get(node.as_str()).map(|node| (*node).clone()));
        }
        let locks = format!("/namespace/{shard}/");
        out.extend(
            by_path.range(locks.as_str()..).take_while(|(p, _)| p.starts_with(&locks)).map(|(_, node)| (*node).clone()),
        );
        topics.sort();
        let mut before = String::new();
        for (key, path) in topics {
            if key != before {
                out.extend(by_path.get(&key[1..]).map(|node| (*node).clone()));
                before = key;
            }
            let node = by_path[path];
            let last = managed_ledger_info(&value(node)).ok().and_then(|list| list.ledgers.last().map(|info| info.id));
            let last = last.map(|id| ledger_path("/ledgers", false, false, id));
            out.extend(last.and_then(|last| by_path.get(last.as_str()).map(|node| (*node).clone())));
            out.push(node.clone());
            let cursors = format!("{path}/");
            out.extend(
                by_path
                    .range(cursors.as_str()..)
                    .take_while(|(p, _)| p.starts_with(&cursors))
                    .map(|(_, node)| (*node).clone()),
            );
        }
    }
    closed(out)
}

/// With the header and the closing line that belong to so many lines.
fn closed(mut nodes: Vec<Value>) -> Vec<Value> {
    nodes[0]["order"] = json!("scan-1");
    nodes[0]["source"] = json!("zk://test");
    let mut end = nodes[0].clone();
    end["end"] = json!(nodes.len() + 1);
    end.as_object_mut().unwrap().remove("order");
    nodes.push(end);
    nodes
}

fn text(nodes: &[Value]) -> Vec<u8> {
    nodes.iter().flat_map(|node| format!("{node}\n").into_bytes()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// In frames of 64 KiB.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    bytes.chunks(64 * 1024).flat_map(|chunk| ruzstd::encoding::compress_to_vec(chunk, level)).collect()
}

/// What was made of a file.
#[derive(Debug, PartialEq)]
struct Read {
    topics: BTreeMap<String, LedgerCandidate>,
    decisions: BTreeMap<String, Decision>,
    problems: Vec<String>,
}

impl Read {
    fn takes(&self, subject: &str) -> &[i64] {
        self.decisions.get(subject).filter(|d| d.verdict.acts()).map_or(&[], |d| &d.ledgers)
    }

    /// No topic loses more than in `other`, and none is visited that was not.
    fn no_more_than(&self, other: &Read) -> bool {
        self.decisions.iter().filter(|(_, d)| d.verdict.acts()).all(|(subject, decision)| {
            let known = other.decisions.get(subject).is_some_and(|d| d.verdict.acts());
            known && other.takes(subject).starts_with(&decision.ledgers)
        })
    }
}

fn settings(with_topic_policies: bool) -> Settings {
    let text = std::fs::read_to_string(data("topic-policies.json")).unwrap();
    let known = with_topic_policies.then(|| Arc::new(topic_policies_file(&text).unwrap()));
    Settings { topic_policies: known, ..Settings::default() }
}

/// Reads and decides a file with these bytes; or the error.
fn read(bytes: &[u8]) -> Result<Read, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    read_file(file.path(), settings(true))
}

fn read_file(path: &Path, settings: Settings) -> Result<Read, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let snapshot = Snapshot::open(path, settings).map_err(|e| e.to_string())?;
    let scope = Scope::default();
    let items: Vec<_> = runtime.block_on(async { snapshot.scan("", &scope, &|_| Reads::ALL).collect().await });
    let policy = Policy::new(PolicyConfig::default(), "test").unwrap();
    let context = Context { scan: ScanRef { id: uuid::Uuid::nil(), fence: 0 }, target: "pulsar", now_ms: NOW_MS };
    let mut read = Read { topics: BTreeMap::new(), decisions: BTreeMap::new(), problems: Vec::new() };
    for item in items {
        match item.map_err(|e| e.to_string())? {
            Item::Problem(problem) => read.problems.push(problem),
            other @ (Item::Candidate(Candidate::Subscriber(_) | Candidate::Orphan(_)) | Item::Surveyed(_)) => {
                panic!("not asked for: {other:?}")
            }
            Item::Candidate(Candidate::Ledger(topic)) => {
                let decision = decide(&topic, &policy, &context);
                check(&decision, &topic, NOW_MS).unwrap();
                assert!(
                    read.decisions.insert(topic.subject.clone(), decision).is_none(),
                    "{} came twice",
                    topic.subject
                );
                read.topics.insert(topic.subject.clone(), *topic);
            }
        }
    }
    Ok(read)
}

/// A fixed order that is none.
fn shuffled(nodes: &[Value]) -> Vec<Value> {
    let mut nodes = nodes.to_vec();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in (1..nodes.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        nodes.swap(i, (state >> 33) as usize % (i + 1));
    }
    nodes
}

#[test]
fn order_and_compression_make_no_difference() {
    let nodes = captured();
    let plain = text(&nodes);
    let expected = read(&plain).unwrap();
    assert_eq!(expected.problems, Vec::<String>::new());
    assert!(expected.decisions.len() > 150);
    let half = plain.len() / 2;
    let ordered = text(&scan_order(&nodes));
    let files = [
        ("gzip", gzip(&plain)),
        ("two members of gzip", [gzip(&plain[..half]), gzip(&plain[half..])].concat()),
        ("zstd", zstd(&plain)),
        ("shuffled", text(&shuffled(&nodes))),
        ("scan order", ordered.clone()),
        ("scan order, gzip", gzip(&ordered)),
        ("scan order, zstd", zstd(&ordered)),
    ];
    for (name, bytes) in files {
        let got = read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(got.problems, expected.problems, "{name}");
        for (subject, decision) in &expected.decisions {
            assert_eq!(got.decisions.get(subject), Some(decision), "{name}: {:#?}", expected.topics[subject]);
        }
        assert_eq!(got.decisions.len(), expected.decisions.len(), "{name}");
    }
}

/// Without the file that names them, a namespace that may have topic policies is left alone, in any order of lines.
#[test]
fn topic_policies_that_nobody_gave_are_unknown() {
    let nodes = captured();
    for bytes in [text(&shuffled(&nodes)), text(&scan_order(&nodes))] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let read = read_file(file.path(), settings(false)).unwrap();
        let skipped = |d: &&Decision| d.reasons[0].rule == "topic-policies-unknown";
        let shards: BTreeSet<String> = read
            .decisions
            .values()
            .filter(skipped)
            .map(|d| TopicName::of_subject(&d.subject).unwrap().namespace)
            .collect();
        // Three more have `__change_events` open, and empty as far as it is closed: that keeps nobody from asking for a trim.
        let unknown = ["acme/misc", "acme/tpol"];
        assert_eq!(shards.into_iter().collect::<Vec<_>>(), unknown);
        assert!(read.decisions.values().any(|d| d.verdict == Verdict::Trim));
    }
}

/// Every few bytes, and the bytes at both ends.
fn cuts(length: usize, samples: usize) -> impl Iterator<Item = usize> {
    (0..length).filter(move |at| *at < 20 || length - at < 20 || at % (length / samples).max(1) == 0)
}

#[test]
fn a_cut_file_is_an_error_that_names_the_line() {
    let ordered = text(&scan_order(&few()));
    assert!(read(&ordered).unwrap().decisions.len() > 20);
    for at in cuts(ordered.len(), 60) {
        let error = read(&ordered[..at]).expect_err(&format!("cut at byte {at}"));
        let line = ordered[..at].iter().filter(|byte| **byte == b'\n').count();
        let named = [line, line + 1].iter().any(|line| error.contains(&format!("line {}: ", line.max(&1))));
        assert!(named, "cut at byte {at}, in line {}: {error}", line + 1);
    }
    let boundaries = (1..ordered.len()).filter(|at| ordered[at - 1] == b'\n');
    for at in boundaries {
        let error = read(&ordered[..at]).expect_err(&format!("cut at byte {at}"));
        assert!(error.contains("the file was cut") && error.contains("line "), "{error}");
    }
    for (name, bytes) in [("gzip", gzip(&ordered)), ("zstd", zstd(&ordered)), ("sorted, gzip", gzip(&text(&few())))] {
        for at in cuts(bytes.len(), 40) {
            let error = read(&bytes[..at]).expect_err(&format!("{name} cut at byte {at}"));
            assert!(error.contains("line "), "{name} cut at byte {at}: {error}");
        }
    }
}

/// Such a file has no closing line, so that only the counts in its own nodes can tell.
#[test]
fn a_file_in_another_order_that_ends_between_two_lines_is_not_taken_for_complete() {
    let nodes = few();
    let full = read(&text(&nodes)).unwrap();
    assert_eq!(full.problems, Vec::<String>::new());
    for lines in 1..nodes.len() {
        let cut = read(&text(&nodes[..lines])).unwrap();
        assert!(cut.no_more_than(&full), "{lines} lines: {:#?}", cut.decisions);
        let topics_missing = cut.topics.len() < full.topics.len();
        let told =
            !cut.problems.is_empty() || lines <= nodes.iter().position(|n| path(n) == "/managed-ledgers").unwrap();
        assert!(!topics_missing || told, "{lines} lines, {} topics and no word of it", cut.topics.len());
    }
}

#[test]
fn a_damaged_line_is_an_error_that_names_it() {
    let sorted = few();
    type Damage = fn(&str) -> String;
    let damages: [(&str, Damage); 6] = [
        ("half of it", |line| line[..line.len() / 2].to_owned()),
        ("nothing", |_| String::new()),
        ("no object", |_| "[1,2]".to_owned()),
        ("not base64", |line| line.replacen("\"data\":\"", "\"data\":\"*", 1)),
        ("no version", |line| line.replacen("\"version\"", "\"versio\"", 1)),
        ("two in one", |line| format!("{line}{line}")),
    ];
    for nodes in [scan_order(&sorted), sorted] {
        let lines: Vec<String> = nodes.iter().map(Value::to_string).collect();
        for number in [1, 2, lines.len() / 2, lines.len()] {
            for (what, damage) in damages {
                let mut lines = lines.clone();
                lines[number - 1] = damage(&lines[number - 1]);
                let error = read(format!("{}\n", lines.join("\n")).as_bytes()).expect_err(what);
                assert!(error.contains(&format!("line {number}: ")), "{what} at line {number}: {error}");
            }
        }
    }
}

#[test]
fn more_after_the_closing_line_and_a_wrong_count_are_errors() {
    let nodes = scan_order(&few());
    let more = [nodes.as_slice(), &nodes[1..2]].concat();
    assert!(read(&text(&more)).unwrap_err().contains("there is more after"));
    let mut wrong = nodes.clone();
    wrong.remove(3);
    assert!(read(&text(&wrong)).unwrap_err().contains("the snapshot says it has"));
}

/// A listing that lies: one line is not there, whichever it is. The file is otherwise whole.
#[test]
fn a_missing_line_never_frees_more() {
    let nodes = few();
    let full = read(&text(&nodes)).unwrap();
    let acting = full.decisions.values().filter(|d| d.verdict.acts()).count();
    assert!(acting >= 10, "{acting}");
    let mut ordered = scan_order(&nodes);
    ordered.pop();
    assert_eq!(read(&text(&closed(ordered.clone()))).unwrap(), full);
    // A last ledger that is not in a file in scan order did not exist when the file was written: the writer would have failed.
    let ledger = |node: &Value| path(node).starts_with("/ledgers/");
    let sorted = (1..nodes.len()).map(|i| (nodes[i].clone(), text(&[&nodes[..i], &nodes[i + 1..]].concat())));
    let ordered = (1..ordered.len())
        .filter(|i| !ledger(&ordered[*i]))
        .map(|i| (ordered[i].clone(), text(&closed([&ordered[..i], &ordered[i + 1..]].concat()))));
    for (gone, file) in sorted.chain(ordered) {
        // A file in scan order that has cursors of no topic is refused.
        let Ok(less) = read(&file) else { continue };
        let parts: Vec<&str> = path(&gone).split('/').collect();
        assert!(less.no_more_than(&full), "without {}: {:#?}", path(&gone), less.decisions);
        for (subject, topic) in &less.topics {
            let before = &full.topics[subject];
            let lost = matches!(topic.last, LastLedger::Unknown { .. });
            assert!(lost || topic.last == before.last, "without {}: {subject} {:?}", path(&gone), topic.last);
            let lost = matches!(topic.loaded, Loaded::Unknown { .. });
            assert!(lost || topic.loaded == before.loaded, "without {}: {subject} {:?}", path(&gone), topic.loaded);
        }
        if let ["", "managed-ledgers", _, _, "persistent", topic, rest @ ..] = parts.as_slice() {
            let name = TopicName::of_managed_ledger(&format!("{}/{}/persistent/{topic}", parts[2], parts[3])).unwrap();
            if rest.is_empty() {
                assert!(!less.problems.is_empty(), "nobody was told that {} is missing", path(&gone));
            } else {
                let cursors = &less.topics[&name.subject()].cursors;
                assert!(matches!(cursors, Evidence::Unknown(_)), "without {}: {cursors:?}", path(&gone));
                assert!(!less.decisions[&name.subject()].verdict.acts());
            }
        }
    }
}

/// One value that cannot be decoded makes what it says unknown, and nothing else.
#[test]
fn a_value_that_cannot_be_decoded_is_unknown_and_the_rest_is_as_before() {
    let nodes = few();
    let full = read(&text(&nodes)).unwrap();
    let mut spoiled = 0;
    for (i, node) in nodes.iter().enumerate() {
        let parts: Vec<&str> = path(node).split('/').collect();
        let affected = match parts.as_slice() {
            ["", "managed-ledgers", tenant, shard, "persistent", topic, ..] => {
                format!("persistent://{tenant}/{shard}/{topic}")
            }
            ["", "admin", "policies", tenant, shard] => format!("persistent://{tenant}/{shard}/"),
            ["", "admin", "partitioned-topics", tenant, shard, _, topic] => {
                format!("persistent://{tenant}/{shard}/{topic}")
            }
            _ => continue,
        };
        spoiled += 1;
        for value in [&b"\xff\xff\xff"[..], b"\x47\x78\x00\x00\x00\x02\x08\x09", b"\x0a\x7f\x08"] {
            let mut nodes = nodes.clone();
            nodes[i]["data"] = json!(BASE64.encode(value));
            let got = read(&text(&nodes)).unwrap();
            assert_eq!(got.problems, full.problems);
            for (subject, decision) in &full.decisions {
                let now = &got.decisions[subject];
                let of_it = subject.strip_prefix(&affected);
                if of_it
                    .is_some_and(|rest| rest.is_empty() || affected.ends_with('/') || rest.starts_with("-partition-"))
                {
                    assert!(!now.verdict.acts(), "{} spoiled: {now:#?}", path(node));
                } else {
                    assert_eq!(now, decision, "{} spoiled", path(node));
                }
            }
        }
    }
    assert!(spoiled > 60, "{spoiled}");
}
