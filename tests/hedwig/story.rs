//! The whole story by the command line: several scans see a subscriber idle, it is announced, and it is moved as itself. Who is online loses
//! nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::book::quickstart;
use trimtab_tests::hedwig::{Hands, HedwigRig, REGION, TOPICS};
use trimtab_tests::java::Shift;
use trimtab_tests::trimtab::run;
use trimtab_tests::webhook::Webhook;

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
    for topic in ["t1", "ns/t2", "t3", "ahead"] {
        hands.prepare(topic, &["idle"]).unwrap();
        hands.run(&format!("publish {topic} 250")).unwrap();
    }
    hands.run("online busy t3 idle").unwrap();
    // Too few for the hub to write down.
    hands.run("consume ahead idle 5").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let config = state.join("trimtab.toml");
    // The first two calls are refused: they are made again, and nothing waits for that but the end of the run.
    let told = Webhook::start(2).unwrap();
    let password = state.join("password");
    std::fs::write(state.join("token"), "s3cret\n").unwrap();
    std::fs::write(&password, "scan:of-the-region\n").unwrap();
    let text = format!(
        "[notify]\nwebhook = \"{}\"\ntoken_file = \"{}\"\n[hedwig]\nregion = \"{REGION}\"\nsettle = \"300ms\"\n[caps]\nmax_share = 1.0\n[[rules]]\nname = \"idle\"\n\
         stale_after = \"2s\"\nsightings = 3\ngrace = \"3s\"\n",
        told.url(),
        state.join("token").display(),
    );
    std::fs::write(&config, &text).unwrap();
    let (from, config) = (format!("hedwig+zk://{}", rig.zk()), config.display().to_string());
    let place = ["--from", &from, "--config", &config];
    // The quick start, with a state of its own. Before the first scan of this test: it does not touch anything.
    let elsewhere = tempfile::tempdir().unwrap();
    for command in quickstart("Hedwig", &[("hedwig+zk://HOST:2181", &from)]) {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["--config", &config]).collect();
        let ended = run(elsewhere.path(), &args);
        assert!([0, 4].contains(&ended.code), "{command:?}: {ended:?}");
    }
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
    // Its owner is told, in a few words.
    assert_eq!((told.refused().len(), told.taken().len()), (2, 4));
    let notice = told.taken().into_iter().find(|notice| notice["subject"] == subject("t1")).unwrap();
    assert_eq!((notice["announced"].as_str(), notice["target"].as_str()), (Some("marked"), Some("hedwig")), "{notice}");
    assert!(notice["not_before_ms"].as_i64() > notice["at_ms"].as_i64() && notice.to_string().len() < 1000, "{notice}");
    assert!(told.tokens().iter().all(|token| token == "s3cret") && !told.tokens().is_empty());
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
    // When it took those five nobody knows, so it counts as active at the visit; at the next one it still stands there.
    let ahead = subject("ahead");
    let skipped = [("mark", "done"), ("consume", "skipped")].map(|(verdict, status)| (verdict.into(), status.into()));
    assert_eq!(verdicts(state, &ahead), skipped);
    assert_eq!(hands.show("ahead").unwrap().subscribers["idle"].1, 0);
    for pause in [1500, 1500, 3000, 0] {
        act();
        std::thread::sleep(Duration::from_millis(pause));
    }
    let acted = verdicts(state, &ahead);
    assert_eq!(acted[2..], [("mark", "done"), ("consume", "done")].map(|(v, s)| (v.into(), s.into())), "{acted:?}");
    let after = hands.wait_for("ahead", SOON, |shown| shown.ledgers.len() == 1).unwrap();
    assert_eq!((after.subscribers["idle"].0, after.subscribers["idle"].1), (240, 1), "written once");
    clocks_and_credentials(rig, hands, state, &from, &text, &password);
}

/// ZooKeeper's clock goes back by an hour; and at the end only whoever knows a password sees the topics.
fn clocks_and_credentials(mut rig: HedwigRig, hands: Hands, state: &Path, from: &str, config: &str, password: &Path) {
    let file = state.join("trimtab.toml");
    let place = ["--from", from, "--config", file.to_str().unwrap()];
    drop(hands);
    rig.move_clock(Shift::millis(-3_600_000)).unwrap();
    let mut hands = rig.hands().unwrap();
    let start = Instant::now();
    while let Err(e) = hands.run("consume t3 idle 60") {
        assert!(start.elapsed() < Duration::from_secs(60), "{e}");
    }
    let stopped = run(state, &[&["run", "--apply"][..], &place].concat());
    assert!(stopped.code == 3 && stopped.err.contains("behind ours"), "{stopped:?}");

    hands.run(&format!("lock {TOPICS} scan:of-the-region")).unwrap();
    let refused = run(state, &[&["plan"][..], &place].concat());
    assert!(refused.code != 0 && refused.err.contains("right to read it"), "{refused:?}");
    let with = config.replacen("[hedwig]", &format!("[hedwig]\nzk_digest_file = \"{}\"", password.display()), 1);
    std::fs::write(&file, with).unwrap();
    let seen = run(state, &[&["plan", "--explain"][..], &place].concat());
    assert!([0, 4].contains(&seen.code) && seen.out.contains("t3"), "{seen:?}");
}
