//! A cluster as years of use leave it: every combination of policy and cursor that trimtab has to tell apart.
//!
//! The cluster lives three times, with clocks 90 days ago, 8 days ago and now, so the ages in ledgers, cursors and nodes are
//! real ones. Everything stands in the tenant `attic`, a namespace a theme; [`TOPICS`] says what should become of each topic.
//! The grown state is packed into the cache, and later runs unpack it within seconds. It counts from [`Mess::made_ms`];
//! a state older than five days is grown anew, long before any of its ages cross a limit.
//!
//! A namespace that must keep its old state is used in the first life only. When a client's look-up makes a broker take a
//! bundle, the broker loads every topic of it, trims them, and at unloading writes their cursors anew. For the same reason
//! a test that calls a broker about one namespace must not expect that namespace's neighbours to stay as they were.

mod growth;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cache;
use crate::java::JavaClient;
use crate::now_ms;
use crate::pulsar::{self, Builder, PulsarRig};

/// What should become of a topic today, when subscriptions count as abandoned after a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// One trim through the broker frees so many of its ledgers, empty ones not counted (loading drops an empty last one).
    Trim(usize),
    /// The same, after messages beyond their time to live were expired.
    ExpireThenTrim(usize),
    /// Ledgers are past retention, but a cursor stands before them.
    Blocked,
    /// Its only data is in the last ledger; a visit starts the clock, and nothing else.
    StartClock,
    /// Policy keeps it.
    Keep,
    /// Nothing there to free.
    Nothing,
    /// Never to be touched: no policies, a name of old, a shadow, loaded by a broker.
    Skip,
    /// A person has to look: a partition without its partitioned topic.
    Report,
}

/// A topic of the mess.
#[derive(Debug, Clone, Copy)]
pub struct Topic {
    /// Namespace and local name below the tenant `attic`, as a person writes it.
    pub name: &'static str,
    /// What should become of it.
    pub fate: Fate,
    /// Subscriptions that nobody used for 90 days and that hold messages back.
    pub stale: &'static [&'static str],
}

