//! Snapshot files as a large cluster gives them: per topic the node of its last ledger, its own, and one cursor's, in the bytes
//! that Pulsar and BookKeeper write.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::orphans::EACH;
use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use trimtab_tests::formats::{self, Proto, Stage};

/// The moment that the file says it was taken at.
const TAKEN_MS: i64 = 1_790_000_000_000;
const DAY_MS: i64 = 86_400_000;
/// Topics in one namespace.
const NAMESPACE: u64 = 1_000;
/// Ledgers in a topic's list.
const LEDGERS: i64 = 4;

struct Writer {
    out: flate2::write::GzEncoder<BufWriter<File>>,
    lines: u64,
    zxid: i64,
    state: u64,
    behind: bool,
}

impl Writer {
    fn create(path: &Path, behind: bool) -> Result<Writer> {
        let file = BufWriter::with_capacity(1 << 20, File::create(path).with_context(|| path.display().to_string())?);
        let out = flate2::write::GzEncoder::new(file, flate2::Compression::default());
        Ok(Writer { out, lines: 0, zxid: 0x1_0000_0000, state: 0x9e37_79b9_7f4a_7c15, behind })
    }

    fn finish(self) -> Result<()> {
        self.out.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    }

    /// A number that gzip cannot guess.
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn node(&mut self, path: &str, value: &[u8], children: u64, mtime: i64, more: &str) -> Result<()> {
        self.lines += 1;
        self.zxid += 1 + (self.random() % 3) as i64;
        let (zxid, data) = (self.zxid, BASE64.encode(value));
        let ctime = mtime - (self.random() % 1_000_000) as i64;
        writeln!(
            self.out,
            "{{\"ctime\":{ctime},\"cversion\":{children},\"czxid\":{zxid},\"data\":\"{data}\",{more}\"ephemeralOwner\":0,\
             \"mtime\":{mtime},\"mzxid\":{},\"numChildren\":{children},\"path\":\"{path}\",\"version\":{}}}",
            zxid + 7,
            zxid % 5
        )?;
        Ok(())
    }
}

/// Writes a file of so many topics, 1 % of them with something to reclaim; with `behind`, the subscribers of all others hold three ledgers.
pub(crate) fn write(path: &Path, topics: u64, behind: bool) -> Result<()> {
    let mut to = Writer::create(path, behind)?;
    let header = format!("\"order\":\"scan-1\",\"source\":\"pulsar 2@1\",\"taken_ms\":{TAKEN_MS},");
    to.node("/", b"", 9, TAKEN_MS, &header)?;
    let layout = "2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1";
    for (path, value) in [
        ("/ledgers", ""),
        ("/ledgers/LAYOUT", layout),
        ("/admin/policies", ""),
        ("/admin/partitioned-topics", ""),
        ("/managed-ledgers", ""),
    ] {
        to.node(path, value.as_bytes(), 1, TAKEN_MS, "")?;
    }
    for first in (0..topics).step_by(NAMESPACE as usize) {
        namespace(&mut to, first, NAMESPACE.min(topics - first))?;
    }
    let end = format!("\"end\":{},", to.lines + 1);
    to.node("/", b"", 9, TAKEN_MS, &end)?;
    to.finish()
}

fn namespace(to: &mut Writer, first: u64, topics: u64) -> Result<()> {
    let shard = format!("tenant{:03}/ns{:05}", first / NAMESPACE / 25, first / NAMESPACE);
    to.node(&format!("/managed-ledgers/{shard}/persistent"), b"", topics, TAKEN_MS, "")?;
    let policies = br#"{"replication_clusters":["rig"],"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1},"retention_policies":{"retentionTimeInMinutes":10080,"retentionSizeInMB":-1},"message_ttl_in_seconds":null,"deleted":false}"#;
    to.node(&format!("/admin/policies/{shard}"), policies, 0, TAKEN_MS, "")?;
    let local = br#"{"bundles":{"boundaries":["0x00000000","0x40000000","0x80000000","0xc0000000","0xffffffff"],"numBundles":4}}"#;
    to.node(&format!("/admin/local-policies/{shard}"), local, 0, TAKEN_MS, "")?;
    for index in first..first + topics {
        topic(to, &shard, index)?;
    }
    Ok(())
}

fn topic(to: &mut Writer, shard: &str, index: u64) -> Result<()> {
    let name = format!("events-{index:07}-{:06}", to.random() % 1_000_000);
    let due = index % 100 == 17;
    let newest = TAKEN_MS - if due { 30 * DAY_MS } else { DAY_MS } - (to.random() % 10_000_000) as i64;
    let first_ledger = index as i64 * LEDGERS + 1000;
    let mut list = Proto::default();
    for k in 0..LEDGERS {
        let (entries, bytes) = ((to.random() % 50_000) as i64 + 1, (to.random() % 500_000_000) as i64);
        let last = k + 1 == LEDGERS;
        let info = Proto::default().int(1, first_ledger + k);
        let info = if last { info } else { info.int(2, entries).int(3, bytes) };
        list = list.bytes(1, &info.int(4, if last { 0 } else { newest - (LEDGERS - k) * 3_600_000 }).0);
    }
    let last = first_ledger + LEDGERS - 1;
    let ledger = formats::ledger_path(last);
    let metadata = ledger_metadata(to.random(), shard, &name, newest);
    to.node(&ledger, &metadata, 0, newest, "")?;
    let path = format!("/managed-ledgers/{shard}/persistent/{name}");
    to.node(&path, &list.0, 1, newest, "")?;
    // One in a hundred keeps up; with `behind` everybody else stands at the first ledger.
    let stands = if to.behind && !due { first_ledger } else { last };
    let cursor = Proto::default().int(1, -1).int(2, stands).int(3, 4).int(6, newest - 40 * DAY_MS);
    to.node(&format!("{path}/subscription-{}", index % 7), &cursor.0, 0, newest, "")
}

