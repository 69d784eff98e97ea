//! Brokers that refuse, fail, hang, send elsewhere, or say "done" before it is.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wiremock::{Request, Respond, ResponseTemplate};

use crate::ground::{Acted, Ground, LEDGERS, Stage, Trims, act_on};

const CONFIG: &str = "[limits]\nbroker_timeout = \"1s\"\nsettle = \"2s\"\nmetadata_rate = 0.0\n";

/// Nothing was freed, and nothing counts as freed.
fn nothing_freed(ground: &Ground, number: usize, acted: &Acted) {
    assert_eq!(ground.ids(number).len(), LEDGERS, "{acted:#?}");
    assert_eq!((acted.freed(), acted.outcome["freed_bytes"].as_i64()), (0, Some(0)), "{acted:#?}");
    let tally = &acted.ended.json()["tally"];
    assert_eq!((tally["ledgers"].as_u64(), tally["bytes"].as_i64()), (Some(0), Some(0)), "{tally}");
}

#[test]
#[ignore = "needs ZooKeeper"]
fn answers_that_are_no_success_free_nothing_and_fail_the_run() {
    let ground = Ground::new("faults", 96);
    let config = ground.file("config.toml", CONFIG);
    let stage = Stage::new();
    let answer = |status: u16| ResponseTemplate::new(status).set_body_json(serde_json::json!({ "reason": "because" }));
    // After an answer that may have loaded the topic it is closed again; after one that did not, it is left alone: asking
    // for its statistics would load it.
    let (alone, closed) = (&["trim"][..], &["trim", "stats", "unload"][..]);
    let cases = [
        (answer(401), "check the token", alone),
        (answer(403), "403", alone),
        (answer(404), "404", alone),
        (answer(405), "405", alone),
        (answer(409), "409", alone),
        (answer(412), "412", closed),
        (answer(429), "429", closed),
        (answer(500), "because", closed),
        (answer(503), "503", closed),
        (answer(204).set_delay(Duration::from_secs(3)), "whether it was carried out is not known", closed),
    ];
    for (case, (answer, says, calls)) in cases.into_iter().enumerate() {
        let broker = stage.broker(answer);
        let acted = act_on(&ground, case * 8, &config, &[broker.url()], &[]);
        assert_eq!(acted.ended.code, 1, "{says}: {acted:#?}");
        assert_eq!((acted.outcome["status"].as_str(), acted.intents), (Some("failed"), 1), "{says}: {acted:#?}");
        assert!(acted.says().contains(says), "{says}: {}", acted.says());
        assert_eq!(broker.calls(), calls, "{says}");
        nothing_freed(&ground, case * 8, &acted);
    }
}

#[test]
#[ignore = "needs ZooKeeper"]
fn done_is_what_the_metadata_shows() {
    let ground = Ground::new("faults", 96);
    let config = ground.file("config.toml", CONFIG);
    let stage = Stage::new();
    let trims = Trims::of(&ground);
    // 204 at once, the list shrinks later, but in time.
    let late = stage.broker(Trims { after: Duration::from_millis(1200), ..trims.clone() });
    let acted = act_on(&ground, 0, &config, &[late.url()], &[]);
    assert_eq!((acted.ended.code, acted.outcome["status"].as_str()), (0, Some("done")), "{acted:#?}");
    assert_eq!((acted.freed(), ground.ids(0).len()), (LEDGERS - 1, 1), "{acted:#?}");
    assert_eq!(late.calls(), ["trim", "stats", "unload"]);

    // 204, and the list never shrinks.
    let never = stage.broker(ResponseTemplate::new(204));
    let acted = act_on(&ground, 8, &config, &[never.url()], &[]);
    assert_eq!((acted.ended.code, acted.outcome["status"].as_str()), (4, Some("pending")), "{acted:#?}");
    assert!(acted.says().contains("does not show it after 2 s"), "{}", acted.says());
    nothing_freed(&ground, 8, &acted);

    // Half of it: what is gone counts, the act does not count as done.
    let half = stage.broker(Trims { ledgers: 1, ..trims.clone() });
    let acted = act_on(&ground, 16, &config, &[half.url()], &[]);
    assert_eq!((acted.ended.code, acted.outcome["status"].as_str()), (4, Some("pending")), "{acted:#?}");
    assert_eq!((acted.freed(), ground.ids(16).len()), (1, LEDGERS - 1), "{acted:#?}");

    // An error, and yet it was carried out.
    let liar = stage.broker(Trims { answer: 500, ..trims.clone() });
    let acted = act_on(&ground, 24, &config, &[liar.url()], &[]);
    assert_eq!((acted.outcome["status"].as_str(), acted.freed()), (Some("done"), LEDGERS - 1), "{acted:#?}");
    assert!(acted.says().contains("500"), "{}", acted.says());

    // Somebody came meanwhile: it stays open.
    let used = stage.bare();
    used.on("POST", "/trim$", trims.clone());
    let somebody = serde_json::json!({ "publishers": [{}], "subscriptions": {} });
    used.on("GET", "/stats$", ResponseTemplate::new(200).set_body_json(somebody));
    let acted = act_on(&ground, 32, &config, &[used.url()], &[]);
    assert_eq!((acted.ended.code, used.calls().join(" ").as_str()), (0, "trim stats"), "{acted:#?}");
    assert!(acted.says().contains("1 producers"), "{}", acted.says());

    // It cannot be closed again: said, but what was freed was freed.
    let stuck = stage.bare();
    stuck.on("POST", "/trim$", trims);
    stuck.on("GET", "/stats$", ResponseTemplate::new(500));
    let acted = act_on(&ground, 40, &config, &[stuck.url()], &[]);
    assert_eq!((acted.outcome["status"].as_str(), acted.outcome["unloaded"].as_bool()), (Some("done"), Some(false)));
    assert!(acted.says().contains("not closed again"), "{}", acted.says());
}

