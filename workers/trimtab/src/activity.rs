//! What we saw of subscribers over several scans: our own history of positions, marks, and the wishes to be left alone.
//!
//! The history of a shard is kept in pages of fixed-size entries, in the order in which a scan meets the topics, so a scan holds one old
//! page and one new one whatever the size of the shard (more only where one log has more subscribers than a page has room for). A scan
//! writes the shard's next generation beside the present one and switches to it when the shard was read completely; a crash leaves the
//! present one. Losing it delays acts and does nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;
use trimtab_bus::{Expect, Store};
use trimtab_events::{
    Evidence, History, Mark, Protection, Stood, Subscriber, SubscriberCandidate, SubscriberClass, key_of,
    subscriber_subject,
};
use trimtab_policy::holds;
use trimtab_targets::Class;

use crate::worker::Failure;

pub(crate) const PAGES: &str = "history";
pub(crate) const MARKS: &str = "marks";
pub(crate) const OWN: &str = "own";
pub(crate) const PROTECTED: &str = "protected";

/// Entries of one page: a quarter of a megabyte.
const PAGE_ENTRIES: usize = 8192;
const ENTRY: usize = 32;
const MAGIC: &[u8; 4] = b"TTH1";
/// The longest time between two sightings that counts as idle, seconds.
const LONGEST_GAP_S: u32 = 7 * 86_400;
/// Documents read at once.
const LISTED: usize = 1000;

/// What is remembered of one subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    /// First bytes of its progress.
    progress: u64,
    /// Since when it has been unchanged, seconds since 1970.
    since: u32,
    /// When it was last seen.
    last: u32,
    /// Until when stored times of activity are our own doing.
    own_until: u32,
    /// Finished scans that saw this progress.
    sightings: u16,
    /// It was announced, or is about to be.
    marked: bool,
}

impl Sighting {
    fn write(&self, key: u64, to: &mut Vec<u8>) {
        to.extend_from_slice(&key.to_be_bytes());
        to.extend_from_slice(&self.progress.to_be_bytes());
        for number in [self.since, self.last, self.own_until] {
            to.extend_from_slice(&number.to_be_bytes());
        }
        to.extend_from_slice(&self.sightings.to_be_bytes());
        to.extend_from_slice(&[u8::from(self.marked), 0]);
    }

    fn read(from: &[u8; ENTRY]) -> (u64, Sighting) {
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| from[at + i]));
        let int = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| from[at + i]));
        let sightings = u16::from_be_bytes([from[28], from[29]]);
        let entry = Sighting {
            progress: long(8),
            since: int(16),
            last: int(20),
            own_until: int(24),
            sightings,
            marked: from[30] != 0,
        };
        (long(0), entry)
    }
}

/// Which pages a shard's history has: the number of their generation, and the first topic of each. The last one is in here, so that a
/// shard of a few thousand subscribers is one document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Directory {
    generation: u64,
    /// The fencing number of whoever wrote them: two that read the shard at once write no page of each other.
    #[serde(default, skip_serializing_if = "is_zero")]
    by: u64,
    firsts: Vec<String>,
    last: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What our own act left a subscriber at, so that nobody takes it for a sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Own {
    subject: String,
    /// The progress it was decided on, and after each act since; the last is the present one.
    chain: Vec<String>,
    /// When the last visit ended, milliseconds since 1970.
    until_ms: i64,
    /// When an act found it alive, milliseconds since 1970; 0 when none did.
    #[serde(default)]
    alive_ms: i64,
    /// Where it was found, if all that spoke for it was a position that the owner had not written down. Kept for the next visit, as long as
    /// its progress is this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stood: Option<StoodAt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoodAt {
    at: u64,
    progress: String,
}

impl Own {
    fn new(subject: String) -> Own {
        Own { subject, chain: Vec::new(), until_ms: 0, alive_ms: 0, stood: None }
    }

    /// Gives a subscriber what a visit found out about it, while it has not moved since.
    fn tell(&self, subscriber: &mut Subscriber) {
        let Some(stood) = self.stood.as_ref().filter(|stood| subscriber.progress.present() == Some(&stood.progress))
        else {
            return;
        };
        subscriber.stood = Some(Stood { at: stood.at, since_ms: self.alive_ms });
        subscriber.alive_ms = subscriber.alive_ms.max(self.alive_ms);
    }
}

