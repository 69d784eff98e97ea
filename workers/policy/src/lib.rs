//! What may be reclaimed, and why: pure rules over what was seen. No IO, no clock, no randomness.
//!
//! [`decide`] turns a candidate into a decision with its reasons; [`check`] states the promises without knowing the rules
//! and is run on every decision before it is carried out; [`needs`] says what else must be read before deciding.
//! The scanner's filter, the decider, the executor, `plan` and the tests all call these same functions.
//!
//! The rules follow what Pulsar's own broker does on loading and trimming a topic (`ManagedLedgerImpl` of 4.2), so that a
//! decision predicts exactly what the broker will free.

mod check;
mod config;
mod decide;
mod needs;
pub mod rules;

pub use check::{Violation, check};
pub use config::{Action, AgeRule, PolicyConfig, PolicyError, Protect, Rule};
pub use decide::{Context, Policy, decide};
pub use needs::{Needs, needs};