/// Sends a call to another address, path and all.
struct Elsewhere(String);

impl Respond for Elsewhere {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        ResponseTemplate::new(307).insert_header("location", format!("{}{}", self.0, request.url.path()))
    }
}

#[test]
#[ignore = "needs ZooKeeper"]
fn redirects_are_followed_to_known_brokers_only() {
    let ground = Ground::new("faults", 96);
    let config = ground.file("config.toml", CONFIG);
    let token = ground.file("token", "a-secret-token\n");
    let stage = Stage::new();
    let bearer = |request: &Request| request.headers.get("authorization").map(|v| v.to_str().unwrap().to_owned());

    // To a host that nobody allowed: nothing is sent there, not even without the token.
    let stranger = stage.broker(Trims::of(&ground));
    let broker = stage.broker(Elsewhere(stranger.url()));
    let acted = act_on(&ground, 0, &config, &[broker.url()], &["--token-file", &token]);
    assert_eq!((acted.ended.code, acted.outcome["status"].as_str()), (1, Some("failed")), "{acted:#?}");
    assert!(acted.says().contains("not a known broker"), "{}", acted.says());
    assert!(stranger.requests().is_empty(), "{:?}", stranger.requests());
    nothing_freed(&ground, 0, &acted);

    // To one that is allowed: the same method, with the token.
    let owner = stage.broker(Trims::of(&ground));
    let broker = stage.broker(Elsewhere(owner.url()));
    let allowed = ["--token-file", &token, "--allowed-host", &owner.host()];
    let acted = act_on(&ground, 8, &config, &[broker.url()], &allowed);
    assert_eq!((acted.ended.code, acted.freed()), (0, LEDGERS - 1), "{acted:#?}");
    let sent = owner.requests();
    assert_eq!((sent.len(), sent[0].method.as_str()), (1, "POST"), "{sent:?}");
    assert!(sent.iter().chain(&broker.requests()).all(|r| bearer(r).as_deref() == Some("Bearer a-secret-token")));

    // Round in a circle: it ends, after as many steps as a call may take.
    let broker = stage.bare();
    broker.on("POST", "/trim$", Elsewhere(broker.url()));
    let acted = act_on(&ground, 16, &config, &[broker.url()], &["--token-file", &token]);
    assert!(acted.says().contains("more than 5 redirects"), "{}", acted.says());
    assert_eq!(broker.calls().iter().filter(|call| *call == "trim").count(), 6);
    nothing_freed(&ground, 16, &acted);

    // To no address at all, and by another protocol.
    for (number, location) in [(24, "http://["), (32, "ftp://127.0.0.1/x")] {
        let broker = stage.broker(ResponseTemplate::new(307).insert_header("location", location));
        let acted = act_on(&ground, number, &config, &[broker.url()], &[]);
        assert_eq!((acted.ended.code, acted.outcome["status"].as_str()), (1, Some("failed")), "{acted:#?}");
        nothing_freed(&ground, number, &acted);
    }
    // The token is nowhere in what was printed or recorded.
    for number in [0, 8, 16] {
        let state = ground.state(&format!("topic-{number}"));
        let record = std::fs::read_to_string(state.join("audit/executor.jsonl")).unwrap();
        assert!(!record.contains("a-secret-token"));
    }
}

/// Takes a request and goes away without an answer; how often.
fn mute() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, taken) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicUsize::new(0)));
    let count = taken.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = [0; 4096];
            if stream.read(&mut head).is_ok_and(|n| n > 0) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (url, taken)
}

/// The second broker takes over from one that is not there, but never from one that may have done it already. The names are
/// those of Kafka Connect's topics: no word in them may decide.
#[test]
#[ignore = "needs ZooKeeper"]
fn another_broker_is_asked_only_when_nothing_was_sent() {
    let ground = Ground::new("connect", 16);
    let config = ground.file("config.toml", CONFIG);
    let stage = Stage::new();
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let second = stage.broker(Trims::of(&ground));
    let acted = act_on(&ground, 0, &config, &[nobody, second.url()], &[]);
    assert_eq!((acted.ended.code, acted.freed()), (0, LEDGERS - 1), "{acted:#?}");

    let (mute, taken) = mute();
    let second = stage.broker(Trims::of(&ground));
    let acted = act_on(&ground, 8, &config, &[mute, second.url()], &[]);
    assert_eq!((acted.ended.code, acted.outcome["status"].as_str()), (1, Some("failed")), "{acted:#?}");
    assert!(taken.load(Ordering::SeqCst) > 0);
    assert!(!second.calls().contains(&"trim".to_owned()), "{:?}", second.calls());
    nothing_freed(&ground, 8, &acted);
}