/// The shared memory of subscribers of one target.
#[derive(Clone)]
pub struct Activity {
    store: Arc<dyn Store>,
    target: String,
}

/// Room that the histories take in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Documents.
    pub documents: usize,
    /// Bytes of all of them.
    pub bytes: usize,
    /// Bytes of the largest.
    pub largest: usize,
}

/// A subscriber whose mark was cleared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleared {
    /// The subscriber.
    pub subject: String,
    /// It does not exist any more. Otherwise it showed a sign of life.
    pub gone: bool,
}

/// The name under which a subscriber's activity is remembered: that of its topic as a whole, not of a partition.
fn remembered(log: &SubscriberCandidate, name: &str) -> String {
    subscriber_subject(log.whole(), name)
}

fn short_key(subject: &str) -> u64 {
    let hash = Sha256::digest(subject);
    u64::from_be_bytes(std::array::from_fn(|i| hash[i]))
}

fn number_of(progress: &str) -> u64 {
    u64::from_str_radix(progress, 16).unwrap_or_else(|_| short_key(progress))
}

fn seconds(ms: i64) -> u32 {
    u32::try_from(ms / 1000).unwrap_or(if ms < 0 { 0 } else { u32::MAX })
}

fn bug(e: impl std::fmt::Display) -> Failure {
    Failure::new(Class::Bug, e)
}

impl Activity {
    /// The memory of a target in this store.
    pub fn new(store: Arc<dyn Store>, target: &str) -> Activity {
        Activity { store, target: target.to_owned() }
    }

    /// The name under which something is noted.
    pub(crate) fn name(&self, subject: &str) -> String {
        key_of(&self.target, subject)
    }

    fn key(&self, subject: &str) -> String {
        format!("{}/{}", self.target, key_of(&self.target, subject))
    }

    async fn document<T: for<'de> Deserialize<'de>>(
        &self,
        bucket: &str,
        key: &str,
    ) -> Result<Option<(T, u64)>, Failure> {
        let Some(document) = self.store.get(bucket, key).await? else { return Ok(None) };
        match serde_json::from_slice(&document.value) {
            Ok(value) => Ok(Some((value, document.revision))),
            Err(e) => Err(bug(format!("document {bucket}/{key} is not what it should be: {e}; remove it to go on"))),
        }
    }

