//! The whole story by the command line: several scans see a subscriber idle, it is announced, and it is moved as itself. Who is online loses
//! nothing.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use trimtab_tests::hedwig::{HedwigRig, REGION};
use trimtab_tests::trimtab::run;

const SOON: Duration = Duration::from_secs(15);

fn verdicts(state: &Path, subject: &str) -> Vec<(String, String)> {
    let listed = run(state, &["audit", "list", "--output", "json"]).exits(0);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let records = listed.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|r| r["subject"] == subject).map(|r| (text(&r["verdict"]), text(&r["status"]))).collect()
}

#[test]
#[ignore = "needs Hedwig"]
fn an_abandoned_subscriber_is_found_announced_and_moved() {
    let rig = HedwigRig::builder().start().unwrap();
    let mut hands = rig.hands().unwrap();
    for topic in ["t1", "ns/t2", "t3"] {
        hands.prepare(topic, &["idle"]).unwrap();
        hands.run(&format!("publish {topic} 250")).unwrap();
    }
    hands.run("online busy t3 idle").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let config = state.join("trimtab.toml");
    let text = format!(
        "[hedwig]\nregion = \"{REGION}\"\nsettle = \"300ms\"\n[caps]\nmax_share = 1.0\n[[rules]]\nname = \"idle\"\n\
         stale_after = \"2s\"\nsightings = 3\ngrace = \"3s\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let (from, config) = (format!("hedwig+zk://{}", rig.zk()), config.display().to_string());
    let place = ["--from", &from, "--config", &config];
    let act = || {
        let ended = run(state, &[&["run", "--apply"][..], &place].concat());
        assert!([0, 4].contains(&ended.code), "{ended:?}");
    };
    let subject = |topic: &str| format!("hedwig://{REGION}/{topic}?subscription=idle");
    let before = hands.show("t1").unwrap();
    for _ in 0..2 {
        act();
        assert!(verdicts(state, &subject("t1")).is_empty());
        std::thread::sleep(Duration::from_millis(1500));
    }
    act();
    assert_eq!(verdicts(state, &subject("t1")), [("mark".to_owned(), "done".to_owned())]);
    assert_eq!(hands.show("t1").unwrap(), before, "an announcement changes nothing");
    std::thread::sleep(Duration::from_secs(3));
    act();
    for topic in ["t1", "ns/t2"] {
        let acted = verdicts(state, &subject(topic));
        assert_eq!(acted.last(), Some(&("consume".to_owned(), "done".to_owned())), "{topic}: {acted:?}");
        // The hub gives the ledgers back in its own time.
        let after = hands.wait_for(topic, SOON, |shown| shown.ledgers.len() == 1).unwrap();
        assert_eq!((after.subscribers["idle"].0, after.subscribers["idle"].1), (240, 1), "{topic}: written once");
    }
    // Online and slow: its node is as old as the others', and the hub refuses the attach.
    let refused = verdicts(state, &subject("t3"));
    assert_eq!(refused.last(), Some(&("consume".to_owned(), "skipped".to_owned())), "{refused:?}");
    let heard = hands.run("heard busy").unwrap();
    assert!(heard.contains("received=250"), "{heard}");
    // What the hub cannot do is said.
    let listed = run(state, &["audit", "list", "--output", "json"]).exits(0);
    let done = listed.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let done: Vec<Value> = done.filter(|r| r["verdict"] == "consume" && r["status"] == "done").collect();
    let done = done.last().unwrap();
    let id = done["decision"].as_str().unwrap().to_owned();
    let undo = run(state, &[&["undo", &id, "--by", "anna"][..], &place].concat());
    assert_eq!(undo.code, 1, "{undo:?}");
    assert!(undo.err.contains("forward only"), "{undo:?}");
}
