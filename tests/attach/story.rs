//! The whole story of an abandoned subscription, by the command line: several scans see it idle, it is announced, it is moved, its ledgers
//! go, and it is put back. Nobody else loses a message.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_targets::pulsar::wire::{AckType, SubType};
use trimtab_tests::pulsar::PulsarRig;
use trimtab_tests::trimtab::{Ended, run};

use crate::ground::Ground;

const RULES: &str = r#"
[caps]
max_share = 1.0

[[rules]]
name = "idle"
match = ["acme/NAMESPACE/*"]
stale_after = "2s"
sightings = 3
grace = "4s"
"#;

struct Operator<'a> {
    state: &'a Path,
    from: String,
    admin: String,
    config: String,
}

impl Operator<'_> {
    fn at<'b>(&'b self, words: &[&'b str]) -> Ended {
        let place = ["--from", &self.from, "--config", &self.config, "--namespace", "acme/s"];
        run(self.state, &[words, &place].concat())
    }

    fn run(&self) -> Ended {
        let ended = self.at(&["run", "--apply", "--ask-brokers", "--admin", &self.admin]);
        assert!([0, 4].contains(&ended.code), "{ended:?}");
        ended
    }

    fn plan(&self) -> Value {
        self.at(&["plan", "--explain", "--output", "json"]).json()
    }

    fn records(&self) -> Vec<Value> {
        let listed = run(self.state, &["audit", "list", "--output", "json"]).exits(0);
        listed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn verdicts(&self, subject: &str) -> Vec<(String, String)> {
        let about = |record: &Value| record["subject"].as_str() == Some(subject);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.records().iter().filter(|r| about(r)).map(|r| (text(&r["verdict"]), text(&r["status"]))).collect()
    }
}

fn subject(topic: &str, subscription: &str) -> String {
    format!("persistent://{topic}?subscription={subscription}")
}

