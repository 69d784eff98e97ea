//! Workers that an orchestrator starts, watches and stops: what they tell of themselves, when they say that they are ready, and how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::Client;
use futures::StreamExt;
use serde_json::Value;
use trimtab_tests::cache;
use trimtab_tests::http;
use trimtab_tests::ports::Port;
use trimtab_tests::process::Process;

use crate::PATIENCE;
use crate::forged::World;
use crate::shipped::new_key;

const ROLES: [&str; 4] = ["scanner", "decider", "executor", "audit"];

/// The roles of a pipeline, each with its health on a port.
struct Pipeline {
    world: World,
    ports: BTreeMap<&'static str, Port>,
    processes: BTreeMap<&'static str, Process>,
    keys: [(String, String); 2],
}

impl Pipeline {
    async fn start() -> Pipeline {
        let world = World::new().await;
        let state = world.shipped.state.path();
        let keys = ["decider", "executor"].map(|name| new_key(state, &format!("{name}.seed")));
        let ports = ROLES.map(|role| (role, Port::take().expect("a port"))).into();
        let mut pipeline = Pipeline { world, ports, processes: BTreeMap::new(), keys };
        for role in ROLES {
            pipeline.begin(role);
        }
        pipeline
    }

    fn begin(&mut self, role: &'static str) {
        let [(decider, decider_public), (executor, executor_public)] = &self.keys;
        let address = self.ports[role].address();
        let (user, args): (Option<&str>, Vec<&str>) = match role {
            "scanner" => (Some("look"), vec!["--max-share", "1"]),
            "decider" => (None, vec!["--seed-file", decider]),
            "executor" => (Some("act"), vec!["--apply", "--seed-file", executor, "--trust-decider", decider_public]),
            _ => (None, vec!["--trust-executor", executor_public]),
        };
        let process = self.world.start(role, user, &[&args[..], &["--http", &address]].concat());
        self.processes.insert(role, process);
    }

    fn get(&self, role: &str, path: &str) -> Option<(u16, String)> {
        let url = format!("http://{}{path}", self.ports[role].address());
        let reply = http::once("GET", &url, None, None, Duration::from_secs(10)).ok()?;
        Some((reply.status, reply.body))
    }

