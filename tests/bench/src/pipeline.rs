//! Candidates from scanner to decider to executor over JetStream, against `nats bench` of the same message sizes on the same
//! server, in turn. Loop, decider, signatures, keys and ids are the real ones. Each role has a connection of its own, as in
//! processes of their own, or all share one (`connections=1`), as in `trimtab run`. What the executor would do at the target is left out: it checks the signature, has the intent on disk in
//! a real record, and settles. It is also measured without the record, whose peer would be a disk and not a message.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, StreamExt};
use tokio_util::sync::CancellationToken;
use trimtab::clock::Clock;
use trimtab::journal::{Entry, Journal, RecordKind};
use trimtab::metrics::Metrics;
use trimtab::sign::{Signer, Trusted};
use trimtab::worker::{self, Failure, LoopOptions, Out, Worker};
use trimtab::workers::Decider;
use trimtab_bus::{Bus, BusOptions, JetStream, NatsOptions, Role};
use trimtab_events::{
    Body, Cursor, CursorKind, Event, Evidence, LastLedger, LedgerCandidate, LedgerInfo, LedgerPage, Level, Loaded,
    Partition, Policies, Position, Retention, ScanRef, Seen, Setting, TopicClass, Trace,
};
use trimtab_policy::{Policy, PolicyConfig};
use trimtab_targets::Class;
use trimtab_tests::cache;
use trimtab_tests::nats::NatsRig;
use uuid::Uuid;

use crate::Options;
use crate::measure;

const PAGE: u64 = 32;
const DAY_MS: i64 = 86_400_000;

fn candidate(run: &str, n: u64, due: bool, now_ms: i64) -> LedgerCandidate {
    let closed_ms = now_ms - if due { 30 * DAY_MS } else { DAY_MS };
    let first = n as i64 * 4 + 1000;
    let info = |k: i64| LedgerInfo {
        id: first + k,
        entries: (k < 3).then_some(1_000 + k),
        bytes: (k < 3).then_some(1_031_000 + k),
        closed_ms: if k < 3 { closed_ms + k } else { 0 },
        offload: None,
    };
    let setting = |minutes| Setting { value: Retention { minutes, mib: -1 }, level: Level::Namespace };
    LedgerCandidate {
        subject: format!("persistent://tenant/namespace/events-{run}-{n}"),
        class: TopicClass::User,
        seen: Seen { version: 3, created_zxid: first, modified_zxid: first + 9, modified_ms: closed_ms },
        partition: Partition::None,
        ledgers: Evidence::Present((0..4).map(info).collect()),
        last: LastLedger::Closed { entries: 5, bytes: 5_155, closed_ms },
        loaded: Loaded::No,
        cursors: Evidence::Present(vec![Cursor {
            name: "subscription".to_owned(),
            kind: CursorKind::Subscription,
            mark_delete: Evidence::Present(Position { ledger: first + 3, entry: 4 }),
            lower_bound: false,
            modified_ms: closed_ms,
            last_active_ms: closed_ms,
            detail: None,
        }]),
        terminated: false,
        shadow: false,
        policies: Evidence::Present(Policies {
            deleted: false,
            retention: setting(7 * 24 * 60),
            ttl_s: Setting { value: 0, level: Level::Broker },
            offload_deletion_lag_ms: 4 * 3_600_000,
            subscription_expiration_minutes: None,
            topic_level_unknown: None,
        }),
    }
}

fn page(run: &str, number: u64, candidates: Vec<LedgerCandidate>) -> Result<Event> {
    let scan = ScanRef { id: Uuid::from_u128(7), fence: 1 };
    let body = LedgerPage {
        scan,
        shard: "tenant/namespace".to_owned(),
        page: u32::try_from(number)?,
        candidates,
        traces: Vec::new(),
    };
    let now = Clock::system().now();
    let id = format!("{run}-page-{number}");
    Ok(Event::new(id, "/trimtab/scanner/bench", "pulsar", now, Trace::default(), body)?)
}

/// Takes decisions, checks who signed them, records what would be done, and does nothing.
struct NullExecutor {
    trusted: Trusted,
    journal: Option<Journal>,
    taken: AtomicU64,
    bytes: AtomicU64,
}

impl Worker for NullExecutor {
    fn role(&self) -> Role {
        Role::Executor
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, _out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Body::Decision(decision) = body else { return Err(Failure::new(Class::Invalid, "not a decision")) };
            self.trusted.check(event).map_err(|e| Failure::new(Class::Refused, e))?;
            if let Some(journal) = &self.journal {
                let entry = Entry {
                    kind: RecordKind::Intent,
                    id: decision.id.to_string(),
                    subject: decision.subject.clone(),
                    trace_id: String::new(),
                    body: serde_json::json!({ "decision": decision }),
                };
                journal.write(entry).await?;
            }
            self.bytes.fetch_add(event.data.get().len() as u64, Ordering::Relaxed);
            self.taken.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }
}

