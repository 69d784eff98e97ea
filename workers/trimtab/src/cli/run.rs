//! `run`, `scan` and `confirm`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use trimtab_bus::{Bus, Role};
use trimtab_events::{ScanRef, Scope, Trigger};
use trimtab_targets::Inventory;
use uuid::Uuid;

use super::args::{ConfirmArgs, RunArgs, ScanArgs};
use super::runtime::{self, Live, Wires};
use super::table::{self, Groups};
use super::{Context, Exit, Usage};
use crate::activity::Activity;
use crate::clock::Clock;
use crate::config::{Config, ConfigError, RunMode, System, secret};
use crate::console::{Access, Console, ConsoleParts, Hands};
use crate::follow::{FollowState, Follower, FollowerParts};
use crate::http::{self, Check, Served};
use crate::journal::{Entry, Journal, RecordKind};
use crate::metrics::Metrics;
use crate::notify::Notify;
use crate::once::{Judgement, Once, Ran};
use crate::plan::Planner;
use crate::scans::Scans;
use crate::share::{Limited, Paced, Share, Sharing};
use crate::sign::{Signer, Trusted};
use crate::triggers::Triggers;
use crate::watched::Watched;
use crate::wishes::Wishes;
use crate::worker::{self, LoopOptions, Out};
use crate::workers::{Audit, Decider, Executor, ExecutorParts, Scanner, ScannerParts};

/// Pages that a decider works on at once. Most of its time it waits for the bus.
const PAGES_AT_ONCE: usize = 16;

/// Shards that a scanner reads at once, and requests that it looks at meanwhile. They share its part of the operations.
const SHARDS_AT_ONCE: usize = 4;

/// The longest from being told to stop until the process has ended. Workers may go on for 25 s with what they began; what is left of it is
/// for handing back what nobody began. docs/operating.md, `--help` and the manifests in deploy/kubernetes name it.
const DRAIN: Duration = Duration::from_secs(30);

/// What a console's plans are made from.
pub(crate) struct Source {
    /// What makes them.
    pub(crate) planner: Option<Planner>,
    /// The moment that ages count from, where it is not the present.
    pub(crate) now_ms: Option<i64>,
    /// Again after this time.
    pub(crate) every: Option<Duration>,
}

/// What is told of a process.
pub(crate) struct Told<'a> {
    /// The role, or what it does.
    pub(crate) name: &'static str,
    /// A queue that it may look at, which tells whether the bus answers.
    pub(crate) queue: Role,
    /// Whether it needs the store.
    pub(crate) store: bool,
    /// The target, where it needs one.
    pub(crate) live: Option<&'a Live>,
    /// How following changes goes, where it does.
    pub(crate) follow: Option<FollowState>,
}

fn check<F>(name: &'static str, find: impl Fn() -> F + Send + Sync + 'static) -> Check
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    Check { name, find: Arc::new(move || Box::pin(find())) }
}

/// Workers of one process, with everything they need.
pub(crate) struct Process {
    pub(crate) config: Config,
    pub(crate) instance: String,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wires: Wires,
    pub(crate) scans: Scans,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    /// Cancelled once what was begun has ended: until then others are told how it goes.
    pub(crate) ended: CancellationToken,
    pub(crate) tellers: TaskTracker,
    shares: Vec<Arc<Share>>,
    /// What keeps the shares, and ends it.
    keeping: TaskTracker,
    sharing: CancellationToken,
    /// The process ends once its queue had nothing for so long.
    pub(crate) exit_when_idle: Option<Duration>,
}

impl Process {
    pub(crate) async fn open(config: Config, instance: String) -> anyhow::Result<Process> {
        let wires = runtime::wires(&config, &instance).await?;
        let scans = Scans::new(wires.store.clone());
        Ok(Process {
            config,
            instance,
            clock: Clock::system(),
            metrics: Arc::new(Metrics::new()),
            wires,
            scans,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
            tellers: TaskTracker::new(),
            shares: Vec::new(),
            keeping: TaskTracker::new(),
            sharing: CancellationToken::new(),
            exit_when_idle: None,
        })
    }

    pub(crate) fn triggers(&self) -> Triggers {
        Triggers::new(self.wires.bus.clone(), self.config.target(), self.clock.clone(), &self.instance)
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity::new(self.wires.store.clone(), self.config.cluster())
    }

