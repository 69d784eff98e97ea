//! Stale subscribers: who they are, and how far each may be moved so that something is freed and nobody else is hurt.
//!
//! A log is decided as a whole, because whether moving one subscriber frees anything depends on where the others stand.

mod check;
mod filters;
mod hedwig;
mod jetstream;
mod pulsar;
mod stale;
mod ttl;

use trimtab_events::{
    Consume, Decision, Holder, Log, Reason, Seen, Stale, Subscriber, SubscriberCandidate, Verdict, decision_id,
    subscriber_subject,
};

pub use check::check_subscriber;

use crate::config::{Action, GRACE_S, Rule};
use crate::decide::{Context, Policy};
use crate::rules::exclude::{Ruled, reason};

/// Decides about every subscriber of a log, in their order, and then about the log itself where a rule says something of it. The same
/// input gives the same answer.
pub fn decide_subscribers(log: &SubscriberCandidate, policy: &Policy, context: &Context<'_>) -> Vec<Decision> {
    let judged = match &log.log {
        Log::Pulsar(topic) => pulsar::judge(log, topic, policy, context),
        Log::Hedwig(topic) => hedwig::judge(log, topic, policy, context),
        Log::JetStream(stream) => jetstream::judge(log, stream, policy, context),
    };
    let decided = |subject: String, seen: Seen, judged: Judged| {
        let Judged { verdict, reasons, consume, ledgers, bytes, holder } = judged;
        Decision {
            id: decision_id(context.target, &subject, &seen, policy.hash(), verdict),
            scan: context.scan,
            target: context.target.to_owned(),
            subject,
            verdict,
            seen,
            policy: policy.hash().to_owned(),
            ledgers,
            bytes,
            dropped_by_load: Vec::new(),
            offloaded_copies: Vec::new(),
            expire: Vec::new(),
            consume,
            orphan: None,
            holder,
            revisit_ms: None,
            reasons,
            decided_ms: context.now_ms,
            not_before_ms: context.now_ms,
            expires_ms: context.now_ms.saturating_add(policy.valid_ms()),
        }
    };
    let own = log.subscribers.iter().zip(judged).map(|(subscriber, judged)| {
        decided(subscriber_subject(&log.subject, &subscriber.name), subscriber.seen, judged)
    });
    let whole = match &log.log {
        Log::JetStream(stream) => ttl::judge(log, stream, policy, context)
            .map(|judged| decided(log.subject.clone(), ttl::seen(stream), judged)),
        Log::Pulsar(_) | Log::Hedwig(_) => None,
    };
    own.chain(whole).collect()
}

/// Whether a subscriber holds something that could be freed if it moved. Its idleness counts only while it does: who has nothing to take
/// cannot be seen taking it.
pub fn holds(log: &SubscriberCandidate, index: usize) -> bool {
    match &log.log {
        Log::Pulsar(topic) => pulsar::holds(topic, &log.subscribers[index].name),
        Log::Hedwig(topic) => hedwig::holds(topic, index),
        Log::JetStream(stream) => jetstream::holds(stream, index),
    }
}

/// Gives the subscribers of a log that was read again the histories that a decision was made on, where their progress is still the
/// same. One that has moved since has none, and so is not stale.
pub fn reinstate(log: &mut SubscriberCandidate, decision: &Decision) {
    for stale in decision.consume.iter().flat_map(|consume| &consume.stale) {
        let same = |s: &&mut Subscriber| {
            s.name == stale.subscription && s.progress.present().is_some_and(|progress| *progress == stale.progress)
        };
        if let Some(subscriber) = log.subscribers.iter_mut().find(same) {
            subscriber.history = Some(stale.history);
        }
    }
}

