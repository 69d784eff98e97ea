//! `plan`, `apply` and `snapshot`.

use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use futures::StreamExt;
use trimtab_events::{Outcome, PLAN_FORMAT, Plan, PlanItem, ScanRef, Status};
use trimtab_targets::bookkeeper::{self, LedgerSnapshot};
use trimtab_targets::hedwig::HedwigSnapshot;
use trimtab_targets::pulsar::snapshot::{Snapshot, write};
use trimtab_targets::{Inventory, Mode};
use uuid::Uuid;

use super::args::{ApplyArgs, PlanArgs, SnapshotArgs};
use super::table::{self, Groups};
use super::{Context, Exit, Usage, runtime};
use crate::activity::Activity;
use crate::apply::carry_out;
use crate::clock::{Clock, ago, timestamp};
use crate::config::{Config, System, show_bytes};
use crate::plan::{Planned, Planner, Spool, stopped};
use crate::scans::Scans;
use crate::sign::{Signer, Trusted};
use crate::worker::Out;
use crate::workers::{Executor, ExecutorParts};

/// `plan`
pub(crate) async fn plan(context: &Context, args: PlanArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.source.apply(&mut config)?;
    config.check()?;
    let policy = config.policy()?;
    let mut scope = args.scope.scope();
    if let Some(topic) = args.explain.as_deref().filter(|topic| !topic.is_empty()) {
        scope.topic = Some(topic.to_owned());
    }
    let clock = Clock::system();
    let (inventory, taken_ms): (Arc<dyn Inventory>, Option<i64>) = match &args.snapshot {
        Some(file) => from_file(&config, file, args.now.map(|now| now.0))?,
        None => {
            let journal =
                config.pulsar.ask_brokers.then(|| runtime::journal(&config, "plan", clock.clone())).transpose()?;
            (runtime::live(&config, journal).await?.inventory, None)
        }
    };
    let now_ms = args.now.map(|now| now.0).or(taken_ms).unwrap_or_else(|| clock.now_ms());
    // A live plan reads what earlier runs remembered; one from a file only where it is told to, since it may be of another cluster.
    let orphans = config.system == System::Bookkeeper;
    let remembers = (orphans || policy.judges_any_subscriber()) && (args.remember || args.snapshot.is_none());
    let wires = if remembers { Some(runtime::wires(&config, &runtime::instance()).await?) } else { None };
    let planner = Planner {
        inventory,
        policy,
        target: config.target().to_owned(),
        cluster: config.cluster().to_owned(),
        orphans,
        store: wires.as_ref().map(|wires| wires.store.clone()),
        remember: args.remember,
        valid: config.decision_valid,
    };
    // Before anything else: a server that goes away in the middle costs what it had not told yet, not the whole plan.
    let identity = planner.inventory.identity().await?;
    let (mut spool, mut groups) = (Spool::new().context("making a temporary file for the plan")?, Groups::default());
    let scan = ScanRef { id: Uuid::now_v7(), fence: 0 };
    let mut each = |item: PlanItem| {
        groups.add(&item);
        spool.push(&item);
    };
    let planned = planner.plan(scan, &scope, now_ms, args.explain.is_some(), &mut each).await?;
    let head = planner.head(identity, scope, now_ms, &planned);
    let failed = "writing the plan";
    if let Some(file) = &args.out {
        let out = std::fs::File::create(file).with_context(|| format!("writing the plan {}", file.display()))?;
        spool.write(&head, &mut BufWriter::new(&out)).context(failed)?;
        out.sync_all().with_context(|| format!("writing the plan {}", file.display()))?;
    }
    if context.json() {
        spool.write(&head, &mut BufWriter::new(std::io::stdout().lock())).context(failed)?;
    } else {
        print_plan(&head, &planned, &mut spool, &groups, &args)?;
    }
    Ok(if !planned.report.complete || planned.report.unknown > 0 {
        Exit::Partial
    } else if args.detailed_exitcode && planned.report.proposed.acts > 0 {
        Exit::Changes
    } else {
        Exit::Done
    })
}

/// What a snapshot file holds, and when it was taken, if it says so.
pub(crate) fn from_file(
    config: &Config,
    file: &Path,
    now_ms: Option<i64>,
) -> anyhow::Result<(Arc<dyn Inventory>, Option<i64>)> {
    Ok(match config.system {
        System::Hedwig => {
            let snapshot = HedwigSnapshot::open(file, runtime::hedwig_settings(config))?;
            let taken_ms = snapshot.header().taken_ms;
            (Arc::new(snapshot), taken_ms)
        }
        System::Bookkeeper => {
            let snapshot = LedgerSnapshot::open(file, runtime::ledger_options(config), now_ms)?;
            let taken_ms = snapshot.header().taken_ms;
            (Arc::new(snapshot), taken_ms)
        }
        _ => {
            let snapshot = Snapshot::open(file, runtime::settings(config)?)?;
            let taken_ms = snapshot.header().taken_ms;
            (Arc::new(snapshot), taken_ms)
        }
    })
}

