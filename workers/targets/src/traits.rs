//! What a target can do for the workers.

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use trimtab_events::{Candidate, Decision, LedgerCandidate, Position, Scope, SurveyReport, TopicState, Verdict};

use crate::error::{Class, Result, TargetError};
use crate::finding::Finding;

/// A part of a target that is scanned, and resumed, as a whole. For Pulsar a namespace, `tenant/namespace`.
pub type Shard = String;

/// Which of the parts that cost further reads are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reads {
    /// The last ledger's own metadata.
    pub last: bool,
    /// The cursors.
    pub cursors: bool,
    /// The number of partitions.
    pub partition: bool,
    /// Its subscribers are candidates of their own.
    pub subscribers: bool,
}

impl Reads {
    /// Everything.
    pub const ALL: Reads = Reads { last: true, cursors: true, partition: true, subscribers: false };
}

/// Says what else is worth reading of a topic, given what was read so far. Called again after each further read.
pub type ReadsOf<'a> = &'a (dyn Fn(&LedgerCandidate) -> Reads + Send + Sync);

/// One thing that a scan of a shard found.
#[derive(Debug)]
pub enum Item {
    /// Something that may be reclaimed, or not.
    Candidate(Candidate),
    /// Something in the shard could not be read; what it is and why. The shard is not complete.
    Problem(String),
    /// What a survey of all ledgers found besides candidates. Comes last.
    Surveyed(Box<SurveyReport>),
}

/// Streams what exists, with evidence; reads only.
pub trait Inventory: Send + Sync {
    /// What identifies the cluster, for plans and records.
    fn identity(&self) -> BoxFuture<'_, Result<String>>;
    /// The shards in a scope, in order.
    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<Shard>>>;
    /// Everything in one shard that is also in the scope. An error ends it: the shard is to be scanned again.
    fn scan<'a>(&'a self, shard: &'a str, scope: &'a Scope, reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>>;
    /// What the subject of a decision is about again, with everything: for that of a subscriber its whole log. `None` when it does not
    /// exist.
    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>>;
    /// Follows changes from now on.
    ///
    /// # Errors
    /// When the target cannot tell of them, or does not let us listen.
    fn follow(&self) -> BoxFuture<'_, Result<Box<dyn Changes>>> {
        let why = "only Pulsar's metadata in ZooKeeper tells what changes; leave out --follow, and scan every so often";
        Box::pin(futures::future::ready(Err(TargetError::new(Class::Invalid, "following changes", why))))
    }
    /// Metadata operations made so far.
    fn operations(&self) -> u64;
    /// Whether it can be read at present, as far as the connections tell: asks nothing.
    ///
    /// # Errors
    /// Why not.
    fn reachable(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(futures::future::ready(Ok(())))
    }
    /// What can be said of the metadata before it is scanned: whether it is there, and may be read. Reads a few nodes.
    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(futures::future::ready(Vec::new()))
    }
}

/// Something that changed in a target, as far as it is worth another look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One topic, by its canonical name, of this shard. It may be gone.
    Topic {
        /// The shard.
        shard: Shard,
        /// The topic.
        subject: String,
    },
    /// A topic with all its partitions, by the name that stands for all of them.
    Group {
        /// The shard.
        shard: Shard,
        /// The topic.
        subject: String,
    },
    /// Everything in a shard.
    Shard(Shard),
    /// Changes may have been missed from here on, and why. Nothing comes after it.
    Missed(String),
}

/// Tells of changes from the moment on at which it was made.
pub trait Changes: Send {
    /// The next one; waits for it. May be dropped at any await point without losing one.
    fn next(&mut self) -> BoxFuture<'_, Change>;
}

/// Whether anything may be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Only look.
    #[default]
    DryRun,
    /// Act.
    Apply,
}

/// Leave to act. There is one maker, and it answers only in [`Mode::Apply`]: no act can be called from a dry run.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// A permit, if the mode is to act.
    pub fn for_mode(mode: Mode) -> Option<Permit> {
        (mode == Mode::Apply).then_some(Permit(()))
    }
}

/// What an act did, as far as the answers to its calls say. What it freed is judged by reading the target again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// Nothing was done, and why: what was decided on is not so any more.
    pub skipped: Option<Skipped>,
    /// The metadata did not show it within the time allowed: pending, not failed.
    pub pending: bool,
    /// The topic was closed again.
    pub unloaded: bool,
    /// How far a subscriber was to be moved in the end: to where was decided, or less far for a reason that a note gives.
    pub aim: Option<Position>,
    /// Where it stood when the act let it go, if the act could tell. Can lie beyond the aim, over what was consumed one by one.
    pub left_at: Option<Position>,
    /// Where the owner stands with a subscriber that was not moved because that is further than its metadata says: it took messages at some
    /// time before this visit. The same place at a later one means none since.
    pub stood_at: Option<u64>,
    /// Bytes that the target gave back, where the act could measure that closer to its call than a look before and after can.
    pub freed_bytes: Option<i64>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Name of the reason, as in outcomes: `online`, `gone`, `changed`.
    pub rule: &'static str,
    /// For a person.
    pub says: String,
    /// It was a sign of life of the subscriber.
    pub alive: bool,
}

/// Takes down what must be on disk before an act goes on.
pub trait Record: Send + Sync {
    /// Evidence that the act is about to erase, or that taking it back needs. It is on disk when this returns; without that the act
    /// must not go on.
    fn record(&self, evidence: serde_json::Value) -> BoxFuture<'_, Result<()>>;
}

/// An act that is to be taken back, from the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    /// What was carried out.
    pub decision: Decision,
    /// How it was before.
    pub before: Option<TopicState>,
    /// How it was right after.
    pub after: Option<TopicState>,
    /// What the act took down on its way, in order.
    pub evidence: Vec<serde_json::Value>,
}

impl Undo {
    /// Why an act of this kind cannot be taken back, where a target has no way.
    pub fn impossible(&self) -> TargetError {
        let Decision { verdict, subject, .. } = &self.decision;
        let why = match verdict {
            Verdict::Consume => "the owner knows no way to move a subscriber back",
            Verdict::DeleteSubscription => "the subscription is gone, and its position with it",
            Verdict::Mark => "nothing was done to it; `trimtab protect` keeps it from being acted on",
            _ => "what a trim frees is gone for good",
        };
        TargetError::new(Class::Invalid, format!("taking back {verdict} on {subject}"), why)
    }
}

/// Carries out decisions through the owner.
pub trait Act: Send + Sync {
    /// Carries out one decision, which the caller has checked on `seen` a moment ago. Returns once the metadata shows the
    /// effect, or the time allowed for that is over.
    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        record: &'a dyn Record,
        permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>>;

    /// Puts back what an act of this decision may have left changed besides its purpose when it was cut off: for Pulsar, closes the
    /// topic. Asked for after a restart, where `seen` shows that there is something to put back. Most acts leave nothing.
    fn tidy<'a>(
        &'a self,
        _decision: &'a Decision,
        _seen: &'a Candidate,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        Box::pin(futures::future::ready(Ok(Effect::default())))
    }

    /// What can be said of the owners before anything is carried out: whether they can be reached, and let us in. Changes nothing.
    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        Box::pin(futures::future::ready(Vec::new()))
    }

    /// Takes an act back, while what it needs for that exists. Most acts cannot be.
    fn undo<'a>(
        &'a self,
        undo: &'a Undo,
        _record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        Box::pin(futures::future::ready(Err(undo.impossible())))
    }
}
