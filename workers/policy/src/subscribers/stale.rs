//! Whether one subscriber is stale: nothing of it has changed for longer than the limit, as far as we saw ourselves.

use trimtab_events::{
    Evidence, History, Level, Log, Partition, Reason, Subscriber, SubscriberCandidate, SubscriberClass, Verdict,
};

use crate::config::{Action, Rule, SIGHTINGS, Trust, names_of};
use crate::decide::{Context, Policy};
use crate::rules::exclude::{Ruled, UNKNOWN, reason};

/// The name of the rule that finds a subscriber stale.
pub(super) const STALE: &str = "stale";

/// A subscriber found to be stale.
pub(super) struct Found<'a> {
    pub(super) rule: Option<&'a Rule>,
    pub(super) progress: String,
    pub(super) history: History,
    pub(super) why: Reason,
}

/// Why a subscriber is not to be touched, whatever it holds: it is somebody else's, protected, or it cannot be seen.
///
/// # Errors
/// The verdict that ends the matter.
pub(super) fn touchable<'a>(
    log: &SubscriberCandidate,
    subscriber: &Subscriber,
    policy: &'a Policy,
    context: &Context<'_>,
) -> Result<Option<&'a Rule>, Ruled> {
    match subscriber.class {
        SubscriberClass::User => {}
        SubscriberClass::System => {
            return Err((Verdict::Skip, reason("protected", "it belongs to the system itself: never touched")));
        }
        SubscriberClass::Replicated => {
            let says = "a replicated subscription: its position is also kept in other clusters";
            return Err((Verdict::Skip, reason("protected", says)));
        }
    }
    let partition = is_partition(&log.log);
    let (name, base) = names_of(&log.subject, partition);
    if let Some(glob) = policy.protecting(&[name, base]) {
        return Err((Verdict::Keep, reason("protected", format!("protected by the pattern {glob:?}"))));
    }
    if let Some(wish) = subscriber.protected.as_ref().filter(|p| p.until_ms.is_none_or(|until| context.now_ms < until))
    {
        return Err((Verdict::Keep, reason("protected", format!("{} asked to leave it alone", wish.by))));
    }
    let rule = policy.rule_for_subscriber(context.target, &log.subject, partition, &subscriber.name);
    if let Some(rule) = rule {
        if let Some(protect) = rule.protect.as_ref().filter(|p| p.until_ms.is_none_or(|until| context.now_ms < until)) {
            return Err((
                Verdict::Keep,
                reason("protected", format!("rule {} protects it for {}", rule.name, protect.by)),
            ));
        }
        if rule.action == Action::Keep {
            return Err((Verdict::Keep, reason("rule", format!("rule {} keeps it", rule.name))));
        }
    }
    Ok(rule)
}

fn is_partition(log: &Log) -> bool {
    matches!(log, Log::Pulsar(topic) if matches!(topic.partition, Partition::Of { .. }))
}

/// The time after which a subscriber is stale, and who says so.
fn limit(subscriber: &Subscriber, level: Option<Level>, rule: Option<&Rule>) -> Option<(i64, String)> {
    let own = subscriber.expiration_s.filter(|seconds| *seconds > 0);
    let set = match level {
        Some(Level::Topic) => "the topic's expiration",
        Some(Level::Namespace) => "the namespace's expiration",
        Some(Level::Broker) | None => "the broker's expiration",
    };
    // A 0 that somebody set means never; one that is only the default says nothing.
    let never =
        own.is_none() && subscriber.expiration_s == Some(0) && matches!(level, Some(Level::Topic | Level::Namespace));
    let asked = rule.and_then(|rule| Some((rule.stale_after_s?, rule)));
    match (own, asked) {
        (None, None) => None,
        (Some(own), None) => Some((own, set.to_owned())),
        (_, Some((asked, rule))) if rule.overrides => Some((asked, format!("rule {}", rule.name))),
        (_, Some(_)) if never => None,
        (Some(own), Some((asked, _))) if own >= asked => Some((own, set.to_owned())),
        (_, Some((asked, rule))) => Some((asked, format!("rule {}", rule.name))),
    }
}

/// Judges whether a subscriber that may be touched and that holds something is stale.
///
/// # Errors
/// The verdict that ends the matter.
pub(super) fn stale<'a>(
    subscriber: &Subscriber,
    level: Option<Level>,
    rule: Option<&'a Rule>,
    context: &Context<'_>,
) -> Result<Found<'a>, Ruled> {
    let keep = |rule: &'static str, says: String| Err((Verdict::Keep, reason(rule, says)));
    let Some((limit_s, who)) = limit(subscriber, level, rule) else {
        return keep("activity", "no rule says when it is stale".into());
    };
    let progress = match &subscriber.progress {
        Evidence::Present(progress) => progress.clone(),
        Evidence::Absent => return Err((Verdict::Skip, reason(UNKNOWN, "its progress is not known: kept"))),
        Evidence::Unknown(why) => {
            return Err((Verdict::Skip, reason(UNKNOWN, format!("its progress is not known: {why}"))));
        }
    };
    match subscriber.connected {
        Evidence::Present(0) | Evidence::Unknown(_) => {}
        Evidence::Present(count) => return keep("online", format!("{count} consumers are connected")),
        Evidence::Absent => {}
    }
    let trust = rule.map_or(Trust::History, |rule| rule.trust);
    let now = context.now_ms;
    let (history, basis) = match trust {
        Trust::History => {
            let Some(history) = subscriber.history else {
                return keep("activity", "seen for the first time: nothing is known of its activity".into());
            };
            let wanted = rule.and_then(|rule| rule.sightings).unwrap_or(SIGHTINGS);
            if history.sightings < wanted {
                let says = format!("seen unchanged by {} scans, {wanted} are wanted", history.sightings);
                return keep("activity", says);
            }
            let since_ms = history.since_ms.max(subscriber.alive_ms);
            let says = format!("unchanged in {} scans", history.sightings);
            (History { since_ms, ..history }, says)
        }
        Trust::Field => {
            let since_ms = subscriber.stored_ms.max(subscriber.alive_ms);
            let history = History { since_ms, last_ms: now, sightings: subscriber.history.map_or(0, |h| h.sightings) };
            (history, "by stored times alone, which nobody confirmed (trust = \"field\")".to_owned())
        }
    };
    // No moment of ours, or one from the future: clocks were wrong, and nothing can be said.
    if history.since_ms <= 0 || history.since_ms > now {
        return keep("activity", "the time since when it is idle is not plausible".into());
    }
    let idle_s = now.saturating_sub(history.since_ms) / 1000;
    if idle_s <= limit_s {
        return keep("activity", format!("idle for {idle_s} s, {who} says {limit_s} s"));
    }
    let mut why = reason(STALE, format!("idle for {idle_s} s ({basis}), {who} says {limit_s} s"));
    why.inputs = [
        ("idle_since_ms", history.since_ms.to_string()),
        ("sightings", history.sightings.to_string()),
        ("stored_ms", subscriber.stored_ms.to_string()),
        ("limit_s", limit_s.to_string()),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    Ok(Found { rule, progress, history, why })
}
