//! `candidate.ledger`: the ledgers of a topic and everything that decides what may happen to them.

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Evidence;

/// Reads a field that may be missing, but not be `null`.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Reads a tagged enum as one struct of everything that any variant holds. What serde derives for such an enum keeps all fields in
/// a list until it has seen the tag, for each of the candidates of a page; and `deny_unknown_fields` does not reach those of a
/// variant that holds nothing.
macro_rules! tagged {
    ($name:ident as $flat:ident, $of:ident { $($field:ident: $type:ty),+ }
        $($variant:ident { $($needs:ident),* } else { $($none:ident),* })+) => {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum $of { $($variant),+ }

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $flat {
            is: $of,
            $(#[serde(default, deserialize_with = "given")] $field: Option<$type>,)+
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let flat = $flat::deserialize(from)?;
                match flat.is {
                    $($of::$variant => {
                        $(if flat.$none.is_some() {
                            let (field, variant) = (stringify!($none), stringify!($variant));
                            return Err(D::Error::custom(format_args!("{variant} has no field {field:?}")));
                        })*
                        Ok($name::$variant { $($needs: flat.$needs.ok_or_else(|| D::Error::missing_field(stringify!($needs)))?),* })
                    })+
                }
            }
        }
    };
}

tagged! {
    Partition as FlatPartition, PartitionIs { index: u32, count: Evidence<u32> }
    None {} else { index, count }
    Of { index, count } else {}
}

tagged! {
    LastLedger as FlatLastLedger, LastLedgerIs { why: String, entries: i64, bytes: i64, closed_ms: i64 }
    Unknown { why } else { entries, bytes, closed_ms }
    Missing {} else { why, entries, bytes, closed_ms }
    Closed { entries, bytes, closed_ms } else { why }
    Open {} else { why, entries, bytes, closed_ms }
}

tagged! {
    Loaded as FlatLoaded, LoadedIs { why: String }
    No {} else { why }
    Yes {} else { why }
    LeftOver {} else { why }
    Unknown { why } else {}
}

/// What was seen of one topic. All times are milliseconds since 1970 as the target's own clock wrote them; 0 and negative
/// values mean what the field says, never a moment in 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerCandidate {
    /// Canonical full name, `persistent://tenant/namespace/topic`.
    pub subject: String,
    /// Whose topic it is.
    pub class: TopicClass,
    /// Version of the metadata that was read.
    pub seen: Seen,
    /// Whether it is a partition, and of what.
    pub partition: Partition,
    /// Ledgers of the topic in order of id, without the last one's missing figures filled in. Unknown when the list could
    /// not be decoded.
    pub ledgers: Evidence<Vec<LedgerInfo>>,
    /// What BookKeeper says of the last ledger.
    pub last: LastLedger,
    /// Whether a broker has the topic loaded.
    pub loaded: Loaded,
    /// Durable cursors of every kind; absent when the topic has none.
    pub cursors: Evidence<Vec<Cursor>>,
    /// The topic was terminated: its last ledger is never trimmed.
    pub terminated: bool,
    /// The topic is a shadow of another one, whose ledgers it lists.
    pub shadow: bool,
    /// Policies in force for it; absent when its namespace has none at all.
    pub policies: Evidence<Policies>,
}

impl LedgerCandidate {
    /// About how many bytes its JSON takes: a hundred a ledger, two hundred a cursor.
    pub fn about_bytes(&self) -> usize {
        let ledgers = self.ledgers.present().map_or(0, Vec::len);
        let cursors = self.cursors.present().map_or(0, Vec::len);
        1024 + ledgers * 120 + cursors * 220
    }
}

/// Version of the metadata that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Data version of the node.
    pub version: i32,
    /// Transaction that created the node: differs when a node was deleted and made again.
    pub created_zxid: i64,
    /// Transaction that last wrote it.
    pub modified_zxid: i64,
    /// When it was last written, milliseconds since 1970.
    pub modified_ms: i64,
}

