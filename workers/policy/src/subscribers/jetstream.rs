//! Consumers of a JetStream stream. A message of an interest stream stays until every consumer that reads its subject has acknowledged
//! it, so one that nobody comes back for holds everything from its floor on.
//!
//! The servers do not say how many bytes lie between two sequences. What is said of that is an estimate: the messages, as far as they can
//! be counted, times the average size of the stream's messages.

use std::collections::BTreeMap;

use trimtab_events::{
    Consume, Evidence, Holder, JetStreamConsumer, JetStreamRest, JetStreamStream, Log, Position, Reason, Stale,
    StreamOwner, StreamRetention, SubscriberCandidate, Verdict,
};

use super::filters::{covers, overlap};
use super::{Judged, grace_of, notice, stale};
use crate::config::{Action, Rule, Trust};
use crate::decide::{Context, Policy};
use crate::rules::exclude::{Ruled, UNKNOWN, reason};

/// How many consumers of one stream are acted on at once. Each decision names all those that it counts on.
const AT_ONCE: usize = 64;

pub(super) fn judge(
    log: &SubscriberCandidate,
    stream: &JetStreamStream,
    policy: &Policy,
    context: &Context<'_>,
) -> Vec<Judged> {
    if let Some(ruled) = whole(log, stream) {
        return log.subscribers.iter().map(|_| Judged::from(ruled.clone())).collect();
    }
    let mut judged: Vec<Option<Judged>> = log.subscribers.iter().map(|_| None).collect();
    let mut found = Vec::new();
    for (index, consumer) in stream.consumers.iter().enumerate() {
        match one(log, index, consumer, stream, policy, context) {
            Ok(idle) => found.push(idle),
            Err(ruled) => judged[index] = Some(ruled.into()),
        }
    }
    found.sort_by_key(|idle| (idle.consumer.floor, idle.index));
    let case = Case { log, stream, found: &found, others: others(log, stream, &found), context };
    case.settle(&mut judged);
    let lost = || Judged::from((Verdict::Skip, reason(UNKNOWN, "it was not judged: kept")));
    judged.into_iter().map(|one| one.unwrap_or_else(lost)).collect()
}

/// Whether a consumer keeps messages from going, and is free to take them. One that somebody paused cannot be seen taking any.
pub(super) fn holds(stream: &JetStreamStream, index: usize) -> bool {
    match stream.consumers.get(index) {
        Some(Evidence::Present(consumer)) => {
            stream.retention != StreamRetention::WorkQueue && consumer.holds() && consumer.paused_until_ms.is_none()
        }
        // Where it stands is not known; then nobody can say that it holds nothing.
        _ => true,
    }
}

/// How many groups of unlisted consumers a stream has at most. What reads other subjects beyond that is taken to read everything.
const GROUPS: usize = 128;

/// Lists only the consumers that `keep` says, and sums up the others; of those `idle` says whether they are stale as well.
pub(super) fn fold(
    log: &mut SubscriberCandidate,
    keep: &dyn Fn(usize, &str) -> bool,
    idle: &dyn Fn(usize, &str) -> bool,
) {
    let Log::JetStream(stream) = &mut log.log else { return };
    if stream.consumers.len() != log.subscribers.len() {
        return;
    }
    let mut rest: BTreeMap<(Vec<String>, bool), JetStreamRest> = BTreeMap::new();
    for known in stream.rest.drain(..) {
        rest.insert((known.filters.clone(), known.stale), known);
    }
    let (subscribers, consumers) = (std::mem::take(&mut log.subscribers), std::mem::take(&mut stream.consumers));
    for (index, (subscriber, consumer)) in subscribers.into_iter().zip(consumers).enumerate() {
        if keep(index, &subscriber.name) {
            log.subscribers.push(subscriber);
            stream.consumers.push(consumer);
            continue;
        }
        let stale = idle(index, &subscriber.name);
        let filters = consumer.present().map(|consumer| consumer.filters.clone()).unwrap_or_default();
        add(&mut rest, filters, stale, &one_of(consumer.present()));
    }
    if rest.len() > GROUPS {
        for ((_, stale), known) in std::mem::take(&mut rest) {
            add(&mut rest, Vec::new(), stale, &known);
        }
    }
    stream.rest = rest.into_values().collect();
}

