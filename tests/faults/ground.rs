//! A ZooKeeper with topics that no broker ever saw, and brokers that are only played.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use trimtab_targets::pulsar::managed_ledger_info;
use trimtab_tests::java::JavaClient;
use trimtab_tests::pulsar::PulsarRig;
use trimtab_tests::trimtab::{Ended, run};
use wiremock::matchers::{any, method, path_regex};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

/// Ledgers of each topic: three closed ones that are due, and the last.
pub(crate) const LEDGERS: usize = 4;

pub(crate) struct Ground {
    pub(crate) rig: PulsarRig,
    pub(crate) client: Arc<Mutex<JavaClient>>,
    pub(crate) folder: TempDir,
    tenant: &'static str,
}

impl Ground {
    /// Topics below `tenant`, as `Filler` makes them: of each eight, the first five are due.
    pub(crate) fn new(tenant: &'static str, topics: usize) -> Ground {
        let rig = PulsarRig::builder().null_metadata().start().unwrap();
        let mut client = rig.client().unwrap();
        client.run(&format!("fill {tenant} {topics} {LEDGERS}")).unwrap();
        let client = Arc::new(Mutex::new(client));
        Ground { rig, client, folder: tempfile::tempdir().unwrap(), tenant }
    }

    pub(crate) fn from(&self) -> String {
        format!("zk://{}", self.rig.zk())
    }

    pub(crate) fn topic(&self, number: usize) -> String {
        format!("persistent://{}/n{:04}/t{number:05}", self.tenant, number / 1000)
    }

    pub(crate) fn node(&self, number: usize) -> String {
        format!("/managed-ledgers/{}/n{:04}/persistent/t{number:05}", self.tenant, number / 1000)
    }

    pub(crate) fn ids(&self, number: usize) -> Vec<i64> {
        let raw = self.client.lock().unwrap().get(&self.node(number)).unwrap();
        managed_ledger_info(&raw).unwrap().ledgers.iter().map(|info| info.id).collect()
    }

    pub(crate) fn put(&self, path: &str, value: &[u8]) {
        self.client.lock().unwrap().put(path, value).unwrap();
    }

    /// A new, empty state folder.
    pub(crate) fn state(&self, name: &str) -> PathBuf {
        let state = self.folder.path().join(name);
        std::fs::create_dir_all(&state).unwrap();
        state
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// A list of ledgers without its first ones, as a broker's trim leaves it.
fn without_first(raw: &[u8], count: usize) -> Vec<u8> {
    let (mut kept, mut rest, mut skipped) = (Vec::new(), raw, 0);
    while !rest.is_empty() {
        let (tag, after) = varint(rest);
        let (number, after) = varint(after);
        let size = if tag & 7 == 2 { usize::try_from(number).unwrap() } else { 0 };
        let (field, next) = rest.split_at(rest.len() - after.len() + size);
        if tag == 0x0a && skipped < count {
            skipped += 1;
        } else {
            kept.extend_from_slice(field);
        }
        rest = next;
    }
    kept
}

fn varint(bytes: &[u8]) -> (u64, &[u8]) {
    let (mut value, mut at) = (0, 0);
    loop {
        value |= u64::from(bytes[at] & 0x7f) << (7 * at);
        at += 1;
        if bytes[at - 1] < 0x80 {
            return (value, &bytes[at..]);
        }
    }
}

/// Answers a trim at once, and changes the list of ledgers only later.
#[derive(Clone)]
pub(crate) struct Trims {
    pub(crate) client: Arc<Mutex<JavaClient>>,
    pub(crate) after: Duration,
    pub(crate) ledgers: usize,
    pub(crate) answer: u16,
}

impl Trims {
    pub(crate) fn of(ground: &Ground) -> Trims {
        Trims { client: ground.client.clone(), after: Duration::ZERO, ledgers: LEDGERS - 1, answer: 204 }
    }
}

impl Trims {
    /// Trims the topic of this path, as a broker does.
    pub(crate) fn trim(&self, path: &str) {
        let name = path.strip_prefix("/admin/v2/persistent/").unwrap().strip_suffix("/trim").unwrap();
        let (namespace, topic) = name.rsplit_once('/').unwrap();
        let node = format!("/managed-ledgers/{namespace}/persistent/{topic}");
        let mut client = self.client.lock().unwrap();
        let list = client.get(&node).unwrap();
        if managed_ledger_info(&list).unwrap().ledgers.len() == LEDGERS {
            client.put(&node, &without_first(&list, self.ledgers)).unwrap();
        }
    }
}

impl Respond for Trims {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let (this, path) = (self.clone(), request.url.path().to_owned());
        std::thread::spawn(move || {
            std::thread::sleep(this.after);
            this.trim(&path);
        });
        ResponseTemplate::new(self.answer)
    }
}

/// Brokers that are only played.
pub(crate) struct Stage {
    runtime: Runtime,
}

impl Stage {
    pub(crate) fn new() -> Stage {
        Stage { runtime: Runtime::new().unwrap() }
    }

