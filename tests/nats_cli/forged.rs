//! Forged decisions and outcomes, stored by every trick there is, before a real executor and a real audit: none is obeyed or recorded, each
//! lies in the dead letters with the reason. Between them the decider's key is rotated, and no decision is lost or refused by that.

use std::path::Path;
use std::time::{Duration, Instant};

use async_nats::Client;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use trimtab::sign::Signer;
use trimtab_events::{Body, Decision, Event, Trace};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::process::Process;
use trimtab_tests::trimtab::run;

use crate::PATIENCE;
use crate::shipped::{Shipped, new_key};

const RULES: &str = r#"
system = "jetstream"
[caps]
max_share = 1.0
[limits]
acts_at_once = 1
[jetstream]
probe = "2s"
[[rules]]
match = ["*/*"]
stale_after = "1s"
sightings = 2
grace = "0s"
allow_unguarded = true
"#;

/// Users of the servers that are cleaned: who looks may not act.
const TARGET: &str = r#"accounts { APP { jetstream: enabled, users: [
    { user: app, password: app }
    { user: look, password: look, permissions: {
        publish: ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.LIST.*", "$JS.API.CONSUMER.INFO.*.*"]
        subscribe: ["_INBOX_look.>"] } }
    { user: act, password: act, permissions: {
        publish: ["$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.LIST.*", "$JS.API.CONSUMER.INFO.*.*",
                  "$JS.API.CONSUMER.PAUSE.*.*", "$JS.API.CONSUMER.RESET.*.*"]
        subscribe: ["_INBOX_act.>", "$JS.API.CONSUMER.MSG.NEXT.*.*", "$JS.ACK.>"] } } ] } }"#;

/// Waits until something is so.
macro_rules! until {
    ($what:expr, $so:expr) => {{
        let begun = Instant::now();
        while !$so {
            assert!(begun.elapsed() < PATIENCE, "not within a minute: {}", $what);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }};
}

/// A message as a stream has it.
#[derive(Debug, Clone)]
struct Stored {
    headers: String,
    data: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) shipped: Shipped,
    pub(crate) target: NatsRig,
    app: Client,
    admin: Client,
}

impl World {
    pub(crate) async fn new() -> World {
        let (shipped, target) = tokio::task::spawn_blocking(|| {
            (
                Shipped::set_up(),
                NatsRig::builder().sync_interval("2m").extra_config(TARGET).start().expect("nats-server"),
            )
        })
        .await
        .expect("rigs");
        let options = async_nats::ConnectOptions::with_user_and_password("app".to_owned(), "app".to_owned());
        let app = options.connect(target.url()).await.expect("connected");
        let admin = shipped.client("admin").await;
        let world = World { shipped, target, app, admin };
        for stream in ["A", "B"] {
            let subjects = [format!("{}.>", stream.to_lowercase())];
            let config = json!({ "name": stream, "subjects": subjects, "retention": "interest", "storage": "file" });
            let _ = api(&world.app, &format!("STREAM.CREATE.{stream}"), &config).await;
            let config = json!({ "durable_name": "old", "ack_policy": "explicit" });
            let request = json!({ "stream_name": stream, "config": config });
            let _ = api(&world.app, &format!("CONSUMER.DURABLE.CREATE.{stream}.old"), &request).await;
            for _ in 0..20 {
                let _ = world.app.request(format!("{}.x", stream.to_lowercase()), "x".into()).await.expect("stored");
            }
        }
        world
    }

    /// The configuration of a role: only scanners and executors know the target, and each with a user of its own.
    fn config(&self, role: &str, user: Option<&str>) -> String {
        let file = self.shipped.folder(role).join("trimtab.toml");
        let access = user.map_or_else(String::new, |user| {
            let password = self.shipped.folder(role).join("target.password");
            std::fs::write(&password, user).expect("written");
            let (url, file) = (self.target.url(), password.display());
            let who = format!(
                "name = \"APP\"\nuser = \"{user}\"\npassword_file = \"{file}\"\ninbox_prefix = \"_INBOX_{user}\""
            );
            format!("url = \"{url}\"\n[[jetstream.accounts]]\n{who}\n")
        });
        std::fs::write(&file, RULES.replace("probe = \"2s\"\n", &format!("probe = \"2s\"\n{access}")))
            .expect("written");
        file.display().to_string()
    }

