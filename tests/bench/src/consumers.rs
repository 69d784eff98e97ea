//! Reading the consumers of JetStream: an inventory against the bare pages of the servers' own lists, and against asking for one consumer
//! after the other.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::Client;
use futures::future::{BoxFuture, FutureExt};
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use trimtab_bus::{Connection, NatsOptions};
use trimtab_events::{Candidate, History, Log, ScanRef, Scope, SubscriberCandidate, Verdict};
use trimtab_policy::{self as policy, Policy, PolicyConfig, Rule};
use trimtab_targets::jetstream::{Account, Dial, JetStreamAct, JetStreamInventory, Moment, Times, Wire};
use trimtab_targets::{Act, Inventory, Item, Mode, Pace, Permit, Reads, Record, TargetError};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::now_ms;

use crate::Options;
use crate::measure::{self, mib};

pub(crate) fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 5)?;
    let each = options.number("each", 1_000)?;
    let (small, large) = (options.number("small", 5_000)?, options.number("large", 50_000)?);
    let rig = NatsRig::builder().sync_interval("2m").start()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut peaks = Vec::new();
    let mut made = 0;
    for consumers in [small, large] {
        let streams = consumers.div_ceil(each);
        println!("{consumers} consumers on {streams} streams");
        runtime.block_on(make(&rig, made, streams, each))?;
        made = streams;
        let ground = runtime.block_on(Ground::connect(&rig))?;
        let (mut against_list, mut against_info) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let turns = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            let (mut bare, mut ours) = (Duration::ZERO, Duration::ZERO);
            for turn in turns {
                match turn {
                    0 => bare = runtime.block_on(ground.bare(streams, consumers))?,
                    _ => ours = runtime.block_on(ground.inventory(consumers))?,
                }
            }
            let sample = consumers.min(2_000);
            let info = runtime.block_on(ground.one_by_one(sample, each))?;
            let rate = |count: u64, took: Duration| count as f64 / took.as_secs_f64();
            println!(
                "  bare list {:.3} s, inventory {:.3} s, one by one {:.0} consumers/s against {:.0}",
                bare.as_secs_f64(),
                ours.as_secs_f64(),
                rate(sample, info),
                rate(consumers, ours)
            );
            against_list.push(ours.as_secs_f64() / bare.as_secs_f64());
            against_info.push(rate(consumers, ours) / rate(sample, info));
        }
        measure::ratio(
            &format!("consumers: inventory of {consumers} to the bare list"),
            &against_list,
            "must be at most 1.5",
        );
        measure::ratio(
            &format!("consumers: {consumers} in a second, inventory to one by one"),
            &against_info,
            "aim 10; the servers make the answers of both",
        );
        let scratch = tempfile::tempdir().context("making a folder")?;
        let mut command = Command::new(measure::trimtab()?);
        command.args(["plan", "--metadata-rate", "0", "--remember", "--from", &rig.url(), "--state-dir"]);
        let rules = scratch.path().join("rules.toml");
        std::fs::write(&rules, "[[rules]]\nname = \"idle\"\nstale_after = \"3650d\"\n")?;
        command.arg(scratch.path()).arg("--config").arg(&rules);
        let mut peak = 0;
        for _ in 0..2 {
            let took = measure::run(command.stdout(Stdio::null()), &[0])?;
            println!(
                "  plan --remember: {:.2} s, CPU {:.2} s, peak {:.1} MiB",
                took.wall.as_secs_f64(),
                took.cpu.as_secs_f64(),
                mib(took.peak)
            );
            peak = peak.max(took.peak);
        }
        peaks.push(peak as f64);
    }
    measure::ratio(&format!("consumers: peak memory, {large} to {small}"), &[peaks[1] / peaks[0]], "flat");
    Ok(())
}

