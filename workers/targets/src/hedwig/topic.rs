//! From nodes to topics, and from topics to candidates: the one place where what was read becomes evidence, for live metadata and
//! snapshots alike.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use trimtab_events::{
    Candidate, Evidence, HedwigHub, HedwigPointer, HedwigRange, HedwigTopic, Log, Seen, Subscriber,
    SubscriberCandidate, SubscriberClass,
};

use super::znodes::{self, HubInfo, LedgerRange, MessageId, Subscription};
use crate::zk::Stat;

/// Children of a topic's node that are not topics themselves.
pub(super) const PARTS: [&str; 3] = ["hub", "ledgers", "subscribers"];

/// Where a region is, and what only its hubs' configuration says. The defaults are Hedwig's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `zk_prefix`.
    pub prefix: String,
    /// `region`.
    pub region: String,
    /// `consume_interval`: a hub writes a move of fewer messages nowhere but into its memory.
    pub consume_interval: u64,
    /// Subscribers of other regions' hubs (`__` and the region's name) whose region is gone for good. All others stand for a whole
    /// region, and are never touched.
    pub gone_regions: BTreeSet<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            prefix: "/hedwig".to_owned(),
            region: "standalone".to_owned(),
            consume_interval: 50,
            gone_regions: BTreeSet::new(),
        }
    }
}

impl Settings {
    /// The region's node.
    pub(super) fn root(&self) -> String {
        format!("{}/{}", self.prefix.trim_end_matches('/'), self.region)
    }

    /// The canonical name of a topic.
    pub fn subject(&self, topic: &str) -> String {
        format!("hedwig://{}/{topic}", self.region)
    }

    /// The topic of a canonical name; none when it is not one of this region.
    pub fn topic_of<'s>(&self, subject: &'s str) -> Option<&'s str> {
        let topic = subject.strip_prefix("hedwig://")?.strip_prefix(&self.region)?.strip_prefix('/')?;
        is_topic(topic).then_some(topic)
    }

    /// Whether a subscriber is another region's hub.
    pub(super) fn is_hub_subscriber(&self, subscriber: &str) -> bool {
        subscriber.starts_with("__")
    }
}

/// Whether ZooKeeper could have a topic of this name.
fn is_topic(name: &str) -> bool {
    !name.is_empty() && !name.contains('\0') && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// A topic, as its nodes have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name; may have slashes.
    pub name: String,
    /// Who owns it.
    pub owner: Evidence<Owner>,
    /// Its ledgers; absent when no hub ever took it.
    pub ledgers: Evidence<Ledgers>,
    /// Its subscribers, in order of name.
    pub subscribers: Vec<TopicSubscriber>,
}

/// The hub that a topic's `hub` node names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// What the node says.
    pub info: HubInfo,
    /// The transaction that made the node: another one is another acquisition.
    pub acquired_zxid: i64,
    /// When it was made, milliseconds since 1970 by ZooKeeper's clock.
    pub since_ms: i64,
    /// The hub is registered, and is the one that took the topic.
    pub alive: bool,
}

/// The value of a topic's `ledgers` node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledgers {
    /// Version of the node.
    pub seen: Seen,
    /// The ranges, in order.
    pub ranges: Vec<LedgerRange>,
}

impl Ledgers {
    /// The last closed range that ends at this message or before it, with its end.
    pub fn closed_up_to(&self, bound: u64) -> Option<(&LedgerRange, &MessageId)> {
        let closed = self.ranges.iter().filter_map(|range| Some((range, range.end.as_ref()?)));
        closed.filter(|(_, end)| end.local() <= bound).last()
    }
}

/// A subscriber, as its node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSubscriber {
    /// Its id.
    pub id: String,
    /// Version of its node.
    pub seen: Seen,
    /// Where it stands and how it wants to be served.
    pub subscription: Evidence<Subscription>,
    /// Of everything in its node: the same digest is the same value, written at the same time.
    progress: String,
}

pub(super) fn ledgers(value: &[u8], stat: Stat) -> Evidence<Ledgers> {
    match znodes::ledger_ranges(value) {
        Ok(ranges) => Evidence::Present(Ledgers { seen: stat.seen(), ranges }),
        Err(e) => Evidence::Unknown(format!("its ledgers node: {e}")),
    }
}

