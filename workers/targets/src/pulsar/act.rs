//! Carries out decisions through the owning broker: expire, trim, wait until the metadata shows it, close the topic again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use serde::{Deserialize, Serialize};
use trimtab_events::{Candidate, Decision, Loaded, Position, Seen, Verdict};

use super::admin::Admin;
use super::attach::Binary;
use super::inventory::PulsarInventory;
use super::metadata::Hole;
use super::names::TopicName;
use super::subscriptions::{
    Acted, Consume, Delete, Outcome, Restore, Skip, Standing, Step, Steps, Subscriber, SubscriptionOptions,
    Subscriptions, Trim,
};
use super::visit;
use crate::error::{Class, Result, TargetError};
use crate::finding::Finding;
use crate::{Act, Effect, Inventory, Permit, Record, Skipped, Undo};

/// Times of an act.
#[derive(Debug, Clone)]
pub struct ActOptions {
    /// How long the metadata may take to show the effect before it counts as pending.
    pub settle: Duration,
    /// How long to wait between two looks at the metadata, at first; doubled up to a second.
    pub look_every: Duration,
}

impl Default for ActOptions {
    fn default() -> Self {
        ActOptions { settle: Duration::from_secs(30), look_every: Duration::from_millis(50) }
    }
}

/// Acts on Pulsar.
pub struct PulsarAct {
    pub(super) admin: Arc<Admin>,
    pub(super) binary: Arc<Binary>,
    pub(super) inventory: Arc<PulsarInventory>,
    subscriptions: Subscriptions,
    options: ActOptions,
}

impl PulsarAct {
    /// Acts through `admin` and, as a subscriber, through `binary`; looks at the metadata through `inventory`.
    pub fn new(
        admin: Arc<Admin>,
        binary: Arc<Binary>,
        inventory: Arc<PulsarInventory>,
        options: ActOptions,
    ) -> PulsarAct {
        let times = SubscriptionOptions { times: options.clone(), ..SubscriptionOptions::default() };
        let subscriptions = Subscriptions::new(admin.clone(), binary.clone(), inventory.clone(), times);
        PulsarAct { admin, binary, inventory, subscriptions, options }
    }

    /// The topic's name, once the brokers that may own it are known.
    async fn reachable(&self, decision: &Decision) -> Result<TopicName> {
        let name = TopicName::of_subject(&decision.subject).ok_or_else(|| {
            TargetError::new(Class::Invalid, format!("acting on {:?}", decision.subject), "it is not a topic's name")
        })?;
        self.allow_registered().await?;
        Ok(name)
    }

    /// Trims, and looks until the metadata shows it. After an expiry the trim is asked for again: expiring is asynchronous, and
    /// a trim before its end frees nothing.
    async fn trim(&self, name: &TopicName, decision: &Decision, effect: &mut Effect) -> Result<()> {
        let again = decision.verdict == Verdict::ExpireThenTrim;
        if !visit::trim(&self.admin, &self.inventory, &self.options, name, &decision.ledgers, again).await? {
            effect.pending = true;
            effect.notes.push(format!("the metadata does not show it after {} s", self.options.settle.as_secs()));
        }
        Ok(())
    }

