//! Orphan ledgers: whether one may go, and why not. Everything that is not known keeps.

use std::collections::BTreeSet;

use trimtab_events::{
    Decision, DeleteOrphan, Evidence, GuardKind, LedgerContent, LedgerOwner, LedgerStage, Marks, OrphanCandidate,
    Reason, TopicClass, Verdict, decision_id,
};

use crate::check::Violation;
use crate::config::{Action, OrphanRules};
use crate::decide::{Context, Policy};
use crate::rules::exclude::{UNKNOWN, reason};

type Ruled = (Verdict, Reason);

/// Decides what is to be done about one ledger: [`Verdict::DeleteOrphan`], `Keep`, `Skip` (something about it is not known) or `Report`.
/// The same input gives the same answer.
pub fn decide_orphan(ledger: &OrphanCandidate, policy: &Policy, context: &Context<'_>) -> Decision {
    let rules = policy.orphans();
    let (verdict, mut reason) = match judge(ledger, policy, rules, context) {
        Ok(reason) => (Verdict::DeleteOrphan, reason),
        Err(ruled) => ruled,
    };
    if let Some(owner) = ledger.owner() {
        reason.inputs.insert("owner".into(), owner.topic.clone().into());
    }
    let acts = verdict == Verdict::DeleteOrphan;
    let orphan = ledger.owner().filter(|_| acts).map(|owner| DeleteOrphan {
        path: ledger.path.clone(),
        owner: owner.clone(),
        ceiling: ledger.ceiling.clone(),
        clock: ledger.clock,
        sightings: ledger.sightings.clone(),
        collected_within_s: rules.gc_wait_s,
    });
    let bytes = ledger.content.present().and_then(|content| content.bytes).unwrap_or(0).max(0);
    Decision {
        id: decision_id(context.target, &ledger.subject, &ledger.seen, policy.hash(), verdict),
        scan: context.scan,
        target: context.target.to_owned(),
        subject: ledger.subject.clone(),
        verdict,
        seen: ledger.seen,
        policy: policy.hash().to_owned(),
        ledgers: if acts { vec![ledger.ledger] } else { Vec::new() },
        bytes: if acts { bytes } else { 0 },
        dropped_by_load: Vec::new(),
        offloaded_copies: Vec::new(),
        expire: Vec::new(),
        consume: None,
        orphan,
        holder: None,
        revisit_ms: None,
        reasons: vec![reason],
        decided_ms: context.now_ms,
        not_before_ms: context.now_ms,
        expires_ms: context.now_ms.saturating_add(policy.valid_ms()),
    }
}

/// Gives a ledger that was read again what only a scan of everything can tell: the bounds on ids from before its first read, the clock,
/// the sightings, and that its topic names nothing that is missing. What names it, its own version and its owner are those of now.
pub fn reinstate_orphan(ledger: &mut OrphanCandidate, decision: &Decision) {
    let Some(decided) = &decision.orphan else { return };
    ledger.ceiling = decided.ceiling.clone();
    ledger.clock = decided.clock;
    ledger.sightings = decided.sightings.clone();
    if ledger.missing.is_not_read() && ledger.owner() == Some(&decided.owner) {
        ledger.missing = Evidence::Absent;
    }
}

fn judge(
    ledger: &OrphanCandidate,
    policy: &Policy,
    rules: &OrphanRules,
    context: &Context<'_>,
) -> Result<Reason, Ruled> {
    let owner = owned(ledger)?;
    unnamed(ledger)?;
    below_ceiling(ledger)?;
    old(ledger, rules, context.now_ms)?;
    closed(ledger)?;
    ours_to_judge(owner, policy, context)?;
    namespace(ledger)?;
    nothing_missing(ledger)?;
    checkable(ledger, rules)?;
    seen_often(ledger, rules, context)?;
    let says = format!(
        "{}, and nothing names it; bookies drop its data within {} s of the deletion, and `trimtab undo` brings it back only before that",
        what(owner),
        rules.gc_wait_s
    );
    let mut reason = reason("orphan", says);
    reason.inputs.insert("sightings".into(), (ledger.sightings.len() + 1).to_string().into());
    Ok(reason)
}

