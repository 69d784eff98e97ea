//! All rules over one candidate.

use std::borrow::Cow;

use trimtab_events::{
    Cursor, Decision, Evidence, Expire, Holder, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded, Partition,
    Policies, Reason, Retention, ScanRef, Verdict, decision_id,
};

use crate::config::{Action, AgeRule, Compiled, Globs, OrphanRules, PolicyConfig, PolicyError, Rule, names_of};
use crate::rules::cursors::{self, Slowest};
use crate::rules::exclude::{self, UNKNOWN, reason};
use crate::rules::retention::{self, AfterLoad};

/// A policy that was found to be valid.
#[derive(Debug, Clone)]
pub struct Policy {
    config: PolicyConfig,
    hash: String,
    rules: Vec<Compiled>,
    protect: Globs,
}

impl Policy {
    /// Compiles a policy. `hash` names it in decisions: the same text must give the same hash.
    ///
    /// # Errors
    /// When a glob or a value is not valid.
    pub fn new(config: PolicyConfig, hash: impl Into<String>) -> Result<Policy, PolicyError> {
        let rules =
            config.rules.iter().enumerate().map(|(i, rule)| Compiled::new(i, rule)).collect::<Result<_, _>>()?;
        let protect = Globs::new(&config.protect).map_err(|e| PolicyError(format!("protect: {e}")))?;
        Ok(Policy { rules, protect, config, hash: hash.into() })
    }

    /// The hash given to [`Policy::new`].
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The rule that applies to a topic, if any.
    pub fn rule_for(&self, target: &str, subject: &str, partition: bool) -> Option<&Rule> {
        let (name, base) = names_of(subject, partition);
        let about = |compiled: &&Compiled| compiled.subscriptions.is_empty() && compiled.matches(target, &[name, base]);
        self.rules.iter().find(about).map(|compiled| &compiled.rule)
    }

    /// The rule that applies to a subscriber of a topic, if any.
    pub fn rule_for_subscriber(&self, target: &str, log: &str, partition: bool, subscription: &str) -> Option<&Rule> {
        let (name, base) = names_of(log, partition);
        let about = |compiled: &&Compiled| {
            (compiled.subscriptions.is_empty() || compiled.subscriptions.find(&[subscription]).is_some())
                && compiled.matches(target, &[name, base])
        };
        self.rules.iter().find(about).map(|compiled| &compiled.rule)
    }

    /// The age, in seconds, beyond which a rule lets messages of a log go that its owner would keep, and removes only when it is told to.
    pub fn ages_out(&self, target: &str, log: &str) -> Option<i64> {
        let rule = self.rule_for(target, log, false).filter(|rule| rule.overrides && rule.allow_unguarded)?;
        Some(rule.ttl_s?.max(rule.retention_s.unwrap_or(0)))
    }

    /// Whether any rule says when a subscriber of a topic is stale.
    pub fn judges_subscribers(&self, target: &str, log: &str, partition: bool) -> bool {
        let (name, base) = names_of(log, partition);
        self.rules.iter().any(|c| c.rule.stale_after_s.is_some() && c.matches(target, &[name, base]))
    }

    /// Whether any rule says when a subscriber is stale.
    pub fn judges_any_subscriber(&self) -> bool {
        self.config.rules.iter().any(|rule| rule.stale_after_s.is_some())
    }

    /// Why a topic is not to be touched, whatever its ledgers say.
    pub(crate) fn protected(&self, target: &str, topic: &LedgerCandidate, now_ms: i64) -> Option<Reason> {
        self.keeps_topic(target, &topic.subject, matches!(topic.partition, Partition::Of { .. }), now_ms)
    }

    /// Why nothing of a topic is to be touched. Whether it is a partition need not be known: what looks like one also matches by the
    /// name without its number.
    pub(crate) fn keeps(&self, target: &str, topic: &str, now_ms: i64) -> Option<Reason> {
        self.keeps_topic(target, topic, true, now_ms)
    }

    fn keeps_topic(&self, target: &str, subject: &str, partition: bool, now_ms: i64) -> Option<Reason> {
        let (name, base) = names_of(subject, partition);
        if let Some(glob) = self.protect.find(&[name, base]) {
            return Some(reason("protected", format!("protected by the pattern {glob:?}")));
        }
        let rule = self.rule_for(target, subject, partition)?;
        if let Some(protect) = rule.protect.as_ref().filter(|p| p.until_ms.is_none_or(|until| now_ms < until)) {
            return Some(reason("protected", format!("rule {} protects it for {}", rule.name, protect.by)));
        }
        (rule.action == Action::Keep).then(|| reason("rule", format!("rule {} keeps it", rule.name)))
    }