/// Writes a file of a whole tree with so many ledgers, five to a topic, in an order of its own as dumps have it: every twentieth topic does
/// not list one of its ledgers.
pub(crate) fn write_ledgers(path: &Path, ledgers: u64) -> Result<()> {
    const FIRST: u64 = 10_000;
    let mut to = Writer::create(path, false)?;
    let (topics, old) = (ledgers / EACH, TAKEN_MS - 30 * DAY_MS);
    let namespaces = topics.div_ceil(NAMESPACE);
    let folders = ledgers.div_ceil(10_000);
    let tops = (FIRST + ledgers).div_ceil(100_000_000);
    to.node("/", b"", 6, TAKEN_MS, &format!("\"source\":\"pulsar 2@1\",\"taken_ms\":{TAKEN_MS},"))?;
    for (path, children) in [
        ("/admin", 1),
        ("/admin/policies", 1),
        ("/loadbalance", 1),
        ("/loadbalance/brokers", 1),
        ("/loadbalance/brokers/b:8080", 0),
        ("/managed-ledgers", 1),
        ("/managed-ledgers/tenant", namespaces),
        ("/admin/policies/tenant", namespaces),
        ("/pulsar", 0),
        ("/schemas", 0),
        ("/ledgers", 2 + tops),
        ("/ledgers/available", 0),
    ] {
        to.node(path, b"", children, TAKEN_MS - 60_000, "")?;
    }
    let handed_out = 2 * (FIRST + ledgers + 1);
    to.lines += 1;
    writeln!(
        to.out,
        "{{\"ctime\":{old},\"cversion\":{handed_out},\"czxid\":2,\"data\":\"\",\"ephemeralOwner\":0,\"mtime\":{old},\"mzxid\":2,\
         \"numChildren\":0,\"path\":\"/ledgers/idgen\",\"version\":0}}"
    )?;
    to.node("/ledgers/00", b"", folders, TAKEN_MS, "")?;
    for index in 0..ledgers {
        let id = (FIRST + index) as i64;
        if index % 10_000 == 0 {
            let parent = formats::ledger_path(id);
            let children = (ledgers - index).min(10_000);
            to.node(&parent[..parent.len() - "/L0000".len()], b"", children, old, "")?;
        }
        let topic = index / EACH;
        let metadata = ledger_metadata(to.random(), &shard(topic), &name(topic), old);
        to.node(&formats::ledger_path(id), &metadata, 0, old, "")?;
    }
    let policies = br#"{"replication_clusters":["rig"],"retention_policies":{"retentionTimeInMinutes":10080,"retentionSizeInMB":-1}}"#;
    for namespace in 0..namespaces {
        let first = namespace * NAMESPACE;
        let path = shard(first);
        to.node(&format!("/admin/policies/{path}"), policies, 0, old, "")?;
        to.node(&format!("/managed-ledgers/{path}"), b"", 1, old, "")?;
        let within = NAMESPACE.min(topics - first);
        to.node(&format!("/managed-ledgers/{path}/persistent"), b"", within, old, "")?;
        for topic in first..first + within {
            let mut listed: Vec<i64> = (0..EACH).map(|k| (FIRST + topic * EACH + k) as i64).collect();
            if topic % 20 == 0 {
                listed.remove(2);
            }
            let node = format!("/managed-ledgers/{path}/persistent/{}", name(topic));
            to.node(&node, &formats::managed_ledger(&listed), 1, old, "")?;
            to.node(&format!("{node}/subscription"), &formats::cursor(-1, None, &[]), 0, old, "")?;
        }
    }
    to.finish()
}

/// `tenant/namespace` of a topic in a file of ledgers.
fn shard(topic: u64) -> String {
    format!("tenant/ns{:05}", topic / NAMESPACE)
}

fn name(topic: u64) -> String {
    format!("events-{topic:07}")
}

/// A closed ledger of a topic.
fn ledger_metadata(random: u64, shard: &str, name: &str, closed_ms: i64) -> Vec<u8> {
    let bookie = |which: u64| format!("bookie-{}.bookkeeper.svc:3181", (random >> (which * 8)) % 30);
    let stage = Stage::Closed((random % 50_000) as i64, (random % 500_000_000) as i64);
    let topic = format!("{shard}/persistent/{name}");
    let custom = [("application", "pulsar"), ("component", "managed-ledger"), ("pulsar/managed-ledger", &*topic)];
    formats::ledger(stage, &[bookie(0), bookie(1)], Some(closed_ms - 4_000_000), &custom)
}
