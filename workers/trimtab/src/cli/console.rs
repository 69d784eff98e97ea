//! `console`: the page, as a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trimtab_bus::Role;
use trimtab_events::Scope;

use super::args::{ConsoleArgs, ConsoleCommand};
use super::run::{Process, Source, Told, stop_on_signals};
use super::{Context, Exit, Usage, plan, roles, runtime};
use crate::config::{Config, RunMode};
use crate::console::{Grade, Hands, new_token};
use crate::sign::{Signer, Trusted};
use crate::workers::{Executor, ExecutorParts};

/// Where it listens unless told otherwise.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8222);

/// `console`
pub(crate) async fn run(context: &Context, args: ConsoleArgs) -> anyhow::Result<Exit> {
    if let Some(ConsoleCommand::Token { name, role }) = &args.command {
        let (token, line) = new_token(name, Grade::of_name(role).map_err(Usage)?).map_err(Usage)?;
        println!(
            "token, to be given to {name} and kept nowhere else:\n{token}\n\nline for the file named by console.tokens_file:\n{line}"
        );
        return Ok(Exit::Done);
    }
    let mut config = args.config(&context.global)?;
    config.http.listen.get_or_insert(LISTEN);
    serve(context, config, args.scope.scope(), args.snapshot).await
}

/// Serves it until it is told to stop.
pub(crate) async fn serve(
    context: &Context,
    config: Config,
    scope: Scope,
    snapshot: Option<PathBuf>,
) -> anyhow::Result<Exit> {
    let mut process = Process::open(config, runtime::instance()).await?;
    stop_on_signals(&process.stop);
    let config = process.config.clone();
    let alone = config.nats.url.as_deref().is_none_or(|url| url == "spawn");
    let journal = runtime::journal(&config, "console", process.clock.clone())?;
    let (source, hands, live) = match snapshot.as_deref() {
        Some(file) => {
            let (inventory, now_ms) = plan::from_file(&config, file, None)?;
            let source = Source { planner: Some(process.planner(inventory, false)?), now_ms, every: None };
            (source, Hands::None("this plan is from a snapshot; approve one of the cluster itself".to_owned()), None)
        }
        None => {
            let acts = config.mode == RunMode::Apply && alone;
            // Executors of this process keep their record where those of `run` and `apply` do.
            let record = acts.then(|| runtime::journal(&config, "executor", process.clock.clone())).transpose()?;
            let live = runtime::live(&config, Some(record.clone().unwrap_or_else(|| journal.clone()))).await?;
            process.share(&live, "console", acts).await?;
            let hands = match record {
                Some(record) => own_executor(&process, &live, record).await?,
                None => hands(&process, alone)?,
            };
            let planner = process.planner(live.inventory.clone(), alone)?;
            (Source { planner: Some(planner), now_ms: None, every: config.every }, hands, Some(live))
        }
    };
    let console = process.console(source, scope, journal.clone(), hands)?;
    #[cfg(feature = "nats")]
    if let (Some(nats), Some(console)) = (&process.wires.nats, &console) {
        hear(&process, nats.client(), console.clone())?;
    }
    let told = Told { name: "console", queue: Role::Audit, store: true, live: live.as_ref(), follow: None };
    process.tell(context.registry.clone(), told, None, None, console).await?;
    process.stop.cancelled().await;
    process.finish().await;
    Ok(Exit::Done)
}

/// What carries out approved plans in this process: the same executor as that of `trimtab apply`.
async fn own_executor(
    process: &Process,
    live: &runtime::Live,
    journal: Arc<crate::journal::Journal>,
) -> anyhow::Result<Hands> {
    let config = &process.config;
    let signer = Signer::ephemeral();
    // Takes outcomes from the bus, counts them, and tells owners what is announced.
    process.start_audit(journal.clone(), false, Trusted::new([signer.public_key()])?)?;
    let parts = ExecutorParts {
        target: config.target().to_owned(),
        inventory: live.inventory.clone(),
        act: live.act.clone(),
        policy: config.policy()?,
        caps: config.caps,
        mode: config.mode.into(),
        scans: process.scans.clone(),
        activity: process.activity(),
        journal: journal.clone(),
        trusted: Trusted::default(),
        signer,
        clock: process.clock.clone(),
        instance: process.instance.clone(),
    };
    let executor = Executor::new(parts)?;
    let out = process.out();
    executor.close_open_intents(&out).await?;
    let at_once = config.limits.acts_at_once;
    Ok(Hands::Executor { executor: Arc::new(executor), out, at_once })
}