/// What one run of the pipeline gave.
struct Ran {
    wall: Duration,
    cpu: Duration,
    server: Duration,
}

/// How a run is made.
#[derive(Clone, Copy)]
struct How {
    /// Pages that the scanner has under way, that are decided at once, and decisions taken at once.
    at_once: [usize; 3],
    /// Whether each role has a connection of its own.
    apart: bool,
    /// Whether the executor writes its record.
    record: bool,
}

/// Sends so many candidates through, every `one_in`-th of which is due. Ends when all pages and decisions are settled.
/// A page of candidates of a run, some of them due.
pub(crate) fn one_page(run: &str) -> Result<Event> {
    let now = trimtab_tests::now_ms();
    page(run, 0, (0..32).map(|n| candidate(run, n, n % 3 == 0, now)).collect())
}

async fn pipeline(url: &str, server: u32, candidates: u64, one_in: u64, how: How) -> Result<Ran> {
    let connect = |role: &str| {
        let bus = BusOptions { queue_events: candidates * 2 + 10_000, ..BusOptions::default() };
        let (servers, name) = (vec![url.to_owned()], format!("bench-{role}"));
        JetStream::connect(NatsOptions { servers, name, create: false, bus, ..NatsOptions::default() })
    };
    let bus = Arc::new(connect("scanner").await?);
    let (clock, metrics, stop) = (Clock::system(), Arc::new(Metrics::new()), CancellationToken::new());
    let signer = Signer::ephemeral();
    let trusted = Trusted::new([signer.public_key()])?;
    let folder = tempfile::tempdir()?;
    let journal = how.record.then(|| Journal::open(&folder.path().join("record.jsonl"), clock.clone())).transpose()?;
    let executor = Arc::new(NullExecutor { trusted, journal, taken: AtomicU64::new(0), bytes: AtomicU64::new(0) });
    let policy = Policy::new(PolicyConfig::default(), "bench")?;
    let decider = Arc::new(Decider::new(policy, signer, clock.clone(), "bench", metrics.clone()));
    let (mut loops, mut buses) = (Vec::new(), vec![bus.clone()]);
    for (worker, at_once) in [(decider as Arc<dyn Worker>, how.at_once[1]), (executor.clone(), how.at_once[2])] {
        let options = LoopOptions { at_once, ..LoopOptions::default() };
        let own = if how.apart { Arc::new(connect(worker.role().name()).await?) } else { bus.clone() };
        loops.push(tokio::spawn(worker::run(worker, own.clone(), options, metrics.clone(), stop.clone())));
        buses.push(own);
    }

    let run = Uuid::now_v7().simple().to_string();
    let (before, server_before) = (measure::cpu_of(std::process::id()), measure::cpu_of(server));
    let (started, now_ms) = (Instant::now(), clock.now_ms());
    let due = move |n: u64| n.is_multiple_of(one_in);
    let pages = stream::iter((0..candidates).step_by(PAGE as usize)).map(|first| {
        let (bus, run) = (bus.clone(), run.clone());
        async move {
            tokio::spawn(async move {
                let all = (first..candidates.min(first + PAGE)).map(|n| candidate(&run, n, due(n), now_ms)).collect();
                let event = page(&run, first / PAGE, all)?;
                bus.publish(&event).await?;
                anyhow::Ok(())
            })
            .await?
        }
    });
    let sent: Vec<Result<()>> = pages.buffer_unordered(how.at_once[0]).collect().await;
    sent.into_iter().collect::<Result<Vec<()>>>()?;
    let acts = (0..candidates).filter(|n| due(*n)).count() as u64;
    while executor.taken.load(Ordering::Relaxed) < acts {
        ensure!(started.elapsed() < Duration::from_secs(300), "stuck");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    while bus.depth(Role::Decider).await? > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let wall = started.elapsed();
    let spent = |before: Option<Duration>, pid| measure::cpu_of(pid).zip(before).map_or(Duration::ZERO, |(a, b)| a - b);
    let ran = Ran { wall, cpu: spent(before, std::process::id()), server: spent(server_before, server) };
    stop.cancel();
    for bus in &buses {
        bus.close().await;
    }
    for task in loops {
        task.await?;
    }
    for bus in &buses {
        bus.flush().await?;
    }
    Ok(ran)
}

/// Rates of `nats bench` for messages of one size.
struct Peer {
    publish: f64,
    consume: f64,
}

fn nats(url: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(cache::nats_cli()?);
    let output = command.arg("--server").arg(url).args(args).output().context("starting nats")?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "nats {args:?}: {text}");
    Ok(text)
}

/// The number before `msgs/sec`.
fn rate(text: &str) -> Result<f64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let at =
        words.iter().rposition(|word| word.starts_with("msgs/sec")).with_context(|| format!("no rate in {text}"))?;
    Ok(words[at - 1].replace(',', "").parse()?)
}

