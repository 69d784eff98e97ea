//! The topics of a live cluster, from its ZooKeeper. No topic is loaded by looking.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tokio::sync::{Mutex, OnceCell};
use trimtab_events::{
    CHANGE_EVENTS_OPEN, Candidate, Cursor, CursorKind, Evidence, LastLedger, LedgerCandidate, Loaded, Partition, Scope,
    Seen, split_subscriber,
};

use super::admin::ToldCursor;
use super::assemble::{self, CHANGE_EVENTS, Namespace, Settings};
use super::changes::Watches;
use super::metadata::{CursorInfo, ManagedLedger};
use super::names::{self, TopicName};
use super::policies::{self, NamespacePolicies, TopicLevel, TopicPolicies};
use super::scope::ScopeFilter;
use super::subscribers::{self, Grouper};
use crate::bookkeeper::{Layout, layout_of};
use crate::error::{Class, Result, TargetError};
use crate::finding::Finding;
use crate::zk::{Stat, Zk};
use crate::{Changes, Inventory, Item, Reads, ReadsOf};

/// Requests for the cursors of one topic that are in flight at once.
const CURSOR_WINDOW: usize = 16;
/// How often the cursors of a topic are listed, if some are gone each time by when they are read.
const LISTINGS: usize = 3;

/// Asks brokers for what the metadata does not say.
pub trait AskBrokers: Send + Sync {
    /// The policies of one topic, by its name without `-partition-<n>`.
    fn topic_policies<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<TopicPolicies>>;
    /// Where the subscriptions of a topic that is loaded stand, by their plain names.
    fn standing<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<HashMap<String, ToldCursor>>>;
    /// Records evidence that asking may erase. Must be stored before it returns.
    fn record<'a>(&'a self, evidence: &'a [LedgerCandidate]) -> BoxFuture<'a, Result<()>>;
    /// Tells and records what asking has done: brokers took bundles of this namespace, and load these topics of theirs.
    fn loaded<'a>(&'a self, namespace: &'a str, topics: &'a [String]) -> BoxFuture<'a, Result<()>>;
}

/// Addresses of brokers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Brokers {
    /// Of the admin API.
    pub(super) web: Vec<String>,
    /// Of the binary protocol.
    pub(super) binary: Vec<String>,
}

/// A cursor's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorNode {
    /// Which node, in which version.
    pub seen: Seen,
    /// What it says.
    pub info: CursorInfo,
}

/// The live inventory.
pub struct PulsarInventory {
    zk: Zk,
    settings: Settings,
    ask: Option<Arc<dyn AskBrokers>>,
    layout: OnceCell<std::result::Result<Layout, String>>,
    stored_policies: OnceCell<bool>,
}

/// A namespace while it is scanned.
struct Open {
    name: String,
    facts: Namespace,
    topics: Vec<String>,
    legacy: Vec<String>,
    partitioned: Evidence<Vec<String>>,
    counts: Mutex<HashMap<String, Evidence<u32>>>,
    locks: Mutex<HashMap<String, i64>>,
    must_ask: bool,
}

impl PulsarInventory {
    /// An inventory over a reader.
    pub fn new(zk: Zk, settings: Settings, ask: Option<Arc<dyn AskBrokers>>) -> PulsarInventory {
        PulsarInventory { zk, settings, ask, layout: OnceCell::new(), stored_policies: OnceCell::new() }
    }

    /// The reader.
    pub fn zk(&self) -> &Zk {
        &self.zk
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) async fn layout(&self) -> Result<std::result::Result<Layout, String>> {
        let read = || async {
            let root = &self.settings.ledgers_root;
            match self.zk.get(&format!("{root}/LAYOUT")).await? {
                Some((value, _)) => Ok(layout_of(Some(&value))),
                None if self.zk.stat(root).await?.is_some() => Ok(layout_of(None)),
                None => Ok(Err(format!("BookKeeper's root {root} does not exist; set ledgers_root"))),
            }
        };
        self.layout.get_or_try_init(read).await.cloned()
    }

    async fn ledger_path(&self, id: i64) -> Result<std::result::Result<String, String>> {
        let root = &self.settings.ledgers_root;
        let path = |layout: Layout| layout.path(root, id);
        Ok(self.layout().await?.map(path))
    }

