//! From nodes to candidates: the one place where what was read becomes evidence, for live metadata and snapshots alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use trimtab_events::{
    CHANGE_EVENTS_OPEN, Cursor, CursorDetail, CursorKind, Evidence, LastLedger, LedgerCandidate, Loaded, NOT_READ,
    Partition, Retention,
};

use super::metadata;
use super::names::{self, TopicName};
use super::policies::{self, NamespacePolicies, TopicLevel, TopicPolicies};
use crate::bookkeeper::{LedgerState, ledger_metadata};
use crate::zk::Stat;

/// What only a broker's configuration says. The defaults are Pulsar's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `defaultRetentionTimeInMinutes` and `defaultRetentionSizeInMB`.
    pub default_retention: Retention,
    /// `ttlDurationDefaultInSeconds`.
    pub default_ttl_s: i64,
    /// `managedLedgerOffloadDeletionLagMs`.
    pub default_offload_deletion_lag_ms: i64,
    /// `subscriptionExpirationTimeMinutes`.
    pub default_subscription_expiration_minutes: i64,
    /// `replicatorPrefix`.
    pub replicator_prefix: String,
    /// `additionalSystemCursorNames`.
    pub system_cursors: Vec<String>,
    /// Root of BookKeeper's ledgers.
    pub ledgers_root: String,
    /// Policies of topics, if they are known from elsewhere (`--topic-policies`).
    pub topic_policies: Option<Arc<BTreeMap<String, TopicPolicies>>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            default_retention: Retention { minutes: 0, mib: 0 },
            default_ttl_s: 0,
            default_offload_deletion_lag_ms: 4 * 3600 * 1000,
            default_subscription_expiration_minutes: 0,
            replicator_prefix: "pulsar.repl".to_owned(),
            system_cursors: Vec::new(),
            ledgers_root: "/ledgers".to_owned(),
            topic_policies: None,
        }
    }
}

/// What is known of a namespace while its topics are read.
#[derive(Debug, Clone)]
pub(crate) struct Namespace {
    pub(crate) policies: Evidence<NamespacePolicies>,
    pub(crate) boundaries: Evidence<Vec<u32>>,
    pub(crate) topic_level: TopicLevel,
}

impl Namespace {
    /// Where nothing was read yet.
    pub(crate) fn unread() -> Namespace {
        Namespace {
            policies: Evidence::not_read(),
            boundaries: Evidence::not_read(),
            topic_level: TopicLevel::Unknown(NOT_READ.to_owned()),
        }
    }

    /// The bundle of a topic, as its node is called.
    pub(crate) fn bundle(&self, name: &TopicName) -> Result<String, String> {
        match &self.boundaries {
            Evidence::Present(bounds) => policies::bundle_of(bounds, name.bundle_hash())
                .ok_or_else(|| "its bundle is not among the namespace's".to_owned()),
            Evidence::Absent => Err("its namespace has no bundles".to_owned()),
            Evidence::Unknown(why) => Err(why.clone()),
        }
    }
}

/// Whether a namespace's `__change_events` topic holds anything, from its node and that of its last ledger.
pub(crate) fn change_events_empty(value: &[u8], last: &LastLedger) -> Result<bool, String> {
    let list = metadata::managed_ledger_info(value).map_err(|e| format!("__change_events: {e}"))?;
    let Some((last_info, before)) = list.ledgers.split_last() else { return Ok(true) };
    let listed_empty = before.iter().all(|info| info.entries == Some(0)) && last_info.entries.unwrap_or(0) == 0;
    match last {
        _ if !listed_empty => Ok(false),
        LastLedger::Closed { entries: 0, .. } | LastLedger::Missing => Ok(true),
        LastLedger::Closed { .. } => Ok(false),
        LastLedger::Open => Err(CHANGE_EVENTS_OPEN.to_owned()),
        LastLedger::Unknown { why } => Err(format!("the last ledger of __change_events is not known: {why}")),
    }
}

/// The text for a namespace whose topic policies cannot be learned from the metadata.
pub(crate) const CHANGE_EVENTS: &str =
    "they are kept in the namespace's __change_events topic; give --topic-policies FILE or --ask-brokers";