/// How long nobody looks: from the answer of the last look at a consumer to the answer of RESET, which includes that the messages go.
pub(crate) fn window(options: &Options) -> Result<()> {
    let acts = options.number("acts", 20)?;
    let runtime = tokio::runtime::Runtime::new()?;
    for (servers, rig, replicas) in [
        ("one server", NatsRig::builder().sync_interval("2m").start()?, 1),
        ("three servers", NatsRig::builder().cluster().sync_interval("2m").start()?, 3),
    ] {
        let ground = runtime.block_on(Ground::connect(&rig))?;
        for held in [1, 1_000, 20_000] {
            let mut windows = Vec::new();
            for act in 0..acts {
                windows
                    .push(runtime.block_on(ground.act(&format!("W{held}x{act}"), held, replicas))?.as_secs_f64() * 1e3);
            }
            windows.sort_by(f64::total_cmp);
            println!(
                "FIGURE window: {servers}, {held} messages held: {:.2} ms (median), {:.2} ms (most), {acts} acts",
                measure::median(&windows),
                windows.last().copied().unwrap_or(f64::NAN)
            );
        }
    }
    Ok(())
}

struct NoRecord;

impl Record for NoRecord {
    fn record(&self, _evidence: Value) -> BoxFuture<'_, Result<(), TargetError>> {
        futures::future::ready(Ok(())).boxed()
    }
}

/// Streams `S0000` and on, each with so many consumers and three messages that nobody takes.
async fn make(rig: &NatsRig, from: u64, to: u64, each: u64) -> Result<()> {
    let client = async_nats::connect(rig.url()).await?;
    for stream in from..to {
        let name = format!("S{stream:04}");
        let config = json!({
            "name": name, "subjects": [format!("{name}.>")], "retention": "interest", "storage": "memory",
            "max_consumers": each + 10,
        });
        ask::<Value>(&client, &format!("STREAM.CREATE.{name}"), &config).await?;
        let consumers = (0..each).map(|number| {
            let (client, name) = (client.clone(), name.clone());
            async move {
                let consumer = format!("consumer-{number:06}");
                let config = json!({
                    "durable_name": consumer, "name": consumer, "deliver_policy": "all", "ack_policy": "explicit",
                    "mem_storage": true,
                });
                let body = json!({ "stream_name": name, "config": config });
                ask::<Value>(&client, &format!("CONSUMER.CREATE.{name}.{consumer}"), &body).await
            }
        });
        futures::stream::iter(consumers).buffer_unordered(32).try_collect::<Vec<_>>().await?;
        for _ in 0..3 {
            client.publish(format!("{name}.a"), "x".into()).await?;
        }
    }
    client.flush().await?;
    Ok(())
}

fn all_pending(log: &SubscriberCandidate, held: u64) -> bool {
    let Log::JetStream(stream) = &log.log else { return false };
    stream.last == held && stream.consumers[0].present().is_some_and(|consumer| consumer.pending == held)
}

async fn ask<T: for<'de> Deserialize<'de>>(client: &Client, tail: &str, body: &Value) -> Result<T> {
    let payload = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = async_nats::Request::new().payload(payload.into()).timeout(Some(Duration::from_secs(30)));
    let answer = client.send_request(format!("$JS.API.{tail}"), request).await.with_context(|| tail.to_owned())?;
    serde_json::from_slice(&answer.payload).with_context(|| tail.to_owned())
}

struct Ground {
    client: Client,
    inventory: Arc<JetStreamInventory>,
}

/// No more of a page than is needed to ask for the next one.
#[derive(Deserialize)]
struct Bare {
    total: u64,
    limit: u64,
}

fn wire(connection: Connection) -> Wire {
    Wire { client: connection.client, refusal: Arc::new(|_, _| None) }
}

impl Ground {
    async fn connect(rig: &NatsRig) -> Result<Ground> {
        let options = NatsOptions { servers: rig.urls(), ..NatsOptions::default() };
        let connection = Connection::open(&options).await?;
        let brief = NatsOptions { brief: true, ..options };
        let dial: Dial = Arc::new(move || {
            let brief = brief.clone();
            async move { Connection::open(&brief).await.map(wire).map_err(|e| e.to_string()) }.boxed()
        });
        let account = Account::open(wire(connection), dial, None, None).await?;
        let inventory = Arc::new(JetStreamInventory::new(vec![account], Arc::new(Pace::new(0.0)?))?);
        Ok(Ground { client: async_nats::connect(rig.url()).await?, inventory })
    }