    /// What makes plans of the configured target. With `remember` they are sightings: where no scanner makes any.
    pub(crate) fn planner(&self, inventory: Arc<dyn Inventory>, remember: bool) -> anyhow::Result<Planner> {
        let (config, policy) = (&self.config, self.config.policy()?);
        let orphans = config.system == System::Bookkeeper;
        let remembers = orphans || policy.judges_any_subscriber();
        Ok(Planner {
            inventory,
            policy,
            target: config.target().to_owned(),
            cluster: config.cluster().to_owned(),
            orphans,
            store: remembers.then(|| self.wires.store.clone()),
            remember,
            valid: config.decision_valid,
        })
    }

    /// The console of this process, where it has an HTTP server.
    pub(crate) fn console(
        &self,
        source: Source,
        scope: Scope,
        journal: Arc<Journal>,
        hands: Hands,
    ) -> anyhow::Result<Option<Arc<Console>>> {
        let Some(listen) = self.config.http.listen else { return Ok(None) };
        if self.config.http.token_file.is_some() && !self.config.console.asks_who() {
            // Who wants a token for webhooks does not mean to let anybody on this machine approve plans.
            let why = "http.token_file is set, and the console would ask nobody: set console.tokens_file as well (make a line with \
                       `trimtab console token`)";
            anyhow::bail!(Usage(why.to_owned()));
        }
        let access = Access::new(&self.config.console, listen, self.clock.clone()).map_err(Usage)?;
        let state = self.config.state_dir()?;
        let parts = ConsoleParts {
            target: self.config.target().to_owned(),
            planner: source.planner,
            scope,
            now_ms: source.now_ms,
            every: source.every,
            folder: state.join("console"),
            audit: state.join("audit"),
            scans: self.scans.clone(),
            activity: self.activity(),
            bus: self.wires.bus.clone(),
            journal,
            hands,
            caps: self.config.caps,
            trace_link: self.config.telemetry.trace_link.clone(),
            access,
            clock: self.clock.clone(),
            stop: self.stop.clone(),
            tasks: self.tasks.clone(),
        };
        Ok(Some(Console::start(parts)?))
    }

    fn once(&self) -> Once {
        Once {
            bus: self.wires.bus.clone(),
            scans: self.scans.clone(),
            triggers: self.triggers(),
            stop: self.stop.clone(),
        }
    }

    pub(crate) fn out(&self) -> Out {
        Out::new(self.wires.bus.clone())
    }

    pub(crate) fn start(&self, worker: Arc<dyn worker::Worker>, at_once: usize) {
        let options = LoopOptions { at_once, exit_when_idle: self.exit_when_idle, ..LoopOptions::default() };
        let bus: Arc<dyn Bus> = self.wires.bus.clone();
        self.tasks.spawn(worker::run(worker, bus, options, self.metrics.clone(), self.stop.clone()));
    }

    /// Has this process keep the cluster's limits together with all others: of metadata operations, and of calls where it makes any.
    pub(crate) async fn share(&mut self, live: &Live, role: &str, calls: bool) -> anyhow::Result<()> {
        // A state folder is used by one process at a time: the next one has the share of one that was killed.
        let alone = self.config.nats.url.as_deref().is_none_or(|url| url == "spawn");
        let member = if alone { role.to_owned() } else { format!("{role}.{}", self.instance) };
        let rate = self.config.limits.metadata_rate;
        let metadata: Arc<dyn Limited> = Arc::new(Paced { pace: live.pace.clone(), limit: rate });
        let mut all = if rate > 0.0 { vec![("metadata", metadata)] } else { Vec::new() };
        all.extend(live.calls.iter().filter(|_| calls).cloned());
        for (what, limited) in all {
            let key = format!("{what}.{}", self.config.cluster());
            let share = Share::new(self.wires.store.clone(), &key, &member, limited, self.clock.clone())?;
            share.speak().await?;
            let share = Arc::new(share);
            self.shares.push(share.clone());
            let sharing = self.sharing.clone();
            self.keeping.spawn(async move {
                tokio::select! { () = sharing.cancelled() => {}, () = share.keep() => {} }
                if let Err(e) = share.leave().await {
                    warn!(error = %e, "a share of a limit was not given back; it is free again in ten seconds");
                }
            });
        }
        Ok(())
    }

