//! The suites that every [`Bus`] and every [`Store`] must pass: what a worker may rely on, whichever it has.
//!
//! A check panics when it fails. All times are `tokio::time`, so that a bus in process passes in no time on a paused clock.

mod bus;
mod store;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use trimtab_events::Event;

use crate::{Bus, BusOptions, Role, Store};

pub use bus::BUS_CHECKS;
pub use store::STORE_CHECKS;

/// Makes the buses that are checked.
pub trait BusRig: Send + Sync {
    /// An empty bus with these options.
    fn fresh(&self, options: BusOptions) -> BoxFuture<'_, BusUnderTest>;
}

/// A bus, and a way to put bytes into a queue that [`Bus::publish`] would not.
pub struct BusUnderTest {
    /// The bus.
    pub bus: Arc<dyn Bus>,
    /// Queues bytes for a role.
    pub inject: Box<dyn Fn(Role, Vec<u8>) -> BoxFuture<'static, ()> + Send + Sync>,
}

/// Makes the stores that are checked.
pub trait StoreRig: Send + Sync {
    /// An empty store.
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>>;
}

/// A check of a bus, by name.
pub type BusCheck = (&'static str, for<'a> fn(&'a dyn BusRig) -> BoxFuture<'a, ()>);

/// A check of a store, by name.
pub type StoreCheck = (&'static str, for<'a> fn(&'a dyn StoreRig) -> BoxFuture<'a, ()>);

/// Runs every check of a bus, one after the other, each on a bus of its own.
pub async fn bus(rig: &dyn BusRig) {
    for (name, check) in BUS_CHECKS {
        // Seen only when the check fails: test output is kept back otherwise.
        eprintln!("bus check: {name}");
        check(rig).await;
    }
}

/// Runs every check of a store, one after the other, each on a store of its own.
pub async fn store(rig: &dyn StoreRig) {
    for (name, check) in STORE_CHECKS {
        eprintln!("store check: {name}");
        check(rig).await;
    }
}

/// The options the checks begin with: small times and few tries.
pub fn quick() -> BusOptions {
    BusOptions {
        ack_wait: Duration::from_secs(1),
        max_deliver: 3,
        full_wait: Duration::from_secs(20),
        ..BusOptions::default()
    }
}

/// An event for `role`, with data that has no meaning. Its target (the lane, for roles that have lanes) is `t`.
pub fn event(role: Role, id: &str, subject: &str) -> Event {
    let (kind, action) = match role {
        Role::Scanner => ("dev.trimtab.scan.request.v1", "request"),
        Role::Decider => ("dev.trimtab.candidate.ledger.v1", "ledger"),
        Role::Executor => ("dev.trimtab.decision.v1", "trim"),
        Role::Audit => ("dev.trimtab.outcome.v1", "done"),
        Role::Recovery => ("dev.trimtab.recovery.segment.v1", "segment"),
        Role::Finisher => ("dev.trimtab.recovery.report.v1", "verified"),
    };
    let of = serde_json::to_string(subject).expect("JSON");
    let data = format!("{{\"of\": {of},\n  \"kept\":\t1.50, \"as\":\"\\u00e9 \u{e9} \\/\"}}");
    Event {
        specversion: "1.0".into(),
        id: id.to_owned(),
        source: "/trimtab/test/1".to_owned(),
        kind: kind.into(),
        subject: format!("t/{subject}"),
        time: "2026-11-29T00:00:00Z".parse().expect("a time"),
        datacontenttype: "application/json".into(),
        dataschema: "schemas/none.json".into(),
        target: "t".to_owned(),
        action: action.to_owned(),
        key: trimtab_events::key_of("t", subject),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: Some("a=1,b=2".to_owned()),
        signer: Some("UA".to_owned()),
        signature: Some("c2ln".to_owned()),
        proof: Some("cHJvb2Y=".to_owned()),
        data: serde_json::value::RawValue::from_string(data).expect("JSON").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InProcess, SqliteStore};

    struct InProcessRig;

    impl BusRig for InProcessRig {
        fn fresh(&self, options: BusOptions) -> BoxFuture<'_, BusUnderTest> {
            Box::pin(async move {
                let bus = Arc::new(InProcess::new(options));
                let queue = Arc::clone(&bus);
                let inject = move |role, bytes| -> BoxFuture<'static, ()> {
                    let queue = Arc::clone(&queue);
                    Box::pin(async move { queue.publish_bytes(role, bytes).await.expect("room") })
                };
                BusUnderTest { bus, inject: Box::new(inject) }
            })
        }
    }

    struct SqliteRig(tempfile::TempDir, std::sync::atomic::AtomicU32);

    impl StoreRig for SqliteRig {
        fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
            let number = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let path = self.0.path().join(format!("{number}.db"));
            Box::pin(async move { Arc::new(SqliteStore::open(path).expect("new")) as Arc<dyn Store> })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_process_on_a_paused_clock() {
        bus(&InProcessRig).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sqlite() {
        store(&SqliteRig(tempfile::tempdir().expect("folder"), Default::default())).await;
    }
}