    /// Waits until this role says so of itself.
    fn says(&self, role: &str, status: u16, text: &str) {
        let begun = Instant::now();
        loop {
            let got = self.get(role, "/readyz?verbose");
            if got.as_ref().is_some_and(|(is, body)| *is == status && body.contains(text)) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{role}: {got:?}, wanted {status} {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The answers to one question, as many as are wanted.
async fn answers(client: &Client, subject: &str, count: usize) -> Vec<Value> {
    let inbox = client.new_inbox();
    let mut came = client.subscribe(inbox.clone()).await.expect("subscribed");
    client.publish_with_reply(subject.to_owned(), inbox, Vec::new().into()).await.expect("sent");
    let mut all = Vec::new();
    while all.len() < count {
        let next = tokio::time::timeout(PATIENCE, came.next()).await;
        let next = next.unwrap_or_else(|_| panic!("{subject}: {count} answers wanted, {all:?}")).expect("a message");
        all.push(serde_json::from_slice(&next.payload).expect("JSON"));
    }
    all
}

fn texts(all: &[Value], name: &str) -> BTreeSet<String> {
    all.iter().map(|one| one[name].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs nats-server"]
async fn each_role_tells_what_it_is_when_it_is_ready_and_ends_in_order() {
    let mut pipeline = Pipeline::start().await;
    shown_as_micro_services(&pipeline).await;
    let mut pipeline = tokio::task::spawn_blocking(|| {
        ready_only_while_all_is_there(&mut pipeline);
        pipeline
    })
    .await
    .expect("readiness");
    ends_in_order(&mut pipeline).await;
}

async fn shown_as_micro_services(pipeline: &Pipeline) {
    let shipped = &pipeline.world.shipped;
    let operator = shipped.client("operator").await;
    let names: BTreeSet<String> = ROLES.iter().map(|role| format!("trimtab-{role}")).collect();
    let pings = answers(&operator, "$SRV.PING", 4).await;
    assert_eq!(texts(&pings, "name"), names);
    assert_eq!(texts(&pings, "type"), ["io.nats.micro.v1.ping_response".to_owned()].into());
    assert_eq!(texts(&pings, "id").len(), 4, "each has an id of its own");
    for info in answers(&operator, "$SRV.INFO", 4).await {
        assert_eq!(info["type"], "io.nats.micro.v1.info_response");
        let role = info["metadata"]["role"].as_str().expect("a role");
        assert_eq!(info["name"], format!("trimtab-{role}"));
        assert_eq!((&info["metadata"]["instance"], &info["metadata"]["target"]), (&"one".into(), &"jetstream".into()));
        let endpoints = info["endpoints"].as_array().expect("endpoints");
        assert_eq!((endpoints.len(), &endpoints[0]["name"]), (1, &"status".into()));
        assert_eq!(endpoints[0]["subject"], format!("trimtab.status.{role}"));
    }
    for role in ROLES {
        let status = answers(&operator, &format!("trimtab.status.{role}"), 1).await.remove(0);
        assert_eq!((&status["role"], &status["ready"]), (&role.into(), &true.into()), "{status}");
        let checks = status["checks"].as_object().expect("checks");
        let target = ["scanner", "executor"].contains(&role);
        assert_eq!((checks.contains_key("target"), checks.contains_key("store")), (target, role != "decider"));
        let stats = answers(&operator, &format!("$SRV.STATS.trimtab-{role}"), 1).await.remove(0);
        assert_eq!(
            (&stats["type"], &stats["endpoints"][0]["num_requests"]),
            (&"io.nats.micro.v1.stats_response".into(), &1.into()),
            "{stats}"
        );
    }
    // The tool that people have.
    let cli = cache::nats_cli().expect("the nats command line");
    let url = shipped.rig.url();
    for args in [&["ls"][..], &["info", "trimtab-executor"], &["stats", "trimtab-decider"]] {
        let access = [
            "--no-context",
            "-s",
            &url,
            "--nkey",
            shipped.seed("operator"),
            "--inbox-prefix",
            "_INBOX_operator",
            "micro",
        ];
        let ended = Command::new(&cli).args(access).args(args).output().expect("the nats command line");
        let text = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
        let wanted: Vec<&str> = match args {
            ["ls"] => names.iter().map(String::as_str).collect(),
            ["info", _] => vec!["trimtab.status.executor", "instance: one"],
            _ => vec!["trimtab-decider", "status"],
        };
        assert!(ended.status.success() && wanted.iter().all(|part| text.contains(part)), "{args:?}: {text}");
    }
}

fn ready_only_while_all_is_there(pipeline: &mut Pipeline) {
    for role in ROLES {
        pipeline.says(role, 200, "[+] bus ok");
    }
    // Who needs the target says so, and nobody else minds.
    pipeline.world.target.stop(0).expect("stopped");
    for role in ["scanner", "executor"] {
        pipeline.says(role, 503, "[-] target failed");
    }
    for role in ["decider", "audit"] {
        pipeline.says(role, 200, "[+] bus ok");
    }
    pipeline.world.target.start(0).expect("started");
    for role in ROLES {
        pipeline.says(role, 200, "[+] bus ok");
    }
    // Servers that accept connections and answer nothing.
    pipeline.world.shipped.rig.process(0).expect("it runs").freeze().expect("frozen");
    for role in ["decider", "executor"] {
        pipeline.says(role, 503, "[-] bus failed");
        let (status, _) = pipeline.get(role, "/livez").expect("answered");
        assert_eq!(status, 200, "{role} lives");
    }
    pipeline.says("executor", 503, "[-] store failed");
    pipeline.world.shipped.rig.process(0).expect("it runs").thaw().expect("thawed");
    for role in ROLES {
        pipeline.says(role, 200, "[+] bus ok");
    }
    // Servers that are gone, and come back.
    pipeline.world.shipped.rig.kill9(0).expect("killed");
    for role in ROLES {
        pipeline.says(role, 503, "[-] bus failed");
    }
    pipeline.world.shipped.rig.start(0).expect("started");
    for role in ROLES {
        pipeline.says(role, 200, "[+] bus ok");
    }
}

/// An executor is told to stop in the middle of an act, with another decision behind it: the act ends and is recorded, the other decision
/// stays for the next executor, and nobody is told that it is ready meanwhile.
async fn ends_in_order(pipeline: &mut Pipeline) {
    let executor = |pipeline: &mut Pipeline| pipeline.processes.remove("executor").expect("it runs");
    let status = executor(pipeline).stop().expect("stopped");
    assert_eq!(status.code(), Some(0), "with nothing to do");
    let decisions = pipeline.world.decisions().await;
    pipeline.begin("executor");
    let user = pipeline.world.shipped.client("decider").await;
    for (subject, event) in &decisions {
        user.publish(subject.clone(), event.to_bytes().expect("small").into()).await.expect("sent");
    }
    let begun = Instant::now();
    let folder = pipeline.world.shipped.folder("executor");
    let journal = folder.join("audit/executor-one.jsonl");
    let records = |kind: &str| {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        text.lines().filter(|line| line.contains(&format!("\"kind\":\"{kind}\""))).count()
    };
    // An act holds its consumer for two seconds before it does anything.
    while records("intent") == 0 {
        assert!(begun.elapsed() < PATIENCE, "no act begins");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let told = Instant::now();
    pipeline.processes.get_mut("executor").expect("it runs").signal(rustix::process::Signal::TERM).expect("told");
    let mut ending = executor(pipeline);
    let mut said = None;
    while ending.runs() {
        // It is there to be asked until it has ended.
        said = pipeline.get("executor", "/readyz").or(said);
        assert!(told.elapsed() < PATIENCE, "it does not end: {}", ending.tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (status, body) = said.expect("it is still there while it works");
    assert!(status == 503 && body.contains("it is ending"), "the last that it says: {body}");
    let status = ending.stop().expect("ended by itself");
    assert!(told.elapsed() < Duration::from_secs(30), "{:?}", told.elapsed());
    assert_eq!(status.code(), Some(0));
    assert_eq!(records("intent"), records("outcome"), "what was begun has ended");
    pipeline.begin("executor");
    for stream in ["A", "B"] {
        while pipeline.world.held(stream).await > 0 {
            assert!(begun.elapsed() < PATIENCE, "{stream} is lost");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    while records("outcome") < 2 {
        assert!(begun.elapsed() < PATIENCE, "an outcome is lost");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(records("intent"), 2, "nothing was begun twice");
    for (role, mut process) in std::mem::take(&mut pipeline.processes) {
        assert_eq!(process.stop().expect("stopped").code(), Some(0), "{role}");
    }
}

#[test]
#[ignore = "needs nats-server"]
fn systemd_is_told_when_a_role_runs_lives_and_ends() {
    let ground = crate::Ground::new();
    let url = ground.nats.url();
    let _ = trimtab_tests::trimtab::run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let path = ground.state().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    let heard = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("something is told");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let seed = ground.seed();
    let (address, port) = (path.display().to_string(), Port::take().expect("a port"));
    // Half of that is how often it is told.
    let env = [("NOTIFY_SOCKET", address.as_str()), ("WATCHDOG_USEC", "200000")];
    let args = ["decider", "--nats", &url, "--seed-file", &seed, "--http", &port.address()];
    let running = trimtab_tests::trimtab::begin(ground.state(), &args, &env);
    assert_eq!(heard().trim(), "READY=1");
    let asked = trimtab_tests::trimtab::run(ground.state(), &["health", "--ready", "--http", &port.address()]).exits(0);
    assert_eq!(asked.out, "ok\n");
    assert_eq!([heard(), heard()].map(|told| told.trim().to_owned()), ["WATCHDOG=1", "WATCHDOG=1"]);
    running.stop();
    while heard().trim() == "WATCHDOG=1" {}
    let _ = running.wait().exits(0);
    let _ = trimtab_tests::trimtab::run(ground.state(), &["health", "--http", &port.address()]).exits(1);
}