/// Leaves of a log that was read again what a decision about one of its subscribers needs, so that what is recorded of it stays small, and
/// binds it to the decision's position: what came later is not decided about.
pub fn narrow(log: &mut SubscriberCandidate, decision: &Decision) {
    let Some(consume) = &decision.consume else { return };
    if let Log::JetStream(stream) = &mut log.log {
        stream.until = u64::try_from(consume.to.entry).ok();
    }
    let named =
        |name: &str| name == consume.subscription || consume.stale.iter().any(|stale| stale.subscription == name);
    jetstream::fold(log, &|_, name| named(name), &|_, _| false);
}

/// Leaves of a log, after it was decided about, what deciding again about those that are acted on needs: a stream can have more consumers
/// than fit into an event.
pub fn abridge(log: &mut SubscriberCandidate, decisions: &[Decision]) {
    let acts = |index: usize| decisions.get(index).is_some_and(|decision| decision.verdict.acts());
    // Stale, and left where it is for a reason of ours that passes: in its grace period, behind others, not worth it yet.
    let waits = |index: usize| {
        decisions.get(index).is_some_and(|decision| {
            decision.verdict != Verdict::Report && decision.reasons.iter().any(|reason| reason.rule == stale::STALE)
        })
    };
    jetstream::fold(log, &|index, _| acts(index), &|index, _| waits(index));
}

/// What was found out about one subscriber.
struct Judged {
    verdict: Verdict,
    reasons: Vec<Reason>,
    consume: Option<Consume>,
    ledgers: Vec<i64>,
    bytes: i64,
    holder: Option<Holder>,
}

impl From<Ruled> for Judged {
    fn from((verdict, reason): Ruled) -> Judged {
        Judged { verdict, reasons: vec![reason], consume: None, ledgers: Vec::new(), bytes: 0, holder: None }
    }
}

/// A stale subscriber while its log is decided.
struct Candidate<'a> {
    /// Place among the log's subscribers.
    index: usize,
    rule: Option<&'a Rule>,
    consume: Consume,
    why: Reason,
}

/// What would be freed if these subscribers of the log were moved.
struct Prediction {
    ledgers: Vec<i64>,
    bytes: i64,
    /// Why nothing is, if nothing is.
    because: Option<Ruled>,
    holder: Option<Holder>,
}