    async fn all<T: for<'de> Deserialize<'de>>(&self, bucket: &str) -> Result<Vec<(String, T)>, Failure> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        let prefix = format!("{}/", self.target);
        loop {
            let documents = self.store.list(bucket, &prefix, after.as_deref(), LISTED).await?;
            let more = documents.len() == LISTED;
            after = documents.last().map(|document| document.key.clone());
            for document in documents {
                match serde_json::from_slice(&document.value) {
                    Ok(value) => all.push((document.key, value)),
                    Err(e) => {
                        return Err(bug(format!("document {bucket}/{} is not what it should be: {e}", document.key)));
                    }
                }
            }
            if !more {
                return Ok(all);
            }
        }
    }

    async fn put<T: Serialize>(&self, bucket: &str, key: &str, value: &T, expect: Expect) -> Result<(), Failure> {
        let value = serde_json::to_vec(value).map_err(bug)?;
        self.store.put(bucket, key, &value, expect).await?;
        Ok(())
    }

    /// Wishes to be left alone, by the name of what is protected.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn protections(&self) -> Result<Vec<Protection>, Failure> {
        Ok(self.all::<Protection>(PROTECTED).await?.into_iter().map(|(_, wish)| wish).collect())
    }

    /// Notes a wish to leave something alone: a topic, with all its subscribers, or one subscriber.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn protect(&self, wish: &Protection) -> Result<(), Failure> {
        self.put(PROTECTED, &self.key(&wish.subject), wish, Expect::Anything).await
    }

    /// Takes such a wish back; whether there was one.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn unprotect(&self, subject: &str) -> Result<bool, Failure> {
        let key = self.key(subject);
        let there = self.store.get(PROTECTED, &key).await?.is_some();
        self.store.delete(PROTECTED, &key, Expect::Anything).await?;
        Ok(there)
    }

    /// The wish that covers any of these.
    async fn protection(&self, subjects: &[&str]) -> Result<Option<Protection>, Failure> {
        for subject in subjects {
            if let Some((wish, _)) = self.document::<Protection>(PROTECTED, &self.key(subject)).await? {
                return Ok(Some(wish));
            }
        }
        Ok(None)
    }

    /// Whether somebody asked to leave a topic alone.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn protects(&self, subject: &str, now_ms: i64) -> Result<Option<Protection>, Failure> {
        let wish = self.protection(&[subject]).await?;
        Ok(wish.filter(|wish| wish.until_ms.is_none_or(|until| now_ms < until)))
    }

    /// Fills in what the store knows of the subscribers of a log that was read again: marks, wishes to be left alone, and what visits found.
    /// Histories are those of the decision.
    ///
    /// # Errors
    /// When the store cannot be read: nothing may be done then.
    pub async fn recall(&self, log: &mut SubscriberCandidate) -> Result<(), Failure> {
        let (subject, whole) = (log.subject.clone(), log.whole().to_owned());
        for index in 0..log.subscribers.len() {
            let name = &log.subscribers[index].name;
            let (part, remembered) = (subscriber_subject(&subject, name), remembered(log, name));
            let mark = self.document::<Mark>(MARKS, &self.key(&remembered)).await?.map(|(mark, _)| mark);
            let protected = self.protection(&[&part, &remembered, &subject, &whole]).await?;
            let own = self.document::<Own>(OWN, &self.key(&remembered)).await?;
            let subscriber = &mut log.subscribers[index];
            (subscriber.mark, subscriber.protected) = (mark, protected);
            own.iter().for_each(|(own, _)| own.tell(subscriber));
        }
        Ok(())
    }

    /// Whether the present progress of a subscriber is what our own acts made of the one that a decision was made on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn is_ours(&self, log: &SubscriberCandidate, name: &str, decided: &str) -> Result<bool, Failure> {
        let own = self.document::<Own>(OWN, &self.key(&remembered(log, name))).await?;
        let now = log.subscribers.iter().find(|s| s.name == name).and_then(|s| s.progress.present());
        Ok(own.is_some_and(|(own, _)| {
            now.is_some() && own.chain.last() == now && own.chain.iter().any(|progress| progress == decided)
        }))
    }

    /// Notes what our own act left a subscriber at.
    ///
    /// # Errors
    /// When the store cannot be written: the act then looks like a sign of life, which only delays the next one.
    pub async fn note_own(
        &self,
        log: &SubscriberCandidate,
        name: &str,
        decided: &str,
        now_ms: i64,
    ) -> Result<(), Failure> {
        let subject = remembered(log, name);
        let Some(after) = log.subscribers.iter().find(|s| s.name == name).and_then(|s| s.progress.present()) else {
            return Ok(());
        };
        let key = self.key(&subject);
        let known = self.document::<Own>(OWN, &key).await?;
        let (mut own, expect) = match known {
            Some((own, revision)) if own.chain.iter().any(|progress| progress == decided) => {
                (own, Expect::Revision(revision))
            }
            other => {
                let expect = other.map_or(Expect::Absent, |(_, revision)| Expect::Revision(revision));
                (Own { chain: vec![decided.to_owned()], ..Own::new(subject) }, expect)
            }
        };
        own.chain.push(after.clone());
        own.until_ms = now_ms;
        self.put(OWN, &key, &own, expect).await
    }

    /// Notes that an act found a subscriber alive: it was online, or it came back meanwhile, or its owner stood further with it than the
    /// metadata says, at `stood_at`. The same place as the last time is no new sign of life.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn note_alive(
        &self,
        log: &SubscriberCandidate,
        name: &str,
        stood_at: Option<u64>,
        now_ms: i64,
    ) -> Result<(), Failure> {
        let subject = remembered(log, name);
        let key = self.key(&subject);
        let now = log.subscribers.iter().find(|s| s.name == name).and_then(|s| s.progress.present());
        let stood = stood_at.zip(now).map(|(at, progress)| StoodAt { at, progress: progress.clone() });
        if stood.is_some() && self.document::<Own>(OWN, &key).await?.is_some_and(|(own, _)| own.stood == stood) {
            return Ok(());
        }
        self.put(OWN, &key, &Own { alive_ms: now_ms, stood, ..Own::new(subject) }, Expect::Anything).await
    }

    /// Marks a subscriber; what was marked before, if it was with the same progress.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn mark(
        &self,
        log: &SubscriberCandidate,
        name: &str,
        progress: &str,
        now_ms: i64,
    ) -> Result<Mark, Failure> {
        let subject = remembered(log, name);
        let key = self.key(&subject);
        if let Some((mark, _)) = self.document::<Mark>(MARKS, &key).await?
            && mark.progress == progress
        {
            return Ok(mark);
        }
        let mark = Mark { subject, marked_ms: now_ms, progress: progress.to_owned() };
        self.put(MARKS, &key, &mark, Expect::Anything).await?;
        Ok(mark)
    }

    /// All marks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn marks(&self) -> Result<Vec<Mark>, Failure> {
        Ok(self.all::<Mark>(MARKS).await?.into_iter().map(|(_, mark)| mark).collect())
    }

    /// How much room the histories take.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn pages(&self) -> Result<Room, Failure> {
        let (mut room, mut after) = (Room::default(), None::<String>);
        let prefix = format!("{}/", self.target);
        loop {
            let documents = self.store.list(PAGES, &prefix, after.as_deref(), 16).await?;
            let Some(last) = documents.last() else { return Ok(room) };
            after = Some(last.key.clone());
            for document in &documents {
                room.documents += 1;
                room.bytes += document.value.len();
                room.largest = room.largest.max(document.value.len());
            }
        }
    }

    /// What a scan needs of it at once: our own acts and the wishes, which are few.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn begin(&self) -> Result<Watch, Failure> {
        let own = self.all::<Own>(OWN).await?.into_iter().map(|(_, own)| (short_key(&own.subject), own)).collect();
        let wishes = self.protections().await?.into_iter().map(|wish| (wish.subject.clone(), wish)).collect();
        let marks = self.marks().await?.into_iter().map(|mark| (short_key(&mark.subject), mark.subject)).collect();
        Ok(Watch { activity: self.clone(), own: Arc::new(own), wishes: Arc::new(wishes), marks: Arc::new(marks) })
    }
}

