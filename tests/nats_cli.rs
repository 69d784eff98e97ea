//! The commands that look after what is on NATS, and workers that come and go there: the real binary and a real server.

#[path = "nats_cli/doctor.rs"]
mod doctor;
#[path = "nats_cli/forged.rs"]
mod forged;
#[path = "nats_cli/habits.rs"]
mod habits;
#[path = "nats_cli/rights.rs"]
mod rights;
#[path = "nats_cli/shipped.rs"]
mod shipped;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trimtab_bus::conformance::event;
use trimtab_bus::{Bus, JetStream, NatsOptions, Published, Role};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::trimtab::{run, start};

/// Longer than anything here takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Ground {
    nats: NatsRig,
    runtime: Runtime,
    state: tempfile::TempDir,
}

impl Ground {
    fn new() -> Ground {
        let nats = NatsRig::single().expect("nats-server");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        Ground { nats, runtime, state: tempfile::tempdir().expect("a folder") }
    }

    fn state(&self) -> &Path {
        self.state.path()
    }

    /// One request to the server's own interface.
    fn api(&self, subject: &str, request: &Value) -> Value {
        self.runtime.block_on(async {
            let client = async_nats::connect(self.nats.url()).await.expect("connected");
            let answer = client.request(format!("$JS.API.{subject}"), request.to_string().into()).await;
            serde_json::from_slice(&answer.expect("answered").payload).expect("JSON")
        })
    }

    /// How many consumers each stream has.
    fn consumers(&self) -> BTreeMap<String, u64> {
        let streams = self.api("STREAM.LIST", &json!({}));
        let streams = streams["streams"].as_array().map_or(&[][..], Vec::as_slice);
        let count = |stream: &Value| stream["state"]["consumer_count"].as_u64().expect("a number");
        let name = |stream: &Value| stream["config"]["name"].as_str().expect("a name").to_owned();
        streams.iter().map(|stream| (name(stream), count(stream))).collect()
    }

    fn bus(&self) -> JetStream {
        let options = NatsOptions { servers: vec![self.nats.url()], ..NatsOptions::default() };
        self.runtime.block_on(JetStream::connect(options)).expect("connected")
    }

    fn seed(&self) -> String {
        let file = self.state().join("seed").display().to_string();
        if !Path::new(&file).exists() {
            let _ = run(self.state(), &["keys", "new", &file]).exits(0);
        }
        file
    }

