//! The same pipeline on servers that sync each message before they say that they have it, one and a cluster of three, and with a second
//! process of each role.

use anyhow::Result;
use trimtab_bus::Role;
use trimtab_tests::nats::{Builder, NatsRig};

use crate::Options;
use crate::measure;
use crate::pipeline::{How, PAGE, pipeline, set_up, show};

/// What a server is asked to do before it says that it has a message.
enum Servers {
    /// Sync it.
    Synced,
    /// Sync it, on three of them.
    Three,
    /// Write it; it syncs when it likes.
    Usual,
}

impl Servers {
    fn start(&self, queue: u64) -> Result<NatsRig> {
        let builder: Builder = NatsRig::builder();
        let (rig, replicas) = match self {
            Servers::Synced => (builder.start()?, 1),
            Servers::Three => (builder.cluster().start()?, 3),
            Servers::Usual => (builder.sync_interval("2m").start()?, 1),
        };
        tokio::runtime::Runtime::new()?.block_on(set_up(&rig.url(), replicas, queue))?;
        Ok(rig)
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 5)?;
    let (many, few) = (options.number("candidates", 96_000)?, options.number("single", 3_000)?);
    let how =
        |page: u64, second: Option<Role>| How { at_once: [64, 16, 256], apart: true, record: false, page, second };
    let runtime = tokio::runtime::Runtime::new()?;
    let rate = |what: &str, rig: &mut NatsRig, candidates: u64, how: How| {
        let (url, server) = (rig.node_url(0), rig.process(0)?.pid());
        anyhow::Ok(show(what, candidates, &runtime.block_on(pipeline(&url, server, candidates, 100, how))?))
    };
    let (mut pages, mut three, mut second) = (vec![], vec![], [vec![], vec![], vec![]]);
    let queue = many * 2 + 10_000;
    let roles = [Role::Scanner, Role::Decider, Role::Executor];
    for _ in 0..rounds {
        let mut synced = Servers::Synced.start(queue)?;
        let single = rate("synced, one candidate a message", &mut synced, few, how(1, None))?;
        pages.push(rate("synced, pages of 32", &mut synced, many, how(PAGE, None))? / single);
        drop(synced);
        let mut usual = Servers::Usual.start(queue)?;
        // A server's first run is slower than those that follow.
        rate("usual sync, to warm up", &mut usual, many / 4, how(PAGE, None))?;
        let alone = rate("usual sync, pages of 32", &mut usual, many, how(PAGE, None))?;
        for (role, ratios) in roles.iter().zip(&mut second) {
            let what = format!("usual sync, a second process as {}", role.name());
            ratios.push(rate(&what, &mut usual, many, how(PAGE, Some(*role)))? / alone);
        }
        drop(usual);
        let mut cluster = Servers::Three.start(queue)?;
        three.push(rate("three servers, synced, pages of 32", &mut cluster, many, how(PAGE, None))? / alone);
    }
    measure::ratio("synced: candidates/s in pages of 32 to one a message", &pages, "must be at least 15");
    measure::ratio("three servers, synced, to one with its usual sync", &three, "must be at least 0.2, aim 0.4");
    for (role, ratios) in roles.iter().zip(&second) {
        let what = format!("a second process as {}: candidates/s to those without", role.name());
        measure::ratio(&what, ratios, "must be at least 0.9");
    }
    Ok(())
}