/// The memory of subscribers during one scan.
pub struct Watch {
    activity: Activity,
    own: Arc<HashMap<u64, Own>>,
    wishes: Arc<HashMap<String, Protection>>,
    marks: Arc<HashMap<u64, String>>,
}

impl Watch {
    /// The wish that covers a topic, if one does.
    pub fn wish(&self, subject: &str, now_ms: i64) -> Option<&Protection> {
        self.wishes.get(subject).filter(|wish| wish.until_ms.is_none_or(|until| now_ms < until))
    }

    /// The memory of one shard. `record` says whether what is seen is remembered: only when the whole shard is read.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn shard(&self, shard: &str, record: bool) -> Result<ShardWatch, Failure> {
        let activity = self.activity.clone();
        let prefix = format!("{}/{}", activity.target, key_of(&activity.target, shard));
        let known = activity.document::<Directory>(PAGES, &format!("{prefix}/directory")).await?;
        let (old, revision) = known.map_or((Directory::default(), None), |(old, revision)| (old, Some(revision)));
        Ok(ShardWatch {
            activity,
            own: self.own.clone(),
            wishes: self.wishes.clone(),
            marks: self.marks.clone(),
            met: HashSet::new(),
            behind_s: 0,
            prefix,
            record,
            new: Directory { generation: old.generation + 1, ..Directory::default() },
            old,
            revision,
            old_pages: BTreeMap::new(),
            page: Vec::new(),
            page_first: String::new(),
            topic: String::new(),
            here: HashMap::new(),
            absorbed: Vec::new(),
            cleared: Vec::new(),
        })
    }
}

