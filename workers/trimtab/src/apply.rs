//! Carrying out reviewed decisions in this process, for `trimtab apply` and the console.

use std::time::Duration;

use trimtab_events::{Decision, Outcome};
use trimtab_targets::Class;

use crate::worker::{Failure, Out};
use crate::workers::Executor;

/// How often it is tried again, each time after twice as long: half a minute in all.
const AGAIN: u32 = 4;

/// Carries out one decision. One that is not valid yet is of a machine whose clock is a little ahead: it is waited for. So is what cannot
/// be reached for a moment: nobody else comes back for what was begun.
///
/// # Errors
/// As [`Executor::carry_out`].
pub async fn carry_out(executor: &Executor, decision: &Decision, out: &Out) -> Result<Outcome, Failure> {
    let mut failures = 0;
    loop {
        match executor.carry_out(decision, out).await {
            Err(Failure::Later { after, .. }) => tokio::time::sleep(after).await,
            Err(Failure::Failed { class: Class::Transient, why }) if failures < AGAIN => {
                failures += 1;
                tracing::warn!(subject = decision.subject, why, "failed; trying again");
                tokio::time::sleep(Duration::from_secs(1 << failures)).await;
            }
            carried => return carried,
        }
    }
}