fn keep<T>(rule: &'static str, says: impl Into<String>) -> Result<T, Ruled> {
    Err((Verdict::Keep, reason(rule, says)))
}

fn unknown<T>(says: impl Into<String>) -> Result<T, Ruled> {
    Err((Verdict::Skip, reason(UNKNOWN, says)))
}

fn report<T>(rule: &'static str, says: impl Into<String>) -> Result<T, Ruled> {
    Err((Verdict::Report, reason(rule, says)))
}

/// What a ledger is, for a person.
fn what(owner: &LedgerOwner) -> String {
    use trimtab_events::OwnedKind::{Compacted, Cursor, Data, DelayedBucket, Schema};
    let topic = &owner.topic;
    let cursor = owner.cursor.as_deref().unwrap_or_default();
    match owner.kind {
        Data => format!("messages of {topic}"),
        Cursor => format!("positions of cursor {cursor:?} of {topic}"),
        Schema => format!("a schema of {topic}"),
        Compacted => format!("the compacted form of {topic}"),
        DelayedBucket => format!("delayed messages of {cursor:?} of {topic}"),
    }
}

/// Only what says itself that it is Pulsar's, and whose.
fn owned(ledger: &OrphanCandidate) -> Result<&LedgerOwner, Ruled> {
    if let Evidence::Unknown(why) = &ledger.content {
        return unknown(format!("its metadata could not be read: {why}"));
    }
    match &ledger.marks {
        Marks::None => keep("foreign", "its metadata does not say whose it is: never touched"),
        Marks::Other { application } => keep("foreign", format!("it is marked by {application:?}: never touched")),
        Marks::Unknown { why } => unknown(format!("whose it is could not be told: {why}")),
        Marks::Pulsar(owner) => Ok(owner),
    }
}

fn unnamed(ledger: &OrphanCandidate) -> Result<(), Ruled> {
    match &ledger.references {
        Evidence::Absent => Ok(()),
        Evidence::Present(by) => {
            let by: Vec<String> = by.iter().map(|r| format!("{} {}", r.kind.name(), r.by)).collect();
            keep("referenced", format!("it is named by {}", by.join(", ")))
        }
        Evidence::Unknown(why) => unknown(format!("what may name it was not read completely: {why}")),
    }
}

/// Ids only grow, so an id that was handed out after the scan began, or is higher than any that is named, may be in creation.
fn below_ceiling(ledger: &OrphanCandidate) -> Result<(), Ruled> {
    let id = ledger.ledger;
    match &ledger.ceiling.highest_named {
        Evidence::Present(highest) if id < *highest => {}
        Evidence::Present(highest) => {
            return keep("ceiling", format!("it is above the highest id that anything names ({highest})"));
        }
        Evidence::Absent => return keep("ceiling", "nothing names any ledger"),
        Evidence::Unknown(why) => return unknown(format!("the highest id in use is not known: {why}")),
    }
    match &ledger.ceiling.handed_out {
        Evidence::Present(next) if id < *next => Ok(()),
        Evidence::Absent if id >= i64::from(i32::MAX) => Ok(()),
        Evidence::Present(next) => {
            keep("ceiling", format!("ids from {next} on were not handed out when the scan began"))
        }
        Evidence::Absent => unknown("how many ids were handed out when the scan began is not known"),
        Evidence::Unknown(why) => {
            unknown(format!("how many ids were handed out when the scan began is not known: {why}"))
        }
    }
}

/// The moment that ages count from: what both clocks agree to have passed.
fn agreed_now(ledger: &OrphanCandidate, now_ms: i64) -> i64 {
    now_ms.min(ledger.clock.newest_ms)
}

fn times_of(ledger: &OrphanCandidate) -> [Option<i64>; 3] {
    let content = ledger.content.present().and_then(|content| content.created_ms);
    [Some(ledger.created_ms), Some(ledger.seen.modified_ms), content]
}

