//! A worker that is told to stop while something that it has begun does not come to its end.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trimtab::clock::Clock;
use trimtab::metrics::Metrics;
use trimtab::triggers::Triggers;
use trimtab::worker::{Failure, LoopOptions, Out, Worker, run};
use trimtab_bus::{Bus, BusOptions, InProcess, Role};
use trimtab_events::{Body, Event, Scope, Trigger};

/// Begins, says so, and never ends.
struct Hangs(Arc<Notify>);

impl Worker for Hangs {
    fn role(&self) -> Role {
        Role::Scanner
    }

    fn handle<'a>(&'a self, _: &'a Event, _: Body, _: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        self.0.notify_one();
        Box::pin(std::future::pending())
    }
}

/// docs/operating.md says 25 s for what was begun, and 30 s in all.
#[tokio::test(start_paused = true)]
async fn what_does_not_end_is_cut_off_in_time_and_comes_again() {
    let bus: Arc<dyn Bus> = Arc::new(InProcess::new(BusOptions::default()));
    let triggers = Triggers::new(bus.clone(), "pulsar", Clock::system(), "test");
    let id = triggers.scan(Scope::default(), Trigger::Cli).await.unwrap();
    let (begun, stop) = (Arc::new(Notify::new()), CancellationToken::new());
    let hangs = Arc::new(Hangs(begun.clone()));
    let options = LoopOptions { at_once: 1, ..LoopOptions::default() };
    let running = tokio::spawn(run(hangs, bus.clone(), options, Arc::new(Metrics::new()), stop.clone()));
    begun.notified().await;
    let told = Instant::now();
    stop.cancel();
    running.await.unwrap();
    let took = told.elapsed();
    assert!(took >= Duration::from_secs(25) && took < Duration::from_secs(26), "{took:?}");
    let again = bus.take(Role::Scanner).await.unwrap();
    assert_eq!(again.event.unwrap().id, id.to_string());
}
