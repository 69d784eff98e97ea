//! Subscriptions whose position is in a cursor ledger: only their topic's broker knows where they stand, and it is asked where the topic is
//! loaded anyway.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt};
use trimtab_events::{Candidate, Evidence, LedgerCandidate, Log, SubscriberCandidate};
use trimtab_targets::pulsar::wire::{AckType, SubType};
use trimtab_targets::pulsar::{
    Admin, AdminOptions, AskBrokers, PulsarInventory, Settings, ToldCursor, TopicName, TopicPolicies,
};
use trimtab_targets::{Connection, Inventory, Pace, TargetError, Zk, ZkOptions};
use trimtab_tests::pulsar::PulsarRig;

use crate::ground::Ground;

struct Asker {
    admin: Admin,
    recorded: Mutex<Vec<LedgerCandidate>>,
    asked: Mutex<Vec<String>>,
}

impl AskBrokers for Asker {
    fn topic_policies<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<TopicPolicies, TargetError>> {
        self.admin.topic_policies(name).boxed()
    }

    fn standing<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<HashMap<String, ToldCursor>, TargetError>> {
        assert!(
            self.recorded.lock().unwrap().iter().any(|topic| topic.subject == name.subject()),
            "not recorded before"
        );
        self.asked.lock().unwrap().push(name.subject());
        self.admin.standing(name).boxed()
    }

    fn record<'a>(&'a self, evidence: &'a [LedgerCandidate]) -> BoxFuture<'a, Result<(), TargetError>> {
        self.recorded.lock().unwrap().extend_from_slice(evidence);
        futures::future::ready(Ok(())).boxed()
    }

    fn loaded<'a>(&'a self, _: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<(), TargetError>> {
        futures::future::ready(Ok(())).boxed()
    }
}

fn inventory(ground: &Ground, ask: Option<Arc<Asker>>) -> PulsarInventory {
    let connection = Connection::parse(&format!("zk://{}", ground.rig.zk())).unwrap();
    let pace = Arc::new(Pace::new(0.0).unwrap());
    let zk = ground.runtime.block_on(Zk::connect(connection, ZkOptions::default(), pace)).unwrap();
    PulsarInventory::new(zk, Settings::default(), ask.map(|ask| ask as Arc<dyn AskBrokers>))
}

fn seen(ground: &Ground, inventory: &PulsarInventory, topic: &str) -> SubscriberCandidate {
    let subject = format!("persistent://{topic}?subscription=s");
    match ground.runtime.block_on(inventory.observe(&subject)).unwrap() {
        Some(Candidate::Subscriber(log)) => *log,
        other => panic!("{other:?}"),
    }
}

fn progress(seen: &SubscriberCandidate) -> &str {
    let found = seen.subscribers.iter().find(|found| found.name == "s").unwrap();
    found.progress.present().unwrap_or_else(|| panic!("{found:?}"))
}

pub(crate) fn where_loaded_ones_stand(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "l");
    let topic = "acme/l/t";
    let entries = ground.topic(topic, "s", 25);
    let admin = Admin::new(AdminOptions { urls: vec![rig.web()], ..AdminOptions::default() }).unwrap();
    let asker = Arc::new(Asker { admin, recorded: Mutex::default(), asked: Mutex::default() });
    let (silent, asking) = (inventory(&ground, None), inventory(&ground, Some(asker.clone())));
    // Nobody has it loaded: what there is to know is in the node, and no broker is asked.
    let idle = seen(&ground, &asking, topic);
    assert!(asker.asked.lock().unwrap().is_empty() && !ground.loaded(topic));
    assert_eq!(progress(&idle), progress(&seen(&ground, &silent, topic)));

    // A producer keeps it loaded, and a first acknowledgement puts the position into a cursor ledger.
    let mut producer = ground.rest.producer(topic);
    producer.send();
    let mut consumer = ground.rest.consumer(topic, "s", SubType::Shared).unwrap();
    consumer.receive();
    consumer.acknowledge(AckType::Individual, &[&entries[..4], &[entries[7], entries[8], entries[12]]].concat());
    consumer.close();
    let start = Instant::now();
    while !ground.cursor(topic, "s").unwrap().info.lower_bound() {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(50));
    }
    let hidden = seen(&ground, &silent, topic);
    let why = hidden.subscribers[0].progress.unknown().unwrap();
    assert!(why.contains("--ask-brokers"), "{why}");
    let told = seen(&ground, &asking, topic);
    let Log::Pulsar(log) = &told.log else { panic!("{told:?}") };
    let cursor = &log.cursors.present().unwrap()[0];
    assert_eq!((cursor.mark_delete.present(), cursor.lower_bound), (Some(&entries[3]), false));
    assert_eq!(told.subscribers[0].connected, Evidence::Present(0));
    assert!(told.subscribers[0].alive_ms > 0, "{told:?}");
    let at_first = progress(&told).to_owned();
    assert_ne!(at_first, progress(&idle));
    assert_eq!(progress(&seen(&ground, &asking, topic)), at_first, "nothing has happened");
    // What the question might have erased was recorded, as it was.
    let recorded = asker.recorded.lock().unwrap().clone();
    let as_it_was = |topic: &LedgerCandidate| topic.cursors.present().is_some_and(|cursors| cursors[0].lower_bound);
    assert!(recorded.iter().any(as_it_was), "{recorded:?}");

    // Somebody is connected, and takes nothing.
    let consumer = ground.rest.consumer(topic, "s", SubType::Shared).unwrap();
    let online = seen(&ground, &asking, topic);
    assert_eq!(online.subscribers[0].connected, Evidence::Present(1));
    assert_ne!(progress(&online), at_first);
    consumer.close();
    // It acknowledges one message somewhere in the middle.
    let mut consumer = ground.rest.consumer(topic, "s", SubType::Shared).unwrap();
    consumer.receive();
    consumer.acknowledge(AckType::Individual, &[entries[20]]);
    consumer.close();
    let moved = progress(&seen(&ground, &asking, topic)).to_owned();
    assert_ne!(moved, at_first);
    // The node says the same once the topic is closed: that is no sign of life.
    producer.close();
    ground.rest.unload(topic);
    assert_eq!(progress(&seen(&ground, &silent, topic)), moved);
    let asked = asker.asked.lock().unwrap().len();
    assert_eq!(progress(&seen(&ground, &asking, topic)), moved);
    assert_eq!(asker.asked.lock().unwrap().len(), asked);
    assert!(!ground.loaded(topic));
}
