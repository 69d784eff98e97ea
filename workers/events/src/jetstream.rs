//! Streams of NATS JetStream: the part of `candidate.subscriber` that only they have.
//!
//! Sequences are those of the stream. A position in a decision is `0:<sequence>`: JetStream has no ledgers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Evidence, Position};

impl Position {
    /// Of a sequence in a stream. One beyond what a position can say, which is not decided about, becomes the largest.
    pub fn of_sequence(sequence: u64) -> Position {
        Position { ledger: 0, entry: i64::try_from(sequence).unwrap_or(i64::MAX) }
    }
}

/// A stream and its consumers, as its servers describe them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JetStreamStream {
    /// When it was made, nanoseconds since 1970: one of the same name that was made again has another.
    pub created_ns: i64,
    /// What the servers' clock said when it was read, milliseconds since 1970.
    pub read_ms: i64,
    /// What keeps a message in it.
    pub retention: StreamRetention,
    /// Whose it is.
    pub owner: StreamOwner,
    /// The value of its label `trimtab.keep`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
    /// Sequence of its first message; of an empty stream the one that the next message will have.
    pub first: u64,
    /// Sequence of its last message, whether that is still there or not.
    pub last: u64,
    /// Messages in it.
    pub messages: u64,
    /// Bytes of those messages, one replica.
    pub bytes: u64,
    /// Nothing may be removed from it by anybody.
    pub sealed: bool,
    /// Nobody may purge it.
    pub deny_purge: bool,
    /// It is a copy of another stream.
    pub mirror: bool,
    /// How many streams it gathers from.
    pub sources: u32,
    /// Its servers can move a consumer, as those of version 2.14 and later do.
    pub can_reset: bool,
    /// Its consumers, in the order of [`crate::SubscriberCandidate::subscribers`].
    pub consumers: Vec<Evidence<JetStreamConsumer>>,
    /// Consumers that are not listed, by what they read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rest: Vec<JetStreamRest>,
    /// No message of it is larger, bytes.
    pub largest: u64,
    /// What is older than a rule lets its messages grow, where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aged: Option<Aged>,
    /// Nothing beyond this sequence is decided about: the bound of a decision that is looked at again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// Where the messages of some age end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Aged {
    /// The age, seconds.
    pub age_s: i64,
    /// Sequence of the first message that is younger; if none is, the one that the next message will have.
    pub first_younger: u64,
}

/// What keeps a message in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamRetention {
    /// Only its limits.
    Limits,
    /// A consumer that has not acknowledged it.
    Interest,
    /// That nobody has acknowledged it yet.
    WorkQueue,
    /// Something that we do not know.
    Unknown,
}

/// Whose a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamOwner {
    /// A user's.
    User,
    /// The servers' or the client libraries' own: its name or one of its subjects begins with `$`, as those of buckets and of MQTT do.
    System,
    /// Ours: one of its subjects begins with `trimtab.`.
    Trimtab,
}

/// A consumer, apart from its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JetStreamConsumer {
    /// When it was made, nanoseconds since 1970.
    pub created_ns: i64,
    /// It has acknowledged everything up to here (`ack_floor.stream_seq`).
    pub floor: u64,
    /// It was sent everything up to here (`delivered.stream_seq`).
    pub delivered: u64,
    /// Messages that it was not sent yet (`num_pending`).
    pub pending: u64,
    /// Messages that it was sent and has not acknowledged (`num_ack_pending`).
    pub ack_pending: u64,
    /// Pulls that wait (`num_waiting`): somebody is there. 0 proves nothing, clients that fetch now and then leave none.
    pub waiting: u64,
    /// Somebody is subscribed to where it pushes.
    pub push_bound: bool,
    /// Until when somebody paused it, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until_ms: Option<i64>,
    /// After how long without a client the servers delete it by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive_threshold_ms: Option<i64>,
    /// Where it began, which decides whether it can be moved.
    pub deliver: DeliverPolicy,
    /// Subjects that it reads; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
    /// When it last took or acknowledged something. The servers keep this in memory only: absent is unknown, not never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_active_ms: Option<i64>,
    /// The value of its label `trimtab.keep`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<String>,
}

impl JetStreamConsumer {
    /// Whether it keeps messages from going: some that it was not sent, or has not acknowledged.
    pub fn holds(&self) -> bool {
        self.pending > 0 || self.ack_pending > 0
    }

    /// Whether removing messages behind its floor would take something from it: what it holds, and what it gave up trying to deliver
    /// (`max_deliver`), which stays for somebody to look at.
    pub fn needs(&self) -> bool {
        self.holds() || self.floor < self.delivered
    }
}

/// Where a consumer began (`deliver_policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeliverPolicy {
    /// At the beginning.
    All,
    /// At a sequence.
    ByStartSequence,
    /// At a time.
    ByStartTime,
    /// At what came next.
    New,
    /// At the last message.
    Last,
    /// At the last message of each subject.
    LastPerSubject,
    /// Something that we do not know.
    Unknown,
}

impl DeliverPolicy {
    /// Whether its servers move it: forward they do, if it began at a place that stays the same.
    pub fn movable(self) -> bool {
        matches!(self, DeliverPolicy::All | DeliverPolicy::ByStartSequence | DeliverPolicy::ByStartTime)
    }
}

/// Consumers of a stream that are not listed one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JetStreamRest {
    /// How many there are.
    pub consumers: u64,
    /// Subjects that each of them reads; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
    /// They were found to be stale too.
    pub stale: bool,
    /// Where those stand that were sent least, of those that hold anything beyond that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<u64>,
    /// Where those stand that have acknowledged least, of those that need anything beyond that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<u64>,
    /// Messages that they were sent and have not acknowledged, all together.
    pub ack_pending: u64,
    /// Of some of them nothing is known.
    pub unknown: bool,
}
