//! Boots a rig for a person to look at, and stops it at the end of standard input; or installs what the rigs need.
//!
//! `cargo run -p trimtab-tests --bin rig -- pulsar|mess|hedwig|nats|install`

use anyhow::{Result, bail};
use trimtab_tests::cache;
use trimtab_tests::hedwig::{HedwigRig, Part};
use trimtab_tests::mess::Mess;
use trimtab_tests::nats::NatsRig;
use trimtab_tests::pulsar::PulsarRig;

fn main() -> Result<()> {
    let what = std::env::args().nth(1).unwrap_or_default();
    match what.as_str() {
        "pulsar" => show_pulsar(&PulsarRig::builder().start()?),
        "mess" => {
            let mess = Mess::start()?;
            println!("MADE_MS={}", mess.made_ms);
            show_pulsar(&mess.rig)
        }
        "hedwig" => {
            let rig = HedwigRig::builder().start()?;
            println!("ZK={}\nHUB1={}\nHUB2={}", rig.zk(), rig.hub(Part::Hub1), rig.hub(Part::Hub2));
            println!("FOLDER={}", rig.folder().display());
            wait()
        }
        "nats" => {
            let rig = NatsRig::single()?;
            println!("NATS={}\nMONITOR={}", rig.url(), rig.monitor(0));
            wait()
        }
        "install" => install(),
        _ => bail!("say which rig, pulsar, mess, hedwig or nats, or install"),
    }
}

fn show_pulsar(rig: &PulsarRig) -> Result<()> {
    println!(
        "ZK={}\nWEB={}\nSERVICE={}\nBOOKIE_HTTP={}\nFOLDER={}",
        rig.zk(),
        rig.web(),
        rig.service(),
        rig.bookie_http(),
        rig.folder().display()
    );
    wait()
}

/// Fetches and builds everything into the cache, and prints where the programs are, for a shell to evaluate.
fn install() -> Result<()> {
    trimtab_tests::pulsar::install()?;
    trimtab_tests::hedwig::install()?;
    println!("export NATS_SERVER='{}'", cache::nats_server()?.display());
    println!("export NATS_CLI='{}'", cache::nats_cli()?.display());
    cache::prometheus()?;
    if let Some(jaeger) = cache::jaeger()? {
        println!("export JAEGER='{}'", jaeger.display());
    }
    println!("export DOCKER_COMPOSE='{}'", cache::docker_compose()?.display());
    Ok(())
}

fn wait() -> Result<()> {
    eprintln!("it runs; end the input (Ctrl-D) to stop it");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
