//! Acts on subscriptions: move one up to a fixed entry, delete one, put one back.
//!
//! Every act attaches to the subscription first, exclusively and without taking messages. The broker refuses that while any consumer
//! is connected, and refuses every consumer for as long as it lasts: the owner has the last word. What is sent then is sent on
//! that attachment, and the broker drops it if the attachment is gone by then.
//!
//! The order of an act, and what each part is for:
//! 1. The cursor's node: the same node, in the same version, as was decided on.
//! 2. The topic's statistics, from its owner: nobody connected. An exclusive attach alone does not do, for it takes the place of
//!    an exclusive consumer that does not answer the broker's probe within 5 s, a paused one for instance. It also gives the
//!    topic an owner by way of the admin API: a look-up of the binary protocol that did so would load the topic's whole bundle.
//! 3. The attach, with a property that no other client sets: a subscription that went away only a moment ago is created by it, and
//!    is known by that property and removed again. One that takes long is given up, for the reason of 2.
//! 4. The cursor's node again, as of now: the same node still.
//! 5. Where the topic ends and how far the subscription really is, from the broker's memory: the node may say less. Unless it says that
//!    it does, the two are the same, or somebody was there after 1 and has left again.
//! 6. The acknowledgement, then 5 again: its answer says neither that it was heeded nor that it is stored.
//! 7. Detached; once the broker has begun to store it, trimmed, closed, and judged by the cursor's node.

mod boundary;
mod hold;
mod outcome;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;
use trimtab_events::Position;

use self::hold::{Going, Held, Left, interrupted};
pub use self::outcome::{
    Acted, Consume, Delete, Online, Outcome, Restore, Skip, Standing, Step, Steps, Subscriber, Trim, Unwatched,
};
use super::act::ActOptions;
use super::admin::Admin;
use super::attach::Binary;
use super::backlog::{Place, Row, entries_of};
use super::inventory::{CursorNode, PulsarInventory};
use super::metadata::Hole;
use super::visit;
use super::wire::{LastMessage, WireError};
use crate::Permit;
use crate::error::{Class, Result, TargetError};

/// The property by which a subscription is known that an attach has created. Its value is the attach's own.
pub const CREATED_BY: &str = "trimtab.attach";
/// Entries that are acknowledged one by one when a subscription is put back; the most, and at once.
const RESTORED_HOLES: usize = 10_000;
const ACKS_AT_ONCE: usize = 1_000;

/// Numbers of the acts.
#[derive(Debug, Clone)]
pub struct SubscriptionOptions {
    /// How long the metadata is looked at.
    pub times: ActOptions,
    /// An attach that takes longer is given up: the broker may have waited for a consumer that did not answer. Shorter than the
    /// brokers' `connectionLivenessCheckTimeoutMillis` (5 s).
    pub prompt: Duration,
}

impl Default for SubscriptionOptions {
    fn default() -> Self {
        SubscriptionOptions { times: ActOptions::default(), prompt: Duration::from_secs(3) }
    }
}

/// Acts on subscriptions.
pub struct Subscriptions {
    admin: Arc<Admin>,
    binary: Arc<Binary>,
    inventory: Arc<PulsarInventory>,
    options: SubscriptionOptions,
    made: AtomicU64,
}

impl Subscriptions {
    /// Acts through `admin` and `binary`, looking at the metadata through `inventory`.
    pub fn new(
        admin: Arc<Admin>,
        binary: Arc<Binary>,
        inventory: Arc<PulsarInventory>,
        options: SubscriptionOptions,
    ) -> Subscriptions {
        Subscriptions { admin, binary, inventory, options, made: AtomicU64::new(0) }
    }

    /// Acknowledges a subscription up to an entry.
    ///
    /// # Errors
    /// When something could not be read, or a broker does not answer or refuses. Whether it was carried out is then to be seen in
    /// the metadata, where the error says that it is not known.
    pub async fn consume(&self, job: &Consume, steps: &dyn Steps, _permit: &Permit) -> Result<Outcome<Acted>> {
        let mut visited = false;
        let acted = self.try_consume(job, steps, &mut visited).await;
        // What the act itself aimed at may lie before what was decided on.
        let aim = acted.as_ref().ok().and_then(|acted| acted.up_to).unwrap_or(job.up_to);
        self.settle(&job.subscriber, acted, visited, &job.trim, |node| node.info.mark_delete >= aim).await
    }

