//! `trimtab doctor` on a server: what is missing, and then nothing.

use serde_json::Value;
use trimtab_bus::conformance::event;
use trimtab_bus::{Bus, Role};
use trimtab_tests::book::quickstart;
use trimtab_tests::trimtab::{Ended, run};

use crate::Ground;

fn graded(ended: &Ended, what: &str) -> Value {
    let mut lines = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let found = lines.find(|line| line["what"] == what);
    found.unwrap_or_else(|| panic!("nothing about {what}: {ended:?}"))
}

#[test]
#[ignore = "needs nats-server"]
fn what_is_missing_on_nats_is_told_with_what_to_do() {
    let ground = Ground::new();
    let url = ground.nats.url();
    let args = ["doctor", "--nats", &url, "--from", &url, "--output", "json"];
    let before = run(ground.state(), &args).exits(1);
    let streams = graded(&before, "streams and consumers");
    assert_eq!(streams["grade"], "bad");
    assert!(streams["advice"].as_str().expect("text").contains("trimtab nats setup"), "{streams}");
    assert!(ground.consumers().is_empty(), "looking makes nothing");

    let _ = run(ground.state(), &["nats", "setup", "--nats", &url]).exits(0);
    let after = run(ground.state(), &args).exits(0);
    for what in ["streams and consumers", "dead letters", "clock of the server", "account $G"] {
        let found = graded(&after, what);
        assert_eq!(found["grade"], "good", "{found}");
        assert_eq!(found.get("advice"), None, "{found}");
    }

    let sent = event(Role::Decider, "a", "x");
    let bus = ground.bus();
    ground.runtime.block_on(async {
        bus.publish(&sent).await.expect("stored");
        let taken = bus.take(Role::Decider).await.expect("taken");
        taken.settle.dead("a test".to_owned()).await.expect("given up");
    });
    let found = graded(&run(ground.state(), &args).exits(0), "dead letters");
    assert_eq!(found["grade"], "doubtful", "{found}");

    // For a person: what, and what to do, below the name of what it is about.
    let told = run(ground.state(), &["doctor", "--nats", "nats://127.0.0.1:1"]).exits(1);
    assert!(told.out.contains("bus at nats://127.0.0.1:1\n  [BAD]  connection: "), "{told:?}");
    assert!(told.out.contains("-> give --from"), "{told:?}");
}

#[test]
#[ignore = "needs nats-server"]
fn the_quick_start_for_nats_can_be_typed() {
    let ground = Ground::new();
    let url = ground.nats.url();
    let seed = ground.state().join("decider.seed").display().to_string();
    let fills = [("nats://HOST:4222", url.as_str()), ("decider.seed", &seed)];
    for section in ["Many workers", "NATS JetStream"] {
        for command in quickstart(section, &fills) {
            let args: Vec<&str> = command.iter().map(String::as_str).collect();
            let _ = run(ground.state(), &args).exits(0);
        }
    }
}
