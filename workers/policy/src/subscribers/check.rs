//! The promises about subscribers, stated without the rules.

use trimtab_events::{
    Consume, Decision, Evidence, JetStreamConsumer, JetStreamStream, Log, Position, StreamOwner, StreamRetention,
    Subscriber, SubscriberCandidate, SubscriberClass, Verdict, subscriber_subject,
};

use crate::check::Violation;

/// Checks a decision about a subscriber against what was seen.
///
/// # Errors
/// The first promise that it would break.
pub fn check_subscriber(decision: &Decision, log: &SubscriberCandidate, now_ms: i64) -> Result<(), Violation> {
    let broken = |says: String| Err(Violation(says));
    if !decision.verdict.acts() {
        return match decision.ledgers.as_slice() {
            [] => Ok(()),
            ids => broken(format!("{} frees nothing, but names ledgers {ids:?}", decision.verdict)),
        };
    }
    let Some(consume) = decision.consume.as_ref().filter(|_| decision.verdict.on_subscriber()) else {
        return broken(format!("a {} is not an act on a subscriber", decision.verdict));
    };
    if now_ms < decision.not_before_ms || now_ms > decision.expires_ms {
        return broken("it is not valid at this moment".into());
    }
    if let (Log::JetStream(stream), true) = (&log.log, consume.subscription.is_empty()) {
        return whole_stream(decision, consume, log, stream);
    }
    let Some(index) = log.subscribers.iter().position(|subscriber| subscriber.name == consume.subscription) else {
        return broken("the subscriber does not exist".into());
    };
    let subscriber = &log.subscribers[index];
    if consume.log != log.subject || decision.subject != subscriber_subject(&log.subject, &subscriber.name) {
        return broken(format!("it is about {}, not {}", decision.subject, log.subject));
    }
    if decision.seen != subscriber.seen {
        return broken("it was made on another version of the subscriber".into());
    }
    if subscriber.class != SubscriberClass::User {
        return broken("it is not a plain subscriber of a user".into());
    }
    if subscriber.protected.as_ref().is_some_and(|wish| wish.until_ms.is_none_or(|until| now_ms < until)) {
        return broken("somebody asked to leave it alone".into());
    }
    if matches!(subscriber.connected, Evidence::Present(1..)) {
        return broken("a consumer is connected".into());
    }
    if !consume.stale.iter().any(|stale| stale.subscription == consume.subscription) {
        return broken("nothing says that it is stale".into());
    }
    for stale in &consume.stale {
        let Some(other) = log.subscribers.iter().find(|other| other.name == stale.subscription) else {
            return broken(format!("it counts on {:?}, which does not exist", stale.subscription));
        };
        if other.progress.present() != Some(&stale.progress) {
            return broken(format!("{:?} has moved", stale.subscription));
        }
        if stale.history.since_ms <= 0 || stale.history.since_ms > now_ms || other.alive_ms > stale.history.since_ms {
            return broken(format!("{:?} showed a sign of life", stale.subscription));
        }
    }
    if position_of(log, index) != Some(consume.from) {
        return broken(format!("it does not stand at {}", consume.from));
    }
    bounds(consume, log)?;
    if let Log::JetStream(stream) = &log.log {
        return on_stream(decision, consume, log, stream, index);
    }
    if decision.verdict == Verdict::Purge {
        return broken("no log but a stream can be purged".into());
    }
    not_past_others(decision, consume, log)
}

fn position_of(log: &SubscriberCandidate, index: usize) -> Option<Position> {
    match &log.log {
        Log::Pulsar(topic) => {
            let name = &log.subscribers.get(index)?.name;
            topic.cursors.present()?.iter().find(|cursor| cursor.name == *name)?.mark_delete.present().copied()
        }
        Log::Hedwig(topic) => {
            let entry = *topic.pointers.get(index)?.consumed.present()?;
            let ranges = topic.ranges.present()?;
            let holds = ranges.iter().find(|range| range.end.is_none_or(|end| entry < end));
            Some(Position { ledger: holds.or(ranges.last())?.ledger, entry })
        }
        Log::JetStream(stream) => {
            let floor = stream.consumers.get(index)?.present()?.floor;
            Some(Position { ledger: 0, entry: i64::try_from(floor).ok()? })
        }
    }
}

