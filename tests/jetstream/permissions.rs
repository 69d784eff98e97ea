//! Each permission that is missing is named, and nothing is half done. And a connection that is lost asks for nothing later.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::FutureExt;
use serde_json::{Value, json};
use trimtab_events::Candidate;
use trimtab_policy::Action;
use trimtab_targets::jetstream::{JetStreamAct, Moment, Times};
use trimtab_targets::{Act, Class, Inventory};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::proxy::Proxy;

use crate::ground::{Ground, QUICK, Taken, account, at, client, inventory, permit};

/// What a user may ask of the JetStream interface; each has an inbox of its own.
fn user(name: &str, may: &[&str]) -> String {
    let may: Vec<String> = may.iter().map(|tail| format!("\"$JS.API.{tail}\"")).collect();
    format!(
        "{{ user: {name}, password: {name}, permissions: {{ publish: {{ allow: [{}] }}, subscribe: {{ allow: [\"_INBOX_{name}.>\"] }} }} }}",
        may.join(", ")
    )
}

const LOOKS: [&str; 4] = ["STREAM.NAMES", "STREAM.INFO.*", "CONSUMER.LIST.*", "CONSUMER.INFO.*.*"];

pub(crate) async fn a_permission_that_is_missing_is_named_and_nothing_is_half_done() {
    let with = |more: &[&'static str]| [&LOOKS[..], more].concat();
    let users = [
        "{ user: admin, password: admin }".to_owned(),
        user("blind", &["CONSUMER.INFO.*.*"]),
        user("scans", &LOOKS),
        user("holds", &with(&["CONSUMER.PAUSE.*.*"])),
        user("moves", &with(&["CONSUMER.PAUSE.*.*", "CONSUMER.RESET.*.*"])),
    ];
    let accounts = format!("accounts {{ A {{ jetstream: enabled, users: [\n{}\n] }} }}", users.join("\n"));
    let rig =
        tokio::task::spawn_blocking(move || NatsRig::builder().extra_config(&accounts).start().unwrap()).await.unwrap();
    let url = rig.url();
    let admin = client(&rig, Some("admin")).await;
    let full = inventory(vec![account(&url, Some("A"), Some("moves")).await.unwrap()]);
    let ground = Ground { rig, client: admin, inventory: full };
    ground.stream("P", json!({})).await;
    ground.consumer("P", "old", json!({})).await;
    ground.publish("p.a", 100).await;

    // What the account is called must be known: a name in the configuration, or leave to ask.
    let unnamed = account(&url, None, Some("scans")).await.err().unwrap();
    assert!(unnamed.class() == Class::Refused && unnamed.to_string().contains("jetstream.accounts"), "{unnamed}");
    let blind = inventory(vec![account(&url, Some("A"), Some("blind")).await.unwrap()]);
    let begun = Instant::now();
    let refused = blind.shards(&trimtab_events::Scope::default()).await.unwrap_err();
    assert!(refused.class() == Class::Refused && refused.to_string().contains("$js.api.stream.names"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(6), "a refusal is not waited for: {:?}", begun.elapsed());

    for (who, lacks, action) in [
        ("scans", "consumer.pause.p.old", Action::Reclaim),
        ("holds", "consumer.reset.p.old", Action::Reclaim),
        ("moves", "consumer.delete.p.old", Action::Delete),
    ] {
        let inventory = inventory(vec![account(&url, Some("A"), Some(who)).await.unwrap()]);
        let (decision, seen) = decided(&ground, action).await;
        let act = JetStreamAct::new(inventory, QUICK);
        let refused = act.act(&decision, &seen, &Taken::default(), &permit()).await.unwrap_err();
        assert!(refused.class() == Class::Refused && refused.to_string().contains(lacks), "{who}: {refused}");
        let info = ground.info("P", "old").await;
        assert!(!info["paused"].as_bool().unwrap_or(false), "{who}: it goes on");
        assert_eq!((info["ack_floor"]["stream_seq"].as_u64(), ground.held("P").await.0), (Some(0), 100), "{who}");
    }
    let (decision, seen) = decided(&ground, Action::Reclaim).await;
    let act = JetStreamAct::new(ground.inventory.clone(), QUICK);
    let effect = act.act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
    assert_eq!((effect.skipped, ground.held("P").await.0), (None, 0));
}

async fn decided(ground: &Ground, action: Action) -> (trimtab_events::Decision, Candidate) {
    let mut log = match ground.inventory.observe("jetstream://A/P").await.unwrap() {
        Some(Candidate::Subscriber(log)) => *log,
        other => panic!("{other:?}"),
    };
    let since_ms = trimtab_tests::now_ms() - 10 * 86_400_000;
    for subscriber in &mut log.subscribers {
        subscriber.history = Some(trimtab_events::History { since_ms, last_ms: since_ms, sightings: 9 });
    }
    (crate::ground::decide(&log, action).remove(0), Candidate::Subscriber(Box::new(log)))
}

pub(crate) async fn an_account_without_jetstream_is_told_so() {
    let accounts = "accounts { A { users: [{ user: a, password: a }] }, B { jetstream: enabled } }";
    let rig =
        tokio::task::spawn_blocking(move || NatsRig::builder().extra_config(accounts).start().unwrap()).await.unwrap();
    let inventory = inventory(vec![account(&rig.url(), None, Some("a")).await.unwrap()]);
    let refused = inventory.shards(&trimtab_events::Scope::default()).await.unwrap_err().to_string();
    assert!(refused.contains("JetStream"), "{refused}");
}

/// The connection is lost between the last look and the call. What was asked for is not asked for again when it comes back: by then the
/// hold is over, and somebody may be there.
pub(crate) async fn a_call_on_a_lost_connection_is_not_made_later() {
    let ground = Ground::new().await;
    ground.stream("V", json!({})).await;
    ground.consumer("V", "old", json!({})).await;
    ground.publish("v.a", 100).await;
    let target = ground.rig.node_url(0).strip_prefix("nats://").unwrap().to_owned();
    let proxy = Arc::new(Mutex::new(Proxy::start(&target, || |_: &[u8]| {}).unwrap()));
    let url = format!("nats://{}", proxy.lock().unwrap().address());
    let through = inventory(vec![account(&url, Some("$G"), None).await.unwrap()]);
    let cuts = proxy.clone();
    let short = Times { hold: Duration::from_secs(10), within: Duration::from_secs(9), ..QUICK };
    let act = at(JetStreamAct::new(through, short), Moment::Looked, move || {
        async move {
            cuts.lock().unwrap().cut();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        .boxed()
    });
    let (decision, seen) = ground.decided("V", "old", &[], Action::Reclaim).await;
    let seen = Candidate::Subscriber(Box::new(seen));
    let lost = act.act(&decision, &seen, &Taken::default(), &permit()).await.unwrap_err();
    assert_eq!(lost.class(), Class::Transient, "{lost}");
    proxy.lock().unwrap().resume();
    tokio::time::sleep(short.hold).await;
    let info = ground.api("CONSUMER.INFO.V.old", Value::Null).await;
    assert_eq!((info["ack_floor"]["stream_seq"].as_u64(), info["paused"].as_bool().unwrap_or(false)), (Some(0), false));
    assert_eq!(ground.owed("V", "old", 100).await.len(), 100);
}