    /// Starts the scanner.
    pub(crate) fn start_scanner(&self, live: &Live) -> anyhow::Result<()> {
        let name = self.config.target();
        let cluster = self.config.cluster();
        let parts = ScannerParts {
            target: name.to_owned(),
            cluster: cluster.to_owned(),
            inventory: live.inventory.clone(),
            policy: self.config.policy()?,
            caps: self.config.caps,
            follow: self.config.follow.enabled.then(|| self.config.follow_every()),
            store: self.wires.store.clone(),
            clock: self.clock.clone(),
            instance: self.instance.clone(),
            metrics: self.metrics.clone(),
        };
        let every = if self.config.follow.enabled { Some(self.config.follow_every()) } else { self.config.every };
        self.metrics.scans_every(every);
        self.start(Arc::new(Scanner::new(parts)), SHARDS_AT_ONCE);
        Ok(())
    }

    /// Starts to follow changes, if it is configured.
    pub(crate) fn start_follower(&self, live: &Live) -> Option<FollowState> {
        if !self.config.follow.enabled {
            return None;
        }
        let follower = Follower::new(FollowerParts {
            target: self.config.target().to_owned(),
            inventory: live.inventory.clone(),
            triggers: self.triggers(),
            store: self.wires.store.clone(),
            clock: self.clock.clone(),
            instance: self.instance.clone(),
            interval: self.config.follow.interval,
            every: self.config.follow_every(),
        });
        let state = follower.state();
        self.tasks.spawn(follower.run(self.stop.clone()));
        Some(state)
    }

    /// How often the timer asks for a full scan: whoever follows changes does that by itself.
    pub(crate) fn timer_every(&self) -> Option<Duration> {
        self.config.every.filter(|_| !self.config.follow.enabled)
    }

    pub(crate) fn start_decider(&self, signer: Signer) -> anyhow::Result<()> {
        let policy = self.config.policy()?;
        let decider = Decider::new(policy, signer, self.clock.clone(), &self.instance, self.metrics.clone());
        self.start(Arc::new(decider), PAGES_AT_ONCE);
        Ok(())
    }

    /// Starts the executor, after it has judged what a crash left open.
    pub(crate) async fn start_executor(
        &self,
        live: &Live,
        journal: Arc<Journal>,
        trusted: Trusted,
        signer: Signer,
    ) -> anyhow::Result<Arc<Executor>> {
        let parts = ExecutorParts {
            target: self.config.target().to_owned(),
            inventory: live.inventory.clone(),
            act: live.act.clone(),
            policy: self.config.policy()?,
            caps: self.config.caps,
            mode: self.config.mode.into(),
            scans: self.scans.clone(),
            activity: self.activity(),
            journal,
            trusted,
            signer,
            clock: self.clock.clone(),
            instance: self.instance.clone(),
        };
        let executor = Executor::new(parts)?;
        let closed = executor.close_open_intents(&self.out()).await?;
        if closed > 0 {
            warn!(
                acts = closed,
                "acts that were under way when the last executor ended have been judged by the metadata"
            );
        }
        let executor = Arc::new(executor);
        let worker = Arc::new(Sharing { worker: executor.clone(), shares: self.shares.clone() });
        self.start(worker, self.config.limits.acts_at_once.max(1));
        Ok(executor)
    }

    pub(crate) fn start_audit(&self, journal: Arc<Journal>, outcomes: bool, trusted: Trusted) -> anyhow::Result<()> {
        let notify = self.config.notify.webhook.as_deref().map(|webhook| {
            let token = self.config.notify.token_file.as_deref().map(secret).transpose()?;
            Notify::new(webhook, token).map_err(ConfigError)
        });
        let audit =
            Audit::new(journal, outcomes, trusted, self.scans.clone(), self.metrics.clone(), notify.transpose()?)?;
        self.start(Arc::new(audit), 16);
        Ok(())
    }

