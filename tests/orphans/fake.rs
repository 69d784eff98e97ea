//! A tree of nodes in memory that can be told to fail or lie, and what the rules make of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base64::Engine;
use futures::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};
use trimtab_events::{Decision, Evidence, OrphanCandidate, ScanRef, Sighting, SurveyReport, Verdict};
use trimtab_policy::{Context, OrphanRules, Policy, PolicyConfig, check_orphan, decide_orphan};
use trimtab_targets::bookkeeper::{Named, Others, Tree, Valued, survey, survey_snapshot};
use trimtab_targets::{Class, Stat, TargetError};
use uuid::Uuid;

/// The moment that the captured tree is judged at.
pub(crate) const NOW_MS: i64 = 1_795_986_124_974;
const DAY_MS: i64 = 86_400_000;
const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Vec<u8>,
    pub(crate) created_zxid: i64,
    pub(crate) modified_zxid: i64,
    pub(crate) created_ms: i64,
    pub(crate) modified_ms: i64,
    pub(crate) version: i32,
    pub(crate) children_version: i32,
}

/// Nodes by path. Numbers of children follow from the paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Nodes(pub(crate) BTreeMap<String, Node>);

impl Nodes {
    /// The captured tree.
    pub(crate) fn captured() -> Nodes {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pulsar/metadata-small.jsonl.gz");
        let mut text = String::new();
        flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        let node = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            let of = |name: &str| line[name].as_i64().unwrap();
            let node = Node {
                value: BASE64.decode(line["data"].as_str().unwrap()).unwrap(),
                created_zxid: of("czxid"),
                modified_zxid: of("mzxid"),
                created_ms: of("ctime"),
                modified_ms: of("mtime"),
                version: i32::try_from(of("version")).unwrap(),
                children_version: i32::try_from(of("cversion")).unwrap(),
            };
            (line["path"].as_str().unwrap().to_owned(), node)
        };
        Nodes(text.lines().map(node).collect())
    }

    /// A part of it: some namespaces, with a topic of every kind that names ledgers, and those ledgers. All ledgers that nothing names.
    pub(crate) fn few() -> Nodes {
        let mut nodes = Nodes::captured();
        let wanted = [
            "acme/week",
            "acme/none",
            "acme/compact",
            "acme/delayed",
            "acme/schema",
            "acme/crash",
            "acme/orphans",
            "acme/halfgone",
            "acme/live",
            "acme/misc2",
            "oldprop/lab",
            "pulsar/system",
        ];
        let roots = ["/managed-ledgers/", "/schemas/", "/admin/policies/"];
        let dropped = |path: &String| {
            let relative = roots.iter().find_map(|root| path.strip_prefix(root))?;
            let shard = relative.split('/').take(2).collect::<Vec<_>>().join("/");
            (shard.contains('/') && !wanted.contains(&shard.as_str())).then_some(())
        };
        let before = live(&Fake::new(&nodes)).unwrap();
        nodes.0.retain(|path, _| dropped(path).is_none());
        nodes.0.retain(|path, _| {
            !["/admin/local-policies/", "/loadbalance/bundle-data/"].iter().any(|r| path.starts_with(r))
        });
        // Ledgers of what was dropped are named by nothing now.
        let after = live(&Fake::new(&nodes)).unwrap();
        for id in after.candidates.keys().filter(|id| !before.candidates.contains_key(id)) {
            nodes.remove(&format!("/ledgers/00/0000/L{id:04}"));
        }
        nodes
    }

    /// The names of a node's children, in order.
    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        let above = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.0.range(above.clone()..).take_while(|(path, _)| path.starts_with(&above));
        below
            .filter_map(|(path, _)| {
                let name = &path[above.len()..];
                (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
            })
            .collect()
    }

    pub(crate) fn stat(&self, path: &str) -> Option<Stat> {
        let node = self.0.get(path)?;
        let children = self.children(path).len();
        // Of a node that was made up: as many changes as it has children.
        let children_version = node.children_version.max(i32::try_from(children).unwrap());
        Some(Stat {
            created_zxid: node.created_zxid,
            modified_zxid: node.modified_zxid,
            created_ms: node.created_ms,
            modified_ms: node.modified_ms,
            version: node.version,
            children_version,
            children_zxid: i64::from(children_version),
            children: children as u64,
            ephemeral: false,
        })
    }

    /// For trees.
    pub(crate) fn shared(&self) -> Shared {
        let node = |(path, node): (&String, &Node)| {
            (path.clone(), (node.clone(), self.stat(path).unwrap(), self.children(path)))
        };
        Arc::new(self.0.iter().map(node).collect())
    }

    /// Puts a node where there is none, or another value into one.
    pub(crate) fn put(&mut self, path: &str, value: &[u8]) {
        let newest = self.0.values().map(|node| node.modified_zxid).max().unwrap_or(0) + 1;
        let old = NOW_MS - 30 * DAY_MS;
        let node = self.0.entry(path.to_owned()).or_insert(Node {
            value: Vec::new(),
            created_zxid: newest,
            modified_zxid: newest,
            created_ms: old,
            modified_ms: old,
            version: 0,
            children_version: 0,
        });
        node.value = value.to_vec();
        node.version = i32::from(!value.is_empty());
    }

    /// Takes a node away, with everything below it.
    pub(crate) fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.0.retain(|known, _| known != path && !known.starts_with(&below));
    }

    /// As a snapshot file.
    pub(crate) fn file(&self) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for (path, node) in &self.0 {
            let own = u64::from(path == "/");
            let line = json!({
                "path": path, "data": BASE64.encode(&node.value), "czxid": node.created_zxid, "mzxid": node.modified_zxid,
                "ctime": node.created_ms, "mtime": node.modified_ms, "version": node.version,
                "cversion": node.children_version, "ephemeralOwner": 0, "numChildren": self.children(path).len() as u64 + own,
            });
            writeln!(file, "{line}").unwrap();
        }
        file.flush().unwrap();
        file
    }
}

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails, and would not have another time.
    Fails,
    /// It fails, and so does every later one about the same node.
    FailsForGood,
    /// The server says that it may not be read, this time and every time.
    Refused,
    /// The server says that there is no such node.
    Gone,
    /// The value is empty.
    Empty,
    /// The value is cut in half.
    Cut,
    /// The value is not what it was.
    Garbage,
    /// Listed: no children at all; otherwise no children in the stat.
    NoChildren,
    /// Half of the children, and a count that agrees.
    HalfTheChildren,
    /// The session is lost and another one opened, which is behind: the node is not there.
    Behind,
}

