//! Reads everything that may name a ledger, and proves that it was everything.
//!
//! The proof, for each node whose children matter: a listing agrees with its own count (the reader's part); every child that it names
//! was read, or is gone from a newer listing; after the last read the node says that its children are still those of the listing; no
//! session was lost in between. Otherwise it goes round again, and in the end its shard yields nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, StreamExt};
use trimtab_events::{Evidence, NamespaceState, ReferenceKind};

use super::references::{hedwig_ranges, log_allocation, log_segment};
use super::survey::Survey;
use super::tree::{Named, Tree, Valued, again};
use crate::error::Result;

/// Rounds over the children of one node.
const ROUNDS: u32 = 5;
/// Between two rounds, at first; doubled each time.
const PAUSE: Duration = Duration::from_millis(50);
/// Requests for the cursors of one topic that are in flight at once.
const CURSOR_WINDOW: usize = 16;
/// No tree of a kind that nests freely is deeper.
const DEPTH: u32 = 16;

/// Where other users of BookKeeper keep what names their ledgers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Others {
    /// Roots of namespaces of DistributedLog.
    pub distributed_logs: Vec<String>,
    /// `zk_prefix` of Hedwig.
    pub hedwig: String,
}

impl Default for Others {
    fn default() -> Self {
        Others {
            distributed_logs: ["/pulsar/functions", "/pulsar/packages", "/stream"].map(str::to_owned).to_vec(),
            hedwig: "/hedwig".to_owned(),
        }
    }
}

/// Why something was not read completely. The text says what and why.
type Incomplete = String;

/// What came of reading one child.
enum Child {
    Read,
    /// A server said that it is not there.
    Gone,
}

/// One run over the children that a listing named, given to whoever reads them. Returns those that were gone.
trait ReadChildren: Send {
    fn read<'a>(
        &'a mut self,
        names: Vec<String>,
    ) -> BoxFuture<'a, Result<std::result::Result<Vec<String>, Incomplete>>>;
}

/// Reads all children of a node until a listing after the last of them shows the same ones. False when there is no such node.
async fn all_children(
    tree: &dyn Tree,
    path: &str,
    read: &mut dyn ReadChildren,
) -> Result<std::result::Result<bool, Incomplete>> {
    let mut done = BTreeSet::new();
    let mut why = String::new();
    for round in 0..ROUNDS {
        if round > 0 {
            tokio::time::sleep(PAUSE * 2_u32.pow(round - 1)).await;
        }
        let generation = tree.generation();
        let (names, stat) = match there(tree, path).await {
            Ok(Some(listed)) => listed,
            Ok(None) => return Ok(Ok(false)),
            Err(e) => {
                why = e;
                continue;
            }
        };
        let todo: Vec<String> = names.into_iter().filter(|name| !done.contains(name)).collect();
        // Whoever reads children has tried often enough.
        let gone: BTreeSet<String> = match read.read(todo.clone()).await? {
            Ok(gone) => gone.into_iter().collect(),
            Err(incomplete) => return Ok(Err(incomplete)),
        };
        done.extend(todo.into_iter().filter(|name| !gone.contains(name)));
        let after = match tree.stat(path).await {
            Ok(after) => after,
            Err(e) => {
                why = e.to_string();
                continue;
            }
        };
        if tree.generation() != generation {
            // What was read through a new session may be older than what was read before it.
            done.clear();
            why = match tree.sync().await {
                Ok(()) => format!("a session was lost while {path} was read"),
                Err(e) => e.to_string(),
            };
            continue;
        }
        if gone.is_empty() && after.is_some_and(|after| after.same_children(&stat)) {
            return Ok(Ok(true));
        }
        why = match gone.first() {
            Some(name) => format!("{path}/{name} is listed and not there"),
            None => format!("the children of {path} kept changing while they were read"),
        };
    }
    Ok(Err(why))
}

/// A listing of a node. That it is not there takes two looks, of two kinds.
async fn there(tree: &dyn Tree, path: &str) -> std::result::Result<Option<Named>, Incomplete> {
    let generation = tree.generation();
    if let Some(listed) = tree.children(path).await.map_err(|e| e.to_string())? {
        return Ok(Some(listed));
    }
    match tree.stat(path).await {
        Ok(None) if tree.generation() == generation => Ok(None),
        Ok(_) => Err(format!("{path} was not there when it was listed, and is there")),
        Err(e) => Err(e.to_string()),
    }
}

