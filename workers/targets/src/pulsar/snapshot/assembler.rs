//! Puts the nodes of a snapshot together, in scan order: what a topic needs comes before it, its cursors after it.
//!
//! Holds one namespace's facts, one topic and the ledgers that came since the last topic; nothing grows with the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use trimtab_events::{Candidate, Cursor, Evidence, LastLedger, LedgerCandidate, Loaded, Partition, TopicClass};

use super::sort::{Place, place};
use crate::Item;
use crate::pulsar::assemble::{self, CHANGE_EVENTS, Namespace, Settings};
use crate::pulsar::names::{self, TopicName};
use crate::pulsar::policies::{self, NamespacePolicies, TopicLevel, TopicPolicies};
use crate::pulsar::scope::ScopeFilter;
use crate::snapshot::Node;

/// Where a finished topic goes; false when no more are wanted.
type Emit<'e> = &'e mut dyn FnMut(Item) -> bool;

pub(super) struct Assembler<'f> {
    settings: Arc<Settings>,
    filter: &'f ScopeFilter,
    /// The parts of the tree that are in the file at all. Where one is not, what is missing from it is unknown, not absent.
    has_policies: bool,
    has_ledgers: bool,
    has_partitioned: bool,
    has_locks: bool,
    other_locks: bool,
    shard: String,
    facts: Namespace,
    /// Number of the bundles' locks in the file beside what their parent says, and the transactions that made them.
    locks_seen: (Option<u64>, u64),
    locks: BTreeMap<String, i64>,
    stored: BTreeMap<String, TopicPolicies>,
    change_events: Result<bool, String>,
    /// The namespace's facts have what was learned of its topics' own policies.
    level_known: bool,
    topics: (Option<u64>, u64),
    partitioned: Option<(String, Evidence<u32>)>,
    ledgers: BTreeMap<i64, (LastLedger, i64)>,
    topic: Option<Open>,
    wanted: bool,
}

/// A topic whose cursors are still coming.
struct Open {
    path: String,
    name: TopicName,
    candidate: LedgerCandidate,
    children: u64,
    cursors: Vec<Cursor>,
}

