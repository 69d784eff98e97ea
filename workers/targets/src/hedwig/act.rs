//! Moves the pointer of a subscriber that is offline up to a fixed message: attach, see where the hub stands, read the ledgers again,
//! consume and close in one write, and judge by the metadata.
//!
//! The order is what makes it safe. What can say no is asked before anything is attached; everything that was read before is read
//! again while the subscriber is ours; and between the last look and the write nothing is waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use trimtab_events::{Evidence, Position, Seen};

use super::client::{AttachError, Attached, Ending, First, Hubs};
use super::inventory::{HedwigInventory, Ownership, Release};
use super::topic::{Ledgers, Settings, TopicSubscriber, signed};
use super::znodes::{HubAddress, MessageId, Subscription};
use crate::error::{Class, Result, TargetError};
use crate::{Calls, Pace, Permit};

/// Times and rates of acts.
#[derive(Debug, Clone)]
pub struct ActOptions {
    /// How long a topic must have had its owner, or none, before anything is attached. After a hub died, or gave a topic up, an online
    /// subscriber comes back only with its client's next try (10 s with Hedwig's own), and until then anybody can attach in its place.
    pub settle: Duration,
    /// How long the first message may take once attached.
    pub first_delivery: Duration,
    /// How long the metadata may take to show a move. Hubs write at once, and answer before it is written.
    pub shown_within: Duration,
    /// Attachments started per second on each hub; 0 is no limit.
    pub attach_rate: f64,
    /// Attachments started per second, over all hubs, on topics that nobody owns: each makes a hub take the topic and start a ledger.
    pub acquire_rate: f64,
}

impl Default for ActOptions {
    fn default() -> Self {
        ActOptions {
            settle: Duration::from_secs(60),
            first_delivery: Duration::from_secs(2),
            shown_within: Duration::from_secs(5),
            attach_rate: 5.0,
            acquire_rate: 1.0,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub struct Move<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The subscriber.
    pub subscriber: &'a str,
    /// The version of its node that it was decided on.
    pub seen: Seen,
    /// The last message that may be consumed. Where the hub's ledgers allow less, less is consumed; never more.
    pub up_to: u64,
    /// Where an earlier visit, long enough ago, found the hub standing with it. A hub that stands further than the node says has seen the
    /// subscriber since the node was written, nobody knows when; the same place twice means that it was before the first visit.
    pub stood_at: Option<u64>,
    /// The hub that is likely to own the topic, for the limit of attachments on it.
    pub hub: Option<&'a str>,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The metadata shows it.
    Consumed,
    /// The hub took it and has not written it down: its `consume_interval` is larger than ours, or it goes on later.
    InMemoryOnly,
    /// It was sent, and whether it was carried out is not known.
    Uncertain(String),
    /// Somebody is attached. A sign of life.
    Online(String),
    /// The subscriber does not exist any more.
    Gone,
    /// Its node has changed since the decision. A sign of life, or a release of the topic.
    MovedOn,
    /// The hub has seen it take messages since its node was written. A sign of life, at a time that nobody knows.
    Ahead {
        /// Where the hub stands with it.
        stands: u64,
    },
    /// The hub has nothing to give to it: it has consumed everything.
    CaughtUpInHub,
    /// It would move by fewer messages than hubs write down.
    GapBelowInterval,
    /// No closed range of messages ends within the bound and beyond where it stands.
    NothingToFree,
    /// The topic changes its owner: it was another one after we had waited, or at the moment of attaching.
    Settling,
    /// The attachment ended before anything was sent.
    Lost(String),
    /// What is in the metadata cannot be read, so nothing is known.
    Unreadable(String),
    /// The owner has lost the topic. Nobody can publish or subscribe until that hub is restarted: somebody has to be told.
    Wedged(String),
    /// Another region's hub: it stands for all subscribers there.
    HubSubscriber,
}

impl Outcome {
    /// Whether nothing was sent that could have changed anything.
    pub fn unsent(&self) -> bool {
        !matches!(self, Outcome::Consumed | Outcome::InMemoryOnly | Outcome::Uncertain(_))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Consumed => f.write_str("consumed"),
            Outcome::InMemoryOnly => f.write_str("in memory only: the hub has taken it and not written it down"),
            Outcome::Uncertain(why) => write!(f, "uncertain: {why}"),
            Outcome::Online(why) => write!(f, "online: {why}"),
            Outcome::Gone => f.write_str("gone: the subscriber does not exist any more"),
            Outcome::MovedOn => f.write_str("moved on: its node has changed since the decision"),
            Outcome::Ahead { stands } => {
                write!(f, "active: the hub stands at {stands} with it, further than its node, since nobody knows when")
            }
            Outcome::CaughtUpInHub => f.write_str("caught up: the hub has nothing to give to it"),
            Outcome::GapBelowInterval => {
                f.write_str("gap below interval: it would move by fewer messages than hubs write down")
            }
            Outcome::NothingToFree => f.write_str("nothing to free: no closed range ends beyond where it stands"),
            Outcome::Settling => f.write_str("settling: the topic has just changed its owner"),
            Outcome::Lost(why) => write!(f, "lost: {why}"),
            Outcome::Unreadable(why) => write!(f, "unreadable: {why}"),
            Outcome::Wedged(why) => write!(f, "alarm: {why}"),
            Outcome::HubSubscriber => f.write_str("another region's hub: never touched"),
        }
    }
}

/// What was found on the way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visit {
    /// The hub that it attached to.
    pub hub: Option<String>,
    /// How long the subscriber was locked out by us.
    pub held: Option<Duration>,
    /// Where the hub stood with it.
    pub stood_at: Option<u64>,
    /// Up to where it was asked to consume: the ledger, and the last message in it.
    pub to: Option<Position>,
    /// The version of its node that we caused, if it is certain that nobody else did.
    pub written: Option<Seen>,
    /// What else a person should know.
    pub notes: Vec<String>,
}