impl Fault {
    pub(crate) const ALL: [Fault; 10] = [
        Fault::Fails,
        Fault::FailsForGood,
        Fault::Refused,
        Fault::Gone,
        Fault::Empty,
        Fault::Cut,
        Fault::Garbage,
        Fault::NoChildren,
        Fault::HalfTheChildren,
        Fault::Behind,
    ];
}

/// Nodes with the names of their children.
pub(crate) type Shared = Arc<BTreeMap<String, (Node, Stat, Vec<String>)>>;

/// A tree that counts calls, and gets the n-th wrong.
pub(crate) struct Fake {
    nodes: Shared,
    faults: BTreeMap<u64, Fault>,
    calls: AtomicU64,
    generation: AtomicU64,
    /// What fails for good.
    broken: Mutex<BTreeSet<String>>,
    /// The fault was met.
    pub(crate) met: AtomicU64,
    pub(crate) log: Mutex<Vec<String>>,
}

impl Fake {
    pub(crate) fn new(nodes: &Nodes) -> Fake {
        Fake::of(nodes.shared())
    }

    pub(crate) fn of(nodes: Shared) -> Fake {
        Fake {
            nodes,
            faults: BTreeMap::new(),
            calls: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            broken: Mutex::default(),
            met: AtomicU64::new(0),
            log: Mutex::default(),
        }
    }

    pub(crate) fn with_fault(nodes: Shared, at: u64, fault: Fault) -> Fake {
        Fake::with_faults(nodes, BTreeMap::from([(at, fault)]))
    }

    pub(crate) fn with_faults(nodes: Shared, faults: BTreeMap<u64, Fault>) -> Fake {
        Fake { faults, ..Fake::of(nodes) }
    }

    pub(crate) fn shared(&self) -> Shared {
        self.nodes.clone()
    }

    fn call(&self, what: &str, path: &str) -> Result<Option<Fault>, TargetError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.log.lock().unwrap().push(format!("{what} {path}"));
        let error = |class| Err(TargetError::new(class, format!("{what} {path}"), "injected"));
        if self.broken.lock().unwrap().contains(path) {
            return error(Class::Transient);
        }
        let Some(fault) = self.faults.get(&call).copied() else { return Ok(None) };
        self.met.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Fails => error(Class::Transient),
            Fault::FailsForGood | Fault::Refused => {
                self.broken.lock().unwrap().insert(path.to_owned());
                error(if fault == Fault::Refused { Class::Refused } else { Class::Transient })
            }
            Fault::Behind => {
                self.generation.fetch_add(1, Ordering::Relaxed);
                Ok(Some(Fault::Gone))
            }
            fault => Ok(Some(fault)),
        }
    }
}

impl Tree for Fake {
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Valued>, TargetError>> {
        async move {
            let fault = self.call("get", path)?;
            let Some((node, mut stat, _)) = self.nodes.get(path).cloned() else { return Ok(None) };
            let mut value = node.value;
            match fault {
                Some(Fault::Gone) => return Ok(None),
                Some(Fault::Empty) => value.clear(),
                Some(Fault::Cut) => value.truncate(value.len() / 2),
                Some(Fault::Garbage) => value.iter_mut().for_each(|byte| *byte ^= 0x55),
                Some(Fault::NoChildren) => stat.children = 0,
                _ => {}
            }
            Ok(Some((value, stat)))
        }
        .boxed()
    }

