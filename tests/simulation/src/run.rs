//! One run: a seed, and what came of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use trimtab::journal::{self, RecordKind};
use trimtab_bus::{Bus, Role};
use trimtab_events::Loaded;

use crate::cluster::{due, filled};
use crate::hubs::{CONSUME_INTERVAL, Member};
use crate::process::{Does, Process};
use crate::users;
use crate::world::{FAULTY, Fault, State, WHOLE, Weather, World};

/// Fewer acts than this of a scan are a limit that holds things back.
const FEW: u64 = 8;

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Ran {
    /// Everything that happened.
    pub log: String,
    /// Promises that were broken.
    pub wrong: Vec<String>,
    /// How often each call went wrong in each way.
    pub reached: BTreeMap<(String, Fault), u64>,
    /// How often each call was made.
    pub made: BTreeMap<String, u64>,
    /// Acts that were begun.
    pub acts: u64,
    /// Subscribers that were moved.
    pub moved: u64,
    /// Lives of processes.
    pub lives: u64,
}

/// How things go wrong in a run.
fn weather(rng: &mut fastrand::Rng) -> Weather {
    let mut often = |most: u32| if rng.bool() { 0 } else { rng.u32(2..most) };
    let (lost, twice, delayed, stale) = (often(60), often(20), often(20), often(20));
    let weights = std::array::from_fn(|_| if rng.u8(0..3) == 0 { 0 } else { rng.u32(1..10) });
    let accident_minutes = if rng.u8(0..4) == 0 { 0 } else { rng.u32(1..60) };
    let answers_ms = if rng.u8(0..3) == 0 { rng.u64(100..6_000) } else { 0 };
    Weather { answers_ms, one_in: rng.u32(20..1_000), weights, lost, twice, delayed, stale, accident_minutes }
}

/// Which processes there are.
fn processes(world: &World, folder: &Path) -> Vec<Process> {
    let (apart, count, scanners, mut ahead) = {
        let mut state = world.lock();
        let ahead: Vec<i64> = (0..16).map(|_| state.rng.i64(-120_000..120_000)).collect();
        (state.rng.u8(0..3) > 0, state.rng.usize(1..=2), state.rng.usize(1..=3), ahead)
    };
    let mut all = Vec::new();
    let mut add = |does, name: String| {
        let ahead = ahead.pop().unwrap_or(0);
        all.push(Process::add(world, does, &name, folder, ahead));
    };
    if !apart {
        // Several of what `run --every` starts, over one bus.
        (0..count).for_each(|n| add(Does::Everything, format!("all-{n}")));
        return all;
    }
    add(Does::Trigger, "trigger-0".to_owned());
    (0..scanners).for_each(|n| add(Does::Scanner, format!("scanner-{n}")));
    for n in 0..count {
        add(Does::Decider, format!("decider-{n}"));
        add(Does::Executor, format!("executor-{n}"));
    }
    add(Does::Audit, "audit-0".to_owned());
    all
}

/// Runs one seed from its beginning to its end.
pub fn run(seed: u64) -> Ran {
    watch_panics();
    let folder = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "." });
    let folder = folder.expect("a folder for the records");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let (world, processes) = runtime.block_on(whole(seed, folder.path()));
    drop(runtime);
    let mut state = world.lock();
    for panic in PANICS.with_borrow_mut(std::mem::take) {
        state.broken(format!("a panic: {panic}"));
    }
    for process in &processes {
        records(&mut state, process);
    }
    Ran {
        log: std::mem::take(&mut state.log),
        wrong: std::mem::take(&mut state.wrong),
        reached: std::mem::take(&mut state.reached),
        made: std::mem::take(&mut state.made),
        acts: state.acts,
        moved: state.moved,
        lives: state.procs.iter().map(|proc| u64::from(proc.life)).sum(),
    }
}

/// Runs seeds on all cores, and hands over what came of each, in no order.
pub fn each(seeds: Range<u64>, see: impl Fn(u64, Ran) + Sync) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    see(seed, run(seed));
                }
            });
        }
    });
}

