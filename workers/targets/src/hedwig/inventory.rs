//! The topics of a live region, from its ZooKeeper. No hub is asked, so nothing is acquired by looking.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt, TryStreamExt};
use tokio::sync::Mutex;
use trimtab_events::{Candidate, Evidence, Scope, split_subscriber};

use super::scope::TopicFilter;
use super::topic::{self, PARTS, Settings, Topic, TopicSubscriber};
use super::znodes::{self, HubAddress, ZK_MANAGER};
use crate::error::{Class, Result, TargetError};
use crate::finding::{Finding, ZK_RIGHTS};
use crate::zk::Zk;
use crate::{Inventory, Item, ReadsOf};

/// Requests for the subscribers of one topic that are in flight at once.
const SUBSCRIBER_WINDOW: usize = 16;
/// Shards of a region: a topic's is told by its first name, so that it stays the same while others come and go.
const SHARDS: u64 = 64;

/// Which hubs made the region's metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 4.2 or later.
    Present,
    /// Before 4.2: such hubs do not know how to close a subscription, so nothing may be done there.
    Old,
}

/// The live inventory.
pub struct HedwigInventory {
    zk: Zk,
    settings: Settings,
    /// First names of topics, as listed when the scan began; they are in one node, so listing them for each shard would be in vain.
    first_names: Mutex<Option<Arc<Vec<String>>>>,
}

/// Who owns a topic, and since when at the latest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ownership {
    pub(super) owner: Evidence<topic::Owner>,
    pub(super) changed_zxid: i64,
}

/// Transactions that registered hubs, by address; none for those that are not registered.
#[derive(Default)]
struct Registered(Mutex<HashMap<String, Option<i64>>>);

impl HedwigInventory {
    /// An inventory over a reader.
    pub fn new(zk: Zk, settings: Settings) -> HedwigInventory {
        HedwigInventory { zk, settings, first_names: Mutex::new(None) }
    }

    /// Where the region is.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Says which hubs made the metadata.
    ///
    /// # Errors
    /// When there is no such region, or its metadata is kept in a way that is not understood.
    pub async fn release(&self) -> Result<Release> {
        let root = self.settings.root();
        let path = format!("{root}/managers/METADATA/LAYOUT");
        let refused = |class, why: String| Err(TargetError::new(class, format!("reading {path} in ZooKeeper"), why));
        let Some((value, _)) = self.zk.get(&path).await? else {
            if self.zk.stat(&format!("{root}/topics")).await?.is_some() {
                return Ok(Release::Old);
            }
            let why = "there is no Hedwig region here; are the address, zk_prefix and region right?";
            return refused(Class::Invalid, why.to_owned());
        };
        match znodes::layout(&value) {
            Ok(layout) if layout.manager == ZK_MANAGER && layout.version == 1 => Ok(Release::Present),
            Ok(layout) => {
                let (manager, version) = (layout.manager, layout.version);
                refused(
                    Class::Refused,
                    format!(
                        "{manager} version {version} keeps the metadata; only {ZK_MANAGER} version 1 is understood"
                    ),
                )
            }
            Err(e) => refused(Class::Invalid, e.to_string()),
        }
    }