fn one_of(consumer: Option<&JetStreamConsumer>) -> JetStreamRest {
    let Some(consumer) = consumer else {
        return JetStreamRest { consumers: 1, unknown: true, ..JetStreamRest::default() };
    };
    JetStreamRest {
        consumers: 1,
        delivered: (consumer.pending > 0).then(|| consumer.delivered.max(consumer.floor)),
        floor: consumer.needs().then_some(consumer.floor),
        ack_pending: consumer.ack_pending,
        ..JetStreamRest::default()
    }
}

fn add(to: &mut BTreeMap<(Vec<String>, bool), JetStreamRest>, filters: Vec<String>, stale: bool, more: &JetStreamRest) {
    let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    let known = to.entry((filters.clone(), stale)).or_insert_with(|| JetStreamRest {
        filters,
        stale,
        ..JetStreamRest::default()
    });
    known.consumers += more.consumers;
    known.delivered = lower(known.delivered, more.delivered);
    known.floor = lower(known.floor, more.floor);
    known.ack_pending = known.ack_pending.saturating_add(more.ack_pending);
    known.unknown |= more.unknown;
}

/// What ends the matter for all consumers of a stream.
fn whole(log: &SubscriberCandidate, stream: &JetStreamStream) -> Option<Ruled> {
    let skip = |rule: &'static str, says: &str| Some((Verdict::Skip, reason(rule, says)));
    if stream.consumers.len() != log.subscribers.len() {
        return skip(UNKNOWN, "not every consumer was read: kept");
    }
    match stream.owner {
        StreamOwner::User => {}
        StreamOwner::System => return skip("protected", "a stream of the servers' or the client libraries' own"),
        StreamOwner::Trimtab => return skip("protected", "a stream of trimtab's own"),
    }
    if let Some(label) = &stream.keep {
        return Some((Verdict::Keep, reason("protected", format!("the stream's label says trimtab.keep = {label:?}"))));
    }
    match stream.retention {
        StreamRetention::Interest | StreamRetention::Limits => {}
        StreamRetention::WorkQueue => {
            let says = "a work queue: what nobody takes waits for whoever comes, and moving a consumer would leave it without a reader";
            return skip("work-queue", says);
        }
        StreamRetention::Unknown => {
            return skip(UNKNOWN, "what keeps its messages is of a kind that is not known: kept");
        }
    }
    if i64::try_from(stream.last).is_err() {
        return skip(UNKNOWN, "its sequences are beyond what a position can say: kept");
    }
    stream.sealed.then(|| (Verdict::Nothing, reason("sealed", "the stream is sealed: nothing leaves it any more")))
}

/// How a consumer can be made to let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// Its servers move it.
    Reset,
    /// It goes.
    Delete,
    /// It cannot be moved, so the messages are removed for everybody.
    Purge,
}

/// A stale consumer.
struct Idle<'a> {
    /// Place among the stream's consumers.
    index: usize,
    name: &'a str,
    consumer: &'a JetStreamConsumer,
    rule: Option<&'a Rule>,
    means: Means,
    /// Why nothing is done about it but saying so.
    only_told: Option<String>,
    stale: Stale,
    why: Reason,
}

