//! Acts. JetStream's servers carry out RESET, DELETE and PURGE whether somebody is back or not, so the look that they do not take is ours:
//!
//! 1. check: the consumer is as it was decided on, and nobody can be seen using it;
//! 2. hold: pause it for half a minute. What is sent to clients stops, their pulls wait, and are seen to wait;
//! 3. probe: for some seconds, look again and again. Any pull that waits, any subscriber, any acknowledgement, any change: let it go on,
//!    and do nothing;
//! 4. act, in the same breath as the last look;
//! 5. let go, and see what is free now.
//!
//! From before the check to behind the call we also listen to what clients say to the consumer, where we may: who asks for an instant only
//! is heard, and not seen.
//!
//! What remains is the time between the last look and the call (`docs/jetstream.md` has it measured): who comes back within it waits for
//! the end of the hold and goes on behind. It is told afterwards where it was heard. A crash between any two steps leaves a pause, which
//! ends by itself.
//!
//! A call that is not answered may still be carried out. It is not repeated, the hold is not ended, and the connection that it was made on
//! is given up: whatever still comes of it comes while the hold lasts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use trimtab_events::{Candidate, Consume, Decision, JetStreamStream, Log, Position, SubscriberCandidate, Verdict};

use super::hands::{Hands, Signs};
use super::inventory::JetStreamInventory;
use super::names::StreamName;
use super::wire::ConsumerInfo;
use crate::error::{Class, Result, TargetError};
use crate::{Act, Effect, Permit, Record, Skipped, Undo};

/// Times of an act.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// How long a consumer is paused at most.
    pub hold: Duration,
    /// How long it is watched while it is paused.
    pub probe: Duration,
    /// How often it is looked at meanwhile.
    pub look_every: Duration,
    /// The call is made within this time of the pause, or not at all: what is late in coming must come while the hold lasts.
    pub within: Duration,
    /// How long the stream may take to show what is free.
    pub settle: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Times {
            hold: Duration::from_secs(30),
            probe: Duration::from_secs(3),
            look_every: Duration::from_millis(200),
            within: Duration::from_secs(12),
            settle: Duration::from_secs(1),
        }
    }
}

/// How far an act is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The consumer is as it was decided on.
    Checked,
    /// It is paused.
    Held,
    /// The last look is over, the call comes next.
    Looked,
    /// The call was answered.
    Called,
    /// The pause is over.
    LetGo,
}

/// Is told how far each act is, and holds it up until it is done: for tests, and to measure.
pub type Watch = Arc<dyn Fn(Moment) -> BoxFuture<'static, ()> + Send + Sync>;

/// What acts on one stream are kept apart by, so that each sees what it freed itself.
const TURNS: usize = 64;

/// Moves, deletes and purges.
pub struct JetStreamAct {
    inventory: Arc<JetStreamInventory>,
    times: Times,
    watch: Option<Watch>,
    turns: Vec<Mutex<()>>,
}

/// A consumer that is held, or about to be.
struct Party {
    name: String,
    /// What it was decided on.
    progress: String,
    info: ConsumerInfo,
    signs: Signs,
    /// When the pause ends, by its servers' clock.
    until_ns: i64,
}

/// What is to be done, and since when those that it is about are held.
struct Case<'a> {
    decision: &'a Decision,
    /// The stream's canonical name.
    log: &'a str,
    /// The last sequence that goes.
    to: u64,
    /// When the stream was made that it was decided about.
    created_ns: i64,
    since: Instant,
}

fn skipped(rule: &'static str, says: impl Into<String>, alive: bool) -> Skipped {
    Skipped { rule, says: says.into(), alive }
}

impl JetStreamAct {
    /// Acts on the streams of this inventory.
    pub fn new(inventory: Arc<JetStreamInventory>, times: Times) -> JetStreamAct {
        let turns = (0..TURNS).map(|_| Mutex::new(())).collect();
        JetStreamAct { inventory, times, watch: None, turns }
    }

    /// The same, with somebody who is told how far each act is.
    pub fn watched(self, watch: Watch) -> JetStreamAct {
        JetStreamAct { watch: Some(watch), ..self }
    }

