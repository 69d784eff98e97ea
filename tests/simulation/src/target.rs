//! The targets, as one process reaches them: what it may see, what it may call, and what each call is held against.

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use trimtab_events::{Candidate, Decision, LedgerCandidate, Loaded, Scope, TopicClass, Verdict, split_subscriber};
use trimtab_targets::{Act, Class, Effect, Inventory, Item, Permit, ReadsOf, Record, Skipped, TargetError};

use crate::cluster::MINUTE;
use crate::process::{GRACE_S, STALE_S};
use crate::world::{Hands, LAG, State};

type Result<T> = std::result::Result<T, TargetError>;

/// The shards: two of Pulsar's namespaces, and one with Hedwig's logs.
pub(crate) const SHARDS: [&str; 3] = ["acme/a", "acme/b", "acme/h"];
/// What the clocks of processes may be apart, and what a visit takes.
const TOLERANCE: i64 = 15 * MINUTE;

/// The targets in the hands of a process.
#[derive(Clone)]
pub(crate) struct Client(pub(crate) Hands);

fn error(what: &str) -> impl Fn(&str) -> TargetError {
    move |why| TargetError::new(Class::Transient, what, why)
}

fn shard_of(subject: &str) -> &str {
    let name = subject.strip_prefix("persistent://").or(subject.strip_prefix("hedwig://")).unwrap_or(subject);
    name.rsplit_once('/').map_or(name, |(shard, _)| shard)
}

/// What is there under a name, as some server knows it.
fn seen(state: &mut State, subject: &str) -> Option<Candidate> {
    let at = state.read_at();
    let topic = state.topics.get(subject).and_then(|versions| versions.at(at)).cloned();
    let log = state.logs.get(subject).and_then(|versions| versions.at(at)).cloned();
    topic.map(|topic| Candidate::Ledger(Box::new(topic))).or(log.map(|log| Candidate::Subscriber(Box::new(log))))
}

impl Client {
    async fn ask<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T> {
        self.0.send(what, work, error(what)).await
    }
}

impl Inventory for Client {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        async { Ok("model".to_owned()) }.boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<String>>> {
        async move {
            self.ask("shards", |_| ()).await?;
            let only = scope.topic.as_deref().map(shard_of);
            Ok(SHARDS.iter().filter(|shard| only.is_none_or(|only| only == **shard)).map(|s| (*s).to_owned()).collect())
        }
        .boxed()
    }

    fn scan<'a>(&'a self, shard: &'a str, scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let names = async move {
            let (shard, only) = (shard.to_owned(), scope.topic.clone());
            self.ask("list", move |state| {
                let names = state.cluster.topics.keys().chain(state.hubs.topics.keys());
                let wanted = |name: &&String| shard_of(name) == shard && only.as_ref().is_none_or(|only| only == *name);
                names.filter(wanted).cloned().collect::<Vec<_>>()
            })
            .await
        };
        let read =
            move |name: String| async move { self.ask("read", move |state| seen(state, &name)).await.transpose() };
        let items = names.into_stream().flat_map(move |names| match names {
            Ok(names) => stream::iter(names).filter_map(read).map(|found| found.map(Item::Candidate)).boxed(),
            Err(e) => stream::iter([Err(e)]).boxed(),
        });
        items.boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let whole = split_subscriber(subject).map_or(subject, |(log, _)| log).to_owned();
            let key = (self.0.name.to_string(), subject.to_owned());
            {
                let mut state = self.0.world.lock();
                let now = state.now_ms();
                state.looked.insert(key, now);
            }
            let looks = move |state: &mut State| {
                let found = seen(state, &whole);
                // A server that lags does not show that a topic was left open by whoever was killed.
                if let (Some(Candidate::Ledger(old)), Some(new)) = (&found, state.cluster.topics.get(&whole))
                    && old.loaded != new.loaded
                {
                    state.excused.insert(whole);
                }
                found
            };
            self.ask("observe", looks).await
        }
        .boxed()
    }

    fn operations(&self) -> u64 {
        0
    }
}

