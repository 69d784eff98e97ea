//! What the tests on real hubs share: a region, our inventory and act on it, and Hedwig's own client beside them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryStreamExt;
use prost::Message;
use trimtab_events::{Candidate, Scope, SubscriberCandidate};
use trimtab_targets::hedwig::proto::PubSubRequest;
use trimtab_targets::hedwig::{
    ActOptions, HedwigAct, HedwigInventory, HubOptions, Hubs, Move, Outcome, Settings, Topic, Visit,
};
use trimtab_targets::{Connection, Inventory, Item, Mode, Pace, Permit, ReadsOf, TargetError, Zk, ZkOptions};
use trimtab_tests::frame_proxy::{Fate, Frame, FrameProxy};
use trimtab_tests::hedwig::{HedwigRig, Part, REGION};

pub(crate) const NO_READS: ReadsOf<'static> = &|_| trimtab_targets::Reads::default();

pub(crate) fn settings() -> Settings {
    Settings { region: REGION.to_owned(), ..Settings::default() }
}

pub(crate) async fn zk(address: &str) -> Zk {
    let pace = Arc::new(Pace::new(0.0).unwrap());
    Zk::connect(Connection::parse(&format!("zk://{address}")).unwrap(), ZkOptions::default(), pace).await.unwrap()
}

/// Our side of a region.
pub(crate) struct Ours {
    pub(crate) inventory: Arc<HedwigInventory>,
    pub(crate) act: HedwigAct,
    pub(crate) permit: Permit,
}

/// Times that a test can wait for.
pub(crate) fn quick() -> ActOptions {
    ActOptions {
        settle: Duration::from_millis(300),
        shown_within: Duration::from_secs(2),
        attach_rate: 0.0,
        acquire_rate: 0.0,
        ..ActOptions::default()
    }
}

impl Ours {
    pub(crate) async fn at(rig: &HedwigRig) -> Ours {
        Ours::with(rig, settings(), HubOptions::default(), quick()).await
    }

    pub(crate) async fn with(rig: &HedwigRig, settings: Settings, hubs: HubOptions, options: ActOptions) -> Ours {
        Ours::of(zk(&rig.zk()).await, settings, hubs, options)
    }

    fn of(zk: Zk, settings: Settings, hubs: HubOptions, options: ActOptions) -> Ours {
        let inventory = Arc::new(HedwigInventory::new(zk, settings));
        let act = HedwigAct::new(Hubs::new(hubs).unwrap(), inventory.clone(), options).unwrap();
        Ours { inventory, act, permit: Permit::for_mode(Mode::Apply).unwrap() }
    }

    pub(crate) async fn topic(&self, name: &str) -> Topic {
        self.inventory.look(name).await.unwrap().unwrap_or_else(|| panic!("no topic {name}"))
    }

    /// Consumes as a subscriber, on what is seen now, up to the end of the last closed range or `up_to`.
    pub(crate) async fn consume(&self, topic: &str, subscriber: &str, up_to: Option<u64>) -> (Outcome, Visit) {
        self.try_consume(topic, subscriber, up_to).await.unwrap_or_else(|e| panic!("{topic} {subscriber}: {e}"))
    }

    pub(crate) async fn try_consume(
        &self,
        topic: &str,
        subscriber: &str,
        up_to: Option<u64>,
    ) -> Result<(Outcome, Visit), TargetError> {
        let seen = self.topic(topic).await;
        let what = decided(&seen, subscriber, up_to);
        self.act.carry_out(&what, &self.permit).await
    }
}

/// Our side, with ZooKeeper at another address: a proxy's.
pub(crate) async fn ours_through(address: &str, hubs: HubOptions, options: ActOptions) -> Ours {
    let pace = Arc::new(Pace::new(0.0).unwrap());
    let one = ZkOptions { sessions: 1, ..ZkOptions::default() };
    let connection = Connection::parse(&format!("zk://{address}")).unwrap();
    Ours::of(Zk::connect(connection, one, pace).await.unwrap(), settings(), hubs, options)
}

/// What would be decided on what was seen.
pub(crate) fn decided<'a>(topic: &'a Topic, subscriber: &'a str, up_to: Option<u64>) -> Move<'a> {
    let found = topic.subscribers.iter().find(|found| found.id == subscriber);
    let found = found.unwrap_or_else(|| panic!("{} has no subscriber {subscriber}", topic.name));
    let end = topic.ledgers.present().and_then(|ledgers| Some(ledgers.closed_up_to(u64::MAX)?.1.local()));
    Move {
        topic: &topic.name,
        subscriber,
        seen: found.seen,
        up_to: up_to.or(end).unwrap_or(0),
        stood_at: None,
        hub: None,
    }
}

pub(crate) async fn scan(inventory: &dyn Inventory) -> Vec<SubscriberCandidate> {
    let scope = Scope::default();
    let mut all = Vec::new();
    for shard in inventory.shards(&scope).await.unwrap() {
        let items: Vec<Item> = inventory.scan(&shard, &scope, NO_READS).try_collect().await.unwrap();
        let subjects: Vec<String> = items.iter().map(|item| log(item).subject.clone()).collect();
        assert!(subjects.is_sorted(), "{subjects:?}");
        all.extend(items.iter().map(|item| log(item).clone()));
    }
    all.sort_by(|a: &SubscriberCandidate, b| a.subject.cmp(&b.subject));
    all
}

fn log(item: &Item) -> &SubscriberCandidate {
    match item {
        Item::Candidate(Candidate::Subscriber(log)) => log,
        other => panic!("{other:?}"),
    }
}

/// The type of a request on its way to a hub.
pub(crate) fn request(frame: Frame<'_>) -> Option<i32> {
    let request = PubSubRequest::decode(frame.body).ok()?;
    request.r#type.filter(|_| frame.from_client)
}

type Hook = Box<dyn FnMut(Frame<'_>) -> Fate + Send>;

/// Proxies before both hubs, which all show their frames to the same hook.
pub(crate) struct Watched {
    pub(crate) options: HubOptions,
    hook: Arc<Mutex<Hook>>,
    _proxies: Vec<FrameProxy>,
}

impl Watched {
    pub(crate) fn hubs(rig: &HedwigRig) -> Watched {
        let hook: Arc<Mutex<Hook>> = Arc::new(Mutex::new(Box::new(|_| Fate::Pass)));
        let (mut options, mut proxies) = (HubOptions::default(), Vec::new());
        for hub in [Part::Hub1, Part::Hub2] {
            let hook = hook.clone();
            let proxy = FrameProxy::start(&rig.hub_plain(hub), move |frame| (hook.lock().unwrap())(frame)).unwrap();
            options.addresses.insert(rig.hub_plain(hub), proxy.address().to_owned());
            proxies.push(proxy);
        }
        Watched { options, hook, _proxies: proxies }
    }

    pub(crate) fn set(&self, hook: impl FnMut(Frame<'_>) -> Fate + Send + 'static) {
        *self.hook.lock().unwrap() = Box::new(hook);
    }

    /// Everything passes again.
    pub(crate) fn unset(&self) {
        self.set(|_| Fate::Pass);
    }

    /// At the first request of a type, once.
    pub(crate) fn at(&self, kind: i32, action: impl FnOnce() -> Fate + Send + 'static) {
        let mut action = Some(action);
        self.set(move |frame| match request(frame) {
            Some(found) if found == kind => action.take().map_or(Fate::Pass, |action| action()),
            _ => Fate::Pass,
        });
    }
}
