//! Whether the limit on metadata operations holds, counted by a proxy in front of a real ZooKeeper: one process, two scanner
//! processes of which one scans, and two processes that both read under the one limit.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use trimtab::clock::Clock;
use trimtab::share::{Paced, Share};
use trimtab_bus::{JetStream, NatsOptions};
use trimtab_events::Scope;
use trimtab_targets::pulsar::{PulsarInventory, Settings};
use trimtab_targets::{Connection, Inventory, Pace, Reads, Zk, ZkOptions};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::pulsar::PulsarRig;
use trimtab_tests::zk_proxy::{Record, ZkProxy};

use crate::{Options, measure, scan};

/// Left out at the beginning: connecting, and agreeing on shares.
const SETTLE: Duration = Duration::from_secs(8);

/// Killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command, log: &Path) -> Result<Killed> {
    let log = std::fs::File::create(log).context("creating a log")?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().map(Killed).with_context(|| format!("starting {command:?}"))
}

/// One case while it runs: every process has a proxy of its own, all write into one record.
struct Case<'r> {
    rig: &'r PulsarRig,
    record: Record,
    proxies: Vec<ZkProxy>,
    processes: Vec<Killed>,
    state: tempfile::TempDir,
}

impl<'r> Case<'r> {
    fn new(rig: &'r PulsarRig) -> Result<Case<'r>> {
        let state = tempfile::tempdir().context("making a folder")?;
        Ok(Case { rig, record: Record::default(), proxies: Vec::new(), processes: Vec::new(), state })
    }

    fn proxy(&mut self) -> Result<String> {
        self.proxies.push(ZkProxy::with_record(&self.rig.zk(), &self.record)?);
        Ok(self.proxies.last().map(|proxy| proxy.address().to_owned()).unwrap_or_default())
    }

    fn start(&mut self, command: &mut Command) -> Result<()> {
        let log = self.state.path().join(format!("{}.log", self.processes.len()));
        self.processes.push(start(command, &log)?);
        Ok(())
    }

    /// Waits, and tells what was seen.
    fn watch(&mut self, what: &str, seconds: u64, limit: u64) -> Result<()> {
        std::thread::sleep(SETTLE);
        self.record.clear();
        std::thread::sleep(Duration::from_secs(seconds));
        let all = self.record.clone();
        for (number, process) in self.processes.iter_mut().enumerate() {
            let log = std::fs::read_to_string(self.state.path().join(format!("{number}.log"))).unwrap_or_default();
            ensure!(process.0.try_wait()?.is_none(), "process {number} ended: {log}");
        }
        let operations = all.operations() as f64;
        let mean = operations / seconds as f64 / limit as f64;
        let peak = |window: u64| all.peak(Duration::from_millis(window)) as f64;
        println!(
            "  {what}: {operations:.0} operations in {seconds} s; most in any 100 ms {:.0}, in any second {:.0}",
            peak(100),
            peak(1000)
        );
        let what = format!("limiter, {what}");
        measure::ratio(&format!("{what}: mean over {seconds} s to the limit"), &[mean], "must be 0.95 to 1.00");
        let peak = peak(1000) / limit as f64;
        measure::ratio(&format!("{what}: most in any second to the limit"), &[peak], "must be at most 1.10");
        Ok(())
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (seconds, limit) = (options.number("seconds", 60)?, options.number("limit", 200)?);
    let rig = scan::filled(options.number("topics", 20_000)?)?;
    let trimtab = measure::trimtab()?;
    let rate = limit.to_string();

    let mut case = Case::new(&rig)?;
    let from = format!("zk://{}", case.proxy()?);
    let state = case.state.path().to_owned();
    case.start(
        Command::new(&trimtab).args(["plan", "--metadata-rate", &rate, "--from", &from, "--state-dir"]).arg(&state),
    )?;
    case.watch("one process", seconds, limit)?;
    drop(case);

    let nats = NatsRig::single()?;
    let mut case = Case::new(&rig)?;
    let state = case.state.path().to_owned();
    for name in ["a", "b"] {
        let from = format!("zk://{}", case.proxy()?);
        let args = ["scanner", "--metadata-rate", &rate, "--from", &from, "--nats", &nats.url(), "--name", name];
        case.start(Command::new(&trimtab).args(args).arg("--state-dir").arg(state.join(name)))?;
        std::thread::sleep(Duration::from_secs(1));
    }
    let asked = Command::new(&trimtab).args(["scan", "--nats", &nats.url(), "--state-dir"]).arg(&state).output()?;
    ensure!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    case.watch("two scanner processes, one scan", seconds, limit)?;
    drop(case);

    // Streams that others made may have other limits.
    let nats = NatsRig::single()?;
    let mut case = Case::new(&rig)?;
    let ourselves = std::env::current_exe()?;
    for name in ["a", "b"] {
        let words = [
            "reader".to_owned(),
            format!("name={name}"),
            format!("limit={limit}"),
            format!("zk={}", case.proxy()?),
            format!("nats={}", nats.url()),
        ];
        case.start(Command::new(&ourselves).args(words))?;
    }
    case.watch("two processes, both reading", seconds, limit)
}

/// A process that reads for ever, as a scanner does, under its share of the limit.
pub(crate) fn reader(options: &Options) -> Result<()> {
    let text = |name: &str| options.text(name).map(str::to_owned).with_context(|| format!("{name}=… is missing"));
    let limit = options.number("limit", 200)? as f64;
    let (name, zk, nats) = (text("name")?, text("zk")?, text("nats")?);
    tokio::runtime::Runtime::new()?.block_on(async {
        let options = NatsOptions { servers: vec![nats], create: true, ..NatsOptions::default() };
        let store = Arc::new(JetStream::connect(options).await?.store());
        let pace = Arc::new(Pace::new(limit)?);
        let paced = Arc::new(Paced { pace: pace.clone(), limit });
        let share = Share::new(store, "bench", &name, paced, Clock::system())?;
        share.speak().await?;
        let zk = Zk::connect(Connection::parse(&format!("zk://{zk}"))?, ZkOptions::default(), pace).await?;
        let inventory = PulsarInventory::new(zk, Settings::default(), None);
        let reading = async {
            let scope = Scope::default();
            loop {
                for shard in inventory.shards(&scope).await? {
                    let mut items = inventory.scan(&shard, &scope, &|_| Reads::ALL);
                    while let Some(item) = items.next().await {
                        item?;
                    }
                }
            }
        };
        tokio::select! {
            failed = reading => failed,
            () = share.keep() => Ok(()),
        }
    })
}
