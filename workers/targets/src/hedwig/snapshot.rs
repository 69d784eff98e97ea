//! A region's metadata in a file, see [`crate::snapshot`]. A file in *scan order* has the region's own nodes first, then the topics in the
//! order of their names, each with its parts behind it; one pass suffices and memory stays flat. Files in another order are sorted
//! first, on disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use rusqlite::{Connection, params};
use trimtab_events::{Candidate, Evidence, Scope, split_subscriber};

use super::scope::TopicFilter;
use super::topic::{self, PARTS, Settings, Topic};
use super::znodes::{self, ZK_MANAGER};
use crate::error::{Class, Result, TargetError};
use crate::snapshot::{Batches, Header, Lines, Node, header, invalid, items, parse_line};
use crate::{Inventory, Item, ReadsOf};

/// Items handed over at once between the reading thread and the consumer.
const BATCH: usize = 256;

/// A snapshot file as an inventory. It has one shard, the whole file.
pub struct HedwigSnapshot {
    path: PathBuf,
    settings: Arc<Settings>,
    header: Header,
    lines: Arc<AtomicU64>,
}

/// What a path below the region is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'p> {
    Elsewhere,
    Layout,
    Hosts,
    Host(&'p str),
    Topics,
    /// A name, of a topic or of what others are below.
    Name(&'p str),
    Hub(&'p str),
    Ledgers(&'p str),
    Subscribers(&'p str),
    Subscriber(&'p str, &'p str),
}

fn place<'p>(path: &'p str, root: &str) -> Place<'p> {
    let Some(rest) = path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) else { return Place::Elsewhere };
    match rest {
        "managers/METADATA/LAYOUT" => return Place::Layout,
        "hosts" => return Place::Hosts,
        "topics" => return Place::Topics,
        _ => {}
    }
    if let Some(host) = rest.strip_prefix("hosts/") {
        return if host.contains('/') { Place::Elsewhere } else { Place::Host(host) };
    }
    let Some(name) = rest.strip_prefix("topics/") else { return Place::Elsewhere };
    // The first name is always one; below it, the parts of a topic end the name.
    let mut at = name.find('/').unwrap_or(name.len());
    while at < name.len() {
        let part = &name[at + 1..];
        let end = part.find('/').unwrap_or(part.len());
        if PARTS.contains(&&part[..end]) {
            let topic = &name[..at];
            let below = part[end..].strip_prefix('/');
            return match (&part[..end], below) {
                ("hub", None) => Place::Hub(topic),
                ("ledgers", None) => Place::Ledgers(topic),
                ("subscribers", None) => Place::Subscribers(topic),
                ("subscribers", Some(id)) if !id.contains('/') => Place::Subscriber(topic, id),
                // Below a subscriber: what a slash in an id made, and no hub will ever read again.
                _ => Place::Elsewhere,
            };
        }
        at += 1 + end;
    }
    Place::Name(name)
}

/// Where a node stands in scan order: region before topics, then by topic, part, and name.
fn order<'p>(place: Place<'p>) -> Option<(i64, &'p str, i64, &'p str)> {
    Some(match place {
        Place::Elsewhere => return None,
        Place::Layout => (0, "", 0, ""),
        Place::Hosts => (0, "", 1, ""),
        Place::Host(host) => (0, "", 2, host),
        Place::Topics => (0, "", 3, ""),
        Place::Name(topic) => (1, topic, 0, ""),
        Place::Hub(topic) => (1, topic, 1, ""),
        Place::Ledgers(topic) => (1, topic, 2, ""),
        Place::Subscribers(topic) => (1, topic, 3, ""),
        Place::Subscriber(topic, id) => (1, topic, 4, id),
    })
}

/// Puts topics together from nodes in scan order.
struct Assembler<'f> {
    root: String,
    settings: &'f Settings,
    filter: &'f TopicFilter,
    /// Transactions that registered hubs; none when the file does not have them.
    hosts: Option<HashMap<String, i64>>,
    /// First names: as many as their parent says, and as many as there were.
    names: (Option<u64>, u64),
    topic: Option<Open>,
    wanted: bool,
}

/// A topic whose parts are still coming.
struct Open {
    topic: Topic,
    /// As many subscribers as their parent says.
    says: Option<u64>,
}

type Emit<'e> = &'e mut dyn FnMut(Item) -> bool;

