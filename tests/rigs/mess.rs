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

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cache;
use crate::java::{JavaClient, Shift, word};
use crate::now_ms;
use crate::pulsar::{self, Builder, Part, PulsarRig};

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
        let sources = pulsar::SOURCES.into_iter().chain([include_str!("mess.rs")]);
        let young = |folder: &std::path::Path| {
            fs::read_to_string(folder.join("note.json"))
                .ok()
                .and_then(|text| made_ms(&serde_json::from_str(&text).ok()?))
                .is_some_and(|made| (0..MAX_AGE_MS).contains(&(now_ms() - made)))
        };
        cache::entry(&format!("mess/{}", cache::key(sources)), young, |folder| {
            let begun = Instant::now();
            let note = Growth::grow(folder)?;
            fs::write(folder.join("note.json"), note.to_string())?;
            eprintln!("rig: grew the mess in {} s", begun.elapsed().as_secs());
            Ok(())
        })
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

/// The mess while it grows.
struct Growth {
    rig: PulsarRig,
    client: JavaClient,
    note: Value,
    step: Instant,
}

impl Growth {
    fn grow(folder: &std::path::Path) -> Result<Value> {
        let rig = PulsarRig::builder()
            .clock(Shift::days_ago(90))
            // the killed broker's session is to end soon
            .setting("metadataStoreSessionTimeoutMillis", "12000")
            .start()?;
        let mut growth = Self { client: rig.client()?, rig, note: json!({}), step: Instant::now() };
        growth.ninety_days_ago()?;
        growth.again(Shift::days_ago(8))?;
        growth.eight_days_ago()?;
        growth.again(Shift::NONE)?;
        growth.today()?;
        growth.rig.save(&folder.join("state.tar.gz"))?;
        growth.done("packed");
        growth.note["made_ms"] = json!(now_ms());
        Ok(growth.note)
    }

    fn done(&mut self, what: &str) {
        eprintln!("rig: mess: {:5.1} s  {what}", self.step.elapsed().as_secs_f64());
        self.step = Instant::now();
    }

    /// The next life.
    fn again(&mut self, clock: Shift) -> Result<()> {
        self.rig.stop_all()?;
        self.rig.set_clock(clock);
        for part in [Part::ZooKeeper, Part::Bookie, Part::Broker] {
            self.rig.start(part)?;
        }
        self.client = self.rig.client()?;
        self.done("restarted with another clock");
        Ok(())
    }

    fn rest(&self, method: &str, path: &str, json: Option<Value>) -> Result<()> {
        let text = json.map(|v| v.to_string());
        self.rig.rest(method, path, text.as_deref())?.ok().with_context(|| format!("{method} {path}"))?;
        Ok(())
    }

    fn namespace(&self, name: &str, retention: Option<(i64, i64)>) -> Result<()> {
        let policies = json!({ "bundles": { "numBundles": 1 } });
        self.rest("PUT", &format!("namespaces/attic/{name}"), Some(policies))?;
        if let Some((minutes, mb)) = retention {
            self.retention(&format!("namespaces/attic/{name}"), minutes, mb)?;
        }
        Ok(())
    }

    fn retention(&self, of: &str, minutes: i64, mb: i64) -> Result<()> {
        let json = json!({ "retentionTimeInMinutes": minutes, "retentionSizeInMB": mb });
        self.rest("POST", &format!("{of}/retention"), Some(json))
    }

    /// Commands on one topic after another, many topics at once; `T` stands for the topic's name.
    fn background(&mut self, topic: &str, commands: &[&str]) -> Result<()> {
        let topic = word(&format!("attic/{topic}"));
        let lines: Vec<String> =
            commands.iter().map(|c| format!("bg {topic} {}", c.replace(" T", &format!(" {topic}")))).collect();
        self.client.run_all(lines.iter().map(String::as_str))?;
        Ok(())
    }

    /// A topic that was written and read to its end by `s`.
    fn read_to_the_end(&mut self, topic: &str, count: u32, size: u32) -> Result<()> {
        let produce = format!("produce T {count} {size}");
        let consume = format!("consume T s {count}");
        self.background(topic, &["sub T s", &produce, &consume])
    }

    fn join(&mut self) -> Result<()> {
        self.client.run("join").map(drop)
    }

    fn ninety_days_ago(&mut self) -> Result<()> {
        self.done("booted");
        self.policies()?;
        self.done("namespaces");
        self.plain_topics()?;
        self.join()?;
        self.done("plain topics");
        self.feature_topics()?;
        self.join()?;
        self.done("topics with features");
        self.first_ledgers()?;
        self.finishing_touches()?;
        self.done("finishing touches");
        // The topics are closed, and nobody takes them again.
        self.rig.stop(Part::Broker)?;
        for kind in ["lz4", "zstd", "zlib", "snappy"] {
            let line = format!("compress attic/zip/persistent/{kind} {}", kind.to_uppercase());
            self.client.run(&line)?;
        }
        self.done("broker stopped, metadata compressed");
        Ok(())
    }

