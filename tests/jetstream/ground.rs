//! Servers, streams and consumers, and somebody who acts on them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::{Client, Subscriber};
use futures::future::{BoxFuture, FutureExt};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use trimtab_events::{
    Candidate, Decision, History, JetStreamConsumer, JetStreamStream, Log, ScanRef, Scope, SubscriberCandidate,
};
use trimtab_policy::{Action, Context, Policy, PolicyConfig, Rule, check_any, decide_any, narrow, reinstate};
use trimtab_targets::jetstream::{Account, Dial, JetStreamAct, JetStreamInventory, Moment, Times, Wire};
use trimtab_targets::{Act, Effect, Inventory, Item, Mode, Pace, Permit, Reads, Record, TargetError};
use trimtab_tests::nats::{Builder, NatsRig};
use trimtab_tests::now_ms;

/// Times that make tests short. The hold is long enough for what they do meanwhile.
pub(crate) const QUICK: Times = Times {
    hold: Duration::from_secs(90),
    probe: Duration::from_millis(700),
    look_every: Duration::from_millis(100),
    within: Duration::from_secs(60),
    settle: Duration::from_secs(10),
};

/// How long anything is waited for. Only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
macro_rules! until {
    ($what:expr, $so:expr) => {{
        let begun = std::time::Instant::now();
        while !$so {
            assert!(begun.elapsed() < $crate::ground::PATIENCE, "{}: not within a minute", $what);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }};
}
pub(crate) use until;

pub(crate) struct Ground {
    pub(crate) rig: NatsRig,
    pub(crate) client: Client,
    pub(crate) inventory: Arc<JetStreamInventory>,
}

/// Somebody who takes messages of a consumer.
pub(crate) struct Reader {
    client: Client,
    stream: String,
    consumer: String,
    inbox: Subscriber,
    reply: String,
}

pub(crate) fn permit() -> Permit {
    Permit::for_mode(Mode::Apply).unwrap()
}

/// A client of a rig that has nothing to do with trimtab. Passwords are the names.
pub(crate) async fn client(rig: &NatsRig, user: Option<&str>) -> Client {
    let options = async_nats::ConnectOptions::new().reconnect_delay_callback(|_| Duration::from_millis(100));
    let options = match user {
        Some(user) => options.user_and_password(user.to_owned(), user.to_owned()),
        None => options,
    };
    let servers: Vec<async_nats::ServerAddr> = rig.urls().iter().map(|url| url.parse().unwrap()).collect();
    options.connect(servers).await.unwrap()
}

/// Connections to these servers, as the target wants them.
pub(crate) async fn account(url: &str, name: Option<&str>, user: Option<&str>) -> Result<Account, TargetError> {
    let options = trimtab_bus::NatsOptions {
        servers: url.split(',').map(str::to_owned).collect(),
        credentials: user.map_or(trimtab_bus::Credentials::None, |user| trimtab_bus::Credentials::UserPassword {
            user: user.to_owned(),
            password: user.to_owned(),
        }),
        inbox_prefix: user.map(|user| format!("_INBOX_{user}")),
        ..trimtab_bus::NatsOptions::default()
    };
    let shared = trimtab_bus::Connection::open(&options).await.unwrap();
    let brief = trimtab_bus::NatsOptions { brief: true, ..options };
    let dial: Dial = Arc::new(move || {
        let brief = brief.clone();
        async move { trimtab_bus::Connection::open(&brief).await.map(wire).map_err(|e| e.to_string()) }.boxed()
    });
    Account::open(wire(shared), dial, name.map(str::to_owned), None).await
}

fn wire(connection: trimtab_bus::Connection) -> Wire {
    let client = connection.client.clone();
    Wire { client, refusal: Arc::new(move |subject, since| connection.refusal(subject, since)) }
}

pub(crate) fn inventory(accounts: Vec<Account>) -> Arc<JetStreamInventory> {
    Arc::new(JetStreamInventory::new(accounts, Arc::new(Pace::new(0.0).unwrap())).unwrap())
}

/// Remembers what an act took down.
#[derive(Default)]
pub(crate) struct Taken(pub(crate) Mutex<Vec<Value>>);

impl Record for Taken {
    fn record(&self, evidence: Value) -> BoxFuture<'_, Result<(), TargetError>> {
        self.0.lock().unwrap().push(evidence);
        futures::future::ready(Ok(())).boxed()
    }
}

pub(crate) fn seconds(seconds: u64) -> Value {
    json!(seconds * 1_000_000_000)
}

impl Ground {
    pub(crate) async fn new() -> Ground {
        Ground::of(NatsRig::builder()).await
    }

