//! The conformance suites of the bus and the store on every implementation, and what only a real NATS server can show.

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{BoxFuture, join_all};
use tokio::time::{Instant, sleep, timeout};
use trimtab_bus::conformance::{self, BusRig, BusUnderTest, StoreRig, event, quick};
use trimtab_bus::{
    Bus, BusError, BusOptions, Credentials, Expect, InProcess, JetStream, KvStore, MemoryStore, NatsOptions, Published,
    Role, SqliteStore, Store, Tls,
};
use trimtab_events::Event;
use trimtab_tests::nats;

/// A server of its own for one test, ended with it.
struct Nats {
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

/// Starts `nats-server`, found in `$NATS_SERVER` or on the path, with more configuration if wanted.
async fn start_nats(more: &str) -> Nats {
    let folder = tempfile::tempdir().expect("a folder");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let store = folder.path().join("store");
    let config = format!("listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store:?} }}\n{more}\n");
    std::fs::write(folder.path().join("nats.conf"), config).expect("written");
    let child = spawn_nats(&folder);
    let mut nats = Nats { folder, port, child };
    nats.wait().await;
    nats
}

fn spawn_nats(folder: &tempfile::TempDir) -> Child {
    let binary = std::env::var_os("NATS_SERVER").unwrap_or_else(|| "nats-server".into());
    Command::new(&binary)
        .arg("-c")
        .arg(folder.path().join("nats.conf"))
        .arg("-l")
        .arg(folder.path().join("nats.log"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {binary:?}: {e}; put nats-server on the path or set NATS_SERVER"))
}

impl Nats {
    async fn wait(&mut self) {
        for _ in 0..500 {
            let log = std::fs::read_to_string(self.folder.path().join("nats.log")).unwrap_or_default();
            if log.contains("Server is ready") && tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok()
            {
                return;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("nats-server ended: {status}\n{log}");
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("nats-server does not become ready");
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
        std::fs::remove_file(self.folder.path().join("nats.log")).expect("there was a log");
    }

    async fn start_again(&mut self) {
        self.child = spawn_nats(&self.folder);
        self.wait().await;
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn options(&self, bus: BusOptions) -> NatsOptions {
        NatsOptions { servers: vec![self.url()], bus, create: true, ..NatsOptions::default() }
    }

    async fn bus(&self, bus: BusOptions) -> Arc<JetStream> {
        Arc::new(JetStream::connect(self.options(bus)).await.expect("connected"))
    }

    async fn client(&self) -> async_nats::jetstream::Context {
        async_nats::jetstream::new(async_nats::connect(self.url()).await.expect("connected"))
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct InProcessRig;

impl BusRig for InProcessRig {
    fn fresh(&self, options: BusOptions) -> BoxFuture<'_, BusUnderTest> {
        Box::pin(async move {
            let bus = Arc::new(InProcess::new(options));
            let queue = Arc::clone(&bus);
            let inject = move |role, bytes| -> BoxFuture<'static, ()> {
                let queue = Arc::clone(&queue);
                Box::pin(async move { queue.publish_bytes(role, bytes).await.expect("room") })
            };
            BusUnderTest { bus, inject: Box::new(inject) }
        })
    }
}

struct SqliteRig(tempfile::TempDir, AtomicU32);

impl StoreRig for SqliteRig {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let path = self.0.path().join(format!("{}.db", self.1.fetch_add(1, Ordering::Relaxed)));
        Box::pin(async move { Arc::new(SqliteStore::open(path).expect("new")) as Arc<dyn Store> })
    }
}

/// A new server for each check; they end with the rig.
#[derive(Default)]
struct NatsRig(tokio::sync::Mutex<Vec<Nats>>);

impl BusRig for NatsRig {
    fn fresh(&self, options: BusOptions) -> BoxFuture<'_, BusUnderTest> {
        Box::pin(async move {
            let nats = start_nats("").await;
            let (bus, client) = (nats.bus(options).await, nats.client().await);
            let mut servers = self.0.lock().await;
            servers.clear();
            servers.push(nats);
            let number = AtomicU32::new(0);
            let inject = move |role, bytes: Vec<u8>| -> BoxFuture<'static, ()> {
                let subject = raw_subject(role, number.fetch_add(1, Ordering::Relaxed));
                let client = client.clone();
                Box::pin(async move {
                    client.publish(subject, bytes.into()).await.expect("sent").await.expect("stored");
                })
            };
            BusUnderTest { bus, inject: Box::new(inject) }
        })
    }
}

impl StoreRig for NatsRig {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let nats = start_nats("").await;
            let store = KvStore::connect(&nats.options(BusOptions::default())).await.expect("connected");
            let mut servers = self.0.lock().await;
            servers.clear();
            servers.push(nats);
            Arc::new(store) as Arc<dyn Store>
        })
    }
}