fn old(ledger: &OrphanCandidate, rules: &OrphanRules, now_ms: i64) -> Result<(), Ruled> {
    let now = agreed_now(ledger, now_ms);
    if now <= 0 {
        return unknown("nothing read carries a time to count ages from");
    }
    let times: Vec<i64> = times_of(ledger).into_iter().flatten().collect();
    if let Some(odd) = times.iter().find(|time| **time <= 0 || **time > now) {
        return unknown(format!("one of its times ({odd}) is no moment of the past"));
    }
    let newest = times.into_iter().chain([ledger.clock.written_after_ms]).max().unwrap_or(now);
    let age_s = (now - newest) / 1000;
    if age_s < rules.min_age_s {
        return keep("too-young", format!("it was written {age_s} s ago: it may be in creation"));
    }
    Ok(())
}

fn closed(ledger: &OrphanCandidate) -> Result<(), Ruled> {
    match &ledger.content {
        Evidence::Present(LedgerContent { state: LedgerStage::Closed, .. }) => Ok(()),
        Evidence::Present(_) => report(
            "suspect-open",
            "it was never closed: a writer may live; recover it with a BookKeeper client (which fences the writer) first",
        ),
        Evidence::Absent | Evidence::Unknown(_) => unknown("whether it is closed is not known"),
    }
}

fn ours_to_judge(owner: &LedgerOwner, policy: &Policy, context: &Context<'_>) -> Result<(), Ruled> {
    match owner.class {
        TopicClass::User => {}
        TopicClass::System => return keep("system-topic", "a system topic's: the broker keeps its own house there"),
        TopicClass::LegacyName => return keep("legacy-name", "of a topic with a name from before Pulsar 2.0"),
        TopicClass::UnknownName => return unknown("the form of its topic's name is not recognised"),
    }
    if let Some(reason) = policy.keeps(context.target, &owner.topic, context.now_ms) {
        return Err((Verdict::Keep, reason));
    }
    match policy.rule_for(context.target, &owner.topic, true) {
        Some(rule) if rule.action == Action::Report => report("rule", format!("rule {} only reports", rule.name)),
        _ => Ok(()),
    }
}

fn namespace(ledger: &OrphanCandidate) -> Result<(), Ruled> {
    match &ledger.namespace {
        Evidence::Present(state) if state.deleted => {
            keep("namespace-deleted", "its namespace is being deleted: left alone")
        }
        Evidence::Present(_) => Ok(()),
        Evidence::Absent => report(
            "namespace-missing",
            "its namespace has no policies here; they may be kept in another store, so it is for a person to judge",
        ),
        Evidence::Unknown(why) => unknown(format!("whether its namespace exists is not known: {why}")),
    }
}

fn nothing_missing(ledger: &OrphanCandidate) -> Result<(), Ruled> {
    match &ledger.missing {
        Evidence::Absent => Ok(()),
        Evidence::Present(ids) => report(
            "missing-ledgers",
            format!("its topic names ledgers that BookKeeper does not have ({ids:?}): look at that first"),
        ),
        Evidence::Unknown(why) => {
            unknown(format!("whether all ledgers that its topic names exist is not known: {why}"))
        }
    }
}

/// Deleting it is conditional on what would name it: each node must be known, there or not there.
fn checkable(ledger: &OrphanCandidate, rules: &OrphanRules) -> Result<(), Ruled> {
    if ledger.guards.is_empty() {
        return unknown("which node would name it is not known");
    }
    for guard in &ledger.guards {
        match (&guard.node, guard.kind) {
            (Evidence::Unknown(why), _) => return unknown(format!("{}: {why}", guard.path)),
            (Evidence::Absent, GuardKind::Topic) if !rules.absent_topics => {
                return report(
                    "owner-unchecked",
                    "its topic does not exist, which the transaction that deletes a ledger can check only by creating and \
                     deleting the topic's node; allow that with absent_topics = true",
                );
            }
            (Evidence::Present(_) | Evidence::Absent, _) => {}
        }
    }
    Ok(())
}

fn seen_often(ledger: &OrphanCandidate, rules: &OrphanRules, context: &Context<'_>) -> Result<(), Ruled> {
    let same: Vec<_> = ledger
        .sightings
        .iter()
        .filter(|sighting| sighting.scan != context.scan.id && sighting.seen == ledger.seen)
        .collect();
    let scans: BTreeSet<_> = same.iter().map(|sighting| sighting.scan).collect();
    let needed = rules.sightings.max(2) as usize;
    let seen = scans.len() + 1;
    if seen < needed {
        return keep("sightings", format!("seen unnamed by {seen} of {needed} scans"));
    }
    let first = same.iter().map(|sighting| sighting.at_ms).min().unwrap_or(context.now_ms);
    let waited_s = context.now_ms.saturating_sub(first) / 1000;
    if waited_s < rules.grace_s {
        return keep("sightings", format!("first seen unnamed {waited_s} s ago, of {} s to wait", rules.grace_s));
    }
    Ok(())
}