    /// Tells others how this process is: as a micro service over NATS, and by the HTTP server, if one is configured.
    pub(crate) async fn tell(
        &self,
        registry: prometheus::Registry,
        told: Told<'_>,
        triggers: Option<Triggers>,
        journal: Option<Arc<Journal>>,
        console: Option<Arc<Console>>,
    ) -> anyhow::Result<()> {
        let checks = self.checks(&told);
        crate::metrics::BUILD.level().set(1.0, &[env!("CARGO_PKG_VERSION"), told.name]);
        let watched = Watched {
            bus: self.wires.bus.clone(),
            // Who does everything takes from every queue.
            queues: if told.name == "run" { Role::ALL.to_vec() } else { vec![told.queue] },
            scans: told.store.then(|| (self.scans.clone(), self.config.target().to_owned())),
            follows: told.follow.is_some(),
            checks: checks.clone(),
        };
        let ended = self.ended.clone();
        self.tellers.spawn(async move { ended.run_until_cancelled(watched.keep()).await });
        #[cfg(feature = "nats")]
        if let Some(nats) = &self.wires.nats {
            let status = crate::micro::Status {
                role: told.name,
                instance: self.instance.clone(),
                target: self.config.target().to_owned(),
                checks: checks.clone(),
            };
            self.tellers.spawn(crate::micro::serve(nats.client(), status, self.ended.clone()));
        }
        // After the server listens: who is told that this runs may ask it at once.
        let systemd = crate::systemd::tell(self.stop.clone(), self.ended.clone());
        let Some(address) = self.config.http.listen else {
            self.tellers.spawn(systemd);
            return Ok(());
        };
        let (listener, got) = http::listen(address).await?;
        match &console {
            Some(_) => {
                info!(address = %got, "the console is at http://{got}/; health, metrics and webhooks are there, too")
            }
            None => info!(address = %got, "health, metrics and webhooks"),
        }
        let token = self.config.http.token_file.as_deref().map(secret).transpose()?;
        // A configuration may open the address to others for the console alone, which asks who they are.
        let open = token.is_some() || got.ip().is_loopback();
        let wishes = journal.filter(|_| open).map(|journal| Wishes::new(self.activity(), journal));
        let served = Served { registry, checks, triggers: triggers.filter(|_| open), wishes, token, console };
        self.tellers.spawn(http::serve(listener, served, self.ended.clone()));
        self.tellers.spawn(systemd);
        Ok(())
    }

    /// Whether this process takes work: it is not ending, and what it needs for it can be reached.
    fn checks(&self, told: &Told<'_>) -> Vec<Check> {
        let mut checks = vec![self.drain_check(), self.bus_check(told.queue)];
        if told.store {
            checks.push(self.store_check());
        }
        if let Some(live) = told.live {
            let inventory = live.inventory.clone();
            checks.push(check("target", move || {
                let inventory = inventory.clone();
                async move { inventory.reachable().await.map_err(|e| e.to_string()) }
            }));
        }
        if let Some(follow) = told.follow.clone() {
            checks.push(check("follow", move || futures::future::ready(follow.check())));
        }
        checks
    }

    fn drain_check(&self) -> Check {
        let stop = self.stop.clone();
        check("work", move || {
            let ending = stop.is_cancelled();
            async move { if ending { Err("it is ending, and takes no more work".to_owned()) } else { Ok(()) } }
        })
    }

    fn bus_check(&self, queue: Role) -> Check {
        let bus = self.wires.bus.clone();
        check("bus", move || {
            let bus = bus.clone();
            async move { bus.depth(queue).await.map(|_| ()).map_err(|e| e.to_string()) }
        })
    }

    fn store_check(&self) -> Check {
        let scans = self.scans.clone();
        let target = self.config.target().to_owned();
        check("store", move || {
            let (scans, target) = (scans.clone(), target.clone());
            async move { scans.leader(&target).await.map(|_| ()).map_err(|e| e.to_string()) }
        })
    }

    /// Stops everything and waits for what was begun, no longer than [`DRAIN`].
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        let drained = tokio::time::timeout(DRAIN, async {
            self.tasks.close();
            self.tasks.wait().await;
            // What was begun needed them until here.
            self.sharing.cancel();
            self.keeping.close();
            self.keeping.wait().await;
            // What this process had asked for and nobody began is somebody else's at once.
            self.wires.bus.close().await;
            #[cfg(feature = "nats")]
            if let Some(nats) = &self.wires.nats
                && let Err(e) = nats.flush().await
            {
                warn!(
                    error = %e,
                    "not all acknowledgements reached NATS; those events come again and are found to be done"
                );
            }
            self.ended.cancel();
            self.tellers.close();
            // Somebody who keeps a connection open is not waited for.
            let _ = tokio::time::timeout(Duration::from_secs(2), self.tellers.wait()).await;
        });
        if drained.await.is_err() {
            warn!(within_s = DRAIN.as_secs(), "not everything came to its end in time; what was cut off comes again");
        }
    }
}