    pub(super) async fn reached(&self, moment: Moment) {
        if let Some(watch) = &self.watch {
            watch(moment).await;
        }
    }

    pub(super) fn inventory(&self) -> &JetStreamInventory {
        &self.inventory
    }

    /// Acts on one stream come one after the other from the last look on.
    fn turn(&self, stream: &str) -> &Mutex<()> {
        let hash = stream.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
        &self.turns[hash % TURNS]
    }

    async fn carry_out(
        &self,
        decision: &Decision,
        consume: &Consume,
        seen: (&SubscriberCandidate, &JetStreamStream),
        record: &dyn Record,
    ) -> Result<Effect> {
        let invalid = |why: &str| TargetError::new(Class::Invalid, format!("acting on {:?}", decision.subject), why);
        let name = StreamName::of_subject(&consume.log).ok_or_else(|| invalid("it is not a stream's name"))?;
        let to = u64::try_from(consume.to.entry).map_err(|_| invalid("its end is no sequence"))?;
        let hands = Hands::open(self.inventory.account(&name.account)?, self.inventory.pace(), &name).await?;
        let mut parties = Vec::new();
        for (name, progress) in to_hold(decision.verdict, consume, seen, to) {
            hands.pace.one().await;
            let signs = hands.listen(name).await?;
            match checked(hands.info(name).await?, name, progress) {
                Ok(info) => {
                    let (name, progress) = (name.to_owned(), progress.to_owned());
                    parties.push(Party { name, progress, info, signs, until_ns: 0 });
                }
                Err(why) => return Ok(Effect { skipped: Some(why), ..Effect::default() }),
            }
        }
        let evidence: Vec<Value> = parties.iter().map(|party| party.info.evidence()).collect();
        record.record(json!({ "stream_created_ns": seen.1.created_ns, "consumers": evidence })).await?;
        self.reached(Moment::Checked).await;
        let case = Case { decision, log: &consume.log, to, created_ns: seen.1.created_ns, since: Instant::now() };
        let (mut effect, mut unanswered) = (Effect::default(), false);
        let done = match self.hold(&hands, &mut parties).await {
            Ok(()) => self.held(&hands, &mut parties, &case, &mut effect, &mut unanswered).await,
            Err(e) => Err(e),
        };
        if !unanswered {
            self.let_go(&hands, &parties, &mut effect).await;
        }
        done.map(|()| effect)
    }

    /// Pauses all of them.
    async fn hold(&self, hands: &Hands<'_>, parties: &mut [Party]) -> Result<()> {
        let hold_ns = i64::try_from(self.times.hold.as_nanos()).unwrap_or(i64::MAX);
        for party in parties {
            // Their clock, not ours.
            let lost = || {
                TargetError::new(Class::Invalid, format!("pausing {}", party.name), "its servers do not tell the time")
            };
            let until_ns = party.info.read_ns().ok_or_else(lost)?.saturating_add(hold_ns);
            party.until_ns = until_ns;
            hands.pace.one().await;
            hands.pause(&party.name, until_ns).await?;
        }
        self.reached(Moment::Held).await;
        Ok(())
    }

