//! Something happens between any two steps of an act: the subscriber comes back, takes messages, unsubscribes. Every request that the act
//! sends, to ZooKeeper and to hubs, is a place where it happens.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Runtime;
use trimtab_targets::hedwig::{HubOptions, Outcome};
use trimtab_tests::frame_proxy::{Fate, Frame, FrameProxy};
use trimtab_tests::hedwig::{Hands, HedwigRig, Part};

use super::region::{Ours, decided, ours_through, quick};

const SOON: Duration = Duration::from_secs(30);

/// Counts the requests of our side, and does something before one of them goes on.
#[derive(Clone, Default)]
struct Tripwire {
    seen: Arc<AtomicU64>,
    armed: Arc<Mutex<Option<(u64, Action)>>>,
}

type Action = Box<dyn FnOnce() + Send>;

impl Tripwire {
    fn arm(&self, after: u64, action: impl FnOnce() + Send + 'static) {
        let at = self.seen.load(Ordering::SeqCst) + after;
        *self.armed.lock().unwrap() = Some((at, Box::new(action)));
    }

    /// Whether it was stepped on.
    fn disarm(&self) -> bool {
        self.armed.lock().unwrap().take().is_none()
    }

    fn hook(&self) -> impl Fn(Frame<'_>) -> Fate + Send + Sync + 'static {
        let this = self.clone();
        move |frame| {
            // Pings of a session come when they like.
            let ping = frame.body.len() == 8 && frame.body[4..] == [0, 0, 0, 11];
            if frame.from_client && !ping {
                let number = this.seen.fetch_add(1, Ordering::SeqCst);
                let action = this.armed.lock().unwrap().take_if(|(at, _)| *at <= number);
                if let Some((_, action)) = action {
                    action();
                }
            }
            Fate::Pass
        }
    }
}

struct Stage {
    hands: Arc<Mutex<Hands>>,
    ours: Ours,
    wire: Tripwire,
    _proxies: Vec<FrameProxy>,
}

async fn stage(rig: &HedwigRig) -> Stage {
    let hands = Arc::new(Mutex::new(rig.hands().unwrap()));
    let wire = Tripwire::default();
    let zk = FrameProxy::start(&rig.zk(), wire.hook()).unwrap();
    let (mut proxies, mut options) = (Vec::new(), HubOptions::default());
    for hub in [Part::Hub1, Part::Hub2] {
        let proxy = FrameProxy::start(&rig.hub_plain(hub), wire.hook()).unwrap();
        options.addresses.insert(rig.hub_plain(hub), proxy.address().to_owned());
        proxies.push(proxy);
    }
    let ours = ours_through(zk.address(), options, quick()).await;
    proxies.push(zk);
    Stage { hands, ours, wire, _proxies: proxies }
}

/// What somebody does in the middle of an act.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Adversary {
    ComesOnline,
    TakesSixty,
    Unsubscribes,
}

impl Adversary {
    pub(crate) const ALL: [Adversary; 3] = [Adversary::ComesOnline, Adversary::TakesSixty, Adversary::Unsubscribes];
}

/// Runs one act with an adversary at its `step`-th request. False when the act was over before.
async fn played(stage: &Stage, topic: &str, adversary: Adversary, step: u64, held: &mut usize) -> bool {
    let Stage { hands, ours, wire, .. } = stage;
    {
        let mut hands = hands.lock().unwrap();
        hands.prepare(topic, &["idle"]).unwrap();
        hands.run(&format!("publish {topic} 110")).unwrap();
    }
    let seen = ours.topic(topic).await;
    let result: Arc<Mutex<Option<Result<String, String>>>> = Arc::default();
    let (theirs, said, name) = (hands.clone(), result.clone(), topic.to_owned());
    wire.arm(step, move || {
        let command = match adversary {
            Adversary::ComesOnline => format!("online {name} {name} idle comeback=false mode=attach"),
            Adversary::TakesSixty => format!("consume {name} idle 60 mode=attach wait=1500"),
            Adversary::Unsubscribes => format!("unsubscribe {name} idle"),
        };
        let ran = theirs.lock().unwrap().run(&command);
        *said.lock().unwrap() = Some(ran.map_err(|e| e.to_string()));
    });
    let (outcome, visit) = ours.act.carry_out(&decided(&seen, "idle", None), &ours.permit).await.unwrap();
    let stepped = wire.disarm();
    let said = result.lock().unwrap().take();
    let mut hands = hands.lock().unwrap();
    let shown = hands.show(topic).unwrap();
    let stands = shown.subscribers.get("idle").copied();
    let context = format!("{adversary:?} at {step}: {outcome:?} {visit:?} they: {said:?} now: {shown:?}");
    match (&said, adversary) {
        (None, _) => assert!(!stepped, "{context}"),
        (Some(Ok(_)), Adversary::ComesOnline) => {
            let heard = hands.heard(topic, SOON, |heard| !heard.contains("first=0")).unwrap();
            let first: u64 = heard.split("first=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
            // Whoever was let in before us gets everything, and we nothing. Whoever comes after us gets what is left.
            match outcome {
                Outcome::Consumed => assert_eq!((first, stands.unwrap().0), (101, 100), "{context} {heard}"),
                _ => assert_eq!((first, stands.unwrap().0, stands.unwrap().1), (1, 0, 0), "{context} {heard}"),
            }
            hands.run(&format!("release {topic}")).unwrap();
        }
        (Some(Ok(_)), Adversary::TakesSixty) => {
            // Those sixty were the first ones, or they came after us; then there were not so many left.
            assert_ne!(outcome, Outcome::Consumed, "{context}");
            assert_eq!(stands.unwrap().0, 60, "{context}");
        }
        (Some(Ok(_)), Adversary::Unsubscribes) => assert_eq!(stands, None, "{context}"),
        // Refused, because we had it; or, after us, because sixty were not left. The hold itself is short.
        (Some(Err(why)), _) => {
            *held += 1;
            assert_eq!(outcome, Outcome::Consumed, "{context}");
            let busy = why.contains("ServiceDown") || why.contains("TopicBusy") || why.contains("nothing more after");
            assert!(busy, "{context}");
        }
    }
    stepped
}

/// So many go through the steps side by side, each taking every so manieth.
pub(crate) const LANES: u64 = 2;

pub(crate) fn at_every_step(rig: &HedwigRig, adversary: Adversary, lane: u64) {
    Runtime::new().unwrap().block_on(async {
        let stage = stage(rig).await;
        let (mut step, mut held) = (lane, 0);
        while played(&stage, &format!("{adversary:?}{step}"), adversary, step, &mut held).await {
            step += LANES;
            assert!(step < 60);
        }
        // ZooKeeper: layout, owner and liveness twice, subscriber and ledgers before, during and after; the hub: three requests.
        assert!(step > 12, "{step}");
        assert!(held < 5, "{held} of {step}");
    });
}