/// Cancels `stop` at SIGINT or SIGTERM; a second one ends the process at once.
pub(crate) fn stop_on_signals(stop: &CancellationToken) {
    let stop = stop.clone();
    tokio::spawn(async move {
        signalled().await;
        info!("stopping: finishing what was begun; once more ends it at once");
        stop.cancel();
        signalled().await;
        std::process::exit(130);
    });
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! { _ = tokio::signal::ctrl_c() => {}, _ = terminate.recv() => {} },
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

/// `run`
pub(crate) async fn run(context: &Context, args: RunArgs) -> anyhow::Result<Exit> {
    let config = args.config(&context.global)?;
    let scope = args.scope.scope();
    if config.follow.enabled && config.mode != RunMode::Apply {
        anyhow::bail!(Usage(
            "--follow asks for scans of what has changed, and is for `run --apply` and scanners; who only looks, looks at everything: \
             leave it out, or give --apply"
                .to_owned()
        ));
    }
    if config.follow.enabled && !scope.is_all() {
        anyhow::bail!(Usage("--follow looks after everything; leave out the scope, or leave out --follow".to_owned()));
    }
    match config.mode {
        // With a page to look at there is nothing to print.
        RunMode::DryRun if config.every.is_some() && config.http.listen.is_some() => {
            super::console::serve(context, config, scope, None).await
        }
        RunMode::DryRun => look(context, &config, &scope).await,
        RunMode::Apply => act(context, config, scope).await,
    }
}

/// Only looks: no event leaves this process, so no executor elsewhere acts on it.
async fn look(context: &Context, config: &Config, scope: &Scope) -> anyhow::Result<Exit> {
    let stop = CancellationToken::new();
    stop_on_signals(&stop);
    let clock = Clock::system();
    let journal = config.pulsar.ask_brokers.then(|| runtime::journal(config, "plan", clock.clone())).transpose()?;
    let live = runtime::live(config, journal).await?;
    let policy = config.policy()?;
    // Looking again and again is how a history comes about.
    let orphans = config.system == System::Bookkeeper;
    let remembers = orphans || policy.judges_any_subscriber();
    let wires = if remembers { Some(runtime::wires(config, &runtime::instance()).await?) } else { None };
    let planner = Planner {
        inventory: live.inventory.clone(),
        policy,
        target: config.target().to_owned(),
        cluster: config.cluster().to_owned(),
        orphans,
        store: wires.as_ref().map(|wires| wires.store.clone()),
        remember: true,
        valid: config.decision_valid,
    };
    loop {
        let mut groups = Groups::default();
        let scan = ScanRef { id: Uuid::now_v7(), fence: 0 };
        let planned = planner.plan(scan, scope, clock.now_ms(), false, &mut |item| groups.add(&item)).await?;
        if context.json() {
            println!("{}", serde_json::to_string(&planned.report)?);
        } else {
            groups.print();
            println!("\n{}", table::totals(&planned.report));
            if let Some(survey) = &planned.report.survey {
                println!("\n{}", table::survey(survey, planned.report.proposed.acts));
            }
            println!("Only looked. Act with --apply.");
        }
        let exit = if planned.report.complete && planned.report.unknown == 0 { Exit::Done } else { Exit::Partial };
        let Some(every) = config.every else { return Ok(exit) };
        tokio::select! { () = stop.cancelled() => return Ok(exit), () = tokio::time::sleep(every) => {} }
    }
}

async fn act(context: &Context, config: Config, scope: Scope) -> anyhow::Result<Exit> {
    let mut process = Process::open(config, runtime::instance()).await?;
    stop_on_signals(&process.stop);
    let journal = runtime::journal(&process.config, "executor", process.clock.clone())?;
    let live = runtime::live(&process.config, Some(journal.clone())).await?;
    let (decider, executor) = (Signer::ephemeral(), Signer::ephemeral());
    let trust = |own: &Signer, more: &[String]| Trusted::new(more.iter().cloned().chain([own.public_key()]));
    let deciders = trust(&decider, &process.config.keys.trusted_deciders)?;
    let executors = trust(&executor, &process.config.keys.trusted_executors)?;
    process.share(&live, "run", true).await?;
    process.start_scanner(&live)?;
    process.start_decider(decider)?;
    let executor = process.start_executor(&live, journal.clone(), deciders, executor).await?;
    process.start_audit(journal.clone(), false, executors)?;
    let hands = Hands::Executor { executor, out: process.out(), at_once: process.config.limits.acts_at_once };
    let source = Source {
        planner: Some(process.planner(live.inventory.clone(), false)?),
        now_ms: None,
        every: process.config.every,
    };
    let console = process.console(source, scope.clone(), journal.clone(), hands).unwrap_or_else(|e| {
        warn!("no console: {e}");
        None
    });
    let follow = process.start_follower(&live);
    let told = Told { name: "run", queue: Role::Audit, store: true, live: Some(&live), follow };
    process.tell(context.registry.clone(), told, Some(process.triggers()), Some(journal), console).await?;
    let exit = match process.config.every {
        None if !process.config.follow.enabled => once(context, &process, scope).await,
        _ => {
            #[cfg(feature = "nats")]
            if let Some(nats) = &process.wires.nats {
                process.tasks.spawn(crate::triggers::answer_requests(
                    nats.client(),
                    process.triggers(),
                    process.stop.clone(),
                ));
            }
            let (every, scans, stop) = (process.timer_every(), process.scans.clone(), process.stop.clone());
            process.triggers().timer(every, scope, scans, stop).await;
            Ok(Exit::Done)
        }
    };
    // However it ended: an act that is under way comes to its end, and is recorded.
    process.finish().await;
    exit
}

/// One scan, and everything that comes of it.
async fn once(context: &Context, process: &Process, scope: Scope) -> anyhow::Result<Exit> {
    let ran = process.once().run(scope).await?;
    match &ran {
        Ran::Interrupted => {
            println!("Stopped before the scan's end. What was decided is not carried out; the next run begins anew.");
        }
        Ran::Stopped { why, .. } => eprintln!("stopped before the first act: {why}"),
        Ran::Through { scan, gate, tally } => {
            if context.json() {
                println!("{}", serde_json::json!({ "scan": scan, "proposed": gate.proposed, "tally": tally }));
            } else {
                println!("{}", table::tally(tally));
            }
            let missing = gate.proposed.acts.saturating_sub(tally.outcomes());
            if missing > 0 {
                eprintln!("{missing} of {} proposed acts have no outcome; the log says why", gate.proposed.acts);
            }
        }
    }
    Ok(match ran.judgement() {
        Judgement::Done => Exit::Done,
        Judgement::Failed => Exit::Failed,
        Judgement::Stopped => Exit::Stopped,
        Judgement::Partial => Exit::Partial,
    })
}

/// `scan`
pub(crate) async fn scan(context: &Context, args: ScanArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.bus.apply(&mut config);
    if config.nats.url.as_deref().is_none_or(|url| url == "spawn") {
        anyhow::bail!(Usage(
            "`scan` asks running scanners over NATS: give --nats URL. In one process, use `run`".to_owned()
        ));
    }
    let process = Process::open(config, runtime::instance()).await?;
    stop_on_signals(&process.stop);
    let scan = process.triggers().scan(args.scope.scope(), Trigger::Cli).await?;
    let exit = match args.wait {
        false => {
            println!(
                "{}",
                if context.json() { serde_json::json!({ "scan": scan }).to_string() } else { format!("scan {scan}") }
            );
            Exit::Done
        }
        true => match process.once().ended(scan).await? {
            None => Exit::Partial,
            Some(gate) => {
                println!("{}", serde_json::to_string(&gate)?);
                if gate.closed().is_some() { Exit::Stopped } else { Exit::Done }
            }
        },
    };
    process.finish().await;
    Ok(exit)
}

/// `confirm`
pub(crate) async fn confirm(context: &Context, args: ConfirmArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.bus.apply(&mut config);
    let process = Process::open(config, runtime::instance()).await?;
    let journal = runtime::journal(&process.config, "confirm", process.clock.clone())?;
    let body = serde_json::json!({ "scan": args.scan, "by": args.by });
    let entry = Entry {
        kind: RecordKind::Confirm,
        id: args.scan.to_string(),
        subject: String::new(),
        trace_id: String::new(),
        body,
    };
    journal.write(entry).await?;
    let gate = process.scans.confirm(args.scan, &args.by).await?;
    println!("Confirmed: {} acts of scan {} may be carried out.", gate.proposed.acts, args.scan);
    process.finish().await;
    Ok(Exit::Done)
}