    /// Watches those that are held, and acts if nobody comes. `unanswered` says whether a call was made that may still be carried out.
    async fn held(
        &self,
        hands: &Hands<'_>,
        parties: &mut [Party],
        case: &Case<'_>,
        effect: &mut Effect,
        unanswered: &mut bool,
    ) -> Result<()> {
        // Where a stream is purged below everybody, there is nobody to watch.
        while case.since.elapsed() < self.times.probe && !parties.is_empty() {
            tokio::time::sleep(self.times.look_every).await;
            for party in parties.iter_mut() {
                hands.pace.one().await;
                if let Err(why) = party.watched(hands.info(&party.name).await?, false) {
                    effect.skipped = Some(why);
                    return Ok(());
                }
            }
        }
        let _turn = self.turn(case.log).lock().await;
        // What the last look and the call cost is waited for before them, not between them.
        for _ in 0..parties.len() + 2 {
            hands.pace.one().await;
        }
        let before = match self.last_look(hands, parties, case).await? {
            Ok(stream) => stream,
            Err(why) => {
                effect.skipped = Some(why);
                return Ok(());
            }
        };
        self.reached(Moment::Looked).await;
        let end = case.to.min(before.last);
        if end < case.to {
            effect.notes.push(format!("the stream ends at {end}, not at {} or beyond", case.to));
        }
        let subject = parties.first().map(|party| party.name.clone());
        let called = match (case.decision.verdict, subject.as_deref()) {
            (Verdict::Consume, Some(subject)) => hands.reset(subject, end + 1).await,
            (Verdict::DeleteSubscription, Some(subject)) => hands.delete(subject).await,
            _ => hands.purge(end + 1).await,
        };
        *unanswered = called.as_ref().is_err_and(|e| e.class == Class::Transient);
        called?;
        self.reached(Moment::Called).await;
        for party in parties.iter_mut() {
            if let Some(what) = party.signs.heard() {
                effect.notes.push(format!(
                    "somebody {what} since the last look at {:?}: who was there before the call misses what was given up",
                    party.name
                ));
            }
        }
        effect.aim = Some(Position::of_sequence(end));
        effect.freed_bytes = self.freed(hands, &before).await;
        if case.decision.verdict != Verdict::DeleteSubscription
            && let Some(subject) = subject
            && let Ok(Some(info)) = hands.info(&subject).await
        {
            effect.left_at = Some(Position::of_sequence(info.floor()));
        }
        Ok(())
    }

    /// The last look: the stream as it is, if nothing forbids the call. The stream is read first, and the consumer itself last.
    async fn last_look(
        &self,
        hands: &Hands<'_>,
        parties: &mut [Party],
        case: &Case<'_>,
    ) -> Result<std::result::Result<JetStreamStream, Skipped>> {
        let stream = hands.stream_info().await?;
        if stream.created_ns != case.created_ns {
            return Ok(Err(skipped("changed", "the stream was deleted and made anew", false)));
        }
        let stands = parties.first().map_or(stream.first.saturating_sub(1), |party| party.info.floor());
        if case.to.min(stream.last) <= stands {
            let says = format!("the stream goes from {} to {} by now", stream.first, stream.last);
            return Ok(Err(skipped("changed", says, false)));
        }
        if case.decision.verdict == Verdict::Purge {
            let held = |name: &str| parties.iter().any(|party| party.name == name);
            for (other, state) in hands.consumers().await? {
                let passed = state.present().is_some_and(|state| !state.needs() || state.floor >= case.to);
                if !passed && !held(&other.name) {
                    let says = format!("consumer {:?} needs what would be purged", other.name);
                    return Ok(Err(skipped("changed", says, false)));
                }
            }
        }
        if case.since.elapsed() > self.times.within {
            let says = format!("it took longer than {} s to get this far", self.times.within.as_secs());
            return Ok(Err(skipped("slow", says, false)));
        }
        for party in parties.iter_mut().rev() {
            if let Err(why) = party.watched(hands.info(&party.name).await?, true) {
                return Ok(Err(why));
            }
        }
        Ok(Ok(stream))
    }