/// Whose topic it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TopicClass {
    /// A user's topic.
    User,
    /// A topic the system keeps for itself.
    System,
    /// A name from before Pulsar 2.0 (`property/cluster/namespace`).
    LegacyName,
    /// A name whose form is not recognised: kept.
    UnknownName,
}

/// Whether a topic is a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum Partition {
    /// Its name does not end in `-partition-<number>`.
    None,
    /// A partition of this number.
    Of {
        /// Number of the partition, from 0.
        index: u32,
        /// How many partitions the partitioned topic has; absent when its node is gone.
        count: Evidence<u32>,
    },
}

/// One ledger of a topic's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerInfo {
    /// Ledger id. 0 is a real ledger.
    pub id: i64,
    /// Entries, when the list says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<i64>,
    /// Bytes of the entries, one replica, when the list says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// When it was closed; 0 while it is the last one.
    pub closed_ms: i64,
    /// Its copy in tiered storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
}

/// A ledger's copy in tiered storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    /// The copy is complete.
    pub complete: bool,
    /// BookKeeper's own copy is already gone.
    pub bookkeeper_deleted: bool,
    /// When it was offloaded.
    pub offloaded_ms: i64,
}

/// What BookKeeper says of the last ledger of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum LastLedger {
    /// It was not read, or could not be.
    Unknown {
        /// Why.
        why: String,
    },
    /// BookKeeper does not know it.
    Missing,
    /// Closed.
    Closed {
        /// Entries in it.
        entries: i64,
        /// Bytes of the entries, one replica.
        bytes: i64,
        /// When its node was last written: when it was closed.
        closed_ms: i64,
    },
    /// Open, or in recovery: a broker writes it, or died with it.
    Open,
}

/// Whether a broker has the topic loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum Loaded {
    /// No: the last ledger is closed, or there is none.
    No,
    /// Yes: the last ledger is open and younger than its bundle's owner.
    Yes,
    /// No, but a broker died with it: the last ledger is open and no present owner made it.
    LeftOver,
    /// It cannot be told.
    Unknown {
        /// Why.
        why: String,
    },
}

/// A durable cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// Its plain name.
    pub name: String,
    /// What it is.
    pub kind: CursorKind,
    /// Everything up to and including this is acknowledged. Unknown when its node could not be decoded.
    pub mark_delete: Evidence<Position>,
    /// The position is only a lower bound: the true one is in a cursor ledger.
    pub lower_bound: bool,
    /// When its node was last written.
    pub modified_ms: i64,
    /// The stored time of last activity, 0 when absent. Proves nothing about idleness.
    pub last_active_ms: i64,
    /// What only judging its subscriber needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<CursorDetail>,
}

/// What of a cursor's node only matters to whoever judges its subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CursorDetail {
    /// Version of its node.
    pub seen: Seen,
    /// A digest of the position and of everything acknowledged beyond it; 16 hexadecimal digits.
    pub progress: String,
    /// Its position is also kept in other clusters.
    pub replicated: bool,
    /// The stored time since when it has been idle (Pulsar 5.0.1), 0 when absent.
    pub idle_since_ms: i64,
    /// What the topic's broker says of it, where it was asked because the position is in a cursor ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Told>,
}

/// What a broker that has a topic loaded says of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Connected consumers.
    pub consumers: u32,
    /// When a consumer last asked for, was given or acknowledged anything, milliseconds since 1970; 0 when not since the load.
    pub active_ms: i64,
}

/// What a cursor is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CursorKind {
    /// A user's subscription.
    Subscription,
    /// A replicator.
    Replicator,
    /// The compaction cursor.
    Compaction,
    /// The de-duplication cursor.
    Dedup,
    /// A cursor of the transaction machinery.
    Transaction,
    /// Named in `additionalSystemCursorNames`.
    System,
}