fn raw_subject(role: Role, number: u32) -> String {
    match role {
        Role::Scanner => "trimtab.req.t".to_owned(),
        Role::Decider => "trimtab.cand.t.ledger.0".to_owned(),
        Role::Executor => format!("trimtab.dec.t.trim.0.raw{number}"),
        Role::Audit => "trimtab.res.t.done".to_owned(),
        Role::Recovery => format!("trimtab.job.t.0.raw{number}"),
        Role::Finisher => "trimtab.rep.t.verified".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_process_bus_conforms() {
    conformance::bus(&InProcessRig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_store_conforms() {
    conformance::store(&SqliteRig(tempfile::tempdir().expect("a folder"), AtomicU32::new(0))).await;
}

#[tokio::test(start_paused = true)]
async fn memory_store_conforms() {
    struct MemoryRig;
    impl StoreRig for MemoryRig {
        fn fresh(&self) -> BoxFuture<'_, Arc<dyn Store>> {
            Box::pin(async { Arc::new(MemoryStore::default()) as Arc<dyn Store> })
        }
    }
    conformance::store(&MemoryRig).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_bus_conforms() {
    conformance::bus(&NatsRig::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_store_conforms() {
    conformance::store(&NatsRig::default()).await;
}

/// Publishers and takers go on over the death of the server; each event is handled at least once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_killed_in_the_middle_loses_nothing() {
    const EVENTS: usize = 4_000;
    let mut nats = start_nats("").await;
    let bus = nats.bus(BusOptions { ack_wait: Duration::from_secs(3), ..quick() }).await;
    let seen = Arc::new(std::sync::Mutex::new(HashSet::new()));
    let takers: Vec<_> = (0..4)
        .map(|_| {
            let (bus, seen) = (Arc::clone(&bus), Arc::clone(&seen));
            tokio::spawn(async move {
                while let Ok(got) = bus.take(Role::Executor).await {
                    let id = got.event.as_ref().expect("an event").id.clone();
                    sleep(Duration::from_micros(300)).await;
                    // An acknowledgement may be lost with the server; the event comes again then.
                    if got.settle.done().await.is_ok() {
                        seen.lock().expect("no panic").insert(id);
                    }
                }
            })
        })
        .collect();
    let publishers: Vec<_> = (0..8)
        .map(|p| {
            let bus = Arc::clone(&bus);
            tokio::spawn(async move {
                for n in (p..EVENTS).step_by(8) {
                    let event = event(Role::Executor, &n.to_string(), &n.to_string());
                    bus.publish(&event).await.expect("published in the end");
                }
            })
        })
        .collect();
    for _ in 0..2 {
        let before = seen.lock().expect("no panic").len();
        while seen.lock().expect("no panic").len() < (before + EVENTS / 4).min(EVENTS) {
            sleep(Duration::from_millis(2)).await;
        }
        nats.kill();
        sleep(Duration::from_millis(700)).await;
        nats.start_again().await;
    }
    for publisher in publishers {
        publisher.await.expect("no panic");
    }
    let end = Instant::now() + Duration::from_secs(40);
    while seen.lock().expect("no panic").len() < EVENTS {
        assert!(Instant::now() < end, "{} of {EVENTS} were handled", seen.lock().expect("no panic").len());
        sleep(Duration::from_millis(50)).await;
    }
    while bus.depth(Role::Executor).await.expect("depth") > 0 {
        assert!(Instant::now() < end, "something is left over");
        sleep(Duration::from_millis(50)).await;
    }
    bus.close().await;
    for taker in takers {
        taker.await.expect("no panic");
    }
}

/// Takers that wait when the server dies get what is published after it came back, without waiting for a time-out.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_restarted_is_found_again_soon() {
    let mut nats = start_nats("").await;
    let bus = nats.bus(quick()).await;
    let waiting = {
        let bus = Arc::clone(&bus);
        tokio::spawn(async move { bus.take(Role::Scanner).await.map(|got| got.event.map(|event| event.id)) })
    };
    sleep(Duration::from_millis(200)).await;
    nats.kill();
    nats.start_again().await;
    let started = Instant::now();
    bus.publish(&event(Role::Scanner, "a", "x")).await.expect("published");
    let got = timeout(Duration::from_secs(20), waiting).await.expect("in time").expect("no panic").expect("taken");
    assert_eq!(got.as_deref(), Ok("a"));
    assert!(started.elapsed() < Duration::from_secs(6), "took {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_workers_leave_nothing_behind() {
    let nats = start_nats("").await;
    let _admin = nats.bus(quick()).await;
    let client = nats.client().await;
    let count = async || {
        let mut consumers = Vec::new();
        for stream in ["TT_REQ", "TT_CAND", "TT_DEC", "TT_RES", "TT_DLQ", "TT_ADV"] {
            let info = client.get_stream(stream).await.expect("there").get_info().await.expect("there");
            consumers.push(info.state.consumer_count);
        }
        consumers
    };
    let before = count().await;
    assert_eq!(before, [1, 1, 1, 1, 0, 1]);
    for _ in 0..50 {
        let bus = JetStream::connect(NatsOptions { create: false, ..nats.options(quick()) }).await.expect("connected");
        let takes = Role::ALL.map(|role| timeout(Duration::from_millis(20), bus.take(role)));
        assert!(join_all(takes).await.iter().all(Result::is_err));
    }
    assert_eq!(count().await, before);
    // Nor do requests of the dead swallow events.
    let bus = nats.bus(quick()).await;
    bus.publish(&event(Role::Executor, "a", "x")).await.expect("published");
    let got = timeout(Duration::from_secs(5), bus.take(Role::Executor)).await.expect("in time").expect("taken");
    assert_eq!(got.tries, 1);
}

/// What one process got and did not look at goes to another at once when the first closes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_closing_gives_back_what_was_not_taken() {
    let nats = start_nats("").await;
    let options = BusOptions { ack_wait: Duration::from_secs(60), ..quick() };
    let (first, second) = (nats.bus(options.clone()).await, nats.bus(options).await);
    for n in 0..10 {
        first.publish(&event(Role::Audit, &n.to_string(), "x")).await.expect("published");
    }
    // Audit asks ahead: the other nine are in this process.
    let mine = first.take(Role::Audit).await.expect("taken");
    sleep(Duration::from_millis(300)).await;
    first.close().await;
    for _ in 0..9 {
        let got = timeout(Duration::from_secs(5), second.take(Role::Audit)).await.expect("in time").expect("taken");
        assert!(got.tries <= 2, "it went to the first again, {} times", got.tries);
        got.settle.done().await.expect("settled");
    }
    mine.settle.done().await.expect("settled");
    first.flush().await.expect("sent");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_set_up_twice_and_never_altered() {
    let nats = start_nats("").await;
    let bus = nats.bus(quick()).await;
    bus.setup().await.expect("nothing to do");
    bus.verify().await.expect("as it must be");
    for role in Role::ALL {
        bus.verify_role(role).await.expect("as it must be");
    }
    // A limit is the owner's choice: workers go on, the set-up says it.
    let other = NatsOptions { create: false, ..nats.options(BusOptions { queue_events: 5, ..quick() }) };
    let other = JetStream::connect(other).await.expect("connected");
    other.verify().await.expect("only a limit");
    let text = other.setup().await.expect_err("differs").to_string();
    assert!(text.contains("TT_REQ") && text.contains("max_msgs is 10000, wanted 5"), "{text}");
    // The time to acknowledge is a promise.
    let other =
        NatsOptions { create: false, ..nats.options(BusOptions { ack_wait: Duration::from_secs(77), ..quick() }) };
    let other = JetStream::connect(other).await.expect("connected");
    let text = other.verify_role(Role::Decider).await.expect_err("differs").to_string();
    assert!(
        text.contains("consumer decider of stream TT_CAND") && text.contains("ack_wait is 1s, wanted 77s"),
        "{text}"
    );

    let nats = start_nats("").await;
    let client = nats.client().await;
    let config = async_nats::jetstream::stream::Config {
        name: "TT_DEC".to_owned(),
        subjects: vec!["trimtab.dec.>".to_owned()],
        ..Default::default()
    };
    client.create_stream(config).await.expect("made");
    let text = JetStream::connect(nats.options(quick())).await.err().expect("refused").to_string();
    for part in ["stream TT_DEC", "retention is Limits, wanted WorkQueue", "max_msgs_per_subject is -1, wanted 1"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let info = client.get_stream("TT_DEC").await.expect("there").get_info().await.expect("there");
    assert_eq!(info.config.subjects, ["trimtab.dec.>"], "nothing was changed");

    let nats = start_nats("").await;
    let bare = JetStream::connect(NatsOptions { create: false, ..nats.options(quick()) }).await.expect("connected");
    let text = bare.verify().await.expect_err("nothing there").to_string();
    assert!(text.contains("TT_REQ") && text.contains("does not exist"), "{text}");
}

/// Whoever may read may have the server place a message anywhere, by naming a subject of ours for the answer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_copies_made_by_reading_are_refused() {
    let nats = start_nats("").await;
    let bus = nats.bus(quick()).await;
    let client = nats.client().await;
    let config = async_nats::jetstream::stream::Config {
        name: "SRC".to_owned(),
        subjects: vec!["src".to_owned()],
        allow_direct: true,
        ..Default::default()
    };
    client.create_stream(config).await.expect("made");
    let forged = event(Role::Executor, "forged", "x");
    client.publish("src", forged.to_bytes().expect("small").into()).await.expect("sent").await.expect("stored");
    let reply = format!("trimtab.dec.t.trim.{}.{}", forged.shard(), forged.key);
    client.client().publish_with_reply("$JS.API.DIRECT.GET.SRC", reply, "{\"seq\":1}".into()).await.expect("sent");
    let got = timeout(Duration::from_secs(5), bus.take(Role::Executor)).await.expect("in time").expect("taken");
    let malformed = got.event.expect_err("refused");
    assert!(malformed.why.contains("stream SRC"), "{}", malformed.why);
    assert_eq!(malformed.bytes, forged.to_bytes().expect("small"));
    got.settle.dead(malformed.why).await.expect("settled");
    assert_eq!(bus.dead(10).await.expect("letters").len(), 1);
}

/// Pages travel packed. One that is damaged is no event, like any other that is none, and letters about pages can be read.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_packed_pages_that_are_damaged_are_given_up() {
    let nats = start_nats("").await;
    let bus = nats.bus(quick()).await;
    let client = nats.client().await;
    let mut page = event(Role::Decider, "page", "x");
    let text = format!("[{}0]", r#"{"a candidate":1},"#.repeat(1_000));
    page.data = serde_json::value::RawValue::from_string(text).expect("JSON").into();
    bus.publish(&page).await.expect("published");
    let stored = client.get_stream("TT_CAND").await.expect("there").get_raw_message(1).await.expect("stored");
    let whole = page.to_bytes().expect("small");
    let encoding = stored.headers.get("Content-Encoding").map(async_nats::HeaderValue::as_str);
    assert_eq!(encoding, Some("snappy"));
    assert!(stored.payload.len() < whole.len() / 4, "{} of {}", stored.payload.len(), whole.len());

    let taken = async || {
        let got = timeout(Duration::from_secs(5), bus.take(Role::Decider)).await.expect("in time").expect("taken");
        (got.event, got.settle)
    };
    let (event, settle) = taken().await;
    assert_eq!(event.expect("an event").to_bytes().expect("small"), whole);
    settle.dead("as a test".to_owned()).await.expect("settled");
    assert_eq!(bus.dead(10).await.expect("letters")[0].event.as_bytes(), whole);

    let cut = stored.payload.slice(..stored.payload.len() / 2);
    let plain = bytes::Bytes::from(whole.clone());
    let damaged =
        [("snappy", cut), ("snappy", plain), ("gzip", stored.payload.clone()), ("snappy", bytes::Bytes::new())];
    for (encoding, payload) in damaged {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Content-Encoding", encoding);
        let sent = client.publish_with_headers(stored.subject.clone(), headers, payload.clone()).await.expect("sent");
        sent.await.expect("stored");
        let (event, settle) = taken().await;
        let malformed = event.expect_err("damaged");
        assert!(malformed.why.contains("Content-Encoding"), "{}", malformed.why);
        assert_eq!(malformed.bytes, payload);
        settle.dead(malformed.why).await.expect("settled");
    }
    assert_eq!(bus.dead(10).await.expect("letters").len(), 5);
}

/// Workers that die of an event before they can give it up leave it to the janitor.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_janitor_buries_what_nobody_settled() {
    let nats = start_nats("").await;
    let bus = nats.bus(BusOptions { ack_wait: Duration::from_millis(200), max_deliver: 1, ..quick() }).await;
    let sent = event(Role::Executor, "poison", "x");
    bus.publish(&sent).await.expect("published");
    let client = nats.client().await;
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        client.get_consumer_from_stream("executor", "TT_DEC").await.expect("there");
    // The server gives a message up when somebody asks for the next one, so the asking goes on after the last delivery.
    let ask = async || {
        let mut batch = consumer.fetch().max_messages(1).messages().await.expect("fetched");
        let mut messages = 0;
        while let Some(message) = batch.next().await {
            drop(message.expect("a message"));
            messages += 1;
        }
        sleep(Duration::from_millis(50)).await;
        messages
    };
    let mut deliveries = 0;
    let mut buried = 0;
    let end = Instant::now() + Duration::from_secs(15);
    while buried == 0 && Instant::now() < end {
        deliveries += ask().await;
        buried = bus.janitor_pass().await.expect("a pass");
    }
    assert_eq!(deliveries, 4, "one try and three to spare");
    assert_eq!(buried, 1);
    assert_eq!(bus.janitor_pass().await.expect("a pass"), 0);
    let letters = bus.dead(10).await.expect("letters");
    assert_eq!((letters.len(), letters[0].role.as_str()), (1, "executor"));
    assert_eq!(letters[0].event.as_bytes(), sent.to_bytes().expect("small"));
    assert_eq!(bus.publish(&sent).await.expect("published"), Published::Stored, "its key is free");
}

/// Without the right to publish somewhere there is no answer, only a time-out; the reason is told all the same.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_missing_permissions_are_named() {
    let users = r#"authorization { users: [
        { user: admin, password: a },
        { user: audit, password: b, permissions: {
            publish: ["$JS.API.CONSUMER.INFO.TT_RES.audit", "$JS.API.CONSUMER.MSG.NEXT.TT_RES.audit", "$JS.ACK.TT_RES.audit.>"],
            subscribe: ["_INBOX_audit.>"] } } ] }"#;
    let nats = start_nats(users).await;
    let as_user = |user: &str, password: &str| NatsOptions {
        credentials: Credentials::UserPassword { user: user.to_owned(), password: password.to_owned() },
        ..nats.options(quick())
    };
    let admin = JetStream::connect(as_user("admin", "a")).await.expect("connected");
    admin.publish(&event(Role::Audit, "a", "x")).await.expect("published");
    let text = JetStream::connect(as_user("admin", "wrong")).await.err().expect("refused").to_string();
    assert!(text.contains("refused") && !text.contains("wrong"), "{text}");
    let options = NatsOptions { create: false, inbox_prefix: Some("_INBOX_audit".to_owned()), ..as_user("audit", "b") };
    let audit = JetStream::connect(options).await.expect("connected");
    audit.verify_role(Role::Audit).await.expect("allowed");
    let got = timeout(Duration::from_secs(5), audit.take(Role::Audit)).await.expect("in time").expect("taken");
    got.settle.done().await.expect("settled");
    let refused = audit.publish(&event(Role::Executor, "a", "x")).await;
    let Err(BusError::Refused { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(why.contains("permissions violation") && why.contains("give this user"), "{why}");
    let refused = audit.verify_role(Role::Executor).await;
    assert!(matches!(refused, Err(BusError::Refused { .. })), "{refused:?}");
}

/// The two sides of a recovery with the users that are shipped.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_lanes_need_no_more_than_the_users_that_are_shipped_may() {
    let pairs = nats::ROLES.map(|role| (role, nkeys::KeyPair::new_user()));
    let folder = tempfile::tempdir().expect("a folder");
    let keys: Vec<(&str, String)> = pairs
        .iter()
        .map(|(role, pair)| {
            std::fs::write(folder.path().join(role), pair.seed().expect("a seed")).expect("written");
            (*role, pair.public_key())
        })
        .collect();
    let rig = tokio::task::spawn_blocking(move || {
        let keys: Vec<(&str, &str)> = keys.iter().map(|(role, key)| (*role, key.as_str())).collect();
        nats::NatsRig::builder().shipped(&keys).start().expect("nats-server")
    })
    .await
    .expect("a rig");
    let role = async |user: &str| {
        let options = NatsOptions {
            servers: rig.urls(),
            credentials: Credentials::NkeySeedFile(folder.path().join(user)),
            inbox_prefix: Some(format!("_INBOX_{user}")),
            create: user == "admin",
            bus: quick(),
            ..NatsOptions::default()
        };
        JetStream::connect(options).await.expect("connected")
    };
    let _admin = role("admin").await;
    let (recover, recovery) = (role("recover").await, role("recovery").await);
    let within = Duration::from_secs(5);
    recover.publish(&event(Role::Recovery, "job", "x")).await.expect("published");
    let got = timeout(within, recovery.take_lane(Role::Recovery, "t")).await.expect("in time").expect("taken");
    recovery.publish(&event(Role::Finisher, "report", "x")).await.expect("published");
    got.settle.done().await.expect("settled");
    let got = timeout(within, recover.take_lane(Role::Finisher, "t")).await.expect("in time").expect("taken");
    got.settle.dead("to see that it may".to_owned()).await.expect("buried");
    let outcome = Event { action: "recovered".to_owned(), ..event(Role::Audit, "outcome", "x") };
    recover.publish(&outcome).await.expect("published");
    let refused = recovery.publish(&event(Role::Recovery, "forged", "y")).await;
    assert!(matches!(refused, Err(BusError::Refused { .. })), "{refused:?}");
}

/// The pair of keys that the NATS documentation uses.
const NKEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
const NKEY_SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_users_with_nkeys_and_missing_files() {
    let nats = start_nats(&format!("authorization {{ users: [ {{ nkey: {NKEY} }} ] }}")).await;
    let seed = nats.folder.path().join("seed");
    std::fs::write(&seed, format!("{NKEY_SEED}\n")).expect("written");
    let with = |credentials| NatsOptions { credentials, ..nats.options(quick()) };
    JetStream::connect(with(Credentials::NkeySeedFile(seed.clone()))).await.expect("connected");
    let text = JetStream::connect(with(Credentials::None)).await.err().expect("refused").to_string();
    assert!(text.contains("refused"), "{text}");
    let absent = nats.folder.path().join("absent");
    for credentials in [Credentials::NkeySeedFile(absent.clone()), Credentials::CredsFile(absent.clone())] {
        let text = JetStream::connect(with(credentials)).await.err().expect("refused").to_string();
        assert!(text.contains("absent") && !text.contains(NKEY_SEED), "{text}");
    }
    std::fs::write(&seed, "not a seed").expect("written");
    let text = JetStream::connect(with(Credentials::NkeySeedFile(seed))).await.err().expect("refused").to_string();
    assert!(text.contains("connect to NATS") && !text.contains("not a seed"), "{text}");
    let tls = Tls { ca: Some(absent), ..Tls::default() };
    let text =
        JetStream::connect(NatsOptions { tls, ..nats.options(quick()) }).await.err().expect("refused").to_string();
    assert!(text.contains("absent"), "{text}");
    let nobody = NatsOptions { servers: vec!["nats://127.0.0.1:1".to_owned()], ..nats.options(quick()) };
    let refused = JetStream::connect(nobody).await.err().expect("nobody there");
    assert!(matches!(refused, BusError::Unavailable { .. }), "{refused}");
}

/// Both sides show certificates, and names of users come from them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server and openssl"]
async fn nats_over_tls_with_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(folder.path()).output();
        let output = output.expect("openssl on the path");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=ca -days 2"));
    for (name, usage) in [("server", "subjectAltName=IP:127.0.0.1"), ("client", "subjectAltName=email:worker@trimtab")]
    {
        openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        std::fs::write(path(&format!("{name}.ext")), usage).expect("written");
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile {name}.ext"
        ));
    }
    let server = |file: &str| format!("{:?}", path(file));
    let nats = start_nats(&format!(
        "tls {{ cert_file: {}, key_file: {}, ca_file: {}, verify_and_map: true }}
         authorization {{ users: [ {{ user: \"worker@trimtab\" }} ] }}",
        server("server.pem"),
        server("server.key"),
        server("ca.pem")
    ))
    .await;
    let tls =
        Tls { ca: Some(path("ca.pem")), cert: Some(path("client.pem")), key: Some(path("client.key")), required: true };
    let bus = JetStream::connect(NatsOptions { tls: tls.clone(), ..nats.options(quick()) }).await.expect("connected");
    bus.publish(&event(Role::Audit, "a", "x")).await.expect("published");
    for tls in
        [Tls { cert: None, ..tls.clone() }, Tls { cert: None, key: None, ..tls.clone() }, Tls { ca: None, ..tls }]
    {
        let text =
            JetStream::connect(NatsOptions { tls, ..nats.options(quick()) }).await.err().expect("refused").to_string();
        assert!(text.contains("connect to NATS at"), "{text}");
    }
}

/// Leases outlive the server's death, and fences and revisions grow on over the loss of a whole bucket.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn nats_leases_outlive_the_server() {
    let mut nats = start_nats("").await;
    let bus = nats.bus(quick()).await;
    let store = bus.store();
    let ttl = Duration::from_secs(4);
    let mut lease = store.acquire("scan/x", "a", ttl).await.expect("works").expect("free");
    let revision = store.put("checkpoints", "x", b"1", Expect::Absent).await.expect("works");
    let started = Instant::now();
    nats.kill();
    nats.start_again().await;
    assert_eq!(store.acquire("scan/x", "b", ttl).await.expect("works"), None, "still held");
    store.renew(&mut lease, "a").await.expect("still mine");
    let second = loop {
        match store.acquire("scan/x", "b", ttl).await.expect("works") {
            Some(lease) => break lease,
            None => sleep(Duration::from_millis(50)).await,
        }
        assert!(started.elapsed() < ttl * 4, "it does not end");
    };
    assert!(second.fence > lease.fence);
    let client = nats.client().await;
    for bucket in ["KV_tt_lease", "KV_tt_checkpoints"] {
        client.delete_stream(bucket).await.expect("deleted");
    }
    // The first access may find the loss out.
    let _ = store.get("checkpoints", "x").await;
    let _ = store.acquire("scan/x", "c", ttl).await;
    assert_eq!(store.get("checkpoints", "x").await.expect("made anew"), None);
    let stale = store.put("checkpoints", "x", b"2", Expect::Revision(revision)).await;
    assert!(matches!(stale, Err(BusError::Conflict { .. })), "{stale:?}");
    assert!(store.put("checkpoints", "x", b"2", Expect::Absent).await.expect("works") > revision);
    let third = store.acquire("scan/y", "c", ttl).await.expect("works").expect("free");
    assert!(third.fence > second.fence, "{} after {}", third.fence, second.fence);
}