/// The promises about deleting a ledger, stated without the rules.
///
/// # Errors
/// The first promise that deleting it would break.
pub fn check_orphan(
    decision: &Decision,
    ledger: &OrphanCandidate,
    rules: &OrphanRules,
    now_ms: i64,
) -> Result<(), Violation> {
    let broken = |says: &str| Err(Violation(format!("ledger {}: {says}", ledger.ledger)));
    if decision.verdict != Verdict::DeleteOrphan {
        return broken("only deleting it can be carried out");
    }
    if decision.subject != ledger.subject || decision.ledgers != [ledger.ledger] || decision.seen != ledger.seen {
        return broken("the decision is about another ledger, or another version of it");
    }
    if decision.orphan.as_ref().is_none_or(|orphan| orphan.path != ledger.path || Some(&orphan.owner) != ledger.owner())
    {
        return broken("the decision is about another node or another owner");
    }
    if now_ms < decision.not_before_ms || now_ms > decision.expires_ms {
        return broken("the decision is not valid at this moment");
    }
    let Marks::Pulsar(LedgerOwner { class: TopicClass::User, .. }) = &ledger.marks else {
        return broken("it is not positively a ledger of a user's topic");
    };
    if ledger.references != Evidence::Absent || ledger.missing != Evidence::Absent {
        return broken("it is not known that nothing names it and that nothing is missing");
    }
    let Evidence::Present(LedgerContent { state: LedgerStage::Closed, created_ms, .. }) = ledger.content else {
        return broken("it is not known to be closed");
    };
    if !matches!(ledger.namespace, Evidence::Present(state) if !state.deleted) {
        return broken("its namespace is not known to exist");
    }
    if ledger.guards.is_empty() || ledger.guards.iter().any(|guard| guard.node.unknown().is_some()) {
        return broken("a node that may name it is not known");
    }
    let topic_absent = |guard: &trimtab_events::Guard| guard.kind == GuardKind::Topic && guard.node == Evidence::Absent;
    if !rules.absent_topics && ledger.guards.iter().any(topic_absent) {
        return broken("that its topic does not exist is not to be checked");
    }
    let named = ledger.ceiling.highest_named.present().copied().unwrap_or(0);
    let handed_out = match ledger.ceiling.handed_out {
        Evidence::Present(next) => next,
        Evidence::Absent if ledger.ledger >= i64::from(i32::MAX) => i64::MAX,
        Evidence::Absent | Evidence::Unknown(_) => 0,
    };
    if ledger.ledger < 0 || ledger.ledger >= named.min(handed_out) {
        return broken("it may be in creation, by its id");
    }
    let newest = [ledger.created_ms, ledger.seen.modified_ms, created_ms.unwrap_or(1), ledger.clock.written_after_ms];
    let age_ms = |now: i64| now.saturating_sub(newest.into_iter().max().unwrap_or(now));
    let zero = ledger.created_ms <= 0 || ledger.seen.modified_ms <= 0 || created_ms.is_some_and(|ms| ms <= 0);
    if zero || age_ms(now_ms).min(age_ms(ledger.clock.newest_ms)) < rules.min_age_s.max(0).saturating_mul(1000) {
        return broken("it may be in creation, by its age");
    }
    let earlier = || ledger.sightings.iter().filter(|s| s.seen == ledger.seen && s.scan != decision.scan.id);
    let grace_ms = rules.grace_s.max(0).saturating_mul(1000);
    let old = earlier().any(|s| now_ms.saturating_sub(s.at_ms) >= grace_ms);
    let scans: BTreeSet<_> = earlier().map(|s| s.scan).collect();
    if !old || scans.len() < rules.sightings.max(2) as usize - 1 {
        return broken("too few earlier scans have seen it so, or too short a time ago");
    }
    Ok(())
}