    /// Deletes a subscription, while it is sure that nobody is connected.
    ///
    /// # Errors
    /// As [`Subscriptions::consume`].
    pub async fn delete(&self, job: &Delete, steps: &dyn Steps, _permit: &Permit) -> Result<Outcome<Acted>> {
        let mut visited = false;
        let acted = self.try_delete(job, steps, &mut visited).await;
        self.settle(&job.subscriber, acted, visited, &job.trim, |_| false).await
    }

    /// Puts a subscription back to where an earlier act found it, while the data is there.
    ///
    /// # Errors
    /// As [`Subscriptions::consume`].
    pub async fn restore(&self, job: &Restore, steps: &dyn Steps, _permit: &Permit) -> Result<Outcome<Acted>> {
        let mut visited = false;
        let acted = self.try_restore(job, steps, &mut visited).await;
        let shows = |node: &CursorNode| node.info.mark_delete < job.resume_at;
        self.settle(&job.subscriber, acted, visited, &Trim::Nothing, shows).await
    }

    async fn try_consume(&self, job: &Consume, steps: &dyn Steps, visited: &mut bool) -> Going<Acted> {
        let found = self.same(&job.subscriber, true).await?;
        if found.info.mark_delete >= job.up_to {
            return Err(Skip::Already(found.info.mark_delete).into());
        }
        let mut held = self.hold(&job.subscriber, steps, visited).await?;
        let consumed = self.consume_held(job, &found, &mut held, steps).await;
        held.let_go(steps, consumed).await
    }

    async fn consume_held(
        &self,
        job: &Consume,
        found: &CursorNode,
        held: &mut Held,
        steps: &dyn Steps,
    ) -> Going<Acted> {
        let what = || job.subscriber.what(&format!("acknowledging up to {} for", job.up_to));
        let at = held.standing.mark_delete;
        if at >= job.up_to {
            return Err(Skip::Already(at).into());
        }
        held.unmoved(found)?;
        held.deliverable(job.up_to)?;
        let (up_to, moved) = self.whole_messages(&job.subscriber, held, job.up_to).await?;
        if at >= up_to {
            return Err(Skip::NoSuchEntry(format!("all of it up to {} is one message in chunks", job.up_to)).into());
        }
        steps.before(Step::Acknowledge(&held.standing, up_to)).await?;
        let mut acted = Acted::new(held.standing.clone(), Some(up_to));
        acted.notes.extend(moved);
        match held.attachment.acknowledge(up_to).await {
            Ok(()) => match held.attachment.last_message().await {
                Ok(LastMessage { mark_delete: Some(position), .. }) if position < up_to => {
                    let why = format!("the broker has heard it, and has the subscription at {position} still");
                    return Err(TargetError::new(Class::Transient, what(), why).into());
                }
                Ok(LastMessage { mark_delete, .. }) => acted.now = mark_delete,
                Err(e) => acted.notes.push(format!("what the broker made of it could not be asked: {e}")),
            },
            Err(e) if may_be_done(&e) => acted.notes.push(format!("no answer to the acknowledgement came: {e}")),
            Err(e) => return Err(interrupted(what(), e)),
        }
        Ok(acted)
    }

    async fn try_delete(&self, job: &Delete, steps: &dyn Steps, visited: &mut bool) -> Going<Acted> {
        let found = self.same(&job.subscriber, true).await?;
        let mut held = self.hold(&job.subscriber, steps, visited).await?;
        let deleted = async {
            held.unmoved(&found)?;
            steps.before(Step::Delete(&held.standing)).await?;
            let mut acted = Acted::new(held.standing.clone(), None);
            match held.attachment.unsubscribe().await {
                Ok(()) => {}
                Err(e) if may_be_done(&e) => acted.notes.push(format!("no answer to the deletion came: {e}")),
                Err(e) => return Err(interrupted(job.subscriber.what("deleting"), e)),
            }
            Ok(acted)
        };
        let deleted = deleted.await;
        held.let_go(steps, deleted).await
    }

