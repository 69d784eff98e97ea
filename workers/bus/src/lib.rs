//! What workers use to talk to each other and to remember small things: the [`Bus`] and the [`Store`].
//!
//! Both come twice, with the same semantics and the same conformance suite (`tests/bus.rs`): in one process
//! ([`InProcess`], [`SqliteStore`]) and over NATS ([`JetStream`], [`KvStore`]). No worker knows which it has.
//!
//! No event is the only record of anything: targets hold the truth and scans repeat. A lost event is a delay of one scan,
//! an event that comes twice is found to be done already.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod in_process;
#[cfg(feature = "nats")]
mod jetstream;
#[cfg(feature = "nats")]
mod kv;
#[cfg(any(test, feature = "conformance"))]
mod memory;
mod names;
mod sqlite;

use std::time::Duration;

use futures::future::BoxFuture;
use trimtab_events::Event;

pub use in_process::InProcess;
#[cfg(feature = "nats")]
pub use jetstream::{Connection, Credentials, Definition, Glance, JetStream, NatsOptions, Tls};
#[cfg(feature = "nats")]
pub use kv::KvStore;
#[cfg(any(test, feature = "conformance"))]
pub use memory::MemoryStore;
pub use names::MAX_VALUE_BYTES;
pub use sqlite::{SqliteStore, wall_clock_ms};

/// Who takes events. Each role of [`Role::ALL`] has one queue, which all its workers share; those of [`Role::LANED`] have one for
/// each lane ([`Bus::take_lane`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Takes scan requests, and shards of scans.
    Scanner,
    /// Takes candidates.
    Decider,
    /// Takes decisions.
    Executor,
    /// Takes outcomes and scan reports.
    Audit,
    /// Takes segments to verify, of the log dirs it sees: one lane each.
    Recovery,
    /// Takes what the former say, for the log dirs whose locks it holds.
    Finisher,
}

impl Role {
    /// Those with one queue.
    pub const ALL: [Role; 4] = [Role::Scanner, Role::Decider, Role::Executor, Role::Audit];

    /// Those with one queue for each lane. An event's lane is its target.
    pub const LANED: [Role; 2] = [Role::Recovery, Role::Finisher];

    /// The role's name in subjects, consumers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Role::Scanner => "scanner",
            Role::Decider => "decider",
            Role::Executor => "executor",
            Role::Audit => "audit",
            Role::Recovery => "recovery",
            Role::Finisher => "finisher",
        }
    }

    /// The role whose queue an event of this type belongs to.
    pub fn of(event: &Event) -> Option<Role> {
        match &*event.kind {
            "dev.trimtab.scan.request.v1" | "dev.trimtab.scan.shard.v1" => Some(Role::Scanner),
            "dev.trimtab.candidate.ledger.v1"
            | "dev.trimtab.candidate.subscriber.v1"
            | "dev.trimtab.candidate.orphan.v1" => Some(Role::Decider),
            "dev.trimtab.decision.v1" => Some(Role::Executor),
            "dev.trimtab.outcome.v1" | "dev.trimtab.notice.v1" | "dev.trimtab.scan.report.v1" => Some(Role::Audit),
            "dev.trimtab.recovery.outcome.v1" => Some(Role::Audit),
            "dev.trimtab.recovery.segment.v1" => Some(Role::Recovery),
            "dev.trimtab.recovery.report.v1" => Some(Role::Finisher),
            _ => None,
        }
    }
}

/// What became of a published event. All three are success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// Stored.
    Stored,
    /// An event with this id was stored before, inside the de-duplication window.
    Duplicate,
    /// A decision for this key is outstanding already (delivered or not): at most one act per resource.
    Outstanding,
}