/// Reads everything that may name a ledger into the survey.
///
/// # Errors
/// When the survey cannot be written. What cannot be read is told to the survey.
pub(super) async fn read(tree: &dyn Tree, others: &Others, survey: &mut Survey) -> Result<()> {
    Reading { tree, survey }.all(others).await
}

struct Reading<'a> {
    tree: &'a dyn Tree,
    survey: &'a mut Survey,
}

impl Reading<'_> {
    async fn all(&mut self, others: &Others) -> Result<()> {
        migration(self.tree, self.survey).await;
        self.clocks().await;
        for of in [Namespaces::Policies, Namespaces::Topics, Namespaces::Schemas] {
            self.namespaces(of).await?;
        }
        for root in &others.distributed_logs {
            self.other(root, ReferenceKind::DistributedLog).await?;
        }
        self.other(&others.hedwig, ReferenceKind::Hedwig).await
    }

    /// Nodes that are written all the time tell the time. What cannot be read tells none, which makes nothing older.
    async fn clocks(&mut self) {
        for folder in ["/loadbalance/brokers", "/ledgers/available"] {
            let Ok(Some((names, _))) = self.tree.children(folder).await else { continue };
            for name in names.iter().take(16) {
                if let Ok(Some(stat)) = self.tree.stat(&format!("{folder}/{name}")).await {
                    self.survey.note(&stat);
                }
            }
        }
    }

    /// One of the trees with a node for each namespace, all of it.
    async fn namespaces(&mut self, of: Namespaces) -> Result<()> {
        let (tree, root) = (self.tree, of.root());
        let read = all_children(tree, root, &mut Tenants { reading: self, of, tenant: None }).await?;
        match (of, read) {
            (_, Ok(true)) | (Namespaces::Schemas, Ok(false)) => {}
            (Namespaces::Policies, Ok(false)) => {
                self.survey.policies_unknown(format!("{root} does not exist here: policies may live in another store"))
            }
            (Namespaces::Topics, Ok(false)) => {
                self.survey.set_broken(format!("{root} does not exist: is this a Pulsar cluster?"))
            }
            (Namespaces::Policies, Err(why)) => self.survey.policies_unknown(why),
            (_, Err(why)) => self.survey.set_broken(why),
        }
        Ok(())
    }

    /// A tree of somebody else. What cannot be read of it leaves everything undecided.
    async fn other(&mut self, root: &str, kind: ReferenceKind) -> Result<()> {
        if let Err(why) = self.nested(root.to_owned(), kind, 0).await? {
            self.survey.set_broken(why);
        }
        Ok(())
    }

    fn nested(
        &mut self,
        path: String,
        kind: ReferenceKind,
        depth: u32,
    ) -> BoxFuture<'_, Result<std::result::Result<bool, Incomplete>>> {
        async move {
            if depth > DEPTH {
                return Ok(Err(format!("{path} lies deeper than any known tree")));
            }
            let tree = self.tree;
            let mut nested = Nested { reading: self, path: path.clone(), kind, depth };
            all_children(tree, &path, &mut nested).await
        }
        .boxed()
    }
}

/// While metadata moves to another store, and after it moved, this one does not tell the truth.
pub(super) async fn migration(tree: &dyn Tree, survey: &mut Survey) {
    let path = "/pulsar/migration-coordinator/migration";
    match again(|| tree.get(path)).await {
        Ok(None) => {}
        Ok(Some((value, _))) => {
            let phase = serde_json::from_slice::<serde_json::Value>(&value).ok();
            let phase = phase.as_ref().and_then(|value| value["phase"].as_str()).unwrap_or("unknown").to_owned();
            survey.set_broken(format!("the metadata is being moved to another store, or was ({path} says {phase})"));
        }
        Err(e) => survey.set_broken(e.to_string()),
    }
}

type ReadResult<'a> = BoxFuture<'a, Result<std::result::Result<Vec<String>, Incomplete>>>;