    pub(crate) async fn of(builder: Builder) -> Ground {
        // Processes die here, machines do not: nothing is lost without an fsync for each message.
        let rig = tokio::task::spawn_blocking(|| builder.sync_interval("2m").start().unwrap()).await.unwrap();
        let client = client(&rig, None).await;
        let account = account(&rig.url(), None, None).await.unwrap();
        assert_eq!(account.name(), "$G");
        Ground { rig, client, inventory: inventory(vec![account]) }
    }

    /// A request to the JetStream interface; repeated while nobody leads.
    pub(crate) async fn api(&self, tail: &str, body: Value) -> Value {
        api(&self.client, tail, body).await
    }

    /// A stream for `<lower-case name>.>`.
    pub(crate) async fn stream(&self, name: &str, more: Value) {
        let mut config = json!({
            "name": name, "subjects": [format!("{}.>", name.to_lowercase())], "retention": "interest", "storage": "file",
            "num_replicas": 1, "max_consumers": -1, "allow_direct": true,
        });
        config.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let made = self.api(&format!("STREAM.CREATE.{name}"), config).await;
        assert!(made["error"].is_null(), "{made}");
    }

    /// A durable pull consumer, unless the configuration says otherwise.
    pub(crate) async fn consumer(&self, stream: &str, name: &str, more: Value) {
        consumer(&self.client, stream, name, more).await;
    }

    /// Publishes so many messages of 1,000 bytes.
    pub(crate) async fn publish(&self, subject: &str, count: usize) {
        publish(&self.client, subject, count).await;
    }

    pub(crate) async fn reader(&self, stream: &str, consumer: &str) -> Reader {
        reader(&self.client, stream, consumer).await
    }

    /// Takes and acknowledges so many messages.
    pub(crate) async fn drain(&self, stream: &str, consumer: &str, count: usize) -> Vec<u64> {
        let mut reader = self.reader(stream, consumer).await;
        reader.ask(count).await;
        let got = reader.take(count).await;
        assert_eq!(got.len(), count, "{stream} {consumer}");
        got
    }

    /// Everything that a consumer is still owed, to somebody who comes now: until its servers say that there is nothing more. What was just
    /// stored they count a moment later, so there must have been `at_least` so many.
    pub(crate) async fn owed(&self, stream: &str, consumer: &str, at_least: usize) -> Vec<u64> {
        let mut got = Vec::new();
        until!("everything is taken", {
            let info = self.info(stream, consumer).await;
            let open = info["num_pending"].as_u64().unwrap() + info["num_ack_pending"].as_u64().unwrap();
            if open > 0 {
                let mut reader = self.reader(stream, consumer).await;
                reader.ask(usize::try_from(open).unwrap()).await;
                got.extend(reader.take(usize::try_from(open).unwrap()).await);
            }
            open == 0 && got.len() >= at_least
        });
        got
    }

    /// Waits until a consumer says this of itself.
    pub(crate) async fn says(&self, stream: &str, consumer: &str, key: &str, value: impl Into<Value>) {
        let value = value.into();
        until!(format!("{key} of {consumer}"), self.info(stream, consumer).await[key] == value);
    }

    /// Messages, bytes and first sequence of a stream.
    pub(crate) async fn held(&self, stream: &str) -> (u64, u64, u64) {
        let info = self.api(&format!("STREAM.INFO.{stream}"), Value::Null).await;
        let number = |key: &str| info["state"][key].as_u64().unwrap();
        (number("messages"), number("bytes"), number("first_seq"))
    }

    pub(crate) async fn info(&self, stream: &str, consumer: &str) -> Value {
        self.api(&format!("CONSUMER.INFO.{stream}.{consumer}"), Value::Null).await
    }

    pub(crate) async fn observe(&self, stream: &str) -> SubscriberCandidate {
        let subject = format!("jetstream://$G/{stream}");
        match self.inventory.observe(&subject).await.unwrap() {
            Some(Candidate::Subscriber(log)) => *log,
            other => panic!("{other:?}"),
        }
    }

    /// The same, all idle for ten days as far as our own scans saw, except those that are named.
    pub(crate) async fn idle(&self, stream: &str, alive: &[&str]) -> SubscriberCandidate {
        let mut log = self.observe(stream).await;
        for subscriber in log.subscribers.iter_mut().filter(|subscriber| !alive.contains(&subscriber.name.as_str())) {
            let since_ms = now_ms() - 10 * 86_400_000;
            subscriber.history = Some(History { since_ms, last_ms: since_ms, sightings: 9 });
            // What the test itself did a moment ago.
            subscriber.alive_ms = 0;
        }
        log
    }

    /// What a scan of everything finds.
    pub(crate) async fn scan(&self) -> Vec<SubscriberCandidate> {
        scan(&self.inventory).await
    }

    pub(crate) fn acting(&self, times: Times) -> JetStreamAct {
        JetStreamAct::new(self.inventory.clone(), times)
    }