    /// Addresses of the brokers that are registered now.
    pub(super) async fn brokers(&self) -> Result<Brokers> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Raw {
            web_service_url: Option<String>,
            web_service_url_tls: Option<String>,
            pulsar_service_url: Option<String>,
            pulsar_service_url_tls: Option<String>,
        }
        let mut all = Brokers::default();
        for broker in self.zk.children("/loadbalance/brokers").await?.unwrap_or_default() {
            if let Some((value, _)) = self.zk.get(&format!("/loadbalance/brokers/{broker}")).await?
                && let Ok(raw) = serde_json::from_slice::<Raw>(&value)
            {
                all.web.extend([raw.web_service_url, raw.web_service_url_tls].into_iter().flatten());
                all.binary.extend([raw.pulsar_service_url, raw.pulsar_service_url_tls].into_iter().flatten());
            }
        }
        Ok(all)
    }

    /// A topic's list of ledgers as of now, and its last ledger; none when there is no such topic.
    ///
    /// # Errors
    /// When it could not be read, or not be decoded.
    pub async fn list(&self, name: &TopicName) -> Result<Option<(ManagedLedger, LastLedger)>> {
        let Some((value, _)) = self.zk.get_synced(&name.path()).await? else { return Ok(None) };
        let list = super::metadata::managed_ledger_info(&value)
            .map_err(|e| TargetError::new(Class::Invalid, format!("reading the ledgers of {}", name.subject()), e))?;
        let last = match list.ledgers.last() {
            Some(info) => self.last_ledger(info.id).await?.0,
            None => LastLedger::Missing,
        };
        Ok(Some((list, last)))
    }

    /// A cursor as of now, by its plain name; none when there is no such cursor.
    ///
    /// # Errors
    /// When it could not be read, or not be decoded.
    pub async fn cursor(&self, name: &TopicName, cursor: &str) -> Result<Option<CursorNode>> {
        let path = format!("{}/{}", name.path(), names::encode(cursor));
        let Some((value, stat)) = self.zk.get_synced(&path).await? else { return Ok(None) };
        let what = || format!("reading the cursor {cursor:?} of {}", name.subject());
        let info = super::metadata::cursor_info(&value).map_err(|e| TargetError::new(Class::Invalid, what(), e))?;
        Ok(Some(CursorNode { seen: stat.seen(), info }))
    }

    /// What a cursor is, by its name.
    pub(super) fn cursor_kind(&self, name: &str) -> CursorKind {
        assemble::cursor_kind(name, &self.settings)
    }

    /// The node of a ledger; none when the layout is not known.
    pub(super) async fn ledger_node(&self, id: i64) -> Result<Option<String>> {
        Ok(self.ledger_path(id).await?.ok())
    }

    /// BookKeeper's root and the node that says how it is laid out.
    pub(super) fn ledger_roots(&self) -> [String; 2] {
        let root = &self.settings.ledgers_root;
        [root.clone(), format!("{root}/LAYOUT")]
    }

    /// The last ledger of a topic, and the transaction that made it.
    async fn last_ledger(&self, id: i64) -> Result<(LastLedger, Option<i64>)> {
        let path = match self.ledger_path(id).await? {
            Ok(path) => path,
            Err(why) => return Ok((LastLedger::Unknown { why }, None)),
        };
        Ok(match self.zk.get(&path).await? {
            Some((value, stat)) => (assemble::last_ledger(&value, stat), Some(stat.created_zxid)),
            None => (LastLedger::Missing, None),
        })
    }

    async fn namespace_policies(&self, name: &str) -> Result<Evidence<NamespacePolicies>> {
        Ok(match self.zk.get(&format!("/admin/policies/{name}")).await? {
            Some((value, _)) => NamespacePolicies::parse(&value).map_or_else(Evidence::Unknown, Evidence::Present),
            None if self.zk.stat("/admin/policies").await?.is_some() => Evidence::Absent,
            None => Evidence::Unknown("/admin/policies does not exist here: policies may live in another store".into()),
        })
    }

    /// What counts for all topics of a namespace, or for those named only; and whether brokers must be asked for their policies.
    async fn facts(
        &self,
        name: &str,
        change_events: &[String],
        only: Option<&[TopicName]>,
    ) -> Result<(Namespace, bool)> {
        let policies = self.namespace_policies(name).await?;
        let boundaries = match self.zk.get(&format!("/admin/local-policies/{name}")).await? {
            Some((value, _)) => policies::boundaries(&value).map_or_else(Evidence::Unknown, Evidence::Present),
            None => Evidence::Absent,
        };
        let topic_level = self.topic_level(name, change_events, only).await?;
        let must_ask = self.ask.is_some()
            && matches!(&topic_level, TopicLevel::Unknown(why) if [CHANGE_EVENTS, CHANGE_EVENTS_OPEN].contains(&why.as_str()));
        Ok((Namespace { policies, boundaries, topic_level }, must_ask))
    }

    /// The topics that a namespace may keep its topics' policies in, without listing its topics. Not all of them need exist.
    async fn change_events(&self, namespace: &str) -> Result<Vec<String>> {
        let mut all = vec!["__change_events".to_owned(), "__change_events-partition-0".to_owned()];
        let path = format!("/admin/partitioned-topics/{namespace}/persistent/__change_events");
        let Some((value, _)) = self.zk.get(&path).await? else { return Ok(all) };
        match policies::partitions(&value) {
            Evidence::Present(count) if count <= 1000 => {
                all.extend((1..count).map(|index| format!("__change_events-partition-{index}")));
            }
            _ => {
                let topics = self.zk.children(&format!("/managed-ledgers/{namespace}/persistent")).await?;
                all = topics.unwrap_or_default();
                all.retain(|topic| is_change_events(topic));
            }
        }
        Ok(all)
    }

    async fn topic_level(
        &self,
        namespace: &str,
        change_events: &[String],
        only: Option<&[TopicName]>,
    ) -> Result<TopicLevel> {
        if let Some(known) = &self.settings.topic_policies {
            return Ok(TopicLevel::Known(known.clone()));
        }
        for topic in change_events {
            let path = format!("/managed-ledgers/{namespace}/persistent/{topic}");
            let Some((value, _)) = self.zk.get(&path).await? else { continue };
            let last = match super::metadata::managed_ledger_info(&value) {
                Ok(list) => match list.ledgers.last() {
                    Some(info) => self.last_ledger(info.id).await?.0,
                    None => LastLedger::Missing,
                },
                Err(e) => LastLedger::Unknown { why: e.to_string() },
            };
            match assemble::change_events_empty(&value, &last) {
                Ok(true) => {}
                Ok(false) => return Ok(TopicLevel::Unknown(CHANGE_EVENTS.to_owned())),
                Err(why) => return Ok(TopicLevel::Unknown(why)),
            }
        }
        self.stored_topic_level(namespace, only).await
    }

    /// Policies that brokers keep below `/admin/topic-policies`. A topic's local ones go before its global ones.
    async fn stored_topic_level(&self, namespace: &str, only: Option<&[TopicName]>) -> Result<TopicLevel> {
        let exists = || async { Ok::<_, TargetError>(self.zk.stat("/admin/topic-policies").await?.is_some()) };
        if !*self.stored_policies.get_or_try_init(exists).await? {
            return Ok(TopicLevel::Known(Arc::default()));
        }
        let mut all: BTreeMap<String, TopicPolicies> = BTreeMap::new();
        for kind in ["global", "local"] {
            let root = format!("/admin/topic-policies/{kind}/{namespace}/persistent");
            let nodes = match only {
                Some(names) => names.iter().map(|name| names::encode(name.base())).collect::<BTreeSet<_>>(),
                None => self.zk.children(&root).await?.unwrap_or_default().into_iter().collect(),
            };
            for encoded in nodes {
                let Some((value, _)) = self.zk.get(&format!("{root}/{encoded}")).await? else { continue };
                let Some(local) = names::decode(&encoded) else {
                    return Ok(TopicLevel::Unknown(format!("{root}/{encoded} is not a name of a topic")));
                };
                match policies::stored_topic_policies(&value) {
                    Ok(own) => {
                        let entry = all.entry(format!("persistent://{namespace}/{local}")).or_default();
                        entry.retention = own.retention.or(entry.retention);
                        entry.ttl_s = own.ttl_s.or(entry.ttl_s);
                    }
                    Err(why) => return Ok(TopicLevel::Unknown(format!("{root}/{encoded}: {why}"))),
                }
            }
        }
        Ok(TopicLevel::Known(Arc::new(all)))
    }

    async fn open(&self, name: &str) -> Result<Option<Open>> {
        let Some(mut topics) = self.zk.children(&format!("/managed-ledgers/{name}/persistent")).await? else {
            return self.open_legacy(name).await;
        };
        let change_events: Vec<String> = topics.iter().filter(|t| is_change_events(t)).cloned().collect();
        let (facts, must_ask) = self.facts(name, &change_events, None).await?;
        let partitioned = match self.zk.children(&format!("/admin/partitioned-topics/{name}/persistent")).await {
            Ok(names) => Evidence::Present(names.unwrap_or_default()),
            Err(e) => Evidence::Unknown(e.to_string()),
        };
        topics.sort_unstable();
        Ok(Some(Open {
            name: name.to_owned(),
            facts,
            topics,
            legacy: Vec::new(),
            partitioned,
            counts: Mutex::default(),
            locks: Mutex::default(),
            must_ask,
        }))
    }

    /// A namespace of which only some topics are looked at: it is not listed.
    async fn open_for(&self, namespace: &str, names: &[TopicName]) -> Result<Open> {
        let change_events = self.change_events(namespace).await?;
        let (facts, must_ask) = self.facts(namespace, &change_events, Some(names)).await?;
        Ok(Open {
            name: namespace.to_owned(),
            facts,
            topics: Vec::new(),
            legacy: Vec::new(),
            partitioned: Evidence::not_read(),
            counts: Mutex::default(),
            locks: Mutex::default(),
            must_ask,
        })
    }

    /// Names from before Pulsar 2.0 have the cluster where others have the namespace.
    async fn open_legacy(&self, name: &str) -> Result<Option<Open>> {
        let Some(namespaces) = self.zk.children(&format!("/managed-ledgers/{name}")).await? else { return Ok(None) };
        let mut legacy = Vec::new();
        for namespace in namespaces {
            let path = format!("/managed-ledgers/{name}/{namespace}/persistent");
            let topics = self.zk.children(&path).await?.unwrap_or_default();
            legacy.extend(topics.into_iter().map(|topic| format!("{name}/{namespace}/persistent/{topic}")));
        }
        Ok(Some(Open {
            name: name.to_owned(),
            facts: Namespace::unread(),
            topics: Vec::new(),
            legacy,
            partitioned: Evidence::not_read(),
            counts: Mutex::default(),
            locks: Mutex::default(),
            must_ask: false,
        }))
    }

    async fn partition_count(&self, open: &Open, name: &TopicName) -> Result<Evidence<u32>> {
        if let Evidence::Present(all) = &open.partitioned {
            let encoded = names::encode(name.base());
            if all.binary_search(&encoded).is_err() {
                return Ok(Evidence::Absent);
            }
        }
        if let Some(known) = open.counts.lock().await.get(name.base()) {
            return Ok(known.clone());
        }
        let count = match self.zk.get(&name.partitioned_path()).await? {
            Some((value, _)) => policies::partitions(&value),
            None => Evidence::Absent,
        };
        open.counts.lock().await.insert(name.base().to_owned(), count.clone());
        Ok(count)
    }

    /// The lock of a topic's bundle, read after the ledger it is compared with.
    async fn lock(&self, open: &Open, name: &TopicName, ledger_created_zxid: i64) -> Result<Evidence<i64>> {
        let bundle = match open.facts.bundle(name) {
            Ok(bundle) => bundle,
            Err(why) => return Ok(Evidence::Unknown(why)),
        };
        // A lock that was seen to be older than the ledger stays so; anything else may have changed.
        if let Some(known) = open.locks.lock().await.get(&bundle).filter(|lock| ledger_created_zxid > **lock) {
            return Ok(Evidence::Present(*known));
        }
        match self.zk.stat(&format!("/namespace/{}/{bundle}", open.name)).await? {
            Some(stat) if stat.ephemeral => {
                open.locks.lock().await.insert(bundle, stat.created_zxid);
                Ok(Evidence::Present(stat.created_zxid))
            }
            _ if self.zk.stat("/loadbalance/extension").await?.is_some() => {
                Ok(Evidence::Unknown("the extensible load manager keeps the owners of bundles elsewhere".to_owned()))
            }
            _ => Ok(Evidence::Absent),
        }
    }

    /// The cursors of a topic whose node was seen with this stat.
    async fn cursors(&self, name: &TopicName, seen: &Stat) -> Result<Evidence<Vec<Cursor>>> {
        let path = name.path();
        let mut gone: Vec<String> = Vec::new();
        for _ in 0..LISTINGS {
            let Some(listed) = self.zk.children_since(&path, seen).await? else {
                return Ok(Evidence::Unknown("the topic went away while its cursors were read".to_owned()));
            };
            if let Some(name) = gone.iter().find(|name| listed.contains(name)) {
                return Ok(Evidence::Unknown(format!("the cursor {name} is listed and cannot be found")));
            }
            let read = |encoded: String| {
                let path = format!("{path}/{encoded}");
                async move {
                    let got = self.zk.get(&path).await?;
                    let got = got.map(|(value, stat)| assemble::cursor(&encoded, stat, &value, &self.settings));
                    Ok::<_, TargetError>(got.ok_or(encoded))
                }
            };
            let all: Vec<_> = stream::iter(listed).map(read).buffered(CURSOR_WINDOW).try_collect().await?;
            let mut cursors = Vec::new();
            let known = gone.len();
            for read in all {
                match read {
                    Ok(cursor) => cursors.push(cursor),
                    Err(missing) => gone.push(missing),
                }
            }
            if gone.len() == known {
                return Ok(if cursors.is_empty() { Evidence::Absent } else { Evidence::Present(cursors) });
            }
            // Deleted since the listing, perhaps. Another listing tells, and whether others have come.
        }
        Ok(Evidence::Unknown("its cursors come and go too fast to be read".to_owned()))
    }

    /// One topic, with what `reads` asks for. None when it went away.
    async fn topic(&self, open: &Open, name: &TopicName, reads: ReadsOf<'_>) -> Result<Option<LedgerCandidate>> {
        let (value, stat) = match self.zk.get(&name.path()).await {
            Ok(Some(got)) => got,
            Ok(None) => return Ok(None),
            Err(e) if e.class() == Class::Refused => {
                return Ok(Some(unreadable(name, &open.facts, &self.settings, &e)));
            }
            Err(e) => return Err(e),
        };
        let mut topic = assemble::topic(name, stat, &value, &open.facts, &self.settings);
        if topic.class != trimtab_events::TopicClass::User {
            return Ok(Some(topic));
        }
        if let Partition::Of { index, count } = &topic.partition
            && count.is_not_read()
            && reads(&topic).partition
        {
            topic.partition = Partition::Of { index: *index, count: self.partition_count(open, name).await? };
        }
        if reads(&topic).last {
            let list = topic.ledgers.present().and_then(|list| list.last()).map(|info| info.id);
            let Some(id) = list else { return Ok(Some(topic)) };
            let (last, created_zxid) = self.last_ledger(id).await?;
            topic.loaded = match (&last, created_zxid) {
                (LastLedger::Open, Some(created)) => assemble::loaded(created, &self.lock(open, name, created).await?),
                (LastLedger::Unknown { why }, _) => Loaded::Unknown { why: why.clone() },
                _ => Loaded::No,
            };
            topic.last = last;
        }
        if topic.cursors.is_not_read() && reads(&topic).cursors {
            topic.cursors = self.cursors(name, &stat).await?;
            if reads(&topic).subscribers {
                self.ask_standing(name, &mut topic).await?;
            }
            if let Partition::Of { index, count } = &topic.partition
                && count.is_not_read()
                && reads(&topic).partition
            {
                topic.partition = Partition::Of { index: *index, count: self.partition_count(open, name).await? };
            }
        }
        Ok(Some(topic))
    }

    /// Where subscriptions stand whose position is in a cursor ledger: asked of the topic's broker, if it has the topic loaded. Asking
    /// loads a topic that is not; should it be closed at this very moment, what is known was recorded before.
    async fn ask_standing(&self, name: &TopicName, topic: &mut LedgerCandidate) -> Result<()> {
        let Some(ask) = &self.ask else { return Ok(()) };
        let hidden = |cursor: &Cursor| cursor.lower_bound && cursor.kind == CursorKind::Subscription;
        if !topic.cursors.present().is_some_and(|cursors| cursors.iter().any(hidden)) || topic.loaded != Loaded::Yes {
            return Ok(());
        }
        ask.record(std::slice::from_ref(topic)).await?;
        // Without an answer they stay unknown, and are kept.
        let Ok(told) = ask.standing(name).await else { return Ok(()) };
        let Evidence::Present(cursors) = &mut topic.cursors else { return Ok(()) };
        for cursor in cursors.iter_mut().filter(|cursor| hidden(cursor)) {
            let (Some(told), Some(detail)) = (told.get(&cursor.name), &mut cursor.detail) else { continue };
            detail.progress =
                format!("{:x}.{}", detail.seen.created_zxid, super::metadata::digest_of(told.mark_delete, &told.holes));
            detail.told = Some(told.told);
            cursor.mark_delete = Evidence::Present(told.mark_delete);
            cursor.lower_bound = false;
        }
        Ok(())
    }

    /// The subscribers of a topic; of a partition, as seen over all partitions.
    async fn with_siblings(&self, open: &Open, name: &TopicName, topic: LedgerCandidate) -> Result<Candidate> {
        let others = match &topic.partition {
            Partition::Of { index, count: Evidence::Present(count) } => {
                (0..*count).filter(|other| other != index).map(|other| name.sibling(other)).collect()
            }
            _ => Vec::new(),
        };
        let reads = |_: &LedgerCandidate| Reads {
            last: self.ask.is_some(),
            cursors: true,
            partition: false,
            subscribers: true,
        };
        let read = |name: TopicName| async move { self.topic(open, &name, &reads).await };
        let others: Vec<Option<LedgerCandidate>> =
            stream::iter(others).map(read).buffered(CURSOR_WINDOW).try_collect().await?;
        let subject = topic.subject.clone();
        let mut group: Vec<LedgerCandidate> = others.into_iter().flatten().chain([topic]).collect();
        group.sort_by_key(|part| match &part.partition {
            Partition::Of { index, .. } => *index,
            Partition::None => 0,
        });
        let own = group.iter().find(|part| part.subject == subject);
        let log = own.map(|own| subscribers::subscribers_of(own, &group, false));
        log.map(|log| Candidate::Subscriber(Box::new(log))).ok_or_else(|| {
            TargetError::new(
                Class::Bug,
                format!("reading the subscribers of {subject}"),
                "it is not among its own partitions",
            )
        })
    }

    /// Bundles of a namespace that a broker owns, as far as the default load manager tells.
    async fn owned(&self, namespace: &str) -> Result<BTreeSet<String>> {
        let bundles = self.zk.children(&format!("/namespace/{namespace}")).await?;
        Ok(bundles.unwrap_or_default().into_iter().collect())
    }

    /// Topics that a question may load besides those asked about: a broker reads the namespace's topic of policies to answer, looks it
    /// up as a client does, and loads the whole bundle if nobody had it.
    async fn at_risk(&self, open: &Open, owned: &BTreeSet<String>, asked: &[TopicName]) -> Result<Vec<TopicName>> {
        let asked: HashSet<String> = asked.iter().map(TopicName::subject).collect();
        let path = format!("/managed-ledgers/{}/persistent", open.name);
        let all = self.zk.children(&path).await?.unwrap_or_default();
        let of = |topic: &String| TopicName::of_managed_ledger(&format!("{}/persistent/{topic}", open.name));
        let mut bundles = BTreeSet::new();
        for name in all.iter().filter(|topic| is_change_events(topic)).filter_map(of) {
            match open.facts.bundle(&name) {
                Ok(bundle) if owned.contains(&bundle) => {}
                Ok(bundle) => drop(bundles.insert(bundle)),
                // Nobody can tell: any of them.
                Err(_) => {
                    return Ok(all.iter().filter_map(of).filter(|name| !asked.contains(&name.subject())).collect());
                }
            }
        }
        let risk = |name: &TopicName| open.facts.bundle(name).is_ok_and(|bundle| bundles.contains(&bundle));
        Ok(all.iter().filter_map(of).filter(|name| risk(name) && !asked.contains(&name.subject())).collect())
    }

    /// A namespace whose topic policies must be asked for: everything that the question may load is read and recorded before the first
    /// call, since loading erases the evidence.
    async fn ask_all(&self, open: &Open, names: &[TopicName], reads: ReadsOf<'_>) -> Result<Vec<Item>> {
        let Some(ask) = self.ask.clone() else { return Ok(Vec::new()) };
        let facts: &Open = open;
        let owned = self.owned(&open.name).await?;
        let more = self.at_risk(open, &owned, names).await?;
        let read = |name: TopicName| async move {
            let all = |topic: &LedgerCandidate| Reads { subscribers: reads(topic).subscribers, ..Reads::ALL };
            let topic = self.topic(facts, &name, &all).await?;
            Ok::<_, TargetError>(topic.map(|topic| (name, topic)))
        };
        let read_all = |names: &[TopicName]| {
            let seen = stream::iter(names.to_vec()).map(read).buffered(self.zk.window());
            seen.try_filter_map(|topic| futures::future::ready(Ok(topic))).try_collect::<Vec<_>>()
        };
        let (mut topics, others) = (read_all(names).await?, read_all(&more).await?);
        let evidence: Vec<LedgerCandidate> = topics.iter().chain(&others).map(|(_, topic)| topic.clone()).collect();
        ask.record(&evidence).await?;
        let mut known: BTreeMap<String, TopicPolicies> = BTreeMap::new();
        for (name, topic) in &mut topics {
            if topic.class != trimtab_events::TopicClass::User {
                continue;
            }
            let base = name.base_subject();
            if !known.contains_key(&base) {
                match ask.topic_policies(name).await {
                    Ok(own) => {
                        known.insert(base.clone(), own);
                    }
                    Err(e) => {
                        let level = TopicLevel::Unknown(format!("asking a broker failed: {e}"));
                        topic.policies = policies::effective(&open.facts.policies, &level, name, &self.settings);
                        continue;
                    }
                }
            }
            let own = known.get(&base).copied().map(|own| (base, own));
            let level = TopicLevel::Known(Arc::new(own.into_iter().collect()));
            topic.policies = policies::effective(&open.facts.policies, &level, name, &self.settings);
        }
        // What a broker has taken over to answer, it loads by and by, and looks after from now on.
        let taken: BTreeSet<String> = self.owned(&open.name).await?.difference(&owned).cloned().collect();
        let is_taken = |name: &TopicName| open.facts.bundle(name).is_ok_and(|bundle| taken.contains(&bundle));
        let loaded: Vec<String> = topics
            .iter()
            .chain(&others)
            .filter(|(name, topic)| is_taken(name) && topic.class == trimtab_events::TopicClass::User)
            .map(|(name, _)| name.subject())
            .collect();
        if !loaded.is_empty() {
            ask.loaded(&open.name, &loaded).await?;
        }
        for (_, topic) in topics.iter_mut().filter(|(name, _)| is_taken(name)) {
            topic.loaded = Loaded::Yes;
        }
        Ok(topics.into_iter().map(|(_, topic)| found(topic)).collect())
    }
}