impl<'f> Assembler<'f> {
    fn new(settings: &'f Settings, filter: &'f TopicFilter) -> Assembler<'f> {
        let root = settings.root();
        Assembler { root, settings, filter, wanted: true, hosts: None, names: (None, 0), topic: None }
    }

    /// The topic of a part, which becomes the present one.
    fn open(&mut self, name: &str, emit: Emit<'_>) -> &mut Open {
        if self.topic.as_ref().is_some_and(|open| open.topic.name != name) {
            self.close(emit);
        }
        self.topic.get_or_insert_with(|| Open {
            topic: Topic {
                name: name.to_owned(),
                owner: Evidence::Absent,
                ledgers: Evidence::Absent,
                subscribers: Vec::new(),
            },
            says: None,
        })
    }

    /// Takes one node. False when no more are wanted.
    fn node(&mut self, node: Node<'_>, emit: Emit<'_>) -> std::result::Result<bool, String> {
        let root = std::mem::take(&mut self.root);
        let place = place(node.path, &root);
        self.root = root;
        match place {
            Place::Elsewhere => {}
            Place::Layout => {
                let layout = znodes::layout(node.value).map_err(|e| format!("{}: {e}", node.path))?;
                if layout.manager != ZK_MANAGER || layout.version != 1 {
                    let (manager, version) = (layout.manager, layout.version);
                    return Err(format!(
                        "{manager} version {version} keeps the metadata; only {ZK_MANAGER} 1 is understood"
                    ));
                }
            }
            Place::Hosts => drop(self.hosts.get_or_insert_default()),
            Place::Host(host) => {
                self.hosts.get_or_insert_default().insert(host.to_owned(), node.stat.created_zxid);
            }
            Place::Topics => self.names.0 = Some(node.stat.children),
            Place::Name(name) => {
                self.names.1 += u64::from(!name.contains('/'));
                self.open(name, emit);
            }
            Place::Hub(name) => {
                let owner = match znodes::hub_info(node.value) {
                    Err(e) => Evidence::Unknown(format!("its hub node: {e}")),
                    Ok(info) => match &self.hosts {
                        None => Evidence::Unknown("the snapshot has no hosts".to_owned()),
                        Some(hosts) => {
                            let registered = hosts.get(&info.address.to_string()).copied();
                            Evidence::Present(topic::owner(info, node.stat, registered))
                        }
                    },
                };
                self.open(name, emit).topic.owner = owner;
            }
            Place::Ledgers(name) => self.open(name, emit).topic.ledgers = topic::ledgers(node.value, node.stat),
            Place::Subscribers(name) => self.open(name, emit).says = Some(node.stat.children),
            Place::Subscriber(name, id) => {
                let subscriber = topic::subscriber(id, node.value, node.stat);
                self.open(name, emit).topic.subscribers.push(subscriber);
            }
        }
        Ok(self.wanted)
    }

    fn send(&mut self, item: Item, emit: Emit<'_>) {
        self.wanted = self.wanted && emit(item);
    }

    fn close(&mut self, emit: Emit<'_>) {
        let Some(Open { topic, says }) = self.topic.take() else { return };
        if !self.filter.topic(&topic.name) {
            return;
        }
        let has = topic.subscribers.len() as u64;
        match says {
            // Whoever is missing may stand before everybody else.
            Some(says) if says != has => {
                let says = format!("the snapshot has {has} subscribers of {}, their node says {says}", topic.name);
                self.send(Item::Problem(says), emit);
            }
            None if has > 0 => {
                let says = format!("the snapshot does not say how many subscribers {} has", topic.name);
                self.send(Item::Problem(says), emit);
            }
            _ => {
                if let Some(candidate) = topic::candidate(&topic, self.settings) {
                    self.send(Item::Candidate(candidate), emit);
                }
            }
        }
    }

    fn finish(&mut self, emit: Emit<'_>) {
        self.close(emit);
        let root = format!("{}/topics", self.root);
        match self.names {
            (Some(says), has) if says != has && self.filter.only().is_none() => {
                let says = format!("the snapshot has {has} nodes below {root}, which says {says}");
                self.send(Item::Problem(says), emit);
            }
            (None, 0) => {
                let says = format!("the snapshot has no {root}; are zk_prefix and region right?");
                self.send(Item::Problem(says), emit);
            }
            _ => {}
        }
    }
}

impl HedwigSnapshot {
    /// Opens a file and reads its first line.
    ///
    /// # Errors
    /// When it cannot be read, or its first line is not a node.
    pub fn open(path: &Path, settings: Settings) -> Result<HedwigSnapshot> {
        let header = header(path)?;
        Ok(HedwigSnapshot { path: path.to_owned(), settings: Arc::new(settings), header, lines: Arc::default() })
    }

