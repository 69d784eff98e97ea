//! Being the only consumer of the subscription that was decided on, and of no other.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use trimtab_events::{CursorKind, LastLedger, LedgerInfo, Position, TopicClass};

use super::outcome::{Acted, Online, Skip, Standing, Step, Steps, Subscriber};
use super::{CREATED_BY, Subscriptions, same_place};
use crate::error::{Class, TargetError};
use crate::pulsar::attach::wire_error;
use crate::pulsar::backlog::{Place, Row};
use crate::pulsar::inventory::CursorNode;
use crate::pulsar::wire::{Attach, Attachment, Disturbance, ServerError, WireError};

/// What the names of our consumers begin with.
const OURS: &str = "trimtab:";
/// How long to wait for a broker to say that it has detached us; closing the connection does so as well.
const DETACH: Duration = Duration::from_secs(5);

/// Leaves a procedure where it is: with a word on why nothing is done, or with an error.
pub(super) enum Left {
    Online(Online),
    Skipped(Skip),
    Failed(TargetError),
}

impl From<TargetError> for Left {
    fn from(e: TargetError) -> Left {
        Left::Failed(e)
    }
}

impl From<Skip> for Left {
    fn from(skip: Skip) -> Left {
        Left::Skipped(skip)
    }
}

pub(super) type Going<T> = std::result::Result<T, Left>;

/// A list of ledgers, and the last of them.
#[derive(Debug, Clone)]
pub(super) struct OwnedRow {
    ledgers: Vec<LedgerInfo>,
    last: LastLedger,
}

impl OwnedRow {
    pub(super) fn row(&self) -> Row<'_> {
        Row::new(&self.ledgers, &self.last)
    }
}

/// Being attached, and what was learned by it.
pub(super) struct Held {
    pub(super) attachment: Attachment,
    since: Instant,
    pub(super) standing: Standing,
    pub(super) row: OwnedRow,
    /// Transactions that are open on the topic, if its broker says.
    open_transactions: Option<i64>,
}

impl Subscriptions {
    /// The cursor's node, if it is the one that was decided on.
    pub(super) async fn same(&self, subscriber: &Subscriber, unwritten: bool) -> Going<CursorNode> {
        let Subscriber { topic, subscription, cursor, .. } = subscriber;
        let protected = |why: String| Err(Skip::Protected(why).into());
        if topic.class != TopicClass::User {
            return protected("the topic is not a user's".to_owned());
        }
        if self.inventory.cursor_kind(subscription) != CursorKind::Subscription {
            return protected(format!("{subscription:?} is a cursor of Pulsar's own"));
        }
        let node = self.inventory.cursor(topic, subscription).await?.ok_or(Skip::Gone)?;
        if node.seen.created_zxid != cursor.created_zxid {
            return Err(Skip::MadeAnew.into());
        }
        if unwritten && node.seen.version != cursor.version {
            return Err(Skip::Written(cursor.version, node.seen.version).into());
        }
        if node.info.replicated() {
            return protected("the subscription is kept in step with other clusters".to_owned());
        }
        Ok(node)
    }

    /// Attaches, or finds out why not. `visited` becomes true when a broker may have loaded the topic for us.
    pub(super) async fn hold(&self, subscriber: &Subscriber, steps: &dyn Steps, visited: &mut bool) -> Going<Held> {
        let Subscriber { topic, subscription, .. } = subscriber;
        let brokers = self.inventory.brokers().await?;
        self.admin.allow(&brokers.web).await;
        self.binary.allow(&brokers.binary).await;
        steps.before(Step::Ask).await?;
        let open_transactions = self.ask(subscriber, visited).await?;
        steps.before(Step::Attach).await?;
        let subject = topic.subject();
        let connection = self.binary.owner(&subject).await?;
        let mark = self.mark();
        let consumer = format!("{OURS}{mark}");
        let properties = [(CREATED_BY, mark.as_str())];
        let attach = Attach { topic: &subject, subscription, consumer: &consumer, properties: &properties };
        let asked = Instant::now();
        let mut attachment = connection.attach(attach).await.map_err(|e| not_attached(subscriber, e))?;
        let since = Instant::now();
        let confirmed = self.confirm(subscriber, &mut attachment, &mark, since - asked).await;
        match confirmed {
            Ok((standing, row)) => Ok(Held { attachment, since, standing, row, open_transactions }),
            Err(left) => {
                let _ = tokio::time::timeout(DETACH, attachment.detach()).await;
                Err(left)
            }
        }
    }

    /// What it is that we are attached to.
    async fn confirm(
        &self,
        subscriber: &Subscriber,
        attachment: &mut Attachment,
        mark: &str,
        took: Duration,
    ) -> Going<(Standing, OwnedRow)> {
        let Subscriber { topic, subscription, cursor, .. } = subscriber;
        let node = match self.inventory.cursor(topic, subscription).await? {
            Some(node) if node.seen.created_zxid == cursor.created_zxid => node,
            Some(node) if node.info.cursor_properties.iter().any(|(k, v)| k == CREATED_BY && v == mark) => {
                return Err(self.remove(subscriber, attachment).await.into());
            }
            Some(_) => return Err(Skip::MadeAnew.into()),
            None => return Err(Skip::Gone.into()),
        };
        if took > self.options.prompt {
            let why = format!(
                "the broker took {:.1} s to let us attach: it may have waited for a consumer that did not answer. Nothing was \
                 changed; it is tried again later",
                took.as_secs_f64()
            );
            return Err(TargetError::new(Class::Transient, subscriber.what("attaching to"), why).into());
        }
        let what = || subscriber.what("asking for the position of");
        let found = attachment.last_message().await.map_err(|e| interrupted(what(), e))?;
        let mark_delete = found.mark_delete.unwrap_or(node.info.mark_delete);
        let (list, last) = self.inventory.list(topic).await?.ok_or(Skip::Gone)?;
        let row = OwnedRow { ledgers: list.ledgers, last };
        let resume_at = row.row().after(mark_delete);
        Ok((Standing { node, mark_delete, resume_at, last: found.last }, row))
    }