    /// The pattern that protects any of these names, if one does.
    pub(crate) fn protecting(&self, names: &[&str]) -> Option<&str> {
        self.protect.find(names)
    }

    /// How long a decision may be carried out, milliseconds.
    pub(crate) fn valid_ms(&self) -> i64 {
        self.config.valid_s.saturating_mul(1000)
    }

    /// When a ledger that nothing names may go.
    pub fn orphans(&self) -> &OrphanRules {
        &self.config.orphans
    }

    pub(crate) fn age_rule(&self) -> AgeRule {
        self.config.age_rule
    }
}

/// Where and when a decision is made.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The scan.
    pub scan: ScanRef,
    /// The configured target.
    pub target: &'a str,
    /// Milliseconds since 1970.
    pub now_ms: i64,
}

/// What the rules found, before it becomes a decision.
#[derive(Default)]
struct Found {
    ledgers: Vec<i64>,
    bytes: i64,
    dropped: Vec<i64>,
    copies: Vec<i64>,
    expire: Vec<Expire>,
    holder: Option<Holder>,
    revisit_ms: Option<i64>,
    reasons: Vec<Reason>,
    /// Only the verdict is wanted.
    silent: bool,
}

impl Found {
    fn because(&mut self, policies: &Policies, rule: &'static str, says: impl FnOnce() -> String) {
        if !self.silent {
            self.reasons.push(with_limits(rule, says(), policies));
        }
    }
}

/// Decides what is to be done about one topic. The same input gives the same answer.
pub fn decide(topic: &LedgerCandidate, policy: &Policy, context: &Context<'_>) -> Decision {
    let mut found = Found::default();
    let verdict = match judge(topic, policy, context, &mut found) {
        Ok(verdict) => verdict,
        Err((verdict, reason)) => {
            found = Found { reasons: vec![reason], holder: found.holder, ..Found::default() };
            verdict
        }
    };
    decision(topic, policy, context, verdict, found)
}

/// The same, for who carries decisions out: what does not act is only a verdict.
pub(crate) fn act_on(
    topic: &LedgerCandidate,
    policy: &Policy,
    context: &Context<'_>,
) -> Result<Box<Decision>, Verdict> {
    // Most are left alone, and saying why takes longer than finding it; so who is acted on is judged twice.
    let mut found = Found { silent: true, ..Found::default() };
    match judge(topic, policy, context, &mut found) {
        Ok(verdict) if verdict.acts() => Ok(Box::new(decide(topic, policy, context))),
        Ok(verdict) | Err((verdict, _)) => Err(verdict),
    }
}

fn decision(
    topic: &LedgerCandidate,
    policy: &Policy,
    context: &Context<'_>,
    verdict: Verdict,
    found: Found,
) -> Decision {
    Decision {
        id: decision_id(context.target, &topic.subject, &topic.seen, policy.hash(), verdict),
        scan: context.scan,
        target: context.target.to_owned(),
        subject: topic.subject.clone(),
        verdict,
        seen: topic.seen,
        policy: policy.hash().to_owned(),
        ledgers: found.ledgers,
        bytes: found.bytes,
        dropped_by_load: found.dropped,
        offloaded_copies: found.copies,
        expire: found.expire,
        consume: None,
        orphan: None,
        holder: found.holder,
        revisit_ms: found.revisit_ms,
        reasons: found.reasons,
        decided_ms: context.now_ms,
        not_before_ms: context.now_ms,
        expires_ms: context.now_ms.saturating_add(policy.valid_ms()),
    }
}

/// The list after loading, the limits in force, and the times, together.
struct Case<'a> {
    topic: &'a LedgerCandidate,
    list: &'a [LedgerInfo],
    after: AfterLoad,
    retention: Retention,
    now_ms: i64,
}

impl Case<'_> {
    fn freed(&self, slowest: Option<Slowest<'_>>) -> Vec<i64> {
        retention::freed(self.topic, &self.after, self.retention, slowest.map(|s| s.first_kept), self.now_ms)
    }

    /// What would go if no cursor stood in the way.
    fn due(&self) -> Vec<i64> {
        self.freed(None)
    }
}

