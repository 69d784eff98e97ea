//! Everybody else: clients of the targets, people, and accidents.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use trimtab::activity::Activity;
use trimtab::scans::Scans;
use trimtab::sign::Signer;
use trimtab_bus::{Bus, BusOptions, InProcess};
use trimtab_events::{Body, Event, Evidence, Loaded, Protection, Trace, key_of};

use crate::cluster::{DAY, End, MINUTE, subject};
use crate::process::TARGET;
use crate::target::SHARDS;
use crate::wires::again;
use crate::world::{EPOCH, GateStory, State, World};

/// The topics that are there at the beginning, each of them a case of its own.
pub(crate) fn settle(state: &mut State) {
    const WEEK: i64 = 7 * 24 * 60;
    let old = EPOCH - 30 * DAY;
    let cluster = &mut state.cluster;
    for name in ["a/due-0", "a/due-1", "b/due-2"] {
        cluster.add(name, &[old, old, old], WEEK, 0, End::Caught);
    }
    cluster.add("a/young", &[EPOCH - DAY, EPOCH - DAY], WEEK, 0, End::Caught);
    cluster.add("b/expire", &[old, old, old], 10, 3600, End::Start);
    cluster.add("b/clock", &[], 10, 0, End::Caught);
    cluster.add("b/held", &[old, old], WEEK, 0, End::Start);
    cluster.add("a/forever", &[old, old], -1, 0, End::Caught);
    // Nobody knows when this was closed: no moment in 1970.
    cluster.add("a/timeless", &[0, 0, 0], WEEK, 0, End::Caught);
    cluster.add("b/unknown", &[old, old], WEEK, 0, End::Caught);
    cluster.add("b/shadow", &[old, old], WEEK, 0, End::Caught);
    if let Some(topic) = cluster.topics.get_mut(&subject("b/unknown")) {
        topic.policies = Evidence::Unknown("its namespace cannot be read".to_owned());
    }
    if let Some(topic) = cluster.topics.get_mut(&subject("b/shadow")) {
        topic.shadow = true;
    }
    state.hubs.add("hedwig://acme/h/orders", 4, &[("gone", 0), ("here", 25)], EPOCH - DAY);
    state.hubs.add("hedwig://acme/h/mail", 3, &[("both", 7), ("gone", 7)], EPOCH - DAY);
    for name in topics(state) {
        state.note_topic(&name);
    }
    for log in logs(state) {
        state.note_log(&log);
    }
}

/// Names of Hedwig's.
fn logs(state: &State) -> Vec<String> {
    state.hubs.topics.keys().cloned().collect()
}

/// Names of Pulsar's topics.
fn topics(state: &State) -> Vec<String> {
    state.cluster.topics.keys().cloned().collect()
}

/// What clients and owners do, from time to time, as long as things go on.
pub(crate) async fn clients(world: World) {
    loop {
        let wait = {
            let mut state = world.lock();
            Duration::from_millis(state.rng.u64(0..600_000))
        };
        sleep(wait).await;
        if world.lock().quiet {
            return;
        }
        something(&world).await;
    }
}

