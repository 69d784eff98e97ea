//! A cluster's metadata in a file, see [`crate::snapshot`]. A file in *scan order* has everything that a topic needs before the topic, so
//! one pass suffices and memory stays flat. Files in another order are sorted first, on disk.

mod assembler;
mod sort;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use trimtab_events::{Candidate, LedgerCandidate, Scope, split_subscriber};

use self::assembler::Assembler;
pub use self::write::write;
use super::assemble::Settings;
use super::names::TopicName;
use super::scope::ScopeFilter;
use crate::error::Result;
use crate::snapshot::{Header, Lines, Node, header, items};
use crate::{Inventory, Item, ReadsOf};

/// Items handed over at once between the reading thread and the consumer.
const BATCH: usize = 256;

/// A snapshot file as an inventory. It has one shard, the whole file.
pub struct Snapshot {
    path: PathBuf,
    settings: Arc<Settings>,
    header: Header,
    lines: Arc<AtomicU64>,
}

impl Snapshot {
    /// Opens a file and reads its first line.
    ///
    /// # Errors
    /// When it cannot be read, or its first line is not a node.
    pub fn open(path: &Path, settings: Settings) -> Result<Snapshot> {
        let header = header(path)?;
        Ok(Snapshot { path: path.to_owned(), settings: Arc::new(settings), header, lines: Arc::default() })
    }

    /// What its first line says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the file and hands over everything in the scope, in batches, in the order of the file (scan order) or of names.
    ///
    /// # Errors
    /// What is wrong with the file, and at which line. What was handed over before is then not to be used.
    fn read(&self, filter: &ScopeFilter, sink: &mut dyn FnMut(Vec<Item>) -> bool) -> Result<()> {
        let mut assembler = Assembler::new(self.settings.clone(), filter);
        let mut batch = Vec::with_capacity(BATCH);
        let mut wanted = true;
        let mut emit = |item: Item| {
            batch.push(item);
            if batch.len() == BATCH {
                wanted = wanted && sink(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
            }
            wanted
        };
        if self.header.scan_order {
            let mut lines = Lines::open(&self.path)?;
            while let Some(node) = lines.next_node()? {
                if !assembler.node(node, &mut emit).map_err(|why| lines.error(why))? {
                    return Ok(());
                }
                self.lines.fetch_add(1, Ordering::Relaxed);
            }
            lines.finish()?;
        } else {
            let mut take = |node: Node<'_>| assembler.node(node, &mut emit);
            let missing = sort::sorted(&self.path, &self.settings, &self.lines, &mut take)?;
            for says in missing {
                let _ = emit(Item::Problem(says));
            }
        }
        assembler.finish(&mut emit);
        if !batch.is_empty() {
            sink(batch);
        }
        Ok(())
    }
}

impl Inventory for Snapshot {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        futures::future::ready(Ok(self.header.identity(&self.path))).boxed()
    }

    fn shards<'a>(&'a self, _scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        futures::future::ready(Ok(vec![String::new()])).boxed()
    }

    fn scan<'a>(&'a self, _shard: &'a str, scope: &'a Scope, reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let filter = match ScopeFilter::new(scope) {
            Ok(filter) => filter,
            Err(e) => return stream::once(futures::future::ready(Err(e))).boxed(),
        };
        let whole = filter.whole_topics();
        let this = Snapshot {
            path: self.path.clone(),
            settings: self.settings.clone(),
            header: self.header.clone(),
            lines: self.lines.clone(),
        };
        let items = items(move |sink| this.read(&filter, sink));
        super::inventory::with_subscribers(items, whole, reads)
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let subscriber = split_subscriber(subject);
            let log = subscriber.as_ref().map_or(subject, |(log, _)| *log);
            let name = TopicName::of_subject(log);
            // A partition's subscribers are judged over all partitions.
            let topic = name.as_ref().filter(|_| subscriber.is_some()).map_or(log.to_owned(), TopicName::base_subject);
            let scope = Scope { topic: Some(topic), ..Scope::default() };
            let all = |_: &LedgerCandidate| crate::Reads { subscribers: subscriber.is_some(), ..crate::Reads::ALL };
            let mut items = self.scan("", &scope, &all);
            while let Some(item) = items.next().await {
                let Item::Candidate(candidate) = item? else { continue };
                let wanted = matches!(candidate, Candidate::Subscriber(_)) == subscriber.is_some();
                if wanted && name.as_ref().is_some_and(|name| name.subject() == candidate.subject()) {
                    return Ok(Some(candidate));
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
