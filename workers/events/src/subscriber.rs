//! `candidate.subscriber`: the subscribers of one log, of which at least one looks as if nobody came back for it.
//!
//! Stored times nominate and prove nothing: a slow online Hedwig subscriber has an old node, and Pulsar's `lastActive` restarts at each
//! load of its topic. What proves is that we saw the same position in several scans, see [`History`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Evidence, JetStreamStream, LedgerCandidate, Partition, Position, Seen};

/// The subscribers of one log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscriberCandidate {
    /// Canonical name of the log: for Pulsar a topic or one partition, for Hedwig `hedwig://region/topic`, for JetStream
    /// `jetstream://account/stream`.
    pub subject: String,
    /// What the subscribers hold.
    pub log: Log,
    /// Those whose positions are kept for them, in order of name.
    pub subscribers: Vec<Subscriber>,
}

impl SubscriberCandidate {
    /// The name of the log as a whole: a partition's is that of its topic.
    pub fn whole(&self) -> &str {
        match &self.log {
            Log::Pulsar(topic) if matches!(topic.partition, Partition::Of { .. }) => {
                self.subject.rsplit_once("-partition-").map_or(&self.subject, |(base, _)| base)
            }
            Log::Pulsar(_) | Log::Hedwig(_) | Log::JetStream(_) => &self.subject,
        }
    }

    /// Where a subscriber stands, as far as that is known. At the end of a ledger it is that ledger's. An empty name stands for the log:
    /// everything up to there is gone.
    pub fn position(&self, name: &str) -> Option<Position> {
        match &self.log {
            Log::Pulsar(topic) => {
                topic.cursors.present()?.iter().find(|cursor| cursor.name == name)?.mark_delete.present().copied()
            }
            Log::Hedwig(topic) => {
                let index = self.subscribers.iter().position(|subscriber| subscriber.name == name)?;
                let entry = *topic.pointers.get(index)?.consumed.present()?;
                let ranges = topic.ranges.present()?;
                let holds = ranges.iter().find(|range| range.end.is_none_or(|end| entry <= end)).or(ranges.last())?;
                Some(Position { ledger: holds.ledger, entry })
            }
            Log::JetStream(stream) if name.is_empty() => {
                let entry = i64::try_from(stream.first.saturating_sub(1)).ok()?;
                Some(Position { ledger: 0, entry })
            }
            Log::JetStream(stream) => {
                let index = self.subscribers.iter().position(|subscriber| subscriber.name == name)?;
                let floor = stream.consumers.get(index)?.present()?.floor;
                Some(Position { ledger: 0, entry: i64::try_from(floor).ok()? })
            }
        }
    }

    /// Bytes of a log that is no candidate of its own otherwise, as far as they are known; none for one that is.
    pub fn alone(&self) -> Option<u64> {
        match &self.log {
            Log::Pulsar(_) => None,
            Log::Hedwig(_) => Some(0),
            Log::JetStream(stream) => Some(stream.bytes),
        }
    }

    /// About how many bytes its JSON takes.
    pub fn about_bytes(&self) -> usize {
        let log = match &self.log {
            Log::Pulsar(topic) => topic.about_bytes(),
            Log::Hedwig(topic) => 512 + topic.ranges.present().map_or(0, Vec::len) * 40,
            Log::JetStream(stream) => 512 + (stream.consumers.len() + stream.rest.len()) * 300,
        };
        log + self.subscribers.len() * 600
    }
}

/// What subscribers read, by system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Log {
    /// A Pulsar topic; its cursors have the positions.
    Pulsar(Box<LedgerCandidate>),
    /// A Hedwig topic.
    Hedwig(HedwigTopic),
    /// A stream of NATS JetStream.
    JetStream(JetStreamStream),
}

/// A Hedwig topic, from its nodes in ZooKeeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HedwigTopic {
    /// Version of the node with its ranges; absent when no hub ever took the topic.
    pub seen: Evidence<Seen>,
    /// Ranges of messages, in order; absent when the topic has none.
    pub ranges: Evidence<Vec<HedwigRange>>,
    /// The hub that serves it; absent when none does.
    pub hub: Evidence<HedwigHub>,
    /// Where each subscriber stands, in the order of [`SubscriberCandidate::subscribers`].
    pub pointers: Vec<HedwigPointer>,
    /// `consume_interval` of the hubs: a CONSUME over fewer messages is not written down by them.
    pub consume_interval: u64,
}

/// Messages of a topic that are in one ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HedwigRange {
    /// The ledger.
    pub ledger: i64,
    /// Id of its last message; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<i64>,
}