impl Client {
    /// Holds an act that begins against what must be so.
    fn begins(&self, decision: &Decision) {
        let mut state = self.0.world.lock();
        let (now, who) = (state.now_ms(), self.0.name.to_string());
        let (key, subject) = (format!("{}/{}", decision.id, decision.scan.id), decision.subject.clone());
        state.say(&who, format_args!("acts: {} {subject} {key}", decision.verdict));
        state.acts += 1;
        let mut wrong = Vec::new();
        if !state.intents.contains(&(who.clone(), key.clone())) {
            wrong.push("called before its intent was on disk".to_owned());
        }
        if state.forged.contains(&key) {
            wrong.push("the decision is forged".to_owned());
        }
        let times = state.begun.entry((who.clone(), key.clone())).or_default();
        *times += 1;
        if *times > 1 {
            wrong.push("carried out twice by one executor".to_owned());
        }
        let acts = state.of_scan.entry(decision.scan.id.to_string()).or_default();
        *acts += 1;
        let acts = *acts;
        if acts > state.caps {
            wrong.push(format!("{acts} acts of one scan, {} are allowed", state.caps));
        }
        let taken = state.taken.get(&(who.clone(), key)).copied();
        let looked = state.looked.get(&(who, subject.clone())).copied();
        let since = match (taken, looked) {
            (Some(taken), Some(looked)) if looked >= taken => looked,
            _ => {
                wrong.push(format!("not looked at since it was taken: taken {taken:?}, looked {looked:?}"));
                now
            }
        };
        // Whoever looked may have seen a server that lags.
        let since = since - i64::try_from(LAG.as_millis()).unwrap_or(0);
        let gate = state.gates.get(&decision.scan.id.to_string());
        let open = gate.is_some_and(|story| {
            let begun = story.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
            story[begun..].iter().any(|(_, closed)| !closed)
        });
        if !open {
            wrong.push("the gate of its scan was not open".to_owned());
        }
        let whole = split_subscriber(&subject).map_or(subject.clone(), |(log, _)| log.to_owned());
        if [&subject, &whole].iter().any(|name| state.wishes.get(*name).is_some_and(|at| *at < since)) {
            wrong.push("somebody has asked to leave it alone".to_owned());
        }
        wrong.extend(match decision.consume {
            None => unfounded(&state, decision, since),
            Some(_) => (decision.verdict != Verdict::Consume).then(|| format!("{} is no act", decision.verdict)),
        });
        for why in wrong {
            state.broken(format!("{} {subject}: {why}", decision.verdict));
        }
    }

    async fn on_topic(&self, decision: &Decision) -> Result<Effect> {
        let name = decision.subject.clone();
        let (mut effect, mut visited) = (Effect::default(), false);
        // Ends with this act: what arrives later loads a topic that nobody closes.
        let visit = Connection::open(&self.0);
        let id = visit.id;
        let done = async {
            if decision.verdict == Verdict::ExpireThenTrim {
                for expire in decision.expire.clone() {
                    let name = name.clone();
                    self.ask("expire", move |state| {
                        let now = state.now_ms();
                        state.cluster.expire(&name, &expire.subscription, expire.ttl_s, now);
                        state.excuse(&name, id);
                        state.note_topic(&name);
                    })
                    .await?;
                    visited = true;
                }
            }
            let name = name.clone();
            self.ask("trim", move |state| {
                let now = state.now_ms();
                state.say("broker", format_args!("trims {name}"));
                state.cluster.trim(&name, now);
                state.excuse(&name, id);
                state.note_topic(&name);
            })
            .await
        };
        let done = done.await;
        // As with the real one: a call that was not understood is no visit.
        if visited || !matches!(&done, Err(e) if e.class() != Class::Transient) {
            self.close(&decision.subject, &mut effect).await;
        }
        done.map(|()| effect)
    }

    /// Closes a topic, unless a client uses it by now.
    async fn close(&self, subject: &str, effect: &mut Effect) {
        let name = subject.to_owned();
        let closed = self.ask("close", move |state| {
            let now = state.now_ms();
            if !state.used.contains(&name) {
                state.cluster.close(&name, 0, now);
                state.note_topic(&name);
            }
        });
        match closed.await {
            Ok(()) => effect.unloaded = true,
            Err(e) => {
                self.0.world.lock().excused.insert(subject.to_owned());
                effect.notes.push(format!("the topic was not closed again: {e}"));
            }
        }
    }

    async fn on_subscriber(&self, decision: &Decision) -> Result<Effect> {
        let skipped = |rule: &'static str, says: &str, stood_at| Effect {
            skipped: Some(Skipped { rule, says: says.to_owned(), alive: true }),
            stood_at,
            ..Effect::default()
        };
        let Some(consume) = decision.consume.clone() else {
            return Err(TargetError::new(Class::Bug, "acting on a subscriber", "there is nothing to consume"));
        };
        let (log, name) = (consume.log.clone(), consume.subscription.clone());
        // Ends with this act, however that ends: an attachment lasts as long as its connection.
        let connection = Connection::open(&self.0);
        let (l, n, id) = (log.clone(), name.clone(), connection.id);
        let attached = self
            .ask("attach", move |state| {
                let now = state.now_ms();
                let closed = state.connections.1.contains(&id);
                let member = state.hubs.topics.get_mut(&l)?.members.get_mut(&n)?;
                if member.online {
                    member.alive_ms = now;
                }
                let free = !member.online && member.held.is_none() && !closed;
                if free {
                    member.held = Some(id);
                }
                Some(free)
            })
            .await?;
        match attached {
            None => return Ok(skipped("gone", "it does not exist any more", None)),
            Some(false) => return Ok(skipped("online", "its client is attached", None)),
            Some(true) => {}
        }
        let (l, n) = (log.clone(), name.clone());
        let stands = self.ask("look", move |state| Some(state.hubs.topics.get(&l)?.members.get(&n)?.consumed)).await?;
        if stands != Some(consume.from.entry) {
            return Ok(skipped("changed", "it stands elsewhere", stands.and_then(|at| u64::try_from(at).ok())));
        }
        let who = self.0.name.clone();
        let (l, n, to) = (log.clone(), name.clone(), consume.to.entry);
        let subject = decision.subject.clone();
        self.ask("consume", move |state| {
            let now = state.now_ms();
            // What was sent by a connection that is closed is not read any more.
            let member = state.hubs.topics.get(&l).and_then(|topic| topic.members.get(&n));
            if member.is_none_or(|member| member.held != Some(id)) {
                return;
            }
            if let Some(why) = unfounded_move(state, &l, &n, to, now) {
                state.broken(format!("consume {subject}: {why}"));
            }
            state.say("hub", format_args!("{who} moves {n} of {l} to {to}"));
            state.moved += 1;
            state.hubs.consume(&l, &n, to, now);
            state.note_log(&l);
        })
        .await?;
        Ok(Effect { left_at: Some(consume.to), ..Effect::default() })
    }
}

