//! The promises, stated without the rules: an independent look at a decision before it is carried out.
//!
//! Nothing here calls the rules. A decision that [`crate::decide`] made and this refuses is a bug in one of the two, and is
//! not carried out.

use trimtab_events::{
    CHANGE_EVENTS_OPEN, Decision, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Loaded, Partition, TopicClass,
    Verdict,
};

/// A promise that a decision would break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// Checks a decision against what was seen.
///
/// # Errors
/// The first promise that it would break.
pub fn check(decision: &Decision, topic: &LedgerCandidate, now_ms: i64) -> Result<(), Violation> {
    if !decision.verdict.acts() {
        return match decision.ledgers.as_slice() {
            [] => Ok(()),
            ids => broken(format!("{} frees nothing, but names ledgers {ids:?}", decision.verdict)),
        };
    }
    if decision.subject != topic.subject {
        return broken(format!("it is about {}, not {}", decision.subject, topic.subject));
    }
    if decision.seen != topic.seen {
        return broken("it was made on another version of the metadata".into());
    }
    if now_ms < decision.not_before_ms || now_ms > decision.expires_ms {
        return broken("it is not valid at this moment".into());
    }
    reachable(decision, topic)?;
    prefix(decision, topic)?;
    not_past_cursors(decision, topic, now_ms)?;
    only_subscriptions_expire(decision, topic)?;
    only_tiered_copies(decision, topic, now_ms)?;
    not_inside_retention(decision, topic, now_ms)
}

fn broken(says: String) -> Result<(), Violation> {
    Err(Violation(says))
}

/// Only a known user topic that a broker can load, of a namespace that is all there.
fn reachable(decision: &Decision, topic: &LedgerCandidate) -> Result<(), Violation> {
    if topic.class != TopicClass::User || topic.shadow {
        return broken("it is not a plain topic of a user".into());
    }
    match &topic.partition {
        Partition::None => {}
        Partition::Of { index, count: Evidence::Present(count) } if index < count => {}
        Partition::Of { .. } => return broken("its partitioned topic is not known to have it".into()),
    }
    match topic.policies.present() {
        Some(policies) if !policies.deleted && policies.topic_level_unknown.is_none() => {}
        // The owner heeds what it alone has seen when it trims, and not when it is asked to expire.
        Some(policies)
            if !policies.deleted
                && policies.topic_level_unknown.as_deref() == Some(CHANGE_EVENTS_OPEN)
                && decision.expire.is_empty()
                && decision.verdict != Verdict::ExpireThenTrim => {}
        _ => return broken("its policies are not all known".into()),
    }
    match &topic.loaded {
        Loaded::No | Loaded::LeftOver => Ok(()),
        Loaded::Yes => broken("a broker has it loaded".into()),
        Loaded::Unknown { why } => broken(format!("whether a broker has it loaded is not known: {why}")),
    }
}

/// Only a prefix of the ledgers that hold something, none of them open, and the last of a terminated topic stays.
fn prefix(decision: &Decision, topic: &LedgerCandidate) -> Result<(), Violation> {
    let Some(list) = topic.ledgers.present() else { return broken("its ledgers are not known".into()) };
    if list.windows(2).any(|pair| pair[0].id >= pair[1].id) {
        return broken("the list of ledgers is not in order".into());
    }
    let last_id = list.last().map(|info| info.id);
    let filled: Vec<i64> = list.iter().filter(|info| holds_something(topic, info)).map(|info| info.id).collect();
    if !filled.starts_with(&decision.ledgers) {
        return broken(format!("{:?} is not a prefix of its ledgers {filled:?}", decision.ledgers));
    }
    let takes_last = decision.ledgers.last().is_some_and(|id| Some(*id) == last_id);
    if takes_last && !matches!(topic.last, LastLedger::Closed { .. }) {
        return broken("its last ledger is open or unknown".into());
    }
    if topic.terminated && !filled.is_empty() && filled == decision.ledgers {
        return broken("the last ledger of a terminated topic stays".into());
    }
    Ok(())
}

fn is_last(topic: &LedgerCandidate, info: &LedgerInfo) -> bool {
    topic.ledgers.present().and_then(|list| list.last()).is_some_and(|last| last.id == info.id)
}

/// Whether a ledger is still in the list after loading. What is open or not known counts as full.
fn holds_something(topic: &LedgerCandidate, info: &LedgerInfo) -> bool {
    match &topic.last {
        LastLedger::Missing if is_last(topic, info) => false,
        LastLedger::Open if is_last(topic, info) => true,
        LastLedger::Unknown { .. } if is_last(topic, info) && info.closed_ms <= 0 => true,
        LastLedger::Closed { entries, .. } if is_last(topic, info) && info.closed_ms <= 0 => *entries > 0,
        _ => info.entries.is_none_or(|entries| entries > 0),
    }
}

/// Expiry moves subscriptions that are there and nothing else, and only where it is what the decision is about.
fn only_subscriptions_expire(decision: &Decision, topic: &LedgerCandidate) -> Result<(), Violation> {
    if decision.verdict != Verdict::ExpireThenTrim && !decision.expire.is_empty() {
        return broken(format!("a {} expires nothing", decision.verdict));
    }
    let cursors = topic.cursors.present().map_or(&[][..], Vec::as_slice);
    let may = |name: &str| {
        cursors.iter().any(|c| c.name == name) && cursors.iter().all(|c| c.name != name || c.kind.expires())
    };
    match decision.expire.iter().find(|expire| expire.ttl_s < 1 || !may(&expire.subscription)) {
        Some(expire) => broken(format!("messages of {:?} are not to be expired", expire.subscription)),
        None => Ok(()),
    }
}