    /// The hubs that are registered now.
    pub(super) async fn hubs(&self) -> Result<Vec<HubAddress>> {
        let hosts = format!("{}/hosts", self.settings.root());
        let names = self.zk.children(&hosts).await?.unwrap_or_default();
        // A name that is no address is no hub of ours to go to.
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn path(&self, topic: &str) -> String {
        format!("{}/topics/{topic}", self.settings.root())
    }

    /// A topic's owner.
    async fn owner(&self, topic: &str, registered: &Registered) -> Result<Evidence<topic::Owner>> {
        let Some((value, stat)) = self.zk.get(&format!("{}/hub", self.path(topic))).await? else {
            return Ok(Evidence::Absent);
        };
        let info = match znodes::hub_info(&value) {
            Ok(info) => info,
            Err(e) => return Ok(Evidence::Unknown(format!("its hub node: {e}"))),
        };
        let address = info.address.to_string();
        let known = registered.0.lock().await.get(&address).copied();
        let zxid = match known {
            // A hub that was restarted since has another registration.
            Some(zxid) if info.registered_zxid.is_none() || zxid == info.registered_zxid => zxid,
            _ => {
                let stat = self.zk.stat(&format!("{}/hosts/{address}", self.settings.root())).await?;
                let zxid = stat.map(|stat| stat.created_zxid);
                registered.0.lock().await.insert(address, zxid);
                zxid
            }
        };
        Ok(Evidence::Present(topic::owner(info, stat, zxid)))
    }

    async fn ledgers(&self, topic: &str) -> Result<Evidence<topic::Ledgers>> {
        let got = self.zk.get(&format!("{}/ledgers", self.path(topic))).await?;
        Ok(got.map_or(Evidence::Absent, |(value, stat)| topic::ledgers(&value, stat)))
    }

    async fn subscribers(&self, topic: &str) -> Result<Vec<TopicSubscriber>> {
        let path = format!("{}/subscribers", self.path(topic));
        let ids = self.zk.children(&path).await?.unwrap_or_default();
        let read = |id: String| {
            let path = format!("{path}/{id}");
            async move {
                // One that unsubscribed since the listing holds nothing any more.
                let got = self.zk.get(&path).await?;
                Ok::<_, TargetError>(got.map(|(value, stat)| topic::subscriber(&id, &value, stat)))
            }
        };
        let all = stream::iter(ids).map(read).buffered(SUBSCRIBER_WINDOW);
        all.try_filter_map(|one| futures::future::ready(Ok(one))).try_collect().await
    }

    /// A topic of which these parts exist. Its ledgers are read before its subscribers: one that moves in between then looks further
    /// than it is, never the ledgers.
    async fn topic(&self, name: &str, parts: &[&str], registered: &Registered) -> Result<Topic> {
        let has = |part: &str| parts.contains(&part);
        let ledgers = if has("ledgers") { self.ledgers(name).await? } else { Evidence::Absent };
        let owner = if has("hub") { self.owner(name, registered).await? } else { Evidence::Absent };
        let subscribers = if has("subscribers") { self.subscribers(name).await? } else { Vec::new() };
        Ok(Topic { name: name.to_owned(), owner, ledgers, subscribers })
    }

    /// Looks at one topic.
    ///
    /// # Errors
    /// When a node of it cannot be read.
    pub async fn look(&self, name: &str) -> Result<Option<Topic>> {
        let Some(children) = self.zk.children(&self.path(name)).await? else { return Ok(None) };
        let parts = parts_of(&children);
        if parts.is_empty() {
            return Ok(None);
        }
        self.topic(name, &parts, &Registered::default()).await.map(Some)
    }

    /// What an act has to know of a topic before it goes to a hub: the owner, and the last transaction that can have changed it.
    pub(super) async fn ownership(&self, topic: &str) -> Result<Ownership> {
        let owner = self.owner(topic, &Registered::default()).await?;
        // Making and deleting a child changes the parent's stat, so this is when the topic was last acquired or released, or later. Read
        // after the owner, so that it never looks older than what the owner's node has become.
        let node = self.zk.stat(&self.path(topic)).await?;
        let mut changed_zxid = node.map_or(i64::MAX, |stat| stat.children_zxid);
        if let Evidence::Present(owner) = &owner {
            changed_zxid = changed_zxid.max(owner.acquired_zxid);
            if !owner.alive {
                // With some managers the node outlives its hub; then the hub's own node is what went.
                let hosts = self.zk.stat(&format!("{}/hosts", self.settings.root())).await?;
                changed_zxid = changed_zxid.max(hosts.map_or(i64::MAX, |stat| stat.children_zxid));
            }
        }
        Ok(Ownership { owner, changed_zxid })
    }

    /// A topic's ledgers and one of its subscribers, the subscriber as the leader has it.
    pub(super) async fn standing(
        &self,
        topic: &str,
        id: &str,
    ) -> Result<(Evidence<topic::Ledgers>, Option<TopicSubscriber>)> {
        Ok((self.ledgers(topic).await?, self.subscriber(topic, id).await?))
    }

    /// Whether this was committed at least so long ago, as far as we saw ourselves. No clock but ours is asked, and that only for
    /// durations.
    pub(super) fn committed_before(&self, zxid: i64, age: Duration) -> bool {
        self.zk.committed_before(zxid, age)
    }

    /// A subscriber as the leader has it.
    pub(super) async fn subscriber(&self, topic: &str, id: &str) -> Result<Option<TopicSubscriber>> {
        let got = self.zk.get_synced(&format!("{}/subscribers/{id}", self.path(topic))).await?;
        Ok(got.map(|(value, stat)| topic::subscriber(id, &value, stat)))
    }

    /// Reads what lies below a name: itself, if it is a topic, and the names below it.
    async fn visit(&self, name: String, filter: &TopicFilter, registered: &Registered) -> Visited {
        let read = async {
            let Some(children) = self.zk.children(&self.path(&name)).await? else { return Ok((None, Vec::new())) };
            let parts = parts_of(&children);
            let topic = match !parts.is_empty() && filter.topic(&name) {
                true => Some(self.topic(&name, &parts, registered).await?),
                false => None,
            };
            let below = children.iter().filter(|child| !PARTS.contains(&child.as_str())).cloned().collect();
            Ok((topic, below))
        };
        let (found, below) = match read.await {
            Ok((topic, below)) => (topic.map(Ok), below),
            Err(e) => (Some(Err(e)), Vec::new()),
        };
        Visited { name, found, below }
    }

    /// All topics below these names, in the order of their full names.
    fn walk<'a>(&'a self, names: Vec<String>, filter: TopicFilter) -> BoxStream<'a, Result<Item>> {
        let walk = Walk {
            pending: names.into_iter().map(|name| (name.clone(), Step::Visit)).collect(),
            running: BTreeMap::new(),
            done: BTreeMap::new(),
        };
        let context = Arc::new((filter, Registered::default()));
        let flights = FuturesUnordered::new();
        stream::unfold((walk, flights, context), move |(mut walk, mut flights, context)| async move {
            loop {
                while let Some(name) = walk.next(self.zk.window()) {
                    let context = context.clone();
                    flights.push(async move { self.visit(name, &context.0, &context.1).await });
                }
                if let Some(found) = walk.take() {
                    return Some((self.item(found), (walk, flights, context)));
                }
                walk.landed(flights.next().await?);
            }
        })
        .filter_map(futures::future::ready)
        .boxed()
    }

    fn item(&self, found: Result<Topic>) -> Option<Result<Item>> {
        match found {
            Ok(topic) => topic::candidate(&topic, &self.settings).map(|candidate| Ok(Item::Candidate(candidate))),
            // What nobody lets us read must not hide the rest.
            Err(e) if e.class() == Class::Refused => Some(Ok(Item::Problem(e.to_string()))),
            Err(e) => Some(Err(e)),
        }
    }

    async fn list_first_names(&self) -> Result<Arc<Vec<String>>> {
        let path = format!("{}/topics", self.settings.root());
        let names = Arc::new(self.zk.children(&path).await?.unwrap_or_default());
        *self.first_names.lock().await = Some(names.clone());
        Ok(names)
    }

    async fn shard(&self, shard: u64) -> Result<Vec<String>> {
        let known = self.first_names.lock().await.clone();
        let names = match known {
            Some(names) => names,
            None => self.list_first_names().await?,
        };
        Ok(names.iter().filter(|name| shard_of(name) == shard).cloned().collect())
    }
}