/// Judges one consumer by itself.
fn one<'a>(
    log: &'a SubscriberCandidate,
    index: usize,
    consumer: &'a Evidence<JetStreamConsumer>,
    stream: &JetStreamStream,
    policy: &'a Policy,
    context: &Context<'_>,
) -> Result<Idle<'a>, Ruled> {
    let subscriber = &log.subscribers[index];
    let consumer = match consumer {
        Evidence::Present(consumer) => consumer,
        Evidence::Absent => return Err((Verdict::Skip, reason(UNKNOWN, "it has no state"))),
        Evidence::Unknown(why) => {
            return Err((Verdict::Skip, reason(UNKNOWN, format!("its state is not known: {why}"))));
        }
    };
    let rule = stale::touchable(log, subscriber, policy, context)?;
    let keep = |rule: &'static str, says: String| Err((Verdict::Keep, reason(rule, says)));
    if let Some(label) = &consumer.keep {
        return keep("protected", format!("its label says trimtab.keep = {label:?}"));
    }
    if consumer.paused_until_ms.is_some() {
        return keep("paused", "somebody paused it".into());
    }
    if let Some(threshold_ms) = consumer.inactive_threshold_ms {
        let says =
            format!("inactive_threshold: its servers delete it after {} s without a client", threshold_ms / 1000);
        return keep("inactive-threshold", says);
    }
    if stream.retention == StreamRetention::Limits {
        return Err((
            Verdict::Nothing,
            reason("limits", "consumers of a stream that only its limits bound hold nothing"),
        ));
    }
    if !consumer.holds() {
        return Err((Verdict::Nothing, reason("caught-up", "there is nothing that it has not acknowledged")));
    }
    if rule.is_some_and(|rule| rule.trust == Trust::Field) && consumer.last_active_ms.is_none() {
        let says = "when it was last used is not known: its server forgets that when it restarts";
        return keep("activity", says.into());
    }
    let found = stale::stale(subscriber, None, rule, context)?;
    let means = match rule.map(|rule| rule.action) {
        Some(Action::Delete) => Means::Delete,
        _ if consumer.deliver.movable() && stream.can_reset => Means::Reset,
        _ => Means::Purge,
    };
    let stale = Stale { subscription: subscriber.name.clone(), progress: found.progress, history: found.history };
    let only_told = only_told(found.rule, means, stream);
    Ok(Idle { index, name: &subscriber.name, consumer, rule: found.rule, means, only_told, stale, why: found.why })
}

/// Why nothing may be done about a stale consumer, if so.
fn only_told(rule: Option<&Rule>, means: Means, stream: &JetStreamStream) -> Option<String> {
    if rule.is_some_and(|rule| rule.action == Action::Report) {
        return Some("a rule only reports it".to_owned());
    }
    if !rule.is_some_and(|rule| rule.allow_unguarded) {
        let how = match means {
            Means::Reset => "move a consumer",
            Means::Delete => "delete a consumer",
            Means::Purge => "purge a stream",
        };
        return Some(format!(
            "JetStream's servers {how} without looking whether somebody is back, so a rule must say allow_unguarded = true"
        ));
    }
    (means == Means::Purge && stream.deny_purge).then(|| {
        "its servers cannot move it, because of where it began or their version, and the stream's deny_purge forbids the other way; \
         action = \"delete\" deletes it"
            .to_owned()
    })
}

/// Somebody who keeps messages that a stale consumer lets go.
#[derive(Clone, Copy)]
struct Other<'a> {
    name: &'a str,
    filters: &'a [String],
    /// Beyond this it was sent nothing, and it holds everything there.
    delivered: Option<u64>,
    /// Beyond this removing messages would take something from it.
    floor: Option<u64>,
    ack_pending: u64,
    since_ms: i64,
    /// It is stale too, and is not acted on now.
    stale: bool,
    /// Why nothing is known of it.
    unknown: Option<&'a str>,
}

impl<'a> Other<'a> {
    fn of(name: &'a str, consumer: &'a JetStreamConsumer, stale: bool) -> Other<'a> {
        Other {
            name,
            filters: &consumer.filters,
            delivered: (consumer.pending > 0).then(|| consumer.delivered.max(consumer.floor)),
            floor: consumer.needs().then_some(consumer.floor),
            ack_pending: consumer.ack_pending,
            since_ms: consumer.last_active_ms.unwrap_or(consumer.created_ns / 1_000_000),
            stale,
            unknown: None,
        }
    }
}

