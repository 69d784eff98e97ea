//! Messages of a stream that are older than a rule lets them grow. The servers do that themselves for whoever sets `max_age`; this is for
//! streams whose owners did not, and stays below everybody who has not taken them.

use trimtab_events::{
    Consume, Evidence, JetStreamStream, Position, Seen, StreamOwner, StreamRetention, SubscriberCandidate, Verdict,
};

use super::Judged;
use crate::config::{Action, Rule};
use crate::decide::{Context, Policy};
use crate::rules::exclude::{Ruled, UNKNOWN, reason};

/// Version of a stream: it changes with its beginning.
pub(super) fn seen(stream: &JetStreamStream) -> Seen {
    Seen {
        version: 0,
        created_zxid: stream.created_ns,
        modified_zxid: i64::try_from(stream.first).unwrap_or(i64::MAX),
        modified_ms: stream.read_ms,
    }
}

/// What is to be done about a stream by the age of its messages; none where no rule says anything of it.
pub(super) fn judge(
    log: &SubscriberCandidate,
    stream: &JetStreamStream,
    policy: &Policy,
    context: &Context<'_>,
) -> Option<Judged> {
    let rule = policy.rule_for(context.target, &log.subject, false)?;
    let ttl_s = policy.ages_out(context.target, &log.subject)?;
    Some(purge(log, stream, policy, rule, ttl_s, context).unwrap_or_else(Judged::from))
}

fn purge(
    log: &SubscriberCandidate,
    stream: &JetStreamStream,
    policy: &Policy,
    rule: &Rule,
    ttl_s: i64,
    context: &Context<'_>,
) -> Result<Judged, Ruled> {
    let skip = |rule: &'static str, says: &str| Err((Verdict::Skip, reason(rule, says)));
    let keep = |rule: &'static str, says: String| Err((Verdict::Keep, reason(rule, says)));
    if stream.owner != StreamOwner::User {
        return skip("protected", "a stream of the servers', the client libraries' or trimtab's own");
    }
    if let Some(label) = &stream.keep {
        return keep("protected", format!("the stream's label says trimtab.keep = {label:?}"));
    }
    if let Some(reason) = policy.keeps(context.target, &log.subject, context.now_ms) {
        return Err((Verdict::Keep, reason));
    }
    match stream.retention {
        StreamRetention::Interest | StreamRetention::Limits => {}
        StreamRetention::WorkQueue => {
            return skip("work-queue", "a work queue: what nobody takes waits for whoever comes");
        }
        StreamRetention::Unknown => {
            return skip(UNKNOWN, "what keeps its messages is of a kind that is not known: kept");
        }
    }
    if stream.mirror || stream.sealed || stream.deny_purge {
        return skip("not-purged", "a copy of another stream, or nobody may purge it");
    }
    if stream.messages == 0 {
        return Err((Verdict::Nothing, reason("ttl", "it is empty")));
    }
    let Some(aged) = stream.aged else { return skip(UNKNOWN, "where its old messages end was not read") };
    if aged.age_s < ttl_s {
        return skip(UNKNOWN, "where its old messages end was read for a shorter time");
    }
    let begin = stream.first.saturating_sub(1);
    let mut to = aged.first_younger.saturating_sub(1).min(stream.last).min(stream.until.unwrap_or(u64::MAX));
    let old = to;
    for (subscriber, state) in log.subscribers.iter().zip(&stream.consumers) {
        match state {
            Evidence::Present(state) if !state.needs() => {}
            Evidence::Present(state) => to = to.min(state.floor),
            Evidence::Absent | Evidence::Unknown(_) => {
                let says = format!("where consumer {:?} stands is not known: kept", subscriber.name);
                return Err((Verdict::Skip, reason(UNKNOWN, says)));
            }
        }
    }
    if stream.rest.iter().any(|rest| rest.unknown) || stream.consumers.len() != log.subscribers.len() {
        return skip(UNKNOWN, "not every consumer is known: kept");
    }
    to = stream.rest.iter().filter_map(|rest| rest.floor).fold(to, u64::min);
    if let Some(size) = rule.retention_bytes {
        // How large the rest is nobody says, only that no message is larger than so much.
        let may_go = stream.bytes.saturating_sub(size.unsigned_abs()) / stream.largest.max(1);
        to = to.min(begin.saturating_add(may_go));
    }
    if old <= begin {
        return Err((Verdict::Nothing, reason("ttl", format!("nothing in it is older than {} s", aged.age_s))));
    }
    if to <= begin {
        return keep(
            "ttl",
            format!(
                "older than {} s up to sequence {old}, but somebody has not taken it, or a rule keeps it",
                aged.age_s
            ),
        );
    }
    let messages = (to - begin).min(stream.messages);
    let bytes = u128::from(messages) * u128::from(stream.bytes) / u128::from(stream.messages.max(1));
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let says = format!("older than {} s, and taken by everybody: up to sequence {to}, about {bytes} bytes", aged.age_s);
    if rule.action == Action::Report {
        return Err((Verdict::Report, reason("ttl", says)));
    }
    if bytes < rule.min_reclaim_bytes {
        let least = rule.min_reclaim_bytes;
        return keep("rule", format!("rule {}: about {bytes} bytes are less than min_reclaim, {least}", rule.name));
    }
    let mut one = Judged::from((Verdict::Purge, reason("ttl", says)));
    one.bytes = bytes;
    one.consume = Some(Consume {
        log: log.subject.clone(),
        subscription: String::new(),
        from: Position::of_sequence(begin),
        to: Position::of_sequence(to),
        messages: i64::try_from(messages).unwrap_or(i64::MAX),
        grace_s: 0,
        stale: Vec::new(),
    });
    Ok(one)
}