    fn policies(&self) -> Result<()> {
        const WEEK: i64 = 7 * 24 * 60;
        let far = json!({ "serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1" });
        self.rest("PUT", "clusters/far", Some(far))?;
        let tenant = json!({ "allowedClusters": ["rig", "far"], "adminRoles": ["attic-admin"] });
        self.rest("PUT", "tenants/attic", Some(tenant))?;
        for name in ["bare", "ttl", "quota", "agequota", "expiry", "halfgone"] {
            self.namespace(name, None)?;
        }
        for name in [
            "week", "ttlweek", "topical", "names", "parts", "dedup", "compact", "txn", "schema", "repl", "offload",
            "delayed", "odd", "lost", "zip", "recent", "live", "crash", "orphans", "bulk",
        ] {
            self.namespace(name, Some((WEEK, -1)))?;
        }
        self.namespace("zero", Some((0, 0)))?;
        self.namespace("size", Some((-1, 1)))?;
        self.namespace("shrunk", Some((-1, -1)))?;
        self.namespace("either", Some((WEEK, 2)))?;
        self.namespace("forever", Some((-1, -1)))?;
        self.rest("POST", "namespaces/attic/ttl/messageTTL", Some(json!(86_400)))?;
        self.rest("POST", "namespaces/attic/ttlweek/messageTTL", Some(json!(86_400)))?;
        self.rest(
            "POST",
            "namespaces/attic/quota/backlogQuota?backlogQuotaType=destination_storage",
            Some(json!({ "limitSize": 50_000, "policy": "consumer_backlog_eviction" })),
        )?;
        self.rest(
            "POST",
            "namespaces/attic/agequota/backlogQuota?backlogQuotaType=message_age",
            Some(json!({ "limitTime": 3600, "policy": "consumer_backlog_eviction" })),
        )?;
        self.rest("POST", "namespaces/attic/expiry/subscriptionExpirationTime", Some(json!(30 * 24 * 60)))?;
        self.rest("POST", "namespaces/attic/dedup/deduplication", Some(json!(true)))?;
        self.rest("PUT", "persistent/attic/parts/p/partitions", Some(json!(3)))?;
        self.rest("PUT", "persistent/attic/parts/stray/partitions", Some(json!(2)))?;
        self.rest("PUT", "persistent/attic/odd/empty", None)?;
        self.rest("PUT", "persistent/attic/odd/shadow-source", None)?;
        let shadow = json!({ "PULSAR.SHADOW_SOURCE": "persistent://attic/odd/shadow-source" });
        self.rest("PUT", "persistent/attic/odd/shadow", Some(shadow))
    }

    fn plain_topics(&mut self) -> Result<()> {
        for name in [
            "bare/consumed",
            "zero/consumed",
            "week/caught-up",
            "forever/caught-up",
            "size/small",
            "topical/short",
            "topical/long",
            "topical/ttl",
            "odd/terminated",
            "lost/first",
            "halfgone/t",
            "offload/t",
            "live/mixed",
            "orphans/plain",
            "orphans/with-cursor",
        ] {
            self.read_to_the_end(name, 45, 1000)?;
        }
        for name in ["size/big", "shrunk/big", "either/big"] {
            self.read_to_the_end(name, 45, 100_000)?;
        }
        for name in ["week/exact", "lost/last"] {
            self.read_to_the_end(name, 40, 1000)?;
        }
        self.read_to_the_end("week/tiny", 5, 1000)?;
        self.background("topical/ttl", &["sub T gone"])?;
        self.background("bare/backlog", &["sub T s", "produce T 45 1000", "consume T s 12"])?;
        for name in ["bare/nosubs", "week/nosubs"] {
            self.background(name, &["produce T 45 1000"])?;
        }
        self.background(
            "week/lagging",
            &["sub T s", "sub T slow", "produce T 45 1000", "consume T s 45", "consume T slow 15"],
        )?;
        self.background("week/abandoned", &["sub T s", "sub T gone", "produce T 45 1000", "consume T s 45"])?;
        for name in ["week/holes", "zip/lz4", "zip/zstd", "zip/zlib", "zip/snappy"] {
            let consume = "consume T s 45 type=Shared ack=odd";
            self.background(name, &["sub T s", "produce T 45 1000", consume])?;
        }
        self.background("week/boundary", &["sub T s", "produce T 45 1000", "consume T s 20"])?;
        for name in ["ttl/abandoned", "ttlweek/abandoned"] {
            self.background(name, &["sub T gone", "produce T 45 1000"])?;
        }
        for name in ["quota/abandoned", "agequota/abandoned", "expiry/abandoned"] {
            self.background(name, &["sub T gone", "produce T 30 1000"])?;
        }
        for t in TOPICS.iter().filter(|t| t.name.starts_with("names/")) {
            if t.stale.is_empty() {
                self.read_to_the_end(t.name, 25, 300)?;
            } else {
                let subs: Vec<String> = t.stale.iter().map(|s| format!("sub T {}", word(s))).collect();
                let subs: Vec<&str> = subs.iter().map(String::as_str).collect();
                self.background(t.name, &subs)?;
                self.background(t.name, &["produce T 15 300"])?;
            }
        }
        for i in 0..BULK {
            self.read_to_the_end(&format!("bulk/t{i:03}"), 35, 500)?;
        }
        Ok(())
    }

