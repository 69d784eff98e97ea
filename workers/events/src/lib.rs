//! The vocabulary of trimtab: every event that crosses a queue or a process, and nothing that does anything.
//!
//! One file per event family. [`Event`] is the envelope (CloudEvents 1.0, structured JSON mode) that carries them;
//! [`Body`] is what its data may be. `schemas/` is generated from these types by [`schema::all`].

mod candidate;
mod data;
mod decision;
mod envelope;
mod evidence;
mod ids;
mod jetstream;
mod ledger;
mod notice;
mod orphan;
mod outcome;
mod plan;
mod recovery;
mod scan;
pub mod schema;
mod subscriber;
mod survey;

pub use candidate::{Candidate, LedgerPage, MAX_PAGE, OrphanPage, Page, SubscriberPage};
pub use data::Data;
pub use decision::{Consume, Decision, Expire, Holder, Reason, Stale, Verdict};
pub use envelope::{Body, Event, Invalid, MAX_EVENT_BYTES, Trace};
pub use evidence::{CHANGE_EVENTS_OPEN, Evidence, NOT_READ};
pub use ids::{SHARDS, decision_id, event_id, key_of, shard_of};
pub use jetstream::{
    Aged, DeliverPolicy, JetStreamConsumer, JetStreamRest, JetStreamStream, StreamOwner, StreamRetention,
};
pub use ledger::{
    Cursor, CursorDetail, CursorKind, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded, Offload, Partition,
    Policies, Position, Retention, Seen, Setting, Told, TopicClass,
};
pub use notice::{Announced, Notice};
pub use orphan::{
    Ceiling, DeleteOrphan, Guard, GuardKind, LedgerContent, LedgerOwner, LedgerReference, LedgerStage, Marks,
    NamespaceState, OrphanCandidate, OwnedKind, ReferenceKind, Sighting, TargetClock, ledger_of_subject,
    ledger_subject,
};
pub use outcome::{Outcome, Status, TopicState};
pub use plan::{PLAN_FORMAT, Plan, PlanItem, PlanTotals};
pub use recovery::{
    FileSeen, RecoveryCut, RecoveryOutcome, RecoveryReport, RecoverySegment, RecoveryState, RecoveryWork, SegmentFound,
    SideFile, lane_of,
};
pub use scan::{Proposed, ScanRef, ScanReport, ScanRequest, ScanShard, Scope, Trigger};
pub use subscriber::{
    HedwigHub, HedwigPointer, HedwigRange, HedwigTopic, History, Log, Mark, Protection, Stood, Subscriber,
    SubscriberCandidate, SubscriberClass, split_subscriber, subscriber_subject,
};
pub use survey::{Comparison, Kept, Missing, SurveyReport, Unread};
