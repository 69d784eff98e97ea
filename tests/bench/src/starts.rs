//! From the start of a process to the first event that it has handled, in turn with the `nats` command line's own request from a cold
//! process.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use trimtab::sign::Signer;
use trimtab_bus::{Bus, JetStream, NatsOptions};
use trimtab_tests::cache;
use trimtab_tests::nats::NatsRig;

use crate::{Options, measure, pipeline};

/// No start takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(options: &Options) -> Result<()> {
    let rounds = options.number("rounds", 25)?;
    let (trimtab, cli) = (measure::trimtab()?, cache::nats_cli()?);
    let rig = NatsRig::single()?;
    let url = rig.url();
    let folder = tempfile::tempdir()?;
    let seed = folder.path().join("seed");
    std::fs::write(&seed, Signer::ephemeral().seed()?)?;
    let made = Command::new(&trimtab).args(["nats", "setup", "--nats", &url]).stdout(Stdio::null()).status()?;
    ensure!(made.success(), "trimtab nats setup: {made}");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (bus, mut settled) = runtime.block_on(async {
        let bus = JetStream::connect(NatsOptions { servers: vec![url.clone()], ..NatsOptions::default() });
        let client = async_nats::connect(&url).await?;
        // Somebody who answers the peer's request.
        let mut asked = client.subscribe("bench.ask").await?;
        let answers = client.clone();
        tokio::spawn(async move {
            while let Some(message) = asked.next().await {
                if let Some(reply) = message.reply {
                    let _ = answers.publish(reply, "x".into()).await;
                }
            }
        });
        let settled = client.subscribe("$JS.ACK.TT_CAND.decider.>").await?;
        client.flush().await?;
        anyhow::Ok((bus.await?, settled))
    })?;
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let page = pipeline::one_page(&format!("start-{round}"))?;
        runtime.block_on(bus.publish(&page))?;
        let begun = Instant::now();
        let mut decider = Command::new(&trimtab)
            .args(["decider", "--nats", &url, "--seed-file"])
            .arg(&seed)
            .arg("--state-dir")
            .arg(folder.path())
            .env("TRIMTAB_NATS__CREATE", "false")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting a decider")?;
        let first = runtime.block_on(async { tokio::time::timeout(PATIENCE, settled.next()).await });
        ours.push(begun.elapsed().as_secs_f64() * 1000.0);
        decider.kill()?;
        let _ = decider.wait()?;
        ensure!(matches!(first, Ok(Some(ref ack)) if &ack.payload[..] == b"+ACK"), "round {round}: {first:?}");

        let begun = Instant::now();
        let asked = Command::new(&cli).args(["--no-context", "-s", &url, "request", "bench.ask", "x"]).output()?;
        peer.push(begun.elapsed().as_secs_f64() * 1000.0);
        ensure!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    }
    let show = |what: &str, took: &[f64]| {
        let most = took.iter().copied().fold(0.0, f64::max);
        println!(
            "FIGURE starts: {what}: {:.0} ms (median), {most:.0} ms (most), {rounds} starts",
            measure::median(took)
        );
    };
    show("decider, from its start until its first page is settled", &ours);
    show("nats request, from its start until its end", &peer);
    let ratios: Vec<f64> = ours.iter().zip(&peer).map(|(ours, peer)| ours / peer).collect();
    measure::ratio("starts: a decider's first page to a request of the CLI", &ratios, "at most 3; ours under 300 ms");
    Ok(())
}