    fn feature_topics(&mut self) -> Result<()> {
        for (name, count) in [("parts/p", 90), ("parts/stray", 60)] {
            let produce = format!("produce T {count} 1000");
            let consume = format!("consume T s {count} type=Shared");
            self.background(name, &["sub T s", &produce, &consume])?;
        }
        self.read_to_the_end("dedup/t", 65, 1000)?;
        self.background("compact/t", &["sub T s", "produce T 45 1000 keys=5", "consume T s 45"])?;
        self.background(
            "txn/t",
            &[
                "sub T s",
                "txn-produce T 15 commit",
                "txn-produce T 15 abort",
                "produce T 15 1000",
                "txn-ack T s 12 commit",
                "txn-ack T s 1 abort",
            ],
        )?;
        self.background(
            "schema/t",
            &["sub T s", "produce T 15 0 schema=1", "produce T 15 0 schema=2", "consume T s 30"],
        )?;
        self.read_to_the_end("repl/t", 25, 1000)?;
        self.background("odd/shadow-source", &["sub T s", "produce T 25 1000"])?;
        self.client.run("bg np sub non-persistent://attic/odd/fleeting s")?;
        for name in ["assignments", "metadata", "coordinate"] {
            let line = format!("bg {name} produce public/default/functions-{name} 12 200");
            self.client.run(&line)?;
        }
        Ok(())
    }

    /// Ledgers that crashed writers and other applications left behind.
    fn first_ledgers(&mut self) -> Result<()> {
        const ML: &str = "application=pulsar component=managed-ledger pulsar/managed-ledger";
        let orphans = [
            format!("3 close {ML}=attic/week/persistent/caught-up"),
            format!("3 close {ML}=attic/bare/persistent/never-was"),
            format!("2 close {ML}=attic/week/persistent/caught-up pulsar/cursor=s"),
            "1 close application=pulsar component=schema pulsar/schemaId=attic/schema/t".into(),
            "2 close application=pulsar component=compacted-ledger \
             pulsar/compactedTopic=persistent://attic/compact/t pulsar/compactedTo=x"
                .into(),
            "2 close application=pulsar component=delayed-index-bucket \
             pulsar/delayedIndexBucketKey=%23pulsar.internal.delayed.bucket_1_2 \
             pulsar/delayedIndexTopic=persistent://attic/delayed/t pulsar/delayedIndexCursor=s"
                .into(),
        ];
        self.ledgers("orphans", &orphans)?;
        self.ledgers("open", &[format!("3 open {ML}=attic/week/persistent/lagging")])?;
        let foreign = ["3 close application=backup component=archive".to_owned(), "3 close".into(), "1 open".into()];
        self.ledgers("foreign", &foreign)
    }

    fn ledgers(&mut self, kind: &str, which: &[String]) -> Result<()> {
        let mut ids: Vec<i64> = Vec::new();
        for what in which {
            ids.push(self.client.run(&format!("ledger {what}"))?.parse()?);
        }
        let list = self.note.as_object_mut().context("the note is no object")?;
        let list = list.entry(kind).or_insert_with(|| json!([]));
        list.as_array_mut().context("not a list")?.extend(ids.into_iter().map(Value::from));
        Ok(())
    }