    /// A broker on which nobody is connected, that closes topics when asked to, and does `trim` when it is to trim.
    pub(crate) fn broker(&self, trim: impl Respond + 'static) -> Broker<'_> {
        let broker = self.bare();
        broker.on("POST", "/trim$", trim);
        let nobody = serde_json::json!({ "publishers": [], "subscriptions": { "s": { "consumers": [] } } });
        broker.on("GET", "/stats$", ResponseTemplate::new(200).set_body_json(nobody));
        broker.on("PUT", "/unload$", ResponseTemplate::new(204));
        broker
    }

    /// One that answers 404 to everything.
    pub(crate) fn bare(&self) -> Broker<'_> {
        Broker { server: self.runtime.block_on(MockServer::start()), stage: self }
    }
}

pub(crate) struct Broker<'a> {
    server: MockServer,
    stage: &'a Stage,
}

impl Broker<'_> {
    pub(crate) fn url(&self) -> String {
        self.server.uri()
    }

    pub(crate) fn host(&self) -> String {
        self.server.address().to_string()
    }

    pub(crate) fn on(&self, verb: &str, path: &str, answer: impl Respond + 'static) {
        let mock = Mock::given(method(verb)).and(path_regex(path)).respond_with(answer);
        self.stage.runtime.block_on(mock.mount(&self.server));
    }

    /// Whatever is asked for.
    pub(crate) fn on_anything(&self, answer: impl Respond + 'static) {
        let mock = Mock::given(any()).respond_with(answer);
        self.stage.runtime.block_on(mock.mount(&self.server));
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.stage.runtime.block_on(self.server.received_requests()).unwrap()
    }

    /// What was asked for: the last part of each path, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        let last = |request: &Request| request.url.path().rsplit('/').next().unwrap().to_owned();
        self.requests().iter().map(last).collect()
    }
}

/// What was recorded of one topic's act.
#[derive(Debug)]
pub(crate) struct Acted {
    pub(crate) ended: Ended,
    pub(crate) intents: usize,
    pub(crate) outcome: Value,
}

impl Acted {
    pub(crate) fn says(&self) -> String {
        let reasons = self.outcome["reasons"].as_array().into_iter().flatten();
        reasons.map(|reason| reason["says"].as_str().unwrap()).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn freed(&self) -> usize {
        self.outcome["freed"].as_array().map_or(0, Vec::len)
    }
}

/// Runs one topic through the whole pipeline against these brokers.
pub(crate) fn act_on(ground: &Ground, number: usize, config: &str, brokers: &[String], more: &[&str]) -> Acted {
    let state = ground.state(&format!("topic-{number}"));
    let (topic, from) = (ground.topic(number), ground.from());
    let mut args = vec!["run", "--apply", "--from", &from, "--topic", &topic, "--config", config, "--output", "json"];
    args.extend(brokers.iter().flat_map(|url| ["--admin", url.as_str()]));
    args.extend(more);
    let ended = run(&state, &args);
    let story = run(&state, &["audit", "show", &topic, "--output", "json"]);
    let records: Vec<Value> = story.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| records.iter().filter(|record| record["kind"] == kind).cloned().collect::<Vec<_>>();
    let outcome = of("outcome").pop().map_or(Value::Null, |record| record["body"].clone());
    Acted { ended, intents: of("intent").len(), outcome }
}
