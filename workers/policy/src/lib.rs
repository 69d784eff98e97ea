//! What may be reclaimed, and why: pure rules over what was seen. No IO, no clock, no randomness.
//!
//! [`decide`] turns a candidate into a decision with its reasons; [`check`] states the promises without knowing the rules
//! and is run on every decision before it is carried out; [`needs`] says what else must be read before deciding, and [`due`] when
//! time alone lets them answer otherwise.
//! The scanner's filter, the decider, the executor, `plan` and the tests all call these same functions.
//!
//! The rules follow what Pulsar's own broker does on loading and trimming a topic (`ManagedLedgerImpl` of 4.2), so that a
//! decision predicts exactly what the broker will free.

mod check;
mod config;
mod decide;
mod due;
mod needs;
mod orphan;
pub mod rules;
mod subscribers;

pub use check::{Violation, check};
pub use config::{Action, AgeRule, GRACE_S, OrphanRules, PolicyConfig, PolicyError, Protect, Rule, SIGHTINGS, Trust};
pub use decide::{Context, Policy, decide};
pub use due::due;
pub use needs::{Needs, needs};
pub use orphan::{check_orphan, decide_orphan, reinstate_orphan};
pub use subscribers::{abridge, check_subscriber, decide_subscribers, holds, narrow, reinstate};

use trimtab_events::{Candidate, Decision, Verdict};

/// Decides about a candidate of any kind: one decision for a topic or a ledger, one for each subscriber of a log.
pub fn decide_any(candidate: &Candidate, policy: &Policy, context: &Context<'_>) -> Vec<Decision> {
    match candidate {
        Candidate::Ledger(topic) => vec![decide(topic, policy, context)],
        Candidate::Subscriber(log) => decide_subscribers(log, policy, context),
        Candidate::Orphan(ledger) => vec![decide_orphan(ledger, policy, context)],
    }
}

/// [`decide_any`] for who carries decisions out: those that act, and the verdicts of the others. The reasons and the id of what is
/// left alone are most of the work, and nobody looks at them.
pub fn act_on_any(
    candidate: &Candidate,
    policy: &Policy,
    context: &Context<'_>,
) -> Vec<Result<Box<Decision>, Verdict>> {
    let act_on = |decision: Decision| match decision.verdict.acts() {
        true => Ok(Box::new(decision)),
        false => Err(decision.verdict),
    };
    match candidate {
        Candidate::Ledger(topic) => vec![decide::act_on(topic, policy, context)],
        Candidate::Subscriber(log) => decide_subscribers(log, policy, context).into_iter().map(act_on).collect(),
        Candidate::Orphan(ledger) => vec![act_on(decide_orphan(ledger, policy, context))],
    }
}

/// Checks a decision about a candidate of any kind, see [`check`], [`check_subscriber`] and [`check_orphan`].
///
/// # Errors
/// The first promise that it would break.
pub fn check_any(decision: &Decision, candidate: &Candidate, policy: &Policy, now_ms: i64) -> Result<(), Violation> {
    match candidate {
        Candidate::Ledger(topic) => check(decision, topic, now_ms),
        Candidate::Subscriber(log) => check_subscriber(decision, log, now_ms),
        Candidate::Orphan(ledger) => check_orphan(decision, ledger, policy.orphans(), now_ms),
    }
}