async fn whole(seed: u64, folder: &Path) -> (World, Vec<Process>) {
    let begun = Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let weather = weather(&mut rng);
    let world = World::new(rng, weather.clone(), users::new_bus());
    users::settle(&mut world.lock());
    {
        let mut state = world.lock();
        state.caps = if state.rng.u8(0..8) == 0 { state.rng.u64(2..FEW) } else { 30 };
    }
    world.lock().say("seed", format_args!("{seed}: {weather:?}"));
    let processes = processes(&world, folder);
    let lives = futures::future::join_all(processes.iter().map(Process::lives));
    let others = async {
        let others = [tokio::spawn(users::clients(world.clone())), tokio::spawn(users::accidents(world.clone()))];
        let hubs = tokio::spawn(users::collect(world.clone()));
        let person = tokio::spawn(users::confirm(world.clone()));
        sleep_until(begun + FAULTY).await;
        world.lock().quiet = true;
        world.lock().say("seed", format_args!("nothing goes wrong any more"));
        sleep_until(begun + WHOLE).await;
        // A scan that has just been asked for has its time as well.
        let bus = world.lock().bus.clone();
        for second in 1..=60 {
            if bus.depth(Role::Scanner).await.is_ok_and(|depth| depth == 0) {
                break;
            }
            sleep_until(begun + WHOLE + Duration::from_secs(second)).await;
        }
        others.iter().for_each(tokio::task::JoinHandle::abort);
        hubs.abort();
        person.abort();
    };
    tokio::select! { biased; () = others => {}, _ = lives => {} }
    ended(&world).await;
    (world, processes)
}

/// What must be so once nothing has gone wrong for a while.
async fn ended(world: &World) {
    let bus = world.lock().bus.clone();
    let mut waiting = Vec::new();
    for role in Role::ALL {
        let depth = bus.depth(role).await.unwrap_or(u64::MAX);
        if depth > 0 {
            waiting.push(format!("{depth} events wait for {}", role.name()));
        }
    }
    let mut state = world.lock();
    let now = state.now_ms();
    let hour = i64::try_from(Duration::from_secs(3 * 3600).as_millis()).unwrap_or(0);
    for (name, topic) in state.cluster.topics.clone() {
        let known = topic.policies.present().is_some() && !topic.shadow && topic.loaded == Loaded::No;
        // What has been due for three scans.
        let left = due(&topic, now - hour);
        if known && !state.wishes.contains_key(&name) && !left.is_empty() {
            waiting.push(format!("{name} still has the ledgers {left:?} of {:?}", filled(&topic)));
        }
    }
    for (name, log) in state.hubs.topics.clone() {
        let end = log.ranges.iter().rev().find_map(|(_, end)| *end).unwrap_or(0);
        let wished = state.wishes.contains_key(&name);
        // Whoever lags by less than a hub writes down is not moved, and holds what it holds.
        let behind = |member: &Member| member.consumed + i64::try_from(CONSUME_INTERVAL).unwrap_or(0) <= end;
        let moves = |member: &Member| !member.online && now - member.alive_ms > 2 * hour && behind(member);
        let free = log.members.values().all(|member| moves(member) || member.consumed >= end);
        let stale = |(_, member): &(&String, &Member)| moves(member);
        if let Some((member, _)) = log.members.iter().find(stale).filter(|_| free && !wished) {
            waiting.push(format!("{member} of {name} still holds what ends at {end}"));
        }
    }
    // A limit that small holds much back: somebody has to let each scan go on.
    if state.caps < FEW {
        waiting.clear();
    }
    waiting.extend(users::left_open(&state).into_iter().map(|name| format!("{name} was left open")));
    for what in waiting {
        state.broken(format!("at the end: {what}"));
    }
}

/// Holds a record against what must be in it.
fn records(state: &mut State, process: &Process) {
    if !process.journal().exists() {
        return;
    }
    let mut open: BTreeMap<String, i64> = BTreeMap::new();
    let mut wrong = Vec::new();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let read = journal::read(process.journal(), |record| match record.kind {
        RecordKind::Intent => {
            let decision = &record.body["decision"];
            let key = format!("{}/{}", text(&decision["id"]), text(&decision["scan"]["id"]));
            let times = open.entry(key.clone()).or_default();
            *times += 1;
            if *times > 1 {
                wrong.push(format!("{key} was recorded as begun twice"));
            }
        }
        RecordKind::Outcome => {
            let key = format!("{}/{}", text(&record.body["decision"]), text(&record.body["scan"]["id"]));
            open.remove(&key);
            let subject = &record.subject;
            let freed = record.body["freed"].as_array().map_or(&[][..], Vec::as_slice);
            let there = state.cluster.topics.get(subject).map(filled).unwrap_or_default();
            let there = freed.iter().filter_map(serde_json::Value::as_i64).filter(|id| there.contains(id));
            wrong.extend(there.map(|id| format!("{subject}: ledger {id} was recorded as freed and is there")));
        }
        _ => {}
    });
    if let Err(e) = read {
        wrong.push(e.to_string());
    }
    if process.acts() {
        wrong.extend(open.keys().map(|key| format!("{key} was begun, and what came of it is not recorded")));
    }
    for what in wrong {
        state.broken(format!("record {}: {what}", process.journal().file_name().unwrap_or_default().display()));
    }
}

thread_local! {
    static PANICS: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The loop of the workers catches panics; here each is a fault.
fn watch_panics() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.to_string();
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| PANICS.with_borrow_mut(|all| all.push(text))));
            before(info);
        }));
    });
}
