//! Proofs of the rules: equal to a naive reference over the whole space of candidates, the properties that make a deletion
//! safe, and the states that people met in the field.

#[path = "policy/cases.rs"]
mod cases;
#[path = "policy/checked.rs"]
mod checked;
#[path = "policy/due.rs"]
mod due;
#[path = "policy/properties.rs"]
mod properties;
#[path = "policy/reference.rs"]
mod reference;
#[path = "policy/space.rs"]
mod space;

use proptest::test_runner::{Config, FileFailurePersistence};
use trimtab_events::{Decision, LedgerCandidate, ScanRef};
use trimtab_policy::{Context, Policy, PolicyConfig, Rule, decide};

use reference::Asked;

/// Every property is tried so often.
fn config() -> Config {
    let seen = concat!(env!("CARGO_MANIFEST_DIR"), "/policy/regressions.txt");
    Config {
        cases: 10_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seen))),
        ..Config::default()
    }
}

fn context(now_ms: i64) -> Context<'static> {
    Context { scan: ScanRef { id: uuid::Uuid::nil(), fence: 0 }, target: "pulsar", now_ms }
}

fn policy(rules: Vec<Rule>) -> Policy {
    Policy::new(PolicyConfig { rules, ..unprotected() }, "test").unwrap()
}

/// Without the globs of the default profile, which take longer to compile than ten thousand decisions.
fn unprotected() -> PolicyConfig {
    PolicyConfig { protect: Vec::new(), ..PolicyConfig::default() }
}

fn decided(topic: &LedgerCandidate, rules: Vec<Rule>, now_ms: i64) -> Decision {
    decide(topic, &policy(rules), &context(now_ms))
}

fn rule(asked: &Asked) -> Rule {
    use trimtab_policy::Action::{Keep, Reclaim, Report};
    Rule {
        action: if asked.keep {
            Keep
        } else if asked.report {
            Report
        } else {
            Reclaim
        },
        retention_s: asked.retention_s,
        retention_bytes: asked.retention_bytes,
        ttl_s: asked.ttl_s,
        overrides: asked.overrides,
        min_reclaim_bytes: asked.min_reclaim_bytes,
        ..Rule::default()
    }
}

/// Everything that a decision would have BookKeeper lose, in order of id.
fn takes(decision: &Decision) -> Vec<i64> {
    if !decision.verdict.acts() {
        return Vec::new();
    }
    let mut all = [decision.ledgers.as_slice(), &decision.offloaded_copies].concat();
    all.sort_unstable();
    all
}

/// The first decision takes nothing that the second does not.
fn no_more(less: &Decision, more: &Decision) -> bool {
    let most = takes(more);
    takes(less).iter().all(|id| most.contains(id))
}