/// What of a namespace's policies counts here.
pub(crate) fn namespace_state(value: &[u8]) -> Evidence<NamespaceState> {
    #[derive(serde::Deserialize)]
    struct Raw {
        deleted: Option<bool>,
    }
    match serde_json::from_slice::<Raw>(value) {
        Ok(raw) => Evidence::Present(NamespaceState { deleted: raw.deleted.unwrap_or(false) }),
        Err(e) => Evidence::Unknown(format!("the namespace's policies could not be decoded: {e}")),
    }
}

/// The trees whose first two levels are tenant and namespace, by what a namespace has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespaces {
    Policies,
    Topics,
    Schemas,
}

impl Namespaces {
    fn root(self) -> &'static str {
        match self {
            Namespaces::Policies => "/admin/policies",
            Namespaces::Topics => "/managed-ledgers",
            Namespaces::Schemas => "/schemas",
        }
    }
}

/// The first two levels of such a tree: all tenants, or the namespaces of one.
struct Tenants<'r, 'a> {
    reading: &'r mut Reading<'a>,
    of: Namespaces,
    tenant: Option<String>,
}

impl ReadChildren for Tenants<'_, '_> {
    fn read<'a>(&'a mut self, names: Vec<String>) -> ReadResult<'a> {
        async move {
            let (mut gone, mut failed) = (Vec::new(), None);
            for name in names {
                let read = match &self.tenant {
                    None => {
                        let (tree, path) = (self.reading.tree, format!("{}/{name}", self.of.root()));
                        let tenant = Some(name.clone());
                        let mut below = Tenants { reading: self.reading, of: self.of, tenant };
                        all_children(tree, &path, &mut below).await?
                    }
                    Some(tenant) => Ok(self.namespace(&format!("{tenant}/{name}")).await?),
                };
                match read {
                    Ok(true) => {}
                    Ok(false) => gone.push(name),
                    Err(why) => failed = Some(why),
                }
            }
            Ok(failed.map_or(Ok(gone), Err))
        }
        .boxed()
    }
}

impl Tenants<'_, '_> {
    /// What one namespace has. False when it is not there. What cannot be read is told to the survey and is no concern of its neighbours.
    async fn namespace(&mut self, shard: &str) -> Result<bool> {
        let Reading { tree, survey } = &mut *self.reading;
        let (tree, path) = (*tree, format!("{}/{shard}", self.of.root()));
        let read = match self.of {
            Namespaces::Policies => {
                let state = match again(|| tree.get(&path)).await {
                    Ok(Some((value, stat))) => {
                        survey.note(&stat);
                        namespace_state(&value)
                    }
                    Ok(None) => return Ok(false),
                    Err(e) => Evidence::Unknown(e.to_string()),
                };
                survey.namespace(shard, state);
                return Ok(true);
            }
            Namespaces::Topics => {
                let mut namespace = Namespace { reading: self.reading, shard, path: path.clone() };
                all_children(tree, &path, &mut namespace).await?
            }
            Namespaces::Schemas => {
                let mut schemas = Schemas { reading: self.reading, shard, path: path.clone(), legacy: false };
                all_children(tree, &path, &mut schemas).await?
            }
        };
        Ok(read.unwrap_or_else(|why| {
            self.reading.survey.incomplete(shard, why);
            true
        }))
    }
}

/// What is below a namespace: `persistent`, or namespaces from before Pulsar 2.0, which have it one level down.
struct Namespace<'r, 'a> {
    reading: &'r mut Reading<'a>,
    shard: &'r str,
    path: String,
}

impl ReadChildren for Namespace<'_, '_> {
    fn read<'a>(&'a mut self, names: Vec<String>) -> ReadResult<'a> {
        async move {
            let mut gone = Vec::new();
            for name in names {
                let path = format!("{}/{name}", self.path);
                let read = if name == "persistent" {
                    let mut topics = Topics { reading: self.reading, shard: self.shard, path: path.clone() };
                    all_children(topics.reading.tree, &path, &mut topics).await?
                } else if self.path.matches('/').count() == 3 {
                    let mut legacy = Namespace { reading: self.reading, shard: self.shard, path: path.clone() };
                    all_children(legacy.reading.tree, &path, &mut legacy).await?
                } else {
                    Err(format!("{path} is of no known form"))
                };
                match read {
                    Ok(true) => {}
                    Ok(false) => gone.push(name),
                    Err(why) => return Ok(Err(why)),
                }
            }
            Ok(Ok(gone))
        }
        .boxed()
    }
}