fn parts_of(children: &[String]) -> Vec<&'static str> {
    PARTS.into_iter().filter(|part| children.iter().any(|child| child == part)).collect()
}

/// The shard of a topic by its first name: FNV-1a, which has to stay the same for ever, since histories are kept by shard.
fn shard_of(name: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step) % SHARDS
}

/// What a visit found.
struct Visited {
    name: String,
    found: Option<Result<Topic>>,
    below: Vec<String>,
}

/// A step of a walk.
enum Step {
    /// Read a name.
    Visit,
    /// Go on with the names below one.
    Below(Vec<String>),
}

/// A walk through a tree of names that reads many at once and yields what it finds in the order of full names. That is not the order of
/// the tree: `a b` stands before `a/b`. So the names below one wait under its name with a slash behind it, and nothing is yielded
/// while something that may come before it is still to be read.
struct Walk {
    pending: BTreeMap<String, Step>,
    running: BTreeMap<String, ()>,
    done: BTreeMap<String, Result<Topic>>,
}

impl Walk {
    /// The next name to read, while there is room for one more.
    fn next(&mut self, window: usize) -> Option<String> {
        loop {
            let first = self.pending.first_key_value().map(|(name, _)| name)?;
            // What comes before all that is done is read even when that is a window full: the rest waits for it.
            let early = self.done.first_key_value().is_some_and(|(name, _)| first < name);
            if self.running.len() >= window.max(1) || (self.done.len() >= window && !early) {
                return None;
            }
            match self.pending.pop_first()? {
                (name, Step::Visit) => {
                    self.running.insert(name.clone(), ());
                    return Some(name);
                }
                (prefix, Step::Below(names)) => {
                    self.pending.extend(names.into_iter().map(|name| (format!("{prefix}{name}"), Step::Visit)));
                }
            }
        }
    }