    /// How many bytes the stream gave back, as far as it shows in time.
    async fn freed(&self, hands: &Hands<'_>, before: &JetStreamStream) -> Option<i64> {
        let begun = Instant::now();
        let mut wait = Duration::from_millis(10);
        let mut last: Option<JetStreamStream> = None;
        loop {
            let now = hands.stream_info().await.ok();
            let settled = |now: &JetStreamStream| {
                now.messages < before.messages && last.as_ref().is_some_and(|last| last.messages == now.messages)
            };
            if begun.elapsed() > self.times.settle || now.as_ref().is_some_and(settled) {
                let bytes = before.bytes.saturating_sub(now.or(last)?.bytes);
                return Some(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            last = now.or(last);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(200));
        }
    }

    /// Ends the pauses that are ours. One that cannot be ended ends by itself.
    async fn let_go(&self, hands: &Hands<'_>, parties: &[Party], effect: &mut Effect) {
        for party in parties.iter().filter(|party| party.until_ns > 0) {
            hands.pace.one().await;
            if let Err(e) = hands.resume(&party.name, party.until_ns).await {
                let hold = self.times.hold.as_secs();
                effect
                    .notes
                    .push(format!("{} stays paused for up to {hold} s, then goes on by itself: {e}", party.name));
            }
        }
        self.reached(Moment::LetGo).await;
    }
}

/// Who is held for an act: the consumer itself first; for a purge also every other stale one that stands before its end.
fn to_hold<'a>(
    verdict: Verdict,
    consume: &'a Consume,
    (log, stream): (&SubscriberCandidate, &JetStreamStream),
    to: u64,
) -> Vec<(&'a str, &'a str)> {
    let stands_before = |name: &str| {
        let place = log.subscribers.iter().position(|subscriber| subscriber.name == name);
        let state = place.and_then(|place| stream.consumers.get(place)).and_then(|state| state.present());
        state.is_none_or(|state| state.needs() && state.floor < to)
    };
    let itself = |name: &str| name == consume.subscription;
    let (own, others): (Vec<_>, Vec<_>) = consume.stale.iter().partition(|stale| itself(&stale.subscription));
    let others = others.into_iter().filter(|stale| verdict == Verdict::Purge && stands_before(&stale.subscription));
    own.into_iter().chain(others).map(|stale| (stale.subscription.as_str(), stale.progress.as_str())).collect()
}

/// A consumer that is as it was decided on.
fn checked(info: Option<ConsumerInfo>, name: &str, progress: &str) -> std::result::Result<ConsumerInfo, Skipped> {
    let Some(info) = info else {
        return Err(skipped("gone", format!("consumer {name:?} does not exist any more"), false));
    };
    if info.paused {
        return Err(skipped("paused", format!("somebody paused {name:?}"), false));
    }
    still(&info, name, progress)?;
    Ok(info)
}

/// Nobody uses it, and it has not moved.
fn still(info: &ConsumerInfo, name: &str, progress: &str) -> std::result::Result<(), Skipped> {
    if info.used() {
        return Err(skipped("online", format!("somebody is there for {name:?}: it came back"), true));
    }
    if info.progress().as_deref() != Some(progress) {
        return Err(skipped("changed", format!("{name:?} has taken or acknowledged something: it came back"), true));
    }
    Ok(())
}

impl Party {
    /// Whether it is as still as it should be. `paused`: our pause must be seen by now.
    fn watched(&mut self, info: Option<ConsumerInfo>, paused: bool) -> std::result::Result<(), Skipped> {
        let name = &self.name;
        if let Some(what) = self.signs.heard() {
            return Err(skipped("online", format!("somebody {what}: {name:?} came back"), true));
        }
        let Some(info) = info else {
            return Err(skipped("gone", format!("consumer {name:?} does not exist any more"), false));
        };
        still(&info, name, &self.progress)?;
        let ours = info.paused && info.pause_until() == Some(self.until_ns);
        // In a cluster it takes a moment until a pause is seen everywhere.
        let coming = !info.paused && !paused;
        if ours || coming { Ok(()) } else { Err(skipped("paused", format!("{name:?} is not paused by us"), false)) }
    }
}

/// There is nothing to tidy: a pause that was left ends by itself, and one that is not ours is somebody's wish.
impl Act for JetStreamAct {
    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            let bug = |why: &str| TargetError::new(Class::Bug, format!("acting on {:?}", decision.subject), why);
            let Candidate::Subscriber(log) = seen else { return Err(bug("it is not a log with subscribers")) };
            let (Log::JetStream(stream), Some(consume)) = (&log.log, &decision.consume) else {
                return Err(bug("it is not a stream, or says nothing of a consumer"));
            };
            if !matches!(decision.verdict, Verdict::Consume | Verdict::DeleteSubscription | Verdict::Purge) {
                return Err(bug("it is no act on a consumer"));
            }
            if decision.verdict != Verdict::Purge
                && consume.stale.iter().all(|s| s.subscription != consume.subscription)
            {
                return Err(bug("nothing says that the consumer is stale"));
            }
            self.carry_out(decision, consume, (log, stream), record).await
        }
        .boxed()
    }

    fn undo<'a>(
        &'a self,
        undo: &'a Undo,
        _record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        super::undo::undo(self, undo).boxed()
    }
}
