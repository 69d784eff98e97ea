//! One role as a process of its own, over NATS.

use trimtab_bus::Role;

use super::args::RoleArgs;
use super::run::{Process, Told, stop_on_signals};
use super::{Context, Exit, Usage, runtime};
use crate::config::{Config, RunMode};
use crate::sign::{Signer, Trusted};

pub(super) fn signer(config: &Config, role: &str) -> anyhow::Result<Signer> {
    let file = config.keys.seed_file.as_deref().ok_or_else(|| {
        Usage(format!(
            "a {role} signs what it emits: make a key with `trimtab keys new FILE` and give --seed-file FILE. The others trust it \
             by its public key"
        ))
    })?;
    Ok(Signer::from_file(file).map_err(|e| Usage(e.to_string()))?)
}

pub(super) fn trusted(keys: &[String], role: &str, whom: &str) -> anyhow::Result<Trusted> {
    if keys.is_empty() {
        let flag = whom.trim_end_matches('s');
        anyhow::bail!(Usage(format!("this {role} must know which {whom} to believe: give --trust-{flag} PUBLIC_KEY")));
    }
    Ok(Trusted::new(keys.iter().cloned()).map_err(|e| Usage(e.to_string()))?)
}

/// Runs a role until it is told to stop.
pub(crate) async fn run(context: &Context, args: RoleArgs, role: Role) -> anyhow::Result<Exit> {
    let config = args.config(&context.global)?;
    if config.nats.url.as_deref().is_none_or(|url| url == "spawn") {
        let why = format!(
            "`{}` works with other processes over NATS: give --nats URL. In one process, use `run`",
            role.name()
        );
        anyhow::bail!(Usage(why));
    }
    if role == Role::Executor && config.mode != RunMode::Apply {
        let why = "an executor that only looks would take decisions away from those that act: start it with --apply, or use `plan`";
        anyhow::bail!(Usage(why.to_owned()));
    }
    if role == Role::Scanner && config.follow.enabled && args.exit_when_idle.is_some() {
        let why = "whoever follows changes is never idle: leave out --exit-when-idle, or --follow";
        anyhow::bail!(Usage(why.to_owned()));
    }
    let instance = args.name.clone().unwrap_or_else(runtime::instance);
    let mut process = Process::open(config, instance).await?;
    process.exit_when_idle = args.exit_when_idle;
    stop_on_signals(&process.stop);
    let config = &process.config.clone();
    // Who may make streams has looked at them already.
    #[cfg(feature = "nats")]
    if let Some(nats) = process.wires.nats.as_ref().filter(|_| !config.nats.create) {
        nats.verify_role(role).await?;
    }
    let clock = process.clock.clone();
    let file = format!("{}-{}", role.name(), args.name.as_deref().unwrap_or("main"));
    let (mut triggers, mut record, mut target, mut follow) = (None, None, None, None);
    match role {
        Role::Scanner => {
            let journal = config.pulsar.ask_brokers.then(|| runtime::journal(config, &file, clock)).transpose()?;
            let live = runtime::live(config, journal).await?;
            // Asking brokers is calling them.
            process.share(&live, role.name(), config.pulsar.ask_brokers).await?;
            process.start_scanner(&live)?;
            follow = process.start_follower(&live);
            target = Some(live);
            triggers = Some(process.triggers());
            let timer = process.triggers();
            let (every, scans, stop) = (process.timer_every(), process.scans.clone(), process.stop.clone());
            process.tasks.spawn(async move { timer.timer(every, Default::default(), scans, stop).await });
            #[cfg(feature = "nats")]
            if let Some(nats) = &process.wires.nats {
                process.tasks.spawn(crate::triggers::answer_requests(
                    nats.client(),
                    process.triggers(),
                    process.stop.clone(),
                ));
            }
        }
        Role::Decider => process.start_decider(signer(config, "decider")?)?,
        Role::Executor => {
            let signer = signer(config, "executor")?;
            let trusted = trusted(&config.keys.trusted_deciders, "executor", "deciders")?;
            let journal = runtime::journal(config, &file, clock)?;
            record = Some(journal.clone());
            let live = runtime::live(config, Some(journal.clone())).await?;
            process.share(&live, role.name(), true).await?;
            process.start_executor(&live, journal, trusted, signer).await?;
            target = Some(live);
        }
        Role::Recovery | Role::Finisher => {
            anyhow::bail!(Usage("`recovery` and `recover` have commands of their own".to_owned()));
        }
        Role::Audit => {
            let trusted = trusted(&config.keys.trusted_executors, "audit", "executors")?;
            let journal = runtime::journal(config, &file, clock)?;
            record = Some(journal.clone());
            process.start_audit(journal, true, trusted)?;
        }
    }
    let told = Told { name: role.name(), queue: role, store: role != Role::Decider, live: target.as_ref(), follow };
    process.tell(context.registry.clone(), told, triggers, record, None).await?;
    tracing::info!(role = role.name(), instance = process.instance, "running");
    process.stop.cancelled().await;
    process.finish().await;
    Ok(Exit::Done)
}