/// Everybody who is not stale.
fn others<'a>(log: &'a SubscriberCandidate, stream: &'a JetStreamStream, found: &[Idle<'_>]) -> Vec<Other<'a>> {
    let idle: Vec<usize> = {
        let mut places: Vec<usize> = found.iter().map(|idle| idle.index).collect();
        places.sort_unstable();
        places
    };
    let lost = |name, why| Other {
        name,
        filters: &[],
        delivered: Some(0),
        floor: Some(0),
        ack_pending: 0,
        since_ms: 0,
        stale: false,
        unknown: Some(why),
    };
    let listed = log.subscribers.iter().zip(&stream.consumers).enumerate();
    let listed =
        listed.filter(|(index, _)| idle.binary_search(index).is_err()).map(
            |(_, (subscriber, consumer))| match consumer {
                Evidence::Present(consumer) => Other::of(&subscriber.name, consumer, false),
                Evidence::Absent => lost(&subscriber.name, "it has no state"),
                Evidence::Unknown(why) => lost(&subscriber.name, why.as_str()),
            },
        );
    let rest = stream.rest.iter().map(|rest| {
        if rest.unknown {
            return lost(UNLISTED, "it is not listed");
        }
        Other {
            name: UNLISTED,
            filters: &rest.filters,
            delivered: rest.delivered,
            floor: rest.floor,
            ack_pending: rest.ack_pending,
            since_ms: 0,
            stale: rest.stale,
            unknown: None,
        }
    });
    listed.chain(rest).filter(|other| other.floor.is_some()).collect()
}

/// What a consumer is called that is not listed.
const UNLISTED: &str = "(others)";

/// A stream while its stale consumers are decided about.
struct Case<'a> {
    log: &'a SubscriberCandidate,
    stream: &'a JetStreamStream,
    /// By floor.
    found: &'a [Idle<'a>],
    others: Vec<Other<'a>>,
    context: &'a Context<'a>,
}

/// Where a stale consumer is moved, and what that frees.
struct Prospect {
    to: u64,
    /// Messages of its own that go, about, once all that are acted on have let go.
    messages: u64,
    /// Those of them that are counted on it: up to where the next one stands.
    share: u64,
    /// Who keeps the rest.
    holder: Option<Holder>,
}

/// What was found out about some stale consumers.
type Of<'a, T> = Vec<(&'a Idle<'a>, T)>;

impl<'a> Case<'a> {
    fn settle(&self, judged: &mut [Option<Judged>]) {
        let (told, movable): (Vec<&'a Idle<'a>>, Vec<&'a Idle<'a>>) =
            self.found.iter().partition(|idle| idle.only_told.is_some());
        let (chosen, later) = movable.split_at(movable.len().min(AT_ONCE));
        for idle in later {
            let says = format!("{AT_ONCE} other consumers that stand lower come first; a later scan takes this one");
            judged[idle.index] = Some(idle.with((Verdict::Keep, reason("later", says))));
        }
        for (place, idle) in told.iter().enumerate() {
            judged[idle.index] = Some(self.told(idle, &told, chosen, place < AT_ONCE));
        }
        let (agreed, pinned) = self.agree(chosen.to_vec());
        for (idle, why) in pinned {
            judged[idle.index] = Some(match why {
                Ok(holder) => idle.pinned(holder),
                Err(ruled) => idle.with(ruled),
            });
        }
        let all = self.bytes(agreed.iter().map(|(_, prospect)| prospect.share).sum());
        let announced: Vec<&Idle<'a>> = agreed.iter().map(|(idle, _)| *idle).collect();
        let mut ready = Vec::new();
        for (idle, prospect) in &agreed {
            let subscriber = &self.log.subscribers[idle.index];
            let consume = || self.consume(idle, prospect.to, &announced);
            judged[idle.index] = if let Some(rule) = idle.rule.filter(|rule| all < rule.min_reclaim_bytes) {
                let least = rule.min_reclaim_bytes;
                let says = format!("rule {}: about {all} bytes are less than min_reclaim, {least}", rule.name);
                Some(idle.with((Verdict::Keep, reason("rule", says))))
            } else if let Some(mut noticed) = notice(subscriber, idle.rule, self.context.now_ms, consume) {
                noticed.reasons.push(idle.why.clone());
                Some(noticed)
            } else {
                ready.push(*idle);
                None
            };
        }
        let (agreed, waiting) = self.agree(ready);
        for (idle, _) in waiting {
            let says = "others that must move as well for anything to be freed are still in their grace period";
            judged[idle.index] = Some(idle.with((Verdict::Keep, reason("grace", says))));
        }
        let moved: Vec<&Idle<'a>> = agreed.iter().map(|(idle, _)| *idle).collect();
        for (idle, prospect) in &agreed {
            judged[idle.index] = Some(self.act(idle, prospect, &moved));
        }
    }

