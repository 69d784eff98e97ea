//! A cluster, and somebody who acts on its subscriptions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use serde_json::Value;
use tokio::runtime::Runtime;
use trimtab_events::{LastLedger, Position};
use trimtab_targets::pulsar::subscriptions::{
    Acted, Consume, Online, Outcome, Skip, Step, Steps, Subscriber, SubscriptionOptions, Subscriptions, Trim,
};
use trimtab_targets::pulsar::wire::SubType;
use trimtab_targets::pulsar::{
    ActOptions, Admin, AdminOptions, Binary, BinaryOptions, CursorNode, PulsarInventory, Settings, TopicName,
};
use trimtab_targets::{Connection, Mode, Pace, Permit, TargetError, Zk, ZkOptions};
use trimtab_tests::http::{self, Reply};
use trimtab_tests::java::segment;
use trimtab_tests::pulsar::{Builder, PulsarRig, SUPERUSER};

use crate::client::Client;

pub(crate) struct Ground {
    pub(crate) rig: Arc<PulsarRig>,
    pub(crate) runtime: Runtime,
    pub(crate) inventory: Arc<PulsarInventory>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) rest: Rest,
}

/// The admin API of a rig's first broker, as the superuser.
#[derive(Clone)]
pub(crate) struct Rest {
    web: String,
    pub(crate) token: Option<String>,
}

impl Rest {
    /// A call; `path` is what follows the address.
    pub(crate) fn call(&self, method: &str, path: &str, json: Option<&str>) -> Reply {
        let url = format!("{}/{path}", self.web);
        http::request(method, &url, self.token.as_deref(), json).unwrap().ok().unwrap()
    }

    /// Makes a subscription at the topic's beginning. The admin API decodes names of subscriptions twice, so not by it.
    pub(crate) fn subscribe(&self, topic: &str, subscription: &str) {
        self.consumer(topic, subscription, SubType::Exclusive).unwrap().close();
    }

    pub(crate) fn unsubscribe(&self, topic: &str, subscription: &str) {
        let path = format!("admin/v2/persistent/{}/subscription/{}", path(topic), segment(subscription));
        self.call("DELETE", &path, None);
    }

    /// Closes a topic, once what was acknowledged is stored: a broker forgets what waits for a new cursor ledger.
    pub(crate) fn unload(&self, topic: &str) {
        self.stored(topic);
        self.call("PUT", &format!("admin/v2/persistent/{}/unload", path(topic)), None);
    }

