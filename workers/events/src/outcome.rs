//! `outcome`: what came of a decision, judged by reading the target again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Reason, ScanRef, Seen, Verdict};

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The metadata shows it.
    Done,
    /// The call was accepted; the metadata does not show it yet.
    Pending,
    /// Not carried out: it no longer holds, or a limit forbids it.
    Skipped,
    /// The call failed.
    Failed,
}

impl Status {
    /// The name used in events and subjects.
    pub fn name(self) -> &'static str {
        match self {
            Status::Done => "done",
            Status::Pending => "pending",
            Status::Skipped => "skipped",
            Status::Failed => "failed",
        }
    }
}

/// A topic's ledgers at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicState {
    /// Version of the metadata.
    pub seen: Seen,
    /// Ids in the list, in order.
    pub ledgers: Vec<i64>,
    /// Bytes of the closed ones, one replica.
    pub bytes: i64,
}

/// What came of one decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The decision's id.
    pub decision: Uuid,
    /// The scan it came from.
    pub scan: ScanRef,
    /// The configured target.
    pub target: String,
    /// The resource.
    pub subject: String,
    /// What was to be done.
    pub verdict: Verdict,
    /// How it ended.
    pub status: Status,
    /// What a person should know about it.
    pub reasons: Vec<Reason>,
    /// Before the act; absent when it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<TopicState>,
    /// After it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TopicState>,
    /// Ledgers that were to go.
    pub predicted: Vec<i64>,
    /// Ledgers that are gone from the list.
    pub freed: Vec<i64>,
    /// Bytes that were to go.
    pub predicted_bytes: i64,
    /// Bytes that are gone from the list, one replica.
    pub freed_bytes: i64,
    /// The topic was closed again after the visit.
    pub unloaded: bool,
    /// When another visit can free what this one could not, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisit_ms: Option<i64>,
    /// The executor that did it.
    pub executor: String,
    /// When the act began, milliseconds since 1970.
    pub started_ms: i64,
    /// When it was judged, milliseconds since 1970.
    pub ended_ms: i64,
    /// Trace id, 32 hexadecimal digits; empty when nothing is traced.
    pub trace_id: String,
}