/// A connection to a hub, with whatever is attached by it.
struct Connection {
    hands: Hands,
    id: u64,
}

impl Connection {
    fn open(hands: &Hands) -> Connection {
        let mut state = hands.world.lock();
        state.connections.0 += 1;
        Connection { hands: hands.clone(), id: state.connections.0 }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.hands.world.lock();
        state.connections.1.insert(self.id);
        for member in state.hubs.topics.values_mut().flat_map(|topic| topic.members.values_mut()) {
            member.held = member.held.filter(|id| *id != self.id);
        }
    }
}

/// Why a call about a topic was not due at any moment since then, if so.
fn unfounded(state: &State, decision: &Decision, since: i64) -> Option<String> {
    if !matches!(decision.verdict, Verdict::Trim | Verdict::ExpireThenTrim | Verdict::StartClock) {
        return Some(format!("{} is no act", decision.verdict));
    }
    let versions = state.topics.get(&decision.subject);
    let seen = versions.into_iter().flat_map(|versions| versions.since(since).flatten());
    // Due at one moment is enough.
    let why = seen.map(|topic| not_due(topic, decision)).reduce(Option::and);
    why.unwrap_or(Some("it was not there".to_owned()))
}

fn not_due(topic: &LedgerCandidate, decision: &Decision) -> Option<String> {
    let Some(policies) = topic.policies.present() else { return Some("its policies are not known".to_owned()) };
    let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    let closed = list.split_last().map_or(&[][..], |(_, closed)| closed);
    let minutes = policies.retention.value.minutes;
    let why = if topic.class != TopicClass::User || topic.shadow || policies.topic_level_unknown.is_some() {
        "nobody may call about it"
    } else if topic.loaded != Loaded::No {
        "somebody has it loaded"
    } else if minutes < 0 {
        "its retention is for ever"
    } else if minutes > 0 && closed.first().is_some_and(|info| info.closed_ms <= 0) {
        "nobody knows when its first ledger was closed"
    } else if decision.expire.iter().any(|expire| expire.ttl_s != policies.ttl_s.value) {
        "its time to live is another"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Why a subscriber must not be moved there, if so.
fn unfounded_move(state: &State, log: &str, name: &str, to: i64, now: i64) -> Option<String> {
    let topic = state.hubs.topics.get(log)?;
    let member = topic.members.get(name)?;
    let idle = now - member.alive_ms;
    if idle < STALE_S * 1000 - TOLERANCE {
        return Some(format!("it was alive {} minutes ago", idle / MINUTE));
    }
    let subject = trimtab_events::subscriber_subject(log, name);
    let marked = state.marked.get(&subject).filter(|(_, progress)| *progress == crate::hubs::progress(member.consumed));
    if marked.is_none_or(|(since, _)| now - since < GRACE_S * 1000 - TOLERANCE) {
        return Some(format!("it was not announced in time: {marked:?}, it stands at {}", member.consumed));
    }
    // Whatever closed range ends there may be gone by now; nothing beyond what was closed when it was decided is in it.
    let open = topic.ranges.iter().rev().find_map(|(_, end)| *end).unwrap_or(topic.last);
    (to > open).then(|| format!("{to} lies in the open range, after {open}"))
}

impl Act for Client {
    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        _seen: &'a Candidate,
        _record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            self.begins(decision);
            match decision.consume {
                None => self.on_topic(decision).await,
                Some(_) => self.on_subscriber(decision).await,
            }
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
            if seen.topic().is_some_and(|topic| topic.loaded != Loaded::No) {
                self.close(&decision.subject, &mut effect).await;
            }
            Ok(effect)
        }
        .boxed()
    }
}