async fn something(world: &World) {
    let (what, name, log, amount) = {
        let mut state = world.lock();
        let (names, logs) = (topics(&state), logs(&state));
        let name = names[state.rng.usize(0..names.len())].clone();
        let log = logs[state.rng.usize(0..logs.len())].clone();
        (state.rng.u8(0..9), name, log, state.rng.i64(1..20))
    };
    match what {
        // A client uses a topic for a while, and writes to it.
        0 | 1 => {
            let used = {
                let mut state = world.lock();
                let now = state.now_ms();
                let free = state.used.insert(name.clone());
                if free {
                    state.say("client", format_args!("uses {name}"));
                    state.cluster.load(&name, now);
                    state.note_topic(&name);
                }
                free
            };
            if used {
                let world = world.clone();
                let minutes = u64::try_from(amount).unwrap_or(1);
                tokio::spawn(async move {
                    sleep(Duration::from_secs(60 * minutes)).await;
                    let mut state = world.lock();
                    let now = state.now_ms();
                    state.used.remove(&name);
                    state.cluster.close(&name, amount, now);
                    state.say("client", format_args!("leaves {name}"));
                    state.note_topic(&name);
                });
            }
        }
        // Somebody changes a policy.
        2 => {
            let mut state = world.lock();
            let (now, ttl) = (state.now_ms(), state.rng.bool());
            let drawn = *state.rng.choice(&[0, 10, 60, 7 * 24 * 60, -1][..]).unwrap_or(&0);
            state.say("owner", format_args!("changes policies of {name}: {drawn}, ttl {ttl}"));
            if let Some(topic) = state.cluster.topics.get_mut(&name)
                && let Evidence::Present(policies) = &mut topic.policies
            {
                match ttl {
                    true => policies.ttl_s.value = drawn.max(0) * 60,
                    false => policies.retention.value.minutes = drawn,
                }
            }
            state.cluster.touch(&name, now);
            state.note_topic(&name);
        }
        // A subscriber comes back, for a while, and takes what it is owed, or a part of it.
        3..=5 => {
            let member = {
                let mut state = world.lock();
                let members = state.hubs.topics[&log].members.keys().cloned().collect::<Vec<_>>();
                members[state.rng.usize(0..members.len())].clone()
            };
            let world = world.clone();
            tokio::spawn(async move { visit(&world, &log, &member, amount).await });
        }
        // Messages are published.
        6 => {
            let mut state = world.lock();
            let now = state.now_ms();
            state.hubs.grow(&log, now);
            state.note_log(&log);
        }
        // A topic goes, or another comes.
        7 => {
            let mut state = world.lock();
            let now = state.now_ms();
            if name.contains("due") && state.cluster.topics.remove(&name).is_some() {
                state.say("owner", format_args!("deletes {name}"));
                state.used.remove(&name);
                state.note_topic(&name);
            } else {
                let name = format!("a/new-{amount}");
                if !state.cluster.topics.contains_key(&subject(&name)) {
                    state.say("owner", format_args!("makes {name}"));
                    state.cluster.add(&name, &[now - 10 * MINUTE], 10, 0, End::Caught);
                    state.note_topic(&subject(&name));
                }
            }
        }
        // Somebody asks for something to be left alone, or takes that back.
        _ => person(world, if amount % 2 == 0 { name } else { log }).await,
    }
}

async fn visit(world: &World, log: &str, name: &str, messages: i64) {
    // A client whose place is taken tries again.
    for _ in 0..20 {
        {
            let mut state = world.lock();
            let member = state.hubs.topics.get_mut(log).and_then(|topic| topic.members.get_mut(name));
            let Some(member) = member.filter(|member| !member.online) else { return };
            if member.held.is_none() {
                member.online = true;
                break;
            }
        }
        sleep(Duration::from_secs(10)).await;
    }
    for _ in 0..3 {
        sleep(Duration::from_secs(60)).await;
        let mut state = world.lock();
        let now = state.now_ms();
        let Some(member) = state.hubs.topics.get_mut(log).and_then(|topic| topic.members.get_mut(name)) else { return };
        let to = member.consumed + messages / 3;
        if messages > 3 {
            member.alive_ms = now;
            state.hubs.consume(log, name, to, now);
            state.say("client", format_args!("{name} of {log} takes messages up to {to}"));
            state.note_log(log);
        }
    }
    let mut state = world.lock();
    if let Some(member) = state.hubs.topics.get_mut(log).and_then(|topic| topic.members.get_mut(name)) {
        member.online = false;
    }
}

async fn person(world: &World, name: String) {
    let activity = Activity::new(world.store.clone(), TARGET);
    let wished = world.lock().wishes.contains_key(&name);
    if wished {
        world.lock().wishes.remove(&name);
        activity.unprotect(&name).await.expect("the store in memory works");
    } else {
        let wish = Protection { subject: name.clone(), by: "a person".to_owned(), until_ms: None };
        activity.protect(&wish).await.expect("the store in memory works");
        let mut state = world.lock();
        let now = state.now_ms();
        state.wishes.insert(name.clone(), now);
    }
    world.lock().say("person", format_args!("protects {name}: {}", !wished));
}

/// Brokers trim what they have loaded, and hubs collect, from time to time.
pub(crate) async fn collect(world: World) {
    loop {
        sleep(Duration::from_secs(300)).await;
        let mut state = world.lock();
        let now = state.now_ms();
        for name in topics(&state) {
            if state.cluster.topics[&name].loaded == Loaded::Yes {
                state.cluster.trim(&name, now);
                state.note_topic(&name);
            }
        }
        for log in logs(&state) {
            if !state.hubs.collect(&log, now).is_empty() {
                state.note_log(&log);
            }
        }
    }
}

/// Somebody looks now and then at scans that a limit has stopped, and lets them go on.
pub(crate) async fn confirm(world: World) {
    let scans = Scans::new(world.store.clone());
    loop {
        sleep(Duration::from_secs(1200)).await;
        let closed = |(scan, story): (&String, &GateStory)| {
            story.last().is_some_and(|(_, closed)| *closed).then(|| scan.parse().ok()).flatten()
        };
        let stopped: Vec<uuid::Uuid> = world.lock().gates.iter().filter_map(closed).collect();
        for scan in stopped {
            let confirmed = scans.confirm(scan, "a person").await;
            let mut state = world.lock();
            let now = state.now_ms();
            state.say("person", format_args!("confirms {scan}: {}", confirmed.is_ok()));
            state.gates.entry(scan.to_string()).or_default().push((now, false));
        }
    }
}