    fn children<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Named>, TargetError>> {
        async move {
            let fault = self.call("children", path)?;
            let Some((_, mut stat, mut names)) = self.nodes.get(path).cloned() else { return Ok(None) };
            match fault {
                Some(Fault::Gone) => return Ok(None),
                Some(Fault::NoChildren | Fault::Empty) => names.clear(),
                Some(Fault::HalfTheChildren | Fault::Cut) => names.truncate(names.len() / 2),
                _ => {}
            }
            stat.children = names.len() as u64;
            Ok(Some((names, stat)))
        }
        .boxed()
    }

    fn stat<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Stat>, TargetError>> {
        async move {
            let fault = self.call("stat", path)?;
            let stat = self.nodes.get(path).map(|(_, stat, _)| *stat);
            Ok(match fault {
                Some(Fault::Gone) => None,
                Some(Fault::NoChildren) => stat.map(|stat| Stat { children: 0, ..stat }),
                _ => stat,
            })
        }
        .boxed()
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), TargetError>> {
        async move { self.call("sync", "/").map(drop) }.boxed()
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn window(&self) -> usize {
        // One after the other, so that the n-th call is the same one each time.
        1
    }

    fn operations(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// What a scan found, and what the rules say of it when the scan before had seen the same.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) candidates: BTreeMap<i64, OrphanCandidate>,
    pub(crate) decisions: BTreeMap<i64, Decision>,
    pub(crate) report: SurveyReport,
}

impl Judged {
    /// Ledgers that would be deleted.
    pub(crate) fn orphans(&self) -> BTreeSet<i64> {
        let delete = |(id, decision): (&i64, &Decision)| (decision.verdict == Verdict::DeleteOrphan).then_some(*id);
        self.decisions.iter().filter_map(delete).collect()
    }

    /// Ledgers about which this rule spoke.
    pub(crate) fn by_rule(&self, rule: &str) -> Vec<i64> {
        self.decisions.iter().filter(|(_, d)| d.reasons[0].rule == rule).map(|(id, _)| *id).collect()
    }
}

pub(crate) fn rules() -> OrphanRules {
    OrphanRules { absent_topics: true, ..OrphanRules::default() }
}

/// Made once: its patterns are compiled.
pub(crate) fn policy() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| Policy::new(PolicyConfig { orphans: rules(), ..PolicyConfig::default() }, "test").unwrap())
}

pub(crate) fn context() -> Context<'static> {
    Context { scan: ScanRef { id: Uuid::from_u128(2), fence: 0 }, target: "pulsar", now_ms: NOW_MS }
}

/// An earlier sighting of the same, two days ago.
pub(crate) fn seen_before(candidate: &mut OrphanCandidate) {
    let sighting = Sighting { scan: Uuid::from_u128(1), at_ms: NOW_MS - 2 * DAY_MS, seen: candidate.seen };
    candidate.sightings = vec![sighting];
}

fn judge(surveyed: trimtab_targets::bookkeeper::Surveyed) -> Judged {
    let (policy, context) = (policy(), context());
    let mut judged =
        Judged { candidates: BTreeMap::new(), decisions: BTreeMap::new(), report: SurveyReport::default() };
    judged.report = surveyed
        .candidates(&mut |mut candidate| {
            seen_before(&mut candidate);
            let decision = decide_orphan(&candidate, policy, &context);
            if decision.verdict == Verdict::DeleteOrphan {
                check_orphan(&decision, &candidate, &rules(), NOW_MS).unwrap();
            }
            assert!(candidate.references != Evidence::Present(Vec::new()));
            let id = candidate.ledger;
            assert!(judged.decisions.insert(id, decision).is_none(), "ledger {id} came twice");
            judged.candidates.insert(id, candidate);
            true
        })
        .unwrap();
    judged
}

pub(crate) fn snapshot(nodes: &Nodes) -> Result<Judged, TargetError> {
    snapshot_file(nodes.file().path())
}

pub(crate) fn snapshot_file(path: &Path) -> Result<Judged, TargetError> {
    survey_snapshot(path, "/ledgers", &Others::default(), NOW_MS, &AtomicU64::new(0)).map(judge)
}

pub(crate) fn captured_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pulsar/metadata-small.jsonl.gz")
}

/// Surveys a tree as a live one. Time does not pass: waits between tries cost none.
pub(crate) fn live(tree: &Fake) -> Result<Judged, TargetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(survey(tree, "/ledgers", &Others::default(), NOW_MS)).map(judge)
}