    fn landed(&mut self, visited: Visited) {
        self.running.remove(&visited.name);
        if !visited.below.is_empty() {
            self.pending.insert(format!("{}/", visited.name), Step::Below(visited.below));
        }
        if let Some(found) = visited.found {
            self.done.insert(visited.name, found);
        }
    }

    /// What was found first, once nothing can come before it any more.
    fn take(&mut self) -> Option<Result<Topic>> {
        let (name, _) = self.done.first_key_value()?;
        let before = |other: Option<&String>| other.is_some_and(|other| other < name);
        let waits = before(self.running.first_key_value().map(|(name, ())| name))
            || before(self.pending.first_key_value().map(|(name, _)| name));
        if waits { None } else { self.done.pop_first().map(|(_, found)| found) }
    }
}

impl Inventory for HedwigInventory {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        async move {
            // What made the region's node, and when: the same region under whatever address.
            let root = self.settings.root();
            let node = self.zk.stat(&root).await?.ok_or_else(|| {
                let why = "there is no such node; are the address, zk_prefix and region right?";
                TargetError::new(Class::Invalid, format!("reading {root} in ZooKeeper"), why)
            })?;
            Ok(format!("hedwig {:x}@{}", node.created_zxid, node.created_ms))
        }
        .boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        async move {
            let filter = TopicFilter::new(scope, &self.settings)?;
            self.release().await?;
            self.list_first_names().await?;
            let name = |shard: u64| format!("{shard:02x}");
            if let Some(topic) = filter.only() {
                return Ok(vec![name(shard_of(topic.split('/').next().unwrap_or(topic)))]);
            }
            Ok((0..SHARDS).map(name).collect())
        }
        .boxed()
    }

    fn scan<'a>(&'a self, shard: &'a str, scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let opened = async move {
            let filter = TopicFilter::new(scope, &self.settings)?;
            let number = u64::from_str_radix(shard, 16).ok().filter(|number| *number < SHARDS).ok_or_else(|| {
                let why = format!("shards are 00 to {:02x}", SHARDS - 1);
                TargetError::new(Class::Invalid, format!("reading shard {shard:?}"), why)
            })?;
            let names = match filter.only() {
                Some(topic) => vec![topic.to_owned()],
                None => self.shard(number).await?,
            };
            Ok::<_, TargetError>(self.walk(names, filter))
        };
        stream::once(opened)
            .flat_map(|opened| opened.unwrap_or_else(|e| stream::once(futures::future::ready(Err(e))).boxed()))
            .boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let subscriber = split_subscriber(subject);
            let log = subscriber.as_ref().map_or(subject, |(log, _)| *log);
            let name = self.settings.topic_of(log).ok_or_else(|| {
                let why = format!("it is not a topic of this region; expected hedwig://{}/topic", self.settings.region);
                TargetError::new(Class::Invalid, format!("reading {subject:?}"), why)
            })?;
            let topic = self.look(name).await?;
            Ok(topic.and_then(|topic| topic::candidate(&topic, &self.settings)))
        }
        .boxed()
    }

    fn operations(&self) -> u64 {
        self.zk.pace().made()
    }

    fn reachable(&self) -> BoxFuture<'_, Result<()>> {
        self.zk.reachable().boxed()
    }

    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        async move {
            let root = self.settings.root();
            let name = format!("metadata, {root}");
            let release = match self.release().await {
                Ok(Release::Old) => "an old release (no LAYOUT)",
                Ok(Release::Present) => "a present release",
                Err(e) => return vec![Finding::failed(name, &e, ZK_RIGHTS)],
            };
            vec![match self.zk.children(&format!("{root}/topics")).await {
                Ok(topics) => Finding::good(name, format!("{release}, {} topics", topics.unwrap_or_default().len())),
                Err(e) => Finding::failed(name, &e, ZK_RIGHTS),
            }]
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(name: &str) -> Topic {
        let name = name.to_owned();
        Topic { name, owner: Evidence::Absent, ledgers: Evidence::Absent, subscribers: Vec::new() }
    }

    /// Walks a tree given by the full names of its topics; reads land in the order that `order` picks.
    fn walked(topics: &[String], window: usize, mut order: impl FnMut(usize) -> usize) -> (Vec<String>, usize) {
        let first = |name: &String| name.split('/').next().unwrap().to_owned();
        let names: std::collections::BTreeSet<String> = topics.iter().map(first).collect();
        let pending = names.into_iter().map(|name| (name, Step::Visit)).collect();
        let mut walk = Walk { pending, running: BTreeMap::new(), done: BTreeMap::new() };
        let (mut flights, mut yielded, mut most) = (Vec::new(), Vec::new(), 0);
        loop {
            while let Some(name) = walk.next(window) {
                flights.push(name);
            }
            most = most.max(walk.running.len() + walk.done.len());
            if let Some(found) = walk.take() {
                yielded.push(found.unwrap().name);
                continue;
            }
            if flights.is_empty() {
                assert!(walk.pending.is_empty() && walk.done.is_empty());
                return (yielded, most);
            }
            let name = flights.swap_remove(order(flights.len()));
            let prefix = format!("{name}/");
            let below: std::collections::BTreeSet<String> =
                topics.iter().filter_map(|topic| Some(first(&topic.strip_prefix(&prefix)?.to_owned()))).collect();
            let found = topics.contains(&name).then(|| Ok(topic(&name)));
            walk.landed(Visited { name, found, below: below.into_iter().collect() });
        }
    }

    #[test]
    fn names_with_slashes_come_in_the_order_of_names() {
        let topics = ["a b", "a", "a/b", "a/b/c", "a/b!", "b/x/y", "c"].map(str::to_owned);
        let (yielded, _) = walked(&topics, 3, |_| 0);
        assert_eq!(yielded, ["a", "a b", "a/b", "a/b!", "a/b/c", "b/x/y", "c"]);
    }

    proptest! {
        #[test]
        fn a_walk_yields_everything_once_in_order_within_its_window(
            topics in proptest::collection::btree_set("[ab!-]{1,2}(/[ab!-]{1,2}){0,3}", 0..40),
            window in 1_usize..6,
            picks in proptest::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let topics: Vec<String> = topics.into_iter().collect();
            let mut at = 0;
            let (yielded, most) = walked(&topics, window, |count| {
                at += 1;
                picks[at % picks.len()].index(count)
            });
            prop_assert_eq!(yielded, topics.clone());
            prop_assert!(most <= 5 * window, "{} at once", most);
        }
    }
}
