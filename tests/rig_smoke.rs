//! The rigs themselves: whether they boot, do what they are told, and stop.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use trimtab_tests::java::{Shift, segment, word};
use trimtab_tests::mess::{Fate, Mess};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::pulsar::{Part, PulsarRig};
use trimtab_tests::zk_proxy::{Op, Record, ZkProxy};

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn the_mess_is_what_it_says() {
    let mut clock = Instant::now();
    Mess::grown().unwrap();
    step(&mut clock, "the mess is there");
    let mess = Mess::start().unwrap();
    step(&mut clock, "restored and booted");
    assert!(!mess.ledgers.orphans.is_empty());
    let mut client = mess.rig.client().unwrap();
    // Everything is listed before anything is called: one call makes a broker load, and trim, the topic's neighbours.
    let topics = Mess::topics();
    let mut listed = || -> Vec<BTreeMap<i64, i64>> {
        let lines: Vec<_> =
            topics.iter().map(|(name, _)| format!("listed {}", word(&Mess::managed_ledger(name)))).collect();
        let told = client.run_all(lines.iter().map(String::as_str)).unwrap();
        told.iter()
            .map(|line| {
                line.split_whitespace()
                    .map(|ledger| {
                        let mut fields = ledger.split(':').map(|n| n.parse().unwrap());
                        (fields.next().unwrap(), fields.next().unwrap())
                    })
                    .collect()
            })
            .collect()
    };
    let before = listed();
    step(&mut clock, "listed");
    for (name, fate) in &topics {
        let path = format!("persistent/{}", encoded(name));
        let trim = || mess.rig.rest("POST", &format!("{path}/trim"), None).unwrap();
        match fate {
            Fate::Trim(_) | Fate::ExpireThenTrim(_) => trim().ok().unwrap(),
            Fate::Blocked => trim(),
            _ => continue,
        };
        if let Fate::ExpireThenTrim(_) = fate {
            let url = format!("{path}/all_subscription/expireMessages/3600");
            let reply = mess.rig.rest("POST", &url, None).unwrap();
            assert!([204, 409].contains(&reply.status), "{reply:?}");
            std::thread::sleep(Duration::from_millis(500));
            trim().ok().unwrap();
        }
    }
    step(&mut clock, "trimmed");
    let after = listed();
    let mut wrong = Vec::new();
    for (((name, fate), before), after) in topics.iter().zip(before).zip(after) {
        let due = match fate {
            Fate::Trim(n) | Fate::ExpireThenTrim(n) => *n,
            Fate::Blocked => 0,
            _ => continue,
        };
        let gone = |(id, entries): &(&i64, &i64)| **entries > 0 && !after.contains_key(id);
        let gone = before.iter().filter(gone).count();
        if gone != due {
            wrong.push(format!("{name}: {gone} gone, {due} due; {before:?} -> {after:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The path of a topic in the admin API.
fn encoded(full_name: &str) -> String {
    let mut parts = full_name.trim_start_matches("persistent://").splitn(3, '/');
    let mut next = || segment(parts.next().unwrap());
    format!("{}/{}/{}", next(), next(), next())
}

fn step(since: &mut Instant, what: &str) {
    eprintln!("{:6.1} s  {what}", since.elapsed().as_secs_f64());
    *since = Instant::now();
}

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn a_cluster_boots_and_survives_a_killed_broker() {
    let mut clock = Instant::now();
    let mut rig = PulsarRig::builder().start().unwrap();
    step(&mut clock, "booted ZooKeeper, bookie, broker");
    rig.rest("PUT", "tenants/acme", Some(r#"{"allowedClusters":["rig"]}"#)).unwrap().ok().unwrap();
    rig.rest("PUT", "namespaces/acme/week", None).unwrap().ok().unwrap();
    let mut client = rig.client().unwrap();
    client.run_all(["sub acme/week/t s", "produce acme/week/t 45 1000", "consume acme/week/t s 12"]).unwrap();
    step(&mut clock, "45 messages written, 12 read");

    let before = rig.zk_last_zxid().unwrap();
    rig.kill9(Part::Broker).unwrap();
    rig.start(Part::Broker).unwrap();
    step(&mut clock, "broker killed and started again");
    assert!(rig.zk_last_zxid().unwrap() > before);

    // The ports are the same, so the client connects again by itself. What was acknowledged may come again, what was
    // not must come.
    let got = client.run("drain acme/week/t s wait=3000").unwrap();
    let got: Vec<u32> = got.split(' ').map(|n| n.parse().unwrap()).collect();
    assert!((12..45).all(|n| got.contains(&n)), "{got:?}");
    step(&mut clock, "the other 33 read");
}

#[test]
#[ignore = "needs ZooKeeper"]
fn many_topics_are_there_in_seconds_and_the_proxies_count_every_request() {
    let mut clock = Instant::now();
    let mut rig = PulsarRig::builder().null_metadata().clock(Shift::days_ago(30)).start().unwrap();
    step(&mut clock, "booted ZooKeeper");
    let mut client = rig.client().unwrap();
    let nodes: u64 = client.run("fill fill 20000 3").unwrap().parse().unwrap();
    step(&mut clock, "20,000 topics");
    assert!(nodes > 20_000 * 4, "{nodes}");
    rig.set_clock(Shift::NONE);
    rig.restart(Part::ZooKeeper).unwrap();
    step(&mut clock, "restarted ZooKeeper");
    let known: u64 = rig.zk_figures().unwrap()["zk_znode_count"].parse().unwrap();
    assert!(known >= nodes, "{known} nodes");

    let record = Record::default();
    let proxies = [0, 1].map(|_| ZkProxy::with_record(&rig.zk(), &record).unwrap());
    for proxy in &proxies {
        let mut client = rig.client_through(proxy.address()).unwrap();
        let listed = client.run("ls /managed-ledgers/fill/n0003/persistent").unwrap();
        assert_eq!(listed.split(' ').count(), 1000);
        client.run("get /managed-ledgers/fill/n0003/persistent/t03005/s").unwrap();
        // ages in the nodes are those of the shifted clock
        let stat = client.run("stat /managed-ledgers/fill/n0003/persistent/t03005").unwrap();
        let ctime = stat.split(' ').find_map(|w| w.strip_prefix("ctime=")).unwrap();
        let age_ms = trimtab_tests::now_ms() - ctime.parse::<i64>().unwrap();
        assert!((29..31).contains(&(age_ms / 86_400_000)), "{age_ms} ms");
    }
    assert_eq!(record.counts()[&Op::GetData], 2);
    assert_eq!(record.operations(), 6);
    assert!(record.writes().is_empty());
    let mut client = rig.client_through(proxies[0].address()).unwrap();
    client.run("put /somewhere/new").unwrap();
    assert!(!record.writes().is_empty());
    assert!(record.peak(Duration::from_secs(1)) <= record.operations());
    step(&mut clock, "requests counted");
}

#[test]
#[ignore = "needs nats-server"]
fn nats_keeps_what_it_acknowledged_when_it_is_killed() {
    let mut clock = Instant::now();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut rig = NatsRig::single().unwrap();
    step(&mut clock, "booted nats-server");
    runtime.block_on(publish(&rig.urls(), 1, 100));
    step(&mut clock, "100 messages");
    rig.kill9(0).unwrap();
    rig.start(0).unwrap();
    assert_eq!(runtime.block_on(stored(&rig.url())), 100);
    step(&mut clock, "killed and started again");
    rig.stop(0).unwrap();
    rig.clean_store(0).unwrap();
    rig.start(0).unwrap();
    runtime.block_on(publish(&rig.urls(), 1, 1));
    assert_eq!(runtime.block_on(stored(&rig.url())), 1);
}

#[test]
#[ignore = "needs nats-server"]
fn a_nats_cluster_works_on_with_two_of_three() {
    let mut clock = Instant::now();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut rig = NatsRig::builder().cluster().start().unwrap();
    step(&mut clock, "booted three nodes");
    runtime.block_on(publish(&rig.urls(), 3, 20));
    rig.kill9(1).unwrap();
    runtime.block_on(publish(&[rig.node_url(0)], 3, 20));
    rig.start(1).unwrap();
    assert_eq!(runtime.block_on(stored(&rig.node_url(0))), 40);
    step(&mut clock, "published over a dead node");
}

#[test]
#[ignore = "needs nats-server"]
fn nats_users_have_only_their_rights() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rig = NatsRig::builder()
        .extra_config(
            r#"authorization { users: [
                { user: writer, password: w, permissions: { publish: ["a.>"], subscribe: ["_INBOX.>"] } } ] }"#,
        )
        .start()
        .unwrap();
    runtime.block_on(async {
        assert!(async_nats::connect(rig.url()).await.is_err());
        let options = async_nats::ConnectOptions::with_user_and_password("writer".into(), "w".into());
        options.connect(rig.url()).await.unwrap();
    });
}

async fn publish(servers: &[String], replicas: usize, count: u64) {
    let client = async_nats::connect(servers).await.unwrap();
    let js = async_nats::jetstream::new(client);
    let config = async_nats::jetstream::stream::Config {
        name: "SMOKE".into(),
        subjects: vec!["smoke.>".into()],
        num_replicas: replicas,
        ..Default::default()
    };
    let begun = Instant::now();
    // a leader that died is replaced only after some seconds
    while let Err(e) = js.get_or_create_stream(config.clone()).await {
        assert!(begun.elapsed() < Duration::from_secs(30), "{e}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for i in 0..count {
        loop {
            let sent = js.publish("smoke.x", i.to_string().into()).await.unwrap();
            match sent.await {
                Ok(_) => break,
                Err(e) => assert!(begun.elapsed() < Duration::from_secs(30), "{e}"),
            }
        }
    }
}

async fn stored(url: &str) -> u64 {
    let js = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let mut stream = js.get_stream("SMOKE").await.unwrap();
    stream.info().await.unwrap().state.messages
}