    /// Waits until no acknowledgement of a topic waits for a new cursor ledger, which writes the cursor's node as well.
    pub(crate) fn stored(&self, topic: &str) {
        let stats =
            || self.call("GET", &format!("admin/v2/persistent/{}/internalStats", path(topic)), None).json().unwrap();
        let switching = |stats: &Value| {
            stats["cursors"].as_object().unwrap().values().any(|cursor| cursor["state"] == "SwitchingLedger")
        };
        while switching(&stats()) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The topic's statistics, which loads it.
    pub(crate) fn stats(&self, topic: &str) -> Value {
        self.call("GET", &format!("admin/v2/persistent/{}/stats", path(topic)), None).json().unwrap()
    }

    /// The binary address of the broker that has a topic. By way of HTTP, so that no bundle is loaded whole.
    pub(crate) fn owner(&self, topic: &str) -> String {
        let found = self.call("GET", &format!("lookup/v2/topic/persistent/{}", path(topic)), None).json().unwrap();
        found["brokerUrl"].as_str().unwrap().to_owned()
    }

    pub(crate) fn producer(&self, topic: &str) -> Client {
        Client::producer(&self.owner(topic), self.token.as_deref(), &format!("persistent://{topic}"))
    }

    /// A consumer of an existing subscription, or why not.
    pub(crate) fn consumer(&self, topic: &str, subscription: &str, kind: SubType) -> Result<Client, String> {
        let full = format!("persistent://{topic}");
        Client::subscribe(&self.owner(topic), self.token.as_deref(), &full, subscription, kind)
    }

    /// Everything that a subscription is still owed, to a consumer that connects now.
    pub(crate) fn owed(&self, topic: &str, subscription: &str) -> Vec<Position> {
        let mut consumer = self.consumer(topic, subscription, SubType::Exclusive).unwrap();
        let owed = consumer.receive();
        consumer.close();
        owed
    }
}

/// `tenant/namespace/topic` as part of an admin path.
fn path(topic: &str) -> String {
    let mut parts = topic.splitn(3, '/');
    let (tenant, namespace, local) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    format!("{tenant}/{namespace}/{}", segment(local))
}

pub(crate) fn permit() -> Permit {
    Permit::for_mode(Mode::Apply).unwrap()
}

/// A cluster with the tenant `acme` and its namespace `keep`, which retains everything.
pub(crate) fn cluster(builder: Builder) -> Arc<PulsarRig> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Brokers trim what they have loaded by themselves, so they must not come by meanwhile.
    let rig = builder.setting("retentionCheckIntervalInSeconds", "3600").start().unwrap();
    rig.rest("PUT", "tenants/acme", Some(r#"{"allowedClusters":["rig"]}"#)).unwrap().ok().unwrap();
    rig.rest("PUT", "namespaces/acme/keep", None).unwrap().ok().unwrap();
    let forever = r#"{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}"#;
    rig.rest("POST", "namespaces/acme/keep/retention", Some(forever)).unwrap().ok().unwrap();
    Arc::new(rig)
}

impl Ground {
    /// A namespace of its own on a cluster, that retains nothing; in `acme/keep` everything is retained.
    pub(crate) fn at(rig: &Arc<PulsarRig>, namespace: &str) -> Ground {
        Ground::of(rig, namespace, None, BinaryOptions::default())
    }

    /// The same as a role, with other options for the binary protocol.
    pub(crate) fn of(rig: &Arc<PulsarRig>, namespace: &str, role: Option<&str>, binary: BinaryOptions) -> Ground {
        let runtime = Runtime::new().unwrap();
        let token = role.map(|role| rig.token(role).unwrap());
        let rest = Rest { web: rig.web(), token: role.map(|_| rig.token(SUPERUSER).unwrap()) };
        rest.call("PUT", &format!("admin/v2/namespaces/acme/{namespace}"), None);
        let binary = BinaryOptions { token: token.clone(), ..binary };
        let (inventory, subscriptions) = acting(&runtime, rig, token, binary);
        Ground { rig: rig.clone(), runtime, inventory, subscriptions, rest }
    }

    /// A topic with `messages` in ledgers of ten, and a subscription that has read none of them; nobody has it loaded. The entries.
    pub(crate) fn topic(&self, topic: &str, subscription: &str, messages: usize) -> Vec<Position> {
        self.rest.call("PUT", &format!("admin/v2/persistent/{}", path(topic)), None);
        self.rest.subscribe(topic, subscription);
        let entries = self.produce(topic, messages);
        self.rest.unload(topic);
        entries
    }

    pub(crate) fn produce(&self, topic: &str, messages: usize) -> Vec<Position> {
        let mut producer = self.rest.producer(topic);
        (0..messages).map(|_| producer.send()).collect()
    }

    pub(crate) fn cursor(&self, topic: &str, subscription: &str) -> Option<CursorNode> {
        self.runtime.block_on(self.inventory.cursor(&name(topic), subscription)).unwrap()
    }

    /// Whether the last ledger of a topic is open: a broker has it loaded.
    pub(crate) fn loaded(&self, topic: &str) -> bool {
        let (_, last) = self.runtime.block_on(self.inventory.list(&name(topic))).unwrap().unwrap();
        last == LastLedger::Open
    }

    /// The ledgers that a topic lists.
    pub(crate) fn ledgers(&self, topic: &str) -> Vec<i64> {
        let (list, _) = self.runtime.block_on(self.inventory.list(&name(topic))).unwrap().unwrap();
        list.ledgers.iter().map(|ledger| ledger.id).collect()
    }

    /// A subscription as it is now.
    pub(crate) fn subscriber(&self, topic: &str, subscription: &str) -> Subscriber {
        let cursor = self.cursor(topic, subscription).unwrap().seen;
        let loaded = self.loaded(topic);
        Subscriber { topic: name(topic), subscription: subscription.to_owned(), cursor, loaded }
    }

    pub(crate) fn consume(
        &self,
        topic: &str,
        subscription: &str,
        up_to: Position,
    ) -> Result<Outcome<Acted>, TargetError> {
        self.consume_watched(topic, subscription, up_to, &Hook::none())
    }

    pub(crate) fn consume_watched(
        &self,
        topic: &str,
        subscription: &str,
        up_to: Position,
        hook: &Hook<'_>,
    ) -> Result<Outcome<Acted>, TargetError> {
        let job = Consume { subscriber: self.subscriber(topic, subscription), up_to, trim: Trim::Nothing };
        self.runtime.block_on(self.subscriptions.consume(&job, hook, &permit()))
    }
}

/// Somebody who acts, by way of a rig's first broker.
pub(crate) fn acting(
    runtime: &Runtime,
    rig: &PulsarRig,
    token: Option<String>,
    binary: BinaryOptions,
) -> (Arc<PulsarInventory>, Arc<Subscriptions>) {
    let connection = Connection::parse(&format!("zk://{}", rig.zk())).unwrap();
    let pace = Arc::new(Pace::new(0.0).unwrap());
    let zk = runtime.block_on(Zk::connect(connection, ZkOptions::default(), pace)).unwrap();
    let inventory = Arc::new(PulsarInventory::new(zk, Settings::default(), None));
    let urls = vec![rig.web()];
    let admin = AdminOptions { urls, token, rate: 0.0, timeout: Duration::from_secs(30), ..AdminOptions::default() };
    let options = SubscriptionOptions {
        times: ActOptions { settle: Duration::from_secs(10), ..ActOptions::default() },
        ..SubscriptionOptions::default()
    };
    let admin = Arc::new(Admin::new(admin).unwrap());
    let binary = Arc::new(Binary::new(binary).unwrap());
    let subscriptions = Subscriptions::new(admin, binary, inventory.clone(), options);
    (inventory, Arc::new(subscriptions))
}

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName::of_subject(&format!("persistent://{topic}")).unwrap()
}

/// Which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Ask,
    Attach,
    Act,
    Detach,
}

