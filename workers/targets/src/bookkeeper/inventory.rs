//! Orphan ledgers as an inventory: of a live cluster, or of a snapshot file of its whole tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use trimtab_events::{Candidate, OrphanCandidate, Scope, ledger_of_subject};

use super::ledgers::layout_of;
use super::look::look;
use super::referrers::Others;
use super::scan::{Surveyed, survey};
use super::snapshot::survey_snapshot;
use crate::error::{Class, Result, TargetError};
use crate::finding::{Finding, ZK_RIGHTS};
use crate::pulsar::{ScopeFilter, TopicName, cluster_identity};
use crate::snapshot::{Batches, Header, header, items};
use crate::zk::Zk;
use crate::{Inventory, Item, ReadsOf};

/// Items handed over at once between the thread that has the survey and the consumer.
const BATCH: usize = 64;
/// The only shard: what names a ledger may be anywhere.
pub const ALL_LEDGERS: &str = "ledgers";

/// Where ledgers are, and where what names them is.
#[derive(Debug, Clone)]
pub struct LedgerOptions {
    /// BookKeeper's root in the metadata.
    pub root: String,
    /// Other users of the same BookKeeper.
    pub others: Others,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        LedgerOptions { root: "/ledgers".to_owned(), others: Others::default() }
    }
}

/// The ledgers of a live cluster.
pub struct LedgerInventory {
    zk: Zk,
    again: Zk,
    options: LedgerOptions,
}

impl LedgerInventory {
    /// Over a reader for scans, and another one, with sessions of its own, for the look before an act.
    pub fn new(zk: Zk, again: Zk, options: LedgerOptions) -> LedgerInventory {
        LedgerInventory { zk, again, options }
    }

    /// The reader that looks again, which also acts.
    pub(super) fn again(&self) -> &Zk {
        &self.again
    }

    pub(super) fn zk(&self) -> &Zk {
        &self.zk
    }

    pub(super) fn others(&self) -> &Others {
        &self.options.others
    }

    pub(super) fn root(&self) -> &str {
        &self.options.root
    }
}

pub(super) fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    i64::try_from(now).unwrap_or(i64::MAX)
}

/// Which candidates a scope has. Everything is read nevertheless.
fn in_scope(filter: Option<&ScopeFilter>, candidate: &OrphanCandidate) -> bool {
    let Some(filter) = filter else { return true };
    let name = candidate.owner().and_then(|owner| TopicName::of_subject(&owner.topic));
    name.is_some_and(|name| filter.shard(&name.namespace) && filter.topic(&name))
}

fn filter_of(scope: &Scope) -> Result<Option<ScopeFilter>> {
    if scope.is_all() { Ok(None) } else { ScopeFilter::new(scope).map(Some) }
}

