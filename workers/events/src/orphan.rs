//! `candidate.orphan`: a ledger that nothing seems to name, and everything that decides whether it may go.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::{Evidence, Seen, TopicClass};

/// Reads a variant that holds nothing. `deny_unknown_fields` does not reach those of a tagged enum.
fn nothing_more<'de, D: Deserializer<'de>>(from: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    Nothing::deserialize(from).map(|Nothing {}| ())
}

/// What was seen of one ledger that nothing seems to name. All times are milliseconds since 1970 as the target's own clock wrote
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OrphanCandidate {
    /// `ledger/<id>`.
    pub subject: String,
    /// Ledger id. 0 is a real ledger.
    pub ledger: i64,
    /// Path of its node.
    pub path: String,
    /// Version of its node.
    pub seen: Seen,
    /// When its node was made.
    pub created_ms: i64,
    /// The value of its node, base64: what brings it back.
    pub metadata: String,
    /// What the value says. Unknown when it could not be decoded.
    pub content: Evidence<LedgerContent>,
    /// Whose it is, by its own metadata.
    pub marks: Marks,
    /// Who names it. Absent is said only when everything that could name it was read completely.
    pub references: Evidence<Vec<LedgerReference>>,
    /// The nodes that would name it if anything did, outermost first. Empty when its marks do not tell.
    pub guards: Vec<Guard>,
    /// The namespace of its owner; absent when it has no policies.
    pub namespace: Evidence<NamespaceState>,
    /// Ledgers that its topic names and BookKeeper does not have.
    pub missing: Evidence<Vec<i64>>,
    /// Ids that may be in use by somebody who has not said so yet.
    pub ceiling: Ceiling,
    /// What the target's own clock says.
    pub clock: TargetClock,
    /// What earlier scans saw of it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sightings: Vec<Sighting>,
}

impl OrphanCandidate {
    /// Whose it is, if its metadata says that it is Pulsar's.
    pub fn owner(&self) -> Option<&LedgerOwner> {
        match &self.marks {
            Marks::Pulsar(owner) => Some(owner),
            Marks::None | Marks::Other { .. } | Marks::Unknown { .. } => None,
        }
    }

    /// About how many bytes it has as JSON.
    pub fn about_bytes(&self) -> usize {
        let guards: usize = self.guards.iter().map(|guard| guard.path.len() + 200).sum();
        self.metadata.len() + self.path.len() + guards + 200 * self.sightings.len() + 1500
    }
}

/// What a ledger's metadata says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerContent {
    /// Open, in recovery or closed.
    pub state: LedgerStage,
    /// Entries in it, once it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<i64>,
    /// Bytes of the entries, one replica, once it is closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// When its creator says that it was made; absent where BookKeeper was not asked to store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_ms: Option<i64>,
}

/// How far a ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LedgerStage {
    /// Somebody may write it.
    Open,
    /// Somebody is closing it for a writer that died.
    InRecovery,
    /// Closed: nobody writes it any more.
    Closed,
}

/// Whose a ledger is, by its custom metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum Marks {
    /// It says nothing.
    #[serde(deserialize_with = "nothing_more")]
    None,
    /// Another application's.
    Other {
        /// Its name.
        application: String,
    },
    /// They could not be read, or are of a form that is not known.
    Unknown {
        /// Why.
        why: String,
    },
    /// Pulsar's.
    Pulsar(LedgerOwner),
}

/// What a ledger of Pulsar is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerOwner {
    /// What it holds.
    pub kind: OwnedKind,
    /// The topic, `persistent://tenant/namespace/topic`; of a schema without `-partition-<n>`.
    pub topic: String,
    /// Its namespace, `tenant/namespace`.
    pub namespace: String,
    /// Whose topic it is.
    pub class: TopicClass,
    /// The cursor, of what belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// What a ledger of Pulsar holds: its `component`, with cursor ledgers told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OwnedKind {
    /// Messages.
    Data,
    /// Positions of a cursor.
    Cursor,
    /// A version of a schema.
    Schema,
    /// The compacted form of a topic.
    Compacted,
    /// A bucket of delayed messages.
    DelayedBucket,
}

/// Something that names a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LedgerReference {
    /// How it names it.
    pub kind: ReferenceKind,
    /// Path of the node.
    pub by: String,
}

