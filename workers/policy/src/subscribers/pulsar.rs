//! Subscriptions of a Pulsar topic. The last ledger of the list is never counted on: a load makes another one the last, so its turn
//! comes with the next scan, and what is decided does not depend on whether somebody reads or loads it meanwhile.

use trimtab_events::{
    Consume, Cursor, Evidence, Holder, LastLedger, LedgerCandidate, LedgerInfo, Policies, Position, Stale,
    SubscriberCandidate, Verdict,
};

use super::{Candidate, Judged, Prediction, grace_of, settle, stale};
use crate::config::Action;
use crate::decide::{Context, Policy};
use crate::rules::exclude::{self, Ruled, UNKNOWN, reason};
use crate::rules::retention::{self, AfterLoad};

pub(super) fn judge(
    log: &SubscriberCandidate,
    topic: &LedgerCandidate,
    policy: &Policy,
    context: &Context<'_>,
) -> Vec<Judged> {
    let all = |ruled: Ruled| log.subscribers.iter().map(|_| Judged::from(ruled.clone())).collect();
    let (policies, list) = match exclude::readable(topic) {
        Ok(found) => found,
        Err(ruled) => return all(ruled),
    };
    let cursors = match &topic.cursors {
        Evidence::Present(cursors) => cursors.as_slice(),
        Evidence::Absent => &[],
        Evidence::Unknown(why) => {
            return all((Verdict::Skip, reason(UNKNOWN, format!("its cursors are not known: {why}"))));
        }
    };
    let mut judged: Vec<Option<Judged>> = log.subscribers.iter().map(|_| None).collect();
    let mut found = Vec::new();
    for (index, subscriber) in log.subscribers.iter().enumerate() {
        let one = stale::touchable(log, subscriber, policy, context).and_then(|rule| {
            let cursor = cursors.iter().find(|cursor| cursor.name == subscriber.name);
            let position = position_of(cursor)?;
            let (to, messages) = behind(list, position)?;
            exclude::unread(&topic.partition)?;
            let level = policies.subscription_expiration_minutes.map(|setting| setting.level);
            let stale = stale::stale(subscriber, level, rule, context)?;
            let consume = Consume {
                log: log.subject.clone(),
                subscription: subscriber.name.clone(),
                from: position,
                to,
                messages,
                grace_s: grace_of(rule),
                stale: vec![Stale {
                    subscription: subscriber.name.clone(),
                    progress: stale.progress,
                    history: stale.history,
                }],
            };
            Ok(Candidate { index, rule: stale.rule, consume, why: stale.why })
        });
        match one {
            Ok(candidate) => found.push(candidate),
            Err(ruled) => judged[index] = Some(ruled.into()),
        }
    }
    let predict = |moved: &[&Candidate<'_>]| prediction(topic, list, policies, cursors, moved, context.now_ms);
    settle(log, &mut judged, found, context, &predict);
    let lost = || Judged::from((Verdict::Skip, reason(UNKNOWN, "it was not judged: kept")));
    judged.into_iter().map(|one| one.unwrap_or_else(lost)).collect()
}

pub(super) fn holds(topic: &LedgerCandidate, subscription: &str) -> bool {
    let cursors = topic.cursors.present().map_or(&[][..], Vec::as_slice);
    let cursor = cursors.iter().find(|cursor| cursor.name == subscription);
    let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    // Where it stands may not be known; then nobody can say that it holds nothing.
    position_of(cursor).is_err()
        || !matches!(position_of(cursor).and_then(|at| behind(list, at)), Err((Verdict::Nothing, _)))
}

fn position_of(cursor: Option<&Cursor>) -> Result<Position, Ruled> {
    let unknown = |why: &str| Err((Verdict::Skip, reason(UNKNOWN, format!("its position is not known: {why}"))));
    match cursor.map(|cursor| &cursor.mark_delete) {
        Some(Evidence::Present(position)) => Ok(*position),
        Some(Evidence::Unknown(why)) => unknown(why),
        Some(Evidence::Absent) | None => unknown("it has no cursor"),
    }
}

/// The last message of the last ledger but one that has any, and how many messages a subscriber at this position has up to there.
fn behind(list: &[LedgerInfo], position: Position) -> Result<(Position, i64), Ruled> {
    let closed = list.split_last().map_or(&[][..], |(_, before)| before);
    if let Some(id) = closed.iter().find(|info| info.entries.is_none_or(|entries| entries < 0)).map(|info| info.id) {
        let says = format!("the list does not say how many entries ledger {id} has");
        return Err((Verdict::Skip, reason(UNKNOWN, says)));
    }
    let filled = || closed.iter().filter_map(|info| Some((info.id, info.entries.filter(|entries| *entries > 0)?)));
    let nothing = |says: &str| Err((Verdict::Nothing, reason("caught-up", says)));
    let Some((ledger, entries)) = filled().next_back() else {
        return nothing("it holds nothing before the last ledger");
    };
    let to = Position { ledger, entry: entries - 1 };
    if position >= to {
        return nothing("it holds nothing before the last ledger");
    }
    let messages = filled().fold(0_i64, |sum, (id, entries)| match id.cmp(&position.ledger) {
        std::cmp::Ordering::Less => sum,
        std::cmp::Ordering::Equal => sum.saturating_add((entries - 1 - position.entry).max(0)),
        std::cmp::Ordering::Greater => sum.saturating_add(entries),
    });
    Ok((to, messages))
}

fn prediction(
    topic: &LedgerCandidate,
    list: &[LedgerInfo],
    policies: &Policies,
    cursors: &[Cursor],
    moved: &[&Candidate<'_>],
    now_ms: i64,
) -> Prediction {
    // Whatever the last ledger is, it stays: an open one holds everything from it on, and has no size that anything may count on.
    let after = AfterLoad::of(list, &LastLedger::Open);
    let retention = policies.retention.value;
    let mut slowest: Option<(&Cursor, i64)> = None;
    for cursor in cursors {
        let moved = moved.iter().find(|candidate| candidate.consume.subscription == cursor.name);
        let first_kept = match (moved, cursor.mark_delete.present()) {
            (Some(candidate), _) if candidate.rule.is_some_and(|rule| rule.action == Action::Delete) => i64::MAX,
            (Some(candidate), Some(position)) => {
                crate::rules::cursors::passed((*position).max(candidate.consume.to), &after)
            }
            (None, Some(position)) => crate::rules::cursors::passed(*position, &after),
            (_, None) => {
                let why = cursor.mark_delete.unknown().unwrap_or("its node has no position");
                let says = format!("the position of cursor {:?} is not known: {why}", cursor.name);
                return nothing((Verdict::Skip, reason(UNKNOWN, says)), None);
            }
        };
        if slowest.is_none_or(|(_, kept)| first_kept < kept) {
            slowest = Some((cursor, first_kept));
        }
    }
    let freed = retention::freed(topic, &after, retention, slowest.map(|(_, kept)| kept), now_ms);
    if !freed.is_empty() {
        return Prediction { bytes: after.bytes_of(&freed), ledgers: freed, because: None, holder: None };
    }
    let due = retention::freed(topic, &after, retention, None, now_ms);
    match slowest {
        Some((cursor, _)) if !due.is_empty() => {
            let position = cursor.mark_delete.present().copied().unwrap_or(Position { ledger: -1, entry: -1 });
            let says = format!(
                "pinned by another: cursor {:?} stands at {position}, so moving this one would cost it its messages and free nothing",
                cursor.name
            );
            let holder = Holder {
                cursor: cursor.name.clone(),
                position,
                bytes: after.bytes_of(&due),
                since_ms: cursor.modified_ms,
            };
            nothing((Verdict::Blocked, reason("pinned-by-other", says)), Some(holder))
        }
        _ => nothing(
            (Verdict::Keep, reason("retention", "retention keeps what it holds: moving it would free nothing")),
            None,
        ),
    }
}

fn nothing(because: Ruled, holder: Option<Holder>) -> Prediction {
    Prediction { ledgers: Vec::new(), bytes: 0, because: Some(because), holder }
}