/// It goes forward, to the end of something closed and no further.
fn bounds(consume: &Consume, log: &SubscriberCandidate) -> Result<(), Violation> {
    let to = consume.to;
    let end = match &log.log {
        Log::Pulsar(topic) => {
            let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
            let before = list.split_last().map_or(&[][..], |(_, before)| before);
            before.iter().any(|info| info.id == to.ledger && info.entries == to.entry.checked_add(1))
        }
        Log::Hedwig(topic) => topic
            .ranges
            .present()
            .is_some_and(|ranges| ranges.iter().any(|r| r.ledger == to.ledger && r.end == Some(to.entry))),
        Log::JetStream(stream) => to.ledger == 0 && u64::try_from(to.entry).is_ok_and(|entry| entry <= stream.last),
    };
    let forward = match &log.log {
        Log::Pulsar(_) | Log::JetStream(_) => to > consume.from,
        Log::Hedwig(_) => to.entry > consume.from.entry,
    };
    match (end, forward) {
        (true, true) => Ok(()),
        (false, _) if matches!(log.log, Log::JetStream(_)) => {
            Err(Violation(format!("{to} is beyond the stream's end")))
        }
        (false, _) => Err(Violation(format!("{to} is not the end of a closed ledger"))),
        (_, false) => Err(Violation(format!("{to} is not beyond {}", consume.from))),
    }
}

/// What goes is a prefix, and nobody who is not stale as well stands before its end.
fn not_past_others(decision: &Decision, consume: &Consume, log: &SubscriberCandidate) -> Result<(), Violation> {
    let Some(highest) = decision.ledgers.last().copied() else { return Ok(()) };
    let ids: Vec<i64> = match &log.log {
        Log::Pulsar(topic) => {
            let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
            list.iter().filter(|info| info.entries != Some(0)).map(|info| info.id).collect()
        }
        Log::Hedwig(topic) => topic.ranges.present().into_iter().flatten().map(|range| range.ledger).collect(),
        Log::JetStream(_) => Vec::new(),
    };
    if !ids.starts_with(&decision.ledgers) || ids.len() == decision.ledgers.len() {
        return Err(Violation(format!(
            "{:?} is not a prefix of its ledgers {ids:?} without the last",
            decision.ledgers
        )));
    }
    let stale = |name: &str| consume.stale.iter().any(|stale| stale.subscription == name);
    let holds = |name: &str| Err(Violation(format!("{name:?} has not passed ledger {highest}")));
    match &log.log {
        Log::Pulsar(topic) => {
            let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
            let end =
                list.iter().find(|info| info.id == highest).and_then(|info| info.entries).map(|entries| entries - 1);
            for cursor in topic.cursors.present().into_iter().flatten().filter(|cursor| !stale(&cursor.name)) {
                let Some(at) = cursor.mark_delete.present() else { return holds(&cursor.name) };
                if !(at.ledger > highest || (at.ledger == highest && end.is_some_and(|end| at.entry >= end))) {
                    return holds(&cursor.name);
                }
            }
            if consume.to.ledger < highest && decision.verdict != Verdict::DeleteSubscription {
                return holds(&consume.subscription);
            }
        }
        Log::Hedwig(topic) => {
            let ranges = topic.ranges.present().map_or(&[][..], Vec::as_slice);
            let end = ranges.iter().find(|range| range.ledger == highest).and_then(|range| range.end);
            for (subscriber, pointer) in log.subscribers.iter().zip(&topic.pointers).filter(|(s, _)| !stale(&s.name)) {
                let at = pointer.consumed.present().copied().unwrap_or(0);
                if end.is_none_or(|end| at < end) {
                    return holds(&subscriber.name);
                }
            }
        }
        Log::JetStream(_) => {}
    }
    Ok(())
}