impl<'f> Assembler<'f> {
    pub(super) fn new(settings: Arc<Settings>, filter: &'f ScopeFilter) -> Assembler<'f> {
        Assembler {
            settings,
            filter,
            has_policies: false,
            has_ledgers: false,
            has_partitioned: false,
            has_locks: false,
            other_locks: false,
            shard: String::new(),
            facts: Namespace::unread(),
            locks_seen: (None, 0),
            locks: BTreeMap::new(),
            stored: BTreeMap::new(),
            change_events: Ok(true),
            level_known: false,
            topics: (None, 0),
            partitioned: None,
            ledgers: BTreeMap::new(),
            topic: None,
            wanted: true,
        }
    }

    /// Takes one node. False when no more topics are wanted.
    pub(super) fn node(&mut self, node: Node<'_>, emit: Emit<'_>) -> Result<bool, String> {
        match place(node.path, &self.settings.ledgers_root) {
            Place::Elsewhere => {}
            Place::PoliciesRoot => self.has_policies = true,
            Place::LedgersRoot => self.has_ledgers = true,
            Place::PartitionedRoot => self.has_partitioned = true,
            Place::Namespace(shard) => {
                self.enter(shard, emit)?;
                self.topics.0 = Some(node.stat.children);
            }
            Place::Policies(shard) => {
                self.enter(shard, emit)?;
                self.facts.policies =
                    NamespacePolicies::parse(node.value).map_or_else(Evidence::Unknown, Evidence::Present);
            }
            Place::LocalPolicies(shard) => {
                self.enter(shard, emit)?;
                self.facts.boundaries =
                    policies::boundaries(node.value).map_or_else(Evidence::Unknown, Evidence::Present);
            }
            Place::LocksRoot => self.has_locks = true,
            Place::OtherLocks => self.other_locks = true,
            Place::Locks(shard) => {
                self.enter(shard, emit)?;
                self.locks_seen.0 = Some(node.stat.children);
            }
            Place::Lock(shard, bundle) => {
                self.enter(shard, emit)?;
                self.locks_seen.1 += 1;
                if node.stat.ephemeral {
                    self.locks.insert(bundle.to_owned(), node.stat.created_zxid);
                }
            }
            Place::StoredPolicies { shard, encoded, local } => {
                self.enter(shard, emit)?;
                self.stored_policies(encoded, local, node.value);
            }
            Place::Partitioned(shard, encoded) => {
                self.enter(shard, emit)?;
                self.finish_topic(emit);
                self.partitioned = Some((encoded.to_owned(), policies::partitions(node.value)));
            }
            Place::Ledger(id) => {
                // Its topic follows, so the one before it has all its cursors.
                self.finish_topic(emit);
                self.ledgers.insert(id, (assemble::last_ledger(node.value, node.stat), node.stat.created_zxid));
            }
            Place::Topic(shard, path) => {
                self.enter(shard, emit)?;
                self.finish_topic(emit);
                self.begin_topic(path, &node, emit);
            }
            Place::Cursor { topic, encoded } => {
                let Some(open) = self.topic.as_mut().filter(|open| open.path == topic) else {
                    return Err(format!("the cursor {} does not follow its topic", node.path));
                };
                open.cursors.push(assemble::cursor(encoded, node.stat, node.value, &self.settings));
            }
        }
        Ok(self.wanted)
    }

    pub(super) fn finish(&mut self, emit: Emit<'_>) {
        self.leave(emit);
    }

    fn enter(&mut self, shard: &str, emit: Emit<'_>) -> Result<(), String> {
        if self.shard == shard {
            return Ok(());
        }
        self.leave(emit);
        shard.clone_into(&mut self.shard);
        let absent_or = |has: bool, what: &str| {
            if has { Evidence::Absent } else { Evidence::Unknown(format!("the snapshot has no {what}")) }
        };
        self.facts = Namespace {
            policies: absent_or(self.has_policies, "/admin/policies"),
            boundaries: Evidence::Unknown("the snapshot has no local policies for its namespace".to_owned()),
            topic_level: TopicLevel::Known(Arc::default()),
        };
        self.locks_seen = (None, 0);
        self.locks.clear();
        self.stored.clear();
        self.change_events = Ok(true);
        self.level_known = false;
        self.topics = (None, 0);
        self.partitioned = None;
        self.ledgers.clear();
        Ok(())
    }

    fn leave(&mut self, emit: Emit<'_>) {
        self.finish_topic(emit);
        if let (Some(children), seen) = self.topics
            && children != seen
        {
            let says = format!("the snapshot has {seen} topics of {}, its node says {children}", self.shard);
            self.send(Item::Problem(says), emit);
        }
        self.topics = (None, 0);
    }

    fn send(&mut self, item: Item, emit: Emit<'_>) {
        self.wanted = self.wanted && emit(item);
    }

    fn stored_policies(&mut self, encoded: &str, local: bool, value: &[u8]) {
        self.level_known = false;
        let own = names::decode(encoded).ok_or_else(|| format!("{encoded} is not a name of a topic"));
        match own.and_then(|name| policies::stored_topic_policies(value).map(|own| (name, own))) {
            Ok((name, own)) => {
                let entry = self.stored.entry(format!("persistent://{}/{name}", self.shard)).or_default();
                let (first, second) = if local { (own, *entry) } else { (*entry, own) };
                entry.retention = first.retention.or(second.retention);
                entry.ttl_s = first.ttl_s.or(second.ttl_s);
            }
            Err(why) => self.change_events = Err(format!("stored topic policies: {why}")),
        }
    }

    /// What is known of the policies that topics set for themselves, once the namespace's own part is over.
    fn topic_level(&self) -> TopicLevel {
        match (&self.settings.topic_policies, &self.change_events) {
            (Some(known), _) => TopicLevel::Known(known.clone()),
            (None, Ok(true)) => TopicLevel::Known(Arc::new(self.stored.clone())),
            (None, Ok(false)) => TopicLevel::Unknown(CHANGE_EVENTS.to_owned()),
            (None, Err(why)) => TopicLevel::Unknown(why.clone()),
        }
    }

    fn last_of(&self, id: Option<i64>) -> (LastLedger, Option<i64>) {
        match id.and_then(|id| self.ledgers.get(&id)) {
            Some((last, created)) => (last.clone(), Some(*created)),
            None if self.has_ledgers => (LastLedger::Missing, None),
            None => (LastLedger::Unknown { why: "the snapshot does not have all ledgers".to_owned() }, None),
        }
    }

    fn begin_topic(&mut self, path: &str, node: &Node<'_>, emit: Emit<'_>) {
        self.topics.1 += 1;
        let Some(name) = TopicName::of_managed_ledger(path) else {
            return self.send(Item::Problem(format!("{} is not a topic's name: kept", node.path)), emit);
        };
        let odd = name.class == TopicClass::UnknownName;
        let decoded = odd.then(|| names::decode(&name.local)).flatten();
        if decoded.as_ref().unwrap_or(&name.local).starts_with("__change_events") {
            self.note_change_events(node.value);
        }
        if !std::mem::replace(&mut self.level_known, true) {
            self.facts.topic_level = self.topic_level();
        }
        let mut candidate = assemble::topic(&name, node.stat, node.value, &self.facts, &self.settings);
        if candidate.class == TopicClass::User {
            let id = candidate.ledgers.present().and_then(|list| list.last()).map(|info| info.id);
            let (last, created) = self.last_of(id);
            candidate.loaded = self.loaded(&name, &last, created);
            candidate.last = last;
            if let Partition::Of { index, .. } = candidate.partition {
                candidate.partition = Partition::Of { index, count: self.partition_count(&name) };
            }
        }
        self.ledgers.clear();
        let path = node.path.to_owned();
        self.topic = Some(Open { path, name, candidate, children: node.stat.children, cursors: Vec::new() });
    }

    fn note_change_events(&mut self, value: &[u8]) {
        self.level_known = false;
        let list = crate::pulsar::metadata::managed_ledger_info(value);
        let id = list.ok().and_then(|list| list.ledgers.last().map(|info| info.id));
        let (last, _) = self.last_of(id);
        match (assemble::change_events_empty(value, &last), &self.change_events) {
            (Ok(true), _) | (_, Err(_)) => {}
            (other, Ok(_)) => self.change_events = other,
        }
    }

    fn loaded(&self, name: &TopicName, last: &LastLedger, created: Option<i64>) -> Loaded {
        match (last, created) {
            (LastLedger::Open, Some(created)) => {
                let lock = match self.facts.bundle(name) {
                    Ok(bundle) => self.lock(&bundle),
                    Err(why) => Evidence::Unknown(why),
                };
                assemble::loaded(created, &lock)
            }
            (LastLedger::Unknown { why }, _) => Loaded::Unknown { why: why.clone() },
            _ => Loaded::No,
        }
    }

    fn lock(&self, bundle: &str) -> Evidence<i64> {
        let unknown = |why: &str| Evidence::Unknown(why.to_owned());
        match self.locks.get(bundle) {
            Some(created_zxid) => Evidence::Present(*created_zxid),
            None if self.other_locks => unknown("the extensible load manager keeps the owners of bundles elsewhere"),
            None if !self.has_locks => unknown("the snapshot does not have all of /namespace"),
            None if self.locks_seen.0.is_some_and(|says| says != self.locks_seen.1) => {
                unknown("the snapshot does not have all locks of its namespace")
            }
            None => Evidence::Absent,
        }
    }

    fn partition_count(&self, name: &TopicName) -> Evidence<u32> {
        match &self.partitioned {
            Some((encoded, count)) if *encoded == names::encode(name.base()) => count.clone(),
            _ if self.has_partitioned => Evidence::Absent,
            _ => Evidence::Unknown("the snapshot has no /admin/partitioned-topics".to_owned()),
        }
    }

    fn finish_topic(&mut self, emit: Emit<'_>) {
        let Some(mut open) = self.topic.take() else { return };
        let count = open.cursors.len() as u64;
        open.candidate.cursors = match (count, open.children) {
            (count, children) if count != children => {
                Evidence::Unknown(format!("the snapshot has {count} of its cursors, its node says {children}"))
            }
            (0, _) => Evidence::Absent,
            _ => Evidence::Present(open.cursors),
        };
        if self.filter.shard(&self.shard) && self.filter.topic(&open.name) {
            self.send(Item::Candidate(Candidate::Ledger(Box::new(open.candidate))), emit);
        }
    }
}