/// A topic as an item of a scan.
fn found(topic: LedgerCandidate) -> Item {
    Item::Candidate(Candidate::Ledger(Box::new(topic)))
}

/// Adds the subscribers of the topics of which `reads` says that they are candidates of their own.
pub(super) fn with_subscribers<'a>(
    items: BoxStream<'a, Result<Item>>,
    whole: bool,
    reads: ReadsOf<'a>,
) -> BoxStream<'a, Result<Item>> {
    let items = items.map(Some).chain(stream::once(futures::future::ready(None)));
    let grouped = items.scan(Grouper::new(whole), move |grouper, item| {
        let mut out = Vec::new();
        let subscribers = match item {
            Some(Ok(Item::Candidate(Candidate::Ledger(topic)))) => {
                let wanted = reads(&topic).subscribers;
                let done = if wanted { grouper.push((*topic).clone()) } else { Vec::new() };
                out.push(Ok(found(subscribers::without_details(*topic))));
                done
            }
            Some(other) => {
                out.push(other);
                Vec::new()
            }
            None => grouper.finish(),
        };
        out.extend(subscribers.into_iter().map(|candidate| Ok(Item::Candidate(candidate))));
        futures::future::ready(Some(stream::iter(out)))
    });
    grouped.flatten().boxed()
}

