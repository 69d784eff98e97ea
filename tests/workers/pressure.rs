//! Queues that are full: whoever fills them waits, for as long as it takes, and nothing is lost.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trimtab_tests::nats::NatsRig;
use trimtab_tests::roles::{Crew, Name, Role, until};
use trimtab_tests::trimtab::run;

use crate::crew::{settings, still_due};
use crate::ground::{Ground, Stage, Trims};

/// Three of four are due: eight pages of candidates.
const TOPICS: usize = 320;
const PAGES: u64 = 8;
const SCANNER: Name = (Role::Scanner, "one");
const DECIDER: Name = (Role::Decider, "one");
const EXECUTOR: Name = (Role::Executor, "one");
/// Longer than the lease of a scan, by some.
const LONG: Duration = Duration::from_secs(40);

fn ask(nats: &NatsRig, subject: String, request: &Value) -> Value {
    let answer = Runtime::new().unwrap().block_on(async {
        let client = async_nats::connect(nats.url()).await.unwrap();
        client.request(subject, request.to_string().into()).await.unwrap()
    });
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["error"], Value::Null, "{answer}");
    answer
}

fn api(nats: &NatsRig, subject: &str, request: &Value) -> Value {
    ask(nats, format!("$JS.API.{subject}"), request)
}

/// Lets a stream hold so many messages and no more; how many it could hold before.
fn bound(nats: &NatsRig, stream: &str, messages: u64) -> u64 {
    let mut config = api(nats, &format!("STREAM.INFO.{stream}"), &json!({}))["config"].clone();
    let before = config["max_msgs"].as_u64().unwrap();
    config["max_msgs"] = json!(messages);
    api(nats, &format!("STREAM.UPDATE.{stream}"), &config);
    before
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn a_full_queue_slows_the_scanner_and_nothing_is_dropped() {
    let (nats, ground, stage) = (NatsRig::single().unwrap(), Ground::new("pressure", TOPICS), Stage::new());
    let broker = stage.broker(Trims::of(&ground));
    let config =
        ground.file("config.toml", "[limits]\nmetadata_rate = 0.0\nbroker_rate = 0.0\nbroker_concurrency = 64\n");
    let mut crew = Crew::new(&ground.state("crew"), settings(&nats.url(), &ground.from(), &broker, &config));
    let candidates = || api(&nats, "STREAM.INFO.TT_CAND", &json!({}))["state"].clone();
    for worker in [SCANNER, DECIDER, EXECUTOR] {
        crew.start(worker);
        crew.runs(worker, 1);
    }
    // Workers refuse to start on a stream that is not as it should be, so it gets narrow only now. And the decider pauses.
    let before = bound(&nats, "TT_CAND", 2);
    crew.worker(DECIDER).freeze().unwrap();
    ask(&nats, "trimtab.scan.request".to_owned(), &json!({}));
    until("the queue is full", || candidates()["messages"] == 2);
    // Nobody takes anything for so long that a lease that is not renewed has run out.
    std::thread::sleep(LONG);
    assert_eq!(candidates()["last_seq"], 2);
    assert!(crew.acts("intent", &[EXECUTOR]).is_empty());
    crew.worker(DECIDER).thaw().unwrap();
    until("everything that was due is gone", || still_due(&ground, TOPICS) == 0);
    until("every outcome is recorded", || crew.acts("outcome", &[EXECUTOR]).len() == TOPICS / 4 * 3);
    // One leader from the beginning to the end: each page was stored once, and each topic decided once.
    assert_eq!((candidates()["last_seq"].as_u64(), candidates()["messages"].as_u64()), (Some(PAGES), Some(0)));
    assert!(!crew.log(SCANNER).contains("lost"), "{}", crew.log(SCANNER));
    crew.acted_once(&[EXECUTOR]);
    bound(&nats, "TT_CAND", before);
    let dead = run(ground.folder.path(), &["dead", "list", "--nats", &nats.url(), "--output", "json"]).exits(0);
    assert_eq!(dead.out, "");
}