/// What carries out approved plans elsewhere, if anything.
fn hands(process: &Process, alone: bool) -> anyhow::Result<Hands> {
    let config = &process.config;
    if alone {
        let why = "this console only looks. Start it with --apply to approve here; or stop it, since it holds the state folder, and run \
                   `trimtab apply` with the plan's file";
        return Ok(Hands::None(why.to_owned()));
    }
    if config.mode != RunMode::Apply
        || config.keys.seed_file.as_deref().is_none_or(|file: &Path| file.as_os_str().is_empty())
    {
        let why = "this console has no key that executors obey: start it with --apply and --seed-file, or run `trimtab apply` with the \
                   plan's file where the state folder is";
        return Ok(Hands::None(why.to_owned()));
    }
    let signer = Box::new(roles::signer(config, "console")?);
    Ok(Hands::Signed { signer, out: process.out(), instance: process.instance.clone() })
}

/// Follows what executors say over NATS: their own records may be on other machines. Reads the stream of results as a consumer of its own that
/// takes nothing away from the audit, and believes only what a trusted executor signed.
#[cfg(feature = "nats")]
fn hear(process: &Process, client: async_nats::Client, console: Arc<crate::console::Console>) -> anyhow::Result<()> {
    let keys = &process.config.keys.trusted_executors;
    if keys.is_empty() {
        tracing::info!(
            "no executor is trusted (--trust-executor): the console shows what is in the record of this state folder alone"
        );
        return Ok(());
    }
    let trusted = Trusted::new(keys.iter().cloned()).map_err(|e| Usage(e.to_string()))?;
    let (stop, subject) = (process.stop.clone(), format!("trimtab.res.{}.*", process.config.target()));
    process.tellers.spawn(async move {
        let heard = async {
            loop {
                if let Err(why) = heard(&client, &subject, &trusted, &console).await {
                    tracing::warn!(why, "the console does not hear of outcomes; trying again");
                }
                tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            }
        };
        tokio::select! { biased; () = stop.cancelled() => {}, () = heard => {} }
    });
    Ok(())
}

#[cfg(feature = "nats")]
async fn heard(
    client: &async_nats::Client,
    subject: &str,
    trusted: &Trusted,
    console: &Arc<crate::console::Console>,
) -> Result<(), String> {
    use async_nats::jetstream::consumer::pull::OrderedConfig;
    use futures::StreamExt;
    let context = async_nats::jetstream::new(client.clone());
    let stream = context.get_stream_no_info("TT_RES").await.map_err(|e| e.to_string())?;
    let config = OrderedConfig { filter_subject: subject.to_owned(), ..OrderedConfig::default() };
    let consumer = stream.create_consumer(config).await.map_err(|e| e.to_string())?;
    let mut messages = consumer.messages().await.map_err(|e| e.to_string())?;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|e| e.to_string())?;
        let Ok(event) = trimtab_events::Event::from_bytes(&message.payload) else { continue };
        let console = console.clone();
        // Reports of scans and notices are not signed, and change nothing that is decided here.
        if &*event.kind == "dev.trimtab.outcome.v1" && trusted.check(&event).is_err() {
            tracing::warn!(event = event.id, "an outcome that no trusted executor signed is not shown");
            continue;
        }
        let added = tokio::task::spawn_blocking(move || console.heard(&event)).await;
        added.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    }
    Err("the stream of results ended".to_owned())
}