/// Why the bus or the store did not do something.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The queue is full. Slow down and try again.
    #[error("queue {queue} is full")]
    Full {
        /// The queue.
        queue: String,
    },
    /// The other side did not answer, or not in time. Try again.
    #[error("{what}: {why}")]
    Unavailable {
        /// What was attempted, on what.
        what: String,
        /// Why it failed.
        why: String,
    },
    /// The server refuses this client. A person must change something.
    #[error("{what}: refused: {why}")]
    Refused {
        /// What was attempted, on what.
        what: String,
        /// Why it was refused, and what to do.
        why: String,
    },
    /// The event cannot be sent as it is.
    #[error("event {id} cannot be sent: {why}")]
    Unfit {
        /// Its id.
        id: String,
        /// Why.
        why: String,
    },
    /// The document changed since it was read.
    #[error("document {bucket}/{key} is not at the expected revision")]
    Conflict {
        /// The bucket.
        bucket: String,
        /// The key.
        key: String,
    },
    /// The bus was closed.
    #[error("the bus is closed")]
    Closed,
}

/// Result with a [`BusError`].
pub type Result<T> = std::result::Result<T, BusError>;

/// The queues between workers.
///
/// An event that is taken stays with its taker for the acknowledgement time (`ack_wait`, 60 s by default; extended by
/// [`Settle::working`]) and is delivered again after it. It is gone after [`Settle::done`] or [`Settle::dead`].
pub trait Bus: Send + Sync {
    /// Returns once the event is stored (in process: queued). Waits while the queue is full, and fails with
    /// [`BusError::Full`] only after `full_wait`.
    fn publish<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Result<Published>>;

    /// Publishes several events that do not depend on each other; what became of each, in their order. A bus that sends them
    /// together spares most of what sending one costs.
    fn publish_all<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Vec<Result<Published>>> {
        Box::pin(futures::future::join_all(events.iter().map(|event| self.publish(event))))
    }

    /// The next event for `role`; waits for one. May be dropped and called again at any await point without losing one.
    fn take(&self, role: Role) -> BoxFuture<'_, Result<Delivery>>;

    /// As [`Bus::take`], for a role of [`Role::LANED`]: the next event of one lane.
    fn take_lane<'a>(&'a self, role: Role, lane: &'a str) -> BoxFuture<'a, Result<Delivery>>;

    /// How many events wait or are outstanding for `role`, in all its lanes.
    fn depth(&self, role: Role) -> BoxFuture<'_, Result<u64>>;