    /// Decides about one consumer of a stream where all but those that are named are idle, and looks at it again as an executor does.
    pub(crate) async fn decided(
        &self,
        stream: &str,
        consumer: &str,
        alive: &[&str],
        action: Action,
    ) -> (Decision, SubscriberCandidate) {
        let log = self.idle(stream, alive).await;
        let decision = decide(&log, action)
            .into_iter()
            .find(|decision| decision.subject == trimtab_events::subscriber_subject(&log.subject, consumer));
        let decision = decision.unwrap();
        let mut again = self.idle(stream, alive).await;
        narrow(&mut again, &decision);
        reinstate(&mut again, &decision);
        (decision, again)
    }

    /// Decides and acts.
    pub(crate) async fn act(
        &self,
        act: &JetStreamAct,
        stream: &str,
        consumer: &str,
        alive: &[&str],
        action: Action,
    ) -> Result<Effect, TargetError> {
        let (decision, seen) = self.decided(stream, consumer, alive, action).await;
        assert!(decision.verdict.acts(), "{:?}", decision.reasons);
        let seen = Candidate::Subscriber(Box::new(seen));
        act.act(&decision, &seen, &Taken::default(), &permit()).await
    }
}

/// By a rule that allows what JetStream offers; each decision keeps its promises.
pub(crate) fn decide(log: &SubscriberCandidate, action: Action) -> Vec<Decision> {
    let rule = Rule {
        name: "idle".to_owned(),
        action,
        stale_after_s: Some(3_600),
        grace_s: Some(0),
        allow_unguarded: true,
        ..Rule::default()
    };
    by(&Candidate::Subscriber(Box::new(log.clone())), rule)
}

/// By any one rule; each decision keeps its promises.
pub(crate) fn by(seen: &Candidate, rule: Rule) -> Vec<Decision> {
    let policy = Policy::new(PolicyConfig { rules: vec![rule], ..PolicyConfig::default() }, "test").unwrap();
    let context =
        Context { scan: ScanRef { id: uuid::Uuid::now_v7(), fence: 0 }, target: "jetstream", now_ms: now_ms() };
    let decisions = decide_any(seen, &policy, &context);
    for decision in &decisions {
        check_any(decision, seen, &policy, context.now_ms).unwrap_or_else(|e| panic!("{e}: {decision:#?}"));
    }
    decisions
}

pub(crate) fn stream_of(log: &SubscriberCandidate) -> &JetStreamStream {
    match &log.log {
        Log::JetStream(stream) => stream,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn state_of<'a>(log: &'a SubscriberCandidate, consumer: &str) -> &'a JetStreamConsumer {
    let place = log.subscribers.iter().position(|subscriber| subscriber.name == consumer).unwrap();
    stream_of(log).consumers[place].present().unwrap()
}

pub(crate) async fn scan(inventory: &JetStreamInventory) -> Vec<SubscriberCandidate> {
    let scope = Scope::default();
    let mut found = Vec::new();
    for shard in inventory.shards(&scope).await.unwrap() {
        let items: Vec<Item> = inventory.scan(&shard, &scope, &|_| Reads::default()).try_collect().await.unwrap();
        for item in items {
            match item {
                Item::Candidate(Candidate::Subscriber(log)) => found.push(*log),
                other => panic!("{other:?}"),
            }
        }
    }
    found
}