/// `registered` is the transaction that made the node of a hub below `hosts`, if there is one.
pub(super) fn owner(info: HubInfo, stat: Stat, registered: Option<i64>) -> Owner {
    let alive = match (info.registered_zxid, registered) {
        (Some(says), Some(is)) => says == is,
        // Older releases do not say which registration they were; their node goes with their session.
        (None, Some(_)) => stat.ephemeral,
        (_, None) => false,
    };
    Owner { info, acquired_zxid: stat.created_zxid, since_ms: stat.created_ms, alive }
}

pub(super) fn subscriber(id: &str, value: &[u8], stat: Stat) -> TopicSubscriber {
    let mut hash = Sha256::new();
    hash.update(stat.created_zxid.to_be_bytes());
    hash.update(stat.version.to_be_bytes());
    hash.update(value);
    TopicSubscriber {
        id: id.to_owned(),
        seen: stat.seen(),
        subscription: match znodes::subscription(value) {
            Ok(subscription) => Evidence::Present(subscription),
            Err(e) => Evidence::Unknown(format!("its node: {e}")),
        },
        progress: hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Numbers of messages are at most [`znodes::MAX_ID`].
pub(super) fn signed(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

/// A topic's subscribers as a candidate; none when it has none.
pub(super) fn candidate(topic: &Topic, settings: &Settings) -> Option<Candidate> {
    if topic.subscribers.is_empty() {
        return None;
    }
    let range = |range: &LedgerRange| HedwigRange {
        ledger: range.ledger,
        end: range.end.as_ref().map(|end| signed(end.local())),
    };
    let (seen, ranges) = match &topic.ledgers {
        Evidence::Present(ledgers) => {
            (Evidence::Present(ledgers.seen), Evidence::Present(ledgers.ranges.iter().map(range).collect()))
        }
        Evidence::Absent => (Evidence::Absent, Evidence::Absent),
        Evidence::Unknown(why) => (Evidence::Unknown(why.clone()), Evidence::Unknown(why.clone())),
    };
    let hub = match &topic.owner {
        Evidence::Present(owner) => Evidence::Present(HedwigHub {
            address: owner.info.address.to_string(),
            alive: owner.alive,
            since_ms: owner.since_ms,
        }),
        Evidence::Absent => Evidence::Absent,
        Evidence::Unknown(why) => Evidence::Unknown(why.clone()),
    };
    let pointer = |subscriber: &TopicSubscriber| match &subscriber.subscription {
        Evidence::Present(subscription) => HedwigPointer {
            consumed: Evidence::Present(signed(subscription.pointer)),
            bound: subscription.bound.into(),
        },
        Evidence::Absent => HedwigPointer { consumed: Evidence::Absent, bound: 0 },
        Evidence::Unknown(why) => HedwigPointer { consumed: Evidence::Unknown(why.clone()), bound: 0 },
    };
    let log = Log::Hedwig(HedwigTopic {
        seen,
        ranges,
        hub,
        pointers: topic.subscribers.iter().map(pointer).collect(),
        consume_interval: settings.consume_interval,
    });
    let subscribers = topic.subscribers.iter().map(|subscriber| Subscriber {
        name: subscriber.id.clone(),
        class: match settings.is_hub_subscriber(&subscriber.id) && !settings.gone_regions.contains(&subscriber.id) {
            true => SubscriberClass::System,
            false => SubscriberClass::User,
        },
        seen: subscriber.seen,
        progress: Evidence::Present(subscriber.progress.clone()),
        stored_ms: subscriber.seen.modified_ms,
        // A release of the topic writes pointers too, so a fresh time is no sign of life; whoever took messages has another progress.
        alive_ms: 0,
        connected: Evidence::not_read(),
        history: None,
        mark: None,
        protected: None,
        stood: None,
        expiration_s: None,
    });
    Some(Candidate::Subscriber(Box::new(SubscriberCandidate {
        subject: settings.subject(&topic.name),
        log,
        subscribers: subscribers.collect(),
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let settings = Settings { region: "r".to_owned(), ..Settings::default() };
        for topic in ["t", "ns/t", "t?subscription=x", "zażółć"] {
            assert_eq!(settings.topic_of(&settings.subject(topic)), Some(topic));
        }
        for odd in [
            "hedwig://r/",
            "hedwig://r",
            "hedwig://other/t",
            "persistent://r/t/x",
            "hedwig://r/a//b",
            "hedwig://r/../x",
        ] {
            assert_eq!(settings.topic_of(odd), None, "{odd}");
        }
    }
}