    /// Has messages expired. `visited` is set once a call got through: whatever comes after it, the topic is loaded now.
    async fn expire(
        &self,
        name: &TopicName,
        decision: &Decision,
        visited: &mut bool,
        effect: &mut Effect,
    ) -> Result<()> {
        for expire in &decision.expire {
            let expired = self.admin.expire(name, &expire.subscription, expire.ttl_s).await;
            *visited |= expired.is_ok();
            match expired {
                Ok(true) => {}
                Ok(false) => {
                    effect.notes.push(format!("nothing to expire for {:?}, or it is running", expire.subscription))
                }
                Err(e) if e.class() == Class::Gone => {
                    effect.notes.push(format!("subscription {:?} is gone", expire.subscription));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Moves or deletes a subscription.
    async fn on_subscriber(
        &self,
        decision: &Decision,
        seen: &Candidate,
        record: &dyn Record,
        permit: &Permit,
    ) -> Result<Effect> {
        let what = || format!("carrying out {} on {}", decision.verdict, decision.subject);
        let consume = decision.consume.as_ref();
        let named = consume.and_then(|consume| Some((consume, TopicName::of_subject(&consume.log)?)));
        let Some((consume, topic)) = named else {
            return Err(TargetError::new(Class::Invalid, what(), "it does not say of which topic"));
        };
        self.allow_registered().await?;
        let subscriber = Subscriber {
            topic,
            subscription: consume.subscription.clone(),
            cursor: decision.seen,
            loaded: *loaded(seen) == Loaded::Yes,
        };
        // What goes only once others have moved as well cannot be waited for.
        let trim = if consume.stale.len() > 1 { Trim::Whatever } else { Trim::These(decision.ledgers.clone()) };
        let steps = Recorded(record);
        let outcome = match decision.verdict {
            Verdict::Consume => {
                let job = Consume { subscriber, up_to: consume.to, trim };
                self.subscriptions.consume(&job, &steps, permit).await?
            }
            Verdict::DeleteSubscription => {
                self.subscriptions.delete(&Delete { subscriber, trim }, &steps, permit).await?
            }
            _ => return Err(TargetError::new(Class::Bug, what(), "it is not an act of this target")),
        };
        Ok(effect_of(outcome))
    }

    pub(super) async fn allow_registered(&self) -> Result<()> {
        let brokers = self.inventory.brokers().await?;
        self.admin.allow(&brokers.web).await;
        self.binary.allow(&brokers.binary).await;
        Ok(())
    }

    /// Closes the topic again, unless somebody uses it by now.
    async fn close(&self, name: &TopicName, effect: &mut Effect) {
        let (unloaded, why_not) = self.admin.close(name).await;
        effect.unloaded = unloaded;
        effect.notes.extend(why_not);
    }
}

/// Takes down how a subscription stands before it is moved: what taking it back needs.
struct Recorded<'a>(&'a dyn Record);

impl Steps for Recorded<'_> {
    fn before<'b>(&'b self, step: Step<'b>) -> BoxFuture<'b, Result<()>> {
        let standing = match step {
            Step::Acknowledge(standing, _) | Step::Delete(standing) | Step::PutBack(standing, _) => standing,
            Step::Ask | Step::Attach | Step::Detach => return futures::future::ready(Ok(())).boxed(),
        };
        match serde_json::to_value(Stood::of(standing)) {
            Ok(stood) => self.0.record(serde_json::json!({ "stood": stood })),
            Err(e) => {
                let failed = TargetError::new(Class::Bug, "recording how the subscription stands", e);
                futures::future::ready(Err(failed)).boxed()
            }
        }
    }
}

/// How a subscription stood, as the record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stood {
    cursor: Seen,
    mark_delete: Position,
    resume_at: Option<Position>,
    /// What was acknowledged beyond that: the entry before the first, and the last, of each run.
    holes: Vec<(Position, Position)>,
}

impl Stood {
    fn of(standing: &Standing) -> Stood {
        let Standing { node, mark_delete, resume_at, .. } = standing;
        let holes = node.info.holes.iter().map(|hole| (hole.after, hole.last)).collect();
        Stood { cursor: node.seen, mark_delete: *mark_delete, resume_at: *resume_at, holes }
    }
}

/// What the workers want to know of an act on a subscription.
fn effect_of(outcome: Outcome<Acted>) -> Effect {
    let skipped = |rule, says, alive| Effect { skipped: Some(Skipped { rule, says, alive }), ..Effect::default() };
    match outcome {
        Outcome::Done(acted) => Effect {
            pending: acted.pending,
            unloaded: acted.unloaded,
            aim: acted.up_to,
            left_at: acted.node.as_ref().map(|node| node.info.mark_delete).or(acted.now),
            notes: acted.notes,
            ..Effect::default()
        },
        Outcome::Online(online) => {
            let who: Vec<&str> = online.who.iter().map(|consumer| consumer.consumer_name.as_str()).collect();
            let who = if who.is_empty() { String::new() } else { format!(": {}", who.join(", ")) };
            skipped("online", format!("{}{who}", online.how), true)
        }
        Outcome::Skipped(skip) => {
            let rule = match skip {
                Skip::Gone | Skip::CreatedAndRemoved | Skip::CreatedAndLeft(_) => "gone",
                Skip::Protected(_) => "protected",
                _ => "changed",
            };
            // Whoever has written, moved or made it anew was there.
            let alive = matches!(skip, Skip::Written(..) | Skip::Moved(_) | Skip::Already(_));
            skipped(rule, skip.to_string(), alive)
        }
    }
}

/// Whether a broker had the topic loaded.
fn loaded(seen: &Candidate) -> &Loaded {
    seen.topic().map_or(&Loaded::No, |topic| &topic.loaded)
}

impl PulsarAct {
    async fn put_back(&self, undo: &Undo, record: &dyn Record, permit: &Permit) -> Result<Effect> {
        let Decision { consume, subject, seen, .. } = &undo.decision;
        let failed = |why: &str| TargetError::new(Class::Invalid, format!("putting back {subject}"), why);
        let named = consume.as_ref().and_then(|consume| Some((consume, TopicName::of_subject(&consume.log)?)));
        let (consume, topic) = named.ok_or_else(|| failed("the record does not say of which topic"))?;
        let stood =
            undo.evidence.iter().rev().find_map(|note| serde_json::from_value::<Stood>(note["stood"].clone()).ok());
        let stood = stood.ok_or_else(|| failed("the record does not say where it stood"))?;
        let resume_at =
            stood.resume_at.ok_or_else(|| failed("the record does not say which message it was to get next"))?;
        self.allow_registered().await?;
        let loaded = match self.inventory.observe(subject).await? {
            Some(seen) => *loaded(&seen) == Loaded::Yes,
            None => return Err(failed("the topic is gone")),
        };
        let job = Restore {
            subscriber: Subscriber { topic, subscription: consume.subscription.clone(), cursor: *seen, loaded },
            left_at: undo.after.as_ref().and_then(|after| after.position),
            resume_at,
            holes: stood.holes.into_iter().map(|(after, last)| Hole { after, last }).collect(),
        };
        Ok(effect_of(self.subscriptions.restore(&job, &Recorded(record), permit).await?))
    }
}

impl Act for PulsarAct {
    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        self.examined().boxed()
    }