/// How a ledger is named. These are all that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReferenceKind {
    /// A topic lists it: users' topics, system topics, transaction logs, pending-ack.
    Topic,
    /// A topic lists it, and says that BookKeeper's copy is gone because a complete one is in tiered storage.
    Tiered,
    /// A cursor keeps its positions there.
    Cursor,
    /// A cursor's properties name it as the compacted form of the topic.
    Compacted,
    /// A cursor's properties name it as a bucket of delayed messages.
    DelayedBucket,
    /// A schema's locator has a version there.
    Schema,
    /// A segment of a DistributedLog: function packages, packages, the table service.
    DistributedLog,
    /// A range of a Hedwig topic.
    Hedwig,
}

impl ReferenceKind {
    /// All kinds.
    pub const ALL: [ReferenceKind; 8] = [
        ReferenceKind::Topic,
        ReferenceKind::Tiered,
        ReferenceKind::Cursor,
        ReferenceKind::Compacted,
        ReferenceKind::DelayedBucket,
        ReferenceKind::Schema,
        ReferenceKind::DistributedLog,
        ReferenceKind::Hedwig,
    ];

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            ReferenceKind::Topic => "topic",
            ReferenceKind::Tiered => "tiered",
            ReferenceKind::Cursor => "cursor",
            ReferenceKind::Compacted => "compacted",
            ReferenceKind::DelayedBucket => "delayed-bucket",
            ReferenceKind::Schema => "schema",
            ReferenceKind::DistributedLog => "distributed-log",
            ReferenceKind::Hedwig => "hedwig",
        }
    }
}

/// A node that would name a ledger if anything did. Deleting the ledger is conditional on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// What it is.
    pub kind: GuardKind,
    /// Its path.
    pub path: String,
    /// The version that was read. Absent when a complete listing of its parent shows that it is not there.
    pub node: Evidence<Seen>,
}

/// What a [`Guard`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GuardKind {
    /// A topic.
    Topic,
    /// A cursor.
    Cursor,
    /// A schema's locator.
    Schema,
}

/// What is known of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceState {
    /// It is being deleted.
    pub deleted: bool,
}

/// Bounds on the ids of ledgers that can be told to be in use or not. Ids only grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// The first id that had not been handed out when the scan began. Absent for ids that are handed out in another way
    /// (2147483647 and up).
    pub handed_out: Evidence<i64>,
    /// The highest id that anything names; absent when nothing names any.
    pub highest_named: Evidence<i64>,
}

/// What a target's own clock says, as far as the times in its nodes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetClock {
    /// The newest time that anything read in this scan carries; 0 when there is none. It is no later than the target's present.
    pub newest_ms: i64,
    /// The newest time of what was written by earlier transactions than the ledger was: it was not written before that, whatever
    /// its own time says.
    pub written_after_ms: i64,
}

/// What one scan saw of a ledger that nothing named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sighting {
    /// The scan.
    pub scan: Uuid,
    /// When that was by our clock, milliseconds since 1970.
    pub at_ms: i64,
    /// The version of the ledger's node then.
    pub seen: Seen,
}

/// What is to be done about a ledger that nothing names, and what only a scan of everything can tell of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteOrphan {
    /// Path of its node.
    pub path: String,
    /// Whose it was.
    pub owner: LedgerOwner,
    /// Bounds on the ids that may be in use, from before the scan's first read.
    pub ceiling: Ceiling,
    /// What the target's own clock said.
    pub clock: TargetClock,
    /// What earlier scans saw of it, oldest first.
    pub sightings: Vec<Sighting>,
    /// Bookies drop its data at their next collection after the node is gone, which comes within so many seconds, and may come at once.
    /// Until then it can be brought back; after that the data is gone.
    pub collected_within_s: i64,
}

/// The canonical name of a ledger.
pub fn ledger_subject(id: i64) -> String {
    format!("ledger/{id}")
}

/// The ledger that a canonical name is of; none when it is not one.
pub fn ledger_of_subject(subject: &str) -> Option<i64> {
    let digits = subject.strip_prefix("ledger/")?;
    // One spelling only.
    digits.parse().ok().filter(|id| *id >= 0 && ledger_subject(*id) == subject)
}