/// The memory of one shard while it is scanned.
pub struct ShardWatch {
    activity: Activity,
    own: Arc<HashMap<u64, Own>>,
    wishes: Arc<HashMap<String, Protection>>,
    /// All marks of the target, and which of those with marks or notes of visits were met in this shard.
    marks: Arc<HashMap<u64, String>>,
    met: HashSet<u64>,
    /// How far the target's clock is behind ours at least, seconds.
    behind_s: u32,
    prefix: String,
    record: bool,
    old: Directory,
    revision: Option<u64>,
    new: Directory,
    /// The old pages that are held, by their numbers: those that can have something of the topic.
    old_pages: BTreeMap<usize, HashMap<u64, Sighting>>,
    page: Vec<u8>,
    page_first: String,
    /// The topic, as a whole, whose subscribers are in `here`.
    topic: String,
    here: HashMap<u64, Sighting>,
    absorbed: Vec<String>,
    cleared: Vec<Cleared>,
}

impl ShardWatch {
    /// The same, of a shard that is read under a lease with this fencing number.
    pub fn under(mut self, fence: u64) -> ShardWatch {
        self.new.by = fence;
        self
    }

    fn page_key(&self, directory: &Directory, number: usize) -> String {
        let Directory { generation, by, .. } = directory;
        let generation = if *by == 0 { generation.to_string() } else { format!("{generation}.{by}") };
        format!("{}/{generation}/{number}", self.prefix)
    }