    fn undo<'a>(&'a self, undo: &'a Undo, record: &'a dyn Record, permit: &'a Permit) -> BoxFuture<'a, Result<Effect>> {
        match undo.decision.verdict {
            Verdict::Consume => self.put_back(undo, record, permit).boxed(),
            _ => futures::future::ready(Err(undo.impossible())).boxed(),
        }
    }

    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        record: &'a dyn Record,
        permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            if decision.verdict.on_subscriber() {
                return self.on_subscriber(decision, seen, record, permit).await;
            }
            let name = self.reachable(decision).await?;
            let mut effect = Effect::default();
            let mut visited = false;
            let done = async {
                if decision.verdict == Verdict::ExpireThenTrim {
                    self.expire(&name, decision, &mut visited, &mut effect).await?;
                }
                self.trim(&name, decision, &mut effect).await
            };
            let done = done.await;
            // Also after a failed call: it may have loaded the topic, and a loaded topic without subscriptions is deleted whole
            // by the broker after a minute. Unless the broker did not know the topic: asking would create it.
            let visited = visited || !matches!(&done, Err(e) if e.class() != Class::Transient);
            if visited && *loaded(seen) != Loaded::Yes {
                self.close(&name, &mut effect).await;
            }
            done.map(|()| effect)
        }
        .boxed()
    }

    fn tidy<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            let mut effect = Effect::default();
            // A closed last ledger: nobody has it loaded, and asking about it would load it.
            if *loaded(seen) != Loaded::No {
                let name = self.reachable(decision).await?;
                self.close(&name, &mut effect).await;
            }
            Ok(effect)
        }
        .boxed()
    }
}
