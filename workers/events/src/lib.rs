//! The vocabulary of trimtab: every event that crosses a queue or a process, and nothing that does anything.
//!
//! One file per event family. [`Event`] is the envelope (CloudEvents 1.0, structured JSON mode) that carries them;
//! [`Body`] is what its data may be. `schemas/` is generated from these types by [`schema::all`].

mod decision;
mod envelope;
mod evidence;
mod ids;
mod ledger;
mod outcome;
mod plan;
mod scan;
pub mod schema;

pub use decision::{Decision, Expire, Holder, Reason, Verdict};
pub use envelope::{Body, Event, Invalid, MAX_EVENT_BYTES, Trace};
pub use evidence::{CHANGE_EVENTS_OPEN, Evidence, NOT_READ};
pub use ids::{SHARDS, decision_id, event_id, key_of, shard_of};
pub use ledger::{
    Cursor, CursorKind, LastLedger, LedgerCandidate, LedgerInfo, LedgerPage, Level, Loaded, MAX_PAGE, Offload,
    Partition, Policies, Position, Retention, Seen, Setting, TopicClass,
};
pub use outcome::{Outcome, Status, TopicState};
pub use plan::{PLAN_FORMAT, Plan, PlanItem, PlanTotals};
pub use scan::{Proposed, ScanRef, ScanReport, ScanRequest, Scope, Trigger};