/// Hands over what a survey found, its report last.
fn hand_over(surveyed: Surveyed, filter: Option<&ScopeFilter>, sink: Batches<'_>) -> Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut wanted = true;
    let report = surveyed.candidates(&mut |candidate| {
        if in_scope(filter, &candidate) {
            batch.push(Item::Candidate(Candidate::Orphan(Box::new(candidate))));
        }
        if batch.len() == BATCH {
            wanted = sink(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
        }
        wanted
    })?;
    if wanted {
        batch.push(Item::Surveyed(Box::new(report)));
        sink(batch);
    }
    Ok(())
}

impl Inventory for LedgerInventory {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        cluster_identity(&self.again).boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        futures::future::ready(filter_of(scope).map(|_| vec![ALL_LEDGERS.to_owned()])).boxed()
    }

    fn scan<'a>(&'a self, _shard: &'a str, scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let surveyed = async move {
            let filter = filter_of(scope)?;
            let surveyed = survey(&self.zk, &self.options.root, &self.options.others, now_ms()).await?;
            Ok::<_, TargetError>(items(move |sink| hand_over(surveyed, filter.as_ref(), sink)))
        };
        stream::once(surveyed)
            .flat_map(|items| items.unwrap_or_else(|e| stream::once(futures::future::ready(Err(e))).boxed()))
            .boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let id = id_of(subject)?;
            let found = look(&self.again, &self.options.root, id, now_ms()).await?;
            Ok(found.map(|ledger| Candidate::Orphan(Box::new(ledger))))
        }
        .boxed()
    }

    fn operations(&self) -> u64 {
        self.zk.pace().made()
    }

    fn reachable(&self) -> BoxFuture<'_, Result<()>> {
        self.again.reachable().boxed()
    }

    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        async move {
            let root = self.root();
            let name = format!("metadata, {root}");
            let missing = || {
                Finding::bad(
                    &name,
                    "there is no such node",
                    "set pulsar.ledgers_root to where BookKeeper's ledgers are, below the address's chroot",
                )
            };
            let found = match self.zk.get(&format!("{root}/LAYOUT")).await {
                Ok(value) => value.map(|(value, _)| value),
                Err(e) => return vec![Finding::failed(name, &e, ZK_RIGHTS)],
            };
            if found.is_none() && !matches!(self.zk.stat(root).await, Ok(Some(_))) {
                return vec![missing()];
            }
            vec![match layout_of(found.as_deref()) {
                Ok(_) => Finding::good(name, "ledgers are kept in a way that is understood"),
                Err(why) => Finding::bad(name, why, "no ledger can be looked for here"),
            }]
        }
        .boxed()
    }
}

fn id_of(subject: &str) -> Result<i64> {
    ledger_of_subject(subject).ok_or_else(|| {
        TargetError::new(
            Class::Invalid,
            format!("reading {subject:?}"),
            "it is not a ledger's name; expected ledger/ID",
        )
    })
}

/// The ledgers of a snapshot file of the whole tree.
pub struct LedgerSnapshot {
    path: PathBuf,
    options: LedgerOptions,
    now_ms: i64,
    header: Header,
    lines: Arc<AtomicU64>,
}

impl LedgerSnapshot {
    /// Opens a file and reads its first line. Times later than `now_ms` are not believed; without it the file's own, or now.
    ///
    /// # Errors
    /// When it cannot be read, or its first line is not a node.
    pub fn open(path: &Path, options: LedgerOptions, at_ms: Option<i64>) -> Result<LedgerSnapshot> {
        let header = header(path)?;
        let now_ms = at_ms.or(header.taken_ms).unwrap_or_else(now_ms);
        Ok(LedgerSnapshot { path: path.to_owned(), options, now_ms, header, lines: Arc::default() })
    }

    /// What its first line says.
    pub fn header(&self) -> &Header {
        &self.header
    }
}

impl Inventory for LedgerSnapshot {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        futures::future::ready(Ok(self.header.identity(&self.path))).boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        futures::future::ready(filter_of(scope).map(|_| vec![ALL_LEDGERS.to_owned()])).boxed()
    }

    fn scan<'a>(&'a self, _shard: &'a str, scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let filter = match filter_of(scope) {
            Ok(filter) => filter,
            Err(e) => return stream::once(futures::future::ready(Err(e))).boxed(),
        };
        let (path, options, now_ms, lines) = (self.path.clone(), self.options.clone(), self.now_ms, self.lines.clone());
        items(move |sink| {
            let surveyed = survey_snapshot(&path, &options.root, &options.others, now_ms, &lines)?;
            hand_over(surveyed, filter.as_ref(), sink)
        })
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            id_of(subject)?;
            let scope = Scope::default();
            let mut items = self.scan(ALL_LEDGERS, &scope, &|_| crate::Reads::default());
            while let Some(item) = items.next().await {
                match item? {
                    Item::Candidate(candidate) if candidate.subject() == subject => return Ok(Some(candidate)),
                    _ => {}
                }
            }
            Ok(None)
        }
        .boxed()
    }

    fn operations(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }
}
