//! Decisions become moves, and what comes of a move becomes what the workers want to know.

use futures::future::{BoxFuture, FutureExt};
use trimtab_events::{Candidate, Consume, Decision, Log, Position, Verdict};

use super::act::{HedwigAct, Move, Outcome, Visit};
use crate::error::{Class, Result, TargetError};
use crate::finding::{Finding, ZK_RIGHTS};
use crate::{Act, Effect, Permit, Record, Skipped, Undo};

impl HedwigAct {
    async fn decided(&self, decision: &Decision, seen: &Candidate, permit: &Permit) -> Result<Effect> {
        let what = || format!("carrying out {} on {}", decision.verdict, decision.subject);
        let invalid = |why: &str| TargetError::new(Class::Invalid, what(), why);
        let consume = decision.consume.as_ref().filter(|_| decision.verdict == Verdict::Consume);
        let consume = consume.ok_or_else(|| invalid("a hub can only be asked to consume"))?;
        let topic = self.settings().topic_of(&consume.log).ok_or_else(|| invalid("it is no topic of this region"))?;
        let up_to = u64::try_from(consume.to.entry).map_err(|_| invalid("it names no message to consume up to"))?;
        let what = Move {
            topic,
            subscriber: &consume.subscription,
            seen: decision.seen,
            up_to,
            stood_at: stood_before(consume, seen),
            hub: owner_of(seen),
        };
        let (outcome, visit) = self.carry_out(&what, permit).await?;
        effect(decision, &outcome, visit)
    }
}

/// Where an earlier visit found the hub standing with the subscriber, if the decision counts only what happened since.
fn stood_before(consume: &Consume, seen: &Candidate) -> Option<u64> {
    let Candidate::Subscriber(log) = seen else { return None };
    let stood = log.subscribers.iter().find(|subscriber| subscriber.name == consume.subscription)?.stood?;
    let stale = consume.stale.iter().find(|stale| stale.subscription == consume.subscription)?;
    (stood.since_ms <= stale.history.since_ms).then_some(stood.at)
}

/// The hub that serves the topic, as far as was seen.
fn owner_of(seen: &Candidate) -> Option<&str> {
    match seen {
        Candidate::Subscriber(log) => match &log.log {
            Log::Hedwig(topic) => topic.hub.present().filter(|hub| hub.alive).map(|hub| hub.address.as_str()),
            Log::Pulsar(_) | Log::JetStream(_) => None,
        },
        Candidate::Ledger(_) | Candidate::Orphan(_) => None,
    }
}

fn effect(decision: &Decision, outcome: &Outcome, visit: Visit) -> Result<Effect> {
    let says = outcome.to_string();
    let skipped =
        |rule, alive| Effect { skipped: Some(Skipped { rule, says: says.clone(), alive }), ..Effect::default() };
    let visited = visit.hub.as_ref().map(|hub| {
        let held = visit.held.unwrap_or_default().as_millis();
        let stood = visit.stood_at.map_or_else(String::new, |at| format!(", which stood at {at} with it,"));
        format!("attached on hub {hub}{stood} for {held} ms")
    });
    let mut effect = match outcome {
        Outcome::Consumed => Effect { aim: visit.to, left_at: visit.to, ..Effect::default() },
        // The metadata may show it later, or never: what it shows is what counts.
        Outcome::InMemoryOnly | Outcome::Uncertain(_) => {
            Effect { pending: true, aim: visit.to, left_at: visit.to, notes: vec![says.clone()], ..Effect::default() }
        }
        Outcome::Online(_) => skipped("online", true),
        Outcome::Ahead { stands } => Effect { stood_at: Some(*stands), ..skipped("active", true) },
        Outcome::MovedOn => skipped("changed", true),
        Outcome::Gone => skipped("gone", false),
        Outcome::HubSubscriber => skipped("protected", false),
        Outcome::Settling => skipped("settling", false),
        Outcome::CaughtUpInHub
        | Outcome::GapBelowInterval
        | Outcome::NothingToFree
        | Outcome::Lost(_)
        | Outcome::Unreadable(_) => skipped("changed", false),
        // Not a reason to pass over in silence.
        Outcome::Wedged(_) => {
            let what = format!("carrying out {} on {}", decision.verdict, decision.subject);
            return Err(TargetError::new(Class::Refused, what, says));
        }
    };
    let decided = decision.consume.as_ref().map(|consume| consume.to);
    if let (Some(Position { entry, .. }), true) = (visit.to, effect.aim.is_some() && visit.to != decided) {
        effect
            .notes
            .push(format!("only up to {entry}: that is where the last closed range within the decision ends now"));
    }
    effect.notes.extend(visited);
    effect.notes.extend(visit.notes);
    Ok(effect)
}

/// An attachment ends with its connection, so nothing is left to put back: there is nothing to tidy.
impl Act for HedwigAct {
    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        async move {
            let hubs = match self.inventory.hubs().await {
                Ok(hubs) => hubs,
                Err(e) => return vec![Finding::failed("hubs", &e, ZK_RIGHTS)],
            };
            if hubs.is_empty() {
                let advice = "planning works without hubs; to act, start one, or check hedwig.region";
                return vec![Finding::bad("hubs", "none is registered", advice)];
            }
            let mut found = Vec::new();
            for hub in &hubs {
                let name = format!("hub {}", hub.plain());
                found.push(match self.hubs.listens(hub).await {
                    Ok(()) => Finding::good(name, "can be reached"),
                    Err(why) => Finding::bad(
                        name,
                        why,
                        "hubs announce addresses that may not be reachable from here: say what to use instead in hedwig.addresses",
                    ),
                });
            }
            found
        }
        .boxed()
    }

    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        _record: &'a dyn Record,
        permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        self.decided(decision, seen, permit).boxed()
    }

    fn undo<'a>(
        &'a self,
        undo: &'a Undo,
        _record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        let mut error = undo.impossible();
        if undo.decision.verdict == Verdict::Consume {
            error.why = "a hub moves pointers forward only: a CONSUME of less than it has written down is ignored, and once every \
                         subscriber has passed a closed ledger the hub deletes it within a minute. Whoever still needs the messages \
                         has to get them from the publisher; `trimtab protect` keeps the subscriber from being acted on again"
                .to_owned();
        }
        futures::future::ready(Err(error)).boxed()
    }
}