    async fn try_restore(&self, job: &Restore, steps: &dyn Steps, visited: &mut bool) -> Going<Acted> {
        self.same(&job.subscriber, false).await?;
        let mut held = self.hold(&job.subscriber, steps, visited).await?;
        let row = held.row.clone();
        let put_back = put_back(job, &mut held, steps).await;
        let mut acted = held.let_go(steps, put_back).await?;
        // It is done; whoever connects now has what is owed. What follows looks, and spares messages a second delivery.
        let mut held = match self.hold(&job.subscriber, &Unwatched, visited).await {
            Ok(held) => held,
            Err(left) => {
                acted.notes.push(match left {
                    Left::Online(_) => "a consumer has connected since".to_owned(),
                    Left::Skipped(skip) => format!("after it was put back: {skip}"),
                    Left::Failed(e) => format!("it was put back; looking at it again failed: {e}"),
                });
                return Ok(acted);
            }
        };
        let at = held.standing.mark_delete;
        acted.now = Some(at);
        if row.row().after(at) == Some(job.resume_at) {
            acted.notes.extend(fill(&mut held, &row.row(), &job.holes).await);
            return held.let_go(&Unwatched, Ok(acted)).await;
        }
        let why = format!("the broker has heard it, and has the subscription at {at}");
        let what = job.subscriber.what(&format!("putting back to {}", job.resume_at));
        held.let_go(&Unwatched, Err(TargetError::new(Class::Transient, what, why).into())).await
    }

    /// Trims if something is to go, closes the topic again, and looks at the metadata for the effect.
    async fn settle(
        &self,
        subscriber: &Subscriber,
        acted: Going<Acted>,
        visited: bool,
        trim: &Trim,
        shows: impl Fn(&CursorNode) -> bool,
    ) -> Result<Outcome<Acted>> {
        let topic = &subscriber.topic;
        let mut acted = acted;
        if let Ok(acted) = &mut acted {
            self.wait_until_stored(subscriber, acted).await;
        }
        let trimmed = match (&acted, trim) {
            // Again and again: a trim looks at the position that is stored, and that is a moment behind what the broker says.
            (Ok(_), Trim::These(ledgers)) if !ledgers.is_empty() => {
                visit::trim(&self.admin, &self.inventory, &self.options.times, topic, ledgers, true).await
            }
            (Ok(_), Trim::Whatever) => self.admin.trim(topic).await.map(|()| true),
            _ => Ok(true),
        };
        // Also after a failure: it may have loaded the topic, and a loaded topic without subscriptions is deleted whole by the broker
        // after a minute.
        let mut closed = (false, None);
        if visited && !subscriber.loaded {
            closed = self.admin.close(topic).await;
        }
        let mut acted = match acted {
            Ok(acted) => acted,
            Err(Left::Online(online)) => return Ok(Outcome::Online(online)),
            Err(Left::Skipped(skip)) => return Ok(Outcome::Skipped(skip)),
            Err(Left::Failed(e)) => return Err(e),
        };
        acted.unloaded = closed.0;
        acted.notes.extend(closed.1);
        match trimmed {
            Ok(true) => {}
            Ok(false) => {
                acted.pending = true;
                acted.notes.push("not all ledgers that were to go are gone yet".to_owned());
            }
            // The subscription has moved, which that does not undo.
            Err(e) => {
                acted.pending = true;
                acted.notes.push(format!("the trim failed: {e}"));
            }
        }
        self.judge(subscriber, &mut acted, shows).await;
        Ok(Outcome::Done(acted))
    }

    /// Waits while acknowledgements of the subscription wait for a new cursor ledger, as the first one after a load does. The broker
    /// has them in its memory, and forgets them when the topic is closed meanwhile.
    async fn wait_until_stored(&self, subscriber: &Subscriber, acted: &mut Acted) {
        let deadline = Instant::now() + self.options.times.settle;
        loop {
            match self.admin.cursor_switches(&subscriber.topic, &subscriber.subscription).await {
                Ok(false) => return,
                Ok(true) if Instant::now() < deadline => tokio::time::sleep(self.options.times.look_every).await,
                Ok(true) => {
                    acted.notes.push("the broker has not stored the position yet".to_owned());
                    return;
                }
                Err(e) => {
                    acted.notes.push(e.to_string());
                    return;
                }
            }
        }
    }