fn judge(
    topic: &LedgerCandidate,
    policy: &Policy,
    context: &Context<'_>,
    found: &mut Found,
) -> Result<Verdict, exclude::Ruled> {
    let (policies, list) = exclude::readable(topic)?;
    if let Some(reason) = policy.protected(context.target, topic, context.now_ms) {
        return Err((Verdict::Keep, reason));
    }
    match &topic.loaded {
        Loaded::Yes => {
            let says = "loaded: its last ledger is open and younger than its bundle's owner, so its broker trims it";
            return Err((Verdict::Skip, reason("loaded", says)));
        }
        Loaded::Unknown { why } if matches!(topic.last, LastLedger::Open) => {
            return Err((
                Verdict::Skip,
                reason("loaded", format!("whether a broker has it loaded cannot be told: {why}")),
            ));
        }
        Loaded::No | Loaded::LeftOver | Loaded::Unknown { .. } => {}
    }
    let rule = policy.rule_for(context.target, &topic.subject, matches!(topic.partition, Partition::Of { .. }));
    let case = Case {
        topic,
        list,
        after: AfterLoad::of(list, &topic.last),
        retention: policies.retention.value,
        now_ms: context.now_ms,
    };
    let verdict = match policy.age_rule() {
        AgeRule::Broker => broker(&case, policies, rule, found)?,
        AgeRule::Pip219 => pip219(&case, policies, found)?,
    };
    if verdict.acts() {
        if let Loaded::Unknown { why } = &topic.loaded {
            return Err(unknown(format!("whether a broker has it loaded is not known: {why}")));
        }
        exclude::unread(&topic.partition)?;
        exclude::expires_unseen(verdict, policies)?;
        guard(&case, policies, rule, found)?;
    }
    Ok(verdict)
}

fn unknown(says: impl Into<String>) -> exclude::Ruled {
    (Verdict::Skip, reason(UNKNOWN, says))
}

/// The cursors, or that they are not known.
fn cursors_of(topic: &LedgerCandidate) -> Result<&[Cursor], exclude::Ruled> {
    match &topic.cursors {
        Evidence::Present(cursors) => Ok(cursors),
        Evidence::Absent => Ok(&[]),
        Evidence::Unknown(why) => Err(unknown(format!("its cursors are not known: {why}"))),
    }
}

fn slowest<'a>(
    case: &Case<'a>,
    cursors: &'a [Cursor],
    expire_s: Option<i64>,
) -> Result<Option<Slowest<'a>>, exclude::Ruled> {
    cursors::slowest(cursors, &case.after, expire_s, case.now_ms)
        .map_err(|(name, why)| unknown(format!("the position of cursor {name:?} is not known: {why}")))
}

/// The TTL that expiry would use: the target's own, or a rule's where that is allowed to be shorter.
fn ttl_of(policies: &Policies, rule: Option<&Rule>) -> Option<i64> {
    let own = Some(policies.ttl_s.value).filter(|ttl| *ttl > 0);
    // Expiry takes seconds, and none is not a number of them.
    let asked = rule.and_then(|rule| rule.ttl_s.map(|ttl| (ttl.max(1), rule.overrides)));
    match (own, asked) {
        (own, None) => own,
        (Some(own), Some((asked, false))) => Some(own.max(asked)),
        (None, Some((_, false))) => None,
        (own, Some((asked, true))) => Some(own.map_or(asked, |own| own.min(asked))),
    }
}

/// What the broker's own rules free.
fn broker(
    case: &Case<'_>,
    policies: &Policies,
    rule: Option<&Rule>,
    found: &mut Found,
) -> Result<Verdict, exclude::Ruled> {
    let due = case.due();
    let copies =
        |freed: &[i64]| retention::offloaded_copies(case.list, policies.offload_deletion_lag_ms, freed, case.now_ms);
    if due.is_empty() && copies(&[]).is_empty() {
        return idle(case, policies, found);
    }
    needs_known_last(case)?;
    let cursors = cursors_of(case.topic)?;
    let slow = slowest(case, cursors, None)?;
    let now = case.freed(slow);
    let ttl = ttl_of(policies, rule);
    let after_expiry = match ttl {
        Some(ttl) => case.freed(slowest(case, cursors, Some(ttl))?),
        None => now.clone(),
    };
    found.holder = holder(case, slow, &due, &after_expiry);
    found.dropped = case.after.dropped.clone();
    if after_expiry.len() > now.len() {
        let ttl = ttl.unwrap_or_default();
        found.expire = expirable(cursors, ttl);
        found.copies = copies(&after_expiry);
        take(case, found, after_expiry);
        found.because(policies, "ttl", || ttl_says(ttl, policies));
        return Ok(Verdict::ExpireThenTrim);
    }
    found.copies = copies(&now);
    if !now.is_empty() || !found.copies.is_empty() {
        let says = match now.is_empty() {
            true => "copies in tiered storage are complete and old enough for BookKeeper's to go",
            false => "ledgers past retention or over the size, before every cursor",
        };
        take(case, found, now);
        found.because(policies, "retention", || says.to_owned());
        return Ok(Verdict::Trim);
    }
    blocked(case, slow, &due, policies, found)
}