    pub(crate) fn start(&self, role: &str, user: Option<&str>, args: &[&str]) -> Process {
        let config = self.config(role, user);
        let args = [
            if role == "audit" { &["audit", "run"][..] } else { &[role] },
            &["--config", &config, "--name", "one"],
            args,
        ];
        self.shipped.start(role, role, &args.concat())
    }

    async fn messages(&self, stream: &str) -> u64 {
        api(&self.admin, &format!("STREAM.INFO.{stream}"), &json!({})).await["state"]["messages"]
            .as_u64()
            .expect("a number")
    }

    /// The last message of a subject of a stream.
    async fn last(&self, stream: &str, subject: &str) -> Option<Stored> {
        let answer = api(&self.admin, &format!("STREAM.MSG.GET.{stream}"), &json!({ "last_by_subj": subject })).await;
        let message = answer["message"].as_object()?.clone();
        let decoded =
            |name: &str| BASE64.decode(message.get(name).and_then(Value::as_str).unwrap_or_default()).expect("base64");
        let headers = String::from_utf8(decoded("hdrs")).expect("UTF-8");
        Some(Stored { headers, data: decoded("data") })
    }

    async fn purge(&self, stream: &str) {
        let answer = api(&self.admin, &format!("STREAM.PURGE.{stream}"), &json!({})).await;
        assert_eq!(answer["success"], true, "{answer}");
    }

    /// What holds storage in the target: messages of the stream.
    pub(crate) async fn held(&self, stream: &str) -> u64 {
        api(&self.app, &format!("STREAM.INFO.{stream}"), &json!({})).await["state"]["messages"]
            .as_u64()
            .expect("a number")
    }

    /// Scans until there is a decision about each of the streams; takes both out of their queue.
    pub(crate) async fn decisions(&self) -> [(String, Event); 2] {
        let begun = Instant::now();
        loop {
            let ended = tokio::task::block_in_place(|| {
                self.shipped.run("operator", &["scan", "--config", &self.config("operator", None), "--wait"])
            });
            assert!([0, 4].contains(&ended.code), "{ended:?}");
            // The decider is not waited for by a scan.
            if self.messages("TT_DEC").await == 2 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "no decisions: {ended:?}");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let mut found = Vec::new();
        for sequence in 1.. {
            let answer =
                api(&self.admin, "STREAM.MSG.GET.TT_DEC", &json!({ "next_by_subj": ">", "seq": sequence })).await;
            let Some(message) = answer["message"].as_object() else { break };
            if message["seq"].as_u64() != Some(sequence) {
                continue;
            }
            let data = BASE64.decode(message["data"].as_str().expect("a text")).expect("base64");
            found.push((
                message["subject"].as_str().expect("a text").to_owned(),
                Event::from_bytes(&data).expect("an event"),
            ));
        }
        self.purge("TT_DEC").await;
        found.sort_by(|a, b| a.1.subject.cmp(&b.1.subject));
        found.try_into().expect("two decisions")
    }

    /// Waits for the next dead letter: this event, given up by this role, for this reason.
    async fn buried(&self, before: u64, role: &str, what: &str, bytes: Option<&[u8]>, why: &str) {
        until!(format!("{what}: it is in the dead letters"), self.messages("TT_DLQ").await > before);
        // The letter comes first; until the event itself is gone nothing else fits under its subject.
        until!(format!("{what}: it is out of its queue"), role != "executor" || self.messages("TT_DEC").await == 0);
        let letter = self.last("TT_DLQ", &format!("trimtab.dlq.{role}.*")).await.expect("a letter");
        assert!(letter.headers.contains(&format!("Trimtab-Role: {role}")), "{what}: {letter:?}");
        assert!(letter.headers.contains(why), "{what}: {}, wanted {why:?}", letter.headers);
        if let Some(bytes) = bytes {
            assert_eq!(String::from_utf8_lossy(&letter.data), String::from_utf8_lossy(bytes), "{what}");
        }
    }

    /// Publishes as this user, and waits until it is given up.
    async fn refused(&self, user: &Client, role: &str, subject: &str, what: &str, event: &Event, why: &str) {
        let bytes = event.to_bytes().expect("small");
        let before = self.messages("TT_DLQ").await;
        user.publish(subject.to_owned(), bytes.clone().into()).await.expect("sent");
        self.buried(before, role, what, Some(&bytes), why).await;
    }

