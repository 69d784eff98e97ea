//! A survey from a snapshot file of the whole tree, in any order: two passes, one for what exists and what is named, one for the values
//! of what nothing names.
//!
//! What a file lacks is not absent. A node says how many children it has; where the file has fewer, a range of ledgers, a namespace or
//! everything is unknown. For namespaces that is told by a sum over hashes, so that no list of their nodes is kept: each node adds
//! its hash times the number of its children, each child takes the hash of its parent away, and what is left is 0 when all are there.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use trimtab_events::{Evidence, ReferenceKind, Unread};

use super::ledgers::{Entry, Layout, entry, handed_out, layout_of, range_of};
use super::referrers::{Others, namespace_state, other_references};
use super::scan::Surveyed;
use super::survey::Survey;
use crate::error::Result;
use crate::zk::Stat;

use crate::snapshot::{Line, Lines, header, invalid, parse_line};

const MANAGED: &str = "/managed-ledgers";
const SCHEMAS: &str = "/schemas";
const POLICIES: &str = "/admin/policies";
const MIGRATION: &str = "/pulsar/migration-coordinator/migration";
/// Ledgers handed to the survey at once.
const BATCH: usize = 4096;

/// Surveys a snapshot file. `root` is BookKeeper's, `now_ms` the moment that ages count from; `count` counts the lines read.
///
/// # Errors
/// When the file cannot be read, is damaged, or was not taken of the whole tree.
pub fn survey_snapshot(file: &Path, root: &str, others: &Others, now_ms: i64, count: &AtomicU64) -> Result<Surveyed> {
    if header(file)?.scan_order {
        let why = "it was taken for trims and does not have all ledgers; take one of the whole tree";
        return Err(invalid(file, why));
    }
    let mut layout = Layout::default();
    let mut survey = loop {
        let mut pass = Pass::new(root, others, now_ms, layout)?;
        each_line(file, count, &mut |line| pass.line(line))?;
        // Where the layout stands behind the ledgers in the file and is not the usual one, they were misunderstood.
        match pass.finish().map_err(|why| invalid(file, why))? {
            (survey, found) if found == layout => break survey,
            (_, found) => layout = found,
        }
    };
    survey.difference()?;
    let mut value = Vec::new();
    each_line(file, count, &mut |line| {
        let Some(relative) = below(&line.path, root) else { return Ok(()) };
        if let Entry::Ledger(id) = entry(relative, layout)
            && survey.is_lonely(id).map_err(|e| e.to_string())?
        {
            let stat = stat_of(line, &mut value)?;
            survey.detail(id, Ok((&value, stat))).map_err(|e| e.to_string())?;
        }
        Ok(())
    })?;
    Ok(Surveyed::new(survey))
}