/// BookKeeper's copy goes only where a complete one has been in tiered storage for longer than the lag.
fn only_tiered_copies(decision: &Decision, topic: &LedgerCandidate, now_ms: i64) -> Result<(), Violation> {
    let (list, lag_ms) = match (topic.ledgers.present(), topic.policies.present()) {
        (Some(list), Some(policies)) => (list.as_slice(), policies.offload_deletion_lag_ms),
        _ => (&[][..], -1),
    };
    let safe = |info: &LedgerInfo| {
        info.offload.is_some_and(|copy| {
            let age_ms = if copy.offloaded_ms > 0 { now_ms.saturating_sub(copy.offloaded_ms) } else { 0 };
            copy.complete && !copy.bookkeeper_deleted && lag_ms >= 0 && age_ms > lag_ms
        })
    };
    match decision.offloaded_copies.iter().find(|id| !list.iter().any(|info| info.id == **id && safe(info))) {
        Some(id) => broken(format!("the copy of ledger {id} in BookKeeper may be the only one")),
        None => Ok(()),
    }
}

/// No ledger that a durable cursor has not passed; with expiry, none that holds a message younger than the TTL.
fn not_past_cursors(decision: &Decision, topic: &LedgerCandidate, now_ms: i64) -> Result<(), Violation> {
    let Some(highest) = decision.ledgers.last().copied() else { return Ok(()) };
    let cursors = match &topic.cursors {
        Evidence::Present(cursors) => cursors.as_slice(),
        Evidence::Absent => &[],
        Evidence::Unknown(_) => return broken("its cursors are not known".into()),
    };
    for cursor in cursors {
        let Some(position) = cursor.mark_delete.present() else {
            return broken(format!("the position of cursor {:?} is not known", cursor.name));
        };
        let passed = position.ledger > highest
            || (position.ledger == highest && Some(position.entry.saturating_add(1)) == entries_of(topic, highest));
        if passed {
            continue;
        }
        let may_expire = decision.verdict == Verdict::ExpireThenTrim && cursor.kind.expires();
        let asked = decision.expire.iter().filter(|expire| expire.subscription == cursor.name);
        let ttl_ms = asked.map(|expire| expire.ttl_s.saturating_mul(1000)).max();
        let age_ms = closed_of(topic, highest).map(|closed| now_ms.saturating_sub(closed));
        let expired = ttl_ms.is_some_and(|ttl| age_ms.is_some_and(|age| age > ttl));
        if !(may_expire && expired) {
            return broken(format!(
                "cursor {:?} stands at {position}, before the end of ledger {highest}",
                cursor.name
            ));
        }
    }
    Ok(())
}

fn entries_of(topic: &LedgerCandidate, id: i64) -> Option<i64> {
    let list = topic.ledgers.present()?;
    match &topic.last {
        LastLedger::Closed { entries, .. } if list.last().is_some_and(|l| l.id == id && l.closed_ms <= 0) => {
            Some(*entries)
        }
        _ => list.iter().find(|info| info.id == id)?.entries,
    }
}

fn closed_of(topic: &LedgerCandidate, id: i64) -> Option<i64> {
    let info = topic.ledgers.present()?.iter().find(|info| info.id == id)?;
    let closed_ms = match &topic.last {
        LastLedger::Closed { closed_ms, .. } if is_last(topic, info) && info.closed_ms <= 0 => *closed_ms,
        _ => info.closed_ms,
    };
    // No moment, whoever says it.
    Some(closed_ms).filter(|closed| *closed > 0)
}

/// Bytes that are known to be in a ledger after loading.
fn bytes_of(topic: &LedgerCandidate, info: &LedgerInfo) -> i64 {
    match &topic.last {
        _ if !holds_something(topic, info) => 0,
        LastLedger::Open if is_last(topic, info) => 0,
        LastLedger::Closed { bytes, .. } if is_last(topic, info) && info.closed_ms <= 0 => *bytes,
        _ => info.bytes.unwrap_or(0),
    }
    .max(0)
}

/// Each ledger that goes is past the time limit, or what stays after it is still as large as the size limit.
fn not_inside_retention(decision: &Decision, topic: &LedgerCandidate, now_ms: i64) -> Result<(), Violation> {
    let (Some(list), Some(policies)) = (topic.ledgers.present(), topic.policies.present()) else {
        return broken("its ledgers or policies are not known".into());
    };
    let retention = policies.retention.value;
    let (mut rest, mut bytes) = (0_i64, 0_i64);
    for info in list.iter().rev() {
        let (id, own) = (info.id, bytes_of(topic, info));
        let behind = rest;
        rest = rest.saturating_add(own);
        if decision.ledgers.binary_search(&id).is_err() {
            continue;
        }
        bytes = bytes.saturating_add(own);
        let closed = if is_last(topic, info) { None } else { Some(info.closed_ms).filter(|closed| *closed > 0) };
        let age_ms = closed.map(|closed| now_ms.saturating_sub(closed));
        let old = match retention.minutes {
            0 => age_ms.is_none_or(|age| age >= 0),
            minutes if minutes > 0 => age_ms.is_some_and(|age| age > minutes.saturating_mul(60_000)),
            _ => false,
        };
        let over = retention.mib >= 0 && behind / (1024 * 1024) >= retention.mib;
        if !old && !over {
            return broken(format!("ledger {id} is inside retention"));
        }
    }
    if bytes != decision.bytes {
        return broken(format!("it names {} bytes, its ledgers have {bytes}", decision.bytes));
    }
    Ok(())
}