const fn topic(name: &'static str, fate: Fate, stale: &'static [&'static str]) -> Topic {
    Topic { name, fate, stale }
}

use Fate::{Blocked, ExpireThenTrim, Keep, Nothing, Report, Skip, StartClock, Trim};

/// Every topic of the tenant that is no system topic, apart from [`BULK`] plain ones, `bulk/t000` and so on, each `Trim(3)`.
pub const TOPICS: &[Topic] = &[
    // no policy at all: the broker's default of 0/0, so even the last ledger goes
    topic("bare/consumed", Trim(1), &[]),
    topic("bare/backlog", Blocked, &["s"]),
    topic("bare/nosubs", Trim(1), &[]),
    topic("zero/consumed", Trim(1), &[]),
    // seven days, any size
    topic("week/caught-up", Trim(4), &[]),
    topic("week/lagging", Trim(1), &["slow"]),
    topic("week/abandoned", Blocked, &["gone"]),
    topic("week/nosubs", Trim(4), &[]),
    topic("week/holes", Blocked, &["s"]),
    topic("week/boundary", Trim(2), &["s"]),
    topic("week/exact", Trim(4), &[]),
    topic("week/tiny", StartClock, &[]),
    // by size: 1 MB; 2 MB that came after the topic was closed; 2 MB or seven days
    topic("size/big", Keep, &[]),
    topic("size/small", Keep, &[]),
    topic("shrunk/big", Trim(2), &[]),
    topic("either/big", Trim(2), &[]),
    topic("forever/caught-up", Keep, &[]),
    // a day to live, without retention and with seven days
    topic("ttl/abandoned", ExpireThenTrim(5), &["gone"]),
    topic("ttlweek/abandoned", ExpireThenTrim(4), &["gone"]),
    // what works on loaded topics only
    topic("quota/abandoned", Blocked, &["gone"]),
    topic("agequota/abandoned", Blocked, &["gone"]),
    topic("expiry/abandoned", Blocked, &["gone"]),
    // policies of single topics over seven days: an hour, for ever, an hour to live
    topic("topical/short", Trim(4), &[]),
    topic("topical/long", Keep, &[]),
    topic("topical/ttl", ExpireThenTrim(4), &["gone"]),
    // names that must be encoded
    topic("names/plain", Trim(2), &[]),
    topic("names/a b", Trim(2), &[]),
    topic("names/a+b", Trim(2), &[]),
    topic("names/a%20b", Trim(2), &[]),
    topic("names/a:b", Trim(2), &[]),
    topic("names/über", Trim(2), &[]),
    topic("names/名前", Trim(2), &[]),
    topic("names/x&y=z", Trim(2), &[]),
    topic("names/UPPER.low_er-1", Trim(2), &[]),
    topic("names/subs", Blocked, &["a/b", "a b", "ü#?"]),
    // partitions; two whose partitioned topic is gone
    topic("parts/p-partition-0", Trim(3), &[]),
    topic("parts/p-partition-1", Trim(3), &[]),
    topic("parts/p-partition-2", Trim(3), &[]),
    topic("parts/stray-partition-0", Report, &[]),
    topic("parts/stray-partition-1", Report, &[]),
    // the cursors and ledgers that features leave
    topic("dedup/t", Trim(6), &[]),
    topic("compact/t", Trim(4), &[]),
    topic("txn/t", Trim(1), &["s"]),
    topic("schema/t", Trim(3), &[]),
    topic("repl/t", Trim(2), &[]),
    topic("offload/t", Trim(4), &[]),
    topic("delayed/t", Keep, &[]),
    // oddities
    topic("odd/terminated", Trim(4), &[]),
    topic("odd/empty", Keep, &[]),
    topic("odd/zero-bytes", Nothing, &[]),
    topic("odd/shadow", Skip, &[]),
    topic("odd/shadow-source", Blocked, &["s"]),
    topic("lost/first", Trim(4), &[]),
    topic("lost/last", Trim(4), &[]),
    topic("halfgone/t", Skip, &[]),
    // every compression of the metadata; every other message read
    topic("zip/lz4", Blocked, &["s"]),
    topic("zip/zstd", Blocked, &["s"]),
    topic("zip/zlib", Blocked, &["s"]),
    topic("zip/snappy", Blocked, &["s"]),
    // closed eight days ago; its neighbour in this namespace is used now
    topic("recent/eight-days", Trim(1), &[]),
    topic("live/mixed", Keep, &[]),
    topic("live/fresh", Keep, &[]),
    // its broker was killed
    topic("crash/t", Keep, &[]),
];

/// How many plain topics there are besides.
pub const BULK: usize = 24;

/// Ledgers that were put into BookKeeper directly, by id.
#[derive(Debug, Clone, Default)]
pub struct Ledgers {
    /// Referenced by nothing, closed, tagged as Pulsar's: to be deleted.
    pub orphans: Vec<i64>,
    /// The same, never closed: a writer may live.
    pub open: Vec<i64>,
    /// Just made: perhaps on their way into a list.
    pub young: Vec<i64>,
    /// Of other applications: never to be touched.
    pub foreign: Vec<i64>,
}

/// The mess, running: ZooKeeper, bookie, broker, and whatever was asked for besides.
#[derive(Debug)]
pub struct Mess {
    /// The cluster.
    pub rig: PulsarRig,
    /// When it was finished; ages count from here.
    pub made_ms: i64,
    /// Ledgers of interest.
    pub ledgers: Ledgers,
}

const MAX_AGE_MS: i64 = 5 * 86_400_000;

impl Mess {
    /// The mess with one broker.
    pub fn start() -> Result<Self> {
        Self::start_with(PulsarRig::builder())
    }

    /// The mess in a rig of one's own making: a second broker, tokens, settings, ZooKeeper alone.
    pub fn start_with(builder: Builder) -> Result<Self> {
        let folder = Self::grown()?;
        let note: Value = serde_json::from_str(&fs::read_to_string(folder.join("note.json"))?)?;
        let ids = |key: &str| {
            let list = note.get(key).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(Value::as_i64).collect()
        };
        Ok(Self {
            rig: builder.restore(&folder.join("state.tar.gz")).start()?,
            made_ms: made_ms(&note).context("the note of the mess has no time")?,
            ledgers: Ledgers {
                orphans: ids("orphans"),
                open: ids("open"),
                young: ids("young"),
                foreign: ids("foreign"),
            },
        })
    }

    /// Grows the mess unless the cache has a young one; returns its folder.
    pub fn grown() -> Result<PathBuf> {
        let sources = pulsar::SOURCES.into_iter().chain([include_str!("mess/growth.rs")]);
        let young = |folder: &Path| {
            fs::read_to_string(folder.join("note.json"))
                .ok()
                .and_then(|text| made_ms(&serde_json::from_str(&text).ok()?))
                .is_some_and(|made| (0..MAX_AGE_MS).contains(&(now_ms() - made)))
        };
        Self::forget_old_ones(young)?;
        cache::entry(&format!("mess/{}", cache::key(sources)), young, |folder| {
            let begun = Instant::now();
            let note = growth::Growth::grow(folder)?;
            fs::write(folder.join("note.json"), note.to_string())?;
            eprintln!("rig: grew the mess in {} s", begun.elapsed().as_secs());
            Ok(())
        })
    }

    /// States of earlier sources stay until they are too old to be of use to anybody.
    fn forget_old_ones(young: impl Fn(&Path) -> bool) -> Result<()> {
        let Ok(states) = fs::read_dir(cache::root()?.join("mess")) else {
            return Ok(());
        };
        for state in states.filter_map(Result::ok).map(|entry| entry.path()) {
            // without a note somebody is just growing it
            if state.join("note.json").exists() && !young(&state) {
                fs::remove_dir_all(&state).ok();
            }
        }
        Ok(())
    }

    /// Full names with fates: all of [`TOPICS`], and the plain ones.
    pub fn topics() -> Vec<(String, Fate)> {
        let bulk = (0..BULK).map(|i| (format!("persistent://attic/bulk/t{i:03}"), Trim(3)));
        let listed = TOPICS.iter().map(|t| (full_name(t.name), t.fate));
        listed.chain(bulk).collect()
    }

    /// The topic's managed ledger: the path below `/managed-ledgers`, as a node's name.
    pub fn managed_ledger(full_name: &str) -> String {
        let path = full_name.trim_start_matches("persistent://");
        let mut parts = path.splitn(3, '/');
        let mut next = || parts.next().unwrap_or_default();
        let (tenant, namespace, local) = (next(), next(), next());
        format!("{tenant}/{namespace}/persistent/{}", node_name(local))
    }

    /// Connects a consumer (to `live/mixed`, as `idle-but-connected`, reading nothing) and a reader (of `live/fresh`).
    /// They stay as long as the client does.
    pub fn go_online(&self) -> Result<JavaClient> {
        let mut client = self.rig.client()?;
        client.run_all(["hold consumer attic/live/mixed idle-but-connected", "watch reader attic/live/fresh 3"])?;
        Ok(client)
    }
}

/// `persistent://attic/…`, as Pulsar writes the name.
pub fn full_name(name: &str) -> String {
    format!("persistent://attic/{name}")
}

/// A local name as Pulsar names its node: like a form field, blanks as `+`.
pub fn node_name(local: &str) -> String {
    let mut out = String::new();
    for byte in local.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'.' | b'-' | b'*' | b'_' => out.push(char::from(byte)),
            b if b.is_ascii_alphanumeric() => out.push(char::from(b)),
            b => out += &format!("%{b:02X}"),
        }
    }
    out
}

fn made_ms(note: &Value) -> Option<i64> {
    note.get("made_ms")?.as_i64()
}