    /// Has the servers themselves store something under a subject, by naming it as where an answer goes: once by each thing that answers.
    async fn placed(&self, role: &str, subject: &str, genuine: &Event, forged: &Event) {
        let (scanner, operator) = (self.shipped.client("scanner").await, self.shipped.client("operator").await);
        let place = async |who: &Client, ask: &str, body: Vec<u8>| {
            let before = self.messages("TT_DLQ").await;
            who.publish_with_reply(ask.to_owned(), subject.to_owned(), body.into()).await.expect("sent");
            before
        };
        // What a read says of a document. The event is in it, in base64.
        let key = "$KV.tt_own.forged";
        scanner.publish(key, genuine.to_bytes().expect("small").into()).await.expect("sent");
        let wanted = json!({ "last_by_subj": key }).to_string();
        until!("the document is stored", self.last("KV_tt_own", key).await.is_some());
        let before = place(&scanner, "$JS.API.STREAM.MSG.GET.KV_tt_own", wanted.into_bytes()).await;
        self.buried(before, role, "the answer to MSG.GET", None, "not an event").await;
        // That a publish is stored.
        let before = place(&scanner, "$KV.tt_own.other", b"{}".to_vec()).await;
        self.buried(before, role, "the answer to a publish", None, "not an event").await;
        // That a request is refused.
        let before = place(&scanner, "$JS.API.CONSUMER.INFO.TT_REQ.scanner", b"{".to_vec()).await;
        self.buried(before, role, "what is said of a consumer", None, "not an event").await;
        // What a process says of itself when it is asked, and an executor may answer.
        for ask in ["$SRV.INFO.trimtab-executor", "trimtab.status.executor"] {
            let before = place(&operator, ask, Vec::new()).await;
            self.buried(before, role, "what a process says of itself", None, "not an event").await;
        }
        // A message that waits for oneself, put there by oneself: the servers hand it out as it is. Its signature remains what it was.
        let bytes = forged.to_bytes().expect("small");
        // The scanner was stopped before it looked once more at what it had done.
        self.purge("TT_REQ").await;
        scanner.publish("trimtab.req.forged", bytes.clone().into()).await.expect("sent");
        let before = place(
            &scanner,
            "$JS.API.CONSUMER.MSG.NEXT.TT_REQ.scanner",
            br#"{"batch":1,"expires":5000000000}"#.to_vec(),
        )
        .await;
        self.buried(before, role, "a message that was taken", Some(&bytes), "is not trusted here").await;
        self.purge("TT_REQ").await;
        // Copies of the true one, by who may make streams: read raw, and published again by a stream.
        let bytes = genuine.to_bytes().expect("small");
        let copy = json!({ "name": "COPY", "subjects": ["$SRV.COPY"], "allow_direct": true, "storage": "file" });
        let _ = api(&self.admin, "STREAM.CREATE.COPY", &copy).await;
        operator.publish("$SRV.COPY", bytes.clone().into()).await.expect("sent");
        until!("the copy is stored", self.messages("COPY").await > 0);
        let before = place(&self.admin, "$JS.API.DIRECT.GET.COPY", br#"{"seq":1}"#.to_vec()).await;
        self.buried(before, role, "a copy by DIRECT.GET", Some(&bytes), "copy out of stream COPY").await;
        let republish = json!({ "src": "$SRV.AGAIN", "dest": subject });
        let again = json!({ "name": "AGAIN", "subjects": ["$SRV.AGAIN"], "republish": republish, "storage": "file" });
        let _ = api(&self.admin, "STREAM.CREATE.AGAIN", &again).await;
        let before = self.messages("TT_DLQ").await;
        operator.publish("$SRV.AGAIN", bytes.clone().into()).await.expect("sent");
        self.buried(before, role, "a copy by a stream that publishes again", Some(&bytes), "copy out of stream AGAIN")
            .await;
        for stream in ["COPY", "AGAIN"] {
            let _ = api(&self.admin, &format!("STREAM.DELETE.{stream}"), &json!({})).await;
        }
    }
}

async fn api(client: &Client, call: &str, request: &Value) -> Value {
    let answer = client.request(format!("$JS.API.{call}"), request.to_string().into()).await.expect("answered");
    let answer: Value = serde_json::from_slice(&answer.payload).expect("JSON");
    let absent = answer["error"]["code"] == 404;
    assert!(absent || answer["error"].is_null(), "{call}: {answer}");
    answer
}

fn decision_of(event: &Event) -> Decision {
    match event.body().expect("a body") {
        Body::Decision(decision) => decision,
        other => panic!("{other:?}"),
    }
}

/// The same with other data, and the signature that it had.
fn with_data(event: &Event, body: impl Into<Value>) -> Event {
    let text = body.into().to_string();
    Event { data: serde_json::value::RawValue::from_string(text).expect("JSON").into(), ..event.clone() }
}

fn signed(event: &Event, by: &Signer) -> Event {
    let mut event = event.clone();
    by.sign(&mut event).expect("signed");
    event
}

/// What every kind of event is tried with, and the reason that is given for refusing it.
fn forgeries(genuine: &Event, other: &Event, wrong_role: &Signer) -> Vec<(&'static str, Event, &'static str)> {
    let mut unsigned = genuine.clone();
    (unsigned.signer, unsigned.signature, unsigned.proof) = (None, None, None);
    let pasted = Event {
        signer: other.signer.clone(),
        signature: other.signature.clone(),
        proof: other.proof.clone(),
        ..genuine.clone()
    };
    let mut proof = vec![1_u8; 33];
    proof[0] = 0;
    let mut data: Value = serde_json::from_str(genuine.data.get()).expect("JSON");
    data["id"].is_string().then(|| data["id"] = json!("00000000-0000-8000-8000-000000000000"));
    data["freed_bytes"].is_number().then(|| data["freed_bytes"] = json!(1_u64 << 40));
    vec![
        ("without a signature", unsigned, "is not signed"),
        ("signed by nobody who is known", signed(genuine, &Signer::ephemeral()), "is not trusted here"),
        ("signed by the other role's key", signed(genuine, wrong_role), "is not trusted here"),
        ("with the signature of another event", pasted, "signature does not fit"),
        ("with another proof", Event { proof: Some(BASE64.encode(proof)), ..genuine.clone() }, "does not fit"),
        (
            "with a proof that is none",
            Event { proof: Some("AAAA".to_owned()), ..genuine.clone() },
            "not a way through a tree",
        ),
        ("with a signature that is none", Event { signature: Some("%".to_owned()), ..genuine.clone() }, "base64"),
        (
            "under another name of its signer",
            Event { signer: Some(wrong_role.public_key()), ..genuine.clone() },
            "is not trusted",
        ),
        ("with other data", with_data(genuine, data), "signature does not fit"),
        ("with another id", Event { id: "x".to_owned(), ..genuine.clone() }, "signature does not fit"),
        ("about something else outside", Event { subject: other.subject.clone(), ..genuine.clone() }, "subject"),
        ("for another target outside", Event { target: "other".to_owned(), ..genuine.clone() }, "target"),
        ("under another key", Event { key: "k".to_owned(), ..genuine.clone() }, "key"),
        ("to do something else outside", Event { action: "x".to_owned(), ..genuine.clone() }, "action"),
    ]
}

fn records(state: &Path) -> Vec<Value> {
    let listed = run(state, &["audit", "list", "--output", "json"]).exits(0);
    listed
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|r: &Value| r["status"].is_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs nats-server"]
async fn what_is_forged_is_never_obeyed_nor_recorded_and_a_key_is_rotated_without_loss() {
    let world = World::new().await;
    let state = world.shipped.state.path();
    let [old, new, acts] =
        ["decider-old", "decider-new", "executor"].map(|name| new_key(state, &format!("{name}.seed")));
    let executor_key = Signer::from_file(Path::new(&acts.0)).expect("a key");
    let decider_key = Signer::from_file(Path::new(&old.0)).expect("a key");
    // Each of these works with what it is given: no decider and no audit knows how to reach the target.
    let mut scanner = world.start("scanner", Some("look"), &["--max-share", "1"]);
    let mut decider = world.start("decider", None, &["--seed-file", &old.0]);
    let audit = world.start("audit", None, &["--trust-executor", &acts.1]);

    let by_old = world.decisions().await;
    // The decider's key is rotated while decisions of the old one are on their way.
    decider.stop().expect("stopped");
    let _decider = world.start("decider", None, &["--seed-file", &new.0]);
    let by_new = world.decisions().await;
    // From here on it is in the hands of somebody else.
    scanner.stop().expect("stopped");
    let [(_, old_a), (at_b, old_b)] = &by_old;
    assert_eq!((old_a.signer.as_ref(), by_new[0].1.signer.as_ref()), (Some(&old.1), Some(&new.1)));

    let both = ["--apply", "--seed-file", &acts.0, "--trust-decider", &old.1, "--trust-decider", &new.1];
    let mut executor = world.start("executor", Some("act"), &both);
    let user = world.shipped.client("decider").await;
    for (what, forged, why) in forgeries(old_b, old_a, &executor_key) {
        world.refused(&user, "executor", at_b, what, &forged, why).await;
    }
    // Consistent in itself, about something else or to go further, with the signature of another.
    let mut about = decision_of(old_b);
    about.subject = format!("{}x", about.subject);
    let mut further = decision_of(old_b);
    if let Some(consume) = &mut further.consume {
        consume.to.entry += 1;
    }
    let mut target = decision_of(old_b);
    target.target = "other".to_owned();
    for (what, decision) in
        [("about something else", about), ("to go further", further), ("for another target", target)]
    {
        let target = decision.target.clone();
        let anew =
            Event::new(&*old_b.id, &old_b.source, &target, old_b.time, Trace::default(), decision).expect("small");
        let (signer, signature, proof) = (old_b.signer.clone(), old_b.signature.clone(), old_b.proof.clone());
        let forged = Event { signer, signature, proof, ..anew };
        world.refused(&user, "executor", at_b, what, &forged, "signature does not fit").await;
    }
    let unknown = signed(old_b, &Signer::ephemeral());
    world.placed("executor", at_b, old_b, &unknown).await;
    assert_eq!((world.held("A").await, world.held("B").await), (20, 20), "the target is as it was");
    assert!(records(&world.shipped.folder("executor")).is_empty(), "nothing was begun");
    assert!(records(&world.shipped.folder("audit")).is_empty());

    // That nothing else was wrong: the true one is obeyed, though its decider signs with another key by now.
    let obeyed = async |(subject, event): &(String, Event), stream: &str| {
        user.publish(subject.clone(), event.to_bytes().expect("small").into()).await.expect("sent");
        until!(format!("the true decision about {stream} is carried out"), world.held(stream).await == 0);
    };
    obeyed(&by_old[0], "A").await;
    assert_eq!(world.held("B").await, 20);
    // The old key is taken away: what it signed is refused from now on, and what the new one signs goes on.
    executor.stop().expect("stopped");
    let only_new = ["--apply", "--seed-file", &acts.0, "--trust-decider", &new.1];
    let _executor = world.start("executor", Some("act"), &only_new);
    world.refused(&user, "executor", at_b, "signed by a key that was taken away", old_b, "is not trusted here").await;
    assert_eq!(world.held("B").await, 20);
    obeyed(&by_new[1], "B").await;

    let recorded = async |count: usize| {
        let what = format!("the audit has recorded {count} outcomes; {}", audit.tail());
        until!(what, records(&world.shipped.folder("audit")).len() >= count);
        records(&world.shipped.folder("audit"))
    };
    let before = recorded(2).await;
    // Outcomes, as a process with the executor's user could publish them.
    let outcome = |of: Option<Stored>| Event::from_bytes(&of.expect("an outcome").data).expect("an event");
    let genuine = outcome(world.last("TT_RES", "trimtab.res.jetstream.done").await);
    let other = signed(&Event { id: "other".to_owned(), ..genuine.clone() }, &executor_key);
    let user = world.shipped.client("executor").await;
    let at = "trimtab.res.jetstream.done";
    for (what, forged, why) in forgeries(&genuine, &other, &decider_key) {
        // This one has the subject of the same thing.
        if what != "about something else outside" {
            world.refused(&user, "audit", at, what, &forged, why).await;
        }
    }
    world.refused(&user, "audit", at, "a decision as an outcome", old_b, "takes outcomes").await;
    let unknown = signed(&genuine, &Signer::ephemeral());
    world.placed("audit", at, &genuine, &unknown).await;
    assert_eq!(recorded(2).await, before, "nothing was added to the record");
    let _ = run(&world.shipped.folder("audit"), &["audit", "verify"]).exits(0);
}