fn peer(url: &str, messages: u64, size: u64) -> Result<Peer> {
    let (messages, size) = (messages.to_string(), size.to_string());
    let common = ["--msgs", &messages, "--no-progress"];
    let mut publish = vec!["bench", "js", "pub", "async", "b.x", "--stream", "NB", "--create", "--purge"];
    publish.extend(common.iter().chain(&["--size", &size, "--batch", "1024"]));
    let published = rate(&nats(url, &publish)?)?;
    let add = "consumer add NB k --pull --ack explicit --deliver all --max-pending 20000 --wait 30s --replay instant --defaults";
    nats(url, &add.split(' ').collect::<Vec<_>>())?;
    let mut consume = vec!["bench", "js", "consume", "--stream", "NB", "--consumer", "k", "--batch", "500"];
    consume.extend(common);
    let consumed = rate(&nats(url, &consume)?)?;
    nats(url, &["stream", "rm", "NB", "--force"])?;
    Ok(Peer { publish: published, consume: consumed })
}

fn show(what: &str, candidates: u64, ran: &Ran) -> f64 {
    let rate = candidates as f64 / ran.wall.as_secs_f64();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / candidates as f64;
    println!(
        "  {what}: {rate:.0} candidates/s; CPU {:.1} us here, {:.1} us in the server",
        each(ran.cpu),
        each(ran.server)
    );
    rate
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 5)?;
    let (in_pages, keyed) = (options.number("candidates", 320_000)?, options.number("keyed", 30_000)?);
    let many = |name, default| anyhow::Ok(usize::try_from(options.number(name, default)?)?);
    let at_once = [many("pages", 64)?, many("deciders", 16)?, many("acts", 256)?];
    let apart = options.number("connections", 3)? > 1;
    // As `nats bench` is usually run: the server syncs when it likes.
    let mut rig = NatsRig::builder().sync_interval("2m").start()?;
    let (url, server) = (rig.url(), rig.process(0)?.pid());
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let bus = BusOptions { queue_events: in_pages * 2 + 10_000, ..BusOptions::default() };
        let options = NatsOptions { servers: vec![url.clone()], create: true, bus, ..NatsOptions::default() };
        JetStream::connect(options).await.map(drop)
    })?;
    let now = Clock::system().now_ms();
    let size = |n: u64| {
        anyhow::Ok(page("0", 0, (0..n).map(|n| candidate("0", n, true, now)).collect())?.to_bytes()?.len() as u64)
    };
    let (one, whole) = (size(1)?, size(PAGE)?);
    println!("a candidate alone has {one} bytes, a page of {PAGE} {whole}");
    let (mut pages_ratio, mut pages_recorded, mut same_size) = (vec![], vec![], vec![]);
    let (mut keyed_ratio, mut keyed_recorded) = (vec![], vec![]);
    for _ in 0..rounds {
        let single = peer(&url, 50_000, one)?;
        let page = peer(&url, 5_000, whole)?;
        let run = |what, candidates, one_in, record| {
            let ran = pipeline(&url, server, candidates, one_in, How { at_once, apart, record });
            anyhow::Ok(show(what, candidates, &runtime.block_on(ran)?))
        };
        let usual = run("pages of 32, 1 % act", in_pages, 100, false)?;
        let usual_recorded = run("pages of 32, 1 % act, recorded", in_pages, 100, true)?;
        let all = run("all act, keyed", keyed, 1, false)?;
        let recorded = run("all act, keyed, recorded", keyed, 1, true)?;
        let composite = 1.0 / (2.0 / single.publish + 2.0 / single.consume);
        println!(
            "  nats bench: {one} bytes P {:.0}/s C {:.0}/s (1/(2/P+2/C) {composite:.0}/s); {whole} bytes P {:.0}/s C {:.0}/s",
            single.publish, single.consume, page.publish, page.consume
        );
        pages_ratio.push(usual / single.publish);
        pages_recorded.push(usual_recorded / single.publish);
        same_size.push(usual / page.publish);
        keyed_ratio.push(all / composite);
        keyed_recorded.push(recorded / composite);
    }
    measure::ratio("pipeline, pages: candidates/s to P of one candidate's size", &pages_ratio, "must be at least 1.5");
    measure::ratio("pipeline, pages, each intent recorded: the same", &pages_recorded, "for comparison");
    measure::ratio("pipeline, pages: candidates/s to P of a page's size", &same_size, "for comparison");
    measure::ratio("pipeline, keyed: candidates/s to 1/(2/P+2/C)", &keyed_ratio, "must be at least 0.8");
    measure::ratio("pipeline, keyed, each intent recorded: the same", &keyed_recorded, "for comparison");
    Ok(())
}