/// The hub that serves a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HedwigHub {
    /// `host:port:ssl-port`, as the hub calls itself.
    pub address: String,
    /// Its own node exists and is the one that took the topic.
    pub alive: bool,
    /// When it took the topic, milliseconds since 1970 by ZooKeeper's clock.
    pub since_ms: i64,
}

/// Where a Hedwig subscriber stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HedwigPointer {
    /// Id of the last message it consumed; 0 before the first. Unknown when its node could not be decoded: a hub counts that as 0.
    pub consumed: Evidence<i64>,
    /// How many unconsumed messages the hub keeps for it at most; 0 is no such bound.
    pub bound: u64,
}

/// A subscriber, apart from where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subscriber {
    /// Its name, as the system writes it.
    pub name: String,
    /// Who it is.
    pub class: SubscriberClass,
    /// Version of its node.
    pub seen: Seen,
    /// A digest of everything that changes when it takes messages: positions, acknowledged holes, the identity of its node; over all
    /// partitions of a partitioned topic. Unknown when a part of it could not be read, or is not in the metadata.
    pub progress: Evidence<String>,
    /// The latest of the stored times that say when it was last used, milliseconds since 1970. It nominates, it proves nothing.
    pub stored_ms: i64,
    /// The latest sign of life in stored times that cannot have come from a load of the topic or from ourselves; 0 when there is none.
    pub alive_ms: i64,
    /// How many consumers are connected, where somebody could tell without changing anything.
    pub connected: Evidence<u32>,
    /// What earlier scans saw of it. Filled in from our own store; absent before the second scan, or when the store was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// It was announced that it will be acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Somebody asked to leave it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<Protection>,
    /// Where an earlier act found the owner standing with it, if that was further than the metadata says. Filled in from our own store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stood: Option<Stood>,
    /// The subscriber's expiration as its own system has it configured, seconds; 0 or less is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_s: Option<i64>,
}

/// Who a subscriber is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SubscriberClass {
    /// A user's subscription.
    User,
    /// Belongs to the system itself: a replicator, the compaction, another region's hub.
    System,
    /// A user's subscription whose position is also kept in other clusters.
    Replicated,
}

/// What our own scans saw of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Since when nothing of it has changed: the later of the first scan that saw this progress and the last sign of life.
    pub since_ms: i64,
    /// When a scan last saw it before this one.
    pub last_ms: i64,
    /// How many finished scans saw this progress.
    pub sightings: u32,
}

/// Where the owner stood with a subscriber. A hub keeps a pointer that moved by less than its `consume_interval` in memory, so this can be
/// further than the metadata says: then the subscriber took messages at a time that nobody knows, before the visit. Where the owner still
/// stands there at a later visit, it has taken none since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stood {
    /// Id of the last message that the owner knew to be consumed.
    pub at: u64,
    /// When it was first found there, milliseconds since 1970.
    pub since_ms: i64,
}

/// An announcement that a subscriber will be acted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The subscriber.
    pub subject: String,
    /// When it was announced, milliseconds since 1970.
    pub marked_ms: i64,
    /// Its progress then: any other clears the mark.
    pub progress: String,
}

/// A wish to leave something alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    /// What is protected.
    pub subject: String,
    /// Who asked.
    pub by: String,
    /// Until when, milliseconds since 1970; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

const SEPARATOR: &str = "?subscription=";

/// The canonical name of a subscriber: its log's, `?subscription=`, its own name with everything but letters, digits and `-._~`
/// percent-encoded.
pub fn subscriber_subject(log: &str, name: &str) -> String {
    let mut subject = format!("{log}{SEPARATOR}");
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => subject.push(char::from(byte)),
            _ => subject.push_str(&format!("%{byte:02X}")),
        }
    }
    subject
}

/// The log and the name of a subscriber's canonical name; none when it is something else's name.
pub fn split_subscriber(subject: &str) -> Option<(&str, String)> {
    let (log, encoded) = subject.rsplit_once(SEPARATOR)?;
    let mut name = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        name.push(u8::try_from(high * 16 + low).ok()?);
    }
    let name = String::from_utf8(name).ok()?;
    // One name, one spelling.
    (subscriber_subject(log, &name) == subject).then_some((log, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_has_one_name() {
        let log = "persistent://t/n/a?subscription=b";
        for name in ["s", "a/b", "ü#?", "100%", "x?subscription=y", ""] {
            let subject = subscriber_subject(log, name);
            assert_eq!(split_subscriber(&subject), Some((log, name.to_owned())), "{subject}");
        }
        for other in [
            "persistent://t/n/x",
            "x?subscription=%2",
            "x?subscription=%zz",
            "x?subscription=%61",
            "x?subscription=%FF",
        ] {
            assert_eq!(split_subscriber(other), None, "{other}");
        }
    }
}
