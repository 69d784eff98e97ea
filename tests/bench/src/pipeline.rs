//! Candidates from scanner to decider to executor over JetStream, against `nats bench` of the same message sizes on the same
//! server, in turn. Loop, decider, signatures, keys and ids are the real ones. Each role has a connection of its own, as in
//! processes of their own, or all share one (`connections=1`), as in `trimtab run`. What the executor would do at the target is left out: it checks the signature, has the intent on disk in
//! a real record, and settles. It is also measured without the record, whose peer would be a disk and not a message.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
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

pub(crate) const PAGE: u64 = 32;
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
pub(crate) struct Ran {
    pub(crate) wall: Duration,
    cpu: Duration,
    server: Duration,
}

/// How a run is made.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// Pages that the scanner has under way, that are decided at once, and decisions taken at once.
    pub(crate) at_once: [usize; 3],
    /// Whether each role has a connection of its own.
    pub(crate) apart: bool,
    /// Whether the executor writes its record.
    pub(crate) record: bool,
    /// Candidates in a page.
    pub(crate) page: u64,
    /// The role that has a second process, which does what it can of the work.
    pub(crate) second: Option<Role>,
}

/// A page of candidates of a run, some of them due.
pub(crate) fn one_page(run: &str) -> Result<Event> {
    let now = trimtab_tests::now_ms();
    page(run, 0, (0..32).map(|n| candidate(run, n, n % 3 == 0, now)).collect())
}

/// A connection for one role, which makes no streams.
pub(crate) async fn connect(url: &str, role: &str, queue_events: u64) -> Result<Arc<JetStream>> {
    let bus = BusOptions { queue_events, ..BusOptions::default() };
    let (servers, name) = (vec![url.to_owned()], format!("bench-{role}"));
    let options = NatsOptions { servers, name, create: false, bus, ..NatsOptions::default() };
    Ok(Arc::new(JetStream::connect(options).await?))
}

/// Makes the streams, large enough for so many events.
pub(crate) async fn set_up(url: &str, replicas: usize, queue_events: u64) -> Result<()> {
    let bus = BusOptions { queue_events, ..BusOptions::default() };
    let servers = url.split(',').map(str::to_owned).collect();
    JetStream::connect(NatsOptions { servers, replicas, create: true, bus, ..NatsOptions::default() }).await?;
    Ok(())
}

/// Stores the pages of some candidates.
pub(crate) async fn scan(bus: Arc<JetStream>, part: &Part, at_once: usize) -> Result<()> {
    let now_ms = trimtab_tests::now_ms();
    let pages = stream::iter((part.from..part.to).step_by(part.page as usize)).map(|first| {
        let (bus, Part { run, to, page: size, one_in, .. }) = (bus.clone(), part.clone());
        async move {
            tokio::spawn(async move {
                let due = |n: u64| n.is_multiple_of(one_in);
                let all = (first..to.min(first + size)).map(|n| candidate(&run, n, due(n), now_ms)).collect();
                let event = page(&run, first / size, all)?;
                bus.publish(&event).await?;
                anyhow::Ok(())
            })
            .await?
        }
    });
    let sent: Vec<Result<()>> = pages.buffer_unordered(at_once).collect().await;
    sent.into_iter().collect()
}

/// Candidates that one scanner sends: `from` up to `to`, every `one_in`-th of which is due.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) run: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) page: u64,
    pub(crate) one_in: u64,
}

