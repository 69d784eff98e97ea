//! Candidates of every kind, and the pages they travel in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LedgerCandidate, Log, OrphanCandidate, ScanRef, SubscriberCandidate};

/// The most candidates one page holds.
pub const MAX_PAGE: usize = 64;

/// Something that may be reclaimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Candidate {
    /// Ledgers of a topic.
    Ledger(Box<LedgerCandidate>),
    /// Subscribers of a log.
    Subscriber(Box<SubscriberCandidate>),
    /// A ledger that nothing seems to name.
    Orphan(Box<OrphanCandidate>),
}

impl Candidate {
    /// Its canonical name.
    pub fn subject(&self) -> &str {
        match self {
            Candidate::Ledger(topic) => &topic.subject,
            Candidate::Subscriber(log) => &log.subject,
            Candidate::Orphan(ledger) => &ledger.subject,
        }
    }

    /// The Pulsar topic that it is about, if it is about one.
    pub fn topic(&self) -> Option<&LedgerCandidate> {
        match self {
            Candidate::Ledger(topic) => Some(topic),
            Candidate::Subscriber(log) => match &log.log {
                Log::Pulsar(topic) => Some(topic),
                Log::Hedwig(_) | Log::JetStream(_) => None,
            },
            Candidate::Orphan(_) => None,
        }
    }

    /// What kind it is, as in the type of its event.
    pub fn kind(&self) -> &'static str {
        match self {
            Candidate::Ledger(_) => "ledger",
            Candidate::Subscriber(_) => "subscriber",
            Candidate::Orphan(_) => "orphan",
        }
    }
}

/// Up to [`MAX_PAGE`] candidates of one kind and shard, in one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PageOf{C}")]
pub struct Page<C> {
    /// The scan that saw them.
    pub scan: ScanRef,
    /// The shard of the scan (for Pulsar a namespace, `tenant/namespace`).
    pub shard: String,
    /// Number of the page within the shard, from 0.
    pub page: u32,
    /// The candidates.
    #[schemars(length(max = 64))]
    pub candidates: Vec<C>,
    /// W3C `traceparent` of each candidate, in the same order; empty when nothing is traced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traces: Vec<String>,
}

/// Topics whose ledgers may be reclaimed.
pub type LedgerPage = Page<LedgerCandidate>;
/// Logs with subscribers that look abandoned.
pub type SubscriberPage = Page<SubscriberCandidate>;
/// Ledgers that nothing seems to name.
pub type OrphanPage = Page<OrphanCandidate>;
