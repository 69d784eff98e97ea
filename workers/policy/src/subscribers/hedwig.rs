//! Subscribers of a Hedwig topic. Only closed ranges can be freed, and only those that every subscriber has consumed.

use trimtab_events::{
    Consume, Evidence, HedwigRange, HedwigTopic, Holder, Position, Stale, SubscriberCandidate, Verdict,
};

use super::{Candidate, Judged, Prediction, grace_of, settle, stale};
use crate::config::Action;
use crate::decide::{Context, Policy};
use crate::rules::exclude::{Ruled, UNKNOWN, reason};

/// The order of the tests is that of the spec: the first that speaks ends the matter.
pub(super) fn judge(
    log: &SubscriberCandidate,
    topic: &HedwigTopic,
    policy: &Policy,
    context: &Context<'_>,
) -> Vec<Judged> {
    let all = |ruled: Ruled| log.subscribers.iter().map(|_| Judged::from(ruled.clone())).collect();
    let ranges = match &topic.ranges {
        Evidence::Present(ranges) => ranges.as_slice(),
        Evidence::Absent => &[],
        Evidence::Unknown(why) => {
            return all((Verdict::Skip, reason(UNKNOWN, format!("unreadable: its ranges are not known: {why}"))));
        }
    };
    if let Err(says) = in_order(ranges) {
        return all((Verdict::Skip, reason(UNKNOWN, says)));
    }
    if topic.pointers.len() != log.subscribers.len() {
        return all((Verdict::Skip, reason(UNKNOWN, "not every subscriber's position was read: kept")));
    }
    let closed = ranges.iter().rev().find_map(|range| Some((range.ledger, range.end?)));
    let bounded = !topic.pointers.is_empty() && topic.pointers.iter().all(|pointer| pointer.bound > 0);
    let mut judged: Vec<Option<Judged>> = log.subscribers.iter().map(|_| None).collect();
    let mut found = Vec::new();
    for (index, (subscriber, pointer)) in log.subscribers.iter().zip(&topic.pointers).enumerate() {
        let one = (|| {
            let consumed = match &pointer.consumed {
                Evidence::Present(consumed) => *consumed,
                Evidence::Absent => return Err((Verdict::Skip, reason(UNKNOWN, "unreadable: it has no position"))),
                Evidence::Unknown(why) => {
                    return Err((
                        Verdict::Skip,
                        reason(UNKNOWN, format!("unreadable: {why}; a hub counts it as standing at 0")),
                    ));
                }
            };
            if ranges.is_empty() {
                return Err((Verdict::Nothing, reason("no-ledgers", "the topic has no ranges of messages")));
            }
            let rule = stale::touchable(log, subscriber, policy, context)?;
            let stale = stale::stale(subscriber, None, rule, context)?;
            if rule.is_some_and(|rule| rule.action == Action::Delete) {
                let says = "a hub deletes a subscriber whether it is online or not, so it is never asked to; use action = \"reclaim\"";
                return Err((Verdict::Report, reason("no-delete", says)));
            }
            if bounded {
                let says = "every subscriber of the topic has a bound: the hub lets go of older messages by itself";
                return Err((Verdict::Keep, reason("bounded", says)));
            }
            let Some((ledger, end)) = closed.filter(|(_, end)| consumed < *end) else {
                return Err((
                    Verdict::Nothing,
                    reason("caught-up", "no closed range has a message that it has not consumed"),
                ));
            };
            let gap = end - consumed;
            if u64::try_from(gap).is_ok_and(|gap| gap < topic.consume_interval) {
                let says = format!(
                    "gap-below-interval: {gap} messages are fewer than the hubs' consume_interval, {}: a hub would note the move in \
                     memory only",
                    topic.consume_interval
                );
                return Err((Verdict::Nothing, reason("gap-below-interval", says)));
            }
            let from = Position { ledger: ledger_of(ranges, consumed), entry: consumed };
            let consume = Consume {
                log: log.subject.clone(),
                subscription: subscriber.name.clone(),
                from,
                to: Position { ledger, entry: end },
                messages: gap,
                grace_s: grace_of(rule),
                stale: vec![Stale {
                    subscription: subscriber.name.clone(),
                    progress: stale.progress,
                    history: stale.history,
                }],
            };
            Ok(Candidate { index, rule: stale.rule, consume, why: stale.why })
        })();
        match one {
            Ok(candidate) => found.push(candidate),
            Err(ruled) => judged[index] = Some(ruled.into()),
        }
    }
    let predict = |moved: &[&Candidate<'_>]| prediction(log, topic, ranges, moved);
    settle(log, &mut judged, found, context, &predict);
    let lost = || Judged::from((Verdict::Skip, reason(UNKNOWN, "it was not judged: kept")));
    judged.into_iter().map(|one| one.unwrap_or_else(lost)).collect()
}

pub(super) fn holds(topic: &HedwigTopic, index: usize) -> bool {
    let ranges = topic.ranges.present().map_or(&[][..], Vec::as_slice);
    let end = ranges.iter().rev().find_map(|range| range.end);
    let consumed = topic.pointers.get(index).and_then(|pointer| pointer.consumed.present());
    end.is_some_and(|end| consumed.is_none_or(|consumed| *consumed < end))
}

/// Ends grow, and only the last range may be open: anything else is an error for a hub too.
fn in_order(ranges: &[HedwigRange]) -> Result<(), String> {
    let mut before = 0;
    for (index, range) in ranges.iter().enumerate() {
        match range.end {
            Some(end) if end >= before => before = end,
            Some(end) => return Err(format!("unreadable: range {index} ends at {end}, before the one before it")),
            None if index + 1 == ranges.len() => {}
            None => return Err(format!("unreadable: range {index} is open and not the last")),
        }
    }
    Ok(())
}

/// The ledger that the message after this one is in, or the last one.
fn ledger_of(ranges: &[HedwigRange], consumed: i64) -> i64 {
    let holds = |range: &&HedwigRange| range.end.is_none_or(|end| consumed < end);
    ranges.iter().find(holds).or(ranges.last()).map_or(-1, |range| range.ledger)
}

fn prediction(
    log: &SubscriberCandidate,
    topic: &HedwigTopic,
    ranges: &[HedwigRange],
    moved: &[&Candidate<'_>],
) -> Prediction {
    let stands = log.subscribers.iter().zip(&topic.pointers).map(|(subscriber, pointer)| {
        let moved = moved.iter().find(|candidate| candidate.consume.subscription == subscriber.name);
        // A hub takes a position that it cannot read for 0, and so do we.
        let now = pointer.consumed.present().copied().unwrap_or(0);
        (subscriber, moved.map_or(now, |candidate| now.max(candidate.consume.to.entry)))
    });
    let slowest = stands.min_by_key(|(_, at)| *at);
    let kept = slowest.map_or(i64::MAX, |(_, at)| at);
    let ledgers: Vec<i64> =
        ranges.iter().take_while(|range| range.end.is_some_and(|end| end <= kept)).map(|range| range.ledger).collect();
    if !ledgers.is_empty() {
        // How large a range is only BookKeeper knows.
        return Prediction { ledgers, bytes: 0, because: None, holder: None };
    }
    let holder = slowest.map(|(subscriber, at)| Holder {
        cursor: subscriber.name.clone(),
        position: Position { ledger: ledger_of(ranges, at), entry: at },
        bytes: 0,
        since_ms: subscriber.seen.modified_ms,
    });
    let says = match &holder {
        Some(holder) => format!(
            "pinned-by-other: subscriber {:?} stands at {}, so moving this one would cost it its messages and free nothing",
            holder.cursor, holder.position.entry
        ),
        None => "nothing would be freed".to_owned(),
    };
    Prediction { ledgers, bytes: 0, because: Some((Verdict::Blocked, reason("pinned-by-other", says))), holder }
}