/// What made the root of the managed ledgers, and when: the same cluster under whatever address.
pub(crate) async fn cluster_identity(zk: &Zk) -> Result<String> {
    let root = zk.get_full("/managed-ledgers").await?.map(|(_, stat)| (stat.czxid, stat.ctime));
    let (zxid, at_ms) = root.ok_or_else(|| {
        let why = "there is no such node; is the address (and its chroot) that of a Pulsar cluster?";
        TargetError::new(Class::Invalid, "reading /managed-ledgers in ZooKeeper", why)
    })?;
    Ok(format!("pulsar {zxid:x}@{at_ms}"))
}

fn is_change_events(encoded: &str) -> bool {
    encoded == "__change_events" || encoded.starts_with("__change_events-partition-")
}

fn unreadable(name: &TopicName, facts: &Namespace, settings: &Settings, error: &TargetError) -> LedgerCandidate {
    let stat = Stat {
        created_zxid: 0,
        modified_zxid: 0,
        children_zxid: 0,
        created_ms: 0,
        modified_ms: 0,
        version: -1,
        children: 0,
        children_version: 0,
        ephemeral: false,
    };
    let mut topic = assemble::topic(name, stat, &[], facts, settings);
    topic.ledgers = Evidence::Unknown(error.to_string());
    topic.cursors = Evidence::Unknown(error.to_string());
    topic
}

