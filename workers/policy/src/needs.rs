//! What else must be read before a topic can be decided. Metadata operations are counted and limited, so a topic of which
//! nothing is old enough to matter costs one read.

use trimtab_events::{LastLedger, LedgerCandidate, NOT_READ, Partition, Retention};

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
    Needs {
        last: possible && last_unread,
        cursors: possible && topic.cursors.is_not_read(),
        partition: possible && partition_unread,
    }
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
    let Some((_, before)) = list.split_last() else { return false };
    let first = before.iter().find(|info| info.entries != Some(0));
    if first.is_some_and(|info| retention::past_time(retention, (info.closed_ms > 0).then_some(info.closed_ms), now_ms))
    {
        return true;
    }
    if retention.mib > 0 && first.is_some() {
        // The last ledger's size is not known yet, and it may be what puts the total over the limit.
        return true;
    }
    // The last ledger was closed no earlier than the list was written: while the list is young, so is the ledger.
    let limit_ms = retention.minutes.saturating_mul(60_000);
    retention.minutes > 0 && now_ms.saturating_sub(topic.seen.modified_ms) > limit_ms
}