    /// Those of some consumers that free something if all who are returned let go, and the others, with who holds everything. Whoever
    /// would free nothing stays, and then holds for the rest.
    fn agree(&self, mut moved: Vec<&'a Idle<'a>>) -> (Of<'a, Prospect>, Of<'a, Result<Option<Holder>, Ruled>>) {
        let mut staying = Vec::new();
        loop {
            let prospects: Vec<_> = moved.iter().map(|idle| (*idle, self.prospect(idle, &moved))).collect();
            let mut agreed = Vec::new();
            let before = staying.len();
            for (idle, prospect) in prospects {
                match prospect {
                    Ok(prospect) if prospect.messages > 0 => agreed.push((idle, prospect)),
                    Ok(prospect) => staying.push((idle, Ok(prospect.holder))),
                    Err(ruled) => staying.push((idle, Err(ruled))),
                }
            }
            if staying.len() == before {
                return (agreed, staying);
            }
            moved = agreed.into_iter().map(|(idle, _)| idle).collect();
        }
    }

    /// What is done about one of those that let go together.
    fn act(&self, idle: &Idle<'a>, prospect: &Prospect, moved: &[&Idle<'a>]) -> Judged {
        let (verdict, how) = match idle.means {
            Means::Reset => (Verdict::Consume, "its servers move it"),
            Means::Delete => (Verdict::DeleteSubscription, "its servers delete it"),
            Means::Purge => (
                Verdict::Purge,
                "its servers cannot move it (where it began, or their version), so they purge the stream",
            ),
        };
        let mut one = Judged::from((verdict, idle.why.clone()));
        one.bytes = self.bytes(prospect.share);
        let says = format!("{how}; up to sequence {} about {} messages go", prospect.to, prospect.share);
        one.reasons.push(reason("estimate", says));
        one.consume = Some(self.consume(idle, prospect.to, moved));
        one
    }

    /// A stale consumer of which a person is only told. What could go is worked out for the first ones only: each is compared with all.
    fn told(&self, idle: &Idle<'a>, told: &[&Idle<'a>], chosen: &[&Idle<'a>], work_out: bool) -> Judged {
        let moved = || -> Vec<&Idle<'a>> { told.iter().take(AT_ONCE).chain(chosen).copied().collect() };
        let could = match work_out.then(|| self.prospect(idle, &moved())) {
            Some(Ok(prospect)) => format!("about {} bytes could go", self.bytes(prospect.share)),
            Some(Err((_, why))) => format!("what could go is not known: {}", why.says),
            None => format!("at most {} bytes could go", self.bytes(idle.held())),
        };
        let why = idle.only_told.as_deref().unwrap_or_default();
        idle.with((Verdict::Report, reason("rule", format!("{why}; {could}"))))
    }

    fn consume(&self, idle: &Idle<'a>, to: u64, moved: &[&Idle<'a>]) -> Consume {
        let counts_on =
            |other: &&&Idle<'a>| idle.means == Means::Purge || overlap(&other.consumer.filters, &idle.consumer.filters);
        Consume {
            log: self.log.subject.clone(),
            subscription: idle.name.to_owned(),
            from: Position::of_sequence(idle.consumer.floor),
            to: Position::of_sequence(to),
            messages: i64::try_from(self.between(idle, to)).unwrap_or(i64::MAX),
            grace_s: grace_of(idle.rule),
            stale: moved.iter().filter(counts_on).map(|other| other.stale.clone()).collect(),
        }
    }

    /// Messages that a consumer holds up to a sequence, at most.
    fn between(&self, idle: &Idle<'a>, to: u64) -> u64 {
        let behind = idle.consumer.floor.max(self.stream.first.saturating_sub(1));
        to.saturating_sub(behind).min(idle.held())
    }

    /// Where one of `moved` goes, and what that frees once all of them have let go.
    fn prospect(&self, idle: &Idle<'a>, moved: &[&Idle<'a>]) -> Result<Prospect, Ruled> {
        let idling = self.found.iter().filter(|other| moved.iter().all(|moved| moved.index != other.index));
        let idling = idling.map(|other| Other::of(other.name, other.consumer, other.only_told.is_none()));
        let staying: Vec<Other<'_>> = idling.chain(self.others.iter().copied()).collect();
        let filters = &idle.consumer.filters;
        let end = self.stream.last.min(self.stream.until.unwrap_or(u64::MAX));
        let (mut to, mut reach, mut in_hand) = (end, end, 0_u64);
        let mut lowest: Option<(u64, &Other<'_>)> = None;
        for other in &staying {
            if let Some(why) = other.unknown {
                let says = format!(
                    "where consumer {:?} stands is not known, so what would go is not either: {why}",
                    other.name
                );
                return Err((Verdict::Skip, reason(UNKNOWN, says)));
            }
            let at = match idle.means {
                // A purge takes from everybody.
                Means::Purge => other.floor,
                Means::Reset | Means::Delete => other.delivered.filter(|_| covers(other.filters, filters)),
            };
            if let Some(at) = at {
                reach = reach.min(at);
                // To go beyond what others have taken frees nothing now. Those who are stale as well let go of it later. A decision that
                // is looked at again has its place already.
                if idle.means == Means::Purge || !(other.stale || self.stream.until.is_some()) {
                    to = to.min(at);
                }
                if lowest.is_none_or(|(lowest, _)| at < lowest) {
                    lowest = Some((at, other));
                }
            }
            if idle.means != Means::Purge && overlap(other.filters, filters) {
                in_hand = in_hand.saturating_add(other.ack_pending);
            }
        }
        let messages = self.between(idle, reach).saturating_sub(in_hand);
        let after = |other: &&&Idle<'a>| {
            (other.consumer.floor, other.index) > (idle.consumer.floor, idle.index)
                && covers(&other.consumer.filters, filters)
        };
        let next = moved.iter().filter(after).map(|other| other.consumer.floor).min();
        let share = messages.min(next.map_or(u64::MAX, |next| self.between(idle, next)));
        let most_in_hand =
            || staying.iter().filter(|other| overlap(other.filters, filters)).max_by_key(|o| o.ack_pending);
        let holder = lowest.or_else(|| most_in_hand().map(|other| (other.floor.unwrap_or(0), other)));
        let holder = holder.map(|(at, other)| Holder {
            cursor: other.name.to_owned(),
            position: Position::of_sequence(at),
            bytes: self.bytes(self.between(idle, end).saturating_sub(messages)),
            since_ms: other.since_ms,
        });
        Ok(Prospect { to, messages, share, holder })
    }

    /// About how many bytes so many messages have.
    fn bytes(&self, messages: u64) -> i64 {
        let stream = self.stream;
        let bytes = u128::from(messages) * u128::from(stream.bytes) / u128::from(stream.messages.max(1));
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }
}

impl Idle<'_> {
    /// Messages that it holds.
    fn held(&self) -> u64 {
        self.consumer.pending.saturating_add(self.consumer.ack_pending)
    }

    /// It, when that ends the matter.
    fn with(&self, ruled: Ruled) -> Judged {
        let mut one = Judged::from(ruled);
        one.reasons.push(self.why.clone());
        one
    }

    /// It, when moving it would free nothing.
    fn pinned(&self, holder: Option<Holder>) -> Judged {
        let Some(holder) = holder else {
            return self.with((Verdict::Nothing, reason("caught-up", "nothing that it holds is still there")));
        };
        let says = format!(
            "pinned by another: consumer {:?} stands at {}, so moving this one would cost it its messages and free nothing",
            holder.cursor, holder.position.entry
        );
        Judged { holder: Some(holder), ..self.with((Verdict::Blocked, reason("pinned-by-other", says))) }
    }
}