/// Topics that a plan for a person lists, the first ones.
const LISTED: usize = 200;

fn print_plan(
    head: &Plan,
    planned: &Planned,
    spool: &mut Spool,
    groups: &Groups,
    args: &PlanArgs,
) -> anyhow::Result<()> {
    if args.explain.is_some() {
        explain(spool, head.now_ms, args.explain.as_deref() == Some(""))?;
    } else if groups.is_empty() {
        println!("Nothing to reclaim.");
    } else {
        groups.print();
    }
    println!("\n{}", table::totals(&planned.report));
    if let Some(survey) = &planned.report.survey {
        println!("\n{}", table::survey(survey, planned.report.proposed.acts));
    }
    for problem in &planned.problems {
        eprintln!("incomplete: {problem}");
    }
    println!("Ages count from {}; {} metadata operations.", timestamp(head.now_ms), planned.report.operations);
    match (&args.out, &args.snapshot) {
        (Some(file), _) => println!("Saved. Carry it out with: trimtab apply {}", file.display()),
        (None, Some(_)) => println!(
            "Nothing was changed. Your own cluster: trimtab plan --from zk://HOST:2181   (reads metadata only; add --explain to see why topics are kept)"
        ),
        (None, None) => println!("Nothing was changed. Save it with -o FILE, carry it out with trimtab apply FILE."),
    }
    Ok(())
}

fn explain(spool: &mut Spool, now_ms: i64, cut: bool) -> anyhow::Result<()> {
    let count = spool.count();
    for (index, line) in spool.lines().context("reading the plan's temporary file")?.enumerate() {
        if cut && index == LISTED {
            println!("… and {} more; --output json shows all", count - LISTED as u64);
            break;
        }
        let item: PlanItem = serde_json::from_str(&line?)?;
        println!("{:<16} {}", item.verdict, item.subject);
        if !item.ledgers.is_empty() {
            println!("                 ledgers {:?}, {}", item.ledgers, show_bytes(item.bytes));
        }
        for reason in &item.reasons {
            println!("                 {}: {}", reason.rule, reason.says);
            if !reason.inputs.is_empty() {
                let inputs: Vec<String> = reason.inputs.iter().map(|(k, v)| format!("{k}={v}")).collect();
                println!("                 {}", inputs.join(" "));
            }
        }
        if let Some(holder) = &item.holder {
            println!(
                "                 held by cursor {} at {}, {} since {} ({} ago)",
                holder.cursor,
                holder.position,
                show_bytes(holder.bytes),
                timestamp(holder.since_ms),
                ago(now_ms - holder.since_ms)
            );
        }
    }
    Ok(())
}

fn load(file: &Path) -> anyhow::Result<Plan> {
    let text = std::fs::read(file).with_context(|| format!("reading the plan {}", file.display()))?;
    let version: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| Usage(format!("{} is not a plan: {e}", file.display())))?;
    let major = |version: &str| version.split('.').next().unwrap_or_default().to_owned();
    let format = version["format_version"].as_str().unwrap_or_default();
    if major(format) != major(PLAN_FORMAT) {
        let why = format!("{} has the format {format:?}; this trimtab reads {PLAN_FORMAT}", file.display());
        anyhow::bail!(Usage(why));
    }
    Ok(serde_json::from_slice(&text).map_err(|e| Usage(format!("{} is not a plan: {e}", file.display())))?)
}

