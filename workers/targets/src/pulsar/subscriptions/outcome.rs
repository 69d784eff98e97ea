//! What is asked for, what becomes of it, and who is told meanwhile.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use trimtab_events::{Position, Seen};

use crate::error::Result;
use crate::pulsar::metadata::Hole;
use crate::pulsar::{ConnectedConsumer, CursorNode, TopicName};

/// One subscription of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscriber {
    /// The topic; of a partitioned one, the partition.
    pub topic: TopicName,
    /// Plain name of the subscription.
    pub subscription: String,
    /// Its cursor's node, as it was decided on.
    pub cursor: Seen,
    /// A broker had the topic loaded, so it is not ours to close.
    pub loaded: bool,
}

/// An act that moves a subscription on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consume {
    /// Which.
    pub subscriber: Subscriber,
    /// Up to and including this entry, and no further.
    pub up_to: Position,
    /// What is to go then.
    pub trim: Trim,
}

/// An act that deletes a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// Which.
    pub subscriber: Subscriber,
    /// What is to go then.
    pub trim: Trim,
}

/// What is to go once a subscription has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Trim {
    /// Nothing is asked for.
    #[default]
    Nothing,
    /// Whatever can: others that must move too may have moved by now, or not.
    Whatever,
    /// These ledgers; the metadata is looked at until they are gone.
    These(Vec<i64>),
}

/// An act that puts a subscription back to where an earlier one found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// Which. Of the node only what says that it is the same one counts: acts write it.
    pub subscriber: Subscriber,
    /// Where the earlier act left it; anywhere from the entry before `resume_at` on when that is not known. A subscription that has
    /// moved since is in use.
    pub left_at: Option<Position>,
    /// The first entry that is to be delivered again: [`Standing::resume_at`].
    pub resume_at: Position,
    /// What was acknowledged beyond that: [`CursorInfo::holes`](super::metadata::CursorInfo::holes) of [`Standing::node`].
    pub holes: Vec<Hole>,
}

/// What became of an act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was carried out.
    Done(T),
    /// A consumer is connected, or wants to connect: a sign of life.
    Online(Online),
    /// It was not carried out, since what was decided on is not so any more.
    Skipped(Skip),
}

/// A sign of life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Online {
    /// The consumers, if the topic's statistics name them.
    pub who: Vec<ConnectedConsumer>,
    /// How it showed.
    pub how: String,
}

/// Why an act was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// There is no such subscription, or topic.
    #[error("the subscription is gone")]
    Gone,
    /// There is one of that name, made anew.
    #[error("the subscription was deleted and made anew")]
    MadeAnew,
    /// Its cursor's node was written since the decision.
    #[error("the subscription's cursor was written since it was decided on (version {0} then, {1} now)")]
    Written(i32, i32),
    /// It went away at the last moment and the attach created it again; that one was removed.
    #[error("the subscription went away meanwhile; the attach created it again, and that one was removed")]
    CreatedAndRemoved,
    /// The same, but removing it failed. It lies at the end of the topic, and has the property [`CREATED_BY`](super::CREATED_BY).
    #[error(
        "the subscription went away meanwhile; the attach created it again, and that one could not be removed: {0}"
    )]
    CreatedAndLeft(String),
    /// It is there already.
    #[error("the subscription is at {0} already")]
    Already(Position),
    /// It has moved since the decision, or since the act that is to be undone.
    #[error("the subscription is at {0} by now, not where it stood: it is in use")]
    Moved(Position),
    /// There is no such entry, or none that can be delivered yet.
    #[error("{0}")]
    NoSuchEntry(String),
    /// It is never touched.
    #[error("{0}")]
    Protected(String),
}

/// How a subscription stands while nobody else can move it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its cursor's node, read after the attach.
    pub node: CursorNode,
    /// Everything up to and including this is acknowledged: as the broker has it, or the node if the broker does not say.
    pub mark_delete: Position,
    /// The first entry after that; what [`Restore::resume_at`] wants. None when the list of ledgers cannot tell.
    pub resume_at: Option<Position>,
    /// The last entry that can be delivered now.
    pub last: Option<Position>,
}

/// What an act has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acted {
    /// How the subscription stood before.
    pub before: Standing,
    /// The entry up to which was acknowledged: what was decided on, or before that so as to cut no message in chunks in two.
    pub up_to: Option<Position>,
    /// Where it stands by the broker's word; none when the broker did not say, or it was deleted. Can lie beyond `up_to`, over
    /// entries that had been acknowledged one by one.
    pub now: Option<Position>,
    /// Its cursor's node, if that shows it by now.
    pub node: Option<CursorNode>,
    /// The metadata does not show it yet: of a topic that stays loaded, or whose ledgers are not gone.
    pub pending: bool,
    /// The topic was closed again.
    pub unloaded: bool,
    /// How long nobody else could connect.
    pub attached: Duration,
    /// What a person should know.
    pub notes: Vec<String>,
}

impl Acted {
    pub(super) fn new(before: Standing, up_to: Option<Position>) -> Acted {
        let (node, now, attached) = (None, None, Duration::ZERO);
        Acted { before, up_to, now, node, pending: false, unloaded: false, attached, notes: Vec::new() }
    }
}

/// What is about to be done.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// A broker is asked about the topic, which loads it.
    Ask,
    /// Attach.
    Attach,
    /// Acknowledge up to this. What is not recorded by now is lost.
    Acknowledge(&'a Standing, Position),
    /// Delete.
    Delete(&'a Standing),
    /// Put back, to deliver this next.
    PutBack(&'a Standing, Position),
    /// Detach.
    Detach,
}

/// Is told of each step before it is taken. An error ends the act there, with nothing left behind.
pub trait Steps: Send + Sync {
    /// See the trait.
    fn before<'a>(&'a self, step: Step<'a>) -> BoxFuture<'a, Result<()>>;
}

/// Is told and does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Steps for Unwatched {
    fn before<'a>(&'a self, _step: Step<'a>) -> BoxFuture<'a, Result<()>> {
        std::future::ready(Ok(())).boxed()
    }
}
