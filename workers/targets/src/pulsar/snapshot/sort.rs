//! Which part of the tree a path belongs to, the order that a scan needs them in, and the sorting of files in another order.
//!
//! Sorting goes through a temporary SQLite database: memory stays within its cache whatever the file's size.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, params};

use crate::error::{Class, Result, TargetError};
use crate::pulsar::assemble::Settings;
use crate::pulsar::metadata::managed_ledger_info;
use crate::pulsar::names::{TopicName, ledger_id};
use crate::snapshot::{Lines, Node, invalid, parse_line};

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'p> {
    /// Not needed.
    Elsewhere,
    /// `/admin/policies`: the part is in the file.
    PoliciesRoot,
    /// BookKeeper's root.
    LedgersRoot,
    /// `/admin/partitioned-topics`.
    PartitionedRoot,
    /// `/managed-ledgers/t/n/persistent`: says how many topics there are.
    Namespace(&'p str),
    Policies(&'p str),
    LocalPolicies(&'p str),
    /// `/namespace`: the locks of bundles are in the file.
    LocksRoot,
    /// `/loadbalance/extension`: the locks of bundles are not what tells who owns them.
    OtherLocks,
    /// `/namespace/t/n`: says how many locks there are.
    Locks(&'p str),
    /// A bundle's lock: namespace and bundle.
    Lock(&'p str, &'p str),
    StoredPolicies {
        shard: &'p str,
        encoded: &'p str,
        local: bool,
    },
    /// A partitioned topic: namespace and encoded name.
    Partitioned(&'p str, &'p str),
    Ledger(i64),
    /// A topic: namespace and the path below `/managed-ledgers/`.
    Topic(&'p str, &'p str),
    /// A cursor: the path of its topic, and its encoded name.
    Cursor {
        topic: &'p str,
        encoded: &'p str,
    },
}

/// `tenant/namespace` and the rest, from a path below some root.
fn shard_and_rest(path: &str) -> Option<(&str, &str)> {
    let (first, _) = path.match_indices('/').nth(1).map_or((path.len(), ""), |found| found);
    let (shard, rest) = path.split_at(first);
    (shard.contains('/') && !shard.ends_with('/')).then(|| (shard, rest.trim_start_matches('/')))
}

pub(crate) fn place<'p>(path: &'p str, ledgers_root: &str) -> Place<'p> {
    if let Some(rest) = path.strip_prefix(ledgers_root).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        return match rest.strip_prefix('/') {
            None => Place::LedgersRoot,
            Some(relative) => ledger_id(relative).map_or(Place::Elsewhere, Place::Ledger),
        };
    }
    if let Some(rest) = path.strip_prefix("/managed-ledgers/") {
        return managed(path, rest);
    }
    match path {
        "/namespace" => return Place::LocksRoot,
        "/loadbalance/extension" => return Place::OtherLocks,
        _ => {}
    }
    if let Some(rest) = path.strip_prefix("/namespace/") {
        return match shard_and_rest(rest) {
            Some((shard, "")) => Place::Locks(shard),
            Some((shard, bundle)) if !bundle.contains('/') => Place::Lock(shard, bundle),
            _ => Place::Elsewhere,
        };
    }
    let Some(admin) = path.strip_prefix("/admin/") else { return Place::Elsewhere };
    admin_place(admin)
}

fn admin_place(admin: &str) -> Place<'_> {
    let exactly = |rest: &str| rest.is_empty();
    let below =
        |rest: &'_ str| rest.strip_prefix("persistent/").is_some_and(|name| !name.is_empty() && !name.contains('/'));
    match admin {
        "policies" => return Place::PoliciesRoot,
        "partitioned-topics" => return Place::PartitionedRoot,
        _ => {}
    }
    let Some((kind, rest)) = admin.split_once('/') else { return Place::Elsewhere };
    let (kind, rest) = match kind {
        "topic-policies" => rest.split_once('/').unwrap_or(("", "")),
        other => (other, rest),
    };
    let Some((shard, rest)) = shard_and_rest(rest) else { return Place::Elsewhere };
    match kind {
        "policies" if exactly(rest) => Place::Policies(shard),
        "local-policies" if exactly(rest) => Place::LocalPolicies(shard),
        "partitioned-topics" if below(rest) => Place::Partitioned(shard, &rest["persistent/".len()..]),
        "local" | "global" if below(rest) => {
            Place::StoredPolicies { shard, encoded: &rest["persistent/".len()..], local: kind == "local" }
        }
        _ => Place::Elsewhere,
    }
}