    fn finishing_touches(&mut self) -> Result<()> {
        // Set on a topic that is loaded: loading one would wait for the cluster that is down.
        self.rest("POST", "namespaces/attic/repl/replication", Some(json!(["rig", "far"])))?;
        self.retention("persistent/attic/topical/short", 60, -1)?;
        self.retention("persistent/attic/topical/long", -1, -1)?;
        self.rest("POST", "persistent/attic/topical/ttl/messageTTL?messageTTL=3600", None)?;
        self.rest("PUT", "persistent/attic/compact/t/compaction", None)?;
        self.rest("POST", "persistent/attic/odd/terminated/terminate", None)?;
        let shadows = json!(["persistent://attic/odd/shadow"]);
        self.rest("PUT", "persistent/attic/odd/shadow-source/shadowTopics", Some(shadows))?;
        let stats = self.rig.rest("GET", "persistent/attic/offload/t/internalStats", None)?;
        let stats = stats.ok()?.json()?;
        let last = stats["lastConfirmedEntry"].as_str().context("no last entry")?;
        let (ledger, _) = last.split_once(':').context("not a position")?;
        let upto = json!({ "ledgerId": ledger.parse::<i64>()?, "entryId": 0 });
        self.rest("PUT", "persistent/attic/offload/t/offload", Some(upto))?;
        self.client.run_all(["produce attic/repl/t 20 1000", "consume attic/repl/t s 20"])?;
        self.until("offloaded", |g| {
            let url = "persistent/attic/offload/t/offload";
            let status = g.rig.rest("GET", url, None)?.ok()?.json()?;
            Ok(status["status"] == "SUCCESS")
        })?;
        self.until("compacted", |g| {
            let url = "persistent/attic/compact/t/compaction";
            let status = g.rig.rest("GET", url, None)?.ok()?.json()?;
            Ok(status["status"] == "SUCCESS")
        })
    }

    fn until(&mut self, what: &str, mut yes: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !yes(self)? {
            ensure!(begun.elapsed() < Duration::from_secs(60), "not {what} after 60 s");
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn eight_days_ago(&mut self) -> Result<()> {
        self.read_to_the_end("live/mixed", 45, 1000)?;
        self.read_to_the_end("recent/eight-days", 15, 100_000)?;
        self.join()?;
        self.done("eight days ago");
        Ok(())
    }

    fn today(&mut self) -> Result<()> {
        // a policy that came when the topic was no longer loaded
        self.retention("namespaces/attic/shrunk", -1, 2)?;
        self.read_to_the_end("live/mixed", 15, 1000)?;
        self.read_to_the_end("live/fresh", 25, 1000)?;
        let delayed = ["sub T s", "produce T 30 500 delay=86400000", "peek T s"];
        self.background("delayed/t", &delayed)?;
        self.background(
            "crash/t",
            &[
                "sub T s",
                "sub T slow",
                "produce T 45 1000",
                "consume T s 42",
                "consume T slow 5",
                // until positions are flushed into the cursor ledgers
                "sleep 3000",
            ],
        )?;
        self.join()?;
        self.done("today's topics");
        self.damage()?;
        self.rig.kill9(Part::Broker)?;
        // While its session lasts, the dead broker still leads and owns.
        self.until("rid of the dead broker", |g| Ok(g.client.run("ls /loadbalance/brokers")?.is_empty()))?;
        self.done("damaged, broker killed");
        self.rig.stop_all()
    }

    fn damage(&mut self) -> Result<()> {
        const ML: &str = "application=pulsar component=managed-ledger pulsar/managed-ledger";
        // Topics whose nodes went while their ledgers stayed.
        let base = "/managed-ledgers/attic/orphans/persistent";
        for name in ["plain", "with-cursor"] {
            let listed = self.client.run(&format!("listed attic/orphans/persistent/{name}"))?;
            let ids: Vec<Value> = listed
                .split_whitespace()
                .map(|l| l.split(':').next().unwrap_or(l).parse::<i64>().map(Value::from))
                .collect::<Result<_, _>>()?;
            self.note["orphans"].as_array_mut().context("no list of orphans")?.extend(ids);
            self.client.run(&format!("rm {base}/{name}/s"))?;
            self.client.run(&format!("rm {base}/{name}"))?;
        }
        self.client.run_all([
            // ledgers that are listed and that BookKeeper lost
            "rm-listed attic/lost/persistent/first first",
            "rm-listed attic/lost/persistent/last last",
            "rm /admin/partitioned-topics/attic/parts/persistent/stray",
            // half deleted: the policies are gone, the topics are not
            "rm /admin/policies/attic/halfgone",
            // property, cluster, namespace: names as they were before Pulsar 2.0
            "put /managed-ledgers/oldprop/rig/oldns/persistent/legacy",
            "put /managed-ledgers/attic/odd/persistent/zero-bytes",
        ])?;
        self.ledgers(
            "young",
            &[format!("0 open {ML}=attic/live/persistent/mixed"), format!("0 open {ML}=attic/live/persistent/not-yet")],
        )
    }
}
