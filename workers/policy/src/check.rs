//! The promises, stated without the rules: an independent look at a decision before it is carried out.
//!
//! Nothing here calls the rules. A decision that [`crate::decide`] made and this refuses is a bug in one of the two, and is
//! not carried out.

use trimtab_events::{Decision, Evidence, LastLedger, LedgerCandidate, Loaded, Partition, TopicClass, Verdict};

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
    reachable(topic)?;
    prefix(decision, topic)?;
    not_past_cursors(decision, topic)?;
    not_inside_retention(decision, topic, now_ms)
}

fn broken(says: String) -> Result<(), Violation> {
    Err(Violation(says))
}

/// Only a known user topic that a broker can load, of a namespace that is all there.
fn reachable(topic: &LedgerCandidate) -> Result<(), Violation> {
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
        _ => return broken("its policies are not all known".into()),
    }
    if topic.loaded == Loaded::Yes {
        return broken("a broker has it loaded".into());
    }
    Ok(())
}

/// Only a prefix of the ledgers that hold something, none of them open, and the last of a terminated topic stays.
fn prefix(decision: &Decision, topic: &LedgerCandidate) -> Result<(), Violation> {
    let Some(list) = topic.ledgers.present() else { return broken("its ledgers are not known".into()) };
    if list.windows(2).any(|pair| pair[0].id >= pair[1].id) {
        return broken("the list of ledgers is not in order".into());
    }
    let last_id = list.last().map(|info| info.id);
    let filled: Vec<i64> = list
        .iter()
        .filter(|info| {
            if Some(info.id) == last_id && info.closed_ms <= 0 {
                matches!(topic.last, LastLedger::Closed { entries, .. } if entries > 0)
                    || matches!(topic.last, LastLedger::Open | LastLedger::Unknown { .. })
            } else {
                info.entries != Some(0) && !(Some(info.id) == last_id && topic.last == LastLedger::Missing)
            }
        })
        .map(|info| info.id)
        .collect();
    if !filled.starts_with(&decision.ledgers) {
        return broken(format!("{:?} is not a prefix of its ledgers {filled:?}", decision.ledgers));
    }
    let takes_last = decision.ledgers.last().is_some_and(|id| Some(*id) == last_id);
    if takes_last && (topic.terminated || !matches!(topic.last, LastLedger::Closed { .. })) {
        return broken("its last ledger is open, unknown, or that of a terminated topic".into());
    }
    Ok(())
}

/// No ledger that a durable cursor has not passed; with expiry, none that holds a message younger than the TTL.
fn not_past_cursors(decision: &Decision, topic: &LedgerCandidate) -> Result<(), Violation> {
    let Some(highest) = decision.ledgers.last().copied() else { return Ok(()) };
    let cursors = match &topic.cursors {
        Evidence::Present(cursors) => cursors.as_slice(),
        Evidence::Absent => &[],
        Evidence::Unknown(_) => return broken("its cursors are not known".into()),
    };
    let ttl_ms = decision.expire.iter().map(|expire| expire.ttl_s.saturating_mul(1000)).max();
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
        let expired = ttl_ms.is_some_and(|ttl| {
            closed_of(topic, highest)
                .is_some_and(|closed| decision.decided_ms.saturating_sub(closed) > ttl.min(i64::MAX - 1))
        });
        // A rule's TTL of 0 asks for one second at least, see `Expire`; a ledger closed in that second is not expired.
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
    let list = topic.ledgers.present()?;
    let listed = list.iter().find(|info| info.id == id)?.closed_ms;
    match &topic.last {
        LastLedger::Closed { closed_ms, .. } if listed <= 0 && list.last().is_some_and(|l| l.id == id) => {
            Some(*closed_ms)
        }
        _ => Some(listed).filter(|closed| *closed > 0),
    }
}

fn bytes_of(topic: &LedgerCandidate, info: &trimtab_events::LedgerInfo, is_last: bool) -> i64 {
    match &topic.last {
        LastLedger::Closed { bytes, .. } if is_last && info.closed_ms <= 0 => *bytes,
        _ if is_last && info.closed_ms <= 0 => 0,
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
    let count = list.len();
    let sized: Vec<(i64, i64)> =
        list.iter().enumerate().map(|(i, info)| (info.id, bytes_of(topic, info, i + 1 == count))).collect();
    let mut rest: i64 = sized.iter().map(|(_, bytes)| bytes).sum();
    for (index, (id, bytes)) in sized.iter().enumerate() {
        if !decision.ledgers.contains(id) {
            continue;
        }
        rest -= bytes;
        let is_last = index + 1 == count;
        let closed = if is_last { None } else { Some(list[index].closed_ms).filter(|closed| *closed > 0) };
        let age_ms = closed.map(|closed| now_ms.saturating_sub(closed));
        let old = match retention.minutes {
            0 => age_ms.is_none_or(|age| age >= 0),
            minutes if minutes > 0 => age_ms.is_some_and(|age| age / 60_000 >= minutes),
            _ => false,
        };
        let over = retention.mib >= 0 && rest / (1024 * 1024) >= retention.mib;
        if !old && !over {
            return broken(format!("ledger {id} is inside retention"));
        }
    }
    let bytes: i64 = sized.iter().filter(|(id, _)| decision.ledgers.contains(id)).map(|(_, bytes)| bytes).sum();
    if bytes != decision.bytes {
        return broken(format!("it names {} bytes, its ledgers have {bytes}", decision.bytes));
    }
    Ok(())
}