impl CursorKind {
    /// Whether we let message expiry (TTL) move cursors of this kind: subscriptions only. The broker's own check also moves
    /// replicators; a replicator whose cluster is down would lose what it has not sent, so we never ask for that.
    pub fn expires(self) -> bool {
        self == CursorKind::Subscription
    }
}

/// A position in a managed ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Ledger id.
    pub ledger: i64,
    /// Entry id; -1 is before the first entry.
    pub entry: i64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.ledger, self.entry)
    }
}

/// Policies in force for a topic, each with the level it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policies {
    /// The namespace is being deleted.
    pub deleted: bool,
    /// Retention.
    pub retention: Setting<Retention>,
    /// Time to live of messages in seconds; 0 is none.
    pub ttl_s: Setting<i64>,
    /// How long BookKeeper's copy stays after offloading, milliseconds; negative is for ever.
    pub offload_deletion_lag_ms: i64,
    /// Minutes after which an idle subscription expires; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_expiration_minutes: Option<Setting<i64>>,
    /// Topic-level policies could not be learned; the text says why. The values above are then the namespace's only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_level_unknown: Option<String>,
}

/// Retention of acknowledged data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Minutes; -1 is for ever, 0 is none.
    pub minutes: i64,
    /// MiB; -1 is no limit, 0 is none.
    pub mib: i64,
}

/// A value and the level it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it is set.
    pub level: Level,
}

/// Where a policy is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The topic.
    Topic,
    /// The namespace.
    Namespace,
    /// The broker's configuration.
    Broker,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;

    /// What is written is read again, whatever the order of the fields.
    fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(is: &T) {
        let text = serde_json::to_string(is).expect("JSON");
        assert_eq!(serde_json::from_str::<T>(&text).expect("ours"), *is, "{text}");
        let sorted = serde_json::to_value(is).expect("JSON").to_string();
        assert_eq!(serde_json::from_str::<T>(&sorted).expect("ours"), *is, "{sorted}");
    }

    fn refused<T: DeserializeOwned>(text: &str) {
        assert!(serde_json::from_str::<T>(text).is_err(), "{text}");
    }

    #[test]
    fn tagged_values_have_the_fields_of_their_variant_and_no_others() {
        survives(&Partition::None);
        for count in [Evidence::Present(3), Evidence::Absent, Evidence::not_read()] {
            survives(&Partition::Of { index: 2, count });
        }
        let closed = LastLedger::Closed { entries: 1, bytes: -2, closed_ms: 0 };
        for last in [LastLedger::Unknown { why: "x".into() }, LastLedger::Missing, closed, LastLedger::Open] {
            survives(&last);
        }
        for loaded in [Loaded::No, Loaded::Yes, Loaded::LeftOver, Loaded::Unknown { why: String::new() }] {
            survives(&loaded);
        }
        for text in [
            r#"{}"#,
            r#"{"is":"closed"}"#,
            r#"{"is":"closed","entries":1,"bytes":2}"#,
            r#"{"is":"closed","entries":1,"bytes":2,"closed_ms":null}"#,
            r#"{"is":"closed","entries":1,"bytes":2,"closed_ms":3,"why":"x"}"#,
            r#"{"is":"closed","entries":1,"entries":1,"bytes":2,"closed_ms":3}"#,
            r#"{"is":"open","why":"x"}"#,
            r#"{"is":"open","why":null}"#,
            r#"{"is":"open","is":"open"}"#,
            r#"{"is":"missing","other":1}"#,
            r#"{"is":"unknown"}"#,
            r#"{"is":"Open"}"#,
            r#""open""#,
            "null",
        ] {
            refused::<LastLedger>(text);
        }
        refused::<Partition>(r#"{"is":"none","index":1}"#);
        refused::<Partition>(r#"{"is":"of","index":1}"#);
        refused::<Loaded>(r#"{"is":"no","why":"x"}"#);
    }
}