fn each_line(
    file: &Path,
    count: &AtomicU64,
    take: &mut dyn FnMut(&Line<'_>) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut lines = Lines::open(file)?;
    while lines.next_line()? {
        let line = parse_line(lines.bytes()).map_err(|why| lines.error(why))?;
        take(&line).map_err(|why| lines.error(why))?;
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn stat_of(line: &Line<'_>, value: &mut Vec<u8>) -> std::result::Result<Stat, String> {
    line.decoded(value)
}

/// The part of a path below a root, without the slash between.
fn below<'p>(path: &'p str, root: &str) -> Option<&'p str> {
    path.strip_prefix(root)?.strip_prefix('/')
}

fn hash(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// What a count of children is kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'p> {
    /// Tenants and namespaces of managed ledgers or schemas: if one is missing, so is everything that may name ledgers.
    Upper,
    /// Tenants and namespaces with policies.
    Policies,
    /// Somebody else's trees.
    Others,
    /// Everything of one namespace.
    Shard(&'p str),
}

/// The first pass.
struct Pass<'o> {
    survey: Survey,
    root: String,
    others: &'o Others,
    layout: Layout,
    found_layout: Option<std::result::Result<Layout, String>>,
    /// Nodes above the trees that are read, with the number of children that each says it has and that the file has.
    spine: BTreeMap<String, (Option<u64>, u64)>,
    /// Trees and nodes that are in the file.
    there: BTreeSet<String>,
    /// ZooKeeper's own tree is in the file, or the file's root is not ZooKeeper's.
    no_own_tree: bool,
    folders: BTreeMap<String, (Option<u64>, u64)>,
    sums: BTreeMap<String, u64>,
    upper: [u64; 3],
    ids: Vec<i64>,
    value: Vec<u8>,
}

impl Pass<'_> {
    fn new<'o>(root: &str, others: &'o Others, now_ms: i64, layout: Layout) -> Result<Pass<'o>> {
        let mut survey = Survey::new(root, now_ms)?;
        survey.set_layout(layout);
        survey.set_handed_out(Evidence::Unknown(format!("the snapshot has no {root}/idgen")));
        let mut spine = BTreeMap::new();
        for tree in needed(root, others) {
            let mut path = tree.as_str();
            while let Some((parent, _)) = path.rsplit_once('/') {
                path = parent;
                spine.insert(if path.is_empty() { "/".to_owned() } else { path.to_owned() }, (None, 0));
            }
        }
        Ok(Pass {
            survey,
            root: root.to_owned(),
            others,
            layout,
            found_layout: None,
            spine,
            there: BTreeSet::new(),
            no_own_tree: false,
            folders: BTreeMap::new(),
            sums: BTreeMap::new(),
            upper: [0; 3],
            ids: Vec::with_capacity(BATCH),
            value: Vec::new(),
        })
    }

    fn line(&mut self, line: &Line<'_>) -> std::result::Result<(), String> {
        let path = &*line.path;
        if let Some(relative) = below(path, &self.root) {
            return self.below_ledgers(relative, line);
        }
        self.count_spine(path, line);
        if path == MANAGED || path == SCHEMAS || path == POLICIES || self.is_other(path) || path == self.root {
            self.there.insert(path.to_owned());
        }
        if path == self.root {
            self.folders.entry(String::new()).or_default().0 = Some(line.stat().children);
        }
        if below(path, MANAGED).is_some() || path == MANAGED {
            self.managed(below(path, MANAGED).unwrap_or_default(), line)
        } else if below(path, SCHEMAS).is_some() || path == SCHEMAS {
            self.schema(below(path, SCHEMAS).unwrap_or_default(), line)
        } else if below(path, POLICIES).is_some() || path == POLICIES {
            self.policies(below(path, POLICIES).unwrap_or_default(), line)
        } else if let Some((kind, top)) = self.other_of(path) {
            self.other(kind, path, top, line)
        } else {
            if path == MIGRATION {
                self.there.insert(path.to_owned());
            }
            if path.starts_with("/loadbalance/brokers/") {
                self.survey.note(&line.stat());
            }
            Ok(())
        }
    }

    // ---- ledgers

    fn below_ledgers(&mut self, relative: &str, line: &Line<'_>) -> std::result::Result<(), String> {
        let parent = relative.rsplit_once('/').map_or("", |(parent, _)| parent);
        match entry(relative, self.layout) {
            Entry::Beside => {
                match relative {
                    "idgen" => {
                        let stat = line.stat();
                        let handed_out = handed_out(stat.children_version, stat.children);
                        self.survey.set_handed_out(Evidence::Present(handed_out));
                    }
                    "LAYOUT" => {
                        stat_of(line, &mut self.value)?;
                        self.found_layout = Some(layout_of(Some(&self.value)));
                    }
                    _ => {}
                }
                if relative.contains('/') {
                    return Ok(());
                }
            }
            Entry::Ledger(id) => {
                self.survey.note(&line.stat());
                self.ids.push(id);
                if self.ids.len() == BATCH {
                    self.flush()?;
                }
            }
            Entry::Folder => {
                let children = line.stat().children;
                self.folders.entry(relative.to_owned()).or_default().0 = Some(children);
            }
            Entry::Stray => self.survey.stray(&line.path),
        }
        match self.folders.get_mut(parent) {
            Some((_, seen)) => *seen += 1,
            None => drop(self.folders.insert(parent.to_owned(), (None, 1))),
        }
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), String> {
        self.survey.ledgers(&self.ids).map_err(|e| e.to_string())?;
        self.ids.clear();
        Ok(())
    }

    // ---- what names them

    /// Adds a node to the sums: `group` is what its own children are counted for, `of` what it is counted for itself.
    fn sum(&mut self, group: Group<'_>, of: Option<Group<'_>>, line: &Line<'_>) {
        let children = line.stat().children;
        if children > 0 {
            let add = hash(&line.path).wrapping_mul(children);
            let sum = self.sum_of(group);
            *sum = sum.wrapping_add(add);
        }
        if let Some(of) = of {
            let parent = line.path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let take = hash(parent);
            let sum = self.sum_of(of);
            *sum = sum.wrapping_sub(take);
        }
    }

    fn sum_of(&mut self, group: Group<'_>) -> &mut u64 {
        match group {
            Group::Upper => &mut self.upper[0],
            Group::Policies => &mut self.upper[1],
            Group::Others => &mut self.upper[2],
            Group::Shard(shard) => {
                if !self.sums.contains_key(shard) {
                    self.sums.insert(shard.to_owned(), 0);
                }
                self.sums.entry(shard.to_owned()).or_default()
            }
        }
    }

    /// Counts a node of a tree whose first two levels are tenant and namespace. Tells the namespace.
    fn sum_tenants<'p>(&mut self, relative: &'p str, line: &Line<'_>) -> Option<&'p str> {
        let mut slashes = relative.match_indices('/').map(|(at, _)| at);
        let shard = slashes.next().map(|_| slashes.next().map_or(relative, |end| &relative[..end]));
        match shard {
            None => self.sum(Group::Upper, (!relative.is_empty()).then_some(Group::Upper), line),
            Some(shard) if shard.len() == relative.len() => self.sum(Group::Shard(shard), Some(Group::Upper), line),
            Some(shard) => self.sum(Group::Shard(shard), Some(Group::Shard(shard)), line),
        }
        shard
    }

    fn managed(&mut self, relative: &str, line: &Line<'_>) -> std::result::Result<(), String> {
        let Some(shard) = self.sum_tenants(relative, line) else { return Ok(()) };
        let parts: Vec<&str> = relative.split('/').skip(2).collect();
        let cursor = match parts.as_slice() {
            // Namespaces, and those from before Pulsar 2.0 with what is below them.
            [] | [_] => return Ok(()),
            ["persistent", _] => false,
            ["persistent", _, _] => true,
            [_, "persistent"] => return Ok(()),
            [_, "persistent", _] => false,
            [_, "persistent", _, _] => true,
            _ => {
                self.survey.incomplete(shard, format!("{} is of no known form", line.path));
                return Ok(());
            }
        };
        let stat = stat_of(line, &mut self.value)?;
        let took = if !cursor {
            self.survey.topic(shard, &line.path, &self.value, &stat)
        } else {
            if stat.children > 0 {
                self.survey.incomplete(shard, format!("{} has children, as no cursor has", line.path));
            }
            self.survey.cursor(shard, &line.path, &self.value, &stat)
        };
        took.map_err(|e| e.to_string())
    }

    fn schema(&mut self, relative: &str, line: &Line<'_>) -> std::result::Result<(), String> {
        let Some(shard) = self.sum_tenants(relative, line) else { return Ok(()) };
        let depth = relative.split('/').count();
        let stat = stat_of(line, &mut self.value)?;
        match depth {
            2 => Ok(()),
            // A namespace from before Pulsar 2.0.
            3 if stat.children > 0 && self.value.is_empty() => Ok(()),
            3 | 4 if stat.children == 0 => {
                self.survey.schema(shard, &line.path, &self.value, &stat).map_err(|e| e.to_string())
            }
            _ => {
                self.survey.incomplete(shard, format!("{} is of no known form", line.path));
                Ok(())
            }
        }
    }

    fn policies(&mut self, relative: &str, line: &Line<'_>) -> std::result::Result<(), String> {
        self.sum(Group::Policies, (!relative.is_empty()).then_some(Group::Policies), line);
        if relative.split('/').count() == 2 {
            let stat = stat_of(line, &mut self.value)?;
            self.survey.note(&stat);
            self.survey.namespace(relative, namespace_state(&self.value));
        }
        Ok(())
    }

    fn other_roots(&self) -> impl Iterator<Item = (ReferenceKind, &str)> {
        let logs = self.others.distributed_logs.iter().map(|root| (ReferenceKind::DistributedLog, root.as_str()));
        logs.chain([(ReferenceKind::Hedwig, self.others.hedwig.as_str())])
    }

    fn is_other(&self, path: &str) -> bool {
        self.other_roots().any(|(_, root)| root == path)
    }

    /// The kind of the tree that a path is in, and whether it is its root.
    fn other_of(&self, path: &str) -> Option<(ReferenceKind, bool)> {
        let found = self.other_roots().find(|(_, root)| *root == path || below(path, root).is_some());
        found.map(|(kind, root)| (kind, root == path))
    }

    fn other(
        &mut self,
        kind: ReferenceKind,
        path: &str,
        top: bool,
        line: &Line<'_>,
    ) -> std::result::Result<(), String> {
        self.sum(Group::Others, (!top).then_some(Group::Others), line);
        let stat = stat_of(line, &mut self.value)?;
        match other_references(kind, path, &self.value) {
            Ok(ids) if ids.is_empty() => Ok(()),
            Ok(ids) => self.survey.other(kind, path, &ids, &stat).map_err(|e| e.to_string()),
            Err(why) => {
                self.survey.set_broken(why);
                Ok(())
            }
        }
    }

    // ---- what is not there

    fn count_spine(&mut self, path: &str, line: &Line<'_>) {
        let stat = line.stat();
        if let Some((says, _)) = self.spine.get_mut(path) {
            *says = Some(stat.children);
        }
        if path == "/" {
            // The root of ZooKeeper itself was made by no transaction; that of a chroot was.
            self.no_own_tree |= stat.created_zxid != 0;
            return;
        }
        self.no_own_tree |= path == "/zookeeper";
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if let Some((_, seen)) = self.spine.get_mut(if parent.is_empty() { "/" } else { parent }) {
            *seen += 1;
        }
    }

    /// Whether all children of a node above the trees are in the file. ZooKeeper's own tree may be left out of it.
    fn spine_complete(&self, path: &str) -> bool {
        let Some((Some(says), seen)) = self.spine.get(path) else { return false };
        *says == *seen || (path == "/" && !self.no_own_tree && *says == *seen + 1)
    }

    /// Whether the file shows that a tree does not exist: the first node on the way to it that is not in the file would be a child of
    /// one that has all its children there.
    fn shown_absent(&self, tree: &str) -> bool {
        let mut parent = "/".to_owned();
        for (at, _) in tree.match_indices('/').skip(1) {
            let path = &tree[..at];
            if self.spine.get(path).is_none_or(|(says, _)| says.is_none()) {
                return self.spine_complete(&parent);
            }
            path.clone_into(&mut parent);
        }
        !self.there.contains(tree) && self.spine_complete(&parent)
    }

    fn finish(mut self) -> std::result::Result<(Survey, Layout), String> {
        self.flush()?;
        if !self.there.contains(&self.root) {
            return Err(format!("it does not have {}, the root of BookKeeper's ledgers", self.root));
        }
        for (folder, (says, seen)) in &self.folders {
            if *says != Some(*seen) {
                let (from, to) = if folder.is_empty() { (0, i64::MAX) } else { range_of(folder) };
                let says = says.map_or("nothing".to_owned(), |says| says.to_string());
                let why = format!("the snapshot has {seen} nodes of {}/{folder}, which says {says}", self.root);
                self.survey.unread(Unread { from, to, why });
            }
        }
        if self.there.contains(MIGRATION) || !self.shown_absent(MIGRATION) {
            self.survey
                .set_broken("the metadata is being moved to another store, or was, or the snapshot does not tell");
        }
        for tree in needed(&self.root, self.others) {
            let absent = !self.there.contains(&tree);
            match tree.as_str() {
                MIGRATION => {}
                POLICIES if absent => self.survey.policies_unknown(format!("the snapshot has no {POLICIES}")),
                MANAGED if absent => self.survey.set_broken(format!("the snapshot has no {MANAGED}")),
                tree if absent && !self.shown_absent(tree) => {
                    self.survey.set_broken(format!("the snapshot has no {tree}, and does not show that there is none"));
                }
                _ => {}
            }
        }
        let [upper, policies, others] = self.upper;
        if upper != 0 {
            self.survey.set_broken(format!("the snapshot does not have all namespaces below {MANAGED} or {SCHEMAS}"));
        }
        if policies != 0 {
            self.survey.policies_unknown(format!("the snapshot does not have everything below {POLICIES}"));
        }
        if others != 0 {
            self.survey.set_broken("the snapshot does not have everything below the trees of other users");
        }
        for shard in self.sums.iter().filter(|(_, sum)| **sum != 0).map(|(shard, _)| shard) {
            self.survey.incomplete(shard, "the snapshot does not have all its nodes");
        }
        let layout = self.found_layout.unwrap_or(Ok(Layout::default()))?;
        Ok((self.survey, layout))
    }
}

/// Every tree that must be in a snapshot, or be shown not to exist.
pub(super) fn needed(root: &str, others: &Others) -> Vec<String> {
    let fixed = [root, MANAGED, SCHEMAS, POLICIES, MIGRATION, &others.hedwig];
    fixed.iter().map(|tree| (*tree).to_owned()).chain(others.distributed_logs.iter().cloned()).collect()
}