/// The topics of a namespace.
struct Topics<'r, 'a> {
    reading: &'r mut Reading<'a>,
    shard: &'r str,
    path: String,
}

impl ReadChildren for Topics<'_, '_> {
    fn read<'a>(&'a mut self, names: Vec<String>) -> ReadResult<'a> {
        async move {
            let Topics { reading, shard, path } = self;
            let tree = reading.tree;
            let read = |name: String| {
                let path = format!("{path}/{name}");
                async move {
                    let read = topic(tree, &path).await;
                    (name, path, read)
                }
            };
            let mut topics = stream::iter(names).map(read).buffer_unordered(tree.window());
            let (mut gone, mut failed) = (Vec::new(), None);
            while let Some((name, path, read)) = topics.next().await {
                match read {
                    Ok(Some(topic)) => {
                        // The others are still taken: one more thing that names a ledger never does harm.
                        reading.survey.topic(shard, &path, &topic.node.0, &topic.node.1)?;
                        for (encoded, (value, stat)) in &topic.cursors {
                            reading.survey.cursor(shard, &format!("{path}/{encoded}"), value, stat)?;
                        }
                    }
                    Ok(None) => gone.push(name),
                    Err(why) => failed = Some(why),
                }
            }
            Ok(failed.map_or(Ok(gone), Err))
        }
        .boxed()
    }
}

/// A topic with its cursors.
pub(super) struct Topic {
    pub(super) node: Valued,
    /// By the names of their nodes.
    pub(super) cursors: Vec<(String, Valued)>,
}

