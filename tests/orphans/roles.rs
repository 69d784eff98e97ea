//! Scanner, decider, executor and audit as processes of their own over NATS: orphans go the same way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::formats::ledger_of;
use trimtab_tests::mess::Mess;
use trimtab_tests::nats::NatsRig;
use trimtab_tests::pulsar::PulsarRig;
use trimtab_tests::roles::{Crew, Role, Settings};
use trimtab_tests::trimtab::run;
use trimtab_tests::zk_proxy::ZkProxy;

const CONFIG: &str = r#"
system = "bookkeeper"
[limits]
metadata_rate = 0.0
[bookkeeper]
grace = "1s"
absent_topics = true
"#;

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn roles_over_nats_delete_exactly_the_orphans() {
    let nats = NatsRig::single().unwrap();
    // Nobody but ZooKeeper is asked: neither bookies nor brokers are needed.
    let mess = Mess::start_with(PulsarRig::builder().null_metadata()).unwrap();
    let proxy = ZkProxy::start(&mess.rig.zk()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let config = state.join("config.toml").display().to_string();
    std::fs::write(&config, CONFIG).unwrap();
    let url = nats.url();
    let common = ["--nats", &url, "--config", &config];
    let from = format!("zk://{}", proxy.address());
    let settings = Settings { nats: url.clone(), from, config: Some(config.clone()), ..Settings::default() };
    let mut crew = Crew::of_each(state, settings);
    let scan = || run(state, &[&["scan", "--wait"], &common[..]].concat()).exits(0).json();

    let looked = scan();
    assert_eq!(looked["proposed"]["acts"], 0, "one scan is not enough: {looked}");
    // Longer than what has to pass between two sightings.
    std::thread::sleep(Duration::from_millis(2100));
    let found = scan();
    let orphans: BTreeSet<String> = mess.ledgers.orphans.iter().map(|id| format!("ledger/{id}")).collect();
    assert_eq!(found["proposed"]["acts"], orphans.len(), "{found}");
    let begun = Instant::now();
    let acted = loop {
        let listed = run(&crew.folder((Role::Audit, "one")), &["audit", "list", "--output", "json"]).exits(0);
        let acted: Vec<Value> = listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if acted.len() >= orphans.len() {
            break acted;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{} outcomes", acted.len());
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(acted.iter().all(|act| act["status"] == "done"), "{acted:#?}");
    let subjects: BTreeSet<String> = acted.iter().map(|act| act["subject"].as_str().unwrap().to_owned()).collect();
    assert_eq!(subjects, orphans);
    // One transaction for each, which names the ledger that goes and what might own it.
    let writes = proxy.record().writes();
    assert_eq!(writes.len(), orphans.len(), "{writes:?}");
    let ids = writes.iter().flat_map(|write| &write.paths).filter_map(|path| ledger_of(path));
    assert_eq!(ids.map(|id| format!("ledger/{id}")).collect::<BTreeSet<_>>(), orphans);
    for role in Role::ALL {
        assert!(crew.worker((role, "one")).stop().unwrap().success());
    }
}