    /// Looks at the cursor's node until it shows the effect. That of a topic that stays loaded is not waited for: its broker writes
    /// it when the topic is closed, or hours later.
    async fn judge(&self, subscriber: &Subscriber, acted: &mut Acted, shows: impl Fn(&CursorNode) -> bool) {
        let times = &self.options.times;
        let deadline = Instant::now() + times.settle;
        let mut wait = times.look_every;
        loop {
            let node = self.inventory.cursor(&subscriber.topic, &subscriber.subscription).await;
            let same = |node: &CursorNode| node.seen.created_zxid == subscriber.cursor.created_zxid;
            match node {
                Ok(None) => return,
                Ok(Some(node)) if !same(&node) => {
                    acted.notes.push("there is a subscription of that name again, made since".to_owned());
                    return;
                }
                Ok(Some(node)) if shows(&node) => {
                    acted.node = Some(node);
                    return;
                }
                Ok(Some(_)) if acted.unloaded && Instant::now() + wait <= deadline => {}
                Ok(Some(_)) => {
                    let when = if acted.unloaded { "after the topic was closed" } else { "while the topic is loaded" };
                    acted.notes.push(format!("the cursor's node does not show it {when}"));
                    acted.pending = true;
                    return;
                }
                Err(e) => {
                    acted.notes.push(e.to_string());
                    acted.pending = true;
                    return;
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(1));
        }
    }
}

impl Subscriber {
    fn what(&self, doing: &str) -> String {
        format!("{doing} the subscription {:?} of {}", self.subscription, self.topic.subject())
    }
}

/// Whether a broker may have done what it was asked, for all that is known.
fn may_be_done(error: &WireError) -> bool {
    matches!(error, WireError::Ended(_) | WireError::NoAnswer(_) | WireError::Garbage(_))
}

/// Whether nothing lies between two positions. A load moves a cursor from the end of a ledger to the beginning of the next one: nobody
/// has taken anything then.
fn same_place(row: &Row<'_>, one: Position, other: Position) -> bool {
    one == other || row.after(other).is_some_and(|next| row.after(one) == Some(next))
}

async fn put_back(job: &Restore, held: &mut Held, steps: &dyn Steps) -> Going<Acted> {
    let owned = held.row.clone();
    let row = owned.row();
    // The broker would take whatever comes next, the very end of the topic if need be.
    if row.place(job.resume_at) == Place::Nowhere {
        return Err(Skip::NoSuchEntry(format!("the data from {} on is gone, or never was", job.resume_at)).into());
    }
    let at = held.standing.mark_delete;
    if row.after(at) == Some(job.resume_at) {
        return Err(Skip::Already(at).into());
    }
    if job.left_at.is_some_and(|left_at| !same_place(&row, left_at, at)) || at < job.resume_at {
        return Err(Skip::Moved(at).into());
    }
    steps.before(Step::PutBack(&held.standing, job.resume_at)).await?;
    let what = || job.subscriber.what(&format!("putting back to {}", job.resume_at));
    held.attachment.seek(job.resume_at).await.map_err(|e| interrupted(what(), e))?;
    Ok(Acted::new(held.standing.clone(), None))
}

/// Acknowledges one by one what was acknowledged beyond a position before. What a person should know.
async fn fill(held: &mut Held, row: &Row<'_>, holes: &[Hole]) -> Option<String> {
    let mut entries: Vec<Position> = Vec::new();
    for hole in holes {
        match entries_of(row, hole, RESTORED_HOLES - entries.len()) {
            Some(more) => entries.extend(more),
            None => {
                return Some(format!(
                    "more than {RESTORED_HOLES} entries had been acknowledged one by one: they are delivered again"
                ));
            }
        }
    }
    for some in entries.chunks(ACKS_AT_ONCE) {
        if let Err(e) = held.attachment.acknowledge_each(some).await {
            return Some(format!("entries that had been acknowledged one by one may be delivered again: {e}"));
        }
    }
    None
}
