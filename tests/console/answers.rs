//! What it shows, and that the read API is as its document says.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use trimtab::journal::{Entry, RecordKind};

use super::ground::Ground;

/// A name that somebody chose to do harm with.
const HOSTILE: &str = "persistent://a/b/<script>alert(1)</script>\"onload='x'&amp;";

const PAGES: [&str; 10] = [
    "/",
    "/plan",
    "/plan?acts=true",
    "/plan/item/1",
    "/plan/approve",
    "/acts",
    "/limits",
    "/marks",
    "/dead",
    "/recovery",
];

fn outcome(subject: &str, decision: &str, bytes: i64) -> Entry {
    let scan = json!({"id": "01890000-0000-7000-8000-000000000001", "fence": 1});
    Entry {
        kind: RecordKind::Outcome,
        id: decision.to_owned(),
        subject: subject.to_owned(),
        trace_id: "0123456789abcdef0123456789abcdef".to_owned(),
        body: json!({
            "decision": decision, "scan": scan, "target": "pulsar", "subject": subject, "verdict": "trim", "status": "failed",
            "reasons": [{"rule": "call", "says": HOSTILE, "inputs": {HOSTILE: HOSTILE}}], "predicted": [1], "freed": [1], "predicted_bytes": bytes,
            "freed_bytes": bytes, "unloaded": true, "executor": HOSTILE, "started_ms": 1_795_986_000_000_i64,
            "ended_ms": 1_795_986_001_000_i64, "trace_id": "",
        }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_the_read_api_is_as_its_document_says() {
    let ground = Ground::start().await;
    ground.plan().await;
    ground.journal.write(outcome("persistent://a/b/c", "d1", 7)).await.unwrap();
    ground.until("/api/v1/acts", |answer| answer.body.contains("d1")).await;
    let protect = ground.post("/protect", &[("subject", "persistent://a/b/c"), ("until", "")]).await;
    assert_eq!(protect.status, 303, "{protect:?}");
    let document = ground.get("/api/v1/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 10);
    let check = |answer: &Value, schema: &Value, of: &str| {
        let mut whole = schema.clone();
        whole["components"] = document["components"].clone();
        let validator = jsonschema::draft202012::new(&whole).unwrap_or_else(|e| panic!("{of}: {e}"));
        let wrong: Vec<String> = validator.iter_errors(answer).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert!(wrong.is_empty(), "{of}: {wrong:?}");
    };
    for (path, described) in paths {
        let described = &described["get"];
        let queries: &[&str] = match path.as_str() {
            "/api/v1/plan/items" => {
                &["", "?acts=true&last=1", "?namespace=acme/week&text=e", "?reason=retention&verdict=trim"]
            }
            "/api/v1/stories" => &["?about=d1", "?about=persistent%3A%2F%2Fa%2Fb%2Fc", "?about=nobody"],
            _ => &[""],
        };
        for query in queries {
            let asked = path.replace("{id}", "1") + query;
            let answer = ground.get(&asked).await;
            assert_eq!(answer.status, 200, "{asked}: {}", answer.body);
            check(&answer.json(), &described["responses"]["200"]["content"]["application/json"]["schema"], &asked);
        }
    }
    let problem = &paths["/api/v1/plan"]["get"]["responses"]["default"]["content"]["application/json"]["schema"];
    for (asked, status) in [
        ("/api/v1/plan/items/100000", 404),
        ("/api/v1/plan/items?after=1_2&before=1_2", 400),
        ("/api/v1/plan/items?after=x", 400),
        ("/api/v1/acts?before=x", 400),
        ("/api/v1/nothing", 404),
    ] {
        let answer = ground.get(asked).await;
        assert_eq!(answer.status, status, "{asked}");
        check(&answer.json(), problem, asked);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_list_hold_every_item_once_from_both_ends() {
    let ground = Ground::start().await;
    let plan = ground.plan().await;
    for filter in [
        "",
        "acts=true",
        "acts=false",
        "namespace=bulk/n",
        "verdict=trim",
        "reason=retention",
        "verdict=trim&namespace=acme/week",
    ] {
        let mut seen: Vec<i64> = Vec::new();
        let mut sizes: Vec<i64> = Vec::new();
        let mut last = Value::Null;
        let mut place = String::new();
        loop {
            let page = ground.get(&format!("/api/v1/plan/items?{filter}{place}")).await.json();
            for item in page["items"].as_array().unwrap() {
                seen.push(item["id"].as_i64().unwrap());
                sizes.push(if item["acts"] == true { &item["bytes"] } else { &item["held_bytes"] }.as_i64().unwrap());
            }
            let next = page["next"].as_str().map(str::to_owned);
            last = if next.is_none() { page } else { last };
            let Some(next) = next else { break };
            place = format!("&after={next}");
        }
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{filter}: {sizes:?}");
        let once: BTreeSet<i64> = seen.iter().copied().collect();
        assert_eq!(once.len(), seen.len(), "{filter}");
        assert_eq!(last["total"]["items"].as_u64().unwrap(), seen.len() as u64, "{filter}");
        // The last page by itself ends with the same item.
        let end = ground.get(&format!("/api/v1/plan/items?{filter}&last=1")).await.json();
        assert_eq!(end["items"].as_array().unwrap().last(), last["items"].as_array().unwrap().last(), "{filter}");
        assert_eq!(end["next"], Value::Null);
    }
    let totals =
        |name: &str| plan[name].as_array().unwrap().iter().map(|sum| sum["bytes"].as_i64().unwrap()).sum::<i64>();
    assert_eq!(totals("verdicts"), plan["total"]["bytes"].as_i64().unwrap());
    assert_eq!(totals("reasons"), plan["total"]["bytes"].as_i64().unwrap());
}

/// The plan that the page shows is the one that `trimtab plan` makes.
#[tokio::test(flavor = "multi_thread")]
async fn its_totals_are_those_of_the_plan() {
    let ground = Ground::start().await;
    let plan = ground.plan().await;
    // As the fixture's own answers have it.
    let expected = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/data/pulsar/expected.jsonl")).unwrap();
    let acting = expected.lines().filter(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        ["trim", "expire-then-trim", "start-clock"].contains(&line["verdict"].as_str().unwrap_or_default())
    });
    assert_eq!(plan["total"]["items"].as_u64().unwrap(), acting.count() as u64);
    let page = ground.get("/").await;
    assert!(page.body.contains("acme/sizetime") && page.body.contains("<svg class=\"treemap"), "{}", page.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_on_a_page_is_run_that_is_not_ours() {
    let ground = Ground::start().await;
    ground.plan().await;
    ground.journal.write(outcome(HOSTILE, "d1", 7)).await.unwrap();
    let wish = [("subject", HOSTILE), ("until", "2099-01-01")];
    assert_eq!(ground.post("/protect", &wish).await.status, 303);
    // What is no event, and the reason why it was given up.
    ground.bus.publish_bytes(trimtab_bus::Role::Scanner, HOSTILE.as_bytes().to_vec()).await.unwrap();
    let delivery = trimtab_bus::Bus::take(&*ground.bus, trimtab_bus::Role::Scanner).await.unwrap();
    delivery.settle.dead(HOSTILE.to_owned()).await.unwrap();
    ground.until("/api/v1/acts", |answer| answer.body.contains("d1")).await;
    let about = "/story?about=%3Cscript%3Ealert(1)%3C%2Fscript%3E";
    let of = "/story?about=d1";
    let texts = ["/plan?text=%22%3E%3Cscript%3E&namespace=%3Cb%3E&reason=%22x", "/nothing", "/limits?done=%3Cb%3E"];
    for page in PAGES.iter().copied().chain([about, of]).chain(texts) {
        let answer = ground.get(page).await;
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{page}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{page}");
        assert_eq!(answer.header("cache-control"), "no-store", "{page}");
        let body = answer.body.to_ascii_lowercase();
        for part in ["<script>", "<script>alert", " style=", "javascript:", "\"onload", "<b>"] {
            assert!(!body.contains(part), "{page} has {part}");
        }
        assert!(!body.contains("http://") || page == "/", "{page} names another host");
    }
    assert!(ground.get("/acts").await.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(ground.get("/dead").await.body.contains("&lt;script&gt;"));
    let story = ground.get(of).await.body;
    assert!(story.contains("https://traces.example/0123456789abcdef0123456789abcdef"));
}

#[tokio::test(flavor = "multi_thread")]
async fn style_and_script_are_kept_by_browsers_and_named_by_what_is_in_them() {
    let ground = Ground::start().await;
    let page = ground.get("/acts").await.body;
    for (end, kind) in [(".css", "text/css"), (".js", "text/javascript")] {
        let at = page.find(end).unwrap();
        let from = page[..at].rfind('"').unwrap() + 1;
        let asset = ground.get(&page[from..at + end.len()]).await;
        assert_eq!(asset.status, 200);
        assert!(asset.header("content-type").starts_with(kind) && asset.header("cache-control").contains("immutable"));
    }
    assert_eq!(ground.get("/static/console.css").await.status, 404);
}

/// A journal that was changed is told of everywhere, and what follows the change is not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_changed_is_said_to_be() {
    let ground = Ground::start().await;
    ground.plan().await;
    for n in 0..3 {
        ground.journal.write(outcome("persistent://a/b/c", &format!("d{n}"), 7)).await.unwrap();
    }
    ground.until("/api/v1/record", |answer| answer.json()[0]["records"] == 3).await;
    assert_eq!(ground.get("/api/v1/record").await.json()[0]["damaged"], Value::Null);
    assert!(ground.get("/").await.body.contains("The record is whole"));
    ground.forge();
    ground.until("/api/v1/record", |answer| answer.body.contains("was changed")).await;
    assert!(ground.get("/").await.body.contains("cannot be believed"));
    assert_eq!(ground.get("/api/v1/overview").await.json()["attention"]["damaged"], 1);
}

/// Every step from the sighting to the bytes, in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_story_goes_from_the_sighting_to_the_bytes() {
    let ground = Ground::start().await;
    let id = ground.plan().await["id"].as_str().unwrap().to_owned();
    let item = ground.get("/api/v1/plan/items/1").await.json();
    let list = ground.get("/api/v1/plan/items?acts=true").await.json();
    let item = if item["item"]["acts"] == true {
        item
    } else {
        let id = list["items"][0]["id"].as_i64().unwrap();
        ground.get(&format!("/api/v1/plan/items/{id}")).await.json()
    };
    let decision = item["full"]["decision"].clone();
    let subject = decision["subject"].as_str().unwrap().to_owned();
    let write = async |kind, id: &str, subject: &str, body: Value| {
        let entry = Entry { kind, id: id.to_owned(), subject: subject.to_owned(), trace_id: String::new(), body };
        ground.journal.write(entry).await.unwrap();
    };
    write(RecordKind::Approve, &id, "", json!({"by": "alice", "digest": "d"})).await;
    let decided = decision["id"].as_str().unwrap();
    let before = json!({"seen": decision["seen"], "ledgers": [1, 2, 3], "bytes": 300});
    write(RecordKind::Intent, decided, &subject, json!({"decision": decision, "before": before, "evidence": {}})).await;
    let mut body = outcome(&subject, decided, 7).body;
    body["scan"] = decision["scan"].clone();
    (body["status"], body["before"], body["after"]) = (json!("done"), before.clone(), before);
    write(RecordKind::Outcome, decided, &subject, body).await;
    ground.until("/api/v1/acts", |answer| answer.body.contains("\"done\"")).await;
    let encoded: String = subject.bytes().map(|b| format!("%{b:02X}")).collect();
    let story = ground.get(&format!("/api/v1/stories?about={encoded}")).await.json();
    let steps: BTreeSet<&str> =
        story["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    for step in ["seen", "decided", "approved", "intended", "called", "verified", "freed"] {
        assert!(steps.contains(step), "{step}: {story:#}");
    }
    assert!(story.to_string().contains("alice approved"));
}