/// What happens to processes and to what they share.
pub(crate) async fn accidents(world: World) {
    let minutes = world.lock().weather.accident_minutes;
    if minutes == 0 {
        return;
    }
    loop {
        let wait = world.lock().rng.u64(0..u64::from(minutes) * 120);
        sleep(Duration::from_secs(wait)).await;
        if world.lock().quiet {
            return;
        }
        let mut lost = None;
        let forged = {
            let mut state = world.lock();
            let count = state.procs.len();
            let one = state.rng.usize(0..count);
            match state.rng.u8(0..6) {
                0 => {
                    let until = Duration::from_millis(state.rng.u64(1_000..300_000));
                    let proc = &mut state.procs[one];
                    proc.paused = Some(Instant::now() + until);
                    let name = proc.name.clone();
                    state.say("accident", format_args!("{name} stands still for {} ms", until.as_millis()));
                    None
                }
                1 => {
                    let ahead = state.rng.i64(-120_000..120_000);
                    state.procs[one].ahead_ms = ahead;
                    let name = state.procs[one].name.clone();
                    state.say("accident", format_args!("the clock of {name} is {ahead} ms ahead"));
                    None
                }
                2 => {
                    let proc = &mut state.procs[one];
                    let (name, crash) = (proc.name.clone(), proc.crash.clone());
                    if !proc.dead {
                        proc.dead = true;
                        crash.notify_one();
                        state.say("accident", format_args!("{name} is killed"));
                    }
                    None
                }
                3 => {
                    let shard = *state.rng.choice(&SHARDS[..]).unwrap_or(&SHARDS[0]);
                    let name = match state.rng.bool() {
                        true => format!("scan.{TARGET}"),
                        false => format!("shard.{TARGET}.{}", key_of(TARGET, shard)),
                    };
                    state.say("accident", format_args!("the lease {name} is lost"));
                    world.store.lose_lease(&name);
                    None
                }
                4 if state.rng.u8(0..4) == 0 => {
                    state.say("accident", format_args!("all queues are lost"));
                    lost = Some(std::mem::replace(&mut state.bus, new_bus()));
                    None
                }
                _ => forge(&mut state),
            }
        };
        if let Some(bus) = lost {
            bus.close().await;
        }
        if let Some(event) = forged {
            again(&world, &event).await;
        }
    }
}

/// A bus for a run: nothing is given up before the workers give it up themselves.
pub(crate) fn new_bus() -> Arc<InProcess> {
    Arc::new(InProcess::new(BusOptions { max_deliver: 1_000, ..BusOptions::default() }))
}

/// An event like one that was published, as somebody would make it who can write to the queues: another decision, or the same with other
/// words, unsigned, or signed with a key of their own, or with the old signature.
fn forge(state: &mut State) -> Option<Event> {
    let decisions: Vec<Event> =
        state.seen_events.iter().filter(|event| &*event.kind == "dev.trimtab.decision.v1").cloned().collect();
    let event = state.rng.choice(&decisions).cloned()?;
    let Ok(Body::Decision(mut decision)) = event.body() else { return None };
    let other = state.rng.u128(..);
    decision.id = uuid::Uuid::from_u128(other);
    let names = topics(state);
    if decision.consume.is_none() && state.rng.bool() {
        decision.subject = state.rng.choice(&names).cloned()?;
    }
    let key = format!("{}/{}", decision.id, decision.scan.id);
    let at = trimtab::clock::timestamp(state.now_ms());
    let id = decision.id.to_string();
    let mut forged = Event::new(id, &event.source, &event.target, at, Trace::default(), decision).ok()?;
    match state.rng.u8(0..3) {
        0 => {}
        1 => {
            forged.signer.clone_from(&event.signer);
            forged.signature.clone_from(&event.signature);
            forged.proof.clone_from(&event.proof);
        }
        _ => Signer::ephemeral().sign(&mut forged).ok()?,
    }
    state.say("accident", format_args!("somebody forges {key} for {}", forged.subject));
    state.forged.insert(key);
    Some(forged)
}

/// Who is still there at the end: nobody holds a topic open that is nobody's.
pub(crate) fn left_open(state: &State) -> Vec<String> {
    let open = |(name, topic): (&String, &trimtab_events::LedgerCandidate)| {
        let open = topic.loaded == Loaded::Yes && !state.used.contains(name) && !state.excused.contains(name);
        open.then(|| name.clone())
    };
    state.cluster.topics.iter().filter_map(open).collect()
}
