//! `scan.request`, `scan.shard` and `scan.report`: what starts a scan, the parts it is read in, and what came of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::SurveyReport;

/// A scan, as every event that comes of it names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScanRef {
    /// Id of the scan (version 7: sortable by time).
    pub id: Uuid,
    /// Fencing number of the lease it was led under. Events of a lower number than the highest seen are ignored.
    pub fence: u64,
}

/// What part of a target to look at. Empty fields mean "all".
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Scope {
    /// One tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// One namespace, `tenant/namespace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// One topic, `persistent://tenant/namespace/topic`. A partitioned topic's name stands for all its partitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// These topics only, each by its exact name: that of a partitioned topic does not stand for its partitions. At most
    /// [`Scope::MOST_TOPICS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// Globs over `tenant/namespace/topic`: only what one of them matches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Globs over `tenant/namespace/topic`: nothing that one of them matches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

impl Scope {
    /// How many topics one scope may name.
    pub const MOST_TOPICS: usize = 500;

    /// Whether it covers everything.
    pub fn is_all(&self) -> bool {
        *self == Scope::default()
    }

    /// Whether it takes namespaces whole or not at all.
    pub fn whole_namespaces(&self) -> bool {
        self.topic.is_none() && self.topics.is_empty() && self.include.is_empty() && self.exclude.is_empty()
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.topic, &self.namespace, &self.tenant) {
            (Some(topic), _, _) => write!(f, "topic {topic}")?,
            (_, Some(namespace), _) => write!(f, "namespace {namespace}")?,
            (_, _, Some(tenant)) => write!(f, "tenant {tenant}")?,
            _ => f.write_str("everything")?,
        }
        match self.topics.as_slice() {
            [] => {}
            [one] => write!(f, ", of it the topic {one}")?,
            [first, ..] => write!(f, ", of it {} topics, the first {first}", self.topics.len())?,
        }
        if !self.include.is_empty() {
            write!(f, ", only {}", self.include.join(", "))?;
        }
        if !self.exclude.is_empty() {
            write!(f, ", without {}", self.exclude.join(", "))?;
        }
        Ok(())
    }
}

/// Who asked for a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// The command line.
    Cli,
    /// The timer (`--every`).
    Timer,
    /// A NATS request.
    Nats,
    /// An HTTP call.
    Http,
    /// An alert that came as a webhook.
    Alert,
    /// A second visit that fell due.
    Revisit,
    /// A change in the target's metadata that was followed.
    Change,
    /// Topics that fell due by time alone.
    Due,
    /// What followed changes has missed some, or may have.
    CatchUp,
}

impl Trigger {
    /// Whether it asks for what has changed or fallen due since the last scan of everything: such scans share that one's limits.
    pub fn follows(self) -> bool {
        matches!(self, Trigger::Change | Trigger::Due)
    }
}

/// Scan this now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScanRequest {
    /// Id the scan will have.
    pub id: Uuid,
    /// The configured target.
    pub target: String,
    /// What to look at.
    #[serde(default)]
    pub scope: Scope,
    /// Who asked.
    pub trigger: Trigger,
}

/// Read this shard of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScanShard {
    /// The scan, as it is led.
    pub scan: ScanRef,
    /// The configured target.
    pub target: String,
    /// The shard: a namespace, or what the target is divided into.
    pub shard: String,
    /// Its place in the scan's list of shards. What stands there says what is read.
    pub index: u32,
}

/// How much a scan would have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proposed {
    /// Acts.
    pub acts: u64,
    /// Ledgers they would free.
    pub ledgers: u64,
    /// Bytes they would free, one replica.
    pub bytes: u64,
}

impl Proposed {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Proposed) -> Proposed {
        Proposed {
            acts: self.acts.saturating_add(other.acts),
            ledgers: self.ledgers.saturating_add(other.ledgers),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// What came of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScanReport {
    /// The scan.
    pub scan: ScanRef,
    /// The configured target.
    pub target: String,
    /// What was looked at.
    pub scope: Scope,
    /// Everything in the scope was read, apart from `unknown` topics and `failed_shards`.
    pub complete: bool,
    /// Namespaces finished.
    pub shards: u64,
    /// Namespaces that could not be read, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_shards: BTreeMap<String, String>,
    /// Topics seen.
    pub topics: u64,
    /// Bytes of all closed ledgers seen, one replica.
    pub bytes: u64,
    /// Topics about which something needed could not be learned: kept.
    pub unknown: u64,
    /// Topics by verdict.
    pub verdicts: BTreeMap<String, u64>,
    /// Subscribers that were judged, by verdict.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subscribers: BTreeMap<String, u64>,
    /// What a survey of all ledgers found, where the scan was for orphans. `verdicts` are then those of ledgers that nothing names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<SurveyReport>,
    /// What it would have executors do.
    pub proposed: Proposed,
    /// Candidates emitted.
    pub candidates: u64,
    /// Metadata operations it cost.
    pub operations: u64,
    /// When it began, milliseconds since 1970.
    pub started_ms: i64,
    /// When it ended, milliseconds since 1970.
    pub ended_ms: i64,
    /// Why executors must not act on it, if so: a limit was crossed. A person may confirm it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

impl ScanReport {
    /// The report of a scan that has seen nothing yet.
    pub fn begun(scan: ScanRef, target: &str, scope: &Scope, started_ms: i64) -> ScanReport {
        ScanReport {
            scan,
            target: target.to_owned(),
            scope: scope.clone(),
            complete: true,
            shards: 0,
            failed_shards: BTreeMap::new(),
            topics: 0,
            bytes: 0,
            unknown: 0,
            verdicts: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            survey: None,
            proposed: Proposed::default(),
            candidates: 0,
            operations: 0,
            started_ms,
            ended_ms: started_ms,
            stopped: None,
        }
    }
}