/// Nothing is done to a stream that is not a user's interest stream, nor to a consumer that somebody paused or labelled, nor to one that
/// its servers take away themselves; and a purge takes nothing from anybody who is not stale as well.
fn on_stream(
    decision: &Decision,
    consume: &Consume,
    log: &SubscriberCandidate,
    stream: &JetStreamStream,
    index: usize,
) -> Result<(), Violation> {
    let broken = |says: String| Err(Violation(says));
    if stream.owner != StreamOwner::User || stream.keep.is_some() || stream.sealed {
        return broken("the stream is not a user's, or its label or seal protects it".into());
    }
    if stream.retention != StreamRetention::Interest {
        return broken("a consumer of the stream holds nothing that moving it would free".into());
    }
    if !decision.ledgers.is_empty() {
        return broken("a stream has no ledgers".into());
    }
    let Some(consumer) = stream.consumers.get(index).and_then(Evidence::present) else {
        return broken("the consumer's state is not known".into());
    };
    let free = |consumer: &JetStreamConsumer| {
        consumer.keep.is_none() && consumer.paused_until_ms.is_none() && consumer.inactive_threshold_ms.is_none()
    };
    if !free(consumer) || consumer.waiting > 0 || consumer.push_bound || !consumer.holds() {
        return broken("the consumer is protected, paused, in use, its servers' own business, or holds nothing".into());
    }
    let movable = consumer.deliver.movable() && stream.can_reset;
    match decision.verdict {
        Verdict::Consume if !movable => return broken("its servers cannot move the consumer".into()),
        Verdict::Purge if stream.deny_purge => return broken("nobody may purge the stream".into()),
        Verdict::Purge => {}
        _ => return Ok(()),
    }
    let idle = |subscriber: &Subscriber, other: &JetStreamConsumer| {
        consume.stale.iter().any(|stale| stale.subscription == subscriber.name)
            && subscriber.class == SubscriberClass::User
            && free(other)
            && other.waiting == 0
            && !other.push_bound
    };
    passed_by_all(consume, log, stream, &idle)
}

/// A stream is purged as a whole only up to what everybody has passed, and only where nobody forbids it.
fn whole_stream(
    decision: &Decision,
    consume: &Consume,
    log: &SubscriberCandidate,
    stream: &JetStreamStream,
) -> Result<(), Violation> {
    let broken = |says: &str| Err(Violation(says.to_owned()));
    if decision.verdict != Verdict::Purge || decision.subject != log.subject || consume.log != log.subject {
        return broken("without a consumer a stream can be purged only, and only itself");
    }
    if stream.owner != StreamOwner::User || stream.keep.is_some() || stream.sealed || stream.deny_purge || stream.mirror
    {
        return broken("the stream is not a user's own, or its label, seal or configuration protects it");
    }
    if !matches!(stream.retention, StreamRetention::Interest | StreamRetention::Limits) {
        return broken("what is in a work queue waits for whoever comes");
    }
    let aged = stream.aged.is_some_and(|aged| i64::try_from(aged.first_younger).is_ok_and(|at| consume.to.entry < at));
    if !aged || log.position("") != Some(consume.from) || !consume.stale.is_empty() {
        return broken("not all of what it purges was seen to be old, or it counts on somebody");
    }
    bounds(consume, log)?;
    passed_by_all(consume, log, stream, &|_, _| false)
}

/// Nobody needs what a purge removes, but those of whom `idle` says that they let go.
fn passed_by_all(
    consume: &Consume,
    log: &SubscriberCandidate,
    stream: &JetStreamStream,
    idle: &dyn Fn(&Subscriber, &JetStreamConsumer) -> bool,
) -> Result<(), Violation> {
    let to = u64::try_from(consume.to.entry).unwrap_or(u64::MAX);
    let holds = |name: &str| Err(Violation(format!("{name:?} has not passed sequence {to}")));
    if stream.consumers.len() != log.subscribers.len() {
        return holds("one that is not known");
    }
    for (subscriber, other) in log.subscribers.iter().zip(&stream.consumers) {
        let Some(other) = other.present() else { return holds(&subscriber.name) };
        if other.needs() && other.floor < to && !idle(subscriber, other) {
            return holds(&subscriber.name);
        }
    }
    match stream.rest.iter().find(|rest| rest.unknown || rest.floor.is_some_and(|floor| floor < to)) {
        Some(_) => holds("one that is not listed"),
        None => Ok(()),
    }
}