fn take(case: &Case<'_>, found: &mut Found, ledgers: Vec<i64>) {
    found.bytes = case.after.bytes_of(&ledgers);
    found.ledgers = ledgers;
}

fn ttl_says(ttl: i64, policies: &Policies) -> String {
    if policies.ttl_s.value > 0 {
        format!("only the TTL of {ttl} s frees these ledgers: expire messages, then trim")
    } else {
        format!("a rule's TTL of {ttl} s frees these ledgers: expire messages, then trim")
    }
}

fn expirable(cursors: &[Cursor], ttl_s: i64) -> Vec<Expire> {
    let subscriptions = cursors.iter().filter(|cursor| cursor.kind.expires());
    subscriptions.map(|cursor| Expire { subscription: cursor.name.clone(), ttl_s }).collect()
}

/// A decision that may free something must know whether the last ledger stays as it is.
fn needs_known_last(case: &Case<'_>) -> Result<(), exclude::Ruled> {
    match &case.topic.last {
        LastLedger::Unknown { why } => Err(unknown(format!("its last ledger is not known: {why}"))),
        _ => match exclude::unknown_entries(case.list) {
            Some(id) => Err(unknown(format!("the list does not say how many entries ledger {id} has"))),
            None => Ok(()),
        },
    }
}

/// Nothing is due by the limits: keep, or start the last ledger's clock.
fn idle(case: &Case<'_>, policies: &Policies, found: &mut Found) -> Result<Verdict, exclude::Ruled> {
    if case.retention.minutes < 0 && case.retention.mib < 0 {
        found.because(policies, "retention", || "infinite retention".to_owned());
        return Ok(Verdict::Keep);
    }
    if case.after.ledgers.is_empty() {
        found.because(policies, "retention", || "nothing is due".to_owned());
        return Ok(Verdict::Keep);
    }
    if let [only] = case.after.ledgers.as_slice() {
        let old = cursors::old_enough(only.really_closed_ms, case.retention.minutes.saturating_mul(60), case.now_ms);
        if only.last && !only.open && case.retention.minutes >= 0 && old && !case.topic.terminated {
            needs_known_last(case)?;
            let slow = slowest(case, cursors_of(case.topic)?, None)?;
            if slow.is_none_or(|s| s.first_kept > only.id) {
                found.dropped = case.after.dropped.clone();
                found.revisit_ms = Some(case.now_ms.saturating_add(case.retention.minutes.saturating_mul(60_000)));
                found.because(policies, "start-clock", || {
                    format!(
                        "only the last ledger ({} bytes) is left and it is old: one visit starts its retention time, a second \
                         one after that time frees it",
                        only.bytes
                    )
                });
                return Ok(Verdict::StartClock);
            }
            found.holder = holder(case, slow, &[only.id], &[]);
        }
        if only.open && case.topic.loaded == Loaded::LeftOver {
            let says =
                "nothing is due; the last ledger was left open by a broker that died and needs a roll-over first";
            found.because(policies, "retention", || says.to_owned());
            return Ok(Verdict::Keep);
        }
    }
    found.because(policies, "retention", || "nothing is due".to_owned());
    Ok(Verdict::Keep)
}

/// Something is due, but nothing goes: a cursor stands before it.
fn blocked(
    case: &Case<'_>,
    slow: Option<Slowest<'_>>,
    due: &[i64],
    policies: &Policies,
    found: &mut Found,
) -> Result<Verdict, exclude::Ruled> {
    found.dropped.clear();
    let Some(slow) = slow else {
        // Only copies were due and they are held by nothing; `broker` has taken that case.
        found.because(policies, "retention", || "nothing is due".to_owned());
        return Ok(Verdict::Keep);
    };
    found.holder = holder(case, Some(slow), due, &[]);
    found.because(policies, "cursor", || {
        format!("past retention, but cursor {} stands before them at {}: {due:?}", slow.cursor.name, slow.position)
    });
    Ok(Verdict::Blocked)
}

/// The slowest cursor, if ledgers that are due would go without it.
fn holder(case: &Case<'_>, slow: Option<Slowest<'_>>, due: &[i64], freed: &[i64]) -> Option<Holder> {
    let held: Vec<i64> = due.iter().copied().filter(|id| !freed.contains(id)).collect();
    let slow = slow.filter(|_| !held.is_empty())?;
    Some(Holder {
        cursor: slow.cursor.name.clone(),
        position: slow.position,
        bytes: case.after.bytes_of(&held),
        since_ms: slow.cursor.modified_ms,
    })
}