fn managed<'p>(path: &'p str, rest: &'p str) -> Place<'p> {
    let Some((shard, below)) = shard_and_rest(rest) else { return Place::Elsewhere };
    let mut parts = [""; 4];
    let mut count = 0;
    for part in below.split('/') {
        let Some(place) = parts.get_mut(count) else { return Place::Elsewhere };
        *place = part;
        count += 1;
    }
    match &parts[..count] {
        ["persistent"] => Place::Namespace(shard),
        ["persistent", _] => Place::Topic(shard, rest),
        // Names from before Pulsar 2.0: the namespace stands where the domain stands now.
        [_, "persistent", _] => Place::Topic(shard, rest),
        ["persistent", _, cursor] | [_, "persistent", _, cursor] => {
            Place::Cursor { topic: &path[..path.len() - cursor.len() - 1], encoded: cursor }
        }
        _ => Place::Elsewhere,
    }
}

/// Where a node stands in scan order: its namespace, the base name of its topic, its topic, and a rank among what belongs to
/// that. The namespace's own nodes have no topic; `__change_events` comes before all other topics, since it tells whether their
/// policies are known.
fn order(place: &Place<'_>) -> Option<(String, String, String, i64)> {
    let own = |shard: &str, rank| Some((shard.to_owned(), String::new(), String::new(), rank));
    match place {
        Place::Elsewhere | Place::Ledger(_) => None,
        Place::PoliciesRoot | Place::LedgersRoot | Place::PartitionedRoot | Place::LocksRoot | Place::OtherLocks => {
            own("", 0)
        }
        Place::Namespace(shard) => own(shard, 1),
        Place::Policies(shard) => own(shard, 2),
        Place::LocalPolicies(shard) => own(shard, 3),
        Place::Locks(shard) => own(shard, 4),
        Place::Lock(shard, _) => own(shard, 5),
        Place::StoredPolicies { shard, .. } => own(shard, 6),
        Place::Partitioned(shard, encoded) => Some(((*shard).to_owned(), format!("b{encoded}"), String::new(), 0)),
        Place::Topic(shard, path) => Some(topic_order(shard, path, 1)),
        Place::Cursor { topic, .. } => {
            let path = topic.strip_prefix("/managed-ledgers/")?;
            let (shard, _) = shard_and_rest(path)?;
            Some(topic_order(shard, path, 2))
        }
    }
}

fn topic_order(shard: &str, path: &str, rank: i64) -> (String, String, String, i64) {
    let encoded = path.rsplit('/').next().unwrap_or_default();
    let base = if encoded.starts_with("__change_events") {
        format!("a{encoded}")
    } else {
        let name = TopicName::of_managed_ledger(path);
        let base = name.filter(|name| name.partition.is_some()).map(|name| crate::pulsar::names::encode(name.base()));
        format!("b{}", base.as_deref().unwrap_or(encoded))
    };
    (shard.to_owned(), base, path.to_owned(), rank)
}

/// The part of a topic's place that orders it within its namespace: its base name, `__change_events` first.
pub(super) fn base_order(path: &str) -> String {
    topic_order("", path, 0).1
}

/// Counts the children of the nodes above topics, ledgers and locks: where the file has fewer than a node says, what is not in
/// it may still exist.
#[derive(Default)]
struct Tree(BTreeMap<String, (Option<u64>, u64)>);

impl Tree {
    fn line(&mut self, path: &str, children: u64, place: &Place<'_>, ledgers_root: &str) {
        let roots = [ledgers_root, "/managed-ledgers", "/namespace"];
        if !roots.iter().any(|root| within(path, root)) || matches!(place, Place::Cursor { .. }) {
            return;
        }
        // The children of a namespace and of a topic are counted where they are put together.
        if !matches!(place, Place::Ledger(_) | Place::Lock(..) | Place::Namespace(_) | Place::Topic(..)) {
            self.0.entry(path.to_owned()).or_default().0 = Some(children);
        }
        let Some((parent, _)) = path.rsplit_once('/') else { return };
        match self.0.get_mut(parent) {
            Some((_, seen)) => *seen += 1,
            None => drop(self.0.insert(parent.to_owned(), (None, 1))),
        }
    }

    /// What is missing below a root, as far as the nodes above it say.
    fn missing(&self, root: &str) -> impl Iterator<Item = String> {
        self.0.iter().filter(move |(path, _)| within(path, root)).filter_map(|(path, (says, seen))| {
            let says = says.filter(|says| says != seen)?;
            Some(format!("the snapshot has {seen} nodes below {path}, which says {says}"))
        })
    }
}

