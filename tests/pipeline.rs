//! The whole job on a real Pulsar: scan, decide, act, record. What goes is exactly what the mess says, and nothing else.

#[path = "pipeline/console.rs"]
mod console;
#[path = "pipeline/kills.rs"]
mod kills;
#[path = "pipeline/live.rs"]
mod live;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::jaeger::{Jaeger, Told};
use trimtab_tests::java::JavaClient;
use trimtab_tests::mess::{Fate, Mess};
use trimtab_tests::roles::{Crew, Role, Settings};
use trimtab_tests::trimtab::run;
use trimtab_tests::zk_proxy::ZkProxy;

/// Policies of topics, which only brokers and `__change_events` know.
const TOPIC_POLICIES: &str = r#"{
    "persistent://attic/topical/short": {"retention": [60, -1]},
    "persistent://attic/topical/long": {"retention": [-1, -1]},
    "persistent://attic/topical/ttl": {"ttl": 3600}
}"#;

/// Ids and entries of every topic's ledgers, from the metadata.
type Lists = BTreeMap<String, BTreeMap<i64, i64>>;

fn lists(client: &mut JavaClient) -> Lists {
    let list = |(name, _): (String, Fate)| {
        let listed = client.listed(&Mess::managed_ledger(&name)).unwrap();
        (name, listed.iter().map(|l| (l.id, l.entries)).collect())
    };
    Mess::topics().into_iter().map(list).collect()
}

/// What a topic has lost, empty and lost ledgers not counted.
fn lost(before: &Lists, after: &Lists, topic: &str) -> BTreeSet<i64> {
    let gone = before[topic].iter().filter(|(id, entries)| **entries > 0 && !after[topic].contains_key(id));
    gone.map(|(id, _)| *id).collect()
}

fn topic_policies(folder: &Path) -> String {
    let path = folder.join("topic-policies.json");
    std::fs::write(&path, TOPIC_POLICIES).unwrap();
    path.display().to_string()
}

