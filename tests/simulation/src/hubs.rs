//! Hedwig's hubs in memory only: topics with ranges of messages and subscribers, each attached by one at a time. A hub collects what every
//! subscriber has consumed, and nothing else.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use trimtab_events::{
    Evidence, HedwigHub, HedwigPointer, HedwigRange, HedwigTopic, Log, Seen, Subscriber, SubscriberCandidate,
    SubscriberClass,
};

/// A subscriber.
#[derive(Debug, Clone)]
pub struct Member {
    /// The last message that it has consumed.
    pub consumed: i64,
    /// Version of its node, and the transaction that wrote it.
    pub version: (i32, i64),
    /// When its node was last written.
    pub modified_ms: i64,
    /// When its own client last consumed anything, or an act found it online.
    pub alive_ms: i64,
    /// Its own client is attached.
    pub online: bool,
    /// The connection by which an act is attached in its place.
    pub held: Option<u64>,
}

/// A topic.
#[derive(Debug, Clone, Default)]
pub struct Topic {
    /// Its ranges in order: a ledger and its last message; the last one is open.
    pub ranges: Vec<(i64, Option<i64>)>,
    /// Its subscribers by name.
    pub members: BTreeMap<String, Member>,
    /// Its last message.
    pub last: i64,
    version: (i32, i64),
    modified_ms: i64,
}

/// The topics, by subject.
#[derive(Debug, Clone, Default)]
pub struct Hubs {
    /// The topics.
    pub topics: BTreeMap<String, Topic>,
    zxid: i64,
    next_ledger: i64,
}

/// How many messages a hub lets a subscriber go on before it writes that down.
pub const CONSUME_INTERVAL: u64 = 5;

impl Hubs {
    fn ledger(&mut self) -> i64 {
        self.next_ledger += 1;
        self.next_ledger
    }

    /// Makes a topic with closed ranges of ten messages each, and an open one; its subscribers stand at these messages.
    pub fn add(&mut self, subject: &str, closed: i64, members: &[(&str, i64)], now_ms: i64) {
        self.zxid += 1;
        let mut ranges: Vec<(i64, Option<i64>)> = (1..=closed).map(|index| (self.ledger(), Some(index * 10))).collect();
        ranges.push((self.ledger(), None));
        let member = |(name, consumed): &(&str, i64)| {
            let member = Member {
                consumed: *consumed,
                version: (0, self.zxid),
                modified_ms: now_ms,
                alive_ms: now_ms,
                online: false,
                held: None,
            };
            ((*name).to_owned(), member)
        };
        let members = members.iter().map(member).collect();
        let (last, version) = (closed * 10 + 5, (0, self.zxid));
        self.topics.insert(subject.to_owned(), Topic { ranges, members, last, version, modified_ms: now_ms });
    }

    /// Messages are published: the open range ends and another begins.
    pub fn grow(&mut self, subject: &str, now_ms: i64) {
        self.zxid += 1;
        let (zxid, next) = (self.zxid, self.ledger());
        let Some(topic) = self.topics.get_mut(subject) else { return };
        topic.last += 10;
        if let Some(open) = topic.ranges.last_mut() {
            open.1 = Some(topic.last - 5);
        }
        topic.ranges.push((next, None));
        (topic.version, topic.modified_ms) = ((topic.version.0 + 1, zxid), now_ms);
    }

    /// Notes how far a subscriber is.
    pub fn consume(&mut self, subject: &str, name: &str, to: i64, now_ms: i64) {
        self.zxid += 1;
        let zxid = self.zxid;
        let Some(topic) = self.topics.get_mut(subject) else { return };
        let last = topic.last;
        let Some(member) = topic.members.get_mut(name) else { return };
        member.consumed = member.consumed.max(to.min(last));
        (member.version, member.modified_ms) = ((member.version.0 + 1, zxid), now_ms);
    }

    /// Removes the ranges that every subscriber has consumed; which.
    pub fn collect(&mut self, subject: &str, now_ms: i64) -> Vec<i64> {
        self.zxid += 1;
        let zxid = self.zxid;
        let Some(topic) = self.topics.get_mut(subject) else { return Vec::new() };
        let kept = topic.members.values().map(|member| member.consumed).min().unwrap_or(0);
        let gone: Vec<i64> = topic
            .ranges
            .iter()
            .take_while(|(_, end)| end.is_some_and(|end| end <= kept))
            .map(|(ledger, _)| *ledger)
            .collect();
        if !gone.is_empty() {
            topic.ranges.drain(..gone.len());
            (topic.version, topic.modified_ms) = ((topic.version.0 + 1, zxid), now_ms);
        }
        gone
    }
}

impl Topic {
    /// As its metadata shows it.
    pub fn candidate(&self, subject: &str) -> SubscriberCandidate {
        let seen = |(version, zxid): (i32, i64), modified_ms| Seen {
            version,
            created_zxid: 1,
            modified_zxid: zxid,
            modified_ms,
        };
        let subscriber = |(name, member): (&String, &Member)| Subscriber {
            name: name.clone(),
            class: SubscriberClass::User,
            seen: seen(member.version, member.modified_ms),
            progress: Evidence::Present(progress(member.consumed)),
            stored_ms: member.modified_ms,
            alive_ms: 0,
            connected: Evidence::not_read(),
            history: None,
            mark: None,
            protected: None,
            stood: None,
            expiration_s: None,
        };
        let pointer = |member: &Member| HedwigPointer { consumed: Evidence::Present(member.consumed), bound: 0 };
        let range = |(ledger, end): &(i64, Option<i64>)| HedwigRange { ledger: *ledger, end: *end };
        SubscriberCandidate {
            subject: subject.to_owned(),
            log: Log::Hedwig(HedwigTopic {
                seen: Evidence::Present(seen(self.version, self.modified_ms)),
                ranges: Evidence::Present(self.ranges.iter().map(range).collect()),
                hub: Evidence::Present(HedwigHub { address: "hub:4080".to_owned(), alive: true, since_ms: 1 }),
                pointers: self.members.values().map(pointer).collect(),
                consume_interval: CONSUME_INTERVAL,
            }),
            subscribers: self.members.iter().map(subscriber).collect(),
        }
    }
}

/// The digest of a position.
pub fn progress(consumed: i64) -> String {
    let digest = Sha256::digest(consumed.to_be_bytes());
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