/// A topic from its own node: cursors, last ledger and number of partitions are not read yet.
pub(crate) fn topic(
    name: &TopicName,
    stat: Stat,
    value: &[u8],
    namespace: &Namespace,
    settings: &Settings,
) -> LedgerCandidate {
    let list = metadata::managed_ledger_info(value);
    let (terminated, shadow) = list.as_ref().map_or((false, false), |list| (list.terminated, list.shadow));
    let partition = match name.partition {
        Some(index) => Partition::Of { index, count: Evidence::not_read() },
        None => Partition::None,
    };
    LedgerCandidate {
        subject: name.subject(),
        class: name.class,
        seen: stat.seen(),
        partition,
        ledgers: match list {
            Ok(list) => Evidence::Present(list.ledgers),
            Err(e) => Evidence::Unknown(format!("it could not be decoded: {e}")),
        },
        last: LastLedger::Unknown { why: NOT_READ.to_owned() },
        loaded: Loaded::Unknown { why: NOT_READ.to_owned() },
        cursors: if stat.children == 0 { Evidence::Absent } else { Evidence::not_read() },
        terminated,
        shadow,
        policies: policies::effective(&namespace.policies, &namespace.topic_level, name, settings),
    }
}

/// What BookKeeper says of the last ledger, from its node.
pub(crate) fn last_ledger(value: &[u8], stat: Stat) -> LastLedger {
    match ledger_metadata(value) {
        Ok(LedgerState::Open) => LastLedger::Open,
        Ok(LedgerState::Closed { entries, bytes }) => {
            LastLedger::Closed { entries, bytes, closed_ms: stat.modified_ms }
        }
        Err(e) => LastLedger::Unknown { why: format!("its metadata could not be decoded: {e}") },
    }
}

/// Whether a broker has a topic loaded whose last ledger is open: loading always creates a ledger, so one that is older than
/// the lock of the bundle's present owner was left by a broker that died. Both numbers are positions in one log.
pub(crate) fn loaded(ledger_created_zxid: i64, lock: &Evidence<i64>) -> Loaded {
    match lock {
        Evidence::Present(lock_created_zxid) if ledger_created_zxid > *lock_created_zxid => Loaded::Yes,
        Evidence::Present(_) | Evidence::Absent => Loaded::LeftOver,
        Evidence::Unknown(why) => Loaded::Unknown { why: why.clone() },
    }
}

/// A cursor from its node.
pub(crate) fn cursor(encoded: &str, stat: Stat, value: &[u8], settings: &Settings) -> Cursor {
    let name = names::decode(encoded).unwrap_or_else(|| encoded.to_owned());
    let kind = cursor_kind(&name, settings);
    let modified_ms = stat.modified_ms;
    match metadata::cursor_info(value) {
        Ok(info) => Cursor {
            name,
            kind,
            mark_delete: Evidence::Present(info.mark_delete),
            lower_bound: info.lower_bound(),
            modified_ms,
            last_active_ms: info.last_active_ms,
            detail: Some(CursorDetail {
                seen: stat.seen(),
                progress: format!("{:x}.{}", stat.created_zxid, info.digest),
                replicated: info.replicated(),
                idle_since_ms: info.idle_since_ms,
                told: None,
            }),
        },
        Err(e) => {
            let mark_delete = Evidence::Unknown(format!("its node could not be decoded: {e}"));
            Cursor { name, kind, mark_delete, lower_bound: false, modified_ms, last_active_ms: 0, detail: None }
        }
    }
}

pub(super) fn cursor_kind(name: &str, settings: &Settings) -> CursorKind {
    match name {
        "__compaction" => CursorKind::Compaction,
        "pulsar.dedup" => CursorKind::Dedup,
        "__pending_ack_state" | "transaction.subscription" => CursorKind::Transaction,
        _ if settings.system_cursors.iter().any(|system| system == name) => CursorKind::System,
        _ if name.strip_prefix(settings.replicator_prefix.as_str()).is_some_and(|rest| rest.starts_with('.')) => {
            CursorKind::Replicator
        }
        _ => CursorKind::Subscription,
    }
}
