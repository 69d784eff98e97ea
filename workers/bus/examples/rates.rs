//! Measures the bus over a NATS server, for comparison with `nats bench js pub async` and `nats bench js consume` against
//! the same server in the same minute:
//!
//! `cargo run --release -p trimtab-bus --features conformance --example rates -- nats://127.0.0.1:4222 100000`
//!
//! It creates the streams and leaves them empty. Use a server of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use trimtab_bus::conformance::event;
use trimtab_bus::{Bus, BusOptions, JetStream, NatsOptions, Published, Result, Role};
use trimtab_events::Event;

/// Publishes under way at once.
const PUBLISHERS: u64 = 1_024;
/// Workers of each role.
const WORKERS: u64 = 128;
/// Candidates in a page.
const PAGE: u64 = 32;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned());
    let events: u64 = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let options = BusOptions { queue_events: events * 2, max_outstanding: 10_000, ..BusOptions::default() };
    let options = NatsOptions { servers: vec![server], create: true, bus: options, ..NatsOptions::default() };
    let bus = Arc::new(JetStream::connect(options).await?);
    // Ids must differ from those of an earlier run.
    let run: &'static str = uuid::Uuid::now_v7().simple().to_string().leak();

    if let Some(server) = std::env::var("SERVER_PID").ok().and_then(|pid| ticks(&pid)) {
        LAST[1].store(server, Ordering::Relaxed);
    }
    let started = Instant::now();
    publish_all(&bus, events, move |n| event(Role::Executor, &format!("{run}-{n}"), &format!("{run}-{n}"))).await;
    show("publish keyed, one a message", events, started.elapsed());
    let started = Instant::now();
    work(&bus, Role::Executor, events, |_| None).await.wait().await;
    show("take and settle", events, started.elapsed());

    let started = Instant::now();
    let executor = work(&bus, Role::Executor, events, |_| None).await;
    let decider = work(&bus, Role::Decider, events, |got| {
        let name = got.id.replace("-c", "-d");
        Some(event(Role::Executor, &name, &name))
    })
    .await;
    publish_all(&bus, events, move |n| event(Role::Decider, &format!("{run}-c{n}"), "shard")).await;
    decider.wait().await;
    executor.wait().await;
    show("three roles, one a message", events, started.elapsed());

    let pages = events / 4;
    let page = format!("[{}]", vec![format!("{{\"x\":\"{}\"}}", "x".repeat(290)); PAGE as usize].join(","));
    let page = trimtab_events::Data::from(serde_json::value::RawValue::from_string(page).unwrap_or_default());
    let started = Instant::now();
    let audit = work(&bus, Role::Audit, pages, |_| None).await;
    let decider = work(&bus, Role::Decider, pages, |got| {
        let mut out = event(Role::Audit, &got.id.replace("-p", "-r"), "shard");
        out.data = got.data;
        Some(out)
    })
    .await;
    publish_all(&bus, pages, move |n| {
        let mut candidates = event(Role::Decider, &format!("{run}-p{n}"), "shard");
        candidates.data = page.clone();
        candidates
    })
    .await;
    decider.wait().await;
    audit.wait().await;
    show("three roles, candidates in pages of 32", pages * PAGE, started.elapsed());
    bus.flush().await
}

fn show(what: &str, events: u64, took: Duration) {
    let us = |ticks: u64| ticks as f64 * 10_000.0 / events as f64;
    let mut cpu = String::new();
    for (whose, last) in [("self".to_owned(), &LAST[0]), (std::env::var("SERVER_PID").unwrap_or_default(), &LAST[1])] {
        if let Some(ticks) = ticks(&whose) {
            cpu += &format!("{:>8.1}", us(ticks - last.swap(ticks, Ordering::Relaxed)));
        }
    }
    println!("{what:<40} {:>9.0}/s   CPU of client and server, us an event:{cpu}", events as f64 / took.as_secs_f64());
}

static LAST: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// CPU time of a process in hundredths of a second, where the system tells it.
fn ticks(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

async fn publish_all(bus: &Arc<JetStream>, events: u64, make: impl Fn(u64) -> Event + Clone + Send + 'static) {
    let tasks = (0..PUBLISHERS).map(|task| {
        let (bus, make) = (Arc::clone(bus), make.clone());
        tokio::spawn(async move {
            for n in (task..events).step_by(PUBLISHERS as usize) {
                match bus.publish(&make(n)).await {
                    Ok(Published::Stored) => {}
                    other => eprintln!("event {n}: {other:?}"),
                }
            }
        })
    });
    futures::future::join_all(tasks.collect::<Vec<_>>()).await;
}

/// Workers of one role, until they handled so many.
struct Workers {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    finished: tokio::sync::watch::Receiver<bool>,
}

impl Workers {
    async fn wait(mut self) {
        let _ = self.finished.wait_for(|finished| *finished).await;
        for task in self.tasks {
            task.abort();
        }
    }
}

async fn work(
    bus: &Arc<JetStream>,
    role: Role,
    events: u64,
    handle: impl Fn(Event) -> Option<Event> + Clone + Send + 'static,
) -> Workers {
    let (tell, finished) = tokio::sync::watch::channel(false);
    let (tell, left) = (Arc::new(tell), Arc::new(AtomicU64::new(events)));
    let tasks = (0..WORKERS).map(|_| {
        let (bus, handle, tell, left) = (Arc::clone(bus), handle.clone(), Arc::clone(&tell), Arc::clone(&left));
        tokio::spawn(async move {
            while let Ok(got) = bus.take(role).await {
                if let Some(out) = got.event.ok().and_then(&handle)
                    && let Err(error) = bus.publish(&out).await
                {
                    eprintln!("{error}");
                }
                if let Err(error) = got.settle.done().await {
                    eprintln!("{error}");
                }
                if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    tell.send_replace(true);
                }
            }
        })
    });
    Workers { tasks: tasks.collect(), finished }
}