    /// Makes a stream that one consumer holds, and moves that.
    async fn act(&self, name: &str, held: usize, replicas: u64) -> Result<Duration> {
        let config = json!({
            "name": name, "subjects": [name], "retention": "interest", "storage": "file", "num_replicas": replicas,
        });
        ask::<Value>(&self.client, &format!("STREAM.CREATE.{name}"), &config).await?;
        let config = json!({ "durable_name": "old", "name": "old", "deliver_policy": "all", "ack_policy": "explicit" });
        let body = json!({ "stream_name": name, "config": config });
        ask::<Value>(&self.client, &format!("CONSUMER.CREATE.{name}.old"), &body).await?;
        let context = async_nats::jetstream::new(self.client.clone());
        let mut acks = Vec::new();
        for number in 1..=held {
            acks.push(context.publish(name.to_owned(), vec![b'x'; 200].into()).await?);
            if acks.len() == 500 || number == held {
                futures::future::try_join_all(acks.drain(..).map(IntoFuture::into_future)).await?;
            }
        }
        let log = loop {
            let subject = format!("jetstream://$G/{name}");
            match self.inventory.observe(&subject).await?.context("there is no stream")? {
                Candidate::Subscriber(log) if log.subscribers.len() == 1 && all_pending(&log, held as u64) => {
                    break log;
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let mut log = *log;
        log.subscribers[0].history = Some(History { since_ms: 1, last_ms: 2, sightings: 9 });
        let rule = Rule { stale_after_s: Some(1), grace_s: Some(0), allow_unguarded: true, ..Rule::default() };
        let policy = Policy::new(PolicyConfig { rules: vec![rule], ..PolicyConfig::default() }, "bench")?;
        let context =
            policy::Context { scan: ScanRef { id: uuid::Uuid::nil(), fence: 0 }, target: "t", now_ms: now_ms() };
        let seen = Candidate::Subscriber(Box::new(log));
        let decision = policy::decide_any(&seen, &policy, &context).remove(0);
        ensure!(decision.verdict == Verdict::Consume, "{decision:?}");
        let moments: Arc<Mutex<Vec<(Moment, Instant)>>> = Arc::default();
        let noted = moments.clone();
        let times = Times { probe: Duration::from_millis(200), ..Times::default() };
        let act = JetStreamAct::new(self.inventory.clone(), times).watched(Arc::new(move |moment| {
            noted.lock().expect("nobody panics").push((moment, Instant::now()));
            futures::future::ready(()).boxed()
        }));
        let permit = Permit::for_mode(Mode::Apply).context("no permit")?;
        let effect = act.act(&decision, &seen, &NoRecord, &permit).await?;
        ensure!(effect.skipped.is_none(), "{effect:?}");
        let moments = moments.lock().expect("nobody panics");
        let of =
            |wanted| moments.iter().find(|(moment, _)| *moment == wanted).map(|(_, at)| *at).context("not reached");
        Ok(of(Moment::Called)? - of(Moment::Looked)?)
    }

    async fn bare(&self, streams: u64, consumers: u64) -> Result<Duration> {
        let begun = Instant::now();
        let mut seen = 0;
        for stream in 0..streams {
            let mut offset = 0;
            loop {
                let page: Bare =
                    ask(&self.client, &format!("CONSUMER.LIST.S{stream:04}"), &json!({ "offset": offset })).await?;
                offset += page.limit;
                if offset >= page.total {
                    seen += page.total;
                    break;
                }
            }
        }
        let took = begun.elapsed();
        ensure!(seen == consumers, "{seen} instead of {consumers}");
        Ok(took)
    }

    async fn inventory(&self, consumers: u64) -> Result<Duration> {
        let begun = Instant::now();
        let scope = Scope::default();
        let mut seen = 0;
        for shard in self.inventory.shards(&scope).await? {
            let mut items = self.inventory.scan(&shard, &scope, &|_| Reads::default());
            while let Some(item) = items.next().await {
                if let Item::Candidate(Candidate::Subscriber(log)) = item? {
                    seen += log.subscribers.len() as u64;
                }
            }
        }
        let took = begun.elapsed();
        ensure!(seen == consumers, "{seen} instead of {consumers}");
        Ok(took)
    }

    async fn one_by_one(&self, sample: u64, each: u64) -> Result<Duration> {
        let begun = Instant::now();
        for number in 0..sample {
            let (stream, consumer) = (number / each, number % each);
            let tail = format!("CONSUMER.INFO.S{stream:04}.consumer-{consumer:06}");
            ask::<serde::de::IgnoredAny>(&self.client, &tail, &Value::Null).await?;
        }
        Ok(begun.elapsed())
    }
}