/// `apply`
pub(crate) async fn apply(context: &Context, args: ApplyArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.source.apply(&mut config)?;
    args.caps.apply(&mut config)?;
    let clock = Clock::system();
    let plan = load(&args.plan)?;
    // The plan says what it is about.
    if plan.target == config.bookkeeper.name && config.system == System::Pulsar {
        config.system = System::Bookkeeper;
    }
    if clock.now_ms() > plan.expires_ms {
        anyhow::bail!(Usage(format!("the plan expired at {}; make a new one", timestamp(plan.expires_ms))));
    }
    if plan.target != config.target() {
        anyhow::bail!(Usage(format!("the plan is for {:?}, the configuration for {:?}", plan.target, config.target())));
    }
    let decisions: Vec<_> = plan.items.iter().filter_map(|item| item.decision.clone()).collect();
    let Some(first) = decisions.first() else {
        println!("The plan has nothing to carry out.");
        return Ok(Exit::Done);
    };
    let scan = first.scan;
    let instance = runtime::instance();
    let journal = runtime::journal(&config, "executor", clock.clone())?;
    let live = runtime::live(&config, Some(journal.clone())).await?;
    let identity = live.inventory.identity().await?;
    if plan.cluster.strip_prefix("snapshot of ").unwrap_or(&plan.cluster) != identity {
        anyhow::bail!(Usage(format!(
            "the plan is for the cluster {:?}, this is {identity:?}; nothing was done",
            plan.cluster
        )));
    }
    if let Some(why) = stopped(&plan, plan.totals.proposed, scan, &config.caps) {
        eprintln!("stopped before the first act: {why}");
        return Ok(Exit::Stopped);
    }
    let wires = runtime::wires(&Config { nats: Default::default(), ..config.clone() }, &instance).await?;
    let parts = ExecutorParts {
        target: config.target().to_owned(),
        act: live.act,
        inventory: live.inventory,
        policy: config.policy()?,
        caps: config.caps,
        // Naming a reviewed plan is the switch.
        mode: Mode::Apply,
        scans: Scans::new(wires.store.clone()),
        activity: Activity::new(wires.store.clone(), config.cluster()),
        journal,
        trusted: Trusted::default(),
        signer: Signer::ephemeral(),
        clock,
        instance,
    };
    let executor = Executor::new(parts)?;
    let out = Out::new(wires.bus.clone());
    executor.close_open_intents(&out).await?;
    let (executor, out) = (&executor, &out);
    let carried = decisions.iter().map(|decision| async move { (decision, carry_out(executor, decision, out).await) });
    let mut carried = futures::stream::iter(carried).buffer_unordered(config.limits.acts_at_once.max(1));
    let mut ended = Applied::default();
    while let Some((decision, result)) = carried.next().await {
        match result {
            Ok(outcome) => ended.note(context.json(), &outcome)?,
            Err(e) => {
                ended.failed += 1;
                eprintln!("failed    {}: {e}", decision.subject);
            }
        }
    }
    Ok(ended.exit(context.json()))
}

#[derive(Default)]
struct Applied {
    done: u64,
    pending: u64,
    skipped: u64,
    failed: u64,
    ledgers: u64,
    bytes: i64,
}

impl Applied {
    fn note(&mut self, json: bool, outcome: &Outcome) -> anyhow::Result<()> {
        match outcome.status {
            Status::Done => self.done += 1,
            Status::Pending => self.pending += 1,
            Status::Skipped => self.skipped += 1,
            Status::Failed => self.failed += 1,
        }
        self.ledgers += outcome.freed.len() as u64;
        self.bytes += outcome.freed_bytes;
        if json {
            println!("{}", serde_json::to_string(outcome)?);
            return Ok(());
        }
        let why: Vec<&str> = outcome.reasons.iter().map(|reason| reason.says.as_str()).collect();
        let freed = match outcome.freed.as_slice() {
            [] if outcome.freed_bytes > 0 => format!(" freed {}", show_bytes(outcome.freed_bytes)),
            [] => String::new(),
            ids => format!(" freed {ids:?}, {}", show_bytes(outcome.freed_bytes)),
        };
        println!(
            "{:<8} {}{freed}{}{}",
            outcome.status.name(),
            outcome.subject,
            if why.is_empty() { "" } else { ": " },
            why.join("; ")
        );
        Ok(())
    }

    fn exit(&self, json: bool) -> Exit {
        if !json {
            let gone = table::gone(self.ledgers, self.bytes);
            let (done, pending, skipped, failed) = (self.done, self.pending, self.skipped, self.failed);
            println!("\n{done} done, {pending} pending, {skipped} skipped, {failed} failed; {gone}");
        }
        match (self.done, self.pending + self.skipped + self.failed) {
            (_, 0) => Exit::Done,
            (0, n) if n == self.failed => Exit::Failed,
            _ => Exit::Partial,
        }
    }
}

/// `snapshot`
pub(crate) async fn snapshot(context: &Context, args: SnapshotArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.source.apply(&mut config)?;
    if config.system == System::Bookkeeper {
        let (inventory, _) = runtime::ledger_inventory(&config).await?;
        let totals = bookkeeper::write(&inventory, &args.out, Clock::system().now_ms()).await?;
        let (lines, operations) = (totals.lines, inventory.operations());
        println!("{}: {lines} lines, {operations} metadata operations", args.out.display());
        return Ok(Exit::Done);
    }
    let live = runtime::pulsar(&config, None).await?;
    let totals = write(&live.inventory, &args.scope.scope(), &args.out, Clock::system().now_ms()).await?;
    println!(
        "{}: {} topics of {} namespaces in {} lines, {} metadata operations",
        args.out.display(),
        totals.topics,
        totals.shards,
        totals.lines,
        live.inventory.operations()
    );
    Ok(Exit::Done)
}
