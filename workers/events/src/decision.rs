//! `decision`: what is to be done about one resource, why, and until when that holds.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{DeleteOrphan, History, Position, ScanRef, Seen};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Have the owner trim the topic.
    Trim,
    /// Have the owner expire messages by TTL, then trim.
    ExpireThenTrim,
    /// Have the owner load the topic once, which starts the retention time of its last ledger.
    StartClock,
    /// Announce that a subscriber will be acted on after its grace period.
    Mark,
    /// Attach as the subscriber and consume up to a fixed message.
    Consume,
    /// Have the owner delete the subscription.
    DeleteSubscription,
    /// Delete a ledger that nothing names.
    DeleteOrphan,
    /// Have the owner remove everything up to a fixed message, for all subscribers.
    Purge,
    /// Ledgers are past retention, but a cursor stands before them.
    Blocked,
    /// Nothing is due.
    Keep,
    /// There is nothing that could be reclaimed.
    Nothing,
    /// Not looked at further, for the reason given.
    Skip,
    /// Something a person should look at.
    Report,
}

impl Verdict {
    /// All verdicts, those that act first.
    pub const ALL: [Verdict; 13] = [
        Verdict::Trim,
        Verdict::ExpireThenTrim,
        Verdict::StartClock,
        Verdict::Mark,
        Verdict::Consume,
        Verdict::DeleteSubscription,
        Verdict::DeleteOrphan,
        Verdict::Purge,
        Verdict::Blocked,
        Verdict::Keep,
        Verdict::Nothing,
        Verdict::Skip,
        Verdict::Report,
    ];

    /// Whether an executor carries it out.
    pub fn acts(self) -> bool {
        matches!(self, Verdict::Trim | Verdict::ExpireThenTrim | Verdict::StartClock | Verdict::DeleteOrphan)
            || self.on_subscriber()
    }

    /// Whether it is carried out on a subscriber.
    pub fn on_subscriber(self) -> bool {
        matches!(self, Verdict::Mark | Verdict::Consume | Verdict::DeleteSubscription | Verdict::Purge)
    }

    /// The name used in events, subjects and tables.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Trim => "trim",
            Verdict::ExpireThenTrim => "expire-then-trim",
            Verdict::StartClock => "start-clock",
            Verdict::Mark => "mark",
            Verdict::Consume => "consume",
            Verdict::DeleteSubscription => "delete-subscription",
            Verdict::DeleteOrphan => "delete-orphan",
            Verdict::Purge => "purge",
            Verdict::Blocked => "blocked",
            Verdict::Keep => "keep",
            Verdict::Nothing => "nothing",
            Verdict::Skip => "skip",
            Verdict::Report => "report",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// One rule that spoke.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Name of the rule.
    pub rule: Cow<'static, str>,
    /// What it says of this resource, for a person.
    pub says: String,
    /// What it looked at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<Cow<'static, str>, Cow<'static, str>>,
}

/// The cursor that holds ledgers back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Its name.
    pub cursor: String,
    /// Where it stands.
    pub position: Position,
    /// Bytes of the ledgers that would go if it did not stand there.
    pub bytes: i64,
    /// When its node was last written, milliseconds since 1970.
    pub since_ms: i64,
}

/// Expiry of one subscription's messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expire {
    /// The subscription.
    pub subscription: String,
    /// Messages older than this many seconds expire.
    pub ttl_s: i64,
}

/// What is to be done about a subscriber. The position is fixed: it never means "whatever is latest by then".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Consume {
    /// The log it reads.
    pub log: String,
    /// Its name; empty where it is about the log for all of its subscribers.
    pub subscription: String,
    /// Where it stands.
    pub from: Position,
    /// Everything up to and including this is consumed, and nothing after it. For Hedwig the ledger is that of the range, and the
    /// entry the message's id. For JetStream the ledger is 0, and the entry the sequence in the stream.
    pub to: Position,
    /// Messages (for Pulsar entries) between the two: what it gives up at most, since some may be acknowledged already.
    pub messages: i64,
    /// How long it is left alone after it was announced, seconds.
    pub grace_s: i64,
    /// It, and every other subscriber of the log that is to be consumed as well and without which nothing would be freed.
    pub stale: Vec<Stale>,
}

/// A subscriber found to be stale, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stale {
    /// Its name.
    pub subscription: String,
    /// Its progress: any other is a sign of life.
    pub progress: String,
    /// Since when nothing of it has changed.
    pub history: History,
}

/// What is to be done about one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Deterministic, see [`crate::decision_id`].
    pub id: Uuid,
    /// The scan it comes from.
    pub scan: ScanRef,
    /// The configured target.
    pub target: String,
    /// The resource, canonical.
    pub subject: String,
    /// What is to be done.
    pub verdict: Verdict,
    /// The metadata it was decided on.
    pub seen: Seen,
    /// Hash of the policy it was decided by.
    pub policy: String,
    /// Ledgers that the act will free, in order: always a prefix of the topic's list.
    pub ledgers: Vec<i64>,
    /// Bytes of those ledgers, one replica.
    pub bytes: i64,
    /// Empty or lost ledgers that leave the list when the topic is loaded; they free nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_by_load: Vec<i64>,
    /// Ledgers whose BookKeeper copy a trim frees because a complete copy is in tiered storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offloaded_copies: Vec<i64>,
    /// What to expire first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expire: Vec<Expire>,
    /// What is to be done about a subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consume: Option<Consume>,
    /// What is to be done about a ledger that nothing names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan: Option<DeleteOrphan>,
    /// The cursor that holds ledgers back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// After a visit that cannot free the last ledger: when another one can, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisit_ms: Option<i64>,
    /// Every rule that spoke.
    pub reasons: Vec<Reason>,
    /// When it was decided, milliseconds since 1970.
    pub decided_ms: i64,
    /// Not to be carried out before, milliseconds since 1970.
    pub not_before_ms: i64,
    /// Not to be carried out after, milliseconds since 1970.
    pub expires_ms: i64,
}