    fn letters(&self) -> Vec<Value> {
        let listed = run(self.state(), &["dead", "list", "--nats", &self.nats.url(), "--output", "json"]).exits(0);
        listed.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

fn until(what: &str, mut yes: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !yes() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs nats-server"]
fn an_administrator_can_make_everything_from_what_is_printed() {
    let ground = Ground::new();
    let url = ground.nats.url();
    let folder = ground.state().join("definitions");
    let printed = run(ground.state(), &["nats", "setup", "--print", &folder.display().to_string()]).exits(0);
    // Nothing was made, and no server asked.
    assert_eq!(ground.consumers(), BTreeMap::new());
    let _ = run(ground.state(), &["nats", "check", "--nats", &url]).exits(1);
    let mut made = 0;
    for line in printed.out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (subject, request) = match words[..] {
            ["nats", "stream", "add", stream, "--config", file] => (
                format!("STREAM.CREATE.{stream}"),
                serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap(),
            ),
            ["nats", "consumer", "add", stream, consumer, "--config", file] => {
                let config: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
                let request = json!({ "stream_name": stream, "config": config });
                (format!("CONSUMER.DURABLE.CREATE.{stream}.{consumer}"), request)
            }
            _ => panic!("{line}"),
        };
        let answer = ground.api(&subject, &request);
        assert_eq!(answer["error"], Value::Null, "{line}: {answer}");
        made += 1;
    }
    assert_eq!(made, std::fs::read_dir(&folder).unwrap().count());
    // Not only good enough: setting up finds nothing to make, and no difference.
    let before = ground.consumers();
    let _ = run(ground.state(), &["nats", "check", "--nats", &url]).exits(0);
    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    assert_eq!(ground.consumers(), before);
}

#[test]
#[ignore = "needs nats-server"]
fn workers_that_start_and_die_leave_no_consumers() {
    const ROUNDS: usize = 10;
    let ground = Ground::new();
    let url = ground.nats.url();
    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let before = ground.consumers();
    assert_eq!(before["TT_CAND"], 1, "{before:?}");
    let (seed, key) = (ground.seed(), run(ground.state(), &["keys", "public", &ground.seed()]).exits(0).out);
    let key = key.trim();
    // What scanners and executors work on: the same server, which has nothing of anybody else.
    let config = ground.state().join("config.toml").display().to_string();
    std::fs::write(&config, "system = \"jetstream\"\n").unwrap();
    for round in 0..ROUNDS {
        let mut workers: Vec<_> = (0..5)
            .map(|number| {
                let name = format!("worker-{round}-{number}");
                let state = ground.state().join(&name);
                std::fs::create_dir_all(&state).unwrap();
                let work = ["--from", &url, "--config", &config];
                let args = match number {
                    0 => vec!["audit", "run", "--trust-executor", key],
                    1 => [&["scanner"][..], &work].concat(),
                    2 => [&["executor", "--apply", "--seed-file", &seed, "--trust-decider", key][..], &work].concat(),
                    _ => vec!["decider", "--seed-file", &seed],
                };
                let args = [&args[..], &["--nats", &url]].concat();
                (state.join(format!("{name}.log")), start(&name, &state, &args, &[]).unwrap())
            })
            .collect();
        for (log, _) in &workers {
            until("a worker runs", || std::fs::read_to_string(log).unwrap_or_default().contains("running"));
        }
        for (_, worker) in &mut workers {
            worker.kill9().unwrap();
        }
    }
    assert_eq!(ground.consumers(), before, "{} workers", ROUNDS * 5);
}

#[test]
#[ignore = "needs nats-server"]
fn what_was_given_up_is_listed_shown_put_back_and_dropped() {
    let ground = Ground::new();
    let url = ground.nats.url();
    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let bus = ground.bus();
    let sent = [event(Role::Decider, "a", "x"), event(Role::Decider, "b", "y")];
    for event in &sent {
        ground.runtime.block_on(bus.publish(event)).unwrap();
    }
    let seed = ground.seed();
    let decide = ["decider", "--nats", &url, "--seed-file", &seed, "--exit-when-idle", "1s"];
    // They do not fit their schema. Afterwards there is nothing to do, and it ends by itself.
    let _ = run(ground.state(), &decide).exits(0);
    let letters = ground.letters();
    assert_eq!(letters.len(), 2, "{letters:?}");
    let number = |letter: &Value| letter["id"].as_str().unwrap().to_owned();
    for letter in &letters {
        assert_eq!((&letter["role"], &letter["tries"]), (&json!("decider"), &json!(1)));
        assert!(!letter["why"].as_str().unwrap().is_empty());
    }
    let bytes = |index: usize| String::from_utf8(sent[index].to_bytes().unwrap()).unwrap();
    let mut kept: Vec<&str> = letters.iter().map(|letter| letter["event"].as_str().unwrap()).collect();
    kept.sort_unstable();
    assert_eq!(kept, [bytes(0), bytes(1)]);
    let shown = run(ground.state(), &["dead", "show", &number(&letters[0]), "--nats", &url]).exits(0).out;
    assert!(shown.contains("role    decider") && shown.contains("\"specversion\": \"1.0\""), "{shown}");
    let table = run(ground.state(), &["dead", "list", "--nats", &url]).exits(0).out;
    assert!(table.lines().count() == 3 && table.contains("decider"), "{table}");
    // Put back at once, though de-duplication remembers it; handled, and given up, anew.
    let _ = run(ground.state(), &["dead", "retry", &number(&letters[0]), "--nats", &url]).exits(0);
    assert_eq!(ground.runtime.block_on(bus.depth(Role::Decider)).unwrap(), 1);
    let _ = run(ground.state(), &decide).exits(0);
    let again = ground.letters();
    assert_eq!((again.len(), &again[0], &again[1]["event"]), (2, &letters[1], &letters[0]["event"]));
    // One that is there and one that is not; then none.
    let (gone, there) = (number(&letters[0]), number(&letters[1]));
    let _ = run(ground.state(), &["dead", "drop", &gone, &there, "--nats", &url]).exits(4);
    let _ = run(ground.state(), &["dead", "drop", &there, "--nats", &url]).exits(1);
    let _ = run(ground.state(), &["dead", "retry", &there, "--nats", &url]).exits(1);
    let _ = run(ground.state(), &["dead", "show", &there, "--nats", &url]).exits(2);
    assert_eq!(ground.letters(), again[1..]);
}

/// What ends each process that takes it is left lying by the server some day, and blocks its topic; until somebody moves it away.
#[test]
#[ignore = "needs nats-server"]
fn what_nobody_settled_is_buried() {
    let ground = Ground::new();
    let url = ground.nats.url();
    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let bus = ground.bus();
    let sent = event(Role::Executor, "poison", "x");
    ground.runtime.block_on(bus.publish(&sent)).unwrap();
    // After four deliveries, not a thousand and three.
    let mut config = ground.api("CONSUMER.INFO.TT_DEC.executor", &json!({}))["config"].clone();
    config["max_deliver"] = json!(4);
    let request = json!({ "stream_name": "TT_DEC", "config": config, "action": "update" });
    let answer = ground.api("CONSUMER.DURABLE.CREATE.TT_DEC.executor", &request);
    assert_eq!(answer["error"], Value::Null, "{answer}");
    let nothing = run(ground.state(), &["nats", "bury", "--nats", &url]).exits(0);
    assert!(nothing.out.starts_with("0 events"), "{}", nothing.out);
    // Given back each time, since a process that is killed would keep it for a minute.
    let deliveries = ground.runtime.block_on(async {
        let client = async_nats::connect(&url).await.expect("connected");
        let consumer: async_nats::jetstream::consumer::PullConsumer =
            async_nats::jetstream::new(client).get_consumer_from_stream("executor", "TT_DEC").await.expect("there");
        let (mut deliveries, mut nothing) = (0, 0);
        // What was given back takes a moment until it comes again; and the server gives it up when somebody asks for the next one.
        while nothing < 20 {
            let mut batch = consumer.fetch().max_messages(1).messages().await.expect("fetched");
            let Some(message) = batch.next().await else {
                nothing += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            message.expect("a message").ack_with(async_nats::jetstream::AckKind::Nak(None)).await.expect("given back");
            (deliveries, nothing) = (deliveries + 1, 0);
        }
        deliveries
    });
    assert_eq!(deliveries, 4);
    assert_eq!(ground.letters(), [] as [Value; 0]);
    let mut said = String::new();
    until("it is buried", || {
        said = run(ground.state(), &["nats", "bury", "--nats", &url]).exits(0).out;
        said.starts_with("1 events")
    });
    let letters = ground.letters();
    assert_eq!((letters.len(), &letters[0]["role"], &letters[0]["tries"]), (1, &json!("executor"), &json!(deliveries)));
    assert_eq!(ground.runtime.block_on(bus.publish(&sent)).unwrap(), Published::Stored, "its key is free");
}

/// A worker does not end while there is something to do, by others or later.
#[test]
#[ignore = "needs nats-server"]
fn a_worker_ends_when_idle_and_not_before() {
    let ground = Ground::new();
    let url = ground.nats.url();
    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let bus = ground.bus();
    ground.runtime.block_on(bus.publish(&event(Role::Decider, "a", "x"))).unwrap();
    // Somebody else has it.
    let taken = ground.runtime.block_on(bus.take(Role::Decider)).unwrap();
    let seed = ground.seed();
    let state = ground.state().join("idle");
    std::fs::create_dir_all(&state).unwrap();
    let args = ["decider", "--nats", &url, "--seed-file", &seed, "--exit-when-idle", "200ms"];
    let mut worker = trimtab_tests::trimtab::begin(&state, &args, &[]);
    std::thread::sleep(Duration::from_secs(2));
    assert!(worker.runs(), "{:?}", worker.wait());
    ground.runtime.block_on(taken.settle.done()).unwrap();
    assert_eq!(worker.wait().code, 0);
}

/// Prints how long a worker takes from its start until the first event is settled; with `--release`, as docs/reliability.md has it.
#[test]
#[ignore = "needs nats-server"]
fn from_the_start_of_a_worker_to_its_first_event() {
    use futures::StreamExt as _;
    const ROUNDS: usize = 11;
    let ground = Ground::new();
    let url = ground.nats.url();
    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let (bus, seed) = (ground.bus(), ground.seed());
    let mut settled = ground.runtime.block_on(async {
        let client = async_nats::connect(ground.nats.url()).await.expect("connected");
        let settled = client.subscribe("$JS.ACK.>").await.expect("subscribed");
        client.flush().await.expect("sent");
        settled
    });
    let mut took: Vec<u128> = (0..ROUNDS)
        .map(|round| {
            ground.runtime.block_on(bus.publish(&event(Role::Decider, &round.to_string(), "x"))).unwrap();
            let begun = Instant::now();
            let args = ["decider", "--nats", &url, "--seed-file", &seed];
            let mut worker = start(&format!("worker-{round}"), ground.state(), &args, &[]).unwrap();
            let settled = async { tokio::time::timeout(PATIENCE, settled.next()).await };
            ground.runtime.block_on(settled).expect("settled in time").expect("a settlement");
            let took = begun.elapsed().as_millis();
            worker.kill9().unwrap();
            took
        })
        .collect();
    took.sort_unstable();
    println!("from start to the first event settled: median {} ms of {took:?}", took[ROUNDS / 2]);
}