/// Whether the ledgers that were to go have gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collection {
    /// All of them.
    Collected,
    /// Not yet, and the hub's timer may not have come round.
    Pending,
    /// Not, though the hub had the time. Somebody else pins them, or the hub has lost count of them and needs a restart. No reason to
    /// consume again.
    NotCollected,
}

/// Judges whether ledgers were collected. `since` is how long ago they could have been, `interval` the hubs'
/// `messages_consumed_thread_run_interval`.
pub fn collection(now: &Ledgers, expected: &[i64], since: Duration, interval: Duration) -> Collection {
    let left = now.ranges.iter().any(|range| expected.contains(&range.ledger));
    match (left, since > interval * 2) {
        (false, _) => Collection::Collected,
        (true, false) => Collection::Pending,
        (true, true) => Collection::NotCollected,
    }
}

/// Why an act ends before its end.
enum Stop {
    Outcome(Outcome),
    Error(TargetError),
}

impl From<TargetError> for Stop {
    fn from(error: TargetError) -> Stop {
        Stop::Error(error)
    }
}

impl From<Outcome> for Stop {
    fn from(outcome: Outcome) -> Stop {
        Stop::Outcome(outcome)
    }
}

/// Acts on a region.
pub struct HedwigAct {
    pub(super) hubs: Hubs,
    pub(super) inventory: Arc<HedwigInventory>,
    options: ActOptions,
    /// By hub, as it announces itself.
    attaches: Arc<Calls>,
    /// Over all hubs.
    acquires: Arc<Pace>,
}

impl HedwigAct {
    /// Acts through hubs, looking at the metadata through `inventory`.
    ///
    /// # Errors
    /// When a rate is not usable.
    pub fn new(hubs: Hubs, inventory: Arc<HedwigInventory>, options: ActOptions) -> Result<HedwigAct> {
        let unusable = |e| TargetError::new(Class::Invalid, "limiting attachments", e);
        let attaches = Arc::new(Calls::new(options.attach_rate, None).map_err(unusable)?);
        let acquires = Arc::new(Pace::new(options.acquire_rate).map_err(unusable)?);
        Ok(HedwigAct { hubs, inventory, options, attaches, acquires })
    }