pub(crate) fn found_announced_and_moved(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "s");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("trimtab.toml");
    std::fs::write(&config, RULES.replace("NAMESPACE", "s")).unwrap();
    let operator = Operator {
        state: folder.path(),
        from: format!("zk://{}", ground.rig.zk()),
        admin: ground.rig.web(),
        config: config.display().to_string(),
    };

    // `gone` never came back. `busy` takes everything. `late` of another topic comes back between the announcement and the act; `wish` is
    // protected; `online` is connected and takes nothing.
    ground.topic("acme/s/t", "gone", 35);
    ground.rest.subscribe("acme/s/t", "busy");
    let mut busy = ground.rest.consumer("acme/s/t", "busy", SubType::Shared).unwrap();
    let got = busy.receive();
    busy.acknowledge(AckType::Individual, &got);
    busy.close();
    // The last ledger, which stays for now.
    let last = ground.produce("acme/s/t", 3);
    ground.rest.unload("acme/s/t");
    for topic in ["acme/s/late", "acme/s/wish", "acme/s/online"] {
        ground.topic(topic, "s", 25);
    }
    // This one's topic is never closed, so that only the broker knows where it stands.
    let written = ground.topic("acme/s/written", "s", 35);
    let mut writer = ground.rest.producer("acme/s/written");
    let newest = writer.send();
    let mut once = ground.rest.consumer("acme/s/written", "s", SubType::Shared).unwrap();
    once.receive();
    once.acknowledge(AckType::Individual, &written[..1]);
    once.close();
    let protect = subject("acme/s/wish", "s");
    let _ = run(folder.path(), &["protect", &protect, "--by", "anna"]).exits(0);
    let before = ground.ledgers("acme/s/t");
    assert!(before.len() > 3, "{before:?}");

    let gone = subject("acme/s/t", "gone");
    for scan in 1..=2 {
        operator.run();
        assert!(operator.verdicts(&gone).is_empty(), "acted on after {scan} scans");
        std::thread::sleep(Duration::from_millis(1500));
    }
    operator.run();
    assert_eq!(operator.verdicts(&gone), [("mark".to_owned(), "done".to_owned())]);
    assert_eq!(ground.ledgers("acme/s/t"), before, "an announcement changes nothing");
    assert!(operator.verdicts(&protect).is_empty(), "what is protected is not even announced");
    // The story is in the record: the announcement too.
    let shown = run(folder.path(), &["audit", "show", &gone]).exits(0);
    assert!(shown.out.contains("marked"), "{}", shown.out);

    // It comes back for a moment, takes one message and goes: its mark is cleared.
    let late = subject("acme/s/late", "s");
    let mut back = ground.rest.consumer("acme/s/late", "s", SubType::Shared).unwrap();
    let got = back.receive();
    back.acknowledge(AckType::Individual, &got[..1]);
    back.close();
    ground.rest.unload("acme/s/late");
    // This one is there, and takes nothing: the node looks as idle as ever.
    let online = ground.rest.consumer("acme/s/online", "s", SubType::Shared).unwrap();

    std::thread::sleep(Duration::from_secs(4));
    operator.run();
    let listed = run(folder.path(), &["protect", "--list"]).exits(0);
    assert!(!listed.out.contains(&late), "its mark is still there: {}", listed.out);
    let acted = operator.verdicts(&gone);
    assert_eq!(acted.last(), Some(&("consume".to_owned(), "done".to_owned())), "{acted:?}");
    // The last ledger stays, and with it what the subscription is still owed.
    let after = ground.ledgers("acme/s/t");
    assert!(before[..before.len() - 1].iter().all(|id| !after.contains(id)), "{before:?} to {after:?}");
    assert!(after.contains(before.last().unwrap()), "{before:?} to {after:?}");
    assert!(!operator.verdicts(&late).iter().any(|(verdict, _)| verdict == "consume"));
    let refused = operator.verdicts(&subject("acme/s/online", "s"));
    assert!(!refused.contains(&("consume".to_owned(), "done".to_owned())), "{refused:?}");

    // What was written since the topic was last loaded stays.
    let loaded = operator.verdicts(&subject("acme/s/written", "s"));
    assert!(loaded.iter().any(|(verdict, status)| verdict == "consume" && status != "skipped"), "{loaded:?}");
    assert!(!ground.ledgers("acme/s/written").iter().any(|id| written.iter().any(|entry| entry.ledger == *id)));
    assert!(!writer.is_closed());
    drop(writer);
    assert_eq!(ground.rest.owed("acme/s/written", "s"), [newest]);

    // Nobody else has lost anything.
    drop(online);
    assert_eq!(ground.rest.owed("acme/s/online", "s").len(), 25);
    assert_eq!(ground.rest.owed("acme/s/wish", "s").len(), 25);
    assert_eq!(ground.rest.owed("acme/s/late", "s").len(), 24);
    for subscription in ["gone", "busy"] {
        assert_eq!(
            ground.rest.owed("acme/s/t", subscription),
            last,
            "{subscription} is owed what lies in the last ledger"
        );
    }

    // Our own visit is no sign of life, and what is left is in the last ledger: nothing more to do.
    let plan = operator.plan();
    let item = plan["items"].as_array().unwrap().iter().find(|item| item["subject"] == gone.as_str());
    assert!(item.is_some_and(|item| item["verdict"] != "consume"), "{item:?}");
    let _ = run(folder.path(), &["audit", "verify"]).exits(0);
}

/// What is gone cannot be owed again: the undo says so and moves nothing.
pub(crate) fn freed_and_not_put_back(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "f");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("trimtab.toml");
    let rules =
        RULES.replace("NAMESPACE", "f").replace("sightings = 3\ngrace = \"4s\"", "trust = \"field\"\ngrace = \"0s\"");
    std::fs::write(&config, rules).unwrap();
    let (from, admin) = (format!("zk://{}", ground.rig.zk()), ground.rig.web());
    let entries = ground.topic("acme/f/t", "gone", 35);
    std::thread::sleep(Duration::from_secs(3));
    let config = config.display().to_string();
    let place = ["--from", &from, "--admin", &admin, "--config", &config];
    let ended = run(folder.path(), &[&["run", "--apply", "--namespace", "acme/f"][..], &place].concat());
    assert!([0, 4].contains(&ended.code), "{ended:?}");
    let listed = run(folder.path(), &["audit", "list", "--output", "json"]).exits(0);
    let acted: Value = serde_json::from_str(listed.out.lines().last().unwrap()).unwrap();
    assert_eq!((acted["verdict"].as_str(), acted["status"].as_str()), (Some("consume"), Some("done")), "{acted}");
    let id = acted["decision"].as_str().unwrap();
    // The data is gone: it says so and moves nothing.
    let refused = run(folder.path(), &[&["undo", id, "--by", "anna"][..], &place].concat());
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(refused.out.contains("is gone"), "{refused:?}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while ground.loaded("acme/f/t") {
        assert!(Instant::now() < deadline, "the topic stays loaded");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(ground.rest.owed("acme/f/t", "gone"), entries[30..]);
}