/// A topic and all its cursors, which agree with each other. `None` when it is not there.
pub(super) async fn topic(tree: &dyn Tree, path: &str) -> std::result::Result<Option<Topic>, Incomplete> {
    let mut why = String::new();
    for _ in 0..ROUNDS {
        let node = match tree.get(path).await {
            Ok(Some(node)) => node,
            Ok(None) => return Ok(None),
            Err(e) => {
                why = e.to_string();
                continue;
            }
        };
        // One that never had a cursor needs no listing; one that had and has none is asked for them nevertheless.
        if node.1.children == 0 && node.1.children_version == 0 {
            return Ok(Some(Topic { node, cursors: Vec::new() }));
        }
        let (names, stat) = match tree.children(path).await {
            Ok(Some(listed)) => listed,
            Ok(None) => return Ok(None),
            Err(e) => {
                why = e.to_string();
                continue;
            }
        };
        if !stat.same_children(&node.1) {
            why = format!("the cursors of {path} kept changing while they were read");
            continue;
        }
        match cursors(tree, path, names).await {
            Ok(Some(cursors)) => return Ok(Some(Topic { node, cursors })),
            Ok(None) => why = format!("a cursor of {path} is listed and not there"),
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// All these cursors. `None` when one of them is not there.
async fn cursors(
    tree: &dyn Tree,
    path: &str,
    names: Vec<String>,
) -> std::result::Result<Option<Vec<(String, Valued)>>, Incomplete> {
    let read = |name: String| async move {
        let got = tree.get(&format!("{path}/{name}")).await;
        (name, got)
    };
    let mut all = Vec::with_capacity(names.len());
    let mut reads = stream::iter(names).map(read).buffered(CURSOR_WINDOW);
    while let Some((name, got)) = reads.next().await {
        match got {
            Ok(Some((_, stat))) if stat.children > 0 => {
                return Err(format!("{path}/{name} has children, as no cursor has"));
            }
            Ok(Some(valued)) => all.push((name, valued)),
            Ok(None) => return Ok(None),
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(Some(all))
}

/// The schemas of a namespace, or of namespaces from before Pulsar 2.0, which lie one level down.
struct Schemas<'r, 'a> {
    reading: &'r mut Reading<'a>,
    shard: &'r str,
    path: String,
    legacy: bool,
}

impl ReadChildren for Schemas<'_, '_> {
    fn read<'a>(&'a mut self, names: Vec<String>) -> ReadResult<'a> {
        async move {
            let Schemas { reading, shard, path, legacy } = self;
            let tree = reading.tree;
            let read = |name: String| {
                let path = format!("{path}/{name}");
                async move {
                    let got = again(|| tree.get(&path)).await;
                    (name, path.clone(), got)
                }
            };
            let mut reads = stream::iter(names).map(read).buffer_unordered(tree.window());
            let (mut gone, mut failed, mut folders) = (Vec::new(), None, Vec::new());
            while let Some((name, path, got)) = reads.next().await {
                match got {
                    Ok(Some((value, stat))) if stat.children > 0 && value.is_empty() && !*legacy => folders.push(path),
                    Ok(Some((_, stat))) if stat.children > 0 => failed = Some(format!("{path} is of no known form")),
                    Ok(Some((value, stat))) => reading.survey.schema(shard, &path, &value, &stat)?,
                    Ok(None) => gone.push(name),
                    Err(e) => failed = Some(e.to_string()),
                }
            }
            drop(reads);
            for path in folders {
                let mut below = Schemas { reading, shard, path: path.clone(), legacy: true };
                if let Err(why) = all_children(tree, &path, &mut below).await? {
                    failed = Some(why);
                }
            }
            Ok(failed.map_or(Ok(gone), Err))
        }
        .boxed()
    }
}

/// A tree that nests freely, with values that name ledgers at some of its nodes.
struct Nested<'r, 'a> {
    reading: &'r mut Reading<'a>,
    path: String,
    kind: ReferenceKind,
    depth: u32,
}

impl ReadChildren for Nested<'_, '_> {
    fn read<'a>(&'a mut self, names: Vec<String>) -> ReadResult<'a> {
        async move {
            let mut gone = Vec::new();
            for name in names {
                // What subscribers of Hedwig have consumed names no ledgers.
                if self.kind == ReferenceKind::Hedwig && name == "subscribers" {
                    continue;
                }
                match self.child(&name).await? {
                    Ok(Child::Read) => {}
                    Ok(Child::Gone) => gone.push(name),
                    Err(why) => return Ok(Err(why)),
                }
            }
            Ok(Ok(gone))
        }
        .boxed()
    }
}

impl Nested<'_, '_> {
    async fn child(&mut self, name: &str) -> Result<std::result::Result<Child, Incomplete>> {
        let path = format!("{}/{name}", self.path);
        let (value, stat) = match again(|| self.reading.tree.get(&path)).await {
            Ok(Some(got)) => got,
            Ok(None) => return Ok(Ok(Child::Gone)),
            Err(e) => return Ok(Err(e.to_string())),
        };
        match other_references(self.kind, &path, &value) {
            Ok(ids) if ids.is_empty() => {}
            Ok(ids) => self.reading.survey.other(self.kind, &path, &ids, &stat)?,
            Err(why) => return Ok(Err(why)),
        }
        if stat.children == 0 && stat.children_version == 0 {
            return Ok(Ok(Child::Read));
        }
        let below = self.reading.nested(path, self.kind, self.depth + 1).await?;
        Ok(below.map(|there| if there { Child::Read } else { Child::Gone }))
    }
}

/// The ledgers that a node of somebody else's tree names.
///
/// # Errors
/// When it is a node that names ledgers, and its value could not be decoded.
pub(crate) fn other_references(
    kind: ReferenceKind,
    path: &str,
    value: &[u8],
) -> std::result::Result<Vec<i64>, Incomplete> {
    let mut parts = path.rsplit('/');
    let (name, parent) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let ids = match (kind, name, parent) {
        (ReferenceKind::DistributedLog, _, "ledgers") => log_segment(value).map(|id| vec![id]),
        (ReferenceKind::DistributedLog, "allocation", _) => log_allocation(value).map(|id| id.into_iter().collect()),
        (ReferenceKind::Hedwig, "ledgers", _) => hedwig_ranges(value),
        _ => Ok(Vec::new()),
    };
    ids.map_err(|e| format!("{path} could not be decoded: {e}"))
}