fn within(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads a file in any order and hands its nodes over in scan order. Returns what the file should have and does not; where
/// ledgers or locks are missing, their root is left out, so that what is not there counts as unknown.
pub(super) fn sorted(
    path: &Path,
    settings: &Settings,
    count: &AtomicU64,
    take: &mut dyn FnMut(Node<'_>) -> std::result::Result<bool, String>,
) -> Result<Vec<String>> {
    let failed = |e: rusqlite::Error| {
        let what = format!("sorting snapshot {}", path.display());
        TargetError::new(Class::Transient, what, format!("{e}; is there room in the folder for temporary files?"))
    };
    // An empty name is a temporary database: on disk where it does not fit the cache, removed when it is closed.
    let mut db = Connection::open("").map_err(failed)?;
    let setup = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768; PRAGMA temp_store=FILE;
        CREATE TABLE node (shard TEXT, base TEXT, topic TEXT, rank INT, path TEXT, line BLOB,
            PRIMARY KEY (shard, base, topic, rank, path)) WITHOUT ROWID;
        CREATE TABLE ledger (id INTEGER PRIMARY KEY, path TEXT, line BLOB);";
    db.execute_batch(setup).map_err(failed)?;
    let mut lines = Lines::open(path)?;
    let (mut value, mut last_value) = (Vec::new(), Vec::new());
    let mut tree = Tree::default();
    let load = db.transaction().map_err(failed)?;
    {
        let mut node = load.prepare("INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?)").map_err(failed)?;
        let mut ledger = load.prepare("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?)").map_err(failed)?;
        while lines.next_line()? {
            count.fetch_add(1, Ordering::Relaxed);
            let line = parse_line(lines.bytes()).map_err(|why| lines.error(why))?;
            let stat = line.decoded(&mut value).map_err(|why| lines.error(why))?;
            let place = place(&line.path, &settings.ledgers_root);
            tree.line(&line.path, stat.children, &place, &settings.ledgers_root);
            if let Place::Ledger(id) = place {
                ledger.execute(params![id, line.path, lines.bytes()]).map_err(failed)?;
            } else if let Some((shard, base, topic, rank)) = order(&place) {
                node.execute(params![shard, base, topic, rank, line.path, lines.bytes()]).map_err(failed)?;
            }
        }
    }
    load.commit().map_err(failed)?;
    let missing: Vec<String> = tree.missing("/managed-ledgers").collect();
    let mut roots = vec![&*settings.ledgers_root, "/namespace"];
    roots.retain(|root| tree.missing(root).next().is_some());
    drop(tree);
    let mut nodes = db.prepare("SELECT line FROM node ORDER BY shard, base, topic, rank, path").map_err(failed)?;
    let mut ledger = db.prepare("SELECT line FROM ledger WHERE id = ?").map_err(failed)?;
    let mut rows = nodes.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let bytes = row.get_ref(0).and_then(|value| Ok(value.as_blob()?)).map_err(failed)?;
        let line = parse_line(bytes).map_err(|why| invalid(path, why))?;
        let stat = line.decoded(&mut value).map_err(|why| invalid(path, why))?;
        if roots.iter().any(|root| *root == line.path) {
            continue;
        }
        if matches!(place(&line.path, &settings.ledgers_root), Place::Topic(..))
            && let Some(id) = managed_ledger_info(&value).ok().and_then(|list| list.ledgers.last().map(|info| info.id))
            && let Some(found) = ledger.query(params![id]).map_err(failed)?.next().map_err(failed)?
        {
            let bytes = found.get_ref(0).and_then(|value| Ok(value.as_blob()?)).map_err(failed)?;
            let before = parse_line(bytes).map_err(|why| invalid(path, why))?;
            let stat = before.decoded(&mut last_value).map_err(|why| invalid(path, why))?;
            if !take(Node { path: &before.path, value: &last_value, stat }).map_err(|why| invalid(path, why))? {
                return Ok(missing);
            }
        }
        if !take(Node { path: &line.path, value: &value, stat }).map_err(|why| invalid(path, why))? {
            return Ok(missing);
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let of = |path| place(path, "/ledgers");
        assert_eq!(of("/ledgers/00/0000/L0007"), Place::Ledger(7));
        assert_eq!(of("/ledgers/available/x"), Place::Elsewhere);
        assert_eq!(of("/ledgersx/00/0000/L0007"), Place::Elsewhere);
        assert_eq!(of("/admin/policies/t/n"), Place::Policies("t/n"));
        assert_eq!(of("/admin/policies/t"), Place::Elsewhere);
        assert_eq!(of("/admin/local-policies/t/n"), Place::LocalPolicies("t/n"));
        assert_eq!(of("/namespace/t/n/0x0_0x1"), Place::Lock("t/n", "0x0_0x1"));
        assert_eq!(of("/admin/partitioned-topics/t/n/persistent/p"), Place::Partitioned("t/n", "p"));
        let stored = Place::StoredPolicies { shard: "t/n", encoded: "x", local: true };
        assert_eq!(of("/admin/topic-policies/local/t/n/persistent/x"), stored);
        assert_eq!(of("/managed-ledgers/t/n/persistent"), Place::Namespace("t/n"));
        assert_eq!(of("/managed-ledgers/t/n/persistent/x"), Place::Topic("t/n", "t/n/persistent/x"));
        assert_eq!(of("/managed-ledgers/p/c/n/persistent/x"), Place::Topic("p/c", "p/c/n/persistent/x"));
        let cursor = Place::Cursor { topic: "/managed-ledgers/t/n/persistent/x", encoded: "s" };
        assert_eq!(of("/managed-ledgers/t/n/persistent/x/s"), cursor);
    }
}