fn with_limits(rule: &'static str, says: String, policies: &Policies) -> Reason {
    let level = |level| match level {
        Level::Topic => "topic".into(),
        Level::Namespace => "namespace".into(),
        Level::Broker => "broker".into(),
    };
    let (retention, ttl) = (policies.retention, policies.ttl_s);
    let number = |value: i64| Cow::Owned(value.to_string());
    let inputs = [
        ("retention_minutes", number(retention.value.minutes)),
        ("retention_mib", number(retention.value.mib)),
        ("retention_level", level(retention.level)),
        ("ttl_s", number(ttl.value)),
        ("ttl_level", level(ttl.level)),
    ];
    Reason { rule: rule.into(), says, inputs: inputs.map(|(name, value)| (name.into(), value)).into() }
}

/// PIP-219's age rule. Its ledgers are those it would wake the topic for; what goes is still the broker's word.
fn pip219(case: &Case<'_>, policies: &Policies, found: &mut Found) -> Result<Verdict, exclude::Ruled> {
    let limit_s = case.retention.minutes.saturating_mul(60).saturating_add(policies.ttl_s.value.max(0));
    let old = |ledger: &&retention::Ledger| {
        case.retention.minutes >= 0 && !ledger.last && cursors::old_enough(ledger.closed_ms, limit_s, case.now_ms)
    };
    let ids: Vec<i64> = case.after.ledgers.iter().filter(old).map(|ledger| ledger.id).collect();
    if ids.is_empty() {
        found.because(policies, "pip-219", || "no ledger is older than retention and TTL together".to_owned());
        return Ok(Verdict::Keep);
    }
    needs_known_last(case)?;
    let slow = slowest(case, cursors_of(case.topic)?, None)?;
    let now = case.freed(slow);
    if now.is_empty() {
        found.holder = holder(case, slow, &ids, &[]);
        found.because(policies, "pip-219", || {
            format!("by age PIP-219 would visit it for {ids:?}; the broker would free nothing")
        });
        return Ok(Verdict::Blocked);
    }
    found.dropped = case.after.dropped.clone();
    take(case, found, now);
    found.because(policies, "pip-219", || format!("older than retention and TTL together: {ids:?}"));
    Ok(Verdict::Trim)
}

/// What an operator's rule may still forbid. The owner trims by its own rules, all or nothing, so a rule that wants to keep
/// any of it keeps the topic from being visited.
fn guard(case: &Case<'_>, policies: &Policies, rule: Option<&Rule>, found: &mut Found) -> Result<(), exclude::Ruled> {
    let Some(rule) = rule else { return Ok(()) };
    let keep = |says: String| Err((Verdict::Keep, reason("rule", says)));
    if rule.action == Action::Report {
        let says = format!("rule {} only reports: {} bytes in {:?} could go", rule.name, found.bytes, found.ledgers);
        return Err((Verdict::Report, reason("rule", says)));
    }
    if found.bytes < rule.min_reclaim_bytes {
        return keep(format!(
            "rule {}: {} bytes are less than min_reclaim, {}",
            rule.name, found.bytes, rule.min_reclaim_bytes
        ));
    }
    let own_ttl = Some(policies.ttl_s.value).filter(|ttl| *ttl > 0);
    let cursors = cursors_of(case.topic)?;
    // The worst that a visit can do: the target's own TTL may be applied at loading.
    let most = match own_ttl {
        Some(ttl) => case.freed(slowest(case, cursors, Some(ttl))?),
        None => found.ledgers.clone(),
    };
    if rule.ttl_s.is_some() && !rule.overrides && most.len() > found.ledgers.len() {
        return keep(format!(
            "rule {}: the target's own TTL would free {most:?}, the rule only {:?}",
            rule.name, found.ledgers
        ));
    }
    let going = if most.len() > found.ledgers.len() { &most } else { &found.ledgers };
    if let Some(id) = rule.retention_s.and_then(|seconds| {
        let young = |l: &&retention::Ledger| {
            going.contains(&l.id) && !cursors::old_enough(l.really_closed_ms, seconds, case.now_ms)
        };
        case.after.ledgers.iter().find(young).map(|ledger| ledger.id)
    }) {
        return keep(format!(
            "rule {} keeps ledger {id} longer than the target's retention, and a trim would free it",
            rule.name
        ));
    }
    if let Some(bytes) = rule.retention_bytes {
        let rest = case.after.bytes() - case.after.bytes_of(going);
        if rest < bytes {
            return keep(format!("rule {} keeps {bytes} bytes, and a trim would leave {rest}", rule.name));
        }
    }
    Ok(())
}