/// Sends so many candidates through, every `one_in`-th of which is due. Ends when all pages and decisions are settled.
pub(crate) async fn pipeline(url: &str, server: u32, candidates: u64, one_in: u64, how: How) -> Result<Ran> {
    let queue = candidates * 2 + 10_000;
    let bus = connect(url, "scanner", queue).await?;
    let (clock, metrics, stop) = (Clock::system(), Arc::new(Metrics::new()), CancellationToken::new());
    let signer = Signer::ephemeral();
    let trusted = Trusted::new([signer.public_key()])?;
    let folder = tempfile::tempdir()?;
    let mut all = Part { run: Uuid::now_v7().simple().to_string(), from: 0, to: candidates, page: how.page, one_in };
    let mut own = all.clone();
    let mut second = None;
    if let Some(role) = how.second {
        if role == Role::Scanner {
            all.from = (candidates / 2).next_multiple_of(how.page);
            own.to = all.from;
        }
        second = Some(Second::start(url, role, queue, &signer, &all, &how)?);
    }
    let journal = how.record.then(|| Journal::open(&folder.path().join("record.jsonl"), clock.clone())).transpose()?;
    let executor = Arc::new(NullExecutor { trusted, journal, taken: AtomicU64::new(0), bytes: AtomicU64::new(0) });
    let policy = Policy::new(PolicyConfig::default(), "bench")?;
    let decider = Arc::new(Decider::new(policy, signer, clock.clone(), "bench", metrics.clone()));
    let (mut loops, mut buses) = (Vec::new(), vec![bus.clone()]);
    for (worker, at_once) in [(decider as Arc<dyn Worker>, how.at_once[1]), (executor.clone(), how.at_once[2])] {
        let options = LoopOptions { at_once, ..LoopOptions::default() };
        let own = if how.apart { connect(url, worker.role().name(), queue).await? } else { bus.clone() };
        loops.push(tokio::spawn(worker::run(worker, own.clone(), options, metrics.clone(), stop.clone())));
        buses.push(own);
    }

    let (before, server_before) = (measure::cpu_of(std::process::id()), measure::cpu_of(server));
    let started = Instant::now();
    if let Some(second) = &mut second {
        second.go()?;
    }
    scan(bus.clone(), &own, how.at_once[0]).await?;
    if let Some(second) = &mut second {
        second.sent(how.second)?;
    }
    for role in [Role::Decider, Role::Executor] {
        while bus.depth(role).await? > 0 {
            ensure!(started.elapsed() < Duration::from_secs(300), "stuck");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let wall = started.elapsed();
    let acts = (0..candidates).filter(|n| n.is_multiple_of(one_in)).count() as u64;
    let taken = executor.taken.load(Ordering::Relaxed);
    ensure!(taken == acts || (how.second == Some(Role::Executor) && taken < acts), "{taken} of {acts} acts");
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

/// This program once more, as a second process of one role.
struct Second {
    child: Child,
    told: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Second {
    fn start(url: &str, role: Role, queue: u64, signer: &Signer, part: &Part, how: &How) -> Result<Second> {
        let at_once = how.at_once.map(|many| many.to_string());
        let mut child = Command::new(std::env::current_exe()?)
            .args(["role", &format!("name={}", role.name()), &format!("url={url}"), &format!("queue={queue}")])
            .args([format!("seed={}", signer.seed()?), format!("run={}", part.run), format!("from={}", part.from)])
            .args([format!("to={}", part.to), format!("page={}", part.page), format!("one_in={}", part.one_in)])
            .args([format!("pages={}", at_once[0]), format!("deciders={}", at_once[1]), format!("acts={}", at_once[2])])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (told, says) = (child.stdin.take(), child.stdout.take().context("its output")?);
        let mut second = Second { child, told, says: BufReader::new(says) };
        second.wait_for("ready")?;
        Ok(second)
    }

    fn wait_for(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            ensure!(self.says.read_line(&mut line)? > 0, "the second process ended before it was {word}");
        }
        Ok(())
    }

    fn go(&mut self) -> Result<()> {
        Ok(self.told.as_mut().context("its input")?.write_all(b"go\n")?)
    }

    /// Waits until a scanner has sent its part.
    fn sent(&mut self, role: Option<Role>) -> Result<()> {
        if role == Some(Role::Scanner) { self.wait_for("sent") } else { Ok(()) }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        drop(self.told.take());
        let _ = self.child.wait();
    }
}

/// What the second process does until its input ends.
pub(crate) fn role(options: &Options) -> Result<()> {
    let text = |name: &str| options.text(name).with_context(|| format!("{name}=?"));
    let number = |name: &str| anyhow::Ok(text(name)?.parse::<u64>()?);
    let many = |name: &str| anyhow::Ok(usize::try_from(number(name)?)?);
    let (url, name, signer) = (text("url")?, text("name")?, Signer::from_seed(text("seed")?)?);
    let runtime = tokio::runtime::Runtime::new()?;
    let bus = runtime.block_on(connect(url, name, number("queue")?))?;
    let (metrics, stop) = (Arc::new(Metrics::new()), CancellationToken::new());
    let (worker, at_once): (Arc<dyn Worker>, usize) = match name {
        "scanner" => {
            println!("ready");
            let _ = std::io::stdin().read_line(&mut String::new())?;
            let (from, to, page, one_in) = (number("from")?, number("to")?, number("page")?, number("one_in")?);
            let part = Part { run: text("run")?.to_owned(), from, to, page, one_in };
            runtime.block_on(scan(bus, &part, many("pages")?))?;
            println!("sent");
            return Ok(());
        }
        "decider" => {
            let policy = Policy::new(PolicyConfig::default(), "bench")?;
            (Arc::new(Decider::new(policy, signer, Clock::system(), "second", metrics.clone())), many("deciders")?)
        }
        _ => {
            let trusted = Trusted::new([signer.public_key()])?;
            let (taken, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
            (Arc::new(NullExecutor { trusted, journal: None, taken, bytes }), many("acts")?)
        }
    };
    let options = LoopOptions { at_once, ..LoopOptions::default() };
    let running = runtime.spawn(worker::run(worker, bus.clone(), options, metrics, stop.clone()));
    println!("ready");
    while std::io::stdin().read_line(&mut String::new())? > 0 {}
    stop.cancel();
    runtime.block_on(async {
        bus.close().await;
        running.await?;
        bus.flush().await?;
        anyhow::Ok(())
    })
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

pub(crate) fn show(what: &str, candidates: u64, ran: &Ran) -> f64 {
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
    runtime.block_on(set_up(&url, 1, in_pages * 2 + 10_000))?;
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
            let ran =
                pipeline(&url, server, candidates, one_in, How { at_once, apart, record, page: PAGE, second: None });
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