impl Inventory for PulsarInventory {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        cluster_identity(&self.zk).boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        async move {
            let filter = ScopeFilter::new(scope)?;
            // Whoever asked may have heard of a change from a server that is ahead of ours.
            self.zk.sync_all().await?;
            if let Some(topics) = filter.only_topics() {
                let mut shards: Vec<String> = topics.iter().map(|topic| topic.namespace.clone()).collect();
                shards.dedup();
                shards.retain(|shard| filter.shard(shard));
                return Ok(shards);
            }
            if let Some(one) = filter.only_namespace() {
                return Ok(vec![one.to_owned()]);
            }
            let tenants = match filter.only_tenant() {
                Some(tenant) => vec![tenant.to_owned()],
                None => self.zk.children("/managed-ledgers").await?.ok_or_else(|| {
                    let why = "there is no such node; is the address (and its chroot) that of a Pulsar cluster?";
                    TargetError::new(Class::Invalid, "listing /managed-ledgers in ZooKeeper", why)
                })?,
            };
            let list = |tenant: String| async move {
                let namespaces = self.zk.children(&format!("/managed-ledgers/{tenant}")).await?.unwrap_or_default();
                Ok::<_, TargetError>(namespaces.into_iter().map(|ns| format!("{tenant}/{ns}")).collect::<Vec<_>>())
            };
            let shards: Vec<Vec<String>> =
                stream::iter(tenants).map(list).buffered(self.zk.window()).try_collect().await?;
            Ok(shards.into_iter().flatten().filter(|shard| filter.shard(shard)).collect())
        }
        .boxed()
    }

    fn scan<'a>(&'a self, shard: &'a str, scope: &'a Scope, reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let whole = ScopeFilter::new(scope).is_ok_and(|filter| filter.whole_topics());
        let opened = async move {
            let filter = ScopeFilter::new(scope)?;
            let (mut names, mut odd) = (Vec::new(), Vec::new());
            let open = if let Some(topics) = filter.only_topics() {
                names.extend(topics.iter().filter(|name| name.namespace == shard && filter.topic(name)).cloned());
                self.open_for(shard, &names).await?
            } else {
                let Some(mut open) = self.open(shard).await? else { return Ok(stream::empty().boxed()) };
                let mut paths = std::mem::take(&mut open.legacy);
                let topics = std::mem::take(&mut open.topics);
                paths.extend(topics.into_iter().map(|topic| format!("{shard}/persistent/{topic}")));
                names.reserve(paths.len());
                for path in paths {
                    match TopicName::of_managed_ledger(&path) {
                        Some(name) if filter.topic(&name) => names.push(name),
                        Some(_) => {}
                        None => {
                            odd.push(Ok(Item::Problem(format!("/managed-ledgers/{path} is not a topic's name: kept"))));
                        }
                    }
                }
                open
            };
            // A topic's partitions one after the other, in the order of their numbers.
            names.sort_by(|a, b| (a.base(), a.partition).cmp(&(b.base(), b.partition)));
            if open.must_ask {
                odd.extend(self.ask_all(&open, &names, reads).await?.into_iter().map(Ok));
                return Ok(stream::iter(odd).boxed());
            }
            let open = Arc::new(open);
            let read = move |name: TopicName| {
                let open = open.clone();
                async move { Ok(self.topic(&open, &name, reads).await?.map(found)) }
            };
            let topics = stream::iter(names).map(read).buffered(self.zk.window());
            let topics = topics.filter_map(|got| futures::future::ready(got.transpose()));
            Ok::<_, TargetError>(stream::iter(odd).chain(topics).boxed())
        };
        let items = stream::once(opened)
            .flat_map(|opened| opened.unwrap_or_else(|e| stream::once(futures::future::ready(Err(e))).boxed()))
            .boxed();
        with_subscribers(items, whole, reads)
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let subscriber = split_subscriber(subject);
            let log = subscriber.as_ref().map_or(subject, |(log, _)| *log);
            let Some(name) = TopicName::of_subject(log) else {
                let why = "it is not a topic's name; expected persistent://tenant/namespace/topic";
                return Err(TargetError::new(Class::Invalid, format!("reading {subject:?}"), why));
            };
            let open = self.open_for(&name.namespace, std::slice::from_ref(&name)).await?;
            let reads = |_: &LedgerCandidate| Reads { subscribers: subscriber.is_some(), ..Reads::ALL };
            let topic = if open.must_ask {
                let asked = self.ask_all(&open, std::slice::from_ref(&name), &reads).await?;
                asked.into_iter().find_map(|item| match item {
                    Item::Candidate(Candidate::Ledger(topic)) => Some(*topic),
                    _ => None,
                })
            } else {
                self.topic(&open, &name, &reads).await?
            };
            let Some(topic) = topic else { return Ok(None) };
            match subscriber {
                None => Ok(Some(Candidate::Ledger(Box::new(subscribers::without_details(topic))))),
                Some(_) => self.with_siblings(&open, &name, topic).await.map(Some),
            }
        }
        .boxed()
    }

    fn follow(&self) -> BoxFuture<'_, Result<Box<dyn Changes>>> {
        async move { Ok(Box::new(Watches::set(&self.zk).await?) as Box<dyn Changes>) }.boxed()
    }

    fn operations(&self) -> u64 {
        self.zk.pace().made()
    }

    fn reachable(&self) -> BoxFuture<'_, Result<()>> {
        self.zk.reachable().boxed()
    }

    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        self.examined().boxed()
    }
}
