//! The console in a real browser: every view, what happens live, what may be done, and whether everybody can read it.

use std::path::PathBuf;

use serde_json::json;
use trimtab::config::{Caps, ConsoleConfig};
use trimtab::console::{Grade, Hands, new_token};
use trimtab::journal::{Entry, RecordKind};
use trimtab_events::{Proposed, ScanRef};
use trimtab_tests::browser::{Driver, Look, Session, axe};
use uuid::Uuid;

use super::ground::{Ground, NOW_MS};

const DESK: Look = Look { dark: false, width: 1200, height: 900, no_script: false };
const PHONE: Look = Look { dark: false, width: 390, height: 800, no_script: false };

/// Where pictures go, if somebody wants to see them.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("TRIMTAB_PICTURES").map(PathBuf::from)
}

async fn picture(session: &Session<'_>, name: &str) {
    if let Some(folder) = pictures() {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), session.picture().await.unwrap()).unwrap();
    }
}

fn intent(subject: &str, decision: &str) -> Entry {
    let decision_body = json!({
        "id": decision, "scan": {"id": Uuid::nil(), "fence": 1}, "verdict": "trim", "ledgers": [1, 2], "bytes": 2048, "decided_ms": NOW_MS,
        "reasons": [{"rule": "retention", "says": "past it", "inputs": {"age": "9 d"}}],
    });
    Entry {
        kind: RecordKind::Intent,
        id: decision.to_owned(),
        subject: subject.to_owned(),
        trace_id: "0123456789abcdef0123456789abcdef".to_owned(),
        body: json!({"decision": decision_body, "before": {"ledgers": [1, 2, 3], "bytes": 4096}, "evidence": {}}),
    }
}

fn outcome(subject: &str, decision: &str) -> Entry {
    let state = |ledgers: serde_json::Value, bytes: i64| json!({"ledgers": ledgers, "bytes": bytes});
    let body = json!({
        "decision": decision, "scan": {"id": Uuid::nil(), "fence": 1}, "target": "pulsar", "subject": subject, "verdict": "trim",
        "status": "done", "reasons": [], "before": state(json!([1, 2, 3]), 4096), "after": state(json!([3]), 2048), "predicted": [1, 2],
        "freed": [1, 2], "predicted_bytes": 2048, "freed_bytes": 2048, "unloaded": true, "executor": "e", "started_ms": NOW_MS,
        "ended_ms": NOW_MS + 900, "trace_id": "",
    });
    let trace_id = "0123456789abcdef0123456789abcdef".to_owned();
    Entry { kind: RecordKind::Outcome, id: decision.to_owned(), subject: subject.to_owned(), trace_id, body }
}

/// A console that has something to show on every page.
async fn furnished() -> Ground {
    let ground = Ground::start().await;
    ground.plan().await;
    let subject = "persistent://acme/week/done";
    ground.journal.write(intent(subject, "d0")).await.unwrap();
    ground.journal.write(outcome(subject, "d0")).await.unwrap();
    let scan = ScanRef { id: Uuid::now_v7(), fence: 1 };
    let stopped = Some("51.0 % of the bytes seen would be acted on, more than max_share (50.0 %)".to_owned());
    let proposed = Proposed { acts: 78, ledgers: 241, bytes: 6_498_040 };
    let gate = trimtab::scans::Gate { scan, proposed, stopped, confirmed_by: None, incomplete: false };
    ground.scans.approve(&gate).await.unwrap();
    ground.bus.publish_bytes(trimtab_bus::Role::Scanner, b"{".to_vec()).await.unwrap();
    let taken = trimtab_bus::Bus::take(&*ground.bus, trimtab_bus::Role::Scanner).await.unwrap();
    taken.settle.dead("it is not an event: EOF while parsing an object".to_owned()).await.unwrap();
    let wish = trimtab_events::Protection {
        subject: "persistent://acme/live/kept".into(),
        by: "alice".into(),
        until_ms: None,
    };
    ground.activity.protect(&wish).await.unwrap();
    ground.until("/api/v1/acts", |answer| answer.body.contains("\"done\"")).await;
    ground
}

