//! The roles. Each is thin: it reads its input, asks the rules or a target, and says what came of it.

mod audit;
mod decider;
mod executor;
mod recovery;
mod scanner;

pub use audit::Audit;
pub use decider::Decider;
pub use executor::{Executor, ExecutorParts};
pub use recovery::{RecoveryParts, RecoveryWorker};
pub(crate) use scanner::{SHARD_TRIES, add_survey, count, count_log, count_orphan, count_subscriber, reads};
pub use scanner::{Scanner, ScannerParts};

/// `/trimtab/<role>/<instance>`, the source of events.
pub fn source(role: &str, instance: &str) -> String {
    format!("/trimtab/{role}/{instance}")
}
