//! How long an act locks a Hedwig subscriber out, and how acts grow with the number of hubs: within the rate that each hub is asked at, acts
//! on the topics of one hub against acts on those of two.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt};
use trimtab_targets::hedwig::{ActOptions, HedwigAct, HedwigInventory, HubOptions, Hubs, Move, Outcome, Settings};
use trimtab_targets::{Connection, Mode, Pace, Permit, Zk, ZkOptions};
use trimtab_tests::hedwig::{HedwigRig, Part, REGION};

use crate::{Options, measure};

/// Acts under way at once.
const AT_ONCE: usize = 16;

struct Ours {
    inventory: Arc<HedwigInventory>,
    act: HedwigAct,
    permit: Permit,
}

impl Ours {
    async fn at(rig: &HedwigRig, rate: f64) -> Result<Ours> {
        let pace = Arc::new(Pace::new(0.0).map_err(anyhow::Error::msg)?);
        let zk = Zk::connect(Connection::parse(&format!("zk://{}", rig.zk()))?, ZkOptions::default(), pace).await?;
        let settings = Settings { region: REGION.to_owned(), ..Settings::default() };
        let inventory = Arc::new(HedwigInventory::new(zk, settings));
        let options = ActOptions {
            settle: Duration::from_millis(100),
            attach_rate: rate,
            acquire_rate: 0.0,
            ..ActOptions::default()
        };
        let act = HedwigAct::new(Hubs::new(HubOptions::default())?, inventory.clone(), options)?;
        let permit = Permit::for_mode(Mode::Apply).context("no permit")?;
        Ok(Ours { inventory, act, permit })
    }

    /// Moves the subscriber of a topic; how long it was locked out.
    async fn act(&self, topic: &str) -> Result<Duration> {
        let seen = self.inventory.look(topic).await?.with_context(|| format!("there is no topic {topic}"))?;
        let hub = seen.owner.present().map(|owner| owner.info.address.to_string());
        let found = seen.subscribers.first().context("it has no subscriber")?;
        let what =
            Move { topic, subscriber: &found.id, seen: found.seen, up_to: 100, stood_at: None, hub: hub.as_deref() };
        let (outcome, visit) = self.act.carry_out(&what, &self.permit).await?;
        ensure!(outcome == Outcome::Consumed, "{topic}: {outcome}");
        visit.held.context("it was not attached")
    }

    async fn all(&self, topics: &[String]) -> Result<(Duration, Vec<Duration>)> {
        let started = Instant::now();
        let held = stream::iter(topics).map(|topic| self.act(topic)).buffer_unordered(AT_ONCE);
        let held: Vec<Result<Duration>> = held.collect().await;
        Ok((started.elapsed(), held.into_iter().collect::<Result<_>>()?))
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let each = usize::try_from(options.number("topics", 60)?)?;
    let rate = options.number("rate", 20)? as f64;
    let rig = HedwigRig::builder().start()?;
    let mut hands = rig.hands()?;
    // For each hub: those that are acted on alone, and those that are acted on together with the other hub's.
    let hubs = [Part::Hub1, Part::Hub2];
    let mut topics: [Vec<String>; 2] = Default::default();
    let runtime = tokio::runtime::Runtime::new()?;
    let ours = runtime.block_on(Ours::at(&rig, rate))?;
    for number in 0..each * 8 {
        if topics.iter().all(|topics| topics.len() >= each * 2) {
            break;
        }
        let name = format!("t{number}");
        hands.prepare(&name, &["idle"])?;
        hands.run(&format!("publish {name} 110"))?;
        let seen = runtime.block_on(ours.inventory.look(&name))?.context("there is no such topic")?;
        let owner = seen.owner.present().context("nobody owns it")?.info.address.plain();
        let which = hubs.iter().position(|hub| rig.hub_plain(*hub) == owner).context("another hub")?;
        topics[which].push(name);
    }
    ensure!(topics.iter().all(|topics| topics.len() >= each * 2), "one hub took nearly everything");
    let mut held = Vec::new();
    let mut ratios = Vec::new();
    for which in [0, 1] {
        let (alone, first) = runtime.block_on(ours.all(&topics[which][..each / 2]))?;
        topics[which].drain(..each / 2);
        let half = each / 2;
        let [one, two] = &mut topics;
        let together: Vec<String> = one.drain(..half).zip(two.drain(..half)).flat_map(|(a, b)| [a, b]).collect();
        let (both, second) = runtime.block_on(ours.all(&together))?;
        let per = |count: usize, took: Duration| count as f64 / took.as_secs_f64();
        println!(
            "  one hub {:.1} acts/s, two hubs {:.1} acts/s, {rate} a second allowed on each",
            per(half, alone),
            per(together.len(), both)
        );
        ratios.push(per(together.len(), both) / per(half, alone));
        held.extend(first.into_iter().chain(second).map(|held| held.as_secs_f64() * 1000.0));
    }
    held.sort_by(f64::total_cmp);
    let at = |part: f64| held[((held.len() - 1) as f64 * part) as usize];
    println!(
        "FIGURE attach: locked out for {:.1} ms (median), {:.1} ms (95 %), {} acts",
        at(0.5),
        at(0.95),
        held.len()
    );
    measure::ratio("attach: acts/s on two hubs to one", &ratios, "2; the median time attached at most 100 ms");
    Ok(())
}
