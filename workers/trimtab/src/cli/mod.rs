//! The command line. Reads arguments, wires the parts together, prints; decides nothing.

mod args;
mod audit;
mod broker_conf;
mod console;
mod dead;
#[cfg(feature = "nats")]
mod demo;
mod doctor;
mod init;
#[cfg(feature = "nats")]
mod jetstream;
mod misc;
mod plan;
mod protect;
mod recover;
mod recovery;
mod roles;
mod run;
mod runtime;
#[cfg(feature = "nats")]
mod spawn;
mod table;
mod undo;

use std::process::ExitCode;

use clap::Parser;
use trimtab_bus::Role;

use crate::telemetry;

pub use args::{Args, Command, command};

/// Exit codes, the same for all commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or nothing to do.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// The arguments or the configuration cannot be used.
    Usage = 2,
    /// A safety limit stopped it before the first act, or in between.
    Stopped = 3,
    /// Done in part.
    Partial = 4,
    /// There is something to reclaim (only with `--detailed-exitcode`).
    Changes = 5,
}

impl Exit {
    /// From the exit code of a recovery, which means the same with other words.
    fn from_recovery(code: u8) -> Exit {
        match code {
            0 => Exit::Done,
            2 => Exit::Usage,
            3 => Exit::Stopped,
            4 => Exit::Partial,
            _ => Exit::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error that is the caller's: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Runs the command line.
pub fn main() -> ExitCode {
    let args = Args::parse();
    // The first client of any kind needs it; it fails only when somebody did it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Started outside the runtime: the exporter has a blocking client of its own.
    let telemetry = args.global.config().map(|config| config.telemetry).unwrap_or_default();
    let telemetry = match telemetry::start(args.command.role(), &telemetry) {
        Ok(telemetry) => telemetry,
        Err(e) => {
            eprintln!("trimtab: {e}");
            return Exit::Usage.into();
        }
    };
    let context = Context { global: args.global, registry: telemetry.registry() };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("trimtab: cannot start: {e}");
            return Exit::Failed.into();
        }
    };
    let ended = runtime.block_on(dispatch(&context, args.command));
    // What still blocks (a slow disk, a name that does not resolve) must not keep the process from ending.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match ended {
        Ok(exit) => exit.into(),
        Err(e) => {
            // Whoever read our output has seen enough of it: `trimtab plan --output json | head`.
            if e.chain()
                .any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
            {
                return Exit::Done.into();
            }
            eprintln!("trimtab: {e:#}");
            let usage = e.downcast_ref::<Usage>().is_some() || e.downcast_ref::<crate::config::ConfigError>().is_some();
            if usage { Exit::Usage.into() } else { Exit::Failed.into() }
        }
    }
}

/// What every command has.
pub(crate) struct Context {
    pub(crate) global: args::Global,
    pub(crate) registry: prometheus::Registry,
}

impl Context {
    pub(crate) fn json(&self) -> bool {
        self.global.output == args::Output::Json
    }
}

async fn dispatch(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Plan(plan) => plan::plan(context, plan).await,
        Command::Apply(apply) => plan::apply(context, apply).await,
        Command::Recover(recover) => recover::run(context, recover).await.map(Exit::from_recovery),
        Command::Recovery(recovery) => recovery::run(context, recovery).await,
        Command::Snapshot(snapshot) => plan::snapshot(context, snapshot).await,
        Command::Run(run) => run::run(context, run).await,
        Command::Scan(scan) => run::scan(context, scan).await,
        Command::Confirm(confirm) => run::confirm(context, confirm).await,
        Command::Protect(protect) => protect::protect(context, protect).await,
        Command::Undo(undo) => undo::undo(context, undo).await,
        #[cfg(feature = "nats")]
        Command::Demo => demo::demo(context).await,
        Command::Scanner(role) => roles::run(context, role, Role::Scanner).await,
        Command::Decider(role) => roles::run(context, role, Role::Decider).await,
        Command::Executor(role) => roles::run(context, role, Role::Executor).await,
        Command::Audit(audit) => audit::audit(context, audit).await,
        Command::Health(health) => misc::health(&health).await,
        Command::Doctor(doctor) => doctor::doctor(context, doctor).await,
        Command::Config(config) => misc::config(context, &config),
        Command::Keys(keys) => misc::keys(&keys),
        Command::Nats(nats) => misc::nats(context, nats).await,
        Command::Console(console) => console::run(context, *console).await,
        Command::Dead(dead) => dead::run(context, dead).await,
        Command::Schemas(schemas) => misc::schemas(&schemas),
        Command::Completions(completions) => misc::completions(&completions),
        Command::Man(man) => misc::man(&man),
    }
}