const VIEWS: [(&str, &str, &str); 9] = [
    ("overview", "/", "What would be freed"),
    ("plan", "/plan?acts=true", "persistent://acme/sizetime/old"),
    ("item", "/plan/item/1", "Every rule that spoke"),
    ("approve", "/plan/approve", "this console only looks"),
    ("story", "/story?about=d0", "2.0 KiB of 2.0 KiB that were predicted"),
    ("acts", "/acts", "persistent://acme/week/done"),
    ("limits", "/limits", "more than max_share"),
    ("marks", "/marks", "persistent://acme/live/kept"),
    ("dead", "/dead", "it is not an event"),
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium"]
async fn every_view_can_be_read_by_everybody() {
    let (ground, driver, axe) = (furnished().await, Driver::start().await.unwrap(), axe().unwrap());
    let mut wrong = Vec::new();
    for (name, look) in [("light", DESK), ("dark", Look { dark: true, ..DESK }), ("phone", PHONE)] {
        let session = driver.open(look).await.unwrap();
        for (view, path, says) in VIEWS.iter().chain(&[("recovery", "/recovery", "Log dirs, by their last run")]) {
            session.go(&format!("{}{path}", ground.base)).await.unwrap();
            session.says(says).await.unwrap();
            let wide = session
                .run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                .await
                .unwrap();
            assert_eq!(wide, 0, "{view} is wider than its window ({name})");
            wrong.extend(session.axe(&axe).await.unwrap().into_iter().map(|why| format!("{view}, {name}: {why}")));
            picture(&session, &format!("{view}-{name}")).await;
        }
        let dark = session.run("return matchMedia('(prefers-color-scheme: dark)').matches").await.unwrap();
        assert_eq!(dark, look.dark);
        session.close().await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // And without any script.
    let session = driver.open(Look { no_script: true, ..DESK }).await.unwrap();
    for (_, path, says) in VIEWS {
        session.go(&format!("{}{path}", ground.base)).await.unwrap();
        session.says(says).await.unwrap();
    }
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium"]
async fn acts_appear_as_they_happen_and_things_can_be_left_alone() {
    let (ground, driver) = (furnished().await, Driver::start().await.unwrap());
    let session = driver.open(DESK).await.unwrap();
    session.go(&ground.base).await.unwrap();
    session.says("Live: new acts appear by themselves.").await.unwrap();
    let hostile = "persistent://acme/week/<img src=x onerror=\"window.broken=1\">";
    ground.journal.write(intent(hostile, "d1")).await.unwrap();
    session.says(hostile).await.unwrap();
    session.says("under way").await.unwrap();
    ground.journal.write(outcome(hostile, "d1")).await.unwrap();
    let rows = "return [...document.querySelectorAll('tbody[data-live] tr')].map((row) => row.innerText).filter((text) => text.includes('onerror'))";
    // The row of the act is the same, further on.
    let mut shown = json!([]);
    for _ in 0..200 {
        shown = session.run(rows).await.unwrap();
        if shown.to_string().contains("done") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(shown.as_array().is_some_and(|rows| rows.len() == 1) && shown.to_string().contains("done"), "{shown}");
    assert_eq!(session.run("return window.broken ?? null").await.unwrap(), json!(null));
    // What may be in the policy's way is told by the browser.
    session.go(&format!("{}/plan/item/1", ground.base)).await.unwrap();
    session.click("form[action='/protect'] button").await.unwrap();
    session.says("It is left alone from now on.").await.unwrap();
    assert_eq!(ground.activity.protections().await.unwrap().len(), 2);
    // A question comes before what cannot be taken back, and "no" does nothing.
    session.go(&format!("{}/limits", ground.base)).await.unwrap();
    let confirm = "form[action='/scans/confirm'] button";
    session.click(confirm).await.unwrap();
    assert!(session.answer(false).await.unwrap().contains("although it was stopped"));
    assert!(!ground.kinds().contains(&RecordKind::Confirm));
    session.click(confirm).await.unwrap();
    session.answer(true).await.unwrap();
    session.says("Confirmed: its decisions may be carried out.").await.unwrap();
    assert!(ground.kinds().contains(&RecordKind::Confirm));
    // By keyboard alone: the first tab leads to the content.
    session.go(&ground.base).await.unwrap();
    session.keys("body", "\u{e004}\u{e007}").await.unwrap();
    assert_eq!(session.run("return location.hash").await.unwrap(), "#main");
    session.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium"]
async fn who_may_only_look_finds_no_button() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (token, line) = new_token("bob", Grade::Viewer).unwrap();
    std::fs::write(file.path(), line).unwrap();
    let config = ConsoleConfig { tokens_file: Some(file.path().to_owned()), ..ConsoleConfig::default() };
    let ground = Ground::with(config, Caps::default(), |_| Hands::None("it only looks".to_owned())).await;
    let driver = Driver::start().await.unwrap();
    let session = driver.open(DESK).await.unwrap();
    session.go(&format!("{}/plan", ground.base)).await.unwrap();
    session.says("Your token").await.unwrap();
    session.keys("input[name=token]", "wrong\u{e007}").await.unwrap();
    session.says("Nobody has this token.").await.unwrap();
    session.keys("input[name=token]", &format!("{token}\u{e007}")).await.unwrap();
    session.says("bob, viewer").await.unwrap();
    session.says("Review and approve").await.unwrap();
    for path in ["/", "/plan?acts=true", "/plan/item/1", "/plan/approve", "/limits", "/marks", "/dead"] {
        session.go(&format!("{}{path}", ground.base)).await.unwrap();
        let forms = session
            .run("return [...document.querySelectorAll('form[method=post]')].map((form) => form.action)")
            .await
            .unwrap();
        assert_eq!(forms, json!([format!("{}/logout", ground.base)]), "{path}");
    }
    assert_eq!(session.run("return document.cookie").await.unwrap(), "");
    session.click("form[action='/logout'] button").await.unwrap();
    session.says("Your token").await.unwrap();
    session.close().await.unwrap();
}