    /// Asks the owner who is connected; how many transactions are open, if it says.
    async fn ask(&self, subscriber: &Subscriber, visited: &mut bool) -> Going<Option<i64>> {
        let Subscriber { topic, subscription, .. } = subscriber;
        let asked = self.admin.connected(topic).await;
        // A call without an answer may have loaded it; one about a topic that is not known has not.
        *visited |= !matches!(&asked, Err(e) if e.class() != Class::Transient);
        let connected = match asked {
            Err(e) if e.class() == Class::Gone => return Err(Skip::Gone.into()),
            other => other?,
        };
        let stats = connected.subscriptions.get(subscription).ok_or(Skip::Gone)?;
        if stats.replicated() {
            return Err(Skip::Protected("the subscription is kept in step with other clusters".to_owned()).into());
        }
        if stats.consumers.is_empty() {
            return Ok(connected.open_transactions);
        }
        if stats.consumers.iter().all(|consumer| consumer.consumer_name.starts_with(OURS)) {
            let why = "another trimtab is attached to it; it is tried again later";
            return Err(TargetError::new(Class::Transient, subscriber.what("attaching to"), why).into());
        }
        let how = "the topic's statistics show a consumer that is connected".to_owned();
        Err(Left::Online(Online { who: stats.consumers.clone(), how }))
    }

    /// Removes a subscription that the attach has created.
    async fn remove(&self, subscriber: &Subscriber, attachment: &mut Attachment) -> Skip {
        if let Err(e) = attachment.unsubscribe().await {
            return Skip::CreatedAndLeft(e.to_string());
        }
        match self.inventory.cursor(&subscriber.topic, &subscriber.subscription).await {
            Ok(None) => Skip::CreatedAndRemoved,
            Ok(Some(_)) => Skip::CreatedAndLeft("there is one still, or one that was made since".to_owned()),
            Err(e) => Skip::CreatedAndLeft(format!("whether it is gone could not be read: {e}")),
        }
    }

    /// What marks one attach.
    fn mark(&self) -> String {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        format!("{:x}-{:x}-{number:x}", std::process::id(), since.as_nanos())
    }
}

impl Held {
    /// Whether the owner has the subscription where its node said that it stands, before the topic was loaded for us. Else somebody was
    /// there since, and has left. A node that gives a lower bound only cannot tell.
    pub(super) fn unmoved(&self, found: &CursorNode) -> Going<()> {
        let at = self.standing.mark_delete;
        if found.info.lower_bound() || same_place(&self.row.row(), found.info.mark_delete, at) {
            return Ok(());
        }
        Err(Skip::Moved(at).into())
    }

    /// Whether there is such an entry, and consumers could have it by now: what an open transaction may still take back is not
    /// acknowledged, and neither is what was never written.
    pub(super) fn deliverable(&self, up_to: Position) -> Going<()> {
        let why = match (self.row.row().place(up_to), self.standing.last) {
            (Place::Nowhere, _) => format!("{up_to} is not an entry of the topic"),
            (_, Some(last)) if up_to <= last => return Ok(()),
            // What comes last in a closed ledger can be markers, and messages of transactions that were aborted.
            (Place::Entry, Some(_)) if self.open_transactions == Some(0) => return Ok(()),
            (_, Some(last)) => format!("{up_to} lies beyond {last}, the last entry that can be delivered now"),
            (_, None) => "the topic has nothing that can be delivered".to_owned(),
        };
        Err(Skip::NoSuchEntry(why).into())
    }

    /// Detaches, whatever came of it.
    pub(super) async fn let_go(self, steps: &dyn Steps, acted: Going<Acted>) -> Going<Acted> {
        let Held { attachment, since, .. } = self;
        let told = match &acted {
            Ok(_) => steps.before(Step::Detach).await,
            Err(_) => Ok(()),
        };
        let gone = attachment.disturbed() == Some(Disturbance::Disconnected);
        let detached = tokio::time::timeout(DETACH, attachment.detach()).await;
        acted.map(|mut acted| {
            acted.attached = since.elapsed();
            // It is done: what goes wrong from here on is a note.
            acted.notes.extend(told.err().map(|e| e.to_string()));
            match detached {
                Ok(Err(e)) if !gone => acted.notes.push(format!("detached by closing the connection: {e}")),
                Err(_) => acted.notes.push("detached by closing the connection: the broker did not answer".to_owned()),
                _ => {}
            }
            acted
        })
    }
}

fn not_attached(subscriber: &Subscriber, error: WireError) -> Left {
    if let WireError::Refused(refusal) = &error {
        match refusal.error() {
            // A limit of the topic's has the same number.
            Some(ServerError::ConsumerBusy) if !refusal.says.contains("limit") => {
                let how = format!("the broker refuses to attach us: {}", refusal.says);
                return Left::Online(Online { who: Vec::new(), how });
            }
            Some(ServerError::TopicNotFound | ServerError::SubscriptionNotFound) => return Skip::Gone.into(),
            _ => {}
        }
    }
    wire_error(subscriber.what("attaching to"), &error).into()
}

/// An act that something came between.
pub(super) fn interrupted(what: String, error: WireError) -> Left {
    match error {
        WireError::Disturbed(Disturbance::Probed) => {
            let how = "another consumer wants to connect while we are attached; nothing was changed".to_owned();
            Left::Online(Online { who: Vec::new(), how })
        }
        error => wire_error(what, &error).into(),
    }
}