    /// Events that were given up, newest last, at most `limit`.
    fn dead(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>>>;

    /// One of them.
    fn letter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<DeadLetter>>>;

    /// Puts what a dead letter holds into its queue again, whatever de-duplication remembers of it, and takes the letter away. `None` when
    /// there is no such letter; it stays when another decision for its key is outstanding. Fails with [`BusError::Unfit`] when what was
    /// given up is no event.
    fn retry<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Published>>>;

    /// Takes a dead letter away for good. False when there is none.
    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Stops handing out events: waiting [`Bus::take`] calls end with [`BusError::Closed`]. What is outstanding may still be
    /// settled.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// One event, taken.
pub struct Delivery {
    /// The event, or the bytes that are none and why.
    pub event: std::result::Result<Event, Malformed>,
    /// How often it was delivered, this time included, as far as the bus knows.
    pub tries: u64,
    /// How to settle it.
    pub settle: Box<dyn Settle>,
}

/// Bytes that are not an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Why they are not an event.
    pub why: String,
}

/// Settles one delivery. Each of the three ends it; the last call wins nothing: they take the delivery.
pub trait Settle: Send + Sync {
    /// It was handled, and whatever came of it is stored.
    fn done(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
    /// Deliver it again, not before `after`.
    fn again(self: Box<Self>, after: Duration) -> BoxFuture<'static, Result<()>>;
    /// Give it up: to the dead letters with the reason, and away from the queue.
    fn dead(self: Box<Self>, why: String) -> BoxFuture<'static, Result<()>>;
    /// Still at work: starts the acknowledgement time anew.
    fn working(&self) -> BoxFuture<'_, Result<()>>;
}

/// An event that was given up.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeadLetter {
    /// What it is known by, as long as it is kept.
    #[serde(default)]
    pub id: String,
    /// The role that gave it up.
    pub role: String,
    /// Why.
    pub why: String,
    /// How often it was tried.
    pub tries: u64,
    /// When, milliseconds since 1970.
    pub at_ms: i64,
    /// The event as it was, or base64 of the bytes where it was none.
    pub event: String,
}

/// Numbers that the two implementations share. Every one is a limit or a time.
#[derive(Debug, Clone)]
pub struct BusOptions {
    /// How long a taken event stays with its taker.
    pub ack_wait: Duration,
    /// How often an event is delivered before the bus gives it up by itself.
    pub max_deliver: u64,
    /// Events a queue holds, outstanding ones included, before [`Bus::publish`] waits.
    pub queue_events: u64,
    /// Bytes a queue holds, counted the same way. An event may have half a megabyte, so their number alone bounds nothing.
    pub queue_bytes: u64,
    /// How long [`Bus::publish`] waits for room.
    pub full_wait: Duration,
    /// How long ids are remembered.
    pub duplicate_window: Duration,
    /// Events of one role outstanding at once, over all its workers. Of scanners all may be: requests that wait for the end of a scan are
    /// outstanding, and must not keep back the shards that it waits for.
    pub max_outstanding: u64,
}

impl BusOptions {
    /// How many events of a role may be outstanding.
    fn outstanding(&self, role: Role) -> u64 {
        match role {
            Role::Scanner => self.queue_events.max(self.max_outstanding).max(1),
            _ => self.max_outstanding.max(1),
        }
    }
}

impl Default for BusOptions {
    fn default() -> Self {
        BusOptions {
            ack_wait: Duration::from_secs(60),
            max_deliver: 10,
            queue_events: 10_000,
            queue_bytes: 256 * 1024 * 1024,
            full_wait: Duration::from_secs(600),
            duplicate_window: Duration::from_secs(120),
            max_outstanding: 1_000,
        }
    }
}

/// A document of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its key.
    pub key: String,
    /// Its content.
    pub value: Vec<u8>,
    /// Grows with every write of any document in the bucket.
    pub revision: u64,
}

/// What a write expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything.
    Anything,
    /// No such document.
    Absent,
    /// The document at this revision.
    Revision(u64),
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What is leased.
    pub name: String,
    /// Fencing number: greater than that of every lease of this name before it.
    pub fence: u64,
    /// Revision of its last renewal.
    pub revision: u64,
    /// How long it lasts from each renewal.
    pub ttl: Duration,
}

/// Small documents that the workers of a cluster share: scan checkpoints, gates, counters, revisits, leases.
///
/// Buckets (`lease` is taken) and keys are of `[A-Za-z0-9_-]` and, in keys, `.` and `/` between non-empty parts; a value has at most 512 KiB.
pub trait Store: Send + Sync {
    /// The document, if it exists.
    fn get<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Document>>>;
    /// Writes it if what is there is as expected; its new revision. [`BusError::Conflict`] otherwise.
    fn put<'a>(&'a self, bucket: &'a str, key: &'a str, value: &'a [u8], expect: Expect) -> BoxFuture<'a, Result<u64>>;
    /// Removes it if what is there is as expected.
    fn delete<'a>(&'a self, bucket: &'a str, key: &'a str, expect: Expect) -> BoxFuture<'a, Result<()>>;
    /// Documents whose key begins with `prefix`, in order of key, after `after`, at most `limit`.
    fn list<'a>(
        &'a self,
        bucket: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Document>>>;
    /// Takes the lease if nobody holds it.
    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, ttl: Duration) -> BoxFuture<'a, Result<Option<Lease>>>;
    /// Renews it; [`BusError::Conflict`] when it was lost.
    fn renew<'a>(&'a self, lease: &'a mut Lease, holder: &'a str) -> BoxFuture<'a, Result<()>>;
    /// Gives it up; nothing happens when it was lost.
    fn release(&self, lease: Lease) -> BoxFuture<'_, Result<()>>;
}
