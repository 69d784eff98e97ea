//! A whole `trimtab plan` of a real ZooKeeper without a rate limit, against plain reads by the same client crate, one request at
//! a time: each topic's node, its cursors' names, each cursor's node.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use trimtab_tests::pulsar::{Part, PulsarRig};
use trimtab_tests::zk_proxy::{Op, Record, ZkProxy};
use zookeeper_client as zk;

use crate::Options;
use crate::measure::{self, Took};

const DAY_MS: i64 = 86_400_000;

/// A ZooKeeper with so many topics: seven of eight have something past their retention.
pub(crate) fn filled(topics: u64) -> Result<PulsarRig> {
    let rig = PulsarRig::builder().null_metadata().heap_mb(Part::ZooKeeper, 1024).start()?;
    let started = Instant::now();
    let nodes = rig.client()?.run(&format!("fill bench {topics} 3"))?;
    println!("ZooKeeper holds {topics} topics ({nodes} nodes, {:.0} s to fill)", started.elapsed().as_secs_f64());
    Ok(rig)
}

/// Plain reads; topics and requests made.
async fn plain(servers: &str) -> Result<(u64, u64, Duration)> {
    let client = zk::Client::connect(servers).await.context("connecting to ZooKeeper")?;
    let started = Instant::now();
    let (mut topics, mut requests) = (0, 1);
    let root = "/managed-ledgers/bench";
    let (mut namespaces, _) = client.get_children(root).await?;
    namespaces.sort_unstable();
    for namespace in namespaces {
        let folder = format!("{root}/{namespace}/persistent");
        let (names, _) = client.get_children(&folder).await?;
        requests += 1;
        for name in names {
            let path = format!("{folder}/{name}");
            client.get_data(&path).await?;
            let (cursors, _) = client.get_children(&path).await?;
            topics += 1;
            requests += 2 + cursors.len() as u64;
            for cursor in cursors {
                client.get_data(&format!("{path}/{cursor}")).await?;
            }
        }
    }
    Ok((topics, requests, started.elapsed()))
}

fn plan(servers: &str, now_ms: i64, state: &std::path::Path) -> Result<Took> {
    let mut command = Command::new(measure::trimtab()?);
    command.args(["plan", "--metadata-rate", "0", "--from", &format!("zk://{servers}")]);
    command.args(["--now", &trimtab::clock::timestamp(now_ms).to_string()]).arg("--state-dir").arg(state);
    measure::run(command.stdout(Stdio::null()), &[0])
}

fn count(rig: &PulsarRig, what: &str, topics: u64, now_ms: i64, state: &std::path::Path) -> Result<()> {
    let proxy = ZkProxy::with_record(&rig.zk(), &Record::default())?;
    plan(proxy.address(), now_ms, state)?;
    let counts = proxy.record().counts();
    let of = |ops: &[Op]| ops.iter().filter_map(|op| counts.get(op)).sum::<u64>() as f64 / topics as f64;
    println!(
        "FIGURE scan, {what}: {:.3} reads of nodes and {:.3} listings a topic at the server ({} operations in all)",
        of(&[Op::GetData, Op::Exists]),
        of(&[Op::GetChildren, Op::GetChildren2]),
        proxy.record().operations(),
    );
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let topics = options.number("topics", 20_000)?;
    let rounds = options.number("rounds", 5)?;
    let rig = filled(topics)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = tempfile::tempdir().context("making a folder")?;
    let now_ms = trimtab_tests::now_ms();
    let cases = [("nothing old enough", now_ms - 29 * DAY_MS), ("seven of eight due", now_ms)];
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let mut ours = [Duration::ZERO; 2];
        let mut peer = Duration::ZERO;
        let order: &[usize] = if round % 2 == 0 { &[2, 0, 1] } else { &[0, 1, 2] };
        for step in order {
            match step {
                2 => {
                    let (seen, requests, took) = runtime.block_on(plain(&rig.zk()))?;
                    anyhow::ensure!(seen == topics, "{seen} topics seen");
                    peer = took;
                    let rate = |n: u64| n as f64 / took.as_secs_f64();
                    println!("  one at a time {:.0} topics/s, {:.0} requests/s", rate(topics), rate(requests));
                }
                case => ours[*case] = plan(&rig.zk(), cases[*case].1, state.path())?.wall,
            }
        }
        for (case, took) in ours.iter().enumerate() {
            println!("  plan, {}: {:.0} topics/s", cases[case].0, topics as f64 / took.as_secs_f64());
            ratios[case].push(peer.as_secs_f64() / took.as_secs_f64());
        }
    }
    for (case, values) in ratios.iter().enumerate() {
        let what = format!("scan, {}: topics/s to one at a time", cases[case].0);
        measure::ratio(&what, values, "must be at least 5, aim 9");
        count(&rig, cases[case].0, topics, cases[case].1, state.path())?;
    }
    Ok(())
}
