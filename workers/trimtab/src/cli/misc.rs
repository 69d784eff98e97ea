//! The small commands.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
#[cfg(feature = "nats")]
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
#[cfg(feature = "nats")]
use tracing::warn;
use trimtab_events::schema;

use super::args::{
    CompletionsArgs, ConfigArgs, ConfigCommand, HealthArgs, KeysArgs, KeysCommand, ManArgs, NatsArgs, NatsCommand,
    SchemasArgs,
};
use super::{Context, Exit, Usage, command, init, runtime};
#[cfg(feature = "nats")]
use crate::config::Config;
use crate::sign::Signer;

/// `config`
pub(crate) fn config(context: &Context, args: &ConfigArgs) -> anyhow::Result<Exit> {
    match &args.command {
        ConfigCommand::Init(args) => return init::init(args),
        ConfigCommand::Check => println!("{}", serde_json::to_string_pretty(&context.global.config()?)?),
        ConfigCommand::Explain { topic } => {
            let config = context.global.config()?;
            let policy = config.policy()?;
            let name = trimtab_targets::pulsar::TopicName::of_subject(topic).ok_or_else(|| {
                Usage(format!("{topic:?} is not a topic's name; expected persistent://tenant/namespace/topic"))
            })?;
            match policy.rule_for(config.target(), &name.subject(), name.partition.is_some()) {
                Some(rule) => println!("{}", serde_json::to_string_pretty(rule)?),
                None => println!("no rule applies: the target's own policies do"),
            }
        }
    }
    Ok(Exit::Done)
}

/// How long a process on this host may take to say how it is: it looks for two seconds at most.
const HEALTH_PATIENCE: Duration = Duration::from_secs(4);

/// `health`
pub(crate) async fn health(args: &HealthArgs) -> anyhow::Result<Exit> {
    let url = format!("http://{}/{}", args.http, if args.ready { "readyz" } else { "livez" });
    let client = reqwest::Client::builder().no_proxy().timeout(HEALTH_PATIENCE).build()?;
    let answer = client.get(&url).send().await.with_context(|| format!("asking {url}"))?;
    let status = answer.status();
    print!("{}", answer.text().await.with_context(|| format!("asking {url}"))?);
    Ok(if status.is_success() { Exit::Done } else { Exit::Failed })
}

/// `keys`
pub(crate) fn keys(args: &KeysArgs) -> anyhow::Result<Exit> {
    let signer = match &args.command {
        KeysCommand::New { file } => {
            let signer = Signer::ephemeral();
            let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
            let mut out = made.with_context(|| format!("making {}", file.display()))?;
            writeln!(out, "{}", signer.seed()?).with_context(|| format!("writing {}", file.display()))?;
            signer
        }
        KeysCommand::Public { file } => Signer::from_file(file).map_err(|e| Usage(e.to_string()))?,
    };
    println!("{}", signer.public_key());
    Ok(Exit::Done)
}

/// Buckets that workers share.
#[cfg(feature = "nats")]
const BUCKETS: [&str; 7] = [
    crate::scans::BUCKET,
    crate::share::BUCKET,
    crate::sightings::BUCKET,
    crate::activity::PAGES,
    crate::activity::MARKS,
    crate::activity::OWN,
    crate::activity::PROTECTED,
];

/// `nats`
pub(crate) async fn nats(context: &Context, args: NatsArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.bus.apply(&mut config);
    #[cfg(feature = "nats")]
    if let NatsCommand::Setup { print: Some(folder) } = &args.command {
        return write_definitions(&config, folder);
    }
    if config.nats.url.is_none() {
        anyhow::bail!(Usage("give --nats URL".to_owned()));
    }
    config.nats.create = matches!(args.command, NatsCommand::Setup { .. });
    let wires = runtime::wires(&config, &runtime::instance()).await?;
    #[cfg(feature = "nats")]
    if let Some(nats) = &wires.nats {
        match args.command {
            NatsCommand::Setup { .. } => {
                nats.store().setup(&BUCKETS).await?;
                println!("The streams, consumers and buckets are there.");
            }
            NatsCommand::Check => {
                nats.verify().await?;
                println!("The streams and consumers are as they must be.");
            }
            NatsCommand::Bury { every: None } => {
                println!("{} events that nobody settled were moved to the dead letters.", nats.janitor_pass().await?);
            }
            NatsCommand::Bury { every: Some(every) } => loop {
                match nats.janitor_pass().await {
                    Ok(0) => {}
                    Ok(moved) => warn!(moved, "events that nobody settled were moved to the dead letters"),
                    Err(e) => {
                        warn!(error = %e, "what nobody settled could not be looked for; the next time is as good")
                    }
                }
                tokio::time::sleep(every).await;
            },
        }
    }
    #[cfg(not(feature = "nats"))]
    drop(wires);
    Ok(Exit::Done)
}

/// Writes what must be there for somebody who may make it, and prints how.
#[cfg(feature = "nats")]
fn write_definitions(config: &Config, folder: &Path) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for definition in trimtab_bus::JetStream::definitions(&runtime::nats_options(config)?, &BUCKETS)? {
        let trimtab_bus::Definition { stream, consumer, config } = definition;
        let (file, command) = match &consumer {
            None => (format!("{stream}.json"), format!("nats stream add {stream}")),
            Some(consumer) => (format!("{stream}.{consumer}.json"), format!("nats consumer add {stream} {consumer}")),
        };
        let path = folder.join(file);
        let text = serde_json::to_string_pretty(&config)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("{command} --config {}", path.display());
    }
    Ok(Exit::Done)
}

/// `schemas`
pub(crate) fn schemas(args: &SchemasArgs) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    let console = ("console.openapi.json".to_owned(), crate::console::openapi());
    for (name, document) in schema::all().into_iter().chain([console]) {
        let path = args.dir.join(name);
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(Exit::Done)
}

/// `completions`
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    clap_complete::generate(args.shell, &mut command(), "trimtab", &mut std::io::stdout());
    Ok(Exit::Done)
}

/// `man`
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<Exit> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    clap_mangen::generate_to(command(), &args.dir)
        .with_context(|| format!("writing man pages to {}", args.dir.display()))?;
    Ok(Exit::Done)
}