pub(crate) async fn api(client: &Client, tail: &str, body: Value) -> Value {
    let payload = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    for _ in 0..100 {
        let request = async_nats::Request::new().payload(payload.clone().into()).timeout(Some(Duration::from_secs(5)));
        match client.send_request(format!("$JS.API.{tail}"), request).await {
            Ok(message) => {
                let answer: Value = serde_json::from_slice(&message.payload).unwrap();
                if answer["error"]["code"] != 503 {
                    return answer;
                }
            }
            Err(e) if tail.contains(".CREATE.") => eprintln!("{tail}: {e}"),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nobody answers {tail}");
}

pub(crate) async fn consumer(client: &Client, stream: &str, name: &str, more: Value) {
    let mut config = json!({
        "durable_name": name, "name": name, "deliver_policy": "all", "ack_policy": "explicit", "replay_policy": "instant",
        "ack_wait": 30_000_000_000_u64,
    });
    config.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let body = json!({ "stream_name": stream, "config": config });
    let made = api(client, &format!("CONSUMER.CREATE.{stream}.{name}"), body).await;
    assert!(made["error"].is_null(), "{made}");
}

pub(crate) async fn publish(client: &Client, subject: &str, count: usize) {
    let mut context = async_nats::jetstream::new(client.clone());
    context.set_timeout(Duration::from_secs(60));
    for batch in (0..count).collect::<Vec<_>>().chunks(200) {
        let mut acks = Vec::new();
        for _ in batch {
            acks.push(context.publish(subject.to_owned(), vec![b'x'; 1_000].into()).await.unwrap());
        }
        for ack in acks {
            if let Err(mut e) = ack.await {
                // Nobody answered: while a stream of a cluster is between two leaders, nobody listens for its subjects, and nothing is stored.
                until!(format!("{subject} is stored"), {
                    assert_eq!(e.kind(), PublishErrorKind::StreamNotFound, "{subject}: {e}");
                    let again = context.publish(subject.to_owned(), vec![b'x'; 1_000].into()).await.unwrap();
                    let stored = again.await;
                    stored.is_ok() || {
                        e = stored.unwrap_err();
                        false
                    }
                });
            }
        }
    }
}

pub(crate) async fn reader(client: &Client, stream: &str, consumer: &str) -> Reader {
    let reply = client.new_inbox();
    let inbox = client.subscribe(reply.clone()).await.unwrap();
    client.flush().await.unwrap();
    Reader { client: client.clone(), stream: stream.to_owned(), consumer: consumer.to_owned(), inbox, reply }
}

impl Reader {
    /// Asks for so many messages; the pull waits for two minutes.
    pub(crate) async fn ask(&self, count: usize) {
        self.ask_so(json!({ "batch": count, "expires": 120_000_000_000_u64 })).await;
    }

    /// Asks in these words.
    pub(crate) async fn ask_so(&self, body: Value) {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", self.stream, self.consumer);
        self.client.publish_with_reply(subject, self.reply.clone(), body.to_string().into()).await.unwrap();
        self.client.flush().await.unwrap();
    }

    /// So many messages, each acknowledged, and the last of them confirmed, so that what follows sees it. Fewer if no more come.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<u64> {
        let begun = Instant::now();
        let (mut got, mut last) = (Vec::new(), None);
        while got.len() < count && begun.elapsed() < PATIENCE {
            let Ok(message) = tokio::time::timeout(PATIENCE, self.inbox.next()).await else { break };
            let Some(reply) = message.unwrap().reply.filter(|reply| reply.starts_with("$JS.ACK")) else { continue };
            got.push(sequence(&reply));
            if let Some(before) = last.replace(reply) {
                self.client.publish(before, "+ACK".into()).await.unwrap();
            }
        }
        if let Some(reply) = last {
            acknowledged(&self.client, reply).await;
        }
        got
    }

    /// What comes next: a message, by the subject to acknowledge it on, or none where the servers say that there is none.
    pub(crate) async fn message(&mut self) -> Option<async_nats::Subject> {
        let message = tokio::time::timeout(PATIENCE, self.inbox.next()).await.unwrap().unwrap();
        message.reply.filter(|reply| reply.starts_with("$JS.ACK"))
    }

    /// Whether no message has come.
    pub(crate) fn got_nothing(&mut self) -> bool {
        let mut came = std::iter::from_fn(|| self.inbox.next().now_or_never().flatten());
        came.all(|message| message.reply.is_none_or(|reply| !reply.starts_with("$JS.ACK")))
    }
}

/// Acknowledges a message, again and again until that is confirmed: nobody may lead at this moment.
pub(crate) async fn acknowledged(client: &Client, reply: async_nats::Subject) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let request = async_nats::Request::new().payload("+ACK".into()).timeout(Some(Duration::from_secs(5)));
        if client.send_request(reply.clone(), request).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{reply} is not confirmed");
}

/// The sequence in the stream that an acknowledgement's subject has.
fn sequence(reply: &str) -> u64 {
    let tokens: Vec<&str> = reply.split('.').collect();
    let at = if tokens.len() >= 11 { 7 } else { 5 };
    tokens[at].parse().unwrap()
}

/// Pauses an act at one moment for as long as it takes to do something.
pub(crate) fn at(
    act: JetStreamAct,
    moment: Moment,
    call: impl FnOnce() -> BoxFuture<'static, ()> + Send + 'static,
) -> JetStreamAct {
    let call = Mutex::new(Some(call));
    act.watched(Arc::new(move |reached| {
        let call = (reached == moment).then(|| call.lock().unwrap().take()).flatten();
        match call {
            Some(call) => call(),
            None => futures::future::ready(()).boxed(),
        }
    }))
}

/// Runs parts that share nothing at the same time, since most of what they do is wait, and says which of them failed.
pub(crate) async fn together(parts: Vec<(&'static str, BoxFuture<'static, ()>)>) {
    let timed = |name: &'static str, part: BoxFuture<'static, ()>| async move {
        let begun = Instant::now();
        part.await;
        println!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
    };
    let running: Vec<_> = parts.into_iter().map(|(name, part)| (name, tokio::spawn(timed(name, part)))).collect();
    let mut failed = Vec::new();
    for (name, part) in running {
        if part.await.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "these failed: {failed:#?}");
}