type Call<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Pauses an act before a step, for as long as it takes to do something.
pub(crate) struct Hook<'a> {
    call: Mutex<Option<(At, Call<'a>)>>,
    /// The steps that were taken.
    pub(crate) taken: Mutex<Vec<At>>,
}

impl<'a> Hook<'a> {
    pub(crate) fn none() -> Hook<'a> {
        Hook { call: Mutex::new(None), taken: Mutex::default() }
    }

    pub(crate) fn before(at: At, call: impl FnOnce() + Send + 'a) -> Hook<'a> {
        Hook { call: Mutex::new(Some((at, Box::new(call)))), taken: Mutex::default() }
    }

    pub(crate) fn reached(&self, at: At) -> bool {
        self.taken.lock().unwrap().contains(&at)
    }
}

impl Steps for Hook<'_> {
    fn before<'b>(&'b self, step: Step<'b>) -> BoxFuture<'b, Result<(), TargetError>> {
        let at = match step {
            Step::Ask => At::Ask,
            Step::Attach => At::Attach,
            Step::Acknowledge(..) | Step::Delete(_) | Step::PutBack(..) => At::Act,
            Step::Detach => At::Detach,
        };
        async move {
            self.taken.lock().unwrap().push(at);
            let call = self.call.lock().unwrap().take_if(|(when, _)| *when == at);
            if let Some((_, call)) = call {
                // The attachment's own task must go on meanwhile: it answers probes.
                tokio::task::block_in_place(call);
            }
            Ok(())
        }
        .boxed()
    }
}

pub(crate) fn done(outcome: Result<Outcome<Acted>, TargetError>) -> Acted {
    match outcome {
        Ok(Outcome::Done(acted)) => acted,
        other => panic!("not done: {other:?}"),
    }
}

pub(crate) fn online(outcome: Result<Outcome<Acted>, TargetError>) -> Online {
    match outcome {
        Ok(Outcome::Online(online)) => online,
        other => panic!("not refused for being online: {other:?}"),
    }
}

pub(crate) fn skipped(outcome: Result<Outcome<Acted>, TargetError>) -> Skip {
    match outcome {
        Ok(Outcome::Skipped(skip)) => skip,
        other => panic!("not skipped: {other:?}"),
    }
}