/// Compares what every topic lost with its fate; the ids that went.
fn as_fated(before: &Lists, after: &Lists) -> BTreeSet<i64> {
    let (mut wrong, mut all) = (Vec::new(), BTreeSet::new());
    for (name, fate) in Mess::topics() {
        let gone = lost(before, after, &name);
        let due = match fate {
            Fate::Trim(n) | Fate::ExpireThenTrim(n) => n,
            _ => 0,
        };
        if gone.len() != due {
            wrong.push(format!("{name}: {fate:?}, lost {gone:?}"));
        }
        all.extend(gone);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    all
}

fn exists_in_bookkeeper(client: &mut JavaClient, id: i64) -> bool {
    let digits = format!("{id:010}");
    client.run(&format!("stat /ledgers/{}/{}/L{}", &digits[..2], &digits[2..6], &digits[6..])).unwrap() != "none"
}

fn audit(state: &Path) -> Vec<Value> {
    let listed = run(state, &["audit", "list", "--output", "json"]).exits(0);
    listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn a_run_in_one_process_frees_exactly_what_is_due() {
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let policies = topic_policies(state);
    let mut client = mess.rig.client().unwrap();
    let before = lists(&mut client);

    // Planning reads and nothing else: no write reaches ZooKeeper, and no broker is asked for anything.
    let proxy = ZkProxy::start(&mess.rig.zk()).unwrap();
    let from = format!("zk://{}", proxy.address());
    let plan =
        run(state, &["plan", "--from", &from, "--topic-policies", &policies, "--output", "json"]).exits(0).json();
    assert!(proxy.record().writes().is_empty(), "{:?}", proxy.record().writes());
    assert_eq!(lists(&mut client), before);
    let acts = plan["totals"]["proposed"]["acts"].as_u64().unwrap();
    let looked = run(state, &["run", "--from", &from, "--topic-policies", &policies]).exits(0);
    assert!(looked.out.contains("Only looked"), "{looked:?}");
    assert!(proxy.record().writes().is_empty(), "{:?}", proxy.record().writes());

    // The default limit on the share stops a run that would act on most topics, before the first act.
    let args = ["run", "--apply", "--from", &from, "--topic-policies", &policies];
    let stopped = run(state, &args).exits(3);
    assert!(stopped.err.contains("max_share"), "{stopped:?}");
    assert_eq!(lists(&mut client), before);

    // Of a plan from which all but one item is taken on the console, that one is carried out.
    let approved = "persistent://attic/week/caught-up";
    console::approve_one(state, &from, &policies, approved);
    let one = lists(&mut client);
    assert!(!lost(&before, &one, approved).is_empty());

    let ran = run(state, &[&args[..], &["--max-share", "1"]].concat()).exits(0);
    assert!(ran.out.contains("ledgers are gone"), "{ran:?}");
    let after = lists(&mut client);
    let gone = as_fated(&before, &after);
    for id in &gone {
        assert!(!exists_in_bookkeeper(&mut client, *id), "ledger {id} is still in BookKeeper");
    }
    // Our own writes to the metadata store: none, ever.
    assert!(proxy.record().writes().is_empty(), "{:?}", proxy.record().writes());

    let acted = audit(state);
    let done: BTreeSet<&str> =
        acted.iter().filter(|a| a["status"] == "done").map(|a| a["subject"].as_str().unwrap()).collect();
    assert_eq!(done.len() as u64, acts, "{acted:#?}");
    let freed: u64 = acted.iter().map(|a| a["freed"].as_u64().unwrap()).sum();
    assert!(freed >= gone.len() as u64);
    assert!(acted.iter().all(|a| a["trace_id"].as_str().unwrap().len() == 32));
    let story = run(state, &["audit", "show", "persistent://attic/week/caught-up"]).exits(0);
    assert!(story.out.contains("intent") && story.out.contains("outcome"), "{story:?}");
    let _ = run(state, &["audit", "verify"]).exits(0);

    // Everything that was visited is closed again.
    let open = |name: &str| {
        let loaded = mess.rig.rest("GET", "broker-stats/topics", None).unwrap().ok().unwrap();
        loaded.body.contains(name)
    };
    let deadline = Instant::now() + Duration::from_secs(90);
    while open("persistent://attic/week/caught-up") {
        assert!(Instant::now() < deadline, "the topic is still loaded");
        std::thread::sleep(Duration::from_secs(1));
    }

    // A second run finds nothing more to free, apart from what the first visit started the clock of.
    let again = run(state, &[&args[..], &["--max-share", "1"]].concat()).exits(0);
    assert_eq!(lost(&after, &lists(&mut client), "persistent://attic/week/caught-up"), BTreeSet::new(), "{again:?}");
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper, nats-server"]
fn roles_over_nats_free_exactly_what_is_due_and_leave_one_trace_for_each_topic() {
    let nats = trimtab_tests::nats::NatsRig::single().unwrap();
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let policies = topic_policies(state);
    let mut client = mess.rig.client().unwrap();
    let before = lists(&mut client);
    // A real Jaeger gets every span as well, where there is one.
    let jaeger = Jaeger::start().unwrap();
    let spans = trimtab_tests::otlp::Receiver::in_front_of(jaeger.as_ref().map(Jaeger::otlp)).unwrap();
    let from = format!("zk://{}", mess.rig.zk());
    let url = nats.url();
    let otlp = Some(spans.url());
    let mut crew = Crew::of_each(
        state,
        Settings { nats: url.clone(), from, policies: Some(policies), otlp, ..Settings::default() },
    );

    let asked = run(state, &["scan", "--wait", "--nats", &url]).exits(0);
    let acts = asked.json()["proposed"]["acts"].as_u64().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let audit_state = crew.folder((Role::Audit, "one"));
    let mut acted = Vec::new();
    while (acted.len() as u64) < acts {
        assert!(Instant::now() < deadline, "{} of {acts} outcomes after two minutes", acted.len());
        std::thread::sleep(Duration::from_secs(1));
        acted = audit(&audit_state);
    }
    let after = lists(&mut client);
    as_fated(&before, &after);
    assert!(acted.iter().all(|a| a["status"] == "done"), "{acted:#?}");

    // They stop when told to, and export what they still have.
    for role in Role::ALL {
        assert!(crew.worker((role, "one")).stop().unwrap().success());
    }
    for act in &acted {
        let trace = spans.trace(act["trace_id"].as_str().unwrap());
        let names: BTreeSet<&str> = trace.iter().map(|span| span.name.as_str()).collect();
        for name in ["create candidate.ledger", "decide candidate.ledger", "process decision"] {
            assert!(names.contains(name), "{}: {names:?}", act["subject"]);
        }
        assert!(names.iter().any(|name| name.starts_with("act ")), "{}: {names:?}", act["subject"]);
        let roles: BTreeSet<&str> = trace.iter().map(|span| span.role.as_str()).collect();
        assert!(roles.is_superset(&BTreeSet::from(["scanner", "decider", "executor"])), "{roles:?}");
    }
    match jaeger {
        Some(jaeger) => acted.iter().for_each(|act| one_trace_tells_of(act, &jaeger)),
        None => println!("left out: a real Jaeger, which TRIMTAB_TEST_JAEGER=1 builds"),
    }
}

/// Finds an act in Jaeger by the decision's id in the record: one trace, that of the record, from the sighting to the broker's answer.
fn one_trace_tells_of(act: &Value, jaeger: &Jaeger) {
    let text = |key: &str| act[key].as_str().unwrap();
    let found = jaeger.find("trimtab", "trimtab.decision", text("decision")).unwrap();
    assert_eq!(found, [text("trace_id")], "{act}");
    let spans = jaeger.trace(&found[0]).unwrap();
    let tag = |span: &Told, key: &str| {
        let mut tags = span.attributes.as_array().unwrap().iter();
        tags.find(|tag| tag["key"] == key).map(|tag| tag["value"].clone()).unwrap_or_default()
    };
    let verdict = format!("act {}", text("verdict"));
    let acting = spans.iter().find(|span| span.name == verdict).unwrap_or_else(|| panic!("{verdict}: {spans:#?}"));
    let calls: Vec<&Told> = spans.iter().filter(|span| span.parent == acting.id).collect();
    let answered = |call: &&Told| tag(call, "http.response.status_code").as_i64().is_some_and(|status| status < 300);
    assert!(calls.iter().any(answered), "no broker answered: {spans:#?}");
    // Back to where it all began.
    let (mut span, mut way) = (acting, vec![(acting.role.as_str(), acting.name.as_str())]);
    while let Some(parent) = spans.iter().find(|other| other.id == span.parent) {
        way.push((&parent.role, &parent.name));
        span = parent;
    }
    let expected = [
        ("executor", &*verdict),
        ("executor", "process decision"),
        ("decider", "decide candidate.ledger"),
        ("scanner", "create candidate.ledger"),
    ];
    assert_eq!(way, expected, "{spans:#?}");
    assert_eq!(tag(span, "trimtab.subject"), text("subject"));
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn brokers_that_ask_for_tokens_and_tls_are_followed_to_the_owner() {
    use trimtab_tests::pulsar::{PulsarRig, SUPERUSER};
    // Brokers trim what they have loaded by themselves, so they must not come by meanwhile.
    let seldom = ("retentionCheckIntervalInSeconds", "3600");
    let rig = PulsarRig::builder().two_brokers().tokens().tls().setting(seldom.0, seldom.1).start().unwrap();
    let tenant = Some(r#"{"allowedClusters":["rig"]}"#);
    rig.rest("PUT", "tenants/acme", tenant).unwrap().ok().unwrap();
    rig.rest("PUT", "namespaces/acme/n", None).unwrap().ok().unwrap();
    let mut client = rig.client().unwrap();
    let topics: Vec<String> = (0..6).map(|i| format!("acme/n/t{i}")).collect();
    for topic in &topics {
        client.run(&format!("produce {topic} 25 100")).unwrap();
    }
    // Without retention, everything of an unloaded topic without subscriptions is due.
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let token = |role: &str| {
        let path = state.join(format!("{role}.token"));
        std::fs::write(&path, rig.token(role).unwrap()).unwrap();
        path.display().to_string()
    };
    let (from, ca, url) = (format!("zk://{}", rig.zk()), rig.ca().display().to_string(), rig.web_tls());
    let run_as = |role: &str| {
        let token = token(role);
        let args = ["run", "--apply", "--from", &from, "--namespace", "acme/n", "--max-share", "1", "--admin", &url];
        run(state, &[&args[..], &["--ca-file", &ca, "--token-file", &token]].concat())
    };
    // A bundle that somebody's look-up gives to a broker is loaded again, whole, and then left to that broker: so more than once.
    let until = |role: &str, says: &str, code: i32| {
        for _ in 0..8 {
            rig.rest("PUT", "namespaces/acme/n/unload", None).unwrap().ok().unwrap();
            std::thread::sleep(Duration::from_millis(500));
            let ended = run_as(role);
            if ended.out.contains(says) && ended.code == code {
                return ended;
            }
        }
        panic!("no run as {role} came to say {says:?} and end with {code}");
    };
    // Before anything is scanned it can be told what will go wrong.
    let doctor = |role: &str, more: &[&str]| {
        let token = token(role);
        let args = ["doctor", "--from", &from, "--admin", &url, "--ca-file", &ca, "--token-file", &token];
        run(state, &[&args[..], more].concat())
    };
    let healthy = doctor(SUPERUSER, &[]).exits(0);
    for says in [&format!("[ok]   broker {url}: answers"), &format!("[ok]   clock of {url}: "), "/managed-ledgers: "] {
        assert!(healthy.out.contains(says), "{says}: {healthy:?}");
    }
    // These brokers have TLS for the web only.
    assert!(healthy.out.contains("[look] binary protocol: no broker is registered"), "{healthy:?}");
    assert!(!healthy.out.contains("broker http://"), "a token goes to TLS alone: {healthy:?}");
    let refused = doctor("nobody", &[]).exits(1);
    assert!(refused.out.contains("give a token of a superuser"), "{refused:?}");
    let conf = state.join("broker.conf").display().to_string();
    std::fs::write(&conf, "defaultRetentionTimeInMinutes=10080\n").unwrap();
    let differs = doctor(SUPERUSER, &["--broker-conf", &conf]).exits(1);
    let says = "defaultRetentionTimeInMinutes is \"0\" there, and pulsar.default_retention_minutes is \"10080\" here";
    assert!(differs.out.contains(says), "{differs:?}");
    // A role without rights frees nothing, and is told what it lacks.
    let refused = until("nobody", "check the token", 1);
    assert!(refused.out.contains("; 0 ledgers are gone"), "{refused:?}");
    let ran = until(SUPERUSER, " done; ", 0);
    assert!(!ran.out.contains("; 0 ledgers are gone"), "{ran:?}");
    let secret = rig.token(SUPERUSER).unwrap();
    assert!(!ran.err.contains(&secret) && !ran.out.contains(&secret));
    for entry in std::fs::read_dir(state.join("audit")).unwrap() {
        assert!(!std::fs::read_to_string(entry.unwrap().path()).unwrap().contains(&secret));
    }
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn an_act_that_was_cut_off_is_judged_and_its_topic_closed() {
    use trimtab::clock::Clock;
    use trimtab::journal::{Entry, Journal, RecordKind};
    let mess = Mess::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let from = format!("zk://{}", mess.rig.zk());
    let plan = |topic: &str| {
        let file = state.join(format!("{}.json", topic.replace('/', "-"))).display().to_string();
        let subject = format!("persistent://attic/{topic}");
        let _ = run(state, &["plan", "--from", &from, "--topic", &subject, "-o", &file]).exits(0);
        file
    };
    let (cut_off, other) = (plan("week/nosubs"), plan("week/exact"));
    // What an executor leaves that is killed after the call and before it could close the topic: an intent without an outcome, and
    // the topic loaded.
    let cut_off: Value = serde_json::from_str(&std::fs::read_to_string(cut_off).unwrap()).unwrap();
    let decision = cut_off["items"][0]["decision"].clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let journal = Journal::open(&state.join("audit/executor.jsonl"), Clock::system()).unwrap();
        let before = serde_json::json!({ "seen": decision["seen"], "ledgers": decision["ledgers"], "bytes": 0 });
        let entry = Entry {
            kind: RecordKind::Intent,
            id: decision["id"].as_str().unwrap().to_owned(),
            subject: decision["subject"].as_str().unwrap().to_owned(),
            trace_id: String::new(),
            body: serde_json::json!({ "decision": decision, "before": before }),
        };
        journal.write(entry).await.unwrap();
    });
    drop(runtime);
    mess.rig.rest("GET", "persistent/attic/week/nosubs/stats", None).unwrap().ok().unwrap();
    let loaded = || {
        run(state, &["plan", "--from", &from, "--topic", "persistent://attic/week/nosubs", "--explain"]).exits(0).out
    };
    assert!(loaded().contains("loaded:"), "{}", loaded());

    let _ = run(state, &["apply", &other, "--from", &from, "--max-share", "1"]).exits(0);
    let story = run(state, &["audit", "show", "persistent://attic/week/nosubs", "--output", "json"]).exits(0).out;
    let outcome: Value = story.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).next_back().unwrap();
    assert_eq!((&outcome["kind"], &outcome["body"]["unloaded"]), (&"outcome".into(), &true.into()), "{outcome:#}");
    assert_eq!(outcome["body"]["reasons"][0]["rule"], "restart");
    assert!(!loaded().contains("loaded:"), "{}", loaded());
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn brokers_that_are_asked_give_the_same_plan_and_keep_what_asking_made_them_load() {
    use trimtab_tests::pulsar::PulsarRig;
    // What they have loaded they would trim by themselves, and this is about what is planned.
    let mess = Mess::start_with(PulsarRig::builder().setting("retentionCheckIntervalInSeconds", "3600")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let (from, url, policies) = (format!("zk://{}", mess.rig.zk()), mess.rig.web(), topic_policies(state));
    let plan = |more: &[&str]| {
        let args = ["plan", "--from", &from, "--namespace", "attic/topical", "--explain", "--output", "json"];
        let ended = run(state, &[&args[..], more].concat());
        let items: BTreeMap<String, (String, Value)> = ended.json()["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| {
                let text = |name: &str| item[name].as_str().unwrap().to_owned();
                (text("subject").replace("persistent://attic/topical/", ""), (text("verdict"), item["ledgers"].clone()))
            })
            .collect();
        (items, ended)
    };
    let verdict = |items: &BTreeMap<String, (String, Value)>, topic: &str| items[topic].0.clone();
    let topics = ["short", "long", "ttl"];
    let (unknown, _) = plan(&[]);
    assert!(topics.iter().all(|topic| verdict(&unknown, topic) == "skip"), "{unknown:?}");
    let (known, _) = plan(&["--topic-policies", &policies]);
    assert_eq!((verdict(&known, "short"), verdict(&known, "ttl")), ("trim".to_owned(), "expire-then-trim".to_owned()));

    // Nobody has these bundles, so the broker takes them to answer, and loads what is in them. How it was before is recorded.
    let (asked, ended) = plan(&["--ask-brokers", "--admin", &url]);
    assert!(ended.err.contains("made a broker take bundles of this namespace"), "{ended:?}");
    assert!(topics.iter().all(|topic| ["skip", "keep"].contains(&verdict(&asked, topic).as_str())), "{asked:?}");
    let record = std::fs::read_to_string(state.join("audit/plan.jsonl")).unwrap();
    let record: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for topic in topics {
        let subject = format!("persistent://attic/topical/{topic}");
        let seen = record.iter().find(|entry| entry["subject"] == subject.as_str()).unwrap();
        assert!(seen["kind"] == "evidence" && seen["body"]["ledgers"].is_object(), "{seen:#}");
    }
    let loaded = record.iter().find(|entry| entry["body"]["loaded_by_asking"].is_array()).unwrap();
    assert_eq!(loaded["body"]["loaded_by_asking"].as_array().unwrap().len(), topics.len(), "{loaded:#}");

    // Where a broker has the bundle already, asking loads nothing more.
    for topic in topics {
        let path = format!("persistent/attic/topical/{topic}/unload");
        mess.rig.rest("PUT", &path, None).unwrap().ok().unwrap();
    }
    let (known, _) = plan(&["--topic-policies", &policies]);
    let (asked, ended) = plan(&["--ask-brokers", "--admin", &url]);
    assert_eq!(asked, known);
    assert!(!ended.err.contains("made a broker take"), "{ended:?}");
    // What was due at once, the broker trimmed when it loaded it.
    assert!(verdict(&asked, "ttl") == "expire-then-trim" && verdict(&asked, "long") == "keep", "{asked:?}");
}
