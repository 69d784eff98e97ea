//! What else must be read before a topic can be decided. Metadata operations are counted and limited, so a topic of which
//! nothing is old enough to matter costs one read.

use trimtab_events::{CursorKind, LastLedger, LedgerCandidate, LedgerInfo, NOT_READ, Partition, Policies, Retention};

use crate::decide::{Context, Policy};
use crate::rules::cursors::old_enough;
use crate::rules::exclude;
use crate::rules::retention::{self, AfterLoad};

/// What else must be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// BookKeeper's node of the last ledger.
    pub last: bool,
    /// The cursors.
    pub cursors: bool,
    /// How many partitions the partitioned topic has.
    pub partition: bool,
    /// Its subscribers are to be judged.
    pub subscribers: bool,
}

/// What of the parts marked as [`NOT_READ`](trimtab_events::NOT_READ) could change the decision. Reading the last ledger first may spare the cursors.
pub fn needs(topic: &LedgerCandidate, policy: &Policy, context: &Context<'_>) -> Needs {
    let nothing = Needs::default();
    let Ok((policies, list)) = exclude::readable(topic) else { return nothing };
    if policy.protected(context.target, topic, context.now_ms).is_some() {
        return nothing;
    }
    let last_unread = matches!(&topic.last, LastLedger::Unknown { why } if why == NOT_READ);
    let partition_unread = matches!(&topic.partition, Partition::Of { count, .. } if count.is_not_read());
    let retention = policies.retention.value;
    let copies = retention::offloaded_copies(list, policies.offload_deletion_lag_ms, &[], context.now_ms);
    let possible = if last_unread {
        !copies.is_empty() || could_be_due(topic, list, retention, context.now_ms)
    } else {
        let after = AfterLoad::of(list, &topic.last);
        let due = !retention::freed(topic, &after, retention, None, context.now_ms).is_empty();
        let clock = after.ledgers.len() == 1
            && retention.minutes >= 0
            && after.ledgers.iter().all(|only| {
                only.last && old_enough(only.really_closed_ms, retention.minutes.saturating_mul(60), context.now_ms)
            });
        due || clock || !copies.is_empty()
    };
    let subscribers = holds(list) && judged(topic, policies, policy, context);
    Needs {
        last: possible && last_unread,
        cursors: (possible || subscribers) && topic.cursors.is_not_read(),
        partition: (possible || (subscribers && anybody_behind(topic, list))) && partition_unread,
        subscribers,
    }
}

/// Whether anything says when a subscriber of the topic is stale.
fn judged(topic: &LedgerCandidate, policies: &Policies, policy: &Policy, context: &Context<'_>) -> bool {
    let own = policies.subscription_expiration_minutes.is_some_and(|setting| setting.value > 0);
    let partition = matches!(topic.partition, Partition::Of { .. });
    own || policy.judges_subscribers(context.target, &topic.subject, partition)
}

/// Whether a subscriber could hold anything: only ledgers before the last one are counted.
fn holds(list: &[LedgerInfo]) -> bool {
    list.split_last().is_some_and(|(_, before)| before.iter().any(|info| info.entries != Some(0)))
}

/// Whether a subscription stands before the last ledger.
fn anybody_behind(topic: &LedgerCandidate, list: &[LedgerInfo]) -> bool {
    let last = list.last().map_or(i64::MAX, |info| info.id);
    let cursors = topic.cursors.present().map_or(&[][..], Vec::as_slice);
    let behind = |at: &trimtab_events::Position| at.ledger < last;
    cursors
        .iter()
        .any(|cursor| cursor.kind == CursorKind::Subscription && cursor.mark_delete.present().is_none_or(behind))
}

/// Whether anything could be due whatever the last ledger turns out to be.
fn could_be_due(
    topic: &LedgerCandidate,
    list: &[trimtab_events::LedgerInfo],
    retention: Retention,
    now_ms: i64,
) -> bool {
    if retention.minutes == 0 || retention.mib == 0 {
        return true;
    }
    let Some((last, before)) = list.split_last() else { return false };
    let first = before.iter().find(|info| info.entries != Some(0));
    if first.is_some_and(|info| retention::past_time(retention, (info.closed_ms > 0).then_some(info.closed_ms), now_ms))
    {
        return true;
    }
    if retention.mib > 0 && first.is_some() {
        // The last ledger's size is not known yet, and it may be what puts the total over the limit.
        return true;
    }
    // The last ledger was closed no earlier than the list was written, unless the list itself has closed it: while the list is
    // young, so is the ledger.
    let closed_ms = if last.closed_ms > 0 { last.closed_ms } else { topic.seen.modified_ms };
    retention.minutes > 0 && now_ms.saturating_sub(closed_ms) > retention.minutes.saturating_mul(60_000)
}