    /// Fills in what is remembered of the subscribers of a log, and remembers what is seen now. Topics come in the same order in each
    /// scan; partitions of one topic one after the other.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub async fn see(&mut self, log: &mut SubscriberCandidate, now_ms: i64) -> Result<(), Failure> {
        let topic = log.whole().to_owned();
        if topic != self.topic {
            self.turn(topic).await?;
        }
        for index in 0..log.subscribers.len() {
            let subject = remembered(log, &log.subscribers[index].name);
            let key = short_key(&subject);
            if self.marks.contains_key(&key) || self.own.contains_key(&key) {
                self.met.insert(key);
            }
            // Most have none, and there are as many names to make as subscribers.
            log.subscribers[index].protected = if self.wishes.is_empty() {
                None
            } else {
                let part = subscriber_subject(&log.subject, &log.subscribers[index].name);
                let names = [&part, &subject, &log.subject, &self.topic];
                names.into_iter().find_map(|name| self.wishes.get(name)).cloned()
            };
            if log.subscribers[index].class != SubscriberClass::User {
                continue;
            }
            if !holds(log, index) {
                // It has taken everything since it was announced.
                if self.known(key).is_some_and(|known| known.marked) {
                    self.cleared.push(Cleared { subject, gone: false });
                }
                continue;
            }
            let alone = log.subject == self.topic;
            let subscriber = &mut log.subscribers[index];
            if alone {
                self.compare_clocks(key, subscriber);
            }
            let entry = match self.here.get(&key) {
                Some(entry) => Some(*entry),
                None => self.sight(key, &subject, subscriber, now_ms),
            };
            let Some(entry) = entry else { continue };
            self.here.insert(key, entry);
            if subscriber.alive_ms <= i64::from(entry.own_until) * 1000 {
                subscriber.alive_ms = 0;
            }
            if let Some(own) = self.own.get(&key) {
                own.tell(subscriber);
            }
            if subscriber.progress.present().is_some() {
                subscriber.history = Some(History {
                    since_ms: i64::from(entry.since) * 1000,
                    last_ms: i64::from(entry.last) * 1000,
                    sightings: u32::from(entry.sightings),
                });
            }
            if entry.marked {
                let mark = self.activity.document::<Mark>(MARKS, &self.activity.key(&subject)).await?;
                subscriber.mark = mark.map(|(mark, _)| mark);
            }
        }
        Ok(())
    }

    /// A node that was written since we last saw it as it was before carries a later time than that, or the target's clock is behind
    /// ours. Where a broker was asked, progress says nothing of when the node was written.
    fn compare_clocks(&mut self, key: u64, subscriber: &Subscriber) {
        let (Some(known), Some(progress)) = (self.known(key), subscriber.progress.present()) else { return };
        if known.progress != number_of(progress) && subscriber.connected.present().is_none() {
            let written = seconds(subscriber.seen.modified_ms);
            self.behind_s = self.behind_s.max(known.last.saturating_sub(written));
        }
    }

    /// How far the target's clock is behind ours at least, milliseconds; 0 where nothing tells.
    pub fn behind_ms(&self) -> i64 {
        i64::from(self.behind_s) * 1000
    }

    /// Finds those whose marks or visits are noted, whom the old pages have and this scan has not met: what is noted of them can go.
    async fn look_for_gone(&mut self) -> Result<(), Failure> {
        if self.marks.keys().chain(self.own.keys()).all(|key| self.met.contains(key)) {
            return Ok(());
        }
        for number in 0..self.old.firsts.len() {
            let page = self.read_page(number).await?;
            for (key, known) in page.iter().filter(|(key, _)| !self.met.contains(key)) {
                if let Some(subject) = self.marks.get(key).filter(|_| known.marked) {
                    self.cleared.push(Cleared { subject: subject.clone(), gone: true });
                }
                self.absorbed.extend(self.own.get(key).map(|own| own.subject.clone()));
            }
        }
        Ok(())
    }

    /// What is remembered of a subscriber from now on.
    fn sight(&mut self, key: u64, subject: &str, subscriber: &Subscriber, now_ms: i64) -> Option<Sighting> {
        let known = self.known(key).copied();
        let now = seconds(now_ms);
        let Evidence::Present(progress) = &subscriber.progress else {
            // Nothing is known this time: what was known before stays, and does not count as seen again.
            return known;
        };
        let number = number_of(progress);
        let noted = self.own.get(&key);
        let found_alive = noted.map_or(0, |own| seconds(own.alive_ms));
        let stands = noted.and_then(|own| own.stood.as_ref()).is_some_and(|stood| stood.progress == *progress);
        if found_alive > 0 && !stands {
            self.absorbed.push(subject.to_owned());
        }
        let own = noted.filter(|own| own.chain.last() == Some(progress));
        let own_until = own.map_or(0, |own| seconds(own.until_ms));
        let fresh = Sighting { progress: number, since: now, last: now, own_until, sightings: 1, marked: false };
        let Some(known) = known else { return Some(fresh) };
        let same = known.progress == number;
        let ours = own.is_some_and(|own| own.chain.iter().any(|progress| number_of(progress) == known.progress));
        // A long time in which nobody looked counts for a week of it: a clock that jumped looks the same.
        let unseen = now.saturating_sub(known.last).saturating_sub(LONGEST_GAP_S);
        // A clock that went back makes what it wrote worthless.
        let plausible = known.since <= now && known.last <= now;
        if !plausible || !(same || ours) {
            if known.marked {
                self.cleared.push(Cleared { subject: subject.to_owned(), gone: false });
            }
            return Some(fresh);
        }
        if ours {
            self.absorbed.push(subject.to_owned());
        }
        let own_until = known.own_until.max(own_until);
        let stored = Some(seconds(subscriber.alive_ms)).filter(|alive| *alive > own_until).unwrap_or(0);
        let alive = stored.max(found_alive);
        if alive > known.since {
            if known.marked {
                self.cleared.push(Cleared { subject: subject.to_owned(), gone: false });
            }
            return Some(Sighting { since: alive, own_until, ..fresh });
        }
        // The same moment again is the same snapshot again.
        let sightings = known.sightings.saturating_add(u16::from(now > known.last));
        let marked = known.marked && same;
        Some(Sighting {
            progress: number,
            since: known.since.saturating_add(unseen),
            last: now,
            own_until,
            sightings,
            marked,
        })
    }

    /// Remembers that a subscriber of the log that was seen last is being announced.
    pub fn marking(&mut self, log: &SubscriberCandidate, name: &str) {
        if let Some(entry) = self.here.get_mut(&short_key(&remembered(log, name))) {
            entry.marked = true;
        }
    }

    /// Leaves one topic and goes to the next.
    async fn turn(&mut self, next: String) -> Result<(), Failure> {
        let mut entries: Vec<(u64, Sighting)> = self.here.drain().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        if !self.record {
            entries.clear();
        }
        for (key, entry) in &entries {
            if self.page.is_empty() {
                self.page_first.clone_from(&self.topic);
                self.page.extend_from_slice(MAGIC);
            }
            entry.write(*key, &mut self.page);
            // A topic can have more subscribers than fit on a page: then several pages begin with it.
            if self.page.len() >= PAGE_ENTRIES * ENTRY {
                self.write_page().await?;
            }
        }
        self.topic = next;
        // The page that begins before the topic may end with it. Before the first topic of the first page there is nothing.
        let begins = self.old.firsts.partition_point(|first| *first < self.topic).saturating_sub(1);
        let pages = begins..self.old.firsts.partition_point(|first| *first <= self.topic);
        self.old_pages.retain(|number, _| pages.contains(number));
        for number in pages {
            if !self.old_pages.contains_key(&number) {
                let page = self.read_page(number).await?;
                self.old_pages.insert(number, page);
            }
        }
        Ok(())
    }

    /// What is remembered of a subscriber of the topic.
    fn known(&self, key: u64) -> Option<&Sighting> {
        self.old_pages.values().find_map(|page| page.get(&key))
    }

    async fn read_page(&self, number: usize) -> Result<HashMap<u64, Sighting>, Failure> {
        if number + 1 == self.old.firsts.len() {
            let page = BASE64.decode(&self.old.last).unwrap_or_default();
            return Ok(page.as_chunks::<ENTRY>().0.iter().map(Sighting::read).collect());
        }
        let key = self.page_key(&self.old, number);
        let Some(document) = self.activity.store.get(PAGES, &key).await? else {
            warn!(key, "a page of the history is lost: those on it are seen for the first time");
            return Ok(HashMap::new());
        };
        let Some(body) = document.value.strip_prefix(MAGIC) else {
            warn!(key, "a page of the history is of another form: those on it are seen for the first time");
            return Ok(HashMap::new());
        };
        Ok(body.as_chunks::<ENTRY>().0.iter().map(Sighting::read).collect())
    }

    /// Forgets all pages but the present ones: the former ones, and what readers left that did not come to the end.
    async fn forget_pages(&self) -> Result<(), Failure> {
        let store = &self.activity.store;
        let pages = self.new.firsts.len().saturating_sub(1);
        let mut keep: HashSet<String> = (0..pages).map(|number| self.page_key(&self.new, number)).collect();
        keep.insert(format!("{}/directory", self.prefix));
        let (prefix, mut after) = (format!("{}/", self.prefix), None::<String>);
        loop {
            let found = store.list(PAGES, &prefix, after.as_deref(), 8).await?;
            let Some(last) = found.last() else { return Ok(()) };
            after = Some(last.key.clone());
            for document in found.iter().filter(|document| !keep.contains(&document.key)) {
                store.delete(PAGES, &document.key, Expect::Anything).await?;
            }
        }
    }

    async fn write_page(&mut self) -> Result<(), Failure> {
        let key = self.page_key(&self.new, self.new.firsts.len());
        self.activity.store.put(PAGES, &key, &self.page, Expect::Anything).await?;
        self.new.firsts.push(std::mem::take(&mut self.page_first));
        self.page.clear();
        Ok(())
    }

    /// Ends the shard. If all of it was read, what was seen is what is remembered from now on, and the marks of those that showed a sign
    /// of life are removed; they are returned.
    ///
    /// # Errors
    /// When the store cannot be written, or another scan has remembered the shard meanwhile.
    pub async fn finish(mut self, complete: bool) -> Result<Vec<Cleared>, Failure> {
        if !(self.record && complete) {
            return Ok(Vec::new());
        }
        self.turn(String::new()).await?;
        if let Some(page) = self.page.strip_prefix(MAGIC) {
            self.new.last = BASE64.encode(page);
            self.new.firsts.push(std::mem::take(&mut self.page_first));
        }
        if self.new.firsts.is_empty() && self.revision.is_none() {
            return Ok(Vec::new());
        }
        let directory = format!("{}/directory", self.prefix);
        let expect = self.revision.map_or(Expect::Absent, Expect::Revision);
        self.activity.put(PAGES, &directory, &self.new, expect).await?;
        self.look_for_gone().await?;
        let store = &self.activity.store;
        if self.old.firsts.len() > 1 || self.new.firsts.len() > 1 {
            self.forget_pages().await?;
        }
        for subject in &self.absorbed {
            store.delete(OWN, &self.activity.key(subject), Expect::Anything).await?;
        }
        for cleared in &self.cleared {
            store.delete(MARKS, &self.activity.key(&cleared.subject), Expect::Anything).await?;
        }
        Ok(self.cleared)
    }
}