    /// What its first line says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn read(&self, filter: &TopicFilter, sink: Batches<'_>) -> Result<()> {
        let mut assembler = Assembler::new(&self.settings, filter);
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
            let mut last = None;
            while let Some(node) = lines.next_node()? {
                let order = order(place(node.path, &assembler.root))
                    .map(|(group, topic, rank, name)| (group, topic.to_owned(), rank, name.to_owned()));
                let behind = order.is_none() || order >= last;
                if order.is_some() {
                    last = order;
                }
                let taken = match behind {
                    true => assembler.node(node, &mut emit),
                    false => Err(format!("{} does not stand where scan order has it", node.path)),
                };
                if !taken.map_err(|why| lines.error(why))? {
                    return Ok(());
                }
                self.lines.fetch_add(1, Ordering::Relaxed);
            }
            lines.finish()?;
        } else {
            self.sorted(&mut |node| assembler.node(node, &mut emit))?;
        }
        assembler.finish(&mut emit);
        if !batch.is_empty() {
            sink(batch);
        }
        Ok(())
    }

    /// Reads a file in any order and hands its nodes over in scan order. Memory stays within the cache of a temporary database.
    fn sorted(&self, take: &mut dyn FnMut(Node<'_>) -> std::result::Result<bool, String>) -> Result<()> {
        let failed = |e: rusqlite::Error| {
            let what = format!("sorting snapshot {}", self.path.display());
            TargetError::new(Class::Transient, what, format!("{e}; is there room in the folder for temporary files?"))
        };
        let root = self.settings.root();
        // An empty name is a temporary database: on disk where it does not fit the cache, removed when it is closed.
        let mut db = Connection::open("").map_err(failed)?;
        let setup = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768; PRAGMA temp_store=FILE;
            CREATE TABLE node (part INT, topic TEXT, rank INT, name TEXT, line BLOB,
                PRIMARY KEY (part, topic, rank, name)) WITHOUT ROWID;";
        db.execute_batch(setup).map_err(failed)?;
        let load = db.transaction().map_err(failed)?;
        {
            let mut insert = load.prepare("INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?)").map_err(failed)?;
            let mut lines = Lines::open(&self.path)?;
            while lines.next_line()? {
                self.lines.fetch_add(1, Ordering::Relaxed);
                let line = parse_line(lines.bytes()).map_err(|why| lines.error(why))?;
                if let Some((part, topic, rank, name)) = order(place(&line.path, &root)) {
                    insert.execute(params![part, topic, rank, name, lines.bytes()]).map_err(failed)?;
                }
            }
        }
        load.commit().map_err(failed)?;
        let mut nodes = db.prepare("SELECT line FROM node ORDER BY part, topic, rank, name").map_err(failed)?;
        let mut rows = nodes.query([]).map_err(failed)?;
        let mut value = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let bytes = row.get_ref(0).and_then(|value| Ok(value.as_blob()?)).map_err(failed)?;
            let line = parse_line(bytes).map_err(|why| invalid(&self.path, why))?;
            let stat = line.decoded(&mut value).map_err(|why| invalid(&self.path, why))?;
            if !take(Node { path: &line.path, value: &value, stat }).map_err(|why| invalid(&self.path, why))? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Inventory for HedwigSnapshot {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        futures::future::ready(Ok(self.header.identity(&self.path))).boxed()
    }

    fn shards<'a>(&'a self, _scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        futures::future::ready(Ok(vec![String::new()])).boxed()
    }

    fn scan<'a>(&'a self, _shard: &'a str, scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let filter = match TopicFilter::new(scope, &self.settings) {
            Ok(filter) => filter,
            Err(e) => return stream::once(futures::future::ready(Err(e))).boxed(),
        };
        let this = HedwigSnapshot {
            path: self.path.clone(),
            settings: self.settings.clone(),
            header: self.header.clone(),
            lines: self.lines.clone(),
        };
        items(move |sink| this.read(&filter, sink))
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let log = split_subscriber(subject).map_or(subject, |(log, _)| log).to_owned();
            let scope = Scope { topic: Some(log.clone()), ..Scope::default() };
            let mut items = self.scan("", &scope, &|_| crate::Reads::default());
            while let Some(item) = items.next().await {
                if let Item::Candidate(candidate) = item?
                    && candidate.subject() == log
                {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let of = |path| place(path, "/hedwig/r");
        assert_eq!(of("/hedwig/r/managers/METADATA/LAYOUT"), Place::Layout);
        assert_eq!(of("/hedwig/r/hosts"), Place::Hosts);
        assert_eq!(of("/hedwig/r/hosts/127.0.0.1:1:2"), Place::Host("127.0.0.1:1:2"));
        assert_eq!(of("/hedwig/r/topics"), Place::Topics);
        assert_eq!(of("/hedwig/r/topics/t"), Place::Name("t"));
        assert_eq!(of("/hedwig/r/topics/ns/t"), Place::Name("ns/t"));
        assert_eq!(of("/hedwig/r/topics/ns/t/hub"), Place::Hub("ns/t"));
        assert_eq!(of("/hedwig/r/topics/t/ledgers"), Place::Ledgers("t"));
        assert_eq!(of("/hedwig/r/topics/ns/t/subscribers"), Place::Subscribers("ns/t"));
        assert_eq!(of("/hedwig/r/topics/ns/t/subscribers/s"), Place::Subscriber("ns/t", "s"));
        assert_eq!(of("/hedwig/r/topics/t/subscribers/a/b"), Place::Elsewhere);
        // A topic may be called like a part, but only where no other topic is above it.
        assert_eq!(of("/hedwig/r/topics/hub"), Place::Name("hub"));
        assert_eq!(of("/hedwig/r/topics/hub/ledgers"), Place::Ledgers("hub"));
        assert_eq!(of("/hedwig/r/topics/t/ledgers/x"), Place::Elsewhere);
        for other in ["/hedwig/r", "/hedwig/remote/topics/t", "/ledgers/L1", "/", ""] {
            assert_eq!(of(other), Place::Elsewhere, "{other}");
        }
    }
}