    /// The limits on attachments, of which a part may be lent: for each hub, and over all hubs on topics that nobody owns.
    pub fn limits(&self) -> (&Arc<Calls>, &Arc<Pace>) {
        (&self.attaches, &self.acquires)
    }

    /// Looks again, and unless something speaks against it, attaches, consumes and closes.
    ///
    /// # Errors
    /// When something failed before anything was sent: it may be tried again.
    pub async fn carry_out(&self, what: &Move<'_>, _permit: &Permit) -> Result<(Outcome, Visit)> {
        let mut visit = Visit::default();
        match self.steps(what, &mut visit).await {
            Ok(outcome) | Err(Stop::Outcome(outcome)) => Ok((outcome, visit)),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    async fn steps(&self, what: &Move<'_>, visit: &mut Visit) -> std::result::Result<Outcome, Stop> {
        let settings = self.inventory.settings();
        if settings.is_hub_subscriber(what.subscriber) && !settings.gone_regions.contains(what.subscriber) {
            return Ok(Outcome::HubSubscriber);
        }
        if self.inventory.release().await? == Release::Old {
            let why = "only hubs before 4.2 ever ran here; they do not know how to close a subscription";
            return Err(TargetError::new(Class::Refused, self.doing(what), why).into());
        }
        self.wait_for_turn(what).await?;
        let (hub, owner) = self.settled(what).await?;
        // An attachment is not free: nothing is attached to where nothing could be freed.
        self.target(what, None).await?;
        let attached = self.attach(what, &hub, owner).await?;
        visit.hub = Some(attached.hub().to_string());
        let since = Instant::now();
        let ended = self.hold(what, attached, visit).await;
        visit.held = Some(since.elapsed());
        let (ending, target) = ended?;
        let doubt = match ending {
            Ending::Lost(why) | Ending::Refused(why) => return Ok(Outcome::Lost(why)),
            Ending::Closed => None,
            Ending::Uncertain(why) => Some(why),
        };
        visit.to = Some(Position { ledger: target.ledger, entry: signed(target.end.local()) });
        Ok(self.judged(what, target.end.local(), doubt, visit).await)
    }

    pub(super) fn settings(&self) -> &Settings {
        self.inventory.settings()
    }

    fn doing(&self, what: &Move<'_>) -> String {
        let topic = self.inventory.settings().subject(what.topic);
        format!("consuming as {:?} of {topic} up to {}", what.subscriber, what.up_to)
    }

    /// Waits until one more attachment may start.
    async fn wait_for_turn(&self, what: &Move<'_>) -> Result<()> {
        let Some(hub) = what.hub else {
            self.acquires.one().await;
            return Ok(());
        };
        let calls = self.attaches.to(hub).map_err(|e| TargetError::new(Class::Bug, self.doing(what), e))?;
        calls.pace.one().await;
        Ok(())
    }

    /// Where to go, once the topic's ownership is old enough, and whether that is its owner.
    async fn settled(&self, what: &Move<'_>) -> std::result::Result<(HubAddress, bool), Stop> {
        let mut found = self.inventory.ownership(what.topic).await?;
        if !self.inventory.committed_before(found.changed_zxid, self.options.settle) {
            sleep(self.options.settle).await;
            let again = self.inventory.ownership(what.topic).await?;
            if again != found {
                return Err(Outcome::Settling.into());
            }
            found = again;
        }
        let Ownership { owner, .. } = found;
        match owner {
            Evidence::Present(owner) if owner.alive => Ok((owner.info.address, true)),
            Evidence::Unknown(why) => Err(Outcome::Unreadable(why).into()),
            Evidence::Present(_) | Evidence::Absent => {
                // Any hub will do: it takes the topic itself or names the least loaded one. They differ by topic, to spread the work.
                let hubs = self.inventory.hubs().await?;
                let sum = what.topic.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                let hub = hubs.get(sum % hubs.len().max(1)).cloned();
                let why = "no hub of the region is registered; is any running?";
                let hub = hub.ok_or_else(|| TargetError::new(Class::Transient, self.doing(what), why))?;
                Ok((hub, false))
            }
        }
    }

    /// Looks at the subscriber and the ledgers, and says how far it may be moved from where the hub stands, if that is known yet.
    async fn target(&self, what: &Move<'_>, stands: Option<u64>) -> std::result::Result<Target, Stop> {
        let (ledgers, subscriber) = self.inventory.standing(what.topic, what.subscriber).await?;
        let interval = self.inventory.settings().consume_interval;
        Ok(judge_target(what, &ledgers, subscriber, stands, interval)?)
    }

    async fn attach(&self, what: &Move<'_>, hub: &HubAddress, is_owner: bool) -> std::result::Result<Attached, Stop> {
        // Nobody's topic goes to whatever hub its first visitor is sent to. Somebody's must still be theirs.
        let attached = match is_owner {
            true => self.hubs.attach_at_owner(hub, what.topic, what.subscriber).await,
            false => self.hubs.attach(hub, what.topic, what.subscriber).await,
        };
        match attached {
            Ok(attached) => Ok(attached),
            Err(AttachError::Moved { .. }) => Err(Outcome::Settling.into()),
            Err(e @ AttachError::Online { .. }) => Err(Outcome::Online(e.to_string()).into()),
            Err(AttachError::Gone { .. }) => Err(Outcome::Gone.into()),
            Err(e @ AttachError::Wedged { .. }) => Err(Outcome::Wedged(e.to_string()).into()),
            Err(e) => Err(TargetError::new(e.class(), self.doing(what), e).into()),
        }
    }

    /// What is done while the subscriber is ours.
    async fn hold(
        &self,
        what: &Move<'_>,
        attached: Attached,
        visit: &mut Visit,
    ) -> std::result::Result<(Ending, Target), Stop> {
        let (attached, stands) = match attached.first(self.options.first_delivery).await {
            First::Delivered(attached, id) => (attached, Some(id - 1)),
            First::Lost(why) => return Err(Outcome::Lost(why).into()),
            // Behind a filter, and for what came from the region itself, silence says nothing of what there is.
            First::Silent(attached)
                if attached.filter().is_some() || self.inventory.settings().is_hub_subscriber(what.subscriber) =>
            {
                (attached, None)
            }
            First::Silent(attached) => {
                attached.detach().await;
                return Err(Outcome::CaughtUpInHub.into());
            }
        };
        visit.stood_at = stands;
        let left = self.hubs.options().hold.saturating_sub(attached.held());
        let target = match timeout(left, self.target(what, stands)).await {
            Ok(target) => target,
            Err(_) => Err(Outcome::Lost("the metadata was not read in time".to_owned()).into()),
        };
        match target {
            Ok(target) => Ok((attached.consume_and_close(&target.end).await, target)),
            Err(stop) => {
                attached.detach().await;
                Err(stop)
            }
        }
    }

    /// Judges by the subscriber's node what became of a request that was sent.
    async fn judged(&self, what: &Move<'_>, to: u64, doubt: Option<String>, visit: &mut Visit) -> Outcome {
        let deadline = Instant::now() + self.options.shown_within;
        let mut wait = Duration::from_millis(5);
        let (found, shown) = loop {
            let found = self.inventory.subscriber(what.topic, what.subscriber).await;
            let late = Instant::now() + wait > deadline;
            let found = match found {
                Ok(Some(found)) => found,
                Ok(None) => return Outcome::Uncertain("it unsubscribed meanwhile".to_owned()),
                Err(_) if !late => {
                    sleep(wait).await;
                    continue;
                }
                Err(e) => return Outcome::Uncertain(format!("what came of it could not be read: {e}")),
            };
            match (&found.subscription, found.seen == what.seen) {
                (_, true) if !late => sleep(wait).await,
                (_, true) => {
                    let Some(doubt) = doubt else { return Outcome::InMemoryOnly };
                    return Outcome::Uncertain(format!("{doubt}; its node has not changed"));
                }
                (Evidence::Present(now), false) => break (found.seen, shown(what, to, now, found.seen)),
                (_, false) => return Outcome::Uncertain("its node cannot be read any more".to_owned()),
            }
            wait = (wait * 2).min(Duration::from_millis(500));
        };
        match shown {
            Shown::Ours => visit.written = Some(found),
            Shown::Further(says) => visit.notes.push(says),
            Shown::Not(says) => {
                let doubt = doubt.map_or_else(String::new, |doubt| format!("{doubt}; "));
                return Outcome::Uncertain(format!("{doubt}{says}"));
            }
        }
        visit.notes.extend(doubt);
        Outcome::Consumed
    }
}

/// The end of a closed range.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    ledger: i64,
    end: MessageId,
}

/// Judges what was read of a subscriber and its topic's ledgers: the end up to which it may be moved. `stands` is where the hub is
/// with it, once it is attached.
fn judge_target(
    what: &Move<'_>,
    ledgers: &Evidence<Ledgers>,
    subscriber: Option<TopicSubscriber>,
    stands: Option<u64>,
    consume_interval: u64,
) -> std::result::Result<Target, Outcome> {
    let subscriber = subscriber.ok_or(Outcome::Gone)?;
    if subscriber.seen != what.seen {
        return Err(Outcome::MovedOn);
    }
    let pointer = match &subscriber.subscription {
        Evidence::Present(Subscription { pointer, .. }) => *pointer,
        Evidence::Absent => return Err(Outcome::Unreadable("it has no position".to_owned())),
        Evidence::Unknown(why) => return Err(Outcome::Unreadable(why.clone())),
    };
    let ledgers = match ledgers {
        Evidence::Present(ledgers) => ledgers,
        Evidence::Absent => return Err(Outcome::NothingToFree),
        Evidence::Unknown(why) => return Err(Outcome::Unreadable(why.clone())),
    };
    let from = match stands {
        // A hub delivers what follows its own pointer, which is never behind the one that it wrote.
        Some(stands) if stands < pointer => {
            return Err(Outcome::Lost(format!("the hub stands at {stands}, its node says {pointer}")));
        }
        Some(stands) if stands > pointer && what.stood_at != Some(stands) => return Err(Outcome::Ahead { stands }),
        Some(stands) => stands,
        None => pointer,
    };
    let (range, end) = ledgers.closed_up_to(what.up_to).ok_or(Outcome::NothingToFree)?;
    match end.local().checked_sub(from) {
        None | Some(0) => Err(Outcome::NothingToFree),
        Some(gap) if gap < consume_interval => Err(Outcome::GapBelowInterval),
        Some(_) => Ok(Target { ledger: range.ledger, end: end.clone() }),
    }
}

/// What a subscriber's node says after it changed.
enum Shown {
    /// It stands where we moved it, and nobody else wrote.
    Ours,
    /// It stands there or further, and somebody else wrote as well.
    Further(String),
    /// It does not stand there.
    Not(String),
}

fn shown(what: &Move<'_>, to: u64, now: &Subscription, seen: Seen) -> Shown {
    if seen.created_zxid != what.seen.created_zxid {
        return Shown::Not("it unsubscribed and subscribed again meanwhile".to_owned());
    }
    if now.pointer < to {
        return Shown::Not(format!("its node has changed, and says {}", now.pointer));
    }
    if now.pointer == to && seen.version == what.seen.version.wrapping_add(1) {
        return Shown::Ours;
    }
    let by = if now.pointer > to { "it is back" } else { "somebody else wrote its node as well" };
    Shown::Further(format!("{by}: it stands at {}, version {}", now.pointer, seen.version))
}
