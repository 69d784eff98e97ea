//! `outcome`: what came of a decision, judged by reading the target again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    LastLedger, LedgerCandidate, Log, OrphanCandidate, Position, Reason, ScanRef, Seen, SubscriberCandidate, Verdict,
};

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

/// A log's ledgers, and the subscriber in question, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicState {
    /// Version of the metadata.
    pub seen: Seen,
    /// Ids in the list, in order.
    pub ledgers: Vec<i64>,
    /// Bytes of the closed ones, one replica.
    pub bytes: i64,
    /// Where the subscriber stood, when it is about one that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
}

impl TopicState {
    /// Of a topic.
    pub fn of_topic(topic: &LedgerCandidate) -> TopicState {
        let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
        let last_bytes = match topic.last {
            LastLedger::Closed { bytes, .. } if list.last().is_some_and(|last| last.closed_ms <= 0) => bytes.max(0),
            _ => 0,
        };
        TopicState {
            seen: topic.seen,
            ledgers: list.iter().map(|info| info.id).collect(),
            bytes: list.iter().fold(last_bytes, |sum, info| sum.saturating_add(info.bytes.unwrap_or(0).max(0))),
            position: None,
        }
    }

    /// Of a ledger that nothing names: the list is the ledger itself, while it exists.
    pub fn of_orphan(ledger: &OrphanCandidate) -> TopicState {
        let bytes = ledger.content.present().and_then(|content| content.bytes).unwrap_or(0).max(0);
        TopicState { seen: ledger.seen, ledgers: vec![ledger.ledger], bytes, position: None }
    }

    /// Of a ledger that is gone, whose node was last seen so.
    pub fn of_gone(seen: Seen) -> TopicState {
        TopicState { seen, ledgers: Vec::new(), bytes: 0, position: None }
    }

    /// Of a log and one of its subscribers. `none` stands for a version that there is not.
    pub fn of_subscriber(log: &SubscriberCandidate, name: &str, none: Seen) -> TopicState {
        let position = log.position(name);
        match &log.log {
            Log::Pulsar(topic) => TopicState { position, ..TopicState::of_topic(topic) },
            Log::Hedwig(topic) => TopicState {
                seen: topic.seen.present().copied().unwrap_or(none),
                ledgers: topic.ranges.present().into_iter().flatten().map(|range| range.ledger).collect(),
                bytes: 0,
                position,
            },
            Log::JetStream(stream) => TopicState {
                seen: Seen {
                    version: 0,
                    created_zxid: stream.created_ns,
                    modified_zxid: i64::try_from(stream.last).unwrap_or(i64::MAX),
                    modified_ms: stream.read_ms,
                },
                ledgers: Vec::new(),
                bytes: i64::try_from(stream.bytes).unwrap_or(i64::MAX),
                position,
            },
        }
    }
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