/// Turns the stale subscribers of a log into verdicts. `predict` says what moving some of them frees.
fn settle<'a>(
    log: &SubscriberCandidate,
    judged: &mut [Option<Judged>],
    stale: Vec<Candidate<'a>>,
    context: &Context<'_>,
    predict: &dyn Fn(&[&Candidate<'a>]) -> Prediction,
) {
    // Those that a rule only reports are not moved, so nothing may count on them.
    let (reported, movable): (Vec<_>, Vec<_>) =
        stale.into_iter().partition(|c| c.rule.is_some_and(|rule| rule.action == Action::Report));
    for candidate in &reported {
        let alone: Vec<&Candidate<'a>> = movable.iter().chain([candidate]).collect();
        let found = predict(&alone);
        let says = format!("a rule only reports it: {} bytes in ledgers {:?} could go", found.bytes, found.ledgers);
        let mut one = Judged::from((Verdict::Report, reason("rule", says)));
        one.reasons.push(candidate.why.clone());
        judged[candidate.index] = Some(one);
    }
    let all: Vec<&Candidate<'a>> = movable.iter().collect();
    let in_all = predict(&all);
    let ready: Vec<&Candidate<'a>> = movable
        .iter()
        .filter(|c| matches!(grace(&log.subscribers[c.index], c.rule, context.now_ms), Grace::Over))
        .collect();
    let now = predict(&ready);
    let names = |of: &[&Candidate<'a>]| -> Vec<Stale> { of.iter().flat_map(|c| c.consume.stale.clone()).collect() };
    for candidate in &movable {
        let subscriber = &log.subscribers[candidate.index];
        let mut one = if let Some(ruled) = &in_all.because {
            let mut one = Judged::from(ruled.clone());
            one.holder = in_all.holder.clone();
            one
        } else if let Some(rule) = candidate.rule.filter(|rule| in_all.bytes < rule.min_reclaim_bytes) {
            let says = format!(
                "rule {}: {} bytes are less than min_reclaim, {}",
                rule.name, in_all.bytes, rule.min_reclaim_bytes
            );
            Judged::from((Verdict::Keep, reason("rule", says)))
        } else if let Some(noticed) = notice(subscriber, candidate.rule, context.now_ms, || Consume {
            stale: names(&all),
            ..candidate.consume.clone()
        }) {
            noticed
        } else if now.ledgers.is_empty() {
            let says = "others that must move as well for anything to be freed are still in their grace period";
            Judged::from((Verdict::Keep, reason("grace", says)))
        } else {
            let delete = candidate.rule.is_some_and(|rule| rule.action == Action::Delete);
            let verdict = if delete { Verdict::DeleteSubscription } else { Verdict::Consume };
            // Ledgers that go when all of them have moved are counted once, on the first.
            let first = ready.first().is_some_and(|first| first.index == candidate.index);
            let mut one = Judged::from((verdict, candidate.why.clone()));
            if first {
                (one.ledgers, one.bytes) = (now.ledgers.clone(), now.bytes);
            } else {
                let first = ready.first().map_or("", |first| log.subscribers[first.index].name.as_str());
                let says = format!("what goes when all stale subscribers have moved is counted on {first:?}");
                one.reasons.push(reason("together", says));
            }
            one.consume = Some(Consume { stale: names(&ready), ..candidate.consume.clone() });
            one
        };
        if one.reasons.iter().all(|reason| *reason != candidate.why) {
            one.reasons.push(candidate.why.clone());
        }
        judged[candidate.index] = Some(one);
    }
}

/// What becomes of a subscriber that is to be acted on while it is not announced yet, or in its grace period; none once that is over.
fn notice(
    subscriber: &Subscriber,
    rule: Option<&Rule>,
    now_ms: i64,
    consume: impl FnOnce() -> Consume,
) -> Option<Judged> {
    match grace(subscriber, rule, now_ms) {
        Grace::Unmarked(grace_s) => {
            let says = format!("it will be acted on in {grace_s} s unless it shows a sign of life");
            let mut one = Judged::from((Verdict::Mark, reason("mark", says)));
            one.consume = Some(consume());
            Some(one)
        }
        Grace::Until(at_ms) => {
            let left_s = at_ms.saturating_sub(now_ms) / 1000;
            let says = format!("marked; it may be acted on in {left_s} s unless it shows a sign of life");
            Some(Judged::from((Verdict::Keep, reason("grace", says))))
        }
        Grace::Over => None,
    }
}

/// How far the notice of a subscriber is.
enum Grace {
    /// It was not announced.
    Unmarked(i64),
    /// It was, and is left alone until then.
    Until(i64),
    /// It may be acted on.
    Over,
}

fn grace_of(rule: Option<&Rule>) -> i64 {
    rule.and_then(|rule| rule.grace_s).unwrap_or(GRACE_S)
}

fn grace(subscriber: &Subscriber, rule: Option<&Rule>, now_ms: i64) -> Grace {
    let grace_s = grace_of(rule);
    if grace_s == 0 {
        return Grace::Over;
    }
    // A mark of another progress is nobody's: the subscriber has moved since.
    let mark = subscriber.mark.as_ref().filter(|mark| subscriber.progress.present() == Some(&mark.progress));
    match mark {
        // A mark from the future was made by a clock that nobody should trust.
        Some(mark) if mark.marked_ms <= now_ms => {
            let until = mark.marked_ms.saturating_add(grace_s.saturating_mul(1000));
            if now_ms >= until { Grace::Over } else { Grace::Until(until) }
        }
        Some(mark) => Grace::Until(mark.marked_ms.saturating_add(grace_s.saturating_mul(1000))),
        None => Grace::Unmarked(grace_s),
    }
}
